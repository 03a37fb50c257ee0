/* Vectors as wide as the processor's, through the vector types of GCC and Clang: one source for every processor. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#if LANES > 4
#include <immintrin.h>
#endif

/* A word is 4 bytes of a row, or what they are multiplied with: a float, four bytes, or two bfloat16 numbers where the
   processor has products of pairs; else a row is of floats, and only the matrix of bfloat16 numbers. */
#if defined(__AVX512BF16__)
#define BFLOATS_IN_WORD 2
#else
#define BFLOATS_IN_WORD 1
#endif

/* Whether there are units for whole matrices (AMX). */
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

/* Bytes in a line of the cache. */
#define LINE 64

#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

/* What numbers are stored as, and how many bytes one takes. */
enum { FLOAT = 0, BFLOAT = 1, BYTE = 2 };

INLINE int64_t size_of(int64_t kind) { return kind == FLOAT ? 4 : kind == BFLOAT ? 2 : 1; }

INLINE floats all(float x) { return x - (floats){}; }

/* Anywhere in memory, also where something else than floats is. */
typedef floats loose_floats __attribute__((aligned(1), may_alias));
typedef halves loose_halves __attribute__((aligned(1), may_alias));

INLINE floats load(const void *from) { return *(const loose_floats *)from; }

INLINE void store(void *to, floats x) { *(loose_floats *)to = x; }

INLINE floats where(ints condition, floats yes, floats no) {
    return (floats)((condition & (ints)yes) | (~condition & (ints)no));
}

/* b where one of them is no number. */
#if LANES == 16
INLINE floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
#elif LANES == 8
INLINE floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
#else
INLINE floats larger(floats a, floats b) { return where(a > b, a, b); }
INLINE floats smaller(floats a, floats b) { return where(a < b, a, b); }
#endif

/* The upper half of each number's bits, rounded to even. A NaN stays one. */
INLINE halves narrowed(floats x) {
#if BFLOATS_IN_WORD == 2
    return (halves)_mm512_cvtneps_pbh((__m512)x);
#endif
    words bits = (words)x;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    words quiet = (bits >> 16) | 0x40;
    words nan = (words)(x != x);
    return __builtin_convertvector((quiet & nan) | (rounded & ~nan), halves);
}

INLINE floats widened(halves x) {
#if LANES == 16 /* of which GCC makes several instructions */
    return (floats)((words)_mm512_cvtepu16_epi32((__m256i)x) << 16);
#elif LANES == 8
    return (floats)((words)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#else
    return (floats)(__builtin_convertvector(x, words) << 16);
#endif
}

INLINE float wide(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* LANES numbers of a kind as floats, and the way back. */
INLINE floats load_as(const void *from, int64_t at, const int kind) {
    if (kind == FLOAT) return load((const float *)from + at);
    return widened(*(const loose_halves *)((const uint16_t *)from + at));
}

INLINE void store_as(void *to, int64_t at, floats x, const int kind) {
    if (kind == FLOAT)
        store((float *)to + at, x);
    else
        *(loose_halves *)((uint16_t *)to + at) = narrowed(x);
}

/* One number. */
INLINE float number(const void *from, int64_t at, const int kind) {
    return kind == FLOAT ? ((const float *)from)[at] : wide(((const uint16_t *)from)[at]);
}

INLINE void set_number(void *to, int64_t at, float x, const int kind) {
    if (kind == FLOAT)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = narrowed(all(x))[0];
}

/* The first `count` of them, the others 0. */
INLINE floats load_some(const void *from, int64_t at, int64_t count, const int kind) {
    if (count >= LANES) return load_as(from, at, kind);
    float x[LANES] = {0};
    for (int64_t i = 0; i < count; i++) x[i] = number(from, at + i, kind);
    return load(x);
}

INLINE void store_some(void *to, int64_t at, int64_t count, floats x, const int kind) {
    if (count >= LANES) {
        store_as(to, at, x, kind);
        return;
    }
    for (int64_t i = 0; i < count; i++) set_number(to, at + i, x[i], kind);
}

/* The first `count` of them, the others 0. */
INLINE floats first(floats x, int64_t count) {
    for (int64_t i = count; i < LANES; i++) x[i] = 0;
    return x;
}

/* Over all lanes, in pairs at growing distance. */
#define SHUFFLED_16(x, s) __builtin_shufflevector(x, x, 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s, 8 ^ s, \
                                                  9 ^ s, 10 ^ s, 11 ^ s, 12 ^ s, 13 ^ s, 14 ^ s, 15 ^ s)
#define SHUFFLED_8(x, s) __builtin_shufflevector(x, x, 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s)
#define SHUFFLED_4(x, s) __builtin_shufflevector(x, x, 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s)
#if LANES == 16
#define SHUFFLED SHUFFLED_16
#elif LANES == 8
#define SHUFFLED SHUFFLED_8
#else
#define SHUFFLED SHUFFLED_4
#endif

#if LANES == 16
/* LANES rows of words, `step` from one to the next → as columns, side by side. */
INLINE void turn(const uint32_t *rows, int64_t step, uint32_t *to) {
    __m512i x[LANES];
    for (int i = 0; i < LANES; i++) x[i] = _mm512_loadu_si512(rows + i * step);
    for (int far = LANES / 2; far; far /= 2) { /* squares of this size change places across the diagonal */
        words upper, lower;
        for (int lane = 0; lane < LANES; lane++) {
            upper[lane] = lane & far ? LANES + lane - far : lane;
            lower[lane] = lane & far ? LANES + lane : lane + far;
        }
        for (int i = 0; i < LANES; i++)
            if (!(i & far)) {
                const __m512i a = x[i], b = x[i + far];
                x[i] = _mm512_permutex2var_epi32(a, (__m512i)upper, b);
                x[i + far] = _mm512_permutex2var_epi32(a, (__m512i)lower, b);
            }
    }
    for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + i * LANES, x[i]);
}
#endif

