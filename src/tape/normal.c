/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The normal form of a tape: what it does, without how it was recorded. Sources and parameters come
 * first, by name; temporaries are anonymous runs of elements, numbered as writes first meet them;
 * views have few dimensions; writes that touch nothing are gone. Two recordings of one loader have
 * one normal form, however they numbered their buffers and cut their views.
 */
#include "tape/tape.h"

#include <stdlib.h>
#include <string.h>

#define NO_BUFFER UINT32_MAX

typedef struct normaliser {
    const heft_tape_t *from;
    heft_tape_t *to;
    uint32_t *numbers;  /* of the buffers of `from` in `to`, or NO_BUFFER */
    heft_view_t *views; /* scratch: destinations, then sources, of one write */
    size_t cap_views;
    heft_error_t *err;
} normaliser_t;

/* ---- buffers ---- */

typedef struct named {
    const heft_buffer_info_t *info;
    uint32_t from; /* number in the old tape, or NO_BUFFER */
} named_t;

static int by_kind_and_name(const void *a, const void *b)
{
    const named_t *x = a;
    const named_t *y = b;
    if (x->info->kind != y->info->kind) {
        return x->info->kind < y->info->kind ? -1 : 1;
    }
    return strcmp(x->info->name, y->info->name);
}

static heft_status_t add_named(normaliser_t *n, const heft_buffer_info_t *more, size_t n_more)
{
    size_t count = 0;
    named_t *named = heft__calloc(n->from->n_buffers + n_more + 1, sizeof *named);
    if (named == NULL) {
        return heft__error_nomem(n->err, (n->from->n_buffers + n_more) * sizeof *named);
    }
    for (size_t b = 0; b < n->from->n_buffers; b++) {
        n->numbers[b] = NO_BUFFER;
        if (n->from->buffers[b].kind != HEFT_BUFFER_TEMP) {
            named[count++] = (named_t){ .info = &n->from->buffers[b], .from = (uint32_t)b };
        }
    }
    for (size_t i = 0; i < n_more; i++) {
        named[count++] = (named_t){ .info = &more[i], .from = NO_BUFFER };
    }
    qsort(named, count, sizeof *named, by_kind_and_name);
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < count && status == HEFT_OK; i++) {
        uint32_t buffer = 0;
        status = heft__tape_add_storage(n->to, named[i].info, &buffer, n->err);
        if (named[i].from != NO_BUFFER) {
            n->numbers[named[i].from] = buffer;
        }
    }
    heft__free(named);
    return status;
}

