/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of the ucx transport: one UCX context and worker for all windows and remotes of the
 * process with the same options, and the one thread that calls UCX. It sleeps on the worker's event
 * descriptor when there is nothing to do.
 *
 * Others hand it functions to run (heft__ucx_call) or leave work with a connection and wake it. It
 * never waits for a peer, so that waiting for it is short; what takes long is waited for on
 * `changed`, with the caller's deadline.
 */
#include "transport/ucx_peer.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t tick_ns = 250000000;
static const int64_t teardown_ns = 5000000000;
/* The event descriptor of UCX 1.13 is not trusted with everything: a look costs nothing. */
enum { IDLE_MS = 200, SPINS = 32, DEFAULT_SILENCE_MS = 15000 };

struct heft__ucx_call {
    heft__ucx_call_t *next;
    void (*run)(void *arg);
    void *arg;
    bool is_done;
};

struct heft__ucx_quarantine {
    struct heft__ucx_quarantine *next;
    void *ptr;
    size_t bytes;
};

/* Engines that are in use: UCX's resources belong to the process. */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static heft__ucx_t *engines;

/* ---- other threads ---- */

static void ring(const heft__ucx_t *ucx)
{
    const uint64_t one = 1;
    ssize_t n;
    do { /* EAGAIN: the counter is full, so a wake-up is pending already */
        n = write(ucx->wake_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

void heft__ucx_wake(heft__ucx_t *ucx)
{
    /* pairs with the exchange in run_once: what was left before is seen after it */
    if (!atomic_exchange_explicit(&ucx->has_work, true, memory_order_acq_rel)) {
        ring(ucx);
    }
}

void heft__ucx_call(heft__ucx_t *ucx, void (*run)(void *arg), void *arg)
{
    heft__ucx_call_t call = { .run = run, .arg = arg };
    (void)pthread_mutex_lock(&ucx->lock);
    heft__ucx_call_t **link = &ucx->calls;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = &call;
    ring(ucx);
    while (!call.is_done) { /* the thread waits for nobody */
        (void)pthread_cond_wait(&ucx->changed, &ucx->lock);
    }
    (void)pthread_mutex_unlock(&ucx->lock);
}

bool heft__ucx_wait_locked(heft__ucx_t *ucx, int64_t until_mono_ns)
{
    return heft__cond_wait_until(&ucx->changed, &ucx->lock, until_mono_ns);
}

void heft__ucx_broadcast_locked(heft__ucx_t *ucx)
{
    (void)pthread_cond_broadcast(&ucx->changed);
}

/* ---- the thread: start and end ---- */

static heft_status_t failed(heft__ucx_t *ucx, const char *what, ucs_status_t status)
{
    return heft__error_set(&ucx->start_error, HEFT_ERR_UNSUPPORTED, "ucx: %s: %s", what,
                           ucx->api->ucs_status_string(status));
}

/* One-sided puts are used only over networks that have them. Without the feature UCX does not take
 * part in imitating them either: over tcp that imitation writes wherever a message tells it to. */
static bool needs_puts(const heft__ucx_t *ucx)
{
    return ucx->opts.always_put || access("/sys/class/infiniband", F_OK) == 0;
}

static heft_status_t make_context(heft__ucx_t *ucx)
{
    ucp_config_t *config = NULL;
    heft_status_t status = heft__ucx_config_read(ucx->api, &ucx->opts, &config, &ucx->start_error);
    if (status != HEFT_OK) {
        return status;
    }
    const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                                  .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP |
                                              (needs_puts(ucx) ? UCP_FEATURE_RMA : 0u),
                                  .name = "heft" };
    const ucs_status_t rc =
        ucx->api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    ucx->api->ucp_config_release(config);
    return rc == UCS_OK ? HEFT_OK : failed(ucx, "context", rc);
}

static heft_status_t make_worker(heft__ucx_t *ucx)
{
    const ucp_worker_params_t params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE };
    ucs_status_t rc = ucx->api->ucp_worker_create(ucx->context, &params, &ucx->worker);
    if (rc != UCS_OK) {
        return failed(ucx, "worker", rc);
    }
    const ucp_am_handler_param_t handler = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                           UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                           UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                             .id = HEFT__UCX_AM_ID,
                                             .cb = heft__ucx_on_message,
                                             .arg = ucx };
    rc = ucx->api->ucp_worker_set_am_recv_handler(ucx->worker, &handler);
    if (rc == UCS_OK) {
        rc = ucx->api->ucp_worker_get_efd(ucx->worker, &ucx->worker_fd);
    }
    if (rc == UCS_OK) {
        rc = ucx->api->ucp_worker_get_address(ucx->worker, &ucx->address, &ucx->address_bytes);
    }
    if (rc != UCS_OK) {
        return failed(ucx, "worker", rc);
    }
    if (ucx->address_bytes > HEFT__UCX_ADDRESS_MAX) {
        return heft__error_set(&ucx->start_error, HEFT_ERR_LIMIT,
                               "ucx: the worker's address has %zu bytes, at most %d are sent: "
                               "name fewer network devices",
                               ucx->address_bytes, HEFT__UCX_ADDRESS_MAX);
    }
    return HEFT_OK;
}

