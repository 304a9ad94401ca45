/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a member: creation, the report, the order mailbox. The thread that talks to
 * the coordinator is in member_link.c. An order is a level: a newer one replaces one that was not
 * handed out.
 */
#include "sync/member_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static heft_status_t set_identity(heft__member_t *member, const heft__member_config_t *config,
                                  heft_error_t *err)
{
    heft__register_t *identity = &member->identity;
    const char *job = config->job != NULL ? config->job : "heft";
    if (!heft__is_job(job)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "job \"%.80s\": not 1 to 64 of A-Z a-z 0-9 . _ -", job);
    }
    if (config->replica > INT32_MAX || config->rank > INT32_MAX) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "replica %u, rank %u: at most %d",
                               config->replica, config->rank, INT32_MAX);
    }
    identity->role = config->role;
    identity->in_place = config->in_place;
    memcpy(identity->job, job, strlen(job) + 1);
    identity->replica = config->replica;
    identity->rank = config->rank;
    identity->n_transports = config->n_transports;
    for (uint32_t i = 0; i < config->n_transports; i++) {
        (void)snprintf(identity->transports[i], HEFT__TRANSPORT_SIZE, "%s", config->transports[i]);
    }
    heft__process_name(identity->process);
    heft__host_label(config->host, identity->host);
    heft__member_id_format(config->role, job, config->replica, config->rank, member->id);
    return heft__incarnation_create(identity->incarnation, err);
}

static void init_lock(heft__member_t *member)
{
    (void)pthread_mutex_init(&member->lock, NULL);
    (void)heft__cond_init(&member->changed);
}

static bool copy_text(const char *from, const char **to)
{
    *to = from != NULL ? heft__strdup(from) : NULL;
    return from == NULL || *to != NULL;
}

/* What was copied before a failure is freed with the member. */
static heft_status_t copy_access(const heft__access_t *from, heft__access_t *to, heft_error_t *err)
{
    to->insecure = from->insecure;
    const bool ok = copy_text(from->url, &to->url) &&
                    copy_text(from->token_file, &to->token_file) &&
                    copy_text(from->ca_file, &to->ca_file);
    return ok ? HEFT_OK : heft__error_nomem(err, strlen(from->url) + 1);
}

static void free_access(heft__access_t *access)
{
    heft__free((void *)(uintptr_t)access->url);
    heft__free((void *)(uintptr_t)access->token_file);
    heft__free((void *)(uintptr_t)access->ca_file);
}

heft_status_t heft__member_create(const heft__member_config_t *config, heft__member_t **member_out,
                                  heft_error_t *err)
{
    if (config->access.url == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "no url of a coordinator: give one, or set HEFT_URL");
    }
    heft__member_t *member = heft__calloc(1, sizeof *member);
    if (member == NULL) {
        return heft__error_nomem(err, sizeof *member);
    }
    init_lock(member);
    heft__report_init(&member->report);
    heft__order_init(&member->order);
    member->contact = (heft_error_t)HEFT_ERROR_INIT;
    (void)heft__error_set(&member->contact, HEFT_ERR_PEER, "coordinator %.160s: no contact yet",
                          config->access.url);
    member->deadline_ms = config->deadline_ms != 0 ? config->deadline_ms : 30000;
    member->refresh = config->refresh;
    member->refresh_arg = config->refresh_arg;
    heft_status_t status = set_identity(member, config, err);
    if (status == HEFT_OK) {
        memcpy(member->report.incarnation, member->identity.incarnation,
               sizeof member->report.incarnation);
        status = copy_access(&config->access, &member->access, err);
    }
    if (status == HEFT_OK) {
        status = heft__http_create(&member->access, &member->http, err);
    }
    if (status != HEFT_OK) {
        heft__member_destroy(member);
        return status;
    }
    *member_out = member;
    return HEFT_OK;
}

heft_status_t heft__member_connect(const heft__member_t *member, heft__http_t **http_out,
                                   heft_error_t *err)
{
    return heft__http_create(&member->access, http_out, err);
}

/* Best effort: a coordinator that is away finds out by the silence. A request that is lost on the
 * way, or its reply, is sent again: else the place stays taken for as long as silence is borne. */
