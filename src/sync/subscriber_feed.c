/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination that stands in for a source: it sends the parameters that it serves to others of
 * its rank that have joined late, and goes on serving meanwhile. Nothing writes its parameters
 * while such a round is in flight, and this file only reads them.
 *
 * The sending is done by a thread of its own, so that the engine's is free; how it went is told by
 * the link's thread (heft__subscriber_note_feed). The owner's thread starts it, stops it, and asks
 * the coordinator for objects.
 */
#include "sync/subscriber_private.h"

#include <stdatomic.h>
#include <string.h>

#include "kernel/kernel.h"
#include "plan/plan.h"

static const int64_t probe_ns = 500000000;

/* One that is fed. */
typedef struct target {
    char id[HEFT__ID_SIZE];
    char *endpoint; /* owned */
} target_t;

struct heft__feed {
    heft_subscriber_t *sub;
    heft__round_id_t round;
    target_t *targets;
    uint32_t n_targets;
    int64_t deadline_mono_ns;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;

    /* Guarded by the member's lock: the outcome. */
    bool is_over;
    bool is_unknown; /* a put was issued, and it is not known whether it has ended */
    heft_error_t err;
    const char *blamed; /* id of a target; NULL: none */
    heft__chunk_counts_t counts;
    int64_t bytes;
};

/* ---- the thread ---- */

static heft_status_t look(const heft__feed_t *feed, heft__remote_t *remote, heft_error_t *err)
{
    if (atomic_load(&feed->stop)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "the round was called off");
    }
    if (heft__clock_mono_ns() >= feed->deadline_mono_ns) {
        return heft__error_set(err, HEFT_ERR_TIMEOUT, "not sent before the deadline");
    }
    return heft__remote_check(remote, err);
}

/* A send in progress, for looks between two chunks. */
typedef struct sending {
    heft__feed_t *feed;
    heft__remote_t *remote;
} sending_t;

static heft_status_t before_chunk(void *arg, heft_error_t *err)
{
    const sending_t *sending = arg;
    return look(sending->feed, sending->remote, err);
}

/* Into memory that can be addressed, a piece at a time. */
static heft_status_t copy_params(heft__feed_t *feed, heft__remote_t *remote, heft_error_t *err)
{
    const heft_subscriber_t *sub = feed->sub;
    for (uint32_t i = 0; i < sub->n_params; i++) {
        const heft__home_t *home = &sub->homes[i];
        uint8_t *to = remote->ptr + sub->work.layout.offsets[i];
        const int64_t step = home->is_strided ? heft__max_i64(home->bytes, 1) : HEFT__CHUNK_BYTES;
        for (int64_t done = 0; done < sub->work.moved[i]; done += step) {
            heft_status_t status = look(feed, remote, err);
            if (status != HEFT_OK) {
                return status;
            }
            if (home->is_strided) {
                heft__home_read(home, to);
            } else {
                heft__memcpy(to + done, home->data + done,
                             heft__min_i64(step, sub->work.moved[i] - done));
            }
        }
    }
    return HEFT_OK;
}

/* One parameter in chunks; a strided one is gathered first. */
static heft_status_t put_param(sending_t *sending, const heft__expect_t *expect,
                               heft__token_t token, uint32_t i, heft_error_t *err)
{
    heft__feed_t *feed = sending->feed;
    const heft__home_t *home = &feed->sub->homes[i];
    const uint8_t *from = home->data;
    uint8_t *gathered = NULL;
    if (feed->sub->work.moved[i] == 0) {
        return HEFT_OK;
    }
    if (home->is_strided) {
        gathered = heft__malloc((size_t)home->bytes);
        if (gathered == NULL) {
            return heft__error_nomem(err, (size_t)home->bytes);
        }
        heft__home_read(home, gathered);
        from = gathered;
    }
    /* a base from which this parameter lies at its own offset in staging */
    const uintptr_t base = (uintptr_t)from - (uintptr_t)feed->sub->work.layout.offsets[i];
    heft_status_t status =
        heft__chunk_send(sending->remote, expect, token, i, (const uint8_t *)base,
                         feed->deadline_mono_ns, before_chunk, sending, &feed->counts, err);
    heft__free(gathered);
    return status;
}

