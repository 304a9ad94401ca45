/* SPDX-License-Identifier: Apache-2.0 */
/* What fold makes of small tapes, written out by hand. */
#include "heft_test.h"
#include "tape_builder.h"

#define BF16 HEFT_DTYPE_BF16
#define F32 HEFT_DTYPE_F32

/* ---- strided views ---- */

static void a_transposed_source_is_read_in_destination_order(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(2, 3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 2));
    tb_copy(&tb, tb_all(&tb, p), tb_swap(tb_all(&tb, a), 0, 1));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, a, 0, 3, 1, 4, 2, 5);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    tb_fini(&tb);
}

static void a_column_slice_is_not_sent_as_if_it_were_flat(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(2, 3));
    uint32_t c = tb_source(&tb, "c", BF16, TB_SHAPE(2, 2, 3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2, 2));
    uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(2, 3));
    tb_copy(&tb, tb_all(&tb, p), tb_narrow(tb_all(&tb, a), 1, 1, 2));
    tb_copy(&tb, tb_all(&tb, q), tb_select(tb_all(&tb, c), 1, 0));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, a, 1, 2, 4, 5);
    TB_EXPECT_RUN(&tb, q, 0, c, 0, 1, 2, 6, 7, 8);
    tb_fini(&tb);
}

static void a_broadcast_source_is_repeated(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2, 3));
    uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(3, 2));
    tb_copy(&tb, tb_all(&tb, p), tb_expand(tb_all(&tb, a), 0, 2));
    tb_copy(&tb, tb_all(&tb, q), tb_expand(tb_all(&tb, a), 1, 2));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, a, 0, 1, 2, 0, 1, 2);
    TB_EXPECT_RUN(&tb, q, 0, a, 0, 0, 1, 1, 2, 2);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    tb_fini(&tb);
}

static void a_destination_with_stride_0_is_refused(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(2, 3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3));
    heft_view_t dst = tb_expand(tb_all(&tb, p), 0, 2);
    heft_view_t src = tb_all(&tb, a);
    EXPECT_STATUS(heft_tape_copy(tb.tape, &dst, &src, "x", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("dimension 0 has stride 0");
    EXPECT_MESSAGE("parameter \"p\"");
    assert_int_equal(heft_tape_get_n_writes(tb.tape), 0);
    tb_fini(&tb);
}

static void views_may_be_strided_on_both_sides(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(4, 3, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(4, 4));
    heft_view_t dst = tb_swap(tb_narrow(tb_all(&tb, p), 0, 2, 2), 0, 1);
    tb_copy(&tb, dst, tb_select(tb_all(&tb, x), 1, 1));
    tb_fold(&tb);
    for (int64_t i = 0; i < 4; i++) {
        for (int64_t j = 0; j < 2; j++) {
            tb_expect(&tb, p, (2 + j) * 4 + i, x, 6 * i + 2 + j);
        }
    }
    tb_expect_nothing(&tb, p, 7);
    tb_fini(&tb);
}

/* ---- temporaries ---- */

static void a_reshape_that_must_copy_is_one_piece(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(2, 3));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(3, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(6));
    tb_copy(&tb, tb_all(&tb, t), tb_swap(tb_all(&tb, x), 0, 1));
    tb_copy(&tb, tb_all(&tb, p), tb_reshape(t, TB_SHAPE(6)));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, x, 0, 3, 1, 4, 2, 5);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    const heft__fold_piece_t *piece = tb_piece(&tb, p, 0);
    assert_int_equal(piece->rank, 2);
    assert_int_equal(piece->extent[0], 3);
    assert_int_equal(piece->srcs[0].stride[0], 1);
    assert_int_equal(piece->srcs[0].stride[1], 3);
    tb_fini(&tb);
}

static void lists_of_rows_fall_into_runs(void **state)
{
    (void)state;
    static const int64_t list[] = { 5, 0, 1 };
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(6, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 2));
    for (int64_t j = 0; j < 3; j++) {
        tb_copy(&tb, tb_select(tb_all(&tb, p), 0, j), tb_select(tb_all(&tb, x), 0, list[j]));
    }
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, x, 10, 11, 0, 1, 2, 3);
    assert_int_equal(tb_n_pieces(&tb, p), 2);
    assert_int_equal(tb_piece(&tb, p, 1)->rank, 1);
    assert_int_equal(tb_piece(&tb, p, 1)->extent[0], 4);
    tb_fini(&tb);
}

