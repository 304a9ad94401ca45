/* SPDX-License-Identifier: Apache-2.0 */
/* Routes: who sends what to whom, where it lies, what needs two senders and is refused. */
#include "plan_fixture.h"

#include "heft/routes.h"

/* Rows of w are of senders 0, 1 and 3; b is sender 1's. The parameter p is w with b below; q is w
 * turned, with four columns of zeros. */
static void write_rows(fx_t *fx)
{
    heft_view_t p = fx_param(fx, "p", "7,4");
    heft_view_t q = fx_param(fx, "q", "4,10");
    heft_view_t w0 = fx_source(fx, "rank-0.w", "3,4");
    heft_view_t w1 = fx_source(fx, "rank-1.w", "2,4");
    heft_view_t w3 = fx_source(fx, "rank-3.w", "1,4");
    heft_view_t b = fx_source(fx, "rank-1.b", "1,4");
    fx_copy(fx, fx_narrow(p, 0, 0, 3), w0, "");
    fx_copy(fx, fx_narrow(p, 0, 3, 5), w1, "");
    fx_copy(fx, fx_narrow(p, 0, 5, 6), w3, "");
    fx_copy(fx, fx_narrow(p, 0, 6, 7), b, "");
    fx_copy(fx, fx_narrow(q, 1, 0, 3), fx_transpose(w0, 0, 1), "");
    fx_copy(fx, fx_narrow(q, 1, 3, 5), fx_transpose(w1, 0, 1), "");
    fx_copy(fx, fx_narrow(q, 1, 5, 6), fx_transpose(w3, 0, 1), "");
    fx_fill(fx, fx_narrow(q, 1, 6, 10), 0, "");
}

static heft_routes_t *make(const fx_t *fx, uint32_t n_senders)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    EXPECT_STATUS(heft_routes_create(fx->plan, NULL, n_senders, NULL, &routes, &err), HEFT_OK);
    return routes;
}

static void expect_list(const uint32_t *list, const uint32_t *n, const char *expected)
{
    char text[64] = "";
    for (uint32_t i = 0; i < *n; i++) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), i > 0 ? " %u" : "%u",
                       list[i]);
    }
    assert_string_equal(text, expected);
}

static void senders_have_what_they_write(void **state)
{
    (void)state;
    fx_t fx;
    uint32_t n = 0;
    heft_route_info_t info;
    fx_init(&fx);
    write_rows(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    heft_routes_t *routes = make(&fx, 5);
    assert_int_equal(heft_routes_get_n_senders(routes), 5);
    assert_int_equal(heft_routes_get_n_ranks(routes), 1);
    expect_list(heft_routes_get_senders(routes, 0, &n), &n, "0 1 3");
    expect_list(heft_routes_get_param_senders(routes, 0, 1, &n), &n, "0 1 3");
    expect_list(heft_routes_get_params(routes, 3, 0, &n), &n, "0 1");
    expect_list(heft_routes_get_params(routes, 2, 0, &n), &n, "");
    heft_routes_query(routes, 0, 0, &info);
    assert_int_equal(info.n_params, 2);
    assert_int_equal(info.n_bytes, (12 + 12 + 16) * 2);
    assert_int_equal(info.n_pieces, 3);
    assert_int_equal(strlen(info.digest), 64);
    heft_routes_query_param(routes, 1, 0, 0, &info);
    assert_int_equal(info.n_params, 1);
    assert_int_equal(info.n_bytes, 12 * 2); /* two rows and one */
    assert_int_equal(info.n_runs, 2);
    heft_routes_query_param(routes, 0, 0, 1, &info); /* columns 0..3 and the zeros */
    assert_int_equal(info.n_runs, 8);
    assert_int_equal(info.n_regions, 2);
    heft_routes_query(routes, 2, 0, &info);
    assert_int_equal(info.n_params, 0);
    assert_int_equal(info.n_bytes, 0);
    assert_null(info.digest);
    heft_routes_query(routes, 0, 1, &info);
    assert_int_equal(info.n_bytes, 0);
    heft_routes_query_param(routes, 0, 0, 2, &info);
    assert_int_equal(info.n_bytes, 0);
    heft_routes_destroy(routes);
    heft_routes_destroy(NULL);
    fx_fini(&fx);
}

static void expect_regions(const heft_routes_t *routes, uint32_t sender, uint32_t param,
                           const char *expected)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_route_region_t *regions = NULL;
    uint32_t n = 0;
    char text[256] = "";
    EXPECT_STATUS(heft_routes_make_regions(routes, sender, 0, param, &regions, &n, &err), HEFT_OK);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = strlen(text);
        at += (size_t)snprintf(text + at, sizeof text - at, i > 0 ? " %lld+%lld" : "%lld+%lld",
                               (long long)regions[i].offset, (long long)regions[i].run_bytes);
        for (int k = 0; k < regions[i].n_loops; k++) {
            at +=
                (size_t)snprintf(text + at, sizeof text - at, "x%lld/%lld",
                                 (long long)regions[i].extent[k], (long long)regions[i].stride[k]);
        }
    }
    assert_string_equal(text, expected);
    heft_route_regions_free(regions);
}

