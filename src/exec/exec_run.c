/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared runs. Every piece becomes one kernel job for each target of its rank. Jobs are sorted by
 * the source that orders their loops and the place where they begin to read it, and cut into
 * batches: consecutive jobs of one source, cut where no job straddles once 8 MiB have come
 * together. A batch is run in parts of about 8 MiB of destination bytes, each a range of source
 * addresses that feeds all of the batch's jobs; (batch, part) is a unit, which threads take from
 * one counter. So the source is read once, in address order, while all destinations are written.
 *
 * Constants have no source; each is a batch of its own, cut into ranges of its outermost dimension.
 *
 * Checks of the plan come last, when all parameters are written (exec_check.c).
 *
 * Digests: each thread collects a batch's contributions privately, then XORs them into one
 * accumulator per parameter of a rank; targets of one rank share it, for they hold the same bytes.
 */
#include "exec/exec.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NO_ACC SIZE_MAX

typedef struct job_info {
    uint32_t n_srcs;
    uint32_t order_source; /* the one whose order counts */
    uint32_t source[HEFT_MAX_SOURCES];
    int64_t src_offset[HEFT_MAX_SOURCES];
    size_t acc; /* its digest's accumulator, or NO_ACC */
    int64_t bytes;
    bool is_fill;
    int64_t src_begin; /* bytes read of order_source */
    int64_t src_end;
    size_t seq; /* order of making: ties are broken by it, so runs are deterministic */
} job_info_t;

typedef struct entry {
    job_info_t info;
    heft__job_t job;
} entry_t;

typedef struct batch {
    size_t job_begin;
    size_t job_end;
    int64_t bytes;
    uint64_t unit_begin;
    uint32_t n_parts;
} batch_t;

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
    size_t *target_acc; /* first accumulator of each target, or NO_ACC */
    entry_t *entries;   /* only while building */
    size_t n_entries;
    size_t cap_entries;
    job_info_t *infos; /* parallel to jobs */
    heft__job_t *jobs;
    size_t n_jobs;
    batch_t *batches;
    size_t n_batches;
    size_t cap_batches;
    uint64_t n_units;
    int64_t n_bytes;
    _Atomic uint64_t *acc;
    size_t n_acc;
    uint64_t *scratch; /* n_threads times max_batch_jobs */
    size_t max_batch_jobs;
    _Atomic uint64_t next_unit;
    _Atomic int64_t done_bytes;
    atomic_bool cancel;
};

/* ---- building ---- */

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
        exec->target_acc[t] = NO_ACC;
        if (target->digests_out == NULL) {
            continue;
        }
        for (uint32_t u = 0; u < t && exec->target_acc[t] == NO_ACC; u++) {
            if (exec->targets[u].rank_index == target->rank_index) {
                exec->target_acc[t] = exec->target_acc[u];
            }
        }
        if (exec->target_acc[t] == NO_ACC) {
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
    return exec->target_acc[t] != NO_ACC;
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
    job_info_t *info = &entry->info;
    info->acc = NO_ACC;
    /* zero bytes contribute nothing */
    if (is_digester(exec, t) && !bound->is_zero) {
        info->acc = exec->target_acc[t] + param;
        entry->job.param_bytes = param_bytes;
    }
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

static heft_status_t add_bound(void *arg, const heft__bound_piece_t *bound, heft_error_t *err)
{
    const param_t *param = arg;
    heft_exec_t *exec = param->exec;
    heft_status_t status = HEFT_OK;
    for (uint32_t t = 0; status == HEFT_OK && t < exec->n_targets; t++) {
        if (exec->targets[t].rank_index != param->rank_index) {
            continue;
        }
        if (exec->targets[t].params[param->index] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "target %u: parameter \"%s\" is NULL", t,
                                   param->info.name);
        }
        if (!heft__add(exec->n_bytes, bound->bytes, &exec->n_bytes)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "target %u: total bytes overflow", t);
        }
        status = add_job(exec, bound, t, param->index, param->info.n_bytes, err);
    }
    return status;
}

