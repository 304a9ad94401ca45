/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of blocks in recipes: fp8_quantise, dequantise, mxfp4_unpack. */
#include "recipe_bench.h"

#include "heft/plan.h"

static void blocks_of_a_matrix(void **state)
{
    rb_t *b = *state;
    /* one row of blocks with 7 as its largest, one of zeros: 7/448 is 2^-6 */
    rb_source(b, "x", HEFT_DTYPE_F32, "2,4", "1 -2 0 0 7 3.5 0 0");
    rb_run(b, "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(2, 2) in f8_e4m3", 0);
    rb_expect(b, "w", HEFT_DTYPE_F8_E4M3, "2,4", "64 -128 0 0 448 224 0 0");
    rb_expect(b, "s", HEFT_DTYPE_F32, "1,2", "0.015625 1");
}

static void rules_of_scales(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", HEFT_DTYPE_F32, "1,2", "3 -6");
    static const struct {
        const char *rule;
        heft_dtype_t dtype;
        const char *codes;
        const char *scale;
    } cases[] = {
        { "ue8m0", HEFT_DTYPE_F32, "192 -384", "0.015625" }, /* 6/448 rounded up to 2^-6 */
        { "e8m0", HEFT_DTYPE_F8_E8M0, "192 -384", "0.015625" },
        { "deepgemm", HEFT_DTYPE_F32, "224 -448", NULL },
        { "transformers", HEFT_DTYPE_F32, "224 -448", NULL },
        { "deepseek", HEFT_DTYPE_F32, "224 -448", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char recipe[160];
        (void)snprintf(recipe, sizeof recipe,
                       "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o] by fp8_quantise(1, \"%s\") in "
                       "f8_e4m3",
                       cases[i].rule);
        rb_run(b, recipe, 0);
        rb_expect(b, "w", HEFT_DTYPE_F8_E4M3, "1,2", cases[i].codes);
        rb_expect(b, "s", cases[i].dtype, "1", cases[i].scale);
    }
    rb_refuses(b, "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o] by fp8_quantise(1, \"amax\") in f8_e4m3",
               0, HEFT_ERR_ARGUMENT, "no rule of scales \"amax\": there are deepseek");
}

static void granularities(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", HEFT_DTYPE_BF16, "2,3,5", "448 1-29");
    rb_run(
        b,
        "\"x\" [e, o, i] -> \"row\" [e, o, i], \"row.s\" [e, o, 1] by fp8_quantise(1, 1) in "
        "f8_e4m3\n"
        "\"x\" [e, o, i] -> \"expert\" [e, o, i], \"expert.s\" [e] by fp8_quantise(1) in f8_e4m3\n"
        "\"x\" [e, o, i] -> \"all\" [e, o, i], \"all.s\" [1] by fp8_quantise in f8_e4m3\n"
        "\"x\" [..., i] -> \"rest\" [..., i], \"rest.s\" [..., i] by fp8_quantise(2) in f8_e4m3\n"
        "\"x\" [e, o, i] -> \"tail\" [e, o, i], \"tail.s\" [e, o, i] by fp8_quantise(1, 2, 4) in "
        "f8_e4m3\n",
        0);
    rb_expect(b, "row.s", HEFT_DTYPE_F32, "2,3,1", NULL);
    rb_expect(b, "expert.s", HEFT_DTYPE_F32, "2", NULL);
    rb_expect(b, "all.s", HEFT_DTYPE_F32, "1", "1");
    rb_expect(b, "rest.s", HEFT_DTYPE_F32, "2,3,3", NULL);
    rb_expect(b, "tail.s", HEFT_DTYPE_F32, "2,2,2", NULL);
    int64_t n = 0;
    assert_true(rb_values(b, "rest.s", &n)[0] == 1); /* 448 / 448 */
    assert_true(rb_values(b, "rest.s", &n)[2] == (double)(4.0F / 448));
    assert_true(rb_values(b, "tail.s", &n)[1] == (double)(9.0F / 448)); /* 4 and 9 */
    assert_true(rb_values(b, "expert.s", &n)[1] == (double)(29.0F / 448));
}

/* Layers of a scanned tensor, turned, each with scales of its own, in groups of their own. */
static void scanned_layers(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", HEFT_DTYPE_BF16, "3,2,4", "0-23");
    rb_run(
        b,
        "\"w\" [i, l, o] -> \"layers.{l}.w\" [o, i], \"layers.{l}.s\" [o, i] by fp8_quantise(2, 2) "
        "in f8_e4m3",
        0);
    rb_expect(b, "layers.0.w", HEFT_DTYPE_F8_E4M3, "4,3", NULL);
    rb_expect(b, "layers.1.s", HEFT_DTYPE_F32, "2,2", NULL);
    int64_t n = 0;
    /* layer 1, rows 2 and 3 (o), columns 2 (i): 22 and 23 */
    assert_true(rb_values(b, "layers.1.s", &n)[3] == (double)(23.0F / 448));
    assert_true(rb_values(b, "layers.1.w", &n)[11] == 448);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    const heft_tape_t *tape = b->tape;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    assert_int_equal(info.n_groups, 2);
    heft_plan_destroy(plan);
}

/* A rank's rows: blocks are counted from the first row that it reads. Halves of a fused pair. */
static void slices_and_halves(void **state)
{
    rb_t *b = *state;
    rb_source(b, "gate", HEFT_DTYPE_F32, "4,2", "1-8");
    rb_source(b, "up", HEFT_DTYPE_F32, "4,2", "11-18");
    const char *text =
        "let tp = 2\nranks tp as r\n"
        "\"gate\" [({r}:tp o), i] -> \"w\" [(0:2 o), i], \"s\" [(0:2 o), i] by fp8_quantise(2, 2) "
        "in "
        "f8_e4m3\n"
        "\"up\" [({r}:tp o), i] -> \"w\" [(1:2 o), i], \"s\" [(1:2 o), i] by fp8_quantise(2, 2) in "
        "f8_e4m3\n";
    rb_run(b, text, 1);
    rb_expect(b, "w", HEFT_DTYPE_F8_E4M3, "4,2", NULL);
    rb_expect(b, "s", HEFT_DTYPE_F32, "2,1", NULL);
    int64_t n = 0;
    assert_true(rb_values(b, "s", &n)[0] == (double)(8.0F / 448));
    assert_true(rb_values(b, "s", &n)[1] == (double)(18.0F / 448));
    assert_true(rb_values(b, "w", &n)[3] == 448);
    /* an engine that counts the rows of scales over the whole, with halves that end in a short
     * block */
    rb_clear(b);
    rb_source(b, "gate", HEFT_DTYPE_F32, "3,2", "1-6");
    rb_source(b, "up", HEFT_DTYPE_F32, "3,2", "1-6");
    rb_dest(b, "s", HEFT_DTYPE_F32, "3,1");
    rb_dest(b, "w", HEFT_DTYPE_F8_E4M3, "6,2");
    rb_refuses(b,
               "\"gate\" [o, i] -> \"w\" [(0:2 o), i], \"s\" [(0:2 o), i] by fp8_quantise(2, 2) in "
               "f8_e4m3\n"
               "\"up\" [o, i] -> \"w\" [(1:2 o), i], \"s\" [(1:2 o), i] by fp8_quantise(2, 2) in "
               "f8_e4m3\n",
               0, HEFT_ERR_SHAPE, "\"s\"");
}

/* Padding is part of what is quantised. */
static void padding_comes_first(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", HEFT_DTYPE_F32, "3,2", "7 7 7 7 14 14");
    rb_run(
        b,
        "\"x\" [o, i] where o pad 6 -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(2, 2) in f8_e4m3",
        0);
    rb_expect(b, "w", HEFT_DTYPE_F8_E4M3, "6,2", "448 448 448 448 448 448 0 0 0 0 0 0");
    rb_expect(b, "s", HEFT_DTYPE_F32, "3,1", "0.015625 0.03125 1");
}

static void what_quantising_refuses(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", HEFT_DTYPE_F32, "2,4", NULL);
    rb_source(b, "n", HEFT_DTYPE_I32, "2,4", NULL);
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "\"x\" [o, i] -> \"w\" [o, i] by fp8_quantise(2, 2) in f8_e4m3", HEFT_ERR_SYNTAX,
          "writes two targets, codes and scales; there is 1" },
        { "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(2, 2) in bf16",
          HEFT_ERR_SYNTAX, "kernel fp8_quantise makes f8_e4m3, not BF16" },
        { "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(2) in f8_e4m3",
          HEFT_ERR_ARGUMENT, "fp8_quantise has 1 extents of a block, its scales 2 axes" },
        { "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o] by fp8_quantise(2, 2) in f8_e4m3",
          HEFT_ERR_ARGUMENT, "fp8_quantise has 2 extents of a block, its scales 1 axes" },
        { "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(0, 2) in f8_e4m3",
          HEFT_ERR_ARGUMENT, "the extent of a block is 1 or more, not" },
        { "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, q:3] by fp8_quantise(1, 1) in f8_e4m3",
          HEFT_ERR_SYNTAX, "axis `q` of the scales is no axis of the codes" },
        { "\"x\" [l, i] -> \"w.{l}\" [i], \"s\" [i] by fp8_quantise(1) in f8_e4m3", HEFT_ERR_SYNTAX,
          "the names of codes and scales must have the same axes" },
        { "\"n\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(2, 2) in f8_e4m3",
          HEFT_ERR_SHAPE, "kernels work on floats" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rb_refuses(b, cases[i].text, 0, cases[i].status, cases[i].part);
    }
    /* scales for each row, where the engine has them for each block */
    rb_dest(b, "w", HEFT_DTYPE_F8_E4M3, "2,4");
    rb_dest(b, "s", HEFT_DTYPE_F32, "1,2");
    rb_refuses(b, "\"x\" [o, i] -> \"w\" [o, i], \"s\" [o, i] by fp8_quantise(1, 2) in f8_e4m3", 0,
               HEFT_ERR_SHAPE, "F32 [2,2] here, F32 [1,2] in the destination");
}

