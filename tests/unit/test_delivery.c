/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends what of one rank's staging, where two sources hold the tensors: "a" by rows, which the
 * engine's loader is given, and "c" by columns, which is copied to "r".
 */
#include "heft_test.h"

#include "plan/plan.h"
#include "sync/delivery.h"
#include "sync/holders.h"
#include "tape_builder.h"

enum { ROWS = 10, COLUMNS = 4, WIDTH = 6, HEIGHT = 8 };

static heft_manifest_t *half(uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    const heft_part_t a = { .shape = { .rank = 2, .extent = { ROWS, COLUMNS } },
                            .begin = { rank * 6 } };
    const heft_part_t c = { .shape = { .rank = 2, .extent = { HEIGHT, WIDTH } },
                            .begin = { 0, rank * 4 } };
    const heft_shape_t a_shape = { .rank = 2, .extent = { rank == 0 ? 6 : 4, COLUMNS } };
    const heft_shape_t c_shape = { .rank = 2, .extent = { HEIGHT, rank == 0 ? 4 : 2 } };
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "a", HEFT_DTYPE_U8, &a_shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "c", HEFT_DTYPE_U8, &c_shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(m, "a", &a, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(m, "c", &c, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

typedef struct env {
    heft__source_t list[2];
    heft_manifest_t *manifests[2];
    heft__sources_t sources;
    heft_plan_t *plan;
} env_t;

static heft_tape_t *make_tape(const heft__sources_t *sources)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    heft_tape_t *placed = NULL;
    tb_init(&tb);
    const uint32_t a = tb_source(&tb, "a", HEFT_DTYPE_U8, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t c = tb_source(&tb, "c", HEFT_DTYPE_U8, TB_SHAPE(HEIGHT, WIDTH));
    const uint32_t t = tb_temp(&tb, HEFT_DTYPE_U8, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_U8, TB_SHAPE(ROWS, COLUMNS));
    const uint32_t r = tb_param(&tb, "r", HEFT_DTYPE_U8, TB_SHAPE(HEIGHT, WIDTH));
    const heft_view_t out = tb_all(&tb, t);
    const heft_view_t in = tb_all(&tb, a);
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "sort", &out, 1, &in, 1, "", &err), HEFT_OK);
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    tb_copy(&tb, tb_all(&tb, r), tb_all(&tb, c));
    EXPECT_STATUS(heft_placement_apply(sources->placement, tb.tape, &placed, &err), HEFT_OK);
    return placed; /* the other one was taken */
}

static void start(env_t *e)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    *e = (env_t){ .list = { { .rank = 0 }, { .rank = 1 } }, .manifests = { half(0), half(1) } };
    const heft_placement_source_t holders[] = { { .manifest = e->manifests[0] },
                                                { .manifest = e->manifests[1] } };
    e->sources = (heft__sources_t){ .n = 2, .sources = e->list, .manifests = e->manifests };
    EXPECT_STATUS(heft_placement_from_sources(holders, 2, NULL, &e->sources.placement,
                                              &e->sources.whole, NULL, &err),
                  HEFT_OK);
    heft_tape_t *tape = make_tape(&e->sources);
    const heft_tape_t *const tapes[1] = { tape };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &e->plan, NULL, &err), HEFT_OK);
    heft_tape_destroy(tape);
}

static void stop(env_t *e)
{
    heft_plan_destroy(e->plan);
    heft_placement_destroy(e->sources.placement);
    heft_manifest_destroy(e->sources.whole);
    heft_manifest_destroy(e->manifests[0]);
    heft_manifest_destroy(e->manifests[1]);
}

/* All that a rank's end of it makes. */
typedef struct end {
    heft__inputs_t inputs;
    heft__staging_t layout;
    heft_routes_t *routes;
    heft__delivery_t delivery;
    heft__packing_t packing;
} end_t;

static void end_fini(end_t *end)
{
    heft__packing_fini(&end->packing);
    heft_routes_destroy(end->routes);
    heft__staging_fini(&end->layout);
    heft__inputs_fini(&end->inputs);
}

static heft_status_t end_init(const env_t *e, uint32_t sender, end_t *end, heft_error_t *err)
{
    *end = (end_t){ .routes = NULL };
    heft__gathered_t gathered = { .n_ops = 0 };
    heft_status_t status =
        heft__inputs_init(e->plan, 0, &e->sources, &gathered, HEFT__ALL_SOURCES, &end->inputs, err);
    if (status == HEFT_OK) {
        status = heft__staging_init_plan(e->plan, 0, &end->inputs, &end->layout, err);
    }
    if (status == HEFT_OK) {
        status = heft__delivery_route(e->plan, &e->sources, &end->inputs, false, &end->routes, err);
    }
    if (status == HEFT_OK) {
        end->delivery = (heft__delivery_t){ .routes = end->routes,
                                            .inputs = &end->inputs,
                                            .layout = &end->layout,
                                            .plan = e->plan,
                                            .n_sources = e->sources.n };
        status = heft__packing_init(&end->delivery, 0, end->layout.n_entries, sender, &end->packing,
                                    err);
    }
    if (status != HEFT_OK) {
        end_fini(end);
    }
    return status;
}

