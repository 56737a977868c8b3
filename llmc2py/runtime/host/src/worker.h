// One block at a time: its threads as fibers of one operating-system thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstddef>
#include <memory>
#include <vector>

#include "fiber.h"
#include "llmc2py/runtime.h"
#include "trap.h"

namespace llmc2py {

constexpr unsigned int max_block = 1024;
// Of dynamic shared memory, whatever element type a kernel declares it with.
constexpr std::size_t shared_alignment = 128;
// Behind the dynamic shared memory, in checking mode: a touch of these bytes is out of bounds.
constexpr std::size_t checked_shared_guard = 64 * 1024;

// Of every thread, with pages below that nobody may touch; a frame that is larger than these is made page by page.
constexpr std::size_t stack_bytes = 256 * 1024;
constexpr std::size_t guard_stack_bytes = 64 * 1024;
// What the runtime needs of a stack, with functions of the C library.
constexpr std::size_t spare_stack_bytes = 16 * 1024;
constexpr const char *stack_overflow_text =
    "stack overflow: local arrays and nested calls of a thread have 256 KiB on the CPU";

enum class Fault : int { none, assertion, divergence, deadlock, trap, refused };

// A loaded kernel; ctypes mirrors this struct.
struct Kernel {
    void (*entry)(void **);
    void (*touch)();
    const char *name;
    std::int32_t workers;
};

struct Launch {
    const Kernel *kernel;
    void **arguments;
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint64_t shared_bytes;
    struct Checker *checker;
    Fault fault = Fault::none;
    char message[1024] = {};
};

// A loaded library as one operating-system thread sees it: its code and data, and its thread-local segment.
struct Module {
    std::uintptr_t low = 0, high = 0;
    char *local = nullptr;
    std::size_t local_bytes = 0;

    bool holds(std::uintptr_t address) const
    {
        return address - low < high - low || address - reinterpret_cast<std::uintptr_t>(local) < local_bytes;
    }
};

enum class State : unsigned char { fresh, ready, running, barrier, collective, exited };

struct Fiber {
    Context context;
    char *stack = nullptr;
    struct Worker *worker = nullptr;
};

struct Thread {
    uint3 index;
    State state;
    Fiber *fiber;
    unsigned int barriers;  // how many it has passed
    unsigned int warp_epoch;
    Site site;
    // The collective that it waits in.
    Collective kind;
    unsigned int mask;
    int source;
    Payload payload;
    unsigned int result;
};

struct Warp {
    unsigned int alive;
    unsigned int waiting;
};

// The threads that can go on; the lowest goes first, which makes the order that of a plain loop where it can be.
class ReadySet {
public:
    void add(unsigned int thread)
    {
        words_[thread >> 6] |= 1ull << (thread & 63);
        summary_ |= 1u << (thread >> 6);
    }
    bool empty() const { return summary_ == 0; }
    void clear() { *this = ReadySet(); }
    unsigned int take();
    // The lowest above ``thread``; -1 where there is none.
    int take_above(unsigned int thread);

private:
    void remove(unsigned int thread);
    std::uint64_t words_[max_block / 64] = {};
    unsigned int summary_ = 0;
};

struct Progress {
    std::atomic<std::uint64_t> next_block{0};
    std::atomic<std::uint64_t> blocks_done{0};
    std::atomic<bool> failed{false};
    std::atomic_flag reported = ATOMIC_FLAG_INIT;
};

struct Worker {
    Launch *launch = nullptr;
    Progress *progress = nullptr;
    Context main;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber *> idle;
    std::vector<char> shared_storage;
    Thread threads[max_block];
    Warp warps[max_block / 32];
    ReadySet ready;
    unsigned int count = 0, next = 0, live = 0, current = 0;
    unsigned int arrived = 0, votes = 0, left_midway = 0;
    bool prefer_fresh = false;
    std::uint64_t events = 0, spinning_since = 0, spinning_events = 0;
    // The kernel's library, whose thread-local segment is its static shared memory.
    Module module;
    Checker *checker = nullptr;
    bool failed = false, reporting = false;
    // A signal of the processor ends the launch while a kernel runs, unless the runtime or the C library holds
    // something that others wait for.
    volatile bool in_kernel = false;
    volatile unsigned int holds = 0;
    Trap trap;

    void begin_launch(Launch *launch, Progress *progress);
    // Instrumented code also runs between launches, and must then find no checker.
    void end_launch();
    void run_block(std::uint64_t block);
    void run_fresh_thread(Fiber *fiber);
    void leave_fiber(Fiber *self);
    unsigned int barrier(bool predicate, unsigned int *present, Site site);
    unsigned int collective(Collective kind, unsigned int mask, int source, Payload *payload, Site site);
    void yield();
    // Where the stack of the thread that runs begins; null where none does.
    char *stack_top() const;
    bool is_overflow(std::uintptr_t address) const;
    bool is_on_stack(std::uintptr_t address) const;
    // Ends the launch where little of the stack is left.
    void need_stack();
    [[noreturn]] void fail(Fault fault, const char *what, Site site);

private:
    void prepare_fibers();
    Fiber *idle_fiber();
    void resume(Context &from);
    void start_fiber(Context &from);
    void continue_thread(unsigned int thread, Context &from);
    void exit_thread();
    void release_barrier();
    void release_warps(unsigned int warp);
    bool complete_collective(unsigned int warp, unsigned int mask);
    void finish_collective(unsigned int warp, unsigned int participants);
    bool release_active();
    void stalled();
    const Thread *find(State state) const;
};

Worker *current_worker();

// While this lives, the thread cannot be taken out of what it does; there is enough stack for it. Host code that is
// compiled with kernels runs on a stack of its own, and without a worker where nothing has been launched yet.
class Hold {
public:
    explicit Hold(Worker *worker) : worker_(worker != nullptr && worker->in_kernel ? worker : nullptr)
    {
        if (worker_ != nullptr) {
            worker_->need_stack();
            worker_->holds = worker_->holds + 1;
        }
    }
    ~Hold()
    {
        if (worker_ != nullptr) {
            worker_->holds = worker_->holds - 1;
        }
    }
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;

private:
    Worker *worker_;
};

// Checking mode (check.cpp).
void checker_begin_block(Checker *checker, const Worker &worker);
void checker_barrier(Checker *checker);
void checker_fence(Checker *checker);
void checker_allocates(Checker *checker);
// Notes what the processor refused; ``code`` is behind the instruction, 0 for the access that was looked at last.
void checker_trap(Checker *checker, const char *what, std::uint64_t code);
void checker_divergence(Checker *checker, const Worker &worker, Site first, Site second, unsigned int missing);
void checker_inactive_lane(Checker *checker, const Worker &worker, Site site);

}  // namespace llmc2py