static void leave(heft__member_t *member)
{
    enum { LEAVE_MS = 2000, CODE_GONE = 410 };
    char path[64 + HEFT__ID_SIZE + HEFT__INCARNATION_SIZE];
    heft__http_t *http = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    int code = 0;
    if (heft__member_connect(member, &http, NULL) != HEFT_OK) {
        return;
    }
    (void)snprintf(path, sizeof path, "/v1/members/%s?incarnation=%s", member->id,
                   member->identity.incarnation);
    const int64_t until_ns = heft__clock_mono_ns() + (int64_t)LEAVE_MS * 1000000;
    const heft__http_ask_t ask = { .method = "DELETE", .path = path, .deadline_ms = LEAVE_MS };
    heft_status_t status = heft__http_ask(http, &ask, &code, NULL, NULL, &err);
    while (status == HEFT_ERR_BUSY && heft__clock_mono_ns() < until_ns) { /* its round is ending */
        const struct timespec pause = { .tv_nsec = 20000000 };
        (void)nanosleep(&pause, NULL);
        status = heft__http_ask(http, &ask, &code, NULL, NULL, &err);
    }
    if (status != HEFT_OK && code != CODE_GONE) {
        heft__log(HEFT_LOG_INFO, "member", "%s: could not leave: %s", member->id, err.message);
    }
    heft__http_destroy(http);
}

void heft__member_stop(heft__member_t *member)
{
    if (member == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&member->lock);
    bool has_thread = member->has_thread && !member->stop;
    member->stop = true;
    if (member->http != NULL) {
        heft__http_abort(member->http);
    }
    (void)pthread_cond_broadcast(&member->changed);
    (void)pthread_mutex_unlock(&member->lock);
    if (has_thread) {
        (void)pthread_join(member->thread, NULL);
    }
}

static void free_kept(heft__kept_t *kept, uint32_t n)
{
    for (uint32_t i = 0; kept != NULL && i < n; i++) {
        heft__free(kept[i].text);
    }
    heft__free(kept);
}

void heft__member_destroy(heft__member_t *member)
{
    if (member == NULL) {
        return;
    }
    heft__member_stop(member);
    if (member->has_thread && member->may_be_known) {
        leave(member);
    }
    heft__http_destroy(member->http);
    heft__http_destroy(member->owner_http);
    for (int i = 0; i < HEFT__N_MEMBER_OBJECTS; i++) {
        heft__free(member->objects[i]);
    }
    free_kept(member->named, member->n_named);
    for (int i = 0; i < HEFT__N_KEPT; i++) {
        heft__free(member->kept[i].text);
    }
    heft__report_fini(&member->report);
    heft__order_fini(&member->order);
    (void)pthread_cond_destroy(&member->changed);
    (void)pthread_mutex_destroy(&member->lock);
    free_access(&member->access);
    heft__free(member);
}

const char *heft__member_get_incarnation(const heft__member_t *member)
{
    return member->identity.incarnation;
}

void heft__member_get_incarnation_bytes(const heft__member_t *member,
                                        uint8_t out[HEFT__INCARNATION_BYTES])
{
    bool ok = heft__hex_parse(member->identity.incarnation, out, HEFT__INCARNATION_BYTES);
    (void)ok; /* it was made as hex digits */
}

const char *heft__member_get_id(const heft__member_t *member)
{
    return member->id;
}

const char *heft__member_get_host(const heft__member_t *member)
{
    return member->identity.host;
}

uint32_t heft__member_get_deadline_ms(const heft__member_t *member)
{
    return member->deadline_ms;
}

bool heft__member_wait_locked(heft__member_t *member, int64_t deadline_mono_ns)
{
    return heft__cond_wait_until(&member->changed, &member->lock, deadline_mono_ns);
}

/* The report has changed: send it without waiting for the poll in progress. */
static void change_locked(heft__member_t *member)
{
    member->n_changes++;
    if (member->is_polling) {
        heft__http_abort(member->http);
        member->is_polling = false; /* once is enough */
    }
    (void)pthread_cond_broadcast(&member->changed);
}

static void take_object_locked(heft__member_t *member, int which, char *text)
{
    heft__free(member->objects[which]);
    member->objects[which] = text;
    heft__object_digest(text, strlen(text), member->digests[which]);
}

