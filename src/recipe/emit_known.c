/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of blocks: codes and scales from floats, and floats from them.
 *
 * `fp8_quantise` is a known kernel (docs/formats/known-kernels.md). One is put on the tape for each
 * pair of target names, so that layers of a scanned tensor stay apart; its outputs are temporaries
 * from which the targets are copied like everything else. `dequantise` is element-wise once a scale
 * is seen as repeated over its block: maps over whole blocks and over the shorter ones at the ends.
 * `mxfp4_unpack` is a known kernel; its result becomes the rule's source.
 */
#include "recipe/emit.h"
#include "tape/tape.h"

#include <string.h>

#define FAIL(e, pos, status, ...) \
    heft__recipe_error((e)->c->recipe, (pos), (status), (e)->c->err, __VA_ARGS__)

enum { MXFP4_BYTES = 16, MXFP4_VALUES = 32 };

/* ---- arguments: the extents of a block, and perhaps a word ---- */

typedef struct blocks {
    int64_t extent[HEFT__ALL_AXES]; /* 0: the axis is not cut, a block has all of it */
    heft__scale_rule_t rule;
    heft_dtype_t scale_dtype;
} blocks_t;

/* Axes in a tree, in the order of the text. */
static void collect(const heft__axis_t *axis, int32_t *ids, uint32_t *n)
{
    if (axis->kind == AXIS_NAME && *n < HEFT__MAX_AXES) {
        ids[(*n)++] = axis->id;
    }
    for (uint32_t i = 0; i < axis->n_kids; i++) {
        collect(axis->kids[i], ids, n);
    }
}

static heft_status_t read_word(heft__emitter_t *e, const heft__value_t *value, blocks_t *blocks)
{
    bool is_e8m0 = value->word.len == 4 && memcmp(value->word.data, "e8m0", 4) == 0;
    blocks->scale_dtype = is_e8m0 ? HEFT_DTYPE_F8_E8M0 : HEFT_DTYPE_F32;
    blocks->rule =
        is_e8m0 ? HEFT__SCALE_UE8M0 : heft__scale_rule_from_name(value->word.data, value->word.len);
    return blocks->rule != 0
               ? HEFT_OK
               : FAIL(e, e->rule->kernel_pos, HEFT_ERR_ARGUMENT,
                      "no rule of scales \"%.*s\": there are deepseek, deepgemm, transformers, "
                      "ue8m0 and e8m0",
                      (int)value->word.len, value->word.data);
}

