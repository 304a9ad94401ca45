/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place: how the two ends of a flip talk that writes straight into live parameters.
 *
 * The receiver has one buffer, its window. It arms it for part 0, as many parameters as fit; every
 * source that has something of them writes that and ends; the receiver copies them to the live ones
 * and arms it for part 1. So either end is a part ahead of the other at most, and memory is bounded
 * by the buffer. A part of which nobody has anything is counted and not waited for.
 *
 * After the last part come the digests of all parameters, eight bytes each, little-endian: a list
 * from each source, of its shares, in the order of the sources, as many side by side as fit into
 * the buffer, in as many parts as that takes. The receiver combines them and compares its live
 * parameters with the result.
 */
#ifndef HEFT_SYNC_IN_PLACE_H
#define HEFT_SYNC_IN_PLACE_H

#include "sync/delivery.h"
#include "sync/wire.h"
#include "transport/transport.h"

#define HEFT__MAX_PARTS (1u << 20)

/* Every part is a round of its own to the transport: what was held back cannot land in another. */
static inline heft__token_t heft__part_token(heft__round_id_t round, uint32_t part)
{
    return (heft__token_t){ .epoch = (uint64_t)round.epoch,
                            .seq = (uint64_t)round.seq * HEFT__MAX_PARTS + part + 1 };
}

/* Digests: which source's lists come in which part, and where. */
typedef struct heft__digest_slots {
    int64_t list_bytes; /* of one source */
    uint32_t n_senders; /* that send the receiver anything */
    uint32_t per_part;  /* lists in one part */
    uint32_t n_parts;   /* after those with parameters */
} heft__digest_slots_t;

heft__digest_slots_t heft__digest_slots(const heft__delivery_t *d, int64_t buffer_bytes);
/* How many lists come in part `k` of those. */
uint32_t heft__digest_slots_count(const heft__digest_slots_t *slots, uint32_t k);
/* The same as routes, for transports that send in chunks: one for each list. *routes_out is the
 * caller's (heft__free). */
HEFT_MUST_CHECK heft_status_t heft__digest_slots_expect(const heft__digest_slots_t *slots,
                                                        uint32_t k, heft__route_t **routes_out,
                                                        heft__expect_t *expect_out,
                                                        heft_error_t *err);

#endif
