/* SPDX-License-Identifier: Apache-2.0 */
/* Compiling a rank in preflight, and what compiler and planner find, as problems of a report. */
#ifndef HEFT_SYNC_FINDINGS_H
#define HEFT_SYNC_FINDINGS_H

#include "heft/plan.h"
#include "recipe/recipe.h"
#include "sync/wire.h"

heft__problem_kind_t heft__problem_kind_of(heft_status_t status);
/* The errors of a plan's report (NULL: none). */
void heft__problems_add_report(heft__problems_t *problems, const heft_report_t *report);
/* heft__compiler_run; when it fails, every error is among the problems, after "member: " (NULL:
 * without). */
HEFT_MUST_CHECK heft_status_t heft__compile_rank(heft__compiler_t *compiler, uint32_t rank,
                                                 const heft_manifest_t *destination,
                                                 bool takes_read_alone, const char *member,
                                                 heft__problems_t *problems, heft_tape_t **tape_out,
                                                 heft_error_t *err);

#endif
