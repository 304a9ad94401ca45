/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds into an engine as it really is: strided memory, state of its own, declared by a contract.
 */
#include "deliver_pair.h"

#include "base/base.h"
#include "sync/member_private.h"
#include "tape_builder.h"

static const char same[] = "\"{rest*}\" [...] -> \"{rest*}\" [...]\n";

static const dp_tensor_t two[] = { { "a", HEFT_DTYPE_F32, DP_SHAPE2(4, 3) },
                                   { "b", HEFT_DTYPE_BF16, DP_SHAPE2(20, 30) },
                                   { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const int64_t columns[2] = { 6, 1 }; /* fp32 [4, 6] cut to 3 columns */
static const int64_t transposed[2] = { 1, 20 };

/* a: gaps of three elements; b: transposed, at an odd address. */
static void start_strided_over(dp_pair_t *p, heft__transport_t *transport)
{
    dp_start_over(p, transport, two, two);
    dp_set_recipe(p, same);
    p->live[0].strides = columns;
    p->live[1].strides = transposed;
    p->live[1].data = p->blocks[1] + 33;
}

static void start_strided(dp_pair_t *p)
{
    start_strided_over(p, heft__transport_get_shm());
}

static void expect_strided(const dp_pair_t *p, int64_t version)
{
    for (int64_t i = 0; i < 24; i++) { /* elements of the storage behind a */
        for (int64_t k = 0; k < 4; k++) {
            const uint8_t want =
                i % 6 < 3 ? dp_byte(version, 0, (i / 6 * 3 + i % 6) * 4 + k) : 0xcc;
            assert_int_equal(p->blocks[0][4 * i + k], want);
        }
    }
    assert_int_equal(p->blocks[0][96], 0xcc);
    for (int64_t row = 0; row < 20; row++) {
        for (int64_t column = 0; column < 30; column++) {
            for (int64_t k = 0; k < 2; k++) {
                assert_int_equal(p->blocks[1][33 + 2 * (column * 20 + row) + k],
                                 dp_byte(version, 1, 2 * (row * 30 + column) + k));
            }
        }
    }
    assert_int_equal(p->blocks[1][32], 0xcc);
    assert_int_equal(p->blocks[1][33 + 1200], 0xcc);
}

static void strided_parameters_are_delivered_and_gaps_kept(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    for (uint8_t in_place = 0; in_place <= 1; in_place++) {
        heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
        opts.in_place = in_place;
        opts.buffer_bytes = in_place;
        opts.n_threads = 1 + in_place;
        start_strided(&p);
        EXPECT_STATUS(dp_join(&p, &opts, &err), HEFT_OK);
        for (int64_t version = 1; version <= 2; version++) {
            EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
            expect_strided(&p, version);
            /* a digest does not depend on strides */
            assert_true(heft_subscriber_get_digest(p.sub, 0) == heft_digest(p.data[0], 48));
            assert_true(heft_subscriber_get_digest(p.sub, 1) == heft_digest(p.data[1], 1200));
            assert_int_equal(dp_verify_live(&p), 1);
        }
        p.blocks[0][12] ^= 1; /* a gap: nobody's */
        assert_int_equal(dp_verify_live(&p), 1);
        p.blocks[0][24] ^= 1;
        assert_int_equal(dp_verify_live(&p), 0);
        dp_stop(&p);
    }
}

static int restride(dp_pair_t *p)
{
    static const int64_t other[2] = { 5, 1 };
    p->live[0].strides = other;
    return 0;
}

static void strides_are_compared_before_every_flip(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start_strided(&p);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    p.on_pause = restride;
    assert_int_not_equal(dp_push(&p, 2, &err), HEFT_OK);
    EXPECT_MESSAGE("parameter \"a\": the stride of dimension 0 was 6 and is 5");
    assert_int_equal(heft_subscriber_get_version(p.sub), 1);
    dp_await_serving(&p, 1);
    expect_strided(&p, 1);
    p.on_pause = NULL;
    p.live[0].strides = columns;
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_OK);
    expect_strided(&p, 2);
    dp_stop(&p);
}

static int break_off(dp_pair_t *p)
{
    (void)p;
    return 1;
}

static void what_a_failed_hook_says_reaches_the_caller(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start_strided(&p);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    p.on_pause = break_off;
    p.reason = "RuntimeError: 3 requests are still running";
    assert_int_not_equal(dp_push(&p, 1, &err), HEFT_OK);
    EXPECT_MESSAGE("the pause hook failed: RuntimeError: 3 requests are still running");
    dp_stop(&p);
}

/* ---- state of the engine's own ---- */

static const dp_tensor_t norm[] = { { "weight", HEFT_DTYPE_U8, DP_SHAPE1(100) },
                                    { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const dp_tensor_t norm_params[] = { { "plus_one", HEFT_DTYPE_U8, DP_SHAPE1(100) },
                                           { "weight", HEFT_DTYPE_U8, DP_SHAPE1(100) },
                                           { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const char norm_recipe[] = "\"weight\" [d] -> \"weight\" [d]\n"
                                  "derived \"plus_one\" because \"weight + 1\"\n";

static int compute_plus_one(dp_pair_t *p)
{
    for (int i = 0; i < 100; i++) {
        p->blocks[0][i] = (uint8_t)(p->blocks[1][i] + 1);
    }
    return 0;
}

static void derived_state_is_recomputed_once_for_each_version(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, norm, norm_params);
    dp_set_recipe(&p, norm_recipe);
    p.on_flipped = compute_plus_one;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    for (int64_t version = 1; version <= 2; version++) {
        EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(p.blocks[1][i], dp_byte(version, 0, i));
            assert_int_equal(p.blocks[0][i], (uint8_t)(dp_byte(version, 0, i) + 1));
        }
        assert_int_equal(atomic_load(&p.n_paused), version);
        assert_int_equal(atomic_load(&p.n_flipped), version);
        assert_int_equal(atomic_load(&p.n_resumed), version);
        /* what is derived is compared with what it was once the hook had computed it */
        assert_true(heft_subscriber_get_digest(p.sub, 0) == heft_digest(p.blocks[0], 100));
        assert_int_equal(dp_verify_live(&p), 1);
    }
    p.blocks[0][7] ^= 1;
    assert_int_equal(dp_verify_live(&p), 0);
    dp_stop(&p);
}

static void derived_without_a_hook_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, norm, norm_params);
    dp_set_recipe(&p, norm_recipe);
    p.hooks.flipped = NULL;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("parameter \"plus_one\" is derived");
    dp_stop(&p);
}

/* Packed in its own way once the bytes are live, as kernels want it. */
static int repack(dp_pair_t *p)
{
    for (int i = 0; i < 50; i++) {
        const uint8_t kept = p->blocks[0][i];
        p->blocks[0][i] = p->blocks[0][99 - i];
        p->blocks[0][99 - i] = kept;
    }
    return 0;
}

static void post_processed_parameters_are_recorded(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, norm, norm);
    dp_set_recipe(&p, same);
    p.live[0].flags = HEFT_PARAM_RECORDED;
    p.on_flipped = repack;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    for (int64_t version = 1; version <= 2; version++) {
        EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
        assert_int_equal(p.blocks[0][0], dp_byte(version, 0, 99));
        assert_true(heft_subscriber_get_digest(p.sub, 0) == heft_digest(p.blocks[0], 100));
        assert_int_equal(dp_verify_live(&p), 1);
    }
    dp_stop(&p);
}

