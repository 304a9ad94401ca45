/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard: what keeps one client of the HTTP service from getting in the way of others. It knows
 * every connection, since when it has been in its present state, and breaks off those that take too
 * long over a request or a reply. Near the limit of connections those that have been idle longest
 * go.
 *
 * Threads: locked. A connection is broken off by shutting its socket down; the HTTP library then
 * closes it by itself.
 */
#ifndef HEFT_SYNC_HTTP_GUARD_H
#define HEFT_SYNC_HTTP_GUARD_H

#include <pthread.h>

#include "base/base.h"

typedef enum heft__conn_state {
    HEFT__CONN_FRESH = 0,   /* accepted; nothing has been asked yet */
    HEFT__CONN_IDLE = 1,    /* answered, and kept for the next request */
    HEFT__CONN_BODY = 2,    /* the head of a request has arrived */
    HEFT__CONN_HANDLED = 3, /* the request is whole; it may wait for long */
    HEFT__CONN_REPLY = 4    /* the reply is on its way */
} heft__conn_state_t;

typedef struct heft__conn {
    struct heft__conn *prev, *next;
    int fd;
    heft__conn_state_t state;
    int64_t since_ns;
    bool is_shut;
} heft__conn_t;

typedef struct heft__guard {
    pthread_mutex_t lock;
    heft__conn_t *conns; /* newest first */
    uint32_t n_conns;
    uint32_t limit;
    int64_t request_ns; /* for a request to arrive, and for a reply to go out */
    int64_t next_ns;    /* of the next sweep; the sweeping thread's alone */
    uint64_t n_broken;  /* connections broken off */
} heft__guard_t;

/* limit: of connections, as far as the process's limit of open files allows. */
heft_status_t heft__guard_init(heft__guard_t *guard, uint32_t limit, int64_t request_ns,
                               heft_error_t *err);
/* After the last connection is gone. */
void heft__guard_fini(heft__guard_t *guard);
/* NULL: out of memory; the connection is shut down then. */
heft__conn_t *heft__guard_open(heft__guard_t *guard, int fd);
/* Before the socket is closed. NULL is fine. */
void heft__guard_close(heft__guard_t *guard, heft__conn_t *conn);
void heft__guard_set(heft__guard_t *guard, heft__conn_t *conn, heft__conn_state_t state);
/* Break off what is late, unless it is too early to look; when to look again (INT64_MAX: no need).
 * One thread. */
int64_t heft__guard_sweep(heft__guard_t *guard, int64_t now_ns);

#endif
