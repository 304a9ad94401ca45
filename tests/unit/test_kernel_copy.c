/* SPDX-License-Identifier: Apache-2.0 */
/* Strided copies: normal forms, and every CPU level against a naive loop on random cases. */
#include "heft_test.h"

#include "kernel/kernel_ops.h"

/* The property of fuzz/kernel_copy.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static heft__copy_plan_t prepare(const heft__copy_t *copy)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__copy_plan_t plan;
    EXPECT_STATUS(heft__copy_prepare(copy, &plan, &err), HEFT_OK);
    return plan;
}

static void contiguous_views_become_one_run(void **state)
{
    (void)state;
    heft__copy_plan_t plan = prepare(&(heft__copy_t){ .elem_bytes = 2,
                                                      .rank = 3,
                                                      .extent = { 5, 1, 7 },
                                                      .dst_stride = { 7, 99, 1 },
                                                      .src_stride = { 7, 0, 1 } });
    assert_int_equal(plan.kind, HEFT__COPY_CONTIGUOUS);
    assert_int_equal(plan.bytes, 70);
    assert_int_equal(plan.extent[0], 35);
}

static void a_huge_contiguous_copy_is_one_loop(void **state)
{
    (void)state;
    heft__copy_plan_t plan = prepare(&(heft__copy_t){ .elem_bytes = 2,
                                                      .rank = 2,
                                                      .extent = { 150000, 5000 },
                                                      .dst_stride = { 5000, 1 },
                                                      .src_stride = { 5000, 1 } });
    assert_int_equal(plan.kind, HEFT__COPY_CONTIGUOUS);
    assert_int_equal(plan.extent[0], 750000000);
}

static void a_copy_reversed_on_both_sides_is_still_contiguous(void **state)
{
    (void)state;
    heft__copy_plan_t plan = prepare(&(heft__copy_t){
        .elem_bytes = 4, .rank = 1, .extent = { 10 }, .dst_stride = { -1 }, .src_stride = { -1 } });
    assert_int_equal(plan.kind, HEFT__COPY_CONTIGUOUS);
    assert_int_equal(plan.dst_offset, -36);
    assert_int_equal(plan.src_offset, -36);
}

static void column_slices_are_runs_in_source_order(void **state)
{
    (void)state;
    heft__copy_plan_t plan = prepare(&(heft__copy_t){ .elem_bytes = 2,
                                                      .rank = 2,
                                                      .extent = { 100, 64 },
                                                      .dst_stride = { 64, 1 },
                                                      .src_stride = { 256, 1 } });
    assert_int_equal(plan.kind, HEFT__COPY_RUNS);
    assert_int_equal(plan.run_bytes, 128);
    assert_int_equal(plan.n_loops, 1);
    assert_int_equal(plan.src_step[0], 512);
    assert_int_equal(plan.src_begin, 0);
    assert_int_equal(plan.src_end, 99 * 512 + 128);
}

static void transposes_of_pairs_move_wider_elements(void **state)
{
    (void)state;
    heft__copy_plan_t plan = prepare(&(heft__copy_t){ .elem_bytes = 2,
                                                      .rank = 3,
                                                      .extent = { 10, 20, 2 },
                                                      .dst_stride = { 2, 20, 1 },
                                                      .src_stride = { 40, 2, 1 } });
    assert_int_equal(plan.kind, HEFT__COPY_TRANSPOSE);
    assert_int_equal(plan.elem_bytes, 4);
    assert_int_equal(plan.dst_unit, 0);
    assert_int_equal(plan.src_unit, 1);
}

static void bad_copies_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__copy_plan_t plan = { .bytes = 77 };
    heft__copy_t copy = { .elem_bytes = 3 };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("3-byte");
    copy = (heft__copy_t){ .elem_bytes = 2, .rank = HEFT_MAX_DIMS + 1 };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_ARGUMENT);
    copy = (heft__copy_t){ .elem_bytes = 2, .rank = 1, .extent = { -1 } };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_ARGUMENT);
    copy = (heft__copy_t){ .elem_bytes = 2, .rank = 1, .extent = { 2 }, .src_stride = { 1 } };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("destination stride 0");
    copy = (heft__copy_t){
        .elem_bytes = 8, .rank = 1, .extent = { INT64_MAX / 4 }, .dst_stride = { 1 }
    };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_OVERFLOW);
    copy =
        (heft__copy_t){ .elem_bytes = 1, .rank = 1, .extent = { 3 }, .dst_stride = { INT64_MIN } };
    EXPECT_STATUS(heft__copy_prepare(&copy, &plan, &err), HEFT_ERR_OVERFLOW);
    assert_int_equal(plan.bytes, 77);
}

static void every_level_copies_as_a_naive_loop_does(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        uint64_t random = seed;
        for (int64_t i = 0; i < heft_test_cases(600); i++) {
            uint8_t bytes[96];
            for (size_t k = 0; k < sizeof bytes; k++) {
                bytes[k] = (uint8_t)heft_test_random(&random);
            }
            (void)LLVMFuzzerTestOneInput(bytes, sizeof bytes);
        }
    }
    assert_true(heft__cpu_use_level(best));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_views_become_one_run),
        cmocka_unit_test(a_huge_contiguous_copy_is_one_loop),
        cmocka_unit_test(a_copy_reversed_on_both_sides_is_still_contiguous),
        cmocka_unit_test(column_slices_are_runs_in_source_order),
        cmocka_unit_test(transposes_of_pairs_move_wider_elements),
        cmocka_unit_test(bad_copies_are_refused),
        cmocka_unit_test(every_level_copies_as_a_naive_loop_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
