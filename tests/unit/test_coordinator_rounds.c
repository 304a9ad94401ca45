/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over HTTP: success, failure, versions, many members. Restarts: test_coordinator_restart.c.
 */
#include "rounds_fleet.h"

#include <sys/resource.h>

/* ---- success ---- */
static void round_commits_and_destinations_serve(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    const heft__outcome_t out = outcome_of(fleet_push(f->url, 8, "a"));
    expect_outcome(&out, "committed");
    assert_int_equal(out.version, 8);
    assert_int_equal(out.n_destinations, 2);
    assert_int_equal(out.bytes, 2000);
    assert_int_equal(out.pieces, 6);
    assert_true(out.total_s > 0);
    await_live(&f->dest[0], 8, true);
    await_live(&f->dest[1], 8, true);
    /* each phase was done once, in order, by those who have a part in it */
    const heft__phase_t phases[] = { HEFT__PHASE_PREFLIGHT, HEFT__PHASE_STAGE, HEFT__PHASE_VERIFY,
                                     HEFT__PHASE_PAUSE,     HEFT__PHASE_FLIP,  HEFT__PHASE_RESUME,
                                     HEFT__PHASE_RELEASE };
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        assert_int_equal(f->dest[0].n_works[phases[i]], 1);
        assert_int_equal(f->dest[1].n_works[phases[i]], 1);
    }
    assert_int_equal(f->source.n_works[HEFT__PHASE_PREPARE], 1);
    assert_int_equal(f->source.n_works[HEFT__PHASE_PAUSE], 0);
    assert_int_equal(f->dest[0].n_works[HEFT__PHASE_PREPARE], 0);
    assert_int_equal(f->dest[0].n_sources, 1);
    assert_string_equal(f->dest[0].sources, f->source.sources);
    fleet_stop(f);
    free(f);
}

static void two_rounds_two_versions(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 1, "a"));
    expect_outcome(&out, "committed");
    out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "committed");
    await_live(&f->dest[0], 2, true);
    await_live(&f->dest[1], 2, true);
    fleet_stop(f);
    free(f);
}

static void begin_idempotency_key(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    char *first = NULL;
    char *second = NULL;
    char *other = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &first), 202);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &second), 200);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":4,\"key\":\"k\"}", &other), 409);
    json_t *a = json_loads(first, 0, NULL);
    json_t *b = json_loads(second, 0, NULL);
    const char *round = json_string_value(json_object_get(a, "round"));
    assert_string_equal(round, json_string_value(json_object_get(b, "round")));
    heft__free(fleet_await_round(f->url, round));
    /* and long after it ended */
    heft__free(second);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &second), 200);
    expect_text(second, "state", "committed");
    assert_int_equal(f->dest[0].n_works[HEFT__PHASE_FLIP], 1);
    json_decref(a);
    json_decref(b);
    heft__free(first);
    heft__free(second);
    heft__free(other);
    fleet_stop(f);
    free(f);
}

static void single_flight(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].hold_phase = HEFT__PHASE_STAGE;
    fleet_start(f, &opts);
    char *first = NULL;
    char *second = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &first), 202);
    fleet_await_order(&f->dest[1], HEFT__PHASE_STAGE);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":4,\"key\":\"l\"}", &second), 409);
    assert_non_null(strstr(second, "ERR_BUSY"));
    /* a participant cannot leave now */
    char path[256];
    (void)snprintf(path, sizeof path, "/v1/members/%s?incarnation=%s", f->dest[0].id,
                   f->dest[0].incarnation);
    assert_int_equal(fleet_request(f->url, "DELETE", path, NULL, NULL), 409);
    fleet_member_release(&f->dest[1]);
    json_t *root = json_loads(first, 0, NULL);
    const heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "committed");
    json_decref(root);
    heft__free(first);
    heft__free(second);
    fleet_stop(f);
    free(f);
}

static void receivers_armed_first(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[0].hold_phase = HEFT__PHASE_STAGE;
    f->source.hold_phase = HEFT__PHASE_PREPARE;
    fleet_start(f, &opts);
    char *first = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &first), 202);
    fleet_await_order(&f->source, HEFT__PHASE_PREPARE);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_STAGE], 0);
    fleet_member_release(&f->source);
    fleet_await_order(&f->source, HEFT__PHASE_STAGE);
    assert_int_equal(fleet_member_get(&f->dest[0]).state, HEFT__STATE_STAGING);
    assert_true(fleet_member_get(&f->dest[1]).state != HEFT__STATE_IDLE);
    fleet_member_release(&f->dest[0]);
    json_t *root = json_loads(first, 0, NULL);
    const heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "committed");
    json_decref(root);
    heft__free(first);
    fleet_stop(f);
    free(f);
}

