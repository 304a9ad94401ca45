/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which dtype a tensor is sent in: the policy of the shipped MaxText recipes, leaf by leaf, with
 * its flags; and that what is kept is kept bit for bit, through plan and run.
 */
#include "recipe_bench.h"

#include "heft/exec.h"
#include "kernel/kernel.h"

#define F32 HEFT_DTYPE_F32
#define BF16 HEFT_DTYPE_BF16

/* Each lists only what its models have. The first is no recipe but all entries there are. */
enum { ALL = 0, DEEPSEEK, GPT_OSS, QWEN3, QWEN35, GEMMA3, LLAMA3, N_POLICIES };
static const char *const maxtext[N_POLICIES] = { NULL,          "deepseek-v3", "gpt-oss", "qwen3",
                                                 "qwen3.5-moe", "gemma3",      "llama3" };
#define IN(policy) (1u << (policy))
#define ROUTED (IN(ALL) | IN(DEEPSEEK) | IN(GPT_OSS) | IN(QWEN3) | IN(QWEN35))
#define EVERYWHERE ((1u << N_POLICIES) - 1)

/* The lines of a shipped recipe from its `dtype` to the next empty one, with its flags, and a rule
 * that leaves everything else as it is. */
static void read_policy(const char *model, char *out, size_t bytes)
{
    if (model == NULL) {
        (void)snprintf(out, bytes, "%s",
                       "let wire\nlet float32_gate_logits = false, logits_dot_in_fp32 = false\n"
                       "dtype wire\n"
                       "  except \"*.gate.*\", \"*.router.*\", \"*.shared_expert_gate.*\"\n"
                       "  except \"*\" when float32_gate_logits\n"
                       "  except \"*.decoder_norm.*\", \"*.logits_dense.*\" when "
                       "logits_dot_in_fp32\n"
                       "\"{rest*}\" [...] -> \"{rest*}\" [...]\n");
        return;
    }
    char path[96];
    char line[256];
    bool inside = false;
    (void)snprintf(path, sizeof path, "../recipes/maxtext-to-hf-%s.heft", model);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    (void)snprintf(out, bytes,
                   "let wire, experts = 1\n"
                   "let float32_gate_logits = false, logits_dot_in_fp32 = false\n");
    while (fgets(line, sizeof line, file) != NULL) {
        inside = (inside && line[0] != '\n') || strncmp(line, "dtype wire", 10) == 0;
        if (inside) {
            size_t at = strlen(out);
            (void)snprintf(out + at, bytes - at, "%s", line);
        }
    }
    (void)fclose(file);
    size_t at = strlen(out);
    (void)snprintf(out + at, bytes - at, "\n\"{rest*}\" [...] -> \"{rest*}\" [...]\n");
}

typedef struct leaf {
    const char *name;
    heft_dtype_t source;
    heft_dtype_t sent[3]; /* no flag, float32_gate_logits, logits_dot_in_fp32 */
    unsigned policies;    /* that know it */
} leaf_t;

static const leaf_t leaves[] = {
    { "decoder.layers.mlp.routed_experts.gate.kernel", F32, { F32, F32, F32 }, ROUTED },
    { "decoder.layers.mlp.shared_expert_gate.kernel",
      F32,
      { F32, F32, F32 },
      IN(ALL) | IN(QWEN35) },
    { "decoder.layers.mlp.router.kernel", F32, { F32, F32, F32 }, IN(ALL) },
    { "decoder.layers.mlp.gate_proj.kernel", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.moe_block.wi_0", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.moe_block.wi_1", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.attention.A_log", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.attention.dt_bias", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.attention.conv1d.kernel", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.layers.input_layernorm.scale", F32, { BF16, F32, BF16 }, EVERYWHERE },
    { "decoder.decoder_norm.scale", F32, { BF16, F32, F32 }, EVERYWHERE },
    { "decoder.logits_dense.kernel", F32, { BF16, F32, F32 }, EVERYWHERE & ~IN(GEMMA3) },
    { "decoder.dense.gate.kernel", BF16, { BF16, BF16, BF16 }, EVERYWHERE },
    { "decoder.layers.step",
      HEFT_DTYPE_I32,
      { HEFT_DTYPE_I32, HEFT_DTYPE_I32, HEFT_DTYPE_I32 },
      EVERYWHERE },
    { "decoder.layers.codes",
      HEFT_DTYPE_F8_E4M3,
      { HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F8_E4M3 },
      EVERYWHERE },
};
enum { N_LEAVES = sizeof leaves / sizeof leaves[0] };

