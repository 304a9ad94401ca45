/* SPDX-License-Identifier: Apache-2.0 */
/* See ref_reshard.h. Nothing here is fast, and nothing shares code with what it judges but the
 * element-wise rules of programs (heft__transform_eval), which have tests of their own. */
#include "ref_reshard.h"

#include "heft/model.h"
#include "kernel/kernel.h"
#include "ref_known.h"
#include "tape/tape.h"

/* ---- the interpreter ---- */

static uint64_t load(const uint8_t *p, uint32_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, p, bytes);
    return bits;
}

static int64_t flat_index(const heft__tape_view_t *view, int64_t i)
{
    int64_t flat = view->offset;
    for (int k = view->rank - 1; k >= 0; k--) {
        flat += i % view->extent[k] * view->stride[k];
        i /= view->extent[k];
    }
    return flat;
}

static uint64_t element(const heft_tape_t *tape, uint8_t *const *data, const heft__write_t *w,
                        int64_t i)
{
    uint64_t bits[HEFT_MAX_SOURCES] = { 0 };
    heft_dtype_t dtype[HEFT_MAX_SOURCES] = { HEFT_DTYPE_NONE };
    for (uint32_t s = 0; s < w->n_srcs; s++) {
        dtype[s] = tape->buffers[w->srcs[s].buffer].dtype;
        uint32_t unit = heft_dtype_get_unit_bytes(dtype[s]);
        bits[s] = load(data[w->srcs[s].buffer] + flat_index(&w->srcs[s], i) * unit, unit);
    }
    if (w->n_ops == 0) {
        return bits[0];
    }
    heft_dtype_t dst = tape->buffers[w->dsts[0].buffer].dtype;
    if (w->kind == HEFT_WRITE_FILL) {
        return w->ops[0].imm_bits;
    }
    heft_dtype_t got = HEFT_DTYPE_NONE;
    uint64_t result = heft__transform_eval(w->ops, w->n_ops, dtype, bits, &got);
    return got == dst ? result : heft__cast_bits(dst, got, result);
}

void ref_reshard(const heft_tape_t *tape, uint8_t *const *data)
{
    for (size_t k = 0; k < tape->n_writes; k++) {
        const heft__write_t *w = &tape->writes[k];
        if (w->kind == HEFT_WRITE_OPAQUE) {
            if (heft__known_claims(w->op)) {
                ref_known(tape, data, w);
            }
            continue;
        }
        int64_t n = 1;
        for (int d = 0; d < w->dsts[0].rank; d++) {
            n *= w->dsts[0].extent[d];
        }
        uint32_t unit = heft_dtype_get_unit_bytes(tape->buffers[w->dsts[0].buffer].dtype);
        /* all is read before anything is written */
        uint64_t *result = calloc((size_t)n + 1, sizeof *result);
        assert_non_null(result);
        for (int64_t i = 0; i < n; i++) {
            result[i] = element(tape, data, w, i);
        }
        for (int64_t i = 0; i < n; i++) {
            memcpy(data[w->dsts[0].buffer] + flat_index(&w->dsts[0], i) * unit, &result[i], unit);
        }
        free(result);
    }
}

/* ---- random sources ---- */

static int64_t pick(uint64_t *rng, const int64_t *values, int n)
{
    return values[heft_test_random_in(rng, 0, n - 1)];
}

static bool chance(uint64_t *rng, int percent)
{
    return heft_test_random_in(rng, 1, 100) <= percent;
}

static heft_dtype_t random_dtype(uint64_t *rng)
{
    static const int64_t dtypes[] = { HEFT_DTYPE_BF16, HEFT_DTYPE_BF16, HEFT_DTYPE_F32,
                                      HEFT_DTYPE_F16,  HEFT_DTYPE_U8,   HEFT_DTYPE_F8_E4M3,
                                      HEFT_DTYPE_F64,  HEFT_DTYPE_I64,  HEFT_DTYPE_F4 };
    return (heft_dtype_t)pick(rng, dtypes, (int)(sizeof dtypes / sizeof dtypes[0]));
}

