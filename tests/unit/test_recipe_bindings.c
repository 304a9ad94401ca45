/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings: values of lets, configuration, their JSON form. */
#include "recipe_bench.h"

#include "heft/model.h"

#define F32 HEFT_DTYPE_F32

static void lets_are_overridden_and_checked(void **state)
{
    rb_t *b = *state;
    const char *text = "let tp = 1, mode = \"a\", flag = false, f = 0.5, must\n"
                       "let twice = tp * 2\n"
                       "\"x\" [] -> \"y.{twice}.{mode}.{must}\" [] when not flag and f < 1\n"
                       "\"x\" [] -> \"z\" []";
    rb_source(b, "x", F32, "", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "`let must` has no value");
    rb_set(b, "must", "m");
    rb_set(b, "tp", "4");
    rb_set(b, "tp", "3"); /* the last one wins */
    rb_set(b, "mode", "other_mode-2");
    rb_run(b, text, 0);
    rb_expect(b, "y.6.other_mode-2.m", F32, "", "1");
    rb_set(b, "flag", "true");
    rb_set(b, "f", "2");
    rb_run(b, text, 0);
    assert_int_equal(rb_n_params(b), 1);
    rb_set(b, "tp", "many");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT,
               "`let tp` is bound to the word \"many\"; its default is of the kind \"integer\"");
}

/* A value of the wrong type is named by its key, or by its let, wherever it is used. */
static void a_wrong_type_is_named_by_its_key(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "let on = config.moe_prefused\n\"x\" [a] -> \"y\" [a] when on",
          "true or false wanted, got the word \"yes\" of config.moe_prefused" },
        { "let on = config.moe_prefused or true\n\"x\" [a] -> \"y\" [a] when not on",
          "true or false wanted, got the word \"yes\" of config.moe_prefused" },
        { "\"x\" [a:{config.n}] -> \"y\" [a]",
          "an integer wanted, got the decimal number 4 of config.n" },
        { "let n = config.n\n\"x\" [a:n] -> \"y\" [a]",
          "an integer wanted, got the decimal number 4 of config.n" },
        { "let n = config.deep.n or 1, m = 2 * n\n\"x\" [a:m] -> \"y\" [a]",
          "a number wanted, got the word \"4\" of config.deep.n" },
        { "let n = env.N\n\"x\" [a] -> \"y\" [a] when n",
          "true or false wanted, got the integer 7 of env.N" },
        { "let n\n\"x\" [a:n] -> \"y\" [a]",
          "an integer wanted, got the word \"four\" of `let n`" },
        { "let n = -config.moe_prefused\n\"x\" [a] -> \"y\" [a]",
          "a number wanted, got the word \"yes\" of config.moe_prefused" },
        { "let n = config.moe_prefused == true\n\"x\" [a] -> \"y\" [a]",
          "the word \"yes\" is compared with the truth value true" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rb_clear(b);
        rb_source(b, "x", F32, "4", NULL);
        rb_config(b, "{\"moe_prefused\": \"yes\", \"n\": 4.0, \"deep\": {\"n\": \"4\"}}");
        EXPECT_STATUS(heft_bindings_set_env(b->bindings, "N", "7", &err), HEFT_OK);
        if (strncmp(cases[i].text, "let n\n", 6) == 0) {
            rb_set(b, "n", "four");
        }
        rb_refuses(b, cases[i].text, 0, HEFT_ERR_ARGUMENT, cases[i].part);
    }
}

static void a_binding_that_nothing_declares_is_refused(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_set(b, "vocab_multipel", "3");
    rb_refuses(b, "let vocab_multiple = 64\n\"x\" [] -> \"y\" []", 0, HEFT_ERR_ARGUMENT,
               "declares no `let vocab_multipel`; nearest is \"vocab_multiple\"");
    rb_clear(b);
    rb_source(b, "x", F32, "", NULL);
    rb_set(b, "r", "3");
    rb_refuses(b, "ranks 2 as r\n\"x\" [] -> \"y\" []", 0, HEFT_ERR_ARGUMENT,
               "\"r\" is the rank and cannot be bound");
}

static void values_have_a_form(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_bindings_set(b->bindings, "1a", "1", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_bindings_set(b->bindings, "", "1", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_bindings_set(b->bindings, "a", "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_bindings_set(b->bindings, "a", "x\ny", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_bindings_set(b->bindings, "a", "9223372036854775808", &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("beyond 64 bits");
    EXPECT_STATUS(heft_bindings_set(b->bindings, "a", "9223372036854775807", &err), HEFT_OK);
}

static void ranks_are_counted_without_a_source(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    uint32_t n = 0;
    const char *text = "let tp = 2, pp = dest.pp or 3\nranks tp * pp as r\nlet x = config.absent\n"
                       "\"x\" [] -> \"y\" []";
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, NULL, &n, &err), HEFT_OK);
    assert_int_equal(n, 6);
    rb_set(b, "tp", "5");
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, b->bindings, &n, &err), HEFT_OK);
    assert_int_equal(n, 15);
    rb_set(b, "tq", "5");
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, b->bindings, &n, &err), HEFT_ERR_ARGUMENT);
    heft_recipe_destroy(recipe);
    text = "\"x\" [] -> \"y\" []";
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, NULL, &n, &err), HEFT_OK);
    assert_int_equal(n, 1);
    heft_recipe_destroy(recipe);
}

