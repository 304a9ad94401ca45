/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolving a write: what its sources read is looked up in the definers of the buffers they read.
 *
 * A write starts as one part, with the maps of its destination and of every source view. An operand
 * in a source tensor is resolved as it is. An operand in a temporary or parameter is joined with
 * each definer that it meets; the definer's sources take its place, and the part is split
 * accordingly. All operands are resolved against the definers before the write, so a write in place
 * reads the old values. In the end programs are composed and equal sources shared.
 */
#include "tape/folding.h"

#include <stdio.h>
#include <string.h>

static heft_status_t push_part(heft__part_list_t *list, const heft__part_t *part, heft_error_t *err)
{
    void *items = list->items;
    if (!heft__grow(&items, &list->cap, list->n + 1, sizeof *list->items)) {
        return heft__error_nomem(err, sizeof *list->items);
    }
    list->items = items;
    list->items[list->n++] = *part;
    return HEFT_OK;
}

static int64_t count_indices(const heft__box_t *box)
{
    int64_t n = 1;
    for (int k = 0; k < box->rank; k++) {
        n *= box->dim[k].extent;
    }
    return n;
}

/* ---- the first part ---- */

static void add_view(heft__box_t *box, const heft__tape_view_t *view)
{
    int m = box->n_maps++;
    box->offset[m] = view->offset;
    for (int k = 0; k < view->rank; k++) {
        box->dim[k].stride[m] = view->stride[k];
    }
}

static heft_status_t start(heft__folding_t *f, const heft__tape_view_t *dst,
                           const heft__tape_view_t *srcs, uint32_t n_srcs, heft_error_t *err)
{
    heft__box_t box;
    box.rank = dst->rank;
    box.n_maps = 0;
    for (int k = 0; k < dst->rank; k++) {
        box.dim[k].extent = dst->extent[k];
    }
    add_view(&box, dst);
    for (uint32_t j = 0; j < n_srcs; j++) {
        add_view(&box, &srcs[j]);
    }
    heft__box_normalize(&box, 0);
    heft__part_t part = { .strip = heft__strip_from_box(&f->arena, &box) };
    if (part.strip.v == NULL) {
        return heft__error_nomem(err, sizeof box);
    }
    f->parts.n = 0;
    return push_part(&f->parts, &part, err);
}

/* ---- one operand ---- */

/* The strip as a box with map `key` first, the others behind it in order. */
static void box_with_key(const heft__strip_t *strip, int key, heft__box_t *box)
{
    box->rank = strip->rank;
    box->n_maps = strip->n_maps;
    for (int k = 0; k < strip->rank; k++) {
        box->dim[k].extent = strip->v[k];
    }
    for (int m = 0; m < strip->n_maps; m++) {
        const int64_t *map = heft__strip_map(strip, m);
        int to = m == key ? 0 : (m < key ? m + 1 : m);
        box->offset[to] = map[0];
        for (int k = 0; k < strip->rank; k++) {
            box->dim[k].stride[to] = map[1 + k];
        }
    }
}

typedef struct joining {
    heft__folding_t *f;
    const heft__part_t *part; /* being resolved */
    uint32_t operand;
    uint32_t origin; /* of the definer */
    int n_srcs;
    int64_t n_found; /* indices found so far, all definers together */
} joining_t;

static heft_status_t push_joined(void *arg, const heft__box_t *box, heft_error_t *err)
{
    joining_t *joining = arg;
    heft__folding_t *f = joining->f;
    if (f->next_parts.n >= f->max_pieces) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "more than %u pieces", (unsigned)f->max_pieces);
    }
    heft__part_t part = *joining->part;
    part.strip = heft__strip_from_box(&f->arena, box);
    if (part.strip.v == NULL) {
        return heft__error_nomem(err, sizeof *box);
    }
    return push_part(&f->next_parts, &part, err);
}

/*
 * A box of the join has the maps: key, dst, resolved, later views, sources of the definer. The part
 * made of it has: dst, resolved, sources of the definer, later views.
 */
