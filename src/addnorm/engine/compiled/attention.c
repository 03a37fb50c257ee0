/* softmax(Q Kᵀ·scale + bias) V of texts end to end, one text and head at a time.

   Both products are one function: rows of words times blocks of LANES columns. A word is a float or, where the
   processor multiplies pairs of bfloat16 numbers, such a pair. Nothing a row's result is made of depends on another
   text, so its bits do not either. */
#include <math.h>
#include <stdlib.h>

#include "vectors.h"

/* Queries computed together and blocks of columns beside each other: their sums fit in the registers. */
#define ROWS 4
#if LANES == 8 /* and 16 registers, not 32 */
#define COLUMNS 2
#else
#define COLUMNS 4
#endif

struct attention {
    const void *query, *key, *value;              /* the first row of each */
    void *mix;
    int64_t query_step, key_step, value_step, mix_step; /* numbers from one row to the next */
    const int64_t *offsets;                       /* of the texts, `texts` + 1 */
    int64_t texts, heads, key_heads, width;
    int64_t kind, mix_kind;
    int64_t window;                                  /* how far a query sees; -1: everywhere */
    const float *bias;                            /* (heads or 1, longest, longest), or NULL */
    int64_t bias_head, bias_step;                    /* from one head, one query to the next */
    float scale;
    int64_t next;                                 /* the next text and head to compute */
    int64_t failed;                               /* whether memory ran out */
};

static int64_t up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

INLINE floats multiply_add(floats sum, uint32_t word, floats block, const int pairs) {
    (void)pairs;
#if HAS_PAIRS
    if (pairs)
        return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)block);
#endif
    float x;
    memcpy(&x, &word, sizeof x);
    return sum + x * block;
}

/* rows (ROWS, depth) × blocks (columns, depth, LANES) → out (ROWS, columns·LANES). */
INLINE void product(const uint32_t *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step, int64_t depth,
                    float *out, int64_t out_step, const int columns, const int pairs) {
    floats sums[ROWS][COLUMNS];
    const uint32_t *row[ROWS], *column[COLUMNS];
    for (int r = 0; r < ROWS; r++) row[r] = rows + r * rows_step;
    for (int c = 0; c < columns; c++) column[c] = blocks + c * blocks_step;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = (floats){};
    for (int64_t k = 0; k < depth; k++) {
        floats block[COLUMNS];
        for (int c = 0; c < columns; c++) block[c] = load(column[c] + k * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < columns; c++)
                sums[r][c] = multiply_add(sums[r][c], row[r][k], block[c], pairs);
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c++) store(out + r * out_step + c * LANES, sums[r][c]);
}

/* One function for each size, so that the compiler keeps all of it in registers. */
typedef void sized_product(const uint32_t *, int64_t, const uint32_t *, int64_t, int64_t, float *, int64_t);
#define SIZED(columns, pairs)                                                                                        \
    static __attribute__((noinline)) void product_##columns##_##pairs(                                               \
        const uint32_t *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step, int64_t depth, float *out,      \
        int64_t out_step) {                                                                                             \
        product(rows, rows_step, blocks, blocks_step, depth, out, out_step, columns, pairs);                         \
    }
SIZED(1, 0)
SIZED(2, 0)
SIZED(1, 1)
SIZED(2, 1)
#if COLUMNS == 4
SIZED(3, 0)
SIZED(4, 0)
SIZED(3, 1)
SIZED(4, 1)
#endif

static sized_product *const PRODUCTS[2][COLUMNS] = {
#if COLUMNS == 4
    {product_1_0, product_2_0, product_3_0, product_4_0},
    {product_1_1, product_2_1, product_3_1, product_4_1},
#else
    {product_1_0, product_2_0},
    {product_1_1, product_2_1},
#endif
};

/* The same for any number of columns. */
static void products(const uint32_t *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step, int64_t depth,
                     float *out, int64_t out_step, int64_t columns, int pairs) {
    for (int64_t done = 0; done < columns; done += COLUMNS) {
        const int64_t some = columns - done < COLUMNS ? columns - done : COLUMNS;
        PRODUCTS[pairs][some - 1](rows, rows_step, blocks + done * blocks_step, blocks_step, depth,
                                  out + done * LANES, out_step);
    }
}