static void rolls_flips_and_repeats_keep_their_order(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(5));
    uint32_t roll = tb_param(&tb, "roll", BF16, TB_SHAPE(5));
    uint32_t flip = tb_param(&tb, "flip", BF16, TB_SHAPE(5));
    tb_copy(&tb, tb_narrow(tb_all(&tb, roll), 0, 2, 3), tb_narrow(tb_all(&tb, x), 0, 0, 3));
    tb_copy(&tb, tb_narrow(tb_all(&tb, roll), 0, 0, 2), tb_narrow(tb_all(&tb, x), 0, 3, 2));
    tb_copy(&tb, tb_all(&tb, flip), tb_flip(tb_all(&tb, x), 0));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, roll, 0, x, 3, 4, 0, 1, 2);
    TB_EXPECT_RUN(&tb, flip, 0, x, 4, 3, 2, 1, 0);
    assert_int_equal(tb_n_pieces(&tb, flip), 1);
    assert_int_equal(tb_piece(&tb, flip, 0)->srcs[0].stride[0], -1);
    tb_fini(&tb);
}

static void slices_put_together_again_are_one_piece(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(8, 6));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(8, 6));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(8, 6));
    for (int64_t i = 3; i >= 0; i--) {
        tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 2 * i, 2),
                tb_narrow(tb_all(&tb, x), 0, 2 * i, 2));
    }
    for (int64_t i = 0; i < 3; i++) {
        tb_copy(&tb, tb_narrow(tb_all(&tb, p), 1, 2 * i, 2),
                tb_narrow(tb_all(&tb, t), 1, 2 * i, 2));
    }
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    const heft__fold_piece_t *piece = tb_piece(&tb, p, 0);
    assert_int_equal(piece->rank, 1);
    assert_int_equal(piece->extent[0], 48);
    tb_fini(&tb);
}

static void strides_that_do_not_divide_are_exact(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(6, 4));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(6, 4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(4, 3));
    tb_copy(&tb, tb_swap(tb_reshape(t, TB_SHAPE(4, 6)), 0, 1), tb_all(&tb, x));
    tb_copy(&tb, tb_all(&tb, p), tb_narrow(tb_reshape(t, TB_SHAPE(4, 6)), 1, 1, 3));
    tb_fold(&tb);
    for (int64_t i = 0; i < 4; i++) {
        for (int64_t j = 0; j < 3; j++) {
            tb_expect(&tb, p, i * 3 + j, x, (j + 1) * 4 + i);
        }
    }
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    tb_fini(&tb);
}

/* ---- layouts ---- */

static void a_blocked_kernel_layout_is_carried_by_the_fold(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "w13", BF16, TB_SHAPE(2, 4, 8));
    uint32_t p = tb_param(&tb, "w13", BF16, TB_SHAPE(2, 2, 4, 4));
    /* source axes (e, m, k div 4, k mod 4) to (e, k div 4, m, k mod 4) */
    tb_copy(&tb, tb_swap(tb_all(&tb, p), 1, 2), tb_reshape(s, TB_SHAPE(2, 4, 2, 4)));
    tb_fold(&tb);
    tb_expect(&tb, p, 62, s, 62);
    tb_expect(&tb, p, 57, s, 53);
    for (int64_t e = 0; e < 2; e++) {
        for (int64_t m = 0; m < 4; m++) {
            for (int64_t k = 0; k < 8; k++) {
                tb_expect(&tb, p, e * 32 + k / 4 * 16 + m * 4 + k % 4, s, e * 32 + m * 8 + k);
            }
        }
    }
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    tb_fini(&tb);
}

