/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place that calls malloc. Blocks carry a 16-byte header with their size, so that live
 * bytes can be counted; any allocation can be made to fail for tests. The failure countdown is per
 * thread: a test can fail its own allocations while other threads go on.
 */
#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { HEADER_BYTES = 16 };

static _Atomic int64_t n_live;
static _Atomic int64_t n_live_bytes;
static _Atomic int64_t n_total;
static _Thread_local long fail_countdown = -1;

static bool should_fail(void)
{
    if (fail_countdown < 0) {
        return false;
    }
    return fail_countdown-- == 0;
}

void heft__alloc_fail_at(long k)
{
    fail_countdown = k;
}

int64_t heft__alloc_live(void)
{
    return atomic_load_explicit(&n_live, memory_order_relaxed);
}

int64_t heft__alloc_live_bytes(void)
{
    return atomic_load_explicit(&n_live_bytes, memory_order_relaxed);
}

int64_t heft__alloc_total(void)
{
    return atomic_load_explicit(&n_total, memory_order_relaxed);
}

/* Counters are statistics: no other memory is ordered by them, so relaxed is enough. */
static void *note(void *block, size_t bytes)
{
    memcpy(block, &bytes, sizeof bytes);
    atomic_fetch_add_explicit(&n_live, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_live_bytes, (int64_t)bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_total, 1, memory_order_relaxed);
    return (char *)block + HEADER_BYTES;
}

void *heft__malloc(size_t bytes)
{
    size_t total;
    if (should_fail() || !heft__size_add(bytes, HEADER_BYTES, &total)) {
        return NULL;
    }
    void *block = malloc(total);
    return block != NULL ? note(block, bytes) : NULL;
}

void *heft__calloc(size_t count, size_t bytes)
{
    size_t size;
    size_t total;
    if (should_fail() || !heft__size_mul(count, bytes, &size) ||
        !heft__size_add(size, HEADER_BYTES, &total)) {
        return NULL;
    }
    void *block = calloc(1, total);
    return block != NULL ? note(block, size) : NULL;
}

void *heft__realloc(void *ptr, size_t bytes)
{
    if (ptr == NULL) {
        return heft__malloc(bytes);
    }
    size_t total;
    if (should_fail() || !heft__size_add(bytes, HEADER_BYTES, &total)) {
        return NULL;
    }
    char *old = (char *)ptr - HEADER_BYTES;
    size_t old_bytes;
    memcpy(&old_bytes, old, sizeof old_bytes);
    void *block = realloc(old, total);
    if (block == NULL) {
        return NULL;
    }
    atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&n_live_bytes, (int64_t)old_bytes, memory_order_relaxed);
    return note(block, bytes);
}

void heft__free(void *ptr)
{
    if (ptr == NULL) {
        return;
    }
    char *block = (char *)ptr - HEADER_BYTES;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&n_live_bytes, (int64_t)bytes, memory_order_relaxed);
    free(block);
}

char *heft__strndup(const char *text, size_t n)
{
    size_t total;
    if (!heft__size_add(n, 1, &total)) {
        return NULL;
    }
    char *copy = heft__malloc(total);
    if (copy != NULL) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

char *heft__strdup(const char *text)
{
    return heft__strndup(text, strlen(text));
}

bool heft__grow(void **items, size_t *cap, size_t need, size_t item_bytes)
{
    if (need <= *cap) {
        return true;
    }
    size_t next = *cap < 8 ? 8 : *cap;
    while (next < need) {
        if (!heft__size_add(next, next / 2, &next)) {
            return false;
        }
    }
    size_t bytes;
    if (!heft__size_mul(next, item_bytes, &bytes)) {
        return false;
    }
    void *grown = heft__realloc(*items, bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *cap = next;
    return true;
}

void heft__alloc_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}
