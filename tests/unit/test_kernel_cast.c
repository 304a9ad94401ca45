/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts. The judge of rounding is a search: all values of the destination format as doubles, the
 * two neighbours of the source value, the nearer one, on a tie the one with the even code. It
 * shares nothing with the code under test.
 */
#include "heft_test.h"

#include <math.h>

#include "kernel/kernel_ops.h"

typedef struct format {
    heft_dtype_t dtype;
    int bits;
    int mantissa;
    int bias;
    bool has_inf;
    bool saturates;
} format_t;

static const format_t bf16 = { HEFT_DTYPE_BF16, 16, 7, 127, true, false };
static const format_t f16 = { HEFT_DTYPE_F16, 16, 10, 15, true, false };
static const format_t e4m3 = { HEFT_DTYPE_F8_E4M3, 8, 3, 7, false, true };
static const format_t e5m2 = { HEFT_DTYPE_F8_E5M2, 8, 2, 15, true, true };
static const format_t f32 = { HEFT_DTYPE_F32, 32, 23, 127, true, false };

/* The value of a code without sign; NAN where it is none. */
static double value_of(const format_t *f, uint64_t code)
{
    uint64_t mantissa = code & ((UINT64_C(1) << f->mantissa) - 1);
    int exponent = (int)(code >> f->mantissa);
    int top = (1 << (f->bits - 1 - f->mantissa)) - 1;
    if (f->has_inf && exponent == top) {
        return mantissa == 0 ? (double)INFINITY : (double)NAN;
    }
    if (!f->has_inf && exponent == top && mantissa == (UINT64_C(1) << f->mantissa) - 1) {
        return (double)NAN;
    }
    uint64_t m = exponent == 0 ? mantissa : mantissa | UINT64_C(1) << f->mantissa;
    return ldexp((double)m, (exponent == 0 ? 1 : exponent) - f->bias - f->mantissa);
}

