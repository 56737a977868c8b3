// Buckets of places, one for each token, for kernels that add to the rows of an embedding. Each kernel is selected by
// -DSLICE_<kernel>.
//
// `counts` has a header of four numbers: how many buckets there are, how many of them are long, and whether a token is out
// of range. The number of places of each token follows, up to a whole packet of four. All are 0 at first.

#define HEADER 4

#if defined(SLICE_count_tokens_kernel)
// Adds to the count of a token from 0 to V - 1, and returns whether it is one.
__device__ inline bool add_to(int* counts, int token, long long count, long long V) {
    const bool is_token = token >= 0 && token < V;
    if (is_token) atomicAdd(counts + HEADER + token, (int)count);
    return is_token;
}

// Counts tokens, notes whether there are others, and narrows the places, which sorts give in 64 bits. In the order of
// tokens there are atomics only where one begins or ends: however often a token is there, nothing waits for its number.
__global__ void count_tokens_kernel(int* counts, int* places, const int* tokens, const long long* by_token, long long N, long long V) {
    bool valid = true;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < N; i += (long long)gridDim.x * blockDim.x) {
        const long long place = by_token[i];
        places[i] = (int)place;
        const int token = tokens[place], previous = i > 0 ? tokens[by_token[i - 1]] : token;
        if (i == 0 || token != previous) valid = add_to(counts, token, -i, V) && valid;
        if (token != previous) add_to(counts, previous, i, V);
        if (i == N - 1) add_to(counts, token, N, V);
    }
    if (!valid) atomicMax(counts + 2, 1);
}
#endif

#if defined(SLICE_order_buckets_kernel)
#define MOST_THREADS 1024
#define SEGMENT 32
#define CLASSES 7
#define FEW_PLACES 16
// The class with which long buckets end.
#define LAST_LONG 4

// Class k, the longest first, has the buckets of more places than this that no class before it has.
__device__ constexpr int bound(int k) {
    constexpr int bounds[CLASSES] = {4096, 1024, 256, 64, FEW_PLACES, 4, 0};
    return bounds[k];
}

// Sums over the threads before each thread of a block of whole segments, for several values at once. Threads that add up
// segments wait less often than shuffles would, and waiting is what costs the CPU time.
template<int Values>
struct Sums {
    int of_thread[Values][MOST_THREADS + MOST_THREADS / SEGMENT]; // one more to a segment: no two in one bank
    int of_segment[Values][MOST_THREADS / SEGMENT];
    int of_block[Values];

    __device__ static int slot(int thread) { return thread + thread / SEGMENT; }

    // Replaces what each thread gives by the sum over those before it.
    __device__ void scan(int (&values)[Values]) {
        const int t = threadIdx.x, segments = blockDim.x / SEGMENT;
        #pragma unroll
        for (int v = 0; v < Values; ++v) of_thread[v][slot(t)] = values[v];
        __syncthreads();
        if (t < Values * segments) {
            int* const inside = of_thread[t / segments] + slot(t % segments * SEGMENT);
            of_segment[t / segments][t % segments] = exclusive(inside, SEGMENT);
        }
        __syncthreads();
        if (t < Values) of_block[t] = exclusive(of_segment[t], segments);
        __syncthreads();
        #pragma unroll
        for (int v = 0; v < Values; ++v) values[v] = of_thread[v][slot(t)] + of_segment[v][t / SEGMENT];
    }

private:
    __device__ static int exclusive(int* values, int count) {
        int sum = 0;
        for (int i = 0; i < count; ++i) {
            const int value = values[i];
            values[i] = sum;
            sum += value;
        }
        return sum;
    }
};

// Calls visit(token, number of its places) for each token that has places, of whole packets from `first` on.
template<class Visit>
__device__ inline void each_bucket(const int* counts, long long first, long long end, Visit visit) {
    #pragma unroll 4
    for (long long token = first; token < end; token += 4) {
        const int4 four = *reinterpret_cast<const int4*>(counts + HEADER + token);
        if (four.x) visit(token, four.x);
        if (four.y) visit(token + 1, four.y);
        if (four.z) visit(token + 2, four.z);
        if (four.w) visit(token + 3, four.w);
    }
}

// Writes buckets (begin, number of places, token, group), class by class and by token within a class, each for all groups.
// Each thread has neighbouring tokens. All blocks find the same order, which takes little, and share out the segments whose
// buckets are written, which takes one multiprocessor long.
__global__ void __launch_bounds__(MOST_THREADS) order_buckets_kernel(int4* buckets, int* counts, long long V, int groups) {
    __shared__ Sums<CLASSES + 1> sums;
    const long long share = (V + 4LL * blockDim.x - 1) / (4LL * blockDim.x) * 4;
    const long long padded = (V + 3) / 4 * 4;
    const long long first = share * threadIdx.x, end = first + share < padded ? first + share : padded;
    // Buckets with more places than the bound of each class, and all places.
    int before[CLASSES + 1] = {};
    each_bucket(counts, first, end, [&](long long, int count) {
        #pragma unroll
        for (int k = 0; k < CLASSES; ++k) before[k] += count > bound(k);
        before[CLASSES] += count;
    });
    sums.scan(before);
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        counts[0] = sums.of_block[CLASSES - 1];
        counts[1] = sums.of_block[LAST_LONG];
    }
    if (threadIdx.x / SEGMENT % gridDim.x != blockIdx.x) return;
    int next[CLASSES];
    #pragma unroll
    for (int k = 0; k < CLASSES; ++k) next[k] = k == 0 ? before[0] : sums.of_block[k - 1] + before[k] - before[k - 1];
    int begin = before[CLASSES];
    each_bucket(counts, first, end, [&](long long token, int count) {
        int at = 0;
        bool found = false;
        #pragma unroll
        for (int k = 0; k < CLASSES; ++k) {
            const bool here = !found && count > bound(k);
            if (here) at = next[k]++;
            found = found || here;
        }
        for (int group = 0; group < groups; ++group) {
            buckets[(long long)at * groups + group] = make_int4(begin, count, (int)token, group);
        }
        begin += count;
    });
}
#endif
