/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tape: buffers and recorded writes as the parts above see them, and fold, which turns a tape into
 * pieces that run straight from source tensors to parameters.
 */
#ifndef HEFT_TAPE_TAPE_H
#define HEFT_TAPE_TAPE_H

#include "heft/tape.h"
#include "tensor/tensor.h"

/* ---- the tape ---- */

/* heft_view_t with exactly rank extents and strides, in the tape's memory. */
typedef struct heft__tape_view {
    uint32_t buffer;
    int32_t rank;
    int64_t offset;
    const int64_t *extent;
    const int64_t *stride;
} heft__tape_view_t;

typedef struct heft__write {
    heft_write_kind_t kind;
    uint32_t n_dsts; /* 1, but for an opaque write */
    uint32_t n_srcs;
    uint32_t n_ops; /* 0: plain copy, or opaque; the last operation leaves the dtype of dst */
    const heft__tape_view_t *dsts;
    const heft__tape_view_t *srcs;
    const heft_op_t *ops; /* unused fields are 0, so that equal programs are equal bytes */
    const char *op;       /* opaque: its name; else "" */
    const char *note;     /* never NULL */
} heft__write_t;

struct heft_tape {
    heft__arena_t arena;
    heft_buffer_info_t *buffers;
    size_t n_buffers;
    size_t cap_buffers;
    heft__write_t *writes;
    size_t n_writes;
    size_t cap_writes;
    heft__map_t sources; /* name -> buffer */
    heft__map_t params;
    heft__map_t notes; /* note -> 0; keys are the interned texts */
    const char *title; /* whose tape it is, for messages; NULL: nobody said */
    /* of a joined tape, what it was made of; else NULL */
    struct heft_tape **firsts; /* one for each rank of the first */
    struct heft_tape *second;
    uint32_t n_firsts;
    bool is_placed; /* the first part puts whole tensors together from those of ranks */
    bool is_narrow; /* and makes no more of what the second has for sources than it reads */
};

/* The tape that a placed one was made of, and keeps; any other one itself. */
static inline const heft_tape_t *heft__tape_get_unplaced(const heft_tape_t *tape)
{
    return tape->is_placed ? tape->second : tape;
}

/* Whose tape it is, for messages. */
heft_status_t heft__tape_set_title(heft_tape_t *tape, const char *title, heft_error_t *err);

heft_view_t heft__tape_view_expand(const heft__tape_view_t *view);

/* A buffer in messages: `parameter "w"`, or `temporary 12` where it has no name. */
typedef struct heft__label {
    char text[104];
} heft__label_t;

heft__label_t heft__tape_label(const heft_tape_t *tape, uint32_t buffer);

/* heft_tape_add_buffer of a buffer that is sound already, its shape in storage units. */
heft_status_t heft__tape_add_storage(heft_tape_t *tape, const heft_buffer_info_t *given,
                                     uint32_t *buffer_out, heft_error_t *err);

/* A new tape that does the same, in normal form (normal.c), and also has the n_more sources and
 * parameters of `more`, which this one must not have. */
heft_status_t heft__tape_normalise(const heft_tape_t *tape, const heft_buffer_info_t *more,
                                   size_t n_more, heft_tape_t **tape_out, heft_error_t *err);

/* ---- joining (joined.c) ---- */

/* Record the same write on this tape: ids[b] is what buffer b is here, of the same size. */
heft_status_t heft__tape_repeat(heft_tape_t *tape, const heft__write_t *write, const uint32_t *ids,
                                heft_error_t *err);
/* All writes of a tape (wanted NULL), or those marked. */
heft_status_t heft__tape_play(heft_tape_t *tape, const heft_tape_t *from, const uint32_t *ids,
                              const uint8_t *wanted, heft_error_t *err);
/* What stands before the names of one of n ranks where ranks are one source; "" for one alone. */
void heft__rank_prefix(uint32_t n_ranks, uint32_t rank, char out[24]);
/*
 * One tape whose second part reads what the first ones write (n_firsts ranks of them), by name.
 * Takes firsts (the array too) and second on success; the tape keeps them. HEFT_ERR_NAME: the
 * second reads what the first ones do not make.
 */
