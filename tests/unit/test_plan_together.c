/* SPDX-License-Identifier: Apache-2.0 */
/* Groups that are declared: parameters that share no source element and must travel together. */
#include "plan_fixture.h"

static uint32_t group_of(const fx_t *fx, uint32_t rank_index, const char *param)
{
    return heft_plan_get_param_group(fx->plan, rank_index, fx_find_param(fx, rank_index, param));
}

/* Weights and scales of two layers on each of two ranks, none sharing an element. */
static void open_layers(fx_t *fx)
{
    fx_init(fx);
    for (int r = 0; r < 2; r++) {
        for (int l = 0; l < 2; l++) {
            char name[40];
            (void)snprintf(name, sizeof name, "layers.%d.w", l);
            heft_view_t w = fx_source(fx, name, "4");
            fx_copy(fx, fx_param(fx, name, "2"), fx_narrow(w, 0, 2 * r, 2 * r + 2), "");
            (void)snprintf(name, sizeof name, "layers.%d.w_scale", l);
            heft_view_t s = fx_source(fx, name, "2");
            fx_copy(fx, fx_param(fx, name, "1"), fx_narrow(s, 0, r, r + 1), "");
        }
        if (r == 0) {
            fx_next(fx);
        }
    }
}

static void a_weight_and_its_scale_are_one_group_of_each_layer(void **state)
{
    (void)state;
    fx_t fx;
    open_layers(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 8);
    fx_except(&fx, HEFT_EXCEPTION_TOGETHER, "layers.{l}.w layers.{l}.w_scale", "one kernel");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 4);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(group_of(&fx, r, "layers.0.w"), group_of(&fx, r, "layers.0.w_scale"));
        assert_int_equal(group_of(&fx, r, "layers.1.w"), group_of(&fx, r, "layers.1.w_scale"));
        assert_int_not_equal(group_of(&fx, r, "layers.0.w"), group_of(&fx, r, "layers.1.w"));
    }
    assert_int_not_equal(group_of(&fx, 0, "layers.0.w"), group_of(&fx, 1, "layers.0.w"));
    uint32_t n;
    (void)heft_plan_get_group_sources(fx.plan, group_of(&fx, 1, "layers.1.w"), &n);
    assert_int_equal(n, 2);
    const heft_finding_t *f = heft_report_get_finding(fx.report, 0);
    assert_int_equal(f->kind, HEFT_FINDING_EXCEPTION);
    assert_string_equal(f->text, "together: 4 parameters, 4 elements by \"layers.{l}.w "
                                 "layers.{l}.w_scale\": one kernel");
    fx_fini(&fx);
}

static void what_is_together_does_not_change_the_plan_of_a_rank(void **state)
{
    (void)state;
    char digest[65];
    char before[65];
    fx_t fx;
    open_layers(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    (void)snprintf(digest, sizeof digest, "%s", heft_plan_get_rank_digest(fx.plan, 1));
    (void)snprintf(before, sizeof before, "%s", fx_info(&fx).digest);
    fx_except(&fx, HEFT_EXCEPTION_TOGETHER, "layers.*", "all");
    (void)fx_plan(&fx, HEFT_OK);
    assert_string_equal(heft_plan_get_rank_digest(fx.plan, 1), digest);
    assert_string_not_equal(fx_info(&fx).digest, before);
    assert_int_equal(fx_info(&fx).n_groups, 2);
    fx_fini(&fx);
}

static void parts_of_tokens_and_stars_are_matched(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    const char *names[] = { "a.l_1.b.w", "a.l_12.b.w", "x.l_1.s", "x.y.l_12.s", "l_3.w" };
    for (int i = 0; i < 5; i++) {
        heft_view_t s = fx_source(&fx, names[i], "2");
        fx_copy(&fx, fx_param(&fx, names[i], "2"), s, "");
    }
    fx_except(&fx, HEFT_EXCEPTION_TOGETHER, "*.l_{n}.*.w *.l_{n}.s", "pairs");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 3);
    assert_int_equal(group_of(&fx, 0, "a.l_1.b.w"), group_of(&fx, 0, "x.l_1.s"));
    assert_int_equal(group_of(&fx, 0, "a.l_12.b.w"), group_of(&fx, 0, "x.y.l_12.s"));
    fx_fini(&fx);
}

static void an_entry_that_joins_nothing_is_stale(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        const char *message;
    } rows[] = {
        { "layers.{l}.w layers.{l}.scale",
          "exception together \"layers.{l}.w layers.{l}.scale\": \"layers.{l}.scale\" matches no "
          "parameter" },
        { "layers.{l}.w", "hides nothing: 4 parameters matched (\"layers.0.w\", ..), all alone" },
        { "layer.*", "\"layer.*\" matches no parameter" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fx_t fx;
        open_layers(&fx);
        fx_except(&fx, HEFT_EXCEPTION_TOGETHER, rows[i].pattern, "kernel");
        heft_error_t err = fx_plan(&fx, HEFT_ERR_PROOF);
        EXPECT_MESSAGE(rows[i].message);
        fx_fini(&fx);
    }
}

