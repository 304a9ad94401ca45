/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of members in a whole fleet: each is done once, one after the other, and again when it is
 * not known whether it was.
 */
#include "push_fleet.h"

#include "sync/member_private.h"

#include <sched.h>

static const pf_opts_t small = { .width = 32, .n_replicas = 2, .phase_ms = 5000 };

static void push_ok(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(pf_push(fleet, version, result, &err), HEFT_OK);
    assert_string_equal(result->state, "committed");
    pf_expect_version(fleet, version);
}

/* Manifests are bound when a member starts, and read once: rounds use what is there. */
static void manifest_collected_once(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const heft_plan_t *plans[PF_MAX_ENGINES] = { NULL };
    pf_start(&fleet, &small);
    for (int64_t version = 1; version <= 3; version++) {
        push_ok(&fleet, version, &result);
        assert_int_equal(fleet.pub->member->n_binds_done, 1);
        assert_int_equal(fleet.pub->fleet.n_compiled, 1); /* one reading of each rank's manifest */
        for (uint32_t i = 0; i < fleet.n_engines; i++) {
            const heft_subscriber_t *sub = fleet.engines[i].sub;
            /* set_object three times, bound at once; then the source that it is planned for */
            assert_int_equal(sub->member->n_binds_done, 4);
            assert_true(version == 1 || sub->work.plan == plans[i]);
            plans[i] = sub->work.plan;
        }
    }
    pf_stop(&fleet);
}

/* Equal names on two replicas are two places, not one. */
static void replicas_same_names_both_written(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    const int64_t n_bytes = result.n_bytes;
    for (uint32_t i = 0; i < 2; i++) {
        const pf_engine_t *a = &fleet.engines[i];
        const pf_engine_t *b = &fleet.engines[i + 2];
        assert_int_equal(a->rank, b->rank);
        assert_int_not_equal(a->replica, b->replica);
        for (uint32_t k = 0; k < FM_PARAMS; k++) {
            assert_ptr_not_equal(a->params.data[k], b->params.data[k]);
            assert_memory_equal(a->params.data[k], b->params.data[k], (size_t)a->params.bytes[k]);
        }
    }
    (void)pf_add_engine(&fleet, 2, 0);
    (void)pf_add_engine(&fleet, 2, 1);
    push_ok(&fleet, 2, &result);
    assert_int_equal(result.n_destinations, 6);
    assert_int_equal(result.n_bytes, n_bytes / 2 * 3);
    pf_stop(&fleet);
}

/* In the pause hook: the round is called off, and the abort is there before the hook returns. */
static void cancel_and_await_abort(pf_engine_t *e)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__member_t *member = e->sub->member;
    char path[96];
    char *reply = NULL;
    (void)pthread_mutex_lock(&member->lock);
    const heft__round_id_t round = member->report.round;
    (void)pthread_mutex_unlock(&member->lock);
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld/cancel", (long long)round.epoch,
                   (long long)round.seq);
    EXPECT_STATUS(heft_client_post(heft_coordinator_get_url(e->fleet->coordinator), path, "{}",
                                   10000, &reply, &err),
                  HEFT_OK);
    heft_string_free(reply);
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    while (!heft__member_is_called_off(member, round) && heft__clock_mono_ns() < deadline) {
    }
    e->fleet->n_seen += heft__member_is_called_off(member, round);
    (void)pthread_mutex_lock(&member->lock);
    e->fleet->n_unseen +=
        member->report.phase != HEFT__PHASE_PAUSE || member->report.result != HEFT__RESULT_WORKING;
    (void)pthread_mutex_unlock(&member->lock);
    e->fleet->n_unseen += atomic_load(&e->n_resumed) != 1;
}

/* An abort waits for the step that is in hand, and then undoes it. */
static void phases_serialised(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    pf_engine_t *e = &fleet.engines[2];
    atomic_store(&e->in_pause, cancel_and_await_abort);
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_CANCELED);
    assert_string_equal(result.state, "aborted");
    assert_int_equal(fleet.n_seen, 1); /* the abort was there while the hook ran */
    assert_int_equal(fleet.n_unseen, 0);
    assert_int_equal(atomic_load(&e->n_paused), 2);
    assert_int_equal(atomic_load(&e->n_resumed), 2);
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* In the pause hook, until the test lets it go. */
static atomic_bool is_let_go;

