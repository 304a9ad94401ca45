/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes through the whole path, in one process: over shared memory, and over loop with faults. */
#include "push_fleet.h"

#include <jansson.h>

static const pf_opts_t small = { .width = 32, .n_replicas = 2, .no_feed = true };

static void push_ok(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(pf_push(fleet, version, result, &err), HEFT_OK);
    assert_string_equal(result->state, "committed");
    pf_expect_version(fleet, version);
}

static void round_commits_bytes(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    pf_expect_version(&fleet, 0);
    for (int64_t version = 1; version <= 4; version++) {
        push_ok(&fleet, version, &result);
        assert_int_equal(result.version, version);
        assert_int_equal(result.n_destinations, 4);
        assert_true(result.n_bytes > 0);
        assert_true(result.n_pieces > 0);
        assert_true(result.total_s > 0);
    }
    for (uint32_t i = 0; i < fleet.n_engines; i++) {
        pf_engine_t *e = &fleet.engines[i];
        pf_await(&e->n_reads, 1);
        assert_int_equal(atomic_load(&e->n_paused), 4);
        assert_int_equal(atomic_load(&e->n_flipped), 4);
        assert_int_equal(atomic_load(&e->n_resumed), 4);
        assert_int_equal(atomic_load(&e->resumed_version), 4);
    }
    pf_expect_untorn(&fleet, true);
    pf_stop(&fleet);
}

/* Several threads on both sides, and enough bytes that the work is really cut. */
static void threads_give_the_same_bytes(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = { .width = 256, .n_replicas = 1, .n_threads = 3 };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void second_push_compiles_attaches_and_allocates_nothing(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    uint64_t n_compiled = fleet.pub->fleet.n_compiled;
    uint64_t n_attached = fleet.pub->fleet.n_attached;
    const heft_exec_t *exec = fleet.pub->fleet.families[0].exec;
    assert_int_equal(n_compiled, 1);
    assert_int_equal(n_attached, 4);
    int64_t least =
        INT64_MAX; /* other threads allocate too: the quietest push is the one that tells */
    for (int64_t version = 2; version <= 12; version++) {
        push_ok(&fleet, version, &result);
        least = heft__min_i64(least, fleet.pub->stage_allocs);
    }
    assert_int_equal(fleet.pub->fleet.n_compiled, n_compiled);
    assert_int_equal(fleet.pub->fleet.n_attached, n_attached);
    assert_ptr_equal(fleet.pub->fleet.families[0].exec, exec);
    if (fleet.ucx == NULL) { /* what is sent in chunks is laid out anew for each round */
        assert_int_equal(least, 0);
    }
    pf_stop(&fleet);
}

/* By which transport, and by which lanes of it, each source reaches each destination. */
static void the_status_tells_the_way_of_each_pair(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    char *json = NULL;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    EXPECT_STATUS(heft_client_get(heft_coordinator_get_url(fleet.coordinator), "/v1/status", 20000,
                                  &json, &err),
                  HEFT_OK);
    const char *ways = strstr(json, "\"ways\":\"destination.heft.");
    assert_non_null(ways);
    assert_non_null(strstr(ways, "destination.heft.0.1 by "));
    assert_non_null(strstr(ways, fleet.ucx != NULL ? " by ucx tcp/" : " by shm"));
    heft_string_free(json);
    pf_stop(&fleet);
}

static void version_rules(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 0, &result, &err), HEFT_ERR_VERSION);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, INT64_C(1) << 53, &result, &err),
                  HEFT_ERR_VERSION);
    push_ok(&fleet, 5, &result);
    EXPECT_STATUS(pf_push(&fleet, 4, &result, &err), HEFT_ERR_VERSION); /* version_regress */
    pf_expect_version(&fleet, 5);
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 5, &result, &err),
                  HEFT_ERR_VERSION); /* conflict */
    pf_expect_version(&fleet, 5);
    int flips = atomic_load(&fleet.engines[0].n_flipped);
    push_ok(&fleet, 5, &result); /* the same bytes: nothing moves */
    assert_int_equal(atomic_load(&fleet.engines[0].n_flipped), flips);
    push_ok(&fleet, 9, &result);
    pf_stop(&fleet);
}

