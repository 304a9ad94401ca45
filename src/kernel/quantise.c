/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of numbers with common scales: fp8 quantisation, and mxfp4 to floats.
 *
 * Quantising takes two passes over a block, the largest magnitude first, so the caller brings the
 * rows of a block near once. Magnitudes are compared as bits, which puts not-a-number on top: it
 * reaches the scale and from there every code of its block. Floating-point steps run in the default
 * environment, whatever the caller's is.
 */
#include "kernel/cast.h"

#include <fenv.h>
#include <string.h>

#define BLOCK 256
#define MOST 448.0F            /* the largest code */
#define LEAST_AMAX 0x38d1b717u /* 0.0001 */
#define INF_BITS 0x7f800000u

static float to_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint32_t to_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return v == v ? bits : 0x7fc00000;
}

/* ---- the largest magnitude ---- */

static uint32_t block_amax(const heft__kernel_ops_t *ops, heft_dtype_t dtype, const uint8_t *src,
                           int64_t src_step, int64_t n_rows, int64_t n)
{
    if (dtype == HEFT_DTYPE_F32) {
        return ops->max_bits32(src, src_step, n_rows, n);
    }
    uint32_t bits = ops->max_bits16(src, src_step, n_rows, n);
    return dtype == HEFT_DTYPE_BF16
               ? bits << 16
               : (uint32_t)heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_F16, bits);
}

void heft__quantise_scan(const heft__quantise_t *q, const void *src, int64_t src_step,
                         int64_t n_rows, uint32_t *amax)
{
    const heft__kernel_ops_t *ops = heft__ops();
    int64_t elem = heft_dtype_get_unit_bytes(q->src_dtype);
    const uint8_t *at = src;
    for (int64_t c = 0; c < q->n_cols; c += q->block_cols) {
        int64_t n = heft__min_i64(q->block_cols, q->n_cols - c);
        uint32_t most = block_amax(ops, q->src_dtype, at + c * elem, src_step, n_rows, n);
        *amax = most > *amax ? most : *amax;
        amax++;
    }
}

/* ---- scales ---- */

/* The smallest power of two that is not below v, a positive normal number. */
static float power_of_two_above(float v)
{
    uint32_t bits = to_bits(v);
    if (bits >= INF_BITS) {
        return v;
    }
    return to_float((bits + 0x7fffff) & INF_BITS);
}

static float scale_of(heft__scale_rule_t rule, uint32_t amax_bits, heft__quantise_factor_t *factor)
{
    float amax = to_float(amax_bits);
    bool is_zero = amax_bits == 0;
    bool is_clamped = rule == HEFT__SCALE_DEEPGEMM || rule == HEFT__SCALE_UE8M0;
    if (is_clamped && amax_bits < LEAST_AMAX) {
        amax = to_float(LEAST_AMAX);
    }
    *factor = (heft__quantise_factor_t){ .factor = 1 };
    float scale = 1;
    switch (rule) {
    case HEFT__SCALE_DEEPSEEK:
        scale = is_zero ? 1 : amax / MOST;
        *factor = (heft__quantise_factor_t){ .factor = scale, .divides = true };
        break;
    case HEFT__SCALE_TRANSFORMERS:
        factor->factor = is_zero ? 1 : 1 / amax * MOST;
        scale = 1 / factor->factor;
        break;
    case HEFT__SCALE_DEEPGEMM:
        scale = amax / MOST;
        factor->factor = 1 / scale;
        break;
    case HEFT__SCALE_UE8M0:
        scale = power_of_two_above(amax / MOST);
        factor->factor = 1 / scale;
        break;
    }
    return scale;
}

uint32_t heft__quantise_scale(const heft__quantise_t *q, uint32_t amax,
                              heft__quantise_factor_t *factor_out)
{
    fenv_t env;
    (void)fegetenv(&env);
    (void)fesetenv(FE_DFL_ENV);
    uint32_t bits = to_bits(scale_of(q->rule, amax, factor_out));
    (void)fesetenv(&env);
    return q->scale_dtype == HEFT_DTYPE_F32
               ? bits
               : (uint32_t)heft__cast_bits(q->scale_dtype, HEFT_DTYPE_F32, bits);
}

/* ---- codes ---- */

