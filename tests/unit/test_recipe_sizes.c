/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes by rule: padded widths, repeated heads, the engines' parallelism. The table of widths is a
 * file in tests/golden, which the Python tests read as well. */
#include <jansson.h>

#include "heft/sizes.h"
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

static int64_t padded(int64_t size, int64_t lanes, int64_t tp)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t out = 0;
    EXPECT_STATUS(heft_padded_size(size, lanes, tp, &out, &err), HEFT_OK);
    return out;
}

/* What earlier trainers do: the next power of two at least as long as one shard needs. */
static int64_t power_of_two(int64_t size, int64_t lanes, int64_t tp)
{
    if (size / tp % (2 * lanes) == 0) {
        return size;
    }
    int64_t power = 1;
    while (power < size || power / tp < 2 * lanes) {
        power *= 2;
    }
    return power;
}

static void padded_widths_are_those_of_the_table(void **state)
{
    (void)state;
    json_error_t error;
    json_t *rows = json_load_file("golden/padded_sizes.json", JSON_REJECT_DUPLICATES, &error);
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), 20);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        int64_t size = json_integer_value(json_object_get(row, "size"));
        int64_t tp = json_integer_value(json_object_get(row, "tp"));
        assert_int_equal(padded(size, 128, tp), json_integer_value(json_object_get(row, "padded")));
        const json_t *power = json_object_get(row, "power_of_two");
        if (json_is_integer(power)) {
            assert_int_equal(power_of_two(size, 128, tp), json_integer_value(power));
        } else { /* a floored division would see nothing to pad */
            assert_int_equal(size / tp % 256, 0);
        }
    }
    json_decref(rows);
}

static void padded_widths_hold_whole_lanes_in_every_shard(void **state)
{
    (void)state;
    static const int64_t tps[] = { 1, 2, 3, 4, 5, 6, 8, 12 };
    int n = 0;
    int n_failing = 0;
    for (size_t t = 0; t < sizeof tps / sizeof tps[0]; t++) {
        for (int64_t h = 256; h <= 5952; h += 64, n++) {
            int64_t p = padded(h, 128, tps[t]);
            assert_true(p >= h);
            assert_int_equal(p % tps[t], 0);
            assert_int_equal(p / tps[t] % 256, 0);
            int64_t power = power_of_two(h, 128, tps[t]);
            bool holds = power >= h && power % tps[t] == 0 && power / tps[t] % 256 == 0;
            n_failing += holds ? 0 : 1;
        }
    }
    assert_int_equal(n, 720);
    assert_int_equal(n_failing, 345);
}

static void sizes_that_are_none_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t size, lanes, tp;
        heft_status_t status;
        const char *part;
    } cases[] = { { 0, 128, 1, HEFT_ERR_ARGUMENT, "size to be padded is 0" },
                  { -1, 128, 1, HEFT_ERR_ARGUMENT, "size to be padded is -1" },
                  { 512, 0, 1, HEFT_ERR_ARGUMENT, "lanes is 0" },
                  { 512, 128, -2, HEFT_ERR_ARGUMENT, "tp is -2" },
                  { INT64_MAX, 128, 2, HEFT_ERR_OVERFLOW, "beyond 64 bits" },
                  { 1, INT64_MAX / 2, 2, HEFT_ERR_OVERFLOW, "beyond 64 bits" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        int64_t out = 7;
        EXPECT_STATUS(heft_padded_size(cases[i].size, cases[i].lanes, cases[i].tp, &out, &err),
                      cases[i].status);
        EXPECT_MESSAGE(cases[i].part);
        assert_int_equal(out, 7);
    }
}

