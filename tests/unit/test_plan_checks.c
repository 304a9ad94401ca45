/* SPDX-License-Identifier: Apache-2.0 */
/* What an exception `equal` leaves in a plan: the lost value as a check, its sources used, its
 * groups tied, its digests changed. */
#include "plan_fixture.h"

/* A head with rows of its own, written over those of the embedding. */
static void write_tied(fx_t *fx)
{
    heft_view_t embed = fx_source(fx, "embed", "4,2");
    heft_view_t own = fx_source(fx, "head", "3,2");
    heft_view_t wte = fx_param(fx, "wte", "4,2");
    heft_view_t head = fx_param(fx, "lm_head", "4,2");
    fx_copy(fx, wte, embed, "r:1");
    fx_copy(fx, head, embed, "r:2");
    fx_copy(fx, fx_narrow(head, 0, 1, 4), own, "r:3");
}

static void a_lost_value_becomes_a_check(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    write_tied(&fx);
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "lm_head", "tied");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n = 0;
    const heft_piece_t *checks = heft_plan_get_checks(fx.plan, 0, &n);
    assert_int_equal(n, 1);
    assert_int_equal(checks[0].param, fx_find_param(&fx, 0, "lm_head"));
    assert_int_equal(checks[0].rank, 1);
    assert_int_equal(checks[0].extent[0], 6);
    assert_int_equal(checks[0].dst_offset, 2);
    assert_int_equal(checks[0].n_srcs, 1);
    assert_int_equal(checks[0].n_ops, 0);
    assert_int_equal(checks[0].srcs[0].source, 0); /* embed */
    assert_int_equal(checks[0].srcs[0].offset, 2);
    assert_string_equal(heft_plan_get_piece_note(fx.plan, &checks[0]), "r:2");
    assert_int_equal(checks[0].group, heft_plan_get_param_group(fx.plan, 0, checks[0].param));
    assert_ptr_equal(heft_plan_get_param_checks(fx.plan, 0, checks[0].param, &n), checks);
    assert_int_equal(n, 1);
    (void)heft_plan_get_param_checks(fx.plan, 0, fx_find_param(&fx, 0, "wte"), &n);
    assert_int_equal(n, 0);
    /* it writes nothing: 8 elements of each parameter, once */
    assert_int_equal(fx_info(&fx).n_bytes, 32);
    assert_int_equal(fx_info(&fx).n_pieces, 3);
    fx_fini(&fx);
}

static void a_plan_without_equal_has_no_checks(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n = 9;
    assert_null(heft_plan_get_checks(fx.plan, 0, &n));
    assert_int_equal(n, 0);
    n = 9;
    assert_null(heft_plan_get_param_checks(fx.plan, 0, 0, &n));
    assert_int_equal(n, 0);
    n = 9;
    assert_null(heft_plan_get_checks(fx.plan, 1, &n));
    assert_int_equal(n, 0);
    n = 9;
    assert_null(heft_plan_get_param_checks(fx.plan, 0, 1, &n));
    assert_int_equal(n, 0);
    fx_fini(&fx);
}

static void a_source_that_only_a_check_reads_is_used(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_copy(&fx, p, fx_source(&fx, "lost", "4"), "1");
    fx_copy(&fx, p, fx_source(&fx, "kept", "4"), "2");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "the same in every checkpoint");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_UNUSED), 0);
    uint32_t n = 0;
    const uint32_t *sources = heft_plan_get_group_sources(fx.plan, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(sources[0], 0);
    assert_int_equal(sources[1], 1);
    fx_fini(&fx);
}

static void part_of_a_source_that_no_check_reads_is_unused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_copy(&fx, p, fx_narrow(fx_source(&fx, "lost", "6"), 0, 2, 6), "1");
    fx_copy(&fx, p, fx_source(&fx, "kept", "4"), "2");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "the same in every checkpoint");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 1);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNUSED, "lost")->n_elems, 2);
    fx_fini(&fx);
}

static void checks_tie_parameters_into_one_group(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t a = fx_source(&fx, "a", "4");
    heft_view_t b = fx_source(&fx, "b", "4");
    fx_copy(&fx, fx_param(&fx, "p", "4"), a, "1");
    heft_view_t q = fx_param(&fx, "q", "4");
    fx_copy(&fx, q, a, "2");
    fx_copy(&fx, q, b, "3");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "q", "b is a copy of a");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 1);
    heft_group_info_t group;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_plan_query_group(fx.plan, 0, &group, &err), HEFT_OK);
    assert_int_equal(group.n_params, 2);
    assert_int_equal(group.n_pieces, 2);
    assert_int_equal(group.n_bytes, 16);
    assert_int_equal(group.source_bytes, 16);
    fx_fini(&fx);
}

