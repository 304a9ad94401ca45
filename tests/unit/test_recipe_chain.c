/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of recipes: random ones are run by a naive interpreter as one and recipe by recipe, and
 * must give the same; their plans are proven. What a chain is as a text and to its bindings; and
 * that failed allocations leave nothing behind.
 */
#include "recipe_bench.h"

#include "heft/contract.h"
#include "heft/plan.h"

#define F32 HEFT_DTYPE_F32
#define MAX_TEXT 8192

static int pick(uint64_t *rng, int low, int high)
{
    return (int)heft_test_random_in(rng, low, high);
}

static void put(char *text, const char *format, ...) HEFT_PRINTF(2, 3);
static void put(char *text, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + n, MAX_TEXT - n, format, args);
    va_end(args);
}

static heft_recipe_t *parse(const char *name, const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    if (heft_recipe_parse(name, text, strlen(text), &recipe, &err) != HEFT_OK) {
        fail_msg("%s\n%s", text, err.message);
    }
    return recipe;
}

/* ---- random chains ---- */

/* Tensors that one recipe makes and the next one reads. */
typedef struct tensors {
    char name[32][40];
    int dims[32][3];
    int n_dims[32];
    int n;
} tensors_t;

static void add_tensor(tensors_t *t, const char *name, const int *dims, int n_dims)
{
    (void)snprintf(t->name[t->n], sizeof t->name[0], "%s", name);
    for (int d = 0; d < n_dims; d++) {
        t->dims[t->n][d] = dims[d];
    }
    t->n_dims[t->n++] = n_dims;
}

typedef enum kind { PLAIN, SPLIT, PAD, REPEAT, NAMES, SCALE } kind_t;

/* One rule for a tensor: dimensions change places, and one of them is split in two that change
 * places, padded, repeated, or taken into names. */
typedef struct rule {
    kind_t kind;
    int at;    /* the dimension that this happens to */
    int turn;  /* how far dimensions move */
    int inner; /* SPLIT */
    int more;  /* PAD, REPEAT */
} rule_t;

static rule_t draw(uint64_t *rng, const int *dims, int n)
{
    rule_t r = { .kind = (kind_t)pick(rng, PLAIN, SCALE),
                 .at = pick(rng, 0, n - 1),
                 .turn = pick(rng, 0, n - 1),
                 .more = pick(rng, 1, 2) };
    r.inner = dims[r.at] % 2 == 0 ? 2 : 1;
    r.kind = r.kind == NAMES && dims[r.at] > 4 ? PLAIN : r.kind;
    return r;
}

static void put_source(char *text, const rule_t *r, const char *name, const int *dims, int n)
{
    put(text, "\"%s\" [", name);
    for (int d = 0; d < n; d++) {
        put(text, "%s", d > 0 ? ", " : "");
        if (d == r->at && r->kind == SPLIT) {
            put(text, "(x:%d y)", r->inner);
        } else {
            put(text, "a%d", d);
        }
    }
    put(text, "]");
    if (r->kind == PAD) {
        put(text, " where a%d pad %d", r->at, dims[r->at] + r->more);
    }
}

/* One dimension of the target, and its extent. */
static int put_dimension(char *text, const rule_t *r, int d, int extent)
{
    if (d != r->at || r->kind == PLAIN || r->kind == SCALE) {
        put(text, "a%d", d);
        return extent;
    }
    if (r->kind == SPLIT) {
        put(text, "(y x)");
        return extent;
    }
    if (r->kind == REPEAT) {
        put(text, "(a%d z:%d)", d, r->more + 1);
        return extent * (r->more + 1);
    }
    put(text, "a%d", d);
    return extent + r->more;
}

static void random_rule(uint64_t *rng, const tensors_t *from, int i, const char *stem, char *text,
                        tensors_t *made)
{
    const int n = from->n_dims[i];
    const rule_t r = draw(rng, from->dims[i], n);
    const bool in_names = r.kind == NAMES;
    int dims[3];
    int n_dims = 0;
    put_source(text, &r, from->name[i], from->dims[i], n);
    put(text, " -> \"%s%d.%s%d%s\" [", stem, i, in_names ? "{a" : "", r.at, in_names ? "}" : "");
    for (int k = 0; k < n; k++) {
        const int d = (k + r.turn) % n;
        if (d != r.at || !in_names) {
            put(text, "%s", n_dims > 0 ? ", " : "");
            dims[n_dims++] = put_dimension(text, &r, d, from->dims[i][d]);
        }
    }
    put(text, "]%s\n", r.kind == SCALE ? " by scale(2) in f32" : "");
    for (int k = 0; k < (in_names ? from->dims[i][r.at] : 1); k++) {
        char whole[40];
        (void)snprintf(whole, sizeof whole, "%s%d.%d", stem, i, in_names ? k : r.at);
        add_tensor(made, whole, dims, n_dims);
    }
}

