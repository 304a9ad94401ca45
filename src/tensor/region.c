/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: the one-map case of boxes. Results of an operation are collected as strips in an arena,
 * merged, and only then appended to the caller's list, so that a failure changes nothing.
 */
#include "tensor/digits.h"

#include <stdio.h>
#include <string.h>

/* ---- lists ---- */

void heft__region_list_fini(heft__region_list_t *list)
{
    heft__free(list->items);
    *list = (heft__region_list_t){ 0 };
}

void heft__region_list_reset(heft__region_list_t *list)
{
    list->n = 0;
}

/* Room for so many more; false when out of memory. */
static bool reserve(heft__region_list_t *list, size_t more)
{
    size_t need;
    void *items = list->items;
    if (!heft__size_add(list->n, more, &need) ||
        !heft__grow(&items, &list->cap, need, sizeof *list->items)) {
        return false;
    }
    list->items = items;
    return true;
}

static bool append(heft__region_list_t *list, const heft__region_list_t *more)
{
    if (more->items == NULL) {
        return true; /* an empty list that never had any */
    }
    if (!reserve(list, more->n)) {
        return false;
    }
    for (size_t i = 0; i < more->n; i++) {
        list->items[list->n++] = more->items[i];
    }
    return true;
}

heft_status_t heft__region_list_add(heft__region_list_t *list, const heft__region_t *region,
                                    heft_error_t *err)
{
    if (region->is_empty) {
        return HEFT_OK;
    }
    const heft__region_t copy = *region;
    if (!reserve(list, 1)) {
        return heft__error_nomem(err, sizeof copy);
    }
    list->items[list->n++] = copy;
    return HEFT_OK;
}

int64_t heft__region_list_count(const heft__region_list_t *list)
{
    int64_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        n += heft__region_count(&list->items[i]);
    }
    return n;
}

/* ---- parts of a result ---- */

typedef struct parts {
    heft__arena_t arena;
    heft__strip_t *strips;
    size_t n;
    size_t cap;
} parts_t;

static void parts_init(parts_t *parts)
{
    *parts = (parts_t){ 0 };
    heft__arena_init(&parts->arena, 1024);
}

static void parts_fini(parts_t *parts)
{
    heft__free(parts->strips);
    heft__arena_fini(&parts->arena);
}

static heft_status_t parts_push(parts_t *parts, const heft__box_t *box, heft_error_t *err)
{
    void *items = parts->strips;
    if (!heft__grow(&items, &parts->cap, parts->n + 1, sizeof *parts->strips)) {
        return heft__error_nomem(err, sizeof *parts->strips);
    }
    parts->strips = items;
    heft__strip_t strip = heft__strip_from_box(&parts->arena, box);
    if (strip.v == NULL) {
        return heft__error_nomem(err, sizeof *box);
    }
    parts->strips[parts->n++] = strip;
    return HEFT_OK;
}

static heft_status_t push_limited(void *arg, const heft__box_t *box, heft_error_t *err)
{
    return parts_push(arg, box, err);
}

/* A sink: map 0 of the box alone. */
static heft_status_t push_part(void *arg, const heft__box_t *box, heft_error_t *err)
{
    heft__box_t one = *box;
    one.n_maps = 1;
    heft__box_normalize(&one, 0);
    return heft__box_limit_rank(&one, HEFT_MAX_DIMS, push_limited, arg, err);
}

static void region_from_strip(const heft__strip_t *strip, heft__region_t *region)
{
    *region = (heft__region_t){ .rank = strip->rank, .offset = strip->v[strip->rank] };
    for (int k = 0; k < strip->rank; k++) {
        region->extent[k] = strip->v[k];
        region->stride[k] = strip->v[strip->rank + 1 + k];
    }
}

