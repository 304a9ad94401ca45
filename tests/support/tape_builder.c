/* SPDX-License-Identifier: Apache-2.0 */
#include "tape_builder.h"

#include "heft_test.h"

#define MUST(tb, call)                                    \
    do {                                                  \
        if ((call) != HEFT_OK) {                          \
            fail_msg("%s: %s", #call, (tb)->err.message); \
        }                                                 \
    } while (0)

void tb_init(tape_builder_t *tb)
{
    *tb = (tape_builder_t){ .err = HEFT_ERROR_INIT };
    MUST(tb, heft_tape_create(&tb->tape, &tb->err));
}

void tb_fini(tape_builder_t *tb)
{
    heft__fold_destroy(tb->fold);
    heft_tape_destroy(tb->tape);
}

static uint32_t add(tape_builder_t *tb, heft_buffer_kind_t kind, const char *name,
                    heft_dtype_t dtype, heft_shape_t shape)
{
    uint32_t buffer = 0;
    MUST(tb, heft_tape_add_buffer(tb->tape, kind, name, dtype, &shape, &buffer, &tb->err));
    return buffer;
}

uint32_t tb_source(tape_builder_t *tb, const char *name, heft_dtype_t dtype, heft_shape_t shape)
{
    return add(tb, HEFT_BUFFER_SOURCE, name, dtype, shape);
}

uint32_t tb_param(tape_builder_t *tb, const char *name, heft_dtype_t dtype, heft_shape_t shape)
{
    return add(tb, HEFT_BUFFER_PARAM, name, dtype, shape);
}

uint32_t tb_temp(tape_builder_t *tb, heft_dtype_t dtype, heft_shape_t shape)
{
    return add(tb, HEFT_BUFFER_TEMP, NULL, dtype, shape);
}

heft_view_t tb_all(const tape_builder_t *tb, uint32_t buffer)
{
    return heft_view_contiguous(buffer, &tb->tape->buffers[buffer].shape);
}

heft_view_t tb_reshape(uint32_t buffer, heft_shape_t shape)
{
    return heft_view_contiguous(buffer, &shape);
}

heft_view_t tb_narrow(heft_view_t v, int k, int64_t from, int64_t n)
{
    v.offset += from * v.stride[k];
    v.extent[k] = n;
    return v;
}

heft_view_t tb_select(heft_view_t v, int k, int64_t i)
{
    v.offset += i * v.stride[k];
    for (; k + 1 < v.rank; k++) {
        v.extent[k] = v.extent[k + 1];
        v.stride[k] = v.stride[k + 1];
    }
    v.rank--;
    return v;
}

heft_view_t tb_swap(heft_view_t v, int a, int b)
{
    heft_view_t w = v;
    w.extent[a] = v.extent[b];
    w.stride[a] = v.stride[b];
    w.extent[b] = v.extent[a];
    w.stride[b] = v.stride[a];
    return w;
}

heft_view_t tb_flip(heft_view_t v, int k)
{
    v.offset += (v.extent[k] - 1) * v.stride[k];
    v.stride[k] = -v.stride[k];
    return v;
}

heft_view_t tb_step(heft_view_t v, int k, int64_t step)
{
    v.extent[k] = (v.extent[k] + step - 1) / step;
    v.stride[k] *= step;
    return v;
}

heft_view_t tb_expand(heft_view_t v, int k, int64_t n)
{
    for (int i = v.rank; i > k; i--) {
        v.extent[i] = v.extent[i - 1];
        v.stride[i] = v.stride[i - 1];
    }
    v.extent[k] = n;
    v.stride[k] = 0;
    v.rank++;
    return v;
}

void tb_copy(tape_builder_t *tb, heft_view_t dst, heft_view_t src)
{
    MUST(tb, heft_tape_copy(tb->tape, &dst, &src, "test", &tb->err));
}

void tb_fill(tape_builder_t *tb, heft_view_t dst, uint64_t bits)
{
    MUST(tb, heft_tape_fill(tb->tape, &dst, bits, "test", &tb->err));
}

void tb_fold(tape_builder_t *tb)
{
    MUST(tb, heft__fold_create(tb->tape, NULL, &tb->fold, &tb->err));
}

uint64_t tb_n_pieces(const tape_builder_t *tb, uint32_t param)
{
    uint64_t n;
    (void)heft__fold_get_pieces(tb->fold, param, &n);
    return n;
}

const heft__fold_piece_t *tb_piece(const tape_builder_t *tb, uint32_t param, uint64_t i)
{
    uint64_t n;
    const heft__fold_piece_t *pieces = heft__fold_get_pieces(tb->fold, param, &n);
    assert_true(i < n);
    return &pieces[i];
}

/* Solve for the index of an element in a piece whose dimensions nest, which all small tests have.
 */
static bool find_index(const heft__fold_piece_t *p, int64_t element, int64_t *index)
{
    int64_t left = element - p->dst_offset;
    for (int k = 0; k < p->rank; k++) {
        index[k] = heft__min_i64(left / p->dst_stride[k], p->extent[k] - 1);
        left -= index[k] * p->dst_stride[k];
    }
    return element >= p->dst_offset && left == 0;
}

const heft__fold_piece_t *tb_find(const tape_builder_t *tb, uint32_t param, int64_t element,
                                  uint32_t s, int64_t *source_element_out)
{
    for (uint64_t i = 0; i < tb_n_pieces(tb, param); i++) {
        const heft__fold_piece_t *p = tb_piece(tb, param, i);
        int64_t index[HEFT_MAX_DIMS];
        if (!find_index(p, element, index)) {
            continue;
        }
        *source_element_out = s < p->n_srcs ? p->srcs[s].offset : -1;
        for (int k = 0; k < p->rank && s < p->n_srcs; k++) {
            *source_element_out += index[k] * p->srcs[s].stride[k];
        }
        return p;
    }
    return NULL;
}

void tb_expect(const tape_builder_t *tb, uint32_t param, int64_t element, uint32_t source,
               int64_t from)
{
    int64_t got = -1;
    const heft__fold_piece_t *p = tb_find(tb, param, element, 0, &got);
    if (p == NULL || p->n_ops != 0 || p->srcs[0].buffer != source || got != from) {
        fail_msg("buffer %u element %lld: from %u element %lld, expected %u element %lld", param,
                 (long long)element, p != NULL && p->n_srcs > 0 ? p->srcs[0].buffer : UINT32_MAX,
                 (long long)got, source, (long long)from);
    }
}

void tb_expect_run(const tape_builder_t *tb, uint32_t param, int64_t first, uint32_t source,
                   const int64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tb_expect(tb, param, first + (int64_t)i, source, from[i]);
    }
}

void tb_expect_constant(const tape_builder_t *tb, uint32_t param, int64_t element, uint64_t bits)
{
    int64_t unused;
    const heft__fold_piece_t *p = tb_find(tb, param, element, 0, &unused);
    assert_non_null(p);
    assert_int_equal(p->n_srcs, 0);
    assert_int_equal(p->n_ops, 1);
    assert_int_equal(p->ops[0].code, HEFT_OP_CONST);
    assert_int_equal(p->ops[0].imm_bits, bits);
}

void tb_expect_nothing(const tape_builder_t *tb, uint32_t param, int64_t element)
{
    int64_t unused;
    assert_null(tb_find(tb, param, element, 0, &unused));
}
