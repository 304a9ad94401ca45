/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher: a source rank. A worker thread carries out the orders; publisher_push.c begins
 * rounds and follows them. Outside of a push the worker answers preflights, but never touches the
 * bytes.
 */
#include "sync/publisher_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- the worker ---- */

static void *work(void *arg)
{
    heft_publisher_t *pub = arg;
    for (;;) {
        heft__order_t order;
        heft_status_t status = heft__member_await_order(pub->member, INT64_MAX, &order, NULL);
        (void)pthread_mutex_lock(&pub->lock);
        bool quit = pub->quit;
        (void)pthread_mutex_unlock(&pub->lock);
        if (status == HEFT_OK) {
            if (!quit) {
                heft__publisher_meet(pub, &order);
                heft__publisher_obey(pub, &order);
            }
            heft__order_fini(&order);
        }
        if (quit) {
            return NULL;
        }
    }
}

void heft__publisher_meet(heft_publisher_t *pub, const heft__order_t *order)
{
    if (order->version > 0 && order->target <= HEFT__PHASE_PREPARE) {
        (void)pthread_mutex_lock(&pub->lock);
        pub->met_round = order->round;
        pub->met_version = order->version;
        (void)pthread_mutex_unlock(&pub->lock);
    }
}

static bool is_given_up_locked(const heft_publisher_t *pub, heft__round_id_t round)
{
    return heft__round_id_equal(pub->given_up, round);
}

/* A push of this version is in progress, and has not turned away from this round. */
static bool is_on_locked(const heft_publisher_t *pub, const heft__order_t *order)
{
    return pub->push_version == order->version && !is_given_up_locked(pub, order->round);
}

bool heft__publisher_await_push(heft_publisher_t *pub, const heft__order_t *order)
{
    /* as long as a push here would wait for its round, and no longer than the round itself */
    const int64_t wait_ms = heft__min_i64(order->left_ms, pub->deadline_ms);
    const int64_t deadline = heft__clock_mono_ns() + wait_ms * 1000000;
    for (;;) {
        (void)pthread_mutex_lock(&pub->lock);
        bool is_on = is_on_locked(pub, order);
        bool is_over = pub->stop || is_given_up_locked(pub, order->round) ||
                       (!is_on && (pub->abandoned == order->version ||
                                   pub->push_version > order->version)); /* versions only grow */
        (void)pthread_mutex_unlock(&pub->lock);
        if (is_on || is_over) {
            return is_on && !is_over;
        }
        /* A push that begins, or gives up, interrupts this wait. */
        if (heft__clock_mono_ns() >= deadline ||
            heft__member_await_called_off(pub->member, order->round, deadline)) {
            return false;
        }
    }
}

bool heft__publisher_enter(heft_publisher_t *pub, const heft__order_t *order)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->is_reading = is_on_locked(pub, order) && !pub->stop;
    bool is_reading = pub->is_reading;
    (void)pthread_mutex_unlock(&pub->lock);
    return is_reading;
}

void heft__publisher_leave(heft_publisher_t *pub)
{
    (void)pthread_mutex_lock(&pub->lock);
    pub->is_reading = false;
    (void)pthread_cond_broadcast(&pub->changed);
    (void)pthread_mutex_unlock(&pub->lock);
}

bool heft__publisher_is_given_up(heft_publisher_t *pub, heft__round_id_t round)
{
    (void)pthread_mutex_lock(&pub->lock);
    bool is_given_up = pub->stop || pub->push_version == 0 || is_given_up_locked(pub, round);
    (void)pthread_mutex_unlock(&pub->lock);
    return is_given_up;
}

/* ---- create ---- */

static heft_status_t check_arguments(const heft_publisher_opts_t *opts,
                                     const heft_manifest_t *manifest, const void *const *data,
                                     heft_error_t *err)
{
    if (opts->begin > HEFT_BEGIN_NO) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "publisher: begin %u: 0 (rank 0), 1 (yes) or 2 (no)", opts->begin);
    }
    if (manifest == NULL || data == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "publisher: manifest and data are required");
    }
    const char *side = heft_manifest_get_side(manifest);
    if (strcmp(side, "source") != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "publisher: a manifest of side \"%s\", expected \"source\"", side);
    }
    return HEFT_OK;
}

