/* Attention of many new rows to themselves and to cached ones, on one core of a CPU: a prompt as it is read.
 *
 * torch's kernel computes most of the square above the diagonal and reaches half of what a core can do; in blocks of rows, each
 * of which looks at the keys up to its own last one, it takes 18 ms for 544 rows, 4 heads of 48 and 8 layers on a Zen 4 core.
 * Here such blocks take 11. A row's numbers do not depend on the rows beside it.
 */

#include "vectors.h"

/* Sums that are kept in registers: of so many rows, and so many vectors side by side. */
#define GROUP 6
#ifdef __AVX512F__
#define SIDE 4
#else
#define SIDE 2
#endif
_Static_assert(GROUP == 6, "STRIP has a case for each number of rows below it");
#define ROWS 24 /* of a block: a multiple of GROUP */

/* x [count][many], rows `x_stride` apart, times w [many][side * LANES], rows `w_stride` apart. */
static inline __attribute__((always_inline)) void tile(const float *x, int64_t x_stride, const float *w, int64_t w_stride,
                                                       int64_t many, float *y, int64_t y_stride, int count, int side) {
    vf sums[GROUP][SIDE];
    for (int r = 0; r < count; r++)
        for (int s = 0; s < side; s++) sums[r][s] = all(0.0f);
    for (int64_t i = 0; i < many; i++, w += w_stride) {
        vf part[SIDE];
        for (int s = 0; s < side; s++) part[s] = load(w + s * LANES);
        for (int r = 0; r < count; r++)
            for (int s = 0; s < side; s++) sums[r][s] += x[r * x_stride + i] * part[s];
    }
    for (int r = 0; r < count; r++)
        for (int s = 0; s < side; s++) store(y + r * y_stride + s * LANES, sums[r][s]);
}

/* The same with numbers of vectors and rows that the compiler knows, so that sums stay in registers. */
#define ROWS_OF(COUNT, S) tile(x + r * x_stride, x_stride, w, w_stride, many, y + r * y_stride, y_stride, COUNT, S)
#define STRIP(S)                                                                                                       \
    for (; r + GROUP <= rows; r += GROUP) ROWS_OF(GROUP, S);                                                           \
    switch (rows - r) {                                                                                                \
        case 1: ROWS_OF(1, S); break;                                                                                  \
        case 2: ROWS_OF(2, S); break;                                                                                  \
        case 3: ROWS_OF(3, S); break;                                                                                  \
        case 4: ROWS_OF(4, S); break;                                                                                  \
        case 5: ROWS_OF(5, S); break;                                                                                  \
    }

/* x [rows][many] times w [many][outs], `outs` a multiple of LANES. */
static void product(const float *x, int64_t x_stride, const float *w, int64_t w_stride, int64_t many, float *y,
                    int64_t y_stride, int64_t rows, int64_t outs) {
    for (; outs > 0; outs -= SIDE * LANES, w += SIDE * LANES, y += SIDE * LANES) {
        int64_t r = 0;
        switch (outs / LANES) {
            case 1: STRIP(1) break;
#if SIDE == 4
            case 2: STRIP(2) break;
            case 3: STRIP(3) break;
#endif
            default: STRIP(SIDE)
        }
    }
}

/* Scores of one row become weights, those from `seen` on nothing; they are to be divided by what is returned. */
static float softened(float *x, int64_t seen, int64_t size) {
    for (int64_t j = seen; j < size; j++) x[j] = -INFINITY;
    vf top = load(x);
    for (int64_t j = LANES; j < size; j += LANES) {
        vf next = load(x + j);
        vi more = next > top;
        top = (vf)((more & (vi)next) | (~more & (vi)top));
    }
    float most = top[0], sum = 0;
    for (int i = 1; i < LANES; i++) most = top[i] > most ? top[i] : most;
    vf sums = all(0.0f);
    for (int64_t j = 0; j < size; j += LANES) {
        vf weights = exponential(load(x + j) - most);
        store(x + j, weights);
        sums += weights;
    }
    for (int i = 0; i < LANES; i++) sum += sums[i];
    for (int64_t j = seen; j < size; j++) x[j] = 0;
    return sum;
}

/* queries [rows][heads][d], rows `stride` apart, in a sequence of which `start` rows came before: keys and values
 * [kv_heads][capacity][d] have those and these. The first `causal` rows see what is not behind them; to the scores of the
 * others mask [rows - causal][start + rows] is added. d is a multiple of LANES. found [rows][heads][d]; -1 without memory. */
int64_t attend_many(const float *queries, int64_t stride, const float *keys, const float *values, int64_t capacity,
                    int64_t rows, int64_t start, int64_t causal, const float *mask, int64_t heads, int64_t kv_heads, int64_t d,
                    float *found) {
    int64_t many = start + rows, wide = (many + LANES - 1) / LANES * LANES, share = heads / kv_heads, step = heads * d;
    float *turned = malloc(((d + ROWS) * wide + ROWS * d) * sizeof *turned), by = 1.0f / sqrtf((float)d);
    if (turned == NULL) return -1;
    float *scores = turned + d * wide, *asked = scores + ROWS * wide;
    for (int64_t head = 0; head < heads; head++) {
        const float *own_keys = keys + head / share * capacity * d, *own_values = values + head / share * capacity * d;
        for (int64_t j = 0; head % share == 0 && j < wide; j++) /* keys side by side, in the last vector nothing behind them */
            for (int64_t i = 0; i < d; i++) turned[i * wide + j] = j < many ? own_keys[j * d + i] : 0.0f;
        for (int64_t first = 0; first < rows; first += ROWS) {
            int64_t here = rows - first < ROWS ? rows - first : ROWS, last = first + here;
            int64_t seen = last <= causal ? start + last : many, size = (seen + LANES - 1) / LANES * LANES;
            float *own = found + first * step + head * d, sums[ROWS];
            for (int64_t r = 0; r < here; r++)
                for (int64_t i = 0; i < d; i++) asked[r * d + i] = by * queries[(first + r) * stride + head * d + i];
            product(asked, d, turned, wide, d, scores, wide, here, size);
            for (int64_t r = 0; r < here; r++) {
                const float *bias = first + r < causal || mask == NULL ? NULL : mask + (first + r - causal) * many;
                for (int64_t j = 0; bias != NULL && j < many; j++) scores[r * wide + j] += bias[j];
                sums[r] = softened(scores + r * wide, first + r < causal ? start + first + r + 1 : many, size);
            }
            product(scores, wide, own_values, d, seen, own, step, here, d);
            for (int64_t r = 0; r < here; r++)
                for (int64_t i = 0; i < d; i++) own[r * step + i] /= sums[r];
        }
    }
    free(turned);
    return 0;
}
