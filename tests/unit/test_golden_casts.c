/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts, quantised blocks, dequantising and mxfp4 against what PyTorch computes: the digests in
 * golden/casts.txt, which tools/make_golden_casts made. Numbers that are none count as one pattern.
 * Every level of the CPU that there is must agree.
 */
#include "heft_test.h"
#include "kernel/kernel.h"

enum { N_MOST = 1 << 18 };

/* ---- the file ---- */

static void expect(const char *name, const uint8_t digest[32])
{
    char line[160];
    char hex[65];
    size_t n = strlen(name);
    FILE *file = fopen("golden/casts.txt", "r");
    assert_non_null(file);
    heft__hex(digest, 32, hex);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strncmp(line, name, n) == 0 && line[n] == ' ';
    }
    (void)fclose(file);
    if (!found || strncmp(line + n + 1, hex, 64) != 0) {
        fail_msg("%s at level %s: %s, PyTorch has %s", name,
                 heft__cpu_level_name(heft__cpu_get_level()), hex,
                 found ? line + n + 1 : "no such line");
    }
}

/* ---- digests of results ---- */

static uint64_t the_nan(heft_dtype_t dtype)
{
    switch ((int)dtype) {
    case HEFT_DTYPE_F32:
        return 0x7fc00000;
    case HEFT_DTYPE_BF16:
        return 0x7fc0;
    case HEFT_DTYPE_F16:
        return 0x7e00;
    default:
        return 0x7f;
    }
}

static bool is_nan(heft_dtype_t dtype, uint64_t bits)
{
    return (heft__cast_bits(HEFT_DTYPE_F32, dtype, bits) & 0x7fffffff) > 0x7f800000;
}

/* Changes data: one pattern for all that are no numbers. */
static void digest_of(heft_dtype_t dtype, uint8_t *data, int64_t n, uint8_t digest[32])
{
    uint32_t unit = heft_dtype_get_unit_bytes(dtype);
    heft__sha256_t hash;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + i * unit, unit);
        bits = is_nan(dtype, bits) ? the_nan(dtype) : bits;
        memcpy(data + i * unit, &bits, unit);
    }
    heft__sha256_init(&hash);
    heft__sha256_update(&hash, data, (size_t)n * unit);
    heft__sha256_final(&hash, digest);
}

static void expect_results(const char *name, heft_dtype_t dtype, uint8_t *data, int64_t n)
{
    uint8_t digest[32];
    digest_of(dtype, data, n, digest);
    expect(name, digest);
}

static uint8_t *alloc(int64_t bytes)
{
    uint8_t *data = calloc((size_t)bytes + 1, 1);
    assert_non_null(data);
    return data;
}

/* ---- casts ---- */

static const struct {
    const char *name;
    heft_dtype_t dtype;
} dtypes[] = { { "f32", HEFT_DTYPE_F32 },      { "bf16", HEFT_DTYPE_BF16 },
               { "f16", HEFT_DTYPE_F16 },      { "e4m3", HEFT_DTYPE_F8_E4M3 },
               { "e5m2", HEFT_DTYPE_F8_E5M2 }, { "e8m0", HEFT_DTYPE_F8_E8M0 } };

static void expect_cast(int from, int to, const uint8_t *src, int64_t n)
{
    char name[32];
    uint8_t *dst = alloc(4 * n);
    (void)snprintf(name, sizeof name, "%s_to_%s", dtypes[from].name, dtypes[to].name);
    heft__cast(dtypes[to].dtype, dst, 1, dtypes[from].dtype, src, 1, n);
    expect_results(name, dtypes[to].dtype, dst, n);
    free(dst);
}

/* All numbers of the 8- and 16-bit formats to all others. */
static void check_small_formats(void)
{
    for (int from = 1; from < 6; from++) {
        uint32_t unit = heft_dtype_get_unit_bytes(dtypes[from].dtype);
        int64_t n = unit == 2 ? 1 << 16 : 256;
        uint8_t *src = alloc(2 * n);
        for (int64_t i = 0; i < n; i++) {
            memcpy(src + i * unit, &i, unit);
        }
        for (int to = 0; to < 5; to++) {
            if (to != from && (to == 0 || dtypes[from].dtype != HEFT_DTYPE_F8_E8M0)) {
                expect_cast(from, to, src, n);
            }
        }
        free(src);
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Fractions around every place where one is cut off, each once. */
static int make_fractions(uint32_t *fractions)
{
    uint32_t all[23 * 7];
    int n = 0;
    for (int k = 0; k < 23; k++) {
        uint32_t one = 1u << k;
        const uint32_t some[7] = { one - 1,        one,     one + 1, 3 * one, 3 * one - 1,
                                   0x7fffff ^ one, 0x7fffff };
        for (int i = 0; i < 7; i++) {
            all[n++] = some[i] & 0x7fffff;
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_value);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || all[i] != all[i - 1]) {
            fractions[kept++] = all[i];
        }
    }
    return kept;
}

static void check_f32(void)
{
    uint32_t fractions[23 * 7];
    int n_fractions = make_fractions(fractions);
    uint32_t *src = (uint32_t *)(void *)alloc(4 * N_MOST);
    int64_t n = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t exponent = 0; exponent < 256; exponent++) {
            for (int f = 0; f < n_fractions; f++) {
                src[n++] = sign << 31 | exponent << 23 | fractions[f];
            }
        }
    }
    uint64_t rng = 1;
    for (int i = 0; i < 65536; i++) {
        src[n++] = (uint32_t)heft_test_random(&rng);
    }
    assert_true(n <= N_MOST);
    for (int to = 1; to < 5; to++) {
        expect_cast(0, to, (const uint8_t *)src, n);
    }
    free(src);
}

