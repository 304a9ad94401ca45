/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing boxes as digit boxes, the common ground for join.c.
 *
 * The strides of both operands, taken together, become the radices of a mixed-radix numbering of
 * the buffer. A dimension whose stride is radix t then is a range of digit t. Where the range would
 * pass the digit's bound it is split: a partial head, whole turns in the middle (which carry into
 * the next digit) and a partial tail. In the end every operand is a few digit boxes, and joining or
 * subtracting is done digit by digit.
 *
 * Strides that do not divide one another are made to: a dimension of stride s is stepped through
 * every f-th index, so that it becomes f boxes of stride f * s, with f * s the least common
 * multiple of the two strides. Two dimensions of one stride (overlapping windows) are handled by
 * taking the shorter one apart. Both are exact; the number of parts is bounded.
 */
#include "tensor/digits.h"

#include <string.h>

/* ---- radices ---- */

typedef struct axis {
    int64_t stride;
    int64_t extent; /* indices left, after stepping */
    int64_t *step;
    bool is_fixed;
} axis_t;

typedef struct axes {
    int n;
    axis_t axis[2 * HEFT__BOX_DIMS];
} axes_t;

static void add_axes(axes_t *axes, const heft__box_t *box, heft__steps_t *steps, bool is_fixed)
{
    for (int k = 0; k < box->rank; k++) {
        steps->step[k] = 1;
        if (box->dim[k].stride[0] != 0 && box->dim[k].extent > 1) {
            axes->axis[axes->n++] = (axis_t){ .stride = box->dim[k].stride[0],
                                              .extent = box->dim[k].extent,
                                              .step = &steps->step[k],
                                              .is_fixed = is_fixed };
        }
    }
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* The distinct strides that are still in use, ascending, after 1. */
static void collect_radices(const axes_t *axes, heft__radices_t *radices)
{
    radices->n = 1;
    radices->r[0] = 1;
    for (int i = 0; i < axes->n; i++) {
        int64_t s = axes->axis[i].stride;
        if (axes->axis[i].extent == 1) {
            continue;
        }
        int at = radices->n;
        while (radices->r[at - 1] > s) {
            at--;
        }
        if (radices->r[at - 1] == s) {
            continue;
        }
        memmove(&radices->r[at + 1], &radices->r[at],
                (size_t)(radices->n - at) * sizeof radices->r[0]);
        radices->r[at] = s;
        radices->n++;
    }
}

/* Parts that come of stepping every axis of stride s by up to f; HUGE_COST where one is fixed. */
#define HUGE_COST INT64_MAX

static int64_t step_cost(const axes_t *axes, int64_t s, int64_t f)
{
    int64_t cost = 1;
    for (int i = 0; i < axes->n; i++) {
        const axis_t *axis = &axes->axis[i];
        if (axis->stride != s || axis->extent == 1) {
            continue;
        }
        if (axis->is_fixed || !heft__mul(cost, heft__min_i64(axis->extent, f), &cost)) {
            return HUGE_COST;
        }
    }
    return cost;
}

static void step_axes(axes_t *axes, int64_t s, int64_t f)
{
    for (int i = 0; i < axes->n; i++) {
        axis_t *axis = &axes->axis[i];
        if (axis->stride != s || axis->extent == 1) {
            continue;
        }
        int64_t by = heft__max_i64(1, heft__min_i64(axis->extent, f));
        *axis->step *= by;
        axis->extent = (axis->extent + by - 1) / by;
        if (axis->extent > 1) {
            axis->stride *= by;
        }
    }
}

void heft__radices_choose(const heft__box_t *a, const heft__box_t *b, int64_t origin,
                          bool is_b_fixed, heft__radices_t *radices_out, heft__steps_t *a_out,
                          heft__steps_t *b_out)
{
    axes_t axes = { .n = 0 };
    add_axes(&axes, a, a_out, false);
    add_axes(&axes, b, b_out, is_b_fixed);
    radices_out->origin = origin;
    /* Every turn takes indices off some axis, so it ends. */
    for (;;) {
        collect_radices(&axes, radices_out);
        int t = 1;
        while (t < radices_out->n && radices_out->r[t] % radices_out->r[t - 1] == 0) {
            t++;
        }
        if (t == radices_out->n) {
            return;
        }
        int64_t low = radices_out->r[t - 1];
        int64_t high = radices_out->r[t];
        int64_t g = gcd(low, high);
        if (step_cost(&axes, high, low / g) <= step_cost(&axes, low, high / g)) {
            step_axes(&axes, high, low / g);
        } else {
            step_axes(&axes, low, high / g);
        }
    }
}

/* ---- making digit boxes ---- */

/* What is left of a box once the digits below some level are settled. */
typedef struct cursor {
    int64_t offset[HEFT__BOX_MAPS]; /* of map 0: relative to the origin */
    int n_dims;
    heft__dim_t dim[HEFT__BOX_DIMS]; /* descending stride on map 0: the next one is the last */
} cursor_t;

typedef struct maker {
    heft__box_work_t *work;
    const heft__radices_t *radices;
    heft__digit_set_t set;
    int64_t lo[HEFT__BOX_DIMS];
    int64_t ext[HEFT__BOX_DIMS];
    int64_t stride[HEFT__BOX_DIMS][HEFT__BOX_MAPS];
} maker_t;

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return a % b < 0 ? q - 1 : q;
}