static void hang(pf_engine_t *e)
{
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(20000000000);
    e->fleet->n_seen++;
    while (!atomic_load(&is_let_go) && heft__clock_mono_ns() < deadline) {
        (void)sched_yield();
    }
}

static char *result_of(const pf_fleet_t *fleet, const heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char path[80];
    char *json = NULL;
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld", (long long)result->round_epoch,
                   (long long)result->round_seq);
    EXPECT_STATUS(
        heft_client_get(heft_coordinator_get_url(fleet->coordinator), path, 20000, &json, &err),
        HEFT_OK);
    return json;
}

/* One engine refuses and another one does not answer: the round ends by its deadlines, names both,
 * and everybody serves what was served before. */
static void two_engines_fail_and_both_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .phase_ms = 2500 };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    atomic_store(&is_let_go, false);
    atomic_store(&fleet.engines[1].fail_pause, 1);
    atomic_store(&fleet.engines[2].in_pause, hang);
    const int64_t began = heft__clock_mono_ns();
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_STATE);
    assert_true(heft__clock_mono_ns() - began < INT64_C(10000000000));
    EXPECT_MESSAGE("destination.heft.0.1: the pause hook failed");
    assert_string_equal(result.state, "aborted");
    assert_int_equal(fleet.n_seen, 1);
    char *json = result_of(&fleet, &result);
    assert_non_null(strstr(json, "\"member\":\"destination.heft.0.1\""));
    assert_non_null(strstr(json, "\"destination.heft.1.0: abort is not confirmed\""));
    heft_string_free(json);
    for (uint32_t i = 0; i < fleet.n_engines; i++) { /* whoever answers serves on at once */
        if (i != 2) {
            pf_await_serving(&fleet.engines[i]);
            assert_int_equal(heft_subscriber_get_version(fleet.engines[i].sub), 1);
        }
    }
    atomic_store(&is_let_go, true);
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        pf_await_serving(&fleet.engines[i]);
    }
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 3, &result);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* Put an order into the mailbox, as if it had come. */
static void give_order_of(pf_engine_t *e, heft__round_id_t round, heft__phase_t target)
{
    heft__member_t *member = e->sub->member;
    (void)pthread_mutex_lock(&member->lock);
    heft__order_fini(&member->order);
    heft__order_init(&member->order);
    member->order.sequence = member->handed_out;
    member->order.epoch = member->report.round.epoch;
    member->order.round = round;
    member->order.target = target;
    member->order.decision = HEFT__DECISION_COMMIT;
    member->order.left_ms = 1000;
    member->has_order = true;
    (void)pthread_cond_broadcast(&member->changed);
    (void)pthread_mutex_unlock(&member->lock);
}

static void give_order(pf_engine_t *e, heft__phase_t target)
{
    give_order_of(e, e->sub->member->report.round, target);
}

