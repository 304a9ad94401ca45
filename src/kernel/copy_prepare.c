/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normalise a strided copy and choose how to run it.
 *
 * Dimensions of extent 1 go; negative destination steps are flipped (both sides run backwards);
 * neighbours contiguous on both sides merge, which in descending order of destination step finds
 * all of them, because the destination is injective. A unit step on both sides becomes the run.
 * What is left are the loops, ordered by |source step| so that the source is read in address order.
 */
#include "kernel/kernel_ops.h"

#include <stdlib.h>

typedef struct dim {
    int64_t extent;
    int64_t dst; /* bytes */
    int64_t src;
} dim_t;

/* Runs this short are moved as one wide element, so that transposes stay transposes. */
static bool is_elem_size(int64_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

static heft_status_t check(const heft__copy_t *copy, heft_error_t *err)
{
    uint32_t elem = copy->elem_bytes;
    if (elem != 1 && elem != 2 && elem != 4 && elem != 8) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "copy of %u-byte elements", elem);
    }
    if (copy->rank < 0 || copy->rank > HEFT_MAX_DIMS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "copy of rank %d, at most %d",
                               (int)copy->rank, HEFT_MAX_DIMS);
    }
    for (int k = 0; k < copy->rank; k++) {
        if (copy->extent[k] < 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "copy: extent %lld in dimension %d",
                                   (long long)copy->extent[k], k);
        }
        if (copy->extent[k] > 1 && copy->dst_stride[k] == 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "copy: destination stride 0 over %lld elements in dimension %d",
                                   (long long)copy->extent[k], k);
        }
    }
    return HEFT_OK;
}

static bool is_empty(const heft__copy_t *copy)
{
    for (int k = 0; k < copy->rank; k++) {
        if (copy->extent[k] == 0) {
            return true;
        }
    }
    return false;
}

/* Add the dimension in bytes, flipped so that dst > 0; false on overflow. */
static bool push_dim(dim_t *d, heft__copy_plan_t *plan, int64_t extent, int64_t dst, int64_t src,
                     int64_t elem)
{
    int64_t span;
    if (!heft__mul(dst, elem, &dst) || !heft__mul(src, elem, &src)) {
        return false;
    }
    if (dst < 0) {
        if (!heft__mul(extent - 1, dst, &span) ||
            !heft__add(plan->dst_offset, span, &plan->dst_offset) ||
            !heft__mul(extent - 1, src, &span) ||
            !heft__add(plan->src_offset, span, &plan->src_offset) || !heft__sub(0, dst, &dst) ||
            !heft__sub(0, src, &src)) {
            return false;
        }
    }
    *d = (dim_t){ .extent = extent, .dst = dst, .src = src };
    return true;
}

static int by_dst_descending(const void *a, const void *b)
{
    int64_t x = ((const dim_t *)a)->dst;
    int64_t y = ((const dim_t *)b)->dst;
    return x < y ? 1 : x > y ? -1 : 0;
}

