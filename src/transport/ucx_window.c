/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's half of ucx: registered memory, a session for each sender that is connected, and
 * the verdict on every chunk.
 *
 * What proves that nothing lands any more: a sender says END only after UCX has told it that all it
 * had sent is in place. One that is lost while it writes, or does not stop when asked, leaves the
 * window dirty: bytes of it may be in a socket's buffer or on the wire, addressed to this memory. A
 * dirty window is fenced by other memory at other addresses (ucx_window_strand).
 */
#include "transport/ucx_window.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SESSIONS = 256 };
/*
 * A sign of life of one that writes comes after the chunk before it, and that may take long: all of
 * its connections share its link, each with as much under way. It is slow then, and not dead. One
 * that is stopped or cut off is out of contact with the coordinator too, which says so earlier.
 */
enum { WRITER_PATIENCE = HEFT__CHUNKS_UNDER_WAY };
static const int64_t close_ns = 10000000000; /* UCX closes by force without waiting for a peer */

typedef struct session {
    heft__ucx_peer_t peer;
    heft__ucx_window_t *window; /* NULL: the window is gone */
    int32_t pid;
    bool is_attached;
    bool is_writing;
} session_t;

struct heft__ucx_window {
    heft__window_t base;
    heft__ucx_t *ucx;
    heft__ucx_window_t *next; /* thread */
    void (*on_change)(void *arg);
    void *on_change_arg;
    heft__segment_t segment; /* ours; none: the memory is another's */
    heft__ucx_endpoint_t endpoint;
    /* The thread's. */
    ucp_mem_h memh;
    bool is_armed;
    bool is_dirty;
    bool is_shared;
    bool has_changed;
    heft__token_t token;
    heft__chunk_rx_t *rx; /* NULL: plain puts */
    uint32_t n_open;      /* sessions that are not closed yet */
    /* Guarded by the engine's lock. */
    heft__window_state_t counts;
    bool was_dirty; /* is_dirty, for others */
    bool is_closed; /* n_open is 0 */
};

/* Bytes that are landing by rendezvous. */
struct heft__ucx_landing {
    heft__ucx_landing_t *next; /* of those that are free */
    session_t *session;
    uint64_t tag;
    bool is_chunk;    /* else a plain put */
    bool is_buffered; /* it has no place of its own: it lands here first */
    uint8_t *buffer;
    size_t buffer_bytes;
    uint8_t chunk[HEFT__CHUNK_HEADER_BYTES];
};

static heft__ucx_landing_t *take_landing(heft__ucx_t *ucx)
{
    heft__ucx_landing_t *landing = ucx->free_landings;
    if (landing == NULL) {
        return heft__calloc(1, sizeof *landing);
    }
    ucx->free_landings = landing->next;
    return landing;
}

static void give_landing(heft__ucx_t *ucx, heft__ucx_landing_t *landing)
{
    landing->next = ucx->free_landings;
    ucx->free_landings = landing;
}

void heft__ucx_windows_fini(heft__ucx_t *ucx)
{
    while (ucx->free_landings != NULL) {
        heft__ucx_landing_t *landing = ucx->free_landings;
        ucx->free_landings = landing->next;
        heft__free(landing->buffer);
        heft__free(landing);
    }
}

/* Room for a chunk of a packed route; kept with the landing. */
static heft_status_t provide_buffer(heft__ucx_landing_t *landing, size_t n, heft_error_t *err)
{
    if (landing->buffer_bytes < n) {
        heft__free(landing->buffer);
        landing->buffer = heft__malloc(n);
        landing->buffer_bytes = landing->buffer != NULL ? n : 0;
    }
    return landing->buffer_bytes >= n ? HEFT_OK : heft__error_nomem(err, n);
}

/* ---- what others see ---- */

static void note_change(heft__ucx_window_t *window, const heft__window_state_t *counts)
{
    (void)pthread_mutex_lock(&window->ucx->lock);
    window->counts = *counts;
    window->was_dirty = window->is_dirty;
    window->is_closed = window->n_open == 0;
    heft__ucx_broadcast_locked(window->ucx);
    (void)pthread_mutex_unlock(&window->ucx->lock);
    window->has_changed = true;
}

