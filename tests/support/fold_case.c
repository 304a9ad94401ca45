/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding bytes to tapes that use every kind of view and write, and checking the fold. */
#include "fold_case.h"

#include "ref_tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes to numbers ---- */

typedef struct gen {
    const uint8_t *data;
    size_t n;
    size_t at;
    heft_tape_t *tape;
    bool is_partial[64]; /* by buffer: perhaps not all of it is written */
    bool only_copies;    /* one dtype, copies and fills: bytes can be compared as well */
    heft_error_t err;
} gen_t;

/* Something in [lo, hi]; lo when the bytes have run out. */
static int64_t pick(gen_t *g, int64_t lo, int64_t hi)
{
    uint8_t byte = g->at < g->n ? g->data[g->at] : 0;
    g->at++;
    return lo + byte % (hi - lo + 1);
}

static bool one_in(gen_t *g, int64_t n)
{
    return pick(g, 0, n - 1) == n - 1;
}

static void must_ok(gen_t *g, heft_status_t status)
{
    if (status != HEFT_OK) {
        (void)fprintf(stderr, "a sound tape was refused: %s\n", g->err.message);
        abort();
    }
}

/* ---- buffers ---- */

static heft_dtype_t pick_dtype(gen_t *g)
{
    static const heft_dtype_t dtypes[] = { HEFT_DTYPE_BF16, HEFT_DTYPE_BF16, HEFT_DTYPE_BF16,
                                           HEFT_DTYPE_F32, HEFT_DTYPE_F16 };
    return g->only_copies ? HEFT_DTYPE_BF16 : dtypes[pick(g, 0, 4)];
}

static heft_shape_t pick_shape(gen_t *g)
{
    heft_shape_t shape = { .rank = (int32_t)pick(g, 0, 4) };
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) {
        int64_t e = pick(g, 1, 6);
        shape.extent[k] = n * e <= 144 ? e : 1;
        n *= shape.extent[k];
    }
    if (shape.rank > 0 && one_in(g, 40)) {
        shape.extent[shape.rank - 1] = 0;
    }
    return shape;
}

static uint32_t add_buffer(gen_t *g, heft_buffer_kind_t kind, const heft_shape_t *shape)
{
    char name[32];
    uint32_t buffer = 0;
    (void)snprintf(name, sizeof name, "b%zu", g->tape->n_buffers);
    must_ok(g, heft_tape_add_buffer(g->tape, kind, name, pick_dtype(g), shape, &buffer, &g->err));
    return buffer;
}

/* ---- views ---- */

static void drop_dim(heft_view_t *v, int k)
{
    for (int i = k; i + 1 < v->rank; i++) {
        v->extent[i] = v->extent[i + 1];
        v->stride[i] = v->stride[i + 1];
    }
    v->rank--;
}

static void insert_dim(heft_view_t *v, int k, int64_t extent, int64_t stride)
{
    for (int i = v->rank; i > k; i--) {
        v->extent[i] = v->extent[i - 1];
        v->stride[i] = v->stride[i - 1];
    }
    v->extent[k] = extent;
    v->stride[k] = stride;
    v->rank++;
}

/* The whole buffer in some other shape. */
static heft_view_t reshape(gen_t *g, uint32_t buffer)
{
    heft_shape_t shape = { .rank = 0 };
    int64_t left = g->tape->buffers[buffer].n_elems;
    while (shape.rank < 3) {
        int64_t e = pick(g, 1, 9);
        if (left % e == 0) {
            shape.extent[shape.rank++] = e;
            left /= e;
        } else if (one_in(g, 3)) {
            break;
        }
    }
    shape.extent[shape.rank++] = left;
    return heft_view_contiguous(buffer, &shape);
}

static void narrow(gen_t *g, heft_view_t *v, int k)
{
    int64_t from = pick(g, 0, v->extent[k] - 1);
    v->extent[k] = pick(g, 1, v->extent[k] - from);
    v->offset += from * v->stride[k];
}

static void diagonal(heft_view_t *v, int k)
{
    v->extent[k] = heft__min_i64(v->extent[k], v->extent[k + 1]);
    v->stride[k] += v->stride[k + 1];
    drop_dim(v, k + 1);
}

static void swap_dims(heft_view_t *v, int a, int b)
{
    int64_t e = v->extent[a];
    int64_t s = v->stride[a];
    v->extent[a] = v->extent[b];
    v->stride[a] = v->stride[b];
    v->extent[b] = e;
    v->stride[b] = s;
}

