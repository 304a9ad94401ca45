/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the shm control socket: 64 bytes each, little-endian, one per packet
 * (docs/formats/shm.md).
 */
#ifndef HEFT_TRANSPORT_SHM_FRAME_H
#define HEFT_TRANSPORT_SHM_FRAME_H

#include "transport/transport.h"

#define HEFT__SHM_MAGIC 0x54464548u /* "HEFT" */
enum { HEFT__SHM_FRAME_BYTES = 64, HEFT__SHM_VERSION = 1 };

typedef enum heft__shm_kind {
    HEFT__SHM_HELLO = 1,   /* sender: who am I, whom do I want; a = bytes wanted */
    HEFT__SHM_WELCOME = 2, /* receiver, with the segment's descriptor; a = bytes, b = page bytes */
    HEFT__SHM_REFUSED = 3, /* receiver; status says why */
    HEFT__SHM_BEGIN = 4,   /* sender; a = epoch, b = sequence, here and below */
    HEFT__SHM_READY = 5,   /* receiver: armed for this round, write */
    HEFT__SHM_CANCEL = 6,  /* receiver: stop writing, then answer with END */
    HEFT__SHM_END = 7      /* sender: stopped writing; status 0: everything was written */
} heft__shm_kind_t;

typedef struct heft__shm_frame {
    heft__shm_kind_t kind;
    heft_status_t status;
    uint8_t from[HEFT__INCARNATION_BYTES];
    uint8_t to[HEFT__INCARNATION_BYTES];
    uint64_t a;
    uint64_t b;
} heft__shm_frame_t;

void heft__shm_frame_encode(const heft__shm_frame_t *frame,
                            uint8_t bytes_out[HEFT__SHM_FRAME_BYTES]);
/* Strict: exact length, known version and kind, zero where nothing is defined. HEFT_ERR_PROTOCOL;
 * HEFT_ERR_UNSUPPORTED for another version. */
HEFT_MUST_CHECK heft_status_t heft__shm_frame_decode(const uint8_t *bytes, size_t n,
                                                     heft__shm_frame_t *frame_out,
                                                     heft_error_t *err);

/* ---- the socket under the frames; shared by both ends ---- */

/* Does not wait: a peer that does not read is as good as gone. */
HEFT_MUST_CHECK heft_status_t heft__shm_send(int fd, const heft__shm_frame_t *frame, int segment_fd,
                                             heft_error_t *err);
/* Does not wait. HEFT_IN_PROGRESS: nothing there. HEFT_ERR_PEER: closed. segment_fd_out (may be
 * NULL: descriptors are refused) is -1 when none came, else owned by the caller. */
HEFT_MUST_CHECK heft_status_t heft__shm_recv(int fd, heft__shm_frame_t *frame_out,
                                             int *segment_fd_out, heft_error_t *err);
/* The peer's process and user; HEFT_ERR_AUTH when it is not our user (both are named). */
HEFT_MUST_CHECK heft_status_t heft__shm_check_peer(int fd, int32_t *pid_out, heft_error_t *err);
/* A descriptor that becomes readable when the process ends; -1 where that cannot be had. */
int heft__shm_open_pidfd(int32_t pid);

#endif