/* axes: those of the scales; each has a block, in the order of the text. */
static heft_status_t read_blocks(heft__emitter_t *e, const heft__axes_t *axes, blocks_t *blocks)
{
    const heft__rule_t *rule = e->rule;
    int32_t ids[HEFT__MAX_AXES];
    uint32_t n_axes = 0;
    uint32_t n = 0;
    *blocks = (blocks_t){ .rule = HEFT__SCALE_DEEPSEEK, .scale_dtype = HEFT_DTYPE_F32 };
    for (uint32_t i = 0; i < axes->n_dims; i++) {
        collect(axes->dims[i], ids, &n_axes);
    }
    for (uint32_t i = 0; i < rule->n_args; i++) {
        heft__value_t value;
        heft_status_t status = heft__eval(&e->c->env, rule->args[i], &value, e->c->err);
        bool is_word = status == HEFT_OK && value.kind == VALUE_WORD && i + 1 == rule->n_args &&
                       rule->sources[1].axes.dims == NULL;
        if (status == HEFT_OK && is_word) {
            status = read_word(e, &value, blocks);
        } else if (status == HEFT_OK && (value.kind != VALUE_INT || value.integer < 1)) {
            char text[64];
            status = FAIL(e, rule->kernel_pos, HEFT_ERR_ARGUMENT,
                          "%s: the extent of a block is 1 or more, not %s", rule->kernel,
                          heft__value_text(&value, text));
        } else if (status == HEFT_OK && n < n_axes) {
            blocks->extent[ids[n]] = value.integer;
        }
        if (status != HEFT_OK) {
            return status;
        }
        n += is_word ? 0 : 1;
    }
    return n == n_axes ? HEFT_OK
                       : FAIL(e, rule->kernel_pos, HEFT_ERR_ARGUMENT,
                              "%s has %u extents of a block, its scales %u axes", rule->kernel,
                              (unsigned)n, (unsigned)n_axes);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Axes count blocks instead of elements, until the extents that are saved here are put back. Those
 * of `...` are not cut. */
typedef struct counting {
    int64_t saved[HEFT__ALL_AXES];
} counting_t;

static void count_blocks(heft__match_t *m, const blocks_t *blocks, counting_t *counting)
{
    memcpy(counting->saved, m->extent, sizeof counting->saved);
    for (int id = 0; id < HEFT__MAX_AXES; id++) {
        if (m->extent[id] > 0 && blocks->extent[id] > 0) {
            m->extent[id] = ceil_div(m->extent[id], blocks->extent[id]);
        }
    }
}

static void count_elements(heft__match_t *m, const counting_t *counting)
{
    for (int id = 0; id < HEFT__ALL_AXES; id++) {
        /* what was learned meanwhile stays */
        m->extent[id] = counting->saved[id] >= 0 ? counting->saved[id] : m->extent[id];
    }
}

/* A view of a frame over these axes, those of extent 1 included. */
static heft_status_t plain_view(heft__emitter_t *e, const heft__frame_t *frame,
                                const int32_t *order, uint32_t n, heft_view_t *view)
{
    if (n > HEFT_MAX_DIMS) {
        return FAIL(e, e->rule->kernel_pos, HEFT_ERR_LIMIT, "\"%s\": more than %d axes in %s",
                    e->m->name, HEFT_MAX_DIMS, e->rule->kernel);
    }
    *view = (heft_view_t){ .buffer = frame->buffer, .rank = (int32_t)n, .offset = frame->offset };
    for (uint32_t i = 0; i < n; i++) {
        view->extent[i] = e->m->extent[order[i]];
        view->stride[i] = frame->stride[order[i]];
    }
    return HEFT_OK;
}

/* ---- quantising ---- */

typedef struct quantiser {
    heft__emitter_t *e;
    blocks_t blocks;
    int32_t order[HEFT__ALL_AXES]; /* of the kernel: as the codes are written, names left out */
    uint32_t n;
    heft__known_t known;
} quantiser_t;

static bool has_axis(const heft__frame_t *frame, int32_t id)
{
    for (uint32_t i = 0; i < frame->n; i++) {
        if (frame->order[i] == id) {
            return true;
        }
    }
    return false;
}

static heft_status_t plan_kernel(quantiser_t *q, const heft__frame_t *codes)
{
    heft__emitter_t *e = q->e;
    q->known = (heft__known_t){ .code = HEFT__KNOWN_FP8_QUANTISE, .rule = q->blocks.rule };
    for (uint32_t i = 0; i < codes->n; i++) {
        if (has_axis(&e->frames[0], codes->order[i])) { /* others repeat: copies see to them */
            q->order[q->n++] = codes->order[i];
        }
    }
    if (q->n > HEFT_MAX_DIMS) {
        return FAIL(e, e->rule->kernel_pos, HEFT_ERR_LIMIT, "\"%s\": more than %d axes in %s",
                    e->m->name, HEFT_MAX_DIMS, e->rule->kernel);
    }
    if (q->n == 0) { /* one number: a dimension of 1 */
        q->known.block[q->known.n_dims++] = 1;
    }
    for (uint32_t i = 0; i < q->n; i++) {
        int32_t id = q->order[i];
        int64_t block = id >= HEFT__MAX_AXES ? 1 : q->blocks.extent[id];
        q->known.block[q->known.n_dims++] = block > 0 ? block : heft__max_i64(e->m->extent[id], 1);
    }
    return HEFT_OK;
}

/* One target from a frame, under the current name. */
static heft_status_t write_target(heft__emitter_t *e, const heft__rule_target_t *target,
                                  const heft__frame_t *from)
{
    heft__compile_t *c = e->c;
    heft__place_t place;
    heft_view_t dst = { 0 };
    heft_view_t src = { 0 };
    heft_status_t status = heft__place_init(e->m, target, &place);
    const int32_t *order = place.frame.order;
    uint32_t n = place.frame.n;
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, &place.frame, order, n, target->axes.pos, &dst);
    }
    if (status == HEFT_OK) {
        status = heft__frame_view(e->m, from, order, n, target->axes.pos, &src);
    }
    if (status == HEFT_OK) {
        status = heft__make_name(c, &target->template);
    }
    if (status == HEFT_OK) {
        heft_shape_t shape = heft__emit_shape(&place.shape, from->dtype);
        status = heft__param_get(c, target->template.pos, from->dtype, &shape, &dst.buffer);
    }
    if (status != HEFT_OK || !heft__emit_has_elements(&dst)) {
        return status;
    }
    return heft_tape_copy(c->tape, &dst, &src, e->rule->note, c->err);
}