static void patterns_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        const char *message;
    } rows[] = {
        { "a.{l}.w b.w", "every pattern must have the same parts in braces" },
        { "a.{l}.w b.{k}.w", "every pattern must have the same parts in braces" },
        { "a.{}.w", "one part in braces" },
        { "a.{l.w", "one part in braces" },
        { "a.l}.w", "one part in braces" },
        { "a.{l}{k}.w", "one part in braces" },
        { "{a}.{b}.{c}.{d}.{e}.{f}.{g}.{h}.{i}", "more than 8" },
        { "*.*.*.*.*.*.*.*.*.w", "more than 8 `*`" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fx_t fx;
        open_layers(&fx);
        fx_except(&fx, HEFT_EXCEPTION_TOGETHER, rows[i].pattern, "kernel");
        heft_error_t err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE(rows[i].message);
        fx_fini(&fx);
    }
}

static void what_a_pattern_costs_is_bounded(void **state)
{
    (void)state;
    char name[400] = "";
    fx_t fx;
    fx_init(&fx);
    for (size_t i = 0; i + 2 < sizeof name; i += 2) {
        memcpy(name + i, "a.", 2);
    }
    name[sizeof name - 3] = 'a';
    name[sizeof name - 2] = '\0';
    fx_copy(&fx, fx_param(&fx, name, "2"), fx_source(&fx, "s", "2"), "");
    fx_except(&fx, HEFT_EXCEPTION_TOGETHER, "*.a.*.a.*.a.*.a.*.a.*.a.*.a.*.b", "hostile");
    heft_error_t err = fx_plan(&fx, HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("takes more than 100000 steps");
    fx_fini(&fx);
}

static const char source_json[] = "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                                  "{\"name\":\"layers.0.w\",\"dtype\":\"BF16\",\"shape\":[2]},"
                                  "{\"name\":\"layers.0.s\",\"dtype\":\"BF16\",\"shape\":[2]},"
                                  "{\"name\":\"layers.1.w\",\"dtype\":\"BF16\",\"shape\":[2]},"
                                  "{\"name\":\"layers.1.s\",\"dtype\":\"BF16\",\"shape\":[2]}]}";

/* The number of groups that a recipe comes to. */
static uint32_t count_groups(const char *together)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *source = NULL;
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    heft_tape_t *tape = NULL;
    heft_plan_t *plan = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_exception_t *exceptions = NULL;
    heft_plan_info_t info;
    char text[300];
    (void)snprintf(text, sizeof text, "\"layers.{l}.{x}\" [d] -> \"l.{l}.{x}\" [d]\n%s", together);
    EXPECT_STATUS(heft_manifest_decode(source_json, strlen(source_json), &source, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_parse("r", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_compile(recipe, bindings, 0, source, NULL, &tape, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_resolve_exceptions(recipe, bindings, source, NULL, &exceptions,
                                                 &opts.n_exceptions, &err),
                  HEFT_OK);
    opts.exceptions = exceptions;
    const heft_tape_t *tapes[] = { tape };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &plan, NULL, &err), HEFT_OK);
    heft_plan_query(plan, &info);
    heft_plan_destroy(plan);
    heft_exceptions_free(exceptions);
    heft_tape_destroy(tape);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
    return info.n_groups;
}

static void a_recipe_declares_groups(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    assert_int_equal(count_groups(""), 4);
    assert_int_equal(count_groups("together \"l.{n}.w\", \"l.{n}.s\" because \"one kernel\"\n"), 2);
    assert_int_equal(count_groups("together \"l.*\" because \"all\"\n"), 1);
    assert_int_equal(count_groups("together \"l.{n}.w\", \"l.{n}.s\" because \"k\" when 1 == 2\n"),
                     4);
    assert_int_equal(count_groups("optional together \"no.w\" because \"k\"\n"), 4);
    const char bad[] = "together \"a b\" because \"x\"\n";
    EXPECT_STATUS(heft_recipe_parse("r", bad, sizeof bad - 1, &recipe, &err), HEFT_ERR_SYNTAX);
    EXPECT_MESSAGE("a pattern without blanks expected");
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    fx_t fx;
    open_layers(&fx);
    fx_except(&fx, HEFT_EXCEPTION_TOGETHER, "layers.{l}.w layers.{l}.w_scale", "kernel");
    const heft_tape_t *tapes[] = { fx.tapes[0], fx.tapes[1] };
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_plan_t *plan = NULL;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft_plan_create(tapes, 2, 0, &fx.opts, &plan, NULL, &err);
        heft__alloc_fail_at(-1);
        heft_plan_destroy(plan);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 40);
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_and_its_scale_are_one_group_of_each_layer),
        cmocka_unit_test(what_is_together_does_not_change_the_plan_of_a_rank),
        cmocka_unit_test(parts_of_tokens_and_stars_are_matched),
        cmocka_unit_test(an_entry_that_joins_nothing_is_stale),
        cmocka_unit_test(patterns_that_cannot_be_are_refused),
        cmocka_unit_test(what_a_pattern_costs_is_bounded),
        cmocka_unit_test(a_recipe_declares_groups),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
