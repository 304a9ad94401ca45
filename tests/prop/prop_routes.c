/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleets of several senders, judged element by element. Random tapes (several ranks, fusions,
 * transposes, casts, programs, fills, kernels) read whole tensors; random trainers hold boxes of
 * them: uneven rows, meshes, replicas, stages, blocks in turn, any grid. The judge knows of every
 * element of every parameter what its bytes are (the interpreter of tapes) and who must send it
 * (the same interpreter on sets of senders). Every sender runs alone, in any order, with nothing
 * but its own boxes: each byte must be written once, by whom the judge says, and lie in the
 * regions of its route; shares of digests combine; packed routes rebuild the parameters. What the
 * routes refuse must need two senders, and the other way round.
 */
#include "route_fleet.h"

/* ---- who sends what, as the judge says ---- */

static uint32_t lowest_bit(uint64_t bits)
{
    uint32_t i = 0;
    while ((bits >> i & 1) == 0) {
        i++;
    }
    return i;
}

static uint64_t needs_of(const fleet_t *f, int rank, uint32_t param)
{
    heft_tensor_info_t info;
    uint64_t all = 0;
    assert_int_equal(heft_plan_query_param(f->plan, (uint32_t)rank, param, &info, NULL), HEFT_OK);
    for (int64_t i = 0; i < info.n_elems; i++) {
        all |= f->mask[rank][param][i];
    }
    return all;
}

/* The sender of constants of a parameter. */
static uint32_t sender_of_constants(const fleet_t *f, int rank, uint32_t param)
{
    uint64_t all = needs_of(f, rank, param);
    for (uint32_t p = 0; all == 0 && p < f->c.n_params[rank]; p++) {
        all = needs_of(f, rank, p); /* of the first parameter that anybody sends something of */
    }
    return all != 0 ? lowest_bit(all) : 0;
}

/* ---- running ---- */

typedef struct run {
    heft_exec_target_t targets[MAX_TARGETS];
    ref_params_t params[MAX_TARGETS];
    uint64_t digests[MAX_TARGETS][REF_MAX_PARAMS];
    uint32_t n;
} run_t;

static void run_sender(const fleet_t *f, uint32_t sender, const run_t *run, uint32_t n_threads)
{
    run_share(f, f->plan, f->routes, sender, run->targets, run->n, n_threads);
}

/* A target for each rank, and one rank twice. */
static void run_init(run_t *run, const fleet_t *f, uint64_t *rng)
{
    run->n = (uint32_t)f->c.n_ranks + 1;
    for (uint32_t t = 0; t < run->n; t++) {
        const int rank = t + 1 < run->n ? (int)t : pick(rng, 0, f->c.n_ranks - 1);
        ref_params_init(&run->params[t], &f->c, rank);
        run->targets[t] = (heft_exec_target_t){ .rank_index = (uint32_t)rank,
                                                .params = run->params[t].data,
                                                .digests_out = run->digests[t] };
    }
}

static void run_fini(run_t *run)
{
    for (uint32_t t = 0; t < run->n; t++) {
        ref_params_fini(&run->params[t]);
    }
}

/* ---- judging one sender ---- */

/* Which bytes of a parameter a sender writes: those that do not depend on what was there. */
static void judge_bytes(const fleet_t *f, uint32_t sender, const run_t *one, const run_t *other,
                        uint32_t t, uint32_t p)
{
    const int rank = (int)one->targets[t].rank_index;
    heft_tensor_info_t info;
    assert_int_equal(heft_plan_query_param(f->plan, (uint32_t)rank, p, &info, NULL), HEFT_OK);
    const int64_t unit = heft_dtype_get_unit_bytes(info.dtype);
    const uint32_t of_constants = sender_of_constants(f, rank, p);
    const uint8_t *a = one->params[t].data[p];
    const uint8_t *b = other->params[t].data[p];
    for (int64_t i = 0; i < info.n_elems; i++) {
        const uint64_t mask = f->mask[rank][p][i];
        const bool is_mine = (mask != 0 ? lowest_bit(mask) : of_constants) == sender;
        for (int64_t k = i * unit; k < (i + 1) * unit; k++) {
            if (is_mine) {
                assert_int_equal(a[k], f->c.expected[rank][p][k]);
                assert_int_equal(b[k], f->c.expected[rank][p][k]);
            } else {
                assert_int_equal(a[k], 0xff);
                assert_int_equal(b[k], 0x00);
            }
        }
    }
}

