/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parameters a run has written whole, for those who pass them on while it goes on. Every unit
 * counts down the parameters that it writes, once for each job; who brings one to 0 tells. With
 * several targets of one rank a parameter is whole when it is in all of them.
 */
#include "exec/exec_impl.h"

static heft_status_t make_slots(heft_exec_t *exec, heft_error_t *err)
{
    exec->slots = heft__arena_calloc(&exec->arena, (size_t)exec->n_targets + 1, sizeof(size_t));
    if (exec->slots == NULL) {
        return heft__error_nomem(err, exec->n_targets * sizeof(size_t));
    }
    exec->n_slots = 0;
    for (uint32_t t = 0; t < exec->n_targets; t++) {
        const uint32_t rank_index = exec->targets[t].rank_index;
        uint32_t u = 0;
        while (exec->targets[u].rank_index != rank_index) {
            u++;
        }
        exec->slots[t] = u < t ? exec->slots[u] : exec->n_slots;
        exec->n_slots += u < t ? 0 : heft_plan_get_n_params(exec->plan, rank_index);
    }
    exec->units_of = heft__calloc(exec->n_slots + 1, sizeof *exec->units_of);
    exec->last_of = heft__calloc(exec->n_slots + 1, sizeof *exec->last_of);
    exec->left = heft__calloc(exec->n_slots + 1, sizeof *exec->left);
    return exec->units_of != NULL && exec->last_of != NULL && exec->left != NULL
               ? HEFT_OK
               : heft__error_nomem(err, 3 * exec->n_slots * sizeof *exec->left);
}

static void add_units(heft_exec_t *exec, uint32_t target, uint32_t param, uint64_t n, uint64_t end)
{
    const size_t slot = exec->slots[target] + param;
    exec->units_of[slot] += n;
    exec->last_of[slot] = end - 1 > exec->last_of[slot] ? end - 1 : exec->last_of[slot];
}

static void count_units(heft_exec_t *exec)
{
    for (size_t b = 0; b < exec->n_batches; b++) {
        const heft__batch_t *batch = &exec->batches[b];
        for (size_t i = batch->job_begin; i < batch->job_end; i++) {
            const heft__job_info_t *info = &exec->infos[i];
            add_units(exec, info->target, info->param, batch->n_parts,
                      exec->known.n_units + batch->unit_begin + batch->n_parts);
        }
    }
    for (size_t k = 0; k < exec->known.n; k++) {
        const heft__known_job_t *job = &exec->known.items[k];
        for (size_t i = 0; i < job->n_copies; i++) {
            const heft__known_copy_t *copy = &job->copies[i];
            add_units(exec, copy->target, copy->param, job->n_units,
                      job->unit_begin + job->n_units);
        }
    }
}

heft_status_t heft__exec_set_on_param(heft_exec_t *exec, heft__exec_param_fn_t fn, void *arg,
                                      heft_error_t *err)
{
    if (exec->left == NULL) {
        heft_status_t status = make_slots(exec, err);
        if (status != HEFT_OK) {
            heft__exec_whole_fini(exec);
            return status;
        }
        count_units(exec);
    }
    exec->on_param = fn;
    exec->on_param_arg = arg;
    return HEFT_OK;
}

bool heft__exec_find_last_unit(const heft_exec_t *exec, uint32_t rank_index, uint32_t param,
                               uint64_t *unit_out)
{
    uint32_t t = 0;
    while (t < exec->n_targets && exec->targets[t].rank_index != rank_index) {
        t++;
    }
    if (t == exec->n_targets || exec->units_of[exec->slots[t] + param] == 0) {
        return false;
    }
    *unit_out = exec->last_of[exec->slots[t] + param];
    return true;
}

void heft__exec_whole_fini(heft_exec_t *exec)
{
    heft__free(exec->units_of);
    heft__free(exec->last_of);
    heft__free((void *)(uintptr_t)exec->left);
    exec->units_of = NULL;
    exec->last_of = NULL;
    exec->left = NULL;
}

void heft__exec_whole_begin(heft_exec_t *exec)
{
    for (size_t i = 0; exec->on_param != NULL && i < exec->n_slots; i++) {
        atomic_store_explicit(&exec->left[i], exec->units_of[i], memory_order_relaxed);
    }
}

/* acq_rel: who tells has seen what all others wrote before they counted down. */
static void count_down(heft_exec_t *exec, uint32_t target, uint32_t param)
{
    _Atomic uint64_t *left = &exec->left[exec->slots[target] + param];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 1) {
        exec->on_param(exec->on_param_arg, exec->targets[target].rank_index, param);
    }
}

void heft__exec_whole_note(heft_exec_t *exec, const heft__batch_t *batch)
{
    for (size_t i = batch->job_begin; exec->on_param != NULL && i < batch->job_end; i++) {
        count_down(exec, exec->infos[i].target, exec->infos[i].param);
    }
}

void heft__exec_whole_note_known(heft_exec_t *exec, const heft__known_job_t *job)
{
    for (size_t i = 0; exec->on_param != NULL && i < job->n_copies; i++) {
        count_down(exec, job->copies[i].target, job->copies[i].param);
    }
}
