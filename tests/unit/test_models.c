/* SPDX-License-Identifier: Apache-2.0 */
/* A target and drafts on one rank: names by role, shared storage written once, frozen ones never.
 */
#include "heft_test.h"
#include "plan_fixture.h"
#include "tape_builder.h"

typedef struct models {
    tape_builder_t target;
    tape_builder_t draft;
    heft_model_part_t parts[2];
    heft_model_alias_t alias;
    heft_tape_t *joined;
} models_t;

/* Both have an embedding, in one storage; the draft has a layer of its own. */
static void open_models(models_t *m, bool is_shifted)
{
    *m = (models_t){ .alias = { .part = 1, .param = "embed", .of_part = 0, .of_param = "embed" } };
    tb_init(&m->target);
    uint32_t embed = tb_source(&m->target, "embed", HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    tb_copy(&m->target,
            tb_all(&m->target, tb_param(&m->target, "embed", HEFT_DTYPE_BF16, TB_SHAPE(4, 2))),
            tb_all(&m->target, embed));
    uint32_t w = tb_source(&m->target, "layers.0.w", HEFT_DTYPE_BF16, TB_SHAPE(2));
    tb_copy(&m->target, tb_all(&m->target, tb_param(&m->target, "w", HEFT_DTYPE_BF16, TB_SHAPE(2))),
            tb_all(&m->target, w));
    tb_init(&m->draft);
    tape_builder_t *d = &m->draft;
    uint32_t mtp = tb_source(d, "mtp.x", HEFT_DTYPE_BF16, TB_SHAPE(2));
    embed = tb_source(d, "embed", HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    uint32_t t = tb_temp(d, HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    uint32_t to = tb_param(d, "embed", HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    heft_view_t rows = tb_all(d, embed);
    tb_copy(d, tb_all(d, t), is_shifted ? tb_flip(rows, 0) : rows);
    tb_copy(d, tb_all(d, to), tb_all(d, t));
    tb_copy(d, tb_all(d, tb_param(d, "w", HEFT_DTYPE_BF16, TB_SHAPE(2))), tb_all(d, mtp));
    m->parts[0] = (heft_model_part_t){ .role = "", .tape = m->target.tape };
    m->parts[1] = (heft_model_part_t){ .role = "draft", .tape = m->draft.tape };
}

static void close_models(models_t *m)
{
    heft_tape_destroy(m->joined);
    tb_fini(&m->target);
    tb_fini(&m->draft);
}

static heft_status_t join(models_t *m, uint32_t n_aliases, heft_error_t *err)
{
    return heft_tape_join_models(m->parts, 2, &m->alias, n_aliases, &m->joined, err);
}

/* The plan of the joined tape; the fixture gives it back. */
static void plan(models_t *m, fx_t *fx, heft_status_t expected)
{
    heft_tape_destroy(fx->tapes[0]);
    fx->tapes[0] = m->joined;
    m->joined = NULL;
    (void)fx_plan(fx, expected);
}

static void shared_storage_is_written_once_through_the_target(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    models_t m;
    fx_t fx;
    open_models(&m, false);
    EXPECT_STATUS(join(&m, 1, &err), HEFT_OK);
    assert_int_equal(heft_tape_get_n_writes(m.joined), 4); /* one of them to a temporary */
    fx_init(&fx);
    plan(&m, &fx, HEFT_OK);
    assert_int_equal(heft_plan_get_n_params(fx.plan, 0), 3);
    assert_int_equal(fx_info(&fx).n_pieces, 3);
    (void)fx_find_param(&fx, 0, "draft.w");
    (void)fx_find_param(&fx, 0, "w");
    (void)fx_find_param(&fx, 0, "embed");
    fx_fini(&fx);
    close_models(&m);
}

static void without_an_alias_both_are_parameters(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    models_t m;
    fx_t fx;
    open_models(&m, false);
    EXPECT_STATUS(join(&m, 0, &err), HEFT_OK);
    fx_init(&fx);
    plan(&m, &fx, HEFT_OK);
    assert_int_equal(heft_plan_get_n_params(fx.plan, 0), 4);
    /* they read the same elements, so they travel together */
    assert_int_equal(heft_plan_get_param_group(fx.plan, 0, fx_find_param(&fx, 0, "embed")),
                     heft_plan_get_param_group(fx.plan, 0, fx_find_param(&fx, 0, "draft.embed")));
    fx_fini(&fx);
    close_models(&m);
}

static void a_frozen_draft_gets_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    models_t m;
    fx_t fx;
    open_models(&m, false);
    m.parts[1].is_frozen = 1;
    EXPECT_STATUS(join(&m, 1, &err), HEFT_OK);
    assert_int_equal(heft_tape_get_n_writes(m.joined), 2);
    fx_init(&fx);
    plan(&m, &fx, HEFT_ERR_PROOF); /* it must be said that it is */
    FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_UNCOVERED, "draft.w"), "all 2 elements uncovered");
    fx_except(&fx, HEFT_EXCEPTION_FROZEN, "draft.*", "an untrained draft");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "mtp.*", "of the draft");
    (void)fx_plan(&fx, HEFT_OK);
    uint64_t n = 0;
    (void)heft_plan_get_param_pieces(fx.plan, 0, fx_find_param(&fx, 0, "draft.w"), &n);
    assert_int_equal(n, 0);
    fx_fini(&fx);
    close_models(&m);
}

static void storage_that_two_models_fill_otherwise_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    models_t m;
    open_models(&m, true);
    EXPECT_STATUS(join(&m, 1, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("parameter \"embed\" of model \"draft\" is the storage of \"embed\", and is "
                   "filled otherwise");
    m.alias.of_param = "w";
    EXPECT_STATUS(join(&m, 1, &err), HEFT_ERR_MISMATCH);
    m.alias.of_param = "no";
    EXPECT_STATUS(join(&m, 1, &err), HEFT_ERR_NOT_FOUND);
    m.alias.of_part = 1;
    EXPECT_STATUS(join(&m, 1, &err), HEFT_ERR_ARGUMENT);
    m.parts[1].role = "";
    EXPECT_STATUS(join(&m, 0, &err), HEFT_ERR_EXISTS);
    assert_null(m.joined);
    close_models(&m);
}

static void one_name_is_one_tensor(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    models_t m;
    open_models(&m, false);
    (void)tb_source(&m.draft, "layers.0.w", HEFT_DTYPE_F32, TB_SHAPE(2));
    EXPECT_STATUS(join(&m, 1, &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("model \"draft\": source \"layers.0.w\"");
    close_models(&m);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    models_t m;
    open_models(&m, false);
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = join(&m, 1, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            assert_true(k > 20);
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
        assert_null(m.joined);
        assert_int_equal(heft__alloc_live(), live);
    }
    close_models(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_storage_is_written_once_through_the_target),
        cmocka_unit_test(without_an_alias_both_are_parameters),
        cmocka_unit_test(a_frozen_draft_gets_nothing),
        cmocka_unit_test(storage_that_two_models_fill_otherwise_is_refused),
        cmocka_unit_test(one_name_is_one_tensor),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