static void neighbouring_pieces_are_one_region(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    write_rows(&fx);
    heft_view_t r = fx_param(&fx, "r", "6,8");
    heft_view_t s = fx_param(&fx, "s", "8,4");
    heft_view_t x = fx_source(&fx, "rank-0.x", "6,2");
    heft_view_t y = fx_source(&fx, "rank-0.y", "6,2");
    heft_view_t z = fx_source(&fx, "rank-2.z", "6,4");
    heft_view_t e = fx_source(&fx, "rank-2.e", "4,4");
    heft_view_t f = fx_source(&fx, "rank-1.f", "4,4");
    fx_copy(&fx, fx_narrow(fx_narrow(r, 1, 0, 2), 0, 0, 4), fx_narrow(x, 0, 0, 4), "");
    fx_copy(&fx, fx_narrow(fx_narrow(r, 1, 0, 2), 0, 4, 6), fx_narrow(x, 0, 4, 6), "");
    fx_copy(&fx, fx_narrow(r, 1, 2, 4), y, "");
    fx_copy(&fx, fx_narrow(r, 1, 4, 8), z, "");
    for (int i = 0; i < 4; i++) { /* rows in turn */
        fx_copy(&fx, fx_select(s, 0, 2 * i), fx_select(e, 0, i), "");
        fx_copy(&fx, fx_select(s, 0, 2 * i + 1), fx_select(f, 0, i), "");
    }
    (void)fx_plan(&fx, HEFT_OK);
    heft_routes_t *routes = make(&fx, 4);
    expect_regions(routes, 0, 2, "0+8x6/16");
    expect_regions(routes, 2, 2, "8+8x6/16");
    expect_regions(routes, 2, 3, "0+8x4/16");
    expect_regions(routes, 1, 3, "8+8x4/16");
    expect_regions(routes, 0, 0, "0+24");
    expect_regions(routes, 1, 0, "24+16 48+8");
    expect_regions(routes, 3, 1, "10+2x4/20");
    expect_regions(routes, 3, 3, "");
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

/* ---- constants ---- */

static void constants_have_one_sender(void **state)
{
    (void)state;
    fx_t fx;
    uint32_t n = 0;
    fx_init(&fx);
    fx_fill(&fx, fx_param(&fx, "only", "4"), 1, "");
    heft_view_t p = fx_param(&fx, "some", "8");
    fx_copy(&fx, fx_narrow(p, 0, 0, 2), fx_source(&fx, "rank-4.a", "2"), "");
    fx_copy(&fx, fx_narrow(p, 0, 2, 4), fx_source(&fx, "rank-3.b", "2"), "");
    fx_fill(&fx, fx_narrow(p, 0, 4, 8), 0, "");
    fx_next(&fx);
    fx_fill(&fx, fx_param(&fx, "only", "4"), 1, "");
    (void)fx_plan(&fx, HEFT_OK);
    heft_routes_t *routes = make(&fx, 5);
    expect_list(heft_routes_get_param_senders(routes, 0, 0, &n), &n, "3");
    expect_regions(routes, 3, 1, "4+12");
    expect_regions(routes, 4, 1, "0+4");
    expect_list(heft_routes_get_senders(routes, 1, &n), &n, "0"); /* nobody sends anything else */
    heft_routes_destroy(routes);
    /* what a loader is given counts */
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_route_load_t loads[] = { { .rank_index = 1, .sender = 2, .n_bytes = 100 },
                                        { .rank_index = 1, .sender = 2, .n_bytes = 11 },
                                        { .rank_index = 0, .sender = 1, .n_bytes = 7 } };
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.loads = loads;
    opts.n_loads = 3;
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 5, &opts, &routes, &err), HEFT_OK);
    expect_list(heft_routes_get_senders(routes, 0, &n), &n, "1 3 4");
    expect_list(heft_routes_get_senders(routes, 1, &n), &n, "2");
    expect_list(heft_routes_get_param_senders(routes, 0, 0, &n), &n, "3");
    heft_route_info_t info;
    heft_routes_query(routes, 2, 1, &info);
    assert_int_equal(info.n_load_bytes, 111);
    assert_int_equal(info.n_bytes, 8);
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

