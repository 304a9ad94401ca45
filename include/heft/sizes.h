/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that both sides must come to by one rule: what a recipe's functions of these names compute,
 * for adapters that write a manifest.
 */
#ifndef HEFT_SIZES_H
#define HEFT_SIZES_H

#include <stdint.h>

#include "heft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The width to which an intermediate size is padded: the next multiple of 2 * lanes * tp, so that
 * every shard holds whole lanes of both halves. HEFT_ERR_ARGUMENT names what is not positive;
 * HEFT_ERR_OVERFLOW.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_padded_size(int64_t size, int64_t lanes, int64_t tp,
                                                        int64_t *padded_out, heft_error_t *err);

/**
 * How often each key/value head stands on kv_tp ranks: kv_tp / kv_heads where there are more ranks,
 * else once. Rank r then holds head r / factor. HEFT_ERR_ARGUMENT names both numbers where neither
 * divides the other as it must.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_kv_repeat(int64_t kv_heads, int64_t kv_tp,
                                                      int64_t *factor_out, heft_error_t *err);

/**
 * The engines' tensor parallelism, from the configuration and from the environment: at least one
 * must say it, and where both do, they agree. It is never derived from the source. key and variable
 * name the two in messages; configured and value are NULL where they are not set. HEFT_ERR_ARGUMENT
 * names what is missing, what is no positive integer, or both values.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_rollout_tp(const char *key, const int64_t *configured,
                                                       const char *variable, const char *value,
                                                       int64_t *tp_out, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
