/* Decoder layers with matrices in eight bits, for drafts of a feature-level head or a small language model, on one core of a CPU.
 * The weights fit into a core's second cache. A draft need not be exact, because it is verified. */

#include "vectors.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Outputs of a matrix that lie side by side, in vectors, and rows that share a pass over it: as many sums as there are
 * registers for. */
#ifdef __AVX512F__
#define SIDE 4
#else
#define SIDE 2
#endif
#define GROUP 4
#define BLOCK (SIDE * LANES)

typedef struct {
    const int8_t *values; /* [blocks][in][BLOCK]: outputs behind the last one are zero */
    const float *scales;  /* [blocks * BLOCK]: every output is multiplied by its own */
    int64_t in, out;
} Matrix;

typedef struct {
    Matrix qkv, out, gate_up, down;
    const float *input_norm, *post_norm; /* input_norm NULL: none */
} Layer;

typedef struct {
    int64_t width, heads, kv_heads, head_dim, inner;
    int64_t norm_residual, depth; /* depth: layers */
    float eps;
    Matrix reduction, head;   /* reduction: EAGLE-1, of [embedding, feature]; values NULL: none */
    const Layer *layers;
    const float *bias;        /* of the reduction, NULL: none */
    const float *hidden_norm; /* EAGLE-3, of a feature beside its embedding; without it and a reduction: a language model, which
                                 reads no features */
    const float *out_norm;    /* NULL: none */
    const int64_t *ids;       /* of the head's rows, NULL: their numbers */
} Head;

/* Keys and values of committed rows: [kv_heads][capacity][head_dim], `start` rows each; of the first layer. */
typedef struct {
    int64_t start, capacity;
    float *keys, *values;
    int64_t apart; /* numbers from one layer's keys or values to the next one's */
} Cache;

/* GCC 12 widens eight bits one by one unless it is told the instruction. */
static inline vf eight_bits(const int8_t *from) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    vf found;
    for (int i = 0; i < LANES; i++) found[i] = from[i];
    return found;
#endif
}

static inline float added(vf v) {
    float parts[LANES], sums[4] = {0, 0, 0, 0};
    store(parts, v);
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 4; j++) sums[j] += parts[i + j];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static inline __attribute__((always_inline)) void block_of(const Matrix *m, const float *x, float *y, int64_t stride,
                                                           int64_t block, int count) {
    const int8_t *w = m->values + block * m->in * BLOCK;
    vf sums[GROUP][SIDE];
    for (int r = 0; r < count; r++)
        for (int s = 0; s < SIDE; s++) sums[r][s] = all(0.0f);
    for (int64_t i = 0; i < m->in; i++, w += BLOCK)
        for (int s = 0; s < SIDE; s++) {
            vf weight = eight_bits(w + s * LANES);
            for (int r = 0; r < count; r++) sums[r][s] += x[r * m->in + i] * weight;
        }
    for (int r = 0; r < count; r++)
        for (int s = 0; s < SIDE; s++) {
            int64_t place = block * BLOCK + s * LANES;
            store(y + r * stride + place, sums[r][s] * load(m->scales + place));
        }
}

