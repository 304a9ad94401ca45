/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: connected components of parameters over shared source elements, and over what is declared
 * together.
 *
 * One scan of each source cuts it into cells with equal readers: those that meet in a cell are
 * joined, and the cells add up to what is used. Operations are nodes of their own, tied to the
 * parameters that read them, to the operations they read, and to all readers of their sources.
 */
#include "plan/plan.h"

#include <string.h>

typedef struct grouper {
    heft_plan_t *plan;
    const heft__readers_t *readers;
    heft__cover_t *cover;
    uint32_t *parent; /* slots, then operations */
    int64_t *bytes;   /* by node: distinct source bytes, of cells whose first reader it is */
    uint32_t *group;  /* by node, of roots; then scratch */
    heft__claim_t *claims;
    size_t cap_claims;
    int64_t unit_bytes; /* of the source at hand */
    heft__excuse_t *excuses;
    uint32_t n_excuses;
    heft_error_t *err;
} grouper_t;

static uint32_t find(uint32_t *parent, uint32_t node)
{
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

/* The smaller root stays, so a root is the first node of its component. */
static void join(uint32_t *parent, uint32_t a, uint32_t b)
{
    uint32_t x = find(parent, a);
    uint32_t y = find(parent, b);
    if (x != y) {
        parent[x > y ? x : y] = x > y ? y : x;
    }
}

static heft_status_t visit_cell(void *arg, const heft__cell_t *cell)
{
    grouper_t *g = arg;
    for (uint32_t i = 1; i < cell->n_owners; i++) {
        join(g->parent, cell->owners[0], cell->owners[i]);
    }
    heft__sum(&g->bytes[cell->owners[0]], cell->n_elems * g->unit_bytes);
    return HEFT_OK;
}

static bool has_operation(const heft__readers_t *readers, uint32_t source)
{
    for (uint64_t i = readers->first[source]; i < readers->first[source + 1]; i++) {
        if (readers->kinds[i] != HEFT__READER_PIECE) {
            return true;
        }
    }
    return false;
}

static heft_status_t scan_source(grouper_t *g, uint32_t source, int64_t *unused_out)
{
    const heft_tensor_info_t *info = &g->plan->sources[source];
    const heft__claim_t *claims = g->readers->claims + g->readers->first[source];
    size_t n = (size_t)(g->readers->first[source + 1] - g->readers->first[source]);
    heft__cover_count_t count = { 0 };
    g->unit_bytes = heft_dtype_get_unit_bytes(info->dtype);
    heft_status_t status = HEFT_OK;
    if (has_operation(g->readers, source)) {
        status =
            heft__readers_gather(g->readers, source, true, &g->claims, &g->cap_claims, &n, g->err);
        if (status == HEFT_OK) {
            status =
                heft__cover_scan(g->cover, info->n_elems, g->claims, n, NULL, NULL, &count, g->err);
        }
        *unused_out = info->n_elems - count.n_covered;
        if (status == HEFT_OK) {
            status = heft__readers_gather(g->readers, source, false, &g->claims, &g->cap_claims, &n,
                                          g->err);
        }
        claims = g->claims;
    }
    if (status == HEFT_OK) {
        status =
            heft__cover_scan(g->cover, info->n_elems, claims, n, visit_cell, g, &count, g->err);
    }
    if (status == HEFT_OK && claims != g->claims) {
        *unused_out = info->n_elems - count.n_covered;
    }
    return status;
}

static void join_piece(grouper_t *g, const heft__plan_rank_t *rank, const heft_piece_t *piece,
                       uint32_t node)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        if (piece->srcs[s].opaque > 0) {
            join(g->parent, node,
                 g->plan->n_slots + rank->first_opaque + piece->srcs[s].opaque - 1);
        }
    }
}

static void join_operations(grouper_t *g)
{
    for (uint32_t r = 0; r < g->plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &g->plan->ranks[r];
        for (uint64_t i = 0; i < rank->n_pieces && rank->n_opaques > 0; i++) {
            join_piece(g, rank, &rank->pieces[i], rank->first_slot + rank->pieces[i].param);
        }
        for (uint32_t k = 0; k < rank->n_opaques; k++) {
            const heft_opaque_t *op = &rank->opaques[k];
            uint32_t node = g->plan->n_slots + rank->first_opaque + k;
            for (uint32_t i = 0; i < op->n_inputs && g->readers->used_ops[rank->first_opaque + k];
                 i++) {
                for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
                    join_piece(g, rank, &op->inputs[i].pieces[p], node);
                }
            }
        }
    }
}

