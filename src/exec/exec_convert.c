/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converting a checkpoint: one folder for each rank of the plan. Groups are worked off in order,
 * small ones together until 64 MiB have come up; the parameters of a turn are mapped in their
 * output files, written by one run, flushed and dropped, and a source is dropped once no later
 * group reads it. So memory beyond page cache holds the prepared jobs of one turn.
 *
 * Parameters that no piece writes (exceptions of the plan) are left out of the output.
 */
#include "exec/exec.h"

#include <string.h>

#define TURN_BYTES (INT64_C(64) << 20)

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
    const heft_checkpoint_t *source;
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
        status = heft__match_sources(c->plan, 0, c->info.n_ranks, c->source, c->source_tensor, err);
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
    for (uint32_t s = 0; s < c->info.n_sources; s++) {
        if (c->source_tensor[s] != HEFT__NO_TENSOR) {
            c->sources[s] = heft_checkpoint_get_data(c->source, c->source_tensor[s]);
        }
    }
    count_readers(c);
    return HEFT_OK;
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

static heft_status_t finish_turn(const conversion_t *c, heft_error_t *err)
{
    for (size_t i = 0; i < c->n_turn; i++) {
        rank_out_t *rank = &c->ranks[c->turn[i].rank_index];
        uint32_t p = c->turn[i].param;
        rank->params[p] = NULL;
        heft_status_t status = heft_checkpoint_writer_done(rank->writer, rank->tensor[p], err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    for (uint32_t g = c->turn_begin; g < c->turn_end; g++) {
        uint32_t n = 0;
        const uint32_t *sources = heft_plan_get_group_sources(c->plan, g, &n);
        for (uint32_t i = 0; i < n; i++) {
            if (--c->n_readers[sources[i]] == 0) {
                heft_checkpoint_release(c->source, c->source_tensor[sources[i]]);
            }
        }
    }
    return HEFT_OK;
}

static heft_status_t run_turn(conversion_t *c, heft_error_t *err)
{
    heft_status_t status = map_turn(c, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_exec_t *exec = NULL;
    status = heft__exec_build(c->plan, c->targets, c->info.n_ranks, c->turn, c->n_turn, c->pool,
                              &c->progress, &exec, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_exec_run(exec, c->sources, err);
    c->progress.done += heft__exec_get_n_bytes(exec);
    heft_exec_destroy(exec);
    if (status == HEFT_OK) {
        status = finish_turn(c, err);
    }
    c->n_turn = 0;
    c->turn_bytes = 0;
    c->turn_begin = c->turn_end;
    return status;
}

static heft_status_t add_member(conversion_t *c, heft_plan_member_t member, heft_error_t *err)
{
    void *items = c->turn;
    if (!heft__grow(&items, &c->cap_turn, c->n_turn + 1, sizeof *c->turn)) {
        return heft__error_nomem(err, (c->n_turn + 1) * sizeof *c->turn);
    }
    c->turn = items;
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
    for (uint32_t g = 0; status == HEFT_OK && g < c->info.n_groups; g++) {
        status = add_group(c, g, err);
        if (status == HEFT_OK && c->turn_bytes >= TURN_BYTES) {
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

heft_status_t heft_convert(const heft_plan_t *plan, const heft_checkpoint_t *source,
                           const char *dir, const heft_convert_opts_t *opts, heft_error_t *err)
{
    if (plan == NULL || source == NULL || dir == NULL || dir[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is missing",
                               plan == NULL     ? "plan"
                               : source == NULL ? "source"
                                                : "dir");
    }
    conversion_t c = { .plan = plan, .source = source };
    heft_status_t status = heft__convert_opts_load(opts, &c.opts, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (c.opts.reverse != 0) {
        return heft_convert_reverse(plan, &source, 1, dir, opts, err);
    }
    heft_plan_query(plan, &c.info);
    c.progress = (heft__progress_t){ .fn = c.opts.progress, .arg = c.opts.progress_arg };
    status = set_up(&c, dir, err);
    if (status == HEFT_OK) {
        status = run_all(&c, err);
    }
    if (status == HEFT_OK) {
        status = commit_all(&c, err);
    }
    tear_down(&c);
    return status;
}
