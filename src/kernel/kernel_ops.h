/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatch table: what a CPU level provides, and what the runners share. Private to this
 * folder.
 *
 * Every entry of every level gives the same bytes as the scalar one. `nt` asks for non-temporal
 * stores of whole lines; such stores are ordered by one fence at the end of a public call, never by
 * the entries themselves. `ahead` is how far in front of each line to prefetch, in bytes.
 */
#ifndef HEFT_KERNEL_OPS_H
#define HEFT_KERNEL_OPS_H

#include "kernel/kernel.h"

/* ---- checksums ---- */

#define HEFT__CRC64_POLY UINT64_C(0x95ac9329ac4bc9b5) /* ad93d23594c935a9, bit-reversed */
#define HEFT__CRC32C_POLY UINT32_C(0x82f63b78)

typedef struct heft__fold {
    uint64_t a;
    uint64_t b;
} heft__fold_t;

/* Tables made at first use; see crc_table.c and crc_simd.h. */
typedef struct heft__crc_tables {
    _Alignas(64) heft__fold_t fold64[17];
    heft__fold_t fold32c[17];
    uint64_t x127;
    uint64_t barrett_mu;
    uint64_t power_over_x[8][256]; /* [k][v] = x^(8 * v * 256^k - 1) mod P */
    uint64_t crc64[8][256];        /* slicing by 8 */
    uint32_t crc32c[8][256];
} heft__crc_tables_t;
extern heft__crc_tables_t heft__crc_table_storage;
void heft__crc_tables_init(void); /* heft__ops() does it, and every way to a kernel leads there */

static inline const heft__crc_tables_t *heft__crc_tables(void)
{
    return &heft__crc_table_storage;
}

/* What moves a lane of 16 bytes distance bytes towards the front. */
heft__fold_t heft__fold_by(const heft__crc_tables_t *t, int64_t distance);

/* a * b mod P, bit by bit. */
uint64_t heft__crc64_mul(uint64_t a, uint64_t b);

/* ---- the table ---- */

/* dst <- e4m3 of src times, or divided by, one factor; what is not a number becomes 7f. */
typedef struct heft__quantise_tile {
    uint8_t *dst;
    int64_t dst_step; /* from row to row, in bytes */
    const uint8_t *src;
    int64_t src_step;
    int64_t n_rows;
    int64_t n; /* elements of a row */
    float factor;
    bool divides;
} heft__quantise_tile_t;

