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

/* Large enough for non-temporal stores, at an odd address. */
static void large_copies_arrive_whole(void **state)
{
    (void)state;
    enum { N = 300000 };
    uint8_t *src = malloc(N + 1);
    uint8_t *dst = malloc(N + 3);
    assert_non_null(src);
    assert_non_null(dst);
    for (int i = 0; i < N + 1; i++) {
        src[i] = (uint8_t)(i * 7 + i / 251);
    }
    memset(dst, 0xa5, N + 3);
    heft__memcpy(dst + 1, src + 1, N);
    assert_memory_equal(dst + 1, src + 1, N);
    assert_int_equal(dst[0], 0xa5);
    assert_int_equal(dst[N + 1], 0xa5);
    memset(dst, 0xa5, N + 3);
    assert_int_equal(heft__crc64_copy(0, dst + 1, src + 1, N), heft__crc64(src + 1, N));
    assert_int_equal(heft__crc32c_copy(5, dst + 1, src + 1, N), heft__crc32c(5, src + 1, N));
    assert_memory_equal(dst + 1, src + 1, N);
    assert_int_equal(dst[0], 0xa5);
    assert_int_equal(dst[N + 1], 0xa5);
    free(src);
    free(dst);
}

/* One half by slabs, the other with its digest, into the middle of a parameter. */
static void public_entries_agree(void **state)
{
    (void)state;
    static const uint16_t src[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    heft__copy_plan_t plan = prepare(&(heft__copy_t){ .elem_bytes = 2,
                                                      .rank = 2,
                                                      .extent = { 4, 3 },
                                                      .dst_stride = { 1, 4 },
                                                      .src_stride = { 3, 1 } });
    static const uint16_t want[12] = { 1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12 };
    uint16_t param[16] = { 0 };
    heft__copy_run(&plan, param + 2, src);
    assert_memory_equal(param + 2, want, sizeof want);
    memset(param, 0, sizeof param);
    heft__copy_run_slabs(&plan, param + 2, src, 1, 3);
    assert_int_equal(param[2], 0);
    assert_int_equal(param[3], 4);
    assert_int_equal(param[5], 0);
    heft__copy_run_slabs(&plan, param + 2, src, 0, 1);
    heft__copy_run_slabs(&plan, param + 2, src, 3, 4);
    assert_memory_equal(param + 2, want, sizeof want);
    memset(param, 0, sizeof param);
    uint64_t share = heft__copy_run_crc64(&plan, param + 2, src, 4, sizeof param);
    assert_memory_equal(param + 2, want, sizeof want);
    assert_int_equal(share, heft__crc64(param, sizeof param));
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
        cmocka_unit_test(large_copies_arrive_whole),
        cmocka_unit_test(public_entries_agree),
        cmocka_unit_test(every_level_copies_as_a_naive_loop_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