static heft_status_t alloc_arrays(heft_publisher_t *pub, heft_error_t *err)
{
    size_t n = pub->n_tensors > 0 ? pub->n_tensors : 1;
    pub->sizes = heft__calloc(n, sizeof *pub->sizes);
    pub->sizes_sent = heft__calloc(n, sizeof *pub->sizes_sent);
    pub->is_own = heft__calloc(n, sizeof *pub->is_own);
    pub->digests = heft__calloc(n, sizeof *pub->digests);
    pub->again = heft__calloc(n, sizeof *pub->again);
    if (pub->sizes == NULL || pub->sizes_sent == NULL || pub->is_own == NULL ||
        pub->digests == NULL || pub->again == NULL) {
        return heft__error_nomem(err, n * sizeof *pub->sizes);
    }
    for (uint32_t i = 0; i < pub->n_tensors; i++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_manifest_query(pub->manifest, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (info.n_bytes > 0 && pub->data[i] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "publisher: data[%u], \"%.120s\", is NULL", i, info.name);
        }
        pub->sizes[i] = info.n_bytes;
        pub->sizes_sent[i] = info.n_bytes;
        pub->is_own[i] = true;
    }
    return HEFT_OK;
}

static heft_status_t create_member(heft_publisher_t *pub, const heft_publisher_opts_t *opts,
                                   heft_error_t *err)
{
    heft__member_config_t config = { .access = { .url = opts->url,
                                                 .token_file = opts->token_file,
                                                 .ca_file = opts->ca_file,
                                                 .insecure = opts->insecure },
                                     .job = opts->job,
                                     .role = HEFT__ROLE_SOURCE,
                                     .replica = opts->replica,
                                     .rank = opts->rank,
                                     .deadline_ms = opts->deadline_ms,
                                     .host = opts->host,
                                     .n_transports = pub->offer.n,
                                     .transports = pub->offer.names };
    char *text = NULL;
    heft_status_t status = heft__member_create(&config, &pub->member, err);
    if (status ==
        HEFT_OK) { /* it has been checked, and is not NULL: that comes from the settings */
        (void)snprintf(pub->job, sizeof pub->job, "%s", opts->job);
        status = heft_manifest_encode(pub->manifest, &text, err);
    }
    if (status == HEFT_OK) {
        status = heft__member_set_object(pub->member, HEFT__OBJECT_MANIFEST, text, err);
        heft_string_free(text);
    }
    return status;
}

static heft_status_t start_worker(heft_publisher_t *pub, heft_error_t *err)
{
    int rc = pthread_create(&pub->worker, NULL, work, pub);
    pub->has_worker = rc == 0;
    return rc == 0 ? HEFT_OK : heft__error_set_sys(err, HEFT_ERR_NOMEM, rc, "publisher thread");
}

static heft_status_t build(heft_publisher_t *pub, const heft_publisher_opts_t *opts,
                           heft_error_t *err)
{
    heft_status_t status = alloc_arrays(pub, err);
    if (status == HEFT_OK) {
        status = create_member(pub, opts, err);
    }
    if (status == HEFT_OK) {
        pub->fleet.member = pub->member;
        pub->fleet.replica = opts->replica;
        pub->fleet.rank = opts->rank;
        pub->fleet.n_expected = opts->n_ranks;
        pub->fleet.transports = pub->offer.transports;
        pub->fleet.n_transports = pub->offer.n;
        pub->fleet.n_threads = pub->n_threads;
        pub->fleet.gathers_all = pub->max_bytes_per_s != 0;
        pub->fleet.progress = heft__publisher_on_progress;
        pub->fleet.progress_arg = pub;
        if (!pub->begins) {
            heft__publisher_note_rounds(pub);
        }
        status = heft__member_start(pub->member, err);
    }
    return status == HEFT_OK ? start_worker(pub, err) : status;
}

/* The options are complete. */
static heft_status_t create_loaded(heft__transport_t *const *transports, uint32_t n_transports,
                                   const heft_publisher_opts_t *opts,
                                   const heft_manifest_t *manifest, const void *const *data,
                                   heft_publisher_t **publisher_out, heft_error_t *err)
{
    heft_publisher_t *pub = heft__calloc(1, sizeof *pub);
    if (pub == NULL) {
        return heft__error_nomem(err, sizeof *pub);
    }
    (void)pthread_mutex_init(&pub->lock, NULL);
    (void)pthread_cond_init(&pub->changed, NULL);
    heft__fleet_init(&pub->fleet);
    pub->manifest = manifest;
    pub->data = data;
    pub->n_tensors = heft_manifest_get_n_tensors(manifest);
    pub->n_threads = opts->n_threads;
    pub->max_bytes_per_s = opts->max_bytes_per_s;
    pub->deadline_ms = opts->deadline_ms;
    pub->begins = opts->begin == HEFT_BEGIN_YES ||
                  (opts->begin == HEFT_BEGIN_FIRST && opts->replica == 0 && opts->rank == 0);
    pub->n_ranks = opts->n_ranks;
    const heft__offer_opts_t wanted = HEFT__OFFER_OPTS(opts);
    heft_status_t status = HEFT_OK;
    if (n_transports > 0) {
        heft__offer_init_over(transports, n_transports, &pub->offer);
    } else {
        status = heft__offer_init(&wanted, &pub->offer, err);
    }
    if (status == HEFT_OK) {
        status = build(pub, opts, err);
    }
    if (status != HEFT_OK) {
        heft_publisher_destroy(pub);
        return status;
    }
    *publisher_out = pub;
    return HEFT_OK;
}

