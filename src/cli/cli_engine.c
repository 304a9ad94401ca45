/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in huge-page memory, a writer-preferring gate, and reading threads. */
#include "cli/cli_engine.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

struct cli_engine {
    const heft_manifest_t *manifest;
    uint32_t n_params;
    void **params;
    uint8_t *memory;
    size_t memory_bytes;
    pthread_t *threads;
    uint32_t n_threads;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    bool is_open;
    bool is_stopping;
    uint32_t n_inside;
    int64_t version;
    uint64_t *digests; /* of version; 0: not known */
    cli_engine_counts_t counts;
};

/* ---- memory ---- */

static int64_t padded(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int map_memory(const cli_args_t *args, cli_engine_t *e)
{
    int64_t total = 0;
    heft_tensor_info_t info;
    for (uint32_t i = 0; heft_manifest_query(e->manifest, i, &info, NULL) == HEFT_OK; i++) {
        total += padded(info.n_bytes);
    }
    e->memory_bytes = ((size_t)total / HUGE_PAGE + 1) * HUGE_PAGE;
    void *memory =
        mmap(NULL, e->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return cli_fail(args, CLI_SYSTEM, "cannot allocate %zu bytes of parameters: %s",
                        e->memory_bytes, strerror(errno));
    }
    e->memory = memory;
    (void)madvise(memory, e->memory_bytes, MADV_HUGEPAGE);
    if (madvise(memory, e->memory_bytes, MADV_POPULATE_WRITE) != 0) {
        memset(memory, 0, e->memory_bytes); /* older kernels */
    }
    int64_t at = 0;
    for (uint32_t i = 0; i < e->n_params; i++) {
        if (heft_manifest_query(e->manifest, i, &info, NULL) != HEFT_OK) {
            return CLI_INTERNAL;
        }
        e->params[i] = e->memory + at;
        at += padded(info.n_bytes);
    }
    return CLI_OK;
}

/* ---- readers ---- */

/* Whether the reader is inside; false when it should stop. */
static bool enter(cli_engine_t *e, int64_t *version_out)
{
    (void)pthread_mutex_lock(&e->lock);
    while (!e->is_open && !e->is_stopping) {
        (void)pthread_cond_wait(&e->changed, &e->lock);
    }
    bool is_inside = !e->is_stopping && !e->counts.is_torn;
    if (is_inside) {
        e->n_inside++;
        *version_out = e->version;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return is_inside;
}

static void compare_locked(cli_engine_t *e, int64_t version, const uint64_t *digests)
{
    for (uint32_t i = 0; i < e->n_params && !e->counts.is_torn; i++) {
        heft_tensor_info_t info;
        if (e->digests[i] == 0) {
            e->digests[i] = digests[i];
        } else if (e->digests[i] != digests[i] &&
                   heft_manifest_query(e->manifest, i, &info, NULL) == HEFT_OK) {
            e->counts.is_torn = true;
            (void)snprintf(e->counts.torn, sizeof e->counts.torn,
                           "torn read: %.120s of version %" PRId64 " has digest %016" PRIx64
                           ", expected %016" PRIx64,
                           info.name, version, digests[i], e->digests[i]);
        }
    }
}

static void leave(cli_engine_t *e, int64_t version, const uint64_t *digests, int64_t n_bytes)
{
    (void)pthread_mutex_lock(&e->lock);
    compare_locked(e, version, digests);
    e->counts.passes++;
    e->counts.read_bytes += n_bytes;
    e->n_inside--;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
}

static void *read_params(void *arg)
{
    cli_engine_t *e = arg;
    uint64_t *digests = calloc((size_t)e->n_params + 1, sizeof *digests);
    int64_t version = 0;
    while (digests != NULL && enter(e, &version)) {
        int64_t n_bytes = 0;
        for (uint32_t i = 0; i < e->n_params; i++) {
            heft_tensor_info_t info;
            if (heft_manifest_query(e->manifest, i, &info, NULL) == HEFT_OK) {
                digests[i] = heft_digest(e->params[i], info.n_bytes);
                n_bytes += info.n_bytes;
            }
        }
        leave(e, version, digests, n_bytes);
    }
    free(digests);
    return NULL;
}

/* ---- gate ---- */

void cli_engine_close_gate(cli_engine_t *e)
{
    (void)pthread_mutex_lock(&e->lock);
    e->is_open = false;
    while (e->n_inside > 0) {
        (void)pthread_cond_wait(&e->changed, &e->lock);
    }
    (void)pthread_mutex_unlock(&e->lock);
}

void cli_engine_open_gate(cli_engine_t *e, int64_t version, const uint64_t *digests)
{
    (void)pthread_mutex_lock(&e->lock);
    e->version = version;
    memcpy(e->digests, digests, e->n_params * sizeof *digests);
    e->is_open = version > 0;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
}

void cli_engine_query(cli_engine_t *e, cli_engine_counts_t *counts_out)
{
    (void)pthread_mutex_lock(&e->lock);
    *counts_out = e->counts;
    (void)pthread_mutex_unlock(&e->lock);
}

/* ---- life ---- */

static int start_readers(const cli_args_t *args, cli_engine_t *e, uint32_t n)
{
    e->threads = calloc((size_t)n + 1, sizeof e->threads[0]);
    if (e->threads == NULL) {
        return cli_out_of_memory(args);
    }
    while (e->n_threads < n) {
        int code = pthread_create(&e->threads[e->n_threads], NULL, read_params, e);
        if (code != 0) {
            return cli_fail(args, CLI_SYSTEM, "cannot start reader %u: %s", e->n_threads,
                            strerror(code));
        }
        e->n_threads++;
    }
    return CLI_OK;
}

int cli_engine_create(const cli_args_t *args, const heft_manifest_t *manifest, uint32_t n_readers,
                      cli_engine_t **engine_out)
{
    cli_engine_t *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return cli_out_of_memory(args);
    }
    e->manifest = manifest;
    e->n_params = heft_manifest_get_n_tensors(manifest);
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->changed, NULL);
    e->params = calloc((size_t)e->n_params + 1, sizeof e->params[0]);
    e->digests = calloc((size_t)e->n_params + 1, sizeof e->digests[0]);
    int code =
        e->params != NULL && e->digests != NULL ? map_memory(args, e) : cli_out_of_memory(args);
    code = code == CLI_OK ? start_readers(args, e, n_readers) : code;
    if (code != CLI_OK) {
        cli_engine_destroy(e);
        return code;
    }
    *engine_out = e;
    return CLI_OK;
}

void cli_engine_destroy(cli_engine_t *e)
{
    if (e == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&e->lock);
    e->is_stopping = true;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < e->n_threads; i++) {
        (void)pthread_join(e->threads[i], NULL);
    }
    if (e->memory != NULL) {
        (void)munmap(e->memory, e->memory_bytes);
    }
    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e->threads);
    free(e->digests);
    free(e->params);
    free(e);
}

void *const *cli_engine_get_params(const cli_engine_t *engine)
{
    return engine->params;
}
