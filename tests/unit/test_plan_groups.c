/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: what must travel together, and nothing more. */
#include "plan_fixture.h"

static heft_group_info_t group_info(const fx_t *fx, uint32_t group)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_group_info_t info;
    EXPECT_STATUS(heft_plan_query_group(fx->plan, group, &info, &err), HEFT_OK);
    return info;
}

static uint32_t group_of(const fx_t *fx, uint32_t rank_index, const char *param)
{
    return heft_plan_get_param_group(fx->plan, rank_index, fx_find_param(fx, rank_index, param));
}

static void scanned_tensors_give_one_group_for_each_layer(void **state)
{
    (void)state;
    enum { LAYERS = 3 };
    fx_t fx;
    fx_init(&fx);
    heft_view_t gate = fx_source(&fx, "layers.wi_0", "2,3,4,6"); /* e, l, d, f */
    heft_view_t up = fx_source(&fx, "layers.wi_1", "2,3,4,6");
    for (int l = 0; l < LAYERS; l++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%d.wi", l);
        heft_view_t wi = fx_param(&fx, name, "2,4,12");
        fx_copy(&fx, fx_narrow(wi, 2, 0, 6), fx_select(gate, 1, l), "");
        fx_copy(&fx, fx_narrow(wi, 2, 6, 12), fx_select(up, 1, l), "");
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, LAYERS);
    for (uint32_t g = 0; g < LAYERS; g++) {
        heft_group_info_t info = group_info(&fx, g);
        assert_int_equal(info.n_params, 1);
        assert_int_equal(info.n_sources, 2);
        assert_int_equal(info.n_pieces, 2);
        assert_int_equal(info.n_bytes, 2 * 4 * 12 * 2);
        assert_int_equal(info.source_bytes, 2 * 4 * 12 * 2);
        assert_int_equal(info.is_opaque, 0);
        uint32_t n;
        const heft_plan_member_t *members = heft_plan_get_group_params(fx.plan, g, &n);
        assert_int_equal(n, 1);
        assert_int_equal(members[0].param, g); /* numbered by their first parameter */
        const uint32_t *sources = heft_plan_get_group_sources(fx.plan, g, &n);
        assert_int_equal(n, 2);
        assert_int_equal(sources[0], 0);
        assert_int_equal(sources[1], 1);
    }
    fx_fini(&fx);
}

static void one_shared_element_joins_and_a_neighbour_does_not(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t s = fx_source(&fx, "s", "12");
    fx_copy(&fx, fx_param(&fx, "a", "5"), fx_narrow(s, 0, 0, 5), "");
    fx_copy(&fx, fx_param(&fx, "b", "4"), fx_narrow(s, 0, 4, 8), "");
    fx_copy(&fx, fx_param(&fx, "c", "4"), fx_narrow(s, 0, 8, 12), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 2);
    assert_int_equal(group_of(&fx, 0, "a"), 0);
    assert_int_equal(group_of(&fx, 0, "b"), 0);
    assert_int_equal(group_of(&fx, 0, "c"), 1);
    heft_group_info_t info = group_info(&fx, 0);
    assert_int_equal(info.n_bytes, 18);
    assert_int_equal(info.source_bytes, 16); /* the shared element once */
    fx_fini(&fx);
}

static void columns_and_rows_meet_where_they_cross(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t s = fx_source(&fx, "s", "4,4");
    fx_copy(&fx, fx_param(&fx, "even", "4,2"), fx_narrow(s, 1, 0, 2), "");
    fx_copy(&fx, fx_param(&fx, "odd", "4,2"), fx_narrow(s, 1, 2, 4), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 2); /* interleaved, not shared */
    fx_copy(&fx, fx_param(&fx, "row", "4"), fx_select(s, 0, 3), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 1);
    fx_fini(&fx);
}

static void replicas_on_several_ranks_are_one_group(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    for (int64_t r = 0; r < 4; r++) {
        if (r > 0) {
            fx_next(&fx);
        }
        heft_view_t norm = fx_source(&fx, "norm", "6");
        heft_view_t w = fx_source(&fx, "w", "8,6");
        fx_copy(&fx, fx_param(&fx, "norm", "6"), norm, "");
        fx_copy(&fx, fx_param(&fx, "w", "2,6"), fx_narrow(w, 0, 2 * r, 2 * r + 2), "");
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 5); /* the norm of all ranks, and four parts of w */
    uint32_t n;
    const heft_plan_member_t *members = heft_plan_get_group_params(fx.plan, 0, &n);
    assert_int_equal(n, 4);
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(members[r].rank_index, r);
        assert_int_equal(members[r].param, 0);
        uint64_t n_pieces;
        assert_int_equal(heft_plan_get_pieces(fx.plan, r, &n_pieces)[0].group, 0);
        assert_int_equal(heft_plan_get_pieces(fx.plan, r, &n_pieces)[1].group, 1 + r);
    }
    assert_int_equal(group_info(&fx, 0).source_bytes, 12);
    assert_int_equal(group_info(&fx, 0).n_bytes, 48);
    fx_fini(&fx);
}

