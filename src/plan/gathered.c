/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known kernels whose inputs lie with several senders. Of the pieces of a rank's plan over whole
 * tensors two tapes are made: one that brings the inputs of such kernels to the rank, and one that
 * the rank runs itself. What they do together is what the plan says of these kernels: pieces are
 * repeated as they are.
 */
#include "plan/plan.h"

#include <string.h>

#include "plan/routes.h"

#define NO_BUFFER UINT32_MAX

typedef struct gathering {
    const heft_plan_t *plan;
    const heft__plan_rank_t *rank;
    bool *is_split;    /* by operation */
    uint64_t *next;    /* by piece: the next one that reads the same operation, or n_pieces */
    uint64_t *first;   /* by operation */
    uint32_t *sources; /* by source: its buffer on the tape of inputs, or NO_BUFFER */
    uint32_t *params;  /* by parameter: its buffer on the local tape */
    uint32_t *work;    /* by work buffer: likewise, or NO_BUFFER */
    uint32_t n_work;
    heft__gathered_t out;
    heft_error_t *err;
} gathering_t;

/* ---- which ---- */

static void list_readers(gathering_t *g)
{
    const heft__plan_rank_t *rank = g->rank;
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        g->first[k] = rank->n_pieces;
    }
    for (uint64_t i = rank->n_pieces; i-- > 0;) {
        const heft_piece_t *piece = &rank->pieces[i];
        const bool reads = piece->n_srcs == 1 && piece->srcs[0].opaque != 0;
        g->next[i] = rank->n_pieces;
        if (reads) {
            g->next[i] = g->first[piece->srcs[0].opaque - 1];
            g->first[piece->srcs[0].opaque - 1] = i;
        }
    }
}

static heft_status_t find_split(gathering_t *g, const heft_placement_t *placement)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t k = 0; k < g->rank->n_opaques && status == HEFT_OK; k++) {
        const heft_opaque_t *op = &g->rank->opaques[k];
        if (g->first[k] == g->rank->n_pieces || !heft__operation_is_plain(op)) {
            continue; /* nobody needs it, or the routes have refused it */
        }
        status = heft__operation_is_split(placement, g->plan, op, true, &g->is_split[k], g->err);
        g->out.n_ops += g->is_split[k];
        for (uint32_t i = 0; i < op->n_outputs; i++) {
            const uint32_t buffer = op->outputs[i].view.buffer;
            g->n_work = buffer >= g->n_work ? buffer + 1 : g->n_work;
        }
    }
    return status;
}

/* ---- tapes ---- */

static heft_status_t add_buffer(gathering_t *g, heft_tape_t *tape, heft_buffer_kind_t kind,
                                const char *name, heft_dtype_t dtype, const heft_shape_t *shape,
                                uint32_t *buffer_out)
{
    heft_buffer_info_t info = { .name = name, .kind = kind, .dtype = dtype, .shape = *shape };
    info.n_elems = 1;
    for (int32_t d = 0; d < shape->rank; d++) {
        info.n_elems *= shape->extent[d]; /* a buffer of the plan: bounded */
    }
    return heft__tape_add_storage(tape, &info, buffer_out, g->err);
}

/* A piece as a write from these buffers, one for each of its sources. */
static heft_status_t repeat(gathering_t *g, heft_tape_t *tape, const heft_piece_t *piece,
                            uint32_t dst_buffer, const uint32_t *buffers, const char *note)
{
    heft_view_t dst = { .buffer = dst_buffer, .rank = piece->rank, .offset = piece->dst_offset };
    heft_view_t srcs[HEFT_MAX_SOURCES];
    memcpy(dst.extent, piece->extent, sizeof dst.extent);
    memcpy(dst.stride, piece->dst_stride, sizeof dst.stride);
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        srcs[s] = dst;
        srcs[s].buffer = buffers[s];
        srcs[s].offset = piece->srcs[s].offset;
        memcpy(srcs[s].stride, piece->srcs[s].stride, sizeof srcs[s].stride);
    }
    return piece->n_ops == 0 && piece->n_srcs == 1
               ? heft_tape_copy(tape, &dst, srcs, note, g->err)
               : heft_tape_map(tape, &dst, srcs, piece->n_srcs, piece->ops, piece->n_ops, note,
                               g->err);
}