heft_status_t heft__member_set_object(heft__member_t *member, heft__member_object_t which,
                                      const char *text, heft_error_t *err)
{
    char *copy = heft__strdup(text);
    if (copy == NULL) {
        return heft__error_nomem(err, strlen(text) + 1);
    }
    (void)pthread_mutex_lock(&member->lock);
    take_object_locked(member, (int)which, copy);
    member->n_binds_wanted++;
    change_locked(member);
    (void)pthread_mutex_unlock(&member->lock);
    return HEFT_OK;
}

static heft_status_t copy_texts(const char *const *texts, uint32_t n, char **copies,
                                heft_error_t *err)
{
    for (uint32_t i = 0; i < n; i++) {
        copies[i] = texts[i] != NULL ? heft__strdup(texts[i]) : NULL;
        if (copies[i] == NULL && texts[i] != NULL) {
            const size_t size = strlen(texts[i]) + 1;
            while (i-- > 0) {
                heft__free(copies[i]);
            }
            return heft__error_nomem(err, size);
        }
    }
    return HEFT_OK;
}

static heft_status_t copy_named(const char *const *named, uint32_t n, heft__kept_t **kept_out,
                                heft_error_t *err)
{
    heft__kept_t *kept = heft__calloc((size_t)n + 1, sizeof *kept);
    if (kept == NULL) {
        return heft__error_nomem(err, n * sizeof *kept);
    }
    for (uint32_t i = 0; i < n; i++) {
        kept[i].text = heft__strdup(named[i]);
        if (kept[i].text == NULL) {
            free_kept(kept, n);
            return heft__error_nomem(err, strlen(named[i]) + 1);
        }
        heft__object_digest(named[i], strlen(named[i]), kept[i].digest);
    }
    *kept_out = kept;
    return HEFT_OK;
}

heft_status_t heft__member_set_objects(heft__member_t *member,
                                       const char *const texts[HEFT__N_MEMBER_OBJECTS],
                                       const char *const *named, uint32_t n_named,
                                       heft_error_t *err)
{
    char *copies[HEFT__N_MEMBER_OBJECTS] = { NULL };
    heft__kept_t *kept = NULL;
    heft_status_t status = copy_named(named, n_named, &kept, err);
    if (status == HEFT_OK) {
        status = copy_texts(texts, HEFT__N_MEMBER_OBJECTS, copies, err);
    }
    if (status != HEFT_OK) {
        free_kept(kept, n_named);
        return status;
    }
    (void)pthread_mutex_lock(&member->lock);
    for (int i = 0; i < HEFT__N_MEMBER_OBJECTS; i++) {
        if (copies[i] != NULL) {
            take_object_locked(member, i, copies[i]);
        }
    }
    heft__kept_t *old = kept;
    uint32_t n_old = n_named;
    if (texts[HEFT__OBJECT_SOURCES] != NULL) {
        old = member->named;
        n_old = member->n_named;
        member->named = kept;
        member->n_named = n_named;
    }
    member->n_binds_wanted++;
    change_locked(member);
    (void)pthread_mutex_unlock(&member->lock);
    free_kept(old, n_old);
    return HEFT_OK;
}

static heft_status_t await_bound_locked(heft__member_t *member, heft_error_t *err)
{
    const int64_t deadline = heft__clock_mono_ns() + (int64_t)member->deadline_ms * 1000000;
    while (member->n_binds_done < member->n_binds_wanted && !member->is_final &&
           heft__member_wait_locked(member, deadline)) {
    }
    if (member->n_binds_done >= member->n_binds_wanted) {
        return HEFT_OK;
    }
    if (member->contact.status == HEFT_OK) { /* in the middle of it */
        return heft__error_set(err, HEFT_ERR_TIMEOUT, "%s: not bound within %u ms", member->id,
                               member->deadline_ms);
    }
    /* A last try that got no reply in time is a coordinator that cannot be reached, like any other.
     */
    const heft_status_t status =
        member->contact.status == HEFT_ERR_TIMEOUT ? HEFT_ERR_PEER : member->contact.status;
    if (err != NULL) {
        *err = member->contact;
        err->status = status;
    }
    return status;
}

heft_status_t heft__member_await_bound(heft__member_t *member, heft_error_t *err)
{
    (void)pthread_mutex_lock(&member->lock);
    heft_status_t status = await_bound_locked(member, err);
    (void)pthread_mutex_unlock(&member->lock);
    return status;
}