void heft__ucx_windows_tell(heft__ucx_t *ucx)
{
    for (heft__ucx_window_t *window = ucx->windows; window != NULL; window = window->next) {
        if (window->has_changed) {
            window->has_changed = false;
            if (window->on_change != NULL) {
                window->on_change(window->on_change_arg);
            }
        }
    }
}

/* ---- sessions ---- */

static void stop_writing(session_t *session, heft__window_state_t *counts)
{
    counts->n_writing -= session->is_writing;
    session->is_writing = false;
    heft__ucx_peer_watch(&session->peer, false);
}

static heft__window_sender_t sender_of(const session_t *session, const char *why)
{
    heft__window_sender_t out = { .pid = session->pid };
    memcpy(out.incarnation, session->peer.to, sizeof out.incarnation);
    (void)snprintf(out.why, sizeof out.why, "%s", why);
    return out;
}

static void on_lost(heft__ucx_peer_t *peer, const char *why)
{
    session_t *session = (session_t *)peer;
    heft__ucx_window_t *window = session->window;
    if (window == NULL) {
        return;
    }
    heft__window_state_t counts = window->counts;
    if (session->is_writing) {
        heft__log(HEFT_LOG_WARN, "ucx", "process %d is lost while it writes: %s", (int)session->pid,
                  why);
        counts.n_lost++;
        counts.lost = sender_of(session, why);
        window->is_dirty = true;
    }
    stop_writing(session, &counts);
    counts.n_attached -= session->is_attached;
    session->is_attached = false;
    note_change(window, &counts);
}

static void on_closed(heft__ucx_peer_t *peer)
{
    session_t *session = (session_t *)peer;
    heft__ucx_window_t *window = session->window;
    if (window != NULL) {
        window->n_open--;
        const heft__window_state_t counts = window->counts;
        note_change(window, &counts);
    }
    heft__free(session);
}

static void refuse(session_t *session, heft_status_t why, const char *text)
{
    heft__ucx_send(&session->peer, HEFT__UCX_REFUSED, why, session->window->token.epoch,
                   session->window->token.seq, text);
}

static void on_begin(session_t *session, const heft__ucx_frame_t *frame)
{
    heft__ucx_window_t *window = session->window;
    heft_error_t why = HEFT_ERROR_INIT;
    if (!window->is_armed || session->is_writing || frame->a != window->token.epoch ||
        frame->b != window->token.seq) {
        heft__ucx_send(&session->peer, HEFT__UCX_REFUSED, HEFT_ERR_STALE, frame->a, frame->b,
                       "it is not armed for this round");
        return;
    }
    if (window->rx != NULL && heft__chunk_rx_begin(window->rx, &why) != HEFT_OK) {
        heft__ucx_send(&session->peer, HEFT__UCX_REFUSED, why.status, frame->a, frame->b,
                       why.message);
        return;
    }
    heft__window_state_t counts = window->counts;
    counts.n_writing++;
    session->is_writing = true;
    heft__ucx_peer_watch(&session->peer, true);
    note_change(window, &counts);
    heft__ucx_send(&session->peer, HEFT__UCX_READY, HEFT_OK, frame->a, frame->b, NULL);
}

/* The sender that ends last answers for what has not come. */
static heft_status_t check_arrived(const heft__ucx_window_t *window, uint32_t n_writing,
                                   heft_error_t *err)
{
    if (window->rx == NULL) {
        return HEFT_OK;
    }
    if (heft__chunk_rx_has_failed(window->rx)) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "a chunk has been refused");
    }
    const bool is_last = n_writing == 0 && heft__chunk_rx_has_all_senders(window->rx);
    return is_last && !window->is_shared ? heft__chunk_rx_check_whole(window->rx, err) : HEFT_OK;
}