/* ---- blocks ---- */

enum { PLAIN, ZERO, NOT_A_NUMBER, INFINITE, SMALL, LARGE, N_SPECIALS };

static float from_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* As the tool makes them: all exact. */
static void make_weights(float *x, int64_t rows, int64_t cols, uint64_t seed, int special)
{
    for (int64_t i = 0; i < rows * cols; i++) {
        uint64_t r = heft_test_random(&seed);
        x[i] = ((float)(r & 0xffff) - 32768) / 32768 / (float)(1u << (r >> 16 & 15));
        x[i] *= special == SMALL ? 0x1p-120F : special == LARGE ? 0x1p120F : 1;
        x[i] = special == ZERO && i < rows / 2 * cols ? 0 : x[i];
    }
    int64_t at = rows / 3 * cols + cols / 3;
    x[at] = special == NOT_A_NUMBER ? from_bits(0x7fc00000)
            : special == INFINITE   ? from_bits(0xff800000)
                                    : x[at];
}

typedef struct block_hashes {
    heft__sha256_t codes;
    heft__sha256_t scales;
} block_hashes_t;

static void quantise_case(const heft__quantise_t *q, const float *x, int64_t rows,
                          int64_t block_rows, block_hashes_t *hashes)
{
    int64_t elem = heft_dtype_get_unit_bytes(q->src_dtype);
    int64_t n_cols = (q->n_cols + q->block_cols - 1) / q->block_cols;
    int64_t n_rows = (rows + block_rows - 1) / block_rows;
    uint8_t *src = alloc(4 * rows * q->n_cols);
    uint8_t *codes = alloc(rows * q->n_cols);
    uint32_t *scales = (uint32_t *)(void *)alloc(4 * n_rows * n_cols);
    uint32_t *amax = (uint32_t *)(void *)alloc(4 * n_rows * n_cols);
    uint8_t digest[32];
    heft__cast(q->src_dtype, src, 1, HEFT_DTYPE_F32, x, 1, rows * q->n_cols);
    for (int64_t b = 0; b < n_rows; b++) {
        int64_t r = b * block_rows;
        int64_t n = heft__min_i64(block_rows, rows - r);
        const uint8_t *from = src + r * q->n_cols * elem;
        heft__quantise_scan(q, from, q->n_cols * elem, n, amax + b * n_cols);
        heft__quantise_rows(q, amax + b * n_cols, from, q->n_cols * elem, n, codes + r * q->n_cols);
    }
    for (int64_t b = 0; b < n_rows * n_cols; b++) {
        heft__quantise_factor_t factor;
        scales[b] = heft__quantise_scale(q, amax[b], &factor);
    }
    digest_of(HEFT_DTYPE_F8_E4M3, codes, rows * q->n_cols, digest);
    heft__sha256_update(&hashes->codes, digest, sizeof digest);
    digest_of(HEFT_DTYPE_F32, (uint8_t *)scales, n_rows * n_cols, digest);
    heft__sha256_update(&hashes->scales, digest, sizeof digest);
    free(amax);
    free(scales);
    free(codes);
    free(src);
}

static void check_rule(heft__scale_rule_t rule, const char *rule_name, int source)
{
    static const int64_t cases[][4] = { { 256, 384, 128, 128 }, { 200, 300, 128, 128 },
                                        { 64, 300, 1, 300 },    { 70, 256, 1, 128 },
                                        { 90, 110, 90, 110 },   { 50, 60, 17, 7 } };
    block_hashes_t hashes;
    char name[64];
    uint8_t digest[32];
    float *x = (float *)(void *)alloc(4 * N_MOST);
    heft__sha256_init(&hashes.codes);
    heft__sha256_init(&hashes.scales);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const heft__quantise_t q = { .src_dtype = dtypes[source].dtype,
                                     .scale_dtype = HEFT_DTYPE_F32,
                                     .rule = rule,
                                     .n_cols = cases[i][1],
                                     .block_cols = cases[i][3] };
        for (int special = PLAIN; special < N_SPECIALS; special++) {
            make_weights(x, cases[i][0], cases[i][1], 100 + i, special);
            quantise_case(&q, x, cases[i][0], cases[i][2], &hashes);
        }
    }
    heft__sha256_final(&hashes.codes, digest);
    (void)snprintf(name, sizeof name, "quantise_%s_%s_codes", rule_name, dtypes[source].name);
    expect(name, digest);
    heft__sha256_final(&hashes.scales, digest);
    (void)snprintf(name, sizeof name, "quantise_%s_%s_scales", rule_name, dtypes[source].name);
    expect(name, digest);
    free(x);
}

