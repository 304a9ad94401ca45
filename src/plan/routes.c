/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making routes: whose work each piece is, then rank by rank the pieces by (parameter, sender), the
 * regions they write, sums by sender, digests. Everything but the lists of one rank lies in the
 * arena; the plan is borrowed, and names of tensors are its own.
 */
#include "plan/routes.h"

#include <stdlib.h>
#include <string.h>

#include "heft/names.h"

#define MAX_SENDERS (1u << 24)

typedef struct maker {
    heft_routes_t *routes;
    heft_routes_opts_t opts;
    heft__sender_finder_t *finder;
    uint32_t *senders;       /* by source */
    heft__regions_t regions; /* scratch */
    heft_error_t *err;
} maker_t;

/* ---- arguments ---- */

static heft_status_t load_opts(const heft_routes_opts_t *from, heft_routes_opts_t *to,
                               uint32_t n_senders, uint32_t n_ranks, heft_error_t *err)
{
    *to = (heft_routes_opts_t)HEFT_ROUTES_OPTS_INIT;
    heft_status_t status = heft__opts_load(from, to, sizeof *to, "routes options", err);
    if (status == HEFT_OK && to->others != NULL &&
        heft_placement_get_n_ranks(to->others) != n_senders) {
        status =
            heft__error_set(err, HEFT_ERR_ARGUMENT, "routes: %u senders, the placement has %u",
                            (unsigned)n_senders, (unsigned)heft_placement_get_n_ranks(to->others));
    }
    if (status == HEFT_OK && to->n_loads > 0 && to->loads == NULL) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT, "routes: %llu loads, loads is NULL",
                                 (unsigned long long)to->n_loads);
    }
    for (uint64_t i = 0; status == HEFT_OK && i < to->n_loads; i++) {
        const heft_route_load_t *load = &to->loads[i];
        if (load->sender >= n_senders || load->rank_index >= n_ranks || load->n_bytes < 0) {
            status = heft__error_set(err, HEFT_ERR_ARGUMENT,
                                     "routes: load %llu is of sender %u of %u, rank %u of %u, %lld "
                                     "bytes",
                                     (unsigned long long)i, (unsigned)load->sender,
                                     (unsigned)n_senders, (unsigned)load->rank_index,
                                     (unsigned)n_ranks, (long long)load->n_bytes);
        }
    }
    return status;
}

static heft_status_t take_senders(maker_t *m, const uint32_t *senders)
{
    const heft_plan_t *plan = m->routes->plan;
    const bool is_part = m->opts.others != NULL;
    const uint32_t n_senders = m->routes->n_senders + (is_part ? 1 : 0);
    m->senders = heft__calloc((size_t)plan->n_sources + 1, sizeof *m->senders);
    if (m->senders == NULL) {
        return heft__error_nomem(m->err, plan->n_sources * sizeof *m->senders);
    }
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        const char *name = plan->sources[s].name;
        const char *rest;
        if (senders != NULL) {
            m->senders[s] = senders[s];
        } else if (n_senders > 1 && heft_name_split_rank(name, &m->senders[s], &rest) == 0) {
            return heft__error_set(m->err, HEFT_ERR_ARGUMENT,
                                   "routes: source \"%.120s\" has no rank in its name", name);
        }
        if (m->senders[s] >= n_senders) {
            return heft__error_set(m->err, HEFT_ERR_ARGUMENT,
                                   "routes: source \"%.120s\" is of sender %u, there are %u", name,
                                   (unsigned)m->senders[s], (unsigned)n_senders);
        }
    }
    return HEFT_OK;
}

/* ---- one parameter ---- */

/* Pieces [begin, end) of one parameter in order: by sender, those of one in their own order. A
 * parameter rarely has many senders, and then their pieces mostly stand in order. */