/* The code nearest to |v|, and the sign of v; v is not NaN. */
static uint64_t nearest(const format_t *f, double v)
{
    uint64_t sign = signbit(v) != 0 ? UINT64_C(1) << (f->bits - 1) : 0;
    double x = fabs(v);
    uint64_t largest = (UINT64_C(1) << (f->bits - 1)) - 1; /* the largest finite code */
    while (!isfinite(value_of(f, largest))) {
        largest--;
    }
    uint64_t low = 0;
    uint64_t high = largest;
    while (low < high) { /* the last code whose value is not above x */
        uint64_t mid = low + (high - low + 1) / 2;
        if (value_of(f, mid) <= x) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    double below = value_of(f, low);
    double above = low == largest ? below + (below - value_of(f, low - 1)) : value_of(f, low + 1);
    double down = x - below;
    double up = above - x;
    uint64_t code = down < up || (down == up && (low & 1) == 0) ? low : low + 1;
    if (code > largest) {
        code = f->saturates ? largest : largest + 1;
    }
    return sign | code;
}

static bool is_nan_code(const format_t *f, uint64_t code)
{
    return isnan(value_of(f, code & ((UINT64_C(1) << (f->bits - 1)) - 1)));
}

static double f32_value(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

/* A NaN stays one, quiet, with its sign. */
static void check_nan(const format_t *f, uint64_t got, bool negative)
{
    assert_true(is_nan_code(f, got));
    assert_int_equal(got >> (f->bits - 1), negative);
    if (f->has_inf) {
        assert_true((got >> (f->mantissa - 1) & 1) != 0);
    }
}

static void check_bits(const format_t *f, uint32_t bits)
{
    uint64_t got = heft__cast_bits(f->dtype, HEFT_DTYPE_F32, bits);
    double v = f32_value(bits);
    if (isnan(v)) {
        check_nan(f, got, bits >> 31 != 0);
    } else if (got != nearest(f, v)) {
        fail_msg("%s of f32 %08x: %llx, nearest %llx", heft_dtype_get_name(f->dtype), bits,
                 (unsigned long long)got, (unsigned long long)nearest(f, v));
    }
}

static void f32_to_bf16_vectors(void **state)
{
    (void)state;
    static const uint32_t vectors[][2] = {
        { 0x3f808000, 0x3f80 }, { 0x3f808001, 0x3f81 }, { 0x3f818000, 0x3f82 },
        { 0x3dcccccd, 0x3dcd }, { 0x00008000, 0x0000 }, { 0x00008001, 0x0001 },
        { 0x7f7fffff, 0x7f80 }, { 0x7f800001, 0x7fc0 }, { 0xff800001, 0xffc0 },
        { 0x80000000, 0x8000 }, { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 },
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint16_t got = 0;
        heft__cast(HEFT_DTYPE_BF16, &got, 1, HEFT_DTYPE_F32, &vectors[i][0], 1, 1);
        assert_int_equal(got, vectors[i][1]);
    }
}

static void f32_rounds_to_the_nearest_of_every_format(void **state)
{
    (void)state;
    static const format_t *const targets[] = { &bf16, &f16, &e4m3, &e5m2 };
    uint64_t random = heft_test_seed();
    for (size_t t = 0; t < 4; t++) {
        for (int64_t i = 0; i < heft_test_cases(60000); i++) {
            check_bits(targets[t], (uint32_t)heft_test_random(&random));
        }
        /* around every representable value and every midpoint of two (all of the 8-bit formats) */
        uint64_t step = targets[t]->bits == 8 ? 1 : 61;
        for (uint64_t code = 0; code + 1 < UINT64_C(1) << (targets[t]->bits - 1); code += step) {
            double a = value_of(targets[t], code);
            double b = value_of(targets[t], code + 1);
            if (!isfinite(a) || !isfinite(b)) {
                continue;
            }
            for (int k = -2; k <= 2; k++) {
                for (int side = 0; side < 2; side++) {
                    float near = (float)(side == 0 ? a : (a + b) / 2);
                    uint32_t bits;
                    memcpy(&bits, &near, sizeof bits);
                    bits += (uint32_t)k; /* wraps into NaN codes at 0: fine */
                    check_bits(targets[t], bits);
                    check_bits(targets[t], bits ^ 0x80000000u);
                }
            }
        }
    }
}

static void all_16_bit_values_round_to_the_nearest(void **state)
{
    (void)state;
    static const format_t *const sources[] = { &bf16, &f16 };
    static const format_t *const targets[] = { &bf16, &f16, &e4m3, &e5m2, &f32 };
    for (size_t s = 0; s < 2; s++) {
        for (size_t t = 0; t < 5; t++) {
            for (uint64_t code = 0; code < 0x10000; code++) {
                uint64_t got = heft__cast_bits(targets[t]->dtype, sources[s]->dtype, code);
                double v = value_of(sources[s], code & 0x7fff);
                v = (code & 0x8000) != 0 ? -v : v;
                if (sources[s] == targets[t]) {
                    assert_int_equal(got, code);
                } else if (isnan(v)) {
                    bool keeps_all = sources[s] == &bf16 && targets[t] == &f32;
                    if (keeps_all) {
                        assert_int_equal(got, code << 16);
                    } else {
                        check_nan(targets[t], got, (code & 0x8000) != 0);
                    }
                } else if (targets[t] == &f32) { /* exact */
                    assert_true(f32_value((uint32_t)got) == v &&
                                got >> 31 == (uint64_t)(code >> 15));
                } else {
                    assert_int_equal(got, nearest(targets[t], v));
                }
            }
        }
    }
}

static void f64_rounds_once(void **state)
{
    (void)state;
    /* 1 + 2^-8 + 2^-40: a way through f32 would lose the last term and then tie to even. */
    double v = 1 + ldexp(1, -8) + ldexp(1, -40);
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_BF16, HEFT_DTYPE_F64, bits), 0x3f81);
    uint64_t random = heft_test_seed();
    for (int64_t i = 0; i < heft_test_cases(20000); i++) {
        double x = ldexp((double)(int64_t)heft_test_random(&random),
                         (int)heft_test_random_in(&random, -90, -30));
        memcpy(&bits, &x, sizeof bits);
        float want = (float)x;
        uint32_t want_bits;
        memcpy(&want_bits, &want, sizeof want_bits);
        assert_int_equal(heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_F64, bits), want_bits);
        assert_int_equal(heft__cast_bits(HEFT_DTYPE_F16, HEFT_DTYPE_F64, bits), nearest(&f16, x));
        assert_int_equal(heft__cast_bits(HEFT_DTYPE_BF16, HEFT_DTYPE_F64, bits), nearest(&bf16, x));
    }
}

