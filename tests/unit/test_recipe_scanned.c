/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scanned trees: every form, and what is said of a tree that has another one. One recipe takes the
 * container, the token of a slot and the order from lets, and says by `refuse` what a leaf means
 * that it has no rule for.
 */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

/* Layers of one kind: container.REST, the layers on axis 1. */
#define HOMOGENEOUS                                                                              \
    "let container = \"layers\", L = 8, C = 1\n"                                                 \
    "refuse \"{p*}.{container}_{l}.{rest*}\" because \"nothing scanned under this container\"\n" \
    "refuse \"{p*}.{singular(container)}_{l}.{rest*}\" because \"nothing scanned under this "    \
    "container\"\n"                                                                              \
    "\"{p*}.{container}.{rest*}\" [a, l:L, ...] -> \"{p*}.layers_{l}.{rest*}\" [a, ...]\n"

/* A cycle of C slots. */
#define CYCLE                                                                                    \
    "let container = \"layers\", slot = \"layer_\", L = 8, C = 4, contiguous = false\n"          \
    "require C > 0 and L % C == 0 \"the layers do not divide by the cycle\"\n"                   \
    "let R = L / C\n"                                                                            \
    "let layer(s, r) = if(contiguous, s * R + r, r * C + s)\n"                                   \
    "refuse \"{p*}.{container}.{slot}{s}.{rest*}\" because \"no such cycle slot\" when s >= C\n" \
    "refuse \"{p*}.{container}.{x}.{rest*}\" because \"no cycle slot of the container\"\n"       \
    "refuse \"{p*}.{container}_{l}.{rest*}\" because \"nothing scanned under the container\"\n"  \
    "\"{p*}.{container}.{slot}{s}.{rest*}\" [a, r:R, ...]\n"                                     \
    "  -> \"{p*}.layers_{layer(s, r)}.{rest*}\" [a, ...] when s < C\n"

static void expect_layer(const rb_t *b, const char *format, int layer, const char *values)
{
    char name[64];
    size_t head = strcspn(format, "#");
    (void)snprintf(name, sizeof name, "%.*s%d%s", (int)head, format, layer, format + head + 1);
    rb_expect(b, name, F32, "1", values);
}

/* Slot s of a cycle: one element for each of R layers, 10 s + r. */
static void declare_slots(rb_t *b, const char *format, int n_slots, int n_reps)
{
    for (int s = 0; s < n_slots; s++) {
        char name[64];
        char shape[16];
        char values[32];
        size_t head = strcspn(format, "#");
        (void)snprintf(name, sizeof name, "%.*s%d%s", (int)head, format, s, format + head + 1);
        (void)snprintf(shape, sizeof shape, "1,%d", n_reps);
        (void)snprintf(values, sizeof values, "%d-%d", 10 * s, 10 * s + n_reps - 1);
        rb_source(b, name, F32, shape, values);
    }
}

static void layers_of_one_kind_are_their_index(void **state)
{
    rb_t *b = *state;
    rb_source(b, "decoder.layers.k", F32, "2,8,2", "0-31");
    rb_source(b, "decoder.layers.mlp.w", F32, "1,8", "0-7");
    rb_run(b, HOMOGENEOUS, 0);
    assert_int_equal(rb_n_params(b), 16);
    rb_expect(b, "decoder.layers_3.k", F32, "2,2", "6 7 22 23");
    rb_expect(b, "decoder.layers_7.mlp.w", F32, "1", "7");
}

static void a_cycle_has_its_slots_under_any_key(void **state)
{
    static const struct {
        const char *container;
        const char *slot;
        const char *leaf;
    } forms[] = { { "layers", "layer_", "d.layers.layer_#.w" },
                  { "layers", "", "d.layers.#.w" },
                  { "scanned_blocks", "layers_", "d.scanned_blocks.layers_#.w" },
                  { "blocks", "block_", "d.blocks.block_#.w" } };
    rb_t *b = *state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        rb_clear(b);
        declare_slots(b, forms[i].leaf, 2, 3);
        rb_set(b, "container", forms[i].container);
        if (forms[i].slot[0] != '\0') {
            rb_set(b, "slot", forms[i].slot);
        }
        rb_set(b, "L", "6");
        rb_set(b, "C", "2");
        /* a binding is never empty: the slot that is a bare number stands in the text */
        char text[2048] = CYCLE;
        if (forms[i].slot[0] == '\0') {
            char *at = strstr(text, "\"layer_\"");
            memmove(at + 1, at + 7, strlen(at + 7) + 1);
        }
        rb_run(b, text, 0);
        assert_int_equal(rb_n_params(b), 6);
        static const char *const interleaved[] = { "0", "10", "1", "11", "2", "12" };
        for (int layer = 0; layer < 6; layer++) {
            expect_layer(b, "d.layers_#.w", layer, interleaved[layer]);
        }
        rb_set(b, "contiguous", "true");
        rb_run(b, text, 0);
        static const char *const contiguous[] = { "0", "1", "2", "10", "11", "12" };
        for (int layer = 0; layer < 6; layer++) {
            expect_layer(b, "d.layers_#.w", layer, contiguous[layer]);
        }
    }
}

