/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: calls. Routing by method and path, the forms of replies, and when a call that waits
 * is ready.
 */
#include "sync/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- replies ---- */

void heft__call_text(heft__call_t *call, int code, const char *content_type, char *text, size_t n)
{
    heft__free(call->reply);
    call->waits = HEFT__WAIT_NONE;
    call->code = code;
    call->content_type = content_type;
    call->reply = text;
    call->n_reply = text != NULL ? n : 0;
}

void heft__call_json(heft__call_t *call, int code, json_t *root)
{
    char *text = NULL;
    if (root == NULL || heft__json_finish(root, &text, NULL) != HEFT_OK) {
        heft__call_text(call, 500, "application/json", NULL, 0);
        return;
    }
    heft__call_text(call, code, "application/json", text, strlen(text));
}

void heft__call_error(heft__call_t *call, int code, heft_status_t status, const char *fmt, ...)
{
    char message[400];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    heft__call_json(call, code,
                    json_pack("{s:{s:s,s:o}}", "error", "status", heft_status_get_name(status),
                              "message", heft__json_text(message)));
}

static int code_of(heft_status_t status)
{
    switch ((int)status) {
    case HEFT_ERR_FORMAT:
    case HEFT_ERR_DIGEST:
    case HEFT_ERR_UNSUPPORTED:
    case HEFT_ERR_ARGUMENT:
        return 400;
    case HEFT_ERR_NOT_FOUND:
        return 404;
    case HEFT_ERR_STALE:
    case HEFT_ERR_BUSY:
    case HEFT_ERR_POISONED:
    case HEFT_ERR_VERSION:
    case HEFT_ERR_STATE:
    case HEFT_ERR_EXISTS:
        return 409;
    case HEFT_ERR_PEER:
        return 410;
    case HEFT_ERR_LIMIT:
        return 413;
    case HEFT_ERR_PROOF:
    case HEFT_ERR_NAME:
    case HEFT_ERR_SHAPE:
        return 422;
    default:
        return 500;
    }
}

void heft__call_fail(heft__call_t *call, const heft_error_t *err)
{
    heft__call_error(call, code_of(err->status), err->status, "%s", err->message);
}

/* ---- routes ---- */

typedef struct route {
    const char *method;
    const char *prefix; /* of the path */
    const char *suffix; /* after one id; NULL: the path is the prefix itself */
    void (*plain)(heft_coordinator_t *c, heft__call_t *call);
    void (*by_id)(heft_coordinator_t *c, heft__call_t *call, const char *id);
} route_t;

static void serve_begin_sync(heft_coordinator_t *c, heft__call_t *call)
{
    heft__serve_begin_locked(c, call, HEFT__KIND_SYNC);
}

static void serve_begin_preflight(heft_coordinator_t *c, heft__call_t *call)
{
    heft__serve_begin_locked(c, call, HEFT__KIND_PREFLIGHT);
}

static void serve_begin_live(heft_coordinator_t *c, heft__call_t *call)
{
    heft__serve_begin_locked(c, call, HEFT__KIND_LIVE);
}

static void serve_health(heft_coordinator_t *c, heft__call_t *call)
{
    (void)c;
    heft__call_json(call, 200, json_pack("{s:b}", "ok", 1));
}

static const route_t routes[] = {
    { "POST", "/v1/members", NULL, heft__serve_register_locked, NULL },
    { "PUT", "/v1/members/", "/manifest", NULL, heft__serve_bind_locked },
    { "POST", "/v1/members/", "/poll", NULL, heft__serve_poll_locked },
    { "DELETE", "/v1/members/", "", NULL, heft__serve_leave_locked },
    { "PUT", "/v1/objects/", "", NULL, heft__serve_put_object_locked },
    { "GET", "/v1/objects/", "", NULL, heft__serve_get_object_locked },
    { "POST", "/v1/rounds", NULL, serve_begin_sync, NULL },
    { "GET", "/v1/rounds", NULL, heft__serve_rounds_locked, NULL },
    { "GET", "/v1/rounds/", "", NULL, heft__serve_get_round_locked },
    { "POST", "/v1/rounds/", "/cancel", NULL, heft__serve_cancel_locked },
    { "POST", "/v1/preflight", NULL, serve_begin_preflight, NULL },
    { "POST", "/v1/verify", NULL, serve_begin_live, NULL },
    { "POST", "/v1/recover", NULL, heft__serve_recover_locked, NULL },
    { "GET", "/v1/status", NULL, heft__serve_status_locked, NULL },
    { "GET", "/healthz", NULL, serve_health, NULL },
    { "GET", "/metrics", NULL, heft__serve_metrics_locked, NULL },
    { "GET", "/", NULL, heft__serve_page, NULL },
};