/* The number exists where tp does not divide the width, but a shard of it does not. */
static void shards_that_do_not_divide_the_width_are_refused(void **state)
{
    rb_t *b = *state;
    const char *text = "let h, tp, lanes = 128\n"
                       "let P = padded_size(h, lanes, tp)\n"
                       "\"wo\" [f, d] where f as (s:tp c), c pad {P / tp} -> \"wo\" [(s c), d]";
    rb_source(b, "wo", F32, "512,1", NULL);
    rb_set(b, "h", "512");
    rb_set(b, "tp", "4");
    rb_run(b, text, 0);
    rb_expect(b, "wo", F32, "1024,1", NULL);
    static const char *const rows[][2] = {
        { "512", "3" }, { "704", "3" }, { "1408", "3" }, { "513", "2" }, { "769", "3" }
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char shape[16];
        char part[64];
        rb_clear(b);
        (void)snprintf(shape, sizeof shape, "%s,1", rows[i][0]);
        (void)snprintf(part, sizeof part, "extent %s does not fit", rows[i][0]);
        rb_source(b, "wo", F32, shape, NULL);
        rb_set(b, "h", rows[i][0]);
        rb_set(b, "tp", rows[i][1]);
        rb_refuses(b, text, 0, HEFT_ERR_SHAPE, part);
    }
    rb_set(b, "tp", "0");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "tp is 0");
    rb_clear(b);
    rb_source(b, "wo", F32, "512,1", NULL);
    rb_refuses(b, "let P = padded_size(config.moe_size, 128, 2)\n\"wo\" [...] -> \"wo\" [...]", 0,
               HEFT_ERR_ARGUMENT, "config.moe_size is wanted");
    rb_refuses(b, "let P = padded_size(1, 2)\n\"wo\" [...] -> \"wo\" [...]", 0, HEFT_ERR_SYNTAX,
               "third argument");
}

/* w13 [E, d, 2 W tp] with W rounded up to lanes; w2 keeps F. */
static void fused_experts_of_checkpoint_form_have_their_own_width(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *f;
        int tp[4];
        int extent[4];
    } rows[] = { { "512", { 1, 2, 4, 8 }, { 1024, 1024, 1024, 2048 } },
                 { "768", { 1, 2, 4, 8 }, { 1536, 1536, 2048, 2048 } } };
    for (size_t i = 0; i < 8; i++) {
        char value[16];
        char shape[64];
        rb_clear(b);
        (void)snprintf(shape, sizeof shape, "1,2,%s", rows[i / 4].f);
        rb_source(b, "wi_0", F32, shape, NULL);
        rb_source(b, "wi_1", F32, shape, NULL);
        (void)snprintf(shape, sizeof shape, "1,%s,2", rows[i / 4].f);
        rb_source(b, "wo", F32, shape, NULL);
        (void)snprintf(value, sizeof value, "%d", rows[i / 4].tp[i % 4]);
        rb_set(b, "tp", value);
        rb_set(b, "F", rows[i / 4].f);
        rb_run(b,
               "let tp, F, W = round_up(F / tp, 128)\n"
               "\"wi_0\" [e, d, f] where f as (s:tp c), c pad W -> \"w13\" [e, d, (s 0:2 c)]\n"
               "\"wi_1\" [e, d, f] where f as (s:tp c), c pad W -> \"w13\" [e, d, (s 1:2 c)]\n"
               "\"wo\" [...] -> \"w2\" [...]",
               0);
        (void)snprintf(shape, sizeof shape, "1,2,%d", rows[i / 4].extent[i % 4]);
        rb_expect(b, "w13", F32, shape, NULL);
        (void)snprintf(shape, sizeof shape, "1,%s,2", rows[i / 4].f);
        rb_expect(b, "w2", F32, shape, NULL);
    }
}

static void heads_stand_next_to_their_copies(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *heads, *kv_tp, *out_shape, *out; /* NULL: refused */
    } cases[] = { { "2", "4", "4", "0 0 1 1" }, { "2", "8", "8", "0 0 0 0 1 1 1 1" },
                  { "4", "4", "4", "0-3" },     { "4", "2", "4", "0-3" },
                  { "2", "3", NULL, NULL },     { "3", "2", NULL, NULL } };
    const char *text = "let K, kv_tp\n\"k\" [h:K] -> \"k\" [(h f:{kv_repeat(K, kv_tp)})]";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char values[32];
        rb_clear(b);
        (void)snprintf(values, sizeof values, "0-%d", atoi(cases[i].heads) - 1);
        rb_source(b, "k", F32, cases[i].heads, values);
        rb_set(b, "K", cases[i].heads);
        rb_set(b, "kv_tp", cases[i].kv_tp);
        if (cases[i].out == NULL) {
            char part[64];
            (void)snprintf(part, sizeof part, "%s key/value heads on kv_tp = %s", cases[i].heads,
                           cases[i].kv_tp);
            rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, part);
            continue;
        }
        rb_run(b, text, 0);
        rb_expect(b, "k", F32, cases[i].out_shape, cases[i].out);
    }
}

