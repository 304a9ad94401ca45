/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converting a checkpoint: one folder for each rank of the plan. Groups are worked off in order,
 * small ones together until a quarter of the memory has come up; the parameters of a turn are
 * mapped in their output files, written by one run, flushed and dropped, and so are the pages of
 * the sources. A turn that would touch more pages than allowed runs in windows, with all pages
 * dropped in between. Output that is not on disk yet counts as well: it cannot be reclaimed, so
 * the oldest is waited for when too much has come together.
 *
 * A source tensor is released once no later group reads it.
 *
 * Parameters that no piece writes (exceptions of the plan) are left out of the output.
 */
#include "exec/exec.h"
#include "format/format.h"

#include <string.h>

/* Output that is being written to disk. */
typedef struct unsaved {
    uint32_t rank;
    uint32_t tensor;
    int64_t n_bytes;
} unsaved_t;

/* What is kept for one rank. */
typedef struct rank_out {
    heft_manifest_t *manifest; /* parameters that are written */
    heft_checkpoint_writer_t *writer;
    uint32_t n_params;
    uint32_t *tensor; /* of each parameter in the manifest, or HEFT__NO_TENSOR */
    void **params;    /* mapped while a turn runs, else NULL */
} rank_out_t;

typedef struct conversion {
    const heft_plan_t *plan;
    const heft_manifest_t *manifest;     /* of the source */
    const heft_checkpoint_t *checkpoint; /* NULL: the tensors are in memory */
    const void *const *data;             /* then these, by tensor of the manifest */
    heft_plan_info_t info;
    heft_convert_opts_t opts;
    heft__pool_t *pool;
    heft__progress_t progress;
    heft__rankdirs_t outdir;
    rank_out_t *ranks;
    heft_exec_target_t *targets;
    uint32_t *source_tensor;
    const void **sources;
    uint32_t *n_readers; /* groups that have yet to read a source */
    heft_plan_member_t *turn;
    size_t n_turn;
    size_t cap_turn;
    uint32_t turn_begin; /* groups [turn_begin, turn_end) */
    uint32_t turn_end;
    int64_t turn_bytes;
    unsaved_t *unsaved; /* [first_unsaved, n_unsaved), oldest first */
    size_t first_unsaved;
    size_t n_unsaved;
    size_t cap_unsaved;
    int64_t unsaved_bytes;
} conversion_t;

/* ---- setting up ---- */

static heft_status_t make_manifest(const conversion_t *c, uint32_t r, heft_error_t *err)
{
    rank_out_t *rank = &c->ranks[r];
    heft_status_t status = heft_manifest_create("destination", &rank->manifest, err);
    uint32_t n_written = 0;
    for (uint32_t p = 0; status == HEFT_OK && p < rank->n_params; p++) {
        rank->tensor[p] = HEFT__NO_TENSOR;
        if (!heft__param_is_written(c->plan, r, p)) {
            continue;
        }
        heft_tensor_info_t info;
        status = heft_plan_query_param(c->plan, r, p, &info, err);
        if (status == HEFT_OK) {
            heft_shape_t shape = heft__shape_from_storage(&info.shape, info.dtype);
            /* both are in bytewise name order, so indices only grow */
            rank->tensor[p] = n_written++;
            status = heft_manifest_add(rank->manifest, info.name, info.dtype, &shape, err);
        }
    }
    if (status == HEFT_OK && c->opts.names != NULL) {
        status = heft__manifest_copy_natives(c->opts.names, rank->manifest, err);
    }
    return status == HEFT_OK ? heft_manifest_finish(rank->manifest, err) : status;
}