static void on_end(session_t *session, const heft__ucx_frame_t *frame)
{
    heft__ucx_window_t *window = session->window;
    heft_error_t why = HEFT_ERROR_INIT;
    heft__window_state_t counts = window->counts;
    if (!session->is_writing || frame->a != window->token.epoch || frame->b != window->token.seq) {
        heft__ucx_send(&session->peer, HEFT__UCX_ENDED, HEFT_ERR_STALE, frame->a, frame->b,
                       "it does not write in this round");
        return;
    }
    stop_writing(session, &counts);
    if (frame->status == HEFT_OK) { /* as it says: see whether it is so */
        why.status = check_arrived(window, counts.n_writing, &why);
    }
    const bool is_whole = frame->status == HEFT_OK && why.status == HEFT_OK;
    if (is_whole) {
        counts.n_done++;
    } else {
        counts.n_failed++;
        counts.failed = sender_of(session, "");
    }
    note_change(window, &counts);
    heft__ucx_send(&session->peer, HEFT__UCX_ENDED, why.status, frame->a, frame->b,
                   why.status != HEFT_OK ? why.message : NULL);
}

/* ---- chunks ---- */

static void send_verdict(session_t *session, uint64_t tag, heft_status_t status,
                         const heft_error_t *why)
{
    heft__ucx_send(&session->peer, HEFT__UCX_VERDICT, status, tag, 0,
                   status != HEFT_OK ? why->message : NULL);
}

/* The round is on, for this sender, and in chunks if these are. */
static heft_status_t check_round(const session_t *session, bool is_chunk, heft_error_t *err)
{
    const heft__ucx_window_t *window = session->window;
    if (!session->is_writing || !window->is_armed) {
        return heft__error_set(err, session->is_writing ? HEFT_ERR_CANCELED : HEFT_ERR_STALE,
                               "bytes outside of a round");
    }
    if ((window->rx != NULL) != is_chunk) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "%s are expected, %s came",
                               is_chunk ? "plain puts" : "chunks",
                               is_chunk ? "a chunk" : "a plain put");
    }
    return HEFT_OK;
}

static void judge_placed(session_t *session, uint64_t tag, bool is_chunk, const uint8_t *chunk)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = check_round(session, is_chunk, &why);
    if (status == HEFT_OK && is_chunk) {
        const heft__ucx_window_t *window = session->window;
        status = heft__chunk_rx_check_placed(window->rx, window->base.ptr, chunk, &why);
    }
    send_verdict(session, tag, status, &why);
}

static void judge_buffered(session_t *session, const heft__ucx_landing_t *landing, size_t n)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = check_round(session, true, &why);
    if (status == HEFT_OK) {
        status = heft__chunk_rx_take(session->window->rx, session->window->base.ptr, landing->chunk,
                                     landing->buffer, n, &why);
    }
    send_verdict(session, landing->tag, status, &why);
}

static void on_landed(void *request, ucs_status_t status, size_t n, void *arg)
{
    heft__ucx_landing_t *landing = arg;
    session_t *session = landing->session;
    heft__ucx_t *ucx = session->peer.ucx;
    heft__ucx_completed(&session->peer, request, status);
    if (status == UCS_OK && session->window != NULL && landing->is_buffered) {
        judge_buffered(session, landing, n);
    } else if (status == UCS_OK && session->window != NULL) {
        judge_placed(session, landing->tag, landing->is_chunk, landing->chunk);
    }
    give_landing(ucx, landing);
}

/* Where the bytes belong; chunk NULL: a plain put. */
static heft_status_t find_place(session_t *session, const heft__ucx_frame_t *frame,
                                const uint8_t *chunk, size_t n, int64_t *offset_out,
                                heft_error_t *err)
{
    const heft__ucx_window_t *window = session->window;
    heft_status_t status = check_round(session, chunk != NULL, err);
    if (status == HEFT_OK && chunk != NULL) {
        return heft__chunk_rx_find(window->rx, chunk, n, offset_out, err);
    }
    const uint64_t room = (uint64_t)window->base.bytes;
    if (status == HEFT_OK && (n > room || frame->b > room - n)) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL,
                               "%zu bytes at %llu in a window of %lld bytes", n,
                               (unsigned long long)frame->b, (long long)window->base.bytes);
    }
    *offset_out = (int64_t)frame->b;
    return status;
}

