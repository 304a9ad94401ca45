/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a manifest that are boxes of whole tensors: what they may say, digest, JSON, drift. */
#include "heft_test.h"

#include "heft/drift.h"
#include "heft/model.h"
#include "heft/names.h"

static heft_manifest_t *begin(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    return manifest;
}

static void add(heft_manifest_t *manifest, const char *name, heft_dtype_t dtype, int64_t rows,
                int64_t columns)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 2, .extent = { rows, columns } };
    EXPECT_STATUS(heft_manifest_add(manifest, name, dtype, &shape, &err), HEFT_OK);
}

static heft_part_t part_of(const char *tensor, int64_t rows, int64_t columns, int64_t row,
                           int64_t column)
{
    return (heft_part_t){ .tensor = tensor,
                          .shape = { .rank = 2, .extent = { rows, columns } },
                          .begin = { row, column } };
}

static void set(heft_manifest_t *manifest, const char *name, const heft_part_t *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_manifest_set_part(manifest, name, part, &err), HEFT_OK);
}

/* w.1 is rows 4 and 5 of w, replica 3; w is rows 0 to 3, and v is whole. */
static heft_manifest_t *sample(int64_t row, uint32_t replica)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = begin();
    heft_part_t part = part_of("w", 10, 8, row, 0);
    add(manifest, "w.1", HEFT_DTYPE_BF16, 2, 8);
    add(manifest, "v", HEFT_DTYPE_F32, 2, 2);
    add(manifest, "w", HEFT_DTYPE_BF16, 4, 8);
    part.replica = replica;
    set(manifest, "w.1", &part);
    part = part_of(NULL, 10, 8, 0, 0);
    part.shape.extent[5] = 7; /* what is beyond the dimensions means nothing */
    set(manifest, "w", &part);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

static void parts_are_told(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_part_t part;
    heft_manifest_t *manifest = sample(4, 3);
    EXPECT_STATUS(heft_manifest_query_part(manifest, 0, &part, &err), HEFT_ERR_NOT_FOUND); /* v */
    EXPECT_STATUS(heft_manifest_query_part(manifest, 9, &part, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_manifest_query_part(manifest, 1, &part, &err), HEFT_OK);
    assert_string_equal(part.tensor, "w");
    assert_int_equal(part.replica, 0);
    assert_int_equal(part.shape.extent[5], 0);
    EXPECT_STATUS(heft_manifest_query_part(manifest, 2, &part, &err), HEFT_OK);
    assert_string_equal(part.tensor, "w");
    assert_int_equal(part.shape.extent[0], 10);
    assert_int_equal(part.begin[0], 4);
    assert_int_equal(part.replica, 3);
    assert_int_equal(heft_manifest_get_n_bytes(manifest), 2 * 8 * 6 + 16); /* what is here */
    heft_manifest_destroy(manifest);
}

static void digest_sees_parts(void **state)
{
    (void)state;
    heft_manifest_t *manifests[] = { sample(4, 3), sample(4, 3), sample(5, 3), sample(4, 2) };
    const char *first = heft_manifest_get_digest(manifests[0]);
    assert_string_equal(heft_manifest_get_digest(manifests[1]), first);
    assert_string_not_equal(heft_manifest_get_digest(manifests[2]), first);
    assert_string_not_equal(heft_manifest_get_digest(manifests[3]), first);
    for (int i = 0; i < 4; i++) {
        heft_manifest_destroy(manifests[i]);
    }
}

static void refuse(const char *name, const heft_part_t *part, heft_status_t status,
                   const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = begin();
    add(manifest, "w", HEFT_DTYPE_F4, 4, 8);
    EXPECT_STATUS(heft_manifest_set_part(manifest, name, part, &err), status);
    EXPECT_MESSAGE(text);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_query_part(manifest, 0, &(heft_part_t){ 0 }, &err),
                  HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_manifest_set_part(manifest, "w", part, &err), HEFT_ERR_STATE);
    heft_manifest_destroy(manifest);
}