heft_status_t heft__member_start(heft__member_t *member, heft_error_t *err)
{
    (void)pthread_mutex_lock(&member->lock);
    int rc = pthread_create(&member->thread, NULL, heft__member_link, member);
    member->has_thread = rc == 0;
    heft_status_t status = rc != 0 ? heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "member thread")
                                   : await_bound_locked(member, err);
    (void)pthread_mutex_unlock(&member->lock);
    return status;
}

heft_status_t heft__member_get_contact(heft__member_t *member, heft_error_t *err)
{
    (void)pthread_mutex_lock(&member->lock);
    heft_status_t status = member->contact.status;
    if (status != HEFT_OK && !member->is_final) {
        status = HEFT_ERR_PEER; /* whatever it was, it is being tried again */
    }
    if (status != HEFT_OK && err != NULL) {
        *err = member->contact;
        err->status = status;
    }
    (void)pthread_mutex_unlock(&member->lock);
    return status;
}

int64_t heft__member_get_committed(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    int64_t committed = member->committed;
    (void)pthread_mutex_unlock(&member->lock);
    return committed;
}

void heft__member_set_committed(heft__member_t *member, int64_t version)
{
    (void)pthread_mutex_lock(&member->lock);
    member->committed = version;
    (void)pthread_mutex_unlock(&member->lock);
}

heft__report_t *heft__member_lock(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    return &member->report;
}

void heft__member_unlock(heft__member_t *member, bool is_urgent)
{
    if (is_urgent) {
        change_locked(member);
    }
    (void)pthread_mutex_unlock(&member->lock);
}

void heft__member_wake(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    change_locked(member);
    (void)pthread_mutex_unlock(&member->lock);
}

void heft__member_tell(heft__member_t *member, int64_t deadline_mono_ns)
{
    (void)pthread_mutex_lock(&member->lock);
    member->is_telling = true;
    change_locked(member);
    while (member->n_told < member->n_changes && !member->is_final &&
           heft__member_wait_locked(member, deadline_mono_ns)) {
    }
    member->is_telling = false;
    (void)pthread_mutex_unlock(&member->lock);
}

/* ---- orders ---- */

heft_status_t heft__member_await_order(heft__member_t *member, int64_t deadline_mono_ns,
                                       heft__order_t *order_out, heft_error_t *err)
{
    (void)err;
    heft_status_t status = HEFT_IN_PROGRESS;
    (void)pthread_mutex_lock(&member->lock);
    while (!member->has_order && !member->interrupt && !member->stop &&
           heft__member_wait_locked(member, deadline_mono_ns)) {
    }
    member->interrupt = false;
    if (member->has_order) {
        *order_out = member->order;
        heft__order_init(&member->order);
        member->has_order = false;
        member->handed_out = order_out->sequence;
        status = HEFT_OK;
    }
    (void)pthread_mutex_unlock(&member->lock);
    return status;
}

void heft__member_interrupt(heft__member_t *member)
{
    (void)pthread_mutex_lock(&member->lock);
    member->interrupt = true;
    (void)pthread_cond_broadcast(&member->changed);
    (void)pthread_mutex_unlock(&member->lock);
}

static bool is_called_off_locked(const heft__member_t *member, heft__round_id_t round)
{
    return member->stop ||
           (member->has_order && (member->order.target == HEFT__PHASE_ABORT ||
                                  member->order.target == HEFT__PHASE_RELEASE ||
                                  !heft__round_id_equal(member->order.round, round)));
}

bool heft__member_is_called_off(heft__member_t *member, heft__round_id_t round)
{
    (void)pthread_mutex_lock(&member->lock);
    bool is_off = is_called_off_locked(member, round);
    (void)pthread_mutex_unlock(&member->lock);
    return is_off;
}

bool heft__member_take_renewal(heft__member_t *member, const heft__order_t *order,
                               int64_t *left_ms_out)
{
    (void)pthread_mutex_lock(&member->lock);
    const bool is_new = member->has_order && member->order.target == order->target &&
                        heft__round_id_equal(member->order.round, order->round);
    if (is_new) {
        *left_ms_out = member->order.left_ms;
        member->handed_out = member->order.sequence;
        member->report.order = member->order.sequence;
        heft__order_fini(&member->order);
        heft__order_init(&member->order);
        member->has_order = false;
    }
    (void)pthread_mutex_unlock(&member->lock);
    return is_new;
}

