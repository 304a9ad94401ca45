/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late join: engines that come while no push is in flight are brought to the committed version by
 * others that serve it. These go on serving, and their memory is not changed.
 */
#include "push_fleet.h"

#include <sched.h>
#include <unistd.h>

static const pf_opts_t small = { .width = 32, .n_replicas = 2, .phase_ms = 10000 };
static const int64_t soon_ns = 10000000000;

static void push_ok(pf_fleet_t *fleet, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    EXPECT_STATUS(pf_push(fleet, version, &result, &err), HEFT_OK);
    pf_expect_version(fleet, version);
}

static void start_with_version(pf_fleet_t *fleet, const pf_opts_t *opts, int64_t version)
{
    pf_start(fleet, opts);
    push_ok(fleet, version);
}

static void lose_source(pf_fleet_t *fleet)
{
    heft_publisher_destroy(fleet->pub);
    fleet->pub = NULL;
}

/* What the coordinator answers, until it has this in it. */
static void await_reply(const pf_fleet_t *fleet, const char *path, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t deadline = heft__clock_mono_ns() + soon_ns;
    for (;;) {
        char *reply = NULL;
        EXPECT_STATUS(
            heft_client_get(heft_coordinator_get_url(fleet->coordinator), path, 5000, &reply, &err),
            HEFT_OK);
        const bool has = strstr(reply, part) != NULL;
        if (!has && heft__clock_mono_ns() > deadline) {
            fail_msg("%s without \"%s\": %s", path, part, reply);
        }
        heft_string_free(reply);
        if (has) {
            return;
        }
        (void)sched_yield();
    }
}

static void expect_feeds(const pf_fleet_t *fleet, int committed, int failed)
{
    char text[160];
    (void)snprintf(text, sizeof text,
                   "heft_feeds_total{outcome=\"committed\"} %d\n"
                   "heft_feeds_total{outcome=\"failed\"} %d\n",
                   committed, failed);
    await_reply(fleet, "/metrics", text);
}