static void check_rules(void)
{
    static const char *const names[] = { "deepseek", "deepgemm", "transformers", "ue8m0" };
    static const heft__scale_rule_t rules[] = { HEFT__SCALE_DEEPSEEK, HEFT__SCALE_DEEPGEMM,
                                                HEFT__SCALE_TRANSFORMERS, HEFT__SCALE_UE8M0 };
    for (int r = 0; r < 4; r++) {
        for (int source = 0; source < 3; source++) {
            check_rule(rules[r], names[r], source);
        }
    }
}

/* ---- back to floats ---- */

static void check_dequantise(void)
{
    uint8_t codes[64 * 256];
    float scales[16];
    uint64_t rng = 7;
    for (int i = 0; i < 64 * 256; i++) {
        codes[i] = (uint8_t)i;
    }
    for (int i = 0; i < 16; i++) { /* rounded once, from an exact quotient by 65536 */
        scales[i] = (float)((double)(heft_test_random(&rng) & 0xffff) / 65536 / 448);
    }
    for (int to = 0; to < 3; to++) {
        char name[32];
        heft_error_t err = HEFT_ERROR_INIT;
        heft__transform_plan_t plan;
        uint8_t *dst = alloc(4 * 64 * 256);
        const heft__transform_t t = { /* scales repeat over 16 rows and 64 columns */
                                      .dst_dtype = dtypes[to].dtype,
                                      .n_srcs = 2,
                                      .n_ops = 3,
                                      .rank = 4,
                                      .src_dtype = { HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F32 },
                                      .extent = { 4, 16, 4, 64 },
                                      .dst_stride = { 4096, 256, 64, 1 },
                                      .src_stride = { { 4096, 256, 64, 1 }, { 4, 0, 1, 0 } },
                                      .ops = { { .code = HEFT_OP_LOAD, .arg = 0 },
                                               { .code = HEFT_OP_LOAD, .arg = 1 },
                                               { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } }
        };
        const void *srcs[] = { codes, scales };
        EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_OK);
        heft__transform_run(&plan, dst, srcs);
        (void)snprintf(name, sizeof name, "dequantise_%s", dtypes[to].name);
        expect_results(name, dtypes[to].dtype, dst, 64 * 256);
        free(dst);
    }
}

static void check_mxfp4(void)
{
    uint8_t blocks[256];
    for (int i = 0; i < 256; i++) {
        blocks[i] = (uint8_t)i;
    }
    for (int to = 0; to < 2; to++) {
        char name[32];
        uint32_t unit = heft_dtype_get_unit_bytes(dtypes[to].dtype);
        uint8_t *dst = alloc((int64_t)unit * 255 * 512);
        for (int scale = 0; scale < 255; scale++) {
            uint8_t scales[16];
            memset(scales, scale, sizeof scales);
            heft__mxfp4_unpack(dtypes[to].dtype, dst + (size_t)scale * 512 * unit, blocks, scales,
                               16);
        }
        (void)snprintf(name, sizeof name, "mxfp4_%s", dtypes[to].name);
        expect_results(name, dtypes[to].dtype, dst, 255 * 512);
        free(dst);
    }
}

/* ---- levels ---- */

static void at_every_level(void (*check)(void))
{
    heft__cpu_level_t level = heft__cpu_get_level();
    for (int l = HEFT__CPU_SCALAR; l <= HEFT__CPU_AVX512; l++) {
        if (heft__cpu_use_level((heft__cpu_level_t)l)) {
            check();
        }
    }
    assert_true(heft__cpu_use_level(level));
}

static void casts_of_all_small_numbers(void **state)
{
    (void)state;
    at_every_level(check_small_formats);
}

static void casts_of_f32_around_every_rounding(void **state)
{
    (void)state;
    at_every_level(check_f32);
}

static void quantised_blocks(void **state)
{
    (void)state;
    at_every_level(check_rules);
}

static void dequantised_blocks(void **state)
{
    (void)state;
    at_every_level(check_dequantise);
}

static void packed_four_bit_numbers(void **state)
{
    (void)state;
    at_every_level(check_mxfp4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_of_all_small_numbers),
        cmocka_unit_test(casts_of_f32_around_every_rounding),
        cmocka_unit_test(quantised_blocks),
        cmocka_unit_test(dequantised_blocks),
        cmocka_unit_test(packed_four_bit_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
