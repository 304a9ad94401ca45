/* SPDX-License-Identifier: Apache-2.0 */
/* A prepared run, for the files that build and run it. */
#ifndef HEFT_EXEC_IMPL_H
#define HEFT_EXEC_IMPL_H

#include "exec/exec.h"

#include <stdatomic.h>

#define HEFT__NO_ACC SIZE_MAX

typedef struct heft__job_info {
    uint32_t n_srcs;
    uint32_t order_source; /* the one whose order counts */
    uint32_t source[HEFT_MAX_SOURCES];
    int64_t src_offset[HEFT_MAX_SOURCES];
    size_t acc; /* its digest's accumulator, or HEFT__NO_ACC */
    uint32_t target;
    uint32_t param;
    int64_t bytes;
    bool is_fill;
    int64_t src_begin; /* bytes read of order_source */
    int64_t src_end;
    size_t seq; /* order of making: ties are broken by it, so runs are deterministic */
} heft__job_info_t;

typedef struct heft__batch {
    size_t job_begin;
    size_t job_end;
    int64_t bytes;
    uint64_t unit_begin;
    int64_t part_cost; /* bytes of pages that any one part touches; with a window only */
    uint32_t n_parts;
} heft__batch_t;

/* ---- known kernels (exec_known.c, exec_known_run.c) ---- */

/* What is copied from an output of a known kernel to a parameter of one target. */
typedef struct heft__known_copy {
    const heft_piece_t *piece;
    heft_dtype_t dtype; /* of the parameter */
    uint8_t *dst;
    int64_t param_bytes;
    size_t acc;
    uint32_t target;
    uint32_t param;
} heft__known_copy_t;

/* A kernel of one rank, run in units: some rows of blocks each. */
typedef struct heft__known_job {
    const heft_opaque_t *op;
    heft__known_t known;
    heft__known_grid_t grid;
    uint32_t rank_index;
    heft__known_copy_t *copies;
    size_t n_copies;
    size_t cap_copies;
    int64_t chunk_rows;   /* rows in memory at a time */
    int64_t unit_rows;    /* whole blocks; not more than chunk_rows unless a block is */
    uint64_t batch_units; /* units of one batch */
    uint64_t unit_begin;
    uint64_t n_units;
    int64_t bytes; /* written in all targets */
} heft__known_job_t;

/* Rows of input, rows of output, and an amax and a scale for each block of a unit. */
typedef struct heft__known_layout {
    int64_t input;
    int64_t output;
    int64_t amax;
    int64_t scales;
    int64_t bytes;
} heft__known_layout_t;

typedef struct heft__known_jobs {
    heft__known_job_t *items;
    size_t n;
    size_t cap;
    uint64_t n_units;
    uint8_t *scratch; /* n_threads times scratch_bytes */
    size_t scratch_bytes;
    const void *const *sources; /* of the run */
} heft__known_jobs_t;

struct heft_exec {
    heft__arena_t arena;
    heft__known_jobs_t known;
    heft__checks_t *checks; /* NULL: none */
    heft__pool_t *pool;
    heft__pool_t *own_pool; /* NULL when borrowed */
    heft__progress_t *progress;
    heft__progress_t own_progress;
    const heft_plan_t *plan;
    heft__share_t share; /* routes NULL: of all senders */
    const heft_exec_target_t *targets;
    uint32_t n_targets;
    size_t *target_acc;               /* first accumulator of each target, or HEFT__NO_ACC */
    struct heft__exec_entry *entries; /* only while building */
    size_t n_entries;
    size_t cap_entries;
    heft__job_info_t *infos; /* parallel to jobs */
    heft__job_t *jobs;
    size_t n_jobs;
    heft__batch_t *batches;
    size_t n_batches;
    size_t cap_batches;
    uint64_t n_units;
    int64_t n_bytes;    /* of one run */
    int64_t plan_bytes; /* of all ranks of the plan */
    _Atomic uint64_t *acc;
    size_t n_acc;
    heft__exec_param_fn_t on_param; /* NULL: nobody asks; what follows may then be NULL too */
    void *on_param_arg;
    size_t *slots;      /* of each target: where its rank's parameters begin in the others */
    uint64_t *units_of; /* of each parameter: how many units write it, for each of its targets */
    uint64_t *last_of;  /* and which is the last one */
    _Atomic uint64_t *left; /* of these, in this run */
    size_t n_slots;
    uint64_t *scratch; /* n_threads times max_batch_jobs */
    size_t max_batch_jobs;
    heft__exec_window_t window; /* between is NULL: none */
    uint64_t unit_end;          /* of the window at hand */
    _Atomic uint64_t next_unit;
    _Atomic int64_t done_bytes;
    atomic_bool cancel;
    atomic_bool has_failed; /* whoever sets it may write failure */
    heft_error_t failure;
};

/* Relaxed: the pool's lock orders the accumulators before they are read. */
static inline void heft__exec_add_digest(heft_exec_t *exec, size_t acc, uint64_t value)
{
    if (value != 0) {
        atomic_fetch_xor_explicit(&exec->acc[acc], value, memory_order_relaxed);
    }
}

/* One more piece that reads what a known kernel leaves: of parameter param of target t, at dst. */
heft_status_t heft__known_add(heft_exec_t *exec, uint32_t rank_index, const heft_piece_t *piece,
                              const heft__known_copy_t *copy, heft_error_t *err);
/* When all are added: cuts the work into units and makes room for them. */
heft_status_t heft__known_finish(heft_exec_t *exec, heft_error_t *err);
void heft__known_fini(heft_exec_t *exec);
/* Sources for the next run; HEFT_ERR_ARGUMENT names one that is NULL. */
heft_status_t heft__known_bind(heft_exec_t *exec, const void *const *sources, heft_error_t *err);
/* Where the parts of a thread's memory begin, in bytes from a multiple of 64; false: too large. */
bool heft__known_layout(const heft__known_job_t *job, heft__known_layout_t *layout_out);
/* Run unit `unit` in the memory of this thread; *bytes_out are the bytes written. */
heft_status_t heft__known_run_unit(heft_exec_t *exec, uint64_t unit, uint32_t thread,
                                   int64_t *bytes_out, heft_error_t *err);
/* ---- which parameters are whole (exec_whole.c) ---- */

void heft__exec_whole_fini(heft_exec_t *exec);
void heft__exec_whole_begin(heft_exec_t *exec);
/* A part of this batch, or a unit of this kernel, has been written. */
void heft__exec_whole_note(heft_exec_t *exec, const heft__batch_t *batch);
void heft__exec_whole_note_known(heft_exec_t *exec, const heft__known_job_t *job);

/* The batch of a unit, counted behind those of known kernels. */
const heft__batch_t *heft__exec_find_batch(const heft_exec_t *exec, uint64_t unit);
/* Where the window that begins with this unit (of all) ends. */
uint64_t heft__exec_window_end(const heft_exec_t *exec, uint64_t begin);

#endif
