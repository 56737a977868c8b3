/*
The operations of GPT-2 in plain C, forward and backward: what the CUDA kernels of this tree are compared with. Every array
is dense and of float. B sequences have T positions each; C is the width of the model, NH the number of its heads, V the
size of the vocabulary and Vp that size rounded up for the benefit of matrix products.

Backward functions add to the gradients that they compute, so that a value that is used twice gathers both gradients; those of
the attention's scratch arrays, dpreatt and datt, must therefore be zero at first.

The model that is made of these operations and its training are not part of this tree.

cc -O3 -fopenmp -c train_gpt2.c
*/
#include <math.h>
#include <stddef.h>

// ---------------------------------------------------------------------------------------------------------------
// encoder: out = wte[token] + wpe[position], (B,T,C)

void encoder_forward(float* out, int* inp, float* wte, float* wpe, int B, int T, int C) {
    for (int row = 0; row < B * T; row++) {
        const float* token = wte + (size_t)inp[row] * C;
        const float* place = wpe + (size_t)(row % T) * C;
        for (int c = 0; c < C; c++) out[(size_t)row * C + c] = token[c] + place[c];
    }
}

void encoder_backward(float* dwte, float* dwpe, float* dout, int* inp, int B, int T, int C) {
    for (int row = 0; row < B * T; row++) {
        const float* g = dout + (size_t)row * C;
        float* token = dwte + (size_t)inp[row] * C;
        float* place = dwpe + (size_t)(row % T) * C;
        for (int c = 0; c < C; c++) token[c] += g[c];
        for (int c = 0; c < C; c++) place[c] += g[c];
    }
}

// ---------------------------------------------------------------------------------------------------------------
// layernorm: out = n weight + bias with n = (inp - mean) rstd, for each row of C elements; mean and rstd are (B,T)

void layernorm_forward(float* out, float* mean, float* rstd, float* inp, float* weight, float* bias, int B, int T, int C) {
    for (int row = 0; row < B * T; row++) {
        const float* x = inp + (size_t)row * C;
        float* y = out + (size_t)row * C;
        float total = 0.0f;
        float squares = 0.0f;
        for (int c = 0; c < C; c++) total += x[c];
        mean[row] = total / C;
        for (int c = 0; c < C; c++) squares += (x[c] - mean[row]) * (x[c] - mean[row]);
        rstd[row] = 1.0f / sqrtf(squares / C + 1e-5f);
        for (int c = 0; c < C; c++) y[c] = (x[c] - mean[row]) * rstd[row] * weight[c] + bias[c];
    }
}