/* The fleet as it was, plus the engines of a replica that comes late, without a source. */
static void join_late(const pf_opts_t *opts)
{
    pf_fleet_t fleet;
    start_with_version(&fleet, opts, 3);
    lose_source(&fleet);
    const int n_before = (int)fleet.n_engines;
    int pauses[PF_MAX_ENGINES];
    for (int i = 0; i < n_before; i++) {
        pauses[i] = atomic_load(&fleet.engines[i].n_paused);
    }
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    pf_expect_version(&fleet, 3);
    expect_feeds(&fleet, 1, 0);
    await_reply(&fleet, "/v1/rounds", "\"kind\":\"feed\"");
    for (int i = 0; i < n_before; i++) { /* who served goes on serving, undisturbed */
        pf_engine_t *e = &fleet.engines[i];
        assert_int_equal(atomic_load(&e->n_paused), pauses[i]);
        assert_int_equal(atomic_load(&e->n_flipped), 1);
        pf_await(&e->n_reads, atomic_load(&e->n_reads) + 1);
    }
    pf_await(&late0->n_reads, 1);
    pf_await(&late1->n_reads, 1);
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

static void late_join_from_peer(void **state)
{
    (void)state;
    join_late(&small);
}

/* Where memory cannot be addressed, in chunks. */
static void late_join_from_peer_by_puts(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_opts_t opts = small;
    EXPECT_STATUS(heft__loop_create(false, &opts.loop, &err), HEFT_OK);
    join_late(&opts);
    heft__loop_destroy(opts.loop);
}

/* Those that receive pushes in place can feed as well. */
static void who_receives_in_place_can_feed(void **state)
{
    (void)state;
    pf_opts_t opts = small;
    opts.in_place = 3;
    join_late(&opts);
}

/* A rank that has died and come back: its engine serves again as a whole. */
static void a_rank_that_returns_is_fed(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    start_with_version(&fleet, &small, 1);
    lose_source(&fleet);
    pf_remove_engine(&fleet, &fleet.engines[1]);
    pf_engine_t *again = pf_add_engine(&fleet, 0, 1);
    pf_await_serving(again);
    pf_expect_version(&fleet, 1);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* A part of an engine could not serve: it is fed when it is whole, in one round. */
static void engines_are_fed_whole(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    start_with_version(&fleet, &small, 1);
    pf_engine_t *first = pf_add_engine(&fleet, 2, 0);
    await_reply(&fleet, "/v1/status", "destination.heft.2.0");
    assert_int_equal(heft_subscriber_is_serving(first->sub), 0);
    pf_engine_t *second = pf_add_engine(&fleet, 2, 1);
    pf_await_serving(first);
    pf_await_serving(second);
    expect_feeds(&fleet, 1, 0);
    assert_int_equal(atomic_load(&first->n_flipped), 1);
    pf_stop(&fleet);
}

/* Bytes that are not what the source said are never served; another engine feeds instead. */
static void a_feeder_with_broken_memory_is_found_out(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    start_with_version(&fleet, &small, 1);
    lose_source(&fleet);
    pf_engine_t *broken = &fleet.engines[0];
    (void)pthread_mutex_lock(&broken->gate); /* its reader would notice */
    ((uint8_t *)broken->params.data[1])[5] ^= 1;
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    expect_feeds(&fleet, 1, 1);
    await_reply(&fleet, "/v1/rounds", "arrived, ");
    assert_true(fm_params_equal(&fleet.model, &late0->params, 0, 1));
    assert_true(fm_params_equal(&fleet.model, &late1->params, 1, 1));
    ((uint8_t *)broken->params.data[1])[5] ^= 1;
    (void)pthread_mutex_unlock(&broken->gate);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* ---- a push in the meantime ---- */

static atomic_int is_held, may_go;

static void hold(pf_engine_t *engine)
{
    (void)engine;
    atomic_store(&is_held, 1);
    pf_await(&may_go, 1);
}

typedef struct pusher {
    pf_fleet_t *fleet;
    heft_status_t status;
    heft_error_t err;
} pusher_t;

static void *push_two(void *arg)
{
    pusher_t *pusher = arg;
    heft_push_result_t result;
    pusher->status = pf_push(pusher->fleet, 2, &result, &pusher->err);
    return NULL;
}

/* A push begins while one engine is held in the hook; both come to their end. */
static void push_into_feed(bool in_flipped, int n_committed, int n_failed)
{
    pf_fleet_t fleet;
    pthread_t thread;
    start_with_version(&fleet, &small, 1);
    pusher_t pusher = { .fleet = &fleet, .err = HEFT_ERROR_INIT };
    atomic_store(&is_held, 0);
    atomic_store(&may_go, 0);
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    atomic_store(in_flipped ? &late0->in_flipped : &late0->in_pause, hold);
    (void)pf_add_engine(&fleet, 2, 1);
    pf_await(&is_held, 1);
    assert_int_equal(pthread_create(&thread, NULL, push_two, &pusher), 0);
    if (!in_flipped) { /* called off, and its end is waited for */
        await_reply(&fleet, "/v1/rounds", "canceled by the caller");
    }
    atomic_store(&may_go, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (pusher.status != HEFT_OK) {
        fail_msg("%s", pusher.err.message);
    }
    pf_expect_version(&fleet, 2);
    expect_feeds(&fleet, n_committed, n_failed);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void a_push_goes_before_a_feed(void **state)
{
    (void)state;
    push_into_feed(false, 0, 1);
}

static void a_push_waits_for_a_feed_that_flips(void **state)
{
    (void)state;
    push_into_feed(true, 1, 0);
}

/* ---- faults ---- */

/* Every put in turn goes wrong in some way: nothing of it is served, and the next feed brings it.
 */
static void a_put_that_fails_is_made_good(void **state)
{
    (void)state;
    static const heft__loop_fault_t faults[] = { HEFT__LOOP_FAIL, HEFT__LOOP_CORRUPT_AGAIN,
                                                 HEFT__LOOP_SWAP_HALVES };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        pf_fleet_t fleet;
        pf_opts_t opts = small;
        EXPECT_STATUS(heft__loop_create(false, &opts.loop, &err), HEFT_OK);
        start_with_version(&fleet, &opts, 1);
        lose_source(&fleet);
        heft__loop_set_fault(opts.loop, faults[i], (int64_t)i);
        pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
        pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
        pf_await_serving(late0);
        pf_await_serving(late1);
        assert_true(heft__loop_was_reached(opts.loop));
        expect_feeds(&fleet, 1, 1);
        pf_expect_version(&fleet, 1);
        pf_expect_untorn(&fleet, false);
        pf_stop(&fleet);
        heft__loop_destroy(opts.loop);
    }
}

/* Its flip breaks off after the last byte: nobody is poisoned, and the next feed writes it anew. */
static void a_flip_that_breaks_off_is_made_good(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    start_with_version(&fleet, &small, 1);
    lose_source(&fleet);
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    atomic_store(&late0->fail_flipped, 1);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    await_reply(&fleet, "/v1/rounds", "\"state\":\"partially_committed\"");
    expect_feeds(&fleet, 1, 1);
    pf_expect_version(&fleet, 1);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* Without the source, and with a coordinator that has started anew: who serves knows enough. */
static void a_coordinator_that_restarted_feeds(void **state)
{
    (void)state;
    char *dir = heft_test_mkdir();
    char file[600];
    pf_opts_t opts = small;
    pf_fleet_t fleet;
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    opts.state_file = file;
    start_with_version(&fleet, &opts, 1);
    lose_source(&fleet);
    pf_restart_coordinator(&fleet);
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    pf_expect_version(&fleet, 1);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
    heft_test_rmdir(dir);
}

/* In the middle of a feed: before its decision it is aborted, and a new one begins; after it the
 * flip stands. */
static void restart_in_feed(bool in_flipped)
{
    char *dir = heft_test_mkdir();
    char file[600];
    pf_opts_t opts = small;
    pf_fleet_t fleet;
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    opts.state_file = file;
    start_with_version(&fleet, &opts, 1);
    atomic_store(&is_held, 0);
    atomic_store(&may_go, 0);
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    atomic_store(in_flipped ? &late0->in_flipped : &late0->in_pause, hold);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    pf_await(&is_held, 1);
    pf_restart_coordinator(&fleet);
    atomic_store(&may_go, 1);
    pf_await_serving(late0);
    pf_await_serving(late1);
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
    heft_test_rmdir(dir);
}

static void a_restart_in_a_feed_loses_nothing(void **state)
{
    (void)state;
    restart_in_feed(false);
    restart_in_feed(true);
}

static void without_feeds_the_next_push_brings_it(void **state)
{
    (void)state;
    pf_opts_t opts = small;
    pf_fleet_t fleet;
    opts.no_feed = true;
    start_with_version(&fleet, &opts, 1);
    (void)pf_add_engine(&fleet, 2, 0);
    (void)pf_add_engine(&fleet, 2, 1);
    push_ok(&fleet, 1);
    expect_feeds(&fleet, 0, 0);
    pf_stop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_join_from_peer),
        cmocka_unit_test(late_join_from_peer_by_puts),
        cmocka_unit_test(who_receives_in_place_can_feed),
        cmocka_unit_test(a_rank_that_returns_is_fed),
        cmocka_unit_test(engines_are_fed_whole),
        cmocka_unit_test(a_feeder_with_broken_memory_is_found_out),
        cmocka_unit_test(a_push_goes_before_a_feed),
        cmocka_unit_test(a_push_waits_for_a_feed_that_flips),
        cmocka_unit_test(a_put_that_fails_is_made_good),
        cmocka_unit_test(a_flip_that_breaks_off_is_made_good),
        cmocka_unit_test(a_coordinator_that_restarted_feeds),
        cmocka_unit_test(a_restart_in_a_feed_loses_nothing),
        cmocka_unit_test(without_feeds_the_next_push_brings_it),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
