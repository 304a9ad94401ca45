/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a fleet, as a client of the coordinator: who begins a round wants every engine in it.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "heft/sync.h"
#include "sync/wire.h"

enum { LOOK_MS = 50, REQUEST_MS = 10000 };

typedef struct waiting {
    uint32_t wanted;
    uint32_t timeout_ms;
    int64_t until_ns;
    heft_progress_t progress;
    void *progress_arg;
} waiting_t;

static const char *id_of(const json_t *members, size_t i)
{
    const json_t *m = json_array_get(members, i);
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *id = json_string_value(json_object_get(m, "id"));
    return role != NULL && strcmp(role, "destination") == 0 ? id : NULL;
}

static bool is_there(const json_t *members, const char *id)
{
    for (size_t i = 0; i < json_array_size(members); i++) {
        const char *other = id_of(members, i);
        if (other != NULL && strcmp(other, id) == 0) {
            return true;
        }
    }
    return false;
}

/* The rank before this one, if it should be there and is not. */
static bool find_gap(const json_t *members, const char *id, char *out, size_t size)
{
    uint32_t replica = 0;
    uint32_t rank = 0;
    if (!heft__member_id_numbers(id, &replica, &rank) || rank == 0) {
        return false;
    }
    (void)snprintf(out, size, "%.*s.%u", (int)(strrchr(id, '.') - id), id, rank - 1);
    return !is_there(members, out);
}

static void put_name(char *text, size_t size, size_t *len, const char *id)
{
    if (*len + strlen(id) + 8 < size) {
        *len += (size_t)snprintf(text + *len, size - *len, "%s%s", *len > 0 ? ", " : "", id);
    } else if (*len + 6 < size && (*len < 3 || strcmp(text + *len - 3, "...") != 0)) {
        *len += (size_t)snprintf(text + *len, size - *len, "%s...", *len > 0 ? ", " : "");
    }
}

static heft_status_t tell_absence(const waiting_t *w, const json_t *members, int64_t n,
                                  heft_error_t *err)
{
    char there[100] = "";
    char gaps[60] = "";
    char id[HEFT__ID_SIZE];
    size_t n_there = 0;
    size_t n_gaps = 0;
    for (size_t i = 0; i < json_array_size(members); i++) {
        const char *one = id_of(members, i);
        if (one != NULL) {
            put_name(there, sizeof there, &n_there, one);
            if (find_gap(members, one, id, sizeof id)) {
                put_name(gaps, sizeof gaps, &n_gaps, id);
            }
        }
    }
    return heft__error_set(err, HEFT_ERR_TIMEOUT, "%lld of %u destinations after %g s: %s%s%s%s%s",
                           (long long)n, w->wanted, (double)w->timeout_ms / 1000,
                           n > 0 ? "there are " : "nobody has registered", there,
                           n_gaps > 0 ? "; " : "", gaps, n_gaps > 0 ? " missing" : "");
}

/* One look; *n_out destinations are there, *root_out is the status. */
static heft_status_t look(const heft_client_opts_t *opts, json_t **root_out, int64_t *n_out,
                          heft_error_t *err)
{
    char *text = NULL;
    heft_status_t status = heft_client_request(opts, "GET", "/v1/status", NULL, &text, err);
    if (status != HEFT_OK) {
        return status;
    }
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    heft_string_free(text);
    const json_t *count = json_object_get(root, "destinations");
    if (!json_is_integer(count)) {
        json_decref(root);
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "reply to GET /v1/status: no number of destinations");
    }
    *n_out = json_integer_value(count);
    *root_out = root;
    return HEFT_OK;
}

/* What a look means: HEFT_IN_PROGRESS: look again. */
static heft_status_t judge(const waiting_t *w, heft_status_t status, const json_t *root, int64_t n,
                           const heft_error_t *why, heft_error_t *err)
{
    const bool is_late = heft__clock_mono_ns() >= w->until_ns;
    const bool is_away = status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT;
    if (status == HEFT_OK && n >= (int64_t)w->wanted) {
        return HEFT_OK;
    }
    if (status != HEFT_OK && (!is_away || is_late)) { /* one that is away may be starting */
        if (is_away) {
            return heft__error_set(err, status, "%.200s; tried for %g s", why->message,
                                   (double)w->timeout_ms / 1000);
        }
        if (err != NULL) {
            *err = *why;
        }
        return status;
    }
    if (w->progress != NULL && w->progress(w->progress_arg, n, (int64_t)w->wanted) != 0) {
        return heft__error_set(err, HEFT_ERR_CANCELED,
                               "called off: %lld of %u destinations are there", (long long)n,
                               w->wanted);
    }
    return is_late ? tell_absence(w, json_object_get(root, "members"), n, err) : HEFT_IN_PROGRESS;
}

heft_status_t heft_client_await_destinations(const heft_client_opts_t *opts, uint32_t n,
                                             uint32_t timeout_ms, heft_progress_t progress,
                                             void *progress_arg, heft_error_t *err)
{
    heft_client_opts_t loaded = HEFT_CLIENT_OPTS_INIT;
    const waiting_t w = { .wanted = n,
                          .timeout_ms = timeout_ms,
                          .until_ns = heft__clock_mono_ns() + (int64_t)timeout_ms * 1000000,
                          .progress = progress,
                          .progress_arg = progress_arg };
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "client options", err);
    if (status != HEFT_OK) {
        return status;
    }
    loaded.deadline_ms = loaded.deadline_ms != 0 ? loaded.deadline_ms : REQUEST_MS;
    for (;;) {
        json_t *root = NULL;
        int64_t n_there = 0;
        heft_error_t why = HEFT_ERROR_INIT;
        status = look(&loaded, &root, &n_there, &why);
        status = judge(&w, status, root, n_there, &why, err);
        json_decref(root);
        if (status != HEFT_IN_PROGRESS) {
            return status;
        }
        const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000 };
        (void)nanosleep(&pause, NULL);
    }
}
