/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar kernels, for the tables of levels that have nothing better. Private to this folder. */
#ifndef HEFT_KERNEL_OPS_SCALAR_H
#define HEFT_KERNEL_OPS_SCALAR_H

#include "kernel/kernel_ops.h"

void heft__scalar_move(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                       int64_t n_runs, int64_t n, bool nt, int64_t ahead);
void heft__scalar_transpose(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int64_t n_lines,
                            int64_t n_lanes, uint32_t elem, bool nt);
void heft__scalar_evens(uint8_t *dst, const uint8_t *src, int64_t n, uint32_t elem);
uint64_t heft__scalar_crc64(uint64_t crc, const uint8_t *src, int64_t n);
uint64_t heft__scalar_crc64_move(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                                 int64_t ahead);
uint64_t heft__scalar_crc64_shift(uint64_t crc, int64_t n_bytes);
uint64_t heft__scalar_crc64_runs(const heft__fold_t *by, uint8_t *dst, int64_t dst_step,
                                 const uint8_t *src, int64_t src_step, int64_t n_runs, int64_t n,
                                 bool nt, int64_t ahead);
uint32_t heft__scalar_crc32c(uint32_t crc, const uint8_t *src, int64_t n);
uint32_t heft__scalar_crc32c_move(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n,
                                  bool nt, int64_t ahead);
void heft__scalar_f32_to_bf16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt,
                              int64_t ahead);
void heft__scalar_bf16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt,
                              int64_t ahead);
void heft__scalar_f32_to_f16(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
void heft__scalar_f16_to_f32(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead);
void heft__scalar_f32_to_e4m3(uint8_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
void heft__scalar_f32_to_e5m2(uint8_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
void heft__scalar_bf16_to_e4m3(uint8_t *dst, const uint16_t *src, int64_t n, bool nt,
                               int64_t ahead);
void heft__scalar_bf16_to_e5m2(uint8_t *dst, const uint16_t *src, int64_t n, bool nt,
                               int64_t ahead);
uint32_t heft__scalar_max_bits16(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n);
uint32_t heft__scalar_max_bits32(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n);
void heft__scalar_dequantise_bf16(uint16_t *dst, const uint8_t *src, int64_t n, float factor);
void heft__scalar_quantise_bf16(const heft__quantise_tile_t *tile);
void heft__scalar_quantise_f32(const heft__quantise_tile_t *tile);
void heft__scalar_arith_f32(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                            bool is_uniform, int64_t n);
void heft__scalar_arith_f64(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                            bool is_uniform, int64_t n);
void heft__scalar_e4m3_to_f32(uint32_t *dst, const uint8_t *src, int64_t n);
void heft__scalar_e5m2_to_f32(uint32_t *dst, const uint8_t *src, int64_t n);
void heft__scalar_e8m0_to_f32(uint32_t *dst, const uint8_t *src, int64_t n);

#endif