/* A temporary is met: a run of as many elements. */
static heft_status_t renumber(normaliser_t *n, uint32_t *buffer)
{
    uint32_t *number = &n->numbers[*buffer];
    if (*number == NO_BUFFER) {
        const heft_buffer_info_t *old = &n->from->buffers[*buffer];
        const heft_buffer_info_t info = { .name = "",
                                          .kind = HEFT_BUFFER_TEMP,
                                          .dtype = old->dtype,
                                          .shape = { .rank = 1, .extent = { old->n_elems } },
                                          .n_elems = old->n_elems };
        heft_status_t status = heft__tape_add_storage(n->to, &info, number, n->err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    *buffer = *number;
    return HEFT_OK;
}

/* ---- writes ---- */

static bool is_empty(const heft__tape_view_t *view)
{
    for (int k = 0; k < view->rank; k++) {
        if (view->extent[k] == 0) {
            return true;
        }
    }
    return false;
}

/* Views of one write that run together: element by element, in the order of the destination. */
static void simplify_together(heft_view_t *views, uint32_t n_views)
{
    heft__box_t box = { .rank = views[0].rank, .n_maps = (int32_t)n_views };
    for (uint32_t m = 0; m < n_views; m++) {
        box.offset[m] = views[m].offset;
        for (int k = 0; k < box.rank; k++) {
            box.dim[k].extent = views[0].extent[k];
            box.dim[k].stride[m] = views[m].stride[k];
        }
    }
    heft__box_normalize(&box, 0);
    for (uint32_t m = 0; m < n_views; m++) {
        views[m] =
            (heft_view_t){ .buffer = views[m].buffer, .rank = box.rank, .offset = box.offset[m] };
        for (int k = 0; k < box.rank; k++) {
            views[m].extent[k] = box.dim[k].extent;
            views[m].stride[k] = box.dim[k].stride[m];
        }
    }
}

/* An operation sees the shape of its views, so they stay; only what cannot be seen is fixed: the
 * strides of one index, and the place of an empty view. */
static void simplify_alone(heft_view_t *view)
{
    int64_t count = 1;
    for (int k = 0; k < view->rank; k++) {
        count *= view->extent[k];
    }
    view->offset = count == 0 ? 0 : view->offset;
    int64_t run = 1;
    for (int k = view->rank; k-- > 0;) {
        view->stride[k] = count == 0 || view->extent[k] == 1 ? run : view->stride[k];
        run *= view->extent[k];
    }
}

static heft_status_t take_views(normaliser_t *n, const heft__write_t *write)
{
    const size_t count = (size_t)write->n_dsts + write->n_srcs;
    void *items = n->views;
    if (!heft__grow(&items, &n->cap_views, count, sizeof *n->views)) {
        return heft__error_nomem(n->err, count * sizeof *n->views);
    }
    n->views = items;
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < count && status == HEFT_OK; i++) {
        n->views[i] = heft__tape_view_expand(i < write->n_dsts ? &write->dsts[i]
                                                               : &write->srcs[i - write->n_dsts]);
        status = renumber(n, &n->views[i].buffer);
    }
    return status;
}

static heft_status_t add_write(normaliser_t *n, const heft__write_t *write)
{
    if (write->kind != HEFT_WRITE_OPAQUE && is_empty(&write->dsts[0])) {
        return HEFT_OK;
    }
    heft_status_t status = take_views(n, write);
    if (status != HEFT_OK) {
        return status;
    }
    const heft_view_t *srcs = n->views + write->n_dsts;
    if (write->kind == HEFT_WRITE_OPAQUE) {
        for (uint32_t i = 0; i < write->n_dsts + write->n_srcs; i++) {
            simplify_alone(&n->views[i]);
        }
        return heft_tape_opaque(n->to, write->op, n->views, write->n_dsts, srcs, write->n_srcs,
                                write->note, n->err);
    }
    simplify_together(n->views, 1 + write->n_srcs);
    const heft_op_t load = { .code = HEFT_OP_LOAD };
    return heft_tape_map(n->to, n->views, srcs, write->n_srcs,
                         write->n_ops > 0 ? write->ops : &load, write->n_ops > 0 ? write->n_ops : 1,
                         write->note, n->err);
}

heft_status_t heft__tape_normalise(const heft_tape_t *tape, const heft_buffer_info_t *more,
                                   size_t n_more, heft_tape_t **tape_out, heft_error_t *err)
{
    normaliser_t n = { .from = tape, .err = err };
    heft_status_t status = heft_tape_create(&n.to, err);
    n.numbers = heft__calloc(tape->n_buffers + 1, sizeof *n.numbers);
    if (status == HEFT_OK && n.numbers == NULL) {
        status = heft__error_nomem(err, tape->n_buffers * sizeof *n.numbers);
    }
    status = status == HEFT_OK ? add_named(&n, more, n_more) : status;
    for (size_t w = 0; w < tape->n_writes && status == HEFT_OK; w++) {
        status = add_write(&n, &tape->writes[w]);
    }
    heft__free(n.numbers);
    heft__free(n.views);
    if (status != HEFT_OK) {
        heft_tape_destroy(n.to);
        return status;
    }
    *tape_out = n.to;
    return HEFT_OK;
}
