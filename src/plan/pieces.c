/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tape to one rank of the plan: parameters by name, the folded pieces in that order, and the
 * operations that fold cannot take apart. All of it is copied; nothing points into tape or fold.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct adder {
    heft__plan_builder_t *builder;
    heft_plan_t *plan;
    heft__plan_rank_t *rank;
    const heft_tape_t *tape;
    const heft__fold_t *fold;
    uint32_t *source_of;    /* buffer of the tape -> source of the plan */
    uint32_t *work_of;      /* buffer of the tape -> work buffer of the rank */
    heft_piece_src_t *srcs; /* room for the sources of all pieces still to come */
    const char *last_note;  /* the note seen last, and our copy of it */
    const char *last_text;
    const heft_op_t *last_ops;
    uint32_t last_n_ops;
    heft_error_t *err;
} adder_t;

static heft_status_t nomem(const adder_t *a, size_t bytes)
{
    return heft__error_nomem(a->err, bytes);
}

/* ---- notes and programs, each kept once ---- */

static const char *keep_note(adder_t *a, const char *note)
{
    heft__plan_builder_t *builder = a->builder;
    if (note == a->last_note) {
        return a->last_text;
    }
    size_t length = strlen(note);
    uint32_t i = heft__map_get(&builder->notes, note, length);
    if (i == HEFT__MAP_NONE) {
        char *text = heft__arena_strndup(&a->plan->arena, note, length);
        void *items = builder->note_texts;
        bool ok = heft__grow(&items, &builder->cap_notes, builder->n_notes + 1,
                             sizeof *builder->note_texts);
        builder->note_texts = items;
        i = (uint32_t)builder->n_notes;
        if (!ok || text == NULL || heft__map_put(&builder->notes, text, length, i) != HEFT_OK) {
            return NULL;
        }
        builder->note_texts[builder->n_notes++] = text;
    }
    a->last_note = note;
    a->last_text = builder->note_texts[i];
    return a->last_text;
}

static const heft_op_t *keep_ops(adder_t *a, const heft_op_t *ops, uint32_t n_ops)
{
    size_t bytes = n_ops * sizeof *ops;
    if (n_ops == a->last_n_ops && memcmp(ops, a->last_ops, bytes) == 0) {
        return a->last_ops;
    }
    heft_op_t *copy = heft__arena_alloc(&a->plan->arena, bytes);
    if (copy != NULL) {
        memcpy(copy, ops, bytes);
        a->last_ops = copy;
        a->last_n_ops = n_ops;
    }
    return copy;
}

/* ---- pieces ---- */

static const heft__fold_opaque_t *find_opaque(const heft__fold_t *fold, uint32_t write)
{
    uint32_t low = 0;
    uint32_t high = fold->n_opaques;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (fold->opaques[middle].write < write) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < fold->n_opaques && fold->opaques[low].write == write ? &fold->opaques[low] : NULL;
}

static heft_status_t copy_src(adder_t *a, const heft__fold_src_t *from, int32_t n_dims,
                              heft_piece_src_t *to)
{
    *to = (heft_piece_src_t){ .offset = from->offset };
    memcpy(to->stride, from->stride, (size_t)n_dims * sizeof to->stride[0]);
    if (from->opaque_write == HEFT__NO_WRITE) {
        to->source = a->source_of[from->buffer];
        return to->source != HEFT__MAP_NONE ? HEFT_OK
                                            : HEFT_BUG(a->err, "piece reads a buffer that is none");
    }
    const heft__fold_opaque_t *opaque = find_opaque(a->fold, from->opaque_write);
    if (opaque == NULL) {
        return HEFT_BUG(a->err, "piece reads an unknown operation");
    }
    const heft__write_t *write = &a->tape->writes[opaque->write];
    to->opaque = (uint32_t)(opaque - a->fold->opaques) + 1;
    for (uint32_t i = 0; i < write->n_dsts; i++) {
        if (write->dsts[i].buffer == from->buffer) {
            to->source = i;
            return HEFT_OK;
        }
    }
    return HEFT_BUG(a->err, "piece reads what an operation does not write");
}

