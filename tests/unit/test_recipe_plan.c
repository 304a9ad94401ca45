/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes through fold and proof: what they write is covered, used, and free of temporaries. */
#include "recipe_bench.h"

#include "heft/plan.h"

#define F32 HEFT_DTYPE_F32

static void expect_ok(heft_status_t status, const heft_error_t *err)
{
    if (status != HEFT_OK) {
        fail_msg("%s", err->message);
    }
}

/* Compile every rank and make the plan, with the exceptions that hold. */
static heft_status_t plan(rb_t *b, const heft_recipe_t *recipe, heft_plan_t **plan_out,
                          heft_report_t **report_out, heft_error_t *err)
{
    heft_tape_t *tapes[8] = { NULL };
    uint32_t n = 0;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_exception_t *exceptions = NULL;
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = rb_dest_manifest(b);
    expect_ok(heft_recipe_count_ranks(recipe, b->bindings, &n, err), err);
    for (uint32_t r = 0; r < n; r++) {
        expect_ok(heft_recipe_compile(recipe, b->bindings, r, source, dest, &tapes[r], err), err);
    }
    expect_ok(heft_recipe_resolve_exceptions(recipe, b->bindings, source, dest, &exceptions,
                                             &opts.n_exceptions, err),
              err);
    opts.exceptions = exceptions;
    heft_status_t status =
        heft_plan_create((const heft_tape_t *const *)tapes, n, 0, &opts, plan_out, report_out, err);
    heft_exceptions_free(exceptions);
    for (uint32_t r = 0; r < n; r++) {
        heft_tape_destroy(tapes[r]);
    }
    heft_manifest_destroy(source);
    heft_manifest_destroy(dest);
    return status;
}

static void print_errors(const heft_report_t *report)
{
    for (uint32_t i = 0; i < heft_report_get_n_findings(report); i++) {
        if (heft_report_get_finding(report, i)->is_error != 0) {
            print_message("%s\n", heft_report_get_finding(report, i)->text);
        }
    }
}

/* The first finding of a kind on a name, or NULL. */
static const heft_finding_t *find(const heft_report_t *report, heft_finding_kind_t kind,
                                  const char *name)
{
    for (uint32_t i = 0; i < heft_report_get_n_findings(report); i++) {
        const heft_finding_t *finding = heft_report_get_finding(report, i);
        if (finding->kind == kind && strcmp(finding->name, name) == 0) {
            return finding;
        }
    }
    return NULL;
}

static heft_recipe_t *load(const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    EXPECT_STATUS(heft_recipe_load(name, &recipe, &err), HEFT_OK);
    return recipe;
}

static void declare_dense(rb_t *b, const char *tied, bool has_head, const char *tp)
{
    char json[256];
    rb_clear(b);
    (void)snprintf(json, sizeof json,
                   "{\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"hidden_size\": 8, "
                   "\"intermediate_size\": 8, \"vocab_size\": 10, \"num_hidden_layers\": 1, "
                   "\"tie_word_embeddings\": %s}",
                   tied);
    rb_config(b, json);
    rb_set(b, "tp", tp);
    rb_source(b, "model.embed_tokens.weight", F32, "10,8", NULL);
    rb_source(b, "model.norm.weight", F32, "8", NULL);
    if (has_head) {
        rb_source(b, "lm_head.weight", F32, "10,8", NULL);
    }
    rb_source(b, "model.layers.0.self_attn.q_proj.weight", F32, "8,8", NULL);
    rb_source(b, "model.layers.0.self_attn.k_proj.weight", F32, "4,8", NULL);
    rb_source(b, "model.layers.0.self_attn.v_proj.weight", F32, "4,8", NULL);
    rb_source(b, "model.layers.0.self_attn.o_proj.weight", F32, "8,8", NULL);
    rb_source(b, "model.layers.0.self_attn.rotary_emb.inv_freq", F32, "1", NULL);
    rb_source(b, "model.layers.0.mlp.gate_proj.weight", F32, "8,8", NULL);
    rb_source(b, "model.layers.0.mlp.up_proj.weight", F32, "8,8", NULL);
    rb_source(b, "model.layers.0.mlp.down_proj.weight", F32, "8,8", NULL);
    rb_source(b, "model.layers.0.input_layernorm.weight", F32, "8", NULL);
    rb_source(b, "model.layers.0.post_attention_layernorm.weight", F32, "8", NULL);
}