static heft_status_t take_joined(void *arg, const heft__box_t *box, heft_error_t *err)
{
    joining_t *joining = arg;
    int n_head = 1 + (int)joining->part->n_resolved;
    int n_srcs = joining->n_srcs;
    int n_later = box->n_maps - 1 - n_head - n_srcs;
    int from[HEFT__BOX_MAPS];
    int n = 0;
    for (int m = 0; m < n_head; m++) {
        from[n++] = 1 + m;
    }
    for (int m = 0; m < n_srcs; m++) {
        from[n++] = 1 + n_head + n_later + m;
    }
    for (int m = 0; m < n_later; m++) {
        from[n++] = 1 + n_head + m;
    }
    heft__box_t out;
    out.rank = box->rank;
    out.n_maps = n;
    for (int m = 0; m < n; m++) {
        out.offset[m] = box->offset[from[m]];
    }
    for (int k = 0; k < box->rank; k++) {
        out.dim[k].extent = box->dim[k].extent;
        for (int m = 0; m < n; m++) {
            out.dim[k].stride[m] = box->dim[k].stride[from[m]];
        }
    }
    joining->n_found += count_indices(box);
    heft__box_normalize(&out, 0);
    heft__part_t part = *joining->part;
    part.n_resolved += (uint32_t)n_srcs;
    part.origin[joining->operand] = joining->origin;
    joining_t inner = *joining;
    inner.part = &part;
    return heft__box_limit_rank(&out, HEFT_MAX_DIMS, push_joined, &inner, err);
}

/* The first element of src that nothing defines, for the message. */
static heft_status_t find_undefined(heft__folding_t *f, const heft__tape_view_t *src,
                                    int64_t *element_out, heft_error_t *err)
{
    heft__region_list_t list = { 0 };
    const heft_view_t view = heft__tape_view_expand(src);
    heft_status_t status = heft__region_from_source_view(&view, &list, err);
    if (status == HEFT_OK) {
        status = heft__definers_list(&f->definers[src->buffer], &f->found, err);
    }
    for (size_t i = 0; i < f->found.n && list.n > 0 && status == HEFT_OK; i++) {
        heft__box_t box;
        heft__strip_to_box(&f->strips.items[f->found.items[i].strip], &box);
        heft__region_t defined = { .rank = box.rank, .offset = box.offset[0] };
        for (int k = 0; k < box.rank; k++) {
            defined.extent[k] = box.dim[k].extent;
            defined.stride[k] = box.dim[k].stride[0];
        }
        status = heft__region_list_subtract(&list, &defined, err);
    }
    if (status == HEFT_OK && list.n == 0) {
        status = HEFT_BUG(err, "nothing undefined in a read that found too little");
    }
    for (size_t i = 0; i < list.n && status == HEFT_OK; i++) {
        int64_t first = list.items[i].offset;
        *element_out = i == 0 ? first : heft__min_i64(*element_out, first);
    }
    heft__region_list_fini(&list);
    return status;
}

static heft_status_t fail_undefined(heft__folding_t *f, const heft__tape_view_t *src,
                                    heft_error_t *err)
{
    int64_t element = 0;
    heft_status_t status = find_undefined(f, src, &element, err);
    if (status != HEFT_OK) {
        return status;
    }
    const heft_shape_t *shape = &f->tape->buffers[src->buffer].shape;
    char index[96] = "";
    size_t at = sizeof index - 1;
    for (int k = shape->rank - 1; k >= 0 && at > 24; k--) {
        char text[24];
        int len = snprintf(text, sizeof text, "%s%lld", k > 0 ? "," : "",
                           (long long)(element % shape->extent[k]));
        element /= shape->extent[k];
        at -= (size_t)len;
        memcpy(index + at, text, (size_t)len);
    }
    return heft__folding_fail(f, HEFT_ERR_ARGUMENT, err, "reads %s at (%s), which nothing wrote",
                              heft__tape_label(f->tape, src->buffer).text, index + at);
}