/* A parameter with two sources that must be equal, and in one round are not. */
static void two_sources_that_disagree_abort_the_round(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .has_twin = true };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    fm_source_fill(&fleet.model, &fleet.source, 2);
    uint16_t *twin = fleet.source.data[FM_SOURCES];
    twin[7] ^= 1;
    EXPECT_STATUS(heft_publisher_push(fleet.pub, 2, &result, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("parameter \"norm\" rank 0 [7] must be equal: 0x");
    EXPECT_MESSAGE("(source \"norm\" element 7)");
    EXPECT_MESSAGE("(source \"zz_twin\" element 7)");
    assert_string_equal(result.state, "aborted");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result); /* with equal values again */
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void late_join_not_serving(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    pf_engine_t *late0 = pf_add_engine(&fleet, 2, 0);
    pf_engine_t *late1 = pf_add_engine(&fleet, 2, 1);
    assert_int_equal(heft_subscriber_get_version(late0->sub), 0);
    assert_int_equal(heft_subscriber_is_serving(late0->sub), 0);
    int flips = atomic_load(&fleet.engines[0].n_flipped);
    push_ok(&fleet, 1, &result); /* brings only the two up */
    assert_int_equal(atomic_load(&fleet.engines[0].n_flipped), flips);
    assert_int_equal(atomic_load(&late0->n_flipped), 1);
    assert_int_equal(atomic_load(&late1->n_flipped), 1);
    push_ok(&fleet, 2, &result);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

/* Every rank once is enough; a rank that nobody holds is not, whatever the version. */
static void missing_ranks_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    pf_engine_t *kept = &fleet.engines[0];
    pf_remove_engine(&fleet, &fleet.engines[1]);
    push_ok(&fleet, 2, &result); /* the other replica has rank 1 */
    pf_remove_engine(&fleet, &fleet.engines[3]);
    for (int64_t version = 2; version <= 3; version++) {
        EXPECT_STATUS(pf_push(&fleet, version, &result, &err), HEFT_ERR_PROOF);
        EXPECT_MESSAGE("in preflight: source.heft.0.0: destinations for rank 1 of 2 are missing: "
                       "start them, or wait with --wait-for 2");
        assert_string_equal(result.state, "aborted");
        assert_int_equal(heft_subscriber_get_version(kept->sub), 2);
        assert_int_equal(atomic_load(&kept->n_paused), 2);
    }
    (void)pf_add_engine(&fleet, 0, 1);
    push_ok(&fleet, 3, &result);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void pause_failure_aborts_all(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    atomic_store(&fleet.engines[2].fail_pause, 1);
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("destination.heft.1.0");
    EXPECT_MESSAGE("the pause hook failed");
    assert_string_equal(result.state, "aborted");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result); /* an aborted version may be tried again */
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void address_changed_before_flip(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    void *at = fleet.engines[1].pointers[2];
    fleet.engines[1].pointers[2] = (uint8_t *)at + 64;
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("parameter \"gate_up\" moved");
    fleet.engines[1].pointers[2] = at;
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result);
    pf_stop(&fleet);
}

static void flip_breaks_midway_live_suspect(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = { .width = 32, .n_replicas = 2, .phase_ms = 2000 };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    pf_engine_t *broken = &fleet.engines[0];
    atomic_store(&broken->fail_flipped, 1);
    heft_status_t status = pf_push(&fleet, 2, &result, &err);
    assert_int_not_equal(status, HEFT_OK);
    EXPECT_MESSAGE("the flipped hook failed");
    assert_string_equal(result.state, "partially_committed");
    assert_int_equal(heft_subscriber_is_serving(broken->sub), 0);
    /* Its engine (replica 0) is down as a whole; the other one serves the new version. */
    assert_int_equal(heft_subscriber_is_serving(fleet.engines[1].sub), 0);
    for (int i = 2; i < 4; i++) {
        pf_await(&fleet.engines[i].n_resumed, 2); /* the round has its outcome before that */
        pf_await_serving(&fleet.engines[i]);
        assert_int_equal(heft_subscriber_get_version(fleet.engines[i].sub), 2);
    }
    EXPECT_STATUS(pf_push(&fleet, 3, &result, &err), HEFT_ERR_POISONED);
    int64_t deadline = heft__clock_mono_ns() + 5000000000;
    while (atomic_load(&broken->last_status) != HEFT_ERR_POISONED &&
           heft__clock_mono_ns() < deadline) {
    }
    assert_int_equal(atomic_load(&broken->last_status), HEFT_ERR_POISONED);
    pf_expect_untorn(&fleet, false);
    pf_stop(&fleet);
}

static void engine_of_another_width_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    fm_model_t other;
    fm_model_init(&other, 64); /* an engine of another width */
    heft_bindings_t *mine = fleet.model.bindings;
    heft_recipe_t *recipe = fleet.model.recipe;
    fm_model_t keep = fleet.model;
    fleet.model = other;
    pf_engine_t *odd = pf_add_engine(&fleet, 7, 0);
    fleet.model = keep;
    assert_ptr_equal(mine, keep.bindings);
    assert_ptr_equal(recipe, keep.recipe);
    heft_status_t status = pf_push(&fleet, 2, &result, &err);
    assert_true(status == HEFT_ERR_SHAPE || status == HEFT_ERR_PROOF || status == HEFT_ERR_NAME);
    assert_string_equal(result.state, "aborted");
    assert_true(strlen(err.message) > 0);
    pf_remove_engine(&fleet, odd);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&fleet.engines[i].n_paused), 1);
    }
    push_ok(&fleet, 3, &result);
    fm_model_fini(&other);
    pf_stop(&fleet);
}

