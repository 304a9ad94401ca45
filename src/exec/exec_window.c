/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: a run over mapped files that keeps few of their pages at a time. The units of a run are
 * taken window by window; between two windows no thread is at work, and the caller drops what the
 * window has touched. How much a unit touches is estimated from its jobs' loops: whole pages for
 * what is written, whole blocks of what the system maps at once for what is read. Short runs far
 * apart touch many times what they move; such batches are cut into smaller units.
 */
#include "exec/exec_impl.h"

#define MIN_UNIT_BYTES \
    INT64_C(1024)        /* written: a unit may read a page for each few bytes of them */
#define MAX_UNITS 65536u /* of one batch */
#define WRITE_GRANULE INT64_C(16384) /* the system may map a few pages with the one written */
#define READ_GRANULE INT64_C(65536)  /* pages around one that is read are mapped with it */

/* One side of a job: steps in bytes. */
typedef struct side {
    int n;
    int64_t extent[HEFT_MAX_DIMS + 1];
    int64_t step[HEFT_MAX_DIMS + 1];
    int64_t run_bytes;
    int64_t granule;
} side_t;

/* a * b, or INT64_MAX; both are positive. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return heft__mul(a, b, &product) ? product : INT64_MAX;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return heft__add(a, b, &sum) ? sum : INT64_MAX;
}

static void add_loop(side_t *side, int64_t extent, int64_t step)
{
    int64_t size = step < 0 ? -step : step;
    if (extent < 2 || size == 0) {
        return;
    }
    int at = side->n++;
    while (at > 0 && side->step[at - 1] > size) { /* ascending */
        side->extent[at] = side->extent[at - 1];
        side->step[at] = side->step[at - 1];
        at--;
    }
    side->extent[at] = extent;
    side->step[at] = size;
}

/* Loops whose steps leave no granule out are one span; the others repeat it, and begin anywhere in
 * a granule. Never more than everything from the first byte to the last. */
static int64_t footprint(const side_t *side)
{
    int64_t span = side->run_bytes;
    int64_t hull = side->run_bytes;
    int64_t count = 1;
    bool is_aligned = false; /* repeats lie alike in their granules: all may cross a border */
    for (int k = 0; k < side->n; k++) {
        int64_t reach = times(side->extent[k] - 1, side->step[k]);
        hull = plus(hull, reach);
        if (count == 1 && side->step[k] <= plus(span, side->granule)) {
            span = plus(span, reach);
        } else {
            count = times(count, side->extent[k]);
            is_aligned = is_aligned || side->step[k] % side->granule == 0;
        }
    }
    int64_t each = plus(span, is_aligned ? 2 * side->granule : side->granule);
    return heft__min_i64(times(count, each), plus(hull, 2 * side->granule));
}

/* What the first n steps of a job's outermost loop touch. */
static int64_t copy_cost(const heft__copy_plan_t *copy, bool is_fill, int64_t n)
{
    /* loop 0 of a contiguous copy counts the elements of its one run */
    bool is_run = copy->kind == HEFT__COPY_CONTIGUOUS;
    int64_t run_bytes = is_run ? (int64_t)copy->elem_bytes : copy->run_bytes;
    side_t dst = { .run_bytes = run_bytes, .granule = WRITE_GRANULE };
    side_t src = { .run_bytes = run_bytes, .granule = READ_GRANULE };
    for (int k = 0; k < copy->n_loops; k++) {
        int64_t extent = k == 0 ? n : copy->extent[k];
        add_loop(&dst, extent, copy->dst_step[k]);
        add_loop(&src, extent, copy->src_step[k]);
    }
    return plus(footprint(&dst), is_fill ? 0 : footprint(&src));
}

static int64_t transform_cost(const heft__transform_plan_t *t, int64_t n)
{
    side_t dst = { .run_bytes = t->elem_bytes, .granule = WRITE_GRANULE };
    for (int k = 0; k < t->n_loops; k++) {
        add_loop(&dst, k == 0 ? n : t->extent[k], t->dst_step[k]);
    }
    int64_t cost = footprint(&dst);
    for (uint32_t s = 0; s < t->n_srcs; s++) {
        side_t src = { .run_bytes = heft_dtype_get_unit_bytes(t->src_dtype[s]),
                       .granule = READ_GRANULE };
        for (int k = 0; k < t->n_loops; k++) {
            add_loop(&src, k == 0 ? n : t->extent[k], t->src_step[s][k]);
        }
        cost = plus(cost, footprint(&src));
    }
    return cost;
}

static int64_t job_cost(const heft__job_t *job, bool is_fill, int64_t n)
{
    return job->copy != NULL ? copy_cost(job->copy, is_fill, n) : transform_cost(job->transform, n);
}

static int64_t job_extent(const heft__job_t *job)
{
    return job->copy != NULL ? job->copy->extent[0] : job->transform->extent[0];
}

/* Jobs [begin, end) of a batch that read overlapping addresses; heft__jobs_run spreads their work
 * over these addresses, and group after group over the parts, by bytes. */
typedef struct cluster {
    size_t begin;
    size_t end;
    int64_t read[2];
    double bytes;
} cluster_t;

static cluster_t find_cluster(const heft_exec_t *exec, size_t begin, size_t end)
{
    const heft__job_info_t *first = &exec->infos[begin];
    cluster_t c = { .begin = begin,
                    .end = begin + 1,
                    .read = { first->src_begin, first->src_end },
                    .bytes = (double)first->bytes };
    for (; c.end < end && exec->infos[c.end].src_begin < c.read[1]; c.end++) {
        c.read[1] = heft__max_i64(c.read[1], exec->infos[c.end].src_end);
        c.bytes += (double)exec->infos[c.end].bytes;
    }
    return c;
}

