/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: how it moves from phase to phase.
 *
 * heft__round_advance looks at the facts (last report of each member, written records, what time it
 * was told) and repeats until nothing moves. Failure before the decision leads to ABORTED, through
 * STOPPING where a transfer may be running: sources are told first to stop; where one of them gives
 * no answer, destinations are told to fence, which is safe by itself: they shut the writer out and
 * say so, or say that they could not. The round is aborted only when every pair (source,
 * destination) is known to have stopped, from either end. After the decision a round only goes
 * forward, except through a durable revoke.
 */
#include "sync/round_step.h"

#include <stdio.h>
#include <string.h>

/* ---- facts ---- */

bool heft__round_is_current(const heft__round_t *round, const heft__round_member_t *m)
{
    return !m->lost && m->registered && heft__round_id_equal(m->round, round->id);
}

bool heft__round_sends(const heft__round_member_t *m)
{
    return m->role == HEFT__ROLE_SOURCE || m->feeds;
}

bool heft__round_is_moving(const heft__round_member_t *m)
{
    return m->role == HEFT__ROLE_DESTINATION && m->moves;
}

bool heft__round_is_staged(const heft__round_member_t *m)
{
    return heft__round_is_moving(m) && !m->in_place;
}

bool heft__round_has_in_place(const heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && m->in_place) {
            return true;
        }
    }
    return false;
}

bool heft__round_acts(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool source = heft__round_sends(m);
    if (!m->used || !m->in_round) {
        return false;
    }
    switch (round->phase) {
    case HEFT__PHASE_MANIFEST:
        return true;
    case HEFT__PHASE_PREPARE:
        return source;
    case HEFT__PHASE_PREFLIGHT:
        return source || heft__round_is_moving(m);
    case HEFT__PHASE_STAGE:
    case HEFT__PHASE_VERIFY: /* a source: that its bytes are still those that it prepared */
        return source || heft__round_is_staged(m);
    case HEFT__PHASE_FLIP:
        return heft__round_is_moving(m) || (source && heft__round_has_in_place(round));
    case HEFT__PHASE_PAUSE:
    case HEFT__PHASE_RESUME:
    case HEFT__PHASE_LIVE:
        return heft__round_is_moving(m);
    case HEFT__PHASE_RELEASE:
    case HEFT__PHASE_ABORT:
        return m->touched;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_DECIDE:
        break;
    }
    return false;
}

bool heft__round_is_done(const heft__round_t *round, const heft__round_member_t *m,
                         heft__phase_t phase)
{
    return heft__round_is_current(round, m) && m->phase == phase && m->result == HEFT__RESULT_OK;
}

bool heft__round_is_bad(const heft__round_member_t *m)
{
    const bool bad = m->result == HEFT__RESULT_REFUSED || m->result == HEFT__RESULT_FAILED ||
                     m->result == HEFT__RESULT_UNKNOWN;
    return bad && m->report_order == m->order_seq;
}

bool heft__round_all_done(const heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_acts(round, m) && !heft__round_is_done(round, m, round->phase)) {
            return false;
        }
    }
    return true;
}

/* It says itself that nothing of its transfers is running. */
static bool has_stopped(const heft__round_t *round, const heft__round_member_t *m)
{
    if (!heft__round_is_current(round, m)) {
        return false;
    }
    switch (m->phase) {
    case HEFT__PHASE_STAGE:
        return m->result == HEFT__RESULT_OK || m->result == HEFT__RESULT_FAILED ||
               m->result == HEFT__RESULT_REFUSED;
    case HEFT__PHASE_ABORT:
        return m->result == HEFT__RESULT_OK;
    case HEFT__PHASE_VERIFY:
    case HEFT__PHASE_PAUSE:
    case HEFT__PHASE_FLIP:
    case HEFT__PHASE_RESUME:
    case HEFT__PHASE_RELEASE:
        return true; /* taken up only after staging was complete */
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PREFLIGHT:
    case HEFT__PHASE_PREPARE:
    case HEFT__PHASE_DECIDE:
    case HEFT__PHASE_LIVE:
        break; /* it may take up its stage order at any time */
    }
    return false;
}

