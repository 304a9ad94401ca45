/* SPDX-License-Identifier: Apache-2.0 */
/* A run is made for each part and forgotten: its memory is bounded by the part. */
#include "sync/part_run.h"

#include "exec/exec.h"

struct heft__part_runner {
    heft__pool_t *pool;
    heft__progress_t progress;
};

heft_status_t heft__part_runner_create(uint32_t n_threads, heft_progress_t progress,
                                       void *progress_arg, heft__part_runner_t **runner_out,
                                       heft_error_t *err)
{
    heft__part_runner_t *runner = heft__calloc(1, sizeof *runner);
    if (runner == NULL) {
        return heft__error_nomem(err, sizeof *runner);
    }
    runner->progress = (heft__progress_t){ .fn = progress, .arg = progress_arg };
    heft_status_t status = heft__pool_create(n_threads, &runner->pool, err);
    if (status != HEFT_OK) {
        heft__free(runner);
        return status;
    }
    *runner_out = runner;
    return HEFT_OK;
}

void heft__part_runner_destroy(heft__part_runner_t *runner)
{
    if (runner != NULL) {
        heft__pool_destroy(runner->pool);
        heft__free(runner);
    }
}

void heft__part_runner_expect(heft__part_runner_t *runner, int64_t bytes)
{
    runner->progress.total += bytes;
}

heft_status_t heft__part_run(heft__part_runner_t *runner, const heft_plan_t *plan,
                             const heft_exec_target_t *target, uint32_t first, uint32_t end,
                             const heft__share_t *share, const void *const *sources,
                             heft_error_t *err)
{
    heft_exec_t *exec = NULL;
    const size_t n = end - first;
    heft_plan_member_t *members = heft__calloc(n > 0 ? n : 1, sizeof *members);
    if (members == NULL) {
        return heft__error_nomem(err, n * sizeof *members);
    }
    for (uint32_t i = first; i < end; i++) {
        members[i - first] = (heft_plan_member_t){ .rank_index = target->rank_index, .param = i };
    }
    heft_status_t status = heft__exec_build(plan, target, 1, members, n, share, runner->pool,
                                            &runner->progress, &exec, err);
    if (status == HEFT_OK) {
        status = heft_exec_run(exec, sources, err);
        runner->progress.done += heft__exec_get_n_bytes(exec);
    }
    heft_exec_destroy(exec);
    heft__free(members);
    return status;
}
