/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one fold while it walks the tape. Private to tape.
 *
 * Every written buffer has definers: strips whose map 0 is the element of that buffer and whose
 * further maps are elements of sources. A strip's tag is its origin: the program and the sources it
 * reads, interned, so that equal tags mean "the same kind of copy". Its note is the write.
 */
#ifndef HEFT_TAPE_FOLDING_H
#define HEFT_TAPE_FOLDING_H

#include "tape/definers.h"
#include "tape/program.h"

/* A source of a piece: a source tensor, or what an opaque write left in a buffer. */
typedef struct heft__src_id {
    uint32_t buffer;
    uint32_t opaque_write; /* or HEFT__NO_WRITE */
} heft__src_id_t;

typedef struct heft__origin {
    uint32_t program; /* index in programs; 0 is the empty program */
    uint32_t n_srcs;
    heft__src_id_t srcs[HEFT_MAX_SOURCES]; /* unused ones are 0 */
} heft__origin_t;

typedef struct heft__final_program {
    const heft_op_t *ops;
} heft__final_program_t;

/*
 * A part of the write at hand, operands being resolved one after another. Maps of the strip: the
 * destination, the sources of the operands resolved so far, then the views of the others.
 */
typedef struct heft__part {
    heft__strip_t strip;
    uint32_t n_resolved;               /* maps of resolved operands */
    uint32_t origin[HEFT_MAX_SOURCES]; /* of each resolved operand */
} heft__part_t;

typedef struct heft__part_list {
    heft__part_t *items;
    size_t n;
    size_t cap;
} heft__part_list_t;

typedef struct heft__strip_list {
    heft__strip_t *items;
    size_t n;
    size_t cap;
} heft__strip_list_t;

typedef struct heft__id_list {
    uint32_t *items;
    size_t n;
    size_t cap;
} heft__id_list_t;

/* An overwrite, and the earlier value where it is lost: maps are the element and the sources. */
typedef struct heft__overwrite {
    heft__fold_overwrite_t out;
    heft__strip_t earlier; /* n_maps == 1: not kept */
} heft__overwrite_t;

typedef struct heft__overwrite_list {
    heft__overwrite_t *items;
    size_t n;
    size_t cap;
} heft__overwrite_list_t;

typedef struct heft__folding {
    const heft_tape_t *tape;
    heft__fold_t *fold; /* what is being made */
    uint32_t max_pieces;
    uint32_t tune_after;
    uint32_t write;      /* the one at hand */
    heft__arena_t arena; /* lives as long as the walk */
    heft__box_work_t work;

    heft__definers_t *definers; /* one for each buffer of the tape */
    heft__strip_list_t strips;  /* all definers there are or were */

    heft__origin_t *origins;
    size_t n_origins;
    size_t cap_origins;
    heft__map_t origin_map; /* bytes of a heft__origin_t -> index */
    heft__program_t *programs;
    size_t n_programs;
    size_t cap_programs;
    heft__map_t program_map;
    heft__final_program_t *finals; /* by program: its operations in the fold's memory */
    size_t n_finals;
    size_t cap_finals;

    heft__overwrite_list_t overwrites;

    /* reused from write to write */
    heft__definer_list_t found;
    heft__part_list_t parts;
    heft__part_list_t next_parts;
    heft__strip_list_t results; /* the new pieces of the write */
    heft__strip_list_t remains;
    heft__strip_list_t lost;
    heft__id_list_t ids;
} heft__folding_t;

/* ---- shared helpers (fold.c) ---- */

/* An error that begins with the write at hand. Running out of memory is passed on as it is. */
heft_status_t heft__folding_fail(const heft__folding_t *f, heft_status_t status, heft_error_t *err,
                                 const char *fmt, ...) HEFT_PRINTF(4, 5);

heft_status_t heft__strip_list_push(heft__strip_list_t *list, const heft__strip_t *strip,
                                    heft_error_t *err);

/* The index of an equal origin or program, new or old. */
heft_status_t heft__folding_intern_origin(heft__folding_t *f, const heft__origin_t *origin,
                                          uint32_t *index_out, heft_error_t *err);
heft_status_t heft__folding_intern_program(heft__folding_t *f, const heft__program_t *program,
                                           uint32_t *index_out, heft_error_t *err);

/* ---- resolve.c ---- */

/*
 * The pieces of `dst <- program(srcs)`, in f->results: disjoint, coalesced, map 0 the destination.
 * dst may be any injective view of the extents of the srcs; its buffer is not looked at.
 */
heft_status_t heft__folding_resolve(heft__folding_t *f, const heft__tape_view_t *dst,
                                    const heft__tape_view_t *srcs, uint32_t n_srcs,
                                    const heft_op_t *ops, uint32_t n_ops, heft_error_t *err);

/* ---- overwrite.c ---- */

/* Make f->results the definers of their elements in dst's buffer, in place of those that were. */
heft_status_t heft__folding_define(heft__folding_t *f, const heft__tape_view_t *dst,
                                   heft_error_t *err);

/* ---- emit.c ---- */

/* Pieces in the fold's memory from strips, whose map 0 is an element of buffer. */
heft_status_t heft__folding_make_pieces(heft__folding_t *f, uint32_t buffer,
                                        const heft__strip_t *strips, size_t n,
                                        heft__fold_piece_t *pieces, heft_error_t *err);
/* Everything that is left to do once all writes are walked. */
heft_status_t heft__folding_emit(heft__folding_t *f, heft_error_t *err);

#endif
