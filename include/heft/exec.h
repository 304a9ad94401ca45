/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan in this process: memory to memory, files to files, and checking one against the
 * other.
 */
#ifndef HEFT_EXEC_H
#define HEFT_EXEC_H

#include "heft/plan.h"
#include "heft/routes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* done of total bytes, for progress; return non-zero to cancel (HEFT_ERR_CANCELED). Called often,
 * from one thread. */
typedef int (*heft_progress_t)(void *arg, int64_t done_bytes, int64_t total_bytes);

/* One destination of a run: a rank of the plan and where its parameters are. */
typedef struct heft_exec_target {
    uint32_t rank_index; /* within the plan, from 0; several targets may name one rank (replicas) */
    uint32_t reserved;
    void *const *params;   /* contiguous parameters in plan order, 64-byte aligned for full speed */
    uint64_t *digests_out; /* NULL, or one CRC-64 per parameter (docs/formats/digest.md) */
} heft_exec_target_t;

typedef struct heft_exec_opts {
    size_t size;
    heft_progress_t progress; /* NULL: none; called about every 8 MiB */
    void *progress_arg;
    uint32_t n_threads; /* 0: 1 */
    uint32_t sender;    /* of routes */
    /* NULL, or routes of the plan, borrowed until destroy: only what this sender writes is run. The
     * digests are then its shares: of what it writes, with zeros elsewhere, so that those of all
     * senders combine by XOR to the digests of the whole */
    const heft_routes_t *routes;
} heft_exec_opts_t;
#define HEFT_EXEC_OPTS_INIT              \
    {                                    \
        .size = sizeof(heft_exec_opts_t) \
    }

typedef struct heft_exec
    heft_exec_t; /* confined: a prepared run, to be used again and again without allocating */

/**
 * Prepare a run of every piece of the targets' ranks: pointers are bound, the work is ordered so
 * that every source is read once, in address order, while it feeds all destinations. plan and the
 * pointer targets are borrowed until destroy. Elements that no piece writes (exceptions, parameters
 * that only the engine's loader can write) are left alone; a parameter without pieces needs no
 * pointer. HEFT_ERR_ARGUMENT names a parameter that does, or the routes are of another plan, or
 * lack the sender; HEFT_ERR_LIMIT: more than 256 threads.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_exec_create(const heft_plan_t *plan,
                                                        const heft_exec_target_t *targets,
                                                        uint32_t n_targets,
                                                        const heft_exec_opts_t *opts,
                                                        heft_exec_t **exec_out, heft_error_t *err);
HEFT_API void heft_exec_destroy(heft_exec_t *exec);

/**
 * Run it: params <- sources (contiguous tensors in plan order; may differ from call to call; NULL
 * where the targets' ranks read nothing). Digests are computed from the source side while copying;
 * elements that no piece writes count as zeros. Blocks. Allocates nothing. HEFT_ERR_ARGUMENT names
 * a source that is NULL. HEFT_ERR_CANCELED leaves the parameters half written, digests as they
 * were. HEFT_ERR_MISMATCH: a check of the plan (heft_plan_get_checks) does not agree with what was
 * written; the first such parameter, index, both sources and both values are named, and digests are
 * as they were.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_exec_run(heft_exec_t *exec, const void *const *sources,
                                                     heft_error_t *err);

/** The digest of one contiguous parameter: CRC-64 over its bytes, position-dependent, linear. One
 * pass, memory speed. */
HEFT_API uint64_t heft_digest(const void *data, int64_t n_bytes);

/* Source i (its place in the source's manifest) will not be read again: drop the reference, free
 * the memory. Called from the calling thread, once for each tensor, ignored ones included. */
typedef void (*heft_release_t)(void *arg, uint32_t i);
/* Group `group` of the plan begins; param is the name of its first parameter. */
typedef void (*heft_group_begin_t)(void *arg, uint32_t group, uint32_t n_groups, const char *param);

