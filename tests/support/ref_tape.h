/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge of fold: a naive interpreter that runs a tape element by element.
 *
 * Values are symbols: "element 7 of source 2", "cast to bf16 of ..", interned so that equal values
 * have equal numbers. A second mode moves real bytes, for tapes of copies and fills only.
 */
#ifndef REF_TAPE_H
#define REF_TAPE_H

#include "tape/tape.h"

#define REF_UNDEFINED 0u

typedef struct ref_value {
    uint8_t
        code; /* heft_op_code_t; LOAD is an element of a source or of an opaque write's output */
    uint8_t dtype;
    uint32_t buffer; /* LOAD */
    uint32_t opaque_write;
    int64_t element;
    uint64_t bits; /* CONST: the element; arithmetic: the bits of the immediate */
    uint32_t args[2];
} ref_value_t;

typedef struct ref_overwrite {
    uint32_t buffer;
    uint32_t earlier_write;
    uint32_t later_write;
    uint32_t earlier; /* values */
    uint32_t later;
    int64_t element;
} ref_overwrite_t;

/* What source view `input` of an opaque write read, in row-major order of the view. */
typedef struct ref_input {
    uint32_t write;
    uint32_t input;
    size_t n;
    uint32_t *values;
} ref_input_t;

typedef struct ref_run {
    ref_value_t *values; /* from 1 on */
    size_t n_values;
    size_t cap_values;
    uint32_t *slots; /* hash table over values */
    size_t n_slots;
    uint32_t **buffers; /* value of every element */
    uint32_t **writers; /* the write it comes from */
    size_t n_buffers;
    ref_overwrite_t *overwrites; /* of parameters */
    size_t n_overwrites;
    size_t cap_overwrites;
    ref_input_t *inputs;
    size_t n_inputs;
    size_t cap_inputs;
    bool failed; /* something undefined was read by failed_write, the first time at this place */
    uint32_t failed_write;
    uint32_t failed_buffer;
} ref_run_t;

/* Run the whole tape. Aborts when out of memory: it is only a test. */
void ref_run_init(ref_run_t *run, const heft_tape_t *tape);
void ref_run_fini(ref_run_t *run);

/* The value of dst[index] of a folded piece; index has piece->rank entries. */
uint32_t ref_eval_piece(ref_run_t *run, const heft__fold_piece_t *piece, const int64_t *index);

/* Does a value need no source? Do all sources of a appear in b? How many LOADs has it? */
bool ref_is_constant(const ref_run_t *run, uint32_t value);
bool ref_is_kept(const ref_run_t *run, uint32_t a, uint32_t b);
size_t ref_count_loads(const ref_run_t *run, uint32_t value);

/* Run a tape that has only copies within one dtype and fills on real bytes: buffers[b] has n_elems
 * elements of buffer b; sources are filled in by the caller. */
void ref_run_bytes(const heft_tape_t *tape, unsigned char **buffers);

/* Step a multi-index; false after the last. rank 0 has one index. */
bool ref_next_index(int64_t *index, const int64_t *extent, int rank);
int64_t ref_element(const heft__tape_view_t *view, const int64_t *index);

#endif
