/* What an engine does row by row between its products, in one pass over memory each. */
#include <math.h>
#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"
#include "vectors.h"

/* What Linux is asked for before a process may use tiles (asm/prctl.h), and the number of their state. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILE_DATA 18

static const float ONES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Whether this processor has the instructions that this library is compiled for. */
int addnorm_runs(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(__AMX_TILE__)
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

/* What a row of so many bytes takes: the last word filled up, then the step and the zero as two floats. */
static int64_t row_of_bytes(int64_t width) { return (width + 3) / 4 * 4 + 8; }

INLINE void round_row(const void *x, int64_t width, const float *factor, uint8_t *to, const int kind) {
    floats low = {}, high = {}, finite = {}; /* 0, or no number if one in the row is none or infinite */
    for (int64_t d = 0; d < width; d += LANES) {
        floats y = load_some(x, d, width - d, kind);
        if (factor) y = y * load_some(factor, d, width - d, FLOAT);
        low = smaller(y, low);
        high = larger(y, high);
        finite = finite + (y - y);
    }
    const float least = -largest_of(-low), range = largest_of(high) - least;
    const float step = (range > 1e-30f ? range / 255 : 1e-30f) + sum_of(finite);
    const float zero = (-least / step + WHOLE) - WHOLE, measured[2] = {step, zero};
    const floats scale = all(1 / step);
    for (int64_t d = 0; d < width; d += LANES) {
        floats y = load_some(x, d, width - d, kind);
        if (factor) y = y * load_some(factor, d, width - d, FLOAT);
        store_bytes(to + d, width - d, y * scale, zero);
    }
    for (int64_t d = width; d % 4; d++) to[d] = 0;
    memcpy(to + row_of_bytes(width) - sizeof measured, measured, sizeof measured);
}

/* Each row as bytes with a step and a zero of its own, from its least and largest number or 0: x·factor is nearly
   step·(byte - zero). `step`: numbers from one row of x to the next, `factor` (width), or NULL. */
void addnorm_bytes(const void *x, int64_t kind, int64_t step, int64_t rows, int64_t width, const float *factor,
                   uint8_t *to) {
    for (int64_t i = 0; i < rows; i++, to += row_of_bytes(width))
        if (kind == FLOAT)
            round_row((const float *)x + i * step, width, factor, to, FLOAT);
        else
            round_row((const uint16_t *)x + i * step, width, factor, to, BFLOAT);
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

INLINE void norm_row(const void *x, int64_t width, const float *gain, const float *bias, float eps, int64_t centred,
                     void *to, int64_t at, const int kind, const int to_kind) {
    floats sum = {}, squares = {};
    float mean = 0;
    if (centred) {
        for (int64_t d = 0; d < width; d += LANES) sum = sum + load_some(x, d, width - d, kind);
        mean = sum_of(sum) / (float)width;
    }
    for (int64_t d = 0; d < width; d += LANES) {
        floats y = load_some(x, d, width - d, kind) - mean;
        if (width - d < LANES) y = y * load_some(ONES, 0, width - d, FLOAT); /* nothing beyond the row */
        squares = squares + y * y;
    }
    const float factor = (float)(1 / sqrt(sum_of(squares) / (double)width + eps));
    for (int64_t d = 0; d < width; d += LANES) {
        const int64_t some = width - d;
        floats y = (load_some(x, d, some, kind) - mean) * factor;
        if (gain) y = y * load_some(gain, d, some, FLOAT);
        if (bias) y = y + load_some(bias, d, some, FLOAT);
        store_some(to, at + d, some, y, to_kind);
    }
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