/* param: the parameter's number, or the input's. */
static heft_status_t copy_piece(adder_t *a, const heft__fold_piece_t *from, uint32_t param,
                                heft_piece_t *to)
{
    if (from->rank < 0 || from->rank > HEFT_MAX_DIMS || from->n_srcs > HEFT_MAX_SOURCES) {
        return HEFT_BUG(a->err, "piece out of bounds");
    }
    *to = (heft_piece_t){ .param = param,
                          .group = HEFT_GROUP_NONE,
                          .rank = from->rank,
                          .n_srcs = from->n_srcs,
                          .n_ops = from->n_ops,
                          .dst_offset = from->dst_offset,
                          .srcs = a->srcs };
    memcpy(to->extent, from->extent, (size_t)from->rank * sizeof to->extent[0]);
    memcpy(to->dst_stride, from->dst_stride, (size_t)from->rank * sizeof to->dst_stride[0]);
    for (uint32_t s = 0; s < from->n_srcs; s++) {
        heft_status_t status = copy_src(a, &from->srcs[s], from->rank, a->srcs++);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (from->n_ops > 0) {
        to->ops = keep_ops(a, from->ops, from->n_ops);
        if (to->ops == NULL) {
            return nomem(a, from->n_ops * sizeof *to->ops);
        }
    }
    return HEFT_OK;
}

static heft_status_t add_pieces(adder_t *a, const uint32_t *buffers)
{
    heft__plan_rank_t *rank = a->rank;
    uint64_t n = 0;
    for (uint32_t p = 0; p < rank->n_params; p++) {
        uint64_t n_pieces;
        const heft__fold_piece_t *pieces = heft__fold_get_pieces(a->fold, buffers[p], &n_pieces);
        rank->first_piece[p] = n;
        for (uint64_t i = 0; i < n_pieces; i++, n++) {
            if (n == rank->n_pieces || pieces[i].write >= a->tape->n_writes) {
                return HEFT_BUG(a->err, "more pieces than fold counted");
            }
            heft_status_t status = copy_piece(a, &pieces[i], p, &rank->pieces[n]);
            if (status != HEFT_OK) {
                return status;
            }
            rank->notes[n] = keep_note(a, a->tape->writes[pieces[i].write].note);
            if (rank->notes[n] == NULL) {
                return nomem(a, 1);
            }
        }
    }
    rank->first_piece[rank->n_params] = n;
    return n == rank->n_pieces ? HEFT_OK : HEFT_BUG(a->err, "fewer pieces than fold counted");
}

/* ---- operations ---- */

static heft_status_t add_inputs(adder_t *a, const heft__fold_opaque_t *from, heft_opaque_t *to,
                                uint64_t *n_pieces)
{
    const heft__write_t *write = &a->tape->writes[from->write];
    heft_opaque_input_t *inputs =
        heft__arena_calloc(&a->plan->arena, from->n_inputs, sizeof *inputs);
    if (inputs == NULL) {
        return nomem(a, from->n_inputs * sizeof *inputs);
    }
    for (uint32_t i = 0; i < from->n_inputs; i++) {
        const heft__tape_view_t *view = &write->srcs[i];
        heft_piece_t *pieces = a->rank->input_pieces + *n_pieces;
        inputs[i].dtype = a->tape->buffers[view->buffer].dtype;
        inputs[i].shape.rank = view->rank;
        memcpy(inputs[i].shape.extent, view->extent,
               (size_t)view->rank * sizeof inputs[i].shape.extent[0]);
        inputs[i].pieces = pieces;
        inputs[i].n_pieces = from->inputs[i].n_pieces;
        for (uint64_t k = 0; k < inputs[i].n_pieces; k++) {
            heft_status_t status = copy_piece(a, &from->inputs[i].pieces[k], i, &pieces[k]);
            if (status != HEFT_OK) {
                return status;
            }
        }
        *n_pieces += inputs[i].n_pieces;
    }
    to->inputs = inputs;
    to->n_inputs = from->n_inputs;
    return HEFT_OK;
}

static heft_status_t add_outputs(adder_t *a, const heft__write_t *write, heft_opaque_t *to,
                                 uint32_t *n_work)
{
    heft_opaque_output_t *outputs =
        heft__arena_calloc(&a->plan->arena, write->n_dsts, sizeof *outputs);
    if (outputs == NULL) {
        return nomem(a, write->n_dsts * sizeof *outputs);
    }
    for (uint32_t i = 0; i < write->n_dsts; i++) {
        uint32_t buffer = write->dsts[i].buffer;
        if (a->work_of[buffer] == HEFT__MAP_NONE) {
            a->work_of[buffer] = (*n_work)++;
        }
        outputs[i].dtype = a->tape->buffers[buffer].dtype;
        outputs[i].view = heft__tape_view_expand(&write->dsts[i]);
        outputs[i].view.buffer = a->work_of[buffer];
        outputs[i].buffer_elems = a->tape->buffers[buffer].n_elems;
    }
    to->outputs = outputs;
    to->n_outputs = write->n_dsts;
    return HEFT_OK;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static heft_status_t add_opaque(adder_t *a, const heft__fold_opaque_t *from, heft_opaque_t *to,
                                uint64_t *n_pieces, uint32_t *n_work)
{
    const heft__write_t *write = &a->tape->writes[from->write];
    uint32_t *sources = heft__arena_calloc(&a->plan->arena, from->n_sources, sizeof *sources);
    to->group = HEFT_GROUP_NONE;
    to->op = heft__arena_strndup(&a->plan->arena, write->op, strlen(write->op));
    to->note = keep_note(a, write->note);
    if (sources == NULL || to->op == NULL || to->note == NULL) {
        return nomem(a, from->n_sources * sizeof *sources);
    }
    for (uint32_t i = 0; i < from->n_sources; i++) {
        sources[i] = a->source_of[from->sources[i]];
    }
    qsort(sources, from->n_sources, sizeof *sources, compare_u32);
    to->sources = sources;
    to->n_sources = from->n_sources;
    heft_status_t status = add_inputs(a, from, to, n_pieces);
    return status != HEFT_OK ? status : add_outputs(a, write, to, n_work);
}

static heft_status_t add_opaques(adder_t *a)
{
    uint64_t n_pieces = 0;
    uint32_t n_work = 0;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < a->fold->n_opaques && status == HEFT_OK; i++) {
        status = add_opaque(a, &a->fold->opaques[i], &a->rank->opaques[i], &n_pieces, &n_work);
    }
    return status;
}

/* ---- parameters ---- */

static int compare_buffers(const void *x, const void *y, void *arg)
{
    const heft_tape_t *tape = arg;
    return strcmp(tape->buffers[*(const uint32_t *)x].name,
                  tape->buffers[*(const uint32_t *)y].name);
}

static heft_status_t add_params(adder_t *a, const uint32_t **buffers_out)
{
    heft__plan_rank_t *rank = a->rank;
    heft__arena_t *arena = &a->plan->arena;
    for (size_t i = 0; i < a->tape->n_buffers; i++) {
        rank->n_params += a->tape->buffers[i].kind == HEFT_BUFFER_PARAM;
    }
    uint32_t *buffers = heft__arena_calloc(arena, rank->n_params, sizeof *buffers);
    rank->params = heft__arena_calloc(arena, rank->n_params, sizeof *rank->params);
    rank->first_piece =
        heft__arena_calloc(arena, (size_t)rank->n_params + 1, sizeof *rank->first_piece);
    if (buffers == NULL || rank->params == NULL || rank->first_piece == NULL) {
        return nomem(a, rank->n_params * sizeof *rank->params);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->tape->n_buffers; i++) {
        if (a->tape->buffers[i].kind == HEFT_BUFFER_PARAM) {
            buffers[n++] = i;
        }
    }
    /* qsort_r passes its argument on as void *; the tape is only read */
    union {
        const heft_tape_t *in;
        void *out;
    } tape = { .in = a->tape };
    qsort_r(buffers, n, sizeof *buffers, compare_buffers, tape.out);
    for (uint32_t p = 0; p < n; p++) {
        const heft_buffer_info_t *buffer = &a->tape->buffers[buffers[p]];
        heft_tensor_info_t *info = &rank->params[p];
        *info = (heft_tensor_info_t){ .name = heft__arena_strndup(arena, buffer->name,
                                                                  strlen(buffer->name)),
                                      .dtype = buffer->dtype,
                                      .shape = buffer->shape,
                                      .n_elems = buffer->n_elems };
        if (info->name == NULL) {
            return nomem(a, strlen(buffer->name) + 1);
        }
        if (!heft__mul(info->n_elems, heft_dtype_get_unit_bytes(info->dtype), &info->n_bytes)) {
            return heft__error_set(a->err, HEFT_ERR_OVERFLOW, "parameter \"%s\": %lld elements",
                                   info->name, (long long)info->n_elems);
        }
    }
    *buffers_out = buffers;
    return HEFT_OK;
}

/* ---- the rank ---- */

static heft_status_t map_buffers(adder_t *a)
{
    size_t n = a->tape->n_buffers;
    a->source_of = heft__calloc(n + 1, sizeof *a->source_of);
    a->work_of = heft__calloc(n + 1, sizeof *a->work_of);
    if (a->source_of == NULL || a->work_of == NULL) {
        return nomem(a, n * sizeof *a->source_of);
    }
    for (size_t i = 0; i < n; i++) {
        const heft_buffer_info_t *buffer = &a->tape->buffers[i];
        a->work_of[i] = HEFT__MAP_NONE;
        a->source_of[i] =
            buffer->kind == HEFT_BUFFER_SOURCE
                ? heft__map_get(&a->builder->sources, buffer->name, strlen(buffer->name))
                : HEFT__MAP_NONE;
    }
    return HEFT_OK;
}

/* Room for all pieces, their sources and notes, and the operations. */
static heft_status_t make_room(adder_t *a)
{
    heft__plan_rank_t *rank = a->rank;
    heft__arena_t *arena = &a->plan->arena;
    uint64_t n_srcs = 0;
    for (uint64_t i = 0; i < a->fold->n_pieces; i++) {
        n_srcs += a->fold->pieces[i].n_srcs;
    }
    for (uint32_t i = 0; i < a->fold->n_opaques; i++) {
        for (uint32_t k = 0; k < a->fold->opaques[i].n_inputs; k++) {
            const heft__fold_input_t *input = &a->fold->opaques[i].inputs[k];
            rank->n_input_pieces += input->n_pieces;
            for (uint64_t p = 0; p < input->n_pieces; p++) {
                n_srcs += input->pieces[p].n_srcs;
            }
        }
    }
    rank->n_pieces = a->fold->n_pieces;
    rank->n_opaques = a->fold->n_opaques;
    rank->pieces = heft__arena_calloc(arena, rank->n_pieces, sizeof *rank->pieces);
    rank->notes = heft__arena_calloc(arena, rank->n_pieces, sizeof *rank->notes);
    rank->input_pieces =
        heft__arena_calloc(arena, rank->n_input_pieces, sizeof *rank->input_pieces);
    rank->opaques = heft__arena_calloc(arena, rank->n_opaques, sizeof *rank->opaques);
    a->srcs = heft__arena_calloc(arena, n_srcs, sizeof *a->srcs);
    if (rank->pieces == NULL || rank->notes == NULL || rank->input_pieces == NULL ||
        rank->opaques == NULL || a->srcs == NULL) {
        return nomem(a, rank->n_pieces * sizeof *rank->pieces);
    }
    return HEFT_OK;
}

heft_status_t heft__plan_add_rank(heft__plan_builder_t *builder, uint32_t rank_index,
                                  const heft_tape_t *tape, heft__fold_t **fold_out,
                                  const uint32_t **buffers_out, heft_error_t *err)
{
    heft_plan_t *plan = builder->plan;
    heft__fold_t *fold = NULL;
    const heft__fold_opts_t opts = { .max_pieces = builder->max_pieces };
    heft_status_t status = heft__fold_create(tape, &opts, &fold, err);
    if (status != HEFT_OK) {
        return status;
    }
    adder_t a = { .builder = builder,
                  .plan = plan,
                  .rank = &plan->ranks[rank_index],
                  .tape = tape,
                  .fold = fold,
                  .err = err };
    const uint32_t *buffers = NULL;
    status = add_params(&a, &buffers);
    if (status == HEFT_OK) {
        status = map_buffers(&a);
    }
    if (status == HEFT_OK) {
        status = make_room(&a);
    }
    if (status == HEFT_OK) {
        status = add_pieces(&a, buffers);
    }
    if (status == HEFT_OK) {
        status = add_opaques(&a);
    }
    heft__free(a.source_of);
    heft__free(a.work_of);
    if (status != HEFT_OK) {
        heft__fold_destroy(fold);
        return status;
    }
    a.rank->first_slot = plan->n_slots;
    a.rank->first_opaque = plan->n_opaques;
    plan->n_slots += a.rank->n_params;
    plan->n_opaques += a.rank->n_opaques;
    plan->n_pieces += a.rank->n_pieces;
    *fold_out = fold;
    *buffers_out = buffers;
    return HEFT_OK;
}

/* ---- checks ---- */

static heft_status_t make_check_room(adder_t *a, const heft__check_ref_t *refs, size_t n)
{
    heft__plan_rank_t *rank = a->rank;
    heft__arena_t *arena = &a->plan->arena;
    size_t n_srcs = 0;
    for (size_t i = 0; i < n; i++) {
        n_srcs += a->fold->overwrites[refs[i].overwrite].earlier->n_srcs;
    }
    rank->checks = heft__arena_calloc(arena, n, sizeof *rank->checks);
    rank->check_notes = heft__arena_calloc(arena, n, sizeof *rank->check_notes);
    rank->first_check =
        heft__arena_calloc(arena, (size_t)rank->n_params + 1, sizeof *rank->first_check);
    a->srcs = heft__arena_calloc(arena, n_srcs, sizeof *a->srcs);
    return rank->checks != NULL && rank->check_notes != NULL && rank->first_check != NULL &&
                   a->srcs != NULL
               ? HEFT_OK
               : nomem(a, n * sizeof *rank->checks);
}

static heft_status_t copy_checks(adder_t *a, const heft__check_ref_t *refs, size_t n)
{
    heft__plan_rank_t *rank = a->rank;
    for (size_t i = 0; i < n; i++) {
        const heft__fold_piece_t *from = a->fold->overwrites[refs[i].overwrite].earlier;
        heft_status_t status = copy_piece(a, from, refs[i].param, &rank->checks[i]);
        if (status != HEFT_OK) {
            return status;
        }
        rank->check_notes[i] = keep_note(a, a->tape->writes[from->write].note);
        if (rank->check_notes[i] == NULL) {
            return nomem(a, 1);
        }
        rank->first_check[refs[i].param + 1]++;
    }
    for (uint32_t p = 0; p < rank->n_params; p++) {
        rank->first_check[p + 1] += rank->first_check[p];
    }
    rank->n_checks = n;
    return HEFT_OK;
}

heft_status_t heft__plan_add_checks(heft__plan_builder_t *builder, uint32_t rank_index,
                                    const heft_tape_t *tape, const heft__fold_t *fold,
                                    const heft__check_ref_t *refs, size_t n, heft_error_t *err)
{
    adder_t a = { .builder = builder,
                  .plan = builder->plan,
                  .rank = &builder->plan->ranks[rank_index],
                  .tape = tape,
                  .fold = fold,
                  .err = err };
    heft_status_t status = map_buffers(&a);
    if (status == HEFT_OK) {
        status = make_check_room(&a, refs, n);
    }
    if (status == HEFT_OK) {
        status = copy_checks(&a, refs, n);
    }
    heft__free(a.source_of);
    heft__free(a.work_of);
    return status;
}