static void start_landing(session_t *session, heft__ucx_landing_t *landing, void *data, void *to,
                          size_t n)
{
    heft__ucx_window_t *window = session->window;
    ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                  UCP_OP_ATTR_FIELD_USER_DATA |
                                                  UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                  .cb.recv_am = on_landed,
                                  .user_data = landing };
    if (!landing->is_buffered) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = window->memh;
    }
    ucs_status_t ended;
    if (!heft__ucx_is_under_way(
            &session->peer,
            window->ucx->api->ucp_am_recv_data_nbx(window->ucx->worker, data, to, n, &param),
            &ended)) {
        give_landing(window->ucx, landing);
    }
}

/* UCX brings the bytes to where they belong, once that is known to be right. */
static ucs_status_t land(session_t *session, const heft__ucx_frame_t *frame, const uint8_t *chunk,
                         void *data, size_t n)
{
    heft__ucx_window_t *window = session->window;
    heft_error_t why = HEFT_ERROR_INIT;
    int64_t offset = 0;
    heft__ucx_landing_t *landing = NULL;
    heft_status_t status = find_place(session, frame, chunk, n, &offset, &why);
    if (status == HEFT_OK) {
        landing = take_landing(window->ucx);
        status = landing != NULL ? HEFT_OK : heft__error_nomem(&why, sizeof *landing);
    }
    if (status == HEFT_OK && offset < 0) {
        status = provide_buffer(landing, n, &why);
    }
    if (status != HEFT_OK) {
        if (landing != NULL) {
            give_landing(window->ucx, landing);
        }
        send_verdict(session, frame->a, status, &why);
        return UCS_OK;
    }
    landing->session = session;
    landing->tag = frame->a;
    landing->is_chunk = chunk != NULL;
    landing->is_buffered = offset < 0;
    if (chunk != NULL) {
        memcpy(landing->chunk, chunk, sizeof landing->chunk);
    }
    start_landing(session, landing, data, offset < 0 ? landing->buffer : window->base.ptr + offset,
                  n);
    return UCS_INPROGRESS;
}

/* Bytes that have come along with their header. */
static void take(session_t *session, const heft__ucx_frame_t *frame, const uint8_t *chunk,
                 const void *data, size_t n)
{
    heft__ucx_window_t *window = session->window;
    heft_error_t why = HEFT_ERROR_INIT;
    int64_t offset = 0;
    heft_status_t status;
    if (chunk == NULL) {
        status = find_place(session, frame, NULL, n, &offset, &why);
        if (status == HEFT_OK && n > 0) {
            memcpy(window->base.ptr + offset, data, n);
        }
    } else {
        status = check_round(session, true, &why);
        if (status == HEFT_OK) {
            status = heft__chunk_rx_take(window->rx, window->base.ptr, chunk, data, n, &why);
        }
    }
    send_verdict(session, frame->a, status, &why);
}

static ucs_status_t on_frame(heft__ucx_peer_t *peer, const heft__ucx_frame_t *frame,
                             const uint8_t *chunk, void *data, size_t n, bool is_rendezvous)
{
    session_t *session = (session_t *)peer;
    if (session->window == NULL) {
        return UCS_OK;
    }
    switch ((int)frame->kind) {
    case HEFT__UCX_BEGIN:
        on_begin(session, frame);
        break;
    case HEFT__UCX_END:
        on_end(session, frame);
        break;
    case HEFT__UCX_CHUNK:
    case HEFT__UCX_DATA:
        chunk = frame->kind == HEFT__UCX_CHUNK ? chunk : NULL;
        if (is_rendezvous) {
            return land(session, frame, chunk, data, n);
        }
        take(session, frame, chunk, data, n);
        break;
    case HEFT__UCX_PLACED:
        judge_placed(session, frame->a, true, chunk);
        break;
    default:
        heft__ucx_peer_fail(peer, "it sent a frame that a sender does not send");
        break;
    }
    return UCS_OK;
}

static const heft__ucx_peer_ops_t session_ops = { .on_frame = on_frame,
                                                  .on_lost = on_lost,
                                                  .on_closed = on_closed };

static heft__ucx_window_t *find_window(const heft__ucx_t *ucx, uint64_t id)
{
    heft__ucx_window_t *window = ucx->windows;
    while (window != NULL && window->endpoint.window != id) {
        window = window->next;
    }
    return window;
}

