/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: what a destination runs itself, because no source holds all that it needs. The inputs
 * lie in staging, where several sources have put them (sync/inputs.h); what comes of them goes to
 * the parameters in staging, before these are compared.
 *
 * Threads: confined.
 */
#ifndef HEFT_SYNC_KERNELS_H
#define HEFT_SYNC_KERNELS_H

#include "heft/exec.h"
#include "sync/inputs.h"
#include "sync/staging.h"

typedef struct heft__kernels {
    heft_plan_t *plan; /* from the inputs to the rank's parameters; NULL: there is nothing to run */
    int64_t n_bytes;   /* that it writes */
    heft_exec_t *exec; /* for staging at `base` */
    const uint8_t *base;
    const void **sources;
    void **params;
    heft_exec_target_t *target; /* of the run, which borrows it */
    uint64_t *shares;           /* digests of what was written last, with zeros elsewhere */
} heft__kernels_t;

/* Zero-initialised is none, and may be finished. gathered and routes: of this plan's only rank. */
HEFT_MUST_CHECK heft_status_t heft__kernels_init(const heft__gathered_t *gathered,
                                                 const heft_plan_t *plan,
                                                 const heft_routes_t *routes,
                                                 heft__kernels_t *kernels_out, heft_error_t *err);
void heft__kernels_fini(heft__kernels_t *kernels);
/* Whether it writes something of a parameter. */
bool heft__kernels_write(const heft__kernels_t *kernels, uint32_t param);
/* Run all of them in staging at `base`, in which everything has arrived; expected[] gets its
 * shares. May be repeated. */
HEFT_MUST_CHECK heft_status_t heft__kernels_run(heft__kernels_t *kernels,
                                                const heft__staging_t *layout,
                                                const heft__inputs_t *inputs, uint8_t *base,
                                                uint32_t n_threads, uint64_t *expected,
                                                heft_error_t *err);

#endif
