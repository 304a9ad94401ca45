/* SPDX-License-Identifier: Apache-2.0 */
/* Tapes as JSON: the page's example byte for byte, what the reader refuses and how it says so, and
 * what has no part in the digest. */
#include "heft_test.h"
#include "tape_builder.h"

#include "heft/model.h"

/* ---- the example of the page ---- */

/* The first block of JSON behind the mark "golden". */
static char *read_golden(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__file_read(path, "page", 1 << 20, false, &text, &n, &err), HEFT_OK);
    const char *begin = strstr(text, "<!-- golden");
    assert_non_null(begin);
    begin = strstr(begin, "```json\n");
    assert_non_null(begin);
    begin += strlen("```json\n");
    const char *end = strstr(begin, "```");
    assert_non_null(end);
    char *golden = heft__strndup(begin, (size_t)(end - begin));
    assert_non_null(golden);
    heft__free(text);
    return golden;
}

static void copy(tape_builder_t *tb, heft_view_t dst, heft_view_t src, const char *note)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_copy(tb->tape, &dst, &src, note, &err), HEFT_OK);
}

static void make_example(tape_builder_t *tb)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tb_init(tb);
    uint32_t scratch = tb_param(tb, "scratch", HEFT_DTYPE_BF16, TB_SHAPE(4));
    uint32_t t1 = tb_temp(tb, HEFT_DTYPE_BF16, TB_SHAPE(2, 2));
    uint32_t q = tb_source(tb, "q", HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    uint32_t t0 = tb_temp(tb, HEFT_DTYPE_BF16, TB_SHAPE(2, 4));
    uint32_t k = tb_source(tb, "k", HEFT_DTYPE_BF16, TB_SHAPE(2, 2));
    uint32_t a_log = tb_source(tb, "a_log", HEFT_DTYPE_F32, TB_SHAPE(4));
    uint32_t qkv = tb_param(tb, "qkv", HEFT_DTYPE_BF16, TB_SHAPE(8, 2));
    uint32_t a = tb_param(tb, "a", HEFT_DTYPE_F32, TB_SHAPE(4));
    heft_view_t rows = tb_all(tb, qkv);
    heft_view_t padding = tb_narrow(rows, 0, 6, 2);
    EXPECT_STATUS(heft_tape_fill(tb->tape, &padding, 0, "", &err), HEFT_OK);
    copy(tb, tb_all(tb, t0), tb_swap(tb_all(tb, q), 0, 1), "model.py:12");
    copy(tb, tb_narrow(rows, 0, 0, 4), tb_reshape(t0, TB_SHAPE(4, 2)), "model.py:12");
    copy(tb, tb_narrow(rows, 0, 4, 2), tb_swap(tb_all(tb, k), 0, 1), NULL);
    const heft_op_t ops[] = { { .code = HEFT_OP_LOAD },
                              { .code = HEFT_OP_NEG_EXP, .dtype = HEFT_DTYPE_F32 },
                              { .code = HEFT_OP_MUL_IMM, .dtype = HEFT_DTYPE_F32, .imm = 2 } };
    heft_view_t to = tb_all(tb, a);
    heft_view_t from = tb_all(tb, a_log);
    EXPECT_STATUS(heft_tape_map(tb->tape, &to, &from, 1, ops, 3, NULL, &err), HEFT_OK);
    heft_view_t product = tb_all(tb, t1);
    heft_view_t factors[] = { tb_narrow(tb_all(tb, q), 0, 0, 2), tb_swap(tb_all(tb, k), 0, 1) };
    EXPECT_STATUS(heft_tape_opaque(tb->tape, "aten.mm", &product, 1, factors, 2, NULL, &err),
                  HEFT_OK);
    copy(tb, tb_all(tb, scratch), tb_reshape(t1, TB_SHAPE(4)), NULL);
}

