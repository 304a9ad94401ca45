/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas with a name. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

/* `let v = EXPR` shows as the name of a parameter. */
static void worth(rb_t *b, const char *lets, const char *expr, const char *value)
{
    char text[512];
    char name[64];
    (void)snprintf(text, sizeof text, "%s\nlet v = %s\n\"x\" [] -> \"y.{v}\" []", lets, expr);
    (void)snprintf(name, sizeof name, "y.%s", value);
    rb_run(b, text, 0);
    if (!rb_has_param(b, name)) {
        fail_msg("%s is not %s", expr, value);
    }
}

static void a_call_is_worth_its_formula(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_config(b, "{\"n\": 5}");
    worth(b, "let f(a) = a + 1", "f(2) * 10", "30");
    worth(b, "let f(a) = a * 10", "f(1 + 2)", "30");
    worth(b, "let f(a, b) = a - b", "f(7, f(5, 3))", "5");
    worth(b, "let f(a, b) = a - b, g(b, a) = f(b, a)", "g(9, 2)", "7");
    worth(b, "let n = 3, f(a) = n * a", "f(n)", "9");
    worth(b, "let f(a) = max(a, 4)", "min(f(1), f(9))", "4");
    worth(b, "let f(i) = [\"a\", \"b\"][i]", "f(1)", "b");
    worth(b, "let f(key) = config.none or key", "f(6)", "6");
    worth(b, "let f(a) = a", "f(config.n)", "5");
    worth(b, "let f(n) = count(\"x\") + n", "f(1)", "2");
    /* the same name means a parameter inside, a let outside */
    worth(b, "let f(l) = l * 2, l = 50", "f(1) + l", "52");
}

static void a_formula_takes_captures_loops_and_axes(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x.3", F32, "2", NULL);
    rb_run(b,
           "let f(a, b) = a * 10 + b\n"
           "\"x.{l}\" [d] -> \"name.{f(l, d)}\" []\n"
           "\"x.{l}\" [d] -> \"loop.{f(i, l)}\" [d] for i:2 when f(i, 0) > 0\n"
           "\"x.{l}\" [d:{f(0, 2)}] -> \"size\" [({f(0, l) - 2}:2 d)]\n",
           0);
    rb_expect(b, "name.30", F32, "", "1");
    rb_expect(b, "name.31", F32, "", "2");
    rb_expect(b, "loop.13", F32, "2", "1 2");
    assert_false(rb_has_param(b, "loop.3"));
    rb_expect(b, "size", F32, "4", "? ? 1 2");
}

static void what_no_formula_is_is_refused(void **state)
{
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "let f(a) = a + z", HEFT_ERR_SYNTAX, "1:16: `z` is no parameter of `f`" },
        { "let f(a) = z, z = 1", HEFT_ERR_SYNTAX, "`z` is no parameter of `f` and no let before" },
        { "let f(a) = f(a)", HEFT_ERR_SYNTAX, "no function \"f\"" },
        { "let f(a, a) = a", HEFT_ERR_SYNTAX, "parameter `a` has the name of a parameter" },
        { "let n = 1, f(n) = n", HEFT_ERR_SYNTAX, "parameter `n` has the name of a let" },
        { "let f(a) = a, f(b) = b", HEFT_ERR_SYNTAX, "there is a function `f` already" },
        { "let min(a) = a", HEFT_ERR_SYNTAX, "there is a function `min` already" },
        { "let f() = 1", HEFT_ERR_SYNTAX, "the name of a parameter expected" },
        { "let f(a)", HEFT_ERR_SYNTAX, "`=` and a formula expected" },
        { "let f(a, b) = a, v = f(1)", HEFT_ERR_SYNTAX, "1:22: `f` takes 2 arguments, not 1" },
        { "let f(a) = a, v = f(1, 2)", HEFT_ERR_SYNTAX, "`f` takes 1 argument, not 2" },
        { "let f(a) = a, v = f(1", HEFT_ERR_SYNTAX, "`,` or `)` expected" },
        { "let f(a,b,c,d,e,g,h,i,j) = a", HEFT_ERR_LIMIT, "more than 8 parameters" },
        { "let f(a) = 1 / a, v = f(0)", HEFT_ERR_ARGUMENT, "division by zero" },
        { "let a(x) = x+x+x+x+x+x+x+x, b(x) = a(a(x)), c(x) = b(b(x)), v = c(1)", HEFT_ERR_LIMIT,
          "more than 4096 operations" },
        { "let f(a) = a, v = f", HEFT_ERR_SYNTAX, "`f` is no let" },
    };
    rb_t *b = *state;
    char text[512];
    rb_source(b, "x", F32, "", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(text, sizeof text, "%s\n\"x\" [] -> \"y\" []", cases[i].text);
        rb_refuses(b, text, 0, cases[i].status, cases[i].part);
    }
}

