struct Wide { float4 v; };
__device__ void add_to(float* where, float value) { atomicAdd(where, value); }
__device__ float read_from(const float* where) { return *where; }
__global__ void k(float* written, float* read, float* updated, float* added, float* atomically, float* by_function,
                  const float4* vectors, float* __restrict__ nothing, const float* maybe, int* counters) {
    int i = threadIdx.x;
    written[i] = read[i] + read_from(read + 1);
    updated[i] = updated[i] * 2;
    added[i] += 1;
    atomicAdd(&atomically[i], 1.0f);
    add_to(by_function + i, vectors[i].x);
    float* alias = written + 8;
    alias[i] = maybe != nullptr ? maybe[i] : 0;
    atomicExch(counters, 1);
}
__global__ void conditional(float* out, const float* x, int n) {
    if (threadIdx.x < n) { float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x]; __stcs(out, __ldcs(x) + v.y); }
}
void run(float* out, float* x, int n) {
    cudaMemset(out, 0, n * sizeof(float));
    conditional<<<1, n>>>(out, x, n);
}