static void the_destination_answers_before_a_let(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    uint32_t id = 0;
    const char *text = "let lanes = 2\nlet L = dest.lanes, q = dest.quant or \"none\"\n"
                       "\"x\" [] -> \"y.{L}.{q}\" []";
    rb_source(b, "x", F32, "", NULL);
    rb_run(b, text, 0);
    rb_expect(b, "y.2.none", F32, "", "1");

    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = NULL;
    heft_shape_t scalar = { 0 };
    EXPECT_STATUS(heft_manifest_create("destination", &dest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(dest, "y.128.fp8", F32, &scalar, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(dest, "lanes", "128", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(dest, "quant", "fp8", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(dest, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_compile(recipe, b->bindings, 0, source, dest, &tape, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_find_buffer(tape, HEFT_BUFFER_PARAM, "y.128.fp8", &id, &err), HEFT_OK);
    heft_tape_destroy(tape);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(dest);
    heft_manifest_destroy(source);
}

static void json_goes_there_and_back(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bindings_t *back = NULL;
    char *text = NULL;
    char *again = NULL;
    EXPECT_STATUS(heft_bindings_encode(b->bindings, &text, &err), HEFT_OK);
    assert_string_equal(text, "{\"config\":{},\"let\":{}}");
    heft_string_free(text);
    rb_set(b, "tp", "2");
    rb_set(b, "flag", "true");
    rb_set(b, "word", "a-b");
    rb_set(b, "zeros", "007");
    rb_set(b, "half", "0.5");
    rb_config(b, "{\"z\": [1, 2.5, null], \"a\": {\"n\": \"t\"}}");
    EXPECT_STATUS(heft_bindings_encode(b->bindings, &text, &err), HEFT_OK);
    assert_string_equal(text, "{\"config\":{\"a\":{\"n\":\"t\"},\"z\":[1,2.5,null]},\"let\":{"
                              "\"flag\":true,\"half\":\"0.5\",\"tp\":2,\"word\":\"a-b\",\"zeros\":"
                              "\"007\"}}");
    EXPECT_STATUS(heft_bindings_decode(text, strlen(text), &back, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_encode(back, &again, &err), HEFT_OK);
    assert_string_equal(text, again);
    heft_bindings_destroy(back);
    heft_string_free(text);
    heft_string_free(again);
}

static void json_that_is_wrong_is_refused(void **state)
{
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        { "", "line 1" },
        { "[]", "no JSON object" },
        { "{\"lets\": {}}", "unknown key \"lets\"" },
        { "{\"let\": []}", "\"let\" is no object" },
        { "{\"config\": 1}", "\"config\" is no object" },
        { "{\"let\": {\"a\": 1.5}}", "\"a\" is no integer, truth value, text or list" },
        { "{\"let\": {\"a\": null}}", "\"a\"" },
        { "{\"let\": {\"a b\": 1}}", "no name of a let" },
        { "{\"let\": {\"a\": \"\"}}", "1 to 256 bytes" },
        { "{\"let\": {\"a\": 1, \"a\": 2}}", "duplicate" },
    };
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bindings_t *bindings = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        EXPECT_STATUS(heft_bindings_decode(cases[i].text, strlen(cases[i].text), &bindings, &err),
                      HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i].part);
        assert_null(bindings);
    }
    EXPECT_STATUS(heft_bindings_set_config(b->bindings, "[1]", 3, &err), HEFT_ERR_FORMAT);
    EXPECT_STATUS(heft_bindings_set_config(b->bindings, "{", 1, &err), HEFT_ERR_FORMAT);
}

static void configuration_comes_from_a_file(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char path[512];
    char *dir = heft_test_mkdir();
    const char *good = "{\"n\": 3}";
    rb_source(b, "x", F32, "", NULL);
    heft_test_write_file(dir, "config.json", good, strlen(good));
    heft_test_write_file(dir, "bad.json", "{\n oops", 7);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    EXPECT_STATUS(heft_bindings_load_config(b->bindings, path, &err), HEFT_OK);
    rb_run(b, "\"x\" [] -> \"y.{config.n}\" []", 0);
    rb_expect(b, "y.3", F32, "", "1");
    rb_refuses(b, "let n = config.n.m\n\"x\" [] -> \"y.{n}\" []", 0, HEFT_ERR_ARGUMENT,
               "config.n.m is absent");
    (void)snprintf(path, sizeof path, "%s/bad.json", dir);
    EXPECT_STATUS(heft_bindings_load_config(b->bindings, path, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("bad.json");
    EXPECT_MESSAGE("line 2");
    EXPECT_STATUS(heft_bindings_load_config(b->bindings, dir, &err), HEFT_ERR_IO);
    (void)snprintf(path, sizeof path, "%s/none.json", dir);
    EXPECT_STATUS(heft_bindings_load_config(b->bindings, path, &err), HEFT_ERR_NOT_FOUND);
    heft_test_rmdir(dir);
    rb_config(b, "{\"list\": [1], \"deep\": {\"a\": 1}, \"num_heads\": 4}");
    rb_refuses(b, "let n = config.list\n\"x\" [] -> \"y.{n}\" []", 0, HEFT_ERR_ARGUMENT,
               "got the list of 1 values");
    rb_refuses(b, "let n = config.deep\n\"x\" [] -> \"y.{n}\" []", 0, HEFT_ERR_ARGUMENT,
               "is an object");
    rb_refuses(b, "let n = config.num_head\n\"x\" [] -> \"y.{n}\" []", 0, HEFT_ERR_ARGUMENT,
               "config.num_head is absent; the nearest key is num_heads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(lets_are_overridden_and_checked),
        T(a_wrong_type_is_named_by_its_key),
        T(a_binding_that_nothing_declares_is_refused),
        T(values_have_a_form),
        T(ranks_are_counted_without_a_source),
        T(the_destination_answers_before_a_let),
        T(json_goes_there_and_back),
        T(json_that_is_wrong_is_refused),
        T(configuration_comes_from_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