static void destroy_worker(heft__ucx_t *ucx)
{
    if (ucx->address != NULL) {
        ucx->api->ucp_worker_release_address(ucx->worker, ucx->address);
    }
    if (ucx->worker != NULL) {
        ucx->api->ucp_worker_destroy(ucx->worker);
    }
    if (ucx->context != NULL) {
        ucx->api->ucp_cleanup(ucx->context);
    }
    while (ucx->quarantine != NULL) { /* nothing receives any more */
        struct heft__ucx_quarantine *kept = ucx->quarantine;
        ucx->quarantine = kept->next;
        (void)munmap(kept->ptr, kept->bytes);
        heft__free(kept);
    }
}

void heft__ucx_keep_range(heft__ucx_t *ucx, void *ptr, size_t bytes)
{
    struct heft__ucx_quarantine *kept = heft__malloc(sizeof *kept);
    if (kept == NULL) {
        return; /* it stays mapped for good */
    }
    *kept = (struct heft__ucx_quarantine){ .next = ucx->quarantine, .ptr = ptr, .bytes = bytes };
    ucx->quarantine = kept;
}

/* ---- the thread: its loop ---- */

static void run_calls(heft__ucx_t *ucx)
{
    for (;;) {
        (void)pthread_mutex_lock(&ucx->lock);
        heft__ucx_call_t *call = ucx->calls;
        if (call != NULL) {
            ucx->calls = call->next;
        }
        (void)pthread_mutex_unlock(&ucx->lock);
        if (call == NULL) {
            return;
        }
        call->run(call->arg);
        (void)pthread_mutex_lock(&ucx->lock);
        call->is_done = true; /* its storage is the caller's, who goes on */
        (void)pthread_cond_broadcast(&ucx->changed);
        (void)pthread_mutex_unlock(&ucx->lock);
    }
}

static void tick(heft__ucx_t *ucx)
{
    const int64_t now = heft__clock_mono_ns();
    const int64_t passed = now - ucx->ticked_mono_ns;
    if (passed >= tick_ns) {
        ucx->ticked_mono_ns = now;
        /* An idle thread sleeps for long; one that watches does not, unless it was stopped. */
        ucx->is_busy = heft__ucx_peers_tick(ucx, now, ucx->is_busy && passed > 8 * tick_ns);
    }
}

static void sleep_until_event(heft__ucx_t *ucx)
{
    if (atomic_load_explicit(&ucx->has_work, memory_order_acquire)) {
        return;
    }
    struct pollfd fds[2] = { { .fd = ucx->wake_fd, .events = POLLIN },
                             { .fd = ucx->worker_fd, .events = POLLIN } };
    if (ucx->api->ucp_worker_arm(ucx->worker) != UCS_OK) {
        return; /* something has come in meanwhile */
    }
    (void)poll(fds, 2, ucx->is_busy ? (int)(tick_ns / 1000000) : IDLE_MS);
    uint64_t count;
    const ssize_t got = read(ucx->wake_fd, &count, sizeof count);
    (void)got; /* the counter is only a wake-up */
}