static void interleaved_and_stacked_halves_differ(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t gate = tb_source(&tb, "gate", BF16, TB_SHAPE(2, 3));
    uint32_t up = tb_source(&tb, "up", BF16, TB_SHAPE(2, 3));
    uint32_t gate_bias = tb_source(&tb, "gate_bias", BF16, TB_SHAPE(2));
    uint32_t up_bias = tb_source(&tb, "up_bias", BF16, TB_SHAPE(2));
    uint32_t mixed = tb_param(&tb, "mixed", BF16, TB_SHAPE(4, 3));
    uint32_t mixed_bias = tb_param(&tb, "mixed_bias", BF16, TB_SHAPE(4));
    uint32_t stacked = tb_param(&tb, "stacked", BF16, TB_SHAPE(4, 3));
    tb_copy(&tb, tb_select(tb_reshape(mixed, TB_SHAPE(2, 2, 3)), 1, 0), tb_all(&tb, gate));
    tb_copy(&tb, tb_select(tb_reshape(mixed, TB_SHAPE(2, 2, 3)), 1, 1), tb_all(&tb, up));
    tb_copy(&tb, tb_step(tb_all(&tb, mixed_bias), 0, 2), tb_all(&tb, gate_bias));
    tb_copy(&tb, tb_step(tb_narrow(tb_all(&tb, mixed_bias), 0, 1, 3), 0, 2), tb_all(&tb, up_bias));
    tb_copy(&tb, tb_select(tb_reshape(stacked, TB_SHAPE(2, 2, 3)), 0, 0), tb_all(&tb, gate));
    tb_copy(&tb, tb_select(tb_reshape(stacked, TB_SHAPE(2, 2, 3)), 0, 1), tb_all(&tb, up));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, mixed, 0, gate, 0, 1, 2);
    TB_EXPECT_RUN(&tb, mixed, 3, up, 0, 1, 2);
    TB_EXPECT_RUN(&tb, mixed, 6, gate, 3, 4, 5);
    TB_EXPECT_RUN(&tb, mixed, 9, up, 3, 4, 5);
    tb_expect(&tb, mixed_bias, 0, gate_bias, 0);
    tb_expect(&tb, mixed_bias, 1, up_bias, 0);
    tb_expect(&tb, mixed_bias, 2, gate_bias, 1);
    tb_expect(&tb, mixed_bias, 3, up_bias, 1);
    TB_EXPECT_RUN(&tb, stacked, 0, gate, 0, 1, 2, 3, 4, 5);
    TB_EXPECT_RUN(&tb, stacked, 6, up, 0, 1, 2, 3, 4, 5);
    assert_int_equal(tb.fold->n_overwrites, 0);
    tb_fini(&tb);
}

static void rows_interleaved_by_head_group_are_split_as_declared(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    /* rows b0 b1 a0 a1 b2 b3 a2 a3 */
    uint32_t s = tb_source(&tb, "in_proj_ba.weight", BF16, TB_SHAPE(8, 2));
    uint32_t r0 = tb_param(&tb, "rank0", BF16, TB_SHAPE(4, 2));
    uint32_t r1 = tb_param(&tb, "rank1", BF16, TB_SHAPE(4, 2));
    uint32_t all = tb_param(&tb, "all", BF16, TB_SHAPE(8, 2));
    heft_view_t groups = tb_reshape(s, TB_SHAPE(2, 2, 2, 2)); /* head, b or a, row, column */
    tb_copy(&tb, tb_all(&tb, r0), tb_narrow(tb_all(&tb, s), 0, 0, 4));
    tb_copy(&tb, tb_all(&tb, r1), tb_narrow(tb_all(&tb, s), 0, 4, 4));
    tb_copy(&tb, tb_reshape(all, TB_SHAPE(2, 2, 2, 2)), tb_swap(groups, 0, 1));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, r0, 0, s, 0, 1, 2, 3, 4, 5, 6, 7);
    TB_EXPECT_RUN(&tb, r1, 0, s, 8, 9, 10, 11, 12, 13, 14, 15);
    static const int64_t rows[] = { 0, 1, 4, 5, 2, 3, 6, 7 };
    for (int64_t i = 0; i < 8; i++) {
        tb_expect(&tb, all, 2 * i, s, 2 * rows[i]);
        tb_expect(&tb, all, 2 * i + 1, s, 2 * rows[i] + 1);
    }
    tb_fini(&tb);
}

/* ---- sizes ---- */