/* ---- refusals ---- */

static void refuse(const fx_t *fx, const char *const *names, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.names = names;
    EXPECT_STATUS(heft_routes_create(fx->plan, NULL, 3, &opts, &routes, &err),
                  HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE(part);
    assert_null(routes);
}

static void multiply(fx_t *fx, heft_view_t dst, heft_view_t a, heft_view_t b)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_view_t srcs[2] = { a, b };
    const heft_op_t ops[3] = { { .code = HEFT_OP_LOAD, .arg = 0 },
                               { .code = HEFT_OP_LOAD, .arg = 1 },
                               { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_BF16 } };
    EXPECT_STATUS(heft_tape_map(fx->tape, &dst, srcs, 2, ops, 3, "", &err), HEFT_OK);
}

static void an_element_of_two_senders_is_refused(void **state)
{
    (void)state;
    static const char *const names[3] = { "trainer-0", NULL, "trainer-2" };
    fx_t fx;
    fx_init(&fx);
    heft_view_t w = fx_source(&fx, "rank-0.w", "4");
    heft_view_t s = fx_source(&fx, "rank-2.s", "4");
    heft_view_t t = fx_source(&fx, "rank-0.t", "4");
    multiply(&fx, fx_param(&fx, "p", "4"), w, t);
    multiply(&fx, fx_param(&fx, "q", "4"), w, s);
    (void)fx_plan(&fx, HEFT_OK);
    refuse(&fx, NULL,
           "parameter \"q\": one element needs \"rank-0.w\" of sender 0 with \"rank-2.s\" of "
           "sender 2");
    refuse(&fx, names, "\"rank-0.w\" of trainer-0 with \"rank-2.s\" of trainer-2");
    multiply(&fx, fx_param(&fx, "r", "4"), s, w);
    multiply(&fx, fx_param(&fx, "s", "4"), s, t);
    (void)fx_plan(&fx, HEFT_OK);
    refuse(&fx, NULL, "parameter \"q\"");
    refuse(&fx, NULL, ", and 2 more parameters");
    fx_fini(&fx);
}

