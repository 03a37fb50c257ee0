/* softmax(Q Kᵀ·scale + bias) V of texts end to end, one text and head at a time.

   Bfloat16 numbers are multiplied in pairs where the processor does that, else as floats. Nothing that a row's result
   is made of depends on another text, so its bits do not either. */
#include <math.h>
#include <stdlib.h>

#include "kernels.h"
#include "tiles.h"

/* One head of some rows as words, `depth` of them a row. */
struct rows {
    const char *first;
    int64_t step; /* bytes */
};

static int64_t up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

/* `count` rows side by side as words, `depth` of them each, filled up with zeros; numbers of a kind that are no words
   become floats. */
INLINE void copy_rows(struct rows from, int64_t count, int64_t width, uint32_t *to, int64_t depth, const int kind,
                      const int what) {
    for (int64_t i = 0; i < count; i++, to += depth) {
        const char *row = from.first + i * from.step;
        const int64_t size = kind == FLOAT ? 4 : 2;
        __builtin_prefetch(row + width * size); /* the next head's */
        if (kind == BFLOAT && what == FLOATS) {
            for (int64_t d = 0; d < width; d++) ((float *)to)[d] = number(row, d, kind);
            continue;
        }
        if (width * size % sizeof(floats) == 0) /* also `depth` then */
            for (int64_t d = 0; d < width * size; d += sizeof(floats)) store((char *)to + d, load(row + d));
        else {
            memcpy(to, row, width * size);
            memset((char *)to + width * size, 0, 4 * depth - width * size);
        }
    }
}

/* Keys, rows of words → blocks of LANES of them, (count/LANES, depth, LANES). */
INLINE void place_keys(const uint32_t *keys, int64_t count, int64_t depth, uint32_t *to) {
    for (int64_t j = 0; j < count; j += LANES, keys += LANES * depth)
        for (int64_t d = 0; d < depth; to += LANES) {
#if LANES == 16
            if (d % LANES == 0 && d + LANES <= depth) {
                turn(keys + d, depth, to);
                d += LANES, to += LANES * (LANES - 1);
                continue;
            }
#endif
            for (int64_t lane = 0; lane < LANES; lane++) to[lane] = keys[lane * depth + d];
            d++;
        }
}

/* Values, `count` rows → blocks of LANES features, (⌈width/LANES⌉, total words, LANES), the end filled with 0. */
INLINE void place_values(struct rows values, int64_t count, int64_t total, int64_t width, uint32_t *to, const int kind,
                         const int what) {
    const int64_t together = what == BFLOATS ? 2 : 1;
    for (int64_t d = 0; d < width; d += LANES, to += total * LANES)
        for (int64_t j = 0; j < total; j++) {
            const char *row = values.first + j * together * values.step;
            const int64_t left = count - j * together;
            __builtin_prefetch(row + width * (kind == FLOAT ? 4 : 2)); /* the next head's */
            floats x = left > 0 ? load_some(row, d, width - d, kind) : (floats){};
            if (what == BFLOATS) {
                floats y = left > 1 ? load_some(row + values.step, d, width - d, kind) : (floats){};
                x = (floats)(((words)x >> 16) | ((words)y & 0xffff0000u));
            }
            store(to + j * LANES, x);
        }
}

/* Products of one query with the keys from `first` to `last`, of which it sees those from `low` to `high`
   → exp(score - largest), 0 for the others; their sum. */
INLINE float exponentials(float *scores, const float *bias, float scale, int64_t first, int64_t last, int64_t low,
                          int64_t high, const int what) {
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
        floats weights = power_of_two(load(scores + j) * factor - largest, what == BFLOATS);
        total = total + weights;
        store_as(scores, j, weights, what == BFLOATS ? BFLOAT : FLOAT); /* over scores that are read already */
    }
    return sum_of(total);
}

/* Rows of queries computed together, and numbers to which keys are filled up: whole tiles of words. */
INLINE int64_t rows_together(const int what) { return TILES(what) ? TALL : ROWS; }
INLINE int64_t keys_together(const int what) { return TILES(what) ? 2 * TILE : LANES; }

/* How much memory one text and head take, in words. */
struct sizes {
    int64_t keys, depth, features; /* filled up */
    int64_t scores;                /* from one row to the next: rows do not begin in the same lines of a cache */
    int64_t all;
};

INLINE struct sizes sizes_of(int64_t length, int64_t width, const int what) {
    const int64_t words = what == BFLOATS ? width / 2 : width, rows = rows_together(what);
    struct sizes sizes = {.keys = up(length, keys_together(what)), .depth = TILES(what) ? up(words, TILE) : words};
    sizes.features = up(width, LANES), sizes.scores = sizes.keys + (TILES(what) ? LANES : 0);
    sizes.all = sizes.keys * (2 * sizes.depth + sizes.features) + rows * (sizes.scores + sizes.features);
    return sizes;
}

/* Rows of queries or weights times blocks of columns; tiles are shaped for `count` already. */
INLINE void multiply(const uint32_t *rows, int64_t rows_step, const uint32_t *blocks, int64_t blocks_step, int64_t depth,
                     float *out, int64_t out_step, int64_t count, int64_t columns, const int what) {
    if (TILES(what))
        tiled_products((const char *)rows, 4 * rows_step, (const char *)blocks, 4 * blocks_step, depth, out, out_step,
                       count, columns, 0, what);
    else
        products(rows, 4 * rows_step, blocks, blocks_step, depth, out, out_step, count, columns, what);
}

