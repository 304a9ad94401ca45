/* SPDX-License-Identifier: Apache-2.0 */
/* Converting checkpoints: folders, shards, refusals, and that a failure leaves nothing behind. */
#include "ref_reshard.h"

#include "heft/exec.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct fixture {
    ref_case_t c;
    char *root;
    char source_path[300];
    char out[300];
    heft_checkpoint_t *source;
} fixture_t;

/* Two layers stacked, unstacked and fused with a norm; n_ranks ranks hold column slices. */
static void stacked_case(ref_case_t *c, int n_ranks)
{
    int norm = ref_case_source(c, "norm", HEFT_DTYPE_F32, 1, (int64_t[]){ 6 });
    int w = ref_case_source(c, "w", HEFT_DTYPE_BF16, 3, (int64_t[]){ 4, 2, 6 });
    for (int r = 0; r < n_ranks; r++) {
        heft_tape_t *t = ref_case_tape(c);
        for (int l = 0; l < 2; l++) {
            char name[16];
            (void)snprintf(name, sizeof name, "layer.%d.w", l);
            uint32_t p =
                ref_tape_param(t, name, HEFT_DTYPE_BF16, 3, (int64_t[]){ 4, 1, 6 / n_ranks });
            heft_view_t src = ref_narrow(ref_view(t, (uint32_t)w), 1, l, 1);
            ref_copy(t, ref_view(t, p), ref_narrow(src, 2, r * (6 / n_ranks), 6 / n_ranks));
        }
        uint32_t p = ref_tape_param(t, "norm", HEFT_DTYPE_BF16, 1, (int64_t[]){ 6 });
        ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)norm)); /* a cast */
        p = ref_tape_param(t, "zz.empty", HEFT_DTYPE_F32, 2, (int64_t[]){ 0, 3 });
        (void)p;
    }
    ref_case_finish(c);
}

static void open_fixture(fixture_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    f->root = heft_test_mkdir();
    (void)snprintf(f->source_path, sizeof f->source_path, "%s/source", f->root);
    (void)snprintf(f->out, sizeof f->out, "%s/out", f->root);
    ref_write_sources(&f->c, f->source_path);
    EXPECT_STATUS(heft_checkpoint_open(f->source_path, "source", &f->source, &err), HEFT_OK);
}

static void close_fixture(fixture_t *f)
{
    heft_checkpoint_close(f->source);
    heft_test_rmdir(f->root);
    ref_case_fini(&f->c);
}

static void check_rank(const fixture_t *f, int rank, const char *path)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *got = NULL;
    EXPECT_STATUS(heft_checkpoint_open(path, "destination", &got, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(got);
    assert_int_equal(heft_manifest_get_n_tensors(manifest), f->c.n_params[rank]);
    for (uint32_t p = 0; p < f->c.n_params[rank]; p++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(manifest, p, &info, &err), HEFT_OK);
        assert_memory_equal(heft_checkpoint_get_data(got, p), f->c.expected[rank][p],
                            (size_t)info.n_bytes);
    }
    heft_checkpoint_close(got);
}

static bool exists(const char *dir, const char *name)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void one_rank_is_the_folder_itself(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    stacked_case(&f.c, 1);
    open_fixture(&f);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, NULL, &err), HEFT_OK);
    assert_true(exists(f.out, "model.safetensors"));
    check_rank(&f, 0, f.out);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, NULL, &err), HEFT_ERR_EXISTS);
    check_rank(&f, 0, f.out);
    close_fixture(&f);
}

static void each_rank_has_its_folder(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    stacked_case(&f.c, 3);
    open_fixture(&f);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.max_shard_bytes = 16;
    opts.n_threads = 2;
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_OK);
    for (int r = 0; r < 3; r++) {
        char path[340];
        (void)snprintf(path, sizeof path, "%s/rank-%d", f.out, r);
        assert_true(exists(path, "model.safetensors.index.json"));
        check_rank(&f, r, path);
    }
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("rank-0");
    close_fixture(&f);
}

/* Parameters that an exception leaves alone are no zeros in a file: they are not there. */
static void untouched_parameters_are_left_out(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_exception_t exception = {
        .kind = HEFT_EXCEPTION_UNTOUCHED, .pattern = "cache", .reason = "not a weight", .where = ""
    };
    fixture_t f = { .c = { .exceptions = &exception, .n_exceptions = 1 } };
    int s = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&f.c);
    (void)ref_tape_param(t, "cache", HEFT_DTYPE_F32, 1, (int64_t[]){ 4 });
    uint32_t p = ref_tape_param(t, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)s));
    ref_case_finish(&f.c);
    open_fixture(&f);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, NULL, &err), HEFT_OK);
    heft_checkpoint_t *got = NULL;
    EXPECT_STATUS(heft_checkpoint_open(f.out, "destination", &got, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(got);
    assert_int_equal(heft_manifest_get_n_tensors(manifest), 1);
    uint32_t index;
    EXPECT_STATUS(heft_manifest_find(manifest, "w", &index, &err), HEFT_OK);
    heft_mismatch_t mismatch;
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, got, &mismatch, &err), HEFT_OK);
    assert_int_equal(mismatch.n_elems, 8);
    heft_checkpoint_close(got);
    close_fixture(&f);
}

