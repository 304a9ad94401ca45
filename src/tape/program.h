/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise programs: checking, and composing one into another. Private to tape. */
#ifndef HEFT_TAPE_PROGRAM_H
#define HEFT_TAPE_PROGRAM_H

#include "tape/tape.h"

typedef struct heft__program {
    uint32_t n_ops; /* 0: the one source as it is */
    heft_op_t ops[HEFT_MAX_OPS];
} heft__program_t;

/*
 * Check a program over n_srcs sources of these dtypes and bring it into canonical form: unused
 * fields 0, casts that change nothing dropped, a cast to `result` at the end where it is needed. A
 * program that only loads source 0 becomes empty.
 */
heft_status_t heft__program_check(const heft_op_t *ops, uint32_t n_ops,
                                  const heft_dtype_t *src_dtypes, uint32_t n_srcs,
                                  heft_dtype_t result, heft__program_t *program_out,
                                  heft_error_t *err);

/* Is bits a bit pattern of one element of this dtype? */
bool heft__program_is_element(heft_dtype_t dtype, uint64_t bits);

/* How source j of a program is itself computed: a program (n_ops 0: plain) and the new index of
 * each of its sources. */
typedef struct heft__program_part {
    const heft_op_t *ops;
    uint32_t n_ops;
    uint16_t arg[HEFT_MAX_SOURCES];
} heft__program_part_t;

/*
 * The program with every LOAD j replaced by parts[j]. n_ops 0 stands for "LOAD 0". HEFT_ERR_LIMIT
 * beyond HEFT_MAX_OPS.
 */
heft_status_t heft__program_compose(const heft_op_t *ops, uint32_t n_ops,
                                    const heft__program_part_t *parts, heft__program_t *program_out,
                                    heft_error_t *err);

#endif