static heft_status_t find_source(gathering_t *g, uint32_t source, uint32_t *buffer_out)
{
    const heft_tensor_info_t *info = &g->plan->sources[source];
    heft_status_t status = HEFT_OK;
    if (g->sources[source] == NO_BUFFER) {
        status = add_buffer(g, g->out.inputs, HEFT_BUFFER_SOURCE, info->name, info->dtype,
                            &info->shape, &g->sources[source]);
    }
    *buffer_out = g->sources[source];
    return status;
}

/* Input i of operation k: a parameter of the one tape, filled by its pieces, a source of the other.
 */
static heft_status_t add_input(gathering_t *g, uint32_t k, uint32_t i, heft_view_t *view_out)
{
    const heft_opaque_t *op = &g->rank->opaques[k];
    const heft_opaque_input_t *input = &op->inputs[i];
    const char *param = g->rank->params[g->rank->pieces[g->first[k]].param].name;
    uint32_t buffer = NO_BUFFER;
    uint32_t source = NO_BUFFER;
    heft__text_t name;
    heft__text_init(&name);
    heft__text_printf(&name, "%s (input %u of kernel %u)", param, (unsigned)i, (unsigned)k);
    heft_status_t status = name.failed ? heft__error_nomem(g->err, name.len)
                                       : add_buffer(g, g->out.inputs, HEFT_BUFFER_PARAM, name.data,
                                                    input->dtype, &input->shape, &buffer);
    if (status == HEFT_OK) {
        status = add_buffer(g, g->out.local, HEFT_BUFFER_SOURCE, name.data, input->dtype,
                            &input->shape, &source);
    }
    for (uint64_t p = 0; p < input->n_pieces && status == HEFT_OK; p++) {
        uint32_t buffers[HEFT_MAX_SOURCES] = { 0 };
        for (uint32_t s = 0; s < input->pieces[p].n_srcs && status == HEFT_OK; s++) {
            status = find_source(g, input->pieces[p].srcs[s].source, &buffers[s]);
        }
        if (status == HEFT_OK) {
            status = repeat(g, g->out.inputs, &input->pieces[p], buffer, buffers, op->note);
        }
    }
    heft__text_fini(&name);
    *view_out = heft_view_contiguous(source, &input->shape);
    return status;
}

/* Where output i of an operation lies on the local tape. */
static heft_status_t find_work(gathering_t *g, const heft_opaque_output_t *output,
                               heft_view_t *view_out)
{
    uint32_t *buffer = &g->work[output->view.buffer];
    const heft_shape_t shape = { .rank = 1, .extent = { output->buffer_elems } };
    heft_status_t status = HEFT_OK;
    if (*buffer == NO_BUFFER) {
        status = add_buffer(g, g->out.local, HEFT_BUFFER_TEMP, "", output->dtype, &shape, buffer);
    }
    *view_out = output->view;
    view_out->buffer = *buffer;
    return status;
}

/* The operation, and what parameters take from it before another one writes where it did. */
static heft_status_t add_operation(gathering_t *g, uint32_t k)
{
    const heft_opaque_t *op = &g->rank->opaques[k];
    heft_view_t srcs[HEFT_MAX_SOURCES];
    heft_view_t dsts[HEFT_MAX_SOURCES];
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < op->n_inputs && status == HEFT_OK; i++) {
        status = add_input(g, k, i, &srcs[i]);
    }
    for (uint32_t i = 0; i < op->n_outputs && status == HEFT_OK; i++) {
        status = find_work(g, &op->outputs[i], &dsts[i]);
    }
    if (status == HEFT_OK) {
        status = heft_tape_opaque(g->out.local, op->op, dsts, op->n_outputs, srcs, op->n_inputs,
                                  op->note, g->err);
    }
    for (uint64_t i = g->first[k]; i < g->rank->n_pieces && status == HEFT_OK; i = g->next[i]) {
        const heft_piece_t *piece = &g->rank->pieces[i];
        status = repeat(g, g->out.local, piece, g->params[piece->param],
                        &dsts[piece->srcs[0].source].buffer, g->rank->notes[i]);
    }
    return status;
}

