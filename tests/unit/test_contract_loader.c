/* SPDX-License-Identifier: Apache-2.0 */
/* Contracts of traced loaders: taken against manifests, written and read unchanged, planned, made
 * again, and compared by what fills each parameter. */
#include "heft_test.h"
#include "tape_builder.h"

#include "heft/contract.h"

/* A loader of one of two ranks: q and k behind one another, each rank its rows, and padding. */
typedef struct loader {
    tape_builder_t tb;
    uint32_t q;
    uint32_t k;
    uint32_t qkv;
} loader_t;

static void trace(loader_t *l, int rank, bool is_swapped)
{
    tb_init(&l->tb);
    tape_builder_t *tb = &l->tb;
    l->qkv = tb_param(tb, "qkv", HEFT_DTYPE_BF16, TB_SHAPE(4, 3));
    l->q = tb_source(tb, "q", HEFT_DTYPE_BF16, TB_SHAPE(4, 3));
    l->k = tb_source(tb, "k", HEFT_DTYPE_BF16, TB_SHAPE(2, 3));
    uint32_t t = tb_temp(tb, HEFT_DTYPE_BF16, TB_SHAPE(3, 3));
    heft_view_t all = tb_all(tb, t);
    int64_t q_at = is_swapped ? 1 : 0;
    tb_copy(tb, tb_narrow(all, 0, q_at, 2), tb_narrow(tb_all(tb, l->q), 0, 2 * rank, 2));
    tb_copy(tb, tb_narrow(all, 0, is_swapped ? 0 : 2, 1), tb_narrow(tb_all(tb, l->k), 0, rank, 1));
    tb_copy(tb, tb_narrow(tb_all(tb, l->qkv), 0, 0, 3), all);
    tb_fill(tb, tb_narrow(tb_all(tb, l->qkv), 0, 3, 1), 0);
}

static heft_manifest_t *decode(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_OK);
    return m;
}

static const char source_json[] = "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                                  "{\"name\":\"q\",\"dtype\":\"BF16\",\"shape\":[4,3]},"
                                  "{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
                                  "{\"name\":\"vision.w\",\"dtype\":\"F4\",\"shape\":[3,4]}]}";

static const char destination_json[] =
    "{\"heft_manifest\":1,\"side\":\"destination\",\"attributes\":{\"half\":\"gate_up\"},"
    "\"tensors\":[{\"name\":\"qkv\",\"dtype\":\"BF16\",\"shape\":[4,3]},"
    "{\"name\":\"cache\",\"dtype\":\"F32\",\"shape\":[5]}]}";

static const heft_exception_t exceptions[] = {
    { .kind = HEFT_EXCEPTION_UNUSED, .pattern = "vision.*", .reason = "no tower", .where = "" },
    { .kind = HEFT_EXCEPTION_DERIVED, .pattern = "cache", .reason = "from rope", .where = "" },
};

typedef struct fixture {
    heft_manifest_t *source;
    heft_manifest_t *destination;
    loader_t loaders[2];
    const heft_tape_t *tapes[2];
    const heft_manifest_t *destinations[2];
    heft_contract_attr_t attrs[2];
    heft_contract_opts_t opts;
} fixture_t;

static void open_fixture(fixture_t *f, bool is_swapped)
{
    *f = (fixture_t){ .source = decode(source_json), .destination = decode(destination_json) };
    for (int r = 0; r < 2; r++) {
        trace(&f->loaders[r], r, is_swapped && r == 1);
        f->tapes[r] = f->loaders[r].tb.tape;
        f->destinations[r] = f->destination;
    }
    f->attrs[0] = (heft_contract_attr_t){ "platform", "cuda" };
    f->attrs[1] = (heft_contract_attr_t){ "engine", "toy 1" };
    f->opts = (heft_contract_opts_t)HEFT_CONTRACT_OPTS_INIT;
    f->opts.tapes = f->tapes;
    f->opts.n_tapes = 2;
    f->opts.destinations = f->destinations;
    f->opts.n_destinations = 2;
    f->opts.exceptions = exceptions;
    f->opts.n_exceptions = 2;
    f->opts.attrs = f->attrs;
    f->opts.n_attrs = 2;
}

static void close_fixture(fixture_t *f)
{
    tb_fini(&f->loaders[0].tb);
    tb_fini(&f->loaders[1].tb);
    heft_manifest_destroy(f->source);
    heft_manifest_destroy(f->destination);
}

static heft_contract_t *make(const fixture_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *c = NULL;
    EXPECT_STATUS(heft_contract_create(f->source, &f->opts, &c, NULL, &err), HEFT_OK);
    return c;
}

/* Not inlined: gcc 12 would take the text for the pointer to it, and warn of a dangling one. */
__attribute__((noinline)) static char *encode(const heft_contract_t *c)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft_contract_encode(c, &text, &err), HEFT_OK);
    return text;
}

