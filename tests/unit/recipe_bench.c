/* SPDX-License-Identifier: Apache-2.0 */
/* The bench for recipes; see recipe_bench.h. */
#include "recipe_bench.h"

#include <math.h>

#include "kernel/kernel.h"
#include "ranks_agree.h"
#include "ref_known.h"
#include "tape/tape.h"

static double next_value;

int rb_setup(void **state)
{
    rb_t *b = calloc(1, sizeof *b);
    assert_non_null(b);
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_bindings_create(&b->bindings, &err), HEFT_OK);
    next_value = 1;
    *state = b;
    return 0;
}

static void drop_run(rb_t *b)
{
    for (uint32_t i = 0; b->tape != NULL && i < heft_tape_get_n_buffers(b->tape); i++) {
        free(b->buffers[i]);
    }
    free(b->buffers);
    b->buffers = NULL;
    heft_tape_destroy(b->tape);
    b->tape = NULL;
}

void rb_clear(rb_t *b)
{
    heft_error_t err = HEFT_ERROR_INIT;
    drop_run(b);
    for (size_t i = 0; i < b->n_sources; i++) {
        free(b->sources[i].name);
        free(b->sources[i].values);
    }
    for (size_t i = 0; i < b->n_dests; i++) {
        free(b->dests[i].name);
    }
    b->n_sources = 0;
    b->n_dests = 0;
    heft_bindings_destroy(b->bindings);
    EXPECT_STATUS(heft_bindings_create(&b->bindings, &err), HEFT_OK);
    next_value = 1;
}

int rb_teardown(void **state)
{
    rb_t *b = *state;
    rb_clear(b);
    heft_bindings_destroy(b->bindings);
    free(b);
    return 0;
}

/* ---- text ---- */

static heft_shape_t parse_shape(const char *text)
{
    heft_shape_t shape = { 0 };
    for (const char *at = text; *at != '\0';) {
        char *end = NULL;
        shape.extent[shape.rank++] = strtoll(at, &end, 10);
        at = *end == ',' ? end + 1 : end;
    }
    return shape;
}

static int64_t count_of(const heft_shape_t *shape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t n = 0;
    EXPECT_STATUS(heft_shape_count(shape, &n, &err), HEFT_OK);
    return n;
}

/* "1 2", "0-3,7", "?": n values, no more and no fewer. */
static void parse_values(const char *text, double *out, int64_t n)
{
    int64_t k = 0;
    for (const char *at = text; *at != '\0';) {
        if (*at == ' ' || *at == ',') {
            at++;
            continue;
        }
        char *end = NULL;
        double first = NAN;
        if (*at == '?') {
            end = (char *)(uintptr_t)(at + 1);
        } else {
            first = strtod(at, &end);
        }
        double last = *end == '-' ? strtod(end + 1, &end) : first;
        assert_true(end != at);
        for (double v = first; v <= last || isnan(v); v += 1) {
            assert_true(k < n);
            out[k++] = v;
            if (isnan(v)) {
                break;
            }
        }
        at = end;
    }
    assert_int_equal(k, n);
}

/* ---- what is declared ---- */

void rb_source(rb_t *b, const char *name, heft_dtype_t dtype, const char *shape, const char *values)
{
    assert_true(b->n_sources < 64);
    rb_source_t *s = &b->sources[b->n_sources++];
    *s = (rb_source_t){ .name = strdup(name), .dtype = dtype, .shape = parse_shape(shape) };
    s->n = count_of(&s->shape);
    s->values = calloc((size_t)s->n + 1, sizeof *s->values);
    assert_non_null(s->values);
    for (int64_t i = 0; values == NULL && i < s->n; i++) {
        s->values[i] = next_value++;
    }
    if (values != NULL) {
        parse_values(values, s->values, s->n);
    }
}

void rb_dest(rb_t *b, const char *name, heft_dtype_t dtype, const char *shape)
{
    assert_true(b->n_dests < 64);
    b->dests[b->n_dests++] =
        (rb_source_t){ .name = strdup(name), .dtype = dtype, .shape = parse_shape(shape) };
}

void rb_set(rb_t *b, const char *name, const char *value)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_bindings_set(b->bindings, name, value, &err), HEFT_OK);
}