bool heft__member_await_called_off(heft__member_t *member, heft__round_id_t round,
                                   int64_t deadline_mono_ns)
{
    (void)pthread_mutex_lock(&member->lock);
    while (!is_called_off_locked(member, round) && !member->interrupt &&
           heft__member_wait_locked(member, deadline_mono_ns)) {
    }
    member->interrupt = false;
    bool is_off = is_called_off_locked(member, round);
    (void)pthread_mutex_unlock(&member->lock);
    return is_off;
}

/* ---- reports ---- */

/* What a report says of its round goes with the round. */
static void open_round_locked(heft__report_t *report, heft__round_id_t round)
{
    report->round = round;
    report->plan[0] = '\0';
    report->plans[0] = '\0';
    report->source_digest[0] = '\0';
    report->digests[0] = '\0';
    report->live[0] = '\0';
    report->version = 0;
    report->movers = 0;
    report->counters = (heft__counters_t){ 0 };
    heft__problems_fini(&report->problems);
    heft__report_set_absent(report, NULL, 0);
}

static void take_up_locked(heft__member_t *member, const heft__order_t *order)
{
    heft__report_t *report = &member->report;
    if (!heft__round_id_equal(report->round, order->round)) {
        open_round_locked(report, order->round);
    }
    if (order->movers > 0) { /* what a coordinator that has lost its state must hear */
        report->version = order->version;
        report->movers = order->movers;
        memcpy(report->source_digest, order->source_digest, sizeof report->source_digest);
    }
    report->phase = order->target;
    report->result = HEFT__RESULT_WORKING;
    heft__wire_error_reset(&report->error);
    member->is_refusing = false;
}

void heft__member_conclude(heft__member_t *member, heft__result_t result,
                           heft__member_state_t state, const heft_error_t *err,
                           const heft__blame_t *blame)
{
    heft__report_t *report = heft__member_lock(member);
    heft__wire_error_t *error = &report->error;
    report->result = result;
    report->state = state;
    heft__wire_error_reset(error);
    /* with success there is none: something else may have failed on the way and been mended */
    if (result != HEFT__RESULT_OK && err != NULL && err->status != HEFT_OK) {
        heft__wire_error_set(error, report->phase, err);
        error->rank = (int32_t)member->identity.rank;
        if (blame != NULL && blame->peer != NULL) {
            (void)snprintf(error->peer, sizeof error->peer, "%s", blame->peer);
        }
        if (blame != NULL && blame->tensor != NULL) {
            (void)snprintf(error->tensor, sizeof error->tensor, "%s", blame->tensor);
        }
    }
    heft__member_unlock(member, true);
}

/* An order of another round is refused in silence: a report of this round says nothing about it. */
static void refuse_locked(heft__member_t *member, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    (void)heft__error_set(&err, HEFT_ERR_STATE, "out_of_order: %s while %s",
                          heft__phase_text(order->target), heft__state_text(member->report.state));
    heft__log(HEFT_LOG_WARN, "member", "%s: %s", member->id, err.message);
    if (heft__round_id_equal(member->report.round, order->round)) {
        member->is_refusing = true;
        member->refused = order->target;
        heft__wire_error_reset(&member->refusal);
        heft__wire_error_set(&member->refusal, order->target, &err);
    }
}

heft__gate_t heft__member_judge(heft__member_t *member, const heft__order_t *order)
{
    heft__report_t *report = heft__member_lock(member);
    if (order->epoch < report->epoch) { /* the member has registered anew since it was given */
        heft__member_unlock(member, false);
        return HEFT__GATE_REFUSE;
    }
    heft__stand_t stand = { .round = report->round,
                            .phase = report->phase,
                            .result = report->result,
                            .state = report->state,
                            .in_place = member->identity.in_place };
    /* a destination that feeds others does what sources do */
    const bool sends = order->feeds || report->state >= HEFT__STATE_PREPARED;
    heft__gate_t gate =
        heft__member_gate(sends ? HEFT__ROLE_SOURCE : member->identity.role, &stand, order);
    if (gate == HEFT__GATE_DO) {
        take_up_locked(member, order);
    } else if (gate == HEFT__GATE_REFUSE) {
        refuse_locked(member, order);
    }
    /* Not before: a report that names an order is the answer to that order. */
    report->order = order->sequence;
    heft__member_unlock(member, gate != HEFT__GATE_DO);
    return gate;
}
