/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging layout, the flip's copy and digests of many buffers. Threads are started for the call: it
 * takes tens of microseconds against the milliseconds of the work, and an engine keeps no idle
 * threads of ours. Where a thread cannot be started, the caller's does its share.
 */
#include "sync/staging.h"

#include <pthread.h>
#include <stdatomic.h>

#include "kernel/kernel.h"

/* ---- layout ---- */

static bool align_up(int64_t bytes, int64_t *out)
{
    int64_t sum;
    if (!heft__add(bytes, HEFT__STAGING_ALIGN - 1, &sum)) {
        return false;
    }
    *out = sum / HEFT__STAGING_ALIGN * HEFT__STAGING_ALIGN;
    return true;
}

static heft_status_t alloc_arrays(uint32_t n_params, uint32_t n_inputs, heft__staging_t *staging,
                                  heft_error_t *err)
{
    size_t count = (size_t)n_params + n_inputs + 1;
    staging->n_params = n_params;
    staging->n_entries = n_params + n_inputs;
    staging->offsets = heft__calloc(count, sizeof *staging->offsets);
    staging->sizes = heft__calloc(count, sizeof *staging->sizes);
    if (staging->offsets == NULL || staging->sizes == NULL) {
        heft__staging_fini(staging);
        return heft__error_nomem(err, count * sizeof *staging->offsets);
    }
    return HEFT_OK;
}

/* Offsets and total from staging->sizes. */
static heft_status_t lay_out(heft__staging_t *staging, heft_error_t *err)
{
    int64_t end = 0;
    for (uint32_t i = 0; i < staging->n_entries; i++) {
        staging->offsets[i] = end;
        if (staging->sizes[i] < 0 || !heft__add(end, staging->sizes[i], &end) ||
            !align_up(end, &end)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW,
                                   "staging layout: entry %u of %lld bytes at %lld", i,
                                   (long long)staging->sizes[i], (long long)staging->offsets[i]);
        }
    }
    staging->bytes = end;
    return HEFT_OK;
}

static heft_status_t finish(heft__staging_t *staging, heft__staging_t *staging_out,
                            heft_error_t *err)
{
    heft_status_t status = lay_out(staging, err);
    if (status != HEFT_OK) {
        heft__staging_fini(staging);
        return status;
    }
    *staging_out = *staging;
    return HEFT_OK;
}

heft_status_t heft__staging_init(const int64_t *sizes, uint32_t n_params,
                                 heft__staging_t *staging_out, heft_error_t *err)
{
    heft__staging_t staging;
    heft_status_t status = alloc_arrays(n_params, 0, &staging, err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < n_params; i++) {
        staging.sizes[i] = sizes[i];
    }
    return finish(&staging, staging_out, err);
}

heft_status_t heft__staging_init_manifest(const heft_manifest_t *manifest,
                                          heft__staging_t *staging_out, heft_error_t *err)
{
    heft__staging_t staging;
    heft_status_t status = alloc_arrays(heft_manifest_get_n_tensors(manifest), 0, &staging, err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < staging.n_params && status == HEFT_OK; i++) {
        heft_tensor_info_t info;
        status = heft_manifest_query(manifest, i, &info, err);
        staging.sizes[i] = status == HEFT_OK ? info.n_bytes : 0;
    }
    if (status != HEFT_OK) {
        heft__staging_fini(&staging);
        return status;
    }
    return finish(&staging, staging_out, err);
}

static heft_status_t set_sizes(const heft_plan_t *plan, uint32_t rank_index,
                               const heft__inputs_t *inputs, heft__staging_t *staging,
                               heft_error_t *err)
{
    heft_tensor_info_t info;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < staging->n_params && status == HEFT_OK; i++) {
        status = heft_plan_query_param(plan, rank_index, i, &info, err);
        const bool is_absent =
            inputs != NULL && inputs->n > 0 && inputs->is_loaded[i] && !inputs->is_mixed[i];
        staging->sizes[i] = status == HEFT_OK && !is_absent ? info.n_bytes : 0;
    }
    for (uint32_t i = staging->n_params; i < staging->n_entries; i++) {
        staging->sizes[i] = inputs->items[i - staging->n_params].n_bytes;
    }
    return status;
}

