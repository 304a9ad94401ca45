/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces are bound as for a run, but whole: what is one run on both sides is a contiguous copy. */
#include "sync/direct.h"

#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum {
    LEAST_RUN = 64 << 10, /* on average: below that one pass of the kernels is as good */
    STEP = 64 << 10       /* read for one sum, it is still in the cache for the other */
};

/* The runs of one entry while they are found. */
typedef struct finder {
    heft__direct_t *direct;
    bool is_plain;
} finder_t;

static heft_status_t add_run(void *arg, const heft__bound_piece_t *bound, heft_error_t *err)
{
    finder_t *finder = arg;
    heft__direct_t *direct = finder->direct;
    const heft__copy_plan_t *copy = bound->copy;
    void *runs = direct->runs;
    if (copy == NULL || bound->fill != NULL || copy->kind != HEFT__COPY_CONTIGUOUS) {
        finder->is_plain = false;
        return HEFT_OK;
    }
    if (!heft__grow(&runs, &direct->cap_runs, direct->n_runs + 1, sizeof *direct->runs)) {
        return heft__error_nomem(err, (direct->n_runs + 1) * sizeof *direct->runs);
    }
    direct->runs = runs;
    direct->runs[direct->n_runs++] =
        (heft__run_t){ .at = bound->dst_offset + copy->dst_offset,
                       .bytes = copy->bytes,
                       .offset = bound->src_offset[0] + copy->src_offset,
                       .source = bound->source[0] };
    return HEFT_OK;
}

static int by_place(const void *a, const void *b)
{
    const heft__run_t *x = a;
    const heft__run_t *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The runs from `first` on follow one another, are n_bytes together, and are not too short. */
static bool is_whole(heft__direct_t *direct, size_t first, int64_t n_bytes)
{
    const size_t n = direct->n_runs - first;
    int64_t end = 0;
    if (n == 0 || (int64_t)n > 1 + n_bytes / LEAST_RUN) {
        return false;
    }
    qsort(direct->runs + first, n, sizeof *direct->runs, by_place);
    for (size_t i = first; i < direct->n_runs; i++) {
        if (direct->runs[i].at != end) {
            return false;
        }
        end += direct->runs[i].bytes;
    }
    return end == n_bytes;
}

/* Sent by nobody else, and looked at by nobody once it is written. */
static bool is_candidate(const heft_plan_t *plan, const heft__delivery_t *d, uint32_t sender,
                         uint32_t param)
{
    uint32_t n_senders = 0;
    uint64_t n_checks = 0;
    const uint32_t *senders = heft__delivery_get_entry_senders(d, param, &n_senders);
    (void)heft_plan_get_param_checks(plan, d->rank_index, param, &n_checks);
    return n_senders == 1 && senders[0] == sender && n_checks == 0;
}

static heft_status_t find_runs(const heft_plan_t *plan, const heft__delivery_t *d, uint32_t sender,
                               uint32_t param, heft__direct_t *direct, heft_error_t *err)
{
    const size_t first = direct->n_runs;
    const heft__bind_limits_t whole = { .slab_bytes = INT64_MAX, .part_bytes = INT64_MAX };
    finder_t finder = { .direct = direct, .is_plain = is_candidate(plan, d, sender, param) };
    heft_tensor_info_t info;
    uint64_t n = 0;
    uint64_t n_all = 0;
    const uint64_t *order = heft__routes_get_pieces(d->routes, sender, d->rank_index, param, &n);
    const heft_piece_t *pieces = heft_plan_get_pieces(plan, d->rank_index, &n_all);
    heft__arena_t arena;
    heft__arena_init(&arena, 4096);
    heft_status_t status = heft_plan_query_param(plan, d->rank_index, param, &info, err);
    for (uint64_t i = 0; i < n && finder.is_plain && status == HEFT_OK; i++) {
        const heft_piece_t *piece = &pieces[order[i]];
        finder.is_plain = !heft__piece_is_computed(piece);
        if (finder.is_plain) {
            status =
                heft__piece_bind(plan, piece, info.dtype, whole, &arena, add_run, &finder, err);
        }
    }
    heft__arena_fini(&arena);
    if (!finder.is_plain || !is_whole(direct, first, d->layout->sizes[param])) {
        direct->n_runs = first;
    }
    return status;
}

heft_status_t heft__direct_init(const heft_plan_t *plan, const heft__delivery_t *d, uint32_t sender,
                                heft__direct_t *out, heft_error_t *err)
{
    heft__direct_t direct = { .n_params = d->layout->n_params };
    const size_t n = (size_t)direct.n_params + 1;
    direct.first = heft__calloc(n, sizeof *direct.first);
    if (direct.first == NULL) {
        return heft__error_nomem(err, n * sizeof *direct.first);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < direct.n_params && status == HEFT_OK; i++) {
        status = find_runs(plan, d, sender, i, &direct, err);
        direct.first[i + 1] = direct.n_runs;
    }
    if (status != HEFT_OK) {
        heft__direct_fini(&direct);
        return status;
    }
    *out = direct;
    return HEFT_OK;
}

void heft__direct_fini(heft__direct_t *direct)
{
    heft__free(direct->runs);
    heft__free(direct->first);
    *direct = (heft__direct_t){ .n_params = 0 };
}

bool heft__direct_has(const heft__direct_t *direct, uint32_t entry)
{
    return direct->is_used && entry < direct->n_params &&
           direct->first[entry] < direct->first[entry + 1];
}

/* The run in which byte `at` of an entry lies; runs are without gaps. */
static const heft__run_t *find_run(const heft__direct_t *direct, uint32_t entry, int64_t at)
{
    size_t low = direct->first[entry];
    size_t high = direct->first[entry + 1];
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (direct->runs[middle].at <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &direct->runs[low];
}

heft_status_t heft__direct_find(const heft__direct_t *direct, uint32_t entry,
                                const void *const *data, int64_t at, int64_t n, uint8_t *room,
                                const uint8_t **bytes_out, heft_error_t *err)
{
    const heft__run_t *run = find_run(direct, entry, at);
    int64_t done = 0;
    do {
        if (data[run->source] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "source %u is NULL", run->source);
        }
        const uint8_t *from = (const uint8_t *)data[run->source] + run->offset + (at - run->at);
        const int64_t some = heft__min_i64(n - done, run->bytes - (at - run->at));
        if (some == n) {
            *bytes_out = from;
            return HEFT_OK;
        }
        memcpy(room + done, from, (size_t)some); /* it is read at once: not past the cache */
        done += some;
        at += some;
        run++;
    } while (done < n);
    *bytes_out = room;
    return HEFT_OK;
}

uint32_t heft__direct_sum(const uint8_t *bytes, int64_t n, uint64_t *crc64_out)
{
    uint32_t crc = 0;
    uint64_t crc64 = 0;
    if (crc64_out == NULL) {
        return heft__crc32c(0, bytes, n);
    }
    for (int64_t at = 0; at < n; at += STEP) {
        const int64_t some = heft__min_i64(STEP, n - at);
        crc64 = heft__crc64_update(crc64, bytes + at, some);
        crc = heft__crc32c(crc, bytes + at, some);
    }
    *crc64_out = crc64;
    return crc;
}
