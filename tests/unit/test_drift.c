/* SPDX-License-Identifier: Apache-2.0 */
/* Drift: every kind is found and named, whatever else differs; allocation failures leave nothing.
 */
#include "heft_test.h"

#include "heft/drift.h"

static heft_manifest_t *decode(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_OK);
    return m;
}

static const char first[] = "{\"heft_manifest\":1,\"side\":\"destination\",\"attributes\":{"
                            "\"framework\":\"e\",\"v\":\"1\"},"
                            "\"tensors\":["
                            "{\"name\":\"layers.0.q\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                            "{\"name\":\"layers.0.k\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                            "{\"name\":\"layers.1.q\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                            "{\"name\":\"layers.1.k\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                            "{\"name\":\"norm\",\"dtype\":\"F32\",\"shape\":[6]},"
                            "{\"name\":\"wi\",\"dtype\":\"BF16\",\"shape\":[2,8],\"fused\":{"
                            "\"axis\":1,\"half\":\"gate_up\","
                            "\"layout\":\"concat\",\"shards\":1}},"
                            "{\"name\":\"head.weight\",\"dtype\":\"F32\",\"shape\":[2,6]},"
                            "{\"name\":\"same\",\"dtype\":\"I64\",\"shape\":[]}]}";

static const char second[] = "{\"heft_manifest\":1,\"side\":\"destination\",\"attributes\":{"
                             "\"framework\":\"e\",\"w\":\"2\"},"
                             "\"tensors\":["
                             "{\"name\":\"blocks.0.q\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                             "{\"name\":\"blocks.0.k\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                             "{\"name\":\"blocks.1.q\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                             "{\"name\":\"blocks.1.k\",\"dtype\":\"BF16\",\"shape\":[4,4]},"
                             "{\"name\":\"norm\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
                             "{\"name\":\"wi\",\"dtype\":\"BF16\",\"shape\":[2,8],\"fused\":{"
                             "\"axis\":1,\"half\":\"gate_up\","
                             "\"layout\":\"per_shard\",\"shards\":2}},"
                             "{\"name\":\"head.wieght\",\"dtype\":\"F32\",\"shape\":[6,2]},"
                             "{\"name\":\"same\",\"dtype\":\"I64\",\"shape\":[]}]}";

static void every_kind_is_found(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *a = decode(first);
    heft_manifest_t *b = decode(second);
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_drift_create(a, b, &drift, &err), HEFT_OK);
    heft_manifest_destroy(a); /* nothing is borrowed */
    heft_manifest_destroy(b);
    static const char *const want[] = {
        "missing \"head.weight\", F32 [2, 6]; nearest: \"head.wieght\"",
        "added \"head.wieght\", F32 [6, 2]; nearest: \"head.weight\"",
        "renamed \"layers.0.k\" to \"blocks.0.k\", BF16 [4, 4]",
        "renamed \"layers.0.q\" to \"blocks.0.q\", BF16 [4, 4]",
        "renamed \"layers.1.k\" to \"blocks.1.k\", BF16 [4, 4]",
        "renamed \"layers.1.q\" to \"blocks.1.q\", BF16 [4, 4]",
        "retyped \"norm\": was F32, is BF16",
        "reshaped \"norm\": was F32 [6], is BF16 [2, 3] (as many elements)",
        "relaid \"wi\": fused.layout was concat, is per_shard, fused.shards was 1, is 2",
        "attribute \"v\": was \"1\", is not given",
        "attribute \"w\": was not given, is \"2\"",
    };
    size_t n = sizeof want / sizeof want[0];
    for (size_t i = 0; i < n; i++) {
        assert_non_null(heft_drift_get(drift, (uint32_t)i));
        assert_string_equal(heft_drift_get(drift, (uint32_t)i)->text, want[i]);
    }
    assert_int_equal(heft_drift_get_n(drift), n);
    assert_null(heft_drift_get(drift, (uint32_t)n));
    assert_string_equal(heft_drift_get(drift, 2)->other, "blocks.0.k");
    assert_string_equal(heft_drift_kind_get_name(heft_drift_get(drift, 8)->kind), "relaid");
    assert_string_equal(heft_drift_kind_get_name((heft_drift_kind_t)0), "unknown");
    assert_string_equal(heft_drift_kind_get_name((heft_drift_kind_t)15), "unknown");
    heft_drift_destroy(drift);
}

static void equal_manifests_have_no_drift(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *a = decode(first);
    heft_manifest_t *b = decode(first);
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_drift_create(a, b, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 0);
    heft_drift_destroy(drift);
    heft_manifest_destroy(a);
    heft_manifest_destroy(b);
}

/* Two candidates that are equally near: it is not said which one it became. */
static void nobody_guesses_between_equals(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *a = decode("{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                                "{\"name\":\"w\",\"dtype\":\"U8\",\"shape\":[3]}]}");
    heft_manifest_t *b = decode("{\"heft_manifest\":1,\"side\":\"destination\",\"tensors\":["
                                "{\"name\":\"x\",\"dtype\":\"U8\",\"shape\":[3]},"
                                "{\"name\":\"y\",\"dtype\":\"U8\",\"shape\":[3]}]}");
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_drift_create(a, b, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 4);
    assert_int_equal(heft_drift_get(drift, 0)->kind, HEFT_DRIFT_MISSING);
    assert_int_equal(heft_drift_get(drift, 1)->kind, HEFT_DRIFT_ADDED);
    assert_int_equal(heft_drift_get(drift, 2)->kind, HEFT_DRIFT_ADDED);
    assert_string_equal(heft_drift_get(drift, 3)->text, "side: was source, is destination");
    heft_drift_destroy(drift);
    heft_manifest_destroy(a);
    heft_manifest_destroy(b);
    EXPECT_STATUS(heft_manifest_create("source", &a, &err), HEFT_OK);
    EXPECT_STATUS(heft_drift_create(a, a, &drift, &err), HEFT_ERR_STATE);
    heft_manifest_destroy(a);
}

static void drift_survives_each_allocation_failing(void **state)
{
    (void)state;
    heft_manifest_t *a = decode(first);
    heft_manifest_t *b = decode(second);
    int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_drift_t *drift = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_drift_create(a, b, &drift, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_drift_destroy(drift);
            assert_true(k > 20);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(drift);
        assert_int_equal(heft__alloc_live(), live);
    }
    heft_manifest_destroy(a);
    heft_manifest_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_found),
        cmocka_unit_test(equal_manifests_have_no_drift),
        cmocka_unit_test(nobody_guesses_between_equals),
        cmocka_unit_test(drift_survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
