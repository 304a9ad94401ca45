/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise programs: vectors, refusals, and every CPU level against the evaluator. */
#include "heft_test.h"

#include <fenv.h>

#include "kernel/kernel_ops.h"

/* The property of fuzz/kernel_transform.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static heft__transform_plan_t prepare(const heft__transform_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__transform_plan_t plan;
    EXPECT_STATUS(heft__transform_prepare(t, &plan, &err), HEFT_OK);
    return plan;
}

/* One source of one element. */
static uint64_t run_one(heft_dtype_t dst_dtype, heft_dtype_t src_dtype, uint64_t bits,
                        const heft_op_t *ops, uint32_t n_ops)
{
    heft__transform_t t = {
        .dst_dtype = dst_dtype, .n_srcs = 1, .n_ops = n_ops, .src_dtype = { src_dtype }
    };
    memcpy(t.ops, ops, n_ops * sizeof *ops);
    heft__transform_plan_t plan = prepare(&t);
    uint8_t src[8];
    uint8_t dst[8] = { 0 };
    heft__put_le64(src, bits);
    const void *srcs[] = { src };
    heft__transform_run(&plan, dst, srcs);
    return heft__get_le64(dst);
}

static const heft_op_t load = { .code = HEFT_OP_LOAD };

static void gemma_divides_by_the_rounded_number(void **state)
{
    (void)state;
    double root = 73.32121111929344; /* of 5376 */
    heft_op_t in_bf16[] = { load,
                            { .code = HEFT_OP_DIV_IMM, .dtype = HEFT_DTYPE_BF16, .imm = root } };
    heft_op_t in_f32[] = { load,
                           { .code = HEFT_OP_DIV_IMM, .dtype = HEFT_DTYPE_F32, .imm = root } };
    assert_int_equal(run_one(HEFT_DTYPE_BF16, HEFT_DTYPE_BF16, 0x3f82, in_bf16, 2), 0x3c62);
    assert_int_equal(run_one(HEFT_DTYPE_BF16, HEFT_DTYPE_BF16, 0x3f82, in_f32, 2), 0x3c63);
}

static void every_operation_rounds_to_its_dtype(void **state)
{
    (void)state;
    heft_op_t wide[] = { load,
                         { .code = HEFT_OP_CAST, .dtype = HEFT_DTYPE_F32 },
                         { .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_F32, .imm = 1 } };
    heft_op_t narrow[] = { load,
                           { .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_BF16, .imm = 1 },
                           { .code = HEFT_OP_CAST, .dtype = HEFT_DTYPE_F32 } };
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_BF16, 0x3b80, wide, 3), 0x3f808000);
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_BF16, 0x3b80, narrow, 3), 0x3f800000);
}

static void minus_exp_of_zero_and_of_infinities(void **state)
{
    (void)state;
    heft_op_t ops[] = { load, { .code = HEFT_OP_NEG_EXP, .dtype = HEFT_DTYPE_F32 } };
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F32, 0, ops, 2), 0xbf800000);
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F32, 0xff800000, ops, 2), 0x80000000);
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F32, 0x7f800000, ops, 2), 0xff800000);
    assert_int_equal(run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F32, 0xffc12345, ops, 2), 0x7fc00000);
}

static void block_scales_are_broadcast_views(void **state)
{
    (void)state;
    /* w [3, 5] in blocks of 2 x 2, scales [2, 3]: the full box [1, 2, 2, 2] of the first rows. */
    heft__transform_t t = { .dst_dtype = HEFT_DTYPE_BF16,
                            .n_srcs = 2,
                            .n_ops = 3,
                            .rank = 3,
                            .src_dtype = { HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F32 },
                            .extent = { 2, 2, 2 },
                            .dst_stride = { 5, 2, 1 },
                            .src_stride = { { 5, 2, 1 }, { 0, 1, 0 } },
                            .ops = { load,
                                     { .code = HEFT_OP_LOAD, .arg = 1 },
                                     { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } } };
    heft__transform_plan_t plan = prepare(&t);
    static const uint8_t w[15] = { 0x38, 0x40, 0x38, 0x40, 0, 0xb8, 0xc0, 0xb8, 0xc0, 0 };
    static const float scales[6] = { 3, 0.5f, 7, 0, 0, 0 };
    uint16_t dst[15] = { 0 };
    const void *srcs[] = { w, scales };
    heft__transform_run(&plan, dst, srcs);
    static const uint16_t want[15] = { 0x4040, 0x40c0, 0x3f00, 0x3f80, 0,
                                       0xc040, 0xc0c0, 0xbf00, 0xbf80, 0 };
    assert_memory_equal(dst, want, sizeof want);
}

static void a_constant_fills_its_view(void **state)
{
    (void)state;
    heft__transform_t t = {
        .dst_dtype = HEFT_DTYPE_I16,
        .n_ops = 1,
        .rank = 2,
        .extent = { 3, 2 },
        .dst_stride = { 4, 1 },
        .ops = { { .code = HEFT_OP_CONST, .dtype = HEFT_DTYPE_I16, .imm_bits = 0xfffe } }
    };
    heft__transform_plan_t plan = prepare(&t);
    int16_t dst[12] = { 0 };
    heft__transform_run(&plan, dst, NULL);
    static const int16_t want[12] = { -2, -2, 0, 0, -2, -2, 0, 0, -2, -2, 0, 0 };
    assert_memory_equal(dst, want, sizeof want);
}

