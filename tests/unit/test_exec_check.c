/* SPDX-License-Identifier: Apache-2.0 */
/* Checks in runs: two sources of one parameter agree, or the run fails and names the first element,
 * both sources and both values. Then the same for conversions, there and back, and verification. */
#include "plan_fixture.h"

#include "base/base.h"
#include "heft/exec.h"

#include <dirent.h>

enum { N = 8 };

/* ---- memory to memory ---- */

typedef struct run {
    fx_t fx;
    void *params[4];
    heft_exec_target_t target;
    heft_exec_t *exec;
} run_t;

/* The plan of the fixture, prepared for one destination in zeroed memory. */
static void run_prepare(run_t *r, uint32_t n_threads)
{
    heft_error_t err = HEFT_ERROR_INIT;
    (void)fx_plan(&r->fx, HEFT_OK);
    for (uint32_t p = 0; p < heft_plan_get_n_params(r->fx.plan, 0); p++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(r->fx.plan, 0, p, &info, &err), HEFT_OK);
        r->params[p] = calloc(1, (size_t)info.n_bytes);
        assert_non_null(r->params[p]);
    }
    r->target = (heft_exec_target_t){ .params = r->params };
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = n_threads;
    EXPECT_STATUS(heft_exec_create(r->fx.plan, &r->target, 1, &opts, &r->exec, &err), HEFT_OK);
}

static void run_fini(run_t *r)
{
    heft_exec_destroy(r->exec);
    for (int p = 0; p < 4; p++) {
        free(r->params[p]);
    }
    fx_fini(&r->fx);
}

/* lm_head from the embedding, then rows 1 to 4 from the checkpoint's own head. */
static void tied_init(run_t *r)
{
    *r = (run_t){ .exec = NULL };
    fx_init(&r->fx);
    heft_view_t embed = fx_source(&r->fx, "embed", "4,2");
    heft_view_t own = fx_source(&r->fx, "head", "3,2");
    heft_view_t head = fx_param(&r->fx, "lm_head", "4,2");
    fx_copy(&r->fx, head, embed, "r:1");
    fx_copy(&r->fx, fx_narrow(head, 0, 1, 4), own, "r:2");
    fx_except(&r->fx, HEFT_EXCEPTION_EQUAL, "lm_head", "tied");
}

static void values_that_agree_pass_in_every_run(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    run_t r;
    tied_init(&r);
    run_prepare(&r, 1);
    for (int round = 0; round < 3; round++) {
        uint16_t embed[N];
        uint16_t own[6];
        for (int i = 0; i < N; i++) {
            embed[i] = (uint16_t)(100 * round + i);
        }
        memcpy(own, embed + 2, sizeof own);
        const void *sources[] = { embed, own };
        heft__alloc_fail_at(0); /* a run allocates nothing */
        heft_status_t status = heft_exec_run(r.exec, sources, &err);
        heft__alloc_fail_at(-1);
        EXPECT_STATUS(status, HEFT_OK);
        assert_memory_equal(r.params[0], embed, sizeof embed);
        own[4] ^= 1;
        heft__alloc_fail_at(0);
        status = heft_exec_run(r.exec, sources, &err);
        heft__alloc_fail_at(-1);
        EXPECT_STATUS(status, HEFT_ERR_MISMATCH);
    }
    run_fini(&r);
}

