/* φ(W x + b), and its sum or product with another tensor, in one pass: what a linear map is followed by is computed while
   its result is in the cache next to the processor. */
#include "finish.h"
#include "tiles.h"

/* Rows computed with one panel of the matrix after the other: they stay in the processor's own cache. */
#define CHUNK (40 * ROWS)
/* So many of the last tiles of rows that are computed with a panel fetch the next one meanwhile. */
#define LAST 4
/* Rows that tiles compute with one set of panels after the other, and bytes of a set: it stays in the second cache. */
#define TILE_CHUNK 512
#define SET (384 << 10)
/* Words of rows that stay in the first cache while columns go by: deeper matrices are multiplied in parts, of MOST_SUMS
   panels at most, whose sums are kept meanwhile. */
#define PART (12 * TILE)
#define MOST_SUMS 8

/* Words of a matrix below each other, in depth whole tiles. */
static int64_t depth_of(const struct linear *map) {
    return TILES(map->what) ? (map->depth + TILE - 1) / TILE * TILE : map->depth;
}

/* What a thread takes next: rows from `start` to `end` and columns from `column` to `stop`. */
struct unit {
    int64_t start, end, column, stop;
    const char *blocks, *then; /* of these columns, and of those it will probably take afterwards, or NULL */
};

static int take(struct call *call, int64_t chunk, struct unit *unit) {
    const struct linear *map = call->map;
    const int64_t columns = call->panel * call->set, sets = (map->outs + columns - 1) / columns;
    const int64_t all = sets * ((call->rows + chunk - 1) / chunk), size = columns * depth_of(map) * word_size(map->what);
    const int64_t own = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED), then = own + call->threads;
    unit->start = own / sets * chunk, unit->end = unit->start + chunk < call->rows ? unit->start + chunk : call->rows;
    unit->column = own % sets * columns;
    unit->stop = unit->column + columns < map->outs ? unit->column + columns : map->outs;
    unit->blocks = map->blocks + own % sets * size;
    unit->then = then < all && then % sets != own % sets ? map->blocks + then % sets * size : NULL;
    return own < all;
}

/* The products of whole panels that fetch what is read afterwards. */
typedef void fetching_product(const void *, int64_t, const char *, int64_t, float *, const char *, int64_t);

#define FETCHING(what, count)                                                                                         \
    static __attribute__((noinline)) void fetching_##what##_##count(const void *rows, int64_t rows_step,              \
                                                                    const char *blocks, int64_t depth, float *out,    \
                                                                    const char *later, int64_t later_step) {          \
        const int64_t word = word_size(what);                                                                         \
        product_##what(rows, rows_step, blocks, LANES * word, PANEL * word, depth, out, PANEL, later, later_step,     \
                       count, COLUMNS, 1);                                                                            \
    }
#define EACH_FETCHING(what)                                                                                           \
    FETCHING(what, 1) FETCHING(what, 2) FETCHING(what, 3) FETCHING(what, 4) FETCHING(what, 5) FETCHING(what, 6)