static heft_contract_t *read_back(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *c = NULL;
    EXPECT_STATUS(heft_contract_decode(text, strlen(text), &c, &err), HEFT_OK);
    return c;
}

static void a_loaders_contract_is_read_as_it_was_written(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_t *c = make(&f);
    char *text = encode(c);
    heft_contract_t *back = read_back(text);
    char *again = encode(back);
    assert_string_equal(text, again);
    assert_string_equal(heft_contract_get_digest(c), heft_contract_get_digest(back));
    assert_int_equal(heft_contract_is_traced(back), 1);
    assert_int_equal(heft_contract_has_mapping(back), 1);
    assert_int_equal(heft_contract_is_partial(back), 0);
    assert_null(heft_contract_get_recipe_text(back));
    assert_int_equal(heft_contract_get_n_ranks(back), 2);
    assert_int_equal(heft_contract_get_n_attrs(back), 2);
    assert_string_equal(heft_contract_get_attr(back, 0)->key, "engine");
    assert_string_equal(heft_contract_get_attr(back, 1)->value, "cuda");
    assert_null(heft_contract_get_attr(back, 2));
    assert_non_null(heft_contract_get_tape(back, 1));
    assert_null(heft_contract_get_tape(back, 2));
    /* names of the manifests alone, in their order: the tapes say nothing of them */
    assert_null(strstr(text, "\"sources\""));
    assert_int_equal(heft_tape_get_n_buffers(heft_contract_get_tape(back, 0)), 3 + 2 + 1);
    heft_string_free(text);
    heft_string_free(again);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    close_fixture(&f);
}

static void the_plan_of_a_contract_is_that_of_its_tapes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_t *c = make(&f);
    char *text = encode(c);
    heft_contract_t *back = read_back(text);
    heft_plan_t *plan = NULL;
    heft_report_t *report = NULL;
    heft_drift_t *drift = NULL;
    heft_plan_info_t info;
    EXPECT_STATUS(heft_contract_plan(back, &plan, &report, &err), HEFT_OK);
    heft_plan_query(plan, &info);
    assert_string_equal(info.digest, heft_contract_get_plan_digest(c));
    assert_string_equal(heft_plan_get_rank_digest(plan, 1), heft_contract_get_rank_digest(c, 1));
    heft_report_destroy(report);
    report = NULL;
    EXPECT_STATUS(heft_contract_check(back, &drift, &report, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 0);
    heft_drift_destroy(drift);
    heft_report_destroy(report);
    heft_plan_destroy(plan);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    close_fixture(&f);
}

static void equal_tapes_of_ranks_are_kept_once(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, false);
    loader_t third;
    trace(&third, 0, false);
    const heft_tape_t *tapes[] = { f.tapes[0], f.tapes[1], third.tb.tape };
    const heft_manifest_t *destinations[] = { f.destination, f.destination, f.destination };
    f.opts.tapes = tapes;
    f.opts.n_tapes = 3;
    f.opts.destinations = destinations;
    f.opts.n_destinations = 3;
    heft_contract_t *c = make(&f);
    assert_ptr_equal(heft_contract_get_tape(c, 0), heft_contract_get_tape(c, 2));
    char *text = encode(c);
    assert_non_null(strstr(text, "\"tape\": 1}"));
    assert_null(strstr(text, "\"tape\": 2}"));
    heft_contract_t *back = read_back(text);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    tb_fini(&third.tb);
    close_fixture(&f);
}

