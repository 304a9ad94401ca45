/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A coordinator, a source of a few tensors and an engine registered by a contract, with hooks that
 * count and fail on demand. The engine's memory is the test's own, so that it can be strided.
 */
#ifndef DELIVER_PAIR_H
#define DELIVER_PAIR_H

#include "heft_test.h"
#include "sync/publisher_private.h"
#include "sync/subscriber_private.h"

#include <pthread.h>
#include <stdatomic.h>

enum { DP_MAX = 8, DP_BYTES = 8192, DP_MAX_RANKS = 4 };

typedef struct dp_tensor {
    const char *name; /* NULL ends a list */
    heft_dtype_t dtype;
    heft_shape_t shape;
} dp_tensor_t;

#define DP_SHAPE1(n)               \
    {                              \
        .rank = 1, .extent = { n } \
    }
#define DP_SHAPE2(n, m)               \
    {                                 \
        .rank = 2, .extent = { n, m } \
    }

/* One of several ranks of the source, with rows of every tensor. */
typedef struct dp_rank {
    heft_manifest_t *manifest;
    void *data[DP_MAX];
    int64_t offset[DP_MAX]; /* bytes, of the whole tensor */
    int64_t bytes[DP_MAX];
    heft_publisher_t *pub;
    pthread_t thread;
    int64_t version;
    heft_status_t status;
    heft_error_t err;
} dp_rank_t;

struct dp_pair;
typedef int (*dp_hook_t)(struct dp_pair *pair);

typedef struct dp_pair {
    heft_coordinator_t *coordinator;
    heft_manifest_t *source;
    void *data[DP_MAX]; /* of the source, in name order */
    heft_manifest_t *params;
    heft_param_t live[DP_MAX]; /* what the engine is registered with, in name order */
    uint8_t *blocks[DP_MAX];   /* DP_BYTES each, filled with 0xcc; live[i].data lies in it */
    heft_contract_t *contract;
    heft_publisher_t *pub;
    dp_rank_t ranks[DP_MAX_RANKS]; /* in its place, where the source was split */
    uint32_t n_ranks;
    heft_subscriber_t *sub;
    heft_hooks_t hooks;
    pthread_t poller;
    bool has_poller;
    atomic_bool stop;
    atomic_int n_paused, n_loaded, n_flipped, n_resumed;
    /* NULL, or what the hook does; non-zero fails it */
    dp_hook_t on_pause, on_flipped;
    int (*on_load)(struct dp_pair *pair, const heft_input_t *inputs, uint32_t n);
    const char *reason;           /* of failures */
    heft__transport_t *transport; /* NULL: shared memory */
} dp_pair_t;

/* Coordinator and source. Source bytes are 0x11. */
void dp_start(dp_pair_t *pair, const dp_tensor_t *source, const dp_tensor_t *params);
void dp_start_over(dp_pair_t *pair, heft__transport_t *transport, const dp_tensor_t *source,
                   const dp_tensor_t *params);
/* From now on n ranks push what the source held. */
void dp_split_source(dp_pair_t *pair, uint32_t n);
/* The contract from a recipe; the engine's live memory is contiguous until the test changes it. */
void dp_set_recipe(dp_pair_t *pair, const char *text);
/* The contract from one tape of one rank. */
void dp_set_tape(dp_pair_t *pair, const heft_tape_t *tape, const heft_exception_t *exceptions,
                 uint32_t n_exceptions);
/* Of n ranks from first_rank, equal destinations; partial: others are elsewhere. */
void dp_set_tapes(dp_pair_t *pair, const heft_tape_t *const *tapes, uint32_t n, uint32_t first_rank,
                  bool is_partial);
/* Register the engine, and let it poll when that went well. opts may be NULL. */
heft_status_t dp_join(dp_pair_t *pair, const heft_subscriber_opts_t *opts, heft_error_t *err);
/* Stop polling and unregister. */
void dp_leave(dp_pair_t *pair);
/* Stop polling, or go on: the subscriber is the test's thread's meanwhile. */
void dp_hold(dp_pair_t *pair);
void dp_go_on(dp_pair_t *pair);
void dp_stop(dp_pair_t *pair);
/* Push; every source byte is a function of the version and its place. */
heft_status_t dp_push(dp_pair_t *pair, int64_t version, heft_error_t *err);
uint8_t dp_byte(int64_t version, int tensor, int64_t at);
/* Ask for live digests: 1 they match, 0 they do not, -1 nothing to compare with. */
int dp_verify_live(dp_pair_t *pair);
/* Wait (10 s) until the engine serves this version. */
void dp_await_serving(dp_pair_t *pair, int64_t version);

#endif