static void sort_pieces(uint64_t *order, uint64_t n, const uint32_t *piece_sender,
                        uint64_t *scratch)
{
    for (uint64_t width = 1; width < n; width *= 2) { /* merging keeps equal ones as they are */
        for (uint64_t low = 0; low < n; low += 2 * width) {
            const uint64_t middle = low + width < n ? low + width : n;
            const uint64_t high = low + 2 * width < n ? low + 2 * width : n;
            if (middle == high || piece_sender[order[middle - 1]] <= piece_sender[order[middle]]) {
                continue;
            }
            uint64_t a = low;
            uint64_t b = middle;
            for (uint64_t k = low; k < high; k++) {
                const bool is_first =
                    b == high || (a < middle && piece_sender[order[a]] <= piece_sender[order[b]]);
                scratch[k] = is_first ? order[a++] : order[b++];
            }
            memcpy(order + low, scratch + low, (high - low) * sizeof *order);
        }
    }
}

static heft_status_t add_route(maker_t *m, const heft__plan_rank_t *rank, heft__rank_routes_t *to,
                               heft__route_t *route)
{
    const uint32_t unit = heft_dtype_get_unit_bytes(rank->params[route->param].dtype);
    heft_status_t status = HEFT_OK;
    m->regions.n = 0;
    for (uint64_t i = 0; i < route->n_pieces && status == HEFT_OK; i++) {
        const heft_piece_t *piece = &rank->pieces[to->order[route->first + i]];
        status = heft__regions_add(&m->regions, piece, unit, m->err);
        route->n_bytes += heft__piece_count(piece) * unit; /* no more than the parameter's */
    }
    if (status == HEFT_OK) {
        status = HEFT__GROW(to->routes, to->cap_routes, to->n_routes + 1, m->err);
    }
    if (status == HEFT_OK) {
        status = HEFT__GROW(to->senders, to->cap_senders, to->n_routes + 1, m->err);
    }
    if (status == HEFT_OK) {
        heft__regions_join(&m->regions);
        route->n_regions = (uint32_t)m->regions.n;
        route->n_runs = heft__regions_count_runs(&m->regions);
        to->senders[to->n_routes] = to->piece_sender[to->order[route->first]];
        to->routes[to->n_routes++] = *route;
    }
    return status;
}

static heft_status_t add_param(maker_t *m, const heft__plan_rank_t *rank, uint32_t param,
                               heft__rank_routes_t *to, uint64_t *scratch)
{
    const uint64_t first = to->n_order;
    to->first_route[param] = to->n_routes;
    for (uint64_t i = rank->first_piece[param]; i < rank->first_piece[param + 1]; i++) {
        if (to->piece_sender[i] != HEFT_SENDER_NONE) {
            to->order[to->n_order++] = i;
        }
    }
    sort_pieces(to->order + first, to->n_order - first, to->piece_sender, scratch);
    heft_status_t status = HEFT_OK;
    for (uint64_t i = first; i < to->n_order && status == HEFT_OK;) {
        heft__route_t route = { .param = param, .first = i };
        const uint32_t sender = to->piece_sender[to->order[i]];
        for (; i < to->n_order && to->piece_sender[to->order[i]] == sender; i++) {
            route.n_pieces++;
        }
        status = add_route(m, rank, to, &route);
    }
    return status;
}

/* ---- sums by sender ---- */

static int by_number(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x;
    const uint32_t b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

/* Who sends the rank anything, once each, ascending. */
static heft_status_t list_senders(maker_t *m, uint32_t r, heft__rank_routes_t *to)
{
    size_t n = to->n_routes;
    uint64_t n_gathered = 0;
    const heft_route_load_t *gathered = heft__sender_finder_get_gathered(m->finder, &n_gathered);
    size_t most = n + n_gathered;
    for (uint64_t i = 0; i < m->opts.n_loads; i++) {
        most += m->opts.loads[i].rank_index == r;
    }
    uint32_t *list = heft__calloc(most + 1, sizeof *list);
    if (list == NULL) {
        return heft__error_nomem(m->err, most * sizeof *list);
    }
    for (size_t i = 0; i < n; i++) {
        list[i] = to->senders[i];
    }
    for (uint64_t i = 0; i < m->opts.n_loads; i++) {
        if (m->opts.loads[i].rank_index == r) {
            list[n++] = m->opts.loads[i].sender;
        }
    }
    for (uint64_t i = 0; i < n_gathered; i++) {
        list[n++] = gathered[i].sender;
    }
    qsort(list, n, sizeof *list, by_number);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || list[i] != list[to->n_totals - 1]) {
            list[to->n_totals++] = list[i];
        }
    }
    to->total_senders =
        heft__arena_calloc(&m->routes->arena, (size_t)to->n_totals + 1, sizeof *list);
    if (to->total_senders != NULL) {
        memcpy(to->total_senders, list, to->n_totals * sizeof *list);
    }
    heft__free(list);
    return to->total_senders != NULL ? HEFT_OK
                                     : heft__error_nomem(m->err, to->n_totals * sizeof *list);
}

