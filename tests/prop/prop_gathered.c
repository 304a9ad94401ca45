/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleets in which blocks of known kernels lie with several senders, judged element by element.
 * Every sender plans its own part and runs it, with nothing but its own boxes; the receiver plans
 * its rank, and runs the kernels on what it was sent. What one sender holds must have been sent by
 * it, what several hold by nobody; in the end every byte is the oracle's, and shares of digests,
 * the receiver's among them, combine. The plans of a sender's part and of the rank agree on who
 * sends which bytes of every input.
 */
#include "route_fleet.h"

enum { MAX_INPUTS = 256 };

/* What one rank is sent for its kernels. */
typedef struct gathering {
    heft__gathered_t gathered;
    heft_plan_t *plan; /* of the inputs */
    heft_routes_t *routes;
    uint32_t n_inputs;
    void *inputs[MAX_INPUTS];  /* by name */
    uint64_t sent[MAX_INPUTS]; /* digests, shares combined */
} gathering_t;

/* ---- plans ---- */

static heft_tape_t *place_inputs(const fleet_t *f, const heft_tape_t *inputs)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *copy = NULL;
    heft_tape_t *placed = NULL;
    char *text = NULL;
    EXPECT_STATUS(heft_tape_encode(inputs, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_decode(text, strlen(text), &copy, &err), HEFT_OK);
    EXPECT_STATUS(heft__placement_apply_read(f->placement, copy, &placed, &err), HEFT_OK);
    heft_string_free(text);
    return placed;
}

static void gather_init(gathering_t *g, const fleet_t *f, int rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *g = (gathering_t){ .plan = NULL };
    EXPECT_STATUS(heft__gathered_init(f->c.plan, (uint32_t)rank, f->placement, &g->gathered, &err),
                  HEFT_OK);
    if (g->gathered.n_ops == 0) {
        return;
    }
    heft_tape_t *placed = place_inputs(f, g->gathered.inputs);
    g->plan = make_plan(&placed, 1, 0);
    heft_tape_destroy(placed);
    EXPECT_STATUS(heft_routes_create(g->plan, NULL, f->n_senders, NULL, &g->routes, &err), HEFT_OK);
    g->n_inputs = heft_plan_get_n_params(g->plan, 0);
    assert_true(g->n_inputs <= MAX_INPUTS);
    for (uint32_t k = 0; k < g->n_inputs; k++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(g->plan, 0, k, &info, &err), HEFT_OK);
        g->inputs[k] = malloc((size_t)info.n_bytes + 1);
        assert_non_null(g->inputs[k]);
        memset(g->inputs[k], 0xa5, (size_t)info.n_bytes);
    }
}

static void gather_fini(gathering_t *g)
{
    for (uint32_t k = 0; k < g->n_inputs; k++) {
        free(g->inputs[k]);
    }
    heft_routes_destroy(g->routes);
    heft_plan_destroy(g->plan);
    heft__gathered_fini(&g->gathered);
}

/* ---- senders ---- */

/* Both ends mean the same bytes of every input. */
static void expect_same_regions(const gathering_t *g, const heft_routes_t *part, uint32_t sender)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t k = 0; k < g->n_inputs; k++) {
        heft_route_region_t *a = NULL;
        heft_route_region_t *b = NULL;
        uint32_t n = 0;
        uint32_t m = 0;
        EXPECT_STATUS(heft_routes_make_regions(g->routes, sender, 0, k, &a, &n, &err), HEFT_OK);
        EXPECT_STATUS(heft_routes_make_regions(part, sender, 0, k, &b, &m, &err), HEFT_OK);
        assert_int_equal(n, m);
        assert_true(n == 0 || memcmp(a, b, n * sizeof *a) == 0);
        heft_route_regions_free(a);
        heft_route_regions_free(b);
    }
}

static void send_inputs(const fleet_t *f, gathering_t *g, uint32_t sender)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *part = NULL;
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    uint64_t shares[MAX_INPUTS] = { 0 };
    EXPECT_STATUS(heft_placement_apply_part(f->placement, sender, g->gathered.inputs, &part, &err),
                  HEFT_OK);
    plan_part(f, &part, 1, false, &plan, &routes);
    heft_tape_destroy(part);
    expect_same_regions(g, routes, sender);
    const heft_exec_target_t target = { .params = g->inputs, .digests_out = shares };
    run_share(f, plan, routes, sender, &target, 1, 1);
    for (uint32_t k = 0; k < g->n_inputs; k++) {
        g->sent[k] ^= shares[k];
    }
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
}

/* A sender's part of the ranks' parameters: the same routes, and the same bytes for kernels. */
static void send_params(const fleet_t *f, uint32_t sender, const heft_exec_target_t *targets)
{
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    plan_part(f, f->parts[sender], (uint32_t)f->c.n_ranks, true, &plan, &routes);
    for (uint32_t r = 0; r < (uint32_t)f->c.n_ranks; r++) {
        heft_route_info_t info;
        heft_route_info_t part;
        heft_routes_query(f->routes, sender, r, &info);
        heft_routes_query(routes, sender, r, &part);
        assert_int_equal(part.n_bytes, info.n_bytes);
        assert_int_equal(part.n_load_bytes, info.n_load_bytes);
        assert_string_equal(part.digest != NULL ? part.digest : "",
                            info.digest != NULL ? info.digest : "");
    }
    run_share(f, plan, routes, sender, targets, (uint32_t)f->c.n_ranks, 1);
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
}