static int64_t padded(int64_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

/* x [rows][in] -> y [rows][padded(out)], of which outputs before the block of number `from` are left as they are. */
static void product_from(const Matrix *m, const float *x, float *y, int64_t rows, int64_t from) {
    int64_t stride = padded(m->out);
    for (int64_t block = from / BLOCK; block < stride / BLOCK; block++) {
        for (int64_t r = 0; r < rows; r += GROUP) {
            const float *read = x + r * m->in;
            float *to = y + r * stride;
            switch (rows - r) { /* a number that the compiler knows, so that sums stay in registers */
                case 1: block_of(m, read, to, stride, block, 1); break;
                case 2: block_of(m, read, to, stride, block, 2); break;
                case 3: block_of(m, read, to, stride, block, 3); break;
                default: block_of(m, read, to, stride, block, GROUP);
            }
        }
    }
}

static void product(const Matrix *m, const float *x, float *y, int64_t rows) { product_from(m, x, y, rows, 0); }

static void normed(const float *x, const float *weight, float eps, int64_t width, float *y) {
    float square = 0;
    for (int64_t i = 0; i < width; i++) square += x[i] * x[i];
    float by = 1.0f / sqrtf(square / (float)width + eps);
    for (int64_t i = 0; i < width; i++) y[i] = x[i] * by * weight[i];
}

static void rotated(float *x, const float *cos, const float *sin, int64_t size, float *spare) {
    int64_t half = size / 2;
    memcpy(spare, x, size * sizeof *x);
    for (int64_t i = 0; i < size; i++) x[i] = spare[i] * cos[i] + spare[i < half ? i + half : i - half] * sin[i];
}

static float dot(const float *x, const float *y, int64_t size) {
    vf sums = all(0.0f);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += load(x + i) * load(y + i);
    float sum = added(sums);
    for (; i < size; i++) sum += x[i] * y[i];
    return sum;
}

static void add(float *to, const float *x, int64_t size) {
    for (int64_t i = 0; i < size; i++) to[i] += x[i];
}

/* silu(gate) * up, which lie behind each other in x */
static void gated(const float *x, int64_t size, float *y) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vf gate = load(x + i);
        store(y + i, gate / (1.0f + exponential(-at_least(gate, -80.0f))) * load(x + size + i));
    }
    for (; i < size; i++) y[i] = x[i] / (1.0f + expf(-x[i])) * x[size + i];
}

/* What `many` rows of `size` numbers, `stride` apart, add up to, each times its own weight; it is added to `to`. */
static void weighted(const float *rows, int64_t many, int64_t stride, const float *weights, int64_t size, float *to) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const float *x = rows + i;
        vf sums[4] = {load(to + i), all(0.0f), all(0.0f), all(0.0f)}; /* one sum would wait for itself */
        int64_t j = 0;
        for (; j + 4 <= many; j += 4)
            for (int part = 0; part < 4; part++) sums[part] += weights[j + part] * load(x + (j + part) * stride);
        for (; j < many; j++) sums[0] += weights[j] * load(x + j * stride);
        store(to + i, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    for (; i < size; i++)
        for (int64_t j = 0; j < many; j++) to[i] += weights[j] * rows[j * stride + i];
}

/* Numbers become their exponentials behind the greatest, and what these add up to is returned. */
static float softened(float *x, int64_t size, float *greatest) {
    float most = x[0], sum = 0;
    for (int64_t i = 1; i < size; i++) most = x[i] > most ? x[i] : most;
    vf sums = all(0.0f);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vf e = exponential(load(x + i) - most);
        store(x + i, e);
        sums += e;
    }
    for (; i < size; i++) sum += x[i] = expf(x[i] - most);
    *greatest = most;
    return sum + added(sums);
}

/* Attention of one row to the first `seen` rows of a cache, and to `length` drafted ones on its path. */
static void attend(const Head *h, const Cache *c, int64_t seen, int64_t layer, const float *queries, const float *drafted_keys,
                   const float *drafted_values, const int64_t *path, int64_t length, float *scores, float *found) {
    int64_t d = h->head_dim, kv = h->kv_heads * d, share = h->heads / h->kv_heads;
    float by = 1.0f / sqrtf((float)d);
    for (int64_t head = 0; head < h->heads; head++) {
        int64_t place = layer * c->apart + head / share * c->capacity * d;
        const float *query = queries + head * d, *keys = c->keys + place, *values = c->values + place;
        const float *own_keys = drafted_keys + head / share * d, *own_values = drafted_values + head / share * d;
        float *to = found + head * d;
        for (int64_t j = 0; j < seen; j++) scores[j] = by * dot(query, keys + j * d, d);
        for (int64_t j = 0; j < length; j++) scores[seen + j] = by * dot(query, own_keys + path[j] * kv, d);
        float most, norm = 1.0f / softened(scores, seen + length, &most);
        memset(to, 0, d * sizeof *to);
        weighted(values, seen, d, scores, d, to);
        for (int64_t j = 0; j < length; j++) weighted(own_values + path[j] * kv, 1, kv, scores + seen + j, d, to);
        for (int64_t i = 0; i < d; i++) to[i] *= norm;
    }
}

