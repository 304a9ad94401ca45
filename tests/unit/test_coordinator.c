/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every request of the control protocol over real HTTP, in every wrong kind: the code, the status,
 * what the message names, and that the state is as it was.
 */
#include "http_requests.h"

#include "heft/model.h"
#include "sync/coordinator.h"
#include "sync/objects.h"

/* ---- general ---- */

static void paths_and_methods(void **state)
{
    const env_t *e = *state;
    expect(e, "GET", "/nothing", NULL, 404, "no such path: /nothing");
    expect(e, "GET", "/v1/members/a/b/c", NULL, 404, "no such path");
    expect(e, "GET", "/v1/members", NULL, 405, "method GET");
    expect(e, "DELETE", "/v1/rounds", NULL, 405, "method DELETE");
    expect(e, "POST", "/v1/objects/" DIG, "x", 405, "method POST");
    expect(e, "PUT", "/healthz", "", 405, "method PUT");
    expect(e, "GET", "/healthz", NULL, 200, "true");
    expect(e, "GET", "/metrics", NULL, 200, "heft_rounds_total{outcome=\"committed\"} 0");
    expect(e, "GET", "/", NULL, 200, "<title>heft</title>");
}

static void large_bodies_are_refused(void **state)
{
    const env_t *e = *state;
    const size_t n = HEFT__WIRE_MAX_BYTES + 10;
    char *body = malloc(n + 1);
    assert_non_null(body);
    memset(body, ' ', n);
    body[n] = '\0';
    expect(e, "POST", "/v1/members", body, 413, "ERR_LIMIT");
    free(body);
    assert_int_equal(status_int(e, "sources"), 0);
}

static void port_taken_is_named(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *other = NULL;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    const char *port = strrchr(e->url, ':') + 1;
    opts.port = (uint16_t)strtoul(port, NULL, 10);
    EXPECT_STATUS(heft_coordinator_start(&opts, &other, &err), HEFT_ERR_IO);
    char name[64];
    (void)snprintf(name, sizeof name, "127.0.0.1:%s", port);
    EXPECT_MESSAGE(name);
    assert_null(other);
    opts.address = "not an address";
    EXPECT_STATUS(heft_coordinator_start(&opts, &other, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("not an address");
}

static void options_are_checked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *c = NULL;
    struct {
        heft_coordinator_opts_t known;
        uint64_t later;
    } longer = { .known = HEFT_COORDINATOR_OPTS_INIT };
    longer.known.size = sizeof longer;
    EXPECT_STATUS(heft_coordinator_start(&longer.known, &c, &err), HEFT_OK);
    heft_coordinator_stop(c);
    longer.later = 1;
    EXPECT_STATUS(heft_coordinator_start(&longer.known, &c, &err), HEFT_ERR_UNSUPPORTED);
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.reserved[1] = 1;
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
    opts = (heft_coordinator_opts_t)HEFT_COORDINATOR_OPTS_INIT;
    opts.size = 0;
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
    heft_coordinator_stop(NULL);
}

static void start_survives_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char file[600];
    (void)snprintf(file, sizeof file, "%s/state.json", dir);
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.state_file = file;
    char log[600];
    (void)snprintf(log, sizeof log, "%s/rounds.jsonl", dir);
    opts.round_log = log;
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_coordinator_t *c = NULL;
        heft__alloc_fail_at(k);
        const heft_status_t status = heft_coordinator_start(&opts, &c, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_coordinator_stop(c);
            assert_int_equal(heft__alloc_live(), live);
            assert_true(k > 5);
            break;
        }
        assert_null(c);
        assert_true(status == HEFT_ERR_NOMEM || status == HEFT_ERR_IO);
        assert_int_equal(heft__alloc_live(), live);
    }
    heft_test_rmdir(dir);
}

/* ---- register ---- */

