/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct: entries of a rank that this source sends alone and whose bytes lie in its tensors as they
 * will lie in staging, in one run or a few. Where they go in chunks they are sent from there: no
 * buffer is written, and digest and CRC are taken in one pass.
 */
#ifndef HEFT_SYNC_DIRECT_H
#define HEFT_SYNC_DIRECT_H

#include "sync/delivery.h"

/* Bytes [at, at + bytes) of an entry are those of a source of the plan, from `offset` on. */
typedef struct heft__run {
    int64_t at;
    int64_t bytes;
    int64_t offset;
    uint32_t source;
} heft__run_t;

typedef struct heft__direct {
    bool is_used; /* the owner's: in the stage at hand */
    uint32_t n_params;
    heft__run_t *runs; /* of all entries, ascending */
    size_t *first;     /* those of entry i are [first[i], first[i + 1]); of a param without: none */
    size_t n_runs;
    size_t cap_runs;
} heft__direct_t;

/* Of the delivery's rank in a plan. Inputs of a loader are never among them. */
HEFT_MUST_CHECK heft_status_t heft__direct_init(const heft_plan_t *plan, const heft__delivery_t *d,
                                                uint32_t sender, heft__direct_t *out,
                                                heft_error_t *err);
/* Zero-initialised is fine. */
void heft__direct_fini(heft__direct_t *direct);
/* It is used, and the entry is one of them. */
bool heft__direct_has(const heft__direct_t *direct, uint32_t entry);
/* Where bytes [at, at + n) of such an entry are; they are brought together in room where they are
 * of several runs. data: by source. HEFT_ERR_ARGUMENT: one that is NULL. */
HEFT_MUST_CHECK heft_status_t heft__direct_find(const heft__direct_t *direct, uint32_t entry,
                                                const void *const *data, int64_t at, int64_t n,
                                                uint8_t *room, const uint8_t **bytes_out,
                                                heft_error_t *err);
/* CRC-32C of n bytes; *crc64_out: their CRC-64, NULL: not wanted. */
uint32_t heft__direct_sum(const uint8_t *bytes, int64_t n, uint64_t *crc64_out);

#endif
