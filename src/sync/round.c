/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: the events, and what surrounds a round: membership, begin, recovery, restart. How a round
 * moves from phase to phase is in round_step.c.
 *
 * Every event ends in heft__round_advance, which looks only at facts kept in the members (the last
 * report of each), never at the event itself: so a lost, repeated or late message is no special
 * case.
 */
#include "sync/round_step.h"

#include <stdio.h>
#include <string.h>

/* Orders of different lives of a coordinator must not share a sequence number. */
#define ORDERS_PER_EPOCH (INT64_C(1) << 32)
#define EPOCHS_APART (INT64_C(1) << 20)

void heft__round_init(heft__round_t *round, const heft__round_config_t *config,
                      heft__round_member_t *members, uint32_t capacity, int64_t epoch, int64_t seq)
{
    memset(round, 0, sizeof *round);
    memset(members, 0, capacity * sizeof *members);
    round->config = *config;
    round->members = members;
    round->n_members = capacity;
    round->epoch = epoch;
    round->seq = seq;
    round->cause_slot = -1;
    round->deadline_ns = INT64_MAX;
    heft__wire_error_reset(&round->cause);
}

const char *heft__round_kind_text(heft__round_kind_t kind)
{
    static const char *const texts[] = { "sync", "preflight", "live", "feed" };
    return texts[kind];
}

const char *heft__poison_text(heft__poison_t poison)
{
    static const char *const texts[] = {
        "not poisoned",
        "a transfer to or from it may still be running",
        "it is paused and refused its flip",
        "it is not known whether it flipped",
        "its flip broke off: live memory is suspect",
        "it returned as a new process while it had to flip",
        "it is not known whether the decision is durable",
        "it reports a poisoned condition",
        "it waits to be refilled: push the committed version or a newer one",
    };
    return texts[poison];
}

const char *heft__poison_remedy(heft__poison_t poison)
{
    static const char *const texts[] = {
        "",
        "heft recover it fenced, or start it again and recover it restarted",
        "mend the cause, then heft recover it retry",
        "start it again, then heft recover it restarted",
        "start it again, then heft recover it restarted",
        "heft recover it restarted",
        "heft goes on writing it",
        "start it again, then heft recover it restarted; or heft recover it refill",
        "heft push",
    };
    return texts[poison];
}

static const char *state_name(heft__round_state_t state)
{
    static const char *const texts[] = {
        "passed",
        "preparing",
        "preparing",
        "staging",
        "staging",
        "staged",
        "deciding",
        "flipping",
        "flipping",
        "committed",
        "aborted",
        "unknown",
        "partially_committed",
    };
    return texts[state];
}

const char *heft__round_state_text(const heft__round_t *round)
{
    return state_name(round->state == HEFT__ROUND_IDLE ? round->outcome : round->state);
}

bool heft__round_is_busy(const heft__round_t *round)
{
    return round->state != HEFT__ROUND_IDLE;
}

void heft__round_ask_write(heft__round_t *round, bool wait)
{
    round->write_ticket++;
    if (wait) {
        round->wait_ticket = round->write_ticket;
    }
    round->todo |= HEFT__TODO_WRITE;
}

void heft__round_order(heft__round_t *round, heft__round_member_t *member, heft__phase_t target)
{
    round->n_orders++;
    member->order_seq = (round->epoch % EPOCHS_APART) * ORDERS_PER_EPOCH + round->n_orders;
    member->target = target;
    member->order_round = round->id;
    member->touched = true;
    round->todo |= HEFT__TODO_WAKE;
}

void heft__round_warn(heft__round_t *round, int32_t slot, const char *fmt, ...)
{
    const uint32_t i = round->n_warnings++;
    if (i < HEFT__ROUND_MAX_WARNINGS) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(round->warnings[i], sizeof round->warnings[i], fmt, args);
        va_end(args);
        round->warning_slots[i] = slot;
    }
}

void heft__round_set_epoch(heft__round_t *round, int64_t epoch)
{
    round->epoch = epoch;
    heft__round_ask_write(round, false);
}

/* ---- members ---- */

