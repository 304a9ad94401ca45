/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of values, and rules that go through a loop. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

static const char config[] =
    "{\"layer_types\": [\"full\", \"linear\", \"linear\"], \"map\": [[1, 0], [0, 1]],"
    " \"mixed\": [1, 0.5, true, null, {\"a\": 1}, []], \"n\": 3}";

/* `let v = EXPR` shows as the name of a parameter. */
static void worth(rb_t *b, const char *expr, const char *value)
{
    char text[256];
    char name[64];
    (void)snprintf(text, sizeof text, "let n = 2\nlet v = %s\n\"x\" [] -> \"y.{v}\" []", expr);
    (void)snprintf(name, sizeof name, "y.%s", value);
    rb_run(b, text, 0);
    if (!rb_has_param(b, name)) {
        fail_msg("%s is not %s", expr, value);
    }
}

static void lists_are_indexed_from_zero(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_config(b, config);
    worth(b, "config.layer_types[1]", "linear");
    worth(b, "config.layer_types[n - 2]", "full");
    worth(b, "config.map[1][1]", "1");
    worth(b, "config.map[config.map[0][0]][0]", "0");
    worth(b, "[5, -6, 7][2]", "7");
    worth(b, "0 - [5, -6, 7][1]", "6");
    worth(b, "[[1, 2], [3, 4]][1][0]", "3");
    worth(b, "([\"a\", \"b\"])[1]", "b");
    worth(b, "range(9)[8]", "8");
    worth(b, "len(config.layer_types) + len([]) + len(range(4))", "7");
    worth(b, "index(config.layer_types, \"linear\")", "1");
    worth(b, "index(range(9), 4)", "4");
    worth(b, "config.none[0] or 4", "4");
    worth(b, "config.map[0][0] or 4", "1");
}

static void conditions_ask_lists(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_config(b, config);
    rb_run(b,
           "\"x\" [] -> \"a\" [] when contains(config.layer_types, \"full\")\n"
           "\"x\" [] -> \"b\" [] when contains([1, 2], 3)\n"
           "\"x\" [] -> \"c\" [] when config.mixed[2] and config.mixed[1] == 0.5\n"
           "\"x\" [] -> \"d\" [] when (config.mixed[2]) or false\n"
           "\"x\" [] -> \"e\" [] when contains([1, true, \"1\", 1.5], 1.5)",
           0);
    assert_true(rb_has_param(b, "a"));
    assert_false(rb_has_param(b, "b"));
    assert_true(rb_has_param(b, "c"));
    assert_true(rb_has_param(b, "d"));
    assert_true(rb_has_param(b, "e"));
}

static void an_index_out_of_range_is_refused_with_both_numbers(void **state)
{
    static const struct {
        const char *expr;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "config.layer_types[3]", HEFT_ERR_ARGUMENT,
          "test:1:27: index 3: config.layer_types has 3 values, 0 to 2" },
        { "config.layer_types[0 - 1]", HEFT_ERR_ARGUMENT, "index -1: config.layer_types has 3" },
        { "[][0]", HEFT_ERR_ARGUMENT, "index 0: the list is empty" },
        { "config.mixed[3]", HEFT_ERR_ARGUMENT, "value 3 of config.mixed is null" },
        { "config.mixed[4]", HEFT_ERR_ARGUMENT, "value 4 of config.mixed is an object" },
        { "config.n[0]", HEFT_ERR_ARGUMENT, "a list wanted, got the integer 3" },
        { "config.layer_types[\"full\"]", HEFT_ERR_ARGUMENT, "an integer wanted, got the word" },
        { "config.layer_type[0]", HEFT_ERR_ARGUMENT, "the nearest key is layer_types" },
        { "config.none[0] or config.layer_types[9]", HEFT_ERR_ARGUMENT, "index 9" },
        { "index(config.layer_types, \"sliding\")", HEFT_ERR_ARGUMENT,
          "\"sliding\" is none of the 3 values of config.layer_types" },
        { "len(3)", HEFT_ERR_ARGUMENT, "a list wanted, got the integer 3" },
        { "range(0 - 1)", HEFT_ERR_ARGUMENT, "range(-1)" },
        { "contains(3, 3)", HEFT_ERR_ARGUMENT, "a list wanted" },
        { "index([1], 1 / 0)", HEFT_ERR_ARGUMENT, "division by zero" },
        { "[1] == [1]", HEFT_ERR_ARGUMENT, "a value that can be compared wanted, got the list" },
        { "[1] + 1", HEFT_ERR_ARGUMENT, "a number wanted, got the list of 1 values" },
        { "config.layer_types", HEFT_ERR_ARGUMENT, "got the list of 3 values" },
        { "range(5)", HEFT_ERR_ARGUMENT, "got the list of 5 values" },
        { "[n]", HEFT_ERR_SYNTAX, "a number, a word in quotes, true, false or a list expected" },
        { "[1 2]", HEFT_ERR_SYNTAX, "`,` or `]` expected" },
        { "[-true]", HEFT_ERR_SYNTAX, "a number expected" },
        { "[1][0", HEFT_ERR_SYNTAX, "`]` expected" },
    };
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_config(b, config);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "let v = %s\n\"x\" [] -> \"y.{v}\" []", cases[i].expr);
        rb_refuses(b, text, 0, cases[i].status, cases[i].part);
    }
    char deep[512] = "let v = ";
    for (int i = 0; i < 100; i++) {
        (void)strcat(deep, "[");
    }
    rb_refuses(b, deep, 0, HEFT_ERR_SYNTAX, "nested deeper than");
}

