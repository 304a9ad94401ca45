/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds with several sources: each holds boxes of the tensors, or some of them, or copies. */
#include "push_fleet.h"

static const pf_opts_t rows4 = {
    .width = 32, .n_replicas = 2, .no_feed = true, .n_sources = 4, .hold = pf_hold_rows
};

static void push_ok(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(pf_push(fleet, version, result, &err), HEFT_OK);
    assert_string_equal(result->state, "committed");
    pf_expect_version(fleet, version);
}

static heft__counters_t counters_of(pf_source_t *source)
{
    const heft__counters_t counters = heft__member_lock(source->pub->member)->counters;
    heft__member_unlock(source->pub->member, false);
    return counters;
}

/* Bytes that all of them sent. */
static int64_t sum_sent(pf_fleet_t *fleet)
{
    int64_t bytes = 0;
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        bytes += counters_of(&fleet->sources[r]).bytes;
    }
    return bytes;
}

static int64_t param_bytes(const pf_fleet_t *fleet)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        for (uint32_t p = 0; p < FM_PARAMS; p++) {
            bytes += fleet->engines[i].params.bytes[p];
        }
    }
    return bytes;
}

/* One unit of the trainer each: every engine is written from the boxes of all of them. */
static void multi_host_source(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &rows4);
    for (int64_t version = 1; version <= 3; version++) {
        push_ok(&fleet, version, &result);
        assert_int_equal(result.n_destinations, 4);
        assert_int_equal(result.n_bytes, param_bytes(&fleet));
        assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
        for (uint32_t r = 0; r < fleet.n_sources; r++) {
            assert_true(counters_of(&fleet.sources[r]).bytes > 0);
        }
    }
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Boxes that cross the engines' own cuts. */
static void columns_and_rows_and_names_of_their_own(void **state)
{
    (void)state;
    static const pf_hold_t holds[] = { pf_hold_rows, pf_hold_columns, pf_hold_stages };
    for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++) {
        for (uint32_t n = 2; n <= 3; n++) {
            pf_fleet_t fleet;
            heft_push_result_t result;
            const pf_opts_t opts = {
                .width = 30, .n_replicas = 1, .no_feed = true, .n_sources = n, .hold = holds[i]
            };
            pf_start(&fleet, &opts);
            push_ok(&fleet, 1, &result);
            push_ok(&fleet, 2, &result);
            assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
            pf_expect_untorn(&fleet, false);
            pf_stop(&fleet);
        }
    }
}

/* More ranks than rows: the last ones hold nothing of small tensors, and of 10 rows over 3 the last
 * has 2. */
static void uneven_shares_arrive_exactly(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 10, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = pf_hold_rows
    };
    const pf_opts_t many = {
        .width = 2, .n_replicas = 1, .no_feed = true, .n_sources = 8, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    pf_stop(&fleet);
    pf_start(&fleet, &many);
    push_ok(&fleet, 1, &result);
    pf_stop(&fleet);
}

static bool hold_all_but_last(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    return rank + 1 < n_ranks && pf_hold_rows(rank, n_ranks - 1, tensor, box);
}

static bool hold_nothing(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)rank;
    (void)n_ranks;
    (void)tensor;
    (void)box;
    return false;
}

/* A split that leaves a rank without a single tensor: it takes part, and has nothing to do. */
static void a_rank_without_tensors_takes_part(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const uint32_t in_place[] = { 0, 1 };
    for (size_t i = 0; i < sizeof in_place / sizeof in_place[0]; i++) {
        const pf_opts_t opts = { .width = 32,
                                 .n_replicas = 1,
                                 .no_feed = true,
                                 .in_place = in_place[i],
                                 .n_sources = 3,
                                 .hold = hold_all_but_last };
        pf_start(&fleet, &opts);
        assert_int_equal(fleet.sources[2].n, 0);
        push_ok(&fleet, 1, &result);
        push_ok(&fleet, 2, &result);
        assert_int_equal(counters_of(&fleet.sources[2]).bytes, 0);
        pf_stop(&fleet);
    }
}