static void every_source_must_have_sent(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    fleet_member_t *slow = calloc(1, sizeof *slow);
    assert_non_null(slow);
    slow->hold_phase = HEFT__PHASE_STAGE;
    fleet_member_start(slow, f->url, HEFT__ROLE_SOURCE, 0, 1);
    fleet_await_bound(slow);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &begun), 202);
    fleet_await_order(slow, HEFT__PHASE_STAGE);
    fleet_await_order(&f->source, HEFT__PHASE_STAGE);
    /* the quick source and both destinations are done; the round is not */
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    while (fleet_member_get(&f->dest[0]).state != HEFT__STATE_STAGED ||
           fleet_member_get(&f->source).state != HEFT__STATE_SENT) {
        assert_true(heft__clock_mono_ns() < limit);
    }
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_VERIFY], 0);
    fleet_member_release(slow);
    json_t *root = json_loads(begun, 0, NULL);
    const heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "committed");
    assert_int_equal(slow->n_works[HEFT__PHASE_RELEASE], 1);
    json_decref(root);
    heft__free(begun);
    fleet_member_stop(slow);
    free(slow);
    fleet_stop(f);
    free(f);
}

/* ---- failure ---- */

static void expect_abort_at(heft__phase_t phase, heft__result_t result, bool source)
{
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 1, "a"));
    expect_outcome(&out, "committed");
    fleet_member_t *m = source ? &f->source : &f->dest[1];
    (void)pthread_mutex_lock(&m->lock);
    m->fail_phase = phase;
    m->fail_result = result;
    (void)pthread_mutex_unlock(&m->lock);
    out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, m->id);
    assert_int_equal(out.cause.phase, phase);
    assert_int_equal(out.cause.status, HEFT_ERR_IO);
    assert_string_equal(out.cause.cause, "injected");
    await_live(&f->dest[0], 1, true);
    await_live(&f->dest[1], 1, true);
    assert_int_equal(fleet_member_get(&f->source).state, HEFT__STATE_IDLE);
    /* an aborted version may be tried again, as a new round */
    out = outcome_of(fleet_push(f->url, 2, "c"));
    expect_outcome(&out, "committed");
    await_live(&f->dest[1], 2, true);
    fleet_stop(f);
    free(f);
}

/* ---- what sources hold together ---- */

typedef struct side {
    fleet_t *f;
    fleet_member_t *second;
} side_t;

/* A fleet with two sources: rows of w that has 10, and what the second says of its framework. */
static void start_side(side_t *side, const int64_t first[2], const int64_t second[3], uint32_t copy,
                       const char *made)
{
    const heft_coordinator_opts_t opts = quick_opts();
    side->f = fleet_new();
    side->second = calloc(1, sizeof *side->second);
    assert_non_null(side->second);
    side->f->source.part[0] = first[0];
    side->f->source.part[1] = first[1];
    side->f->source.part[2] = 10;
    memcpy(side->second->part, second, sizeof side->second->part);
    side->second->copy = copy;
    side->second->made = made;
    fleet_start(side->f, &opts);
    fleet_member_start(side->second, side->f->url, HEFT__ROLE_SOURCE, 1, 0);
    fleet_await_bound(side->second);
}

static void stop_side(side_t *side)
{
    fleet_member_stop(side->second);
    fleet_stop(side->f);
    free(side->second);
    free(side->f);
}

/* Refused before anyone plans for it, under the members' names. */
static void refuse_side(const int64_t first[2], const int64_t second[3], const char *made,
                        const char *text)
{
    side_t side;
    start_side(&side, first, second, 0, made);
    char *json = fleet_push(side.f->url, 8, "a");
    if (strstr(json, text) == NULL) {
        fail_msg("%s is not in %s", text, json);
    }
    assert_non_null(strstr(json, "\"kind\":\"side\""));
    const heft__outcome_t out = outcome_of(json);
    expect_outcome(&out, "aborted");
    assert_int_equal(side.f->dest[0].n_orders[HEFT__PHASE_PREFLIGHT], 0);
    assert_int_equal(side.f->source.n_orders[HEFT__PHASE_PREFLIGHT], 0);
    stop_side(&side);
}

