/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: what a coordinator does that has lost its record and hears of a round in flight.
 *
 * It may act only when every destination that moves in that round has reported to it; how many they
 * are each of them says. One that has flipped, or has broken off a flip, proves that a commit was
 * durable: the round goes forward. None proves that nobody serves the new version: it is aborted.
 * Until then the outcome is unknown, and nobody is told anything.
 */
#include "sync/round_step.h"

#include <stdio.h>
#include <string.h>

static bool is_open(const heft__round_member_t *m)
{
    return m->state != HEFT__STATE_IDLE || m->result == HEFT__RESULT_WORKING;
}

static bool is_of(const heft__round_t *round, const heft__round_member_t *m)
{
    return m->used && m->registered && m->role == HEFT__ROLE_DESTINATION && m->movers > 0 &&
           heft__round_id_equal(m->round, round->id);
}

/* It has written its live parameters, or may be about to: a flip is taken up on a commit alone. */
static bool proves_commit(const heft__round_t *round, const heft__round_member_t *m)
{
    const bool live =
        m->live_version == round->version && strcmp(m->live_digest, round->source_digest) == 0;
    const bool writing = m->phase == HEFT__PHASE_FLIP && m->result == HEFT__RESULT_WORKING;
    return live || writing || m->state == HEFT__STATE_FLIPPED ||
           m->condition == HEFT__CONDITION_LIVE_SUSPECT;
}

void heft__round_find(heft__round_t *round, const heft__round_member_t *member, int64_t now_ns)
{
    const bool knows_none = round->is_bare && !heft__round_is_busy(round) && round->id.epoch == 0;
    const bool shows_one = member->role == HEFT__ROLE_DESTINATION && member->movers > 0 &&
                           member->version > 0 && is_open(member);
    if (!knows_none || !shows_one || member->round.epoch >= round->epoch) {
        return;
    }
    memcpy(round->limit_ns, round->config.limit_ns, sizeof round->limit_ns);
    round->id = member->round;
    round->kind = HEFT__KIND_SYNC;
    round->version = member->version;
    memcpy(round->source_digest, member->source_digest, sizeof round->source_digest);
    round->n_expected = member->movers;
    round->started = true;
    round->began_ns = now_ns;
    round->phase_began_ns = now_ns;
    heft__wire_error_reset(&round->cause);
    round->cause.status = HEFT_ERR_STATE;
    (void)snprintf(round->cause.cause, sizeof round->cause.cause,
                   "the coordinator's state was lost during the round");
    heft__round_doubt(round, HEFT__ROUND_UNKNOWN, HEFT__ROUND_IDLE, now_ns);
}

/* Put the round back as the record would have. */
static void rebuild(heft__round_t *round, bool commit, int64_t now_ns)
{
    for (uint32_t i = 0; i < round->n_members; i++) {
        heft__round_member_t *m = &round->members[i];
        const bool source = m->used && m->registered && m->role == HEFT__ROLE_SOURCE &&
                            heft__round_id_equal(m->round, round->id);
        m->in_round = source || is_of(round, m);
        m->moves = m->in_round && !source;
        if (m->moves && !proves_commit(round, m)) {
            round->before_version = heft__max_i64(round->before_version, m->live_version);
        }
        m->poison = m->poison == HEFT__POISON_DECISION ? HEFT__POISON_NONE : m->poison;
    }
    if (commit) {
        round->decision = HEFT__DECISION_COMMIT;
        round->committed_version = round->version;
        memcpy(round->committed_digest, round->source_digest, sizeof round->committed_digest);
    }
    round->relays = true; /* or not: nobody is left who knows */
    heft__round_restore(round, false, now_ns);
}

bool heft__round_step_found(heft__round_t *round, int64_t now_ns)
{
    uint32_t n_reported = 0;
    bool commit = false;
    if (round->state != HEFT__ROUND_UNKNOWN || round->origin != HEFT__ROUND_IDLE) {
        return false;
    }
    for (uint32_t i = 0; i < round->n_members; i++) {
        heft__round_member_t *m = &round->members[i];
        if (!is_of(round, m) || m->lost) {
            continue;
        }
        n_reported++;
        commit = commit || proves_commit(round, m);
        m->in_round = true;
        m->moves = true;
        if (is_open(m) && m->poison == HEFT__POISON_NONE) {
            m->poison = HEFT__POISON_DECISION;
            m->reborn = false;
        }
    }
    if (n_reported < round->n_expected) {
        return false;
    }
    rebuild(round, commit, now_ns);
    heft__round_ask_write(round, false);
    return true;
}
