/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tapes: what one sender plans alone is what the whole plan says of it, and no more. */
#include "plan_fixture.h"

#include "heft/placement.h"
#include "heft/routes.h"
#include "plan/plan.h"

enum { N_SENDERS = 3 };

typedef struct fleet {
    heft_manifest_t *manifest;
    heft_placement_t *placement;
    bool gathers;
} fleet_t;

/* Rows of w on senders 0, 1, 2; x, y and z whole on senders 2, 1 and 2. */
static void fleet_init(fleet_t *f)
{
    static const char *const names[] = { "w", "x", "y", "z" };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shard_t shards[6];
    for (uint32_t r = 0; r < N_SENDERS; r++) {
        shards[r] = (heft_shard_t){
            .tensor = "w", .rank = r, .begin = { 2 * r, 0 }, .end = { 2 * r + 2, 4 }
        };
        shards[3 + r] =
            (heft_shard_t){ .tensor = names[1 + r], .rank = r == 1 ? 1 : 2, .end = { 6, 4 } };
    }
    f->gathers = false;
    EXPECT_STATUS(heft_manifest_create("source", &f->manifest, &err), HEFT_OK);
    for (int i = 0; i < 4; i++) {
        const heft_shape_t shape = { .rank = 2, .extent = { 6, 4 } };
        EXPECT_STATUS(heft_manifest_add(f->manifest, names[i], HEFT_DTYPE_BF16, &shape, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(f->manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_placement_create(f->manifest, shards, 6, NULL, &f->placement, &err),
                  HEFT_OK);
}

static void fleet_fini(fleet_t *f)
{
    heft_placement_destroy(f->placement);
    heft_manifest_destroy(f->manifest);
}

/* fx's tapes read whole tensors; they are left as they are. */
static heft_status_t plan_part(const fx_t *fx, const fleet_t *f, uint32_t sender,
                               heft_plan_t **plan_out, heft_routes_t **routes_out,
                               heft_error_t *err)
{
    heft_tape_t *parts[FX_MAX_TAPES] = { NULL };
    heft_plan_t *plan = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.others = f->placement;
    opts.gathers = f->gathers;
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < fx->n_tapes && status == HEFT_OK; r++) {
        status = heft_placement_apply_part(f->placement, sender, fx->tapes[r], &parts[r], err);
    }
    if (status == HEFT_OK) {
        status = heft_plan_create_part((const heft_tape_t *const *)parts, fx->n_tapes, 0, &fx->opts,
                                       &plan, err);
    }
    if (status == HEFT_OK) {
        status = heft_routes_create(plan, NULL, N_SENDERS, &opts, routes_out, err);
    }
    for (uint32_t r = 0; r < fx->n_tapes; r++) {
        heft_tape_destroy(parts[r]);
    }
    if (status != HEFT_OK) {
        heft_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return HEFT_OK;
}

/* What the destination of a rank plans, which reads no more than it needs: its rank's digest. */
static void plan_read(const fx_t *fx, const fleet_t *f, uint32_t rank, char digest[65])
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = fx->opts;
    heft_tape_t *tape = NULL;
    heft_plan_t *plan = NULL;
    char *text = NULL;
    EXPECT_STATUS(heft_tape_encode(fx->tapes[rank], &text, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_decode(text, strlen(text), &tape, &err), HEFT_OK);
    EXPECT_STATUS(heft__placement_apply_read(f->placement, tape, &tape, &err), HEFT_OK);
    const heft_tape_t *const tapes[1] = { tape };
    opts.partial = 1;
    EXPECT_STATUS(heft_plan_create(tapes, 1, rank, &opts, &plan, NULL, &err), HEFT_OK);
    (void)snprintf(digest, 65, "%s", heft_plan_get_rank_digest(plan, 0));
    heft_plan_destroy(plan);
    heft_tape_destroy(tape);
    heft_string_free(text);
}

/* Of every sender and rank, and of every rank alone. Takes fx's tapes. */
static void expect_parts_of_whole(fx_t *fx, const fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plans[N_SENDERS] = { NULL };
    heft_routes_t *parts[N_SENDERS] = { NULL };
    heft_routes_t *whole = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.gathers = f->gathers;
    for (uint32_t s = 0; s < N_SENDERS; s++) {
        EXPECT_STATUS(plan_part(fx, f, s, &plans[s], &parts[s], &err), HEFT_OK);
    }
    char alone[FX_MAX_TAPES][65];
    for (uint32_t r = 0; r < fx->n_tapes; r++) {
        heft_tape_t *placed = NULL;
        plan_read(fx, f, r, alone[r]);
        EXPECT_STATUS(heft_placement_apply(f->placement, fx->tapes[r], &placed, &err), HEFT_OK);
        fx->tapes[r] = placed;
    }
    fx->opts.partial = 1;
    (void)fx_plan(fx, HEFT_OK);
    EXPECT_STATUS(heft_routes_create(fx->plan, NULL, N_SENDERS, &opts, &whole, &err), HEFT_OK);
    for (uint32_t r = 0; r < fx->n_tapes; r++) {
        assert_string_equal(alone[r], heft_plan_get_rank_digest(fx->plan, r));
    }
    for (uint32_t s = 0; s < N_SENDERS; s++) {
        for (uint32_t r = 0; r < fx->n_tapes; r++) {
            heft_route_info_t a;
            heft_route_info_t b;
            uint32_t n = 0;
            uint32_t n_part = 0;
            heft_routes_query(whole, s, r, &a);
            heft_routes_query(parts[s], s, r, &b);
            assert_int_equal(a.n_bytes, b.n_bytes);
            assert_int_equal(a.n_load_bytes, b.n_load_bytes);
            assert_string_equal(a.digest != NULL ? a.digest : "", b.digest != NULL ? b.digest : "");
            const uint32_t *params = heft_routes_get_params(whole, s, r, &n);
            const uint32_t *params_part = heft_routes_get_params(parts[s], s, r, &n_part);
            assert_int_equal(n, n_part); /* parameters keep their numbers */
            assert_true(n == 0 || memcmp(params, params_part, n * sizeof *params) == 0);
        }
        heft_routes_destroy(parts[s]);
        heft_plan_destroy(plans[s]);
    }
    heft_routes_destroy(whole);
}

static heft_view_t source(fx_t *fx, const char *name)
{
    return fx_source(fx, name, "6,4");
}

/* Fused, turned, padded, cut for two ranks; a parameter of constants alone before and behind. */
static void write_ranks(fx_t *fx)
{
    for (int r = 0; r < 2; r++) {
        if (r > 0) {
            fx_next(fx);
        }
        heft_view_t w = source(fx, "w");
        heft_view_t x = source(fx, "x");
        heft_view_t y = source(fx, "y");
        heft_view_t z = source(fx, "z");
        fx_fill(fx, fx_param(fx, "a", "3"), 7, "");
        heft_view_t b = fx_param(fx, "b", "10,4");
        fx_copy(fx, fx_narrow(b, 0, 0, 3), fx_narrow(w, 0, 3 * r, 3 * r + 3), "");
        fx_copy(fx, fx_narrow(b, 0, 3, 6), fx_narrow(x, 0, 3 * r, 3 * r + 3), "");
        fx_fill(fx, fx_narrow(b, 0, 6, 10), 0, "");
        heft_view_t c = fx_param(fx, "c", "4,8");
        fx_copy(fx, fx_narrow(c, 1, 0, 6), fx_transpose(y, 0, 1), "");
        fx_fill(fx, fx_narrow(c, 1, 6, 8), 0, "");
        if (r == 0) {
            fx_copy(fx, fx_param(fx, "d", "6,4"), z, "");
        } else {
            fx_copy(fx, fx_param(fx, "d", "2,4"), fx_narrow(w, 0, 4, 6), "");
        }
        fx_fill(fx, fx_param(fx, "e", "3"), 7, "");
    }
}

static void parts_are_those_of_the_whole(void **state)
{
    (void)state;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    write_ranks(&fx);
    expect_parts_of_whole(&fx, &f);
    fx_fini(&fx);
    fleet_fini(&f);
}

/* A kernel of rows of senders 0 and 2 is neither's, so zeros beside it are of sender 1, which
 * writes the other rows: it has to know that of a kernel of which it holds nothing. Another
 * parameter is of a kernel of all three, and zeros: these are of the first sender of the rank. */
static void kernels_of_several_send_no_constants(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    f.gathers = true;
    fx_init(&fx);
    heft_view_t w = source(&fx, "w");
    heft_view_t y = source(&fx, "y");
    for (int k = 0; k < 2; k++) {
        const char *shape = k == 0 ? "4,4" : "6,4";
        heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, shape);
        heft_view_t out[2] = { fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, shape),
                               fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, "1,1") };
        heft_view_t p =
            fx_buffer(&fx, HEFT_BUFFER_PARAM, k == 0 ? "p" : "q", HEFT_DTYPE_F8_E4M3, "7,4");
        if (k == 0) {
            fx_copy(&fx, fx_narrow(t, 0, 0, 2), fx_narrow(w, 0, 0, 2), "");
            fx_copy(&fx, fx_narrow(t, 0, 2, 4), fx_narrow(w, 0, 4, 6), "");
            fx_copy(&fx, fx_narrow(p, 0, 4, 6), fx_narrow(y, 0, 0, 2), "");
        } else {
            fx_copy(&fx, t, w, "");
        }
        EXPECT_STATUS(heft_tape_opaque(fx.tape,
                                       k == 0 ? "heft.fp8_quantise/1(block=4x4,scale=deepseek)"
                                              : "heft.fp8_quantise/1(block=6x4,scale=deepseek)",
                                       out, 2, &t, 1, "q:1", &err),
                      HEFT_OK);
        fx_copy(&fx, fx_narrow(p, 0, 0, k == 0 ? 4 : 6), out[0], "");
        fx_fill(&fx, fx_narrow(p, 0, 6, 7), 0, "");
        fx_copy(&fx, fx_buffer(&fx, HEFT_BUFFER_PARAM, k == 0 ? "r" : "s", HEFT_DTYPE_F32, "1,1"),
                out[1], "");
    }
    expect_parts_of_whole(&fx, &f);
    fx_fini(&fx);
    fleet_fini(&f);
}