static heft_status_t add_params(gathering_t *g)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t p = 0; p < g->rank->n_params && status == HEFT_OK; p++) {
        const heft_tensor_info_t *info = &g->rank->params[p];
        status = add_buffer(g, g->out.local, HEFT_BUFFER_PARAM, info->name, info->dtype,
                            &info->shape, &g->params[p]);
    }
    return status;
}

static heft_status_t make_tapes(gathering_t *g)
{
    g->work = heft__calloc((size_t)g->n_work + 1, sizeof *g->work);
    if (g->work == NULL) {
        return heft__error_nomem(g->err, g->n_work * sizeof *g->work);
    }
    memset(g->work, 0xff, g->n_work * sizeof *g->work);
    memset(g->sources, 0xff, g->plan->n_sources * sizeof *g->sources);
    heft_status_t status = heft_tape_create(&g->out.inputs, g->err);
    if (status == HEFT_OK) {
        status = heft_tape_create(&g->out.local, g->err);
    }
    if (status == HEFT_OK) {
        status = add_params(g);
    }
    for (uint32_t k = 0; k < g->rank->n_opaques && status == HEFT_OK; k++) {
        status = g->is_split[k] ? add_operation(g, k) : HEFT_OK;
    }
    return status;
}

/* ---- all ---- */

static heft_status_t alloc(gathering_t *g)
{
    const heft__plan_rank_t *rank = g->rank;
    g->is_split = heft__calloc((size_t)rank->n_opaques + 1, sizeof *g->is_split);
    g->first = heft__calloc((size_t)rank->n_opaques + 1, sizeof *g->first);
    g->next = heft__calloc(rank->n_pieces + 1, sizeof *g->next);
    g->sources = heft__calloc((size_t)g->plan->n_sources + 1, sizeof *g->sources);
    g->params = heft__calloc((size_t)rank->n_params + 1, sizeof *g->params);
    return g->is_split != NULL && g->first != NULL && g->next != NULL && g->sources != NULL &&
                   g->params != NULL
               ? HEFT_OK
               : heft__error_nomem(g->err, rank->n_pieces * sizeof *g->next);
}

heft_status_t heft__gathered_init(const heft_plan_t *whole, uint32_t rank_index,
                                  const heft_placement_t *placement, heft__gathered_t *gathered_out,
                                  heft_error_t *err)
{
    gathering_t g = { .plan = whole, .rank = &whole->ranks[rank_index], .err = err };
    heft_status_t status = HEFT_OK;
    if (g.rank->n_opaques > 0) {
        status = alloc(&g);
        if (status == HEFT_OK) {
            list_readers(&g);
            status = find_split(&g, placement);
        }
    }
    if (status == HEFT_OK && g.out.n_ops > 0) {
        status = make_tapes(&g);
    }
    heft__free(g.is_split);
    heft__free(g.first);
    heft__free(g.next);
    heft__free(g.sources);
    heft__free(g.params);
    heft__free(g.work);
    if (status != HEFT_OK) {
        heft__gathered_fini(&g.out);
        return status;
    }
    *gathered_out = g.out;
    return HEFT_OK;
}

void heft__gathered_fini(heft__gathered_t *gathered)
{
    heft_tape_destroy(gathered->inputs);
    heft_tape_destroy(gathered->local);
    *gathered = (heft__gathered_t){ .n_ops = 0 };
}
