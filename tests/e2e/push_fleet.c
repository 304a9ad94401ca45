/* SPDX-License-Identifier: Apache-2.0 */
#include "push_fleet.h"

#include <sched.h>

/* ---- hooks ---- */

static bool take_failure(atomic_int *count)
{
    if (atomic_load(count) == 0) {
        return false;
    }
    atomic_fetch_sub(count, 1);
    return true;
}

static int on_pause(void *arg)
{
    pf_engine_t *e = arg;
    const pf_hook_t in_pause = atomic_exchange(&e->in_pause, NULL);
    if (in_pause != NULL) {
        in_pause(e);
    }
    if (take_failure(&e->fail_pause)) {
        return 1;
    }
    if (!e->is_paused) {
        (void)pthread_mutex_lock(&e->gate); /* the reader has finished its pass */
        e->is_paused = true;
    }
    if (take_failure(&e->shift_in_pause)) {
        e->pointers[2] = (uint8_t *)e->params.data[2] + 64;
    }
    atomic_fetch_add(&e->n_paused, 1);
    return 0;
}

/* What an engine derives here (caches, packed weights) comes from one whole version, this one. */
static int on_flipped(void *arg, int64_t version)
{
    pf_engine_t *e = arg;
    bool is_whole = heft_subscriber_get_version(e->sub) == version;
    for (uint32_t i = 0; i < FM_PARAMS; i++) {
        is_whole = is_whole && heft_digest(e->params.data[i], e->params.bytes[i]) ==
                                   heft_subscriber_get_digest(e->sub, i);
    }
    atomic_fetch_add(&e->n_torn, !is_whole);
    const pf_hook_t in_flipped = atomic_exchange(&e->in_flipped, NULL);
    if (in_flipped != NULL) {
        in_flipped(e);
    }
    atomic_fetch_add(&e->n_flipped, 1);
    return take_failure(&e->fail_flipped) ? 1 : 0;
}

static int on_resume(void *arg, int64_t version)
{
    pf_engine_t *e = arg;
    if (take_failure(&e->fail_resume)) {
        return 1;
    }
    atomic_store(&e->resumed_version, version);
    if (e->is_paused) {
        e->is_paused = false;
        (void)pthread_mutex_unlock(&e->gate);
    }
    atomic_fetch_add(&e->n_resumed, 1);
    return 0;
}

/* ---- threads ---- */

static void *poll_orders(void *arg)
{
    pf_engine_t *e = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    while (!atomic_load(&e->stop)) {
        atomic_store(&e->last_status, (int)heft_subscriber_poll(e->sub, 50, &err));
    }
    if (e->is_paused) {
        e->is_paused = false;
        (void)pthread_mutex_unlock(&e->gate);
    }
    return NULL;
}

static void *read_params(void *arg)
{
    pf_engine_t *e = arg;
    while (!atomic_load(&e->stop)) {
        (void)pthread_mutex_lock(&e->gate);
        bool is_serving = heft_subscriber_is_serving(e->sub) != 0;
        bool is_torn = false;
        for (uint32_t i = 0; is_serving && i < FM_PARAMS; i++) {
            is_torn = is_torn || heft_digest(e->params.data[i], e->params.bytes[i]) !=
                                     heft_subscriber_get_digest(e->sub, i);
        }
        (void)pthread_mutex_unlock(&e->gate);
        if (is_serving) {
            atomic_fetch_add(&e->n_reads, 1);
            atomic_fetch_add(&e->n_torn, is_torn);
        }
        (void)sched_yield();
    }
    return NULL;
}

/* ---- the fleet ---- */

static uint32_t n_threads_of(const pf_opts_t *opts)
{
    return opts->n_threads;
}

pf_engine_t *pf_add_engine(pf_fleet_t *fleet, uint32_t replica, uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    assert_true(fleet->n_engines < PF_MAX_ENGINES);
    pf_engine_t *e = &fleet->engines[fleet->n_engines++];
    *e = (pf_engine_t){ .fleet = fleet, .replica = replica, .rank = rank };
    (void)pthread_mutex_init(&e->gate, NULL);
    fm_params_init(&fleet->model, &e->params);
    memcpy(e->pointers, e->params.data, sizeof e->pointers);
    e->hooks = (heft_hooks_t)HEFT_HOOKS_INIT;
    e->hooks.arg = e;
    e->hooks.pause = on_pause;
    e->hooks.flipped = on_flipped;
    e->hooks.resume = on_resume;
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet->coordinator);
    opts.replica = replica;
    opts.rank = rank;
    opts.hooks = &e->hooks;
    opts.in_place = fleet->in_place >> replica & 1;
    opts.buffer_bytes = opts.in_place;
    opts.n_threads = fleet->pub != NULL ? fleet->pub->n_threads : 1;
    heft__transport_t *transport =
        fleet->loop != NULL ? heft__loop_get_transport(fleet->loop) : heft__transport_get_shm();
    const heft__destination_t destination = { .recipe = fleet->model.recipe,
                                              .bindings = fleet->model.bindings,
                                              .manifest = e->params.manifest,
                                              .pointers = e->pointers };
    EXPECT_STATUS(heft__subscriber_create_over(transport, &opts, &destination, &e->sub, &err),
                  HEFT_OK);
    assert_int_equal(pthread_create(&e->poller, NULL, poll_orders, e), 0);
    assert_int_equal(pthread_create(&e->reader, NULL, read_params, e), 0);
    return e;
}

