/* SPDX-License-Identifier: Apache-2.0 */
/* Folding element-wise programs, updates in place, and opaque writes. */
#include "heft_test.h"
#include "tape_builder.h"

#define BF16 HEFT_DTYPE_BF16
#define F32 HEFT_DTYPE_F32

#define LOAD(i)                          \
    {                                    \
        .code = HEFT_OP_LOAD, .arg = (i) \
    }
#define CAST(d)                            \
    {                                      \
        .code = HEFT_OP_CAST, .dtype = (d) \
    }
#define ADD(d, x)                                         \
    {                                                     \
        .code = HEFT_OP_ADD_IMM, .dtype = (d), .imm = (x) \
    }
#define SCALE(d, x)                                       \
    {                                                     \
        .code = HEFT_OP_MUL_IMM, .dtype = (d), .imm = (x) \
    }
#define NEG_EXP(d)                            \
    {                                         \
        .code = HEFT_OP_NEG_EXP, .dtype = (d) \
    }
#define MUL(d)                            \
    {                                     \
        .code = HEFT_OP_MUL, .dtype = (d) \
    }
#define CONST(d, b)                                          \
    {                                                        \
        .code = HEFT_OP_CONST, .dtype = (d), .imm_bits = (b) \
    }

#define MAP(tb, dst, srcs, n_srcs, ...)                                                            \
    do {                                                                                           \
        const heft_op_t ops_[] = { __VA_ARGS__ };                                                  \
        heft_view_t dst_ = (dst);                                                                  \
        if (heft_tape_map((tb)->tape, &dst_, (srcs), (n_srcs), ops_, sizeof ops_ / sizeof ops_[0], \
                          "map", &(tb)->err) != HEFT_OK) {                                         \
            fail_msg("map: %s", (tb)->err.message);                                                \
        }                                                                                          \
    } while (0)

#define EXPECT_OPS(piece, ...)                                          \
    do {                                                                \
        const heft_op_t ops_[] = { __VA_ARGS__ };                       \
        assert_int_equal((piece)->n_ops, sizeof ops_ / sizeof ops_[0]); \
        assert_memory_equal((piece)->ops, ops_, sizeof ops_);           \
    } while (0)

/* ---- programs ---- */

static void a_cast_goes_through_a_concatenation(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", F32, TB_SHAPE(2, 3));
    uint32_t b = tb_source(&tb, "b", F32, TB_SHAPE(1, 3));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(3, 3));
    uint32_t u = tb_temp(&tb, BF16, TB_SHAPE(3, 3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 3));
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 0, 2), tb_all(&tb, a));
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 2, 1), tb_all(&tb, b));
    tb_copy(&tb, tb_all(&tb, u), tb_all(&tb, t));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, u));
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 2);
    const heft__fold_piece_t *one = tb_piece(&tb, p, 0);
    const heft__fold_piece_t *two = tb_piece(&tb, p, 1);
    EXPECT_OPS(one, LOAD(0), CAST(BF16));
    EXPECT_OPS(two, LOAD(0), CAST(BF16));
    assert_ptr_equal(one->ops, two->ops);
    assert_int_equal(one->srcs[0].buffer, a);
    assert_int_equal(one->extent[0], 6);
    assert_int_equal(two->srcs[0].buffer, b);
    assert_int_equal(two->dst_offset, 6);
    assert_int_equal(two->write, 3);
    tb_fini(&tb);
}