void rb_config(rb_t *b, const char *json)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_bindings_set_config(b->bindings, json, strlen(json), &err), HEFT_OK);
}

static heft_manifest_t *make_manifest(const char *side, const rb_source_t *items, size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    EXPECT_STATUS(heft_manifest_create(side, &manifest, &err), HEFT_OK);
    for (size_t i = 0; i < n; i++) {
        EXPECT_STATUS(
            heft_manifest_add(manifest, items[i].name, items[i].dtype, &items[i].shape, &err),
            HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

heft_manifest_t *rb_source_manifest(const rb_t *b)
{
    return make_manifest("source", b->sources, b->n_sources);
}

heft_manifest_t *rb_dest_manifest(const rb_t *b)
{
    return b->n_dests > 0 ? make_manifest("destination", b->dests, b->n_dests) : NULL;
}

/* ---- the naive interpreter ---- */

static double round_bf16(double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    bits &= 0xffff0000u;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static double round_to(double value, int dtype)
{
    if (dtype == HEFT_DTYPE_BF16) {
        return round_bf16(value);
    }
    return dtype == HEFT_DTYPE_F32 ? (double)(float)value : value;
}

static double run_program(const heft__write_t *w, const double *in, int dst_dtype)
{
    double stack[16] = { 0 };
    int top = 0;
    for (uint32_t i = 0; i < w->n_ops; i++) {
        const heft_op_t *op = &w->ops[i];
        double imm = round_to(op->imm, op->dtype);
        switch ((int)op->code) {
        case HEFT_OP_LOAD:
            stack[top++] = in[op->arg];
            continue;
        case HEFT_OP_CAST:
            break;
        case HEFT_OP_ADD_IMM:
            stack[top - 1] += imm;
            break;
        case HEFT_OP_MUL_IMM:
            stack[top - 1] *= imm;
            break;
        case HEFT_OP_DIV_IMM:
            stack[top - 1] /= imm;
            break;
        case HEFT_OP_NEG_EXP:
            stack[top - 1] = -exp(stack[top - 1]);
            break;
        case HEFT_OP_MUL:
            top--;
            stack[top - 1] *= stack[top];
            break;
        default:
            fail_msg("operation %d", (int)op->code);
        }
        stack[top - 1] = round_to(stack[top - 1], op->dtype);
    }
    return round_to(w->n_ops == 0 ? in[0] : stack[0], dst_dtype);
}

static int64_t offset_at(const heft__tape_view_t *view, const int64_t *index)
{
    int64_t at = view->offset;
    for (int k = 0; k < view->rank; k++) {
        at += view->stride[k] * index[k];
    }
    return at;
}

static void run_element(rb_t *b, const heft__write_t *w, const int64_t *index)
{
    double in[HEFT_MAX_SOURCES] = { 0 };
    for (uint32_t s = 0; s < w->n_srcs; s++) {
        int64_t at = offset_at(&w->srcs[s], index);
        assert_in_range(at, 0, b->tape->buffers[w->srcs[s].buffer].n_elems - 1);
        in[s] = b->buffers[w->srcs[s].buffer][at];
        b->is_broken = b->is_broken || isnan(in[s]);
    }
    const heft__tape_view_t *dst = &w->dsts[0];
    int64_t at = offset_at(dst, index);
    assert_in_range(at, 0, b->tape->buffers[dst->buffer].n_elems - 1);
    double value = 0;
    if (w->kind != HEFT_WRITE_FILL) {
        value = run_program(w, in, (int)b->tape->buffers[dst->buffer].dtype);
    }
    bool is_param = b->tape->buffers[dst->buffer].kind == HEFT_BUFFER_PARAM;
    b->n_twice += is_param && !isnan(b->buffers[dst->buffer][at]) ? 1 : 0;
    b->buffers[dst->buffer][at] = value;
}

/* A known kernel works on bytes: values go there and back, which is exact for what fits. */
static void run_known(rb_t *b, const heft__write_t *w)
{
    uint32_t n = heft_tape_get_n_buffers(b->tape);
    uint8_t **data = calloc((size_t)n + 1, sizeof *data);
    assert_non_null(data);
    for (uint32_t i = 0; i < w->n_srcs + w->n_dsts; i++) {
        uint32_t id = i < w->n_srcs ? w->srcs[i].buffer : w->dsts[i - w->n_srcs].buffer;
        const heft_buffer_info_t *info = &b->tape->buffers[id];
        uint32_t unit = heft_dtype_get_unit_bytes(info->dtype);
        data[id] = data[id] != NULL ? data[id] : calloc((size_t)info->n_elems + 1, 8);
        assert_non_null(data[id]);
        for (int64_t k = 0; k < info->n_elems; k++) {
            uint64_t bits;
            memcpy(&bits, &b->buffers[id][k], 8);
            bits = heft__cast_bits(info->dtype, HEFT_DTYPE_F64, bits);
            memcpy(data[id] + k * unit, &bits, unit);
        }
    }
    ref_known(b->tape, data, w);
    for (uint32_t i = 0; i < w->n_dsts; i++) {
        uint32_t id = w->dsts[i].buffer;
        const heft_buffer_info_t *info = &b->tape->buffers[id];
        uint32_t unit = heft_dtype_get_unit_bytes(info->dtype);
        for (int64_t k = 0; k < info->n_elems; k++) {
            uint64_t bits = 0;
            memcpy(&bits, data[id] + k * unit, unit);
            bits = heft__cast_bits(HEFT_DTYPE_F64, info->dtype, bits);
            memcpy(&b->buffers[id][k], &bits, 8);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        free(data[i]);
    }
    free(data);
}

static void run_write(rb_t *b, const heft__write_t *w)
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    const heft__tape_view_t *dst = &w->dsts[0];
    if (w->kind == HEFT_WRITE_OPAQUE) {
        run_known(b, w);
        return;
    }
    for (;;) {
        run_element(b, w, index);
        int k = dst->rank - 1;
        while (k >= 0 && ++index[k] == dst->extent[k]) {
            index[k--] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

static void run_tape(rb_t *b)
{
    uint32_t n = heft_tape_get_n_buffers(b->tape);
    b->is_broken = false;
    b->n_twice = 0;
    b->buffers = calloc((size_t)n + 1, sizeof *b->buffers);
    assert_non_null(b->buffers);
    for (uint32_t i = 0; i < n; i++) {
        const heft_buffer_info_t *info = &b->tape->buffers[i];
        b->buffers[i] = calloc((size_t)info->n_elems + 1, sizeof(double));
        assert_non_null(b->buffers[i]);
        for (int64_t k = 0; k < info->n_elems; k++) {
            b->buffers[i][k] = NAN;
        }
        for (size_t s = 0; info->kind == HEFT_BUFFER_SOURCE && s < b->n_sources; s++) {
            if (strcmp(b->sources[s].name, info->name) == 0) {
                memcpy(b->buffers[i], b->sources[s].values, (size_t)info->n_elems * sizeof(double));
            }
        }
    }
    for (size_t i = 0; i < b->tape->n_writes; i++) {
        run_write(b, &b->tape->writes[i]);
    }
}

static void expect_ranks_agree(const rb_t *b, const heft_recipe_t *recipe,
                               const heft_manifest_t *source, const heft_manifest_t *dest)
{
    char why[512];
    if (!ranks_agree(recipe, b->bindings, source, dest, why)) {
        fail_msg("%s", why);
    }
}

static heft_status_t try_recipe(rb_t *b, const heft_recipe_t *recipe, uint32_t rank,
                                heft_error_t *err)
{
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = rb_dest_manifest(b);
    drop_run(b);
    heft_status_t status =
        heft_recipe_compile(recipe, b->bindings, rank, source, dest, &b->tape, err);
    expect_ranks_agree(b, recipe, source, dest);
    heft_manifest_destroy(source);
    heft_manifest_destroy(dest);
    if (status == HEFT_OK) {
        run_tape(b);
    }
    return status;
}

void rb_run_recipe(rb_t *b, const heft_recipe_t *recipe, uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(try_recipe(b, recipe, rank, &err), HEFT_OK);
    assert_false(b->is_broken);
}

heft_status_t rb_try(rb_t *b, const char *text, uint32_t rank, heft_error_t *err)
{
    heft_recipe_t *recipe = NULL;
    drop_run(b);
    heft_status_t status = heft_recipe_parse("test", text, strlen(text), &recipe, err);
    if (status == HEFT_OK) {
        status = try_recipe(b, recipe, rank, err);
    }
    heft_recipe_destroy(recipe);
    return status;
}

void rb_run(rb_t *b, const char *text, uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(rb_try(b, text, rank, &err), HEFT_OK);
    assert_false(b->is_broken);
}

void rb_refuses(rb_t *b, const char *text, uint32_t rank, heft_status_t status, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_manifest_t *source = rb_source_manifest(b);
    heft_manifest_t *dest = rb_dest_manifest(b);
    heft_status_t got = heft_recipe_parse("test", text, strlen(text), &recipe, &err);
    if (got == HEFT_OK) {
        got = heft_recipe_compile(recipe, b->bindings, rank, source, dest, &tape, &err);
        expect_ranks_agree(b, recipe, source, dest);
    }
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
    heft_manifest_destroy(dest);
    assert_null(tape);
    EXPECT_STATUS(got, status);
    assert_int_equal(err.status, status);
    EXPECT_MESSAGE(part);
}

/* ---- what came out ---- */

static bool same_values(const double *got, const double *want, int64_t n, const char *name,
                        char why[256])
{
    for (int64_t i = 0; i < n; i++) {
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        if (!same) {
            (void)snprintf(why, 256, "%s[%lld]: %.17g, expected %.17g", name, (long long)i, got[i],
                           want[i]);
            return false;
        }
    }
    return true;
}

bool rb_differs(const rb_t *b, const char *name, heft_dtype_t dtype, const char *shape,
                const char *values, char why[256])
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t id = 0;
    heft_buffer_info_t info;
    heft_shape_t want = parse_shape(shape);
    if (heft_tape_find_buffer(b->tape, HEFT_BUFFER_PARAM, name, &id, &err) != HEFT_OK) {
        (void)snprintf(why, 256, "%s", err.message);
        return true;
    }
    EXPECT_STATUS(heft_tape_query_buffer(b->tape, id, &info, &err), HEFT_OK);
    bool is_same = info.dtype == dtype && info.shape.rank == want.rank;
    for (int k = 0; is_same && k < want.rank; k++) {
        is_same = info.shape.extent[k] == want.extent[k];
    }
    if (!is_same || values == NULL) {
        (void)snprintf(why, 256, "%s: another dtype or shape than %s [%s]", name,
                       heft_dtype_get_name(dtype), shape);
        return !is_same;
    }
    double *expected = calloc((size_t)info.n_elems + 1, sizeof *expected);
    assert_non_null(expected);
    parse_values(values, expected, info.n_elems);
    is_same = same_values(b->buffers[id], expected, info.n_elems, name, why);
    free(expected);
    return !is_same;
}

void rb_expect(const rb_t *b, const char *name, heft_dtype_t dtype, const char *shape,
               const char *values)
{
    char why[256];
    if (rb_differs(b, name, dtype, shape, values, why)) {
        fail_msg("%s", why);
    }
}

const double *rb_values(const rb_t *b, const char *name, int64_t *n_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t id = 0;
    EXPECT_STATUS(heft_tape_find_buffer(b->tape, HEFT_BUFFER_PARAM, name, &id, &err), HEFT_OK);
    *n_out = b->tape->buffers[id].n_elems;
    return b->buffers[id];
}

const double *rb_source_values(const rb_t *b, const char *name)
{
    for (size_t i = 0; i < b->n_sources; i++) {
        if (strcmp(b->sources[i].name, name) == 0) {
            return b->sources[i].values;
        }
    }
    fail_msg("no source %s", name);
    return NULL;
}

bool rb_has_param(const rb_t *b, const char *name)
{
    uint32_t id = 0;
    return heft_tape_find_buffer(b->tape, HEFT_BUFFER_PARAM, name, &id, NULL) == HEFT_OK;
}

uint32_t rb_n_params(const rb_t *b)
{
    uint32_t n = 0;
    for (size_t i = 0; i < b->tape->n_buffers; i++) {
        n += b->tape->buffers[i].kind == HEFT_BUFFER_PARAM ? 1 : 0;
    }
    return n;
}
