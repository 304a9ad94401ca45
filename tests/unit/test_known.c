/* SPDX-License-Identifier: Apache-2.0 */
/* Known kernels as writes of a tape: their texts, their operands, how they tie groups. */
#include "plan_fixture.h"
#include "tape/tape.h"

static void texts_are_read_and_written(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const char *texts[] = {
        "heft.fp8_quantise/1(block=128x128,scale=deepseek)",
        "heft.fp8_quantise/1(block=1x128x128,scale=deepgemm)",
        "heft.fp8_quantise/1(block=9223372036854775807,scale=transformers)",
        "heft.fp8_quantise/1(block=1x2x3x4x5x6x7x8x9x10x11x12,scale=ue8m0)",
        "heft.mxfp4_unpack/1",
        "heft.bits/1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        heft__known_t known;
        char back[HEFT__KNOWN_TEXT_BYTES];
        assert_true(heft__known_claims(texts[i]));
        EXPECT_STATUS(heft__known_parse(texts[i], &known, &err), HEFT_OK);
        heft__known_print(&known, back);
        assert_string_equal(back, texts[i]);
    }
    assert_false(heft__known_claims("quantise"));
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__known_t known;
    const char *unknown[] = { "heft.",
                              "heft.fp8_quantise",
                              "heft.fp8_quantise/2(block=1,scale=ue8m0)",
                              "heft.mxfp4_unpack/1()",
                              "heft.nvfp4_unpack/1",
                              "heft.bits/2",
                              "heft.bits/1()" };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        EXPECT_STATUS(heft__known_parse(unknown[i], &known, &err), HEFT_ERR_UNSUPPORTED);
        EXPECT_MESSAGE("heft.fp8_quantise/1");
    }
    const char *bad[] = {
        "heft.fp8_quantise/1",
        "heft.fp8_quantise/1(block=,scale=ue8m0)",
        "heft.fp8_quantise/1(block=0x1,scale=ue8m0)",
        "heft.fp8_quantise/1(block=01,scale=ue8m0)",
        "heft.fp8_quantise/1(block=1x,scale=ue8m0)",
        "heft.fp8_quantise/1(block=-1,scale=ue8m0)",
        "heft.fp8_quantise/1(block=9223372036854775808,scale=ue8m0)",
        "heft.fp8_quantise/1(block=1x1x1x1x1x1x1x1x1x1x1x1x1,scale=ue8m0)",
        "heft.fp8_quantise/1(block=1)",
        "heft.fp8_quantise/1(block=1,scale=)",
        "heft.fp8_quantise/1(block=1,scale=e8m0)",
        "heft.fp8_quantise/1(block=1,scale=ue8m0) ",
        "heft.fp8_quantise/1(block=1,scale=ue8m0",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EXPECT_STATUS(heft__known_parse(bad[i], &known, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("expected heft.fp8_quantise/1(block=");
    }
}

/* ---- operands ---- */

typedef struct quantise_case {
    int rank;
    int64_t extent[4];
    int64_t block[4];
    heft__known_grid_t grid; /* n_batches 0: refused */
} quantise_case_t;

static void blocks_become_batches_rows_and_columns(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const quantise_case_t cases[] = {
        { 2, { 300, 200 }, { 128, 128 }, { 1, 300, 200, 128, 128 } },
        { 2, { 300, 200 }, { 1, 200 }, { 1, 300, 200, 1, 200 } },
        { 2, { 300, 200 }, { 1, 1000 }, { 1, 300, 200, 1, 200 } },
        { 2, { 300, 200 }, { 300, 200 }, { 1, 300, 200, 300, 200 } },
        { 2, { 300, 256 }, { 1, 128 }, { 1, 300, 256, 1, 128 } },
        { 2, { 300, 200 }, { 1, 128 }, { 1, 300, 200, 1, 128 } },
        { 3, { 8, 256, 200 }, { 1, 128, 128 }, { 1, 2048, 200, 128, 128 } },
        { 3, { 8, 200, 200 }, { 1, 128, 128 }, { 8, 200, 200, 128, 128 } },
        { 3, { 8, 200, 200 }, { 1, 200, 200 }, { 1, 1600, 200, 200, 200 } },
        { 4, { 2, 8, 200, 200 }, { 1, 1, 128, 128 }, { 16, 200, 200, 128, 128 } },
        { 3, { 8, 200, 200 }, { 2, 128, 128 }, { 0 } },
        { 4, { 4, 8, 200, 200 }, { 3, 1, 128, 200 }, { 0 } },
        { 1, { 5 }, { 2 }, { 1, 1, 5, 1, 2 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quantise_case_t *c = &cases[i];
        heft__known_t known = { .code = HEFT__KNOWN_FP8_QUANTISE,
                                .rule = HEFT__SCALE_UE8M0,
                                .n_dims = c->rank };
        int64_t n_blocks[4];
        for (int k = 0; k < c->rank; k++) {
            known.block[k] = c->block[k];
            n_blocks[k] = (c->extent[k] + c->block[k] - 1) / c->block[k];
        }
        const heft__known_operand_t src = { HEFT_DTYPE_BF16, c->rank, c->extent };
        const heft__known_operand_t dsts[2] = { { HEFT_DTYPE_F8_E4M3, c->rank, c->extent },
                                                { HEFT_DTYPE_F8_E8M0, c->rank, n_blocks } };
        heft__known_grid_t grid = { 0 };
        heft_status_t want = c->grid.n_batches == 0 ? HEFT_ERR_UNSUPPORTED : HEFT_OK;
        EXPECT_STATUS(heft__known_check(&known, dsts, 2, &src, 1, &grid, &err), want);
        assert_memory_equal(&grid, &c->grid, sizeof grid);
    }
}

/* A tape that quantises w [300, 200] in blocks of 128 x 128. */
static heft_status_t quantise(fx_t *fx, const char *op, heft_dtype_t scale, const char *scale_shape,
                              heft_error_t *err)
{
    heft_view_t w = fx_source(fx, "w", "300,200");
    heft_view_t dsts[2] = { fx_buffer(fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "300,200"),
                            fx_buffer(fx, HEFT_BUFFER_TEMP, "", scale, scale_shape) };
    return heft_tape_opaque(fx->tape, op, dsts, 2, &w, 1, "r:1", err);
}

static void operands_are_checked_when_recorded(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const struct {
        const char *op;
        heft_dtype_t scale;
        const char *scale_shape;
        heft_status_t status;
        const char *message;
    } cases[] = {
        { "heft.fp8_quantise/1(block=128x128,scale=deepseek)", HEFT_DTYPE_F32, "3,2", HEFT_OK, "" },
        { "heft.fp8_quantise/1(block=128x128,scale=ue8m0)", HEFT_DTYPE_F32, "3,2", HEFT_OK, "" },
        { "heft.fp8_quantise/1(block=128x128,scale=ue8m0)", HEFT_DTYPE_F8_E8M0, "3,2", HEFT_OK,
          "" },
        { "heft.fp8_quantise/1(block=128x128,scale=deepseek)", HEFT_DTYPE_F8_E8M0, "3,2",
          HEFT_ERR_ARGUMENT, "scale output is F8_E8M0 [3, 2], expected F32 [3, 2]" },
        { "heft.fp8_quantise/1(block=128x128,scale=deepseek)", HEFT_DTYPE_F32, "2,2",
          HEFT_ERR_ARGUMENT, "scale output is F32 [2, 2], expected F32 [3, 2]" },
        { "heft.fp8_quantise/1(block=128,scale=deepseek)", HEFT_DTYPE_F32, "3,2", HEFT_ERR_ARGUMENT,
          "input is BF16 [300, 200], expected 1 dimensions" },
        { "heft.mxfp4_unpack/1", HEFT_DTYPE_F32, "3,2", HEFT_ERR_ARGUMENT,
          "1 inputs and 2 outputs" },
        { "heft.other/1", HEFT_DTYPE_F32, "3,2", HEFT_ERR_UNSUPPORTED, "no known kernel" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fx_t fx;
        fx_init(&fx);
        heft_status_t got = quantise(&fx, cases[i].op, cases[i].scale, cases[i].scale_shape, &err);
        if (got != cases[i].status) {
            fail_msg("case %zu: %s", i, err.message);
        }
        if (got != HEFT_OK) {
            EXPECT_MESSAGE(cases[i].message);
        }
        assert_int_equal(heft_tape_get_n_writes(fx.tape), got == HEFT_OK ? 1 : 0);
        fx_fini(&fx);
    }
}

static void outputs_are_whole_buffers_in_order(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fx_t fx;
    fx_init(&fx);
    heft_view_t w = fx_source(&fx, "w", "4,4");
    heft_view_t q = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "4,4");
    heft_view_t s = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, "2,2");
    heft_view_t wide = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "8,4");
    const heft_view_t wrong[] = { fx_transpose(q, 0, 1), fx_narrow(wide, 0, 0, 4),
                                  fx_narrow(wide, 0, 4, 8) };
    const char *op = "heft.fp8_quantise/1(block=2x2,scale=ue8m0)";
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        heft_view_t dsts[2] = { wrong[i], s };
        EXPECT_STATUS(heft_tape_opaque(fx.tape, op, dsts, 2, &w, 1, "", &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("output 0 is a part of");
    }
    heft_view_t dsts[2] = { q, s };
    heft_view_t turned = fx_transpose(w, 0, 1); /* what is read may be any view */
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, dsts, 2, &turned, 1, "", &err), HEFT_OK);
    fx_fini(&fx);
}