/* Merge the parts and append them. */
static heft_status_t parts_finish(parts_t *parts, heft__region_list_t *list, heft_error_t *err)
{
    heft_status_t status = heft__strips_coalesce(&parts->arena, parts->strips, &parts->n, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (!reserve(list, parts->n)) {
        return heft__error_nomem(err, parts->n * sizeof *list->items);
    }
    for (size_t i = 0; i < parts->n; i++) {
        region_from_strip(&parts->strips[i], &list->items[list->n++]);
    }
    return HEFT_OK;
}

/* ---- from views ---- */

heft__region_t heft__region_whole(int64_t n_elems)
{
    heft__region_t region = { .rank = n_elems > 1 ? 1 : 0, .is_empty = n_elems <= 0 };
    if (n_elems > 1) {
        region.extent[0] = n_elems;
        region.stride[0] = 1;
    }
    return region;
}

/* A view as a box in the order of its dimensions: map 0 the element, map 1 the index, counted
 * row-major over the view. false: the view is empty. */
static bool box_from_view(const heft_view_t *view, heft__box_t *box)
{
    box->rank = view->rank;
    box->n_maps = 2;
    box->offset[0] = view->offset;
    box->offset[1] = 0;
    int64_t count = 1;
    for (int k = view->rank - 1; k >= 0; k--) {
        box->dim[k].extent = view->extent[k];
        box->dim[k].stride[0] = view->stride[k];
        box->dim[k].stride[1] = count;
        count *= view->extent[k];
    }
    return count != 0;
}

/* Each stride passes all that the inner dimensions reach, so no two indices meet. */
static bool is_nested(const heft__box_t *box)
{
    int64_t span = 0;
    for (int k = box->rank - 1; k >= 0; k--) {
        if (box->dim[k].stride[0] <= span) {
            return false;
        }
        span += (box->dim[k].extent - 1) * box->dim[k].stride[0];
    }
    return true;
}

static void print_index(char *out, size_t n, const heft_view_t *view, int64_t index)
{
    int64_t at[HEFT_MAX_DIMS];
    for (int k = view->rank - 1; k >= 0; k--) {
        at[k] = index % view->extent[k];
        index /= view->extent[k];
    }
    size_t len = 0;
    out[0] = '\0';
    for (int k = 0; k < view->rank && len < n; k++) {
        int put = snprintf(out + len, n - len, "%s%lld", k > 0 ? "," : "", (long long)at[k]);
        len += put > 0 ? (size_t)put : 0;
    }
}

/* A sink for the pairs of indices with equal elements: any pair of different ones is an error. */
static heft_status_t refuse_pair(void *arg, const heft__box_t *box, heft_error_t *err)
{
    const heft_view_t *view = arg;
    int64_t one = box->offset[1];
    int64_t two = box->offset[2];
    for (int k = 0; k < box->rank && one == two; k++) {
        one += box->dim[k].stride[1];
        two += box->dim[k].stride[2];
    }
    if (one == two) {
        return HEFT_OK;
    }
    char a[64];
    char b[64];
    print_index(a, sizeof a, view, one < two ? one : two);
    print_index(b, sizeof b, view, one < two ? two : one);
    return heft__error_set(err, HEFT_ERR_ARGUMENT,
                           "destination view: indices (%s) and (%s) are one element", a, b);
}

heft_status_t heft__region_from_view(const heft_view_t *view, heft__region_t *region_out,
                                     heft_error_t *err)
{
    heft__box_t box;
    if (!box_from_view(view, &box)) {
        *region_out = (heft__region_t){ .is_empty = true };
        return HEFT_OK;
    }
    heft__box_t region = box;
    region.n_maps = 1;
    heft__box_normalize(&region, 0);
    if (!is_nested(&region)) {
        for (int k = 0; k < view->rank; k++) {
            if (view->stride[k] == 0 && view->extent[k] > 1) {
                return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                       "destination view: dimension %d has stride 0 and extent "
                                       "%lld: one element for all its indices",
                                       k, (long long)view->extent[k]);
            }
        }
        heft__box_work_t work = { 0 };
        heft__box_t pairs = box;
        heft__box_normalize(&pairs, 0);
        heft_view_t copy = *view;
        heft_status_t status = heft__box_join(&work, &pairs, &pairs, refuse_pair, &copy, err);
        heft__box_work_fini(&work);
        if (status != HEFT_OK) {
            return status;
        }
    }
    *region_out = (heft__region_t){ .rank = region.rank, .offset = region.offset[0] };
    for (int k = 0; k < region.rank; k++) {
        region_out->extent[k] = region.dim[k].extent;
        region_out->stride[k] = region.dim[k].stride[0];
    }
    return HEFT_OK;
}

