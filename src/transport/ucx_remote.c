/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sender's half of ucx. Callers leave jobs (puts and chunks) in a table and wait under the
 * engine's lock; the engine's thread carries them out:
 *
 *   chunk  queued, judged (sent, the verdict awaited), done, free
 *   put    queued, judged, free
 *
 * Where the network has one-sided puts of its own, the bytes go ahead of the header: queued, moving
 * (put), settling (flushed: it is in place), judged; a put is over with the flush. Where UCX only
 * imitates puts (tcp, shared memory) they are not used: in 1.13 the imitation aborts the process
 * that receives when the one that sends dies. There the header goes ahead, and the receiver says
 * where the bytes land; several lanes can share them. docs/design/008-ucx.md.
 *
 * Only the thread touches what UCX knows; everything else in the remote is guarded by the lock.
 * A job is given up only when no request of UCX names its data any more.
 */
#include "transport/ucx_peer.h"

#include <stdio.h>
#include <string.h>

enum { MAX_JOBS = 32, TEXT_BYTES = 208 };
static const int64_t put_bytes = 8 << 20; /* of one job */
static const int64_t look_ns = 50000000;
static const int64_t close_ns = 10000000000; /* UCX closes by force without waiting for a peer */

typedef enum job_state {
    JOB_FREE = 0,
    JOB_QUEUED,
    JOB_MOVING,
    JOB_SETTLING,
    JOB_JUDGED,
    JOB_DONE
} job_state_t;

typedef struct remote remote_t;

typedef struct job {
    remote_t *remote;
    /* Set by the caller before the job is queued. */
    bool is_chunk;
    bool has_place; /* the chunk's offset is where its bytes belong: they may go there by themselves
                     */
    uint32_t tag;   /* the caller's */
    int64_t offset;
    const void *data;
    int64_t bytes;
    uint8_t header[HEFT__UCX_HEADER_BYTES]; /* frame and chunk header */
    /* The thread's. */
    uint32_t n_requests;
    bool has_verdict; /* it ends as soon as n_requests is 0 */
    /* Guarded by the lock. */
    job_state_t state;
    heft_status_t verdict;
    char text[TEXT_BYTES];
} job_t;

struct remote {
    heft__remote_t base;
    heft__ucx_t *ucx;
    heft__ucx_endpoint_t endpoint;
    heft__ucx_peer_t peer;    /* thread */
    ucp_rkey_h rkey;          /* thread */
    bool has_puts;            /* the network's own; thread */
    int64_t max_eager;        /* thread */
    int64_t deadline_mono_ns; /* of the round, from begin */
    char description[80];
    /* Guarded by the lock. */
    heft_status_t answer; /* to what was said last; HEFT_IN_PROGRESS: none yet */
    char text[TEXT_BYTES];
    heft__token_t token;
    bool is_writing;
    bool is_canceled;
    bool is_lost;
    bool is_closed;
    bool is_stuck; /* something did not end before its deadline: only a new connection helps */
    bool has_put;  /* since the last flush */
    heft_status_t flushed;
    job_t jobs[MAX_JOBS];
};

static remote_t *remote_of(heft__ucx_peer_t *peer)
{
    return (remote_t *)(void *)((char *)peer - offsetof(remote_t, peer));
}

/* ---- what callers see; lock held ---- */

static heft_status_t lost_locked(const remote_t *remote, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_PEER, "ucx: process %d, the receiver, is gone: %s",
                           (int)remote->endpoint.pid, remote->text);
}

static void set_text(remote_t *remote, const char *text)
{
    (void)snprintf(remote->text, sizeof remote->text, "%s", text);
}

static bool is_busy(const job_t *job)
{
    return job->state != JOB_FREE && job->state != JOB_DONE;
}

static uint32_t count_busy_locked(const remote_t *remote)
{
    uint32_t n = 0;
    for (int i = 0; i < MAX_JOBS; i++) {
        n += is_busy(&remote->jobs[i]);
    }
    return n;
}

/* ---- the thread: jobs ---- */

static void finish_job(job_t *job, heft_status_t verdict, const char *text)
{
    remote_t *remote = job->remote;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    job->verdict = verdict;
    if (text != job->text) {
        (void)snprintf(job->text, sizeof job->text, "%s", text);
    }
    if (!job->is_chunk && verdict != HEFT_OK && remote->flushed == HEFT_OK) {
        remote->flushed = verdict;
    }
    job->state = job->is_chunk ? JOB_DONE : JOB_FREE;
    heft__ucx_broadcast_locked(remote->ucx);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
}

