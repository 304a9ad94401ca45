/* SPDX-License-Identifier: Apache-2.0 */
/* Who begins a round: one rank of a trainer, once all are there; the others join it. */
#include "push_fleet.h"

static const pf_opts_t small = { .width = 32, .n_replicas = 1, .no_feed = true };

/* Another rank with the same tensors. */
static heft_publisher_t *add_rank(pf_fleet_t *fleet, const heft_publisher_opts_t *given)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_publisher_t *pub = NULL;
    heft_publisher_opts_t opts = *given;
    opts.url = heft_coordinator_get_url(fleet->coordinator);
    EXPECT_STATUS(heft_publisher_create(&opts, fleet->source.manifest,
                                        (const void *const *)fleet->source.data, &pub, &err),
                  HEFT_OK);
    return pub;
}

static void begin_is_one_of_three(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_publisher_t *pub = NULL;
    pf_start(&fleet, &small);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet.coordinator);
    opts.begin = 3;
    EXPECT_STATUS(heft_publisher_create(&opts, fleet.source.manifest,
                                        (const void *const *)fleet.source.data, &pub, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("begin 3");
    assert_null(pub);
    pf_stop(&fleet);
}

/* Rank 0 never pushes: the others do not wait for ever. */
static void a_round_that_nobody_begins_is_waited_for_until_the_deadline(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.rank = 1;
    opts.deadline_ms = 300;
    heft_publisher_t *pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(heft_publisher_push(pub, 7, &result, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("no round of version 7 began within 0.3 s: has rank 0 pushed?");
    assert_int_equal(result.round_seq, 0);
    heft_publisher_destroy(pub);
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

/* Rank 0 is told that its push cannot begin: the others do not wait for a round of it. */
static void a_push_that_is_refused_is_told_to_the_ranks_that_wait(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    EXPECT_STATUS(pf_push(&fleet, 5, NULL, &err), HEFT_OK);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.rank = 1;
    opts.deadline_ms = 60000;
    heft_publisher_t *pub = add_rank(&fleet, &opts);
    for (int64_t version = 3; version <= 4; version++) { /* each its own */
        const int64_t start = heft__clock_mono_ns();
        EXPECT_STATUS(heft_publisher_push(fleet.pub, version, NULL, &err), HEFT_ERR_VERSION);
        EXPECT_STATUS(heft_publisher_push(pub, version, &result, &err), HEFT_ERR_VERSION);
        EXPECT_MESSAGE("began: version_regress: version");
        assert_int_equal(result.round_seq, 0);
        assert_true(heft__clock_mono_ns() - start < INT64_C(30000000000));
    }
    heft_publisher_destroy(pub);
    opts.deadline_ms = 300; /* and it is not told to one that comes later, nor again */
    pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(heft_publisher_push(pub, 4, &result, &err), HEFT_ERR_TIMEOUT);
    heft_publisher_destroy(pub);
    pf_stop(&fleet);
}

/* Rank 1 is there, and never pushes: named after the time that it would wait itself. */
static void a_rank_that_does_not_push_is_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.rank = 1;
    opts.deadline_ms = 300;
    heft_manifest_t *nothing = NULL;
    heft_publisher_t *pub = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &nothing, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(nothing, &err), HEFT_OK);
    opts.url = heft_coordinator_get_url(fleet.coordinator);
    EXPECT_STATUS(
        heft_publisher_create(&opts, nothing, (const void *const *)fleet.source.data, &pub, &err),
        HEFT_OK);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("source.heft.0.1: no push of version 1 is in progress here (waited for up to "
                   "0.3 s)");
    heft_publisher_destroy(pub);
    heft_manifest_destroy(nothing);
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

static void ranks_that_are_missing_are_named_and_no_round_begins(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_destroy(fleet.pub);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.deadline_ms = 300;
    opts.n_ranks = 4;
    fleet.pub = add_rank(&fleet, &opts);
    opts.rank = 2;
    heft_publisher_t *pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("2 of 4 source ranks of job heft are there after 0.3 s: rank 1, 3 missing");
    heft_push_result_t result;
    EXPECT_STATUS(heft_publisher_push(pub, 1, &result, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("no round of version 1 began within 0.3 s: has rank 0 pushed?; 2 of 4 source "
                   "ranks are there: rank 1, 3 missing");
    heft_publisher_destroy(pub);
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

/* Replicas number their ranks alike, so numbers do not tell who is missing. */
static void ranks_of_replicas_are_counted_together(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_destroy(fleet.pub);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.deadline_ms = 300;
    opts.n_ranks = 4;
    fleet.pub = add_rank(&fleet, &opts);
    opts.replica = 1;
    heft_publisher_t *pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("2 of 4 source ranks of job heft are there after 0.3 s");
    assert_null(strstr(err.message, "missing"));
    heft_publisher_destroy(pub);
    pf_stop(&fleet);
}

/* Ranks and replicas are those of one trainer. */
static void sources_of_two_jobs_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.job = "other";
    opts.rank = 1;
    heft_publisher_t *pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source.heft.0.0 and source.other.0.1 are of two jobs");
    heft_publisher_destroy(pub);
    pf_expect_version(&fleet, 0);
    pf_stop(&fleet);
}

/* Engines of another trainer, whose model may fit: they keep what they have. */
static void engines_of_another_job_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    fm_side_t params;
    heft_subscriber_t *sub = NULL;
    pf_start(&fleet, &small);
    fm_params_init(&fleet.model, &params);
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet.coordinator);
    opts.job = "other";
    EXPECT_STATUS(heft_subscriber_create(&opts, fleet.model.recipe, fleet.model.bindings,
                                         params.manifest, params.data, &sub, &err),
                  HEFT_OK);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source.heft.0.0 and destination.other.0.0 are of two jobs");
    pf_expect_version(&fleet, 0);
    heft_subscriber_destroy(sub);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_OK);
    pf_expect_version(&fleet, 1);
    fm_side_fini(&params);
    pf_stop(&fleet);
}

/* One that is alone may be any rank, if it is told to begin. */
static void another_rank_begins_if_it_is_told_to(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    heft_publisher_destroy(fleet.pub);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.rank = 3;
    opts.replica = 1;
    opts.begin = HEFT_BEGIN_YES;
    opts.n_ranks = 1;
    fleet.pub = add_rank(&fleet, &opts);
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_OK);
    pf_expect_version(&fleet, 1);
    pf_stop(&fleet);
}

/* Somebody else asks the coordinator for the round. */
static void a_round_that_a_client_begins_is_joined(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    char *json = NULL;
    pf_start(&fleet, &small);
    heft_publisher_destroy(fleet.pub);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.begin = HEFT_BEGIN_NO;
    fleet.pub = add_rank(&fleet, &opts);
    const char *url = heft_coordinator_get_url(fleet.coordinator);
    EXPECT_STATUS(
        heft_client_post(url, "/v1/rounds", "{\"version\":1,\"key\":\"push\"}", 10000, &json, &err),
        HEFT_OK);
    heft_string_free(json);
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "committed");
    assert_int_equal(result.n_destinations, 2);
    pf_expect_version(&fleet, 1);
    pf_stop(&fleet);
}

