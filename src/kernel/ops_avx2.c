/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 level: 32-byte vectors, carry-less multiplication of 16 bytes at a time. */
#include "kernel/simd_avx2.h"

#include "kernel/ops_simd.h"
#include "kernel/f8_simd.h"
#define C_BYTES 16
#include "kernel/crc_simd.h"

const heft__kernel_ops_t heft__ops_avx2 = {
#define OPS_LEVEL HEFT__CPU_AVX2
#include "kernel/ops_table.h"
};