bool heft__round_source_stopped(const heft__round_t *round, const heft__round_member_t *source)
{
    return !source->stage_ordered || has_stopped(round, source);
}

bool heft__round_dest_quiet(const heft__round_t *round, const heft__round_member_t *dest)
{
    return !dest->stage_ordered || has_stopped(round, dest);
}

/* One that another destination may forward to: that one has stopped, or it has itself shut it out.
 */
static bool is_shut_off(const heft__round_t *round, const heft__round_member_t *m)
{
    const uint32_t relay = heft__round_get_relay(m);
    return heft__round_dest_quiet(round, m) ||
           (relay != UINT32_MAX && heft__round_dest_quiet(round, &round->members[relay]));
}

/*
 * No pair (source, destination) can still be transferring, nor one (relay, destination). The word
 * of the source is waited for as long as it can be expected; of a source that is lost, silent or
 * has lost track itself (last_resort: of any), the destinations' word is taken.
 */
static bool all_stopped(const heft__round_t *round, bool last_resort)
{
    bool sources = true;
    bool wait = false;
    bool destinations = true;
    bool forwarded = true;
    EACH_MEMBER(round, m)
    {
        forwarded = forwarded && (m->relay == 0 || is_shut_off(round, m));
        if (heft__round_sends(m)) {
            const bool stopped = heft__round_source_stopped(round, m);
            const bool gone = m->lost || m->overdue || m->result == HEFT__RESULT_UNKNOWN;
            sources = sources && stopped;
            wait = wait || (!stopped && !gone);
        } else if (m->relay == 0) {
            destinations = destinations && heft__round_dest_quiet(round, m);
        }
    }
    return forwarded && (sources || (destinations && (last_resort || !wait)));
}

/* ---- transitions ---- */

void heft__round_enter(heft__round_t *round, heft__round_state_t state, heft__phase_t phase,
                       int64_t now_ns)
{
    round->elapsed_ns[round->phase] += now_ns - round->phase_began_ns;
    round->phase_began_ns = now_ns;
    round->state = state;
    round->phase = phase;
    round->checking = false;
    round->deadline_ns = now_ns + round->limit_ns[phase];
}

void heft__round_order_all(heft__round_t *round, heft__phase_t target)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_acts(round, m) && !m->lost) {
            heft__round_order(round, m, target);
        }
    }
}

void heft__round_end(heft__round_t *round, heft__round_state_t outcome, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_IDLE, HEFT__PHASE_NONE, now_ns);
    round->outcome = outcome;
    round->deadline_ns = INT64_MAX;
    round->total_ns = now_ns - round->began_ns;
    round->todo |= HEFT__TODO_ENDED;
    heft__round_ask_write(round, false);
}

void heft__round_doubt(heft__round_t *round, heft__round_state_t state, heft__round_state_t origin,
                       int64_t now_ns)
{
    heft__round_enter(round, state, round->phase, now_ns);
    round->origin = origin;
    round->deadline_ns = INT64_MAX;
    round->total_ns = now_ns - round->began_ns;
    round->todo |= HEFT__TODO_ENDED;
    heft__round_ask_write(round, false);
}

void heft__round_abort(heft__round_t *round, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_ABORTED, HEFT__PHASE_ABORT, now_ns);
    EACH_MEMBER(round, m)
    {
        const bool told =
            m->target == HEFT__PHASE_ABORT && heft__round_id_equal(m->order_round, round->id);
        m->overdue = false;
        if (m->touched && !m->lost && !told) {
            heft__round_order(round, m, HEFT__PHASE_ABORT);
        }
    }
}

static void stop_transfers(heft__round_t *round, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_STOPPING, HEFT__PHASE_ABORT, now_ns);
    round->fencing = false;
    EACH_MEMBER(round, m)
    {
        const bool lost_track = heft__round_is_current(round, m) && m->phase == HEFT__PHASE_STAGE &&
                                m->result == HEFT__RESULT_UNKNOWN;
        if (heft__round_sends(m) && m->touched && !m->lost && !lost_track) {
            heft__round_order(round, m, HEFT__PHASE_ABORT);
        }
    }
}

