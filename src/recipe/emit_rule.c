/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One match of a rule to writes on the tape.
 *
 * A source is a frame; `as` only changes the frame; `pad` makes a temporary: the frame is copied
 * into it, the rest is filled with zeros, and the temporary becomes the frame. (Folding removes the
 * temporary again.) Padding must be zero behind a kernel too, so a kernel runs before the first
 * padding, else straight into the targets.
 */
#include "recipe/emit.h"

#include <string.h>

#define MAX_NAMES (1 << 20) /* target names that one match may make */

#define FAIL(e, pos, status, ...) \
    heft__recipe_error((e)->c->recipe, (pos), (status), (e)->c->err, __VA_ARGS__)

bool heft__emit_has_elements(const heft_view_t *view)
{
    for (int k = 0; k < view->rank; k++) {
        if (view->extent[k] == 0) {
            return false;
        }
    }
    return true;
}

/* dst <- kernel(srcs), or a plain copy. */
static heft_status_t write(heft__emitter_t *e, const heft_view_t *dst, const heft_view_t *srcs)
{
    heft__compile_t *c = e->c;
    if (!heft__emit_has_elements(dst)) {
        return HEFT_OK;
    }
    if (e->kernel == NULL || e->kernel->code == HEFT_OP_CAST) {
        return heft_tape_copy(c->tape, dst, &srcs[0], e->rule->note, c->err);
    }
    heft_op_t ops[3] = { { .code = HEFT_OP_LOAD, .arg = 0 } };
    uint32_t n = 1;
    if (e->n_frames == 2) {
        ops[n++] = (heft_op_t){ .code = HEFT_OP_LOAD, .arg = 1 };
    }
    ops[n++] = (heft_op_t){ .code = e->kernel->code,
                            .dtype = (uint8_t)e->rule->kernel_dtype,
                            .imm = e->imm };
    for (uint32_t i = 0; i < e->n_frames; i++) {
        ops[i].dtype = (uint8_t)e->frames[i].dtype;
    }
    return heft_tape_map(c->tape, dst, srcs, e->n_frames, ops, n, e->rule->note, c->err);
}

/* ---- sources ---- */

/* A packed dtype has no addressable elements: its last dimension is moved in whole rows. */
static heft_status_t check_packed(const heft__emitter_t *e, const heft__name_t *source)
{
    const heft__axes_t *from = &e->rule->sources[0].axes;
    const heft__axis_t *last = from->n_dims > 0 ? from->dims[from->n_dims - 1] : NULL;
    bool ok = last != NULL && e->rule->kernel == NULL &&
              (last->kind == AXIS_REST || (last->kind == AXIS_NAME && last->size == NULL));
    for (uint32_t i = 0; i < e->rule->n_targets && ok; i++) {
        const heft__axes_t *to = &e->rule->targets[i].axes;
        const heft__axis_t *end = to->n_dims > 0 ? to->dims[to->n_dims - 1] : NULL;
        ok = end != NULL && end->kind == last->kind && end->id == last->id && end->size == NULL &&
             (end->kind == AXIS_REST || !e->rule->axis_is_padded[end->id]);
    }
    return ok ? HEFT_OK
              : FAIL(e, e->rule->pos, HEFT_ERR_UNSUPPORTED,
                     "\"%s\" is packed (%s): its last dimension must stay whole and last",
                     source->info.name, heft_dtype_get_name(source->info.dtype));
}

static heft_status_t check_source(const heft__emitter_t *e, const heft__name_t *source)
{
    heft_dtype_t dtype = source->info.dtype;
    bool is_packed_u8 = e->kernel != NULL && e->kernel->form == HEFT__FORM_UNPACK;
    if (e->kernel != NULL && !is_packed_u8 && heft_dtype_is_float(dtype) == 0) {
        return FAIL(e, e->rule->kernel_pos, HEFT_ERR_SHAPE, "\"%s\" is %s: kernels work on floats",
                    source->info.name, heft_dtype_get_name(dtype));
    }
    return heft_dtype_get_bits(dtype) < 8 ? check_packed(e, source) : HEFT_OK;
}

static heft_status_t storage_of(const heft__emitter_t *e, const heft__name_t *source,
                                heft_shape_t *storage)
{
    return heft_shape_to_storage(&source->info.shape, source->info.dtype, storage, e->c->err);
}