static void every_lost_value_of_a_chain_is_checked(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "4");
    heft_view_t c = fx_source(&fx, "c", "4");
    fx_copy(&fx, p, fx_source(&fx, "a", "4"), "1");
    fx_copy(&fx, fx_narrow(p, 0, 2, 4), fx_source(&fx, "b", "2"), "2");
    fx_copy(&fx, p, c, "3");
    fx_copy(&fx, p, c, "4"); /* the same again: nothing to compare */
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "three copies");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n = 0;
    const heft_piece_t *checks = heft_plan_get_checks(fx.plan, 0, &n);
    assert_int_equal(n, 3);
    assert_int_equal(checks[0].dst_offset, 0);
    assert_int_equal(checks[0].extent[0], 2);
    assert_int_equal(checks[0].srcs[0].source, 0);
    assert_int_equal(checks[1].dst_offset, 2);
    assert_int_equal(checks[2].dst_offset, 2);
    assert_int_equal(checks[1].srcs[0].source + checks[2].srcs[0].source, 1); /* a and b */
    fx_fini(&fx);
}

static void an_operation_cannot_be_compared(void **state)
{
    (void)state;
    for (int later = 0; later < 2; later++) {
        fx_t fx;
        heft_error_t err = HEFT_ERROR_INIT;
        fx_init(&fx);
        heft_view_t p = fx_param(&fx, "p", "4");
        heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "4");
        heft_view_t a = fx_source(&fx, "a", "4");
        EXPECT_STATUS(heft_tape_opaque(fx.tape, "op", &t, 1, &a, 1, "loader", &err), HEFT_OK);
        heft_view_t b = fx_source(&fx, "b", "4");
        fx_copy(&fx, p, later ? b : t, "1");
        fx_copy(&fx, p, later ? t : b, "2");
        fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "a and b agree");
        (void)fx_plan(&fx, HEFT_ERR_PROOF);
        FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p"),
                       "an exception \"equal\" cannot compare what an operation writes");
        fx_fini(&fx);
    }
}

static void checks_are_part_of_both_digests(void **state)
{
    (void)state;
    char plan[3][65];
    char rank[3][65];
    for (int i = 0; i < 3; i++) { /* no check, one of a, one of a backwards */
        fx_t fx;
        fx_init(&fx);
        heft_view_t p = fx_param(&fx, "p", "4");
        heft_view_t a = fx_source(&fx, "a", "4");
        heft_view_t b = fx_source(&fx, "b", "4");
        fx_copy(&fx, fx_param(&fx, "q", "4"), a, "1");
        if (i == 2) {
            a.offset = 3;
            a.stride[0] = -1;
        }
        if (i > 0) {
            fx_copy(&fx, p, a, "2");
            fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "b is a copy of a");
        }
        fx_copy(&fx, p, b, "3");
        (void)fx_plan(&fx, HEFT_OK);
        (void)snprintf(plan[i], sizeof plan[i], "%s", fx_info(&fx).digest);
        (void)snprintf(rank[i], sizeof rank[i], "%s", heft_plan_get_rank_digest(fx.plan, 0));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(plan[i], plan[k]);
            assert_string_not_equal(rank[i], rank[k]);
        }
        fx_fini(&fx);
    }
}

static void checks_of_several_ranks_stay_with_their_rank(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    char alone[65] = "";
    for (int r = 0; r < 2; r++) {
        if (r > 0) {
            fx_next(&fx);
        }
        heft_view_t unused = fx_source(&fx, "z", "4");
        heft_view_t a = fx_narrow(fx_source(&fx, "a", "8"), 0, 4 * r, 4 * r + 4);
        heft_view_t b = fx_narrow(fx_source(&fx, "b", "8"), 0, 4 * r, 4 * r + 4);
        heft_view_t p = fx_param(&fx, r == 0 ? "p" : "q", "4");
        fx_copy(&fx, p, a, r == 0 ? "0:a" : "1:a");
        fx_copy(&fx, p, b, "");
        fx_copy(&fx, fx_param(&fx, "z", "4"), unused, "");
        if (r == 0) {
            fx_except(&fx, HEFT_EXCEPTION_EQUAL, "*", "two copies");
            fx.opts.partial = 1;
            (void)fx_plan(&fx, HEFT_OK);
            (void)snprintf(alone, sizeof alone, "%s", heft_plan_get_rank_digest(fx.plan, 0));
            fx.opts.partial = 0;
        }
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_string_equal(alone, heft_plan_get_rank_digest(fx.plan, 0));
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t n = 0;
        const heft_piece_t *checks = heft_plan_get_checks(fx.plan, r, &n);
        assert_int_equal(n, 1);
        assert_int_equal(checks[0].srcs[0].offset, 4 * r);
        assert_string_equal(heft_plan_get_piece_note(fx.plan, checks), r == 0 ? "0:a" : "1:a");
    }
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_value_becomes_a_check),
        cmocka_unit_test(a_plan_without_equal_has_no_checks),
        cmocka_unit_test(a_source_that_only_a_check_reads_is_used),
        cmocka_unit_test(part_of_a_source_that_no_check_reads_is_unused),
        cmocka_unit_test(checks_tie_parameters_into_one_group),
        cmocka_unit_test(every_lost_value_of_a_chain_is_checked),
        cmocka_unit_test(an_operation_cannot_be_compared),
        cmocka_unit_test(checks_are_part_of_both_digests),
        cmocka_unit_test(checks_of_several_ranks_stay_with_their_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
