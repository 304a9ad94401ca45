/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves, transposes, casts and arithmetic on vectors: included once by each vector level, after its
 * simd_*.h.
 *
 * Loads and stores alternate line by line, and every line prefetches `ahead` bytes further into the
 * second-level cache: one core cannot keep enough misses in flight by itself, and the hardware
 * prefetchers stop at each 4 KiB page. Non-temporal stores only ever write whole, aligned 64-byte
 * lines; what is left at both ends goes through the cache.
 */
#include "kernel/arith.h"
#include "kernel/cast_f8.h"
#include "kernel/ops_scalar.h"

#include <string.h>

#define LINE 64
#define AHEAD 8192

/* Constant arguments must become constants in the body. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A macro: the compiler takes a function that only prefetches for one without effect, and drops the
 * calls. */
#define prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

static inline void move_line(uint8_t *dst, const uint8_t *src)
{
    for (int k = 0; k < LINE; k += V_BYTES) {
        v_store(dst + k, v_load(src + k));
    }
}

static inline void stream_line(uint8_t *dst, const uint8_t *src)
{
    vec_t v[LINE / V_BYTES];
    for (int k = 0; k < LINE / V_BYTES; k++) {
        v[k] = v_load(src + k * V_BYTES);
    }
    for (int k = 0; k < LINE / V_BYTES; k++) {
        v_stream(dst + k * V_BYTES, v[k]);
    }
}

/* Fewer than 64 bytes, as two moves that overlap. */
static inline void move_short(uint8_t *dst, const uint8_t *src, int64_t n)
{
#define MOVE_TWICE(type, load, store)              \
    {                                              \
        int64_t last = n - (int64_t)sizeof(type);  \
        type a = load((const void *)src);          \
        type b = load((const void *)(src + last)); \
        store((void *)dst, a);                     \
        store((void *)(dst + last), b);            \
    }
    if (n >= 32) {
        MOVE_TWICE(__m256i, _mm256_loadu_si256, _mm256_storeu_si256)
    } else if (n >= 16) {
        MOVE_TWICE(__m128i, _mm_loadu_si128, _mm_storeu_si128)
    } else {
        int64_t i = 0;
        for (; n - i >= 8; i += 8) {
            memcpy(dst + i, src + i, 8);
        }
        for (; n - i >= 2; i += 2) {
            memcpy(dst + i, src + i, 2);
        }
        if (i < n) {
            dst[i] = src[i];
        }
    }
#undef MOVE_TWICE
}

static inline void move_cached(uint8_t *dst, const uint8_t *src, int64_t n, int64_t ahead)
{
    int64_t i = 0;
    for (; i + LINE <= n; i += LINE) {
        prefetch(src + i + ahead);
        move_line(dst + i, src + i);
    }
    if (i < n) {
        move_short(dst + i, src + i, n - i);
    }
}

static inline int64_t to_line(const uint8_t *dst)
{
    return -(int64_t)((uintptr_t)dst & (LINE - 1)) & (LINE - 1);
}

static inline void move_stream(uint8_t *dst, const uint8_t *src, int64_t n, int64_t ahead)
{
    int64_t i = to_line(dst);
    if (i > n) {
        i = n;
    }
    if (i > 0) {
        move_short(dst, src, i);
    }
    for (; i + LINE <= n; i += LINE) {
        prefetch(src + i + ahead);
        stream_line(dst + i, src + i);
    }
    if (i < n) {
        move_short(dst + i, src + i, n - i);
    }
}

static void simd_move(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                      int64_t n_runs, int64_t n, bool nt, int64_t ahead)
{
    for (int64_t r = 0; r < n_runs; r++) {
        if (nt) {
            move_stream(dst, src, n, ahead);
        } else {
            move_cached(dst, src, n, ahead);
        }
        dst += dst_step;
        src += src_step;
    }
}

/*
 * Transposes by 16-byte lanes. A vector takes a lane from each of V_BYTES / 16 rows that are 16 /
 * elem apart; unpacking inside lanes transposes blocks of 16 / elem rows, and the lanes come out in
 * the order of the destination line.
 */

#define LANES (V_BYTES / 16)

ALWAYS_INLINE void put(uint8_t *dst, vec_t v, bool nt)
{
    if (nt) {
        v_stream(dst, v);
    } else {
        v_store(dst, v);
    }
}

ALWAYS_INLINE vec_t interleave(vec_t a, vec_t b, int elem, bool high)
{
    switch (elem) {
    case 1:
        return high ? v_hi8(a, b) : v_lo8(a, b);
    case 2:
        return high ? v_hi16(a, b) : v_lo16(a, b);
    case 4:
        return high ? v_hi32(a, b) : v_lo32(a, b);
    default:
        return high ? v_hi64(a, b) : v_lo64(a, b);
    }
}