/* Rows (count, width) as words (count, depth), rows beyond `count` 0 up to `total`. */
INLINE void copy_rows(const void *from, int64_t step, int64_t count, int64_t total, int64_t width, uint32_t *to, int64_t depth,
                      const int kind, const int pairs) {
    for (int64_t i = 0; i < total; i++, to += depth) {
        __builtin_prefetch((const char *)from + (i * step + width) * (kind == FLOAT ? 4 : 2)); /* the next head's */
        if (i >= count)
            memset(to, 0, 4 * depth);
        else if (kind == FLOAT || pairs)
            memcpy(to, (const char *)from + i * step * (kind == FLOAT ? 4 : 2), 4 * depth);
        else
            for (int64_t d = 0; d < width; d++) {
                float x = wide(((const uint16_t *)from)[i * step + d]);
                memcpy(to + d, &x, sizeof x);
            }
    }
}

/* Keys: words (count, depth) → blocks of LANES of them, (count/LANES, depth, LANES). */
INLINE void place_keys(const uint32_t *from, int64_t count, int64_t depth, uint32_t *to) {
    for (int64_t j = 0; j < count; j += LANES, to += depth * LANES)
        for (int64_t d = 0; d < depth; d++)
            for (int64_t lane = 0; lane < LANES; lane++) to[d * LANES + lane] = from[(j + lane) * depth + d];
}

/* Values: (count, width) → blocks of LANES features, (width/LANES, depth, LANES), a text's end filled with 0. */
INLINE void place_values(const void *from, int64_t step, int64_t count, int64_t total, int64_t width, uint32_t *to, int64_t depth,
                         const int kind, const int pairs) {
    const char *row = from;
    const int64_t row_bytes = step * (kind == FLOAT ? 4 : 2);
    for (int64_t d = 0; d < width; d += LANES, to += depth * LANES)
        for (int64_t j = 0; j < total; j += pairs ? 2 : 1) {
            __builtin_prefetch(row + j * row_bytes + width * (kind == FLOAT ? 4 : 2));
            uint32_t *block = to + (pairs ? j / 2 : j) * LANES;
            floats x = j < count ? load_some(row + j * row_bytes, d, width - d, kind) : (floats){};
            if (pairs) {
                floats y = j + 1 < count ? load_some(row + (j + 1) * row_bytes, d, width - d, kind) : (floats){};
                x = (floats)(((words)x >> 16) | ((words)y & 0xffff0000u));
            }
            store(block, x);
        }
}

/* Products of one query with the keys from `first` to `last`, of which it sees those from `low` to `high`
   → exp(score - largest), 0 for the others; their sum. */
INLINE float exponentials(float *scores, const float *bias, float scale, int64_t first, int64_t last, int64_t low, int64_t high,
                          const int pairs) {
    ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    floats most = all(-INFINITY);
    for (int64_t j = first; j < last; j += LANES) {
        floats s = load(scores + j);
        const int partly = j < low || j + LANES > high;
        if (bias) s = s * scale + load_some(bias + j, 0, high - j, FLOAT);
        if (partly) {
            ints place = lane + (int32_t)j;
            s = where((place >= (int32_t)low) & (place < (int32_t)high), s, all(-INFINITY));
        }
        if (bias || partly) store(scores + j, s);
        most = larger(s, most);
    }
    /* exp(x) is 2^(x·log2 e). */
    const float factor = 1.44269504f * (bias ? 1 : scale), largest = largest_of(most) * factor;
    floats total = {};
    for (int64_t j = first; j < last; j += LANES) {
        floats weights = power_of_two(load(scores + j) * factor - largest, pairs);
        total = total + weights;
        store_as(scores, j, weights, pairs ? BFLOAT : FLOAT); /* over scores that are read already */
    }
    return sum_of(total);
}

