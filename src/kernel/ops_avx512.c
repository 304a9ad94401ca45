/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 level. */
#include "kernel/simd_avx512.h"

#include "kernel/ops_simd.h"
#include "kernel/f8_simd.h"
#define C_BYTES 64
#include "kernel/crc_simd.h"

const heft__kernel_ops_t heft__ops_avx512 = {
#define OPS_LEVEL HEFT__CPU_AVX512
#include "kernel/ops_table.h"
};