static void ranks_without_any_tensor_are_refused(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 2; n++) {
        heft_error_t err = HEFT_ERROR_INIT;
        pf_fleet_t fleet;
        heft_push_result_t result;
        const pf_opts_t opts = {
            .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = n, .hold = hold_nothing
        };
        pf_start(&fleet, &opts);
        EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_NAME);
        pf_expect_version(&fleet, 0);
        pf_stop(&fleet);
    }
}

/* Two copies of everything: each element is sent once, and both share the work. */
static void replicated_source_sent_once(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 64, .n_replicas = 1, .no_feed = true, .n_sources = 2, .hold = pf_hold_copies
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
    assert_true(counters_of(&fleet.sources[0]).bytes > 0);
    assert_true(counters_of(&fleet.sources[1]).bytes > 0);
    pf_stop(&fleet);
}

static bool hold_one_and_copies(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)n_ranks;
    box->replica = rank;
    return rank == 0 || tensor == 4; /* a copy of the norm */
}

static uint64_t count_digested(const pf_source_t *source)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < source->n; i++) {
        n += source->pub->digests[i] != 0;
    }
    return n;
}

/* A copy of which nothing is needed: it takes part, and nothing of it is read or sent. */
static void a_replica_that_is_not_chosen_pays_nothing(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 64, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = hold_one_and_copies
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    uint32_t n_idle = 0;
    for (uint32_t r = 0; r < 3; r++) {
        const heft__counters_t counters = counters_of(&fleet.sources[r]);
        if (counters.bytes == 0) {
            n_idle++;
            assert_int_equal(counters.pieces, 0);
            assert_int_equal(fleet.sources[r].pub->fleet.n_attached, 0);
            assert_int_equal(count_digested(&fleet.sources[r]), 0);
        }
    }
    assert_int_equal(n_idle, 1); /* two hold the norm besides rank 0, one of them sends it */
    assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
    pf_stop(&fleet);
}

/* Two replicas of the trainer, each sharded; two of the engine. */
static void replicas_of_shards_to_replicas_of_engines(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 2, .no_feed = true, .n_sources = 4, .hold = pf_hold_replicas
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Stages of a pipeline: each delivers its own layers, to all engines. */
static void stages_deliver_their_own_layers(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 4, .hold = pf_hold_stages
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    assert_int_equal(sum_sent(&fleet), param_bytes(&fleet));
    for (uint32_t r = 0; r < 4; r++) {
        int64_t own = 0;
        for (uint32_t i = 0; i < fleet.sources[r].n; i++) {
            const uint32_t t = fleet.sources[r].tensors[i];
            own += fleet.source.bytes[t] * (t == 4 ? 2 : 1); /* the norm goes to both ranks */
        }
        const int64_t padding = r == 0 ? 64 * 32 * 2 : 0; /* rank 1 has nothing else of "embed" */
        assert_int_equal(counters_of(&fleet.sources[r]).bytes, own + padding);
    }
    pf_stop(&fleet);
}

static void second_push_compiles_attaches_and_allocates_nothing(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &rows4);
    push_ok(&fleet, 1, &result);
    uint64_t n_compiled[4];
    uint64_t n_attached[4];
    int64_t least[4];
    for (uint32_t r = 0; r < 4; r++) {
        n_compiled[r] = fleet.sources[r].pub->fleet.n_compiled;
        n_attached[r] = fleet.sources[r].pub->fleet.n_attached;
        assert_int_equal(n_compiled[r], 1);
        assert_true(fleet.sources[r].pub->fleet.families[0].is_part); /* of what it sends alone */
        least[r] = INT64_MAX; /* other threads allocate too: the quietest push is the one that
                                 tells */
    }
    for (int64_t version = 2; version <= 12; version++) {
        push_ok(&fleet, version, &result);
        for (uint32_t r = 0; r < 4; r++) {
            least[r] = heft__min_i64(least[r], fleet.sources[r].pub->stage_allocs);
        }
    }
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(fleet.sources[r].pub->fleet.n_compiled, n_compiled[r]);
        assert_int_equal(fleet.sources[r].pub->fleet.n_attached, n_attached[r]);
        assert_int_equal(least[r], 0);
    }
    pf_stop(&fleet);
}

