/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's half of shm: a segment, an abstract UNIX socket with a random name, and one thread
 * that accepts senders, hands them the segment's descriptor and watches their sockets.
 *
 * Invariants. `lock` guards everything that both the thread and callers touch. Only the thread
 * closes connections and the listening socket, except while it is parked (`parked`), when a fence
 * owns them. A connection that is WRITING may have a process behind it that stores into the
 * segment; it leaves that state by its END frame, or by its end: a socket hangs up when the last
 * process that holds it is gone, and a dying process gives up its memory before its files.
 */
#include "transport/segment.h"
#include "transport/shm_frame.h"
#include "transport/shm_remote.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SENDERS = 256, NAME_BYTES = 16, BACKLOG = 64 };
static const int64_t hello_ns = 5000000000; /* a sender that connects and says nothing is dropped */

typedef enum sender_phase { SENDER_HELLO, SENDER_IDLE, SENDER_WRITING } sender_phase_t;

typedef struct sender {
    int fd;
    int pid_fd; /* -1: not available */
    int32_t pid;
    sender_phase_t phase;
    int64_t hello_by_mono_ns;
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
} sender_t;

typedef struct shm_region {
    heft__region_t base;
    heft__segment_t segment;
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
    void (*on_change)(void *arg);
    void *on_change_arg;
    bool has_changed; /* since the last call of on_change */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int wake_fd;
    int listen_fd; /* -1 while parked without a segment */
    uint8_t name[NAME_BYTES];
    bool stop;
    bool park; /* asked for; the thread answers with `parked` */
    bool parked;
    bool is_armed;
    heft__token_t token;
    heft__region_state_t counts; /* n_done, n_failed, n_lost, lost_pid */
    uint32_t n_senders;
    sender_t senders[MAX_SENDERS];
} shm_region_t;

static const heft__transport_ops_t shm_ops;

static void wake(const shm_region_t *region)
{
    uint64_t one = 1;
    ssize_t n;
    do { /* EAGAIN: the counter is full, so a wake-up is pending already */
        n = write(region->wake_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

static void name_text(const shm_region_t *region, char out[2 * NAME_BYTES + 6])
{
    memcpy(out, "heft-", 5);
    heft__hex(region->name, NAME_BYTES, out + 5);
}

static heft_status_t open_listener(shm_region_t *region, heft_error_t *err)
{
    heft_status_t status = heft__random_bytes(region->name, NAME_BYTES, err);
    if (status != HEFT_OK) {
        return status;
    }
    char name[2 * NAME_BYTES + 6];
    name_text(region, name);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path + 1, name, strlen(name)); /* leading NUL: abstract */
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, len) != 0 ||
        listen(fd, BACKLOG) != 0) {
        int saved = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return heft__error_set_sys(err, HEFT_ERR_IO, saved, "shm socket: cannot listen");
    }
    region->listen_fd = fd;
    return HEFT_OK;
}

/* ---- the thread ---- */

static void note_change_locked(shm_region_t *region)
{
    region->has_changed = true;
    (void)pthread_cond_broadcast(&region->changed);
}

static void drop_sender_locked(shm_region_t *region, uint32_t i)
{
    sender_t *s = &region->senders[i];
    if (s->phase == SENDER_WRITING) {
        region->counts.n_lost++;
        region->counts.lost_pid = s->pid;
    }
    (void)close(s->fd);
    if (s->pid_fd >= 0) {
        (void)close(s->pid_fd);
    }
    *s = region->senders[--region->n_senders];
    note_change_locked(region);
}

