/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Check an element-wise program and normalise the views it runs over: the same steps as for copies,
 * with every source view taking part. Loops are ordered by the steps of the primary source, the
 * one that broadcasts least; without sources by destination step.
 */
#include "kernel/cast.h"
#include "kernel/transform.h"

#include <stdlib.h>
#include <string.h>

typedef struct loop_dim {
    int64_t extent;
    int64_t dst; /* bytes */
    int64_t src[HEFT_MAX_SOURCES];
    uint64_t order; /* |step| of the primary source, or of dst */
} loop_dim_t;

static bool is_arith_dtype(heft_dtype_t dtype)
{
    return dtype == HEFT_DTYPE_F16 || dtype == HEFT_DTYPE_BF16 || dtype == HEFT_DTYPE_F32 ||
           dtype == HEFT_DTYPE_F64;
}

static bool is_castable(heft_dtype_t dtype)
{
    return heft_dtype_get_bits(dtype) >= 8;
}

static heft_status_t bad_op(heft_error_t *err, uint32_t k, const heft_op_t *op, const char *what)
{
    return heft__error_set(err, HEFT_ERR_ARGUMENT, "program: operation %u (code %u, dtype %s): %s",
                           k, op->code, heft_dtype_get_name((heft_dtype_t)op->dtype), what);
}

/* Types of the stack after one operation. */
static heft_status_t step_op(const heft__transform_t *transform, uint32_t k, heft_dtype_t *type,
                             int *depth, heft_error_t *err)
{
    const heft_op_t *op = &transform->ops[k];
    heft_dtype_t dtype = (heft_dtype_t)op->dtype;
    int needs = op->code == HEFT_OP_MUL ? 2 : 1;
    if (op->code == HEFT_OP_LOAD) {
        if (op->arg >= transform->n_srcs) {
            return bad_op(err, k, op, "loads a source that is not there");
        }
        type[(*depth)++] = transform->src_dtype[op->arg];
        return HEFT_OK;
    }
    if (op->code == HEFT_OP_CONST) {
        if (heft_dtype_get_bits(dtype) == 0) {
            return bad_op(err, k, op, "no dtype");
        }
        type[(*depth)++] = dtype;
        return HEFT_OK;
    }
    if (op->code < HEFT_OP_CAST || op->code > HEFT_OP_BITS) {
        return bad_op(err, k, op, "unknown code");
    }
    bool moves = op->code == HEFT_OP_CAST || op->code == HEFT_OP_BITS;
    if (moves ? !is_castable(dtype) : !is_arith_dtype(dtype)) {
        return bad_op(err, k, op, "dtype not allowed here");
    }
    if (*depth < needs) {
        return bad_op(err, k, op, "too few values");
    }
    for (int i = *depth - needs; i < *depth; i++) {
        if (!is_castable(type[i])) {
            return bad_op(err, k, op, "packed operand");
        }
    }
    if (op->code == HEFT_OP_BITS &&
        op->arg + heft_dtype_get_unit_bytes(dtype) > heft_dtype_get_unit_bytes(type[*depth - 1])) {
        return bad_op(err, k, op, "more bytes than there are");
    }
    *depth -= needs - 1;
    type[*depth - 1] = dtype;
    return HEFT_OK;
}

static heft_status_t check_program(const heft__transform_t *transform, heft_dtype_t *result_out,
                                   heft_error_t *err)
{
    if (transform->n_srcs > HEFT_MAX_SOURCES || transform->n_ops > HEFT_MAX_OPS ||
        transform->n_ops == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program of %u sources and %u operations",
                               transform->n_srcs, transform->n_ops);
    }
    if (heft_dtype_get_bits(transform->dst_dtype) == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program: no destination dtype");
    }
    for (uint32_t i = 0; i < transform->n_srcs; i++) {
        if (heft_dtype_get_bits(transform->src_dtype[i]) == 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "program: source %u has no dtype", i);
        }
    }
    heft_dtype_t type[HEFT_MAX_OPS];
    int depth = 0;
    for (uint32_t k = 0; k < transform->n_ops; k++) {
        heft_status_t status = step_op(transform, k, type, &depth, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (depth != 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program leaves %d values, not 1", depth);
    }
    *result_out = type[0];
    return HEFT_OK;
}

static heft_status_t add_final_cast(heft__transform_plan_t *plan, heft_dtype_t result,
                                    heft_error_t *err)
{
    if (result == plan->dst_dtype) {
        return HEFT_OK;
    }
    if (!is_castable(result) || !is_castable(plan->dst_dtype)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program: no cast from %s to %s",
                               heft_dtype_get_name(result), heft_dtype_get_name(plan->dst_dtype));
    }
    if (plan->n_ops == HEFT_MAX_OPS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "program: no room for a cast to %s after %u",
                               heft_dtype_get_name(plan->dst_dtype), plan->n_ops);
    }
    plan->ops[plan->n_ops++] =
        (heft_op_t){ .code = HEFT_OP_CAST, .dtype = (uint8_t)plan->dst_dtype };
    return HEFT_OK;
}

