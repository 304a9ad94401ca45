/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sender's half of shm: connect, handshake, map the peer's segment, and keep mapping and socket
 * from round to round. The mapping is given up before the socket is closed: the receiver takes a
 * hang-up as proof that nobody writes any more.
 */
#include "transport/shm_remote.h"
#include "transport/segment.h"
#include "transport/shm_frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct shm_remote {
    heft__remote_t base;
    heft__segment_t segment;
    heft__shm_endpoint_t endpoint;
    uint8_t incarnation[HEFT__INCARNATION_BYTES]; /* ours */
    int fd;
    int pid_fd; /* -1: not available */
    int32_t pid;
    bool is_canceled; /* the receiver asked to stop this round */
} shm_remote_t;

static heft_status_t set_send_timeout(int fd, int64_t deadline_mono_ns, heft_error_t *err)
{
    int64_t left = heft__max_i64(deadline_mono_ns - heft__clock_mono_ns(), 1000);
    struct timeval tv = { .tv_sec = (time_t)(left / 1000000000),
                          .tv_usec = (suseconds_t)(left % 1000000000 / 1000) };
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv) != 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "shm socket: timeout");
    }
    return HEFT_OK;
}

/* A UNIX connect waits only while the backlog is full, for at most the send timeout. */
static heft_status_t connect_socket(shm_remote_t *remote, int64_t deadline_mono_ns,
                                    heft_error_t *err)
{
    const heft__shm_endpoint_t *endpoint = &remote->endpoint;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t name_len = strlen(endpoint->socket);
    memcpy(address.sun_path + 1, endpoint->socket, name_len);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_len);
    remote->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (remote->fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "shm socket");
    }
    heft_status_t status = set_send_timeout(remote->fd, deadline_mono_ns, err);
    if (status != HEFT_OK) {
        return status;
    }
    int rc;
    do {
        rc = connect(remote->fd, (const struct sockaddr *)&address, len);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return heft__error_set(err, HEFT_ERR_TIMEOUT, "shm: process %d does not accept connections",
                               (int)endpoint->pid);
    }
    if (rc != 0) {
        return heft__error_set_sys(err, HEFT_ERR_PEER, errno,
                                   "shm: process %d is gone, has moved on, or is on another host "
                                   "or in another network namespace: nobody listens on @%s",
                                   (int)endpoint->pid, endpoint->socket);
    }
    return heft__shm_check_peer(remote->fd, &remote->pid, err);
}

static heft_status_t lost(const shm_remote_t *remote, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_PEER,
                           "shm: process %d, the receiver, died or closed the connection",
                           (int)remote->endpoint.pid);
}

/* Wait for the next frame. A descriptor is accepted only with segment_fd_out. */
static heft_status_t await_frame(shm_remote_t *remote, const heft__attach_params_t *params,
                                 int64_t deadline_mono_ns, heft__shm_frame_t *frame_out,
                                 int *segment_fd_out, heft_error_t *err)
{
    enum { LOOK_MS = 50 };
    const bool looks = params != NULL && params->is_called_off != NULL;
    for (;;) {
        heft_status_t status = heft__shm_recv(remote->fd, frame_out, segment_fd_out, err);
        if (status != HEFT_IN_PROGRESS) {
            return status == HEFT_ERR_PEER ? lost(remote, err) : status;
        }
        if (looks && params->is_called_off(params->is_called_off_arg)) {
            return heft__error_set(err, HEFT_ERR_CANCELED,
                                   "shm: called off while process %d did not answer",
                                   (int)remote->endpoint.pid);
        }
        int64_t left = deadline_mono_ns - heft__clock_mono_ns();
        if (left <= 0) {
            return heft__error_set(err, HEFT_ERR_TIMEOUT,
                                   "shm: process %d did not answer before the deadline",
                                   (int)remote->endpoint.pid);
        }
        struct pollfd fds[2] = { { .fd = remote->fd, .events = POLLIN },
                                 { .fd = remote->pid_fd, .events = POLLIN } };
        int64_t ms = heft__min_i64(left / 1000000 + 1, looks ? LOOK_MS : 1000000);
        int n = poll(fds, 2, (int)ms);
        if (n > 0 && fds[0].revents == 0) {
            return lost(remote, err);
        }
    }
}

