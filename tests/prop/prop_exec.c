/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs against the naive interpreter: random tapes, random bytes, several targets (replicas too),
 * one to three threads. Every byte of every parameter must be the interpreter's, every byte around
 * them untouched, every digest that of the bytes.
 */
#include "ref_reshard.h"

#include "exec/exec.h"

typedef struct targets {
    uint32_t n;
    heft_exec_target_t t[4];
    ref_params_t params[4];
    uint64_t digests[4][REF_MAX_PARAMS];
} targets_t;

static void make_targets(targets_t *targets, const ref_case_t *c, uint64_t *rng)
{
    *targets = (targets_t){ .n = (uint32_t)heft_test_random_in(rng, 1, 4) };
    for (uint32_t t = 0; t < targets->n; t++) {
        int rank = (int)heft_test_random_in(rng, 0, c->n_ranks - 1);
        ref_params_init(&targets->params[t], c, rank);
        targets->t[t] =
            (heft_exec_target_t){ .rank_index = (uint32_t)rank, .params = targets->params[t].data };
        if (heft_test_random_in(rng, 0, 2) > 0) {
            targets->t[t].digests_out = targets->digests[t];
            memset(targets->digests[t], REF_POISON, sizeof targets->digests[t]);
        }
    }
}

static void check_targets(const targets_t *targets, const ref_case_t *c)
{
    for (uint32_t t = 0; t < targets->n; t++) {
        ref_params_check(&targets->params[t], c, (int)targets->t[t].rank_index);
        for (uint32_t p = 0; targets->t[t].digests_out != NULL && p < targets->params[t].n; p++) {
            uint64_t want = heft_digest(targets->params[t].data[p], targets->params[t].n_bytes[p]);
            assert_int_equal(targets->digests[t][p], want);
        }
    }
}

static heft_status_t count_window(void *arg, heft_error_t *err)
{
    (void)err;
    ++*(uint64_t *)arg;
    return HEFT_OK;
}

static void run_case(uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    const ref_opts_t opts = { .n_ranks = 0 };
    ref_case_init(&c, rng, &opts);
    targets_t targets;
    make_targets(&targets, &c, rng);
    heft_exec_opts_t exec_opts = HEFT_EXEC_OPTS_INIT;
    exec_opts.n_threads = (uint32_t)heft_test_random_in(rng, 0, 3);
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, targets.t, targets.n, &exec_opts, &exec, &err), HEFT_OK);
    uint64_t n_windows = 0;
    const heft__exec_window_t window = { .max_bytes = 1,
                                         .between = count_window,
                                         .arg = &n_windows };
    bool fits = true;
    if (heft_test_random_in(rng, 0, 1) > 0) { /* unit by unit */
        EXPECT_STATUS(heft__exec_set_window(exec, &window, &fits, &err), HEFT_OK);
        assert_false(fits);
    }
    for (int run = 0; run < 2; run++) { /* a prepared run is used again, with staging poisoned */
        int64_t n_allocs = heft__alloc_total();
        EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
        assert_int_equal(heft__alloc_total(), n_allocs);
        check_targets(&targets, &c);
        for (uint32_t t = 0; t < targets.n; t++) {
            ref_params_poison(&targets.params[t]);
        }
    }
    heft_exec_destroy(exec);
    for (uint32_t t = 0; t < targets.n; t++) {
        ref_params_fini(&targets.params[t]);
    }
    ref_case_fini(&c);
}

static void exec_writes_what_the_tape_says(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = 0; i < heft_test_cases(400); i++) {
        run_case(&rng);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exec_writes_what_the_tape_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