static void stale_incarnation_refused(void **state)
{
    const env_t *e = *state;
    char body[512];
    expect(e, "POST", "/v1/members", "{\"rolle\":1}", 400, "unknown key \\\"rolle\\\"");
    expect(e, "POST", "/v1/members", "nonsense", 400, "ERR_FORMAT");
    expect(e, "POST", "/v1/members", NULL, 400, "ERR_FORMAT");
    assert_int_equal(status_int(e, "sources"), 0);
    enroll(e, "source", 0, INC_A);
    enroll(e, "source", 0, INC_A);
    assert_int_equal(status_int(e, "sources"), 1);
    enroll(e, "source", 0, INC_B);
    assert_int_equal(status_int(e, "sources"), 1);
    /* the earlier life does not come back */
    register_text(body, sizeof body, "source", 0, INC_A, 0);
    expect(e, "POST", "/v1/members", body, 409, "has been replaced");
    report_text(e, body, sizeof body, INC_A, 1, "");
    expect(e, "POST", "/v1/members/source.heft.0.0/poll", body, 409, "ERR_STALE");
}

static void a_lost_epoch_is_followed(void **state)
{
    const env_t *e = *state;
    char body[512];
    const int64_t epoch = status_int(e, "epoch");
    register_text(body, sizeof body, "source", 0, INC_A, epoch + 5);
    expect(e, "POST", "/v1/members", body, 200, NULL);
    assert_int_equal(status_int(e, "epoch"), epoch + 6);
}

/* ---- bind ---- */

static void bind_checks_objects_and_contents(void **state)
{
    const env_t *e = *state;
    char body[1024];
    char source[HEFT__DIGEST_SIZE];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE];
    char other_rank[HEFT__DIGEST_SIZE];
    char endpoint[HEFT__DIGEST_SIZE];
    char junk[HEFT__DIGEST_SIZE];
    const char *path = "/v1/members/destination.heft.0.0/manifest";
    bind_text(body, sizeof body, INC_A, DIG, DIG, DIG);
    expect(e, "PUT", path, body, 410, "not registered");
    enroll(e, "destination", 0, INC_A);
    expect(e, "PUT", path, "{}", 400, "\\\"incarnation\\\" is missing");
    expect(e, "PUT", path, body, 409, "\"missing\":[\"" DIG "\"");
    bind_text(body, sizeof body, INC_B, DIG, DIG, DIG);
    expect(e, "PUT", path, body, 409, "ERR_STALE");

    char *text = manifest_text("source");
    put(e, text, source);
    heft_string_free(text);
    text = manifest_text("destination");
    put(e, text, manifest);
    heft_string_free(text);
    put(e, CONTRACT("0"), contract);
    put(e, CONTRACT("1"), other_rank);
    put(e, "{\"transport\":\"shm\"}", endpoint);
    put(e, "not a manifest", junk);

    (void)snprintf(body, sizeof body, "{\"incarnation\":\"" INC_A "\",\"manifest\":\"%s\"}",
                   manifest);
    expect(e, "PUT", path, body, 400, "contract, endpoint and source");
    bind_text(body, sizeof body, INC_A, source, contract, endpoint);
    expect(e, "PUT", path, body, 422, "side \\\"source\\\"");
    bind_text(body, sizeof body, INC_A, manifest, other_rank, endpoint);
    expect(e, "PUT", path, body, 422, "rank 1");
    bind_text(body, sizeof body, INC_A, junk, junk, endpoint);
    expect(e, "PUT", path, body, 422, "2 problems");
    bind_text(body, sizeof body, INC_A, manifest, contract, endpoint);
    expect(e, "PUT", path, body, 200, "{}");
    expect(e, "PUT", path, body, 200, "{}");
}

/* Two destinations with one address: bytes for the one would reach the other. */
static void duplicate_endpoint_refused(void **state)
{
    const env_t *e = *state;
    char body[1024];
    char manifest[HEFT__DIGEST_SIZE];
    char contracts[2][HEFT__DIGEST_SIZE];
    char endpoints[2][HEFT__DIGEST_SIZE];
    char *text = manifest_text("destination");
    put(e, text, manifest);
    heft_string_free(text);
    put(e, CONTRACT("0"), contracts[0]);
    put(e, CONTRACT("1"), contracts[1]);
    put(e, "{\"transport\":\"shm\"}", endpoints[0]);
    put(e, "{\"transport\":\"shm\",\"name\":\"other\"}", endpoints[1]);
    enroll(e, "destination", 0, INC_A);
    enroll(e, "destination", 1, INC_B);
    bind_text(body, sizeof body, INC_A, manifest, contracts[0], endpoints[0]);
    expect(e, "PUT", "/v1/members/destination.heft.0.0/manifest", body, 200, "{}");
    bind_text(body, sizeof body, INC_B, manifest, contracts[1], endpoints[0]);
    expect(e, "PUT", "/v1/members/destination.heft.0.1/manifest", body, 409,
           "destination.heft.0.1 and destination.heft.0.0 advertise");
    bind_text(body, sizeof body, INC_B, manifest, contracts[1], endpoints[1]);
    expect(e, "PUT", "/v1/members/destination.heft.0.1/manifest", body, 200, "{}");
}

