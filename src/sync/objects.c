/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: a sorted array of pointers; a store holds hundreds, so a binary search is enough. */
#include "sync/objects.h"

#include <string.h>

void heft__objects_init(heft__objects_t *objects, size_t max_bytes)
{
    *objects = (heft__objects_t){ .max_bytes = max_bytes };
}

static void free_object(heft__object_t *object)
{
    heft__free(object->data);
    heft__free(object);
}

void heft__objects_fini(heft__objects_t *objects)
{
    for (size_t i = 0; i < objects->n_items; i++) {
        free_object(objects->items[i]);
    }
    heft__free(objects->items);
    heft__objects_init(objects, objects->max_bytes);
}

/* Where the digest is or belongs. */
static size_t lower_bound(const heft__objects_t *objects, const char *digest)
{
    size_t lo = 0;
    size_t hi = objects->n_items;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (strcmp(objects->items[mid]->digest, digest) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static heft__object_t *find(const heft__objects_t *objects, const char *digest)
{
    const size_t i = lower_bound(objects, digest);
    const bool found = i < objects->n_items && strcmp(objects->items[i]->digest, digest) == 0;
    return found ? objects->items[i] : NULL;
}

static heft_status_t insert(heft__objects_t *objects, const char *digest, const void *data,
                            size_t n, int64_t now_ns, heft_error_t *err)
{
    void *items = objects->items;
    if (!heft__grow(&items, &objects->cap, objects->n_items + 1, sizeof(void *))) {
        return heft__error_nomem(err, n);
    }
    objects->items = items;
    heft__object_t *object = heft__calloc(1, sizeof *object);
    char *copy = heft__malloc(n + 1);
    if (object == NULL || copy == NULL) {
        heft__free(object);
        heft__free(copy);
        return heft__error_nomem(err, n);
    }
    if (n > 0) {
        memcpy(copy, data, n);
    }
    copy[n] = '\0';
    memcpy(object->digest, digest, HEFT__DIGEST_SIZE);
    object->data = copy;
    object->n = n;
    object->used_ns = now_ns;
    const size_t at = lower_bound(objects, digest);
    memmove(&objects->items[at + 1], &objects->items[at], (objects->n_items - at) * sizeof(void *));
    objects->items[at] = object;
    objects->n_items++;
    objects->bytes += n;
    return HEFT_OK;
}

heft_status_t heft__objects_put(heft__objects_t *objects, const char *digest, const void *data,
                                size_t n, int64_t now_ns, heft_error_t *err)
{
    heft__object_t *there = find(objects, digest);
    if (there != NULL) {
        there->used_ns = now_ns;
        return HEFT_OK;
    }
    if (n > HEFT__OBJECT_MAX_BYTES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "object of %zu bytes, at most %u are allowed",
                               n, HEFT__OBJECT_MAX_BYTES);
    }
    char actual[HEFT__DIGEST_SIZE];
    heft__object_digest(data, n, actual);
    if (strcmp(actual, digest) != 0) {
        return heft__error_set(err, HEFT_ERR_DIGEST,
                               "object %.16s...: its %zu bytes have digest %.16s...", digest, n,
                               actual);
    }
    if (n > objects->max_bytes - objects->bytes) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "object of %zu bytes: the store holds %zu of %zu bytes", n,
                               objects->bytes, objects->max_bytes);
    }
    return insert(objects, digest, data, n, now_ns, err);
}

heft__object_t *heft__objects_get(heft__objects_t *objects, const char *digest, int64_t now_ns)
{
    heft__object_t *object = find(objects, digest);
    if (object != NULL) {
        object->used_ns = now_ns;
    }
    return object;
}

void heft__objects_mark(heft__objects_t *objects, const char *digest)
{
    heft__object_t *object = digest[0] != '\0' ? find(objects, digest) : NULL;
    if (object != NULL) {
        object->marked = true;
    }
}

void heft__objects_sweep(heft__objects_t *objects, int64_t before_ns)
{
    size_t kept = 0;
    for (size_t i = 0; i < objects->n_items; i++) {
        heft__object_t *object = objects->items[i];
        if (object->marked || object->used_ns >= before_ns) {
            object->marked = false;
            objects->items[kept++] = object;
        } else {
            objects->bytes -= object->n;
            free_object(object);
        }
    }
    objects->n_items = kept;
}