static heft_status_t add_pieces(heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                                const heft_piece_t *pieces, uint64_t n, heft_error_t *err)
{
    param_t p = { .exec = exec, .rank_index = rank_index, .index = param };
    heft_status_t status = heft_plan_query_param(exec->plan, rank_index, param, &p.info, err);
    for (uint64_t i = 0; status == HEFT_OK && i < n; i++) {
        if (!heft__piece_is_opaque(&pieces[i])) {
            status = heft__piece_bind(exec->plan, &pieces[i], p.info.dtype, &exec->arena, add_bound,
                                      &p, err);
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
    return status == HEFT_OK ? heft__checks_add(exec->checks, rank_index, param,
                                                exec->targets[t].params[param], err)
                             : status;
}

static heft_status_t add_param(heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                               heft_error_t *err)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(exec->plan, rank_index, param, &n);
    heft_status_t status = add_pieces(exec, rank_index, param, pieces, n, err);
    return status == HEFT_OK ? add_checks(exec, rank_index, param, err) : status;
}

/* Fills first, then by source and address. */
static int by_source(const void *a, const void *b)
{
    const job_info_t *x = &((const entry_t *)a)->info;
    const job_info_t *y = &((const entry_t *)b)->info;
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
    if (entry->info.acc != NO_ACC) {
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
    batch_t *batch = &exec->batches[exec->n_batches++];
    *batch = (batch_t){ .job_begin = begin, .job_end = end, .bytes = bytes };
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
        const job_info_t *info = &exec->entries[i].info;
        const job_info_t *first = &exec->entries[begin].info;
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

static heft_status_t begin_build(const heft_plan_t *plan, const heft_exec_target_t *targets,
                                 uint32_t n_targets, heft_exec_t **exec_out, heft_error_t *err)
{
    if (n_targets > 0 && targets == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%u targets, targets is NULL", n_targets);
    }
    heft_exec_t *exec = heft__calloc(1, sizeof *exec);
    if (exec == NULL) {
        return heft__error_nomem(err, sizeof *exec);
    }
    heft__arena_init(&exec->arena, 4096);
    exec->plan = plan;
    exec->targets = targets;
    exec->n_targets = n_targets;
    exec->target_acc = heft__arena_calloc(&exec->arena, (size_t)n_targets + 1, sizeof(size_t));
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    if (exec->target_acc == NULL) {
        heft_exec_destroy(exec);
        return heft__error_nomem(err, n_targets * sizeof(size_t));
    }
    heft_status_t status = HEFT_OK;
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
                               uint64_t n_members, heft__pool_t *pool, heft__progress_t *progress,
                               heft_exec_t **exec_out, heft_error_t *err)
{
    heft_exec_t *exec = NULL;
    heft_status_t status = begin_build(plan, targets, n_targets, &exec, err);
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
    heft_status_t status = begin_build(plan, target, 1, &exec, err);
    if (exec == NULL) {
        return status;
    }
    exec->pool = pool;
    exec->progress = progress;
    status = add_pieces(exec, target->rank_index, param, pieces, n_pieces, err);
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

static heft_status_t add_all_params(heft_exec_t *exec, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(exec->plan, &info);
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; status == HEFT_OK && r < info.n_ranks; r++) {
        uint32_t n = has_target(exec, r) ? heft_plan_get_n_params(exec->plan, r) : 0;
        for (uint32_t p = 0; status == HEFT_OK && p < n; p++) {
            status = add_param(exec, r, p, err);
        }
    }
    return status;
}

heft_status_t heft_exec_create(const heft_plan_t *plan, const heft_exec_target_t *targets,
                               uint32_t n_targets, const heft_exec_opts_t *opts,
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
    status = begin_build(plan, targets, n_targets, &exec, err);
    if (exec == NULL) {
        return status;
    }
    status = heft__pool_create(known.n_threads, &exec->own_pool, err);
    exec->pool = exec->own_pool;
    exec->own_progress = (heft__progress_t){ .fn = known.progress, .arg = known.progress_arg };
    exec->progress = &exec->own_progress;
    if (status == HEFT_OK) {
        status = add_all_params(exec, err);
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

/* ---- running ---- */

static const batch_t *find_batch(const heft_exec_t *exec, uint64_t unit)
{
    size_t low = 0;
    size_t high = exec->n_batches;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (exec->batches[mid].unit_begin <= unit) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return &exec->batches[low];
}

/* total * part / n_parts without overflow. */
static int64_t share(int64_t total, uint32_t part, uint32_t n_parts)
{
    int64_t n = (int64_t)n_parts;
    return total / n * (int64_t)part + total % n * (int64_t)part / n;
}

/* Relaxed: the pool's lock orders the accumulators before they are read. */
static void add_digest(heft_exec_t *exec, size_t acc, uint64_t value)
{
    if (value != 0) {
        atomic_fetch_xor_explicit(&exec->acc[acc], value, memory_order_relaxed);
    }
}

static void run_fill(heft_exec_t *exec, const batch_t *batch, uint32_t part)
{
    const heft__job_t *job = &exec->jobs[batch->job_begin];
    const heft__copy_plan_t *copy = job->copy;
    size_t acc = exec->infos[batch->job_begin].acc;
    if (acc != NO_ACC) {
        add_digest(
            exec, acc,
            heft__copy_run_crc64(copy, job->dst, job->src[0], job->dst_offset, job->param_bytes));
        return;
    }
    int64_t begin = share(copy->extent[0], part, batch->n_parts);
    int64_t end = share(copy->extent[0], part + 1, batch->n_parts);
    if (batch->n_parts > 1) {
        begin -= begin % copy->slab_align;
        end = part + 1 == batch->n_parts ? end : end - end % copy->slab_align;
    }
    heft__copy_run_slabs(copy, job->dst, job->src[0], begin, end);
}

static void run_batch_part(heft_exec_t *exec, const batch_t *batch, uint32_t part, uint32_t thread)
{
    size_t n = batch->job_end - batch->job_begin;
    const heft__job_t *jobs = &exec->jobs[batch->job_begin];
    if (exec->n_acc == 0) {
        heft__jobs_run(jobs, n, part, batch->n_parts, NULL);
        return;
    }
    uint64_t *digests = exec->scratch + (size_t)thread * (exec->max_batch_jobs + 1);
    memset(digests, 0, n * sizeof *digests);
    heft__jobs_run(jobs, n, part, batch->n_parts, digests);
    for (size_t i = 0; i < n; i++) {
        size_t acc = exec->infos[batch->job_begin + i].acc;
        if (acc != NO_ACC) {
            add_digest(exec, acc, digests[i]);
        }
    }
}

/* Counters are relaxed: units touch disjoint bytes, and the pool's lock orders them all before the
 * end of the run. */
static void run_units(void *arg, uint32_t thread)
{
    heft_exec_t *exec = arg;
    while (!atomic_load_explicit(&exec->cancel, memory_order_relaxed)) {
        uint64_t unit = atomic_fetch_add_explicit(&exec->next_unit, 1, memory_order_relaxed);
        if (unit >= exec->n_units) {
            return;
        }
        const batch_t *batch = find_batch(exec, unit);
        uint32_t part = (uint32_t)(unit - batch->unit_begin);
        if (exec->infos[batch->job_begin].is_fill) {
            run_fill(exec, batch, part);
        } else {
            run_batch_part(exec, batch, part, thread);
        }
        int64_t bytes = share(batch->bytes, part + 1, batch->n_parts) -
                        share(batch->bytes, part, batch->n_parts);
        int64_t done =
            atomic_fetch_add_explicit(&exec->done_bytes, bytes, memory_order_relaxed) + bytes;
        if (thread == 0 && done < exec->n_bytes && !heft__progress_report(exec->progress, done)) {
            atomic_store_explicit(&exec->cancel, true, memory_order_relaxed);
        }
    }
}

static heft_status_t bind_sources(heft_exec_t *exec, const void *const *sources, heft_error_t *err)
{
    for (size_t i = 0; i < exec->n_jobs; i++) {
        const job_info_t *info = &exec->infos[i];
        for (uint32_t s = 0; s < info->n_srcs; s++) {
            if (sources == NULL || sources[info->source[s]] == NULL) {
                heft_tensor_info_t tensor = { .name = "?" };
                heft_status_t status =
                    heft_plan_query_source(exec->plan, info->source[s], &tensor, err);
                return status != HEFT_OK ? status
                                         : heft__error_set(err, HEFT_ERR_ARGUMENT,
                                                           "source \"%s\" is NULL", tensor.name);
            }
            const uint8_t *base = sources[info->source[s]];
            exec->jobs[i].src[s] = base + info->src_offset[s];
        }
    }
    return HEFT_OK;
}

static void store_digests(const heft_exec_t *exec)
{
    for (uint32_t t = 0; t < exec->n_targets; t++) {
        const heft_exec_target_t *target = &exec->targets[t];
        uint32_t n = target->digests_out != NULL
                         ? heft_plan_get_n_params(exec->plan, target->rank_index)
                         : 0;
        for (uint32_t p = 0; p < n; p++) {
            target->digests_out[p] =
                atomic_load_explicit(&exec->acc[exec->target_acc[t] + p], memory_order_relaxed);
        }
    }
}

heft_status_t heft_exec_run(heft_exec_t *exec, const void *const *sources, heft_error_t *err)
{
    heft_status_t status = bind_sources(exec, sources, err);
    if (status == HEFT_OK) {
        status = heft__checks_bind(exec->checks, sources, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < exec->n_acc; i++) {
        atomic_store_explicit(&exec->acc[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&exec->next_unit, 0, memory_order_relaxed);
    atomic_store_explicit(&exec->done_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&exec->cancel, false, memory_order_relaxed);
    if (exec->progress == &exec->own_progress) {
        exec->own_progress.done = 0;
        exec->own_progress.total = exec->n_bytes;
        exec->own_progress.reported = 0;
    }
    heft__pool_run(exec->pool, run_units, exec);
    bool is_canceled = atomic_load_explicit(&exec->cancel, memory_order_relaxed);
    if (!is_canceled) {
        status = heft__checks_run(exec->checks, exec->pool, err);
        is_canceled = status == HEFT_OK && !heft__progress_report(exec->progress, exec->n_bytes);
    }
    if (is_canceled) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "canceled by the progress function");
    }
    if (status != HEFT_OK) {
        return status;
    }
    store_digests(exec);
    return HEFT_OK;
}