/* One step on dimension k of a view without empty extents. */
static void change_view(gen_t *g, heft_view_t *v, int k, bool is_dst)
{
    switch (pick(g, 0, is_dst ? 7 : 9)) {
    case 0:
    case 1:
        narrow(g, v, k);
        break;
    case 2:
        v->offset += pick(g, 0, v->extent[k] - 1) * v->stride[k];
        drop_dim(v, k);
        break;
    case 3:
    case 4:
        swap_dims(v, k, (int)pick(g, 0, v->rank - 1));
        break;
    case 5:
        v->offset += (v->extent[k] - 1) * v->stride[k];
        v->stride[k] = -v->stride[k];
        break;
    case 6: {
        int64_t step = pick(g, 2, 3);
        v->extent[k] = (v->extent[k] + step - 1) / step;
        v->stride[k] *= step;
        break;
    }
    case 7:
        if (k + 1 < v->rank) {
            diagonal(v, k);
        } else if (v->rank < 5) {
            insert_dim(v, k, 1, pick(g, 0, 200) - 100);
        }
        break;
    case 8:
        if (v->rank < 5) {
            insert_dim(v, k, pick(g, 2, 3), 0);
        }
        break;
    default:
        if (v->rank < 5 && v->extent[k] > 2) {
            insert_dim(v, k + (int)pick(g, 0, 1), 2, v->stride[k]);
            for (int i = 0; i < v->rank; i++) {
                if (v->stride[i] == v->stride[k] && v->extent[i] > 2) {
                    v->extent[i]--;
                    break;
                }
            }
        }
        break;
    }
}

static bool view_is_inside(const heft_tape_t *tape, const heft_view_t *v)
{
    int64_t lo = v->offset;
    int64_t hi = v->offset;
    int64_t n = 1;
    for (int k = 0; k < v->rank; k++) {
        int64_t span = (v->extent[k] - 1) * v->stride[k];
        lo += span < 0 ? span : 0;
        hi += span > 0 ? span : 0;
        n *= v->extent[k];
    }
    return n > 0 && n <= 300 && lo >= 0 && hi < tape->buffers[v->buffer].n_elems;
}

static heft_view_t pick_view(gen_t *g, uint32_t buffer, bool is_dst)
{
    const heft_buffer_info_t *info = &g->tape->buffers[buffer];
    heft_view_t v = heft_view_contiguous(buffer, &info->shape);
    if (info->n_elems == 0) {
        return v;
    }
    if (one_in(g, 3)) {
        v = reshape(g, buffer);
    }
    int64_t n = pick(g, 0, 4);
    for (int64_t i = 0; i < n && v.rank > 0; i++) {
        heft_view_t next = v;
        change_view(g, &next, (int)pick(g, 0, v.rank - 1), is_dst);
        if (view_is_inside(g->tape, &next)) {
            v = next;
        }
    }
    return v;
}

/* Bring two views to the same extents: narrow both, broadcast src where it has extent 1. */
static bool match(gen_t *g, heft_view_t *dst, heft_view_t *src)
{
    while (src->rank > dst->rank) {
        if (src->extent[0] == 0) {
            return false;
        }
        src->offset += pick(g, 0, src->extent[0] - 1) * src->stride[0];
        drop_dim(src, 0);
    }
    while (src->rank < dst->rank) {
        insert_dim(src, 0, 1, 0);
    }
    for (int k = 0; k < dst->rank; k++) {
        if (src->extent[k] == 1 && dst->extent[k] != 1) {
            src->extent[k] = dst->extent[k];
            src->stride[k] = 0;
        }
        int64_t e = heft__min_i64(src->extent[k], dst->extent[k]);
        src->offset += e > 0 ? (src->extent[k] - e) * src->stride[k] : 0;
        src->extent[k] = e;
        dst->extent[k] = e;
    }
    return true;
}

/* ---- writes ---- */

/* Fits src to dst, which is final: dst's extents do not change. */
static bool fit_to(gen_t *g, const heft_view_t *dst, heft_view_t *src)
{
    heft_view_t copy = *dst;
    if (!match(g, &copy, src)) {
        return false;
    }
    for (int k = 0; k < dst->rank; k++) {
        if (copy.extent[k] == 0 && dst->extent[k] != 0) {
            return false;
        }
        if (copy.extent[k] != dst->extent[k]) {
            /* too short: repeat its first index */
            src->extent[k] = dst->extent[k];
            src->stride[k] = 0;
        }
    }
    return true;
}

/* Mostly a source or something that was written. */
static uint32_t pick_src_buffer(gen_t *g)
{
    uint32_t b = (uint32_t)pick(g, 0, (int64_t)g->tape->n_buffers - 1);
    return g->is_partial[b % 64] && !one_in(g, 16) ? 0 : b;
}

