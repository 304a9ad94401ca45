/* SPDX-License-Identifier: Apache-2.0 */
/* Fleets of senders whose best balance is known: no sender may send a tenth more than that. */
#include "ref_reshard.h"

#include "heft/model.h"
#include "heft/placement.h"
#include "heft/routes.h"

enum { N_BALANCED = 6 };

/* Tensors of rows of 8 bytes, and which of how many senders hold which parts of them. */
typedef struct family {
    const char *name;
    uint32_t n_senders;
    int64_t rows[N_BALANCED];
    uint32_t n_parts[N_BALANCED];    /* equal parts, one after the other */
    uint32_t n_replicas[N_BALANCED]; /* of each part */
    uint32_t first[N_BALANCED];      /* sender of part 0; part i of replica r is first + i + r n */
    int64_t best;                    /* the most that any sender must send, in rows */
} family_t;

static heft_placement_t *place_family(const family_t *family, heft_manifest_t **manifest_out)
{
    static const char *const names[N_BALANCED] = { "a", "b", "c", "d", "e", "f" };
    heft_error_t err = HEFT_ERROR_INIT;
    static heft_shard_t shards[1024];
    uint32_t n = 0;
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    heft_placement_t *placement = NULL;
    opts.min_cut_bytes = 1;
    EXPECT_STATUS(heft_manifest_create("source", manifest_out, &err), HEFT_OK);
    for (int t = 0; t < N_BALANCED && family->rows[t] > 0; t++) {
        const heft_shape_t shape = { .rank = 2, .extent = { family->rows[t], 2 } };
        const int64_t each = (family->rows[t] + family->n_parts[t] - 1) / family->n_parts[t];
        EXPECT_STATUS(heft_manifest_add(*manifest_out, names[t], HEFT_DTYPE_F32, &shape, &err),
                      HEFT_OK);
        for (uint32_t k = 0; k < family->n_parts[t] * family->n_replicas[t]; k++) {
            const int64_t begin = k % family->n_parts[t] * each;
            assert_true(n < 1024);
            shards[n++] = (heft_shard_t){
                .tensor = names[t],
                .rank = family->first[t] + k,
                .begin = { begin < family->rows[t] ? begin : family->rows[t], 0 },
                .end = { begin + each < family->rows[t] ? begin + each : family->rows[t], 2 }
            };
        }
    }
    EXPECT_STATUS(heft_manifest_finish(*manifest_out, &err), HEFT_OK);
    EXPECT_STATUS(heft_placement_create(*manifest_out, shards, n, &opts, &placement, &err),
                  HEFT_OK);
    return placement;
}

/* Two engine ranks of halves: every row goes to one of them. */
static heft_routes_t *route_family(const family_t *family, const heft_manifest_t *manifest,
                                   const heft_placement_t *placement, heft_plan_t **plan_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tapes[2];
    heft_routes_t *routes = NULL;
    for (int64_t r = 0; r < 2; r++) {
        heft_tape_t *tape = NULL;
        EXPECT_STATUS(heft_tape_create(&tape, &err), HEFT_OK);
        for (uint32_t t = 0; t < heft_manifest_get_n_tensors(manifest); t++) {
            heft_tensor_info_t info;
            uint32_t source;
            EXPECT_STATUS(heft_manifest_query(manifest, t, &info, &err), HEFT_OK);
            EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_SOURCE, info.name, info.dtype,
                                               &info.shape, &source, &err),
                          HEFT_OK);
            const int64_t half = info.shape.extent[0] / 2;
            const int64_t extent[2] = { r == 0 ? half : info.shape.extent[0] - half, 2 };
            const uint32_t param = ref_tape_param(tape, info.name, info.dtype, 2, extent);
            ref_copy(tape, ref_view(tape, param),
                     ref_narrow(ref_view(tape, source), 0, r * half, extent[0]));
        }
        EXPECT_STATUS(heft_placement_apply(placement, tape, &tapes[r], &err), HEFT_OK);
    }
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.partial = 1;
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const *)tapes, 2, 0, &opts, plan_out, NULL, &err),
        HEFT_OK);
    EXPECT_STATUS(heft_routes_create(*plan_out, NULL, family->n_senders, NULL, &routes, &err),
                  HEFT_OK);
    heft_tape_destroy(tapes[0]);
    heft_tape_destroy(tapes[1]);
    return routes;
}

static void nobody_sends_a_tenth_more_than_it_must(void **state)
{
    (void)state;
    static const family_t families[] = {
        { "fsdp", 8, { 803, 96 }, { 8, 8 }, { 1, 1 }, { 0 }, 101 + 12 },
        { "replicas", 5, { 1000 }, { 1 }, { 5 }, { 0 }, 200 },
        { "hsdp", 16, { 800, 160, 1600 }, { 4, 4, 4 }, { 4, 4, 4 }, { 0 }, 160 },
        { "hsdp, uneven", 12, { 1001, 77, 501 }, { 3, 3, 3 }, { 4, 4, 4 }, { 0 }, 132 },
        { "stages of replicas", 6, { 900, 600, 600 }, { 1, 1, 1 }, { 2, 2, 2 }, { 0, 2, 4 }, 450 },
        { "rows, and norms on all", 4, { 400, 100 }, { 4, 1 }, { 1, 4 }, { 0 }, 125 },
        { "one holds most", 4, { 300, 180 }, { 1, 1 }, { 1, 4 }, { 0 }, 300 },
        { "stages fill each other",
          6,
          { 600, 300, 900 },
          { 1, 1, 1 },
          { 3, 3, 6 },
          { 0, 3, 0 },
          300 },
        { "experts in groups",
          8,
          { 80, 80, 80, 80, 320 },
          { 1, 1, 1, 1, 8 },
          { 2, 2, 2, 2, 1 },
          { 0, 2, 4, 6, 0 },
          80 },
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        heft_manifest_t *manifest = NULL;
        heft_plan_t *plan = NULL;
        heft_placement_t *placement = place_family(&families[i], &manifest);
        heft_routes_t *routes = route_family(&families[i], manifest, placement, &plan);
        int64_t most = 0;
        int64_t all = 0;
        for (uint32_t s = 0; s < families[i].n_senders; s++) {
            int64_t n_bytes = 0;
            for (uint32_t r = 0; r < 2; r++) {
                heft_route_info_t info;
                heft_routes_query(routes, s, r, &info);
                n_bytes += info.n_bytes;
            }
            assert_int_equal(n_bytes, heft_placement_get_load(placement, s));
            most = n_bytes > most ? n_bytes : most;
            all += n_bytes;
        }
        int64_t rows = 0;
        for (int t = 0; t < N_BALANCED; t++) {
            rows += families[i].rows[t];
        }
        assert_int_equal(all, rows * 8);
        if (most * 10 > families[i].best * 8 * 11) {
            fail_msg("%s: %lld bytes, at best %lld", families[i].name, (long long)most,
                     (long long)families[i].best * 8);
        }
        heft_routes_destroy(routes);
        heft_plan_destroy(plan);
        heft_placement_destroy(placement);
        heft_manifest_destroy(manifest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sends_a_tenth_more_than_it_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
