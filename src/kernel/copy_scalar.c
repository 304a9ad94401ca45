/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar level: moves by memcpy, transposes element by element. */
#include "kernel/ops_scalar.h"

#include <string.h>

static void no_fence(void)
{
}

void heft__scalar_move(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                       int64_t n_runs, int64_t n, bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    for (int64_t r = 0; r < n_runs; r++) {
        memcpy(dst + r * dst_step, src + r * src_step, (size_t)n);
    }
}

/* Constant sizes let the compiler turn memcpy into one move. */
#define TRANSPOSE(bytes)                                                                       \
    for (int64_t c = 0; c < n_cols; c++) {                                                     \
        for (int64_t r = 0; r < n_rows; r++) {                                                 \
            memcpy(dst + c * dst_step + r * (bytes), tile + r * HEFT__TILE_STEP + c * (bytes), \
                   (bytes));                                                                   \
        }                                                                                      \
    }

void heft__scalar_transpose(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int64_t n_lines,
                            int64_t n_lanes, uint32_t elem, bool nt)
{
    int64_t n_rows = n_lines * 64 / elem;
    int64_t n_cols = n_lanes * 16 / elem;
    (void)nt;
    switch (elem) {
    case 1:
        TRANSPOSE(1)
        break;
    case 2:
        TRANSPOSE(2)
        break;
    case 4:
        TRANSPOSE(4)
        break;
    case 8:
        TRANSPOSE(8)
        break;
    default:
        TRANSPOSE(16)
        break;
    }
}

#define EVENS(bytes)                                               \
    for (int64_t i = 0; i < n; i++) {                              \
        memcpy(dst + i * (bytes), src + 2 * i * (bytes), (bytes)); \
    }

void heft__scalar_evens(uint8_t *dst, const uint8_t *src, int64_t n, uint32_t elem)
{
    switch (elem) {
    case 1:
        EVENS(1)
        break;
    case 2:
        EVENS(2)
        break;
    case 4:
        EVENS(4)
        break;
    case 8:
        EVENS(8)
        break;
    default:
        EVENS(16)
        break;
    }
}

const heft__kernel_ops_t heft__ops_scalar = {
    .level = HEFT__CPU_SCALAR,
    .fence = no_fence,
    .move = heft__scalar_move,
    .transpose = heft__scalar_transpose,
    .evens = heft__scalar_evens,
    .crc64 = heft__scalar_crc64,
    .crc64_move = heft__scalar_crc64_move,
    .crc64_shift = heft__scalar_crc64_shift,
    .crc64_runs = heft__scalar_crc64_runs,
    .crc32c = heft__scalar_crc32c,
    .crc32c_move = heft__scalar_crc32c_move,
    .f32_to_bf16 = heft__scalar_f32_to_bf16,
    .bf16_to_f32 = heft__scalar_bf16_to_f32,
    .f32_to_f16 = heft__scalar_f32_to_f16,
    .f16_to_f32 = heft__scalar_f16_to_f32,
    .f32_to_e4m3 = heft__scalar_f32_to_e4m3,
    .f32_to_e5m2 = heft__scalar_f32_to_e5m2,
    .bf16_to_e4m3 = heft__scalar_bf16_to_e4m3,
    .bf16_to_e5m2 = heft__scalar_bf16_to_e5m2,
    .max_bits16 = heft__scalar_max_bits16,
    .max_bits32 = heft__scalar_max_bits32,
    .dequantise_bf16 = heft__scalar_dequantise_bf16,
    .quantise_bf16 = heft__scalar_quantise_bf16,
    .quantise_f32 = heft__scalar_quantise_f32,
    .arith_f32 = heft__scalar_arith_f32,
    .arith_f64 = heft__scalar_arith_f64,
    .e4m3_to_f32 = heft__scalar_e4m3_to_f32,
    .e5m2_to_f32 = heft__scalar_e5m2_to_f32,
};
