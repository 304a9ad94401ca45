/* SPDX-License-Identifier: Apache-2.0 */
/* Join and subtraction of boxes, digit by digit (digits.c), with the cheap cases taken first. */
#include "tensor/digits.h"

#include <string.h>

/* Least and largest value of map 0. */
static void get_bounds(const heft__box_t *box, int64_t *first_out, int64_t *last_out)
{
    int64_t first = box->offset[0];
    int64_t last = first;
    for (int k = 0; k < box->rank; k++) {
        int64_t span = (box->dim[k].extent - 1) * box->dim[k].stride[0];
        if (span < 0) {
            first += span;
        } else {
            last += span;
        }
    }
    *first_out = first;
    *last_out = last;
}

static bool is_apart(const heft__box_t *a, const heft__box_t *b)
{
    int64_t a_first;
    int64_t a_last;
    int64_t b_first;
    int64_t b_last;
    get_bounds(a, &a_first, &a_last);
    get_bounds(b, &b_first, &b_last);
    return a_last < b_first || b_last < a_first;
}

/*
 * The usual case: b is one run of constant step, and a stays inside it and on it. Then every index
 * of a has its partner in b, and b's maps are affine in map 0.
 */
static bool is_inside_run(const heft__box_t *a, const heft__box_t *b)
{
    if (b->rank != 1 || a->rank > HEFT_MAX_DIMS) {
        return false;
    }
    int64_t step = b->dim[0].stride[0];
    int64_t first;
    int64_t last;
    get_bounds(a, &first, &last);
    bool ok = first >= b->offset[0] && last <= b->offset[0] + (b->dim[0].extent - 1) * step &&
              (a->offset[0] - b->offset[0]) % step == 0;
    for (int k = 0; ok && k < a->rank; k++) {
        ok = a->dim[k].stride[0] % step == 0;
    }
    return ok;
}

static heft_status_t join_run(const heft__box_t *a, const heft__box_t *b, heft__box_sink_t sink,
                              void *arg, heft_error_t *err)
{
    heft__box_t out;
    const heft__dim_t *run = &b->dim[0];
    int64_t step = run->stride[0];
    int n_a = a->n_maps;
    out.rank = a->rank;
    out.n_maps = n_a + b->n_maps - 1;
    memcpy(out.offset, a->offset, (size_t)n_a * sizeof out.offset[0]);
    int64_t steps = (a->offset[0] - b->offset[0]) / step;
    for (int m = 1; m < b->n_maps; m++) {
        out.offset[n_a + m - 1] = b->offset[m] + steps * run->stride[m];
    }
    for (int k = 0; k < a->rank; k++) {
        const heft__dim_t *from = &a->dim[k];
        out.dim[k].extent = from->extent;
        memcpy(out.dim[k].stride, from->stride, (size_t)n_a * sizeof from->stride[0]);
        for (int m = 1; m < b->n_maps; m++) {
            out.dim[k].stride[n_a + m - 1] = from->stride[0] / step * run->stride[m];
        }
    }
    return sink(arg, &out, err);
}

/* ---- by digits ---- */

typedef struct operands {
    heft__box_work_t *work;
    heft__radices_t radices;
    heft__digit_set_t a;
    heft__digit_set_t b;
} operands_t;

static heft_status_t make_operands(operands_t *ops, const heft__box_t *a, const heft__box_t *b,
                                   heft_error_t *err)
{
    heft__steps_t a_steps;
    heft__steps_t b_steps;
    /* With b's start as origin, b mostly has no carries at all. */
    heft__radices_choose(a, b, b->offset[0], false, &ops->radices, &a_steps, &b_steps);
    heft_status_t status = heft__digits_make(ops->work, &ops->radices, a, &a_steps, &ops->a, err);
    if (status == HEFT_OK) {
        status = heft__digits_make(ops->work, &ops->radices, b, &b_steps, &ops->b, err);
    }
    if (status == HEFT_OK && ops->a.n_parts * ops->b.n_parts > HEFT__JOIN_MAX_PAIRS) {
        status = heft__error_set(err, HEFT_ERR_LIMIT,
                                 "strides that do not divide one another: %zu and %zu parts to "
                                 "compare, at most %d pairs",
                                 ops->a.n_parts, ops->b.n_parts, HEFT__JOIN_MAX_PAIRS);
    }
    return status;
}

