/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offer: which transports a member has, by its options. Both sides register theirs; a pair without
 * a common one is refused in preflight.
 */
#ifndef HEFT_SYNC_OFFER_H
#define HEFT_SYNC_OFFER_H

#include "transport/transport.h"

enum { HEFT__OFFER_MAX = 2 };

typedef struct heft__offer_opts {
    const char *transport; /* "shm", "ucx" or "auto" */
    const char *url;       /* of the coordinator */
    heft__ucx_opts_t ucx;
} heft__offer_opts_t;

typedef struct heft__offer {
    heft__ucx_t *ucx;                               /* NULL: none */
    heft__pair_t *pair;                             /* NULL: one transport only */
    heft__transport_t *transports[HEFT__OFFER_MAX]; /* to attach with, the preferred one first */
    const char *names[HEFT__OFFER_MAX];
    uint32_t n;
    heft__transport_t *window; /* to make windows with, reachable by all of them */
} heft__offer_t;

/* HEFT_ERR_ARGUMENT: no such transport. HEFT_ERR_UNSUPPORTED: ucx is wanted and is not there; with
 * auto it is left out. */
HEFT_MUST_CHECK heft_status_t heft__offer_init(const heft__offer_opts_t *opts,
                                               heft__offer_t *offer_out, heft_error_t *err);
/* Of transports that are given: for tests. */
void heft__offer_init_over(heft__transport_t *const *transports, uint32_t n,
                           heft__offer_t *offer_out);
/* After every window and remote; a zeroed offer is fine. */
void heft__offer_fini(heft__offer_t *offer);

/* From the options of a publisher or a subscriber, which have the same fields. */
#define HEFT__OFFER_OPTS(opts)                                       \
    {                                                                \
        .transport = (opts)->transport, .url = (opts)->url, .ucx = { \
            .allow_tcp = (opts)->ucx_allow_tcp != 0,                 \
            .max_lanes = (opts)->ucx_lanes,                          \
            .silence_ms = (opts)->ucx_silence_ms,                    \
            .net_devices = (opts)->ucx_devices                       \
        }                                                            \
    }

#endif