static void set_state(job_t *job, job_state_t state)
{
    (void)pthread_mutex_lock(&job->remote->ucx->lock);
    job->state = state;
    (void)pthread_mutex_unlock(&job->remote->ucx->lock);
}

static job_state_t state_of(job_t *job)
{
    (void)pthread_mutex_lock(&job->remote->ucx->lock);
    const job_state_t state = job->state;
    (void)pthread_mutex_unlock(&job->remote->ucx->lock);
    return state;
}

static void go_on(job_t *job, ucs_status_t status);

static void on_request(void *request, ucs_status_t status, void *arg)
{
    job_t *job = arg;
    job->n_requests--;
    heft__ucx_completed(&job->remote->peer, request, status);
    go_on(job, status);
}

static ucp_request_param_t param_of(job_t *job)
{
    return (ucp_request_param_t){ .op_attr_mask =
                                      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                  .cb.send = on_request,
                                  .user_data = job };
}

/* An operation was begun: it goes on in on_request, or here. */
static void follow(job_t *job, ucs_status_ptr_t request)
{
    ucs_status_t status;
    if (heft__ucx_is_under_way(&job->remote->peer, request, &status)) {
        job->n_requests++;
    } else {
        go_on(job, status);
    }
}

static void start_put(job_t *job)
{
    remote_t *remote = job->remote;
    const ucp_request_param_t param = param_of(job);
    set_state(job, JOB_MOVING);
    follow(job, remote->ucx->api->ucp_put_nbx(remote->peer.ep, job->data, (size_t)job->bytes,
                                              remote->endpoint.base + (uint64_t)job->offset,
                                              remote->rkey, &param));
}

static void start_settling(job_t *job)
{
    const ucp_request_param_t param = param_of(job);
    set_state(job, JOB_SETTLING);
    follow(job, job->remote->ucx->api->ucp_ep_flush_nbx(job->remote->peer.ep, &param));
}

/* The chunk's header, with the bytes or after them. From here on the verdict is awaited. */
static void start_judgement(job_t *job, heft__ucx_kind_t kind, uint32_t flags)
{
    remote_t *remote = job->remote;
    heft__ucx_frame_t frame = { .kind = kind,
                                .a = (uint64_t)(job - remote->jobs),
                                .b = kind == HEFT__UCX_DATA ? (uint64_t)job->offset : 0 };
    ucp_request_param_t param = param_of(job);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    heft__ucx_address_frame(&remote->peer, &frame);
    heft__ucx_frame_encode(&frame, job->header);
    set_state(job, JOB_JUDGED);
    const bool has_data = kind != HEFT__UCX_PLACED;
    follow(job, remote->ucx->api->ucp_am_send_nbx(
                    remote->peer.ep, HEFT__UCX_AM_ID, job->header,
                    kind == HEFT__UCX_DATA ? HEFT__UCX_FRAME_BYTES : HEFT__UCX_HEADER_BYTES,
                    has_data ? job->data : NULL, has_data ? (size_t)job->bytes : 0, &param));
}

/* What comes after an operation that has ended. */
static void go_on(job_t *job, ucs_status_t status)
{
    heft__ucx_peer_t *peer = &job->remote->peer;
    const job_state_t state = state_of(job);
    if (status != UCS_OK || peer->is_failed || peer->stage != HEFT__UCX_OPEN) {
        if (job->n_requests == 0 && state != JOB_FREE && state != JOB_DONE) {
            finish_job(job, HEFT_ERR_PEER, peer->why);
        }
        return;
    }
    if (state == JOB_MOVING && job->is_chunk) {
        start_settling(job);
    } else if (state == JOB_MOVING) {
        finish_job(job, HEFT_OK, "");
    } else if (state == JOB_SETTLING) {
        start_judgement(job, HEFT__UCX_PLACED, UCP_AM_SEND_FLAG_EAGER);
    } else if (state == JOB_JUDGED && job->has_verdict && job->n_requests == 0) {
        job->has_verdict = false; /* the verdict was here before UCX was done with the bytes */
        finish_job(job, job->verdict, job->text);
    }
}

