/* Vectors as GCC and Clang have them, which map them to what the processor has, and what is done with them. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Floats of a vector: as many as a register has. GCC keeps longer ones in memory. */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

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