static void forget_reports(heft__round_member_t *m)
{
    m->report_seq = 0;
    m->report_order = 0;
    m->round = (heft__round_id_t){ 0, 0 };
    m->phase = HEFT__PHASE_NONE;
    m->result = HEFT__RESULT_NONE;
    m->state = HEFT__STATE_IDLE;
    m->condition = HEFT__CONDITION_OK;
    m->serving = false;
    m->live_version = 0;
    m->live_digest[0] = '\0';
    m->version = 0;
    m->movers = 0;
}

void heft__round_join(heft__round_t *round, uint32_t slot, heft__role_t role, uint32_t engine,
                      bool fresh, int64_t now_ns)
{
    heft__round_member_t *m = &round->members[slot];
    const bool was_there = m->used;
    if (!was_there) {
        memset(m, 0, sizeof *m);
    }
    m->used = true;
    m->registered = true;
    m->role = role;
    m->engine = engine;
    m->contact_ns = now_ns;
    m->gone = false;
    if (fresh) {
        heft__round_ask_write(round, false); /* a restart must know whom to wait for */
    }
    if (!fresh || !was_there) {
        return;
    }
    forget_reports(m);
    m->bound = false;
    m->excluded = false;
    m->order_seq = 0;
    m->target = HEFT__PHASE_NONE;
    m->reborn = true;
    if (heft__round_is_busy(round) && m->in_round && !m->lost) {
        m->lost = true;
        if (heft__round_acts(round, m)) {
            heft__round_fail_with(round, m, HEFT_ERR_PEER, "returned as a new process", now_ns);
        }
        heft__round_advance(round, now_ns);
    }
}

heft_status_t heft__round_leave(heft__round_t *round, uint32_t slot, heft_error_t *err)
{
    heft__round_member_t *m = &round->members[slot];
    if (heft__round_is_busy(round) && m->in_round && !m->lost) {
        return heft__error_set(err, HEFT_ERR_BUSY, "takes part in round %lld.%lld",
                               (long long)round->id.epoch, (long long)round->id.seq);
    }
    if (m->poison != HEFT__POISON_NONE && m->poison != HEFT__POISON_REFILL) {
        return heft__error_set(err, HEFT_ERR_POISONED, "is poisoned (%s): recover it first",
                               heft__poison_text(m->poison));
    }
    memset(m, 0, sizeof *m);
    heft__round_ask_write(round, false);
    return HEFT_OK;
}

void heft__round_bind(heft__round_t *round, uint32_t slot, bool changed, int64_t now_ns)
{
    heft__round_member_t *m = &round->members[slot];
    m->bound = true;
    m->contact_ns = now_ns;
    m->gone = false;
    /* later nothing can fail any more: who receives in place moves its buffer when it fences */
    if (changed && m->in_round && !m->lost && round->phase != HEFT__PHASE_MANIFEST &&
        heft__round_is_early(round)) {
        heft__round_fail_with(round, m, HEFT_ERR_STALE, "its manifest or endpoint changed", now_ns);
    }
    heft__round_advance(round, now_ns);
}

/* Before anything is staged nothing of a dead process can be in doubt: the round need not wait for
 * its contact time. Later its silence is judged as any other. */
void heft__round_gone(heft__round_t *round, uint32_t slot, int64_t now_ns)
{
    heft__round_member_t *m = &round->members[slot];
    m->gone = true;
    if (round->state == HEFT__ROUND_PREPARING && heft__round_acts(round, m) && !m->lost) {
        heft__round_fail_gone(round, m, now_ns);
    }
    heft__round_advance(round, now_ns);
}

/* ---- reports ---- */

