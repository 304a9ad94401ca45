/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: pause, decision and flip.
 *
 * The vote is "paused, with the new version staged and verified". The commit is durable before the
 * first flip is ordered; a revoke only when every destination has refused its flip twice, so that
 * none can flip any more. What did not flip stays paused: a fleet that is split loses capacity, and
 * never serves two versions.
 */
#include "sync/round_step.h"

#include <stdio.h>
#include <string.h>

/* ---- pause and decision ---- */

/* A destination that is left out and serves another version; NULL: none. */
static const heft__round_member_t *find_other_version(const heft__round_t *round)
{
    for (uint32_t i = 0; i < round->n_members && round->kind != HEFT__KIND_FEED; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (m->used && m->role == HEFT__ROLE_DESTINATION && !m->moves &&
            (m->serving || !m->registered) && m->live_version != round->version) {
            return m;
        }
    }
    return NULL;
}

bool heft__round_step_staged(heft__round_t *round, int64_t now_ns)
{
    if (!heft__round_all_done(round)) {
        return false;
    }
    const heft__round_member_t *other = find_other_version(round);
    if (other != NULL) {
        char text[120];
        (void)snprintf(text, sizeof text, "takes no part and still serves version %lld",
                       (long long)other->live_version);
        heft__round_fail_with(round, other, HEFT_ERR_STATE, text, now_ns);
        return true;
    }
    heft__round_enter(round, HEFT__ROUND_DECIDING, HEFT__PHASE_DECIDE, now_ns);
    round->pending = HEFT__DECISION_COMMIT;
    heft__round_ask_write(round, true);
    return true;
}

void heft__round_doubt_decision(heft__round_t *round, const char *why, int64_t now_ns)
{
    const bool revoking = round->pending == HEFT__DECISION_REVOKE;
    heft__round_fail_with(round, NULL, HEFT_ERR_IO, why, now_ns);
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && m->poison == HEFT__POISON_NONE) {
            m->poison = revoking ? HEFT__POISON_REFUSED : HEFT__POISON_DECISION;
            m->reborn = m->lost;
        }
    }
    heft__round_doubt(round, HEFT__ROUND_UNKNOWN,
                      revoking ? HEFT__ROUND_REVOKING : HEFT__ROUND_DECIDING, now_ns);
}

static void forget_doubt(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (m->poison == HEFT__POISON_DECISION) {
            m->poison = HEFT__POISON_NONE;
        }
    }
}

/* The decision was not written, or may have been. Only a commit that surely was not lets the round
 * abort; anything else keeps trying to write what was meant, for no other way is safe. */
static void undecided(heft__round_t *round, heft__written_t outcome, int64_t now_ns)
{
    static const char why[] = "the decision cannot be written to the state file";
    if (outcome == HEFT__WRITTEN_MAYBE) {
        round->maybe_written = true;
    }
    if (round->pending == HEFT__DECISION_COMMIT && !round->maybe_written) {
        round->pending = HEFT__DECISION_NONE;
        forget_doubt(round);
        round->state = HEFT__ROUND_STAGED;
        heft__round_fail_with(round, NULL, HEFT_ERR_IO, why, now_ns);
        return;
    }
    if (round->state != HEFT__ROUND_UNKNOWN) {
        heft__round_doubt_decision(round, why, now_ns);
        round->wait_ticket = round->write_ticket; /* the record it asked for counts already */
    }
    round->deadline_ns = now_ns + round->limit_ns[HEFT__PHASE_DECIDE]; /* and then again */
}

/* Order the flips. Those that receive inside of it get the time of a stage as well; their sources
 * start when they are armed. */
void heft__round_flip(heft__round_t *round, int64_t now_ns)
{
    heft__round_enter(round, HEFT__ROUND_FLIPPING, HEFT__PHASE_FLIP, now_ns);
    round->senders_started = !heft__round_has_in_place(round);
    if (!round->senders_started) {
        round->deadline_ns += round->limit_ns[HEFT__PHASE_STAGE];
    }
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && !m->lost) {
            heft__round_order(round, m, HEFT__PHASE_FLIP);
        }
    }
}

