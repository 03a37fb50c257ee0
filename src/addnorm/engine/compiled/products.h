/* Rows of words times blocks of LANES columns, the product under both attention and linear maps.

   A word is 4 bytes: a float, a pair of bfloat16 numbers or four bytes, whichever the processor multiplies and adds at
   once. Each number of the result is a sum in the order of the words, alone in its place of a register: its bits do
   not depend on what else is computed beside it. */
#pragma once

#include "vectors.h"

/* What a word is. */
enum { FLOATS = 0, PAIRS = 1, QUADS = 2 };

/* Rows and blocks of columns computed together: their sums fit in the registers. */
#define ROWS 6
#if LANES == 8 /* and 16 registers, not 32 */
#define COLUMNS 2
#else
#define COLUMNS 4
#endif

INLINE floats add_floats(floats sum, uint32_t word, floats block) {
    float x;
    memcpy(&x, &word, sizeof x);
    return sum + x * block;
}

#if HAS_PAIRS
INLINE floats add_pairs(floats sum, uint32_t word, floats block) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)block);
}
#endif

#if HAS_QUADS
INLINE ints add_quads(ints sum, uint32_t word, floats block) { /* unsigned times signed bytes */
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(word), (__m512i)block);
}
#endif

/* rows (count, depth), `rows_step` bytes apart, × blocks (columns, depth, LANES), `blocks_step` words apart
   → out (count, columns·LANES), `out_step` floats apart; of quads whole numbers. */
#define PRODUCT(name, sum_type, add)                                                                                  \
    INLINE void name(const void *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step,                \
                     int64_t word_step, int64_t depth, float *out, int64_t out_step, const int count, const int columns) {                              \
        sum_type sums[ROWS][COLUMNS];                                                                                 \
        const char *row[ROWS];                                                                                        \
        for (int r = 0; r < count; r++) row[r] = (const char *)rows + r * rows_step;                                  \
        for (int r = 0; r < count; r++)                                                                               \
            for (int c = 0; c < columns; c++) sums[r][c] = (sum_type){};                                              \
        for (int64_t k = 0; k < depth; k++, blocks += word_step) {                                                    \
            floats block[COLUMNS];                                                                                    \
            for (int c = 0; c < columns; c++) block[c] = load(blocks + c * blocks_step);                              \
            for (int r = 0; r < count; r++) {                                                                         \
                uint32_t word;                                                                                        \
                memcpy(&word, row[r] + 4 * k, sizeof word);                                                           \
                for (int c = 0; c < columns; c++) sums[r][c] = add(sums[r][c], word, block[c]);                       \
            }                                                                                                         \
        }                                                                                                             \
        for (int r = 0; r < count; r++)                                                                               \
            for (int c = 0; c < columns; c++) store(out + r * out_step + c * LANES, (floats)sums[r][c]);              \
    }

PRODUCT(product_FLOATS, floats, add_floats)
#if HAS_PAIRS
PRODUCT(product_PAIRS, floats, add_pairs)
#endif
#if HAS_QUADS
PRODUCT(product_QUADS, ints, add_quads)
#endif

/* One function for each size, so that the compiler keeps its sums in registers. */
typedef void sized_product(const void *, int64_t, const uint32_t *, int64_t, int64_t, int64_t, float *, int64_t);

#define SIZED(what, count, columns)                                                                                   \
    static __attribute__((noinline)) void product_##what##_##count##_##columns(                                       \
        const void *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step, int64_t word_step,          \
        int64_t depth, float *out, int64_t out_step) {                                                                                           \
        product_##what(rows, rows_step, blocks, blocks_step, word_step, depth, out, out_step, count, columns);                   \
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
#if HAS_PAIRS
EACH_COUNT(PAIRS)
#endif
#if HAS_QUADS
EACH_COUNT(QUADS)
#endif

static sized_product *const PRODUCTS[3][ROWS][COLUMNS] = {
    COUNT_NAMES(FLOATS),
#if HAS_PAIRS
    [PAIRS] = COUNT_NAMES(PAIRS),
#endif
#if HAS_QUADS
    [QUADS] = COUNT_NAMES(QUADS),
#endif
};

/* The same for any number of columns. */
static inline void products(const void *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step,
                            int64_t depth, float *out, int64_t out_step, int64_t count, int64_t columns, int what) {
    for (int64_t done = 0; done < columns; done += COLUMNS) {
        const int64_t some = columns - done < COLUMNS ? columns - done : COLUMNS;
        PRODUCTS[what][count - 1][some - 1](rows, rows_step, blocks + done * blocks_step, blocks_step, LANES, depth,
                                            out + done * LANES, out_step);
    }
}
