/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delivery: which sources send what of one rank's staging, and, where bytes go in chunks, the order
 * in which they come. Entries are those of staging: parameters, then inputs of the engine's loader.
 * Both ends compute it from the plan.
 */
#ifndef HEFT_SYNC_DELIVERY_H
#define HEFT_SYNC_DELIVERY_H

#include "sync/inputs.h"
#include "sync/staging.h"

/* A view of what others own, for one rank of a plan. Where the plan is a source's part, senders are
 * that source and n_sources, which stands for all others. */
typedef struct heft__delivery {
    const heft_routes_t *routes;
    const heft__inputs_t *inputs;
    const heft__staging_t *layout;
    const heft_plan_t *plan; /* NULL: parameters have no names */
    uint32_t rank_index;
    uint32_t n_sources; /* of the round */
} heft__delivery_t;

/* Routes of a plan over these sources, with what loaders are given: inputs[r] for each rank.
 * is_part: of the plan of a source's part. */
HEFT_MUST_CHECK heft_status_t heft__delivery_route(const heft_plan_t *plan,
                                                   const heft__sources_t *sources,
                                                   const heft__inputs_t *inputs, bool is_part,
                                                   heft_routes_t **routes_out, heft_error_t *err);

/* The sources that send the rank anything, ascending; borrowed. */
const uint32_t *heft__delivery_get_senders(const heft__delivery_t *d, uint32_t *n_out);
/* The place of a source among them; UINT32_MAX: it sends nothing. */
uint32_t heft__delivery_find_sender(const heft__delivery_t *d, uint32_t sender);
/* The sources that send something of an entry, ascending; borrowed. */
const uint32_t *heft__delivery_get_entry_senders(const heft__delivery_t *d, uint32_t entry,
                                                 uint32_t *n_out);
/* The name of an entry; borrowed from the plan. NULL: it is not known. */
const char *heft__delivery_get_name(const heft__delivery_t *d, uint32_t entry);
/* Bytes and pieces that one source sends. */
void heft__delivery_count(const heft__delivery_t *d, uint32_t sender, int64_t *bytes_out,
                          int64_t *pieces_out);
/* Entries [first, end): how many sources send something of them, and whether `sender` does. */
uint32_t heft__delivery_count_part(const heft__delivery_t *d, uint32_t first, uint32_t end,
                                   uint32_t sender, bool *sends_out);

/* ---- in chunks (docs/formats/chunk.md) ---- */

typedef struct heft__packed heft__packed_t;

/* What is expected of entries [first, end), in a window that begins with the first of them. */
typedef struct heft__packing {
    heft__expect_t expect; /* points into what follows, and must not be copied elsewhere */
    heft__route_t *routes;
    heft__delivery_t delivery;
    uint32_t first;
    uint32_t n_entries;
    heft__packed_t *packed; /* of routes beyond the entries' own */
    uint64_t *numbers;      /* what chunks call them */
    uint32_t n_packed;
} heft__packing_t;

/* sender: the source that will send by it; UINT32_MAX: for the receiver, of all of them. *out is
 * borrowed by whoever is given its expectation, and must stay where it is; what the delivery views
 * is borrowed for sending, and by a receiver until a window has been given the expectation. */
HEFT_MUST_CHECK heft_status_t heft__packing_init(const heft__delivery_t *d, uint32_t first,
                                                 uint32_t end, uint32_t sender,
                                                 heft__packing_t *out, heft_error_t *err);
/* The entry that a route carries, all of it or a part. */
uint32_t heft__packing_get_entry(const heft__packing_t *packing, uint32_t route);
/* Zero-initialised is fine. */
void heft__packing_fini(heft__packing_t *packing);
/* What a heft__chunk_tx_t needs to send packed routes, or to fetch chunks, the caller's
 * (heft__free); NULL where it does neither. */
HEFT_MUST_CHECK heft_status_t heft__packing_make_scratch(const heft__packing_t *packing,
                                                         bool fetches, uint8_t **scratch_out,
                                                         heft_error_t *err);
/* The first route after `after` (UINT32_MAX: of all) by which `sender` sends something of an entry;
 * UINT32_MAX: there is none. */
uint32_t heft__packing_next_route(const heft__packing_t *packing, uint32_t sender, uint32_t entry,
                                  uint32_t after);
/* Everything that `sender` sends of it; base holds the entries as they will lie in the window. As
 * heft__chunk_send. */
HEFT_MUST_CHECK heft_status_t
heft__packing_send(const heft__packing_t *packing, uint32_t sender, heft__remote_t *remote,
                   heft__token_t token, const uint8_t *base, int64_t deadline_mono_ns,
                   heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg,
                   heft__chunk_counts_t *counts, heft_error_t *err);

#endif
