/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of one element, exact by construction: the source is unpacked to sign, integer mantissa and
 * power of two, and packed again with a single rounding to nearest even. Slow, and the judge of the
 * fast casts.
 *
 * Rules where formats differ. Not-a-number stays so: sign and leading payload bits kept, quiet
 * (bf16 to f32 is a plain shift and does not quieten). f8_e4m3 and f8_e5m2 saturate, infinities
 * included. f8_e8m0 holds powers of two only: ties go up, zero becomes the smallest power, negative
 * and too large values become not-a-number. Float to integer truncates towards zero and saturates;
 * not-a-number gives 0. Anything to bool asks "is it not zero".
 */
#include "kernel/kernel_ops.h"

typedef enum number_class { NUMBER_FINITE, NUMBER_INF, NUMBER_NAN } number_class_t;

/* (-1)^negative * mantissa * 2^exponent; for NaN, mantissa is the payload, top-aligned. */
typedef struct number {
    number_class_t cls;
    bool negative;
    int exponent;
    uint64_t mantissa;
} number_t;

typedef struct float_format {
    uint8_t bits;
    uint8_t mantissa_bits;
    int16_t bias;
    uint16_t max_exponent; /* all ones */
    uint8_t is_saturating;
} float_format_t;

static const float_format_t formats[] = {
    [HEFT_DTYPE_F16] = { 16, 10, 15, 0x1f, 0 },  [HEFT_DTYPE_BF16] = { 16, 7, 127, 0xff, 0 },
    [HEFT_DTYPE_F32] = { 32, 23, 127, 0xff, 0 }, [HEFT_DTYPE_F64] = { 64, 52, 1023, 0x7ff, 0 },
    [HEFT_DTYPE_F8_E4M3] = { 8, 3, 7, 0xf, 1 },  [HEFT_DTYPE_F8_E5M2] = { 8, 2, 15, 0x1f, 1 },
};

