/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a piece of the plan to prepared kernel copies or transforms. Everything but the base
 * pointers is settled here, once for all targets of a rank. A constant is a copy from one element
 * kept in the arena, with source strides of 0.
 *
 * A kernel cuts its work between steps of its outermost loop (slabs). Where a slab is larger than
 * the caller wants, the piece is taken apart along that loop, so that every part of a run can be
 * cut finely: for even threads, steady progress, and one pass over a source that feeds several
 * destinations.
 */
#include "exec/exec.h"

#include <string.h>

#define MAX_FILL_BYTES 16384 /* a block of constants stays in the innermost cache */

uint64_t heft__piece_constant(const heft_piece_t *piece, heft_dtype_t param_dtype)
{
    if (piece->n_ops == 1) {
        return piece->ops[0].imm_bits;
    }
    heft_dtype_t dtype = HEFT_DTYPE_NONE;
    uint64_t bits = heft__transform_eval(piece->ops, piece->n_ops, NULL, NULL, &dtype);
    return dtype == param_dtype ? bits : heft__cast_bits(param_dtype, dtype, bits);
}

/* One piece while it is taken apart. */
typedef struct binder {
    const heft_piece_t *piece;
    heft_dtype_t param_dtype;
    heft_dtype_t src_dtype[HEFT_MAX_SOURCES];
    heft__bind_limits_t limits;
    heft__arena_t *arena;
    heft__bound_sink_t sink;
    void *sink_arg;
    heft__bound_piece_t base; /* sources, offsets and element size of the whole piece */
} binder_t;

/* ---- copies ---- */

/* The copy of one step of loop `skip`. */
static heft__copy_t inner_copy(const heft__copy_plan_t *plan, int skip, uint32_t elem_bytes)
{
    int64_t eb = (int64_t)elem_bytes;
    heft__copy_t copy = { .elem_bytes = elem_bytes };
    for (int k = 0; k < plan->n_loops; k++) {
        if (k != skip) {
            copy.extent[copy.rank] = plan->extent[k];
            copy.dst_stride[copy.rank] = plan->dst_step[k] / eb;
            copy.src_stride[copy.rank++] = plan->src_step[k] / eb;
        }
    }
    if (plan->run_bytes > eb) {
        copy.extent[copy.rank] = plan->run_bytes / eb;
        copy.dst_stride[copy.rank] = 1;
        copy.src_stride[copy.rank++] = 1;
    }
    return copy;
}

/* The loop along which a copy is taken apart, or -1. Beyond large slabs, that is done until runs
 * have a single loop, shortest loop first, while parts are large enough: those run fastest. */
static int choose_loop(const binder_t *b, const heft__copy_plan_t *plan)
{
    if (plan->bytes / plan->extent[0] > b->limits.slab_bytes) {
        return 0;
    }
    if (plan->kind != HEFT__COPY_RUNS || plan->n_loops == 1 || b->base.fill != NULL) {
        return -1;
    }
    int shortest = 0;
    for (int k = 1; k < plan->n_loops; k++) {
        shortest = plan->extent[k] < plan->extent[shortest] ? k : shortest;
    }
    return plan->bytes / plan->extent[shortest] >= b->limits.part_bytes ? shortest : -1;
}

/* plan is in the arena; the offsets are those of its base pointers. */
static heft_status_t emit_copy(const binder_t *b, const heft__copy_plan_t *plan, int64_t dst_offset,
                               int64_t src_offset, heft_error_t *err)
{
    if (plan->kind == HEFT__COPY_EMPTY) {
        return HEFT_OK;
    }
    int loop = choose_loop(b, plan);
    if (loop < 0) {
        heft__bound_piece_t bound = b->base;
        bound.copy = plan;
        bound.bytes = plan->bytes;
        bound.dst_offset = dst_offset;
        bound.src_offset[0] = src_offset;
        bound.src_begin = src_offset + plan->src_begin;
        bound.src_end = src_offset + plan->src_end;
        return b->sink(b->sink_arg, &bound, err);
    }
    heft__copy_t copy = inner_copy(plan, loop, b->base.elem_bytes);
    heft__copy_plan_t *inner = heft__arena_alloc(b->arena, sizeof *inner);
    if (inner == NULL) {
        return heft__error_nomem(err, sizeof *inner);
    }
    heft_status_t status = heft__copy_prepare(&copy, inner, err);
    for (int64_t i = 0; status == HEFT_OK && i < plan->extent[loop]; i++) {
        status = emit_copy(b, inner, dst_offset + plan->dst_offset + i * plan->dst_step[loop],
                           src_offset + plan->src_offset + i * plan->src_step[loop], err);
    }
    return status;
}

