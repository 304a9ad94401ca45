/* SPDX-License-Identifier: Apache-2.0 */
#include "deliver_pair.h"

#include <jansson.h>
#include <sched.h>

#include "base/base.h"

/* ---- hooks ---- */

static int on_pause(void *arg)
{
    dp_pair_t *p = arg;
    atomic_fetch_add(&p->n_paused, 1);
    return p->on_pause != NULL ? p->on_pause(p) : 0;
}

static int on_load(void *arg, const heft_input_t *inputs, uint32_t n)
{
    dp_pair_t *p = arg;
    atomic_fetch_add(&p->n_loaded, 1);
    return p->on_load(p, inputs, n);
}

static int on_flipped(void *arg, int64_t version)
{
    dp_pair_t *p = arg;
    (void)version;
    atomic_fetch_add(&p->n_flipped, 1);
    return p->on_flipped != NULL ? p->on_flipped(p) : 0;
}

static int on_resume(void *arg, int64_t version)
{
    (void)version;
    atomic_fetch_add(&((dp_pair_t *)arg)->n_resumed, 1);
    return 0;
}

static const char *explain(void *arg)
{
    return ((dp_pair_t *)arg)->reason;
}

/* ---- sides ---- */

static heft_manifest_t *make_manifest(const char *side, const dp_tensor_t *tensors)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create(side, &m, &err), HEFT_OK);
    for (const dp_tensor_t *t = tensors; t->name != NULL; t++) {
        EXPECT_STATUS(heft_manifest_add(m, t->name, t->dtype, &t->shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    assert_true(heft_manifest_get_n_tensors(m) <= DP_MAX);
    return m;
}

static void *new_block(int fill)
{
    void *block = aligned_alloc(64, DP_BYTES);
    assert_non_null(block);
    memset(block, fill, DP_BYTES);
    return block;
}

void dp_start(dp_pair_t *p, const dp_tensor_t *source, const dp_tensor_t *params)
{
    dp_start_over(p, heft__transport_get_shm(), source, params);
}

void dp_start_over(dp_pair_t *p, heft__transport_t *transport, const dp_tensor_t *source,
                   const dp_tensor_t *params)
{
    heft_error_t err = HEFT_ERROR_INIT;
    memset(p, 0, sizeof *p);
    p->transport = transport;
    p->source = make_manifest("source", source);
    p->params = make_manifest("destination", params);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(p->source); i++) {
        p->data[i] = new_block(0x11);
    }
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(p->params); i++) {
        p->blocks[i] = new_block(0xcc);
        p->live[i].data = p->blocks[i];
    }
    p->hooks = (heft_hooks_t)HEFT_HOOKS_INIT;
    p->hooks.arg = p;
    p->hooks.pause = on_pause;
    p->hooks.flipped = on_flipped;
    p->hooks.resume = on_resume;
    p->hooks.explain = explain;
    EXPECT_STATUS(heft_coordinator_start(NULL, &p->coordinator, &err), HEFT_OK);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(p->coordinator);
    EXPECT_STATUS(heft__publisher_create_over(&p->transport, 1, &opts, p->source,
                                              (const void *const *)p->data, &p->pub, &err),
                  HEFT_OK);
}

static void set_contract(dp_pair_t *p, heft_contract_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_manifest_t *const destinations[2] = { p->params, p->params };
    opts->destinations = destinations;
    opts->n_destinations = opts->n_tapes > 0 ? opts->n_tapes : 1;
    heft_contract_destroy(p->contract);
    EXPECT_STATUS(heft_contract_create(p->source, opts, &p->contract, NULL, &err), HEFT_OK);
}

