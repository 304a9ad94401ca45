/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs: the source tensors that a rank is sent whole, because only the engine's own loader can
 * write some of its parameters.
 *
 * A loader may keep half of a pair until the other one comes, so it is given everything that hangs
 * together: starting from the operations that heft does not run itself, all sources of all
 * parameters that share a source tensor with them or are declared together with them, directly or
 * through others. Both sides compute this from the plan of the rank alone.
 *
 * Where several sources hold boxes of a tensor, the loader is still given the tensor: how it is put
 * together is a plan of its own, whose parameters are the inputs.
 */
#ifndef HEFT_SYNC_INPUTS_H
#define HEFT_SYNC_INPUTS_H

#include "base/base.h"
#include "heft/routes.h"
#include "heft/sync.h"
#include "sync/sources.h"

typedef struct heft__inputs {
    uint32_t n;
    heft_input_t *items;   /* by name, without data; names are the plan's */
    heft_plan_t *plan;     /* inputs from what the sources hold; one rank */
    heft_routes_t *routes; /* of that plan */
    bool *is_loaded;       /* of each parameter: the loader writes it */
    bool *is_mixed;        /* the loader writes it, and pieces write a part of it as well */
    bool *is_grouped;      /* heft writes it, from tensors that the loader is given as well */
} heft__inputs_t;

/* Zero-initialised is none, and may be finished. Without such operations n is 0 and the arrays are
 * NULL. The plan is one over these sources. */
HEFT_MUST_CHECK heft_status_t heft__inputs_init(const heft_plan_t *plan, uint32_t rank_index,
                                                const heft__sources_t *sources,
                                                heft__inputs_t *inputs_out, heft_error_t *err);
void heft__inputs_fini(heft__inputs_t *inputs);
/* The first operation that the loader must run, with a parameter that needs it; NULL: none. */
const heft_opaque_t *heft__inputs_first(const heft_plan_t *plan, uint32_t rank_index,
                                        uint32_t *param_out);

#endif
