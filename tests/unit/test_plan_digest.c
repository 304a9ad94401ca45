/* SPDX-License-Identifier: Apache-2.0 */
/* Digests: equal for equal plans, different for every single difference. */
#include "plan_fixture.h"

/* What a tape can differ in. */
typedef enum change {
    CHANGE_NONE = 0,
    CHANGE_SOURCE_NAME,
    CHANGE_SOURCE_DTYPE,
    CHANGE_SOURCE_SHAPE,
    CHANGE_PARAM_NAME,
    CHANGE_PARAM_DTYPE,
    CHANGE_PARAM_SHAPE,
    CHANGE_SRC_OFFSET,
    CHANGE_SRC_STRIDE,
    CHANGE_DST_OFFSET,
    CHANGE_CONSTANT,
    CHANGE_OP_CODE,
    CHANGE_OP_DTYPE,
    CHANGE_OP_IMMEDIATE,
    CHANGE_SOURCE_OF_PIECE,
    CHANGE_OPAQUE_NAME,
    CHANGE_OPAQUE_INPUT,
    CHANGE_OPAQUE_OUTPUT,
    CHANGE_COUNT
} change_t;

static void write_tape(fx_t *fx, change_t change)
{
    heft_error_t err = HEFT_ERROR_INIT;
#define PICK(which, yes, no) (change == (which) ? (yes) : (no))
    heft_view_t a = fx_buffer(fx, HEFT_BUFFER_SOURCE, PICK(CHANGE_SOURCE_NAME, "aa", "a"),
                              PICK(CHANGE_SOURCE_DTYPE, HEFT_DTYPE_F16, HEFT_DTYPE_BF16),
                              PICK(CHANGE_SOURCE_SHAPE, "4,2", "2,4"));
    if (change == CHANGE_SOURCE_SHAPE) {
        a = heft_view_contiguous(a.buffer, &(heft_shape_t){ .rank = 2, .extent = { 2, 4 } });
    }
    heft_view_t b = fx_source(fx, "b", "2,4");
    heft_view_t c = fx_source(fx, "c", "2,4");
    heft_view_t s = fx_source(fx, "s", "8");
    heft_view_t p = fx_buffer(fx, HEFT_BUFFER_PARAM, PICK(CHANGE_PARAM_NAME, "pp", "p"),
                              PICK(CHANGE_SOURCE_DTYPE, HEFT_DTYPE_F16, HEFT_DTYPE_BF16),
                              PICK(CHANGE_PARAM_SHAPE, "4,2", "2,4"));
    if (change == CHANGE_PARAM_SHAPE) {
        p = heft_view_contiguous(p.buffer, &(heft_shape_t){ .rank = 2, .extent = { 2, 4 } });
    }
    fx_copy(fx, p, a, "1");
    heft_view_t q = fx_buffer(fx, HEFT_BUFFER_PARAM, "q",
                              PICK(CHANGE_PARAM_DTYPE, HEFT_DTYPE_F64, HEFT_DTYPE_F32), "2,4");
    heft_op_t ops[] = { { .code = HEFT_OP_LOAD, .dtype = HEFT_DTYPE_BF16 },
                        { .code = PICK(CHANGE_OP_CODE, HEFT_OP_MUL_IMM, HEFT_OP_ADD_IMM),
                          .dtype = PICK(CHANGE_OP_DTYPE, HEFT_DTYPE_BF16, HEFT_DTYPE_F32),
                          .imm = PICK(CHANGE_OP_IMMEDIATE, 2.0, 3.0) } };
    heft_view_t from = PICK(CHANGE_SOURCE_OF_PIECE, c, b);
    EXPECT_STATUS(heft_tape_map(fx->tape, &q, &from, 1, ops, 2, "2", &err), HEFT_OK);
    /* r: 3 elements of s beside 5 constants */
    heft_view_t r = fx_param(fx, "r", "8");
    int64_t at = PICK(CHANGE_DST_OFFSET, 1, 0);
    heft_view_t part = fx_narrow(s, 0, PICK(CHANGE_SRC_OFFSET, 1, 0), 3);
    part.extent[0] = 3;
    part.stride[0] = PICK(CHANGE_SRC_STRIDE, 2, 1);
    fx_fill(fx, r, PICK(CHANGE_CONSTANT, 1u, 0u), "3");
    fx_copy(fx, fx_narrow(r, 0, at, at + 3), part, "4");
    /* an operation */
    heft_view_t t = fx_buffer(fx, HEFT_BUFFER_TEMP, "t", HEFT_DTYPE_BF16, "2,4");
    heft_view_t into = PICK(CHANGE_OPAQUE_OUTPUT, fx_narrow(t, 1, 0, 2), t);
    heft_view_t input = PICK(CHANGE_OPAQUE_INPUT, fx_transpose(c, 0, 1), c);
    EXPECT_STATUS(heft_tape_opaque(fx->tape, PICK(CHANGE_OPAQUE_NAME, "op2", "op"), &into, 1,
                                   &input, 1, "5", &err),
                  HEFT_OK);
    fx_copy(fx, fx_param(fx, "u", "2,2"), fx_narrow(t, 1, 0, 2), "6");
#undef PICK
}

