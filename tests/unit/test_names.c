/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical names: one name, whole sides, and native names back byte for byte. The cases are files
 * in tests/golden, which the Python tests read as well. */
#include <jansson.h>

#include "heft/names.h"
#include "heft_test.h"

static json_t *golden(const char *name)
{
    char path[512];
    json_error_t error;
    (void)snprintf(path, sizeof path, "golden/%s", name);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        fail_msg("%s: line %d: %s", path, error.line, error.text);
    }
    assert_true(json_array_size(root) > 5);
    return root;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL ? value : "";
}

static heft_name_opts_t opts_of(const json_t *object)
{
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    const char *layers = text(object, "layers");
    opts.name_form =
        strcmp(text(object, "form"), "dotted") == 0 ? HEFT_NAME_FORM_DOTTED : HEFT_NAME_FORM_KEYSTR;
    opts.layer_form = strcmp(layers, "scanned") == 0    ? HEFT_LAYER_FORM_SCANNED
                      : strcmp(layers, "unrolled") == 0 ? HEFT_LAYER_FORM_UNROLLED
                                                        : HEFT_LAYER_FORM_NONE;
    opts.types_lost = json_is_true(json_object_get(object, "types_lost")) ? 1 : 0;
    return opts;
}

static void names_have_one_canonical_form(void **state)
{
    (void)state;
    json_t *cases = golden("names.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        heft_error_t err = HEFT_ERROR_INIT;
        heft_name_opts_t opts = opts_of(c);
        char *canonical = NULL;
        heft_status_t status = heft_name_canonicalize(text(c, "native"), &opts, &canonical, &err);
        if (text(c, "refused")[0] != '\0') {
            assert_int_equal(status, HEFT_ERR_NAME);
            EXPECT_MESSAGE(text(c, "refused"));
            assert_null(canonical);
            continue;
        }
        EXPECT_STATUS(status, HEFT_OK);
        assert_string_equal(canonical, text(c, "canonical"));
        heft_string_free(canonical);
    }
    json_decref(cases);
}

