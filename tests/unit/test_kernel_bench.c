/* SPDX-License-Identifier: Apache-2.0 */
/* heft_bench_run: what it reports and what it refuses. No figure is judged here. */
#include "heft_test.h"

#include "heft/bench.h"

typedef struct seen {
    int n;
    int n_bad;
    char names[64][32];
} seen_t;

static void on_result(void *arg, const heft_bench_result_t *r)
{
    seen_t *seen = arg;
    (void)snprintf(seen->names[seen->n++], sizeof seen->names[0], "%s", r->name);
    seen->n_bad += !(r->gb_per_s > 0 && r->ratio > 0 && r->ratio_min <= r->ratio &&
                     r->ratio <= r->ratio_max && r->bytes > 0 && r->text[0] != '\0');
}

static bool has(const seen_t *seen, const char *name)
{
    for (int i = 0; i < seen->n; i++) {
        if (strcmp(seen->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void every_benchmark_reports_once(void **state)
{
    (void)state;
    static const char *const promised[] = { "memcpy",        "copy_contiguous", "scatter_256",
                                            "column_split",  "transpose_16",    "transpose_8",
                                            "transpose_32",  "lane_interleave", "unstack_axis1",
                                            "cast_f32_bf16", "cast_bf16_f32",   "crc_copy",
                                            "crc64_copy",    "crc64_read",      "gather_256" };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    opts.bytes = 4 << 20;
    opts.runs = 1;
    opts.n_threads = 2;
    seen_t seen = { .n = 0 };
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_OK);
    assert_int_equal(seen.n_bad, 0);
    for (size_t i = 0; i < sizeof promised / sizeof promised[0]; i++) {
        assert_true(has(&seen, promised[i]));
    }
}

static void only_one_can_be_asked_for(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    opts.bytes = 4 << 20;
    opts.runs = 2;
    opts.only = "transpose_16";
    seen_t seen = { .n = 0 };
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_OK);
    assert_int_equal(seen.n, 1);
    assert_string_equal(seen.names[0], "transpose_16");
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    seen_t seen = { .n = 0 };
    opts.only = "no_such_thing";
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("no_such_thing");
    opts = (heft_bench_opts_t)HEFT_BENCH_OPTS_INIT;
    opts.bytes = 1000;
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_ERR_ARGUMENT);
    opts = (heft_bench_opts_t)HEFT_BENCH_OPTS_INIT;
    opts.runs = 100000;
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_ERR_ARGUMENT);
    opts = (heft_bench_opts_t)HEFT_BENCH_OPTS_INIT;
    opts.size = 3;
    EXPECT_STATUS(heft_bench_run(&opts, on_result, &seen, &err), HEFT_ERR_ARGUMENT);
    assert_int_equal(seen.n, 0);
}

static void failed_allocations_are_reported_and_leave_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    opts.bytes = 4 << 20;
    opts.runs = 1;
    opts.only = "memcpy";
    int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        seen_t seen = { .n = 0 };
        heft__alloc_fail_at(k);
        heft_status_t status = heft_bench_run(&opts, on_result, &seen, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 0);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_benchmark_reports_once),
        cmocka_unit_test(only_one_can_be_asked_for),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(failed_allocations_are_reported_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