static bool pick_dst_buffer(gen_t *g, uint32_t *buffer_out)
{
    for (int i = 0; i < 8; i++) {
        uint32_t b = (uint32_t)pick(g, 0, (int64_t)g->tape->n_buffers - 1);
        if (g->tape->buffers[b].kind != HEFT_BUFFER_SOURCE) {
            *buffer_out = b;
            return true;
        }
    }
    return false;
}

static void copy_views(gen_t *g, const heft_view_t *dst, const heft_view_t *src)
{
    must_ok(g, heft_tape_copy(g->tape, dst, src, "copy", &g->err));
}

/* contiguous(view), or a clone that keeps a permuted layout. */
static void write_new_temp(gen_t *g)
{
    heft_view_t src = pick_view(g, pick_src_buffer(g), false);
    heft_shape_t shape = { .rank = src.rank };
    int a = src.rank > 1 && one_in(g, 3) ? (int)pick(g, 0, src.rank - 1) : 0;
    for (int k = 0; k < src.rank; k++) {
        shape.extent[k] = src.extent[k];
    }
    if (a > 0) {
        shape.extent[0] = src.extent[a];
        shape.extent[a] = src.extent[0];
    }
    uint32_t temp = add_buffer(g, HEFT_BUFFER_TEMP, &shape);
    heft_view_t dst = heft_view_contiguous(temp, &shape);
    if (a > 0) {
        swap_dims(&dst, 0, a);
    }
    copy_views(g, &dst, &src);
}

/* A temporary made of slices of several views along one dimension. */
static void write_cat(gen_t *g)
{
    /* a slice that finds nothing to copy leaves a hole */
    heft_view_t first = pick_view(g, pick_src_buffer(g), false);
    if (first.rank == 0 || first.extent[0] == 0) {
        return;
    }
    int k = (int)pick(g, 0, first.rank - 1);
    int64_t n = pick(g, 2, 3);
    heft_shape_t shape = { .rank = first.rank };
    memcpy(shape.extent, first.extent, sizeof shape.extent);
    shape.extent[k] *= n;
    uint32_t temp = add_buffer(g, HEFT_BUFFER_TEMP, &shape);
    for (int64_t i = 0; i < n; i++) {
        heft_view_t dst = heft_view_contiguous(temp, &shape);
        dst.offset += i * first.extent[k] * dst.stride[k];
        dst.extent[k] = first.extent[k];
        heft_view_t src = i == 0 ? first : pick_view(g, pick_src_buffer(g), false);
        if (!fit_to(g, &dst, &src)) {
            g->is_partial[temp % 64] = true;
            return;
        }
        copy_views(g, &dst, &src);
    }
}

static void write_copy(gen_t *g)
{
    uint32_t buffer;
    if (!pick_dst_buffer(g, &buffer)) {
        return;
    }
    heft_view_t dst = pick_view(g, buffer, true);
    heft_view_t src = pick_view(g, one_in(g, 6) ? buffer : pick_src_buffer(g), false);
    if (match(g, &dst, &src)) {
        copy_views(g, &dst, &src);
    }
}

static void write_whole(gen_t *g, uint32_t buffer)
{
    heft_view_t dst = heft_view_contiguous(buffer, &g->tape->buffers[buffer].shape);
    if (one_in(g, 2)) {
        must_ok(g, heft_tape_fill(g->tape, &dst, (uint64_t)pick(g, 0, 2), "fill", &g->err));
        return;
    }
    heft_view_t src = pick_view(g, 0, false);
    if (fit_to(g, &dst, &src)) {
        copy_views(g, &dst, &src);
    }
}

static void write_fill(gen_t *g)
{
    uint32_t buffer;
    if (pick_dst_buffer(g, &buffer)) {
        heft_view_t dst = pick_view(g, buffer, true);
        must_ok(g, heft_tape_fill(g->tape, &dst, (uint64_t)pick(g, 0, 2), "fill", &g->err));
    }
}

