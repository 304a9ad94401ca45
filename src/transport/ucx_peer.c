/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the ucx transport: frames out and in, requests under way, silence, loss and the
 * way to the end. Everything here runs on the engine's thread.
 *
 * A connection ends in one way only: ucp_ep_close_nbx by force, which completes every request that
 * is under way, and then on_closed. So whoever owns memory that requests read or write may give it
 * up after on_closed, and not before.
 */
#include "transport/ucx_peer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int64_t ping_ns = 1000000000;
static const int64_t leave_ns = 1000000000; /* for the goodbye to leave */
enum { MAX_HELLOS = 64, TEXT_BYTES = 200 };

/* A frame while UCX has it. */
struct heft__ucx_buf {
    heft__ucx_buf_t *next;
    heft__ucx_peer_t *peer;
    uint8_t bytes[HEFT__UCX_FRAME_BYTES];
    char text[TEXT_BYTES];
};

/* One that has come in, to be answered once UCX has returned: connections are not made in its
 * callbacks. */
struct heft__ucx_hello {
    heft__ucx_hello_t *next;
    heft__ucx_frame_t frame;
    uint8_t address[HEFT__UCX_ADDRESS_MAX];
};

/* ---- requests ---- */

static void note_work(heft__ucx_t *ucx)
{
    atomic_store_explicit(&ucx->has_work, true, memory_order_relaxed); /* the thread's own note */
}

void heft__ucx_peer_fail(heft__ucx_peer_t *peer, const char *why)
{
    if (!peer->is_failed && peer->stage == HEFT__UCX_OPEN) {
        peer->is_failed = true;
        (void)snprintf(peer->why, sizeof peer->why, "%s", why);
    }
    note_work(peer->ucx);
}

bool heft__ucx_is_under_way(heft__ucx_peer_t *peer, ucs_status_ptr_t request,
                            ucs_status_t *status_out)
{
    if (request != NULL && !UCS_PTR_IS_ERR(request)) {
        peer->n_requests++;
        return true;
    }
    *status_out = request == NULL ? UCS_OK : UCS_PTR_STATUS(request);
    if (*status_out != UCS_OK) {
        heft__ucx_peer_fail(peer, peer->ucx->api->ucs_status_string(*status_out));
    }
    return false;
}

/* No sign of life: what goes into a buffer or a queue is complete for UCX. */
void heft__ucx_completed(heft__ucx_peer_t *peer, void *request, ucs_status_t status)
{
    peer->n_requests--;
    peer->ucx->api->ucp_request_free(request);
    if (status != UCS_OK) {
        heft__ucx_peer_fail(peer, peer->ucx->api->ucs_status_string(status));
    }
    note_work(peer->ucx);
}

/* ---- frames out ---- */

static heft__ucx_buf_t *take_buf(heft__ucx_t *ucx)
{
    heft__ucx_buf_t *buf = ucx->free_bufs;
    if (buf == NULL) {
        return heft__calloc(1, sizeof *buf);
    }
    ucx->free_bufs = buf->next;
    return buf;
}

static void give_buf(heft__ucx_buf_t *buf)
{
    heft__ucx_t *ucx = buf->peer->ucx;
    buf->next = ucx->free_bufs;
    ucx->free_bufs = buf;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    heft__ucx_buf_t *buf = arg;
    heft__ucx_completed(buf->peer, request, status);
    give_buf(buf);
}

void heft__ucx_address_frame(const heft__ucx_peer_t *peer, heft__ucx_frame_t *frame)
{
    frame->pid = (uint32_t)getpid();
    frame->peer = peer->their;
    memcpy(frame->from, peer->from, sizeof frame->from);
    memcpy(frame->to, peer->to, sizeof frame->to);
}

