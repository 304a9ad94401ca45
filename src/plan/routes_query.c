/* SPDX-License-Identifier: Apache-2.0 */
/* What routes say about themselves. Nothing here allocates but the making of regions. */
#include "plan/routes.h"

size_t heft__find_number(const uint32_t *list, size_t n, uint32_t value)
{
    size_t low = 0;
    size_t high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (list[middle] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < n && list[low] == value ? low : n;
}

static const heft__rank_routes_t *get_rank(const heft_routes_t *routes, uint32_t rank_index)
{
    return rank_index < routes->plan->n_ranks ? &routes->ranks[rank_index] : NULL;
}

static const heft__route_total_t *find_total(const heft_routes_t *routes, uint32_t sender,
                                             uint32_t rank_index)
{
    const heft__rank_routes_t *rank = get_rank(routes, rank_index);
    const size_t i =
        rank != NULL ? heft__find_number(rank->total_senders, rank->n_totals, sender) : 0;
    return rank != NULL && i < rank->n_totals ? &rank->totals[i] : NULL;
}

static const heft__route_t *find_route(const heft_routes_t *routes, uint32_t sender,
                                       uint32_t rank_index, uint32_t param)
{
    uint32_t n = 0;
    const uint32_t *senders = heft_routes_get_param_senders(routes, rank_index, param, &n);
    const size_t i = heft__find_number(senders, n, sender);
    const heft__rank_routes_t *rank = get_rank(routes, rank_index);
    return i < n ? &rank->routes[rank->first_route[param] + i] : NULL;
}

const heft_plan_t *heft__routes_get_plan(const heft_routes_t *routes)
{
    return routes->plan;
}

uint32_t heft_routes_get_n_senders(const heft_routes_t *routes)
{
    return routes->n_senders;
}

uint32_t heft_routes_get_n_ranks(const heft_routes_t *routes)
{
    return routes->plan->n_ranks;
}

const char *heft_routes_get_digest(const heft_routes_t *routes)
{
    return routes->digest;
}

void heft_routes_query(const heft_routes_t *routes, uint32_t sender, uint32_t rank_index,
                       heft_route_info_t *info_out)
{
    const heft__route_total_t *total = find_total(routes, sender, rank_index);
    *info_out = total != NULL ? total->info : (heft_route_info_t){ .n_params = 0 };
}

void heft_routes_query_param(const heft_routes_t *routes, uint32_t sender, uint32_t rank_index,
                             uint32_t param, heft_route_info_t *info_out)
{
    const heft__route_t *route = find_route(routes, sender, rank_index, param);
    *info_out = (heft_route_info_t){ .n_params = route != NULL };
    if (route != NULL) {
        info_out->n_regions = route->n_regions;
        info_out->n_runs = route->n_runs;
        info_out->n_pieces = route->n_pieces;
        info_out->n_bytes = route->n_bytes;
    }
}

const uint32_t *heft_routes_get_senders(const heft_routes_t *routes, uint32_t rank_index,
                                        uint32_t *n_out)
{
    const heft__rank_routes_t *rank = get_rank(routes, rank_index);
    *n_out = rank != NULL ? rank->n_totals : 0;
    return *n_out > 0 ? rank->total_senders : NULL;
}

const uint32_t *heft_routes_get_param_senders(const heft_routes_t *routes, uint32_t rank_index,
                                              uint32_t param, uint32_t *n_out)
{
    const heft__rank_routes_t *rank = get_rank(routes, rank_index);
    *n_out = 0;
    if (rank == NULL || param >= routes->plan->ranks[rank_index].n_params) {
        return NULL;
    }
    *n_out = (uint32_t)(rank->first_route[param + 1] - rank->first_route[param]);
    return *n_out > 0 ? rank->senders + rank->first_route[param] : NULL;
}

const uint32_t *heft_routes_get_params(const heft_routes_t *routes, uint32_t sender,
                                       uint32_t rank_index, uint32_t *n_out)
{
    const heft__route_total_t *total = find_total(routes, sender, rank_index);
    *n_out = total != NULL ? total->info.n_params : 0;
    return *n_out > 0 ? routes->ranks[rank_index].params + total->first_param : NULL;
}

uint32_t heft_routes_get_piece_sender(const heft_routes_t *routes, uint32_t rank_index, uint64_t i)
{
    const heft__rank_routes_t *rank = get_rank(routes, rank_index);
    return rank != NULL && i < routes->plan->ranks[rank_index].n_pieces ? rank->piece_sender[i]
                                                                        : HEFT_SENDER_NONE;
}

const uint64_t *heft__routes_get_pieces(const heft_routes_t *routes, uint32_t sender,
                                        uint32_t rank_index, uint32_t param, uint64_t *n_out)
{
    const heft__route_t *route = find_route(routes, sender, rank_index, param);
    *n_out = route != NULL ? route->n_pieces : 0;
    return route != NULL ? routes->ranks[rank_index].order + route->first : NULL;
}

uint32_t heft__routes_get_check_sender(const heft_routes_t *routes, uint32_t rank_index, uint64_t i)
{
    return routes->ranks[rank_index].check_sender[i];
}

heft_status_t heft_routes_make_regions(const heft_routes_t *routes, uint32_t sender,
                                       uint32_t rank_index, uint32_t param,
                                       heft_route_region_t **regions_out, uint32_t *n_out,
                                       heft_error_t *err)
{
    heft__regions_t regions = { .n = 0 };
    uint64_t n = 0;
    const uint64_t *order = heft__routes_get_pieces(routes, sender, rank_index, param, &n);
    heft_status_t status = HEFT_OK;
    for (uint64_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft__plan_rank_t *rank = &routes->plan->ranks[rank_index];
        status = heft__regions_add(&regions, &rank->pieces[order[i]],
                                   heft_dtype_get_unit_bytes(rank->params[param].dtype), err);
    }
    if (status != HEFT_OK) {
        heft__regions_fini(&regions);
        return status;
    }
    heft__regions_join(&regions);
    *regions_out = regions.items;
    *n_out = (uint32_t)regions.n;
    return HEFT_OK;
}

void heft_route_regions_free(heft_route_region_t *regions)
{
    heft__free(regions);
}

int64_t heft_route_regions_get_n_bytes(const heft_route_region_t *regions, uint32_t n)
{
    int64_t n_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t bytes = regions[i].run_bytes;
        for (int k = 0; k < regions[i].n_loops; k++) {
            bytes *= regions[i].extent[k];
        }
        n_bytes += bytes;
    }
    return n_bytes;
}