static void the_first_disagreement_is_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    run_t r;
    tied_init(&r);
    r.fx.first_rank = 3;
    run_prepare(&r, 1);
    uint16_t embed[N] = { 0, 1, 2, 3, 4, 5, 0x3f80, 7 };
    uint16_t own[6] = { 2, 3, 4, 5, 0x4000, 9 };
    const void *sources[] = { embed, own };
    uint64_t digest = 77;
    r.target.digests_out = &digest;
    heft_exec_t *with_digests = NULL;
    EXPECT_STATUS(heft_exec_create(r.fx.plan, &r.target, 1, NULL, &with_digests, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(with_digests, sources, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(err.message,
                        "parameter \"lm_head\" rank 3 [3, 0] must be equal: 0x3f80 (source "
                        "\"embed\" element 6), 0x4000 (source \"head\" element 4)");
    assert_int_equal(digest, 77);
    heft_exec_destroy(with_digests);
    run_fini(&r);
}

static void a_source_that_only_a_check_reads_must_be_given(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    run_t r = { .exec = NULL };
    fx_init(&r.fx);
    heft_view_t p = fx_param(&r.fx, "p", "4");
    fx_copy(&r.fx, p, fx_source(&r.fx, "lost", "4"), "");
    fx_copy(&r.fx, p, fx_source(&r.fx, "won", "4"), "");
    fx_except(&r.fx, HEFT_EXCEPTION_EQUAL, "p", "two copies");
    run_prepare(&r, 1);
    uint16_t values[4] = { 1, 2, 3, 4 };
    const void *sources[] = { values, NULL, values };
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source \"won\" is NULL");
    EXPECT_STATUS(heft_exec_run(r.exec, sources + 1, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source \"lost\" is NULL");
    run_fini(&r);
}

static void a_computed_value_and_a_constant_are_compared_too(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    run_t r = { .exec = NULL };
    fx_init(&r.fx);
    heft_view_t p = fx_param(&r.fx, "p", "4");
    heft_view_t x = fx_buffer(&r.fx, HEFT_BUFFER_SOURCE, "x", HEFT_DTYPE_F32, "4");
    fx_copy(&r.fx, p, x, "a cast");
    fx_copy(&r.fx, fx_narrow(p, 0, 0, 3), fx_source(&r.fx, "y", "3"), "");
    fx_fill(&r.fx, fx_narrow(p, 0, 3, 4), 0, "");
    fx_except(&r.fx, HEFT_EXCEPTION_EQUAL, "p", "two copies");
    run_prepare(&r, 1);
    float wide[4] = { 1.0F, 2.0F, -0.5F, 0.0F };
    uint16_t narrow[3] = { 0x3f80, 0x4000, 0xbf00 };
    const void *sources[] = { wide, narrow };
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_OK);
    wide[2] = 0.5F;
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("[2] must be equal: 0x3f00 (source \"x\" element 2), 0xbf00 (source \"y\" "
                   "element 2)");
    wide[2] = -0.5F;
    wide[3] = 1.0F;
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("[3] must be equal: 0x3f80 (source \"x\" element 3), 0x0 (a constant)");
    run_fini(&r);
}

/* Blocks of every kind: whole rows, cut rows, transposed, reversed, cut in an outer dimension, and
 * computed; one element is changed at a time and must be found, alone and as the first of many. */
typedef struct layout {
    const char *shape;
    int swap_a;
    int swap_b;
    bool reversed;
    bool is_cast;
} layout_t;

static heft_view_t arrange(heft_view_t view, const layout_t *l)
{
    view = fx_transpose(view, l->swap_a, l->swap_b);
    if (l->reversed) {
        view.offset += (view.extent[0] - 1) * view.stride[0];
        view.stride[0] = -view.stride[0];
    }
    return view;
}

static void check_layout(const layout_t *l, uint32_t n_threads)
{
    heft_error_t err = HEFT_ERROR_INIT;
    run_t r = { .exec = NULL };
    fx_init(&r.fx);
    heft_view_t p = fx_param(&r.fx, "p", l->shape);
    heft_dtype_t dtype = l->is_cast ? HEFT_DTYPE_F32 : HEFT_DTYPE_BF16;
    heft_shape_t shape = fx_shape(l->shape);
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) {
        n *= shape.extent[k];
    }
    int64_t extent = shape.extent[l->swap_a];
    shape.extent[l->swap_a] = shape.extent[l->swap_b];
    shape.extent[l->swap_b] = extent;
    char text[64];
    (void)snprintf(text, sizeof text, "%lld", (long long)n);
    heft_view_t lost = fx_buffer(&r.fx, HEFT_BUFFER_SOURCE, "lost", dtype, text);
    heft_view_t won = fx_source(&r.fx, "won", text);
    heft_view_t from = heft_view_contiguous(lost.buffer, &shape);
    heft_view_t from_won = heft_view_contiguous(won.buffer, &shape);
    fx_copy(&r.fx, p, arrange(from, l), "");
    fx_copy(&r.fx, p, arrange(from_won, l), "");
    fx_except(&r.fx, HEFT_EXCEPTION_EQUAL, "p", "two copies");
    run_prepare(&r, n_threads);
    uint16_t *b = malloc((size_t)n * sizeof *b);
    uint32_t *wide = malloc((size_t)n * sizeof *wide);
    uint16_t *a = malloc((size_t)n * sizeof *a);
    assert_true(a != NULL && b != NULL && wide != NULL);
    for (int64_t i = 0; i < n; i++) {
        a[i] = (uint16_t)(i * 7 & 0x3fff);
        b[i] = a[i];
        wide[i] = (uint32_t)a[i] << 16;
    }
    const void *sources[] = { l->is_cast ? (const void *)wide : a, b };
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_OK);
    const int64_t places[] = { 0, 1, n / 3, n / 2 + 5, n - 2, n - 1 };
    const heft_view_t view = arrange(from, l);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        /* element places[i] of p, row-major, and where it comes from */
        int64_t rest = places[i];
        int64_t index[HEFT_MAX_DIMS];
        int64_t at = view.offset;
        for (int k = view.rank - 1; k >= 0; k--) {
            index[k] = rest % view.extent[k];
            rest /= view.extent[k];
            at += index[k] * view.stride[k];
        }
        b[at] ^= 0x4000;
        EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_ERR_MISMATCH);
        (void)snprintf(text, sizeof text, "(source \"lost\" element %lld), 0x%x", (long long)at,
                       b[at]);
        EXPECT_MESSAGE(text);
        b[at] ^= 0x4000;
    }
    memset(b, 0xff, (size_t)n * sizeof *b);
    EXPECT_STATUS(heft_exec_run(r.exec, sources, &err), HEFT_ERR_MISMATCH);
    (void)snprintf(text, sizeof text, "source \"lost\" element %lld)", (long long)view.offset);
    EXPECT_MESSAGE(text);
    free(a);
    free(b);
    free(wide);
    run_fini(&r);
}

