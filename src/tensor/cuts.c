/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mesh leaves of a tensor. A dimension of what is left is a list of ranges of the whole one,
 * in order; a cut takes positions of that list, so a cut of a cut needs no case of its own. The
 * boxes are all combinations of a range of each dimension.
 */
#include "heft/cuts.h"
#include "tensor/tensor.h"

#define MAX_BOXES 65536

_Static_assert(sizeof(heft_cut_t) == 24, "heft_cut_t is ABI");

typedef struct range {
    int64_t begin;
    int64_t end;
} range_t;

typedef struct ranges {
    range_t *items;
    size_t n;
    size_t cap;
} ranges_t;

/* Ranges that meet are one. */
static heft_status_t add_range(ranges_t *list, int64_t begin, int64_t end, heft_error_t *err)
{
    if (list->n > 0 && list->items[list->n - 1].end == begin) {
        list->items[list->n - 1].end = end;
        return HEFT_OK;
    }
    if (list->n == MAX_BOXES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "cuts leave more than %d boxes of a tensor",
                               MAX_BOXES);
    }
    heft_status_t status = HEFT__GROW(list->items, list->cap, list->n + 1, err);
    if (status == HEFT_OK) {
        list->items[list->n++] = (range_t){ begin, end };
    }
    return status;
}

/* Where a list was read up to: a range, and the position of its first element. */
typedef struct cursor {
    const ranges_t *list;
    size_t i;
    int64_t at;
} cursor_t;

/* Append the positions [from, to), which are behind those that were taken before. */
static heft_status_t take(cursor_t *c, int64_t from, int64_t to, ranges_t *out, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    while (c->i < c->list->n && c->at < to && status == HEFT_OK) {
        const range_t *range = &c->list->items[c->i];
        const int64_t n = range->end - range->begin;
        const int64_t low = from > c->at ? from - c->at : 0;
        const int64_t high = to - c->at < n ? to - c->at : n;
        if (low < high) {
            status = add_range(out, range->begin + low, range->begin + high, err);
        }
        if (high < n) {
            break; /* the rest of this range may be taken next */
        }
        c->at += n;
        c->i++;
    }
    return status;
}

/* Part i of n of an extent. */
static heft_status_t part_of(const heft_cut_t *cut, int64_t extent, uint32_t n, uint32_t i,
                             range_t *out, heft_error_t *err)
{
    if (cut->rule == HEFT_CUT_EVEN && extent % n != 0) {
        return heft__error_set(err, HEFT_ERR_SHAPE,
                               "dimension %d: %lld do not divide into %u equal parts",
                               (int)cut->dim, (long long)extent, (unsigned)n);
    }
    const int64_t size = extent / n + (cut->rule == HEFT_CUT_CEIL && extent % n != 0);
    /* i * size may be beyond 2^63 where extent is not: compare before multiplying */
    const int64_t begin = size > 0 && i > extent / size ? extent : (int64_t)i * size;
    const bool is_last = cut->rule != HEFT_CUT_CEIL && i == n - 1;
    const int64_t end = is_last || extent - begin < size ? extent : begin + size;
    *out = (range_t){ begin, end };
    return HEFT_OK;
}

static int64_t count_of(const ranges_t *list)
{
    int64_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        n += list->items[i].end - list->items[i].begin;
    }
    return n;
}

/* One cut of a dimension, in place. */
static heft_status_t cut_ranges(ranges_t *list, const heft_cut_t *cut, heft_error_t *err)
{
    ranges_t left = { 0 };
    cursor_t cursor = { .list = list };
    const uint32_t n_blocks = cut->n_blocks > 1 ? cut->n_blocks : 1;
    const int64_t extent = count_of(list);
    heft_status_t status = HEFT_OK;
    for (uint32_t b = 0; b < n_blocks && status == HEFT_OK; b++) {
        range_t block;
        range_t part;
        status = part_of(cut, extent, n_blocks, b, &block, err);
        if (status == HEFT_OK && b > 0 && block.begin == extent) {
            break; /* nothing is left for this block and those behind it */
        }
        if (status == HEFT_OK) {
            status = part_of(cut, block.end - block.begin, cut->n_parts, cut->part, &part, err);
        }
        if (status == HEFT_OK) {
            status = take(&cursor, block.begin + part.begin, block.begin + part.end, &left, err);
        }
    }
    if (status != HEFT_OK) {
        heft__free(left.items);
        return status;
    }
    heft__free(list->items);
    *list = left;
    return HEFT_OK;
}

