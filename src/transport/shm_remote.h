/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's half of shm: the operations that shm_window.c puts into the table. */
#ifndef HEFT_TRANSPORT_SHM_REMOTE_H
#define HEFT_TRANSPORT_SHM_REMOTE_H

#include "transport/transport.h"

HEFT_MUST_CHECK heft_status_t heft__shm_attach(heft__transport_t *transport, const char *endpoint,
                                               const heft__attach_params_t *params,
                                               heft__remote_t **remote_out, heft_error_t *err);
void heft__shm_close(heft__remote_t *remote);
HEFT_MUST_CHECK heft_status_t heft__shm_begin(heft__remote_t *remote, heft__token_t token,
                                              int64_t deadline_mono_ns, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__shm_check(heft__remote_t *remote, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__shm_end(heft__remote_t *remote, heft__token_t token,
                                            bool completed, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__shm_put(heft__remote_t *remote, int64_t offset,
                                            const void *data, int64_t bytes, heft_error_t *err);
int heft__shm_get_fd(const heft__remote_t *remote);

/* What an endpoint text says. */
typedef struct heft__shm_endpoint {
    char socket[64]; /* abstract name, without the leading NUL */
    int32_t pid;
    int64_t bytes;
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
} heft__shm_endpoint_t;

/* Strict: unknown keys, wrong types and bad values are HEFT_ERR_FORMAT. text is n bytes. */
HEFT_MUST_CHECK heft_status_t heft__shm_endpoint_decode(const char *text, size_t n,
                                                        heft__shm_endpoint_t *endpoint_out,
                                                        heft_error_t *err);

#endif
