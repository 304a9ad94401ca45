/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A push, on the caller's thread: one rank of a trainer begins the round, once all ranks of its job
 * are there; the others wait until their worker has met it. From then on all do the same: let the
 * worker take part, and follow the round to its end. So every rank returns one outcome.
 */
#include "sync/publisher_private.h"

#include <stdio.h>
#include <string.h>

#include "sync/wire_json.h"

static void begin_push(heft_publisher_t *pub, int64_t version)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->push_version = version;
    pub->abandoned = 0;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_interrupt(pub->member); /* the worker may wait for this push */
}

/* The tensors are the caller's again: not before the worker has let go of them, which it does
 * between two pieces of its work. */
static void end_push(heft_publisher_t *pub)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->push_version = 0;
    while (pub->is_reading) {
        (void)pthread_cond_wait(&pub->changed, &pub->lock);
    }
    (void)pthread_mutex_unlock(&pub->lock);
}

/* Before the decision the round aborts then; later it goes on to its end. */
static void cancel(heft__http_t *http, heft__round_id_t round, const char *what)
{
    enum { CANCEL_MS = 2000 };
    heft_error_t err = HEFT_ERROR_INIT;
    char id[HEFT__ROUND_TEXT_SIZE];
    char path[64 + HEFT__ROUND_TEXT_SIZE];
    int code = 0;
    heft__round_id_format(round, id);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s/cancel", id);
    const heft__http_ask_t ask = { .method = "POST", .path = path, .deadline_ms = CANCEL_MS };
    if (heft__http_ask(http, &ask, &code, NULL, NULL, &err) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "publisher", "round %s is %s, and could not be canceled: %s", id,
                  what, err.message);
    }
}

/* The round is followed no longer: the worker takes no more part in it, and the coordinator is
 * told, if it can be. */
static void give_up(heft_publisher_t *pub, heft__http_t *http, heft__round_id_t round)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->given_up = round;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_interrupt(pub->member);
    cancel(http, round, "given up");
}

/* It may have begun, and nobody knows its number: the worker refuses its part. */
static void abandon(heft_publisher_t *pub, int64_t version)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->abandoned = version;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_interrupt(pub->member);
}

heft_status_t heft__publisher_check_interrupt(const heft_publisher_t *pub, int64_t version,
                                              heft_error_t *err)
{
    return atomic_load(&pub->is_interrupted)
               ? heft__error_set(err, HEFT_ERR_CANCELED,
                                 "version %lld: interrupted before its round began",
                                 (long long)version)
               : HEFT_OK;
}

void heft_publisher_interrupt(heft_publisher_t *pub)
{
    atomic_store(&pub->is_interrupted, true); /* a signal handler may do no more */
}

static heft_status_t make_begin(int64_t version, char **text_out, heft_error_t *err)
{
    heft__begin_t begin = { .version = version };
    heft_status_t status = heft__incarnation_create(begin.key, err); /* 128 random bits */
    return status == HEFT_OK ? heft__begin_encode(&begin, text_out, err) : status;
}

/* {"round": "3.12", "state": "preparing"} */
static heft_status_t read_begun(const char *text, size_t n, heft__round_id_t *round_out,
                                heft_error_t *err)
{
    json_t *root = NULL;
    (void)heft__json_parse(text, n, "reply", &root, NULL);
    const char *round = json_string_value(json_object_get(root, "round"));
    bool ok = round != NULL && heft__round_id_parse(round, round_out);
    json_decref(root);
    return ok ? HEFT_OK
              : heft__error_set(err, HEFT_ERR_FORMAT, "reply to POST /v1/rounds names no round");
}

/* The same key gives the same round, so a lost reply is no reason to fail. */
static heft_status_t begin_round(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                                 const char *body, heft__round_id_t *round_out, heft_error_t *err)
{
    int64_t deadline = heft__clock_mono_ns() + (int64_t)pub->deadline_ms * 1000000;
    for (;;) {
        char *reply = NULL;
        size_t n = 0;
        int code = 0;
        const heft__http_ask_t ask = { .method = "POST",
                                       .path = "/v1/rounds",
                                       .body = body,
                                       .body_bytes = strlen(body),
                                       .deadline_ms = pub->deadline_ms };
        heft_status_t status = heft__http_ask(http, &ask, &code, &reply, &n, err);
        if (status == HEFT_OK) {
            status = read_begun(reply, n, round_out, err);
            heft__free(reply);
            return status;
        }
        bool may_help = code == 0 && (status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT);
        if (may_help && (heft__clock_mono_ns() >= deadline || atomic_load(&pub->is_interrupted))) {
            abandon(pub, version);
            return status;
        }
        if (!may_help) {
            return status;
        }
        heft__publisher_rest();
    }
}

