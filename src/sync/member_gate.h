/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: what a member does with an order, judged from where it stands. No state, no I/O: the
 * tables of docs/formats/control.md and the rules of idempotence, in one function.
 */
#ifndef HEFT_SYNC_MEMBER_GATE_H
#define HEFT_SYNC_MEMBER_GATE_H

#include "sync/wire.h"

typedef enum heft__gate {
    HEFT__GATE_DO = 1,    /* carry it out */
    HEFT__GATE_DONE = 2,  /* reached already: report again, do nothing */
    HEFT__GATE_REFUSE = 3 /* out of order: state untouched */
} heft__gate_t;

typedef struct heft__stand {
    heft__round_id_t round;
    heft__phase_t phase;
    heft__result_t result;
    heft__member_state_t state;
    bool in_place; /* a destination without staging */
} heft__stand_t;

heft__gate_t heft__member_gate(heft__role_t role, const heft__stand_t *stand,
                               const heft__order_t *order);

#endif