/* A rule for each tensor, but for a few that are ignored. False: too many would be made. */
static bool random_stage(uint64_t *rng, const tensors_t *from, const char *stem, char *text,
                         tensors_t *made)
{
    made->n = 0;
    text[0] = '\0';
    for (int i = 0; i < from->n; i++) {
        if (made->n + 8 > 32) {
            return false;
        }
        if (from->n_dims[i] == 0 || pick(rng, 0, 9) == 0) {
            char name[24];
            (void)snprintf(name, sizeof name, "%s%d", stem, i);
            put(text, "\"%s\" [...] -> \"%s\" [...]\n", from->name[i], name);
            add_tensor(made, name, from->dims[i], from->n_dims[i]);
        } else if (i > 0 && pick(rng, 0, 9) == 0) {
            put(text, "ignore \"%s\" because \"not wanted\"\n", from->name[i]);
        } else {
            random_rule(rng, from, i, stem, text, made);
        }
    }
    return true;
}

static heft_plan_t *plan_of(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                            const heft_manifest_t *source, heft_status_t *status, heft_error_t *err)
{
    heft_tape_t *tapes[8] = { NULL };
    uint32_t n = 0;
    heft_plan_t *plan = NULL;
    heft_exception_t *exceptions = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    *status = heft_recipe_count_ranks(recipe, bindings, &n, err);
    for (uint32_t r = 0; r < n && *status == HEFT_OK; r++) {
        *status = heft_recipe_compile(recipe, bindings, r, source, NULL, &tapes[r], err);
    }
    if (*status == HEFT_OK) {
        *status = heft_recipe_resolve_exceptions(recipe, bindings, source, NULL, &exceptions,
                                                 &opts.n_exceptions, err);
    }
    opts.exceptions = exceptions;
    if (*status == HEFT_OK) {
        *status =
            heft_plan_create((const heft_tape_t *const *)tapes, n, 0, &opts, &plan, NULL, err);
    }
    heft_exceptions_free(exceptions);
    for (uint32_t r = 0; r < n; r++) {
        heft_tape_destroy(tapes[r]);
    }
    return plan;
}

/* Parameters of the last run become the sources. */
static void shift(rb_t *b, const tensors_t *made)
{
    static double values[32][4096];
    int64_t n[32];
    for (int i = 0; i < made->n; i++) {
        const double *from = rb_values(b, made->name[i], &n[i]);
        assert_true(n[i] <= 4096);
        memcpy(values[i], from, (size_t)n[i] * sizeof values[i][0]);
    }
    rb_clear(b);
    for (int i = 0; i < made->n; i++) {
        char shape[40] = "";
        for (int d = 0; d < made->n_dims[i]; d++) {
            (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d",
                           d > 0 ? "," : "", made->dims[i][d]);
        }
        rb_source(b, made->name[i], F32, shape, NULL);
        memcpy(b->sources[b->n_sources - 1].values, values[i], (size_t)n[i] * sizeof values[i][0]);
    }
}

static void declare(rb_t *b, uint64_t *rng, tensors_t *t)
{
    rb_clear(b);
    t->n = 0;
    for (int i = pick(rng, 1, 3); i > 0; i--) {
        int dims[3] = { 1, 1, 1 };
        char name[24];
        static char shape[MAX_TEXT];
        shape[0] = '\0';
        int n = pick(rng, 1, 3);
        for (int d = 0; d < n; d++) {
            dims[d] = pick(rng, 1, 4);
            put(shape, "%s%d", d > 0 ? "," : "", dims[d]);
        }
        (void)snprintf(name, sizeof name, "s%d", i);
        add_tensor(t, name, dims, n);
        rb_source(b, name, F32, shape, NULL);
    }
}