heft_status_t heft__emit_measure(heft__emitter_t *e, uint32_t i, const heft__name_t *source)
{
    heft_shape_t storage;
    e->m->name = source->info.name;
    heft_status_t status = storage_of(e, source, &storage);
    if (status == HEFT_OK) {
        status = check_source(e, source);
    }
    return status == HEFT_OK ? heft__frame_measure(e->m, &e->rule->sources[i].axes, &storage)
                             : status;
}

heft_status_t heft__emit_place(heft__emitter_t *e, uint32_t i, heft__name_t *source)
{
    heft_shape_t storage;
    e->m->name = source->info.name;
    heft_status_t status = storage_of(e, source, &storage);
    if (status == HEFT_OK) {
        status = heft__frame_init(e->m, &e->rule->sources[i].axes, &storage, &e->frames[i]);
    }
    if (status == HEFT_OK) {
        status = heft__compile_source(e->c, source, &e->frames[i].buffer);
    }
    e->frames[i].dtype = source->info.dtype;
    return status;
}

static heft_status_t init_frames(heft__emitter_t *e, heft__name_t *const *sources)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < e->n_frames && status == HEFT_OK; i++) {
        status = heft__emit_measure(e, i, sources[i]);
    }
    for (uint32_t i = 0; i < e->n_frames && status == HEFT_OK; i++) {
        status = heft__emit_place(e, i, sources[i]);
    }
    e->m->name = sources[0]->info.name;
    return status;
}

/* ---- temporaries ---- */

heft_status_t heft__emit_temp(heft__emitter_t *e, const int32_t *order, uint32_t n,
                              heft_dtype_t dtype, heft__frame_t *frame)
{
    heft__frame_t temp = { .dtype = dtype, .n = n };
    int64_t count = 1;
    memcpy(temp.order, order, n * sizeof *order);
    for (uint32_t i = n; i > 0; i--) {
        temp.stride[order[i - 1]] = count;
        if (!heft__mul(count, e->m->extent[order[i - 1]], &count)) {
            return FAIL(
                e, e->rule->pos, HEFT_ERR_OVERFLOW,
                "\"%s\": padded, it has more than 2^63 elements (an axis of %lld times %lld)",
                e->m->name, (long long)e->m->extent[order[i - 1]],
                (long long)temp.stride[order[i - 1]]);
        }
    }
    heft_shape_t shape = { .rank = 1, .extent = { count } };
    *frame = temp;
    return heft_tape_add_buffer(e->c->tape, HEFT_BUFFER_TEMP, "", dtype, &shape, &frame->buffer,
                                e->c->err);
}

/* Run the kernel into a temporary, which becomes the only frame. */
static heft_status_t settle_kernel(heft__emitter_t *e)
{
    int32_t order[HEFT__ALL_AXES];
    uint32_t n = 0;
    bool seen[HEFT__ALL_AXES] = { false };
    for (uint32_t i = 0; i < e->n_frames; i++) {
        for (uint32_t k = 0; k < e->frames[i].n; k++) {
            int32_t id = e->frames[i].order[k];
            if (!seen[id]) {
                order[n++] = id;
            }
            seen[id] = true;
        }
    }
    heft__frame_t temp;
    heft_view_t dst;
    heft_view_t srcs[HEFT__MAX_PARTS];
    heft_status_t status = heft__emit_temp(e, order, n, e->dtype, &temp);
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, &temp, order, n, e->rule->kernel_pos, &dst);
    }
    for (uint32_t i = 0; i < e->n_frames && status == HEFT_OK; i++) {
        status = heft__frame_view(e->m, &e->frames[i], order, n, e->rule->kernel_pos, &srcs[i]);
    }
    if (status == HEFT_OK) {
        status = write(e, &dst, srcs);
    }
    e->frames[0] = temp;
    e->n_frames = 1;
    e->kernel = NULL;
    return status;
}

