/* What the kernels are called with. */
#pragma once

#include <stdint.h>

/* OpenMP's function that runs another on several threads: PyTorch's own threads, which are there already and would be in
   the way of others. NULL: threads are started for the call. */
typedef void parallel(void (*run)(void *), void *given, unsigned threads, unsigned flags);

/* Run a function on several threads at once. */
void addnorm_share(parallel *start, int64_t threads, void (*run)(void *), void *given);

struct attention {
    const void *query, *key, *value; /* the first row of each */
    void *mix;
    int64_t query_step, key_step, value_step, mix_step; /* numbers from one row to the next */
    const int64_t *offsets;                             /* of the texts, `texts` + 1 */
    int64_t texts, heads, key_heads, width;
    int64_t kind, mix_kind;
    int64_t window;               /* how far a query sees; -1: everywhere */
    const float *bias;            /* (heads or 1, longest, longest), or NULL */
    int64_t bias_head, bias_step; /* from one head, one query to the next */
    float scale;
    int64_t next;   /* the next text and head to compute */
    int64_t failed; /* whether memory ran out */
};

/* A linear map, which many calls share. */
struct linear {
    const char *blocks; /* W, (outs/PANEL, depth, PANEL) words, outs rounded up to PANEL */
    const float *bias;  /* (outs, rounded up), or NULL */
    const float *steps; /* of bytes: what 1 in the sums stands for, (outs, rounded up) */
    const float *totals; /* of bytes whose rows are measured: the sums of W's rows times their steps; else NULL */
    int64_t outs, depth, what, activation, out_kind;
    float scale, zero; /* of bytes: y → round(y·scale) + zero */
};

/* A norm: gain and bias (width), or NULL. */
struct norm {
    const float *gain, *bias;
    float eps;
    int64_t centred;
};

int addnorm_attention(struct attention *task, parallel *start, int64_t threads);
void addnorm_linear(const struct linear *map, const void *x, int64_t x_step, int64_t rows, void *out, const void *other,
                    int64_t other_step, int64_t other_kind, int64_t how, parallel *start, int64_t threads);
void addnorm_norm(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, const float *gain,
                  const float *bias, float eps, int64_t centred, void *to, int64_t to_kind);
int64_t addnorm_row_of_bytes(int64_t width);
void addnorm_bytes(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, const float *factor,
                   uint8_t *to);
void addnorm_convert(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, void *to, int64_t to_kind);
void addnorm_rotate(void *x, int64_t kind, int64_t step, int64_t rows, int64_t heads, int64_t width, int64_t half,
                    int64_t interleaved, const float *cos, const float *sin);