/* ---- configuration and environment ---- */

#define TP \
    "let tp = rollout_tp(config.rollout_tensor_parallelism, env.ROLLOUT_TENSOR_PARALLELISM)\n"

static void rollout_tp_comes_from_configuration_and_environment(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *config, *variable, *out; /* out NULL: refused with part */
        const char *part;
    } cases[] = {
        { "4", NULL, "4", NULL },
        { NULL, "4", "4", NULL },
        { "4", "4", "4", NULL },
        { "4", "2", NULL,
          "Rollout TP mismatch: config.rollout_tensor_parallelism is 4, the environment's "
          "ROLLOUT_TENSOR_PARALLELISM is 2" },
        { NULL, NULL, NULL, "ROLLOUT_TENSOR_PARALLELISM" },
        { "4", "0", NULL, "ROLLOUT_TENSOR_PARALLELISM is \"0\"" },
        { "4", "-1", NULL, "ROLLOUT_TENSOR_PARALLELISM is \"-1\"" },
        { NULL, "x", NULL, "ROLLOUT_TENSOR_PARALLELISM is \"x\"" },
        { NULL, "4x", NULL, "ROLLOUT_TENSOR_PARALLELISM is \"4x\"" },
        { "0", NULL, NULL, "rollout_tensor_parallelism is 0" },
        { "\"4\"", NULL, NULL, "an integer wanted" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        char config[64];
        rb_clear(b);
        rb_source(b, "x", F32, "4", NULL);
        (void)snprintf(config, sizeof config, "{%s%s}",
                       cases[i].config != NULL ? "\"rollout_tensor_parallelism\": " : "",
                       cases[i].config != NULL ? cases[i].config : "");
        rb_config(b, config);
        if (cases[i].variable != NULL) {
            EXPECT_STATUS(heft_bindings_set_env(b->bindings, "ROLLOUT_TENSOR_PARALLELISM",
                                                cases[i].variable, &err),
                          HEFT_OK);
        }
        if (cases[i].out == NULL) {
            rb_refuses(b, TP "\"x\" [d] -> \"x\" [d]", 0, HEFT_ERR_ARGUMENT, cases[i].part);
            continue;
        }
        rb_run(b, TP "\"x\" [d] -> \"{tp}.x\" [d]", 0);
        assert_true(rb_has_param(b, "4.x"));
    }
    rb_refuses(b, "let tp = rollout_tp(4, env.TP)\n\"x\" [d] -> \"x\" [d]", 0, HEFT_ERR_SYNTAX,
               "config.KEY and env.NAME");
}

/* An explicit kv_tp or moe_tp that disagrees is refused, whichever way it is given. */
static void derived_parallelism_is_never_overridden(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *tp, *ep, *attn_dp;
        const char *want; /* kv_tp, moe_tp, padded width, heads held */
    } rows[] = { { "2", "1", "1", "2.2.512.2" },  { "2", "2", "1", "4.2.512.4" },
                 { "4", "1", "1", "4.4.1024.4" }, { "2", "1", "2", "2.4.1024.2" },
                 { "1", "1", "1", "1.1.512.2" },  { "4", "2", "2", "8.8.2048.8" } };
    const char *text =
        "let tp, ep, attn_dp, h = 512, K = 2\n"
        "let kv_tp = config.kv_tp or tp * ep, moe_tp = config.moe_tp or tp * attn_dp\n"
        "require kv_tp == tp * ep \"kv_tp is not tp * ep\"\n"
        "require moe_tp == tp * attn_dp \"moe_tp is not tp * attn_dp\"\n"
        "let P = padded_size(h, 128, moe_tp), held = K * kv_repeat(K, kv_tp)\n"
        "\"x\" [d] -> \"{kv_tp}.{moe_tp}.{P}.{held}\" [d]";
    rb_source(b, "x", F32, "1", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rb_set(b, "tp", rows[i].tp);
        rb_set(b, "ep", rows[i].ep);
        rb_set(b, "attn_dp", rows[i].attn_dp);
        rb_run(b, text, 0);
        assert_true(rb_has_param(b, rows[i].want));
    }
    rb_config(b, "{\"kv_tp\": 4}");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "kv_tp is not tp * ep (kv_tp = 4, tp = 4, ep = 2)");
    rb_config(b, "{\"kv_tp\": 8}");
    rb_run(b, text, 0);
    rb_set(b, "moe_tp", "2");
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "moe_tp is not tp * attn_dp (moe_tp = 2");
}

