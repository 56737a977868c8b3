__global__ void k(float* out, int n) { out[0] = n; }
static int blocks_for(int n, int block) {
    int blocks = n / block;
    if (blocks > 1024) { return 1024; }
    return blocks == 0 ? 1 : blocks;
}
int rounded(int n) { for (int p = 1; p < 1024; p *= 2) { if (p >= n) return p; } return 1024; }
void log_it(const char* what, int n) { printf("%s %d\n", what, n); }
void run(float* out, int n) {
    log_it("run", n);
    k<<<blocks_for(n, 128), rounded(n)>>>(out, n);
}
int halved(int n) { return n * 0.5f; }
void with_half(float* out, int n) { k<<<halved(n) / 2, 32>>>(out, n && halved(n)); }
float ratio(int a, int b) { float r = a; return r / b; }
void with_float(float* out, int n) { k<<<(int)(ratio(n, 3) + 0.5f), 32>>>(out, n); }
void unknown_helper(float* out, int n) { k<<<not_defined_anywhere(n), 32>>>(out, n); }
