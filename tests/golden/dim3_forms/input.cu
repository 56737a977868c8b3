__global__ void k(float* out) { out[0] = gridDim.x; }
void run(float* out, int a, int b, int c) {
    dim3 one(a);
    dim3 two(a, b);
    dim3 three(a, (b + 31) / 32, c);
    dim3 braces{(unsigned)a, 2};
    dim3 copied = dim3(a, b, c);
    const dim3 from_int = a;
    dim3 none;
    dim3 changed(1, 1);
    changed.x = a;
    changed.y += 2;
    k<<<one, two>>>(out);
    k<<<three, braces>>>(out);
    k<<<copied, from_int>>>(out);
    k<<<none, dim3(32, b)>>>(out);
    k<<<dim3(one.x * 2, two.y), one.y>>>(out);
    k<<<changed, changed.x * changed.y>>>(out);
}
void braced(float* out) { k<<<1, {32, 1, 1}>>>(out); }
