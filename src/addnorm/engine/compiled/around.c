/* What an engine does before the blocks and after them: embeddings, and one vector of each text. */
#include <math.h>

#include "kernels.h"
#include "vectors.h"

/* A table of embeddings, (count, width), and which of its rows each token takes. */
struct table {
    const float *first;
    int64_t count;
    const int64_t *places;
};

/* scale·(a token's row of the first table) + its row of each other one, then the norm, if any: → (rows, width).
   1, and nothing done, where a table has not all of the rows. */
int addnorm_embed(const struct table *tables, int64_t count, float scale, const struct norm *norm, int64_t rows,
                  int64_t width, float *to) {
    for (int64_t t = 0; t < count; t++)
        for (int64_t i = 0; i < rows; i++)
            if (tables[t].places[i] < 0 || tables[t].places[i] >= tables[t].count) return 1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < width; d += LANES) {
            floats x = load_some(tables->first + tables->places[i] * width, d, width - d, FLOAT) * scale;
            for (int64_t t = 1; t < count; t++)
                x = x + load_some(tables[t].first + tables[t].places[i] * width, d, width - d, FLOAT);
            store_some(to + i * width, d, width - d, x, FLOAT);
        }
    if (norm)
        addnorm_norm(to, FLOAT, width, rows, width, norm->gain, norm->bias, norm->eps, norm->centred, to, FLOAT);
    return 0;
}

/* How the rows of a text become one. */
enum { FIRST = 0, LAST, LARGEST, MEAN, SUM_BY_ROOT, MEAN_BY_PLACE };

/* Rows added before their sum is added to those of the rows before, so that many rows are not added to one number. */
#define PART 64

INLINE void pool(const void *x, int64_t rows, int64_t width, int64_t mode, float *to, const int kind) {
    const float total = mode == MEAN ? rows : mode == SUM_BY_ROOT ? sqrt(rows) : rows * (rows + 1) / 2;
    for (int64_t d = 0; d < width; d += LANES) {
        const int64_t some = width - d;
        floats y = load_some(x, (mode == LAST ? rows - 1 : 0) * width + d, some, kind), part = {};
        if (mode == LARGEST)
            for (int64_t i = 1; i < rows; i++) {
                const floats z = load_some(x, i * width + d, some, kind);
                y = where((z > y) | (z != z), z, y);
            }
        if (mode >= MEAN) {
            for (int64_t i = 1; i < rows; i++) {
                const float weight = mode == MEAN_BY_PLACE ? i + 1 : 1;
                part = part + load_some(x, i * width + d, some, kind) * weight;
                if (i % PART == 0) {
                    y = y + part;
                    part = (floats){};
                }
            }
            y = (y + part) / total;
        }
        store_some(to, d, some, y, FLOAT);
    }
}

/* One vector of each text, (texts, modes·width): its rows of x, (…, width), by each of the modes side by side;
   `normalized`: then of length 1. */
void addnorm_pool(const void *x, int64_t kind, int64_t width, const int64_t *offsets, int64_t texts,
                  const int64_t *modes, int64_t count, int64_t normalized, float *to) {
    for (int64_t text = 0; text < texts; text++, to += count * width) {
        const int64_t first = offsets[text] * width, rows = offsets[text + 1] - offsets[text];
        for (int64_t m = 0; m < count; m++)
            if (kind == FLOAT)
                pool((const float *)x + first, rows, width, modes[m], to + m * width, FLOAT);
            else
                pool((const uint16_t *)x + first, rows, width, modes[m], to + m * width, BFLOAT);
        if (!normalized) continue;
        floats squares = {};
        for (int64_t d = 0; d < count * width; d += LANES) {
            const floats y = load_some(to, d, count * width - d, FLOAT);
            squares = squares + y * y;
        }
        const float length = sqrtf(sum_of(squares));
        for (int64_t d = 0; d < count * width; d++) to[d] /= length > 1e-12f ? length : 1e-12f;
    }
}
