/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: folded, proven, immutable.
 *
 * A plan is built from one tape for each destination rank. Each tape is folded to pieces that run
 * straight from source tensors to parameters; the pieces of each rank are proven to cover every
 * element of every parameter exactly once, and all ranks together to use every source element. What
 * the proof finds is kept in a report, by name and index range.
 */
#ifndef HEFT_PLAN_H
#define HEFT_PLAN_H

#include "heft/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_plan heft_plan_t;     /* immutable: share freely */
typedef struct heft_report heft_report_t; /* immutable */

typedef enum heft_finding_kind {
    HEFT_FINDING_UNCOVERED = 1,   /* parameter elements nothing writes */
    HEFT_FINDING_OVERWRITTEN = 2, /* parameter elements written twice from different sources; the
                                     later write wins */
    HEFT_FINDING_CONSTANT = 3, /* parameter elements covered by a constant only (padding): a note */
    HEFT_FINDING_UNUSED = 4,   /* source elements no parameter needs */
    HEFT_FINDING_EXCEPTION = 5, /* an exception that matched: a note with its reason */
    HEFT_FINDING_STALE = 6,     /* an exception that matches nothing */
    HEFT_FINDING_EMPTY = 7,     /* the plan moves zero bytes, or a side is empty */
    HEFT_FINDING_OPAQUE = 8,    /* a group delivered through the engine's loader: a note */
    HEFT_FINDING_OVERLAP = 9,   /* two final pieces write one element: a broken plan */
    HEFT_FINDING_NAME = 10,     /* a name on one side only */
    HEFT_FINDING_SLOW = 11      /* a warning: right, and slow; one of each kind in a plan */
} heft_finding_kind_t;

typedef struct heft_finding {
    heft_finding_kind_t kind;
    int32_t is_error; /* 1: refuses the plan; 0: a note */
    int32_t rank;     /* destination rank, -1 for the source side */
    const char *name; /* parameter or source tensor, or the exception's pattern */
    int64_t n_elems;  /* elements concerned, in all */
    /* first region concerned, as a box of indices: [begin, end) per dimension of the tensor */
    int32_t n_dims;
    int32_t n_regions; /* boxes in all; the first is given */
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
    const char *text; /* one line for people; names the thing, the range, and the nearest name where
                         that helps */
} heft_finding_t;

/* One folded copy: for every index i in extents, dst[i] = program(src_0[i], ..). */
typedef struct heft_piece {
    uint32_t param;  /* parameter index within the rank */
    uint32_t group;  /* group index within the plan */
    int32_t rank;    /* dimensions: dst.rank == each src.rank */
    uint32_t n_srcs; /* 0: constant */
    uint32_t n_ops;  /* 0: plain copy of one source, same dtype */
    int64_t extent[HEFT_MAX_DIMS];
    int64_t dst_offset; /* elements from the start of the parameter */
    int64_t dst_stride[HEFT_MAX_DIMS];
    const struct heft_piece_src *srcs; /* n_srcs of them */
    const heft_op_t *ops;
} heft_piece_t;

typedef struct heft_piece_src {
    uint32_t source; /* source index within the plan; output of the operation if opaque != 0 */
    uint32_t opaque; /* 0: reads a source tensor; k: reads what operation k - 1 of the rank left */
    int64_t offset;  /* elements from the start of the source tensor, or of the output's buffer */
    int64_t stride[HEFT_MAX_DIMS]; /* signed; 0 repeats */
} heft_piece_src_t;

/*
 * An operation that heft does not fold: the engine's loader, or a known kernel (op begins with
 * "heft."), which heft runs itself. Its inputs are contiguous tensors that pieces fill from sources
 * (and from earlier operations of the rank); its outputs are views of work buffers that pieces
 * read.
 */
typedef struct heft_opaque_input {
    heft_dtype_t dtype;
    int32_t reserved;
    heft_shape_t shape;
    const heft_piece_t *pieces; /* their field param is the number of the input */
    uint64_t n_pieces;
} heft_opaque_input_t;

typedef struct heft_opaque_output {
    heft_dtype_t dtype;
    int32_t reserved;
    heft_view_t view; /* where the operation writes; view.buffer numbers the rank's work buffers:
                         equal for outputs, also of other operations, in one buffer */
    int64_t buffer_elems; /* elements of the whole buffer */
} heft_opaque_output_t;

typedef struct heft_opaque {
    const char *op;   /* name of the operation */
    const char *note; /* where it stands, or "" */
    uint32_t n_inputs;
    uint32_t n_outputs;
    uint32_t n_sources;
    uint32_t group;          /* HEFT_GROUP_NONE when no parameter needs it */
    const uint32_t *sources; /* source tensors it needs, as wholes; ascending */
    const heft_opaque_input_t *inputs;
    const heft_opaque_output_t *outputs;
} heft_opaque_t;