/* One text and head; `place`: memory for all of it; `shaped`: rows for which tiles are shaped. */
INLINE void attend(const struct attention *task, int64_t text, int64_t head, uint32_t *place, int64_t *shaped,
                   const int kind, const int what) {
    const int64_t start = task->offsets[text], length = task->offsets[text + 1] - start;
    const int64_t width = task->width, size = kind == FLOAT ? 4 : 2, together = what == BFLOATS ? 2 : 1;
    const int64_t key_head = head / (task->heads / task->key_heads), window = task->window, most = rows_together(what);
    const struct sizes sizes = sizes_of(length, width, what);
    const int64_t keys = sizes.keys, depth = sizes.depth, features = sizes.features, step = sizes.scores;
    uint32_t *key_blocks = place, *value_blocks = key_blocks + keys * depth;
    float *scores = (float *)(value_blocks + features * keys / together), *mixed = scores + most * step;
    uint32_t *copied = (uint32_t *)(mixed + most * features);

    struct rows query = {(const char *)task->query + (start * task->query_step + head * width) * size,
                         task->query_step * size};
    struct rows key = {(const char *)task->key + (start * task->key_step + key_head * width) * size,
                       task->key_step * size};
    struct rows value = {(const char *)task->value + (start * task->value_step + key_head * width) * size,
                         task->value_step * size};
    copy_rows(key, length, width, copied, depth, kind, what);
    memset(copied + length * depth, 0, 4 * (keys - length) * depth);
    place_keys(copied, keys, depth, key_blocks);
    place_values(value, length, keys / together, width, value_blocks, kind, what);
    copy_rows(query, length, width, copied, depth, kind, what);

    for (int64_t i = 0; i < length; i += most) {
        const int64_t count = length - i < most ? length - i : most;
        const int64_t low = window < 0 || i < window ? 0 : i - window;
        const int64_t high = window < 0 || i + count + window > length ? length : i + count + window;
        const int64_t first = low / keys_together(what) * keys_together(what), last = up(high, keys_together(what));
        float sums[TALL];

        if (TILES(what) && count != *shaped) shape_tiles(*shaped = count);
        multiply(copied + i * depth, depth, key_blocks + first * depth, LANES * depth, depth, scores + first, step,
                 count, (last - first) / LANES, what);
        for (int64_t r = 0; r < count; r++) {
            const int64_t at = i + r, own_low = window < 0 || at < window ? 0 : at - window;
            const int64_t own_high = window < 0 || at + 1 + window > length ? length : at + 1 + window;
            const float *bias = task->bias ? task->bias + head * task->bias_head + at * task->bias_step : NULL;
            sums[r] = exponentials(scores + r * step, bias, task->scale, first, last, own_low, own_high, what);
        }
        multiply((uint32_t *)scores + first / together, step, value_blocks + first / together * LANES,
                 keys / together * LANES, TILES(what) ? (last - first) / together : up(high - first, together) / together,
                 mixed, features, count, features / LANES, what);
        for (int64_t r = 0; r < count; r++) {
            const float share = 1 / sums[r];
            for (int64_t d = 0; d < width; d += LANES)
                store_some(task->mix, (start + i + r) * task->mix_step + head * width + d, width - d,
                           load(mixed + r * features + d) * share, task->mix_kind);
        }
    }
}

/* Bytes that `attend` writes. */
static int64_t needed(const struct attention *task, const int what) {
    int64_t longest = 0;
    for (int64_t i = 0; i < task->texts; i++) {
        const int64_t length = task->offsets[i + 1] - task->offsets[i];
        longest = length > longest ? length : longest;
    }
    return 4 * sizes_of(longest, task->width, what).all;
}

/* Texts and heads until none is left; several threads may work on one task. */
static void work(void *given) {
    struct attention *task = given;
    const int what = BFLOATS_IN_WORD == 2 && task->kind == BFLOAT && task->width % 2 == 0 ? BFLOATS : FLOATS;
    uint32_t *place = aligned_alloc(LINE, up(needed(task, what), LINE));
    int64_t shaped = 0;
    if (!place) task->failed = 1;
    while (place) {
        const int64_t unit = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED);
        if (unit >= task->texts * task->heads) break;
        const int64_t text = unit / task->heads, head = unit % task->heads;
        if (task->kind == FLOAT)
            attend(task, text, head, place, &shaped, FLOAT, FLOATS);
#if BFLOATS_IN_WORD == 2
        else if (what == BFLOATS)
            attend(task, text, head, place, &shaped, BFLOAT, BFLOATS);
#endif
        else
            attend(task, text, head, place, &shaped, BFLOAT, FLOATS);
    }
    if (shaped) release_tiles();
    free(place);
}

/* 1 where memory ran out. */
int addnorm_attention(struct attention *task, parallel *start, int64_t threads) {
    task->next = task->failed = 0;
    addnorm_share(start, threads, work, task);
    return task->failed;
}