static void answer_hello(session_t *session, const heft__ucx_frame_t *frame)
{
    heft__ucx_window_t *window = session->window;
    heft__window_state_t counts = window->counts;
    if (memcmp(frame->to, window->endpoint.incarnation, sizeof frame->to) != 0) {
        refuse(session, HEFT_ERR_STALE, "another incarnation is wanted");
    } else if (frame->a > (uint64_t)window->base.bytes) {
        refuse(session, HEFT_ERR_SHAPE, "its staging is smaller");
    } else if (window->base.ptr == NULL) {
        refuse(session, HEFT_ERR_BUSY, "it has no staging memory now");
    } else if (counts.n_attached >= MAX_SESSIONS) {
        refuse(session, HEFT_ERR_LIMIT, "too many senders");
    } else {
        session->is_attached = true;
        counts.n_attached++;
        note_change(window, &counts);
        heft__ucx_send(&session->peer, HEFT__UCX_WELCOME, HEFT_OK, (uint64_t)window->base.bytes,
                       session->peer.id, NULL);
    }
    if (!session->is_attached) {
        heft__ucx_peer_leave(&session->peer);
    }
}

void heft__ucx_window_hello(heft__ucx_t *ucx, const heft__ucx_frame_t *frame,
                            const uint8_t *address)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft__ucx_window_t *window = find_window(ucx, frame->peer);
    session_t *session = window != NULL ? heft__calloc(1, sizeof *session) : NULL;
    if (session == NULL) { /* as when nobody is there: the sender's own deadline says so */
        heft__log(HEFT_LOG_INFO, "ucx", "process %u asks for a window that is not here",
                  frame->pid);
        return;
    }
    *session = (session_t){ .window = window, .pid = (int32_t)frame->pid };
    session->peer.ops = &session_ops;
    session->peer.patience = WRITER_PATIENCE;
    session->peer.their = frame->b;
    memcpy(session->peer.from, frame->to, sizeof session->peer.from);
    memcpy(session->peer.to, frame->from, sizeof session->peer.to);
    if (heft__ucx_peer_open(ucx, &session->peer, address, &why) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "ucx", "process %u cannot be answered: %s", frame->pid,
                  why.message);
        heft__free(session);
        return;
    }
    window->n_open++;
    answer_hello(session, frame);
}

/* ---- memory ---- */

typedef struct memory_call {
    heft__ucx_window_t *window;
    uint8_t *ptr;
    heft_status_t status;
    heft_error_t err;
} memory_call_t;

static void register_memory(void *arg)
{
    memory_call_t *call = arg;
    heft__ucx_window_t *window = call->window;
    const heft__ucx_api_t *api = window->ucx->api;
    void *key = NULL;
    size_t key_bytes = 0;
    const ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                        UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                          .address = call->ptr,
                                          .length = (size_t)heft__max_i64(window->base.bytes, 1),
                                          .memory_type = UCS_MEMORY_TYPE_HOST };
    ucs_status_t rc = api->ucp_mem_map(window->ucx->context, &params, &window->memh);
    if (rc == UCS_OK) {
        rc = api->ucp_rkey_pack(window->ucx->context, window->memh, &key, &key_bytes);
    } else {
        window->memh = NULL;
    }
    if (rc != UCS_OK || key_bytes == 0 || key_bytes > HEFT__UCX_KEY_MAX) {
        call->status = heft__error_set(&call->err, HEFT_ERR_NOSPACE,
                                       "ucx: %lld bytes cannot be registered: %s",
                                       (long long)window->base.bytes,
                                       rc != UCS_OK ? api->ucs_status_string(rc) : "key too long");
    } else {
        window->endpoint.base = (uint64_t)(uintptr_t)call->ptr;
        window->endpoint.key_bytes = key_bytes;
        memcpy(window->endpoint.key, key, key_bytes);
    }
    if (key != NULL) {
        api->ucp_rkey_buffer_release(key);
    }
}

