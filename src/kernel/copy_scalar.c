/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar level: moves by memcpy, transposes element by element in 32 x 32 tiles. */
#include "kernel/ops_scalar.h"

#include <string.h>

#define TILE 32

static void no_fence(void)
{
}

void heft__scalar_move(uint8_t *dst, const uint8_t *src, int64_t n, bool nt)
{
    (void)nt;
    memcpy(dst, src, (size_t)n);
}

/* Constant sizes let the compiler turn memcpy into one move. */
#define TRANSPOSE_TILE(bytes)                                                                    \
    for (int64_t c = 0; c < n_cols; c++) {                                                       \
        for (int64_t r = 0; r < n_rows; r++) {                                                   \
            memcpy(dst + c * dst_step + r * (bytes), src + r * src_step + c * (bytes), (bytes)); \
        }                                                                                        \
    }

static void transpose_tile(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                           int64_t n_rows, int64_t n_cols, uint32_t elem)
{
    switch (elem) {
    case 1:
        TRANSPOSE_TILE(1)
        break;
    case 2:
        TRANSPOSE_TILE(2)
        break;
    case 4:
        TRANSPOSE_TILE(4)
        break;
    case 8:
        TRANSPOSE_TILE(8)
        break;
    default:
        TRANSPOSE_TILE(16)
        break;
    }
}

void heft__scalar_transpose(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                            int64_t n_rows, int64_t n_cols, uint32_t elem, bool nt)
{
    (void)nt;
    for (int64_t r = 0; r < n_rows; r += TILE) {
        for (int64_t c = 0; c < n_cols; c += TILE) {
            transpose_tile(dst + c * dst_step + r * elem, dst_step, src + r * src_step + c * elem,
                           src_step, heft__min_i64(TILE, n_rows - r),
                           heft__min_i64(TILE, n_cols - c), elem);
        }
    }
}

const heft__kernel_ops_t heft__ops_scalar = {
    .level = HEFT__CPU_SCALAR,
    .fence = no_fence,
    .move = heft__scalar_move,
    .transpose = heft__scalar_transpose,
    .crc64 = heft__scalar_crc64,
    .crc64_move = heft__scalar_crc64_move,
    .crc64_mul = heft__crc64_mul_scalar,
    .crc32c = heft__scalar_crc32c,
    .crc32c_move = heft__scalar_crc32c_move,
    .f32_to_bf16 = heft__scalar_f32_to_bf16,
    .bf16_to_f32 = heft__scalar_bf16_to_f32,
    .f32_to_f16 = heft__scalar_f32_to_f16,
    .f16_to_f32 = heft__scalar_f16_to_f32,
};
