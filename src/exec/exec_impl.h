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
    uint32_t n_parts;
} heft__batch_t;

struct heft_exec {
    heft__arena_t arena;
    heft__checks_t *checks; /* NULL: none */
    heft__pool_t *pool;
    heft__pool_t *own_pool; /* NULL when borrowed */
    heft__progress_t *progress;
    heft__progress_t own_progress;
    const heft_plan_t *plan;
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
    uint64_t *scratch; /* n_threads times max_batch_jobs */
    size_t max_batch_jobs;
    _Atomic uint64_t next_unit;
    _Atomic int64_t done_bytes;
    atomic_bool cancel;
};

#endif