/* Blocks are counted from the first element that the rule reads. */
static heft_status_t put_kernel(quantiser_t *q, const heft_view_t *src, const heft__frame_t *codes,
                                const heft__frame_t *scales)
{
    heft__emitter_t *e = q->e;
    char op[HEFT__KNOWN_TEXT_BYTES];
    heft_view_t dsts[2];
    heft_view_t from = *src;
    counting_t counting;
    heft_status_t status = plain_view(e, codes, q->order, q->n, &dsts[0]);
    count_blocks(e->m, &q->blocks, &counting);
    for (uint32_t i = 0; i < q->n && i < HEFT_MAX_DIMS; i++) {
        int32_t id = q->order[i];
        if (id < HEFT__MAX_AXES && q->blocks.extent[id] == 0) {
            e->m->extent[id] = 1;
        }
    }
    if (status == HEFT_OK) {
        status = plain_view(e, scales, q->order, q->n, &dsts[1]);
    }
    count_elements(e->m, &counting);
    if (status != HEFT_OK) {
        return status;
    }
    if (q->n == 0) {
        dsts[0].rank = dsts[1].rank = from.rank = 1;
        dsts[0].extent[0] = dsts[1].extent[0] = from.extent[0] = 1;
    }
    heft__known_print(&q->known, op);
    return heft_tape_opaque(e->c->tape, op, dsts, 2, &from, 1, e->rule->note, e->c->err);
}

/* Axes of the scales alone: the others have one block. */
static heft_status_t make_scales(quantiser_t *q, heft__frame_t *scales)
{
    int32_t order[HEFT__ALL_AXES];
    uint32_t n = 0;
    counting_t counting;
    for (uint32_t i = 0; i < q->n; i++) {
        if (q->order[i] >= HEFT__MAX_AXES || q->blocks.extent[q->order[i]] > 0) {
            order[n++] = q->order[i];
        }
    }
    count_blocks(q->e->m, &q->blocks, &counting);
    heft_status_t status = heft__emit_temp(q->e, order, n, q->blocks.scale_dtype, scales);
    count_elements(q->e->m, &counting);
    return status;
}

static heft_status_t quantise_name(quantiser_t *q)
{
    heft__emitter_t *e = q->e;
    const heft__rule_target_t *targets = e->rule->targets;
    heft__frame_t codes;
    heft__frame_t scales;
    heft_view_t src;
    heft_status_t status = plain_view(e, &e->frames[0], q->order, q->n, &src);
    for (uint32_t k = 0; k < targets[0].template.n_axes; k++) {
        int32_t id = targets[0].template.axes[k];
        src.offset += e->c->axis_index[id] * e->frames[0].stride[id];
    }
    if (status == HEFT_OK) {
        status = heft__emit_temp(e, q->order, q->n, HEFT_DTYPE_F8_E4M3, &codes);
    }
    if (status == HEFT_OK) {
        status = make_scales(q, &scales);
    }
    if (status == HEFT_OK && heft__emit_has_elements(&src)) {
        status = put_kernel(q, &src, &codes, &scales);
    }
    if (status == HEFT_OK) {
        status = write_target(e, &targets[0], &codes);
    }
    if (status == HEFT_OK) {
        counting_t counting;
        count_blocks(e->m, &q->blocks, &counting);
        status = write_target(e, &targets[1], &scales);
        count_elements(e->m, &counting);
    }
    return status;
}

