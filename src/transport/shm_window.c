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
#include "transport/shm_window.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
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

typedef struct shm_window {
    heft__window_t base;
    heft__segment_t segment;
    heft__shm_sharer_t sharer; /* retire NULL: none */
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
    heft__window_state_t counts; /* all but n_attached and n_writing */
    uint32_t n_senders;
    sender_t senders[MAX_SENDERS];
} shm_window_t;

static const heft__transport_ops_t shm_ops;

static void wake(const shm_window_t *window)
{
    uint64_t one = 1;
    ssize_t n;
    do { /* EAGAIN: the counter is full, so a wake-up is pending already */
        n = write(window->wake_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

static void name_text(const shm_window_t *window, char out[2 * NAME_BYTES + 6])
{
    memcpy(out, "heft-", 5);
    heft__hex(window->name, NAME_BYTES, out + 5);
}

static heft_status_t open_listener(shm_window_t *window, heft_error_t *err)
{
    heft_status_t status = heft__random_bytes(window->name, NAME_BYTES, err);
    if (status != HEFT_OK) {
        return status;
    }
    char name[2 * NAME_BYTES + 6];
    name_text(window, name);
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
    window->listen_fd = fd;
    return HEFT_OK;
}

/* ---- the thread ---- */

static void note_change_locked(shm_window_t *window)
{
    window->has_changed = true;
    (void)pthread_cond_broadcast(&window->changed);
}

static heft__window_sender_t sender_of(const sender_t *s)
{
    heft__window_sender_t out = { .pid = s->pid };
    memcpy(out.incarnation, s->incarnation, sizeof out.incarnation);
    return out;
}

static void drop_sender_locked(shm_window_t *window, uint32_t i)
{
    sender_t *s = &window->senders[i];
    if (s->phase == SENDER_WRITING) {
        window->counts.n_lost++;
        window->counts.lost = sender_of(s);
    }
    (void)close(s->fd);
    if (s->pid_fd >= 0) {
        (void)close(s->pid_fd);
    }
    *s = window->senders[--window->n_senders];
    note_change_locked(window);
}

static heft_status_t reply(const shm_window_t *window, const sender_t *s, heft__shm_kind_t kind,
                           heft_status_t status)
{
    heft__shm_frame_t frame = { .kind = kind, .status = status };
    memcpy(frame.from, window->incarnation, sizeof frame.from);
    memcpy(frame.to, s->incarnation, sizeof frame.to);
    if (kind == HEFT__SHM_WELCOME) {
        frame.a = (uint64_t)window->segment.bytes;
        frame.b = (uint64_t)window->segment.page_bytes;
    } else {
        frame.a = window->token.epoch;
        frame.b = window->token.seq;
    }
    return heft__shm_send(s->fd, &frame, kind == HEFT__SHM_WELCOME ? window->segment.fd : -1, NULL);
}

static heft_status_t refuse(const shm_window_t *window, const sender_t *s, heft_status_t why)
{
    heft_status_t sent = reply(window, s, HEFT__SHM_REFUSED, why);
    return sent != HEFT_OK ? sent : why;
}

static heft_status_t on_hello(const shm_window_t *window, sender_t *s, const heft__shm_frame_t *f)
{
    memcpy(s->incarnation, f->from, sizeof s->incarnation);
    if (memcmp(f->to, window->incarnation, sizeof f->to) != 0) {
        return refuse(window, s, HEFT_ERR_STALE);
    }
    if (f->b != 0 || f->a > (uint64_t)window->segment.bytes) {
        return refuse(window, s, HEFT_ERR_SHAPE);
    }
    s->phase = SENDER_IDLE;
    return reply(window, s, HEFT__SHM_WELCOME, HEFT_OK);
}

static heft_status_t on_begin(const shm_window_t *window, sender_t *s, const heft__shm_frame_t *f)
{
    if (!window->is_armed || f->a != window->token.epoch || f->b != window->token.seq) {
        /* Not a breach: an order may have been overtaken. The connection stays. */
        return reply(window, s, HEFT__SHM_REFUSED, HEFT_ERR_STALE);
    }
    s->phase = SENDER_WRITING;
    return reply(window, s, HEFT__SHM_READY, HEFT_OK);
}

/* Anything but HEFT_OK ends the connection. */
static heft_status_t on_frame_locked(shm_window_t *window, sender_t *s, const heft__shm_frame_t *f)
{
    if (s->phase == SENDER_HELLO) {
        return f->kind == HEFT__SHM_HELLO ? on_hello(window, s, f) : HEFT_ERR_PROTOCOL;
    }
    if (memcmp(f->from, s->incarnation, sizeof f->from) != 0 ||
        memcmp(f->to, window->incarnation, sizeof f->to) != 0) {
        return HEFT_ERR_PROTOCOL;
    }
    if (f->kind == HEFT__SHM_BEGIN && s->phase == SENDER_IDLE) {
        return on_begin(window, s, f);
    }
    if (f->kind == HEFT__SHM_END && s->phase == SENDER_WRITING) {
        s->phase = SENDER_IDLE;
        if (f->status == HEFT_OK) {
            window->counts.n_done++;
        } else {
            window->counts.n_failed++;
            window->counts.failed = sender_of(s);
        }
        note_change_locked(window);
        return HEFT_OK;
    }
    return HEFT_ERR_PROTOCOL;
}

static void accept_sender_locked(shm_window_t *window)
{
    int fd = accept4(window->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    sender_t s = { .fd = fd, .pid_fd = -1, .phase = SENDER_HELLO };
    heft_error_t why = HEFT_ERROR_INIT;
    if (window->n_senders == MAX_SENDERS || heft__shm_check_peer(fd, &s.pid, &why) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "shm", "sender refused: %s",
                  why.status != HEFT_OK ? why.message : "too many senders");
        (void)refuse(window, &s, why.status != HEFT_OK ? why.status : HEFT_ERR_LIMIT);
        (void)close(fd);
        return;
    }
    s.pid_fd = heft__shm_open_pidfd(s.pid);
    s.hello_by_mono_ns = heft__clock_mono_ns() + hello_ns;
    window->senders[window->n_senders++] = s;
}

/* Read what a sender sent; false: the connection is over. */
static bool serve_sender_locked(shm_window_t *window, sender_t *s, short events)
{
    heft__shm_frame_t frame;
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK) { /* an END that was sent before a hang-up still counts */
        status = heft__shm_recv(s->fd, &frame, NULL, &why);
        if (status == HEFT_OK) {
            status = on_frame_locked(window, s, &frame);
        }
    }
    if (status != HEFT_IN_PROGRESS && status != HEFT_ERR_PEER) {
        heft__log(HEFT_LOG_WARN, "shm", "sender %d dropped: %s", (int)s->pid,
                  why.status != HEFT_OK ? why.message : heft_status_get_text(status));
    }
    return status == HEFT_IN_PROGRESS && (events & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

static void park_locked(shm_window_t *window)
{
    while (window->n_senders > 0) {
        drop_sender_locked(window, window->n_senders - 1);
    }
    if (window->listen_fd >= 0) {
        (void)close(window->listen_fd);
        window->listen_fd = -1;
    }
    window->parked = true;
    (void)pthread_cond_broadcast(&window->changed);
}

typedef struct poll_set {
    struct pollfd fds[2 + 2 * MAX_SENDERS];
    nfds_t n;
    int timeout_ms;
} poll_set_t;

static void fill_poll_set_locked(const shm_window_t *window, poll_set_t *set)
{
    int64_t soonest = INT64_MAX;
    set->fds[0] = (struct pollfd){ .fd = window->wake_fd, .events = POLLIN };
    set->fds[1] = (struct pollfd){ .fd = window->listen_fd, .events = POLLIN }; /* -1: ignored */
    for (uint32_t i = 0; i < window->n_senders; i++) {
        const sender_t *s = &window->senders[i];
        set->fds[2 + 2 * i] = (struct pollfd){ .fd = s->fd, .events = POLLIN };
        set->fds[3 + 2 * i] = (struct pollfd){ .fd = s->pid_fd, .events = POLLIN };
        if (s->phase == SENDER_HELLO) {
            soonest = heft__min_i64(soonest, s->hello_by_mono_ns);
        }
    }
    set->n = 2 + 2 * window->n_senders;
    set->timeout_ms = -1; /* the wake-up descriptor ends the wait */
    if (soonest != INT64_MAX) {
        int64_t left = soonest - heft__clock_mono_ns();
        set->timeout_ms = left > 0 ? (int)(left / 1000000) + 1 : 0;
    }
}

/* From the last to the first, because dropping one moves the last into its place. */
static void serve_poll_set_locked(shm_window_t *window, const poll_set_t *set)
{
    int64_t now = heft__clock_mono_ns();
    for (uint32_t i = (uint32_t)(set->n - 2) / 2; i-- > 0;) {
        sender_t *s = &window->senders[i];
        short events = set->fds[2 + 2 * i].revents;
        bool is_dead = set->fds[3 + 2 * i].revents != 0;
        bool is_late = s->phase == SENDER_HELLO && now >= s->hello_by_mono_ns;
        bool goes_on = events == 0 || serve_sender_locked(window, s, events);
        if (!goes_on || is_dead || (is_late && s->phase == SENDER_HELLO)) {
            drop_sender_locked(window, i);
        }
    }
    if (set->fds[1].revents != 0 && window->listen_fd >= 0) {
        accept_sender_locked(window);
    }
}

static void *serve(void *arg)
{
    shm_window_t *window = arg;
    poll_set_t set;
    (void)pthread_mutex_lock(&window->lock);
    while (!window->stop) {
        if (window->park && !window->parked) {
            park_locked(window);
        }
        fill_poll_set_locked(window, &set);
        bool has_changed = window->has_changed;
        window->has_changed = false;
        (void)pthread_mutex_unlock(&window->lock);
        if (has_changed && window->on_change != NULL) {
            window->on_change(window->on_change_arg);
        }
        int n = poll(set.fds, set.n, set.timeout_ms);
        if (n > 0 && set.fds[0].revents != 0) {
            uint64_t count;
            ssize_t got = read(window->wake_fd, &count, sizeof count);
            (void)got; /* the counter is only a wake-up */
        }
        (void)pthread_mutex_lock(&window->lock);
        if (n >= 0 && !window->parked && !window->stop) {
            serve_poll_set_locked(window, &set);
        }
    }
    park_locked(window);
    (void)pthread_mutex_unlock(&window->lock);
    return NULL;
}

/* ---- operations ---- */

static heft_status_t start_thread(shm_window_t *window, heft_error_t *err)
{
    (void)pthread_mutex_init(&window->lock, NULL);
    (void)heft__cond_init(&window->changed);
    int rc = pthread_create(&window->thread, NULL, serve, window);
    if (rc != 0) {
        (void)pthread_cond_destroy(&window->changed);
        (void)pthread_mutex_destroy(&window->lock);
        return heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "shm: thread");
    }
    return HEFT_OK;
}

static void take_segment(shm_window_t *window)
{
    window->base.ptr = window->segment.ptr;
    window->base.page_bytes = window->segment.page_bytes;
}

static void give_up_segment(shm_window_t *window)
{
    if (window->sharer.retire != NULL && window->segment.ptr != NULL) {
        window->sharer.retire(window->sharer.arg, &window->segment);
    } else {
        heft__segment_fini(&window->segment);
    }
    window->segment = (heft__segment_t){ .fd = -1 };
}

static heft_status_t window_create(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err)
{
    (void)transport;
    shm_window_t *window = heft__calloc(1, sizeof *window);
    if (window == NULL) {
        return heft__error_nomem(err, sizeof *window);
    }
    window->base =
        (heft__window_t){ .ops = &shm_ops, .bytes = params->bytes, .memory = params->memory };
    memcpy(window->incarnation, params->incarnation, sizeof window->incarnation);
    window->on_change = params->on_change;
    window->on_change_arg = params->on_change_arg;
    heft_status_t status = heft__segment_create(params->bytes, &window->segment, err);
    if (status != HEFT_OK) {
        goto free_window;
    }
    take_segment(window);
    status = open_listener(window, err);
    if (status != HEFT_OK) {
        goto fini_segment;
    }
    window->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (window->wake_fd < 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "shm: eventfd");
        goto close_listener;
    }
    status = start_thread(window, err);
    if (status != HEFT_OK) {
        goto close_wake;
    }
    *window_out = &window->base;
    return HEFT_OK;

close_wake:
    (void)close(window->wake_fd);
close_listener:
    (void)close(window->listen_fd);
fini_segment:
    heft__segment_fini(&window->segment);
free_window:
    heft__free(window);
    return status;
}

static void window_destroy(heft__window_t *base)
{
    shm_window_t *window = (shm_window_t *)base;
    (void)pthread_mutex_lock(&window->lock);
    window->stop = true;
    (void)pthread_mutex_unlock(&window->lock);
    wake(window);
    (void)pthread_join(window->thread, NULL); /* it has closed all sockets */
    (void)pthread_cond_destroy(&window->changed);
    (void)pthread_mutex_destroy(&window->lock);
    (void)close(window->wake_fd);
    give_up_segment(window);
    heft__free(window);
}

static void window_encode(const heft__window_t *base, heft__text_t *text)
{
    const shm_window_t *window = (const shm_window_t *)base;
    char name[2 * NAME_BYTES + 6];
    char incarnation[2 * HEFT__INCARNATION_BYTES + 1];
    name_text(window, name);
    heft__hex(window->incarnation, HEFT__INCARNATION_BYTES, incarnation);
    heft__text_printf(text,
                      "{\"transport\":\"shm\",\"socket\":\"%s\",\"pid\":%ld,\"bytes\":%lld,"
                      "\"incarnation\":\"%s\"}",
                      name, (long)getpid(), (long long)base->bytes, incarnation);
}

static void window_arm(heft__window_t *base, heft__token_t token)
{
    shm_window_t *window = (shm_window_t *)base;
    (void)pthread_mutex_lock(&window->lock);
    window->is_armed = true;
    window->token = token;
    window->counts = (heft__window_state_t){ 0 };
    (void)pthread_mutex_unlock(&window->lock);
}

static uint32_t count_writing_locked(const shm_window_t *window)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < window->n_senders; i++) {
        n += window->senders[i].phase == SENDER_WRITING;
    }
    return n;
}

