/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Honest members for tests of the round machine: they follow docs/formats/control.md, keep the
 * truth (what serves, what is sending), and fail when told to.
 */
#ifndef ROUND_SIM_H
#define ROUND_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "sync/round.h"

#define SIM_DIGEST_OLD "00000000000000000000000000000000000000000000000000000000000000aa"
#define SIM_DIGEST_NEW "00000000000000000000000000000000000000000000000000000000000000bb"

typedef struct sim {
    heft__role_t role;
    bool reachable;     /* its polls arrive */
    bool registered;    /* with this coordinator */
    uint8_t life;       /* number of its process */
    uint8_t known_life; /* that the coordinator's slot stands for */
    bool serving;
    bool sending; /* the truth: puts may be running */
    bool in_place;
    bool feeds;     /* a destination that stands in for a source */
    bool relays;    /* it forwards what it receives in this round */
    uint8_t fed_by; /* 1 + the one that forwards to it; 0: the sources */
    bool fenced;    /* a destination whose memory no put can reach any more */
    int64_t live;
    heft__condition_t condition;
    heft__round_id_t suspect_round; /* in which its condition became so */
    heft__round_id_t round;
    heft__phase_t phase;
    heft__result_t result;
    heft__member_state_t state;
    int64_t order;
    int64_t version; /* of the order it works on */
    int64_t sequence;
} sim_t;

static inline bool sim_sends(const sim_t *s)
{
    return s->role == HEFT__ROLE_SOURCE || s->feeds;
}

static inline void sim_init(sim_t *s, heft__role_t role, int64_t live)
{
    memset(s, 0, sizeof *s);
    s->role = role;
    s->reachable = true;
    s->life = 1;
    s->live = live;
    s->serving = role == HEFT__ROLE_DESTINATION && live > 0;
}

/* A new process: nothing of the old one is left. */
static inline void sim_restart(sim_t *s)
{
    const uint8_t life = s->life;
    const uint8_t known = s->known_life;
    const bool reachable = s->reachable;
    const bool in_place = s->in_place;
    sim_init(s, s->role, 0);
    s->life = (uint8_t)(life + 1);
    s->known_life = known;
    s->reachable = reachable;
    s->in_place = in_place;
}

static inline void sim_report(const sim_t *s, int64_t old_version, heft__report_t *out)
{
    heft__report_init(out);
    out->sequence = s->sequence;
    out->order = s->order;
    out->round = s->round;
    out->phase = s->phase;
    out->result = s->result;
    out->state = s->state;
    out->condition = s->condition;
    out->serving = s->serving;
    out->live_version = s->live;
    if (s->live > 0) {
        memcpy(out->live_digest, s->live == old_version ? SIM_DIGEST_OLD : SIM_DIGEST_NEW,
               HEFT__DIGEST_SIZE);
    }
    if (s->result == HEFT__RESULT_REFUSED || s->result == HEFT__RESULT_FAILED ||
        s->result == HEFT__RESULT_UNKNOWN) {
        out->error.status = HEFT_ERR_IO;
        out->error.phase = s->phase;
        (void)strcpy(out->error.cause, "injected");
    }
}

static inline void sim_refuse(sim_t *s, heft__phase_t target)
{
    s->phase = target;
    s->result = HEFT__RESULT_REFUSED;
}

static inline bool sim_may_open(heft__phase_t target)
{
    return target == HEFT__PHASE_PREFLIGHT || target == HEFT__PHASE_PREPARE ||
           target == HEFT__PHASE_STAGE || target == HEFT__PHASE_ABORT || target == HEFT__PHASE_LIVE;
}

/* May it take up a flip? A source sends to those that receive in place. */
static inline bool sim_may_flip(const sim_t *s, heft__decision_t decision)
{
    const bool ready = sim_sends(s)
                           ? s->state == HEFT__STATE_PREPARED || s->state == HEFT__STATE_SENT
                           : s->state == HEFT__STATE_PAUSED;
    return ready && decision == HEFT__DECISION_COMMIT;
}

static inline bool sim_is_broken(const sim_t *s)
{
    return s->condition != HEFT__CONDITION_OK && heft__round_id_equal(s->suspect_round, s->round);
}

