/* The blocks of an encoder as a list of kernel calls, without a return to Python between them.

   Only attention needs all rows of a text. The steps between two attentions are taken for some rows after the other, so
   that what one step writes is still in the processor's own cache when the next one reads it; those that go row by
   row, for a few rows after the other. */
#include <stdlib.h>

#include "kernels.h"
#include "vectors.h"

enum { LINEAR = 0, ATTENTION, NORM, TO_BYTES, ROTATE, CONVERT };

/* Rows taken together: tiles take so little time that matrices are better not read too often. */
#define TOGETHER (HAS_TILES ? 960 : 480)
/* Rows taken together by steps that go row by row, and what a number of theirs costs, as multiplications. */
#define FEW 16
#define COST 32

/* Rows of `width` numbers of a kind, without gaps: all rows, or (`brief`) those that are taken together. */
struct buffer {
    int64_t width, kind, brief;
};

/* One call: it reads a buffer, and `other` where that is not -1, and writes a buffer, which may be one that it reads. */
struct step {
    int64_t what, from, to, other, how;
    const void *with;                         /* struct linear, struct norm, or the factors of bytes */
    int64_t heads, key_heads, width, window;  /* of attention and rotation */
    int64_t column, half, interleaved, table; /* of rotation: where in a row it begins, and whose angles it has */
    float scale;
};

/* What all steps of one pass share. */
struct pass {
    const struct buffer *buffers; /* of which the first is the stream */
    int64_t count;
    char *stream;
    int64_t rows;
    const int64_t *offsets; /* of the texts, `texts` + 1 */
    int64_t texts, pairs;   /* pairs of tokens that see each other */
    const float *bias;      /* of attention, (heads or 1, longest, longest), or NULL */
    int64_t bias_head, bias_step;
    const float *const *tables; /* cos and sin of one rotation after the other */
    parallel *start;
    int64_t threads, worth; /* multiplications from which on several threads are worth it */
    char **places;          /* where each buffer begins */
};

/* `first`: the first row of those that are taken together. */
static char *row_of(const struct pass *pass, int64_t buffer, int64_t first, int64_t row) {
    const struct buffer *own = pass->buffers + buffer;
    return pass->places[buffer] + (own->brief ? row - first : row) * own->width * size_of(own->kind);
}

/* One step for `rows` rows from `row` on, all of them for attention. */
static int run(const struct step *step, const struct pass *pass, int64_t first, int64_t row, int64_t rows) {
    const struct buffer *from = pass->buffers + step->from, *to = pass->buffers + step->to;
    const int64_t size = size_of(from->kind);
    char *x = row_of(pass, step->from, first, row), *y = row_of(pass, step->to, first, row);
    switch (step->what) {
    case LINEAR: {
        const struct linear *map = step->with;
        const struct buffer *other = step->other < 0 ? NULL : pass->buffers + step->other;
        const int many = rows * map->outs * from->width >= pass->worth;
        addnorm_linear(map, x, from->width * size, rows, y, other ? row_of(pass, step->other, first, row) : NULL,
                       other ? other->width : 0, other ? other->kind : 0, step->how, pass->start,
                       many ? pass->threads : 1);
        return 0;
    }
    case ATTENTION: {
        const int64_t key = step->heads * step->width, value = key + step->key_heads * step->width;
        const int many = pass->pairs * key >= pass->worth;
        struct attention task = {
            x, x + key * size, x + value * size, y, from->width, from->width, from->width, to->width,
            pass->offsets, pass->texts, step->heads, step->key_heads, step->width,
            from->kind, to->kind, step->window, pass->bias, pass->bias_head, pass->bias_step, step->scale, 0, 0};
        return addnorm_attention(&task, pass->start, many ? pass->threads : 1);
    }
    case NORM: {
        const struct norm *norm = step->with;
        addnorm_norm(x, from->kind, from->width, rows, from->width, norm->gain, norm->bias, norm->eps, norm->centred, y,
                     to->kind);
        return 0;
    }
    case TO_BYTES:
        addnorm_bytes(x, from->kind, from->width, rows, from->width, step->with, (uint8_t *)y);
        return 0;
    case CONVERT:
        addnorm_convert(x, from->kind, from->width, rows, from->width, y, to->kind);
        return 0;
    default: {
        const int64_t angle = row * step->half;
        addnorm_rotate(x + step->column * size, from->kind, from->width, rows, step->heads, step->width, step->half,
                       step->interleaved, pass->tables[2 * step->table] + angle,
                       pass->tables[2 * step->table + 1] + angle);
        return 0;
    }
    }
}

/* Consecutive steps that go row by row. */
struct by_row {
    const struct step *steps;
    int64_t count;
    const struct pass *pass;
    int64_t first, rows;
    int64_t next; /* the next few rows */
};

static void run_by_row(void *given) {
    struct by_row *task = given;
    for (;;) {
        const int64_t done = FEW * __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED), left = task->rows - done;
        if (left <= 0) break;
        for (int64_t k = 0; k < task->count; k++)
            run(task->steps + k, task->pass, task->first, task->first + done, left < FEW ? left : FEW);
    }
}

static int is_by_row(const struct step *step) { return step->what != LINEAR && step->what != ATTENTION; }

/* Steps without attention for the rows that are taken together. */
static void run_together(const struct step *steps, int64_t count, const struct pass *pass, int64_t first, int64_t rows) {
    for (int64_t i = 0, end; i < count; i = end) {
        end = i + 1;
        if (!is_by_row(steps + i)) {
            run(steps + i, pass, first, first, rows);
            continue;
        }
        while (end < count && is_by_row(steps + end)) end++;
        struct by_row task = {steps + i, end - i, pass, first, rows, 0};
        const int many = rows * pass->buffers[steps[i].from].width * COST >= pass->worth;
        addnorm_share(pass->start, many ? pass->threads : 1, run_by_row, &task);
    }
}

/* Places for all buffers but the stream, in memory that begins with them. NULL where there is not enough. */
static char **placed(const struct pass *pass) {
    int64_t size = (pass->count * (int64_t)sizeof(char *) + LINE - 1) / LINE * LINE, at[pass->count];
    for (int64_t i = 1; i < pass->count; i++) {
        const struct buffer *own = pass->buffers + i;
        const int64_t rows = own->brief && pass->rows > TOGETHER ? TOGETHER : pass->rows;
        at[i] = size;
        size += (rows * own->width * size_of(own->kind) + LINE - 1) / LINE * LINE;
    }
    char **places = aligned_alloc(LINE, size);
    if (!places) return NULL;
    places[0] = pass->stream;
    for (int64_t i = 1; i < pass->count; i++) places[i] = (char *)places + at[i];
    return places;
}

static int run_all(const struct step *steps, int64_t count, const struct pass *pass) {
    int64_t end;
    for (int64_t i = 0; i < count; i = end) {
        end = i + 1;
        if (steps[i].what == ATTENTION) {
            if (run(steps + i, pass, 0, 0, pass->rows)) return 1;
            continue;
        }
        while (end < count && steps[end].what != ATTENTION) end++;
        for (int64_t row = 0; row < pass->rows; row += TOGETHER) {
            const int64_t left = pass->rows - row;
            run_together(steps + i, end - i, pass, row, left < TOGETHER ? left : TOGETHER);
        }
    }
    return 0;
}

/* All steps in order. 1 where memory ran out. */
int addnorm_program(const struct step *steps, int64_t count, struct pass *pass) {
    pass->places = placed(pass);
    if (!pass->places) return 1;
    const int failed = run_all(steps, count, pass);
    free(pass->places);
    return failed;
}