static bool parts_meet(const heft__digit_part_t *a, const heft__digit_part_t *b, int n_digits)
{
    for (int t = n_digits - 1; t >= 0; t--) {
        if (a->lo[t] >= b->lo[t] + b->ext[t] || b->lo[t] >= a->lo[t] + a->ext[t]) {
            return false;
        }
    }
    return true;
}

/* The dimensions of a that stand still on map 0 go along with every result. */
static void add_still_dims(heft__box_t *out, const heft__box_t *a)
{
    for (int k = 0; k < a->rank; k++) {
        if (a->dim[k].stride[0] != 0 || a->dim[k].extent == 1) {
            continue;
        }
        heft__dim_t *dim = &out->dim[out->rank++];
        memset(dim, 0, sizeof *dim);
        dim->extent = a->dim[k].extent;
        memcpy(dim->stride, a->dim[k].stride, (size_t)a->n_maps * sizeof dim->stride[0]);
    }
}

/* The digit box where a and b meet, as a box. */
static void meet(const operands_t *ops, const heft__digit_part_t *a, const heft__digit_part_t *b,
                 heft__box_t *out)
{
    int n_a = ops->a.n_maps - 1;
    int n_b = ops->b.n_maps - 1;
    out->rank = 0;
    out->n_maps = 1 + n_a + n_b;
    out->offset[0] = ops->radices.origin;
    memcpy(&out->offset[1], a->offset, (size_t)n_a * sizeof out->offset[0]);
    memcpy(&out->offset[1 + n_a], b->offset, (size_t)n_b * sizeof out->offset[0]);
    for (int t = 0; t < ops->radices.n; t++) {
        int64_t lo = heft__max_i64(a->lo[t], b->lo[t]);
        int64_t end = heft__min_i64(a->lo[t] + a->ext[t], b->lo[t] + b->ext[t]);
        const int64_t *a_stride = a->stride + (size_t)t * (size_t)n_a;
        const int64_t *b_stride = b->stride + (size_t)t * (size_t)n_b;
        heft__dim_t *dim = &out->dim[out->rank];
        dim->extent = end - lo;
        dim->stride[0] = ops->radices.r[t];
        out->offset[0] += lo * ops->radices.r[t];
        for (int m = 0; m < n_a; m++) {
            dim->stride[1 + m] = a_stride[m];
            out->offset[1 + m] += (lo - a->lo[t]) * a_stride[m];
        }
        for (int m = 0; m < n_b; m++) {
            dim->stride[1 + n_a + m] = b_stride[m];
            out->offset[1 + n_a + m] += (lo - b->lo[t]) * b_stride[m];
        }
        out->rank += end - lo > 1;
    }
}

