/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole fleet through failures of the flip and back: which bytes are served, by whom, and that no
 * reader ever sees a mixture.
 */
#include "push_fleet.h"

#include <jansson.h>
#include <sched.h>

static const pf_opts_t small = { .width = 32, .n_replicas = 2, .phase_ms = 5000, .no_feed = true };

static const char idle[] = "\"state\":\"idle\",\"poisoned\":false";

static void push_ok(pf_fleet_t *fleet, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    EXPECT_STATUS(pf_push(fleet, version, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "committed");
    pf_expect_version(fleet, version);
}

/* POST a claim; the reply's text is freed by the caller. */
static heft_status_t claim(pf_fleet_t *fleet, const pf_engine_t *e, const char *what,
                           heft_error_t *err)
{
    char body[160];
    char *reply = NULL;
    (void)snprintf(body, sizeof body,
                   "{\"members\":[{\"id\":\"destination.heft.%u.%u\",\"claim\":\"%s\"}]}",
                   e->replica, e->rank, what);
    heft_status_t status = heft_client_post(heft_coordinator_get_url(fleet->coordinator),
                                            "/v1/recover", body, 10000, &reply, err);
    heft_string_free(reply);
    return status;
}

static bool status_has(pf_fleet_t *fleet, const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *reply = NULL;
    EXPECT_STATUS(heft_client_get(heft_coordinator_get_url(fleet->coordinator), "/v1/status", 10000,
                                  &reply, &err),
                  HEFT_OK);
    const bool has = strstr(reply, text) != NULL;
    heft_string_free(reply);
    return has;
}

static void await_status(pf_fleet_t *fleet, const char *text)
{
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    while (!status_has(fleet, text)) {
        if (heft__clock_mono_ns() > deadline) {
            fail_msg("status does not come to \"%s\"", text);
        }
        (void)sched_yield();
    }
}

/* Engine 0 (replica 0, rank 0) refuses both of its flips of version 2. */
static void split(pf_fleet_t *fleet)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    push_ok(fleet, 1);
    atomic_store(&fleet->engines[0].shift_in_pause, 1);
    heft_status_t status = pf_push(fleet, 2, &result, &err);
    assert_int_equal(status, HEFT_ERR_STATE);
    EXPECT_MESSAGE("parameter \"gate_up\" moved");
    assert_string_equal(result.state, "partially_committed");
    assert_int_equal(atomic_load(&fleet->engines[0].shift_in_pause), 0); /* it was reached */
}

