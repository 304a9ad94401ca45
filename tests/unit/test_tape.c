/* SPDX-License-Identifier: Apache-2.0 */
/* Building a tape: what is accepted, what is refused and with which words. */
#include "heft_test.h"
#include "tape_builder.h"

#define BF16 HEFT_DTYPE_BF16
#define F32 HEFT_DTYPE_F32

typedef struct fixture {
    tape_builder_t tb;
    uint32_t src;  /* [4,6] bf16 */
    uint32_t dst;  /* [4,6] bf16 parameter "p" */
    uint32_t temp; /* [24] f32 */
} fixture_t;

static void set_up(fixture_t *f)
{
    tb_init(&f->tb);
    f->src = tb_source(&f->tb, "s", BF16, TB_SHAPE(4, 6));
    f->dst = tb_param(&f->tb, "p", BF16, TB_SHAPE(4, 6));
    f->temp = tb_temp(&f->tb, F32, TB_SHAPE(24));
}

/* ---- buffers ---- */

static void buffers_are_found_by_kind_and_name(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "w", BF16, TB_SHAPE(4, 6));
    uint32_t p = tb_param(&tb, "w", F32, TB_SHAPE(24));
    uint32_t t = tb_temp(&tb, BF16, TB_SCALAR);
    uint32_t u = tb_temp(&tb, BF16, TB_SCALAR);
    assert_int_equal(heft_tape_get_n_buffers(tb.tape), 4);
    uint32_t found = 99;
    EXPECT_STATUS(heft_tape_find_buffer(tb.tape, HEFT_BUFFER_SOURCE, "w", &found, &err), HEFT_OK);
    assert_int_equal(found, s);
    EXPECT_STATUS(heft_tape_find_buffer(tb.tape, HEFT_BUFFER_PARAM, "w", &found, &err), HEFT_OK);
    assert_int_equal(found, p);
    EXPECT_STATUS(heft_tape_find_buffer(tb.tape, HEFT_BUFFER_PARAM, "x", &found, &err),
                  HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("no parameter \"x\"");
    EXPECT_STATUS(heft_tape_find_buffer(tb.tape, HEFT_BUFFER_TEMP, "", &found, &err),
                  HEFT_ERR_ARGUMENT);
    assert_int_equal(found, p);
    assert_true(t != u);
    heft_buffer_info_t info;
    EXPECT_STATUS(heft_tape_query_buffer(tb.tape, s, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "w");
    assert_int_equal(info.kind, HEFT_BUFFER_SOURCE);
    assert_int_equal(info.dtype, BF16);
    assert_int_equal(info.n_elems, 24);
    assert_int_equal(info.shape.rank, 2);
    EXPECT_STATUS(heft_tape_query_buffer(tb.tape, t, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "");
    assert_int_equal(info.n_elems, 1);
    EXPECT_STATUS(heft_tape_query_buffer(tb.tape, 4, &info, &err), HEFT_ERR_NOT_FOUND);
    tb_fini(&tb);
}

static void packed_buffers_are_counted_in_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "q", HEFT_DTYPE_F4, TB_SHAPE(3, 32));
    heft_buffer_info_t info;
    EXPECT_STATUS(heft_tape_query_buffer(tb.tape, s, &info, &err), HEFT_OK);
    assert_int_equal(info.n_elems, 48);
    assert_int_equal(info.shape.extent[1], 16);
    heft_shape_t odd = TB_SHAPE(3, 31);
    uint32_t b;
    EXPECT_STATUS(
        heft_tape_add_buffer(tb.tape, HEFT_BUFFER_SOURCE, "odd", HEFT_DTYPE_F4, &odd, &b, &err),
        HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("source \"odd\"");
    tb_fini(&tb);
}

static void bad_buffers_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    heft_tape_t *tape = tb.tape;
    heft_shape_t shape = TB_SHAPE(2);
    uint32_t b = 77;
    (void)tb_source(&tb, "s", BF16, TB_SHAPE(2));
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_SOURCE, "s", BF16, &shape, &b, &err),
                  HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("source \"s\"");
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, "", BF16, &shape, &b, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, NULL, BF16, &shape, &b, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_add_buffer(tape, (heft_buffer_kind_t)0, "x", BF16, &shape, &b, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(
        heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, "x", (heft_dtype_t)55, &shape, &b, &err),
        HEFT_ERR_ARGUMENT);
    shape.extent[0] = -1;
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, "x", BF16, &shape, &b, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("parameter \"x\"");
    shape = TB_SHAPE(INT64_MAX, 3);
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, "x", BF16, &shape, &b, &err),
                  HEFT_ERR_OVERFLOW);
    shape = TB_SHAPE(((int64_t)1 << 61) + 1);
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, "x", BF16, &shape, &b, &err),
                  HEFT_ERR_OVERFLOW);
    EXPECT_MESSAGE("at most 2^61");
    assert_int_equal(b, 77);
    assert_int_equal(heft_tape_get_n_buffers(tape), 1);
    tb_fini(&tb);
}

