/* SPDX-License-Identifier: Apache-2.0 */
/* The report: what is listed, what is counted, in which order. */
#include "plan_fixture.h"

#include "plan/plan.h"

static void every_kind_has_a_name(void **state)
{
    (void)state;
    for (int kind = HEFT_FINDING_UNCOVERED; kind <= HEFT_FINDING_SLOW; kind++) {
        assert_string_not_equal(heft_finding_kind_get_name((heft_finding_kind_t)kind), "unknown");
    }
    assert_string_equal(heft_finding_kind_get_name(HEFT_FINDING_UNCOVERED), "uncovered");
    assert_string_equal(heft_finding_kind_get_name((heft_finding_kind_t)0), "unknown");
    assert_string_equal(heft_finding_kind_get_name((heft_finding_kind_t)99), "unknown");
    assert_string_equal(heft_finding_kind_get_name((heft_finding_kind_t)-1), "unknown");
}

static void ranges_are_half_open(void **state)
{
    (void)state;
    heft__text_t text;
    heft__text_init(&text);
    heft__report_put_range(&text, 2, (const int64_t[]){ 4, 0 }, (const int64_t[]){ 6, 4 });
    heft__text_put(&text, " ");
    heft__report_put_range(&text, 0, NULL, NULL);
    assert_string_equal(text.data, "[4..6, 0..4) []");
    heft__text_fini(&text);
}

static void forty_of_a_kind_are_listed_and_all_are_counted(void **state)
{
    (void)state;
    enum { N = 123 };
    fx_t fx;
    fx_init(&fx);
    char name[32];
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "missing.%03d.weight", i);
        (void)fx_param(&fx, name, "2,3");
    }
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    heft_error_t err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("123 errors");
    EXPECT_MESSAGE("1 piece, 4 of 1480 bytes planned");
    assert_int_equal(heft_report_get_n_errors(fx.report), N);
    assert_int_equal(heft_report_get_n_findings(fx.report), 41);
    const heft_finding_t *first = heft_report_get_finding(fx.report, 0);
    assert_string_equal(first->name, "missing.000.weight");
    const heft_finding_t *total = heft_report_get_finding(fx.report, 40);
    assert_string_equal(total->name, "");
    assert_int_equal(total->is_error, 1);
    assert_int_equal(total->n_regions, N);
    assert_int_equal(total->n_elems, N * 6);
    assert_string_equal(total->text, "uncovered: 123 findings with 738 elements in all, 40 listed");
    assert_null(heft_report_get_finding(fx.report, 41));
    fx_fini(&fx);
}