/* Nobody serves the old version; replica 1 serves the new one, replica 0 serves nothing. */
static void flip_partial_no_mixed_serving(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    split(&fleet);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(heft_subscriber_is_serving(fleet.engines[i].sub), 0);
    }
    assert_int_equal(heft_subscriber_get_version(fleet.engines[0].sub), 1);
    assert_int_equal(heft_subscriber_get_version(fleet.engines[1].sub), 2);
    for (int i = 2; i < 4; i++) {
        pf_await_serving(&fleet.engines[i]);
        assert_int_equal(heft_subscriber_get_version(fleet.engines[i].sub), 2);
    }
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void recover_retry_finishes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    split(&fleet);
    EXPECT_STATUS(pf_push(&fleet, 3, &result, &err), HEFT_ERR_POISONED);
    EXPECT_MESSAGE("destination.heft.0.0: it is paused and refused its flip");
    EXPECT_STATUS(claim(&fleet, &fleet.engines[1], "retry", &err), HEFT_ERR_STATE);
    /* as long as the cause is there, it changes nothing */
    EXPECT_STATUS(claim(&fleet, &fleet.engines[0], "retry", &err), HEFT_OK);
    await_status(&fleet, "\"poison\":\"it is paused and refused its flip\"");
    pf_unshift(&fleet.engines[0]);
    EXPECT_STATUS(claim(&fleet, &fleet.engines[0], "retry", &err), HEFT_OK);
    await_status(&fleet, idle);
    fm_source_fill(&fleet.model, &fleet.source, 2);
    pf_expect_version(&fleet, 2);
    push_ok(&fleet, 3);
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Every destination refuses both of its flips: nothing has been written, and nobody is left out. */
static void flip_fails_everywhere_revoked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        atomic_store(&fleet.engines[i].shift_in_pause, 1);
    }
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("parameter \"gate_up\" moved");
    assert_string_equal(result.state, "aborted");
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        assert_int_equal(atomic_load(&fleet.engines[i].shift_in_pause), 0); /* it was reached */
        assert_int_equal(atomic_load(&fleet.engines[i].n_flipped), 1);
        pf_unshift(&fleet.engines[i]);
        pf_await_serving(&fleet.engines[i]);
    }
    pf_expect_version(&fleet, 1);
    await_status(&fleet, idle);
    push_ok(&fleet, 2); /* the same number: what was revoked was never committed */
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* What waits in staging is compared again before it is copied. */
static void retry_refuses_changed_staging(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    split(&fleet);
    pf_unshift(&fleet.engines[0]);
    fleet.engines[0].sub->window->ptr[3] ^= 1;
    EXPECT_STATUS(claim(&fleet, &fleet.engines[0], "retry", &err), HEFT_OK);
    await_status(&fleet, "is staged, ");
    assert_int_equal(heft_subscriber_get_version(fleet.engines[0].sub), 1);
    assert_int_equal(heft_subscriber_is_serving(fleet.engines[0].sub), 0);
    /* so it has to be refilled, and the others need not wait for it */
    EXPECT_STATUS(claim(&fleet, &fleet.engines[0], "refill", &err), HEFT_OK);
    await_status(&fleet, idle);
    push_ok(&fleet, 2);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void refill_by_pushing_again(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    pf_engine_t *broken = &fleet.engines[0];
    atomic_store(&broken->fail_flipped, 1);
    assert_int_not_equal(pf_push(&fleet, 2, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "partially_committed");
    EXPECT_STATUS(claim(&fleet, broken, "retry", &err), HEFT_ERR_STATE);
    EXPECT_STATUS(claim(&fleet, broken, "restarted", &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("no new incarnation has registered");
    EXPECT_STATUS(claim(&fleet, broken, "refill", &err), HEFT_OK);
    await_status(&fleet, idle);
    assert_int_equal(heft_subscriber_is_serving(broken->sub), 0);
    assert_int_equal(heft_subscriber_is_serving(fleet.engines[1].sub), 0); /* its other rank */
    const int flips = atomic_load(&fleet.engines[2].n_flipped);
    push_ok(&fleet, 2);
    assert_int_equal(atomic_load(&fleet.engines[2].n_flipped), flips); /* nothing else moved */
    assert_false(status_has(&fleet, "poison\":\""));
    push_ok(&fleet, 3);
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Live parameters that are not what they should be: out of service until they are written anew. */
static void live_mismatch_leaves_service(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    char *reply = NULL;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    pf_engine_t *e = &fleet.engines[3];
    (void)pthread_mutex_lock(&e->gate);
    ((uint8_t *)e->params.data[1])[17] ^= 4;
    /* the reader is held off until the engine has left service */
    EXPECT_STATUS(heft_client_post(heft_coordinator_get_url(fleet.coordinator), "/v1/verify",
                                   "{\"key\":\"look\"}", 10000, &reply, &err),
                  HEFT_OK);
    heft_string_free(reply);
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(5000000000);
    while (heft_subscriber_is_serving(e->sub) && heft__clock_mono_ns() < deadline) {
        (void)sched_yield();
    }
    (void)pthread_mutex_unlock(&e->gate);
    assert_int_equal(heft_subscriber_is_serving(e->sub), 0);
    await_status(&fleet, "\"state\":\"idle\",\"poisoned\":true");
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_POISONED);
    EXPECT_STATUS(claim(&fleet, e, "refill", &err), HEFT_OK);
    push_ok(&fleet, 2);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* A trainer that writes while the push is on: at the last report of progress everything has been
 * read, so that only the source itself can tell. */
static int write_at_the_end(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    pf_fleet_t *fleet = arg;
    if (done_bytes == total_bytes) {
        ((uint8_t *)fleet->source.data[3])[5] ^= 1;
    }
    return heft__publisher_on_progress(fleet->pub, done_bytes, total_bytes);
}

static void source_bytes_frozen_until_release(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    heft_tensor_info_t info;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    fleet.pub->fleet.progress = write_at_the_end;
    fleet.pub->fleet.progress_arg = &fleet;
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_DIGEST);
    EXPECT_STATUS(heft_manifest_query(fleet.source.manifest, 3, &info, NULL), HEFT_OK);
    EXPECT_MESSAGE(info.name);
    EXPECT_MESSAGE("was written to before the push was over");
    assert_string_equal(result.state, "aborted");
    pf_expect_version(&fleet, 0); /* reported, not sent */
    fleet.pub->fleet.progress = heft__publisher_on_progress;
    fleet.pub->fleet.progress_arg = fleet.pub;
    pf_remove_engine(&fleet, &fleet.engines[3]); /* so that its run is made anew */
    push_ok(&fleet, 1);
    pf_stop(&fleet);
}

/* While bytes move every engine serves, and none has been asked to pause. */
static int serves_meanwhile(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    pf_fleet_t *fleet = arg;
    bool all = true;
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        all = all && heft_subscriber_is_serving(fleet->engines[i].sub) != 0 &&
              heft_subscriber_get_version(fleet->engines[i].sub) == 1 &&
              atomic_load(&fleet->engines[i].n_paused) == 1;
    }
    fleet->n_seen += all;
    fleet->n_unseen += !all;
    return heft__publisher_on_progress(fleet->pub, done_bytes, total_bytes);
}

static void no_downtime_before_pause(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    (void)pf_add_engine(&fleet, 2, 0); /* so that the run is made anew, with this callback */
    (void)pf_add_engine(&fleet, 2, 1);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 1, &result, &err), HEFT_OK);
    fleet.pub->fleet.progress = serves_meanwhile;
    fleet.pub->fleet.progress_arg = &fleet;
    pf_remove_engine(&fleet, &fleet.engines[5]);
    pf_remove_engine(&fleet, &fleet.engines[4]);
    fleet.n_engines = 4;
    push_ok(&fleet, 2);
    assert_true(fleet.n_seen > 0);
    assert_int_equal(fleet.n_unseen, 0);
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* A new process of the same layout: nothing is planned again. */
static void restart_reuses_plan(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    const uint64_t n_compiled = fleet.pub->fleet.n_compiled;
    const uint64_t n_attached = fleet.pub->fleet.n_attached;
    pf_remove_engine(&fleet, &fleet.engines[2]);
    (void)pf_add_engine(&fleet, 1, 0);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 1, &result, &err), HEFT_OK);
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2);
    assert_int_equal(fleet.pub->fleet.n_compiled, n_compiled);
    assert_int_equal(fleet.pub->fleet.n_attached, n_attached + 1);
    pf_stop(&fleet);
}