static char *post(pf_fleet_t *fleet, const char *path, const char *body)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *reply = NULL;
    EXPECT_STATUS(heft_client_post(heft_coordinator_get_url(fleet->coordinator), path, body, 10000,
                                   &reply, &err),
                  HEFT_OK);
    return reply;
}

/* Ask for a live verification and return the round's result. */
static char *verify_live(pf_fleet_t *fleet, const char *key)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char body[64];
    char path[64];
    (void)snprintf(body, sizeof body, "{\"key\":\"%s\"}", key);
    char *reply = post(fleet, "/v1/verify", body);
    json_t *root = json_loads(reply, 0, NULL);
    heft_string_free(reply);
    const char *round = json_string_value(json_object_get(root, "round"));
    assert_non_null(round);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=10", round);
    json_decref(root);
    char *result = NULL;
    EXPECT_STATUS(
        heft_client_get(heft_coordinator_get_url(fleet->coordinator), path, 20000, &result, &err),
        HEFT_OK);
    return result;
}

static bool has_text(const char *json, const char *text)
{
    return strstr(json, text) != NULL;
}

static void live_verify_sees_one_changed_bit(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    char *json = verify_live(&fleet, "first");
    assert_true(has_text(json, "\"match\":true") || has_text(json, "\"match\": true"));
    assert_false(has_text(json, "\"match\":false") || has_text(json, "\"match\": false"));
    heft_string_free(json);
    uint8_t *byte = (uint8_t *)fleet.engines[3].params.data[4] + 100;
    (void)pthread_mutex_lock(&fleet.engines[3].gate);
    *byte ^= 1;
    (void)pthread_mutex_unlock(&fleet.engines[3].gate);
    json = verify_live(&fleet, "second");
    assert_true(has_text(json, "\"match\":false") || has_text(json, "\"match\": false"));
    assert_true(has_text(json, "\"differ\":1,\"differing\":[{\"param\":\"qkv\","));
    heft_string_free(json);
    pf_stop(&fleet);
}

/* ---- creation ---- */

static heft_status_t create_subscriber(pf_fleet_t *fleet, fm_side_t *params,
                                       heft_subscriber_t **sub_out, heft_error_t *err)
{
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet->coordinator);
    opts.replica = 9;
    return heft_subscriber_create(&opts, fleet->model.recipe, fleet->model.bindings,
                                  params->manifest, params->data, sub_out, err);
}

