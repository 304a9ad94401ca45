/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of elements: private to this folder. */
#ifndef HEFT_KERNEL_CAST_H
#define HEFT_KERNEL_CAST_H

#include "kernel/kernel_ops.h"

/* n elements of 1, 2, 4, 8 or 16 bytes, steps in bytes; src_step 0 repeats one element. */
void heft__elems_move(const heft__kernel_ops_t *ops, void *dst, int64_t dst_step, const void *src,
                      int64_t src_step, int64_t n, uint32_t elem);

/* Is there a kernel from src to dst that can store past the cache? Equal dtypes count. */
bool heft__cast_is_direct(heft_dtype_t dst_dtype, heft_dtype_t src_dtype);

/* Do these casts depend on the floating-point environment? */
bool heft__cast_needs_env(heft_dtype_t dst_dtype, heft_dtype_t src_dtype);

/*
 * Contiguous cast; any pair of unpacked dtypes, also equal ones. nt and ahead (bytes of the source)
 * are for direct pairs. Runs in the default floating-point environment where it needs one. No
 * fence.
 */
void heft__cast_block(const heft__kernel_ops_t *ops, heft_dtype_t dst_dtype, void *dst,
                      heft_dtype_t src_dtype, const void *src, int64_t n, bool nt, int64_t ahead);

#endif