/* Nobody sends the first parameter, so the constants of the second one are of who sends the third.
 */
static void the_first_who_sends_is_found_behind_kernels(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    f.gathers = true;
    fx_init(&fx);
    heft_view_t w = source(&fx, "w");
    heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "4,4");
    heft_view_t out[2] = { fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F8_E4M3, "4,4"),
                           fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, "1,1") };
    fx_copy(&fx, fx_narrow(t, 0, 0, 2), fx_narrow(w, 0, 0, 2), "");
    fx_copy(&fx, fx_narrow(t, 0, 2, 4), fx_narrow(w, 0, 4, 6), "");
    EXPECT_STATUS(heft_tape_opaque(fx.tape, "heft.fp8_quantise/1(block=4x4,scale=deepseek)", out, 2,
                                   &t, 1, "q:1", &err),
                  HEFT_OK);
    fx_copy(&fx, fx_buffer(&fx, HEFT_BUFFER_PARAM, "a", HEFT_DTYPE_F8_E4M3, "4,4"), out[0], "");
    fx_fill(&fx, fx_param(&fx, "b", "3"), 7, "");
    fx_copy(&fx, fx_param(&fx, "c", "6,4"), source(&fx, "y"), "");
    expect_parts_of_whole(&fx, &f);
    fx_fini(&fx);
    fleet_fini(&f);
}

