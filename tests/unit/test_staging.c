/* SPDX-License-Identifier: Apache-2.0 */
#include "heft_test.h"
#include "sync/staging.h"

#include "heft/exec.h"

static void parameters_lie_at_multiples_of_256_in_order(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t sizes[] = { 1, 256, 0, 257, 5 };
    heft__staging_t staging;
    EXPECT_STATUS(heft__staging_init(sizes, 5, &staging, &err), HEFT_OK);
    const int64_t offsets[] = { 0, 256, 512, 512, 1024 };
    assert_memory_equal(staging.offsets, offsets, sizeof offsets);
    assert_int_equal(staging.bytes, 1280);
    heft__staging_fini(&staging);
    EXPECT_STATUS(heft__staging_init(NULL, 0, &staging, &err), HEFT_OK);
    assert_int_equal(staging.bytes, 0);
    heft__staging_fini(&staging);
}

static void beyond_2_to_the_63_is_an_overflow(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__staging_t staging;
    const int64_t sum[] = { INT64_MAX / 2, INT64_MAX / 2 };
    EXPECT_STATUS(heft__staging_init(sum, 2, &staging, &err), HEFT_ERR_OVERFLOW);
    EXPECT_MESSAGE("entry 1 of 4611686018427387903 bytes");
    const int64_t edge[] = { INT64_MAX };
    EXPECT_STATUS(heft__staging_init(edge, 1, &staging, &err), HEFT_ERR_OVERFLOW);
    const int64_t negative[] = { -1 };
    EXPECT_STATUS(heft__staging_init(negative, 1, &staging, &err), HEFT_ERR_OVERFLOW);
}

static void layout_of_5_gib_keeps_64_bit_offsets(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__staging_t staging;
    const int64_t sizes[] = { INT64_C(5) << 30, 10 };
    EXPECT_STATUS(heft__staging_init(sizes, 2, &staging, &err), HEFT_OK);
    assert_true(staging.offsets[1] == INT64_C(5) << 30);
    heft__staging_fini(&staging);
}

static void layout_of_a_manifest_is_that_of_its_sizes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    heft__staging_t staging;
    heft_shape_t shape = { .rank = 1, .extent = { 100 } };
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "b", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "a", HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft__staging_init_manifest(manifest, &staging, &err), HEFT_OK);
    assert_int_equal(staging.sizes[0], 200);
    assert_int_equal(staging.sizes[1], 400);
    assert_int_equal(staging.offsets[1], 256);
    assert_int_equal(staging.bytes, 768);
    heft__staging_fini(&staging);
    heft_manifest_destroy(manifest);
}

enum { N = 7 };

/* Guard bytes around every parameter see a write that goes astray. */
/* ---- bounded buffers: the parts of a flip in place ---- */

static void parts_keep_order_and_begin_at_multiples_of_256(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__staging_t layout = { 0 };
    const int64_t sizes[] = { 100, 100, 300, 50 };
    EXPECT_STATUS(heft__staging_init(sizes, 4, &layout, &err), HEFT_OK);
    assert_int_equal(heft__staging_buffer_bytes(&layout, 512), 512);
    assert_int_equal(heft__staging_part_end(&layout, 0, 512), 2); /* [a, b] */
    assert_int_equal(heft__staging_part_end(&layout, 2, 512), 3); /* [c] */
    assert_int_equal(heft__staging_part_end(&layout, 3, 512), 4); /* [d] */
    assert_int_equal(layout.offsets[1] - layout.offsets[0], 256);
    assert_int_equal(heft__staging_part_bytes(&layout, 0, 2), 356);
    heft__staging_fini(&layout);
}

static void what_is_larger_than_the_buffer_grows_it(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__staging_t layout = { 0 };
    const int64_t sizes[] = { 100, 5000, 300 };
    EXPECT_STATUS(heft__staging_init(sizes, 3, &layout, &err), HEFT_OK);
    assert_int_equal(heft__staging_buffer_bytes(&layout, 1024), 5120);
    assert_int_equal(heft__staging_part_end(&layout, 0, 5120), 1); /* 256 + 5000 do not fit */
    assert_int_equal(heft__staging_part_end(&layout, 1, 5120), 2);
    heft__staging_fini(&layout);
}

