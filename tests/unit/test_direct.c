/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is sent from where it lies: exactly the parameters whose bytes are a few runs of one
 * source's tensors, and the bytes that are found are those that a run writes, wherever chunks are
 * cut.
 */
#include "heft_test.h"

#include "exec/exec.h"
#include "sync/direct.h"
#include "tape_builder.h"

#include <stdlib.h>

enum { ROWS = 900, COLUMNS = 250, BYTES = 2 * ROWS * COLUMNS, N_PARAMS = 7 };

/* Parameters in the order of their names. */
static const struct {
    const char *name;
    bool is_direct;
} params[N_PARAMS] = {
    { "cast", false },       /* to f32 */
    { "fused", true },       /* one below the other; some rows, so that no run ends at a chunk */
    { "padded", false },     /* zeros behind */
    { "shared", false },     /* half of it from another source rank */
    { "shuffled", false },   /* row by row: runs of 500 bytes */
    { "transposed", false }, /* no runs at all */
    { "whole", true },
};

typedef struct env {
    heft_plan_t *plan;
    heft_routes_t *routes;
    heft__inputs_t inputs;
    heft__staging_t layout;
    heft__delivery_t delivery;
    uint8_t *data[3];
} env_t;

static void copy_rows(tape_builder_t *tb, uint32_t param, int64_t to, uint32_t source, int64_t from,
                      int64_t n)
{
    tb_copy(tb, tb_narrow(tb_all(tb, param), 0, to, n), tb_narrow(tb_all(tb, source), 0, from, n));
}

static heft_tape_t *make_tape(void)
{
    tape_builder_t tb;
    tb_init(&tb);
    const uint32_t a = tb_source(&tb, "rank-0.a", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t b = tb_source(&tb, "rank-0.b", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t c = tb_source(&tb, "rank-1.c", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t cast = tb_param(&tb, "cast", HEFT_DTYPE_F32, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t fused = tb_param(&tb, "fused", HEFT_DTYPE_BF16, TB_SHAPE(2 * ROWS - 7, COLUMNS));
    const uint32_t padded = tb_param(&tb, "padded", HEFT_DTYPE_BF16, TB_SHAPE(ROWS + 9, COLUMNS));
    const uint32_t shuffled = tb_param(&tb, "shuffled", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t shared = tb_param(&tb, "shared", HEFT_DTYPE_BF16, TB_SHAPE(2 * ROWS, COLUMNS));
    const uint32_t turned = tb_param(&tb, "transposed", HEFT_DTYPE_BF16, TB_SHAPE(COLUMNS, ROWS));
    const uint32_t whole = tb_param(&tb, "whole", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    tb_copy(&tb, tb_all(&tb, cast), tb_all(&tb, a));
    copy_rows(&tb, fused, ROWS - 7, b, 0, ROWS);
    copy_rows(&tb, fused, 0, a, 7, ROWS - 7);
    copy_rows(&tb, padded, 0, a, 0, ROWS);
    tb_fill(&tb, tb_narrow(tb_all(&tb, padded), 0, ROWS, 9), 0);
    tb_copy(&tb, tb_flip(tb_all(&tb, shuffled), 0), tb_all(&tb, b));
    copy_rows(&tb, shared, 0, a, 0, ROWS);
    copy_rows(&tb, shared, ROWS, c, 0, ROWS);
    tb_copy(&tb, tb_swap(tb_all(&tb, turned), 0, 1), tb_all(&tb, a));
    tb_copy(&tb, tb_all(&tb, whole), tb_all(&tb, b));
    return tb.tape;
}

static void start(env_t *e)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_tape_t *tape = make_tape();
    const heft_tape_t *const tapes[1] = { tape };
    *e = (env_t){ .plan = NULL };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &e->plan, NULL, &err), HEFT_OK);
    heft_tape_destroy(tape);
    EXPECT_STATUS(heft_routes_create(e->plan, NULL, 2, NULL, &e->routes, &err), HEFT_OK);
    EXPECT_STATUS(heft__staging_init_plan(e->plan, 0, NULL, &e->layout, &err), HEFT_OK);
    e->delivery = (heft__delivery_t){ .routes = e->routes,
                                      .inputs = &e->inputs,
                                      .layout = &e->layout,
                                      .plan = e->plan,
                                      .n_sources = 2 };
    uint64_t x = 1;
    for (int s = 0; s < 3; s++) {
        e->data[s] = malloc(BYTES);
        assert_non_null(e->data[s]);
        for (int i = 0; i < BYTES; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            e->data[s][i] = (uint8_t)(x >> 56);
        }
    }
}

static void stop(env_t *e)
{
    for (int s = 0; s < 3; s++) {
        free(e->data[s]);
    }
    heft__staging_fini(&e->layout);
    heft_routes_destroy(e->routes);
    heft_plan_destroy(e->plan);
}

static void runs_are_found_and_nothing_else(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    heft__direct_t direct = { .is_used = false };
    start(&e);
    assert_int_equal(e.layout.n_params, N_PARAMS);
    EXPECT_STATUS(heft__direct_init(e.plan, &e.delivery, 0, &direct, &err), HEFT_OK);
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        assert_string_equal(heft__delivery_get_name(&e.delivery, p), params[p].name);
        assert_false(heft__direct_has(&direct, p)); /* not in this stage */
    }
    direct.is_used = true;
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        assert_int_equal(heft__direct_has(&direct, p), params[p].is_direct);
    }
    assert_false(heft__direct_has(&direct, N_PARAMS));
    heft__direct_fini(&direct);
    EXPECT_STATUS(heft__direct_init(e.plan, &e.delivery, 1, &direct, &err), HEFT_OK);
    assert_int_equal(direct.n_runs, 0); /* rank 1 has half of one parameter */
    heft__direct_fini(&direct);
    stop(&e);
}

static bool leave_direct(const void *arg, uint32_t rank_index, uint32_t param)
{
    return rank_index == 0 && heft__direct_has(arg, param);
}

/* All that source 0 writes, and its digests; without what `direct` has. */
static void run(const env_t *e, const heft__direct_t *direct, uint8_t *memory, uint64_t *digests)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    heft_exec_t *exec = NULL;
    void *pointers[N_PARAMS];
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        const bool is_left = direct != NULL && heft__direct_has(direct, p);
        pointers[p] = is_left ? NULL : memory + e->layout.offsets[p];
    }
    opts.routes = e->routes;
    const heft_exec_target_t target = { .params = pointers, .digests_out = digests };
    EXPECT_STATUS(heft__exec_create_some(e->plan, &target, 1, &opts,
                                         direct != NULL ? leave_direct : NULL, direct, &exec, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, (const void *const *)e->data, &err), HEFT_OK);
    heft_exec_destroy(exec);
}

