/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of elements: private to this folder. */
#ifndef HEFT_KERNEL_CAST_H
#define HEFT_KERNEL_CAST_H

#include "kernel/kernel_ops.h"

/* n elements of 1, 2, 4, 8 or 16 bytes, steps in bytes. */
void heft__elems_move(void *dst, int64_t dst_step, const void *src, int64_t src_step, int64_t n,
                      uint32_t elem);

/* Contiguous cast; any pair of unpacked dtypes, also equal ones. No fence. */
void heft__cast_block(heft_dtype_t dst_dtype, void *dst, heft_dtype_t src_dtype, const void *src,
                      int64_t n, bool nt);

#endif