/* Padding of the source that the loader skips, and two parameters that are declared one group. */
static void parts_and_groups_are_kept(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, false);
    heft_manifest_destroy(f.source);
    f.source = decode("{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                      "{\"name\":\"q\",\"dtype\":\"BF16\",\"shape\":[4,3]},"
                      "{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
                      "{\"name\":\"pad\",\"dtype\":\"BF16\",\"shape\":[2,3]}]}");
    heft_exception_t list[3] = {
        { .kind = HEFT_EXCEPTION_UNUSED, .pattern = "pad", .reason = "rows", .n_dims = 2 },
        exceptions[1],
        { .kind = HEFT_EXCEPTION_TOGETHER, .pattern = "qkv cache", .reason = "one kernel" },
    };
    list[0].end[0] = 2;
    list[0].end[1] = 3;
    f.opts.exceptions = list;
    f.opts.n_exceptions = 3;
    heft_contract_t *c = make(&f);
    char *text = encode(c);
    assert_non_null(strstr(text, "\"pattern\": \"pad\", \"box\": [[0, 2], [0, 3]], \"reason\""));
    assert_non_null(strstr(text, "{\"kind\": \"together\", \"pattern\": \"qkv cache\""));
    heft_contract_t *back = read_back(text);
    char *again = encode(back);
    assert_string_equal(text, again);
    assert_int_equal(heft_contract_get_exception(back, 0)->end[1], 3);
    list[0].begin[0] = 1;
    list[2].kind = HEFT_EXCEPTION_UNUSED; /* another rows' worth, and no group */
    list[2].pattern = "pad";
    list[2].n_dims = 2;
    list[2].end[0] = 1;
    list[2].end[1] = 3;
    heft_contract_t *other = make(&f);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_contract_compare(c, other, &drift, &err), HEFT_OK);
    bool is_named = false;
    for (uint32_t i = 0; i < heft_drift_get_n(drift); i++) {
        is_named = is_named || strcmp(heft_drift_get(drift, i)->text,
                                      "exception unused \"pad\" [1..2, 0..3) added: \"rows\"") == 0;
    }
    assert_true(is_named);
    heft_drift_destroy(drift);
    heft_string_free(text);
    heft_string_free(again);
    heft_contract_destroy(other);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    close_fixture(&f);
}

static void destinations_are_made_where_none_are_given(void **state)
{
    (void)state;
    fixture_t f;
    open_fixture(&f, false);
    f.opts.n_destinations = 0;
    f.opts.n_exceptions = 1; /* there is no cache then */
    heft_contract_t *c = make(&f);
    const heft_manifest_t *made = heft_contract_get_destination(c, 1);
    assert_non_null(made);
    assert_string_equal(heft_manifest_get_side(made), "destination");
    assert_int_equal(heft_manifest_get_n_tensors(made), 1);
    assert_ptr_equal(made, heft_contract_get_destination(c, 0));
    heft_contract_destroy(c);
    close_fixture(&f);
}

/* ---- some ranks ---- */