static void empty_tensors_make_no_pieces(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t a = tb_source(&tb, "a", BF16, TB_SHAPE(2, 4));
    uint32_t b = tb_source(&tb, "b", BF16, TB_SHAPE(0, 4));
    uint32_t c = tb_source(&tb, "c", BF16, TB_SHAPE(1, 4));
    uint32_t pa = tb_param(&tb, "a", BF16, TB_SHAPE(2, 4));
    uint32_t pb = tb_param(&tb, "b", BF16, TB_SHAPE(0, 4));
    uint32_t pc = tb_param(&tb, "c", BF16, TB_SHAPE(1, 4));
    tb_copy(&tb, tb_all(&tb, pa), tb_all(&tb, a));
    tb_copy(&tb, tb_all(&tb, pb), tb_all(&tb, b));
    tb_copy(&tb, tb_all(&tb, pc), tb_all(&tb, c));
    tb_fill(&tb, tb_all(&tb, pb), 0);
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, pa), 1);
    assert_int_equal(tb_n_pieces(&tb, pb), 0);
    assert_int_equal(tb_n_pieces(&tb, pc), 1);
    assert_int_equal(heft__fold_piece_count(tb_piece(&tb, pa, 0)), 8);
    assert_int_equal(heft__fold_piece_count(tb_piece(&tb, pc, 0)), 4);
    tb_fini(&tb);
}

static void scalars_fold(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "s", BF16, TB_SCALAR);
    uint32_t p = tb_param(&tb, "p", BF16, TB_SCALAR);
    uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(3));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, s));
    tb_copy(&tb, tb_all(&tb, q), tb_expand(tb_all(&tb, s), 0, 3));
    tb_fold(&tb);
    assert_int_equal(tb_piece(&tb, p, 0)->rank, 0);
    tb_expect(&tb, p, 0, s, 0);
    TB_EXPECT_RUN(&tb, q, 0, s, 0, 0, 0);
    tb_fini(&tb);
}

static void cost_does_not_depend_on_the_number_of_elements(void **state)
{
    (void)state;
    int64_t n_allocs[2];
    int64_t n_bytes[2];
    for (int64_t big = 0; big < 2; big++) {
        int64_t rows = big ? 150000 : 15;
        int64_t columns = big ? 5000 : 50;
        tape_builder_t tb;
        tb_init(&tb);
        uint32_t s = tb_source(&tb, "s", BF16, TB_SHAPE(rows, columns));
        uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(columns, rows));
        uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(rows, columns));
        uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(rows, columns));
        tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, s));
        tb_copy(&tb, tb_all(&tb, t), tb_swap(tb_all(&tb, s), 0, 1));
        tb_copy(&tb, tb_all(&tb, q), tb_swap(tb_all(&tb, t), 0, 1));
        int64_t allocs = heft__alloc_total();
        int64_t bytes = heft__alloc_live_bytes();
        tb_fold(&tb);
        n_allocs[big] = heft__alloc_total() - allocs;
        n_bytes[big] = heft__alloc_live_bytes() - bytes;
        for (uint32_t b = p; b <= q; b++) {
            assert_int_equal(tb_n_pieces(&tb, b), 1);
            assert_int_equal(tb_piece(&tb, b, 0)->rank, 1);
            assert_int_equal(tb_piece(&tb, b, 0)->extent[0], rows * columns);
        }
        tb_fini(&tb);
    }
    assert_int_equal(n_allocs[0], n_allocs[1]);
    assert_int_equal(n_bytes[0], n_bytes[1]);
}

static void the_largest_buffers_do_not_overflow(void **state)
{
    (void)state;
    const int64_t rows = (int64_t)1 << 31;
    const int64_t columns = (int64_t)1 << 30;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "s", HEFT_DTYPE_F64, TB_SHAPE(rows, columns));
    uint32_t t = tb_temp(&tb, HEFT_DTYPE_F64, TB_SHAPE(rows, columns));
    uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_F64, TB_SHAPE(rows, columns));
    tb_copy(&tb, tb_all(&tb, t), tb_flip(tb_all(&tb, s), 1));
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 1, 5, 7), tb_narrow(tb_all(&tb, s), 1, 0, 7));
    tb_fill(&tb, tb_narrow(tb_all(&tb, p), 0, rows - 1, 1), 0);
    tb_copy(&tb, tb_all(&tb, p), tb_flip(tb_all(&tb, t), 0));
    tb_fold(&tb);
    int64_t n = 0;
    for (uint64_t i = 0; i < tb_n_pieces(&tb, p); i++) {
        n += heft__fold_piece_count(tb_piece(&tb, p, i));
    }
    assert_int_equal(n, rows * columns);
    tb_expect(&tb, p, 4, s, (rows - 1) * columns + columns - 1 - 4);
    tb_expect(&tb, p, 5, s, (rows - 1) * columns);
    tb_expect(&tb, p, rows * columns - 1, s, 0);
    assert_int_equal(tb.fold->n_overwrites, 1);
    tb_fini(&tb);
}

