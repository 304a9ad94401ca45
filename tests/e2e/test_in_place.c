/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Destinations that receive in place: the same bytes, a bounded buffer, and after any failure
 * inside the flip no service until they have been written anew as a whole.
 */
#include "push_fleet.h"

#include <sched.h>

static void push_ok(pf_fleet_t *fleet, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    EXPECT_STATUS(pf_push(fleet, version, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "committed");
    assert_int_equal(result.n_destinations, fleet->n_engines);
    pf_expect_version(fleet, version);
}

static heft_status_t refill(pf_fleet_t *fleet, uint32_t replica, uint32_t rank, heft_error_t *err)
{
    char body[160];
    char *reply = NULL;
    (void)snprintf(body, sizeof body,
                   "{\"members\":[{\"id\":\"destination.heft.%u.%u\",\"claim\":\"refill\"}]}",
                   replica, rank);
    heft_status_t status = heft_client_post(heft_coordinator_get_url(fleet->coordinator),
                                            "/v1/recover", body, 10000, &reply, err);
    heft_string_free(reply);
    return status;
}

/* The buffer is that of the largest parameter, and the parts are several. */
static void expect_bounded(const pf_engine_t *e)
{
    int64_t largest = 0;
    int64_t sum = 0;
    for (uint32_t i = 0; i < FM_PARAMS; i++) {
        largest = heft__max_i64(largest, e->params.bytes[i]);
        sum += e->params.bytes[i];
    }
    assert_true(e->sub->window->bytes >= largest);
    assert_true(e->sub->window->bytes < largest + 256);
    assert_true(e->sub->window->bytes < sum);
    uint32_t n_parts = 0;
    for (uint32_t first = 0; first < FM_PARAMS; n_parts++) {
        first = heft__staging_part_end(&e->sub->work.layout, first, e->sub->window->bytes);
    }
    assert_true(n_parts >= 2);
}

static void in_place_commits_bytes(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .n_threads = 2, .in_place = 3 };
    pf_start(&fleet, &opts);
    for (int64_t version = 1; version <= 4; version++) {
        push_ok(&fleet, version);
    }
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        expect_bounded(&fleet.engines[i]);
        assert_int_equal(atomic_load(&fleet.engines[i].n_flipped), 4);
    }
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* One replica of each kind, in one round. */
static void staged_and_in_place_flip_together(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    const pf_opts_t opts = { .width = 64, .n_replicas = 2, .in_place = 2 };
    pf_start(&fleet, &opts);
    for (int64_t version = 1; version <= 3; version++) {
        push_ok(&fleet, version);
    }
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* ---- faults, over puts: one for each part of the parameters' bytes and one for the digests ----
 */

static void start_loop(pf_fleet_t *fleet, bool direct)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__loop_t *loop = NULL;
    EXPECT_STATUS(heft__loop_create(direct, &loop, &err), HEFT_OK);
    const pf_opts_t opts = { .width = 32,
                             .n_replicas = 2,
                             .loop = loop,
                             .phase_ms = 2000,
                             .deadline_ms = 2000,
                             .in_place = 2 };
    pf_start(fleet, &opts);
}

static void stop_loop(pf_fleet_t *fleet)
{
    heft__loop_t *loop = fleet->loop;
    pf_stop(fleet);
    heft__loop_destroy(loop);
}

static void puts_give_the_same_bytes(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++) {
        pf_fleet_t fleet;
        start_loop(&fleet, direct == 1);
        push_ok(&fleet, 1);
        push_ok(&fleet, 2);
        pf_expect_untorn(&fleet, false);
        stop_loop(&fleet);
    }
}

/* Puts of the staged replica come first: five parameters for each of its two ranks. */
enum { STAGED_PUTS = 10 };

static void fail_in_flip(heft__loop_fault_t fault, int64_t after, const char *text)
{
    pf_fleet_t fleet;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    start_loop(&fleet, false);
    push_ok(&fleet, 1);
    heft__loop_set_fault(fleet.loop, fault, STAGED_PUTS + after);
    assert_int_not_equal(pf_push(&fleet, 2, &result, &err), HEFT_OK);
    assert_true(heft__loop_was_reached(fleet.loop));
    EXPECT_MESSAGE(text);
    assert_string_equal(result.state, "partially_committed");
    uint32_t n_suspect = 0;
    uint32_t suspect = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const pf_engine_t *e = &fleet.engines[i];
        if (e->sub->is_suspect) {
            n_suspect++;
            suspect = i;
            assert_int_equal(heft_subscriber_is_serving(e->sub), 0);
        }
    }
    assert_int_equal(n_suspect, 1);
    assert_int_equal(atomic_load(&fleet.engines[suspect].n_flipped),
                     1); /* of version 1: nothing is
                            derived from a mixture */
    assert_int_equal(fleet.engines[suspect].replica, 1);
    assert_int_equal(heft_subscriber_is_serving(fleet.engines[5 - suspect].sub),
                     0); /* its engine */
    for (int i = 0; i < 2; i++) {
        pf_await_serving(&fleet.engines[i]);
        assert_int_equal(heft_subscriber_get_version(fleet.engines[i].sub), 2);
    }
    EXPECT_STATUS(pf_push(&fleet, 3, &result, &err), HEFT_ERR_POISONED);
    /* a complete catch-up and a live digest check bring it back */
    EXPECT_STATUS(refill(&fleet, 1, fleet.engines[suspect].rank, &err), HEFT_OK);
    do {
        fm_source_fill(&fleet.model, &fleet.source, 2);
    } while (heft_publisher_push(fleet.pub, 2, &result, &err) == HEFT_ERR_BUSY);
    assert_string_equal(result.state, "committed");
    pf_expect_version(&fleet, 2);
    push_ok(&fleet, 3);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