static heft_status_t reply(const shm_region_t *region, const sender_t *s, heft__shm_kind_t kind,
                           heft_status_t status)
{
    heft__shm_frame_t frame = { .kind = kind, .status = status };
    memcpy(frame.from, region->incarnation, sizeof frame.from);
    memcpy(frame.to, s->incarnation, sizeof frame.to);
    if (kind == HEFT__SHM_WELCOME) {
        frame.a = (uint64_t)region->segment.bytes;
        frame.b = (uint64_t)region->segment.page_bytes;
    } else {
        frame.a = region->token.epoch;
        frame.b = region->token.seq;
    }
    return heft__shm_send(s->fd, &frame, kind == HEFT__SHM_WELCOME ? region->segment.fd : -1, NULL);
}

static heft_status_t refuse(const shm_region_t *region, const sender_t *s, heft_status_t why)
{
    heft_status_t sent = reply(region, s, HEFT__SHM_REFUSED, why);
    return sent != HEFT_OK ? sent : why;
}

static heft_status_t on_hello(const shm_region_t *region, sender_t *s, const heft__shm_frame_t *f)
{
    memcpy(s->incarnation, f->from, sizeof s->incarnation);
    if (memcmp(f->to, region->incarnation, sizeof f->to) != 0) {
        return refuse(region, s, HEFT_ERR_STALE);
    }
    if (f->b != 0 || f->a > (uint64_t)region->segment.bytes) {
        return refuse(region, s, HEFT_ERR_SHAPE);
    }
    s->phase = SENDER_IDLE;
    return reply(region, s, HEFT__SHM_WELCOME, HEFT_OK);
}

static heft_status_t on_begin(const shm_region_t *region, sender_t *s, const heft__shm_frame_t *f)
{
    if (!region->is_armed || f->a != region->token.epoch || f->b != region->token.seq) {
        /* Not a breach: an order may have been overtaken. The connection stays. */
        return reply(region, s, HEFT__SHM_REFUSED, HEFT_ERR_STALE);
    }
    s->phase = SENDER_WRITING;
    return reply(region, s, HEFT__SHM_READY, HEFT_OK);
}

/* Anything but HEFT_OK ends the connection. */
static heft_status_t on_frame_locked(shm_region_t *region, sender_t *s, const heft__shm_frame_t *f)
{
    if (s->phase == SENDER_HELLO) {
        return f->kind == HEFT__SHM_HELLO ? on_hello(region, s, f) : HEFT_ERR_PROTOCOL;
    }
    if (memcmp(f->from, s->incarnation, sizeof f->from) != 0 ||
        memcmp(f->to, region->incarnation, sizeof f->to) != 0) {
        return HEFT_ERR_PROTOCOL;
    }
    if (f->kind == HEFT__SHM_BEGIN && s->phase == SENDER_IDLE) {
        return on_begin(region, s, f);
    }
    if (f->kind == HEFT__SHM_END && s->phase == SENDER_WRITING) {
        s->phase = SENDER_IDLE;
        if (f->status == HEFT_OK) {
            region->counts.n_done++;
        } else {
            region->counts.n_failed++;
        }
        note_change_locked(region);
        return HEFT_OK;
    }
    return HEFT_ERR_PROTOCOL;
}

