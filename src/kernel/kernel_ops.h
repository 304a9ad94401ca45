/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatch table: what a CPU level provides. Private to this folder. Every entry of every level
 * gives the same bytes as the scalar one. `nt` asks for non-temporal stores of whole lines; such
 * stores are ordered by one fence at the end of a public call, never by the entries themselves.
 */
#ifndef HEFT_KERNEL_OPS_H
#define HEFT_KERNEL_OPS_H

#include "kernel/kernel.h"

typedef struct kernel_ops {
    heft__cpu_level_t level;
    void (*fence)(void);
    void (*move)(uint8_t *dst, const uint8_t *src, int64_t n, bool nt);
    /* dst[c * dst_step + r * elem] <- src[r * src_step + c * elem], elem 1, 2, 4, 8 or 16 */
    void (*transpose)(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                      int64_t n_rows, int64_t n_cols, uint32_t elem, bool nt);
    uint64_t (*crc64)(uint64_t crc, const uint8_t *src, int64_t n);
    uint64_t (*crc64_move)(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt);
    uint64_t (*crc64_mul)(uint64_t a, uint64_t b);
    uint32_t (*crc32c)(uint32_t crc, const uint8_t *src, int64_t n); /* no inversions */
    uint32_t (*crc32c_move)(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt);
    void (*f32_to_bf16)(uint16_t *dst, const uint32_t *src, int64_t n, bool nt);
    void (*bf16_to_f32)(uint32_t *dst, const uint16_t *src, int64_t n, bool nt);
    void (*f32_to_f16)(uint16_t *dst, const uint32_t *src, int64_t n, bool nt);
    void (*f16_to_f32)(uint32_t *dst, const uint16_t *src, int64_t n, bool nt);
} heft__kernel_ops_t;

extern const heft__kernel_ops_t heft__ops_scalar;

const heft__kernel_ops_t *heft__ops(void);

/* Copies at least this large do not stay in the cache anyway. */
#define HEFT__NT_MIN_BYTES ((int64_t)256 << 10)
/* Shorter runs are partial lines more often than not. */
#define HEFT__NT_MIN_RUN 256

#define HEFT__CRC64_POLY UINT64_C(0x95ac9329ac4bc9b5) /* ad93d23594c935a9, bit-reversed */
#define HEFT__CRC32C_POLY UINT32_C(0x82f63b78)

/* Tables made at first use: byte tables for the scalar CRCs (slicing by 8), powers for shifts. */
typedef struct heft__crc_tables {
    uint64_t crc64[8][256];
    uint32_t crc32c[8][256];
    uint64_t power[8][256]; /* [k][v] = x^(8 * v * 256^k) mod P */
} heft__crc_tables_t;
const heft__crc_tables_t *heft__crc_tables(void);

/* a * b mod P, bit by bit. */
uint64_t heft__crc64_mul_scalar(uint64_t a, uint64_t b);

/* A part of a prepared copy, with or without its digest. */
typedef struct heft__copy_part {
    const heft__copy_plan_t *plan;
    uint8_t *dst;
    const uint8_t *src;
    int64_t begin; /* slabs */
    int64_t end;
    bool nt;
    bool has_digest;
    int64_t digest_end; /* bytes from dst (the base pointer) to the end of its parameter */
} heft__copy_part_t;

/* Runs the part, no fence; returns the digest's share (0 without digest). */
uint64_t heft__copy_part_run(const heft__kernel_ops_t *ops, const heft__copy_part_t *part);

#endif
