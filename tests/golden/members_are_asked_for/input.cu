struct Problem { int n; int block() const { return 128; } };
template <typename T, bool Flag> __global__ void k(T* out, int n) { out[0] = Flag ? n : 0; }
void run(float* out, int n, int b) {
    k<float, (4 > 2)><<<dim3(n, 2), n > 0 ? n : 1>>>(out, n);
}
void from_object(Problem* p, float* out, int n) { k<float, 1><<<(n + 255) >> 8, p->block()>>>(out, p->n); }
Problem current;
void from_global(float* out, int n) { k<float, 1><<<(n + 255) >> 8, current.block()>>>(out, current.n); }