static void both_send_parameters_and_inputs(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    end_t end;
    uint32_t n = 0;
    int64_t bytes = 0;
    int64_t pieces = 0;
    bool sends = false;
    start(&e);
    EXPECT_STATUS(end_init(&e, UINT32_MAX, &end, &err), HEFT_OK);
    assert_int_equal(end.inputs.n, 1);
    assert_string_equal(end.inputs.items[0].name, "a");
    assert_int_equal(end.inputs.items[0].n_bytes, ROWS * COLUMNS);
    assert_int_equal(end.layout.n_entries, 3); /* p, which takes no bytes, r and a */
    assert_int_equal(end.layout.sizes[0], 0);
    (void)heft__delivery_get_senders(&end.delivery, &n);
    assert_int_equal(n, 2);
    assert_int_equal(heft__delivery_find_sender(&end.delivery, 1), 1);
    assert_int_equal(heft__delivery_find_sender(&end.delivery, 2), UINT32_MAX);
    heft__delivery_count(&end.delivery, 0, &bytes, &pieces);
    assert_int_equal(bytes, HEIGHT * 4 + 6 * COLUMNS);
    heft__delivery_count(&end.delivery, 1, &bytes, &pieces);
    assert_int_equal(bytes, HEIGHT * 2 + 4 * COLUMNS);
    assert_int_equal(heft__delivery_count_part(&end.delivery, 0, 1, 0, &sends), 0); /* p */
    assert_false(sends);
    assert_int_equal(heft__delivery_count_part(&end.delivery, 1, 2, 1, &sends), 2);
    assert_true(sends);
    assert_int_equal(end.packing.expect.n_senders, 2);
    assert_int_equal(end.packing.expect.n_routes, 3 + 4); /* r and a by both */
    assert_int_equal(end.packing.expect.n_packed, 4);
    static const char *const names[] = { "p", "r", "a", "r", "r", "a", "a" };
    for (uint32_t route = 0; route < end.packing.expect.n_routes; route++) {
        assert_string_equal(end.packing.expect.name_of(end.packing.expect.name_arg, route),
                            names[route]);
    }
    end_fini(&end);
    stop(&e);
}

/* What both ends make of the routes puts every byte where it was. */
static void packed_routes_are_unpacked_to_their_places(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    end_t ends[3];
    uint8_t from[1024];
    uint8_t to[1024] = { 0 };
    uint8_t packed[5];
    start(&e);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_STATUS(end_init(&e, i < 2 ? i : UINT32_MAX, &ends[i], &err), HEFT_OK);
    }
    assert_true(ends[2].layout.bytes <= (int64_t)sizeof from);
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)(i * 7 + i / 256 + 1);
    }
    for (uint32_t route = 3; route < 7; route++) {
        const heft__expect_t *sender = &ends[(route - 3) % 2].packing.expect;
        const heft__expect_t *receiver = &ends[2].packing.expect;
        for (int64_t at = 0; at < sender->routes[route].bytes; at += 5) { /* any cut will do */
            const int64_t n = heft__min_i64(5, sender->routes[route].bytes - at);
            EXPECT_STATUS(sender->pack(sender->pack_arg, route, from, at, packed, n, &err),
                          HEFT_OK);
            EXPECT_STATUS(receiver->unpack(receiver->pack_arg, route, to, at, packed, n, &err),
                          HEFT_OK);
        }
    }
    for (uint32_t i = 1; i < 3; i++) {
        assert_memory_equal(to + ends[2].layout.offsets[i], from + ends[2].layout.offsets[i],
                            (size_t)ends[2].layout.sizes[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        end_fini(&ends[i]);
    }
    stop(&e);
}

static void holders_are_found_by_name(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    heft__holder_t *holders = NULL;
    heft_plan_info_t info;
    bool chosen[2];
    bool needed = false;
    char label[HEFT__SOURCE_LABEL_SIZE];
    start(&e);
    heft_plan_query(e.plan, &info);
    assert_int_equal(info.n_sources, 4);
    EXPECT_STATUS(heft__holders_create(e.plan, &e.sources, &holders, &err), HEFT_OK);
    for (uint32_t s = 0; s < 4; s++) { /* rank-0.a, rank-0.c, rank-1.a, rank-1.c */
        assert_int_equal(holders[s].sender, s / 2);
        assert_int_equal(holders[s].entry, s % 2);
        assert_int_equal(holders[s].tensor, s % 2);
    }
    heft__free(holders);
    for (uint32_t r = 0; r < 2; r++) {
        EXPECT_STATUS(heft__holders_mark_chosen(&e.sources, r, chosen, &err), HEFT_OK);
        assert_true(chosen[0] && chosen[1]);
        EXPECT_STATUS(heft__holders_is_needed(&e.sources, r, &needed, &err), HEFT_OK);
        assert_true(needed);
    }
    heft__source_label(&e.sources, 1, label);
    assert_string_equal(label, "source 0.1");
    stop(&e);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e;
    end_t end;
    start(&e);
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft__alloc_fail_at(k);
        const heft_status_t status = end_init(&e, 0, &end, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            assert_true(k > 20);
            end_fini(&end);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_int_equal(heft__alloc_live(), live);
    stop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_send_parameters_and_inputs),
        cmocka_unit_test(packed_routes_are_unpacked_to_their_places),
        cmocka_unit_test(holders_are_found_by_name),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
