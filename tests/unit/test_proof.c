/* SPDX-License-Identifier: Apache-2.0 */
/* The proof: overwrites, overlaps, constants, exceptions, ranks that are not here. */
#include "plan_fixture.h"

#include "plan/plan.h"

static void a_write_that_is_lost_is_named_with_both_rules(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t a = fx_source(&fx, "a", "6,4");
    heft_view_t b = fx_source(&fx, "b", "2,4");
    heft_view_t p = fx_param(&fx, "p", "6,4");
    fx_copy(&fx, p, a, "r:3");
    fx_copy(&fx, fx_narrow(p, 0, 2, 4), b, "r:9");
    heft_error_t err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("p");
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p");
    assert_int_equal(finding->n_elems, 8);
    assert_int_equal(finding->n_regions, 1);
    assert_int_equal(finding->begin[0], 2);
    assert_int_equal(finding->end[0], 4);
    assert_string_equal(finding->text, "parameter \"p\" rank 0: 8 of 24 elements written by r:3 "
                                       "from \"a\" and then by r:9 from \"b\", at [2..4, 0..4)");
    /* the rows of a that did not stay */
    const heft_finding_t *unused = fx_finding(&fx, HEFT_FINDING_UNUSED, "a");
    assert_int_equal(unused->n_elems, 8);
    assert_string_equal(unused->text, "source \"a\": 8 of 24 elements unused, at [2..4, 0..4)");
    fx_fini(&fx);
}

/* A later write of many sources: those named are of the elements that were lost. */
static void the_sources_of_a_lost_write_are_those_of_its_elements(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "6,4");
    fx_copy(&fx, fx_narrow(p, 0, 2, 6), fx_source(&fx, "low", "4,4"), "1");
    heft_view_t both = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "4,4");
    fx_copy(&fx, fx_narrow(both, 0, 0, 2), fx_source(&fx, "top", "2,4"), "2");
    fx_copy(&fx, fx_narrow(both, 0, 2, 4), fx_source(&fx, "next", "2,4"), "3");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), both, "4");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p"),
                   "8 of 24 elements written by 1 from \"low\" and then");
    FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p"), "\"next\", at [2..4, 0..4)");
    fx_fini(&fx);
}

static void an_element_lost_twice_counts_once(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_copy(&fx, p, fx_source(&fx, "a", "4"), "1");
    fx_copy(&fx, p, fx_source(&fx, "b", "4"), "2");
    fx_copy(&fx, fx_narrow(p, 0, 0, 2), fx_source(&fx, "c", "2"), "3");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p")->n_elems, 4);
    fx_fini(&fx);
}

static void the_same_element_again_is_a_rule_too_many(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t a = fx_source(&fx, "a", "4");
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_copy(&fx, p, a, "1");
    fx_copy(&fx, fx_narrow(p, 0, 1, 3), fx_narrow(a, 0, 1, 3), "2");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p");
    assert_int_equal(finding->n_elems, 2);
    assert_non_null(strstr(finding->text, "from the same sources"));
    fx_fini(&fx);
}

static void zeroing_first_and_updating_in_place_lose_nothing(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_fill(&fx, p, 0, "1");
    fx_copy(&fx, fx_narrow(p, 0, 0, 3), fx_source(&fx, "a", "3"), "2");
    const heft_op_t ops[] = { { .code = HEFT_OP_LOAD, .dtype = HEFT_DTYPE_BF16 },
                              { .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_BF16, .imm = 1 } };
    EXPECT_STATUS(heft_tape_map(fx.tape, &p, &p, 1, ops, 2, "3", &err), HEFT_OK);
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_OVERWRITTEN), 0);
    fx_fini(&fx);
}

static void a_constant_over_data_loses_it(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "4");
    fx_copy(&fx, p, fx_source(&fx, "a", "4"), "1");
    fx_fill(&fx, fx_narrow(p, 0, 3, 4), 0, "2");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p");
    assert_int_equal(finding->begin[0], 3);
    FX_EXPECT_TEXT(finding, "written by 1 from \"a\" and then by 2 as a constant, at [3..4)");
    fx_fini(&fx);
}

static void equal_excuses_the_parameter_it_names(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    for (int i = 0; i < 2; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        heft_view_t p = fx_param(&fx, name, "2");
        (void)snprintf(name, sizeof name, "a%d", i);
        fx_copy(&fx, p, fx_source(&fx, name, "2"), "1");
        (void)snprintf(name, sizeof name, "b%d", i);
        fx_copy(&fx, p, fx_source(&fx, name, "2"), "2");
    }
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p0", "tied on the trainer's side");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "*", "the copy that loses");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 1);
    (void)fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "p1");
    const heft_finding_t *note = fx_finding(&fx, HEFT_FINDING_EXCEPTION, "p0");
    assert_int_equal(note->n_elems, 2);
    FX_EXPECT_TEXT(note,
                   "must be equal: 1 parameter, 2 elements by \"p0\": tied on the trainer's side");
    fx_fini(&fx);
}

