__device__ float act(float x);
__device__ double act(double x) { return x * 2; }
__device__ int act(int x) { return x * 3; }
template <typename T> __device__ T twice(T x) { return x + x; }
struct Pair { float a, b; };
__device__ Pair make_pair_of(float x);
__host__ __device__ inline int both(int x) { return x + 1; }
__device__ float unused(float x) { return x; }

__global__ void k(float* out, const float* x, int n) {
    Pair p = make_pair_of(x[0]);
    out[0] = act(x[0]) + (float)act(1.0) + act(2) + twice(p.a) + p.b + both(n);
}

__device__ Pair make_pair_of(float x) { Pair p; p.a = x; p.b = act(x); return p; }
__device__ float act(float x) { return x > 0 ? x : 0; }

void run(float* out, const float* x, int n) { k<<<both(n), 32>>>(out, x, n); }
