cudaDeviceProp deviceProp;
static int warp_size = 0;
static int num_blocks = 0;
int tuned = 192;
static int never_set;
__global__ void k(float* out, int n) { out[0] = n; }

void set_up() {
    cudaGetDeviceProperties(&deviceProp, 0);
    warp_size = deviceProp.warpSize;
    num_blocks = deviceProp.multiProcessorCount * (deviceProp.maxThreadsPerMultiProcessor / 1024);
}
void by_property(float* out, int n) { k<<<deviceProp.multiProcessorCount * 2, 256>>>(out, n); }
void by_local_property(float* out, int n) {
    cudaDeviceProp prop;
    cudaGetDeviceProperties(&prop, 0);
    k<<<prop.multiProcessorCount, prop.maxThreadsPerBlock>>>(out, n);
}
void by_global(float* out, int n) { k<<<n, warp_size * 4>>>(out, n); }
void by_computed_global(float* out, int n) { k<<<num_blocks, 32>>>(out, n); }
void by_initialised(float* out, int n) { k<<<n, tuned>>>(out, n); }
static int by_address = 0;
void set_by_address() { cudaDeviceGetAttribute(&by_address, cudaDevAttrWarpSize, 0); }
void by_global_by_address(float* out, int n) { k<<<n, by_address>>>(out, n); }
void by_unset(float* out, int n) { k<<<n, never_set>>>(out, n); }
void by_attribute(float* out, int n) {
    int sms;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
    k<<<sms, 32>>>(out, n);
}
