/* SPDX-License-Identifier: Apache-2.0 */
/* All that is wrong with a recipe is said at once, where it stands, and nothing is said twice. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

typedef struct want {
    uint32_t line;
    uint32_t column;
    const char *part;
} want_t;

static void expect_issues(const heft_issues_t *issues, const want_t *want, size_t n)
{
    for (uint32_t i = 0; i < heft_issues_get_n(issues) || i < n; i++) {
        const heft_issue_t *issue = heft_issues_get(issues, i);
        if (issue == NULL || i >= n) {
            fail_msg("issue %u: %s", i, issue != NULL ? issue->text : want[i].part);
            return;
        }
        if (issue->line != want[i].line || issue->column != want[i].column ||
            strstr(issue->text, want[i].part) == NULL) {
            fail_msg("issue %u: %s, expected %u:%u %s", i, issue->text, want[i].line,
                     want[i].column, want[i].part);
        }
        assert_int_not_equal(issue->status, HEFT_OK);
    }
    assert_int_equal(heft_issues_get_n_errors(issues), n);
}

/* Parse and compile; the issues of both, which must be n. */
static void refuses_all(rb_t *b, const char *text, heft_status_t status, const want_t *want,
                        size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_issues_t *issues = NULL;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    char count[32];
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = rb_dest_manifest(b);
    EXPECT_STATUS(heft_issues_create(&issues, &err), HEFT_OK);
    heft_status_t got = heft_recipe_parse_all("t", text, strlen(text), issues, &recipe, &err);
    if (got == HEFT_OK) {
        got = heft_recipe_compile_all(recipe, b->bindings, 0, source, dest, issues, &tape, &err);
    }
    assert_null(tape);
    expect_issues(issues, want, n);
    EXPECT_STATUS(got, status);
    (void)snprintf(count, sizeof count, "(1 of %zu errors)", n);
    EXPECT_MESSAGE(n > 1 ? count : want[0].part);
    heft_recipe_destroy(recipe);
    heft_issues_destroy(issues);
    heft_manifest_destroy(source);
    heft_manifest_destroy(dest);
}

#define REFUSES(b, text, status, ...)                                           \
    do {                                                                        \
        const want_t want[] = { __VA_ARGS__ };                                  \
        refuses_all((b), (text), (status), want, sizeof want / sizeof want[0]); \
    } while (0)

static void every_statement_that_does_not_parse_is_listed(void **state)
{
    REFUSES(*state,
            "let a = )\n"
            "\"x\" [a b -> \"y\" []]\n"
            "let k = 1 $ 2, m = 3\n"
            "\"x\" [] -> \"y.{m + a + k}\" []\n"
            "lat q = 1\n"
            "ranks as r\n"
            "\"x\" [{r}:2] -> \"y\" []\n"
            "ignore \"q\"\n"
            "\"x\" [2] -> \"y\" []",
            HEFT_ERR_SYNTAX, { 1, 9, "a value expected, found `)`" },
            { 2, 8, "`,` or `]` expected, found `b`" }, { 3, 11, "stray character '$'" },
            { 5, 1, "a statement (let" }, { 6, 10, "`as` and a name for the rank expected" },
            { 8, 11, "`because` and a reason" }, { 9, 6, "a lone 1 is a unit axis" });
}

static void what_is_no_token_is_listed(void **state)
{
    REFUSES(*state,
            "let a = 12abc, b = 99999999999999999999\n"
            "let c = \"open, d = 1\n"
            "\"x\" [] -> \"y.{a + b}\" [] when c\n"
            "\"x\" [\x01] -> \"y.{e}\" []\n"
            "'x' [] -> \"y.{e}\" []\n"
            "\"x\" [] -> \"y.{1 $ 2}\" []",
            HEFT_ERR_SYNTAX, { 1, 9, "malformed number" }, { 1, 20, "beyond 64 bits" },
            { 2, 9, "closing quote" }, { 4, 6, "stray byte 0x01" }, { 5, 1, "double quotes" },
            { 6, 17, "stray character '$'" });
}

