/* Rows of words times blocks of LANES columns, the product under both attention and linear maps.

   Each number of the result is a sum in the order of the words, alone in its place of a register: its bits do not depend
   on what else is computed beside it. */
#pragma once

#include <stddef.h>

#include "vectors.h"

/* What a matrix is made of. */
enum { FLOATS = 0, BFLOATS = 1, BYTES = 2 };

/* Bytes of a word in it. */
INLINE int64_t word_size(int64_t what) { return what == BFLOATS ? 2 * BFLOATS_IN_WORD : 4; }

/* Rows and blocks of columns computed together: their sums fit in the registers. */
#define ROWS 6
#if LANES == 8 /* and 16 registers, not 32 */
#define COLUMNS 2
#else
#define COLUMNS 4
#endif

INLINE floats load_floats(const void *from) { return load(from); }

INLINE floats add_floats(floats sum, uint32_t word, floats block) {
    float x;
    memcpy(&x, &word, sizeof x);
    return sum + x * block;
}

#if BFLOATS_IN_WORD == 2
INLINE floats load_bfloats(const void *from) { return load(from); }

INLINE floats add_bfloats(floats sum, uint32_t word, floats block) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)block);
}
#else
INLINE floats load_bfloats(const void *from) { return load_as(from, 0, BFLOAT); }

#define add_bfloats add_floats
#endif

INLINE ints load_bytes(const void *from) { return (ints)load(from); }

/* Whether products of bytes are added in pairs of 16 bits, cut at 32767: two neighbours in a row of the matrix then may
   have sizes of 128 together, for 255·128 is less. */
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define IN_PAIRS 1
#else
#define IN_PAIRS 0
#endif

/* Unsigned times signed bytes. */
INLINE ints add_bytes(ints sum, uint32_t word, ints block) {
    const ints x = (int32_t)word - (ints){};
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)block);
#elif defined(__AVXVNNI__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)block);
#elif LANES == 16
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)x, (__m512i)block);
    return sum + (ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)x, (__m256i)block);
    return sum + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int shift = 0; shift < 32; shift += 8)
        sum = sum + ((ints)((words)x >> shift) & 255) * (block << (24 - shift) >> 24);
    return sum;
#endif
}

/* Lines of the cache that are fetched for later with each word. */
#define LINES (COLUMNS * LANES / 16)

/* rows (count, depth) × blocks (columns, depth, LANES) → out (count, columns·LANES), `out_step` floats apart; of bytes
   whole numbers. The other steps are bytes: from a row to the next, from a block to the next, from a word to the next.
   Where it `fetches`, what is read afterwards is fetched meanwhile, `later`, in steps so small that it takes all the time;
   that costs a sixth of the speed on some processors. */
#define PRODUCT(name, sum_type, loaded, add)                                                                          \
    INLINE void name(const void *rows, int64_t rows_step, const char *blocks, int64_t blocks_step, int64_t word_step, \
                     int64_t depth, float *out, int64_t out_step, const char *later, int64_t later_step,              \
                     const int count, const int columns, const int fetches) {                                         \
        sum_type sums[ROWS][COLUMNS];                                                                                 \
        const char *row[ROWS];                                                                                        \
        for (int r = 0; r < count; r++) row[r] = (const char *)rows + r * rows_step;                                  \
        for (int r = 0; r < count; r++)                                                                               \
            for (int c = 0; c < columns; c++) sums[r][c] = (sum_type){};                                              \
        for (int64_t k = 0; k < depth; k++, blocks += word_step) {                                                    \
            sum_type block[COLUMNS];                                                                                  \
            for (int c = 0; c < columns; c++) block[c] = loaded(blocks + c * blocks_step);                            \
            for (int l = 0; fetches && l < LINES; l++, later += later_step) __builtin_prefetch(later, 0, 2);          \
            for (int r = 0; r < count; r++) {                                                                         \
                uint32_t word;                                                                                        \
                memcpy(&word, row[r] + 4 * k, sizeof word);                                                           \
                for (int c = 0; c < columns; c++) sums[r][c] = add(sums[r][c], word, block[c]);                       \
            }                                                                                                         \
        }                                                                                                             \
        for (int r = 0; r < count; r++)                                                                               \
            for (int c = 0; c < columns; c++) store(out + r * out_step + c * LANES, (floats)sums[r][c]);              \
    }

PRODUCT(product_FLOATS, floats, load_floats, add_floats)
PRODUCT(product_BFLOATS, floats, load_bfloats, add_bfloats)
PRODUCT(product_BYTES, ints, load_bytes, add_bytes)

/* One function for each size, so that the compiler keeps its sums in registers. */
typedef void sized_product(const void *, int64_t, const char *, int64_t, int64_t, int64_t, float *, int64_t);

#define SIZED(what, count, columns)                                                                                   \
    static __attribute__((noinline)) void product_##what##_##count##_##columns(                                       \
        const void *rows, int64_t rows_step, const char *blocks, int64_t blocks_step, int64_t word_step,              \
        int64_t depth, float *out, int64_t out_step) {                                                                \
        product_##what(rows, rows_step, blocks, blocks_step, word_step, depth, out, out_step, NULL, 0, count, columns, \
                       0);                                                                                            \
    }
#define NAMED(what, count, columns) product_##what##_##count##_##columns

#if COLUMNS == 4
#define EACH_COLUMN(what, count)                                                                                      \
    SIZED(what, count, 1) SIZED(what, count, 2) SIZED(what, count, 3) SIZED(what, count, 4)
#define COLUMN_NAMES(what, count)                                                                                     \
    { NAMED(what, count, 1), NAMED(what, count, 2), NAMED(what, count, 3), NAMED(what, count, 4) }
#else
#define EACH_COLUMN(what, count) SIZED(what, count, 1) SIZED(what, count, 2)
#define COLUMN_NAMES(what, count) { NAMED(what, count, 1), NAMED(what, count, 2) }
#endif
#define EACH_COUNT(what)                                                                                              \
    EACH_COLUMN(what, 1) EACH_COLUMN(what, 2) EACH_COLUMN(what, 3) EACH_COLUMN(what, 4) EACH_COLUMN(what, 5)          \
    EACH_COLUMN(what, 6)
#define COUNT_NAMES(what)                                                                                             \
    {COLUMN_NAMES(what, 1), COLUMN_NAMES(what, 2), COLUMN_NAMES(what, 3),                                             \
     COLUMN_NAMES(what, 4), COLUMN_NAMES(what, 5), COLUMN_NAMES(what, 6)}

EACH_COUNT(FLOATS)
EACH_COUNT(BFLOATS)
EACH_COUNT(BYTES)

static sized_product *const PRODUCTS[3][ROWS][COLUMNS] = {COUNT_NAMES(FLOATS), COUNT_NAMES(BFLOATS), COUNT_NAMES(BYTES)};

/* The same for any number of columns; blocks of 4-byte words, one behind the other, `blocks_step` words apart. */
static inline void products(const void *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step,
                            int64_t depth, float *out, int64_t out_step, int64_t count, int64_t columns, int what) {
    for (int64_t done = 0; done < columns; done += COLUMNS) {
        const int64_t some = columns - done < COLUMNS ? columns - done : COLUMNS;
        PRODUCTS[what][count - 1][some - 1](rows, rows_step, (const char *)(blocks + done * blocks_step),
                                            4 * blocks_step, 4 * LANES, depth, out + done * LANES, out_step);
    }
}
