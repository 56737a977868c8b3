// __global__ void dead(float* a) { a[0] = 1; }
/* __global__ void dead2(float* a) {}
   dead<<<1, 1>>>(a); */
const char* raw = R"cuda(
__global__ void fake(float* a) { fake<<<1, 1>>>(a); }
)cuda";
const char* plain = "__global__ void fake2(float* a) {} // not a comment";
const char* quote = "\"__global__\" /* ";
__global__ void k(float* a, int n) { // __global__
    if (n > 0) /* <<<1, 1>>> */ a[0] = '"' + '/';
}
void launch(float* a, int n) {
    k << <1, 256 >> > (a, n); // dead<<<1, 1>>>(a)
    printf("k<<<1, 1>>>(a, n); /* ");
    k<<<2, 2>>>(a /* , dead */, // n
        n);
}
