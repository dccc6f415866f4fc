/* Rows that were committed, as a feature-level head or a small language model reads them before it drafts behind them: what
 * `nn.decode.decode` does where one row is wanted, with matrices in eight bits, on one core of a CPU.
 *
 * Some ten rows are read in every round. In torch that is some thirty operations a layer, which take longer than the arithmetic.
 */

#include "layers.h"

typedef struct {
    int64_t rows;
    const int64_t *positions;  /* [rows] */
    const float *cos, *sin;    /* tables: rows of head_dim */
    const float *given;        /* [rows][width]: embeddings of tokens */
    const float *features;     /* [rows][width]: beside each; NULL: a language model reads none */
    Cache committed;
} Reading;

/* Queries, keys and values of the rows, side by side; of the last layer (`last`) only the last row's query. Keys and values go
 * behind the committed ones. */
static void remembered(const Head *h, const Reading *g, int64_t number, int last, Work *w) {
    const Cache *c = &g->committed;
    int64_t rows = g->rows, d = h->head_dim, kv = h->kv_heads * d, q = h->heads * d, wide = padded(q + 2 * kv);
    const Matrix *matrix = &h->layers[number].qkv;
    const float *read = entering(h, number, rows, w);
    product_from(matrix, read, w->two, rows, last ? q : 0);
    if (last) product(matrix, read + (rows - 1) * matrix->in, w->two + (rows - 1) * wide, 1);
    for (int64_t r = 0; r < rows; r++) {
        const float *cos = g->cos + g->positions[r] * d, *sin = g->sin + g->positions[r] * d;
        float *made = w->two + r * wide;
        for (int64_t i = last && r + 1 < rows ? h->heads : 0; i < h->heads + h->kv_heads; i++)
            rotated(made + i * d, cos, sin, d, w->spare);
        for (int64_t i = 0; i < h->kv_heads; i++) {
            int64_t place = number * c->apart + (i * c->capacity + c->start + r) * d;
            memcpy(c->keys + place, made + q + i * d, d * sizeof *made);
            memcpy(c->values + place, made + q + kv + i * d, d * sizeof *made);
        }
    }
}

/* Reads the rows, causal, behind the committed ones, whose cache has room for them; what the layers make of the last one is
 * `found` [width]. -1 without memory. */
int64_t read_rows(const Head *h, const Reading *g, float *found) {
    int64_t D = h->width, d = h->head_dim, q = h->heads * d, rows = g->rows, start = g->committed.start;
    int64_t wide = padded(q + 2 * h->kv_heads * d);
    Work work, *w = &work;
    int64_t size = placed(h, rows, NULL, w);
    float *memory = malloc((size + start + rows) * sizeof *memory);
    if (memory == NULL) return -1;
    placed(h, rows, memory, w);
    for (int64_t r = 0; r < rows; r++)
        pair(h, g->given + r * D, g->features != NULL ? g->features + r * D : NULL, w->joined + r * 2 * D, w->x + r * D);
    reduced(h, rows, w);
    for (int64_t number = 0; number < h->depth; number++) {
        int64_t last = number + 1 == h->depth, from = last ? rows - 1 : 0;
        remembered(h, g, number, last, w);
        for (int64_t r = from; r < rows; r++)
            attend(h, &g->committed, start + r + 1, number, w->two + r * wide, g->committed.keys,
                   g->committed.values, NULL, 0, memory + size, w->found + r * q);
        finished(h, h->layers + number, from, rows, w);
    }
    memcpy(found, w->x + (rows - 1) * D, D * sizeof *found);
    free(memory);
    return 0;
}