/* In chunks. */
static heft_status_t put_params(heft__feed_t *feed, heft__remote_t *remote, heft__token_t token,
                                heft_error_t *err)
{
    const heft_subscriber_t *sub = feed->sub;
    sending_t sending = { .feed = feed, .remote = remote };
    heft__route_t *routes = NULL;
    heft__expect_t expect;
    heft_status_t status =
        heft__staging_expect(&sub->work.layout, sub->work.routes, 0, &routes, &expect, err);
    for (uint32_t i = 0; i < sub->n_params && status == HEFT_OK; i++) {
        status = put_param(&sending, &expect, token, i, err);
    }
    heft__free(routes);
    return status;
}

heft_status_t heft__subscriber_end_sending(heft__remote_t *remote, heft__token_t token,
                                           int64_t deadline_mono_ns, heft_status_t status,
                                           bool *unknown_out, heft_error_t *err)
{
    heft_error_t late = HEFT_ERROR_INIT;
    heft_status_t ended = heft__remote_flush(remote, deadline_mono_ns, &late);
    *unknown_out = ended != HEFT_OK && ended != HEFT_ERR_PEER; /* the dead receive nothing */
    if (!*unknown_out) { /* else an end would say that nothing more can come */
        const bool is_whole = status == HEFT_OK && ended == HEFT_OK;
        heft_status_t told =
            heft__remote_end(remote, token, is_whole, ended == HEFT_OK ? &late : NULL);
        ended = ended == HEFT_OK ? told : ended;
    }
    if (status == HEFT_OK && ended != HEFT_OK) {
        *err = late;
        status = ended;
    }
    return status;
}

static heft_status_t send_to(heft__feed_t *feed, heft__remote_t *remote, heft_error_t *err)
{
    const heft__token_t token = { .epoch = (uint64_t)feed->round.epoch,
                                  .seq = (uint64_t)feed->round.seq };
    heft_status_t status = heft__remote_begin(remote, token, feed->deadline_mono_ns, err);
    if (status != HEFT_OK) {
        return status;
    }
    status =
        remote->ptr != NULL ? copy_params(feed, remote, err) : put_params(feed, remote, token, err);
    return heft__subscriber_end_sending(remote, token, feed->deadline_mono_ns, status,
                                        &feed->is_unknown, err);
}

static bool is_stopped(void *arg)
{
    return atomic_load((atomic_bool *)arg);
}

heft_status_t heft__subscriber_attach(heft_subscriber_t *sub, const char *endpoint,
                                      int64_t deadline_mono_ns, atomic_bool *stop,
                                      heft__remote_t **remote_out, heft_error_t *err)
{
    heft__attach_params_t params = { .bytes = sub->work.layout.bytes,
                                     .deadline_mono_ns = deadline_mono_ns,
                                     .is_called_off = stop != NULL ? is_stopped : NULL,
                                     .is_called_off_arg = stop };
    heft__transport_t *transport = NULL;
    char *chosen = NULL;
    heft__member_get_incarnation_bytes(sub->member, params.incarnation);
    heft_status_t status = heft__endpoint_choose(endpoint, sub->offer.transports, sub->offer.n,
                                                 &transport, &chosen, err);
    if (status == HEFT_OK) {
        status = heft__remote_attach(transport, chosen, &params, remote_out, err);
    }
    heft__free(chosen);
    return status;
}

static heft_status_t feed_one(heft__feed_t *feed, const target_t *target, heft_error_t *err)
{
    heft__remote_t *remote = NULL;
    heft_status_t status = heft__subscriber_attach(
        feed->sub, target->endpoint, feed->deadline_mono_ns, &feed->stop, &remote, err);
    if (status == HEFT_OK) {
        status = send_to(feed, remote, err);
        heft__remote_close(remote); /* after an unknown put this is what ends it */
    }
    return status;
}

