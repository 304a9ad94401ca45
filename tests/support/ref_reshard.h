/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge of everything that runs plans: a naive interpreter that executes a tape element by
 * element on bytes, and random cases (sources, tapes of several ranks, the plan made of them) whose
 * every parameter element is written once.
 */
#ifndef REF_RESHARD_H
#define REF_RESHARD_H

#include "heft/plan.h"

#include "heft_test.h"

enum {
    REF_MAX_SOURCES = 8,
    REF_MAX_RANKS = 3,
    REF_MAX_PARAMS = 6,
    REF_GUARD = 64, /* bytes around every parameter */
    REF_POISON = 0xff,
    REF_GUARD_BYTE = 0xa5
};

/* Execute every write of a tape; data[b] are the bytes of buffer b, by id in the tape. */
void ref_reshard(const heft_tape_t *tape, uint8_t *const *data);

typedef struct ref_opts {
    bool copies_only; /* copies and constants, nothing that computes */
    bool whole_parts; /* use every element of some sources, so that going back may succeed */
    int n_ranks;      /* 0: random */
    int n_sources;    /* 0: random */
} ref_opts_t;

typedef struct ref_source {
    char name[24];
    heft_dtype_t dtype;
    heft_shape_t logical;
    heft_shape_t shape; /* storage */
    int64_t n_elems;    /* storage units */
    int64_t n_bytes;
    uint8_t *data; /* random bytes */
} ref_source_t;

typedef struct ref_case {
    int n_sources;
    ref_source_t sources[REF_MAX_SOURCES]; /* in bytewise name order */
    int n_ranks;
    heft_tape_t *tapes[REF_MAX_RANKS];
    heft_plan_t *plan;
    const void *source_data[REF_MAX_SOURCES]; /* in the plan's order */
    uint8_t **expected[REF_MAX_RANKS];        /* bytes of each parameter, in the plan's order */
    uint32_t n_params[REF_MAX_RANKS];
    const heft_exception_t *exceptions; /* of the plan */
    uint32_t n_exceptions;
} ref_case_t;

/* Fails the test when the case cannot be planned. */
void ref_case_init(ref_case_t *c, uint64_t *rng, const ref_opts_t *opts);
void ref_case_fini(ref_case_t *c);
/*
 * Cases by hand: an empty case, sources in bytewise name order (filled with random bytes; returns
 * the source's index), then the tapes, in which the id of a source is its index, then finish.
 */
int ref_case_source(ref_case_t *c, const char *name, heft_dtype_t dtype, int rank,
                    const int64_t *extent);
heft_tape_t *ref_case_tape(ref_case_t *c);
/* Add a parameter to a tape; returns its buffer id. */
uint32_t ref_tape_param(heft_tape_t *tape, const char *name, heft_dtype_t dtype, int rank,
                        const int64_t *extent);
/* A contiguous view of a whole buffer, and views of views. */
heft_view_t ref_view(const heft_tape_t *tape, uint32_t buffer);
heft_view_t ref_narrow(heft_view_t view, int dim, int64_t begin, int64_t n);
heft_view_t ref_swap(heft_view_t view, int a, int b);
void ref_copy(heft_tape_t *tape, heft_view_t dst, heft_view_t src);
void ref_fill(heft_tape_t *tape, heft_view_t dst, uint64_t bits);

/* From tapes that the caller made over the case's sources (already filled in): plan and expected.
 */
void ref_case_finish(ref_case_t *c);

/* Parameters of one rank as a target sees them: poisoned, with guard bytes around each. */
typedef struct ref_params {
    uint32_t n;
    void **data;
    int64_t *n_bytes;
} ref_params_t;

void ref_params_init(ref_params_t *p, const ref_case_t *c, int rank);
void ref_params_poison(const ref_params_t *p);
/* Every parameter equals what the interpreter made, and no guard byte changed. */
void ref_params_check(const ref_params_t *p, const ref_case_t *c, int rank);
void ref_params_fini(ref_params_t *p);

/* Write a checkpoint folder of tensors; data[i] in bytewise name order. Fails the test on errors.
 */
void ref_write_sources(const ref_case_t *c, const char *dir);

#endif