/* A new process serves nothing that it has loaded by itself. */
static void restart_with_disk_weights_not_serving(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1);
    pf_remove_engine(&fleet, &fleet.engines[0]);
    pf_engine_t *again = pf_add_engine(&fleet, 0, 0);
    for (int i = 0; i < FM_PARAMS; i++) { /* the right bytes, from elsewhere */
        memcpy(again->params.data[i], fleet.engines[2].params.data[i],
               (size_t)again->params.bytes[i]);
    }
    assert_true(fm_params_equal(&fleet.model, &again->params, 0, 1));
    assert_int_equal(heft_subscriber_get_version(again->sub), 0);
    assert_int_equal(heft_subscriber_is_serving(again->sub), 0);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 1, &result, &err), HEFT_OK);
    pf_expect_version(&fleet, 1);
    pf_stop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flip_partial_no_mixed_serving),
        cmocka_unit_test(flip_fails_everywhere_revoked),
        cmocka_unit_test(recover_retry_finishes),
        cmocka_unit_test(retry_refuses_changed_staging),
        cmocka_unit_test(refill_by_pushing_again),
        cmocka_unit_test(live_mismatch_leaves_service),
        cmocka_unit_test(no_downtime_before_pause),
        cmocka_unit_test(restart_reuses_plan),
        cmocka_unit_test(source_bytes_frozen_until_release),
        cmocka_unit_test(restart_with_disk_weights_not_serving),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
