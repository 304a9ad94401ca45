/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To the 8-bit floats, and the largest magnitude: included once by each vector level, after
 * ops_simd.h. 32-byte vectors at every level: 32 codes come from four of them.
 *
 * A normal result is rounded by adding just under half of what is dropped to the bits (and the last
 * kept bit, for ties). A denormal one is a multiple of a fixed unit: adding the f32 number whose
 * last bit is that unit rounds to it, to nearest even in the default floating-point environment.
 */
#include "kernel/cast_f8.h"

#define F8_STEP 32 /* codes at a time */

typedef struct f8_format {
    int m_bits;
    int least_exponent; /* of a normal number, as in f32 */
    int rebias;         /* what normal codes are too large by, once shifted */
    int unit_exponent;  /* of the f32 number whose last bit is the unit of denormals */
    int largest;
    int nan;
} f8_format_t;

static const f8_format_t f8_e4m3 = { 3, 121, 120 << 3, 141, 0x7e, 0x7f };
static const f8_format_t f8_e5m2 = { 2, 113, 112 << 2, 134, 0x7b, 0x7e };

/* 8 floats to codes in the low bytes of words. */
ALWAYS_INLINE __m256i f8_words(__m256i v, const f8_format_t f, bool signs_nan)
{
    const int drop = 23 - f.m_bits;
    __m256i a = _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(a, drop), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(a, _mm256_set1_epi32((1 << (drop - 1)) - 1));
    sum = _mm256_srli_epi32(_mm256_add_epi32(sum, odd), drop);
    __m256i normal = _mm256_sub_epi32(sum, _mm256_set1_epi32(f.rebias));
    __m256i unit = _mm256_set1_epi32(f.unit_exponent << 23);
    __m256 rounded = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(unit));
    __m256i denormal = _mm256_sub_epi32(_mm256_castps_si256(rounded), unit);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(f.least_exponent << 23), a);
    __m256i code = _mm256_blendv_epi8(normal, denormal, is_small);
    code = _mm256_min_epi32(code, _mm256_set1_epi32(f.largest));
    __m256i is_nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));
    __m256i nan = _mm256_set1_epi32(f.nan);
    if (f.m_bits == 2) { /* leading payload bits are kept; e4m3 has one code only */
        __m256i payload = _mm256_and_si256(_mm256_srli_epi32(a, drop), _mm256_set1_epi32(3));
        nan = _mm256_or_si256(nan, payload);
    }
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(v, 24), _mm256_set1_epi32(0x80));
    sign = signs_nan ? sign : _mm256_andnot_si256(is_nan, sign);
    return _mm256_or_si256(_mm256_blendv_epi8(code, nan, is_nan), sign);
}

/* 32 codes of words that came in order, or from the halves of 16-bit elements in their lanes. */
ALWAYS_INLINE __m256i f8_pack_f32(const __m256i w[4])
{
    __m256i packed =
        _mm256_packus_epi16(_mm256_packus_epi32(w[0], w[1]), _mm256_packus_epi32(w[2], w[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

ALWAYS_INLINE __m256i f8_pack_bf16(const __m256i w[4])
{
    __m256i packed =
        _mm256_packus_epi16(_mm256_packus_epi32(w[0], w[1]), _mm256_packus_epi32(w[2], w[3]));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

ALWAYS_INLINE __m256i f8_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i_u *)(const void *)p);
}

ALWAYS_INLINE void f8_store(uint8_t *p, __m256i v, bool nt)
{
    if (nt) {
        _mm256_stream_si256((__m256i *)(void *)p, v);
    } else {
        _mm256_storeu_si256((__m256i_u *)(void *)p, v);
    }
}

/* 32 elements as f32, in the order that the pack of their dtype wants. */
ALWAYS_INLINE void f8_widen_f32(__m256i w[4], const uint8_t *p)
{
    for (int k = 0; k < 4; k++) {
        w[k] = f8_load(p + 32 * k);
    }
}

ALWAYS_INLINE void f8_widen_bf16(__m256i w[4], const uint8_t *p)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int k = 0; k < 2; k++) {
        __m256i v = f8_load(p + 32 * k);
        w[2 * k] = _mm256_unpacklo_epi16(zero, v);
        w[2 * k + 1] = _mm256_unpackhi_epi16(zero, v);
    }
}

#define DEFINE_TO_F8(from, type, to)                                                          \
    static void simd_##from##_to_##to(uint8_t *dst, const type *source, int64_t n, bool nt,   \
                                      int64_t ahead)                                          \
    {                                                                                         \
        const int64_t bytes = (int64_t)sizeof(type);                                          \
        const uint8_t *src = (const uint8_t *)source;                                         \
        int64_t i = nt ? heft__min_i64(to_line(dst), n) : 0;                                  \
        heft__##from##_to_##to##_loop(dst, source, i);                                        \
        for (; i + LINE <= n; i += LINE) {                                                    \
            __m256i out[2];                                                                   \
            for (int64_t l = 0; l < bytes; l++) {                                             \
                prefetch(src + i * bytes + l * LINE + ahead);                                 \
            }                                                                                 \
            for (int h = 0; h < 2; h++) {                                                     \
                __m256i w[4];                                                                 \
                f8_widen_##from(w, src + (i + h * F8_STEP) * bytes);                          \
                for (int k = 0; k < 4; k++) {                                                 \
                    w[k] = f8_words(w[k], f8_##to, true);                                     \
                }                                                                             \
                out[h] = f8_pack_##from(w);                                                   \
            }                                                                                 \
            f8_store(dst + i, out[0], nt);                                                    \
            f8_store(dst + i + F8_STEP, out[1], nt);                                          \
        }                                                                                     \
        heft__##from##_to_##to##_loop(dst + i, (const type *)(const void *)(src + i * bytes), \
                                      n - i);                                                 \
    }