static void copy_cursor(cursor_t *to, const cursor_t *from, int n_maps)
{
    memcpy(to->offset, from->offset, (size_t)n_maps * sizeof to->offset[0]);
    to->n_dims = from->n_dims;
    memcpy(to->dim, from->dim, (size_t)from->n_dims * sizeof to->dim[0]);
}

static void advance(cursor_t *cursor, int n_maps, const heft__dim_t *dim, int64_t by)
{
    for (int m = 0; m < n_maps; m++) {
        cursor->offset[m] += by * dim->stride[m];
    }
}

static heft_status_t emit_part(maker_t *maker, const cursor_t *cursor, heft_error_t *err)
{
    heft__box_work_t *work = maker->work;
    if (maker->set.n_parts >= HEFT__REGION_MAX_PARTS) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "strides that do not divide one another: more than %d parts",
                               HEFT__REGION_MAX_PARTS);
    }
    if (!heft__box_work_reserve(work, maker->set.len)) {
        return heft__error_nomem(err, maker->set.len * sizeof *work->data);
    }
    size_t n = (size_t)maker->set.n_digits;
    size_t n_further = (size_t)(maker->set.n_maps - 1);
    int64_t *p = work->data + work->n;
    memcpy(p, maker->lo, n * sizeof *p);
    memcpy(p + n, maker->ext, n * sizeof *p);
    p += 2 * n;
    for (size_t m = 0; m < n_further; m++) {
        *p++ = cursor->offset[m + 1];
    }
    for (size_t t = 0; t < n; t++) {
        for (size_t m = 0; m < n_further; m++) {
            *p++ = maker->stride[t][m + 1];
        }
    }
    work->n += maker->set.len;
    maker->set.n_parts++;
    return HEFT_OK;
}

static heft_status_t make_from(maker_t *maker, cursor_t *cursor, int t, heft_error_t *err);