/* ---- in chunks ---- */

/* Chunks of one rank to one engine: of each entry that it has alone the whole, else its share. */
static int64_t count_chunks(const pf_engine_t *engine, uint32_t sender)
{
    const heft__work_t *work = &engine->sub->work;
    int64_t n = 0;
    for (uint32_t p = 0; p < FM_PARAMS; p++) {
        uint32_t n_senders = 0;
        const uint32_t *senders = heft_routes_get_param_senders(work->routes, 0, p, &n_senders);
        for (uint32_t s = 0; s < n_senders; s++) {
            n += senders[s] == sender; /* all are smaller than a chunk */
        }
    }
    return n;
}

static void each_source_sends_its_chunks(void **state)
{
    (void)state;
    static const pf_hold_t holds[] = { pf_hold_rows, pf_hold_columns, pf_hold_stages,
                                       pf_hold_copies };
    for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__loop_t *loop = NULL;
        pf_fleet_t fleet;
        heft_push_result_t result;
        pf_opts_t opts = {
            .width = 30, .n_replicas = 2, .no_feed = true, .n_sources = 3, .hold = holds[i]
        };
        EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
        opts.loop = loop;
        pf_start(&fleet, &opts);
        for (int64_t version = 1; version <= 3; version++) {
            push_ok(&fleet, version, &result);
            for (uint32_t r = 0; r < 3; r++) {
                int64_t expected = 0;
                for (uint32_t e = 0; e < fleet.n_engines; e++) {
                    expected += count_chunks(&fleet.engines[e], r);
                }
                assert_int_equal(counters_of(&fleet.sources[r]).chunks, expected);
                assert_int_equal(counters_of(&fleet.sources[r]).resent, 0);
            }
        }
        pf_expect_untorn(&fleet, false);
        pf_stop(&fleet);
        heft__loop_destroy(loop);
    }
}

/* Whatever happens to one chunk of one source, wherever it stands in the order of all. */
static void faults_to_one_chunk_of_one_source(void **state)
{
    (void)state;
    static const struct {
        heft__loop_fault_t fault;
        bool is_mended; /* sent once more */
    } cases[] = {
        { HEFT__LOOP_FAIL, false },   { HEFT__LOOP_DROP, false },  { HEFT__LOOP_CORRUPT, true },
        { HEFT__LOOP_REPEAT, false }, { HEFT__LOOP_STRAY, false },
    };
    heft_error_t err = HEFT_ERROR_INIT;
    heft__loop_t *loop = NULL;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = {
        .width = 30, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = pf_hold_rows
    };
    EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
    opts.loop = loop;
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    int64_t live = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t after = 0; after < 9; after += 4) {
            heft__loop_set_fault(loop, cases[i].fault, after);
            heft_status_t status = pf_push(&fleet, live + 1, &result, &err);
            assert_true(heft__loop_was_reached(loop));
            assert_int_equal(status == HEFT_OK, cases[i].is_mended);
            if (cases[i].fault == HEFT__LOOP_DROP) {
                EXPECT_MESSAGE("tensor \"");
                EXPECT_MESSAGE("bytes [0..");
            }
            live += cases[i].is_mended;
            pf_expect_version(&fleet, live);
            push_ok(&fleet, ++live, &result);
        }
    }
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
    heft__loop_destroy(loop);
}

/* ---- in place ---- */

