/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region as index boxes of a row-major tensor, for messages.
 *
 * The radices include the strides of the shape, so the digits of a region fall into groups, one
 * group for each dimension. Within a group the index range is one interval as long as every digit
 * below one that varies is complete; digits above an incomplete one are taken apart.
 */
#include "tensor/digits.h"

#include <stdlib.h>
#include <string.h>

typedef struct shape_digits {
    int n_dims;
    int64_t stride[HEFT_MAX_DIMS]; /* of the tensor, row-major */
    int dim_of[HEFT__BOX_DIMS];    /* the dimension a digit belongs to */
    int64_t unit[HEFT__BOX_DIMS];  /* what one step of the digit adds to that index */
    bool is_apart[HEFT__BOX_DIMS]; /* every value of the digit is a box of its own */
} shape_digits_t;

static void make_shape_box(const heft_shape_t *shape, heft__box_t *box)
{
    box->rank = 0;
    box->n_maps = 1;
    box->offset[0] = 0;
    int64_t stride = 1;
    for (int k = shape->rank - 1; k >= 0; k--) {
        if (shape->extent[k] > 1) {
            heft__dim_t *dim = &box->dim[box->rank++];
            dim->extent = shape->extent[k];
            dim->stride[0] = stride;
        }
        stride *= shape->extent[k];
    }
}

/* Digit t belongs to the outermost dimension whose stride does not exceed its radix. */
static void assign_digits(const heft_shape_t *shape, const heft__radices_t *radices,
                          shape_digits_t *digits)
{
    digits->n_dims = shape->rank;
    int64_t stride = 1;
    for (int k = shape->rank - 1; k >= 0; k--) {
        digits->stride[k] = stride;
        stride *= shape->extent[k];
    }
    for (int t = 0; t < radices->n; t++) {
        digits->dim_of[t] = -1;
        digits->unit[t] = 0;
        for (int k = 0; k < shape->rank && digits->dim_of[t] < 0; k++) {
            if (shape->extent[k] > 1 && digits->stride[k] <= radices->r[t]) {
                digits->dim_of[t] = k;
                digits->unit[t] = radices->r[t] / digits->stride[k];
            }
        }
    }
}

/* Which digits of this part must be taken apart; returns how many boxes that makes. */
static uint64_t plan_part(const heft__radices_t *radices, const heft__digit_part_t *part,
                          shape_digits_t *digits)
{
    uint64_t n_boxes = 1;
    int64_t covered[HEFT_MAX_DIMS]; /* indices that the digits so far cover from their start */
    for (int k = 0; k < digits->n_dims; k++) {
        covered[k] = 1;
    }
    for (int t = 0; t < radices->n; t++) {
        int k = digits->dim_of[t];
        digits->is_apart[t] = false;
        if (k < 0 || part->ext[t] == 1) {
            continue;
        }
        if (covered[k] == digits->unit[t]) {
            covered[k] *= part->ext[t];
        } else {
            digits->is_apart[t] = true;
            n_boxes *= (uint64_t)part->ext[t];
        }
    }
    return n_boxes;
}

/* Box i of a part: the digits taken apart count up, the last one fastest inside the first. */
static void make_index_box(const heft__radices_t *radices, const heft__digit_part_t *part,
                           const shape_digits_t *digits, uint64_t i, heft__index_box_t *box)
{
    for (int k = 0; k < digits->n_dims; k++) {
        box->begin[k] = 0;
        box->end[k] = 1;
    }
    for (int t = 0; t < radices->n; t++) {
        int k = digits->dim_of[t];
        if (k < 0) {
            continue;
        }
        int64_t value = part->lo[t];
        if (digits->is_apart[t]) {
            value += (int64_t)(i % (uint64_t)part->ext[t]);
            i /= (uint64_t)part->ext[t];
        } else {
            box->end[k] += (part->ext[t] - 1) * digits->unit[t];
        }
        box->begin[k] += value * digits->unit[t];
        box->end[k] += value * digits->unit[t];
    }
}

typedef struct part_order {
    int64_t first;
    size_t part;
} part_order_t;

static int by_first(const void *pa, const void *pb)
{
    const part_order_t *a = pa;
    const part_order_t *b = pb;
    return (a->first > b->first) - (a->first < b->first);
}

static heft_status_t emit_boxes(const heft__box_work_t *work, const heft__digit_set_t *set,
                                const heft__radices_t *radices, shape_digits_t *digits,
                                heft__index_box_t *boxes, uint64_t max_boxes, uint64_t *n_out,
                                heft_error_t *err)
{
    part_order_t *order = heft__malloc(set->n_parts * sizeof *order);
    if (order == NULL) {
        return heft__error_nomem(err, set->n_parts * sizeof *order);
    }
    for (size_t i = 0; i < set->n_parts; i++) {
        heft__digit_part_t part = heft__digit_part_get(work, set, i);
        order[i] = (part_order_t){ .part = i };
        for (int t = 0; t < radices->n; t++) {
            order[i].first += part.lo[t] * radices->r[t];
        }
    }
    qsort(order, set->n_parts, sizeof *order, by_first);
    uint64_t n = 0;
    for (size_t i = 0; i < set->n_parts; i++) {
        heft__digit_part_t part = heft__digit_part_get(work, set, order[i].part);
        uint64_t n_part = plan_part(radices, &part, digits);
        for (uint64_t j = 0; j < n_part && n + j < max_boxes; j++) {
            make_index_box(radices, &part, digits, j, &boxes[n + j]);
        }
        n += n_part;
    }
    heft__free(order);
    *n_out = n;
    return HEFT_OK;
}

heft_status_t heft__region_to_boxes(const heft__region_t *region, const heft_shape_t *shape,
                                    heft__index_box_t *boxes, uint64_t max_boxes,
                                    uint64_t *n_boxes_out, heft_error_t *err)
{
    if (region->is_empty) {
        *n_boxes_out = 0;
        return HEFT_OK;
    }
    heft__box_t box;
    heft__box_t shape_box;
    heft__radices_t radices;
    heft__steps_t steps;
    heft__steps_t shape_steps;
    heft__digit_set_t set;
    heft__box_work_t work = { 0 };
    shape_digits_t digits;
    heft__box_from_region(region, &box);
    make_shape_box(shape, &shape_box);
    heft__radices_choose(&box, &shape_box, 0, true, &radices, &steps, &shape_steps);
    assign_digits(shape, &radices, &digits);
    heft_status_t status = heft__digits_make(&work, &radices, &box, &steps, &set, err);
    if (status == HEFT_OK) {
        status = emit_boxes(&work, &set, &radices, &digits, boxes, max_boxes, n_boxes_out, err);
    }
    heft__box_work_fini(&work);
    return status;
}