static void *run(void *arg)
{
    heft__feed_t *feed = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_OK;
    const char *blamed = NULL;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < feed->sub->n_params; i++) {
        bytes += feed->sub->work.moved[i]; /* bounded by the bytes of staging */
    }
    for (uint32_t i = 0; i < feed->n_targets && status == HEFT_OK; i++) {
        status = feed_one(feed, &feed->targets[i], &err);
        blamed = status != HEFT_OK ? feed->targets[i].id : NULL;
        feed->bytes += status == HEFT_OK ? bytes : 0;
    }
    heft__member_t *member = feed->sub->member;
    (void)heft__member_lock(member);
    feed->is_over = true;
    feed->err = err;
    feed->err.status = status;
    feed->blamed = blamed;
    heft__member_unlock(member, true); /* the report brings it along */
    return NULL;
}

void heft__subscriber_note_feed(heft_subscriber_t *sub, heft__report_t *report)
{
    const heft__feed_t *feed = sub->feed;
    const bool is_sending = report->phase == HEFT__PHASE_STAGE &&
                            report->result == HEFT__RESULT_WORKING &&
                            report->state == HEFT__STATE_SENDING;
    if (feed == NULL || !feed->is_over || !is_sending) {
        return;
    }
    report->counters.bytes = feed->bytes;
    report->counters.chunks = feed->counts.chunks;
    report->counters.resent = feed->counts.resent;
    if (feed->err.status == HEFT_OK) {
        report->result = HEFT__RESULT_OK;
        report->state = HEFT__STATE_SENT;
        return;
    }
    report->result = feed->is_unknown ? HEFT__RESULT_UNKNOWN : HEFT__RESULT_FAILED;
    report->state = feed->is_unknown ? HEFT__STATE_SENDING : HEFT__STATE_PREPARED;
    heft__wire_error_set(&report->error, HEFT__PHASE_STAGE, &feed->err);
    if (feed->blamed != NULL) {
        memcpy(report->error.peer, feed->blamed, sizeof report->error.peer);
    }
}

/* ---- the owner's thread ---- */

static void stop_thread(heft__feed_t *feed)
{
    atomic_store(&feed->stop, true);
    if (feed->has_thread) {
        (void)pthread_join(feed->thread, NULL);
        feed->has_thread = false;
    }
}

/* At whose endpoint nobody listens any more: a process that has ended confirms no abort, and nobody
 * is to wait for that. */
static void tell_absent(heft_subscriber_t *sub)
{
    heft__feed_t *feed = sub->feed;
    const int64_t until_ns = heft__clock_mono_ns() + probe_ns;
    if (feed == NULL || feed->n_targets == 0) {
        return;
    }
    stop_thread(feed);
    char(*absent)[HEFT__ID_SIZE] = heft__calloc(feed->n_targets, sizeof *absent);
    uint32_t n = 0;
    for (uint32_t i = 0; absent != NULL && i < feed->n_targets; i++) {
        const target_t *target = &feed->targets[i];
        heft__remote_t *remote = NULL;
        if (target->endpoint != NULL &&
            heft__subscriber_attach(sub, target->endpoint, until_ns, NULL, &remote, NULL) ==
                HEFT_ERR_PEER) {
            memcpy(absent[n++], target->id, sizeof absent[0]);
        }
        heft__remote_close(remote);
    }
    heft__report_t *report = heft__member_lock(sub->member);
    heft__report_set_absent(report, absent, n);
    heft__member_unlock(sub->member, false);
}

void heft__subscriber_end_feed(heft_subscriber_t *sub)
{
    heft__feed_t *feed = sub->feed;
    if (feed == NULL) {
        return;
    }
    stop_thread(feed);
    (void)heft__member_lock(sub->member);
    sub->feed = NULL;
    heft__member_unlock(sub->member, false);
    for (uint32_t i = 0; feed->targets != NULL && i < feed->n_targets; i++) {
        heft__free(feed->targets[i].endpoint);
    }
    heft__free(feed->targets);
    heft__free(feed);
}