static void the_dense_recipe_is_proven_for_all_ranks(void **state)
{
    static const struct {
        const char *tied;
        bool has_head;
        const char *tp;
    } cases[] = { { "false", true, "1" },
                  { "false", true, "2" },
                  { "false", true, "4" },
                  { "true", false, "2" },
                  { "true", true, "2" } };
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_plan_t *made = NULL;
        heft_report_t *report = NULL;
        heft_plan_info_t info;
        declare_dense(b, cases[i].tied, cases[i].has_head, cases[i].tp);
        heft_status_t status = plan(b, recipe, &made, &report, &err);
        if (status != HEFT_OK) {
            print_errors(report);
        }
        EXPECT_STATUS(status, HEFT_OK);
        heft_plan_query(made, &info);
        /* embedding and head: 54 rows of padding each, on some rank */
        assert_int_equal(info.n_constant_bytes, 2 * 54 * 8 * 4);
        assert_non_null(find(report, HEFT_FINDING_EXCEPTION, "*.rotary_emb.inv_freq"));
        bool is_checked = find(report, HEFT_FINDING_EXCEPTION, "lm_head.weight") != NULL;
        assert_int_equal(is_checked, strcmp(cases[i].tied, "true") == 0 && cases[i].has_head);
        heft_plan_destroy(made);
        heft_report_destroy(report);
    }
    heft_recipe_destroy(recipe);
}

static void a_misspelt_name_is_told_on_both_sides(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_plan_t *made = NULL;
    heft_report_t *report = NULL;
    const char *text = "\"layers.{l}.w\" [...] -> \"layers.{l}.w\" [...]\n"
                       "ignore \"rngs.*\" because \"not a weight\"";
    rb_source(b, "layers.0.w", F32, "2,2", NULL);
    rb_source(b, "layers.1.w", F32, "2,2", NULL);
    rb_source(b, "layer.2.w", F32, "2,2", NULL);
    rb_source(b, "rngs.params.count", HEFT_DTYPE_U32, "", NULL);
    rb_dest(b, "layers.0.w", F32, "2,2");
    rb_dest(b, "layers.1.w", F32, "2,2");
    rb_dest(b, "layers.2.w", F32, "2,2");
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_ERR_PROOF);
    assert_null(made);
    const heft_finding_t *unused = find(report, HEFT_FINDING_UNUSED, "layer.2.w");
    const heft_finding_t *uncovered = find(report, HEFT_FINDING_UNCOVERED, "layers.2.w");
    assert_non_null(unused);
    assert_non_null(uncovered);
    assert_non_null(strstr(unused->text, "layers.2.w"));
    assert_non_null(strstr(uncovered->text, "layer.2.w"));
    const heft_finding_t *ignored = find(report, HEFT_FINDING_EXCEPTION, "rngs.*");
    assert_non_null(ignored);
    assert_non_null(strstr(ignored->text, "not a weight"));
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);
}

static void untouched_parameters_are_excused(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_plan_t *made = NULL;
    heft_report_t *report = NULL;
    const char *text = "\"model.{rest*}\" [...] -> \"language_model.model.{rest*}\" [...]\n"
                       "untouched \"visual.*\" because \"the vision tower is frozen\"";
    rb_source(b, "model.layers.0.mlp.down_proj.weight", F32, "2,3", NULL);
    rb_dest(b, "language_model.model.layers.0.mlp.down_proj.weight", F32, "2,3");
    rb_dest(b, "visual.blocks.0.attn.qkv.weight", F32, "6,2");
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(made, &info);
    assert_int_equal(info.n_pieces, 1);
    assert_int_equal(info.n_bytes, 24);
    const heft_finding_t *excused = find(report, HEFT_FINDING_EXCEPTION, "visual.*");
    assert_non_null(excused);
    assert_int_equal(excused->n_elems, 12);
    heft_plan_destroy(made);
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);

    text = "\"model.{rest*}\" [...] -> \"language_model.model.{rest*}\" [...]";
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_ERR_PROOF);
    assert_non_null(find(report, HEFT_FINDING_UNCOVERED, "visual.blocks.0.attn.qkv.weight"));
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);
}

