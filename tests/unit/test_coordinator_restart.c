/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinators that end and come back: what is on disk, what is lost, what a stop still does. */
#include "rounds_fleet.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

static uint16_t port_of(const char *url)
{
    return (uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10);
}

static void restart_coordinator(fleet_t *f, heft_coordinator_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    opts->port = port_of(f->url);
    heft_coordinator_stop(f->coordinator);
    EXPECT_STATUS(heft_coordinator_start(opts, &f->coordinator, &err), HEFT_OK);
    f->url = heft_coordinator_get_url(f->coordinator);
}

static int64_t status_int(const char *url, const char *key)
{
    char *reply = NULL;
    assert_int_equal(fleet_request(url, "GET", "/v1/status", NULL, &reply), 200);
    json_t *root = json_loads(reply, 0, NULL);
    const int64_t value = json_integer_value(json_object_get(root, key));
    json_decref(root);
    heft__free(reply);
    return value;
}

static void epoch_and_sequence_survive_restart(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    char *dir = heft_test_mkdir();
    char file[600];
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    heft_coordinator_opts_t opts = quick_opts();
    opts.state_file = file;
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 5, "a"));
    expect_outcome(&out, "committed");
    const int64_t epoch = status_int(f->url, "epoch");
    const int64_t sequence = status_int(f->url, "sequence");
    restart_coordinator(f, &opts);
    assert_int_equal(status_int(f->url, "epoch"), epoch + 1);
    assert_int_equal(status_int(f->url, "sequence"), sequence);
    assert_int_equal(status_int(f->url, "committed_version"), 5);
    char *reply = NULL;
    (void)fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":4,\"key\":\"b\"}", &reply);
    assert_non_null(strstr(reply, "version_regress"));
    heft__free(reply);
    out = outcome_of(fleet_push(f->url, 6, "c")); /* the next number, not one of before */
    expect_outcome(&out, "committed");
    assert_int_equal(status_int(f->url, "sequence"), sequence + 1);
    restart_coordinator(f, &opts);
    assert_int_equal(status_int(f->url, "epoch"), epoch + 2);
    assert_int_equal(status_int(f->url, "sequence"), sequence + 1);
    fleet_stop(f);
    heft_test_rmdir(dir);
    free(f);
}

static void no_decision_means_abort(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    char *dir = heft_test_mkdir();
    char file[600];
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    heft_coordinator_opts_t opts = quick_opts();
    opts.state_file = file;
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 5, "a"));
    expect_outcome(&out, "committed");
    (void)pthread_mutex_lock(&f->dest[1].lock);
    f->dest[1].hold_phase = HEFT__PHASE_PAUSE;
    f->dest[1].n_orders[HEFT__PHASE_PAUSE] = 0;
    (void)pthread_mutex_unlock(&f->dest[1].lock);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &begun), 202);
    fleet_await_order(&f->dest[1], HEFT__PHASE_PAUSE);
    restart_coordinator(f, &opts);
    fleet_member_release(&f->dest[1]);
    json_t *root = json_loads(begun, 0, NULL);
    out = outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "aborted");
    await_live(&f->dest[0], 5, true);
    await_live(&f->dest[1], 5, true);
    out = outcome_of(fleet_push(f->url, 6, "c"));
    expect_outcome(&out, "committed");
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    heft_test_rmdir(dir);
    free(f);
}

static void decision_durable_before_flip(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    char *dir = heft_test_mkdir();
    char file[600];
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    heft_coordinator_opts_t opts = quick_opts();
    opts.state_file = file;
    f->dest[1].hold_phase = HEFT__PHASE_FLIP;
    fleet_start(f, &opts);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &begun), 202);
    fleet_await_order(&f->dest[1], HEFT__PHASE_FLIP);
    restart_coordinator(f, &opts);
    fleet_member_release(&f->dest[1]);
    json_t *root = json_loads(begun, 0, NULL);
    const heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "committed");
    await_live(&f->dest[0], 6, true);
    await_live(&f->dest[1], 6, true);
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    heft_test_rmdir(dir);
    free(f);
}

