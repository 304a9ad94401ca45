/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenUCX, loaded when it is first needed. libheft does not link with it: a process that only uses
 * shared memory gets neither its signal handlers nor its memory hooks, and a host without it still
 * runs everything else.
 */
#ifndef HEFT_TRANSPORT_UCX_API_H
#define HEFT_TRANSPORT_UCX_API_H

#include "base/base.h"

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

/* X(name): every function of UCX that is called. */
#define HEFT__UCX_CALLS(X)            \
    X(ucp_get_version_string)         \
    X(ucp_config_read)                \
    X(ucp_config_modify)              \
    X(ucp_config_release)             \
    X(ucp_init_version)               \
    X(ucp_cleanup)                    \
    X(ucp_worker_create)              \
    X(ucp_worker_destroy)             \
    X(ucp_worker_progress)            \
    X(ucp_worker_arm)                 \
    X(ucp_worker_get_efd)             \
    X(ucp_worker_get_address)         \
    X(ucp_worker_release_address)     \
    X(ucp_worker_set_am_recv_handler) \
    X(ucp_ep_create)                  \
    X(ucp_ep_close_nbx)               \
    X(ucp_ep_flush_nbx)               \
    X(ucp_ep_print_info)              \
    X(ucp_ep_rkey_unpack)             \
    X(ucp_rkey_destroy)               \
    X(ucp_rkey_pack)                  \
    X(ucp_rkey_buffer_release)        \
    X(ucp_mem_map)                    \
    X(ucp_mem_unmap)                  \
    X(ucp_put_nbx)                    \
    X(ucp_am_send_nbx)                \
    X(ucp_am_recv_data_nbx)           \
    X(ucp_request_free)               \
    X(ucs_status_string)              \
    X(ucs_log_push_handler)

typedef struct heft__ucx_api {
#define HEFT__UCX_FIELD(name) __typeof__(&name) name;
    HEFT__UCX_CALLS(HEFT__UCX_FIELD)
#undef HEFT__UCX_FIELD
} heft__ucx_api_t;

/* Load the library, once in a process; it stays loaded. Borrowed. HEFT_ERR_UNSUPPORTED: it is not
 * on this host, or lacks a function; the message says which. Threads: any. */
HEFT_MUST_CHECK heft_status_t heft__ucx_api_load(const heft__ucx_api_t **api_out,
                                                 heft_error_t *err);

#endif