/* ---- order, constants, holes ---- */

static void later_wins_and_fills_show_through(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(2, 3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 4));
    tb_fill(&tb, tb_all(&tb, p), 0);
    tb_copy(&tb, tb_narrow(tb_narrow(tb_all(&tb, p), 0, 0, 2), 1, 0, 3), tb_all(&tb, x));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, x, 0, 1, 2);
    TB_EXPECT_RUN(&tb, p, 4, x, 3, 4, 5);
    static const int64_t zeros[] = { 3, 7, 8, 9, 10, 11 };
    for (size_t i = 0; i < 6; i++) {
        tb_expect_constant(&tb, p, zeros[i], 0);
    }
    assert_int_equal(tb.fold->n_overwrites, 1);
    const heft__fold_overwrite_t *lost = &tb.fold->overwrites[0];
    assert_int_equal(lost->earlier_write, 0);
    assert_int_equal(lost->later_write, 1);
    assert_true(lost->was_constant);
    assert_false(lost->is_same);
    assert_false(lost->is_update);
    assert_int_equal(heft__region_count(&lost->region), 6);
    tb_fini(&tb);
}

static void a_fill_at_the_end_leaves_only_constants(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(4));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_fill(&tb, tb_all(&tb, p), 0x3f80);
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    tb_expect_constant(&tb, p, 3, 0x3f80);
    assert_int_equal(tb.fold->n_overwrites, 1);
    assert_false(tb.fold->overwrites[0].was_constant);
    tb_fini(&tb);
}

static void different_sources_for_one_element_are_remembered(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    /* per-rank scale slots 0, 2, 2 of sizes 2, 1, 1: v lands on k */
    uint32_t q = tb_source(&tb, "q", F32, TB_SHAPE(2));
    uint32_t k = tb_source(&tb, "k", F32, TB_SHAPE(1));
    uint32_t v = tb_source(&tb, "v", F32, TB_SHAPE(1));
    uint32_t p = tb_param(&tb, "p", F32, TB_SHAPE(4));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 0, 2), tb_all(&tb, q));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 2, 1), tb_all(&tb, k));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 2, 1), tb_all(&tb, v));
    tb_fold(&tb);
    tb_expect(&tb, p, 2, v, 0);
    tb_expect_nothing(&tb, p, 3);
    assert_int_equal(tb.fold->n_overwrites, 1);
    const heft__fold_overwrite_t *lost = &tb.fold->overwrites[0];
    assert_int_equal(lost->buffer, p);
    assert_int_equal(lost->region.offset, 2);
    assert_int_equal(lost->earlier_write, 1);
    assert_int_equal(lost->later_write, 2);
    assert_false(lost->is_same || lost->was_constant || lost->is_update);
    tb_fini(&tb);
}

static void a_lost_value_is_kept_as_a_piece(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(4, 2));
    uint32_t y = tb_source(&tb, "y", BF16, TB_SHAPE(2, 2));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(2, 4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2, 4));
    /* p = x^T, through a temporary; then the middle columns again, from y */
    tb_copy(&tb, tb_all(&tb, t), tb_swap(tb_all(&tb, x), 0, 1));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 1, 1, 2), tb_all(&tb, y));
    tb_fold(&tb);
    assert_int_equal(tb.fold->n_overwrites, 1);
    const heft__fold_piece_t *earlier = tb.fold->overwrites[0].earlier;
    assert_non_null(earlier);
    assert_int_equal(earlier->buffer, p);
    assert_int_equal(earlier->write, 1);
    assert_int_equal(earlier->dst_offset, 1);
    assert_int_equal(earlier->rank, 2);
    assert_int_equal(earlier->dst_stride[0], 4);
    assert_int_equal(earlier->dst_stride[1], 1);
    assert_int_equal(earlier->n_srcs, 1);
    assert_int_equal(earlier->n_ops, 0);
    assert_int_equal(earlier->srcs[0].buffer, x);
    assert_int_equal(earlier->srcs[0].offset, 2);
    assert_int_equal(earlier->srcs[0].stride[0], 1);
    assert_int_equal(earlier->srcs[0].stride[1], 2);
    tb_fini(&tb);
}

