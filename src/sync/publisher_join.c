/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which round a push of a rank that begins none is part of: the one that its worker has met, or one
 * that was refused before anybody got an order, of which only the coordinator tells. It also tells
 * of a push that was refused before it was a round at all.
 */
#include "sync/publisher_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sync/wire_json.h"

void heft__publisher_rest(void)
{
    struct timespec pause = { .tv_nsec = 50000000 };
    (void)nanosleep(&pause, NULL);
}

heft_status_t heft__publisher_get(const heft_publisher_t *pub, heft__http_t *http, const char *path,
                                  json_t **root_out, heft_error_t *err)
{
    char *reply = NULL;
    size_t n = 0;
    int code = 0;
    const heft__http_ask_t ask = { .method = "GET", .path = path, .deadline_ms = pub->deadline_ms };
    heft_status_t status = heft__http_ask(http, &ask, &code, &reply, &n, err);
    if (status == HEFT_OK) {
        *root_out = json_loadb(reply, n, JSON_REJECT_DUPLICATES, NULL);
        heft__free(reply);
        status = *root_out != NULL
                     ? HEFT_OK
                     : heft__error_set(err, HEFT_ERR_FORMAT, "reply to GET %s: no JSON", path);
    }
    return status;
}

/* ---- rounds that the worker has not met ---- */

static bool is_after(heft__round_id_t a, heft__round_id_t b)
{
    return a.epoch > b.epoch || (a.epoch == b.epoch && a.seq > b.seq);
}

static bool read_id(const json_t *round, heft__round_id_t *id_out)
{
    const char *id = json_string_value(json_object_get(round, "round"));
    return id != NULL && heft__round_id_parse(id, id_out);
}

/* One that no push here was told of. */
static bool read_refusal(const heft_publisher_t *pub, const json_t *said, heft__refusal_t *out)
{
    json_t *refused = json_object_get(said, "refused");
    return refused != NULL && heft__refusal_read(refused, out, NULL) == HEFT_OK &&
           is_after(out->number, pub->refused);
}

void heft__publisher_note_rounds(heft_publisher_t *pub)
{
    heft__http_t *http = NULL;
    json_t *said = NULL;
    if (heft__member_connect(pub->member, &http, NULL) == HEFT_OK &&
        heft__publisher_get(pub, http, "/v1/rounds", &said, NULL) == HEFT_OK) {
        const json_t *rounds = json_object_get(said, "rounds");
        pub->knows_earlier = json_is_array(rounds);
        for (size_t i = 0; i < json_array_size(rounds); i++) {
            heft__round_id_t id;
            if (read_id(json_array_get(rounds, i), &id) && is_after(id, pub->earlier)) {
                pub->earlier = id;
            }
        }
        heft__refusal_t refusal;
        if (read_refusal(pub, said, &refusal)) {
            pub->refused = refusal.number;
        }
    }
    json_decref(said);
    heft__http_destroy(http);
}

/* A push of this version that has ended, and that no push here has followed: the newest. */
static bool find_ended(const heft_publisher_t *pub, const json_t *said, int64_t version,
                       heft__round_id_t *round_out)
{
    bool found = false;
    const json_t *rounds = json_object_get(said, "rounds");
    heft__round_id_t last = is_after(pub->joined, pub->earlier) ? pub->joined : pub->earlier;
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        const json_t *round = json_array_get(rounds, i);
        const char *kind = json_string_value(json_object_get(round, "kind"));
        heft__round_id_t id;
        if (kind != NULL && strcmp(kind, "sync") == 0 &&
            json_integer_value(json_object_get(round, "version")) == version &&
            json_is_true(json_object_get(round, "ended")) && read_id(round, &id) &&
            is_after(id, last)) {
            last = id;
            *round_out = id;
            found = true;
        }
    }
    return found;
}

/* What became of the push of this version while its round was not met: IN_PROGRESS when nothing is
 * known of it; else round_out, or why it was refused. */
