/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of fp8 whose rows lie with two sources: "w", whose inputs both send and the rank
 * quantises itself; "v" is whole at source 1, which quantises it; "r" is copied, and has a row of
 * zeros.
 */
#include "heft_test.h"

#include "plan/plan.h"
#include "sync/delivery.h"
#include "sync/kernels.h"
#include "tape_builder.h"

enum { ROWS = 10, COLUMNS = 8, FIRST = 6, R = 0, VQ, VS, WQ, WS, N_PARAMS };

#define KERNEL "heft.fp8_quantise/1(block=4x4,scale=deepseek)"

static uint16_t values[2][ROWS * COLUMNS]; /* v and w */

static heft_manifest_t *half(uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    const heft_part_t w = { .shape = { .rank = 2, .extent = { ROWS, COLUMNS } },
                            .begin = { rank * FIRST } };
    const heft_shape_t rows = { .rank = 2,
                                .extent = { rank == 0 ? FIRST : ROWS - FIRST, COLUMNS } };
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    if (rank == 1) {
        EXPECT_STATUS(heft_manifest_add(m, "v", HEFT_DTYPE_BF16, &w.shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_add(m, "w", HEFT_DTYPE_BF16, &rows, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(m, "w", &w, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

typedef struct env {
    heft__source_t list[2];
    heft_manifest_t *manifests[2];
    heft__sources_t sources;
    heft_tape_t *tape; /* over whole tensors; taken by the placed one */
    heft_tape_t *placed;
    heft_plan_t *whole;
    heft_plan_t *plan;
} env_t;

static void quantise(tape_builder_t *tb, uint32_t from, const char *codes, const char *scales)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = TB_SHAPE(ROWS, COLUMNS);
    const heft_shape_t blocks = TB_SHAPE(3, 2);
    const heft_view_t in = tb_all(tb, from);
    const heft_view_t out[2] = { tb_all(tb, tb_temp(tb, HEFT_DTYPE_F8_E4M3, shape)),
                                 tb_all(tb, tb_temp(tb, HEFT_DTYPE_F32, blocks)) };
    EXPECT_STATUS(heft_tape_opaque(tb->tape, KERNEL, out, 2, &in, 1, "q:1", &err), HEFT_OK);
    tb_copy(tb, tb_all(tb, tb_param(tb, codes, HEFT_DTYPE_F8_E4M3, shape)), out[0]);
    tb_copy(tb, tb_all(tb, tb_param(tb, scales, HEFT_DTYPE_F32, blocks)), out[1]);
}

static heft_tape_t *make_tape(void)
{
    tape_builder_t tb;
    tb_init(&tb);
    const uint32_t v = tb_source(&tb, "v", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t w = tb_source(&tb, "w", HEFT_DTYPE_BF16, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t r = tb_param(&tb, "r", HEFT_DTYPE_BF16, TB_SHAPE(ROWS + 1, COLUMNS));
    quantise(&tb, v, "vq", "vs");
    quantise(&tb, w, "wq", "ws");
    tb_copy(&tb, tb_narrow(tb_all(&tb, r), 0, 0, ROWS), tb_all(&tb, w));
    tb_fill(&tb, tb_narrow(tb_all(&tb, r), 0, ROWS, 1), 0);
    return tb.tape;
}

static heft_plan_t *plan_of(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_t *plan = NULL;
    EXPECT_STATUS(heft_plan_create(&tape, 1, 0, &opts, &plan, NULL, &err), HEFT_OK);
    return plan;
}

static void start(env_t *e)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t rng = heft_test_seed();
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        values[0][i] = (uint16_t)heft_test_random_in(&rng, 0x3c00, 0x4400);
        values[1][i] = (uint16_t)heft_test_random_in(&rng, 0xbc00, 0xc400);
    }
    *e = (env_t){ .list = { { .rank = 0 }, { .rank = 1 } }, .manifests = { half(0), half(1) } };
    const heft_placement_source_t holders[] = { { .manifest = e->manifests[0] },
                                                { .manifest = e->manifests[1] } };
    e->sources = (heft__sources_t){ .n = 2, .sources = e->list, .manifests = e->manifests };
    EXPECT_STATUS(heft_placement_from_sources(holders, 2, NULL, &e->sources.placement,
                                              &e->sources.whole, NULL, &err),
                  HEFT_OK);
    e->tape = make_tape();
    e->whole = plan_of(e->tape);
    EXPECT_STATUS(heft_placement_apply(e->sources.placement, e->tape, &e->placed, &err), HEFT_OK);
    assert_ptr_equal(heft__tape_get_unplaced(e->placed), e->tape);
    e->plan = plan_of(e->placed);
}

static void stop(env_t *e)
{
    heft_plan_destroy(e->plan);
    heft_plan_destroy(e->whole);
    heft_tape_destroy(e->placed);
    heft_placement_destroy(e->sources.placement);
    heft_manifest_destroy(e->sources.whole);
    heft_manifest_destroy(e->manifests[0]);
    heft_manifest_destroy(e->manifests[1]);
}

/* All that the rank makes. */
typedef struct end {
    heft__gathered_t gathered;
    heft__inputs_t inputs;
    heft__staging_t layout;
    heft_routes_t *routes;
    heft__kernels_t kernels;
} end_t;

static void end_fini(end_t *end)
{
    heft__kernels_fini(&end->kernels);
    heft_routes_destroy(end->routes);
    heft__staging_fini(&end->layout);
    heft__inputs_fini(&end->inputs);
    heft__gathered_fini(&end->gathered);
}

static heft_status_t end_init(const env_t *e, uint32_t source, end_t *end, heft_error_t *err)
{
    *end = (end_t){ .routes = NULL };
    heft_status_t status =
        heft__gathered_init(e->whole, 0, e->sources.placement, &end->gathered, err);
    if (status == HEFT_OK) {
        status =
            heft__inputs_init(e->plan, 0, &e->sources, &end->gathered, source, &end->inputs, err);
    }
    if (status == HEFT_OK) {
        status = heft__staging_init_plan(e->plan, 0, &end->inputs, &end->layout, err);
    }
    if (status == HEFT_OK) {
        status = heft__delivery_route(e->plan, &e->sources, &end->inputs, false, &end->routes, err);
    }
    if (status == HEFT_OK) {
        status = heft__kernels_init(&end->gathered, e->plan, end->routes, &end->kernels, err);
    }
    if (status != HEFT_OK) {
        end_fini(end);
    }
    return status;
}

static uint32_t senders_of(const end_t *end, uint32_t param)
{
    uint32_t n = 0;
    (void)heft_routes_get_param_senders(end->routes, 0, param, &n);
    return n;
}

static void inputs_come_from_all_who_hold_them(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_route_info_t info;
    env_t e;
    end_t end;
    start(&e);
    EXPECT_STATUS(end_init(&e, HEFT__ALL_SOURCES, &end, &err), HEFT_OK);
    assert_int_equal(end.gathered.n_ops, 1);
    assert_int_equal(end.inputs.n, 1);
    assert_int_equal(end.inputs.n_gathered, 1);
    assert_string_equal(end.inputs.items[0].name, "wq (input 0 of kernel 1)");
    assert_int_equal(end.layout.sizes[N_PARAMS], ROWS * COLUMNS * 2);
    assert_int_equal(senders_of(&end, R), 2);
    assert_int_equal(senders_of(&end, VQ), 1);
    assert_int_equal(senders_of(&end, WQ), 0);
    assert_int_equal(senders_of(&end, WS), 0);
    heft_routes_query(end.routes, 0, 0, &info);
    assert_int_equal(info.n_load_bytes, FIRST * COLUMNS * 2);
    heft_routes_query(end.routes, 1, 0, &info);
    assert_int_equal(info.n_load_bytes, (ROWS - FIRST) * COLUMNS * 2);
    assert_false(heft__kernels_write(&end.kernels, VQ));
    assert_true(heft__kernels_write(&end.kernels, WQ));
    assert_int_equal(end.kernels.n_bytes, ROWS * COLUMNS + 3 * 2 * 4);
    end_fini(&end);
    /* a source that plans its part alone knows the same inputs, and its own share of them */
    EXPECT_STATUS(end_init(&e, 1, &end, &err), HEFT_OK);
    assert_int_equal(end.layout.sizes[N_PARAMS], ROWS * COLUMNS * 2);
    heft_routes_query(end.inputs.routes, 1, 0, &info);
    assert_int_equal(info.n_bytes, (ROWS - FIRST) * COLUMNS * 2);
    end_fini(&end);
    stop(&e);
}

/* What one source that holds everything would send. */
static void run_whole(const env_t *e, const heft__staging_t *layout, uint8_t *memory,
                      uint64_t *digests)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_exec_t *exec = NULL;
    void *params[N_PARAMS];
    const void *const sources[] = { values[0], values[1] };
    for (uint32_t i = 0; i < N_PARAMS; i++) {
        params[i] = memory + layout->offsets[i];
    }
    const heft_exec_target_t target = { .params = params, .digests_out = digests };
    EXPECT_STATUS(heft_exec_create(e->whole, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    heft_exec_destroy(exec);
}

static void kernels_run_in_staging(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    end_t end;
    uint64_t whole[N_PARAMS];
    start(&e);
    EXPECT_STATUS(end_init(&e, HEFT__ALL_SOURCES, &end, &err), HEFT_OK);
    const size_t bytes = (size_t)end.layout.bytes;
    uint8_t *expected = calloc(1, bytes);
    uint8_t *staging[2] = { calloc(1, bytes), calloc(1, bytes) };
    assert_non_null(expected);
    run_whole(&e, &end.layout, expected, whole);
    for (int round = 0; round < 4; round++) { /* staging moves, and comes back */
        uint8_t *base = staging[round / 2];
        uint64_t digests[N_PARAMS] = { 0 };
        assert_non_null(base);
        memset(base, 0, bytes);
        memcpy(base + end.layout.offsets[N_PARAMS], values[1], sizeof values[1]);
        EXPECT_STATUS(
            heft__kernels_run(&end.kernels, &end.layout, &end.inputs, base, 2, digests, &err),
            HEFT_OK);
        for (uint32_t p = 0; p < N_PARAMS; p++) {
            const bool is_run = p == WQ || p == WS;
            const int64_t at = end.layout.offsets[p];
            assert_int_equal(digests[p], is_run ? whole[p] : 0);
            if (is_run) {
                assert_memory_equal(base + at, expected + at, (size_t)end.layout.sizes[p]);
            } else {
                assert_int_equal(heft_digest(base + at, end.layout.sizes[p]), 0); /* untouched */
            }
        }
    }
    free(expected);
    free(staging[0]);
    free(staging[1]);
    end_fini(&end);
    stop(&e);
}

static void what_nobody_writes_is_a_bug(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__gathered_t none = { .n_ops = 0 };
    heft__kernels_t kernels;
    env_t e;
    end_t end;
    start(&e);
    EXPECT_STATUS(end_init(&e, HEFT__ALL_SOURCES, &end, &err), HEFT_OK);
    EXPECT_STATUS(heft__kernels_init(&none, e.plan, end.routes, &kernels, &err), HEFT_ERR_INTERNAL);
    EXPECT_MESSAGE("parameter \"wq\": kernels write 0 elements, 80 are nobody's");
    end_fini(&end);
    stop(&e);
}

static heft_status_t make_and_run(const env_t *e, uint32_t source, uint8_t *staging,
                                  heft_error_t *err)
{
    end_t end;
    uint64_t digests[N_PARAMS] = { 0 };
    heft_status_t status = end_init(e, source, &end, err);
    if (status == HEFT_OK) {
        status =
            heft__kernels_run(&end.kernels, &end.layout, &end.inputs, staging, 1, digests, err);
        end_fini(&end);
    }
    return status;
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    const uint32_t sources[] = { HEFT__ALL_SOURCES, 0 };
    env_t e;
    start(&e);
    uint8_t *staging = calloc(1, 1 << 16);
    assert_non_null(staging);
    for (int i = 0; i < 2; i++) {
        heft_status_t status = HEFT_ERR_NOMEM;
        long k = 0;
        for (; status != HEFT_OK; k++) {
            heft_error_t err = HEFT_ERROR_INIT;
            const int64_t live = heft__alloc_live();
            heft__alloc_fail_at(k);
            status = make_and_run(&e, sources[i], staging, &err);
            heft__alloc_fail_at(-1);
            assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
            assert_int_equal(heft__alloc_live(), live);
        }
        assert_true(k > 50);
    }
    free(staging);
    stop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_come_from_all_who_hold_them),
        cmocka_unit_test(kernels_run_in_staging),
        cmocka_unit_test(what_nobody_writes_is_a_bug),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