static void what_is_not_lost_is_not_kept(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", F32, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", F32, TB_SHAPE(4));
    tb_fill(&tb, tb_all(&tb, p), 0);
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_fold(&tb);
    assert_int_equal(tb.fold->n_overwrites, 2);
    assert_null(tb.fold->overwrites[0].earlier);
    assert_null(tb.fold->overwrites[1].earlier);
    tb_fini(&tb);
}

static void the_same_value_twice_is_known_as_such(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(2, 3));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(3, 2));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(2, 3));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_copy(&tb, tb_all(&tb, t), tb_swap(tb_all(&tb, x), 0, 1));
    tb_copy(&tb, tb_select(tb_all(&tb, p), 0, 1), tb_select(tb_swap(tb_all(&tb, t), 0, 1), 0, 1));
    tb_fold(&tb);
    assert_int_equal(tb_n_pieces(&tb, p), 1);
    assert_int_equal(tb.fold->n_overwrites, 1);
    assert_true(tb.fold->overwrites[0].is_same);
    assert_int_equal(tb.fold->overwrites[0].region.offset, 3);
    assert_int_equal(heft__region_count(&tb.fold->overwrites[0].region), 3);
    tb_fini(&tb);
}

static void overwrites_inside_temporaries_are_nobodys_business(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(4));
    uint32_t y = tb_source(&tb, "y", BF16, TB_SHAPE(2));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(4));
    tb_copy(&tb, tb_all(&tb, t), tb_all(&tb, x));
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 1, 2), tb_all(&tb, y));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    tb_fold(&tb);
    tb_expect(&tb, p, 0, x, 0);
    tb_expect(&tb, p, 1, y, 0);
    tb_expect(&tb, p, 2, y, 1);
    tb_expect(&tb, p, 3, x, 3);
    assert_int_equal(tb.fold->n_overwrites, 0);
    tb_fini(&tb);
}

static void reading_what_nothing_wrote_names_write_buffer_and_index(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(2, 4));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(3, 4));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3, 4));
    tb_copy(&tb, tb_narrow(tb_all(&tb, t), 0, 0, 2), tb_all(&tb, x));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 0, 2), tb_narrow(tb_all(&tb, t), 0, 0, 2));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, t));
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, NULL, &fold, &err), HEFT_ERR_ARGUMENT);
    assert_null(fold);
    EXPECT_MESSAGE("write 2 (test)");
    EXPECT_MESSAGE("temporary 1");
    EXPECT_MESSAGE("(2,0)");
    tb_fini(&tb);
}

static void a_parameter_may_be_read_once_it_is_written(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(3));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(3));
    uint32_t q = tb_param(&tb, "q", BF16, TB_SHAPE(3));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_copy(&tb, tb_all(&tb, q), tb_flip(tb_all(&tb, p), 0));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, q, 0, x, 2, 1, 0);
    tb_fini(&tb);

    tb_init(&tb);
    p = tb_param(&tb, "p", BF16, TB_SHAPE(3));
    q = tb_param(&tb, "q", BF16, TB_SHAPE(3));
    tb_copy(&tb, tb_all(&tb, q), tb_all(&tb, p));
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, NULL, &fold, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("parameter \"p\"");
    EXPECT_MESSAGE("(0)");
    tb_fini(&tb);
}

static void a_write_in_place_reads_the_old_values(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", BF16, TB_SHAPE(5));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(5));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, x));
    tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 1, 4), tb_narrow(tb_all(&tb, p), 0, 0, 4));
    tb_fold(&tb);
    TB_EXPECT_RUN(&tb, p, 0, x, 0, 0, 1, 2, 3);
    tb_fini(&tb);
}

/* ---- limits ---- */

static void too_many_pieces_name_the_buffer_and_the_limit(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(64));
    for (int64_t i = 0; i < 9; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "s%d", (int)i);
        uint32_t s = tb_source(&tb, name, BF16, TB_SHAPE(1));
        tb_copy(&tb, tb_narrow(tb_all(&tb, p), 0, 7 * i, 1), tb_all(&tb, s));
    }
    heft__fold_opts_t opts = { .max_pieces = 8 };
    heft__fold_t *fold = NULL;
    EXPECT_STATUS(heft__fold_create(tb.tape, &opts, &fold, &err), HEFT_ERR_LIMIT);
    assert_null(fold);
    EXPECT_MESSAGE("write 8 (test)");
    EXPECT_MESSAGE("parameter \"p\"");
    EXPECT_MESSAGE("8 pieces");
    opts.max_pieces = 9;
    EXPECT_STATUS(heft__fold_create(tb.tape, &opts, &fold, &err), HEFT_OK);
    heft__fold_destroy(fold);
    tb_fini(&tb);
}