static void constants_are_noted_with_their_range(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "wi", "2,8");
    fx_fill(&fx, p, 0, "pad");
    fx_copy(&fx, fx_narrow(p, 1, 0, 5), fx_source(&fx, "gate", "2,5"), "gate");
    (void)fx_plan(&fx, HEFT_OK);
    const heft_finding_t *note = fx_finding(&fx, HEFT_FINDING_CONSTANT, "wi");
    assert_int_equal(note->is_error, 0);
    assert_int_equal(note->n_elems, 6);
    assert_int_equal(note->begin[1], 5);
    assert_string_equal(note->text,
                        "parameter \"wi\" rank 0: 6 of 16 elements constant, at [0..2, 5..8)");
    fx_fini(&fx);
}

static void stale_exceptions_are_errors(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "visual.*", "no vision here");
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "p", "written, in fact");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "mtp.*", "no draft here");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "s", "used, in fact");
    fx_except(&fx, HEFT_EXCEPTION_ELSEWHERE, "s", "this rank takes it");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "written once");
    fx_except(&fx, HEFT_EXCEPTION_DERIVED, "q", "no such thing");
    fx.exceptions[6].where = "contract:5:1";
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 7);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_STALE), 7);
    assert_string_equal(fx_finding(&fx, HEFT_FINDING_STALE, "visual.*")->text,
                        "exception untouched \"visual.*\" matches no parameter");
    assert_string_equal(fx_finding(&fx, HEFT_FINDING_STALE, "mtp.*")->text,
                        "exception unused \"mtp.*\" matches no source");
    assert_string_equal(fx_finding(&fx, HEFT_FINDING_STALE, "q")->text,
                        "exception derived \"q\" (contract:5:1) matches no parameter");
    FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_STALE, "p"),
                   "exception untouched \"p\" hides nothing: 1 parameter matched (\"p\")");
    /* a parameter of a rank that is not here may be meant; a source is known to every rank */
    fx.opts.partial = 1;
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 5);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_STALE, "visual.*")->is_error, 0);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_STALE, "mtp.*")->is_error, 1);
    fx_fini(&fx);
}

static void an_ignore_of_a_recipe_is_stale_like_any_other(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "rngs.*", "not a weight");
    fx.exceptions[0].where = "recipe:2:1";
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_string_equal(fx_finding(&fx, HEFT_FINDING_STALE, "rngs.*")->text,
                        "exception unused \"rngs.*\" (recipe:2:1) matches no source");
    fx_fini(&fx);
}

static void an_optional_exception_may_be_idle(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_source(&fx, "t", "2");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "t", "not a weight");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "rngs.*", "not a weight");
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "q", "some engines have it");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "some trainers write it twice");
    for (uint32_t i = 0; i < fx.opts.n_exceptions; i++) {
        fx.exceptions[i].is_optional = 1;
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_report_get_n_findings(fx.report), 1);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_EXCEPTION, "t")->n_elems, 2);
    fx_fini(&fx);
}

static void unused_sources_of_a_partial_plan_are_one_note(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    char name[16];
    for (int i = 0; i < 60; i++) {
        (void)snprintf(name, sizeof name, "w.%d", i);
        heft_view_t w = fx_source(&fx, name, "8,2");
        fx_copy(&fx, fx_param(&fx, name, "2,2"), fx_narrow(w, 0, 2, 4), "");
    }
    fx.first_rank = 1;
    fx.opts.partial = 1;
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_report_get_n_findings(fx.report), 1);
    const heft_finding_t *note = fx_finding(&fx, HEFT_FINDING_UNUSED, "");
    assert_int_equal(note->is_error, 0);
    assert_int_equal(note->n_elems, 60 * 12);
    assert_string_equal(note->text, "60 of 60 source tensors, 720 elements, are left to ranks "
                                    "outside this plan");
    fx.opts.partial = 0;
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 60);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNUSED, "w.0");
    assert_int_equal(finding->n_regions, 2);
    assert_string_equal(finding->text, "source \"w.0\": 12 of 16 elements unused, first of 2 boxes "
                                       "[0..2, 0..2)");
    fx_fini(&fx);
}

