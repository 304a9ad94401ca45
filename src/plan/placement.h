/* SPDX-License-Identifier: Apache-2.0 */
/* What the files on placements share. Private to them. */
#ifndef HEFT_PLAN_PLACEMENT_H
#define HEFT_PLAN_PLACEMENT_H

#include "heft/placement.h"
#include "tape/tape.h"

/* In storage units, as everything here. */
typedef struct heft__bounds {
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
} heft__bounds_t;

typedef struct heft__held {
    uint32_t tensor;
    uint32_t rank;
    heft__bounds_t box;
} heft__held_t;

/* A part of a shard that is read from there. */
typedef struct heft__cut {
    uint32_t shard;
    heft__bounds_t box;
} heft__cut_t;

struct heft_placement {
    heft__arena_t arena;
    heft_tensor_info_t *tensors; /* by name */
    heft_shape_t *shapes;        /* of each, in storage units */
    uint32_t n_tensors;
    heft__held_t *shards; /* by tensor, then rank */
    uint32_t n_shards;
    uint32_t *first_shard; /* n_tensors + 1 */
    uint32_t n_ranks;
    int64_t min_cut_bytes;
    heft__cut_t *cuts; /* by tensor, then element */
    size_t n_cuts, cap_cuts;
    int64_t *load; /* by rank */
};

/* placement_choice.c: cuts and loads, once tensors and shards are there. */
heft_status_t heft__placement_choose(heft_placement_t *p, heft_error_t *err);

#endif