static heft_status_t open_rank(conversion_t *c, uint32_t r, heft_error_t *err)
{
    rank_out_t *rank = &c->ranks[r];
    rank->n_params = heft_plan_get_n_params(c->plan, r);
    size_t n = (size_t)rank->n_params + 1;
    rank->tensor = heft__calloc(n, sizeof *rank->tensor);
    rank->params = heft__calloc(n, sizeof *rank->params);
    if (rank->tensor == NULL || rank->params == NULL) {
        return heft__error_nomem(err, n * sizeof *rank->params);
    }
    c->targets[r] = (heft_exec_target_t){ .rank_index = r, .params = rank->params };
    heft_status_t status = make_manifest(c, r, err);
    if (status != HEFT_OK) {
        return status;
    }
    char *path = heft__rankdirs_rank(&c->outdir, r);
    if (path == NULL) {
        return heft__error_nomem(err, strlen(c->outdir.final) + 32);
    }
    status = heft_checkpoint_writer_create(path, rank->manifest, c->opts.max_shard_bytes,
                                           &rank->writer, err);
    heft__free(path);
    return status;
}

static void count_readers(conversion_t *c)
{
    for (uint32_t g = 0; g < c->info.n_groups; g++) {
        uint32_t n = 0;
        const uint32_t *sources = heft_plan_get_group_sources(c->plan, g, &n);
        for (uint32_t i = 0; i < n; i++) {
            c->n_readers[sources[i]]++;
        }
    }
}

/* Tensors that nothing reads are released at once. */
static heft_status_t bind_sources(conversion_t *c, heft_error_t *err)
{
    uint32_t n_tensors = heft_manifest_get_n_tensors(c->manifest);
    uint8_t *is_read = heft__calloc((size_t)n_tensors + 1, 1);
    heft_status_t status = is_read != NULL ? HEFT_OK : heft__error_nomem(err, n_tensors);
    for (uint32_t s = 0; status == HEFT_OK && s < c->info.n_sources; s++) {
        uint32_t t = c->source_tensor[s];
        if (t == HEFT__NO_TENSOR) {
            continue;
        }
        c->sources[s] =
            c->checkpoint != NULL ? heft_checkpoint_get_data(c->checkpoint, t) : c->data[t];
        is_read[t] = c->n_readers[s] > 0;
        if (is_read[t] && c->sources[s] == NULL) {
            heft_tensor_info_t info;
            status = heft_manifest_query(c->manifest, t, &info, err);
            status = status != HEFT_OK ? status
                                       : heft__error_set(err, HEFT_ERR_ARGUMENT,
                                                         "source \"%s\" is NULL", info.name);
        }
    }
    for (uint32_t t = 0; status == HEFT_OK && c->opts.release != NULL && t < n_tensors; t++) {
        if (!is_read[t]) {
            c->opts.release(c->opts.release_arg, t);
        }
    }
    heft__free(is_read);
    return status;
}