/* 16 / elem columns of 16 / elem * LANES rows. Interleaving the first half of the vectors with the
 * second, log2(16 / elem) times over, transposes the lanes. */
ALWAYS_INLINE void load_columns(vec_t *v, const uint8_t *tile, int elem)
{
    const int n = 16 / elem;
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) {
        v[k] = v_load_lanes(tile + k * HEFT__TILE_STEP, n * HEFT__TILE_STEP);
    }
#pragma GCC unroll 4
    for (int pass = 1; pass < n; pass *= 2) {
        vec_t w[16];
#pragma GCC unroll 8
        for (int k = 0; k < n / 2; k++) {
            w[2 * k] = interleave(v[k], v[k + n / 2], elem, false);
            w[2 * k + 1] = interleave(v[k], v[k + n / 2], elem, true);
        }
#pragma GCC unroll 16
        for (int k = 0; k < n; k++) {
            v[k] = w[k];
        }
    }
}

/* One line each of 16 / elem destination rows. */
ALWAYS_INLINE void transpose_line(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int elem,
                                  bool nt)
{
    const int n = 16 / elem;
    vec_t v[LINE / V_BYTES][16];
#pragma GCC unroll 2
    for (int h = 0; h < LINE / V_BYTES; h++) {
        load_columns(v[h], tile + h * n * LANES * HEFT__TILE_STEP, elem);
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; c++) {
        for (int h = 0; h < LINE / V_BYTES; h++) {
            put(dst + h * V_BYTES, v[h][c], nt);
        }
        dst += dst_step;
    }
}

ALWAYS_INLINE void transpose(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int64_t n_lines,
                             int64_t n_lanes, int elem, bool nt)
{
    for (int64_t g = 0; g < n_lanes; g++) {
        for (int64_t l = 0; l < n_lines; l++) {
            transpose_line(dst + g * (16 / elem) * dst_step + l * LINE, dst_step,
                           tile + g * 16 + l * (LINE / elem) * HEFT__TILE_STEP, elem, nt);
        }
    }
}

#define TRANSPOSE(elem)                                                  \
    if (nt) {                                                            \
        transpose(dst, dst_step, tile, n_lines, n_lanes, (elem), true);  \
    } else {                                                             \
        transpose(dst, dst_step, tile, n_lines, n_lanes, (elem), false); \
    }

static void simd_transpose(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int64_t n_lines,
                           int64_t n_lanes, uint32_t elem, bool nt)
{
    switch (elem) {
    case 1:
        TRANSPOSE(1)
        break;
    case 2:
        TRANSPOSE(2)
        break;
    case 4:
        TRANSPOSE(4)
        break;
    case 8:
        TRANSPOSE(8)
        break;
    default:
        TRANSPOSE(16)
        break;
    }
}

/*
 * Every second element. The last vector is read one element early and keeps the odd ones, so that
 * no byte behind the last element is touched.
 */
#define DEFINE_EVENS(name, bytes, half)                                              \
    static inline int64_t name(uint8_t *dst, const uint8_t *src, int64_t n)          \
    {                                                                                \
        const int64_t count = V_BYTES / (bytes);                                     \
        int64_t i = 0;                                                               \
        for (; i + count < n; i += count) {                                          \
            const uint8_t *p = src + 2 * i * (bytes);                                \
            prefetch(p + AHEAD);                                                     \
            prefetch(p + AHEAD + V_BYTES);                                           \
            v_store(dst + i * (bytes), half(v_load(p), v_load(p + V_BYTES), false)); \
        }                                                                            \
        if (i > 0) {                                                                 \
            i = n - count;                                                           \
            const uint8_t *p = src + (2 * i - 1) * (bytes);                          \
            v_store(dst + i * (bytes), half(v_load(p), v_load(p + V_BYTES), true));  \
            i = n;                                                                   \
        }                                                                            \
        return i;                                                                    \
    }

DEFINE_EVENS(evens_8, 1, v_half_8)
DEFINE_EVENS(evens_16, 2, v_half_16)
DEFINE_EVENS(evens_32, 4, v_half_32)
DEFINE_EVENS(evens_64, 8, v_half_64)

static void simd_evens(uint8_t *dst, const uint8_t *src, int64_t n, uint32_t elem)
{
    int64_t done = elem == 1   ? evens_8(dst, src, n)
                   : elem == 2 ? evens_16(dst, src, n)
                   : elem == 4 ? evens_32(dst, src, n)
                   : elem == 8 ? evens_64(dst, src, n)
                               : 0;
    heft__scalar_evens(dst + done * elem, src + 2 * done * elem, n - done, elem);
}

