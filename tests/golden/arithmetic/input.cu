#include <algorithm>
__global__ void k(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = n; }
inline int div_up(int a, int b) { return (a + b - 1) / b; }
template <class T> T div_up_t(T dividend, T divisor) { return (dividend + divisor - 1) / divisor; }
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

void ceilings(float* out, int n, int b, size_t bytes) {
    k<<<(n + b - 1) / b, b>>>(out, n);
    k<<<(n + (b - 1)) / b, b>>>(out, n);
    k<<<(b + n - 1) / b, b>>>(out, n);
    k<<<(n + 255) / 256, 256>>>(out, n);
    k<<<CEIL_DIV(n, b), b>>>(out, n);
    k<<<div_up(n, b), b>>>(out, n);
    k<<<div_up_t<int>(n, b), b>>>(out, n);
    k<<<(n - 1) / b + 1, b>>>(out, n);
    k<<<ceil((float)n / b), b>>>(out, n);
    k<<<(n + 255) >> 8, 256>>>(out, n);
    k<<<n / b + (n % b != 0), b>>>(out, n);
}
void rules(float* out, int n, int m, unsigned int u, unsigned v, size_t z, long l, float f) {
    k<<<1, 32>>>(out, n / m);
    k<<<1, 32>>>(out, -7 / 2);
    k<<<1, 32>>>(out, n % m);
    k<<<u - v, 32>>>(out, n - m);
    k<<<1, 32>>>(out, n << 3 | m & 7 ^ 2);
    k<<<1, 32>>>(out, ~n);
    k<<<1, 32>>>(out, n > m ? n : m > 3 ? m : 3);
    k<<<1, 32>>>(out, std::min(n, std::max(m, 4)));
    k<<<1, 32>>>(out, n > (int)u && !(m == 2) || f >= 1.5f);
    k<<<1, 32>>>(out, (int)(n * f));
    k<<<1, 32>>>(out, (n - m) * (n + m) - (n - (m - 1)));
    k<<<1, 32>>>(out, n > u);
    k<<<1, 32>>>(out, z > 0 && l < -1);
    k<<<1, 32>>>(out, n >> u);
    k<<<1, 32>>>(out, (n & 3) == 2);
    k<<<1, 32>>>(out, (n - 3) / z);
    k<<<1, 32>>>(out, (int)(u - v) / 2);
    int difference = u - v;
    bool flag = n & 4;
    k<<<1, 32>>>(out, difference + flag);
    int truncated = n * 0.5f;
    k<<<truncated, 32>>>(out, 1.5f * n);
    n /= 2; n -= -3; n <<= 1; n++; --n;
    k<<<n, 32>>>(out, n);
}