static void start_job(job_t *job)
{
    const bool is_small = job->bytes <= job->remote->max_eager;
    if (job->remote->has_puts && (!job->is_chunk || (job->has_place && !is_small))) {
        start_put(job);
    } else {
        start_judgement(job, job->is_chunk ? HEFT__UCX_CHUNK : HEFT__UCX_DATA,
                        is_small ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
    }
}

static void attend(heft__ucx_peer_t *peer)
{
    remote_t *remote = remote_of(peer);
    for (int i = 0; i < MAX_JOBS; i++) {
        job_t *job = &remote->jobs[i];
        if (state_of(job) == JOB_QUEUED) {
            start_job(job);
        }
    }
}

/* ---- the thread: frames ---- */

static void answer(remote_t *remote, heft_status_t status, const char *text)
{
    (void)pthread_mutex_lock(&remote->ucx->lock);
    if (remote->answer == HEFT_IN_PROGRESS) {
        remote->answer = status;
        if (status != HEFT_OK) {
            set_text(remote, text);
        }
        heft__ucx_broadcast_locked(remote->ucx);
    }
    (void)pthread_mutex_unlock(&remote->ucx->lock);
}

/* UCX may choose a network between processes that could share memory, and does so in silence. */
static heft_status_t check_lanes(const remote_t *remote, char *text, size_t text_bytes)
{
    const heft__host_identity_t *here = &remote->ucx->host;
    const int64_t theirs = remote->endpoint.segment_bytes;
    if (strstr(remote->peer.lanes, "tcp") == NULL) {
        return HEFT_OK;
    }
    if (theirs > 0 && remote->ucx->segment_bytes > theirs) {
        (void)snprintf(text, text_bytes,
                       "it reads %lld bytes of tcp at once, and here %lld are sent: give both ends "
                       "the same ucx-lanes, and the same UCX_TCP_RX_SEG_SIZE if any",
                       (long long)theirs, (long long)remote->ucx->segment_bytes);
        return HEFT_ERR_UNSUPPORTED;
    }
    if (remote->ucx->opts.allow_tcp || !heft__host_identity_is_same(here, &remote->endpoint.host)) {
        return HEFT_OK;
    }
    (void)snprintf(text, text_bytes, /* what helps comes first: a round's error is cut */
                   "on one host UCX chose %s: use shm, or set ucx-allow-tcp (they share "
                   "/dev/shm %llu, IPC %llu, network %llu)",
                   remote->peer.lanes, (unsigned long long)here->shm, (unsigned long long)here->ipc,
                   (unsigned long long)here->net);
    return HEFT_ERR_UNSUPPORTED;
}

/* InfiniBand and RoCE, by their reliable transports; with several lanes the load is to be shared.
 */
static bool has_own_puts(const remote_t *remote)
{
    const heft__ucx_opts_t *opts = &remote->ucx->opts;
    const char *lanes = remote->peer.lanes;
    return opts->always_put ||
           (opts->max_lanes <= 1 && (strstr(lanes, "rc_") != NULL || strstr(lanes, "dc_") != NULL));
}

static void on_welcome(remote_t *remote, const heft__ucx_frame_t *frame)
{
    heft__ucx_peer_t *peer = &remote->peer;
    char text[TEXT_BYTES] = "";
    peer->their = frame->b;
    heft__ucx_lanes(remote->ucx->api, peer->ep, peer->lanes, sizeof peer->lanes);
    remote->has_puts = has_own_puts(remote);
    remote->max_eager = heft__ucx_max_eager(remote->ucx->segment_bytes, peer->lanes);
    heft_status_t status = check_lanes(remote, text, sizeof text);
    if (status == HEFT_OK && frame->a != (uint64_t)remote->endpoint.bytes) {
        status = HEFT_ERR_STALE;
        (void)snprintf(text, sizeof text, "its staging has %llu bytes, its endpoint says %lld",
                       (unsigned long long)frame->a, (long long)remote->endpoint.bytes);
    }
    answer(remote, status, text);
}

static void on_verdict(remote_t *remote, const heft__ucx_frame_t *frame, const char *text)
{
    if (frame->a >= MAX_JOBS) {
        heft__ucx_peer_fail(&remote->peer, "it judged a chunk that was not sent");
        return;
    }
    job_t *job = &remote->jobs[frame->a];
    if (state_of(job) != JOB_JUDGED) {
        return;
    }
    if (job->n_requests == 0) {
        finish_job(job, frame->status, text);
        return;
    }
    (void)pthread_mutex_lock(&remote->ucx->lock);
    job->verdict = frame->status;
    (void)snprintf(job->text, sizeof job->text, "%s", text);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    job->has_verdict = true;
}

static void on_cancel(remote_t *remote)
{
    (void)pthread_mutex_lock(&remote->ucx->lock);
    remote->is_canceled = true;
    heft__ucx_broadcast_locked(remote->ucx);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
}

/* Answers name the round they are about; one that crossed a later question is no answer to it. */
static bool is_of_round(remote_t *remote, const heft__ucx_frame_t *frame)
{
    (void)pthread_mutex_lock(&remote->ucx->lock);
    const bool is = frame->a == remote->token.epoch && frame->b == remote->token.seq;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    return is;
}

static ucs_status_t on_frame(heft__ucx_peer_t *peer, const heft__ucx_frame_t *frame,
                             const uint8_t *chunk, void *data, size_t n, bool is_rendezvous)
{
    remote_t *remote = remote_of(peer);
    char text[TEXT_BYTES];
    (void)chunk;
    if (is_rendezvous) {
        return UCS_OK;
    }
    (void)snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1),
                   n > 0 ? (const char *)data : "");
    switch ((int)frame->kind) {
    case HEFT__UCX_WELCOME:
        on_welcome(remote, frame);
        break;
    case HEFT__UCX_REFUSED:
        if (peer->their == 0 || is_of_round(remote, frame)) {
            answer(remote, frame->status, text);
        }
        break;
    case HEFT__UCX_READY:
    case HEFT__UCX_ENDED:
        if (is_of_round(remote, frame)) {
            answer(remote, frame->status, text);
        }
        break;
    case HEFT__UCX_CANCEL:
        if (is_of_round(remote, frame)) {
            on_cancel(remote);
        }
        break;
    case HEFT__UCX_VERDICT:
        on_verdict(remote, frame, text);
        break;
    default:
        heft__ucx_peer_fail(peer, "it sent a frame that a receiver does not send");
        break;
    }
    return UCS_OK;
}

