/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the ucx transport. One thread owns context, worker and connections of the process
 * (ucx_engine.c); windows and remotes hand it work and wait for what it publishes under `lock`.
 * Functions marked "thread" are for that thread alone.
 */
#ifndef HEFT_TRANSPORT_UCX_PRIVATE_H
#define HEFT_TRANSPORT_UCX_PRIVATE_H

#include "transport/host_identity.h"
#include "transport/segment.h"
#include "transport/ucx_api.h"
#include "transport/ucx_endpoint.h"
#include "transport/ucx_frame.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct heft__ucx_peer heft__ucx_peer_t;
typedef struct heft__ucx_window heft__ucx_window_t;
typedef struct heft__ucx_buf heft__ucx_buf_t;
typedef struct heft__ucx_hello heft__ucx_hello_t;
typedef struct heft__ucx_landing heft__ucx_landing_t;
typedef struct heft__ucx_call heft__ucx_call_t;

/* What an end of a connection does; all of it on the thread. */
typedef struct heft__ucx_peer_ops {
    /* A frame for this connection; chunk is the chunk's header where the kind has one. In what it
     * returns UCX is told whether it keeps `data`. */
    ucs_status_t (*on_frame)(heft__ucx_peer_t *peer, const heft__ucx_frame_t *frame,
                             const uint8_t *chunk, void *data, size_t n, bool is_rendezvous);
    /* The other one is gone, or silent for too long; nothing more is sent. Called once. */
    void (*on_lost)(heft__ucx_peer_t *peer, const char *why);
    /* Nothing of this connection is under way any more. The last call. */
    void (*on_closed)(heft__ucx_peer_t *peer);
    void (*attend)(heft__ucx_peer_t *peer); /* there may be work; NULL: never */
} heft__ucx_peer_ops_t;

typedef enum heft__ucx_stage {
    HEFT__UCX_OPEN = 0,
    HEFT__UCX_LEAVING, /* BYE is being sent */
    HEFT__UCX_CLOSING,
    HEFT__UCX_CLOSED
} heft__ucx_stage_t;

/* One connection, at either end. The first member of what embeds it; thread. */
struct heft__ucx_peer {
    heft__ucx_t *ucx;
    heft__ucx_peer_t *next;
    const heft__ucx_peer_ops_t *ops;
    uint64_t id;    /* ours: what the other end names */
    uint64_t their; /* theirs; 0: not known yet */
    uint8_t from[HEFT__INCARNATION_BYTES];
    uint8_t to[HEFT__INCARNATION_BYTES];
    ucp_ep_h ep; /* NULL: none */
    uint32_t n_requests;
    heft__ucx_stage_t stage;
    bool is_failed;    /* why is in `why` */
    bool is_told;      /* on_lost was called */
    bool is_watched;   /* silence ends it */
    uint32_t patience; /* times the silence that is borne of others */
    int64_t heard_mono_ns;
    int64_t pinged_mono_ns;
    int64_t leave_by_mono_ns;
    char why[160];
    char lanes[64]; /* "tcp/eth0, tcp/eth1"; "": not asked yet */
};

