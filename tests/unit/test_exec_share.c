/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of one sender's share: what it writes and nothing else, digests that combine, checks and
 * known kernels where they belong. Routes packed and unpacked. */
#include "plan_fixture.h"

#include "exec/exec.h"
#include "heft/exec.h"

enum { MAX_SOURCES = 8, MAX_PARAMS = 8, MAX_BYTES = 4096, POISON = 0xa5 };

typedef struct memory {
    uint8_t source[MAX_SOURCES][MAX_BYTES];
    uint8_t param[MAX_PARAMS][MAX_BYTES];
    uint64_t digest[MAX_PARAMS];
} memory_t;

static memory_t whole;
static memory_t shared;

static void fill(memory_t *m)
{
    uint64_t rng = 7;
    for (size_t s = 0; s < MAX_SOURCES; s++) {
        for (size_t b = 0; b < MAX_BYTES; b++) {
            m->source[s][b] = (uint8_t)(heft_test_random(&rng) & 0x3f); /* small numbers */
        }
    }
    memset(m->param, POISON, sizeof m->param);
}

/* What a run tells of parameters that are whole, and what they were then. */
typedef struct told {
    const memory_t *memory;
    int times[MAX_PARAMS];
    uint8_t seen[MAX_PARAMS][MAX_BYTES];
} told_t;

static told_t told;

static void note_param(void *arg, uint32_t rank_index, uint32_t param)
{
    told_t *t = arg;
    assert_int_equal(rank_index, 0);
    t->times[param]++;
    memcpy(t->seen[param], t->memory->param[param], MAX_BYTES);
}

/* Each that was written, once, when nothing of it was missing any more. */
static void expect_told(const heft_exec_t *exec, const fx_t *fx)
{
    for (uint32_t p = 0; p < heft_plan_get_n_params(fx->plan, 0); p++) {
        uint64_t unit;
        const bool is_written = heft__exec_find_last_unit(exec, 0, p, &unit);
        assert_int_equal(told.times[p], is_written);
        if (is_written) {
            assert_memory_equal(told.seen[p], told.memory->param[p], MAX_BYTES);
        }
    }
}

/* The share of one sender; NULL: all. Only the sources of that sender are there. */
static heft_status_t run(const fx_t *fx, const heft_routes_t *routes, uint32_t sender, memory_t *m,
                         heft_error_t *err)
{
    const void *sources[MAX_SOURCES] = { NULL };
    void *params[MAX_PARAMS];
    for (uint32_t s = 0; s < fx_info(fx).n_sources; s++) {
        heft_tensor_info_t info;
        assert_int_equal(heft_plan_query_source(fx->plan, s, &info, NULL), HEFT_OK);
        const bool is_mine = routes == NULL || (uint32_t)(info.name[5] - '0') == sender;
        sources[s] = is_mine ? m->source[s] : NULL;
    }
    for (uint32_t p = 0; p < MAX_PARAMS; p++) {
        heft_route_info_t info = { .n_params = 1 };
        if (routes != NULL) {
            heft_routes_query_param(routes, sender, 0, p, &info);
        }
        params[p] = info.n_params > 0 ? m->param[p] : NULL;
    }
    const heft_exec_target_t target = { .params = params, .digests_out = m->digest };
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    heft_exec_t *exec = NULL;
    opts.routes = routes;
    opts.sender = sender;
    heft_status_t status = heft_exec_create(fx->plan, &target, 1, &opts, &exec, err);
    told = (told_t){ .memory = m };
    if (status == HEFT_OK) {
        status = heft__exec_set_on_param(exec, note_param, &told, err);
    }
    if (status == HEFT_OK) {
        status = heft_exec_run(exec, sources, err);
    }
    if (status == HEFT_OK) {
        expect_told(exec, fx);
    }
    heft_exec_destroy(exec);
    return status;
}

/* The shares of all senders, in an order of one's own, are the whole. */
static void expect_whole(fx_t *fx, uint32_t n_senders)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    uint64_t combined[MAX_PARAMS] = { 0 };
    (void)fx_plan(fx, HEFT_OK);
    fill(&whole);
    fill(&shared);
    EXPECT_STATUS(heft_routes_create(fx->plan, NULL, n_senders, NULL, &routes, &err), HEFT_OK);
    EXPECT_STATUS(run(fx, NULL, 0, &whole, &err), HEFT_OK);
    for (uint32_t k = n_senders; k-- > 0;) {
        EXPECT_STATUS(run(fx, routes, k, &shared, &err), HEFT_OK);
        for (uint32_t p = 0; p < heft_plan_get_n_params(fx->plan, 0); p++) {
            combined[p] ^= shared.digest[p];
        }
    }
    for (uint32_t p = 0; p < heft_plan_get_n_params(fx->plan, 0); p++) {
        assert_int_equal(combined[p], whole.digest[p]);
        assert_memory_equal(shared.param[p], whole.param[p], MAX_BYTES);
    }
    heft_routes_destroy(routes);
}