static void the_order_of_casts_and_sums_is_kept(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t w = tb_source(&tb, "w", BF16, TB_SHAPE(4));
    uint32_t wide = tb_temp(&tb, F32, TB_SHAPE(4));
    uint32_t sum = tb_temp(&tb, BF16, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", F32, TB_SHAPE(4));
    uint32_t q = tb_param(&tb, "q", F32, TB_SHAPE(4));
    heft_view_t src = tb_all(&tb, w);
    tb_copy(&tb, tb_all(&tb, wide), src);
    heft_view_t w32 = tb_all(&tb, wide);
    MAP(&tb, tb_all(&tb, p), &w32, 1, LOAD(0), ADD(F32, 1)); /* w.float() + 1 */
    MAP(&tb, tb_all(&tb, sum), &src, 1, LOAD(0), ADD(BF16, 1));
    tb_copy(&tb, tb_all(&tb, q), tb_all(&tb, sum)); /* (w + 1).float() */
    tb_fold(&tb);
    EXPECT_OPS(tb_piece(&tb, p, 0), LOAD(0), CAST(F32), ADD(F32, 1));
    EXPECT_OPS(tb_piece(&tb, q, 0), LOAD(0), ADD(BF16, 1), CAST(F32));
    tb_fini(&tb);
}

static void a_broadcast_block_scale_keeps_its_boxes(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t w = tb_source(&tb, "w", HEFT_DTYPE_F8_E4M3, TB_SHAPE(3, 5));
    uint32_t s = tb_source(&tb, "s", F32, TB_SHAPE(2, 3));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(2, 2, 3, 2)); /* the scale, repeated to whole blocks */
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 5));
    tb_copy(&tb, tb_all(&tb, t), tb_expand(tb_expand(tb_all(&tb, s), 1, 2), 3, 2));
    heft_view_t srcs[2] = { tb_all(&tb, w),
                            tb_narrow(tb_narrow(tb_reshape(t, TB_SHAPE(4, 6)), 0, 0, 3), 1, 0, 5) };
    MAP(&tb, tb_all(&tb, p), srcs, 2, LOAD(0), LOAD(1), MUL(F32));
    tb_fold(&tb);
    int64_t n_elems = 0;
    for (uint64_t i = 0; i < tb_n_pieces(&tb, p); i++) {
        EXPECT_OPS(tb_piece(&tb, p, i), LOAD(0), LOAD(1), MUL(F32), CAST(BF16));
        n_elems += heft__fold_piece_count(tb_piece(&tb, p, i));
    }
    assert_int_equal(n_elems, 15);
    assert_true(tb_n_pieces(&tb, p) <= 4);
    for (int64_t e = 0; e < 15; e++) {
        int64_t from_w = -1;
        int64_t from_s = -1;
        assert_non_null(tb_find(&tb, p, e, 0, &from_w));
        assert_non_null(tb_find(&tb, p, e, 1, &from_s));
        assert_int_equal(from_w, e);
        assert_int_equal(from_s, e / 5 / 2 * 3 + e % 5 / 2);
    }
    tb_fini(&tb);
}

static void equal_sources_are_shared_and_unused_ones_dropped(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", F32, TB_SHAPE(4));
    uint32_t b = tb_source(&tb, "b", F32, TB_SHAPE(4));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", F32, TB_SHAPE(4));
    uint32_t q = tb_param(&tb, "q", F32, TB_SHAPE(4));
    heft_view_t ab[2] = { tb_all(&tb, a), tb_all(&tb, b) };
    MAP(&tb, tb_all(&tb, t), ab, 2, LOAD(0), LOAD(1), MUL(F32));
    heft_view_t ta[3] = { tb_all(&tb, a), tb_all(&tb, t), tb_all(&tb, b) };
    MAP(&tb, tb_all(&tb, p), ta, 3, LOAD(1), LOAD(0), MUL(F32)); /* (a * b) * a; b not used */
    MAP(&tb, tb_all(&tb, q), ta, 3, LOAD(2));
    tb_fold(&tb);
    const heft__fold_piece_t *piece = tb_piece(&tb, p, 0);
    assert_int_equal(piece->n_srcs, 2);
    EXPECT_OPS(piece, LOAD(0), LOAD(1), MUL(F32), LOAD(0), MUL(F32));
    assert_int_equal(piece->srcs[0].buffer, a);
    assert_int_equal(piece->srcs[1].buffer, b);
    piece = tb_piece(&tb, q, 0);
    assert_int_equal(piece->n_ops, 0);
    assert_int_equal(piece->srcs[0].buffer, b);
    tb_fini(&tb);
}

static void constants_come_out_of_temporaries(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", F32, TB_SHAPE(2));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(4));
    uint32_t q = tb_param(&tb, "q", F32, TB_SHAPE(4));
    tb_fill(&tb, tb_all(&tb, t), 0x3f800000);
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 0, 2), tb_all(&tb, a));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    heft_view_t view = tb_all(&tb, t);
    MAP(&tb, tb_all(&tb, q), &view, 1, LOAD(0), ADD(F32, 1));
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 2);
    EXPECT_OPS(tb_piece(&tb, p, 0), LOAD(0), CAST(BF16));
    tb_expect_constant(&tb, p, 2, 0x3f80);
    EXPECT_OPS(tb_piece(&tb, q, 1), CONST(F32, 0x3f800000), ADD(F32, 1));
    assert_int_equal(tb_piece(&tb, q, 1)->n_srcs, 0);
    tb_fini(&tb);
}

static void a_composition_that_is_too_long_names_the_write(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", F32, TB_SHAPE(4));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(4));
    heft_view_t view = tb_all(&tb, t);
    tb_copy(&tb, view, tb_all(&tb, a));
    for (int i = 0; i < HEFT_MAX_OPS; i++) {
        MAP(&tb, view, &view, 1, LOAD(0), ADD(F32, 1));
    }
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, NULL, &fold, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("write 16 (map): more than 16 operations");
    tb_fini(&tb);
}