/* Kept by themselves, too: who needs groups of one rank alone cannot have them from the plan's. */
static heft_status_t join_declared(grouper_t *g)
{
    heft_plan_t *plan = g->plan;
    heft_status_t status = HEFT_OK;
    plan->together = heft__arena_calloc(&plan->arena, plan->n_slots, sizeof *plan->together);
    if (plan->together == NULL) {
        return heft__error_nomem(g->err, plan->n_slots * sizeof *plan->together);
    }
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        plan->together[slot] = slot;
    }
    for (uint32_t i = 0; i < g->n_excuses && status == HEFT_OK; i++) {
        if (g->excuses[i].exception->kind == HEFT_EXCEPTION_TOGETHER) {
            status = heft__plan_join_together(plan, &g->excuses[i], join, plan->together, g->err);
        }
    }
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        plan->together[slot] = find(plan->together, slot);
        join(g->parent, slot, plan->together[slot]);
    }
    return status;
}

/* ---- from components to groups ---- */

/* Number the components of parameters that have pieces, by their first parameter. */
static heft_status_t number_groups(grouper_t *g)
{
    heft_plan_t *plan = g->plan;
    memset(g->group, 0xff, ((size_t)plan->n_slots + plan->n_opaques) * sizeof *g->group);
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint32_t p = 0; p < rank->n_params; p++) {
            uint32_t slot = rank->first_slot + p;
            uint32_t root = find(g->parent, slot);
            plan->group_of[slot] = HEFT_GROUP_NONE;
            if (rank->first_piece[p] == rank->first_piece[p + 1]) {
                continue;
            }
            if (g->group[root] == HEFT_GROUP_NONE) {
                g->group[root] = plan->n_groups++;
            }
            plan->group_of[slot] = g->group[root];
        }
    }
    plan->groups = heft__arena_calloc(&plan->arena, plan->n_groups, sizeof *plan->groups);
    return plan->groups != NULL ? HEFT_OK
                                : heft__error_nomem(g->err, plan->n_groups * sizeof *plan->groups);
}

static void add_piece_to_group(heft_plan_t *plan, const heft__plan_rank_t *rank,
                               heft_piece_t *piece)
{
    const heft_tensor_info_t *param = &rank->params[piece->param];
    heft_group_info_t *info = &plan->groups[plan->group_of[rank->first_slot + piece->param]].info;
    piece->group = plan->group_of[rank->first_slot + piece->param];
    info->n_pieces++;
    heft__sum(&info->n_bytes, heft__piece_count(piece) * heft_dtype_get_unit_bytes(param->dtype));
}

static void add_operations_to_groups(grouper_t *g, heft__plan_rank_t *rank)
{
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        heft_opaque_t *op = &rank->opaques[k];
        if (!g->readers->used_ops[rank->first_opaque + k]) {
            continue;
        }
        op->group = g->group[find(g->parent, g->plan->n_slots + rank->first_opaque + k)];
        g->plan->groups[op->group].info.is_opaque |= !heft__known_claims(op->op);
        for (uint32_t i = 0; i < op->n_inputs; i++) {
            heft_piece_t *pieces = rank->input_pieces + (op->inputs[i].pieces - rank->input_pieces);
            for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
                pieces[p].group = op->group;
            }
        }
    }
}

static void count_groups(grouper_t *g)
{
    heft_plan_t *plan = g->plan;
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        if (plan->group_of[slot] != HEFT_GROUP_NONE) {
            plan->groups[plan->group_of[slot]].info.n_params++;
        }
    }
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint64_t i = 0; i < rank->n_pieces; i++) {
            add_piece_to_group(plan, rank, &rank->pieces[i]);
        }
        for (uint64_t i = 0; i < rank->n_checks; i++) {
            rank->checks[i].group = plan->group_of[rank->first_slot + rank->checks[i].param];
        }
        add_operations_to_groups(g, rank);
    }
    for (uint32_t node = 0; node < plan->n_slots + plan->n_opaques; node++) {
        uint32_t group = g->group[find(g->parent, node)];
        if (group != HEFT_GROUP_NONE) {
            heft__sum(&plan->groups[group].info.source_bytes, g->bytes[node]);
        }
    }
}