/* An endpoint may be reached in several ways, and a text may list addresses: any of them that two
 * members have is one too many. */
static void endpoint_list_parsed(void **state)
{
    const env_t *e = *state;
    char body[1024];
    char manifest[HEFT__DIGEST_SIZE];
    char contracts[2][HEFT__DIGEST_SIZE];
    char endpoints[4][HEFT__DIGEST_SIZE];
    char *text = heft__endpoint_addresses("{\"address\":\"a:1,b:2\"}", 21, DIG);
    assert_string_equal(text, "address a:1\naddress b:2\n");
    heft__free(text);
    text = heft__endpoint_addresses("[]", 2, DIG);
    assert_string_equal(text, "endpoint " DIG "\n");
    heft__free(text);
    text = manifest_text("destination");
    put(e, text, manifest);
    heft_string_free(text);
    put(e, CONTRACT("0"), contracts[0]);
    put(e, CONTRACT("1"), contracts[1]);
    put(e, "{\"transport\":\"x\",\"address\":\"a:1,b:2\"}", endpoints[0]);
    put(e, "{\"transport\":\"x\",\"address\":\"c:3,b:2\",\"pid\":4}", endpoints[1]);
    put(e, "{\"transport\":\"auto\",\"endpoints\":[{\"socket\":\"s\"},{\"addresses\":[\"a:1\"]}]}",
        endpoints[2]);
    put(e, "{\"transport\":\"x\",\"address\":\"a:12,b\"}", endpoints[3]);
    enroll(e, "destination", 0, INC_A);
    enroll(e, "destination", 1, INC_B);
    bind_text(body, sizeof body, INC_A, manifest, contracts[0], endpoints[0]);
    expect(e, "PUT", "/v1/members/destination.heft.0.0/manifest", body, 200, "{}");
    bind_text(body, sizeof body, INC_B, manifest, contracts[1], endpoints[1]);
    expect(e, "PUT", "/v1/members/destination.heft.0.1/manifest", body, 409,
           "destination.heft.0.1 and destination.heft.0.0 advertise one and the same endpoint: "
           "address b:2");
    bind_text(body, sizeof body, INC_B, manifest, contracts[1], endpoints[2]);
    expect(e, "PUT", "/v1/members/destination.heft.0.1/manifest", body, 409, "address a:1");
    bind_text(body, sizeof body, INC_B, manifest, contracts[1], endpoints[3]);
    expect(e, "PUT", "/v1/members/destination.heft.0.1/manifest", body, 200, "{}");
}

/* Routes go from sources to destinations. What sends cannot offer memory to be sent to, so that
 * none leads back to where it starts. */
static void route_to_self_refused(void **state)
{
    const env_t *e = *state;
    char body[1024];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE];
    char endpoint[HEFT__DIGEST_SIZE];
    char *text = manifest_text("source");
    put(e, text, manifest);
    heft_string_free(text);
    put(e, CONTRACT("0"), contract);
    put(e, "{\"transport\":\"shm\"}", endpoint);
    enroll(e, "source", 0, INC_A);
    bind_text(body, sizeof body, INC_A, manifest, contract, endpoint);
    expect(e, "PUT", "/v1/members/source.heft.0.0/manifest", body, 400,
           "contract, endpoint and sources are for destinations");
    (void)snprintf(body, sizeof body, "{\"incarnation\":\"" INC_A "\",\"manifest\":\"%s\"}",
                   manifest);
    expect(e, "PUT", "/v1/members/source.heft.0.0/manifest", body, 200, "{}");
}

