/* SPDX-License-Identifier: Apache-2.0 */
/* Differences: distances against a list of all values in order, counts, threads, streaming. */
#include "ref_reshard.h"

#include "heft/diff.h"
#include "kernel/kernel.h"

#include <math.h>

static double value_of(heft_dtype_t dtype, uint32_t bits)
{
    uint64_t f64 = heft__cast_bits(HEFT_DTYPE_F64, dtype, bits);
    double v;
    memcpy(&v, &f64, sizeof v);
    return v;
}

/* The naive way: the values of a dtype in order; a distance is how many steps lie between two. */
static void all_pairs(heft_dtype_t dtype, uint32_t n_codes)
{
    double *sorted = calloc(n_codes, sizeof *sorted);
    assert_non_null(sorted);
    size_t n = 0;
    for (uint32_t c = 0; c < n_codes; c++) {
        double v = value_of(dtype, c);
        size_t at = n;
        bool is_new = !isnan(v);
        while (is_new && at > 0 && sorted[at - 1] >= v) {
            is_new = sorted[at - 1] != v; /* -0 == +0: one place */
            at--;
        }
        if (is_new) {
            memmove(&sorted[at + 1], &sorted[at], (n - at) * sizeof *sorted);
            sorted[at] = v;
            n++;
        }
    }
    for (uint32_t a = 0; a < n_codes; a++) {
        double x = value_of(dtype, a);
        for (uint32_t b = 0; b < n_codes; b++) {
            double y = value_of(dtype, b);
            heft_tensor_diff_t d;
            heft_diff_tensors(dtype, &(uint8_t){ (uint8_t)a }, &(uint8_t){ (uint8_t)b }, 1, &d);
            assert_int_equal(d.n_elems, 1);
            assert_int_equal(d.n_differ, a != b);
            assert_int_equal(d.n_nan, a != b && (isnan(x) || isnan(y)));
            int64_t steps = 0;
            for (size_t i = 0; i < n && !isnan(x) && !isnan(y); i++) {
                steps += (sorted[i] > x && sorted[i] <= y) || (sorted[i] > y && sorted[i] <= x);
            }
            assert_int_equal(d.max_ulp, a == b ? 0 : steps);
            assert_true(d.mean_ulp == (double)d.max_ulp);
            assert_int_equal(d.first, a != b ? 0 : -1);
        }
    }
    free(sorted);
}

static void distances_are_steps_in_the_order_of_values(void **state)
{
    (void)state;
    all_pairs(HEFT_DTYPE_F8_E4M3, 256);
    all_pairs(HEFT_DTYPE_F8_E5M2, 256);
    all_pairs(HEFT_DTYPE_I8, 256);
    all_pairs(HEFT_DTYPE_U8, 256);
}

static void wide_values_and_sums_do_not_wrap(void **state)
{
    (void)state;
    heft_tensor_diff_t d;
    const int64_t a[3] = { INT64_MIN, 5, INT64_MIN };
    const int64_t b[3] = { INT64_MAX, 5, INT64_MAX };
    heft_diff_tensors(HEFT_DTYPE_I64, a, b, 3, &d);
    assert_true(d.max_ulp == UINT64_MAX);
    assert_true(d.mean_ulp == (double)UINT64_MAX);
    assert_int_equal(d.n_differ, 2);
    const uint16_t p[4] = { 0x3f80, 0x7fc0, 0x8000, 0x3f81 };
    const uint16_t q[4] = { 0x3f80, 0x7fc1, 0x0000, 0x3f84 };
    heft_diff_tensors(HEFT_DTYPE_BF16, p, q, 4, &d);
    assert_int_equal(d.n_differ, 3);
    assert_int_equal(d.n_nan, 1);
    assert_int_equal(d.max_ulp, 3);
    assert_true(d.mean_ulp == 1.5); /* 0 for the zeros, 3 */
    assert_int_equal(d.first, 1);
    assert_int_equal(d.first_a, 0x7fc0);
    assert_int_equal(d.first_b, 0x7fc1);
    heft_diff_tensors(HEFT_DTYPE_F4, p, q, 8, &d); /* bytes */
    assert_int_equal(d.n_elems, 8);
    assert_int_equal(d.n_differ, 3);
    assert_int_equal(d.max_ulp, 0);
}

/* ---- checkpoints ---- */

enum { N = 36 << 20 }; /* 72 MiB: more than one stretch */

