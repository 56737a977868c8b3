// What a compiled kernel needs of the runtime library (src/runtime.cpp, src/check.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned int x, y, z;
};

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

namespace llmc2py {

// What lanes of one warp do together.
enum class Collective : int { sync, shuffle, ballot, match, active };

// Where in the source a thread waits; the defaults are those of the caller.
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// 128 bits cover every type that CUDA can shuffle.
struct Payload {
    std::uint64_t word[2];
};

}  // namespace llmc2py

#pragma GCC visibility push(default)
extern "C" {
// __thread and not thread_local: no initialisation wrapper stands between a kernel and its indices.
#define LLMC2PY_TLS __attribute__((tls_model("initial-exec")))
extern __thread uint3 llmc2py_thread_idx LLMC2PY_TLS;
extern __thread uint3 llmc2py_block_idx LLMC2PY_TLS;
extern __thread uint3 llmc2py_block_dim LLMC2PY_TLS;
extern __thread uint3 llmc2py_grid_dim LLMC2PY_TLS;
extern __thread void *llmc2py_dynamic_shared LLMC2PY_TLS;
extern __thread unsigned int llmc2py_dynamic_shared_bytes LLMC2PY_TLS;
extern __thread unsigned int llmc2py_atomics LLMC2PY_TLS;

// The block's barrier; returns how many threads gave a predicate that holds, and the threads that took part in *present.
unsigned int llmc2py_barrier(int predicate, unsigned int *present, llmc2py::Site site);
// Waits for the lanes of ``mask``; ``payload`` goes in and, for a shuffle, comes out as that of lane ``source``.
unsigned int llmc2py_collective(llmc2py::Collective kind, unsigned int mask, int source, llmc2py::Payload *payload,
                                llmc2py::Site site);
void llmc2py_yield(void);
void llmc2py_fence(void);
[[noreturn]] void llmc2py_fault(const char *message, llmc2py::Site site);
[[noreturn]] void llmc2py_assertion_failed(const char *expression, const char *file, int line);
int llmc2py_printf(const char *format, ...);
void *llmc2py_malloc(std::size_t size);
void llmc2py_free(void *memory);
// Checking mode only: an atomic access.
void llmc2py_check_atomic(const volatile void *address, unsigned int size);
}
#pragma GCC visibility pop

#define threadIdx llmc2py_thread_idx
#define blockIdx llmc2py_block_idx
#define blockDim llmc2py_block_dim
#define gridDim llmc2py_grid_dim
constexpr int warpSize = 32;
