/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes through their JSON form, on many random ones: the tape read back leaves the same value in
 * every element of every parameter, as the interpreter judges, and neither text nor digest depends
 * on how buffers are numbered.
 */
#include "fold_case.h"
#include "heft_test.h"
#include "ref_tape.h"

#include "heft/model.h"

/* ---- values of two runs ---- */

typedef struct pairing {
    const heft_tape_t *a_tape;
    const heft_tape_t *b_tape;
    const ref_run_t *a;
    const ref_run_t *b;
    uint32_t *mate; /* value of a -> value of b, or REF_UNDEFINED: not known yet */
} pairing_t;

/* Operations are told apart by their order; other writes may be left out. */
static uint32_t ordinal_of(const heft_tape_t *tape, uint32_t write)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < write; w++) {
        n += tape->writes[w].kind == HEFT_WRITE_OPAQUE;
    }
    return n;
}

static bool same_load(const pairing_t *p, const ref_value_t *x, const ref_value_t *y)
{
    bool is_opaque = x->opaque_write != HEFT__NO_WRITE;
    if (is_opaque != (y->opaque_write != HEFT__NO_WRITE) || x->element != y->element) {
        return false;
    }
    return is_opaque
               ? ordinal_of(p->a_tape, x->opaque_write) == ordinal_of(p->b_tape, y->opaque_write)
               : strcmp(p->a_tape->buffers[x->buffer].name, p->b_tape->buffers[y->buffer].name) ==
                     0;
}

/* Values are interned, so each of a has one mate. */
static bool same_value(pairing_t *p, uint32_t a, uint32_t b)
{
    if (a == REF_UNDEFINED || b == REF_UNDEFINED) {
        return a == b;
    }
    if (p->mate[a] != REF_UNDEFINED) {
        return p->mate[a] == b;
    }
    const ref_value_t *x = &p->a->values[a];
    const ref_value_t *y = &p->b->values[b];
    if (x->code != y->code || x->dtype != y->dtype || x->bits != y->bits ||
        (x->code == HEFT_OP_LOAD && !same_load(p, x, y))) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (!same_value(p, x->args[i], y->args[i])) {
            return false;
        }
    }
    p->mate[a] = b;
    return true;
}

static void check_params(pairing_t *p)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t x = 0; x < p->a_tape->n_buffers; x++) {
        const heft_buffer_info_t *info = &p->a_tape->buffers[x];
        uint32_t y = 0;
        if (info->kind != HEFT_BUFFER_PARAM) {
            continue;
        }
        EXPECT_STATUS(heft_tape_find_buffer(p->b_tape, info->kind, info->name, &y, &err), HEFT_OK);
        assert_memory_equal(&info->shape, &p->b_tape->buffers[y].shape, sizeof info->shape);
        for (int64_t e = 0; e < info->n_elems; e++) {
            if (!same_value(p, p->a->buffers[x][e], p->b->buffers[y][e])) {
                fail_msg("element %lld of \"%s\" differs", (long long)e, info->name);
            }
        }
    }
}

static void check_inputs(pairing_t *p)
{
    assert_int_equal(p->a->n_inputs, p->b->n_inputs);
    for (size_t i = 0; i < p->a->n_inputs; i++) {
        const ref_input_t *x = &p->a->inputs[i];
        const ref_input_t *y = &p->b->inputs[i];
        assert_int_equal(x->input, y->input);
        assert_int_equal(x->n, y->n);
        for (size_t e = 0; e < x->n; e++) {
            assert_true(same_value(p, x->values[e], y->values[e]));
        }
    }
}

static void check_same(const heft_tape_t *a_tape, const heft_tape_t *b_tape)
{
    ref_run_t a;
    ref_run_t b;
    ref_run_init(&a, a_tape);
    ref_run_init(&b, b_tape);
    pairing_t p = { .a_tape = a_tape, .b_tape = b_tape, .a = &a, .b = &b };
    p.mate = calloc(a.n_values + 1, sizeof *p.mate);
    assert_non_null(p.mate);
    assert_int_equal(a.failed, b.failed);
    if (!a.failed) {
        check_params(&p);
        check_inputs(&p);
    }
    free(p.mate);
    ref_run_fini(&a);
    ref_run_fini(&b);
}