static void conclude(heft_subscriber_t *sub, heft_status_t status, heft__member_state_t state,
                     const heft_error_t *err)
{
    heft__member_conclude(sub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          state, err, NULL);
}

bool heft__subscriber_can_feed(const heft_subscriber_t *sub)
{
    const heft__roles_t *roles = &sub->work.roles;
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (roles->is_direct[i] && roles->is_recorded[i]) {
            return false;
        }
    }
    return sub->work.inputs.n == 0;
}

heft_status_t heft__subscriber_offer(heft_subscriber_t *sub, const heft__sources_t *sources,
                                     heft_error_t *err)
{
    return heft__subscriber_can_feed(sub) ? heft__sources_bind(sources, sub->member, err) : HEFT_OK;
}

static heft_status_t check_service(heft_subscriber_t *sub, const heft__order_t *order,
                                   heft_error_t *err)
{
    const int64_t version = heft_subscriber_get_version(sub);
    if (!heft_subscriber_is_serving(sub) || sub->work.plan == NULL || version != order->version) {
        return heft__error_set(
            err, HEFT_ERR_STATE, "it cannot feed version %lld: it %s version %lld",
            (long long)order->version,
            heft_subscriber_is_serving(sub) ? "serves" : "does not serve", (long long)version);
    }
    if (!heft__subscriber_can_feed(sub)) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "it cannot feed version %lld: its engine changes parameters itself",
                               (long long)version);
    }
    if (strcmp(sub->live_plan, sub->work.digest) != 0) {
        return heft__error_set(
            err, HEFT_ERR_STATE,
            "it cannot feed version %lld: it was planned for another source since",
            (long long)version);
    }
    return HEFT_OK;
}