static void box_gap(void **state)
{
    (void)state;
    refuse_side((int64_t[]){ 0, 4 }, (int64_t[]){ 6, 4, 10 }, NULL,
                "tensor \\\"w\\\": no source holds [4..6): 2 of 10 elements are missing");
}

static void box_overlap(void **state)
{
    (void)state;
    refuse_side((int64_t[]){ 0, 6 }, (int64_t[]){ 4, 6, 10 }, NULL,
                "overlap without a replica index: source.heft.0.0 and source.heft.1.0 both hold "
                "[4..6) as replica 0");
}

static void side_disagrees_with_itself(void **state)
{
    (void)state;
    refuse_side((int64_t[]){ 0, 6 }, (int64_t[]){ 6, 6, 12 }, NULL,
                "F32 [10] of source.heft.0.0, F32 [12] of source.heft.1.0");
    refuse_side((int64_t[]){ 0, 6 }, (int64_t[]){ 6, 4, 10 }, "jax",
                "framework\\\" is not given of source.heft.0.0, jax of source.heft.1.0");
}

/* Every member of a round gets one list, in the order of (replica, rank), whoever came first. */
static void sources_are_one_list(void **state)
{
    (void)state;
    side_t side;
    start_side(&side, (int64_t[]){ 0, 6 }, (int64_t[]){ 4, 6, 10 }, 1, NULL); /* a replica */
    heft__outcome_t out = outcome_of(fleet_push(side.f->url, 8, "a"));
    expect_outcome(&out, "committed");
    assert_int_equal(side.f->source.n_sources, 2);
    assert_int_equal(side.second->n_sources, 2);
    assert_int_equal(side.f->dest[1].n_sources, 2);
    assert_string_equal(side.f->source.sources, side.second->sources);
    assert_string_equal(side.f->source.sources, side.f->dest[1].sources);
    char first[HEFT__DIGEST_SIZE];
    memcpy(first, side.second->sources, sizeof first);
    out = outcome_of(fleet_push(side.f->url, 9, "b"));
    expect_outcome(&out, "committed");
    assert_string_equal(side.second->sources, first);
    stop_side(&side);
}

static void preflight_failure_aborts(void **state)
{
    (void)state;
    expect_abort_at(HEFT__PHASE_PREFLIGHT, HEFT__RESULT_FAILED, false);
}

static void prepare_failure_aborts(void **state)
{
    (void)state;
    expect_abort_at(HEFT__PHASE_PREPARE, HEFT__RESULT_FAILED, true);
}

static void stage_failure_keeps_n(void **state)
{
    (void)state;
    expect_abort_at(HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, false);
    expect_abort_at(HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, true);
}

static void verify_failure_aborts(void **state)
{
    (void)state;
    expect_abort_at(HEFT__PHASE_VERIFY, HEFT__RESULT_FAILED, false);
}

static void pause_failure_aborts_all(void **state)
{
    (void)state;
    expect_abort_at(HEFT__PHASE_PAUSE, HEFT__RESULT_FAILED, false);
}

static void plan_digest_mismatch_stops(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].other_plan = true;
    fleet_start(f, &opts);
    char *json = fleet_push(f->url, 2, "b");
    assert_non_null(strstr(json, "plan digest: "));
    const heft__outcome_t out = outcome_of(json);
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, f->dest[1].id);
    assert_int_equal(out.cause.status, HEFT_ERR_PROOF);
    assert_int_equal(out.n_problems, 1);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_STAGE], 0);
    fleet_stop(f);
    free(f);
}

static void transport_mismatch_before_pause(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[0].transport = "ucx";
    fleet_start(f, &opts);
    const heft__outcome_t out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, f->dest[0].id);
    assert_non_null(strstr(out.first_problem, "ucx here, shm at source.heft.0.0"));
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_STAGE], 0);
    fleet_stop(f);
    free(f);
}

static void pause_silent_member(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    heft_coordinator_opts_t opts = quick_opts();
    opts.contact_ms = 300;
    f->dest[1].die_phase = HEFT__PHASE_PAUSE;
    fleet_start(f, &opts);
    char *json = fleet_push(f->url, 2, "b");
    assert_non_null(strstr(json, "\"excluded\":true"));
    const heft__outcome_t out = outcome_of(json);
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, f->dest[1].id);
    assert_int_equal(out.cause.status, HEFT_ERR_PEER);
    assert_int_equal(out.cause.phase, HEFT__PHASE_PAUSE);
    assert_non_null(strstr(out.cause.cause, "no contact for 0.3 s"));
    fleet_stop(f);
    free(f);
}