/* The checkpoint that is converted need not be the one the plan was made from. */
static void sources_that_do_not_fit_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const struct {
        const char *name;
        heft_dtype_t dtype;
        int64_t n;
        heft_status_t want;
        const char *message;
    } cases[] = {
        { "norn", HEFT_DTYPE_F32, 6, HEFT_ERR_NAME, "\"norm\"" },
        { "norm", HEFT_DTYPE_BF16, 6, HEFT_ERR_SHAPE, "\"norm\": F32 [6] in the plan, BF16 [6]" },
        { "norm", HEFT_DTYPE_F32, 7, HEFT_ERR_SHAPE, "F32 [6] in the plan, F32 [7] in the file" },
        { "more", HEFT_DTYPE_F32, 6, HEFT_ERR_NAME, "\"more\" in the file is no source" },
    };
    fixture_t f = { .source = NULL };
    stacked_case(&f.c, 2);
    open_fixture(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ref_case_t other = { 0 };
        char path[340];
        (void)ref_case_source(&other, cases[i].name, cases[i].dtype, 1, &cases[i].n);
        if (strcmp(cases[i].name, "more") == 0) { /* all of the plan's sources, and one besides */
            (void)ref_case_source(&other, "norm", HEFT_DTYPE_F32, 1, &cases[i].n);
        }
        (void)ref_case_source(&other, "w", HEFT_DTYPE_BF16, 3, (int64_t[]){ 4, 2, 6 });
        (void)snprintf(path, sizeof path, "%s/other-%zu", f.root, i);
        ref_write_sources(&other, path);
        heft_checkpoint_t *source = NULL;
        EXPECT_STATUS(heft_checkpoint_open(path, "source", &source, &err), HEFT_OK);
        EXPECT_STATUS(heft_convert(f.c.plan, source, f.out, NULL, &err), cases[i].want);
        EXPECT_MESSAGE(cases[i].message);
        assert_false(exists(f.root, "out"));
        heft_checkpoint_close(source);
        ref_case_fini(&other);
    }
    close_fixture(&f);
}

/* What an operation writes that only the engine knows cannot be converted or verified. */
static void opaque_parameters_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&f.c);
    uint32_t plain = ref_tape_param(t, "plain", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    ref_copy(t, ref_view(t, plain), ref_view(t, (uint32_t)w));
    uint32_t packed = ref_tape_param(t, "shuffled", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_view_t dst = ref_view(t, packed);
    heft_view_t src = ref_view(t, (uint32_t)w);
    EXPECT_STATUS(heft_tape_opaque(t, "shuffle", &dst, 1, &src, 1, "by hand", &err), HEFT_OK);
    ref_case_finish(&f.c);
    open_fixture(&f);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, NULL, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("cannot convert parameter \"shuffled\"");
    assert_false(exists(f.root, "out"));
    const heft_checkpoint_t *ranks[1] = { f.source };
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.source, NULL, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("cannot verify parameter \"shuffled\"");
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, ranks, 1, f.out, NULL, &err),
                  HEFT_ERR_UNSUPPORTED);
    ref_params_t params;
    ref_params_init(&params, &f.c, 0);
    heft_exec_target_t target = { .params = params.data };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(f.c.plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, f.c.source_data, &err), HEFT_OK);
    ref_params_check(&params, &f.c, 0); /* the operation's parameter keeps its bytes */
    heft_exec_destroy(exec);
    ref_params_fini(&params);
    close_fixture(&f);
}

static int stop_at_once(void *arg, int64_t done, int64_t total)
{
    int64_t *last = arg;
    last[0] = done;
    last[1] = total;
    return 1;
}

static void a_canceled_conversion_leaves_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        fixture_t f = { .source = NULL };
        stacked_case(&f.c, n_ranks);
        open_fixture(&f);
        int64_t last[2] = { 0 };
        heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
        opts.progress = stop_at_once;
        opts.progress_arg = last;
        EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_ERR_CANCELED);
        assert_int_equal(last[0], last[1]); /* small: one report, at the end */
        assert_int_equal(last[1], n_ranks * (12 + 48 * 2 / n_ranks));
        assert_false(exists(f.root, "out"));
        close_fixture(&f);
    }
}