/* Cut into chunks of n bytes. */
static void fetch_all(const env_t *e, const heft__direct_t *direct, int64_t n, uint8_t *memory,
                      uint64_t *digests)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint8_t *room = malloc((size_t)n);
    assert_non_null(room);
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        const int64_t bytes = e->layout.sizes[p];
        for (int64_t at = 0; heft__direct_has(direct, p) && at < bytes; at += n) {
            const int64_t some = heft__min_i64(n, bytes - at);
            const uint8_t *found = NULL;
            uint64_t crc64 = 0;
            EXPECT_STATUS(heft__direct_find(direct, p, (const void *const *)e->data, at, some, room,
                                            &found, &err),
                          HEFT_OK);
            assert_int_equal(heft__direct_sum(found, some, &crc64), heft__crc32c(0, found, some));
            assert_int_equal(heft__direct_sum(found, some, NULL), heft__crc32c(0, found, some));
            memcpy(memory + e->layout.offsets[p] + at, found, (size_t)some);
            digests[p] ^= heft__crc64_shift(crc64, bytes - (at + some));
        }
    }
    free(room);
}

static void what_is_found_is_what_a_run_writes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    heft__direct_t direct;
    uint64_t wanted[N_PARAMS] = { 0 };
    start(&e);
    uint8_t *whole = calloc(1, (size_t)e.layout.bytes);
    uint8_t *memory = malloc((size_t)e.layout.bytes);
    assert_non_null(whole);
    assert_non_null(memory);
    EXPECT_STATUS(heft__direct_init(e.plan, &e.delivery, 0, &direct, &err), HEFT_OK);
    direct.is_used = true;
    run(&e, NULL, whole, wanted);
    static const int64_t cuts[] = { 1 << 20, 200001, 65536, 4099 };
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        uint64_t digests[N_PARAMS] = { 0 };
        memset(memory, 0, (size_t)e.layout.bytes);
        run(&e, &direct, memory, digests);
        for (uint32_t p = 0; p < N_PARAMS; p++) {
            assert_true(!params[p].is_direct || digests[p] == 0);
        }
        fetch_all(&e, &direct, cuts[c], memory, digests);
        assert_memory_equal(memory, whole, (size_t)e.layout.bytes);
        assert_memory_equal(digests, wanted, sizeof digests);
    }
    const uint8_t *found = NULL;
    uint8_t *const kept = e.data[1];
    e.data[1] = NULL;
    EXPECT_STATUS(heft__direct_find(&direct, N_PARAMS - 1, (const void *const *)e.data, 0, 1, NULL,
                                    &found, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source 1 is NULL");
    e.data[1] = kept;
    heft__direct_fini(&direct);
    free(whole);
    free(memory);
    stop(&e);
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_ERR_NOMEM;
    env_t e;
    start(&e);
    const int64_t before = heft__alloc_live();
    for (long k = 0; status != HEFT_OK; k++) {
        heft__direct_t direct = { .is_used = false };
        heft__alloc_fail_at(k);
        status = heft__direct_init(e.plan, &e.delivery, 0, &direct, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        heft__direct_fini(&direct);
        assert_int_equal(heft__alloc_live(), before);
    }
    stop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_found_and_nothing_else),
        cmocka_unit_test(what_is_found_is_what_a_run_writes),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
