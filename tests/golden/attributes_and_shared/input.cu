struct __align__(8) Two { float a, b; };
struct alignas(16) Four { float v[4]; };

__global__ void __launch_bounds__(256, 2) bounded(float* out) { out[threadIdx.x] = 1; }
__global__ __launch_bounds__(128) void bounded_before(float* out) { out[threadIdx.x] = 1; }

__global__ void plain_spelling(float* out) {
    extern __shared__ float s[];
    s[threadIdx.x] = 1;
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void aligned_spelling(float* out, const float2* pairs, int n) {
    extern __shared__ __align__(16) char bytes[];
    float* s = (float*)bytes;
    Two two = {pairs[0].x, pairs[0].y};
    s[threadIdx.x] = two.a + n;
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void other_spelling(Four* __restrict__ out4, const float4* __restrict__ in4) {
    __align__(16) extern __shared__ unsigned char raw[];
    reinterpret_cast<float4*>(raw)[threadIdx.x] = in4[threadIdx.x];
    __syncthreads();
    out4[threadIdx.x].v[0] = reinterpret_cast<float4*>(raw)[threadIdx.x].x;
}
void run(float* out, int n) {
    bounded<<<1, 256>>>(out);
    plain_spelling<<<1, n, n * sizeof(float)>>>(out);
    aligned_spelling<<<1, n, sizeof(float2) * n>>>(out, (const float2*)out, n);
}