static heft_shape_t random_shape(uint64_t *rng, heft_dtype_t dtype)
{
    static const int64_t extents[] = { 1, 2, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33, 64 };
    bool is_packed = heft_dtype_get_bits(dtype) < 8;
    heft_shape_t shape = { .rank = (int32_t)heft_test_random_in(rng, is_packed ? 1 : 0, 4) };
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) {
        shape.extent[k] = pick(rng, extents, (int)(sizeof extents / sizeof extents[0]));
        if (n * shape.extent[k] > 20000) {
            shape.extent[k] = 2;
        }
        n *= shape.extent[k];
    }
    if (is_packed) {
        shape.extent[shape.rank - 1] *= 8;
    }
    return shape;
}

static void fill_source(ref_source_t *s, uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_shape_to_storage(&s->logical, s->dtype, &s->shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_shape_count(&s->shape, &s->n_elems, &err), HEFT_OK);
    s->n_bytes = s->n_elems * (int64_t)heft_dtype_get_unit_bytes(s->dtype);
    s->data = malloc((size_t)s->n_bytes + 1);
    assert_non_null(s->data);
    for (int64_t b = 0; b < s->n_bytes; b++) {
        s->data[b] = (uint8_t)heft_test_random(rng);
    }
}

static void random_source(ref_source_t *s, int i, uint64_t *rng)
{
    (void)snprintf(s->name, sizeof s->name, "src.%02d.weight", i);
    s->dtype = random_dtype(rng);
    s->logical = random_shape(rng, s->dtype);
    fill_source(s, rng);
}

/* ---- cases by hand ---- */

int ref_case_source(ref_case_t *c, const char *name, heft_dtype_t dtype, int rank,
                    const int64_t *extent)
{
    assert_true(c->n_sources < REF_MAX_SOURCES);
    uint64_t rng = 0x5eed + (uint64_t)c->n_sources;
    ref_source_t *s = &c->sources[c->n_sources];
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    s->dtype = dtype;
    s->logical = (heft_shape_t){ .rank = rank };
    if (rank > 0) {
        memcpy(s->logical.extent, extent, (size_t)rank * sizeof *extent);
    }
    fill_source(s, &rng);
    return c->n_sources++;
}

static void add_sources(const ref_case_t *c, heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (int s = 0; s < c->n_sources; s++) {
        uint32_t id;
        EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_SOURCE, c->sources[s].name,
                                           c->sources[s].dtype, &c->sources[s].logical, &id, &err),
                      HEFT_OK);
        assert_int_equal(id, s);
    }
}

heft_tape_t *ref_case_tape(ref_case_t *c)
{
    heft_error_t err = HEFT_ERROR_INIT;
    assert_true(c->n_ranks < REF_MAX_RANKS);
    heft_tape_t **tape = &c->tapes[c->n_ranks++];
    EXPECT_STATUS(heft_tape_create(tape, &err), HEFT_OK);
    add_sources(c, *tape);
    return *tape;
}

uint32_t ref_tape_param(heft_tape_t *tape, const char *name, heft_dtype_t dtype, int rank,
                        const int64_t *extent)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = rank };
    if (rank > 0) {
        memcpy(shape.extent, extent, (size_t)rank * sizeof *extent);
    }
    uint32_t id;
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, name, dtype, &shape, &id, &err),
                  HEFT_OK);
    return id;
}

heft_view_t ref_view(const heft_tape_t *tape, uint32_t buffer)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_buffer_info_t info;
    EXPECT_STATUS(heft_tape_query_buffer(tape, buffer, &info, &err), HEFT_OK);
    return heft_view_contiguous(buffer, &info.shape);
}

heft_view_t ref_narrow(heft_view_t view, int dim, int64_t begin, int64_t n)
{
    view.offset += begin * view.stride[dim];
    view.extent[dim] = n;
    return view;
}

heft_view_t ref_swap(heft_view_t view, int a, int b)
{
    int64_t extent = view.extent[a];
    int64_t stride = view.stride[a];
    view.extent[a] = view.extent[b];
    view.stride[a] = view.stride[b];
    view.extent[b] = extent;
    view.stride[b] = stride;
    return view;
}

void ref_copy(heft_tape_t *tape, heft_view_t dst, heft_view_t src)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_copy(tape, &dst, &src, "by hand", &err), HEFT_OK);
}

void ref_fill(heft_tape_t *tape, heft_view_t dst, uint64_t bits)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_fill(tape, &dst, bits, "by hand", &err), HEFT_OK);
}

/* ---- random parameters ---- */

/* A parameter is a list of parts along its first dimension; each part is written on its own. */
typedef struct maker {
    ref_case_t *c;
    uint64_t *rng;
    const ref_opts_t *opts;
    heft_tape_t *tape;
} maker_t;