static void every_element_of_every_layout_is_compared(void **state)
{
    (void)state;
    static const layout_t layouts[] = {
        { "300000", 0, 0, false, false }, /* one run of several blocks */
        { "300000", 0, 0, true, false },  /* backwards */
        { "300000", 0, 0, false, true },  /* a cast in several blocks */
        { "700,500", 0, 1, false, false },   { "700,500", 0, 1, true, true },
        { "40,30,200", 0, 1, false, false }, { "40,30,200", 1, 2, true, false },
        { "3,2,70000", 0, 1, false, true },  { "3,5,2", 0, 2, false, false },
        { "5,2,90000", 0, 1, true, false },
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        check_layout(&layouts[i], 1 + (uint32_t)i % 3);
    }
}

static void create_survives_every_failed_allocation(void **state)
{
    (void)state;
    run_t r;
    tied_init(&r);
    heft_view_t p = fx_param(&r.fx, "p", "6");
    fx_copy(&r.fx, p, fx_buffer(&r.fx, HEFT_BUFFER_SOURCE, "x", HEFT_DTYPE_F32, "6"), "");
    fx_copy(&r.fx, p, fx_source(&r.fx, "y", "6"), "");
    fx_except(&r.fx, HEFT_EXCEPTION_EQUAL, "p", "two copies");
    run_prepare(&r, 1);
    int64_t live = heft__alloc_live();
    heft_status_t status = HEFT_ERR_NOMEM;
    for (long k = 0; status == HEFT_ERR_NOMEM; k++) {
        heft_exec_t *exec = NULL;
        heft__alloc_fail_at(k);
        status = heft_exec_create(r.fx.plan, &r.target, 1, NULL, &exec, NULL);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || exec == NULL);
        heft_exec_destroy(exec);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_int_equal(status, HEFT_OK);
    run_fini(&r);
}

