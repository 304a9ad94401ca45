/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running. A batch is run in parts of about 8 MiB of destination bytes, each a range of source
 * addresses that feeds all of the batch's jobs; (batch, part) is a unit, which threads take from
 * one counter. So the source is read once, in address order, while all destinations are written. A
 * constant is cut into ranges of its outermost dimension. Checks of the plan come last, when all
 * parameters are written (exec_check.c).
 *
 * Digests: each thread collects a batch's contributions privately, then XORs them into one
 * accumulator per parameter of a rank; targets of one rank share it, for they hold the same bytes.
 */
#include "exec/exec_impl.h"

#include <string.h>

const heft__batch_t *heft__exec_find_batch(const heft_exec_t *exec, uint64_t unit)
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

static void run_fill(heft_exec_t *exec, const heft__batch_t *batch, uint32_t part)
{
    const heft__job_t *job = &exec->jobs[batch->job_begin];
    const heft__copy_plan_t *copy = job->copy;
    size_t acc = exec->infos[batch->job_begin].acc;
    if (acc != HEFT__NO_ACC) {
        heft__exec_add_digest(
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

static void run_batch_part(heft_exec_t *exec, const heft__batch_t *batch, uint32_t part,
                           uint32_t thread)
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
        if (acc != HEFT__NO_ACC) {
            heft__exec_add_digest(exec, acc, digests[i]);
        }
    }
}

/* Returns the bytes written. */
static int64_t run_unit(heft_exec_t *exec, uint64_t unit, uint32_t thread)
{
    const heft__batch_t *batch = heft__exec_find_batch(exec, unit);
    uint32_t part = (uint32_t)(unit - batch->unit_begin);
    if (exec->infos[batch->job_begin].is_fill) {
        run_fill(exec, batch, part);
    } else {
        run_batch_part(exec, batch, part, thread);
    }
    heft__exec_whole_note(exec, batch);
    return share(batch->bytes, part + 1, batch->n_parts) -
           share(batch->bytes, part, batch->n_parts);
}

/* A failure ends the run; the first is kept. */
static int64_t run_known(heft_exec_t *exec, uint64_t unit, uint32_t thread)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t bytes = 0;
    if (heft__known_run_unit(exec, unit, thread, &bytes, &err) != HEFT_OK) {
        if (!atomic_exchange_explicit(&exec->has_failed, true, memory_order_relaxed)) {
            exec->failure = err;
        }
        atomic_store_explicit(&exec->cancel, true, memory_order_relaxed);
    }
    return bytes;
}

/* Known kernels first: their units take longest. Counters are relaxed: units touch disjoint bytes,
 * and the pool's lock orders them all before the end of the run. */
static void run_units(void *arg, uint32_t thread)
{
    heft_exec_t *exec = arg;
    while (!atomic_load_explicit(&exec->cancel, memory_order_relaxed)) {
        uint64_t unit = atomic_fetch_add_explicit(&exec->next_unit, 1, memory_order_relaxed);
        if (unit >= exec->unit_end) {
            return;
        }
        int64_t bytes = unit < exec->known.n_units
                            ? run_known(exec, unit, thread)
                            : run_unit(exec, unit - exec->known.n_units, thread);
        int64_t done =
            atomic_fetch_add_explicit(&exec->done_bytes, bytes, memory_order_relaxed) + bytes;
        if (thread == 0 && done < exec->n_bytes && !heft__progress_report(exec->progress, done)) {
            atomic_store_explicit(&exec->cancel, true, memory_order_relaxed);
        }
    }
}

/* All units, window by window; without windows in one go. */
static heft_status_t run_windows(heft_exec_t *exec, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    uint64_t begin = 0;
    uint64_t n_units = exec->known.n_units + exec->n_units;
    while (status == HEFT_OK && begin < n_units &&
           !atomic_load_explicit(&exec->cancel, memory_order_relaxed)) {
        exec->unit_end = heft__exec_window_end(exec, begin);
        atomic_store_explicit(&exec->next_unit, begin, memory_order_relaxed);
        heft__pool_run(exec->pool, run_units, exec);
        begin = exec->unit_end;
        if (begin < n_units && exec->window.between != NULL) {
            status = exec->window.between(exec->window.arg, err);
        }
    }
    return status;
}

static heft_status_t bind_sources(heft_exec_t *exec, const void *const *sources, heft_error_t *err)
{
    for (size_t i = 0; i < exec->n_jobs; i++) {
        const heft__job_info_t *info = &exec->infos[i];
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
        status = heft__known_bind(exec, sources, err);
    }
    if (status == HEFT_OK) {
        status = heft__checks_bind(exec->checks, sources, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < exec->n_acc; i++) {
        atomic_store_explicit(&exec->acc[i], 0, memory_order_relaxed);
    }
    heft__exec_whole_begin(exec);
    atomic_store_explicit(&exec->done_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&exec->cancel, false, memory_order_relaxed);
    if (exec->progress == &exec->own_progress) {
        exec->own_progress.done = 0;
        exec->own_progress.total = exec->n_bytes;
        exec->own_progress.reported = 0;
    }
    atomic_store_explicit(&exec->has_failed, false, memory_order_relaxed);
    status = run_windows(exec, err);
    if (status == HEFT_OK && atomic_load_explicit(&exec->has_failed, memory_order_relaxed)) {
        if (err != NULL) {
            *err = exec->failure;
        }
        return exec->failure.status;
    }
    bool is_canceled = atomic_load_explicit(&exec->cancel, memory_order_relaxed);
    if (status == HEFT_OK && !is_canceled) {
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