static void window_query(heft__window_t *base, heft__window_state_t *state_out)
{
    shm_window_t *window = (shm_window_t *)base;
    (void)pthread_mutex_lock(&window->lock);
    *state_out = window->counts;
    state_out->n_attached = window->n_senders;
    state_out->n_writing = count_writing_locked(window);
    (void)pthread_mutex_unlock(&window->lock);
}

/* Wait for a change until the deadline; false once it has passed. */
static bool wait_changed_locked(shm_window_t *window, int64_t deadline_mono_ns)
{
    return heft__cond_wait_until(&window->changed, &window->lock, deadline_mono_ns);
}

/* Fresh memory under a fresh name; the old pages live on only in senders that still map them. */
static heft_status_t replace_parked(shm_window_t *window, heft_error_t *err)
{
    give_up_segment(window);
    heft_status_t status = heft__segment_create(window->base.bytes, &window->segment, err);
    take_segment(window);
    if (status == HEFT_OK && window->sharer.adopt != NULL) {
        status = window->sharer.adopt(window->sharer.arg, &window->base, err);
    }
    if (status == HEFT_OK) {
        status = open_listener(window, err);
    }
    if (status != HEFT_OK) {
        give_up_segment(window);
    }
    take_segment(window);
    return status;
}

void heft__shm_window_share(heft__window_t *base, const heft__shm_sharer_t *sharer)
{
    ((shm_window_t *)base)->sharer = *sharer; /* only calls that replace or destroy look at it */
}