static void stop_engine(pf_engine_t *e)
{
    if (e->sub == NULL) {
        return;
    }
    atomic_store(&e->stop, true);
    (void)pthread_join(e->poller, NULL);
    (void)pthread_join(e->reader, NULL);
    heft_subscriber_destroy(e->sub);
    e->sub = NULL;
    fm_side_fini(&e->params);
    (void)pthread_mutex_destroy(&e->gate);
}

void pf_remove_engine(pf_fleet_t *fleet, pf_engine_t *engine)
{
    (void)fleet;
    stop_engine(engine);
}

/* port 0: any. */
static void start_coordinator(pf_fleet_t *fleet, const pf_opts_t *opts, uint16_t port)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_opts_t c = HEFT_COORDINATOR_OPTS_INIT;
    uint32_t phase_ms = opts->phase_ms != 0 ? opts->phase_ms : 20000;
    c.preflight_ms = c.prepare_ms = c.stage_ms = c.verify_ms = c.pause_ms = phase_ms;
    c.decide_ms = c.flip_ms = c.resume_ms = c.release_ms = c.abort_ms = phase_ms;
    c.contact_ms = opts->contact_ms != 0 ? opts->contact_ms : 20000;
    c.state_file = opts->state_file;
    c.no_feed = opts->no_feed;
    c.port = port;
    EXPECT_STATUS(heft_coordinator_start(&c, &fleet->coordinator, &err), HEFT_OK);
}

void pf_restart_coordinator(pf_fleet_t *fleet)
{
    const char *url = heft_coordinator_get_url(fleet->coordinator);
    const uint16_t port = (uint16_t)strtol(strrchr(url, ':') + 1, NULL, 10);
    heft_coordinator_stop(fleet->coordinator);
    start_coordinator(fleet, &fleet->opts, port);
}

void pf_start(pf_fleet_t *fleet, const pf_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *fleet = (pf_fleet_t){ .loop = opts->loop, .in_place = opts->in_place, .opts = *opts };
    fm_model_init(&fleet->model, opts->width);
    if (opts->has_twin) {
        fm_model_add_twin(&fleet->model);
    }
    start_coordinator(fleet, opts, 0);
    fm_source_init(&fleet->model, &fleet->source);
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    p.url = heft_coordinator_get_url(fleet->coordinator);
    p.n_threads = n_threads_of(opts);
    p.deadline_ms = opts->deadline_ms;
    heft__transport_t *const transport[1] = { opts->loop != NULL
                                                  ? heft__loop_get_transport(opts->loop)
                                                  : heft__transport_get_shm() };
    EXPECT_STATUS(heft__publisher_create_over(transport, 1, &p, fleet->source.manifest,
                                              (const void *const *)fleet->source.data, &fleet->pub,
                                              &err),
                  HEFT_OK);
    for (uint32_t replica = 0; replica < opts->n_replicas; replica++) {
        for (uint32_t rank = 0; rank < FM_RANKS; rank++) {
            (void)pf_add_engine(fleet, replica, rank);
        }
    }
}

void pf_stop(pf_fleet_t *fleet)
{
    heft_publisher_destroy(fleet->pub);
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        stop_engine(&fleet->engines[i]);
    }
    heft_coordinator_stop(fleet->coordinator);
    fm_side_fini(&fleet->source);
    fm_model_fini(&fleet->model);
}

heft_status_t pf_push(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result,
                      heft_error_t *err)
{
    fm_source_fill(&fleet->model, &fleet->source, version);
    return heft_publisher_push(fleet->pub, version, result, err);
}

void pf_expect_version(pf_fleet_t *fleet, int64_t version)
{
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        pf_engine_t *e = &fleet->engines[i];
        if (e->sub == NULL) {
            continue;
        }
        assert_int_equal(heft_subscriber_get_version(e->sub), version);
        assert_int_equal(heft_subscriber_is_serving(e->sub), version > 0);
        if (version > 0) {
            assert_true(fm_params_equal(&fleet->model, &e->params, e->rank, version));
            for (uint32_t p = 0; p < FM_PARAMS; p++) {
                assert_true(heft_subscriber_get_digest(e->sub, p) ==
                            heft_digest(e->params.data[p], e->params.bytes[p]));
            }
        }
    }
}

void pf_unshift(pf_engine_t *engine)
{
    engine->pointers[2] = engine->params.data[2];
}

void pf_await(atomic_int *counter, int value)
{
    int64_t deadline = heft__clock_mono_ns() + 5000000000;
    while (atomic_load(counter) < value) {
        if (heft__clock_mono_ns() > deadline) {
            fail_msg("a counter stands at %d, %d expected", atomic_load(counter), value);
        }
        (void)sched_yield();
    }
}

void pf_await_serving(pf_engine_t *engine)
{
    int64_t deadline = heft__clock_mono_ns() + 5000000000;
    while (!heft_subscriber_is_serving(engine->sub)) {
        if (heft__clock_mono_ns() > deadline) {
            fail_msg("engine %u.%u does not serve", engine->replica, engine->rank);
        }
        (void)sched_yield();
    }
}

void pf_expect_untorn(pf_fleet_t *fleet, bool some)
{
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        if (some) {
            pf_await(&fleet->engines[i].n_reads, 1); /* a reader may not have had its turn yet */
        }
        assert_int_equal(atomic_load(&fleet->engines[i].n_torn), 0);
    }
}