static void flags_of_the_environment_have_four_values(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *value, *want; /* want NULL: refused */
    } cases[] = { { NULL, "false" },  { "0", "false" }, { "false", "false" }, { "1", "true" },
                  { "true", "true" }, { "yes", NULL },  { "", NULL },         { "2", NULL } };
    const char *text = "let on = flag(env.HEFT_TEST_FLAG)\n"
                       "\"x\" [d] -> \"true\" [d] when on\n"
                       "\"x\" [d] -> \"false\" [d] when not on";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        rb_clear(b);
        rb_source(b, "x", F32, "1", NULL);
        if (cases[i].value != NULL) {
            EXPECT_STATUS(
                heft_bindings_set_env(b->bindings, "HEFT_TEST_FLAG", cases[i].value, &err),
                HEFT_OK);
        }
        if (cases[i].want == NULL) {
            rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "the environment's HEFT_TEST_FLAG is \"");
            continue;
        }
        rb_run(b, text, 0);
        assert_true(rb_has_param(b, cases[i].want));
        assert_int_equal(rb_n_params(b), 1);
    }
    rb_refuses(b, "let on = flag(1)\n\"x\" [d] -> \"x\" [d]", 0, HEFT_ERR_SYNTAX, "env.NAME");
}

static void variables_travel_in_the_bindings(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *back = NULL;
    char *json = NULL;
    const char *text = "let tp = env.HEFT_TEST_TP, other = env.HEFT_TEST_NOT_SET or 7\n"
                       "let f(x) = x + env.HEFT_TEST_TP\n\"x\" [d] -> \"{f(tp)}.{other}\" [d]";
    rb_source(b, "x", F32, "1", NULL);
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "the environment's HEFT_TEST_TP is not set");
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    assert_int_equal(setenv("HEFT_TEST_TP", "3", 1), 0);
    assert_int_equal(setenv("HEFT_TEST_OTHER", "4", 1), 0);
    rb_refuses(b, text, 0, HEFT_ERR_ARGUMENT, "the environment's HEFT_TEST_TP is not set");
    EXPECT_STATUS(heft_bindings_load_env(b->bindings, recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_encode(b->bindings, &json, &err), HEFT_OK);
    assert_string_equal(json, "{\"config\":{},\"env\":{\"HEFT_TEST_TP\":\"3\"},\"let\":{}}");
    EXPECT_STATUS(heft_bindings_decode(json, strlen(json), &back, &err), HEFT_OK);
    heft_string_free(json);
    heft_bindings_destroy(b->bindings);
    b->bindings = back;
    rb_run_recipe(b, recipe, 0);
    assert_true(rb_has_param(b, "6.7"));
    EXPECT_STATUS(heft_bindings_set_env(b->bindings, "A=B", "1", &err), HEFT_ERR_ARGUMENT);
    heft_recipe_destroy(recipe);
    static const char *const bad[] = { "{\"env\":{\"A\":1}}", "{\"env\":{\"A B\":\"1\"}}",
                                       "{\"env\":[]}" };
    for (size_t i = 0; i < 3; i++) {
        EXPECT_STATUS(heft_bindings_decode(bad[i], strlen(bad[i]), &back, &err), HEFT_ERR_FORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(padded_widths_are_those_of_the_table),
        T(padded_widths_hold_whole_lanes_in_every_shard),
        T(sizes_that_are_none_are_refused),
        T(shards_that_do_not_divide_the_width_are_refused),
        T(fused_experts_of_checkpoint_form_have_their_own_width),
        T(heads_stand_next_to_their_copies),
        T(rollout_tp_comes_from_configuration_and_environment),
        T(derived_parallelism_is_never_overridden),
        T(flags_of_the_environment_have_four_values),
        T(variables_travel_in_the_bindings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