static uint64_t low_mask(uint32_t bits)
{
    return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

static bool is_signed_int(heft_dtype_t dtype)
{
    return dtype == HEFT_DTYPE_I8 || dtype == HEFT_DTYPE_I16 || dtype == HEFT_DTYPE_I32 ||
           dtype == HEFT_DTYPE_I64;
}

static int64_t sign_extend(uint64_t bits, uint32_t n_bits)
{
    uint64_t sign = UINT64_C(1) << (n_bits - 1);
    return (int64_t)(((bits & low_mask(n_bits)) ^ sign) - sign);
}

static number_t decode_e8m0(uint64_t bits)
{
    if ((bits & 0xff) == 0xff) {
        return (number_t){ .cls = NUMBER_NAN, .mantissa = UINT64_C(1) << 63 };
    }
    return (number_t){ .exponent = (int)(bits & 0xff) - 127, .mantissa = 1 };
}

static number_t decode_float(heft_dtype_t dtype, uint64_t bits)
{
    if (dtype == HEFT_DTYPE_F8_E8M0) {
        return decode_e8m0(bits);
    }
    const float_format_t *f = &formats[dtype];
    uint64_t mantissa = bits & low_mask(f->mantissa_bits);
    uint64_t exponent = bits >> f->mantissa_bits & f->max_exponent;
    number_t v = { .negative = (bits >> (f->bits - 1) & 1) != 0 };
    bool is_e4m3 = dtype == HEFT_DTYPE_F8_E4M3;
    if (exponent == f->max_exponent && (!is_e4m3 || mantissa == 7)) {
        v.cls = mantissa == 0 ? NUMBER_INF : NUMBER_NAN;
        v.mantissa = mantissa << (64 - f->mantissa_bits);
        return v;
    }
    v.mantissa = exponent == 0 ? mantissa : mantissa | UINT64_C(1) << f->mantissa_bits;
    v.exponent = (int)(exponent == 0 ? 1 : exponent) - f->bias - f->mantissa_bits;
    return v;
}

static number_t decode_int(heft_dtype_t dtype, uint64_t bits)
{
    uint32_t n_bits = heft_dtype_get_bits(dtype);
    if (!is_signed_int(dtype)) {
        return (number_t){ .mantissa = bits & low_mask(n_bits) };
    }
    int64_t v = sign_extend(bits, n_bits);
    return (number_t){ .negative = v < 0, .mantissa = v < 0 ? 0 - (uint64_t)v : (uint64_t)v };
}

static uint64_t encode_e8m0(number_t v)
{
    if (v.cls != NUMBER_FINITE || (v.negative && v.mantissa != 0)) {
        return 0xff;
    }
    if (v.mantissa == 0) {
        return 0;
    }
    int shift = __builtin_clzll(v.mantissa);
    int code = v.exponent - shift + 63 + 127;
    code += (v.mantissa << shift >> 62 & 1) != 0; /* at least 1.5: the tie goes up */
    return code < 0 ? 0 : code > 0xff ? 0xff : (uint64_t)code;
}

/* mantissa / 2^drop to nearest even, for a mantissa whose top bit is set. */
static uint64_t round_shift(uint64_t mantissa, int drop)
{
    if (drop > 64) {
        return 0;
    }
    uint64_t kept = drop == 64 ? 0 : mantissa >> drop;
    uint64_t rest = mantissa & low_mask((uint32_t)drop);
    uint64_t half = UINT64_C(1) << (drop - 1);
    return kept + (rest > half || (rest == half && (kept & 1) != 0));
}

/* Exponent and mantissa fields of a finite value; above every finite code if it is too large. */
static uint64_t encode_magnitude(const float_format_t *f, number_t v)
{
    if (v.mantissa == 0) {
        return 0;
    }
    int shift = __builtin_clzll(v.mantissa);
    int exponent = v.exponent - shift + 63 + f->bias; /* as stored, if normal */
    if (exponent > f->max_exponent) {
        return UINT64_MAX;
    }
    int denormal = exponent < 1 ? 1 - exponent : 0;
    uint64_t q = round_shift(v.mantissa << shift, 63 - f->mantissa_bits + denormal);
    /* A normal q carries the hidden bit, which adds 1 to the exponent field. */
    return denormal > 0 ? q : ((uint64_t)(exponent - 1) << f->mantissa_bits) + q;
}

static uint64_t encode_float(heft_dtype_t dtype, number_t v)
{
    if (dtype == HEFT_DTYPE_F8_E8M0) {
        return encode_e8m0(v);
    }
    const float_format_t *f = &formats[dtype];
    uint64_t sign = (uint64_t)v.negative << (f->bits - 1);
    uint64_t inf = (uint64_t)f->max_exponent << f->mantissa_bits;
    uint64_t largest = inf - 1;
    if (dtype == HEFT_DTYPE_F8_E4M3) {
        inf = 0x7f;
        largest = 0x7e;
    }
    if (v.cls == NUMBER_NAN) {
        uint64_t quiet = UINT64_C(1) << (f->mantissa_bits - 1);
        return sign | inf | quiet | v.mantissa >> (64 - f->mantissa_bits);
    }
    uint64_t code = v.cls == NUMBER_INF ? UINT64_MAX : encode_magnitude(f, v);
    if (code > largest) {
        code = f->is_saturating ? largest : inf;
    }
    return sign | code;
}

static uint64_t encode_int(heft_dtype_t dtype, number_t v)
{
    uint32_t n_bits = heft_dtype_get_bits(dtype);
    bool is_signed = is_signed_int(dtype);
    uint64_t most = low_mask(is_signed ? n_bits - 1 : n_bits);
    uint64_t least = is_signed ? most + 1 : 0; /* magnitude of the smallest value */
    if (v.cls == NUMBER_NAN) {
        return 0;
    }
    uint64_t bound = v.negative ? least : most;
    uint64_t m = v.mantissa;
    if (v.cls == NUMBER_INF || (m != 0 && v.exponent > 0 && v.exponent > __builtin_clzll(m))) {
        m = bound;
    } else if (v.exponent < 0) {
        m = v.exponent <= -64 ? 0 : m >> -v.exponent;
    } else if (m != 0) {
        m <<= v.exponent;
    }
    m = m > bound ? bound : m;
    return (v.negative ? 0 - m : m) & low_mask(n_bits);
}

uint64_t heft__cast_bits(heft_dtype_t dst_dtype, heft_dtype_t src_dtype, uint64_t bits)
{
    uint32_t src_bits = heft_dtype_get_bits(src_dtype);
    uint32_t dst_bits = heft_dtype_get_bits(dst_dtype);
    if (src_dtype == dst_dtype) {
        return bits & low_mask(src_bits);
    }
    if (src_dtype == HEFT_DTYPE_BF16 && dst_dtype == HEFT_DTYPE_F32) {
        return (bits & 0xffff) << 16;
    }
    bool from_float = heft_dtype_is_float(src_dtype) != 0;
    number_t v = from_float ? decode_float(src_dtype, bits) : decode_int(src_dtype, bits);
    if (dst_dtype == HEFT_DTYPE_BOOL) {
        return v.cls != NUMBER_FINITE || v.mantissa != 0;
    }
    if (heft_dtype_is_float(dst_dtype) != 0) {
        return encode_float(dst_dtype, v);
    }
    if (from_float) {
        return encode_int(dst_dtype, v);
    }
    uint64_t wide = is_signed_int(src_dtype) ? (uint64_t)sign_extend(bits, src_bits) : v.mantissa;
    return wide & low_mask(dst_bits);
}