static uint32_t pick_program(gen_t *g, uint32_t n_srcs, heft_op_t *ops)
{
    uint8_t dtype = one_in(g, 2) ? HEFT_DTYPE_F32 : HEFT_DTYPE_BF16;
    uint32_t n = 0;
    ops[n++] = (heft_op_t){ .code = HEFT_OP_LOAD, .arg = (uint16_t)pick(g, 0, n_srcs - 1) };
    for (int64_t i = pick(g, 0, 2); i > 0; i--) {
        heft_op_t op = { .dtype = dtype, .imm = (double)pick(g, 0, 3) };
        switch (pick(g, 0, 5)) {
        case 0:
            op.code = HEFT_OP_CAST;
            break;
        case 5: /* a half of what the last operation left, or a quarter of it */
            ops[n++] = (heft_op_t){ .code = HEFT_OP_CAST, .dtype = HEFT_DTYPE_F32 };
            op = (heft_op_t){ .code = HEFT_OP_BITS,
                              .dtype = one_in(g, 2) ? HEFT_DTYPE_BF16 : HEFT_DTYPE_U16,
                              .arg = (uint16_t)pick(g, 0, 2) };
            break;
        case 1:
            op.code = HEFT_OP_ADD_IMM;
            break;
        case 2:
            op.code = HEFT_OP_NEG_EXP;
            break;
        case 3:
            ops[n++] = (heft_op_t){ .code = HEFT_OP_CONST, .dtype = dtype, .imm_bits = 0x3f80 };
            op.code = HEFT_OP_MUL;
            break;
        default:
            ops[n++] = (heft_op_t){ .code = HEFT_OP_LOAD, .arg = (uint16_t)pick(g, 0, n_srcs - 1) };
            op.code = HEFT_OP_MUL;
            break;
        }
        ops[n++] = op;
    }
    return n;
}

static void write_map(gen_t *g)
{
    uint32_t buffer;
    if (!pick_dst_buffer(g, &buffer)) {
        return;
    }
    heft_view_t dst = pick_view(g, buffer, true);
    heft_view_t srcs[3];
    uint32_t n_srcs = (uint32_t)pick(g, 1, 3);
    for (uint32_t j = 0; j < n_srcs; j++) {
        srcs[j] = pick_view(g, one_in(g, 4) ? buffer : pick_src_buffer(g), false);
        if (!fit_to(g, &dst, &srcs[j])) {
            return;
        }
    }
    heft_op_t ops[HEFT_MAX_OPS];
    uint32_t n_ops = pick_program(g, n_srcs, ops);
    must_ok(g, heft_tape_map(g->tape, &dst, srcs, n_srcs, ops, n_ops, "map", &g->err));
}

static void write_opaque(gen_t *g)
{
    heft_view_t dsts[2];
    heft_view_t srcs[2];
    uint32_t n_dsts = 0;
    uint32_t n_srcs = (uint32_t)pick(g, 0, 2);
    uint32_t buffer;
    while (n_dsts < 2 && pick_dst_buffer(g, &buffer)) {
        if (n_dsts == 0 || buffer != dsts[0].buffer) {
            dsts[n_dsts++] = pick_view(g, buffer, true);
        }
        if (one_in(g, 2)) {
            break;
        }
    }
    for (uint32_t j = 0; j < n_srcs; j++) {
        srcs[j] = pick_view(g, pick_src_buffer(g), false);
    }
    if (n_dsts > 0) {
        must_ok(g,
                heft_tape_opaque(g->tape, "kernel", dsts, n_dsts, srcs, n_srcs, "opaque", &g->err));
    }
}

static void write_any(gen_t *g)
{
    int64_t kind = pick(g, 0, 15);
    if (kind < 4) {
        write_new_temp(g);
    } else if (kind < 6) {
        write_cat(g);
    } else if (kind < 11 || (g->only_copies && kind > 11)) {
        write_copy(g);
    } else if (kind == 11) {
        write_fill(g);
    } else if (kind < 15) {
        write_map(g);
    } else {
        write_opaque(g);
    }
}

static void decode_tape(gen_t *g)
{
    g->only_copies = one_in(g, 3);
    int64_t n_sources = pick(g, 1, 3);
    for (int64_t i = 0; i < n_sources; i++) {
        heft_shape_t shape = pick_shape(g);
        (void)add_buffer(g, HEFT_BUFFER_SOURCE, &shape);
    }
    int64_t n_params = pick(g, 1, 2);
    for (int64_t i = 0; i < n_params; i++) {
        heft_shape_t shape = pick_shape(g);
        uint32_t param = add_buffer(g, HEFT_BUFFER_PARAM, &shape);
        g->is_partial[param % 64] = one_in(g, 4);
        if (!g->is_partial[param % 64]) {
            write_whole(g, param);
        }
    }
    if (one_in(g, 3)) {
        heft_shape_t shape = pick_shape(g);
        write_whole(g, add_buffer(g, HEFT_BUFFER_TEMP, &shape));
    }
    while (g->at < g->n && g->tape->n_writes < 24) {
        write_any(g);
    }
}

/* ---- checks ---- */

static char wrong[512];

#define FAIL(...)                                         \
    do {                                                  \
        (void)snprintf(wrong, sizeof wrong, __VA_ARGS__); \
        return false;                                     \
    } while (0)