static void in_place_failure_poisons(void **state)
{
    (void)state;
    fail_in_flip(HEFT__LOOP_FAIL, 0, "put of");           /* nothing of it has been written yet */
    fail_in_flip(HEFT__LOOP_FAIL, 3, "put of");           /* half of it has */
    fail_in_flip(HEFT__LOOP_SWAP_ELEMENTS, 2, "is live"); /* after it was checked on arrival */
    fail_in_flip(HEFT__LOOP_ZERO, 1, "is live");
}

/* Damage on the way costs one repetition, before anything live is written. */
static void damaged_chunk_is_sent_again(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    start_loop(&fleet, false);
    push_ok(&fleet, 1);
    heft__loop_set_fault(fleet.loop, HEFT__LOOP_CORRUPT, STAGED_PUTS + 3);
    push_ok(&fleet, 2);
    assert_true(heft__loop_was_reached(fleet.loop));
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

/* Gives up at its own deadline, and fences before it says so; or had all its bytes already. */
static bool has_ended_flip(pf_engine_t *e)
{
    return atomic_load(&e->last_status) == HEFT_ERR_POISONED || atomic_load(&e->n_flipped) == 2;
}

/* A put whose end is not known: it cannot land in another part, nor after the fence. */
static void held_put_cannot_land_in_another_part(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    uint32_t n_landed;
    uint32_t n_refused;
    start_loop(&fleet, false);
    push_ok(&fleet, 1);
    heft__loop_set_fault(fleet.loop, HEFT__LOOP_HOLD, STAGED_PUTS + 2);
    assert_int_not_equal(pf_push(&fleet, 2, &result, &err), HEFT_OK);
    assert_true(heft__loop_was_reached(fleet.loop));
    assert_true(strcmp(result.state, "partially_committed") == 0 ||
                strcmp(result.state, "unknown") == 0);
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(20000000000);
    pf_engine_t *const ranks = &fleet.engines[2];
    while (!(has_ended_flip(&ranks[0]) && has_ended_flip(&ranks[1]))) {
        assert_true(heft__clock_mono_ns() < deadline);
        (void)sched_yield();
    }
    for (int i = 0; i < 2; i++) { /* the put is held on its way to one of them */
        assert_int_equal(heft_subscriber_is_serving(ranks[i].sub), 0);
    }
    heft__loop_release(fleet.loop, &n_landed, &n_refused);
    assert_int_equal(n_landed, 0);
    assert_int_equal(n_refused, 1);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

/* Lets the held put go once the other replica serves the new version. */
static void *release_when_the_others_serve(void *arg)
{
    pf_fleet_t *fleet = arg;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(15000000000);
    bool is_ready = false;
    while (!is_ready && heft__clock_mono_ns() < deadline) {
        is_ready = heft__loop_was_reached(fleet->loop) &&
                   atomic_load(&fleet->engines[0].n_flipped) == 2 &&
                   atomic_load(&fleet->engines[1].n_flipped) == 2;
        (void)sched_yield();
    }
    uint32_t n_landed = 0;
    uint32_t n_refused = 0;
    fleet->n_seen = is_ready; /* the buffer that is being written has not been filled again: */
    fleet->n_unseen =
        atomic_load(&fleet->engines[2].n_flipped) + atomic_load(&fleet->engines[3].n_flipped);
    heft__loop_release(fleet->loop, &n_landed, &n_refused);
    fleet->n_unseen += n_landed == 1 && n_refused == 0 ? 0 : 100;
    return NULL;
}

/* While a put is under way its buffer is not filled again; who does not need it goes on, and when
 * it has landed everything is as if it had not been slow. */
static void held_put_holds_up_its_own_engine_alone(void **state)
{
    (void)state;
    for (int part = 0; part < 3; part++) {
        pf_fleet_t fleet;
        heft_error_t err = HEFT_ERROR_INIT;
        heft__loop_t *loop = NULL;
        pthread_t thread;
        EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
        const pf_opts_t opts = { .width = 32, .n_replicas = 2, .loop = loop, .in_place = 2 };
        pf_start(&fleet, &opts);
        push_ok(&fleet, 1);
        heft__loop_set_fault(loop, HEFT__LOOP_HOLD, STAGED_PUTS + part);
        assert_int_equal(pthread_create(&thread, NULL, release_when_the_others_serve, &fleet), 0);
        push_ok(&fleet, 2);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(fleet.n_seen, 1);
        assert_int_equal(fleet.n_unseen, 2); /* version 1 of both */
        push_ok(&fleet, 3);
        pf_expect_untorn(&fleet, false);
        stop_loop(&fleet);
    }
}

/* What fails before the decision costs nothing: nothing has been written. */
static void failure_before_the_decision_keeps_n(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .in_place = 3 };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1);
    atomic_store(&fleet.engines[2].fail_pause, 1);
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("the pause hook failed");
    assert_string_equal(result.state, "aborted");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_place_commits_bytes),
        cmocka_unit_test(staged_and_in_place_flip_together),
        cmocka_unit_test(puts_give_the_same_bytes),
        cmocka_unit_test(in_place_failure_poisons),
        cmocka_unit_test(damaged_chunk_is_sent_again),
        cmocka_unit_test(held_put_cannot_land_in_another_part),
        cmocka_unit_test(held_put_holds_up_its_own_engine_alone),
        cmocka_unit_test(failure_before_the_decision_keeps_n),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