static heft_status_t check_cut(const heft_shape_t *shape, const heft_cut_t *cut, uint32_t i,
                               heft_error_t *err)
{
    if (cut->dim < 0 || cut->dim >= shape->rank) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "cut %u of dimension %d: the tensor has %d dimensions", (unsigned)i,
                               (int)cut->dim, (int)shape->rank);
    }
    if (cut->part >= cut->n_parts) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "cut %u: position %u of %u", (unsigned)i,
                               (unsigned)cut->part, (unsigned)cut->n_parts);
    }
    if (cut->n_blocks > MAX_BOXES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "cut %u: %u blocks, at most %d", (unsigned)i,
                               (unsigned)cut->n_blocks, MAX_BOXES);
    }
    if (cut->rule > HEFT_CUT_LAST || cut->reserved != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "cut %u: rule %u, reserved %u", (unsigned)i,
                               (unsigned)cut->rule, (unsigned)cut->reserved);
    }
    return HEFT_OK;
}

/* All combinations of a range of each dimension, the last one running fastest. */
static heft_status_t list_boxes(const ranges_t *dims, int32_t rank, heft_cut_box_t *boxes,
                                uint32_t capacity, uint32_t *n_out, heft_error_t *err)
{
    size_t n = 1;
    for (int d = 0; d < rank; d++) {
        n *= dims[d].n;
        if (n > MAX_BOXES) {
            return heft__error_set(err, HEFT_ERR_LIMIT, "cuts leave more than %d boxes of a tensor",
                                   MAX_BOXES);
        }
    }
    for (size_t i = 0; i < n && i < capacity; i++) {
        boxes[i] = (heft_cut_box_t){ 0 };
    }
    size_t step = n; /* boxes until dimension d goes on to its next range */
    for (int d = 0; d < rank && n > 0; d++) {
        int64_t local = 0;
        step /= dims[d].n;
        for (size_t i = 0; i < n && i < capacity; i++) {
            const range_t *range = &dims[d].items[i / step % dims[d].n];
            local = i / step % dims[d].n == 0 ? 0 : local;
            boxes[i].begin[d] = range->begin;
            boxes[i].end[d] = range->end;
            boxes[i].local[d] = local;
            local += (i + 1) % step == 0 ? range->end - range->begin : 0;
        }
    }
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

heft_status_t heft_shape_cut(const heft_shape_t *shape, const heft_cut_t *cuts, uint32_t n_cuts,
                             heft_shape_t *local_out, heft_cut_box_t *boxes, uint32_t capacity,
                             uint32_t *n_boxes_out, heft_error_t *err)
{
    ranges_t dims[HEFT_MAX_DIMS] = { 0 };
    int64_t count;
    uint32_t n_boxes = 0;
    heft_status_t status = heft_shape_count(shape, &count, err);
    for (int d = 0; status == HEFT_OK && d < shape->rank; d++) {
        if (shape->extent[d] > 0) {
            status = add_range(&dims[d], 0, shape->extent[d], err);
        }
    }
    for (uint32_t i = 0; i < n_cuts && status == HEFT_OK; i++) {
        status = check_cut(shape, &cuts[i], i, err);
        if (status == HEFT_OK) {
            status = cut_ranges(&dims[cuts[i].dim], &cuts[i], err);
        }
    }
    if (status == HEFT_OK) {
        status = list_boxes(dims, shape->rank, boxes, capacity, &n_boxes, err);
    }
    if (status == HEFT_OK) {
        *local_out = (heft_shape_t){ .rank = shape->rank };
        for (int d = 0; d < shape->rank; d++) {
            local_out->extent[d] = count_of(&dims[d]);
        }
        *n_boxes_out = n_boxes;
    }
    for (int d = 0; d < HEFT_MAX_DIMS; d++) {
        heft__free(dims[d].items);
    }
    return status;
}
