/* SPDX-License-Identifier: Apache-2.0 */
/* Transposes of any size: private to this folder. */
#ifndef HEFT_KERNEL_TILE_H
#define HEFT_KERNEL_TILE_H

#include "kernel/kernel_ops.h"

/* dst[c * dst_step + r * elem] <- src[r * src_step + c * elem]. */
void heft__transpose(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                     int64_t src_step, int64_t n_rows, int64_t n_cols, uint32_t elem);

#endif