/* ---- the receiver ---- */

/* What several would have to send, nobody has: parameters were 0x5a before. */
static void expect_unsent(const fleet_t *f, int rank, const ref_params_t *params)
{
    for (uint32_t p = 0; p < params->n; p++) {
        heft_tensor_info_t info;
        assert_int_equal(heft_plan_query_param(f->plan, (uint32_t)rank, p, &info, NULL), HEFT_OK);
        const int64_t unit = heft_dtype_get_unit_bytes(info.dtype);
        for (int64_t i = 0; i < info.n_elems * unit; i++) {
            const uint64_t mask = f->mask[rank][p][i / unit];
            const uint8_t byte = ((const uint8_t *)params->data[p])[i];
            assert_int_equal(byte, (mask & (mask - 1)) != 0 ? 0x5a : f->c.expected[rank][p][i]);
        }
    }
}

static void run_kernels(const gathering_t *g, void *const *params, uint64_t *shares)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    heft_exec_t *exec = NULL;
    const heft_exec_target_t target = { .params = params, .digests_out = shares };
    const heft_tape_t *const tapes[1] = { g->gathered.local };
    EXPECT_STATUS(heft_plan_create_part(tapes, 1, 0, NULL, &plan, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_create(plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, (const void *const *)g->inputs, &err), HEFT_OK);
    heft_exec_destroy(exec);
    heft_plan_destroy(plan);
}

static void receive(const fleet_t *f, int rank, ref_params_t *params, uint64_t *digests)
{
    static gathering_t g;
    uint64_t shares[REF_MAX_PARAMS] = { 0 };
    int64_t n_bytes = 0;
    gather_init(&g, f, rank);
    expect_unsent(f, rank, params);
    for (uint32_t s = 0; s < f->n_senders && g.plan != NULL; s++) {
        heft_route_info_t info;
        heft_routes_query(f->routes, s, (uint32_t)rank, &info);
        n_bytes += info.n_load_bytes;
        send_inputs(f, &g, s);
    }
    for (uint32_t k = 0; k < g.n_inputs; k++) {
        heft_tensor_info_t info;
        assert_int_equal(heft_plan_query_param(g.plan, 0, k, &info, NULL), HEFT_OK);
        assert_int_equal(g.sent[k], heft_digest(g.inputs[k], info.n_bytes));
        n_bytes -= info.n_bytes;
    }
    assert_true(n_bytes <= 0); /* constants are not counted */
    if (g.plan != NULL) {
        run_kernels(&g, params->data, shares);
    }
    for (uint32_t p = 0; p < params->n; p++) {
        assert_int_equal(digests[p] ^ shares[p],
                         heft_digest(f->c.expected[rank][p], params->n_bytes[p]));
    }
    ref_params_check(params, &f->c, rank);
    gather_fini(&g);
}

static void judge(const fleet_t *f)
{
    static ref_params_t params[REF_MAX_RANKS];
    static uint64_t digests[REF_MAX_RANKS][REF_MAX_PARAMS];
    static uint64_t shares[REF_MAX_RANKS][REF_MAX_PARAMS];
    heft_exec_target_t targets[REF_MAX_RANKS];
    memset(digests, 0, sizeof digests);
    for (int r = 0; r < f->c.n_ranks; r++) {
        ref_params_init(&params[r], &f->c, r);
        for (uint32_t p = 0; p < params[r].n; p++) {
            memset(params[r].data[p], 0x5a, (size_t)params[r].n_bytes[p]);
        }
        targets[r] = (heft_exec_target_t){ .rank_index = (uint32_t)r,
                                           .params = params[r].data,
                                           .digests_out = shares[r] };
    }
    for (uint32_t s = 0; s < f->n_senders; s++) {
        memset(shares, 0, sizeof shares);
        send_params(f, s, targets);
        for (int r = 0; r < f->c.n_ranks; r++) {
            for (uint32_t p = 0; p < params[r].n; p++) {
                digests[r][p] ^= shares[r][p];
            }
        }
    }
    for (int r = 0; r < f->c.n_ranks; r++) {
        receive(f, r, &params[r], digests[r]);
        ref_params_fini(&params[r]);
    }
}

static void kernels_of_several_senders_are_run_by_the_receiver(void **state)
{
    (void)state;
    static fleet_t f;
    uint64_t rng = heft_test_seed();
    int64_t n_gathered = 0;
    int64_t n_refused = 0;
    const int64_t n = heft_test_cases(1500);
    for (int64_t i = 0; i < n; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
        opts.gathers = 1;
        fleet_init(&f, &rng);
        if (f.is_refusable && f.placement != NULL) {
            plan_fleet(&f);
            heft_status_t status =
                heft_routes_create(f.plan, NULL, f.n_senders, &opts, &f.routes, &err);
            if (status == HEFT_OK) {
                judge(&f);
                n_gathered++;
            } else { /* an element of two senders, or a kernel that reads what another one leaves */
                EXPECT_STATUS(status, HEFT_ERR_UNSUPPORTED);
                n_refused++;
            }
        }
        fleet_fini(&f);
    }
    print_message("%lld fleets: in %lld receivers run kernels, %lld refused\n", (long long)n,
                  (long long)n_gathered, (long long)n_refused);
    assert_true(n < 500 || n_gathered > n / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_of_several_senders_are_run_by_the_receiver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
