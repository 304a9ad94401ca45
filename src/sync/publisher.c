/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher: a source rank. A worker thread carries out the orders; heft_publisher_push begins
 * a round, lets the worker take part in it, and follows it to its end. Outside of a push the worker
 * answers preflights, but never touches the bytes.
 */
#include "sync/publisher_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sync/wire_json.h"

/* ---- the worker ---- */

static void *work(void *arg)
{
    heft_publisher_t *pub = arg;
    for (;;) {
        heft__order_t order;
        heft_status_t status = heft__member_await_order(pub->member, INT64_MAX, &order, NULL);
        (void)pthread_mutex_lock(&pub->lock);
        bool stop = pub->stop;
        (void)pthread_mutex_unlock(&pub->lock);
        if (status == HEFT_OK) {
            if (!stop) {
                heft__publisher_obey(pub, &order);
            }
            heft__order_fini(&order);
        }
        if (stop) {
            return NULL;
        }
    }
}

bool heft__publisher_await_push(heft_publisher_t *pub, const heft__order_t *order)
{
    int64_t deadline = INT64_MAX;
    int64_t left_ns = 0;
    if (heft__mul(order->left_ms, 1000000, &left_ns)) {
        (void)heft__add(heft__clock_mono_ns(), left_ns, &deadline);
    }
    for (;;) {
        (void)pthread_mutex_lock(&pub->lock);
        bool is_on = pub->push_version == order->version;
        (void)pthread_mutex_unlock(&pub->lock);
        if (is_on) {
            return true;
        }
        /* A push that begins interrupts this wait. */
        if (heft__clock_mono_ns() >= deadline ||
            heft__member_await_called_off(pub->member, order->round, deadline)) {
            return false;
        }
    }
}

/* ---- create ---- */

static heft_status_t check_arguments(const heft_manifest_t *manifest, const void *const *data,
                                     heft_error_t *err)
{
    if (manifest == NULL || data == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "publisher: manifest and data are required");
    }
    const char *side = heft_manifest_get_side(manifest);
    if (strcmp(side, "source") != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "publisher: a manifest of side \"%s\", expected \"source\"", side);
    }
    return HEFT_OK;
}

static heft_status_t alloc_arrays(heft_publisher_t *pub, heft_error_t *err)
{
    size_t n = pub->n_tensors > 0 ? pub->n_tensors : 1;
    pub->sizes = heft__calloc(n, sizeof *pub->sizes);
    pub->digests = heft__calloc(n, sizeof *pub->digests);
    pub->again = heft__calloc(n, sizeof *pub->again);
    if (pub->sizes == NULL || pub->digests == NULL || pub->again == NULL) {
        return heft__error_nomem(err, n * sizeof *pub->sizes);
    }
    for (uint32_t i = 0; i < pub->n_tensors; i++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_manifest_query(pub->manifest, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (info.n_bytes > 0 && pub->data[i] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "publisher: data[%u], \"%.120s\", is NULL", i, info.name);
        }
        pub->sizes[i] = info.n_bytes;
    }
    return HEFT_OK;
}

static heft_status_t create_member(heft_publisher_t *pub, const heft_publisher_opts_t *opts,
                                   heft_error_t *err)
{
    const char *names[HEFT__MAX_PUBLISHER_TRANSPORTS];
    for (uint32_t i = 0; i < pub->n_transports; i++) {
        names[i] = pub->transports[i]->ops->name;
    }
    heft__member_config_t config = { .access = { .url = opts->url,
                                                 .token_file = opts->token_file,
                                                 .ca_file = opts->ca_file,
                                                 .insecure = opts->insecure },
                                     .job = opts->job,
                                     .role = HEFT__ROLE_SOURCE,
                                     .replica = opts->replica,
                                     .rank = opts->rank,
                                     .deadline_ms = opts->deadline_ms,
                                     .n_transports = pub->n_transports,
                                     .transports = names };
    char *text = NULL;
    heft_status_t status = heft__member_create(&config, &pub->member, err);
    if (status == HEFT_OK) {
        status = heft_manifest_encode(pub->manifest, &text, err);
    }
    if (status == HEFT_OK) {
        status = heft__member_set_object(pub->member, HEFT__OBJECT_MANIFEST, text, err);
        heft_string_free(text);
    }
    return status;
}

