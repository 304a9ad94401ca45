/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Later wins: new pieces take the place of what defined their elements before. What is replaced in
 * a parameter is remembered, with how the two values compare; a value that is lost, so that it can
 * be compared with what took its place, as a piece of its own.
 */
#include "tape/folding.h"

#include <string.h>

/* Tags of the strips in which overwritten elements are collected: how the values compare. */
enum { IS_SAME = 1, WAS_CONSTANT = 2, IS_UPDATE = 4 };

/* A value read from a source is gone, and another one is there. */
static bool is_lost(uint32_t tag)
{
    return tag == 0;
}

typedef struct comparing {
    heft__folding_t *f;
    const heft__origin_t *earlier;
    const heft__origin_t *later;
    bool same_origin;
    heft__strip_list_t *lost;
} comparing_t;

/* Map a and map b of a box have the same values. */
static bool equal_maps(const heft__box_t *box, int a, int b)
{
    bool equal = box->offset[a] == box->offset[b];
    for (int k = 0; k < box->rank && equal; k++) {
        equal = box->dim[k].extent == 1 || box->dim[k].stride[a] == box->dim[k].stride[b];
    }
    return equal;
}

/* Is source s of the earlier value also a source of the later one, element by element? */
static bool is_kept(const comparing_t *c, const heft__box_t *box, uint32_t s)
{
    const heft__src_id_t *id = &c->earlier->srcs[s];
    for (uint32_t t = 0; t < c->later->n_srcs; t++) {
        if (id->buffer == c->later->srcs[t].buffer &&
            id->opaque_write == c->later->srcs[t].opaque_write &&
            equal_maps(box, 1 + (int)s, 1 + (int)c->earlier->n_srcs + (int)t)) {
            return true;
        }
    }
    return false;
}

static uint32_t compare_values(const comparing_t *c, const heft__box_t *box)
{
    uint32_t n = c->earlier->n_srcs;
    bool same = c->same_origin;
    bool update = n > 0;
    for (uint32_t s = 0; s < n; s++) {
        same = same && equal_maps(box, 1 + (int)s, 1 + (int)(n + s));
        update = update && is_kept(c, box, s);
    }
    return (same ? IS_SAME : 0u) | (n == 0 ? WAS_CONSTANT : 0u) | (update ? IS_UPDATE : 0u);
}

static heft_status_t push_lost(void *arg, const heft__box_t *box, heft_error_t *err)
{
    comparing_t *c = arg;
    heft__strip_t strip = heft__strip_from_box(&c->f->arena, box);
    if (strip.v == NULL) {
        return heft__error_nomem(err, sizeof *box);
    }
    return heft__strip_list_push(c->lost, &strip, err);
}

/* Maps of a box: the element, sources of the earlier value, sources of the later one. */
static heft_status_t take_lost(void *arg, const heft__box_t *box, heft_error_t *err)
{
    comparing_t *c = arg;
    uint32_t tag = compare_values(c, box);
    heft__box_t one = *box;
    one.n_maps = is_lost(tag) ? 1 + (int32_t)c->earlier->n_srcs : 1;
    heft__box_normalize(&one, 0);
    size_t first = c->lost->n;
    heft_status_t status = heft__box_limit_rank(&one, HEFT_MAX_DIMS, push_lost, c, err);
    for (size_t i = first; i < c->lost->n; i++) {
        c->lost->items[i].tag = tag;
    }
    return status;
}

static heft_status_t record(heft__folding_t *f, const heft__strip_t *strip, uint32_t buffer,
                            const heft__strip_t *old, heft_error_t *err)
{
    heft__overwrite_list_t *list = &f->overwrites;
    void *items = list->items;
    if (!heft__grow(&items, &list->cap, list->n + 1, sizeof *list->items)) {
        return heft__error_nomem(err, sizeof *list->items);
    }
    list->items = items;
    heft__overwrite_t *item = &list->items[list->n++];
    item->earlier = *strip;
    item->earlier.tag = old->tag;
    item->earlier.note = old->note;
    heft__fold_overwrite_t *out = &item->out;
    *out = (heft__fold_overwrite_t){ .buffer = buffer,
                                     .earlier_write = old->note,
                                     .later_write = f->write,
                                     .is_same = (strip->tag & IS_SAME) != 0,
                                     .was_constant = (strip->tag & WAS_CONSTANT) != 0,
                                     .is_update = (strip->tag & IS_UPDATE) != 0 };
    out->region.rank = strip->rank;
    out->region.offset = *heft__strip_map(strip, 0);
    memcpy(out->region.extent, strip->v, strip->rank * sizeof strip->v[0]);
    memcpy(out->region.stride, heft__strip_map(strip, 0) + 1, strip->rank * sizeof strip->v[0]);
    return HEFT_OK;
}