/* Add a job to the parts that it may reach, each with the share of its steps that lies there. */
static void add_job_cost(const heft_exec_t *exec, const heft__batch_t *batch, const cluster_t *c,
                         double at, size_t j, int64_t *cost)
{
    const heft__job_info_t *info = &exec->infos[j];
    const heft__job_t *job = &exec->jobs[j];
    double total = (double)heft__max_i64(batch->bytes, 1);
    double per_byte = c->bytes / (double)heft__max_i64(c->read[1] - c->read[0], 1);
    double from = info->is_fill ? 0 : at + (double)(info->src_begin - c->read[0]) * per_byte;
    double to = info->is_fill ? total : at + (double)(info->src_end - c->read[0]) * per_byte;
    double n_parts = (double)batch->n_parts;
    int64_t first = (int64_t)(from / total * n_parts) - 1; /* shares are rounded: one more */
    int64_t last = (int64_t)(to / total * n_parts) + 1;
    first = heft__max_i64(first, 0);
    last = heft__min_i64(last, (int64_t)batch->n_parts - 1);
    int64_t extent = job_extent(job);
    double parts = (to - from) / total * n_parts;
    double steps = parts > 1 ? (double)extent / parts : (double)extent;
    int64_t align = job->copy != NULL ? job->copy->slab_align : job->transform->slab_align;
    int64_t n = heft__min_i64((int64_t)steps + 1 + heft__max_i64(align, 1), extent);
    int64_t each = job_cost(job, info->is_fill, n);
    for (int64_t p = first; p <= last; p++) {
        cost[p] = plus(cost[p], each);
    }
}

static heft_status_t price_batch(const heft_exec_t *exec, heft__batch_t *batch, heft_error_t *err)
{
    int64_t *cost = heft__calloc(batch->n_parts, sizeof *cost);
    if (cost == NULL) {
        return heft__error_nomem(err, batch->n_parts * sizeof *cost);
    }
    double at = 0;
    for (size_t j = batch->job_begin; j < batch->job_end;) {
        cluster_t c = find_cluster(exec, j, batch->job_end);
        for (; j < c.end; j++) {
            add_job_cost(exec, batch, &c, at, j, cost);
        }
        at += c.bytes;
    }
    batch->part_cost = 0;
    for (uint32_t p = 0; p < batch->n_parts; p++) {
        batch->part_cost = heft__max_i64(batch->part_cost, cost[p]);
    }
    heft__free(cost);
    return HEFT_OK;
}

/* Cut a batch until all threads' units fit a window together, or units are too small to be cut. */
static heft_status_t cut_batch(const heft_exec_t *exec, heft__batch_t *batch, int64_t max_cost,
                               heft_error_t *err)
{
    heft_status_t status = price_batch(exec, batch, err);
    bool is_fill = exec->infos[batch->job_begin].is_fill;
    while (status == HEFT_OK && batch->part_cost > max_cost && !is_fill &&
           batch->n_parts < MAX_UNITS && batch->bytes / batch->n_parts > 2 * MIN_UNIT_BYTES) {
        batch->n_parts *= 2;
        status = price_batch(exec, batch, err);
    }
    return status;
}

heft_status_t heft__exec_set_window(heft_exec_t *exec, const heft__exec_window_t *window,
                                    bool *fits_out, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    bool fits = true;
    int64_t max_cost = window->max_bytes / (int64_t)heft__pool_get_n_threads(exec->pool);
    exec->n_units = 0;
    for (size_t b = 0; status == HEFT_OK && b < exec->n_batches; b++) {
        heft__batch_t *batch = &exec->batches[b];
        status = cut_batch(exec, batch, max_cost, err);
        batch->unit_begin = exec->n_units;
        exec->n_units += batch->n_parts;
        fits = fits && batch->part_cost <= window->max_bytes;
    }
    if (status == HEFT_OK) {
        exec->window = *window;
        *fits_out = fits;
    }
    return status;
}

/* A unit of a known kernel gathers rows of input and writes rows of output, all of them also in the
 * thread's own memory; pages around them make it more. */
static uint64_t known_window_end(const heft_exec_t *exec, uint64_t begin)
{
    int64_t cost = plus(times(4, (int64_t)exec->known.scratch_bytes), READ_GRANULE);
    uint64_t n = (uint64_t)heft__max_i64(exec->window.max_bytes / cost, 1);
    return n < exec->known.n_units - begin ? begin + n : exec->known.n_units;
}

/* Units from `begin` that fit a window together; at least one. */
uint64_t heft__exec_window_end(const heft_exec_t *exec, uint64_t begin)
{
    uint64_t first = exec->known.n_units;
    if (exec->window.between == NULL) {
        return first + exec->n_units;
    }
    if (begin < first) {
        return known_window_end(exec, begin);
    }
    size_t b = (size_t)(heft__exec_find_batch(exec, begin - first) - exec->batches);
    uint64_t end = begin;
    int64_t left = exec->window.max_bytes;
    for (; b < exec->n_batches; b++) {
        const heft__batch_t *batch = &exec->batches[b];
        uint64_t there = first + batch->unit_begin + batch->n_parts - end;
        uint64_t fit = batch->part_cost > 0 ? (uint64_t)(left / batch->part_cost) : there;
        uint64_t n = fit < there ? fit : there;
        end += n;
        left -= (int64_t)n * batch->part_cost;
        if (n < there) {
            break;
        }
    }
    return end > begin ? end : begin + 1;
}