heft_status_t heft__ucx_window_adopt(heft__window_t *base, uint8_t *ptr, int64_t page_bytes,
                                     heft_error_t *err)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    memory_call_t call = { .window = window, .ptr = ptr, .err = HEFT_ERROR_INIT };
    heft__ucx_call(window->ucx, register_memory, &call);
    if (call.status != HEFT_OK) {
        return heft__error_set(err, call.status, "%s", call.err.message);
    }
    base->ptr = ptr;
    base->page_bytes = page_bytes;
    return HEFT_OK;
}

static void close_sessions(heft__ucx_window_t *window)
{
    for (heft__ucx_peer_t *peer = window->ucx->peers; peer != NULL; peer = peer->next) {
        session_t *session = (session_t *)peer;
        if (peer->ops == &session_ops && session->window == window) {
            if (peer->stage == HEFT__UCX_OPEN) {
                on_lost(peer, "the receiver has given up its memory");
                peer->is_told = true;
            }
            heft__ucx_peer_leave(peer);
        }
    }
    const heft__window_state_t counts = window->counts;
    note_change(window, &counts);
}

static void run_close_sessions(void *arg)
{
    close_sessions(arg);
}

static void unregister(void *arg)
{
    heft__ucx_window_t *window = arg;
    if (window->memh != NULL) {
        (void)window->ucx->api->ucp_mem_unmap(window->ucx->context, window->memh);
        window->memh = NULL;
    }
    window->is_dirty = false; /* what is late is addressed to memory that is gone */
    const heft__window_state_t counts = window->counts;
    note_change(window, &counts);
}

/* Bounded: closing by force waits for no peer. */
static bool await_closed(heft__ucx_window_t *window)
{
    const int64_t until = heft__clock_mono_ns() + close_ns;
    (void)pthread_mutex_lock(&window->ucx->lock);
    while (!window->is_closed && heft__ucx_wait_locked(window->ucx, until)) {
    }
    const bool is_closed = window->is_closed;
    (void)pthread_mutex_unlock(&window->ucx->lock);
    return is_closed;
}

void heft__ucx_window_retire(heft__window_t *base)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    heft__ucx_call(window->ucx, run_close_sessions, window);
    if (await_closed(window)) {
        heft__ucx_call(window->ucx, unregister, window);
    } else {
        heft__log(HEFT_LOG_ERROR, "ucx",
                  "a connection does not close; its memory stays registered");
        window->memh = NULL;
    }
    base->ptr = NULL;
}

typedef struct keep_call {
    heft__ucx_t *ucx;
    void *ptr;
    size_t bytes;
} keep_call_t;

static void run_keep(void *arg)
{
    const keep_call_t *call = arg;
    heft__ucx_keep_range(call->ucx, call->ptr, call->bytes);
}

void heft__ucx_window_strand(heft__window_t *base, heft__segment_t *segment)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    keep_call_t call = { .ucx = window->ucx };
    heft__segment_strand(segment, &call.ptr, &call.bytes);
    if (call.ptr != NULL) {
        heft__ucx_call(window->ucx, run_keep, &call);
    }
}

/* ---- operations ---- */

static void join_list(void *arg)
{
    heft__ucx_window_t *window = arg;
    window->endpoint.window = ++window->ucx->last_id;
    window->next = window->ucx->windows;
    window->ucx->windows = window;
}

/* Sessions that are still closing no longer know it. */
static void leave_list(void *arg)
{
    heft__ucx_window_t *window = arg;
    heft__ucx_window_t **link = &window->ucx->windows;
    while (*link != NULL && *link != window) {
        link = &(*link)->next;
    }
    if (*link == window) {
        *link = window->next;
    }
    for (heft__ucx_peer_t *peer = window->ucx->peers; peer != NULL; peer = peer->next) {
        if (peer->ops == &session_ops && ((session_t *)peer)->window == window) {
            ((session_t *)peer)->window = NULL;
        }
    }
}