/* ---- poll ---- */

static void poll_refuses_what_does_not_fit(void **state)
{
    const env_t *e = *state;
    char body[2048];
    const char *path = "/v1/members/destination.heft.0.0/poll";
    report_text(e, body, sizeof body, INC_A, 5, "");
    expect(e, "POST", path, body, 410, "register");
    enroll(e, "destination", 0, INC_A);
    expect(e, "POST", path, body, 204, NULL);
    expect(e, "POST", path, body, 204, NULL); /* sent twice: no harm */
    report_text(e, body, sizeof body, INC_A, 4, "");
    expect(e, "POST", path, body, 409, "later report");
    report_text(e, body, sizeof body, INC_B, 6, "");
    expect(e, "POST", path, body, 409, "ERR_STALE");
    report_text(e, body, sizeof body, INC_A, 6, ",\"wait\":1");
    expect(e, "POST", path, body, 400, "unknown key \\\"wait\\\"");
    report_text(e, body, sizeof body, INC_A, 6,
                ",\"round\":\"1.1\",\"phase\":\"preflight\",\"result\":\"ok\"");
    expect(e, "POST", path, body, 400, "\\\"plan\\\" is missing");
    report_text(e, body, sizeof body, INC_A, 6,
                ",\"round\":\"1.1\",\"phase\":\"live\",\"result\":\"ok\"");
    expect(e, "POST", path, body, 400, "\\\"live\\\" is missing");
    (void)snprintf(body, sizeof body,
                   "{\"incarnation\":\"" INC_A "\",\"epoch\":%lld,\"sequence\":6,\"order\":0,"
                   "\"wait_ms\":0,\"state\":\"sending\",\"condition\":\"ok\",\"live_version\":0,"
                   "\"serving\":false}",
                   (long long)status_int(e, "epoch"));
    expect(e, "POST", path, body, 204, ""); /* one that feeds others, in a round of before */
    (void)snprintf(body, sizeof body,
                   "{\"incarnation\":\"" INC_A "\",\"epoch\":%lld,\"sequence\":6,\"order\":0,"
                   "\"wait_ms\":0,\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":0,"
                   "\"serving\":false}",
                   (long long)status_int(e, "epoch") - 1);
    expect(e, "POST", path, body, 409, "register again");
    /* nothing of all this has been taken in */
    json_t *root = get_json(e, "/v1/status");
    const json_t *member = json_array_get(json_object_get(root, "members"), 0);
    assert_string_equal(json_string_value(json_object_get(member, "phase")), "none");
    json_decref(root);
}

/* A report of an epoch that is over, or has not begun, is not taken in. */
static void stale_epoch_refused(void **state)
{
    const env_t *e = *state;
    char body[1024];
    const char *path = "/v1/members/destination.heft.0.0/poll";
    enroll(e, "destination", 0, INC_A);
    const long long epoch = (long long)status_int(e, "epoch");
    for (int step = -1; step <= 1; step++) {
        (void)snprintf(body, sizeof body,
                       "{\"incarnation\":\"" INC_A "\",\"epoch\":%lld,\"sequence\":%d,"
                       "\"order\":0,\"wait_ms\":0,\"state\":\"idle\",\"condition\":\"ok\","
                       "\"live_version\":7,\"live_digest\":\"" DIG "\",\"serving\":true}",
                       epoch + step, 2 + step);
        expect(e, "POST", path, body, step == 0 ? 204 : 409, step == 0 ? NULL : "register again");
        json_t *root = get_json(e, "/v1/status");
        const json_t *member = json_array_get(json_object_get(root, "members"), 0);
        /* before: as registered; after: as the report of the present epoch says */
        assert_int_equal(json_integer_value(json_object_get(member, "live_version")),
                         step < 0 ? 0 : 7);
        json_decref(root);
    }
    assert_int_equal(status_int(e, "epoch"), epoch);
}

