/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: life and time. The ticker thread is the only one that writes the record and that
 * wakes calls; it sleeps until the next deadline of the round or of a call that waits, or until
 * something changed.
 */
#include "sync/coordinator.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sync/settings.h"

#define MS INT64_C(1000000)
#define OBJECT_AGE_NS (60 * 1000 * MS)

/* ---- options ---- */

/* The options are complete by now. */
static heft__round_config_t config_of(const heft_coordinator_opts_t *opts)
{
    heft__round_config_t config;
    memset(&config, 0, sizeof config);
    int64_t *limit = config.limit_ns;
    limit[HEFT__PHASE_PREFLIGHT] = opts->preflight_ms * MS;
    limit[HEFT__PHASE_MANIFEST] = limit[HEFT__PHASE_PREFLIGHT];
    limit[HEFT__PHASE_PREPARE] = opts->prepare_ms * MS;
    limit[HEFT__PHASE_STAGE] = opts->stage_ms * MS;
    limit[HEFT__PHASE_VERIFY] = opts->verify_ms * MS;
    limit[HEFT__PHASE_LIVE] = limit[HEFT__PHASE_VERIFY];
    limit[HEFT__PHASE_PAUSE] = opts->pause_ms * MS;
    limit[HEFT__PHASE_DECIDE] = opts->decide_ms * MS;
    limit[HEFT__PHASE_NONE] = limit[HEFT__PHASE_DECIDE];
    limit[HEFT__PHASE_FLIP] = opts->flip_ms * MS;
    limit[HEFT__PHASE_RESUME] = opts->resume_ms * MS;
    limit[HEFT__PHASE_RELEASE] = opts->release_ms * MS;
    limit[HEFT__PHASE_ABORT] = opts->abort_ms * MS;
    config.contact_ns = opts->contact_ms * MS;
    return config;
}

/* ---- record ---- */

static heft_status_t snapshot_members(const heft_coordinator_t *c, heft__record_t *out,
                                      heft_error_t *err)
{
    const heft__round_t *r = &c->round;
    out->members = heft__calloc(r->n_members > 0 ? r->n_members : 1, sizeof *out->members);
    if (out->members == NULL) {
        return heft__error_nomem(err, r->n_members * sizeof *out->members);
    }
    const bool busy = heft__round_is_busy(r);
    for (uint32_t i = 0; i < r->n_members; i++) {
        const heft__round_member_t *m = &r->members[i];
        const heft__entry_t *entry = c->entries[i];
        const bool in_round = busy && m->in_round;
        if (!m->used || entry == NULL) {
            continue;
        }
        heft__record_member_t *to = &out->members[out->n_members++];
        to->role = m->role;
        to->replica = entry->identity.replica;
        to->rank = entry->identity.rank;
        to->in_round = in_round;
        to->moves = in_round && m->moves;
        to->feeds = in_round && m->feeds;
        to->in_place = m->in_place;
        to->poison = (int64_t)m->poison;
        memcpy(to->job, entry->identity.job, sizeof to->job);
        /* the life that takes part, also when it is over */
        memcpy(to->incarnation, m->lost ? entry->replaced[0] : entry->identity.incarnation,
               sizeof to->incarnation);
    }
    return HEFT_OK;
}

static heft_status_t snapshot_locked(const heft_coordinator_t *c, heft__record_t *out,
                                     heft_error_t *err)
{
    const heft__round_t *r = &c->round;
    memset(out, 0, sizeof *out);
    out->epoch = r->epoch;
    out->sequence = r->seq;
    out->committed_version = r->committed_version;
    memcpy(out->committed_digest, r->committed_digest, sizeof out->committed_digest);
    out->before_version = r->before_version;
    memcpy(out->before_digest, r->before_digest, sizeof out->before_digest);
    const bool sync =
        heft__round_is_busy(r) && (r->kind == HEFT__KIND_SYNC || r->kind == HEFT__KIND_FEED);
    if (sync) {
        out->round = r->id;
        out->version = r->version;
        out->relays = r->relays;
        memcpy(out->source_digest, r->source_digest, sizeof out->source_digest);
        out->decision = r->pending != HEFT__DECISION_NONE ? r->pending : r->decision;
        out->in_doubt = r->state == HEFT__ROUND_UNKNOWN || r->state == HEFT__ROUND_PARTIAL;
    }
    if (sync && r->pending == HEFT__DECISION_COMMIT) {
        out->before_version = r->committed_version;
        memcpy(out->before_digest, r->committed_digest, sizeof out->before_digest);
        out->committed_version = r->version;
        memcpy(out->committed_digest, r->source_digest, sizeof out->committed_digest);
    } else if (sync && r->pending == HEFT__DECISION_REVOKE) {
        out->committed_version = r->before_version;
        memcpy(out->committed_digest, r->before_digest, sizeof out->committed_digest);
    }
    return snapshot_members(c, out, err);
}

