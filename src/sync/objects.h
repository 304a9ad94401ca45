/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: immutable blobs named by their SHA-256, bounded in number and bytes, dropped when nobody
 * names them. References are found by mark and sweep: the owner marks what it names, the sweep
 * drops the rest that has not been put or read for a while.
 *
 * Threads: confined (the coordinator's lock).
 */
#ifndef HEFT_SYNC_OBJECTS_H
#define HEFT_SYNC_OBJECTS_H

#include "sync/wire.h"

/* A contract of 200 000 source tensors takes 40 MB, their manifest 25 MB. */
#define HEFT__OBJECT_MAX_BYTES (64u << 20)

typedef struct heft__object {
    char digest[HEFT__DIGEST_SIZE];
    char *data; /* owned, NUL-terminated */
    size_t n;
    int64_t used_ns;
    bool marked;
    heft__role_t checked; /* the owner's note: it is a valid manifest of this side; 0: not known */
} heft__object_t;

typedef struct heft__objects {
    heft__object_t **items; /* owned, sorted by digest */
    size_t n_items, cap;
    size_t bytes;
    size_t max_bytes;
} heft__objects_t;

void heft__objects_init(heft__objects_t *objects, size_t max_bytes);
void heft__objects_fini(heft__objects_t *objects);
/* HEFT_ERR_DIGEST: the content is another's. HEFT_ERR_LIMIT: too large, or the store is full. */
heft_status_t heft__objects_put(heft__objects_t *objects, const char *digest, const void *data,
                                size_t n, int64_t now_ns, heft_error_t *err);
/* Borrowed; NULL: not there. */
heft__object_t *heft__objects_get(heft__objects_t *objects, const char *digest, int64_t now_ns);
/* "" and what is not there are ignored. */
void heft__objects_mark(heft__objects_t *objects, const char *digest);
/* Drop what is unmarked and was last used before `before_ns`; unmark the rest. */
void heft__objects_sweep(heft__objects_t *objects, int64_t before_ns);

#endif
