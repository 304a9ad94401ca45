/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds into an engine as it really is: strided memory, state of its own, declared by a contract.
 */
#include "deliver_pair.h"

#include "base/base.h"

static const char same[] = "\"{rest*}\" [...] -> \"{rest*}\" [...]\n";

static const dp_tensor_t two[] = { { "a", HEFT_DTYPE_F32, DP_SHAPE2(4, 3) },
                                   { "b", HEFT_DTYPE_BF16, DP_SHAPE2(20, 30) },
                                   { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const int64_t columns[2] = { 6, 1 };  /* fp32 [4, 6] cut to 3 columns */
static const int64_t transposed[2] = { 1, 20 };

/* a: gaps of three elements; b: transposed, at an odd address. */
static void start_strided(dp_pair_t *p)
{
    dp_start(p, two, two);
    dp_set_recipe(p, same);
    p->live[0].strides = columns;
    p->live[1].strides = transposed;
    p->live[1].data = p->blocks[1] + 33;
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

/* ---- declared destination ---- */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_parameters_are_delivered_and_gaps_kept),
        cmocka_unit_test(strides_are_compared_before_every_flip),
        cmocka_unit_test(what_a_failed_hook_says_reaches_the_caller),
        cmocka_unit_test(derived_state_is_recomputed_once_for_each_version),
        cmocka_unit_test(derived_without_a_hook_is_refused),
        cmocka_unit_test(post_processed_parameters_are_recorded),
        cmocka_unit_test(another_layout_than_the_contracts_is_refused),
        cmocka_unit_test(contracts_without_a_mapping_are_refused),
        cmocka_unit_test(join_survives_failed_allocations),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
