/* SPDX-License-Identifier: Apache-2.0 */
/* Whole-token patterns, on their own and as sources of rules. */
#include "recipe_bench.h"

#include "recipe/compile.h"

#define F32 HEFT_DTYPE_F32

static void patterns_match_whole_tokens(void **state)
{
    (void)state;
    assert_true(heft_name_matches("a.b", "a.b"));
    assert_false(heft_name_matches("a.b", "a.bc"));
    assert_false(heft_name_matches("a.b", "a"));
    assert_false(heft_name_matches("a", "a.b"));
    assert_true(heft_name_matches("*", "anything.at.all"));
    assert_true(heft_name_matches("*", ""));
    assert_true(heft_name_matches("rngs.*", "rngs"));
    assert_true(heft_name_matches("rngs.*", "rngs.params.count"));
    assert_false(heft_name_matches("rngs.*", "my.rngs.x"));
    assert_true(heft_name_matches("*.gate.*", "mlp.gate.kernel"));
    assert_true(heft_name_matches("*.gate.*", "gate"));
    assert_false(heft_name_matches("*.gate.*", "mlp.gate_proj.kernel"));
    assert_false(heft_name_matches("*.gate", "mlp.gate.kernel"));
    assert_true(heft_name_matches("*.a.*.b", "x.a.a.y.b"));
    assert_true(heft_name_matches("*.a.b", "a.b.a.b"));
    assert_false(heft_name_matches("*.a.b.c", "a.b.a.b"));
    assert_true(heft_name_matches("a.*.*", "a"));
    assert_false(heft_name_matches("a*", "ab"));
    assert_true(heft_name_matches("a*", "a*"));
    assert_true(heft_name_matches("a..b", "a..b"));
    assert_false(heft_name_matches("a.b", "a..b"));
}

static void captures_take_tokens_and_parts_of_tokens(void **state)
{
    rb_t *b = *state;
    rb_source(b, "model.layers.07.mlp.w", F32, "", NULL);
    rb_source(b, "blocks.layers_3_x.w", F32, "", NULL);
    rb_source(b, "w", F32, "", NULL);
    rb_run(b,
           "\"model.layers.{l}.mlp.w\" [] -> \"out.{l}.{l+1}.{l*2}x{l}\" []\n"
           "\"{p*}.layers_{s}_x.{q*}\" [] -> \"{q*}.{p*}.{s-3}\" []\n"
           "\"{p*}.w\" [] -> \"{p*}.all.{p*}.v\" []",
           0);
    rb_expect(b, "out.07.8.14x07", F32, "", "1");
    rb_expect(b, "w.blocks.0", F32, "", "2");
    rb_expect(b, "all.v", F32, "", "3"); /* {p*} is empty: no dots are left */
    rb_expect(b, "blocks.layers_3_x.all.blocks.layers_3_x.v", F32, "", "2");
}

static void a_capture_is_never_empty_and_never_half_a_token(void **state)
{
    rb_t *b = *state;
    rb_source(b, "layers_.w", F32, "", NULL);
    rb_source(b, "layers_1x.w", F32, "", NULL);
    rb_source(b, "xlayers_1.w", F32, "", NULL);
    rb_refuses(b, "\"layers_{s}.w\" [] -> \"o.{s+0}\" []", 0, HEFT_ERR_ARGUMENT, "\"1x\"");
    rb_run(b, "\"layers_{s}.w\" [] -> \"o.{s}\" []", 0);
    assert_int_equal(rb_n_params(b), 1);
    rb_expect(b, "o.1x", F32, "", "2");
}

static void stars_take_the_shortest_run_first(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a.x.b.x.c", F32, "", NULL);
    rb_run(b, "\"{p*}.x.{q*}\" [] -> \"p.{p*}.q.{q*}\" []", 0);
    rb_expect(b, "p.a.q.b.x.c", F32, "", "1");
}

static void names_that_no_rule_can_make_are_refused(void **state)
{
    rb_t *b = *state;
    rb_source(b, "l.3", F32, "", NULL);
    rb_refuses(b, "\"l.{i}\" [] -> \"o.{i-4}\" []", 0, HEFT_ERR_ARGUMENT, "-1");
    rb_refuses(b, "\"{p*}\" [] -> \"{p*}.{true}\" []", 0, HEFT_ERR_ARGUMENT, "truth value");
    rb_refuses(b, "let w = \"x\"\n\"l.{i}\" [] -> \"o.{q}\" []", 0, HEFT_ERR_SYNTAX,
               "`q` is no let");
    rb_run(b, "let w = \"x\"\n\"l.{i}\" [] -> \"o.{w}{i}\" []", 0);
    rb_expect(b, "o.x3", F32, "", "1");
}

static void when_chooses_matches(void **state)
{
    rb_t *b = *state;
    rb_source(b, "l.0", F32, "", NULL);
    rb_source(b, "l.1", F32, "", NULL);
    rb_source(b, "l.2", F32, "", NULL);
    rb_run(b,
           "\"l.{i}\" [] -> \"even.{i}\" [] when i % 2 == 0\n\"l.{i}\" [] -> \"odd.{i}\" [] when i "
           "% 2 == 1",
           0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "even.2", F32, "", "3");
    rb_expect(b, "odd.1", F32, "", "2");
    rb_refuses(b, "\"l.{i}\" [] -> \"o.{i}\" [] when i > 7", 0, HEFT_ERR_NAME,
               "turns away all of them");
    rb_refuses(b, "\"{rest*}\" [] -> \"o\" [] when false\n\"m.{i}\" [] -> \"o.{i}\" []", 0,
               HEFT_ERR_NAME, "\"m.{i}\" matches none of 3");
}

/* The matcher of rules agrees with heft_name_matches on patterns without captures. */
static void both_matchers_agree(void **state)
{
    (void)state;
    static const char *const words[] = { "a", "b", "*" };
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t seed = heft_test_seed();
    for (int64_t i = heft_test_cases(3000); i > 0; i--) {
        char pattern[32] = "";
        char name[32] = "";
        char text[96];
        for (int64_t k = heft_test_random_in(&seed, 1, 5); k > 0; k--) {
            (void)strcat(pattern, words[heft_test_random_in(&seed, 0, 2)]);
            (void)strcat(pattern, k > 1 ? "." : "");
        }
        for (int64_t k = heft_test_random_in(&seed, 1, 6); k > 0; k--) {
            (void)strcat(name, words[heft_test_random_in(&seed, 0, 1)]);
            (void)strcat(name, k > 1 ? "." : "");
        }
        heft_recipe_t *recipe = NULL;
        heft_manifest_t *manifest = NULL;
        heft_shape_t scalar = { 0 };
        heft__names_t names;
        (void)snprintf(text, sizeof text, "\"%s\" [] -> \"x\" []", pattern);
        EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(manifest, name, F32, &scalar, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
        EXPECT_STATUS(heft__names_init(&names, manifest, &err), HEFT_OK);
        bool got =
            heft__pattern_match(&recipe->rules[0]->sources[0].pattern, &names.items[0], NULL);
        if (got != (heft_name_matches(pattern, name) != 0)) {
            fail_msg("\"%s\" and \"%s\": %d", pattern, name, (int)got);
        }
        heft__names_fini(&names);
        heft_manifest_destroy(manifest);
        heft_recipe_destroy(recipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(patterns_match_whole_tokens),
        T(captures_take_tokens_and_parts_of_tokens),
        T(a_capture_is_never_empty_and_never_half_a_token),
        T(stars_take_the_shortest_run_first),
        T(names_that_no_rule_can_make_are_refused),
        T(when_chooses_matches),
        T(both_matchers_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
