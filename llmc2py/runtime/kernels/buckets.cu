// Buckets of places, one for each token, for kernels that add to the rows of an embedding. Each kernel is selected by
// -DSLICE_<kernel>. Nothing here waits for the host, so that all of it can be in a CUDA graph.
//
// Places are sorted by token digit by digit, the lowest first, each time without changing the order of equal digits: blocks
// count the digits of their tiles, one block adds the counts up, and blocks move their places to where those sums say.
//
// `counts` has a header of four numbers: how many buckets there are, how many of them are long, and whether a token is out
// of range. The number of places of each token follows, up to a whole packet of four. All are 0 at first.

#define HEADER 4

#if defined(SLICE_count_digits_kernel) || defined(SLICE_move_places_kernel)
#define WARP 32
#define DIGITS 256
#define ROUNDS 8
#define TILE (DIGITS * ROUNDS)

// The digit at `shift` of the token of place i in an order, which is that of the places where `order` is null. What is no token
// counts as V: it comes last.
__device__ inline int digit_at(const int* order, const int* tokens, long long i, long long V, int shift, int& place) {
    place = order == nullptr ? (int)i : order[i];
    const int token = tokens[place];
    return (int)((token >= 0 && token < V ? token : V) >> shift) % DIGITS;
}
#endif

#if defined(SLICE_count_digits_kernel)
// How often each digit is in each tile, digit after digit. A block has a thread for each digit.
__global__ void count_digits_kernel(int* digits, const int* order, const int* tokens, long long N, long long V, int shift) {
    __shared__ int of_tile[DIGITS];
    of_tile[threadIdx.x] = 0;
    __syncthreads();
    const long long begin = (long long)blockIdx.x * TILE;
    #pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        const long long i = begin + r * DIGITS + threadIdx.x;
        int place;
        if (i < N) atomicAdd(&of_tile[digit_at(order, tokens, i, V, shift, place)], 1);
    }
    __syncthreads();
    digits[(long long)threadIdx.x * gridDim.x + blockIdx.x] = of_tile[threadIdx.x];
}
#endif

#if defined(SLICE_move_places_kernel)
// Moves the places of each tile to behind those of lower digits, and those of the same digit in the tiles before, of which
// `digits` has the numbers. A warp has neighbouring places, WARP in a round.
__global__ void move_places_kernel(int* sorted, const int* digits, const int* order, const int* tokens, long long N, long long V, int shift) {
    __shared__ int of_warp[DIGITS / WARP][DIGITS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    #pragma unroll
    for (int w = 0; w < DIGITS / WARP; ++w) of_warp[w][threadIdx.x] = 0;
    __syncthreads();
    const long long begin = (long long)blockIdx.x * TILE + warp * WARP * ROUNDS + lane;
    int places[ROUNDS], found[ROUNDS], rank[ROUNDS];
    #pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        const long long i = begin + r * WARP;
        places[r] = 0;
        found[r] = i < N ? digit_at(order, tokens, i, V, shift, places[r]) : DIGITS;
        const unsigned int same = __match_any_sync(0xffffffffu, found[r]);
        const int before = __popc(same & ((1u << lane) - 1));
        rank[r] = (i < N ? of_warp[warp][found[r]] : 0) + before;
        __syncwarp();
        if (i < N && before == 0) of_warp[warp][found[r]] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    int next = digits[(long long)threadIdx.x * gridDim.x + blockIdx.x];
    #pragma unroll
    for (int w = 0; w < DIGITS / WARP; ++w) {
        const int count = of_warp[w][threadIdx.x];
        of_warp[w][threadIdx.x] = next;
        next += count;
    }
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        if (found[r] < DIGITS) sorted[of_warp[warp][found[r]] + rank[r]] = places[r];
    }
}
#endif

#if defined(SLICE_add_up_kernel) || defined(SLICE_order_buckets_kernel)
#define MOST_THREADS 1024
#define SEGMENT 32

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
#endif

#if defined(SLICE_add_up_kernel)
// Replaces each of n numbers by the sum of those before it. For one block.
__global__ void __launch_bounds__(MOST_THREADS) add_up_kernel(int* numbers, long long n) {
    __shared__ Sums<1> sums;
    const long long share = (n + blockDim.x - 1) / blockDim.x;
    const long long first = share * threadIdx.x, end = first + share < n ? first + share : n;
    int before[1] = {};
    for (long long i = first; i < end; ++i) before[0] += numbers[i];
    sums.scan(before);
    for (long long i = first; i < end; ++i) {
        const int number = numbers[i];
        numbers[i] = before[0];
        before[0] += number;
    }
}
#endif

#if defined(SLICE_count_tokens_kernel)
// Adds to the count of a token from 0 to V - 1, and returns whether it is one.
__device__ inline bool add_to(int* counts, int token, long long count, long long V) {
    const bool is_token = token >= 0 && token < V;
    if (is_token) atomicAdd(counts + HEADER + token, (int)count);
    return is_token;
}

// Counts tokens, and notes whether there are others. In the order of tokens there are atomics only where one begins or ends:
// however often a token is there, nothing waits for its number.
__global__ void count_tokens_kernel(int* counts, const int* places, const int* tokens, long long N, long long V) {
    bool valid = true;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < N; i += (long long)gridDim.x * blockDim.x) {
        const int token = tokens[places[i]], previous = i > 0 ? tokens[places[i - 1]] : token;
        if (i == 0 || token != previous) valid = add_to(counts, token, -i, V) && valid;
        if (token != previous) add_to(counts, previous, i, V);
        if (i == N - 1) add_to(counts, token, N, V);
    }
    if (!valid) atomicMax(counts + 2, 1);
}
#endif

#if defined(SLICE_order_buckets_kernel)
#define CLASSES 7
#define FEW_PLACES 16
// The class with which long buckets end.
#define LAST_LONG 4

// Class k, the longest first, has the buckets of more places than this that no class before it has.
__device__ constexpr int bound(int k) {
    constexpr int bounds[CLASSES] = {4096, 1024, 256, 64, FEW_PLACES, 4, 0};
    return bounds[k];
}

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
// Behind them, up to `room` tokens, come buckets without places, of a group that has no columns. Each thread has neighbouring tokens. All blocks find the same order, which takes little, and share out the segments whose
// buckets are written, which takes one multiprocessor long.
__global__ void __launch_bounds__(MOST_THREADS) order_buckets_kernel(int4* buckets, int* counts, long long V, int groups, long long room) {
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
    const long long rank = (long long)blockIdx.x * blockDim.x + threadIdx.x, threads = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)sums.of_block[CLASSES - 1] * groups + rank; at < room * groups; at += threads) {
        buckets[at] = make_int4(0, 0, 0, groups);
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
