/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 level of CPUs whose carry-less multiplication takes 32 bytes at a time. */
#include "kernel/simd_avx2.h"

#include "kernel/ops_simd.h"
#include "kernel/f8_simd.h"
#define C_BYTES 32
#include "kernel/crc_simd.h"

const heft__kernel_ops_t heft__ops_avx2_wide = {
#define OPS_LEVEL HEFT__CPU_AVX2_WIDE
#include "kernel/ops_table.h"
};
