/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which host a process is on, and what it shares with the others there. Two processes that agree in
 * everything can reach each other by shared memory.
 */
#ifndef HEFT_TRANSPORT_HOST_IDENTITY_H
#define HEFT_TRANSPORT_HOST_IDENTITY_H

#include "base/base.h"

enum { HEFT__BOOT_TEXT_BYTES = 37 };

typedef struct heft__host_identity {
    char boot[HEFT__BOOT_TEXT_BYTES]; /* of this start of the kernel, as a UUID */
    uint64_t ipc;                     /* inode of the IPC namespace */
    uint64_t net;                     /* inode of the network namespace */
    uint64_t shm;                     /* device of /dev/shm */
} heft__host_identity_t;

/* What cannot be found out is 0 or "", and then equal to nobody's. */
void heft__host_identity_read(heft__host_identity_t *out);
/* Same start of the kernel and same network namespace: abstract sockets reach, and so does shm. */
bool heft__host_identity_has_sockets(const heft__host_identity_t *a,
                                     const heft__host_identity_t *b);
/* Everything is shared: a network between the two is a detour. */
bool heft__host_identity_is_same(const heft__host_identity_t *a, const heft__host_identity_t *b);
/* {"boot":"...","ipc":N,"net":N,"shm":N} */
void heft__host_identity_encode(const heft__host_identity_t *host, heft__text_t *text);

struct json_t;
/* Strict. HEFT_ERR_FORMAT, with `what` in the message. */
HEFT_MUST_CHECK heft_status_t heft__host_identity_decode(struct json_t *object, const char *what,
                                                         heft__host_identity_t *out,
                                                         heft_error_t *err);

#endif