/* More than 64 MiB in one group, and groups before and after it: several turns. */
static void large_groups_get_a_turn_of_their_own(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F64, 1, (int64_t[]){ 64 });
    heft_tape_t *t = ref_case_tape(&f.c);
    for (int i = 0; i < 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", i);
        int64_t n = i == 1 ? 9 << 20 : 7;
        uint32_t p = ref_tape_param(t, name, HEFT_DTYPE_F64, 1, &n);
        ref_copy(t, ref_narrow(ref_view(t, p), 0, 0, 7),
                 ref_narrow(ref_view(t, (uint32_t)w), 0, 7 * i, 7));
        if (n > 7) {
            ref_fill(t, ref_narrow(ref_view(t, p), 0, 7, n - 7), 0x4000000000000001);
        }
    }
    ref_case_finish(&f.c);
    open_fixture(&f);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, NULL, &err), HEFT_OK);
    check_rank(&f, 0, f.out);
    close_fixture(&f);
}

static int watch_memory(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    int64_t *peak = arg;
    *peak = heft__max_i64(*peak, heft__alloc_live_bytes());
    return 0;
}

/* Tensors go from file to file: 12 MiB pass through without a tensor in memory of our own. */
static void no_tensor_is_held_in_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_BF16, 3, (int64_t[]){ 256, 24, 1024 });
    heft_tape_t *t = ref_case_tape(&f.c);
    for (int l = 0; l < 24; l++) {
        char name[16];
        (void)snprintf(name, sizeof name, "layer.%d", l);
        uint32_t p = ref_tape_param(t, name, HEFT_DTYPE_BF16, 3, (int64_t[]){ 256, 1, 1024 });
        ref_copy(t, ref_view(t, p), ref_narrow(ref_view(t, (uint32_t)w), 1, l, 1));
    }
    ref_case_finish(&f.c);
    open_fixture(&f);
    int64_t before = heft__alloc_live_bytes();
    int64_t peak = 0;
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.progress = watch_memory;
    opts.progress_arg = &peak;
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_OK);
    assert_true(peak > before);
    assert_true(peak - before < 1 << 20);
    check_rank(&f, 0, f.out);
    close_fixture(&f);
}

/* The second rank's file is too large for the limit, so it fails after the first one was made. */
static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 100000 });
    for (int r = 0; r < 2; r++) {
        heft_tape_t *t = ref_case_tape(&f.c);
        int64_t n = r == 0 ? 100 : 100000;
        uint32_t p = ref_tape_param(t, "w", HEFT_DTYPE_F32, 1, &n);
        ref_copy(t, ref_view(t, p), ref_narrow(ref_view(t, (uint32_t)w), 0, 0, n));
    }
    ref_case_finish(&f.c);
    open_fixture(&f);
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit tight = { .rlim_cur = 65536, .rlim_max = old.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    heft_status_t status = heft_convert(f.c.plan, f.source, f.out, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(status, HEFT_ERR_NOSPACE);
    assert_false(exists(f.root, "out"));
    close_fixture(&f);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .source = NULL };
    stacked_case(&f.c, 1);
    open_fixture(&f);
    EXPECT_STATUS(heft_convert(NULL, f.source, f.out, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_convert(f.c.plan, NULL, f.out, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, "", NULL, &err), HEFT_ERR_ARGUMENT);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.reserved[1] = 1;
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_ERR_ARGUMENT);
    opts = (heft_convert_opts_t)HEFT_CONVERT_OPTS_INIT;
    opts.reverse = 2;
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_ERR_ARGUMENT);
    opts.reverse = 0;
    opts.max_shard_bytes = -1;
    EXPECT_STATUS(heft_convert(f.c.plan, f.source, f.out, &opts, &err), HEFT_ERR_ARGUMENT);
    assert_false(exists(f.root, "out"));
    close_fixture(&f);
}

static void convert_survives_each_allocation_failing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        fixture_t f = { .source = NULL };
        stacked_case(&f.c, n_ranks);
        open_fixture(&f);
        int64_t live = heft__alloc_live();
        long k = 0;
        for (;; k++) {
            heft__alloc_fail_at(k);
            heft_status_t status = heft_convert(f.c.plan, f.source, f.out, NULL, &err);
            heft__alloc_fail_at(-1);
            assert_int_equal(heft__alloc_live(), live);
            if (status == HEFT_OK) {
                break;
            }
            assert_int_equal(status, HEFT_ERR_NOMEM);
            assert_false(exists(f.root, "out"));
        }
        assert_true(k > 20);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_the_folder_itself),
        cmocka_unit_test(each_rank_has_its_folder),
        cmocka_unit_test(untouched_parameters_are_left_out),
        cmocka_unit_test(sources_that_do_not_fit_are_named),
        cmocka_unit_test(opaque_parameters_are_named),
        cmocka_unit_test(a_canceled_conversion_leaves_nothing),
        cmocka_unit_test(large_groups_get_a_turn_of_their_own),
        cmocka_unit_test(no_tensor_is_held_in_memory),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(convert_survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