/* ---- late join ---- */

/* Another engine of the same contract, as replica 1, with memory of its own. */
static void join_late(const dp_pair_t *p, dp_pair_t *late)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    memset(late, 0, sizeof *late);
    late->coordinator = p->coordinator;
    late->contract = p->contract;
    late->params = p->params;
    late->transport = p->transport;
    late->hooks = p->hooks;
    late->hooks.arg = late;
    late->on_flipped = p->on_flipped;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(p->params); i++) {
        late->blocks[i] = aligned_alloc(64, DP_BYTES);
        assert_non_null(late->blocks[i]);
        memset(late->blocks[i], 0xcc, DP_BYTES);
        late->live[i] = p->live[i];
        late->live[i].data = late->blocks[i] + ((uint8_t *)p->live[i].data - p->blocks[i]);
    }
    opts.replica = 1;
    EXPECT_STATUS(dp_join(late, &opts, &err), HEFT_OK);
}

static void leave_late(dp_pair_t *late)
{
    dp_leave(late);
    for (int i = 0; i < DP_MAX; i++) {
        free(late->blocks[i]);
    }
}

/* From strided memory into strided memory, with gaps on both sides. */
static void strided_parameters_are_fed_to_who_joins_late(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__loop_t *loop = NULL;
    EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
    heft__transport_t *const transports[] = { heft__transport_get_shm(),
                                              heft__loop_get_transport(loop) };
    for (int i = 0; i < 2; i++) {
        dp_pair_t p;
        dp_pair_t late;
        start_strided_over(&p, transports[i]);
        EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
        EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
        join_late(&p, &late);
        dp_await_serving(&late, 1);
        expect_strided(&late, 1);
        expect_strided(&p, 1);
        assert_int_equal(atomic_load(&p.n_paused), 1); /* for the push alone */
        leave_late(&late);
        dp_stop(&p);
    }
    heft__loop_destroy(loop);
}