/* Write the record without the lock, then tell the machine. */
static void write_record(heft_coordinator_t *c)
{
    heft__record_t record;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t ticket = c->round.write_ticket;
    c->round.todo &= ~(uint32_t)HEFT__TODO_WRITE;
    bool maybe = false;
    heft_status_t status = HEFT_OK;
    if (c->state_file != NULL) {
        status = snapshot_locked(c, &record, &err);
        (void)pthread_mutex_unlock(&c->lock);
        if (status == HEFT_OK) {
            status = heft__record_save(c->state_file, &record, &maybe, &err);
        }
        heft__record_fini(&record);
        (void)pthread_mutex_lock(&c->lock);
    }
    if (status != HEFT_OK) {
        heft__log(HEFT_LOG_ERROR, "sync", "%s", err.message);
    }
    const heft__written_t outcome = status == HEFT_OK ? HEFT__WRITTEN_OK
                                    : maybe           ? HEFT__WRITTEN_MAYBE
                                                      : HEFT__WRITTEN_FAILED;
    const int64_t now = heft__clock_mono_ns();
    heft__round_written(&c->round, ticket, outcome, now);
    heft__coordinator_settle_locked(c, now);
    c->dirty = true;
}

/* ---- ticker ---- */

static void wait_until(heft_coordinator_t *c, int64_t when_ns)
{
    const int64_t far = heft__clock_mono_ns() + 3600 * 1000 * MS;
    (void)heft__cond_wait_until(&c->changed, &c->lock, heft__min_i64(when_ns, far));
}