/* The parts of box, each a region without repetition, but not yet disjoint from one another. */
static heft_status_t split_box(const heft__box_t *box, heft__region_list_t *list, heft_error_t *err)
{
    heft__box_t point = { .rank = 0, .n_maps = 1 };
    heft__box_work_t work = { 0 };
    heft__radices_t radices;
    heft__steps_t steps;
    heft__steps_t none;
    heft__digit_set_t set = { 0 };
    heft__radices_choose(box, &point, box->offset[0], false, &radices, &steps, &none);
    heft_status_t status = heft__digits_make(&work, &radices, box, &steps, &set, err);
    for (size_t i = 0; i < set.n_parts && status == HEFT_OK; i++) {
        heft__digit_part_t part = heft__digit_part_get(&work, &set, i);
        heft__box_t one = { .rank = radices.n, .n_maps = 1, .offset = { radices.origin } };
        for (int t = 0; t < radices.n; t++) {
            one.offset[0] += part.lo[t] * radices.r[t];
            one.dim[t].extent = part.ext[t];
            one.dim[t].stride[0] = radices.r[t];
        }
        heft__box_normalize(&one, 0);
        heft__region_t region = { .rank = one.rank, .offset = one.offset[0] };
        for (int k = 0; k < one.rank; k++) {
            region.extent[k] = one.dim[k].extent;
            region.stride[k] = one.dim[k].stride[0];
        }
        status = heft__region_list_add(list, &region, err);
    }
    heft__box_work_fini(&work);
    return status;
}

/* Append what region adds to list, from item `first` on. */
static heft_status_t add_new_part(heft__region_list_t *list, size_t first,
                                  const heft__region_t *region, heft_error_t *err)
{
    heft__region_list_t rest = { 0 };
    heft_status_t status = heft__region_list_add(&rest, region, err);
    for (size_t i = first; i < list->n && rest.n > 0 && status == HEFT_OK; i++) {
        status = heft__region_list_subtract(&rest, &list->items[i], err);
    }
    for (size_t i = 0; i < rest.n && status == HEFT_OK; i++) {
        status = heft__region_list_add(list, &rest.items[i], err);
    }
    heft__region_list_fini(&rest);
    return status;
}

static heft_status_t add_overlapping(const heft__box_t *box, heft__region_list_t *list,
                                     heft_error_t *err)
{
    heft__region_list_t parts = { 0 };
    heft__region_list_t distinct = { 0 };
    heft_status_t status = split_box(box, &parts, err);
    for (size_t i = 0; i < parts.n && status == HEFT_OK; i++) {
        status = add_new_part(&distinct, 0, &parts.items[i], err);
    }
    if (status == HEFT_OK) {
        status = heft__region_list_coalesce(&distinct, err);
    }
    if (status == HEFT_OK && !append(list, &distinct)) {
        status = heft__error_nomem(err, distinct.n * sizeof *list->items);
    }
    heft__region_list_fini(&parts);
    heft__region_list_fini(&distinct);
    return status;
}

heft_status_t heft__region_from_source_view(const heft_view_t *view, heft__region_list_t *list,
                                            heft_error_t *err)
{
    heft__box_t box;
    if (!box_from_view(view, &box)) {
        return HEFT_OK;
    }
    box.n_maps = 1;
    for (int k = 0; k < box.rank; k++) {
        if (box.dim[k].stride[0] == 0) {
            box.dim[k].extent = 1;
        }
    }
    heft__box_normalize(&box, 0);
    if (!is_nested(&box)) {
        return add_overlapping(&box, list, err);
    }
    heft__region_t region = { .rank = box.rank, .offset = box.offset[0] };
    for (int k = 0; k < box.rank; k++) {
        region.extent[k] = box.dim[k].extent;
        region.stride[k] = box.dim[k].stride[0];
    }
    return heft__region_list_add(list, &region, err);
}

/* ---- algebra ---- */

int64_t heft__region_count(const heft__region_t *region)
{
    if (region->is_empty) {
        return 0;
    }
    int64_t n = 1;
    for (int k = 0; k < region->rank; k++) {
        n *= region->extent[k];
    }
    return n;
}

int64_t heft__region_last(const heft__region_t *region)
{
    int64_t last = region->offset;
    for (int k = 0; k < region->rank; k++) {
        last += (region->extent[k] - 1) * region->stride[k];
    }
    return last;
}

static bool is_equal(const heft__region_t *a, const heft__region_t *b)
{
    size_t bytes = (size_t)a->rank * sizeof a->extent[0];
    return a->rank == b->rank && a->offset == b->offset &&
           memcmp(a->extent, b->extent, bytes) == 0 && memcmp(a->stride, b->stride, bytes) == 0;
}

