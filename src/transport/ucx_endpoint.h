/* SPDX-License-Identifier: Apache-2.0 */
/* What the endpoint text of a ucx window says (docs/formats/ucx.md). */
#ifndef HEFT_TRANSPORT_UCX_ENDPOINT_H
#define HEFT_TRANSPORT_UCX_ENDPOINT_H

#include "transport/host_identity.h"
#include "transport/transport.h"

enum { HEFT__UCX_ADDRESS_MAX = 4096, HEFT__UCX_KEY_MAX = 1024 };

typedef struct heft__ucx_endpoint {
    uint64_t window;
    uint64_t base; /* of the memory, in the receiver's address space */
    int64_t bytes;
    int64_t segment_bytes; /* of what the receiver reads from tcp at once; 0: not said */
    heft__memory_t memory;
    int32_t pid;
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
    heft__host_identity_t host;
    size_t worker_bytes;
    size_t key_bytes;
    uint8_t worker[HEFT__UCX_ADDRESS_MAX]; /* address of the worker */
    uint8_t key[HEFT__UCX_KEY_MAX];        /* remote key */
} heft__ucx_endpoint_t;

void heft__ucx_endpoint_encode(const heft__ucx_endpoint_t *endpoint, heft__text_t *text);
/* Strict: unknown keys, wrong types and bad values are HEFT_ERR_FORMAT; another version of the
 * protocol is HEFT_ERR_UNSUPPORTED. text is n bytes. *out is written only on success. */
HEFT_MUST_CHECK heft_status_t heft__ucx_endpoint_decode(const char *text, size_t n,
                                                        heft__ucx_endpoint_t *out,
                                                        heft_error_t *err);

#endif
