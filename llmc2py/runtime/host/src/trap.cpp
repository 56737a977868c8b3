// A fault in a kernel goes on, after the signal, in a function that ends the launch; any other goes to the handler before.
#include "trap.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "worker.h"

namespace llmc2py {

namespace {

constexpr std::size_t signal_stack_bytes = 64 * 1024;
constexpr std::size_t least_signal_stack_bytes = 16 * 1024;
constexpr int trap_signals[] = {SIGSEGV, SIGBUS, SIGFPE};

struct sigaction handlers_before[3];
std::mutex handlers_lock;
std::atomic<unsigned int> times_installed{0};
__thread unsigned int signal_stack_of;
__thread bool passing_on;

// Makes the thread go on in report_trap(worker), on an empty stack, once the signal is over. What it was doing is
// given up, but the rest of its state (signal mask, floating-point modes) comes back as it was.
bool divert(void *context, Worker *worker, [[maybe_unused]] char *top)
{
    [[maybe_unused]] auto *machine = &static_cast<ucontext_t *>(context)->uc_mcontext;
#if defined(__linux__) && defined(__x86_64__)
    auto *slot = reinterpret_cast<std::uint64_t *>(reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{15});
    *--slot = 0;  // stands where a caller's return address would
    worker->trap.instruction = static_cast<std::uintptr_t>(machine->gregs[REG_RIP]);
    machine->gregs[REG_RSP] = reinterpret_cast<greg_t>(slot);
    machine->gregs[REG_RDI] = reinterpret_cast<greg_t>(worker);
    machine->gregs[REG_RIP] = reinterpret_cast<greg_t>(&report_trap);
    machine->gregs[REG_EFL] &= ~0x400LL;  // functions expect the direction flag to be clear
    return true;
#elif defined(__linux__) && defined(__aarch64__)
    worker->trap.instruction = machine->pc;
    machine->sp = reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{15};
    machine->regs[0] = reinterpret_cast<std::uint64_t>(worker);
    machine->regs[29] = machine->regs[30] = 0;
    machine->pc = reinterpret_cast<std::uint64_t>(&report_trap);
    return true;
#else
    static_cast<void>(worker);
    return false;
#endif
}

void say(const char *text)
{
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

// Where the thread cannot be taken out of what it does, as it may hold a lock, the process ends; it should say why.
void say_last_words(const Worker &worker)
{
    say("llmc2py: kernel ");
    say(worker.launch->kernel->name);
    say(" on the CPU made an access that the processor refuses, where it cannot be stopped; the process ends\n");
}

void pass_on(const struct sigaction &before, int signal, siginfo_t *info, void *context)
{
    const bool is_fault = info->si_code > 0;
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler == SIG_DFL || (before.sa_handler == SIG_IGN && is_fault)) {
        struct sigaction plain = {};
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, nullptr);
        if (!is_fault) {
            raise(signal);  // somebody sent it; a fault comes again by itself
        }
    } else if (before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    }
}

void on_trap(int signal, siginfo_t *info, void *context)
{
    const int error = errno;
    Worker *worker = current_worker();
    if (worker != nullptr && worker->in_kernel && info->si_code > 0) {
        char *top = worker->stack_top();
        worker->trap = {signal, info->si_code, reinterpret_cast<std::uintptr_t>(info->si_addr), 0};
        if (worker->holds == 0 && top != nullptr && divert(context, worker, top)) {
            errno = error;
            return;
        }
        say_last_words(*worker);
    }
    if (passing_on) {
        // The handler before has come back here: two that were installed after each other, and know of each other.
        struct sigaction plain = {};
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, nullptr);
        return;
    }
    passing_on = true;
    for (int number = 0; number < 3; ++number) {
        if (trap_signals[number] == signal) {
            pass_on(handlers_before[number], signal, info, context);
        }
    }
    passing_on = false;
    errno = error;
}