static void address_frame(const shm_remote_t *remote, heft__shm_frame_t *frame)
{
    memcpy(frame->from, remote->incarnation, sizeof frame->from);
    memcpy(frame->to, remote->endpoint.incarnation, sizeof frame->to);
}

static bool is_from_peer(const shm_remote_t *remote, const heft__shm_frame_t *frame)
{
    return memcmp(frame->from, remote->endpoint.incarnation, sizeof frame->from) == 0;
}

static heft_status_t refused(const shm_remote_t *remote, const heft__shm_frame_t *frame,
                             const char *what, heft_error_t *err)
{
    return heft__error_set(err, frame->status, "shm: process %d refused %s: %s",
                           (int)remote->endpoint.pid, what, heft_status_get_text(frame->status));
}

static heft_status_t check_welcome(const shm_remote_t *remote, const heft__shm_frame_t *frame,
                                   int segment_fd, int64_t bytes, heft_error_t *err)
{
    if (frame->kind == HEFT__SHM_REFUSED) {
        return refused(remote, frame, "the connection", err);
    }
    if (!is_from_peer(remote, frame)) {
        return heft__error_set(err, HEFT_ERR_STALE,
                               "shm: another incarnation of process %d answers",
                               (int)remote->endpoint.pid);
    }
    if (frame->kind != HEFT__SHM_WELCOME || segment_fd < 0) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL,
                               "shm: frame %d without a segment, expected a welcome",
                               (int)frame->kind);
    }
    if (frame->a < (uint64_t)bytes || frame->a != (uint64_t)remote->endpoint.bytes) {
        return heft__error_set(
            err, HEFT_ERR_SHAPE, "shm: process %d has %llu bytes of staging, %lld needed",
            (int)remote->endpoint.pid, (unsigned long long)frame->a, (long long)bytes);
    }
    return HEFT_OK;
}

static heft_status_t shake_hands(shm_remote_t *remote, const heft__attach_params_t *params,
                                 heft_error_t *err)
{
    heft__shm_frame_t frame = { .kind = HEFT__SHM_HELLO, .a = (uint64_t)params->bytes };
    address_frame(remote, &frame);
    heft_status_t status = heft__shm_send(remote->fd, &frame, -1, err);
    /* One that was refused before it spoke finds the refusal, not only the broken pipe. */
    int segment_fd = -1;
    heft_status_t got =
        await_frame(remote, params, params->deadline_mono_ns, &frame, &segment_fd, err);
    if (got != HEFT_OK) {
        return got;
    }
    if (status != HEFT_OK && frame.kind != HEFT__SHM_REFUSED) {
        status = lost(remote, err);
    } else {
        status = check_welcome(remote, &frame, segment_fd, params->bytes, err);
    }
    if (status != HEFT_OK) {
        if (segment_fd >= 0) {
            (void)close(segment_fd);
        }
        return status;
    }
    return heft__segment_map(segment_fd, remote->endpoint.bytes, &remote->segment, err);
}

heft_status_t heft__shm_attach(heft__transport_t *transport, const char *endpoint,
                               const heft__attach_params_t *params, heft__remote_t **remote_out,
                               heft_error_t *err)
{
    shm_remote_t *remote = heft__calloc(1, sizeof *remote);
    if (remote == NULL) {
        return heft__error_nomem(err, sizeof *remote);
    }
    remote->fd = -1;
    remote->pid_fd = -1;
    remote->base = (heft__remote_t){ .ops = transport->ops, .memory = HEFT__MEMORY_HOST };
    memcpy(remote->incarnation, params->incarnation, sizeof remote->incarnation);
    heft_status_t status =
        heft__shm_endpoint_decode(endpoint, strlen(endpoint), &remote->endpoint, err);
    if (status == HEFT_OK) {
        status = connect_socket(remote, params->deadline_mono_ns, err);
    }
    if (status == HEFT_OK) {
        remote->pid_fd = heft__shm_open_pidfd(remote->pid);
        status = shake_hands(remote, params, err);
    }
    if (status != HEFT_OK) {
        heft__shm_close(&remote->base);
        return status;
    }
    remote->base.ptr = remote->segment.ptr;
    remote->base.bytes = remote->endpoint.bytes;
    *remote_out = &remote->base;
    return HEFT_OK;
}

