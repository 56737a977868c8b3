#include <stdio.h>
float on_host(float x) { return x + 1; }
__device__ float through(float x) {
    return on_host(x);
}
__global__ void direct(float* out) { out[0] = on_host(out[0]); }
__global__ void indirect(float* out) { out[0] = through(out[0]); }
__global__ void prints(float* out) { printf("%f\n", out[0]); }
__global__ void library(float* out) { cublasLtMatmul(out); }
void run(float* out) { direct<<<1, 1>>>(out); }
void run_prints(float* out) { prints<<<1, 1>>>(out); }
