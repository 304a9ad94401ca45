/* SPDX-License-Identifier: Apache-2.0 */
/* Contracts: written and read unchanged, refused where anything in them is wrong, compared input by
 * input, and made again. */
#include "heft_test.h"

#include "exec/contract_impl.h"

#define ARRAY_N(a) (sizeof(a) / sizeof(a)[0])

typedef struct side {
    heft_manifest_t *source;
    heft_manifest_t *destinations[2]; /* NULL: none */
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    heft_contract_t *contract;
} side_t;

static const char source_json[] =
    "{\"heft_manifest\":1,\"side\":\"source\",\"attributes\":{\"framework\":\"t\"},\"tensors\":["
    "{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4,6]},"
    "{\"name\":\"b\",\"dtype\":\"BF16\",\"shape\":[4]},"
    "{\"name\":\"left.over\",\"dtype\":\"F32\",\"shape\":[3]}]}";

static const char recipe_text[] = "# \"two\" ranks\n"
                                  "let tp = 2, order = [0, 1], scale = config.deep.scale or 1\n"
                                  "let mode = env.HEFT_TEST_MODE or \"plain\"\n"
                                  "ranks tp as r\n"
                                  "ignore \"left.*\" because \"the engine has none\"\n"
                                  "\"w\" [({r}:tp o), i] -> \"w\" [o, i]\n"
                                  "\"b\" [n] -> \"b\" [n]\n";

static const char config_json[] = "{\"deep\":{\"scale\":2,\"other\":3},\"unread\":\"x\"}";

static heft_manifest_t *decode(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_OK);
    return m;
}

