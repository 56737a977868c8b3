#include <float.h>
#define WARP 32
constexpr int BLOCK = 4 * WARP;
const float SCALE = 0.5f;
static const int HALF = BLOCK / 2, QUARTER = BLOCK >> 2;
constexpr double theta() { return 1e4; }
enum Mode { PLAIN, NEGATED = 5, LAST };
enum class Kind : int { A = 2, B };
__constant__ float table[4] = {1, 2, 3, 4};
__device__ const int offsets[2] = {0, 1};

__global__ void k(float* out, int mode) {
    out[threadIdx.x] = mode == NEGATED ? -SCALE : table[threadIdx.x % 4] + FLT_MAX * 0 + offsets[0] + (float)theta();
}
void run(float* out, int n) {
    k<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(out, PLAIN);
    k<<<1, HALF + QUARTER>>>(out, LAST);
    k<<<1, 0x10 + 010 + 0b11 + 1'0>>>(out, (int)Kind::B);
}