// With h = dout weight:  dinp += rstd (h - avg(h) - n avg(h n)).
void layernorm_backward(float* dinp, float* dweight, float* dbias, float* dout, float* inp, float* weight, float* mean, float* rstd, int B, int T, int C) {
    for (int row = 0; row < B * T; row++) {
        const float* g = dout + (size_t)row * C;
        const float* x = inp + (size_t)row * C;
        float* dx = dinp + (size_t)row * C;
        float avg_h = 0.0f;
        float avg_hn = 0.0f;
        for (int c = 0; c < C; c++) {
            float n = (x[c] - mean[row]) * rstd[row];
            avg_h += g[c] * weight[c] / C;
            avg_hn += g[c] * weight[c] * n / C;
            dweight[c] += g[c] * n;
            dbias[c] += g[c];
        }
        for (int c = 0; c < C; c++) {
            float n = (x[c] - mean[row]) * rstd[row];
            dx[c] += rstd[row] * (g[c] * weight[c] - avg_h - n * avg_hn);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// matmul: out = inp weight^T + bias, (B,T,OC) from (B,T,C), (OC,C) and (OC); bias may be null

void matmul_forward_naive(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC) {
    #pragma omp parallel for
    for (int row = 0; row < B * T; row++) {
        for (int o = 0; o < OC; o++) {
            float dot = 0.0f;
            for (int c = 0; c < C; c++) dot += inp[(size_t)row * C + c] * weight[(size_t)o * C + c];
            out[(size_t)row * OC + o] = bias == NULL ? dot : dot + bias[o];
        }
    }
}

// Rows that are worked on together, so that a weight that has been loaded serves for several products.
#define ROWS_AT_ONCE 8

void matmul_forward(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC) {
    const int rows = B * T;
    #pragma omp parallel for
    for (int first = 0; first < rows; first += ROWS_AT_ONCE) {
        const int count = rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE;
        for (int o = 0; o < OC; o++) {
            const float* w = weight + (size_t)o * C;
            float dots[ROWS_AT_ONCE] = {0.0f};
            for (int c = 0; c < C; c++) {
                for (int r = 0; r < count; r++) dots[r] += inp[(size_t)(first + r) * C + c] * w[c];
            }
            for (int r = 0; r < count; r++) {
                out[(size_t)(first + r) * OC + o] = dots[r] + (bias == NULL ? 0.0f : bias[o]);
            }
        }
    }
}

// dinp += dout weight, where rows can be shared out to threads; dweight += dout^T inp and dbias += the sum of the rows of
// dout, where columns can. dbias may be null.
void matmul_backward(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight, int B, int T, int C, int OC) {
    #pragma omp parallel for
    for (int row = 0; row < B * T; row++) {
        float* dx = dinp + (size_t)row * C;
        for (int o = 0; o < OC; o++) {
            const float g = dout[(size_t)row * OC + o];
            for (int c = 0; c < C; c++) dx[c] += g * weight[(size_t)o * C + c];
        }
    }
    #pragma omp parallel for
    for (int o = 0; o < OC; o++) {
        float* dw = dweight + (size_t)o * C;
        for (int row = 0; row < B * T; row++) {
            const float g = dout[(size_t)row * OC + o];
            if (dbias != NULL) dbias[o] += g;
            for (int c = 0; c < C; c++) dw[c] += g * inp[(size_t)row * C + c];
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// attention: inp is (B,T,3,NH,HS) with query, key and value in this order and HS = C / NH. preatt, (B,NH,T,T), receives
// query . key / sqrt(HS), att the softmax of that over the positions up to the query's, and out, (B,T,C), the mean of the
// values that att weighs. What is above the diagonal of att is zero; of preatt it is left as it was.

void attention_forward(float* out, float* preatt, float* att, float* inp, int B, int T, int C, int NH) {
    const int HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for
    for (int pair = 0; pair < B * NH; pair++) {
        const size_t b = pair / NH, h = pair % NH;
        const float* qkv = inp + b * T * 3 * C + h * HS;
        for (int t = 0; t < T; t++) {
            const float* query = qkv + (size_t)t * 3 * C;
            float* scores = preatt + ((size_t)pair * T + t) * T;
            float* weights = att + ((size_t)pair * T + t) * T;
            float* y = out + (b * T + t) * C + h * HS;
            float largest = -INFINITY;
            float total = 0.0f;
            for (int s = 0; s <= t; s++) {
                const float* key = qkv + (size_t)s * 3 * C + C;
                float dot = 0.0f;
                for (int i = 0; i < HS; i++) dot += query[i] * key[i];
                scores[s] = dot * scale;
                largest = fmaxf(largest, scores[s]);
            }
            for (int s = 0; s < T; s++) {
                weights[s] = s <= t ? expf(scores[s] - largest) : 0.0f;
                total += weights[s];
            }
            for (int i = 0; i < HS; i++) y[i] = 0.0f;
            for (int s = 0; s <= t; s++) {
                const float* value = qkv + (size_t)s * 3 * C + 2 * C;
                weights[s] /= total;
                for (int i = 0; i < HS; i++) y[i] += weights[s] * value[i];
            }
        }
    }
}

// The way back through the mean, the softmax and the product, one query at a time.
void attention_backward(float* dinp, float* dpreatt, float* datt, float* dout, float* inp, float* att, int B, int T, int C, int NH) {
    const int HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for
    for (int pair = 0; pair < B * NH; pair++) {
        const size_t b = pair / NH, h = pair % NH;
        const float* qkv = inp + b * T * 3 * C + h * HS;
        float* dqkv = dinp + b * T * 3 * C + h * HS;
        for (int t = 0; t < T; t++) {
            const float* g = dout + (b * T + t) * C + h * HS;
            const float* query = qkv + (size_t)t * 3 * C;
            const float* weights = att + ((size_t)pair * T + t) * T;
            float* dquery = dqkv + (size_t)t * 3 * C;
            float* dweights = datt + ((size_t)pair * T + t) * T;
            float* dscores = dpreatt + ((size_t)pair * T + t) * T;
            float avg = 0.0f;
            for (int s = 0; s <= t; s++) {
                const float* value = qkv + (size_t)s * 3 * C + 2 * C;
                float* dvalue = dqkv + (size_t)s * 3 * C + 2 * C;
                for (int i = 0; i < HS; i++) dweights[s] += g[i] * value[i];
                for (int i = 0; i < HS; i++) dvalue[i] += weights[s] * g[i];
                avg += weights[s] * dweights[s];
            }
            for (int s = 0; s <= t; s++) {
                const float* key = qkv + (size_t)s * 3 * C + C;
                float* dkey = dqkv + (size_t)s * 3 * C + C;
                dscores[s] += weights[s] * (dweights[s] - avg);
                for (int i = 0; i < HS; i++) dquery[i] += scale * dscores[s] * key[i];
                for (int i = 0; i < HS; i++) dkey[i] += scale * dscores[s] * query[i];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// gelu: the tanh approximation, out = inp (1 + tanh(u)) / 2 with u = sqrt(2/pi) (inp + 0.044715 inp^3)

#define GELU_SCALING_FACTOR 0.7978845608028654f

void gelu_forward(float* out, float* inp, int N) {
    for (int i = 0; i < N; i++) {
        const float x = inp[i];
        const float u = GELU_SCALING_FACTOR * (x + 0.044715f * x * x * x);
        out[i] = 0.5f * x * (1.0f + tanhf(u));
    }
}

// A compiler that may take every number for finite breaks this where u is large.
#if !defined(__clang__) && defined(__GNUC__)
__attribute__((__optimize__("no-finite-math-only")))
#endif
void gelu_backward(float* dinp, float* inp, float* dout, int N) {
    for (int at = 0; at < N; at++) {
        const float x = inp[at];
        const float th = tanhf(GELU_SCALING_FACTOR * (x + 0.044715f * x * x * x));
        const float du = GELU_SCALING_FACTOR * (1.0f + 3.0f * 0.044715f * x * x);
        dinp[at] += dout[at] * 0.5f * (1.0f + th + x * (1.0f - th * th) * du);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// residual: out = inp1 + inp2

void residual_forward(float* out, float* inp1, float* inp2, int N) {
    #pragma omp simd
    for (int i = 0; i < N; i++) out[i] = inp1[i] + inp2[i];
}

void residual_backward(float* dinp1, float* dinp2, float* dout, int N) {
    for (int i = 0; i < N; i++) dinp1[i] += dout[i];
    for (int i = 0; i < N; i++) dinp2[i] += dout[i];
}

// ---------------------------------------------------------------------------------------------------------------
// softmax over the first V of each row's Vp logits, the others get probability zero; then the cross entropy of the targets

void softmax_forward(float* probs, float* logits, int B, int T, int V, int Vp) {
    #pragma omp parallel for
    for (int row = 0; row < B * T; row++) {
        const float* x = logits + (size_t)row * Vp;
        float* p = probs + (size_t)row * Vp;
        float largest = -INFINITY;
        float total = 0.0f;
        for (int v = 0; v < V; v++) largest = fmaxf(largest, x[v]);
        for (int v = 0; v < Vp; v++) {
            p[v] = v < V ? expf(x[v] - largest) : 0.0f;
            total += p[v];
        }
        for (int v = 0; v < V; v++) p[v] /= total;
    }
}

void crossentropy_forward(float* losses, float* probs, int* targets, int B, int T, int Vp) {
    for (int row = 0; row < B * T; row++) losses[row] = -logf(probs[(size_t)row * Vp + targets[row]]);
}

// Through both. What is between V and Vp in dlogits stays as it is.
void crossentropy_softmax_backward(float* dlogits, float* dlosses, float* probs, int* targets, int B, int T, int V, int Vp) {
    for (int row = 0; row < B * T; row++) {
        const size_t begin = (size_t)row * Vp;
        for (int v = 0; v < V; v++) dlogits[begin + v] += dlosses[row] * probs[begin + v];
        dlogits[begin + targets[row]] -= dlosses[row];
    }
}
