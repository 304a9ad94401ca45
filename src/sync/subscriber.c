/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subscriber: a destination rank. Creation allocates and exports staging, describes the rank in
 * a contract, and registers. Polling takes the next order and carries it out on the caller's
 * thread; the member's thread keeps in contact meanwhile.
 *
 * What can be asked from any thread (version, serving, digests) is guarded by one lock and changes
 * together.
 */
#include "sync/subscriber_private.h"

#include <stdio.h>
#include <string.h>

/* ---- contact with the window while a transfer is on ---- */

/* A source that is alive says itself why it stopped, and says it better: it is given the time to.
 */
static const int64_t hearsay_ns = 2000000000;

static void report_failed(heft_subscriber_t *sub, heft__report_t *report, heft__result_t result,
                          const heft_error_t *err, const char *blamed)
{
    report->result = result;
    heft__wire_error_set(&report->error, HEFT__PHASE_STAGE, err);
    (void)snprintf(report->error.peer, sizeof report->error.peer, "%s", blamed);
    sub->is_armed = false;
}

/* Called by the member's thread, with the member's lock held. */
static void refresh(void *arg, heft__report_t *report)
{
    heft_subscriber_t *sub = arg;
    heft__subscriber_note_feed(sub, report);
    if (!sub->is_armed || report->phase != HEFT__PHASE_STAGE ||
        report->result != HEFT__RESULT_WORKING) {
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_state_t state;
    heft__window_query(sub->window, &state);
    int64_t now = heft__clock_mono_ns();
    if (state.n_failed > 0 && sub->failed_mono_ns == 0) {
        sub->failed_mono_ns = now;
    }
    if ((sub->n_senders > 1 || sub->relay != NULL) && (state.n_lost > 0 || state.n_failed > 0)) {
        return; /* others may still write, or begin to, and it may itself be forwarding:
                   heft__subscriber_expire shuts them out */
    }
    if (state.n_lost > 0) {
        const char *blamed = heft__subscriber_lost_error(sub, &state, &err);
        /* Nobody writes any more only if no other sender is still at it. */
        report_failed(sub, report, state.n_writing > 0 ? HEFT__RESULT_UNKNOWN : HEFT__RESULT_FAILED,
                      &err, blamed);
    } else if (state.n_failed > 0 && state.n_writing == 0 &&
               now - sub->failed_mono_ns >= hearsay_ns) {
        const char *blamed = heft__subscriber_stopped_error(sub, &state, &err);
        report_failed(sub, report, HEFT__RESULT_FAILED, &err, blamed);
    } else if (state.n_done >= sub->n_senders && state.n_writing == 0 &&
               heft__subscriber_has_forwarded(sub, &report->counters)) {
        report->result = HEFT__RESULT_OK;
        report->state = HEFT__STATE_STAGED;
        sub->is_armed = false;
    }
}

static void on_window_change(void *arg)
{
    heft_subscriber_t *sub = arg;
    (void)pthread_mutex_lock(&sub->lock);
    const bool is_receiving = sub->is_receiving;
    if (is_receiving) {
        (void)pthread_cond_signal(&sub->arrived_part);
    }
    (void)pthread_mutex_unlock(&sub->lock);
    if (!is_receiving && sub->member != NULL) {
        heft__member_wake(sub->member);
        heft__member_interrupt(sub->member); /* the next poll looks whether a sender has gone */
    }
}

/* ---- create ---- */

static heft_status_t check_arguments(const heft_subscriber_opts_t *opts,
                                     const heft__destination_t *destination, heft_error_t *err)
{
    const char *side = heft_manifest_get_side(destination->manifest);
    if (strcmp(side, "destination") != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "subscriber: a manifest of side \"%s\", expected \"destination\"",
                               side);
    }
    if (opts->in_place > 1 || opts->buffer_bytes < 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "subscriber: in_place %u, buffer_bytes %lld: 0 or 1, and not less "
                               "than 0",
                               opts->in_place, (long long)opts->buffer_bytes);
    }
    return HEFT_OK;
}