/* Jobs that UCX still has end with their requests. */
static void end_jobs(remote_t *remote)
{
    for (int i = 0; i < MAX_JOBS; i++) {
        job_t *job = &remote->jobs[i];
        const job_state_t state = state_of(job);
        if (job->n_requests == 0 && state != JOB_FREE && state != JOB_DONE) {
            finish_job(job, HEFT_ERR_PEER, remote->peer.why);
        }
    }
}

static void on_lost(heft__ucx_peer_t *peer, const char *why)
{
    remote_t *remote = remote_of(peer);
    (void)pthread_mutex_lock(&remote->ucx->lock);
    remote->is_lost = true;
    set_text(remote, why);
    heft__ucx_broadcast_locked(remote->ucx);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    end_jobs(remote);
}

static void on_closed(heft__ucx_peer_t *peer)
{
    remote_t *remote = remote_of(peer);
    end_jobs(remote);
    if (remote->rkey != NULL) {
        remote->ucx->api->ucp_rkey_destroy(remote->rkey);
        remote->rkey = NULL;
    }
    (void)pthread_mutex_lock(&remote->ucx->lock);
    remote->is_closed = true;
    heft__ucx_broadcast_locked(remote->ucx);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
}

static const heft__ucx_peer_ops_t remote_ops = {
    .on_frame = on_frame, .on_lost = on_lost, .on_closed = on_closed, .attend = attend
};

/* ---- callers: asking and waiting ---- */

/* Wait for the answer to what was said. */
static heft_status_t await_answer_locked(remote_t *remote, const char *what, int64_t deadline,
                                         heft_error_t *err)
{
    const int pid = (int)remote->endpoint.pid;
    while (remote->answer == HEFT_IN_PROGRESS && !remote->is_lost &&
           heft__ucx_wait_locked(remote->ucx, deadline)) {
    }
    const heft_status_t status = remote->answer;
    if (status == HEFT_IN_PROGRESS && remote->is_lost) {
        return lost_locked(remote, err);
    }
    if (status == HEFT_IN_PROGRESS) {
        remote->is_stuck = true;
        return heft__error_set(err, HEFT_ERR_TIMEOUT,
                               "ucx: process %d did not answer %s before the deadline", pid, what);
    }
    return status == HEFT_OK ? HEFT_OK
                             : heft__error_set(err, status, "ucx: process %d refused %s: %s", pid,
                                               what, remote->text);
}

typedef struct say {
    remote_t *remote;
    heft__ucx_kind_t kind;
    heft_status_t status;
    heft__token_t token;
    bool is_watched;
} say_t;

static void run_say(void *arg)
{
    const say_t *say = arg;
    heft__ucx_peer_watch(&say->remote->peer, say->is_watched);
    heft__ucx_send(&say->remote->peer, say->kind, say->status, say->token.epoch, say->token.seq,
                   NULL);
}