static void nested_layers_have_their_global_one_last(void **state)
{
    static const char text[] = "let container = \"layers\", L = 8, C = 4\n"
                               "require L % C == 0 \"the layers do not divide by the cycle\"\n"
                               "let R = L / C\n"
                               "\"{p*}.{container}.local_layers.{rest*}\" [d, r:R, s:{C - 1}]\n"
                               "  -> \"{p*}.layers_{r * C + s}.{rest*}\" [d]\n"
                               "\"{p*}.{container}.global_layer.{rest*}\" [d, r:R]\n"
                               "  -> \"{p*}.layers_{r * C + C - 1}.{rest*}\" [d]";
    static const char *const want[] = { "0", "1", "2", "100", "3", "4", "5", "101" };
    rb_t *b = *state;
    for (int i = 0; i < 2; i++) {
        rb_clear(b);
        rb_source(b, i == 0 ? "m.layers.local_layers.w" : "m.scanned_blocks.local_layers.w", F32,
                  "1,2,3", "0-5");
        rb_source(b, i == 0 ? "m.layers.global_layer.w" : "m.scanned_blocks.global_layer.w", F32,
                  "1,2", "100 101");
        rb_set(b, "container", i == 0 ? "layers" : "scanned_blocks");
        rb_run(b, text, 0);
        assert_int_equal(rb_n_params(b), 8);
        for (int layer = 0; layer < 8; layer++) {
            expect_layer(b, "m.layers_#.w", layer, want[layer]);
        }
    }
    rb_clear(b);
    rb_source(b, "m.layers.local_layers.w", F32, "1,2,2", NULL);
    rb_source(b, "m.layers.global_layer.w", F32, "1,2", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_SHAPE,
               "\"m.layers.local_layers.w\" dimension 2: extent 2 does not fit s:3");
}

static void layers_that_are_left_over_come_last(void **state)
{
    static const char text[] =
        "let L, C = 2, with_rest = true\n"
        "let left = L % C\n"
        "require with_rest or left == 0 \"the layers do not divide by the cycle\"\n"
        "let R = L / C\n"
        "\"{p*}.layers.layers_{s}.{rest*}\" [d, r:R] -> \"{p*}.layers_{r * C + s}.{rest*}\" [d]\n"
        "optional \"{p*}.layers_remainder.layers_{q}.{rest*}\" [...]\n"
        "  -> \"{p*}.layers_{R * C + q}.{rest*}\" [...] when with_rest and q < left\n"
        "refuse \"{p*}.layers_remainder.layers_{q}.{rest*}\" because \"no such layer left over\"\n"
        "  when with_rest and q >= left\n"
        "\"{p*}.layers_remainder.{rest*}\" [...] -> \"{p*}.layers_remainder.{rest*}\" [...]\n"
        "  when not with_rest and has(\"*.layers_remainder.*\")";
    rb_t *b = *state;
    declare_slots(b, "d.layers.layers_#.w", 2, 3);
    rb_source(b, "d.layers_remainder.layers_0.w", F32, "1", "99");
    rb_set(b, "L", "7");
    rb_run(b, text, 0);
    static const char *const want[] = { "0", "10", "1", "11", "2", "12", "99" };
    assert_int_equal(rb_n_params(b), 7);
    for (int layer = 0; layer < 7; layer++) {
        expect_layer(b, "d.layers_#.w", layer, want[layer]);
    }
    /* in another family the same names are names like any other */
    rb_set(b, "with_rest", "false");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT,
               "do not divide by the cycle (with_rest = false, left = 1");
    rb_set(b, "L", "6");
    rb_run(b, text, 0);
    rb_expect(b, "d.layers_remainder.layers_0.w", F32, "1", "99");
    rb_set(b, "with_rest", "true");
    rb_refuses(b, text, 0, HEFT_ERR_NAME,
               "\"d.layers_remainder.layers_0.w\": no such layer left over (with_rest = true, q = "
               "0, left = 0)");
}

