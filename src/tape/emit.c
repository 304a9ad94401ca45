/* SPDX-License-Identifier: Apache-2.0 */
/* From definers to the immutable result: pieces, overwrites, which opaque writes matter. */
#include "tape/folding.h"

#include <string.h>

/* ---- pieces ---- */

static heft_status_t make_piece(heft__folding_t *f, uint32_t buffer, const heft__strip_t *strip,
                                heft__fold_piece_t *piece, heft_error_t *err)
{
    heft__arena_t *arena = &f->fold->arena;
    const heft__origin_t *origin = &f->origins[strip->tag];
    const heft__program_t *program = &f->programs[origin->program];
    size_t n_values = heft__strip_len(strip->rank, strip->n_maps);
    int64_t *v = heft__arena_alloc(arena, n_values * sizeof *v);
    heft__fold_src_t *srcs = heft__arena_alloc(arena, origin->n_srcs * sizeof *srcs);
    if (v == NULL || srcs == NULL) {
        return heft__error_nomem(err, n_values * sizeof *v);
    }
    memcpy(v, strip->v, n_values * sizeof *v);
    heft__strip_t copy = *strip;
    copy.v = v;
    for (uint32_t s = 0; s < origin->n_srcs; s++) {
        const int64_t *map = heft__strip_map(&copy, (int)s + 1);
        srcs[s] = (heft__fold_src_t){ .buffer = origin->srcs[s].buffer,
                                      .opaque_write = origin->srcs[s].opaque_write,
                                      .offset = map[0],
                                      .stride = map + 1 };
    }
    const int64_t *dst = heft__strip_map(&copy, 0);
    *piece = (heft__fold_piece_t){ .buffer = buffer,
                                   .write = strip->note,
                                   .rank = strip->rank,
                                   .n_srcs = origin->n_srcs,
                                   .n_ops = program->n_ops,
                                   .dst_offset = dst[0],
                                   .extent = v,
                                   .dst_stride = dst + 1,
                                   .srcs = srcs,
                                   .ops = f->finals[origin->program].ops };
    return HEFT_OK;
}

/* The operations of every program so far, once, in the fold's memory. */
static heft_status_t copy_programs(heft__folding_t *f, heft_error_t *err)
{
    void *items = f->finals;
    if (!heft__grow(&items, &f->cap_finals, f->n_programs, sizeof *f->finals)) {
        return heft__error_nomem(err, f->n_programs * sizeof *f->finals);
    }
    f->finals = items;
    for (; f->n_finals < f->n_programs; f->n_finals++) {
        const heft__program_t *program = &f->programs[f->n_finals];
        size_t bytes = program->n_ops * sizeof program->ops[0];
        heft_op_t *ops = heft__arena_alloc(&f->fold->arena, bytes);
        if (ops == NULL) {
            return heft__error_nomem(err, bytes);
        }
        memcpy(ops, program->ops, bytes);
        f->finals[f->n_finals].ops = ops;
    }
    return HEFT_OK;
}

heft_status_t heft__folding_make_pieces(heft__folding_t *f, uint32_t buffer,
                                        const heft__strip_t *strips, size_t n,
                                        heft__fold_piece_t *pieces, heft_error_t *err)
{
    heft_status_t status = copy_programs(f, err);
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        status = make_piece(f, buffer, &strips[i], &pieces[i], err);
    }
    return status;
}

/* ---- parameters ---- */

