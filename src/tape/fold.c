/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over the tape (docs/internals/tape.md). For each write, in order: resolve what it reads
 * against the definers of the moment (resolve.c), then make the result the definers of what it
 * writes (overwrite.c). Opaque writes define their destinations by themselves and keep pieces for
 * their inputs. When the walk is over the definers of the parameters are the pieces (emit.c).
 */
#include "tape/folding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_MAX_PIECES = 1 << 16 };

/* ---- shared helpers ---- */

heft_status_t heft__folding_fail(const heft__folding_t *f, heft_status_t status, heft_error_t *err,
                                 const char *fmt, ...)
{
    char why[200];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    const char *note = f->tape->writes[f->write].note;
    bool has_note = note[0] != '\0';
    return heft__error_set(err, status, "write %u%s%s%s: %s", (unsigned)f->write,
                           has_note ? " (" : "", note, has_note ? ")" : "", why);
}

heft_status_t heft__strip_list_push(heft__strip_list_t *list, const heft__strip_t *strip,
                                    heft_error_t *err)
{
    const heft__strip_t copy = *strip;
    void *items = list->items;
    if (!heft__grow(&items, &list->cap, list->n + 1, sizeof *list->items)) {
        return heft__error_nomem(err, sizeof *list->items);
    }
    list->items = items;
    list->items[list->n++] = copy;
    return HEFT_OK;
}

/* Remember bytes in map under the number `index`; the key is copied to the arena. */
static heft_status_t put_key(heft__folding_t *f, heft__map_t *map, const void *bytes, size_t n,
                             size_t index, heft_error_t *err)
{
    char *key = heft__arena_alloc(&f->arena, n);
    if (key == NULL) {
        return heft__error_nomem(err, n);
    }
    memcpy(key, bytes, n);
    if (heft__map_put(map, key, n, (uint32_t)index) != HEFT_OK) {
        return heft__error_nomem(err, n);
    }
    return HEFT_OK;
}

heft_status_t heft__folding_intern_origin(heft__folding_t *f, const heft__origin_t *origin,
                                          uint32_t *index_out, heft_error_t *err)
{
    uint32_t index = heft__map_get(&f->origin_map, (const char *)origin, sizeof *origin);
    if (index != HEFT__MAP_NONE) {
        *index_out = index;
        return HEFT_OK;
    }
    void *items = f->origins;
    if (!heft__grow(&items, &f->cap_origins, f->n_origins + 1, sizeof *f->origins)) {
        return heft__error_nomem(err, sizeof *f->origins);
    }
    f->origins = items;
    heft_status_t status = put_key(f, &f->origin_map, origin, sizeof *origin, f->n_origins, err);
    if (status == HEFT_OK) {
        f->origins[f->n_origins] = *origin;
        *index_out = (uint32_t)f->n_origins++;
    }
    return status;
}

heft_status_t heft__folding_intern_program(heft__folding_t *f, const heft__program_t *program,
                                           uint32_t *index_out, heft_error_t *err)
{
    if (program->n_ops == 0) {
        *index_out = 0;
        return HEFT_OK;
    }
    size_t bytes = program->n_ops * sizeof program->ops[0];
    uint32_t index = heft__map_get(&f->program_map, (const char *)program->ops, bytes);
    if (index != HEFT__MAP_NONE) {
        *index_out = index;
        return HEFT_OK;
    }
    void *items = f->programs;
    if (!heft__grow(&items, &f->cap_programs, f->n_programs + 1, sizeof *f->programs)) {
        return heft__error_nomem(err, sizeof *f->programs);
    }
    f->programs = items;
    heft_status_t status = put_key(f, &f->program_map, program->ops, bytes, f->n_programs, err);
    if (status == HEFT_OK) {
        f->programs[f->n_programs] = *program;
        *index_out = (uint32_t)f->n_programs++;
    }
    return status;
}

/* ---- opaque writes ---- */

static bool is_empty(const heft__tape_view_t *view)
{
    for (int k = 0; k < view->rank; k++) {
        if (view->extent[k] == 0) {
            return true;
        }
    }
    return false;
}

/* What an opaque write reads, as pieces of a contiguous tensor with the extents of the view. */
static heft_status_t make_input(heft__folding_t *f, const heft__tape_view_t *src,
                                heft__fold_input_t *input, heft_error_t *err)
{
    *input = (heft__fold_input_t){ .n_pieces = 0 };
    if (is_empty(src)) {
        return HEFT_OK;
    }
    int64_t stride[HEFT_MAX_DIMS];
    int64_t count = 1;
    for (int k = src->rank - 1; k >= 0; k--) {
        stride[k] = count;
        count *= src->extent[k];
    }
    const heft__tape_view_t dst = { .rank = src->rank, .extent = src->extent, .stride = stride };
    heft_status_t status = heft__folding_resolve(f, &dst, src, 1, NULL, 0, err);
    if (status != HEFT_OK) {
        return status;
    }
    size_t n = f->results.n;
    heft__fold_piece_t *pieces = heft__arena_alloc(&f->fold->arena, n * sizeof *pieces);
    if (pieces == NULL) {
        return heft__error_nomem(err, n * sizeof *pieces);
    }
    status = heft__folding_make_pieces(f, src->buffer, f->results.items, n, pieces, err);
    *input = (heft__fold_input_t){ .pieces = pieces, .n_pieces = n };
    return status;
}

