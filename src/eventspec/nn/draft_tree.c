/* A draft tree of a feature-level head (EAGLE-2, section 4) in one call: `nn.draft.grow` for a head of one layer, with its
 * matrices in eight bits, on one core of a CPU.
 *
 * A level of a tree is a forward over a row or two. In torch that is some thirty operations of a few microseconds each, most of
 * which are the way to the kernel and back; here it is one pass over the weights, which fit into a core's second cache. A draft
 * need not be exact, because it is verified. Of equal nodes the first counts, as in `nn.draft.frontier`.
 *
 * Vectors are those of GCC and Clang, which map them to what the processor has. See `nn.native` for who compiles this.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 16 /* floats of a vector */
/* Outputs of a matrix that lie side by side, in vectors, and rows that share a pass over it: as many sums as there are
 * registers for. */
#ifdef __AVX512F__
#define SIDE 4
#define GROUP 4
#else
#define SIDE 2
#define GROUP 2
#endif
#define BLOCK (SIDE * LANES)

const int64_t block_size = BLOCK;

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

typedef struct {
    const int8_t *values; /* [blocks][in][BLOCK]: outputs behind the last one are zero */
    const float *scales;  /* [blocks * BLOCK]: every output is multiplied by its own */
    int64_t in, out;
} Matrix;

typedef struct {
    int64_t width, heads, kv_heads, head_dim, inner;
    int64_t norm_residual;
    float eps;
    Matrix reduction; /* EAGLE-1: of [embedding, feature]; values NULL: EAGLE-3 */
    Matrix qkv, out, gate_up, down, head;
    const float *bias;                                             /* of the reduction, NULL: none */
    const float *input_norm, *hidden_norm, *post_norm, *out_norm; /* NULL: none */
    const int64_t *ids;                                            /* of the head's rows, NULL: their numbers */
} Head;

typedef struct {
    int64_t breadth, levels;     /* children of a node that are looked at */
    int64_t rows, all_rows;      /* at most: of a level, of the tree */
    int64_t end, position, start, capacity;
    const int64_t *shape;        /* NULL: EAGLE-2's growth. Else for every level how many children are recorded, which, how many
                                    of these are expanded, and which */
    const float *embedding, *cos, *sin; /* tables: rows of width, of head_dim */
    const float *keys, *values;         /* committed: [kv_heads][capacity][head_dim], `start` rows each */
    float floor, mass;
} Growth;

static inline vf load(const float *from) {
    vf found;
    memcpy(&found, from, sizeof found);
    return found;
}

static inline void store(float *to, vf what) { memcpy(to, &what, sizeof what); }

static inline vf all(float x) { return x - (vf){0}; }

static inline vf at_least(vf x, float low) {
    vi less = x < low;
    return (vf)((less & (vi)all(low)) | (~less & (vi)x));
}

/* GCC 12 widens eight bits one by one unless it is told the instruction. */
static inline vf eight_bits(const int8_t *from) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    vf found;
    for (int i = 0; i < LANES; i += 8) {
        __m256 part = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from + i))));
        memcpy((float *)&found + i, &part, sizeof part);
    }
    return found;
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

/* e^x to seven digits, for x <= 88: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
static inline vf exponential(vf x) {
    x = at_least(x, -87.0f);
    vf scaled = x * 1.44269504f + 12582912.0f; /* rounds: its lowest bits are n */
    vf whole = scaled - 12582912.0f;
    vf r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vf p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vf)(((vi)scaled - 0x4B400000 + 127) << 23);
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

/* x [rows][in] -> y [rows][padded(out)] */
static void product(const Matrix *m, const float *x, float *y, int64_t rows) {
    int64_t stride = padded(m->out);
    for (int64_t block = 0; block < stride / BLOCK; block++) {
        for (int64_t r = 0; r < rows; r += GROUP) {
            const float *from = x + r * m->in;
            float *to = y + r * stride;
            switch (rows - r) { /* a number that the compiler knows, so that sums stay in registers */
                case 1: block_of(m, from, to, stride, block, 1); break;
#if GROUP == 4
                case 2: block_of(m, from, to, stride, block, 2); break;
                case 3: block_of(m, from, to, stride, block, 3); break;
#endif
                default: block_of(m, from, to, stride, block, GROUP);
            }
        }
    }
}

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

