#define KERNEL extern "C" __global__ void
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAMED(op) JOIN(op, _kernel)
#define DEFINE_UNARY(op, expression)                          \
    KERNEL NAMED(op)(float* out, const float* x, int n) {     \
        int i = GLOBAL_INDEX;                                 \
        if (i < n) out[i] = expression;                       \
    }
#define GLOBAL_INDEX (blockIdx.x * blockDim.x + threadIdx.x)
#define DIV_UP(a, b) (((a) + (b) - 1) / (b))
#define LAUNCH(op, ...) NAMED(op)<<<DIV_UP(n, 64), 64>>>(__VA_ARGS__)
#define TEXT(x) #x

DEFINE_UNARY(negate, -x[i])
DEFINE_UNARY(square, x[i] * x[i])

KERNEL plain(float* out) { out[threadIdx.x] = sizeof(TEXT(one two)); }

void negate(float* out, const float* x, int n) { LAUNCH(negate, out, x, n); }
void square(float* out, const float* x, int n) {
    LAUNCH(square, out,
           x, n);
}
