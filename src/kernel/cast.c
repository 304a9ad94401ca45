/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of many elements. Blocks are gathered, converted contiguously, and scattered; a pair
 * without a kernel of its own goes through f32 when that loses nothing (a source of at most 32
 * bits, so the only rounding is the last step), else element by element.
 */
#include "kernel/cast.h"

#include <string.h>

#define BLOCK 256

void heft__elems_move(void *dst, int64_t dst_step, const void *src, int64_t src_step, int64_t n,
                      uint32_t elem)
{
    uint8_t *d = dst;
    const uint8_t *s = src;
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

void heft__cast_block(heft_dtype_t dst_dtype, void *dst, heft_dtype_t src_dtype, const void *src,
                      int64_t n, bool nt)
{
    const heft__kernel_ops_t *ops = heft__ops();
    if (src_dtype == dst_dtype) {
        ops->move(dst, 0, src, 0, 1, n * heft_dtype_get_unit_bytes(dst_dtype), nt, HEFT__AHEAD);
    } else if (src_dtype == HEFT_DTYPE_F32 && dst_dtype == HEFT_DTYPE_BF16) {
        ops->f32_to_bf16(dst, src, n, nt);
    } else if (src_dtype == HEFT_DTYPE_BF16 && dst_dtype == HEFT_DTYPE_F32) {
        ops->bf16_to_f32(dst, src, n, nt);
    } else if (src_dtype == HEFT_DTYPE_F32 && dst_dtype == HEFT_DTYPE_F16) {
        ops->f32_to_f16(dst, src, n, nt);
    } else if (src_dtype == HEFT_DTYPE_F16 && dst_dtype == HEFT_DTYPE_F32) {
        ops->f16_to_f32(dst, src, n, nt);
    } else {
        cast_each(dst_dtype, dst, src_dtype, src, n);
    }
}

void heft__cast(heft_dtype_t dst_dtype, void *dst, int64_t dst_stride, heft_dtype_t src_dtype,
                const void *src, int64_t src_stride, int64_t n)
{
    uint32_t dst_bytes = heft_dtype_get_unit_bytes(dst_dtype);
    uint32_t src_bytes = heft_dtype_get_unit_bytes(src_dtype);
    if (dst_stride == 1 && src_stride == 1) {
        heft__cast_block(dst_dtype, dst, src_dtype, src, n, n * dst_bytes >= HEFT__NT_MIN_BYTES);
        heft__ops()->fence();
        return;
    }
    uint64_t in[BLOCK];
    uint64_t out[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t some = heft__min_i64(BLOCK, n - i);
        heft__elems_move(in, src_bytes, (const uint8_t *)src + i * src_stride * src_bytes,
                         src_stride * src_bytes, some, src_bytes);
        heft__cast_block(dst_dtype, out, src_dtype, in, some, false);
        heft__elems_move((uint8_t *)dst + i * dst_stride * dst_bytes, dst_stride * dst_bytes, out,
                         dst_bytes, some, dst_bytes);
    }
}
