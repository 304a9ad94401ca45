/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holders: which source holds what a plan reads. A plan over several sources reads boxes, named
 * rank-R.NAME (heft_placement_apply); each is entry NAME of the manifest of source R, and a box of
 * a whole tensor.
 */
#ifndef HEFT_SYNC_HOLDERS_H
#define HEFT_SYNC_HOLDERS_H

#include "heft/plan.h"
#include "sync/sources.h"

/* Of one source tensor of a plan. */
typedef struct heft__holder {
    uint32_t sender; /* number of the source that holds it */
    uint32_t entry;  /* in its manifest */
    uint32_t tensor; /* in the manifest of whole tensors */
} heft__holder_t;

/* One for each source tensor of the plan, in its order; owned by the caller (heft__free). */
HEFT_MUST_CHECK heft_status_t heft__holders_create(const heft_plan_t *plan,
                                                   const heft__sources_t *sources,
                                                   heft__holder_t **holders_out, heft_error_t *err);
/* Marks the entries of source `number` that it is to send, whoever reads them: what nobody else
 * holds, and of the rest what was dealt to it. */
HEFT_MUST_CHECK heft_status_t heft__holders_mark_chosen(const heft__sources_t *sources,
                                                        uint32_t number, bool *chosen,
                                                        heft_error_t *err);
/* Whether source `number` holds an element that no other source holds. */
HEFT_MUST_CHECK heft_status_t heft__holders_is_needed(const heft__sources_t *sources,
                                                      uint32_t number, bool *needed_out,
                                                      heft_error_t *err);

/* "source 0.2", by replica and rank, for messages. */
#define HEFT__SOURCE_LABEL_SIZE 40
void heft__source_label(const heft__sources_t *sources, uint32_t number,
                        char out[HEFT__SOURCE_LABEL_SIZE]);

#endif