static void take_report(heft__round_member_t *m, const heft__report_t *report, int64_t now_ns)
{
    m->registered = true;
    m->overdue = false;
    m->gone = false;
    m->contact_ns = now_ns;
    m->report_seq = report->sequence;
    m->report_order = report->order;
    m->round = report->round;
    m->phase = report->phase;
    m->result = report->result;
    m->state = report->state;
    m->condition = report->condition;
    m->serving = report->serving;
    m->live_version = report->live_version;
    memcpy(m->live_digest, report->live_digest, sizeof m->live_digest);
    m->version = report->version;
    m->movers = report->movers;
    memcpy(m->source_digest, report->source_digest, sizeof m->source_digest);
    if (m->excluded && heft__round_id_equal(report->round, m->order_round) &&
        report->phase == m->target && report->result == HEFT__RESULT_OK) {
        m->excluded = false;
    }
    if (m->condition != HEFT__CONDITION_OK && m->poison == HEFT__POISON_NONE) {
        m->poison = HEFT__POISON_CONDITION;
        m->reborn = false;
    }
}

/* Whose time is up while staging need not be the one that is late: a receiver waits for all of its
 * senders, and names none. */
static void blame(heft__round_t *round, const heft__round_member_t *m,
                  const heft__wire_error_t *error, int64_t now_ns)
{
    const bool waited =
        error->status == HEFT_ERR_TIMEOUT && error->peer[0] == '\0' && !heft__round_sends(m);
    const heft__round_member_t *late = waited ? heft__round_late_sender(round) : NULL;
    if (late != NULL) {
        heft__round_fail_late(round, late, now_ns);
    } else {
        heft__round_fail(round, (int32_t)(m - round->members), error, now_ns);
    }
}

/* A report of failure in the phase that the round is in. */
static void note_failure(heft__round_t *round, uint32_t slot, const heft__report_t *report,
                         int64_t now_ns)
{
    heft__round_member_t *m = &round->members[slot];
    if (!heft__round_is_busy(round) || !heft__round_acts(round, m) ||
        !heft__round_is_current(round, m)) {
        return;
    }
    if (heft__round_is_bad(m) && m->phase == round->phase) {
        /* a first refusal of the flip is retried and is no failure yet */
        const bool first =
            m->phase == HEFT__PHASE_FLIP && report->result == HEFT__RESULT_REFUSED && !m->retried;
        if (!first) {
            blame(round, m, &report->error, now_ns);
        }
    } else if (m->condition != HEFT__CONDITION_OK && m->poison != HEFT__POISON_REFILL &&
               round->kind != HEFT__KIND_LIVE) {
        heft__round_fail_with(round, m, HEFT_ERR_POISONED, heft__condition_text(m->condition),
                              now_ns);
    }
}

heft_status_t heft__round_report(heft__round_t *round, uint32_t slot, const heft__report_t *report,
                                 int64_t now_ns, heft_error_t *err)
{
    heft__round_member_t *m = &round->members[slot];
    if (report->sequence < m->report_seq) {
        return heft__error_set(err, HEFT_ERR_STALE, "report %lld is late: %lld has been seen",
                               (long long)report->sequence, (long long)m->report_seq);
    }
    take_report(m, report, now_ns);
    heft__round_find(round, m, now_ns);
    note_failure(round, slot, report, now_ns);
    heft__round_advance(round, now_ns);
    return HEFT_OK;
}

/* ---- begin ---- */

bool heft__round_is_poisoned(const heft__round_t *round, int32_t *slot_out, const char **why_out)
{
    *slot_out = -1;
    for (uint32_t i = 0; i < round->n_members; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (m->used && m->poison != HEFT__POISON_NONE && m->poison != HEFT__POISON_REFILL) {
            *slot_out = (int32_t)i;
            *why_out = heft__poison_text(m->poison);
            return true;
        }
    }
    if (round->state == HEFT__ROUND_UNKNOWN || round->state == HEFT__ROUND_PARTIAL) {
        *why_out = "the last round has no known outcome";
        return true;
    }
    return false;
}