static void cancel_locked(shm_window_t *window)
{
    window->is_armed = false;
    for (uint32_t i = 0; i < window->n_senders; i++) {
        if (window->senders[i].phase == SENDER_WRITING) {
            /* One that cannot be told is waited for all the same. */
            heft_status_t sent = reply(window, &window->senders[i], HEFT__SHM_CANCEL, HEFT_OK);
            (void)sent;
        }
    }
}

void heft__shm_window_cancel(heft__window_t *base)
{
    shm_window_t *window = (shm_window_t *)base;
    (void)pthread_mutex_lock(&window->lock);
    cancel_locked(window);
    (void)pthread_mutex_unlock(&window->lock);
}

heft_status_t heft__shm_window_fence(heft__window_t *base, int64_t deadline_mono_ns,
                                     bool must_replace, bool *replaced_out, heft_error_t *err)
{
    shm_window_t *window = (shm_window_t *)base;
    heft_status_t status = HEFT_OK;
    bool replaced = false;
    (void)pthread_mutex_lock(&window->lock);
    cancel_locked(window);
    while (count_writing_locked(window) > 0 && wait_changed_locked(window, deadline_mono_ns)) {
    }
    if (count_writing_locked(window) > 0 || window->segment.ptr == NULL || must_replace) {
        window->park = true;
        wake(window);
        while (!window->parked) { /* our own thread, which never waits for a peer */
            (void)pthread_cond_wait(&window->changed, &window->lock);
        }
        (void)pthread_mutex_unlock(
            &window->lock); /* prefaulting takes long; the thread is parked */
        status = replace_parked(window, err);
        replaced = true;
        (void)pthread_mutex_lock(&window->lock);
        window->park = status != HEFT_OK; /* without memory nobody is let in */
        window->parked = window->park;
        wake(window);
    }
    (void)pthread_mutex_unlock(&window->lock);
    if (status == HEFT_OK) {
        *replaced_out = replaced;
    }
    return status;
}

static heft_status_t window_fence(heft__window_t *base, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err)
{
    return heft__shm_window_fence(base, deadline_mono_ns, false, replaced_out, err);
}

static const heft__transport_ops_t shm_ops = {
    .size = sizeof(heft__transport_ops_t),
    .name = "shm",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .window_encode = window_encode,
    .window_arm = window_arm,
    .window_query = window_query,
    .window_fence = window_fence,
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