DEFINE_TO_F8(f32, uint32_t, e4m3)
DEFINE_TO_F8(f32, uint32_t, e5m2)
DEFINE_TO_F8(bf16, uint16_t, e4m3)
DEFINE_TO_F8(bf16, uint16_t, e5m2)

/* ---- blocks ---- */

#define DEFINE_QUANTISE(from, bytes)                                                      \
    ALWAYS_INLINE void quantise_##from(const heft__quantise_tile_t *t, bool divides)      \
    {                                                                                     \
        const __m256 factor = _mm256_set1_ps(t->factor);                                  \
        for (int64_t r = 0; r < t->n_rows; r++) {                                         \
            const uint8_t *src = t->src + r * t->src_step;                                \
            uint8_t *dst = t->dst + r * t->dst_step;                                      \
            int64_t i = 0;                                                                \
            for (; i + F8_STEP <= t->n; i += F8_STEP) {                                   \
                __m256i w[4];                                                             \
                f8_widen_##from(w, src + i * (bytes));                                    \
                for (int k = 0; k < 4; k++) {                                             \
                    __m256 x = _mm256_castsi256_ps(w[k]);                                 \
                    x = divides ? _mm256_div_ps(x, factor) : _mm256_mul_ps(x, factor);    \
                    w[k] = f8_words(_mm256_castps_si256(x), f8_e4m3, false);              \
                }                                                                         \
                f8_store(dst + i, f8_pack_##from(w), false);                              \
            }                                                                             \
            heft__quantise_##from##_loop(dst + i, src + i * (bytes), t->n - i, t->factor, \
                                         divides);                                        \
        }                                                                                 \
    }                                                                                     \
    static void simd_quantise_##from(const heft__quantise_tile_t *t)                      \
    {                                                                                     \
        if (t->divides) {                                                                 \
            quantise_##from(t, true);                                                     \
        } else {                                                                          \
            quantise_##from(t, false);                                                    \
        }                                                                                 \
    }

DEFINE_QUANTISE(f32, 4)
DEFINE_QUANTISE(bf16, 2)

/* 8 codes as f32, by way of f16 (see v_e4m3_to_f32), times a factor. */
ALWAYS_INLINE __m256 f8_scaled(__m128i words, __m256 factor)
{
    __m128i low = _mm_and_si128(words, _mm_set1_epi16(0x7f));
    __m128i sign = _mm_and_si128(words, _mm_set1_epi16(INT16_MIN));
    __m128i is_nan = _mm_cmpeq_epi16(low, _mm_set1_epi16(0x7f));
    __m128i half = _mm_or_si128(_mm_slli_epi16(low, 7), sign);
    half = _mm_blendv_epi8(half, _mm_or_si128(sign, _mm_set1_epi16(0x7f80)), is_nan);
    __m256 v = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    return _mm256_mul_ps(v, factor);
}

/* To bf16 in the low halves of words; what is no number becomes the one pattern. */
ALWAYS_INLINE __m256i f8_round_bf16(__m256 x)
{
    __m256i v = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(0x7fff)), odd);
    __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0),
                              _mm256_castps_si256(is_nan));
}

static void simd_dequantise_bf16(uint16_t *dst, const uint8_t *src, int64_t n, float factor)
{
    const __m256 by = _mm256_set1_ps(factor);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m128i codes = _mm_loadu_si128((const __m128i_u *)(const void *)(src + i));
        __m256i a = f8_round_bf16(f8_scaled(_mm_cvtepi8_epi16(codes), by));
        __m256i b = f8_round_bf16(f8_scaled(_mm_cvtepi8_epi16(_mm_srli_si128(codes, 8)), by));
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
        _mm256_storeu_si256((__m256i_u *)(void *)(dst + i), packed);
    }
    heft__scalar_dequantise_bf16(dst + i, src + i, n - i, factor);
}

/* The largest 32-bit word. */
static inline uint32_t max_word(__m256i v)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static uint32_t simd_max_bits16(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n)
{
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    __m256i most[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() };
    uint32_t rest = 0;
    for (int64_t r = 0; r < n_rows; r++, src += step) {
        int64_t i = 0;
        for (; i + 32 <= n; i += 32) {
            prefetch(src + 2 * i + 4 * step); /* rows further on, where a row is short */
            most[0] = _mm256_max_epi16(most[0], _mm256_and_si256(f8_load(src + 2 * i), mask));
            most[1] = _mm256_max_epi16(most[1], _mm256_and_si256(f8_load(src + 2 * i + 32), mask));
        }
        rest = heft__max_bits16_loop(rest, src + 2 * i, n - i);
    }
    __m256i all = _mm256_max_epi16(most[0], most[1]);
    all = _mm256_max_epi16(_mm256_and_si256(all, _mm256_set1_epi32(0xffff)),
                           _mm256_srli_epi32(all, 16));
    uint32_t word = max_word(all);
    return word > rest ? word : rest;
}

static uint32_t simd_max_bits32(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i most[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() };
    uint32_t rest = 0;
    for (int64_t r = 0; r < n_rows; r++, src += step) {
        int64_t i = 0;
        for (; i + 16 <= n; i += 16) {
            prefetch(src + 4 * i + 4 * step);
            most[0] = _mm256_max_epu32(most[0], _mm256_and_si256(f8_load(src + 4 * i), mask));
            most[1] = _mm256_max_epu32(most[1], _mm256_and_si256(f8_load(src + 4 * i + 32), mask));
        }
        rest = heft__max_bits32_loop(rest, src + 4 * i, n - i);
    }
    uint32_t word = max_word(_mm256_max_epu32(most[0], most[1]));
    return word > rest ? word : rest;
}