static void lists_are_bound_as_json(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    const char *text = "let map = range(2)\n\"x\" [] -> \"y.{map[1]}\" []";
    rb_source(b, "x", F32, "", NULL);
    rb_run(b, text, 0);
    assert_true(rb_has_param(b, "y.1"));
    rb_set(b, "map", "[4, 5]");
    rb_run(b, text, 0);
    assert_true(rb_has_param(b, "y.5"));
    rb_set(b, "map", "[6, [7], \"8\"]");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "got the list of 1 values");
    rb_set(b, "map", "3");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT,
               "is bound to the integer \"3\"; its default is of the kind \"list\"");
    EXPECT_STATUS(heft_bindings_set(b->bindings, "map", "[1, 2", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("value of \"map\": column 5");
    EXPECT_STATUS(heft_bindings_set(b->bindings, "map", "[1] 2", &err), HEFT_ERR_ARGUMENT);

    char *encoded = NULL;
    heft_bindings_t *copy = NULL;
    rb_set(b, "map", "[1, [2, \"a\"], true]");
    EXPECT_STATUS(heft_bindings_encode(b->bindings, &encoded, &err), HEFT_OK);
    assert_string_equal(encoded, "{\"config\":{},\"let\":{\"map\":[1,[2,\"a\"],true]}}");
    EXPECT_STATUS(heft_bindings_decode(encoded, strlen(encoded), &copy, &err), HEFT_OK);
    heft_bindings_destroy(b->bindings);
    b->bindings = copy;
    rb_run(b, "let map\n\"x\" [] -> \"y.{map[1][1]}\" []", 0);
    assert_true(rb_has_param(b, "y.a"));
    heft_string_free(encoded);
}

static void a_table_comes_from_a_file(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char path[512];
    char *dir = heft_test_mkdir();
    rb_source(b, "x", F32, "", NULL);
    heft_test_write_file(dir, "table.json", "\n[[0, 1],\n [1, 0]]\n", 19);
    heft_test_write_file(dir, "bad.json", "[0, 1", 5);
    heft_test_write_file(dir, "zero.json", "[0\0]", 4);
    (void)snprintf(path, sizeof path, "%s/table.json", dir);
    EXPECT_STATUS(heft_bindings_load(b->bindings, "table", path, &err), HEFT_OK);
    rb_run(b, "let table\n\"x\" [] -> \"y.{table[1][0]}\" []", 0);
    assert_true(rb_has_param(b, "y.1"));
    (void)snprintf(path, sizeof path, "%s/bad.json", dir);
    EXPECT_STATUS(heft_bindings_load(b->bindings, "table", path, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("bad.json\": value of \"table\": column");
    (void)snprintf(path, sizeof path, "%s/zero.json", dir);
    EXPECT_STATUS(heft_bindings_load(b->bindings, "table", path, &err), HEFT_ERR_FORMAT);
    (void)snprintf(path, sizeof path, "%s/none.json", dir);
    EXPECT_STATUS(heft_bindings_load(b->bindings, "table", path, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_bindings_load(b->bindings, "a b", path, &err), HEFT_ERR_NOT_FOUND);
    heft_test_rmdir(dir);
}

/* ---- loops ---- */

static void a_loop_goes_through_its_rule(void **state)
{
    rb_t *b = *state;
    rb_source(b, "w", F32, "3,2", "0-5");
    rb_config(b, config);
    rb_run(b,
           "\"w\" [{l}:3, d] -> \"l.{l}.{config.layer_types[l]}.w\" [d] for l:{len("
           "config.layer_types)}",
           0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "l.0.full.w", F32, "2", "0 1");
    rb_expect(b, "l.2.linear.w", F32, "2", "4 5");
    rb_run(b,
           "\"w\" [{l}:3, {d}:2] -> \"l.{l + d}.{d}\" []\n"
           "  for l:3, d:2\n  when config.layer_types[l] == \"linear\"",
           0);
    assert_int_equal(rb_n_params(b), 4);
    rb_expect(b, "l.1.0", F32, "", "2");
    rb_expect(b, "l.3.1", F32, "", "5");
}

static void a_loop_may_depend_on_captures(void **state)
{
    rb_t *b = *state;
    rb_source(b, "m2", F32, "2", "0 1");
    rb_source(b, "m3", F32, "3", "10-12");
    rb_source(b, "s3.0", F32, "", "5");
    rb_source(b, "s3.1", F32, "", "6");
    rb_source(b, "s3.2", F32, "", "7");
    rb_run(b, "\"m{n}\" [{i}:{n}] -> \"y.{n}.{i}\" [] for i:{n}", 0);
    assert_int_equal(rb_n_params(b), 5);
    rb_expect(b, "y.2.1", F32, "", "1");
    rb_expect(b, "y.3.2", F32, "", "12");
    /* the name of a further source */
    rb_run(b, "\"m3\" [{i}:3], \"s3.{2 - i}\" [] -> \"z\" [{i}:3] for i:3 by mul in f32", 0);
    rb_expect(b, "z", F32, "3", "70 66 60");
}

static void loops_that_cannot_be_are_refused(void **state)
{
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "\"x\" [] -> \"y\" [] for l", HEFT_ERR_SYNTAX, "`:` and a number" },
        { "\"x\" [] -> \"y\" [] for 3", HEFT_ERR_SYNTAX, "the name of a loop expected" },
        { "\"x\" [] -> \"y\" [] for l:2 for m:2", HEFT_ERR_SYNTAX,
          "`for`, `when`, `by`, `note` or" },
        { "let l = 1\n\"x\" [] -> \"y\" [] for l:2", HEFT_ERR_SYNTAX,
          "loop `l` has the name of a let" },
        { "\"{l}\" [] -> \"y\" [] for l:2", HEFT_ERR_SYNTAX, "loop `l` has the name of a capture" },
        { "\"x\" [] -> \"y\" [] for l:2, l:3", HEFT_ERR_SYNTAX,
          "test:1:27: loop `l` has the name of a loop before it" },
        { "\"x\" [l] -> \"y\" [l] for l:2", HEFT_ERR_SYNTAX, "`l` is a loop, not an axis" },
        { "\"x\" [] -> \"y\" [] for l:{l}", HEFT_ERR_SYNTAX, "`l` is no let or capture" },
        { "\"x\" [] -> \"y.{l}\" [] for l:0", HEFT_ERR_ARGUMENT, "`for l:0`: 1 to 1048576 rounds" },
        { "\"x\" [] -> \"y.{l}\" [] for l:1048577", HEFT_ERR_ARGUMENT, "`for l:1048577`" },
        { "\"x\" [] -> \"y.{l}\" [] for l:9, m:9999999", HEFT_ERR_ARGUMENT, "`for m:9999999`" },
        { "\"x\" [] -> \"y.{l}\" [] for l:{\"a\"}", HEFT_ERR_ARGUMENT, "an integer wanted" },
        { "\"x\" [] -> \"y.{l}\" [] for l:2 when l > 2", HEFT_ERR_NAME, "`when` turns away" },
        { "\"x\" [] -> \"y\" [] for a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1", HEFT_ERR_LIMIT,
          "more than 8 loops" },
    };
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rb_refuses(b, cases[i].text, 0, cases[i].status, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(lists_are_indexed_from_zero),
        T(conditions_ask_lists),
        T(an_index_out_of_range_is_refused_with_both_numbers),
        T(lists_are_bound_as_json),
        T(a_table_comes_from_a_file),
        T(a_loop_goes_through_its_rule),
        T(a_loop_may_depend_on_captures),
        T(loops_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
