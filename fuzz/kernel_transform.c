/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: an element-wise program run over strided views, whole or in slabs, with digest, gives
 * for every element the bits of heft__transform_eval and touches nothing else. The bytes describe
 * one program and its views; the current CPU level is judged.
 */
#include "kernel/kernel_ops.h"
#include "kernel/transform.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANK 4
#define MAX_ELEMS 3000
#define GUARD 192

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *data;
    size_t size;
    size_t at;
} input_t;

static uint32_t take(input_t *in, uint32_t n)
{
    uint32_t v = in->at < in->size ? in->data[in->at++] : 0;
    return v % n;
}

typedef struct view {
    int64_t low; /* bytes reached below the first element, and up to the end of the last */
    int64_t high;
    uint8_t *memory;
    uint8_t *base;
} view_t;

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

static void die(const char *what, int64_t index, uint64_t got, uint64_t want)
{
    (void)fprintf(stderr, "kernel_transform: %s at %lld: %llx, expected %llx (level %s)\n", what,
                  (long long)index, (unsigned long long)got, (unsigned long long)want,
                  heft__cpu_level_name(heft__cpu_get_level()));
    abort();
}

static heft_dtype_t take_dtype(input_t *in)
{
    /* floats more often than integers */
    static const heft_dtype_t dtypes[] = {
        HEFT_DTYPE_F32,     HEFT_DTYPE_BF16,    HEFT_DTYPE_F16, HEFT_DTYPE_F64,  HEFT_DTYPE_F8_E4M3,
        HEFT_DTYPE_F8_E5M2, HEFT_DTYPE_F8_E8M0, HEFT_DTYPE_F32, HEFT_DTYPE_BF16, HEFT_DTYPE_BOOL,
        HEFT_DTYPE_U8,      HEFT_DTYPE_I8,      HEFT_DTYPE_U16, HEFT_DTYPE_I16,  HEFT_DTYPE_U32,
        HEFT_DTYPE_I32,     HEFT_DTYPE_U64,     HEFT_DTYPE_I64
    };
    return dtypes[take(in, sizeof dtypes / sizeof dtypes[0])];
}

static heft_op_t take_unary(input_t *in)
{
    static const heft_dtype_t arith[] = { HEFT_DTYPE_F32, HEFT_DTYPE_BF16, HEFT_DTYPE_F16,
                                          HEFT_DTYPE_F64 };
    static const double imms[] = { 1, -1.5, 0, 0.1, 5376, 448, 1e-30, 1e30, 0.00390625, 3 };
    uint32_t kind = take(in, 8);
    heft_op_t op = { .code = HEFT_OP_CAST };
    if (kind < 4) {
        op.dtype = (uint8_t)take_dtype(in);
        return op;
    }
    op.code = (uint8_t)(HEFT_OP_ADD_IMM + (kind - 4));
    op.dtype = (uint8_t)arith[take(in, 4)];
    op.imm = imms[take(in, sizeof imms / sizeof imms[0])];
    return op;
}

/* Some bytes of an f64, as they are. */
static void take_bits(input_t *in, heft_op_t *op)
{
    heft_dtype_t dtype = take_dtype(in);
    uint32_t most = 8 - heft_dtype_get_unit_bytes(dtype);
    *op = (heft_op_t){ .code = HEFT_OP_BITS,
                       .dtype = (uint8_t)dtype,
                       .arg = (uint16_t)take(in, most + 1) };
}

static void take_program(input_t *in, heft__transform_t *t)
{
    int depth = 0;
    uint32_t wanted = 1 + take(in, 10);
    while (t->n_ops < wanted || depth != 1) {
        uint32_t kind = take(in, 4);
        bool must_end = t->n_ops >= wanted;
        heft_op_t *op = &t->ops[t->n_ops++];
        if (depth == 0 || (kind == 0 && !must_end && depth < 4)) {
            *op = (heft_op_t){ .code = HEFT_OP_LOAD, .arg = (uint16_t)take(in, 4) };
            if (t->n_srcs == 0 || take(in, 8) == 7) {
                *op = (heft_op_t){ .code = HEFT_OP_CONST,
                                   .dtype = (uint8_t)take_dtype(in),
                                   .imm_bits = take(in, 256) * UINT64_C(0x0101010101010101) };
            } else {
                op->arg = (uint16_t)(op->arg % t->n_srcs);
            }
            depth++;
        } else if (depth >= 2 && (kind == 1 || must_end)) {
            op->code = HEFT_OP_MUL;
            op->dtype = take(in, 2) != 0 ? HEFT_DTYPE_F32 : HEFT_DTYPE_BF16;
            depth--;
        } else {
            *op = take_unary(in);
            if (op->code == HEFT_OP_CAST && op->dtype == HEFT_DTYPE_F64) {
                take_bits(in, &t->ops[t->n_ops++]);
            }
        }
    }
    if (t->ops[0].code == HEFT_OP_CONST && t->n_ops == 1) {
        t->dst_dtype = (heft_dtype_t)t->ops[0].dtype;
    }
}