static heft_status_t join_definers(heft__folding_t *f, const heft__tape_view_t *src,
                                   joining_t *joining, heft_error_t *err)
{
    const heft__part_t *part = joining->part;
    heft__box_t box;
    box_with_key(&part->strip, 1 + (int)part->n_resolved, &box);
    heft__box_normalize(&box, 0);
    const heft__definers_t *definers = &f->definers[src->buffer];
    const heft__place_t place = heft__definers_place_box(definers, &box);
    heft_status_t status = heft__definers_find(definers, &place, &f->found, err);
    for (size_t i = 0; i < f->found.n && status == HEFT_OK; i++) {
        const heft__strip_t *strip = &f->strips.items[f->found.items[i].strip];
        heft__box_t definer;
        heft__strip_to_box(strip, &definer);
        joining->origin = strip->tag;
        joining->n_srcs = definer.n_maps - 1;
        status = heft__box_join(&f->work, &box, &definer, take_joined, joining, err);
    }
    if (status == HEFT_OK && joining->n_found != count_indices(&box)) {
        return fail_undefined(f, src, err);
    }
    return status;
}

/* An operand in a source tensor: its view is its source. */
static heft_status_t resolve_source(heft__folding_t *f, const heft__tape_view_t *src, uint32_t j,
                                    heft_error_t *err)
{
    const heft__origin_t plain = { .n_srcs = 1, .srcs = { { src->buffer, HEFT__NO_WRITE } } };
    uint32_t origin;
    heft_status_t status = heft__folding_intern_origin(f, &plain, &origin, err);
    for (size_t i = 0; i < f->parts.n && status == HEFT_OK; i++) {
        f->parts.items[i].origin[j] = origin;
        f->parts.items[i].n_resolved++;
    }
    return status;
}

