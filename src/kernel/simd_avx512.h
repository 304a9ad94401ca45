/* SPDX-License-Identifier: Apache-2.0 */
/* 64-byte vectors for ops_simd.h. Lanes are 16 bytes; four of them hold rows far apart. */
#ifndef HEFT_KERNEL_SIMD_AVX512_H
#define HEFT_KERNEL_SIMD_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512i vec_t;
#define V_BYTES 64

#define v_load(p) _mm512_loadu_si512((const void *)(p))
#define v_store(p, v) _mm512_storeu_si512((void *)(p), (v))
#define v_stream(p, v) _mm512_stream_si512((__m512i *)(void *)(p), (v))
#define v_lo8(a, b) _mm512_unpacklo_epi8((a), (b))
#define v_hi8(a, b) _mm512_unpackhi_epi8((a), (b))
#define v_lo16(a, b) _mm512_unpacklo_epi16((a), (b))
#define v_hi16(a, b) _mm512_unpackhi_epi16((a), (b))
#define v_lo32(a, b) _mm512_unpacklo_epi32((a), (b))
#define v_hi32(a, b) _mm512_unpackhi_epi32((a), (b))
#define v_lo64(a, b) _mm512_unpacklo_epi64((a), (b))
#define v_hi64(a, b) _mm512_unpackhi_epi64((a), (b))

/* The even (shift 0) or odd elements of a and b, in order. */
static inline vec_t v_join(vec_t packed)
{
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), packed);
}

static inline vec_t v_half_8(vec_t a, vec_t b, bool odd)
{
    const vec_t low = _mm512_set1_epi16(0xff);
    a = odd ? _mm512_srli_epi16(a, 8) : _mm512_and_si512(a, low);
    b = odd ? _mm512_srli_epi16(b, 8) : _mm512_and_si512(b, low);
    return v_join(_mm512_packus_epi16(a, b));
}

static inline vec_t v_half_16(vec_t a, vec_t b, bool odd)
{
    const vec_t low = _mm512_set1_epi32(0xffff);
    a = odd ? _mm512_srli_epi32(a, 16) : _mm512_and_si512(a, low);
    b = odd ? _mm512_srli_epi32(b, 16) : _mm512_and_si512(b, low);
    return v_join(_mm512_packus_epi32(a, b));
}

static inline vec_t v_half_32(vec_t a, vec_t b, bool odd)
{
    __m512 x = _mm512_castsi512_ps(a);
    __m512 y = _mm512_castsi512_ps(b);
    __m512 half = odd ? _mm512_shuffle_ps(x, y, 0xdd) : _mm512_shuffle_ps(x, y, 0x88);
    return v_join(_mm512_castps_si512(half));
}

static inline vec_t v_half_64(vec_t a, vec_t b, bool odd)
{
    return v_join(odd ? v_hi64(a, b) : v_lo64(a, b));
}

static inline __m128i load_lane(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i_u *)(const void *)p);
}

/* 16 bytes each from p, p + step, p + 2 step and p + 3 step. */
static inline vec_t v_load_lanes(const uint8_t *p, int64_t step)
{
    __m512i v = _mm512_castsi128_si512(load_lane(p));
    v = _mm512_inserti64x2(v, load_lane(p + step), 1);
    v = _mm512_inserti64x2(v, load_lane(p + 2 * step), 2);
    return _mm512_inserti64x2(v, load_lane(p + 3 * step), 3);
}

/* 16 floats to the low halves of 16 words; see round_bf16 in cast_scalar.c. (vcvtneps2bf16 would
 * flush denormals.) */
static inline __m256i round_bf16_half(const uint8_t *p)
{
    __m512i v = v_load(p);
    __m512i high = _mm512_srli_epi32(v, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(0x7fff)), odd);
    __m512i magnitude = _mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i rounded = _mm512_srli_epi32(sum, 16);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
}

/* V_BYTES of 16-bit elements from twice as many bytes of f32. */
static inline vec_t v_f32_to_bf16(const uint8_t *p)
{
    __m512i low = _mm512_castsi256_si512(round_bf16_half(p));
    return _mm512_inserti64x4(low, round_bf16_half(p + 64), 1);
}

static inline __m256i round_f16_half(const uint8_t *p)
{
    const __mmask16 all = 0xffff; /* the plain form does not compile without warnings */
    return _mm512_maskz_cvtps_ph(all, _mm512_castsi512_ps(v_load(p)), _MM_FROUND_TO_NEAREST_INT);
}

static inline vec_t v_f32_to_f16(const uint8_t *p)
{
    __m512i low = _mm512_castsi256_si512(round_f16_half(p));
    return _mm512_inserti64x4(low, round_f16_half(p + 64), 1);
}

/* V_BYTES of f32 from half as many bytes. */
static inline vec_t v_bf16_to_f32(const uint8_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i_u *)(const void *)p);
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

static inline vec_t v_f16_to_f32(const uint8_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i_u *)(const void *)p);
    return _mm512_castps_si512(_mm512_cvtph_ps(half));
}

/* The 8-bit floats have the exponents of f16 or fewer, so that f16 holds them, e4m3 scaled by 2^-8:
 * no rounding, no dependence on how the CPU treats denormals. */
static inline vec_t v_e5m2_to_f32(const uint8_t *p)
{
    __m256i words = _mm256_cvtepu8_epi16(load_lane(p));
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_slli_epi16(words, 8)));
}

static inline vec_t v_e4m3_to_f32(const uint8_t *p)
{
    __m256i words = _mm256_cvtepi8_epi16(load_lane(p));
    __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(INT16_MIN));
    __m256i is_nan = _mm256_cmpeq_epi16(low, _mm256_set1_epi16(0x7f));
    __m256i half = _mm256_or_si256(_mm256_slli_epi16(low, 7), sign);
    half = _mm256_blendv_epi8(half, _mm256_or_si256(sign, _mm256_set1_epi16(0x7f80)), is_nan);
    return _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256)));
}

#endif
