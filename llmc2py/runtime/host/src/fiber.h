// A stackful context switch of a few instructions; ucontext where the processor is not known.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace llmc2py {

#if defined(__x86_64__) || defined(__aarch64__)

struct Context {
    void *stack_pointer = nullptr;
};

extern "C" void llmc2py_switch(void **save, void *load);

inline void switch_context(Context &from, Context &to) { llmc2py_switch(&from.stack_pointer, to.stack_pointer); }

#if defined(__x86_64__)

inline void make_context(Context &context, char *stack, std::size_t size, void (*entry)())
{
    auto top = (reinterpret_cast<std::uintptr_t>(stack) + size) & ~std::uintptr_t{15};
    auto *slot = reinterpret_cast<std::uint64_t *>(top);
    *--slot = 0;  // stands where a caller's return address would
    *--slot = reinterpret_cast<std::uint64_t>(entry);
    for (int saved = 0; saved < 6; ++saved) {
        *--slot = 0;
    }
    context.stack_pointer = slot;
}

#else

inline void make_context(Context &context, char *stack, std::size_t size, void (*entry)())
{
    auto top = (reinterpret_cast<std::uintptr_t>(stack) + size) & ~std::uintptr_t{15};
    auto *frame = reinterpret_cast<std::uint64_t *>(top - 160);
    for (int saved = 0; saved < 20; ++saved) {
        frame[saved] = 0;
    }
    frame[11] = reinterpret_cast<std::uint64_t>(entry);  // x30, where ret goes
    context.stack_pointer = frame;
}

#endif

#else

struct Context {
    ucontext_t registers;
};

inline void switch_context(Context &from, Context &to) { swapcontext(&from.registers, &to.registers); }

inline void make_context(Context &context, char *stack, std::size_t size, void (*entry)())
{
    getcontext(&context.registers);
    context.registers.uc_stack.ss_sp = stack;
    context.registers.uc_stack.ss_size = size;
    context.registers.uc_link = nullptr;
    makecontext(&context.registers, entry, 0);
}

#endif

}  // namespace llmc2py
