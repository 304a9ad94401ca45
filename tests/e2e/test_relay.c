/* SPDX-License-Identifier: Apache-2.0 */
/* Relays: replicas forward to each other what the sources send to one of them. */
#include "push_fleet.h"

#include "sync/coordinator.h"

static void push_ok(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(pf_push(fleet, version, result, &err), HEFT_OK);
    assert_string_equal(result->state, "committed");
    pf_expect_version(fleet, version);
}

static heft__counters_t counters_of(heft__member_t *member)
{
    const heft__counters_t counters = heft__member_lock(member)->counters;
    heft__member_unlock(member, false);
    return counters;
}

static int64_t sum_sent(pf_fleet_t *fleet)
{
    int64_t bytes = fleet->n_sources == 0 ? counters_of(fleet->pub->member).bytes : 0;
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        bytes += counters_of(fleet->sources[r].pub->member).bytes;
    }
    return bytes;
}

static int64_t sum_forwarded(pf_fleet_t *fleet)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        bytes += counters_of(fleet->engines[i].sub->member).forwarded;
    }
    return bytes;
}

/* Of one replica of the engine. */
static int64_t replica_bytes(const pf_fleet_t *fleet)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        for (uint32_t p = 0; p < FM_PARAMS && fleet->engines[i].replica == 0; p++) {
            bytes += fleet->engines[i].params.bytes[p];
        }
    }
    return bytes;
}

/* Every replica holds what the first one does, bit by bit. */
static void expect_equal_replicas(const pf_fleet_t *fleet)
{
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        const pf_engine_t *engine = &fleet->engines[i];
        const pf_engine_t *first = &fleet->engines[engine->rank];
        assert_int_equal(first->rank, engine->rank);
        for (uint32_t p = 0; p < FM_PARAMS; p++) {
            assert_memory_equal(engine->params.data[p], first->params.data[p],
                                (size_t)first->params.bytes[p]);
        }
    }
}

/* Whom the status names as the relay of an engine; "": none. */
static void get_relay(pf_fleet_t *fleet, const pf_engine_t *engine, char out[HEFT__ID_SIZE])
{
    char id[HEFT__ID_SIZE];
    out[0] = '\0';
    heft__member_id_format(HEFT__ROLE_DESTINATION, "heft", engine->replica, engine->rank, id);
    (void)pthread_mutex_lock(&fleet->coordinator->lock);
    json_t *status = heft__coordinator_status_locked(fleet->coordinator);
    (void)pthread_mutex_unlock(&fleet->coordinator->lock);
    const json_t *members = json_object_get(status, "members");
    for (size_t i = 0; i < json_array_size(members); i++) {
        const json_t *member = json_array_get(members, i);
        const char *relay = json_string_value(json_object_get(member, "relay"));
        if (strcmp(json_string_value(json_object_get(member, "id")), id) == 0 && relay != NULL) {
            (void)snprintf(out, HEFT__ID_SIZE, "%s", relay);
        }
    }
    json_decref(status);
}

static uint32_t count_relayed(pf_fleet_t *fleet)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        char relay[HEFT__ID_SIZE];
        get_relay(fleet, &fleet->engines[i], relay);
        n += relay[0] != '\0';
    }
    return n;
}

/* The transports that bytes take: as the test is told (shm, ucx), copied, in chunks. */
static heft__loop_t *make_loop(int i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__loop_t *loop = NULL;
    if (i > 0) {
        EXPECT_STATUS(heft__loop_create(i == 1, &loop, &err), HEFT_OK);
    }
    return loop;
}

/* Four replicas hold one version, and the source has sent it once. */
static void the_source_sends_each_byte_once(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        pf_fleet_t fleet;
        heft_push_result_t result;
        pf_opts_t opts = { .width = 64, .n_replicas = 4, .no_feed = true, .relay = "on" };
        opts.loop = make_loop(i);
        pf_start(&fleet, &opts);
        for (int64_t version = 1; version <= 3; version++) {
            push_ok(&fleet, version, &result);
            assert_int_equal(result.n_destinations, 8);
            assert_int_equal(result.n_bytes, 4 * replica_bytes(&fleet));
            assert_int_equal(sum_sent(&fleet), replica_bytes(&fleet));
            assert_int_equal(sum_forwarded(&fleet), 3 * replica_bytes(&fleet));
            expect_equal_replicas(&fleet);
            assert_int_equal(count_relayed(&fleet), 6);
        }
        char relay[HEFT__ID_SIZE];
        get_relay(&fleet, &fleet.engines[7], relay); /* replica 3, rank 1 */
        assert_string_equal(relay, "destination.heft.2.1");
        get_relay(&fleet, &fleet.engines[0], relay);
        assert_string_equal(relay, "");
        pf_expect_untorn(&fleet, true);
        pf_stop(&fleet);
        heft__loop_destroy(opts.loop);
    }
}