static void constants_alone_are_a_group_without_sources(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "a", "2"), fx_source(&fx, "s", "2"), "");
    fx_fill(&fx, fx_param(&fx, "b", "2"), 0, "");
    (void)fx_param(&fx, "c", "2");
    fx_except(&fx, HEFT_EXCEPTION_DERIVED, "c", "computed from a");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 2);
    heft_group_info_t info = group_info(&fx, group_of(&fx, 0, "b"));
    assert_int_equal(info.n_sources, 0);
    assert_int_equal(info.source_bytes, 0);
    assert_int_equal(info.n_bytes, 4);
    assert_int_equal(group_of(&fx, 0, "c"), HEFT_GROUP_NONE);
    fx_fini(&fx);
}

/* t = a @ b; p <- t[0]; q <- t[1]: one group {p, q} that needs {a, b} whole. */
static void an_operation_ties_what_reads_its_sources(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t srcs[] = { fx_source(&fx, "a", "2,2"), fx_source(&fx, "b", "2,2") };
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "2,2");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "matmul", &t, 1, srcs, 2, "", &err), HEFT_OK);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_select(t, 0, 0), "");
    fx_copy(&fx, fx_param(&fx, "q", "2"), fx_select(t, 0, 1), "");
    fx_copy(&fx, fx_param(&fx, "r", "2"), fx_select(srcs[0], 0, 1), "");
    fx_copy(&fx, fx_param(&fx, "z", "2"), fx_source(&fx, "z", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_groups, 2);
    uint32_t group = group_of(&fx, 0, "p");
    assert_int_equal(group_of(&fx, 0, "q"), group);
    assert_int_equal(group_of(&fx, 0, "r"), group);
    assert_true(group_of(&fx, 0, "z") != group);
    heft_group_info_t info = group_info(&fx, group);
    assert_int_equal(info.is_opaque, 1);
    assert_int_equal(info.n_sources, 2);
    assert_int_equal(info.source_bytes, 16);
    assert_int_equal(group_info(&fx, group_of(&fx, 0, "z")).is_opaque, 0);
    fx_fini(&fx);
}

static void an_operation_that_nothing_needs_uses_nothing(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t a = fx_source(&fx, "a", "2,2");
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "2,2");
    heft_view_t u = fx_buffer(&fx, HEFT_BUFFER_TEMP, "u", HEFT_DTYPE_BF16, "2,2");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "first", &t, 1, &a, 1, "", &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "second", &u, 1, &t, 1, "", &err), HEFT_OK);
    heft_view_t p = fx_param(&fx, "p", "2,2");
    fx_copy(&fx, fx_param(&fx, "z", "2"), fx_source(&fx, "z", "2"), "");
    fx_copy(&fx, p, fx_source(&fx, "s", "2,2"), "");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNUSED, "a")->n_elems, 4);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_OPAQUE), 0);
    /* needed through a chain: both are used, and so is what the first one reads */
    fx_copy(&fx, fx_param(&fx, "q", "2,2"), u, "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_OPAQUE), 2);
    uint32_t n;
    const heft_opaque_t *ops = heft_plan_get_opaques(fx.plan, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ops[0].group, group_of(&fx, 0, "q"));
    assert_int_equal(ops[1].group, group_of(&fx, 0, "q"));
    fx_fini(&fx);
}

static void source_elements_an_operation_does_not_read_are_unused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t a = fx_narrow(fx_source(&fx, "a", "4,2"), 0, 0, 3);
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "3,2");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "op", &t, 1, &a, 1, "", &err), HEFT_OK);
    fx_copy(&fx, fx_param(&fx, "p", "3,2"), t, "");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNUSED, "a");
    assert_int_equal(finding->n_elems, 2);
    assert_int_equal(finding->begin[0], 3);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanned_tensors_give_one_group_for_each_layer),
        cmocka_unit_test(one_shared_element_joins_and_a_neighbour_does_not),
        cmocka_unit_test(columns_and_rows_meet_where_they_cross),
        cmocka_unit_test(replicas_on_several_ranks_are_one_group),
        cmocka_unit_test(constants_alone_are_a_group_without_sources),
        cmocka_unit_test(an_operation_ties_what_reads_its_sources),
        cmocka_unit_test(an_operation_that_nothing_needs_uses_nothing),
        cmocka_unit_test(source_elements_an_operation_does_not_read_are_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
