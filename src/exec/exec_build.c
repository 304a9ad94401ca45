/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a run. Every piece becomes one kernel job for each target of its rank, or several where
 * it is taken apart. Jobs are sorted by the source that orders their loops and the place where they
 * begin to read it, and cut into batches: consecutive jobs of one source, cut where no job
 * straddles once 8 MiB have come together. Constants have no source; each is a batch of its own.
 */
#include "exec/exec_impl.h"

#include <stdlib.h>

/* Pieces are taken apart to slabs of this size, and to parts of this size where that helps, but to
 * no more parts than this in the whole plan. */
#define SLAB_BYTES (INT64_C(256) << 10)
#define PART_BYTES (INT64_C(64) << 10)
#define MAX_PARTS 65536

typedef struct heft__exec_entry {
    heft__job_info_t info;
    heft__job_t job;
} entry_t;

static heft_status_t check_target(const heft_exec_t *exec, uint32_t t, uint32_t n_ranks,
                                  heft_error_t *err)
{
    const heft_exec_target_t *target = &exec->targets[t];
    if (target->rank_index >= n_ranks) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "target %u: rank index %u, the plan has %u ranks", t,
                               target->rank_index, n_ranks);
    }
    if (target->reserved != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "target %u: reserved is %u, not 0", t,
                               target->reserved);
    }
    if (target->params == NULL && heft_plan_get_n_params(exec->plan, target->rank_index) > 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "target %u: params is NULL", t);
    }
    return HEFT_OK;
}

/* Accumulators: one row of parameters for each rank that a target wants digests of. */
static heft_status_t layout_digests(heft_exec_t *exec, heft_error_t *err)
{
    for (uint32_t t = 0; t < exec->n_targets; t++) {
        const heft_exec_target_t *target = &exec->targets[t];
        exec->target_acc[t] = HEFT__NO_ACC;
        if (target->digests_out == NULL) {
            continue;
        }
        for (uint32_t u = 0; u < t && exec->target_acc[t] == HEFT__NO_ACC; u++) {
            if (exec->targets[u].rank_index == target->rank_index) {
                exec->target_acc[t] = exec->target_acc[u];
            }
        }
        if (exec->target_acc[t] == HEFT__NO_ACC) {
            exec->target_acc[t] = exec->n_acc;
            exec->n_acc += heft_plan_get_n_params(exec->plan, target->rank_index);
        }
    }
    exec->acc = heft__arena_calloc(&exec->arena, exec->n_acc + 1, sizeof *exec->acc);
    return exec->acc != NULL ? HEFT_OK : heft__error_nomem(err, exec->n_acc * sizeof *exec->acc);
}

/* The first target of a rank with digests computes them; the others copy the result. */
static bool is_digester(const heft_exec_t *exec, uint32_t t)
{
    for (uint32_t u = 0; u < t; u++) {
        if (exec->target_acc[u] == exec->target_acc[t]) {
            return false;
        }
    }
    return exec->target_acc[t] != HEFT__NO_ACC;
}

static heft_status_t add_job(heft_exec_t *exec, const heft__bound_piece_t *bound, uint32_t t,
                             uint32_t param, int64_t param_bytes, heft_error_t *err)
{
    void *items = exec->entries;
    if (!heft__grow(&items, &exec->cap_entries, exec->n_entries + 1, sizeof *exec->entries)) {
        return heft__error_nomem(err, (exec->n_entries + 1) * sizeof *exec->entries);
    }
    exec->entries = items;
    entry_t *entry = &exec->entries[exec->n_entries];
    *entry = (entry_t){ .job = { .copy = bound->copy, .transform = bound->transform } };
    entry->job.dst = (uint8_t *)exec->targets[t].params[param] + bound->dst_offset;
    entry->job.dst_offset = bound->dst_offset;
    if (bound->fill != NULL) {
        entry->job.src[0] = bound->fill + bound->src_offset[0];
    }
    heft__job_info_t *info = &entry->info;
    info->acc = HEFT__NO_ACC;
    /* zero bytes contribute nothing */
    if (is_digester(exec, t) && !bound->is_zero) {
        info->acc = exec->target_acc[t] + param;
        entry->job.param_bytes = param_bytes;
    }
    info->target = t;
    info->param = param;
    info->n_srcs = bound->n_srcs;
    info->order_source = bound->source[bound->primary];
    for (uint32_t s = 0; s < bound->n_srcs; s++) {
        info->source[s] = bound->source[s];
        info->src_offset[s] = bound->src_offset[s];
    }
    info->bytes = bound->bytes;
    info->is_fill = bound->fill != NULL;
    info->src_begin = bound->src_begin;
    info->src_end = bound->src_end;
    info->seq = exec->n_entries++;
    return HEFT_OK;
}

