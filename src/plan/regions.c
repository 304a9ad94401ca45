/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a parameter that some pieces write, as few regions as are easily found. A region is
 * a run of neighbouring bytes repeated by loops, largest stride first. Two become one where the
 * runs of the second follow those of the first, where the second goes on along one of the first
 * one's loops, or where regions of one form stand at equal distances. Regions are disjoint, so no
 * two begin at one place, every order below is total, and the result depends on the pieces alone.
 */
#include "plan/routes.h"

#include <stdlib.h>
#include <string.h>

/* ---- one region ---- */

static void sort_loops(heft_route_region_t *r)
{
    for (int k = 1; k < r->n_loops; k++) {
        const int64_t extent = r->extent[k];
        const int64_t stride = r->stride[k];
        int at = k;
        for (; at > 0 && r->stride[at - 1] < stride; at--) {
            r->extent[at] = r->extent[at - 1];
            r->stride[at] = r->stride[at - 1];
        }
        r->extent[at] = extent;
        r->stride[at] = stride;
    }
}

/* Loops that go on where the next one ends are one, and what stands beside its repetition is a
 * longer run. Unused loops are zero, so that regions can be compared whole. */
static void tidy(heft_route_region_t *r)
{
    sort_loops(r);
    int n = 0;
    for (int k = 0; k < r->n_loops; k++) {
        if (n > 0 && r->stride[n - 1] == r->extent[k] * r->stride[k]) {
            r->extent[n - 1] *= r->extent[k];
            r->stride[n - 1] = r->stride[k];
        } else {
            r->extent[n] = r->extent[k];
            r->stride[n++] = r->stride[k];
        }
    }
    while (n > 0 && r->stride[n - 1] == r->run_bytes) {
        n--;
        r->run_bytes *= r->extent[n];
    }
    for (int k = n; k < r->n_loops; k++) {
        r->extent[k] = 0;
        r->stride[k] = 0;
    }
    r->n_loops = n;
}

/* Sizes are those of a parameter, which were counted. */
static bool from_piece(const heft_piece_t *piece, int64_t unit, heft_route_region_t *out)
{
    *out = (heft_route_region_t){ .offset = piece->dst_offset * unit, .run_bytes = unit };
    for (int k = 0; k < piece->rank; k++) {
        if (piece->extent[k] == 0) {
            return false;
        }
        if (piece->extent[k] == 1) {
            continue;
        }
        const int64_t stride = piece->dst_stride[k] * unit;
        out->offset += stride < 0 ? (piece->extent[k] - 1) * stride : 0;
        out->extent[out->n_loops] = piece->extent[k];
        out->stride[out->n_loops++] = stride < 0 ? -stride : stride;
    }
    tidy(out);
    return true;
}

heft_status_t heft__regions_add(heft__regions_t *regions, const heft_piece_t *piece,
                                uint32_t unit_bytes, heft_error_t *err)
{
    heft_status_t status = HEFT__GROW(regions->items, regions->cap, regions->n + 1, err);
    if (status == HEFT_OK && from_piece(piece, unit_bytes, &regions->items[regions->n])) {
        regions->n++;
    }
    return status;
}

void heft__regions_fini(heft__regions_t *regions)
{
    heft__free(regions->items);
    *regions = (heft__regions_t){ .n = 0 };
}

/* ---- orders ---- */