static void the_singular_drops_one_s(void **state)
{
    static const char *const cases[][2] = { { "layers", "layer" },
                                            { "class", "clas" },
                                            { "loss", "los" },
                                            { "block", "block" },
                                            { "blocks", "block" } };
    rb_t *b = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        rb_clear(b);
        (void)snprintf(name, sizeof name, "%s.%s_0.x", cases[i][0], cases[i][1]);
        rb_source(b, name, F32, "1,2", "5 6");
        rb_set(b, "c", cases[i][0]);
        rb_run(b, "let c\n\"{c}.{singular(c)}_{s}.x\" [d, r] -> \"y_{r}\" [d]", 0);
        rb_expect(b, "y_1", F32, "1", "6");
    }
    rb_clear(b);
    rb_refuses(b, "let c = \"s\"\n\"{c}.{singular(c)}_{s}.x\" [d, r] -> \"y_{r}\" [d]", 0,
               HEFT_ERR_ARGUMENT, "the singular is empty: no container");
    rb_refuses(b, "let c = singular(3)\n\"x\" [] -> \"y\" []", 0, HEFT_ERR_ARGUMENT,
               "a word wanted, got the integer 3");
    rb_clear(b);
    rb_source(b, "class.cla_0.x", F32, "1,2", NULL);
    rb_refuses(b, "let c = \"class\"\n\"{c}.{singular(c)}_{s}.x\" [d, r] -> \"y_{r}\" [d]", 0,
               HEFT_ERR_NAME,
               "\"class.clas_{s}.x\" matches none of 1 source tensors; nearest is "
               "\"class.cla_0.x\"");
}

static void patterns_take_values(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a.b.l1x.w", F32, "", "1");
    rb_source(b, "a.b.l2x.w", F32, "", "2");
    rb_source(b, "z.q", F32, "", "3");
    rb_run(b,
           "let root = \"a.b\", k = 1, none = \"\"\n"
           "\"{root}.l{k + 1}{x}.w\" [] -> \"one.{x}\" []\n"
           "\"{none}.*.{none}l{k}x.{r*}\" [] -> \"two.{r*}\" []\n"
           "\"{none}z.q.{none}\" [] -> \"three\" []",
           0);
    rb_expect(b, "one.x", F32, "", "2");
    rb_expect(b, "two.w", F32, "", "1");
    rb_expect(b, "three", F32, "", "3");
    /* the rank */
    rb_run(b, "ranks 3 as r\n\"a.b.l{r}x.w\" [] -> \"w\" []", 2);
    rb_expect(b, "w", F32, "", "2");
    rb_refuses(b, "let a = \"x*\"\n\"{a}.w\" [] -> \"w\" []", 0, HEFT_ERR_ARGUMENT,
               "test:2:3: \"x*\" cannot be a part of a name");
    rb_refuses(b, "let a = \"{b}\"\n\"{a}.w\" [] -> \"w\" []", 0, HEFT_ERR_ARGUMENT,
               "cannot be a part");
    rb_refuses(b, "let a = \"\"\n\"{a}\" [] -> \"w\" []", 0, HEFT_ERR_NAME, "makes an empty name");
    rb_refuses(b, "let a = \"q\"\n\"{a}{b}{c}\" [] -> \"w\" []", 0, HEFT_ERR_SYNTAX,
               "one {capture} in a token");
    rb_refuses(b, "let a = true\n\"x.{a}\" [] -> \"w\" []", 0, HEFT_ERR_ARGUMENT,
               "a name takes an integer from 0 or a word, got the truth value true");
    rb_refuses(b, "let a = \"q\"\n\"{a}.{b}.w\" [] -> \"w\" []", 0, HEFT_ERR_NAME,
               "\"q.{b}.w\" matches none of 3");
}

