/* SPDX-License-Identifier: Apache-2.0 */
/* For a window that shares the memory of a shm window (pair.c). */
#ifndef HEFT_TRANSPORT_SHM_WINDOW_H
#define HEFT_TRANSPORT_SHM_WINDOW_H

#include "transport/segment.h"
#include "transport/transport.h"

/* The other one has a say in what becomes of the memory. Called on the thread of the call that
 * replaces or destroys it, without a lock held. */
typedef struct heft__shm_sharer {
    void *arg;
    /* The segment is to go: finish it, in whatever way. */
    void (*retire)(void *arg, heft__segment_t *segment);
    /* There is another one, at window->ptr. */
    heft_status_t (*adopt)(void *arg, const heft__window_t *window, heft_error_t *err);
} heft__shm_sharer_t;

void heft__shm_window_share(heft__window_t *window, const heft__shm_sharer_t *sharer);
/* Disarm, and ask those that write to stop. Does not wait. */
void heft__shm_window_cancel(heft__window_t *window);
/* heft__window_fence; must_replace: with other memory in any case. */
HEFT_MUST_CHECK heft_status_t heft__shm_window_fence(heft__window_t *window,
                                                     int64_t deadline_mono_ns, bool must_replace,
                                                     bool *replaced_out, heft_error_t *err);

#endif