static void in_place_from_several(void **state)
{
    (void)state;
    static const pf_hold_t holds[] = { pf_hold_rows, pf_hold_columns, pf_hold_stages,
                                       pf_hold_copies };
    for (size_t i = 0; i < 2 * sizeof holds / sizeof holds[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__loop_t *loop = NULL;
        pf_fleet_t fleet;
        heft_push_result_t result;
        pf_opts_t opts = { .width = 32,
                           .n_replicas = 2,
                           .no_feed = true,
                           .n_sources = 3,
                           .in_place = i % 3 == 0 ? 2 : 3, /* or one replica staged */
                           .hold = holds[i / 2] };
        EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
        opts.loop = i % 2 == 0 ? NULL : loop;
        pf_start(&fleet, &opts);
        for (int64_t version = 1; version <= 3; version++) {
            push_ok(&fleet, version, &result);
        }
        pf_expect_untorn(&fleet, true);
        pf_stop(&fleet);
        heft__loop_destroy(loop);
    }
}

/* ---- orders and ends ---- */

/* One source takes its time, another one is through at once. */
static void sources_may_end_in_any_order(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 128, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    for (uint32_t slow = 0; slow < 3; slow++) {
        for (uint32_t r = 0; r < 3; r++) {
            fleet.sources[r].pub->max_bytes_per_s = r == slow ? 2000000 : 0;
        }
        push_ok(&fleet, 1 + (int64_t)slow, &result);
    }
    pf_stop(&fleet);
}

/* Fed by another engine afterwards: the sources are gone by then. */
static void who_joins_late_is_fed_by_an_engine(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = { .width = 32, .n_replicas = 1, .n_sources = 3, .hold = pf_hold_rows };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    for (uint32_t r = 0; r < 3; r++) {
        pf_remove_source(&fleet.sources[r]);
    }
    pf_engine_t *late0 = pf_add_engine(&fleet, 1, 0);
    pf_engine_t *late1 = pf_add_engine(&fleet, 1, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    pf_expect_version(&fleet, 1);
    for (uint32_t r = 0; r < 3; r++) {
        pf_add_source(&fleet, r);
    }
    push_ok(&fleet, 2, &result); /* for those that were fed as well */
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Other shards of the same model, from one push to the next. */
static void another_sharding_takes_over(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    for (uint32_t r = 0; r < 3; r++) {
        pf_remove_source(&fleet.sources[r]);
    }
    fleet.n_sources = 2;
    fleet.opts.hold = pf_hold_columns;
    for (uint32_t r = 0; r < 2; r++) {
        pf_add_source(&fleet, r);
    }
    push_ok(&fleet, 2, &result);
    push_ok(&fleet, 3, &result);
    pf_stop(&fleet);
}

/* Everything that both ranks have, as before; but each says that it is the other half. */
static bool hold_swapped(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    return pf_hold_rows(n_ranks - 1 - rank, n_ranks, tensor, box);
}

static void push_as_they_are(pf_fleet_t *fleet, int64_t version)
{
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_start_push(&fleet->sources[r], version);
    }
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_join_push(&fleet->sources[r]);
    }
}

/* A trainer that had its ranks the wrong way round, and says so again under the same version: not
 * "live already". */
static void equal_bytes_in_other_places_are_not_the_same_version(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 2, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    uint8_t *kept[2][FM_SOURCES];
    fleet.opts.hold = hold_swapped;
    for (uint32_t r = 0; r < 2; r++) {
        pf_source_t *source = &fleet.sources[r];
        const uint32_t n = source->n;
        memcpy(kept[r], source->data, n * sizeof kept[r][0]);
        memset(source->data, 0, n * sizeof source->data[0]); /* they are not its to free */
        pf_remove_source(source);
        pf_add_source(&fleet, r);
        assert_int_equal(source->n, n);
        for (uint32_t i = 0; i < n; i++) {
            const pf_box_t *box = &source->boxes[i];
            memcpy(source->data[i], kept[r][i],
                   (size_t)((box->end[0] - box->begin[0]) * (box->end[1] - box->begin[1]) * 2));
            free(kept[r][i]);
        }
    }
    push_as_they_are(&fleet, 1);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fleet.sources[r].status, HEFT_ERR_VERSION);
        assert_non_null(strstr(fleet.sources[r].err.message, "version_conflict"));
    }
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result);
    pf_stop(&fleet);
}