static void every_name_that_is_unknown_is_listed(void **state)
{
    REFUSES(*state,
            "let a = b, b = 1\n"
            "require c == 1 \"c\"\n"
            "dtype float32 except \"x\" when d\n"
            "ignore \"q\", \"r\" because \"s\" when e\n"
            "\"x\" [f:g] -> \"y\" [f]\n"
            "\"x\" [f] -> \"y\" []\n"
            "\"x\" [f] -> \"y\" [f] by foo in f32",
            HEFT_ERR_SYNTAX, { 1, 9, "`b` is used before its `let`" }, { 2, 9, "`c` is no let" },
            { 3, 7, "no dtype or let \"float32\"" }, { 3, 31, "`d` is no let" },
            { 4, 34, "`e` is no let" }, { 5, 8, "`g` is no let" },
            { 6, 16, "axis `f` of the source is neither" }, { 7, 23, "no kernel \"foo\"" });
}

static void every_value_that_is_wrong_is_listed_once(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "4", NULL);
    rb_set(b, "tpp", "2");
    rb_set(b, "kind", "3");
    REFUSES(b,
            "let n = config.n, m = n * 2, kind = \"a\"\n"
            "let tp\n"
            "require m == 3 \"m\"\n"
            "require 1 == 2 \"one\"\n"
            "require 2 == 3 \"two\"\n"
            "\"x\" [a:m] -> \"y\" [a]\n"
            "\"x\" [a] -> \"y.{kind}\" [a] when dest.tp == 1\n"
            "\"x\" [a:5] -> \"z\" [a]",
            HEFT_ERR_ARGUMENT, { 0, 0, "declares no `let tpp`; nearest is \"tp\"" },
            { 1, 9, "config.n is wanted" }, { 1, 30, "`let kind` is bound to the integer" },
            { 2, 5, "`let tp` has no value" }, { 4, 1, "one" }, { 5, 1, "two" },
            { 8, 6, "extent 4 does not fit a:5" });
}

static void every_rule_that_does_not_fit_is_listed(void **state)
{
    rb_t *b = *state;
    char name[32];
    for (int i = 0; i < 5; i++) {
        (void)snprintf(name, sizeof name, "l.%d.w", i);
        rb_source(b, name, F32, i == 1 ? "3" : "4", NULL);
    }
    rb_source(b, "x", F32, "4,2", NULL);
    REFUSES(b,
            "ignore \"rngs.*\" because \"none\"\n"
            "\"x\" [a] -> \"x\" [a]\n"
            "\"l.{i}.w\" [a:3] -> \"l.{i}.w\" [a]\n"
            "\"l.{i}.w\" [a] -> \"m.{i}.w\" [a] when i > 4\n"
            "\"l.{i}.v\" [a] -> \"v.{i}\" [a]\n"
            "\"x\" [a, b] -> \"y.{a / 0}\" [b]\n"
            "\"x\" [a, b] -> \"z\" [b, a]\n"
            "\"x\" [a, b] -> \"z\" [a, b]",
            HEFT_ERR_NAME, { 1, 8, "ignore \"rngs.*\" matches none of 6" },
            { 2, 5, "\"x\" has 2 dimensions, the rule 1" },
            { 3, 12, "extent 4 does not fit a:3 (and 3 more matches of the rule)" },
            { 4, 1, "`when` turns away all of them" },
            { 5, 1, "\"l.{i}.v\" matches none of 6 source tensors" }, { 6, 21, "division by zero" },
            { 8, 15, "F32 [4,2] here, F32 [2,4] by the rule on" });
}

static void every_parameter_that_the_destination_lacks_is_listed(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", F32, "2", NULL);
    rb_source(b, "b", F32, "2", NULL);
    rb_source(b, "c", F32, "2", NULL);
    rb_source(b, "d", F32, "2", NULL);
    rb_dest(b, "model.a", F32, "2");
    rb_dest(b, "b", F32, "3");
    rb_dest(b, "c", HEFT_DTYPE_BF16, "2");
    REFUSES(b, "\"{n}\" [d] -> \"{n}\" [d]", HEFT_ERR_NAME,
            { 1, 14, "parameter \"a\" is not in the destination" },
            { 1, 14, "parameter \"b\": F32 [2] here, F32 [3] in the destination" },
            { 1, 14, "parameter \"c\": F32 [2] here, BF16 [2] in the destination" },
            { 1, 14, "parameter \"d\" is not in the destination" });
}

