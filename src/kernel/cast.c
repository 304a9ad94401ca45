/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of many elements.
 *
 * A pair without a kernel of its own goes through f32 where that loses nothing: the source has at
 * most 32 bits, so f32 holds it exactly and the only rounding is the last step. Everything else
 * goes element by element.
 */
#include "kernel/cast.h"
#include "kernel/ops_scalar.h"

#include <fenv.h>
#include <string.h>

#define BLOCK 256

/* bytes bytes of copies of one element; elem divides 64. */
static void repeat_elem(uint8_t *dst, const uint8_t *src, int64_t bytes, uint32_t elem)
{
    uint8_t pattern[64];
    for (uint32_t k = 0; k < sizeof pattern; k += elem) {
        memcpy(pattern + k, src, elem);
    }
    int64_t i = 0;
    for (; i + (int64_t)sizeof pattern <= bytes; i += (int64_t)sizeof pattern) {
        memcpy(dst + i, pattern, sizeof pattern);
    }
    memcpy(dst + i, pattern, (size_t)(bytes - i));
}

void heft__elems_move(const heft__kernel_ops_t *ops, void *dst, int64_t dst_step, const void *src,
                      int64_t src_step, int64_t n, uint32_t elem)
{
    uint8_t *d = dst;
    const uint8_t *s = src;
    if (dst_step == (int64_t)elem && src_step == 0) {
        repeat_elem(d, s, n * elem, elem);
        return;
    }
    if (dst_step == (int64_t)elem && src_step == 2 * (int64_t)elem) {
        ops->evens(d, s, n, elem);
        return;
    }
#define MOVE_ELEMS(bytes)                                    \
    for (int64_t i = 0; i < n; i++) {                        \
        memcpy(d + i * dst_step, s + i * src_step, (bytes)); \
    }
    switch (elem) {
    case 1:
        MOVE_ELEMS(1)
        break;
    case 2:
        MOVE_ELEMS(2)
        break;
    case 4:
        MOVE_ELEMS(4)
        break;
    case 8:
        MOVE_ELEMS(8)
        break;
    default:
        MOVE_ELEMS(16)
        break;
    }
#undef MOVE_ELEMS
}

static uint64_t load_elem(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    for (uint32_t k = 0; k < bytes; k++) {
        v |= (uint64_t)p[k] << (8 * k);
    }
    return v;
}

static void store_elem(uint8_t *p, uint32_t bytes, uint64_t v)
{
    for (uint32_t k = 0; k < bytes; k++) {
        p[k] = (uint8_t)(v >> (8 * k));
    }
}

static void cast_each(heft_dtype_t dst_dtype, uint8_t *dst, heft_dtype_t src_dtype,
                      const uint8_t *src, int64_t n)
{
    uint32_t dst_bytes = heft_dtype_get_unit_bytes(dst_dtype);
    uint32_t src_bytes = heft_dtype_get_unit_bytes(src_dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = load_elem(src + i * src_bytes, src_bytes);
        store_elem(dst + i * dst_bytes, dst_bytes, heft__cast_bits(dst_dtype, src_dtype, bits));
    }
}

/* ---- f64: as the CPU rounds ---- */

static void f64_to_f32(uint8_t *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, src + 8 * i, 8);
        float r = (float)v;
        memcpy(dst + 4 * i, &r, 4);
    }
}

static void f32_to_f64(uint8_t *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, src + 4 * i, 4);
        double r = (double)v;
        memcpy(dst + 8 * i, &r, 8);
    }
}

static bool is_short_float(heft_dtype_t dtype)
{
    return heft_dtype_is_float(dtype) != 0 && dtype != HEFT_DTYPE_F64;
}

static bool is_signed_f8(heft_dtype_t dtype)
{
    return dtype == HEFT_DTYPE_F8_E4M3 || dtype == HEFT_DTYPE_F8_E5M2;
}

