/* SPDX-License-Identifier: Apache-2.0 */
/* Fold against the interpreter, on many random tapes (tests/support/fold_case.h). */
#include "fold_case.h"
#include "heft_test.h"
#include "tape_builder.h"

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

/* A small block of rows or columns of a matrix. */
static heft_view_t pick_block(const tape_builder_t *tb, uint32_t buffer, uint64_t *rng)
{
    heft_view_t v = tb_all(tb, buffer);
    for (int k = 0; k < 2; k++) {
        int64_t most = heft_test_random_in(rng, 0, 2) == 0 ? v.extent[k] : 4;
        int64_t n = heft_test_random_in(rng, 1, most);
        v = tb_narrow(v, k, heft_test_random_in(rng, 0, v.extent[k] - n), n);
    }
    return heft_test_random_in(rng, 0, 3) == 0 ? tb_step(v, 1, 2) : v;
}

static void write_blocks(tape_builder_t *tb, uint32_t dst, uint32_t src, int n, uint64_t *rng)
{
    for (int i = 0; i < n; i++) {
        heft_view_t to = pick_block(tb, dst, rng);
        heft_view_t from = tb_narrow(tb_all(tb, src), 0, 0, to.extent[0]);
        from = tb_narrow(from, 1, heft_test_random_in(rng, 0, 30 - to.extent[1]), to.extent[1]);
        tb_copy(tb, to, from);
    }
}

/* Hundreds of pieces to one buffer, written in any order, over one another, and read across. */
static void many_definers_agree_with_the_interpreter(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(400) / 100 + 1;
    for (int64_t i = 0; i < n; i++) {
        uint64_t rng = seed + (uint64_t)i;
        tape_builder_t tb;
        tb_init(&tb);
        uint32_t a = tb_source(&tb, "a", HEFT_DTYPE_BF16, TB_SHAPE(50, 30));
        uint32_t b = tb_source(&tb, "b", HEFT_DTYPE_BF16, TB_SHAPE(50, 30));
        uint32_t t = tb_temp(&tb, HEFT_DTYPE_BF16, TB_SHAPE(50, 30));
        uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_BF16, TB_SHAPE(50, 30));
        /* single elements first, so that there are more definers than one block holds */
        for (int64_t e = 0; e < 1500; e += 3) {
            int64_t at = e * 7 % 1500;
            tb_copy(&tb, tb_narrow(tb_reshape(t, TB_SHAPE(1500)), 0, at, 3),
                    tb_flip(tb_narrow(tb_reshape(a, TB_SHAPE(1500)), 0, at, 3), 0));
        }
        write_blocks(&tb, t, b, 60, &rng);
        tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
        write_blocks(&tb, p, a, 60, &rng);
        write_blocks(&tb, p, t, 10, &rng);
        const char *wrong = fold_case_check_tape(tb.tape, (uint64_t)i, NULL);
        if (wrong != NULL) {
            fail_msg("HEFT_TEST_SEED=%llu: %s", (unsigned long long)(seed + (uint64_t)i), wrong);
        }
        tb_fini(&tb);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fold_agrees_with_the_interpreter),
        cmocka_unit_test(many_definers_agree_with_the_interpreter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