INLINE float sum_of(floats x) {
#if LANES > 8
    x = x + SHUFFLED(x, 8);
#endif
#if LANES > 4
    x = x + SHUFFLED(x, 4);
#endif
    x = x + SHUFFLED(x, 2);
    x = x + SHUFFLED(x, 1);
    return x[0];
}

INLINE float largest_of(floats x) {
#if LANES > 8
    x = larger(x, SHUFFLED(x, 8));
#endif
#if LANES > 4
    x = larger(x, SHUFFLED(x, 4));
#endif
    x = larger(x, SHUFFLED(x, 2));
    x = larger(x, SHUFFLED(x, 1));
    return x[0];
}

/* To whole numbers: adding 1.5·2^23 leaves no room for a fraction. For |x| < 2^22. */
#define WHOLE 12582912.0f

/* 2^x for x ≤ 0: 2^n·2^r, 2^r by the polynomial with the least largest error: of degree 6, relative 6e-8; `rough`, for
   results in bfloat16, of degree 3, 7.5e-5. */
INLINE floats power_of_two(floats x, const int rough) {
#if LANES == 16 /* which takes x apart and puts the result together itself; 0 ≤ r < 1 */
    const floats r = (floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    floats series;
    if (rough)
        series = ((0.0780245231f * r + 0.226067168f) * r + 0.695833529f) * r + 0.99992522f;
    else
        series = (((((0.000217022555f * r + 0.0012439688f) * r + 0.00967884095f) * r + 0.055483342f) * r +
                   0.240229836f) * r + 0.693146984f) * r + 1.0f;
    return (floats)_mm512_scalef_ps((__m512)series, (__m512)x);
#else /* below -126 as if that; |r| ≤ 1/2 */
    floats bounded = larger(all(-126.0f), x), shifted = bounded + WHOLE;
    floats r = bounded - (shifted - WHOLE), series;
    if (rough)
        series = ((0.0551715381f * r + 0.242612064f) * r + 0.693261087f) * r + 0.999927998f;
    else
        series = (((((0.000153457891f * r + 0.00133999577f) * r + 0.00961848907f) * r + 0.0555032864f) * r +
                   0.240226462f) * r + 0.693147182f) * r + 1.0f;
    return (floats)((ints)series + ((ints)shifted << 23)); /* adds n to the exponent */
#endif
}

/* round(x) + zero, cut to 0 … 255; what is no number becomes 0. */
INLINE void store_bytes(uint8_t *to, int64_t count, floats x, float zero) {
#if LANES == 16
    const __m512i rounded = _mm512_cvtps_epi32((__m512)smaller(all(255.0f), x + zero)); /* no number: the least one */
    const bytes whole = (bytes)_mm512_cvtusepi32_epi8(_mm512_max_epi32(rounded, _mm512_setzero_si512()));
#else
    floats y = smaller(larger(x, all(-zero)), all(255 - zero));
    bytes whole = __builtin_convertvector(__builtin_convertvector((y + WHOLE) - WHOLE + zero, ints), bytes);
#endif
    if (count >= LANES)
        memcpy(to, &whole, sizeof whole);
    else
        for (int64_t i = 0; i < count; i++) to[i] = whole[i];
}
