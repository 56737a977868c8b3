// The scheduler of one block's threads.
#include "worker.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

__thread uint3 llmc2py_thread_idx;
__thread uint3 llmc2py_block_idx;
__thread uint3 llmc2py_block_dim;
__thread uint3 llmc2py_grid_dim;
__thread void *llmc2py_dynamic_shared;
__thread unsigned int llmc2py_dynamic_shared_bytes;
__thread unsigned int llmc2py_atomics;

namespace llmc2py {

namespace {

constexpr std::uint64_t spin_limit_ns = 20'000'000'000ull;

__thread Worker *this_worker;
__thread Fiber *starting_fiber;

std::uint64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<std::uint64_t>(now.tv_nsec);
}

// Runs on its own stack, for ever; it may be resumed on another operating-system thread, so it must not touch
// thread-local variables itself: a compiler keeps their addresses in registers.
void fiber_main()
{
    Fiber *self = starting_fiber;
    Worker *worker = self->worker;
    for (;;) {
        while ((worker->ready.empty() || worker->prefer_fresh) && worker->next < worker->count) {
            worker->run_fresh_thread(self);
        }
        worker->leave_fiber(self);
    }
}

}  // namespace

Worker *current_worker() { return this_worker; }

unsigned int ReadySet::take()
{
    const unsigned int word = static_cast<unsigned int>(__builtin_ctz(summary_));
    const unsigned int thread = word * 64 + static_cast<unsigned int>(__builtin_ctzll(words_[word]));
    remove(thread);
    return thread;
}

int ReadySet::take_above(unsigned int thread)
{
    for (unsigned int candidate = thread + 1; candidate < max_block; ++candidate) {
        if ((words_[candidate >> 6] >> (candidate & 63)) & 1u) {
            remove(candidate);
            return static_cast<int>(candidate);
        }
    }
    return -1;
}

void ReadySet::remove(unsigned int thread)
{
    words_[thread >> 6] &= ~(1ull << (thread & 63));
    if (words_[thread >> 6] == 0) {
        summary_ &= ~(1u << (thread >> 6));
    }
}

void Worker::begin_launch(Launch *new_launch, Progress *new_progress)
{
    launch = new_launch;
    progress = new_progress;
    checker = launch->checker;
    failed = reporting = false;
    holds = 0;
    this_worker = this;
    shared_storage.resize(launch->shared_bytes + shared_alignment + (checker != nullptr ? checked_shared_guard : 0));
    const auto unaligned = reinterpret_cast<std::uintptr_t>(shared_storage.data());
    const auto base = (unaligned + shared_alignment - 1) & ~std::uintptr_t{shared_alignment - 1};
    llmc2py_dynamic_shared = reinterpret_cast<void *>(base);
    llmc2py_dynamic_shared_bytes = static_cast<unsigned int>(launch->shared_bytes);
    llmc2py_block_dim = {launch->block[0], launch->block[1], launch->block[2]};
    llmc2py_grid_dim = {launch->grid[0], launch->grid[1], launch->grid[2]};
}

void Worker::end_launch()
{
    this_worker = nullptr;
    checker = nullptr;
}

void Worker::run_block(std::uint64_t block)
{
    const std::uint64_t row = block / launch->grid[0];
    llmc2py_block_idx = {static_cast<unsigned int>(block % launch->grid[0]),
                         static_cast<unsigned int>(row % launch->grid[1]),
                         static_cast<unsigned int>(row / launch->grid[1])};
    // All bits set is a NaN in every floating-point type: what a kernel did not write, shows.
    std::memset(llmc2py_dynamic_shared, 0xff, launch->shared_bytes);
    if (module.local != nullptr) {
        std::memset(module.local, 0xff, module.local_bytes);
    }
    count = launch->block[0] * launch->block[1] * launch->block[2];
    next = 0;
    live = count;
    arrived = votes = left_midway = 0;
    spinning_since = 0;
    ready.clear();
    for (unsigned int warp = 0; warp * 32 < count; ++warp) {
        const unsigned int lanes = count - warp * 32;
        warps[warp] = {lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1u, 0u};
    }
    if (checker != nullptr) {
        checker_begin_block(checker, *this);
    }
    in_kernel = true;
    resume(main);
    in_kernel = false;
    if (failed) {
        prepare_fibers();
    }
}

// After a fault the fibers hold the frames of abandoned threads; kernels own nothing that must be destroyed.
void Worker::prepare_fibers()
{
    idle.clear();
    for (std::size_t number = 0; number < fibers.size(); ++number) {
        const std::size_t colour = (number % 32) * 320;
        make_context(fibers[number]->context, fibers[number]->stack, stack_bytes - colour, fiber_main);
        idle.push_back(fibers[number].get());
    }
}

Fiber *Worker::idle_fiber()
{
    if (!idle.empty()) {
        Fiber *fiber = idle.back();
        idle.pop_back();
        return fiber;
    }
    const Hold hold(this);
    void *memory = mmap(nullptr, stack_bytes + guard_stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fail(Fault::trap, "there is no memory for the stack of another thread", Site::here());
    }
    mprotect(memory, guard_stack_bytes, PROT_NONE);  // a stack that overflows must not run into its neighbour
    auto fiber = std::make_unique<Fiber>();
    fiber->worker = this;
    fiber->stack = static_cast<char *>(memory) + guard_stack_bytes;
    // Stacks that all begin at one offset of a page would compete for the same few cache lines.
    const std::size_t colour = (fibers.size() % 32) * 320;
    make_context(fiber->context, fiber->stack, stack_bytes - colour, fiber_main);
    fibers.push_back(std::move(fiber));
    return fibers.back().get();
}