static void accept_sender_locked(shm_region_t *region)
{
    int fd = accept4(region->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    sender_t s = { .fd = fd, .pid_fd = -1, .phase = SENDER_HELLO };
    heft_error_t why = HEFT_ERROR_INIT;
    if (region->n_senders == MAX_SENDERS || heft__shm_check_peer(fd, &s.pid, &why) != HEFT_OK) {
        heft__log(HEFT__LOG_WARN, "shm", "sender refused: %s",
                  why.status != HEFT_OK ? why.message : "too many senders");
        (void)refuse(region, &s, why.status != HEFT_OK ? why.status : HEFT_ERR_LIMIT);
        (void)close(fd);
        return;
    }
    s.pid_fd = heft__shm_open_pidfd(s.pid);
    s.hello_by_mono_ns = heft__clock_mono_ns() + hello_ns;
    region->senders[region->n_senders++] = s;
}

/* Read what a sender sent; false: the connection is over. */
static bool serve_sender_locked(shm_region_t *region, sender_t *s, short events)
{
    heft__shm_frame_t frame;
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK) { /* an END that was sent before a hang-up still counts */
        status = heft__shm_recv(s->fd, &frame, NULL, &why);
        if (status == HEFT_OK) {
            status = on_frame_locked(region, s, &frame);
        }
    }
    if (status != HEFT_IN_PROGRESS && status != HEFT_ERR_PEER) {
        heft__log(HEFT__LOG_WARN, "shm", "sender %d dropped: %s", (int)s->pid,
                  why.status != HEFT_OK ? why.message : heft_status_get_text(status));
    }
    return status == HEFT_IN_PROGRESS && (events & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

static void park_locked(shm_region_t *region)
{
    while (region->n_senders > 0) {
        drop_sender_locked(region, region->n_senders - 1);
    }
    if (region->listen_fd >= 0) {
        (void)close(region->listen_fd);
        region->listen_fd = -1;
    }
    region->parked = true;
    (void)pthread_cond_broadcast(&region->changed);
}

typedef struct poll_set {
    struct pollfd fds[2 + 2 * MAX_SENDERS];
    nfds_t n;
    int timeout_ms;
} poll_set_t;

static void fill_poll_set_locked(const shm_region_t *region, poll_set_t *set)
{
    int64_t soonest = INT64_MAX;
    set->fds[0] = (struct pollfd){ .fd = region->wake_fd, .events = POLLIN };
    set->fds[1] = (struct pollfd){ .fd = region->listen_fd, .events = POLLIN }; /* -1: ignored */
    for (uint32_t i = 0; i < region->n_senders; i++) {
        const sender_t *s = &region->senders[i];
        set->fds[2 + 2 * i] = (struct pollfd){ .fd = s->fd, .events = POLLIN };
        set->fds[3 + 2 * i] = (struct pollfd){ .fd = s->pid_fd, .events = POLLIN };
        if (s->phase == SENDER_HELLO) {
            soonest = heft__min_i64(soonest, s->hello_by_mono_ns);
        }
    }
    set->n = 2 + 2 * region->n_senders;
    set->timeout_ms = -1; /* the wake-up descriptor ends the wait */
    if (soonest != INT64_MAX) {
        int64_t left = soonest - heft__clock_mono_ns();
        set->timeout_ms = left > 0 ? (int)(left / 1000000) + 1 : 0;
    }
}

/* From the last to the first, because dropping one moves the last into its place. */
static void serve_poll_set_locked(shm_region_t *region, const poll_set_t *set)
{
    int64_t now = heft__clock_mono_ns();
    for (uint32_t i = (uint32_t)(set->n - 2) / 2; i-- > 0;) {
        sender_t *s = &region->senders[i];
        short events = set->fds[2 + 2 * i].revents;
        bool is_dead = set->fds[3 + 2 * i].revents != 0;
        bool is_late = s->phase == SENDER_HELLO && now >= s->hello_by_mono_ns;
        bool goes_on = events == 0 || serve_sender_locked(region, s, events);
        if (!goes_on || is_dead || (is_late && s->phase == SENDER_HELLO)) {
            drop_sender_locked(region, i);
        }
    }
    if (set->fds[1].revents != 0 && region->listen_fd >= 0) {
        accept_sender_locked(region);
    }
}

static void *serve(void *arg)
{
    shm_region_t *region = arg;
    poll_set_t set;
    (void)pthread_mutex_lock(&region->lock);
    while (!region->stop) {
        if (region->park && !region->parked) {
            park_locked(region);
        }
        fill_poll_set_locked(region, &set);
        bool has_changed = region->has_changed;
        region->has_changed = false;
        (void)pthread_mutex_unlock(&region->lock);
        if (has_changed && region->on_change != NULL) {
            region->on_change(region->on_change_arg);
        }
        int n = poll(set.fds, set.n, set.timeout_ms);
        if (n > 0 && set.fds[0].revents != 0) {
            uint64_t count;
            ssize_t got = read(region->wake_fd, &count, sizeof count);
            (void)got; /* the counter is only a wake-up */
        }
        (void)pthread_mutex_lock(&region->lock);
        if (n >= 0 && !region->parked && !region->stop) {
            serve_poll_set_locked(region, &set);
        }
    }
    park_locked(region);
    (void)pthread_mutex_unlock(&region->lock);
    return NULL;
}

/* ---- operations ---- */

static heft_status_t start_thread(shm_region_t *region, heft_error_t *err)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&region->lock, NULL);
    (void)pthread_cond_init(&region->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    int rc = pthread_create(&region->thread, NULL, serve, region);
    if (rc != 0) {
        (void)pthread_cond_destroy(&region->changed);
        (void)pthread_mutex_destroy(&region->lock);
        return heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "shm: thread");
    }
    return HEFT_OK;
}