heft_status_t heft__emit_quantised(heft__emitter_t *e)
{
    const heft__rule_target_t *codes = &e->rule->targets[0];
    quantiser_t q = { .e = e };
    heft__place_t place;
    int64_t n_names = 0;
    heft_status_t status = read_blocks(e, &e->rule->targets[1].axes, &q.blocks);
    if (status == HEFT_OK) {
        status = heft__place_init(e->m, codes, &place);
    }
    if (status == HEFT_OK) {
        status = plan_kernel(&q, &place.frame);
    }
    if (status == HEFT_OK) {
        status = heft__emit_count_names(e, codes, &n_names);
    }
    heft__emit_first_name(e, codes);
    for (int64_t i = 0; i < n_names && status == HEFT_OK; i++) {
        status = quantise_name(&q);
        heft__emit_next_name(e, codes);
    }
    return status;
}

/* ---- dequantising ---- */

heft_status_t heft__emit_scaled_frames(heft__emitter_t *e, heft__name_t *const *sources)
{
    blocks_t blocks;
    counting_t counting;
    heft_status_t status = read_blocks(e, &e->rule->sources[1].axes, &blocks);
    if (status == HEFT_OK) {
        status = heft__emit_measure(e, 0, sources[0]);
    }
    if (status == HEFT_OK) {
        status = heft__emit_place(e, 0, sources[0]);
    }
    if (status != HEFT_OK) {
        return status;
    }
    count_blocks(e->m, &blocks, &counting);
    status = heft__emit_measure(e, 1, sources[1]);
    if (status == HEFT_OK) {
        status = heft__emit_place(e, 1, sources[1]);
    }
    count_elements(e->m, &counting);
    e->m->name = sources[0]->info.name;
    return status;
}

/* The three views of a map, dimension by dimension. */
typedef struct boxes {
    heft__emitter_t *e;
    const blocks_t *blocks;
    const heft__frame_t *dst;
    heft_view_t view[3]; /* floats, codes, scales */
} boxes_t;

static heft_status_t add_dim(boxes_t *b, int32_t id, int64_t extent, int64_t step,
                             int64_t scale_step)
{
    heft__emitter_t *e = b->e;
    int32_t k = b->view[0].rank;
    if (extent == 1) {
        return HEFT_OK;
    }
    if (k == HEFT_MAX_DIMS) {
        return FAIL(e, e->rule->kernel_pos, HEFT_ERR_LIMIT, "\"%s\": more than %d axes in %s",
                    e->m->name, HEFT_MAX_DIMS, e->rule->kernel);
    }
    for (int i = 0; i < 3; i++) {
        b->view[i].extent[k] = extent;
        b->view[i].rank++;
    }
    b->view[0].stride[k] = b->dst->stride[id] * step;
    b->view[1].stride[k] = e->frames[0].stride[id] * step;
    b->view[2].stride[k] = e->frames[1].stride[id] * scale_step;
    return HEFT_OK;
}

static heft_status_t put_map(const boxes_t *b)
{
    heft__emitter_t *e = b->e;
    const heft_op_t ops[] = {
        { .code = HEFT_OP_LOAD, .arg = 0, .dtype = (uint8_t)e->frames[0].dtype },
        { .code = HEFT_OP_LOAD, .arg = 1, .dtype = (uint8_t)e->frames[1].dtype },
        { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 },
    };
    if (!heft__emit_has_elements(&b->view[0])) {
        return HEFT_OK;
    }
    return heft_tape_map(e->c->tape, &b->view[0], &b->view[1], 2, ops, 3, e->rule->note, e->c->err);
}

