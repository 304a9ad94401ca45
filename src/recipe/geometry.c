/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Axes as arithmetic. A dimension is a tree; its index is a mixed-radix number of the named axes in
 * it, so a tree is an offset and one factor for each axis. A frame collects these over all
 * dimensions of a buffer.
 *
 * Extents are found in this order: what is written (x:N, `where`), then what a dimension leaves for
 * its one unknown axis. Everything else is checked against them.
 */
#include "recipe/compile.h"

#include <stdio.h>
#include <string.h>

#define FAIL(m, pos, status, ...) \
    heft__recipe_error((m)->recipe, (pos), (status), (m)->err, __VA_ARGS__)

static heft_status_t overflow(const heft__match_t *m, heft__pos_t pos)
{
    return FAIL(m, pos, HEFT_ERR_OVERFLOW, "extents of \"%s\" overflow", m->name);
}

static heft_status_t set_extent(heft__match_t *m, int32_t id, int64_t extent, heft__pos_t pos)
{
    if (extent < 0) {
        return FAIL(m, pos, HEFT_ERR_SHAPE, "axis `%s` of extent %lld", m->rule->axes[id],
                    (long long)extent);
    }
    if (m->extent[id] >= 0 && m->extent[id] != extent) {
        return FAIL(m, pos, HEFT_ERR_SHAPE, "\"%s\": axis `%s` is %lld here and %lld elsewhere",
                    m->name, m->rule->axes[id], (long long)extent, (long long)m->extent[id]);
    }
    m->extent[id] = extent;
    return HEFT_OK;
}

/* ---- what is written ---- */

static heft_status_t take_sizes(heft__match_t *m, const heft__axis_t *axis, bool is_target)
{
    if (axis->kind == AXIS_NAME && axis->size_slot != HEFT__NONE) {
        /* behind `pad`, a target's extent is the padded one: heft__place_init compares it */
        bool is_later = is_target && m->rule->axis_is_padded[axis->id];
        return is_later ? HEFT_OK : set_extent(m, axis->id, m->slots[axis->size_slot], axis->pos);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < axis->n_kids && status == HEFT_OK; i++) {
        status = take_sizes(m, axis->kids[i], is_target);
    }
    return status;
}

static heft_status_t take_all_sizes(heft__match_t *m, const heft__axes_t *axes, bool is_target)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < axes->n_dims && status == HEFT_OK; i++) {
        status = take_sizes(m, axes->dims[i], is_target);
    }
    return status;
}

/* The whole extent of a tree; -1 if an axis in it is not known. */
static heft_status_t measure(const heft__match_t *m, const heft__axis_t *axis, int64_t *out)
{
    switch (axis->kind) {
    case AXIS_NAME:
        *out = m->extent[axis->id];
        return HEFT_OK;
    case AXIS_DIGIT:
    case AXIS_RANGE:
        *out = m->slots[axis->size_slot];
        return *out >= 0 ? HEFT_OK
                         : FAIL(m, axis->pos, HEFT_ERR_SHAPE, "an extent of %lld", (long long)*out);
    case AXIS_UNIT:
        *out = 1;
        return HEFT_OK;
    case AXIS_GROUP:
        break;
    case AXIS_REST:
    default:
        return HEFT_BUG(m->err, "`...` has no extent of its own");
    }
    int64_t product = 1;
    bool is_known = true;
    for (uint32_t i = 0; i < axis->n_kids; i++) {
        int64_t kid = 0;
        heft_status_t status = measure(m, axis->kids[i], &kid);
        if (status != HEFT_OK) {
            return status;
        }
        is_known = is_known && kid >= 0;
        if (is_known && !heft__mul(product, kid, &product)) {
            return overflow(m, axis->pos);
        }
    }
    *out = is_known ? product : -1;
    return HEFT_OK;
}

