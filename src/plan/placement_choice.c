/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends what. The borders of a tensor's boxes cut it into cells, each of which is held whole by
 * some ranks. A cell that nobody holds refuses the placement. What one rank alone holds is its to
 * send; the rest follows in the order of the number of its holders, and goes to those that have the
 * least to send so far: a large cell is cut along its outermost dimension so that its holders come
 * to one level, as water would. Where hosts are known, cells with the same holders are one lot; how
 * much of it each of them sends is worked out first (placement_hosts.c), and a lot's cells are then
 * given out in their order, each to the one whose turn it is. Nothing depends on the order in which
 * shards were given.
 */
#include "plan/placement.h"
#include "plan/placement_hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CELLS (1 << 20) /* of one tensor */

/* A cell with its holders. */
typedef struct cell {
    uint32_t tensor;
    uint32_t n_holders;
    size_t first_holder; /* shards, by rank */
    size_t number;
    heft__bounds_t box;
} cell_t;

/* The borders of one tensor's boxes. */
typedef struct grid {
    int rank;
    int64_t *border[HEFT_MAX_DIMS]; /* n[d] + 1 of them, ascending */
    int64_t n[HEFT_MAX_DIMS];
    int64_t n_cells;
} grid_t;

typedef struct chooser {
    heft_placement_t *p;
    cell_t *cells;
    size_t n_cells, cap_cells;
    uint32_t *holders;
    size_t n_holders, cap_holders;
    uint32_t *order; /* holders of one cell */
    int64_t *rows;
    heft__disputes_t *disputes; /* NULL: the first is a failure */
    heft_error_t *err;
} chooser_t;

/* ---- cells ---- */