static void a_random_chain_is_its_recipes_one_by_one(void **state)
{
    rb_t *b = *state;
    uint64_t rng = heft_test_seed();
    int64_t n_run = 0;
    for (int64_t i = heft_test_cases(200); i > 0; i--) {
        static char texts[3][MAX_TEXT];
        static char chain[MAX_TEXT];
        static tensors_t t[4];
        static const char *const stems[] = { "p", "q", "r" };
        const int n = pick(&rng, 2, 3);
        bool is_good = true;
        declare(b, &rng, &t[0]);
        chain[0] = '\0';
        for (int s = 0; s < n && is_good; s++) {
            is_good = random_stage(&rng, &t[s], stems[s], texts[s], &t[s + 1]);
            put(chain, "recipe \"%s.heft\"\n%s", stems[s], texts[s]);
        }
        if (!is_good) {
            continue;
        }
        n_run++;
        /* proven, and folded without the tensors between */
        heft_error_t err = HEFT_ERROR_INIT;
        heft_status_t status;
        heft_recipe_t *recipe = parse("chain", chain);
        heft_manifest_t *source = rb_source_manifest(b);
        heft_plan_t *plan = plan_of(recipe, NULL, source, &status, &err);
        if (status != HEFT_OK) {
            fail_msg("%s%s", chain, err.message);
        }
        heft_plan_destroy(plan);
        heft_manifest_destroy(source);
        heft_recipe_destroy(recipe);
        /* as one */
        rb_run(b, chain, 0);
        assert_int_equal(rb_n_params(b), t[n].n);
        static double want[32][4096];
        int64_t counts[32];
        for (int k = 0; k < t[n].n; k++) {
            const double *values = rb_values(b, t[n].name[k], &counts[k]);
            memcpy(want[k], values, (size_t)counts[k] * sizeof *values);
        }
        /* and one by one */
        for (int s = 0; s < n; s++) {
            rb_run(b, texts[s], 0);
            if (s + 1 < n) {
                shift(b, &t[s + 1]);
            }
        }
        for (int k = 0; k < t[n].n; k++) {
            int64_t count;
            const double *values = rb_values(b, t[n].name[k], &count);
            assert_int_equal(count, counts[k]);
            assert_memory_equal(values, want[k], (size_t)count * sizeof *values);
        }
    }
    assert_true(n_run > 0);
}

/* ---- checks ---- */

/* Does a check of rank 0 read the source? */
static bool is_compared(const heft_plan_t *plan, const char *source)
{
    uint64_t n = 0;
    const heft_piece_t *checks = heft_plan_get_checks(plan, 0, &n);
    bool is_read = false;
    for (uint64_t i = 0; i < n; i++) {
        heft_tensor_info_t info;
        heft_error_t err = HEFT_ERROR_INIT;
        EXPECT_STATUS(heft_plan_query_source(plan, checks[i].srcs[0].source, &info, &err), HEFT_OK);
        is_read = is_read || strcmp(info.name, source) == 0;
    }
    return is_read;
}

/* Three copies of one tensor, of which two go into one half each. */
static const char copies[] = "recipe \"a\"\n"
                             "\"x{i}\" [k] -> \"x\" [k]\n"
                             "\"y\" [k] -> \"y\" [k]\n"
                             "equal \"x\" because \"copies\"\n"
                             "recipe \"b\"\n"
                             "ranks 2 as r\n"
                             "\"x\" [({r}:2 k)] -> \"z\" [k@0/3]\n"
                             "\"y\" [k] -> \"z\" [k@2/3]\n"
                             "\"y\" [k] -> \"w\" [k]\n";

static void declare_copies(rb_t *b)
{
    rb_clear(b);
    rb_source(b, "x0", F32, "4", NULL);
    rb_source(b, "x1", F32, "4", NULL);
    rb_source(b, "x2", F32, "4", NULL);
    rb_source(b, "y", F32, "1", NULL);
}

static void copies_of_a_tensor_between_are_compared_at_the_end(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status;
    heft_recipe_t *recipe = parse("chain", copies);
    declare_copies(b);
    heft_manifest_t *source = rb_source_manifest(b);
    heft_plan_t *plan = plan_of(recipe, NULL, source, &status, &err);
    EXPECT_STATUS(status, HEFT_OK);
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t n = 0;
        const heft_piece_t *checks = heft_plan_get_checks(plan, r, &n);
        assert_int_equal(n, 2); /* x0 and x1 against x2; nothing for y */
        for (uint64_t i = 0; i < n; i++) {
            heft_tensor_info_t info;
            EXPECT_STATUS(heft_plan_query_param(plan, r, checks[i].param, &info, &err), HEFT_OK);
            assert_string_equal(info.name, "z");
            assert_int_equal(checks[i].rank, 1);
            assert_int_equal(checks[i].extent[0], 2);
            assert_int_equal(checks[i].srcs[0].offset, 2 * r);
        }
    }
    heft_plan_destroy(plan);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