/* A view of a random source with these extents (-1: free to choose); false when it does not fit. */
static bool random_view(maker_t *m, int rank, int64_t *extent, heft_view_t *view, int *source_out)
{
    int s = (int)heft_test_random_in(m->rng, 0, m->c->n_sources - 1);
    const ref_source_t *source = &m->c->sources[s];
    heft_view_t whole = heft_view_contiguous((uint32_t)s, &source->shape);
    bool used[HEFT_MAX_DIMS] = { false };
    *view = (heft_view_t){ .buffer = (uint32_t)s, .rank = rank };
    for (int k = 0; k < rank; k++) {
        int d = source->shape.rank > 0 ? (int)heft_test_random_in(m->rng, 0, source->shape.rank - 1)
                                       : 0;
        bool is_repeat = source->shape.rank == 0 || used[d] || chance(m->rng, 8);
        if (is_repeat) {
            extent[k] = extent[k] < 0 ? heft_test_random_in(m->rng, 1, 3) : extent[k];
            view->extent[k] = extent[k];
            continue;
        }
        used[d] = true;
        static const int64_t steps[] = { 1, 1, 1, 1, 2, -1 };
        int64_t step = m->opts->whole_parts ? 1 : pick(m->rng, steps, 6);
        int64_t room = (whole.extent[d] - 1) / llabs(step) + 1;
        if (extent[k] < 0) {
            bool is_all = m->opts->whole_parts || chance(m->rng, 60);
            extent[k] = is_all ? room : heft_test_random_in(m->rng, 1, room);
        }
        if (extent[k] > room) {
            return false;
        }
        int64_t span = (extent[k] - 1) * llabs(step);
        int64_t start = heft_test_random_in(m->rng, 0, whole.extent[d] - 1 - span);
        start += step < 0 ? span : 0;
        view->extent[k] = extent[k];
        view->stride[k] = whole.stride[d] * step;
        view->offset += start * whole.stride[d];
    }
    for (int d = 0; d < source->shape.rank; d++) {
        if (!used[d]) {
            view->offset += whole.stride[d] * heft_test_random_in(m->rng, 0, whole.extent[d] - 1);
        }
    }
    *source_out = s;
    return true;
}

static bool can_cast(heft_dtype_t from, heft_dtype_t to)
{
    return from == to || (heft_dtype_is_float(from) && heft_dtype_is_float(to));
}

static void write_constant(maker_t *m, const heft_view_t *dst)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t bits = chance(m->rng, 50) ? 0 : heft_test_random(m->rng) & 0xff;
    EXPECT_STATUS(heft_tape_fill(m->tape, dst, bits, "fill", &err), HEFT_OK);
}

/* dst <- program(src, src2), floats only. */
static void write_map(maker_t *m, const heft_view_t *dst, const heft_view_t *srcs, uint32_t n_srcs,
                      heft_dtype_t dtype)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_op_t ops[8] = { { .code = HEFT_OP_LOAD, .arg = 0 } };
    uint32_t n = 1;
    uint8_t arith = chance(m->rng, 50) ? HEFT_DTYPE_F32 : (uint8_t)dtype;
    arith = arith == HEFT_DTYPE_F32 || arith == HEFT_DTYPE_F64 || arith == HEFT_DTYPE_F16 ||
                    arith == HEFT_DTYPE_BF16
                ? arith
                : HEFT_DTYPE_F32;
    if (n_srcs == 2) {
        ops[n++] = (heft_op_t){ .code = HEFT_OP_LOAD, .arg = 1 };
        ops[n++] = (heft_op_t){ .code = HEFT_OP_MUL, .dtype = arith };
    }
    static const int64_t codes[] = { HEFT_OP_ADD_IMM, HEFT_OP_MUL_IMM, HEFT_OP_DIV_IMM,
                                     HEFT_OP_NEG_EXP };
    ops[n] = (heft_op_t){ .code = (uint8_t)pick(m->rng, codes, 4), .dtype = arith };
    if (ops[n].code != HEFT_OP_NEG_EXP) {
        ops[n].imm = 0.5 + (double)heft_test_random_in(m->rng, 0, 8);
    }
    n++;
    EXPECT_STATUS(heft_tape_map(m->tape, dst, srcs, n_srcs, ops, n, "map", &err), HEFT_OK);
}

