// Bounds by regions with guard zones; races by the last writer and readers of every cell since the last barrier.
#include "check.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>

namespace llmc2py {

namespace {

// Address space costs nothing until it is touched: an index may be far out and still be told from others.
constexpr std::size_t guard_bytes = std::size_t{256} << 20;

void place_thread(std::uint32_t (&target)[3], uint3 index)
{
    target[0] = index.x;
    target[1] = index.y;
    target[2] = index.z;
}

}  // namespace

Checker::~Checker()
{
    for (const auto &[start, size] : mappings) {
        munmap(start, size);
    }
}

void *Checker::map(std::size_t nbytes)
{
    void *memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    mappings.emplace_back(memory, nbytes);
    return memory;
}

// Copies an array to a place with guard zones on both sides; returns where, 0 where there is no memory.
std::uintptr_t Checker::add_buffer(void *original, std::size_t nbytes, unsigned int grain)
{
    const std::size_t total = nbytes + 2 * guard_bytes;
    void *memory = map(total);
    void *cells = map((nbytes / grain + 1) * sizeof(Cell));
    if (memory == nullptr || cells == nullptr) {
        return 0;
    }
    const auto low = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t start = low + guard_bytes + reinterpret_cast<std::uintptr_t>(original) % 256;
    std::memcpy(reinterpret_cast<void *>(start), original, nbytes);
    const auto name = static_cast<std::int32_t>(regions.size());
    regions.push_back({name, low, low + total, start, start + nbytes, grain, true, static_cast<Cell *>(cells), original});
    return start;
}

void Checker::add_shared(std::int32_t name, void *start, std::size_t nbytes, std::size_t guard)
{
    if (nbytes == 0 && guard == 0) {
        return;
    }
    const auto first = reinterpret_cast<std::uintptr_t>(start);
    auto *cells = static_cast<Cell *>(map((nbytes + 1) * sizeof(Cell)));
    if (cells != nullptr) {
        regions.push_back({name, first, first + nbytes + guard, first, first + nbytes, 1, false, cells, nullptr});
    }
}

void Checker::begin_block(const Worker &worker)
{
    if (block == 0) {
        add_shared(dynamic_shared_region, llmc2py_dynamic_shared, worker.launch->shared_bytes, checked_shared_guard);
        add_shared(static_shared_region, worker.static_shared, worker.static_shared_bytes, 0);
    }
    ++block;
    epoch = 0;
}

Finding *Checker::report(Problem problem, std::int32_t region, std::uint64_t code, std::uint64_t other)
{
    const auto [place, is_new] = known.try_emplace({problem, region, code, other}, findings.size());
    if (!is_new) {
        ++findings[place->second].count;
        return nullptr;
    }
    Finding &finding = findings.emplace_back();
    finding = Finding{};
    finding.problem = problem;
    finding.region = region;
    finding.code = code;
    finding.other_code = other;
    finding.count = 1;
    place_thread(finding.block, llmc2py_block_idx);
    place_thread(finding.thread, llmc2py_thread_idx);
    return &finding;
}

void Checker::access(const Worker &worker, std::uintptr_t address, std::size_t size, bool write, Access::Kind kind,
                     std::uint64_t code)
{
    for (const Region &region : regions) {
        if (address < region.low || address >= region.high) {
            continue;
        }
        if (address < region.start || address + size > region.stop) {
            if (Finding *finding = report(Problem::bounds, region.name, code, 0)) {
                finding->offset = static_cast<std::int64_t>(address) - static_cast<std::int64_t>(region.start);
                finding->size = size;
                finding->is_write = write;
            }
            return;
        }
        const Thread &thread = worker.threads[worker.current];
        check_races(region, address, size, write,
                    {code, block, epoch, thread.warp_epoch, static_cast<std::uint16_t>(worker.current), kind});
        return;
    }
}

bool Checker::unordered(const Region &region, const Access &before, const Access &now) const
{
    if (before.kind == Access::none || (before.kind == Access::atomic && now.kind == Access::atomic)) {
        return false;
    }
    if (before.block != now.block) {
        // Fences and atomics may order blocks in ways that are not followed here.
        return region.global && !fenced;
    }
    if (before.thread == now.thread || before.epoch != now.epoch) {
        return false;
    }
    return before.thread / 32 != now.thread / 32 || before.warp_epoch >= now.warp_epoch;
}

void Checker::check_races(const Region &region, std::uintptr_t address, std::size_t size, bool write,
                          const Access &now)
{
    const auto raced = [&](const Access &before, bool before_wrote) {
        // Lanes of one warp that store to one place by one instruction: CUDA lets one of them win.
        const bool same_store = write && before_wrote && before.code == now.code && before.block == now.block &&
                                before.thread / 32 == now.thread / 32;
        if (same_store || !unordered(region, before, now)) {
            return;
        }
        if (Finding *finding = report(Problem::race, region.name, now.code, before.code)) {
            finding->offset = static_cast<std::int64_t>(address - region.start);
            finding->size = size;
            finding->is_write = write;
            finding->other_is_write = before_wrote;
            const unsigned int width = llmc2py_block_dim.x, height = llmc2py_block_dim.y;
            const unsigned int other = before.thread;
            place_thread(finding->other_thread, {other % width, other / width % height, other / width / height});
            std::snprintf(finding->place, sizeof finding->place, "%s",
                          before.block == now.block ? "of one block" : "of two blocks");
        }
    };
    const std::size_t first = (address - region.start) / region.grain;
    const std::size_t last = (address + size - 1 - region.start) / region.grain;
    for (std::size_t index = first; index <= last; ++index) {
        Cell &cell = region.cells[index];
        raced(cell.write, true);
        raced(cell.atomic, true);
        if (write) {
            raced(cell.read, false);
            raced(cell.earlier_read, false);
            (now.kind == Access::atomic ? cell.atomic : cell.write) = now;
        } else {
            if (cell.read.thread != now.thread || cell.read.block != now.block) {
                cell.earlier_read = cell.read;
            }
            cell.read = now;
        }
    }
}

void checker_begin_block(Checker *checker, const Worker &worker) { checker->begin_block(worker); }
void checker_barrier(Checker *checker) { ++checker->epoch; }
void checker_fence(Checker *checker) { checker->fenced = true; }

void checker_divergence(Checker *checker, const Worker &worker, Site first, Site second, unsigned int missing)
{
    const auto key = static_cast<std::uint64_t>(first.line) << 32 | static_cast<std::uint32_t>(second.line);
    Finding *finding = checker->report(Problem::divergence, 0, key, missing != 0);
    if (finding == nullptr) {
        return;
    }
    if (missing != 0) {
        std::snprintf(finding->place, sizeof finding->place,
                      "%s:%d: divergent barrier: %u of %u threads have left the kernel while the others wait at "
                      "__syncthreads()",
                      first.file, first.line, missing, worker.count);
    } else {
        std::snprintf(finding->place, sizeof finding->place,
                      "%s:%d: divergent barrier: some threads wait at __syncthreads() here, others at %s:%d", first.file,
                      first.line, second.file, second.line);
    }
}

void checker_inactive_lane(Checker *checker, const Worker &, Site site)
{
    Finding *finding = checker->report(Problem::inactive_lane, 0, static_cast<std::uint64_t>(site.line), 0);
    if (finding != nullptr) {
        std::snprintf(finding->place, sizeof finding->place,
                      "%s:%d: a shuffle reads a lane that does not take part in it: the value is undefined", site.file,
                      site.line);
    }
}

}  // namespace llmc2py
