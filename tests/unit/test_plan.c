/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: what create makes of tapes, and what queries say. */
#include "plan_fixture.h"

static void parameters_and_sources_come_in_name_order(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t b = fx_source(&fx, "b", "2");
    heft_view_t a = fx_source(&fx, "a", "3");
    heft_view_t y = fx_param(&fx, "y", "2");
    heft_view_t x = fx_param(&fx, "x", "3");
    fx_copy(&fx, y, b, "r:1");
    fx_copy(&fx, x, a, "r:2");
    (void)fx_plan(&fx, HEFT_OK);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    EXPECT_STATUS(heft_plan_query_source(fx.plan, 0, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "a");
    assert_int_equal(info.n_bytes, 6);
    EXPECT_STATUS(heft_plan_query_param(fx.plan, 0, 0, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "x");
    uint64_t n;
    const heft_piece_t *pieces = heft_plan_get_pieces(fx.plan, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(pieces[0].param, 0);
    assert_int_equal(pieces[0].srcs[0].source, 0);
    assert_string_equal(heft_plan_get_piece_note(fx.plan, &pieces[0]), "r:2");
    assert_string_equal(heft_plan_get_piece_note(fx.plan, &pieces[1]), "r:1");
    heft_plan_info_t plan = fx_info(&fx);
    assert_int_equal(plan.n_bytes, 10);
    assert_int_equal(plan.n_constant_bytes, 0);
    assert_int_equal(plan.n_pieces, 2);
    assert_int_equal(strlen(plan.digest), 64);
    fx_fini(&fx);
}

static void pieces_of_a_parameter_are_ordered_by_offset(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t q = fx_source(&fx, "q", "4,4");
    heft_view_t kv = fx_source(&fx, "kv", "2,4");
    heft_view_t p = fx_param(&fx, "fused", "6,4");
    fx_copy(&fx, fx_narrow(p, 0, 4, 6), kv, "kv");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), q, "q");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(fx.plan, 0, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(pieces[0].dst_offset, 0);
    assert_int_equal(pieces[1].dst_offset, 16);
    assert_int_equal(pieces[0].rank, 1); /* both sides contiguous: one run */
    assert_int_equal(pieces[0].extent[0], 16);
    fx_fini(&fx);
}

static void bad_indices_are_not_found_and_say_the_numbers(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    heft_group_info_t group;
    EXPECT_STATUS(heft_plan_query_param(fx.plan, 0, 1, &info, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("parameter 1 of rank index 0: has 1");
    EXPECT_STATUS(heft_plan_query_param(fx.plan, 1, 0, &info, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_plan_query_source(fx.plan, 1, &info, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("source 1 of 1");
    EXPECT_STATUS(heft_plan_query_group(fx.plan, 1, &group, &err), HEFT_ERR_NOT_FOUND);
    uint64_t n = 9;
    uint32_t m = 9;
    assert_null(heft_plan_get_pieces(fx.plan, 1, &n));
    assert_int_equal(n, 0);
    n = 9;
    assert_null(heft_plan_get_param_pieces(fx.plan, 0, 1, &n));
    assert_int_equal(n, 0);
    assert_null(heft_plan_get_group_params(fx.plan, 1, &m));
    assert_int_equal(m, 0);
    m = 9;
    assert_null(heft_plan_get_group_sources(fx.plan, 1, &m));
    assert_int_equal(m, 0);
    m = 9;
    assert_null(heft_plan_get_opaques(fx.plan, 1, &m));
    assert_int_equal(m, 0);
    assert_null(heft_plan_get_rank_digest(fx.plan, 1));
    assert_int_equal(heft_plan_get_n_params(fx.plan, 1), 0);
    assert_int_equal(heft_plan_get_param_group(fx.plan, 0, 1), HEFT_GROUP_NONE);
    heft_piece_t stranger = { 0 };
    assert_string_equal(heft_plan_get_piece_note(fx.plan, &stranger), "");
    fx_fini(&fx);
}

static void tapes_must_agree_on_the_sources_they_share(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2,3"), fx_source(&fx, "s", "2,3"), "");
    fx_next(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "3,2"), fx_source(&fx, "s", "3,2"), "");
    fx.first_rank = 4;
    heft_error_t err = fx_plan(&fx, HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("source \"s\": BF16 [3, 2] in the tape of rank 5, BF16 [2, 3] in one before");
    assert_null(fx.plan);
    assert_null(fx.report);
    fx_fini(&fx);
}

static void tensors_without_elements_are_covered_and_used(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    (void)fx_source(&fx, "none", "0,4");
    (void)fx_param(&fx, "empty", "3,0");
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(heft_plan_get_n_params(fx.plan, 0), 2);
    assert_int_equal(fx_info(&fx).n_sources, 2);
    assert_int_equal(fx_info(&fx).n_pieces, 1);
    assert_int_equal(heft_plan_get_param_group(fx.plan, 0, fx_find_param(&fx, 0, "empty")),
                     HEFT_GROUP_NONE);
    fx_fini(&fx);
}

static void a_scalar_is_one_piece_of_rank_0(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", ""), fx_source(&fx, "s", ""), "");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n;
    const heft_piece_t *piece = heft_plan_get_pieces(fx.plan, 0, &n);
    assert_int_equal(n, 1);
    assert_int_equal(piece->rank, 0);
    assert_int_equal(fx_info(&fx).n_bytes, 2);
    fx_fini(&fx);
}

static void sums_that_do_not_fit_stay_at_the_largest_number(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    for (int i = 0; i < 3; i++) { /* 2^62 bytes each */
        char name[8];
        (void)snprintf(name, sizeof name, "s%d", i);
        heft_view_t s = fx_source(&fx, name, "2147483648,1073741824");
        fx_copy(&fx, fx_param(&fx, name, "2147483648,1073741824"), s, "");
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_true(fx_info(&fx).n_bytes == INT64_MAX);
    fx_fini(&fx);
}

static void constants_count_apart_from_bytes_that_move(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "8");
    fx_copy(&fx, fx_narrow(p, 0, 0, 3), fx_source(&fx, "s", "3"), "");
    fx_fill(&fx, fx_narrow(p, 0, 3, 8), 0, "pad");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_bytes, 6);
    assert_int_equal(fx_info(&fx).n_constant_bytes, 10);
    uint64_t n;
    const heft_piece_t *pieces = heft_plan_get_pieces(fx.plan, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(pieces[1].n_srcs, 0);
    assert_int_equal(pieces[1].n_ops, 1);
    fx_fini(&fx);
}

static void programs_and_several_sources_reach_the_piece(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t p = fx_param(&fx, "p", "2,3");
    heft_view_t srcs[] = { fx_source(&fx, "w", "2,3"), fx_source(&fx, "scale", "2") };
    srcs[1].rank = 2; /* broadcast over columns */
    srcs[1].extent[1] = 3;
    srcs[1].stride[1] = 0;
    const heft_op_t ops[] = { { .code = HEFT_OP_LOAD, .dtype = HEFT_DTYPE_BF16, .arg = 0 },
                              { .code = HEFT_OP_LOAD, .dtype = HEFT_DTYPE_BF16, .arg = 1 },
                              { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } };
    EXPECT_STATUS(heft_tape_map(fx.tape, &p, srcs, 2, ops, 3, "scaled", &err), HEFT_OK);
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n;
    const heft_piece_t *piece = heft_plan_get_pieces(fx.plan, 0, &n);
    assert_int_equal(n, 1);
    assert_int_equal(piece->n_srcs, 2);
    assert_true(piece->n_ops >= 3);
    assert_int_equal(piece->rank, 2);
    assert_int_equal(piece->srcs[0].source + piece->srcs[1].source, 1); /* "scale" and "w" */
    fx_fini(&fx);
}

static void options_that_are_not_known_are_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    fx.opts.reserved[2] = 1;
    heft_error_t err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("reserved[2] is 1");
    fx.opts.reserved[2] = 0;
    fx.opts.partial = 2;
    err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("partial is 2");
    fx.opts.partial = 0;
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "s", "");
    err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("exception 0 \"s\": needs a kind, a pattern and a reason");
    fx.opts.n_exceptions = 0;
    fx.opts.size = 2;
    err = fx_plan(&fx, HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("size is 2");
    struct {
        heft_plan_opts_t known;
        unsigned char tail[8];
    } longer = { .known = HEFT_PLAN_OPTS_INIT };
    longer.known.size = sizeof longer;
    const heft_tape_t *tape = fx.tape;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, &longer.known, &fx.plan, NULL, &err), HEFT_OK);
    fx_drop_plan(&fx);
    longer.tail[3] = 1;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, &longer.known, &fx.plan, NULL, &err),
                  HEFT_ERR_UNSUPPORTED);
    EXPECT_STATUS(heft_plan_create(&tape, 0, 0, NULL, &fx.plan, NULL, &err), HEFT_ERR_ARGUMENT);
    const heft_tape_t *none = NULL;
    EXPECT_STATUS(heft_plan_create(&none, 1, 0, NULL, &fx.plan, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("tape 0 of 1 is NULL");
    EXPECT_STATUS(heft_plan_create(&tape, 1, UINT32_MAX, NULL, &fx.plan, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    fx_fini(&fx);
}

static void a_limit_names_the_parameter(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "crumbs", "16");
    heft_view_t s = fx_source(&fx, "s", "16");
    for (int64_t i = 0; i < 16; i++) {
        fx_copy(&fx, fx_narrow(p, 0, i, i + 1), fx_narrow(s, 0, (i * 7) % 16, (i * 7) % 16 + 1),
                "");
    }
    fx.opts.max_pieces_per_param = 4;
    heft_error_t err = fx_plan(&fx, HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("crumbs");
    fx_fini(&fx);
}

static void an_operation_keeps_its_inputs_and_outputs(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t a = fx_source(&fx, "a", "4,6");
    heft_view_t p = fx_param(&fx, "p", "4,6");
    heft_view_t s = fx_param(&fx, "p_scale", "4");
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "4,6");
    heft_view_t u = fx_buffer(&fx, HEFT_BUFFER_TEMP, "u", HEFT_DTYPE_BF16, "4");
    heft_view_t dsts[] = { t, u };
    heft_view_t turned = fx_transpose(a, 0, 1);
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "quantise", dsts, 2, &turned, 1, "k:3", &err), HEFT_OK);
    fx_copy(&fx, p, t, "k:4");
    fx_copy(&fx, s, u, "k:5");
    (void)fx_plan(&fx, HEFT_OK);
    uint32_t n_ops;
    const heft_opaque_t *op = heft_plan_get_opaques(fx.plan, 0, &n_ops);
    assert_int_equal(n_ops, 1);
    assert_string_equal(op->op, "quantise");
    assert_string_equal(op->note, "k:3");
    assert_int_equal(op->group, 0);
    assert_int_equal(op->n_sources, 1);
    assert_int_equal(op->n_inputs, 1);
    assert_int_equal(op->inputs[0].shape.rank, 2);
    assert_int_equal(op->inputs[0].shape.extent[0], 6);
    assert_int_equal(op->inputs[0].n_pieces, 1);
    assert_int_equal(op->inputs[0].pieces[0].rank, 2); /* a transpose */
    assert_int_equal(op->inputs[0].pieces[0].group, 0);
    assert_int_equal(op->n_outputs, 2);
    assert_int_equal(op->outputs[0].buffer_elems, 24);
    assert_true(op->outputs[0].view.buffer != op->outputs[1].view.buffer);
    uint64_t n;
    const heft_piece_t *pieces = heft_plan_get_pieces(fx.plan, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(pieces[0].srcs[0].opaque, 1);
    assert_int_equal(pieces[0].srcs[0].source, 0);
    assert_int_equal(pieces[1].srcs[0].source, 1);
    (void)fx_finding(&fx, HEFT_FINDING_OPAQUE, "p");
    fx_fini(&fx);
}

/* One tape with everything in it: fills, casts, an operation, an overwrite, exceptions. */
static void write_everything(fx_t *fx)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t a = fx_source(fx, "layers.a", "4,6");
    heft_view_t b = fx_source(fx, "layers.b", "4,6");
    heft_view_t p = fx_param(fx, "p", "8,6");
    heft_view_t q = fx_buffer(fx, HEFT_BUFFER_PARAM, "q", HEFT_DTYPE_F32, "6,4");
    heft_view_t r = fx_param(fx, "r", "4,6");
    heft_view_t t = fx_buffer(fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "4,6");
    (void)fx_source(fx, "count", "");
    (void)fx_param(fx, "buffer", "3");
    fx_fill(fx, p, 0, "zero");
    fx_copy(fx, fx_narrow(p, 0, 0, 4), a, "1");
    fx_copy(fx, fx_narrow(p, 0, 3, 4), fx_narrow(b, 0, 0, 1), "2");
    fx_copy(fx, q, fx_transpose(b, 0, 1), "3");
    EXPECT_STATUS(heft_tape_opaque(fx->tape, "op", &t, 1, &a, 1, "4", &err), HEFT_OK);
    fx_copy(fx, r, t, "5");
    fx_except(fx, HEFT_EXCEPTION_UNUSED, "count", "a counter");
    fx_except(fx, HEFT_EXCEPTION_UNTOUCHED, "buffer", "set by the engine");
}

static void create_survives_every_failed_allocation(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        fx_t fx;
        fx_init(&fx);
        write_everything(&fx);
        if (!refused) {
            fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "row 3 is shared");
        }
        const heft_tape_t *tape = fx.tape;
        heft_status_t expected = refused ? HEFT_ERR_PROOF : HEFT_OK;
        heft_status_t status = HEFT_ERR_NOMEM;
        int64_t live = heft__alloc_live();
        for (long k = 0; status == HEFT_ERR_NOMEM; k++) {
            heft_error_t err = HEFT_ERROR_INIT;
            heft_plan_t *plan = NULL;
            heft_report_t *report = NULL;
            heft__alloc_fail_at(k);
            status = heft_plan_create(&tape, 1, 0, &fx.opts, &plan, &report, &err);
            heft__alloc_fail_at(-1);
            if (status == HEFT_ERR_NOMEM) {
                assert_null(plan);
                assert_null(report);
            } else if (status != expected) {
                fail_msg("allocation %ld: %s", k, err.message);
            }
            heft_plan_destroy(plan);
            heft_report_destroy(report);
            assert_int_equal(heft__alloc_live(), live);
        }
        fx_fini(&fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_and_sources_come_in_name_order),
        cmocka_unit_test(pieces_of_a_parameter_are_ordered_by_offset),
        cmocka_unit_test(bad_indices_are_not_found_and_say_the_numbers),
        cmocka_unit_test(tapes_must_agree_on_the_sources_they_share),
        cmocka_unit_test(tensors_without_elements_are_covered_and_used),
        cmocka_unit_test(a_scalar_is_one_piece_of_rank_0),
        cmocka_unit_test(sums_that_do_not_fit_stay_at_the_largest_number),
        cmocka_unit_test(constants_count_apart_from_bytes_that_move),
        cmocka_unit_test(programs_and_several_sources_reach_the_piece),
        cmocka_unit_test(options_that_are_not_known_are_refused),
        cmocka_unit_test(a_limit_names_the_parameter),
        cmocka_unit_test(an_operation_keeps_its_inputs_and_outputs),
        cmocka_unit_test(create_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