/* True when nothing was there to be done. */
static bool run_once(heft__ucx_t *ucx)
{
    run_calls(ucx);
    unsigned n = 0;
    for (int i = 0; i < SPINS && n == 0; i++) {
        n = ucx->api->ucp_worker_progress(ucx->worker);
    }
    /* pairs with the one in heft__ucx_wake */
    const bool has_work = atomic_exchange_explicit(&ucx->has_work, false, memory_order_acq_rel);
    if (has_work) {
        heft__ucx_peers_serve(ucx);
    }
    heft__ucx_windows_tell(ucx);
    return n == 0 && !has_work;
}

static bool must_stop(heft__ucx_t *ucx)
{
    (void)pthread_mutex_lock(&ucx->lock);
    const bool stop = ucx->stop;
    (void)pthread_mutex_unlock(&ucx->lock);
    return stop;
}

static void close_all(heft__ucx_t *ucx)
{
    const int64_t until = heft__clock_mono_ns() + teardown_ns;
    for (heft__ucx_peer_t *peer = ucx->peers; peer != NULL; peer = peer->next) {
        heft__ucx_peer_leave(peer);
    }
    while (ucx->peers != NULL && heft__clock_mono_ns() < until) {
        (void)run_once(ucx);
        ucx->is_busy = true;
        sleep_until_event(ucx);
        atomic_store_explicit(&ucx->has_work, true, memory_order_relaxed); /* look at deadlines */
    }
}

static void *serve(void *arg)
{
    heft__ucx_t *ucx = arg;
    heft_status_t status = make_context(ucx);
    if (status == HEFT_OK) {
        status = make_worker(ucx);
    }
    ucx->ticked_mono_ns = heft__clock_mono_ns();
    (void)pthread_mutex_lock(&ucx->lock);
    ucx->is_started = true;
    (void)pthread_cond_broadcast(&ucx->changed);
    (void)pthread_mutex_unlock(&ucx->lock);
    while (status == HEFT_OK && !must_stop(ucx)) {
        const bool is_idle = run_once(ucx);
        tick(ucx);
        if (is_idle) {
            sleep_until_event(ucx);
        }
    }
    if (status == HEFT_OK) {
        close_all(ucx);
    }
    destroy_worker(ucx);
    heft__ucx_peers_fini(ucx);
    heft__ucx_windows_fini(ucx);
    return NULL;
}

/* ---- in use and not ---- */

static void free_engine(heft__ucx_t *ucx)
{
    if (ucx->wake_fd >= 0) {
        (void)close(ucx->wake_fd);
    }
    (void)pthread_cond_destroy(&ucx->changed);
    (void)pthread_mutex_destroy(&ucx->lock);
    heft__free(ucx->net_devices);
    heft__free(ucx);
}

static heft_status_t init_engine(heft__ucx_t *ucx, const heft__ucx_opts_t *opts, heft_error_t *err)
{
    (void)pthread_mutex_init(&ucx->lock, NULL);
    (void)heft__cond_init(&ucx->changed);
    ucx->base.ops = &heft__ucx_ops;
    ucx->opts = *opts;
    ucx->net_devices = heft__strdup(opts->net_devices != NULL ? opts->net_devices : "");
    ucx->opts.net_devices = ucx->net_devices;
    ucx->segment_bytes = heft__ucx_segment_bytes(opts);
    ucx->opts.silence_ms = opts->silence_ms != 0 ? opts->silence_ms : DEFAULT_SILENCE_MS;
    ucx->start_error = (heft_error_t)HEFT_ERROR_INIT;
    ucx->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ucx->net_devices == NULL) {
        return heft__error_nomem(err, 1);
    }
    if (ucx->wake_fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "ucx: eventfd");
    }
    heft__host_identity_read(&ucx->host);
    /* Connections of an earlier life are not taken for ours. */
    heft_status_t status = heft__random_bytes(&ucx->last_id, sizeof ucx->last_id, err);
    ucx->last_id >>= 1;
    return status;
}