bool heft__cast_needs_env(heft_dtype_t dst_dtype, heft_dtype_t src_dtype)
{
    return (is_signed_f8(dst_dtype) && is_short_float(src_dtype)) ||
           (dst_dtype == HEFT_DTYPE_F64 && is_short_float(src_dtype)) ||
           (dst_dtype == HEFT_DTYPE_F32 && src_dtype == HEFT_DTYPE_F64);
}

bool heft__cast_is_direct(heft_dtype_t dst_dtype, heft_dtype_t src_dtype)
{
    bool dst_is_half = dst_dtype == HEFT_DTYPE_BF16 || dst_dtype == HEFT_DTYPE_F16;
    bool src_is_half = src_dtype == HEFT_DTYPE_BF16 || src_dtype == HEFT_DTYPE_F16;
    bool src_is_top = src_dtype == HEFT_DTYPE_F32 || src_dtype == HEFT_DTYPE_BF16;
    return dst_dtype == src_dtype || (is_signed_f8(dst_dtype) && src_is_top) ||
           (dst_is_half && src_dtype == HEFT_DTYPE_F32) ||
           (src_is_half && dst_dtype == HEFT_DTYPE_F32);
}

static void cast_to_f8(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, void *dst,
                       heft_dtype_t src_dtype, const void *src, int64_t n, bool nt, int64_t ahead)
{
    bool is_e4m3 = dst_dtype == HEFT_DTYPE_F8_E4M3;
    if (src_dtype == HEFT_DTYPE_F32) {
        (is_e4m3 ? ops->f32_to_e4m3 : ops->f32_to_e5m2)(dst, src, n, nt, ahead);
    } else {
        (is_e4m3 ? ops->bf16_to_e4m3 : ops->bf16_to_e5m2)(dst, src, n, nt, ahead);
    }
}

static void cast_direct(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, void *dst,
                        heft_dtype_t src_dtype, const void *src, int64_t n, bool nt, int64_t ahead)
{
    if (src_dtype == dst_dtype) {
        ops->move(dst, 0, src, 0, 1, n * heft_dtype_get_unit_bytes(dst_dtype), nt, ahead);
    } else if (is_signed_f8(dst_dtype)) {
        cast_to_f8(ops, dst_dtype, dst, src_dtype, src, n, nt, ahead);
    } else if (dst_dtype == HEFT_DTYPE_BF16) {
        ops->f32_to_bf16(dst, src, n, nt, ahead);
    } else if (dst_dtype == HEFT_DTYPE_F16) {
        ops->f32_to_f16(dst, src, n, nt, ahead);
    } else if (src_dtype == HEFT_DTYPE_BF16) {
        ops->bf16_to_f32(dst, src, n, nt, ahead);
    } else {
        ops->f16_to_f32(dst, src, n, nt, ahead);
    }
}

/* n <= BLOCK elements of a float of at most 32 bits to f32; may hand back src itself. */
static const void *widen(const heft__kernel_ops_t *ops, uint32_t *buffer, heft_dtype_t src_dtype,
                         const uint8_t *src, int64_t n)
{
    if (src_dtype == HEFT_DTYPE_F32) {
        return src;
    }
    if (heft__cast_is_direct(HEFT_DTYPE_F32, src_dtype)) {
        cast_direct(ops, HEFT_DTYPE_F32, buffer, src_dtype, src, n, false, HEFT__AHEAD);
    } else if (src_dtype == HEFT_DTYPE_F8_E4M3) {
        ops->e4m3_to_f32(buffer, src, n);
    } else if (src_dtype == HEFT_DTYPE_F8_E5M2) {
        ops->e5m2_to_f32(buffer, src, n);
    } else {
        heft__scalar_e8m0_to_f32(buffer, src, n);
    }
    return buffer;
}