static heft_status_t list_members(grouper_t *g)
{
    heft_plan_t *plan = g->plan;
    heft_plan_member_t *room = heft__arena_calloc(&plan->arena, plan->n_slots, sizeof *room);
    if (room == NULL) {
        return heft__error_nomem(g->err, plan->n_slots * sizeof *room);
    }
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        plan->groups[i].members = room;
        room += plan->groups[i].info.n_params;
        plan->groups[i].info.n_params = 0;
    }
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        for (uint32_t p = 0; p < plan->ranks[r].n_params; p++) {
            uint32_t group = plan->group_of[plan->ranks[r].first_slot + p];
            if (group != HEFT_GROUP_NONE) {
                heft__plan_group_t *to = &plan->groups[group];
                to->members[to->info.n_params++] =
                    (heft_plan_member_t){ .rank_index = r, .param = p };
            }
        }
    }
    return HEFT_OK;
}

/* Call for every pair of a source and a group that reads it, sources ascending. */
static void walk_group_sources(grouper_t *g, uint32_t *seen, bool fill)
{
    heft_plan_t *plan = g->plan;
    memset(seen, 0, plan->n_groups * sizeof *seen);
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        for (uint64_t i = g->readers->first[s]; i < g->readers->first[s + 1]; i++) {
            uint32_t group = g->group[find(g->parent, g->readers->claims[i].owner)];
            if (seen[group] == s + 1) {
                continue;
            }
            seen[group] = s + 1;
            heft__plan_group_t *to = &plan->groups[group];
            if (fill) {
                to->sources[to->info.n_sources] = s;
            }
            to->info.n_sources++;
        }
    }
}

static heft_status_t list_sources(grouper_t *g)
{
    heft_plan_t *plan = g->plan;
    uint32_t *seen = heft__calloc((size_t)plan->n_groups + 1, sizeof *seen);
    if (seen == NULL) {
        return heft__error_nomem(g->err, plan->n_groups * sizeof *seen);
    }
    walk_group_sources(g, seen, false);
    size_t total = 0;
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        total += plan->groups[i].info.n_sources;
    }
    uint32_t *room = heft__arena_calloc(&plan->arena, total, sizeof *room);
    for (uint32_t i = 0; i < plan->n_groups && room != NULL; i++) {
        plan->groups[i].sources = room;
        room += plan->groups[i].info.n_sources;
        plan->groups[i].info.n_sources = 0;
    }
    if (room != NULL) {
        walk_group_sources(g, seen, true);
    }
    heft__free(seen);
    return room != NULL ? HEFT_OK : heft__error_nomem(g->err, total * sizeof *room);
}

static heft_status_t make_groups(grouper_t *g, int64_t *unused_out)
{
    heft_plan_t *plan = g->plan;
    uint32_t n_nodes = plan->n_slots + plan->n_opaques;
    for (uint32_t i = 0; i < n_nodes; i++) {
        g->parent[i] = i;
    }
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        heft_status_t status = scan_source(g, s, &unused_out[s]);
        if (status != HEFT_OK) {
            return heft__plan_name_error(g->err, status, "source", plan->sources[s].name);
        }
    }
    join_operations(g);
    heft_status_t status = join_declared(g);
    status = status == HEFT_OK ? number_groups(g) : status;
    if (status == HEFT_OK) {
        count_groups(g);
        status = list_members(g);
    }
    return status == HEFT_OK ? list_sources(g) : status;
}

heft_status_t heft__plan_make_groups(heft_plan_t *plan, const heft__readers_t *readers,
                                     heft__cover_t *cover, heft__excuse_t *excuses,
                                     uint32_t n_excuses, int64_t *unused_out, heft_error_t *err)
{
    size_t n_nodes = (size_t)plan->n_slots + plan->n_opaques;
    grouper_t g = { .plan = plan, .readers = readers, .cover = cover, .err = err };
    g.excuses = excuses;
    g.n_excuses = n_excuses;
    g.parent = heft__calloc(n_nodes + 1, sizeof *g.parent);
    g.bytes = heft__calloc(n_nodes + 1, sizeof *g.bytes);
    g.group = heft__calloc(n_nodes + 1, sizeof *g.group);
    plan->group_of = heft__arena_calloc(&plan->arena, plan->n_slots, sizeof *plan->group_of);
    heft_status_t status;
    if (g.parent == NULL || g.bytes == NULL || g.group == NULL || plan->group_of == NULL) {
        status = heft__error_nomem(err, n_nodes * sizeof *g.bytes);
    } else {
        status = make_groups(&g, unused_out);
    }
    heft__free(g.parent);
    heft__free(g.bytes);
    heft__free(g.group);
    heft__free(g.claims);
    return status;
}