static heft__route_total_t *total_of(heft__rank_routes_t *to, uint32_t sender)
{
    return &to->totals[heft__find_number(to->total_senders, to->n_totals, sender)];
}

static heft_status_t sum_senders(maker_t *m, uint32_t r, heft__rank_routes_t *to)
{
    uint64_t n_gathered = 0;
    const heft_route_load_t *gathered = heft__sender_finder_get_gathered(m->finder, &n_gathered);
    heft_status_t status = list_senders(m, r, to);
    heft__arena_t *arena = &m->routes->arena;
    to->totals = heft__arena_calloc(arena, (size_t)to->n_totals + 1, sizeof *to->totals);
    to->params = heft__arena_calloc(arena, to->n_routes + 1, sizeof *to->params);
    if (status != HEFT_OK || to->totals == NULL || to->params == NULL) {
        return status != HEFT_OK ? status
                                 : heft__error_nomem(m->err, to->n_routes * sizeof *to->params);
    }
    for (size_t i = 0; i < to->n_routes; i++) {
        heft_route_info_t *info = &total_of(to, to->senders[i])->info;
        info->n_params++;
        info->n_regions += to->routes[i].n_regions;
        info->n_runs += to->routes[i].n_runs;
        info->n_pieces += to->routes[i].n_pieces;
        heft__sum(&info->n_bytes, to->routes[i].n_bytes);
    }
    for (uint64_t i = 0; i < m->opts.n_loads; i++) {
        const heft_route_load_t *load = &m->opts.loads[i];
        if (load->rank_index == r) {
            heft__sum(&total_of(to, load->sender)->info.n_load_bytes, load->n_bytes);
        }
    }
    for (uint64_t i = 0; i < n_gathered; i++) {
        heft__sum(&total_of(to, gathered[i].sender)->info.n_load_bytes, gathered[i].n_bytes);
    }
    for (uint32_t t = 1; t < to->n_totals; t++) {
        to->totals[t].first_param = to->totals[t - 1].first_param + to->totals[t - 1].info.n_params;
    }
    for (size_t i = 0; i < to->n_routes; i++) { /* first_param moves on, and back again */
        to->params[total_of(to, to->senders[i])->first_param++] = to->routes[i].param;
    }
    for (uint32_t t = 0; t < to->n_totals; t++) {
        to->totals[t].first_param -= to->totals[t].info.n_params;
    }
    return HEFT_OK;
}

/* ---- one rank ---- */

static heft_status_t make_room(maker_t *m, const heft__plan_rank_t *rank, heft__rank_routes_t *to)
{
    heft__arena_t *arena = &m->routes->arena;
    to->piece_sender = heft__arena_calloc(arena, rank->n_pieces + 1, sizeof *to->piece_sender);
    to->check_sender = heft__arena_calloc(arena, rank->n_checks + 1, sizeof *to->check_sender);
    to->order = heft__arena_calloc(arena, rank->n_pieces + 1, sizeof *to->order);
    to->first_route =
        heft__arena_calloc(arena, (size_t)rank->n_params + 1, sizeof *to->first_route);
    return to->piece_sender != NULL && to->check_sender != NULL && to->order != NULL &&
                   to->first_route != NULL
               ? HEFT_OK
               : heft__error_nomem(m->err, rank->n_pieces * sizeof *to->order);
}