static heft_status_t start_worker(heft_publisher_t *pub, heft_error_t *err)
{
    int rc = pthread_create(&pub->worker, NULL, work, pub);
    pub->has_worker = rc == 0;
    return rc == 0 ? HEFT_OK : heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "publisher thread");
}

static heft_status_t build(heft_publisher_t *pub, const heft_publisher_opts_t *opts,
                           heft_error_t *err)
{
    heft_status_t status = alloc_arrays(pub, err);
    if (status == HEFT_OK) {
        status = create_member(pub, opts, err);
    }
    if (status == HEFT_OK) {
        pub->fleet.member = pub->member;
        pub->fleet.source = pub->manifest;
        pub->fleet.transports = pub->transports;
        pub->fleet.n_transports = pub->n_transports;
        pub->fleet.n_threads = pub->n_threads;
        pub->fleet.progress = heft__publisher_on_progress;
        pub->fleet.progress_arg = pub;
        status = heft__member_start(pub->member, err);
    }
    return status == HEFT_OK ? start_worker(pub, err) : status;
}

/* The options are complete. */
static heft_status_t create_loaded(heft__transport_t *const *transports, uint32_t n_transports,
                                   const heft_publisher_opts_t *opts,
                                   const heft_manifest_t *manifest, const void *const *data,
                                   heft_publisher_t **publisher_out, heft_error_t *err)
{
    heft_publisher_t *pub = heft__calloc(1, sizeof *pub);
    if (pub == NULL) {
        return heft__error_nomem(err, sizeof *pub);
    }
    (void)pthread_mutex_init(&pub->lock, NULL);
    heft__fleet_init(&pub->fleet);
    pub->manifest = manifest;
    pub->data = data;
    pub->n_tensors = heft_manifest_get_n_tensors(manifest);
    pub->n_threads = opts->n_threads;
    pub->max_bytes_per_s = opts->max_bytes_per_s;
    pub->deadline_ms = opts->deadline_ms;
    pub->n_transports = n_transports;
    memcpy(pub->transports, transports, n_transports * sizeof *transports);
    heft_status_t status = build(pub, opts, err);
    if (status != HEFT_OK) {
        heft_publisher_destroy(pub);
        return status;
    }
    *publisher_out = pub;
    return HEFT_OK;
}

heft_status_t heft__publisher_create_over(heft__transport_t *const *transports,
                                          uint32_t n_transports, const heft_publisher_opts_t *opts,
                                          const heft_manifest_t *manifest, const void *const *data,
                                          heft_publisher_t **publisher_out, heft_error_t *err)
{
    heft_publisher_opts_t loaded = HEFT_PUBLISHER_OPTS_INIT;
    heft_config_t *config = NULL;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "publisher options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved,
                                           "publisher options", err);
    }
    if (status == HEFT_OK) {
        status = check_arguments(manifest, data, err);
    }
    if (status == HEFT_OK) {
        status = heft__settings_publisher(&loaded, &config, err);
    }
    if (status == HEFT_OK) {
        status =
            create_loaded(transports, n_transports, &loaded, manifest, data, publisher_out, err);
    }
    heft_config_destroy(config);
    return status;
}

heft_status_t heft_publisher_create(const heft_publisher_opts_t *opts,
                                    const heft_manifest_t *manifest, const void *const *data,
                                    heft_publisher_t **publisher_out, heft_error_t *err)
{
    heft__transport_t *const transports[1] = { heft__transport_get_shm() };
    return heft__publisher_create_over(transports, 1, opts, manifest, data, publisher_out, err);
}

void heft_publisher_destroy(heft_publisher_t *pub)
{
    if (pub == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pub->lock);
    pub->stop = true;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_stop(pub->member); /* calls off what the worker is at */
    if (pub->has_worker) {
        heft__member_interrupt(pub->member);
        (void)pthread_join(pub->worker, NULL);
    }
    heft__fleet_fini(&pub->fleet);
    heft__member_destroy(pub->member);
    heft__free(pub->sizes);
    heft__free(pub->digests);
    heft__free(pub->again);
    (void)pthread_mutex_destroy(&pub->lock);
    heft__free(pub);
}

/* ---- push ---- */

static void set_push(heft_publisher_t *pub, int64_t version)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->push_version = version;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_interrupt(pub->member); /* the worker may wait for this push */
}