typedef struct checking {
    const heft_tape_t *tape;
    bool only_copies;
    uint64_t choice; /* what is varied from case to case */
    ref_run_t run;
    heft__fold_t *fold;
} checking_t;

static bool check_normal(const heft__fold_piece_t *p)
{
    for (int k = 0; k < p->rank; k++) {
        if (p->extent[k] < 2 || p->dst_stride[k] < 1 ||
            (k > 0 && p->dst_stride[k - 1] < p->dst_stride[k])) {
            FAIL("piece of buffer %u: not in normal form", p->buffer);
        }
        bool one_run = k > 0 && p->dst_stride[k - 1] == p->dst_stride[k] * p->extent[k];
        for (uint32_t s = 0; s < p->n_srcs && one_run; s++) {
            one_run = p->srcs[s].stride[k - 1] == p->srcs[s].stride[k] * p->extent[k];
        }
        if (one_run) {
            FAIL("piece of buffer %u: dimensions %d and %d are one run", p->buffer, k - 1, k);
        }
    }
    if ((p->n_ops == 0 && p->n_srcs != 1) || p->n_srcs > HEFT_MAX_SOURCES ||
        p->n_ops > HEFT_MAX_OPS) {
        FAIL("piece of buffer %u: %u operations, %u sources", p->buffer, p->n_ops, p->n_srcs);
    }
    return true;
}

/* Values of n elements, as pieces define them; each at most once. */
static bool spread(checking_t *c, const heft__fold_piece_t *pieces, uint64_t n_pieces,
                   uint32_t *values, int64_t n)
{
    for (uint64_t i = 0; i < n_pieces; i++) {
        const heft__fold_piece_t *p = &pieces[i];
        int64_t index[HEFT_MAX_DIMS] = { 0 };
        if (!check_normal(p)) {
            return false;
        }
        if (i > 0 && p->dst_offset <= pieces[i - 1].dst_offset) {
            FAIL("pieces of buffer %u are not in order", p->buffer);
        }
        do {
            int64_t e = p->dst_offset;
            for (int k = 0; k < p->rank; k++) {
                e += index[k] * p->dst_stride[k];
            }
            if (e < 0 || e >= n) {
                FAIL("piece of buffer %u writes element %lld of %lld", p->buffer, (long long)e,
                     (long long)n);
            }
            if (values[e] != REF_UNDEFINED) {
                FAIL("element %lld of buffer %u is in two pieces", (long long)e, p->buffer);
            }
            values[e] = ref_eval_piece(&c->run, p, index);
        } while (ref_next_index(index, p->extent, p->rank));
    }
    return true;
}

static bool check_param(checking_t *c, uint32_t b)
{
    int64_t n = c->tape->buffers[b].n_elems;
    uint64_t n_pieces;
    const heft__fold_piece_t *pieces = heft__fold_get_pieces(c->fold, b, &n_pieces);
    uint32_t *values = calloc((size_t)n + 1, sizeof *values);
    bool ok = values != NULL && spread(c, pieces, n_pieces, values, n);
    for (int64_t e = 0; e < n && ok; e++) {
        if (values[e] != c->run.buffers[b][e]) {
            (void)snprintf(wrong, sizeof wrong, "buffer %u element %lld: value %u, expected %u", b,
                           (long long)e, values[e], c->run.buffers[b][e]);
            ok = false;
        }
    }
    for (uint64_t i = 0; i < n_pieces && ok; i++) {
        if (pieces[i].buffer != b || pieces[i].write >= c->tape->n_writes) {
            (void)snprintf(wrong, sizeof wrong, "a piece of buffer %u in the range of %u",
                           pieces[i].buffer, b);
            ok = false;
        }
    }
    free(values);
    return ok;
}

static bool check_inputs(checking_t *c)
{
    for (size_t i = 0; i < c->run.n_inputs; i++) {
        const ref_input_t *expected = &c->run.inputs[i];
        const heft__fold_opaque_t *opaque = heft__fold_find_opaque(c->fold, expected->write);
        if (opaque == NULL || expected->input >= opaque->n_inputs) {
            FAIL("write %u has no input %u", expected->write, expected->input);
        }
        const heft__fold_input_t *input = &opaque->inputs[expected->input];
        uint32_t *values = calloc(expected->n + 1, sizeof *values);
        bool ok = values != NULL &&
                  spread(c, input->pieces, input->n_pieces, values, (int64_t)expected->n);
        ok = ok && memcmp(values, expected->values, expected->n * sizeof *values) == 0;
        free(values);
        if (!ok) {
            FAIL("write %u input %u differs", expected->write, expected->input);
        }
    }
    return true;
}