static void take_segment(shm_region_t *region)
{
    region->base.ptr = region->segment.ptr;
    region->base.page_bytes = region->segment.page_bytes;
}

static heft_status_t region_create(heft__transport_t *transport,
                                   const heft__region_params_t *params, heft__region_t **region_out,
                                   heft_error_t *err)
{
    (void)transport;
    shm_region_t *region = heft__calloc(1, sizeof *region);
    if (region == NULL) {
        return heft__error_nomem(err, sizeof *region);
    }
    region->base =
        (heft__region_t){ .ops = &shm_ops, .bytes = params->bytes, .memory = params->memory };
    memcpy(region->incarnation, params->incarnation, sizeof region->incarnation);
    region->on_change = params->on_change;
    region->on_change_arg = params->on_change_arg;
    heft_status_t status = heft__segment_create(params->bytes, &region->segment, err);
    if (status != HEFT_OK) {
        goto free_region;
    }
    take_segment(region);
    status = open_listener(region, err);
    if (status != HEFT_OK) {
        goto fini_segment;
    }
    region->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (region->wake_fd < 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "shm: eventfd");
        goto close_listener;
    }
    status = start_thread(region, err);
    if (status != HEFT_OK) {
        goto close_wake;
    }
    *region_out = &region->base;
    return HEFT_OK;

close_wake:
    (void)close(region->wake_fd);
close_listener:
    (void)close(region->listen_fd);
fini_segment:
    heft__segment_fini(&region->segment);
free_region:
    heft__free(region);
    return status;
}

static void region_destroy(heft__region_t *base)
{
    shm_region_t *region = (shm_region_t *)base;
    (void)pthread_mutex_lock(&region->lock);
    region->stop = true;
    (void)pthread_mutex_unlock(&region->lock);
    wake(region);
    (void)pthread_join(region->thread, NULL); /* it has closed all sockets */
    (void)pthread_cond_destroy(&region->changed);
    (void)pthread_mutex_destroy(&region->lock);
    (void)close(region->wake_fd);
    heft__segment_fini(&region->segment);
    heft__free(region);
}

static void region_encode(const heft__region_t *base, heft__text_t *text)
{
    const shm_region_t *region = (const shm_region_t *)base;
    char name[2 * NAME_BYTES + 6];
    char incarnation[2 * HEFT__INCARNATION_BYTES + 1];
    name_text(region, name);
    heft__hex(region->incarnation, HEFT__INCARNATION_BYTES, incarnation);
    heft__text_printf(text,
                      "{\"transport\":\"shm\",\"socket\":\"%s\",\"pid\":%ld,\"bytes\":%lld,"
                      "\"incarnation\":\"%s\"}",
                      name, (long)getpid(), (long long)base->bytes, incarnation);
}

static void region_arm(heft__region_t *base, heft__token_t token)
{
    shm_region_t *region = (shm_region_t *)base;
    (void)pthread_mutex_lock(&region->lock);
    region->is_armed = true;
    region->token = token;
    region->counts = (heft__region_state_t){ 0 };
    (void)pthread_mutex_unlock(&region->lock);
}