void dp_set_recipe(dp_pair_t *p, const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    EXPECT_STATUS(heft_recipe_parse("pair", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    opts.recipe = recipe;
    opts.bindings = bindings;
    set_contract(p, &opts);
    heft_bindings_destroy(bindings);
    heft_recipe_destroy(recipe);
}

void dp_set_tape(dp_pair_t *p, const heft_tape_t *tape, const heft_exception_t *exceptions,
                 uint32_t n_exceptions)
{
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    const heft_tape_t *const tapes[1] = { tape };
    opts.tapes = tapes;
    opts.n_tapes = 1;
    opts.exceptions = exceptions;
    opts.n_exceptions = n_exceptions;
    set_contract(p, &opts);
}

void dp_set_tapes(dp_pair_t *p, const heft_tape_t *const *tapes, uint32_t n, uint32_t first_rank,
                  bool is_partial)
{
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    opts.tapes = tapes;
    opts.n_tapes = n;
    opts.first_rank = first_rank;
    opts.partial = is_partial;
    set_contract(p, &opts);
}

/* ---- the engine ---- */

static void *poll_until_stopped(void *arg)
{
    dp_pair_t *p = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    while (!atomic_load(&p->stop)) {
        (void)!heft_subscriber_poll(p->sub, 20, &err);
    }
    return NULL;
}

heft_status_t dp_join(dp_pair_t *p, const heft_subscriber_opts_t *given, heft_error_t *err)
{
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    if (given != NULL) {
        opts = *given;
    }
    p->hooks.load = p->on_load != NULL ? on_load : NULL;
    opts.url = heft_coordinator_get_url(p->coordinator);
    opts.hooks = &p->hooks;
    heft__destination_t destination;
    heft_status_t status = heft__destination_from_contract(p->contract, p->params, p->live,
                                                           opts.rank, &destination, err);
    if (status == HEFT_OK) {
        status = heft__subscriber_create_over(p->transport, &opts, &destination, &p->sub, err);
    }
    if (status == HEFT_OK) {
        dp_go_on(p);
    }
    return status;
}

void dp_go_on(dp_pair_t *p)
{
    atomic_store(&p->stop, false);
    assert_int_equal(pthread_create(&p->poller, NULL, poll_until_stopped, p), 0);
    p->has_poller = true;
}

void dp_hold(dp_pair_t *p)
{
    if (p->has_poller) {
        atomic_store(&p->stop, true);
        assert_int_equal(pthread_join(p->poller, NULL), 0);
        p->has_poller = false;
    }
}

void dp_leave(dp_pair_t *p)
{
    dp_hold(p);
    heft_subscriber_destroy(p->sub);
    p->sub = NULL;
}

void dp_stop(dp_pair_t *p)
{
    heft_publisher_destroy(p->pub);
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        heft_publisher_destroy(p->ranks[r].pub);
        heft_manifest_destroy(p->ranks[r].manifest);
        for (int i = 0; i < DP_MAX; i++) {
            free(p->ranks[r].data[i]);
        }
    }
    dp_leave(p);
    heft_coordinator_stop(p->coordinator);
    heft_contract_destroy(p->contract);
    heft_manifest_destroy(p->source);
    heft_manifest_destroy(p->params);
    for (int i = 0; i < DP_MAX; i++) {
        free(p->data[i]);
        free(p->blocks[i]);
    }
}

/* ---- several ranks of the source ---- */

static void declare_rows(const dp_pair_t *p, dp_rank_t *rank, uint32_t r, uint32_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_manifest_create("source", &rank->manifest, &err), HEFT_OK);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(p->source); i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(p->source, i, &info, &err), HEFT_OK);
        const int64_t rows = info.shape.extent[0];
        const int64_t share = (rows + n - 1) / n;
        heft_part_t part = { .shape = info.shape, .begin = { heft__min_i64(r * share, rows) } };
        heft_shape_t shape = info.shape;
        shape.extent[0] = heft__min_i64(share, rows - part.begin[0]);
        EXPECT_STATUS(heft_manifest_add(rank->manifest, info.name, info.dtype, &shape, &err),
                      HEFT_OK);
        EXPECT_STATUS(heft_manifest_set_part(rank->manifest, info.name, &part, &err), HEFT_OK);
        rank->offset[i] = info.n_bytes / rows * part.begin[0];
        rank->bytes[i] = info.n_bytes / rows * shape.extent[0];
        rank->data[i] = new_block(0x11);
    }
    EXPECT_STATUS(heft_manifest_finish(rank->manifest, &err), HEFT_OK);
}