static heft_status_t fetch_targets(heft_subscriber_t *sub, heft__feed_t *feed,
                                   const heft__order_t *order, heft_error_t *err)
{
    feed->targets = heft__calloc(order->n_peers > 0 ? order->n_peers : 1, sizeof *feed->targets);
    if (feed->targets == NULL) {
        return heft__error_nomem(err, order->n_peers * sizeof *feed->targets);
    }
    feed->n_targets = order->n_peers;
    for (uint32_t i = 0; i < order->n_peers; i++) {
        target_t *target = &feed->targets[i];
        size_t n = 0;
        memcpy(target->id, order->peers[i].id, sizeof target->id);
        heft_status_t status = heft__member_get_object(sub->member, order->peers[i].endpoint,
                                                       &target->endpoint, &n, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* The plan of those that are fed must be its own. */
static heft_status_t put_plans(heft_subscriber_t *sub, const heft__feed_t *feed,
                               char digest_out[HEFT__DIGEST_SIZE], heft_error_t *err)
{
    const uint32_t n = feed->n_targets;
    heft__plan_entry_t *entries = heft__calloc(n > 0 ? n : 1, sizeof *entries);
    char *text = NULL;
    if (entries == NULL) {
        return heft__error_nomem(err, n * sizeof *entries);
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(entries[i].member, feed->targets[i].id, sizeof entries[i].member);
        memcpy(entries[i].plan, sub->work.digest, sizeof entries[i].plan);
    }
    heft_status_t status = heft__plans_encode(entries, n, &text, err);
    if (status == HEFT_OK) {
        status = heft__member_put_object(sub->member, text, digest_out, err);
    }
    heft__free(text);
    heft__free(entries);
    return status;
}

static void do_preflight(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char plans[HEFT__DIGEST_SIZE] = "";
    heft__subscriber_end_feed(sub);
    heft__feed_t *feed = heft__calloc(1, sizeof *feed);
    heft_status_t status =
        feed != NULL ? check_service(sub, order, &err) : heft__error_nomem(&err, sizeof *feed);
    if (feed != NULL) {
        feed->sub = sub;
        feed->round = order->round;
        (void)heft__member_lock(sub->member);
        sub->feed = feed;
        heft__member_unlock(sub->member, false);
    }
    if (status == HEFT_OK) {
        status = fetch_targets(sub, feed, order, &err);
    }
    if (status == HEFT_OK) {
        status = put_plans(sub, feed, plans, &err);
    }
    heft__report_t *report = heft__member_lock(sub->member);
    heft__report_set_absent(report, NULL, 0);
    memcpy(report->plans, plans, sizeof report->plans);
    heft__member_unlock(sub->member, false);
    conclude(sub, status, HEFT__STATE_IDLE, &err);
}

static void do_prepare(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = check_service(sub, order, &err);
    if (status == HEFT_OK) {
        status = heft__subscriber_check_addresses(sub, &err);
    }
    heft__report_t *report = heft__member_lock(sub->member);
    memcpy(report->source_digest, report->live_digest, sizeof report->source_digest);
    heft__member_unlock(sub->member, false);
    conclude(sub, status, status == HEFT_OK ? HEFT__STATE_PREPARED : HEFT__STATE_IDLE, &err);
}

/* What the source said of this version: those that are fed compare what arrives with it. */
static heft_status_t put_digests(heft_subscriber_t *sub, char digest_out[HEFT__DIGEST_SIZE],
                                 heft_error_t *err)
{
    heft__digest_set_t set = { .params = sub->digests, .n_params = sub->n_params };
    char *text = NULL;
    memcpy(set.plan, sub->work.digest, sizeof set.plan);
    heft_status_t status = heft__digests_encode(&set, 1, &text, err);
    if (status == HEFT_OK) {
        status = heft__member_put_object(sub->member, text, digest_out, err);
    }
    heft__free(text);
    return status;
}

static void do_stage(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char digests[HEFT__DIGEST_SIZE] = "";
    heft__feed_t *feed = sub->feed;
    feed->deadline_mono_ns = heft__clock_mono_ns() + heft__order_left_ns(order, INT64_MAX / 4);
    heft_status_t status = put_digests(sub, digests, &err);
    heft__report_t *report = heft__member_lock(sub->member);
    memcpy(report->digests, digests, sizeof report->digests);
    report->state = HEFT__STATE_SENDING;
    heft__member_unlock(sub->member, false);
    if (status == HEFT_OK) {
        const int rc = pthread_create(&feed->thread, NULL, run, feed);
        feed->has_thread = rc == 0;
        if (rc != 0) {
            status = heft__error_set_sys(&err, HEFT_ERR_NOMEM, rc, "feeding thread");
        }
    }
    if (status != HEFT_OK) {
        conclude(sub, status, HEFT__STATE_PREPARED, &err);
    }
}

void heft__subscriber_feed(heft_subscriber_t *sub, const heft__order_t *order)
{
    switch (order->target) {
    case HEFT__PHASE_PREFLIGHT:
        do_preflight(sub, order);
        break;
    case HEFT__PHASE_PREPARE:
        do_prepare(sub, order);
        break;
    case HEFT__PHASE_STAGE:
        do_stage(sub, order);
        break;
    case HEFT__PHASE_VERIFY: /* who was fed compares */
        conclude(sub, HEFT_OK, HEFT__STATE_SENT, NULL);
        break;
    case HEFT__PHASE_ABORT:
        tell_absent(sub);
        heft__subscriber_end_feed(sub);
        conclude(sub, HEFT_OK, HEFT__STATE_IDLE, NULL);
        break;
    case HEFT__PHASE_RELEASE:
        heft__subscriber_end_feed(sub);
        conclude(sub, HEFT_OK, HEFT__STATE_IDLE, NULL);
        break;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PAUSE:
    case HEFT__PHASE_DECIDE:
    case HEFT__PHASE_FLIP:
    case HEFT__PHASE_RESUME:
    case HEFT__PHASE_LIVE:
    default:
        break; /* the gate lets none of these through, and none is ordered */
    }
}

bool heft__subscriber_is_feeder(const heft_subscriber_t *sub, const heft__order_t *order)
{
    return order->feeds ||
           (sub->feed != NULL && heft__round_id_equal(sub->feed->round, order->round));
}