/* ---- back to floats ---- */

static void scales_of_blocks(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", HEFT_DTYPE_F8_E4M3, "3,5", "1-15");
    rb_source(b, "s", HEFT_DTYPE_F32, "2,3", "1 2 4 8 16 32");
    rb_run(b, "\"w\" [o, i], \"s\" [o, i] -> \"x\" [o, i] by dequantise(2, 2) in bf16", 0);
    rb_expect(b, "x", HEFT_DTYPE_BF16, "3,5", "1 2 6 8 20 6 7 16 18 40 88 96 208 224 480");
    assert_int_equal(heft_tape_get_n_writes(b->tape), 4 + 1); /* boxes, and to the target */
}

static void scales_of_rows_experts_and_tensors(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", HEFT_DTYPE_F8_E4M3, "2,2,2", "1-8");
    rb_source(b, "row", HEFT_DTYPE_F32, "2,2,1", "1 2 4 8");
    rb_source(b, "expert", HEFT_DTYPE_F32, "2", "1 10");
    rb_source(b, "all", HEFT_DTYPE_F32, "1", "2");
    rb_run(b,
           "\"w\" [e, o, i], \"row\" [e, o, 1] -> \"by_row\" [e, o, i] by dequantise(1, 1) in f32\n"
           "\"w\" [e, o, i], \"expert\" [e] -> \"by_expert.{e}\" [i, o] by dequantise(1) in f32\n"
           "\"w\" [e, o, i], \"all\" [1] -> \"by_all\" [(e o), i] by dequantise in f32\n",
           0);
    rb_expect(b, "by_row", HEFT_DTYPE_F32, "2,2,2", "1 2 6 8 20 24 56 64");
    rb_expect(b, "by_expert.1", HEFT_DTYPE_F32, "2,2", "50 70 60 80");
    rb_expect(b, "by_all", HEFT_DTYPE_F32, "4,2", "2 4 6 8 10 12 14 16");
}

