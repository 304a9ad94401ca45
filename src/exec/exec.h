/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exec: run a plan in this process. A run is built from pieces (each bound to a kernel job), cut
 * into units of about 8 MiB of one source's address range, and worked off by a small thread pool.
 * Converting, verifying and going backwards are all made of such runs.
 *
 * The pool outlives the runs that use it; a run is confined and allocates nothing.
 */
#ifndef HEFT_EXEC_EXEC_H
#define HEFT_EXEC_EXEC_H

#include "heft/exec.h"
#include "kernel/kernel.h"
#include "plan/plan.h"
#include "tape/tape.h"
#include "tensor/tensor.h"

/* ---- options (the usual rules: a shorter struct keeps defaults, an unknown tail must be 0) ----
 */

heft_status_t heft__exec_opts_load(const heft_exec_opts_t *opts, heft_exec_opts_t *out,
                                   heft_error_t *err);
heft_status_t heft__convert_opts_load(const heft_convert_opts_t *opts, heft_convert_opts_t *out,
                                      heft_error_t *err);

/* ---- progress over several runs: reports about every 8 MiB, and when done ---- */

#define HEFT__EXEC_UNIT_BYTES (INT64_C(8) << 20)
#define HEFT__EXEC_MAX_THREADS 256u

typedef struct heft__progress {
    heft_progress_t fn;
    void *arg;
    int64_t done; /* bytes of the runs before this one */
    int64_t total;
    int64_t reported;
} heft__progress_t;

/* done + extra bytes are ready; false when the caller wants to stop. */
bool heft__progress_report(heft__progress_t *progress, int64_t extra);

/* ---- thread pool: n_threads - 1 workers and the caller ---- */

typedef struct heft__pool heft__pool_t; /* confined */

/* thread is 0 for the caller, 1 and up for workers. */
typedef void (*heft__pool_fn_t)(void *arg, uint32_t thread);

heft_status_t heft__pool_create(uint32_t n_threads, heft__pool_t **pool_out, heft_error_t *err);
void heft__pool_destroy(heft__pool_t *pool);
uint32_t heft__pool_get_n_threads(const heft__pool_t *pool);
/* Calls fn on every thread; returns when all calls have returned. */
void heft__pool_run(heft__pool_t *pool, heft__pool_fn_t fn, void *arg);

/* ---- pieces to kernel jobs ---- */

/* What a piece, or a part of it, needs to run, but for the base pointers. Exactly one of copy and
 * transform. */
typedef struct heft__bound_piece {
    const heft__copy_plan_t *copy;
    const heft__transform_plan_t *transform;
    const uint8_t *fill; /* a block of constants, for pieces without sources (then copy is set) */
    bool is_zero;        /* fill is all zero bytes */
    uint32_t elem_bytes; /* of the parameter */
    uint32_t n_srcs;
    uint32_t primary; /* the source whose order counts */
    uint32_t source[HEFT_MAX_SOURCES];
    int64_t src_offset[HEFT_MAX_SOURCES]; /* bytes */
    int64_t dst_offset;                   /* bytes */
    int64_t bytes;                        /* destination bytes */
    int64_t src_begin;                    /* bytes read of the primary source: [begin, end) */
    int64_t src_end;
} heft__bound_piece_t;

typedef heft_status_t (*heft__bound_sink_t)(void *arg, const heft__bound_piece_t *bound,
                                            heft_error_t *err);

/* How finely pieces are taken apart. */
typedef struct heft__bind_limits {
    int64_t slab_bytes; /* a step of a part's outermost loop is no larger */
    int64_t part_bytes; /* no part is smaller for any other reason */
} heft__bind_limits_t;

/* Calls sink for each part; together they are the piece, none is empty. Prepared data live in
 * arena. */
heft_status_t heft__piece_bind(const heft_plan_t *plan, const heft_piece_t *piece,
                               heft_dtype_t param_dtype, heft__bind_limits_t limits,
                               heft__arena_t *arena, heft__bound_sink_t sink, void *sink_arg,
                               heft_error_t *err);
/* The bits of a constant piece in the parameter's dtype. */
uint64_t heft__piece_constant(const heft_piece_t *piece, heft_dtype_t param_dtype);
/* A piece as a kernel's description, for elements of the parameter of elem_bytes; and one with a
 * program. */
heft__copy_t heft__piece_copy(const heft_piece_t *piece, uint32_t elem_bytes);
heft__transform_t heft__piece_transform(const heft_piece_t *piece, heft_dtype_t dst_dtype,
                                        const heft_dtype_t *src_dtypes);

/* ---- cutting a piece to a range of one of its maps ---- */

/* Called with the indices [begin[k], end[k]) of each dimension. */
typedef heft_status_t (*heft__clip_fn_t)(void *arg, const int64_t *begin, const int64_t *end,
                                         heft_error_t *err);

/* The indices i whose element offset + sum(i_k stride[k]) lies in [lo, hi), as disjoint boxes: few
 * where strides nest, and right always. */
heft_status_t heft__clip(int rank, const int64_t *extent, int64_t offset, const int64_t *stride,
                         int64_t lo, int64_t hi, heft__clip_fn_t fn, void *arg, heft_error_t *err);