/* ---- files ---- */

typedef struct files {
    run_t r;
    char *root;
    char source[300];
    char out[300];
} files_t;

/* bf16 tensors of rank 2 with these values, in name order. */
static void write_checkpoint(const char *dir, int n, const char *const *names,
                             const int64_t (*shapes)[2], const uint16_t *const *data)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    for (int i = 0; i < n; i++) {
        heft_shape_t shape = { .rank = 2, .extent = { shapes[i][0], shapes[i][1] } };
        EXPECT_STATUS(heft_manifest_add(manifest, names[i], HEFT_DTYPE_BF16, &shape, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, manifest, 0, &writer, &err), HEFT_OK);
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        void *to = NULL;
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, i, &to, &err), HEFT_OK);
        memcpy(to, data[i], (size_t)(shapes[i][0] * shapes[i][1]) * 2);
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, i, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    heft_manifest_destroy(manifest);
}

static heft_checkpoint_t *open_checkpoint(const char *dir)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *checkpoint = NULL;
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &checkpoint, &err), HEFT_OK);
    return checkpoint;
}

static const char *const source_names[] = { "embed", "head" };
static const int64_t source_shapes[][2] = { { 4, 2 }, { 3, 2 } };

static void files_init(files_t *f)
{
    tied_init(&f->r);
    (void)fx_plan(&f->r.fx, HEFT_OK);
    f->root = heft_test_mkdir();
    (void)snprintf(f->source, sizeof f->source, "%s/source", f->root);
    (void)snprintf(f->out, sizeof f->out, "%s/out", f->root);
}

static heft_checkpoint_t *write_source(files_t *f, const uint16_t *embed, const uint16_t *own)
{
    const uint16_t *data[] = { embed, own };
    write_checkpoint(f->source, 2, source_names, source_shapes, data);
    return open_checkpoint(f->source);
}

static void files_fini(files_t *f)
{
    heft_test_rmdir(f->root);
    run_fini(&f->r);
}

static int count_entries(const char *dir)
{
    DIR *handle = opendir(dir);
    assert_non_null(handle);
    int n = 0;
    for (const struct dirent *e = readdir(handle); e != NULL; e = readdir(handle)) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    (void)closedir(handle);
    return n;
}

static void converting_there_and_back_gives_both_tensors(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    files_t f;
    files_init(&f);
    const uint16_t embed[N] = { 10, 11, 12, 13, 14, 15, 16, 17 };
    heft_checkpoint_t *source = write_source(&f, embed, embed + 2);
    EXPECT_STATUS(heft_convert(f.r.fx.plan, source, f.out, NULL, &err), HEFT_OK);
    heft_checkpoint_t *out = open_checkpoint(f.out);
    assert_memory_equal(heft_checkpoint_get_data(out, 0), embed, sizeof embed);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(f.r.fx.plan, 0, source, out, &m, &err), HEFT_OK);
    assert_int_equal(m.n_elems, N);
    char back_dir[320];
    (void)snprintf(back_dir, sizeof back_dir, "%s/back", f.root);
    const heft_checkpoint_t *ranks[] = { out };
    EXPECT_STATUS(heft_convert_reverse(f.r.fx.plan, ranks, 1, back_dir, NULL, &err), HEFT_OK);
    heft_checkpoint_t *back = open_checkpoint(back_dir);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(back)), 2);
    assert_memory_equal(heft_checkpoint_get_data(back, 0), embed, sizeof embed);
    assert_memory_equal(heft_checkpoint_get_data(back, 1), embed + 2, 12);
    heft_checkpoint_close(back);
    heft_checkpoint_close(out);
    heft_checkpoint_close(source);
    files_fini(&f);
}