/* An axis that `where` splits has the extent of its tree, where that is known. */
static heft_status_t take_tree_sizes(heft__match_t *m)
{
    const heft__refine_t *all[HEFT__MAX_AXES];
    uint32_t n = 0;
    for (const heft__refine_t *at = m->rule->refines; at != NULL; at = at->next) {
        if (at->kind == REFINE_AS && n < HEFT__MAX_AXES) {
            all[n++] = at;
        }
    }
    for (; n > 0; n--) { /* last first: a tree may hold axes that are split later */
        const heft__refine_t *refine = all[n - 1];
        int64_t extent = -1;
        heft_status_t status = measure(m, refine->tree, &extent);
        if (status == HEFT_OK && extent >= 0 && !m->rule->axis_is_padded[refine->id]) {
            status = set_extent(m, refine->id, extent, refine->pos);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__match_begin(heft__match_t *m)
{
    const heft__rule_t *rule = m->rule;
    for (int i = 0; i < HEFT__ALL_AXES; i++) {
        m->extent[i] = -1;
    }
    m->n_rest = 0;
    m->has_rest = false;
    m->dim = HEFT__NONE;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < rule->n_sources && status == HEFT_OK; i++) {
        status = take_all_sizes(m, &rule->sources[i].axes, false);
    }
    for (const heft__refine_t *at = rule->refines; at != NULL && status == HEFT_OK; at = at->next) {
        if (at->kind == REFINE_AS) {
            status = take_sizes(m, at->tree, false);
        } else if (at->kind == REFINE_SIZE) {
            status = set_extent(m, at->id, m->slots[at->size_slot], at->pos);
        }
    }
    for (uint32_t i = 0; i < rule->n_targets && status == HEFT_OK; i++) {
        status = take_all_sizes(m, &rule->targets[i].axes, true);
    }
    return status == HEFT_OK && rule->refines != NULL ? take_tree_sizes(m) : status;
}

/* ---- solving ---- */

/* The tree as the text has it, with extents: "(h:3 k)". For messages. */
static void print_tree(const heft__match_t *m, const heft__axis_t *axis, char *out, size_t bytes)
{
    size_t n = strlen(out);
    char number[32] = "?";
    if (axis->kind == AXIS_NAME && m->extent[axis->id] >= 0) {
        (void)snprintf(number, sizeof number, "%lld", (long long)m->extent[axis->id]);
    }
    if (axis->kind == AXIS_NAME) {
        (void)snprintf(out + n, bytes - n, "%s:%s", axis->name, number);
    } else if (axis->kind == AXIS_DIGIT) {
        (void)snprintf(out + n, bytes - n, "%lld:%lld", (long long)m->slots[axis->offset_slot],
                       (long long)m->slots[axis->size_slot]);
    } else if (axis->kind == AXIS_UNIT) {
        (void)snprintf(out + n, bytes - n, "1");
    } else {
        (void)snprintf(out + n, bytes - n, "%s", axis->kind == AXIS_GROUP ? "(" : "");
        for (uint32_t i = 0; i < axis->n_kids; i++) {
            n = strlen(out);
            (void)snprintf(out + n, bytes - n, "%s", i > 0 ? " " : "");
            print_tree(m, axis->kids[i], out, bytes);
        }
        n = strlen(out);
        if (axis->kind == AXIS_GROUP) {
            (void)snprintf(out + n, bytes - n, ")");
        } else {
            (void)snprintf(out + n, bytes - n, "@%lld/%lld", (long long)m->slots[axis->offset_slot],
                           (long long)m->slots[axis->size_slot]);
        }
    }
}

static heft_status_t does_not_fit(const heft__match_t *m, const heft__axis_t *axis, int64_t total)
{
    char tree[160] = "";
    print_tree(m, axis, tree, sizeof tree);
    char where[32] = "";
    if (m->dim >= 0) {
        (void)snprintf(where, sizeof where, " dimension %d", (int)m->dim);
    }
    return FAIL(m, axis->pos, HEFT_ERR_SHAPE, "\"%s\"%s: extent %lld does not fit %s", m->name,
                where, (long long)total, tree);
}

static heft_status_t solve(heft__match_t *m, const heft__axis_t *axis, int64_t total);

static heft_status_t solve_group(heft__match_t *m, const heft__axis_t *axis, int64_t total)
{
    const heft__axis_t *unknown = NULL;
    int64_t known = 1;
    for (uint32_t i = 0; i < axis->n_kids; i++) {
        int64_t kid = 0;
        heft_status_t status = measure(m, axis->kids[i], &kid);
        if (status != HEFT_OK) {
            return status;
        }
        if (kid < 0 && unknown != NULL) {
            return FAIL(m, axis->pos, HEFT_ERR_SHAPE,
                        "\"%s\": two unknown extents share %lld: write one of them", m->name,
                        (long long)total);
        }
        if (kid < 0) {
            unknown = axis->kids[i];
        } else if (!heft__mul(known, kid, &known)) {
            return overflow(m, axis->pos);
        }
    }
    if (unknown == NULL) {
        return known == total ? HEFT_OK : does_not_fit(m, axis, total);
    }
    if (known == 0 || total % known != 0) {
        return does_not_fit(m, axis, total);
    }
    return solve(m, unknown, total / known);
}

/* Give the tree's unknown axis its extent, so that the whole is `total`. */
static heft_status_t solve(heft__match_t *m, const heft__axis_t *axis, int64_t total)
{
    int64_t whole = 0;
    if (axis->kind == AXIS_GROUP) {
        return solve_group(m, axis, total);
    }
    heft_status_t status = measure(m, axis, &whole);
    if (status != HEFT_OK) {
        return status;
    }
    if (axis->kind == AXIS_NAME && whole < 0) {
        return set_extent(m, axis->id, total, axis->pos);
    }
    return whole == total ? HEFT_OK : does_not_fit(m, axis, total);
}

/* ---- placing ---- */

static heft_status_t place(const heft__match_t *m, const heft__axis_t *axis, int64_t factor,
                           heft__frame_t *frame);

static bool add_product(int64_t a, int64_t b, int64_t *sum)
{
    int64_t product;
    return heft__mul(a, b, &product) && heft__add(*sum, product, sum);
}

static heft_status_t place_position(const heft__match_t *m, const heft__axis_t *axis,
                                    int64_t factor, heft__frame_t *frame)
{
    int64_t whole = m->slots[axis->size_slot];
    int64_t offset = m->slots[axis->offset_slot];
    int64_t part = 1;
    if (axis->kind == AXIS_RANGE) {
        heft_status_t status = measure(m, axis->kids[0], &part);
        if (status != HEFT_OK) {
            return status;
        }
        if (part < 0) {
            return FAIL(m, axis->pos, HEFT_ERR_SHAPE,
                        "\"%s\": the extent of the range is not known: write it, x:N@...", m->name);
        }
    }
    if (offset < 0 || part > whole || offset > whole - part) {
        return FAIL(m, axis->pos, HEFT_ERR_SHAPE,
                    "\"%s\": positions %lld to %lld of an extent of %lld", m->name,
                    (long long)offset, (long long)(offset + part - 1), (long long)whole);
    }
    if (!add_product(offset, factor, &frame->offset)) {
        return overflow(m, axis->pos);
    }
    return axis->kind == AXIS_RANGE ? place(m, axis->kids[0], factor, frame) : HEFT_OK;
}

/* Add the tree's axes to the frame: one step of the tree is `factor` elements. */
static heft_status_t place(const heft__match_t *m, const heft__axis_t *axis, int64_t factor,
                           heft__frame_t *frame)
{
    switch (axis->kind) {
    case AXIS_NAME:
        if (m->extent[axis->id] < 0) {
            return FAIL(m, axis->pos, HEFT_ERR_SHAPE,
                        "\"%s\": the extent of axis `%s` is not known: write %s:N", m->name,
                        axis->name, axis->name);
        }
        frame->order[frame->n++] = axis->id;
        frame->stride[axis->id] = factor;
        return HEFT_OK;
    case AXIS_DIGIT:
    case AXIS_RANGE:
        return place_position(m, axis, factor, frame);
    case AXIS_GROUP:
        break;
    case AXIS_UNIT:
    case AXIS_REST:
    default:
        return HEFT_OK;
    }
    /* the stride of a kid is the product of what follows it; order stays outermost first */
    int64_t behind[HEFT__MAX_AXES + 1];
    if (axis->n_kids > HEFT__MAX_AXES) {
        return FAIL(m, axis->pos, HEFT_ERR_LIMIT, "more than %d axes in a group", HEFT__MAX_AXES);
    }
    behind[axis->n_kids] = factor;
    for (uint32_t i = axis->n_kids; i > 0; i--) {
        int64_t kid = 0;
        heft_status_t status = measure(m, axis->kids[i - 1], &kid);
        if (status != HEFT_OK) {
            return status;
        }
        if (!heft__mul(behind[i], heft__max_i64(kid, 1), &behind[i - 1])) {
            return overflow(m, axis->pos);
        }
    }
    for (uint32_t i = 0; i < axis->n_kids; i++) {
        heft_status_t status = place(m, axis->kids[i], behind[i + 1], frame);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* ---- frames ---- */

static int32_t find_rest(const heft__axes_t *axes)
{
    for (uint32_t i = 0; i < axes->n_dims; i++) {
        if (axes->dims[i]->kind == AXIS_REST) {
            return (int32_t)i;
        }
    }
    return HEFT__NONE;
}

/* How many dimensions `...` stands for, the same in all sources. */
static heft_status_t count_rest(heft__match_t *m, const heft__axes_t *axes,
                                const heft_shape_t *shape)
{
    bool has_rest = find_rest(axes) != HEFT__NONE;
    uint32_t n_fixed = axes->n_dims - (has_rest ? 1 : 0);
    uint32_t rank = (uint32_t)shape->rank;
    if (rank < n_fixed || (!has_rest && rank != n_fixed)) {
        return FAIL(m, axes->pos, HEFT_ERR_SHAPE, "\"%s\" has %u dimensions, the rule %s%u",
                    m->name, (unsigned)rank, has_rest ? "at least " : "", (unsigned)n_fixed);
    }
    if (!has_rest) {
        return HEFT_OK;
    }
    if (m->has_rest && m->n_rest != rank - n_fixed) {
        return FAIL(m, axes->pos, HEFT_ERR_SHAPE,
                    "\"%s\": `...` is %u dimensions here and %u in "
                    "an earlier source",
                    m->name, (unsigned)(rank - n_fixed), (unsigned)m->n_rest);
    }
    m->has_rest = true;
    m->n_rest = rank - n_fixed;
    return HEFT_OK;
}

static heft_status_t place_rest(heft__match_t *m, heft__pos_t pos, const heft_shape_t *shape,
                                const int64_t *strides, uint32_t first, heft__frame_t *frame)
{
    for (uint32_t k = 0; k < m->n_rest; k++) {
        int32_t id = (int32_t)(HEFT__MAX_AXES + k);
        int64_t extent = shape->extent[first + k];
        if (m->extent[id] >= 0 && m->extent[id] != extent) {
            return FAIL(m, pos, HEFT_ERR_SHAPE,
                        "\"%s\": dimension %u of `...` is %lld here and %lld in an earlier source",
                        m->name, (unsigned)k, (long long)extent, (long long)m->extent[id]);
        }
        m->extent[id] = extent;
        frame->order[frame->n++] = id;
        frame->stride[id] = strides[first + k];
    }
    return HEFT_OK;
}

heft_status_t heft__frame_measure(heft__match_t *m, const heft__axes_t *axes,
                                  const heft_shape_t *shape)
{
    heft_status_t status = count_rest(m, axes, shape);
    uint32_t d = 0;
    for (uint32_t i = 0; i < axes->n_dims && status == HEFT_OK; i++) {
        const heft__axis_t *dim = axes->dims[i];
        if (dim->kind == AXIS_NAME) {
            m->dim = (int32_t)d;
            status = solve(m, dim, shape->extent[d]);
            m->dim = HEFT__NONE;
        }
        d += dim->kind == AXIS_REST ? m->n_rest : 1;
    }
    return status;
}

heft_status_t heft__frame_init(heft__match_t *m, const heft__axes_t *axes,
                               const heft_shape_t *shape, heft__frame_t *frame)
{
    *frame = (heft__frame_t){ 0 };
    heft_view_t whole = heft_view_contiguous(0, shape);
    heft_status_t status = HEFT_OK;
    uint32_t d = 0;
    for (uint32_t i = 0; i < axes->n_dims && status == HEFT_OK; i++) {
        const heft__axis_t *dim = axes->dims[i];
        if (dim->kind != AXIS_REST) {
            m->dim = (int32_t)d;
            status = solve(m, dim, shape->extent[d]);
            m->dim = HEFT__NONE;
        }
        d += dim->kind == AXIS_REST ? m->n_rest : 1;
    }
    d = 0;
    for (uint32_t i = 0; i < axes->n_dims && status == HEFT_OK; i++) {
        const heft__axis_t *dim = axes->dims[i];
        if (dim->kind == AXIS_REST) {
            status = place_rest(m, dim->pos, shape, whole.stride, d, frame);
            d += m->n_rest;
        } else {
            status = place(m, dim, whole.stride[d++], frame);
        }
    }
    return status;
}

heft_status_t heft__frame_refine(heft__match_t *m, const heft__refine_t *refine,
                                 heft__frame_t *frame, bool is_first)
{
    heft__frame_t old = *frame;
    uint32_t at = 0;
    while (at < old.n && old.order[at] != refine->id) {
        at++;
    }
    if (is_first) {
        heft_status_t status = solve(m, refine->tree, m->extent[refine->id]);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (at == old.n) {
        return HEFT_OK; /* this source does not have the axis: it broadcasts over it */
    }
    frame->n = at;
    frame->stride[refine->id] = 0;
    heft_status_t status = place(m, refine->tree, old.stride[refine->id], frame);
    for (uint32_t i = at + 1; i < old.n && status == HEFT_OK; i++) {
        frame->order[frame->n++] = old.order[i];
    }
    return status;
}

static heft_status_t check_target_sizes(const heft__match_t *m, const heft__axis_t *axis)
{
    if (axis->kind == AXIS_NAME && axis->size_slot != HEFT__NONE &&
        m->slots[axis->size_slot] != m->extent[axis->id]) {
        return FAIL(m, axis->pos, HEFT_ERR_SHAPE,
                    "\"%s\": axis `%s` is %lld after padding, %lld "
                    "written",
                    m->name, axis->name, (long long)m->extent[axis->id],
                    (long long)m->slots[axis->size_slot]);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < axis->n_kids && status == HEFT_OK; i++) {
        status = check_target_sizes(m, axis->kids[i]);
    }
    return status;
}

static heft_status_t target_shape(heft__match_t *m, const heft__axes_t *axes, heft_shape_t *shape)
{
    *shape = (heft_shape_t){ 0 };
    uint32_t rank = axes->n_dims - (m->has_rest ? 1 : 0) + m->n_rest;
    if (rank > HEFT_MAX_DIMS) {
        return FAIL(m, axes->pos, HEFT_ERR_LIMIT, "\"%s\": %u dimensions, at most %d", m->name,
                    (unsigned)rank, HEFT_MAX_DIMS);
    }
    for (uint32_t i = 0; i < axes->n_dims; i++) {
        const heft__axis_t *dim = axes->dims[i];
        for (uint32_t k = 0; dim->kind == AXIS_REST && k < m->n_rest; k++) {
            shape->extent[shape->rank++] = m->extent[HEFT__MAX_AXES + k];
        }
        if (dim->kind == AXIS_REST) {
            continue;
        }
        int64_t whole = 0;
        heft_status_t status = check_target_sizes(m, dim);
        if (status == HEFT_OK) {
            status = measure(m, dim, &whole);
        }
        if (status == HEFT_OK && whole < 0) {
            status = FAIL(m, dim->pos, HEFT_ERR_SHAPE, "\"%s\": an extent is not known", m->name);
        }
        if (status != HEFT_OK) {
            return status;
        }
        shape->extent[shape->rank++] = whole;
    }
    int64_t count = 0;
    return heft_shape_count(shape, &count, NULL) == HEFT_OK
               ? HEFT_OK
               : FAIL(m, axes->pos, HEFT_ERR_OVERFLOW,
                      "\"%s\": these axes make more than 2^63 elements", m->name);
}

heft_status_t heft__place_init(heft__match_t *m, const heft__rule_target_t *target,
                               heft__place_t *out)
{
    *out = (heft__place_t){ 0 };
    heft_status_t status = target_shape(m, &target->axes, &out->shape);
    if (status != HEFT_OK) {
        return status;
    }
    heft_view_t whole = heft_view_contiguous(0, &out->shape);
    uint32_t d = 0;
    for (uint32_t i = 0; i < target->axes.n_dims && status == HEFT_OK; i++) {
        const heft__axis_t *dim = target->axes.dims[i];
        if (dim->kind == AXIS_REST) {
            status = place_rest(m, dim->pos, &out->shape, whole.stride, d, &out->frame);
            d += m->n_rest;
        } else {
            status = place(m, dim, whole.stride[d++], &out->frame);
        }
    }
    return status;
}

heft_status_t heft__frame_view(heft__match_t *m, const heft__frame_t *frame, const int32_t *order,
                               uint32_t n, heft__pos_t pos, heft_view_t *view_out)
{
    heft_view_t view = { .buffer = frame->buffer, .offset = frame->offset };
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = order[i];
        if (m->extent[id] == 1) {
            continue;
        }
        if (view.rank == HEFT_MAX_DIMS) {
            return FAIL(m, pos, HEFT_ERR_LIMIT, "\"%s\": more than %d axes longer than 1", m->name,
                        HEFT_MAX_DIMS);
        }
        view.extent[view.rank] = m->extent[id];
        view.stride[view.rank] = frame->stride[id];
        view.rank++;
    }
    *view_out = view;
    return HEFT_OK;
}