static uint64_t magnitude(int64_t v)
{
    return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

static int by_src_descending(const void *a, const void *b)
{
    uint64_t x = magnitude(((const dim_t *)a)->src);
    uint64_t y = magnitude(((const dim_t *)b)->src);
    return x < y ? 1 : x > y ? -1 : by_dst_descending(a, b);
}

static int merge(dim_t *dims, int n)
{
    int out = 0;
    for (int k = 0; k < n; k++) {
        dim_t *o = &dims[out - (out > 0)];
        const dim_t *i = &dims[k];
        int64_t dst_span;
        int64_t src_span;
        if (out > 0 && heft__mul(i->dst, i->extent, &dst_span) && o->dst == dst_span &&
            heft__mul(i->src, i->extent, &src_span) && o->src == src_span) {
            *o = (dim_t){ .extent = o->extent * i->extent, .dst = i->dst, .src = i->src };
        } else {
            dims[out++] = *i;
        }
    }
    return out;
}

/* Total bytes, and the source range; false on overflow. */
static bool measure(heft__copy_plan_t *plan, const dim_t *dims, int n)
{
    int64_t bytes = plan->run_bytes;
    int64_t low = plan->src_offset;
    int64_t high = plan->src_offset;
    int64_t dst_high = plan->dst_offset;
    for (int k = 0; k < n; k++) {
        int64_t span;
        int64_t *side = dims[k].src < 0 ? &low : &high;
        if (!heft__mul(bytes, dims[k].extent, &bytes) ||
            !heft__mul(dims[k].extent - 1, dims[k].src, &span) || !heft__add(*side, span, side) ||
            !heft__mul(dims[k].extent - 1, dims[k].dst, &span) ||
            !heft__add(dst_high, span, &dst_high)) {
            return false;
        }
    }
    plan->bytes = bytes;
    plan->src_begin = low;
    return heft__add(high, plan->run_bytes, &plan->src_end) &&
           heft__add(dst_high, plan->run_bytes, &dst_high);
}

static int find_unit(const heft__copy_plan_t *plan, const int64_t *steps)
{
    for (int k = 0; k < plan->n_loops; k++) {
        if (steps[k] == (int64_t)plan->elem_bytes) {
            return k;
        }
    }
    return -1;
}

static void choose(heft__copy_plan_t *plan)
{
    plan->slab_align = 1;
    plan->dst_unit = -1;
    plan->src_unit = -1;
    if (!is_elem_size(plan->run_bytes)) {
        plan->kind = HEFT__COPY_RUNS;
        return;
    }
    plan->elem_bytes = (uint32_t)plan->run_bytes;
    plan->dst_unit = find_unit(plan, plan->dst_step);
    plan->src_unit = find_unit(plan, plan->src_step);
    plan->kind = HEFT__COPY_GATHER;
    if (plan->dst_unit >= 0 && plan->src_unit >= 0) {
        plan->kind = HEFT__COPY_TRANSPOSE;
    }
    if (plan->dst_unit == 0) {
        plan->slab_align = (int32_t)(64 / plan->elem_bytes);
    }
}

/* One run: loop 0 counts its elements, so that it can be cut. */
static void make_contiguous(heft__copy_plan_t *plan, uint32_t elem)
{
    plan->kind = HEFT__COPY_CONTIGUOUS;
    plan->n_loops = 1;
    plan->extent[0] = plan->run_bytes / elem;
    plan->dst_step[0] = elem;
    plan->src_step[0] = elem;
    plan->dst_unit = 0;
    plan->src_unit = 0;
    plan->slab_align = (int32_t)(64 / elem);
}

heft_status_t heft__copy_prepare(const heft__copy_t *copy, heft__copy_plan_t *plan_out,
                                 heft_error_t *err)
{
    heft_status_t status = check(copy, err);
    if (status != HEFT_OK) {
        return status;
    }
    uint32_t elem = copy->elem_bytes;
    heft__copy_plan_t plan = { .kind = HEFT__COPY_EMPTY, .elem_bytes = elem, .run_bytes = elem };
    if (is_empty(copy)) {
        *plan_out = plan;
        return HEFT_OK;
    }
    dim_t dims[HEFT_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < copy->rank; k++) {
        if (copy->extent[k] != 1 && !push_dim(&dims[n++], &plan, copy->extent[k],
                                              copy->dst_stride[k], copy->src_stride[k], elem)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "copy: offset overflows in dimension %d",
                                   k);
        }
    }
    qsort(dims, (size_t)n, sizeof dims[0], by_dst_descending);
    n = merge(dims, n);
    if (n > 0 && dims[n - 1].dst == elem && dims[n - 1].src == elem) {
        n--;
        if (!heft__mul(dims[n].extent, elem, &plan.run_bytes)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "copy: %lld elements overflow",
                                   (long long)dims[n].extent);
        }
    }
    if (!measure(&plan, dims, n)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "copy: size in bytes overflows");
    }
    qsort(dims, (size_t)n, sizeof dims[0], by_src_descending);
    plan.n_loops = n;
    for (int k = 0; k < n; k++) {
        plan.extent[k] = dims[k].extent;
        plan.dst_step[k] = dims[k].dst;
        plan.src_step[k] = dims[k].src;
    }
    if (n == 0) {
        make_contiguous(&plan, elem);
    } else {
        choose(&plan);
    }
    *plan_out = plan;
    return HEFT_OK;
}