/* Axes from `at` on: whole blocks as two dimensions, then the shorter block at the end. */
static heft_status_t put_boxes(boxes_t b, uint32_t at)
{
    heft__emitter_t *e = b.e;
    if (at == e->frames[0].n) {
        return put_map(&b);
    }
    int32_t id = e->frames[0].order[at];
    int64_t extent = e->m->extent[id];
    int64_t block = id < HEFT__MAX_AXES ? b.blocks->extent[id] : 0;
    boxes_t whole = b;
    if (block <= 1) { /* not cut, or a scale for each index */
        heft_status_t status = add_dim(&whole, id, extent, 1, 1);
        return status == HEFT_OK ? put_boxes(whole, at + 1) : status;
    }
    heft_status_t status = HEFT_OK;
    if (extent >= block) {
        status = add_dim(&whole, id, extent / block, block, 1);
        if (status == HEFT_OK) {
            status = add_dim(&whole, id, block, 1, 0);
        }
        if (status == HEFT_OK) {
            status = put_boxes(whole, at + 1);
        }
    }
    if (status != HEFT_OK || extent % block == 0) {
        return status;
    }
    int64_t begin = extent - extent % block;
    b.view[0].offset += begin * b.dst->stride[id];
    b.view[1].offset += begin * e->frames[0].stride[id];
    b.view[2].offset += begin / block * e->frames[1].stride[id];
    status = add_dim(&b, id, extent % block, 1, 0);
    return status == HEFT_OK ? put_boxes(b, at + 1) : status;
}

heft_status_t heft__emit_dequantised(heft__emitter_t *e)
{
    heft__frame_t floats;
    blocks_t blocks;
    heft_status_t status = read_blocks(e, &e->rule->sources[1].axes, &blocks);
    if (status == HEFT_OK) {
        status = heft__emit_temp(e, e->frames[0].order, e->frames[0].n, e->dtype, &floats);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const heft__frame_t *frames[3] = { &floats, &e->frames[0], &e->frames[1] };
    boxes_t boxes = { .e = e, .blocks = &blocks, .dst = &floats };
    for (int i = 0; i < 3; i++) {
        boxes.view[i] = (heft_view_t){ .buffer = frames[i]->buffer, .offset = frames[i]->offset };
    }
    status = put_boxes(boxes, 0);
    e->frames[0] = floats;
    e->n_frames = 1;
    e->kernel = NULL;
    return status;
}

/* ---- mxfp4 ---- */

heft_status_t heft__emit_unpacked(heft__emitter_t *e)
{
    const heft__frame_t *blocks = &e->frames[0];
    heft__frame_t floats;
    heft_view_t srcs[2];
    heft_view_t dst = { .rank = 0 };
    uint32_t n = blocks->n;
    int32_t last = n > 0 ? blocks->order[n - 1] : HEFT__NONE;
    if (n < 2 || last >= HEFT__MAX_AXES || e->m->extent[last] != MXFP4_BYTES ||
        has_axis(&e->frames[1], last)) {
        return FAIL(e, e->rule->kernel_pos, HEFT_ERR_SHAPE,
                    "\"%s\": blocks need a last axis of %d bytes, which the scales do not have",
                    e->m->name, MXFP4_BYTES);
    }
    heft_status_t status = plain_view(e, blocks, blocks->order, n, &srcs[0]);
    if (status == HEFT_OK) {
        status = plain_view(e, &e->frames[1], blocks->order, n - 1, &srcs[1]);
    }
    e->m->extent[last] = MXFP4_VALUES;
    if (status == HEFT_OK) {
        status = heft__emit_temp(e, blocks->order, n, e->dtype, &floats);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = plain_view(e, &floats, blocks->order, n, &dst);
    if (status == HEFT_OK && heft__emit_has_elements(&dst)) {
        dst.rank--; /* values of a row of groups follow one another */
        dst.extent[n - 2] *= MXFP4_VALUES;
        dst.stride[n - 2] = 1;
        status = heft_tape_opaque(e->c->tape, "heft.mxfp4_unpack/1", &dst, 1, srcs, 2,
                                  e->rule->note, e->c->err);
    }
    e->frames[0] = floats;
    e->n_frames = 1;
    e->kernel = NULL;
    return status;
}