/* A folder where new records are written: they cannot be. It may have to wait for one in progress.
 */
static void block_writes(const char *aside)
{
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    while (mkdir(aside, 0700) != 0) {
        assert_true(heft__clock_mono_ns() < limit);
    }
}

static void unwritable_state_file_stops_the_round(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    char *dir = heft_test_mkdir();
    char file[600];
    char aside[620];
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    (void)snprintf(aside, sizeof aside, "%s.new", file);
    heft_coordinator_opts_t opts = quick_opts();
    opts.state_file = file;
    fleet_start(f, &opts);
    block_writes(aside);
    char *reply = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &reply), 500);
    assert_non_null(strstr(reply, "ERR_IO"));
    heft__free(reply);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_PREFLIGHT], 0);
    assert_int_equal(rmdir(aside), 0);

    /* and when the decision cannot be written, everyone resumes the old version */
    heft__outcome_t out = outcome_of(fleet_push(f->url, 6, "b"));
    expect_outcome(&out, "committed");
    (void)pthread_mutex_lock(&f->dest[1].lock);
    f->dest[1].hold_phase = HEFT__PHASE_PAUSE;
    f->dest[1].n_orders[HEFT__PHASE_PAUSE] = 0;
    (void)pthread_mutex_unlock(&f->dest[1].lock);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":7,\"key\":\"c\"}", &reply), 202);
    fleet_await_order(&f->dest[1], HEFT__PHASE_PAUSE);
    block_writes(aside);
    fleet_member_release(&f->dest[1]);
    json_t *root = json_loads(reply, 0, NULL);
    out = outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "aborted");
    assert_int_equal(out.cause.status, HEFT_ERR_IO);
    await_live(&f->dest[0], 6, true);
    await_live(&f->dest[1], 6, true);
    json_decref(root);
    heft__free(reply);
    fleet_stop(f);
    heft_test_rmdir(dir);
    free(f);
}

static void two_coordinators_do_not_share_a_state_file(void **state)
{
    (void)state;
    char *dir = heft_test_mkdir();
    char file[600];
    heft_error_t err = HEFT_ERROR_INIT;
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    heft_coordinator_opts_t opts = quick_opts();
    opts.state_file = file;
    heft_coordinator_t *a = NULL;
    heft_coordinator_t *b = NULL;
    EXPECT_STATUS(heft_coordinator_start(&opts, &a, &err), HEFT_OK);
    EXPECT_STATUS(heft_coordinator_start(&opts, &b, &err), HEFT_ERR_BUSY);
    assert_null(b);
    heft_coordinator_stop(a);
    heft_test_rmdir(dir);
}

static void source_restart_in_stage_aborts(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->source.hold_phase = HEFT__PHASE_STAGE;
    fleet_start(f, &opts);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &begun), 202);
    fleet_await_order(&f->source, HEFT__PHASE_STAGE);
    fleet_member_stop(&f->source);
    f->source = (fleet_member_t){ .url = NULL };
    fleet_member_start(&f->source, f->url, HEFT__ROLE_SOURCE, 0, 0);
    json_t *root = json_loads(begun, 0, NULL);
    heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    /* both destinations had everything, so nothing can still be on its way */
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, "source.heft.0.0");
    fleet_await_bound(&f->source);
    out = outcome_of(fleet_push(f->url, 6, "c"));
    expect_outcome(&out, "committed");
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    free(f);
}

