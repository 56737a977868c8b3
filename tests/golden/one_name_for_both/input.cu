__global__ void softplus(float* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = logf(1 + expf(x[i]));
}
void softplus(float* out, const float* x, int n, cudaStream_t stream) {
    softplus<<<(n + 255) / 256, 256, 0, stream>>>(out, x, n);
}
__global__ void lambda(float* def, int in, float None, float plan) { def[0] = in + None + plan; }
void lambda_(float* def, int in, float None) { lambda<<<1, in>>>(def, in, None, 2.0f); }
