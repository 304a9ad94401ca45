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

/* ---- ranks of a trainer ---- */

static void deal(int64_t n, uint32_t rank, uint32_t n_ranks, int64_t *begin, int64_t *end)
{
    const int64_t share = (n + n_ranks - 1) / n_ranks;
    *begin = heft__min_i64(rank * share, n);
    *end = heft__min_i64(*begin + share, n);
}

bool pf_hold_rows(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)tensor;
    deal(box->end[0], rank, n_ranks, &box->begin[0], &box->end[0]);
    return true;
}

bool pf_hold_columns(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    if (box->end[1] == 1) {
        return pf_hold_rows(rank, n_ranks, tensor, box);
    }
    deal(box->end[1], rank, n_ranks, &box->begin[1], &box->end[1]);
    return true;
}

bool pf_hold_replicas(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    box->replica = rank / (n_ranks / 2);
    return pf_hold_rows(rank % (n_ranks / 2), n_ranks / 2, tensor, box);
}

bool pf_hold_stages(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)box;
    return tensor % n_ranks == rank;
}

bool pf_hold_copies(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box)
{
    (void)n_ranks;
    (void)tensor;
    box->replica = rank;
    return true;
}

static void add_part(pf_source_t *source, const heft_tensor_info_t *info, const pf_box_t *box)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_part_t part = { .tensor = info->name, .shape = info->shape, .replica = box->replica };
    heft_shape_t shape = info->shape;
    char name[80];
    (void)snprintf(name, sizeof name, "%s%s", box->is_named ? "own." : "", info->name);
    for (int d = 0; d < shape.rank; d++) {
        part.begin[d] = box->begin[d];
        shape.extent[d] = box->end[d] - box->begin[d];
    }
    EXPECT_STATUS(heft_manifest_add(source->manifest, name, info->dtype, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(source->manifest, name, &part, &err), HEFT_OK);
}

static bool is_whole(const heft_tensor_info_t *info, const pf_box_t *box)
{
    return box->replica == 0 && box->begin[0] == 0 && box->begin[1] == 0 &&
           box->end[0] == info->shape.extent[0] &&
           (info->shape.rank == 1 || box->end[1] == info->shape.extent[1]);
}

/* Names of one kind in a manifest, so that they stay in the order of the tensors. */
static void declare(pf_source_t *source, pf_hold_t hold, uint32_t n_ranks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_manifest_t *whole = source->fleet->source.manifest;
    EXPECT_STATUS(heft_manifest_create("source", &source->manifest, &err), HEFT_OK);
    for (uint32_t t = 0; t < heft_manifest_get_n_tensors(whole); t++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(whole, t, &info, &err), HEFT_OK);
        pf_box_t box = { .end = { info.shape.extent[0],
                                  info.shape.rank > 1 ? info.shape.extent[1] : 1 } };
        if (!hold(source->rank, n_ranks, t, &box)) {
            continue;
        }
        if (is_whole(&info, &box)) {
            EXPECT_STATUS(
                heft_manifest_add(source->manifest, info.name, info.dtype, &info.shape, &err),
                HEFT_OK);
        } else {
            add_part(source, &info, &box);
        }
        const size_t bytes =
            (size_t)((box.end[0] - box.begin[0]) * (box.end[1] - box.begin[1]) * 2);
        source->data[source->n] = aligned_alloc(64, (bytes + 64) / 64 * 64);
        assert_non_null(source->data[source->n]);
        source->tensors[source->n] = t;
        source->boxes[source->n++] = box;
    }
    EXPECT_STATUS(heft_manifest_finish(source->manifest, &err), HEFT_OK);
}

void pf_cut_source(pf_source_t *source)
{
    const fm_side_t *whole = &source->fleet->source;
    for (uint32_t i = 0; i < source->n; i++) {
        const pf_box_t *box = &source->boxes[i];
        heft_tensor_info_t info;
        (void)!heft_manifest_query(whole->manifest, source->tensors[i], &info, NULL);
        const int64_t columns = info.shape.rank > 1 ? info.shape.extent[1] : 1;
        const int64_t n = box->end[1] - box->begin[1];
        const uint16_t *from = whole->data[source->tensors[i]];
        uint16_t *to = source->data[i];
        for (int64_t row = box->begin[0]; row < box->end[0]; row++, to += n) {
            memcpy(to, from + row * columns + box->begin[1], (size_t)n * 2);
        }
    }
}

static void create_publisher(pf_source_t *source, uint32_t n_ranks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const pf_fleet_t *fleet = source->fleet;
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(fleet->coordinator);
    opts.n_threads = fleet->opts.n_threads;
    opts.deadline_ms = fleet->opts.deadline_ms;
    opts.rank = source->rank;
    opts.n_ranks = n_ranks;
    EXPECT_STATUS(heft__publisher_create_over(&fleet->transport, 1, &opts, source->manifest,
                                              (const void *const *)source->data, &source->pub,
                                              &err),
                  HEFT_OK);
}

void pf_add_source(pf_fleet_t *fleet, uint32_t rank)
{
    pf_source_t *source = &fleet->sources[rank];
    *source = (pf_source_t){ .fleet = fleet, .rank = rank };
    declare(source, fleet->opts.hold, fleet->n_sources);
    create_publisher(source, fleet->n_sources);
    if (rank == 0) {
        fleet->pub = source->pub;
    }
}

