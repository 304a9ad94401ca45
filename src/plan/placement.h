/* SPDX-License-Identifier: Apache-2.0 */
/* What the files on placements share. Private to them. */
#ifndef HEFT_PLAN_PLACEMENT_H
#define HEFT_PLAN_PLACEMENT_H

#include "heft/placement.h"
#include "tape/tape.h"

#define HEFT__MAX_SHARDS (1u << 24)

/* In storage units, as everything here. */
typedef struct heft__bounds {
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
} heft__bounds_t;

typedef struct heft__held {
    uint32_t tensor;
    uint32_t rank;
    const char *name; /* the rank's own */
    uint32_t replica; /* looked at where manifests say it */
    heft__bounds_t box;
} heft__held_t;

/* A part of a shard that is read from there. */
typedef struct heft__cut {
    uint32_t shard;
    heft__bounds_t box;
} heft__cut_t;

/* All that is wrong with what sources say, one line each. */
typedef struct heft__disputes {
    const heft_placement_source_t *sources;
    heft__text_t lines; /* at most 40 */
    uint32_t n;
    heft_error_t first;
} heft__disputes_t;

struct heft_placement {
    heft__arena_t arena;
    heft_tensor_info_t *tensors; /* by name */
    heft_shape_t *shapes;        /* of each, in storage units */
    uint32_t n_tensors;
    heft__held_t *shards; /* by tensor, then rank, box and name */
    uint32_t n_shards;
    uint32_t *first_shard; /* n_tensors + 1 */
    uint32_t n_ranks;
    int64_t min_cut_bytes;
    heft__cut_t *cuts; /* by tensor, then element */
    size_t n_cuts, cap_cuts;
    int64_t *load;     /* by rank */
    uint32_t *host_of; /* by rank, below n_ranks; NULL: nothing is known */
    uint32_t to_host;  /* one more than the receiver's; 0: none of these */
};

/* heft_placement_create of checked arguments. replicas: of each shard, or NULL; n_ranks: at least
 * so many there are; disputes: what to add to where elements are held by nobody or twice, which
 * then is no failure; NULL: it is one. */
heft_status_t heft__placement_make(const heft_manifest_t *tensors, const heft_shard_t *shards,
                                   const uint32_t *replicas, uint32_t n_shards,
                                   const heft_placement_opts_t *opts, uint32_t n_ranks,
                                   heft__disputes_t *disputes, heft_placement_t **placement_out,
                                   heft_error_t *err);

/* The source of a shard, and any other buffer of a tensor's dtype and (storage) shape. */
heft_status_t heft__placement_add_shard(heft_tape_t *tape, const heft_placement_t *p, uint32_t s,
                                        uint32_t *buffer_out, heft_error_t *err);
heft_status_t heft__placement_add_buffer(heft_tape_t *tape, heft_buffer_kind_t kind,
                                         const char *name, heft_dtype_t dtype,
                                         const heft_shape_t *storage, uint32_t *buffer_out,
                                         heft_error_t *err);
/* The elements of `box` in a buffer that holds those of `whole`. */
heft_view_t heft__placement_view(uint32_t buffer, const heft__bounds_t *box,
                                 const heft__bounds_t *whole, int rank);

/* placement_part.c: the tensor of a name, or UINT32_MAX; the first of its cuts. */
uint32_t heft__placement_find(const heft_placement_t *p, const char *name);
size_t heft__placement_first_cut(const heft_placement_t *p, uint32_t tensor);

/* placement_choice.c: cuts and loads, once tensors and shards are there. */
heft_status_t heft__placement_choose(heft_placement_t *p, heft__disputes_t *disputes,
                                     heft_error_t *err);

/* placement_sources.c */
void heft__disputes_add(heft__disputes_t *disputes, heft_status_t status, const char *fmt, ...)
    HEFT_PRINTF(3, 4);
/* Who rank r is. */
void heft__disputes_label(const heft__disputes_t *disputes, uint32_t r, char out[80]);

#endif