static int by_number(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa;
    uint32_t b = *(const uint32_t *)pb;
    return (a > b) - (a < b);
}

static heft_status_t push_id(heft__id_list_t *ids, uint32_t id, heft_error_t *err)
{
    void *items = ids->items;
    if (!heft__grow(&items, &ids->cap, ids->n + 1, sizeof *ids->items)) {
        return heft__error_nomem(err, sizeof *ids->items);
    }
    ids->items = items;
    ids->items[ids->n++] = id;
    return HEFT_OK;
}

/* Source tensors behind one source of a piece. */
static heft_status_t push_sources(const heft__fold_t *fold, const heft__fold_src_t *src,
                                  heft__id_list_t *ids, heft_error_t *err)
{
    if (src->opaque_write == HEFT__NO_WRITE) {
        return push_id(ids, src->buffer, err);
    }
    const heft__fold_opaque_t *opaque = heft__fold_find_opaque(fold, src->opaque_write);
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; opaque != NULL && i < opaque->n_sources && status == HEFT_OK; i++) {
        status = push_id(ids, opaque->sources[i], err);
    }
    return status;
}

static heft_status_t collect_sources(heft__folding_t *f, heft__fold_opaque_t *opaque,
                                     heft_error_t *err)
{
    heft__id_list_t *ids = &f->ids;
    heft_status_t status = HEFT_OK;
    ids->n = 0;
    for (uint32_t i = 0; i < opaque->n_inputs; i++) {
        const heft__fold_input_t *input = &opaque->inputs[i];
        for (uint64_t p = 0; p < input->n_pieces; p++) {
            const heft__fold_piece_t *piece = &input->pieces[p];
            for (uint32_t s = 0; s < piece->n_srcs && status == HEFT_OK; s++) {
                status = push_sources(f->fold, &piece->srcs[s], ids, err);
            }
        }
    }
    if (ids->n > 1) {
        qsort(ids->items, ids->n, sizeof *ids->items, by_number);
    }
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        if (n == 0 || ids->items[n - 1] != ids->items[i]) {
            ids->items[n++] = ids->items[i];
        }
    }
    uint32_t *sources = heft__arena_alloc(&f->fold->arena, n * sizeof *sources);
    if (sources == NULL) {
        return heft__error_nomem(err, n * sizeof *sources);
    }
    for (size_t i = 0; i < n; i++) {
        sources[i] = ids->items[i];
    }
    opaque->sources = sources;
    opaque->n_sources = (uint32_t)n;
    return status;
}