static void decided_commit(heft__round_t *round, int64_t now_ns)
{
    round->decision = HEFT__DECISION_COMMIT;
    round->pending = HEFT__DECISION_NONE;
    round->before_version = round->committed_version;
    memcpy(round->before_digest, round->committed_digest, sizeof round->before_digest);
    round->committed_version = round->version;
    memcpy(round->committed_digest, round->source_digest, sizeof round->committed_digest);
    forget_doubt(round);
    heft__round_flip(round, now_ns);
}

static void decided_revoke(heft__round_t *round, int64_t now_ns)
{
    round->decision = HEFT__DECISION_REVOKE;
    round->pending = HEFT__DECISION_NONE;
    round->committed_version = round->before_version;
    memcpy(round->committed_digest, round->before_digest, sizeof round->committed_digest);
    EACH_MEMBER(round, m)
    {
        m->poison = m->condition == HEFT__CONDITION_OK ? HEFT__POISON_NONE : m->poison;
    }
    heft__round_abort(round, now_ns);
}

void heft__round_written(heft__round_t *round, int64_t ticket, heft__written_t outcome,
                         int64_t now_ns)
{
    if (round->wait_ticket == 0 || ticket < round->wait_ticket) {
        if (outcome != HEFT__WRITTEN_OK) {
            heft__round_warn(round, -1, "the coordinator's state file cannot be written");
        }
        return;
    }
    round->wait_ticket = 0;
    if (round->state == HEFT__ROUND_STORING) {
        if (outcome == HEFT__WRITTEN_OK) {
            heft__round_start(round, now_ns);
        } else {
            heft__round_fail_with(round, NULL, HEFT_ERR_IO,
                                  "the coordinator's state file cannot be written", now_ns);
            heft__round_end(round, HEFT__ROUND_ABORTED, now_ns);
        }
    } else if (outcome == HEFT__WRITTEN_OK && round->pending == HEFT__DECISION_COMMIT) {
        decided_commit(round, now_ns);
    } else if (outcome == HEFT__WRITTEN_OK && round->pending == HEFT__DECISION_REVOKE) {
        decided_revoke(round, now_ns);
    } else if (round->pending != HEFT__DECISION_NONE) {
        undecided(round, outcome, now_ns);
    }
    heft__round_advance(round, now_ns);
}

/* ---- flip ---- */

/* Positively live at the round's version. */
static bool has_flipped(const heft__round_t *round, const heft__round_member_t *m)
{
    if (m->lost || !m->registered || m->condition == HEFT__CONDITION_LIVE_SUSPECT) {
        return false;
    }
    /* one that was released without a flip, out of service, went through these phases as well */
    const bool is_past = (m->phase == HEFT__PHASE_RESUME || m->phase == HEFT__PHASE_RELEASE) &&
                         m->live_version == round->version;
    if (heft__round_is_current(round, m) && (m->state == HEFT__STATE_FLIPPED || is_past)) {
        return true;
    }
    /* after a restart: it went through this round before, and has no reason to say so again */
    return m->state == HEFT__STATE_IDLE && m->live_version == round->version &&
           strcmp(m->live_digest, round->source_digest) == 0;
}

static heft__poison_t flip_outcome(const heft__round_t *round, const heft__round_member_t *m)
{
    if (m->lost) {
        return HEFT__POISON_GONE;
    }
    if (has_flipped(round, m)) {
        return HEFT__POISON_NONE;
    }
    const bool at_flip = heft__round_is_current(round, m) && m->phase == HEFT__PHASE_FLIP;
    /* one that is being refilled stays suspect until its flip has ended well */
    const bool refilling = m->poison == HEFT__POISON_REFILL && !(at_flip && heft__round_is_bad(m));
    if (m->registered && m->condition == HEFT__CONDITION_LIVE_SUSPECT && !refilling) {
        return HEFT__POISON_BROKEN;
    }
    if (at_flip) {
        if (m->result == HEFT__RESULT_FAILED) {
            return HEFT__POISON_BROKEN;
        }
        if (m->result == HEFT__RESULT_REFUSED && m->retried && m->report_order == m->order_seq) {
            return HEFT__POISON_REFUSED;
        }
    }
    return HEFT__POISON_SILENT; /* so far */
}

