/* The blocks of an encoder as a list of kernel calls, without a return to Python between them. */
#include <stddef.h>

#include "kernels.h"

enum { LINEAR = 0, ATTENTION, NORM, BYTES, ROTATE };

/* Rows of `width` numbers of a kind, without gaps. */
struct buffer {
    char *first;
    int64_t width, kind;
};

/* One call: it reads a buffer, and `other` where that is not -1, and writes a buffer, which may be one that it reads. */
struct step {
    int64_t what, from, to, other, how;
    const void *with;                         /* struct linear, struct norm, or the factors of bytes */
    int64_t heads, key_heads, width, window;  /* of attention and rotation */
    int64_t column, half, interleaved, table; /* of rotation: where in a row it begins, and whose angles it has */
    float scale;
    int64_t zero;
};

/* What all steps of one pass share. */
struct pass {
    const struct buffer *buffers;
    int64_t rows;
    const int64_t *offsets; /* of the texts, `texts` + 1 */
    int64_t texts, pairs;   /* pairs of tokens that see each other */
    const float *bias;      /* of attention, (heads or 1, longest, longest), or NULL */
    int64_t bias_head, bias_step;
    const float *const *tables; /* cos and sin of one rotation after the other */
    parallel *start;
    int64_t threads, worth; /* multiplications from which on several threads are */
};

static int64_t bytes_of(int64_t kind) { return kind == 0 ? 4 : kind == 1 ? 2 : 1; }

static int run(const struct step *step, const struct pass *pass) {
    const struct buffer *from = pass->buffers + step->from, *to = pass->buffers + step->to;
    const int64_t size = bytes_of(from->kind), rows = pass->rows;
    switch (step->what) {
    case LINEAR: {
        const struct linear *map = step->with;
        const struct buffer *other = step->other < 0 ? NULL : pass->buffers + step->other;
        const int many = rows * map->outs * from->width >= pass->worth;
        addnorm_linear(map, from->first, from->width * size, rows, to->first, other ? other->first : NULL,
                       other ? other->width : 0, other ? other->kind : 0, step->how, many ? pass->start : NULL,
                       pass->threads);
        return 0;
    }
    case ATTENTION: {
        const int64_t key = step->heads * step->width, value = key + step->key_heads * step->width;
        const int many = pass->pairs * key >= pass->worth;
        struct attention task = {
            from->first, from->first + key * size, from->first + value * size, to->first,
            from->width, from->width, from->width, to->width,
            pass->offsets, pass->texts, step->heads, step->key_heads, step->width,
            from->kind, to->kind, step->window, pass->bias, pass->bias_head, pass->bias_step, step->scale, 0, 0};
        return addnorm_attention(&task, many ? pass->start : NULL, pass->threads);
    }
    case NORM: {
        const struct norm *norm = step->with;
        addnorm_norm(from->first, from->kind, from->width, rows, from->width, norm->gain, norm->bias, norm->eps,
                     norm->centred, to->first, to->kind);
        return 0;
    }
    case BYTES:
        addnorm_bytes(from->first, from->kind, from->width, rows, from->width, step->with, step->scale, step->zero,
                      (uint8_t *)to->first);
        return 0;
    default:
        addnorm_rotate(from->first + step->column * size, from->kind, from->width, rows, step->heads, step->width,
                       step->half, step->interleaved, pass->tables[2 * step->table], pass->tables[2 * step->table + 1]);
        return 0;
    }
}

/* All steps in order. 1 where memory ran out. */
int addnorm_program(const struct step *steps, int64_t count, const struct pass *pass) {
    for (int64_t i = 0; i < count; i++)
        if (run(steps + i, pass)) return 1;
    return 0;
}