/* One part: from a source, directly or through a temporary, or a constant. */
static void write_part(maker_t *m, const heft_view_t *dst, heft_dtype_t dtype)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t extent[HEFT_MAX_DIMS];
    memcpy(extent, dst->extent, sizeof extent);
    heft_view_t srcs[2];
    int s = -1;
    bool fits = false;
    for (int tries = 0; tries < 30 && !fits && !chance(m->rng, 3); tries++) {
        fits = random_view(m, dst->rank, extent, &srcs[0], &s) &&
               (m->opts->copies_only ? m->c->sources[s].dtype == dtype
                                     : can_cast(m->c->sources[s].dtype, dtype));
    }
    if (!fits) {
        write_constant(m, dst);
        return;
    }
    int s2 = -1;
    bool is_float = heft_dtype_is_float(dtype) != 0;
    if (!m->opts->copies_only && is_float && chance(m->rng, 25)) {
        bool has_second = random_view(m, dst->rank, extent, &srcs[1], &s2) &&
                          heft_dtype_is_float(m->c->sources[s2].dtype);
        write_map(m, dst, srcs, has_second ? 2 : 1, dtype);
        return;
    }
    if (chance(m->rng, 30)) {
        heft_shape_t shape = { .rank = dst->rank };
        memcpy(shape.extent, dst->extent, sizeof shape.extent);
        heft_dtype_t temp_dtype = m->c->sources[s].dtype;
        /* a temporary's shape is logical, and views count storage units */
        temp_dtype = heft_dtype_get_bits(temp_dtype) < 8 ? HEFT_DTYPE_NONE : temp_dtype;
        if (temp_dtype != HEFT_DTYPE_NONE) {
            uint32_t id;
            EXPECT_STATUS(
                heft_tape_add_buffer(m->tape, HEFT_BUFFER_TEMP, "", temp_dtype, &shape, &id, &err),
                HEFT_OK);
            heft_view_t temp = heft_view_contiguous(id, &shape);
            EXPECT_STATUS(heft_tape_copy(m->tape, &temp, &srcs[0], "to temp", &err), HEFT_OK);
            srcs[0] = temp;
        }
    }
    EXPECT_STATUS(heft_tape_copy(m->tape, dst, &srcs[0], "copy", &err), HEFT_OK);
}

/* Neighbouring dimensions of the parameter's shape are sometimes given as one. */
static heft_shape_t group_dims(uint64_t *rng, const heft_shape_t *shape)
{
    heft_shape_t grouped = { .rank = 0 };
    for (int k = 0; k < shape->rank; k++) {
        if (grouped.rank > 0 && chance(rng, 25)) {
            grouped.extent[grouped.rank - 1] *= shape->extent[k];
        } else {
            grouped.extent[grouped.rank++] = shape->extent[k];
        }
    }
    return grouped;
}

static void add_param(maker_t *m, int i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t extent[HEFT_MAX_DIMS] = { -1, -1, -1, -1 };
    int rank = (int)heft_test_random_in(m->rng, 0, 4);
    heft_view_t first;
    int s = 0;
    while (!random_view(m, rank, extent, &first, &s)) {
        memset(extent, 0xff, sizeof extent);
    }
    heft_dtype_t dtype = m->c->sources[s].dtype;
    bool is_packed = heft_dtype_get_bits(dtype) < 8;
    if (!m->opts->copies_only && heft_dtype_is_float(dtype) && chance(m->rng, 30)) {
        dtype = chance(m->rng, 50) ? HEFT_DTYPE_BF16 : HEFT_DTYPE_F32;
    }
    int n_parts = rank > 0 ? (int)heft_test_random_in(m->rng, 1, 3) : 1;
    heft_shape_t full = { .rank = rank }; /* extents of the parts, stacked along dimension 0 */
    memcpy(full.extent, extent, sizeof full.extent);
    if (rank > 0) {
        full.extent[0] *= n_parts;
    }
    heft_shape_t declared = group_dims(m->rng, &full);
    if (is_packed) {
        if (declared.rank == 0) {
            declared = (heft_shape_t){ .rank = 1, .extent = { 1 } };
        }
        declared.extent[declared.rank - 1] *= 2; /* F4: two elements a byte */
    }
    char name[24];
    (void)snprintf(name, sizeof name, "p%02d.w", i);
    uint32_t id;
    EXPECT_STATUS(
        heft_tape_add_buffer(m->tape, HEFT_BUFFER_PARAM, name, dtype, &declared, &id, &err),
        HEFT_OK);
    heft_view_t whole = heft_view_contiguous(id, &full);
    for (int p = 0; p < n_parts; p++) {
        heft_view_t part = whole;
        if (rank > 0) {
            part.extent[0] = extent[0];
            part.offset += p * extent[0] * whole.stride[0];
        }
        if (p == 0 && (m->opts->copies_only || i == 0)) { /* a plan must move something */
            EXPECT_STATUS(heft_tape_copy(m->tape, &part, &first, "first", &err), HEFT_OK);
        } else {
            write_part(m, &part, dtype);
        }
    }
}