typedef struct heft_plan_opts {
    size_t size;
    const heft_exception_t *exceptions; /* borrowed until return; each must excuse something */
    uint32_t n_exceptions;
    uint32_t max_pieces_per_param; /* 0: 1 << 16 */
    uint8_t partial; /* 1: not all destination ranks are here, so unused sources are no error */
    uint8_t reserved[7];
} heft_plan_opts_t;
#define HEFT_PLAN_OPTS_INIT              \
    {                                    \
        .size = sizeof(heft_plan_opts_t) \
    }

/**
 * Fold, prove, group. tapes[r] is the tape of destination rank first_rank + r; borrowed until
 * return. All tapes must agree on the sources they share. On HEFT_ERR_PROOF there is no plan, but
 * *report_out says everything that is wrong; it is given on success as well. report_out may be
 * NULL.
 *
 * Exceptions are matched by whole-token pattern. untouched, derived and frozen excuse a parameter
 * that nothing writes, never one that is written in part, unless the exception names a box: then
 * those of its elements that nothing writes, which keep what they hold (heft_plan_get_n_kept).
 * unused excuses source elements, with a box those within it. together joins the groups of
 * parameters of one rank (with `{l}`: of those with equal tokens there). equal
 * excuses a parameter whose earlier value was replaced by another one, and keeps the earlier one as
 * a check (heft_plan_get_checks), which an operation cannot be part of; elsewhere excuses source
 * elements in the plan of one rank, and in a plan of several states that one of them uses the
 * tensor. One that matches nothing, or has nothing to excuse, is an error, but for an optional one.
 *
 * Threads: any. Blocks: no. HEFT_ERR_SHAPE: tapes disagree on a source. HEFT_ERR_LIMIT: too many
 * pieces; the parameter is named. HEFT_ERR_ARGUMENT: options, or a tape that reads what nothing
 * wrote. HEFT_ERR_NOMEM. The outputs are untouched but on HEFT_OK and HEFT_ERR_PROOF.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_plan_create(const heft_tape_t *const *tapes,
                                                        uint32_t n_tapes, uint32_t first_rank,
                                                        const heft_plan_opts_t *opts,
                                                        heft_plan_t **plan_out,
                                                        heft_report_t **report_out,
                                                        heft_error_t *err);
HEFT_API void heft_plan_destroy(heft_plan_t *plan);
/**
 * The pieces and checks of parts of tapes (heft_placement_apply_part), for the routes of one sender
 * among many, at a price that grows with what it sends. Nothing is proven here and there are no
 * groups: that every parameter is covered and every source used, those prove who plan a rank, or
 * all of it. Exceptions say what is checked (equal). HEFT_ERR_UNSUPPORTED: `equal` of a recipe in a
 * chain. Otherwise as heft_plan_create.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_plan_create_part(const heft_tape_t *const *parts,
                                                             uint32_t n_parts, uint32_t first_rank,
                                                             const heft_plan_opts_t *opts,
                                                             heft_plan_t **plan_out,
                                                             heft_error_t *err);

HEFT_API void heft_report_destroy(heft_report_t *report);
/**
 * Findings that can be had one by one: errors first, then notes. Of one kind at most 40 errors and
 * 40 notes; where there are more, one further finding with an empty name says how many findings and
 * elements there are in all (n_regions and n_elems).
 */
HEFT_API uint32_t heft_report_get_n_findings(const heft_report_t *report);
/** Errors in all, those beyond the first 40 of a kind included. */
HEFT_API uint32_t heft_report_get_n_errors(const heft_report_t *report);
/** Warnings: findings of kind HEFT_FINDING_SLOW, each with its price. */
HEFT_API uint32_t heft_report_get_n_warnings(const heft_report_t *report);
/** Finding i, or NULL; borrowed. */
HEFT_API const heft_finding_t *heft_report_get_finding(const heft_report_t *report, uint32_t i);
/** One line: "refused: 2 errors, 1 note; 1 piece, 16 of 32 bytes planned". Never NULL. */
HEFT_API const char *heft_report_get_summary(const heft_report_t *report);
/** A short lower-case word for a kind, such as "uncovered"; "unknown" for a value that is none. */
HEFT_API const char *heft_finding_kind_get_name(heft_finding_kind_t kind);

typedef struct heft_plan_info {
    uint32_t n_ranks;
    uint32_t first_rank;
    uint32_t n_sources;
    uint32_t n_groups;
    uint64_t n_pieces;
    int64_t n_bytes;          /* bytes written to parameters, constants excluded */
    int64_t n_constant_bytes; /* bytes of constants */
    const char *digest;       /* 64 hex digits, over sources, parameters, pieces, checks, groups */
} heft_plan_info_t;

HEFT_API void heft_plan_query(const heft_plan_t *plan, heft_plan_info_t *info_out);
/**
 * 64 hex digits over one rank alone: its parameters, pieces and checks, sources by name. Equal for
 * that rank in every plan made from equal tapes, whichever other ranks the plan has. NULL for a bad
 * index.
 */