static void a_slice_and_its_scales(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", HEFT_DTYPE_F8_E4M3, "4,2", "1-8");
    rb_source(b, "s", HEFT_DTYPE_F32, "2,1", "1 10");
    const char *text = "let tp = 2\nranks tp as r\n\"w\" [({r}:tp o), i], \"s\" [({r}:tp o), i] -> "
                       "\"x\" [o, i] by dequantise(2, 2) in f32\n";
    rb_run(b, text, 1);
    rb_expect(b, "x", HEFT_DTYPE_F32, "2,2", "50 60 70 80");
    /* scales of another granularity */
    rb_clear(b);
    rb_source(b, "w", HEFT_DTYPE_F8_E4M3, "4,4", NULL);
    rb_source(b, "s", HEFT_DTYPE_F32, "4,2", NULL);
    rb_refuses(b, "\"w\" [o, i], \"s\" [o, i] -> \"x\" [o, i] by dequantise(2, 2) in f32", 0,
               HEFT_ERR_SHAPE, "\"s\"");
}

/* Blocks of 128 rows, counted over a fused parameter and over each of its parts: a side that counts
 * otherwise is refused by both counts. */
static void scales_counted_by_another_formula_are_refused(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *whole, *parts;
    } rows[] = { { "3,1", "4,1" }, { "2,1", "4,1" }, { "4,1", "5,1" } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char part[96];
        rb_clear(b);
        rb_source(b, "w_scale", HEFT_DTYPE_F32, rows[i].whole, NULL);
        rb_dest(b, "w_scale", HEFT_DTYPE_F32, rows[i].parts);
        (void)snprintf(part, sizeof part, "F32 [%s] here, F32 [%s] in the destination",
                       rows[i].whole, rows[i].parts);
        rb_refuses(b, "\"{r*}\" [...] -> \"{r*}\" [...]", 0, HEFT_ERR_SHAPE, part);
    }
    /* one scale for each row and 128 columns against one for each block */
    rb_clear(b);
    rb_source(b, "w", HEFT_DTYPE_F8_E4M3, "256,256", NULL);
    rb_source(b, "w_scale", HEFT_DTYPE_F32, "256,2", NULL);
    rb_dest(b, "w", HEFT_DTYPE_F8_E4M3, "256,256");
    rb_dest(b, "w_scale", HEFT_DTYPE_F32, "2,2");
    rb_refuses(b, "\"{r*}\" [...] -> \"{r*}\" [...]", 0, HEFT_ERR_SHAPE,
               "\"w_scale\": F32 [256,2] here, F32 [2,2] in the destination");
}