/* ---- random known kernels ---- */

static heft_view_t add_temp(maker_t *m, heft_dtype_t dtype, int rank, const int64_t *extent)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = rank };
    memcpy(shape.extent, extent, (size_t)rank * sizeof *extent);
    uint32_t id;
    EXPECT_STATUS(heft_tape_add_buffer(m->tape, HEFT_BUFFER_TEMP, "", dtype, &shape, &id, &err),
                  HEFT_OK);
    return heft_view_contiguous(id, &shape);
}

/* A parameter that keeps a part of what a kernel left, turned or cast now and then. */
static void keep_part(maker_t *m, const char *name, heft_view_t from, heft_dtype_t dtype)
{
    for (int k = 0; k < from.rank; k++) {
        int64_t n =
            chance(m->rng, 50) ? from.extent[k] : heft_test_random_in(m->rng, 1, from.extent[k]);
        from = ref_narrow(from, k, heft_test_random_in(m->rng, 0, from.extent[k] - n), n);
    }
    if (from.rank > 1 && chance(m->rng, 30)) {
        from = ref_swap(from, (int)heft_test_random_in(m->rng, 0, from.rank - 1),
                        (int)heft_test_random_in(m->rng, 0, from.rank - 1));
    }
    dtype = chance(m->rng, 20) ? HEFT_DTYPE_F32 : dtype;
    uint32_t id = ref_tape_param(m->tape, name, dtype, from.rank, from.extent);
    ref_copy(m->tape, ref_view(m->tape, id), from);
}

/* Blocks of a kernel that there is for these extents. */
static void random_blocks(maker_t *m, const heft_view_t *x, heft__known_t *known)
{
    known->n_dims = x->rank;
    for (int k = 0; k < x->rank; k++) {
        bool is_cut = k >= x->rank - 2;
        known->block[k] = is_cut ? heft_test_random_in(m->rng, 1, x->extent[k] + 1) : 1;
    }
    if (chance(m->rng, 20)) { /* one block */
        memcpy(known->block, x->extent, (size_t)x->rank * sizeof known->block[0]);
    }
}

static void add_quantised(maker_t *m, int i)
{
    static const int64_t dtypes[] = { HEFT_DTYPE_BF16, HEFT_DTYPE_F32, HEFT_DTYPE_F16 };
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t extent[HEFT_MAX_DIMS] = { -1, -1, -1, -1 };
    int rank = (int)heft_test_random_in(m->rng, 1, 4);
    heft_view_t x;
    int s = 0;
    while (!random_view(m, rank, extent, &x, &s)) {
        memset(extent, 0xff, sizeof extent);
    }
    heft_dtype_t dtype = m->c->sources[s].dtype;
    bool is_direct = dtype == HEFT_DTYPE_BF16 || dtype == HEFT_DTYPE_F32 || dtype == HEFT_DTYPE_F16;
    if (!is_direct || chance(m->rng, 50)) {
        dtype = (heft_dtype_t)pick(m->rng, dtypes, 3);
        x = add_temp(m, dtype, rank, extent);
        write_part(m, &x, dtype);
    }
    heft__known_t known = { .code = HEFT__KNOWN_FP8_QUANTISE,
                            .rule = (heft__scale_rule_t)heft_test_random_in(m->rng, 1, 4) };
    random_blocks(m, &x, &known);
    int64_t n_blocks[HEFT_MAX_DIMS];
    for (int k = 0; k < rank; k++) {
        n_blocks[k] = (extent[k] + known.block[k] - 1) / known.block[k];
    }
    bool is_e8m0 = known.rule == HEFT__SCALE_UE8M0 && chance(m->rng, 50);
    heft_dtype_t scale = is_e8m0 ? HEFT_DTYPE_F8_E8M0 : HEFT_DTYPE_F32;
    heft_view_t dsts[2] = { add_temp(m, HEFT_DTYPE_F8_E4M3, rank, extent),
                            add_temp(m, scale, rank, n_blocks) };
    char op[HEFT__KNOWN_TEXT_BYTES];
    heft__known_print(&known, op);
    EXPECT_STATUS(heft_tape_opaque(m->tape, op, dsts, 2, &x, 1, "known", &err), HEFT_OK);
    char name[24];
    (void)snprintf(name, sizeof name, "p%02d.q", i);
    keep_part(m, name, dsts[0], HEFT_DTYPE_F8_E4M3);
    (void)snprintf(name, sizeof name, "p%02d.s", i);
    keep_part(m, name, dsts[1], scale);
}