static heft_status_t check_free(const heft__round_t *round, heft__round_kind_t kind,
                                heft_error_t *err)
{
    int32_t slot;
    const char *why;
    const bool poisoned = heft__round_is_poisoned(round, &slot, &why);
    const bool in_doubt =
        round->state == HEFT__ROUND_UNKNOWN || round->state == HEFT__ROUND_PARTIAL;
    if (in_doubt || (poisoned && kind != HEFT__KIND_LIVE && !heft__round_is_busy(round))) {
        return heft__error_set(err, HEFT_ERR_POISONED, "%s", why);
    }
    if (heft__round_is_busy(round)) {
        return heft__error_set(err, HEFT_ERR_BUSY, "round %lld.%lld is in flight (%s, %s)",
                               (long long)round->id.epoch, (long long)round->id.seq,
                               heft__round_state_text(round), heft__phase_text(round->phase));
    }
    return HEFT_OK;
}

/* A coordinator that lost its record takes the newest live version for the committed one. */
static void adopt_version(heft__round_t *round)
{
    for (uint32_t i = 0; i < round->n_members; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (m->used && m->role == HEFT__ROLE_DESTINATION && m->condition == HEFT__CONDITION_OK &&
            m->live_version > round->committed_version) {
            round->committed_version = m->live_version;
            memcpy(round->committed_digest, m->live_digest, sizeof m->live_digest);
        }
    }
}

static heft_status_t check_version(const heft__round_t *round, int64_t version, heft_error_t *err)
{
    if (version < 1) {
        return heft__error_set(err, HEFT_ERR_VERSION, "version_missing: versions start at 1");
    }
    if (version < round->committed_version) {
        return heft__error_set(err, HEFT_ERR_VERSION,
                               "version_regress: version %lld is older than the committed %lld",
                               (long long)version, (long long)round->committed_version);
    }
    return HEFT_OK;
}

static bool is_selected(const heft__round_request_t *request, uint32_t slot)
{
    for (uint32_t i = 0; i < request->n_slots; i++) {
        if (request->slots[i] == slot) {
            return true;
        }
    }
    return request->slots == NULL;
}

/* Who takes part, and who moves: computed without changing anything when a side is empty. */
static heft_status_t check_sides(const heft__round_t *round, const heft__round_request_t *request,
                                 heft_error_t *err)
{
    uint32_t n_sources = request->n_feeders;
    uint32_t n_destinations = 0;
    for (uint32_t i = 0; i < round->n_members; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (m->used && m->role == HEFT__ROLE_SOURCE) {
            n_sources += request->kind != HEFT__KIND_FEED;
        } else if (m->used && is_selected(request, i)) {
            n_destinations++;
        }
    }
    if (n_destinations == 0 || (n_sources == 0 && request->kind != HEFT__KIND_LIVE)) {
        return heft__error_set(
            err, HEFT_ERR_PROOF, "empty side: %u source%s, %u destination%s: no %s is registered",
            n_sources, n_sources == 1 ? "" : "s", n_destinations, n_destinations == 1 ? "" : "s",
            n_destinations == 0 ? "destination" : "source");
    }
    return HEFT_OK;
}

static bool is_feeder(const heft__round_request_t *request, uint32_t slot)
{
    for (uint32_t i = 0; i < request->n_feeders; i++) {
        if (request->feeders[i] == slot) {
            return true;
        }
    }
    return false;
}

static void freeze_members(heft__round_t *round, const heft__round_request_t *request)
{
    const bool has_sources = request->kind != HEFT__KIND_LIVE && request->kind != HEFT__KIND_FEED;
    for (uint32_t i = 0; i < round->n_members; i++) {
        heft__round_member_t *m = &round->members[i];
        const bool source = m->role == HEFT__ROLE_SOURCE;
        m->feeds = m->used && is_feeder(request, i);
        m->in_round = m->used && (m->feeds || (source ? has_sources : is_selected(request, i)));
        m->moves = m->in_round && !source && !m->feeds; /* until its report says: no need */
        m->relay = 0;
        m->touched = false;
        m->stage_ordered = false;
        m->lost = false;
        m->overdue = false;
        m->retried = false;
        m->in_vain = false;
        if (m->used && m->excluded && m->order_seq > 0) {
            /* its abort or release is still to be done: say it again, for its own round */
            const heft__round_id_t id = m->order_round;
            heft__round_order(round, m, m->target);
            m->order_round = id;
            m->touched = false;
        }
    }
}