/* The destination defines itself: a plain piece that reads what the operation left there. */
static heft_status_t define_opaque(heft__folding_t *f, const heft__tape_view_t *dst,
                                   heft_error_t *err)
{
    const heft__origin_t origin = { .n_srcs = 1, .srcs = { { dst->buffer, f->write } } };
    heft__strip_t strip;
    uint32_t tag;
    heft_status_t status = heft__folding_intern_origin(f, &origin, &tag, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__box_t box;
    box.rank = dst->rank;
    box.n_maps = 2;
    box.offset[0] = dst->offset;
    box.offset[1] = dst->offset;
    for (int k = 0; k < dst->rank; k++) {
        box.dim[k].extent = dst->extent[k];
        box.dim[k].stride[0] = dst->stride[k];
        box.dim[k].stride[1] = dst->stride[k];
    }
    heft__box_normalize(&box, 0);
    strip = heft__strip_from_box(&f->arena, &box);
    if (strip.v == NULL) {
        return heft__error_nomem(err, sizeof box);
    }
    strip.tag = tag;
    strip.note = f->write;
    f->results.n = 0;
    status = heft__strip_list_push(&f->results, &strip, err);
    return status == HEFT_OK ? heft__folding_define(f, dst, err) : status;
}

static heft_status_t walk_opaque(heft__folding_t *f, const heft__write_t *write, heft_error_t *err)
{
    heft__fold_t *fold = f->fold;
    heft__fold_opaque_t *opaque = &fold->opaques[fold->n_opaques];
    heft__fold_input_t *inputs = heft__arena_alloc(&fold->arena, write->n_srcs * sizeof *inputs);
    if (inputs == NULL) {
        return heft__error_nomem(err, write->n_srcs * sizeof *inputs);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < write->n_srcs && status == HEFT_OK; i++) {
        status = make_input(f, &write->srcs[i], &inputs[i], err);
    }
    *opaque =
        (heft__fold_opaque_t){ .write = f->write, .n_inputs = write->n_srcs, .inputs = inputs };
    if (status == HEFT_OK) {
        status = collect_sources(f, opaque, err);
    }
    fold->n_opaques++;
    for (uint32_t i = 0; i < write->n_dsts && status == HEFT_OK; i++) {
        if (!is_empty(&write->dsts[i])) {
            status = define_opaque(f, &write->dsts[i], err);
        }
    }
    return status;
}

/* ---- the walk ---- */

static heft_status_t walk_write(heft__folding_t *f, const heft__write_t *write, heft_error_t *err)
{
    if (write->kind == HEFT_WRITE_OPAQUE) {
        return walk_opaque(f, write, err);
    }
    const heft__tape_view_t *dst = &write->dsts[0];
    if (is_empty(dst)) {
        return HEFT_OK;
    }
    heft_status_t status =
        heft__folding_resolve(f, dst, write->srcs, write->n_srcs, write->ops, write->n_ops, err);
    return status == HEFT_OK ? heft__folding_define(f, dst, err) : status;
}

static heft_status_t walk(heft__folding_t *f, heft_error_t *err)
{
    const heft_tape_t *tape = f->tape;
    uint32_t n_opaques = 0;
    for (size_t i = 0; i < tape->n_writes; i++) {
        n_opaques += tape->writes[i].kind == HEFT_WRITE_OPAQUE;
    }
    f->fold->opaques = heft__arena_calloc(&f->fold->arena, n_opaques, sizeof *f->fold->opaques);
    f->definers = heft__arena_calloc(&f->arena, tape->n_buffers, sizeof *f->definers);
    if (f->fold->opaques == NULL || f->definers == NULL) {
        return heft__error_nomem(err, tape->n_buffers * sizeof *f->definers);
    }
    for (size_t i = 0; i < tape->n_writes; i++) {
        f->write = (uint32_t)i;
        heft_status_t status = walk_write(f, &tape->writes[i], err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return heft__folding_emit(f, err);
}

static void folding_fini(heft__folding_t *f)
{
    heft__box_work_fini(&f->work);
    heft__free(f->strips.items);
    heft__free(f->origins);
    heft__map_fini(&f->origin_map);
    heft__free(f->programs);
    heft__map_fini(&f->program_map);
    heft__free(f->finals);
    heft__free(f->overwrites.items);
    heft__free(f->found.items);
    heft__free(f->parts.items);
    heft__free(f->next_parts.items);
    heft__free(f->results.items);
    heft__free(f->remains.items);
    heft__free(f->lost.items);
    heft__free(f->ids.items);
    heft__arena_fini(&f->arena);
}

/* Program 0 is the empty one. */
static heft_status_t add_empty_program(heft__folding_t *f, heft_error_t *err)
{
    void *items = NULL;
    if (!heft__grow(&items, &f->cap_programs, 1, sizeof *f->programs)) {
        return heft__error_nomem(err, sizeof *f->programs);
    }
    f->programs = items;
    f->programs[0] = (heft__program_t){ .n_ops = 0 };
    f->n_programs = 1;
    return HEFT_OK;
}

heft_status_t heft__fold_create(const heft_tape_t *tape, const heft__fold_opts_t *opts,
                                heft__fold_t **fold_out, heft_error_t *err)
{
    heft__fold_t *fold = heft__calloc(1, sizeof *fold);
    if (fold == NULL) {
        return heft__error_nomem(err, sizeof *fold);
    }
    heft__arena_init(&fold->arena, 4096);
    fold->n_buffers = (uint32_t)tape->n_buffers;
    heft__folding_t f = { .tape = tape, .fold = fold };
    f.max_pieces = opts != NULL && opts->max_pieces > 0 ? opts->max_pieces : DEFAULT_MAX_PIECES;
    f.tune_after = opts != NULL ? opts->tune_after : 0;
    heft__arena_init(&f.arena, 16384);
    heft__map_init(&f.origin_map);
    heft__map_init(&f.program_map);
    heft_status_t status = add_empty_program(&f, err);
    if (status == HEFT_OK) {
        status = walk(&f, err);
    }
    folding_fini(&f);
    if (status != HEFT_OK) {
        heft__fold_destroy(fold);
        return status;
    }
    *fold_out = fold;
    return HEFT_OK;
}

heft__fold_opaque_t *heft__fold_find_opaque(const heft__fold_t *fold, uint32_t write)
{
    uint32_t lo = 0;
    uint32_t hi = fold->n_opaques;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (fold->opaques[mid].write < write) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < fold->n_opaques && fold->opaques[lo].write == write ? &fold->opaques[lo] : NULL;
}

void heft__fold_destroy(heft__fold_t *fold)
{
    if (fold == NULL) {
        return;
    }
    heft__arena_fini(&fold->arena);
    heft__free(fold);
}