/* The parameter whose pieces are being bound. */
typedef struct param {
    heft_exec_t *exec;
    uint32_t rank_index;
    uint32_t index;
    heft_tensor_info_t info;
} param_t;

/* The parameter is there in target t, and bytes more are written. */
static heft_status_t check_param(const param_t *param, uint32_t t, int64_t bytes, heft_error_t *err)
{
    heft_exec_t *exec = param->exec;
    if (exec->targets[t].params[param->index] == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "target %u: parameter \"%s\" is NULL", t,
                               param->info.name);
    }
    return heft__add(exec->n_bytes, bytes, &exec->n_bytes)
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_OVERFLOW, "target %u: total bytes overflow", t);
}

static heft_status_t add_bound(void *arg, const heft__bound_piece_t *bound, heft_error_t *err)
{
    const param_t *param = arg;
    heft_exec_t *exec = param->exec;
    heft_status_t status = HEFT_OK;
    for (uint32_t t = 0; status == HEFT_OK && t < exec->n_targets; t++) {
        if (exec->targets[t].rank_index != param->rank_index) {
            continue;
        }
        status = check_param(param, t, bound->bytes, err);
        if (status != HEFT_OK) {
            return status;
        }
        status = add_job(exec, bound, t, param->index, param->info.n_bytes, err);
    }
    return status;
}

/* A piece that reads what a known kernel leaves. */
static heft_status_t add_known(const param_t *param, const heft_piece_t *piece, heft_error_t *err)
{
    heft_exec_t *exec = param->exec;
    int64_t bytes = heft__piece_count(piece) * heft_dtype_get_unit_bytes(param->info.dtype);
    heft_status_t status = HEFT_OK;
    for (uint32_t t = 0; status == HEFT_OK && t < exec->n_targets; t++) {
        if (exec->targets[t].rank_index != param->rank_index) {
            continue;
        }
        status = check_param(param, t, bytes, err);
        heft__known_copy_t copy = { .piece = piece,
                                    .dtype = param->info.dtype,
                                    .dst = exec->targets[t].params[param->index],
                                    .param_bytes = param->info.n_bytes,
                                    .acc = HEFT__NO_ACC,
                                    .target = t,
                                    .param = param->index };
        if (is_digester(exec, t)) {
            copy.acc = exec->target_acc[t] + param->index;
        }
        if (status == HEFT_OK) {
            status = heft__known_add(exec, param->rank_index, piece, &copy, err);
        }
    }
    return status;
}

/* The n pieces, or those of them that `order` names. */
static heft_status_t add_pieces(heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                                const heft_piece_t *pieces, const uint64_t *order, uint64_t n,
                                heft_error_t *err)
{
    param_t p = { .exec = exec, .rank_index = rank_index, .index = param };
    int64_t least = exec->plan_bytes / MAX_PARTS;
    heft__bind_limits_t limits = { .slab_bytes = heft__max_i64(SLAB_BYTES, least),
                                   .part_bytes = heft__max_i64(PART_BYTES, least) };
    heft_status_t status = heft_plan_query_param(exec->plan, rank_index, param, &p.info, err);
    for (uint64_t i = 0; status == HEFT_OK && i < n; i++) {
        const heft_piece_t *piece = &pieces[order != NULL ? order[i] : i];
        if (heft__piece_is_computed(piece)) {
            status = heft__piece_needs_loader(exec->plan, rank_index, piece)
                         ? HEFT_OK
                         : add_known(&p, piece, err);
        } else {
            status = heft__piece_bind(exec->plan, piece, p.info.dtype, limits, &exec->arena,
                                      add_bound, &p, err);
        }
    }
    return status;
}