static void scanned_layers_do_not_tie_each_other(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_plan_t *made = NULL;
    heft_report_t *report = NULL;
    const char *text = "\"wi_0\" [e, l, d, f] where f as (s:2 c), c pad 4 as (b q:2)\n"
                       "  -> \"wi.{l}\" [e, d, (s b 0:2 q)]\n"
                       "\"wi_1\" [e, l, d, f] where f as (s:2 c), c pad 4 as (b q:2)\n"
                       "  -> \"wi.{l}\" [e, d, (s b 1:2 q)]";
    rb_source(b, "wi_0", F32, "2,3,2,6", NULL);
    rb_source(b, "wi_1", F32, "2,3,2,6", NULL);
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(made, &info);
    assert_int_equal(info.n_groups, 3);
    assert_int_equal(info.n_bytes, 2 * 2 * 3 * 2 * 6 * 4);
    assert_int_equal(info.n_constant_bytes, 2 * 2 * 3 * 2 * 2 * 4);
    heft_plan_destroy(made);
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);
}

/* Routed experts of models as large as they are trained: what is streamed is one layer of them, a
 * tenth or a fortieth of a scanned parameter. Nothing of it is allocated. */
static void the_unit_of_streaming_is_one_layer(void **state)
{
    (void)state;
    static const struct {
        int64_t experts, n_layers, hidden, width, padded, tp;
        int64_t layer_bytes; /* of the fused pair */
    } rows[] = {
        { 256, 10, 2048, 512, 512, 1, 1LL << 30 },    /* unpadded */
        { 256, 10, 2048, 512, 1024, 4, 2LL << 30 },   /* a slot of ten: 20 GiB */
        { 128, 48, 2048, 768, 768, 4, 768LL << 20 },  /* with its wo of half that: 54 GiB */
        { 128, 48, 2048, 768, 1024, 4, 1024LL << 20 } /* wo stays: 66 GiB */
    };
    static const char text[] =
        "let P, n\n"
        "\"wi_0\" [e, l, d, f] where f as (s:n c), c pad {P / n} -> \"wi.{l}\" [e, d, (s 0:2 c)]\n"
        "\"wi_1\" [e, l, d, f] where f as (s:n c), c pad {P / n} -> \"wi.{l}\" [e, d, (s 1:2 c)]\n"
        "\"wo\" [e, l, f, d] -> \"wo.{l}\" [e, f, d]";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        heft_bindings_t *bindings = NULL;
        heft_manifest_t *m = NULL;
        heft_tape_t *tape = NULL;
        heft_plan_t *made = NULL;
        const int64_t e = rows[i].experts, l = rows[i].n_layers, d = rows[i].hidden;
        const heft_shape_t in = { .rank = 4, .extent = { e, l, d, rows[i].width } };
        const heft_shape_t out = { .rank = 4, .extent = { e, l, rows[i].width, d } };
        expect_ok(heft_manifest_create("source", &m, &err), &err);
        expect_ok(heft_manifest_add(m, "wi_0", HEFT_DTYPE_BF16, &in, &err), &err);
        expect_ok(heft_manifest_add(m, "wi_1", HEFT_DTYPE_BF16, &in, &err), &err);
        expect_ok(heft_manifest_add(m, "wo", HEFT_DTYPE_BF16, &out, &err), &err);
        expect_ok(heft_manifest_finish(m, &err), &err);
        expect_ok(heft_bindings_create(&bindings, &err), &err);
        char value[24];
        (void)snprintf(value, sizeof value, "%lld", (long long)rows[i].padded);
        expect_ok(heft_bindings_set(bindings, "P", value, &err), &err);
        (void)snprintf(value, sizeof value, "%lld", (long long)rows[i].tp);
        expect_ok(heft_bindings_set(bindings, "n", value, &err), &err);
        expect_ok(heft_recipe_parse("test", text, strlen(text), &recipe, &err), &err);
        expect_ok(heft_recipe_compile(recipe, bindings, 0, m, NULL, &tape, &err), &err);
        const heft_tape_t *tapes[1] = { tape };
        expect_ok(heft_plan_create(tapes, 1, 0, NULL, &made, NULL, &err), &err);
        heft_plan_info_t info;
        heft_plan_query(made, &info);
        assert_int_equal(info.n_groups, 2 * l);
        int64_t n_fused = 0;
        for (uint32_t g = 0; g < info.n_groups; g++) {
            heft_group_info_t group;
            expect_ok(heft_plan_query_group(made, g, &group, &err), &err);
            assert_int_equal(group.n_params, 1);
            n_fused += group.n_bytes == rows[i].layer_bytes ? 1 : 0;
            assert_true(group.n_bytes == rows[i].layer_bytes ||
                        group.n_bytes == 2 * e * d * rows[i].width);
        }
        assert_int_equal(n_fused, l);
        const int64_t all = info.n_bytes + info.n_constant_bytes;
        assert_int_equal(all, l * (rows[i].layer_bytes + 2 * e * d * rows[i].width));
        if (e == 128) {
            assert_int_equal(all, (i == 2 ? 54LL : 66LL) << 30);
        }
        heft_plan_destroy(made);
        heft_tape_destroy(tape);
        heft_recipe_destroy(recipe);
        heft_bindings_destroy(bindings);
        heft_manifest_destroy(m);
    }
}