static heft_status_t ask(const say_t *say, const char *what, int64_t deadline, heft_error_t *err)
{
    remote_t *remote = say->remote;
    say_t copy = *say;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    remote->answer = HEFT_IN_PROGRESS;
    remote->token = say->token;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    heft__ucx_call(remote->ucx, run_say, &copy);
    (void)pthread_mutex_lock(&remote->ucx->lock);
    heft_status_t status = await_answer_locked(remote, what, deadline, err);
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    return status;
}

/* ---- attach and close ---- */

typedef struct open_call {
    remote_t *remote;
    int64_t bytes;
    heft_status_t status;
    heft_error_t err;
} open_call_t;

static void run_open(void *arg)
{
    open_call_t *call = arg;
    remote_t *remote = call->remote;
    call->status =
        heft__ucx_peer_open(remote->ucx, &remote->peer, remote->endpoint.worker, &call->err);
    if (call->status != HEFT_OK) {
        return;
    }
    const ucs_status_t status =
        remote->ucx->api->ucp_ep_rkey_unpack(remote->peer.ep, remote->endpoint.key, &remote->rkey);
    if (status != UCS_OK) {
        remote->rkey = NULL;
        heft__ucx_peer_fail(&remote->peer, "its remote key cannot be used here");
        return; /* the caller hears of it as of any other loss */
    }
    heft__ucx_send_hello(&remote->peer, remote->endpoint.window, call->bytes);
}

static void run_close(void *arg)
{
    remote_t *remote = arg;
    bool is_idle = true;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    is_idle = count_busy_locked(remote) == 0 && !remote->is_stuck;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (is_idle) {
        heft__ucx_peer_leave(&remote->peer);
    } else {
        heft__ucx_peer_close(&remote->peer);
    }
}

/* End the connection and wait until UCX has let go of everything; false: it has not. */
static bool close_peer(remote_t *remote)
{
    const int64_t until = heft__clock_mono_ns() + close_ns;
    heft__ucx_call(remote->ucx, run_close, remote);
    (void)pthread_mutex_lock(&remote->ucx->lock);
    while (!remote->is_closed && heft__ucx_wait_locked(remote->ucx, until)) {
    }
    const bool is_closed = remote->is_closed;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (!is_closed) {
        heft__log(HEFT_LOG_ERROR, "ucx",
                  "the connection to process %d does not close; what it uses is not given back",
                  (int)remote->endpoint.pid);
    }
    return is_closed;
}

void heft__ucx_close(heft__remote_t *base)
{
    remote_t *remote = (remote_t *)base;
    if (remote->is_closed || close_peer(remote)) {
        heft__free(remote);
    }
}

/* The answer to the hello; the caller's round may be called off meanwhile. */
static heft_status_t await_welcome(remote_t *remote, const heft__attach_params_t *params,
                                   heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    bool is_over = false;
    while (!is_over) {
        const int64_t look = heft__clock_mono_ns() + look_ns;
        (void)pthread_mutex_lock(&remote->ucx->lock);
        while (remote->answer == HEFT_IN_PROGRESS && !remote->is_lost &&
               heft__ucx_wait_locked(remote->ucx, heft__min_i64(look, params->deadline_mono_ns))) {
        }
        is_over = remote->answer != HEFT_IN_PROGRESS || remote->is_lost ||
                  heft__clock_mono_ns() >= params->deadline_mono_ns;
        if (is_over) {
            status = await_answer_locked(remote, "the connection", params->deadline_mono_ns, err);
        }
        (void)pthread_mutex_unlock(&remote->ucx->lock);
        if (!is_over && params->is_called_off != NULL &&
            params->is_called_off(params->is_called_off_arg)) {
            return heft__error_set(err, HEFT_ERR_CANCELED,
                                   "ucx: called off while process %d did not answer",
                                   (int)remote->endpoint.pid);
        }
    }
    return status;
}

