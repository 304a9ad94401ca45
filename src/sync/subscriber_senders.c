/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends to a destination in a round, by name. A window knows its senders by their incarnations
 * alone; the order says whose those are.
 */
#include "sync/subscriber_private.h"

#include <string.h>

struct heft__sender_name {
    char id[HEFT__ID_SIZE];
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
};

heft_status_t heft__subscriber_meet_senders(heft_subscriber_t *sub, const heft__order_t *order,
                                            heft_error_t *err)
{
    heft__sender_name_t *met = heft__calloc(order->n_peers > 0 ? order->n_peers : 1, sizeof *met);
    if (met == NULL) {
        return heft__error_nomem(err, order->n_peers * sizeof *met);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < order->n_peers; i++) {
        const heft__peer_t *peer = &order->peers[i];
        if (heft__hex_parse(peer->incarnation, met[n].incarnation, sizeof met[n].incarnation)) {
            memcpy(met[n].id, peer->id, sizeof met[n].id);
            n++;
        }
    }
    (void)heft__member_lock(sub->member);
    heft__sender_name_t *before = sub->senders;
    sub->senders = met;
    sub->n_named = n;
    heft__member_unlock(sub->member, false);
    heft__free(before);
    return HEFT_OK;
}

/* "": nobody that the order named. */
static const char *id_of(const heft_subscriber_t *sub, const heft__window_sender_t *sender)
{
    for (uint32_t i = 0; i < sub->n_named; i++) {
        const heft__sender_name_t *named = &sub->senders[i];
        if (memcmp(named->incarnation, sender->incarnation, sizeof named->incarnation) == 0) {
            return named->id;
        }
    }
    return sub->relayed_by;
}

/* "the relay destination.heft.0.1", "source.heft.0.2", or what else can be said of it. */
#define NAME_FORMAT "%s%.100s"

static const char *kind_of(const heft_subscriber_t *sub, const char *id)
{
    return sub->relayed_by[0] != '\0' ? "the relay " : id[0] != '\0' ? "" : "a source";
}

const char *heft__subscriber_lost_error(const heft_subscriber_t *sub,
                                        const heft__window_state_t *state, heft_error_t *err)
{
    const heft__window_sender_t *lost = &state->lost;
    const char *id = id_of(sub, lost);
    if (lost->why[0] == '\0') {
        (void)heft__error_set(err, HEFT_ERR_PEER, NAME_FORMAT ", process %d, died while sending",
                              kind_of(sub, id), id, (int)lost->pid);
    } else {
        (void)heft__error_set(err, HEFT_ERR_PEER,
                              NAME_FORMAT ", process %d, was lost while sending: %s",
                              kind_of(sub, id), id, (int)lost->pid, lost->why);
    }
    return id;
}

const char *heft__subscriber_stopped_error(const heft_subscriber_t *sub,
                                           const heft__window_state_t *state, heft_error_t *err)
{
    const char *id = id_of(sub, &state->failed);
    (void)heft__error_set(err, HEFT_ERR_CANCELED, NAME_FORMAT " stopped before the end",
                          kind_of(sub, id), id);
    return id;
}