/* Every rank of an engine is at the round's version, those that take no part included. */
static bool engine_has_flipped(const heft__round_t *round, uint32_t engine)
{
    for (uint32_t i = 0; i < round->n_members; i++) {
        const heft__round_member_t *m = &round->members[i];
        if (!m->used || m->role != HEFT__ROLE_DESTINATION || m->engine != engine) {
            continue;
        }
        const bool there = m->in_round && m->moves ? flip_outcome(round, m) == HEFT__POISON_NONE
                                                   : m->live_version == round->version;
        if (!there) {
            return false;
        }
    }
    return true;
}

/* Engines whose every rank has flipped serve again. */
static void resume_engines(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && m->target == HEFT__PHASE_FLIP && has_flipped(round, m) &&
            engine_has_flipped(round, m->engine)) {
            heft__round_order(round, m, HEFT__PHASE_RESUME);
        }
    }
}

/* Who is being fed serves nothing yet: one that is gone holds up nobody, it joins again. */
static bool is_gone(const heft__round_t *round, const heft__round_member_t *m)
{
    return round->kind == HEFT__KIND_FEED && heft__round_is_moving(m) && (m->lost || m->overdue) &&
           !has_flipped(round, m);
}

/* Who is being fed and breaks off in its flip was out of service before and stays so: it is left to
 * a later round, as an operator would claim (refill), and holds up nobody's push. */
static bool broke_off(const heft__round_t *round, const heft__round_member_t *m)
{
    return round->kind == HEFT__KIND_FEED && heft__round_is_moving(m) &&
           heft__round_is_current(round, m) && m->phase == HEFT__PHASE_FLIP &&
           m->result == HEFT__RESULT_FAILED;
}

/* The operator has left it to a later round, or it is gone: this one is finished without it. */
static bool is_left_out(const heft__round_t *round, const heft__round_member_t *m)
{
    return (m->poison == HEFT__POISON_REFILL && round->state != HEFT__ROUND_FLIPPING) ||
           is_gone(round, m) || broke_off(round, m);
}

void heft__round_commit(heft__round_t *round, int64_t now_ns)
{
    if (round->cause.status != HEFT_OK) {
        heft__round_warn(round, round->cause_slot, "%s: %s", heft__phase_text(round->cause.phase),
                         round->cause.cause);
        round->cause_slot = -1;
        heft__wire_error_reset(&round->cause);
    }
    EACH_MEMBER(round, m)
    {
        if (is_gone(round, m)) {
            heft__round_warn(round, (int32_t)(m - round->members),
                             "not heard of in its flip: it joins again");
        }
        if (broke_off(round, m)) {
            m->poison = HEFT__POISON_REFILL;
        }
        m->overdue = false;
        if (heft__round_is_moving(m) && has_flipped(round, m)) {
            m->poison = HEFT__POISON_NONE;
        }
    }
    heft__round_enter(round, HEFT__ROUND_COMMITTED, HEFT__PHASE_RESUME, now_ns);
    resume_engines(round);
}

typedef struct flip_counts {
    uint32_t flipped, refused, silent, others, waiting;
} flip_counts_t;

static flip_counts_t count_flips(heft__round_t *round)
{
    flip_counts_t n = { 0, 0, 0, 0, 0 };
    EACH_MEMBER(round, m)
    {
        if (!heft__round_is_moving(m) || is_left_out(round, m)) {
            continue;
        }
        const bool refused_once = heft__round_is_current(round, m) && !m->retried &&
                                  m->phase == HEFT__PHASE_FLIP && m->result == HEFT__RESULT_REFUSED;
        if (refused_once && !has_flipped(round, m)) {
            m->retried = true;
            heft__round_order(round, m, HEFT__PHASE_FLIP);
        }
        const heft__poison_t outcome = flip_outcome(round, m);
        n.flipped += outcome == HEFT__POISON_NONE;
        n.refused += outcome == HEFT__POISON_REFUSED;
        n.others += outcome == HEFT__POISON_GONE || outcome == HEFT__POISON_BROKEN;
        const bool unknown = outcome == HEFT__POISON_SILENT;
        const bool given_up =
            m->overdue || (heft__round_is_current(round, m) && m->phase == HEFT__PHASE_FLIP &&
                           m->result == HEFT__RESULT_UNKNOWN);
        n.silent += unknown && given_up;
        n.waiting += unknown && !given_up;
    }
    return n;
}