/* What is read of one row: a token's embedding, and beside it the feature above it; x is what the first layer adds to, where no
 * reduction gives it. */
static void pair(const Head *h, const float *given, const float *below, float *joined, float *x) {
    int64_t D = h->width;
    if (h->reduction.values != NULL) {
        memcpy(joined, given, D * sizeof *joined);
        memcpy(joined + D, below, D * sizeof *joined);
    } else if (h->hidden_norm != NULL) {
        normed(given, h->layers[0].input_norm, h->eps, D, joined);
        normed(below, h->hidden_norm, h->eps, D, joined + D);
        memcpy(x, h->norm_residual ? joined + D : below, D * sizeof *x);
    } else
        memcpy(x, given, D * sizeof *x);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Outputs of the largest matrix, as `product` pads them. */
static int64_t widest(const Head *h) {
    int64_t d = h->head_dim, most = larger(padded(2 * h->inner), padded((h->heads + 2 * h->kv_heads) * d));
    return larger(larger(padded(h->head.out), padded(2 * h->width)), most);
}

/* What rows that pass the layers need. */
typedef struct {
    float *x, *small; /* [rows][width]: the residual, and the same normed */
    float *joined;    /* [rows][2 width]: pairs of an embedding and a feature */
    float *one, *two; /* [rows][outputs of the largest matrix] */
    float *found;     /* [rows][heads * head_dim]: what attention gives */
    float *inner;     /* [rows][inner] */
    float *spare;     /* [head_dim] */
} Work;

/* Where the arrays of `work` for so many rows lie behind `from`, or how many numbers they take, where that is NULL. */
static int64_t placed(const Head *h, int64_t rows, float *from, Work *work) {
    int64_t D = h->width, q = h->heads * h->head_dim, longest = widest(h), all = 0;
    int64_t sizes[] = {rows * D, rows * D,        2 * rows * D, rows * longest, rows * longest,
                       rows * q, rows * h->inner, h->head_dim};
    float **places[] = {&work->x,     &work->small, &work->joined, &work->one, &work->two,
                        &work->found, &work->inner, &work->spare};
    for (int i = 0; i < 8; all += sizes[i++])
        if (from != NULL) *places[i] = from + all;
    return all;
}

/* The first layer's residual of `rows` pairs, where a reduction gives it. */
static void reduced(const Head *h, int64_t rows, Work *w) {
    int64_t D = h->width;
    if (h->reduction.values == NULL) return;
    product(&h->reduction, w->joined, w->one, rows);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(w->x + r * D, w->one + r * padded(D), D * sizeof *w->x);
        if (h->bias != NULL) add(w->x + r * D, h->bias, D);
    }
}

/* What a layer's attention reads of `rows` rows. */
static const float *entering(const Head *h, int64_t number, int64_t rows, Work *w) {
    const float *norm = h->layers[number].input_norm;
    if (number == 0 && h->hidden_norm != NULL) return w->joined; /* normed already */
    if (norm == NULL) return w->x;
    for (int64_t r = 0; r < rows; r++) normed(w->x + r * h->width, norm, h->eps, h->width, w->small + r * h->width);
    return w->small;
}

/* The layer behind its attention, of rows [from, rows): all is added to x. */
static void finished(const Head *h, const Layer *layer, int64_t from, int64_t rows, Work *w) {
    int64_t D = h->width, q = h->heads * h->head_dim, many = rows - from;
    float *x = w->x + from * D;
    product(&layer->out, w->found + from * q, w->one, many);
    for (int64_t r = 0; r < many; r++) {
        add(x + r * D, w->one + r * padded(D), D);
        normed(x + r * D, layer->post_norm, h->eps, D, w->small + r * D);
    }
    product(&layer->gate_up, w->small, w->two, many);
    for (int64_t r = 0; r < many; r++) gated(w->two + r * padded(2 * h->inner), h->inner, w->inner + r * h->inner);
    product(&layer->down, w->inner, w->one, many);
    for (int64_t r = 0; r < many; r++) add(x + r * D, w->one + r * padded(D), D);
}