/* 0 to 1 and 2, 1 to 3. */
static void a_tree_of_two(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    char relay[HEFT__ID_SIZE];
    pf_opts_t opts = {
        .width = 64, .n_replicas = 4, .no_feed = true, .relay = "on", .relay_fan_out = 2
    };
    opts.loop = make_loop(2);
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    assert_int_equal(sum_sent(&fleet), replica_bytes(&fleet));
    get_relay(&fleet, &fleet.engines[4], relay);
    assert_string_equal(relay, "destination.heft.0.0");
    get_relay(&fleet, &fleet.engines[6], relay);
    assert_string_equal(relay, "destination.heft.1.0");
    assert_int_equal(counters_of(fleet.engines[0].sub->member).forwarded,
                     2 * counters_of(fleet.engines[0].sub->member).bytes);
    pf_stop(&fleet);
    heft__loop_destroy(opts.loop);
}

/* Entries that one source has, and entries that are put together from several. */
static void what_several_sources_send_is_forwarded(void **state)
{
    (void)state;
    static const pf_hold_t holds[] = { pf_hold_rows, pf_hold_columns, pf_hold_stages,
                                       pf_hold_copies };
    for (size_t h = 0; h < sizeof holds / sizeof holds[0]; h++) {
        for (int i = 0; i < 3; i++) {
            pf_fleet_t fleet;
            heft_push_result_t result;
            pf_opts_t opts = { .width = 30,
                               .n_replicas = 3,
                               .no_feed = true,
                               .n_sources = 3,
                               .hold = holds[h],
                               .relay = "on" };
            opts.loop = make_loop(i);
            pf_start(&fleet, &opts);
            for (int64_t version = 1; version <= 3; version++) {
                push_ok(&fleet, version, &result);
                assert_int_equal(sum_sent(&fleet), replica_bytes(&fleet));
                expect_equal_replicas(&fleet);
            }
            pf_expect_untorn(&fleet, true);
            pf_stop(&fleet);
            heft__loop_destroy(opts.loop);
        }
    }
}

/* On one host memory is the limit, and every copy costs as much as the first. */
static void on_one_host_the_sources_send_all(void **state)
{
    (void)state;
    static const char *const modes[] = { "auto", "off" };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        pf_fleet_t fleet;
        heft_push_result_t result;
        const pf_opts_t opts = { .width = 32, .n_replicas = 3, .no_feed = true, .relay = modes[i] };
        pf_start(&fleet, &opts);
        push_ok(&fleet, 1, &result);
        assert_int_equal(sum_sent(&fleet), 3 * replica_bytes(&fleet));
        assert_int_equal(count_relayed(&fleet), 0);
        pf_stop(&fleet);
    }
}

/* Who receives in place has no version to forward: its engine is served by the source. */
static void who_receives_in_place_takes_no_part(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = {
        .width = 32, .n_replicas = 3, .no_feed = true, .relay = "on", .in_place = 1
    };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    assert_int_equal(count_relayed(&fleet), 2); /* replica 2, by replica 1 */
    pf_stop(&fleet);
}

/* A catch-up moves what is behind alone. */
static void one_that_needs_nothing_forwards_nothing(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .no_feed = true, .relay = "on" };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    (void)pf_add_engine(&fleet, 2, 0);
    (void)pf_add_engine(&fleet, 2, 1);
    push_ok(&fleet, 1, &result);
    assert_int_equal(result.n_destinations, 2);
    assert_int_equal(count_relayed(&fleet), 0);
    push_ok(&fleet, 2, &result);
    assert_int_equal(count_relayed(&fleet), 4);
    pf_stop(&fleet);
}

/* ---- faults ---- */

/* Whatever happens to one chunk, of the source's or of a relay's: what is not mended fails the
 * round as a whole, and the next one is right. */
static void faults_to_one_chunk_anywhere(void **state)
{
    (void)state;
    static const struct {
        heft__loop_fault_t fault;
        bool is_mended; /* sent once more */
    } cases[] = {
        { HEFT__LOOP_FAIL, false },   { HEFT__LOOP_DROP, false },
        { HEFT__LOOP_CORRUPT, true }, { HEFT__LOOP_REPEAT, false },
        { HEFT__LOOP_STRAY, false },  { HEFT__LOOP_CORRUPT_AGAIN, false },
    };
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = { .width = 30, .n_replicas = 3, .no_feed = true, .relay = "on" };
    opts.loop = make_loop(2);
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    const int64_t n_chunks = 3 * counters_of(fleet.pub->member).chunks;
    int64_t live = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t after = 0; after < n_chunks; after += n_chunks / 5) {
            heft__loop_set_fault(opts.loop, cases[i].fault, after);
            heft_status_t status = pf_push(&fleet, live + 1, &result, &err);
            assert_true(heft__loop_was_reached(opts.loop));
            assert_int_equal(status == HEFT_OK, cases[i].is_mended);
            live += cases[i].is_mended;
            pf_expect_version(&fleet, live);
            push_ok(&fleet, ++live, &result);
        }
    }
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
    heft__loop_destroy(opts.loop);
}