heft_status_t heft__tape_join(heft_tape_t **firsts, uint32_t n_firsts, heft_tape_t *second,
                              bool is_narrow, heft_tape_t **tape_out, heft_error_t *err);
/* The first half of it: a tape with all buffers and the first ones' writes; *ids_out (heft__free)
 * says what the second one's buffers are there. Of a narrow one the firsts need not make what the
 * second never reads. Nothing is taken. */
heft_status_t heft__tape_begin_join(heft_tape_t *const *firsts, uint32_t n_firsts,
                                    const heft_tape_t *second, bool is_narrow,
                                    heft_tape_t **tape_out, uint32_t **ids_out, heft_error_t *err);
/* is_read[b]: some write reads buffer b, if only none of its elements. */
void heft__tape_mark_read(const heft_tape_t *tape, bool *is_read);
void heft__tape_destroy_parts(heft_tape_t *tape);

/* ---- fold ---- */

typedef struct heft__fold heft__fold_t; /* immutable */

#define HEFT__NO_WRITE UINT32_MAX

/*
 * Where a piece reads. opaque_write == HEFT__NO_WRITE: elements of source tensor `buffer`. Else
 * what that opaque write of the tape left in `buffer` (a temporary or a parameter): it is produced
 * by running the operation, see heft__fold_opaque_t.
 */
typedef struct heft__fold_src {
    uint32_t buffer;
    uint32_t opaque_write;
    int64_t offset;
    const int64_t *stride; /* signed; 0 repeats */
} heft__fold_src_t;

/*
 * dst[i] = program(src_0[i], ..) for every index i in extents. Normal form: extents >= 2,
 * dst_stride > 0 and descending, neighbours merged when they are one run in dst and in every
 * source. n_srcs == 0: constant. n_ops == 0: plain copy of the one source, same dtype.
 */
typedef struct heft__fold_piece {
    uint32_t buffer; /* the parameter's id in the tape */
    uint32_t write;  /* the (first) write of the tape it comes from */
    int32_t rank;
    uint32_t n_srcs;
    uint32_t n_ops;
    int64_t dst_offset;
    const int64_t *extent;
    const int64_t *dst_stride;
    const heft__fold_src_t *srcs;
    const heft_op_t *ops;
} heft__fold_piece_t;

/* A part of a parameter that was written, and written again later. */
typedef struct heft__fold_overwrite {
    uint32_t buffer;
    uint32_t earlier_write;
    uint32_t later_write;
    /* every element got the value it already had: same source elements, same program */
    bool is_same;
    /* the earlier value was a constant (zeroed first, then filled in) */
    bool was_constant;
    /* an update: every source element of the earlier value is a source of the later one */
    bool is_update;
    heft__region_t region;
    /* the earlier value, for exactly the elements of region; NULL where nothing is lost: a value
     * that was constant, is the same, or was updated */
    const heft__fold_piece_t *earlier;
} heft__fold_overwrite_t;

/* One input of an opaque operation: pieces whose destination is a contiguous row-major tensor with
 * the extents of the source view (their field `buffer` is the buffer the view reads). */
typedef struct heft__fold_input {
    const heft__fold_piece_t *pieces;
    uint64_t n_pieces;
} heft__fold_input_t;

typedef struct heft__fold_opaque {
    uint32_t write;
    uint32_t n_inputs; /* == n_srcs of the write */
    const heft__fold_input_t *inputs;
    /* source tensors it needs, through temporaries and other opaque operations; ascending ids */
    const uint32_t *sources;
    uint32_t n_sources;
    bool is_used; /* some piece of a parameter reads what it writes */
} heft__fold_opaque_t;

typedef struct heft__fold_opts {
    uint32_t max_pieces; /* per buffer, while folding and after; 0: 1 << 16 */
    uint32_t tune_after; /* useless finds before an index is sorted anew; 0: 64 and more */
} heft__fold_opts_t;

struct heft__fold {
    heft__arena_t arena;
    uint32_t n_buffers;
    uint64_t n_pieces;
    heft__fold_piece_t *pieces; /* by (buffer, dst_offset) */
    uint64_t *first_piece;      /* n_buffers + 1: pieces of buffer b are [b] up to [b + 1] */
    heft__fold_overwrite_t *overwrites;
    uint64_t n_overwrites;
    heft__fold_opaque_t *opaques; /* by write */
    uint32_t n_opaques;
};