/* Remember what of `old` the new pieces replace. */
static heft_status_t remember(heft__folding_t *f, uint32_t buffer, const heft__strip_t *old,
                              const heft__box_t *old_box, heft_error_t *err)
{
    heft__strip_list_t *lost = &f->lost;
    comparing_t c = { .f = f, .earlier = &f->origins[old->tag], .lost = lost };
    lost->n = 0;
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < f->results.n && status == HEFT_OK; i++) {
        heft__box_t box;
        heft__strip_to_box(&f->results.items[i], &box);
        c.later = &f->origins[f->results.items[i].tag];
        c.same_origin = old->tag == f->results.items[i].tag;
        status = heft__box_join(&f->work, old_box, &box, take_lost, &c, err);
    }
    if (status == HEFT_OK) {
        status = heft__strips_coalesce(&f->arena, lost->items, &lost->n, err);
    }
    for (size_t i = 0; i < lost->n && status == HEFT_OK; i++) {
        status = record(f, &lost->items[i], buffer, old, err);
    }
    return status;
}

/* ---- replacing ---- */

static heft_status_t push_remain(void *arg, const heft__box_t *box, heft_error_t *err)
{
    heft__folding_t *f = arg;
    heft__strip_t strip = heft__strip_from_box(&f->arena, box);
    if (strip.v == NULL) {
        return heft__error_nomem(err, sizeof *box);
    }
    return heft__strip_list_push(&f->remains, &strip, err);
}

static heft_status_t take_remain(void *arg, const heft__box_t *box, heft_error_t *err)
{
    heft__box_t one = *box;
    heft__box_normalize(&one, 0);
    return heft__box_limit_rank(&one, HEFT_MAX_DIMS, push_remain, arg, err);
}

static heft_status_t add_definer(heft__folding_t *f, uint32_t buffer, const heft__strip_t *strip,
                                 heft_error_t *err)
{
    heft__definers_t *definers = &f->definers[buffer];
    if (definers->n >= f->max_pieces) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "%s comes in more than %u pieces",
                               heft__tape_label(f->tape, buffer).text, (unsigned)f->max_pieces);
    }
    const heft__definer_t item = { .place = heft__definers_place_strip(definers, strip),
                                   .strip = (uint32_t)f->strips.n };
    heft_status_t status = heft__strip_list_push(&f->strips, strip, err);
    return status == HEFT_OK ? heft__definers_add(&f->arena, definers, &item, err) : status;
}

/* Take the elements of dst away from one definer of a buffer, if it has any. */
static heft_status_t displace(heft__folding_t *f, uint32_t buffer, const heft__box_t *dst,
                              const heft__definer_t *item, uint64_t *n_wasted, heft_error_t *err)
{
    const heft__strip_t old = f->strips.items[item->strip];
    heft__box_t box;
    heft__strip_to_box(&old, &box);
    f->remains.n = 0;
    bool is_disjoint = false;
    heft_status_t status =
        heft__box_subtract(&f->work, &box, dst, take_remain, f, &is_disjoint, err);
    if (status != HEFT_OK || is_disjoint) {
        *n_wasted += is_disjoint;
        return status;
    }
    if (f->tape->buffers[buffer].kind == HEFT_BUFFER_PARAM) {
        status = remember(f, buffer, &old, &box, err);
    }
    for (size_t i = 0; i < f->remains.n; i++) {
        f->remains.items[i].tag = old.tag;
        f->remains.items[i].note = old.note;
    }
    if (status == HEFT_OK) {
        status = heft__strips_coalesce(&f->arena, f->remains.items, &f->remains.n, err);
    }
    heft__definers_remove(&f->definers[buffer], item);
    for (size_t i = 0; i < f->remains.n && status == HEFT_OK; i++) {
        status = add_definer(f, buffer, &f->remains.items[i], err);
    }
    return status;
}

static heft_status_t define(heft__folding_t *f, const heft__tape_view_t *dst, heft_error_t *err)
{
    heft__box_t box;
    box.rank = dst->rank;
    box.n_maps = 1;
    box.offset[0] = dst->offset;
    for (int k = 0; k < dst->rank; k++) {
        box.dim[k].extent = dst->extent[k];
        box.dim[k].stride[0] = dst->stride[k];
    }
    heft__box_normalize(&box, 0);
    heft__definers_t *definers = &f->definers[dst->buffer];
    const heft__place_t place = heft__definers_place_box(definers, &box);
    heft_status_t status = heft__definers_find(definers, &place, &f->found, err);
    uint64_t n_wasted = 0;
    for (size_t i = 0; i < f->found.n && status == HEFT_OK; i++) {
        status = displace(f, dst->buffer, &box, &f->found.items[i], &n_wasted, err);
    }
    if (status == HEFT_OK && n_wasted > 0) {
        status = heft__definers_tune(&f->arena, definers, f->strips.items, &box, n_wasted,
                                     f->tune_after, &f->found, err);
    }
    for (size_t i = 0; i < f->results.n && status == HEFT_OK; i++) {
        status = add_definer(f, dst->buffer, &f->results.items[i], err);
    }
    return status;
}

heft_status_t heft__folding_define(heft__folding_t *f, const heft__tape_view_t *dst,
                                   heft_error_t *err)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = define(f, dst, &why);
    if (status == HEFT_ERR_LIMIT) {
        return heft__folding_fail(f, status, err, "%s", why.message);
    }
    if (status != HEFT_OK && err != NULL) {
        *err = why;
    }
    return status;
}