/* One text and head; `place`: memory for all of it. */
INLINE void attend(const struct attention *task, int64_t text, int64_t head, uint32_t *place, const int kind,
                   const int pairs) {
    const int64_t start = task->offsets[text], length = task->offsets[text + 1] - start;
    const int64_t width = task->width, size = kind == FLOAT ? 4 : 2, keys = up(length, LANES);
    const int64_t key_head = head / (task->heads / task->key_heads), step = pairs ? 2 : 1;
    const int64_t depth = width / step, features = up(width, LANES);
    uint32_t *key_blocks = place, *value_blocks = key_blocks + keys * depth;
    uint32_t *queries = value_blocks + features * keys / step, *rows = queries + ROWS * depth;
    float *scores = (float *)rows, *mixed = scores + ROWS * keys;
    uint32_t *plain_keys = (uint32_t *)(mixed + ROWS * features);

    const char *key = (const char *)task->key + (start * task->key_step + key_head * width) * size;
    const char *value = (const char *)task->value + (start * task->value_step + key_head * width) * size;
    const char *query = (const char *)task->query + (start * task->query_step + head * width) * size;
    copy_rows(key, task->key_step, length, keys, width, plain_keys, depth, kind, pairs);
    place_keys(plain_keys, keys, depth, key_blocks);
    place_values(value, task->value_step, length, keys, width, value_blocks, keys / step, kind, pairs);

    for (int64_t i = 0; i < length; i += ROWS) {
        const int64_t count = length - i < ROWS ? length - i : ROWS;
        const int64_t window = task->window;
        const int64_t low = window < 0 || i < window ? 0 : i - window;
        const int64_t high = window < 0 || i + count + window > length ? length : i + count + window;
        const int64_t first = low / LANES * LANES, last = up(high, LANES);
        float sums[ROWS];

        copy_rows(query + i * task->query_step * size, task->query_step, count, ROWS, width, queries, depth, kind,
                  pairs);
        products(queries, depth, key_blocks + first * depth, LANES * depth, depth, scores + first, keys,
                 (last - first) / LANES, pairs);
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t at = i + (r < count ? r : 0); /* rows beyond the text are not used */
            const int64_t own_low = window < 0 || at < window ? 0 : at - window;
            const int64_t own_high = window < 0 || at + 1 + window > length ? length : at + 1 + window;
            const float *bias = task->bias ? task->bias + head * task->bias_head + at * task->bias_step : NULL;
            sums[r] = exponentials(scores + r * keys, bias, task->scale, first, last, own_low, own_high, pairs);
        }
        products(rows + first / step, keys, value_blocks + first / step * LANES, keys / step * LANES,
                 up(high - first, step) / step, mixed, features, features / LANES, pairs);
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < width; d += LANES) {
                floats x = load(mixed + r * features + d) / sums[r];
                store_some(task->mix, (start + i + r) * task->mix_step + head * width + d, width - d, x,
                           task->mix_kind);
            }
    }
}

static int64_t needed(const struct attention *task) {
    int64_t longest = 0;
    for (int64_t i = 0; i < task->texts; i++) {
        const int64_t length = task->offsets[i + 1] - task->offsets[i];
        longest = length > longest ? length : longest;
    }
    const int64_t keys = up(longest, LANES), features = up(task->width, LANES);
    return 2 * keys * task->width + features * keys + ROWS * (task->width + keys + features);
}

/* Texts and heads until none is left; several threads may work on one task. */
static void work(void *given) {
    struct attention *task = given;
    uint32_t *place = malloc(4 * needed(task));
    if (!place) task->failed = 1;
    while (place) {
        const int64_t unit = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED);
        if (unit >= task->texts * task->heads) break;
        const int64_t text = unit / task->heads, head = unit % task->heads;
        if (task->kind == FLOAT)
            attend(task, text, head, place, FLOAT, 0);
        else if (HAS_PAIRS && task->width % 2 == 0)
            attend(task, text, head, place, BFLOAT, 1);
        else
            attend(task, text, head, place, BFLOAT, 0);
    }
    free(place);
}

typedef void parallel(void (*run)(void *), void *given, unsigned threads, unsigned flags);

/* 1 where memory ran out. `start`: OpenMP's function that runs another on several threads, or NULL for this one only. */
int addnorm_attention(struct attention *task, parallel *start, unsigned threads) {
    task->next = task->failed = 0;
    if (start && threads > 1)
        start(work, task, threads, 0);
    else
        work(task);
    return task->failed;
}
