/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: strided copies, casts, element-wise programs and checksums, at memory speed.
 *
 * Everything here is single-threaded and allocates nothing. A copy or a transform is *prepared*
 * once into plain data (normalised, strategy chosen) and then run any number of times with new base
 * pointers, from any thread. Strides and extents of the descriptions count elements; the prepared
 * forms count bytes. Destinations never overlap sources. No alignment is required anywhere.
 *
 * What runs is chosen once per process from what the CPU can do (HEFT_CPU=scalar, avx2,
 * avx2-wide or avx512 lowers it); every level gives the same bytes.
 */
#ifndef HEFT_KERNEL_KERNEL_H
#define HEFT_KERNEL_KERNEL_H

#include "heft/tape.h"
#include "tensor/tensor.h"

/* ---- CPU levels ---- */

typedef enum heft__cpu_level {
    HEFT__CPU_SCALAR = 0,
    HEFT__CPU_AVX2 = 1,
    HEFT__CPU_AVX2_WIDE = 2, /* with VPCLMULQDQ */
    HEFT__CPU_AVX512 = 3
} heft__cpu_level_t;

heft__cpu_level_t heft__cpu_get_level(void);
const char *heft__cpu_level_name(heft__cpu_level_t level);
/* Test seam, not for use while kernels run: false (nothing changed) if the CPU cannot do it. */
bool heft__cpu_use_level(heft__cpu_level_t level);

/* ---- strided copies ---- */

/* dst[i] <- src[i] for every index i. dst is injective; src may broadcast (stride 0). A fill is a
 * copy from one element with all source strides 0. */
typedef struct heft__copy {
    uint32_t elem_bytes; /* 1, 2, 4 or 8 */
    int32_t rank;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t dst_stride[HEFT_MAX_DIMS];
    int64_t src_stride[HEFT_MAX_DIMS];
} heft__copy_t;

typedef enum heft__copy_kind {
    HEFT__COPY_EMPTY = 0,
    HEFT__COPY_CONTIGUOUS = 1, /* one run */
    HEFT__COPY_RUNS = 2,       /* runs contiguous on both sides */
    HEFT__COPY_TRANSPOSE = 3,  /* one dimension contiguous in src, another one in dst */
    HEFT__COPY_GATHER = 4      /* element by element */
} heft__copy_kind_t;

/*
 * A prepared copy: loops in descending order of |src step|, destination steps all positive, steps
 * in bytes. A *slab* is one step of loop 0, the outermost dimension of the source; loop 0 of a
 * contiguous copy counts elements.
 */
typedef struct heft__copy_plan {
    heft__copy_kind_t kind;
    uint32_t elem_bytes; /* of what is moved: small runs are merged into wider elements */
    int32_t n_loops;     /* at least 1 unless empty */
    int32_t dst_unit;    /* loop whose dst step is elem_bytes, or -1 */
    int32_t src_unit;    /* loop whose src step is elem_bytes, or -1 */
    int32_t slab_align;  /* cut slabs at multiples of this where speed matters */
    int64_t run_bytes;   /* contiguous on both sides, moved in the innermost step */
    int64_t bytes;       /* destination bytes in all */
    int64_t dst_offset;  /* of the first element, from the base pointer, in bytes */
    int64_t src_offset;
    int64_t src_begin; /* source bytes touched lie in [src_begin, src_end) from the base pointer */
    int64_t src_end;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t dst_step[HEFT_MAX_DIMS];
    int64_t src_step[HEFT_MAX_DIMS];
} heft__copy_plan_t;

/* HEFT_ERR_ARGUMENT: bad rank, extent or elem_bytes, or a destination stride of 0 over more than
 * one element. HEFT_ERR_OVERFLOW: a size in bytes beyond 2^63-1. */
HEFT_MUST_CHECK heft_status_t heft__copy_prepare(const heft__copy_t *copy,
                                                 heft__copy_plan_t *plan_out, heft_error_t *err);

void heft__copy_run(const heft__copy_plan_t *plan, void *dst, const void *src);

/* Slabs [begin, end) of extent[0] only. Disjoint ranges may run in parallel. */
void heft__copy_run_slabs(const heft__copy_plan_t *plan, void *dst, const void *src, int64_t begin,
                          int64_t end);