/* ---- views ---- */

static void expect_refused(fixture_t *f, heft_view_t dst, heft_view_t src, heft_status_t status,
                           const char *words)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_copy(f->tb.tape, &dst, &src, "x.heft:3", &err), status);
    EXPECT_MESSAGE("write 0 (x.heft:3): ");
    EXPECT_MESSAGE(words);
    assert_int_equal(heft_tape_get_n_writes(f->tb.tape), 0);
}

static void views_must_lie_inside_their_buffers(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_all(&f.tb, f.dst);
    heft_view_t src = tb_all(&f.tb, f.src);
    heft_view_t bad = src;
    bad.offset = 1;
    expect_refused(&f, dst, bad, HEFT_ERR_ARGUMENT,
                   "source view of source \"s\" reaches elements 1 to 24, it has 24");
    bad.offset = -1;
    expect_refused(&f, dst, bad, HEFT_ERR_ARGUMENT, "reaches elements -1 to 22");
    bad = tb_flip(dst, 0);
    bad.offset -= 1;
    expect_refused(&f, bad, src, HEFT_ERR_ARGUMENT, "destination view of parameter \"p\"");
    bad = src;
    bad.stride[0] = INT64_MAX;
    expect_refused(&f, dst, bad, HEFT_ERR_OVERFLOW, "overflows");
    bad = src;
    bad.offset = INT64_MAX;
    expect_refused(&f, dst, bad, HEFT_ERR_OVERFLOW, "overflows");
    bad = src;
    bad.extent[0] = -4;
    expect_refused(&f, dst, bad, HEFT_ERR_ARGUMENT, "extent -4 in dimension 0");
    bad = src;
    bad.rank = HEFT_MAX_DIMS + 1;
    expect_refused(&f, dst, bad, HEFT_ERR_ARGUMENT, "rank 13, at most 12");
    bad = src;
    bad.buffer = 3;
    expect_refused(&f, dst, bad, HEFT_ERR_ARGUMENT, "buffer 3, the tape has 3");
    tb_fini(&f.tb);
}

static void both_sides_must_have_the_same_extents(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_all(&f.tb, f.dst);
    heft_view_t src = tb_all(&f.tb, f.src);
    expect_refused(&f, dst, tb_narrow(src, 1, 0, 5), HEFT_ERR_ARGUMENT,
                   "dimension 1: extent 6 in parameter \"p\", 5 in source \"s\"");
    expect_refused(&f, dst, tb_select(src, 0, 1), HEFT_ERR_ARGUMENT, "rank 2");
    tb_fini(&f.tb);
}

static void destinations_are_no_sources_and_have_no_element_twice(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_all(&f.tb, f.dst);
    heft_view_t src = tb_all(&f.tb, f.src);
    expect_refused(&f, src, dst, HEFT_ERR_ARGUMENT, "writes to source \"s\"");
    heft_view_t twice = dst;
    twice.stride[0] = 5;
    expect_refused(&f, twice, src, HEFT_ERR_ARGUMENT,
                   "parameter \"p\": destination view: indices (0,5) and (1,0) are one element");
    tb_fini(&f.tb);
}

static void empty_views_touch_nothing_wherever_they_stand(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_narrow(tb_all(&f.tb, f.dst), 0, 4, 0);
    heft_view_t src = tb_narrow(tb_all(&f.tb, f.src), 0, 0, 0);
    src.offset = 1000;
    tb_copy(&f.tb, dst, src);
    tb_fold(&f.tb);
    assert_int_equal(f.tb.fold->n_pieces, 0);
    tb_fini(&f.tb);
}

