/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of tensors: what they may say, what must hold between them and the shape, and their
 * JSON form. */
#include "heft/model.h"
#include "heft_test.h"

/* One tensor "w" of F32 [2, extent] with attributes "key=value key=value". */
static heft_status_t finish(int64_t extent, const char *attrs, heft_manifest_t **out,
                            heft_error_t *err)
{
    heft_manifest_t *m = NULL;
    heft_shape_t shape = { .rank = 2, .extent = { 2, extent } };
    heft_status_t status = heft_manifest_create("destination", &m, err);
    assert_int_equal(status, HEFT_OK);
    assert_int_equal(heft_manifest_add(m, "w", HEFT_DTYPE_F32, &shape, err), HEFT_OK);
    char text[256];
    (void)snprintf(text, sizeof text, "%s", attrs);
    for (char *save = NULL, *item = strtok_r(text, " ", &save); item != NULL && status == HEFT_OK;
         item = strtok_r(NULL, " ", &save)) {
        char *value = strchr(item, '=');
        *value++ = '\0';
        status = heft_manifest_set_tensor_attr(m, "w", item, value, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(m, err);
    }
    if (status != HEFT_OK || out == NULL) {
        heft_manifest_destroy(m);
        return status;
    }
    *out = m;
    return HEFT_OK;
}

#define FUSED(layout, shards) \
    "fused.axis=1 fused.half=gate_up fused.layout=" layout " fused.shards=" shards
#define PAD(size, padded, shards) \
    "pad.axis=1 pad.size=" size " pad.padded=" padded " pad.shards=" shards

static void attributes_must_fit_the_tensor(void **state)
{
    (void)state;
    static const struct {
        int64_t extent;
        const char *attrs;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { 16, FUSED("per_shard", "2"), HEFT_OK, "" },
        { 16, FUSED("concat", "4"), HEFT_OK, "" },
        { 16, FUSED("lane", "2") " fused.lane=2", HEFT_OK, "" },
        { 16, FUSED("per_shard", "3"), HEFT_ERR_SHAPE, "fused.shards = 3" },
        { 15, FUSED("per_shard", "1"), HEFT_ERR_SHAPE, "extent 15" },
        { 16, FUSED("lane", "2"), HEFT_ERR_SHAPE, "fused.lane is missing" },
        { 16, FUSED("per_shard", "2") " fused.lane=2", HEFT_ERR_SHAPE, "fused.lane is 2" },
        { 16, FUSED("interleaved", "2"), HEFT_ERR_ARGUMENT, "\"interleaved\"" },
        { 16, "fused.layout=concat", HEFT_ERR_ARGUMENT, "fused.axis is missing" },
        { 16, "fused.axis=2", HEFT_ERR_ARGUMENT, "2 dimensions" },
        { 16, "fused.axis=-3", HEFT_ERR_ARGUMENT, "2 dimensions" },
        { 16, "fused.shards=0", HEFT_ERR_ARGUMENT, "at least 1" },
        { 16, "fused.shards=two", HEFT_ERR_ARGUMENT, "no integer" },
        { 16, "fused.layuot=lane", HEFT_ERR_ARGUMENT, "nearest: \"fused.layout\"" },
        { 16, FUSED("concat", "4") " cut.axis=1 cut.parts=2", HEFT_OK, "" },
        { 16, FUSED("concat", "2") " cut.axis=1 cut.parts=4", HEFT_ERR_SHAPE,
          "cut into 4 boxes, of which fused.shards = 2 is no multiple" },
        { 16, FUSED("concat", "2") " cut.axis=0 cut.parts=2", HEFT_OK, "" },
        { 16, "cut.axis=1 cut.parts=3", HEFT_ERR_SHAPE, "cut.parts is 3" },
        { 16, PAD("8", "16", "2") " pad.lanes=4 pad.tp=2", HEFT_OK, "" },
        { 16, PAD("8", "8", "2"), HEFT_ERR_SHAPE, "extent 16" },
        { 16, PAD("8", "8", "2") " " FUSED("per_shard", "2"), HEFT_OK, "" },
        { 16, PAD("8", "16", "3"), HEFT_ERR_SHAPE, "in 3 shards" },
        { 16, PAD("20", "16", "1"), HEFT_ERR_SHAPE, "20 cannot be padded to 16" },
        { 16, "repeat.axis=1 repeat.factor=4", HEFT_OK, "" },
        { 16, "repeat.axis=1 repeat.factor=3", HEFT_ERR_SHAPE, "repeat.factor is 3" },
        { 16, "qkv.t=2 qkv.f=1", HEFT_OK, "" },
        { 16, "qkv.t=2", HEFT_ERR_ARGUMENT, "qkv.f is missing" },
        { 16, "qkv.t=2 qkv.f=1 qkv.heads=4 qkv.kv_heads=2", HEFT_OK, "" },
        { 16, "qkv.t=4 qkv.f=2 qkv.heads=4 qkv.kv_heads=2", HEFT_OK, "" },
        { 16, "qkv.t=4 qkv.f=1 qkv.heads=4 qkv.kv_heads=2", HEFT_ERR_SHAPE,
          "qkv.t = 4 groups would split 2 key/value heads, qkv.f = 1 times each" },
        { 16, "qkv.t=3 qkv.f=3 qkv.heads=4 qkv.kv_heads=2", HEFT_ERR_SHAPE,
          "qkv.t = 3 groups would split 4 query heads" },
        { 16, "qkv.t=2 qkv.f=9223372036854775807 qkv.kv_heads=2", HEFT_ERR_SHAPE, "would split" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        EXPECT_STATUS(finish(cases[i].extent, cases[i].attrs, NULL, &err), cases[i].status);
        EXPECT_MESSAGE(cases[i].part);
    }
    assert_int_equal(heft__alloc_live(), 0);
}

static void axes_count_from_the_end_and_later_values_replace(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(finish(16, "repeat.axis=-1 repeat.factor=2 repeat.factor=4", &m, &err), HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensor_attrs(m, 0), 2);
    assert_int_equal(heft_manifest_get_n_tensor_attrs(m, 1), 0);
    assert_string_equal(heft_manifest_get_tensor_attr(m, 0, "repeat.axis"), "1");
    assert_string_equal(heft_manifest_get_tensor_attr(m, 0, "repeat.factor"), "4");
    assert_null(heft_manifest_get_tensor_attr(m, 0, "fused.axis"));
    EXPECT_STATUS(heft_manifest_set_tensor_attr(m, "w", "qkv.t", "1", &err), HEFT_ERR_STATE);
    heft_manifest_destroy(m);
}

/* 100 wide shards cannot interleave by 128 lanes: the writer says per_shard, and a manifest that
 * says otherwise is refused. */
static void lanes_that_do_not_divide_fall_back_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(finish(400, FUSED("lane", "2") " fused.lane=128", &m, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_tensor_attr(m, 0, "fused.layout"), "per_shard");
    assert_null(heft_manifest_get_tensor_attr(m, 0, "fused.lane"));
    char *json = NULL;
    EXPECT_STATUS(heft_manifest_encode(m, &json, &err), HEFT_OK);
    assert_non_null(strstr(json, "\"fused\": {\"axis\": 1, \"half\": \"gate_up\", \"layout\": "
                                 "\"per_shard\", \"shards\": 2}}"));
    heft_string_free(json);
    heft_manifest_destroy(m);

    static const char refused[] =
        "{\"heft_manifest\":1,\"side\":\"destination\",\"tensors\":[{\"name\":\"w\",\"dtype\":"
        "\"F32\",\"shape\":[2,400],\"fused\":{\"layout\":\"lane\",\"axis\":1,\"shards\":2,"
        "\"half\":\"gate_up\",\"lane\":128}}]}";
    EXPECT_STATUS(heft_manifest_decode(refused, strlen(refused), &m, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("width 100 of one of 2 shards is no multiple of the lane 128");
}

static void json_keeps_attributes_and_is_strict(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_manifest_t *plain = NULL;
    heft_manifest_t *back = NULL;
    char *json = NULL;
    EXPECT_STATUS(
        finish(16,
               FUSED("lane", "2") " fused.lane=2 " PAD(
                   "4", "8",
                   "2") " pad.lanes=2 pad.tp=2 qkv.t=1 qkv.f=1 repeat.axis=0 repeat.factor=2",
               &m, &err),
        HEFT_OK);
    EXPECT_STATUS(finish(16, "", &plain, &err), HEFT_OK);
    assert_string_not_equal(heft_manifest_get_digest(m), heft_manifest_get_digest(plain));
    EXPECT_STATUS(heft_manifest_encode(m, &json, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_decode(json, strlen(json), &back, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_digest(m), heft_manifest_get_digest(back));
    assert_int_equal(heft_manifest_get_n_tensor_attrs(back, 0), 15);
    heft_string_free(json);
    heft_manifest_destroy(back);
    heft_manifest_destroy(plain);
    heft_manifest_destroy(m);

    static const struct {
        const char *more;
        const char *part;
    } cases[] = {
        { "\"fused\":{}", "\"fused\" must be an object with members" },
        { "\"fused\":3", "\"fused\" must be an object" },
        { "\"fused\":{\"axis\":\"1\"}", "\"fused.axis\" must be an integer" },
        { "\"fused\":{\"axis\":1.0}", "\"fused.axis\" must be an integer" },
        { "\"fused\":{\"layout\":1}", "\"fused.layout\" must be a string" },
        { "\"fused\":{\"lanes\":1}", "\"fused.lanes\"; nearest: \"fused.lane\"" },
        { "\"qkv\":{\"t\":1}", "qkv.f is missing" },
        { "\"native\":\"\"", "native" },
        { "\"repeated\":{}", "unknown key \"repeated\" in tensor \"w\"" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[{\"name\":\"w\","
                       "\"dtype\":\"F32\",\"shape\":[2,16],%s}]}",
                       cases[i].more);
        EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i].part);
    }
}

static void excluded_leaves_have_reasons(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_shape_t shape = { .rank = 0 };
    for (int i = 0; i < 3; i++) {
        EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(m, "w", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_exclude(m, "rngs.key", "", &err), HEFT_ERR_ARGUMENT);
        EXPECT_STATUS(heft_manifest_exclude(m, "rngs.key", "no numeric dtype", &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_exclude(m,
                                            i == 1   ? "w"
                                            : i == 2 ? "rngs.key"
                                                     : "cache.k",
                                            "no parameter", &err),
                      HEFT_OK);
        EXPECT_STATUS(heft_manifest_finish(m, &err), i == 0 ? HEFT_OK : HEFT_ERR_EXISTS);
        if (i > 0) {
            EXPECT_MESSAGE(i == 1 ? "\"w\" is a tensor and excluded" : "\"rngs.key\" is excluded");
            heft_manifest_destroy(m);
            continue;
        }
        const char *reason = NULL;
        assert_int_equal(heft_manifest_get_n_excluded(m), 2);
        assert_string_equal(heft_manifest_get_excluded(m, 1, &reason), "rngs.key");
        assert_string_equal(reason, "no numeric dtype");
        assert_null(heft_manifest_get_excluded(m, 2, NULL));
        heft_manifest_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attributes_must_fit_the_tensor),
        cmocka_unit_test(axes_count_from_the_end_and_later_values_replace),
        cmocka_unit_test(lanes_that_do_not_divide_fall_back_once),
        cmocka_unit_test(json_keeps_attributes_and_is_strict),
        cmocka_unit_test(excluded_leaves_have_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