/* Each allocation in turn fails while it gets ready to feed: it says so, and goes on serving. */
static void a_feeder_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_pair_t late;
    start_strided(&p);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    join_late(&p, &late);
    dp_await_serving(&late, 1);
    dp_hold(&p);
    heft__peer_t peer = { .id = "destination.heft.1.0", .moves = true };
    memcpy(peer.endpoint, late.sub->member->digests[HEFT__OBJECT_ENDPOINT], sizeof peer.endpoint);
    heft__order_t order = { .feeds = true, .version = 1, .left_ms = 10000, .n_peers = 1 };
    order.peers = &peer;
    order.round = (heft__round_id_t){ .epoch = INT64_C(1) << 50, .seq = 1 };
    int n_failed = 0;
    for (long k = 0; k < 60; k++) { /* those of this thread alone fail */
        order.round.seq++;
        order.target = HEFT__PHASE_PREFLIGHT;
        heft__alloc_fail_at(k);
        heft__subscriber_feed(p.sub, &order);
        heft__alloc_fail_at(-1);
        const heft__result_t result = heft__member_lock(p.sub->member)->result;
        heft__member_unlock(p.sub->member, false);
        assert_true(result == HEFT__RESULT_OK || result == HEFT__RESULT_FAILED);
        n_failed += result == HEFT__RESULT_FAILED;
        assert_int_equal(heft_subscriber_is_serving(p.sub), 1);
        order.target = HEFT__PHASE_ABORT;
        heft__subscriber_feed(p.sub, &order);
        assert_null(p.sub->feed);
    }
    assert_true(n_failed > 5);
    dp_go_on(&p);
    leave_late(&late);
    dp_stop(&p);
}

/* What its engine has changed is not what the source said: it does not offer to feed anybody. */
static void engines_that_change_parameters_do_not_feed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_pair_t late;
    dp_start(&p, norm, norm);
    dp_set_recipe(&p, same);
    p.live[0].flags = HEFT_PARAM_RECORDED;
    p.on_flipped = repack;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    assert_false(heft__subscriber_can_feed(p.sub));
    join_late(&p, &late);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK); /* the source brings it */
    dp_await_serving(&late, 1);
    assert_int_equal(late.blocks[0][0], dp_byte(1, 0, 99));
    leave_late(&late);
    dp_stop(&p);
}

/* ---- padding that a loader leaves alone ---- */