static int by_shard(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x;
    const uint32_t b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

static int by_number(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x;
    const int64_t b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

static bool is_empty(const heft__bounds_t *box, int rank)
{
    for (int d = 0; d < rank; d++) {
        if (box->begin[d] == box->end[d]) {
            return true;
        }
    }
    return false;
}

static void grid_fini(grid_t *grid)
{
    for (int d = 0; d < grid->rank; d++) {
        heft__free(grid->border[d]);
    }
}

static heft_status_t too_many(const heft_placement_t *p, uint32_t t, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_LIMIT,
                           "placement: the boxes of \"%.100s\" cut it into more than %d cells",
                           p->tensors[t].name, MAX_CELLS);
}

static heft_status_t grid_init(grid_t *grid, const heft_placement_t *p, uint32_t t,
                               heft_error_t *err)
{
    const heft_shape_t *shape = &p->shapes[t];
    const uint32_t first = p->first_shard[t];
    const uint32_t end = p->first_shard[t + 1];
    *grid = (grid_t){ .rank = shape->rank, .n_cells = 1 };
    for (int d = 0; d < grid->rank; d++) {
        size_t n = 0;
        int64_t *border = heft__calloc(2 * (size_t)(end - first) + 2, sizeof *border);
        grid->border[d] = border;
        if (border == NULL) {
            return heft__error_nomem(err, 2 * (size_t)(end - first) * sizeof *border);
        }
        border[n++] = 0;
        border[n++] = shape->extent[d];
        for (uint32_t s = first; s < end; s++) {
            if (!is_empty(&p->shards[s].box, grid->rank)) {
                border[n++] = p->shards[s].box.begin[d];
                border[n++] = p->shards[s].box.end[d];
            }
        }
        qsort(border, n, sizeof *border, by_number);
        for (size_t i = 1; i < n; i++) {
            if (border[i] != border[grid->n[d]]) {
                border[++grid->n[d]] = border[i];
            }
        }
        if (!heft__mul(grid->n_cells, grid->n[d], &grid->n_cells) || grid->n_cells > MAX_CELLS) {
            return too_many(p, t, err);
        }
    }
    return HEFT_OK;
}

/* Which of n intervals begins at a border. */
static int64_t find_border(const int64_t *border, int64_t n, int64_t value)
{
    int64_t low = 0;
    int64_t high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (border[middle] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Call once for each cell of a box: what is done there depends on `into`. */
static void mark_cells(const grid_t *grid, const heft__bounds_t *box, uint32_t shard,
                       uint32_t *count, uint32_t *into, const size_t *first)
{
    int64_t low[HEFT_MAX_DIMS] = { 0 };
    int64_t high[HEFT_MAX_DIMS] = { 0 };
    int64_t at[HEFT_MAX_DIMS] = { 0 };
    for (int d = 0; d < grid->rank; d++) {
        low[d] = find_border(grid->border[d], grid->n[d], box->begin[d]);
        high[d] = find_border(grid->border[d], grid->n[d], box->end[d]);
        at[d] = low[d];
    }
    for (bool goes_on = true; goes_on;) {
        int64_t cell = 0;
        for (int d = 0; d < grid->rank; d++) {
            cell = cell * grid->n[d] + at[d];
        }
        if (into != NULL) {
            into[first[cell] + count[cell]] = shard;
        }
        count[cell]++;
        goes_on = false;
        for (int d = grid->rank - 1; d >= 0 && !goes_on; d--) {
            goes_on = ++at[d] < high[d];
            at[d] = goes_on ? at[d] : low[d];
        }
    }
}

static void mark_all(const grid_t *grid, const heft_placement_t *p, uint32_t t, uint32_t *count,
                     uint32_t *into, const size_t *first)
{
    for (uint32_t s = p->first_shard[t]; s < p->first_shard[t + 1]; s++) {
        if (!is_empty(&p->shards[s].box, grid->rank)) {
            mark_cells(grid, &p->shards[s].box, s, count, into, first);
        }
    }
}

static heft__bounds_t cell_box(const grid_t *grid, int64_t cell)
{
    heft__bounds_t box = { .begin = { 0 } };
    for (int d = grid->rank - 1; d >= 0; d--) {
        box.begin[d] = grid->border[d][cell % grid->n[d]];
        box.end[d] = grid->border[d][cell % grid->n[d] + 1];
        cell /= grid->n[d];
    }
    return box;
}

/* "[0..4, 8..16)", in elements. */
static void box_text(const heft_placement_t *p, uint32_t t, const heft__bounds_t *box,
                     char text[160])
{
    const int rank = p->shapes[t].rank;
    const int64_t bits = heft_dtype_get_bits(p->tensors[t].dtype);
    size_t at = (size_t)snprintf(text, 160, "[");
    for (int d = 0; d < rank && at < 160 - 48; d++) {
        const int64_t unit = d == rank - 1 && bits < 8 ? 8 / bits : 1;
        const int64_t begin = box->begin[d] * unit;
        const int64_t end = box->end[d] * unit;
        at += (size_t)snprintf(text + at, 160 - at, "%s%lld..%lld", d > 0 ? ", " : "",
                               (long long)begin, (long long)end);
    }
    (void)snprintf(text + at, 160 - at, ")");
}

static int64_t count_elems(const heft_placement_t *p, uint32_t t, const heft__bounds_t *box)
{
    const int64_t bits = heft_dtype_get_bits(p->tensors[t].dtype);
    int64_t n = bits < 8 && p->shapes[t].rank > 0 ? 8 / bits : 1;
    for (int d = 0; d < p->shapes[t].rank; d++) {
        n *= box->end[d] - box->begin[d];
    }
    return n;
}

/* Of these elements, the first of which are given. */
static heft_status_t nobody_holds(const chooser_t *c, uint32_t t, const heft__bounds_t *box,
                                  int64_t n_elems)
{
    char text[160];
    const heft_tensor_info_t *info = &c->p->tensors[t];
    box_text(c->p, t, box, text);
    if (c->disputes == NULL) {
        return heft__error_set(c->err, HEFT_ERR_PROOF,
                               "placement: no rank holds %s of tensor \"%.80s\"", text, info->name);
    }
    heft__disputes_add(c->disputes, HEFT_ERR_PROOF,
                       "tensor \"%.80s\": no source holds %s: %lld of %lld elements are missing",
                       info->name, text, (long long)n_elems, (long long)info->n_elems);
    return HEFT_OK;
}

/* Two shards with elements in common, which both would send. */
static heft_status_t held_twice(const chooser_t *c, uint32_t t, uint32_t s1, uint32_t s2)
{
    char text[160];
    char who[2][80];
    const char *name = c->p->tensors[t].name;
    const heft__held_t *a = &c->p->shards[s1];
    const heft__held_t *b = &c->p->shards[s2];
    heft__bounds_t both = a->box;
    for (int d = 0; d < c->p->shapes[t].rank; d++) {
        both.begin[d] = heft__max_i64(a->box.begin[d], b->box.begin[d]);
        both.end[d] = heft__min_i64(a->box.end[d], b->box.end[d]);
    }
    box_text(c->p, t, &both, text);
    if (c->disputes == NULL) {
        return heft__error_set(c->err, HEFT_ERR_EXISTS,
                               "placement: rank %u holds %s of tensor \"%.80s\" twice",
                               (unsigned)a->rank, text, name);
    }
    heft__disputes_label(c->disputes, a->rank, who[0]);
    heft__disputes_label(c->disputes, b->rank, who[1]);
    if (a->rank == b->rank) {
        heft__disputes_add(c->disputes, HEFT_ERR_EXISTS,
                           "tensor \"%.80s\": %s holds %s twice, in \"%.60s\" and \"%.60s\"", name,
                           who[0], text, a->name, b->name);
    } else {
        heft__disputes_add(c->disputes, HEFT_ERR_EXISTS,
                           "tensor \"%.80s\": overlap without a replica index: %s and %s both hold "
                           "%s as replica %u",
                           name, who[0], who[1], text, (unsigned)a->replica);
    }
    return HEFT_OK;
}

static int by_replica(const void *x, const void *y, void *arg)
{
    const heft__held_t *shards = arg;
    const uint32_t a = *(const uint32_t *)x;
    const uint32_t b = *(const uint32_t *)y;
    if (shards[a].replica != shards[b].replica) {
        return shards[a].replica < shards[b].replica ? -1 : 1;
    }
    return a < b ? -1 : a > b;
}

/* Two holders of a cell that may not be two: of one rank, or, where replicas are said, of one
 * replica. false: there are none. Holders stand by rank, and do so afterwards. */
static bool find_twice(chooser_t *c, uint32_t *holders, uint32_t n, uint32_t *a_out,
                       uint32_t *b_out)
{
    const heft__held_t *shards = c->p->shards;
    bool is_twice = false;
    for (uint32_t i = 1; i < n && !is_twice; i++) {
        is_twice = shards[holders[i - 1]].rank == shards[holders[i]].rank;
        *a_out = holders[i - 1];
        *b_out = holders[i];
    }
    if (is_twice || c->disputes == NULL || n < 2) {
        return is_twice;
    }
    qsort_r(holders, n, sizeof *holders, by_replica, c->p->shards);
    for (uint32_t i = 1; i < n && !is_twice; i++) {
        is_twice = shards[holders[i - 1]].replica == shards[holders[i]].replica;
        *a_out = holders[i - 1];
        *b_out = holders[i];
    }
    qsort(holders, n, sizeof *holders, by_shard);
    return is_twice;
}

/* Is every element held, and by no two that are one? Of each tensor the first of either is told. */
static heft_status_t judge_cells(chooser_t *c, const grid_t *grid, uint32_t t,
                                 const uint32_t *count, const size_t *first)
{
    int64_t n_missing = 0;
    bool was_twice = false;
    heft__bounds_t gap = { .begin = { 0 } };
    for (int64_t i = 0; i < grid->n_cells; i++) {
        uint32_t a = 0;
        uint32_t b = 0;
        if (count[i] == 0) {
            const heft__bounds_t box = cell_box(grid, i);
            gap = n_missing == 0 ? box : gap;
            n_missing += count_elems(c->p, t, &box);
        } else if (!was_twice && find_twice(c, c->holders + first[i], count[i], &a, &b)) {
            was_twice = true;
            heft_status_t status = held_twice(c, t, a, b);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return n_missing > 0 ? nobody_holds(c, t, &gap, n_missing) : HEFT_OK;
}

/* The cells of one tensor, whose holders stand in c->holders. */
static heft_status_t add_cells(chooser_t *c, const grid_t *grid, uint32_t t, const uint32_t *count,
                               const size_t *first)
{
    const size_t n = (size_t)grid->n_cells;
    if (!HEFT__RESERVE(c->cells, c->cap_cells, c->n_cells + n)) {
        return heft__error_nomem(c->err, n * sizeof *c->cells);
    }
    for (int64_t i = 0; i < grid->n_cells; i++) {
        c->cells[c->n_cells] = (cell_t){ .tensor = t,
                                         .n_holders = count[i],
                                         .first_holder = first[i],
                                         .number = c->n_cells,
                                         .box = cell_box(grid, i) };
        c->n_cells++;
    }
    return judge_cells(c, grid, t, count, first);
}

static heft_status_t cut_into_cells(chooser_t *c, const grid_t *grid, uint32_t t)
{
    const size_t n = (size_t)grid->n_cells;
    uint32_t *count = heft__calloc(n + 1, sizeof *count);
    size_t *first = heft__calloc(n + 1, sizeof *first);
    heft_status_t status =
        count != NULL && first != NULL ? HEFT_OK : heft__error_nomem(c->err, n * sizeof *first);
    if (status == HEFT_OK) {
        mark_all(grid, c->p, t, count, NULL, NULL);
        size_t at = c->n_holders;
        for (size_t i = 0; i < n; i++) {
            first[i] = at;
            at += count[i];
        }
        if (!HEFT__RESERVE(c->holders, c->cap_holders, at + 1)) {
            status = heft__error_nomem(c->err, at * sizeof *c->holders);
        } else {
            c->n_holders = at;
            memset(count, 0, n * sizeof *count);
            mark_all(grid, c->p, t, count, c->holders, first);
            status = add_cells(c, grid, t, count, first);
        }
    }
    heft__free(count);
    heft__free(first);
    return status;
}

static heft_status_t add_tensor(chooser_t *c, uint32_t t)
{
    const heft_shape_t *shape = &c->p->shapes[t];
    const heft__bounds_t whole = { .begin = { 0 } };
    heft__bounds_t box = whole;
    memcpy(box.end, shape->extent, sizeof box.end);
    if (is_empty(&box, shape->rank)) {
        return HEFT_OK;
    }
    grid_t grid;
    heft_status_t status = grid_init(&grid, c->p, t, c->err);
    if (status == HEFT_OK) {
        status = cut_into_cells(c, &grid, t);
    }
    grid_fini(&grid);
    return status;
}

/* ---- choosing ---- */

static int by_choice(const void *x, const void *y)
{
    const cell_t *a = x;
    const cell_t *b = y;
    if (a->n_holders != b->n_holders) {
        return a->n_holders < b->n_holders ? -1 : 1;
    }
    return a->number < b->number ? -1 : 1;
}

static heft_status_t add_cut(chooser_t *c, uint32_t shard, const heft__bounds_t *box,
                             int64_t n_bytes)
{
    heft_placement_t *p = c->p;
    if (!HEFT__RESERVE(p->cuts, p->cap_cuts, p->n_cuts + 1)) {
        return heft__error_nomem(c->err, sizeof *p->cuts);
    }
    p->cuts[p->n_cuts++] = (heft__cut_t){ .shard = shard, .box = *box };
    p->load[p->shards[shard].rank] += n_bytes;
    return HEFT_OK;
}

static int64_t load_of(const chooser_t *c, uint32_t shard)
{
    return c->p->load[c->p->shards[shard].rank];
}

/* Holders of a cell, those with the least to send first; of equal ones the lower rank. */
static void sort_holders(chooser_t *c, const cell_t *cell)
{
    for (uint32_t i = 0; i < cell->n_holders; i++) {
        const uint32_t shard = c->holders[cell->first_holder + i];
        uint32_t at = i;
        for (; at > 0 && load_of(c, c->order[at - 1]) > load_of(c, shard); at--) {
            c->order[at] = c->order[at - 1];
        }
        c->order[at] = shard;
    }
}

/* How many of the holders come to one level with n_bytes more, and that level. */
static uint32_t find_level(const chooser_t *c, uint32_t most, int64_t n_bytes, int64_t *level_out)
{
    int64_t sum = n_bytes;
    uint32_t n = 0;
    do {
        sum += load_of(c, c->order[n++]);
        *level_out = sum / n;
    } while (n < most && load_of(c, c->order[n]) < *level_out);
    return n;
}

static heft_status_t deal_rows(chooser_t *c, const cell_t *cell, int dim, int64_t n_bytes)
{
    const int64_t n_rows = cell->box.end[dim] - cell->box.begin[dim];
    const int64_t row_bytes = n_bytes / n_rows;
    const int64_t n_cuts = heft__min_i64(n_bytes / c->p->min_cut_bytes, n_rows);
    const uint32_t most = (uint32_t)heft__min_i64(n_cuts > 1 ? n_cuts : 1, cell->n_holders);
    int64_t level = 0;
    const uint32_t n = find_level(c, most, n_bytes, &level);
    int64_t left = n_rows;
    for (uint32_t i = 0; i < n; i++) {
        c->rows[i] = (level - load_of(c, c->order[i])) / row_bytes;
        left -= c->rows[i];
    }
    for (uint32_t i = 0; left > 0; i = i + 1 < n ? i + 1 : 0, left--) {
        c->rows[i]++;
    }
    heft__bounds_t box = cell->box;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        box.end[dim] = box.begin[dim] + c->rows[i];
        if (c->rows[i] > 0) {
            status = add_cut(c, c->order[i], &box, c->rows[i] * row_bytes);
        }
        box.begin[dim] = box.end[dim];
    }
    return status;
}

static heft_status_t deal_cell(chooser_t *c, const cell_t *cell)
{
    const heft_placement_t *p = c->p;
    const int rank = p->shapes[cell->tensor].rank;
    int64_t n_bytes = heft_dtype_get_unit_bytes(p->tensors[cell->tensor].dtype);
    int dim = -1; /* the outermost that can be cut */
    for (int d = 0; d < rank; d++) {
        const int64_t extent = cell->box.end[d] - cell->box.begin[d];
        dim = dim < 0 && extent > 1 ? d : dim;
        n_bytes *= extent;
    }
    sort_holders(c, cell);
    return dim < 0 || cell->n_holders == 1 ? add_cut(c, c->order[0], &cell->box, n_bytes)
                                           : deal_rows(c, cell, dim, n_bytes);
}

/* ---- by hosts ---- */

/* Where a rank on the receiving host holds a cell, the others do not count. */
static void keep_near(chooser_t *c, cell_t *cell)
{
    const heft_placement_t *p = c->p;
    uint32_t *holders = c->holders + cell->first_holder;
    uint32_t n = 0;
    for (uint32_t i = 0; i < cell->n_holders; i++) {
        if (p->host_of[p->shards[holders[i]].rank] + 1 == p->to_host) {
            holders[n++] = holders[i];
        }
    }
    cell->n_holders = n > 0 ? n : cell->n_holders;
}

static int64_t bytes_of(const chooser_t *c, const cell_t *cell)
{
    int64_t n_bytes = heft_dtype_get_unit_bytes(c->p->tensors[cell->tensor].dtype);
    for (int d = 0; d < c->p->shapes[cell->tensor].rank; d++) {
        n_bytes *= cell->box.end[d] - cell->box.begin[d];
    }
    return n_bytes;
}

/* By the ranks that hold them. */
static int compare_holders(const chooser_t *c, const cell_t *a, const cell_t *b)
{
    if (a->n_holders != b->n_holders) {
        return a->n_holders < b->n_holders ? -1 : 1;
    }
    for (uint32_t i = 0; i < a->n_holders; i++) {
        const uint32_t x = c->p->shards[c->holders[a->first_holder + i]].rank;
        const uint32_t y = c->p->shards[c->holders[b->first_holder + i]].rank;
        if (x != y) {
            return x < y ? -1 : 1;
        }
    }
    return 0;
}

static int by_holders(const void *x, const void *y, void *arg)
{
    const cell_t *a = x;
    const cell_t *b = y;
    const int order = compare_holders(arg, a, b);
    return order != 0 ? order : a->number < b->number ? -1 : a->number > b->number;
}

/* Lots of cells that stand one after the other: *n_out of them, of which ends[k] is the end. */
typedef struct lots {
    heft__lot_t *lots;
    size_t *ends;
    uint32_t *ranks; /* of all lots */
    int64_t *shares; /* likewise */
    size_t n;
} lots_t;

static void lots_fini(lots_t *l)
{
    heft__free(l->lots);
    heft__free(l->ends);
    heft__free(l->ranks);
    heft__free(l->shares);
}

static heft_status_t lots_init(chooser_t *c, lots_t *l)
{
    l->lots = heft__calloc(c->n_cells, sizeof *l->lots);
    l->ends = heft__calloc(c->n_cells, sizeof *l->ends);
    l->ranks = heft__calloc(c->n_holders + 1, sizeof *l->ranks);
    l->shares = heft__calloc(c->n_holders + 1, sizeof *l->shares);
    if (l->lots == NULL || l->ends == NULL || l->ranks == NULL || l->shares == NULL) {
        return heft__error_nomem(c->err, c->n_holders * sizeof *l->shares);
    }
    size_t at = 0;
    for (size_t i = 0; i < c->n_cells; i++) {
        const cell_t *cell = &c->cells[i];
        if (i == 0 || compare_holders(c, &c->cells[i - 1], cell) != 0) {
            l->lots[l->n++] = (heft__lot_t){ .ranks = l->ranks + at,
                                             .n_ranks = cell->n_holders,
                                             .first_share = at };
            for (uint32_t k = 0; k < cell->n_holders; k++) {
                l->ranks[at++] = c->p->shards[c->holders[cell->first_holder + k]].rank;
            }
        }
        l->lots[l->n - 1].bytes += bytes_of(c, cell);
        l->ends[l->n - 1] = i + 1;
    }
    return HEFT_OK;
}

/* Whose turn it is in a lot, and what is left of everybody's share. */
typedef struct turn {
    const heft__lot_t *lot;
    int64_t *left;
    uint32_t k;
} turn_t;

/* How many rows of row_bytes the one whose turn it is takes of n: no sliver is left on either side,
 * and the last one takes everything. */
static int64_t take_rows(const chooser_t *c, const turn_t *turn, int64_t n, int64_t row_bytes)
{
    const int64_t least = (c->p->min_cut_bytes + row_bytes - 1) / row_bytes;
    int64_t rows = (turn->left[turn->k] + row_bytes / 2) / row_bytes;
    if (turn->k + 1 == turn->lot->n_ranks || rows >= n) {
        return n;
    }
    if (rows < least || n - rows < least) {
        rows = 2 * rows >= n ? n : 0;
    }
    return rows;
}

static heft_status_t give_cell(chooser_t *c, const cell_t *cell, turn_t *turn)
{
    const int rank = c->p->shapes[cell->tensor].rank;
    int dim = 0; /* the outermost that can be cut; or any */
    while (dim + 1 < rank && cell->box.end[dim] - cell->box.begin[dim] == 1) {
        dim++;
    }
    int64_t n = rank > 0 ? cell->box.end[dim] - cell->box.begin[dim] : 1;
    const int64_t row_bytes = bytes_of(c, cell) / n;
    heft__bounds_t box = cell->box;
    heft_status_t status = HEFT_OK;
    while (n > 0 && status == HEFT_OK) {
        const int64_t rows = take_rows(c, turn, n, row_bytes);
        if (rank > 0) {
            box.end[dim] = box.begin[dim] + rows;
        }
        if (rows > 0) {
            status = add_cut(c, c->holders[cell->first_holder + turn->k], &box, rows * row_bytes);
        }
        box.begin[dim] = box.end[dim];
        n -= rows;
        turn->left[turn->k] -= rows * row_bytes;
        turn->k += turn->k + 1 < turn->lot->n_ranks && (n > 0 || turn->left[turn->k] <= 0);
    }
    return status;
}

static heft_status_t give_lots(chooser_t *c, const lots_t *l)
{
    heft_status_t status = HEFT_OK;
    for (size_t k = 0, i = 0; k < l->n && status == HEFT_OK; k++) {
        turn_t turn = { .lot = &l->lots[k], .left = l->shares + l->lots[k].first_share };
        for (; i < l->ends[k] && status == HEFT_OK; i++) {
            status = give_cell(c, &c->cells[i], &turn);
        }
    }
    return status;
}

static heft_status_t choose_by_hosts(chooser_t *c)
{
    heft_placement_t *p = c->p;
    lots_t lots = { .n = 0 };
    for (size_t i = 0; i < c->n_cells; i++) {
        keep_near(c, &c->cells[i]);
    }
    qsort_r(c->cells, c->n_cells, sizeof *c->cells, by_holders, c);
    heft_status_t status = lots_init(c, &lots);
    if (status == HEFT_OK) {
        status = heft__host_balance(lots.lots, lots.n, p->host_of, p->n_ranks, lots.shares, c->err);
    }
    if (status == HEFT_OK) {
        status = give_lots(c, &lots);
    }
    lots_fini(&lots);
    return status;
}

/* By tensor, then first element. */
static int by_place(const void *x, const void *y, void *arg)
{
    const heft__cut_t *a = x;
    const heft__cut_t *b = y;
    const heft_placement_t *p = arg;
    const uint32_t s = p->shards[a->shard].tensor;
    const uint32_t t = p->shards[b->shard].tensor;
    if (s != t) {
        return s < t ? -1 : 1;
    }
    for (int d = 0; d < p->shapes[s].rank; d++) {
        if (a->box.begin[d] != b->box.begin[d]) {
            return a->box.begin[d] < b->box.begin[d] ? -1 : 1;
        }
    }
    return 0;
}

/* By ranks alone. */
static heft_status_t choose_by_ranks(chooser_t *c)
{
    heft_status_t status = HEFT_OK;
    qsort(c->cells, c->n_cells, sizeof *c->cells, by_choice);
    const size_t most = c->cells[c->n_cells - 1].n_holders;
    c->order = heft__calloc(most + 1, sizeof *c->order);
    c->rows = heft__calloc(most + 1, sizeof *c->rows);
    if (c->order == NULL || c->rows == NULL) {
        return heft__error_nomem(c->err, most * sizeof *c->rows);
    }
    for (size_t i = 0; i < c->n_cells && status == HEFT_OK; i++) {
        status = deal_cell(c, &c->cells[i]);
    }
    return status;
}

static heft_status_t choose(chooser_t *c)
{
    heft_placement_t *p = c->p;
    heft_status_t status = HEFT_OK;
    for (uint32_t t = 0; t < p->n_tensors && status == HEFT_OK; t++) {
        status = add_tensor(c, t);
    }
    if (status != HEFT_OK || c->n_cells == 0 || (c->disputes != NULL && c->disputes->n > 0)) {
        return status; /* what is disputed is not dealt out */
    }
    status = p->host_of != NULL ? choose_by_hosts(c) : choose_by_ranks(c);
    if (status == HEFT_OK && p->n_cuts > 1) {
        qsort_r(p->cuts, p->n_cuts, sizeof *p->cuts, by_place, p);
    }
    return status;
}

heft_status_t heft__placement_choose(heft_placement_t *p, heft__disputes_t *disputes,
                                     heft_error_t *err)
{
    chooser_t c = { .p = p, .disputes = disputes, .err = err };
    p->load = heft__arena_calloc(&p->arena, (size_t)p->n_ranks + 1, sizeof *p->load);
    heft_status_t status =
        p->load != NULL ? choose(&c) : heft__error_nomem(err, p->n_ranks * sizeof *p->load);
    heft__free(c.cells);
    heft__free(c.holders);
    heft__free(c.order);
    heft__free(c.rows);
    return status;
}
