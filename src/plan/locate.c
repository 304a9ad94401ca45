/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a tensor is not covered, and where it is covered twice: the cells of the whole tensor,
 * holes among them, joined where they are neighbours and given as boxes of indices. Only what is
 * shown to people needs this; counts come from the scan.
 */
#include "plan/cover.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SPOT_BOXES = 1 << 16 };

#define NOBODY UINT32_MAX /* tag of what the digits number beyond the end of the tensor */

/* Cells of one kind as boxes of digits. */
typedef struct cell_list {
    int64_t *bounds;
    size_t n;
    size_t cap;
    int64_t n_elems;
    int64_t n_more; /* cells beyond MAX_SPOT_BOXES */
    int64_t first;  /* lowest element, of the cell that has owners[] */
    uint32_t owners[2];
} cell_list_t;

typedef struct locate {
    heft__cover_t *cover;
    cell_list_t *holes; /* NULL: not wanted */
    cell_list_t *overlaps;
    heft_error_t *err;
} locate_t;

static int64_t first_element(const heft__cover_digits_t *digits, const int64_t *low)
{
    int64_t element = 0;
    for (int32_t i = 0; i < digits->n; i++) {
        element += low[i] * digits->scale[i];
    }
    return element;
}

static heft_status_t list_cell(locate_t *locate, cell_list_t *list,
                               const heft__cover_box_cell_t *cell, const uint32_t *owners)
{
    const heft__cover_digits_t *digits = &locate->cover->boxes.digits;
    size_t n_digits = (size_t)digits->n;
    int64_t first = first_element(digits, cell->low);
    if (list->n_elems == 0 || first < list->first) {
        list->first = first;
        list->owners[0] = owners != NULL ? owners[0] : 0;
        list->owners[1] = owners != NULL ? owners[1] : 0;
    }
    list->n_elems += cell->n_elems;
    if (list->n == MAX_SPOT_BOXES) {
        list->n_more++;
        if (first > list->first) {
            return HEFT_OK;
        }
        list->n--; /* the first one must be among those kept */
    }
    heft_status_t status =
        HEFT__GROW(list->bounds, list->cap, (list->n + 1) * 2 * n_digits, locate->err);
    if (status == HEFT_OK) {
        int64_t *to = list->bounds + list->n++ * 2 * n_digits;
        memcpy(to, cell->low, n_digits * sizeof *to);
        memcpy(to + n_digits, cell->high, n_digits * sizeof *to);
    }
    return status;
}

static heft_status_t locate_cell(void *arg, const heft__cover_box_cell_t *cell)
{
    locate_t *locate = arg;
    if (cell->n_boxes == 0) {
        return locate->holes != NULL ? list_cell(locate, locate->holes, cell, NULL) : HEFT_OK;
    }
    if (locate->cover->boxes.tags[cell->boxes[0]] == NOBODY || locate->overlaps == NULL) {
        return HEFT_OK;
    }
    uint32_t n = heft__cover_gather_owners(locate->cover, cell);
    const uint32_t *owners = locate->cover->owners + locate->cover->n_atoms;
    return n > 1 ? list_cell(locate, locate->overlaps, cell, owners) : HEFT_OK;
}

/* Bounds of two cells are equal but for one digit. */
typedef struct along {
    int32_t n_digits;
    int32_t digit;
} along_t;