/* Attention of one row to all committed rows and to the drafted ones on its path. */
static void attend(const Head *h, const Growth *g, const float *queries, const float *drafted_keys, const float *drafted_values,
                   const int64_t *path, int64_t length, float *scores, float *found) {
    int64_t d = h->head_dim, kv = h->kv_heads * d, share = h->heads / h->kv_heads;
    float by = 1.0f / sqrtf((float)d);
    for (int64_t head = 0; head < h->heads; head++) {
        const float *query = queries + head * d, *keys = g->keys + head / share * g->capacity * d;
        const float *values = g->values + head / share * g->capacity * d;
        const float *own_keys = drafted_keys + head / share * d, *own_values = drafted_values + head / share * d;
        float *to = found + head * d;
        int64_t many = g->start + length;
        for (int64_t j = 0; j < g->start; j++) scores[j] = by * dot(query, keys + j * d, d);
        for (int64_t j = 0; j < length; j++) scores[g->start + j] = by * dot(query, own_keys + path[j] * kv, d);
        float most, norm = 1.0f / softened(scores, many, &most);
        memset(to, 0, d * sizeof *to);
        weighted(values, g->start, d, scores, d, to);
        for (int64_t j = 0; j < length; j++) weighted(own_values + path[j] * kv, 1, kv, scores + g->start + j, d, to);
        for (int64_t i = 0; i < d; i++) to[i] *= norm;
    }
}

/* The next tokens' numbers in `best` and the logarithms of their probabilities, likeliest first; of equal ones the first. */
static void likeliest(float *logits, int64_t size, int64_t count, int64_t *best, float *logs) {
    int64_t many = 0;
    for (int64_t i = 0; i < size; i++) {
        float x = logits[i];
        if (many == count && !(x > logs[many - 1])) continue;
        int64_t at = many < count ? many++ : many - 1;
        for (; at > 0 && x > logs[at - 1]; at--) logs[at] = logs[at - 1], best[at] = best[at - 1];
        logs[at] = x, best[at] = i;
    }
    float most, sum = logf(softened(logits, size, &most));
    for (int64_t i = 0; i < many; i++) logs[i] -= most + sum;
}