typedef struct heft__kernel_ops {
    heft__cpu_level_t level;
    void (*fence)(void);
    /* n_runs runs of n bytes */
    void (*move)(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step,
                 int64_t n_runs, int64_t n, bool nt, int64_t ahead);
    /* dst[c * dst_step + r * elem] <- tile[r * HEFT__TILE_STEP + c * elem] for n_lines * 64 / elem
     * rows and n_lanes * 16 / elem columns; elem 1, 2, 4, 8 or 16. With nt, dst and dst_step are
     * multiples of 64. */
    void (*transpose)(uint8_t *dst, int64_t dst_step, const uint8_t *tile, int64_t n_lines,
                      int64_t n_lanes, uint32_t elem, bool nt);
    /* dst[i] <- src[2 i] for n elements; elem 1, 2, 4, 8 or 16. Reads no byte behind the last. */
    void (*evens)(uint8_t *dst, const uint8_t *src, int64_t n, uint32_t elem);
    uint64_t (*crc64)(uint64_t crc, const uint8_t *src, int64_t n);
    uint64_t (*crc64_move)(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                           int64_t ahead);
    uint64_t (*crc64_shift)(uint64_t crc, int64_t n_bytes);
    /* move, and the CRC of its runs in their places: the sum of each run's CRC times x^(8 *
     * distance from its end to the end of the last run). n is a multiple of 16, dst_step is not
     * negative and by is heft__fold_by(dst_step). */
    uint64_t (*crc64_runs)(const heft__fold_t *by, uint8_t *dst, int64_t dst_step,
                           const uint8_t *src, int64_t src_step, int64_t n_runs, int64_t n, bool nt,
                           int64_t ahead);
    uint32_t (*crc32c)(uint32_t crc, const uint8_t *src, int64_t n); /* no inversions */
    uint32_t (*crc32c_move)(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                            int64_t ahead);
    void (*f32_to_bf16)(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
    void (*bf16_to_f32)(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead);
    void (*f32_to_f16)(uint16_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
    void (*f16_to_f32)(uint32_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead);
    /* these and quantise_* need the default floating-point environment */
    void (*f32_to_e4m3)(uint8_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
    void (*f32_to_e5m2)(uint8_t *dst, const uint32_t *src, int64_t n, bool nt, int64_t ahead);
    void (*bf16_to_e4m3)(uint8_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead);
    void (*bf16_to_e5m2)(uint8_t *dst, const uint16_t *src, int64_t n, bool nt, int64_t ahead);
    /* the largest of n_rows rows of n elements without their signs, as bits: a not-a-number is
     * larger than all others */
    uint32_t (*max_bits16)(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n);
    uint32_t (*max_bits32)(const uint8_t *src, int64_t step, int64_t n_rows, int64_t n);
    /* bf16 of e4m3 times one factor, the product rounded to f32 first */
    void (*dequantise_bf16)(uint16_t *dst, const uint8_t *src, int64_t n, float factor);
    void (*quantise_bf16)(const heft__quantise_tile_t *tile);
    void (*quantise_f32)(const heft__quantise_tile_t *tile);
    /* out <- a op b, memory of any alignment, out overlapping neither; code is an arithmetic
     * operation, b one value if is_uniform or the operation has an immediate. */
    void (*arith_f32)(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                      bool is_uniform, int64_t n);
    void (*arith_f64)(heft_op_code_t code, uint8_t *out, const uint8_t *a, const uint8_t *b,
                      bool is_uniform, int64_t n);
    void (*e4m3_to_f32)(uint32_t *dst, const uint8_t *src, int64_t n); /* dst aligned */
    void (*e5m2_to_f32)(uint32_t *dst, const uint8_t *src, int64_t n);
} heft__kernel_ops_t;

extern const heft__kernel_ops_t heft__ops_scalar;
#ifdef HEFT_KERNEL_X86
extern const heft__kernel_ops_t heft__ops_avx2;
extern const heft__kernel_ops_t heft__ops_avx2_wide;
extern const heft__kernel_ops_t heft__ops_avx512;
#endif

const heft__kernel_ops_t *heft__ops(void);

/* Copies at least this large do not stay in the cache anyway. */
#define HEFT__NT_MIN_BYTES ((int64_t)256 << 10)
/* Shorter runs are partial lines more often than not. */
#define HEFT__NT_MIN_RUN 128
/* Prefetch distance where the source is read densely. */
#define HEFT__AHEAD 8192

/* ---- where bytes go ---- */

/* The destination of a run: how to store, and the digest of what was stored. */
typedef struct heft__sink {
    const heft__kernel_ops_t *ops;
    const uint8_t *param_end; /* end of the parameter; for digests only */
    bool nt;
    bool has_digest;
    uint64_t digest;
    int64_t fold_distance; /* that `fold` is for; 0: none yet */
    heft__fold_t fold;
} heft__sink_t;

/* n contiguous bytes. */
void heft__sink_put(heft__sink_t *sink, uint8_t *dst, const uint8_t *src, int64_t n, int64_t ahead);

/* n_runs runs of n bytes. ahead 0: what suits these runs alone. */
void heft__sink_put_runs(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                         int64_t src_step, int64_t n_runs, int64_t n, int64_t ahead);

/* A tile holds rows of HEFT__TILE_BYTES bytes, HEFT__TILE_STEP apart so that they do not share
 * cache sets; whole lines of rows may be read, so the buffer has HEFT__TILE_ROWS of them. */
#define HEFT__TILE_BYTES 256
#define HEFT__TILE_STEP 320
#define HEFT__TILE_ROWS 128

static inline int64_t heft__tile_rows(uint32_t elem)
{
    return heft__min_i64(HEFT__TILE_ROWS, HEFT__TILE_BYTES / elem);
}

/* dst[c * dst_step + r * elem] <- tile[r][c], r < n_rows <= heft__tile_rows, c < n_cols. */
void heft__sink_put_tile(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *tile,
                         int64_t n_rows, int64_t n_cols, uint32_t elem);

/* ---- parts of prepared copies ---- */

typedef struct heft__copy_part {
    const heft__copy_plan_t *plan;
    uint8_t *dst;
    const uint8_t *src;
    int64_t begin; /* slabs */
    int64_t end;
    int64_t ahead; /* 0: what suits the copy alone */
    bool nt;
    bool has_digest;
    int64_t digest_end; /* bytes from dst (the base pointer) to the end of its parameter */
} heft__copy_part_t;

/* Runs the part, no fence; returns the digest's share (0 without digest). */
uint64_t heft__copy_part_run(const heft__kernel_ops_t *ops, const heft__copy_part_t *part);

#endif
