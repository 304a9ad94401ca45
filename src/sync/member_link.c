/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that talks to the coordinator: register, bind, then poll for ever.
 *
 * A poll carries the whole report and waits at the coordinator for the next order. An urgent change
 * of the report breaks the poll off: the client is thrown away with its connection and a new one
 * sends the new report. A reply lost that way is repeated, because the report names the last order
 * taken in. Within a round polls are short, so that a report that was overtaken is soon put right.
 * Without contact the thread tries again, after 50 ms at first and 5 s at most.
 *
 * Messages get lost. Nothing here may take so long that the coordinator takes the member for lost
 * because of one or two of them: polls, waits and pauses are parts of the contact time, and a reply
 * is waited for as long as replies have taken so far (try_ms), not for the whole deadline.
 */
#include "sync/member_private.h"

#include <stdio.h>
#include <string.h>

#include "sync/wire_json.h"

enum { BACKOFF_MIN_MS = 50, BACKOFF_MAX_MS = 5000, ROUND_POLL_MS = 1000, SHORT_MS = 20 };
enum { TRY_MIN_MS = 250, TRY_FIRST_MS = 1000 };
/* Parts of the contact time: a poll outside of rounds and within, a pause, a reply. */
enum { IDLE_PART = 5, ROUND_PART = 6, BACKOFF_PART = 8, TRY_PART = 4 };

static int64_t in_ms(uint32_t ms)
{
    return heft__clock_mono_ns() + (int64_t)ms * 1000000;
}

/* A client that was aborted is of no use any more: replace it. */
static heft_status_t renew_http(heft__member_t *member, heft_error_t *err)
{
    heft__http_t *fresh = NULL;
    heft_status_t status = heft__member_connect(member, &fresh, err);
    if (status == HEFT_OK) {
        (void)pthread_mutex_lock(&member->lock);
        heft__http_t *old = member->http;
        member->http = fresh;
        if (member->stop) {
            heft__http_abort(fresh);
        }
        (void)pthread_mutex_unlock(&member->lock);
        heft__http_destroy(old);
    }
    return status;
}

/* How long to stay silent within a round: well within what the coordinator takes for a loss. */
static uint32_t silence_ms(const heft__member_t *member)
{
    uint32_t part = member->contact_ms / ROUND_PART;
    return part < ROUND_POLL_MS ? part : ROUND_POLL_MS;
}

/* The least time that a reply is waited for. */
static uint32_t least_try_ms(const heft__member_t *member)
{
    const uint32_t part =
        member->contact_ms > 0 ? member->contact_ms / TRY_PART : (uint32_t)TRY_FIRST_MS;
    const uint32_t least = part > TRY_MIN_MS ? part : TRY_MIN_MS;
    return least < member->deadline_ms ? least : member->deadline_ms;
}

/* A reply that did not come in time may have been slow, and not lost: the next one gets more. */
static void learn_try(heft__member_t *member, heft_status_t status)
{
    const uint32_t least = least_try_ms(member);
    if (status == HEFT_ERR_TIMEOUT) {
        member->try_ms *= 2;
    } else if (status == HEFT_OK) {
        member->try_ms -= member->try_ms / 4;
    }
    member->try_ms = member->try_ms < least                 ? least
                     : member->try_ms > member->deadline_ms ? member->deadline_ms
                                                            : member->try_ms;
}

static heft_status_t request(heft__member_t *member, const char *method, const char *path,
                             const char *body, uint32_t wait_ms, int *code_out, char **body_out,
                             size_t *n_out, heft_error_t *err)
{
    learn_try(member, HEFT_ERR_CANCELED);
    heft_status_t status =
        heft__http_request(member->http, method, path, body, strlen(body), member->try_ms + wait_ms,
                           code_out, body_out, n_out, err);
    learn_try(member, status);
    return status;
}

/* Trying again would not help. */
static void set_final(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    member->is_final = true;
    (void)pthread_mutex_unlock(&member->lock);
}

/* ---- register ---- */

