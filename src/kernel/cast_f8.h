/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 8-bit floats with sign, element by element: rounding saturates, in integer operations without
 * branches. The scalar level, and the ends of rows at the others. Private to this folder.
 */
#ifndef HEFT_KERNEL_CAST_F8_H
#define HEFT_KERNEL_CAST_F8_H

#include "kernel/kernel_ops.h"

#include <string.h>

/* v to a format of m_bits mantissa bits whose smallest normal number has f32 exponent e_min. */
static inline uint32_t heft__round_f8(uint32_t v, uint32_t m_bits, uint32_t e_min, uint32_t largest,
                                      uint32_t nan_bits)
{
    uint32_t exponent = v >> 23 & 0xff;
    uint32_t fraction = v & 0x7fffff;
    uint32_t mantissa = fraction | 0x800000; /* wrong for f32 denormals, which all become 0 */
    uint32_t below = exponent < e_min ? e_min - exponent : 0;
    uint32_t drop = 23 - m_bits + (below < 8 ? below : 8);
    uint32_t odd = mantissa >> drop & 1;
    uint32_t q = (mantissa + (1u << (drop - 1)) - 1 + odd) >> drop;
    uint32_t base = below == 0 ? (exponent - e_min) << m_bits : 0;
    uint32_t code = base + q;
    code = code > largest ? largest : code;
    code = (v & 0x7fffffff) > 0x7f800000 ? nan_bits | fraction >> (23 - m_bits) : code;
    return (v >> 24 & 0x80) | code;
}

#define HEFT__ROUND_E4M3(v) heft__round_f8((v), 3, 121, 0x7e, 0x7f)
#define HEFT__ROUND_E5M2(v) heft__round_f8((v), 2, 113, 0x7b, 0x7e)

static inline void heft__f32_to_e4m3_loop(uint8_t *dst, const uint32_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, (const uint8_t *)src + 4 * i, 4);
        dst[i] = (uint8_t)HEFT__ROUND_E4M3(v);
    }
}

static inline void heft__f32_to_e5m2_loop(uint8_t *dst, const uint32_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, (const uint8_t *)src + 4 * i, 4);
        dst[i] = (uint8_t)HEFT__ROUND_E5M2(v);
    }
}

static inline void heft__bf16_to_e4m3_loop(uint8_t *dst, const uint16_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, (const uint8_t *)src + 2 * i, 2);
        dst[i] = (uint8_t)HEFT__ROUND_E4M3((uint32_t)v << 16);
    }
}

static inline void heft__bf16_to_e5m2_loop(uint8_t *dst, const uint16_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, (const uint8_t *)src + 2 * i, 2);
        dst[i] = (uint8_t)HEFT__ROUND_E5M2((uint32_t)v << 16);
    }
}

/* One element of a quantised block; x has f32 bits. */
static inline uint8_t heft__quantise_one(uint32_t x_bits, float factor, bool divides)
{
    float x;
    memcpy(&x, &x_bits, sizeof x);
    float v = divides ? x / factor : x * factor;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return v == v ? (uint8_t)HEFT__ROUND_E4M3(bits) : 0x7f;
}

static inline void heft__quantise_bf16_loop(uint8_t *dst, const uint8_t *src, int64_t n,
                                            float factor, bool divides)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, src + 2 * i, 2);
        dst[i] = heft__quantise_one((uint32_t)v << 16, factor, divides);
    }
}

static inline void heft__quantise_f32_loop(uint8_t *dst, const uint8_t *src, int64_t n,
                                           float factor, bool divides)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, src + 4 * i, 4);
        dst[i] = heft__quantise_one(v, factor, divides);
    }
}

static inline uint32_t heft__max_bits16_loop(uint32_t most, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, src + 2 * i, 2);
        uint32_t magnitude = v & 0x7fff;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static inline uint32_t heft__max_bits32_loop(uint32_t most, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, src + 4 * i, 4);
        uint32_t magnitude = v & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* The value of an 8-bit float, as f32 bits. */
static inline uint32_t heft__e4m3_bits(uint32_t v)
{
    uint32_t sign = (v & 0x80) << 24;
    uint32_t low = v & 0x7f;
    if (low == 0x7f) {
        return sign | 0x7ff00000; /* mantissa bits kept */
    }
    if (low < 8) { /* multiples of 2^-9 */
        static const uint32_t small[8] = { 0,          0x3b000000, 0x3b800000, 0x3bc00000,
                                           0x3c000000, 0x3c200000, 0x3c400000, 0x3c600000 };
        return sign | small[low];
    }
    return sign | ((low << 20) + (UINT32_C(120) << 23));
}

static inline uint32_t heft__e5m2_bits(uint32_t v)
{
    uint32_t sign = (v & 0x80) << 24;
    uint32_t low = v & 0x7f;
    if (low >= 0x7c) {
        return sign | 0x7f800000 | (low == 0x7c ? 0 : 0x400000 | (low & 3) << 21);
    }
    if (low < 4) { /* multiples of 2^-16 */
        static const uint32_t small[4] = { 0, 0x37800000, 0x38000000, 0x38400000 };
        return sign | small[low];
    }
    return sign | ((low << 21) + (UINT32_C(112) << 23));
}

#endif