bool is_ours(const struct sigaction &action)
{
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_trap;
}

void install_handlers()
{
    const std::lock_guard<std::mutex> hold(handlers_lock);
    for (int number = 0; number < 3; ++number) {
        struct sigaction present;
        if (sigaction(trap_signals[number], nullptr, &present) != 0 || is_ours(present)) {
            continue;
        }
        struct sigaction mine = {};
        mine.sa_sigaction = on_trap;
        // As others do that pass a signal on by raising it: it comes at once, and not when the handler is over.
        mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&mine.sa_mask);
        handlers_before[number] = present;
        sigaction(trap_signals[number], &mine, nullptr);
    }
    times_installed.fetch_add(1);
}

// Of one operating-system thread, for as long as it lives.
class SignalStack {
public:
    // Leaves a stack that somebody else has set, if it is large enough.
    void use()
    {
        stack_t present;
        if (sigaltstack(nullptr, &present) != 0 ||
            ((present.ss_flags & SS_DISABLE) == 0 && present.ss_size >= least_signal_stack_bytes)) {
            return;
        }
        if (memory_ == nullptr) {
            void *memory = mmap(nullptr, signal_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memory_ = memory == MAP_FAILED ? nullptr : memory;
        }
        stack_t mine = {};
        mine.ss_sp = memory_;
        mine.ss_size = signal_stack_bytes;
        if (memory_ != nullptr) {
            sigaltstack(&mine, nullptr);
        }
    }
    ~SignalStack()
    {
        stack_t present;
        if (memory_ == nullptr || sigaltstack(nullptr, &present) != 0) {
            return;
        }
        if (present.ss_sp == memory_) {
            stack_t none = {};
            none.ss_flags = SS_DISABLE;
            sigaltstack(&none, nullptr);
        }
        munmap(memory_, signal_stack_bytes);
    }

private:
    void *memory_ = nullptr;
};

thread_local SignalStack signal_stack;

}  // namespace

// Others that install handlers take all of these signals, and the stack with them: to look at one is enough, which
// matters as every launch does it.
void catch_traps()
{
    struct sigaction present;
    if (sigaction(SIGSEGV, nullptr, &present) == 0 && !is_ours(present)) {
        install_handlers();
    }
    const unsigned int installed = times_installed.load(std::memory_order_relaxed);
    if (signal_stack_of != installed) {
        signal_stack_of = installed;
        signal_stack.use();
    }
}

void report_trap(Worker *worker)
{
    const Trap &trap = worker->trap;
    if (worker->is_overflow(trap.address) && trap.signal != SIGFPE) {
        worker->fail(Fault::trap, stack_overflow_text, Site{nullptr, 0});
    }
    char what[256];
    if (trap.signal == SIGFPE) {
        std::snprintf(what, sizeof what, "integer division by zero, or of the smallest integer by -1");
    } else if (trap.code == SI_KERNEL) {
        std::snprintf(what, sizeof what, "access that is not aligned for its vector, or to no possible address");
    } else if (trap.address < 4096) {
        std::snprintf(what, sizeof what, "access to a null pointer, at byte %u: an array that is None",
                      static_cast<unsigned int>(trap.address));
    } else {
        std::snprintf(what, sizeof what, "access far out of bounds: there is no memory at address 0x%llx",
                      static_cast<unsigned long long>(trap.address));
    }
    if (worker->checker != nullptr) {
        // In the C library it is the access before that tells the line.
        const bool is_own = worker->module.holds(trap.instruction);
        checker_trap(worker->checker, what, is_own ? trap.instruction + 1 : 0);
        worker->fail(Fault::refused, what, Site{nullptr, 0});
    }
    std::strncat(what, "; LLMC2PY_CHECK=1 finds the line", sizeof what - std::strlen(what) - 1);
    worker->fail(Fault::trap, what, Site{nullptr, 0});
}

}  // namespace llmc2py
