#define FAST 1
__global__ void chosen(float* out,
#if FAST
                       int by
#else
                       float by
#endif
) { out[threadIdx.x] = by; }

__global__ void open(float* out
#if defined(ENABLE_BF16)
                     , unsigned int seed
#endif
) { out[threadIdx.x] = 1; }

__global__ void after(float* out) { out[threadIdx.x] = 2; }
void run(float* out) { chosen<<<1, 32>>>(out, 3); after<<<1, 32>>>(out); }