static heft_manifest_t *side_of(const json_t *c, const char *key)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    const json_t *names = json_object_get(c, key);
    EXPECT_STATUS(heft_manifest_create(text(c, "side"), &m, &err), HEFT_OK);
    for (size_t i = 0; i < json_array_size(names); i++) {
        heft_shape_t shape = { .rank = 1, .extent = { (int64_t)i + 1 } };
        EXPECT_STATUS(heft_manifest_add(m, json_string_value(json_array_get(names, i)),
                                        HEFT_DTYPE_F32, &shape, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

/* Every native name comes back, from the manifest and from its JSON form, with its own tensor. */
static void expect_natives(const heft_manifest_t *native, const heft_manifest_t *canonical)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(canonical); i++) {
        heft_tensor_info_t t;
        heft_tensor_info_t was;
        uint32_t index;
        char *name = NULL;
        EXPECT_STATUS(heft_manifest_query(canonical, i, &t, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_get_native(canonical, t.name, &name, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_find(native, name, &index, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_query(native, index, &was, &err), HEFT_OK);
        assert_int_equal(was.n_elems, t.n_elems);
        heft_string_free(name);
    }
}

static void expect_side(const json_t *c, const heft_manifest_t *m)
{
    const json_t *names = json_object_get(c, "canonical");
    const json_t *excluded = json_object_get(c, "excluded");
    heft_error_t err = HEFT_ERROR_INIT;
    assert_int_equal(heft_manifest_get_n_tensors(m), json_array_size(names));
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(m); i++) {
        heft_tensor_info_t t;
        EXPECT_STATUS(heft_manifest_query(m, i, &t, &err), HEFT_OK);
        assert_string_equal(t.name, json_string_value(json_array_get(names, i)));
    }
    assert_int_equal(heft_manifest_get_n_excluded(m), json_array_size(excluded));
    for (uint32_t i = 0; i < heft_manifest_get_n_excluded(m); i++) {
        const char *reason = NULL;
        assert_string_equal(heft_manifest_get_excluded(m, i, &reason),
                            json_string_value(json_array_get(excluded, i)));
        assert_non_null(strstr(reason, "not a weight"));
    }
    const char *root = json_string_value(json_object_get(c, "root"));
    const char *have = heft_manifest_get_attr(m, "root");
    assert_string_equal(have != NULL ? have : "(none)", root != NULL ? root : "(none)");
    assert_string_equal(heft_manifest_get_attr(m, "leaf_suffix"), text(c, "leaf_suffix"));
    assert_string_equal(heft_manifest_get_attr(m, "layer_form"), text(c, "layers"));
    assert_int_equal(heft_manifest_get_name_form(m), HEFT_NAME_FORM_KEYSTR);
}

static void sides_lose_what_all_names_share_and_get_it_back(void **state)
{
    (void)state;
    json_t *cases = golden("name_trees.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        heft_error_t err = HEFT_ERROR_INIT;
        heft_name_opts_t opts = opts_of(c);
        heft_manifest_t *native = side_of(c, "native");
        heft_manifest_t *m = NULL;
        heft_status_t status = heft_manifest_canonicalize(native, &opts, &m, &err);
        if (text(c, "refused")[0] != '\0') {
            assert_int_equal(status, HEFT_ERR_EXISTS);
            EXPECT_MESSAGE(text(c, "refused"));
            for (size_t k = 0; k < 2; k++) {
                EXPECT_MESSAGE(json_string_value(json_array_get(json_object_get(c, "native"), k)));
            }
            heft_manifest_destroy(native);
            continue;
        }
        EXPECT_STATUS(status, HEFT_OK);
        expect_side(c, m);
        expect_natives(native, m);
        char *json = NULL;
        heft_manifest_t *back = NULL;
        EXPECT_STATUS(heft_manifest_encode(m, &json, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_decode(json, strlen(json), &back, &err), HEFT_OK);
        assert_string_equal(heft_manifest_get_digest(back), heft_manifest_get_digest(m));
        expect_side(c, back);
        expect_natives(native, back);
        heft_manifest_t *twice = NULL;
        EXPECT_STATUS(heft_manifest_canonicalize(m, &opts, &twice, &err), HEFT_ERR_STATE);
        heft_string_free(json);
        heft_manifest_destroy(back);
        heft_manifest_destroy(m);
        heft_manifest_destroy(native);
    }
    json_decref(cases);
    assert_int_equal(heft__alloc_live(), 0);
}

/* A manifest that only declares gives names to tensors that are yet to be made. */
static void emitted_names_follow_the_declarations(void **state)
{
    (void)state;
    static const struct {
        const char *root;
        const char *suffix;
        const char *want;
    } cases[] = { { NULL, ".value", "['layers_%d']['k'].value" },
                  { NULL, "", "['layers_%d']['k']" },
                  { "model", ".value", "['model']['layers_%d']['k'].value" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_manifest_t *m = NULL;
        EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_set_attr(m, "name_form", "keystr", &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_set_attr(m, "layer_form", "unrolled", &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_set_attr(m, "leaf_suffix", cases[i].suffix, &err), HEFT_OK);
        if (cases[i].root != NULL) {
            EXPECT_STATUS(heft_manifest_set_attr(m, "root", cases[i].root, &err), HEFT_OK);
        }
        EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
        for (int l = 0; l < 3; l++) {
            char canonical[32];
            char want[64];
            char *native = NULL;
            (void)snprintf(canonical, sizeof canonical, "layers_%d.k", l);
            const char *percent = strchr(cases[i].want, '%');
            (void)snprintf(want, sizeof want, "%.*s%d%s", (int)(percent - cases[i].want),
                           cases[i].want, l, percent + 2);
            EXPECT_STATUS(heft_manifest_get_native(m, canonical, &native, &err), HEFT_OK);
            assert_string_equal(native, want);
            heft_string_free(native);
        }
        heft_manifest_destroy(m);
    }
}

#define KEYSTR(attrs, tensors) \
    "{\"heft_manifest\":1,\"side\":\"source\",\"attributes\":{" attrs "},\"tensors\":[" tensors "]}"
#define TENSOR(name, more) "{\"name\":\"" name "\",\"dtype\":\"F32\",\"shape\":[1]" more "}"
#define SCANNED "\"name_form\":\"keystr\",\"layer_form\":\"scanned\""
#define UNROLLED "\"name_form\":\"keystr\",\"layer_form\":\"unrolled\""

static void names_that_are_not_canonical_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *part; /* NULL: accepted */
    } cases[] = {
        { KEYSTR(SCANNED, TENSOR("decoder.layers.3.k", "")), NULL },
        { KEYSTR(UNROLLED, TENSOR("decoder.layers.3.k", "")), "not canonical" },
        { KEYSTR(UNROLLED, TENSOR("decoder.layers_3.k", "")), NULL },
        { KEYSTR(SCANNED, TENSOR("base.x", "")), "attribute root" },
        { KEYSTR(SCANNED, TENSOR("base.x", "") "," TENSOR("y", "")), NULL },
        { KEYSTR(SCANNED ",\"root\":\"base\"", TENSOR("x", "")), NULL },
        { KEYSTR(SCANNED, TENSOR("a.b", ",\"native\":\"['a']['b'].value\"")), NULL },
        { KEYSTR(SCANNED, TENSOR("a.b", ",\"native\":\"['a']['c'].value\"")), "\"a.c\"" },
        { KEYSTR(SCANNED, TENSOR("a..b", "")), "no key string" },
        { KEYSTR("\"name_form\":\"keystr\"", TENSOR("a", "")), "layer_form is missing" },
        { KEYSTR("\"name_form\":\"keystring\"", TENSOR("a", "")), "\"keystring\"" },
        { KEYSTR("\"layer_form\":\"rolled\"", TENSOR("a", "")), "\"rolled\"" },
        { KEYSTR("\"leaf_suffix\":\".value\"", TENSOR("a", "")), "leaf_suffix needs" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_manifest_t *m = NULL;
        heft_status_t status = heft_manifest_decode(cases[i].json, strlen(cases[i].json), &m, &err);
        if (cases[i].part == NULL) {
            EXPECT_STATUS(status, HEFT_OK);
            heft_manifest_destroy(m);
            continue;
        }
        EXPECT_STATUS(status, HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i].part);
    }
}

static void options_are_given_never_guessed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    char *out = NULL;
    EXPECT_STATUS(heft_name_canonicalize("['a']", NULL, &out, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_name_canonicalize("['a']", &opts, &out, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("name_form must be given");
    opts.name_form = HEFT_NAME_FORM_KEYSTR;
    EXPECT_STATUS(heft_name_canonicalize("['a']", &opts, &out, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("scanned or unrolled");
    opts.layer_form = HEFT_LAYER_FORM_UNROLLED;
    opts.container = "a.b";
    EXPECT_STATUS(heft_name_canonicalize("['a']", &opts, &out, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"a.b\"");
    opts.container = "blocks";
    EXPECT_STATUS(heft_name_canonicalize("['blocks'][3]['layers'][4]", &opts, &out, &err), HEFT_OK);
    assert_string_equal(out, "blocks_3.layers.4");
    heft_string_free(out);
}

static void names_of_ranks_have_one_spelling(void **state)
{
    (void)state;
    static const char *const others[] = {
        "w",        "rank-",     "rank-1",          "rank-1.",
        "rank-.w",  "rank--1.w", "rank-x.w",        "rank-1w",
        "Rank-1.w", "rank-01.w", "rank-16777216.w", "rank-99999999999999999999.w",
    };
    uint32_t rank = 7;
    const char *rest = "untouched";
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(heft_name_split_rank(others[i], &rank, &rest), 0);
        assert_int_equal(rank, 7);
        assert_string_equal(rest, "untouched");
    }
    assert_int_equal(heft_name_split_rank("rank-0.a.b", &rank, &rest), 1);
    assert_int_equal(rank, 0);
    assert_string_equal(rest, "a.b");
    assert_int_equal(heft_name_split_rank("rank-16777215.rank-1.w", &rank, &rest), 1);
    assert_int_equal(rank, (1 << 24) - 1);
    assert_string_equal(rest, "rank-1.w");
}

static heft_status_t name_everything(heft_error_t *err)
{
    static const char *const natives[] = { "['base']['layers']['3']['k'].value",
                                           "['base']['rngs']['count'].value",
                                           "['base']['norm'].value" };
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    opts.name_form = HEFT_NAME_FORM_KEYSTR;
    opts.layer_form = HEFT_LAYER_FORM_UNROLLED;
    opts.types_lost = 1;
    heft_manifest_t *raw = NULL;
    heft_manifest_t *m = NULL;
    char *native = NULL;
    heft_shape_t shape = { .rank = 0 };
    heft_status_t status = heft_manifest_create("source", &raw, err);
    for (size_t i = 0; i < 3 && status == HEFT_OK; i++) {
        status = heft_manifest_add(raw, natives[i], HEFT_DTYPE_F32, &shape, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(raw, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_canonicalize(raw, &opts, &m, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_get_native(m, "layers_3.k", &native, err);
    }
    if (status == HEFT_OK) {
        assert_string_equal(native, natives[0]);
    }
    heft_string_free(native);
    heft_manifest_destroy(m);
    heft_manifest_destroy(raw);
    return status;
}

static void naming_survives_every_failing_allocation(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__alloc_fail_at(k);
        heft_status_t status = name_everything(&err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), 0);
        if (status == HEFT_OK) {
            assert_true(k > 10);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(err.status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_one_canonical_form),
        cmocka_unit_test(sides_lose_what_all_names_share_and_get_it_back),
        cmocka_unit_test(emitted_names_follow_the_declarations),
        cmocka_unit_test(names_that_are_not_canonical_are_refused),
        cmocka_unit_test(options_are_given_never_guessed),
        cmocka_unit_test(names_of_ranks_have_one_spelling),
        cmocka_unit_test(naming_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