static void one_rank_of_several_is_a_contract_too(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    open_fixture(&f, false);
    f.opts.tapes = &f.tapes[1];
    f.opts.n_tapes = 1;
    f.opts.n_destinations = 1;
    f.opts.first_rank = 1;
    heft_contract_t *c = NULL;
    EXPECT_STATUS(heft_contract_create(f.source, &f.opts, &c, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source \"k\": 3 of 6 elements unused");
    f.opts.partial = 1;
    c = make(&f);
    char *text = encode(c);
    heft_contract_t *back = read_back(text);
    assert_int_equal(heft_contract_get_first_rank(back), 1);
    assert_int_equal(heft_contract_is_partial(back), 1);
    heft_plan_t *plan = NULL;
    EXPECT_STATUS(heft_contract_plan(back, &plan, NULL, &err), HEFT_OK);
    /* a rank's plan does not depend on which others are there */
    fixture_t whole;
    open_fixture(&whole, false);
    heft_contract_t *both = make(&whole);
    assert_string_equal(heft_plan_get_rank_digest(plan, 0), heft_contract_get_rank_digest(both, 1));
    heft_contract_destroy(both);
    close_fixture(&whole);
    heft_plan_destroy(plan);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    close_fixture(&f);
}

/* Each rank's, as it is traced where it runs. */
static heft_contract_t *make_rank(fixture_t *f, uint32_t rank, const char *tp_rank)
{
    heft_contract_opts_t opts = f->opts;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *c = NULL;
    f->attrs[1] = (heft_contract_attr_t){ "tp_rank", tp_rank };
    opts.tapes = &f->tapes[rank];
    opts.n_tapes = 1;
    opts.n_destinations = 1;
    opts.first_rank = rank;
    opts.partial = 1;
    EXPECT_STATUS(heft_contract_create(f->source, &opts, &c, NULL, &err), HEFT_OK);
    return c;
}

static void contracts_of_ranks_become_one(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_t *whole = make(&f);
    heft_contract_t *parts[2] = { make_rank(&f, 1, "1"), make_rank(&f, 0, "0") };
    heft_contract_t *merged = NULL;
    EXPECT_STATUS(
        heft_contract_merge((const heft_contract_t *const *)parts, 2, 0, &merged, NULL, &err),
        HEFT_OK);
    assert_string_equal(heft_contract_get_plan_digest(merged),
                        heft_contract_get_plan_digest(whole));
    assert_int_equal(heft_contract_is_partial(merged), 0);
    assert_int_equal(heft_contract_get_n_exceptions(merged), 2);
    assert_int_equal(heft_contract_get_n_attrs(merged), 3);
    assert_string_equal(heft_contract_get_attr(merged, 1)->key, "rank-0.tp_rank");
    assert_string_equal(heft_contract_get_attr(merged, 2)->value, "1");
    char *text = encode(merged);
    heft_contract_destroy(read_back(text));
    heft_string_free(text);
    heft_contract_destroy(merged);
    for (long k = 0;; k++) {
        int64_t live = heft__alloc_live();
        merged = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status =
            heft_contract_merge((const heft_contract_t *const *)parts, 2, 0, &merged, NULL, &err);
        heft__alloc_fail_at(-1);
        heft_contract_destroy(merged);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_contract_destroy(parts[0]);
    heft_contract_destroy(parts[1]);
    heft_contract_destroy(whole);
    close_fixture(&f);
}

/* A rank alone cannot know that nobody uses an element; all of them do. */
static void what_no_rank_uses_is_found_when_they_are_merged(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_t *first = make_rank(&f, 0, "0");
    heft_contract_t *merged = NULL;
    const heft_contract_t *parts[3] = { first, first, NULL };
    EXPECT_STATUS(heft_contract_merge(parts, 1, 0, &merged, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source \"k\": 3 of 6 elements unused");
    EXPECT_STATUS(heft_contract_merge(parts, 2, 0, &merged, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 0 is in two contracts");
    fixture_t g;
    open_fixture(&g, false);
    g.opts.first_rank = 2;
    heft_contract_t *far = make(&g);
    parts[1] = far;
    EXPECT_STATUS(heft_contract_merge(parts, 2, 0, &merged, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 1 is in none");
    heft_manifest_destroy(f.source);
    f.source = decode("{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                      "{\"name\":\"q\",\"dtype\":\"BF16\",\"shape\":[4,3]},"
                      "{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
                      "{\"name\":\"vision.w\",\"dtype\":\"F4\",\"shape\":[6,4]}]}");
    heft_contract_destroy(first);
    first = make_rank(&f, 0, "0");
    parts[0] = first;
    EXPECT_STATUS(heft_contract_merge(parts, 2, 0, &merged, NULL, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("vision.w");
    assert_null(merged);
    heft_contract_destroy(far);
    heft_contract_destroy(first);
    close_fixture(&g);
    close_fixture(&f);
}

/* ---- refusals ---- */

static void names_that_no_loader_reads_or_writes_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *c = NULL;
    heft_report_t *report = NULL;
    fixture_t f;
    open_fixture(&f, false);
    f.opts.n_exceptions = 0;
    EXPECT_STATUS(heft_contract_create(f.source, &f.opts, &c, &report, &err), HEFT_ERR_PROOF);
    assert_null(c);
    assert_int_equal(heft_report_get_n_errors(report), 3);
    assert_non_null(strstr(heft_report_get_finding(report, 0)->text, "\"cache\" rank 0"));
    assert_non_null(strstr(heft_report_get_finding(report, 2)->text, "\"vision.w\""));
    heft_report_destroy(report);
    close_fixture(&f);
}

static void a_tape_that_does_not_fit_the_manifests_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        const char *destination;
        heft_status_t status;
        const char *message;
    } rows[] = {
        { "{\"name\":\"q\",\"dtype\":\"BF16\",\"shape\":[4,3]}", NULL, HEFT_ERR_NAME,
          "rank 0: source of the tape: no tensor \"k\"" },
        { "{\"name\":\"q\",\"dtype\":\"F16\",\"shape\":[4,3]},"
          "{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]}",
          NULL, HEFT_ERR_SHAPE,
          "rank 0: source \"q\": BF16 [4, 3] in the tape, F16 [4, 3] in the manifest" },
        { NULL, "{\"name\":\"qkv\",\"dtype\":\"BF16\",\"shape\":[12]}", HEFT_ERR_SHAPE,
          "rank 0: parameter \"qkv\": BF16 [4, 3] in the tape, BF16 [12] in the manifest" },
        { NULL, "{\"name\":\"qk\",\"dtype\":\"BF16\",\"shape\":[4,3]}", HEFT_ERR_NAME,
          "rank 0: parameter of the tape: " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_contract_t *c = NULL;
        char text[300];
        fixture_t f;
        open_fixture(&f, false);
        if (rows[i].source != NULL) {
            (void)snprintf(text, sizeof text,
                           "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":[%s]}",
                           rows[i].source);
            heft_manifest_destroy(f.source);
            f.source = decode(text);
        } else {
            (void)snprintf(text, sizeof text,
                           "{\"heft_manifest\":1,\"side\":\"destination\",\"tensors\":[%s]}",
                           rows[i].destination);
            heft_manifest_destroy(f.destination);
            f.destination = decode(text);
            f.destinations[0] = f.destination;
            f.destinations[1] = f.destination;
        }
        EXPECT_STATUS(heft_contract_create(f.source, &f.opts, &c, NULL, &err), rows[i].status);
        EXPECT_MESSAGE(rows[i].message);
        assert_null(c);
        close_fixture(&f);
    }
}

static void options_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *c = NULL;
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_opts_t o = f.opts;
    o.n_tapes = 0;
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("destinations are given without a recipe or tapes");
    o.n_destinations = 0;
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("without tapes");
    o = f.opts;
    o.n_destinations = 1;
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("1 destinations are given, and 2 tapes");
    o = f.opts;
    f.attrs[1].key = "platform";
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("attribute \"platform\" twice");
    f.attrs[1].key = "a\nb";
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_FORMAT);
    o.reserved_too[3] = 1;
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    o = f.opts;
    f.tapes[1] = NULL;
    EXPECT_STATUS(heft_contract_create(f.source, &o, &c, NULL, &err), HEFT_ERR_ARGUMENT);
    close_fixture(&f);
}

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

static void swap_tapes(const char *text, const char *tapes, char **out)
{
    const char *first = strchr(tapes + 10, '{');
    const char *end = strstr(first, "\n}") + 2;
    const char *second = strchr(end, '{');
    const char *last = strstr(second, "\n}") + 2;
    size_t n = strlen(text) + 1;
    *out = malloc(n);
    assert_non_null(*out);
    (void)snprintf(*out, n, "%.*s%.*s,\n%.*s%s", (int)(first - text), text, (int)(last - second),
                   second, (int)(end - first), first, last);
}

static void flaws_in_a_loaders_contract_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        const char *to;
        const char *message;
    } rows[] = {
        { "\"heft_contract\": 2", "\"heft_contract\": 1", "what it holds is format 2" },
        { "\"loader\": {", "\"recipe\": {}, \"loader\": {", "left out beside a recipe" },
        { "\"first_rank\": 0", "\"first_rank\": -1", "\"first_rank\" must be" },
        { "\"first_rank\": 0", "\"frist_rank\": 0", "unknown key \"frist_rank\"" },
        { "\"first_rank\": 0", "\"first_rank\": 0, \"partial\": false",
          "\"partial\" must be true" },
        { "\"platform\": \"cuda\"", "\"platform\": 7", "\"platform\" must be a text" },
        { "\"platform\": \"cuda\"", "\"platform\": \"cpu\"", "was it edited?" },
        { "\"kind\": \"unused\"", "\"box\": [[0]], \"kind\": \"unused\"",
          "\"box\" must be [begin" },
        { "\"kind\": \"unused\"", "\"box\": [], \"kind\": \"unused\"", "\"box\" must be [begin" },
        { "\"kind\": \"unused\"", "\"box\": [[2, 2]], \"kind\": \"unused\"", "\"box\" must be" },
        { "\"tape\": 1", "\"tape\": 2", "\"tape\" must be the index" },
        { "\"tape\": 1", "\"tape\": 0", "\"tapes\" must stand in the order" },
        { "\"tapes\": [", "\"tapes\": [1,", "\"tapes\" must stand in the order" },
        { "\"tapes\": [", "\"tape\": [", "unknown key \"tape\"" },
        { "\"destination\": 0", "\"destination\": 1", "\"destination\" must be" },
        { "\"temporaries\": [", "\"sources\": [], \"temporaries\": [", "unknown key \"sources\"" },
        { "p1[9] < t0", "p1[8] < t0", "tape 0: tape: " },
    };
    fixture_t f;
    open_fixture(&f, false);
    heft_contract_t *c = make(&f);
    char *text = encode(c);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_contract_t *back = NULL;
        char *bad = replaced(text, rows[i].from, rows[i].to);
        EXPECT_STATUS(heft_contract_decode(bad, strlen(bad), &back, &err), HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(rows[i].message);
        assert_null(back);
        free(bad);
    }
    /* the tapes of two ranks changed places: each is sound, and the plans are not those recorded */
    const char *tapes = strstr(text, "\"tapes\": [");
    char *swapped = NULL;
    swap_tapes(text, tapes, &swapped);
    heft_contract_t *back = read_back(swapped);
    heft_error_t why = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    assert_int_equal(heft_contract_plan(back, &plan, NULL, &why), HEFT_ERR_DIGEST);
    assert_non_null(strstr(why.message, "the plan of rank 0 is"));
    heft_contract_destroy(back);
    free(swapped);
    for (size_t n = 0; n + 1 < strlen(text); n += 7) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_contract_t *cut = NULL;
        EXPECT_STATUS(heft_contract_decode(text, n, &cut, &err), HEFT_ERR_FORMAT);
    }
    heft_string_free(text);
    heft_contract_destroy(c);
    close_fixture(&f);
}

/* ---- drift ---- */

static const char *only_text(const heft_contract_t *a, const heft_contract_t *b, heft_drift_t **d)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_contract_compare(a, b, d, &err), HEFT_OK);
    for (uint32_t i = 1; i < heft_drift_get_n(*d); i++) {
        (void)fprintf(stderr, "%s\n", heft_drift_get(*d, i)->text);
    }
    assert_int_equal(heft_drift_get_n(*d), 1);
    return heft_drift_get(*d, 0)->text;
}