heft_status_t heft__staging_init_plan(const heft_plan_t *plan, uint32_t rank_index,
                                      const heft__inputs_t *inputs, heft__staging_t *staging_out,
                                      heft_error_t *err)
{
    heft__staging_t staging;
    heft_status_t status = alloc_arrays(heft_plan_get_n_params(plan, rank_index),
                                        inputs != NULL ? inputs->n : 0, &staging, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = set_sizes(plan, rank_index, inputs, &staging, err);
    if (status != HEFT_OK) {
        heft__staging_fini(&staging);
        return status;
    }
    return finish(&staging, staging_out, err);
}

heft_status_t heft__staging_expect(const heft__staging_t *staging, const heft_routes_t *sent,
                                   uint32_t rank_index, heft__route_t **routes_out,
                                   heft__expect_t *expect_out, heft_error_t *err)
{
    const size_t n = staging->n_entries > 0 ? staging->n_entries : 1;
    heft__route_t *routes = heft__calloc(n, sizeof *routes);
    if (routes == NULL) {
        return heft__error_nomem(err, n * sizeof *routes);
    }
    for (uint32_t i = 0; i < staging->n_entries; i++) {
        uint32_t n_senders = 1; /* an input is sent as it is */
        if (i < staging->n_params) {
            (void)heft_routes_get_param_senders(sent, rank_index, i, &n_senders);
        }
        routes[i] = (heft__route_t){ .offset = staging->offsets[i],
                                     .bytes = n_senders > 0 ? staging->sizes[i] : 0 };
    }
    *routes_out = routes;
    *expect_out = (heft__expect_t){ .routes = routes,
                                    .n_routes = staging->n_entries,
                                    .n_senders = 1,
                                    .chunk_bytes = HEFT__CHUNK_BYTES,
                                    .crc = heft__crc32c,
                                    .crc_copy = heft__crc32c_copy };
    return HEFT_OK;
}

void heft__staging_fini(heft__staging_t *staging)
{
    heft__free(staging->offsets);
    heft__free(staging->sizes);
    *staging = (heft__staging_t){ .n_params = 0 };
}

/* ---- in place ---- */

static const int64_t default_buffer_bytes = 64 << 20;

int64_t heft__staging_buffer_bytes(const heft__staging_t *staging, int64_t wished_bytes)
{
    int64_t least = (int64_t)staging->n_params * (int64_t)sizeof(uint64_t);
    for (uint32_t i = 0; i < staging->n_params; i++) {
        least = heft__max_i64(least, staging->sizes[i]);
    }
    const int64_t wished = wished_bytes > 0 ? wished_bytes : default_buffer_bytes;
    const int64_t bytes = heft__max_i64(heft__min_i64(wished, staging->bytes), least);
    int64_t aligned;
    return align_up(bytes, &aligned) ? aligned : bytes;
}

uint32_t heft__staging_part_end(const heft__staging_t *staging, uint32_t first,
                                int64_t buffer_bytes)
{
    uint32_t end = first + 1;
    while (end < staging->n_params &&
           staging->offsets[end] + staging->sizes[end] - staging->offsets[first] <= buffer_bytes) {
        end++;
    }
    return end;
}

int64_t heft__staging_part_bytes(const heft__staging_t *staging, uint32_t first, uint32_t end)
{
    if (first == staging->n_params) {
        return (int64_t)staging->n_params * (int64_t)sizeof(uint64_t);
    }
    return staging->offsets[end - 1] + staging->sizes[end - 1] - staging->offsets[first];
}

/* ---- work in parts ---- */

enum { MAX_THREADS = 64 };

typedef struct work {
    void (*run)(void *arg, uint32_t part, uint32_t n_parts);
    void *arg;
    uint32_t part;
    uint32_t n_parts;
} work_t;

static void *run_part(void *arg)
{
    const work_t *work = arg;
    work->run(work->arg, work->part, work->n_parts);
    return NULL;
}

static void run_parts(void (*run)(void *arg, uint32_t part, uint32_t n_parts), void *arg,
                      uint32_t n_threads)
{
    work_t works[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool is_started[MAX_THREADS] = { false };
    uint32_t n = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    for (uint32_t i = 0; i < n; i++) {
        works[i] = (work_t){ .run = run, .arg = arg, .part = i, .n_parts = n };
    }
    for (uint32_t i = 1; i < n; i++) {
        is_started[i] = pthread_create(&threads[i], NULL, run_part, &works[i]) == 0;
    }
    (void)run_part(&works[0]);
    for (uint32_t i = 1; i < n; i++) {
        if (is_started[i]) {
            (void)pthread_join(threads[i], NULL);
        } else {
            (void)run_part(&works[i]);
        }
    }
}

/* ---- flip ---- */

typedef struct copy_out {
    const heft__staging_t *staging;
    uint32_t first, end;
    const uint8_t *memory; /* of `first` */
    const heft__home_t *homes;
} copy_out_t;

/* The share of one part is a range of staging, so that one large parameter is shared as well. */
static void copy_out_part(void *arg, uint32_t part, uint32_t n_parts)
{
    const copy_out_t *copy = arg;
    const heft__staging_t *staging = copy->staging;
    const int64_t base = staging->offsets[copy->first];
    const int64_t bytes =
        (copy->end < staging->n_entries ? staging->offsets[copy->end] : staging->bytes) - base;
    int64_t n_units = bytes / HEFT__STAGING_ALIGN;
    int64_t begin = base + n_units / n_parts * part * HEFT__STAGING_ALIGN;
    int64_t end = part + 1 == n_parts ? base + bytes
                                      : base + n_units / n_parts * (part + 1) * HEFT__STAGING_ALIGN;
    for (uint32_t i = copy->first; i < copy->end; i++) {
        int64_t lo = heft__max_i64(begin, staging->offsets[i]);
        int64_t hi = heft__min_i64(end, staging->offsets[i] + staging->sizes[i]);
        if (lo < hi) {
            heft__home_write(&copy->homes[i], copy->memory + (staging->offsets[i] - base),
                             lo - staging->offsets[i], hi - staging->offsets[i]);
        }
    }
}

void heft__staging_copy_part(const heft__staging_t *staging, uint32_t first, uint32_t end,
                             const uint8_t *memory, const heft__home_t *homes, uint32_t n_threads)
{
    copy_out_t copy = {
        .staging = staging, .first = first, .end = end, .memory = memory, .homes = homes
    };
    if (first < end) {
        run_parts(copy_out_part, &copy, n_threads);
    }
}

void heft__staging_copy_out(const heft__staging_t *staging, const uint8_t *memory,
                            const heft__home_t *homes, uint32_t n_threads)
{
    heft__staging_copy_part(staging, 0, staging->n_params, memory, homes, n_threads);
}

/* ---- digests ---- */

typedef struct digest_all {
    const void *const *data; /* or homes */
    const int64_t *sizes;
    const heft__home_t *homes;
    const bool *wanted;
    const heft__mask_t *masks; /* NULL: none */
    uint32_t n;
    uint64_t *digests;
    atomic_uint next; /* taken by whichever thread is free; no other memory depends on it */
} digest_all_t;

static uint64_t digest_one(const digest_all_t *all, uint32_t i)
{
    const heft__mask_t *mask = all->masks != NULL ? &all->masks[i] : NULL;
    if (all->homes == NULL) {
        return heft__mask_crc64(mask, 0, all->data[i], 0, all->sizes[i]);
    }
    return all->wanted[i] ? heft__home_digest(&all->homes[i], mask) : 0;
}

static void digest_part(void *arg, uint32_t part, uint32_t n_parts)
{
    digest_all_t *all = arg;
    (void)part;
    (void)n_parts;
    for (;;) {
        unsigned i = atomic_fetch_add_explicit(&all->next, 1, memory_order_relaxed);
        if (i >= all->n) {
            return;
        }
        all->digests[i] = digest_one(all, i);
    }
}

void heft__digest_all(const void *const *data, const int64_t *sizes, const heft__mask_t *masks,
                      uint32_t n, uint32_t n_threads, uint64_t *digests_out)
{
    digest_all_t all = {
        .data = data, .sizes = sizes, .masks = masks, .n = n, .digests = digests_out
    };
    atomic_init(&all.next, 0);
    run_parts(digest_part, &all, n_threads);
}

void heft__digest_homes(const heft__home_t *homes, const bool *wanted, const heft__mask_t *masks,
                        uint32_t n, uint32_t n_threads, uint64_t *digests_out)
{
    digest_all_t all = {
        .homes = homes, .wanted = wanted, .masks = masks, .n = n, .digests = digests_out
    };
    atomic_init(&all.next, 0);
    run_parts(digest_part, &all, n_threads);
}