static int compare_but(const int64_t *a, const int64_t *b, const along_t *along)
{
    for (int32_t i = 0; i < 2 * along->n_digits; i++) {
        if (i % along->n_digits != along->digit && a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_along(const void *x, const void *y, void *arg)
{
    const along_t *along = arg;
    const int64_t *a = x;
    const int64_t *b = y;
    int c = compare_but(a, b, along);
    int64_t la = a[along->digit];
    int64_t lb = b[along->digit];
    return c != 0 ? c : la < lb ? -1 : la > lb;
}

/* Join cells that are neighbours along one digit, innermost digits first. */
static void join_cells(cell_list_t *list, int32_t n_digits)
{
    size_t width = 2 * (size_t)n_digits;
    for (int32_t digit = n_digits - 1; digit >= 0 && list->n > 1; digit--) {
        along_t along = { .n_digits = n_digits, .digit = digit };
        qsort_r(list->bounds, list->n, width * sizeof *list->bounds, compare_along, &along);
        size_t n = 1;
        for (size_t i = 1; i < list->n; i++) {
            int64_t *to = list->bounds + (n - 1) * width;
            const int64_t *from = list->bounds + i * width;
            if (to[n_digits + digit] == from[digit] && compare_but(to, from, &along) == 0) {
                to[n_digits + digit] = from[n_digits + digit];
            } else {
                memmove(list->bounds + n++ * width, from, width * sizeof *from);
            }
        }
        list->n = n;
    }
}

/* A box of digits as a region; false when it has too many dimensions. */
static bool region_from_digits(const heft__cover_digits_t *digits, const int64_t *bounds,
                               heft__region_t *region)
{
    *region = (heft__region_t){ .offset = first_element(digits, bounds) };
    for (int32_t i = 0; i < digits->n; i++) {
        int64_t extent = bounds[digits->n + i] - bounds[i];
        int32_t n = region->rank;
        if (extent == 1) {
            continue;
        }
        if (n > 0 && region->stride[n - 1] == extent * digits->scale[i]) {
            region->extent[n - 1] *= extent;
            region->stride[n - 1] = digits->scale[i];
            continue;
        }
        if (n == HEFT_MAX_DIMS) {
            return false;
        }
        region->extent[n] = extent;
        region->stride[n] = digits->scale[i];
        region->rank++;
    }
    return true;
}

static heft_status_t spot_from_cells(const heft__cover_digits_t *digits, const heft_shape_t *shape,
                                     cell_list_t *list, heft__spot_t *spot, heft_error_t *err)
{
    *spot = (heft__spot_t){ .n_elems = list->n_elems,
                            .n_boxes = list->n_more,
                            .owners = { list->owners[0], list->owners[1] } };
    join_cells(list, digits->n);
    for (size_t i = 0; i < list->n; i++) {
        const int64_t *bounds = list->bounds + i * 2 * (size_t)digits->n;
        heft__region_t region;
        heft__index_box_t box;
        uint64_t n_boxes = 1;
        if (!region_from_digits(digits, bounds, &region)) {
            region.rank = 0; /* its first element alone */
        }
        heft_status_t status = heft__region_to_boxes(&region, shape, &box, 1, &n_boxes, err);
        if (status != HEFT_OK) {
            return status;
        }
        spot->n_boxes += (int64_t)n_boxes;
        if (region.offset == list->first) {
            memcpy(spot->begin, box.begin, sizeof spot->begin);
            memcpy(spot->end, box.end, sizeof spot->end);
        }
    }
    return HEFT_OK;
}

/* Digits and boxes of the whole tensor; what lies beyond its end is given to nobody. */
static heft_status_t load_whole(heft__cover_t *cover, int64_t n_elems, heft_error_t *err)
{
    bool nest;
    heft_status_t status = heft__cover_find_digits(cover, n_elems, 0, cover->n_sets, &nest, err);
    if (status == HEFT_OK) {
        status = heft__cover_load_boxes(cover, 0, cover->n_sets, err);
    }
    int64_t n_beyond = heft__cover_digits_count(&cover->boxes.digits) - n_elems;
    if (status == HEFT_OK && n_beyond > 0) {
        const heft__atom_t beyond = { .first = n_elems,
                                      .n_dims = n_beyond > 1 ? 1 : 0,
                                      .extent = { n_beyond },
                                      .stride = { 1 } };
        status = heft__cover_boxes_add(&cover->boxes, &beyond, NOBODY, err);
    }
    return status;
}

heft_status_t heft__cover_locate(heft__cover_t *cover, const heft_shape_t *shape,
                                 const heft__claim_t *claims, size_t n_claims,
                                 heft__spot_t *hole_out, heft__spot_t *overlap_out,
                                 heft_error_t *err)
{
    int64_t n_elems;
    heft_status_t status = heft_shape_count(shape, &n_elems, err);
    cell_list_t holes = { 0 };
    cell_list_t overlaps = { 0 };
    locate_t locate = { .cover = cover,
                        .holes = hole_out != NULL ? &holes : NULL,
                        .overlaps = overlap_out != NULL ? &overlaps : NULL,
                        .err = err };
    if (status == HEFT_OK && n_elems > 0) {
        status = heft__cover_load_nested(cover, n_elems, claims, n_claims, true, err);
        if (status == HEFT_OK) {
            status = load_whole(cover, n_elems, err);
        }
        if (status == HEFT_OK) {
            status = heft__cover_cells_walk(&cover->cells, &cover->boxes, true, locate_cell,
                                            &locate, err);
        }
    }
    const heft__cover_digits_t *digits = &cover->boxes.digits;
    heft__spot_t hole;
    heft__spot_t overlap;
    if (status == HEFT_OK) {
        status = spot_from_cells(digits, shape, &holes, &hole, err);
    }
    if (status == HEFT_OK) {
        status = spot_from_cells(digits, shape, &overlaps, &overlap, err);
    }
    if (status == HEFT_OK && hole_out != NULL) {
        *hole_out = hole;
    }
    if (status == HEFT_OK && overlap_out != NULL) {
        *overlap_out = overlap;
    }
    heft__free(holes.bounds);
    heft__free(overlaps.bounds);
    return status;
}