/*
 * Casts: elements before the first line of the destination and behind the last by the scalar
 * kernel, whole lines here. A destination that is not aligned to its elements never gets to a line
 * and is not streamed.
 */
typedef vec_t (*convert_t)(const uint8_t *src);

static inline int64_t cast_head(const uint8_t *dst, int64_t elem, int64_t n, bool *nt)
{
    *nt = *nt && to_line(dst) % elem == 0;
    return *nt ? heft__min_i64(to_line(dst) / elem, n) : 0;
}

/* Elements [begin, the result). */
ALWAYS_INLINE int64_t cast_lines(uint8_t *dst, const uint8_t *src, int64_t begin, int64_t n,
                                 int64_t from, int64_t to, convert_t convert, bool nt,
                                 int64_t ahead)
{
    int64_t i = begin;
    for (; i + LINE / to <= n; i += LINE / to) {
        const uint8_t *p = src + i * from;
        prefetch(p + ahead);
        if (from > to) {
            prefetch(p + LINE + ahead);
        }
        vec_t v[LINE / V_BYTES];
        for (int k = 0; k < LINE / V_BYTES; k++) {
            v[k] = convert(p + k * V_BYTES / to * from);
        }
        for (int k = 0; k < LINE / V_BYTES; k++) {
            put(dst + i * to + k * V_BYTES, v[k], nt);
        }
    }
    return i;
}

static void simd_f32_to_bf16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead)
{
    int64_t begin = cast_head((uint8_t *)dst, 2, n, &nt);
    heft__scalar_f32_to_bf16(dst, src, begin, false, 0);
    int64_t end =
        cast_lines((uint8_t *)dst, (const uint8_t *)src, begin, n, 4, 2, v_f32_to_bf16, nt, ahead);
    heft__scalar_f32_to_bf16(dst + end, src + end, n - end, false, 0);
}

static void simd_f32_to_f16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead)
{
    int64_t begin = cast_head((uint8_t *)dst, 2, n, &nt);
    heft__scalar_f32_to_f16(dst, src, begin, false, 0);
    int64_t end =
        cast_lines((uint8_t *)dst, (const uint8_t *)src, begin, n, 4, 2, v_f32_to_f16, nt, ahead);
    heft__scalar_f32_to_f16(dst + end, src + end, n - end, false, 0);
}

static void simd_bf16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead)
{
    int64_t begin = cast_head((uint8_t *)dst, 4, n, &nt);
    heft__scalar_bf16_to_f32(dst, src, begin, false, 0);
    int64_t end =
        cast_lines((uint8_t *)dst, (const uint8_t *)src, begin, n, 2, 4, v_bf16_to_f32, nt, ahead);
    heft__scalar_bf16_to_f32(dst + end, src + end, n - end, false, 0);
}

static void simd_f16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead)
{
    int64_t begin = cast_head((uint8_t *)dst, 4, n, &nt);
    heft__scalar_f16_to_f32(dst, src, begin, false, 0);
    int64_t end =
        cast_lines((uint8_t *)dst, (const uint8_t *)src, begin, n, 2, 4, v_f16_to_f32, nt, ahead);
    heft__scalar_f16_to_f32(dst + end, src + end, n - end, false, 0);
}

static void simd_e4m3_to_f32(uint32_t *dst, const uint8_t *src, int64_t n)
{
    int64_t i = 0;
    for (; i + V_BYTES / 4 <= n; i += V_BYTES / 4) {
        v_store(dst + i, v_e4m3_to_f32(src + i));
    }
    heft__scalar_e4m3_to_f32(dst + i, src + i, n - i);
}

static void simd_e5m2_to_f32(uint32_t *dst, const uint8_t *src, int64_t n)
{
    int64_t i = 0;
    for (; i + V_BYTES / 4 <= n; i += V_BYTES / 4) {
        v_store(dst + i, v_e5m2_to_f32(src + i));
    }
    heft__scalar_e5m2_to_f32(dst + i, src + i, n - i);
}

static void simd_arith_f32(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                           bool is_uniform, int64_t n)
{
    heft__arith_f32_loop(code, out, a, b, is_uniform, n);
}

static void simd_arith_f64(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                           bool is_uniform, int64_t n)
{
    heft__arith_f64_loop(code, out, a, b, is_uniform, n);
}

static void simd_fence(void)
{
    _mm_sfence();
}