/* ---- building runs of some parameters only ---- */

/* The share of one sender of a plan: its pieces and checks. routes NULL: all of them. */
typedef struct heft__share {
    const heft_routes_t *routes; /* of the plan of the run; borrowed as that is */
    uint32_t sender;
} heft__share_t;

/* All pieces of the members (a target is fed when its rank is the member's) that are the share's;
 * share NULL: all. Params that no such piece writes need no pointer; digests are then of the share:
 * what it writes, and zeros elsewhere, so that those of all senders combine by XOR. pool and
 * progress are borrowed until destroy. */
heft_status_t heft__exec_build(const heft_plan_t *plan, const heft_exec_target_t *targets,
                               uint32_t n_targets, const heft_plan_member_t *members,
                               uint64_t n_members, const heft__share_t *share, heft__pool_t *pool,
                               heft__progress_t *progress, heft_exec_t **exec_out,
                               heft_error_t *err);
/* These pieces of one parameter of the target's rank, and no checks. */
heft_status_t heft__exec_build_pieces(const heft_plan_t *plan, const heft_exec_target_t *target,
                                      uint32_t param, const heft_piece_t *pieces, uint64_t n_pieces,
                                      heft__pool_t *pool, heft__progress_t *progress,
                                      heft_exec_t **exec_out, heft_error_t *err);
/* heft_exec_create, without the parameters that it is told of: their pointers may be NULL, their
 * digests are 0. leaves NULL: all are written. */
typedef bool (*heft__exec_leaves_t)(const void *arg, uint32_t rank_index, uint32_t param);
HEFT_MUST_CHECK heft_status_t heft__exec_create_some(const heft_plan_t *plan,
                                                     const heft_exec_target_t *targets,
                                                     uint32_t n_targets,
                                                     const heft_exec_opts_t *opts,
                                                     heft__exec_leaves_t leaves, const void *arg,
                                                     heft_exec_t **exec_out, heft_error_t *err);
/* Called by any thread of a run, once for each parameter that the run writes, when all of it is
 * written; checks of the plan come later. It must not wait long, and allocates nothing. */
typedef void (*heft__exec_param_fn_t)(void *arg, uint32_t rank_index, uint32_t param);
/* Once fn has been set: which unit of a run is the last to write a parameter. Units are begun in
 * order. False: the run does not write it. */
bool heft__exec_find_last_unit(const heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                               uint64_t *unit_out);
/* fn NULL: nobody is told any more. Allocates when it is first called. */
HEFT_MUST_CHECK heft_status_t heft__exec_set_on_param(heft_exec_t *exec, heft__exec_param_fn_t fn,
                                                      void *arg, heft_error_t *err);
/* A bound on the pages that a run over mapped files touches between two calls of `between`, which
 * drops them. One unit of work is always done at once. */
typedef struct heft__exec_window {
    int64_t max_bytes;
    heft_status_t (*between)(void *arg, heft_error_t *err);
    void *arg;
} heft__exec_window_t;

/* *fits_out: false where one unit alone touches more than that. */
heft_status_t heft__exec_set_window(heft_exec_t *exec, const heft__exec_window_t *window,
                                    bool *fits_out, heft_error_t *err);

/* Destination bytes of one run, constants included. */
int64_t heft__exec_get_n_bytes(const heft_exec_t *exec);

/* ---- checks of the plan against a written destination ---- */

typedef struct heft__checks heft__checks_t; /* confined */

heft_status_t heft__checks_create(const heft_plan_t *plan, uint32_t n_threads,
                                  heft__checks_t **checks_out, heft_error_t *err);
void heft__checks_destroy(heft__checks_t *checks);
/* The checks of one parameter, whose memory is data; of a share alone unless it is NULL. */
heft_status_t heft__checks_add(heft__checks_t *checks, uint32_t rank_index, uint32_t param,
                               const heft__share_t *share, const void *data, heft_error_t *err);
/* Sources for the next run; HEFT_ERR_ARGUMENT names one that is NULL. checks may be NULL. */
heft_status_t heft__checks_bind(heft__checks_t *checks, const void *const *sources,
                                heft_error_t *err);
/* HEFT_ERR_MISMATCH names the first disagreement, in the order of adding. Allocates nothing. checks
 * may be NULL; pool has at most the threads of create. */
heft_status_t heft__checks_run(heft__checks_t *checks, heft__pool_t *pool, heft_error_t *err);

/* ---- plan and checkpoint, matched by name ---- */

#define HEFT__NO_TENSOR UINT32_MAX

/* index_out[s]: the tensor of source s in the manifest, for each source that a piece or check of
 * ranks [first, first + n) reads, else HEFT__NO_TENSOR. A tensor that is no source of the plan
 * is an error. HEFT_ERR_NAME, HEFT_ERR_SHAPE. */
heft_status_t heft__match_sources(const heft_plan_t *plan, uint32_t first_rank_index,
                                  uint32_t n_ranks, const heft_manifest_t *manifest,
                                  uint32_t *index_out, heft_error_t *err);