static void take_strides(input_t *in, const heft__transform_t *t, int64_t *stride, bool is_src)
{
    int order[MAX_RANK];
    for (int k = 0; k < t->rank; k++) {
        order[k] = k;
    }
    for (int k = t->rank - 1; k > 0; k--) {
        int j = k - (int)take(in, (uint32_t)k + 1);
        int swap = order[k];
        order[k] = order[j];
        order[j] = swap;
    }
    int64_t span = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        int k = order[i];
        uint32_t how = take(in, 16);
        span += how == 1 ? 1 : how == 2 ? 7 : 0;
        stride[k] = how >= 13 ? -span : span;
        if (is_src && how >= 3 && how < 6) {
            stride[k] = 0;
        } else {
            span *= t->extent[k] > 0 ? t->extent[k] : 1;
        }
    }
}

static void make_view(view_t *v, const heft__transform_t *t, const int64_t *stride, uint32_t bytes,
                      int64_t shift)
{
    v->low = 0;
    v->high = bytes;
    for (int k = 0; k < t->rank; k++) {
        int64_t span = (t->extent[k] - 1) * stride[k] * bytes;
        v->low -= span < 0 ? span : 0;
        v->high += span > 0 ? span : 0;
    }
    v->memory = must(malloc((size_t)(v->low + v->high + shift)));
    v->base = v->memory + shift + v->low;
}

static uint64_t load(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    for (uint32_t k = 0; k < bytes; k++) {
        v |= (uint64_t)p[k] << (8 * k);
    }
    return v;
}

typedef struct judge {
    const heft__transform_t *t;
    const uint8_t *srcs[HEFT_MAX_SOURCES];
    uint8_t *expect;
    uint8_t *image;
} judge_t;

/* Fill in what the program gives, element by element. */
static void eval(const judge_t *j, int k, int64_t *index)
{
    const heft__transform_t *t = j->t;
    if (k < t->rank) {
        for (index[k] = 0; index[k] < t->extent[k]; index[k]++) {
            eval(j, k + 1, index);
        }
        return;
    }
    uint64_t bits[HEFT_MAX_SOURCES] = { 0 };
    for (uint32_t s = 0; s < t->n_srcs; s++) {
        uint32_t bytes = heft_dtype_get_unit_bytes(t->src_dtype[s]);
        int64_t at = 0;
        for (int d = 0; d < t->rank; d++) {
            at += index[d] * t->src_stride[s][d];
        }
        bits[s] = load(j->srcs[s] + at * bytes, bytes);
    }
    heft_dtype_t dtype;
    uint64_t value = heft__transform_eval(t->ops, t->n_ops, t->src_dtype, bits, &dtype);
    value = heft__cast_bits(t->dst_dtype, dtype, value);
    uint32_t bytes = heft_dtype_get_unit_bytes(t->dst_dtype);
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++) {
        at += index[d] * t->dst_stride[d];
    }
    for (uint32_t b = 0; b < bytes; b++) {
        j->expect[at * bytes + b] = (uint8_t)(value >> (8 * b));
        j->image[at * bytes + b] = (uint8_t)(value >> (8 * b));
    }
}

static uint64_t run(const heft__transform_plan_t *plan, uint8_t *dst, const void *const *srcs,
                    uint32_t how, bool nt, int64_t digest_end)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__transform_part_t part = { .plan = plan,
                                    .dst = dst,
                                    .srcs = srcs,
                                    .nt = nt,
                                    .has_digest = (how & 1) != 0,
                                    .digest_end = digest_end };
    int64_t n = plan->extent[0];
    int64_t step = how < 2 ? n : how < 4 ? (n + 2) / 3 : 5;
    uint64_t digest = 0;
    for (int64_t end = n; end > 0; end -= step) {
        part.begin = end > step ? end - step : 0;
        part.end = end;
        digest ^= heft__transform_part_run(ops, &part);
    }
    ops->fence();
    return digest;
}