/*
 * The same, and returns what the bytes written contribute to the digest of a contiguous parameter
 * of param_bytes bytes in which dst (the base pointer) lies at byte dst_offset. Contributions of
 * disjoint writes combine by XOR.
 */
uint64_t heft__copy_run_crc64(const heft__copy_plan_t *plan, void *dst, const void *src,
                              int64_t dst_offset, int64_t param_bytes);

/* ---- casts ---- */

/* One element, bits in the low bytes. Rules in docs/internals/kernel.md. Packed dtypes are no
 * operands. */
uint64_t heft__cast_bits(heft_dtype_t dst_dtype, heft_dtype_t src_dtype, uint64_t bits);

/* n elements; strides in elements, src_stride 0 broadcasts. */
void heft__cast(heft_dtype_t dst_dtype, void *dst, int64_t dst_stride, heft_dtype_t src_dtype,
                const void *src, int64_t src_stride, int64_t n);

/* ---- element-wise programs (semantics: heft_op_t) ---- */

typedef struct heft__transform {
    heft_dtype_t dst_dtype;
    uint32_t n_srcs; /* 0 to HEFT_MAX_SOURCES */
    uint32_t n_ops;  /* 1 to HEFT_MAX_OPS */
    int32_t rank;
    heft_dtype_t src_dtype[HEFT_MAX_SOURCES];
    int64_t extent[HEFT_MAX_DIMS];
    int64_t dst_stride[HEFT_MAX_DIMS];
    int64_t src_stride[HEFT_MAX_SOURCES][HEFT_MAX_DIMS];
    heft_op_t ops[HEFT_MAX_OPS];
} heft__transform_t;

/* A prepared transform: loops in descending order of the primary source's |step|; loop 0 counts
 * slabs. */
typedef struct heft__transform_plan {
    heft_dtype_t dst_dtype;
    uint32_t n_srcs;
    uint32_t n_ops;
    int32_t n_loops;     /* at least 1 */
    uint32_t elem_bytes; /* of the destination */
    uint32_t primary;    /* the source that orders the loops */
    int32_t slab_align;  /* as in heft__copy_plan_t */
    bool is_cast;        /* one source, at most a cast */
    bool is_dequantise;  /* e4m3 times f32, in f32, to bf16 */
    bool needs_env;      /* results depend on the floating-point environment */
    heft_dtype_t src_dtype[HEFT_MAX_SOURCES];
    int64_t bytes; /* destination bytes in all */
    int64_t dst_offset;
    int64_t src_offset[HEFT_MAX_SOURCES];
    int64_t src_begin; /* of the primary source, as in heft__copy_plan_t */
    int64_t src_end;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t dst_step[HEFT_MAX_DIMS];
    int64_t src_step[HEFT_MAX_SOURCES][HEFT_MAX_DIMS];
    heft_op_t ops[HEFT_MAX_OPS]; /* ends with a CAST where the result's dtype is not dst_dtype */
} heft__transform_plan_t;

/* HEFT_ERR_ARGUMENT: a bad description, a packed dtype, or a program that does not leave exactly
 * one value. HEFT_ERR_OVERFLOW as for copies. HEFT_ERR_LIMIT: no room for the final cast. */
HEFT_MUST_CHECK heft_status_t heft__transform_prepare(const heft__transform_t *transform,
                                                      heft__transform_plan_t *plan_out,
                                                      heft_error_t *err);

void heft__transform_run(const heft__transform_plan_t *plan, void *dst, const void *const *srcs);
void heft__transform_run_slabs(const heft__transform_plan_t *plan, void *dst,
                               const void *const *srcs, int64_t begin, int64_t end);
uint64_t heft__transform_run_crc64(const heft__transform_plan_t *plan, void *dst,
                                   const void *const *srcs, int64_t dst_offset,
                                   int64_t param_bytes);

/* One element of a program, the judge of heft__transform_run: src_bits[k] is an element of source
 * k. The result has dtype *dtype_out (before any final cast). The program must be valid. */
