/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tape: buffers and an ordered list of writes. It records what a loader or a recipe does to one
 * destination rank.
 *
 * Buffers are sources (global source tensors), parameters (what the destination keeps, in the
 * rank's local shape) and temporaries. Every write goes to an injective view (no element twice)
 * inside its buffer. Later writes win.
 *
 * Threads: a tape is confined while it is built; once no more is added it may be shared freely.
 */
#ifndef HEFT_TAPE_H
#define HEFT_TAPE_H

#include "heft/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_tape heft_tape_t;

typedef enum heft_buffer_kind {
    HEFT_BUFFER_SOURCE = 1,
    HEFT_BUFFER_PARAM = 2,
    HEFT_BUFFER_TEMP = 3
} heft_buffer_kind_t;

typedef struct heft_buffer_info {
    const char *name; /* borrowed from the tape; a temporary may have "" */
    heft_buffer_kind_t kind;
    heft_dtype_t dtype;
    heft_shape_t shape; /* storage shape: packed dtypes count bytes in the last extent */
    int64_t n_elems;    /* storage units */
} heft_buffer_info_t;

/*
 * Element-wise programs, in postfix order over a small stack. LOAD pushes one element of source
 * view `arg` as it is. Arithmetic runs in `dtype` (f32 or f64; for f16 and bf16: computed in f32,
 * rounded to dtype after every op, and the immediate is rounded to dtype first): operands are
 * converted to it, the result has it. CAST rounds to nearest even; NaN stays NaN; float to f8_e4m3
 * and f8_e5m2 saturates. Integers cast among themselves by truncation of bits. BITS sees memory as
 * another dtype, as wide or narrower: what it leaves is no cast.
 */
typedef enum heft_op_code {
    HEFT_OP_LOAD = 1,  /* push source[arg] */
    HEFT_OP_CONST = 2, /* push imm as dtype; imm_bits holds the exact bit pattern of one element */
    HEFT_OP_CAST = 3,  /* top -> dtype */
    HEFT_OP_ADD_IMM = 4, /* top + imm */
    HEFT_OP_MUL_IMM = 5, /* top * imm */
    HEFT_OP_DIV_IMM = 6, /* top / imm */
    HEFT_OP_NEG_EXP = 7, /* -exp(top) */
    HEFT_OP_MUL = 8,     /* pop b, pop a, push a * b */
    HEFT_OP_BITS = 9     /* the bytes of top from byte `arg` on, little-endian, as dtype */
} heft_op_code_t;

typedef struct heft_op {
    uint8_t code;  /* heft_op_code_t */
    uint8_t dtype; /* heft_dtype_t: result (CONST, CAST) or arithmetic dtype */
    uint16_t arg;  /* LOAD: index of the source view; BITS: first byte */
    uint32_t reserved;
    double imm;        /* ADD_IMM, MUL_IMM, DIV_IMM */
    uint64_t imm_bits; /* CONST: bits of the element, little-endian in the low bytes */
} heft_op_t;

#define HEFT_MAX_OPS 16
#define HEFT_MAX_SOURCES 4

typedef enum heft_write_kind {
    HEFT_WRITE_COPY = 1, /* one source of the same dtype, or a cast where dtypes differ */
    HEFT_WRITE_FILL = 2,
    HEFT_WRITE_MAP = 3,
    HEFT_WRITE_OPAQUE = 4
} heft_write_kind_t;

/** An empty tape. HEFT_ERR_NOMEM. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_create(heft_tape_t **tape_out, heft_error_t *err);
HEFT_API void heft_tape_destroy(heft_tape_t *tape);

/**
 * Add a buffer. shape is the logical shape; packed dtypes are converted to storage units. name is
 * copied; it must be non-empty and unique among sources and among parameters, and is free for
 * temporaries. HEFT_ERR_EXISTS for a duplicate; HEFT_ERR_OVERFLOW for more than 2^61 elements.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_add_buffer(
    heft_tape_t *tape, heft_buffer_kind_t kind, const char *name, heft_dtype_t dtype,
    const heft_shape_t *shape, uint32_t *buffer_out, heft_error_t *err);

/**
 * Record `dst <- src`. Extents must be equal. dst must be a parameter or a temporary and injective;
 * src may broadcast. Where dtypes differ the copy is a cast (CAST op). A view with an extent of 0
 * touches nothing. note (may be NULL) says where the write comes from, for messages, such as
 * "hf-to-engine.heft:12". HEFT_ERR_ARGUMENT: view outside its buffer, extents differ, dst is a
 * source, dst not injective. HEFT_ERR_UNSUPPORTED: a cast from or to a packed dtype. A write that
 * is refused, here and below, leaves the tape as it was.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_copy(heft_tape_t *tape, const heft_view_t *dst,
                                                      const heft_view_t *src, const char *note,
                                                      heft_error_t *err);

/** Record `dst <- constant`. bits: the element's bit pattern in dst's dtype, little-endian in the
 * low bytes. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_fill(heft_tape_t *tape, const heft_view_t *dst,
                                                      uint64_t bits, const char *note,
                                                      heft_error_t *err);

/**
 * Record `dst <- program(sources)`, element by element. All views have dst's extents; dst may also
 * be a source (in place: old values are read). n_srcs may be 0. The program must leave exactly one
 * value; it is cast to dst's dtype if its dtype differs. HEFT_ERR_LIMIT: more than HEFT_MAX_SOURCES
 * views or HEFT_MAX_OPS operations.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_map(heft_tape_t *tape, const heft_view_t *dst,
                                                     const heft_view_t *srcs, uint32_t n_srcs,
                                                     const heft_op_t *ops, uint32_t n_ops,
                                                     const char *note, heft_error_t *err);

/**
 * Record a write that is no copy and no map: op names it; it reads srcs and writes dsts as a whole.
 * dsts (one or more) share no element; srcs may be none. An op that begins with "heft." is a known
 * kernel, which heft runs itself (docs/formats/known-kernels.md): its operands are checked, and
 * each of its dsts is a whole buffer in row-major order. Everything else is left to the engine's
 * loader. HEFT_ERR_UNSUPPORTED: a known kernel that this heft does not have. HEFT_ERR_ARGUMENT as
 * above.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_opaque(heft_tape_t *tape, const char *op,
                                                        const heft_view_t *dsts, uint32_t n_dsts,
                                                        const heft_view_t *srcs, uint32_t n_srcs,
                                                        const char *note, heft_error_t *err);

HEFT_API uint32_t heft_tape_get_n_buffers(const heft_tape_t *tape);
HEFT_API uint32_t heft_tape_get_n_writes(const heft_tape_t *tape);
/** Buffer by id; HEFT_ERR_NOT_FOUND. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_query_buffer(const heft_tape_t *tape,
                                                              uint32_t buffer,
                                                              heft_buffer_info_t *info_out,
                                                              heft_error_t *err);
/** The source or parameter with this name; HEFT_ERR_NOT_FOUND. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_find_buffer(const heft_tape_t *tape,
                                                             heft_buffer_kind_t kind,
                                                             const char *name, uint32_t *buffer_out,
                                                             heft_error_t *err);

/**
 * A new tape that does the same without the sources that no write reads, for a plan of one rank of
 * many (heft_plan_opts_t.partial): it is as small as what the rank reads. HEFT_ERR_UNSUPPORTED: a
 * tape of a chain or of a placement. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_prune(const heft_tape_t *tape,
                                                       heft_tape_t **pruned_out, heft_error_t *err);

#define HEFT_TAPE_DIGEST_BYTES 65

/**
 * SHA-256 of what a tape does, 64 hex digits and a zero byte. Notes, the numbers of buffers, the
 * shapes and names of temporaries, and how views are cut have no part in it, so a loader that is
 * traced twice has one digest. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_query_digest(
    const heft_tape_t *tape, char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err);

/**
 * The JSON form (docs/formats/tape.md): equal tapes give equal bytes, and the tape read back does
 * the same, with the same digest and notes; writes that touch nothing are left out. The text is
 * freed with heft_string_free. encode: HEFT_ERR_FORMAT for a name, note or operation that is no
 * UTF-8, or has control characters. decode is strict: HEFT_ERR_FORMAT names an unknown or missing
 * key, a write that cannot be, a digest that is not the content's; HEFT_ERR_UNSUPPORTED a newer
 * format, or a known kernel that this heft does not have.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_encode(const heft_tape_t *tape, char **text_out,
                                                        heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_decode(const char *text, size_t n,
                                                        heft_tape_t **tape_out, heft_error_t *err);

/* One of the models that live on a rank: the target, and drafts. */
typedef struct heft_model_part {
    const char *role; /* "" or before the names of its parameters: "draft" makes "draft.w" */
    const heft_tape_t *tape;
    uint32_t is_frozen; /* 1: its parameters are there, and nothing writes them */
    uint32_t reserved;
} heft_model_part_t;

/* A parameter that is the storage of another model's, such as a draft's embedding. */
typedef struct heft_model_alias {
    uint32_t part;
    uint32_t of_part; /* an earlier one */
    const char *param;
    const char *of_param;
} heft_model_alias_t;

/**
 * The tape of all models of one rank: their sources (one name is one tensor), their parameters
 * under their roles, and their writes, one model after the other. A parameter that is another
 * model's storage is left out: it is written once, through the first model that has it, and must be
 * filled alike by both. All arguments are borrowed until return.
 *
 * HEFT_ERR_EXISTS: two models of one role. HEFT_ERR_SHAPE: a source or alias of two shapes or
 * dtypes. HEFT_ERR_NOT_FOUND: an alias of a parameter that is not there. HEFT_ERR_MISMATCH: an
 * alias that is filled otherwise; both are named. HEFT_ERR_UNSUPPORTED: an operation that fold does
 * not see through writes an alias. HEFT_ERR_ARGUMENT, HEFT_ERR_NOMEM; what fold can return.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_join_models(
    const heft_model_part_t *parts, uint32_t n_parts, const heft_model_alias_t *aliases,
    uint32_t n_aliases, heft_tape_t **tape_out, heft_error_t *err);

/**
 * One tape that does what both do: the sources of second are parameters of first, by name, such as
 * those that a recipe makes and a loader reads. What is between them is never there. Takes both on
 * success, and neither otherwise; of a plan's exceptions, stage 0 is first and stage 1 is second.
 *
 * HEFT_ERR_NAME: second reads what first does not make, or another dtype or number of elements of
 * it. HEFT_ERR_ARGUMENT: one tape twice, or none. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_tape_chain(heft_tape_t *first, heft_tape_t *second,
                                                       heft_tape_t **chain_out, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
