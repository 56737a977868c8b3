// The checking mode: bounds and races of every access that an instrumented kernel makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "worker.h"

namespace llmc2py {

enum class Problem : std::int32_t { bounds, race, divergence, inactive_lane, division, trap };

// Regions that are not arrays of the caller.
constexpr std::int32_t dynamic_shared_region = -1;
constexpr std::int32_t static_shared_region = -2;
constexpr std::int32_t no_region = -3;

// What Python reads of one finding; ctypes mirrors this struct.
struct Finding {
    Problem problem;
    std::int32_t region;
    std::int64_t offset;
    std::uint64_t size;
    std::uint64_t code, other_code;
    std::uint32_t block[3], thread[3], other_thread[3];
    std::int32_t is_write, other_is_write;
    std::uint64_t count;
    char place[512];
};

struct Access {
    enum Kind : std::uint8_t { none, plain, atomic };
    std::uint64_t code;
    std::uint32_t block, epoch, warp_epoch;
    std::uint16_t thread;
    Kind kind;
};

// Who touched some bytes last. Two readers, so that one of them is another thread than the next writer; atomics apart,
// so that they do not hide a plain store.
struct Cell {
    Access write, atomic, read, earlier_read;
};

struct Region {
    std::int32_t name;
    std::uintptr_t low, high;              // what an index may lead to by mistake
    std::uintptr_t guard_low, guard_high;  // of this, what may be touched without harm
    std::uintptr_t start, stop;            // what a kernel may touch
    unsigned int grain;          // bytes that share a cell
    bool global;
    Cell *cells;
    void *original;
};

struct Checker {
    std::vector<Region> regions;
    std::vector<Finding> findings;
    std::map<std::tuple<Problem, std::int32_t, std::uint64_t, std::uint64_t>, std::size_t> known;
    std::vector<std::pair<void *, std::size_t>> mappings;
    // Memory beside the regions that is the kernel's to read: its arguments. Without ``closed``, there may be more.
    std::vector<std::pair<std::uintptr_t, std::size_t>> others;
    std::uint64_t last_code = 0;
    std::uint32_t block = 0, epoch = 0;
    bool fenced = false, closed = false;

    ~Checker();
    std::uintptr_t add_buffer(void *original, std::size_t nbytes, unsigned int grain);
    void begin_block(const Worker &worker);
    // Whether the access may be made: not where it would touch what is not the kernel's.
    bool access(const Worker &worker, std::uintptr_t address, std::size_t size, bool write, Access::Kind kind,
                std::uint64_t code);
    Finding *report(Problem problem, std::int32_t region, std::uint64_t code, std::uint64_t other);

private:
    void *map(std::size_t nbytes);
    char *map_guarded(std::size_t nbytes, std::size_t *reach);
    bool is_known(const Worker &worker, std::uintptr_t address) const;
    void report_bounds(std::int32_t region, std::int64_t offset, std::size_t size, bool write, std::uint64_t code);
    void add_shared(std::int32_t name, void *start, std::size_t nbytes, std::size_t guard);
    void check_races(const Region &region, std::uintptr_t address, std::size_t size, bool write, const Access &now);
    bool unordered(const Region &region, const Access &before, const Access &now) const;
};

}  // namespace llmc2py