static void a_scanned_tree_of_another_form_is_refused_by_what_it_is(void **state)
{
    rb_t *b = *state;
    /* the axis has another extent */
    rb_source(b, "d.layers.k", F32, "2,2,2", NULL);
    rb_refuses(b, HOMOGENEOUS, 0, HEFT_ERR_SHAPE,
               "\"d.layers.k\" dimension 1: extent 2 does not fit l:8");
    rb_set(b, "L", "99");
    rb_refuses(b, HOMOGENEOUS, 0, HEFT_ERR_SHAPE,
               "\"d.layers.k\" dimension 1: extent 2 does not fit l:99");
    /* the tree is unrolled */
    rb_clear(b);
    rb_source(b, "d.layers_0.k", F32, "2,2", NULL);
    rb_source(b, "d.layers_1.k", F32, "2,2", NULL);
    rb_refuses(b, HOMOGENEOUS, 0, HEFT_ERR_NAME,
               "\"d.layers_0.k\": nothing scanned under this container (and 1 more)");
    rb_refuses(b, CYCLE, 0, HEFT_ERR_NAME, "nothing scanned under the container");
    rb_set(b, "container", "blocks");
    rb_refuses(b, HOMOGENEOUS, 0, HEFT_ERR_NAME, "\"{p*}.blocks.{rest*}\" matches none of 2");
    rb_clear(b);
    rb_source(b, "d.block_0.k", F32, "2,2", NULL);
    rb_set(b, "container", "blocks");
    rb_refuses(b, HOMOGENEOUS, 0, HEFT_ERR_NAME, "nothing scanned under this container");
    /* a leaf without a slot: no complaint about its shape */
    rb_clear(b);
    rb_source(b, "d.layers.norm.scale", F32, "2,2", NULL);
    rb_refuses(b, CYCLE, 0, HEFT_ERR_NAME,
               "\"d.layers.norm.scale\": no cycle slot of the container");
    declare_slots(b, "d.layers.layer_#.w", 4, 2);
    rb_refuses(b, CYCLE, 0, HEFT_ERR_NAME,
               "\"d.layers.norm.scale\": no cycle slot of the container");
    /* a slot beyond the cycle */
    rb_clear(b);
    declare_slots(b, "d.layers.layer_#.w", 6, 2);
    rb_refuses(b, CYCLE, 0, HEFT_ERR_NAME,
               "\"d.layers.layer_4.w\": no such cycle slot (s = 4, C = 4) (and 1 more)");
    rb_clear(b);
    declare_slots(b, "d.layers.layer_#.w", 4, 2);
    rb_source(b, "d.layers.layer_5.w", F32, "1,2", NULL);
    rb_refuses(b, CYCLE, 0, HEFT_ERR_NAME,
               "\"d.layers.layer_5.w\": no such cycle slot (s = 5, C = 4)");
    /* cycles that do not divide the layers, or are none */
    rb_set(b, "L", "9");
    rb_refuses(b, CYCLE, 0, HEFT_ERR_ARGUMENT, "do not divide by the cycle (C = 4, L = 9)");
    rb_set(b, "C", "0");
    rb_refuses(b, CYCLE, 0, HEFT_ERR_ARGUMENT, "do not divide by the cycle (C = 0, L = 9)");
    rb_set(b, "C", "-1");
    rb_refuses(b, CYCLE, 0, HEFT_ERR_ARGUMENT, "do not divide by the cycle (C = -1, L = 9)");
    /* a slot that is not there leaves its layers unwritten, which the proof names */
    rb_clear(b);
    declare_slots(b, "d.layers.layer_#.w", 3, 2);
    rb_dest(b, "d.layers_3.w", F32, "1");
    for (int layer = 0; layer < 7; layer++) {
        char name[32];
        (void)snprintf(name, sizeof name, "d.layers_%d.w", layer);
        if (layer != 3) {
            rb_dest(b, name, F32, "1");
        }
    }
    rb_run(b, CYCLE, 0);
    rb_expect(b, "d.layers_3.w", F32, "1", "?");
    rb_expect(b, "d.layers_6.w", F32, "1", "21");
}

/* `refuse any` is asked of what a rule has used, too; not of what is ignored. */
static void what_must_not_be_there_is_refused_though_a_rule_takes_it(void **state)
{
    static const char text[] = "let L = 2\n"
                               "\"layers.{l}.w\" [d] -> \"layers.{l}.w\" [d]\n"
                               "refuse any \"layers.{l}.*\" because \"no such layer\" when l >= L\n"
                               "optional ignore \"layers.7.*\" because \"a model of its own\"";
    rb_t *b = *state;
    rb_source(b, "layers.0.w", F32, "1", NULL);
    rb_source(b, "layers.1.w", F32, "1", NULL);
    rb_source(b, "layers.7.w", F32, "1", NULL);
    rb_run(b, text, 0);
    assert_int_equal(rb_n_params(b), 2);
    rb_source(b, "layers.2.w", F32, "1", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_NAME,
               "test:3:12: \"layers.2.w\": no such layer (l = 2, L = 2)");
    rb_source(b, "layers.x.w", F32, "1", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "a number wanted, got the word \"x\"");
}