static heft_status_t create_member(heft_subscriber_t *sub, const heft_subscriber_opts_t *opts,
                                   heft_error_t *err)
{
    heft__member_config_t config = { .access = { .url = opts->url,
                                                 .token_file = opts->token_file,
                                                 .ca_file = opts->ca_file,
                                                 .insecure = opts->insecure },
                                     .job = opts->job,
                                     .role = HEFT__ROLE_DESTINATION,
                                     .in_place = sub->in_place,
                                     .replica = opts->replica,
                                     .rank = opts->rank,
                                     .deadline_ms = opts->deadline_ms,
                                     .host = opts->host,
                                     .n_transports = sub->offer.n,
                                     .transports = sub->offer.names,
                                     .refresh = refresh,
                                     .refresh_arg = sub };
    return heft__member_create(&config, &sub->member, err);
}

heft_status_t heft__subscriber_create_window(heft_subscriber_t *sub, const heft__staging_t *layout,
                                             heft_error_t *err)
{
    const int64_t bytes =
        sub->in_place ? heft__staging_buffer_bytes(layout, sub->buffer_bytes) : layout->bytes;
    heft__window_params_t params = { .bytes = bytes,
                                     .memory = HEFT__MEMORY_HOST,
                                     .on_change = on_window_change,
                                     .on_change_arg = sub };
    heft__member_get_incarnation_bytes(sub->member, params.incarnation);
    return heft__window_create(sub->offer.window, &params, &sub->window, err);
}

static heft_status_t set_manifest(heft_subscriber_t *sub, heft_error_t *err)
{
    char *text = NULL;
    heft_status_t status = heft_manifest_encode(sub->manifest, &text, err);
    if (status == HEFT_OK) {
        status = heft__member_set_object(sub->member, HEFT__OBJECT_MANIFEST, text, err);
        heft_string_free(text);
    }
    return status;
}

static heft_status_t set_contract(heft_subscriber_t *sub, heft_error_t *err)
{
    char *text = NULL;
    char *mapping = NULL;
    heft_status_t status = heft__mapping_encode(&sub->mapping, sub->rank, &text, &mapping, err);
    if (status == HEFT_OK) {
        status = heft__member_set_object(sub->member, HEFT__OBJECT_CONTRACT, text, err);
    }
    if (status == HEFT_OK && mapping != NULL) {
        status = heft__member_set_object(sub->member, HEFT__OBJECT_MAPPING, mapping, err);
    }
    heft__free(text);
    heft__free(mapping);
    return status;
}

heft_status_t heft__subscriber_export(heft_subscriber_t *sub, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(sub->window, &text);
    heft_status_t status =
        text.failed ? heft__error_nomem(err, text.len)
                    : heft__member_set_object(sub->member, HEFT__OBJECT_ENDPOINT, text.data, err);
    heft__text_fini(&text);
    return status;
}

/* Its plan was made without a round: this is the source that it is made for. */
static heft_status_t offer_contract(heft_subscriber_t *sub, heft_error_t *err)
{
    heft__sources_t sources = { .n = 0 };
    heft_status_t status = heft__sources_init_one(
        heft_contract_get_manifest(sub->destination.contract), &sources, err);
    if (status == HEFT_OK) {
        status = heft__subscriber_offer(sub, &sources, err);
    }
    heft__sources_fini(&sources);
    return status;
}

static heft_status_t build(heft_subscriber_t *sub, const heft_subscriber_opts_t *opts,
                           heft_error_t *err)
{
    heft_status_t status = heft__subscriber_build_alone(sub, err);
    if (status == HEFT_OK) {
        status = create_member(sub, opts, err);
    }
    if (status == HEFT_OK) {
        status = set_manifest(sub, err);
    }
    if (status == HEFT_OK) {
        status = set_contract(sub, err);
    }
    if (status == HEFT_OK) {
        status = heft__subscriber_create_window(sub, &sub->work.layout, err);
    }
    if (status == HEFT_OK) {
        status = heft__subscriber_export(sub, err);
    }
    if (status == HEFT_OK && sub->destination.contract != NULL) {
        status = offer_contract(sub, err);
    }
    if (status == HEFT_OK) {
        status = heft__member_start(sub->member, err);
    }
    return status;
}