/* Hold a phase of one member, lose the coordinator and its state, and let another take over. */
static void lose_state_in(heft__phase_t phase, const char *expected, int64_t live)
{
    fleet_t *f = fleet_new();
    heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts); /* its state is in memory alone */
    heft__outcome_t out = outcome_of(fleet_push(f->url, 5, "a"));
    (void)pthread_mutex_lock(&f->dest[1].lock);
    f->dest[1].hold_phase = phase;
    f->dest[1].n_orders[phase] = 0;
    (void)pthread_mutex_unlock(&f->dest[1].lock);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &begun), 202);
    fleet_await_order(&f->dest[1], phase);
    await_live(&f->dest[0], live, false);
    restart_coordinator(f, &opts);
    fleet_member_release(&f->dest[1]);
    await_live(&f->dest[0], live, true);
    await_live(&f->dest[1], live, true);
    json_t *root = json_loads(begun, 0, NULL);
    out = outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, expected);
    fleet_await_source(f->url);
    json_decref(root);
    heft__free(begun);
    out = outcome_of(fleet_push(f->url, 7, "c"));
    expect_outcome(&out, "committed");
    fleet_stop(f);
    free(f);
}

static void state_file_lost_cooperative(void **state)
{
    (void)state;
    lose_state_in(HEFT__PHASE_PAUSE, "aborted", 5);
    lose_state_in(HEFT__PHASE_FLIP, "committed", 6);
}

/* ---- stopping ---- */

typedef struct drainer {
    heft_coordinator_t *coordinator;
    atomic_bool is_done;
    heft_status_t status;
} drainer_t;

static void *drain(void *arg)
{
    drainer_t *d = arg;
    d->status = heft_coordinator_drain(d->coordinator, 20000, NULL);
    atomic_store(&d->is_done, true);
    return NULL;
}

static bool is_draining(const char *url)
{
    char *reply = NULL;
    assert_int_equal(fleet_request(url, "GET", "/v1/status", NULL, &reply), 200);
    const bool is = strstr(reply, "\"draining\":true") != NULL;
    heft__free(reply);
    return is;
}

/* Who follows a round and asks now and then finds out how it ended, although a stop waited for
 * nothing but that end. */
static void a_stop_tells_the_end_between_two_requests(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[0].hold_phase = HEFT__PHASE_FLIP;
    fleet_start(f, &opts);
    char *begun = NULL;
    char *reply = NULL;
    char path[80];
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":6,\"key\":\"b\"}", &begun), 202);
    json_t *root = json_loads(begun, 0, NULL);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s",
                   json_string_value(json_object_get(root, "round")));
    fleet_await_order(&f->dest[0], HEFT__PHASE_FLIP);
    assert_int_equal(fleet_request(f->url, "GET", path, NULL, &reply), 200);
    expect_text(reply, "state", "flipping");
    heft__free(reply);
    drainer_t d = { .coordinator = f->coordinator };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, drain, &d), 0);
    while (!is_draining(f->url)) {
    }
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":7,\"key\":\"c\"}", &reply), 503);
    assert_non_null(strstr(reply, "shutting down and begins no more rounds"));
    heft__free(reply);
    fleet_member_release(&f->dest[0]);
    await_live(&f->dest[1], 6, true);
    /* asked anew: the end, or a moment before it */
    const char *ended = NULL;
    for (int64_t until = heft__clock_mono_ns() + FLEET_WAIT_NS; ended == NULL;) {
        assert_true(heft__clock_mono_ns() < until);
        assert_false(atomic_load(&d.is_done));
        assert_int_equal(fleet_request(f->url, "GET", path, NULL, &reply), 200);
        ended = strstr(reply, "\"ended\":true");
        if (ended != NULL) {
            expect_text(reply, "state", "committed");
        }
        heft__free(reply);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(d.status, HEFT_OK);
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epoch_and_sequence_survive_restart),
        cmocka_unit_test(no_decision_means_abort),
        cmocka_unit_test(decision_durable_before_flip),
        cmocka_unit_test(unwritable_state_file_stops_the_round),
        cmocka_unit_test(state_file_lost_cooperative),
        cmocka_unit_test(two_coordinators_do_not_share_a_state_file),
        cmocka_unit_test(source_restart_in_stage_aborts),
        cmocka_unit_test(a_stop_tells_the_end_between_two_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