static heft_status_t make_remote(heft__ucx_t *ucx, const char *endpoint,
                                 const heft__attach_params_t *params, remote_t **remote_out,
                                 heft_error_t *err)
{
    remote_t *remote = heft__calloc(1, sizeof *remote);
    if (remote == NULL) {
        return heft__error_nomem(err, sizeof *remote);
    }
    heft_status_t status =
        heft__ucx_endpoint_decode(endpoint, strlen(endpoint), &remote->endpoint, err);
    if (status == HEFT_OK && remote->endpoint.bytes < params->bytes) {
        status = heft__error_set(
            err, HEFT_ERR_SHAPE, "ucx: process %d has %lld bytes of staging, %lld needed",
            (int)remote->endpoint.pid, (long long)remote->endpoint.bytes, (long long)params->bytes);
    }
    if (status != HEFT_OK) {
        heft__free(remote);
        return status;
    }
    remote->base = (heft__remote_t){ .ops = &heft__ucx_ops,
                                     .bytes = remote->endpoint.bytes,
                                     .memory = remote->endpoint.memory };
    remote->ucx = ucx;
    remote->answer = HEFT_IN_PROGRESS;
    remote->peer.ops = &remote_ops;
    memcpy(remote->peer.from, params->incarnation, sizeof remote->peer.from);
    memcpy(remote->peer.to, remote->endpoint.incarnation, sizeof remote->peer.to);
    for (int i = 0; i < MAX_JOBS; i++) {
        remote->jobs[i].remote = remote;
    }
    *remote_out = remote;
    return HEFT_OK;
}

heft_status_t heft__ucx_attach(heft__transport_t *transport, const char *endpoint,
                               const heft__attach_params_t *params, heft__remote_t **remote_out,
                               heft_error_t *err)
{
    heft__ucx_t *ucx = (heft__ucx_t *)transport;
    remote_t *remote = NULL;
    heft_status_t status = make_remote(ucx, endpoint, params, &remote, err);
    if (status != HEFT_OK) {
        return status;
    }
    open_call_t call = { .remote = remote, .bytes = params->bytes, .err = HEFT_ERROR_INIT };
    heft__ucx_call(ucx, run_open, &call);
    if (call.status != HEFT_OK) {
        heft__free(remote);
        return heft__error_set(err, call.status, "%s", call.err.message);
    }
    status = await_welcome(remote, params, err);
    if (status != HEFT_OK) {
        heft__ucx_close(&remote->base);
        return status;
    }
    (void)snprintf(remote->description, sizeof remote->description, "ucx %s", remote->peer.lanes);
    heft__log(HEFT_LOG_INFO, "ucx", "to process %d: %lld bytes by %s", (int)remote->endpoint.pid,
              (long long)remote->base.bytes, remote->peer.lanes);
    *remote_out = &remote->base;
    return HEFT_OK;
}

const char *heft__ucx_describe(const heft__remote_t *remote)
{
    return ((const remote_t *)remote)->description;
}

/* ---- rounds ---- */

heft_status_t heft__ucx_begin(heft__remote_t *base, heft__token_t token, int64_t deadline_mono_ns,
                              heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    const bool is_stuck = remote->is_stuck;
    remote->is_canceled = false;
    remote->flushed = HEFT_OK;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (is_stuck) {
        return heft__error_set(err, HEFT_ERR_PEER,
                               "ucx: the connection to process %d is stuck since an earlier round",
                               (int)remote->endpoint.pid);
    }
    const say_t say = {
        .remote = remote, .kind = HEFT__UCX_BEGIN, .token = token, .is_watched = true
    };
    remote->deadline_mono_ns = deadline_mono_ns;
    heft_status_t status = ask(&say, "the round", deadline_mono_ns, err);
    (void)pthread_mutex_lock(&remote->ucx->lock);
    remote->is_writing = status == HEFT_OK;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    return status;
}

heft_status_t heft__ucx_check(heft__remote_t *base, heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    if (remote->is_lost) {
        status = lost_locked(remote, err);
    } else if (remote->is_stuck) {
        status = heft__error_set(err, HEFT_ERR_PEER, "ucx: the connection to process %d is stuck",
                                 (int)remote->endpoint.pid);
    } else if (remote->is_writing && remote->is_canceled) {
        status = heft__error_set(err, HEFT_ERR_CANCELED,
                                 "ucx: process %d, the receiver, ended the round",
                                 (int)remote->endpoint.pid);
    }
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    return status;
}

heft_status_t heft__ucx_end(heft__remote_t *base, heft__token_t token, bool completed,
                            heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    const say_t say = { .remote = remote,
                        .kind = HEFT__UCX_END,
                        .status = completed ? HEFT_OK : HEFT_ERR_CANCELED,
                        .token = token };
    (void)pthread_mutex_lock(&remote->ucx->lock);
    const bool was_writing = remote->is_writing;
    const bool is_stuck = remote->is_stuck && !remote->is_lost;
    remote->is_writing = false;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (is_stuck) {
        return heft__error_set(err, HEFT_ERR_TIMEOUT, "ucx: the connection to process %d is stuck",
                               (int)remote->endpoint.pid);
    }
    if (!was_writing) {
        return heft__ucx_check(base, err);
    }
    const int64_t silence_ns = (int64_t)remote->ucx->opts.silence_ms * 1000000;
    return ask(&say, "the end of the round", heft__clock_mono_ns() + silence_ns, err);
}