static void bad_programs_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__transform_plan_t plan;
    heft__transform_t good = { .dst_dtype = HEFT_DTYPE_F32,
                               .n_srcs = 1,
                               .n_ops = 1,
                               .src_dtype = { HEFT_DTYPE_F32 },
                               .ops = { load } };
    heft__transform_t t = good;
    t.ops[0].arg = 1;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source that is not there");
    t = good;
    t.n_ops = 2;
    t.ops[1] = load;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("leaves 2 values");
    t.ops[1] = (heft_op_t){ .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 };
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("too few values");
    t.ops[1] = (heft_op_t){ .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_I32 };
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("dtype not allowed");
    t.ops[1] = (heft_op_t){ .code = 99, .dtype = HEFT_DTYPE_F32 };
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("unknown code");
    t = good;
    t.src_dtype[0] = HEFT_DTYPE_F4;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("no cast from F4 to F32");
    t = good;
    t.n_ops = HEFT_MAX_OPS;
    t.dst_dtype = HEFT_DTYPE_F16;
    for (int k = 1; k < HEFT_MAX_OPS; k++) {
        t.ops[k] = (heft_op_t){ .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_F32 };
    }
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_LIMIT);
    t = good;
    t.rank = 1;
    t.extent[0] = 2;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("destination stride 0");
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__transform_plan_t plan;
    heft__transform_t good = { .dst_dtype = HEFT_DTYPE_F32,
                               .n_srcs = 1,
                               .n_ops = 1,
                               .rank = 1,
                               .src_dtype = { HEFT_DTYPE_F32 },
                               .extent = { 3 },
                               .dst_stride = { 1 },
                               .ops = { load } };
    heft__transform_t t = good;
    t.dst_stride[0] = INT64_MAX / 2;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_OVERFLOW);
    t = good;
    t.src_stride[0][0] = INT64_MIN / 4;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_OVERFLOW);
    t = good;
    t.extent[0] = INT64_MAX / 2;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_OVERFLOW);
    t = good;
    t.dst_stride[0] = -(INT64_MAX / 4);
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_OVERFLOW);
    t = good;
    t.rank = HEFT_MAX_DIMS + 1;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
    t = good;
    t.n_ops = 0;
    EXPECT_STATUS(heft__transform_prepare(&t, &plan, &err), HEFT_ERR_ARGUMENT);
}

static void public_entries_agree(void **state)
{
    (void)state;
    /* bf16 [2, 3] to f32 [3, 2], in the middle of a parameter of 8 elements */
    static const uint16_t src[6] = { 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0 };
    static const float want[6] = { 1, 4, 2, 5, 3, 6 };
    heft__transform_t t = { .dst_dtype = HEFT_DTYPE_F32,
                            .n_srcs = 1,
                            .n_ops = 1,
                            .rank = 2,
                            .src_dtype = { HEFT_DTYPE_BF16 },
                            .extent = { 2, 3 },
                            .dst_stride = { 1, 2 },
                            .src_stride = { { 3, 1 } },
                            .ops = { load } };
    heft__transform_plan_t plan = prepare(&t);
    float param[8] = { 0 };
    const void *srcs[] = { src };
    heft__transform_run(&plan, param + 1, srcs);
    assert_memory_equal(param + 1, want, sizeof want);
    memset(param, 0, sizeof param);
    heft__transform_run_slabs(&plan, param + 1, srcs, 1, 2);
    assert_true(param[1] == 0 && param[2] == 4);
    heft__transform_run_slabs(&plan, param + 1, srcs, 0, 1);
    assert_memory_equal(param + 1, want, sizeof want);
    memset(param, 0, sizeof param);
    uint64_t share = heft__transform_run_crc64(&plan, param + 1, srcs, 4, sizeof param);
    assert_memory_equal(param + 1, want, sizeof want);
    assert_int_equal(share, heft__crc64(param, sizeof param));
}

static void results_do_not_depend_on_the_callers_rounding(void **state)
{
    (void)state;
    heft_op_t ops[] = { load, { .code = HEFT_OP_MUL_IMM, .dtype = HEFT_DTYPE_F32, .imm = 3 } };
    assert_int_equal(fesetround(FE_UPWARD), 0);
    uint64_t product = run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F32, 0x3eaaaaab, ops, 2);
    uint64_t narrowed = run_one(HEFT_DTYPE_F32, HEFT_DTYPE_F64, 0x3fb999999999999a, &load, 1);
    int mode = fegetround();
    assert_int_equal(fesetround(FE_TONEAREST), 0);
    assert_int_equal(mode, FE_UPWARD); /* and it is left as it was */
    assert_int_equal(product, 0x3f800000);
    assert_int_equal(narrowed, 0x3dcccccd);
}

static void every_level_gives_the_evaluators_bits(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        uint64_t random = seed;
        for (int64_t i = 0; i < heft_test_cases(500); i++) {
            uint8_t bytes[128];
            for (size_t k = 0; k < sizeof bytes; k++) {
                bytes[k] = (uint8_t)heft_test_random(&random);
            }
            (void)LLVMFuzzerTestOneInput(bytes, sizeof bytes);
        }
    }
    assert_true(heft__cpu_use_level(best));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_divides_by_the_rounded_number),
        cmocka_unit_test(every_operation_rounds_to_its_dtype),
        cmocka_unit_test(minus_exp_of_zero_and_of_infinities),
        cmocka_unit_test(block_scales_are_broadcast_views),
        cmocka_unit_test(a_constant_fills_its_view),
        cmocka_unit_test(bad_programs_are_refused),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(public_entries_agree),
        cmocka_unit_test(results_do_not_depend_on_the_callers_rounding),
        cmocka_unit_test(every_level_gives_the_evaluators_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
