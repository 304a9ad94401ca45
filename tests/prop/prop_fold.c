/* SPDX-License-Identifier: Apache-2.0 */
/* Fold against the interpreter, on many random tapes (tests/support/fold_case.h). */
#include "fold_case.h"
#include "heft_test.h"

static void fold_agrees_with_the_interpreter(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(12000);
    fold_case_stats_t stats = { 0 };
    for (int64_t i = 0; i < n; i++) {
        uint8_t bytes[400];
        uint64_t rng = seed + (uint64_t)i;
        size_t len = (size_t)heft_test_random_in(&rng, 20, sizeof bytes);
        for (size_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)heft_test_random(&rng);
        }
        const char *wrong = fold_case_check(bytes, len, &stats);
        if (wrong != NULL) {
            fail_msg("HEFT_TEST_SEED=%llu: %s", (unsigned long long)(seed + (uint64_t)i), wrong);
        }
    }
    (void)fprintf(stderr,
                  "%llu tapes, %llu writes, %llu pieces, %llu overwrites, %llu undefined reads, "
                  "%llu limits, %llu with bytes\n",
                  (unsigned long long)stats.n_cases, (unsigned long long)stats.n_writes,
                  (unsigned long long)stats.n_pieces, (unsigned long long)stats.n_overwrites,
                  (unsigned long long)stats.n_undefined, (unsigned long long)stats.n_limits,
                  (unsigned long long)stats.n_bytes_cases);
    /* most cases must get to the end, and all kinds of ends must be there */
    assert_true(stats.n_pieces > 0 && stats.n_overwrites > 0 && stats.n_bytes_cases > 0);
    assert_true(stats.n_limits * 10 < stats.n_cases);
    assert_true(n < 100 || stats.n_undefined > 0);
    assert_true(stats.n_undefined * 4 < 3 * stats.n_cases);
    assert_int_equal(heft__alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(fold_agrees_with_the_interpreter) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