/* ---- the same tape with other numbers ---- */

static heft_view_t moved(const heft__tape_view_t *view, const uint32_t *numbers)
{
    heft_view_t out = heft__tape_view_expand(view);
    out.buffer = numbers[out.buffer];
    return out;
}

static void add_write(heft_tape_t *to, const heft__write_t *w, const uint32_t *numbers)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t dsts[2];
    heft_view_t srcs[HEFT_MAX_SOURCES];
    const heft_op_t load = { .code = HEFT_OP_LOAD };
    for (uint32_t i = 0; i < w->n_dsts; i++) {
        dsts[i] = moved(&w->dsts[i], numbers);
    }
    for (uint32_t i = 0; i < w->n_srcs; i++) {
        srcs[i] = moved(&w->srcs[i], numbers);
    }
    if (w->kind == HEFT_WRITE_OPAQUE) {
        EXPECT_STATUS(heft_tape_opaque(to, w->op, dsts, w->n_dsts, srcs, w->n_srcs, w->note, &err),
                      HEFT_OK);
        return;
    }
    EXPECT_STATUS(heft_tape_map(to, dsts, srcs, w->n_srcs, w->n_ops > 0 ? w->ops : &load,
                                w->n_ops > 0 ? w->n_ops : 1, w->note, &err),
                  HEFT_OK);
}

/* Buffers in reverse order, and one temporary that nothing uses. */
static heft_tape_t *renumbered(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *to = NULL;
    uint32_t *numbers = calloc(tape->n_buffers, sizeof *numbers);
    const heft_shape_t shape = { .rank = 1, .extent = { 3 } };
    uint32_t unused;
    assert_non_null(numbers);
    EXPECT_STATUS(heft_tape_create(&to, &err), HEFT_OK);
    EXPECT_STATUS(
        heft_tape_add_buffer(to, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, &shape, &unused, &err),
        HEFT_OK);
    for (size_t b = tape->n_buffers; b-- > 0;) {
        EXPECT_STATUS(heft__tape_add_storage(to, &tape->buffers[b], &numbers[b], &err), HEFT_OK);
    }
    for (size_t i = 0; i < tape->n_writes; i++) {
        add_write(to, &tape->writes[i], numbers);
    }
    free(numbers);
    return to;
}

/* ---- the property ---- */

static char *encoded(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft_tape_encode(tape, &text, &err), HEFT_OK);
    return text;
}

static void check_tape(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *back = NULL;
    heft_tape_t *other = renumbered(tape);
    char digests[2][HEFT_TAPE_DIGEST_BYTES];
    char *text = encoded(tape);
    EXPECT_STATUS(heft_tape_decode(text, strlen(text), &back, &err), HEFT_OK);
    check_same(tape, back);
    char *again = encoded(back);
    char *third = encoded(other);
    assert_string_equal(text, again);
    assert_string_equal(text, third);
    EXPECT_STATUS(heft_tape_query_digest(tape, digests[0], &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_query_digest(other, digests[1], &err), HEFT_OK);
    assert_string_equal(digests[0], digests[1]);
    heft_string_free(text);
    heft_string_free(again);
    heft_string_free(third);
    heft_tape_destroy(back);
    heft_tape_destroy(other);
}

static void a_tape_read_back_does_the_same(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(6000);
    uint64_t n_writes = 0;
    for (int64_t i = 0; i < n; i++) {
        uint8_t bytes[400];
        uint64_t rng = seed + (uint64_t)i;
        size_t len = (size_t)heft_test_random_in(&rng, 20, sizeof bytes);
        for (size_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)heft_test_random(&rng);
        }
        heft_tape_t *tape = fold_case_make_tape(bytes, len);
        n_writes += tape->n_writes;
        check_tape(tape);
        heft_tape_destroy(tape);
    }
    assert_true(n_writes > (uint64_t)n);
    assert_int_equal(heft__alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_tape_read_back_does_the_same) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
