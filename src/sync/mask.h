/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mask: the bytes of a parameter that rounds leave alone, such as padding that a loader skips.
 * Source and destination count them as zeros in digests; a flip puts back what they hold.
 */
#ifndef HEFT_SYNC_MASK_H
#define HEFT_SYNC_MASK_H

#include "base/base.h"
#include "heft/plan.h"

typedef struct heft__span {
    int64_t begin; /* bytes, of the parameter in row-major order */
    int64_t end;
} heft__span_t;

typedef struct heft__mask {
    heft__span_t *kept; /* ascending and apart; NULL: none */
    size_t n;
} heft__mask_t;

/* What no piece of a parameter with pieces writes. Zero-initialised is none, and may be finished.
 */
HEFT_MUST_CHECK heft_status_t heft__mask_init(const heft_plan_t *plan, uint32_t rank_index,
                                              uint32_t param, heft__mask_t *mask_out,
                                              heft_error_t *err);
void heft__mask_fini(heft__mask_t *mask);
/* CRC-64 of a message whose CRC is crc, followed by n bytes of the parameter from byte `at`, which
 * are at data; kept ones as zeros. mask NULL: none. */
uint64_t heft__mask_crc64(const heft__mask_t *mask, uint64_t crc, const uint8_t *data, int64_t at,
                          int64_t n);
/* The kept bytes of the parameter at `from` to their places at `to`. */
void heft__mask_copy(const heft__mask_t *mask, uint8_t *to, const uint8_t *from);

#endif