static void make_tape(ref_case_t *c, uint64_t *rng, const ref_opts_t *opts)
{
    maker_t m = { .c = c, .rng = rng, .opts = opts, .tape = ref_case_tape(c) };
    int n = (int)heft_test_random_in(rng, 1, REF_MAX_PARAMS);
    for (int i = 0; i < n; i++) {
        if (i > 0 && i + 1 < n && !opts->copies_only && chance(rng, 30)) {
            add_quantised(&m, i++); /* two parameters */
        } else {
            add_param(&m, i);
        }
    }
}

/* ---- cases ---- */

static uint8_t **run_reference(const ref_case_t *c, int rank, uint32_t *n_params_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tape = c->tapes[rank];
    uint32_t n_buffers = heft_tape_get_n_buffers(tape);
    uint8_t **data = calloc((size_t)n_buffers + 1, sizeof *data);
    assert_non_null(data);
    for (uint32_t b = 0; b < n_buffers; b++) {
        heft_buffer_info_t info;
        EXPECT_STATUS(heft_tape_query_buffer(tape, b, &info, &err), HEFT_OK);
        size_t bytes = (size_t)(info.n_elems * (int64_t)heft_dtype_get_unit_bytes(info.dtype));
        data[b] = malloc(bytes + 1);
        assert_non_null(data[b]);
        memset(data[b], REF_POISON, bytes + 1);
        for (int s = 0; info.kind == HEFT_BUFFER_SOURCE && s < c->n_sources; s++) {
            if (strcmp(info.name, c->sources[s].name) == 0) {
                memcpy(data[b], c->sources[s].data, bytes);
            }
        }
    }
    ref_reshard(tape, data);
    uint32_t n = heft_plan_get_n_params(c->plan, (uint32_t)rank);
    uint8_t **params = calloc((size_t)n + 1, sizeof *params);
    assert_non_null(params);
    for (uint32_t p = 0; p < n; p++) {
        heft_tensor_info_t info;
        uint32_t id;
        EXPECT_STATUS(heft_plan_query_param(c->plan, (uint32_t)rank, p, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_tape_find_buffer(tape, HEFT_BUFFER_PARAM, info.name, &id, &err),
                      HEFT_OK);
        params[p] = data[id];
        data[id] = NULL;
    }
    for (uint32_t b = 0; b < n_buffers; b++) {
        free(data[b]);
    }
    free(data);
    *n_params_out = n;
    return params;
}

void ref_case_finish(ref_case_t *c)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tapes[REF_MAX_RANKS];
    for (int r = 0; r < c->n_ranks; r++) {
        tapes[r] = c->tapes[r];
    }
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.exceptions = c->exceptions;
    opts.n_exceptions = c->n_exceptions;
    opts.partial = 1; /* random cases leave sources unused */
    heft_report_t *report = NULL;
    heft_status_t status =
        heft_plan_create(tapes, (uint32_t)c->n_ranks, 0, &opts, &c->plan, &report, &err);
    if (status != HEFT_OK && report != NULL) {
        for (uint32_t i = 0; i < heft_report_get_n_findings(report); i++) {
            print_message("%s\n", heft_report_get_finding(report, i)->text);
        }
    }
    heft_report_destroy(report);
    EXPECT_STATUS(status, HEFT_OK);
    heft_plan_info_t info;
    heft_plan_query(c->plan, &info);
    assert_int_equal(info.n_sources, c->n_sources);
    for (uint32_t i = 0; i < info.n_sources; i++) {
        heft_tensor_info_t tensor;
        EXPECT_STATUS(heft_plan_query_source(c->plan, i, &tensor, &err), HEFT_OK);
        assert_string_equal(tensor.name, c->sources[i].name);
        c->source_data[i] = c->sources[i].data;
    }
    for (int r = 0; r < c->n_ranks; r++) {
        c->expected[r] = run_reference(c, r, &c->n_params[r]);
    }
}