/* The same for the parameters of one rank. Parameters that nothing writes may be missing; a tensor
 * that is no parameter is an error. */
heft_status_t heft__match_params(const heft_plan_t *plan, uint32_t rank_index,
                                 const heft_checkpoint_t *checkpoint, uint32_t *index_out,
                                 heft_error_t *err);
/* A plan counts packed dtypes in bytes; manifests count elements. */
heft_shape_t heft__shape_from_storage(const heft_shape_t *storage, heft_dtype_t dtype);
/* Whether a piece writes the parameter, or there is nothing to write (no elements). */
bool heft__param_is_written(const heft_plan_t *plan, uint32_t rank_index, uint32_t param);
/* HEFT_ERR_UNSUPPORTED, naming the first parameter that only the engine's loader can write. */
heft_status_t heft__refuse_opaque(const heft_plan_t *plan, uint32_t first_rank_index,
                                  uint32_t n_ranks, const char *what, heft_error_t *err);

/* ---- element-wise comparison ---- */

/* Elements of elem_bytes bytes that differ; *first_out (if any differ) is the first. */
int64_t heft__count_differences(const void *a, const void *b, int64_t n_elems, uint32_t elem_bytes,
                                int64_t *first_out);
/* One element, in the low bits. */
uint64_t heft__load_bits(const void *data, int64_t index, uint32_t elem_bytes);
/* "[1, 2, 3]" of flat element index in a contiguous tensor; text holds at least 280 bytes. */
#define HEFT__INDEX_TEXT_BYTES 280
void heft__index_unravel(int64_t flat, const heft_shape_t *shape, int64_t *index_out);
void heft__index_text(int64_t flat, const heft_shape_t *shape, char text[HEFT__INDEX_TEXT_BYTES]);

/* The piece that writes element `flat` of its parameter, and the index within it; NULL: none. */
const heft_piece_t *heft__piece_find(const heft_piece_t *pieces, uint64_t n, int64_t flat,
                                     int64_t index_out[HEFT_MAX_DIMS]);

/* Whether views a and b (strides in elements, 0 repeats) hold the same bits; else *index_out is the
 * first index where they do not, in row-major order. a and b point to index 0. */
bool heft__views_agree(const void *a, const int64_t *a_stride, const void *b,
                       const int64_t *b_stride, int rank, const int64_t *extent,
                       uint32_t elem_bytes, int64_t index_out[HEFT_MAX_DIMS]);

/* ---- sets of elements ---- */

/* The elements a view touches, as runs of neighbours, dimensions innermost first. */
typedef struct heft__runs {
    int64_t offset;    /* smallest element */
    int64_t run_elems; /* 0: no elements at all */
    int32_t n_dims;
    bool is_nested; /* no element is touched twice but by repeats (strides of 0) */
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
} heft__runs_t;

typedef struct heft__elems {
    uint64_t *words;
    size_t cap_words;
    int64_t n_elems;
} heft__elems_t;

typedef enum heft__elems_state {
    HEFT__ELEMS_NONE = 0,
    HEFT__ELEMS_SOME = 1,
    HEFT__ELEMS_ALL = 2
} heft__elems_state_t;

heft__runs_t heft__runs_from(int64_t offset, int rank, const int64_t *extent,
                             const int64_t *stride);
/* An empty set of the elements [0, n_elems); {0} before the first reset, fini after the last. */
heft_status_t heft__elems_reset(heft__elems_t *set, int64_t n_elems, heft_error_t *err);
void heft__elems_fini(heft__elems_t *set);
/* runs must lie inside the set. */
void heft__elems_add(heft__elems_t *set, const heft__runs_t *runs);
heft__elems_state_t heft__elems_test(const heft__elems_t *set, const heft__runs_t *runs);
bool heft__elems_has(const heft__elems_t *set, int64_t elem);
/* How many elements are not in the set; the first run of them where there are any. */
int64_t heft__elems_find_gap(const heft__elems_t *set, int64_t *begin_out, int64_t *end_out);

/* ---- output folders: all or nothing ---- */

/* Where the checkpoints of n ranks are built, and how they get their final names. */
typedef struct heft__rankdirs {
    char *final; /* as asked for */
    char *work;  /* folder that holds the rank folders; NULL when n_ranks is 1 */
    uint32_t n_ranks;
    bool created;        /* work exists */
    uint32_t n_parents;  /* folders above final that were made */
    size_t first_parent; /* length of the shortest of them */
    bool is_inside;      /* work lies in final, which existed before */
} heft__rankdirs_t;

heft_status_t heft__rankdirs_init(heft__rankdirs_t *out, const char *dir, uint32_t n_ranks,
                                  heft_error_t *err);
/* The folder for one rank, owned by the caller (heft__free); NULL when out of memory. */
char *heft__rankdirs_rank(const heft__rankdirs_t *out, uint32_t rank_index);
/* Give everything its final name. On failure nothing has one. */
heft_status_t heft__rankdirs_commit(heft__rankdirs_t *out, heft_error_t *err);
/* Removes what was not committed. */
void heft__rankdirs_fini(heft__rankdirs_t *out);

#endif