static heft_status_t resolve_operand(heft__folding_t *f, const heft__tape_view_t *src, uint32_t j,
                                     heft_error_t *err)
{
    if (f->tape->buffers[src->buffer].kind == HEFT_BUFFER_SOURCE) {
        return resolve_source(f, src, j, err);
    }
    f->next_parts.n = 0;
    for (size_t i = 0; i < f->parts.n; i++) {
        joining_t joining = { .f = f, .part = &f->parts.items[i], .operand = j };
        heft_status_t status = join_definers(f, src, &joining, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    heft__part_list_t done = f->parts;
    f->parts = f->next_parts;
    f->next_parts = done;
    return HEFT_OK;
}

/* ---- the result ---- */

typedef struct merged {
    heft__origin_t origin;
    heft__program_part_t parts[HEFT_MAX_SOURCES];
    int map[HEFT_MAX_SOURCES]; /* map of the part's strip for each source */
} merged_t;

static bool equal_maps(const heft__strip_t *strip, int a, int b)
{
    return memcmp(heft__strip_map(strip, a), heft__strip_map(strip, b),
                  (1 + (size_t)strip->rank) * sizeof strip->v[0]) == 0;
}

/* The number of a source among those merged so far, added if it is new. */
static heft_status_t merge_source(const heft__strip_t *strip, heft__src_id_t id, int map,
                                  merged_t *merged, uint16_t *arg_out, heft_error_t *err)
{
    heft__origin_t *origin = &merged->origin;
    for (uint32_t i = 0; i < origin->n_srcs; i++) {
        if (origin->srcs[i].buffer == id.buffer &&
            origin->srcs[i].opaque_write == id.opaque_write &&
            equal_maps(strip, merged->map[i], map)) {
            *arg_out = (uint16_t)i;
            return HEFT_OK;
        }
    }
    if (origin->n_srcs == HEFT_MAX_SOURCES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "more than %d sources for one element",
                               HEFT_MAX_SOURCES);
    }
    merged->map[origin->n_srcs] = map;
    origin->srcs[origin->n_srcs] = id;
    *arg_out = (uint16_t)origin->n_srcs++;
    return HEFT_OK;
}

static bool is_loaded(const heft_op_t *ops, uint32_t n_ops, uint32_t j)
{
    bool loaded = n_ops == 0 && j == 0;
    for (uint32_t i = 0; i < n_ops; i++) {
        loaded = loaded || (ops[i].code == HEFT_OP_LOAD && ops[i].arg == j);
    }
    return loaded;
}

static heft_status_t merge_operands(heft__folding_t *f, const heft__part_t *part, uint32_t n_srcs,
                                    const heft_op_t *ops, uint32_t n_ops, merged_t *merged,
                                    heft_error_t *err)
{
    int map = 1;
    *merged = (merged_t){ .origin = { .n_srcs = 0 } };
    for (uint32_t j = 0; j < n_srcs; j++) {
        const heft__origin_t *origin = &f->origins[part->origin[j]];
        const heft__program_t *program = &f->programs[origin->program];
        merged->parts[j].ops = program->ops;
        merged->parts[j].n_ops = program->n_ops;
        if (!is_loaded(ops, n_ops, j)) {
            map += (int)origin->n_srcs;
            continue;
        }
        for (uint32_t s = 0; s < origin->n_srcs; s++) {
            heft_status_t status = merge_source(&part->strip, origin->srcs[s], map++, merged,
                                                &merged->parts[j].arg[s], err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

/* The finished strip: the destination and the merged sources. */
static heft_status_t push_result(heft__folding_t *f, const heft__part_t *part,
                                 const merged_t *merged, uint32_t tag, heft_error_t *err)
{
    heft__strip_t strip = part->strip;
    bool is_same = merged->origin.n_srcs + 1 == strip.n_maps;
    for (uint32_t i = 0; i < merged->origin.n_srcs; i++) {
        is_same = is_same && merged->map[i] == (int)i + 1;
    }
    if (!is_same) {
        heft__box_t box;
        heft__box_t out;
        heft__strip_to_box(&strip, &box);
        out.rank = box.rank;
        out.n_maps = 1 + (int)merged->origin.n_srcs;
        for (int m = 0; m < out.n_maps; m++) {
            int from = m == 0 ? 0 : merged->map[m - 1];
            out.offset[m] = box.offset[from];
            for (int k = 0; k < box.rank; k++) {
                out.dim[k].extent = box.dim[k].extent;
                out.dim[k].stride[m] = box.dim[k].stride[from];
            }
        }
        heft__box_normalize(&out, 0);
        strip = heft__strip_from_box(&f->arena, &out);
        if (strip.v == NULL) {
            return heft__error_nomem(err, sizeof out);
        }
    }
    strip.tag = tag;
    strip.note = f->write;
    return heft__strip_list_push(&f->results, &strip, err);
}

static heft_status_t finish_part(heft__folding_t *f, const heft__part_t *part, uint32_t n_srcs,
                                 const heft_op_t *ops, uint32_t n_ops, heft_error_t *err)
{
    merged_t merged;
    heft__program_t program;
    uint32_t tag;
    heft_status_t status = merge_operands(f, part, n_srcs, ops, n_ops, &merged, err);
    if (status == HEFT_OK) {
        status = heft__program_compose(ops, n_ops, merged.parts, &program, err);
    }
    if (status == HEFT_OK) {
        status = heft__folding_intern_program(f, &program, &merged.origin.program, err);
    }
    if (status == HEFT_OK) {
        status = heft__folding_intern_origin(f, &merged.origin, &tag, err);
    }
    return status == HEFT_OK ? push_result(f, part, &merged, tag, err) : status;
}

static heft_status_t resolve(heft__folding_t *f, const heft__tape_view_t *dst,
                             const heft__tape_view_t *srcs, uint32_t n_srcs, const heft_op_t *ops,
                             uint32_t n_ops, heft_error_t *err)
{
    heft_status_t status = start(f, dst, srcs, n_srcs, err);
    for (uint32_t j = 0; j < n_srcs && status == HEFT_OK; j++) {
        status = resolve_operand(f, &srcs[j], j, err);
    }
    f->results.n = 0;
    for (size_t i = 0; i < f->parts.n && status == HEFT_OK; i++) {
        status = finish_part(f, &f->parts.items[i], n_srcs, ops, n_ops, err);
    }
    if (status == HEFT_OK) {
        status = heft__strips_coalesce(&f->arena, f->results.items, &f->results.n, err);
    }
    return status;
}

heft_status_t heft__folding_resolve(heft__folding_t *f, const heft__tape_view_t *dst,
                                    const heft__tape_view_t *srcs, uint32_t n_srcs,
                                    const heft_op_t *ops, uint32_t n_ops, heft_error_t *err)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = resolve(f, dst, srcs, n_srcs, ops, n_ops, &why);
    if (status == HEFT_ERR_LIMIT) {
        return heft__folding_fail(f, status, err, "%s", why.message);
    }
    if (status != HEFT_OK && err != NULL) {
        *err = why;
    }
    return status;
}