static heft_status_t look(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                          heft__round_id_t *round_out, heft_error_t *err)
{
    heft__refusal_t refusal;
    json_t *said = NULL;
    heft_status_t status = HEFT_IN_PROGRESS;
    if (!pub->knows_earlier ||
        heft__publisher_get(pub, http, "/v1/rounds", &said, NULL) != HEFT_OK) {
        return status;
    }
    if (find_ended(pub, said, version, round_out)) {
        status = HEFT_OK;
    } else if (read_refusal(pub, said, &refusal) && refusal.version == version) {
        pub->refused = refusal.number;
        status = heft__error_set(err, refusal.status, "no round of version %lld began: %s",
                                 (long long)version, refusal.message);
    }
    json_decref(said);
    return status;
}

/* ---- waiting ---- */

/* "; 3 of 4 source ranks are there: rank 2 missing": what rank 0 waits for, if it has pushed. */
static void tell_ranks(const heft_publisher_t *pub, heft__http_t *http, char *text, size_t size)
{
    uint32_t n = 0;
    char missing[64];
    if (pub->n_ranks > 1 &&
        heft__publisher_find_ranks(pub, http, &n, missing, sizeof missing, NULL) == HEFT_OK &&
        n < pub->n_ranks) {
        (void)snprintf(text, size, "; %u of %u source ranks are there%s", n, pub->n_ranks, missing);
    }
}

static heft_status_t nobody_began(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                                  heft_error_t *err)
{
    char other[120] = "";
    heft_error_t contact = HEFT_ERROR_INIT;
    (void)pthread_mutex_lock(&pub->lock);
    const heft__round_id_t met = pub->met_round;
    const int64_t met_version = pub->met_version;
    (void)pthread_mutex_unlock(&pub->lock);
    if (heft__member_get_contact(pub->member, &contact) != HEFT_OK) {
        (void)snprintf(other, sizeof other, "; %.90s", contact.message);
    } else if (met_version != version && is_after(met, pub->joined)) {
        char id[HEFT__ROUND_TEXT_SIZE];
        heft__round_id_format(met, id);
        (void)snprintf(other, sizeof other, " (round %s is one of version %lld)", id,
                       (long long)met_version);
    } else {
        tell_ranks(pub, http, other, sizeof other);
    }
    return heft__error_set(err, HEFT_ERR_TIMEOUT,
                           "no round of version %lld began within %g s: has rank 0 pushed?%s",
                           (long long)version, (double)pub->deadline_ms / 1000, other);
}

/* The worker meets it, or has met it before this push was called. */
static bool has_met(heft_publisher_t *pub, int64_t version, heft__round_id_t *round_out)
{
    (void)pthread_mutex_lock(&pub->lock);
    const heft__round_id_t met = pub->met_round;
    const bool is_it = pub->met_version == version && is_after(met, pub->joined);
    (void)pthread_mutex_unlock(&pub->lock);
    if (is_it) {
        *round_out = met;
    }
    return is_it;
}

heft_status_t heft__publisher_await_round(heft_publisher_t *pub, heft__http_t *http,
                                          int64_t version, heft__round_id_t *round_out,
                                          heft_error_t *err)
{
    static const int64_t look_ns = 2000000000; /* there may be a thousand ranks */
    const int64_t begin = heft__clock_mono_ns();
    const int64_t patience = (int64_t)pub->deadline_ms * 1000000;
    /* rank 0, which waits as long for those that are missing, should find all others there */
    const int64_t deadline = begin + patience + heft__min_i64(patience, 2 * look_ns);
    int64_t look_at = heft__min_i64(begin + look_ns, deadline);
    while (!has_met(pub, version, round_out)) {
        const int64_t now = heft__clock_mono_ns();
        const heft_status_t found =
            now >= look_at ? look(pub, http, version, round_out, err) : HEFT_IN_PROGRESS;
        if (found == HEFT_OK) {
            break;
        }
        if (found != HEFT_IN_PROGRESS) {
            return found;
        }
        if (now >= deadline) {
            return nobody_began(pub, http, version, err);
        }
        if (heft__publisher_check_interrupt(pub, version, err) != HEFT_OK) {
            return HEFT_ERR_CANCELED;
        }
        if (now >= look_at) {
            look_at = heft__min_i64(now + look_ns, deadline);
        }
        heft__publisher_rest();
    }
    pub->joined = *round_out;
    return HEFT_OK;
}