static void leaves_outside_and_without_the_axis_pass_and_are_noted(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_issues_t *issues = NULL;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    const char *recipe_text =
        "let L = 2\n"
        "\"d.layers.w\" [a, l:L] -> \"d.layers_{l}.w\" [a]\n"
        "\"d.layers.gate\" [a] -> \"d.layers.gate\" [a] note \"no layer axis: passes as it is\"\n"
        "shared \"d.layers.norm\" [a] where l:L -> \"d.layers_{l}.norm\" [a]\n"
        "\"d.norm\" [a] -> \"d.norm\" [a]";
    rb_source(b, "d.layers.w", F32, "1,2", "0 1");
    rb_source(b, "d.layers.gate", F32, "1", "5");
    rb_source(b, "d.layers.norm", F32, "1", "6");
    rb_source(b, "d.norm", F32, "1", "7");
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_issues_create(&issues, &err), HEFT_OK);
    EXPECT_STATUS(
        heft_recipe_parse_all("t", recipe_text, strlen(recipe_text), issues, &recipe, &err),
        HEFT_OK);
    for (int i = 0; i < 2; i++) { /* two ranks: it is noted once */
        EXPECT_STATUS(heft_recipe_compile_all(recipe, NULL, 0, source, NULL, issues, &tape, &err),
                      HEFT_OK);
        heft_tape_destroy(tape);
        tape = NULL;
    }
    assert_int_equal(heft_issues_get_n(issues), 1);
    assert_int_equal(heft_issues_get_n_errors(issues), 0);
    assert_int_equal(heft_issues_get(issues, 0)->status, HEFT_OK);
    assert_string_equal(heft_issues_get(issues, 0)->text,
                        "t:3:49: \"d.layers.gate\": no layer axis: passes as it is");
    heft_recipe_destroy(recipe);
    heft_issues_destroy(issues);
    heft_manifest_destroy(source);
    rb_run(b, recipe_text, 0);
    rb_expect(b, "d.layers.gate", F32, "1", "5");
    rb_expect(b, "d.layers_1.norm", F32, "1", "6");
    rb_expect(b, "d.norm", F32, "1", "7");
}

static void exceptions_of_the_dtype_must_match(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a.router.w", F32, "1", "1");
    rb_source(b, "a.w", F32, "1", "2");
#define RULE "\n\"{r*}\" [d] -> \"{r*}\" [d]"
    rb_run(b, "dtype bf16 except \"*.router.*\"" RULE, 0);
    rb_expect(b, "a.router.w", F32, "1", "1");
    rb_expect(b, "a.w", HEFT_DTYPE_BF16, "1", "2");
    rb_refuses(b, "dtype bf16 except \"*.router.*\", \"*.gate.*\"" RULE, 0, HEFT_ERR_NAME,
               "test:1:33: except \"*.gate.*\" matches none of 2 source tensors (write `except "
               "optional`");
    rb_run(b, "dtype bf16 except \"*.router.*\" except optional \"*.gate.*\"" RULE, 0);
    rb_run(b, "dtype bf16 except \"*.gate.*\" when false" RULE, 0);
    rb_expect(b, "a.router.w", HEFT_DTYPE_BF16, "1", "1");
    rb_run(b, "dtype source except \"*.gate.*\"" RULE, 0); /* nothing is cast: nothing to except */
#undef RULE
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(layers_of_one_kind_are_their_index),
        T(a_cycle_has_its_slots_under_any_key),
        T(nested_layers_have_their_global_one_last),
        T(layers_that_are_left_over_come_last),
        T(the_singular_drops_one_s),
        T(patterns_take_values),
        T(a_scanned_tree_of_another_form_is_refused_by_what_it_is),
        T(what_must_not_be_there_is_refused_though_a_rule_takes_it),
        T(leaves_outside_and_without_the_axis_pass_and_are_noted),
        T(exceptions_of_the_dtype_must_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
