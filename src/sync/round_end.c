/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: resume, release, abort; the loop over all states; time.
 */
#include "sync/round_step.h"

#include <stdio.h>
#include <string.h>

/* ---- committed and aborted ---- */

/* Nothing more is to be expected of a member in resume, release or abort. */
static bool is_through(heft__round_t *round, heft__round_member_t *m)
{
    const bool ordered =
        m->target == round->phase && heft__round_id_equal(m->order_round, round->id);
    /* an abort is ordered to all once every transfer is known to have stopped */
    const bool is_gone = m->gone && (!m->stage_ordered || round->phase == HEFT__PHASE_ABORT);
    if (m->lost || m->overdue || !ordered || is_gone) {
        return true;
    }
    if (!heft__round_is_current(round, m) || m->phase != round->phase) {
        return false;
    }
    return m->result == HEFT__RESULT_OK || heft__round_is_bad(m);
}

static bool all_through(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_acts(round, m) && !is_through(round, m)) {
            return false;
        }
    }
    return true;
}

/* Members that did not confirm the last order of a round are kept out until they do. */
static void exclude_unconfirmed(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (!m->touched || m->lost) {
            continue;
        }
        if (!heft__round_is_done(round, m, round->phase)) {
            m->excluded = true;
            heft__round_warn(round, (int32_t)(m - round->members), "%s is not confirmed",
                             heft__phase_text(round->phase));
        } else if (round->phase == HEFT__PHASE_ABORT && m->state == HEFT__STATE_FLIPPED) {
            m->excluded = true;
            m->poison = HEFT__POISON_BROKEN;
            m->reborn = false;
            heft__round_warn(round, (int32_t)(m - round->members),
                             "it flipped in a round that was aborted");
        }
    }
}

/* Who is at the new version and does not serve it. */
static void warn_of_downtime(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        const int32_t slot = (int32_t)(m - round->members);
        const bool there = heft__round_is_moving(m) && !m->lost;
        if (there && m->target == HEFT__PHASE_RESUME &&
            !heft__round_is_done(round, m, HEFT__PHASE_RESUME) && !heft__round_is_bad(m)) {
            heft__round_warn(round, slot, "resume is not confirmed: the engine is down");
        } else if (there && m->target != HEFT__PHASE_RESUME) {
            heft__round_warn(round, slot,
                             "it stays out of service: not every rank of its engine is at this "
                             "version");
        }
        m->overdue = false;
    }
}

/* A destination that moved was left to be refilled: the version is decided, and not everywhere. */
static bool is_left_unfilled(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && m->poison == HEFT__POISON_REFILL) {
            return true;
        }
    }
    return false;
}

static bool step_committed(heft__round_t *round, int64_t now_ns)
{
    if (!all_through(round)) {
        return false;
    }
    if (round->phase == HEFT__PHASE_RESUME) {
        round->downtime_ns = round->paused_ns > 0 ? now_ns - round->paused_ns : 0;
        warn_of_downtime(round);
        heft__round_release(round, now_ns);
        return true;
    }
    exclude_unconfirmed(round);
    heft__round_end(round, is_left_unfilled(round) ? HEFT__ROUND_PARTIAL : HEFT__ROUND_COMMITTED,
                    now_ns);
    return true;
}

static bool step_aborted(heft__round_t *round, int64_t now_ns)
{
    if (!all_through(round)) {
        return false;
    }
    exclude_unconfirmed(round);
    heft__round_end(round, HEFT__ROUND_ABORTED, now_ns);
    return true;
}

/* ---- the loop ---- */

static bool step(heft__round_t *round, int64_t now_ns)
{
    switch (round->state) {
    case HEFT__ROUND_PREPARING:
        return heft__round_step_preparing(round, now_ns);
    case HEFT__ROUND_STAGING:
        return heft__round_step_staging(round, now_ns);
    case HEFT__ROUND_STOPPING:
        return heft__round_step_stopping(round, now_ns);
    case HEFT__ROUND_STAGED:
        return heft__round_step_staged(round, now_ns);
    case HEFT__ROUND_FLIPPING:
        return heft__round_step_flipping(round, now_ns);
    case HEFT__ROUND_UNKNOWN:
    case HEFT__ROUND_PARTIAL:
        return round->origin == HEFT__ROUND_FLIPPING ? heft__round_step_flipping(round, now_ns)
                                                     : heft__round_step_found(round, now_ns);
    case HEFT__ROUND_COMMITTED:
        return step_committed(round, now_ns);
    case HEFT__ROUND_ABORTED:
        return step_aborted(round, now_ns);
    case HEFT__ROUND_IDLE:
    case HEFT__ROUND_STORING:
    case HEFT__ROUND_DECIDING:
    case HEFT__ROUND_REVOKING:
        break; /* these wait for begin, or for a record */
    }
    return false;
}

void heft__round_advance(heft__round_t *round, int64_t now_ns)
{
    while (step(round, now_ns)) {
    }
}

/* ---- time ---- */

/* Before the decision, silence of a member fails the round. */
bool heft__round_is_early(const heft__round_t *round)
{
    return round->state == HEFT__ROUND_PREPARING || round->state == HEFT__ROUND_STAGING ||
           round->state == HEFT__ROUND_STAGED;
}

static bool is_watched(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool by_contact = heft__round_is_early(round) || round->state == HEFT__ROUND_STOPPING ||
                            round->state == HEFT__ROUND_FLIPPING ||
                            round->state == HEFT__ROUND_COMMITTED ||
                            round->state == HEFT__ROUND_ABORTED;
    return by_contact && heft__round_acts(round, m) && !m->lost && !m->overdue;
}