static void powers_of_two_round_up_on_a_tie(void **state)
{
    (void)state;
    static const struct {
        float from;
        uint8_t to;
    } vectors[] = {
        { 1.0f, 127 },  { 1.25f, 127 }, { 1.5f, 128 },    { 1.75f, 128 },     { 2.0f, 128 },
        { 0.0f, 0 },    { -0.0f, 0 },   { -1.0f, 0xff },  { 3e38f, 0xff },    { 1e-45f, 0 },
        { 0.75f, 127 }, { 0.7f, 126 },  { 2.5e38f, 254 }, { INFINITY, 0xff }, { NAN, 0xff },
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t bits;
        memcpy(&bits, &vectors[i].from, sizeof bits);
        assert_int_equal(heft__cast_bits(HEFT_DTYPE_F8_E8M0, HEFT_DTYPE_F32, bits), vectors[i].to);
    }
    for (uint64_t code = 0; code < 255; code++) {
        uint64_t wide = heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_F8_E8M0, code);
        assert_true(f32_value((uint32_t)wide) == ldexp(1, (int)code - 127));
        assert_int_equal(heft__cast_bits(HEFT_DTYPE_F8_E8M0, HEFT_DTYPE_F32, wide), code);
    }
    assert_true(
        isnan(f32_value((uint32_t)heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_F8_E8M0, 255))));
}

static uint64_t f32_to(heft_dtype_t dtype, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return heft__cast_bits(dtype, HEFT_DTYPE_F32, bits);
}

static void floats_truncate_and_saturate_to_integers(void **state)
{
    (void)state;
    assert_int_equal(f32_to(HEFT_DTYPE_I8, 2.9f), 2);
    assert_int_equal(f32_to(HEFT_DTYPE_I8, -2.9f), 0xfe);
    assert_int_equal(f32_to(HEFT_DTYPE_I8, 127.9f), 127);
    assert_int_equal(f32_to(HEFT_DTYPE_I8, 128.0f), 127);
    assert_int_equal(f32_to(HEFT_DTYPE_I8, -128.5f), 0x80);
    assert_int_equal(f32_to(HEFT_DTYPE_I8, -1e30f), 0x80);
    assert_int_equal(f32_to(HEFT_DTYPE_U8, -0.9f), 0);
    assert_int_equal(f32_to(HEFT_DTYPE_U8, -5.0f), 0);
    assert_int_equal(f32_to(HEFT_DTYPE_U8, 300.0f), 255);
    assert_int_equal(f32_to(HEFT_DTYPE_I64, 1e30f), INT64_MAX);
    assert_int_equal(f32_to(HEFT_DTYPE_U64, 1e30f), UINT64_MAX);
    assert_int_equal(f32_to(HEFT_DTYPE_I64, -9223372036854775808.0f), (uint64_t)INT64_MIN);
    assert_int_equal(f32_to(HEFT_DTYPE_U64, 9223372036854775808.0f), UINT64_C(1) << 63);
    assert_int_equal(f32_to(HEFT_DTYPE_I32, NAN), 0);
    assert_int_equal(f32_to(HEFT_DTYPE_I32, 1e-40f), 0);
    assert_int_equal(f32_to(HEFT_DTYPE_BOOL, 1e-40f), 1);
    assert_int_equal(f32_to(HEFT_DTYPE_BOOL, -0.0f), 0);
    assert_int_equal(f32_to(HEFT_DTYPE_BOOL, NAN), 1);
}

