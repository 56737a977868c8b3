// ReLU, as one writes kernels for a first project of one's own: plain CUDA, no launcher, no headers.
extern "C" {

__global__ void relu_forward(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] < 0.0f ? 0.0f : x[i];  // this way round, a NaN stays one
    }
}

// The gradient passes where the output is positive, so the input need not be kept.
__global__ void relu_backward(const float* y, const float* dy, float* dx, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
    }
}

}
