/* SPDX-License-Identifier: Apache-2.0 */
/* Ways in which mappings have gone wrong, each cut down to a few elements. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32
#define BF16 HEFT_DTYPE_BF16

/* ---- names ---- */

static void a_misspelt_source_stays_unused_and_its_parameter_unwritten(void **state)
{
    rb_t *b = *state;
    rb_source(b, "layers.0.w", BF16, "2,2", NULL);
    rb_source(b, "layers.1.w", BF16, "2,2", NULL);
    rb_source(b, "layer.2.w", BF16, "2,2", NULL);
    rb_source(b, "rngs.params.count", HEFT_DTYPE_U32, "", NULL);
    rb_dest(b, "layers.0.w", BF16, "2,2");
    rb_dest(b, "layers.1.w", BF16, "2,2");
    rb_dest(b, "layers.2.w", BF16, "2,2");
    rb_run(b,
           "\"layers.{l}.w\" [...] -> \"layers.{l}.w\" [...]\n"
           "ignore \"rngs.*\" because \"not a weight\"",
           0);
    rb_expect(b, "layers.1.w", BF16, "2,2", "5-8");
    rb_expect(b, "layers.2.w", BF16, "2,2", "? ? ? ?");
}

static void the_reason_of_an_ignored_tensor_is_kept(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_exception_t *exceptions = NULL;
    uint32_t n = 0;
    const char *text = "\"a\" [] -> \"a\" []\n"
                       "ignore \"rngs.*\", \"b\" because \"not a weight\"\n"
                       "optional ignore \"c\" because \"never there\"\n"
                       "untouched \"v.*\" because \"frozen tower\" when config.vision\n"
                       "equal \"a\" because \"tied\" when not config.vision";
    rb_source(b, "a", F32, "", NULL);
    rb_source(b, "b", F32, "", NULL);
    rb_source(b, "rngs.x", F32, "", NULL);
    rb_config(b, "{\"vision\": true}");
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    assert_int_equal(heft_recipe_get_n_exceptions(recipe), 5);
    assert_string_equal(heft_recipe_get_exception(recipe, 1)->pattern, "b");
    assert_null(heft_recipe_get_exception(recipe, 5));

    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(
        heft_recipe_resolve_exceptions(recipe, b->bindings, source, NULL, &exceptions, &n, &err),
        HEFT_OK);
    assert_int_equal(n, 3);
    assert_int_equal(exceptions[0].kind, HEFT_EXCEPTION_UNUSED);
    assert_string_equal(exceptions[0].pattern, "rngs.*");
    assert_string_equal(exceptions[0].reason, "not a weight");
    assert_string_equal(exceptions[0].where, "test:2:8");
    assert_int_equal(exceptions[2].kind, HEFT_EXCEPTION_UNTOUCHED);
    assert_string_equal(exceptions[2].reason, "frozen tower");
    heft_exceptions_free(exceptions);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

static void rules_do_not_see_what_is_ignored(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", F32, "1", NULL);
    rb_source(b, "rngs.count", F32, "", NULL);
    rb_run(b, "\"{rest*}\" [...] -> \"{rest*}\" [...]\nignore \"rngs.*\" because \"no weight\"", 0);
    assert_int_equal(rb_n_params(b), 1);
    rb_expect(b, "a", F32, "1", "1");
    rb_refuses(b, "\"{rest*}\" [...] -> \"{rest*}\" [...]\nignore \"rng.*\" because \"no weight\"",
               0, HEFT_ERR_NAME, "ignore \"rng.*\" matches none of 2");
}

static void a_token_is_not_a_substring(void **state)
{
    rb_t *b = *state;
    rb_source(b, "mlp.experts.down_proj", F32, "2,4,3", NULL);
    rb_source(b, "mlp.shared_experts.down_proj.weight", F32, "4,3", NULL);
    rb_run(b,
           "\"{p*}.experts.down_proj\" [e, ...] -> \"{p*}.experts.{e}.down_proj.weight\" [...]\n"
           "\"{p*}.shared_experts.{q*}\" [...] -> \"{p*}.shared_experts.{q*}\" [...]",
           0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "mlp.experts.0.down_proj.weight", F32, "4,3", "1-12");
    rb_expect(b, "mlp.experts.1.down_proj.weight", F32, "4,3", "13-24");
    rb_expect(b, "mlp.shared_experts.down_proj.weight", F32, "4,3", "25-36");
}

static void a_rename_changes_no_byte(void **state)
{
    rb_t *b = *state;
    rb_source(b, "backbone.embeddings.weight", F32, "3,2", NULL);
    rb_run(b, "\"backbone.embeddings.weight\" [...] -> \"model.embed.weight\" [...]", 0);
    rb_expect(b, "model.embed.weight", F32, "3,2", "1-6");
}

static void names_of_the_destination_are_checked(void **state)
{
    rb_t *b = *state;
    rb_source(b, "model.a.weight", F32, "2", NULL);
    rb_source(b, "model.b.weight", F32, "2", NULL);
    rb_dest(b, "language_model.model.a.weight", F32, "2");
    rb_dest(b, "language_model.model.b.weight", F32, "2");
    rb_refuses(b, "\"{rest*}\" [...] -> \"{rest*}\" [...]", 0, HEFT_ERR_NAME,
               "\"model.a.weight\" is not in the destination (1 of 2 errors)");
    rb_run(b, "\"model.{rest*}\" [...] -> \"language_model.model.{rest*}\" [...]", 0);
    rb_expect(b, "language_model.model.b.weight", F32, "2", "3 4");
}

/* A token that an adapter puts into names, on one side or on both. */
static void a_token_of_one_side_is_added_where_it_is_missing(void **state)
{
    static const char text[] =
        "\"{p*}.base_layer.weight\" [...] -> \"{p*}.base_layer.weight\" [...]\n"
        "\"{p*}.{m}_proj.weight\" [...] -> \"{p*}.{m}_proj.base_layer.weight\" [...]\n"
        "\"{p*}.merger.{k}.weight\" [...] -> \"{p*}.merger.{k}.base_layer.weight\" [...]";
    rb_t *b = *state;
    rb_source(b, "l.0.q_proj.base_layer.weight", F32, "2,2", NULL);
    rb_source(b, "l.0.shared_expert.gate_up_proj.weight", F32, "4,2", NULL);
    rb_source(b, "visual.merger.0.weight", F32, "2,2", NULL);
    rb_dest(b, "l.0.q_proj.base_layer.weight", F32, "2,2");
    rb_dest(b, "l.0.shared_expert.gate_up_proj.base_layer.weight", F32, "4,2");
    rb_dest(b, "visual.merger.0.base_layer.weight", F32, "2,2");
    rb_run(b, text, 0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "l.0.q_proj.base_layer.weight", F32, "2,2", "1-4");
    rb_expect(b, "l.0.shared_expert.gate_up_proj.base_layer.weight", F32, "4,2", "5-12");
    rb_expect(b, "visual.merger.0.base_layer.weight", F32, "2,2", "13-16");
    rb_source(b, "l.0.k_proj.weight", F32, "2,2", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_NAME,
               "\"l.0.k_proj.base_layer.weight\" is not in the destination");
}

static void shapes_and_dtypes_of_the_destination_are_checked(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", F32, "2,3", NULL);
    rb_dest(b, "a", F32, "3,2");
    rb_refuses(b, "\"a\" [...] -> \"a\" [...]", 0, HEFT_ERR_SHAPE,
               "F32 [2,3] here, F32 [3,2] in the destination");
    rb_run(b, "\"a\" [x, y] -> \"a\" [y, x]", 0);
    rb_expect(b, "a", F32, "3,2", "1 4 2 5 3 6");
    /* an axis grows only where the rule says so: nothing is padded or repeated to fit */
    rb_clear(b);
    rb_source(b, "ln", F32, "2,3", NULL);
    rb_dest(b, "ln", F32, "8,4");
    rb_refuses(b, "\"ln\" [x, y] -> \"ln\" [x, y]", 0, HEFT_ERR_SHAPE,
               "F32 [2,3] here, F32 [8,4] in the destination");
    /* a missing expert is no zero expert */
    rb_clear(b);
    rb_source(b, "wo", F32, "3,4,2", NULL);
    rb_dest(b, "wo", F32, "4,8,2");
    rb_refuses(b, "\"wo\" [e, f, d] where f pad 8 -> \"wo\" [e, f, d]", 0, HEFT_ERR_SHAPE,
               "F32 [3,8,2] here, F32 [4,8,2] in the destination");
}

/* ---- tied embeddings ---- */

static void an_untied_head_that_is_absent_is_refused(void **state)
{
    rb_t *b = *state;
    const char *text =
        "let tied, tp = 1\nranks tp as r\n"
        "\"embed\" [({r}:tp v), d] -> \"embed\" [v, d]\n"
        "\"embed\" [({r}:tp v), d] -> \"head\" [v, d] when tied and not has(\"head\")\n"
        "\"head\" [({r}:tp v), d] -> \"head\" [v, d] when not tied or has(\"head\")";
    rb_source(b, "embed", F32, "10,4", NULL);
    rb_set(b, "tied", "true");
    rb_set(b, "tp", "2");
    rb_run(b, text, 1);
    rb_expect(b, "embed", F32, "5,4", "21-40");
    rb_expect(b, "head", F32, "5,4", "21-40");
    rb_set(b, "tied", "false");
    rb_refuses(b, text, 1, HEFT_ERR_NAME, "\"head\" matches none of 1 source tensors");
    rb_source(b, "head", F32, "10,4", NULL);
    rb_run(b, text, 0);
    rb_expect(b, "head", F32, "5,4", "41-60");
    rb_set(b, "tied", "true");
    rb_run(b, text, 0);
    rb_expect(b, "head", F32, "5,4", "41-60");
}

/* ---- heads ---- */

static void fused_heads_are_cut_at_global_rows(void **state)
{
    rb_t *b = *state;
    rb_source(b, "qkv", F32, "24,2", NULL);
    rb_run(b,
           "\"qkv\" [q:16@0/24, d] -> \"q\" [q, d]\n"
           "\"qkv\" [k:4@16/24, d] -> \"k\" [k, d]\n"
           "\"qkv\" [v:4@20/24, d] -> \"v\" [v, d]",
           0);
    rb_expect(b, "q", F32, "16,2", "1-32");
    rb_expect(b, "k", F32, "4,2", "33-40");
    rb_expect(b, "v", F32, "4,2", "41-48");

    rb_clear(b);
    rb_source(b, "qkv", F32, "16,2", NULL); /* for each of 2 heads: q q k v, 2 rows each */
    rb_run(b,
           "\"qkv\" [(g h:2@0/4 e:2), d] -> \"q\" [(g h e), d]\n"
           "\"qkv\" [(g 2:4 e:2), d] -> \"k\" [(g e), d]\n"
           "\"qkv\" [(g 3:4 e:2), d] -> \"v\" [(g e), d]",
           0);
    rb_expect(b, "q", F32, "8,2", "1-8,17-24");
    rb_expect(b, "k", F32, "4,2", "9-12,25-28");
    rb_expect(b, "v", F32, "4,2", "13-16,29-32");
}

static void gated_heads_are_chosen_by_a_value(void **state)
{
    rb_t *b = *state;
    const char *text = "let gated, H = 4, K = 2, E = 4\nlet G = H/K\n"
                       "\"qkv\" [(k h:G@0/{G+2} e:E), d] -> \"q\" [(k h e), d] when not gated\n"
                       "\"qgkv\" [(k h:G@0/{2*G+2} e:E), d] -> \"q\" [(k h e), d] when gated\n"
                       "\"qgkv\" [(k h:G@G/{2*G+2} e:E), d] -> \"gate\" [(k h e), d] when gated\n"
                       "\"qgkv\" [(k {2*G}:{2*G+2} e:E), d] -> \"k\" [(k e), d] when gated\n"
                       "\"qgkv\" [(k {2*G+1}:{2*G+2} e:E), d] -> \"v\" [(k e), d] when gated";
    rb_source(b, "qgkv", F32, "48,1", "0-47");
    rb_set(b, "gated", "false");
    rb_refuses(b, text, 0, HEFT_ERR_NAME,
               "\"qkv\" matches none of 1 source tensors; nearest is "
               "\"qgkv\"");
    rb_set(b, "gated", "true");
    rb_run(b, text, 0);
    rb_expect(b, "q", F32, "16,1", "0-7,24-31");
    rb_expect(b, "gate", F32, "16,1", "8-15,32-39");
    rb_expect(b, "k", F32, "8,1", "16-19,40-43");
    rb_expect(b, "v", F32, "8,1", "20-23,44-47");
}

static void heads_repeat_and_do_not_tile(void **state)
{
    rb_t *b = *state;
    const char *text =
        "let K = 2, E = 2, P = 2, tp = 4\nranks tp as r\n"
        "\"k.weight\" [(h:1@{r*K/tp}/K e:E), d] where e pad P -> \"k.weight\" [(h e), d]\n"
        "\"k.bias\" [(h:1@{r*K/tp}/K e:E)] where e pad P -> \"k.bias\" [(h e)]";
    rb_source(b, "k.weight", F32, "4,3", NULL);
    rb_source(b, "k.bias", F32, "4", NULL);
    for (uint32_t r = 0; r < 4; r++) {
        rb_run(b, text, r);
        rb_expect(b, "k.weight", F32, "2,3", r < 2 ? "1-6" : "7-12");
        rb_expect(b, "k.bias", F32, "2", r < 2 ? "13 14" : "15 16");
    }
    rb_set(b, "P", "4");
    rb_run(b, text, 3);
    rb_expect(b, "k.weight", F32, "4,3", "7-12,0,0,0,0,0,0");
    rb_expect(b, "k.bias", F32, "4", "15 16 0 0");
}

static void interleaved_groups_are_cut_inside(void **state)
{
    rb_t *b = *state;
    rb_source(b, "ba", F32, "8,2", "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7");
    rb_run(b, "ranks 2 as r\n\"ba\" [({r}:2 x), d] -> \"ba\" [x, d]", 0);
    rb_expect(b, "ba", F32, "4,2", "0 0 1 1 2 2 3 3");
    rb_run(b, "ranks 2 as r\n\"ba\" [({r}:2 x), d] -> \"ba\" [x, d]", 1);
    rb_expect(b, "ba", F32, "4,2", "4 4 5 5 6 6 7 7");
    rb_run(b, "\"ba\" [(g:2 h:2 e), d] -> \"ba\" [(h g e), d]", 0);
    rb_expect(b, "ba", F32, "8,2", "0 0 1 1 4 4 5 5 2 2 3 3 6 6 7 7");
}

/* ---- experts ---- */

static void stacked_experts_get_a_name_each(void **state)
{
    rb_t *b = *state;
    rb_source(b, "experts.gate_up_proj", F32, "2,4,3", NULL);
    rb_run(b,
           "\"experts.gate_up_proj\" [e, (0:2 i), h] -> \"experts.{e}.gate_proj\" [i, h]\n"
           "\"experts.gate_up_proj\" [e, (1:2 i), h] -> \"experts.{e}.up_proj.weight\" [i, h]",
           0);
    assert_int_equal(rb_n_params(b), 4);
    rb_expect(b, "experts.0.gate_proj", F32, "2,3", "1-6");
    rb_expect(b, "experts.0.up_proj.weight", F32, "2,3", "7-12");
    rb_expect(b, "experts.1.gate_proj", F32, "2,3", "13-18");
    rb_expect(b, "experts.1.up_proj.weight", F32, "2,3", "19-24");
}

static void experts_with_a_name_each_are_stacked(void **state)
{
    rb_t *b = *state;
    rb_source(b, "experts.0.gate_proj", F32, "2,3", "1-6");
    rb_source(b, "experts.0.up_proj", F32, "2,3", "7-12");
    rb_source(b, "experts.1.gate_proj", F32, "2,3", "13-18");
    rb_source(b, "experts.1.up_proj", F32, "2,3", "19-24");
    rb_run(b,
           "let E = 2\n"
           "\"experts.{e}.gate_proj\" [i, h] -> \"experts.gate_up_proj\" [{e}:E, (0:2 i), h]\n"
           "\"experts.{e}.up_proj\" [i, h] -> \"experts.gate_up_proj\" [{e}:E, (1:2 i), h]",
           0);
    rb_expect(b, "experts.gate_up_proj", F32, "2,4,3", "1-24");
    rb_set(b, "E", "1");
    rb_refuses(b, "let E = 2\n\"experts.{e}.gate_proj\" [i, h] -> \"gate_up\" [{e}:E, (0:2 i), h]",
               0, HEFT_ERR_SHAPE, "positions 1 to 1 of an extent of 1");
}

/* ---- fusion and orientation ---- */

static void interleave_is_not_stack(void **state)
{
    rb_t *b = *state;
    rb_source(b, "gate", F32, "2,3", "1-6");
    rb_source(b, "up", F32, "2,3", "11-16");
    rb_source(b, "gate_bias", F32, "2", "21 22");
    rb_source(b, "up_bias", F32, "2", "31 32");
    rb_run(b,
           "\"gate\" [i, h] -> \"w\" [(i 0:2), h]\n\"up\" [i, h] -> \"w\" [(i 1:2), h]\n"
           "\"gate_bias\" [i] -> \"b\" [(i 0:2)]\n\"up_bias\" [i] -> \"b\" [(i 1:2)]",
           0);
    rb_expect(b, "w", F32, "4,3", "1-3,11-13,4-6,14-16");
    rb_expect(b, "b", F32, "4", "21 31 22 32");
    rb_run(b,
           "\"gate\" [i, h] -> \"w\" [(0:2 i), h]\n\"up\" [i, h] -> \"w\" [(1:2 i), h]\n"
           "\"gate_bias\" [i] -> \"b\" [(0:2 i)]\n\"up_bias\" [i] -> \"b\" [(1:2 i)]",
           0);
    rb_expect(b, "w", F32, "4,3", "1-6,11-16");
    rb_expect(b, "b", F32, "4", "21 22 31 32");
}

static void halves_of_each_shard_are_joined_by_half(void **state)
{
    rb_t *b = *state;
    rb_source(b, "fc1", F32, "8,1", "1 2 11 12 3 4 13 14"); /* g0 g1 u0 u1, then g2 g3 u2 u3 */
    rb_run(b,
           "\"fc1\" [(s:2 0:2 c), h] -> \"gate\" [(s c), h]\n"
           "\"fc1\" [(s:2 1:2 c), h] -> \"up\" [(s c), h]",
           0);
    rb_expect(b, "gate", F32, "4,1", "1-4");
    rb_expect(b, "up", F32, "4,1", "11-14");
}

static void blocks_interleave_inside_a_shard(void **state)
{
    rb_t *b = *state;
    const char *pad_inside = "ranks 2 as r\n"
                             "\"gate\" [d, ({r}:2 c)] where c pad {round_up(N/2, 2)} as (b q:2) -> "
                             "\"w\" [d, (b 0:2 q)]\n"
                             "\"up\" [..., ({r}:2 c)] where c pad {round_up(N/2, 2)} as (b q:2) -> "
                             "\"w\" [..., (b 1:2 q)]";
    char text[512];
    rb_source(b, "gate", F32, "1,8", "0-7");
    rb_source(b, "up", F32, "1,8", "10-17");
    (void)snprintf(text, sizeof text, "let N = 8\n%s", pad_inside);
    rb_run(b, text, 0);
    rb_expect(b, "w", F32, "1,8", "0 1 10 11 2 3 12 13");
    rb_run(b, text, 1);
    rb_expect(b, "w", F32, "1,8", "4 5 14 15 6 7 16 17");

    rb_clear(b);
    rb_source(b, "gate", F32, "1,6", "1-6");
    rb_source(b, "up", F32, "1,6", "11-16");
    rb_refuses(b, "ranks 2 as r\n\"gate\" [d, ({r}:2 b q:2)] -> \"w\" [d, (b 0:2 q)]", 0,
               HEFT_ERR_SHAPE, "extent 6 does not fit");
    (void)snprintf(text, sizeof text, "let N = 6\n%s", pad_inside);
    rb_run(b, text, 0);
    rb_expect(b, "w", F32, "1,8", "1 2 11 12 3 0 13 0");
    rb_run(b, text, 1);
    rb_expect(b, "w", F32, "1,8", "4 5 14 15 6 0 16 0");
    const char *pad_before =
        "ranks 2 as r\n"
        "\"gate\" [d, f] where f pad 8 as ({r}:2 b q:2) -> \"w\" [d, (b 0:2 q)]\n"
        "\"up\" [d, f] where f pad 8 as ({r}:2 b q:2) -> \"w\" [d, (b 1:2 q)]";
    rb_run(b, pad_before, 0);
    rb_expect(b, "w", F32, "1,8", "1 2 11 12 3 4 13 14");
    rb_run(b, pad_before, 1);
    rb_expect(b, "w", F32, "1,8", "5 6 15 16 0 0 0 0");
}

static void orientation_is_what_the_rule_says(void **state)
{
    rb_t *b = *state;
    rb_source(b, "down", F32, "1,4,4", "0-15");
    rb_run(b, "\"down\" [e, i, o] -> \"down\" [e, o, i]", 0);
    rb_expect(b, "down", F32, "1,4,4", "0 4 8 12 1 5 9 13 2 6 10 14 3 7 11 15");
    rb_run(b, "\"down\" [...] -> \"down\" [...]", 0);
    rb_expect(b, "down", F32, "1,4,4", "0-15");
}

static void the_layer_axis_is_each_tensors_own(void **state)
{
    rb_t *b = *state;
    rb_source(b, "mlp.wi", F32, "2,3,4", "0-23");
    rb_source(b, "norm.scale", F32, "3", "0-2");
    rb_source(b, "rngs.count", HEFT_DTYPE_U32, "", "5");
    rb_run(b,
           "\"mlp.wi\" [d, l, f] -> \"layers_{l}.mlp.wi\" [d, f]\n"
           "\"norm.scale\" [l] -> \"layers_{l}.norm.scale\" []\n"
           "ignore \"rngs.*\" because \"no weight\"",
           0);
    rb_expect(b, "layers_1.mlp.wi", F32, "2,4", "4-7,16-19");
    rb_expect(b, "layers_1.norm.scale", F32, "", "1");
    assert_int_equal(rb_n_params(b), 6);
}

/* ---- padding ---- */

static void padding_is_zero_and_never_repeats(void **state)
{
    rb_t *b = *state;
    static const char *const text = "let P = 16\n"
                                    "\"wi\" [e, d, f] where f pad P -> \"wi\" [e, d, f]\n"
                                    "\"wo\" [e, f, d] where f pad P -> \"wo\" [e, f, d]";
    rb_source(b, "wi", F32, "1,2,8", NULL);
    rb_source(b, "wo", F32, "1,8,2", NULL);
    rb_run(b, text, 0);
    rb_expect(b, "wi", F32, "1,2,16", "1-8,0,0,0,0,0,0,0,0,9-16,0,0,0,0,0,0,0,0");
    rb_expect(b, "wo", F32, "1,16,2", "17-32,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0");
    rb_clear(b);
    rb_source(b, "wi", F32, "1,2,11", NULL);
    rb_source(b, "wo", F32, "1,11,2", NULL);
    rb_run(b, text, 0);
    rb_expect(b, "wi", F32, "1,2,16", "1-11,0,0,0,0,0,12-22,0,0,0,0,0");
    rb_expect(b, "wo", F32, "1,16,2", "23-44,0,0,0,0,0,0,0,0,0,0");
}

static void each_fused_half_is_padded_by_itself(void **state)
{
    rb_t *b = *state;
    static const char *const text =
        "ranks 2 as r\nlet W = round_up(5, 4)\n"
        "\"gate\" [({r}:2 c), h] where c pad W -> \"w13\" [(0:2 c), h]\n"
        "\"up\" [({r}:2 c), h] where c pad W -> \"w13\" [(1:2 c), h]\n"
        "\"down\" [h, ({r}:2 c)] where c pad W -> \"w2\" [h, c]";
    rb_source(b, "gate", F32, "10,1", "1-10");
    rb_source(b, "up", F32, "10,1", "11-20");
    rb_source(b, "down", F32, "1,10", "21-30");
    rb_run(b, text, 0);
    rb_expect(b, "w13", F32, "16,1", "1-5,0,0,0,11-15,0,0,0");
    rb_expect(b, "w2", F32, "1,8", "21-25,0,0,0");
    rb_run(b, text, 1);
    rb_expect(b, "w13", F32, "16,1", "6-10,0,0,0,16-20,0,0,0");
    rb_expect(b, "w2", F32, "1,8", "26-30,0,0,0");
}

/* ---- dtypes ---- */

static void an_excepted_tensor_is_not_rounded(void **state)
{
    rb_t *b = *state;
    rb_source(b, "layers.0.router.weight", F32, "2", "1 1.000244140625");
    rb_source(b, "layers.0.w", F32, "2", "1 1.000244140625");
    rb_dest(b, "layers.0.router.weight", F32, "2");
    rb_dest(b, "layers.0.w", BF16, "2");
    rb_run(b, "dtype bf16 except \"*.router.*\"\n\"{rest*}\" [...] -> \"{rest*}\" [...]", 0);
    rb_expect(b, "layers.0.router.weight", F32, "2", "1 1.000244140625");
    rb_expect(b, "layers.0.w", BF16, "2", "1 1");
    rb_refuses(b, "dtype bf16\n\"{rest*}\" [...] -> \"{rest*}\" [...]", 0, HEFT_ERR_SHAPE,
               "BF16 [2] here, F32 [2] in the destination");
}

static void excepts_hold_when_their_condition_does(void **state)
{
    rb_t *b = *state;
    const char *text = "let keep = false, all = false\n"
                       "dtype bf16 except \"router\"\n"
                       "  except \"norm\", \"head\" when keep\n"
                       "  except \"*\" when all\n"
                       "\"{n}\" [...] -> \"{n}\" [...]";
    static const char *const names[] = { "router", "norm", "head", "up" };
    static const struct {
        const char *let;
        uint32_t n_kept;
    } cases[] = { { NULL, 1 }, { "keep", 3 }, { "all", 4 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rb_clear(b);
        for (size_t k = 0; k < 4; k++) {
            rb_source(b, names[k], F32, "1", "1.000244140625");
        }
        if (cases[i].let != NULL) {
            rb_set(b, cases[i].let, "true");
        }
        rb_run(b, text, 0);
        for (size_t k = 0; k < 4; k++) {
            bool is_kept = k < cases[i].n_kept;
            rb_expect(b, names[k], is_kept ? F32 : BF16, "1", is_kept ? "1.000244140625" : "1");
        }
    }
    rb_clear(b);
    rb_source(b, "a", F32, "", NULL);
    rb_refuses(b, "dtype bf16 except \"a\" when 1\n\"{n}\" [] -> \"{n}\" []", 0, HEFT_ERR_ARGUMENT,
               "test:1:28");
    rb_refuses(b, "dtype bf16 except \"a\" when zz\n\"{n}\" [] -> \"{n}\" []", 0, HEFT_ERR_SYNTAX,
               "test:1:28: `zz` is no let");
}

static void nothing_is_widened_and_integers_stay(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", HEFT_DTYPE_F8_E4M3, "1", NULL);
    rb_source(b, "b", BF16, "1", NULL);
    rb_source(b, "c", HEFT_DTYPE_I64, "1", NULL);
    rb_source(b, "d", HEFT_DTYPE_F64, "1", NULL);
    rb_run(b, "dtype f32\n\"{rest*}\" [...] -> \"{rest*}\" [...]", 0);
    rb_expect(b, "a", HEFT_DTYPE_F8_E4M3, "1", NULL);
    rb_expect(b, "b", BF16, "1", NULL);
    rb_expect(b, "c", HEFT_DTYPE_I64, "1", NULL);
    rb_expect(b, "d", F32, "1", NULL);
    rb_run(b, "\"{rest*}\" [...] -> \"{rest*}\" [...]", 0);
    rb_expect(b, "d", HEFT_DTYPE_F64, "1", NULL);
    rb_run(b, "\"b\" [...] -> \"b\" [...] by cast in f32", 0);
    rb_expect(b, "b", F32, "1", "2");
}

static void halves_of_one_parameter_have_one_dtype(void **state)
{
    rb_t *b = *state;
    rb_source(b, "gate", F32, "2", NULL);
    rb_source(b, "up", F32, "2", NULL);
    rb_refuses(b,
               "dtype bf16 except \"gate\"\n"
               "\"gate\" [i] -> \"w\" [(0:2 i)]\n\"up\" [i] -> \"w\" [(1:2 i)]",
               0, HEFT_ERR_SHAPE, "BF16 [4] here, F32 [4] by the rule on line 2");
}

static void packed_tensors_move_in_whole_rows(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", HEFT_DTYPE_F4, "3,2,8", "1-48");
    rb_run(b, "\"w\" [e, o, i] -> \"w.{e}\" [o, i]", 0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "w.1", HEFT_DTYPE_F4, "2,4", NULL); /* storage: 8 elements are 4 bytes */
    rb_refuses(b, "\"w\" [e, o, i] -> \"w\" [e, i, o]", 0, HEFT_ERR_UNSUPPORTED, "packed (F4)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(a_misspelt_source_stays_unused_and_its_parameter_unwritten),
        T(the_reason_of_an_ignored_tensor_is_kept),
        T(rules_do_not_see_what_is_ignored),
        T(a_token_is_not_a_substring),
        T(a_rename_changes_no_byte),
        T(names_of_the_destination_are_checked),
        T(a_token_of_one_side_is_added_where_it_is_missing),
        T(shapes_and_dtypes_of_the_destination_are_checked),
        T(an_untied_head_that_is_absent_is_refused),
        T(fused_heads_are_cut_at_global_rows),
        T(gated_heads_are_chosen_by_a_value),
        T(heads_repeat_and_do_not_tile),
        T(interleaved_groups_are_cut_inside),
        T(stacked_experts_get_a_name_each),
        T(experts_with_a_name_each_are_stacked),
        T(interleave_is_not_stack),
        T(halves_of_each_shard_are_joined_by_half),
        T(blocks_interleave_inside_a_shard),
        T(orientation_is_what_the_rule_says),
        T(the_layer_axis_is_each_tensors_own),
        T(padding_is_zero_and_never_repeats),
        T(each_fused_half_is_padded_by_itself),
        T(an_excepted_tensor_is_not_rounded),
        T(excepts_hold_when_their_condition_does),
        T(nothing_is_widened_and_integers_stay),
        T(halves_of_one_parameter_have_one_dtype),
        T(packed_tensors_move_in_whole_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