/* ---- overwrites ---- */

/* One overwritten element as the fold reports it: where the report's flags hold. */
typedef struct seen {
    size_t n;
    size_t n_same;
    size_t n_update;
    size_t n_many; /* values with several sources: fold may miss that they agree */
} seen_t;

static ref_overwrite_t *find_expected(checking_t *c, bool *taken, const heft__fold_overwrite_t *got,
                                      int64_t e)
{
    for (size_t i = 0; i < c->run.n_overwrites; i++) {
        ref_overwrite_t *x = &c->run.overwrites[i];
        if (!taken[i] && x->buffer == got->buffer && x->earlier_write == got->earlier_write &&
            x->later_write == got->later_write && x->element == e) {
            taken[i] = true;
            return x;
        }
    }
    return NULL;
}

static bool check_flags(const heft__fold_overwrite_t *got, const seen_t *seen)
{
    bool many = seen->n_many > 0;
    if (got->is_same ? seen->n_same != seen->n : seen->n_same == seen->n && !many) {
        FAIL("overwrite of buffer %u by write %u: is_same %d, %zu of %zu agree", got->buffer,
             got->later_write, got->is_same, seen->n_same, seen->n);
    }
    if (got->is_update ? seen->n_update != seen->n
                       : seen->n_update == seen->n && !many && !got->was_constant) {
        FAIL("overwrite of buffer %u by write %u: is_update %d, %zu of %zu are", got->buffer,
             got->later_write, got->is_update, seen->n_update, seen->n);
    }
    return true;
}

/* The earlier value is kept where it is lost, for the same elements in the same order. */
static bool check_kept(const heft__fold_overwrite_t *got)
{
    const heft__fold_piece_t *earlier = got->earlier;
    bool is_lost = !got->is_same && !got->is_update && !got->was_constant;
    if (is_lost != (earlier != NULL)) {
        FAIL("overwrite of buffer %u by write %u: earlier value %s", got->buffer, got->later_write,
             earlier != NULL ? "kept for nothing" : "not kept");
    }
    if (earlier == NULL) {
        return true;
    }
    const heft__region_t *region = &got->region;
    size_t bytes = (size_t)region->rank * sizeof region->extent[0];
    if (earlier->buffer != got->buffer || earlier->write != got->earlier_write ||
        earlier->rank != region->rank || earlier->dst_offset != region->offset ||
        memcmp(earlier->extent, region->extent, bytes) != 0 ||
        memcmp(earlier->dst_stride, region->stride, bytes) != 0) {
        FAIL("overwrite of buffer %u by write %u: the earlier piece is another region", got->buffer,
             got->later_write);
    }
    return check_normal(earlier);
}

static bool check_overwrite(checking_t *c, bool *taken, const heft__fold_overwrite_t *got)
{
    seen_t seen = { 0 };
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    if (!check_kept(got)) {
        return false;
    }
    do {
        int64_t e = got->region.offset;
        for (int k = 0; k < got->region.rank; k++) {
            e += index[k] * got->region.stride[k];
        }
        const ref_overwrite_t *x = find_expected(c, taken, got, e);
        if (x == NULL) {
            FAIL("overwrite of buffer %u element %lld by write %u is not one", got->buffer,
                 (long long)e, got->later_write);
        }
        if (got->was_constant != ref_is_constant(&c->run, x->earlier)) {
            FAIL("overwrite of buffer %u element %lld: was_constant %d", got->buffer, (long long)e,
                 got->was_constant);
        }
        if (got->earlier != NULL && ref_eval_piece(&c->run, got->earlier, index) != x->earlier) {
            FAIL("overwrite of buffer %u element %lld: the earlier value kept is another one",
                 got->buffer, (long long)e);
        }
        seen.n++;
        seen.n_same += x->earlier == x->later;
        seen.n_update += !got->was_constant && ref_is_kept(&c->run, x->earlier, x->later);
        seen.n_many +=
            ref_count_loads(&c->run, x->earlier) > 1 || ref_count_loads(&c->run, x->later) > 1;
    } while (ref_next_index(index, got->region.extent, got->region.rank));
    return check_flags(got, &seen);
}

