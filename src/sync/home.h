/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Home: where a parameter lives, its live memory, contiguous or strided. Made once, when a
 * destination is created; running it allocates nothing. Bytes between the elements of a strided
 * parameter (gaps) are never read for a digest and never written.
 */
#ifndef HEFT_SYNC_HOME_H
#define HEFT_SYNC_HOME_H

#include "heft/model.h"
#include "kernel/kernel.h"
#include "sync/mask.h"

typedef struct heft__home {
    uint8_t *data; /* of element 0, the one with index 0 in every dimension */
    int64_t bytes; /* of the elements, in row-major order without gaps */
    int64_t begin; /* the bytes touched lie in [begin, end) from data */
    int64_t end;
    bool is_strided;
    heft_shape_t shape; /* in storage units */
    int64_t stride[HEFT_MAX_DIMS];

    /* Strided alone. */
    heft__copy_plan_t scatter; /* contiguous bytes to data */
    heft__copy_plan_t gather;  /* data to contiguous bytes */
    /* For digests: blocks in row-major order. Dimension `cut` is cut into `step` indices, those
     * inside of it are whole. */
    uint32_t unit_bytes;
    int32_t cut;
    int64_t step;
    int64_t block_bytes;
    heft__copy_plan_t block; /* data to contiguous bytes */
    heft__copy_plan_t rest;  /* the last block of the cut dimension, where it is shorter */
} heft__home_t;

/*
 * stride: in storage units, one for each dimension; NULL: contiguous. HEFT_ERR_ARGUMENT: data is
 * NULL though there are elements, or two indices are one element (both are named).
 */
HEFT_MUST_CHECK heft_status_t heft__home_init(const heft_tensor_info_t *info, void *data,
                                              const int64_t *stride, heft__home_t *home_out,
                                              heft_error_t *err);
/* Its bytes [begin, end) from `from`, which is the whole in row-major order. Calls for neighbouring
 * ranges, whoever makes them, together write every element once. */
void heft__home_write(const heft__home_t *home, const uint8_t *from, int64_t begin, int64_t end);
/* All of it to `to`, in row-major order. */
void heft__home_read(const heft__home_t *home, uint8_t *to);
/* CRC-64 of its bytes in row-major order: that of heft_digest, whatever the strides. mask: bytes
 * that count as zeros; NULL: none. */
uint64_t heft__home_digest(const heft__home_t *home, const heft__mask_t *mask);

#endif
