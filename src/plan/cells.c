/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells: a family of boxes in digit space, cut into the parts that the same boxes cover.
 *
 * One digit is cut at a time, at the bounds of the boxes that are still in play, and each slab is
 * cut further with its own few boxes. Of the digits left, the one whose slabs hold the fewest boxes
 * in all goes first: for what loaders and recipes do (experts, layers, ranks, halves) one digit
 * separates nearly everything, so the work is that of sorting. Box lists and cut points live on two
 * stacks that grow with the depth, never more than one list a digit.
 */
#include "plan/cover.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 24 };

typedef struct walker {
    heft__cover_cells_t *cells;
    const heft__cover_boxes_t *boxes;
    bool want_holes;
    heft__cover_visitor_t visit;
    void *arg;
    heft_error_t *err;
    size_t n_cuts;
    int64_t n_cells;
    int64_t low[HEFT__COVER_MAX_DIGITS];
    int64_t high[HEFT__COVER_MAX_DIGITS];
} walker_t;

static int64_t low_of(const walker_t *w, uint32_t box, int32_t digit)
{
    return heft__cover_low(w->boxes, box)[digit];
}

static int64_t high_of(const walker_t *w, uint32_t box, int32_t digit)
{
    return heft__cover_high(w->boxes, box)[digit];
}

void heft__cover_cells_fini(heft__cover_cells_t *cells)
{
    heft__free(cells->list);
    heft__free(cells->cuts);
    *cells = (heft__cover_cells_t){ 0 };
}

static heft_status_t reserve_list(walker_t *w, size_t need)
{
    void *items = w->cells->list;
    bool ok = heft__grow(&items, &w->cells->cap_list, need, sizeof *w->cells->list);
    w->cells->list = items;
    return ok ? HEFT_OK : heft__error_nomem(w->err, need * sizeof *w->cells->list);
}

static heft_status_t reserve_cuts(walker_t *w, size_t need)
{
    void *items = w->cells->cuts;
    bool ok = heft__grow(&items, &w->cells->cap_cuts, need, sizeof *w->cells->cuts);
    w->cells->cuts = items;
    return ok ? HEFT_OK : heft__error_nomem(w->err, need * sizeof *w->cells->cuts);
}

static heft_status_t emit(walker_t *w, size_t first, uint32_t n)
{
    if (n == 0 && !w->want_holes) {
        return HEFT_OK;
    }
    if (++w->n_cells > MAX_CELLS) {
        return heft__error_set(w->err, HEFT_ERR_LIMIT, "its pieces cut it into more than %d parts",
                               (int)MAX_CELLS);
    }
    heft__cover_box_cell_t cell = { .low = w->low, .high = w->high, .n_boxes = n, .n_elems = 1 };
    cell.boxes = n > 0 ? w->cells->list + first : NULL; /* without boxes there may be no list */
    for (int32_t i = 0; i < w->boxes->digits.n; i++) {
        cell.n_elems *= w->high[i] - w->low[i];
    }
    return w->visit(w->arg, &cell);
}

/* Take the digits out of play that no box of the list cuts. */
static uint64_t drop_full(walker_t *w, size_t first, uint32_t n, uint64_t digits)
{
    for (int32_t d = 0; d < w->boxes->digits.n; d++) {
        if ((digits >> d & 1) == 0) {
            continue;
        }
        bool full = true;
        for (uint32_t i = 0; i < n && full; i++) {
            uint32_t box = w->cells->list[first + i];
            full = low_of(w, box, d) == 0 && high_of(w, box, d) == w->boxes->digits.radix[d];
        }
        if (full) {
            w->low[d] = 0;
            w->high[d] = w->boxes->digits.radix[d];
            digits &= ~((uint64_t)1 << d);
        }
    }
    return digits;
}

static heft_status_t emit_single(walker_t *w, size_t first, uint64_t digits)
{
    uint32_t box = w->cells->list[first];
    for (int32_t d = 0; d < w->boxes->digits.n; d++) {
        if ((digits >> d & 1) != 0) {
            w->low[d] = low_of(w, box, d);
            w->high[d] = high_of(w, box, d);
        }
    }
    return emit(w, first, 1);
}