heft_status_t heft__ucx_window_create_over(heft__ucx_t *ucx, const heft__window_params_t *params,
                                           uint8_t *ptr, int64_t page_bytes,
                                           heft__window_t **window_out, heft_error_t *err)
{
    heft__ucx_window_t *window = heft__calloc(1, sizeof *window);
    if (window == NULL) {
        return heft__error_nomem(err, sizeof *window);
    }
    *window = (heft__ucx_window_t){
        .base = { .ops = &heft__ucx_ops, .bytes = params->bytes, .memory = params->memory },
        .ucx = ucx,
        .on_change = params->on_change,
        .on_change_arg = params->on_change_arg,
        .segment = { .fd = -1 },
        .is_closed = true,
        .endpoint = { .bytes = params->bytes,
                      .segment_bytes = ucx->segment_bytes,
                      .memory = params->memory,
                      .pid = (int32_t)getpid(),
                      .host = ucx->host,
                      .worker_bytes = ucx->address_bytes },
    };
    memcpy(window->endpoint.incarnation, params->incarnation, sizeof window->endpoint.incarnation);
    memcpy(window->endpoint.worker, ucx->address, ucx->address_bytes);
    heft_status_t status = heft__ucx_window_adopt(&window->base, ptr, page_bytes, err);
    if (status != HEFT_OK) {
        heft__ucx_call(ucx, unregister, window);
        heft__free(window);
        return status;
    }
    heft__ucx_call(ucx, join_list, window);
    *window_out = &window->base;
    return HEFT_OK;
}

static heft_status_t window_create(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err)
{
    heft__segment_t segment = { .fd = -1 };
    heft__window_t *window = NULL;
    heft_status_t status = heft__segment_create(params->bytes, &segment, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__ucx_window_create_over((heft__ucx_t *)transport, params, segment.ptr,
                                          segment.page_bytes, &window, err);
    if (status != HEFT_OK) {
        heft__segment_fini(&segment);
        return status;
    }
    ((heft__ucx_window_t *)window)->segment = segment;
    *window_out = window;
    return HEFT_OK;
}

static void window_destroy(heft__window_t *base)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    const bool is_quiet = heft__ucx_window_await_quiet(base, 0);
    if (base->ptr != NULL) {
        heft__ucx_window_retire(base);
    }
    heft__ucx_call(window->ucx, leave_list, window);
    if (window->segment.ptr != NULL && is_quiet) {
        heft__segment_fini(&window->segment);
    } else if (window->segment.ptr != NULL) {
        heft__ucx_window_strand(base, &window->segment);
    }
    heft__chunk_rx_destroy(window->rx);
    heft__free(window);
}

static void window_encode(const heft__window_t *base, heft__text_t *text)
{
    heft__ucx_endpoint_encode(&((const heft__ucx_window_t *)base)->endpoint, text);
}

typedef struct arm_call {
    heft__ucx_window_t *window;
    heft__token_t token;
} arm_call_t;

static void run_arm(void *arg)
{
    const arm_call_t *call = arg;
    heft__ucx_window_t *window = call->window;
    window->is_armed = true;
    window->token = call->token;
    if (window->rx != NULL) {
        heft__chunk_rx_arm(window->rx, call->token);
    }
    const bool had_changed = window->has_changed;
    const heft__window_state_t counts = { .n_attached = window->counts.n_attached,
                                          .n_writing = window->counts.n_writing };
    note_change(window, &counts);
    window->has_changed = had_changed; /* the caller knows */
}

static void window_arm(heft__window_t *base, heft__token_t token)
{
    arm_call_t call = { .window = (heft__ucx_window_t *)base, .token = token };
    heft__ucx_call(call.window->ucx, run_arm, &call);
}

typedef struct expect_call {
    heft__ucx_window_t *window;
    heft__chunk_rx_t *rx;
} expect_call_t;

static void run_expect(void *arg)
{
    expect_call_t *call = arg;
    heft__chunk_rx_t *old = call->window->rx;
    call->window->rx = call->rx;
    call->rx = old;
}

static heft_status_t window_expect(heft__window_t *base, const heft__expect_t *expect,
                                   heft_error_t *err)
{
    expect_call_t call = { .window = (heft__ucx_window_t *)base };
    heft_status_t status = heft__chunk_rx_create(expect, base->bytes, &call.rx, err);
    if (status == HEFT_OK) {
        heft__ucx_call(call.window->ucx, run_expect, &call);
        heft__chunk_rx_destroy(call.rx);
    }
    return status;
}

