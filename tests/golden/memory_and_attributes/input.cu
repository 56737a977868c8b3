__global__ void k(float* out, float* scratch, const float* x, int n) {
    extern __shared__ float s[];
    s[0] = x[0];
    scratch[threadIdx.x] = s[0] + n;
    out[threadIdx.x] += scratch[threadIdx.x];
}
__global__ void fallback(float* out, const float* x) { out[threadIdx.x] = x[threadIdx.x]; }

void cudaCheck(cudaError_t error) { if (error != cudaSuccess) exit(1); }
void unknown_check(float* out) { notDefinedCheck(cudaMemset(out, 0, 4)); fallback<<<1, 1>>>(out, out); }

void with_scratch(float* out, const float* x, int n, cudaStream_t stream) {
    float* scratch;
    cudaMalloc(&scratch, n * sizeof(float));
    unsigned* flags;
    cudaMalloc((void**)&flags, 64);
    cudaCheck(cudaMemsetAsync(scratch, 0, n * sizeof(float), stream));
    cudaMemset(flags, 0, sizeof(unsigned));
    k<<<1, n, 0, stream>>>(out, scratch, x, n);
    cudaMemcpyAsync(out, scratch, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    cudaFree(scratch);
    cudaFree(flags);
}
void with_fallback(float* out, float* scratch, const float* x, int n) {
    size_t bytes = (2 + n) * sizeof(float);
    auto status = cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaGetLastError();
    if (status == cudaSuccess) { k<<<1, n, bytes>>>(out, scratch, x, n); }
    else { fallback<<<1, n>>>(out, x); }
}
void host_copy(float* out, const float* x, int n) {
    float host[4];
    cudaMemcpy(host, x, sizeof(host), cudaMemcpyDeviceToHost);
    fallback<<<1, n>>>(out, x);
}
