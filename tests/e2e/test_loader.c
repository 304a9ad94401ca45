/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that only the engine's own loader can write. The loader here stands for one that
 * multiplies matrices: p and q are halves of "mm" of a and b, s is a plain copy of b, r one of c
 * and has nothing to do with the others.
 */
#include "deliver_pair.h"

#include "base/base.h"
#include "tape_builder.h"

static const dp_tensor_t sources[] = { { "a", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                       { "b", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                       { "c", HEFT_DTYPE_U8, DP_SHAPE1(300) },
                                       { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const dp_tensor_t params[] = { { "p", HEFT_DTYPE_U8, DP_SHAPE1(32) },
                                      { "q", HEFT_DTYPE_U8, DP_SHAPE1(32) },
                                      { "r", HEFT_DTYPE_U8, DP_SHAPE1(300) },
                                      { "s", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                      { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
enum { A, B, C };
enum { P, Q, R, S };

static void set_mm_tape(dp_pair_t *p, const heft_exception_t *exceptions, uint32_t n_exceptions)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    const uint32_t a = tb_source(&tb, "a", HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t b = tb_source(&tb, "b", HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t c = tb_source(&tb, "c", HEFT_DTYPE_U8, TB_SHAPE(300));
    const uint32_t t = tb_temp(&tb, HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t out[4] = { tb_param(&tb, "p", HEFT_DTYPE_U8, TB_SHAPE(32)),
                              tb_param(&tb, "q", HEFT_DTYPE_U8, TB_SHAPE(32)),
                              tb_param(&tb, "r", HEFT_DTYPE_U8, TB_SHAPE(300)),
                              tb_param(&tb, "s", HEFT_DTYPE_U8, TB_SHAPE(64)) };
    const heft_view_t product = tb_all(&tb, t);
    const heft_view_t operands[2] = { tb_all(&tb, a), tb_all(&tb, b) };
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "mm", &product, 1, operands, 2, "engine.py:7", &err),
                  HEFT_OK);
    tb_copy(&tb, tb_all(&tb, out[P]), tb_narrow(tb_all(&tb, t), 0, 0, 32));
    tb_copy(&tb, tb_all(&tb, out[Q]), tb_narrow(tb_all(&tb, t), 0, 32, 32));
    tb_copy(&tb, tb_all(&tb, out[R]), tb_all(&tb, c));
    tb_copy(&tb, tb_all(&tb, out[S]), tb_all(&tb, b));
    dp_set_tape(p, tb.tape, exceptions, n_exceptions);
    tb_fini(&tb);
}

static uint8_t mm(const dp_pair_t *p, int i)
{
    const uint8_t *a = p->data[A];
    const uint8_t *b = p->data[B];
    return (uint8_t)(a[i] * 3 + b[63 - i]);
}

/* What the hook saw; assertions are the test's thread's. */
static int n_inputs;
static char names[8][8];
static int64_t bytes[8];
static const void *given[8];
static bool was_cold;
static bool had_direct;

static int load(dp_pair_t *p, const heft_input_t *inputs, uint32_t n)
{
    n_inputs = (int)n;
    for (uint32_t i = 0; i < n && i < 8; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s", inputs[i].name);
        bytes[i] = inputs[i].n_bytes;
        given[i] = inputs[i].data;
    }
    was_cold = true;
    for (int i = 0; i < 32; i++) {
        was_cold = was_cold && p->blocks[P][i] == 0xcc && p->blocks[Q][i] == 0xcc;
    }
    had_direct =
        memcmp(p->blocks[R], p->data[C], 300) == 0 && memcmp(p->blocks[S], p->data[B], 64) == 0;
    uint8_t *a = inputs[0].data;
    const uint8_t *b = inputs[1].data;
    for (int i = 0; i < 64; i++) {
        p->blocks[i < 32 ? P : Q][i % 32] = (uint8_t)(a[i] * 3 + b[63 - i]);
        p->blocks[S][i] = b[i]; /* as a whole loader does */
    }
    memset(a, 0, 64); /* it may write to what it was given */
    return 0;
}

static void start(dp_pair_t *p, heft__transport_t *transport)
{
    dp_start_over(p, transport, sources, params);
    set_mm_tape(p, NULL, 0);
    p->on_load = load;
}

static void expect_version(const dp_pair_t *p)
{
    for (int i = 0; i < 64; i++) {
        assert_int_equal(p->blocks[i < 32 ? P : Q][i % 32], mm(p, i));
    }
    assert_memory_equal(p->blocks[R], p->data[C], 300);
    assert_memory_equal(p->blocks[S], p->data[B], 64);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(p->blocks[i][300], 0xcc);
    }
}

static void loader_is_called_once_with_all_tensors_of_its_groups(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start(&p, heft__transport_get_shm());
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    for (int64_t version = 1; version <= 3; version++) {
        EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
        expect_version(&p);
        assert_int_equal(atomic_load(&p.n_loaded), version);
        assert_int_equal(atomic_load(&p.n_paused), version);
        assert_int_equal(atomic_load(&p.n_flipped), version);
        assert_int_equal(n_inputs, 2); /* c is not among them */
        assert_string_equal(names[0], "a");
        assert_string_equal(names[1], "b");
        assert_int_equal(bytes[0], 64);
        assert_true((uintptr_t)given[1] % 256 == 0);
        assert_true(was_cold); /* also when a version was live before */
        assert_true(had_direct);
        assert_ptr_not_equal(given[0], p.data[A]); /* never the sender's own memory */
        assert_int_equal(((uint8_t *)p.data[A])[5], dp_byte(version, A, 5));
        for (uint32_t i = 0; i < 4; i++) {
            const int64_t n = params[i].shape.extent[0];
            assert_true(heft_subscriber_get_digest(p.sub, i) == heft_digest(p.blocks[i], n));
        }
        assert_int_equal(dp_verify_live(&p), 1);
    }
    EXPECT_STATUS(heft_publisher_push(p.pub, 3, NULL, &err), HEFT_OK); /* nothing moves */
    assert_int_equal(atomic_load(&p.n_loaded), 3);
    p.blocks[Q][3] ^= 1; /* what the loader wrote is watched like everything else */
    assert_int_equal(dp_verify_live(&p), 0);
    dp_stop(&p);
}

/* r is declared one group with q, as a scale is with its weight: the loader gets what it is made
 * of.
 */
static void declared_groups_go_to_the_loader_whole(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    const heft_exception_t together = {
        .kind = HEFT_EXCEPTION_TOGETHER, .pattern = "q r", .reason = "a pair", .where = ""
    };
    start(&p, heft__transport_get_shm());
    set_mm_tape(&p, &together, 1);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    for (int64_t version = 1; version <= 2; version++) {
        EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
        expect_version(&p);
        assert_int_equal(n_inputs, 3);
        assert_string_equal(names[2], "c");
        assert_int_equal(dp_verify_live(&p), 1);
    }
    dp_stop(&p);
}

/* What the loader keeps a view of is as it was until the flipped hook has returned. */
static bool was_kept;

static int look_again(dp_pair_t *p)
{
    was_kept = memcmp(given[1], p->data[B], 64) == 0;
    return 0;
}

static void inputs_stay_until_the_flip_is_over(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start(&p, heft__transport_get_shm());
    p.on_flipped = look_again;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    assert_true(was_kept);
    dp_stop(&p);
}

static void without_a_loader_the_plan_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start(&p, heft__transport_get_shm());
    p.on_load = NULL;
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("only the engine's loader can write \"p\", \"q\" (mm): there is no load hook");
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.in_place = 1;
    p.on_load = load;
    EXPECT_STATUS(dp_join(&p, &opts, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("in place there is no staging for what it needs");
    dp_stop(&p);
}

/* ---- a loader that fails ---- */

static int give_up(dp_pair_t *p, const heft_input_t *inputs, uint32_t n)
{
    (void)inputs;
    (void)n;
    memset(p->blocks[P], 0x77, 32);
    p->reason = "KeyError: 'a'";
    return 1;
}

static int disagree(dp_pair_t *p, const heft_input_t *inputs, uint32_t n)
{
    (void)load(p, inputs, n);
    p->blocks[S][9] ^= 1;
    return 0;
}

static int move(dp_pair_t *p, const heft_input_t *inputs, uint32_t n)
{
    (void)load(p, inputs, n);
    p->live[Q].data = p->blocks[Q] + 64;
    return 0;
}

static void refill(dp_pair_t *p)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *reply = NULL;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    heft_status_t status = HEFT_ERR_STATE;
    while (status != HEFT_OK && heft__clock_mono_ns() < deadline) {
        status = heft_client_post(
            heft_coordinator_get_url(p->coordinator), "/v1/recover",
            "{\"members\":[{\"id\":\"destination.heft.0.0\",\"claim\":\"refill\"}]}", 20000, &reply,
            &err);
        heft_string_free(reply);
        reply = NULL;
    }
    EXPECT_STATUS(status, HEFT_OK);
}

/* Once the round before is over. */
static void push_again(dp_pair_t *p, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(10000000000);
    heft_status_t status = HEFT_ERR_BUSY;
    while (status == HEFT_ERR_BUSY && heft__clock_mono_ns() < deadline) {
        status = dp_push(p, version, &err);
    }
    EXPECT_STATUS(status, HEFT_OK);
}

static void loader_that_fails_takes_the_engine_out_of_service(void **state)
{
    (void)state;
    const struct {
        int (*on_load)(dp_pair_t *pair, const heft_input_t *inputs, uint32_t n);
        const char *text;
    } cases[] = {
        { give_up, "the load hook failed at version 2: KeyError: 'a'" },
        { disagree, "parameter \"s\": digest" },
        { move, "parameter \"q\" moved from" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        dp_pair_t p;
        start(&p, heft__transport_get_shm());
        EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
        EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
        p.on_load = cases[i].on_load;
        assert_int_not_equal(dp_push(&p, 2, &err), HEFT_OK);
        EXPECT_MESSAGE(cases[i].text);
        assert_int_equal(heft_subscriber_is_serving(p.sub), 0);
        assert_int_equal(heft_subscriber_get_version(p.sub), 1);
        assert_int_equal(atomic_load(&p.n_loaded), 2); /* not tried again */
        p.on_load = load;
        p.live[Q].data = p.blocks[Q];
        refill(&p);
        push_again(&p, 2);
        expect_version(&p);
        dp_await_serving(&p, 2);
        assert_true(was_cold);
        dp_stop(&p);
    }
}

static int shift(dp_pair_t *p)
{
    p->live[P].data = p->blocks[P] + 64;
    return 0;
}

/* Refused before its first write, a flip has not called the loader. */
static void refused_flip_calls_no_loader(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start(&p, heft__transport_get_shm());
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    uint8_t kept[32];
    memcpy(kept, p.blocks[P], sizeof kept);
    p.on_pause = shift;
    assert_int_not_equal(dp_push(&p, 2, &err), HEFT_OK);
    EXPECT_MESSAGE("parameter \"p\" moved from");
    assert_int_equal(atomic_load(&p.n_loaded), 1);
    assert_memory_equal(p.blocks[P], kept, sizeof kept);
    p.on_pause = NULL;
    p.live[P].data = p.blocks[P];
    dp_await_serving(&p, 1);
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_OK);
    expect_version(&p);
    assert_int_equal(atomic_load(&p.n_loaded), 2);
    dp_stop(&p);
}

/* ---- in chunks ---- */

static void inputs_come_in_chunks_or_not_at_all(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    heft__loop_t *loop = NULL;
    EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
    start(&p, heft__loop_get_transport(loop));
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    expect_version(&p);
    const struct {
        heft__loop_fault_t fault;
        int64_t after; /* r, s, a, b */
        const char *text;
    } cases[] = {
        { HEFT__LOOP_DROP, 3, "tensor \"b\" bytes [0..64): route 5: 1 of 1 chunks have not come" },
        { HEFT__LOOP_REPEAT, 2, "chunk 0 of route 4 came twice" },
        { HEFT__LOOP_SWAP_HALVES, 3, "loader input \"b\": digest" },
        { HEFT__LOOP_ZERO, 2, "loader input \"a\": digest" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft__loop_set_fault(loop, cases[i].fault, cases[i].after);
        assert_int_not_equal(dp_push(&p, 2 + (int64_t)i, &err), HEFT_OK);
        EXPECT_MESSAGE(cases[i].text);
        assert_true(heft__loop_was_reached(loop));
        assert_int_equal(atomic_load(&p.n_loaded), 1); /* a group that is not whole is no group */
        dp_await_serving(&p, 1);
    }
    EXPECT_STATUS(dp_push(&p, 9, &err), HEFT_OK);
    expect_version(&p);
    dp_stop(&p);
    heft__loop_destroy(loop);
}

/* ---- several sources ---- */

/* Each rank holds rows of a, b and c; the loader is given a and b as they are. */
static void boxes_of_several_ranks_reach_the_loader_as_whole_tensors(void **state)
{
    (void)state;
    for (int is_direct = 0; is_direct < 2; is_direct++) {
        heft_error_t err = HEFT_ERROR_INIT;
        dp_pair_t p;
        heft__loop_t *loop = NULL;
        EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
        start(&p, is_direct ? heft__transport_get_shm() : heft__loop_get_transport(loop));
        EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
        EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
        dp_split_source(&p, 3);
        for (int64_t version = 2; version <= 4; version++) {
            EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
            expect_version(&p);
            assert_int_equal(n_inputs, 2);
            assert_string_equal(names[0], "a");
            assert_string_equal(names[1], "b");
            assert_int_equal(bytes[0], 64);
            assert_true(was_cold);
            assert_true(had_direct);
            assert_int_equal(dp_verify_live(&p), 1);
        }
        dp_stop(&p);
        heft__loop_destroy(loop);
    }
}

/* What one rank sent of an input is damaged on arrival. */
static void damage_to_one_box_of_an_input_is_found(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    heft__loop_t *loop = NULL;
    EXPECT_STATUS(heft__loop_create(false, &loop, &err), HEFT_OK);
    start(&p, heft__loop_get_transport(loop));
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    dp_split_source(&p, 2);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    heft__loop_set_fault(loop, HEFT__LOOP_SWAP_HALVES, 5);
    EXPECT_STATUS(dp_push(&p, 2, &err), HEFT_ERR_DIGEST);
    assert_true(heft__loop_was_reached(loop));
    assert_int_equal(atomic_load(&p.n_loaded), 1);
    dp_await_serving(&p, 1);
    EXPECT_STATUS(dp_push(&p, 3, &err), HEFT_OK);
    expect_version(&p);
    dp_stop(&p);
    heft__loop_destroy(loop);
}

/* ---- names ---- */

/* A source that sends other names than the loader was traced with: all of them are told, before
 * anything is paused. */
static void names_the_trace_does_not_know_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    const dp_tensor_t other[] = { { "a", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                  { "c", HEFT_DTYPE_U8, DP_SHAPE1(301) },
                                  { "lm_head.weight", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                  { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
    const char *const texts[] = { "\"b\"", "lm_head.weight", "301" };
    start(&p, heft__transport_get_shm());
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    heft_publisher_destroy(p.pub);
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    for (const dp_tensor_t *t = other; t->name != NULL; t++) {
        EXPECT_STATUS(heft_manifest_add(manifest, t->name, t->dtype, &t->shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(p.coordinator);
    EXPECT_STATUS(heft_publisher_create(&opts, manifest, (const void *const *)p.data, &p.pub, &err),
                  HEFT_OK);
    heft_push_result_t result;
    char path[80];
    char *json = NULL;
    assert_int_not_equal(heft_publisher_push(p.pub, 2, &result, &err), HEFT_OK);
    EXPECT_MESSAGE(" problems, the first: ");
    EXPECT_MESSAGE("not what the loader was traced for: ");
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld", (long long)result.round_epoch,
                   (long long)result.round_seq);
    EXPECT_STATUS(
        heft_client_get(heft_coordinator_get_url(p.coordinator), path, 20000, &json, &err),
        HEFT_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strstr(json, texts[i][0] == '"' ? "b" : texts[i]) == NULL) {
            fail_msg("%s is not named: %s", texts[i], json);
        }
    }
    heft_string_free(json);
    assert_int_equal(atomic_load(&p.n_paused), 1);
    assert_int_equal(atomic_load(&p.n_loaded), 1);
    dp_stop(&p);
    heft_manifest_destroy(manifest);
}

/* ---- ranks ---- */

static const dp_tensor_t whole[] = { { "x", HEFT_DTYPE_U8, DP_SHAPE2(2, 100) },
                                     { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const dp_tensor_t shard[] = { { "w", HEFT_DTYPE_U8, DP_SHAPE1(100) },
                                     { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };

/* Rank r of 2 takes row r. */
static void start_ranks(dp_pair_t *p, uint32_t first, uint32_t n, bool is_partial)
{
    tape_builder_t tb[2];
    const heft_tape_t *tapes[2];
    dp_start(p, whole, shard);
    for (uint32_t i = 0; i < n; i++) {
        tb_init(&tb[i]);
        const uint32_t x = tb_source(&tb[i], "x", HEFT_DTYPE_U8, TB_SHAPE(2, 100));
        const uint32_t w = tb_param(&tb[i], "w", HEFT_DTYPE_U8, TB_SHAPE(100));
        tb_copy(&tb[i], tb_all(&tb[i], w), tb_select(tb_all(&tb[i], x), 0, first + i));
        tapes[i] = tb[i].tape;
    }
    dp_set_tapes(p, tapes, n, first, is_partial);
    for (uint32_t i = 0; i < n; i++) {
        tb_fini(&tb[i]);
    }
}

static void *poll_until_stopped(void *arg)
{
    dp_pair_t *p = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    while (!atomic_load(&p->stop)) {
        (void)!heft_subscriber_poll(p->sub, 20, &err);
    }
    return NULL;
}

static void ranks_share_the_contract_of_a_traced_loader(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    dp_pair_t other = { .sub = NULL };
    pthread_t thread;
    uint8_t row[100] = { 0 };
    const heft_param_t live = { .data = row };
    start_ranks(&p, 0, 2, false);
    EXPECT_STATUS(dp_join(&p, NULL, &err), HEFT_OK);
    assert_int_not_equal(dp_push(&p, 1, &err), HEFT_OK);
    EXPECT_MESSAGE("destinations for rank 1 of 2 are missing");
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(p.coordinator);
    opts.rank = 1;
    EXPECT_STATUS(
        heft_subscriber_create_contract(&opts, p.contract, p.params, &live, &other.sub, &err),
        HEFT_OK);
    assert_int_equal(pthread_create(&thread, NULL, poll_until_stopped, &other), 0);
    for (int64_t version = 1; version <= 2; version++) {
        EXPECT_STATUS(dp_push(&p, version, &err), HEFT_OK);
        assert_memory_equal(p.blocks[0], p.data[0], 100);
        assert_memory_equal(row, (uint8_t *)p.data[0] + 100, 100);
    }
    assert_int_equal(p.pub->fleet.n_families, 1);
    atomic_store(&other.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    heft_subscriber_destroy(other.sub);
    dp_stop(&p);
}

/* A rank that was traced by itself: what it does not use, others do. */
static void contract_of_one_rank_is_a_part(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    start_ranks(&p, 1, 1, true);
    EXPECT_STATUS(dp_join(&p, &opts, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 0");
    opts.rank = 1;
    EXPECT_STATUS(dp_join(&p, &opts, &err), HEFT_OK);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    assert_memory_equal(p.blocks[0], (uint8_t *)p.data[0] + 100, 100);
    dp_stop(&p);
}

static void join_with_a_loader_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    dp_pair_t p;
    start(&p, heft__transport_get_shm());
    heft_status_t status = HEFT_ERR_NOMEM;
    long n = 0;
    for (long k = 0; status != HEFT_OK; k++, n++) {
        heft__alloc_fail_at(k);
        status = dp_join(&p, NULL, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(p.sub != NULL, status == HEFT_OK);
    }
    assert_true(n > 50);
    EXPECT_STATUS(dp_push(&p, 1, &err), HEFT_OK);
    expect_version(&p);
    dp_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loader_is_called_once_with_all_tensors_of_its_groups),
        cmocka_unit_test(declared_groups_go_to_the_loader_whole),
        cmocka_unit_test(inputs_stay_until_the_flip_is_over),
        cmocka_unit_test(without_a_loader_the_plan_is_refused),
        cmocka_unit_test(loader_that_fails_takes_the_engine_out_of_service),
        cmocka_unit_test(refused_flip_calls_no_loader),
        cmocka_unit_test(inputs_come_in_chunks_or_not_at_all),
        cmocka_unit_test(boxes_of_several_ranks_reach_the_loader_as_whole_tensors),
        cmocka_unit_test(damage_to_one_box_of_an_input_is_found),
        cmocka_unit_test(names_the_trace_does_not_know_are_refused),
        cmocka_unit_test(ranks_share_the_contract_of_a_traced_loader),
        cmocka_unit_test(contract_of_one_rank_is_a_part),
        cmocka_unit_test(join_with_a_loader_survives_failed_allocations),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