static atomic_int n_refused;

static void note_line(void *arg, heft_log_level_t level, const char *line)
{
    (void)arg;
    if (level == HEFT_LOG_WARN && strstr(line, "source.heft.0.0: the coordinator refuses its "
                                               "report: ") != NULL) {
        (void)atomic_fetch_add(&n_refused, 1);
    }
}

/* A report that is not taken makes a member seem silent: it says why, as a warning, and once. */
static void a_refused_report_is_warned_of(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_start(&fleet, &small);
    EXPECT_STATUS(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_TEXT, note_line, NULL, &err), HEFT_OK);
    heft__report_t *report = heft__member_lock(fleet.pub->member);
    const heft__result_t result = report->result;
    report->result = HEFT__RESULT_OK;
    report->error.status = HEFT_ERR_PEER; /* a success with an error */
    heft__member_unlock(fleet.pub->member, true);
    pf_await(&n_refused, 1);
    report = heft__member_lock(fleet.pub->member);
    report->result = result;
    report->error.status = HEFT_OK;
    heft__member_unlock(fleet.pub->member, true);
    EXPECT_STATUS(pf_push(&fleet, 1, NULL, &err), HEFT_OK);
    assert_int_equal(atomic_load(&n_refused), 1);
    EXPECT_STATUS(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_TEXT, NULL, NULL, &err), HEFT_OK);
    pf_stop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begin_is_one_of_three),
        cmocka_unit_test(a_round_that_nobody_begins_is_waited_for_until_the_deadline),
        cmocka_unit_test(a_push_that_is_refused_is_told_to_the_ranks_that_wait),
        cmocka_unit_test(a_rank_that_does_not_push_is_named),
        cmocka_unit_test(ranks_that_are_missing_are_named_and_no_round_begins),
        cmocka_unit_test(ranks_of_replicas_are_counted_together),
        cmocka_unit_test(sources_of_two_jobs_are_refused),
        cmocka_unit_test(engines_of_another_job_are_refused),
        cmocka_unit_test(another_rank_begins_if_it_is_told_to),
        cmocka_unit_test(a_round_that_a_client_begins_is_joined),
        cmocka_unit_test(a_refused_report_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
