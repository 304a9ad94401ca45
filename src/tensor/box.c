/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes: normal form, limiting the rank, compact storage. */
#include "tensor/digits.h"

#include <string.h>

void heft__box_work_fini(heft__box_work_t *work)
{
    heft__free(work->data);
    *work = (heft__box_work_t){ 0 };
}

bool heft__box_work_reserve(heft__box_work_t *work, size_t n)
{
    size_t need;
    if (!heft__size_add(work->n, n, &need)) {
        return false;
    }
    if (need <= work->cap) {
        return true;
    }
    size_t cap = need < 1024 ? 1024 : need + need / 2;
    void *items = work->data;
    if (!heft__grow(&items, &work->cap, cap, sizeof *work->data)) {
        return false;
    }
    work->data = items;
    return true;
}

void heft__box_from_region(const heft__region_t *region, heft__box_t *box_out)
{
    box_out->rank = region->rank;
    box_out->n_maps = 1;
    box_out->offset[0] = region->offset;
    for (int k = 0; k < region->rank; k++) {
        box_out->dim[k].extent = region->extent[k];
        box_out->dim[k].stride[0] = region->stride[k];
    }
}

static void copy_dim(heft__dim_t *to, const heft__dim_t *from, int n_maps)
{
    to->extent = from->extent;
    memcpy(to->stride, from->stride, (size_t)n_maps * sizeof to->stride[0]);
}

/* The sign of a dimension: that of its stride on map m, or where that is 0, on the first map that
 * has one. */
static bool is_backward(const heft__dim_t *dim, int n_maps, int m)
{
    if (dim->stride[m] != 0) {
        return dim->stride[m] < 0;
    }
    for (int j = 0; j < n_maps; j++) {
        if (dim->stride[j] != 0) {
            return dim->stride[j] < 0;
        }
    }
    return false;
}

static void flip_dim(heft__box_t *box, heft__dim_t *dim)
{
    for (int j = 0; j < box->n_maps; j++) {
        box->offset[j] += (dim->extent - 1) * dim->stride[j];
        dim->stride[j] = -dim->stride[j];
    }
}

/* Should a stand outside b: larger stride on map m first; ties by the other maps, so that equal
 * boxes have equal normal forms. */
static bool is_outer(const heft__dim_t *a, const heft__dim_t *b, int n_maps, int m)
{
    if (a->stride[m] != b->stride[m]) {
        return a->stride[m] > b->stride[m];
    }
    for (int j = 0; j < n_maps; j++) {
        if (a->stride[j] != b->stride[j]) {
            return a->stride[j] > b->stride[j];
        }
    }
    return a->extent > b->extent;
}

static bool is_one_run(const heft__dim_t *outer, const heft__dim_t *inner, int n_maps)
{
    for (int j = 0; j < n_maps; j++) {
        int64_t step;
        if (!heft__mul(inner->stride[j], inner->extent, &step) || step != outer->stride[j]) {
            return false;
        }
    }
    return true;
}

static void sort_dims(heft__box_t *box, int m)
{
    for (int k = 1; k < box->rank; k++) {
        if (!is_outer(&box->dim[k], &box->dim[k - 1], box->n_maps, m)) {
            continue;
        }
        heft__dim_t moved;
        copy_dim(&moved, &box->dim[k], box->n_maps);
        int i = k;
        for (; i > 0 && is_outer(&moved, &box->dim[i - 1], box->n_maps, m); i--) {
            copy_dim(&box->dim[i], &box->dim[i - 1], box->n_maps);
        }
        copy_dim(&box->dim[i], &moved, box->n_maps);
    }
}

void heft__box_normalize(heft__box_t *box, int m)
{
    int n = 0;
    for (int k = 0; k < box->rank; k++) {
        if (box->dim[k].extent == 1) {
            continue;
        }
        if (is_backward(&box->dim[k], box->n_maps, m)) {
            flip_dim(box, &box->dim[k]);
        }
        if (n != k) {
            copy_dim(&box->dim[n], &box->dim[k], box->n_maps);
        }
        n++;
    }
    box->rank = n;
    sort_dims(box, m);
    n = 0;
    for (int k = 0; k < box->rank; k++) {
        if (n > 0 && is_one_run(&box->dim[n - 1], &box->dim[k], box->n_maps)) {
            int64_t extent = box->dim[n - 1].extent * box->dim[k].extent;
            copy_dim(&box->dim[n - 1], &box->dim[k], box->n_maps);
            box->dim[n - 1].extent = extent;
            continue;
        }
        if (n != k) {
            copy_dim(&box->dim[n], &box->dim[k], box->n_maps);
        }
        n++;
    }
    box->rank = n;
}

heft_status_t heft__box_limit_rank(const heft__box_t *box, int max_rank, heft__box_sink_t sink,
                                   void *arg, heft_error_t *err)
{
    if (box->rank <= max_rank) {
        return sink(arg, box, err);
    }
    int least = 0;
    for (int k = 1; k < box->rank; k++) {
        if (box->dim[k].extent < box->dim[least].extent) {
            least = k;
        }
    }
    const heft__dim_t dim = box->dim[least];
    if (dim.extent > HEFT__REGION_MAX_PARTS) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "%d dimensions, at most %d, and the shortest has extent %lld",
                               (int)box->rank, max_rank, (long long)dim.extent);
    }
    heft__box_t part = *box;
    part.rank--;
    for (int k = least; k < part.rank; k++) {
        copy_dim(&part.dim[k], &box->dim[k + 1], box->n_maps);
    }
    for (int64_t i = 0; i < dim.extent; i++) {
        heft_status_t status = heft__box_limit_rank(&part, max_rank, sink, arg, err);
        if (status != HEFT_OK) {
            return status;
        }
        for (int j = 0; j < part.n_maps; j++) {
            part.offset[j] += dim.stride[j];
        }
    }
    return HEFT_OK;
}

heft__strip_t heft__strip_from_box(heft__arena_t *arena, const heft__box_t *box)
{
    heft__strip_t strip = { .rank = (uint16_t)box->rank, .n_maps = (uint16_t)box->n_maps };
    strip.v = heft__arena_alloc(arena, heft__strip_len(box->rank, box->n_maps) * sizeof *strip.v);
    if (strip.v == NULL) {
        return strip;
    }
    int64_t *v = strip.v;
    for (int k = 0; k < box->rank; k++) {
        *v++ = box->dim[k].extent;
    }
    for (int m = 0; m < box->n_maps; m++) {
        *v++ = box->offset[m];
        for (int k = 0; k < box->rank; k++) {
            *v++ = box->dim[k].stride[m];
        }
    }
    return strip;
}

void heft__strip_to_box(const heft__strip_t *strip, heft__box_t *box_out)
{
    box_out->rank = strip->rank;
    box_out->n_maps = strip->n_maps;
    const int64_t *v = strip->v;
    for (int k = 0; k < strip->rank; k++) {
        box_out->dim[k].extent = *v++;
    }
    for (int m = 0; m < strip->n_maps; m++) {
        box_out->offset[m] = *v++;
        for (int k = 0; k < strip->rank; k++) {
            box_out->dim[k].stride[m] = *v++;
        }
    }
}