static void phase_deadline_names_who_is_behind(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    heft_coordinator_opts_t opts = quick_opts();
    opts.pause_ms = 200;
    f->dest[1].hold_phase = HEFT__PHASE_PAUSE;
    fleet_start(f, &opts);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &begun), 202);
    fleet_await_order(&f->dest[0], HEFT__PHASE_ABORT);
    fleet_member_release(&f->dest[1]);
    json_t *root = json_loads(begun, 0, NULL);
    const heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    expect_outcome(&out, "aborted");
    assert_string_equal(out.cause_member, f->dest[1].id);
    assert_int_equal(out.cause.status, HEFT_ERR_TIMEOUT);
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    free(f);
}

static void cancel_before_the_decision_aborts(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].hold_phase = HEFT__PHASE_VERIFY;
    fleet_start(f, &opts);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &begun), 202);
    json_t *root = json_loads(begun, 0, NULL);
    const char *round = json_string_value(json_object_get(root, "round"));
    char path[128];
    (void)snprintf(path, sizeof path, "/v1/rounds/%s/cancel", round);
    fleet_await_order(&f->dest[1], HEFT__PHASE_VERIFY);
    assert_int_equal(fleet_request(f->url, "POST", path, "{}", NULL), 202);
    fleet_member_release(&f->dest[1]);
    const heft__outcome_t out = outcome_of(fleet_await_round(f->url, round));
    expect_outcome(&out, "aborted");
    assert_int_equal(out.cause.status, HEFT_ERR_CANCELED);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_PAUSE], 0);
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    free(f);
}

static void cancel_after_decision_too_late(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].hold_phase = HEFT__PHASE_FLIP;
    fleet_start(f, &opts);
    char *begun = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &begun), 202);
    json_t *root = json_loads(begun, 0, NULL);
    const char *round = json_string_value(json_object_get(root, "round"));
    char path[128];
    (void)snprintf(path, sizeof path, "/v1/rounds/%s/cancel", round);
    fleet_await_order(&f->dest[1], HEFT__PHASE_FLIP);
    char *reply = NULL;
    assert_int_equal(fleet_request(f->url, "POST", path, NULL, &reply), 202);
    expect_text(reply, "state", "flipping");
    heft__free(reply);
    fleet_member_release(&f->dest[1]);
    const heft__outcome_t out = outcome_of(fleet_await_round(f->url, round));
    expect_outcome(&out, "committed");
    json_decref(root);
    heft__free(begun);
    fleet_stop(f);
    free(f);
}

/* ---- flip ---- */

static void flip_transient_retried(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].fail_phase = HEFT__PHASE_FLIP;
    f->dest[1].fail_result = HEFT__RESULT_REFUSED;
    fleet_start(f, &opts);
    const heft__outcome_t out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "committed");
    assert_int_equal(f->dest[1].n_orders[HEFT__PHASE_FLIP], 2);
    fleet_stop(f);
    free(f);
}

static void flip_broken_midway_poisons_until_recovered(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    f->dest[1].fail_phase = HEFT__PHASE_FLIP;
    f->dest[1].fail_result = HEFT__RESULT_FAILED;
    f->dest[1].sim.role = HEFT__ROLE_DESTINATION;
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "partially_committed");
    assert_true(out.ended);
    char *reply = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":3,\"key\":\"k\"}", &reply), 409);
    assert_non_null(strstr(reply, "ERR_POISONED"));
    assert_non_null(strstr(reply, f->dest[1].id));
    heft__free(reply);
    /* the two ranks are one engine: the one that flipped must not serve alone */
    assert_false(fleet_member_get(&f->dest[0]).serving);

    char claim[256];
    (void)snprintf(claim, sizeof claim, "{\"members\":[{\"id\":\"%s\",\"claim\":\"restarted\"}]}",
                   f->dest[1].id);
    assert_int_equal(fleet_request(f->url, "POST", "/v1/recover", claim, NULL), 409);
    fleet_member_stop(&f->dest[1]);
    f->dest[1] = (fleet_member_t){ .url = NULL };
    fleet_member_start(&f->dest[1], f->url, HEFT__ROLE_DESTINATION, 0, 1);
    fleet_await_bound(&f->dest[1]);
    assert_int_equal(fleet_request(f->url, "POST", "/v1/recover", claim, NULL), 200);
    char round[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(out.round, round);
    out = outcome_of(fleet_await_round(f->url, round));
    expect_outcome(&out, "committed");
    /* the restarted one is behind: the same version catches it up */
    out = outcome_of(fleet_push(f->url, 2, "again"));
    expect_outcome(&out, "committed");
    await_live(&f->dest[0], 2, true);
    await_live(&f->dest[1], 2, true);
    fleet_stop(f);
    free(f);
}