static void box_outside(void **state)
{
    (void)state;
    heft_part_t part = part_of("W", 10, 8, 7, 0);
    refuse("w", &part, HEFT_ERR_SHAPE,
           "tensor \"w\": a box of 4 from 7 in dimension 0 of \"W\", which has 10");
    part = part_of(NULL, 10, 8, 0, -2);
    refuse("w", &part, HEFT_ERR_SHAPE, "a box of 8 from -2 in dimension 1 of \"w\"");
    part = part_of(NULL, INT64_MAX / 8, 8, INT64_MAX, 0);
    refuse("w", &part, HEFT_ERR_SHAPE, "from 9223372036854775807");
    part = part_of(NULL, 10, 16, 0, 3);
    refuse("w", &part, HEFT_ERR_SHAPE, "begins within a byte: F4 at 3");
    part.shape.rank = 3;
    part.shape.extent[2] = 2;
    refuse("w", &part, HEFT_ERR_SHAPE, "a box of 2 dimensions, its whole tensor has 3");
}

static void what_is_no_part_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_part_t part = part_of(NULL, 10, 8, 0, 0);
    refuse("x", &part, HEFT_ERR_NOT_FOUND, "\"x\"");
    refuse(NULL, &part, HEFT_ERR_ARGUMENT, "without a name");
    refuse("w", NULL, HEFT_ERR_ARGUMENT, "without a box");
    part.tensor = "";
    refuse("w", &part, HEFT_ERR_ARGUMENT, "empty name");
    part.tensor = "a\nb";
    refuse("w", &part, HEFT_ERR_ARGUMENT, "control");
    part = part_of(NULL, INT64_MAX, INT64_MAX, 0, 0);
    refuse("w", &part, HEFT_ERR_OVERFLOW, "w");
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    add(manifest, "w", HEFT_DTYPE_F32, 4, 8);
    part = part_of(NULL, 10, 8, 0, 0);
    EXPECT_STATUS(heft_manifest_set_part(manifest, "w", &part, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("a destination has no parts");
    heft_manifest_destroy(manifest);
    manifest = begin();
    add(manifest, "w", HEFT_DTYPE_F32, 4, 8);
    set(manifest, "w", &part);
    set(manifest, "w", &part);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("\"w\" has two parts");
    heft_manifest_destroy(manifest);
}

static void json_form_comes_back_equal(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = sample(4, 3);
    heft_manifest_t *again = NULL;
    char *text = NULL;
    EXPECT_STATUS(heft_manifest_encode(manifest, &text, &err), HEFT_OK);
    assert_non_null(strstr(text, "\"shape\": [4, 8], \"part\": {\"shape\": [10, 8], \"begin\": "
                                 "[0, 0]}}"));
    assert_non_null(strstr(text, "\"part\": {\"tensor\": \"w\", \"shape\": [10, 8], \"begin\": "
                                 "[4, 0], \"replica\": 3}}"));
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &again, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_digest(manifest), heft_manifest_get_digest(again));
    heft_string_free(text);
    heft_manifest_destroy(again);
    heft_manifest_destroy(manifest);
}

static void json_form_is_strict(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "[]", "\"part\" must be an object" },
        { "null", "\"part\" must be an object" },
        { "{\"begin\": [0]}", "\"shape\" must be an array" },
        { "{\"shape\": [8]}", "\"begin\" must be an array" },
        { "{\"shape\": [8], \"begin\": [0, 0]}", "\"begin\" must be as long as its shape" },
        { "{\"shape\": [8], \"begin\": [-1]}", "\"begin\" must be integers, none negative" },
        { "{\"shape\": [8], \"begin\": [5]}", "a box of 4 from 5 in dimension 0" },
        { "{\"shape\": [8], \"begin\": [0], \"replica\": -1}", "\"replica\" must be an integer" },
        { "{\"shape\": [8], \"begin\": [0], \"replica\": 4294967296}", "\"replica\" must be" },
        { "{\"shape\": [8], \"begin\": [0], \"tensor\": 1}", "\"tensor\" must be a string" },
        { "{\"shape\": [8], \"begin\": [0], \"end\": [4]}",
          "unknown key \"end\" in part of \"w\"" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400];
        heft_error_t err = HEFT_ERROR_INIT;
        heft_manifest_t *manifest = NULL;
        (void)snprintf(text, sizeof text,
                       "{\"heft_manifest\": 1, \"side\": \"source\", \"tensors\": [{\"name\": "
                       "\"w\", \"dtype\": \"F32\", \"shape\": [4], \"part\": %s}]}",
                       cases[i][0]);
        EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &manifest, &err), HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i][1]);
        assert_null(manifest);
    }
}

