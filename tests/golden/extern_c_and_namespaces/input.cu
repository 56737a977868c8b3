extern "C" {
__global__ void in_c(float* out) { out[0] = 1; }
void run_c(float* out) { in_c<<<1, 1>>>(out); }
}
extern "C" __global__ void alone(float* out) { out[0] = 2; }

namespace outer {
__device__ float helper(float x) { return x + 1; }
namespace inner {
constexpr int WIDTH = 8;
__device__ float helper2(float x) { return helper(x) * WIDTH; }
}
}
__global__ void uses_both(float* out) { out[0] = outer::inner::helper2(outer::helper(1)); }
void run(float* out) { uses_both<<<1, outer::inner::WIDTH>>>(out); }
