/* A draft tree of a feature-level head (EAGLE-2, section 4) or of a small language model in one call: `nn.draft.grow`, with
 * matrices in eight bits, on one core of a CPU.
 *
 * A level of a tree is a forward over a row or two. In torch that is some thirty operations of a few microseconds each, most of
 * which are the way to the kernel and back; here it is one pass over the weights, which fit into a core's second cache. A draft
 * need not be exact, because it is verified. Of equal nodes the first counts, as in `nn.draft.frontier`.
 *
 * See `nn.native` for who compiles this.
 */

#include "layers.h"

const int64_t block_size = BLOCK;

typedef struct {
    int64_t breadth, levels;     /* children of a node that are looked at */
    int64_t rows, all_rows;      /* at most: of a level, of the tree */
    int64_t end, position;
    const int64_t *shape;        /* NULL: EAGLE-2's growth. Else for every level how many children are recorded, which, how many
                                    of these are expanded, and which */
    const float *embedding, *cos, *sin; /* tables: rows of width, of head_dim */
    Cache committed;
    float floor, mass;
} Growth;

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

/* What a tree needs while it grows: R rows of a level at most, A drafted rows in all. */
typedef struct {
    Work work;             /* [R] rows each */
    float *hidden, *below; /* [R][width]: outputs of the frontier's rows, and those above the next ones */
    float *keys, *values;  /* [depth][A][kv_heads * head_dim] */
    float *scores, *ranked;
    float *logs, *path_logs;  /* [R][breadth] of children behind their parents, [R] of the frontier's paths */
    int64_t *names, *order;   /* [R][breadth] children of the frontier, [breadth] places of the likeliest */
    int64_t *paths, *older;   /* [R][levels]: the drafted rows that each row sees; and of the level before */
    int64_t *nodes, *above;   /* [R]: the frontier's nodes, and the rows above the next ones */
} Scratch;

/* Whether there is memory; it is behind `hidden` and `names`. */
static int begun(const Head *h, const Growth *g, int64_t wide, Scratch *s) {
    int64_t D = h->width, kv = h->kv_heads * h->head_dim, R = g->rows, A = g->all_rows, L = g->levels;
    int64_t sizes[] = {R * D, R * D, h->depth * A * kv, h->depth * A * kv, g->committed.start + L, g->breadth, R * wide, R};
    float **floats[] = {&s->hidden, &s->below, &s->keys, &s->values, &s->scores, &s->ranked, &s->logs, &s->path_logs};
    int64_t counts[] = {R * wide, g->breadth, R * L, R * L, R, R};
    int64_t **numbers[] = {&s->names, &s->order, &s->paths, &s->older, &s->nodes, &s->above};
    int64_t all = placed(h, R, NULL, &s->work), whole = 0;
    for (int i = 0; i < 8; i++) all += sizes[i];
    for (int i = 0; i < 6; i++) whole += counts[i];
    float *memory = malloc(all * sizeof *memory);
    int64_t *more = malloc(whole * sizeof *more);
    if (memory == NULL || more == NULL) {
        free(memory), free(more);
        return 0;
    }
    for (int i = 0; i < 8; memory += sizes[i++]) *floats[i] = memory;
    placed(h, R, memory, &s->work);
    for (int i = 0; i < 6; more += counts[i++]) *numbers[i] = more;
    return 1;
}

/* All layers over the `rows` of a level, as `pair` left them; what they give is `hidden`. Their keys and values are drafted rows
 * from `behind` on. */
static void forward(const Head *h, const Growth *g, int64_t level, int64_t rows, int64_t behind, Scratch *s) {
    int64_t D = h->width, d = h->head_dim, kv = h->kv_heads * d, q = h->heads * d, place = g->position + 1 + level;
    const float *cos = g->cos + place * d, *sin = g->sin + place * d;
    Work *w = &s->work;
    reduced(h, rows, w);
    for (int64_t number = 0; number < h->depth; number++) {
        const Layer *layer = h->layers + number;
        float *keys = s->keys + number * g->all_rows * kv, *values = s->values + number * g->all_rows * kv;
        product(&layer->qkv, entering(h, number, rows, w), w->two, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *made = w->two + r * padded(q + 2 * kv);
            for (int64_t i = 0; i < h->heads + h->kv_heads; i++) rotated(made + i * d, cos, sin, d, w->spare);
            memcpy(keys + (behind + r) * kv, made + q, kv * sizeof *made);
            memcpy(values + (behind + r) * kv, made + q + kv, kv * sizeof *made);
        }
        for (int64_t r = 0; r < rows; r++)
            attend(h, &g->committed, g->committed.start, number, w->two + r * padded(q + 2 * kv), keys, values,
                   s->paths + r * g->levels, level + 1, s->scores, w->found + r * q);
        finished(h, layer, 0, rows, w);
    }
    memcpy(s->hidden, w->x, rows * D * sizeof *s->hidden);
}

/* As `nn.draft.grow`, below the root whose predicted feature is `feature` [width]: tokens, parents and the logarithms of path
 * probabilities of all recorded nodes, for which there is room. How many they are, or -1 without memory. */
int64_t grow(const Head *h, const Growth *g, const float *feature, int64_t *tokens, int64_t *parents, float *reach) {
    int64_t D = h->width, L = g->levels, wide = h->head.out < g->breadth ? h->head.out : g->breadth;
    Scratch s;
    if (!begun(h, g, wide, &s)) return -1;
    Work *w = &s.work;
    const int64_t *shape = g->shape;
    int64_t rows = 1, made = 0, behind = 0;
    memcpy(s.hidden, feature, D * sizeof *s.hidden);
    s.nodes[0] = -1, s.path_logs[0] = 0.0f;
    for (int64_t level = 0;; level++) {
        /* What follows each row of the frontier. */
        for (int64_t r = 0; h->out_norm != NULL && r < rows; r++) normed(s.hidden + r * D, h->out_norm, h->eps, D, w->x + r * D);
        product(&h->head, h->out_norm != NULL ? w->x : s.hidden, w->one, rows);
        for (int64_t r = 0; r < rows; r++)
            likeliest(w->one + r * padded(h->head.out), h->head.out, wide, s.names + r * wide, s.logs + r * wide);
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
            pair(h, g->embedding + tokens[node] * D, s.below + r * D, w->joined + r * 2 * D, w->x + r * D);
        }
        forward(h, g, level, rows, behind, &s);
        behind += rows;
    }
    free(s.hidden), free(s.names);
    return made;
}
