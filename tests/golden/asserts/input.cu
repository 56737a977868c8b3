#include <assert.h>
__global__ void k(float* out, int n) { assert(n > 0); out[0] = n; }
void run(float* out, int n, int block_size) {
    assert(n % 4 == 0);
    assert(n % (block_size * 2) == 0 && "whole blocks, \"please\"");
    assert((n > 0) && (n <= 1024 || block_size == 32));
    if (n > 512) { assert(false && "too many"); }
    k<<<n / block_size, block_size>>>(out, n);
}