HEFT_API const char *heft_plan_get_rank_digest(const heft_plan_t *plan, uint32_t rank_index);
HEFT_API uint32_t heft_plan_get_n_params(const heft_plan_t *plan, uint32_t rank_index);
/** Parameter i of a rank (by index from 0), in bytewise name order. Logical shape is the storage
 * shape here. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_plan_query_param(const heft_plan_t *plan,
                                                             uint32_t rank_index, uint32_t i,
                                                             heft_tensor_info_t *info_out,
                                                             heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_plan_query_source(const heft_plan_t *plan, uint32_t i,
                                                              heft_tensor_info_t *info_out,
                                                              heft_error_t *err);
/** 1 if nothing uses any of source i because a recipe of a chain ignores what would be made of it.
 */
HEFT_API int heft_plan_leaves_out(const heft_plan_t *plan, uint32_t source);
/** All pieces of a rank, ordered by parameter, then destination offset; borrowed. */
HEFT_API const heft_piece_t *heft_plan_get_pieces(const heft_plan_t *plan, uint32_t rank_index,
                                                  uint64_t *n_out);
/** The pieces of one parameter. */
HEFT_API const heft_piece_t *heft_plan_get_param_pieces(const heft_plan_t *plan,
                                                        uint32_t rank_index, uint32_t param,
                                                        uint64_t *n_out);
/**
 * The checks of a rank, in the order of pieces; borrowed. A check is a piece that writes nothing:
 * what elements of a parameter would be if a later write had not replaced them. Parameters that an
 * exception `equal` excuses have some; in every run each must agree with what the parameter then
 * holds. Their sources count as used and tie groups; n_pieces and sizes do not count them. A check
 * has at least one source and none that is opaque.
 */
HEFT_API const heft_piece_t *heft_plan_get_checks(const heft_plan_t *plan, uint32_t rank_index,
                                                  uint64_t *n_out);
/** The checks of one parameter. */
HEFT_API const heft_piece_t *heft_plan_get_param_checks(const heft_plan_t *plan,
                                                        uint32_t rank_index, uint32_t param,
                                                        uint64_t *n_out);

/*
 * Groups: connected components of parameters that share source elements (of any rank of the plan),
 * or that one opaque write ties together. All of a group is in one version or none of it. Groups
 * are numbered by their first parameter, in (rank, name) order; a parameter that nothing writes has
 * no group.
 */
#define HEFT_GROUP_NONE UINT32_MAX

typedef struct heft_plan_member {
    uint32_t rank_index;
    uint32_t param;
} heft_plan_member_t;

typedef struct heft_group_info {
    uint32_t n_params;
    uint32_t n_sources; /* source tensors that the group reads, wholly or in part */
    uint64_t n_pieces;
    int64_t n_bytes; /* bytes of the group's parameters that pieces write, constants included */
    int64_t source_bytes; /* bytes of distinct source elements that the group reads */
    uint32_t is_opaque;   /* 1: the engine's loader is needed for some of it */
    uint32_t reserved;
} heft_group_info_t;

/** HEFT_ERR_NOT_FOUND for a bad index. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_plan_query_group(const heft_plan_t *plan,
                                                             uint32_t group,
                                                             heft_group_info_t *info_out,
                                                             heft_error_t *err);
/** The parameters of a group in (rank, param) order; borrowed. NULL and 0 for a bad index. */
HEFT_API const heft_plan_member_t *heft_plan_get_group_params(const heft_plan_t *plan,
                                                              uint32_t group, uint32_t *n_out);
/** The sources (indices within the plan) that a group reads, ascending; borrowed. */
HEFT_API const uint32_t *heft_plan_get_group_sources(const heft_plan_t *plan, uint32_t group,
                                                     uint32_t *n_out);
/** Elements of a parameter with pieces that none of them writes: an exception with a box excuses
 * them, and they keep what they hold from version to version. */
HEFT_API int64_t heft_plan_get_n_kept(const heft_plan_t *plan, uint32_t rank_index, uint32_t param);
/** The group of a parameter, or HEFT_GROUP_NONE. */
HEFT_API uint32_t heft_plan_get_param_group(const heft_plan_t *plan, uint32_t rank_index,
                                            uint32_t param);
/** The opaque operations of a rank, in the order in which they run; borrowed. */
HEFT_API const heft_opaque_t *heft_plan_get_opaques(const heft_plan_t *plan, uint32_t rank_index,
                                                    uint32_t *n_out);
/** Where the rule that made a piece or a check stands ("recipe:line"), or "". */
HEFT_API const char *heft_plan_get_piece_note(const heft_plan_t *plan, const heft_piece_t *piece);

#ifdef __cplusplus
}
#endif

#endif