static void flip_silent_unknown_never_aborted(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    heft_coordinator_opts_t opts = quick_opts();
    opts.contact_ms = 300;
    f->dest[1].die_phase = HEFT__PHASE_FLIP;
    fleet_start(f, &opts);
    const heft__outcome_t out = outcome_of(fleet_push(f->url, 2, "b"));
    expect_outcome(&out, "unknown");
    assert_string_equal(out.cause_member, f->dest[1].id);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_ABORT], 0);
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_RELEASE], 0);
    char *status = NULL;
    assert_int_equal(fleet_request(f->url, "GET", "/v1/status", NULL, &status), 200);
    assert_non_null(strstr(status, "\"poisoned\":true"));
    heft__free(status);
    fleet_stop(f);
    free(f);
}

/* ---- versions ---- */

static void version_rules(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 5, "a"));
    expect_outcome(&out, "committed");
    char *reply = NULL;
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":4,\"key\":\"b\"}", &reply), 409);
    assert_non_null(strstr(reply, "version_regress"));
    heft__free(reply);
    assert_int_equal(
        fleet_request(f->url, "POST", "/v1/rounds", "{\"version\":0,\"key\":\"c\"}", &reply), 400);
    assert_non_null(strstr(reply, "version_missing"));
    heft__free(reply);
    assert_int_equal(fleet_request(f->url, "POST", "/v1/rounds", "{\"key\":\"c\"}", &reply), 400);
    assert_non_null(strstr(reply, "version_missing"));
    heft__free(reply);
    /* the same version, the same bytes: nothing moves */
    out = outcome_of(fleet_push(f->url, 5, "d"));
    expect_outcome(&out, "committed");
    assert_int_equal(out.n_destinations, 0);
    assert_int_equal(f->dest[0].n_works[HEFT__PHASE_FLIP], 1);
    assert_int_equal(f->source.n_works[HEFT__PHASE_PREPARE], 2);
    /* the same version, other bytes */
    fleet_set_source_digest(SIM_DIGEST_OLD);
    out = outcome_of(fleet_push(f->url, 5, "e"));
    expect_outcome(&out, "aborted");
    assert_int_equal(out.cause.status, HEFT_ERR_VERSION);
    assert_non_null(strstr(out.cause.cause, "version_conflict"));
    await_live(&f->dest[0], 5, true);
    fleet_stop(f);
    free(f);
}

static void late_joiner_is_caught_up_alone(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    heft__outcome_t out = outcome_of(fleet_push(f->url, 5, "a"));
    expect_outcome(&out, "committed");
    fleet_member_t *late = calloc(1, sizeof *late);
    assert_non_null(late);
    fleet_member_start(late, f->url, HEFT__ROLE_DESTINATION, 1, 0);
    fleet_await_bound(late);
    assert_false(fleet_member_get(late).serving);
    out = outcome_of(fleet_push(f->url, 5, "b"));
    expect_outcome(&out, "committed");
    assert_int_equal(out.n_destinations, 1);
    await_live(late, 5, true);
    assert_int_equal(f->dest[0].n_works[HEFT__PHASE_FLIP], 1);
    assert_int_equal(f->dest[0].n_works[HEFT__PHASE_PAUSE], 1);
    fleet_member_stop(late);
    free(late);
    fleet_stop(f);
    free(f);
}