static heft_status_t register_member(heft__member_t *member, heft_error_t *err)
{
    char *text = NULL;
    char *reply = NULL;
    size_t n = 0;
    int code = 0;
    heft__registered_t registered;
    heft_status_t status = heft__register_encode(&member->identity, &text, err);
    if (status == HEFT_OK) {
        member->may_be_known = true;
        status = request(member, "POST", "/v1/members", text, 0, &code, &reply, &n, err);
    }
    if (status == HEFT_OK) {
        status = heft__registered_decode(reply, n, &registered, err);
    } else if (code == 400 || code == 413 || status == HEFT_ERR_STALE ||
               status == HEFT_ERR_EXISTS || (status == HEFT_ERR_AUTH && member->poll_ms == 0)) {
        /* another incarnation has our place, we speak nonsense, or have never been let in */
        member->may_be_known = false;
        set_final(member);
    }
    heft__free(text);
    heft__free(reply);
    if (status != HEFT_OK) {
        return status;
    }
    member->identity.epoch = registered.epoch;
    member->poll_ms = registered.poll_ms;
    member->contact_ms = registered.contact_ms;
    member->is_registered = true;
    (void)pthread_mutex_lock(&member->lock);
    member->report.epoch = registered.epoch;
    member->report.order = 0; /* orders of another epoch count from the start */
    if (member->has_order && member->order.epoch < registered.epoch) {
        member->has_order = false; /* and those of an earlier one do not count at all */
    }
    member->handed_out = 0;
    member->committed = registered.committed_version;
    member->n_binds_done = 0;
    member->n_binds_wanted = member->n_binds_wanted > 0 ? member->n_binds_wanted : 1;
    (void)pthread_mutex_unlock(&member->lock);
    return HEFT_OK;
}

/* ---- bind ---- */

/* A copy of what has this digest, bound or kept; NULL: nothing here has. */
static char *copy_object(heft__member_t *member, const char *digest)
{
    const char *text = NULL;
    (void)pthread_mutex_lock(&member->lock);
    for (int i = 0; i < HEFT__N_MEMBER_OBJECTS; i++) {
        if (member->objects[i] != NULL && strcmp(member->digests[i], digest) == 0) {
            text = member->objects[i];
        }
    }
    for (uint32_t i = 0; i < member->n_named; i++) {
        if (strcmp(member->named[i].digest, digest) == 0) {
            text = member->named[i].text;
        }
    }
    for (int i = 0; i < HEFT__N_KEPT; i++) {
        if (member->kept[i].text != NULL && strcmp(member->kept[i].digest, digest) == 0) {
            text = member->kept[i].text;
        }
    }
    char *copy = text != NULL ? heft__strdup(text) : NULL;
    (void)pthread_mutex_unlock(&member->lock);
    return copy;
}

/* A report must not name what nobody can put any more. */
static void forget_object(heft__member_t *member, const char *digest)
{
    (void)pthread_mutex_lock(&member->lock);
    char *names[] = { member->report.plans, member->report.digests, member->report.live };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], digest) == 0) {
            names[i][0] = '\0';
        }
    }
    (void)pthread_mutex_unlock(&member->lock);
}

/* Put the objects that the last error reply lists as missing; *n_out of them were ours. */
static heft_status_t put_missing(heft__member_t *member, int *n_out, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    const char *text_of_error = heft__http_get_error_body(member->http);
    json_t *root = NULL;
    (void)heft__json_parse(text_of_error, strlen(text_of_error), "reply", &root, NULL);
    const json_t *missing = json_object_get(root, "missing");
    *n_out = 0;
    for (size_t k = 0; k < json_array_size(missing) && status == HEFT_OK; k++) {
        const char *digest = json_string_value(json_array_get(missing, k));
        char *text = digest != NULL ? copy_object(member, digest) : NULL;
        if (text != NULL) {
            char put[HEFT__DIGEST_SIZE];
            status = heft__member_put_over(member->http, text, member->deadline_ms, put, err);
            heft__free(text);
            ++*n_out;
        } else if (digest != NULL) {
            forget_object(member, digest);
        }
    }
    json_decref(root);
    return status;
}

static heft_status_t send_bind(heft__member_t *member, const char *body, heft_error_t *err)
{
    char path[64 + HEFT__ID_SIZE];
    int code = 0;
    (void)snprintf(path, sizeof path, "/v1/members/%s/manifest", member->id);
    heft_status_t status = request(member, "PUT", path, body, 0, &code, NULL, NULL, err);
    /* what is missing, and then what that names */
    for (int i = 0; i < 2 && status == HEFT_ERR_STATE && code == 409; i++) {
        int n_put = 0;
        heft_status_t put = put_missing(member, &n_put, err);
        if (put != HEFT_OK || n_put == 0) {
            return put != HEFT_OK ? put : status;
        }
        status = request(member, "PUT", path, body, 0, &code, NULL, NULL, err);
    }
    if (code == 410 || status == HEFT_ERR_STALE) {
        member->is_registered = false;
    } else if (code == 400 || code == 413 || code == 422 || status == HEFT_ERR_EXISTS) {
        set_final(member);
    }
    return status;
}

