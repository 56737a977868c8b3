#ifndef ONE_CUH
#define ONE_CUH
#include "deep/three.h"
#define ONE 1
// three lines
// of
// comment
__global__ void first(float* out) { out[threadIdx.x] = three(1); }
#endif