static heft_status_t set_up(conversion_t *c, const char *dir, heft_error_t *err)
{
    size_t n_sources = (size_t)c->info.n_sources + 1;
    c->source_tensor = heft__calloc(n_sources, sizeof *c->source_tensor);
    c->sources = heft__calloc(n_sources, sizeof *c->sources);
    c->n_readers = heft__calloc(n_sources, sizeof *c->n_readers);
    c->ranks = heft__calloc(c->info.n_ranks, sizeof *c->ranks);
    c->targets = heft__calloc(c->info.n_ranks, sizeof *c->targets);
    if (c->source_tensor == NULL || c->sources == NULL || c->n_readers == NULL ||
        c->ranks == NULL || c->targets == NULL) {
        return heft__error_nomem(err, n_sources * sizeof *c->sources);
    }
    heft_status_t status = heft__refuse_opaque(c->plan, 0, c->info.n_ranks, "convert", err);
    if (status == HEFT_OK) {
        status =
            heft__match_sources(c->plan, 0, c->info.n_ranks, c->manifest, c->source_tensor, err);
    }
    if (status == HEFT_OK) {
        status = heft__pool_create(c->opts.n_threads, &c->pool, err);
    }
    if (status == HEFT_OK) {
        status = heft__rankdirs_init(&c->outdir, dir, c->info.n_ranks, err);
    }
    for (uint32_t r = 0; status == HEFT_OK && r < c->info.n_ranks; r++) {
        status = open_rank(c, r, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    count_readers(c);
    return bind_sources(c, err);
}

static void tear_down(conversion_t *c)
{
    for (uint32_t r = 0; c->ranks != NULL && r < c->info.n_ranks; r++) {
        heft_checkpoint_writer_destroy(c->ranks[r].writer);
        heft_manifest_destroy(c->ranks[r].manifest);
        heft__free(c->ranks[r].tensor);
        heft__free(c->ranks[r].params);
    }
    heft__rankdirs_fini(&c->outdir);
    heft__pool_destroy(c->pool);
    heft__free(c->ranks);
    heft__free(c->targets);
    heft__free(c->turn);
    heft__free(c->unsaved);
    heft__free(c->n_readers);
    heft__free(c->sources);
    heft__free(c->source_tensor);
}

/* ---- turns ---- */

static heft_status_t map_turn(const conversion_t *c, heft_error_t *err)
{
    for (size_t i = 0; i < c->n_turn; i++) {
        rank_out_t *rank = &c->ranks[c->turn[i].rank_index];
        uint32_t p = c->turn[i].param;
        heft_status_t status =
            heft_checkpoint_writer_map(rank->writer, rank->tensor[p], &rank->params[p], err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* Drop the pages of the turn's sources. */
static void drop_sources(const conversion_t *c)
{
    for (uint32_t g = c->turn_begin; c->checkpoint != NULL && g < c->turn_end; g++) {
        uint32_t n = 0;
        const uint32_t *sources = heft_plan_get_group_sources(c->plan, g, &n);
        for (uint32_t i = 0; i < n; i++) {
            heft_checkpoint_release(c->checkpoint, c->source_tensor[sources[i]]);
        }
    }
}

/* Between two windows of a run. What a turn that is larger than the bound has written so far must
 * go to disk before more is written. */
static heft_status_t end_window(void *arg, heft_error_t *err)
{
    conversion_t *c = arg;
    bool is_large = c->turn_bytes > c->opts.memory_bytes / 2;
    heft_status_t status = HEFT_OK;
    drop_sources(c);
    for (size_t i = 0; status == HEFT_OK && i < c->n_turn; i++) {
        const rank_out_t *rank = &c->ranks[c->turn[i].rank_index];
        uint32_t tensor = rank->tensor[c->turn[i].param];
        heft__checkpoint_writer_drop(rank->writer, tensor);
        status = is_large ? heft__checkpoint_writer_wait(rank->writer, tensor, err) : HEFT_OK;
    }
    return status;
}

/* Wait for the oldest output until no more than max_bytes are not on disk yet. */
static heft_status_t save(conversion_t *c, int64_t max_bytes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && c->first_unsaved < c->n_unsaved && c->unsaved_bytes > max_bytes) {
        const unsaved_t *oldest = &c->unsaved[c->first_unsaved++];
        c->unsaved_bytes -= oldest->n_bytes;
        status = heft__checkpoint_writer_wait(c->ranks[oldest->rank].writer, oldest->tensor, err);
    }
    if (c->first_unsaved == c->n_unsaved) {
        c->first_unsaved = 0;
        c->n_unsaved = 0;
    }
    return status;
}

static heft_status_t finish_param(conversion_t *c, heft_plan_member_t member, heft_error_t *err)
{
    rank_out_t *rank = &c->ranks[member.rank_index];
    uint32_t tensor = rank->tensor[member.param];
    heft_tensor_info_t info;
    rank->params[member.param] = NULL;
    heft_status_t status = heft_checkpoint_writer_done(rank->writer, tensor, err);
    if (status == HEFT_OK) {
        status = heft_manifest_query(rank->manifest, tensor, &info, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (!HEFT__RESERVE(c->unsaved, c->cap_unsaved, c->n_unsaved + 1)) {
        return heft__error_nomem(err, (c->n_unsaved + 1) * sizeof *c->unsaved);
    }
    c->unsaved[c->n_unsaved++] =
        (unsaved_t){ .rank = member.rank_index, .tensor = tensor, .n_bytes = info.n_bytes };
    c->unsaved_bytes += info.n_bytes;
    return HEFT_OK;
}

/* Sources that no later group reads. */
static void release_sources(conversion_t *c)
{
    for (uint32_t g = c->turn_begin; g < c->turn_end; g++) {
        uint32_t n = 0;
        const uint32_t *sources = heft_plan_get_group_sources(c->plan, g, &n);
        for (uint32_t i = 0; i < n; i++) {
            if (--c->n_readers[sources[i]] == 0 && c->opts.release != NULL) {
                c->sources[sources[i]] = NULL;
                c->opts.release(c->opts.release_arg, c->source_tensor[sources[i]]);
            }
        }
    }
}

static heft_status_t finish_turn(conversion_t *c, heft_error_t *err)
{
    drop_sources(c);
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; status == HEFT_OK && i < c->n_turn; i++) {
        status = finish_param(c, c->turn[i], err);
    }
    if (status == HEFT_OK) {
        status = save(c, c->opts.one_by_one != 0 ? 0 : c->opts.memory_bytes / 2, err);
    }
    if (status == HEFT_OK) {
        release_sources(c);
    }
    return status;
}

/* Takes exec. */
static heft_status_t run_prepared(conversion_t *c, heft_exec_t *exec, heft_error_t *err)
{
    heft_status_t status = heft_exec_run(exec, c->sources, err);
    c->progress.done += heft__exec_get_n_bytes(exec);
    heft_exec_destroy(exec);
    return status;
}

/* ---- slices: what touches more pages in one unit than the bound allows ---- */

static heft_status_t run_slice(conversion_t *c, const heft__exec_window_t *window,
                               const heft_piece_t *slice, heft_plan_member_t member,
                               heft_error_t *err)
{
    heft_exec_t *exec = NULL;
    bool fits = false; /* as well as it can */
    heft_status_t status =
        heft__exec_build_pieces(c->plan, &c->targets[member.rank_index], member.param, slice, 1,
                                c->pool, &c->progress, &exec, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__exec_set_window(exec, window, &fits, err);
    if (status != HEFT_OK) {
        heft_exec_destroy(exec);
        return status;
    }
    status = run_prepared(c, exec, err);
    return status == HEFT_OK ? end_window(c, err) : status;
}

static heft_piece_t narrow_piece(const heft_piece_t *piece, heft_piece_src_t *srcs, int dim,
                                 int64_t begin, int64_t n)
{
    heft_piece_t slice = *piece;
    slice.extent[dim] = n;
    slice.dst_offset += begin * piece->dst_stride[dim];
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        srcs[s] = piece->srcs[s];
        srcs[s].offset += begin * srcs[s].stride[dim];
    }
    slice.srcs = srcs;
    return slice;
}

/* Dimensions are ordered by destination stride: a slice of the outermost one is a stretch of the
 * parameter. Stretches of an eighth of the window leave room for what they read. */
static heft_status_t run_sliced(conversion_t *c, const heft__exec_window_t *window,
                                const heft_piece_t *piece, int dim, heft_plan_member_t member,
                                int64_t elem_bytes, heft_error_t *err)
{
    int64_t step_bytes =
        dim < piece->rank ? heft__max_i64(piece->dst_stride[dim] * elem_bytes, 1) : 1;
    int64_t room = window->max_bytes / 8;
    if (dim >= piece->rank || piece->extent[dim] <= room / step_bytes) {
        return run_slice(c, window, piece, member, err);
    }
    int64_t n = heft__max_i64(room / step_bytes, 1);
    int64_t n_slices = (piece->extent[dim] + n - 1) / n;
    n = (piece->extent[dim] + n_slices - 1) / n_slices; /* no sliver at the end: it reads as much */
    heft_status_t status = HEFT_OK;
    for (int64_t i = 0; status == HEFT_OK && i < piece->extent[dim]; i += n) {
        heft_piece_src_t srcs[HEFT_MAX_SOURCES];
        int64_t count = heft__min_i64(n, piece->extent[dim] - i);
        heft_piece_t slice = narrow_piece(piece, srcs, dim, i, count);
        status = step_bytes > room ? run_sliced(c, window, &slice, dim + 1, member, elem_bytes, err)
                                   : run_slice(c, window, &slice, member, err);
    }
    return status;
}

static heft_status_t run_turn_sliced(conversion_t *c, const heft__exec_window_t *window,
                                     heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; status == HEFT_OK && i < c->n_turn; i++) {
        heft_plan_member_t member = c->turn[i];
        heft_tensor_info_t info;
        uint64_t n = 0;
        const heft_piece_t *pieces =
            heft_plan_get_param_pieces(c->plan, member.rank_index, member.param, &n);
        status = heft_plan_query_param(c->plan, member.rank_index, member.param, &info, err);
        for (uint64_t k = 0; status == HEFT_OK && k < n; k++) {
            status = heft__piece_is_computed(&pieces[k])
                         ? run_slice(c, window, &pieces[k], member, err)
                         : run_sliced(c, window, &pieces[k], 0, member,
                                      (int64_t)heft_dtype_get_unit_bytes(info.dtype), err);
        }
    }
    return status;
}

/* Checks look at whole parameters. */
static bool has_checks(const conversion_t *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->n_turn && n == 0; i++) {
        (void)heft_plan_get_param_checks(c->plan, c->turn[i].rank_index, c->turn[i].param, &n);
    }
    return n > 0;
}

static heft_status_t run_exec(conversion_t *c, heft_error_t *err)
{
    const heft__exec_window_t window = { .max_bytes = c->opts.memory_bytes / 2,
                                         .between = end_window,
                                         .arg = c };
    heft_exec_t *exec = NULL;
    bool fits = false;
    heft_status_t status = heft__exec_build(c->plan, c->targets, c->info.n_ranks, c->turn,
                                            c->n_turn, NULL, c->pool, &c->progress, &exec, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__exec_set_window(exec, &window, &fits, err);
    if (status == HEFT_OK && (fits || has_checks(c))) {
        return run_prepared(c, exec, err);
    }
    heft_exec_destroy(exec);
    return status == HEFT_OK ? run_turn_sliced(c, &window, err) : status;
}

static heft_status_t run_turn(conversion_t *c, heft_error_t *err)
{
    heft_status_t status = map_turn(c, err);
    if (status == HEFT_OK) {
        status = run_exec(c, err);
    }
    if (status == HEFT_OK) {
        status = finish_turn(c, err);
    }
    c->n_turn = 0;
    c->turn_bytes = 0;
    c->turn_begin = c->turn_end;
    return status;
}

/* The name of a group's first parameter. */
static const char *group_name(const conversion_t *c, uint32_t g)
{
    uint32_t n = 0;
    heft_tensor_info_t info;
    const heft_plan_member_t *members = heft_plan_get_group_params(c->plan, g, &n);
    return n > 0 && heft_plan_query_param(c->plan, members[0].rank_index, members[0].param, &info,
                                          NULL) == HEFT_OK
               ? info.name
               : "";
}

/* A turn of one group, whose name goes into every failure. */
static heft_status_t run_group(conversion_t *c, uint32_t g, heft_error_t *err)
{
    const char *name = group_name(c, g);
    if (c->opts.group_begin != NULL) {
        c->opts.group_begin(c->opts.group_begin_arg, g, c->info.n_groups, name);
    }
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = run_turn(c, &cause);
    if (status != HEFT_OK && err != NULL) {
        *err = cause;
        (void)heft__error_set(err, status, "group %u of %u, \"%.100s\": %s", g, c->info.n_groups,
                              name, cause.message);
        err->sys_errno = cause.sys_errno;
    }
    return status;
}

static heft_status_t add_member(conversion_t *c, heft_plan_member_t member, heft_error_t *err)
{
    if (!HEFT__RESERVE(c->turn, c->cap_turn, c->n_turn + 1)) {
        return heft__error_nomem(err, (c->n_turn + 1) * sizeof *c->turn);
    }
    c->turn[c->n_turn++] = member;
    return HEFT_OK;
}

static heft_status_t add_group(conversion_t *c, uint32_t g, heft_error_t *err)
{
    heft_group_info_t group;
    heft_status_t status = heft_plan_query_group(c->plan, g, &group, err);
    uint32_t n = 0;
    const heft_plan_member_t *members = heft_plan_get_group_params(c->plan, g, &n);
    for (uint32_t i = 0; status == HEFT_OK && i < n; i++) {
        status = add_member(c, members[i], err);
    }
    if (status == HEFT_OK) {
        c->turn_bytes += group.n_bytes;
        c->turn_end = g + 1;
    }
    return status;
}

/* Parameters without elements are in no group. */
static heft_status_t add_empty(conversion_t *c, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < c->info.n_ranks; r++) {
        for (uint32_t p = 0; status == HEFT_OK && p < c->ranks[r].n_params; p++) {
            if (c->ranks[r].tensor[p] != HEFT__NO_TENSOR &&
                heft_plan_get_param_group(c->plan, r, p) == HEFT_GROUP_NONE) {
                status = add_member(c, (heft_plan_member_t){ .rank_index = r, .param = p }, err);
            }
        }
    }
    return status;
}

static heft_status_t run_all(conversion_t *c, heft_error_t *err)
{
    c->progress.total = c->info.n_bytes + c->info.n_constant_bytes;
    heft_status_t status = add_empty(c, err);
    if (status == HEFT_OK && c->opts.one_by_one != 0) {
        status = run_turn(c, err);
    }
    for (uint32_t g = 0; status == HEFT_OK && g < c->info.n_groups; g++) {
        status = add_group(c, g, err);
        if (status == HEFT_OK && c->opts.one_by_one != 0) {
            status = run_group(c, g, err);
        } else if (status == HEFT_OK && c->turn_bytes >= c->opts.memory_bytes / 4) {
            status = run_turn(c, err);
        }
    }
    return status == HEFT_OK ? run_turn(c, err) : status;
}

static heft_status_t commit_all(conversion_t *c, heft_error_t *err)
{
    for (uint32_t r = 0; r < c->info.n_ranks; r++) {
        heft_status_t status = heft_checkpoint_writer_commit(c->ranks[r].writer, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return heft__rankdirs_commit(&c->outdir, err);
}

static heft_status_t convert(conversion_t *c, const char *dir, heft_error_t *err)
{
    heft_plan_query(c->plan, &c->info);
    c->progress = (heft__progress_t){ .fn = c->opts.progress, .arg = c->opts.progress_arg };
    heft_status_t status = set_up(c, dir, err);
    if (status == HEFT_OK) {
        status = run_all(c, err);
    }
    if (status == HEFT_OK) {
        status = commit_all(c, err);
    }
    tear_down(c);
    heft__alloc_trim();
    return status;
}

static heft_status_t missing(const char *what, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is missing", what);
}

heft_status_t heft_convert(const heft_plan_t *plan, const heft_checkpoint_t *source,
                           const char *dir, const heft_convert_opts_t *opts, heft_error_t *err)
{
    if (plan == NULL || source == NULL || dir == NULL || dir[0] == '\0') {
        return missing(plan == NULL ? "plan" : source == NULL ? "source" : "dir", err);
    }
    conversion_t c = { .plan = plan,
                       .manifest = heft_checkpoint_get_manifest(source),
                       .checkpoint = source };
    heft_status_t status = heft__convert_opts_load(opts, &c.opts, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (c.opts.reverse != 0) {
        return heft_convert_reverse(plan, &source, 1, dir, opts, err);
    }
    return convert(&c, dir, err);
}

heft_status_t heft_convert_tensors(const heft_plan_t *plan, const heft_manifest_t *source,
                                   const void *const *data, const char *dir,
                                   const heft_convert_opts_t *opts, heft_error_t *err)
{
    if (plan == NULL || source == NULL || data == NULL || dir == NULL || dir[0] == '\0') {
        return missing(plan == NULL     ? "plan"
                       : source == NULL ? "source"
                       : data == NULL   ? "data"
                                        : "dir",
                       err);
    }
    conversion_t c = { .plan = plan, .manifest = source, .data = data };
    heft_status_t status = heft__convert_opts_load(opts, &c.opts, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (c.opts.reverse != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_tensors converts forwards: reverse must be 0");
    }
    if (!heft__manifest_is_finished(source)) {
        return heft__error_set(err, HEFT_ERR_STATE, "the source's manifest is not finished");
    }
    return convert(&c, dir, err);
}
