/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies and transforms that read the same source, in one pass over it.
 *
 * Jobs whose source ranges overlap form a group. A group is cut into blocks of source addresses; a
 * slab (one step of a job's outermost source loop) belongs to the block in which it begins, so
 * blocks, and the shares of threads, never overlap. Within a block, jobs made of short slabs take
 * turns tick by tick, a tick being a few kilobytes of source: reading thus follows the addresses
 * however many destinations there are. Jobs that want many slabs at once (a transpose needs rows
 * for whole destination lines) run one after the other, on blocks large enough for them.
 */
#include "kernel/transform.h"

#define BLOCK_BYTES ((uintptr_t)256 << 10)
#define MAX_TICK_BYTES ((uintptr_t)64 << 10)
#define TURN_BYTES 2048
#define MAX_GROUP 256

/* Addresses [begin, end). */
typedef struct range {
    uintptr_t begin;
    uintptr_t end;
} range_t;

/* The slabs of a job in order of address. */
typedef struct slabs {
    uintptr_t lowest; /* where the first one begins */
    uintptr_t step;
    int64_t n;
    int64_t align;    /* cut at multiples of this */
    bool is_reversed; /* the slab of the lowest address is the last one */
} slabs_t;

typedef struct member {
    const heft__job_t *job;
    heft__sink_t sink;
    uint64_t *digest; /* NULL: none wanted */
    slabs_t slabs;
    bool is_ticking;
    bool is_plain;  /* ticking, and each slab is one run */
    uintptr_t next; /* while ticking: where the next slab begins */
    int64_t at;     /* its rank by address */
    int64_t end;
    uint8_t *dst_at; /* if plain: the next run */
    const uint8_t *src_at;
} member_t;

typedef struct group {
    const heft__kernel_ops_t *ops;
    size_t n;
    range_t all;
    double bytes;  /* written */
    int64_t ahead; /* 0: the members leave gaps in the source */
    bool nt;
    uintptr_t block_bytes;
    uintptr_t tick_bytes;
    member_t *members; /* MAX_GROUP of them */
} group_t;

static int64_t job_bytes(const heft__job_t *job)
{
    return job->copy != NULL ? job->copy->bytes : job->transform->bytes;
}

static range_t job_range(const heft__job_t *job)
{
    const heft__copy_plan_t *copy = job->copy;
    uintptr_t base = (uintptr_t)job->src[copy != NULL ? 0 : job->transform->primary];
    int64_t begin = copy != NULL ? copy->src_begin : job->transform->src_begin;
    int64_t end = copy != NULL ? copy->src_end : job->transform->src_end;
    return (range_t){ .begin = base + (uintptr_t)begin, .end = base + (uintptr_t)end };
}

static int64_t outer_step(const heft__job_t *job)
{
    const heft__transform_plan_t *transform = job->transform;
    return job->copy != NULL ? job->copy->src_step[0] : transform->src_step[transform->primary][0];
}

static bool overlap(const range_t *a, const range_t *b)
{
    return a->begin < b->end && b->begin < a->end;
}

static slabs_t job_slabs(const heft__job_t *job)
{
    const heft__copy_plan_t *copy = job->copy;
    const heft__transform_plan_t *transform = job->transform;
    uint32_t p = copy != NULL ? 0 : transform->primary;
    int64_t offset = copy != NULL ? copy->src_offset : transform->src_offset[p];
    int64_t step = outer_step(job);
    int64_t align = copy != NULL ? copy->slab_align : transform->slab_align;
    slabs_t slabs = { .lowest = (uintptr_t)job->src[p] + (uintptr_t)offset,
                      .step = (uintptr_t)step,
                      .n = copy != NULL ? copy->extent[0] : transform->extent[0],
                      .align = align > 0 ? align : 1,
                      .is_reversed = step < 0 };
    if (slabs.is_reversed) {
        slabs.lowest += slabs.step * (uintptr_t)(slabs.n - 1);
        slabs.step = 0 - slabs.step;
    }
    return slabs;
}

/* Round a number of slabs by address down (or up, if reversed) so that the cut falls on a multiple
 * of align counted from slab 0. */
static int64_t align_count(const slabs_t *slabs, int64_t count)
{
    if (count == 0 || count == slabs->n) {
        return count;
    }
    return slabs->is_reversed ? count + (slabs->n - count) % slabs->align
                              : count - count % slabs->align;
}

/* How many slabs begin below this address, aligned. */
static int64_t count_below(const slabs_t *slabs, uintptr_t address)
{
    if (address <= slabs->lowest) {
        return 0;
    }
    uintptr_t count =
        slabs->step == 0 ? (uintptr_t)slabs->n : (address - slabs->lowest - 1) / slabs->step + 1;
    if (count >= (uintptr_t)slabs->n) {
        return slabs->n;
    }
    return align_count(slabs, (int64_t)count);
}

/* Slabs [begin, end) by address. */
static void run_slabs(const group_t *group, member_t *m, int64_t begin, int64_t end)
{
    const heft__job_t *job = m->job;
    int64_t first = m->slabs.is_reversed ? m->slabs.n - end : begin;
    int64_t last = m->slabs.is_reversed ? m->slabs.n - begin : end;
    uint64_t share = 0;
    if (job->copy != NULL) {
        heft__copy_part_t part = { .plan = job->copy,
                                   .dst = job->dst,
                                   .src = job->src[0],
                                   .begin = first,
                                   .end = last,
                                   .ahead = group->ahead,
                                   .nt = group->nt,
                                   .has_digest = m->sink.has_digest,
                                   .digest_end = job->param_bytes - job->dst_offset };
        share = heft__copy_part_run(group->ops, &part);
    } else {
        heft__transform_part_t part = { .plan = job->transform,
                                        .dst = job->dst,
                                        .srcs = job->src,
                                        .begin = first,
                                        .end = last,
                                        .nt = group->nt,
                                        .has_digest = m->sink.has_digest,
                                        .digest_end = job->param_bytes - job->dst_offset };
        share = heft__transform_part_run(group->ops, &part);
    }
    m->sink.digest ^= share;
}

/* The slabs of one tick that are single runs: the common case, kept short. */
static void run_plain_tick(const group_t *group, member_t *m, uintptr_t tick_end)
{
    const heft__copy_plan_t *copy = m->job->copy;
    int64_t n = 0;
    while (m->at < m->end && m->next < tick_end) {
        n++;
        m->at++;
        m->next += m->slabs.step;
    }
    if (n > 0) {
        heft__sink_put_runs(&m->sink, m->dst_at, copy->dst_step[0], m->src_at, copy->src_step[0], n,
                            copy->run_bytes, group->ahead);
        m->dst_at += n * copy->dst_step[0];
        m->src_at += n * copy->src_step[0];
    }
}

static void run_tick(const group_t *group, member_t *m, uintptr_t tick_end)
{
    if (m->is_plain) {
        run_plain_tick(group, m, tick_end);
        return;
    }
    int64_t begin = m->at;
    while (m->at < m->end && m->next < tick_end) {
        m->at++;
        m->next += m->slabs.step;
    }
    if (begin < m->at) {
        run_slabs(group, m, begin, m->at);
    }
}

/* The slabs that begin in a block, and how to walk them. */
static void enter_block(member_t *m, range_t block)
{
    m->at = count_below(&m->slabs, block.begin);
    m->end = count_below(&m->slabs, block.end);
    m->next = m->slabs.lowest + m->slabs.step * (uintptr_t)m->at;
    if (m->is_plain) {
        const heft__copy_plan_t *copy = m->job->copy;
        m->dst_at = (uint8_t *)m->job->dst + copy->dst_offset + m->at * copy->dst_step[0];
        m->src_at = (const uint8_t *)m->job->src[0] + copy->src_offset + m->at * copy->src_step[0];
    }
}

static void run_block(group_t *group, range_t block)
{
    bool any = false;
    for (size_t j = 0; j < group->n; j++) {
        member_t *m = &group->members[j];
        enter_block(m, block);
        if (!m->is_ticking && m->at < m->end) {
            run_slabs(group, m, m->at, m->end);
        }
        any = any || (m->is_ticking && m->at < m->end);
    }
    for (uintptr_t tick = block.begin; any && tick < block.end; tick += group->tick_bytes) {
        uintptr_t tick_end =
            block.end - tick > group->tick_bytes ? tick + group->tick_bytes : block.end;
        any = false;
        for (size_t j = 0; j < group->n; j++) {
            member_t *m = &group->members[j];
            if (m->is_ticking && m->at < m->end) {
                run_tick(group, m, tick_end);
                any = any || m->at < m->end;
            }
        }
    }
}

/* Choose block and tick so that each member gets what it needs at once, and so that turns are long
 * enough to be worth taking: about TURN_BYTES for each member. */
static void tune(group_t *group)
{
    uintptr_t step = BLOCK_BYTES; /* the shortest of the ticking members' */
    uintptr_t turns = 1;
    group->block_bytes = BLOCK_BYTES;
    for (size_t j = 0; j < group->n; j++) {
        const member_t *m = &group->members[j];
        uintptr_t wanted = m->slabs.step * (uintptr_t)m->slabs.align;
        if (!m->is_ticking) {
            group->block_bytes = wanted > group->block_bytes ? wanted : group->block_bytes;
        } else if (m->slabs.step < step) {
            step = m->slabs.step;
            turns = (uintptr_t)(TURN_BYTES / (job_bytes(m->job) / m->slabs.n));
        }
    }
    while (turns > 1 && step * turns > MAX_TICK_BYTES) {
        turns--;
    }
    group->tick_bytes = step * (turns > 0 ? turns : 1);
    bool is_dense = group->bytes >= 0.5 * (double)(group->all.end - group->all.begin);
    group->ahead = (int64_t)group->tick_bytes;
    if (group->ahead < HEFT__AHEAD || turns <= 1) {
        group->ahead = HEFT__AHEAD;
    }
    group->ahead = group->n > 1 && is_dense ? group->ahead : 0;
    group->block_bytes -= group->block_bytes % group->tick_bytes;
    group->block_bytes = group->block_bytes > 0 ? group->block_bytes : group->tick_bytes;
}

/* Fractions 0 and 1 give exactly 0 and n. */
static uint64_t portion(uint64_t n, double fraction)
{
    return fraction >= 1 ? n : (uint64_t)((double)n * fraction);
}

static void run_single(group_t *group, double from, double to)
{
    member_t *m = &group->members[0];
    int64_t begin = (int64_t)portion((uint64_t)m->slabs.n, from);
    int64_t end = (int64_t)portion((uint64_t)m->slabs.n, to);
    begin = align_count(&m->slabs, begin);
    end = align_count(&m->slabs, end);
    if (begin < end) {
        run_slabs(group, m, begin, end);
    }
}

/* The share of a group's work between two fractions of it. */
static void run_overlapping(group_t *group, double from, double to)
{
    tune(group);
    uint64_t bytes = group->all.end - group->all.begin;
    uintptr_t at = group->all.begin + portion(bytes, from);
    uintptr_t end = group->all.begin + portion(bytes, to);
    while (at < end) {
        uintptr_t next = end - at > group->block_bytes ? at + group->block_bytes : end;
        run_block(group, (range_t){ .begin = at, .end = next });
        at = next;
    }
}

static void init_member(const group_t *group, member_t *m, const heft__job_t *job, uint64_t *digest)
{
    const heft__copy_plan_t *copy = job->copy;
    bool has_digest = digest != NULL && job->param_bytes > 0;
    int64_t param_end = job->param_bytes - job->dst_offset;
    *m = (member_t){ .job = job, .digest = has_digest ? digest : NULL, .slabs = job_slabs(job) };
    m->sink = (heft__sink_t){ .ops = group->ops,
                              .nt = group->nt,
                              .has_digest = has_digest,
                              .param_end = has_digest ? (uint8_t *)job->dst + param_end : NULL };
    m->is_ticking = m->slabs.align == 1 && m->slabs.step > 0;
    m->is_plain = m->is_ticking && copy != NULL && copy->kind == HEFT__COPY_RUNS &&
                  copy->n_loops == 1 && !m->slabs.is_reversed;
}

static void run_group(group_t *group, double from, double to)
{
    if (group->n == 0) {
        return;
    }
    if (group->n == 1) {
        group->ahead = 0;
        run_single(group, from, to);
    } else {
        run_overlapping(group, from, to);
    }
    for (size_t j = 0; j < group->n; j++) {
        if (group->members[j].digest != NULL) {
            *group->members[j].digest ^= group->members[j].sink.digest;
        }
    }
}

/*
 * Take jobs from the front while they overlap; returns how many, with what they read and write.
 * Fills and other jobs that stay at one place in the source have nothing to share and stay alone.
 */
static size_t find_group(group_t *group, const heft__job_t *jobs, size_t n_jobs)
{
    size_t taken = 0;
    bool may_grow = true;
    group->n = 0;
    group->bytes = 0;
    for (; taken < n_jobs && group->n < MAX_GROUP; taken++) {
        const heft__job_t *job = &jobs[taken];
        if (job_bytes(job) == 0) {
            continue;
        }
        range_t r = job_range(job);
        bool can_share = outer_step(job) != 0;
        if (group->n == 0) {
            group->all = r;
            may_grow = can_share;
        } else if (!may_grow || !can_share || !overlap(&r, &group->all)) {
            break;
        }
        group->all.begin = r.begin < group->all.begin ? r.begin : group->all.begin;
        group->all.end = r.end > group->all.end ? r.end : group->all.end;
        group->bytes += (double)job_bytes(job);
        group->n++;
    }
    return taken;
}

/* Set up the members of a group found in the first n_jobs jobs. */
static void enter_group(group_t *group, const heft__job_t *jobs, size_t n_jobs, uint64_t *digests)
{
    group->n = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        if (job_bytes(&jobs[j]) > 0) {
            init_member(group, &group->members[group->n++], &jobs[j],
                        digests == NULL ? NULL : &digests[j]);
        }
    }
}

static double clamp_fraction(double v)
{
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

void heft__jobs_run(const heft__job_t *jobs, size_t n_jobs, uint32_t part, uint32_t n_parts,
                    uint64_t *digests)
{
    member_t members[MAX_GROUP];
    double total = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        total += (double)job_bytes(&jobs[j]);
    }
    double from = total * part / n_parts;
    double to = part + 1 >= n_parts ? total : total * (part + 1) / n_parts;
    double at = 0; /* bytes of the groups so far */
    group_t group = { .ops = heft__ops(),
                      .nt = total >= (double)HEFT__NT_MIN_BYTES,
                      .members = members };
    for (size_t j = 0; j < n_jobs && at < to;) {
        size_t taken = find_group(&group, jobs + j, n_jobs - j);
        double end = at + group.bytes;
        if (group.n > 0 && end > from) {
            enter_group(&group, jobs + j, taken, digests == NULL ? NULL : digests + j);
            run_group(&group, clamp_fraction((from - at) / group.bytes),
                      clamp_fraction((to - at) / group.bytes));
        }
        at = end;
        j += taken;
    }
    group.ops->fence();
}