static void mark_outcomes(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        const heft__poison_t outcome =
            heft__round_is_moving(m) ? flip_outcome(round, m) : HEFT__POISON_NONE;
        if (broke_off(round, m)) {
            m->poison = HEFT__POISON_REFILL;
        }
        const bool own = m->poison == HEFT__POISON_CONDITION && outcome == HEFT__POISON_NONE;
        const bool stays = own || is_left_out(round, m);
        if (heft__round_is_moving(m) && m->poison != outcome && !stays) {
            m->reborn = m->lost;
            m->poison = outcome;
        }
    }
}

/* A round that has no clean end: poison what did not flip, let whole engines serve. */
static void split(heft__round_t *round, heft__round_state_t state, int64_t now_ns)
{
    if (round->cause.status == HEFT_OK) {
        EACH_MEMBER(round, m)
        {
            const heft__poison_t outcome = flip_outcome(round, m);
            if (heft__round_is_moving(m) && outcome != HEFT__POISON_NONE) {
                heft__round_fail_with(
                    round, m, outcome == HEFT__POISON_SILENT ? HEFT_ERR_TIMEOUT : HEFT_ERR_PEER,
                    heft__poison_text(outcome), now_ns);
                break;
            }
        }
    }
    mark_outcomes(round);
    if (round->state != state) {
        heft__round_doubt(round, state, HEFT__ROUND_FLIPPING, now_ns);
    }
    resume_engines(round);
}

/* Nothing is revoked once the round is in doubt and a destination has left it: what that one did is
 * not known. */
static bool may_revoke(const heft__round_t *round, const flip_counts_t *n)
{
    return n->flipped == 0 && n->others == 0 && n->silent == 0 && !round->departed &&
           round->state != HEFT__ROUND_PARTIAL;
}

/* It waits for its source, or will not receive in this flip. */
static bool is_armed(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool at_flip = heft__round_is_current(round, m) && m->phase == HEFT__PHASE_FLIP &&
                         m->report_order == m->order_seq && m->result != HEFT__RESULT_NONE;
    const bool refused = m->result == HEFT__RESULT_REFUSED && !m->retried;
    return m->lost || m->overdue || (at_flip && !refused) || has_flipped(round, m);
}

/* The sources send to those that receive inside the flip, once these are armed. */
static void start_senders(heft__round_t *round)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_is_moving(m) && m->in_place && !is_armed(round, m)) {
            return;
        }
    }
    round->senders_started = true;
    EACH_MEMBER(round, m)
    {
        if (heft__round_sends(m) && !m->lost) {
            heft__round_order(round, m, HEFT__PHASE_FLIP);
        }
    }
}

/* A source that is silent may be stopped in the middle of a write. Those that receive from it in
 * place are told that their time is over: they shut it out and say what became of them. */
static void stop_waiting(heft__round_t *round)
{
    bool silent = false;
    EACH_MEMBER(round, m)
    {
        silent = silent || (heft__round_sends(m) && m->overdue);
    }
    EACH_MEMBER(round, m)
    {
        const bool waits = heft__round_is_moving(m) && m->in_place && !m->lost && !m->overdue &&
                           heft__round_is_current(round, m) && m->phase == HEFT__PHASE_FLIP &&
                           m->result == HEFT__RESULT_WORKING;
        if (silent && waits && !m->in_vain) {
            m->in_vain = true;
            heft__round_order(round, m, HEFT__PHASE_FLIP);
        }
    }
}

bool heft__round_step_flipping(heft__round_t *round, int64_t now_ns)
{
    const heft__round_state_t before = round->state;
    const flip_counts_t n = count_flips(round);
    if (!round->senders_started) {
        start_senders(round);
    }
    if (n.waiting > 0) {
        if (before != HEFT__ROUND_FLIPPING) {
            split(round, before, now_ns);
        } else if (round->senders_started) {
            stop_waiting(round);
        }
        return false;
    }
    if (n.refused + n.silent + n.others == 0) {
        heft__round_commit(round, now_ns);
    } else if (n.silent > 0) {
        split(round, HEFT__ROUND_UNKNOWN, now_ns);
    } else if (may_revoke(round, &n)) {
        heft__round_enter(round, HEFT__ROUND_REVOKING, HEFT__PHASE_DECIDE, now_ns);
        round->pending = HEFT__DECISION_REVOKE;
        heft__round_ask_write(round, true);
    } else {
        split(round, HEFT__ROUND_PARTIAL, now_ns);
    }
    return round->state != before;
}