/* The second rank holds nothing but the padding of a tensor that one sender holds: it is the work
 * of the lowest sender of another parameter. */
static void a_rank_of_padding_alone_has_the_sender_of_the_whole(void **state)
{
    static const char *const names[][2] = { { "a", "m" }, { "m", "a" } };
    (void)state;
    for (int k = 0; k < 2; k++) {
        fleet_t f;
        fx_t fx;
        fleet_init(&f);
        fx_init(&fx);
        for (int r = 0; r < 2; r++) {
            if (r > 0) {
                fx_next(&fx);
            }
            heft_view_t t = fx_buffer(&fx, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_BF16, "12,4");
            fx_copy(&fx, fx_narrow(t, 0, 0, 6), source(&fx, "z"), "");
            fx_fill(&fx, fx_narrow(t, 0, 6, 12), 0, "");
            fx_copy(&fx, fx_param(&fx, names[k][0], "6,4"), fx_narrow(t, 0, 6 * r, 6 * r + 6), "");
            fx_copy(&fx, fx_param(&fx, names[k][1], "6,4"), source(&fx, "w"), "");
        }
        expect_parts_of_whole(&fx, &f);
        fx_fini(&fx);
        fleet_fini(&f);
    }
}

static void a_part_leaves_out_what_is_of_others(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "6,4"), source(&fx, "w"), "");
    fx_copy(&fx, fx_param(&fx, "q", "6,4"), source(&fx, "x"), "");
    fx_copy(&fx, fx_param(&fx, "r", "6,4"), source(&fx, "y"), "");
    EXPECT_STATUS(plan_part(&fx, &f, 0, &plan, &routes, &err), HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    assert_int_equal(info.n_sources, 2); /* its rows, and one stand-in for all the others' */
    assert_int_equal(info.n_pieces, 2);
    assert_int_equal(info.n_groups, 0);
    assert_int_equal(heft_plan_get_n_params(plan, 0), 3);
    heft_tensor_info_t tensor;
    EXPECT_STATUS(heft_plan_query_source(plan, 1, &tensor, &err), HEFT_OK);
    assert_string_equal(tensor.name, "rank-3.w");
    assert_int_equal(heft_routes_get_piece_sender(routes, 0, 1), N_SENDERS);
    assert_int_equal(heft_plan_get_param_group(plan, 0, 0), HEFT_GROUP_NONE);
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
    fx_fini(&fx);
    fleet_fini(&f);
}

