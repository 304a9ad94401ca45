/* SPDX-License-Identifier: Apache-2.0 */
/* The list of connections. A sweep looks at all of them, about once a second: thousands are cheap.
 */
#include "sync/http_guard.h"

#include <sys/resource.h>
#include <sys/socket.h>

#define IDLE_NS (120 * INT64_C(1000000000))
#define SWEEP_NS INT64_C(1000000000)
#define FILES_KEPT 64 /* for the record, the log, and whatever else the process opens */

static uint32_t limit_of_files(uint32_t wanted)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) {
        return wanted;
    }
    const uint64_t left =
        files.rlim_cur > 2 * FILES_KEPT ? files.rlim_cur - FILES_KEPT : files.rlim_cur / 2;
    return left < wanted ? (uint32_t)left : wanted;
}

heft_status_t heft__guard_init(heft__guard_t *guard, uint32_t limit, int64_t request_ns,
                               heft_error_t *err)
{
    *guard = (heft__guard_t){ .limit = limit_of_files(limit), .request_ns = request_ns };
    const int rc = pthread_mutex_init(&guard->lock, NULL);
    return rc == 0 ? HEFT_OK
                   : heft__error_set_sys(err, HEFT_ERR_INTERNAL, rc, "pthread_mutex_init");
}

void heft__guard_fini(heft__guard_t *guard)
{
    (void)pthread_mutex_destroy(&guard->lock);
}

static void break_off_locked(heft__guard_t *guard, heft__conn_t *conn)
{
    conn->is_shut = true;
    guard->n_broken++;
    (void)shutdown(conn->fd, SHUT_RDWR);
}

/* The one that has been waiting longest for its client to say something. */
static void evict_locked(heft__guard_t *guard)
{
    heft__conn_t *oldest = NULL;
    for (heft__conn_t *conn = guard->conns; conn != NULL; conn = conn->next) {
        const bool is_quiet = conn->state <= HEFT__CONN_BODY && !conn->is_shut;
        if (is_quiet && (oldest == NULL || conn->since_ns < oldest->since_ns)) {
            oldest = conn;
        }
    }
    if (oldest != NULL) {
        break_off_locked(guard, oldest);
    }
}

heft__conn_t *heft__guard_open(heft__guard_t *guard, int fd)
{
    heft__conn_t *conn = heft__calloc(1, sizeof *conn);
    if (conn == NULL) {
        (void)shutdown(fd, SHUT_RDWR);
        return NULL;
    }
    conn->fd = fd;
    conn->since_ns = heft__clock_mono_ns();
    (void)pthread_mutex_lock(&guard->lock);
    if (guard->n_conns + guard->limit / 16 + 2 > guard->limit) {
        evict_locked(guard);
    }
    conn->next = guard->conns;
    if (conn->next != NULL) {
        conn->next->prev = conn;
    }
    guard->conns = conn;
    guard->n_conns++;
    (void)pthread_mutex_unlock(&guard->lock);
    return conn;
}

void heft__guard_close(heft__guard_t *guard, heft__conn_t *conn)
{
    if (conn == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&guard->lock);
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        guard->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    guard->n_conns--;
    (void)pthread_mutex_unlock(&guard->lock);
    heft__free(conn);
}

void heft__guard_set(heft__guard_t *guard, heft__conn_t *conn, heft__conn_state_t state)
{
    if (conn == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&guard->lock);
    conn->state = state;
    conn->since_ns = heft__clock_mono_ns();
    (void)pthread_mutex_unlock(&guard->lock);
}

static int64_t limit_of(const heft__guard_t *guard, heft__conn_state_t state)
{
    switch (state) {
    case HEFT__CONN_HANDLED:
        return INT64_MAX;
    case HEFT__CONN_IDLE: /* its next request may be trickling in by now: that is not seen */
        return heft__max_i64(IDLE_NS, guard->request_ns);
    case HEFT__CONN_FRESH:
    case HEFT__CONN_BODY:
    case HEFT__CONN_REPLY:
        break;
    }
    return guard->request_ns;
}

int64_t heft__guard_sweep(heft__guard_t *guard, int64_t now_ns)
{
    if (now_ns < guard->next_ns) {
        return guard->next_ns;
    }
    (void)pthread_mutex_lock(&guard->lock);
    for (heft__conn_t *conn = guard->conns; conn != NULL; conn = conn->next) {
        if (!conn->is_shut && now_ns - conn->since_ns > limit_of(guard, conn->state)) {
            break_off_locked(guard, conn);
        }
    }
    const bool is_empty = guard->conns == NULL;
    (void)pthread_mutex_unlock(&guard->lock);
    const int64_t step = heft__min_i64(SWEEP_NS, guard->request_ns / 4 + 1000000);
    guard->next_ns = is_empty ? 0 : now_ns + step;
    return is_empty ? INT64_MAX : guard->next_ns;
}