void heft__shm_close(heft__remote_t *base)
{
    shm_remote_t *remote = (shm_remote_t *)base;
    heft__segment_fini(&remote->segment);
    if (remote->fd >= 0) {
        (void)close(remote->fd);
    }
    if (remote->pid_fd >= 0) {
        (void)close(remote->pid_fd);
    }
    heft__free(remote);
}

heft_status_t heft__shm_begin(heft__remote_t *base, heft__token_t token, int64_t deadline_mono_ns,
                              heft_error_t *err)
{
    shm_remote_t *remote = (shm_remote_t *)base;
    heft__shm_frame_t frame = { .kind = HEFT__SHM_BEGIN, .a = token.epoch, .b = token.seq };
    address_frame(remote, &frame);
    remote->is_canceled = false;
    heft_status_t status = heft__shm_send(remote->fd, &frame, -1, NULL);
    if (status != HEFT_OK) {
        return lost(remote, err);
    }
    do { /* a CANCEL that crossed the END of the last round is no answer */
        status = await_frame(remote, NULL, deadline_mono_ns, &frame, NULL, err);
    } while (status == HEFT_OK && frame.kind == HEFT__SHM_CANCEL);
    if (status != HEFT_OK) {
        return status;
    }
    if (frame.kind == HEFT__SHM_REFUSED) {
        return refused(remote, &frame, "the round", err);
    }
    if (frame.kind != HEFT__SHM_READY || !is_from_peer(remote, &frame) || frame.a != token.epoch ||
        frame.b != token.seq) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "shm: frame %d from process %d, expected 5",
                               (int)frame.kind, (int)remote->endpoint.pid);
    }
    return HEFT_OK;
}

static bool is_dead(const shm_remote_t *remote)
{
    struct pollfd fd = { .fd = remote->pid_fd, .events = POLLIN };
    return remote->pid_fd >= 0 && poll(&fd, 1, 0) > 0;
}

heft_status_t heft__shm_check(heft__remote_t *base, heft_error_t *err)
{
    shm_remote_t *remote = (shm_remote_t *)base;
    heft__shm_frame_t frame;
    heft_status_t status = heft__shm_recv(remote->fd, &frame, NULL, err);
    if (status == HEFT_ERR_PEER || (status == HEFT_IN_PROGRESS && is_dead(remote))) {
        return lost(remote, err);
    }
    if (status == HEFT_OK && frame.kind != HEFT__SHM_CANCEL) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "shm: frame %d from process %d, expected 6",
                               (int)frame.kind, (int)remote->endpoint.pid);
    }
    if (status == HEFT_OK) {
        remote->is_canceled = true;
    }
    if (status < 0) {
        return status;
    }
    if (remote->is_canceled) {
        return heft__error_set(err, HEFT_ERR_CANCELED,
                               "shm: process %d, the receiver, ended the round",
                               (int)remote->endpoint.pid);
    }
    return HEFT_OK;
}

heft_status_t heft__shm_end(heft__remote_t *base, heft__token_t token, bool completed,
                            heft_error_t *err)
{
    shm_remote_t *remote = (shm_remote_t *)base;
    /* Every store of this process happens before the frame is sent: the system call and the peer's
     * receive order them, and copies with non-temporal stores end with a store fence. */
    heft__shm_frame_t frame = { .kind = HEFT__SHM_END,
                                .status = completed ? HEFT_OK : HEFT_ERR_CANCELED,
                                .a = token.epoch,
                                .b = token.seq };
    address_frame(remote, &frame);
    return heft__shm_send(remote->fd, &frame, -1, NULL) == HEFT_OK ? HEFT_OK : lost(remote, err);
}

heft_status_t heft__shm_put(heft__remote_t *base, int64_t offset, const void *data, int64_t bytes,
                            heft_error_t *err)
{
    (void)err;
    memcpy(base->ptr + offset, data, (size_t)bytes);
    return HEFT_OK;
}

int heft__shm_get_fd(const heft__remote_t *base)
{
    return ((const shm_remote_t *)base)->fd;
}