static void rest(void)
{
    struct timespec pause = { .tv_nsec = 50000000 };
    (void)nanosleep(&pause, NULL);
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
static heft_status_t begin_round(heft_publisher_t *pub, heft__http_t *http, const char *body,
                                 heft__round_id_t *round_out, heft_error_t *err)
{
    int64_t deadline = heft__clock_mono_ns() + (int64_t)pub->deadline_ms * 1000000;
    for (;;) {
        char *reply = NULL;
        size_t n = 0;
        int code = 0;
        heft_status_t status = heft__http_request(http, "POST", "/v1/rounds", body, strlen(body),
                                                  pub->deadline_ms, &code, &reply, &n, err);
        if (status == HEFT_OK) {
            status = read_begun(reply, n, round_out, err);
            heft__free(reply);
            return status;
        }
        bool may_help = code == 0 && (status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT);
        if (!may_help || heft__clock_mono_ns() >= deadline) {
            return status;
        }
        rest();
    }
}

/* One look at the round; the coordinator answers when it has ended, or after a while. */
static heft_status_t look_at_round(heft_publisher_t *pub, heft__http_t *http,
                                   heft__round_id_t round, heft__outcome_t *outcome_out,
                                   int *code_out, heft_error_t *err)
{
    enum { WAIT_S = 3 };
    char id[HEFT__ROUND_TEXT_SIZE];
    char path[64 + HEFT__ROUND_TEXT_SIZE];
    char *reply = NULL;
    size_t n = 0;
    heft__round_id_format(round, id);
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=%d", id, WAIT_S);
    heft_status_t status = heft__http_request(
        http, "GET", path, NULL, 0, pub->deadline_ms + WAIT_S * 1000, code_out, &reply, &n, err);
    if (status == HEFT_OK) {
        status = heft__outcome_decode(reply, n, outcome_out, err);
        heft__free(reply);
    }
    return status;
}

/* The caller's version is decided, one way or the other, and somebody is slow to clear away: a dead
 * rank is waited for until its contact time is over. Says for how long already, and for what. */
static void tell_wait(const heft__outcome_t *outcome, int64_t since_ns)
{
    const bool is_clearing = strcmp(outcome->phase, "resume") == 0 ||
                             strcmp(outcome->phase, "release") == 0 ||
                             strcmp(outcome->phase, "abort") == 0;
    const bool has_failed = outcome->cause.status != HEFT_OK;
    char id[HEFT__ROUND_TEXT_SIZE];
    if (is_clearing && outcome->n_awaited > 0) {
        heft__round_id_format(outcome->round, id);
        heft__log(HEFT_LOG_WARN, "publisher",
                  "round %s is %s: waiting for %s of %s%s; the push has taken %.0f s%s%s", id,
                  outcome->state, outcome->phase, outcome->awaited,
                  outcome->n_awaited > 1 ? " and others" : "",
                  (double)(heft__clock_mono_ns() - since_ns) / 1e9,
                  has_failed ? "; it failed: " : "", has_failed ? outcome->cause.cause : "");
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
    for (;;) {
        int code = 0;
        heft_status_t status = look_at_round(pub, http, round, outcome_out, &code, err);
        if (status == HEFT_OK) {
            if (outcome_out->ended) {
                return HEFT_OK;
            }
            deadline = heft__clock_mono_ns() + silence_ns;
            tell_wait(outcome_out, since_ns);
        } else if (code != 0 || heft__clock_mono_ns() >= deadline) {
            return status; /* the coordinator does not know the round, or has been away too long */
        } else {
            rest();
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

static heft_status_t push_over(heft_publisher_t *pub, heft__http_t *http, int64_t version,
                               heft_push_result_t *result, heft_error_t *err)
{
    char *body = NULL;
    heft__round_id_t round = { 0 };
    heft__outcome_t outcome;
    heft_status_t status = make_begin(version, &body, err);
    if (status == HEFT_OK) {
        status = begin_round(pub, http, body, &round, err);
    }
    heft__free(body);
    if (status != HEFT_OK) {
        return status;
    }
    result->round_epoch = round.epoch;
    result->round_seq = round.seq;
    status = follow_round(pub, http, round, &outcome, err);
    if (status != HEFT_OK) {
        return status;
    }
    fill_result(&outcome, result);
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
        set_push(pub, version);
        status = push_over(pub, http, version, &result, err);
        set_push(pub, 0);
        heft__http_destroy(http);
    }
    if (result_out != NULL) {
        *result_out = result;
    }
    return status;
}