static void the_pages_example_is_written_so(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    char *text = NULL;
    char *golden = read_golden("../docs/formats/tape.md");
    make_example(&tb);
    EXPECT_STATUS(heft_tape_encode(tb.tape, &text, &err), HEFT_OK);
    assert_string_equal(text, golden);
    heft_tape_t *back = NULL;
    EXPECT_STATUS(heft_tape_decode(golden, strlen(golden), &back, &err), HEFT_OK);
    assert_int_equal(heft_tape_get_n_writes(back), 7);
    heft_tape_destroy(back);
    heft_string_free(text);
    heft__free(golden);
    tb_fini(&tb);
}

/* ---- what has no part in the digest ---- */

static void notes_and_empty_writes_do_not_change_the_digest(void **state)
{
    (void)state;
    char digests[2][HEFT_TAPE_DIGEST_BYTES];
    for (int turn = 0; turn < 2; turn++) {
        heft_error_t err = HEFT_ERROR_INIT;
        tape_builder_t tb;
        tb_init(&tb);
        uint32_t x = tb_source(&tb, "x", HEFT_DTYPE_BF16, TB_SHAPE(4, 6));
        uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_BF16, TB_SHAPE(4, 6));
        heft_view_t to = turn == 0 ? tb_all(&tb, p) : tb_reshape(p, TB_SHAPE(2, 2, 6));
        heft_view_t from = turn == 0 ? tb_all(&tb, x) : tb_reshape(x, TB_SHAPE(2, 2, 6));
        const char *note = turn == 0 ? "a.py:1" : "a.py:2";
        EXPECT_STATUS(heft_tape_copy(tb.tape, &to, &from, note, &err), HEFT_OK);
        if (turn == 1) {
            tb_fill(&tb, tb_narrow(tb_all(&tb, p), 0, 4, 0), 0);
        }
        EXPECT_STATUS(heft_tape_query_digest(tb.tape, digests[turn], &err), HEFT_OK);
        tb_fini(&tb);
    }
    assert_string_equal(digests[0], digests[1]);
}

static void the_order_of_writes_changes_the_digest(void **state)
{
    (void)state;
    char digests[2][HEFT_TAPE_DIGEST_BYTES];
    for (int turn = 0; turn < 2; turn++) {
        heft_error_t err = HEFT_ERROR_INIT;
        tape_builder_t tb;
        tb_init(&tb);
        uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_BF16, TB_SHAPE(4));
        tb_fill(&tb, tb_all(&tb, p), turn == 0 ? 0 : 1);
        tb_fill(&tb, tb_all(&tb, p), turn == 0 ? 1 : 0);
        EXPECT_STATUS(heft_tape_query_digest(tb.tape, digests[turn], &err), HEFT_OK);
        tb_fini(&tb);
    }
    assert_string_not_equal(digests[0], digests[1]);
}

/* ---- values that are easily lost ---- */