static void send_frame(heft__ucx_peer_t *peer, const heft__ucx_frame_t *frame, const char *text,
                       const void *data, size_t n)
{
    if (peer->ep == NULL || peer->is_failed || peer->stage > HEFT__UCX_LEAVING) {
        return;
    }
    heft__ucx_buf_t *buf = take_buf(peer->ucx);
    if (buf == NULL) {
        heft__ucx_peer_fail(peer, "out of memory for a frame");
        return;
    }
    buf->peer = peer;
    heft__ucx_frame_encode(frame, buf->bytes);
    if (text != NULL) {
        (void)snprintf(buf->text, sizeof buf->text, "%s", text);
        data = buf->text;
        n = strlen(buf->text);
    }
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA |
                                                        UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_AM_SEND_FLAG_EAGER,
                                        .cb.send = on_sent,
                                        .user_data = buf };
    ucs_status_t status;
    if (!heft__ucx_is_under_way(peer,
                                peer->ucx->api->ucp_am_send_nbx(peer->ep, HEFT__UCX_AM_ID,
                                                                buf->bytes, sizeof buf->bytes, data,
                                                                n, &param),
                                &status)) {
        give_buf(buf);
    }
}

void heft__ucx_send(heft__ucx_peer_t *peer, heft__ucx_kind_t kind, heft_status_t status, uint64_t a,
                    uint64_t b, const char *text)
{
    heft__ucx_frame_t frame = { .kind = kind, .status = status, .a = a, .b = b };
    heft__ucx_address_frame(peer, &frame);
    send_frame(peer, &frame, text, NULL, 0);
}

void heft__ucx_send_hello(heft__ucx_peer_t *peer, uint64_t window, int64_t bytes)
{
    heft__ucx_frame_t frame = { .kind = HEFT__UCX_HELLO, .a = (uint64_t)bytes, .b = peer->id };
    heft__ucx_address_frame(peer, &frame);
    frame.peer = window;
    send_frame(peer, &frame, NULL, peer->ucx->address, peer->ucx->address_bytes);
}

/* ---- frames in ---- */

static heft__ucx_peer_t *find_peer(const heft__ucx_t *ucx, const heft__ucx_frame_t *frame)
{
    for (heft__ucx_peer_t *peer = ucx->peers; peer != NULL; peer = peer->next) {
        if (peer->id == frame->peer) {
            const bool is_from = memcmp(peer->to, frame->from, sizeof frame->from) == 0;
            const bool is_to = memcmp(peer->from, frame->to, sizeof frame->to) == 0;
            return is_from && is_to ? peer : NULL;
        }
    }
    return NULL;
}

static void keep_hello(heft__ucx_t *ucx, const heft__ucx_frame_t *frame, const void *data, size_t n)
{
    if (n == 0 || n > HEFT__UCX_ADDRESS_MAX || ucx->n_hellos == MAX_HELLOS) {
        heft__log(HEFT_LOG_WARN, "ucx", "a sender with an address of %zu bytes is refused", n);
        return;
    }
    heft__ucx_hello_t *hello = heft__calloc(1, sizeof *hello);
    if (hello != NULL) { /* else it finds that nobody answers */
        hello->frame = *frame;
        memcpy(hello->address, data, n);
        hello->next = ucx->hellos;
        ucx->hellos = hello;
        ucx->n_hellos++;
        note_work(ucx);
    }
}

static ucs_status_t on_frame_of(heft__ucx_peer_t *peer, const heft__ucx_frame_t *frame,
                                const uint8_t *header, void *data, size_t n, bool is_rendezvous)
{
    peer->heard_mono_ns = heft__clock_mono_ns();
    switch ((int)frame->kind) {
    case HEFT__UCX_PING:
        heft__ucx_send(peer, HEFT__UCX_PONG, HEFT_OK, 0, 0, NULL);
        return UCS_OK;
    case HEFT__UCX_PONG:
        return UCS_OK;
    case HEFT__UCX_BYE:
        heft__ucx_peer_fail(peer, "it has closed the connection");
        return UCS_OK;
    default:
        return peer->ops->on_frame(peer, frame, header + HEFT__UCX_FRAME_BYTES, data, n,
                                   is_rendezvous);
    }
}

