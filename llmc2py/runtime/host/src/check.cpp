// Bounds by regions with guard zones; races by the last writer and readers of every cell since the last barrier.
#include "check.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>

namespace llmc2py {

namespace {

// Address space costs nothing until it is touched. What lies this near to an array may be touched without harm, so that
// a kernel goes on and shows all that is wrong with it.
constexpr std::size_t guard_bytes = std::size_t{256} << 20;
// An index of 32 bits into elements of 16 bytes stays in this distance, and is told from those into other arrays.
constexpr std::size_t farthest = std::size_t{64} << 30;

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

// Reserves address space around so many bytes, as much as there is; what is near to them can be touched.
char *Checker::map_guarded(std::size_t nbytes, std::size_t *reach)
{
    for (*reach = farthest; *reach >= guard_bytes; *reach /= 2) {
        const std::size_t total = nbytes + 2 * *reach;
        void *memory = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            continue;
        }
        mappings.emplace_back(memory, total);
        char *start = static_cast<char *>(memory) + *reach;
        const bool touchable = mprotect(start - guard_bytes, nbytes + 2 * guard_bytes, PROT_READ | PROT_WRITE) == 0;
        return touchable ? start : nullptr;
    }
    return nullptr;
}

// Copies an array to a place with guard zones on both sides; returns where, 0 where there is no memory.
std::uintptr_t Checker::add_buffer(void *original, std::size_t nbytes, unsigned int grain)
{
    constexpr std::size_t page = 64 * 1024;  // of any system
    const std::size_t room = (nbytes / page + 2) * page;
    std::size_t reach = 0;
    const char *memory = map_guarded(room, &reach);
    void *cells = map((nbytes / grain + 1) * sizeof(Cell));
    if (memory == nullptr || cells == nullptr) {
        return 0;
    }
    const auto place = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t start = place + reinterpret_cast<std::uintptr_t>(original) % 256;
    std::memcpy(reinterpret_cast<void *>(start), original, nbytes);
    const auto name = static_cast<std::int32_t>(regions.size());
    regions.push_back({name, place - reach, place + room + reach, place - guard_bytes, place + room + guard_bytes, start,
                       start + nbytes, grain, true, static_cast<Cell *>(cells), original});
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
        const std::uintptr_t stop = first + nbytes;
        regions.push_back({name, first, stop + guard, first, stop + guard, first, stop, 1, false, cells, nullptr});
    }
}

void Checker::begin_block(const Worker &worker)
{
    if (block == 0) {
        add_shared(dynamic_shared_region, llmc2py_dynamic_shared, worker.launch->shared_bytes, checked_shared_guard);
        add_shared(static_shared_region, worker.module.local, worker.module.local_bytes, 0);
        // What CUDA calls threadIdx and so on; checked kernels run in one operating-system thread.
        for (const uint3 *index : {&llmc2py_thread_idx, &llmc2py_block_idx, &llmc2py_block_dim, &llmc2py_grid_dim}) {
            others.emplace_back(reinterpret_cast<std::uintptr_t>(index), sizeof *index);
        }
        others.emplace_back(reinterpret_cast<std::uintptr_t>(&llmc2py_dynamic_shared), sizeof llmc2py_dynamic_shared);
        others.emplace_back(reinterpret_cast<std::uintptr_t>(&llmc2py_dynamic_shared_bytes), sizeof(unsigned int));
        others.emplace_back(reinterpret_cast<std::uintptr_t>(&llmc2py_atomics), sizeof llmc2py_atomics);
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

void Checker::report_bounds(std::int32_t region, std::int64_t offset, std::size_t size, bool write, std::uint64_t code)
{
    if (Finding *finding = report(Problem::bounds, region, code, 0)) {
        finding->offset = offset;
        finding->size = size;
        finding->is_write = write;
    }
}

bool Checker::is_known(const Worker &worker, std::uintptr_t address) const
{
    for (const auto &[start, size] : others) {
        if (address - start < size) {
            return true;
        }
    }
    return worker.module.holds(address) || worker.is_on_stack(address);
}

bool Checker::access(const Worker &worker, std::uintptr_t address, std::size_t size, bool write, Access::Kind kind,
                     std::uint64_t code)
{
    last_code = code;
    for (const Region &region : regions) {
        if (address < region.low || address >= region.high || size == 0) {
            continue;
        }
        if (address < region.start || size > region.stop - address || address >= region.stop) {
            report_bounds(region.name, static_cast<std::int64_t>(address - region.start), size, write, code);
            return address >= region.guard_low && address < region.guard_high && size <= region.guard_high - address;
        }
        const Thread &thread = worker.threads[worker.current];
        check_races(region, address, size, write,
                    {code, block, epoch, thread.warp_epoch, static_cast<std::uint16_t>(worker.current), kind});
        return true;
    }
    if (!closed || size == 0 || is_known(worker, address)) {
        return true;
    }
    report_bounds(no_region, static_cast<std::int64_t>(address), size, write, code);
    return false;
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
void checker_allocates(Checker *checker) { checker->closed = false; }

void checker_trap(Checker *checker, const char *what, std::uint64_t code)
{
    if (Finding *finding = checker->report(Problem::trap, 0, code != 0 ? code : checker->last_code, 0)) {
        std::snprintf(finding->place, sizeof finding->place, "%s", what);
    }
}

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