/* A free place in the table, before the deadline. */
static heft_status_t take_job_locked(remote_t *remote, int64_t deadline, job_t **job_out,
                                     heft_error_t *err)
{
    for (;;) {
        if (remote->is_lost) {
            return lost_locked(remote, err);
        }
        if (!remote->is_writing || remote->is_stuck) {
            return heft__error_set(err, HEFT_ERR_STALE, "ucx: a put outside of a round");
        }
        for (int i = 0; i < MAX_JOBS; i++) {
            if (remote->jobs[i].state == JOB_FREE) {
                *job_out = &remote->jobs[i];
                return HEFT_OK;
            }
        }
        if (!heft__ucx_wait_locked(remote->ucx, deadline)) {
            return heft__error_set(err, HEFT_ERR_TIMEOUT,
                                   "ucx: %u puts to process %d have not ended before the deadline",
                                   count_busy_locked(remote), (int)remote->endpoint.pid);
        }
    }
}

static heft_status_t queue(remote_t *remote, const job_t *what, const uint8_t *chunk,
                           int64_t deadline, heft_error_t *err)
{
    job_t *job = NULL;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    heft_status_t status = take_job_locked(remote, deadline, &job, err);
    if (status == HEFT_OK) {
        job->is_chunk = what->is_chunk;
        job->has_place = what->has_place;
        job->tag = what->tag;
        job->offset = what->offset;
        job->data = what->data;
        job->bytes = what->bytes;
        if (chunk != NULL) {
            memcpy(job->header + HEFT__UCX_FRAME_BYTES, chunk, HEFT__CHUNK_HEADER_BYTES);
        }
        job->state = JOB_QUEUED;
        remote->has_put = remote->has_put || chunk == NULL;
    }
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (status == HEFT_OK) {
        heft__ucx_wake(remote->ucx);
    }
    return status;
}