static void ranks_together_use_what_each_alone_does_not(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    for (int64_t r = 0; r < 4; r++) {
        if (r > 0) {
            fx_next(&fx);
        }
        heft_view_t w = fx_source(&fx, "w", "6,8");
        int64_t columns = r == 3 ? 1 : 2; /* the last column is forgotten */
        fx_copy(&fx, fx_param(&fx, "w", r == 3 ? "6,1" : "6,2"),
                fx_narrow(w, 1, 2 * r, 2 * r + columns), "");
    }
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNUSED, "w");
    assert_int_equal(finding->n_elems, 6);
    FX_EXPECT_TEXT(finding, "at [0..6, 7..8)");
    fx_fini(&fx);
}

static void messages_show_the_rank_that_the_caller_counts(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    fx_next(&fx);
    (void)fx_param(&fx, "p", "2");
    fx.first_rank = 6;
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "p");
    assert_int_equal(finding->rank, 7);
    FX_EXPECT_TEXT(finding, "rank 7");
    fx_fini(&fx);
}

/* A plan whose pieces were tampered with, as a broken fold would have made it. */
static void pieces_that_overlap_are_found_without_trusting_fold(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t p = fx_param(&fx, "p", "6,4");
    fx_copy(&fx, fx_narrow(p, 0, 0, 3), fx_source(&fx, "a", "3,4"), "r:1");
    fx_copy(&fx, fx_narrow(p, 0, 3, 6), fx_source(&fx, "b", "3,4"), "r:2");
    (void)fx_plan(&fx, HEFT_OK);
    heft_piece_t *pieces = fx.plan->ranks[0].pieces;
    pieces[1].dst_offset -= 4;
    heft__proof_t proof;
    EXPECT_STATUS(heft__proof_init(&proof, fx.plan, &fx.opts, &err), HEFT_OK);
    EXPECT_STATUS(heft__proof_load(&proof, &err), HEFT_OK);
    EXPECT_STATUS(heft__proof_run(&proof, &err), HEFT_OK);
    heft_report_destroy(fx.report);
    fx.report = proof.report;
    heft__proof_fini(&proof);
    const heft_finding_t *overlap = fx_finding(&fx, HEFT_FINDING_OVERLAP, "p");
    assert_int_equal(overlap->is_error, 1);
    assert_int_equal(overlap->n_elems, 4);
    assert_string_equal(overlap->text, "parameter \"p\" rank 0: 4 of 24 elements in more than one "
                                       "piece (r:1, r:2), at [2..3, 0..4)");
    const heft_finding_t *hole = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "p");
    assert_int_equal(hole->begin[0], 5);
    fx_fini(&fx);
}

static void a_piece_outside_its_parameter_is_a_bug_with_its_name(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    fx_copy(&fx, fx_param(&fx, "p", "6"), fx_source(&fx, "a", "6"), "r:1");
    (void)fx_plan(&fx, HEFT_OK);
    fx.plan->ranks[0].pieces[0].dst_offset = 1;
    heft__proof_t proof;
    EXPECT_STATUS(heft__proof_init(&proof, fx.plan, &fx.opts, &err), HEFT_OK);
    EXPECT_STATUS(heft__proof_load(&proof, &err), HEFT_OK);
    EXPECT_STATUS(heft__proof_run(&proof, &err), HEFT_ERR_INTERNAL);
    EXPECT_MESSAGE("parameter \"p\": a piece from element 1 on leaves its tensor of 6 elements");
    heft_report_destroy(proof.report);
    heft__proof_fini(&proof);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_is_lost_is_named_with_both_rules),
        cmocka_unit_test(the_sources_of_a_lost_write_are_those_of_its_elements),
        cmocka_unit_test(an_element_lost_twice_counts_once),
        cmocka_unit_test(the_same_element_again_is_a_rule_too_many),
        cmocka_unit_test(zeroing_first_and_updating_in_place_lose_nothing),
        cmocka_unit_test(a_constant_over_data_loses_it),
        cmocka_unit_test(equal_excuses_the_parameter_it_names),
        cmocka_unit_test(constants_are_noted_with_their_range),
        cmocka_unit_test(stale_exceptions_are_errors),
        cmocka_unit_test(an_ignore_of_a_recipe_is_stale_like_any_other),
        cmocka_unit_test(an_optional_exception_may_be_idle),
        cmocka_unit_test(unused_sources_of_a_partial_plan_are_one_note),
        cmocka_unit_test(ranks_together_use_what_each_alone_does_not),
        cmocka_unit_test(messages_show_the_rank_that_the_caller_counts),
        cmocka_unit_test(pieces_that_overlap_are_found_without_trusting_fold),
        cmocka_unit_test(a_piece_outside_its_parameter_is_a_bug_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