static bool check_overwrites(checking_t *c)
{
    bool *taken = calloc(c->run.n_overwrites + 1, sizeof *taken);
    bool ok = taken != NULL;
    for (uint64_t i = 0; i < c->fold->n_overwrites && ok; i++) {
        ok = check_overwrite(c, taken, &c->fold->overwrites[i]);
    }
    for (size_t i = 0; i < c->run.n_overwrites && ok; i++) {
        if (!taken[i]) {
            (void)snprintf(wrong, sizeof wrong,
                           "overwrite of buffer %u element %lld by write %u is missing",
                           c->run.overwrites[i].buffer, (long long)c->run.overwrites[i].element,
                           c->run.overwrites[i].later_write);
            ok = false;
        }
    }
    free(taken);
    return ok;
}

/* ---- bytes ---- */

enum { ELEM = 2 };

static void apply_piece(const heft__fold_piece_t *p, unsigned char **buffers, unsigned char *out)
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    do {
        int64_t d = p->dst_offset;
        int64_t s = p->n_srcs > 0 ? p->srcs[0].offset : 0;
        for (int k = 0; k < p->rank; k++) {
            d += index[k] * p->dst_stride[k];
            s += p->n_srcs > 0 ? index[k] * p->srcs[0].stride[k] : 0;
        }
        if (p->n_srcs > 0) {
            memcpy(out + d * ELEM, buffers[p->srcs[0].buffer] + s * ELEM, ELEM);
        } else {
            const uint8_t bits[ELEM] = { (uint8_t)p->ops[0].imm_bits,
                                         (uint8_t)(p->ops[0].imm_bits >> 8) };
            memcpy(out + d * ELEM, bits, ELEM);
        }
    } while (ref_next_index(index, p->extent, p->rank));
}

/* Every source element has its own bytes; everything else begins as all ones. */
static bool check_bytes(checking_t *c)
{
    const heft_tape_t *tape = c->tape;
    size_t n_buffers = tape->n_buffers;
    unsigned char **buffers = calloc(n_buffers, sizeof *buffers);
    unsigned counter = 1;
    bool ok = buffers != NULL;
    for (size_t b = 0; b < n_buffers && ok; b++) {
        size_t n = (size_t)tape->buffers[b].n_elems;
        buffers[b] = malloc(n * ELEM + 1);
        ok = buffers[b] != NULL;
        for (size_t i = 0; i < n && ok; i++) {
            unsigned v = tape->buffers[b].kind == HEFT_BUFFER_SOURCE ? 2 + counter++ : 0xffff;
            buffers[b][i * ELEM] = (unsigned char)v;
            buffers[b][i * ELEM + 1] = (unsigned char)(v >> 8);
        }
    }
    if (ok) {
        ref_run_bytes(tape, buffers);
    }
    for (uint32_t b = 0; b < n_buffers && ok; b++) {
        size_t n = (size_t)tape->buffers[b].n_elems;
        if (tape->buffers[b].kind != HEFT_BUFFER_PARAM) {
            continue;
        }
        unsigned char *out = malloc(n * ELEM + 1);
        memset(out, 0xff, n * ELEM + 1);
        uint64_t n_pieces;
        const heft__fold_piece_t *pieces = heft__fold_get_pieces(c->fold, b, &n_pieces);
        for (uint64_t i = 0; i < n_pieces; i++) {
            apply_piece(&pieces[i], buffers, out);
        }
        ok = memcmp(out, buffers[b], n * ELEM) == 0;
        free(out);
    }
    for (size_t b = 0; b < n_buffers; b++) {
        free(buffers[b]);
    }
    free(buffers);
    if (!ok) {
        FAIL("bytes differ");
    }
    return true;
}

/* ---- all of it ---- */

static void print_view(const char *role, const heft__tape_view_t *v)
{
    (void)fprintf(stderr, " %s %u@%lld", role, v->buffer, (long long)v->offset);
    for (int k = 0; k < v->rank; k++) {
        (void)fprintf(stderr, "(%lld:%lld)", (long long)v->extent[k], (long long)v->stride[k]);
    }
}

static void print_tape(const heft_tape_t *tape)
{
    for (size_t b = 0; b < tape->n_buffers; b++) {
        const heft_buffer_info_t *info = &tape->buffers[b];
        (void)fprintf(stderr, "buffer %zu kind %d %s [", b, (int)info->kind,
                      heft_dtype_get_name(info->dtype));
        for (int k = 0; k < info->shape.rank; k++) {
            (void)fprintf(stderr, " %lld", (long long)info->shape.extent[k]);
        }
        (void)fprintf(stderr, " ]\n");
    }
    for (size_t w = 0; w < tape->n_writes; w++) {
        const heft__write_t *write = &tape->writes[w];
        (void)fprintf(stderr, "write %zu %s ops %u:", w, write->note, write->n_ops);
        for (uint32_t i = 0; i < write->n_dsts; i++) {
            print_view("dst", &write->dsts[i]);
        }
        for (uint32_t i = 0; i < write->n_srcs; i++) {
            print_view("src", &write->srcs[i]);
        }
        (void)fprintf(stderr, "\n");
    }
}