static void every_single_difference_changes_both_digests(void **state)
{
    (void)state;
    static char plan[CHANGE_COUNT][65];
    static char rank[CHANGE_COUNT][65];
    for (int change = 0; change < CHANGE_COUNT; change++) {
        fx_t fx;
        fx_init(&fx);
        fx.opts.partial = 1;
        write_tape(&fx, (change_t)change);
        (void)fx_plan(&fx, HEFT_OK);
        (void)snprintf(plan[change], 65, "%s", fx_info(&fx).digest);
        (void)snprintf(rank[change], 65, "%s", heft_plan_get_rank_digest(fx.plan, 0));
        assert_int_equal(strlen(plan[change]), 64);
        (void)fx_plan(&fx, HEFT_OK); /* the same again */
        assert_string_equal(plan[change], fx_info(&fx).digest);
        for (int other = 0; other < change; other++) {
            if (strcmp(plan[change], plan[other]) == 0 || strcmp(rank[change], rank[other]) == 0) {
                fail_msg("changes %d and %d have one digest", other, change);
            }
        }
        fx_fini(&fx);
    }
}

static void write_rank(fx_t *fx, int64_t r)
{
    heft_view_t w = fx_source(fx, "w", "8,4");
    heft_view_t n = fx_source(fx, "norm", "4");
    if (r == 1) {
        (void)fx_source(fx, "a.first.name", "2"); /* moves the numbers of the others */
        fx_copy(fx, fx_param(fx, "only", "2"),
                heft_view_contiguous(2, &(heft_shape_t){ .rank = 1, .extent = { 2 } }), "");
    }
    fx_copy(fx, fx_param(fx, "w", "2,4"), fx_narrow(w, 0, 2 * r, 2 * r + 2), "w");
    fx_copy(fx, fx_param(fx, "norm", "4"), n, "n");
}

static void a_rank_digest_does_not_depend_on_the_other_ranks(void **state)
{
    (void)state;
    char whole[4][65];
    fx_t fx;
    fx_init(&fx);
    for (int64_t r = 0; r < 4; r++) {
        if (r > 0) {
            fx_next(&fx);
        }
        write_rank(&fx, r);
    }
    (void)fx_plan(&fx, HEFT_OK);
    for (uint32_t r = 0; r < 4; r++) {
        (void)snprintf(whole[r], 65, "%s", heft_plan_get_rank_digest(fx.plan, r));
        for (uint32_t other = 0; other < r; other++) {
            assert_string_not_equal(whole[r], whole[other]);
        }
    }
    fx_fini(&fx);
    for (int64_t r = 0; r < 4; r++) { /* each rank alone, and with the one after it */
        for (int64_t n = 1; n <= 2 && r + n <= 4; n++) {
            fx_init(&fx);
            fx.opts.partial = 1;
            fx.first_rank = (uint32_t)r;
            write_rank(&fx, r);
            if (n == 2) {
                fx_next(&fx);
                write_rank(&fx, r + 1);
            }
            (void)fx_plan(&fx, HEFT_OK);
            assert_string_equal(heft_plan_get_rank_digest(fx.plan, 0), whole[r]);
            if (n == 2) {
                assert_string_equal(heft_plan_get_rank_digest(fx.plan, 1), whole[r + 1]);
            }
            fx_fini(&fx);
        }
    }
}

static void notes_and_names_of_temporaries_are_not_in_the_digest(void **state)
{
    (void)state;
    char digest[65];
    for (int i = 0; i < 2; i++) {
        fx_t fx;
        fx_init(&fx);
        heft_view_t s = fx_source(&fx, "s", "4");
        heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, i ? "other" : "t", HEFT_DTYPE_BF16, "4");
        fx_copy(&fx, t, s, i ? "recipe:1" : "recipe:9");
        fx_copy(&fx, fx_param(&fx, "p", "4"), t, i ? "recipe:2" : "recipe:7");
        (void)fx_plan(&fx, HEFT_OK);
        assert_true(i == 0 || strcmp(digest, fx_info(&fx).digest) == 0);
        (void)snprintf(digest, sizeof digest, "%s", fx_info(&fx).digest);
        fx_fini(&fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_single_difference_changes_both_digests),
        cmocka_unit_test(a_rank_digest_does_not_depend_on_the_other_ranks),
        cmocka_unit_test(notes_and_names_of_temporaries_are_not_in_the_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
