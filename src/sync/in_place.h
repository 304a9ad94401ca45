/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place: how the two ends of a flip talk that writes straight into live parameters.
 *
 * The receiver has one buffer, its window. It arms it for part 0, the sender writes as many
 * parameters as fit, ends, and the receiver copies them to the live ones and arms it for part 1. So
 * either end is a part ahead of the other at most, and memory is bounded by the buffer. After the
 * last part come the digests of all parameters, eight bytes each, little-endian, and the receiver
 * compares its live parameters with them.
 */
#ifndef HEFT_SYNC_IN_PLACE_H
#define HEFT_SYNC_IN_PLACE_H

#include "sync/wire.h"
#include "transport/transport.h"

#define HEFT__MAX_PARTS (1u << 20)

/* Every part is a round of its own to the transport: what was held back cannot land in another. */
static inline heft__token_t heft__part_token(heft__round_id_t round, uint32_t part)
{
    return (heft__token_t){ .epoch = (uint64_t)round.epoch,
                            .seq = (uint64_t)round.seq * HEFT__MAX_PARTS + part + 1 };
}

#endif