static void preflight_and_live_rounds_move_nothing(void **state)
{
    (void)state;
    fleet_t *f = fleet_new();
    const heft_coordinator_opts_t opts = quick_opts();
    fleet_start(f, &opts);
    char *reply = NULL;
    assert_int_equal(fleet_request(f->url, "POST", "/v1/preflight", "{\"key\":\"p\"}", &reply),
                     202);
    json_t *root = json_loads(reply, 0, NULL);
    heft__outcome_t out =
        outcome_of(fleet_await_round(f->url, json_string_value(json_object_get(root, "round"))));
    json_decref(root);
    heft__free(reply);
    expect_outcome(&out, "passed");
    assert_int_equal(f->dest[0].n_orders[HEFT__PHASE_STAGE], 0);

    out = outcome_of(fleet_push(f->url, 5, "a"));
    expect_outcome(&out, "committed");
    assert_int_equal(fleet_request(f->url, "POST", "/v1/verify", "{\"key\":\"v\"}", &reply), 202);
    root = json_loads(reply, 0, NULL);
    char *json = fleet_await_round(f->url, json_string_value(json_object_get(root, "round")));
    json_t *result = json_loads(json, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(result, "state")), "passed");
    const json_t *live = json_object_get(result, "live");
    assert_int_equal(json_array_size(live), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(live, i);
        assert_true(json_is_true(json_object_get(item, "match")));
        assert_int_equal(json_integer_value(json_object_get(item, "version")), 5);
        assert_int_equal(json_integer_value(json_object_get(item, "params")), 2);
    }
    json_decref(result);
    json_decref(root);
    heft__free(json);
    heft__free(reply);
    fleet_stop(f);
    free(f);
}

/* ---- many ---- */

static void two_hundred_members_commit_one_round(void **state)
{
    (void)state;
    enum { N_DEST = 199 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096 && limit.rlim_max >= 4096) {
        limit.rlim_cur = 4096;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *c = NULL;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_OK);
    fleet_set_source_digest(SIM_DIGEST_NEW);
    const char *url = heft_coordinator_get_url(c);
    fleet_member_t *members = calloc(N_DEST + 1, sizeof *members);
    assert_non_null(members);
    for (uint32_t i = 0; i <= N_DEST; i++) {
        const uint32_t d = i > 0 ? i - 1 : 0;
        fleet_member_start(&members[i], url, i == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION,
                           d / 4, d % 4);
    }
    for (uint32_t i = 0; i <= N_DEST; i++) {
        fleet_await_bound(&members[i]);
    }
    const heft__outcome_t out = outcome_of(fleet_push(url, 1, "a"));
    expect_outcome(&out, "committed");
    assert_int_equal(out.n_destinations, N_DEST);
    for (uint32_t i = 1; i <= N_DEST; i++) {
        await_live(&members[i], 1, true);
    }
    (void)printf("200 members: %.3f s\n", out.total_s);
    for (uint32_t i = 0; i <= N_DEST; i++) {
        fleet_member_stop(&members[i]);
    }
    free(members);
    heft_coordinator_stop(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_commits_and_destinations_serve),
        cmocka_unit_test(two_rounds_two_versions),
        cmocka_unit_test(begin_idempotency_key),
        cmocka_unit_test(single_flight),
        cmocka_unit_test(receivers_armed_first),
        cmocka_unit_test(every_source_must_have_sent),
        cmocka_unit_test(box_gap),
        cmocka_unit_test(box_overlap),
        cmocka_unit_test(side_disagrees_with_itself),
        cmocka_unit_test(sources_are_one_list),
        cmocka_unit_test(preflight_failure_aborts),
        cmocka_unit_test(prepare_failure_aborts),
        cmocka_unit_test(stage_failure_keeps_n),
        cmocka_unit_test(verify_failure_aborts),
        cmocka_unit_test(pause_failure_aborts_all),
        cmocka_unit_test(plan_digest_mismatch_stops),
        cmocka_unit_test(transport_mismatch_before_pause),
        cmocka_unit_test(pause_silent_member),
        cmocka_unit_test(phase_deadline_names_who_is_behind),
        cmocka_unit_test(cancel_before_the_decision_aborts),
        cmocka_unit_test(cancel_after_decision_too_late),
        cmocka_unit_test(flip_transient_retried),
        cmocka_unit_test(flip_broken_midway_poisons_until_recovered),
        cmocka_unit_test(flip_silent_unknown_never_aborted),
        cmocka_unit_test(version_rules),
        cmocka_unit_test(late_joiner_is_caught_up_alone),
        cmocka_unit_test(preflight_and_live_rounds_move_nothing),
        cmocka_unit_test(two_hundred_members_commit_one_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
