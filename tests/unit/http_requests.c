/* SPDX-License-Identifier: Apache-2.0 */
#include "http_requests.h"

#include "sync/objects.h"

/* Request, expect the code and a part of the body. */
void expect(const env_t *e, const char *method, const char *path, const char *body, int expected,
            const char *part)
{
    char *reply = NULL;
    const int code = fleet_request(e->url, method, path, body, &reply);
    if (code != expected || (part != NULL && strstr(reply != NULL ? reply : "", part) == NULL)) {
        fail_msg("%s %s: %d %s, expected %d with %s", method, path, code,
                 reply != NULL ? reply : "", expected, part != NULL ? part : "anything");
    }
    heft__free(reply);
}

json_t *get_json(const env_t *e, const char *path)
{
    char *reply = NULL;
    assert_int_equal(fleet_request(e->url, "GET", path, NULL, &reply), 200);
    json_t *root = json_loads(reply, 0, NULL);
    assert_non_null(root);
    heft__free(reply);
    return root;
}

int64_t status_int(const env_t *e, const char *key)
{
    json_t *root = get_json(e, "/v1/status");
    const int64_t value = json_integer_value(json_object_get(root, key));
    json_decref(root);
    return value;
}

void register_text(char *out, size_t size, const char *role, uint32_t rank, const char *incarnation,
                   int64_t epoch)
{
    (void)snprintf(out, size,
                   "{\"format\":1,\"role\":\"%s\",\"job\":\"heft\",\"replica\":0,\"rank\":%u,"
                   "\"incarnation\":\"%s\",\"epoch\":%lld,\"mode\":\"staged\","
                   "\"transports\":[\"shm\"]}",
                   role, rank, incarnation, (long long)epoch);
}

void enroll(const env_t *e, const char *role, uint32_t rank, const char *incarnation)
{
    char body[512];
    register_text(body, sizeof body, role, rank, incarnation, 0);
    const int64_t deadline = heft__clock_mono_ns() + 5 * INT64_C(1000000000);
    char *reply = NULL;
    int code;
    do { /* a place is free a moment after its last connection was closed */
        heft__free(reply);
        code = fleet_request(e->url, "POST", "/v1/members", body, &reply);
    } while (code == 409 && reply != NULL && strstr(reply, "try again") != NULL &&
             heft__clock_mono_ns() < deadline);
    if (code != 200 || strstr(reply, "\"epoch\"") == NULL) {
        fail_msg("register %s: %d %s", incarnation, code, reply);
    }
    heft__free(reply);
}

void put(const env_t *e, const char *text, char *digest_out)
{
    char path[128];
    heft__object_digest(text, strlen(text), digest_out);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest_out);
    expect(e, "PUT", path, text, 200, NULL);
}

char *manifest_text(const char *side)
{
    heft_manifest_t *manifest = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    const heft_shape_t shape = { .rank = 1, .extent = { 4 } };
    EXPECT_STATUS(heft_manifest_create(side, &manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "w", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_encode(manifest, &text, &err), HEFT_OK);
    heft_manifest_destroy(manifest);
    return text;
}

void bind_text(char *out, size_t size, const char *incarnation, const char *manifest,
               const char *contract, const char *endpoint)
{
    (void)snprintf(out, size,
                   "{\"incarnation\":\"%s\",\"manifest\":\"%s\",\"contract\":\"%s\","
                   "\"endpoint\":\"%s\"}",
                   incarnation, manifest, contract, endpoint);
}

void report_text(const env_t *e, char *out, size_t size, const char *incarnation, int64_t sequence,
                 const char *rest)
{
    (void)snprintf(out, size,
                   "{\"incarnation\":\"%s\",\"epoch\":%lld,\"sequence\":%lld,\"order\":0,"
                   "\"wait_ms\":0,\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":0,"
                   "\"serving\":false%s}",
                   incarnation, (long long)status_int(e, "epoch"), (long long)sequence, rest);
}

void begin(const env_t *e, const char *body, char *round_out)
{
    char *reply = NULL;
    assert_int_equal(fleet_request(e->url, "POST", "/v1/rounds", body, &reply), 202);
    json_t *root = json_loads(reply, 0, NULL);
    (void)snprintf(round_out, HEFT__ROUND_TEXT_SIZE, "%s",
                   json_string_value(json_object_get(root, "round")));
    json_decref(root);
    heft__free(reply);
}