/* The regions are what was written; packed, they carry it over to the rebuilt parameter. */
static void judge_route(const fleet_t *f, uint32_t sender, const run_t *one, const run_t *other,
                        uint32_t t, uint32_t p, uint8_t *rebuilt, uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const uint32_t rank = one->targets[t].rank_index;
    heft_route_region_t *regions = NULL;
    heft_route_info_t info;
    uint32_t n = 0;
    EXPECT_STATUS(heft_routes_make_regions(f->routes, sender, rank, p, &regions, &n, &err),
                  HEFT_OK);
    heft_routes_query_param(f->routes, sender, rank, p, &info);
    const int64_t n_bytes = heft_route_regions_get_n_bytes(regions, n);
    assert_int_equal(n_bytes, info.n_bytes);
    assert_int_equal(n, info.n_regions);
    const uint8_t *a = one->params[t].data[p];
    const uint8_t *b = other->params[t].data[p];
    int64_t n_written = 0;
    for (int64_t k = 0; k < one->params[t].n_bytes[p]; k++) {
        n_written += a[k] == b[k];
    }
    assert_int_equal(n_written, n_bytes);
    uint8_t *packed = malloc((size_t)n_bytes + 1);
    assert_non_null(packed);
    for (int64_t at = 0; at < n_bytes;) { /* in chunks; each must be of bytes that were written */
        const int64_t chunk = heft_test_random_in(rng, 1, n_bytes - at);
        uint8_t *twice = malloc((size_t)chunk);
        assert_non_null(twice);
        EXPECT_STATUS(heft_route_pack(regions, n, a, at, packed + at, chunk, &err), HEFT_OK);
        EXPECT_STATUS(heft_route_pack(regions, n, b, at, twice, chunk, &err), HEFT_OK);
        assert_memory_equal(packed + at, twice, (size_t)chunk);
        EXPECT_STATUS(heft_route_unpack(regions, n, rebuilt, at, packed + at, chunk, &err),
                      HEFT_OK);
        at += chunk;
        free(twice);
    }
    free(packed);
    heft_route_regions_free(regions);
}

/* ---- judging a fleet ---- */

static void set_all(const run_t *run, int value)
{
    for (uint32_t t = 0; t < run->n; t++) {
        for (uint32_t p = 0; p < run->params[t].n; p++) {
            memset(run->params[t].data[p], value, (size_t)run->params[t].n_bytes[p]);
        }
    }
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *rng)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = (uint32_t)pick(rng, 0, (int)i);
        order[i] = order[k];
        order[k] = i;
    }
}

static void judge_runs(const fleet_t *f, uint64_t *rng)
{
    static run_t one;
    static run_t other;
    static run_t rebuilt;
    uint32_t order[MAX_SENDERS];
    uint64_t digests[MAX_TARGETS][REF_MAX_PARAMS] = { { 0 } };
    uint64_t seed = *rng;
    run_init(&one, f, rng);
    run_init(&other, f, &seed);
    run_init(&rebuilt, f, &(uint64_t){ 0 });
    rebuilt.n--; /* one of each rank */
    ref_params_fini(&rebuilt.params[rebuilt.n]);
    shuffle(order, f->n_senders, rng);
    for (uint32_t i = 0; i < f->n_senders; i++) {
        const uint32_t sender = order[i];
        set_all(&one, 0xff);
        set_all(&other, 0x00);
        run_sender(f, sender, &one, (uint32_t)pick(rng, 1, 2));
        for (uint32_t t = 0; t < one.n; t++) {
            for (uint32_t p = 0; p < one.params[t].n; p++) {
                digests[t][p] ^= one.digests[t][p];
            }
        }
        other.targets[other.n - 1].rank_index = one.targets[one.n - 1].rank_index;
        run_sender(f, sender, &other, 1);
        for (uint32_t t = 0; t < one.n; t++) {
            for (uint32_t p = 0; p < one.params[t].n; p++) {
                judge_bytes(f, sender, &one, &other, t, p);
                if (t < rebuilt.n) {
                    judge_route(f, sender, &one, &other, t, p, rebuilt.params[t].data[p], rng);
                }
            }
        }
    }
    for (uint32_t t = 0; t < one.n; t++) {
        const int rank = (int)one.targets[t].rank_index;
        for (uint32_t p = 0; p < one.params[t].n; p++) {
            const int64_t n_bytes = one.params[t].n_bytes[p];
            assert_int_equal(digests[t][p], heft_digest(f->c.expected[rank][p], n_bytes));
        }
        if (t < rebuilt.n) {
            ref_params_check(&rebuilt.params[t], &f->c, rank);
        }
    }
    run_fini(&one);
    run_fini(&other);
    run_fini(&rebuilt);
}

