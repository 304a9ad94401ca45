/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding, strict decoding, sending and receiving of frames. Sockets are SOCK_SEQPACKET: a packet
 * is a frame, nothing is ever reassembled, and a longer packet is seen as such and refused.
 */
#include "transport/shm_frame.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void put_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static uint16_t get_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (uint16_t)p[1] << 8);
}

void heft__shm_frame_encode(const heft__shm_frame_t *frame,
                            uint8_t bytes_out[HEFT__SHM_FRAME_BYTES])
{
    heft__put_le32(bytes_out, HEFT__SHM_MAGIC);
    put_le16(bytes_out + 4, HEFT__SHM_VERSION);
    put_le16(bytes_out + 6, (uint16_t)frame->kind);
    heft__put_le32(bytes_out + 8, (uint32_t)frame->status);
    heft__put_le32(bytes_out + 12, 0);
    memcpy(bytes_out + 16, frame->from, HEFT__INCARNATION_BYTES);
    memcpy(bytes_out + 32, frame->to, HEFT__INCARNATION_BYTES);
    heft__put_le64(bytes_out + 48, frame->a);
    heft__put_le64(bytes_out + 56, frame->b);
}

/* A status is a negative value in REFUSED, may be one in END, and is 0 elsewhere. */
static bool status_fits(heft__shm_kind_t kind, int32_t status)
{
    bool known = strcmp(heft_status_get_name((heft_status_t)status), "UNKNOWN") != 0;
    switch (kind) {
    case HEFT__SHM_REFUSED:
        return known && status < 0;
    case HEFT__SHM_END:
        return known && status <= 0;
    case HEFT__SHM_HELLO:
    case HEFT__SHM_WELCOME:
    case HEFT__SHM_BEGIN:
    case HEFT__SHM_READY:
    case HEFT__SHM_CANCEL:
    default:
        return status == 0;
    }
}

heft_status_t heft__shm_frame_decode(const uint8_t *bytes, size_t n, heft__shm_frame_t *frame_out,
                                     heft_error_t *err)
{
    if (n != HEFT__SHM_FRAME_BYTES) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "shm frame of %zu bytes, expected %d", n,
                               HEFT__SHM_FRAME_BYTES);
    }
    uint32_t magic = heft__get_le32(bytes);
    if (magic != HEFT__SHM_MAGIC) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "shm frame: magic 0x%08x, expected 0x%08x",
                               magic, HEFT__SHM_MAGIC);
    }
    uint16_t version = get_le16(bytes + 4);
    if (version != HEFT__SHM_VERSION) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "shm protocol version %u from the peer, %d here", version,
                               HEFT__SHM_VERSION);
    }
    uint16_t kind = get_le16(bytes + 6);
    int32_t status = (int32_t)heft__get_le32(bytes + 8);
    if (kind < HEFT__SHM_HELLO || kind > HEFT__SHM_END ||
        !status_fits((heft__shm_kind_t)kind, status) || heft__get_le32(bytes + 12) != 0) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "shm frame: kind %u, status %d", kind,
                               (int)status);
    }
    frame_out->kind = (heft__shm_kind_t)kind;
    frame_out->status = (heft_status_t)status;
    memcpy(frame_out->from, bytes + 16, HEFT__INCARNATION_BYTES);
    memcpy(frame_out->to, bytes + 32, HEFT__INCARNATION_BYTES);
    frame_out->a = heft__get_le64(bytes + 48);
    frame_out->b = heft__get_le64(bytes + 56);
    return HEFT_OK;
}

/* Room for one descriptor, aligned as a control message must be. */
typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
} control_t;

heft_status_t heft__shm_send(int fd, const heft__shm_frame_t *frame, int segment_fd,
                             heft_error_t *err)
{
    uint8_t bytes[HEFT__SHM_FRAME_BYTES];
    heft__shm_frame_encode(frame, bytes);
    struct iovec iov = { .iov_base = bytes, .iov_len = sizeof bytes };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
    control_t control;
    memset(&control, 0, sizeof control);
    if (segment_fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof segment_fd);
        memcpy(CMSG_DATA(head), &segment_fd, sizeof segment_fd);
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof bytes) {
        return heft__error_set_sys(err, HEFT_ERR_PEER, errno, "shm socket: cannot send");
    }
    return HEFT_OK;
}

/* The first descriptor of a message; any others are closed. -1: none. */
static int take_descriptor(struct msghdr *msg)
{
    int kept = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head != NULL; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            if (kept < 0) {
                kept = fd;
            } else {
                (void)close(fd);
            }
        }
    }
    return kept;
}

heft_status_t heft__shm_recv(int fd, heft__shm_frame_t *frame_out, int *segment_fd_out,
                             heft_error_t *err)
{
    uint8_t bytes[HEFT__SHM_FRAME_BYTES];
    struct iovec iov = { .iov_base = bytes, .iov_len = sizeof bytes };
    control_t control;
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes };
    ssize_t n;
    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return HEFT_IN_PROGRESS;
    }
    if (n < 0) {
        return heft__error_set_sys(err, HEFT_ERR_PEER, errno, "shm socket: cannot receive");
    }
    int passed = take_descriptor(&msg);
    heft_status_t status = HEFT_OK;
    if (n == 0 && passed < 0) {
        status = heft__error_set(err, HEFT_ERR_PEER, "shm socket: closed by the peer");
    } else if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
               (passed >= 0 && segment_fd_out == NULL)) {
        status = heft__error_set(err, HEFT_ERR_PROTOCOL,
                                 "shm frame: longer than %d bytes, or with a descriptor",
                                 HEFT__SHM_FRAME_BYTES);
    } else {
        status = heft__shm_frame_decode(bytes, (size_t)n, frame_out, err);
    }
    if (status != HEFT_OK && passed >= 0) {
        (void)close(passed);
        passed = -1;
    }
    if (status == HEFT_OK && segment_fd_out != NULL) {
        *segment_fd_out = passed;
    }
    return status;
}

heft_status_t heft__shm_check_peer(int fd, int32_t *pid_out, heft_error_t *err)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return heft__error_set_sys(err, HEFT_ERR_PEER, errno, "shm socket: peer credentials");
    }
    if (cred.uid != geteuid()) {
        return heft__error_set(err, HEFT_ERR_AUTH,
                               "shm peer runs as user %u, this process as user %u",
                               (unsigned)cred.uid, (unsigned)geteuid());
    }
    *pid_out = (int32_t)cred.pid;
    return HEFT_OK;
}

/* Asked for while the socket is open, so the pid is still that of the process that opened it. */
int heft__shm_open_pidfd(int32_t pid)
{
#ifdef SYS_pidfd_open
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
#else
    (void)pid;
    return -1;
#endif
}
