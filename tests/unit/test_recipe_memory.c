/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of the recipe part fails in turn: an error, and nothing is left behind. */
#include "recipe_bench.h"

#include "heft/model.h"

static const char text[] =
    "let tp = 2, wire = \"bf16\", n = config.n\nlet twice(a) = a * 2, more(a, b) = twice(a) + b\n"
    "ranks tp as r\n"
    "require tp > 0 \"tp\"\n"
    "dtype wire except optional \"*.router.*\", \"zzz\" except optional \"v\" when tp > 1\n"
    "\"{p*}.layers_{s}.w\" [({r}:tp f), (d:2 q)] where f pad 8 as (b c:2), l:3\n"
    "  -> \"{p*}.layers.{more(s, s) - s}.w\" [(b 0:2 c), d, (q k:2)]\n"
    "\"a.scale\" [f], \"a.w\" [f, d] -> \"a.out\" [f, d] when has(\"a.w\") by mul in f32\n"
    "\"f8.{l}.w\" [o, i] -> \"f8.{l}.q\" [o, i], \"f8.{l}.s\" [o] by fp8_quantise(2, \"ue8m0\") in "
    "f8_e4m3\n"
    "\"f8.q\" [o, i], \"f8.s\" [o, i] -> \"f8.x\" [o, i] by dequantise(2, 2) in bf16\n"
    "\"f8.b\" [g, v], \"f8.e\" [g] -> \"f8.m\" [(g v)] by mxfp4_unpack in bf16\n"
    "\"stack\" [l, d] where d pad 4 -> \"stack.{l}\" [d] by scale(2) in f32\n"
    "let box = \"b\", many = \"ss\"\n\"{box}.{singular(many)}_{i}.{t*}\" [d] -> \"n.{i}.{t*}\" [d] "
    "note "
    "\"noted\"\n"
    "refuse \"{box}.{x*}\" because \"left over\"\n"
    "optional ignore \"rngs.*\", \"q{tp}\" because \"none\" when true\n"
    "untouched \"v.*\" because \"frozen\"\n";

static heft_status_t once(const rb_t *b, const heft_manifest_t *source, const heft_manifest_t *dest,
                          heft_error_t *err)
{
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_exception_t *exceptions = NULL;
    uint32_t n = 0;
    heft_status_t status = heft_recipe_parse("memory", text, sizeof text - 1, &recipe, err);
    if (status == HEFT_OK) {
        status = heft_recipe_count_ranks(recipe, b->bindings, &n, err);
    }
    if (status == HEFT_OK) {
        status = heft_recipe_compile(recipe, b->bindings, 1, source, dest, &tape, err);
    }
    if (status == HEFT_OK) {
        status =
            heft_recipe_resolve_exceptions(recipe, b->bindings, source, dest, &exceptions, &n, err);
    }
    if (status == HEFT_OK) {
        assert_int_equal(n, 1);
    } else {
        assert_null(exceptions);
    }
    heft_exceptions_free(exceptions);
    heft_tape_destroy(tape);
    heft_recipe_destroy(recipe);
    return status;
}

static void declare(rb_t *b)
{
    rb_source(b, "m.layers_1.w", HEFT_DTYPE_F32, "8,4", NULL);
    rb_source(b, "m.layers_2.w", HEFT_DTYPE_F32, "8,4", NULL);
    rb_source(b, "a.scale", HEFT_DTYPE_F32, "2", NULL);
    rb_source(b, "b.s_1.x", HEFT_DTYPE_F32, "2", NULL);
    rb_source(b, "a.w", HEFT_DTYPE_F32, "2,3", NULL);
    rb_source(b, "f8.0.w", HEFT_DTYPE_BF16, "3,5", NULL);
    rb_source(b, "f8.q", HEFT_DTYPE_F8_E4M3, "3,5", NULL);
    rb_source(b, "f8.s", HEFT_DTYPE_F32, "2,3", NULL);
    rb_source(b, "f8.b", HEFT_DTYPE_U8, "2,16", NULL);
    rb_source(b, "f8.e", HEFT_DTYPE_U8, "2", NULL);
    rb_source(b, "stack", HEFT_DTYPE_F32, "20,3", NULL);
    rb_config(b, "{\"n\": 1}");
}

static void compilation_survives_every_failed_allocation(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    declare(b);
    heft_manifest_t *source = rb_source_manifest(b);
    long k = 0;
    for (;; k++) {
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = once(b, source, NULL, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    assert_true(k > 50);
    heft_manifest_destroy(source);
}

static void a_checked_destination_survives_too(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char name[32];
    declare(b);
    rb_dest(b, "f8.0.q", HEFT_DTYPE_F8_E4M3, "3,5");
    rb_dest(b, "f8.0.s", HEFT_DTYPE_F32, "2");
    rb_dest(b, "f8.x", HEFT_DTYPE_BF16, "3,5");
    rb_dest(b, "f8.m", HEFT_DTYPE_BF16, "64");
    rb_dest(b, "m.layers.2.w", HEFT_DTYPE_BF16, "16,2,4");
    rb_dest(b, "m.layers.4.w", HEFT_DTYPE_BF16, "16,2,4");
    rb_dest(b, "n.1.x", HEFT_DTYPE_BF16, "2");
    rb_dest(b, "a.out", HEFT_DTYPE_BF16, "2,3");
    rb_dest(b, "v.x", HEFT_DTYPE_BF16, "2");
    for (int i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof name, "stack.%d", i);
        rb_dest(b, name, HEFT_DTYPE_BF16, "4");
    }
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = rb_dest_manifest(b);
    for (long k = 0;; k++) {
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = once(b, source, dest, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_manifest_destroy(source);
    heft_manifest_destroy(dest);
}

static heft_status_t bind_once(const char *path, heft_error_t *err)
{
    static const char json[] = "{\"let\": {\"a\": 1, \"b\": \"word\"}, \"config\": {\"c\": 2}}";
    heft_bindings_t *bindings = NULL;
    char *encoded = NULL;
    heft_status_t status = heft_bindings_decode(json, sizeof json - 1, &bindings, err);
    if (status == HEFT_OK) {
        status = heft_bindings_set(bindings, "a", "other", err);
    }
    if (status == HEFT_OK) {
        status = heft_bindings_load_config(bindings, path, err);
    }
    if (status == HEFT_OK) {
        status = heft_bindings_encode(bindings, &encoded, err);
    }
    if (status == HEFT_OK) {
        assert_string_equal(encoded,
                            "{\"config\":{\"n\":3},\"let\":{\"a\":\"other\",\"b\":\"word\"}}");
        heft_string_free(encoded);
    }
    heft_bindings_destroy(bindings);
    return status;
}

static void bindings_survive_every_failed_allocation(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char path[512];
    char *dir = heft_test_mkdir();
    heft_test_write_file(dir, "config.json", "{\"n\": 3}", 8);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    for (long k = 0;; k++) {
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = bind_once(path, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_test_rmdir(dir);
}

static void loading_survives_every_failed_allocation(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (long k = 0;; k++) {
        heft_recipe_t *recipe = NULL;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft_recipe_load("identity", &recipe, &err);
        heft__alloc_fail_at(-1);
        heft_recipe_destroy(recipe);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
        assert_null(recipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(compilation_survives_every_failed_allocation),
        T(a_checked_destination_survives_too),
        T(bindings_survive_every_failed_allocation),
        T(loading_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