static void packed_blocks_and_their_scales_agree(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fx_t fx;
    fx_init(&fx);
    heft_view_t srcs[2] = { fx_buffer(&fx, HEFT_BUFFER_SOURCE, "b", HEFT_DTYPE_U8, "2,3,16"),
                            fx_buffer(&fx, HEFT_BUFFER_SOURCE, "s", HEFT_DTYPE_U8, "2,3") };
    heft_view_t dst = fx_buffer(&fx, HEFT_BUFFER_PARAM, "w", HEFT_DTYPE_BF16, "2,96");
    const char *op = "heft.mxfp4_unpack/1";
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &dst, 1, srcs, 2, "", &err), HEFT_OK);
    heft_view_t few[2] = { srcs[0], fx_narrow(srcs[1], 1, 0, 2) };
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &dst, 1, few, 2, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("scales is U8 [2, 2], expected U8 [2, 3]");
    heft_view_t narrow[2] = { fx_narrow(srcs[0], 2, 0, 8), srcs[1] };
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &dst, 1, narrow, 2, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("blocks are U8 [2, 3, 8], expected U8 [.., 16]");
    heft_view_t half = fx_buffer(&fx, HEFT_BUFFER_PARAM, "h", HEFT_DTYPE_F16, "2,96");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &half, 1, srcs, 2, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("output is F16 [2, 96], expected BF16 [2, 96]");
    fx_fini(&fx);
}

