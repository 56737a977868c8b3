template <typename T>
__global__ void deduced(T* out, const T* x, int n) { if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x]; }

template <typename Out, typename In, int Width = 4, bool Add = false>
__global__ void spelled(Out* out, const In* x) {
    for (int k = 0; k < Width; k++) out[k] = (Out)x[k] + (Out)(Add ? 1 : 0);
}

template <unsigned int Size>
__global__ void sized(float* out) { __shared__ float s[Size]; s[threadIdx.x % Size] = 1; out[threadIdx.x] = s[threadIdx.x % Size]; }

template <typename T, int Width>
void launch_spelled(T* out, const float* x) { spelled<T, float, Width, true><<<1, 1>>>(out, x); }

void go(float* out, const float* x, int n) {
    deduced<<<1, n>>>(out, x, n);
    deduced<float><<<1, n>>>(out, x, n);
    spelled<float, float><<<1, 1>>>(out, x);
    spelled<float, float, 2 * 4, (4 > 2)><<<1, 1>>>(out, x);
    sized<64><<<1, 64>>>(out);
}

template <typename T>
void generic(T* out, const T* x, int n) { deduced<T><<<1, n>>>(out, x, n); launch_spelled<T, 8>(out, x); }