static void poisoned_condition_is_kept_until_recovered(void **state)
{
    const env_t *e = *state;
    char body[1024];
    enroll(e, "destination", 0, INC_A);
    (void)snprintf(body, sizeof body,
                   "{\"incarnation\":\"" INC_A "\",\"epoch\":%lld,\"sequence\":1,\"order\":0,"
                   "\"wait_ms\":0,\"state\":\"idle\",\"condition\":\"live_suspect\","
                   "\"live_version\":0,\"serving\":false}",
                   (long long)status_int(e, "epoch"));
    expect(e, "POST", "/v1/members/destination.heft.0.0/poll", body, 204, NULL);
    expect(e, "GET", "/v1/status", NULL, 200, "destination.heft.0.0: it reports a poisoned");
    expect(e, "POST", "/v1/rounds", "{\"version\":1,\"key\":\"k\"}", 409, "ERR_POISONED");
    expect(e, "DELETE", "/v1/members/destination.heft.0.0?incarnation=" INC_A, NULL, 409,
           "ERR_POISONED");
    /* claims */
#define CLAIM(claim) "{\"members\":[{\"id\":\"destination.heft.0.0\",\"claim\":\"" claim "\"}]}"
    expect(e, "POST", "/v1/recover", CLAIM("restarted"), 409, "no new incarnation");
    expect(e, "POST", "/v1/recover", CLAIM("fenced"), 409, "not confirmed");
    expect(e, "POST", "/v1/recover", CLAIM("retry"), 409, "no commit stands");
    expect(e, "POST", "/v1/recover", CLAIM("again"), 400, "is none of restarted, fenced, retry");
    expect(e, "POST", "/v1/recover", "{\"members\":[{\"id\":\"x\",\"claim\":\"removed\"}]}", 404,
           "member x");
    expect(e, "POST", "/v1/recover", "{\"members\":[{\"id\":\"x\"}]}", 400, "claim");
    expect(e, "POST", "/v1/recover", "{\"members\":[1]}", 400, "list of objects");
    expect(e, "POST", "/v1/recover", "{}", 400, "members");
    expect(e, "POST", "/v1/recover", "[", 400, "ERR_FORMAT");
    enroll(e, "destination", 0, INC_B);
    expect(e, "GET", "/v1/status", NULL, 200, "\"poisoned\":true");
    expect(e, "POST", "/v1/recover", CLAIM("restarted"), 200, "\"poisoned\":false");
    expect(e, "POST", "/v1/recover", CLAIM("restarted"), 409, "not poisoned");
    expect(e, "POST", "/v1/recover", CLAIM("removed"), 200, "\"destinations\":0");
    /* the process that was taken out stays out; a new one may come */
    register_text(body, sizeof body, "destination", 0, INC_B, 0);
    expect(e, "POST", "/v1/members", body, 409, "has been removed");
    enroll(e, "destination", 0, INC_A);
#undef CLAIM
}

/* ---- leave ---- */

static void leave_needs_the_present_life(void **state)
{
    const env_t *e = *state;
    enroll(e, "source", 0, INC_A);
    expect(e, "DELETE", "/v1/members/source.heft.0.0", NULL, 400, "incarnation");
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=x", NULL, 400, "incarnation");
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=" INC_B, NULL, 409, "ERR_STALE");
    expect(e, "DELETE", "/v1/members/source.heft.0.9?incarnation=" INC_A, NULL, 410, "ERR_PEER");
    assert_int_equal(status_int(e, "sources"), 1);
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=" INC_A, NULL, 200, "{}");
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=" INC_A, NULL, 410, "ERR_PEER");
    assert_int_equal(status_int(e, "sources"), 0);
}

/* ---- objects ---- */

static void objects_are_checked_against_their_name(void **state)
{
    const env_t *e = *state;
    char digest[HEFT__DIGEST_SIZE];
    char path[128];
    expect(e, "PUT", "/v1/objects/xyz", "a", 400, "not a digest");
    expect(e, "GET", "/v1/objects/" DIG, NULL, 404, "no object");
    expect(e, "PUT", "/v1/objects/" DIG, "a", 400, "ERR_DIGEST");
    expect(e, "GET", "/v1/objects/" DIG, NULL, 404, "no object");
    put(e, "some bytes", digest);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest);
    expect(e, "GET", path, NULL, 200, "some bytes");
    /* larger than a message may be */
    const size_t n = 3u << 20;
    char *big = malloc(n + 1);
    assert_non_null(big);
    memset(big, 'b', n);
    big[n] = '\0';
    put(e, big, digest);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest);
    expect(e, "GET", path, NULL, 200, big);
    free(big);
    json_t *root = get_json(e, "/v1/status");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "objects"), "count")),
                     2);
    json_decref(root);
}