static void leaves_have_the_dtype_that_flags_say(void **state)
{
    rb_t *b = *state;
    static const char *const flags[] = { NULL, "float32_gate_logits", "logits_dot_in_fp32" };
    for (int m = 0; m < N_POLICIES; m++) {
        char text[1024];
        read_policy(maxtext[m], text, sizeof text);
        for (int f = 0; f < 3; f++) {
            rb_clear(b);
            rb_set(b, "wire", "bf16");
            if (flags[f] != NULL) {
                rb_set(b, flags[f], "true");
            }
            for (int i = 0; i < N_LEAVES; i++) {
                if ((leaves[i].policies & IN(m)) != 0) {
                    rb_source(b, leaves[i].name, leaves[i].source, "2", NULL);
                }
            }
            rb_run(b, text, 0);
            for (int i = 0; i < N_LEAVES; i++) {
                if ((leaves[i].policies & IN(m)) != 0) {
                    rb_expect(b, leaves[i].name, leaves[i].sent[f], "2", NULL);
                }
            }
        }
    }
}

static void the_wire_dtype_has_no_default(void **state)
{
    rb_t *b = *state;
    for (int m = 0; m < N_POLICIES; m++) {
        char text[1024];
        rb_clear(b);
        read_policy(maxtext[m], text, sizeof text);
        rb_source(b, "decoder.gate.w", F32, "2", NULL);
        rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "wire");
    }
}

static void the_destination_has_the_last_word(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", F32, "2", NULL);
    rb_dest(b, "a", F32, "2");
    rb_refuses(b, "dtype bf16\n\"{n}\" [...] -> \"{n}\" [...]", 0, HEFT_ERR_SHAPE,
               "BF16 [2] here, F32 [2] in the destination");
    /* settled by an entry for that tensor: kept, or cast */
    rb_run(b, "dtype bf16 except \"a\"\n\"{n}\" [...] -> \"{n}\" [...]", 0);
    rb_run(b, "dtype bf16\n\"a\" [...] -> \"a\" [...] by cast in f32", 0);
    rb_clear(b);
    rb_source(b, "a", BF16, "2", NULL);
    rb_dest(b, "a", F32, "2");
    rb_refuses(b, "dtype f32\n\"{n}\" [...] -> \"{n}\" [...]", 0, HEFT_ERR_SHAPE,
               "BF16 [2] here, F32 [2] in the destination"); /* nothing is widened unasked */
    rb_clear(b);
    rb_source(b, "a", F32, "2", NULL);
    rb_dest(b, "a", HEFT_DTYPE_I32, "2"); /* as many bytes, another meaning */
    rb_refuses(b, "\"{n}\" [...] -> \"{n}\" [...]", 0, HEFT_ERR_SHAPE,
               "F32 [2] here, I32 [2] in the destination");
}

/* ---- bits ---- */