static void a_note_is_kept_once(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t dst = tb_all(&f.tb, f.dst);
    char note[] = "a.heft:1";
    for (int i = 0; i < 3; i++) {
        note[7] = (char)('1' + i % 2);
        EXPECT_STATUS(heft_tape_fill(f.tb.tape, &dst, 0, note, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &dst, 0, NULL, &err), HEFT_OK);
    const heft__write_t *w = f.tb.tape->writes;
    assert_string_equal(w[0].note, "a.heft:1");
    assert_string_equal(w[1].note, "a.heft:2");
    assert_ptr_equal(w[0].note, w[2].note);
    assert_string_equal(w[3].note, "");
    assert_int_equal(heft_tape_get_n_writes(f.tb.tape), 4);
    tb_fini(&f.tb);
}

static void messages_go_without_a_note(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t src = tb_all(&f.tb, f.src);
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &src, 0, "", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("write 0: writes to source \"s\"");
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &src, 0, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("write 0: writes to source \"s\"");
    tb_fini(&f.tb);
}

static void long_names_are_cut_in_front(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    char name[300];
    memset(name, 'x', sizeof name);
    memcpy(name + sizeof name - 8, ".weight", 8);
    uint32_t b = tb_source(&f.tb, name, BF16, TB_SHAPE(2));
    heft__label_t label = heft__tape_label(f.tb.tape, b);
    assert_non_null(strstr(label.text, "source \"..xxx"));
    assert_non_null(strstr(label.text, "xxx.weight\""));
    tb_fini(&f.tb);
}

static void views_come_back_as_they_were_given(void **state)
{
    (void)state;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_flip(tb_all(&f.tb, f.dst), 1);
    heft_view_t src = tb_swap(tb_reshape(f.src, TB_SHAPE(6, 4)), 0, 1);
    tb_copy(&f.tb, dst, src);
    const heft__write_t *w = &f.tb.tape->writes[0];
    assert_int_equal(w->kind, HEFT_WRITE_COPY);
    assert_int_equal(w->n_ops, 0);
    heft_view_t back = heft__tape_view_expand(&w->dsts[0]);
    assert_memory_equal(&back, &dst, sizeof dst);
    back = heft__tape_view_expand(&w->srcs[0]);
    assert_int_equal(back.rank, 2);
    assert_int_equal(back.stride[0], 1);
    assert_int_equal(back.stride[1], 4);
    tb_fini(&f.tb);
}

/* ---- programs ---- */

static heft_status_t map(fixture_t *f, const heft_op_t *ops, uint32_t n_ops, heft_error_t *err)
{
    heft_view_t dst = tb_all(&f->tb, f->dst);
    heft_view_t srcs[2] = { tb_all(&f->tb, f->src), tb_reshape(f->temp, TB_SHAPE(4, 6)) };
    return heft_tape_map(f->tb.tape, &dst, srcs, 2, ops, n_ops, "m", err);
}

static void unsound_programs_are_refused(void **state)
{
    (void)state;
    static const struct {
        heft_status_t status;
        const char *words;
        uint32_t n;
        heft_op_t ops[3];
    } rows[] = {
        { HEFT_ERR_ARGUMENT, "leaves 0 values", 0, { { 0 } } },
        { HEFT_ERR_ARGUMENT,
          "leaves 2 values",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_LOAD, .arg = 1 } } },
        { HEFT_ERR_ARGUMENT, "loads source 2 of 2", 1, { { .code = HEFT_OP_LOAD, .arg = 2 } } },
        { HEFT_ERR_ARGUMENT,
          "needs 2 values, the stack has 1",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_MUL, .dtype = F32 } } },
        { HEFT_ERR_ARGUMENT,
          "needs 1 values, the stack has 0",
          1,
          { { .code = HEFT_OP_CAST, .dtype = F32 } } },
        { HEFT_ERR_ARGUMENT, "operation code 10", 1, { { .code = 10 } } },
        { HEFT_ERR_ARGUMENT,
          "bits of F32 seen as BF16 from byte 3: it has 4 bytes",
          3,
          { { .code = HEFT_OP_LOAD },
            { .code = HEFT_OP_CAST, .dtype = F32 },
            { .code = HEFT_OP_BITS, .dtype = BF16, .arg = 3 } } },
        { HEFT_ERR_UNSUPPORTED,
          "seen as F4",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_BITS, .dtype = HEFT_DTYPE_F4 } } },
        { HEFT_ERR_ARGUMENT, "operation code 0", 1, { { .code = 0 } } },
        { HEFT_ERR_ARGUMENT,
          "cast to dtype 99",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_CAST, .dtype = 99 } } },
        { HEFT_ERR_ARGUMENT,
          "constant 0x10000 is no element of dtype BF16",
          1,
          { { .code = HEFT_OP_CONST, .dtype = BF16, .imm_bits = 0x10000 } } },
        { HEFT_ERR_UNSUPPORTED,
          "arithmetic in dtype I32",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_NEG_EXP, .dtype = HEFT_DTYPE_I32 } } },
        { HEFT_ERR_UNSUPPORTED,
          "packed dtype F4",
          2,
          { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_CAST, .dtype = HEFT_DTYPE_F4 } } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        fixture_t f;
        set_up(&f);
        EXPECT_STATUS(map(&f, rows[i].ops, rows[i].n, &err), rows[i].status);
        EXPECT_MESSAGE(rows[i].words);
        EXPECT_MESSAGE("parameter \"p\"");
        assert_int_equal(heft_tape_get_n_writes(f.tb.tape), 0);
        tb_fini(&f.tb);
    }
}