static heft_status_t join_parts(const operands_t *ops, const heft__box_t *a, heft__box_sink_t sink,
                                void *arg, heft_error_t *err)
{
    for (size_t i = 0; i < ops->a.n_parts; i++) {
        heft__digit_part_t pa = heft__digit_part_get(ops->work, &ops->a, i);
        for (size_t j = 0; j < ops->b.n_parts; j++) {
            heft__digit_part_t pb = heft__digit_part_get(ops->work, &ops->b, j);
            if (!parts_meet(&pa, &pb, ops->radices.n)) {
                continue;
            }
            heft__box_t out;
            meet(ops, &pa, &pb, &out);
            add_still_dims(&out, a);
            heft_status_t status = sink(arg, &out, err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

heft_status_t heft__box_join(heft__box_work_t *work, const heft__box_t *a, const heft__box_t *b,
                             heft__box_sink_t sink, void *arg, heft_error_t *err)
{
    if (a->n_maps + b->n_maps - 1 > HEFT__BOX_MAPS || a->rank > HEFT_MAX_DIMS ||
        b->rank > HEFT_MAX_DIMS) {
        return HEFT_BUG(err, "join of boxes with too many maps or dimensions");
    }
    if (is_apart(a, b)) {
        return HEFT_OK;
    }
    if (is_inside_run(a, b)) {
        return join_run(a, b, sink, arg, err);
    }
    size_t mark = work->n;
    operands_t ops = { .work = work };
    heft_status_t status = make_operands(&ops, a, b, err);
    if (status == HEFT_OK) {
        status = join_parts(&ops, a, sink, arg, err);
    }
    work->n = mark;
    return status;
}

/* ---- subtraction ---- */

/* Digit boxes that are left of one part of a: lo[n], ext[n] each, at the end of work. */
typedef struct remains {
    size_t first;
    size_t n_boxes;
} remains_t;

static heft_status_t push_remain(operands_t *ops, remains_t *remains, const int64_t *lo,
                                 const int64_t *ext, heft_error_t *err)
{
    size_t n = (size_t)ops->radices.n;
    heft__box_work_t *work = ops->work;
    if (remains->n_boxes >= HEFT__REGION_MAX_PARTS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "subtraction leaves more than %d parts",
                               HEFT__REGION_MAX_PARTS);
    }
    if (!heft__box_work_reserve(work, 2 * n)) {
        return heft__error_nomem(err, 2 * n * sizeof *work->data);
    }
    memcpy(work->data + work->n, lo, n * sizeof *lo);
    memcpy(work->data + work->n + n, ext, n * sizeof *ext);
    work->n += 2 * n;
    remains->n_boxes++;
    return HEFT_OK;
}

/* Push what is left of the digit box (lo, ext) without pb, which meets it: slabs below and above,
 * from the last digit to the first. */
static heft_status_t push_slabs(operands_t *ops, remains_t *remains, int64_t *lo, int64_t *ext,
                                const heft__digit_part_t *pb, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (int t = ops->radices.n - 1; t >= 0 && status == HEFT_OK; t--) {
        int64_t below = pb->lo[t] - lo[t];
        if (below > 0) {
            int64_t all = ext[t];
            ext[t] = below;
            status = push_remain(ops, remains, lo, ext, err);
            lo[t] += below;
            ext[t] = all - below;
        }
        int64_t above = lo[t] + ext[t] - (pb->lo[t] + pb->ext[t]);
        if (above > 0 && status == HEFT_OK) {
            int64_t start = lo[t];
            ext[t] -= above;
            lo[t] += ext[t];
            int64_t inner = ext[t];
            ext[t] = above;
            status = push_remain(ops, remains, lo, ext, err);
            lo[t] = start;
            ext[t] = inner;
        }
    }
    return status;
}

/* remains = remains AND NOT part j of b: a new list behind the old one, moved down at the end. */
static heft_status_t subtract_part(operands_t *ops, remains_t *remains, size_t j, heft_error_t *err)
{
    size_t n = (size_t)ops->radices.n;
    heft__box_work_t *work = ops->work;
    remains_t next = { .first = work->n };
    for (size_t i = 0; i < remains->n_boxes; i++) {
        int64_t lo[HEFT__BOX_DIMS];
        int64_t ext[HEFT__BOX_DIMS];
        memcpy(lo, work->data + remains->first + i * 2 * n, n * sizeof *lo);
        memcpy(ext, work->data + remains->first + i * 2 * n + n, n * sizeof *ext);
        heft__digit_part_t pa = { .lo = lo, .ext = ext };
        heft__digit_part_t pb = heft__digit_part_get(work, &ops->b, j);
        /* the part is read while work grows: keep its ranges */
        int64_t b_lo[HEFT__BOX_DIMS];
        int64_t b_ext[HEFT__BOX_DIMS];
        memcpy(b_lo, pb.lo, n * sizeof *b_lo);
        memcpy(b_ext, pb.ext, n * sizeof *b_ext);
        pb.lo = b_lo;
        pb.ext = b_ext;
        heft_status_t status = parts_meet(&pa, &pb, ops->radices.n)
                                   ? push_slabs(ops, &next, lo, ext, &pb, err)
                                   : push_remain(ops, &next, lo, ext, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    memmove(work->data + remains->first, work->data + next.first,
            next.n_boxes * 2 * n * sizeof *work->data);
    remains->n_boxes = next.n_boxes;
    work->n = remains->first + next.n_boxes * 2 * n;
    return HEFT_OK;
}

static heft_status_t emit_remains(const operands_t *ops, const remains_t *remains,
                                  const heft__digit_part_t *pa, heft__box_sink_t sink, void *arg,
                                  heft_error_t *err)
{
    size_t n = (size_t)ops->radices.n;
    operands_t one = *ops;
    one.b.n_maps = 1;
    for (size_t i = 0; i < remains->n_boxes; i++) {
        const int64_t *lo = ops->work->data + remains->first + i * 2 * n;
        heft__digit_part_t part = { .lo = lo, .ext = lo + n, .offset = lo, .stride = lo };
        heft__box_t out;
        meet(&one, pa, &part, &out);
        heft_status_t status = sink(arg, &out, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static heft_status_t subtract_parts(operands_t *ops, heft__box_sink_t sink, void *arg,
                                    heft_error_t *err)
{
    for (size_t i = 0; i < ops->a.n_parts; i++) {
        remains_t remains = { .first = ops->work->n };
        heft__digit_part_t pa = heft__digit_part_get(ops->work, &ops->a, i);
        int64_t lo[HEFT__BOX_DIMS];
        int64_t ext[HEFT__BOX_DIMS];
        memcpy(lo, pa.lo, (size_t)ops->radices.n * sizeof *lo);
        memcpy(ext, pa.ext, (size_t)ops->radices.n * sizeof *ext);
        heft_status_t status = push_remain(ops, &remains, lo, ext, err);
        for (size_t j = 0; j < ops->b.n_parts && status == HEFT_OK; j++) {
            status = subtract_part(ops, &remains, j, err);
        }
        if (status == HEFT_OK) {
            pa = heft__digit_part_get(ops->work, &ops->a, i);
            status = emit_remains(ops, &remains, &pa, sink, arg, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        ops->work->n = remains.first;
    }
    return HEFT_OK;
}

static bool any_meet(const operands_t *ops)
{
    for (size_t i = 0; i < ops->a.n_parts; i++) {
        heft__digit_part_t pa = heft__digit_part_get(ops->work, &ops->a, i);
        for (size_t j = 0; j < ops->b.n_parts; j++) {
            heft__digit_part_t pb = heft__digit_part_get(ops->work, &ops->b, j);
            if (parts_meet(&pa, &pb, ops->radices.n)) {
                return true;
            }
        }
    }
    return false;
}

/* Is every element of a in b, as far as can be seen cheaply. */
static bool is_covered(const heft__box_t *a, const heft__box_t *b)
{
    return b->rank == 0 ? a->rank == 0 && a->offset[0] == b->offset[0] : is_inside_run(a, b);
}

heft_status_t heft__box_subtract(heft__box_work_t *work, const heft__box_t *a, const heft__box_t *b,
                                 heft__box_sink_t sink, void *arg, bool *is_disjoint_out,
                                 heft_error_t *err)
{
    if (a->n_maps > HEFT__BOX_MAPS || a->rank > HEFT_MAX_DIMS || b->rank > HEFT_MAX_DIMS) {
        return HEFT_BUG(err, "subtraction of boxes with too many maps or dimensions");
    }
    *is_disjoint_out = is_apart(a, b);
    if (*is_disjoint_out || is_covered(a, b)) {
        return HEFT_OK;
    }
    size_t mark = work->n;
    operands_t ops = { .work = work };
    heft__box_t b_alone = *b;
    b_alone.n_maps = 1;
    heft_status_t status = make_operands(&ops, a, &b_alone, err);
    if (status == HEFT_OK) {
        *is_disjoint_out = !any_meet(&ops);
        if (!*is_disjoint_out) {
            status = subtract_parts(&ops, sink, arg, err);
        }
    }
    work->n = mark;
    return status;
}