static void create_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_opts_t opts = { .width = 32 };
    pf_start(&fleet, &opts);
    fm_side_t params;
    fm_params_init(&fleet.model, &params);
    heft_status_t status = HEFT_ERR_NOMEM;
    long n = 0;
    for (long k = 0; status != HEFT_OK; k++) {
        heft_subscriber_t *sub = NULL;
        heft__alloc_fail_at(k);
        status = create_subscriber(&fleet, &params, &sub, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(sub != NULL, status == HEFT_OK);
        heft_subscriber_destroy(sub);
        n = k;
    }
    assert_true(n > 20);
    status = HEFT_ERR_NOMEM;
    for (long k = 0; status != HEFT_OK; k++) {
        heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
        heft_publisher_t *pub = NULL;
        p.url = heft_coordinator_get_url(fleet.coordinator);
        p.rank = 5;
        heft__alloc_fail_at(k);
        status = heft_publisher_create(&p, fleet.source.manifest,
                                       (const void *const *)fleet.source.data, &pub, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(pub != NULL, status == HEFT_OK);
        heft_publisher_destroy(pub);
    }
    fm_side_fini(&params);
    pf_stop(&fleet);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    pf_opts_t opts = { .width = 32 };
    pf_start(&fleet, &opts);
    fm_side_t params;
    fm_params_init(&fleet.model, &params);
    heft_subscriber_t *sub = NULL;
    heft_publisher_t *pub = NULL;
    heft_subscriber_opts_t s = HEFT_SUBSCRIBER_OPTS_INIT;
    s.url = heft_coordinator_get_url(fleet.coordinator);
    s.rank = 2;
    EXPECT_STATUS(heft_subscriber_create(&s, fleet.model.recipe, fleet.model.bindings,
                                         params.manifest, params.data, &sub, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 2 of a recipe for 2 ranks");
    s.rank = 0;
    EXPECT_STATUS(heft_subscriber_create(&s, fleet.model.recipe, fleet.model.bindings,
                                         fleet.source.manifest, params.data, &sub, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("expected \"destination\"");
    s.job = "no/slash";
    EXPECT_STATUS(heft_subscriber_create(&s, fleet.model.recipe, fleet.model.bindings,
                                         params.manifest, params.data, &sub, &err),
                  HEFT_ERR_ARGUMENT);
    s.job = NULL;
    s.size = 3;
    EXPECT_STATUS(heft_subscriber_create(&s, fleet.model.recipe, fleet.model.bindings,
                                         params.manifest, params.data, &sub, &err),
                  HEFT_ERR_ARGUMENT);
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    EXPECT_STATUS(heft_publisher_create(&p, fleet.source.manifest,
                                        (const void *const *)fleet.source.data, &pub, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("no url");
    p.url = heft_coordinator_get_url(fleet.coordinator);
    EXPECT_STATUS(
        heft_publisher_create(&p, params.manifest, (const void *const *)params.data, &pub, &err),
        HEFT_ERR_ARGUMENT);
    p.url = "http://127.0.0.1:1"; /* nobody is there */
    p.deadline_ms = 200;
    EXPECT_STATUS(heft_publisher_create(&p, fleet.source.manifest,
                                        (const void *const *)fleet.source.data, &pub, &err),
                  HEFT_ERR_PEER);
    assert_null(sub);
    assert_null(pub);
    fm_side_fini(&params);
    pf_stop(&fleet);
}

/* Two processes that both live must not share a place: the second is refused, both are named. */
static void live_place_is_not_taken(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_opts_t opts = { .width = 32, .n_replicas = 1 };
    pf_start(&fleet, &opts);
    push_ok(&fleet, 1, &result);
    fm_side_t params;
    fm_params_init(&fleet.model, &params);
    heft_subscriber_t *first = NULL;
    heft_subscriber_t *second = NULL;
    EXPECT_STATUS(create_subscriber(&fleet, &params, &first, &err), HEFT_OK);
    for (int i = 0; i < 5; i++) {
        EXPECT_STATUS(create_subscriber(&fleet, &params, &second, &err), HEFT_ERR_EXISTS);
        EXPECT_MESSAGE("member destination.heft.9.0 is taken: ");
        EXPECT_MESSAGE(" lives, ");
        EXPECT_MESSAGE("wants its place");
        assert_null(second);
    }
    EXPECT_STATUS(heft_subscriber_poll(first, 20, &err), HEFT_OK);
    heft_subscriber_destroy(first); /* it says goodbye */
    EXPECT_STATUS(create_subscriber(&fleet, &params, &second, &err), HEFT_OK);
    heft_subscriber_destroy(second);
    push_ok(&fleet, 2, &result);
    fm_side_fini(&params);
    pf_stop(&fleet);
}

static void two_sources_are_refused_before_pause(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    pf_start(&fleet, &small);
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    heft_publisher_t *second = NULL;
    p.url = heft_coordinator_get_url(fleet.coordinator);
    p.rank = 1;
    EXPECT_STATUS(heft_publisher_create(&p, fleet.source.manifest,
                                        (const void *const *)fleet.source.data, &second, &err),
                  HEFT_OK);
    EXPECT_STATUS(pf_push(&fleet, 1, &result, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source.heft.0.0 and source.heft.0.1 both have that name");
    assert_int_equal(atomic_load(&fleet.engines[0].n_paused), 0);
    heft_publisher_destroy(second);
    push_ok(&fleet, 2, &result);
    pf_stop(&fleet);
}

/* ---- parameters that rounds leave alone ---- */

typedef struct poller {
    heft_subscriber_t *sub;
    atomic_bool stop;
} poller_t;

static void *poll_until_stopped(void *arg)
{
    poller_t *p = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    while (!atomic_load(&p->stop)) {
        (void)!heft_subscriber_poll(p->sub, 20, &err);
    }
    return NULL;
}

static heft_manifest_t *make_manifest(const char *side, const char *const *names)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_shape_t shape = { .rank = 1, .extent = { 1000 } };
    EXPECT_STATUS(heft_manifest_create(side, &m, &err), HEFT_OK);
    for (int i = 0; names[i] != NULL; i++) {
        EXPECT_STATUS(heft_manifest_add(m, names[i], HEFT_DTYPE_U8, &shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

static void untouched_parameters_keep_their_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char text[] = "\"w\" [d] -> \"text.w\" [d]\n"
                               "untouched \"vision.*\" because \"frozen tower\"\n";
    static uint8_t w[1000];
    static _Alignas(64) uint8_t live[2][1024];
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    heft_coordinator_t *coordinator = NULL;
    heft_publisher_t *pub = NULL;
    poller_t poller = { .sub = NULL };
    heft_push_result_t result;
    heft_manifest_t *source = make_manifest("source", (const char *const[]){ "w", NULL });
    heft_manifest_t *params =
        make_manifest("destination", (const char *const[]){ "text.w", "vision.w", NULL });
    EXPECT_STATUS(heft_recipe_parse("towers", text, sizeof text - 1, &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_coordinator_start(NULL, &coordinator, &err), HEFT_OK);
    heft_subscriber_opts_t s = HEFT_SUBSCRIBER_OPTS_INIT;
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    s.url = p.url = heft_coordinator_get_url(coordinator);
    void *const at[2] = { live[0], live[1] };
    const void *const data[1] = { w };
    EXPECT_STATUS(heft_subscriber_create(&s, recipe, bindings, params, at, &poller.sub, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_publisher_create(&p, source, data, &pub, &err), HEFT_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, poll_until_stopped, &poller), 0);
    memset(live[1], 0x77, sizeof live[1]);
    for (int version = 1; version <= 2; version++) {
        memset(w, version, sizeof w);
        EXPECT_STATUS(heft_publisher_push(pub, version, &result, &err), HEFT_OK);
        assert_int_equal(result.n_bytes, 1000);
        for (int i = 0; i < 1000; i++) {
            assert_int_equal(live[0][i], version);
            assert_int_equal(live[1][i], 0x77);
        }
    }
    assert_true(heft_subscriber_get_digest(poller.sub, 0) == heft_digest(live[0], 1000));
    assert_true(heft_subscriber_get_digest(poller.sub, 1) == 0);
    assert_true(heft_subscriber_get_digest(poller.sub, 2) == 0);
    atomic_store(&poller.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    heft_publisher_destroy(pub);
    heft_subscriber_destroy(poller.sub);
    heft_coordinator_stop(coordinator);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(params);
    heft_manifest_destroy(source);
}

/* Engines of two kinds: fused and sharded, and one that keeps the trainer's tensors as they are. */
static void engines_of_two_recipes_are_fed_in_one_round(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char text[] = "\"{rest*}\" [...] -> \"{rest*}\" [...]\n";
    pf_fleet_t fleet;
    heft_push_result_t result;
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    heft_manifest_t *manifest = NULL;
    poller_t poller = { .sub = NULL };
    fm_side_t copy;
    pf_start(&fleet, &small);
    fm_source_init(&fleet.model, &copy);
    EXPECT_STATUS(heft_recipe_parse("same", text, sizeof text - 1, &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    for (uint32_t i = 0; i < copy.n; i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(copy.manifest, i, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(manifest, info.name, info.dtype, &info.shape, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet.coordinator);
    opts.replica = 5;
    EXPECT_STATUS(
        heft_subscriber_create(&opts, recipe, bindings, manifest, copy.data, &poller.sub, &err),
        HEFT_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, poll_until_stopped, &poller), 0);
    for (int64_t version = 1; version <= 2; version++) {
        push_ok(&fleet, version, &result);
        assert_int_equal(result.n_destinations, 5);
        for (uint32_t i = 0; i < copy.n; i++) {
            assert_memory_equal(copy.data[i], fleet.source.data[i], (size_t)copy.bytes[i]);
        }
    }
    assert_int_equal(fleet.pub->fleet.n_compiled, 2);
    atomic_store(&poller.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    heft_subscriber_destroy(poller.sub);
    /* The others go on without it, and their plan is kept. */
    push_ok(&fleet, 3, &result);
    assert_int_equal(fleet.pub->fleet.n_compiled, 2);
    assert_int_equal(fleet.pub->fleet.n_attached, 5);
    heft_manifest_destroy(manifest);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(recipe);
    fm_side_fini(&copy);
    pf_stop(&fleet);
}

/* The source's tensors, each said to be fused, the first of them in the order `half`. */
static heft_manifest_t *fused_manifest(const fm_side_t *copy, const char *half)
{
    static const char *const layout[][2] = { { "fused.axis", "0" },
                                             { "fused.shards", "1" },
                                             { "fused.layout", "concat" },
                                             { "fused.half", "gate_up" } };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    for (uint32_t i = 0; i < copy->n; i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(copy->manifest, i, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(manifest, info.name, info.dtype, &info.shape, &err),
                      HEFT_OK);
        for (int k = 0; k < 4; k++) {
            EXPECT_STATUS(heft_manifest_set_tensor_attr(manifest, info.name, layout[k][0],
                                                        i == 0 && k == 3 ? half : layout[k][1],
                                                        &err),
                          HEFT_OK);
        }
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

/* An engine that keeps the halves of a parameter in another order than the recipe makes: names,
 * shapes and dtypes fit, the bytes would be wrong. */
static void layouts_that_differ_are_refused_before_anything_moves(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    static const char text[] = "\"{rest*}\" [...] -> \"{rest*}\" [...]\n"
                               "attr \"*\" fused.axis = 0, fused.shards = 1, fused.layout = "
                               "\"concat\", fused.half = \"gate_up\"\n";
    fm_side_t copy;
    pf_start(&fleet, &small);
    push_ok(&fleet, 1, &result);
    fm_source_init(&fleet.model, &copy);
    EXPECT_STATUS(heft_recipe_parse("fused", text, sizeof text - 1, &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    for (int is_equal = 0; is_equal < 2; is_equal++) {
        poller_t poller = { .sub = NULL };
        pthread_t thread;
        heft_manifest_t *manifest = fused_manifest(&copy, is_equal ? "gate_up" : "up_gate");
        heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
        opts.url = heft_coordinator_get_url(fleet.coordinator);
        opts.replica = 5;
        EXPECT_STATUS(
            heft_subscriber_create(&opts, recipe, bindings, manifest, copy.data, &poller.sub, &err),
            HEFT_OK);
        assert_int_equal(pthread_create(&thread, NULL, poll_until_stopped, &poller), 0);
        if (is_equal) {
            push_ok(&fleet, 3, &result);
            assert_int_equal(result.n_destinations, 5);
        } else {
            EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_SHAPE);
            EXPECT_MESSAGE("fused.half is gate_up here, up_gate in the destination");
            assert_string_equal(result.state, "aborted");
            assert_int_equal(heft_subscriber_get_version(fleet.engines[0].sub), 1);
            assert_int_equal(atomic_load(&fleet.engines[0].n_paused), 1);
            assert_true(fm_params_equal(&fleet.model, &fleet.engines[0].params, 0, 1));
        }
        atomic_store(&poller.stop, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        heft_subscriber_destroy(poller.sub);
        heft_manifest_destroy(manifest);
    }
    pf_expect_untorn(&fleet, false);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(recipe);
    fm_side_fini(&copy);
    pf_stop(&fleet);
}

/* ---- loop: puts, and what happens to them ---- */

static void start_loop(pf_fleet_t *fleet, bool direct, uint32_t phase_ms)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__loop_t *loop = NULL;
    EXPECT_STATUS(heft__loop_create(direct, &loop, &err), HEFT_OK);
    pf_opts_t opts = { .width = 32, .n_replicas = 2, .loop = loop, .phase_ms = phase_ms };
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
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    stop_loop(&fleet);
    start_loop(&fleet, true, 3000);
    push_ok(&fleet, 1, &result);
    push_ok(&fleet, 2, &result);
    stop_loop(&fleet);
}

static void push_with_fault(pf_fleet_t *fleet, heft__loop_fault_t fault, int64_t after,
                            int64_t version, heft_status_t expected, const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    heft__loop_set_fault(fleet->loop, fault, after);
    EXPECT_STATUS(pf_push(fleet, version, &result, &err), expected);
    assert_true(heft__loop_was_reached(fleet->loop));
    EXPECT_MESSAGE(text);
    if (expected != HEFT_ERR_IO && fault != HEFT__LOOP_STRAY) { /* whichever was hit */
        EXPECT_MESSAGE(expected == HEFT_ERR_DIGEST ? "parameter \"" : "tensor \"");
    }
    assert_string_equal(result.state, "aborted");
}

static void stage_failure_keeps_n(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    push_with_fault(&fleet, HEFT__LOOP_FAIL, 7, 2, HEFT_ERR_IO, "put of");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

/* Which chunk is of which parameter is known: five parameters, in the order of the source, each to
 * all four receivers. */
static void chunk_corrupt_resent(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    char path[80];
    char *json = NULL;
    start_loop(&fleet, false, 3000);
    heft__loop_set_fault(fleet.loop, HEFT__LOOP_CORRUPT, 2);
    push_ok(&fleet, 1, &result);
    assert_true(heft__loop_was_reached(fleet.loop));
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld", (long long)result.round_epoch,
                   (long long)result.round_seq);
    EXPECT_STATUS(
        heft_client_get(heft_coordinator_get_url(fleet.coordinator), path, 20000, &json, &err),
        HEFT_OK);
    assert_non_null(strstr(json, "\"resent\":1"));
    heft_string_free(json);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

static void chunk_corrupt_twice_aborts(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    push_with_fault(&fleet, HEFT__LOOP_CORRUPT_AGAIN, 2, 2, HEFT_ERR_PROTOCOL, ": CRC ");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 2, &result);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

static void chunk_duplicate_extra_and_lost_fail_the_round(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    push_with_fault(&fleet, HEFT__LOOP_REPEAT, 3, 2, HEFT_ERR_PROTOCOL, " came twice");
    push_with_fault(&fleet, HEFT__LOOP_STRAY, 1, 3, HEFT_ERR_PROTOCOL, ", which has 1");
    push_with_fault(&fleet, HEFT__LOOP_DROP, 9, 4, HEFT_ERR_MISMATCH,
                    ": 1 of 1 chunks have not come");
    pf_expect_version(&fleet, 1);
    push_ok(&fleet, 5, &result);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

/* Damage that no checksum of the way sees: the digests of parameters do, before the decision. */
static void permuted_bytes_detected(void **state)
{
    (void)state;
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    const heft__loop_fault_t faults[] = { HEFT__LOOP_SWAP_HALVES, HEFT__LOOP_SWAP_ELEMENTS,
                                          HEFT__LOOP_ZERO, HEFT__LOOP_DOUBLE };
    int64_t version = 2;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        push_with_fault(&fleet, faults[i], 2, version++, HEFT_ERR_DIGEST, "parameter \"");
        push_with_fault(&fleet, faults[i], 9, version++, HEFT_ERR_DIGEST, "parameter \"");
        pf_expect_version(&fleet, 1);
    }
    push_ok(&fleet, version, &result);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

static void dead_receiver_aborts_and_is_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    start_loop(&fleet, false, 3000);
    push_ok(&fleet, 1, &result);
    heft__loop_set_fault(fleet.loop, HEFT__LOOP_DIE, 12);
    EXPECT_STATUS(pf_push(&fleet, 2, &result, &err), HEFT_ERR_PEER);
    EXPECT_MESSAGE("the receiver, is gone");
    pf_expect_version(&fleet, 1);
    stop_loop(&fleet);
}

/* A put whose end is not known: the receivers fence it, and only then is the round aborted. */
static void late_put_cannot_land(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pf_fleet_t fleet;
    heft_push_result_t result;
    uint32_t n_landed;
    uint32_t n_refused;
    start_loop(&fleet, false, 1000);
    push_ok(&fleet, 1, &result);
    heft__loop_set_fault(fleet.loop, HEFT__LOOP_HOLD, 3);
    heft_status_t status = pf_push(&fleet, 2, &result, &err);
    assert_int_equal(status, HEFT_ERR_TIMEOUT);
    assert_true(heft__loop_was_reached(fleet.loop));
    assert_string_equal(result.state, "aborted");
    pf_expect_version(&fleet, 1);
    heft__loop_release(fleet.loop, &n_landed, &n_refused);
    assert_int_equal(n_landed, 0);
    assert_int_equal(n_refused, 1);
    push_ok(&fleet, 3, &result);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

/* Lets a put that is held go later than calls to the coordinator may take. */
static void *release_late(void *arg)
{
    heft__loop_t *loop = arg;
    uint32_t n_landed = 0;
    uint32_t n_refused = 0;
    while (!heft__loop_was_reached(loop)) {
        (void)sched_yield();
    }
    const struct timespec pause = { .tv_sec = 1, .tv_nsec = 500000000 };
    (void)nanosleep(&pause, NULL);
    heft__loop_release(loop, &n_landed, &n_refused);
    return NULL;
}

/* Sending is bounded by the phase, not by the deadline of a call: weights take their time. */
static void sending_may_take_longer_than_a_call(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    pf_fleet_t fleet;
    heft__loop_t *loop = NULL;
    pthread_t thread;
    EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
    const pf_opts_t opts = { .width = 32, .n_replicas = 2, .loop = loop, .deadline_ms = 1000 };
    pf_start(&fleet, &opts);
    heft__loop_set_fault(loop, HEFT__LOOP_HOLD, 3);
    assert_int_equal(pthread_create(&thread, NULL, release_late, loop), 0);
    push_ok(&fleet, 1, &result);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pf_expect_untorn(&fleet, false);
    stop_loop(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_commits_bytes),
        cmocka_unit_test(threads_give_the_same_bytes),
        cmocka_unit_test(second_push_compiles_attaches_and_allocates_nothing),
        cmocka_unit_test(the_status_tells_the_way_of_each_pair),
        cmocka_unit_test(version_rules),
        cmocka_unit_test(two_sources_that_disagree_abort_the_round),
        cmocka_unit_test(late_join_not_serving),
        cmocka_unit_test(missing_ranks_are_refused),
        cmocka_unit_test(pause_failure_aborts_all),
        cmocka_unit_test(address_changed_before_flip),
        cmocka_unit_test(flip_breaks_midway_live_suspect),
        cmocka_unit_test(engine_of_another_width_is_refused),
        cmocka_unit_test(live_verify_sees_one_changed_bit),
        cmocka_unit_test(create_survives_failed_allocations),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(live_place_is_not_taken),
        cmocka_unit_test(two_sources_are_refused_before_pause),
        cmocka_unit_test(untouched_parameters_keep_their_bytes),
        cmocka_unit_test(engines_of_two_recipes_are_fed_in_one_round),
        cmocka_unit_test(layouts_that_differ_are_refused_before_anything_moves),
        cmocka_unit_test(puts_give_the_same_bytes),
        cmocka_unit_test(stage_failure_keeps_n),
        cmocka_unit_test(chunk_corrupt_resent),
        cmocka_unit_test(chunk_corrupt_twice_aborts),
        cmocka_unit_test(chunk_duplicate_extra_and_lost_fail_the_round),
        cmocka_unit_test(permuted_bytes_detected),
        cmocka_unit_test(dead_receiver_aborts_and_is_named),
        cmocka_unit_test(late_put_cannot_land),
        cmocka_unit_test(sending_may_take_longer_than_a_call),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