static void a_conversion_that_disagrees_leaves_nothing_behind(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    files_t f;
    files_init(&f);
    const uint16_t embed[N] = { 10, 11, 12, 13, 14, 15, 16, 17 };
    const uint16_t own[6] = { 12, 13, 14, 15, 16, 18 };
    heft_checkpoint_t *source = write_source(&f, embed, own);
    EXPECT_STATUS(heft_convert(f.r.fx.plan, source, f.out, NULL, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("\"lm_head\" rank 0 [3, 1] must be equal: 0x11 (source \"embed\" element 7), "
                   "0x12 (source \"head\" element 5)");
    assert_int_equal(count_entries(f.root), 1); /* the source */
    heft_checkpoint_close(source);
    files_fini(&f);
}

static void verifying_finds_what_a_check_does_not_allow(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    files_t f;
    files_init(&f);
    const uint16_t embed[N] = { 10, 11, 12, 13, 14, 15, 16, 17 };
    const uint16_t own[6] = { 12, 13, 24, 25, 16, 17 };
    const uint16_t written[N] = { 10, 11, 12, 13, 24, 25, 16, 17 };
    heft_checkpoint_t *source = write_source(&f, embed, own);
    const char *const names[] = { "lm_head" };
    const uint16_t *data[] = { written };
    write_checkpoint(f.out, 1, names, source_shapes, data);
    heft_checkpoint_t *out = open_checkpoint(f.out);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(f.r.fx.plan, 0, source, out, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, "lm_head");
    assert_string_equal(m.source, "embed");
    assert_int_equal(m.source_index, 4);
    assert_int_equal(m.index[0], 2);
    assert_int_equal(m.index[1], 0);
    assert_int_equal(m.expected_bits, 14);
    assert_int_equal(m.actual_bits, 24);
    assert_int_equal(m.n_differ, 2);
    assert_int_equal(m.n_params, 1);
    heft_checkpoint_close(out);
    heft_checkpoint_close(source);
    files_fini(&f);
}

/* Backwards, the embedding is also held by a parameter of its own. */
static void going_back_compares_what_two_parameters_hold(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    files_t f;
    files_init(&f);
    fx_copy(&f.r.fx, fx_param(&f.r.fx, "wte", "4,2"),
            heft_view_contiguous(0, &(heft_shape_t){ .rank = 2, .extent = { 4, 2 } }), "");
    (void)fx_plan(&f.r.fx, HEFT_OK);
    const char *const names[] = { "lm_head", "wte" };
    const int64_t shapes[][2] = { { 4, 2 }, { 4, 2 } };
    const uint16_t head[N] = { 10, 11, 12, 13, 14, 15, 16, 17 };
    const uint16_t wte[N] = { 10, 11, 12, 13, 14, 15, 16, 99 };
    const uint16_t *data[] = { head, wte };
    write_checkpoint(f.out, 2, names, shapes, data);
    heft_checkpoint_t *out = open_checkpoint(f.out);
    const heft_checkpoint_t *ranks[] = { out };
    char back_dir[320];
    (void)snprintf(back_dir, sizeof back_dir, "%s/back", f.root);
    EXPECT_STATUS(heft_convert_reverse(f.r.fx.plan, ranks, 1, back_dir, NULL, &err),
                  HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("source \"embed\" element 7 is 0x63");
    assert_int_equal(count_entries(f.root), 1);
    heft_checkpoint_close(out);
    files_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_agree_pass_in_every_run),
        cmocka_unit_test(the_first_disagreement_is_named),
        cmocka_unit_test(a_source_that_only_a_check_reads_must_be_given),
        cmocka_unit_test(a_computed_value_and_a_constant_are_compared_too),
        cmocka_unit_test(every_element_of_every_layout_is_compared),
        cmocka_unit_test(create_survives_every_failed_allocation),
        cmocka_unit_test(converting_there_and_back_gives_both_tensors),
        cmocka_unit_test(a_conversion_that_disagrees_leaves_nothing_behind),
        cmocka_unit_test(verifying_finds_what_a_check_does_not_allow),
        cmocka_unit_test(going_back_compares_what_two_parameters_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
