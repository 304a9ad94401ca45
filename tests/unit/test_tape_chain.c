/* SPDX-License-Identifier: Apache-2.0 */
/* Two tapes as one: what the first makes is what the second reads, and is never there. */
#include "heft_test.h"
#include "tape_builder.h"

#include "heft/plan.h"

#define F32 HEFT_DTYPE_F32

/* `source` turned around into `param`. */
static heft_tape_t *turned(const char *source, const char *param)
{
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t from = tb_source(&tb, source, F32, TB_SHAPE(4));
    uint32_t to = tb_param(&tb, param, F32, TB_SHAPE(4));
    tb_copy(&tb, tb_all(&tb, to), tb_flip(tb_all(&tb, from), 0));
    heft_tape_t *tape = tb.tape;
    tb.tape = NULL;
    tb_fini(&tb);
    return tape;
}

static void a_chain_is_one_copy_from_end_to_end(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *chain = NULL;
    heft_plan_t *plan = NULL;
    uint64_t n = 0;
    EXPECT_STATUS(heft_tape_chain(turned("a", "b"), turned("b", "c"), &chain, &err), HEFT_OK);
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const *)&chain, 1, 0, NULL, &plan, NULL, &err),
        HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    assert_int_equal(info.n_sources, 1);
    const heft_piece_t *pieces = heft_plan_get_param_pieces(plan, 0, 0, &n);
    assert_int_equal(n, 1);
    assert_int_equal(pieces[0].rank, 1);
    assert_int_equal(pieces[0].extent[0], 4);
    assert_int_equal(pieces[0].srcs[0].offset, 0); /* turned around twice */
    assert_int_equal(pieces[0].srcs[0].stride[0], pieces[0].dst_stride[0]);
    heft_plan_destroy(plan);
    heft_tape_destroy(chain);
}

static void a_tape_that_reads_something_else_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *chain = NULL;
    heft_tape_t *first = turned("a", "b");
    heft_tape_t *other = turned("x", "c");
    EXPECT_STATUS(heft_tape_chain(first, other, &chain, &err), HEFT_ERR_NAME);
    EXPECT_MESSAGE("does not make \"x\"");
    EXPECT_STATUS(heft_tape_chain(first, first, &chain, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_chain(first, NULL, &chain, &err), HEFT_ERR_ARGUMENT);
    assert_null(chain);
    assert_int_equal(heft_tape_get_n_writes(first), 1); /* neither was taken */
    heft_tape_destroy(first);
    heft_tape_destroy(other);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_tape_t *chain = NULL;
        heft_tape_t *first = turned("a", "b");
        heft_tape_t *second = turned("b", "c");
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        const heft_status_t status = heft_tape_chain(first, second, &chain, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_tape_destroy(chain);
            assert_true(k > 0);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(chain);
        assert_int_equal(heft__alloc_live(), live);
        heft_tape_destroy(first);
        heft_tape_destroy(second);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_is_one_copy_from_end_to_end),
        cmocka_unit_test(a_tape_that_reads_something_else_is_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
