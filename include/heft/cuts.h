/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts: which boxes of a tensor are left to one rank when a mesh of devices cuts it.
 *
 * Each dimension of a mesh that shards a tensor is one cut, made of what the cuts before it left. A
 * rank is its *position* in each dimension of the mesh, never the number of its device.
 */
#ifndef HEFT_CUTS_H
#define HEFT_CUTS_H

#include "heft/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where what is cut does not divide: 10 in 3 parts is */
typedef enum heft_cut_rule {
    HEFT_CUT_EVEN = 0, /* refused */
    HEFT_CUT_CEIL = 1, /* (0,4) (4,8) (8,10): the size rounded up, as long as there is something */
    HEFT_CUT_LAST = 2  /* (0,3) (3,6) (6,10): the size rounded down, the rest is the last one's */
} heft_cut_rule_t;

typedef struct heft_cut {
    int32_t dim;      /* of the tensor */
    uint32_t rule;    /* heft_cut_rule_t */
    uint32_t n_parts; /* the extent of the mesh's dimension */
    uint32_t part;    /* the rank's position in it */
    uint32_t
        n_blocks; /* more than 1: cut into so many blocks first; a part has its share of each */
    uint32_t reserved; /* 0 */
} heft_cut_t;

/* A box of a tensor, and where it begins in the tensor that holds it. */
typedef struct heft_cut_box {
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
    int64_t local[HEFT_MAX_DIMS];
} heft_cut_box_t;

/**
 * What is left of a tensor after n_cuts cuts, one after the other; everything is borrowed until
 * return.
 *
 * local_out    the shape of what is left, as one tensor.
 * boxes        capacity boxes, in the order in which they stand there; NULL where capacity is 0.
 * n_boxes_out  how many boxes there are: none where nothing is left, more than one only after cuts
 *              with blocks. Those beyond capacity are not written.
 *
 * Threads: any. Blocks: no.
 * HEFT_ERR_ARGUMENT  a dimension the shape does not have, part beyond n_parts, an unknown rule.
 * HEFT_ERR_SHAPE     a cut by HEFT_CUT_EVEN that does not divide; it names dimension and numbers.
 * HEFT_ERR_LIMIT     more than 65536 boxes. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_shape_cut(const heft_shape_t *shape,
                                                      const heft_cut_t *cuts, uint32_t n_cuts,
                                                      heft_shape_t *local_out,
                                                      heft_cut_box_t *boxes, uint32_t capacity,
                                                      uint32_t *n_boxes_out, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