/* One look at the round; the coordinator answers when it has ended, or after a while. */
static heft_status_t look_at_round(heft_publisher_t *pub, heft__http_t *http,
                                   heft__round_id_t round, heft__outcome_t *outcome_out,
                                   int *code_out, heft_error_t *err)
{
    enum { WAIT_S = 1 }; /* so an interrupt is seen, too */
    char id[HEFT__ROUND_TEXT_SIZE];
    char path[64 + HEFT__ROUND_TEXT_SIZE];
    char *reply = NULL;
    size_t n = 0;
    heft__round_id_format(round, id);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=%d", id, WAIT_S);
    const heft__http_ask_t ask = { .method = "GET",
                                   .path = path,
                                   .wait_ms = WAIT_S * 1000,
                                   .deadline_ms = pub->deadline_ms + WAIT_S * 1000 };
    heft_status_t status = heft__http_ask(http, &ask, code_out, &reply, &n, err);
    if (status == HEFT_OK) {
        status = heft__outcome_decode(reply, n, outcome_out, err);
        heft__free(reply);
    }
    return status;
}

/* The caller's version is decided, one way or the other, and somebody is slow to clear away: a dead
 * rank is waited for until its contact time is over. */
static bool is_clearing(const heft__outcome_t *outcome)
{
    return outcome->n_awaited > 0 &&
           (strcmp(outcome->phase, "resume") == 0 || strcmp(outcome->phase, "release") == 0 ||
            strcmp(outcome->phase, "abort") == 0);
}