/* Against filling a buffer by hand. */
static void parts_are_those_of_filling_by_hand(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t rng = heft_test_seed();
    for (int64_t n_cases = heft_test_cases(2000); n_cases > 0; n_cases--) {
        int64_t sizes[24];
        const uint32_t n = (uint32_t)heft_test_random_in(&rng, 1, 24);
        heft__staging_t layout = { 0 };
        for (uint32_t i = 0; i < n; i++) {
            sizes[i] =
                heft_test_random_in(&rng, 0, 3) == 0 ? 0 : heft_test_random_in(&rng, 1, 1500);
        }
        EXPECT_STATUS(heft__staging_init(sizes, n, &layout, &err), HEFT_OK);
        const int64_t buffer =
            heft__staging_buffer_bytes(&layout, heft_test_random_in(&rng, 1, 4096));
        assert_int_equal(buffer % 256, 0);
        for (uint32_t first = 0; first < n;) {
            int64_t at = 0;
            uint32_t end = first;
            while (end < n && (end == first || at + sizes[end] <= buffer)) {
                assert_true(at + sizes[end] <= buffer);
                at = (at + sizes[end] + 255) / 256 * 256;
                end++;
            }
            assert_int_equal(heft__staging_part_end(&layout, first, buffer), end);
            first = end;
        }
        heft__staging_fini(&layout);
    }
}

static void copy_out_is_exact_for_any_number_of_threads(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t sizes[N] = { 1, 255, 256, 0, 70001, 4096, 63 };
    heft__staging_t staging;
    EXPECT_STATUS(heft__staging_init(sizes, N, &staging, &err), HEFT_OK);
    uint8_t *memory = malloc((size_t)staging.bytes);
    uint64_t seed = 1;
    for (int64_t i = 0; i < staging.bytes; i++) {
        memory[i] = (uint8_t)heft_test_random(&seed);
    }
    for (uint32_t n_threads = 1; n_threads <= 70; n_threads += 1 + n_threads / 2) {
        heft__home_t homes[N];
        uint8_t *blocks[N];
        for (int i = 0; i < N; i++) {
            blocks[i] = malloc((size_t)sizes[i] + 16);
            memset(blocks[i], 0xcc, (size_t)sizes[i] + 16);
            homes[i] = (heft__home_t){ .data = blocks[i] + 8, .bytes = sizes[i] };
        }
        heft__staging_copy_out(&staging, memory, homes, n_threads);
        for (int i = 0; i < N; i++) {
            assert_memory_equal(homes[i].data, memory + staging.offsets[i], (size_t)sizes[i]);
            for (int k = 0; k < 8; k++) {
                assert_int_equal(blocks[i][k], 0xcc);
                assert_int_equal(blocks[i][8 + sizes[i] + k], 0xcc);
            }
            free(blocks[i]);
        }
    }
    free(memory);
    heft__staging_fini(&staging);
}

static void digests_are_those_of_each_buffer(void **state)
{
    (void)state;
    uint8_t bytes[3000];
    uint64_t seed = 2;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)heft_test_random(&seed);
    }
    const void *data[N];
    int64_t sizes[N];
    for (int i = 0; i < N; i++) {
        data[i] = bytes + 100 * i;
        sizes[i] = 300 * i;
    }
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads += 2) {
        uint64_t digests[N] = { 0 };
        heft__digest_all(data, sizes, NULL, N, n_threads, digests);
        for (int i = 0; i < N; i++) {
            assert_true(digests[i] == heft_digest(data[i], sizes[i]));
        }
    }
}

static void init_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t live = heft__alloc_live();
    const int64_t sizes[] = { 1, 2 };
    for (long k = 0;; k++) {
        heft__staging_t staging = { .n_params = 0 };
        heft__alloc_fail_at(k);
        heft_status_t status = heft__staging_init(sizes, 2, &staging, &err);
        heft__alloc_fail_at(-1);
        heft__staging_fini(&staging);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_int_equal(k, 2);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_lie_at_multiples_of_256_in_order),
        cmocka_unit_test(beyond_2_to_the_63_is_an_overflow),
        cmocka_unit_test(layout_of_5_gib_keeps_64_bit_offsets),
        cmocka_unit_test(layout_of_a_manifest_is_that_of_its_sizes),
        cmocka_unit_test(parts_keep_order_and_begin_at_multiples_of_256),
        cmocka_unit_test(what_is_larger_than_the_buffer_grows_it),
        cmocka_unit_test(parts_are_those_of_filling_by_hand),
        cmocka_unit_test(copy_out_is_exact_for_any_number_of_threads),
        cmocka_unit_test(digests_are_those_of_each_buffer),
        cmocka_unit_test(init_survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