heft_status_t heft__ucx_put(heft__remote_t *base, int64_t offset, const void *data, int64_t bytes,
                            heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    for (int64_t at = 0; at < bytes; at += put_bytes) {
        const job_t job = { .offset = offset + at,
                            .data = (const char *)data + at,
                            .bytes = heft__min_i64(put_bytes, bytes - at) };
        heft_status_t status = queue(remote, &job, NULL, remote->deadline_mono_ns, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static heft_status_t queue_chunk(remote_t *remote, bool has_place, uint32_t tag,
                                 const uint8_t *header, const void *data, int64_t bytes,
                                 int64_t deadline_mono_ns, heft_error_t *err)
{
    const int64_t offset = (int64_t)heft__get_le64(header + 40);
    const int64_t room = remote->base.bytes;
    if (offset < 0 || bytes < 0 || bytes > room || (has_place && offset > room - bytes)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "chunk of %lld bytes at %lld is outside a window of %lld bytes",
                               (long long)bytes, (long long)offset, (long long)room);
    }
    const job_t job = { .is_chunk = true,
                        .has_place = has_place,
                        .tag = tag,
                        .offset = offset,
                        .data = data,
                        .bytes = bytes };
    return queue(remote, &job, header, deadline_mono_ns, err);
}

heft_status_t heft__ucx_post(heft__remote_t *base, uint32_t tag, bool has_place,
                             const uint8_t *header, const void *data, int64_t bytes,
                             int64_t deadline_mono_ns, heft_error_t *err)
{
    return queue_chunk((remote_t *)base, has_place, tag, header, data, bytes, deadline_mono_ns,
                       err);
}

static job_t *find_done_locked(remote_t *remote)
{
    for (int i = 0; i < MAX_JOBS; i++) {
        if (remote->jobs[i].state == JOB_DONE) {
            return &remote->jobs[i];
        }
    }
    return NULL;
}

static heft_status_t verdict_of_locked(const remote_t *remote, const job_t *job, heft_error_t *err)
{
    if (job->verdict == HEFT_OK) {
        return HEFT_OK;
    }
    return job->verdict == HEFT_ERR_PEER ? lost_locked(remote, err)
                                         : heft__error_set(err, job->verdict, "ucx: process %d: %s",
                                                           (int)remote->endpoint.pid, job->text);
}

heft_status_t heft__ucx_reap(heft__remote_t *base, uint32_t *tag_out, int64_t deadline_mono_ns,
                             heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    heft_status_t status;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    job_t *job = find_done_locked(remote);
    while (job == NULL && count_busy_locked(remote) > 0 &&
           heft__ucx_wait_locked(remote->ucx, deadline_mono_ns)) {
        job = find_done_locked(remote);
    }
    job = job != NULL ? job : find_done_locked(remote);
    if (job != NULL) {
        *tag_out = job->tag;
        status = verdict_of_locked(remote, job, err);
        job->state = JOB_FREE;
    } else if (remote->is_lost) {
        status = lost_locked(remote, err);
    } else {
        status = heft__error_set(err, HEFT_ERR_TIMEOUT,
                                 "ucx: process %d has not judged %u chunks before the deadline",
                                 (int)remote->endpoint.pid, count_busy_locked(remote));
    }
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    return status;
}

heft_status_t heft__ucx_send_chunk(heft__remote_t *base, const uint8_t *header, const void *data,
                                   int64_t bytes, int64_t deadline_mono_ns, heft_error_t *err)
{
    uint32_t tag = 0;
    heft_status_t status =
        queue_chunk((remote_t *)base, false, 0, header, data, bytes, deadline_mono_ns, err);
    return status == HEFT_OK ? heft__ucx_reap(base, &tag, deadline_mono_ns, err) : status;
}

/* ---- flush ---- */

static void on_flushed(void *request, ucs_status_t status, void *arg)
{
    remote_t *remote = arg;
    heft__ucx_completed(&remote->peer, request, status);
    answer(remote, status == UCS_OK ? HEFT_OK : HEFT_ERR_PEER, remote->peer.why);
}

static void run_flush(void *arg)
{
    remote_t *remote = arg;
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA,
                                        .cb.send = on_flushed,
                                        .user_data = remote };
    ucs_status_t status = UCS_ERR_CONNECTION_RESET;
    if (remote->peer.ep != NULL &&
        heft__ucx_is_under_way(
            &remote->peer, remote->ucx->api->ucp_ep_flush_nbx(remote->peer.ep, &param), &status)) {
        return;
    }
    answer(remote, status == UCS_OK ? HEFT_OK : HEFT_ERR_PEER, remote->peer.why);
}

/* Nothing of what was started is under way any more, or the deadline has come. */
static heft_status_t settle_locked(remote_t *remote, int64_t deadline, heft_error_t *err)
{
    while (count_busy_locked(remote) > 0 && heft__ucx_wait_locked(remote->ucx, deadline)) {
    }
    const uint32_t n_busy = count_busy_locked(remote);
    if (n_busy > 0) {
        remote->is_stuck = true;
        return heft__error_set(err, HEFT_ERR_TIMEOUT,
                               "ucx: %u puts to process %d have not arrived before the deadline",
                               n_busy, (int)remote->endpoint.pid);
    }
    for (int i = 0; i < MAX_JOBS; i++) {
        remote->jobs[i].state = JOB_FREE; /* verdicts that nobody asked for */
    }
    if (remote->is_stuck) {
        return heft__error_set(err, HEFT_ERR_TIMEOUT,
                               "ucx: puts to process %d had not arrived before the deadline",
                               (int)remote->endpoint.pid);
    }
    return remote->is_lost ? lost_locked(remote, err) : HEFT_OK;
}

heft_status_t heft__ucx_flush(heft__remote_t *base, int64_t deadline_mono_ns, heft_error_t *err)
{
    remote_t *remote = (remote_t *)base;
    (void)pthread_mutex_lock(&remote->ucx->lock);
    heft_status_t status = settle_locked(remote, deadline_mono_ns, err);
    const bool must_flush = status == HEFT_OK && remote->has_put;
    if (must_flush) {
        remote->answer = HEFT_IN_PROGRESS;
        remote->has_put = false;
    }
    const bool must_close = remote->is_stuck && !remote->is_closed;
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (must_close) {
        (void)close_peer(remote); /* data are not borrowed any more */
        return status;
    }
    if (!must_flush) {
        return status;
    }
    heft__ucx_call(remote->ucx, run_flush, remote);
    (void)pthread_mutex_lock(&remote->ucx->lock);
    status = await_answer_locked(remote, "a flush", deadline_mono_ns, err);
    if (status == HEFT_OK && remote->flushed != HEFT_OK) {
        status = lost_locked(remote, err);
    }
    (void)pthread_mutex_unlock(&remote->ucx->lock);
    if (status == HEFT_ERR_TIMEOUT) {
        (void)close_peer(remote);
    }
    return status;
}