typedef struct count_call {
    const heft__ucx_window_t *window;
    uint32_t first;
    uint32_t n;
    uint64_t *chunks;
} count_call_t;

static void run_count(void *arg)
{
    const count_call_t *call = arg;
    for (uint32_t i = 0; i < call->n; i++) {
        call->chunks[i] = call->window->rx != NULL
                              ? heft__chunk_rx_count_arrived(call->window->rx, call->first + i)
                              : 0;
    }
}

static void window_count_arrived(heft__window_t *base, uint32_t first, uint32_t n,
                                 uint64_t *chunks_out)
{
    count_call_t call = {
        .window = (heft__ucx_window_t *)base, .first = first, .n = n, .chunks = chunks_out
    };
    heft__ucx_call(call.window->ucx, run_count, &call);
}

static void window_query(heft__window_t *base, heft__window_state_t *state_out)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    (void)pthread_mutex_lock(&window->ucx->lock);
    *state_out = window->counts;
    (void)pthread_mutex_unlock(&window->ucx->lock);
}

static void run_cancel(void *arg)
{
    heft__ucx_window_t *window = arg;
    window->is_armed = false;
    for (heft__ucx_peer_t *peer = window->ucx->peers; peer != NULL; peer = peer->next) {
        session_t *session = (session_t *)peer;
        if (peer->ops == &session_ops && session->window == window && session->is_writing) {
            heft__ucx_send(peer, HEFT__UCX_CANCEL, HEFT_OK, window->token.epoch, window->token.seq,
                           NULL);
        }
    }
}

void heft__ucx_window_cancel(heft__window_t *base)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    heft__ucx_call(window->ucx, run_cancel, window);
}

bool heft__ucx_window_await_quiet(heft__window_t *base, int64_t deadline_mono_ns)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    (void)pthread_mutex_lock(&window->ucx->lock);
    while (window->counts.n_writing > 0 && !window->was_dirty &&
           heft__ucx_wait_locked(window->ucx, deadline_mono_ns)) {
    }
    const bool is_quiet = window->counts.n_writing == 0 && !window->was_dirty;
    (void)pthread_mutex_unlock(&window->ucx->lock);
    return is_quiet;
}

static void run_share(void *arg)
{
    ((heft__ucx_window_t *)arg)->is_shared = true;
}

void heft__ucx_window_share(heft__window_t *base)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    heft__ucx_call(window->ucx, run_share, window);
}

static heft_status_t window_fence(heft__window_t *base, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err)
{
    heft__ucx_window_t *window = (heft__ucx_window_t *)base;
    heft__ucx_window_cancel(base);
    if (heft__ucx_window_await_quiet(base, deadline_mono_ns) && base->ptr != NULL) {
        *replaced_out = false;
        return HEFT_OK;
    }
    if (base->ptr != NULL) {
        heft__ucx_window_retire(base);
    }
    if (window->segment.ptr != NULL) {
        heft__ucx_window_strand(base, &window->segment);
    }
    heft_status_t status = heft__segment_create(base->bytes, &window->segment, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__ucx_window_adopt(base, window->segment.ptr, window->segment.page_bytes, err);
    if (status != HEFT_OK) {
        heft__segment_fini(&window->segment);
        return HEFT_ERR_NOSPACE;
    }
    *replaced_out = true;
    return HEFT_OK;
}

const heft__transport_ops_t heft__ucx_ops = {
    .size = sizeof(heft__transport_ops_t),
    .name = "ucx",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .window_encode = window_encode,
    .window_arm = window_arm,
    .window_query = window_query,
    .window_fence = window_fence,
    .attach = heft__ucx_attach,
    .close = heft__ucx_close,
    .begin = heft__ucx_begin,
    .check = heft__ucx_check,
    .end = heft__ucx_end,
    .put = heft__ucx_put,
    .flush = heft__ucx_flush,
    .window_expect = window_expect,
    .send = heft__ucx_send_chunk,
    .post = heft__ucx_post,
    .reap = heft__ucx_reap,
    .describe = heft__ucx_describe,
    .window_count_arrived = window_count_arrived,
};