static void the_first_range_that_is_filled_otherwise_is_named(void **state)
{
    (void)state;
    fixture_t f;
    fixture_t g;
    heft_drift_t *drift = NULL;
    open_fixture(&f, false);
    open_fixture(&g, true);
    heft_contract_t *a = make(&f);
    heft_contract_t *b = make(&g);
    assert_string_not_equal(heft_contract_get_digest(a), heft_contract_get_digest(b));
    assert_string_equal(only_text(a, b, &drift),
                        "parameter \"qkv\" rank 1: is filled otherwise, first at [0..1, 0..3): was "
                        "\"q\"[2, 0], is \"k\"[1, 0]");
    assert_int_equal(heft_drift_get(drift, 0)->kind, HEFT_DRIFT_PLAN);
    assert_string_equal(heft_drift_get(drift, 0)->name, "qkv");
    heft_drift_destroy(drift);
    heft_contract_destroy(a);
    heft_contract_destroy(b);
    close_fixture(&f);
    close_fixture(&g);
}

/* One loader leaves its last row alone, and says so. */
static void a_part_that_is_no_longer_written_is_named(void **state)
{
    (void)state;
    fixture_t f;
    fixture_t g;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    open_fixture(&f, false);
    open_fixture(&g, false);
    heft_exception_t list[3] = { exceptions[0],
                                 exceptions[1],
                                 { .kind = HEFT_EXCEPTION_UNTOUCHED,
                                   .pattern = "qkv",
                                   .reason = "padding",
                                   .where = "",
                                   .is_optional = 1,
                                   .n_dims = 2,
                                   .begin = { 3, 0 },
                                   .end = { 4, 3 } } };
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t k = tb_source(&tb, "k", HEFT_DTYPE_BF16, TB_SHAPE(2, 3));
    uint32_t q = tb_source(&tb, "q", HEFT_DTYPE_BF16, TB_SHAPE(4, 3));
    heft_view_t all = tb_all(&tb, tb_param(&tb, "qkv", HEFT_DTYPE_BF16, TB_SHAPE(4, 3)));
    tb_copy(&tb, tb_narrow(all, 0, 2, 1), tb_narrow(tb_all(&tb, k), 0, 0, 1));
    tb_copy(&tb, tb_narrow(all, 0, 0, 2), tb_narrow(tb_all(&tb, q), 0, 0, 2));
    g.tapes[0] = tb.tape;
    f.opts.exceptions = list;
    f.opts.n_exceptions = 3;
    g.opts.exceptions = list;
    g.opts.n_exceptions = 3;
    heft_contract_t *a = make(&f);
    heft_contract_t *b = make(&g);
    assert_string_equal(only_text(a, b, &drift),
                        "parameter \"qkv\" rank 0: is filled otherwise, first at [3..4, 0..3): was "
                        "constant 0x0, is not written");
    heft_drift_destroy(drift);
    EXPECT_STATUS(heft_contract_compare(b, a, &drift, &err), HEFT_OK);
    assert_non_null(strstr(heft_drift_get(drift, 0)->text, "was not written, is constant 0x0"));
    heft_drift_destroy(drift);
    heft_contract_destroy(a);
    heft_contract_destroy(b);
    tb_fini(&tb);
    close_fixture(&f);
    close_fixture(&g);
}