static heft_status_t pad(heft__emitter_t *e, const heft__refine_t *refine)
{
    int64_t extent = e->m->extent[refine->id];
    int64_t padded = e->m->slots[refine->size_slot];
    if (padded < extent) {
        return FAIL(e, refine->pos, HEFT_ERR_SHAPE,
                    "\"%s\": axis `%s` of %lld does not fit into "
                    "%lld: padding cannot shrink",
                    e->m->name, refine->name, (long long)extent, (long long)padded);
    }
    if (padded == extent) {
        return HEFT_OK;
    }
    heft_status_t status = e->kernel != NULL ? settle_kernel(e) : HEFT_OK;
    heft__frame_t *from = &e->frames[0];
    heft__frame_t temp = { 0 };
    heft_view_t src;
    heft_view_t dst;
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, from, from->order, from->n, refine->pos, &src);
    }
    e->m->extent[refine->id] = padded;
    if (status == HEFT_OK) {
        status = heft__emit_temp(e, from->order, from->n, from->dtype, &temp);
    }
    e->m->extent[refine->id] = extent;
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, &temp, from->order, from->n, refine->pos, &dst);
    }
    if (status == HEFT_OK && heft__emit_has_elements(&dst)) {
        status = heft_tape_copy(e->c->tape, &dst, &src, e->rule->note, e->c->err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft__frame_t zeros = temp;
    zeros.offset = extent * temp.stride[refine->id];
    e->m->extent[refine->id] = padded - extent;
    status = heft__frame_view(e->m, &zeros, from->order, from->n, refine->pos, &dst);
    if (status == HEFT_OK && heft__emit_has_elements(&dst)) {
        status = heft_tape_fill(e->c->tape, &dst, 0, e->rule->note, e->c->err);
    }
    e->m->extent[refine->id] = padded;
    e->frames[0] = temp;
    return status;
}

static heft_status_t refine_all(heft__emitter_t *e)
{
    heft_status_t status = HEFT_OK;
    for (const heft__refine_t *at = e->rule->refines; at != NULL && status == HEFT_OK;
         at = at->next) {
        if (at->kind == REFINE_PAD) {
            status = pad(e, at);
        }
        for (uint32_t i = 0; at->kind == REFINE_AS && i < e->n_frames && status == HEFT_OK; i++) {
            status = heft__frame_refine(e->m, at, &e->frames[i], i == 0);
        }
    }
    return status;
}

/* ---- targets ---- */

/* Back from storage units: the last dimension counts elements. */
heft_shape_t heft__emit_shape(const heft_shape_t *storage, heft_dtype_t dtype)
{
    heft_shape_t shape = *storage;
    uint32_t bits = heft_dtype_get_bits(dtype);
    if (bits < 8 && shape.rank > 0) {
        shape.extent[shape.rank - 1] = shape.extent[shape.rank - 1] * 8 / bits;
    }
    return shape;
}

/* One target name: its views are those given, moved to the current axis indices. */
static heft_status_t emit_name(heft__emitter_t *e, const heft__rule_target_t *target,
                               const heft__place_t *place, heft_view_t dst, const heft_view_t *srcs)
{
    heft__compile_t *c = e->c;
    heft_shape_t shape = heft__emit_shape(&place->shape, e->dtype);
    heft_view_t moved[HEFT__MAX_PARTS];
    heft_status_t status = heft__make_name(c, &target->template);
    if (status == HEFT_OK) {
        status = heft__param_get(c, target->template.pos, e->dtype, &shape, &dst.buffer);
    }
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < e->n_frames; i++) {
        moved[i] = srcs[i];
        for (uint32_t k = 0; k < target->template.n_axes; k++) {
            int32_t id = target->template.axes[k];
            moved[i].offset += c->axis_index[id] * e->frames[i].stride[id];
        }
    }
    return write(e, &dst, moved);
}

heft_status_t heft__emit_count_names(heft__emitter_t *e, const heft__rule_target_t *target,
                                     int64_t *n_out)
{
    int64_t n = 1;
    for (uint32_t k = 0; k < target->template.n_axes; k++) {
        int32_t id = target->template.axes[k];
        int64_t extent = e->m->extent[id];
        if (extent < 0) {
            return FAIL(e, target->template.pos, HEFT_ERR_SHAPE,
                        "\"%s\": the extent of axis `%s` is not known", e->m->name,
                        e->rule->axes[id]);
        }
        if (!heft__mul(n, extent, &n) || n > MAX_NAMES) {
            return FAIL(e, target->template.pos, HEFT_ERR_LIMIT, "\"%s\" makes more than %d names",
                        e->m->name, MAX_NAMES);
        }
    }
    *n_out = n;
    return HEFT_OK;
}

void heft__emit_first_name(heft__emitter_t *e, const heft__rule_target_t *target)
{
    for (uint32_t k = 0; k < target->template.n_axes; k++) {
        e->c->axis_index[target->template.axes[k]] = 0;
    }
}