heft_status_t heft__publisher_create_over(heft__transport_t *const *transports,
                                          uint32_t n_transports, const heft_publisher_opts_t *opts,
                                          const heft_manifest_t *manifest, const void *const *data,
                                          heft_publisher_t **publisher_out, heft_error_t *err)
{
    heft_publisher_opts_t loaded = HEFT_PUBLISHER_OPTS_INIT;
    heft_config_t *config = NULL;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "publisher options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved,
                                           "publisher options", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved_more, sizeof loaded.reserved_more,
                                           "publisher options", err);
    }
    if (status == HEFT_OK) {
        status = check_arguments(&loaded, manifest, data, err);
    }
    if (status == HEFT_OK) {
        status = heft__settings_publisher(&loaded, &config, err);
    }
    if (status == HEFT_OK) {
        status =
            create_loaded(transports, n_transports, &loaded, manifest, data, publisher_out, err);
    }
    heft_config_destroy(config);
    return status;
}

heft_status_t heft_publisher_create(const heft_publisher_opts_t *opts,
                                    const heft_manifest_t *manifest, const void *const *data,
                                    heft_publisher_t **publisher_out, heft_error_t *err)
{
    return heft__publisher_create_over(NULL, 0, opts, manifest, data, publisher_out, err);
}

/* Is it still in a round that no push follows? */
static bool is_leftover(heft_publisher_t *pub)
{
    (void)pthread_mutex_lock(&pub->lock);
    const heft__round_id_t given_up = pub->given_up;
    (void)pthread_mutex_unlock(&pub->lock);
    const heft__report_t *report = heft__member_lock(pub->member);
    const bool is_closed =
        (report->phase == HEFT__PHASE_RELEASE || report->phase == HEFT__PHASE_ABORT) &&
        report->state == HEFT__STATE_IDLE;
    const bool is_left = report->state != HEFT__STATE_IDLE ||
                         (given_up.seq != 0 && heft__round_id_equal(report->round, given_up));
    heft__member_unlock(pub->member, false);
    return is_left && !is_closed && heft__member_get_contact(pub->member, NULL) == HEFT_OK;
}

/* A round that was given up is called off with the coordinator; one that is left in the middle
 * would have to wait until this source is missed. */
static void wind_up(heft_publisher_t *pub)
{
    const int64_t until_ns = heft__clock_mono_ns() + INT64_C(5000000000);
    (void)pthread_mutex_lock(&pub->lock);
    pub->stop = true;
    (void)pthread_mutex_unlock(&pub->lock);
    if (!pub->has_worker) {
        return;
    }
    heft__member_interrupt(pub->member);
    const bool was_left = is_leftover(pub);
    while (is_leftover(pub) && heft__clock_mono_ns() < until_ns) {
        const struct timespec pause = { .tv_nsec = 10000000 };
        (void)nanosleep(&pause, NULL);
    }
    if (was_left) {
        heft__member_tell(pub->member, until_ns);
    }
}

void heft_publisher_destroy(heft_publisher_t *pub)
{
    if (pub == NULL) {
        return;
    }
    wind_up(pub);
    (void)pthread_mutex_lock(&pub->lock);
    pub->quit = true;
    (void)pthread_mutex_unlock(&pub->lock);
    heft__member_stop(pub->member); /* calls off what the worker is at */
    if (pub->has_worker) {
        heft__member_interrupt(pub->member);
        (void)pthread_join(pub->worker, NULL);
    }
    heft__fleet_fini(&pub->fleet);
    heft__offer_fini(&pub->offer);
    heft__member_destroy(pub->member);
    heft__free(pub->sizes);
    heft__free(pub->sizes_sent);
    heft__free(pub->is_own);
    heft__free(pub->digests);
    heft__free(pub->again);
    (void)pthread_cond_destroy(&pub->changed);
    (void)pthread_mutex_destroy(&pub->lock);
    heft__free(pub);
}