heft_status_t heft__round_begin(heft__round_t *round, const heft__round_request_t *request,
                                int64_t now_ns, heft_error_t *err)
{
    heft_status_t status = check_free(round, request->kind, err);
    if (status == HEFT_OK && request->kind == HEFT__KIND_SYNC) {
        adopt_version(round);
        status = check_version(round, request->version, err);
    }
    if (status == HEFT_OK) {
        status = check_sides(round, request, err);
    }
    if (status == HEFT_OK && request->kind == HEFT__KIND_FEED) {
        status = heft__round_check_feed(round, request, now_ns, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    round->seq++;
    round->id = (heft__round_id_t){ round->epoch, round->seq };
    round->kind = request->kind;
    round->version = request->kind == HEFT__KIND_SYNC   ? request->version
                     : request->kind == HEFT__KIND_FEED ? round->committed_version
                                                        : 0;
    round->decision = HEFT__DECISION_NONE;
    round->pending = HEFT__DECISION_NONE;
    round->outcome = HEFT__ROUND_IDLE;
    round->source_digest[0] = '\0';
    round->senders_started = false;
    round->checking = false;
    round->started = false;
    round->canceled = false;
    round->maybe_written = false;
    round->departed = false;
    round->n_warnings = 0;
    round->cause_slot = -1;
    heft__wire_error_reset(&round->cause);
    memset(round->elapsed_ns, 0, sizeof round->elapsed_ns);
    round->paused_ns = 0;
    round->downtime_ns = 0;
    round->began_ns = now_ns;
    round->phase_began_ns = now_ns;
    for (int p = 0; p < HEFT__N_PHASES; p++) {
        round->limit_ns[p] =
            request->limit_ns[p] > 0 ? request->limit_ns[p] : round->config.limit_ns[p];
    }
    round->relays = request->relays && request->kind == HEFT__KIND_SYNC;
    freeze_members(round, request);
    heft__round_enter(round, HEFT__ROUND_STORING, HEFT__PHASE_NONE, now_ns);
    round->deadline_ns = now_ns + round->limit_ns[HEFT__PHASE_DECIDE];
    heft__round_ask_write(round, true);
    return HEFT_OK;
}

void heft__round_cancel(heft__round_t *round, int64_t now_ns)
{
    if (round->state == HEFT__ROUND_STORING) {
        round->canceled = true;
    } else if (heft__round_is_busy(round)) {
        const bool early = round->state == HEFT__ROUND_PREPARING ||
                           round->state == HEFT__ROUND_STAGING ||
                           round->state == HEFT__ROUND_STAGED;
        if (early) {
            heft__round_fail_with(round, NULL, HEFT_ERR_CANCELED, "canceled by the caller", now_ns);
            heft__round_advance(round, now_ns);
        }
    }
}

/* ---- recovery ---- */

static bool is_in_doubt(const heft__round_t *round)
{
    return round->state == HEFT__ROUND_UNKNOWN || round->state == HEFT__ROUND_PARTIAL;
}

/* May the one have written to the other's staging? */
static bool may_have_sent(const heft__round_t *round, const heft__round_member_t *sender,
                          const heft__round_member_t *dest)
{
    return heft__round_sends(sender) || dest->relay == HEFT__RELAY_UNKNOWN ||
           heft__round_get_relay(dest) == (uint32_t)(sender - round->members);
}

/* The old process of a source, or of a relay, is fenced when every receiver says so. */
static bool is_fenced_by_peers(const heft__round_t *round, const heft__round_member_t *sender)
{
    if (round->state != HEFT__ROUND_UNKNOWN || round->origin != HEFT__ROUND_STAGING) {
        return true;
    }
    EACH_MEMBER(round, m)
    {
        if (m != sender && !heft__round_sends(m) && !m->lost && may_have_sent(round, sender, m) &&
            !heft__round_dest_quiet(round, m)) {
            return false;
        }
    }
    return true;
}

static heft_status_t check_restarted(const heft__round_t *round, const heft__round_member_t *m,
                                     heft_error_t *err)
{
    if (!m->reborn) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "claim \"restarted\": no new incarnation has registered: start it "
                               "again first");
    }
    if (!is_fenced_by_peers(round, m)) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "claim \"restarted\": a destination has not confirmed that the old "
                               "process is fenced: recover that one first");
    }
    return HEFT_OK;
}

