/* SPDX-License-Identifier: Apache-2.0 */
/* Between the engine's thread and its connections. */
#ifndef HEFT_TRANSPORT_UCX_PEER_H
#define HEFT_TRANSPORT_UCX_PEER_H

#include "transport/ucx_private.h"

enum { HEFT__UCX_AM_ID = 1 };

/* The handler of every message; arg is the engine. */
ucs_status_t heft__ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data,
                                  size_t n, const ucp_am_recv_param_t *param);
/* What callbacks have left to be done. */
void heft__ucx_peers_serve(heft__ucx_t *ucx);
/* Pings, and who is silent. was_away: this process has not run for a while. True while somebody is
 * watched or leaving. */
bool heft__ucx_peers_tick(heft__ucx_t *ucx, int64_t now, bool was_away);
/* Memory of frames; no connection is left. */
void heft__ucx_peers_fini(heft__ucx_t *ucx);

#endif