static void a_check_of_two_senders_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    uint32_t n = 0;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "8");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), fx_source(&fx, "rank-0.lost", "4"), "");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), fx_source(&fx, "rank-0.kept", "4"), "");
    fx_copy(&fx, fx_narrow(p, 0, 4, 8), fx_source(&fx, "rank-1.other", "4"), "");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "tied");
    (void)fx_plan(&fx, HEFT_OK);
    heft_routes_t *routes = make(&fx, 3);
    expect_list(heft_routes_get_param_senders(routes, 0, 0, &n), &n, "0 1");
    heft_routes_destroy(routes);
    fx_copy(&fx, fx_narrow(p, 0, 2, 4), fx_source(&fx, "rank-1.half", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    refuse(&fx, NULL, "parameter \"p\": what sender 1 writes is to be equal to \"rank-0.");
    fx_fini(&fx);
}

static heft_view_t block(fx_t *fx)
{
    return fx_buffer(fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "4,4");
}

/* The parameters w and s of a block. */
static void quantise(fx_t *fx, heft_view_t t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t dsts[2] = { fx_buffer(fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "4,4"),
                            fx_buffer(fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, "1,1") };
    EXPECT_STATUS(heft_tape_opaque(fx->tape, "heft.fp8_quantise/1(block=4x4,scale=deepgemm)", dsts,
                                   2, &t, 1, "q:1", &err),
                  HEFT_OK);
    fx_copy(fx, fx_buffer(fx, HEFT_BUFFER_PARAM, "w", HEFT_DTYPE_F8_E4M3, "4,4"), dsts[0], "");
    fx_copy(fx, fx_buffer(fx, HEFT_BUFFER_PARAM, "s", HEFT_DTYPE_F32, "1,1"), dsts[1], "");
}

static void quantise_rows(fx_t *fx)
{
    const heft_view_t t = block(fx);
    fx_copy(fx, fx_narrow(t, 0, 0, 3), fx_source(fx, "rank-0.v", "3,4"), "");
    fx_copy(fx, fx_narrow(t, 0, 3, 4), fx_source(fx, "rank-1.v", "1,4"), "");
    quantise(fx, t);
    (void)fx_plan(fx, HEFT_OK);
}

static void a_kernel_of_two_senders_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    quantise_rows(&fx);
    refuse(&fx, NULL, "parameter \"s\": heft.fp8_quantise");
    refuse(&fx, NULL, "needs \"rank-0.v\" of sender 0 with \"rank-1.v\" of sender 1");
    fx_fini(&fx);
}