static void checks_go_through_three_recipes(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status;
    static const char text[] = "recipe \"a\"\n"
                               "\"x0\" [k] -> \"p\" [k]\n"
                               "\"x1\" [k] -> \"p\" [k]\n"
                               "\"x2\" [k] -> \"q\" [k]\n"
                               "\"y\" [k] -> \"y\" [k]\n"
                               "equal \"p\" because \"copies\"\n"
                               "recipe \"b\"\n"
                               "\"p\" [k] -> \"s\" [k]\n"
                               "\"q\" [k] -> \"s\" [k]\n"
                               "equal \"s\" because \"copies\"\n"
                               "ignore \"y\" because \"no\"\n"
                               "recipe \"c\"\n"
                               "\"s\" [(i:2 j)] -> \"t\" [(j i)]\n";
    heft_recipe_t *recipe = parse("chain", text);
    declare_copies(b);
    heft_manifest_t *source = rb_source_manifest(b);
    heft_plan_t *plan = plan_of(recipe, NULL, source, &status, &err);
    EXPECT_STATUS(status, HEFT_OK);
    /* x0 and x1 against x2 */
    assert_true(is_compared(plan, "x0"));
    assert_true(is_compared(plan, "x1"));
    assert_false(is_compared(plan, "y"));
    for (uint32_t i = 0; i < 4; i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_source(plan, i, &info, &err), HEFT_OK);
        assert_int_equal(heft_plan_leaves_out(plan, i), strcmp(info.name, "y") == 0);
    }
    heft_plan_destroy(plan);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

/* ---- texts ---- */

static void a_chain_is_its_text(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *parts[3];
    heft_recipe_t *chain = NULL;
    heft_recipe_t *longer = NULL;
    parts[0] = parse("folder/one.heft", "\"a\" [i] -> \"b\" [i]");
    parts[1] = parse("two.heft", "\"b\" [i] -> \"c\" [i]\nignore \"n\" because \"no\"\n");
    EXPECT_STATUS(heft_recipe_chain((const heft_recipe_t *const *)parts, 2, &chain, &err), HEFT_OK);
    assert_string_equal(heft_recipe_get_name(chain), "one.heft+two.heft");
    assert_string_equal(heft_recipe_get_text(chain),
                        "recipe \"one.heft\"\n\"a\" [i] -> \"b\" [i]\nrecipe \"two.heft\"\n"
                        "\"b\" [i] -> \"c\" [i]\nignore \"n\" because \"no\"\n");
    assert_int_equal(heft_recipe_get_n_parts(chain), 2);
    assert_string_equal(heft_recipe_get_name(heft_recipe_get_part(chain, 0)), "one.heft");
    assert_string_equal(heft_recipe_get_name(heft_recipe_get_part(chain, 1)), "two.heft");
    assert_null(heft_recipe_get_part(chain, 2));
    assert_int_equal(heft_recipe_get_n_exceptions(chain), 1);
    assert_int_equal(heft_recipe_get_exception(chain, 0)->stage, 1);
    /* a recipe is a chain of itself; chains can be chained */
    assert_int_equal(heft_recipe_get_n_parts(parts[0]), 1);
    assert_ptr_equal(heft_recipe_get_part(parts[0], 0), parts[0]);
    parts[2] = chain;
    EXPECT_STATUS(
        heft_recipe_chain((const heft_recipe_t *const[]){ chain, parts[0] }, 2, &longer, &err),
        HEFT_OK);
    assert_int_equal(heft_recipe_get_n_parts(longer), 3);
    heft_recipe_t *again = parse(heft_recipe_get_name(longer), heft_recipe_get_text(longer));
    assert_int_equal(heft_recipe_get_n_parts(again), 3);
    heft_recipe_destroy(again);
    heft_recipe_destroy(longer);
    for (int i = 0; i < 3; i++) {
        heft_recipe_destroy(parts[i]);
    }
}