/* What anybody may ask for: it says nothing of the fleet, and a probe or a browser has no token. */
bool heft__coordinator_is_open_path(const char *path)
{
    return strcmp(path, "/healthz") == 0 || strcmp(path, "/") == 0;
}

/* The id between prefix and suffix; false when the path is another. id holds HEFT__ID_SIZE. */
static bool match(const route_t *route, const char *path, char *id)
{
    if (route->suffix == NULL) {
        return strcmp(route->prefix, path) == 0;
    }
    const size_t n_prefix = strlen(route->prefix);
    if (strncmp(path, route->prefix, n_prefix) != 0) {
        return false;
    }
    const char *from = path + n_prefix;
    const size_t n = strcspn(from, "/");
    if (n == 0 || n >= HEFT__ID_SIZE || strcmp(from + n, route->suffix) != 0) {
        return false;
    }
    memcpy(id, from, n);
    id[n] = '\0';
    return true;
}

/* The route of a call; NULL with the reply set. id holds HEFT__ID_SIZE. */
static const route_t *find_route(heft__call_t *call, char *id)
{
    bool path_exists = false;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (match(&routes[i], call->path, id)) {
            path_exists = true;
            if (strcmp(routes[i].method, call->method) == 0) {
                return &routes[i];
            }
        }
    }
    char shown[64];
    char path[64];
    if (path_exists) {
        heft__call_error(call, 405, HEFT_ERR_UNSUPPORTED, "method %s is not for %s",
                         heft__json_show(call->method, shown), heft__json_show(call->path, path));
    } else {
        heft__call_error(call, 404, HEFT_ERR_NOT_FOUND, "no such path: %s",
                         heft__json_show(call->path, shown));
    }
    return NULL;
}

bool heft__coordinator_has_route(heft__call_t *call)
{
    char id[HEFT__ID_SIZE];
    return find_route(call, id) != NULL;
}

/* Who waits for the end of a round is told of it, also when that end was all that a stop waited
 * for. */
static bool has_answer(const heft_coordinator_t *c, const heft__call_t *call)
{
    return call->waits == HEFT__WAIT_ENDED && !heft__coordinator_is_open_locked(c, call->round);
}

void heft__coordinator_handle(heft_coordinator_t *c, heft__call_t *call)
{
    char id[HEFT__ID_SIZE];
    if (call->waits == HEFT__WAIT_NONE) {
        c->n_requests++;
    }
    if (c->stopping && !has_answer(c, call)) {
        heft__call_error(call, 503, HEFT_ERR_BUSY, "the coordinator is shutting down");
        return;
    }
    const route_t *route = find_route(call, id);
    if (route != NULL && route->suffix == NULL) {
        route->plain(c, call);
    } else if (route != NULL) {
        route->by_id(c, call, id);
    }
    c->n_errors += call->waits == HEFT__WAIT_NONE && call->code >= 400;
}

bool heft__coordinator_is_ready_locked(const heft_coordinator_t *c, const heft__call_t *call,
                                       int64_t now_ns)
{
    if (now_ns >= call->deadline_ns) {
        return true;
    }
    const heft__entry_t *entry;
    switch (call->waits) {
    case HEFT__WAIT_ORDER:
        entry = c->entries[call->slot];
        return entry == NULL || entry->poll != call->poll ||
               c->round.members[call->slot].order_seq != call->order;
    case HEFT__WAIT_STORED:
        return !(heft__round_id_equal(c->round.id, call->round) &&
                 c->round.state == HEFT__ROUND_STORING);
    case HEFT__WAIT_FED:
        return !heft__round_is_feeding(&c->round);
    case HEFT__WAIT_ENDED:
        return !heft__coordinator_is_open_locked(c, call->round);
    case HEFT__WAIT_NONE:
        break;
    }
    return true;
}
