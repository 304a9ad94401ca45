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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begin_is_one_of_three),
        cmocka_unit_test(a_round_that_nobody_begins_is_waited_for_until_the_deadline),
        cmocka_unit_test(ranks_that_are_missing_are_named_and_no_round_begins),
        cmocka_unit_test(ranks_of_replicas_are_counted_together),
        cmocka_unit_test(sources_of_two_jobs_are_refused),
        cmocka_unit_test(another_rank_begins_if_it_is_told_to),
        cmocka_unit_test(a_round_that_a_client_begins_is_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