static int compare_up(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Boxes in all slabs when the list is cut along a digit. Uses cuts[at..at + 2n) as scratch. */
static uint64_t cost_of(walker_t *w, size_t first, uint32_t n, int32_t digit, size_t at)
{
    int64_t *low = w->cells->cuts + at;
    int64_t *high = low + n;
    for (uint32_t i = 0; i < n; i++) {
        low[i] = low_of(w, w->cells->list[first + i], digit);
        high[i] = high_of(w, w->cells->list[first + i], digit);
    }
    qsort(low, n, sizeof *low, compare_up);
    qsort(high, n, sizeof *high, compare_up);
    uint64_t cost = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (j < n) {
        int64_t cut = i < n && low[i] < high[j] ? low[i] : high[j];
        for (; i < n && low[i] == cut; i++) {
        }
        for (; j < n && high[j] == cut; j++) {
        }
        cost += i - j;
    }
    return cost;
}

static int32_t choose_digit(walker_t *w, size_t first, uint32_t n, uint64_t digits)
{
    int32_t best = -1;
    uint64_t best_cost = 0;
    for (int32_t d = 0; d < w->boxes->digits.n; d++) {
        if ((digits >> d & 1) == 0) {
            continue;
        }
        uint64_t cost = cost_of(w, first, n, d, w->n_cuts);
        if (best < 0 || cost < best_cost) {
            best = d;
            best_cost = cost;
        }
        if (cost == n) {
            break; /* no box is cut: as good as it gets */
        }
    }
    return best;
}

typedef struct by_low {
    const walker_t *w;
    int32_t digit;
} by_low_t;

static int compare_low(const void *a, const void *b, void *arg)
{
    const by_low_t *by = arg;
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    int64_t lx = low_of(by->w, x, by->digit);
    int64_t ly = low_of(by->w, y, by->digit);
    if (lx != ly) {
        return lx < ly ? -1 : 1;
    }
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Unique cut points of the list along a digit, pushed on the cut stack. */
static size_t push_cuts(walker_t *w, size_t first, uint32_t n, int32_t digit)
{
    int64_t *cuts = w->cells->cuts + w->n_cuts;
    size_t m = 0;
    cuts[m++] = 0;
    cuts[m++] = w->boxes->digits.radix[digit];
    for (uint32_t i = 0; i < n; i++) {
        cuts[m++] = low_of(w, w->cells->list[first + i], digit);
        cuts[m++] = high_of(w, w->cells->list[first + i], digit);
    }
    qsort(cuts, m, sizeof *cuts, compare_up);
    size_t unique = 1;
    for (size_t i = 1; i < m; i++) {
        if (cuts[i] != cuts[unique - 1]) {
            cuts[unique++] = cuts[i];
        }
    }
    w->n_cuts += unique;
    return unique;
}

static heft_status_t walk(walker_t *w, size_t first, uint32_t n, uint64_t digits);

/* Sweep the slabs. The active boxes are a list of their own at list[at..], rebuilt for each slab
 * from the one before. */
static heft_status_t walk_slabs(walker_t *w, size_t first, uint32_t n, uint64_t digits,
                                int32_t digit)
{
    size_t at = first + n;
    size_t cut_base = w->n_cuts;
    size_t n_cuts = push_cuts(w, first, n, digit);
    uint32_t n_active = 0;
    uint32_t next = 0;
    for (size_t k = 0; k + 1 < n_cuts; k++) {
        int64_t low = w->cells->cuts[cut_base + k];
        int64_t high = w->cells->cuts[cut_base + k + 1];
        uint32_t kept = 0;
        uint32_t *list = w->cells->list;
        for (uint32_t i = 0; i < n_active; i++) {
            if (high_of(w, list[at + i], digit) > low) {
                list[at + kept++] = list[at + i];
            }
        }
        n_active = kept;
        for (; next < n && low_of(w, list[first + next], digit) == low; next++) {
            list[at + n_active++] = list[first + next];
        }
        w->low[digit] = low;
        w->high[digit] = high;
        heft_status_t status = walk(w, at, n_active, digits);
        if (status != HEFT_OK) {
            return status;
        }
    }
    w->n_cuts = cut_base;
    return HEFT_OK;
}

static heft_status_t walk(walker_t *w, size_t first, uint32_t n, uint64_t digits)
{
    digits = drop_full(w, first, n, digits);
    if (digits == 0) {
        return emit(w, first, n);
    }
    if (n == 1 && !w->want_holes) {
        return emit_single(w, first, digits);
    }
    heft_status_t status = reserve_cuts(w, w->n_cuts + 2 * (size_t)n + 2);
    if (status == HEFT_OK) {
        status = reserve_list(w, first + 2 * (size_t)n);
    }
    if (status != HEFT_OK) {
        return status;
    }
    int32_t digit = choose_digit(w, first, n, digits);
    if (digit < 0) {
        return HEFT_BUG(w->err, "boxes of one cell without a digit that tells them apart");
    }
    by_low_t by = { .w = w, .digit = digit };
    qsort_r(w->cells->list + first, n, sizeof *w->cells->list, compare_low, &by);
    return walk_slabs(w, first, n, digits & ~((uint64_t)1 << digit), digit);
}

heft_status_t heft__cover_cells_walk(heft__cover_cells_t *cells, const heft__cover_boxes_t *boxes,
                                     bool want_holes, heft__cover_visitor_t visit, void *arg,
                                     heft_error_t *err)
{
    walker_t w = { .cells = cells,
                   .boxes = boxes,
                   .want_holes = want_holes,
                   .visit = visit,
                   .arg = arg,
                   .err = err };
    heft_status_t status = reserve_list(&w, boxes->n);
    if (status != HEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < boxes->n; i++) {
        cells->list[i] = (uint32_t)i;
    }
    return walk(&w, 0, (uint32_t)boxes->n, ((uint64_t)1 << boxes->digits.n) - 1);
}
