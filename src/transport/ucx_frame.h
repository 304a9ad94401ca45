/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the ucx transport: the header of every active message, 72 bytes, little-endian
 * (docs/formats/ucx.md). Frames about a chunk are followed by the chunk's own header.
 */
#ifndef HEFT_TRANSPORT_UCX_FRAME_H
#define HEFT_TRANSPORT_UCX_FRAME_H

#include "transport/chunk.h"

enum { HEFT__UCX_FRAME_BYTES = 72, HEFT__UCX_VERSION = 1 };
enum { HEFT__UCX_HEADER_BYTES = HEFT__UCX_FRAME_BYTES + HEFT__CHUNK_HEADER_BYTES };

typedef enum heft__ucx_kind {
    HEFT__UCX_HELLO = 1,    /* sender: peer = window, a = bytes wanted, b = its connection; the data
                               are its worker's address */
    HEFT__UCX_WELCOME = 2,  /* receiver: a = bytes, b = its connection */
    HEFT__UCX_REFUSED = 3,  /* receiver; status and the data, a text, say why */
    HEFT__UCX_BEGIN = 4,    /* sender; a = epoch, b = sequence, here and below */
    HEFT__UCX_READY = 5,    /* receiver: armed for this round, write */
    HEFT__UCX_CANCEL = 6,   /* receiver: stop writing, then say END */
    HEFT__UCX_END = 7,      /* sender: nothing of it is under way; status 0: all was written */
    HEFT__UCX_ENDED = 8,    /* receiver: noted; status and text: not everything has come */
    HEFT__UCX_CHUNK = 9,    /* sender: a = tag; chunk header, and the bytes as data */
    HEFT__UCX_PLACED = 10,  /* sender: a = tag; chunk header; the bytes have been put in place */
    HEFT__UCX_VERDICT = 11, /* receiver: a = tag; status and text */
    HEFT__UCX_PING = 12,    /* either */
    HEFT__UCX_PONG = 13,    /* the answer */
    HEFT__UCX_BYE = 14,     /* either: this connection is over */
    HEFT__UCX_DATA = 15     /* sender: a = tag, b = offset; the bytes of a plain put as data */
} heft__ucx_kind_t;

typedef struct heft__ucx_frame {
    heft__ucx_kind_t kind;
    heft_status_t status;
    uint32_t pid;  /* of the one that speaks, for messages */
    uint64_t peer; /* the connection at the one spoken to; in HELLO the window */
    uint64_t a;
    uint64_t b;
    uint8_t from[HEFT__INCARNATION_BYTES];
    uint8_t to[HEFT__INCARNATION_BYTES];
} heft__ucx_frame_t;

void heft__ucx_frame_encode(const heft__ucx_frame_t *frame,
                            uint8_t bytes_out[HEFT__UCX_FRAME_BYTES]);
/* Strict: exact length for the kind, known version and kind, a status only where one belongs.
 * HEFT_ERR_PROTOCOL; HEFT_ERR_UNSUPPORTED for another version. */
HEFT_MUST_CHECK heft_status_t heft__ucx_frame_decode(const uint8_t *bytes, size_t n,
                                                     heft__ucx_frame_t *frame_out,
                                                     heft_error_t *err);

#endif
