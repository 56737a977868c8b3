__global__ void k(float* out, int n) { out[0] = n; }
void inner(float* out, int n, cudaStream_t stream) { k<<<n, 32, 0, stream>>>(out, n); }
void outer(float* out, int n, cudaStream_t stream) {
    inner(out, n * 2, stream);
    inner(out + 1, n, stream);
}
template <typename T> void generic(T* out, int n) { k<<<1, n>>>(out, n); }
void calls_generic(float* out, int n) { generic(out, n); generic<float>(out, n); }
void recursive(float* out, int n) { if (n > 0) { k<<<1, n>>>(out, n); recursive(out, n - 1); } }
void impossible(float* out, int* host) { host[0] = 1; k<<<1, 1>>>(out, host[0]); }
void calls_impossible(float* out, int* host) { impossible(out, host); }
void overloaded(float* out) { k<<<1, 1>>>(out, 1); }
void overloaded(float* out, int n) { k<<<1, n>>>(out, n); }
