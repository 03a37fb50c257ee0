/* What an engine does row by row between its products, in one pass over memory each. */
#include <math.h>

#include "kernels.h"
#include "vectors.h"

#if HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* What Linux is asked for before a process may use tiles (asm/prctl.h), and the number of their state. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILE_DATA 18

/* Whether this processor has the instructions that this library is compiled for. */
int addnorm_runs(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if HAS_TILES
    if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16") ||
        !__builtin_cpu_supports("amx-int8") || syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA))
        return 0;
#endif
#if defined(__AVX512BF16__)
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
#endif
#if defined(__AVX512VNNI__)
    if (!__builtin_cpu_supports("avx512vnni")) return 0;
#endif
#if defined(__AVXVNNI__)
    if (!__builtin_cpu_supports("avxvnni")) return 0;
#endif
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 0;
#endif
#if defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
#endif
    return 1;
}

/* Sums that are added up side by side, as each addition waits for the one before. */
#define SIDE_BY_SIDE 4

/* `each(d, some, j)` for all numbers of a row, LANES at a time; j: the sum to add to, whatever the width. */
#define FOR_ROW(width, each)                                                                                          \
    do {                                                                                                              \
        int64_t d = 0;                                                                                                \
        for (; d + SIDE_BY_SIDE * LANES <= (width); d += SIDE_BY_SIDE * LANES)                                        \
            for (int j = 0; j < SIDE_BY_SIDE; j++) each(d + j * LANES, LANES, j);                                     \
        for (; d < (width); d += LANES) each(d, (width) - d, 0);                                                      \
    } while (0)

/* Bytes that a row of so many takes: the last word filled up, its step and zero as two floats, and so much that the
   next row begins where tiles are read fastest. */
int64_t addnorm_row_of_bytes(int64_t width) {
    const int64_t used = (width + 3) / 4 * 4 + 8;
    return HAS_TILES ? (used + LINE - 1) / LINE * LINE : used;
}

INLINE floats scaled(const void *x, int64_t d, int64_t some, const float *factor, const int kind) {
    const floats y = load_some(x, d, some, kind);
    return factor ? y * load_some(factor, d, some, FLOAT) : y;
}

INLINE void round_row(const void *x, int64_t width, const float *factor, uint8_t *to, int64_t room, const int kind) {
    floats low[SIDE_BY_SIDE] = {}, high[SIDE_BY_SIDE] = {};
    floats finite[SIDE_BY_SIDE] = {}; /* 0, or no number if one in the row is none or infinite */
#define MEASURE(d, some, j)                                                                                           \
    do {                                                                                                              \
        const floats y = scaled(x, d, some, factor, kind);                                                            \
        low[j] = smaller(y, low[j]), high[j] = larger(y, high[j]), finite[j] = finite[j] + (y - y);                   \
    } while (0)
    FOR_ROW(width, MEASURE);
    for (int j = 1; j < SIDE_BY_SIDE; j++)
        low[0] = smaller(low[j], low[0]), high[0] = larger(high[j], high[0]), finite[0] = finite[0] + finite[j];
    const float least = -largest_of(-low[0]), range = largest_of(high[0]) - least;
    const float step = (range > 1e-30f ? range / 255 : 1e-30f) + sum_of(finite[0]);
    const float zero = (-least / step + WHOLE) - WHOLE, measured[2] = {step, zero}, scale = 1 / step;
#define ROUND(d, some, j) store_bytes(to + (d), some, scaled(x, d, some, factor, kind) * scale, zero)
    FOR_ROW(width, ROUND);
    memset(to + width, 0, room - width);
    memcpy(to + (width + 3) / 4 * 4, measured, sizeof measured);
}

/* Each row as bytes with a step and a zero of its own, from its least and largest number or 0: x·factor is nearly
   step·(byte - zero). `step`: numbers from one row of x to the next, `factor` (width), or NULL. */
void addnorm_bytes(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, const float *factor,
                   uint8_t *to) {
    const int64_t room = addnorm_row_of_bytes(width);
    for (int64_t i = 0; i < rows; i++, to += room)
        if (kind == FLOAT)
            round_row((const float *)x + i * step, width, factor, to, room, FLOAT);
        else
            round_row((const uint16_t *)x + i * step, width, factor, to, room, BFLOAT);
}

/* The same numbers in another kind; `step`: from one row of x to the next. */
void addnorm_convert(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, void *to, int64_t to_kind) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < width; d += LANES)
            store_some(to, i * width + d, width - d, load_some(x, i * step + d, width - d, kind), to_kind);
}