static void a_composition_of_too_many_sources_names_the_write(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(4));
    heft_view_t views[2] = { tb_all(&tb, t), { .rank = 0 } };
    for (int i = 0; i < HEFT_MAX_SOURCES + 1; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "s%d", i);
        views[1] = tb_all(&tb, tb_source(&tb, name, F32, TB_SHAPE(4)));
        if (i == 0) {
            tb_copy(&tb, views[0], views[1]);
        } else {
            MAP(&tb, views[0], views, 2, LOAD(0), LOAD(1), MUL(F32));
        }
    }
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, NULL, &fold, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("write 4 (map): more than 4 sources");
    tb_fini(&tb);
}

/* ---- in place ---- */

static void an_update_of_what_was_just_written_is_known_as_one(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "A_log", F32, TB_SHAPE(4));
    uint32_t t = tb_temp(&tb, F32, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "A", F32, TB_SHAPE(4));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    heft_view_t view = tb_all(&tb, p);
    MAP(&tb, tb_all(&tb, t), &view, 1, LOAD(0), NEG_EXP(F32));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    MAP(&tb, view, &view, 1, LOAD(0), SCALE(F32, 2));
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    EXPECT_OPS(tb_piece(&tb, p, 0), LOAD(0), NEG_EXP(F32), SCALE(F32, 2));
    assert_int_equal(tb.fold->n_overwrites, 2);
    assert_true(tb.fold->overwrites[0].is_update);
    assert_true(tb.fold->overwrites[1].is_update);
    assert_false(tb.fold->overwrites[0].is_same);
    tb_fini(&tb);
}

/* ---- opaque ---- */

static void opaque_outputs_are_sources_of_their_own(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(2, 2));
    uint32_t b = tb_source(&tb, "b", BF16, TB_SHAPE(2, 2));
    uint32_t c = tb_source(&tb, "c", BF16, TB_SHAPE(2, 2));
    uint32_t m = tb_temp(&tb, BF16, TB_SHAPE(2, 2));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(2, 2));
    uint32_t unused = tb_temp(&tb, BF16, TB_SHAPE(2, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2));
    uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(2));
    tb_copy(&tb, tb_all(&tb, m), tb_swap(tb_all(&tb, b), 0, 1));
    heft_view_t srcs[2] = { tb_all(&tb, a), tb_all(&tb, m) };
    heft_view_t dst = tb_all(&tb, t);
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "mm", &dst, 1, srcs, 2, "loader:9", &err), HEFT_OK);
    tb_copy(&tb, tb_all(&tb, p), tb_select(tb_all(&tb, t), 0, 0));
    heft_view_t more[2] = { tb_all(&tb, t), tb_all(&tb, c) };
    dst = tb_all(&tb, q);
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "sort", &dst, 1, more, 2, "loader:10", &err), HEFT_OK);
    dst = tb_all(&tb, unused);
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "mm", &dst, 1, srcs, 2, "loader:11", &err), HEFT_OK);
    tb_fold(&tb);
    const heft__fold_piece_t *piece = tb_piece(&tb, p, 0);
    assert_int_equal(piece->n_ops, 0);
    assert_int_equal(piece->srcs[0].buffer, t);
    assert_int_equal(piece->srcs[0].opaque_write, 1);
    assert_int_equal(piece->srcs[0].offset, 0);
    piece = tb_piece(&tb, q, 0);
    assert_int_equal(piece->srcs[0].buffer, q);
    assert_int_equal(piece->srcs[0].opaque_write, 3);
    assert_int_equal(tb.fold->n_opaques, 3);
    const heft__fold_opaque_t *mm = heft__fold_find_opaque(tb.fold, 1);
    assert_true(mm->is_used);
    assert_int_equal(mm->n_sources, 2);
    assert_int_equal(mm->sources[0], a);
    assert_int_equal(mm->sources[1], b);
    assert_int_equal(mm->n_inputs, 2);
    assert_int_equal(mm->inputs[1].n_pieces, 1);
    assert_int_equal(mm->inputs[1].pieces[0].srcs[0].buffer, b);
    assert_int_equal(mm->inputs[1].pieces[0].srcs[0].stride[0], 1);
    const heft__fold_opaque_t *sort = heft__fold_find_opaque(tb.fold, 3);
    assert_true(sort->is_used);
    assert_int_equal(sort->n_sources, 3);
    assert_int_equal(sort->sources[2], c);
    assert_false(heft__fold_find_opaque(tb.fold, 4)->is_used);
    assert_null(heft__fold_find_opaque(tb.fold, 0));
    tb_fini(&tb);
}