static void too_long_programs_and_too_many_sources_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    heft_op_t ops[HEFT_MAX_OPS + 1] = { { .code = HEFT_OP_LOAD } };
    for (int i = 1; i <= HEFT_MAX_OPS; i++) {
        ops[i] = (heft_op_t){ .code = HEFT_OP_ADD_IMM, .dtype = BF16, .imm = 1 };
    }
    EXPECT_STATUS(map(&f, ops, HEFT_MAX_OPS + 1, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("17 operations in one program, at most 16");
    EXPECT_STATUS(map(&f, ops, HEFT_MAX_OPS, &err), HEFT_OK);
    /* the cast that is added at the end counts as well */
    ops[HEFT_MAX_OPS - 1].dtype = F32;
    EXPECT_STATUS(map(&f, ops, HEFT_MAX_OPS, &err), HEFT_ERR_LIMIT);
    heft_view_t dst = tb_all(&f.tb, f.dst);
    heft_view_t srcs[HEFT_MAX_SOURCES + 1];
    for (int i = 0; i <= HEFT_MAX_SOURCES; i++) {
        srcs[i] = tb_all(&f.tb, f.src);
    }
    EXPECT_STATUS(heft_tape_map(f.tb.tape, &dst, srcs, HEFT_MAX_SOURCES + 1, ops, 1, "m", &err),
                  HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("5 source views, at most 4");
    tb_fini(&f.tb);
}

static void programs_have_one_form(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    /* garbage in unused fields, a cast to the same dtype, no cast at the end */
    const heft_op_t ops[] = {
        { .code = HEFT_OP_LOAD, .dtype = 7, .arg = 1, .reserved = 3, .imm = 2, .imm_bits = 9 },
        { .code = HEFT_OP_CAST, .dtype = F32, .arg = 5 },
        { .code = HEFT_OP_MUL_IMM, .dtype = F32, .arg = 5, .imm = 2, .imm_bits = 8 },
    };
    EXPECT_STATUS(map(&f, ops, 3, &err), HEFT_OK);
    const heft__write_t *w = &f.tb.tape->writes[0];
    const heft_op_t expected[] = { { .code = HEFT_OP_LOAD, .arg = 1 },
                                   { .code = HEFT_OP_MUL_IMM, .dtype = F32, .imm = 2 },
                                   { .code = HEFT_OP_CAST, .dtype = BF16 } };
    assert_int_equal(w->n_ops, 3);
    assert_memory_equal(w->ops, expected, sizeof expected);
    /* LOAD 0 alone is a plain copy */
    const heft_op_t load = { .code = HEFT_OP_LOAD };
    EXPECT_STATUS(map(&f, &load, 1, &err), HEFT_OK);
    assert_int_equal(f.tb.tape->writes[1].n_ops, 0);
    tb_fini(&f.tb);
}

static void constants_are_cast_at_once_where_that_only_moves_bits(void **state)
{
    (void)state;
    static const struct {
        uint8_t from;
        uint64_t bits;
        uint32_t n_ops; /* 1: folded */
        uint64_t result;
    } rows[] = {
        { F32, 0, 1, 0 },
        { HEFT_DTYPE_I64, 0, 1, 0 },
        { F32, 0x3f800000, 1, 0x3f80 },
        { F32, 0x3f800001, 2, 0 },
        { F32, 0x80000000, 1, 0x8000 },
        { HEFT_DTYPE_F16, 0x3c00, 2, 0 },
        { HEFT_DTYPE_F8_E8M0, 0, 2, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        fixture_t f;
        set_up(&f);
        const heft_op_t op = { .code = HEFT_OP_CONST,
                               .dtype = rows[i].from,
                               .imm_bits = rows[i].bits };
        EXPECT_STATUS(map(&f, &op, 1, &err), HEFT_OK);
        const heft__write_t *w = &f.tb.tape->writes[0];
        assert_int_equal(w->n_ops, rows[i].n_ops);
        if (rows[i].n_ops == 1) {
            assert_int_equal(w->ops[0].dtype, BF16);
            assert_int_equal(w->ops[0].imm_bits, rows[i].result);
        }
        tb_fini(&f.tb);
    }
}

static void bytes_of_a_constant_are_taken_at_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    const heft_op_t ops[] = {
        { .code = HEFT_OP_CONST, .dtype = F32, .imm_bits = 0x3f801234 },
        { .code = HEFT_OP_BITS, .dtype = BF16, .arg = 2 },
    };
    EXPECT_STATUS(map(&f, ops, 2, &err), HEFT_OK);
    const heft__write_t *w = &f.tb.tape->writes[0];
    assert_int_equal(w->n_ops, 1);
    assert_int_equal(w->ops[0].dtype, BF16);
    assert_int_equal(w->ops[0].imm_bits, 0x3f80);
    tb_fini(&f.tb);
}

static void fills_must_fit_the_dtype(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    heft_view_t dst = tb_all(&f.tb, f.dst);
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &dst, 0xffff, "f", &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &dst, 0x10000, "f", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("no element of dtype BF16");
    dst.buffer = 9;
    EXPECT_STATUS(heft_tape_fill(f.tb.tape, &dst, 0, "f", &err), HEFT_ERR_ARGUMENT);
    tb_fini(&f.tb);
}

static void packed_dtypes_are_copied_and_never_cast(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t s = tb_source(&tb, "s", HEFT_DTYPE_F4, TB_SHAPE(2, 8));
    uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_F4, TB_SHAPE(2, 8));
    uint32_t q = tb_param(&tb, "q", HEFT_DTYPE_U8, TB_SHAPE(2, 4));
    tb_copy(&tb, tb_all(&tb, p), tb_all(&tb, s));
    heft_view_t dst = tb_all(&tb, q);
    heft_view_t src = tb_all(&tb, s);
    EXPECT_STATUS(heft_tape_copy(tb.tape, &dst, &src, "c", &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("packed dtype F4");
    tb_fini(&tb);
}

/* ---- opaque writes ---- */

static void opaque_writes_need_a_name_and_distinct_destinations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    heft_tape_t *tape = f.tb.tape;
    heft_view_t src = tb_all(&f.tb, f.src);
    heft_view_t dsts[2] = { tb_narrow(tb_all(&f.tb, f.dst), 0, 0, 3),
                            tb_narrow(tb_all(&f.tb, f.dst), 0, 2, 2) };
    EXPECT_STATUS(heft_tape_opaque(tape, "", dsts, 1, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_opaque(tape, NULL, dsts, 1, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_opaque(tape, "mm", dsts, 0, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_tape_opaque(tape, "mm", dsts, 2, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("destinations 0 and 1 share elements of parameter \"p\"");
    EXPECT_STATUS(heft_tape_opaque(tape, "mm", &src, 1, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    src.offset = 1;
    EXPECT_STATUS(heft_tape_opaque(tape, "mm", dsts, 1, &src, 1, "o", &err), HEFT_ERR_ARGUMENT);
    assert_int_equal(heft_tape_get_n_writes(tape), 0);
    src.offset = 0;
    dsts[1] = tb_all(&f.tb, f.temp);
    EXPECT_STATUS(heft_tape_opaque(tape, "mm", dsts, 2, &src, 1, "o", &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_opaque(tape, "random", dsts, 2, NULL, 0, "o", &err), HEFT_OK);
    assert_string_equal(tape->writes[0].op, "mm");
    assert_int_equal(tape->writes[0].n_dsts, 2);
    tb_fini(&f.tb);
}

/* ---- every allocation failing in turn ---- */

static heft_status_t build(heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = NULL;
    uint32_t b[3] = { 0 };
    heft_shape_t shape = TB_SHAPE(4, 6);
    heft_status_t status = heft_tape_create(&tape, err);
    for (uint32_t i = 0; i < 3 && status == HEFT_OK; i++) {
        status = heft_tape_add_buffer(tape, (heft_buffer_kind_t)(i + 1), "some.name", BF16, &shape,
                                      &b[i], err);
    }
    heft_view_t src = heft_view_contiguous(b[0], &shape);
    heft_view_t dst = heft_view_contiguous(b[1], &shape);
    heft_view_t odd = dst; /* not nested, so that checking it takes memory */
    odd.extent[0] = 2;
    odd.stride[0] = 3;
    odd.extent[1] = 2;
    odd.stride[1] = 2;
    const heft_op_t ops[] = { { .code = HEFT_OP_LOAD }, { .code = HEFT_OP_NEG_EXP, .dtype = F32 } };
    if (status == HEFT_OK) {
        status = heft_tape_copy(tape, &dst, &src, "note 1", err);
    }
    if (status == HEFT_OK) {
        status = heft_tape_fill(tape, &odd, 1, "note 2", err);
    }
    if (status == HEFT_OK) {
        status = heft_tape_map(tape, &dst, &src, 1, ops, 2, "note 3", err);
    }
    heft_view_t dsts[2] = { odd, dst };
    dsts[1].buffer = b[2];
    if (status == HEFT_OK) {
        status = heft_tape_opaque(tape, "mm", dsts, 2, &src, 1, "note 4", err);
    }
    if (status != HEFT_OK) {
        heft_tape_destroy(tape);
        return status;
    }
    *tape_out = tape;
    return HEFT_OK;
}

static void building_survives_every_failed_allocation(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_tape_t *tape = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = build(&tape, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_tape_destroy(tape);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(err.status, HEFT_ERR_NOMEM);
        assert_null(tape);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_true(k > 5);
    assert_int_equal(heft__alloc_live(), live);
    heft_tape_destroy(NULL);
}

static void pruning_drops_sources_that_nothing_reads(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    set_up(&f);
    uint32_t unread = tb_source(&f.tb, "unread", BF16, TB_SHAPE(9));
    const heft_shape_t shape = { .rank = 2, .extent = { 4, 6 } };
    const heft_view_t dst = heft_view_contiguous(f.dst, &shape);
    const heft_view_t src = heft_view_contiguous(f.src, &shape);
    EXPECT_STATUS(heft_tape_copy(f.tb.tape, &dst, &src, "here", &err), HEFT_OK);
    heft_tape_t *pruned = NULL;
    int64_t live = heft__alloc_live();
    for (long k = 0; pruned == NULL; k++) {
        heft__alloc_fail_at(k);
        heft_status_t status = heft_tape_prune(f.tb.tape, &pruned, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_true(status == HEFT_OK || heft__alloc_live() == live);
    }
    uint32_t found = 0;
    assert_int_equal(heft_tape_find_buffer(pruned, HEFT_BUFFER_SOURCE, "unread", &found, NULL),
                     HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_tape_find_buffer(pruned, HEFT_BUFFER_SOURCE, "s", &found, &err), HEFT_OK);
    assert_int_equal(heft_tape_get_n_writes(pruned), 1);
    assert_int_equal(heft_tape_get_n_buffers(pruned), 3);
    assert_int_equal(unread, 3);
    heft_tape_destroy(pruned);
    tb_fini(&f.tb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_found_by_kind_and_name),
        cmocka_unit_test(packed_buffers_are_counted_in_bytes),
        cmocka_unit_test(bad_buffers_are_refused),
        cmocka_unit_test(views_must_lie_inside_their_buffers),
        cmocka_unit_test(both_sides_must_have_the_same_extents),
        cmocka_unit_test(destinations_are_no_sources_and_have_no_element_twice),
        cmocka_unit_test(empty_views_touch_nothing_wherever_they_stand),
        cmocka_unit_test(a_note_is_kept_once),
        cmocka_unit_test(messages_go_without_a_note),
        cmocka_unit_test(long_names_are_cut_in_front),
        cmocka_unit_test(views_come_back_as_they_were_given),
        cmocka_unit_test(unsound_programs_are_refused),
        cmocka_unit_test(too_long_programs_and_too_many_sources_are_refused),
        cmocka_unit_test(programs_have_one_form),
        cmocka_unit_test(constants_are_cast_at_once_where_that_only_moves_bits),
        cmocka_unit_test(bytes_of_a_constant_are_taken_at_once),
        cmocka_unit_test(fills_must_fit_the_dtype),
        cmocka_unit_test(packed_dtypes_are_copied_and_never_cast),
        cmocka_unit_test(opaque_writes_need_a_name_and_distinct_destinations),
        cmocka_unit_test(pruning_drops_sources_that_nothing_reads),
        cmocka_unit_test(building_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