static int compare(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* By loops, but for the extent of loop `but`. */
static int by_loops(const heft_route_region_t *a, const heft_route_region_t *b, int but)
{
    int order = compare(a->n_loops, b->n_loops);
    for (int k = 0; k < a->n_loops && order == 0; k++) {
        order = compare(a->stride[k], b->stride[k]);
        if (order == 0 && k != but) {
            order = compare(a->extent[k], b->extent[k]);
        }
    }
    return order;
}

static int by_offset(const void *x, const void *y)
{
    const heft_route_region_t *a = x;
    const heft_route_region_t *b = y;
    return compare(a->offset, b->offset);
}

/* Regions whose runs may follow each other are neighbours. */
static int for_runs(const void *x, const void *y)
{
    const int order = by_loops(x, y, -1);
    return order != 0 ? order : by_offset(x, y);
}

/* Regions of one form are neighbours. */
static int for_repeats(const void *x, const void *y)
{
    const heft_route_region_t *a = x;
    const heft_route_region_t *b = y;
    const int order = compare(a->run_bytes, b->run_bytes);
    return order != 0 ? order : for_runs(x, y);
}

/* Regions that may go on along loop d are neighbours. */
static int for_loop(const void *x, const void *y, void *arg)
{
    const heft_route_region_t *a = x;
    const heft_route_region_t *b = y;
    const int d = *(const int *)arg;
    int order = compare(a->run_bytes, b->run_bytes);
    order = order != 0 ? order : by_loops(a, b, d);
    if (order == 0 && d < a->n_loops) {
        order = compare(a->offset % a->stride[d], b->offset % b->stride[d]);
    }
    return order != 0 ? order : by_offset(x, y);
}

/* ---- joining ---- */

static void join_runs(heft__regions_t *list)
{
    qsort(list->items, list->n, sizeof *list->items, for_runs);
    size_t n = 0;
    for (size_t i = 1; i < list->n; i++) {
        heft_route_region_t *last = &list->items[n];
        const heft_route_region_t *next = &list->items[i];
        if (by_loops(last, next, -1) == 0 && last->offset + last->run_bytes == next->offset) {
            last->run_bytes += next->run_bytes;
        } else {
            list->items[++n] = *next;
        }
    }
    list->n = n + 1;
}

static void join_along(heft__regions_t *list, int d)
{
    qsort_r(list->items, list->n, sizeof *list->items, for_loop, &d);
    size_t n = 0;
    for (size_t i = 1; i < list->n; i++) {
        heft_route_region_t *last = &list->items[n];
        const heft_route_region_t *next = &list->items[i];
        if (d < last->n_loops && last->run_bytes == next->run_bytes &&
            by_loops(last, next, d) == 0 &&
            last->offset + last->extent[d] * last->stride[d] == next->offset) {
            last->extent[d] += next->extent[d];
        } else {
            list->items[++n] = *next;
        }
    }
    list->n = n + 1;
}

/* How many regions from item i on are of one form and stand at one distance. */
static size_t count_repeats(const heft__regions_t *list, size_t i)
{
    const heft_route_region_t *first = &list->items[i];
    size_t n = 1;
    while (first->n_loops < HEFT_MAX_DIMS && i + n < list->n) {
        const heft_route_region_t *next = &list->items[i + n];
        if (next->run_bytes != first->run_bytes || by_loops(first, next, -1) != 0 ||
            next->offset - first->offset !=
                (int64_t)n * (list->items[i + 1].offset - first->offset)) {
            break;
        }
        n++;
    }
    return n;
}

static void join_repeats(heft__regions_t *list)
{
    qsort(list->items, list->n, sizeof *list->items, for_repeats);
    size_t n = 0;
    for (size_t i = 0; i < list->n; n++) {
        const size_t k = count_repeats(list, i);
        heft_route_region_t joined = list->items[i];
        if (k > 1) {
            joined.extent[joined.n_loops] = (int64_t)k;
            joined.stride[joined.n_loops++] = list->items[i + 1].offset - joined.offset;
        }
        list->items[n] = joined;
        i += k;
    }
    list->n = n;
}

static void tidy_all(heft__regions_t *list)
{
    for (size_t i = 0; i < list->n; i++) {
        tidy(&list->items[i]);
    }
}

/* Every round but the last makes them fewer. */
void heft__regions_join(heft__regions_t *list)
{
    for (size_t before = 0; list->n > 1 && list->n != before;) {
        before = list->n;
        join_runs(list);
        tidy_all(list);
        int most = 0;
        for (size_t i = 0; i < list->n; i++) {
            most = list->items[i].n_loops > most ? list->items[i].n_loops : most;
        }
        for (int d = 0; d < most; d++) {
            join_along(list, d);
        }
        tidy_all(list);
        if (list->n == before) {
            join_repeats(list);
            tidy_all(list);
        }
    }
    if (list->n > 1) {
        qsort(list->items, list->n, sizeof *list->items, by_offset);
    }
}

uint64_t heft__regions_count_runs(const heft__regions_t *list)
{
    uint64_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        uint64_t runs = 1;
        for (int k = 0; k < list->items[i].n_loops; k++) {
            runs *= (uint64_t)list->items[i].extent[k];
        }
        n += runs;
    }
    return n;
}
