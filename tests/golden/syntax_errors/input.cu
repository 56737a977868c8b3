__global__ void good(float* out) { out[0] = 1; }

__global__ void broken(float* out { out[0] = ; }

__global__ void good_again(float* out) { out[0] = 2; }

int stray = (1 + ;

void run(float* out) { good<<<1, 1>>>(out); }
void broken_run(float* out) { good<<<1, >>>(out); }

__global__ void last(float* out) { out[0] = 3; }