static heft_status_t prepare_copy(const binder_t *b, const heft__copy_t *copy, int64_t dst_offset,
                                  int64_t src_offset, heft_error_t *err)
{
    heft__copy_plan_t *plan = heft__arena_alloc(b->arena, sizeof *plan);
    if (plan == NULL) {
        return heft__error_nomem(err, sizeof *plan);
    }
    heft_status_t status = heft__copy_prepare(copy, plan, err);
    return status == HEFT_OK ? emit_copy(b, plan, dst_offset, src_offset, err) : status;
}

heft__copy_t heft__piece_copy(const heft_piece_t *piece, uint32_t elem_bytes)
{
    heft__copy_t copy = { .elem_bytes = elem_bytes, .rank = piece->rank };
    for (int k = 0; k < piece->rank; k++) {
        copy.extent[k] = piece->extent[k];
        copy.dst_stride[k] = piece->dst_stride[k];
        copy.src_stride[k] = piece->n_srcs == 0 ? 0 : piece->srcs[0].stride[k];
    }
    return copy;
}

static heft_status_t bind_copy(const binder_t *b, heft_error_t *err)
{
    heft__copy_t copy = heft__piece_copy(b->piece, b->base.elem_bytes);
    return prepare_copy(b, &copy, b->base.dst_offset, b->base.src_offset[0], err);
}

/* ---- constants ---- */

static _Alignas(64) const uint8_t zeros[MAX_FILL_BYTES];

/* A block of n_elems constants. */
static heft_status_t make_fill(binder_t *b, int64_t n_elems, heft_error_t *err)
{
    uint8_t bits[8];
    heft__put_le64(bits, heft__piece_constant(b->piece, b->param_dtype));
    size_t eb = b->base.elem_bytes;
    b->base.is_zero = memcmp(bits, zeros, eb) == 0;
    b->base.fill = zeros;
    if (b->base.is_zero) {
        return HEFT_OK;
    }
    uint8_t *block = heft__arena_alloc(b->arena, (size_t)n_elems * eb);
    if (block == NULL) {
        return heft__error_nomem(err, (size_t)n_elems * eb);
    }
    for (int64_t i = 0; i < n_elems; i++) {
        memcpy(block + (size_t)i * eb, bits, eb);
    }
    b->base.fill = block;
    return HEFT_OK;
}

/* The dimension along which the destination is contiguous, or -1. */
static int contiguous_dim(const heft__copy_t *copy)
{
    for (int k = 0; k < copy->rank; k++) {
        if (copy->dst_stride[k] == 1 && copy->extent[k] > 1) {
            return k;
        }
    }
    return -1;
}

/* Rows of the destination are copied from a block of constants, as many times as it takes: copies
 * of long runs, where element by element would be many times slower. */
static heft_status_t bind_fill(binder_t *b, heft_error_t *err)
{
    heft__copy_t copy = heft__piece_copy(b->piece, b->base.elem_bytes);
    int k = contiguous_dim(&copy);
    int64_t n = k < 0 ? 1 : copy.extent[k];
    int64_t block = heft__min_i64(n, MAX_FILL_BYTES / (int64_t)b->base.elem_bytes);
    if (n > block && copy.rank == HEFT_MAX_DIMS) {
        k = -1; /* no room for one more dimension */
        block = 1;
    }
    heft_status_t status = make_fill(b, heft__max_i64(block, 1), err);
    if (status != HEFT_OK || k < 0 || n == 0) {
        return status == HEFT_OK ? prepare_copy(b, &copy, b->base.dst_offset, 0, err) : status;
    }
    copy.src_stride[k] = 1;
    copy.extent[k] = block;
    int64_t n_blocks = n / block;
    heft__copy_t rest = copy;
    if (n_blocks > 1) {
        copy.extent[copy.rank] = n_blocks;
        copy.dst_stride[copy.rank++] = block;
    }
    status = prepare_copy(b, &copy, b->base.dst_offset, 0, err);
    if (status == HEFT_OK && n % block != 0) {
        rest.extent[k] = n % block;
        int64_t at = b->base.dst_offset + n_blocks * block * (int64_t)b->base.elem_bytes;
        status = prepare_copy(b, &rest, at, 0, err);
    }
    return status;
}

/* ---- transforms ---- */

heft__transform_t heft__piece_transform(const heft_piece_t *piece, heft_dtype_t dst_dtype,
                                        const heft_dtype_t *src_dtypes)
{
    heft__transform_t t = {
        .dst_dtype = dst_dtype, .n_srcs = piece->n_srcs, .n_ops = piece->n_ops, .rank = piece->rank
    };
    for (uint32_t i = 0; i < piece->n_ops; i++) {
        t.ops[i] = piece->ops[i];
    }
    for (int k = 0; k < piece->rank; k++) {
        t.extent[k] = piece->extent[k];
        t.dst_stride[k] = piece->dst_stride[k];
    }
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        t.src_dtype[s] = src_dtypes[s];
        for (int k = 0; k < piece->rank; k++) {
            t.src_stride[s][k] = piece->srcs[s].stride[k];
        }
    }
    return t;
}