static heft_checkpoint_t *write(const char *root, const char *name, bool is_other)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_checkpoint_writer_t *w = NULL;
    heft_checkpoint_t *checkpoint = NULL;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    const heft_shape_t large = { .rank = 1, .extent = { N } };
    const heft_shape_t small = { .rank = 1, .extent = { is_other ? 3 : 4 } };
    const heft_shape_t empty = { .rank = 1, .extent = { 0 } };
    EXPECT_STATUS(heft_manifest_add(m, "empty", HEFT_DTYPE_F32, &empty, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "large", HEFT_DTYPE_BF16, &large, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "small", HEFT_DTYPE_F32, &small, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, is_other ? "x" : "y", HEFT_DTYPE_F32, &empty, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(path, m, 0, &w, &err), HEFT_OK);
    for (uint32_t i = 0; i < 4; i++) {
        void *data = NULL;
        EXPECT_STATUS(heft_checkpoint_writer_map(w, i, &data, &err), HEFT_OK);
        uint16_t *v = data;
        for (int64_t k = 0; i == 1 && k < N; k++) {
            v[k] = (uint16_t)(k % 0x7000);
        }
        if (i == 1 && is_other) {
            v[N - 1] = (uint16_t)(v[N - 1] + 5);
            v[35000] = (uint16_t)(v[35000] + 2);
        }
        EXPECT_STATUS(heft_checkpoint_writer_done(w, i, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(w);
    heft_manifest_destroy(m);
    EXPECT_STATUS(heft_checkpoint_open(path, "source", &checkpoint, &err), HEFT_OK);
    return checkpoint;
}

typedef struct seen {
    int n;
    heft_tensor_diff_t large;
    bool small_has_no_diff;
    int stop_at;
} seen_t;

static int see(void *arg, const heft_tensor_info_t *a, const heft_tensor_info_t *b,
               const heft_tensor_diff_t *diff)
{
    seen_t *seen = arg;
    assert_string_equal(a->name, b->name);
    if (strcmp(a->name, "large") == 0) {
        seen->large = *diff;
    } else if (strcmp(a->name, "small") == 0) {
        seen->small_has_no_diff = diff == NULL;
    } else {
        assert_int_equal(diff->n_differ, 0);
    }
    return ++seen->n == seen->stop_at;
}

static void checkpoints_are_compared_by_name_with_any_threads(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *root = heft_test_mkdir();
    heft_checkpoint_t *a = write(root, "a", false);
    heft_checkpoint_t *b = write(root, "b", true);
    heft_diff_opts_t opts = HEFT_DIFF_OPTS_INIT;
    for (opts.n_threads = 0; opts.n_threads <= 3; opts.n_threads++) {
        seen_t seen = { .n = 0 };
        EXPECT_STATUS(heft_diff_checkpoints(a, b, &opts, see, &seen, &err), HEFT_OK);
        assert_int_equal(seen.n, 3); /* x and y have no partner */
        assert_true(seen.small_has_no_diff);
        assert_int_equal(seen.large.n_differ, 2);
        assert_int_equal(seen.large.first, 35000);
        assert_int_equal(seen.large.max_ulp, 5);
        assert_true(seen.large.mean_ulp == 3.5);
    }
    seen_t seen = { .stop_at = 2 };
    EXPECT_STATUS(heft_diff_checkpoints(a, b, NULL, see, &seen, &err), HEFT_ERR_CANCELED);
    assert_int_equal(seen.n, 2);
    EXPECT_STATUS(heft_diff_checkpoints(a, NULL, NULL, see, &seen, &err), HEFT_ERR_ARGUMENT);
    opts.reserved = 1;
    EXPECT_STATUS(heft_diff_checkpoints(a, b, &opts, see, &seen, &err), HEFT_ERR_ARGUMENT);
    for (long k = 0; k < 3; k++) {
        seen = (seen_t){ .n = 0 };
        heft__alloc_fail_at(k);
        heft_status_t status = heft_diff_checkpoints(a, b, NULL, see, &seen, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_true(k > 0 || status == HEFT_ERR_NOMEM);
    }
    heft_checkpoint_close(a);
    heft_checkpoint_close(b);
    heft_test_rmdir(root);
    assert_int_equal(heft__alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_are_steps_in_the_order_of_values),
        cmocka_unit_test(wide_values_and_sums_do_not_wrap),
        cmocka_unit_test(checkpoints_are_compared_by_name_with_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
