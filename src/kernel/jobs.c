/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies and transforms that read the same source, in one pass over it.
 *
 * The source is cut into blocks of addresses; for each block every job runs the slabs that begin in
 * it. A slab belongs to exactly one block, because slabs begin at different addresses (or, when the
 * outermost step is 0, all slabs belong to one block).
 */
#include "kernel/transform.h"

#define BLOCK_BYTES ((uintptr_t)256 << 10)

typedef struct range {
    uintptr_t begin;
    uintptr_t end;
} range_t;

typedef struct slabs {
    uintptr_t first; /* address at which slab 0 begins */
    int64_t step;
    int64_t n;
    int64_t align;
} slabs_t;

static range_t job_range(const heft__job_t *job)
{
    const uint8_t *src = job->src[job->copy != NULL ? 0 : job->transform->primary];
    uintptr_t base = (uintptr_t)src;
    int64_t begin = job->copy != NULL ? job->copy->src_begin : job->transform->src_begin;
    int64_t end = job->copy != NULL ? job->copy->src_end : job->transform->src_end;
    return (range_t){ .begin = base + (uintptr_t)begin, .end = base + (uintptr_t)end };
}

static slabs_t job_slabs(const heft__job_t *job)
{
    if (job->copy != NULL) {
        const heft__copy_plan_t *plan = job->copy;
        return (slabs_t){ .first = (uintptr_t)job->src[0] + (uintptr_t)plan->src_offset,
                          .step = plan->src_step[0],
                          .n = plan->extent[0],
                          .align = plan->slab_align };
    }
    const heft__transform_plan_t *plan = job->transform;
    uint32_t p = plan->primary;
    return (slabs_t){ .first = (uintptr_t)job->src[p] + (uintptr_t)plan->src_offset[p],
                      .step = plan->src_step[p][0],
                      .n = plan->extent[0],
                      .align = 1 };
}

/* How many slabs, in order of address, begin below this address. */
static int64_t count_below(const slabs_t *slabs, uintptr_t address)
{
    uintptr_t lowest = slabs->first;
    uintptr_t step = (uintptr_t)slabs->step;
    if (slabs->step < 0) {
        lowest += step * (uintptr_t)(slabs->n - 1);
        step = 0 - step;
    }
    if (address <= lowest) {
        return 0;
    }
    if (step == 0) {
        return slabs->n;
    }
    uintptr_t count = (address - lowest - 1) / step + 1;
    return count > (uintptr_t)slabs->n ? slabs->n : (int64_t)count;
}

/* The slabs that begin in [begin, end), as slab numbers. */
static void locate(const slabs_t *slabs, range_t block, int64_t *begin_out, int64_t *end_out)
{
    int64_t begin = count_below(slabs, block.begin);
    int64_t end = count_below(slabs, block.end);
    if (slabs->step < 0) {
        int64_t flipped = slabs->n - end;
        end = slabs->n - begin;
        begin = flipped;
    }
    *begin_out = begin == slabs->n ? begin : begin - begin % slabs->align;
    *end_out = end == slabs->n ? end : end - end % slabs->align;
}

static uint64_t run_slabs(const heft__kernel_ops_t *ops, const heft__job_t *job, int64_t begin,
                          int64_t end, bool nt, bool has_digest)
{
    int64_t digest_end = job->param_bytes - job->dst_offset;
    if (job->copy != NULL) {
        heft__copy_part_t part = { .plan = job->copy,
                                   .dst = job->dst,
                                   .src = job->src[0],
                                   .begin = begin,
                                   .end = end,
                                   .nt = nt,
                                   .has_digest = has_digest,
                                   .digest_end = digest_end };
        return heft__copy_part_run(ops, &part);
    }
    heft__transform_part_t part = { .plan = job->transform,
                                    .dst = job->dst,
                                    .srcs = job->src,
                                    .begin = begin,
                                    .end = end,
                                    .nt = nt,
                                    .has_digest = has_digest,
                                    .digest_end = digest_end };
    return heft__transform_part_run(ops, &part);
}

static uintptr_t cut(range_t all, uint32_t part, uint32_t n_parts)
{
    uintptr_t bytes = all.end - all.begin;
    return part >= n_parts ? all.end
                           : all.begin + bytes / n_parts * part + bytes % n_parts * part / n_parts;
}

static int64_t job_bytes(const heft__job_t *job)
{
    return job->copy != NULL ? job->copy->bytes : job->transform->bytes;
}

void heft__jobs_run(const heft__job_t *jobs, size_t n_jobs, uint32_t part, uint32_t n_parts,
                    uint64_t *digests)
{
    const heft__kernel_ops_t *ops = heft__ops();
    int64_t bytes = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        bytes += job_bytes(&jobs[j]);
    }
    for (size_t j = 0; j < n_jobs; j++) {
        if (job_bytes(&jobs[j]) == 0) {
            continue;
        }
        slabs_t slabs = job_slabs(&jobs[j]);
        range_t all = job_range(&jobs[j]);
        range_t block = { .begin = cut(all, part, n_parts), .end = cut(all, part + 1, n_parts) };
        int64_t begin;
        int64_t end;
        locate(&slabs, block, &begin, &end);
        bool has_digest = digests != NULL && jobs[j].param_bytes > 0;
        uint64_t share =
            run_slabs(ops, &jobs[j], begin, end, bytes >= HEFT__NT_MIN_BYTES, has_digest);
        if (has_digest) {
            digests[j] ^= share;
        }
    }
    ops->fence();
}