ucs_status_t heft__ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data,
                                  size_t n, const ucp_am_recv_param_t *param)
{
    heft__ucx_t *ucx = arg;
    heft__ucx_frame_t frame;
    heft_error_t why = HEFT_ERROR_INIT;
    const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (heft__ucx_frame_decode(header, header_bytes, &frame, &why) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "ucx", "a message is dropped: %s", why.message);
        return UCS_OK;
    }
    if (is_rendezvous && frame.kind != HEFT__UCX_CHUNK && frame.kind != HEFT__UCX_DATA) {
        return UCS_OK;
    }
    if (frame.kind == HEFT__UCX_HELLO) {
        keep_hello(ucx, &frame, data, n);
        return UCS_OK;
    }
    heft__ucx_peer_t *peer = find_peer(ucx, &frame);
    if (peer == NULL || peer->is_failed || peer->stage != HEFT__UCX_OPEN) {
        heft__log(HEFT_LOG_DEBUG, "ucx", "a late frame %d of process %u", (int)frame.kind,
                  frame.pid);
        return UCS_OK;
    }
    return on_frame_of(peer, &frame, header, data, n, is_rendezvous);
}

/* ---- open and close ---- */

static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    heft__ucx_peer_t *peer = arg;
    (void)ep;
    heft__ucx_peer_fail(peer, peer->ucx->api->ucs_status_string(status));
}

heft_status_t heft__ucx_peer_open(heft__ucx_t *ucx, heft__ucx_peer_t *peer, const uint8_t *address,
                                  heft_error_t *err)
{
    const ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                   UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                   UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                     .address = (const ucp_address_t *)address,
                                     .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                     .err_handler = { .cb = on_ep_error, .arg = peer } };
    const ucs_status_t status = ucx->api->ucp_ep_create(ucx->worker, &params, &peer->ep);
    if (status != UCS_OK) {
        peer->ep = NULL;
        return heft__error_set(err, HEFT_ERR_PEER, "ucx: no way to the peer: %s",
                               ucx->api->ucs_status_string(status));
    }
    peer->ucx = ucx;
    peer->id = ++ucx->last_id;
    peer->patience = peer->patience > 0 ? peer->patience : 1;
    peer->heard_mono_ns = heft__clock_mono_ns();
    peer->next = ucx->peers;
    ucx->peers = peer;
    return HEFT_OK;
}

void heft__ucx_peer_watch(heft__ucx_peer_t *peer, bool is_watched)
{
    peer->is_watched = is_watched;
    peer->ucx->is_busy = true;
    peer->heard_mono_ns = heft__clock_mono_ns();
}

static void on_ep_closed(void *request, ucs_status_t status, void *arg)
{
    heft__ucx_peer_t *peer = arg;
    (void)status; /* closed by force: there is nothing that could have failed */
    peer->n_requests--;
    peer->ucx->api->ucp_request_free(request);
    note_work(peer->ucx);
}

void heft__ucx_peer_close(heft__ucx_peer_t *peer)
{
    if (peer->stage >= HEFT__UCX_CLOSING) {
        return;
    }
    peer->stage = HEFT__UCX_CLOSING;
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA |
                                                        UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_EP_CLOSE_FLAG_FORCE,
                                        .cb.send = on_ep_closed,
                                        .user_data = peer };
    const ucs_status_ptr_t request = peer->ucx->api->ucp_ep_close_nbx(peer->ep, &param);
    peer->ep = NULL;
    peer->n_requests += request != NULL && !UCS_PTR_IS_ERR(request);
    note_work(peer->ucx);
}

static void on_left(void *request, ucs_status_t status, void *arg)
{
    heft__ucx_completed(arg, request, status);
}

void heft__ucx_peer_leave(heft__ucx_peer_t *peer)
{
    if (peer->stage != HEFT__UCX_OPEN) {
        return;
    }
    if (peer->is_failed || peer->their == 0) {
        heft__ucx_peer_close(peer);
        return;
    }
    heft__ucx_send(peer, HEFT__UCX_BYE, HEFT_OK, 0, 0, NULL);
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA,
                                        .cb.send = on_left,
                                        .user_data = peer };
    ucs_status_t status;
    (void)heft__ucx_is_under_way(peer, peer->ucx->api->ucp_ep_flush_nbx(peer->ep, &param), &status);
    peer->stage = HEFT__UCX_LEAVING;
    peer->leave_by_mono_ns = heft__clock_mono_ns() + leave_ns;
    peer->ucx->is_busy = true;
    note_work(peer->ucx);
}

