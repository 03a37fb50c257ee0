/* φ(W x + b), and its sum or product with another tensor, in one pass: what a linear map is followed by is computed while
   its result is in the cache next to the processor. */
#include "kernels.h"
#define FETCHES 1
#include "tiles.h"

/* Rows computed with one panel of the matrix after the other: they stay in the processor's own cache. */
#define CHUNK (TILES(BYTES) ? 8 * TALL : 40 * ROWS)
/* Columns of a panel. */
#define PANEL (COLUMNS * LANES)
/* So many of the last tiles of rows that are computed with a panel fetch the next one meanwhile. */
#define LAST 4

enum { NOTHING = 0, RELU, GELU, GELU_TANH, SILU, TANH };
enum { ALONE = 0, ADD, MULTIPLY };

/* A call of it. */
struct call {
    const struct linear *map;
    const void *x;
    int64_t x_step, rows; /* bytes from one row to the next */
    void *out;            /* rows without gaps */
    const void *other;
    int64_t other_step, other_kind, how; /* numbers from one row to the next */
    int64_t threads;
    int64_t blocks; /* of LANES columns, computed together for some rows after the other */
    int64_t next;   /* the next of those of the next chunk to compute */
};

/* x·Φ(x), the error as small as the result's kind has it: 1e-6, 9e-5 for bfloat16, 1.2e-3 for bytes. Φ(x) - 1/2 is x times a
   rational function or polynomial of x², fitted for the least largest error of x·Φ(x), and constant from some x on. */
INLINE floats gelu(floats x, const int kind) {
    const float end = kind == FLOAT ? 5.4f : kind == BFLOAT ? 4.2f : 3.4f;
    floats y = smaller(all(end), larger(all(-end), x)), z = y * y, half;
    if (kind == FLOAT) {
        half = ((((2.27769892e-8f * z + 6.49040021e-6f) * z + 1.76265996e-4f) * z + 4.72239824e-3f) * z +
                0.0344920456f) * z + 0.398942053f;
        half = half / (((((1.2086648e-6f * z + 7.65102814e-5f) * z + 1.92548998e-3f) * z + 0.029027883f) * z +
                        0.253123015f) * z + 1.0f);
    } else if (kind == BFLOAT)
        half = ((((((-9.0175345e-10f * z + 7.9413411e-8f) * z - 3.03793195e-6f) * z + 6.68907014e-5f) * z -
                  9.5065753e-4f) * z + 9.29822959e-3f) * z - 0.0655281991f) * z + 0.398465872f;
    else
        half = (((1.09639586e-5f * z - 4.27292689e-4f) * z + 6.8395664e-3f) * z - 0.0603555627f) * z + 0.395063221f;
    return (floats)((ints)(x * (half * y + 0.5f)) & ~(x < -end)); /* 0 far out, however large x is */
}

/* 1/(1 + exp(-x)) */
INLINE floats sigmoid(floats x) {
    const floats e = power_of_two(all(-1.44269504f) * larger(x, -x), 0); /* of -|x|, so it cannot overflow */
    return where(x < 0, e, all(1.0f)) / (1 + e);
}

INLINE floats activated(floats x, const int activation, const int kind) {
    switch (activation) {
    case RELU:
        return larger(all(0.0f), x);
    case GELU:
        return gelu(x, kind);
    case GELU_TANH:
        return x * sigmoid(x * (1.59576912f + 0.0713548163f * (x * x)));
    case SILU:
        return x * sigmoid(x);
    case TANH:
        return 2 * sigmoid(2 * x) - 1;
    default:
        return x;
    }
}

/* Sums of `count` rows and one panel → results. */
INLINE void finish(const struct call *call, const float *sums, int64_t row, int64_t column, int64_t count,
                   const int activation, const int kind) {
    const struct linear map = *call->map;
    const int64_t how = call->how, other_step = call->other_step, other_kind = call->other_kind;
    const void *other = call->other;
    void *out = call->out;
    for (int64_t c = 0; c < call->blocks * LANES && column + c < map.outs; c += LANES) {
        const int64_t at = column + c, some = map.outs - at;
        const floats bias = map.bias ? load(map.bias + at) : (floats){};
        const floats steps = map.what == BYTES ? load(map.steps + at) : (floats){};
        const floats totals = map.totals ? load(map.totals + at) : (floats){};
        for (int64_t r = 0; r < count; r++) {
            floats y = load(sums + r * call->blocks * LANES + c);
            if (map.what == BYTES) y = __builtin_convertvector((ints)y, floats) * steps;
            if (map.totals) { /* its step and zero stand after a row's words */
                float measured[2];
                memcpy(measured, (const char *)call->x + (row + r) * call->x_step + 4 * map.depth, sizeof measured);
                y = (y - totals * measured[1]) * measured[0];
            }
            y = activated(y + bias, activation, kind);
            if (how != ALONE) {
                const floats with = load_some(other, (row + r) * other_step + at, some, other_kind);
                y = how == ADD ? y + with : y * with;
            }
            if (kind == BYTE)
                store_bytes((uint8_t *)out + (row + r) * map.outs + at, some, y * map.scale, map.zero);
            else
                store_some(out, (row + r) * map.outs + at, some, y, kind);
        }
    }
}

/* One function for each activation and kind of result. */
typedef void finished(const struct call *, const float *, int64_t, int64_t, int64_t);
#define FINISH(activation, kind)                                                                                      \
    static void finish_##activation##_##kind(const struct call *call, const float *sums, int64_t row, int64_t column, \
                                             int64_t count) {                                                         \
        finish(call, sums, row, column, count, activation, kind);                                                     \
    }