/* Random bytes, with plenty of values that matter: zeros, ones, infinities, not-a-numbers. */
static void fill_source(uint8_t *p, int64_t n, uint32_t state)
{
    static const uint8_t special[] = { 0x00, 0x80, 0x3f, 0x7f, 0xff, 0xc0, 0x01, 0xf0 };
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t r = state >> 24;
        p[i] = (state >> 16 & 3) == 0 ? special[r % sizeof special] : (uint8_t)r;
    }
}

/* Views, dtypes and program; false if there is nothing to run. */
static bool take_transform(input_t *in, heft__transform_t *t)
{
    static const int64_t sizes[] = { 1, 2, 3, 5, 8, 16, 17, 31, 64, 65, 100, 128, 300, 700 };
    int64_t n_elems = 1;
    *t = (heft__transform_t){ .n_srcs = take(in, HEFT_MAX_SOURCES + 1),
                              .rank = (int32_t)take(in, MAX_RANK + 1) };
    t->dst_dtype = take_dtype(in);
    for (int k = 0; k < t->rank; k++) {
        uint32_t pick = take(in, 140);
        t->extent[k] = pick == 139 ? 0 : sizes[pick % 14];
        t->extent[k] = n_elems * t->extent[k] > MAX_ELEMS ? 1 + pick % 2 : t->extent[k];
        n_elems *= t->extent[k];
    }
    for (uint32_t s = 0; s < t->n_srcs; s++) {
        t->src_dtype[s] = take_dtype(in);
        take_strides(in, t, t->src_stride[s], true);
    }
    take_strides(in, t, t->dst_stride, false);
    take_program(in, t);
    return n_elems > 0;
}

static void make_sources(input_t *in, const heft__transform_t *t, view_t *views, judge_t *judge)
{
    for (uint32_t s = 0; s < t->n_srcs; s++) {
        uint32_t bytes = heft_dtype_get_unit_bytes(t->src_dtype[s]);
        int64_t shift = take(in, 8);
        make_view(&views[s], t, t->src_stride[s], bytes, shift);
        fill_source(views[s].memory, shift + views[s].low + views[s].high, s + 7);
        judge->srcs[s] = views[s].base;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = { .data = data, .size = size };
    heft__transform_t t;
    uint32_t how = take(&in, 6);
    bool nt = take(&in, 2) != 0;
    if (!take_transform(&in, &t)) {
        return 0;
    }
    view_t views[HEFT_MAX_SOURCES];
    judge_t judge = { .t = &t };
    make_sources(&in, &t, views, &judge);
    view_t dst;
    int64_t shift = GUARD + take(&in, 64);
    make_view(&dst, &t, t.dst_stride, heft_dtype_get_unit_bytes(t.dst_dtype), shift + GUARD);
    dst.base -= GUARD;
    int64_t all = dst.low + dst.high + shift + GUARD;
    uint8_t *expect = must(malloc((size_t)all));
    uint8_t *image = must(calloc(1, (size_t)(dst.low + dst.high)));
    memset(dst.memory, 0xa5, (size_t)all);
    memset(expect, 0xa5, (size_t)all);
    judge.expect = expect + (dst.base - dst.memory);
    judge.image = image + dst.low;

    heft__transform_plan_t plan;
    if (heft__transform_prepare(&t, &plan, NULL) != HEFT_OK) {
        die("refused", 0, 0, 0);
    }
    const void *srcs[HEFT_MAX_SOURCES];
    memcpy(srcs, judge.srcs, sizeof srcs);
    uint64_t digest = run(&plan, dst.base, srcs, how, nt, dst.high);
    int64_t index[MAX_RANK] = { 0 };
    eval(&judge, 0, index);
    for (int64_t i = 0; i < all; i++) {
        if (dst.memory[i] != expect[i]) {
            die("byte differs", i - (dst.base - dst.memory), dst.memory[i], expect[i]);
        }
    }
    uint64_t want = heft__ops_scalar.crc64(0, image, dst.low + dst.high);
    if ((how & 1) != 0 && want != digest) {
        die("digest differs", 0, digest, want);
    }
    for (uint32_t s = 0; s < t.n_srcs; s++) {
        free(views[s].memory);
    }
    free(dst.memory);
    free(expect);
    free(image);
    return 0;
}