typedef struct heft_convert_opts {
    size_t size;
    int64_t max_shard_bytes;  /* 0: 5 GB */
    heft_progress_t progress; /* NULL: none */
    void *progress_arg;
    uint32_t n_threads; /* 0: 1 */
    uint8_t reverse;    /* 1: heft_convert_reverse, for a plan with one rank */
    uint8_t reserved[3];
    /* heft_convert_reverse: a source that no parameter holds any element of is left out where one
     * of kind unused matches its name; borrowed until return */
    const heft_exception_t *exceptions;
    uint32_t n_exceptions;
    uint32_t reserved_2; /* 0 */
    /* Bound on memory beyond the plan: half for pages of files in the process, half for output that
     * is not on disk yet. 0: 1 GiB; at least HEFT_CONVERT_MIN_MEMORY_BYTES. */
    int64_t memory_bytes;
    heft_release_t release; /* NULL: nobody to tell */
    void *release_arg;
    /* 1: finish each group (bytes on disk) before the next; a failure names the group's first
     * parameter */
    uint8_t one_by_one;
    uint8_t reserved_3[7];
    heft_group_begin_t group_begin; /* NULL: none; called with one_by_one only */
    void *group_begin_arg;
    /* how names are written: a manifest of the side that is made, whose recorded native names and
     * declarations (heft_manifest_get_native) give every tensor its name in the files; borrowed
     * until return. NULL: canonical names */
    const heft_manifest_t *names;
} heft_convert_opts_t;
#define HEFT_CONVERT_MIN_MEMORY_BYTES 1000000
#define HEFT_CONVERT_OPTS_INIT              \
    {                                       \
        .size = sizeof(heft_convert_opts_t) \
    }

/**
 * Convert a checkpoint, group by group: writes one checkpoint folder for each rank of the plan
 * ("dir" itself when the plan has one rank, else dir/rank-0, dir/rank-1, ...). Memory is bounded by
 * opts, whatever the size of the checkpoint (docs/internals/exec.md). Parameters that no piece
 * writes are left out. Tensors only: other files of a model are the caller's. Nothing is left under
 * a final name on failure. HEFT_ERR_EXISTS: a rank's folder is not empty, or dir holds a
 * checkpoint. HEFT_ERR_NAME, HEFT_ERR_SHAPE: the source lacks a tensor of the plan, or holds one
 * that the plan does not know, or another one of that name. HEFT_ERR_UNSUPPORTED names a parameter
 * that only the engine's loader can write. HEFT_ERR_MISMATCH: a check of the plan, as in
 * heft_exec_run. HEFT_ERR_IO, HEFT_ERR_NOSPACE, HEFT_ERR_CANCELED.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_convert(const heft_plan_t *plan,
                                                    const heft_checkpoint_t *source,
                                                    const char *dir,
                                                    const heft_convert_opts_t *opts,
                                                    heft_error_t *err);

/**
 * The same from tensors in memory: data[i] is tensor i of the finished manifest `source`,
 * contiguous; borrowed until return, or until opts release it (then never looked at again). On
 * failure what was not released yet is still the caller's. HEFT_ERR_ARGUMENT names a tensor that
 * the plan reads and that is NULL.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_convert_tensors(
    const heft_plan_t *plan, const heft_manifest_t *source, const void *const *data,
    const char *dir, const heft_convert_opts_t *opts, heft_error_t *err);

/**
 * Run a plan of copies backwards: from the checkpoints of all its ranks to the source checkpoint.
 * Elements that the plan repeats are read from the first copy, and the others must agree; checks
 * give their source elements the parameter's values as pieces do; padding must hold the plan's
 * constants. HEFT_ERR_UNSUPPORTED names the parameter whose pieces are no
 * copies; HEFT_ERR_PROOF names a source element that the plan does not use, of a tensor that opts
 * do not leave out; HEFT_ERR_MISMATCH names the first copy that disagrees.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_convert_reverse(const heft_plan_t *plan,
                                                            const heft_checkpoint_t *const *ranks,
                                                            uint32_t n_ranks, const char *dir,
                                                            const heft_convert_opts_t *opts,
                                                            heft_error_t *err);

typedef struct heft_mismatch {
    const char *param; /* borrowed from the plan; NULL when everything agrees */
    uint32_t rank;
    int32_t n_dims;
    int64_t
        index[HEFT_MAX_DIMS]; /* of the first element that differs (packed dtypes: of its byte) */
    int64_t n_elems;          /* elements compared: those of the parameters that the plan writes */
    int64_t n_differ;         /* elements that differ, in all parameters */
    uint32_t n_params;        /* parameters that differ */
    const char *source;       /* expected source tensor, borrowed from the plan; NULL: a constant */
    int64_t source_index; /* flat element index in it; of a computed value, in its first source; -1:
                             a constant, or the result of a known kernel */
    uint64_t expected_bits;
    uint64_t actual_bits;
} heft_mismatch_t;

/**
 * Compare a destination checkpoint with what the plan makes of the source, element by element, bit
 * for bit. A parameter that agrees is compared with the plan's checks of it as well, up to the
 * first that differs. HEFT_ERR_MISMATCH with *mismatch_out filled for the first difference
 * (parameter order); HEFT_OK fills the counts.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_verify(const heft_plan_t *plan, uint32_t rank_index,
                                                   const heft_checkpoint_t *source,
                                                   const heft_checkpoint_t *destination,
                                                   heft_mismatch_t *mismatch_out,
                                                   heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