static void what_is_no_chain_is_refused(void **state)
{
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        { "\"a\" [i] -> \"b\" [i]\nrecipe \"x\"\n\"b\" [i] -> \"c\" [i]\n",
          "t:1:1: a statement before the first recipe of a chain" },
        { "# fine\n\nrecipe \"x\" and more\n", "t:3:1: `recipe \"NAME\"` expected" },
        { "recipe \"\"\n", "t:1:1: `recipe \"NAME\"` expected" },
        { "recipe \"x\n", "t:1:1: `recipe \"NAME\"` expected" },
        { "recipe \"x\"", "recipe \"x\" has no rule" },
        { "recipe \"x\"\n\"a\" [i] -> \"b\" [i]\nrecipe \"y\"\n\n\"b\" [i] => 1\n", "y:2:9" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        EXPECT_STATUS(heft_recipe_parse("t", cases[i].text, strlen(cases[i].text), &recipe, &err),
                      HEFT_ERR_SYNTAX);
        if (strstr(err.message, cases[i].part) == NULL) {
            fail_msg("%s, not %s", err.message, cases[i].part);
        }
    }
    static char text[MAX_TEXT];
    for (int i = 0; i < 9; i++) {
        put(text, "recipe \"x%d\"\n\"a\" [i] -> \"a\" [i]\n", i);
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_ERR_LIMIT);
    EXPECT_STATUS(heft_recipe_chain(NULL, 1, &recipe, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_recipe_chain((const heft_recipe_t *const[]){ NULL }, 1, &recipe, &err),
                  HEFT_ERR_ARGUMENT);
}

static void an_exception_of_a_recipe_beyond_the_last_is_refused(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = parse("chain", copies);
    heft_tape_t *tape = NULL;
    heft_plan_t *plan = NULL;
    const heft_exception_t wrong = {
        .kind = HEFT_EXCEPTION_UNUSED, .pattern = "y", .reason = "no", .where = "", .stage = 2
    };
    declare_copies(b);
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_compile(recipe, NULL, 0, source, NULL, &tape, &err), HEFT_OK);
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.exceptions = &wrong;
    opts.n_exceptions = 1;
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const[]){ tape }, 1, 0, &opts, &plan, NULL, &err),
        HEFT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "recipe 2 of a chain of 2"));
    heft_tape_destroy(tape);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

/* ---- memory ---- */

static heft_status_t all_of_it(const char *text, const heft_manifest_t *source, heft_error_t *err)
{
    heft_recipe_t *recipe = NULL;
    heft_recipe_t *chain = NULL;
    heft_manifest_t *made = NULL;
    heft_plan_t *plan = NULL;
    heft_bindings_t *bindings = NULL;
    heft_status_t status = heft_recipe_parse("chain", text, strlen(text), &recipe, err);
    if (status == HEFT_OK) {
        status = heft_recipe_chain((const heft_recipe_t *const[]){ recipe }, 1, &chain, err);
    }
    if (status == HEFT_OK) {
        status = heft_bindings_create(&bindings, err);
    }
    if (status == HEFT_OK) {
        status = heft_bindings_set(bindings, "b.n", "2", err);
    }
    if (status == HEFT_OK) {
        status = heft_recipe_synthesize(chain, bindings, 0, source, NULL, &made, err);
    }
    if (status == HEFT_OK) {
        plan = plan_of(chain, bindings, source, &status, err);
    }
    heft_plan_destroy(plan);
    heft_manifest_destroy(made);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(chain);
    heft_recipe_destroy(recipe);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    static const char text[] = "recipe \"a\"\n"
                               "ranks 2 as r\n"
                               "\"x{i}\" [({r}:2 k)] -> \"x\" [k]\n"
                               "\"y\" [k] -> \"y\" [k]\n"
                               "equal \"x\" because \"copies\"\n"
                               "recipe \"b\"\n"
                               "let n = 1\n"
                               "ranks 2 as r\n"
                               "\"rank-{q}.x\" [(i:n k)] -> \"z\" [({q}:2 k i)]\n"
                               "\"rank-0.y\" [k] -> \"w\" [k]\n"
                               "ignore \"rank-1.y\" because \"the same\"\n";
    rb_t *b = *state;
    declare_copies(b);
    heft_manifest_t *source = rb_source_manifest(b);
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = all_of_it(text, source, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_manifest_destroy(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(a_random_chain_is_its_recipes_one_by_one),
        T(copies_of_a_tensor_between_are_compared_at_the_end),
        T(checks_go_through_three_recipes),
        T(a_chain_is_its_text),
        T(what_is_no_chain_is_refused),
        T(an_exception_of_a_recipe_beyond_the_last_is_refused),
        T(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