/* ---- rounds ---- */

/* The mapping of 200 000 source tensors is 40 MB of text; one byte more than 64 MiB is refused with
 * the number, by its head. */
static void large_contracts_are_objects(void **state)
{
    const env_t *e = *state;
    enum { N = 200000, EACH = 200 };
    const size_t n_max = (size_t)HEFT__OBJECT_MAX_BYTES + 1;
    char *text = malloc(n_max + 1);
    char *reply = NULL;
    char digest[HEFT__DIGEST_SIZE];
    char path[128];
    assert_non_null(text);
    memset(text, 'x', n_max);
    text[n_max] = '\0';
    assert_int_equal(fleet_request(e->url, "PUT", "/v1/objects/" DIG, text, &reply), 413);
    assert_non_null(strstr(reply, "67108864"));
    heft__free(reply);
    text[(size_t)N * EACH] = '\0';
    heft__object_digest(text, (size_t)N * EACH, digest);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest);
    assert_int_equal(fleet_request(e->url, "PUT", path, text, NULL), 200);
    assert_int_equal(fleet_request(e->url, "GET", path, NULL, &reply), 200);
    assert_string_equal(reply, text);
    heft__free(reply);
    free(text);
}

static void empty_side_refused(void **state)
{
    const env_t *e = *state;
    static const char *const paths[] = { "/v1/rounds", "/v1/preflight" };
    static const char *const bodies[] = { "{\"version\":1,\"key\":\"k\"}", "{\"key\":\"k\"}" };
    for (int i = 0; i < 2; i++) {
        expect(e, "POST", paths[i], bodies[i], 422, "empty side: 0 sources, 0 destinations");
    }
    enroll(e, "source", 0, INC_A);
    for (int i = 0; i < 2; i++) {
        expect(e, "POST", paths[i], bodies[i], 422, "empty side: 1 source, 0 destinations");
    }
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=" INC_A, NULL, 200, NULL);
    enroll(e, "destination", 0, INC_B);
    for (int i = 0; i < 2; i++) {
        expect(e, "POST", paths[i], bodies[i], 422, "empty side: 0 sources, 1 destination");
    }
    assert_int_equal(status_int(e, "sequence"), 0);
}

static void begin_refuses_what_cannot_be(void **state)
{
    const env_t *e = *state;
    const char *path = "/v1/rounds";
    enroll(e, "source", 0, INC_A);
    enroll(e, "destination", 0, INC_B);
    expect(e, "POST", path, "{\"version\":1}", 400, "\\\"key\\\" is missing");
    expect(e, "POST", path, "{\"key\":\"k\"}", 400, "version_missing");
    expect(e, "POST", path, "{\"version\":0,\"key\":\"k\"}", 400, "ERR_VERSION");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"models\":[]}", 400, "is empty");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"models\":[\"target\",\"draft\"]}", 422,
           "model draft: a round brings every model");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"carries\":\"adapter\"}", 422,
           "merge the adapter into them");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"carries\":\"bas\"}", 400, "carries");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"carries\":\"unsaid\"}", 400,
           "none of base, merged, adapter");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"destinations\":[\"nobody\"]}", 404,
           "member nobody");
    expect(e, "POST", path, "{\"version\":1,\"key\":\"k\",\"destinations\":[\"source.heft.0.0\"]}",
           400, "not a destination");
    expect(e, "POST", "/v1/preflight", "{}", 400, "\\\"key\\\" is missing");
    expect(e, "POST", "/v1/preflight", "{\"key\":\"k\",\"members\":[]}", 400, "unknown key");
    expect(e, "POST", "/v1/verify", "{\"key\":\"k\",\"members\":[\"nobody\"]}", 404, "nobody");
    expect(e, "POST", "/v1/verify", "{\"key\":\"k\",\"members\":[1]}", 400, "item 0");
    expect(e, "POST", "/v1/verify", "{\"key\":\"k\",\"members\":[]}", 400, "is empty");
    assert_int_equal(status_int(e, "sequence"), 0);
}

