/* A draft tree of a feature-level head (EAGLE-2, section 4) or of a small language model in one call: `nn.draft.grow`, with
 * matrices in eight bits, on one core of a CPU.
 *
 * A level of a tree is a forward over a row or two. In torch that is some thirty operations of a few microseconds each, most of
 * which are the way to the kernel and back; here it is one pass over the weights, which fit into a core's second cache. A draft
 * need not be exact, because it is verified. Of equal nodes the first counts, as in `nn.draft.frontier`.
 *
 * See `nn.native` for who compiles this.
 */

#include "vectors.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

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

typedef struct {
    int64_t breadth, levels;     /* children of a node that are looked at */
    int64_t rows, all_rows;      /* at most: of a level, of the tree */
    int64_t end, position, start, capacity;
    const int64_t *shape;        /* NULL: EAGLE-2's growth. Else for every level how many children are recorded, which, how many
                                    of these are expanded, and which */
    const float *embedding, *cos, *sin; /* tables: rows of width, of head_dim */
    const float *keys, *values;         /* committed: [kv_heads][capacity][head_dim], `start` rows each; of the first layer */
    int64_t apart;                      /* numbers from one layer's keys or values to the next one's */
    float floor, mass;
} Growth;

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
static void attend(const Head *h, const Growth *g, int64_t layer, const float *queries, const float *drafted_keys,
                   const float *drafted_values, const int64_t *path, int64_t length, float *scores, float *found) {
    int64_t d = h->head_dim, kv = h->kv_heads * d, share = h->heads / h->kv_heads;
    float by = 1.0f / sqrtf((float)d);
    for (int64_t head = 0; head < h->heads; head++) {
        int64_t place = layer * g->apart + head / share * g->capacity * d;
        const float *query = queries + head * d, *keys = g->keys + place, *values = g->values + place;
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

/* What a tree needs while it grows: R rows of a level at most, A drafted rows in all. */
typedef struct {
    float *hidden, *below; /* [R][width]: outputs of the frontier's rows, and those above the next ones */
    float *x, *small;      /* [R][width]: the residual, and the same normed */
    float *joined;         /* [R][2 width]: pairs of an embedding and a feature */
    float *one, *two;      /* [R][outputs of the largest matrix] */
    float *found, *inner;  /* [R][heads * head_dim], [R][inner] */
    float *keys, *values;  /* [depth][A][kv_heads * head_dim] */
    float *scores, *spare, *ranked;
    float *logs, *path_logs;  /* [R][breadth] of children behind their parents, [R] of the frontier's paths */
    int64_t *names, *order;   /* [R][breadth] children of the frontier, [breadth] places of the likeliest */
    int64_t *paths, *older;   /* [R][levels]: the drafted rows that each row sees; and of the level before */
    int64_t *nodes, *above;   /* [R]: the frontier's nodes, and the rows above the next ones */
} Scratch;

/* Whether there is memory; it is behind `hidden` and `names`. */
static int begun(const Head *h, const Growth *g, int64_t wide, Scratch *s) {
    int64_t D = h->width, q = h->heads * h->head_dim, kv = h->kv_heads * h->head_dim, R = g->rows, A = g->all_rows;
    int64_t L = g->levels;
    int64_t longest = larger(larger(padded(h->head.out), padded(2 * h->inner)), larger(padded(q + 2 * kv), padded(2 * D)));
    int64_t sizes[] = {R * D, R * D, R * D, R * D, 2 * R * D, R * longest, R * longest, R * q, R * h->inner, h->depth * A * kv, h->depth * A * kv,
                       g->start + L, h->head_dim, g->breadth, R * wide, R};
    float **floats[] = {&s->hidden, &s->below, &s->x,      &s->small,  &s->joined, &s->one,    &s->two,  &s->found,
                        &s->inner,  &s->keys,  &s->values, &s->scores, &s->spare,  &s->ranked, &s->logs, &s->path_logs};
    int64_t counts[] = {R * wide, g->breadth, R * L, R * L, R, R};
    int64_t **numbers[] = {&s->names, &s->order, &s->paths, &s->older, &s->nodes, &s->above};
    int64_t all = 0, whole = 0;
    for (int i = 0; i < 16; i++) all += sizes[i];
    for (int i = 0; i < 6; i++) whole += counts[i];
    float *memory = malloc(all * sizeof *memory);
    int64_t *more = malloc(whole * sizeof *more);
    if (memory == NULL || more == NULL) {
        free(memory), free(more);
        return 0;
    }
    for (int i = 0; i < 16; memory += sizes[i++]) *floats[i] = memory;
    for (int i = 0; i < 6; more += counts[i++]) *numbers[i] = more;
    return 1;
}

/* One layer over the `rows` of a level, whose keys and values are drafted rows from `behind` on: attention reads `read`, and
 * all is added to x. */
static void through(const Head *h, const Growth *g, int64_t number, const float *read, int64_t level, int64_t rows,
                    int64_t behind, Scratch *s) {
    const Layer *layer = h->layers + number;
    int64_t D = h->width, d = h->head_dim, kv = h->kv_heads * d, q = h->heads * d, L = g->levels;
    const float *cos = g->cos + (g->position + 1 + level) * d, *sin = g->sin + (g->position + 1 + level) * d;
    float *keys = s->keys + number * g->all_rows * kv, *values = s->values + number * g->all_rows * kv;
    product(&layer->qkv, read, s->two, rows);
    for (int64_t r = 0; r < rows; r++) {
        float *made = s->two + r * padded(q + 2 * kv);
        for (int64_t i = 0; i < h->heads + h->kv_heads; i++) rotated(made + i * d, cos, sin, d, s->spare);
        memcpy(keys + (behind + r) * kv, made + q, kv * sizeof *made);
        memcpy(values + (behind + r) * kv, made + q + kv, kv * sizeof *made);
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *queries = s->two + r * padded(q + 2 * kv);
        attend(h, g, number, queries, keys, values, s->paths + r * L, level + 1, s->scores, s->found + r * q);
    }
    product(&layer->out, s->found, s->one, rows);
    for (int64_t r = 0; r < rows; r++) {
        add(s->x + r * D, s->one + r * padded(D), D);
        normed(s->x + r * D, layer->post_norm, h->eps, D, s->small + r * D);
    }
    product(&layer->gate_up, s->small, s->two, rows);
    for (int64_t r = 0; r < rows; r++) gated(s->two + r * padded(2 * h->inner), h->inner, s->inner + r * h->inner);
    product(&layer->down, s->inner, s->one, rows);
    for (int64_t r = 0; r < rows; r++) add(s->x + r * D, s->one + r * padded(D), D);
}

/* All layers over the `rows` of a level, as `pair` left them; what they give is `hidden`. */
static void forward(const Head *h, const Growth *g, int64_t level, int64_t rows, int64_t behind, Scratch *s) {
    int64_t D = h->width;
    if (h->reduction.values != NULL) {
        product(&h->reduction, s->joined, s->one, rows);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(s->x + r * D, s->one + r * padded(D), D * sizeof *s->x);
            if (h->bias != NULL) add(s->x + r * D, h->bias, D);
        }
    }
    for (int64_t number = 0; number < h->depth; number++) {
        const float *norm = h->layers[number].input_norm, *read = norm != NULL ? s->small : s->x;
        if (number == 0 && h->hidden_norm != NULL)
            read = s->joined; /* normed already */
        else
            for (int64_t r = 0; norm != NULL && r < rows; r++) normed(s->x + r * D, norm, h->eps, D, s->small + r * D);
        through(h, g, number, read, level, rows, behind, s);
    }
    memcpy(s->hidden, s->x, rows * D * sizeof *s->hidden);
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

/* As `nn.draft.grow`, below the root whose predicted feature is `feature` [width]: tokens, parents and the logarithms of path
 * probabilities of all recorded nodes, for which there is room. How many they are, or -1 without memory. */
int64_t grow(const Head *h, const Growth *g, const float *feature, int64_t *tokens, int64_t *parents, float *reach) {
    int64_t D = h->width, L = g->levels, wide = h->head.out < g->breadth ? h->head.out : g->breadth;
    Scratch s;
    if (!begun(h, g, wide, &s)) return -1;
    const int64_t *shape = g->shape;
    int64_t rows = 1, made = 0, behind = 0;
    memcpy(s.hidden, feature, D * sizeof *s.hidden);
    s.nodes[0] = -1, s.path_logs[0] = 0.0f;
    for (int64_t level = 0;; level++) {
        /* What follows each row of the frontier. */
        for (int64_t r = 0; h->out_norm != NULL && r < rows; r++) normed(s.hidden + r * D, h->out_norm, h->eps, D, s.x + r * D);
        product(&h->head, h->out_norm != NULL ? s.x : s.hidden, s.one, rows);
        for (int64_t r = 0; r < rows; r++)
            likeliest(s.one + r * padded(h->head.out), h->head.out, wide, s.names + r * wide, s.logs + r * wide);
        int64_t first = made, here = shape != NULL ? shape[0] : rows * wide;
        const int64_t *kept = shape != NULL ? shape + 1 : NULL;
        for (int64_t i = 0; i < here; i++, made++) {
            int64_t child = kept != NULL ? kept[i] : i;
            tokens[made] = h->ids != NULL ? h->ids[s.names[child]] : s.names[child];
            parents[made] = s.nodes[child / wide];
            reach[made] = s.path_logs[child / wide] + s.logs[child];
        }
        if (level + 1 == L) break;
        /* Which of them are expanded, and what lies above them. */
        const int64_t *chosen = s.order;
        int64_t next;
        if (shape != NULL) {
            next = shape[1 + here], chosen = shape + 2 + here;
            shape = chosen + next;
        } else
            next = frontier(g, tokens + first, reach + first, here, s.ranked, s.order);
        if (next == 0) break;
        memcpy(s.older, s.paths, rows * L * sizeof *s.paths);
        for (int64_t r = 0; r < next; r++) {
            s.above[r] = (kept != NULL ? kept[chosen[r]] : chosen[r]) / wide;
            memcpy(s.paths + r * L, s.older + s.above[r] * L, level * sizeof *s.paths);
            s.paths[r * L + level] = behind + r;
            memcpy(s.below + r * D, s.hidden + s.above[r] * D, D * sizeof *s.below);
        }
        rows = next;
        for (int64_t r = 0; r < rows; r++) {
            int64_t node = first + chosen[r];
            s.nodes[r] = node, s.path_logs[r] = reach[node];
            pair(h, g->embedding + tokens[node] * D, s.below + r * D, s.joined + r * 2 * D, s.x + r * D);
        }
        forward(h, g, level, rows, behind, &s);
        behind += rows;
    }
    free(s.hidden), free(s.names);
    return made;
}