/* f16 has no kernel of its own: by way of f32, which holds it exactly. */
static void quantise_f16(const heft__kernel_ops_t *ops, const heft__quantise_tile_t *tile)
{
    uint32_t wide[BLOCK];
    for (int64_t r = 0; r < tile->n_rows; r++) {
        for (int64_t i = 0; i < tile->n; i += BLOCK) {
            heft__quantise_tile_t some = { .dst = tile->dst + r * tile->dst_step + i,
                                           .src = (const uint8_t *)wide,
                                           .n_rows = 1,
                                           .n = heft__min_i64(BLOCK, tile->n - i),
                                           .factor = tile->factor,
                                           .divides = tile->divides };
            heft__cast_block(ops, HEFT_DTYPE_F32, wide, HEFT_DTYPE_F16,
                             tile->src + r * tile->src_step + 2 * i, some.n, false, 0);
            ops->quantise_f32(&some);
        }
    }
}

void heft__quantise_rows(const heft__quantise_t *q, const uint32_t *amax, const void *src,
                         int64_t src_step, int64_t n_rows, uint8_t *dst)
{
    const heft__kernel_ops_t *ops = heft__ops();
    int64_t elem = heft_dtype_get_unit_bytes(q->src_dtype);
    fenv_t env;
    (void)fegetenv(&env);
    (void)fesetenv(FE_DFL_ENV);
    for (int64_t c = 0; c < q->n_cols; c += q->block_cols) {
        heft__quantise_factor_t factor;
        (void)scale_of(q->rule, *amax++, &factor);
        const heft__quantise_tile_t tile = { .dst = dst + c,
                                             .dst_step = q->n_cols,
                                             .src = (const uint8_t *)src + c * elem,
                                             .src_step = src_step,
                                             .n_rows = n_rows,
                                             .n = heft__min_i64(q->block_cols, q->n_cols - c),
                                             .factor = factor.factor,
                                             .divides = factor.divides };
        if (q->src_dtype == HEFT_DTYPE_F16) {
            quantise_f16(ops, &tile);
        } else if (q->src_dtype == HEFT_DTYPE_BF16) {
            ops->quantise_bf16(&tile);
        } else {
            ops->quantise_f32(&tile);
        }
    }
    (void)fesetenv(&env);
}

/* ---- mxfp4 ---- */

/* Twice the magnitude of a value by its three low bits. */
static const uint8_t doubled[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };

/* f32 bits of doubled / 2 * 2^(scale - 127), from integers: no environment, no denormal operands.
 */
static uint32_t mxfp4_bits(uint32_t nibble, uint32_t scale)
{
    uint32_t m = doubled[nibble & 7];
    uint32_t sign = (nibble & 8) << 28;
    if (scale == 0xff) {
        return 0x7fc00000;
    }
    if (m == 0) {
        return sign;
    }
    int top = 31 - __builtin_clz(m);     /* m is 1.x times 2^top */
    int exponent = (int)scale - 1 + top; /* as stored; the value is m * 2^(scale - 128) */
    uint32_t fraction = m << (23 - top) & 0x7fffff;
    if (exponent >= 0xff) {
        return sign | INF_BITS;
    }
    if (exponent < 1) { /* m * 2^-128 or so: multiples of 2^-149 */
        return sign | m << (scale + 21);
    }
    return sign | (uint32_t)exponent << 23 | fraction;
}

void heft__mxfp4_unpack(heft_dtype_t dst_dtype, void *dst, const uint8_t *blocks,
                        const uint8_t *scales, int64_t n)
{
    uint8_t *out = dst;
    for (int64_t g = 0; g < n; g++) {
        uint32_t value[16];
        for (uint32_t v = 0; v < 16; v++) {
            value[v] = mxfp4_bits(v, scales[g]);
        }
        const uint8_t *block = blocks + 16 * g;
        if (dst_dtype == HEFT_DTYPE_F32) {
            for (int k = 0; k < 16; k++) {
                const uint32_t pair[2] = { value[block[k] & 15], value[block[k] >> 4] };
                memcpy(out + (g * 16 + k) * 8, pair, sizeof pair);
            }
            continue;
        }
        for (int k = 0; k < 16; k++) { /* exact: few bits are set */
            uint32_t pair = value[block[k] & 15] >> 16 | (value[block[k] >> 4] & 0xffff0000u);
            memcpy(out + (g * 16 + k) * 4, &pair, sizeof pair);
        }
    }
}