/* For how long already, and for what. */
static void tell_wait(const heft__outcome_t *outcome, int64_t since_ns)
{
    const bool has_failed = outcome->cause.status != HEFT_OK;
    char id[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(outcome->round, id);
    heft__log(HEFT_LOG_WARN, "publisher",
              "round %s is %s: waiting for %s of %s%s; the push has taken %.0f s%s%s", id,
              outcome->state, outcome->phase, outcome->awaited,
              outcome->n_awaited > 1 ? " and others" : "",
              (double)(heft__clock_mono_ns() - since_ns) / 1e9, has_failed ? "; it failed: " : "",
              has_failed ? outcome->cause.cause : "");
}

/* Every three seconds of that. *tell_at: the next time; INT64_MAX: nobody is waited for so far. */
static void tell_if_slow(const heft__outcome_t *outcome, int64_t since_ns, int64_t *tell_at)
{
    static const int64_t tell_ns = 3000000000;
    const int64_t now = heft__clock_mono_ns();
    if (!is_clearing(outcome)) {
        *tell_at = INT64_MAX;
        return;
    }
    if (now >= *tell_at) {
        tell_wait(outcome, since_ns);
    }
    if (*tell_at == INT64_MAX || now >= *tell_at) {
        *tell_at = now + tell_ns;
    }
}

/* Follow the round to its end. Its phases are bounded by the coordinator, silence by our deadline.
 */
static heft_status_t follow_round(heft_publisher_t *pub, heft__http_t *http, heft__round_id_t round,
                                  heft__outcome_t *outcome_out, heft_error_t *err)
{
    const int64_t silence_ns = (int64_t)pub->deadline_ms * 1000000;
    const int64_t since_ns = heft__clock_mono_ns();
    int64_t deadline = since_ns + silence_ns;
    int64_t tell_at = INT64_MAX;
    bool is_canceled = false;
    for (;;) {
        int code = 0;
        if (!is_canceled && atomic_load(&pub->is_interrupted)) {
            cancel(http, round, "interrupted");
            is_canceled = true;
        }
        heft_status_t status = look_at_round(pub, http, round, outcome_out, &code, err);
        if (status == HEFT_OK) {
            if (outcome_out->ended) {
                return HEFT_OK;
            }
            deadline = heft__clock_mono_ns() + silence_ns;
            tell_if_slow(outcome_out, since_ns, &tell_at);
        } else if (code != 0 || heft__clock_mono_ns() >= deadline) {
            return status; /* the coordinator does not know the round, or has been away too long */
        } else {
            heft__publisher_rest();
        }
    }
}

static void fill_result(const heft__outcome_t *outcome, heft_push_result_t *result)
{
    result->round_epoch = outcome->round.epoch;
    result->round_seq = outcome->round.seq;
    result->n_destinations = outcome->n_destinations;
    result->n_pieces =
        outcome->pieces > 0 ? (uint32_t)heft__min_i64(outcome->pieces, UINT32_MAX) : 0;
    result->n_bytes = outcome->bytes;
    result->transfer_s =
        outcome->stage_s > outcome->in_place_s ? outcome->stage_s : outcome->in_place_s;
    result->verify_s = outcome->verify_s;
    result->pause_s = outcome->pause_s;
    result->total_s = outcome->total_s;
    (void)snprintf(result->state, sizeof result->state, "%s", outcome->state);
}

/* What the caller of a push is told about a round that did not commit. */
static heft_status_t explain(const heft__outcome_t *outcome, heft_error_t *err)
{
    char id[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(outcome->round, id);
    heft_status_t status =
        outcome->cause.status != HEFT_OK ? outcome->cause.status : HEFT_ERR_STATE;
    const bool has_phase = outcome->cause.phase != HEFT__PHASE_NONE;
    const char *in = has_phase ? " in " : "";
    const char *phase = has_phase ? heft__phase_text(outcome->cause.phase) : "";
    const char *peer = outcome->cause.peer;
    if (outcome->first_problem[0] != '\0') { /* it names its member */
        char count[48] = "";
        if (outcome->n_problems > 1) { /* before the text, which may be cut off */
            (void)snprintf(count, sizeof count, " with %u problems, the first",
                           outcome->n_problems);
        }
        (void)heft__error_set(err, status, "round %s of version %lld %s%s%s%s: %s", id,
                              (long long)outcome->version, outcome->state, in, phase, count,
                              outcome->first_problem);
    } else {
        (void)heft__error_set(err, status, "round %s of version %lld %s%s%s: %s%s%s%s%s", id,
                              (long long)outcome->version, outcome->state, in, phase,
                              outcome->cause_member, peer[0] != '\0' ? " to " : "", peer,
                              outcome->cause_member[0] != '\0' ? ": " : "", outcome->cause.cause);
    }
    if (err != NULL && outcome->cause.rank >= 0) {
        err->peer_rank = outcome->cause.rank;
    }
    return status;
}

/* ---- who begins ---- */

/* Members of the status that are sources of this job and in contact: how many, and which ranks of
 * replica 0 below `most` are among them. *plain_out: these are all of them. */
static uint32_t count_ranks(const heft_publisher_t *pub, const json_t *status, bool *there,
                            uint32_t most, bool *plain_out)
{
    char own[HEFT__ID_SIZE];
    const json_t *members = json_object_get(status, "members");
    uint32_t n = 0;
    *plain_out = true;
    for (size_t i = 0; i < json_array_size(members); i++) {
        const json_t *m = json_array_get(members, i);
        const char *id = json_string_value(json_object_get(m, "id"));
        const char *contact = json_string_value(json_object_get(m, "contact"));
        uint32_t replica = 0;
        uint32_t rank = 0;
        if (id == NULL || !heft__member_id_numbers(id, &replica, &rank) ||
            (contact != NULL && strcmp(contact, "lost") == 0)) {
            continue;
        }
        heft__member_id_format(HEFT__ROLE_SOURCE, pub->job, replica, rank, own);
        if (strcmp(id, own) != 0) {
            continue; /* a destination, or of another job */
        }
        n++;
        if (replica == 0 && rank < most) {
            there[rank] = true;
        } else {
            *plain_out = false;
        }
    }
    return n;
}

/* ": rank 1, 3 missing"; nothing where numbers do not tell: replicas number their ranks alike. */
static void list_missing(const bool *there, uint32_t n_ranks, bool is_plain, char *text,
                         size_t size)
{
    enum { MAX_SHOWN = 8 };
    uint32_t n = 0;
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t r = 0; is_plain && r < n_ranks && len < size; r++) {
        if (!there[r] && n++ < MAX_SHOWN) {
            len += (size_t)snprintf(text + len, size - len, n > 1 ? ", %u" : ": rank %u", r);
        }
    }
    if (n > 0 && len < size) {
        (void)snprintf(text + len, size - len, n > MAX_SHOWN ? ", ... missing" : " missing");
    }
}

heft_status_t heft__publisher_find_ranks(const heft_publisher_t *pub, heft__http_t *http,
                                         uint32_t *n_out, char *missing, size_t size,
                                         heft_error_t *err)
{
    json_t *said = NULL;
    bool is_plain = true;
    bool *there = heft__calloc((size_t)pub->n_ranks + 1, sizeof *there);
    if (there == NULL) {
        return heft__error_nomem(err, pub->n_ranks * sizeof *there);
    }
    heft_status_t status = heft__publisher_get(pub, http, "/v1/status", &said, err);
    if (status == HEFT_OK) {
        *n_out = count_ranks(pub, said, there, pub->n_ranks, &is_plain);
        list_missing(there, pub->n_ranks, is_plain, missing, size);
    }
    json_decref(said);
    heft__free(there);
    return status;
}

/* A round begins with those that are registered: wait for all ranks of the job. */
static heft_status_t await_ranks(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                                 heft_error_t *err)
{
    const int64_t deadline = heft__clock_mono_ns() + (int64_t)pub->deadline_ms * 1000000;
    for (;;) {
        uint32_t n = 0;
        char missing[120];
        heft_status_t status =
            heft__publisher_find_ranks(pub, http, &n, missing, sizeof missing, err);
        if (status == HEFT_OK && n < pub->n_ranks) {
            status = heft__publisher_check_interrupt(pub, version, err);
        }
        if (status != HEFT_OK || n >= pub->n_ranks) {
            return status;
        }
        if (heft__clock_mono_ns() >= deadline) {
            return heft__error_set(
                err, HEFT_ERR_TIMEOUT, "%u of %u source ranks of job %s are there after %g s%s", n,
                pub->n_ranks, pub->job, (double)pub->deadline_ms / 1000, missing);
        }
        heft__publisher_rest();
    }
}

static heft_status_t begin(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                           heft__round_id_t *round_out, heft_error_t *err)
{
    char *body = NULL;
    heft_status_t status = pub->n_ranks > 1 ? await_ranks(pub, http, version, err) : HEFT_OK;
    if (status == HEFT_OK) {
        status = make_begin(version, &body, err);
    }
    if (status == HEFT_OK) {
        status = begin_round(pub, http, version, body, round_out, err);
    }
    heft__free(body);
    return status;
}

/* ---- push ---- */

/* Nothing was sent, because a destination is not where it was: its staging has grown for what these
 * sources hold. All ranks read this of the round, so all of them push again. */
static bool has_moved(const heft__outcome_t *outcome)
{
    char id[HEFT__ROUND_TEXT_SIZE];
    if (strcmp(outcome->state, "aborted") != 0 || outcome->cause.status != HEFT_ERR_STALE) {
        return false;
    }
    heft__round_id_format(outcome->round, id);
    heft__log(HEFT_LOG_INFO, "publisher", "round %s: %s: %s; once more", id, outcome->cause_member,
              outcome->cause.cause);
    return true;
}

/* One round, from its begin to its end. */
static heft_status_t push_round(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                                heft_push_result_t *result, heft__outcome_t *outcome_out,
                                heft_error_t *err)
{
    heft__round_id_t round = { 0 };
    heft_status_t status = heft__publisher_check_interrupt(pub, version, err);
    if (status == HEFT_OK) {
        status = pub->begins ? begin(pub, http, version, &round, err)
                             : heft__publisher_await_round(pub, http, version, &round, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    result->round_epoch = round.epoch;
    result->round_seq = round.seq;
    status = follow_round(pub, http, round, outcome_out, err);
    if (status != HEFT_OK) {
        give_up(pub, http, round);
        return status;
    }
    fill_result(outcome_out, result);
    return HEFT_OK;
}

static heft_status_t push_over(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                               heft_push_result_t *result, heft_error_t *err)
{
    heft__outcome_t outcome;
    heft_status_t status = push_round(pub, http, version, result, &outcome, err);
    if (status == HEFT_OK && has_moved(&outcome)) {
        status = push_round(pub, http, version, result, &outcome, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    return strcmp(outcome.state, "committed") == 0 ? HEFT_OK : explain(&outcome, err);
}

heft_status_t heft_publisher_push(heft_publisher_t *pub, int64_t version,
                                  heft_push_result_t *result_out, heft_error_t *err)
{
    heft_push_result_t result = { .version = version };
    heft__http_t *http = NULL;
    if (version < 1 || version > HEFT__WIRE_MAX_INT) {
        return heft__error_set(err, HEFT_ERR_VERSION, "version %lld: 1 to 2^53-1 are versions",
                               (long long)version);
    }
    heft_status_t status = heft__member_connect(pub->member, &http, err);
    if (status == HEFT_OK) {
        begin_push(pub, version);
        status = push_over(pub, http, version, &result, err);
        end_push(pub);
        atomic_store(&pub->is_interrupted, false);
        heft__http_destroy(http);
    }
    if (result_out != NULL) {
        *result_out = result;
    }
    return status;
}