static void narrow(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, uint8_t *dst,
                   const void *src, int64_t n)
{
    switch ((int)dst_dtype) {
    case HEFT_DTYPE_F64:
        f32_to_f64(dst, src, n);
        break;
    case HEFT_DTYPE_F32:
    case HEFT_DTYPE_BF16:
    case HEFT_DTYPE_F16:
    case HEFT_DTYPE_F8_E4M3:
    case HEFT_DTYPE_F8_E5M2:
        cast_direct(ops, dst_dtype, dst, HEFT_DTYPE_F32, src, n, false, 0);
        break;
    default:
        cast_each(dst_dtype, dst, HEFT_DTYPE_F32, src, n);
        break;
    }
}

static void cast_through_f32(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, uint8_t *dst,
                             heft_dtype_t src_dtype, const uint8_t *src, int64_t n)
{
    uint32_t dst_bytes = heft_dtype_get_unit_bytes(dst_dtype);
    uint32_t src_bytes = heft_dtype_get_unit_bytes(src_dtype);
    uint32_t buffer[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t some = heft__min_i64(BLOCK, n - i);
        const void *wide = widen(ops, buffer, src_dtype, src + i * src_bytes, some);
        narrow(ops, dst_dtype, dst + i * dst_bytes, wide, some);
    }
}

void heft__cast_block(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, void *dst,
                      heft_dtype_t src_dtype, const void *src, int64_t n, bool nt, int64_t ahead)
{
    if (heft__cast_is_direct(dst_dtype, src_dtype)) {
        cast_direct(ops, dst_dtype, dst, src_dtype, src, n, nt, ahead);
    } else if (dst_dtype == HEFT_DTYPE_F32 && src_dtype == HEFT_DTYPE_F64) {
        f64_to_f32(dst, src, n);
    } else if (is_short_float(src_dtype)) {
        cast_through_f32(ops, dst_dtype, dst, src_dtype, src, n);
    } else {
        cast_each(dst_dtype, dst, src_dtype, src, n);
    }
}

static void cast_strided(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, uint8_t *dst,
                         int64_t dst_step, heft_dtype_t src_dtype, const uint8_t *src,
                         int64_t src_step, int64_t n)
{
    uint32_t dst_bytes = heft_dtype_get_unit_bytes(dst_dtype);
    uint32_t src_bytes = heft_dtype_get_unit_bytes(src_dtype);
    uint64_t in[BLOCK];
    uint64_t out[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t some = heft__min_i64(BLOCK, n - i);
        heft__elems_move(ops, in, src_bytes, src + i * src_step, src_step, some, src_bytes);
        heft__cast_block(ops, dst_dtype, out, src_dtype, in, some, false, 0);
        heft__elems_move(ops, dst + i * dst_step, dst_step, out, dst_bytes, some, dst_bytes);
    }
}

void heft__cast(heft_dtype_t dst_dtype, void *dst, int64_t dst_stride, heft_dtype_t src_dtype,
                const void *src, int64_t src_stride, int64_t n)
{
    const heft__kernel_ops_t *ops = heft__ops();
    int64_t dst_bytes = heft_dtype_get_unit_bytes(dst_dtype);
    int64_t src_bytes = heft_dtype_get_unit_bytes(src_dtype);
    bool needs_env = heft__cast_needs_env(dst_dtype, src_dtype);
    fenv_t env;
    if (needs_env) {
        (void)fegetenv(&env);
        (void)fesetenv(FE_DFL_ENV);
    }
    if (dst_stride == 1 && src_stride == 1) {
        bool nt = n * dst_bytes >= HEFT__NT_MIN_BYTES;
        heft__cast_block(ops, dst_dtype, dst, src_dtype, src, n, nt, HEFT__AHEAD);
        ops->fence();
    } else {
        cast_strided(ops, dst_dtype, dst, dst_stride * dst_bytes, src_dtype, src,
                     src_stride * src_bytes, n);
    }
    if (needs_env) {
        (void)fesetenv(&env);
    }
}