char *Worker::stack_top() const
{
    const Fiber *fiber = current < next ? threads[current].fiber : nullptr;
    return fiber == nullptr ? nullptr : fiber->stack + stack_bytes;
}

bool Worker::is_overflow(std::uintptr_t address) const
{
    const char *top = stack_top();
    const auto low = reinterpret_cast<std::uintptr_t>(top) - stack_bytes;
    return top != nullptr && address < low && address >= low - guard_stack_bytes;
}

bool Worker::is_on_stack(std::uintptr_t address) const
{
    if (reinterpret_cast<std::uintptr_t>(stack_top()) - address - 1 < stack_bytes) {
        return true;
    }
    for (unsigned int thread = 0; thread < next; ++thread) {
        if (address - reinterpret_cast<std::uintptr_t>(threads[thread].fiber->stack) < stack_bytes) {
            return true;
        }
    }
    return false;
}

void Worker::need_stack()
{
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    const char *top = stack_top();
    const auto low = reinterpret_cast<std::uintptr_t>(top) - stack_bytes;
    // The first fiber is made on the stack of the caller.
    if (top != nullptr && here - low < spare_stack_bytes) {
        fail(Fault::trap, stack_overflow_text, Site{nullptr, 0});
    }
}

// Gives the processor to the next thread that can run; returns when somebody resumes ``from``.
void Worker::resume(Context &from)
{
    if (ready.empty() && next >= count) {
        if (live == 0) {
            switch_context(from, main);
            return;
        }
        stalled();
    }
    if (ready.empty()) {
        start_fiber(from);
    } else {
        continue_thread(ready.take(), from);
    }
}

void Worker::start_fiber(Context &from)
{
    Fiber *fiber = idle_fiber();
    starting_fiber = fiber;
    switch_context(from, fiber->context);
}

void Worker::continue_thread(unsigned int thread, Context &from)
{
    current = thread;
    threads[thread].state = State::running;
    llmc2py_thread_idx = threads[thread].index;
    Context &to = threads[thread].fiber->context;
    if (&to != &from) {
        switch_context(from, to);
    }
}

__attribute__((noinline)) void Worker::leave_fiber(Fiber *self)
{
    idle.push_back(self);
    resume(self->context);
}

__attribute__((noinline)) void Worker::run_fresh_thread(Fiber *fiber)
{
    const unsigned int width = launch->block[0];
    const unsigned int height = launch->block[1];
    prefer_fresh = false;
    current = next++;
    Thread &thread = threads[current];
    // Field by field: a copy of the whole would load what was stored in parts, and wait for it.
    unsigned int x = current, y = 0, z = 0;
    if (width != count) {
        x = current % width;
        y = current / width % height;
        z = current / width / height;
    }
    llmc2py_thread_idx.x = thread.index.x = x;
    llmc2py_thread_idx.y = thread.index.y = y;
    llmc2py_thread_idx.z = thread.index.z = z;
    thread.state = State::running;
    thread.fiber = fiber;
    thread.barriers = 0;
    thread.warp_epoch = 0;
    launch->kernel->entry(launch->arguments);
    exit_thread();
}

void Worker::exit_thread()
{
    Thread &thread = threads[current];
    thread.state = State::exited;
    warps[current >> 5].alive &= ~(1u << (current & 31));
    --live;
    ++events;
    if (thread.barriers > 0) {
        ++left_midway;
    }
    if (warps[current >> 5].waiting != 0) {
        release_warps(current >> 5);
    }
    if (arrived != 0 && arrived == live) {
        release_barrier();
    }
}

void Worker::yield()
{
    Thread &thread = threads[current];
    const std::uint64_t seen = events + progress->blocks_done.load(std::memory_order_relaxed);
    const std::uint64_t now = now_ns();
    if (spinning_since == 0 || seen != spinning_events) {
        spinning_since = now;
        spinning_events = seen;
    } else if (now - spinning_since > spin_limit_ns) {
        fail(Fault::deadlock, "no progress: a thread spins for something that no running thread provides",
             Site{nullptr, 0});
    }
    if (next < count) {
        ready.add(current);
        prefer_fresh = true;
        start_fiber(thread.fiber->context);
        return;
    }
    int other = ready.take_above(current);
    if (other < 0 && !ready.empty()) {
        other = static_cast<int>(ready.take());
    }
    if (other < 0) {
        sched_yield();
        return;
    }
    thread.state = State::ready;
    ready.add(current);
    continue_thread(static_cast<unsigned int>(other), thread.fiber->context);
}

void Worker::fail(Fault fault, const char *what, Site site)
{
    progress->failed.store(true);
    // Where the stack ends in here, this is called again, and says that.
    reporting = reporting || !progress->reported.test_and_set();
    if (reporting) {
        const uint3 &thread = llmc2py_thread_idx;
        const uint3 &block = llmc2py_block_idx;
        char place[256] = "";
        if (site.file != nullptr) {
            std::snprintf(place, sizeof place, "%s:%d: ", site.file, site.line);
        }
        launch->fault = fault;
        std::snprintf(launch->message, sizeof launch->message,
                      "%s%s (kernel %s, block (%u,%u,%u), thread (%u,%u,%u))", place, what, launch->kernel->name,
                      block.x, block.y, block.z, thread.x, thread.y, thread.z);
        reporting = false;
    }
    failed = true;
    Context abandoned;
    switch_context(abandoned, main);
    __builtin_unreachable();
}

}  // namespace llmc2py