#define FOUND HEFT_IN_PROGRESS

static heft_status_t stop_at_first(void *arg, const heft__box_t *box, heft_error_t *err)
{
    (void)arg;
    (void)box;
    (void)err;
    return FOUND;
}

heft_status_t heft__region_overlaps(const heft__region_t *a, const heft__region_t *b,
                                    bool *overlaps_out, heft_error_t *err)
{
    if (a->is_empty || b->is_empty) {
        *overlaps_out = false;
        return HEFT_OK;
    }
    if (is_equal(a, b)) {
        *overlaps_out = true;
        return HEFT_OK;
    }
    heft__box_work_t work = { 0 };
    heft__box_t box_a;
    heft__box_t box_b;
    heft__box_from_region(a, &box_a);
    heft__box_from_region(b, &box_b);
    heft_status_t status = heft__box_join(&work, &box_a, &box_b, stop_at_first, NULL, err);
    heft__box_work_fini(&work);
    if (status != HEFT_OK && status != FOUND) {
        return status;
    }
    *overlaps_out = status == FOUND;
    return HEFT_OK;
}

heft_status_t heft__region_intersect(const heft__region_t *a, const heft__region_t *b,
                                     heft__region_list_t *list, heft_error_t *err)
{
    if (a->is_empty || b->is_empty) {
        return HEFT_OK;
    }
    if (is_equal(a, b)) {
        return heft__region_list_add(list, a, err);
    }
    heft__box_work_t work = { 0 };
    heft__box_t box_a;
    heft__box_t box_b;
    heft__box_from_region(a, &box_a);
    heft__box_from_region(b, &box_b);
    parts_t parts;
    parts_init(&parts);
    heft_status_t status = heft__box_join(&work, &box_a, &box_b, push_part, &parts, err);
    if (status == HEFT_OK) {
        status = parts_finish(&parts, list, err);
    }
    parts_fini(&parts);
    heft__box_work_fini(&work);
    return status;
}

heft_status_t heft__region_subtract(const heft__region_t *a, const heft__region_t *b,
                                    heft__region_list_t *list, heft_error_t *err)
{
    if (a->is_empty || (!b->is_empty && is_equal(a, b))) {
        return HEFT_OK;
    }
    if (b->is_empty) {
        return heft__region_list_add(list, a, err);
    }
    heft__box_work_t work = { 0 };
    heft__box_t box_a;
    heft__box_t box_b;
    heft__box_from_region(a, &box_a);
    heft__box_from_region(b, &box_b);
    parts_t parts;
    parts_init(&parts);
    bool is_disjoint = false;
    heft_status_t status =
        heft__box_subtract(&work, &box_a, &box_b, push_part, &parts, &is_disjoint, err);
    if (status == HEFT_OK) {
        status =
            is_disjoint ? heft__region_list_add(list, a, err) : parts_finish(&parts, list, err);
    }
    parts_fini(&parts);
    heft__box_work_fini(&work);
    return status;
}

heft_status_t heft__region_list_subtract(heft__region_list_t *list, const heft__region_t *b,
                                         heft_error_t *err)
{
    heft__region_list_t next = { 0 };
    for (size_t i = 0; i < list->n; i++) {
        heft_status_t status = heft__region_subtract(&list->items[i], b, &next, err);
        if (status != HEFT_OK) {
            heft__region_list_fini(&next);
            return status;
        }
    }
    heft__region_list_fini(list);
    *list = next;
    return HEFT_OK;
}

heft_status_t heft__region_list_coalesce(heft__region_list_t *list, heft_error_t *err)
{
    parts_t parts;
    parts_init(&parts);
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < list->n && status == HEFT_OK; i++) {
        heft__box_t box;
        heft__box_from_region(&list->items[i], &box);
        status = parts_push(&parts, &box, err);
    }
    if (status == HEFT_OK) {
        status = heft__strips_coalesce(&parts.arena, parts.strips, &parts.n, err);
    }
    if (status == HEFT_OK) {
        list->n = parts.n; /* never more than before */
        for (size_t i = 0; i < parts.n; i++) {
            region_from_strip(&parts.strips[i], &list->items[i]);
        }
    }
    parts_fini(&parts);
    return status;
}