/* ---- values in the patterns of exceptions ---- */

static void exceptions_take_values(void **state)
{
    static const char text[] = "let n = 2, word = \"a.b\"\n"
                               "\"x.{l}\" [] -> \"y.{l}\" []\n"
                               "ignore \"x.{n + 1}\" because \"one\"\n"
                               "optional ignore \"*.{n}.{word}.*\" because \"two\"\n"
                               "optional ignore \"x.{n * 9}\" because \"three\"\n"
                               "untouched \"q{n}.*\" because \"four\" when n == 2\n"
                               "frozen \"plain.*\" because \"five\"\n";
    static const char *const patterns[] = { "x.3", "*.2.a.b.*", "q2.*", "plain.*" };
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_exception_t *exceptions = NULL;
    uint32_t n = 0;
    rb_source(b, "x.1", F32, "", NULL);
    rb_source(b, "x.3", F32, "", NULL);
    rb_source(b, "z.2.a.b.c", F32, "", NULL);
    rb_run(b, text, 0);
    assert_true(rb_has_param(b, "y.1"));
    assert_false(rb_has_param(b, "y.3"));
    EXPECT_STATUS(heft_recipe_parse("r", text, sizeof text - 1, &recipe, &err), HEFT_OK);
    assert_string_equal(heft_recipe_get_exception(recipe, 0)->pattern, "x.{n + 1}");
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(
        heft_recipe_resolve_exceptions(recipe, b->bindings, source, NULL, &exceptions, &n, &err),
        HEFT_OK);
    assert_int_equal(n, 4);
    for (uint32_t i = 0; i < n; i++) {
        assert_string_equal(exceptions[i].pattern, patterns[i]);
    }
    heft_exceptions_free(exceptions);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
    rb_refuses(b, "let n = 7\n\"x.{l}\" [] -> \"y.{l}\" []\nignore \"x.{n}\" because \"no\"", 0,
               HEFT_ERR_NAME, "ignore \"x.7\" matches none of 3");
    rb_refuses(b, "\"x.{l}\" [] -> \"y.{l}\" []\nignore \"x.{l}\" because \"no\"", 0,
               HEFT_ERR_SYNTAX, "`l` is no let");
    rb_refuses(b, "\"x.{l}\" [] -> \"y.{l}\" []\nignore \"{r*}.x\" because \"no\"", 0,
               HEFT_ERR_SYNTAX, "an exception has no captures");
    rb_refuses(b, "\"x.{l}\" [] -> \"y.{l}\" []\nignore \"{1 < 2}\" because \"no\"", 0,
               HEFT_ERR_ARGUMENT, "an integer or a word wanted");
}

static void a_formula_cannot_be_bound(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_set(b, "f", "1");
    rb_refuses(b, "let f(a) = a\n\"x\" [] -> \"y\" []", 0, HEFT_ERR_ARGUMENT, "no `let f`");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(a_call_is_worth_its_formula),   T(a_formula_takes_captures_loops_and_axes),
        T(what_no_formula_is_is_refused), T(exceptions_take_values),
        T(a_formula_cannot_be_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