/* A weight times its scale, the scale constant along rows: common enough for a kernel of its own.
 */
static bool is_dequantise(const heft__transform_plan_t *plan)
{
    const heft_op_t *ops = plan->ops;
    return plan->n_ops == 4 && plan->n_srcs == 2 && plan->dst_dtype == HEFT_DTYPE_BF16 &&
           plan->src_dtype[0] == HEFT_DTYPE_F8_E4M3 && plan->src_dtype[1] == HEFT_DTYPE_F32 &&
           ops[0].code == HEFT_OP_LOAD && ops[0].arg == 0 && ops[1].code == HEFT_OP_LOAD &&
           ops[1].arg == 1 && ops[2].code == HEFT_OP_MUL && ops[2].dtype == HEFT_DTYPE_F32 &&
           ops[3].code == HEFT_OP_CAST;
}

/* What the runner wants to know about the program. */
static void classify(heft__transform_plan_t *plan)
{
    plan->is_cast = plan->ops[0].code == HEFT_OP_LOAD && plan->ops[0].arg == 0 &&
                    (plan->n_ops == 1 || (plan->n_ops == 2 && plan->ops[1].code == HEFT_OP_CAST));
    plan->is_dequantise = is_dequantise(plan);
    plan->needs_env = !plan->is_cast;
    if (plan->is_cast && plan->n_ops == 2) {
        plan->needs_env =
            heft__cast_needs_env((heft_dtype_t)plan->ops[1].dtype, plan->src_dtype[0]);
    }
}

static heft_status_t check_views(const heft__transform_t *transform, heft_error_t *err)
{
    if (transform->rank < 0 || transform->rank > HEFT_MAX_DIMS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "transform of rank %d, at most %d",
                               (int)transform->rank, HEFT_MAX_DIMS);
    }
    for (int k = 0; k < transform->rank; k++) {
        if (transform->extent[k] < 0 ||
            (transform->extent[k] > 1 && transform->dst_stride[k] == 0)) {
            return heft__error_set(
                err, HEFT_ERR_ARGUMENT,
                "transform: extent %lld with destination stride %lld in dimension %d",
                (long long)transform->extent[k], (long long)transform->dst_stride[k], k);
        }
    }
    return HEFT_OK;
}

/* Strides in bytes, dst positive. */
static bool load_dim(const heft__transform_t *transform, int k, heft__transform_plan_t *plan,
                     loop_dim_t *d)
{
    int64_t last = transform->extent[k] - 1;
    int64_t span;
    d->extent = transform->extent[k];
    if (!heft__mul(transform->dst_stride[k], plan->elem_bytes, &d->dst) || d->dst == INT64_MIN) {
        return false;
    }
    bool flip = d->dst < 0;
    if (flip && (!heft__mul(last, d->dst, &span) ||
                 !heft__add(plan->dst_offset, span, &plan->dst_offset))) {
        return false;
    }
    d->dst = flip ? -d->dst : d->dst;
    for (uint32_t i = 0; i < transform->n_srcs; i++) {
        int64_t bytes = heft_dtype_get_unit_bytes(transform->src_dtype[i]);
        if (!heft__mul(transform->src_stride[i][k], bytes, &d->src[i]) || d->src[i] == INT64_MIN) {
            return false;
        }
        if (flip && (!heft__mul(last, d->src[i], &span) ||
                     !heft__add(plan->src_offset[i], span, &plan->src_offset[i]))) {
            return false;
        }
        d->src[i] = flip ? -d->src[i] : d->src[i];
    }
    return true;
}

static int by_dst(const void *a, const void *b)
{
    int64_t x = ((const loop_dim_t *)a)->dst;
    int64_t y = ((const loop_dim_t *)b)->dst;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_order(const void *a, const void *b)
{
    uint64_t x = ((const loop_dim_t *)a)->order;
    uint64_t y = ((const loop_dim_t *)b)->order;
    return x < y ? 1 : x > y ? -1 : by_dst(a, b);
}

static bool can_merge(const loop_dim_t *o, const loop_dim_t *i, uint32_t n_srcs)
{
    int64_t span;
    bool ok = heft__mul(i->dst, i->extent, &span) && span == o->dst;
    for (uint32_t k = 0; ok && k < n_srcs; k++) {
        ok = heft__mul(i->src[k], i->extent, &span) && span == o->src[k];
    }
    return ok;
}

static int merge(loop_dim_t *dims, int n, uint32_t n_srcs)
{
    int out = 0;
    for (int k = 0; k < n; k++) {
        if (out > 0 && can_merge(&dims[out - 1], &dims[k], n_srcs)) {
            int64_t extent = dims[out - 1].extent * dims[k].extent;
            dims[out - 1] = dims[k];
            dims[out - 1].extent = extent;
        } else {
            dims[out++] = dims[k];
        }
    }
    return out;
}

/* Elements of a source that the loops really visit. */
static double footprint(const loop_dim_t *dims, int n, uint32_t i)
{
    double elems = 1;
    for (int k = 0; k < n; k++) {
        elems *= dims[k].src[i] != 0 ? (double)dims[k].extent : 1;
    }
    return elems;
}

static uint32_t find_primary(const loop_dim_t *dims, int n, uint32_t n_srcs)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_srcs; i++) {
        best = footprint(dims, n, i) > footprint(dims, n, best) ? i : best;
    }
    return best;
}