/* Bytes that change in staging after they were checked on arrival, at a relay or at the one it
 * forwards to: a relay is not trusted, each compares with what the source says. Who says it first,
 * the one that holds them or the relay that compares with it, is a matter of time. */
static void a_relay_is_not_trusted(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = { .width = 30, .n_replicas = 2, .no_feed = true, .relay = "on" };
    opts.loop = make_loop(2);
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    const int64_t n_chunks = 2 * counters_of(fleet.pub->member).chunks;
    int64_t n_refused[2] = { 0, 0 }; /* by the replica that is named */
    int64_t live = 1;
    for (int64_t after = 0; after < n_chunks; after++) {
        heft__loop_set_fault(opts.loop, HEFT__LOOP_SWAP_HALVES, after);
        err = (heft_error_t)HEFT_ERROR_INIT;
        heft_status_t status = pf_push(&fleet, live + 1, &result, &err);
        live += status == HEFT_OK; /* the halves were equal */
        assert_true(status == HEFT_OK || status == HEFT_ERR_DIGEST);
        for (int i = 0; i < 2; i++) {
            n_refused[i] +=
                strstr(err.message, i == 0 ? "destination.heft.0." : "destination.heft.1.") != NULL;
        }
        pf_expect_version(&fleet, live);
    }
    assert_true(n_refused[0] > 0 && n_refused[1] > 0);
    push_ok(&fleet, live + 1, &result);
    pf_stop(&fleet);
    heft__loop_destroy(opts.loop);
}

/* ---- memory ---- */

/* Fills in the order of a relay: two followers, at the endpoint of replica 1. */
static void order_two_followers(pf_fleet_t *fleet, heft__order_t *order, heft__peer_t peers[2])
{
    heft_coordinator_t *c = fleet->coordinator;
    heft__order_init(order);
    memset(peers, 0, 2 * sizeof *peers);
    (void)pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__entry_t *entry = c->entries[i];
        if (entry != NULL && strcmp(entry->id, "destination.heft.1.0") == 0) {
            memcpy(peers[0].id, entry->id, sizeof entry->id);
            memcpy(peers[0].endpoint, entry->bind.endpoint, sizeof entry->bind.endpoint);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    assert_true(peers[0].endpoint[0] != '\0');
    peers[1] = peers[0];
    order->followers = peers;
    order->n_followers = 2;
}

/* Puts a relay in the place of the subscriber's; returns that one. */
static heft__relay_t *exchange_relay(heft_subscriber_t *sub, heft__relay_t *relay)
{
    (void)heft__member_lock(sub->member);
    heft__relay_t *was = sub->relay;
    sub->relay = relay;
    heft__member_unlock(sub->member, false);
    return was;
}

/* On the thread that takes orders, which alone asks for objects. */
static void fail_each_allocation(pf_engine_t *engine)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_ERR_NOMEM;
    heft__order_t order;
    heft__peer_t peers[2];
    order_two_followers(engine->fleet, &order, peers);
    for (long k = 0; status != HEFT_OK; k++) {
        heft__relay_t *relay = NULL;
        heft__alloc_fail_at(k);
        status = heft__subscriber_make_relay(engine->sub, &order, INT64_MAX, &relay, &err);
        heft__alloc_fail_at(-1);
        engine->fleet->n_seen += status == HEFT_ERR_NOMEM;
        engine->fleet->n_unseen += status != HEFT_OK && status != HEFT_ERR_NOMEM;
        engine->fleet->n_unseen += (relay != NULL) != (status == HEFT_OK);
        if (status == HEFT_OK) {
            heft__relay_t *was = exchange_relay(engine->sub, relay);
            heft__subscriber_end_relay(engine->sub);
            (void)exchange_relay(engine->sub, was);
        }
    }
}

static void a_relay_survives_failed_allocations(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        pf_fleet_t fleet;
        heft_push_result_t result;
        pf_opts_t opts = { .width = 30,
                           .n_replicas = 2,
                           .no_feed = true,
                           .n_sources = 3,
                           .hold = pf_hold_columns,
                           .relay = "on" };
        opts.loop = make_loop(i);
        pf_start(&fleet, &opts);
        atomic_store(&fleet.engines[0].in_pause, fail_each_allocation);
        push_ok(&fleet, 1, &result);
        assert_true(fleet.n_seen > 10);
        assert_int_equal(fleet.n_unseen, 0);
        push_ok(&fleet, 2, &result);
        assert_int_equal(count_relayed(&fleet), 2);
        pf_stop(&fleet);
        heft__loop_destroy(opts.loop);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_relay_survives_failed_allocations),
        cmocka_unit_test(the_source_sends_each_byte_once),
        cmocka_unit_test(a_tree_of_two),
        cmocka_unit_test(what_several_sources_send_is_forwarded),
        cmocka_unit_test(on_one_host_the_sources_send_all),
        cmocka_unit_test(who_receives_in_place_takes_no_part),
        cmocka_unit_test(one_that_needs_nothing_forwards_nothing),
        cmocka_unit_test(faults_to_one_chunk_anywhere),
        cmocka_unit_test(a_relay_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