static inline void sim_fail(sim_t *s, heft__result_t result)
{
    s->result = result;
    if (result != HEFT__RESULT_UNKNOWN) {
        s->sending = false; /* failed and refused: nothing is running */
        s->fenced = true;
    }
    if (s->phase == HEFT__PHASE_FLIP && result != HEFT__RESULT_REFUSED && !sim_sends(s)) {
        s->condition = HEFT__CONDITION_LIVE_SUSPECT;
        s->suspect_round = s->round;
    }
    if (s->phase == HEFT__PHASE_FLIP && sim_sends(s) && result != HEFT__RESULT_UNKNOWN) {
        s->state = HEFT__STATE_SENT;
    }
}

/* Take in an order: what can be done at once is done, the rest waits for sim_work. */
static inline void sim_take(sim_t *s, const heft__round_member_t *m, heft__decision_t decision,
                            int64_t version)
{
    const heft__phase_t target = m->target;
    if (m->order_seq == 0 || m->order_seq == s->order) {
        return;
    }
    s->order = m->order_seq;
    s->version = version;
    if (!heft__round_id_equal(m->order_round, s->round)) {
        if (!sim_may_open(target) ||
            (s->state != HEFT__STATE_IDLE && target != HEFT__PHASE_ABORT)) {
            sim_refuse(s, target);
            return;
        }
        s->round = m->order_round;
        s->feeds = m->feeds;
        s->phase = HEFT__PHASE_NONE;
        s->result = HEFT__RESULT_NONE;
    }
    if (s->phase == HEFT__PHASE_FLIP && s->result == HEFT__RESULT_WORKING && m->in_vain) {
        sim_fail(s, HEFT__RESULT_FAILED); /* it shuts its silent source out */
        return;
    }
    if (s->phase == target && (s->result == HEFT__RESULT_OK || s->result == HEFT__RESULT_WORKING)) {
        return; /* reached: reported again, not done again */
    }
    if (target == HEFT__PHASE_FLIP && s->state == HEFT__STATE_FLIPPED) {
        s->phase = target;
        s->result = HEFT__RESULT_OK;
        return;
    }
    if (target == HEFT__PHASE_FLIP && s->phase == HEFT__PHASE_RELEASE) {
        return; /* long done */
    }
    if (target == HEFT__PHASE_FLIP && !sim_may_flip(s, decision)) {
        sim_refuse(s, target);
        return;
    }
    s->phase = target;
    s->result = HEFT__RESULT_WORKING;
    if (target == HEFT__PHASE_FLIP && sim_is_broken(s)) {
        s->result = HEFT__RESULT_FAILED; /* not mended by another one in its own round */
    }
    if (target == HEFT__PHASE_FLIP && sim_sends(s)) {
        s->state = HEFT__STATE_SENDING;
    }
    if (target == HEFT__PHASE_STAGE) {
        s->state = sim_sends(s) ? HEFT__STATE_SENDING : HEFT__STATE_STAGING;
        s->sending = sim_sends(s) || s->relays;
        s->fenced = false;
    }
}

/* Finish the work in hand. */
static inline void sim_work(sim_t *s)
{
    s->result = HEFT__RESULT_OK;
    switch ((int)s->phase) {
    case HEFT__PHASE_PREPARE:
        s->state = HEFT__STATE_PREPARED;
        break;
    case HEFT__PHASE_STAGE:
        s->state = sim_sends(s) ? HEFT__STATE_SENT : HEFT__STATE_STAGED;
        s->sending = false;
        break;
    case HEFT__PHASE_PAUSE:
        s->state = HEFT__STATE_PAUSED;
        s->serving = false;
        break;
    case HEFT__PHASE_FLIP:
        s->state = sim_sends(s) ? HEFT__STATE_SENT : HEFT__STATE_FLIPPED;
        if (!sim_sends(s)) {
            s->live = s->version;
            s->condition = HEFT__CONDITION_OK; /* written as a whole, and compared */
        }
        break;
    case HEFT__PHASE_RESUME:
        s->state = HEFT__STATE_IDLE;
        s->serving = true;
        break;
    case HEFT__PHASE_RELEASE:
        s->state = HEFT__STATE_IDLE;
        break;
    case HEFT__PHASE_ABORT:
        s->fenced = !sim_sends(s); /* it fences before it drops anything */
        if (s->state != HEFT__STATE_FLIPPED) {
            s->serving = s->role == HEFT__ROLE_DESTINATION && s->live > 0 &&
                         s->condition == HEFT__CONDITION_OK &&
                         (s->serving || s->state == HEFT__STATE_PAUSED);
            s->state = HEFT__STATE_IDLE;
        }
        s->sending = false;
        break;
    default:
        break;
    }
}

#endif