/* The options are complete. */
static void init_lock(heft_subscriber_t *sub)
{
    (void)pthread_mutex_init(&sub->lock, NULL);
    (void)heft__cond_init(&sub->arrived_part);
}

static heft_status_t create_loaded(heft__transport_t *transport, const heft_subscriber_opts_t *opts,
                                   const heft_hooks_t *hooks,
                                   const heft__destination_t *destination,
                                   heft_subscriber_t **subscriber_out, heft_error_t *err)
{
    heft_subscriber_t *sub = heft__calloc(1, sizeof *sub);
    if (sub == NULL) {
        return heft__error_nomem(err, sizeof *sub);
    }
    init_lock(sub);
    sub->in_place = opts->in_place != 0;
    sub->buffer_bytes = opts->buffer_bytes;
    sub->hooks = *hooks;
    sub->rank = opts->rank;
    sub->n_threads = opts->n_threads;
    sub->destination = *destination;
    sub->manifest = destination->manifest;
    sub->n_params = heft_manifest_get_n_tensors(destination->manifest);
    const heft__offer_opts_t wanted = HEFT__OFFER_OPTS(opts);
    heft_status_t status = HEFT_OK;
    if (transport != NULL) {
        heft__offer_init_over(&transport, 1, &sub->offer);
    } else {
        status = heft__offer_init(&wanted, &sub->offer, err);
    }
    if (status == HEFT_OK) {
        status = build(sub, opts, err);
    }
    if (status != HEFT_OK) {
        heft_subscriber_destroy(sub);
        return status;
    }
    *subscriber_out = sub;
    return HEFT_OK;
}

heft_status_t heft__subscriber_create_over(heft__transport_t *transport,
                                           const heft_subscriber_opts_t *opts,
                                           const heft__destination_t *destination,
                                           heft_subscriber_t **subscriber_out, heft_error_t *err)
{
    heft_subscriber_opts_t loaded = HEFT_SUBSCRIBER_OPTS_INIT;
    heft_hooks_t hooks = HEFT_HOOKS_INIT;
    heft_config_t *config = NULL;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "subscriber options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved,
                                           "subscriber options", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved_more, sizeof loaded.reserved_more,
                                           "subscriber options", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_load(loaded.hooks, &hooks, sizeof hooks, "hooks", err);
    }
    if (status == HEFT_OK) {
        status = check_arguments(&loaded, destination, err);
    }
    if (status == HEFT_OK) {
        status = heft__settings_subscriber(&loaded, &config, err);
    }
    if (status == HEFT_OK) {
        status = create_loaded(transport, &loaded, &hooks, destination, subscriber_out, err);
    }
    heft_config_destroy(config);
    return status;
}

heft_status_t heft_subscriber_create(const heft_subscriber_opts_t *opts,
                                     const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                     const heft_manifest_t *manifest, void *const *params,
                                     heft_subscriber_t **subscriber_out, heft_error_t *err)
{
    if (recipe == NULL || bindings == NULL || manifest == NULL || params == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "subscriber: recipe, bindings, manifest and params are required");
    }
    const heft__destination_t destination = {
        .recipe = recipe, .bindings = bindings, .manifest = manifest, .pointers = params
    };
    return heft__subscriber_create_over(NULL, opts, &destination, subscriber_out, err);
}

heft_status_t heft_subscriber_create_contract(const heft_subscriber_opts_t *opts,
                                              const heft_contract_t *contract,
                                              const heft_manifest_t *manifest,
                                              const heft_param_t *params,
                                              heft_subscriber_t **subscriber_out, heft_error_t *err)
{
    heft_subscriber_opts_t loaded = HEFT_SUBSCRIBER_OPTS_INIT;
    heft__destination_t destination;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "subscriber options", err);
    if (status == HEFT_OK) {
        status = heft__destination_from_contract(contract, manifest, params, loaded.rank,
                                                 &destination, err);
    }
    return status == HEFT_OK
               ? heft__subscriber_create_over(NULL, opts, &destination, subscriber_out, err)
               : status;
}