#define FINISHES(activation) FINISH(activation, FLOAT) FINISH(activation, BFLOAT) FINISH(activation, BYTE)
#define NAMES(activation) {finish_##activation##_FLOAT, finish_##activation##_BFLOAT, finish_##activation##_BYTE}
FINISHES(NOTHING)
FINISHES(RELU)
FINISHES(GELU)
FINISHES(GELU_TANH)
FINISHES(SILU)
FINISHES(TANH)
static finished *const FINISHED[6][3] = {NAMES(NOTHING), NAMES(RELU), NAMES(GELU), NAMES(GELU_TANH), NAMES(SILU),
                                         NAMES(TANH)};

/* Words of a matrix below each other, in depth whole tiles. */
static int64_t depth_of(const struct linear *map) {
    return TILES(map->what) ? (map->depth + TILE - 1) / TILE * TILE : map->depth;
}

/* Chunks and panels until none is left; several threads may work on one call. */
static void work(void *given) {
    struct call *call = given;
    const struct linear *map = call->map;
    const int64_t columns = call->blocks * LANES, panels = (map->outs + columns - 1) / columns;
    const int64_t chunks = (call->rows + CHUNK - 1) / CHUNK, size = size_of(map->out_kind), word = word_size(map->what);
    const int64_t block = LANES * depth_of(map) * word, panel = call->blocks * block;
    const int64_t together = TILES(map->what) ? TALL : ROWS;
    int64_t shaped = 0;
    float sums[(TILES(BYTES) ? TALL : ROWS) * PANEL];
    for (;;) {
        const int64_t unit = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED);
        if (unit >= panels * chunks) break;
        /* What this thread will probably compute afterwards; a few rows take less time than a panel from memory. */
        const int64_t then = unit + call->threads < panels * chunks ? unit + call->threads : unit;
        const char *later = map->blocks + then % panels * panel, *blocks = map->blocks + unit % panels * panel;
        const int64_t column = unit % panels * columns, start = unit / panels * CHUNK;
        const int64_t end = start + CHUNK < call->rows ? start + CHUNK : call->rows;
        /* As few tiles as there can be, of rows as even as they can be. */
        const int64_t tiles = (end - start + together - 1) / together;
        const int64_t most = TILES(map->what) ? together : (end - start + tiles - 1) / tiles;
        const int64_t last = tiles < LAST ? tiles : LAST;
        for (int64_t i = start; i < end; i += most) {
            const int64_t count = end - i < most ? end - i : most;
            const int fetches = end - i <= last * most;
            const char *x = (const char *)call->x + i * call->x_step;
            if (TILES(map->what)) {
                const int64_t lines = call->rows <= TALL ? TILE * call->blocks / last : 0;
                if (count != shaped) shape_tiles(shaped = count);
                tiled_products(x, call->x_step, blocks, block, map->depth, sums, columns, count, call->blocks, later,
                               lines, map->what);
                later += lines * (map->depth / TILE) * 64;
            } else {
                const int64_t step = fetches ? PANEL * word / last / LINES : 0;
                /* What is written afterwards is fetched meanwhile. */
                for (int64_t r = 0; r < count; r++)
                    for (int64_t line = 0; line < columns * size; line += 64)
                        __builtin_prefetch((char *)call->out + ((i + r) * map->outs + column) * size + line, 1);
                PRODUCTS[map->what][count - 1][COLUMNS - 1](x, call->x_step, blocks, LANES * word, PANEL * word,
                                                            map->depth, sums, PANEL,
                                                            fetches ? later : (const char *)sums, step);
                later += LINES * step * map->depth;
            }
            FINISHED[map->activation][map->out_kind](call, sums, i, column, count);
        }
    }
    if (shaped) release_tiles();
}

/* out ← φ(W x + b), `how` with the other; rows of x are `x_step` bytes apart, of the other `other_step` numbers. */
void addnorm_linear(const struct linear *map, const void *x, int64_t x_step, int64_t rows, void *out, const void *other,
                    int64_t other_step, int64_t other_kind, int64_t how, parallel *start, int64_t threads) {
    struct call call = {map, x, x_step, rows, out, other, other_step, other_kind, how, threads,
                        TILES(map->what) && rows > TILE ? 2 : COLUMNS, 0};
    addnorm_share(start, threads, work, &call);
}

/* Bytes that W takes as blocks. */
int64_t addnorm_room(const struct linear *map) {
    return (map->outs + PANEL - 1) / PANEL * PANEL * depth_of(map) * word_size(map->what);
}

/* W as `outs` rows of `depth` words → blocks, the end filled with 0. */
void addnorm_place(const struct linear *map, const char *from, char *blocks) {
    const int64_t word = word_size(map->what), width = TILES(map->what) ? TILE : PANEL;
    const int64_t depth = depth_of(map), panels = (map->outs + PANEL - 1) / PANEL;
    for (int64_t o = 0; o < panels * PANEL; o++)
        for (int64_t k = 0; k < depth; k++) {
            char *to = blocks + ((o / width * depth + k) * width + o % width) * word;
            if (o < map->outs && k < map->depth)
                memcpy(to, from + (o * map->depth + k) * word, word);
            else
                memset(to, 0, word);
        }
}

/* Columns of a panel, how many bfloat16 numbers a word has, and whether products of bytes are added in pairs. */
int64_t addnorm_panel(void) { return PANEL; }
int64_t addnorm_bfloats_in_word(void) { return BFLOATS_IN_WORD; }
int64_t addnorm_in_pairs(void) { return IN_PAIRS; }