static void integers_keep_their_low_bits(void **state)
{
    (void)state;
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_I8, HEFT_DTYPE_I32, 0x12345681), 0x81);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_I64, HEFT_DTYPE_I8, 0x81), 0xffffffffffffff81u);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_U64, HEFT_DTYPE_U8, 0x81), 0x81);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_U32, HEFT_DTYPE_I16, 0xffff), 0xffffffff);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_BOOL, HEFT_DTYPE_I32, 0x100), 1);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_I32, 0xffffffff), 0xbf800000);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_U32, 0xffffffff), 0x4f800000);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_F32, HEFT_DTYPE_I64, 0x4000001), 0x4c800000);
    assert_int_equal(heft__cast_bits(HEFT_DTYPE_F64, HEFT_DTYPE_I64, 1), 0x3ff0000000000000);
}

static const heft_dtype_t unpacked[] = { HEFT_DTYPE_BOOL,   HEFT_DTYPE_U8,      HEFT_DTYPE_I8,
                                         HEFT_DTYPE_U16,    HEFT_DTYPE_I16,     HEFT_DTYPE_U32,
                                         HEFT_DTYPE_I32,    HEFT_DTYPE_U64,     HEFT_DTYPE_I64,
                                         HEFT_DTYPE_F16,    HEFT_DTYPE_BF16,    HEFT_DTYPE_F32,
                                         HEFT_DTYPE_F64,    HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F8_E5M2,
                                         HEFT_DTYPE_F8_E8M0 };
#define N_UNPACKED (sizeof unpacked / sizeof unpacked[0])

/* Many elements against one at a time, with strides, odd addresses and guards. */
static void check_pair(heft_dtype_t to, heft_dtype_t from, int64_t n, uint64_t *random)
{
    enum { MAX = 300, ROOM = MAX * 3 * 8 + 256 };
    static uint8_t src[ROOM];
    static uint8_t dst[ROOM];
    static uint8_t want[ROOM];
    int64_t src_bytes = heft_dtype_get_unit_bytes(from);
    int64_t dst_bytes = heft_dtype_get_unit_bytes(to);
    int64_t src_stride = heft_test_random_in(random, 0, 3);
    int64_t dst_stride = heft_test_random_in(random, 1, 3);
    if (heft_test_random_in(random, 0, 2) > 0) {
        src_stride = dst_stride = 1;
    }
    uint8_t *s = src + heft_test_random_in(random, 0, 63);
    int64_t at = 64 + heft_test_random_in(random, 0, 63);
    for (size_t i = 0; i < sizeof src; i++) {
        src[i] = (uint8_t)heft_test_random(random);
    }
    memset(dst, 0x5a, sizeof dst);
    memset(want, 0x5a, sizeof want);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, s + i * src_stride * src_bytes, (size_t)src_bytes);
        bits = heft__cast_bits(to, from, bits);
        memcpy(want + at + i * dst_stride * dst_bytes, &bits, (size_t)dst_bytes);
    }
    heft__cast(to, dst + at, dst_stride, from, s, src_stride, n);
    if (memcmp(dst, want, sizeof want) != 0) {
        fail_msg("%s to %s at level %s, n %lld, strides %lld and %lld", heft_dtype_get_name(from),
                 heft_dtype_get_name(to), heft__cpu_level_name(heft__cpu_get_level()), (long long)n,
                 (long long)dst_stride, (long long)src_stride);
    }
}

static void every_level_casts_every_pair_as_one_element(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        uint64_t random = seed;
        for (size_t a = 0; a < N_UNPACKED; a++) {
            for (size_t b = 0; b < N_UNPACKED; b++) {
                for (int64_t i = 0; i < heft_test_cases(6); i++) {
                    check_pair(unpacked[a], unpacked[b], heft_test_random_in(&random, 0, 300),
                               &random);
                }
            }
        }
    }
    assert_true(heft__cpu_use_level(best));
}

