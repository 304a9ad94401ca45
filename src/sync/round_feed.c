/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: destinations that send. Late join: a destination that serves the committed version may
 * stand in for a source and bring it to others that do not: a round like any other, of the version
 * that is committed already. The feeder neither pauses nor flips; what it lends are its live
 * parameters, which no round writes while this one is in flight. Relays: a destination that
 * receives in a round forwards to others what arrives, as it arrives; its report of stage speaks
 * for both.
 */
#include "sync/round_step.h"

#include <string.h>

static bool is_here(const heft__round_t *round, const heft__round_member_t *m, int64_t now_ns)
{
    return m->used && m->role == HEFT__ROLE_DESTINATION && m->report_seq > 0 &&
           heft__round_is_ready(m) && now_ns - m->contact_ns <= round->config.contact_ns;
}

bool heft__round_is_joiner(const heft__round_t *round, uint32_t slot, int64_t now_ns)
{
    const heft__round_member_t *m = &round->members[slot];
    const bool is_well = m->condition == HEFT__CONDITION_OK && m->poison == HEFT__POISON_NONE;
    return is_here(round, m, now_ns) && !m->serving &&
           (is_well || m->poison == HEFT__POISON_REFILL);
}

bool heft__round_may_feed(const heft__round_t *round, uint32_t slot, int64_t now_ns)
{
    const heft__round_member_t *m = &round->members[slot];
    return is_here(round, m, now_ns) && m->serving && m->condition == HEFT__CONDITION_OK &&
           m->poison == HEFT__POISON_NONE && round->committed_version > 0 &&
           m->live_version == round->committed_version &&
           strcmp(m->live_digest, round->committed_digest) == 0;
}

bool heft__round_is_feeding(const heft__round_t *round)
{
    return round->kind == HEFT__KIND_FEED && heft__round_is_busy(round) &&
           round->state != HEFT__ROUND_UNKNOWN && round->state != HEFT__ROUND_PARTIAL;
}

heft_status_t heft__round_check_feed(const heft__round_t *round,
                                     const heft__round_request_t *request, int64_t now_ns,
                                     heft_error_t *err)
{
    for (uint32_t i = 0; i < request->n_feeders; i++) {
        if (!heft__round_may_feed(round, request->feeders[i], now_ns)) {
            return heft__error_set(err, HEFT_ERR_STATE,
                                   "the feeder in slot %u does not serve version %lld",
                                   request->feeders[i], (long long)round->committed_version);
        }
    }
    for (uint32_t i = 0; i < request->n_slots; i++) {
        if (!heft__round_is_joiner(round, request->slots[i], now_ns)) {
            return heft__error_set(err, HEFT_ERR_STATE,
                                   "the destination in slot %u does not wait to be fed",
                                   request->slots[i]);
        }
    }
    return HEFT_OK;
}

void heft__round_set_relay(heft__round_t *round, uint32_t slot, uint32_t relay)
{
    round->members[slot].relay = relay + 1;
}

uint32_t heft__round_get_relay(const heft__round_member_t *member)
{
    return member->relay == 0 || member->relay == HEFT__RELAY_UNKNOWN ? UINT32_MAX
                                                                      : member->relay - 1;
}

bool heft__round_is_relay(const heft__round_t *round, uint32_t slot)
{
    EACH_MEMBER(round, m)
    {
        if (heft__round_get_relay(m) == slot) {
            return true;
        }
    }
    return false;
}