static void a_result_of_more_than_12_dimensions_is_cut(void **state)
{
    (void)state;
    tape_builder_t tb;
    tb_init(&tb);
    /* reverse the bits of the index twice over 7 + 7 binary dimensions: 14 in one composition */
    heft_shape_t seven = TB_SHAPE(2, 2, 2, 2, 2, 2, 2, 128);
    uint32_t s = tb_source(&tb, "s", BF16, TB_SHAPE(16384));
    uint32_t t = tb_temp(&tb, BF16, TB_SHAPE(16384));
    uint32_t p = tb_param(&tb, "p", BF16, TB_SHAPE(16384));
    heft_view_t high = tb_reshape(t, seven);
    for (int k = 0; k < 3; k++) {
        high = tb_swap(high, k, 6 - k);
    }
    tb_copy(&tb, high, tb_reshape(s, seven));
    heft_shape_t low_shape = TB_SHAPE(128, 2, 2, 2, 2, 2, 2, 2);
    heft_view_t low = tb_reshape(p, low_shape);
    for (int k = 0; k < 3; k++) {
        low = tb_swap(low, 1 + k, 7 - k);
    }
    tb_copy(&tb, low, tb_reshape(t, low_shape));
    tb_fold(&tb);
    for (int64_t i = 0; i < 16384; i += 13) {
        int64_t from = 0;
        for (int b = 0; b < 7; b++) {
            from |= (i >> b & 1) << (6 - b);
            from |= (i >> (7 + b) & 1) << (13 - b);
        }
        tb_expect(&tb, p, i, s, from);
    }
    for (uint64_t i = 0; i < tb_n_pieces(&tb, p); i++) {
        assert_true(tb_piece(&tb, p, i)->rank <= HEFT_MAX_DIMS);
    }
    tb_fini(&tb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transposed_source_is_read_in_destination_order),
        cmocka_unit_test(a_column_slice_is_not_sent_as_if_it_were_flat),
        cmocka_unit_test(a_broadcast_source_is_repeated),
        cmocka_unit_test(a_destination_with_stride_0_is_refused),
        cmocka_unit_test(views_may_be_strided_on_both_sides),
        cmocka_unit_test(a_reshape_that_must_copy_is_one_piece),
        cmocka_unit_test(lists_of_rows_fall_into_runs),
        cmocka_unit_test(rolls_flips_and_repeats_keep_their_order),
        cmocka_unit_test(slices_put_together_again_are_one_piece),
        cmocka_unit_test(strides_that_do_not_divide_are_exact),
        cmocka_unit_test(a_blocked_kernel_layout_is_carried_by_the_fold),
        cmocka_unit_test(interleaved_and_stacked_halves_differ),
        cmocka_unit_test(rows_interleaved_by_head_group_are_split_as_declared),
        cmocka_unit_test(empty_tensors_make_no_pieces),
        cmocka_unit_test(scalars_fold),
        cmocka_unit_test(cost_does_not_depend_on_the_number_of_elements),
        cmocka_unit_test(the_largest_buffers_do_not_overflow),
        cmocka_unit_test(later_wins_and_fills_show_through),
        cmocka_unit_test(a_fill_at_the_end_leaves_only_constants),
        cmocka_unit_test(different_sources_for_one_element_are_remembered),
        cmocka_unit_test(a_lost_value_is_kept_as_a_piece),
        cmocka_unit_test(what_is_not_lost_is_not_kept),
        cmocka_unit_test(the_same_value_twice_is_known_as_such),
        cmocka_unit_test(overwrites_inside_temporaries_are_nobodys_business),
        cmocka_unit_test(reading_what_nothing_wrote_names_write_buffer_and_index),
        cmocka_unit_test(a_parameter_may_be_read_once_it_is_written),
        cmocka_unit_test(a_write_in_place_reads_the_old_values),
        cmocka_unit_test(too_many_pieces_name_the_buffer_and_the_limit),
        cmocka_unit_test(a_result_of_more_than_12_dimensions_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