static void a_dtype_that_is_wrong_says_nothing_of_the_parameters(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a", F32, "2", NULL);
    rb_dest(b, "a", HEFT_DTYPE_BF16, "2");
    REFUSES(b, "let wire = \"bf17\"\ndtype wire\n\"a\" [d] -> \"a\" [d]\n\"b\" [] -> \"b\" []",
            HEFT_ERR_ARGUMENT, { 2, 1, "\"bf17\" is no float dtype" }, { 4, 1, "matches none" });
    REFUSES(b, "let wire\ndtype wire\n\"a\" [d] -> \"a\" [d]", HEFT_ERR_ARGUMENT,
            { 1, 5, "has no value" });
}

static void forty_are_shown_and_all_are_counted(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_issues_t *issues = NULL;
    heft_recipe_t *recipe = NULL;
    char text[4096] = "";
    for (int i = 0; i < 100; i++) {
        (void)strcat(text, "\"x\" [a] -> \"y\" []\n");
    }
    EXPECT_STATUS(heft_issues_create(&issues, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_parse_all("t", text, strlen(text), issues, &recipe, &err),
                  HEFT_ERR_SYNTAX);
    EXPECT_MESSAGE("t:1:16");
    EXPECT_MESSAGE("(1 of 100 errors)");
    assert_int_equal(heft_issues_get_n(issues), 40);
    assert_int_equal(heft_issues_get_n_errors(issues), 100);
    assert_int_equal(heft_issues_get(issues, 39)->line, 40);
    assert_null(heft_issues_get(issues, 40));
    heft_issues_destroy(issues);
    /* a message that fills its line keeps the number */
    (void)snprintf(text, sizeof text, "\"%0200d\" [] -> \"y\" []\n\"b\" [] -> \"y\" []", 7);
    rb_source(b, "x", F32, "4", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_NAME, "(1 of 2 errors)");
    heft_issues_destroy(NULL);
}

/* Errors of every kind, with each allocation failing in turn. */
static void listing_survives_every_failed_allocation(void **state)
{
    static const char *const texts[] = {
        "let a = ), b = 2\nranks q as\n\"x\" [$] -> \"y\" []\n\"x\" [a] -> \"y\" []\n"
        "\"x\" [c:d] -> \"y\" [c]",
        "let a = config.b, c = [1, [2]]\n\"x\" [d:a] -> \"y\" [d]\n\"x\" [d:5] -> \"y\" [d]\n"
        "\"y\" [] -> \"z\" []\nignore \"q\" because \"r\"\n\"x\" [d] -> \"x\" [d] for l:{c[0]}",
    };
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    rb_source(b, "x", F32, "4", NULL);
    heft_manifest_t *source = rb_source_manifest(b);
    for (size_t i = 0; i < 2; i++) {
        bool is_done = false;
        for (long k = 0; !is_done; k++) {
            int64_t live = heft__alloc_live();
            heft_issues_t *issues = NULL;
            heft_recipe_t *recipe = NULL;
            heft_tape_t *tape = NULL;
            heft__alloc_fail_at(k);
            heft_status_t status = heft_issues_create(&issues, &err);
            if (status == HEFT_OK) {
                status =
                    heft_recipe_parse_all("t", texts[i], strlen(texts[i]), issues, &recipe, &err);
            }
            if (status == HEFT_OK) {
                status = heft_recipe_compile_all(recipe, b->bindings, 0, source, NULL, issues,
                                                 &tape, &err);
            }
            heft__alloc_fail_at(-1);
            is_done = status != HEFT_ERR_NOMEM;
            assert_int_not_equal(status, HEFT_OK);
            heft_recipe_destroy(recipe);
            heft_issues_destroy(issues);
            assert_int_equal(heft__alloc_live(), live);
        }
    }
    heft_manifest_destroy(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(every_statement_that_does_not_parse_is_listed),
        T(what_is_no_token_is_listed),
        T(every_name_that_is_unknown_is_listed),
        T(every_value_that_is_wrong_is_listed_once),
        T(every_rule_that_does_not_fit_is_listed),
        T(every_parameter_that_the_destination_lacks_is_listed),
        T(a_dtype_that_is_wrong_says_nothing_of_the_parameters),
        T(forty_are_shown_and_all_are_counted),
        T(listing_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