uint64_t heft__transform_eval(const heft_op_t *ops, uint32_t n_ops, const heft_dtype_t *src_dtype,
                              const uint64_t *src_bits, heft_dtype_t *dtype_out);

/* ---- blocks of numbers with common scales (docs/formats/known-kernels.md) ---- */

/* Rows of n_cols elements, cut into blocks of block_cols; the rows of a block are those of a call.
 */
typedef struct heft__quantise {
    heft_dtype_t src_dtype;   /* f32, bf16 or f16 */
    heft_dtype_t scale_dtype; /* f32 or f8_e8m0 */
    heft__scale_rule_t rule;
    int64_t n_cols;
    int64_t block_cols;
} heft__quantise_t;

/* What becomes of the elements of one block. */
typedef struct heft__quantise_factor {
    float factor;
    bool divides;
} heft__quantise_factor_t;

/* amax[b] <- the larger of it and the magnitudes in block b of n_rows rows, src_step bytes apart,
 * as bits of an f32; not-a-number is larger than all others. */
void heft__quantise_scan(const heft__quantise_t *q, const void *src, int64_t src_step,
                         int64_t n_rows, uint32_t *amax);
/* The scale of a block from its amax (bits of scale_dtype), and what its elements are multiplied
 * with or divided by. */
uint32_t heft__quantise_scale(const heft__quantise_t *q, uint32_t amax,
                              heft__quantise_factor_t *factor_out);
/* Codes of n_rows rows, n_cols bytes each, one after the other. amax as left by scan. */
void heft__quantise_rows(const heft__quantise_t *q, const uint32_t *amax, const void *src,
                         int64_t src_step, int64_t n_rows, uint8_t *dst);
/* n groups of 16 bytes with a scale each to 32 values each, bf16 or f32. */
void heft__mxfp4_unpack(heft_dtype_t dst_dtype, void *dst, const uint8_t *blocks,
                        const uint8_t *scales, int64_t n);

/* ---- many copies and transforms that read the same source ---- */

typedef struct heft__job {
    const heft__copy_plan_t *copy; /* exactly one of copy and transform */
    const heft__transform_plan_t *transform;
    void *dst;
    const void *src[HEFT_MAX_SOURCES];
    int64_t dst_offset;  /* byte of dst within its parameter; used for the digest only */
    int64_t param_bytes; /* 0: no digest */
} heft__job_t;

/*
 * Run jobs together: the source is read once, in address order, while it feeds all of them. Best
 * given the jobs of one source tensor, sorted or not; right for any set.
 *
 * part of n_parts (0 <= part < n_parts) does that share of the source range, so that threads can
 * share one call's work and long calls can be cut; all parts together do all of it. The shares do
 * not overlap. digests: NULL, or n_jobs values into which contributions are XORed.
 */
void heft__jobs_run(const heft__job_t *jobs, size_t n_jobs, uint32_t part, uint32_t n_parts,
                    uint64_t *digests);

/* ---- checksums ---- */

/* CRC-64 of docs/formats/digest.md: zero initial value, no final xor, so zero bytes in front cost
 * nothing and crc(a ^ b) = crc(a) ^ crc(b). */
uint64_t heft__crc64(const void *data, int64_t n_bytes);
/* Of a message whose CRC is crc, followed by data. */
uint64_t heft__crc64_update(uint64_t crc, const void *data, int64_t n_bytes);
/* Of a message whose CRC is crc, followed by n_bytes zero bytes: crc * x^(8 n_bytes) mod P. */
uint64_t heft__crc64_shift(uint64_t crc, int64_t n_bytes);
/* memcpy and heft__crc64_update in one pass. */
uint64_t heft__crc64_copy(uint64_t crc, void *dst, const void *src, int64_t n_bytes);

/* CRC-32C, as in iSCSI: heft__crc32c(0, "123456789", 9) is e3069283; feed the result back in to
 * continue. */
uint32_t heft__crc32c(uint32_t crc, const void *data, int64_t n_bytes);
uint32_t heft__crc32c_copy(uint32_t crc, void *dst, const void *src, int64_t n_bytes);

/* Contiguous copy, choosing non-temporal stores for large n; complete (fenced) on return. */
void heft__memcpy(void *dst, const void *src, int64_t n_bytes);

#endif