static void blocks_of_experts_are_unpacked(void **state)
{
    rb_t *b = *state;
    /* 1 expert, 1 row, 2 groups; byte k of a group: low nibble k, high nibble 15 - k */
    char blocks[256] = "";
    for (int k = 0; k < 32; k++) {
        size_t at = strlen(blocks);
        (void)snprintf(blocks + at, sizeof blocks - at, "%d ", k % 16 + 16 * (15 - k % 16));
    }
    rb_source(b, "b", HEFT_DTYPE_U8, "1,1,2,16", blocks);
    rb_source(b, "s", HEFT_DTYPE_U8, "1,1,2", "127 128");
    rb_run(b, "\"b\" [e, o, g, v], \"s\" [e, o, g] -> \"w\" [e, (g v), o] by mxfp4_unpack in bf16",
           0);
    rb_expect(b, "w", HEFT_DTYPE_BF16, "1,64,1", NULL);
    int64_t n = 0;
    const double *w = rb_values(b, "w", &n);
    const double first[8] = { 0, -6, 0.5, -4, 1, -3, 1.5, -2 };
    for (int k = 0; k < 8; k++) {
        assert_true(w[k] == first[k]);
        assert_true(w[32 + k] == 2 * first[k]);
    }
    rb_refuses(b,
               "\"b\" [e, o, v, g], \"s\" [e, o, v] -> \"w\" [e, (v g), o] by mxfp4_unpack in f16",
               0, HEFT_ERR_SYNTAX, "kernel mxfp4_unpack makes f32 or bf16, not F16");
    rb_source(b, "t", HEFT_DTYPE_U8, "1,1,2,8", NULL);
    rb_refuses(b,
               "\"t\" [e, o, g, v], \"s\" [e, o, g] -> \"w\" [e, (g v), o] by mxfp4_unpack in f32",
               0, HEFT_ERR_SHAPE, "blocks need a last axis of 16 bytes");
}

int main(void)
{
#define RB_TEST(name) cmocka_unit_test_setup_teardown(name, rb_setup, rb_teardown)
    const struct CMUnitTest tests[] = {
        RB_TEST(blocks_of_a_matrix),
        RB_TEST(rules_of_scales),
        RB_TEST(granularities),
        RB_TEST(scanned_layers),
        RB_TEST(slices_and_halves),
        RB_TEST(padding_comes_first),
        RB_TEST(what_quantising_refuses),
        RB_TEST(scales_of_blocks),
        RB_TEST(scales_of_rows_experts_and_tensors),
        RB_TEST(a_slice_and_its_scales),
        RB_TEST(scales_counted_by_another_formula_are_refused),
        RB_TEST(blocks_of_experts_are_unpacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
