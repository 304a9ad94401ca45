/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run prepared copies.
 *
 * Outer loops are an odometer; the innermost one or two loops are the business of a function per
 * kind. With a digest, each stretch of destination bytes that is contiguous contributes its CRC
 * times x^(8 * distance to the end of the parameter); copies that are no runs first gather such
 * stretches in a small buffer, in destination order.
 */
#include "kernel/cast.h"
#include "kernel/tile.h"

#include <string.h>

#define BOUNCE_BYTES 8192
#define TILE 32

typedef struct run {
    heft__sink_t sink;
    const heft__copy_plan_t *plan;
    int64_t ahead;
    int64_t extent[HEFT_MAX_DIMS]; /* the plan's, loop 0 cut to the slabs asked for */
} run_t;

/* Runs the inner loops at one position of the outer ones. */
typedef void (*inner_t)(run_t *run, uint8_t *dst, const uint8_t *src);

static void run_contiguous(run_t *run, uint8_t *dst, const uint8_t *src)
{
    heft__sink_put(&run->sink, dst, src, run->extent[0] * run->plan->elem_bytes, HEFT__AHEAD);
}

static void run_runs(run_t *run, uint8_t *dst, const uint8_t *src)
{
    const heft__copy_plan_t *plan = run->plan;
    int last = plan->n_loops - 1;
    heft__sink_put_runs(&run->sink, dst, plan->dst_step[last], src, plan->src_step[last],
                        run->extent[last], plan->run_bytes, run->ahead);
}

static void run_transpose(run_t *run, uint8_t *dst, const uint8_t *src)
{
    const heft__copy_plan_t *plan = run->plan;
    heft__transpose(&run->sink, dst, plan->dst_step[plan->src_unit], src,
                    plan->src_step[plan->dst_unit], run->extent[plan->dst_unit],
                    run->extent[plan->src_unit], plan->elem_bytes);
}

static void gather_line(run_t *run, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                        int64_t src_step, int64_t n)
{
    heft__sink_t *sink = &run->sink;
    uint32_t elem = run->plan->elem_bytes;
    bool is_dense = dst_step == (int64_t)elem;
    if (!sink->has_digest && !(is_dense && sink->nt && n * elem >= HEFT__NT_MIN_RUN)) {
        heft__elems_move(sink->ops, dst, dst_step, src, src_step, n, elem);
        return;
    }
    if (!is_dense) {
        for (int64_t i = 0; i < n; i++) {
            heft__sink_put(sink, dst + i * dst_step, src + i * src_step, elem, 0);
        }
        return;
    }
    _Alignas(64) uint8_t bounce[BOUNCE_BYTES];
    int64_t most = BOUNCE_BYTES / elem;
    for (int64_t i = 0; i < n; i += most) {
        int64_t some = heft__min_i64(most, n - i);
        heft__elems_move(sink->ops, bounce, elem, src + i * src_step, src_step, some, elem);
        heft__sink_put(sink, dst + i * elem, bounce, some * elem, 0);
    }
}

static int smallest_dst_step(const heft__copy_plan_t *plan)
{
    int best = 0;
    for (int k = 1; k < plan->n_loops; k++) {
        best = plan->dst_step[k] < plan->dst_step[best] ? k : best;
    }
    return best;
}

/* The last loop has the smallest source step; in tiles with the loop of the smallest destination
 * step, both sides stay in the cache. */
static void run_gather(run_t *run, uint8_t *dst, const uint8_t *src)
{
    const heft__copy_plan_t *plan = run->plan;
    int u = smallest_dst_step(plan);
    int v = plan->n_loops - 1;
    if (u == v) {
        gather_line(run, dst, plan->dst_step[u], src, plan->src_step[u], run->extent[u]);
        return;
    }
    int64_t tile_u = plan->src_step[u] == 0 ? run->extent[u] : TILE;
    for (int64_t i = 0; i < run->extent[u]; i += tile_u) {
        int64_t n = heft__min_i64(tile_u, run->extent[u] - i);
        for (int64_t j = 0; j < run->extent[v]; j++) {
            gather_line(run, dst + i * plan->dst_step[u] + j * plan->dst_step[v], plan->dst_step[u],
                        src + i * plan->src_step[u] + j * plan->src_step[v], plan->src_step[u], n);
        }
    }
}