static void an_opaque_read_of_nothing_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(2, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2, 2));
    heft_view_t src = tb_all(&tb, t);
    heft_view_t dst = tb_all(&tb, p);
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "mm", &dst, 1, &src, 1, "o", &err), HEFT_OK);
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, NULL, &fold, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("write 0 (o): reads temporary 0 at (0,0)");
    tb_fini(&tb);
}

/* ---- every allocation failing in turn ---- */

static void build_rich_tape(tape_builder_t *tb)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tb_init(tb);
    uint32_t a = tb_source(tb, "a", BF16, TB_SHAPE(6, 4));
    uint32_t b = tb_source(tb, "b", BF16, TB_SHAPE(6, 4));
    uint32_t t = tb_temp(tb, BF16, TB_SHAPE(6, 4));
    uint32_t u = tb_temp(tb, F32, TB_SHAPE(4, 6));
    uint32_t p = tb_param(tb, "p", F32, TB_SHAPE(4, 6));
    uint32_t q = tb_param(tb, "q", BF16, TB_SHAPE(24));
    tb_fill(tb, tb_all(tb, p), 0);
    tb_copy(tb, tb_swap(tb_reshape(t, TB_SHAPE(4, 6)), 0, 1), tb_all(tb, a));
    heft_view_t srcs[2] = { tb_reshape(t, TB_SHAPE(4, 6)), tb_reshape(b, TB_SHAPE(4, 6)) };
    MAP(tb, tb_all(tb, u), srcs, 2, LOAD(0), LOAD(1), MUL(F32));
    tb_copy(tb, tb_narrow(tb_all(tb, p), 1, 1, 4), tb_narrow(tb_all(tb, u), 1, 2, 4));
    heft_view_t dst = tb_all(tb, q);
    EXPECT_STATUS(heft_tape_opaque(tb->tape, "mm", &dst, 1, srcs, 2, "o", &err), HEFT_OK);
    tb_copy(tb, tb_step(tb_all(tb, q), 0, 3), tb_narrow(tb_reshape(t, TB_SHAPE(24)), 0, 4, 8));
}

static void fold_survives_every_failed_allocation(void **state)
{
    (void)state;
    tape_builder_t tb;
    build_rich_tape(&tb);
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__fold_t *fold = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft__fold_create(tb.tape, NULL, &fold, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft__fold_destroy(fold);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(err.status, HEFT_ERR_NOMEM);
        assert_null(fold);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_true(k > 10);
    assert_int_equal(heft__alloc_live(), live);
    tb_fini(&tb);
}

static void a_fold_outlives_its_tape(void **state)
{
    (void)state;
    tape_builder_t tb;
    build_rich_tape(&tb);
    tb_fold(&tb);
    heft_tape_destroy(tb.tape);
    tb.tape = NULL;
    int64_t sum = 0;
    for (uint64_t i = 0; i < tb.fold->n_pieces; i++) {
        const heft__fold_piece_t *piece = &tb.fold->pieces[i];
        heft__region_t region = heft__fold_piece_region(piece);
        assert_int_equal(heft__region_count(&region), heft__fold_piece_count(piece));
        sum += heft__fold_piece_count(piece);
        for (uint32_t s = 0; s < piece->n_srcs; s++) {
            heft_view_t view = heft__fold_piece_src_view(piece, s);
            assert_int_equal(view.rank, piece->rank);
        }
        for (uint32_t o = 0; o < piece->n_ops; o++) {
            assert_in_range(piece->ops[o].code, HEFT_OP_LOAD, HEFT_OP_MUL);
        }
    }
    assert_int_equal(sum, 48);
    tb_fini(&tb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cast_goes_through_a_concatenation),
        cmocka_unit_test(the_order_of_casts_and_sums_is_kept),
        cmocka_unit_test(a_broadcast_block_scale_keeps_its_boxes),
        cmocka_unit_test(equal_sources_are_shared_and_unused_ones_dropped),
        cmocka_unit_test(constants_come_out_of_temporaries),
        cmocka_unit_test(a_composition_that_is_too_long_names_the_write),
        cmocka_unit_test(a_composition_of_too_many_sources_names_the_write),
        cmocka_unit_test(an_update_of_what_was_just_written_is_known_as_one),
        cmocka_unit_test(opaque_outputs_are_sources_of_their_own),
        cmocka_unit_test(an_opaque_read_of_nothing_is_refused),
        cmocka_unit_test(fold_survives_every_failed_allocation),
        cmocka_unit_test(a_fold_outlives_its_tape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