/* Copies of two elements in an order that nothing can merge. */
static void scatter(fx_t *fx, const char *name, const char *source, int n)
{
    char shape[16];
    (void)snprintf(shape, sizeof shape, "%d", 2 * n);
    heft_view_t p = fx_param(fx, name, shape);
    heft_view_t s = fx_source(fx, source, shape);
    int order[1000];
    uint64_t rng = 7;
    for (int i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int i = n - 1; i > 0; i--) {
        int k = (int)heft_test_random_in(&rng, 0, i);
        int swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    for (int i = 0; i < n; i++) {
        fx_copy(fx, fx_narrow(p, 0, 2 * i, 2 * i + 2),
                fx_narrow(s, 0, 2 * order[i], 2 * order[i] + 2), "");
    }
}

static void what_is_slow_is_warned_of_once_with_its_price(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    scatter(&fx, "a.table", "s.a", 1000);
    scatter(&fx, "b.table", "s.b", 1000);
    scatter(&fx, "c.few", "s.c", 100); /* few pieces: no warning */
    heft_view_t x = fx_source(&fx, "x", "8");
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "8");
    heft_view_t u = fx_buffer(&fx, HEFT_BUFFER_TEMP, "u", HEFT_DTYPE_BF16, "4");
    heft_view_t y = fx_source(&fx, "y", "4");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "first", &t, 1, &x, 1, "", &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "second", &u, 1, &y, 1, "", &err), HEFT_OK);
    fx_copy(&fx, fx_param(&fx, "o.one", "8"), t, "");
    fx_copy(&fx, fx_param(&fx, "o.two", "4"), u, "");
    for (int i = 0; i < 2; i++) { /* a plan made again says it again, and no more often */
        (void)fx_plan(&fx, HEFT_OK);
        assert_int_equal(heft_report_get_n_warnings(fx.report), 2);
        assert_int_equal(heft_report_get_n_errors(fx.report), 0);
        const heft_finding_t *opaque = fx_finding(&fx, HEFT_FINDING_SLOW, "o.one");
        assert_int_equal(opaque->is_error, 0);
        assert_int_equal(opaque->n_elems, 12);
        assert_non_null(strstr(opaque->text, "\"o.one\", ..: 2 groups of 2 parameters through the "
                                             "engine's loader: 24 bytes of sources"));
        const heft_finding_t *small = fx_finding(&fx, HEFT_FINDING_SLOW, "a.table");
        assert_int_equal(small->n_elems, 4000);
        assert_non_null(strstr(small->text, "\"a.table\", ..: 2 parameters in "));
        assert_non_null(strstr(small->text, " bytes on average"));
    }
    fx_fini(&fx);
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_report_get_n_warnings(fx.report), 0);
    fx_fini(&fx);
}

static void a_text_is_one_line_whatever_the_names_hold(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    (void)fx_param(&fx, "two\nlines\t", "2");
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "two\nlines\t");
    assert_string_equal(finding->text, "parameter \"two lines \" rank 0: all 2 elements uncovered");
    fx_fini(&fx);
}

static void errors_come_before_notes(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "a.padded", "4");
    fx_fill(&fx, p, 0, "");
    fx_copy(&fx, fx_narrow(p, 0, 0, 2), fx_source(&fx, "s", "2"), "");
    (void)fx_param(&fx, "b.missing", "2");
    (void)fx_source(&fx, "extra", "2");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    bool seen_note = false;
    uint32_t n_errors = 0;
    for (uint32_t i = 0; i < heft_report_get_n_findings(fx.report); i++) {
        const heft_finding_t *finding = heft_report_get_finding(fx.report, i);
        assert_false(finding->is_error && seen_note);
        seen_note = seen_note || !finding->is_error;
        n_errors += (uint32_t)finding->is_error;
    }
    assert_true(seen_note);
    assert_int_equal(n_errors, 2);
    assert_int_equal(n_errors, heft_report_get_n_errors(fx.report));
    fx_fini(&fx);
}

static void a_report_is_made_on_success_too_and_may_be_declined(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_report_get_n_findings(fx.report), 0);
    assert_string_equal(heft_report_get_summary(fx.report),
                        "proven: 0 errors, 0 notes; 1 piece, 4 of 4 bytes planned");
    int64_t live = heft__alloc_live();
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tape = fx.tape;
    heft_plan_t *plan = NULL;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
    heft_plan_destroy(plan);
    assert_int_equal(heft__alloc_live(), live);
    (void)fx_param(&fx, "missing", "2");
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, NULL, &plan, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("parameter \"missing\" rank 0: all 2 elements uncovered");
    assert_int_equal(heft__alloc_live(), live);
    heft_plan_destroy(NULL);
    heft_report_destroy(NULL);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_a_name),
        cmocka_unit_test(ranges_are_half_open),
        cmocka_unit_test(forty_of_a_kind_are_listed_and_all_are_counted),
        cmocka_unit_test(what_is_slow_is_warned_of_once_with_its_price),
        cmocka_unit_test(a_text_is_one_line_whatever_the_names_hold),
        cmocka_unit_test(errors_come_before_notes),
        cmocka_unit_test(a_report_is_made_on_success_too_and_may_be_declined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