/* The definers of a buffer, merged and in order, in f->results. */
static heft_status_t gather(heft__folding_t *f, const heft__definers_t *definers, heft_error_t *err)
{
    heft_status_t status = heft__definers_list(definers, &f->found, err);
    f->results.n = 0;
    for (size_t i = 0; i < f->found.n && status == HEFT_OK; i++) {
        status = heft__strip_list_push(&f->results, &f->strips.items[f->found.items[i].strip], err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    return heft__strips_coalesce(&f->arena, f->results.items, &f->results.n, err);
}

static uint64_t count_definers(const heft__folding_t *f)
{
    uint64_t n = 0;
    for (size_t b = 0; b < f->tape->n_buffers; b++) {
        n += f->tape->buffers[b].kind == HEFT_BUFFER_PARAM ? f->definers[b].n : 0;
    }
    return n;
}

static heft_status_t emit_pieces(heft__folding_t *f, heft_error_t *err)
{
    heft__fold_t *fold = f->fold;
    size_t n_buffers = f->tape->n_buffers;
    uint64_t max_pieces = count_definers(f); /* merging only makes it fewer */
    fold->first_piece = heft__arena_calloc(&fold->arena, n_buffers + 1, sizeof *fold->first_piece);
    fold->pieces = heft__arena_alloc(&fold->arena, max_pieces * sizeof *fold->pieces);
    if (fold->first_piece == NULL || fold->pieces == NULL) {
        return heft__error_nomem(err, max_pieces * sizeof *fold->pieces);
    }
    for (size_t b = 0; b < n_buffers; b++) {
        fold->first_piece[b] = fold->n_pieces;
        if (f->tape->buffers[b].kind != HEFT_BUFFER_PARAM || f->definers[b].n == 0) {
            continue;
        }
        heft_status_t status = gather(f, &f->definers[b], err);
        if (status == HEFT_OK) {
            status = heft__folding_make_pieces(f, (uint32_t)b, f->results.items, f->results.n,
                                               fold->pieces + fold->n_pieces, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        fold->n_pieces += f->results.n;
    }
    fold->first_piece[n_buffers] = fold->n_pieces;
    return HEFT_OK;
}

/* ---- the rest ---- */

static heft_status_t emit_overwrites(heft__folding_t *f, heft_error_t *err)
{
    heft__fold_t *fold = f->fold;
    size_t n = f->overwrites.n;
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        n_kept += f->overwrites.items[i].earlier.n_maps > 1;
    }
    fold->overwrites = heft__arena_calloc(&fold->arena, n, sizeof *fold->overwrites);
    heft__fold_piece_t *kept = heft__arena_calloc(&fold->arena, n_kept, sizeof *kept);
    if (fold->overwrites == NULL || kept == NULL) {
        return heft__error_nomem(err, n * sizeof *fold->overwrites);
    }
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft__overwrite_t *item = &f->overwrites.items[i];
        fold->overwrites[i] = item->out;
        if (item->earlier.n_maps > 1) {
            fold->overwrites[i].earlier = kept;
            status = heft__folding_make_pieces(f, item->out.buffer, &item->earlier, 1, kept++, err);
        }
    }
    fold->n_overwrites = n;
    return status;
}

static void mark_used(heft__fold_t *fold, const heft__fold_piece_t *pieces, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < pieces[i].n_srcs; s++) {
            uint32_t write = pieces[i].srcs[s].opaque_write;
            heft__fold_opaque_t *opaque =
                write != HEFT__NO_WRITE ? heft__fold_find_opaque(fold, write) : NULL;
            if (opaque != NULL) {
                opaque->is_used = true;
            }
        }
    }
}

/* An opaque write is used by pieces of parameters, or by a later opaque write that is. */
static void mark_opaques(heft__fold_t *fold)
{
    mark_used(fold, fold->pieces, fold->n_pieces);
    for (uint32_t o = fold->n_opaques; o > 0; o--) {
        const heft__fold_opaque_t *opaque = &fold->opaques[o - 1];
        for (uint32_t i = 0; opaque->is_used && i < opaque->n_inputs; i++) {
            mark_used(fold, opaque->inputs[i].pieces, opaque->inputs[i].n_pieces);
        }
    }
}

heft_status_t heft__folding_emit(heft__folding_t *f, heft_error_t *err)
{
    heft_status_t status = emit_pieces(f, err);
    if (status == HEFT_OK) {
        status = emit_overwrites(f, err);
    }
    if (status == HEFT_OK) {
        mark_opaques(f->fold);
    }
    return status;
}

/* ---- reading a piece ---- */

int64_t heft__fold_piece_count(const heft__fold_piece_t *piece)
{
    int64_t n = 1;
    for (int k = 0; k < piece->rank; k++) {
        n *= piece->extent[k];
    }
    return n;
}

heft__region_t heft__fold_piece_region(const heft__fold_piece_t *piece)
{
    heft__region_t region = { .rank = piece->rank, .offset = piece->dst_offset };
    memcpy(region.extent, piece->extent, (size_t)piece->rank * sizeof region.extent[0]);
    memcpy(region.stride, piece->dst_stride, (size_t)piece->rank * sizeof region.stride[0]);
    return region;
}

heft_view_t heft__fold_piece_src_view(const heft__fold_piece_t *piece, uint32_t s)
{
    const heft__fold_src_t *src = &piece->srcs[s];
    heft_view_t view = { .buffer = src->buffer, .rank = piece->rank, .offset = src->offset };
    memcpy(view.extent, piece->extent, (size_t)piece->rank * sizeof view.extent[0]);
    memcpy(view.stride, src->stride, (size_t)piece->rank * sizeof view.stride[0]);
    return view;
}
