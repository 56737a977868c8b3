__global__ void k(float* out, int n) { out[0] = n; }
__global__ void k2(float* out, int n) { out[0] = 2 * n; }

void branches(float* out, int n, bool fast) {
    int block = 256;
    if (n < 32) { block = 32; } else if (n < 64) block = 64; else { }
    if (fast) k<<<1, block>>>(out, n); else k2<<<1, block>>>(out, n);
    if (n == 0) return;
    if (out == nullptr || !fast) { return; }
    k<<<1, 1>>>(out, n);
}
void loops(float* out, int n, int step) {
    for (int i = 0; i < n; i++) k<<<1, 32>>>(out, i);
    for (int i = 1; i < n; i += step) k<<<1, 32>>>(out, i);
    for (int i = 0; i <= n; ++i) { k<<<1, 32>>>(out, i); }
    for (int i = n; i > 0; i /= 2) { if (i == 3) break; k<<<1, 32>>>(out, i); }
    for (int i = n - 1; i >= 0; i--) k2<<<1, 32>>>(out, i);
    int left = n;
    while (left > 1) { k<<<left, 32>>>(out, left); left = (left + 31) / 32; }
    for (int i = 0; i < n; i++) { if (i % 2) continue; k<<<1, 32>>>(out, i); }
}
void changed_bound(float* out, int n) {
    for (int i = 0; i < n; i++) { k<<<1, 32>>>(out, i); n = n - 1; }
}
void negative_step(float* out, int n) {
    int last = 0;
    for (int i = 0; i < n; i += 2) { last = i; }
    k<<<1, 32>>>(out, last);
    for (last = 0; last < n; last++) { }
    k<<<1, 32>>>(out, last);
}
void chosen(int kernel_num, float* out, int n) {
    switch (kernel_num) {
        case 1: k<<<1, 32>>>(out, n); break;
        case 2:
        case 3: { k2<<<1, 32>>>(out, n); break; }
        default: printf("Invalid kernel number\n"); exit(1);
    }
}
void chosen_or_nothing(int which, float* out, int n) {
    switch (which) { case 1: k<<<1, 32>>>(out, n); return; default: k2<<<1, 32>>>(out, n); }
    k<<<1, 1>>>(out, n);
}
void falls_through(int which, float* out, int n) {
    switch (which) { case 1: n = 2; case 2: k<<<1, n>>>(out, n); }
}
void shadowed(float* out, int n) {
    int i = 7;
    for (int i = 0; i < n; i++) { k<<<1, 32>>>(out, i); }
    for (int i = n; i > 0; i--) { int n = 2 * i; k<<<1, 32>>>(out, n); }
    { int i = 3; k<<<1, 32>>>(out, i); }
    k<<<1, i>>>(out, n);
}
void turns_negative(float* out, int n) {
    int left = 7;
    while (left > -7) { k<<<1, 32>>>(out, left / 2); left -= 3; }
    int half = 5;
    if (n > 3) half = half - 10;
    k<<<1, 32>>>(out, half / 2);
}
void breaks_in_case(int which, float* out, int n) {
    switch (which) { case 1: if (n > 2) break; k<<<1, 32>>>(out, n); break; case 2: k2<<<1, 32>>>(out, n); }
}
void switch_in_loop(float* out, int n) {
    for (int i = 0; i < n; i++) {
        switch (i % 3) { case 0: k<<<1, 32>>>(out, i); break; case 1: continue; default: k2<<<1, 32>>>(out, i); break; }
        k<<<2, 32>>>(out, i);
    }
}
void returned(float* out, int n) {
    if (n == 1) return k<<<1, 32>>>(out, n);
    return branches(out, n, true);
}
void do_while(float* out, int n) { do { k<<<1, 1>>>(out, n); n--; } while (n > 0); }