/* Who plans one rank alone comes to the same routes of it. */
static void judge_alone(const fleet_t *f, heft_tape_t *const *tape, uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *alone = NULL;
    heft_plan_t *plan = make_plan(tape, 1, rank);
    assert_string_equal(heft_plan_get_rank_digest(plan, 0),
                        heft_plan_get_rank_digest(f->plan, rank));
    EXPECT_STATUS(heft_routes_create(plan, NULL, f->n_senders, NULL, &alone, &err), HEFT_OK);
    uint32_t n = 0;
    uint32_t n_alone = 0;
    const uint32_t *senders = heft_routes_get_senders(f->routes, rank, &n);
    const uint32_t *senders_alone = heft_routes_get_senders(alone, 0, &n_alone);
    assert_int_equal(n, n_alone);
    for (uint32_t i = 0; i < n; i++) {
        heft_route_info_t info;
        heft_route_info_t info_alone;
        assert_int_equal(senders[i], senders_alone[i]);
        heft_routes_query(f->routes, senders[i], rank, &info);
        heft_routes_query(alone, senders[i], 0, &info_alone);
        assert_string_equal(info.digest, info_alone.digest);
        assert_int_equal(info.n_bytes, info_alone.n_bytes);
        assert_int_equal(info.n_runs, info_alone.n_runs);
    }
    heft_routes_destroy(alone);
    heft_plan_destroy(plan);
}

/* It knows which parameters are its alone, and which others send something of as well. */
static void judge_param_senders(const fleet_t *f, const heft_routes_t *part, uint32_t sender,
                                uint32_t r)
{
    for (uint32_t p = 0; p < heft_plan_get_n_params(f->plan, r); p++) {
        uint32_t n = 0;
        uint32_t n_part = 0;
        bool sends = false;
        bool sends_part = false;
        const uint32_t *senders = heft_routes_get_param_senders(f->routes, r, p, &n);
        const uint32_t *in_part = heft_routes_get_param_senders(part, r, p, &n_part);
        for (uint32_t i = 0; i < n; i++) {
            sends = sends || senders[i] == sender;
        }
        for (uint32_t i = 0; i < n_part; i++) {
            sends_part = sends_part || in_part[i] == sender;
        }
        assert_int_equal(sends_part, sends);
        assert_true(!sends || (n == 1) == (n_part == 1));
    }
}

/* A sender that plans its own part alone comes to the same routes. */
static void judge_part(const fleet_t *f, uint32_t sender)
{
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    plan_part(f, f->parts[sender], (uint32_t)f->c.n_ranks, false, &plan, &routes);
    for (uint32_t r = 0; r < (uint32_t)f->c.n_ranks; r++) {
        heft_route_info_t info;
        heft_route_info_t part;
        heft_routes_query(f->routes, sender, r, &info);
        heft_routes_query(routes, sender, r, &part);
        assert_int_equal(part.n_bytes, info.n_bytes);
        assert_int_equal(part.n_runs, info.n_runs);
        assert_int_equal(part.n_pieces, info.n_pieces);
        assert_int_equal(part.digest == NULL, info.digest == NULL);
        if (info.digest != NULL) {
            assert_string_equal(part.digest, info.digest);
        }
        judge_param_senders(f, routes, sender, r);
    }
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
}

static void every_byte_is_sent_once(void **state)
{
    (void)state;
    static fleet_t f;
    uint64_t rng = heft_test_seed();
    int64_t n_refused = 0;
    int64_t n_several = 0;
    const int64_t n = heft_test_cases(300);
    for (int64_t i = 0; i < n; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        fleet_init(&f, &rng);
        plan_fleet(&f);
        heft_status_t status = heft_routes_create(f.plan, NULL, f.n_senders, NULL, &f.routes, &err);
        if (f.is_refusable) {
            EXPECT_STATUS(status, HEFT_ERR_UNSUPPORTED);
            n_refused++;
        } else {
            EXPECT_STATUS(status, HEFT_OK);
            judge_runs(&f, &rng);
            const uint32_t rank = (uint32_t)pick(&rng, 0, f.c.n_ranks - 1);
            judge_alone(&f, &f.placed[rank], rank);
            if (f.placement != NULL) {
                judge_alone(&f, &f.read[rank], rank);
            }
            for (uint32_t s = 0; s < f.n_senders && f.placement != NULL; s++) {
                judge_part(&f, s);
            }
            n_several += f.placement != NULL;
        }
        fleet_fini(&f);
    }
    print_message("%lld fleets: %lld of several senders or parts judged, %lld refused rightly\n",
                  (long long)n, (long long)n_several, (long long)n_refused);
    assert_true(n < 100 || n_several > n / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_sent_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