void pf_remove_source(pf_source_t *source)
{
    heft_publisher_destroy(source->pub);
    source->pub = NULL;
    for (uint32_t i = 0; i < source->n; i++) {
        free(source->data[i]);
    }
    heft_manifest_destroy(source->manifest);
    source->manifest = NULL;
    source->n = 0;
}

static void *push_alone(void *arg)
{
    pf_source_t *source = arg;
    source->status =
        heft_publisher_push(source->pub, source->version, &source->result, &source->err);
    return NULL;
}

void pf_start_push(pf_source_t *source, int64_t version)
{
    source->version = version;
    source->err = (heft_error_t)HEFT_ERROR_INIT;
    assert_int_equal(pthread_create(&source->thread, NULL, push_alone, source), 0);
}

void pf_join_push(pf_source_t *source)
{
    (void)pthread_join(source->thread, NULL);
}

/* All ranks, and all get the same. */
static heft_status_t push_together(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result,
                                   heft_error_t *err)
{
    const pf_source_t *first = &fleet->sources[0];
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_cut_source(&fleet->sources[r]);
    }
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_start_push(&fleet->sources[r], version);
    }
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_join_push(&fleet->sources[r]);
    }
    for (uint32_t r = 1; r < fleet->n_sources; r++) {
        const pf_source_t *other = &fleet->sources[r];
        assert_int_equal(other->status, first->status);
        assert_string_equal(other->result.state, first->result.state);
        assert_int_equal(other->result.round_seq, first->result.round_seq);
        assert_int_equal(other->result.n_bytes, first->result.n_bytes);
        assert_string_equal(other->err.message, first->err.message);
    }
    *err = first->err;
    if (result != NULL) {
        *result = first->result;
    }
    return first->status;
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
    opts.n_threads = n_threads_of(&fleet->opts);
    heft__transport_t *transport = fleet->transport;
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
    c.relay = opts->relay;
    c.relay_fan_out = opts->relay_fan_out;
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

/* HEFT_TEST_TRANSPORT=ucx: the same promises between hosts, by tcp on this one. */
static void choose_transport(pf_fleet_t *fleet)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const char *wanted = getenv("HEFT_TEST_TRANSPORT");
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    fleet->transport =
        fleet->loop != NULL ? heft__loop_get_transport(fleet->loop) : heft__transport_get_shm();
    if (fleet->loop == NULL && wanted != NULL && strcmp(wanted, "ucx") == 0) {
        EXPECT_STATUS(heft__ucx_acquire(&opts, &fleet->ucx, &err), HEFT_OK);
        fleet->transport = heft__ucx_get_transport(fleet->ucx);
    }
}

/* One source with everything. */
static void create_whole(pf_fleet_t *fleet, const pf_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    p.url = heft_coordinator_get_url(fleet->coordinator);
    p.n_threads = n_threads_of(opts);
    p.deadline_ms = opts->deadline_ms;
    EXPECT_STATUS(heft__publisher_create_over(&fleet->transport, 1, &p, fleet->source.manifest,
                                              (const void *const *)fleet->source.data, &fleet->pub,
                                              &err),
                  HEFT_OK);
}

void pf_start(pf_fleet_t *fleet, const pf_opts_t *opts)
{
    *fleet = (pf_fleet_t){ .loop = opts->loop, .in_place = opts->in_place, .opts = *opts };
    fm_model_init(&fleet->model, opts->width);
    if (opts->has_twin) {
        fm_model_add_twin(&fleet->model);
    }
    start_coordinator(fleet, opts, 0);
    choose_transport(fleet);
    fm_source_init(&fleet->model, &fleet->source);
    if (opts->n_sources == 0) {
        create_whole(fleet, opts);
    }
    fleet->n_sources = opts->n_sources;
    for (uint32_t r = 0; r < opts->n_sources; r++) {
        pf_add_source(fleet, r);
    }
    for (uint32_t replica = 0; replica < opts->n_replicas; replica++) {
        for (uint32_t rank = 0; rank < FM_RANKS; rank++) {
            (void)pf_add_engine(fleet, replica, rank);
        }
    }
}

void pf_stop(pf_fleet_t *fleet)
{
    if (fleet->n_sources == 0) {
        heft_publisher_destroy(fleet->pub);
    }
    for (uint32_t r = 0; r < fleet->n_sources; r++) {
        pf_remove_source(&fleet->sources[r]);
    }
    for (uint32_t i = 0; i < fleet->n_engines; i++) {
        stop_engine(&fleet->engines[i]);
    }
    heft__ucx_release(fleet->ucx);
    heft_coordinator_stop(fleet->coordinator);
    fm_side_fini(&fleet->source);
    fm_model_fini(&fleet->model);
}

heft_status_t pf_push(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result,
                      heft_error_t *err)
{
    fm_source_fill(&fleet->model, &fleet->source, version);
    if (fleet->n_sources > 0) {
        return push_together(fleet, version, result, err);
    }
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
    int64_t deadline = heft__clock_mono_ns() + 20000000000;
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