/* Run the bench's tape on these bytes: sources and parameters in bytewise name order. */
static void run_bits(rb_t *b, const char *text, const void *const *sources, void *const *params)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    heft_exec_t *exec = NULL;
    rb_run(b, text, 0);
    const heft_tape_t *tape = b->tape;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
    const heft_exec_target_t target = { .params = params };
    EXPECT_STATUS(heft_exec_create(plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    heft_exec_destroy(exec);
    heft_plan_destroy(plan);
}

/* Not-a-number with a payload, denormals, infinities, what bf16 cannot hold: none of it changes. */
static void what_is_kept_is_kept_bit_for_bit(void **state)
{
    rb_t *b = *state;
    const uint32_t odd[8] = { 0x7f800001, 0xffa00123, 0x00000001, 0x80000000,
                              0x7f800000, 0x3f800800, 0x00008000, 0x3dcccccd };
    const uint16_t odd16[4] = { 0x7f81, 0xffff, 0x0001, 0x8000 };
    uint32_t kept[8] = { 0 };
    uint16_t rounded[8] = { 0 };
    uint16_t narrow[4] = { 0 };
    rb_source(b, "a.router.w", F32, "8", NULL);
    rb_source(b, "b", F32, "8", NULL);
    rb_source(b, "c.router.w", BF16, "4", NULL);
    const void *sources[] = { odd, odd, odd16 };
    void *params[] = { kept, rounded, narrow };
    run_bits(b, "dtype bf16 except \"*.router.*\"\n\"{rest*}\" [...] -> \"{rest*}\" [...]", sources,
             params);
    assert_memory_equal(kept, odd, sizeof odd);
    assert_memory_equal(narrow, odd16, sizeof odd16);
    const uint16_t want[8] = { 0x7fc0, 0xffe0, 0x0000, 0x8000, 0x7f80, 0x3f80, 0x0000, 0x3dcd };
    assert_memory_equal(rounded, want, sizeof want);
}

/* One layer with three dtypes: each tensor in its own, nothing cast. */
static void dtypes_of_a_layer_stay_apart(void **state)
{
    rb_t *b = *state;
    const float a_log[2] = { 1.000244140625F, -3 };
    const float bias[4] = { 5.000F, 5.003F, 5.006F, 5.009F };
    const uint16_t w[3] = { 0x3f80, 0x4000, 0x4040 };
    float a_log_out[2] = { 0 };
    float bias_out[4] = { 0 };
    uint16_t w_out[3] = { 0 };
    rb_source(b, "A_log", F32, "2", NULL);
    rb_source(b, "e_score_correction_bias", F32, "4", NULL);
    rb_source(b, "w", BF16, "3", NULL);
    const void *sources[] = { a_log, bias, w };
    void *params[] = { a_log_out, bias_out, w_out };
    run_bits(b, "\"{rest*}\" [...] -> \"{rest*}\" [...]", sources, params);
    assert_memory_equal(a_log, a_log_out, sizeof a_log);
    assert_memory_equal(bias, bias_out, sizeof bias);
    assert_memory_equal(w, w_out, sizeof w);
}

/* f32 straight to fp8, and by way of bf16: equal codes, other scales. Which of them a recipe takes
 * is part of its plan's digest. */
static void the_path_of_rounding_is_part_of_the_plan(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    const float x[2] = { 1 + 0x1p-8F, 0.5F };
    const uint16_t x16[2] = { 0x3f80, 0x3f00 };
    char digests[2][80];
    for (int path = 0; path < 2; path++) {
        uint8_t codes[2] = { 0 };
        float scale = 0;
        const void *sources[] = { path == 0 ? (const void *)x : (const void *)x16 };
        void *params[] = { &scale, codes };
        const char *text = "\"x\" [i] -> \"w\" [i], \"s\" [1] by fp8_quantise in f8_e4m3";
        rb_clear(b);
        rb_source(b, "x", path == 0 ? F32 : BF16, "2", NULL);
        run_bits(b, text, sources, params);
        assert_int_equal(codes[0], 0x7e); /* 448 and 224 */
        assert_int_equal(codes[1], 0x76);
        assert_true(224 * scale == (path == 0 ? 0.501953125F : 0.5F));
        heft_plan_t *plan = NULL;
        const heft_tape_t *tape = b->tape;
        heft_plan_info_t info;
        EXPECT_STATUS(heft_plan_create(&tape, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
        heft_plan_query(plan, &info);
        (void)snprintf(digests[path], sizeof digests[path], "%s", info.digest);
        heft_plan_destroy(plan);
    }
    assert_string_not_equal(digests[0], digests[1]);
}

/* ---- f32 to bf16 ---- */

static void f32_rounds_to_the_nearest_bf16(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        { 0x3f808000, 0x3f80 }, { 0x7f7fffff, 0x7f80 }, { 0x3f808001, 0x3f81 },
        { 0x7f800001, 0x7fc0 }, { 0x3f818000, 0x3f82 }, { 0xff800001, 0xffc0 },
        { 0x3dcccccd, 0x3dcd }, { 0x80000000, 0x8000 }, { 0x00008000, 0x0000 },
        { 0x00008001, 0x0001 },
    };
    heft__cpu_level_t level = heft__cpu_get_level();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(heft__cast_bits(BF16, F32, cases[i].from), cases[i].to);
        for (int l = HEFT__CPU_SCALAR; l <= HEFT__CPU_AVX512; l++) {
            uint32_t from[64];
            uint16_t to[64];
            for (int k = 0; k < 64; k++) {
                from[k] = cases[i].from;
            }
            if (heft__cpu_use_level((heft__cpu_level_t)l)) {
                heft__cast(BF16, to, 1, F32, from, 1, 64);
                for (int k = 0; k < 64; k++) {
                    assert_int_equal(to[k], cases[i].to);
                }
            }
        }
    }
    assert_true(heft__cpu_use_level(level));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(leaves_have_the_dtype_that_flags_say),
        T(the_wire_dtype_has_no_default),
        T(the_destination_has_the_last_word),
        T(what_is_kept_is_kept_bit_for_bit),
        T(dtypes_of_a_layer_stay_apart),
        T(the_path_of_rounding_is_part_of_the_plan),
        cmocka_unit_test(f32_rounds_to_the_nearest_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