static heft_status_t start_thread(heft__ucx_t *ucx, heft_error_t *err)
{
    const int rc = pthread_create(&ucx->thread, NULL, serve, ucx);
    if (rc != 0) {
        return heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "ucx: thread");
    }
    (void)pthread_mutex_lock(&ucx->lock);
    while (!ucx->is_started) { /* making a context and a worker waits for nobody */
        (void)pthread_cond_wait(&ucx->changed, &ucx->lock);
    }
    const heft_error_t why = ucx->start_error;
    (void)pthread_mutex_unlock(&ucx->lock);
    if (why.status != HEFT_OK) {
        (void)pthread_join(ucx->thread, NULL);
        return heft__error_set(err, why.status, "%s", why.message);
    }
    return HEFT_OK;
}

static heft_status_t create_engine(const heft__ucx_opts_t *opts, heft__ucx_t **ucx_out,
                                   heft_error_t *err)
{
    const heft__ucx_api_t *api = NULL;
    heft_status_t status = heft__ucx_api_load(&api, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__ucx_t *ucx = heft__calloc(1, sizeof *ucx);
    if (ucx == NULL) {
        return heft__error_nomem(err, sizeof *ucx);
    }
    ucx->api = api;
    status = init_engine(ucx, opts, err);
    if (status == HEFT_OK) {
        status = start_thread(ucx, err);
    }
    if (status != HEFT_OK) {
        free_engine(ucx);
        return status;
    }
    *ucx_out = ucx;
    return HEFT_OK;
}

static bool is_for(const heft__ucx_t *ucx, const heft__ucx_opts_t *opts)
{
    const uint32_t silence_ms = opts->silence_ms != 0 ? opts->silence_ms : DEFAULT_SILENCE_MS;
    return ucx->opts.allow_tcp == opts->allow_tcp && ucx->opts.max_lanes == opts->max_lanes &&
           ucx->opts.always_put == opts->always_put && ucx->opts.silence_ms == silence_ms &&
           strcmp(ucx->net_devices, opts->net_devices != NULL ? opts->net_devices : "") == 0;
}

heft_status_t heft__ucx_acquire(const heft__ucx_opts_t *opts, heft__ucx_t **ucx_out,
                                heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&engines_lock);
    heft__ucx_t *ucx = engines;
    while (ucx != NULL && !is_for(ucx, opts)) {
        ucx = ucx->next;
    }
    if (ucx == NULL) {
        status = create_engine(opts, &ucx, err);
        if (status == HEFT_OK) {
            ucx->next = engines;
            engines = ucx;
        }
    }
    if (status == HEFT_OK) {
        ucx->n_users++;
        *ucx_out = ucx;
    }
    (void)pthread_mutex_unlock(&engines_lock);
    return status;
}

void heft__ucx_release(heft__ucx_t *ucx)
{
    if (ucx == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&engines_lock);
    const bool is_last = --ucx->n_users == 0;
    heft__ucx_t **link = &engines;
    while (is_last && *link != ucx) {
        link = &(*link)->next;
    }
    if (is_last) {
        *link = ucx->next;
    }
    (void)pthread_mutex_unlock(&engines_lock);
    if (!is_last) {
        return;
    }
    (void)pthread_mutex_lock(&ucx->lock);
    ucx->stop = true;
    (void)pthread_mutex_unlock(&ucx->lock);
    ring(ucx);
    (void)pthread_join(ucx->thread, NULL);
    free_engine(ucx);
}

heft__transport_t *heft__ucx_get_transport(heft__ucx_t *ucx)
{
    return &ucx->base;
}

const char *heft__ucx_get_version(void)
{
    const heft__ucx_api_t *api = NULL;
    return heft__ucx_api_load(&api, NULL) == HEFT_OK ? api->ucp_get_version_string() : NULL;
}

bool heft__ucx_is_built(void)
{
    return true;
}
