/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An order of a round that the member knows: reached targets are reported again; the next step is
 * done if the state allows it; everything else is out of order. A round that it does not know can
 * open only with some phases, only from idle, and only with a later number: numbers never go back,
 * so an earlier one is a message from the past.
 */
#include "sync/member_gate.h"

static bool is_later(heft__round_id_t a, heft__round_id_t b)
{
    return a.epoch > b.epoch || (a.epoch == b.epoch && a.seq > b.seq);
}

static bool can_open(heft__phase_t target)
{
    return target == HEFT__PHASE_PREFLIGHT || target == HEFT__PHASE_PREPARE ||
           target == HEFT__PHASE_STAGE || target == HEFT__PHASE_ABORT || target == HEFT__PHASE_LIVE;
}

/* The last phase taken up was completed. */
static bool has(const heft__stand_t *stand, heft__phase_t phase)
{
    return stand->phase == phase && stand->result == HEFT__RESULT_OK;
}

static bool is_before_stage(const heft__stand_t *stand)
{
    return stand->phase == HEFT__PHASE_NONE || has(stand, HEFT__PHASE_PREFLIGHT) ||
           stand->phase == HEFT__PHASE_PREPARE;
}

/* May a destination that has not reached the target carry it out now? */
static bool destination_may(const heft__stand_t *stand, const heft__order_t *order)
{
    bool again = stand->phase == order->target;
    switch (order->target) {
    case HEFT__PHASE_PREFLIGHT:
        return stand->state == HEFT__STATE_IDLE && (stand->phase == HEFT__PHASE_NONE || again);
    case HEFT__PHASE_STAGE: /* a failed one is not begun again in its round */
        return stand->state == HEFT__STATE_IDLE && is_before_stage(stand);
    case HEFT__PHASE_VERIFY:
        return stand->state == HEFT__STATE_STAGED && (has(stand, HEFT__PHASE_STAGE) || again);
    case HEFT__PHASE_PAUSE:
        return (stand->state == HEFT__STATE_STAGED && (has(stand, HEFT__PHASE_VERIFY) || again)) ||
               (stand->in_place && stand->state == HEFT__STATE_IDLE &&
                (has(stand, HEFT__PHASE_PREFLIGHT) || again));
    case HEFT__PHASE_FLIP:
        return stand->state == HEFT__STATE_PAUSED && order->decision == HEFT__DECISION_COMMIT;
    case HEFT__PHASE_RESUME:
        return stand->state == HEFT__STATE_FLIPPED;
    case HEFT__PHASE_RELEASE: /* of a paused one: the round is finished without it, out of service
                               */
        return stand->state == HEFT__STATE_IDLE || stand->state == HEFT__STATE_FLIPPED ||
               stand->state == HEFT__STATE_PAUSED;
    case HEFT__PHASE_ABORT:
        return true;
    case HEFT__PHASE_LIVE:
        return stand->state == HEFT__STATE_IDLE;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PREPARE:
    case HEFT__PHASE_DECIDE:
    default:
        return false;
    }
}

static bool source_may(const heft__stand_t *stand, const heft__order_t *order)
{
    bool again = stand->phase == order->target;
    switch (order->target) {
    case HEFT__PHASE_PREFLIGHT:
        return stand->state == HEFT__STATE_IDLE && (stand->phase == HEFT__PHASE_NONE || again);
    case HEFT__PHASE_PREPARE:
        return stand->state == HEFT__STATE_IDLE &&
               (stand->phase == HEFT__PHASE_NONE || has(stand, HEFT__PHASE_PREFLIGHT) || again);
    case HEFT__PHASE_STAGE:
        return stand->state == HEFT__STATE_PREPARED && has(stand, HEFT__PHASE_PREPARE);
    case HEFT__PHASE_VERIFY:
        return stand->state == HEFT__STATE_SENT && (has(stand, HEFT__PHASE_STAGE) || again);
    case HEFT__PHASE_FLIP: /* to those that receive in place */
        return (stand->state == HEFT__STATE_PREPARED || stand->state == HEFT__STATE_SENT) &&
               order->decision == HEFT__DECISION_COMMIT;
    case HEFT__PHASE_RELEASE:
        return stand->state != HEFT__STATE_SENDING;
    case HEFT__PHASE_ABORT:
        return true;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PAUSE:
    case HEFT__PHASE_DECIDE:
    case HEFT__PHASE_RESUME:
    case HEFT__PHASE_LIVE:
    default:
        return false;
    }
}

static bool is_reached(const heft__stand_t *stand, const heft__order_t *order)
{
    if (stand->phase == order->target) {
        /* Being at it counts: a destination is armed until the last byte has arrived. */
        return stand->result == HEFT__RESULT_OK || stand->result == HEFT__RESULT_WORKING;
    }
    if (stand->phase == HEFT__PHASE_ABORT || order->target == HEFT__PHASE_ABORT ||
        order->target == HEFT__PHASE_LIVE || stand->phase == HEFT__PHASE_LIVE) {
        return false; /* these lie beside the order of phases */
    }
    return order->target < stand->phase;
}

heft__gate_t heft__member_gate(heft__role_t role, const heft__stand_t *stand,
                               const heft__order_t *order)
{
    heft__stand_t at = *stand;
    if (!heft__round_id_equal(order->round, stand->round)) {
        if (!can_open(order->target) || !is_later(order->round, stand->round) ||
            stand->state != HEFT__STATE_IDLE) {
            return HEFT__GATE_REFUSE;
        }
        at = (heft__stand_t){ .round = order->round, .state = stand->state };
    } else if (is_reached(stand, order)) {
        return HEFT__GATE_DONE;
    } else if (stand->phase == HEFT__PHASE_ABORT && order->target != HEFT__PHASE_RELEASE &&
               order->target != HEFT__PHASE_ABORT) {
        return HEFT__GATE_REFUSE; /* nothing follows an abort but letting go */
    }
    bool may = role == HEFT__ROLE_SOURCE ? source_may(&at, order) : destination_may(&at, order);
    return may ? HEFT__GATE_DO : HEFT__GATE_REFUSE;
}