void ref_case_init(ref_case_t *c, uint64_t *rng, const ref_opts_t *opts)
{
    *c = (ref_case_t){ .n_sources = opts->n_sources > 0
                                        ? opts->n_sources
                                        : (int)heft_test_random_in(rng, 1, REF_MAX_SOURCES) };
    int n_ranks =
        opts->n_ranks > 0 ? opts->n_ranks : (int)heft_test_random_in(rng, 1, REF_MAX_RANKS);
    for (int s = 0; s < c->n_sources; s++) {
        random_source(&c->sources[s], s, rng);
    }
    for (int r = 0; r < n_ranks; r++) {
        make_tape(c, rng, opts);
    }
    ref_case_finish(c);
}

void ref_case_fini(ref_case_t *c)
{
    for (int r = 0; r < c->n_ranks; r++) {
        for (uint32_t p = 0; p < c->n_params[r]; p++) {
            free(c->expected[r][p]);
        }
        free(c->expected[r]);
        heft_tape_destroy(c->tapes[r]);
    }
    for (int s = 0; s < c->n_sources; s++) {
        free(c->sources[s].data);
    }
    heft_plan_destroy(c->plan);
    *c = (ref_case_t){ 0 };
}

/* ---- parameters of a target ---- */

void ref_params_init(ref_params_t *p, const ref_case_t *c, int rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    p->n = c->n_params[rank];
    p->data = calloc((size_t)p->n + 1, sizeof *p->data);
    p->n_bytes = calloc((size_t)p->n + 1, sizeof *p->n_bytes);
    assert_non_null(p->data);
    assert_non_null(p->n_bytes);
    for (uint32_t i = 0; i < p->n; i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(c->plan, (uint32_t)rank, i, &info, &err), HEFT_OK);
        p->n_bytes[i] = info.n_bytes;
        uint8_t *block = malloc((size_t)info.n_bytes + 2 * REF_GUARD);
        assert_non_null(block);
        memset(block, REF_GUARD_BYTE, (size_t)info.n_bytes + 2 * REF_GUARD);
        p->data[i] = block + REF_GUARD;
    }
    ref_params_poison(p);
}

void ref_params_poison(const ref_params_t *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        memset(p->data[i], REF_POISON, (size_t)p->n_bytes[i]);
    }
}

void ref_params_check(const ref_params_t *p, const ref_case_t *c, int rank)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const uint8_t *got = p->data[i];
        bool is_same = memcmp(got, c->expected[rank][i], (size_t)p->n_bytes[i]) == 0;
        for (int64_t b = 0; !is_same && b < p->n_bytes[i]; b++) {
            if (got[b] != c->expected[rank][i][b]) {
                fail_msg("rank %d parameter %u byte %lld: %02x, expected %02x", rank, i,
                         (long long)b, got[b], c->expected[rank][i][b]);
            }
        }
        for (int64_t b = 0; b < REF_GUARD; b++) {
            assert_int_equal(got[-1 - b], REF_GUARD_BYTE);
            assert_int_equal(got[p->n_bytes[i] + b], REF_GUARD_BYTE);
        }
    }
}

void ref_params_fini(ref_params_t *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        free((uint8_t *)p->data[i] - REF_GUARD);
    }
    free(p->data);
    free(p->n_bytes);
    *p = (ref_params_t){ 0 };
}

/* ---- checkpoints ---- */

void ref_write_sources(const ref_case_t *c, const char *dir)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    for (int s = 0; s < c->n_sources; s++) {
        EXPECT_STATUS(heft_manifest_add(manifest, c->sources[s].name, c->sources[s].dtype,
                                        &c->sources[s].logical, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, manifest, 0, &writer, &err), HEFT_OK);
    for (int s = 0; s < c->n_sources; s++) {
        void *data = NULL;
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, (uint32_t)s, &data, &err), HEFT_OK);
        memcpy(data, c->sources[s].data, (size_t)c->sources[s].n_bytes);
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, (uint32_t)s, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    heft_manifest_destroy(manifest);
}
