/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs: what a rank is sent besides parameters. Source tensors as wholes, because only the
 * engine's own loader can write some of its parameters; and the inputs of known kernels that lie
 * with several sources, so that only the rank itself can run them (plan/plan.h, gathered).
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

typedef struct heft__gathered heft__gathered_t; /* plan/plan.h */

typedef struct heft__inputs {
    uint32_t n;
    heft_input_t *items; /* by name, without data; names are the plan's */
    bool *is_gathered;   /* of each: a kernel's; else the loader's */
    uint32_t n_gathered;
    heft_plan_t *plan;     /* inputs from what the sources hold; one rank */
    heft_routes_t *routes; /* of that plan */
    bool *is_loaded;       /* of each parameter: the loader writes it */
    bool *is_mixed;        /* the loader writes it, and pieces write a part of it as well */
    bool *is_grouped;      /* heft writes it, from tensors that the loader is given as well */
} heft__inputs_t;

#define HEFT__ALL_SOURCES UINT32_MAX

/* Zero-initialised is none, and may be finished. Without such operations n is 0 and the arrays are
 * NULL. The plan is one over these sources; gathered, of which the tape of inputs is taken, is of
 * its rank. `source`: the one whose part alone is planned, if the loader is given nothing, or
 * HEFT__ALL_SOURCES. */
HEFT_MUST_CHECK heft_status_t heft__inputs_init(const heft_plan_t *plan, uint32_t rank_index,
                                                const heft__sources_t *sources,
                                                heft__gathered_t *gathered, uint32_t source,
                                                heft__inputs_t *inputs_out, heft_error_t *err);
void heft__inputs_fini(heft__inputs_t *inputs);
/* The first operation that the loader must run, with a parameter that needs it; NULL: none. */
const heft_opaque_t *heft__inputs_first(const heft_plan_t *plan, uint32_t rank_index,
                                        uint32_t *param_out);

#endif