/* Targets of one rank hold the same bytes: checks look at the first. */
static heft_status_t add_checks(heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                                heft_error_t *err)
{
    uint64_t n = 0;
    (void)heft_plan_get_param_checks(exec->plan, rank_index, param, &n);
    uint32_t t = 0;
    while (t < exec->n_targets && exec->targets[t].rank_index != rank_index) {
        t++;
    }
    if (n == 0 || t == exec->n_targets) {
        return HEFT_OK;
    }
    heft_status_t status = HEFT_OK;
    if (exec->checks == NULL) {
        status = heft__checks_create(exec->plan, heft__pool_get_n_threads(exec->pool),
                                     &exec->checks, err);
    }
    return status == HEFT_OK ? heft__checks_add(exec->checks, rank_index, param, &exec->share,
                                                exec->targets[t].params[param], err)
                             : status;
}

static heft_status_t add_param(heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                               heft_error_t *err)
{
    const heft__share_t *share = &exec->share;
    const uint64_t *order = NULL;
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(exec->plan, rank_index, param, &n);
    if (share->routes != NULL) {
        order = heft__routes_get_pieces(share->routes, share->sender, rank_index, param, &n);
        if (n == 0) {
            return HEFT_OK; /* checks are of what the sender writes */
        }
        uint64_t n_all = 0;
        pieces = heft_plan_get_pieces(exec->plan, rank_index, &n_all);
    }
    heft_status_t status = add_pieces(exec, rank_index, param, pieces, order, n, err);
    return status == HEFT_OK ? add_checks(exec, rank_index, param, err) : status;
}

/* Fills first, then by source and address. */
static int by_source(const void *a, const void *b)
{
    const heft__job_info_t *x = &((const entry_t *)a)->info;
    const heft__job_info_t *y = &((const entry_t *)b)->info;
    if (x->is_fill != y->is_fill) {
        return x->is_fill ? -1 : 1;
    }
    if (!x->is_fill && x->order_source != y->order_source) {
        return x->order_source < y->order_source ? -1 : 1;
    }
    if (!x->is_fill && x->src_begin != y->src_begin) {
        return x->src_begin < y->src_begin ? -1 : 1;
    }
    return x->seq < y->seq ? -1 : 1;
}

static uint32_t count_parts(int64_t bytes)
{
    int64_t n = bytes / HEFT__EXEC_UNIT_BYTES + (bytes % HEFT__EXEC_UNIT_BYTES != 0);
    return (uint32_t)heft__min_i64(heft__max_i64(n, 1), INT32_MAX);
}

/* A constant with a digest runs whole: its contribution is computed in one piece. */
static uint32_t count_fill_parts(const entry_t *entry)
{
    if (entry->info.acc != HEFT__NO_ACC) {
        return 1;
    }
    int64_t n = count_parts(entry->info.bytes);
    return (uint32_t)heft__min_i64(n, entry->job.copy->extent[0]);
}

static heft_status_t add_batch(heft_exec_t *exec, size_t begin, size_t end, int64_t bytes,
                               heft_error_t *err)
{
    void *items = exec->batches;
    if (!heft__grow(&items, &exec->cap_batches, exec->n_batches + 1, sizeof *exec->batches)) {
        return heft__error_nomem(err, (exec->n_batches + 1) * sizeof *exec->batches);
    }
    exec->batches = items;
    const entry_t *first = &exec->entries[begin];
    heft__batch_t *batch = &exec->batches[exec->n_batches++];
    *batch = (heft__batch_t){ .job_begin = begin, .job_end = end, .bytes = bytes };
    batch->n_parts = first->info.is_fill ? count_fill_parts(first) : count_parts(bytes);
    batch->unit_begin = exec->n_units;
    exec->n_units += batch->n_parts;
    if (end - begin > exec->max_batch_jobs) {
        exec->max_batch_jobs = end - begin;
    }
    return HEFT_OK;
}

/* Entries are sorted. A batch ends where the source changes, and, once it is large enough, where
 * no job that reads before entry i reads beyond its begin. */
static heft_status_t cut_batches(heft_exec_t *exec, heft_error_t *err)
{
    size_t begin = 0;
    int64_t bytes = 0;
    int64_t read_end = 0;
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; status == HEFT_OK && i < exec->n_entries; i++) {
        const heft__job_info_t *info = &exec->entries[i].info;
        const heft__job_info_t *first = &exec->entries[begin].info;
        bool is_other =
            info->is_fill || first->is_fill || info->order_source != first->order_source;
        bool is_cut = bytes >= HEFT__EXEC_UNIT_BYTES && info->src_begin >= read_end;
        if (i > begin && (is_other || is_cut)) {
            status = add_batch(exec, begin, i, bytes, err);
            begin = i;
            bytes = 0;
        }
        read_end = i == begin ? info->src_end : heft__max_i64(read_end, info->src_end);
        bytes += info->bytes; /* at most n_bytes, which was checked */
    }
    if (status == HEFT_OK && exec->n_entries > begin) {
        status = add_batch(exec, begin, exec->n_entries, bytes, err);
    }
    return status;
}