/* A loader that copies "w" to "w", of n columns; read back, so it owns its manifests. */
static heft_contract_t *contract_of_columns(int n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    heft_contract_t *c = NULL;
    char json[200];
    (void)snprintf(json, sizeof json,
                   "{\"heft_manifest\":1,\"side\":\"source\",\"tensors\":["
                   "{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4,%d]}]}",
                   n);
    heft_manifest_t *source = decode(json);
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t from = tb_source(&tb, "w", HEFT_DTYPE_BF16, TB_SHAPE(4, n));
    uint32_t to = tb_param(&tb, "w", HEFT_DTYPE_BF16, TB_SHAPE(4, n));
    tb_copy(&tb, tb_all(&tb, to), tb_all(&tb, from));
    const heft_tape_t *tape = tb.tape;
    opts.tapes = &tape;
    opts.n_tapes = 1;
    EXPECT_STATUS(heft_contract_create(source, &opts, &c, NULL, &err), HEFT_OK);
    char *text = encode(c);
    heft_contract_t *back = read_back(text);
    heft_string_free(text);
    heft_contract_destroy(c);
    tb_fini(&tb);
    heft_manifest_destroy(source);
    return back;
}

/* A shape is told once of each side, and not again as what fills the parameter. */
static void a_reshaped_tensor_is_named_once_on_each_side(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *a = contract_of_columns(3);
    heft_contract_t *b = contract_of_columns(5);
    heft_drift_t *drift = NULL;
    EXPECT_STATUS(heft_contract_compare(a, b, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 2);
    assert_string_equal(heft_drift_get(drift, 0)->text,
                        "destination rank 0: reshaped \"w\": was BF16 [4, 3], is BF16 [4, 5]");
    assert_string_equal(heft_drift_get(drift, 1)->text,
                        "source: reshaped \"w\": was BF16 [4, 3], is BF16 [4, 5]");
    heft_drift_destroy(drift);
    heft_contract_destroy(a);
    heft_contract_destroy(b);
}

static void attributes_and_ranks_drift(void **state)
{
    (void)state;
    fixture_t f;
    fixture_t g;
    heft_drift_t *drift = NULL;
    open_fixture(&f, false);
    open_fixture(&g, false);
    heft_contract_t *a = make(&f);
    g.attrs[0].value = "cpu";
    heft_contract_t *b = make(&g);
    assert_string_equal(only_text(a, b, &drift),
                        "loader attribute \"platform\": was \"cuda\", is \"cpu\"");
    heft_drift_destroy(drift);
    heft_contract_destroy(b);
    g.attrs[0].value = "cuda";
    g.opts.first_rank = 2;
    b = make(&g);
    assert_string_equal(only_text(a, b, &drift), "ranks: were all from 0 on, are all from 2 on");
    heft_drift_destroy(drift);
    heft_contract_destroy(b);
    heft_contract_destroy(a);
    close_fixture(&f);
    close_fixture(&g);
}

/* The same loader, whose temporaries and writes stand otherwise. */
static void two_traces_of_one_loader_are_one_contract(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_t g;
    heft_drift_t *drift = NULL;
    open_fixture(&f, false);
    open_fixture(&g, false);
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t k = tb_source(&tb, "k", HEFT_DTYPE_BF16, TB_SHAPE(2, 3));
    uint32_t q = tb_source(&tb, "q", HEFT_DTYPE_BF16, TB_SHAPE(4, 3));
    uint32_t qkv = tb_param(&tb, "qkv", HEFT_DTYPE_BF16, TB_SHAPE(4, 3));
    heft_view_t all = tb_all(&tb, qkv);
    tb_fill(&tb, all, 0);
    tb_copy(&tb, tb_narrow(all, 0, 2, 1), tb_narrow(tb_all(&tb, k), 0, 0, 1));
    tb_copy(&tb, tb_narrow(all, 0, 0, 2), tb_narrow(tb_all(&tb, q), 0, 0, 2));
    g.tapes[0] = tb.tape;
    heft_contract_t *a = make(&f);
    heft_contract_t *b = make(&g);
    assert_string_equal(heft_contract_get_digest(a), heft_contract_get_digest(b));
    EXPECT_STATUS(heft_contract_compare(a, b, &drift, &err), HEFT_OK);
    assert_int_equal(heft_drift_get_n(drift), 0);
    heft_drift_destroy(drift);
    heft_contract_destroy(a);
    heft_contract_destroy(b);
    tb_fini(&tb);
    close_fixture(&f);
    close_fixture(&g);
}

/* ---- no memory ---- */

static heft_status_t whole_life(const fixture_t *f, const heft_contract_t *other, heft_error_t *err)
{
    heft_contract_t *c = NULL;
    heft_contract_t *back = NULL;
    heft_drift_t *drift = NULL;
    heft_drift_t *again = NULL;
    char *text = NULL;
    heft_status_t status = heft_contract_create(f->source, &f->opts, &c, NULL, err);
    status = status == HEFT_OK ? heft_contract_encode(c, &text, err) : status;
    status = status == HEFT_OK ? heft_contract_decode(text, strlen(text), &back, err) : status;
    status = status == HEFT_OK ? heft_contract_compare(back, other, &drift, err) : status;
    status = status == HEFT_OK ? heft_contract_check(back, &again, NULL, err) : status;
    heft_drift_destroy(drift);
    heft_drift_destroy(again);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(c);
    return status;
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    fixture_t f;
    fixture_t g;
    open_fixture(&f, false);
    open_fixture(&g, true);
    heft_contract_t *other = make(&g);
    f.opts.n_destinations = 0;
    f.opts.n_exceptions = 1;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = whole_life(&f, other, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 200);
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_contract_destroy(other);
    close_fixture(&f);
    close_fixture(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaders_contract_is_read_as_it_was_written),
        cmocka_unit_test(the_plan_of_a_contract_is_that_of_its_tapes),
        cmocka_unit_test(equal_tapes_of_ranks_are_kept_once),
        cmocka_unit_test(parts_and_groups_are_kept),
        cmocka_unit_test(destinations_are_made_where_none_are_given),
        cmocka_unit_test(one_rank_of_several_is_a_contract_too),
        cmocka_unit_test(contracts_of_ranks_become_one),
        cmocka_unit_test(what_no_rank_uses_is_found_when_they_are_merged),
        cmocka_unit_test(names_that_no_loader_reads_or_writes_are_refused),
        cmocka_unit_test(a_tape_that_does_not_fit_the_manifests_is_refused),
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
        cmocka_unit_test(flaws_in_a_loaders_contract_are_named),
        cmocka_unit_test(the_first_range_that_is_filled_otherwise_is_named),
        cmocka_unit_test(a_part_that_is_no_longer_written_is_named),
        cmocka_unit_test(a_reshaped_tensor_is_named_once_on_each_side),
        cmocka_unit_test(attributes_and_ranks_drift),
        cmocka_unit_test(two_traces_of_one_loader_are_one_contract),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