static void shares_make_the_whole(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "8,6");
    heft_view_t a = fx_source(&fx, "rank-0.a", "3,6");
    heft_view_t b = fx_source(&fx, "rank-2.b", "6,3");
    fx_copy(&fx, fx_narrow(p, 0, 0, 3), a, "");
    fx_copy(&fx, fx_narrow(p, 0, 3, 6), fx_transpose(b, 0, 1), "");
    fx_fill(&fx, fx_narrow(p, 0, 6, 8), 0x4000, "");
    fx_fill(&fx, fx_param(&fx, "q", "5"), 0x3f80, "");
    fx_copy(&fx, fx_param(&fx, "r", "6"), fx_select(a, 0, 1), "");
    expect_whole(&fx, 4);
    fx_fini(&fx);
}

static void a_share_leaves_the_rest_alone(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "8");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), fx_source(&fx, "rank-0.a", "4"), "");
    fx_copy(&fx, fx_narrow(p, 0, 4, 8), fx_source(&fx, "rank-1.a", "4"), "");
    fx_copy(&fx, fx_param(&fx, "q", "2"), fx_source(&fx, "rank-0.q", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    fill(&shared);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 2, NULL, &routes, &err), HEFT_OK);
    EXPECT_STATUS(run(&fx, routes, 1, &shared, &err), HEFT_OK);
    uint8_t poison[MAX_BYTES];
    memset(poison, POISON, sizeof poison);
    assert_memory_equal(shared.param[0], poison, 8);
    assert_memory_equal(shared.param[0] + 8, shared.source[2], 8);
    assert_memory_equal(shared.param[0] + 16, poison, MAX_BYTES - 16);
    assert_memory_equal(shared.param[1], poison, MAX_BYTES);
    assert_int_equal(shared.digest[1], 0);
    uint8_t zeros[16] = { 0 };
    memcpy(zeros + 8, shared.source[2], 8);
    assert_int_equal(shared.digest[0], heft_digest(zeros, 16));
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

static void write_tied(fx_t *fx)
{
    heft_view_t p = fx_param(fx, "p", "8");
    fx_copy(fx, fx_narrow(p, 0, 0, 4), fx_source(fx, "rank-0.lost", "4"), "");
    fx_copy(fx, fx_narrow(p, 0, 0, 4), fx_source(fx, "rank-0.kept", "4"), "");
    fx_copy(fx, fx_narrow(p, 0, 4, 8), fx_source(fx, "rank-1.other", "4"), "");
    fx_except(fx, HEFT_EXCEPTION_EQUAL, "p", "tied");
}

static void a_share_has_its_checks(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    fx_t fx;
    fx_init(&fx);
    write_tied(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 2, NULL, &routes, &err), HEFT_OK);
    fill(&shared); /* kept, lost, other */
    EXPECT_STATUS(run(&fx, routes, 1, &shared, &err), HEFT_OK);
    EXPECT_STATUS(run(&fx, routes, 0, &shared, &err), HEFT_ERR_MISMATCH);
    memcpy(shared.source[1], shared.source[0], 8);
    EXPECT_STATUS(run(&fx, routes, 0, &shared, &err), HEFT_OK);
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

/* The kernel of w reads rows of sender 0 alone, of a tensor that both hold. */
static void a_share_has_its_kernels(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fx_t fx;
    fx_init(&fx);
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "8,4");
    fx_copy(&fx, fx_narrow(t, 0, 0, 4), fx_source(&fx, "rank-0.w", "4,4"), "");
    fx_copy(&fx, fx_narrow(t, 0, 4, 8), fx_source(&fx, "rank-1.w", "4,4"), "");
    for (int i = 0; i < 2; i++) {
        heft_view_t from = fx_narrow(t, 0, 4 * i, 4 * i + 4);
        heft_view_t dsts[2] = { fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "4,4"),
                                fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, "1,1") };
        EXPECT_STATUS(heft_tape_opaque(fx.tape, "heft.fp8_quantise/1(block=4x4,scale=deepgemm)",
                                       dsts, 2, &from, 1, "q:1", &err),
                      HEFT_OK);
        fx_copy(&fx,
                fx_buffer(&fx, HEFT_BUFFER_PARAM, i == 0 ? "w" : "x", HEFT_DTYPE_F8_E4M3, "4,4"),
                dsts[0], "");
        fx_copy(&fx, fx_buffer(&fx, HEFT_BUFFER_PARAM, i == 0 ? "s" : "t", HEFT_DTYPE_F32, "1,1"),
                dsts[1], "");
    }
    expect_whole(&fx, 2);
    fx_fini(&fx);
}