static heft_status_t bind_member(heft__member_t *member, heft_error_t *err)
{
    heft__bind_t msg = { .manifest = "" };
    char *body = NULL;
    memcpy(msg.incarnation, member->identity.incarnation, sizeof msg.incarnation);
    (void)pthread_mutex_lock(&member->lock);
    uint64_t wanted = member->n_binds_wanted;
    memcpy(msg.manifest, member->digests[HEFT__OBJECT_MANIFEST], sizeof msg.manifest);
    memcpy(msg.contract, member->digests[HEFT__OBJECT_CONTRACT], sizeof msg.contract);
    memcpy(msg.endpoint, member->digests[HEFT__OBJECT_ENDPOINT], sizeof msg.endpoint);
    memcpy(msg.sources, member->digests[HEFT__OBJECT_SOURCES], sizeof msg.sources);
    memcpy(msg.mapping, member->digests[HEFT__OBJECT_MAPPING], sizeof msg.mapping);
    (void)pthread_mutex_unlock(&member->lock);
    heft_status_t status = heft__bind_encode(&msg, &body, err);
    if (status == HEFT_OK) {
        status = send_bind(member, body, err);
    }
    if (status == HEFT_OK) {
        (void)pthread_mutex_lock(&member->lock);
        member->n_binds_done = wanted;
        (void)pthread_cond_broadcast(&member->changed);
        (void)pthread_mutex_unlock(&member->lock);
    }
    heft__free(body);
    return status;
}

/* ---- poll ---- */

static bool is_bound(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    bool is = member->n_binds_done >= member->n_binds_wanted;
    (void)pthread_mutex_unlock(&member->lock);
    return is;
}

static bool is_round_open(const heft__report_t *report)
{
    return report->phase != HEFT__PHASE_NONE &&
           !(report->state == HEFT__STATE_IDLE && report->result != HEFT__RESULT_WORKING &&
             (report->phase == HEFT__PHASE_RELEASE || report->phase == HEFT__PHASE_ABORT));
}

/* A refusal is said in place of the phase that the member stands in. */
static heft_status_t encode_report_locked(heft__member_t *member, char **text_out,
                                          heft_error_t *err)
{
    heft__report_t *report = &member->report;
    if (!member->is_refusing) {
        return heft__report_encode(report, text_out, err);
    }
    heft__phase_t phase = report->phase;
    heft__result_t result = report->result;
    heft__wire_error_t error = report->error;
    report->phase = member->refused;
    report->result = HEFT__RESULT_REFUSED;
    report->error = member->refusal;
    heft_status_t status = heft__report_encode(report, text_out, err);
    report->phase = phase;
    report->result = result;
    report->error = error;
    return status;
}

/* The report as it is now; polling may be broken off from here on. */
static heft_status_t take_report(heft__member_t *member, char **text_out, uint32_t *wait_out,
                                 heft_error_t *err)
{
    (void)pthread_mutex_lock(&member->lock);
    if (member->refresh != NULL) {
        member->refresh(member->refresh_arg, &member->report);
    }
    uint32_t wait_ms = member->poll_ms;
    if (wait_ms > member->contact_ms / IDLE_PART) {
        wait_ms = member->contact_ms / IDLE_PART;
    }
    if (is_round_open(&member->report) && wait_ms > silence_ms(member)) {
        wait_ms = silence_ms(member);
    }
    if (member->is_telling && member->n_told < member->n_changes) {
        wait_ms = 0;
    }
    member->report.wait_ms = wait_ms;
    member->report.sequence++; /* one that is overtaken by a later one is refused */
    heft_status_t status = encode_report_locked(member, text_out, err);
    member->n_sent = member->n_changes;
    member->is_polling = status == HEFT_OK;
    (void)pthread_mutex_unlock(&member->lock);
    *wait_out = wait_ms;
    return status;
}

/* An order that is known already is sent again until the owner has taken it up: wait for that; and
 * a little for the result, because most phases are short. */