static heft_status_t add_params(maker_t *m, const heft__plan_rank_t *rank, heft__rank_routes_t *to)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < rank->n_params; p++) {
        const uint64_t n = rank->first_piece[p + 1] - rank->first_piece[p];
        most = n > most ? n : most;
    }
    uint64_t *scratch = heft__calloc(most + 1, sizeof *scratch);
    heft_status_t status =
        scratch != NULL ? HEFT_OK : heft__error_nomem(m->err, most * sizeof *scratch);
    for (uint32_t p = 0; p < rank->n_params && status == HEFT_OK; p++) {
        status = add_param(m, rank, p, to, scratch);
    }
    to->first_route[rank->n_params] = to->n_routes;
    heft__free(scratch);
    return status;
}

static heft_status_t add_rank(maker_t *m, uint32_t r)
{
    const heft__plan_rank_t *rank = &m->routes->plan->ranks[r];
    heft__rank_routes_t *to = &m->routes->ranks[r];
    heft_status_t status = make_room(m, rank, to);
    if (status == HEFT_OK) {
        status = heft__sender_finder_run(m->finder, r, to, m->err);
    }
    if (status == HEFT_OK) {
        status = add_params(m, rank, to);
    }
    return status == HEFT_OK ? sum_senders(m, r, to) : status;
}

/* ---- all ---- */

static heft_status_t make(maker_t *m, const uint32_t *senders)
{
    heft_routes_t *routes = m->routes;
    const uint32_t n_ranks = routes->plan->n_ranks;
    routes->ranks = heft__arena_calloc(&routes->arena, n_ranks, sizeof *routes->ranks);
    heft_status_t status = routes->ranks != NULL
                               ? take_senders(m, senders)
                               : heft__error_nomem(m->err, n_ranks * sizeof *routes->ranks);
    if (status == HEFT_OK) {
        status = heft__sender_finder_create(routes->plan, m->senders, &m->opts, &m->finder, m->err);
    }
    for (uint32_t r = 0; r < n_ranks && status == HEFT_OK; r++) {
        status = add_rank(m, r);
    }
    if (status == HEFT_OK) {
        status = heft__sender_finder_check(m->finder, m->err);
    }
    return status == HEFT_OK ? heft__routes_make_digests(routes, m->err) : status;
}

heft_status_t heft_routes_create(const heft_plan_t *plan, const uint32_t *senders,
                                 uint32_t n_senders, const heft_routes_opts_t *opts,
                                 heft_routes_t **routes_out, heft_error_t *err)
{
    if (plan == NULL || routes_out == NULL || n_senders == 0 || n_senders > MAX_SENDERS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "routes: a plan, an output and 1 to %u senders are needed, not %u",
                               MAX_SENDERS, (unsigned)n_senders);
    }
    maker_t m = { .err = err };
    heft_status_t status = load_opts(opts, &m.opts, n_senders, plan->n_ranks, err);
    if (status != HEFT_OK) {
        return status;
    }
    m.routes = heft__calloc(1, sizeof *m.routes);
    if (m.routes == NULL) {
        return heft__error_nomem(err, sizeof *m.routes);
    }
    heft__arena_init(&m.routes->arena, 4096);
    m.routes->plan = plan;
    m.routes->n_senders = n_senders;
    status = make(&m, senders);
    heft__sender_finder_destroy(m.finder);
    heft__regions_fini(&m.regions);
    heft__free(m.senders);
    if (status != HEFT_OK) {
        heft_routes_destroy(m.routes);
        return status;
    }
    *routes_out = m.routes;
    return HEFT_OK;
}

void heft_routes_destroy(heft_routes_t *routes)
{
    if (routes != NULL) {
        for (uint32_t r = 0; routes->ranks != NULL && r < routes->plan->n_ranks; r++) {
            heft__free(routes->ranks[r].routes);
            heft__free(routes->ranks[r].senders);
        }
        heft__arena_fini(&routes->arena);
        heft__free(routes);
    }
}