/* Which nodes of a level are expanded by EAGLE-2's rule, the most probable paths: how many, their places in `order`. */
static int64_t frontier(const Growth *g, const int64_t *tokens, const float *reach, int64_t size, float *ranked,
                        int64_t *order) {
    int64_t many = 0, next = 0;
    for (int64_t i = 0; i < size; i++) {
        float value = tokens[i] == g->end ? -1e30f : reach[i];
        if (many == g->breadth && !(value > ranked[many - 1])) continue;
        int64_t at = many < g->breadth ? many++ : many - 1;
        for (; at > 0 && value > ranked[at - 1]; at--) ranked[at] = ranked[at - 1], order[at] = order[at - 1];
        ranked[at] = value, order[at] = i;
    }
    float together = 0;
    for (; next < many; next++) {
        float share = expf(ranked[next]);
        if (share < g->floor || share == 0.0f) break;
        together += share;
    }
    return together >= g->mass ? next : 0;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* As `nn.draft.grow`, below the root whose predicted feature is `feature` [width]: tokens, parents and the logarithms of path
 * probabilities of all recorded nodes, for which there is room. How many they are, or -1 without memory. */
int64_t grow(const Head *h, const Growth *g, const float *feature, int64_t *tokens, int64_t *parents, float *reach) {
    int64_t D = h->width, d = h->head_dim, kv = h->kv_heads * d, q = h->heads * d, R = g->rows, L = g->levels;
    int64_t wide = h->head.out < g->breadth ? h->head.out : g->breadth;
    int64_t longest = larger(larger(padded(h->head.out), padded(2 * h->inner)), larger(padded(q + 2 * kv), padded(2 * D)));
    int64_t floats = R * (6 * D + 2 * longest + q + h->inner + wide + 1) + 2 * g->all_rows * kv + g->start + L + d + g->breadth;
    int64_t whole = R * (2 * L + 2 + wide) + g->breadth;
    float *memory = malloc(floats * sizeof *memory);
    int64_t *numbers = malloc(whole * sizeof *numbers);
    if (memory == NULL || numbers == NULL) {
        free(memory), free(numbers);
        return -1;
    }
    float *hidden = memory, *x = hidden + R * D, *joined = x + R * D, *small = joined + R * 2 * D, *below = small + R * D;
    float *one = below + R * D, *two = one + R * longest, *found = two + R * longest, *inner = found + R * q;
    float *logs = inner + R * h->inner, *path_logs = logs + R * wide, *keys = path_logs + R, *values = keys + g->all_rows * kv;
    float *scores = values + g->all_rows * kv, *spare = scores + g->start + L, *ranked = spare + d;
    int64_t *paths = numbers, *older = paths + R * L, *nodes = older + R * L, *above = nodes + R, *names = above + R;
    int64_t *order = names + R * wide; /* never longer than a level's choice: `breadth`, or the shape's own */
    const int64_t *shape = g->shape;
    int64_t rows = 1, made = 0, behind = 0;
    memcpy(hidden, feature, D * sizeof *hidden);
    nodes[0] = -1, path_logs[0] = 0.0f;
    for (int64_t level = 0;; level++) {
        /* What follows each row of the frontier. */
        for (int64_t r = 0; h->out_norm != NULL && r < rows; r++) normed(hidden + r * D, h->out_norm, h->eps, D, x + r * D);
        product(&h->head, h->out_norm != NULL ? x : hidden, one, rows);
        for (int64_t r = 0; r < rows; r++)
            likeliest(one + r * padded(h->head.out), h->head.out, wide, names + r * wide, logs + r * wide);
        int64_t first = made, here = shape != NULL ? shape[0] : rows * wide;
        const int64_t *kept = shape != NULL ? shape + 1 : NULL;
        for (int64_t i = 0; i < here; i++, made++) {
            int64_t child = kept != NULL ? kept[i] : i;
            tokens[made] = h->ids != NULL ? h->ids[names[child]] : names[child];
            parents[made] = nodes[child / wide];
            reach[made] = path_logs[child / wide] + logs[child];
        }
        if (level + 1 == L) break;
        /* Which of them are expanded, and what lies above them. */
        const int64_t *chosen = order;
        int64_t next;
        if (shape != NULL) {
            next = shape[1 + here], chosen = shape + 2 + here;
            shape = chosen + next;
        } else
            next = frontier(g, tokens + first, reach + first, here, ranked, order);
        if (next == 0) break;
        memcpy(older, paths, rows * L * sizeof *paths);
        for (int64_t r = 0; r < next; r++) {
            above[r] = (kept != NULL ? kept[chosen[r]] : chosen[r]) / wide;
            memcpy(paths + r * L, older + above[r] * L, level * sizeof *paths);
            paths[r * L + level] = behind + r;
            memcpy(below + r * D, hidden + above[r] * D, D * sizeof *below);
        }
        rows = next;
        /* Their forward: pairs of a token and the feature above it. */
        const float *cos = g->cos + (g->position + 1 + level) * d, *sin = g->sin + (g->position + 1 + level) * d;
        const float *read = joined;
        for (int64_t r = 0; r < rows; r++) {
            int64_t node = first + chosen[r];
            const float *given = g->embedding + tokens[node] * D;
            float *pair = joined + r * 2 * D;
            nodes[r] = node, path_logs[r] = reach[node];
            if (h->reduction.values != NULL) {
                memcpy(pair, given, D * sizeof *pair);
                memcpy(pair + D, below + r * D, D * sizeof *pair);
            } else {
                normed(given, h->input_norm, h->eps, D, pair);
                normed(below + r * D, h->hidden_norm, h->eps, D, pair + D);
                memcpy(x + r * D, h->norm_residual ? pair + D : below + r * D, D * sizeof *x);
            }
        }
        if (h->reduction.values != NULL) {
            product(&h->reduction, joined, one, rows);
            for (int64_t r = 0; r < rows; r++) {
                memcpy(x + r * D, one + r * padded(D), D * sizeof *x);
                if (h->bias != NULL) add(x + r * D, h->bias, D);
                if (h->input_norm != NULL) normed(x + r * D, h->input_norm, h->eps, D, small + r * D);
            }
            read = h->input_norm != NULL ? small : x;
        }
        product(&h->qkv, read, two, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *own = two + r * padded(q + 2 * kv);
            for (int64_t i = 0; i < h->heads + h->kv_heads; i++) rotated(own + i * d, cos, sin, d, spare);
            memcpy(keys + (behind + r) * kv, own + q, kv * sizeof *own);
            memcpy(values + (behind + r) * kv, own + q + kv, kv * sizeof *own);
        }
        for (int64_t r = 0; r < rows; r++)
            attend(h, g, two + r * padded(q + 2 * kv), keys, values, paths + r * L, level + 1, scores, found + r * q);
        product(&h->out, found, one, rows);
        for (int64_t r = 0; r < rows; r++) {
            add(x + r * D, one + r * padded(D), D);
            normed(x + r * D, h->post_norm, h->eps, D, small + r * D);
        }
        product(&h->gate_up, small, two, rows);
        for (int64_t r = 0; r < rows; r++) gated(two + r * padded(2 * h->inner), h->inner, inner + r * h->inner);
        product(&h->down, inner, one, rows);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(hidden + r * D, x + r * D, D * sizeof *hidden);
            add(hidden + r * D, one + r * padded(D), D);
        }
        behind += rows;
    }
    free(memory), free(numbers);
    return made;
}