static uint32_t count_writing_locked(const shm_region_t *region)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < region->n_senders; i++) {
        n += region->senders[i].phase == SENDER_WRITING;
    }
    return n;
}

static void region_query(heft__region_t *base, heft__region_state_t *state_out)
{
    shm_region_t *region = (shm_region_t *)base;
    (void)pthread_mutex_lock(&region->lock);
    *state_out = region->counts;
    state_out->n_attached = region->n_senders;
    state_out->n_writing = count_writing_locked(region);
    (void)pthread_mutex_unlock(&region->lock);
}

/* Wait for a change until the deadline; false once it has passed. */
static bool wait_changed_locked(shm_region_t *region, int64_t deadline_mono_ns)
{
    struct timespec ts = { .tv_sec = (time_t)(deadline_mono_ns / 1000000000),
                           .tv_nsec = (long)(deadline_mono_ns % 1000000000) };
    return pthread_cond_timedwait(&region->changed, &region->lock, &ts) != ETIMEDOUT;
}

/* Fresh memory under a fresh name; the old pages live on only in senders that still map them. */
static heft_status_t replace_parked(shm_region_t *region, heft_error_t *err)
{
    heft__segment_fini(&region->segment);
    region->segment = (heft__segment_t){ .fd = -1 };
    heft_status_t status = heft__segment_create(region->base.bytes, &region->segment, err);
    if (status == HEFT_OK) {
        status = open_listener(region, err);
        if (status != HEFT_OK) {
            heft__segment_fini(&region->segment);
        }
    }
    take_segment(region);
    return status;
}

static heft_status_t region_fence(heft__region_t *base, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err)
{
    shm_region_t *region = (shm_region_t *)base;
    heft_status_t status = HEFT_OK;
    bool replaced = false;
    (void)pthread_mutex_lock(&region->lock);
    region->is_armed = false;
    for (uint32_t i = 0; i < region->n_senders; i++) {
        if (region->senders[i].phase == SENDER_WRITING) {
            /* One that cannot be told is waited for all the same. */
            heft_status_t sent = reply(region, &region->senders[i], HEFT__SHM_CANCEL, HEFT_OK);
            (void)sent;
        }
    }
    while (count_writing_locked(region) > 0 && wait_changed_locked(region, deadline_mono_ns)) {
    }
    if (count_writing_locked(region) > 0 || region->segment.ptr == NULL) {
        region->park = true;
        wake(region);
        while (!region->parked) { /* our own thread, which never waits for a peer */
            (void)pthread_cond_wait(&region->changed, &region->lock);
        }
        (void)pthread_mutex_unlock(
            &region->lock); /* prefaulting takes long; the thread is parked */
        status = replace_parked(region, err);
        replaced = true;
        (void)pthread_mutex_lock(&region->lock);
        region->park = status != HEFT_OK; /* without memory nobody is let in */
        region->parked = region->park;
        wake(region);
    }
    (void)pthread_mutex_unlock(&region->lock);
    if (status == HEFT_OK) {
        *replaced_out = replaced;
    }
    return status;
}

static const heft__transport_ops_t shm_ops = {
    .size = sizeof(heft__transport_ops_t),
    .name = "shm",
    .region_create = region_create,
    .region_destroy = region_destroy,
    .region_encode = region_encode,
    .region_arm = region_arm,
    .region_query = region_query,
    .region_fence = region_fence,
    .attach = heft__shm_attach,
    .close = heft__shm_close,
    .begin = heft__shm_begin,
    .check = heft__shm_check,
    .end = heft__shm_end,
    .put = heft__shm_put,
    .get_fd = heft__shm_get_fd,
};

static heft__transport_t shm_transport = { .ops = &shm_ops };

heft__transport_t *heft__transport_get_shm(void)
{
    return &shm_transport;
}