static bool check_error(const checking_t *c, heft_status_t status, const heft_error_t *err)
{
    char prefix[32];
    (void)snprintf(prefix, sizeof prefix, "write %u (", c->run.failed_write);
    if (status != HEFT_ERR_ARGUMENT || strncmp(err->message, prefix, strlen(prefix)) != 0) {
        FAIL("%s reads something undefined; fold says %s: %.200s", prefix,
             heft_status_get_name(status), err->message);
    }
    return true;
}

/* One allocation fails on the way: out of memory, or what would have come anyway, or no difference
 * where fewer allocations were made. */
static bool check_failure(const checking_t *c, const heft__fold_opts_t *opts)
{
    heft__fold_t *fold = NULL;
    heft__alloc_fail_at((long)(c->choice % 40));
    heft_status_t status = heft__fold_create(c->tape, opts, &fold, NULL);
    heft__alloc_fail_at(-1);
    if (status == HEFT_OK) {
        heft__fold_destroy(fold);
    } else if (fold != NULL || (status != HEFT_ERR_NOMEM && status != HEFT_ERR_LIMIT &&
                                !(c->run.failed && status == HEFT_ERR_ARGUMENT))) {
        FAIL("with a failed allocation: %s", heft_status_get_name(status));
    }
    return true;
}

static bool check_fold(checking_t *c, fold_case_stats_t *stats)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__fold_opts_t opts = { .tune_after = c->choice % 2 };
    if (!check_failure(c, &opts)) {
        return false;
    }
    heft_status_t status = heft__fold_create(c->tape, &opts, &c->fold, &err);
    stats->n_limits += status == HEFT_ERR_LIMIT;
    stats->n_undefined += c->run.failed;
    if (status == HEFT_ERR_LIMIT) {
        return true;
    }
    if (c->run.failed) {
        return check_error(c, status, &err);
    }
    if (status != HEFT_OK) {
        FAIL("fold failed: %s", err.message);
    }
    stats->n_pieces += c->fold->n_pieces;
    stats->n_overwrites += c->fold->n_overwrites;
    for (uint32_t b = 0; b < c->tape->n_buffers; b++) {
        uint64_t n_pieces;
        (void)heft__fold_get_pieces(c->fold, b, &n_pieces);
        if (c->tape->buffers[b].kind != HEFT_BUFFER_PARAM) {
            if (n_pieces != 0) {
                FAIL("buffer %u is no parameter and has pieces", b);
            }
        } else if (!check_param(c, b)) {
            return false;
        }
    }
    if (!check_overwrites(c) || !check_inputs(c)) {
        return false;
    }
    stats->n_bytes_cases += c->only_copies;
    return !c->only_copies || check_bytes(c);
}

static bool has_only_copies(const heft_tape_t *tape)
{
    for (size_t w = 0; w < tape->n_writes; w++) {
        const heft__write_t *write = &tape->writes[w];
        if (write->kind == HEFT_WRITE_OPAQUE || write->n_ops > (write->n_srcs > 0 ? 0u : 1u) ||
            tape->buffers[write->dsts[0].buffer].dtype != HEFT_DTYPE_BF16) {
            return false;
        }
    }
    return true;
}

const char *fold_case_check_tape(const heft_tape_t *tape, uint64_t choice, fold_case_stats_t *stats)
{
    fold_case_stats_t unused = { 0 };
    checking_t c = { .tape = tape, .only_copies = has_only_copies(tape), .choice = choice };
    ref_run_init(&c.run, tape);
    stats = stats != NULL ? stats : &unused;
    bool ok = check_fold(&c, stats);
    stats->n_cases++;
    stats->n_writes += tape->n_writes;
    if (!ok) {
        print_tape(tape);
    }
    heft__fold_destroy(c.fold);
    ref_run_fini(&c.run);
    return ok ? NULL : wrong;
}

heft_tape_t *fold_case_make_tape(const uint8_t *data, size_t n)
{
    gen_t g = { .data = data, .n = n, .err = HEFT_ERROR_INIT };
    must_ok(&g, heft_tape_create(&g.tape, &g.err));
    decode_tape(&g);
    return g.tape;
}

const char *fold_case_check(const uint8_t *data, size_t n, fold_case_stats_t *stats)
{
    heft_tape_t *tape = fold_case_make_tape(data, n);
    const char *what = fold_case_check_tape(tape, n, stats);
    heft_tape_destroy(tape);
    return what;
}