void dp_split_source(dp_pair_t *p, uint32_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_publisher_destroy(p->pub);
    p->pub = NULL;
    p->n_ranks = n;
    for (uint32_t r = 0; r < n; r++) {
        dp_rank_t *rank = &p->ranks[r];
        heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
        declare_rows(p, rank, r, n);
        opts.url = heft_coordinator_get_url(p->coordinator);
        opts.rank = r;
        opts.n_ranks = n;
        EXPECT_STATUS(heft__publisher_create_over(&p->transport, 1, &opts, rank->manifest,
                                                  (const void *const *)rank->data, &rank->pub,
                                                  &err),
                      HEFT_OK);
    }
}

static void *push_rank(void *arg)
{
    dp_rank_t *rank = arg;
    rank->status = heft_publisher_push(rank->pub, rank->version, NULL, &rank->err);
    return NULL;
}

static heft_status_t push_ranks(dp_pair_t *p, int64_t version, heft_error_t *err)
{
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        dp_rank_t *rank = &p->ranks[r];
        for (uint32_t i = 0; i < heft_manifest_get_n_tensors(p->source); i++) {
            memcpy(rank->data[i], (uint8_t *)p->data[i] + rank->offset[i], (size_t)rank->bytes[i]);
        }
        rank->version = version;
        rank->err = (heft_error_t)HEFT_ERROR_INIT;
        assert_int_equal(pthread_create(&rank->thread, NULL, push_rank, rank), 0);
    }
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        assert_int_equal(pthread_join(p->ranks[r].thread, NULL), 0);
    }
    for (uint32_t r = 1; r < p->n_ranks; r++) {
        assert_int_equal(p->ranks[r].status, p->ranks[0].status);
        assert_string_equal(p->ranks[r].err.message, p->ranks[0].err.message);
    }
    *err = p->ranks[0].err;
    return p->ranks[0].status;
}

/* ---- rounds ---- */

uint8_t dp_byte(int64_t version, int tensor, int64_t at)
{
    uint64_t seed = (uint64_t)version * 1000003u + (uint64_t)tensor * 8191u + (uint64_t)at;
    return (uint8_t)heft_test_random(&seed);
}

heft_status_t dp_push(dp_pair_t *p, int64_t version, heft_error_t *err)
{
    for (int i = 0; i < DP_MAX && p->data[i] != NULL; i++) {
        for (int64_t k = 0; k < DP_BYTES; k++) {
            ((uint8_t *)p->data[i])[k] = dp_byte(version, i, k);
        }
    }
    return p->n_ranks > 0 ? push_ranks(p, version, err)
                          : heft_publisher_push(p->pub, version, NULL, err);
}

void dp_await_serving(dp_pair_t *p, int64_t version)
{
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    while (!heft_subscriber_is_serving(p->sub) || heft_subscriber_get_version(p->sub) != version) {
        if (heft__clock_mono_ns() > deadline) {
            fail_msg("version %lld, serving %d", (long long)heft_subscriber_get_version(p->sub),
                     heft_subscriber_is_serving(p->sub));
        }
        (void)sched_yield();
    }
}

int dp_verify_live(dp_pair_t *p)
{
    static int n_asked;
    heft_error_t err = HEFT_ERROR_INIT;
    const char *url = heft_coordinator_get_url(p->coordinator);
    char text[96];
    char *reply = NULL;
    (void)snprintf(text, sizeof text, "{\"key\":\"live %d\"}", n_asked++);
    EXPECT_STATUS(heft_client_post(url, "/v1/verify", text, 20000, &reply, &err), HEFT_OK);
    json_t *root = json_loads(reply, 0, NULL);
    heft_string_free(reply);
    (void)snprintf(text, sizeof text, "/v1/rounds/%s?wait=10",
                   json_string_value(json_object_get(root, "round")));
    json_decref(root);
    EXPECT_STATUS(heft_client_get(url, text, 20000, &reply, &err), HEFT_OK);
    root = json_loads(reply, 0, NULL);
    heft_string_free(reply);
    const json_t *live = json_array_get(json_object_get(root, "live"), 0);
    assert_non_null(live);
    const json_t *match = json_object_get(live, "match");
    const int result = match == NULL ? -1 : json_is_true(match);
    json_decref(root);
    return result;
}