void heft__emit_next_name(heft__emitter_t *e, const heft__rule_target_t *target)
{
    for (uint32_t k = target->template.n_axes; k > 0; k--) {
        int32_t id = target->template.axes[k - 1];
        if (++e->c->axis_index[id] < e->m->extent[id]) {
            return;
        }
        e->c->axis_index[id] = 0;
    }
}

static heft_status_t emit_target(heft__emitter_t *e, const heft__rule_target_t *target)
{
    heft__place_t place;
    heft_view_t dst = { 0 };
    heft_view_t srcs[HEFT__MAX_PARTS];
    int64_t n_names = 0;
    heft_status_t status = heft__place_init(e->m, target, &place);
    if (status == HEFT_OK) {
        status = heft__emit_count_names(e, target, &n_names);
    }
    const int32_t *order = place.frame.order;
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, &place.frame, order, place.frame.n, target->axes.pos, &dst);
    }
    for (uint32_t i = 0; i < e->n_frames && status == HEFT_OK; i++) {
        status =
            heft__frame_view(e->m, &e->frames[i], order, place.frame.n, target->axes.pos, &srcs[i]);
    }
    heft__emit_first_name(e, target);
    for (int64_t i = 0; i < n_names && status == HEFT_OK; i++) {
        status = emit_name(e, target, &place, dst, srcs);
        heft__emit_next_name(e, target);
    }
    return status;
}

static heft_status_t init_kernel(heft__emitter_t *e, heft__name_t *const *sources)
{
    heft__compile_t *c = e->c;
    e->dtype = heft__policy_dtype(c, sources[0]);
    if (e->rule->kernel == NULL) {
        return HEFT_OK;
    }
    e->kernel = heft__kernel_find(e->rule->kernel);
    if (e->kernel->code == HEFT_OP_CAST || e->kernel->form != HEFT__FORM_MAP) {
        e->dtype = e->rule->kernel_dtype;
    }
    if (e->rule->n_args == 0 || e->kernel->form != HEFT__FORM_MAP) {
        return HEFT_OK;
    }
    heft_status_t status = heft__eval_real(&c->env, e->rule->args[0], &e->imm, c->err);
    if (status == HEFT_OK && e->imm == 0 && e->kernel->code != HEFT_OP_ADD_IMM) {
        status = FAIL(e, e->rule->kernel_pos, HEFT_ERR_ARGUMENT,
                      "%s(0): an argument that is not zero wanted", e->rule->kernel);
    }
    return status;
}

/* Sources to frames; kernels that make one tensor of blocks and scales run here. */
static heft_status_t read_sources(heft__emitter_t *e, heft__name_t *const *sources)
{
    heft__form_t form = e->kernel != NULL ? e->kernel->form : HEFT__FORM_MAP;
    heft_status_t status = form == HEFT__FORM_DEQUANTISE ? heft__emit_scaled_frames(e, sources)
                                                         : init_frames(e, sources);
    if (status == HEFT_OK && form == HEFT__FORM_DEQUANTISE) {
        status = heft__emit_dequantised(e);
    } else if (status == HEFT_OK && form == HEFT__FORM_UNPACK) {
        status = heft__emit_unpacked(e);
    }
    return status;
}

heft_status_t heft__emit(heft__compile_t *c, heft__match_t *m, heft__name_t *const *sources)
{
    heft__emitter_t e = { .c = c, .m = m, .rule = m->rule, .n_frames = m->rule->n_sources };
    heft_status_t status = init_kernel(&e, sources);
    bool is_quantise = e.kernel != NULL && e.kernel->form == HEFT__FORM_QUANTISE;
    if (status == HEFT_OK) {
        status = heft__match_begin(m);
    }
    if (status == HEFT_OK) {
        status = read_sources(&e, sources);
    }
    if (is_quantise) {
        e.kernel = NULL; /* it runs last: padding is part of what it reads */
    }
    if (status == HEFT_OK) {
        status = refine_all(&e);
    }
    if (is_quantise) {
        return status == HEFT_OK ? heft__emit_quantised(&e) : status;
    }
    for (uint32_t i = 0; i < e.rule->n_targets && status == HEFT_OK; i++) {
        status = emit_target(&e, &e.rule->targets[i]);
    }
    return status;
}
