/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of some consecutive parameters of one rank, one after the other, with one pool of threads
 * and one account of progress over all of them. Confined.
 */
#ifndef HEFT_SYNC_PART_RUN_H
#define HEFT_SYNC_PART_RUN_H

#include "exec/exec.h"

typedef struct heft__part_runner heft__part_runner_t;

HEFT_MUST_CHECK heft_status_t heft__part_runner_create(uint32_t n_threads, heft_progress_t progress,
                                                       void *progress_arg,
                                                       heft__part_runner_t **runner_out,
                                                       heft_error_t *err);
void heft__part_runner_destroy(heft__part_runner_t *runner);
/* Bytes that are still to come, for progress. */
void heft__part_runner_expect(heft__part_runner_t *runner, int64_t bytes);
/* Parameters [first, end) of the target, whose params and digests_out are arrays of all parameters:
 * digests outside of the part are set to 0. share NULL: all of it, else what one sender writes. As
 * heft_exec_run. */
HEFT_MUST_CHECK heft_status_t heft__part_run(heft__part_runner_t *runner, const heft_plan_t *plan,
                                             const heft_exec_target_t *target, uint32_t first,
                                             uint32_t end, const heft__share_t *share,
                                             const void *const *sources, heft_error_t *err);

#endif