void heft__round_fail(heft__round_t *round, int32_t slot, const heft__wire_error_t *cause,
                      int64_t now_ns)
{
    const bool late = round->state == HEFT__ROUND_COMMITTED || round->state == HEFT__ROUND_ABORTED;
    if (late) {
        heft__round_warn(round, slot, "%s: %s", heft__phase_text(round->phase), cause->cause);
    } else if (round->cause.status == HEFT_OK) {
        round->cause = *cause;
        round->cause_slot = slot;
    }
    if (round->state == HEFT__ROUND_PREPARING || round->state == HEFT__ROUND_STAGED) {
        heft__round_abort(round, now_ns);
    } else if (round->state == HEFT__ROUND_STAGING) {
        stop_transfers(round, now_ns);
    }
}

void heft__round_fail_with(heft__round_t *round, const heft__round_member_t *m,
                           heft_status_t status, const char *text, int64_t now_ns)
{
    heft__wire_error_t cause;
    heft__wire_error_reset(&cause);
    cause.status = status;
    cause.phase = round->phase;
    (void)snprintf(cause.cause, sizeof cause.cause, "%s", text);
    heft__round_fail(round, m == NULL ? -1 : (int32_t)(m - round->members), &cause, now_ns);
}

void heft__round_fail_gone(heft__round_t *round, const heft__round_member_t *m, int64_t now_ns)
{
    heft__round_fail_with(round, m, HEFT_ERR_PEER,
                          "its process has ended: start it again, or take it out with heft remove",
                          now_ns);
}

/* ---- preparing ---- */

static bool has_movers(const heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m)) {
            return true;
        }
    }
    return false;
}

/* Bound, and through with earlier rounds; of a source that has come back only its report tells. */
bool heft__round_is_ready(const heft__round_member_t *m)
{
    const bool has_told = m->report_seq > 0 || m->role != HEFT__ROLE_SOURCE;
    return m->registered && m->bound && has_told && !m->excluded && m->state == HEFT__STATE_IDLE;
}

/* A sender that came back after a round that was found without it: that one is over. */
static void let_go_of_old_round(heft__round_t *round, heft__round_member_t *m)
{
    const bool sends = m->role == HEFT__ROLE_SOURCE || m->state >= HEFT__STATE_PREPARED;
    const bool is_in_another = sends && m->registered && !m->excluded &&
                               m->state != HEFT__STATE_IDLE &&
                               !heft__round_id_equal(m->round, round->id);
    const bool is_told =
        m->target == HEFT__PHASE_ABORT && heft__round_id_equal(m->order_round, m->round);
    if (is_in_another && !is_told) {
        heft__round_order(round, m, HEFT__PHASE_ABORT);
        m->order_round = m->round;
        m->touched = false;
    }
}

static void begin_preflight(heft__round_t *round, int64_t now_ns)
{
    if (round->kind == HEFT__KIND_SYNC && round->version == round->committed_version) {
        EACH_MEMBER(round, m)
        {
            /* a catch-up moves what is behind, and what is not serving */
            m->moves = m->role == HEFT__ROLE_DESTINATION &&
                       !(m->live_version == round->version && m->serving);
        }
    }
    if (round->kind == HEFT__KIND_LIVE) {
        EACH_MEMBER(round, m)
        {
            m->moves = m->live_version > 0; /* nothing is live in the others yet */
        }
    }
    /* also with nobody to move: the sources see whether ranks are missing */
    const heft__phase_t next =
        round->kind == HEFT__KIND_LIVE ? HEFT__PHASE_LIVE : HEFT__PHASE_PREFLIGHT;
    heft__round_enter(round, HEFT__ROUND_PREPARING, next, now_ns);
    heft__round_order_all(round, next);
}

static bool step_manifest(heft__round_t *round, int64_t now_ns)
{
    EACH_MEMBER(round, m)
    {
        let_go_of_old_round(round, m);
    }
    EACH_MEMBER(round, m)
    {
        if (m->gone) {
            heft__round_fail_gone(round, m, now_ns);
            return true;
        }
    }
    EACH_MEMBER(round, m)
    {
        if (!heft__round_is_ready(m)) {
            return false;
        }
    }
    if (round->kind == HEFT__KIND_SYNC || round->kind == HEFT__KIND_PREFLIGHT) {
        round->checking = true; /* what they hold, before anyone plans for it */
        round->todo |= HEFT__TODO_CHECK_SOURCES;
        return false;
    }
    begin_preflight(round, now_ns);
    return true;
}

