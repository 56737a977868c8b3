#pragma once
__device__ inline float three(float x) {

    return 3 * x;
}