static void open_inputs(side_t *s, const char *recipe, const char *tp, const char *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *s = (side_t){ .source = decode(source_json) };
    EXPECT_STATUS(heft_recipe_parse("folder/x.heft", recipe, strlen(recipe), &s->recipe, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&s->bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_set_config(s->bindings, config_json, sizeof config_json - 1, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_bindings_set(s->bindings, "tp", tp, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_set(s->bindings, "order", order, &err), HEFT_OK);
}

static heft_status_t make(side_t *s, heft_report_t **report_out, heft_error_t *err)
{
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    opts.recipe = s->recipe;
    opts.bindings = s->bindings;
    const heft_manifest_t *list[] = { s->destinations[0], s->destinations[1] };
    opts.destinations = list;
    opts.n_destinations = s->destinations[0] != NULL ? 2 : 0;
    return heft_contract_create(s->source, &opts, &s->contract, report_out, err);
}

static void open_side(side_t *s, const char *recipe, const char *tp, const char *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    open_inputs(s, recipe, tp, order);
    EXPECT_STATUS(make(s, NULL, &err), HEFT_OK);
}

static void add_destinations(side_t *s, const char *first, const char *second)
{
    s->destinations[0] = decode(first);
    s->destinations[1] = decode(second);
}

static void close_side(side_t *s)
{
    heft_contract_destroy(s->contract);
    heft_bindings_destroy(s->bindings);
    heft_recipe_destroy(s->recipe);
    heft_manifest_destroy(s->source);
    heft_manifest_destroy(s->destinations[0]);
    heft_manifest_destroy(s->destinations[1]);
}

static char *encode(const heft_contract_t *contract)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft_contract_encode(contract, &text, &err), HEFT_OK);
    return text;
}

static const char dst_json[] = "{\"heft_manifest\":1,\"side\":\"destination\",\"tensors\":["
                               "{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[2,6]},"
                               "{\"name\":\"b\",\"dtype\":\"BF16\",\"shape\":[4]}]}";
static const char dst_other_json[] =
    "{\"heft_manifest\":1,\"side\":\"destination\",\"attributes\":{\"rank\":\"1\"},\"tensors\":["
    "{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[2,6]},"
    "{\"name\":\"b\",\"dtype\":\"BF16\",\"shape\":[4]}]}";

/* ---- what is in one ---- */

static void a_contract_holds_what_was_given(void **state)
{
    (void)state;
    side_t s;
    open_side(&s, recipe_text, "2", "[1, 0]");
    const heft_contract_t *c = s.contract;
    assert_int_equal(heft_contract_has_mapping(c), 1);
    assert_ptr_equal(heft_contract_get_manifest(c), s.source);
    assert_string_equal(heft_contract_get_recipe_name(c), "x.heft");
    assert_string_equal(heft_contract_get_recipe_text(c), recipe_text);
    /* of the configuration what the recipe reads */
    assert_string_equal(heft_contract_get_bindings(c),
                        "{\"config\":{\"deep\":{\"scale\":2}},\"let\":{\"order\":[1,0],\"tp\":2}}");
    assert_int_equal(heft_contract_get_n_ranks(c), 2);
    assert_string_not_equal(heft_contract_get_rank_digest(c, 0),
                            heft_contract_get_rank_digest(c, 1));
    assert_null(heft_contract_get_rank_digest(c, 2));
    assert_null(heft_contract_get_destination(c, 0));
    assert_int_equal(strlen(heft_contract_get_plan_digest(c)), 64);
    assert_int_equal(heft_contract_get_n_exceptions(c), 1);
    assert_int_equal(heft_contract_get_exception(c, 0)->kind, HEFT_EXCEPTION_UNUSED);
    assert_string_equal(heft_contract_get_exception(c, 0)->pattern, "left.*");
    assert_string_equal(heft_contract_get_exception(c, 0)->reason, "the engine has none");
    assert_null(heft_contract_get_exception(c, 1));
    close_side(&s);
}

static void a_side_alone_is_a_contract(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = decode(source_json);
    heft_contract_t *c = NULL;
    heft_contract_t *back = NULL;
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_contract_create(m, NULL, &c, NULL, &err), HEFT_OK);
    assert_int_equal(heft_contract_has_mapping(c), 0);
    assert_null(heft_contract_get_recipe_text(c));
    assert_null(heft_contract_get_plan_digest(c));
    assert_int_equal(heft_contract_get_n_ranks(c), 0);
    char *text = encode(c);
    EXPECT_STATUS(heft_contract_decode(text, strlen(text), &back, &err), HEFT_OK);
    assert_string_equal(heft_contract_get_digest(c), heft_contract_get_digest(back));
    EXPECT_STATUS(heft_contract_check(c, &drift, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("no mapping");
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    heft_manifest_destroy(m);
}

static void written_and_read_it_is_the_same(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    side_t t;
    open_inputs(&s, recipe_text, "2", "[1, 0]");
    add_destinations(&s, dst_json, dst_other_json);
    EXPECT_STATUS(make(&s, NULL, &err), HEFT_OK);
    open_inputs(&t, recipe_text, "2", "[1,0]");
    add_destinations(&t, dst_json, dst_other_json);
    EXPECT_STATUS(make(&t, NULL, &err), HEFT_OK);
    char *text = encode(s.contract);
    char *other = encode(t.contract);
    assert_string_equal(text, other); /* equal input, equal bytes */
    heft_contract_t *back = NULL;
    EXPECT_STATUS(heft_contract_decode(text, strlen(text), &back, &err), HEFT_OK);
    char *again = encode(back);
    assert_string_equal(text, again);
    assert_string_equal(heft_manifest_get_attr(heft_contract_get_destination(back, 1), "rank"),
                        "1");
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_contract_compare(s.contract, back, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 0);
    heft_drift_destroy(drift);
    EXPECT_STATUS(heft_contract_check(back, &drift, NULL, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 0);
    heft_drift_destroy(drift);
    heft_contract_destroy(back);
    heft_string_free(text);
    heft_string_free(other);
    heft_string_free(again);
    close_side(&s);
    close_side(&t);
}

static void equal_destinations_are_kept_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    open_inputs(&s, recipe_text, "2", "[1, 0]");
    add_destinations(&s, dst_json, dst_json);
    EXPECT_STATUS(make(&s, NULL, &err), HEFT_OK);
    assert_int_equal(s.contract->n_destinations, 1);
    assert_ptr_equal(heft_contract_get_destination(s.contract, 1), s.destinations[0]);
    close_side(&s);
}

/* ---- what is refused ---- */

static void what_is_not_proven_is_no_contract(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    heft_report_t *report = NULL;
    open_inputs(&s,
                "let tp = 1, order = [0], s = config.deep.scale\n\"w\" [a, b] -> \"w\" [a, b]\n",
                "1", "[0]");
    EXPECT_STATUS(make(&s, &report, &err), HEFT_ERR_PROOF);
    assert_null(s.contract);
    assert_non_null(report);
    assert_int_equal(heft_report_get_n_errors(report), 2);
    heft_report_destroy(report);
    close_side(&s);
    open_inputs(&s, recipe_text, "4", "[0]");
    add_destinations(&s, dst_json, dst_json);
    EXPECT_STATUS(make(&s, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("2 destinations are given, the recipe has 4 ranks");
    close_side(&s);
}

/* Exceptions of a chain belong to one of its recipes; the names of the second's stand in no
 * manifest. */
static void the_plan_of_a_chain_is_made_from_its_contract(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char first_text[] = "\"w\" [a, b] -> \"x\" [b, a]\n\"b\" [n] -> \"y\" [n]\n"
                                     "ignore \"left.*\" because \"none\"\n";
    static const char second_text[] = "\"x\" [a, b] -> \"z\" [(a b)]\n"
                                      "ignore \"y\" because \"not there\"\n";
    heft_recipe_t *parts[2] = { NULL, NULL };
    heft_recipe_t *chain = NULL;
    EXPECT_STATUS(heft_recipe_parse("1.heft", first_text, sizeof first_text - 1, &parts[0], &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_recipe_parse("2.heft", second_text, sizeof second_text - 1, &parts[1], &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_recipe_chain((const heft_recipe_t *const *)parts, 2, &chain, &err), HEFT_OK);
    heft_manifest_t *source = decode(source_json);
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    heft_contract_t *made = NULL;
    heft_contract_t *back = NULL;
    heft_plan_t *plan = NULL;
    heft_plan_info_t info;
    opts.recipe = chain;
    EXPECT_STATUS(heft_contract_create(source, &opts, &made, NULL, &err), HEFT_OK);
    char *text = encode(made);
    EXPECT_STATUS(heft_contract_decode(text, strlen(text), &back, &err), HEFT_OK);
    EXPECT_STATUS(heft_contract_plan(back, &plan, NULL, &err), HEFT_OK);
    heft_plan_query(plan, &info);
    assert_string_equal(info.digest, heft_contract_get_plan_digest(made));
    heft_plan_destroy(plan);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(made);
    heft_manifest_destroy(source);
    heft_recipe_destroy(chain);
    heft_recipe_destroy(parts[0]);
    heft_recipe_destroy(parts[1]);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    heft_contract_t *c = NULL;
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    open_inputs(&s, recipe_text, "2", "[0]");
    opts.bindings = s.bindings;
    EXPECT_STATUS(heft_contract_create(s.source, &opts, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("bindings are given without a recipe");
    opts.recipe = s.recipe;
    opts.n_destinations = 2;
    EXPECT_STATUS(heft_contract_create(s.source, &opts, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("no list of 2 destinations");
    opts.n_destinations = 0;
    opts.reserved = 1;
    EXPECT_STATUS(heft_contract_create(s.source, &opts, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    heft_manifest_t *open = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &open, &err), HEFT_OK);
    EXPECT_STATUS(heft_contract_create(open, NULL, &c, NULL, &err), HEFT_ERR_STATE);
    heft_manifest_destroy(open);
    close_side(&s);
}

static void a_recipe_that_json_cannot_hold_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    open_inputs(&s,
                "# caf\xe9\nlet tp = 1, order = [0], s = config.deep.scale\n"
                "ignore \"left.over\" because \"none\"\n"
                "\"w\" [a, b] -> \"w\" [a, b]\n\"b\" [a] -> \"b\" [a]\n",
                "1", "[0]");
    EXPECT_STATUS(make(&s, NULL, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("recipe \"x.heft\" is no UTF-8");
    close_side(&s);
}

/* The text with its first `from` replaced. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    size_t n = strlen(text) + strlen(to) + 1;
    char *out = malloc(n);
    assert_non_null(out);
    (void)snprintf(out, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void every_flaw_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        const char *to;
        heft_status_t status;
        const char *message;
    } cases[] = {
        { "\"heft_contract\": 1", "\"heft_contract\": 2", HEFT_ERR_FORMAT,
          "what it holds is format 1" },
        { "\"heft_contract\": 1", "\"heft_contract\": 3", HEFT_ERR_UNSUPPORTED,
          "format version 3, this library reads 2" },
        { "\"heft_contract\": 1", "\"heft_contract\": \"1\"", HEFT_ERR_FORMAT,
          "\"heft_contract\" must be" },
        { "\"mapping\"", "\"maping\"", HEFT_ERR_FORMAT, "unknown key \"maping\"" },
        { "\"digest\": \"", "\"digest\": \"0", HEFT_ERR_FORMAT, "\"digest\" must be 64" },
        { "the engine has none", "no reason", HEFT_ERR_FORMAT, "was it edited?" },
        { "\"reason\": \"the engine has none\"", "\"reason\": \"\"", HEFT_ERR_FORMAT,
          "\"reason\" must be not empty" },
        { "\"unused\"", "\"useless\"", HEFT_ERR_FORMAT, "exception: \"kind\" must be" },
        { "\"pattern\"", "\"patern\"", HEFT_ERR_FORMAT, "unknown key \"patern\" in an exception" },
        { "\"name\": \"x.heft\"", "\"name\": 7", HEFT_ERR_FORMAT,
          "recipe: \"name\" must be a text" },
        { "\"lines\": [", "\"lines\": [0,", HEFT_ERR_FORMAT, "\"lines\" must be" },
        { "\"lines\": [", "\"lines\": [\"a\\nb\",", HEFT_ERR_FORMAT, "\"lines\" must be" },
        { "ranks tp as r", "ranks tp as s", HEFT_ERR_FORMAT, "was it edited?" },
        { "\"let\":", "\"lat\":", HEFT_ERR_FORMAT, "unknown key \"lat\"" },
        { "\"bindings\": {", "\"bindings\": [], \"x\": {", HEFT_ERR_FORMAT, "unknown key \"x\"" },
        { "\"destination\": 0", "\"destination\": 2", HEFT_ERR_FORMAT, "\"destination\" must be" },
        { "\"destination\": 0", "\"destination\": 1", HEFT_ERR_FORMAT,
          "in the order in which ranks" },
        { "\"ranks\": [", "\"ranks\": [0,", HEFT_ERR_FORMAT, "a rank must be an object" },
        { "\"plan\": \"", "\"plan\": \"X", HEFT_ERR_FORMAT, "\"plan\" must be 64" },
        { "\"manifest\": {", "\"manifest\": {\"a\": 1,", HEFT_ERR_FORMAT,
          "manifest: manifest: unknown key \"a\"" },
        { "\"shape\": [4, 6]", "\"shape\": [4, 7]", HEFT_ERR_FORMAT, "manifest: manifest: " },
        { "\"destinations\": [", "\"destinations\": [1,", HEFT_ERR_FORMAT, "destinations: " },
        { "\"digest\"", "\"heft_contract\": 1, \"digest\"", HEFT_ERR_FORMAT, "duplicate" },
        { "{", "[", HEFT_ERR_FORMAT, "contract: line" },
    };
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    open_inputs(&s, recipe_text, "2", "[1, 0]");
    add_destinations(&s, dst_json, dst_other_json);
    EXPECT_STATUS(make(&s, NULL, &err), HEFT_OK);
    char *text = encode(s.contract);
    for (size_t i = 0; i < ARRAY_N(cases); i++) {
        heft_contract_t *c = NULL;
        char *bad = replaced(text, cases[i].from, cases[i].to);
        EXPECT_STATUS(heft_contract_decode(bad, strlen(bad), &c, &err), cases[i].status);
        EXPECT_MESSAGE(cases[i].message);
        assert_null(c);
        free(bad);
    }
    for (size_t n = 0; n + 1 < strlen(text); n++) { /* cut anywhere but at its last line's end */
        heft_contract_t *c = NULL;
        EXPECT_STATUS(heft_contract_decode(text, n, &c, &err), HEFT_ERR_FORMAT);
    }
    heft_string_free(text);
    close_side(&s);
}

/* ---- drift ---- */

static void expect_drift(const heft_contract_t *a, const heft_contract_t *b,
                         const char *const *want, size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_contract_compare(a, b, &drift, &err), HEFT_OK);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(heft_drift_get(drift, (uint32_t)i));
        assert_string_equal(heft_drift_get(drift, (uint32_t)i)->text, want[i]);
    }
    assert_int_equal(heft_drift_get_n(drift), n);
    heft_drift_destroy(drift);
}

static void every_input_that_changed_is_named(void **state)
{
    (void)state;
    side_t a;
    side_t b;
    char *text = replaced(recipe_text, "the engine has none", "nobody wants it");
    open_side(&a, recipe_text, "2", "[1, 0]");
    open_side(&b, text, "1", "[1, 2]");
    static const char *const want[] = {
        ("recipe \"x.heft\" changed from line 5: was \"ignore \"left.*\" because \"the engine has "
         "none\"\", is \"ignore \"left.*\" because \"nobody wants it\"\""),
        "let order[1]: was 0, is 2",
        "let tp: was 2, is 1",
        "ranks: were 2, are 1",
        ("exception unused \"left.*\": its reason was \"the engine has none\", is \"nobody wants "
         "it\""),
    };
    expect_drift(a.contract, b.contract, want, ARRAY_N(want));
    free(text);
    close_side(&b);
    text = replaced(recipe_text, "\"left.*\"", "\"left.over\"");
    open_side(&b, text, "2", "[1, 0]");
    static const char *const patterns[] = {
        "recipe \"x.heft\" changed from line 5: was \"ignore \"left.*\" because \"the engine has "
        "none\"\", "
        "is \"ignore \"left.over\" because \"the engine has none\"\"; the plans are equal",
        "exception unused \"left.*\" gone; its reason was \"the engine has none\"",
        "exception unused \"left.over\" added: \"the engine has none\"",
    };
    expect_drift(a.contract, b.contract, patterns, ARRAY_N(patterns));
    free(text);
    close_side(&b);
    close_side(&a);
}

static void the_configuration_counts_where_it_is_read(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t a;
    side_t b;
    static const char unread[] = "{\"deep\":{\"scale\":2,\"more\":4},\"unread\":\"y\"}";
    static const char read[] = "{\"deep\":{\"scale\":5}}";
    open_side(&a, recipe_text, "2", "[0]");
    open_inputs(&b, recipe_text, "2", "[0]");
    EXPECT_STATUS(heft_bindings_set_config(b.bindings, unread, sizeof unread - 1, &err), HEFT_OK);
    EXPECT_STATUS(make(&b, NULL, &err), HEFT_OK);
    expect_drift(a.contract, b.contract, NULL, 0);
    heft_contract_destroy(b.contract);
    EXPECT_STATUS(heft_bindings_set_config(b.bindings, read, sizeof read - 1, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_set_env(b.bindings, "HEFT_TEST_MODE", "fast", &err), HEFT_OK);
    EXPECT_STATUS(make(&b, NULL, &err), HEFT_OK);
    static const char *const want[] = { "config.deep.scale: was 2, is 5",
                                        "env.HEFT_TEST_MODE: was not given, is \"fast\"" };
    expect_drift(a.contract, b.contract, want, ARRAY_N(want));
    close_side(&a);
    close_side(&b);
}

static void destinations_drift_by_rank(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t a;
    side_t b;
    side_t none;
    open_inputs(&a, recipe_text, "2", "[0]");
    add_destinations(&a, dst_json, dst_json);
    EXPECT_STATUS(make(&a, NULL, &err), HEFT_OK);
    open_inputs(&b, recipe_text, "2", "[0]");
    add_destinations(&b, dst_json, dst_other_json);
    EXPECT_STATUS(make(&b, NULL, &err), HEFT_OK);
    open_side(&none, recipe_text, "2", "[0]");
    static const char *const want[] = {
        "destination rank 1: attribute \"rank\": was not given, is \"1\""
    };
    expect_drift(a.contract, b.contract, want, 1);
    static const char *const gone[] = { "destination: was recorded, is not" };
    expect_drift(a.contract, none.contract, gone, 1);
    close_side(&a);
    close_side(&b);
    close_side(&none);
}

/* As if this heft had another fold: equal inputs, other digests. */
static void another_plan_from_equal_inputs_is_heft_itself(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    heft_drift_t *drift = NULL;
    open_side(&s, recipe_text, "2", "[0]");
    char digest[HEFT__CONTRACT_DIGEST];
    memcpy(digest, s.contract->ranks[1].plan, sizeof digest);
    memset(s.contract->ranks[1].plan, 'a', sizeof digest - 1);
    heft__contract_finish(s.contract);
    EXPECT_STATUS(heft_contract_check(s.contract, &drift, NULL, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 1);
    assert_int_equal(heft_drift_get(drift, 0)->kind, HEFT_DRIFT_PLAN);
    assert_string_equal(heft_drift_kind_get_name(HEFT_DRIFT_PLAN), "plan");
    char want[200];
    (void)snprintf(
        want, sizeof want,
        "plan of rank 1: was aaaaaaaaaaaaaaaa.., is %.16s..; manifests, recipe, bindings "
        "and exceptions are equal: heft itself maps otherwise",
        digest);
    assert_string_equal(heft_drift_get(drift, 0)->text, want);
    heft_drift_destroy(drift);
    close_side(&s);
}

/* A contract whose recipe this heft no longer takes, or which proves nothing, is refused by name.
 */
static void a_mapping_that_no_longer_holds_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    heft_drift_t *drift = NULL;
    heft_report_t *report = NULL;
    open_side(&s, recipe_text, "2", "[0]");
    const char *text = s.contract->recipe_text;
    s.contract->recipe_text = "let tp = )\n";
    EXPECT_STATUS(heft_contract_check(s.contract, &drift, &report, &err), HEFT_ERR_SYNTAX);
    EXPECT_MESSAGE("x.heft:1:10");
    s.contract->recipe_text =
        "let tp = 1, order = [0], s = config.deep.scale\n\"b\" [n] -> \"b\" [n]\n";
    EXPECT_STATUS(heft_contract_check(s.contract, &drift, &report, &err), HEFT_ERR_PROOF);
    assert_null(drift);
    assert_non_null(report);
    heft_report_destroy(report);
    s.contract->recipe_text = text;
    close_side(&s);
}

/* ---- memory ---- */

static heft_status_t whole_life(const side_t *in, heft_error_t *err)
{
    side_t s = *in;
    s.contract = NULL;
    char *text = NULL;
    heft_contract_t *back = NULL;
    heft_drift_t *drift = NULL;
    heft_status_t status = make(&s, NULL, err);
    if (status == HEFT_OK) {
        status = heft_contract_encode(s.contract, &text, err);
    }
    if (status == HEFT_OK) {
        status = heft_contract_decode(text, strlen(text), &back, err);
    }
    if (status == HEFT_OK) {
        status = heft_contract_check(back, &drift, NULL, err);
    }
    if (status == HEFT_OK) {
        heft_drift_destroy(drift);
        drift = NULL;
        status = heft_contract_compare(in->contract, back, &drift, err);
    }
    heft_drift_destroy(drift);
    heft_contract_destroy(back);
    heft_string_free(text);
    heft_contract_destroy(s.contract);
    return status;
}

static void contracts_survive_each_allocation_failing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    side_t s;
    side_t other;
    open_side(&other, recipe_text, "4", "[1, 2]"); /* so that comparing finds something */
    open_inputs(&s, recipe_text, "2", "[1, 0]");
    add_destinations(&s, dst_json, dst_other_json);
    s.contract = NULL;
    for (long k = 0;; k++) {
        side_t in = s;
        in.contract = other.contract;
        int64_t live = heft__alloc_live();
        heft__error_reset(&err);
        heft__alloc_fail_at(k);
        heft_status_t status = whole_life(&in, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 200);
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    close_side(&s);
    close_side(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_contract_holds_what_was_given),
        cmocka_unit_test(a_side_alone_is_a_contract),
        cmocka_unit_test(written_and_read_it_is_the_same),
        cmocka_unit_test(equal_destinations_are_kept_once),
        cmocka_unit_test(what_is_not_proven_is_no_contract),
        cmocka_unit_test(the_plan_of_a_chain_is_made_from_its_contract),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(a_recipe_that_json_cannot_hold_is_refused),
        cmocka_unit_test(every_flaw_is_named),
        cmocka_unit_test(every_input_that_changed_is_named),
        cmocka_unit_test(the_configuration_counts_where_it_is_read),
        cmocka_unit_test(destinations_drift_by_rank),
        cmocka_unit_test(another_plan_from_equal_inputs_is_heft_itself),
        cmocka_unit_test(a_mapping_that_no_longer_holds_is_refused),
        cmocka_unit_test(contracts_survive_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