void heft__round_sources_checked(heft__round_t *round, int32_t slot,
                                 const heft__wire_error_t *cause, int64_t now_ns)
{
    if (round->state != HEFT__ROUND_PREPARING || round->phase != HEFT__PHASE_MANIFEST ||
        !round->checking) {
        return; /* it has failed meanwhile */
    }
    if (cause != NULL) {
        heft__round_fail(round, slot, cause, now_ns);
    } else {
        begin_preflight(round, now_ns);
    }
    heft__round_advance(round, now_ns);
}

bool heft__round_step_preparing(heft__round_t *round, int64_t now_ns)
{
    if (round->phase == HEFT__PHASE_MANIFEST) {
        return !round->checking && step_manifest(round, now_ns);
    }
    if (round->checking || !heft__round_all_done(round)) {
        return false;
    }
    if (round->phase == HEFT__PHASE_LIVE) {
        heft__round_end(round, HEFT__ROUND_IDLE, now_ns);
        return true;
    }
    round->checking = true;
    round->todo |=
        round->phase == HEFT__PHASE_PREFLIGHT ? HEFT__TODO_CHECK_PLANS : HEFT__TODO_CHECK_DIGEST;
    return false;
}

void heft__round_start(heft__round_t *round, int64_t now_ns)
{
    round->started = true;
    heft__round_enter(round, HEFT__ROUND_PREPARING, HEFT__PHASE_MANIFEST, now_ns);
    EACH_MEMBER(round, m)
    {
        m->lost = false; /* it came back before it was given any order: take it as it is now */
    }
    if (round->canceled) {
        heft__round_fail_with(round, NULL, HEFT_ERR_CANCELED, "canceled by the caller", now_ns);
    }
}

void heft__round_plans_checked(heft__round_t *round, int32_t slot, const heft__wire_error_t *cause,
                               int64_t now_ns)
{
    if (round->state != HEFT__ROUND_PREPARING || !round->checking) {
        return; /* it has failed meanwhile */
    }
    if (cause != NULL) {
        heft__round_fail(round, slot, cause, now_ns);
    } else if (round->phase != HEFT__PHASE_PREFLIGHT) {
        return;
    } else if (round->kind == HEFT__KIND_PREFLIGHT) {
        heft__round_end(round, HEFT__ROUND_IDLE, now_ns);
    } else {
        heft__round_enter(round, HEFT__ROUND_PREPARING, HEFT__PHASE_PREPARE, now_ns);
        heft__round_order_all(round, HEFT__PHASE_PREPARE);
    }
    heft__round_advance(round, now_ns);
}

void heft__round_release(heft__round_t *round, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_COMMITTED, HEFT__PHASE_RELEASE, now_ns);
    heft__round_order_all(round, HEFT__PHASE_RELEASE);
}

static void begin_pause(heft__round_t *round, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_STAGED, HEFT__PHASE_PAUSE, now_ns);
    round->paused_ns = now_ns;
    heft__round_order_all(round, HEFT__PHASE_PAUSE);
}

static bool has_staged(const heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_staged(m)) {
            return true;
        }
    }
    return false;
}

static void begin_staging(heft__round_t *round, int64_t now_ns)
{
    if (!has_staged(round)) { /* all of them receive inside the flip */
        begin_pause(round, now_ns);
        return;
    }
    heft__round_enter(round, HEFT__ROUND_STAGING, HEFT__PHASE_STAGE, now_ns);
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_staged(m) && !m->lost) {
            m->stage_ordered = true;
            heft__round_order(round, m, HEFT__PHASE_STAGE);
        }
    }
}