static void *run_ticker(void *arg)
{
    heft_coordinator_t *c = arg;
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        const int64_t now = heft__clock_mono_ns();
        if (now >= heft__round_next_tick(&c->round)) {
            heft__round_tick(&c->round, now);
            heft__coordinator_settle_locked(c, now);
        }
        const int64_t feed = heft__coordinator_feed_locked(c, now);
        if ((c->round.todo & HEFT__TODO_WRITE) != 0) {
            write_record(c);
            continue;
        }
        if (c->round_lines.len > 0) {
            heft__coordinator_write_results(c);
            continue;
        }
        if (now >= c->sweep_ns) {
            c->sweep_ns = now + OBJECT_AGE_NS / 4;
            heft__coordinator_sweep_locked(c, now - OBJECT_AGE_NS);
        }
        c->dirty = false;
        const int64_t waiter = heft__server_resume_locked(c->server, now);
        if (c->stopping) {
            break;
        }
        int64_t next = heft__min_i64(waiter, heft__round_next_tick(&c->round));
        next = heft__min_i64(next, heft__min_i64(c->sweep_ns, feed));
        next = heft__min_i64(next, heft__server_sweep(c->server, now));
        if (!c->dirty) {
            wait_until(c, next);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

void heft__coordinator_settle_locked(heft_coordinator_t *c, int64_t now_ns)
{
    heft__round_t *r = &c->round;
    for (;;) {
        const uint32_t todo = r->todo & ~(uint32_t)HEFT__TODO_WRITE;
        r->todo &= (uint32_t)HEFT__TODO_WRITE;
        if (r->todo != 0 || todo != 0) {
            c->dirty = true;
        }
        if ((todo & HEFT__TODO_CHECK_SOURCES) != 0) {
            heft__coordinator_check_sources_locked(c, now_ns);
        } else if ((todo & HEFT__TODO_CHECK_PLANS) != 0) {
            heft__coordinator_check_plans_locked(c, now_ns);
        } else if ((todo & HEFT__TODO_CHECK_DIGEST) != 0) {
            heft__coordinator_check_digest_locked(c, now_ns);
        }
        if ((todo & HEFT__TODO_ENDED) != 0) {
            heft__coordinator_end_locked(c);
        }
        if (todo == 0) {
            break;
        }
    }
    heft__coordinator_note_locked(c);
    if (c->dirty) {
        (void)pthread_cond_signal(&c->changed);
    }
}

/* ---- start ---- */

/* Restarts raise the epoch by one; the first is the time of day, so that a lost file cannot bring
 * an old epoch back. */
static int64_t next_epoch(const heft__record_t *record)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    return record->epoch > 0 ? record->epoch + 1 : heft__max_i64(ms, 1);
}

/* Put back the members that the record names, as placeholders until they register. */
static heft_status_t restore_members(heft_coordinator_t *c, const heft__record_t *record,
                                     heft_error_t *err)
{
    for (uint32_t i = 0; i < record->n_members; i++) {
        const heft__record_member_t *from = &record->members[i];
        heft__register_t identity;
        memset(&identity, 0, sizeof identity);
        identity.role = from->role;
        identity.replica = from->replica;
        identity.rank = from->rank;
        memcpy(identity.job, from->job, sizeof identity.job);
        memcpy(identity.incarnation, from->incarnation, sizeof identity.incarnation);
        const uint32_t slot = heft__coordinator_add_locked(c, &identity, err);
        if (slot == UINT32_MAX) {
            return err != NULL && err->status != HEFT_OK ? err->status : HEFT_ERR_NOMEM;
        }
        heft__round_member_t *m = &c->round.members[slot];
        memset(m, 0, sizeof *m);
        m->used = true;
        m->role = from->role;
        m->engine = heft__coordinator_engine_locked(c, slot);
        m->in_round = from->in_round;
        m->moves = from->moves;
        m->feeds = from->feeds;
        m->in_place = from->in_place;
        m->poison = (heft__poison_t)from->poison;
        m->contact_ns = heft__clock_mono_ns();
    }
    return HEFT_OK;
}

static heft_status_t restore(heft_coordinator_t *c, const heft__record_t *record, heft_error_t *err)
{
    heft__round_t *r = &c->round;
    r->committed_version = record->committed_version;
    memcpy(r->committed_digest, record->committed_digest, sizeof r->committed_digest);
    r->before_version = record->before_version;
    memcpy(r->before_digest, record->before_digest, sizeof r->before_digest);
    heft_status_t status = restore_members(c, record, err);
    if (status == HEFT_OK && record->round.epoch > 0) {
        r->id = record->round;
        r->version = record->version;
        r->relays = record->relays;
        r->decision = record->decision;
        memcpy(r->source_digest, record->source_digest, sizeof r->source_digest);
        heft__result_slot_t *slot = heft__coordinator_new_result_locked(c);
        slot->id = record->round;
        slot->version = record->version;
        const int64_t now = heft__clock_mono_ns();
        heft__round_restore(r, record->in_doubt, now);
        slot->kind = r->kind;
        heft__coordinator_settle_locked(c, now);
    }
    return status;
}

static heft_status_t open_record(heft_coordinator_t *c, const char *path, heft__record_t *record,
                                 heft_error_t *err)
{
    memset(record, 0, sizeof *record);
    if (path == NULL) {
        return HEFT_OK;
    }
    c->state_file = heft__strdup(path);
    if (c->state_file == NULL) {
        return heft__error_nomem(err, strlen(path));
    }
    heft_status_t status = heft__record_lock(path, &c->lock_fd, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__record_load(path, record, err);
    return status == HEFT_ERR_NOT_FOUND ? HEFT_OK : status;
}

/* The raised epoch is on disk before anything is answered. */
static heft_status_t store_epoch(heft_coordinator_t *c, heft_error_t *err)
{
    if (c->state_file == NULL) {
        return HEFT_OK;
    }
    heft__record_t record;
    bool maybe;
    heft_status_t status = snapshot_locked(c, &record, err);
    if (status == HEFT_OK) {
        status = heft__record_save(c->state_file, &record, &maybe, err);
    }
    heft__record_fini(&record);
    return status;
}

static heft_status_t set_up(heft_coordinator_t *c, const heft_coordinator_opts_t *opts,
                            heft_error_t *err)
{
    c->slots = heft__calloc(HEFT__MAX_MEMBERS, sizeof *c->slots);
    c->entries = heft__calloc(HEFT__MAX_MEMBERS, sizeof(void *));
    if (c->slots == NULL || c->entries == NULL) {
        return heft__error_nomem(err, HEFT__MAX_MEMBERS * sizeof *c->slots);
    }
    if (!heft__relay_parse(opts->relay, &c->relay)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "relay \"%.40s\": off, auto or on",
                               opts->relay);
    }
    heft__record_t record;
    heft_status_t status = open_record(c, opts->state_file, &record, err);
    if (status == HEFT_OK) {
        const heft__round_config_t config = config_of(opts);
        heft__round_init(&c->round, &config, c->slots, HEFT__MAX_MEMBERS, next_epoch(&record),
                         record.sequence);
        c->round.is_bare = record.epoch == 0;
        c->round.n_members = 0; /* grows with the slots in use */
        c->poll_ms = opts->poll_ms;
        c->no_feed = opts->no_feed != 0;
        c->relay_fan_out = opts->relay_fan_out;
        c->decide_ms = (uint32_t)(config.limit_ns[HEFT__PHASE_DECIDE] / MS);
        status = restore(c, &record, err);
    }
    heft__record_fini(&record);
    return status == HEFT_OK ? store_epoch(c, err) : status;
}

static heft_status_t create_locks(heft_coordinator_t *c, heft_error_t *err)
{
    int rc = pthread_mutex_init(&c->lock, NULL);
    if (rc != 0) {
        return heft__error_set_sys(err, HEFT_ERR_INTERNAL, rc, "pthread_mutex_init");
    }
    rc = heft__cond_init(&c->changed);
    if (rc != 0) {
        (void)pthread_mutex_destroy(&c->lock);
        return heft__error_set_sys(err, HEFT_ERR_INTERNAL, rc, "pthread_cond_init");
    }
    return HEFT_OK;
}

/* Everything but the locks and c itself. */
static void tear_down(heft_coordinator_t *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->stopping = true;
    (void)pthread_cond_signal(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    if (c->has_ticker) {
        (void)pthread_join(c->ticker, NULL);
    }
    if (c->server != NULL) {
        (void)pthread_mutex_lock(&c->lock);
        (void)heft__server_resume_locked(c->server, heft__clock_mono_ns());
        (void)pthread_mutex_unlock(&c->lock);
        heft__server_stop(c->server);
    }
    for (uint32_t i = 0; c->entries != NULL && i < HEFT__MAX_MEMBERS; i++) {
        heft__coordinator_drop_locked(c, i);
    }
    for (uint32_t i = 0; i < HEFT__MAX_RESULTS; i++) {
        heft__free(c->results[i].json);
        heft__free(c->results[i].summary);
    }
    for (uint32_t i = 0; i < HEFT__DIGEST_ROUNDS; i++) {
        heft__free(c->digests[i].objects);
    }
    heft__objects_fini(&c->objects);
    heft__free(c->entries);
    heft__free(c->slots);
    heft__free(c->state_file);
    heft__text_fini(&c->round_lines);
    heft__free(c->round_log);
    if (c->lock_fd >= 0) {
        (void)close(c->lock_fd);
    }
}

static heft_status_t serve(heft_coordinator_t *c, const heft_coordinator_opts_t *opts,
                           heft_error_t *err)
{
    uint16_t port = 0;
    heft_status_t status = heft__server_start(c, opts, &c->server, &port, err);
    if (status != HEFT_OK) {
        return status;
    }
    const bool v6 = strchr(opts->address, ':') != NULL;
    const char *scheme = opts->tls_cert != NULL ? "https" : "http";
    (void)snprintf(c->url, sizeof c->url, v6 ? "%s://[%s]:%u" : "%s://%s:%u", scheme, opts->address,
                   port);
    const int rc = pthread_create(&c->ticker, NULL, run_ticker, c);
    if (rc != 0) {
        return heft__error_set_sys(err, HEFT_ERR_INTERNAL, rc, "pthread_create");
    }
    c->has_ticker = true;
    return HEFT_OK;
}

/* The options are complete. */
static heft_status_t start(const heft_coordinator_opts_t *opts,
                           heft_coordinator_t **coordinator_out, heft_error_t *err)
{
    heft_coordinator_t *c = heft__calloc(1, sizeof *c);
    if (c == NULL) {
        return heft__error_nomem(err, sizeof *c);
    }
    c->lock_fd = -1;
    heft__objects_init(&c->objects, HEFT__STORE_MAX_BYTES);
    heft_status_t status = create_locks(c, err);
    if (status != HEFT_OK) {
        heft__free(c);
        return status;
    }
    status = heft__coordinator_open_round_log(c, opts->round_log, err);
    if (status == HEFT_OK) {
        status = set_up(c, opts, err);
    }
    if (status == HEFT_OK) {
        status = serve(c, opts, err);
    }
    if (status != HEFT_OK) {
        tear_down(c);
        (void)pthread_cond_destroy(&c->changed);
        (void)pthread_mutex_destroy(&c->lock);
        heft__free(c);
        return status;
    }
    *coordinator_out = c;
    return HEFT_OK;
}

heft_status_t heft_coordinator_start(const heft_coordinator_opts_t *opts,
                                     heft_coordinator_t **coordinator_out, heft_error_t *err)
{
    heft_coordinator_opts_t loaded = HEFT_COORDINATOR_OPTS_INIT;
    heft_config_t *config = NULL;
    heft_status_t status =
        heft__opts_load(opts, &loaded, sizeof loaded, "coordinator options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved,
                                           "coordinator options", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved2, sizeof loaded.reserved2,
                                           "coordinator options", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved3, sizeof loaded.reserved3,
                                           "coordinator options", err);
    }
    if (status == HEFT_OK) {
        status = heft__settings_coordinator(&loaded, &config, err);
    }
    if (status == HEFT_OK) {
        status = start(&loaded, coordinator_out, err);
    }
    heft_config_destroy(config);
    return status;
}

const char *heft_coordinator_get_url(const heft_coordinator_t *coordinator)
{
    return coordinator->url;
}

heft_status_t heft_coordinator_drain(heft_coordinator_t *c, uint32_t deadline_ms, heft_error_t *err)
{
    const int64_t end = heft__clock_mono_ns() + (int64_t)deadline_ms * MS;
    const struct timespec pause = { .tv_nsec = 2 * 1000000 };
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&c->lock);
    c->draining = true;
    if (heft__round_is_feeding(&c->round)) {
        heft__round_cancel(&c->round, heft__clock_mono_ns());
        heft__coordinator_settle_locked(c, heft__clock_mono_ns());
    }
    while (heft__round_is_busy(&c->round) || c->round_lines.len > 0 ||
           heft__coordinator_owes_end_locked(c, heft__clock_mono_ns())) {
        const bool is_over = !heft__round_is_busy(&c->round) && c->round_lines.len == 0;
        if (heft__clock_mono_ns() >= end && is_over) {
            break; /* who follows the round will have to look it up in the log */
        }
        if (heft__clock_mono_ns() >= end) {
            char id[HEFT__ROUND_TEXT_SIZE];
            heft__round_id_format(c->round.id, id);
            status = heft__error_set(err, HEFT_ERR_TIMEOUT, "round %s is %s after %u ms", id,
                                     heft__round_state_text(&c->round), (unsigned)deadline_ms);
            break;
        }
        (void)pthread_mutex_unlock(&c->lock);
        (void)nanosleep(&pause, NULL);
        (void)pthread_mutex_lock(&c->lock);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

void heft_coordinator_stop(heft_coordinator_t *coordinator)
{
    if (coordinator == NULL) {
        return;
    }
    tear_down(coordinator);
    (void)pthread_cond_destroy(&coordinator->changed);
    (void)pthread_mutex_destroy(&coordinator->lock);
    heft__free(coordinator);
}