#define FETCHING_NAMES(what)                                                                                          \
    {fetching_##what##_1, fetching_##what##_2, fetching_##what##_3,                                                   \
     fetching_##what##_4, fetching_##what##_5, fetching_##what##_6}

EACH_FETCHING(FLOATS)
EACH_FETCHING(BFLOATS)
EACH_FETCHING(BYTES)

static fetching_product *const FETCHINGS[3][ROWS] = {FETCHING_NAMES(FLOATS), FETCHING_NAMES(BFLOATS),
                                                     FETCHING_NAMES(BYTES)};

/* Panels of chunks until none is left; several threads may work on one call. */
static void work(void *given) {
    struct call *call = given;
    const struct linear *map = call->map;
    const int64_t size = size_of(map->out_kind), word = word_size(map->what);
    struct unit unit;
    float sums[ROWS * PANEL];
    while (take(call, CHUNK, &unit)) {
        /* As few tiles as there can be, of rows as even as they can be. */
        const int64_t tiles = (unit.end - unit.start + ROWS - 1) / ROWS;
        const int64_t most = (unit.end - unit.start + tiles - 1) / tiles;
        /* A few rows take less time than the next panel from memory. */
        const int64_t last = tiles < LAST ? tiles : LAST, step = PANEL * word / last / LINES;
        for (int64_t i = unit.start; i < unit.end; i += most) {
            const int64_t count = unit.end - i < most ? unit.end - i : most;
            const int fetches = unit.then && unit.end - i <= last * most;
            /* What is written afterwards is fetched meanwhile. */
            for (int64_t r = 0; r < count; r++)
                for (int64_t line = 0; line < PANEL * size; line += LINE)
                    __builtin_prefetch((char *)call->out + ((i + r) * map->outs + unit.column) * size + line, 1);
            const void *x = (const char *)call->x + i * call->x_step;
            if (fetches) {
                FETCHINGS[map->what][count - 1](x, call->x_step, unit.blocks, map->depth, sums, unit.then, step);
                unit.then += LINES * step * map->depth;
            } else
                PRODUCTS[map->what][count - 1][COLUMNS - 1](x, call->x_step, unit.blocks, LANES * word, PANEL * word,
                                                            map->depth, sums, PANEL);
            FINISHED[map->activation][map->out_kind](call, sums, i, unit.column, count);
        }
    }
}

#if HAS_TILES
/* The same by tiles. */
static void work_by_tiles(void *given) {
    struct call *call = given;
    const struct linear *map = call->map;
    const int64_t columns = call->panel, blocks = columns / TILE, block = 4 * TILE * depth_of(map);
    int64_t shaped = 0;
    struct unit unit;
    float sums[MOST_SUMS][TALL * TALL];
    while (take(call, TILE_CHUNK, &unit))
        for (int64_t row = unit.start; row < unit.end; row += TALL) {
            const int64_t count = unit.end - row < TALL ? unit.end - row : TALL;
            if (count != shaped) shape_tiles(shaped = count);
            for (int64_t done = 0, some; done < map->depth; done += some) {
                const char *x = (const char *)call->x + row * call->x_step + 4 * done;
                some = map->depth - done < PART ? map->depth - done : PART;
                for (int64_t column = unit.column, i = 0; column < unit.stop; column += columns, i++) {
                    float *own = sums[map->depth > PART ? i : 0];
                    tiled_products(x, call->x_step, unit.blocks + i * blocks * block + 4 * TILE * done, block, some, own,
                                   columns, count, blocks, done > 0, map->what);
                    if (done + some == map->depth)
                        FINISHED[map->activation][map->out_kind](call, own, row, column, count);
                }
            }
        }
    if (shaped) release_tiles();
}

/* Panels that a thread takes together: several, so that rows are not read anew for each, but enough for all threads. */
static int64_t set_of(const struct call *call) {
    const int64_t fits = SET / (4 * call->panel * depth_of(call->map));
    const int64_t fair = call->threads > 1 ? call->map->outs / (2 * call->threads * call->panel) : fits;
    const int64_t set = fair < fits ? fair : fits, most = call->map->depth > PART ? MOST_SUMS : set;
    return set < 1 || call->rows <= TALL ? 1 : set < most ? set : most;
}
#endif

/* out ← φ(W x + b), `how` with the other; rows of x are `x_step` bytes apart, of the other `other_step` numbers. */
void addnorm_linear(const struct linear *map, const void *x, int64_t x_step, int64_t rows, void *out, const void *other,
                    int64_t other_step, int64_t other_kind, int64_t how, parallel *start, int64_t threads) {
    struct call call = {map, x, x_step, rows, out, other, other_step, other_kind, how, threads, PANEL, 1, 0};
#if HAS_TILES
    if (TILES(map->what)) {
        if (rows > TILE) call.panel = TALL; /* so many columns' sums fit in the tiles */
        call.set = set_of(&call);
        addnorm_share(start, threads, work_by_tiles, &call);
        return;
    }
#endif
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
