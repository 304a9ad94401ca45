/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random fleets of several senders: tapes of several ranks, kernels among them, over whole tensors;
 * trainers that hold boxes of these; and who each element of each parameter needs, as the
 * interpreter of tapes says on sets of senders.
 */
#ifndef ROUTE_FLEET_H
#define ROUTE_FLEET_H

#include "ref_reshard.h"

#include "exec/exec.h"
#include "heft/exec.h"
#include "heft/model.h"
#include "heft/placement.h"
#include "heft/routes.h"
#include "plan/plan.h"
#include "tape/tape.h"

enum { MAX_SENDERS = 9, MAX_CELLS = 64, MAX_ENTRIES = 1024, MAX_TARGETS = REF_MAX_RANKS + 1 };

/* A box that a sender holds, as an entry of its manifest. */
typedef struct entry {
    uint32_t sender;
    int tensor;
    char name[40];
    int64_t begin[HEFT_MAX_DIMS]; /* in elements */
    int64_t end[HEFT_MAX_DIMS];
    bool is_whole; /* said without a part */
    uint8_t *data;
} entry_t;

typedef struct fleet {
    ref_case_t c;
    uint32_t n_senders;
    entry_t entries[MAX_ENTRIES];
    uint32_t n_entries;
    heft_manifest_t *manifests[MAX_SENDERS];
    heft_placement_t *placement;      /* NULL: one source that says nothing of parts */
    uint64_t *owner[REF_MAX_SOURCES]; /* of each element (storage units): one bit, who sends it */
    uint64_t *mask[REF_MAX_RANKS][REF_MAX_PARAMS]; /* of each parameter's elements: who it needs */
    bool is_refusable;                             /* some element needs two */
    heft_tape_t *read[REF_MAX_RANKS];
    heft_tape_t *placed[REF_MAX_RANKS];
    heft_tape_t *parts[MAX_SENDERS][REF_MAX_RANKS];
    heft_plan_t *plan;
    heft_routes_t *routes;
} fleet_t;

static inline int pick(uint64_t *rng, int low, int high)
{
    return (int)heft_test_random_in(rng, low, high);
}

void fleet_init(fleet_t *f, uint64_t *rng);
/* Tapes placed, for all and for each alone, and the plan of all ranks. */
void plan_fleet(fleet_t *f);
void fleet_fini(fleet_t *f);
/* The plan of ranks from `first` on. */
heft_plan_t *make_plan(heft_tape_t *const *tapes, uint32_t n, uint32_t first);
/* The plan of tapes in which a sender reads its own boxes, and its routes: its part, alone. */
void plan_part(const fleet_t *f, heft_tape_t *const *tapes, uint32_t n, bool gathers,
               heft_plan_t **plan_out, heft_routes_t **routes_out);
/* What a sender sends by these routes of a plan, from its own boxes and nothing else. */
void run_share(const fleet_t *f, const heft_plan_t *plan, const heft_routes_t *routes,
               uint32_t sender, const heft_exec_target_t *targets, uint32_t n_targets,
               uint32_t n_threads);

#endif