void heft_subscriber_destroy(heft_subscriber_t *sub)
{
    if (sub == NULL) {
        return;
    }
    if (sub->member != NULL) {
        heft__subscriber_end_feed(sub);
        heft__subscriber_end_relay(sub);
    }
    heft__member_stop(sub->member);    /* refresh looks at the window */
    heft__window_destroy(sub->window); /* on_change wakes the member */
    heft__packing_fini(&sub->packing);
    heft__free(sub->senders);
    heft__offer_fini(&sub->offer);
    heft__member_destroy(sub->member);
    heft__subscriber_fini_alone(sub);
    (void)pthread_cond_destroy(&sub->arrived_part);
    (void)pthread_mutex_destroy(&sub->lock);
    heft__free(sub);
}

/* ---- poll ---- */

/* The fleet has gone on without this member: it must not serve what it holds. */
static void stop_serving_if_behind(heft_subscriber_t *sub)
{
    if (heft_subscriber_is_serving(sub) &&
        heft__member_get_committed(sub->member) > heft_subscriber_get_version(sub)) {
        heft__subscriber_set_serving(sub, false);
        heft__member_wake(sub->member);
        if (sub->hooks.pause != NULL && sub->hooks.pause(sub->hooks.arg) != 0) {
            heft__log(HEFT_LOG_WARN, "subscriber",
                      "%s: the pause hook failed while leaving service: behind the fleet",
                      heft__member_get_id(sub->member));
        }
    }
}

heft_status_t heft_subscriber_poll(heft_subscriber_t *sub, uint32_t timeout_ms, heft_error_t *err)
{
    heft__order_t order;
    int64_t deadline = heft__clock_mono_ns() + (int64_t)timeout_ms * 1000000;
    stop_serving_if_behind(sub);
    heft__subscriber_expire(sub);
    heft_status_t status = heft__member_await_order(sub->member, deadline, &order, err);
    if (status == HEFT_OK) {
        heft__subscriber_obey(sub, &order);
        heft__order_fini(&order);
    } else {
        status = heft__member_get_contact(sub->member, err);
    }
    (void)pthread_mutex_lock(&sub->lock);
    bool is_suspect = sub->is_suspect;
    (void)pthread_mutex_unlock(&sub->lock);
    if (is_suspect && status == HEFT_OK) {
        status = heft__error_set(err, HEFT_ERR_POISONED,
                                 "%s: its parameters may be broken; it must not serve until it is "
                                 "refilled or restarted",
                                 heft__member_get_id(sub->member));
    }
    return status;
}

/* ---- what anyone may ask ---- */

/* The lock is part of an object that is logically constant here. */
static heft_subscriber_t *lock(const heft_subscriber_t *sub)
{
    union {
        const heft_subscriber_t *in;
        heft_subscriber_t *out;
    } cast = { .in = sub };
    (void)pthread_mutex_lock(&cast.out->lock);
    return cast.out;
}

void heft__subscriber_set_serving(heft_subscriber_t *sub, bool is_serving)
{
    (void)pthread_mutex_lock(&sub->lock);
    sub->is_serving = is_serving;
    (void)pthread_mutex_unlock(&sub->lock);
    heft__member_lock(sub->member)->serving = is_serving;
    heft__member_unlock(sub->member, false); /* what follows reports it */
}

int64_t heft_subscriber_get_version(const heft_subscriber_t *sub)
{
    heft_subscriber_t *locked = lock(sub);
    int64_t version = locked->version;
    (void)pthread_mutex_unlock(&locked->lock);
    return version;
}

int heft_subscriber_is_serving(const heft_subscriber_t *sub)
{
    heft_subscriber_t *locked = lock(sub);
    int is_serving = locked->is_serving;
    (void)pthread_mutex_unlock(&locked->lock);
    return is_serving;
}

uint64_t heft_subscriber_get_digest(const heft_subscriber_t *sub, uint32_t i)
{
    heft_subscriber_t *locked = lock(sub);
    uint64_t digest = i < locked->n_params && locked->version > 0 ? locked->digests[i] : 0;
    (void)pthread_mutex_unlock(&locked->lock);
    return digest;
}