static void a_part_has_its_checks(void **state)
{
    (void)state;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "6,4");
    fx_copy(&fx, p, source(&fx, "x"), "");
    fx_copy(&fx, p, source(&fx, "z"), ""); /* both are sender 2's */
    fx_copy(&fx, fx_param(&fx, "q", "6,4"), source(&fx, "w"), "");
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "tied");
    expect_parts_of_whole(&fx, &f);
    fx_fini(&fx);
    fleet_fini(&f);
}

static void what_needs_another_sender_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "p", "6,4");
    const heft_view_t srcs[2] = { source(&fx, "x"), source(&fx, "y") };
    const heft_op_t ops[3] = { { .code = HEFT_OP_LOAD, .arg = 0 },
                               { .code = HEFT_OP_LOAD, .arg = 1 },
                               { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_BF16 } };
    EXPECT_STATUS(heft_tape_map(fx.tape, &p, srcs, 2, ops, 3, "", &err), HEFT_OK);
    EXPECT_STATUS(plan_part(&fx, &f, 0, &plan, &routes, &err), HEFT_OK); /* it has no part in it */
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
    EXPECT_STATUS(plan_part(&fx, &f, 1, &plan, &routes, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("parameter \"p\": one element needs");
    EXPECT_MESSAGE("another sender");
    fx_fini(&fx);
    fleet_fini(&f);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    heft_tape_t *part = NULL;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "6,4"), source(&fx, "w"), "");
    EXPECT_STATUS(heft_placement_apply_part(f.placement, 3, fx.tape, &part, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 3 of 3");
    EXPECT_STATUS(heft_placement_apply_part(NULL, 0, fx.tape, &part, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_plan_create_part(NULL, 1, 0, NULL, &plan, &err), HEFT_ERR_ARGUMENT);
    fx_except(&fx, HEFT_EXCEPTION_EQUAL, "p", "tied");
    fx.exceptions[0].stage = 1;
    EXPECT_STATUS(plan_part(&fx, &f, 0, &plan, &routes, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("recipe 1 of a chain");
    fx.exceptions[0].stage = 0;
    EXPECT_STATUS(plan_part(&fx, &f, 0, &plan, &routes, &err), HEFT_OK);
    heft_routes_destroy(routes);
    routes = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.others = f.placement;
    EXPECT_STATUS(heft_routes_create(plan, NULL, 4, &opts, &routes, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("4 senders, the placement has 3");
    heft_plan_destroy(plan);
    fx_copy(&fx, fx_param(&fx, "q", "6,4"), source(&fx, "unknown"), "");
    EXPECT_STATUS(heft_placement_apply_part(f.placement, 0, fx.tape, &part, &err), HEFT_ERR_NAME);
    EXPECT_MESSAGE("\"unknown\"");
    assert_null(part);
    fx_fini(&fx);
    fleet_fini(&f);
}

static void running_out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    fleet_t f;
    fx_t fx;
    fleet_init(&f);
    fx_init(&fx);
    write_ranks(&fx);
    heft_status_t status = HEFT_ERR_NOMEM;
    for (long k = 0; status != HEFT_OK; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_plan_t *plan = NULL;
        heft_routes_t *routes = NULL;
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        status = plan_part(&fx, &f, 1, &plan, &routes, &err);
        heft__alloc_fail_at(-1);
        if (status != HEFT_OK) {
            assert_int_equal(status, HEFT_ERR_NOMEM);
            assert_null(plan);
            assert_null(routes);
        }
        heft_routes_destroy(routes);
        heft_plan_destroy(plan);
        assert_int_equal(heft__alloc_live(), live);
    }
    fx_fini(&fx);
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_the_whole),
        cmocka_unit_test(kernels_of_several_send_no_constants),
        cmocka_unit_test(the_first_who_sends_is_found_behind_kernels),
        cmocka_unit_test(a_rank_of_padding_alone_has_the_sender_of_the_whole),
        cmocka_unit_test(a_part_leaves_out_what_is_of_others),
        cmocka_unit_test(a_part_has_its_checks),
        cmocka_unit_test(what_needs_another_sender_is_refused),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(running_out_of_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