/* A fused matrix that is cut through its halves: attributes speak of the whole. */
static void attributes_are_of_the_whole(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = begin();
    const heft_part_t part = part_of("m.wi", 12, 8, 3, 0);
    static const char *const attrs[][2] = { { "fused.axis", "0" },
                                            { "fused.shards", "2" },
                                            { "fused.layout", "concat" },
                                            { "fused.half", "gate_up" } };
    add(manifest, "m.wi.0", HEFT_DTYPE_F32, 3, 8); /* 3 rows alone have no two halves */
    for (size_t i = 0; i < 4; i++) {
        EXPECT_STATUS(
            heft_manifest_set_tensor_attr(manifest, "m.wi.0", attrs[i][0], attrs[i][1], &err),
            HEFT_OK);
    }
    set(manifest, "m.wi.0", &part);
    EXPECT_STATUS(heft_manifest_set_attr(manifest, "name_form", "keystr", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(manifest, "layer_form", "unrolled", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    char *native = NULL;
    EXPECT_STATUS(heft_manifest_get_native(manifest, "m.wi.0", &native, &err), HEFT_OK);
    assert_string_equal(native, "['m']['wi']");
    heft_string_free(native);
    heft_manifest_destroy(manifest);
}

static void parts_have_canonical_names(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *native = begin();
    heft_manifest_t *canonical = NULL;
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    const heft_part_t part = part_of(NULL, 10, 8, 3, 0);
    opts.name_form = HEFT_NAME_FORM_KEYSTR;
    opts.layer_form = HEFT_LAYER_FORM_UNROLLED;
    add(native, "['w']", HEFT_DTYPE_F32, 3, 8);
    set(native, "['w']", &part);
    EXPECT_STATUS(heft_manifest_finish(native, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_canonicalize(native, &opts, &canonical, &err),
                  HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("\"['w']\" is a part");
    heft_manifest_destroy(native);
}

static void drift_sees_parts(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *first = sample(4, 3);
    heft_manifest_t *second = sample(5, 3);
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_drift_create(first, second, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 1);
    assert_string_equal(heft_drift_get(drift, 0)->text,
                        "relaid \"w.1\": part was \"w\" [10, 8] from [4, 0] replica 3, is \"w\" "
                        "[10, 8] from [5, 0] replica 3");
    heft_drift_destroy(drift);
    heft_manifest_destroy(first);
    heft_manifest_destroy(second);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_manifest_t *manifest = NULL;
        const int64_t live = heft__alloc_live();
        const heft_shape_t shape = { .rank = 2, .extent = { 4, 8 } };
        const heft_part_t part = part_of("whole", 10, 8, 4, 0);
        heft__alloc_fail_at(k);
        heft_status_t status = heft_manifest_create("source", &manifest, &err);
        if (status == HEFT_OK) {
            status = heft_manifest_add(manifest, "w", HEFT_DTYPE_F32, &shape, &err);
        }
        if (status == HEFT_OK) {
            status = heft_manifest_set_part(manifest, "w", &part, &err);
        }
        if (status == HEFT_OK) {
            status = heft_manifest_finish(manifest, &err);
        }
        heft__alloc_fail_at(-1);
        heft_manifest_destroy(manifest);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_told),
        cmocka_unit_test(digest_sees_parts),
        cmocka_unit_test(box_outside),
        cmocka_unit_test(what_is_no_part_is_refused),
        cmocka_unit_test(json_form_comes_back_equal),
        cmocka_unit_test(json_form_is_strict),
        cmocka_unit_test(attributes_are_of_the_whole),
        cmocka_unit_test(parts_have_canonical_names),
        cmocka_unit_test(drift_sees_parts),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
