/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest: what it accepts, how it is ordered and hashed, and its JSON form both ways. */
#include "heft_test.h"

#include "heft/model.h"

static heft_shape_t shape_of(int rank, const int64_t *extents)
{
    heft_shape_t shape = { .rank = rank };
    for (int k = 0; k < rank && k < HEFT_MAX_DIMS; k++) {
        shape.extent[k] = extents[k];
    }
    return shape;
}

static heft_status_t add(heft_manifest_t *manifest, const char *name, heft_dtype_t dtype, int64_t a,
                         int64_t b, heft_error_t *err)
{
    heft_shape_t shape = shape_of(2, (int64_t[]){ a, b });
    return heft_manifest_add(manifest, name, dtype, &shape, err);
}

static heft_manifest_t *sample(bool reversed)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    for (int i = 0; i < 3; i++) {
        int which = reversed ? 2 - i : i;
        static const char *const names[] = { "b.weight", "a.weight", "a.bias" };
        EXPECT_STATUS(add(manifest, names[which], HEFT_DTYPE_BF16, 2, which + 1, &err), HEFT_OK);
    }
    const char *first = reversed ? "layout" : "framework";
    const char *second = reversed ? "framework" : "layout";
    EXPECT_STATUS(heft_manifest_set_attr(manifest, first, "x", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(manifest, second, "x", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

static void manifest_sorts_and_sums(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = sample(false);
    heft_tensor_info_t info;
    assert_int_equal(heft_manifest_get_n_tensors(manifest), 3);
    assert_int_equal(heft_manifest_get_n_bytes(manifest), 2 * 2 * (1 + 2 + 3));
    EXPECT_STATUS(heft_manifest_query(manifest, 0, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "a.bias");
    assert_int_equal(info.n_elems, 6);
    assert_int_equal(info.n_bytes, 12);
    EXPECT_STATUS(heft_manifest_query(manifest, 2, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "b.weight");
    EXPECT_STATUS(heft_manifest_query(manifest, 3, &info, &err), HEFT_ERR_NOT_FOUND);
    heft_manifest_destroy(manifest);
}

static void manifest_digest_ignores_order_and_sees_content(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *a = sample(false);
    heft_manifest_t *b = sample(true);
    assert_string_equal(heft_manifest_get_digest(a), heft_manifest_get_digest(b));
    assert_int_equal(strlen(heft_manifest_get_digest(a)), 64);
    heft_manifest_t *c = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &c, &err), HEFT_OK);
    EXPECT_STATUS(add(c, "b.weight", HEFT_DTYPE_F16, 2, 1, &err), HEFT_OK);
    EXPECT_STATUS(add(c, "a.weight", HEFT_DTYPE_BF16, 2, 2, &err), HEFT_OK);
    EXPECT_STATUS(add(c, "a.bias", HEFT_DTYPE_BF16, 2, 3, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(c, "framework", "x", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(c, "layout", "x", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(c, &err), HEFT_OK);
    assert_string_not_equal(heft_manifest_get_digest(a), heft_manifest_get_digest(c));
    heft_manifest_destroy(a);
    heft_manifest_destroy(b);
    heft_manifest_destroy(c);
}

static void manifest_refuses_bad_tensors(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("trainer", &m, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"trainer\"");
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    EXPECT_STATUS(add(m, "w", HEFT_DTYPE_F32, 2, 2, &err), HEFT_OK);
    EXPECT_STATUS(add(m, "w", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("\"w\"");
    EXPECT_STATUS(add(m, "", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "__metadata__", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "a\nb", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "\xc0\x80", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "\xed\xa0\x80", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "\xe2\x82", HEFT_DTYPE_F32, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "naïve.wörld.€.\xf0\x9f\x98\x80", HEFT_DTYPE_F32, 2, 2, &err), HEFT_OK);
    EXPECT_STATUS(add(m, "n", HEFT_DTYPE_NONE, 2, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "p", HEFT_DTYPE_F4, 2, 7, &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("tensor \"p\"");
    EXPECT_STATUS(add(m, "h", HEFT_DTYPE_U8, (int64_t)1 << 40, (int64_t)1 << 40, &err),
                  HEFT_ERR_OVERFLOW);
    EXPECT_STATUS(add(m, "h", HEFT_DTYPE_F64, (int64_t)1 << 31, (int64_t)1 << 31, &err),
                  HEFT_ERR_OVERFLOW);
    EXPECT_STATUS(add(m, "neg", HEFT_DTYPE_U8, 2, -1, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(add(m, "h1", HEFT_DTYPE_U8, (int64_t)1 << 31, (int64_t)1 << 31, &err), HEFT_OK);
    EXPECT_STATUS(add(m, "h2", HEFT_DTYPE_U8, (int64_t)1 << 31, (int64_t)1 << 31, &err),
                  HEFT_ERR_OVERFLOW);
    EXPECT_MESSAGE("the manifest overflows");
    assert_int_equal(heft_manifest_get_n_tensors(m), 3);
    heft_manifest_destroy(m);
}

static void manifest_is_frozen_by_finish(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = sample(false);
    char *text = NULL;
    EXPECT_STATUS(add(m, "x", HEFT_DTYPE_F32, 1, 1, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_manifest_set_attr(m, "x", "y", &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_ERR_STATE);
    heft_manifest_destroy(m);
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_encode(m, &text, &err), HEFT_ERR_STATE);
    assert_null(text);
    heft_manifest_destroy(m);
}

static void manifest_find_names_the_nearest(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = sample(false);
    uint32_t index = 99;
    EXPECT_STATUS(heft_manifest_find(m, "a.weight", &index, &err), HEFT_OK);
    assert_int_equal(index, 1);
    EXPECT_STATUS(heft_manifest_find(m, "b.wieght", &index, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("nearest: \"b.weight\"");
    EXPECT_STATUS(heft_manifest_find(m, "zzzzzzzzzz", &index, &err), HEFT_ERR_NOT_FOUND);
    assert_null(strstr(err.message, "nearest"));
    assert_int_equal(index, 1);
    heft_manifest_destroy(m);
}

static void manifest_attributes_replace(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(m, "k", "1", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(m, "k", "2", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(m, "", "2", &err), HEFT_ERR_ARGUMENT);
    assert_string_equal(heft_manifest_get_attr(m, "k"), "2");
    assert_null(heft_manifest_get_attr(m, "other"));
    heft_manifest_destroy(m);
}

static void json_form_comes_back_equal(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    heft_shape_t scalar = { .rank = 0 };
    EXPECT_STATUS(heft_manifest_add(m, "scalar \"quoted\" \\ é", HEFT_DTYPE_F32, &scalar, &err),
                  HEFT_OK);
    EXPECT_STATUS(add(m, "empty", HEFT_DTYPE_F8_E4M3, 0, 4, &err), HEFT_OK);
    EXPECT_STATUS(add(m, "packed", HEFT_DTYPE_F4, 2, 8, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(m, "framework", "a \"b\"", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    char *text = NULL;
    EXPECT_STATUS(heft_manifest_encode(m, &text, &err), HEFT_OK);
    heft_manifest_t *back = NULL;
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &back, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_digest(back), heft_manifest_get_digest(m));
    assert_string_equal(heft_manifest_get_side(back), "destination");
    assert_string_equal(heft_manifest_get_attr(back, "framework"), "a \"b\"");
    assert_int_equal(heft_manifest_get_n_bytes(back), 4 + 0 + 8);
    char *again = NULL;
    EXPECT_STATUS(heft_manifest_encode(back, &again, &err), HEFT_OK);
    assert_string_equal(text, again);
    heft_string_free(again);
    heft_string_free(text);
    heft_manifest_destroy(back);
    heft_manifest_destroy(m);
}

#define TENSORS(t) "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[" t "]}"

/* Beyond 2^53 too, where numbers of other JSON readers are no longer exact. */
static void numbers_of_the_json_form_are_exact_or_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char *const good[] = { "9007199254740993", "9223372036854775807" };
    static const char *const bad[] = { "9223372036854775808", "1e3", "3.0", "1e400" };
    static const char form[] = "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[{\"name\":"
                               "\"w\",\"dtype\":\"U8\",\"shape\":[%s]}]}";
    char text[160];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        heft_manifest_t *m = NULL;
        heft_tensor_info_t info;
        (void)snprintf(text, sizeof text, form, good[i]);
        EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_query(m, 0, &info, &err), HEFT_OK);
        (void)snprintf(text, sizeof text, "%lld", (long long)info.shape.extent[0]);
        assert_string_equal(text, good[i]);
        heft_manifest_destroy(m);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        heft_manifest_t *m = NULL;
        (void)snprintf(text, sizeof text, form, bad[i]);
        EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_ERR_FORMAT);
        assert_null(m);
    }
}

static void json_form_is_strict(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "", HEFT_ERR_FORMAT, "line" },
        { "[]", HEFT_ERR_FORMAT, "object" },
        { "{}", HEFT_ERR_FORMAT, "heft_manifest" },
        { "{\"heft_manifest\":2,\"side\":\"source\",\"tensors\":[]}", HEFT_ERR_UNSUPPORTED,
          "version 2" },
        { "{\"heft_manifest\":1,\"side\":\"left\",\"tensors\":[]}", HEFT_ERR_FORMAT, "side" },
        { "{\"heft_manifest\":1,\"side\":\"source\"}", HEFT_ERR_FORMAT, "tensors" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"tensor\":[]}", HEFT_ERR_FORMAT,
          "unknown key \"tensor\"" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"side\":\"source\",\"tensors\":[]}",
          HEFT_ERR_FORMAT, "duplicate" },
        { TENSORS("3"), HEFT_ERR_FORMAT, "tensor 0" },
        { TENSORS("{\"dtype\":\"BF16\",\"shape\":[]}"), HEFT_ERR_FORMAT, "\"name\"" },
        { TENSORS("{\"name\":\"a\",\"shape\":[]}"), HEFT_ERR_FORMAT, "\"dtype\"" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"bf16\",\"shape\":[]}"), HEFT_ERR_FORMAT,
          "unknown dtype \"bf16\"" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\"}"), HEFT_ERR_FORMAT, "\"shape\"" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[1.0]}"), HEFT_ERR_FORMAT,
          "integers" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[-1]}"), HEFT_ERR_FORMAT,
          "negative" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1]}"),
          HEFT_ERR_LIMIT, "13 dimensions" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[1],\"padded\":1}"),
          HEFT_ERR_FORMAT, "unknown key \"padded\" in tensor \"a\"" },
        { TENSORS("{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[1]},"
                  "{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[1]}"),
          HEFT_ERR_FORMAT, "tensor \"a\" is there already" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"n_tensors\":1}",
          HEFT_ERR_FORMAT, "\"n_tensors\" is 1, the tensors say 0" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"n_bytes\":\"1\"}",
          HEFT_ERR_FORMAT, "n_bytes" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"digest\":\"00\"}",
          HEFT_ERR_FORMAT, "digest" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"attributes\":{\"a\":1}}",
          HEFT_ERR_FORMAT, "\"a\" must be a string" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[],\"attributes\":[]}",
          HEFT_ERR_FORMAT, "attributes" },
        { "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[]} x", HEFT_ERR_FORMAT, "line" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_manifest_t *m = NULL;
        EXPECT_STATUS(heft_manifest_decode(cases[i].text, strlen(cases[i].text), &m, &err),
                      cases[i].status);
        EXPECT_MESSAGE(cases[i].part);
        assert_null(m);
    }
    assert_int_equal(heft__alloc_live(), 0);
}

/* Everything that is wrong is listed, at most 40 lines of it, and its number is stated. */
static void all_that_is_wrong_is_listed(void **state)
{
    (void)state;
    static const char text[] =
        TENSORS("{\"name\":\"a\",\"dtype\":\"BF17\",\"shape\":[1]},"
                "{\"name\":\"b\",\"dtype\":\"BF16\",\"shape\":[-1]},"
                "{\"name\":\"c\",\"dtype\":\"BF16\",\"shape\":[6],\"qkv\":{\"t\":1}},"
                "{\"name\":\"d\",\"dtype\":\"BF16\",\"shape\":[6],\"repeat\":{\"axis\":0,"
                "\"factor\":4}},"
                "{\"name\":\"e\",\"dtype\":\"BF16\",\"shape\":[1]}");
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    char *report = NULL;
    EXPECT_STATUS(heft_manifest_decode_report(text, sizeof text - 1, &m, &report, &err),
                  HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("unknown dtype \"BF17\"");
    EXPECT_MESSAGE("(1 of 4 problems)");
    assert_non_null(report);
    assert_non_null(strstr(report, "tensor \"b\""));
    assert_non_null(strstr(report, "tensor \"c\": qkv.t is there, qkv.f is missing"));
    assert_non_null(strstr(report, "tensor \"d\": repeat.factor is 4"));
    heft_string_free(report);

    heft__text_t many;
    heft__text_init(&many);
    heft__text_put(&many, "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[");
    for (int i = 0; i < 50; i++) {
        heft__text_printf(&many, "%s{\"name\":\"t%d\",\"dtype\":\"X\",\"shape\":[]}",
                          i > 0 ? "," : "", i);
    }
    heft__text_put(&many, "]}");
    EXPECT_STATUS(heft_manifest_decode_report(many.data, many.len, &m, &report, &err),
                  HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("(1 of 50 problems)");
    assert_non_null(strstr(report, "\"t39\""));
    assert_null(strstr(report, "\"t40\""));
    assert_non_null(strstr(report, "... 50 problems in all"));
    heft_string_free(report);
    heft__text_fini(&many);

    /* one problem needs no list */
    EXPECT_STATUS(heft_manifest_decode_report("[]", 2, &m, &report, &err), HEFT_ERR_FORMAT);
    assert_null(report);
    assert_null(m);
    assert_int_equal(heft__alloc_live(), 0);
}

static heft_status_t build_everything(heft_error_t *err)
{
    heft_manifest_t *m = NULL;
    heft_manifest_t *back = NULL;
    char *text = NULL;
    heft_status_t status = heft_manifest_create("source", &m, err);
    for (int i = 0; i < 40 && status == HEFT_OK; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%d.weight", i);
        status = add(m, name, HEFT_DTYPE_BF16, 4, 4, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_set_attr(m, "framework", "test", err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(m, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_encode(m, &text, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_decode(text, strlen(text), &back, err);
    }
    heft_string_free(text);
    heft_manifest_destroy(back);
    heft_manifest_destroy(m);
    return status;
}

static void manifest_survives_every_failing_allocation(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__alloc_fail_at(k);
        heft_status_t status = build_everything(&err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), 0);
        if (status == HEFT_OK) {
            assert_true(k > 20);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(err.status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_sorts_and_sums),
        cmocka_unit_test(manifest_digest_ignores_order_and_sees_content),
        cmocka_unit_test(manifest_refuses_bad_tensors),
        cmocka_unit_test(manifest_is_frozen_by_finish),
        cmocka_unit_test(manifest_find_names_the_nearest),
        cmocka_unit_test(manifest_attributes_replace),
        cmocka_unit_test(json_form_comes_back_equal),
        cmocka_unit_test(numbers_of_the_json_form_are_exact_or_refused),
        cmocka_unit_test(json_form_is_strict),
        cmocka_unit_test(all_that_is_wrong_is_listed),
        cmocka_unit_test(manifest_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