static void unknown_rounds_are_not_found(void **state)
{
    const env_t *e = *state;
    expect(e, "GET", "/v1/rounds/1.1", NULL, 404, "round 1.1");
    expect(e, "GET", "/v1/rounds/latest", NULL, 400, "not a round");
    expect(e, "POST", "/v1/rounds/1.1/cancel", "{}", 404, "round 1.1");
    expect(e, "POST", "/v1/rounds/1.1/cancel", "{\"x\":1}", 400, "unknown key");
}

static void a_member_without_manifest_is_waited_for_and_named(void **state)
{
    const env_t *e = *state;
    char round[HEFT__ROUND_TEXT_SIZE];
    char path[128];
    enroll(e, "source", 0, INC_A);
    enroll(e, "destination", 0, INC_B);
    begin(e, "{\"version\":1,\"key\":\"k\",\"deadlines\":{\"preflight_ms\":50}}", round);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=x", round);
    expect(e, "GET", path, NULL, 400, "\\\"wait\\\"");
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=61", round);
    expect(e, "GET", path, NULL, 400, "0 to 60");
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=10", round);
    expect(e, "GET", path, NULL, 200,
           "\"cause\":{\"status\":\"ERR_TIMEOUT\",\"phase\":\"manifest\",\"cause\":\"manifest took "
           "longer than 50 ms\",\"member\":\"source.heft.0.0\"}");
    expect(e, "GET", path, NULL, 200, "\"state\":\"aborted\"");
    /* a key is remembered with its kind */
    expect(e, "POST", "/v1/preflight", "{\"key\":\"k\"}", 409, "belongs to round");
}

static void requests_of_one_kind_are_independent_of_another(void **state)
{
    const env_t *e = *state;
    char round[HEFT__ROUND_TEXT_SIZE];
    char path[128];
    enroll(e, "source", 0, INC_A);
    enroll(e, "destination", 0, INC_B);
    begin(e, "{\"version\":1,\"key\":\"k\"}", round);
    expect(e, "POST", "/v1/verify", "{\"key\":\"v\"}", 409, "ERR_BUSY");
    (void)snprintf(path, sizeof path, "/v1/rounds/%s", round);
    expect(e, "GET", path, NULL, 200, "\"state\":\"preparing\"");
    expect(e, "GET", "/metrics", NULL, 200, "heft_round_in_flight 1");
    expect(e, "GET", "/v1/rounds", NULL, 200, "\"phase\":\"manifest\"");
    (void)snprintf(path, sizeof path, "/v1/rounds/%s/cancel", round);
    expect(e, "POST", path, NULL, 202, "aborted");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENV_TEST(paths_and_methods),
        ENV_TEST(large_bodies_are_refused),
        ENV_TEST(port_taken_is_named),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(start_survives_lack_of_memory),
        ENV_TEST(stale_incarnation_refused),
        ENV_TEST(a_lost_epoch_is_followed),
        ENV_TEST(bind_checks_objects_and_contents),
        ENV_TEST(duplicate_endpoint_refused),
        ENV_TEST(endpoint_list_parsed),
        ENV_TEST(route_to_self_refused),
        ENV_TEST(poll_refuses_what_does_not_fit),
        ENV_TEST(stale_epoch_refused),
        ENV_TEST(poisoned_condition_is_kept_until_recovered),
        ENV_TEST(leave_needs_the_present_life),
        ENV_TEST(objects_are_checked_against_their_name),
        ENV_TEST(large_contracts_are_objects),
        ENV_TEST(empty_side_refused),
        ENV_TEST(begin_refuses_what_cannot_be),
        ENV_TEST(unknown_rounds_are_not_found),
        ENV_TEST(a_member_without_manifest_is_waited_for_and_named),
        ENV_TEST(requests_of_one_kind_are_independent_of_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
