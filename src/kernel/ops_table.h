/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a vector level's dispatch table: included inside its initialiser. */
/* clang-format off */
    .level = OPS_LEVEL,
    .fence = simd_fence,
    .move = simd_move,
    .transpose = simd_transpose,
    .evens = simd_evens,
    .crc64 = simd_crc64,
    .crc64_move = simd_crc64_move,
    .crc64_shift = simd_crc64_shift,
    .crc64_runs = simd_crc64_runs,
    .crc32c = simd_crc32c,
    .crc32c_move = simd_crc32c_move,
    .f32_to_bf16 = simd_f32_to_bf16,
    .bf16_to_f32 = simd_bf16_to_f32,
    .f32_to_f16 = simd_f32_to_f16,
    .f16_to_f32 = simd_f16_to_f32,
    .f32_to_e4m3 = simd_f32_to_e4m3,
    .f32_to_e5m2 = simd_f32_to_e5m2,
    /* clang-format on */