/* Since when it is silent. A source that slept and then begins a push may not have polled again
 * yet: for it the round counts. A destination that was lost before is not waited for. */
static int64_t silent_since(const heft__round_t *round, const heft__round_member_t *m)
{
    return m->role == HEFT__ROLE_SOURCE ? heft__max_i64(m->contact_ns, round->began_ns)
                                        : m->contact_ns;
}

/* No member of the round, of two or more, was heard lately: members in a round tell of themselves
 * several times in the contact time, so it may be the coordinator that nobody reaches. */
static bool hears_nobody(const heft__round_t *round, int64_t now_ns)
{
    uint32_t n = 0;
    EACH_MEMBER(round, m)
    {
        if (!m->used || !m->in_round || m->lost) {
            continue;
        }
        if (now_ns - m->contact_ns <= round->config.contact_ns / 2) {
            return false;
        }
        n++;
    }
    return n > 1;
}

static void check_contact(heft__round_t *round, int64_t now_ns)
{
    EACH_MEMBER(round, m)
    {
        if (!is_watched(round, m) || now_ns - silent_since(round, m) <= round->config.contact_ns) {
            continue;
        }
        m->overdue = true;
        if (heft__round_is_early(round)) {
            char text[120];
            (void)snprintf(text, sizeof text, "no contact for %g s%s",
                           (double)round->config.contact_ns / 1e9,
                           hears_nobody(round, now_ns)
                               ? ", nor with anybody else lately: is the coordinator cut off?"
                               : ": restart it, or take it out with heft remove");
            heft__round_fail_with(round, m, HEFT_ERR_PEER, text, now_ns);
            return;
        }
    }
}

static bool is_behind(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool behind = round->phase == HEFT__PHASE_MANIFEST
                            ? !heft__round_is_ready(m)
                            : !heft__round_is_done(round, m, round->phase);
    return heft__round_acts(round, m) && behind;
}

static const heft__round_member_t *first_behind(const heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (is_behind(round, m)) {
            return m;
        }
    }
    return NULL;
}

const heft__round_member_t *heft__round_late_sender(const heft__round_t *round)
{
    const heft__round_member_t *late = NULL;
    bool has_sent = false;
    EACH_MEMBER(round, m)
    {
        const bool sends = round->phase == HEFT__PHASE_STAGE && heft__round_sends(m);
        late = sends && late == NULL && is_behind(round, m) ? m : late;
        has_sent = has_sent || (sends && !is_behind(round, m));
    }
    return has_sent ? late : NULL;
}

void heft__round_fail_late(heft__round_t *round, const heft__round_member_t *m, int64_t now_ns)
{
    char text[120];
    (void)snprintf(text, sizeof text, "%s took longer than %lld ms", heft__phase_text(round->phase),
                   (long long)(round->limit_ns[round->phase] / 1000000));
    heft__round_fail_with(round, m, HEFT_ERR_TIMEOUT, text, now_ns);
}

static void phase_deadline(heft__round_t *round, int64_t now_ns)
{
    const heft__round_member_t *late = NULL;
    switch (round->state) {
    case HEFT__ROUND_PREPARING:
    case HEFT__ROUND_STAGING:
    case HEFT__ROUND_STAGED:
        late = heft__round_late_sender(round);
        heft__round_fail_late(round, late != NULL ? late : first_behind(round), now_ns);
        break;
    case HEFT__ROUND_STOPPING:
        heft__round_doubt_transfers(round, now_ns);
        break;
    case HEFT__ROUND_FLIPPING:
    case HEFT__ROUND_COMMITTED:
    case HEFT__ROUND_ABORTED:
        round->deadline_ns = INT64_MAX;
        EACH_MEMBER(round, m)
        {
            m->overdue = heft__round_acts(round, m);
        }
        break;
    case HEFT__ROUND_STORING:
        round->canceled = true; /* once the record is written after all, the round aborts */
        round->deadline_ns = INT64_MAX;
        break;
    case HEFT__ROUND_DECIDING:
    case HEFT__ROUND_REVOKING:
        /* the writer's answer still counts, whenever it comes */
        heft__round_doubt_decision(round, "the decision was not written within its deadline",
                                   now_ns);
        break;
    case HEFT__ROUND_UNKNOWN:
    case HEFT__ROUND_PARTIAL:
        round->deadline_ns = INT64_MAX;
        if (round->pending != HEFT__DECISION_NONE) {
            heft__round_ask_write(round, true);
        }
        EACH_MEMBER(round, m) /* a retried flip of which nothing was heard */
        {
            m->overdue = m->overdue || heft__round_acts(round, m);
        }
        break;
    case HEFT__ROUND_IDLE:
        break;
    }
}

void heft__round_tick(heft__round_t *round, int64_t now_ns)
{
    check_contact(round, now_ns);
    if (now_ns >= round->deadline_ns) {
        phase_deadline(round, now_ns);
    }
    heft__round_advance(round, now_ns);
}

int64_t heft__round_next_tick(const heft__round_t *round)
{
    int64_t next = round->deadline_ns;
    EACH_MEMBER(round, m)
    {
        if (is_watched(round, m)) {
            next = heft__min_i64(next, silent_since(round, m) + round->config.contact_ns + 1);
        }
    }
    return next;
}