static heft_status_t check_fenced(const heft__round_t *round, const heft__round_member_t *m,
                                  heft_error_t *err)
{
    const bool stopped = heft__round_sends(m) ? heft__round_source_stopped(round, m)
                                              : heft__round_dest_quiet(round, m);
    if (m->poison != HEFT__POISON_TRANSFER || m->lost || !stopped) {
        return heft__error_set(
            err, HEFT_ERR_STATE,
            "claim \"fenced\": it has not confirmed that its transfers stopped (%s)",
            heft__poison_text(m->poison));
    }
    return HEFT_OK;
}

/* Staging is intact as long as it is the same process, still paused, and says nothing else; it
 * compares the digests again before it writes. */
static heft_status_t check_retry(const heft__round_t *round, const heft__round_member_t *m,
                                 heft_error_t *err)
{
    if (round->decision != HEFT__DECISION_COMMIT || round->origin != HEFT__ROUND_FLIPPING) {
        return heft__error_set(err, HEFT_ERR_STATE, "claim \"retry\": no commit stands");
    }
    if (m->poison != HEFT__POISON_REFUSED || m->lost || !heft__round_is_current(round, m) ||
        m->state != HEFT__STATE_PAUSED || m->condition != HEFT__CONDITION_OK || m->in_place) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "claim \"retry\": it is not paused with its staging intact (%s)",
                               heft__poison_text(m->poison));
    }
    return HEFT_OK;
}

/* Its old transfers are over, and it is there to be written anew. */
static heft_status_t check_refill(const heft__round_t *round, const heft__round_member_t *m,
                                  int64_t now_ns, heft_error_t *err)
{
    if (m->role != HEFT__ROLE_DESTINATION || (is_in_doubt(round) && m->feeds)) {
        return heft__error_set(err, HEFT_ERR_STATE, "claim \"refill\": it is a source%s",
                               m->feeds ? " of this round" : "");
    }
    if (!m->registered || !m->bound || now_ns - m->contact_ns > round->config.contact_ns) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "claim \"refill\": it is not in contact: restart it");
    }
    const bool open = m->poison == HEFT__POISON_SILENT || m->poison == HEFT__POISON_DECISION;
    const bool moving =
        m->poison == HEFT__POISON_TRANSFER && !m->lost && !heft__round_dest_quiet(round, m);
    if (open || moving) {
        return heft__error_set(err, HEFT_ERR_STATE, "claim \"refill\": %s",
                               heft__poison_text(m->poison));
    }
    return HEFT_OK;
}

static heft_status_t check_claim(const heft__round_t *round, const heft__round_member_t *m,
                                 heft__claim_t claim, int64_t now_ns, heft_error_t *err)
{
    switch (claim) {
    case HEFT__CLAIM_RESTARTED:
        return check_restarted(round, m, err);
    case HEFT__CLAIM_FENCED:
        return check_fenced(round, m, err);
    case HEFT__CLAIM_RETRY:
        return check_retry(round, m, err);
    case HEFT__CLAIM_REFILL:
        return check_refill(round, m, now_ns, err);
    case HEFT__CLAIM_REMOVED:
        break;
    }
    return HEFT_OK;
}

/* All poison is gone: leave the state in which the round was stuck. */
static void resolve(heft__round_t *round, int64_t now_ns)
{
    for (uint32_t i = 0; i < round->n_members; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (m->used && m->poison != HEFT__POISON_NONE && m->poison != HEFT__POISON_REFILL) {
            return;
        }
    }
    if (!is_in_doubt(round)) {
        return;
    }
    if (round->decision == HEFT__DECISION_COMMIT && round->origin == HEFT__ROUND_FLIPPING) {
        heft__round_commit(round, now_ns);
    } else if (round->origin == HEFT__ROUND_STAGING) {
        heft__round_abort(round, now_ns);
    } else if (round->origin == HEFT__ROUND_IDLE) {
        heft__round_end(round, HEFT__ROUND_ABORTED, now_ns); /* nobody is in it any more */
    }
}

