/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes packed: the regions of a parameter one after the other, any stretch of them copied out or
 * in. A stretch is cut along the loops of a region into steps that it holds whole, which are one
 * strided copy, and what is left of a step at its two ends, which is cut along the next loop.
 */
#include "exec/exec.h"
#include "heft/routes.h"

#include <string.h>

typedef struct mover {
    const heft_route_region_t *region;
    uint8_t *param;  /* written by unpack alone */
    uint8_t *packed; /* the next byte; written by pack alone */
    bool is_pack;
    int64_t step[HEFT_MAX_DIMS + 1]; /* bytes packed of one step of each loop, and of a run */
    heft_error_t *err;
} mover_t;

static void move_bytes(mover_t *m, int64_t at, int64_t n)
{
    memcpy(m->is_pack ? m->packed : m->param + at, m->is_pack ? m->param + at : m->packed,
           (size_t)n);
    m->packed += n;
}

/* The widest element of which runs and strides are multiples. */
static uint32_t elem_bytes(const heft_route_region_t *r, int loop)
{
    uint64_t bits = (uint64_t)r->run_bytes | 8;
    for (int k = loop; k < r->n_loops; k++) {
        bits |= (uint64_t)r->stride[k];
    }
    return (uint32_t)(bits & (~bits + 1));
}

/* n steps of a loop, from the first at `at` on. */
static heft_status_t move_steps(mover_t *m, int loop, int64_t at, int64_t n)
{
    const heft_route_region_t *r = m->region;
    if (n == 1 && loop + 1 == r->n_loops) {
        move_bytes(m, at, r->run_bytes);
        return HEFT_OK;
    }
    const int64_t elem = elem_bytes(r, loop);
    heft__copy_t copy = { .elem_bytes = (uint32_t)elem };
    for (int k = loop; k < r->n_loops; k++) {
        const int d = copy.rank++;
        copy.extent[d] = k == loop ? n : r->extent[k];
        copy.dst_stride[d] = (m->is_pack ? m->step[k] : r->stride[k]) / elem;
        copy.src_stride[d] = (m->is_pack ? r->stride[k] : m->step[k]) / elem;
    }
    copy.extent[copy.rank] = r->run_bytes / elem;
    copy.dst_stride[copy.rank] = 1;
    copy.src_stride[copy.rank++] = 1;
    heft__copy_plan_t plan;
    heft_status_t status = heft__copy_prepare(&copy, &plan, m->err);
    if (status == HEFT_OK) {
        heft__copy_run(&plan, m->is_pack ? m->packed : m->param + at,
                       m->is_pack ? m->param + at : m->packed);
        m->packed += n * m->step[loop];
    }
    return status;
}

/* Bytes [from, from + n) of what is packed of one step of the loop before this one. */
static heft_status_t move_part(mover_t *m, int loop, int64_t at, int64_t from, int64_t n)
{
    const heft_route_region_t *r = m->region;
    if (loop == r->n_loops) {
        move_bytes(m, at + from, n);
        return HEFT_OK;
    }
    const int64_t step = m->step[loop];
    int64_t i = from / step;
    heft_status_t status = HEFT_OK;
    if (from % step > 0) {
        const int64_t part = heft__min_i64(step - from % step, n);
        status = move_part(m, loop + 1, at + i * r->stride[loop], from % step, part);
        i++;
        n -= part;
    }
    /* a region of all dimensions and runs besides has one too many for a kernel: loop by loop */
    const int64_t most = r->n_loops - loop < HEFT_MAX_DIMS ? n / step : 0;
    if (status == HEFT_OK && most > 0) {
        status = move_steps(m, loop, at + i * r->stride[loop], most);
        i += most;
        n -= most * step;
    }
    while (status == HEFT_OK && n > 0) {
        const int64_t part = heft__min_i64(step, n);
        status = move_part(m, loop + 1, at + i * r->stride[loop], 0, part);
        i++;
        n -= part;
    }
    return status;
}

/* The mover's region, of which *skip bytes are passed over; *left bytes are still to be moved. */
static heft_status_t move_region(mover_t *m, int64_t *skip, int64_t *left)
{
    const heft_route_region_t *r = m->region;
    int64_t bytes = r->run_bytes;
    m->step[r->n_loops] = bytes;
    for (int k = r->n_loops; k-- > 0;) {
        m->step[k] = bytes;
        bytes *= r->extent[k];
    }
    const int64_t from = heft__min_i64(*skip, bytes);
    const int64_t n = heft__min_i64(bytes - from, *left);
    *skip -= from;
    *left -= n;
    return n > 0 ? move_part(m, 0, r->offset, from, n) : HEFT_OK;
}

static heft_status_t move_all(mover_t *m, const heft_route_region_t *regions, uint32_t n,
                              int64_t at, int64_t n_bytes)
{
    const int64_t total = heft_route_regions_get_n_bytes(regions, n);
    if (at < 0 || n_bytes < 0 || at > total || n_bytes > total - at) {
        return heft__error_set(m->err, HEFT_ERR_ARGUMENT, "route: bytes [%lld..+%lld), it has %lld",
                               (long long)at, (long long)n_bytes, (long long)total);
    }
    int64_t skip = at;
    int64_t left = n_bytes;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && left > 0 && status == HEFT_OK; i++) {
        m->region = &regions[i];
        status = move_region(m, &skip, &left);
    }
    return status;
}

/* One side is only read; which one is known to the mover. */
static uint8_t *without_const(const void *data)
{
    union {
        const void *in;
        uint8_t *out;
    } either = { .in = data };
    return either.out;
}

heft_status_t heft_route_pack(const heft_route_region_t *regions, uint32_t n, const void *param,
                              int64_t at, void *packed, int64_t n_bytes, heft_error_t *err)
{
    mover_t m = { .param = without_const(param), .packed = packed, .is_pack = true, .err = err };
    return move_all(&m, regions, n, at, n_bytes);
}

heft_status_t heft_route_unpack(const heft_route_region_t *regions, uint32_t n, void *param,
                                int64_t at, const void *packed, int64_t n_bytes, heft_error_t *err)
{
    mover_t m = { .param = param, .packed = without_const(packed), .err = err };
    return move_all(&m, regions, n, at, n_bytes);
}