static void abort_after_flip_noop(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    /* one rank breaks in its flip: the other one of its engine has flipped, and stays so */
    atomic_store(&fleet.engines[0].fail_flipped, 1);
    assert_int_not_equal(pf_push(&fleet, 2, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "partially_committed");
    pf_engine_t *e = &fleet.engines[1];
    heft__member_t *member = e->sub->member;
    give_order(e, HEFT__PHASE_ABORT);
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    bool is_done = false;
    while (!is_done && heft__clock_mono_ns() < deadline) {
        (void)pthread_mutex_lock(&member->lock);
        is_done =
            member->report.phase == HEFT__PHASE_ABORT && member->report.result == HEFT__RESULT_OK;
        (void)pthread_mutex_unlock(&member->lock);
    }
    assert_true(is_done);
    assert_int_equal(member->report.state, HEFT__STATE_FLIPPED);
    assert_int_equal(heft_subscriber_get_version(e->sub), 2);
    assert_int_equal(heft_subscriber_is_serving(e->sub), 0);
    assert_int_equal(atomic_load(&e->n_resumed), 1);
    assert_true(fm_params_equal(&fleet.model, &e->params, e->rank, 2));
    pf_stop(&fleet);
}

static void await_taken(pf_engine_t *e)
{
    heft__member_t *member = e->sub->member;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(20000000000);
    bool is_taken = false;
    while (!is_taken) {
        assert_true(heft__clock_mono_ns() < deadline);
        (void)sched_yield();
        (void)pthread_mutex_lock(&member->lock);
        is_taken = !member->has_order;
        (void)pthread_mutex_unlock(&member->lock);
    }
}

static void await_released(pf_engine_t *e, heft__round_id_t round)
{
    heft__member_t *member = e->sub->member;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(20000000000);
    bool is_released = false;
    while (!is_released) {
        assert_true(heft__clock_mono_ns() < deadline);
        (void)sched_yield();
        (void)pthread_mutex_lock(&member->lock);
        const heft__report_t *r = &member->report;
        is_released = heft__round_id_equal(r->round, round) && r->phase == HEFT__PHASE_RELEASE &&
                      r->result == HEFT__RESULT_OK;
        (void)pthread_mutex_unlock(&member->lock);
    }
}

/* What the coordinator would not send: a member takes none of it up, in whatever round it comes. */
static void out_of_order_refused(void **state)
{
    (void)state;
    static const heft__phase_t targets[] = { HEFT__PHASE_VERIFY, HEFT__PHASE_PAUSE,
                                             HEFT__PHASE_FLIP, HEFT__PHASE_RESUME };
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    pf_engine_t *e = &fleet.engines[1];
    const heft__round_id_t last = { result.round_epoch, result.round_seq };
    await_released(e, last);
    for (int64_t step = -1; step <= 3; step++) { /* of before, this one, the next, a later one */
        for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
            const heft__round_id_t round = { last.epoch, last.seq + step };
            give_order_of(e, round, targets[i]);
            await_taken(e);
            give_order_of(e, round, targets[i]); /* taken only after the first one was judged */
            await_taken(e);
            heft__member_t *member = e->sub->member;
            (void)pthread_mutex_lock(&member->lock);
            assert_true(heft__round_id_equal(member->report.round, last));
            assert_int_equal(member->report.state, HEFT__STATE_IDLE);
            (void)pthread_mutex_unlock(&member->lock);
        }
    }
    assert_int_equal(atomic_load(&e->n_paused), 1);
    assert_int_equal(atomic_load(&e->n_flipped), 1);
    assert_int_equal(atomic_load(&e->n_resumed), 1);
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result); /* the round that one of them named, as it should be */
    assert_int_equal(result.round_seq, last.seq + 1);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void restart_coordinator(pf_engine_t *e)
{
    pf_restart_coordinator(e->fleet);
    e->fleet->n_seen++;
}

/* The work of a flip is done, and the coordinator dies before it has heard: the next one orders it
 * again, and the bytes are the same. */
static void crash_between_work_and_record(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    char *dir = heft_test_mkdir();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .state_file = path };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    atomic_store(&fleet.engines[3].in_flipped, restart_coordinator);
    const heft_status_t status = pf_push(&fleet, 2, &result, &err);
    pf_await(&fleet.engines[3].n_flipped, 2); /* the hook is over, and what it did is seen here */
    assert_int_equal(fleet.n_seen, 1);
    if (status != HEFT_OK) { /* what the source was told depends on when it asked again */
        print_message("the push said: %s\n", err.message);
    }
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        pf_await(&fleet.engines[i].n_resumed, 2);
        pf_await_serving(&fleet.engines[i]);
        assert_int_equal(atomic_load(&fleet.engines[i].n_flipped), 2); /* not written twice */
    }
    pf_expect_version(&fleet, 2);
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(20000000000);
    heft_status_t next = HEFT_ERR_BUSY; /* until the round found in the record is over */
    while (next != HEFT_OK && heft__clock_mono_ns() < deadline) {
        next = pf_push(&fleet, 3, &result, &err);
    }
    EXPECT_STATUS(next, HEFT_OK);
    pf_expect_version(&fleet, 3);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
    heft_test_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_collected_once),
        cmocka_unit_test(replicas_same_names_both_written),
        cmocka_unit_test(phases_serialised),
        cmocka_unit_test(two_engines_fail_and_both_are_named),
        cmocka_unit_test(abort_after_flip_noop),
        cmocka_unit_test(out_of_order_refused),
        cmocka_unit_test(crash_between_work_and_record),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