static bool measure(heft__transform_plan_t *plan, const loop_dim_t *dims, int n)
{
    int64_t low = plan->src_offset[plan->primary];
    int64_t high = low;
    int64_t span;
    plan->bytes = plan->elem_bytes;
    for (int k = 0; k < n; k++) {
        if (!heft__mul(plan->bytes, dims[k].extent, &plan->bytes) ||
            !heft__mul(dims[k].extent - 1, dims[k].dst, &span)) {
            return false;
        }
        for (uint32_t i = 0; i < plan->n_srcs; i++) {
            if (!heft__mul(dims[k].extent - 1, dims[k].src[i], &span)) {
                return false;
            }
        }
        int64_t *side = dims[k].src[plan->primary] < 0 ? &low : &high;
        if (plan->n_srcs > 0 &&
            (!heft__mul(dims[k].extent - 1, dims[k].src[plan->primary], &span) ||
             !heft__add(*side, span, side))) {
            return false;
        }
    }
    plan->src_begin = low;
    int64_t elem = plan->n_srcs > 0 ? heft_dtype_get_unit_bytes(plan->src_dtype[plan->primary]) : 0;
    return heft__add(high, elem, &plan->src_end);
}

static void store_loops(heft__transform_plan_t *plan, loop_dim_t *dims, int n)
{
    for (int k = 0; k < n; k++) {
        int64_t step = plan->n_srcs > 0 ? dims[k].src[plan->primary] : dims[k].dst;
        dims[k].order = step < 0 ? 0 - (uint64_t)step : (uint64_t)step;
    }
    qsort(dims, (size_t)n, sizeof dims[0], by_order);
    if (n == 0) { /* one element: a loop of one step */
        dims[n++] = (loop_dim_t){ .extent = 1, .dst = plan->elem_bytes };
    }
    plan->n_loops = n;
    for (int k = 0; k < n; k++) {
        plan->extent[k] = dims[k].extent;
        plan->dst_step[k] = dims[k].dst;
        for (uint32_t i = 0; i < plan->n_srcs; i++) {
            plan->src_step[i][k] = dims[k].src[i];
        }
    }
    bool wants_lines = n > 1 && plan->dst_step[0] == (int64_t)plan->elem_bytes;
    plan->slab_align = wants_lines ? (int32_t)(64 / plan->elem_bytes) : 1;
}

static void init_plan(const heft__transform_t *transform, heft__transform_plan_t *plan)
{
    plan->dst_dtype = transform->dst_dtype;
    plan->n_srcs = transform->n_srcs;
    plan->n_ops = transform->n_ops;
    plan->elem_bytes = heft_dtype_get_unit_bytes(transform->dst_dtype);
    memcpy(plan->src_dtype, transform->src_dtype, sizeof plan->src_dtype);
    memcpy(plan->ops, transform->ops, sizeof plan->ops);
}

heft_status_t heft__transform_prepare(const heft__transform_t *transform,
                                      heft__transform_plan_t *plan_out, heft_error_t *err)
{
    heft_dtype_t result = HEFT_DTYPE_NONE;
    heft__transform_plan_t plan = { 0 };
    heft_status_t status = check_program(transform, &result, err);
    if (status == HEFT_OK) {
        status = check_views(transform, err);
    }
    if (status == HEFT_OK) {
        init_plan(transform, &plan);
        status = add_final_cast(&plan, result, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    classify(&plan);
    loop_dim_t dims[HEFT_MAX_DIMS] = { { 0 } };
    int n = 0;
    for (int k = 0; k < transform->rank; k++) {
        if (transform->extent[k] == 0) { /* nothing to do: extent[0] stays 0 */
            plan.n_loops = 1;
            plan.slab_align = 1;
            *plan_out = plan;
            return HEFT_OK;
        }
        if (transform->extent[k] > 1 && !load_dim(transform, k, &plan, &dims[n++])) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW,
                                   "transform: offset overflows in dimension %d", k);
        }
    }
    qsort(dims, (size_t)n, sizeof dims[0], by_dst);
    plan.primary = find_primary(dims, n, transform->n_srcs);
    if (!measure(&plan, dims, n)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "transform: size in bytes overflows");
    }
    n = merge(dims, n, transform->n_srcs);
    store_loops(&plan, dims, n);
    *plan_out = plan;
    return HEFT_OK;
}