static const dp_tensor_t corner[] = { { "x", HEFT_DTYPE_BF16, DP_SHAPE2(6, 3) },
                                      { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const dp_tensor_t padded[] = { { "p", HEFT_DTYPE_BF16, DP_SHAPE2(8, 5) },
                                      { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };

/* The loader writes the front corner of p: rows 6 and 7 and columns 3 and 4 are nobody's. */
static void set_corner(dp_pair_t *p)
{
    tape_builder_t tb;
    tb_init(&tb);
    const uint32_t x = tb_source(&tb, "x", HEFT_DTYPE_BF16, TB_SHAPE(6, 3));
    const uint32_t out = tb_param(&tb, "p", HEFT_DTYPE_BF16, TB_SHAPE(8, 5));
    tb_copy(&tb, tb_narrow(tb_narrow(tb_all(&tb, out), 0, 0, 6), 1, 0, 3), tb_all(&tb, x));
    const heft_exception_t untouched[2] = {
        { .kind = HEFT_EXCEPTION_UNTOUCHED,
          .pattern = "p",
          .reason = "padding",
          .where = "",
          .n_dims = 2,
          .begin = { 6, 0 },
          .end = { 8, 5 } },
        { .kind = HEFT_EXCEPTION_UNTOUCHED,
          .pattern = "p",
          .reason = "padding",
          .where = "",
          .n_dims = 2,
          .begin = { 0, 3 },
          .end = { 6, 5 } },
    };
    dp_set_tape(p, tb.tape, untouched, 2);
    tb_fini(&tb);
}

static void expect_corner(const dp_pair_t *p, const int64_t *stride, int64_t version)
{
    for (int64_t row = 0; row < 8; row++) {
        for (int64_t column = 0; column < 5; column++) {
            for (int64_t k = 0; k < 2; k++) {
                const uint8_t want =
                    row < 6 && column < 3 ? dp_byte(version, 0, 2 * (3 * row + column) + k) : 0xcc;
                const int64_t at = 2 * (row * stride[0] + column * stride[1]) + k;
                assert_int_equal(p->blocks[0][at], want);
            }
        }
    }
}

static void padding_keeps_its_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const int64_t plain[2] = { 5, 1 };
    static const int64_t turned[2] = { 1, 9 };
    for (int i = 0; i < 8; i++) {
        const int64_t *stride = i & 1 ? turned : plain;
        heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
        dp_pair_t p;
        heft__loop_t *loop = NULL;
        EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
        dp_start_over(&p, i & 2 ? heft__loop_get_transport(loop) : heft__transport_get_shm(),
                      corner, padded);
        set_corner(&p);
        p.live[0].strides = stride;
        opts.in_place = (uint8_t)(i / 4);
        EXPECT_STATUS(dp_join(&p, &opts, &err), HEFT_OK);
        for (int64_t version = 1; version <= 2; version++) {
            EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
            expect_corner(&p, stride, version);
            assert_int_equal(dp_verify_live(&p), 1);
        }
        p.blocks[0][2 * (7 * stride[0] + 4 * stride[1])] ^= 1; /* padding may be anything */
        assert_int_equal(dp_verify_live(&p), 1);
        p.blocks[0][2 * (5 * stride[0] + 2 * stride[1])] ^= 1;
        assert_int_equal(dp_verify_live(&p), 0);
        dp_stop(&p);
        heft__loop_destroy(loop);
    }
}

/* ---- declared destination ---- */

/* The padding of who joins late is its own, whatever that of its feeder holds. */
static void padding_is_not_fed(void **state)
{
    (void)state;
    static const int64_t plain[2] = { 5, 1 };
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_pair_t late;
    dp_start(&p, corner, padded);
    set_corner(&p);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    p.blocks[0][2 * 3] = 0x77; /* row 0, column 3 */
    join_late(&p, &late);
    dp_await_serving(&late, 1);
    expect_corner(&late, plain, 1);
    leave_late(&late);
    dp_stop(&p);
}

static void another_layout_than_the_contracts_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, two, two);
    dp_set_recipe(&p, same);
    heft_manifest_t *declared = p.params;
    const struct {
        dp_tensor_t a;
        const char *attr;
        const char *text;
    } cases[] = {
        { { "a", HEFT_DTYPE_F32, DP_SHAPE2(3, 3) }, NULL, "[4, 3]" },
        { { "a", HEFT_DTYPE_F32, DP_SHAPE2(3, 3) }, NULL, "[3, 3]" },
        { { "a", HEFT_DTYPE_I32, DP_SHAPE2(4, 3) }, NULL, "I32" },
        { { "a", HEFT_DTYPE_F32, DP_SHAPE2(4, 3) }, "quantization", "quantization" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        EXPECT_STATUS(heft_manifest_create("destination", &p.params, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(p.params, "a", cases[i].a.dtype, &cases[i].a.shape, &err),
                      HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(p.params, "b", two[1].dtype, &two[1].shape, &err), HEFT_OK);
        if (cases[i].attr != NULL) {
            EXPECT_STATUS(heft_manifest_set_attr(p.params, cases[i].attr, "fp8", &err), HEFT_OK);
        }
        EXPECT_STATUS(heft_manifest_finish(p.params, &err), HEFT_OK);
        EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_ERR_MISMATCH);
        EXPECT_MESSAGE(cases[i].text);
        heft_manifest_destroy(p.params);
    }
    p.params = declared;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    dp_stop(&p);
}

static void contracts_without_a_mapping_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, two, two);
    EXPECT_STATUS(heft_contract_create(p.source, NULL, &p.contract, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("without a mapping");
    dp_stop(&p);
}

static void join_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start_strided(&p);
    heft_status_t status = HEFT_ERR_NOMEM;
    long n = 0;
    for (long k = 0; status != HEFT_OK; k++, n++) {
        heft__alloc_fail_at(k);
        heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
        opts.url = heft_coordinator_get_url(p.coordinator);
        opts.hooks = &p.hooks;
        heft_subscriber_t *sub = NULL;
        status = heft_subscriber_create_contract(&opts, p.contract, p.params, p.live, &sub, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(sub != NULL, status == HEFT_OK);
        heft_subscriber_destroy(sub);
    }
    assert_true(n > 50);
    dp_stop(&p);
}

/* ---- another layout in the same process ---- */

/* A transport that says what is done with windows: f(ence), d(estroy), c(reate), x: no memory. */
static char done[32];
static int n_done;
static int64_t most_bytes;
static heft__transport_ops_t recording;
static const heft__transport_ops_t *real;

static heft_status_t note_create(heft__transport_t *transport, const heft__window_params_t *params,
                                 heft__window_t **window_out, heft_error_t *err)
{
    const bool has_room = params->bytes <= most_bytes;
    done[n_done++] = has_room ? 'c' : 'x';
    if (!has_room) {
        return heft__error_set(err, HEFT_ERR_NOSPACE, "%lld bytes needed, %lld available",
                               (long long)params->bytes, (long long)most_bytes);
    }
    heft_status_t status = real->window_create(transport, params, window_out, err);
    if (status == HEFT_OK) {
        (*window_out)->ops = &recording;
    }
    return status;
}

static void note_destroy(heft__window_t *window)
{
    done[n_done++] = 'd';
    real->window_destroy(window);
}

static heft_status_t note_fence(heft__window_t *window, int64_t deadline_mono_ns,
                                bool *replaced_out, heft_error_t *err)
{
    done[n_done++] = 'f';
    return real->window_fence(window, deadline_mono_ns, replaced_out, err);
}

static heft__transport_t *record(void)
{
    static heft__transport_t transport = { .ops = &recording };
    real = heft__transport_get_shm()->ops;
    recording = *real;
    recording.window_create = note_create;
    recording.window_destroy = note_destroy;
    recording.window_fence = note_fence;
    memset(done, 0, sizeof done);
    n_done = 0;
    most_bytes = INT64_MAX;
    return &transport;
}

static const dp_tensor_t large[] = { { "a", HEFT_DTYPE_F32, DP_SHAPE2(4, 3) },
                                     { "b", HEFT_DTYPE_BF16, DP_SHAPE2(20, 30) },
                                     { "c", HEFT_DTYPE_BF16, DP_SHAPE2(20, 30) },
                                     { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const char doubled[] = "\"a\" [...] -> \"a\" [...]\n"
                              "\"b\" [...] -> \"b\" [...]\n"
                              "\"b\" [...] -> \"c\" [...]\n";

/* The engine keeps b twice from now on; the memory of a and b is the same. */
typedef struct layout {
    heft_manifest_t *manifest;
    heft_contract_t *contract;
    heft_param_t live[DP_MAX];
} layout_t;

static void make_larger(dp_pair_t *p, layout_t *out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *kept_manifest = p->params;
    heft_contract_t *kept_contract = p->contract;
    EXPECT_STATUS(heft_manifest_create("destination", &p->params, &err), HEFT_OK);
    for (const dp_tensor_t *t = large; t->name != NULL; t++) {
        EXPECT_STATUS(heft_manifest_add(p->params, t->name, t->dtype, &t->shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(p->params, &err), HEFT_OK);
    p->contract = NULL;
    dp_set_recipe(p, doubled);
    *out = (layout_t){ .manifest = p->params, .contract = p->contract };
    memcpy(out->live, p->live, sizeof out->live);
    p->blocks[2] = aligned_alloc(64, DP_BYTES);
    out->live[2].data = p->blocks[2];
    p->params = kept_manifest;
    p->contract = kept_contract;
}

/* Version 1 is live, and a larger layout is there to be taken. */
static void start_before_larger(dp_pair_t *p, layout_t *larger)
{
    heft_error_t err = HEFT_ERROR_INIT;
    dp_start_over(p, record(), two, two);
    dp_set_recipe(p, same);
    EXPECT_STATUS(dp_join(p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(p, 1, &err), HEFT_OK);
    make_larger(p, larger);
}

static void free_layout(layout_t *layout)
{
    heft_contract_destroy(layout->contract);
    heft_manifest_destroy(layout->manifest);
}

static void expect_parts(const dp_pair_t *p, int n, int64_t version)
{
    const int64_t bytes[] = { 48, 1200, 1200 };
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < bytes[i]; k++) {
            assert_int_equal(p->blocks[i][k], dp_byte(version, i < 2 ? i : 1, k));
        }
    }
}

static void staging_grows_with_a_new_layout(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    layout_t larger;
    start_before_larger(&p, &larger);
    dp_hold(&p);
    const int n_before = n_done;
    EXPECT_STATUS(heft_subscriber_renew(p.sub, larger.contract, larger.manifest, larger.live, &err),
                  HEFT_OK);
    assert_string_equal(done + n_before, "fdc"); /* waited for, given back, made anew */
    assert_int_equal(heft_subscriber_get_version(p.sub), 0);
    assert_int_equal(heft_subscriber_is_serving(p.sub), 0);
    dp_go_on(&p);
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_OK);
    expect_parts(&p, 3, 2);
    assert_int_equal(dp_verify_live(&p), 1);
    dp_hold(&p); /* and back: what is there is large enough */
    const int n_grown = n_done;
    EXPECT_STATUS(heft_subscriber_renew(p.sub, p.contract, p.params, p.live, &err), HEFT_OK);
    assert_int_equal(n_done, n_grown);
    dp_go_on(&p);
    EXPECT_STATUS(dp_push(&p, 3, &err), HEFT_OK);
    expect_parts(&p, 2, 3);
    dp_stop(&p);
    free_layout(&larger);
}

static void staging_that_cannot_grow_leaves_the_old_plan(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    layout_t larger;
    start_before_larger(&p, &larger);
    dp_hold(&p);
    most_bytes = p.sub->window->bytes;
    const int n_before = n_done;
    EXPECT_STATUS(heft_subscriber_renew(p.sub, larger.contract, larger.manifest, larger.live, &err),
                  HEFT_ERR_NOSPACE);
    EXPECT_MESSAGE("bytes needed");
    assert_string_equal(done + n_before, "fdxc");
    assert_int_equal(heft_subscriber_get_version(p.sub), 1);
    assert_int_equal(heft_subscriber_is_serving(p.sub), 1);
    dp_go_on(&p);
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_OK);
    expect_parts(&p, 2, 2);
    dp_stop(&p);
    free_layout(&larger);
}

static void renew_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    layout_t larger;
    start_before_larger(&p, &larger);
    dp_hold(&p);
    heft_status_t status = HEFT_ERR_NOMEM;
    long n = 0;
    for (long k = 0; status != HEFT_OK; k++, n++) {
        n_done = 0;
        heft__alloc_fail_at(k);
        status = heft_subscriber_renew(p.sub, larger.contract, larger.manifest, larger.live, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(heft_subscriber_get_version(p.sub), status == HEFT_OK ? 0 : 1);
    }
    assert_true(n > 30);
    dp_go_on(&p);
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_OK);
    expect_parts(&p, 3, 2);
    dp_stop(&p);
    free_layout(&larger);
}

static int renew_inside(dp_pair_t *p)
{
    heft_error_t err = HEFT_ERROR_INIT;
    return heft_subscriber_renew(p->sub, p->contract, p->params, p->live, &err) == HEFT_ERR_BUSY
               ? 0
               : 1;
}

static void no_renewal_inside_a_round(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_start(&p, two, two);
    dp_set_recipe(&p, same);
    p.on_pause = renew_inside;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    assert_int_equal(atomic_load(&p.n_paused), 1);
    dp_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_parameters_are_delivered_and_gaps_kept),
        cmocka_unit_test(strides_are_compared_before_every_flip),
        cmocka_unit_test(what_a_failed_hook_says_reaches_the_caller),
        cmocka_unit_test(derived_state_is_recomputed_once_for_each_version),
        cmocka_unit_test(derived_without_a_hook_is_refused),
        cmocka_unit_test(post_processed_parameters_are_recorded),
        cmocka_unit_test(strided_parameters_are_fed_to_who_joins_late),
        cmocka_unit_test(a_feeder_survives_failed_allocations),
        cmocka_unit_test(engines_that_change_parameters_do_not_feed),
        cmocka_unit_test(padding_keeps_its_bytes),
        cmocka_unit_test(padding_is_not_fed),
        cmocka_unit_test(another_layout_than_the_contracts_is_refused),
        cmocka_unit_test(contracts_without_a_mapping_are_refused),
        cmocka_unit_test(join_survives_failed_allocations),
        cmocka_unit_test(staging_grows_with_a_new_layout),
        cmocka_unit_test(staging_that_cannot_grow_leaves_the_old_plan),
        cmocka_unit_test(renew_survives_failed_allocations),
        cmocka_unit_test(no_renewal_inside_a_round),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