/**
 * Fold a tape. The tape is borrowed until return; the fold holds no pointer into it.
 *
 * Every element of a parameter that the tape writes is in exactly one piece; elements it never
 * writes are in none (that is the proof's business). opts may be NULL.
 * HEFT_ERR_ARGUMENT: an element of a temporary or parameter is read before anything wrote it (the
 * write, the buffer and the index are named). HEFT_ERR_LIMIT: too many pieces, operations or
 * sources; the write or buffer is named.
 */
heft_status_t heft__fold_create(const heft_tape_t *tape, const heft__fold_opts_t *opts,
                                heft__fold_t **fold_out, heft_error_t *err);
void heft__fold_destroy(heft__fold_t *fold);

/* The pieces of one buffer (none unless it is a parameter). */
static inline const heft__fold_piece_t *heft__fold_get_pieces(const heft__fold_t *fold,
                                                              uint32_t buffer, uint64_t *n_out)
{
    *n_out = fold->first_piece[buffer + 1] - fold->first_piece[buffer];
    return fold->pieces + fold->first_piece[buffer];
}

/* The opaque operation of this write of the tape, or NULL. */
heft__fold_opaque_t *heft__fold_find_opaque(const heft__fold_t *fold, uint32_t write);

/* Elements of a piece. */
int64_t heft__fold_piece_count(const heft__fold_piece_t *piece);
/* The elements of the parameter a piece writes. */
heft__region_t heft__fold_piece_region(const heft__fold_piece_t *piece);
/* Source s of a piece as a view of its buffer. */
heft_view_t heft__fold_piece_src_view(const heft__fold_piece_t *piece, uint32_t s);

/* ---- known kernels: opaque writes that heft runs itself. Their text names, versions and fixes
 * them completely (docs/formats/known-kernels.md), so that it can stand in contracts and digests
 * ---- */

#define HEFT__KNOWN_PREFIX "heft."
#define HEFT__KNOWN_TEXT_BYTES 384 /* holds the text of any known kernel */

typedef enum heft__known_code {
    HEFT__KNOWN_FP8_QUANTISE = 1,
    HEFT__KNOWN_MXFP4_UNPACK = 2,
    HEFT__KNOWN_BITS = 3
} heft__known_code_t;

typedef struct heft__known {
    heft__known_code_t code;
    heft__scale_rule_t rule; /* FP8_QUANTISE */
    int32_t n_dims;
    int64_t block[HEFT_MAX_DIMS]; /* extents of a block, of as many dimensions as the input */
} heft__known_t;

/* An input or output: dtype and extents. */
typedef struct heft__known_operand {
    heft_dtype_t dtype;
    int32_t rank;
    const int64_t *extent;
} heft__known_operand_t;

/*
 * The same work on a matrix for each batch: blocks of block_rows x block_cols, the last ones
 * shorter, never across batches. MXFP4_UNPACK: one batch, groups of 32 values are the rows. BITS:
 * one batch, the rows are elements of the wider dtype.
 */
typedef struct heft__known_grid {
    int64_t n_batches;
    int64_t n_rows;
    int64_t n_cols;
    int64_t block_rows;
    int64_t block_cols;
} heft__known_grid_t;

/* Does the name of an opaque write claim to be a known kernel? */
bool heft__known_claims(const char *op);
/* HEFT_ERR_UNSUPPORTED: no such kernel or version; HEFT_ERR_ARGUMENT: its arguments. */
heft_status_t heft__known_parse(const char *op, heft__known_t *known_out, heft_error_t *err);
/* The text that parse reads. */
void heft__known_print(const heft__known_t *known, char text[HEFT__KNOWN_TEXT_BYTES]);
/* The rule of this name, or 0. */
heft__scale_rule_t heft__scale_rule_from_name(const char *name, size_t len);

/* Whether operands are what the kernel takes; grid_out may be NULL. HEFT_ERR_ARGUMENT names the
 * operand, and what was expected. */
heft_status_t heft__known_check(const heft__known_t *known, const heft__known_operand_t *dsts,
                                uint32_t n_dsts, const heft__known_operand_t *srcs, uint32_t n_srcs,
                                heft__known_grid_t *grid_out, heft_error_t *err);

#endif
