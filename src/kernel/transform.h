/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise programs: private to this folder. */
#ifndef HEFT_KERNEL_TRANSFORM_H
#define HEFT_KERNEL_TRANSFORM_H

#include "kernel/kernel_ops.h"

/* An immediate rounded to an arithmetic dtype. */
uint64_t heft__transform_imm_bits(double imm, heft_dtype_t dtype);

/* A part of a prepared transform, with or without its digest; as heft__copy_part_t. */
typedef struct heft__transform_part {
    const heft__transform_plan_t *plan;
    uint8_t *dst;
    const void *const *srcs;
    int64_t begin;
    int64_t end;
    bool nt;
    bool has_digest;
    int64_t digest_end;
} heft__transform_part_t;

uint64_t heft__transform_part_run(const heft__kernel_ops_t *ops,
                                  const heft__transform_part_t *part);

#endif