static void packed_shapes_and_odd_constants_come_back(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    heft_tape_t *back = NULL;
    char *text = NULL;
    char *again = NULL;
    tb_init(&tb);
    uint32_t x = tb_source(&tb, "x", HEFT_DTYPE_F6_E2M3, TB_SHAPE(2, 8));
    uint32_t t = tb_temp(&tb, HEFT_DTYPE_F6_E2M3, TB_SHAPE(4, 4));
    uint32_t p = tb_param(&tb, "p", HEFT_DTYPE_F6_E2M3, TB_SHAPE(2, 8));
    uint32_t s = tb_param(&tb, "s", HEFT_DTYPE_F64, TB_SCALAR);
    tb_copy(&tb, tb_reshape(t, TB_SHAPE(12)), tb_reshape(x, TB_SHAPE(12)));
    tb_copy(&tb, tb_reshape(p, TB_SHAPE(12)), tb_reshape(t, TB_SHAPE(12)));
    const heft_op_t ops[] = {
        { .code = HEFT_OP_CONST, .dtype = HEFT_DTYPE_F64, .imm_bits = 0x7ff8000000000123 },
        { .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_F64, .imm = -0.1 },
        { .code = HEFT_OP_BITS, .dtype = HEFT_DTYPE_U16, .arg = 6 },
        { .code = HEFT_OP_CAST, .dtype = HEFT_DTYPE_F64 }
    };
    heft_view_t to = tb_all(&tb, s);
    EXPECT_STATUS(heft_tape_map(tb.tape, &to, NULL, 0, ops, 4, NULL, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_encode(tb.tape, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_decode(text, strlen(text), &back, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_encode(back, &again, &err), HEFT_OK);
    assert_string_equal(text, again);
    assert_memory_equal(&back->buffers[0].shape, &tb.tape->buffers[x].shape, sizeof(heft_shape_t));
    assert_int_equal(back->writes[2].ops[0].imm_bits, 0x7ff8000000000123);
    assert_true(back->writes[2].ops[1].imm == -0.1);
    assert_int_equal(back->writes[2].ops[2].arg, 6);
    heft_string_free(text);
    heft_string_free(again);
    heft_tape_destroy(back);
    tb_fini(&tb);
}

static void a_name_that_is_no_text_is_not_written(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    char *text = NULL;
    tb_init(&tb);
    (void)tb_source(&tb, "a\xff", HEFT_DTYPE_BF16, TB_SHAPE(4));
    EXPECT_STATUS(heft_tape_encode(tb.tape, &text, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("is no UTF-8");
    assert_null(text);
    tb_fini(&tb);
}

/* ---- refusals ---- */

/* A tape whose digest is not looked at before the rest is wrong. */
static char *example_with(const char *old, const char *new)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    char *text = NULL;
    heft__text_t out;
    make_example(&tb);
    EXPECT_STATUS(heft_tape_encode(tb.tape, &text, &err), HEFT_OK);
    const char *at = strstr(text, old);
    assert_non_null(at);
    heft__text_init(&out);
    heft__text_put_n(&out, text, (size_t)(at - text));
    heft__text_put(&out, new);
    heft__text_put(&out, at + strlen(old));
    heft_string_free(text);
    tb_fini(&tb);
    return heft__text_take(&out);
}

static void the_reader_refuses_and_says_what(void **state)
{
    (void)state;
    static const struct {
        const char *old;
        const char *new;
        heft_status_t status;
        const char *message;
    } rows[] = {
        { "\"heft_tape\": 1", "\"heft_tape\": 2", HEFT_ERR_UNSUPPORTED, "format version 2" },
        { "\"heft_tape\": 1", "\"heft_tape\": \"1\"", HEFT_ERR_FORMAT, "format version" },
        { "\"notes\"", "\"note\"", HEFT_ERR_FORMAT, "unknown key \"note\"" },
        { "\"digest\"", "\"notes\"", HEFT_ERR_FORMAT, "duplicate" },
        { "[\"k\", \"BF16\", [2, 2]]", "[\"z\", \"BF16\", [2, 2]]", HEFT_ERR_FORMAT,
          "\"sources\" 2 must be [name, dtype, shape], by name" },
        { "[\"k\", \"BF16\", [2, 2]]", "[\"k\", \"bf16\", [2, 2]]", HEFT_ERR_FORMAT,
          "\"sources\" 1 must be" },
        { "[\"k\", \"BF16\", [2, 2]]", "[\"k\", \"BF16\", [-2, 2]]", HEFT_ERR_FORMAT,
          "\"sources\" 1: " },
        { "[\"BF16\", 8]", "[\"BF16\", 8, 1]", HEFT_ERR_FORMAT, "[dtype, elements]" },
        { "[\"BF16\", 8]", "[\"BF16\", 7]", HEFT_ERR_FORMAT, "\"writes\" 1: " },
        { "\"aten.mm\"", "\"\"", HEFT_ERR_FORMAT, "\"operations\" must be" },
        { "\"aten.mm\"", "\"heft.nothing\"", HEFT_ERR_UNSUPPORTED, "heft.nothing" },
        { "\"model.py:12\"", "\"model\\u0007\"", HEFT_ERR_FORMAT, "\"notes\" must be" },
        { "p1+12[4] = 0", "p1+12[4] =0", HEFT_ERR_FORMAT, "byte 9 of" },
        { "p1+12[4] = 0", "p1+12[4] = 00", HEFT_ERR_FORMAT, "bits in hex" },
        { "p1+12[4] = 0", "p1+13[4] = 0", HEFT_ERR_FORMAT, "reaches elements 13 to 16" },
        { "p1+12[4] = 0", "p1+012[4] = 0", HEFT_ERR_FORMAT, "an offset in elements expected" },
        { "p1+12[4] = 0", "p3+12[4] = 0", HEFT_ERR_FORMAT, "number of a buffer" },
        { "p1+12[4] = 0", "x1+12[4] = 0", HEFT_ERR_FORMAT, "begins with s, p or t" },
        { "p1+12[4] = 0", "s1[4] = 0", HEFT_ERR_FORMAT, "writes to source \"k\"" },
        { "p1+12[4] = 0", "p1+12[4]*0 = 0", HEFT_ERR_FORMAT, "\"writes\" 0: " },
        { "p1+12[4] = 0", "p1+12[1,1,1,1,1,1,1,1,1,1,1,1,4] = 0", HEFT_ERR_FORMAT, "12 at most" },
        { "p1+12[4] = 0", "p1[9223372036854775808] = 0", HEFT_ERR_FORMAT, "extents" },
        { "p1+12[4] = 0", "p1[4294967296,4294967296] = 0", HEFT_ERR_FORMAT, "below 2^63" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] < s2*1 #0", HEFT_ERR_FORMAT, "a stride for each" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] < s2*1,-0 #0", HEFT_ERR_FORMAT, "a stride for each" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] < s2*1,2 #1", HEFT_ERR_FORMAT, "number of a note" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] < s2 s2", HEFT_ERR_FORMAT, "one source, or :" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] < s2*1,2 #0 ", HEFT_ERR_FORMAT, "the end expected" },
        { "t0[2,4] < s2*1,2 #0", "t0[2,4] t1[4] < s2", HEFT_ERR_FORMAT, "one destination" },
        { "load.0 negexp", "load.1 negexp", HEFT_ERR_FORMAT, "loads source 1 of 1" },
        { "load.0 negexp", "load.4 negexp", HEFT_ERR_FORMAT, "the number of a source expected" },
        { "load.0 negexp", "lead.0 negexp", HEFT_ERR_FORMAT, "an operation and a dot" },
        { "negexp.F32", "negexp.f32", HEFT_ERR_FORMAT, "a dtype expected" },
        { "mul.F32.4000000000000000", "mul.F32", HEFT_ERR_FORMAT, "bits in hex" },
        { "mul.F32.4000000000000000", "mul.F32.40000000000000000", HEFT_ERR_FORMAT, "the end" },
        { "!0 <", "!1 <", HEFT_ERR_FORMAT, "number of an operation" },
        { "!0 <", "!0<", HEFT_ERR_FORMAT, "a blank and <" },
        { "p2[4] < t1", "p2[4] < t0", HEFT_ERR_FORMAT, "was it edited?" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_tape_t *tape = NULL;
        char *text = example_with(rows[i].old, rows[i].new);
        assert_non_null(text);
        heft_status_t status = heft_tape_decode(text, strlen(text), &tape, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].message) == NULL) {
            fail_msg("\"%s\": %s: %s", rows[i].new, heft_status_get_name(status), err.message);
        }
        assert_null(tape);
        heft__free(text);
    }
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    tape_builder_t tb;
    make_example(&tb);
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_tape_t *back = NULL;
        char *text = NULL;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft_tape_encode(tb.tape, &text, &err);
        if (status == HEFT_OK) {
            status = heft_tape_decode(text, strlen(text), &back, &err);
        }
        heft__alloc_fail_at(-1);
        assert_true((status == HEFT_OK) == (back != NULL));
        heft_string_free(text);
        heft_tape_destroy(back);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 40);
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    tb_fini(&tb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pages_example_is_written_so),
        cmocka_unit_test(notes_and_empty_writes_do_not_change_the_digest),
        cmocka_unit_test(the_order_of_writes_changes_the_digest),
        cmocka_unit_test(packed_shapes_and_odd_constants_come_back),
        cmocka_unit_test(a_name_that_is_no_text_is_not_written),
        cmocka_unit_test(the_reader_refuses_and_says_what),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
