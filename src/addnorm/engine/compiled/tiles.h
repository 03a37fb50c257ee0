/* The same products by a processor's units for whole matrices (AMX): tiles of 16 rows and 16 columns, 16 words deep.

   A row's sums are computed alike in tiles of any height, so its bits do not depend on what else is computed beside it;
   but they are other sums than those of `products.h`, so all rows of a map go this way or none. */
#pragma once

#include "products.h"

/* Rows, columns and depth of a tile, and rows that are computed together. */
#define TILE 16
#define TALL (2 * TILE)

/* Whether words of this kind are multiplied by tiles. */
#define TILES(what) (HAS_TILES && (what) != FLOATS)

#if HAS_TILES
/* Rows and bytes in a row of each of the tiles. */
struct shapes {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* For `count` rows of words, 1 to TALL: sums in tiles 0 to 3, rows in 4 and, above TILE, 5, columns in 6 and 7 and,
   up to TILE, 5. Clears all tiles. */
static inline void shape_tiles(int64_t count) {
    struct shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 4 * TILE, shapes.rows[i] = TILE;
    if (count > TILE)
        shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = count - TILE;
    else
        shapes.rows[0] = shapes.rows[1] = shapes.rows[2] = shapes.rows[3] = shapes.rows[4] = count;
    _tile_loadconfig(&shapes);
}

static inline void release_tiles(void) { _tile_release(); }

#define ADD_TILES(sum, rows, columns)                                                                                 \
    do {                                                                                                              \
        if (what == BYTES)                                                                                            \
            _tile_dpbusd(sum, rows, columns);                                                                         \
        else                                                                                                          \
            _tile_dpbf16ps(sum, rows, columns);                                                                       \
    } while (0)

/* One step in depth. The rows stay in the cache next to the processor for further columns, which go by. */
INLINE void add_tiles(const char *row, int64_t rows_step, const char *block, int64_t blocks_step, const int tall,
                      const int columns, const int what) {
    _tile_loadd(4, row, rows_step);
    _tile_stream_loadd(6, block, 4 * TILE);
    ADD_TILES(0, 4, 6);
    if (tall) {
        _tile_loadd(5, row + TILE * rows_step, rows_step);
        ADD_TILES(2, 5, 6);
    }
    if (columns > 1) {
        _tile_stream_loadd(7, block + blocks_step, 4 * TILE);
        ADD_TILES(1, 4, 7);
        if (tall) ADD_TILES(3, 5, 7);
    }
    if (!tall && columns > 2) {
        _tile_stream_loadd(5, block + 2 * blocks_step, 4 * TILE);
        ADD_TILES(2, 4, 5);
    }
    if (!tall && columns > 3) {
        _tile_stream_loadd(6, block + 3 * blocks_step, 4 * TILE);
        ADD_TILES(3, 4, 6);
    }
}

/* Each tile of sums, with its place in tiles. */
#define EACH_SUM(each)                                                                                                \
    each(0, 0, 0);                                                                                                    \
    if (columns > 1) each(1, 0, 1);                                                                                   \
    if (tall) each(2, 1, 0);                                                                                          \
    if (tall && columns > 1) each(3, 1, 1);                                                                           \
    if (!tall && columns > 2) each(2, 0, 2);                                                                          \
    if (!tall && columns > 3) each(3, 0, 3)
#define CLEAR(tile, row, column) _tile_zero(tile)
#define LOAD(tile, row, column) _tile_loadd(tile, out + (row) * TILE * out_step + (column) * TILE, 4 * out_step)
#define STORE(tile, row, column) _tile_stored(tile, out + (row) * TILE * out_step + (column) * TILE, 4 * out_step)

INLINE void tiled(const char *rows, int64_t rows_step, const char *blocks, int64_t blocks_step, int64_t depth, float *out,
                  int64_t out_step, int64_t count, int adds, const int tall, const int columns, const int what) {
    char rest[TALL * 4 * TILE];
    const int64_t whole = depth / TILE, left = depth % TILE;
    if (left) { /* the last words and zeros: the blocks are filled up with zeros, what follows a row may be no number */
        memset(rest, 0, sizeof rest);
        for (int64_t r = 0; r < count; r++) memcpy(rest + r * 4 * TILE, rows + r * rows_step + whole * 4 * TILE, 4 * left);
    }
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles read memory, nor that they write it */
    if (adds) {
        EACH_SUM(LOAD);
    } else {
        EACH_SUM(CLEAR);
    }
    for (int64_t k = 0; k < whole; k++)
        add_tiles(rows + k * 4 * TILE, rows_step, blocks + k * 4 * TILE * TILE, blocks_step, tall, columns, what);
    if (left) add_tiles(rest, 4 * TILE, blocks + whole * 4 * TILE * TILE, blocks_step, tall, columns, what);
    EACH_SUM(STORE);
    __asm__ volatile("" ::: "memory");
}

/* rows (count, depth) × blocks (columns, depth up to whole tiles, TILE) → out (count, columns·TILE), `out_step` numbers
   apart, or `adds` them to it; the other steps are bytes. The tiles are shaped for `count` rows. */
static inline void tiled_products(const char *rows, int64_t rows_step, const char *blocks, int64_t blocks_step,
                                  int64_t depth, float *out, int64_t out_step, int64_t count, int64_t columns, int adds,
                                  const int what) {
    const int64_t together = count > TILE ? 2 : 4;
    for (int64_t done = 0; done < columns; done += together, blocks += together * blocks_step, out += together * TILE) {
        const int64_t some = columns - done < together ? columns - done : together;
#define CALL(tall, columns)                                                                                           \
    tiled(rows, rows_step, blocks, blocks_step, depth, out, out_step, count, adds, tall, columns, what)
        if (count > TILE && some == 2)
            CALL(1, 2);
        else if (count > TILE)
            CALL(1, 1);
        else if (some == 4)
            CALL(0, 4);
        else if (some == 3)
            CALL(0, 3);
        else if (some == 2)
            CALL(0, 2);
        else
            CALL(0, 1);
#undef CALL
    }
}
#else
static inline void shape_tiles(int64_t count) {}
static inline void release_tiles(void) {}
static inline void tiled_products(const char *rows, int64_t rows_step, const char *blocks, int64_t blocks_step,
                                  int64_t depth, float *out, int64_t out_step, int64_t count, int64_t columns, int adds,
                                  const int what) {}
#endif