/* Two dimensions of one stride: take the shorter apart. */
static heft_status_t make_each(maker_t *maker, const cursor_t *cursor, int t, heft_error_t *err)
{
    int last = cursor->n_dims - 1;
    int shorter = cursor->dim[last].extent < cursor->dim[last - 1].extent ? last : last - 1;
    const heft__dim_t dim = cursor->dim[shorter];
    for (int64_t i = 0; i < dim.extent; i++) {
        cursor_t next;
        copy_cursor(&next, cursor, maker->set.n_maps);
        next.dim[shorter] = next.dim[last];
        next.n_dims--;
        advance(&next, maker->set.n_maps, &dim, i);
        heft_status_t status = make_from(maker, &next, t, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static void set_digit(maker_t *maker, int t, int64_t lo, int64_t ext, const heft__dim_t *dim)
{
    maker->lo[t] = lo;
    maker->ext[t] = ext;
    for (int m = 1; m < maker->set.n_maps; m++) {
        maker->stride[t][m] = dim != NULL ? dim->stride[m] : 0;
    }
}

/* One piece of a split digit: n indices of dim from index `from` on, in `turns` whole turns or as a
 * part of one. */
static heft_status_t make_range(maker_t *maker, const cursor_t *cursor, int t,
                                const heft__dim_t *dim, int64_t from, int64_t lo, int64_t n,
                                int64_t turns, heft_error_t *err)
{
    cursor_t next;
    copy_cursor(&next, cursor, maker->set.n_maps);
    advance(&next, maker->set.n_maps, dim, from);
    if (turns > 1) {
        heft__dim_t *turn = &next.dim[next.n_dims++];
        turn->extent = turns;
        for (int m = 0; m < maker->set.n_maps; m++) {
            turn->stride[m] = dim->stride[m] * n;
        }
    }
    set_digit(maker, t, lo, n, dim);
    return make_from(maker, &next, t + 1, err);
}

/* A range that passes the bound of its digit: head, whole turns, tail. */
static heft_status_t make_split(maker_t *maker, const cursor_t *cursor, int t,
                                const heft__dim_t *dim, int64_t digit, int64_t base,
                                heft_error_t *err)
{
    int64_t head = digit == 0 ? 0 : base - digit;
    int64_t turns = (dim->extent - head) / base;
    int64_t tail = (dim->extent - head) % base;
    heft_status_t status = HEFT_OK;
    if (head > 0) {
        status = make_range(maker, cursor, t, dim, 0, digit, head, 1, err);
    }
    if (status == HEFT_OK && turns > 0) {
        status = make_range(maker, cursor, t, dim, head, 0, base, turns, err);
    }
    if (status == HEFT_OK && tail > 0) {
        status = make_range(maker, cursor, t, dim, head + turns * base, 0, tail, 1, err);
    }
    return status;
}

/* Settle digits t and up. The cursor is used up. */
static heft_status_t make_from(maker_t *maker, cursor_t *cursor, int t, heft_error_t *err)
{
    const heft__radices_t *radices = maker->radices;
    for (; t < radices->n; t++) {
        int64_t r = radices->r[t];
        bool is_last = t + 1 == radices->n;
        int64_t base = is_last ? INT64_MAX : radices->r[t + 1] / r;
        int64_t digit = floor_div(cursor->offset[0], r);
        if (!is_last) {
            digit -= floor_div(digit, base) * base;
        }
        int last = cursor->n_dims - 1;
        if (last < 0 || cursor->dim[last].stride[0] != r) {
            set_digit(maker, t, digit, 1, NULL);
            continue;
        }
        if (last > 0 && cursor->dim[last - 1].stride[0] == r) {
            return make_each(maker, cursor, t, err);
        }
        heft__dim_t dim = cursor->dim[last];
        cursor->n_dims--;
        if (!is_last && dim.extent > base - digit) {
            return make_split(maker, cursor, t, &dim, digit, base, err);
        }
        set_digit(maker, t, digit, dim.extent, &dim);
    }
    return emit_part(maker, cursor, err);
}

/* Take dimension k, of the steps to come, apart; then the next. Dimensions go to the cursor. */
static heft_status_t make_steps(maker_t *maker, const cursor_t *cursor, const heft__box_t *box,
                                const heft__steps_t *steps, int k, heft_error_t *err)
{
    while (k < box->rank && box->dim[k].stride[0] == 0) {
        k++;
    }
    cursor_t next;
    copy_cursor(&next, cursor, maker->set.n_maps);
    if (k == box->rank) {
        return make_from(maker, &next, 0, err);
    }
    const heft__dim_t *dim = &box->dim[k];
    int64_t step = steps->step[k];
    for (int64_t i = 0; i < step && i < dim->extent; i++) {
        int64_t extent = (dim->extent - i + step - 1) / step;
        copy_cursor(&next, cursor, maker->set.n_maps);
        advance(&next, maker->set.n_maps, dim, i);
        if (extent > 1) {
            int at = next.n_dims++;
            int64_t stride = dim->stride[0] * step;
            while (at > 0 && next.dim[at - 1].stride[0] < stride) {
                next.dim[at] = next.dim[at - 1];
                at--;
            }
            next.dim[at].extent = extent;
            for (int m = 0; m < maker->set.n_maps; m++) {
                next.dim[at].stride[m] = dim->stride[m] * step;
            }
        }
        heft_status_t status = make_steps(maker, &next, box, steps, k + 1, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__digits_make(heft__box_work_t *work, const heft__radices_t *radices,
                                const heft__box_t *box, const heft__steps_t *steps,
                                heft__digit_set_t *set_out, heft_error_t *err)
{
    size_t n = (size_t)radices->n;
    size_t n_further = (size_t)(box->n_maps - 1);
    maker_t maker = { .work = work,
                      .radices = radices,
                      .set = { .first = work->n,
                               .len = 2 * n + n_further * (1 + n),
                               .n_digits = radices->n,
                               .n_maps = box->n_maps } };
    cursor_t cursor = { .n_dims = 0 };
    memcpy(cursor.offset, box->offset, (size_t)box->n_maps * sizeof cursor.offset[0]);
    cursor.offset[0] -= radices->origin;
    heft_status_t status = make_steps(&maker, &cursor, box, steps, 0, err);
    if (status == HEFT_OK) {
        *set_out = maker.set;
    }
    return status;
}
