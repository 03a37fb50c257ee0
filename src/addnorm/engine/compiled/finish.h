/* How φ(W x + b), and its sum or product with another tensor, end: from sums in the cache next to the processor to
   results. */
#pragma once

#include "kernels.h"
#include "products.h"

/* The most columns of a matrix that are computed together. */
#define PANEL (COLUMNS * LANES)

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
    int64_t panel; /* columns computed together for some rows after the other */
    int64_t set;   /* panels that a thread takes together */
    int64_t next;  /* the next of those, for the next chunk of rows, to compute */
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

/* What sums of bytes become before all else: nothing, times steps, or what each row of x says of itself too. */
enum { WORDS = 0, STEPS, MEASURED };

/* Sums of a row and LANES columns → results. */
INLINE floats finished_sums(const struct linear *map, floats y, int64_t at, const float *measured, const void *other,
                            int64_t other_at, int64_t other_kind, const int activation, const int kind, const int scaled,
                            const int how) {
    if (scaled) y = __builtin_convertvector((ints)y, floats) * load(map->steps + at);
    if (scaled == MEASURED) y = (y - load(map->totals + at) * measured[1]) * measured[0];
    if (map->bias) y = y + load(map->bias + at);
    y = activated(y, activation, kind);
    if (how == ALONE) return y;
    const floats with = load_some(other, other_at + at, map->outs - at, other_kind);
    return how == ADD ? y + with : y * with;
}

/* Sums of `count` rows and a panel → results. */
INLINE void finish_as(const struct call *call, const float *sums, int64_t row, int64_t column, int64_t count,
                      const int activation, const int kind, const int scaled, const int how) {
    const struct linear map = *call->map;
    const int64_t panel = call->panel, x_step = call->x_step, other_step = call->other_step, other_kind = call->other_kind;
    const int64_t last = map.outs - column < panel ? map.outs - column : panel;
    const char *x = (const char *)call->x + row * x_step + 4 * map.depth;
    const void *other = call->other;
    char *out = (char *)call->out + (row * map.outs + column) * size_of(kind);
    for (int64_t r = row; r < row + count; r++, sums += panel, x += x_step, out += map.outs * size_of(kind)) {
        float measured[2]; /* a row's step and zero, which stand after its words */
        if (scaled == MEASURED) memcpy(measured, x, sizeof measured);
        for (int64_t c = 0; c < last; c += LANES) {
            const floats y = finished_sums(&map, load(sums + c), column + c, measured, other, r * other_step, other_kind,
                                           activation, kind, scaled, how);
            if (kind == BYTE)
                store_bytes((uint8_t *)out + c, last - c, y * map.scale, map.zero);
            else
                store_some(out, c, last - c, y, kind);
        }
    }
}

INLINE void finish(const struct call *call, const float *sums, int64_t row, int64_t column, int64_t count,
                   const int activation, const int kind) {
    const int scaled = call->map->what != BYTES ? WORDS : call->map->totals ? MEASURED : STEPS;
#define CASE(when)                                                                                                    \
    if (scaled == when && call->how == ALONE)                                                                         \
        finish_as(call, sums, row, column, count, activation, kind, when, ALONE);                                     \
    if (scaled == when && call->how != ALONE)                                                                         \
        finish_as(call, sums, row, column, count, activation, kind, when, call->how);
    CASE(WORDS)
    CASE(STEPS)
    CASE(MEASURED)
#undef CASE
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
