// Signals of the processor while a kernel runs: a bad kernel must not take the interpreter down with it.
#pragma once

#include <cstdint>

namespace llmc2py {

struct Worker;

// What the processor refused to do.
struct Trap {
    int signal = 0;
    int code = 0;
    std::uintptr_t address = 0;
    std::uintptr_t instruction = 0;
};

// Makes the calling thread ready to catch traps: the handlers, and a stack for them as that of the kernel may be full.
void catch_traps();

// Says what a trap was, and ends the launch with it.
[[noreturn]] void report_trap(Worker *worker);

}  // namespace llmc2py