/* Flip once more, in the state in which the round is stuck. */
static void retry(heft__round_t *round, heft__round_member_t *m, int64_t now_ns)
{
    m->overdue = false;
    m->poison = HEFT__POISON_SILENT; /* until it says how it went */
    round->deadline_ns = now_ns + round->limit_ns[HEFT__PHASE_FLIP];
    heft__round_order(round, m, HEFT__PHASE_FLIP);
}

static void clear_poison(heft__round_t *round, heft__round_member_t *m, heft__claim_t claim)
{
    const bool leaves = claim == HEFT__CLAIM_REMOVED || claim == HEFT__CLAIM_REFILL || m->lost;
    if (leaves && m->in_round && !heft__round_sends(m)) {
        round->departed = true;
    }
    m->poison = claim == HEFT__CLAIM_REFILL ? HEFT__POISON_REFILL : HEFT__POISON_NONE;
    if (claim == HEFT__CLAIM_REMOVED) {
        memset(m, 0, sizeof *m);
    } else if (m->lost) {
        m->in_round = false; /* the new process is no part of the old round */
    }
}

heft_status_t heft__round_recover(heft__round_t *round, uint32_t slot, heft__claim_t claim,
                                  int64_t now_ns, heft_error_t *err)
{
    heft__round_member_t *m = &round->members[slot];
    if (heft__round_is_busy(round) && !is_in_doubt(round)) {
        return heft__error_set(err, HEFT_ERR_BUSY, "round %lld.%lld is in flight",
                               (long long)round->id.epoch, (long long)round->id.seq);
    }
    if (m->poison == HEFT__POISON_NONE && claim != HEFT__CLAIM_REMOVED) {
        return heft__error_set(err, HEFT_ERR_STATE, "it is not poisoned");
    }
    heft_status_t status = check_claim(round, m, claim, now_ns, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (claim == HEFT__CLAIM_RETRY) {
        retry(round, m, now_ns);
    } else {
        clear_poison(round, m, claim);
        resolve(round, now_ns);
    }
    heft__round_advance(round, now_ns);
    heft__round_ask_write(round, false);
    return HEFT_OK;
}

void heft__round_restore(heft__round_t *round, bool in_doubt, int64_t now_ns)
{
    memcpy(round->limit_ns, round->config.limit_ns, sizeof round->limit_ns);
    round->started = true;
    round->began_ns = now_ns;
    round->phase_began_ns = now_ns;
    for (uint32_t i = 0; i < round->n_members; i++) {
        heft__round_member_t *m = &round->members[i];
        m->contact_ns = now_ns;
        m->touched = m->used && m->in_round;
        m->stage_ordered = m->touched && (heft__round_is_staged(m) || heft__round_sends(m));
        m->relay =
            round->relays && m->touched && heft__round_is_staged(m) ? HEFT__RELAY_UNKNOWN : 0;
        round->kind = m->touched && m->feeds ? HEFT__KIND_FEED : round->kind;
    }
    if (round->decision == HEFT__DECISION_COMMIT) {
        heft__round_flip(round, now_ns);
        return;
    }
    heft__wire_error_reset(&round->cause);
    round->cause.status = HEFT_ERR_PEER;
    (void)snprintf(round->cause.cause, sizeof round->cause.cause,
                   "the coordinator restarted before the decision");
    if (in_doubt) {
        round->origin = HEFT__ROUND_STAGING;
        heft__round_enter(round, HEFT__ROUND_UNKNOWN, HEFT__PHASE_STAGE, now_ns);
        round->deadline_ns = INT64_MAX;
    } else if (round->decision == HEFT__DECISION_REVOKE) {
        heft__round_abort(round, now_ns);
    } else {
        heft__round_enter(round, HEFT__ROUND_STAGING, HEFT__PHASE_STAGE, now_ns);
        heft__round_fail(round, -1, &round->cause, now_ns);
    }
}
