/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions for a part of a tensor: padding that a loader skips, padding that a trainer adds. */
#include "plan_fixture.h"

#include "heft/exec.h"

static void except_box(fx_t *fx, heft_exception_kind_t kind, const char *pattern, int32_t n_dims,
                       const int64_t *begin, const int64_t *end)
{
    fx_except(fx, kind, pattern, "padding");
    heft_exception_t *e = &fx->exceptions[fx->opts.n_exceptions - 1];
    e->n_dims = n_dims;
    memcpy(e->begin, begin, (size_t)n_dims * sizeof begin[0]);
    memcpy(e->end, end, (size_t)n_dims * sizeof end[0]);
}

#define EXCEPT_ROWS(fx, kind, pattern, from, to, cols) \
    except_box((fx), (kind), (pattern), 2, (int64_t[]){ (from), 0 }, (int64_t[]){ (to), (cols) })

static const heft_finding_t *only_error(const fx_t *fx)
{
    assert_int_equal(heft_report_get_n_errors(fx->report), 1);
    return heft_report_get_finding(fx->report, 0);
}

/* p:[8,2], rows 0 to 5 are written. */
static void open_padded(fx_t *fx)
{
    fx_init(fx);
    heft_view_t x = fx_source(fx, "x", "6,2");
    heft_view_t p = fx_param(fx, "p", "8,2");
    fx_copy(fx, fx_narrow(p, 0, 0, 6), x, "");
}

static void rows_that_a_loader_skips_need_an_exception_for_them(void **state)
{
    (void)state;
    fx_t fx;
    open_padded(&fx);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_non_null(strstr(only_error(&fx)->text, "4 of 16 elements uncovered, at [6..8, 0..2)"));
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", "padding");
    (void)fx_plan(&fx, HEFT_ERR_PROOF); /* an exception for the whole does not cover a part */
    fx.opts.n_exceptions = 0;
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 6, 8, 2);
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_plan_get_n_kept(fx.plan, 0, 0), 4);
    assert_int_equal(heft_plan_get_n_kept(fx.plan, 0, 1), 0);
    assert_int_equal(heft_plan_get_n_kept(fx.plan, 1, 0), 0);
    const heft_finding_t *f = heft_report_get_finding(fx.report, 0);
    assert_int_equal(f->kind, HEFT_FINDING_EXCEPTION);
    assert_int_equal(f->n_elems, 4);
    assert_string_equal(f->text,
                        "untouched: 1 parameter, 4 elements by \"p\" [6..8, 0..2): padding");
    fx_fini(&fx);
}

static void a_box_excuses_no_element_beside_it(void **state)
{
    (void)state;
    fx_t fx;
    open_padded(&fx);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 7, 8, 2);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_non_null(strstr(only_error(&fx)->text, "2 of 16 elements uncovered, at [6..7, 0..2)"));
    fx_fini(&fx);
}

static void a_box_over_what_is_written_is_stale(void **state)
{
    (void)state;
    fx_t fx;
    open_padded(&fx);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 6, 8, 2);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 0, 1, 2);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(only_error(&fx)->kind, HEFT_FINDING_STALE);
    assert_non_null(strstr(only_error(&fx)->text, "\"p\" [0..1, 0..2) hides nothing"));
    fx_fini(&fx);
}

static void a_box_that_does_not_lie_in_the_tensor_is_an_error(void **state)
{
    (void)state;
    fx_t fx;
    open_padded(&fx);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 6, 8, 2);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "*", 6, 9, 2);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_string_equal(only_error(&fx)->text,
                        "exception untouched \"*\" [6..9, 0..2) does not lie "
                        "in \"p\", which is [8, 2]");
    fx_fini(&fx);
}

static void a_trainers_padding_may_be_unused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t embed = fx_source(&fx, "embed", "16,2");
    fx_copy(&fx, fx_param(&fx, "p", "10,2"), fx_narrow(embed, 0, 0, 10), "");
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNUSED, "embed", 10, 15, 2);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_non_null(strstr(only_error(&fx)->text, "2 of 32 elements unused, at [15..16, 0..2)"));
    fx.opts.n_exceptions = 0;
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNUSED, "embed", 10, 16, 2);
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_report_get_finding(fx.report, 0)->n_elems, 12);
    fx_fini(&fx);
}

/* The last rank's padding, and a first rank that has none, under one entry. */
static void one_entry_serves_the_ranks_that_have_padding(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t x = fx_source(&fx, "x", "10,2");
    fx_copy(&fx, fx_param(&fx, "p", "6,2"), fx_narrow(x, 0, 0, 6), "");
    fx_next(&fx);
    x = fx_source(&fx, "x", "10,2");
    fx_copy(&fx, fx_narrow(fx_param(&fx, "p", "6,2"), 0, 0, 4), fx_narrow(x, 0, 6, 10), "");
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 4, 6, 2);
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_plan_get_n_kept(fx.plan, 0, 0), 0);
    assert_int_equal(heft_plan_get_n_kept(fx.plan, 1, 0), 4);
    fx_fini(&fx);
}

static void boxes_that_cannot_be_are_refused(void **state)
{
    (void)state;
    fx_t fx;
    open_padded(&fx);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_EQUAL, "p", 6, 8, 2);
    heft_error_t err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("exception \"p\": this kind is of whole tensors");
    fx.exceptions[0].kind = HEFT_EXCEPTION_UNTOUCHED;
    fx.exceptions[0].begin[0] = 8;
    err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("its box needs 0 <= begin < end");
    fx.exceptions[0].begin[0] = 6;
    fx.exceptions[0].n_dims = 13;
    err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    fx_fini(&fx);
}

static void kept_elements_keep_their_bytes_over_two_versions(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fx_t fx;
    open_padded(&fx);
    EXCEPT_ROWS(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", 6, 8, 2);
    (void)fx_plan(&fx, HEFT_OK);
    uint16_t live[16];
    uint16_t trained[12];
    memset(live, 0xa5, sizeof live);
    void *params[] = { live };
    const heft_exec_target_t target = { .rank_index = 0, .params = params };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(fx.plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    for (uint16_t version = 1; version <= 2; version++) {
        const void *sources[] = { trained };
        for (int i = 0; i < 12; i++) {
            trained[i] = (uint16_t)(version * 100 + i);
        }
        EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
        assert_memory_equal(live, trained, sizeof trained);
        for (int i = 12; i < 16; i++) {
            assert_int_equal(live[i], 0xa5a5);
        }
    }
    heft_exec_destroy(exec);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_a_loader_skips_need_an_exception_for_them),
        cmocka_unit_test(a_box_excuses_no_element_beside_it),
        cmocka_unit_test(a_box_over_what_is_written_is_stale),
        cmocka_unit_test(a_box_that_does_not_lie_in_the_tensor_is_an_error),
        cmocka_unit_test(a_trainers_padding_may_be_unused),
        cmocka_unit_test(one_entry_serves_the_ranks_that_have_padding),
        cmocka_unit_test(boxes_that_cannot_be_are_refused),
        cmocka_unit_test(kept_elements_keep_their_bytes_over_two_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