/* Non-temporal stores demand alignment; these casts are asked for them at every address. */
static void streamed_casts_do_at_any_address(void **state)
{
    (void)state;
    enum { N = 150 };
    static uint8_t src[4 * N + 64];
    static uint8_t dst[4 * N + 192];
    for (size_t i = 0; i < sizeof src; i++) {
        src[i] = (uint8_t)(i * 37 + 11);
    }
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        const heft__kernel_ops_t *ops = heft__ops();
        for (int64_t at = 0; at < 64; at++) {
            void *to = dst + 64 + at;
            const void *from = src + (at * 7) % 61;
            memset(dst, 0x5a, sizeof dst);
            ops->f32_to_bf16(to, from, N, true, 0);
            ops->fence();
            for (int64_t i = 0; i < N; i++) {
                uint32_t bits;
                uint16_t got;
                memcpy(&bits, (const uint8_t *)from + 4 * i, sizeof bits);
                memcpy(&got, (uint8_t *)to + 2 * i, sizeof got);
                assert_int_equal(got, heft__cast_bits(HEFT_DTYPE_BF16, HEFT_DTYPE_F32, bits));
            }
            assert_int_equal(dst[63 + at], 0x5a);
            assert_int_equal(dst[64 + at + 2 * N], 0x5a);
            ops->bf16_to_f32(to, from, N, true, 0);
            ops->fence();
            for (int64_t i = 0; i < N; i++) {
                uint16_t bits;
                uint32_t got;
                memcpy(&bits, (const uint8_t *)from + 2 * i, sizeof bits);
                memcpy(&got, (uint8_t *)to + 4 * i, sizeof got);
                assert_int_equal(got, (uint32_t)bits << 16);
            }
            assert_int_equal(dst[63 + at], 0x5a);
            assert_int_equal(dst[64 + at + 4 * N], 0x5a);
        }
    }
    assert_true(heft__cpu_use_level(best));
}

/* The fast kernels see every pattern that decides: the top 16 bits with the deciding low ones. */
static void every_level_rounds_every_high_half(void **state)
{
    (void)state;
    static const uint32_t lows[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x0fff, 0x1000, 0x1001 };
    static const heft_dtype_t targets[] = { HEFT_DTYPE_BF16, HEFT_DTYPE_F16, HEFT_DTYPE_F8_E4M3,
                                            HEFT_DTYPE_F8_E5M2 };
    enum { N = 4096 };
    static uint32_t in[N];
    static uint16_t out[N];
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        for (size_t t = 0; t < 4; t++) {
            for (uint32_t high = 0; high < 0x10000; high += N) {
                uint32_t low = lows[(high / N + t) % 9];
                for (uint32_t i = 0; i < N; i++) {
                    in[i] = (high + i) << 16 | low;
                }
                heft__cast(targets[t], out, 1, HEFT_DTYPE_F32, in, 1, N);
                uint32_t bytes = heft_dtype_get_unit_bytes(targets[t]);
                for (uint32_t i = 0; i < N; i++) {
                    uint64_t got = bytes == 2 ? out[i] : ((uint8_t *)out)[i];
                    assert_int_equal(got, heft__cast_bits(targets[t], HEFT_DTYPE_F32, in[i]));
                }
            }
        }
    }
    assert_true(heft__cpu_use_level(best));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_to_bf16_vectors),
        cmocka_unit_test(f32_rounds_to_the_nearest_of_every_format),
        cmocka_unit_test(all_16_bit_values_round_to_the_nearest),
        cmocka_unit_test(f64_rounds_once),
        cmocka_unit_test(powers_of_two_round_up_on_a_tie),
        cmocka_unit_test(floats_truncate_and_saturate_to_integers),
        cmocka_unit_test(integers_keep_their_low_bits),
        cmocka_unit_test(every_level_casts_every_pair_as_one_element),
        cmocka_unit_test(streamed_casts_do_at_any_address),
        cmocka_unit_test(every_level_rounds_every_high_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