void heft__round_prepared(heft__round_t *round, const char *digest, int64_t now_ns)
{
    if (round->state != HEFT__ROUND_PREPARING || !round->checking ||
        round->phase != HEFT__PHASE_PREPARE) {
        return;
    }
    (void)snprintf(round->source_digest, sizeof round->source_digest, "%s", digest);
    if (round->version == round->committed_version &&
        strcmp(round->source_digest, round->committed_digest) != 0) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "version_conflict: version %lld is committed with other bytes (source "
                       "digest %.16s..., not %.16s...): push these as a newer version",
                       (long long)round->version, round->committed_digest, digest);
        heft__round_fail_with(round, NULL, HEFT_ERR_VERSION, text, now_ns);
    } else if (!has_movers(round)) {
        heft__round_release(round, now_ns);
    } else {
        begin_staging(round, now_ns);
    }
    heft__round_advance(round, now_ns);
}

/* ---- staging ---- */

/* Senders start when every receiver has said that it is armed. */
static bool step_senders(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_staged(m) &&
            !(heft__round_is_current(round, m) && m->phase == HEFT__PHASE_STAGE &&
              (m->state == HEFT__STATE_STAGING || m->state == HEFT__STATE_STAGED))) {
            return false;
        }
    }
    round->senders_started = true;
    EACH_MEMBER(round, m)
    {
        if (heft__round_sends(m)) {
            m->stage_ordered = true;
            heft__round_order(round, m, HEFT__PHASE_STAGE);
        }
    }
    return true;
}

bool heft__round_step_staging(heft__round_t *round, int64_t now_ns)
{
    if (round->phase == HEFT__PHASE_STAGE && !round->senders_started) {
        return step_senders(round);
    }
    if (!heft__round_all_done(round)) {
        return false;
    }
    if (round->phase == HEFT__PHASE_STAGE) {
        heft__round_enter(round, HEFT__ROUND_STAGING, HEFT__PHASE_VERIFY, now_ns);
        heft__round_order_all(round, HEFT__PHASE_VERIFY);
    } else {
        begin_pause(round, now_ns);
    }
    return true;
}

/* The receivers shut out whoever may still be writing, and confirm it. */
static void order_fences(heft__round_t *round, int64_t now_ns)
{
    round->fencing = true;
    round->deadline_ns = now_ns + round->limit_ns[HEFT__PHASE_ABORT];
    EACH_MEMBER(round, m)
    {
        if (!heft__round_sends(m) && !m->lost && !heft__round_dest_quiet(round, m)) {
            heft__round_order(round, m, HEFT__PHASE_ABORT);
        }
    }
}

/* A member that has not stopped, and from which no word is to be expected. */
static bool is_given_up(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool lost_track = heft__round_is_current(round, m) && m->result == HEFT__RESULT_UNKNOWN;
    return m->lost || m->overdue || lost_track;
}

/* Is there one on this side that may still speak? */
static bool may_speak(const heft__round_t *round, bool senders)
{
    EACH_MEMBER(round, m)
    {
        const bool stopped =
            senders ? heft__round_source_stopped(round, m) : heft__round_dest_quiet(round, m);
        if (heft__round_sends(m) == senders && !stopped && !is_given_up(round, m)) {
            return true;
        }
    }
    return false;
}

bool heft__round_step_stopping(heft__round_t *round, int64_t now_ns)
{
    if (all_stopped(round, round->fencing)) {
        heft__round_abort(round, now_ns);
        return true;
    }
    if (may_speak(round, true)) {
        return false;
    }
    if (!round->fencing) {
        order_fences(round, now_ns);
        return true;
    }
    if (!may_speak(round, false)) {
        heft__round_doubt_transfers(round, now_ns);
        return true;
    }
    return false;
}

void heft__round_doubt_transfers(heft__round_t *round, int64_t now_ns)
{
    if (all_stopped(round, true)) {
        heft__round_abort(round, now_ns);
        return;
    }
    if (!round->fencing) {
        order_fences(round, now_ns);
        return;
    }
    EACH_MEMBER(round, m)
    {
        const bool stopped = heft__round_sends(m) ? heft__round_source_stopped(round, m)
                                                  : heft__round_dest_quiet(round, m);
        if (!stopped) {
            m->poison = HEFT__POISON_TRANSFER;
            m->reborn = m->lost;
        }
    }
    heft__round_doubt(round, HEFT__ROUND_UNKNOWN, HEFT__ROUND_STAGING, now_ns);
}