static heft_status_t finish_build(heft_exec_t *exec, heft_error_t *err)
{
    if (exec->n_entries > 1) {
        qsort(exec->entries, exec->n_entries, sizeof *exec->entries, by_source);
    }
    heft_status_t status = cut_batches(exec, err);
    if (status == HEFT_OK) {
        status = heft__known_finish(exec, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    size_t n = exec->n_entries;
    exec->jobs = heft__calloc(n + 1, sizeof *exec->jobs);
    exec->infos = heft__calloc(n + 1, sizeof *exec->infos);
    size_t n_scratch;
    bool fits =
        heft__size_mul(exec->max_batch_jobs + 1, heft__pool_get_n_threads(exec->pool), &n_scratch);
    exec->scratch = fits ? heft__calloc(n_scratch, sizeof *exec->scratch) : NULL;
    if (exec->jobs == NULL || exec->infos == NULL || exec->scratch == NULL) {
        return heft__error_nomem(err, n * sizeof(entry_t));
    }
    for (size_t i = 0; i < n; i++) {
        exec->jobs[i] = exec->entries[i].job;
        exec->infos[i] = exec->entries[i].info;
    }
    exec->n_jobs = n;
    heft__free(exec->entries);
    exec->entries = NULL;
    exec->n_entries = 0;
    return HEFT_OK;
}

/* Routes are of the plan, and have the sender. */
static heft_status_t check_share(const heft_plan_t *plan, const heft__share_t *share,
                                 heft_error_t *err)
{
    if (share == NULL || share->routes == NULL) {
        return HEFT_OK;
    }
    if (heft__routes_get_plan(share->routes) != plan) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "the routes are those of another plan");
    }
    const uint32_t n = heft_routes_get_n_senders(share->routes);
    return share->sender < n ? HEFT_OK
                             : heft__error_set(err, HEFT_ERR_ARGUMENT,
                                               "sender %u, the routes have %u", share->sender, n);
}

static heft_status_t begin_build(const heft_plan_t *plan, const heft_exec_target_t *targets,
                                 uint32_t n_targets, const heft__share_t *share,
                                 heft_exec_t **exec_out, heft_error_t *err)
{
    if (n_targets > 0 && targets == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%u targets, targets is NULL", n_targets);
    }
    heft_status_t status = check_share(plan, share, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_exec_t *exec = heft__calloc(1, sizeof *exec);
    if (exec == NULL) {
        return heft__error_nomem(err, sizeof *exec);
    }
    heft__arena_init(&exec->arena, 4096);
    exec->plan = plan;
    exec->share = share != NULL ? *share : (heft__share_t){ .routes = NULL };
    exec->targets = targets;
    exec->n_targets = n_targets;
    exec->target_acc = heft__arena_calloc(&exec->arena, (size_t)n_targets + 1, sizeof(size_t));
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    exec->plan_bytes = info.n_bytes + info.n_constant_bytes;
    if (exec->target_acc == NULL) {
        heft_exec_destroy(exec);
        return heft__error_nomem(err, n_targets * sizeof(size_t));
    }
    for (uint32_t t = 0; status == HEFT_OK && t < n_targets; t++) {
        status = check_target(exec, t, info.n_ranks, err);
    }
    if (status == HEFT_OK) {
        status = layout_digests(exec, err);
    }
    if (status != HEFT_OK) {
        heft_exec_destroy(exec);
        return status;
    }
    *exec_out = exec;
    return HEFT_OK;
}

heft_status_t heft__exec_build(const heft_plan_t *plan, const heft_exec_target_t *targets,
                               uint32_t n_targets, const heft_plan_member_t *members,
                               uint64_t n_members, const heft__share_t *share, heft__pool_t *pool,
                               heft__progress_t *progress, heft_exec_t **exec_out,
                               heft_error_t *err)
{
    heft_exec_t *exec = NULL;
    heft_status_t status = begin_build(plan, targets, n_targets, share, &exec, err);
    if (exec == NULL) {
        return status;
    }
    exec->pool = pool;
    exec->progress = progress;
    for (uint64_t i = 0; status == HEFT_OK && i < n_members; i++) {
        status = add_param(exec, members[i].rank_index, members[i].param, err);
    }
    if (status == HEFT_OK) {
        status = finish_build(exec, err);
    }
    if (status != HEFT_OK) {
        heft_exec_destroy(exec);
        return status;
    }
    *exec_out = exec;
    return HEFT_OK;
}

heft_status_t heft__exec_build_pieces(const heft_plan_t *plan, const heft_exec_target_t *target,
                                      uint32_t param, const heft_piece_t *pieces, uint64_t n_pieces,
                                      heft__pool_t *pool, heft__progress_t *progress,
                                      heft_exec_t **exec_out, heft_error_t *err)
{
    heft_exec_t *exec = NULL;
    heft_status_t status = begin_build(plan, target, 1, NULL, &exec, err);
    if (exec == NULL) {
        return status;
    }
    exec->pool = pool;
    exec->progress = progress;
    status = add_pieces(exec, target->rank_index, param, pieces, NULL, n_pieces, err);
    if (status == HEFT_OK) {
        status = finish_build(exec, err);
    }
    if (status != HEFT_OK) {
        heft_exec_destroy(exec);
        return status;
    }
    *exec_out = exec;
    return HEFT_OK;
}

static bool has_target(const heft_exec_t *exec, uint32_t rank_index)
{
    for (uint32_t t = 0; t < exec->n_targets; t++) {
        if (exec->targets[t].rank_index == rank_index) {
            return true;
        }
    }
    return false;
}

static heft_status_t add_all_params(heft_exec_t *exec, heft__exec_leaves_t leaves, const void *arg,
                                    heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(exec->plan, &info);
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; status == HEFT_OK && r < info.n_ranks; r++) {
        uint32_t n = has_target(exec, r) ? heft_plan_get_n_params(exec->plan, r) : 0;
        for (uint32_t p = 0; status == HEFT_OK && p < n; p++) {
            status = leaves != NULL && leaves(arg, r, p) ? HEFT_OK : add_param(exec, r, p, err);
        }
    }
    return status;
}