static void take_order(heft__member_t *member, heft__order_t *order)
{
    (void)pthread_mutex_lock(&member->lock);
    bool is_old = order->epoch < member->report.epoch || order->sequence <= member->handed_out;
    bool is_known = is_old || (member->has_order && member->order.sequence == order->sequence);
    if (is_known) {
        heft__order_fini(order);
        int64_t until = in_ms(is_old ? SHORT_MS : silence_ms(member));
        while (!member->stop && member->n_changes == member->n_sent &&
               heft__member_wait_locked(member, until)) {
        }
    } else {
        heft__order_fini(&member->order);
        member->order = *order;
        member->has_order = true;
        (void)pthread_cond_broadcast(&member->changed);
    }
    (void)pthread_mutex_unlock(&member->lock);
}

static heft_status_t poll_once(heft__member_t *member, heft_error_t *err)
{
    char *text = NULL;
    char *reply = NULL;
    size_t n = 0;
    int code = 0;
    uint32_t wait_ms = 0;
    char path[64 + HEFT__ID_SIZE];
    (void)snprintf(path, sizeof path, "/v1/members/%s/poll", member->id);
    heft_status_t status = take_report(member, &text, &wait_ms, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = request(member, "POST", path, text, wait_ms, &code, &reply, &n, err);
    (void)pthread_mutex_lock(&member->lock);
    member->is_polling = false;
    if (status == HEFT_OK) {
        member->n_told = member->n_sent;
        (void)pthread_cond_broadcast(&member->changed);
    }
    (void)pthread_mutex_unlock(&member->lock);
    if (status == HEFT_OK && code == 200) {
        heft__order_t order;
        status = heft__order_decode(reply, n, &order, err);
        if (status == HEFT_OK) {
            take_order(member, &order);
        }
    } else if (code == 410 || (code == 409 && status == HEFT_ERR_STALE)) {
        member->is_registered = false;
    } else if (code == 409 && status == HEFT_ERR_STATE) { /* it has lost what the report names */
        int n_put = 0;
        heft_status_t put = put_missing(member, &n_put, err);
        status = put == HEFT_OK && n_put > 0 ? HEFT_OK : status;
    } else if (code == 400 || code == 413) { /* it is not taken, so this member seems silent */
        heft__log(member->backoff_ms == 0 ? HEFT_LOG_WARN : HEFT_LOG_DEBUG, "member",
                  "%s: the coordinator refuses its report: %s", member->id, err->message);
    }
    heft__free(text);
    heft__free(reply);
    return status;
}

/* ---- the thread ---- */

static heft_status_t step(heft__member_t *member, heft_error_t *err)
{
    if (!member->is_registered) {
        heft_status_t status = register_member(member, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return is_bound(member) ? poll_once(member, err) : bind_member(member, err);
}

/* Twice the last one, but back in time for a coordinator that comes back. */
static uint32_t next_backoff_ms(const heft__member_t *member)
{
    uint32_t most = BACKOFF_MAX_MS;
    if (member->contact_ms > 0 && member->contact_ms / BACKOFF_PART < most) {
        most = member->contact_ms / BACKOFF_PART;
    }
    uint32_t next = member->backoff_ms == 0 ? BACKOFF_MIN_MS : member->backoff_ms * 2;
    return next < most ? next : most;
}

/* Note how it went; false: stop. */
static bool settle(heft__member_t *member, heft_status_t status, const heft_error_t *err)
{
    (void)pthread_mutex_lock(&member->lock);
    bool was_broken_off = status == HEFT_ERR_CANCELED;
    if (status == HEFT_OK) {
        member->contact = (heft_error_t)HEFT_ERROR_INIT;
        member->backoff_ms = 0;
    } else if (!was_broken_off) {
        member->contact = *err;
        member->backoff_ms = next_backoff_ms(member);
    }
    (void)pthread_cond_broadcast(&member->changed);
    int64_t until = in_ms(member->backoff_ms);
    while (!member->stop && !member->is_final && !was_broken_off && status != HEFT_OK &&
           heft__member_wait_locked(member, until)) {
    }
    bool goes_on = !member->stop && !member->is_final;
    (void)pthread_mutex_unlock(&member->lock);
    return goes_on;
}

void *heft__member_link(void *arg)
{
    heft__member_t *member = arg;
    bool goes_on = true;
    while (goes_on) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_status_t status = step(member, &err);
        if (status == HEFT_ERR_CANCELED || status == HEFT_ERR_AUTH) { /* AUTH: a fresh token */
            heft_status_t renewed = renew_http(member, &err);
            status = renewed != HEFT_OK ? renewed : status;
        } else if (status != HEFT_OK) {
            heft__log(HEFT_LOG_DEBUG, "member", "%s: %s", member->id, err.message);
        }
        goes_on = settle(member, status, &err);
    }
    return NULL;
}
