// The context switch itself: callee-saved registers to the old stack, from the new one.
#include "fiber.h"

#if defined(__x86_64__)

// The control words of the floating-point units stay: no kernel changes them, and to load them is slow.
__asm__(
    ".text\n.p2align 4\n.globl llmc2py_switch\n"
#if defined(__ELF__)
    ".hidden llmc2py_switch\n.type llmc2py_switch,@function\n"
#endif
    "llmc2py_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");

#elif defined(__aarch64__)

__asm__(
    ".text\n.p2align 4\n.globl llmc2py_switch\n"
#if defined(__ELF__)
    ".hidden llmc2py_switch\n.type llmc2py_switch,%function\n"
    "llmc2py_switch:\n"
#else
    ".globl _llmc2py_switch\n_llmc2py_switch:\n"
#endif
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n");

#endif
