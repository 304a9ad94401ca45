/* SPDX-License-Identifier: Apache-2.0 */
/* Short words for plan tests: tapes written by hand, plans made from them, findings looked up by
 * kind and name. Everything is freed by fx_fini. */
#ifndef PLAN_FIXTURE_H
#define PLAN_FIXTURE_H

#include "heft_test.h"

#include "heft/plan.h"

enum { FX_MAX_TAPES = 8 };

typedef struct fx {
    heft_tape_t *tapes[FX_MAX_TAPES];
    uint32_t n_tapes;
    heft_tape_t *tape; /* the one being written: the last */
    heft_plan_t *plan;
    heft_report_t *report;
    heft_exception_t exceptions[8];
    heft_plan_opts_t opts;
    uint32_t first_rank;
} fx_t;

/* One more tape. */
static inline void fx_next(fx_t *fx)
{
    heft_error_t err = HEFT_ERROR_INIT;
    assert_true(fx->n_tapes < FX_MAX_TAPES);
    EXPECT_STATUS(heft_tape_create(&fx->tapes[fx->n_tapes], &err), HEFT_OK);
    fx->tape = fx->tapes[fx->n_tapes++];
}

static inline void fx_init(fx_t *fx)
{
    *fx = (fx_t){ .opts = HEFT_PLAN_OPTS_INIT };
    fx->opts.exceptions = fx->exceptions;
    fx_next(fx);
}

static inline void fx_drop_plan(fx_t *fx)
{
    heft_plan_destroy(fx->plan);
    heft_report_destroy(fx->report);
    fx->plan = NULL;
    fx->report = NULL;
}

static inline void fx_fini(fx_t *fx)
{
    fx_drop_plan(fx);
    for (uint32_t i = 0; i < fx->n_tapes; i++) {
        heft_tape_destroy(fx->tapes[i]);
    }
    *fx = (fx_t){ 0 };
}

/* "2,3,4"; "" is a scalar. */
static inline heft_shape_t fx_shape(const char *text)
{
    heft_shape_t shape = { 0 };
    while (*text != '\0') {
        char *end;
        shape.extent[shape.rank++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    return shape;
}

static inline heft_view_t fx_buffer(fx_t *fx, heft_buffer_kind_t kind, const char *name,
                                    heft_dtype_t dtype, const char *shape_text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = fx_shape(shape_text);
    uint32_t id;
    EXPECT_STATUS(heft_tape_add_buffer(fx->tape, kind, name, dtype, &shape, &id, &err), HEFT_OK);
    return heft_view_contiguous(id, &shape);
}

static inline heft_view_t fx_source(fx_t *fx, const char *name, const char *shape)
{
    return fx_buffer(fx, HEFT_BUFFER_SOURCE, name, HEFT_DTYPE_BF16, shape);
}

static inline heft_view_t fx_param(fx_t *fx, const char *name, const char *shape)
{
    return fx_buffer(fx, HEFT_BUFFER_PARAM, name, HEFT_DTYPE_BF16, shape);
}

/* Indices [begin, end) of one dimension. */
static inline heft_view_t fx_narrow(heft_view_t view, int dim, int64_t begin, int64_t end)
{
    view.offset += begin * view.stride[dim];
    view.extent[dim] = end - begin;
    return view;
}

/* One index; the dimension goes. */
static inline heft_view_t fx_select(heft_view_t view, int dim, int64_t index)
{
    view.offset += index * view.stride[dim];
    for (int i = dim; i + 1 < view.rank; i++) {
        view.extent[i] = view.extent[i + 1];
        view.stride[i] = view.stride[i + 1];
    }
    view.rank--;
    return view;
}

static inline heft_view_t fx_transpose(heft_view_t view, int a, int b)
{
    int64_t extent = view.extent[a];
    int64_t stride = view.stride[a];
    view.extent[a] = view.extent[b];
    view.stride[a] = view.stride[b];
    view.extent[b] = extent;
    view.stride[b] = stride;
    return view;
}

static inline void fx_copy(fx_t *fx, heft_view_t dst, heft_view_t src, const char *note)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_copy(fx->tape, &dst, &src, note, &err), HEFT_OK);
}

static inline void fx_fill(fx_t *fx, heft_view_t dst, uint64_t bits, const char *note)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_fill(fx->tape, &dst, bits, note, &err), HEFT_OK);
}

static inline void fx_except(fx_t *fx, heft_exception_kind_t kind, const char *pattern,
                             const char *reason)
{
    assert_true(fx->opts.n_exceptions < 8);
    fx->exceptions[fx->opts.n_exceptions++] =
        (heft_exception_t){ .kind = kind, .pattern = pattern, .reason = reason, .where = "" };
}

/* Make the plan; the status must be as expected. Gives the error of a failure. */
static inline heft_error_t fx_plan(fx_t *fx, heft_status_t expected)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tapes[FX_MAX_TAPES];
    fx_drop_plan(fx);
    for (uint32_t i = 0; i < fx->n_tapes; i++) {
        tapes[i] = fx->tapes[i];
    }
    EXPECT_STATUS(heft_plan_create(tapes, fx->n_tapes, fx->first_rank, &fx->opts, &fx->plan,
                                   &fx->report, &err),
                  expected);
    return err;
}

static inline heft_plan_info_t fx_info(const fx_t *fx)
{
    heft_plan_info_t info;
    heft_plan_query(fx->plan, &info);
    return info;
}

/* The finding of this kind about this name; the test fails without it. */
static inline const heft_finding_t *fx_finding(const fx_t *fx, heft_finding_kind_t kind,
                                               const char *name)
{
    for (uint32_t i = 0; i < heft_report_get_n_findings(fx->report); i++) {
        const heft_finding_t *finding = heft_report_get_finding(fx->report, i);
        if (finding->kind == kind && strcmp(finding->name, name) == 0) {
            return finding;
        }
    }
    for (uint32_t i = 0; i < heft_report_get_n_findings(fx->report); i++) {
        (void)fprintf(stderr, "finding: %s\n", heft_report_get_finding(fx->report, i)->text);
    }
    fail_msg("no finding \"%s\" about \"%s\"", heft_finding_kind_get_name(kind), name);
    return NULL;
}

static inline uint32_t fx_count(const fx_t *fx, heft_finding_kind_t kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < heft_report_get_n_findings(fx->report); i++) {
        n += heft_report_get_finding(fx->report, i)->kind == kind;
    }
    return n;
}

#define FX_EXPECT_TEXT(finding, part)                                      \
    do {                                                                   \
        if (strstr((finding)->text, (part)) == NULL) {                     \
            fail_msg("finding lacks \"%s\": %s", (part), (finding)->text); \
        }                                                                  \
    } while (0)

/* Index of a parameter by name. */
static inline uint32_t fx_find_param(const fx_t *fx, uint32_t rank_index, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t i = 0; i < heft_plan_get_n_params(fx->plan, rank_index); i++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(fx->plan, rank_index, i, &info, &err), HEFT_OK);
        if (strcmp(info.name, name) == 0) {
            return i;
        }
    }
    fail_msg("no parameter \"%s\"", name);
    return 0;
}

#endif
