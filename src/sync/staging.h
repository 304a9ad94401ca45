/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: where the parameters of a rank lie in its staging memory, and what a destination does
 * with all of them at once.
 *
 * The rule, computed by both sides on their own: parameters in plan order (bytewise name order),
 * then the inputs of the engine's loader (sync/inputs.h), each at the next multiple of 256 bytes.
 * A parameter that the loader alone writes takes no bytes.
 */
#ifndef HEFT_SYNC_STAGING_H
#define HEFT_SYNC_STAGING_H

#include "base/base.h"
#include "heft/plan.h"
#include "sync/inputs.h"
#include "sync/home.h"
#include "transport/transport.h"

#define HEFT__STAGING_ALIGN 256
#define HEFT__CHUNK_BYTES (INT64_C(1) << 20)

typedef struct heft__staging {
    uint32_t n_params;  /* entries that are parameters: the first ones */
    uint32_t n_entries; /* parameters and inputs */
    int64_t *offsets;   /* bytes from the start of staging */
    int64_t *sizes;     /* bytes */
    int64_t bytes;      /* in all */
} heft__staging_t;

/* From the sizes in plan order. HEFT_ERR_OVERFLOW. Zero-initialised is empty and may be finished.
 */
HEFT_MUST_CHECK heft_status_t heft__staging_init(const int64_t *sizes, uint32_t n_params,
                                                 heft__staging_t *staging_out, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__staging_init_manifest(const heft_manifest_t *manifest,
                                                          heft__staging_t *staging_out,
                                                          heft_error_t *err);
/* inputs: those of this rank; NULL: none. */
HEFT_MUST_CHECK heft_status_t heft__staging_init_plan(const heft_plan_t *plan, uint32_t rank_index,
                                                      const heft__inputs_t *inputs,
                                                      heft__staging_t *staging_out,
                                                      heft_error_t *err);
void heft__staging_fini(heft__staging_t *staging);

/* What is expected of transports that send in chunks, of one sender that sends all that anybody
 * does: one route for each entry, in order; those of parameters of which nobody sends anything are
 * empty. *routes_out is the caller's (heft__free). */
HEFT_MUST_CHECK heft_status_t heft__staging_expect(const heft__staging_t *staging,
                                                   const heft_routes_t *sent, uint32_t rank_index,
                                                   heft__route_t **routes_out,
                                                   heft__expect_t *expect_out, heft_error_t *err);

/* ---- in place: the same layout, part by part through one buffer ---- */

/* Bytes of the buffer: what is wished for (0: 64 MiB), at least the largest parameter and a digest
 * for each, at most the whole. */
int64_t heft__staging_buffer_bytes(const heft__staging_t *staging, int64_t wished_bytes);
/* The part that begins with parameter `first` ends before this one: as many as fit, at least one.
 * Parameter i lies at offsets[i] - offsets[first]. */
uint32_t heft__staging_part_end(const heft__staging_t *staging, uint32_t first,
                                int64_t buffer_bytes);
/* Bytes of the part [first, end); first == n_params: those of the digests that come last. */
int64_t heft__staging_part_bytes(const heft__staging_t *staging, uint32_t first, uint32_t end);
/* Copy every parameter out to its place, at memory speed. n_threads >= 1; the caller's thread is
 * one of them. */
void heft__staging_copy_out(const heft__staging_t *staging, const uint8_t *memory,
                            const heft__home_t *homes, uint32_t n_threads);
/* The parameters of one part, whose memory begins with `first`. */
void heft__staging_copy_part(const heft__staging_t *staging, uint32_t first, uint32_t end,
                             const uint8_t *memory, const heft__home_t *homes, uint32_t n_threads);

/* digests_out[i] = CRC-64 of the sizes[i] bytes at data[i], n of them. masks: NULL, or one for each
 * (heft__mask_crc64). */
void heft__digest_all(const void *const *data, const int64_t *sizes, const heft__mask_t *masks,
                      uint32_t n, uint32_t n_threads, uint64_t *digests_out);
/* The same of live memory: digests_out[i] is that of homes[i], or 0 where wanted[i] is false. */
void heft__digest_homes(const heft__home_t *homes, const bool *wanted, const heft__mask_t *masks,
                        uint32_t n, uint32_t n_threads, uint64_t *digests_out);

#endif