/* Two names of one parameter, an old and a new one: none of them is picked. */
static void two_rules_that_make_one_parameter_are_both_named(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_plan_t *made = NULL;
    heft_report_t *report = NULL;
    const char *text = "\"backbone.embedding.weight\" [v, d] -> \"model.embed.weight\" [v, d]\n"
                       "\"backbone.embeddings.weight\" [v, d] -> \"model.embed.weight\" [v, d]";
    rb_source(b, "backbone.embedding.weight", F32, "3,2", NULL);
    rb_source(b, "backbone.embeddings.weight", F32, "3,2", NULL);
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_ERR_PROOF);
    const heft_finding_t *twice = find(report, HEFT_FINDING_OVERWRITTEN, "model.embed.weight");
    assert_non_null(twice);
    assert_string_equal(twice->text, "parameter \"model.embed.weight\" rank 0: 6 of 6 elements "
                                     "written by test:1 from \"backbone.embedding.weight\" and "
                                     "then by test:2 from \"backbone.embeddings.weight\", at "
                                     "[0..3, 0..2)");
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);
}

/* A fused tensor of a kind that no rule knows, in a layer and in a prediction layer: both are
 * named, though the rule for the other kind may match nothing. */
static void tensors_of_an_unknown_kind_are_all_named(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_plan_t *made = NULL;
    heft_report_t *report = NULL;
    const char *text =
        "optional \"{p*}.linear_qkv.weight\" [(k 0:4 e), d] -> \"{p*}.q\" [(k e), d]\n"
        "\"{p*}.norm\" [d] -> \"{p*}.norm\" [d]";
    static const char *const names[] = { "decoder.layers.0.linear_qgkv.weight",
                                         "mtp.layers.0.linear_qgkv.weight" };
    rb_source(b, names[0], F32, "48,8", NULL);
    rb_source(b, names[1], F32, "48,8", NULL);
    rb_source(b, "decoder.norm", F32, "8", NULL);
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(plan(b, recipe, &made, &report, &err), HEFT_ERR_PROOF);
    for (size_t i = 0; i < 2; i++) {
        const heft_finding_t *unused = find(report, HEFT_FINDING_UNUSED, names[i]);
        assert_non_null(unused);
        assert_int_equal(unused->n_elems, 48 * 8);
        assert_non_null(strstr(unused->text, "no rule reads it: add one"));
    }
    heft_report_destroy(report);
    heft_recipe_destroy(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(the_dense_recipe_is_proven_for_all_ranks),
        T(a_misspelt_name_is_told_on_both_sides),
        T(untouched_parameters_are_excused),
        T(scanned_layers_do_not_tie_each_other),
        T(the_unit_of_streaming_is_one_layer),
        T(two_rules_that_make_one_parameter_are_both_named),
        T(tensors_of_an_unknown_kind_are_all_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
