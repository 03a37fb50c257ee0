/* softmax(Q Kᵀ·scale + bias) V of texts end to end, one text and head at a time.

   Bfloat16 numbers are multiplied in pairs where the processor does that, else as floats. Nothing that a row's result
   is made of depends on another text, so its bits do not either. */
#include <math.h>
#include <stdlib.h>

#include "kernels.h"
#define FETCHES 0
#include "products.h"

/* One head of some rows as words, `depth` of them a row. */
struct rows {
    const char *first;
    int64_t step; /* bytes */
};

static int64_t up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

/* `count` rows side by side as words; numbers of a kind that are no words become floats. */
INLINE void copy_rows(struct rows from, int64_t count, int64_t width, void *to, const int kind, const int what) {
    for (int64_t i = 0; i < count; i++) {
        const char *row = from.first + i * from.step;
        __builtin_prefetch(row + width * (kind == FLOAT ? 4 : 2)); /* the next head's */
        if (kind == BFLOAT && what == FLOATS)
            for (int64_t d = 0; d < width; d++) ((float *)to)[i * width + d] = number(row, d, kind);
        else if (kind == BFLOAT)
            memcpy((uint16_t *)to + i * width, row, 2 * width);
        else
            memcpy((float *)to + i * width, row, 4 * width);
    }
}

/* Keys, rows of words → blocks of LANES of them, (count/LANES, depth, LANES). */
INLINE void place_keys(const uint32_t *keys, int64_t count, int64_t depth, uint32_t *to) {
    for (int64_t j = 0; j < count; j += LANES, to += depth * LANES)
        for (int64_t d = 0; d < depth; d++)
            for (int64_t lane = 0; lane < LANES; lane++) to[d * LANES + lane] = keys[(j + lane) * depth + d];
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

/* One text and head; `place`: memory for all of it. */
INLINE void attend(const struct attention *task, int64_t text, int64_t head, uint32_t *place, const int kind,
                   const int what) {
    const int64_t start = task->offsets[text], length = task->offsets[text + 1] - start;
    const int64_t width = task->width, size = kind == FLOAT ? 4 : 2, keys = up(length, LANES);
    const int64_t key_head = head / (task->heads / task->key_heads), together = what == BFLOATS ? 2 : 1;
    const int64_t depth = width / together, features = up(width, LANES), window = task->window;
    uint32_t *key_blocks = place, *value_blocks = key_blocks + keys * depth;
    float *scores = (float *)(value_blocks + features * keys / together), *mixed = scores + ROWS * keys;
    uint32_t *copied = (uint32_t *)(mixed + ROWS * features);

    struct rows query = {(const char *)task->query + (start * task->query_step + head * width) * size,
                         task->query_step * size};
    struct rows key = {(const char *)task->key + (start * task->key_step + key_head * width) * size,
                       task->key_step * size};
    struct rows value = {(const char *)task->value + (start * task->value_step + key_head * width) * size,
                         task->value_step * size};
    copy_rows(key, length, width, copied, kind, what);
    memset(copied + length * depth, 0, 4 * (keys - length) * depth);
    place_keys(copied, keys, depth, key_blocks);
    place_values(value, length, keys / together, width, value_blocks, kind, what);
    copy_rows(query, length, width, copied, kind, what);

    for (int64_t i = 0; i < length; i += ROWS) {
        const int64_t count = length - i < ROWS ? length - i : ROWS;
        const int64_t low = window < 0 || i < window ? 0 : i - window;
        const int64_t high = window < 0 || i + count + window > length ? length : i + count + window;
        const int64_t first = low / LANES * LANES, last = up(high, LANES);
        float sums[ROWS];

        products(copied + i * depth, 4 * depth, key_blocks + first * depth, LANES * depth, depth,
                 scores + first, keys, count, (last - first) / LANES, what);
        for (int64_t r = 0; r < count; r++) {
            const int64_t at = i + r, own_low = window < 0 || at < window ? 0 : at - window;
            const int64_t own_high = window < 0 || at + 1 + window > length ? length : at + 1 + window;
            const float *bias = task->bias ? task->bias + head * task->bias_head + at * task->bias_step : NULL;
            sums[r] = exponentials(scores + r * keys, bias, task->scale, first, last, own_low, own_high, what);
        }
        products((uint32_t *)scores + first / together, 4 * keys, value_blocks + first / together * LANES,
                 keys / together * LANES, up(high - first, together) / together, mixed, features, count,
                 features / LANES, what);
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < width; d += LANES)
                store_some(task->mix, (start + i + r) * task->mix_step + head * width + d, width - d,
                           load(mixed + r * features + d) / sums[r], task->mix_kind);
    }
}

/* Words that `attend` writes. */
static int64_t needed(const struct attention *task) {
    int64_t longest = 0;
    for (int64_t i = 0; i < task->texts; i++) {
        const int64_t length = task->offsets[i + 1] - task->offsets[i];
        longest = length > longest ? length : longest;
    }
    const int64_t keys = up(longest, LANES), features = up(task->width, LANES);
    return 2 * keys * task->width + features * keys + ROWS * (keys + features);
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
            attend(task, text, head, place, FLOAT, FLOATS);
#if BFLOATS_IN_WORD == 2
        else if (task->width % 2 == 0)
            attend(task, text, head, place, BFLOAT, BFLOATS);
#endif
        else
            attend(task, text, head, place, BFLOAT, FLOATS);
    }
    free(place);
}

/* 1 where memory ran out. */
int addnorm_attention(struct attention *task, parallel *start, int64_t threads) {
    task->next = task->failed = 0;
    addnorm_share(start, threads, work, task);
    return task->failed;
}
