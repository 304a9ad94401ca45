/* SPDX-License-Identifier: Apache-2.0 */
/* Casts and arithmetic of contiguous elements at the scalar level. */
#include "kernel/arith.h"
#include "kernel/cast_f8.h"
#include "kernel/ops_scalar.h"

#include <string.h>

/* Round to nearest even; not-a-number keeps its sign and leading payload, quiet. */
static inline uint16_t round_bf16(uint32_t v)
{
    uint32_t rounded = (v + 0x7fff + (v >> 16 & 1)) >> 16;
    uint32_t quiet = v >> 16 | 0x40;
    return (uint16_t)((v & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

void heft__scalar_f32_to_bf16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, (const uint8_t *)src + 4 * i, 4);
        uint16_t r = round_bf16(v);
        memcpy((uint8_t *)dst + 2 * i, &r, 2);
    }
}

void heft__scalar_bf16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, (const uint8_t *)src + 2 * i, 2);
        uint32_t r = (uint32_t)v << 16;
        memcpy((uint8_t *)dst + 4 * i, &r, 4);
    }
}

void heft__scalar_f32_to_f16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, (const uint8_t *)src + 4 * i, 4);
        uint16_t r = (uint16_t)heft__cast_bits(HEFT_DTYPE_F16, HEFT_DTYPE_F32, v);
        memcpy((uint8_t *)dst + 2 * i, &r, 2);
    }
}

void heft__scalar_f16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, (const uint8_t *)src + 2 * i, 2);
        uint32_t r = (uint32_t)heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_F16, v);
        memcpy((uint8_t *)dst + 4 * i, &r, 4);
    }
}

#define SCALAR_TO_F8(from, type, to)                                                      \
    void heft__scalar_##from##_to_##to(uint8_t *dst, const type *src, int64_t n, bool nt, \
                                       int64_t ahead)                                     \
    {                                                                                     \
        (void)nt;                                                                         \
        (void)ahead;                                                                      \
        heft__##from##_to_##to##_loop(dst, src, n);                                       \
    }

SCALAR_TO_F8(f32, uint32_t, e4m3)
SCALAR_TO_F8(f32, uint32_t, e5m2)
SCALAR_TO_F8(bf16, uint16_t, e4m3)
SCALAR_TO_F8(bf16, uint16_t, e5m2)

void heft__scalar_dequantise_bf16(uint16_t *dst, const uint8_t *src, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = heft__e4m3_bits(src[i]);
        float v;
        memcpy(&v, &bits, sizeof v);
        v *= factor;
        memcpy(&bits, &v, sizeof bits);
        uint16_t r = v == v ? round_bf16(bits) : HEFT__NAN_F32 >> 16;
        memcpy((uint8_t *)dst + 2 * i, &r, 2);
    }
}

uint32_t heft__scalar_max_bits16(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n)
{
    uint32_t most = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        most = heft__max_bits16_loop(most, src + r * step, n);
    }
    return most;
}

uint32_t heft__scalar_max_bits32(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n)
{
    uint32_t most = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        most = heft__max_bits32_loop(most, src + r * step, n);
    }
    return most;
}

void heft__scalar_quantise_bf16(const heft__quantise_tile_t *t)
{
    for (int64_t r = 0; r < t->n_rows; r++) {
        heft__quantise_bf16_loop(t->dst + r * t->dst_step, t->src + r * t->src_step, t->n,
                                 t->factor, t->divides);
    }
}

void heft__scalar_quantise_f32(const heft__quantise_tile_t *t)
{
    for (int64_t r = 0; r < t->n_rows; r++) {
        heft__quantise_f32_loop(t->dst + r * t->dst_step, t->src + r * t->src_step, t->n, t->factor,
                                t->divides);
    }
}

void heft__scalar_e4m3_to_f32(uint32_t *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = heft__e4m3_bits(src[i]);
    }
}

void heft__scalar_e5m2_to_f32(uint32_t *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = heft__e5m2_bits(src[i]);
    }
}

/* 2^(v - 127); the smallest is a denormal. */
void heft__scalar_e8m0_to_f32(uint32_t *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t v = src[i];
        dst[i] = v == 0 ? 0x400000 : v == 0xff ? 0x7fc00000 : v << 23;
    }
}

void heft__scalar_arith_f32(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                            bool is_uniform, int64_t n)
{
    heft__arith_f32_loop(code, out, a, b, is_uniform, n);
}

void heft__scalar_arith_f64(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                            bool is_uniform, int64_t n)
{
    heft__arith_f64_loop(code, out, a, b, is_uniform, n);
}
