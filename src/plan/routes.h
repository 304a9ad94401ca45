/* SPDX-License-Identifier: Apache-2.0 */
/* What the files on routes share. Private to them. */
#ifndef HEFT_PLAN_ROUTES_H
#define HEFT_PLAN_ROUTES_H

#include "plan/plan.h"

/* ---- regions.c ---- */

typedef struct heft__regions {
    heft_route_region_t *items;
    size_t n, cap;
} heft__regions_t;

/* The elements that a piece writes, of unit_bytes each. */
heft_status_t heft__regions_add(heft__regions_t *regions, const heft_piece_t *piece,
                                uint32_t unit_bytes, heft_error_t *err);
/* Put neighbours together, and order all by offset. They share no byte. */
void heft__regions_join(heft__regions_t *regions);
uint64_t heft__regions_count_runs(const heft__regions_t *regions);
void heft__regions_fini(heft__regions_t *regions);

/* ---- routes ---- */

/* What one sender writes of one parameter. */
typedef struct heft__route {
    uint32_t param;
    uint32_t n_regions;
    uint64_t n_runs;
    int64_t n_bytes;
    uint64_t first; /* in order */
    uint64_t n_pieces;
} heft__route_t;

/* All that one sender sends a rank. */
typedef struct heft__route_total {
    heft_route_info_t info;
    uint32_t first_param; /* in params */
    char digest[65];
} heft__route_total_t;

typedef struct heft__rank_routes {
    uint32_t *piece_sender; /* by piece */
    uint32_t *check_sender; /* by check */
    uint64_t *order; /* pieces by (param, sender, place), without those that the loader writes */
    uint64_t n_order;
    heft__route_t *routes; /* by (param, sender) */
    uint32_t *senders;     /* of each route */
    size_t n_routes, cap_routes, cap_senders;
    size_t *first_route;         /* of each parameter; n_params + 1 */
    heft__route_total_t *totals; /* by sender */
    uint32_t *total_senders;     /* of each total */
    uint32_t n_totals;
    uint32_t *params; /* by (sender, param) */
} heft__rank_routes_t;

struct heft_routes {
    heft__arena_t arena;
    const heft_plan_t *plan;
    uint32_t n_senders;
    heft__rank_routes_t *ranks;
    char digest[65];
};

/* The place of a value in an ascending list, or n. */
size_t heft__find_number(const uint32_t *list, size_t n, uint32_t value);

/* ---- routes_senders.c: whose work each piece and check is ---- */

#define HEFT__SENDER_ANY (UINT32_MAX - 1) /* a constant, while it is not yet dealt */

typedef struct heft__sender_finder heft__sender_finder_t;

heft_status_t heft__sender_finder_create(const heft_plan_t *plan, const uint32_t *senders,
                                         const heft_routes_opts_t *opts,
                                         heft__sender_finder_t **finder_out, heft_error_t *err);
void heft__sender_finder_destroy(heft__sender_finder_t *finder);
/* Fill piece_sender and check_sender of a rank. What two senders would be needed for is counted
 * with its first case, see check. */
heft_status_t heft__sender_finder_run(heft__sender_finder_t *finder, uint32_t rank_index,
                                      heft__rank_routes_t *routes, heft_error_t *err);
/* Of the rank of the last run: what senders send it for kernels that it runs itself, a load for
 * each sender and piece. Borrowed. */
const heft_route_load_t *heft__sender_finder_get_gathered(const heft__sender_finder_t *finder,
                                                          uint64_t *n_out);
/* HEFT_ERR_UNSUPPORTED where anything was counted. */
heft_status_t heft__sender_finder_check(const heft__sender_finder_t *finder, heft_error_t *err);

/* ---- routes_others.c ---- */

/* Of what a piece reads of stand-ins (heft_placement_apply_part), through operations too: *low
 * becomes the lowest rank that sends any of it, where that is lower. */
heft_status_t heft__lowest_holder(const heft_placement_t *placement, const heft_plan_t *plan,
                                  const heft__plan_rank_t *rank, const heft_piece_t *piece,
                                  uint32_t *low, heft_error_t *err);

/* What a plain operation (heft__operation_is_plain) reads lies with several ranks of the placement.
 * is_whole: sources are its tensors; else all of them are stand-ins for such. */
heft_status_t heft__operation_is_split(const heft_placement_t *placement, const heft_plan_t *plan,
                                       const heft_opaque_t *op, bool is_whole, bool *is_split_out,
                                       heft_error_t *err);

/* ---- routes_digest.c ---- */

/* The digest of every total, of every rank, and of all. */
heft_status_t heft__routes_make_digests(heft_routes_t *routes, heft_error_t *err);

#endif
