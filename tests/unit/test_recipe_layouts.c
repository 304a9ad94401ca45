/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe and a destination say of how parameters are laid out: stated, synthesised, read,
 * compared both ways. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32

/* gate and up of one layer, fused as the destination or a let says. */
#define FUSE                                                            \
    "\"gate\" [d, f] where f as (s:n c) -> \"moe.wi\" [d, (s 0:2 c)]\n" \
    "\"up\"   [d, f] where f as (s:n c) -> \"moe.wi\" [d, (s 1:2 c)]\n" \
    "\"norm\" [d] -> \"norm\" [d]\n"
#define STATE                                                                               \
    "attr \"*.wi\" fused.layout = layout, fused.axis = -1, fused.shards = n, fused.half = " \
    "\"gate_up\"\n"

static void declare_pair(rb_t *b)
{
    rb_clear(b);
    rb_source(b, "gate", F32, "1,4", "1-4");
    rb_source(b, "up", F32, "1,4", "5-8");
    rb_source(b, "norm", F32, "2", NULL);
}

typedef struct attr {
    const char *tensor, *key, *value; /* tensor NULL: of the whole manifest */
} attr_t;

/* moe.wi [1,8] and norm [2], with attributes. */
static heft_manifest_t *engine(const attr_t *attrs, size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_shape_t wi = { .rank = 2, .extent = { 1, 8 } };
    heft_shape_t norm = { .rank = 1, .extent = { 2 } };
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "moe.wi", F32, &wi, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "norm", F32, &norm, &err), HEFT_OK);
    for (size_t i = 0; i < n; i++) {
        EXPECT_STATUS(attrs[i].tensor != NULL
                          ? heft_manifest_set_tensor_attr(m, attrs[i].tensor, attrs[i].key,
                                                          attrs[i].value, &err)
                          : heft_manifest_set_attr(m, attrs[i].key, attrs[i].value, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

/* Compile the text against a destination, which it takes. issues: texts joined by newlines. */
static heft_status_t compile(rb_t *b, const char *text, heft_manifest_t *destination,
                             char issues_out[2048], heft_error_t *err_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_issues_t *issues = NULL;
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_issues_create(&issues, &err), HEFT_OK);
    heft_status_t status =
        heft_recipe_compile_all(recipe, b->bindings, 0, source, destination, issues, &tape, &err);
    *err_out = err;
    issues_out[0] = '\0';
    for (uint32_t i = 0; i < heft_issues_get_n(issues); i++) {
        size_t n = strlen(issues_out);
        (void)snprintf(issues_out + n, 2048 - n, "%s\n", heft_issues_get(issues, i)->text);
    }
    heft_tape_destroy(tape);
    heft_issues_destroy(issues);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
    heft_manifest_destroy(destination);
    return status;
}

static const attr_t per_shard[] = { { "moe.wi", "fused.layout", "per_shard" },
                                    { "moe.wi", "fused.axis", "1" },
                                    { "moe.wi", "fused.shards", "2" },
                                    { "moe.wi", "fused.half", "gate_up" } };

static void layouts_of_both_sides_must_be_equal(void **state)
{
    rb_t *b = *state;
    static const struct {
        attr_t more[2];
        const char *lets;
        const char *part; /* NULL: they are equal */
    } cases[] = {
        { { { NULL, NULL, NULL } }, "let layout = \"per_shard\", n = 2\n", NULL },
        { { { NULL, NULL, NULL } },
          "let layout = \"concat\", n = 2\n",
          "parameter \"moe.wi\": fused.layout is concat here, per_shard in the destination" },
        { { { NULL, NULL, NULL } },
          "let layout = \"per_shard\", n = 1\n",
          "parameter \"moe.wi\": fused.shards is 1 here, 2 in the destination" },
        { { { "moe.wi", "fused.half", "up_gate" } },
          "let layout = \"per_shard\", n = 2\n",
          "parameter \"moe.wi\": fused.half is gate_up here, up_gate in the destination" },
        { { { "norm", "repeat.axis", "0" }, { "norm", "repeat.factor", "2" } },
          "let layout = \"per_shard\", n = 2\n",
          "parameter \"norm\": repeat.factor is 2 in the destination, and not stated here" },
        { { { "moe.wi", "cut.axis", "1" }, { "moe.wi", "cut.parts", "2" } },
          "let layout = \"per_shard\", n = 2\n",
          NULL },
        { { { "norm", "qkv.t", "2" }, { "norm", "qkv.f", "1" } },
          "let layout = \"per_shard\", n = 2\nattr \"norm\" qkv.t = 2, qkv.f = 1, qkv.heads = 4\n",
          NULL },
        { { { "norm", "qkv.t", "2" }, { "norm", "qkv.f", "1" } },
          "let layout = \"per_shard\", n = 2\nattr \"norm\" qkv.t = 1, qkv.f = 1, qkv.heads = 4\n",
          "parameter \"norm\": qkv.t is 1 here, 2 in the destination" },
        { { { "norm", "qkv.t", "2" }, { "norm", "qkv.f", "1" } },
          "let layout = \"per_shard\", n = 2\nattr \"norm\" qkv.t = 2, qkv.f = 1, qkv.heads = 5\n",
          "tensor \"norm\": qkv.t = 2 groups would split 5 query heads" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        attr_t attrs[6];
        char text[2048];
        char issues[2048];
        size_t n = 4;
        memcpy(attrs, per_shard, sizeof per_shard);
        for (size_t k = 0; k < 2 && cases[i].more[k].tensor != NULL; k++) {
            attrs[n++] = cases[i].more[k];
        }
        declare_pair(b);
        (void)snprintf(text, sizeof text, "%s" FUSE STATE, cases[i].lets);
        EXPECT_STATUS(compile(b, text, engine(attrs, n), issues, &err),
                      cases[i].part == NULL ? HEFT_OK : HEFT_ERR_SHAPE);
        if (cases[i].part != NULL && strstr(issues, cases[i].part) == NULL) {
            fail_msg("\"%s\" is not among: %s", cases[i].part, issues);
        }
    }
}

static void what_only_one_side_says_is_named(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char issues[2048];
    declare_pair(b);
    EXPECT_STATUS(compile(b, "let n = 2\n" FUSE, engine(per_shard, 4), issues, &err),
                  HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("4 errors");
    assert_non_null(strstr(issues, "fused.axis is 1 in the destination, and not stated here"));
    assert_non_null(strstr(issues, "fused.layout is per_shard in the destination"));
    EXPECT_STATUS(
        compile(b, "let layout = \"concat\", n = 2\n" FUSE STATE, engine(NULL, 0), issues, &err),
        HEFT_ERR_SHAPE);
    assert_non_null(strstr(issues, "fused.layout is concat here, absent in the destination"));
}

/* The layout is the destination's where there is one, the let's otherwise. */
static void recipes_read_what_the_destination_declares(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char issues[2048];
    const char *text = "let layout = dest.fused.layout or \"concat\"\n"
                       "let n = dest(\"*.wi\").fused.shards or 1\n"
                       "require dest.tp == 2 \"dest.tp\"\n"
                       "let tp = 2\n" FUSE STATE;
    static const attr_t side[] = { { NULL, "tp", "2" } };
    attr_t attrs[5];
    memcpy(attrs, per_shard, sizeof per_shard);
    attrs[4] = side[0];
    declare_pair(b);
    EXPECT_STATUS(compile(b, text, engine(attrs, 5), issues, &err), HEFT_OK);
    attrs[4].value = "4";
    EXPECT_STATUS(compile(b, text, engine(attrs, 5), issues, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("dest.tp = 4");
    EXPECT_STATUS(compile(b, "let n = dest(\"*.wo\").fused.shards or 1\n" FUSE,
                          engine(per_shard, 4), issues, &err),
                  HEFT_ERR_NAME);
    EXPECT_MESSAGE("\"*.wo\" matches none of the 2 tensors of the destination");
    EXPECT_STATUS(compile(b, "let n = dest.fused.shards\n" FUSE, engine(NULL, 0), issues, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("dest.fused.shards is absent");
    EXPECT_STATUS(
        compile(b, "let n = dest.fused.shrads or 2\n" FUSE, engine(NULL, 0), issues, &err),
        HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("tensors have no attribute fused.shrads; nearest: fused.shards");
    EXPECT_STATUS(
        compile(b, "let n = dest(\"*.wi\").shards or 2\n" FUSE, engine(NULL, 0), issues, &err),
        HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("tensors have no attribute shards");
    EXPECT_STATUS(
        compile(b, "let n = dest.vendor.shards or 2\n" FUSE, engine(NULL, 0), issues, &err),
        HEFT_OK);
    rb_refuses(b, "let n = dest.fused.shrads or 2\n" FUSE, 0, HEFT_ERR_ARGUMENT, "fused.shards");
    static const attr_t two[] = { { "moe.wi", "repeat.axis", "1" },
                                  { "moe.wi", "repeat.factor", "2" },
                                  { "norm", "repeat.axis", "0" },
                                  { "norm", "repeat.factor", "1" } };
    EXPECT_STATUS(
        compile(b, "let n = 2, rf = dest.repeat.factor\n" FUSE, engine(two, 4), issues, &err),
        HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"moe.wi\" has 2, \"norm\" has 1");
}

/* The number of shards is the destination's: a source without any would say one. The source's own
 * order of a fused tensor is the source's. */
static void each_side_says_its_own_layout(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *source = NULL;
    heft_manifest_t *destination = NULL;
    heft_recipe_t *recipe = NULL;
    heft_manifest_t *m = NULL;
    heft_tape_t *tape = NULL;
    heft_shape_t pair = { .rank = 1, .extent = { 8 } };
    heft_shape_t wo = { .rank = 1, .extent = { 4 } };
    heft_shape_t padded = { .rank = 1, .extent = { 8 } };
    static const attr_t of_source[] = { { "wi", "fused.layout", "concat" },
                                        { "wi", "fused.axis", "0" },
                                        { "wi", "fused.shards", "1" },
                                        { "wi", "fused.half", "up_gate" } };
    static const attr_t of_engine[] = { { "wo", "pad.axis", "0" },   { "wo", "pad.size", "4" },
                                        { "wo", "pad.padded", "8" }, { "wo", "pad.shards", "2" },
                                        { "wo", "pad.lanes", "1" },  { "wo", "pad.tp", "2" } };
    EXPECT_STATUS(heft_manifest_create("source", &source, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_create("destination", &destination, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(source, "wi", F32, &pair, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(source, "wo", F32, &wo, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(destination, "up", F32, &wo, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(destination, "gate", F32, &wo, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(destination, "wo", F32, &padded, &err), HEFT_OK);
    for (size_t i = 0; i < 4; i++) {
        EXPECT_STATUS(heft_manifest_set_tensor_attr(source, of_source[i].tensor, of_source[i].key,
                                                    of_source[i].value, &err),
                      HEFT_OK);
    }
    for (size_t i = 0; i < 6; i++) {
        EXPECT_STATUS(heft_manifest_set_tensor_attr(destination, of_engine[i].tensor,
                                                    of_engine[i].key, of_engine[i].value, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(source, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(destination, &err), HEFT_OK);
    const char *text = "let n = dest(\"wo\").pad.shards or 1, P = dest(\"wo\").pad.padded or 4\n"
                       "let first = source(\"wi\").fused.half, lanes = dest.pad.lanes or 1, tp = "
                       "dest.pad.tp or 1\n"
                       "\"wi\" [(0:2 f)] -> \"up\" [f] when first == \"up_gate\"\n"
                       "\"wi\" [(1:2 f)] -> \"gate\" [f] when source.fused.half == \"up_gate\"\n"
                       "\"wo\" [f] where f as (s:n c), c pad {P / n} -> \"wo\" [(s c)]\n"
                       "attr \"wo\" pad.axis = 0, pad.size = 4, pad.padded = P, pad.shards = n,\n"
                       "  pad.lanes = lanes, pad.tp = tp";
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_compile(recipe, b->bindings, 0, source, destination, &tape, &err),
                  HEFT_OK);
    heft_tape_destroy(tape);
    /* without the engine the recipe's own numbers hold, and are not what that engine has */
    EXPECT_STATUS(heft_recipe_synthesize(recipe, b->bindings, 0, source, NULL, &m, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_tensor_attr(m, 2, "pad.shards"), "1");
    heft_manifest_destroy(m);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(destination);
    heft_manifest_destroy(source);
}

static void the_destination_is_synthesised_with_its_layouts(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_manifest_t *m = NULL;
    heft_tape_t *tape = NULL;
    const char *text =
        "let layout = \"lane\", n = 2, F = 4, lane = 3\n"
        "names destination keystr unrolled root \"model\" suffix \".value\"\n" FUSE STATE
        "attr \"moe.wi\" fused.lane = lane, pad.axis = 1, pad.size = F, pad.padded = F,\n"
        "  pad.shards = n when n > 1\n"
        "optional attr \"*.wo\" pad.axis = 0";
    declare_pair(b);
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_synthesize(recipe, b->bindings, 0, source, NULL, &m, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_side(m), "destination");
    assert_int_equal(heft_manifest_get_n_tensors(m), 2);
    /* 2 wide shards cannot interleave by 3 lanes: resolved here, once */
    assert_string_equal(heft_manifest_get_tensor_attr(m, 0, "fused.layout"), "per_shard");
    assert_null(heft_manifest_get_tensor_attr(m, 0, "fused.lane"));
    assert_string_equal(heft_manifest_get_tensor_attr(m, 0, "pad.padded"), "4");
    char *native = NULL;
    EXPECT_STATUS(heft_manifest_get_native(m, "moe.wi", &native, &err), HEFT_OK);
    assert_string_equal(native, "['model']['moe']['wi'].value");
    heft_string_free(native);
    /* what was synthesised is what the recipe comes to */
    EXPECT_STATUS(heft_recipe_compile(recipe, b->bindings, 0, source, m, &tape, &err), HEFT_OK);
    heft_tape_destroy(tape);
    heft_manifest_destroy(m);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

static void attributes_that_cannot_be_are_refused(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *attr;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "attr \"*.wi\" fused.layuot = 1", HEFT_ERR_ARGUMENT, "nearest: \"fused.layout\"" },
        { "attr \"*.wo\" pad.axis = 1", HEFT_ERR_NAME, "matches none of 2 parameters" },
        { "attr \"*.wi\" qkv.t = 1", HEFT_ERR_ARGUMENT, "qkv.f is missing" },
        { "attr \"*.wi\" qkv.t = true", HEFT_ERR_ARGUMENT, "the truth value true" },
        { "attr \"*.wi\" repeat.axis = 1, repeat.factor = 3", HEFT_ERR_SHAPE,
          "repeat.factor is 3" },
        { "attr \"*.wi\" fused = 1", HEFT_ERR_SYNTAX, "`.`" },
        { "attr \"*.wi\" fused .layout = 1", HEFT_ERR_SYNTAX, "blanks" },
        { "attr \"*.wi\" fused.layout", HEFT_ERR_SYNTAX, "`=` and a value" },
        { "attr fused.layout = 1", HEFT_ERR_SYNTAX, "pattern in quotes" },
        { "attr \"*.wi\" qkv.t = tq, qkv.f = 1", HEFT_ERR_SYNTAX, "tq" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        declare_pair(b);
        (void)snprintf(text, sizeof text, "let n = 2\n" FUSE "%s", cases[i].attr);
        rb_refuses(b, text, 0, cases[i].status, cases[i].part);
    }
}

/* ---- names ---- */

static heft_manifest_t *keystr_source(heft_layer_form_t layers)
{
    static const char *const natives[] = { "['layers']['wi'].value", "['rngs']['count'].value" };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *raw = NULL;
    heft_manifest_t *m = NULL;
    heft_shape_t shape = { .rank = 2, .extent = { 2, 3 } };
    EXPECT_STATUS(heft_manifest_create("source", &raw, &err), HEFT_OK);
    for (size_t i = 0; i < 2; i++) {
        EXPECT_STATUS(heft_manifest_add(raw, natives[i], F32, &shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(raw, &err), HEFT_OK);
    if (layers == HEFT_LAYER_FORM_NONE) {
        return raw;
    }
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    opts.name_form = HEFT_NAME_FORM_KEYSTR;
    opts.layer_form = layers;
    opts.types_lost = 1;
    EXPECT_STATUS(heft_manifest_canonicalize(raw, &opts, &m, &err), HEFT_OK);
    heft_manifest_destroy(raw);
    return m;
}

static void declared_forms_of_names_are_compared(void **state)
{
    (void)state;
    static const struct {
        heft_layer_form_t layers;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { HEFT_LAYER_FORM_SCANNED, HEFT_OK, "" },
        { HEFT_LAYER_FORM_UNROLLED, HEFT_ERR_NAME,
          "names of the source are declared keystr (layers scanned), its manifest says keystr "
          "(unrolled)" },
        { HEFT_LAYER_FORM_NONE, HEFT_ERR_NAME, "native names" },
    };
    const char *text = "names source keystr scanned\n"
                       "\"layers.wi\" [l, d] -> \"layers_{l}.wi\" [d]\n"
                       "ignore \"rngs.*\" because \"not a weight\"";
    for (size_t i = 0; i < 3; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        heft_tape_t *tape = NULL;
        heft_exception_t *exceptions = NULL;
        uint32_t n = 99;
        heft_manifest_t *source = keystr_source(cases[i].layers);
        EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
        EXPECT_STATUS(heft_recipe_compile(recipe, NULL, 0, source, NULL, &tape, &err),
                      cases[i].status);
        EXPECT_MESSAGE(cases[i].part);
        if (cases[i].status == HEFT_OK) {
            /* the ignore has its match among the leaves that the source excludes */
            EXPECT_STATUS(
                heft_recipe_resolve_exceptions(recipe, NULL, source, NULL, &exceptions, &n, &err),
                HEFT_OK);
            assert_int_equal(n, 0);
            heft_exceptions_free(exceptions);
        }
        heft_tape_destroy(tape);
        heft_recipe_destroy(recipe);
        heft_manifest_destroy(source);
    }
}

static void forms_of_names_are_given_to_callers(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_name_opts_t opts;
    const char *text = "names source keystr scanned container \"blocks\"\n\"a\" [] -> \"a\" []";
    EXPECT_STATUS(heft_recipe_parse("test", text, strlen(text), &recipe, &err), HEFT_OK);
    assert_int_equal(heft_recipe_query_names(recipe, "source", &opts), 1);
    assert_int_equal(opts.name_form, HEFT_NAME_FORM_KEYSTR);
    assert_int_equal(opts.layer_form, HEFT_LAYER_FORM_SCANNED);
    assert_string_equal(opts.container, "blocks");
    assert_int_equal(opts.types_lost, 1);
    assert_int_equal(heft_recipe_query_names(recipe, "destination", &opts), 0);
    heft_recipe_destroy(recipe);
    static const char *const bad[] = { "names keystr scanned",
                                       "names source keystr",
                                       "names source keystring scanned",
                                       "names source dotted scanned",
                                       "names source dotted suffix \"x\"",
                                       "names source keystr scanned root \"a\" root \"b\"",
                                       "names source dotted\nnames source dotted" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char all[256];
        (void)snprintf(all, sizeof all, "%s\n\"a\" [] -> \"a\" []", bad[i]);
        EXPECT_STATUS(heft_recipe_parse("test", all, strlen(all), &recipe, &err), HEFT_ERR_SYNTAX);
    }
}

static heft_status_t once(const rb_t *b, const heft_manifest_t *source,
                          const heft_manifest_t *destination, heft_error_t *err)
{
    static const char text[] = "let layout = dest(\"*.wi\").fused.layout or \"concat\", n = 2\n"
                               "names destination dotted\n" FUSE STATE;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_manifest_t *m = NULL;
    heft_status_t status = heft_recipe_parse("memory", text, sizeof text - 1, &recipe, err);
    if (status == HEFT_OK) {
        status = heft_recipe_compile(recipe, b->bindings, 0, source, destination, &tape, err);
    }
    if (status == HEFT_OK) {
        status = heft_recipe_synthesize(recipe, b->bindings, 0, source, NULL, &m, err);
    }
    heft_manifest_destroy(m);
    heft_tape_destroy(tape);
    heft_recipe_destroy(recipe);
    return status;
}

static void layouts_survive_every_failing_allocation(void **state)
{
    rb_t *b = *state;
    declare_pair(b);
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *destination = engine(per_shard, 4);
    int64_t alive = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__alloc_fail_at(k);
        heft_status_t status = once(b, source, destination, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), alive);
        if (status == HEFT_OK) {
            assert_true(k > 50);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
    heft_manifest_destroy(destination);
    heft_manifest_destroy(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(layouts_of_both_sides_must_be_equal),
        T(what_only_one_side_says_is_named),
        T(recipes_read_what_the_destination_declares),
        T(each_side_says_its_own_layout),
        T(the_destination_is_synthesised_with_its_layouts),
        T(attributes_that_cannot_be_are_refused),
        T(declared_forms_of_names_are_compared),
        T(forms_of_names_are_given_to_callers),
        T(layouts_survive_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