static void a_kernel_of_two_senders_can_be_the_receivers(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    heft_route_info_t info;
    uint32_t n = 0;
    fx_t fx;
    opts.gathers = 1;
    fx_init(&fx);
    quantise_rows(&fx);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 3, &opts, &routes, &err), HEFT_OK);
    assert_int_equal(heft_routes_get_piece_sender(routes, 0, 0), HEFT_SENDER_NONE);
    assert_int_equal(heft_routes_get_piece_sender(routes, 0, 1), HEFT_SENDER_NONE);
    expect_list(heft_routes_get_param_senders(routes, 0, 0, &n), &n, "");
    expect_list(heft_routes_get_senders(routes, 0, &n), &n, "0 1"); /* of its inputs */
    heft_routes_query(routes, 0, 0, &info);
    assert_int_equal(info.n_bytes, 0);
    assert_int_equal(info.n_load_bytes, 3 * 4 * 2);
    heft_routes_query(routes, 1, 0, &info);
    assert_int_equal(info.n_load_bytes, 4 * 2);
    heft_routes_destroy(routes);
    fx_fini(&fx);

    fx_init(&fx); /* an element of its input that nobody can send is no use to it */
    const heft_view_t t = block(&fx);
    multiply(&fx, t, fx_source(&fx, "rank-0.w", "4,4"), fx_source(&fx, "rank-1.w", "4,4"));
    quantise(&fx, t);
    (void)fx_plan(&fx, HEFT_OK);
    routes = NULL;
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 3, &opts, &routes, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("parameter \"s\": heft.fp8_quantise/1 needs \"rank-0.w\" of sender 0 with");
    assert_null(routes);
    fx_fini(&fx);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *routes = NULL;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "rank-3.w", "2"), "");
    fx_copy(&fx, fx_param(&fx, "q", "2"), fx_source(&fx, "w", "2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    EXPECT_STATUS(heft_routes_create(NULL, NULL, 1, NULL, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 0, NULL, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 3, NULL, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"rank-3.w\" is of sender 3, there are 3");
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 4, NULL, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"w\" has no rank in its name");
    const uint32_t senders[2] = { 1, 2 };
    EXPECT_STATUS(heft_routes_create(fx.plan, senders, 2, NULL, &routes, &err), HEFT_ERR_ARGUMENT);
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.n_loads = 1;
    EXPECT_STATUS(heft_routes_create(fx.plan, senders, 3, &opts, &routes, &err), HEFT_ERR_ARGUMENT);
    opts.loads = &(heft_route_load_t){ .sender = 3 };
    EXPECT_STATUS(heft_routes_create(fx.plan, senders, 3, &opts, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("load 0 is of sender 3 of 3");
    assert_null(routes);
    /* one sender: names do not matter */
    EXPECT_STATUS(heft_routes_create(fx.plan, NULL, 1, NULL, &routes, &err), HEFT_OK);
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

/* ---- digests ---- */

static void digest_of(const heft_routes_t *routes, uint32_t sender, uint32_t rank, char out[65])
{
    heft_route_info_t info;
    heft_routes_query(routes, sender, rank, &info);
    assert_non_null(info.digest);
    (void)snprintf(out, 65, "%s", info.digest);
}

/* Rank 1 alone, and with a rank before it; with what sender 0 holds cut otherwise. */
static void a_route_has_one_digest(void **state)
{
    (void)state;
    char alone[65];
    char with_others[65];
    char all[65];
    fx_t fx;
    fx_init(&fx);
    write_rows(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    heft_routes_t *routes = make(&fx, 4);
    heft_routes_t *again = make(&fx, 4);
    assert_string_equal(heft_routes_get_digest(routes), heft_routes_get_digest(again));
    digest_of(routes, 1, 0, alone);
    (void)snprintf(all, sizeof all, "%s", heft_routes_get_digest(routes));
    heft_routes_destroy(again);
    again = make(&fx, 5);
    assert_string_not_equal(all, heft_routes_get_digest(again));
    heft_routes_destroy(again);
    heft_routes_destroy(routes);
    fx_fini(&fx);

    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "a", "2"), fx_source(&fx, "rank-0.a", "2"), "");
    fx_next(&fx);
    write_rows(&fx);
    (void)fx_plan(&fx, HEFT_OK);
    routes = make(&fx, 4);
    digest_of(routes, 1, 1, with_others);
    assert_string_equal(alone, with_others);
    digest_of(routes, 0, 1, with_others);
    assert_string_not_equal(alone, with_others);
    heft_routes_destroy(routes);
    fx_fini(&fx);
}

/* ---- memory ---- */

static void running_out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    write_rows(&fx);
    fx_next(&fx);
    quantise_rows(&fx);
    const heft_route_load_t load = { .sender = 2, .n_bytes = 1 };
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.loads = &load;
    opts.n_loads = 1;
    opts.gathers = 1;
    heft_status_t status = HEFT_ERR_NOMEM;
    for (long k = 0; status != HEFT_OK; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_routes_t *routes = NULL;
        heft_route_region_t *regions = NULL;
        uint32_t n = 0;
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        status = heft_routes_create(fx.plan, NULL, 4, &opts, &routes, &err);
        if (status == HEFT_OK) {
            status = heft_routes_make_regions(routes, 1, 0, 0, &regions, &n, &err);
        }
        heft__alloc_fail_at(-1);
        if (status != HEFT_OK) {
            assert_int_equal(status, HEFT_ERR_NOMEM);
            assert_null(regions);
        }
        heft_route_regions_free(regions);
        heft_routes_destroy(routes);
        assert_int_equal(heft__alloc_live(), live);
    }
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(senders_have_what_they_write),
        cmocka_unit_test(neighbouring_pieces_are_one_region),
        cmocka_unit_test(constants_have_one_sender),
        cmocka_unit_test(an_element_of_two_senders_is_refused),
        cmocka_unit_test(a_check_of_two_senders_is_refused),
        cmocka_unit_test(a_kernel_of_two_senders_is_refused),
        cmocka_unit_test(a_kernel_of_two_senders_can_be_the_receivers),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_route_has_one_digest),
        cmocka_unit_test(running_out_of_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
