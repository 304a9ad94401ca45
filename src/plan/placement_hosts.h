/* SPDX-License-Identifier: Apache-2.0 */
/* How much of what several ranks hold each of them sends, where hosts are known. */
#ifndef HEFT_PLAN_PLACEMENT_HOSTS_H
#define HEFT_PLAN_PLACEMENT_HOSTS_H

#include "base/base.h"

/* Bytes that the same ranks hold. */
typedef struct heft__lot {
    const uint32_t *ranks; /* ascending */
    uint32_t n_ranks;
    size_t first_share; /* shares of its ranks, in the order of `ranks` */
    int64_t bytes;
} heft__lot_t;

/*
 * Deal lots to ranks so that the busiest host sends as little as it can, and then the busiest rank.
 * host_of: the number of each rank's host, below n_ranks. share: room for all shares, in bytes.
 */
HEFT_MUST_CHECK heft_status_t heft__host_balance(const heft__lot_t *lots, size_t n_lots,
                                                 const uint32_t *host_of, uint32_t n_ranks,
                                                 int64_t *share, heft_error_t *err);

#endif
