#include <type_traits>
template <int Size> __global__ void sum(float* out, const float* x) { out[0] = x[0] * Size; }

#define SUM_CASE(S) case S: sum<(S)><<<grid, block>>>(out, x); break;
void by_macro(float* out, const float* x, int n, int grid, int block) {
    switch (n) { SUM_CASE(64) SUM_CASE(128) default: exit(EXIT_FAILURE); }
}

void by_lambda(float* out, const float* x, int block_size, int n) {
    const int grid = (n + block_size - 1) / block_size;
    auto launch = [&](auto size) {
        constexpr int Size = decltype(size)::value;
        assert(block_size == size.value);
        sum<Size><<<grid, Size>>>(out, x);
    };
    if (block_size == 32) launch(std::integral_constant<int, 32>{});
    else if (block_size == 64) { return launch(std::integral_constant<int, 64>()); }
    else { printf("no such block size\n"); exit(1); }
}

void lambda_that_changes(float* out, const float* x) {
    int count = 0;
    auto step = [&](int by) { count += by; };
    step(2);
    sum<8><<<count, 32>>>(out, x);
}

void by_plain_lambda(float* out, const float* x, int block_size) {
    auto launch = [&](auto size) { sum<size.value><<<1, block_size>>>(out, x); };
    launch(std::integral_constant<int, 256>{});
}