/* (a, b) → (a cos - b sin, b cos + a sin), in place, of the first 2·half numbers of each head: a and b are next to each
   other where `interleaved`, else `half` apart. `cos`, `sin`: (rows, half); x: `step` from one row to the next. */
INLINE void rotate(void *x, int64_t step, int64_t rows, int64_t heads, int64_t width, int64_t half, int64_t interleaved,
                   const float *cos, const float *sin, const int kind) {
    for (int64_t i = 0; i < rows; i++, cos += half, sin += half)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t head = i * step + h * width;
            int64_t d = 0;
            for (; !interleaved && d + LANES <= half; d += LANES) {
                const floats a = load_as(x, head + d, kind), b = load_as(x, head + half + d, kind);
                const floats c = load(cos + d), s = load(sin + d);
                store_as(x, head + d, a * c - b * s, kind);
                store_as(x, head + half + d, b * c + a * s, kind);
            }
            for (; d < half; d++) {
                const int64_t first = head + (interleaved ? 2 * d : d), second = first + (interleaved ? 1 : half);
                const float a = number(x, first, kind), b = number(x, second, kind);
                set_number(x, first, a * cos[d] - b * sin[d], kind);
                set_number(x, second, b * cos[d] + a * sin[d], kind);
            }
        }
}

void addnorm_rotate(void *x, int64_t kind, int64_t step, int64_t rows, int64_t heads, int64_t width, int64_t half, int64_t interleaved,
                    const float *cos, const float *sin) {
    if (kind == FLOAT)
        rotate(x, step, rows, heads, width, half, interleaved, cos, sin, FLOAT);
    else
        rotate(x, step, rows, heads, width, half, interleaved, cos, sin, BFLOAT);
}

INLINE floats total(const floats *sums) { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }

/* Sums are taken side by side, so a norm does not wait for one addition after the other. */
INLINE void norm_row(const void *x, int64_t width, const float *gain, const float *bias, float eps, int64_t centred,
                     void *to, int64_t at, const int kind, const int to_kind) {
    floats sums[SIDE_BY_SIDE] = {}, squares[SIDE_BY_SIDE] = {};
    float mean = 0;
#define ADD_UP(d, some, j) sums[j] = sums[j] + load_some(x, d, some, kind)
    if (centred) {
        FOR_ROW(width, ADD_UP);
        mean = sum_of(total(sums)) / (float)width;
    }
#define ADD_SQUARE(d, some, j)                                                                                        \
    do {                                                                                                              \
        floats y = load_some(x, d, some, kind) - mean;                                                                \
        if ((some) < LANES) y = first(y, some); /* nothing beyond the row */                                          \
        squares[j] = squares[j] + y * y;                                                                              \
    } while (0)
    FOR_ROW(width, ADD_SQUARE);
    const float factor = (float)(1 / sqrt(sum_of(total(squares)) / (double)width + eps));
#define SCALE(d, some, j)                                                                                             \
    do {                                                                                                              \
        floats y = (load_some(x, d, some, kind) - mean) * factor;                                                     \
        if (gain) y = y * load_some(gain, d, some, FLOAT);                                                            \
        if (bias) y = y + load_some(bias, d, some, FLOAT);                                                            \
        store_some(to, at + (d), some, y, to_kind);                                                                   \
    } while (0)
    FOR_ROW(width, SCALE);
}

/* (x - mean)/√(variance + eps)·gain + bias of each row; not `centred`: without the mean. gain, bias: (width), or NULL. */
void addnorm_norm(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, const float *gain,
                  const float *bias, float eps, int64_t centred, void *to, int64_t to_kind) {
    for (int64_t i = 0; i < rows; i++) {
        const void *row = (const char *)x + i * step * (kind == FLOAT ? 4 : 2);
        if (kind == FLOAT && to_kind == FLOAT)
            norm_row(row, width, gain, bias, eps, centred, to, i * width, FLOAT, FLOAT);
        else if (kind == FLOAT)
            norm_row(row, width, gain, bias, eps, centred, to, i * width, FLOAT, BFLOAT);
        else if (to_kind == FLOAT)
            norm_row(row, width, gain, bias, eps, centred, to, i * width, BFLOAT, FLOAT);
        else
            norm_row(row, width, gain, bias, eps, centred, to, i * width, BFLOAT, BFLOAT);
    }
}