heft_status_t heft_exec_create(const heft_plan_t *plan, const heft_exec_target_t *targets,
                               uint32_t n_targets, const heft_exec_opts_t *opts,
                               heft_exec_t **exec_out, heft_error_t *err)
{
    return heft__exec_create_some(plan, targets, n_targets, opts, NULL, NULL, exec_out, err);
}

heft_status_t heft__exec_create_some(const heft_plan_t *plan, const heft_exec_target_t *targets,
                                     uint32_t n_targets, const heft_exec_opts_t *opts,
                                     heft__exec_leaves_t leaves, const void *arg,
                                     heft_exec_t **exec_out, heft_error_t *err)
{
    if (plan == NULL || exec_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is NULL",
                               plan == NULL ? "plan" : "exec_out");
    }
    heft_exec_opts_t known;
    heft_status_t status = heft__exec_opts_load(opts, &known, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_exec_t *exec = NULL;
    const heft__share_t share = { .routes = known.routes, .sender = known.sender };
    status = begin_build(plan, targets, n_targets, &share, &exec, err);
    if (exec == NULL) {
        return status;
    }
    status = heft__pool_create(known.n_threads, &exec->own_pool, err);
    exec->pool = exec->own_pool;
    exec->own_progress = (heft__progress_t){ .fn = known.progress, .arg = known.progress_arg };
    exec->progress = &exec->own_progress;
    if (status == HEFT_OK) {
        status = add_all_params(exec, leaves, arg, err);
    }
    if (status == HEFT_OK) {
        status = finish_build(exec, err);
    }
    if (status != HEFT_OK) {
        heft_exec_destroy(exec);
        return status;
    }
    *exec_out = exec;
    return HEFT_OK;
}

void heft_exec_destroy(heft_exec_t *exec)
{
    if (exec == NULL) {
        return;
    }
    heft__pool_destroy(exec->own_pool);
    heft__known_fini(exec);
    heft__exec_whole_fini(exec);
    heft__checks_destroy(exec->checks);
    heft__free(exec->entries);
    heft__free(exec->jobs);
    heft__free(exec->infos);
    heft__free(exec->batches);
    heft__free(exec->scratch);
    heft__arena_fini(&exec->arena);
    heft__free(exec);
}

int64_t heft__exec_get_n_bytes(const heft_exec_t *exec)
{
    return exec->n_bytes;
}