static void bits_keep_their_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fx_t fx;
    fx_init(&fx);
    heft_view_t x = fx_buffer(&fx, HEFT_BUFFER_SOURCE, "x", HEFT_DTYPE_I32, "2,3");
    heft_view_t bytes = fx_buffer(&fx, HEFT_BUFFER_PARAM, "b", HEFT_DTYPE_U8, "2,12");
    heft_view_t few = fx_buffer(&fx, HEFT_BUFFER_PARAM, "f", HEFT_DTYPE_BF16, "2,5");
    heft_view_t none = fx_buffer(&fx, HEFT_BUFFER_SOURCE, "none", HEFT_DTYPE_I32, "0");
    heft_view_t empty = fx_buffer(&fx, HEFT_BUFFER_PARAM, "e", HEFT_DTYPE_U8, "0");
    const char *op = "heft.bits/1";
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &bytes, 1, &x, 1, "", &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &few, 1, &x, 1, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("output is BF16 [2, 5], expected as many bytes as the input, I32 [2, 3], has");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &empty, 1, &none, 1, "", &err), HEFT_ERR_ARGUMENT);
    heft_view_t two[2] = { x, x };
    EXPECT_STATUS(heft_tape_opaque(fx.tape, op, &bytes, 1, two, 2, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("2 inputs and 1 outputs, expected 1 and 1");
    fx_fini(&fx);
}

/* ---- groups ---- */

/* Layer l of a tensor scanned over layers, quantised on its own. */
static void quantise_layer(fx_t *fx, heft_view_t scanned, int layer)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char names[2][16];
    (void)snprintf(names[0], sizeof names[0], "w%d", layer);
    (void)snprintf(names[1], sizeof names[1], "s%d", layer);
    heft_view_t src = fx_select(scanned, 1, layer);
    heft_view_t dsts[2] = { fx_buffer(fx, HEFT_BUFFER_PARAM, names[0], HEFT_DTYPE_F8_E4M3, "4,6"),
                            fx_buffer(fx, HEFT_BUFFER_PARAM, names[1], HEFT_DTYPE_F32, "2,3") };
    EXPECT_STATUS(heft_tape_opaque(fx->tape, "heft.fp8_quantise/1(block=2x2,scale=deepseek)", dsts,
                                   2, &src, 1, "r:1", &err),
                  HEFT_OK);
}