/* ---- between two looks at the network ---- */

static void serve_peer(heft__ucx_peer_t *peer)
{
    if (peer->is_failed && !peer->is_told) {
        peer->is_told = true;
        peer->ops->on_lost(peer, peer->why);
        heft__ucx_peer_close(peer);
    }
    if (peer->stage == HEFT__UCX_OPEN && peer->ops->attend != NULL) {
        peer->ops->attend(peer);
    }
    if (peer->stage == HEFT__UCX_LEAVING &&
        (peer->n_requests == 0 || heft__clock_mono_ns() >= peer->leave_by_mono_ns)) {
        heft__ucx_peer_close(peer);
    }
    if (peer->stage == HEFT__UCX_CLOSING && peer->n_requests == 0) {
        peer->stage = HEFT__UCX_CLOSED;
        peer->ucx->has_closed = true;
    }
}

static void serve_hellos(heft__ucx_t *ucx)
{
    while (ucx->hellos != NULL) {
        heft__ucx_hello_t *hello = ucx->hellos;
        ucx->hellos = hello->next;
        ucx->n_hellos--;
        heft__ucx_window_hello(ucx, &hello->frame, hello->address);
        heft__free(hello);
    }
}

void heft__ucx_peers_serve(heft__ucx_t *ucx)
{
    serve_hellos(ucx);
    for (heft__ucx_peer_t *peer = ucx->peers; peer != NULL; peer = peer->next) {
        serve_peer(peer);
    }
    if (!ucx->has_closed) {
        return;
    }
    ucx->has_closed = false;
    for (heft__ucx_peer_t **link = &ucx->peers; *link != NULL;) {
        heft__ucx_peer_t *peer = *link;
        if (peer->stage == HEFT__UCX_CLOSED) {
            *link = peer->next;
            peer->ops->on_closed(peer);
        } else {
            link = &peer->next;
        }
    }
}

static void check_silence(heft__ucx_peer_t *peer, int64_t now, bool was_away)
{
    const int64_t limit_ns = (int64_t)peer->ucx->opts.silence_ms * peer->patience * 1000000;
    char why[96];
    if (was_away) { /* this process has not run itself: what was sent meanwhile is still to come */
        peer->heard_mono_ns = now;
    }
    if (now - peer->heard_mono_ns > limit_ns) {
        (void)snprintf(why, sizeof why, "silent for %lld ms: stopped, or the network is down",
                       (long long)((now - peer->heard_mono_ns) / 1000000));
        heft__ucx_peer_fail(peer, why);
    } else if (now - peer->pinged_mono_ns >= ping_ns) {
        peer->pinged_mono_ns = now;
        heft__ucx_send(peer, HEFT__UCX_PING, HEFT_OK, 0, 0, NULL);
    }
}

bool heft__ucx_peers_tick(heft__ucx_t *ucx, int64_t now, bool was_away)
{
    bool is_busy = false;
    for (heft__ucx_peer_t *peer = ucx->peers; peer != NULL; peer = peer->next) {
        if (peer->is_watched && peer->stage == HEFT__UCX_OPEN && !peer->is_failed) {
            check_silence(peer, now, was_away);
        }
        is_busy = is_busy || peer->is_watched || peer->stage != HEFT__UCX_OPEN;
    }
    if (is_busy) {
        note_work(ucx);
    }
    return is_busy;
}

void heft__ucx_peers_fini(heft__ucx_t *ucx)
{
    while (ucx->free_bufs != NULL) {
        heft__ucx_buf_t *buf = ucx->free_bufs;
        ucx->free_bufs = buf->next;
        heft__free(buf);
    }
    while (ucx->hellos != NULL) {
        heft__ucx_hello_t *hello = ucx->hellos;
        ucx->hellos = hello->next;
        heft__free(hello);
    }
}