/* One rank is a step ahead: said at once, and once the others have caught up all is well. */
static void a_rank_that_pushes_another_version_is_named(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 2, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    fm_source_fill(&fleet.model, &fleet.source, 6);
    for (uint32_t r = 0; r < 2; r++) {
        pf_cut_source(&fleet.sources[r]);
    }
    pf_start_push(&fleet.sources[1], 6);
    pf_start_push(&fleet.sources[0], 5);
    pf_join_push(&fleet.sources[0]);
    assert_int_equal(fleet.sources[0].status, HEFT_ERR_STATE);
    const char *said = fleet.sources[0].err.message;
    if (strstr(said, "source.heft.0.1: no push of version 5 is in progress here, but one of "
                     "version 6") == NULL) {
        fail_msg("%s", said);
    }
    pf_expect_version(&fleet, 1);
    pf_start_push(&fleet.sources[0], 6);
    for (uint32_t r = 0; r < 2; r++) {
        pf_join_push(&fleet.sources[r]);
        assert_int_equal(fleet.sources[r].status, HEFT_OK);
    }
    pf_expect_version(&fleet, 6);
    pf_stop(&fleet);
}

/* Both hold everything as if they were alone. */
static bool hold_all(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)rank;
    (void)n_ranks;
    (void)tensor;
    (void)box;
    return true;
}

/* No member gets an order of such a round, so those that wait for it cannot meet it. */
static void what_is_refused_before_any_order_is_told_to_every_rank(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = hold_all
    };
    pf_start(&fleet, &opts);
    for (int64_t k = 1; k <= 2; k++) { /* once more: another round, and again all of them */
        EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_PROOF);
        EXPECT_MESSAGE("both have that name");
        assert_int_equal(result.round_seq, k);
    }
    for (uint32_t r = 0; r < 3; r++) { /* rounds of earlier processes are none of theirs */
        pf_remove_source(&fleet.sources[r]);
        pf_add_source(&fleet, r);
    }
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_PROOF);
    assert_int_equal(result.round_seq, 3);
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

/* A rank of an earlier, larger trainer: it would never push. */
static void more_ranks_than_the_trainer_has_are_refused(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 1, .no_feed = true, .n_sources = 3, .hold = pf_hold_rows
    };
    pf_start(&fleet, &opts);
    for (uint32_t r = 0; r < 3; r++) {
        fleet.sources[r].pub->n_ranks = 2;
        fleet.sources[r].pub->fleet.n_expected = 2;
    }
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("3 of 2 source ranks take part: there are source 0.0, source 0.1, source 0.2");
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multi_host_source),
        cmocka_unit_test(columns_and_rows_and_names_of_their_own),
        cmocka_unit_test(uneven_shares_arrive_exactly),
        cmocka_unit_test(a_rank_without_tensors_takes_part),
        cmocka_unit_test(ranks_without_any_tensor_are_refused),
        cmocka_unit_test(replicated_source_sent_once),
        cmocka_unit_test(a_replica_that_is_not_chosen_pays_nothing),
        cmocka_unit_test(replicas_of_shards_to_replicas_of_engines),
        cmocka_unit_test(stages_deliver_their_own_layers),
        cmocka_unit_test(second_push_compiles_attaches_and_allocates_nothing),
        cmocka_unit_test(each_source_sends_its_chunks),
        cmocka_unit_test(faults_to_one_chunk_of_one_source),
        cmocka_unit_test(in_place_from_several),
        cmocka_unit_test(sources_may_end_in_any_order),
        cmocka_unit_test(who_joins_late_is_fed_by_an_engine),
        cmocka_unit_test(another_sharding_takes_over),
        cmocka_unit_test(equal_bytes_in_other_places_are_not_the_same_version),
        cmocka_unit_test(a_rank_that_pushes_another_version_is_named),
        cmocka_unit_test(more_ranks_than_the_trainer_has_are_refused),
        cmocka_unit_test(what_is_refused_before_any_order_is_told_to_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