/* All positions of the loops not in inner_mask. */
static void walk(run_t *run, uint32_t inner_mask, uint8_t *dst, const uint8_t *src, inner_t inner)
{
    const heft__copy_plan_t *plan = run->plan;
    int loops[HEFT_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < plan->n_loops; k++) {
        if ((inner_mask >> k & 1) == 0) {
            loops[n++] = k;
        }
    }
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (;;) {
        inner(run, dst, src);
        int k = n - 1;
        for (; k >= 0; k--) {
            int loop = loops[k];
            dst += plan->dst_step[loop];
            src += plan->src_step[loop];
            if (++index[k] < run->extent[loop]) {
                break;
            }
            dst -= plan->dst_step[loop] * index[k];
            src -= plan->src_step[loop] * index[k];
            index[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

uint64_t heft__copy_part_run(const heft__kernel_ops_t *ops, const heft__copy_part_t *part)
{
    const heft__copy_plan_t *plan = part->plan;
    if (plan->kind == HEFT__COPY_EMPTY || part->begin >= part->end) {
        return 0;
    }
    run_t run = { .plan = plan, .ahead = part->ahead };
    run.sink =
        (heft__sink_t){ .ops = ops,
                        .nt = part->nt,
                        .has_digest = part->has_digest,
                        .param_end = part->has_digest ? part->dst + part->digest_end : NULL };
    memcpy(run.extent, plan->extent, sizeof run.extent);
    run.extent[0] = part->end - part->begin;
    uint8_t *dst = part->dst + plan->dst_offset + part->begin * plan->dst_step[0];
    const uint8_t *src = part->src + plan->src_offset + part->begin * plan->src_step[0];
    uint32_t last = 1u << (plan->n_loops - 1);
    switch (plan->kind) {
    case HEFT__COPY_CONTIGUOUS:
        run_contiguous(&run, dst, src);
        break;
    case HEFT__COPY_RUNS:
        walk(&run, last, dst, src, run_runs);
        break;
    case HEFT__COPY_TRANSPOSE:
        walk(&run, 1u << plan->dst_unit | 1u << plan->src_unit, dst, src, run_transpose);
        break;
    case HEFT__COPY_GATHER:
        walk(&run, 1u << smallest_dst_step(plan) | last, dst, src, run_gather);
        break;
    case HEFT__COPY_EMPTY:
        break;
    }
    return run.sink.digest;
}

void heft__copy_run_slabs(const heft__copy_plan_t *plan, void *dst, const void *src, int64_t begin,
                          int64_t end)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__copy_part_t part = { .plan = plan,
                               .dst = dst,
                               .src = src,
                               .begin = begin,
                               .end = end,
                               .nt = plan->bytes >= HEFT__NT_MIN_BYTES };
    (void)heft__copy_part_run(ops, &part);
    ops->fence();
}

void heft__copy_run(const heft__copy_plan_t *plan, void *dst, const void *src)
{
    heft__copy_run_slabs(plan, dst, src, 0, plan->extent[0]);
}

uint64_t heft__copy_run_crc64(const heft__copy_plan_t *plan, void *dst, const void *src,
                              int64_t dst_offset, int64_t param_bytes)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__copy_part_t part = { .plan = plan,
                               .dst = dst,
                               .src = src,
                               .end = plan->extent[0],
                               .nt = plan->bytes >= HEFT__NT_MIN_BYTES,
                               .has_digest = true,
                               .digest_end = param_bytes - dst_offset };
    uint64_t digest = heft__copy_part_run(ops, &part);
    ops->fence();
    return digest;
}

void heft__memcpy(void *dst, const void *src, int64_t n_bytes)
{
    const heft__kernel_ops_t *ops = heft__ops();
    bool nt = n_bytes >= HEFT__NT_MIN_BYTES;
    ops->move(dst, 0, src, 0, 1, n_bytes, nt, HEFT__AHEAD);
    ops->fence();
}