/* The transform of one slab. */
static heft__transform_t inner_transform(const binder_t *b, const heft__transform_plan_t *plan)
{
    heft__transform_t t = heft__piece_transform(b->piece, b->param_dtype, b->src_dtype);
    t.rank = plan->n_loops - 1;
    for (int k = 1; k < plan->n_loops; k++) {
        t.extent[k - 1] = plan->extent[k];
        t.dst_stride[k - 1] = plan->dst_step[k] / (int64_t)b->base.elem_bytes;
        for (uint32_t s = 0; s < t.n_srcs; s++) {
            t.src_stride[s][k - 1] =
                plan->src_step[s][k] / (int64_t)heft_dtype_get_unit_bytes(t.src_dtype[s]);
        }
    }
    return t;
}

static heft_status_t emit_transform(const binder_t *b, const heft__transform_plan_t *plan,
                                    int64_t dst_offset, const int64_t *src_offset,
                                    heft_error_t *err)
{
    if (plan->bytes == 0) {
        return HEFT_OK;
    }
    int64_t offset[HEFT_MAX_SOURCES] = { 0 };
    if (plan->bytes / plan->extent[0] <= b->limits.slab_bytes) {
        heft__bound_piece_t bound = b->base;
        bound.transform = plan;
        bound.bytes = plan->bytes;
        bound.dst_offset = dst_offset;
        for (uint32_t s = 0; s < bound.n_srcs; s++) {
            bound.src_offset[s] = src_offset[s];
        }
        bound.primary = plan->primary;
        bound.src_begin = src_offset[plan->primary] + plan->src_begin;
        bound.src_end = src_offset[plan->primary] + plan->src_end;
        return b->sink(b->sink_arg, &bound, err);
    }
    heft__transform_t t = inner_transform(b, plan);
    heft__transform_plan_t *inner = heft__arena_alloc(b->arena, sizeof *inner);
    if (inner == NULL) {
        return heft__error_nomem(err, sizeof *inner);
    }
    heft_status_t status = heft__transform_prepare(&t, inner, err);
    for (int64_t i = 0; status == HEFT_OK && i < plan->extent[0]; i++) {
        for (uint32_t s = 0; s < t.n_srcs; s++) {
            offset[s] = src_offset[s] + plan->src_offset[s] + i * plan->src_step[s][0];
        }
        status = emit_transform(b, inner, dst_offset + plan->dst_offset + i * plan->dst_step[0],
                                offset, err);
    }
    return status;
}

static heft_status_t bind_transform(const binder_t *b, heft_error_t *err)
{
    if (b->piece->n_ops > HEFT_MAX_OPS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "a piece has %u operations, at most %d",
                               b->piece->n_ops, HEFT_MAX_OPS);
    }
    heft__transform_t t = heft__piece_transform(b->piece, b->param_dtype, b->src_dtype);
    heft__transform_plan_t *plan = heft__arena_alloc(b->arena, sizeof *plan);
    if (plan == NULL) {
        return heft__error_nomem(err, sizeof *plan);
    }
    heft_status_t status = heft__transform_prepare(&t, plan, err);
    return status == HEFT_OK ? emit_transform(b, plan, b->base.dst_offset, b->base.src_offset, err)
                             : status;
}

/* ---- pieces ---- */

static bool to_bytes(int64_t elems, heft_dtype_t dtype, int64_t *out)
{
    return heft__mul(elems, (int64_t)heft_dtype_get_unit_bytes(dtype), out);
}

heft_status_t heft__piece_bind(const heft_plan_t *plan, const heft_piece_t *piece,
                               heft_dtype_t param_dtype, heft__bind_limits_t limits,
                               heft__arena_t *arena, heft__bound_sink_t sink, void *sink_arg,
                               heft_error_t *err)
{
    if (piece->n_srcs > HEFT_MAX_SOURCES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "a piece has %u sources, at most %d",
                               piece->n_srcs, HEFT_MAX_SOURCES);
    }
    binder_t b = { .piece = piece,
                   .param_dtype = param_dtype,
                   .limits = limits,
                   .arena = arena,
                   .sink = sink,
                   .sink_arg = sink_arg,
                   .base = { .elem_bytes = heft_dtype_get_unit_bytes(param_dtype),
                             .n_srcs = piece->n_srcs } };
    bool fits = to_bytes(piece->dst_offset, param_dtype, &b.base.dst_offset);
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_source(plan, piece->srcs[s].source, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        b.src_dtype[s] = info.dtype;
        b.base.source[s] = piece->srcs[s].source;
        fits = fits && to_bytes(piece->srcs[s].offset, info.dtype, &b.base.src_offset[s]);
    }
    if (!fits) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "a piece's offset in bytes overflows");
    }
    if (piece->n_srcs == 0) {
        return bind_fill(&b, err);
    }
    return piece->n_ops == 0 ? bind_copy(&b, err) : bind_transform(&b, err);
}