static void a_kernel_ties_the_elements_it_reads_and_no_more(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t scanned = fx_source(&fx, "w", "4,3,6");
    for (int layer = 0; layer < 3; layer++) {
        quantise_layer(&fx, scanned, layer);
    }
    /* a reader of an element of layer 1 */
    fx_copy(&fx, fx_param(&fx, "peek", "1,1"),
            fx_narrow(fx_narrow(fx_select(scanned, 1, 1), 0, 3, 4), 1, 5, 6), "");
    (void)fx_plan(&fx, HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(fx.plan, &info);
    assert_int_equal(info.n_groups, 3);
    uint32_t index[7] = { 0 };
    /* peek, s0, s1, s2, w0, w1, w2 */
    for (uint32_t p = 0; p < 7; p++) {
        index[p] = heft_plan_get_param_group(fx.plan, 0, p);
    }
    assert_int_equal(index[0], index[2]);
    for (uint32_t layer = 0; layer < 3; layer++) {
        heft_group_info_t group;
        heft_error_t err = HEFT_ERROR_INIT;
        assert_int_equal(index[1 + layer], index[4 + layer]);
        EXPECT_STATUS(heft_plan_query_group(fx.plan, index[4 + layer], &group, &err), HEFT_OK);
        assert_int_equal(group.is_opaque, 0);
        assert_int_equal(group.source_bytes, 2 * 24);
        assert_int_equal(group.n_params, layer == 1 ? 3 : 2);
    }
    fx_fini(&fx);
}

static void what_no_kernel_reads_is_unused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t scanned = fx_source(&fx, "w", "4,3,6");
    quantise_layer(&fx, scanned, 0);
    quantise_layer(&fx, scanned, 2);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNUSED, "w")->n_elems, 24);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_OPAQUE), 0);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read_and_written),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(blocks_become_batches_rows_and_columns),
        cmocka_unit_test(operands_are_checked_when_recorded),
        cmocka_unit_test(outputs_are_whole_buffers_in_order),
        cmocka_unit_test(packed_blocks_and_their_scales_agree),
        cmocka_unit_test(bits_keep_their_bytes),
        cmocka_unit_test(a_kernel_ties_the_elements_it_reads_and_no_more),
        cmocka_unit_test(what_no_kernel_reads_is_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