struct heft__ucx {
    heft__transport_t base;
    /* Guarded by the list of engines. */
    heft__ucx_t *next;
    uint32_t n_users;
    /* Constant once started. */
    heft__ucx_opts_t opts; /* net_devices is owned */
    char *net_devices;
    int64_t segment_bytes;
    const heft__ucx_api_t *api;
    heft__host_identity_t host;
    int wake_fd;
    pthread_t thread;
    ucp_context_h context;
    ucp_worker_h worker;
    int worker_fd;
    ucp_address_t *address;
    size_t address_bytes;
    /* The thread's. */
    uint64_t last_id;
    heft__ucx_peer_t *peers;
    heft__ucx_window_t *windows;
    heft__ucx_buf_t *free_bufs;
    heft__ucx_landing_t *free_landings;
    heft__ucx_hello_t *hellos;
    uint32_t n_hellos;
    bool has_closed; /* a peer is to be taken out of the list */
    int64_t ticked_mono_ns;
    bool is_busy; /* somebody is watched or leaving: look often */
    struct heft__ucx_quarantine *quarantine;
    /* Set by any thread that has left work, cleared by the thread before it looks. */
    atomic_bool has_work;
    /* Guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    heft__ucx_call_t *calls;
    bool stop;
    bool is_started;
    heft_error_t start_error;
};

/* ---- ucx_engine.c ---- */

/* Run a function on the thread and wait for its end: it never waits for a peer. Not on the thread.
 */
void heft__ucx_call(heft__ucx_t *ucx, void (*run)(void *arg), void *arg);
/* There is work for a peer's `attend`. */
void heft__ucx_wake(heft__ucx_t *ucx);
/* Until something published changes or the instant comes; false: it has come. */
bool heft__ucx_wait_locked(heft__ucx_t *ucx, int64_t until_mono_ns);
void heft__ucx_broadcast_locked(heft__ucx_t *ucx);

/* Thread. A connection to a worker's address; joins the list. */
HEFT_MUST_CHECK heft_status_t heft__ucx_peer_open(heft__ucx_t *ucx, heft__ucx_peer_t *peer,
                                                  const uint8_t *address, heft_error_t *err);
/* Thread. Send a frame, with data that stay valid for ever or a text that is copied. */
void heft__ucx_send(heft__ucx_peer_t *peer, heft__ucx_kind_t kind, heft_status_t status, uint64_t a,
                    uint64_t b, const char *text);
void heft__ucx_send_hello(heft__ucx_peer_t *peer, uint64_t window, int64_t bytes);
/* Thread. Fill in who speaks to whom. */
void heft__ucx_address_frame(const heft__ucx_peer_t *peer, heft__ucx_frame_t *frame);
/* Thread. Say goodbye, then close. */
void heft__ucx_peer_leave(heft__ucx_peer_t *peer);
/* Thread. Close at once: what is under way is given up. on_closed follows. */
void heft__ucx_peer_close(heft__ucx_peer_t *peer);
/* Thread. on_lost follows, unless it is closing already. */
void heft__ucx_peer_fail(heft__ucx_peer_t *peer, const char *why);
void heft__ucx_peer_watch(heft__ucx_peer_t *peer, bool is_watched);
/* Thread. What UCX returned for an operation of this peer: false once it is complete or has failed.
 * `*status_out` is then its end. */
bool heft__ucx_is_under_way(heft__ucx_peer_t *peer, ucs_status_ptr_t request,
                            ucs_status_t *status_out);
/* Thread. In the callback of an operation that was under way. */
void heft__ucx_completed(heft__ucx_peer_t *peer, void *request, ucs_status_t status);

/* Thread. Memory that late puts may still land in stays mapped until the worker is gone. */
void heft__ucx_keep_range(heft__ucx_t *ucx, void *ptr, size_t bytes);

/* ---- ucx_config.c ---- */

/* Read UCX's settings, ours on top where the user's environment has none. */
HEFT_MUST_CHECK heft_status_t heft__ucx_config_read(const heft__ucx_api_t *api,
                                                    const heft__ucx_opts_t *opts,
                                                    ucp_config_t **config_out, heft_error_t *err);
/* What is sent over tcp, and read from it, in one piece. Both ends need the same. */
int64_t heft__ucx_segment_bytes(const heft__ucx_opts_t *opts);
/* Up to how many bytes go along with their header over these lanes; larger ones wait until the
 * receiver has said where they land. */
int64_t heft__ucx_max_eager(int64_t segment_bytes, const char *lanes);
/* The lanes of a connection, as "tcp/eth0"; several are separated by ", ". */
void heft__ucx_lanes(const heft__ucx_api_t *api, ucp_ep_h ep, char *out, size_t out_bytes);

/* ---- ucx_window.c ---- */

extern const heft__transport_ops_t heft__ucx_ops;

/* Thread. The owner of a HELLO that has come in. */
void heft__ucx_window_hello(heft__ucx_t *ucx, const heft__ucx_frame_t *frame,
                            const uint8_t *address);
/* Thread. Tell the owners of windows what has changed. No lock is held. */
void heft__ucx_windows_tell(heft__ucx_t *ucx);
/* Thread. No window and no session is left. */
void heft__ucx_windows_fini(heft__ucx_t *ucx);

/* ---- ucx_remote.c ---- */

HEFT_MUST_CHECK heft_status_t heft__ucx_attach(heft__transport_t *transport, const char *endpoint,
                                               const heft__attach_params_t *params,
                                               heft__remote_t **remote_out, heft_error_t *err);
void heft__ucx_close(heft__remote_t *remote);
HEFT_MUST_CHECK heft_status_t heft__ucx_begin(heft__remote_t *remote, heft__token_t token,
                                              int64_t deadline_mono_ns, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_check(heft__remote_t *remote, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_end(heft__remote_t *remote, heft__token_t token,
                                            bool completed, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_put(heft__remote_t *remote, int64_t offset,
                                            const void *data, int64_t bytes, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_flush(heft__remote_t *remote, int64_t deadline_mono_ns,
                                              heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_post(heft__remote_t *remote, uint32_t tag, bool has_place,
                                             const uint8_t *header, const void *data, int64_t bytes,
                                             int64_t deadline_mono_ns, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_reap(heft__remote_t *remote, uint32_t *tag_out,
                                             int64_t deadline_mono_ns, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__ucx_send_chunk(heft__remote_t *remote, const uint8_t *header,
                                                   const void *data, int64_t bytes,
                                                   int64_t deadline_mono_ns, heft_error_t *err);
const char *heft__ucx_describe(const heft__remote_t *remote);

#endif
