/* SPDX-License-Identifier: Apache-2.0 */
/* 32-byte vectors for ops_simd.h. Lanes are 16 bytes; two of them hold rows far apart. */
#ifndef HEFT_KERNEL_SIMD_AVX2_H
#define HEFT_KERNEL_SIMD_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m256i vec_t;
#define V_BYTES 32

#define v_load(p) _mm256_loadu_si256((const __m256i_u *)(const void *)(p))
#define v_store(p, v) _mm256_storeu_si256((__m256i_u *)(void *)(p), (v))
#define v_stream(p, v) _mm256_stream_si256((__m256i *)(void *)(p), (v))
#define v_lo8(a, b) _mm256_unpacklo_epi8((a), (b))
#define v_hi8(a, b) _mm256_unpackhi_epi8((a), (b))
#define v_lo16(a, b) _mm256_unpacklo_epi16((a), (b))
#define v_hi16(a, b) _mm256_unpackhi_epi16((a), (b))
#define v_lo32(a, b) _mm256_unpacklo_epi32((a), (b))
#define v_hi32(a, b) _mm256_unpackhi_epi32((a), (b))
#define v_lo64(a, b) _mm256_unpacklo_epi64((a), (b))
#define v_hi64(a, b) _mm256_unpackhi_epi64((a), (b))

/* The even (shift 0) or odd elements of a and b, in order. */
static inline vec_t v_join(vec_t packed)
{
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

static inline vec_t v_half_8(vec_t a, vec_t b, bool odd)
{
    const vec_t low = _mm256_set1_epi16(0xff);
    a = odd ? _mm256_srli_epi16(a, 8) : _mm256_and_si256(a, low);
    b = odd ? _mm256_srli_epi16(b, 8) : _mm256_and_si256(b, low);
    return v_join(_mm256_packus_epi16(a, b));
}

static inline vec_t v_half_16(vec_t a, vec_t b, bool odd)
{
    const vec_t low = _mm256_set1_epi32(0xffff);
    a = odd ? _mm256_srli_epi32(a, 16) : _mm256_and_si256(a, low);
    b = odd ? _mm256_srli_epi32(b, 16) : _mm256_and_si256(b, low);
    return v_join(_mm256_packus_epi32(a, b));
}

static inline vec_t v_half_32(vec_t a, vec_t b, bool odd)
{
    __m256 x = _mm256_castsi256_ps(a);
    __m256 y = _mm256_castsi256_ps(b);
    __m256 half = odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88);
    return v_join(_mm256_castps_si256(half));
}

static inline vec_t v_half_64(vec_t a, vec_t b, bool odd)
{
    return v_join(odd ? v_hi64(a, b) : v_lo64(a, b));
}

/* 16 bytes each from p and p + step. */
static inline vec_t v_load_lanes(const uint8_t *p, int64_t step)
{
    __m128i a = _mm_loadu_si128((const __m128i_u *)(const void *)p);
    __m128i b = _mm_loadu_si128((const __m128i_u *)(const void *)(p + step));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* 8 floats to the low halves of 8 words; see round_bf16 in cast_scalar.c. */
static inline __m256i round_bf16_words(__m256i v)
{
    __m256i high = _mm256_srli_epi32(v, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(0x7fff)), odd);
    __m256i magnitude = _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
}

/* V_BYTES of 16-bit elements from twice as many bytes of f32. */
static inline vec_t v_f32_to_bf16(const uint8_t *p)
{
    __m256i packed =
        _mm256_packus_epi32(round_bf16_words(v_load(p)), round_bf16_words(v_load(p + 32)));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

static inline vec_t v_f32_to_f16(const uint8_t *p)
{
    __m128i a = _mm256_cvtps_ph(_mm256_castsi256_ps(v_load(p)), _MM_FROUND_TO_NEAREST_INT);
    __m128i b = _mm256_cvtps_ph(_mm256_castsi256_ps(v_load(p + 32)), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* V_BYTES of f32 from half as many bytes. */
static inline vec_t v_bf16_to_f32(const uint8_t *p)
{
    __m128i half = _mm_loadu_si128((const __m128i_u *)(const void *)p);
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

static inline vec_t v_f16_to_f32(const uint8_t *p)
{
    __m128i half = _mm_loadu_si128((const __m128i_u *)(const void *)p);
    return _mm256_castps_si256(_mm256_cvtph_ps(half));
}

/* The 8-bit floats have the exponents of f16 or fewer, so that f16 holds them, e4m3 scaled by 2^-8:
 * no rounding, no dependence on how the CPU treats denormals. */
static inline vec_t v_e5m2_to_f32(const uint8_t *p)
{
    __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i_u *)(const void *)p));
    return _mm256_castps_si256(_mm256_cvtph_ps(_mm_slli_epi16(words, 8)));
}

static inline vec_t v_e4m3_to_f32(const uint8_t *p)
{
    __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i_u *)(const void *)p));
    __m128i low = _mm_and_si128(words, _mm_set1_epi16(0x7f));
    __m128i sign = _mm_and_si128(words, _mm_set1_epi16(INT16_MIN));
    __m128i is_nan = _mm_cmpeq_epi16(low, _mm_set1_epi16(0x7f));
    __m128i half = _mm_or_si128(_mm_slli_epi16(low, 7), sign);
    half = _mm_blendv_epi8(half, _mm_or_si128(sign, _mm_set1_epi16(0x7f80)), is_nan);
    return _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256)));
}

#endif