static void a_share_of_other_routes_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    fx_t fx;
    fx_t other;
    fx_init(&fx);
    fx_init(&other);
    write_tied(&fx);
    write_tied(&other);
    (void)fx_plan(&fx, HEFT_OK);
    (void)fx_plan(&other, HEFT_OK);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 2, NULL, &routes, &err), HEFT_OK);
    EXPECT_STATUS(run(&other, routes, 0, &shared, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("another plan");
    EXPECT_STATUS(run(&fx, routes, 2, &shared, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("sender 2, the routes have 2");
    EXPECT_STATUS(run(&fx, NULL, 1, &shared, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("sender 1 of no routes");
    heft_routes_destroy(routes);
    fx_fini(&fx);
    fx_fini(&other);
}

/* ---- packed ---- */

static int pick(uint64_t *rng, int low, int high)
{
    return (int)heft_test_random_in(rng, low, high);
}

/* A region of up to 5 loops within MAX_BYTES, and its bytes one by one. */
static heft_route_region_t random_region(uint64_t *rng, int64_t *bytes, uint32_t *n_out)
{
    heft_route_region_t r = { .run_bytes = pick(rng, 1, 9) };
    int64_t span = r.run_bytes;
    int n_loops = pick(rng, 0, 5);
    for (int k = n_loops; k-- > 0;) {
        const int64_t extent = pick(rng, 1, 4);
        const int64_t stride = span + pick(rng, 0, 3);
        if (stride * extent > MAX_BYTES) {
            break;
        }
        for (int d = r.n_loops++; d > 0; d--) {
            r.extent[d] = r.extent[d - 1];
            r.stride[d] = r.stride[d - 1];
        }
        r.extent[0] = extent;
        r.stride[0] = stride;
        span = stride * (extent - 1) + span;
    }
    r.offset = pick(rng, 0, (int)(MAX_BYTES - span));
    int64_t n_runs = 1;
    for (int k = 0; k < r.n_loops; k++) {
        n_runs *= r.extent[k];
    }
    for (int64_t i = 0; i < n_runs; i++) {
        int64_t at = r.offset;
        int64_t rest = i;
        for (int k = r.n_loops; k-- > 0;) {
            at += rest % r.extent[k] * r.stride[k];
            rest /= r.extent[k];
        }
        for (int64_t b = 0; b < r.run_bytes; b++) {
            bytes[(*n_out)++] = at + b;
        }
    }
    return r;
}

static void packed_routes_are_their_runs(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = 0; i < heft_test_cases(3000); i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        static int64_t bytes[3 * MAX_BYTES];
        static uint8_t packed[3 * MAX_BYTES];
        static uint8_t param[MAX_BYTES];
        static uint8_t expected[MAX_BYTES];
        heft_route_region_t regions[3];
        uint32_t n_bytes = 0;
        const uint32_t n = (uint32_t)pick(&rng, 1, 3);
        for (uint32_t k = 0; k < n; k++) {
            regions[k] = random_region(&rng, bytes, &n_bytes);
        }
        assert_int_equal(heft_route_regions_get_n_bytes(regions, n), n_bytes);
        fill(&shared);
        const int64_t at = heft_test_random_in(&rng, 0, n_bytes);
        const int64_t count = heft_test_random_in(&rng, 0, n_bytes - at);
        memset(packed, POISON, sizeof packed);
        EXPECT_STATUS(heft_route_pack(regions, n, shared.source[0], at, packed, count, &err),
                      HEFT_OK);
        for (int64_t b = 0; b < count; b++) {
            assert_int_equal(packed[b], shared.source[0][bytes[at + b]]);
        }
        assert_int_equal(packed[count], POISON);
        memset(param, POISON, sizeof param);
        memset(expected, POISON, sizeof expected);
        for (int64_t b = 0; b < count; b++) {
            packed[b] = shared.source[0][bytes[at + b]]; /* regions here may overlap */
            expected[bytes[at + b]] = packed[b];
        }
        EXPECT_STATUS(heft_route_unpack(regions, n, param, at, packed, count, &err), HEFT_OK);
        assert_memory_equal(param, expected, MAX_BYTES);
        EXPECT_STATUS(heft_route_pack(regions, n, param, at, packed, n_bytes - at + 1, &err),
                      HEFT_ERR_ARGUMENT);
        EXPECT_STATUS(heft_route_unpack(regions, n, param, -1, packed, 1, &err), HEFT_ERR_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_make_the_whole),
        cmocka_unit_test(a_share_leaves_the_rest_alone),
        cmocka_unit_test(a_share_has_its_checks),
        cmocka_unit_test(a_share_has_its_kernels),
        cmocka_unit_test(a_share_of_other_routes_is_refused),
        cmocka_unit_test(packed_routes_are_their_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
