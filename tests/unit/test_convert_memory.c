/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions in bounded memory: what stays resident, when sources are released, one by one. */
#include "ref_reshard.h"

#include "heft/exec.h"

#include <sys/mman.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)

/* Resident bytes of mapped files ("RssFile:") or of anything else, from the system's own count. */
static int64_t resident(const char *key)
{
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[256];
    long long kib = -1;
    size_t n = strlen(key);
    while (kib < 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, n) == 0) {
            kib = strtoll(line + n, NULL, 10);
        }
    }
    (void)fclose(file);
    assert_true(kib >= 0);
    return kib * 1024;
}

static int watch(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    int64_t *peak = arg;
    *peak = heft__max_i64(*peak, resident("RssFile:"));
    return 0;
}

/* ---- a model of two byte patterns, large enough to show ---- */

enum { ROWS = 512, LAYERS = 24, COLS = 4096, SIDE = 6145 }; /* odd: slices do not come out even */

static uint16_t pattern(int64_t i)
{
    return (uint16_t)((uint64_t)i * 40503u >> 7);
}

typedef struct large {
    char *root;
    char source_path[300];
    char out[300];
    heft_tape_t *tape;
    heft_plan_t *plan;
    heft_checkpoint_t *source;
} large_t;

static void write_source(const large_t *l, heft_manifest_t *m)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(l->source_path, m, 0, &w, &err), HEFT_OK);
    for (uint32_t t = 0; t < heft_manifest_get_n_tensors(m); t++) {
        heft_tensor_info_t info;
        void *data = NULL;
        EXPECT_STATUS(heft_manifest_query(m, t, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(w, t, &data, &err), HEFT_OK);
        uint16_t *v = data;
        for (int64_t i = 0; i < info.n_elems; i++) {
            v[i] = pattern(i);
        }
        EXPECT_STATUS(heft_checkpoint_writer_done(w, t, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(w);
}

/* 96 MiB scanned over layers (axis 1), and 72 MiB that are transposed: one group. */
static void open_large(large_t *l)
{
    heft_error_t err = HEFT_ERROR_INIT;
    l->root = heft_test_mkdir();
    (void)snprintf(l->source_path, sizeof l->source_path, "%s/source", l->root);
    (void)snprintf(l->out, sizeof l->out, "%s/out", l->root);
    heft_manifest_t *m = NULL;
    const heft_shape_t scanned = { .rank = 3, .extent = { ROWS, LAYERS, COLS } };
    const heft_shape_t square = { .rank = 2, .extent = { SIDE, SIDE } };
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "scanned", HEFT_DTYPE_BF16, &scanned, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "square", HEFT_DTYPE_BF16, &square, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    write_source(l, m);
    EXPECT_STATUS(heft_tape_create(&l->tape, &err), HEFT_OK);
    uint32_t s = 0;
    uint32_t q = 0;
    EXPECT_STATUS(heft_tape_add_buffer(l->tape, HEFT_BUFFER_SOURCE, "scanned", HEFT_DTYPE_BF16,
                                       &scanned, &s, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_tape_add_buffer(l->tape, HEFT_BUFFER_SOURCE, "square", HEFT_DTYPE_BF16,
                                       &square, &q, &err),
                  HEFT_OK);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "l.%02d", i);
        uint32_t p =
            ref_tape_param(l->tape, name, HEFT_DTYPE_BF16, 3, (int64_t[]){ ROWS, 1, COLS });
        ref_copy(l->tape, ref_view(l->tape, p), ref_narrow(ref_view(l->tape, s), 1, i, 1));
    }
    uint32_t p = ref_tape_param(l->tape, "t", HEFT_DTYPE_BF16, 2, (int64_t[]){ SIDE, SIDE });
    ref_copy(l->tape, ref_view(l->tape, p), ref_swap(ref_view(l->tape, q), 0, 1));
    const heft_tape_t *tapes[1] = { l->tape };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, NULL, &l->plan, NULL, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_open(l->source_path, "source", &l->source, &err), HEFT_OK);
    heft_manifest_destroy(m);
}

static void close_large(large_t *l)
{
    heft_checkpoint_close(l->source);
    heft_plan_destroy(l->plan);
    heft_tape_destroy(l->tape);
    heft_test_rmdir(l->root);
}

static void check_large(const large_t *l)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *got = NULL;
    EXPECT_STATUS(heft_checkpoint_open(l->out, "destination", &got, &err), HEFT_OK);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint16_t *v = heft_checkpoint_get_data(got, i);
        for (int64_t k = 0; k < (int64_t)ROWS * COLS; k++) {
            int64_t from = k / COLS * (LAYERS * COLS) + i * COLS + k % COLS;
            if (v[k] != pattern(from)) {
                fail_msg("layer %u element %lld", i, (long long)k);
            }
        }
    }
    const uint16_t *v = heft_checkpoint_get_data(got, LAYERS);
    for (int64_t k = 0; k < (int64_t)SIDE * SIDE; k++) {
        if (v[k] != pattern(k % SIDE * SIDE + k / SIDE)) {
            fail_msg("transposed element %lld", (long long)k);
        }
    }
    heft_checkpoint_close(got);
}

/* 168 MiB pass through 64: a scanned tensor larger than the bound, and one group larger than it. */
static void resident_pages_stay_within_the_bound(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    large_t l = { .root = NULL };
    open_large(&l);
    int64_t start = resident("RssFile:");
    int64_t peak = 0;
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.memory_bytes = 64 * MIB;
    opts.progress = watch;
    opts.progress_arg = &peak;
    opts.n_threads = 2;
    EXPECT_STATUS(heft_convert(l.plan, l.source, l.out, &opts, &err), HEFT_OK);
    print_message("peak of mapped files: %lld MiB above the start\n",
                  (long long)((peak - start) / MIB));
    assert_true(peak - start > 4 * MIB); /* it was looked at while pages were there */
    assert_true(peak - start <= 32 * MIB);
    assert_true(resident("RssFile:") - start <= 2 * MIB);
    check_large(&l);
    close_large(&l);
}

/* Three dimensions in another order, cast, from a product of two sources too: with a bound that no
 * unit keeps, parameters are written slice by slice, also along an inner dimension. */
static void slices_write_what_one_run_writes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c = { .n_sources = 0 };
    int a = ref_case_source(&c, "a", HEFT_DTYPE_F32, 3, (int64_t[]){ 300, 4, 200 });
    int b = ref_case_source(&c, "b", HEFT_DTYPE_F32, 3, (int64_t[]){ 4, 300, 200 });
    for (int r = 0; r < 2; r++) {
        heft_tape_t *t = ref_case_tape(&c);
        heft_view_t x = ref_swap(ref_view(t, (uint32_t)a), 0, 1); /* 4, 300, 200 */
        heft_view_t y = ref_view(t, (uint32_t)b);
        uint32_t p = ref_tape_param(t, "p", HEFT_DTYPE_BF16, 3, (int64_t[]){ 4, 200, 300 });
        ref_copy(t, ref_view(t, p), ref_swap(x, 1, 2));
        const heft_view_t srcs[2] = { ref_swap(x, 1, 2), ref_swap(y, 1, 2) };
        p = ref_tape_param(t, "q", HEFT_DTYPE_F32, 3, (int64_t[]){ 4, 200, 300 });
        const heft_op_t ops[3] = { { .code = HEFT_OP_LOAD, .arg = 0 },
                                   { .code = HEFT_OP_LOAD, .arg = 1 },
                                   { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } };
        heft_view_t dst = ref_view(t, p);
        EXPECT_STATUS(heft_tape_map(t, &dst, srcs, 2, ops, 3, NULL, &err), HEFT_OK);
    }
    ref_case_finish(&c);
    char *root = heft_test_mkdir();
    char path[340];
    char out[300];
    (void)snprintf(path, sizeof path, "%s/source", root);
    (void)snprintf(out, sizeof out, "%s/out", root);
    ref_write_sources(&c, path);
    heft_checkpoint_t *source = NULL;
    EXPECT_STATUS(heft_checkpoint_open(path, "source", &source, &err), HEFT_OK);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.memory_bytes = HEFT_CONVERT_MIN_MEMORY_BYTES;
    EXPECT_STATUS(heft_convert(c.plan, source, out, &opts, &err), HEFT_OK);
    for (int r = 0; r < 2; r++) {
        heft_checkpoint_t *got = NULL;
        (void)snprintf(path, sizeof path, "%s/rank-%d", out, r);
        EXPECT_STATUS(heft_checkpoint_open(path, "destination", &got, &err), HEFT_OK);
        for (uint32_t p = 0; p < 2; p++) {
            assert_memory_equal(heft_checkpoint_get_data(got, p), c.expected[r][p],
                                (p == 0 ? 2u : 4u) * 4 * 200 * 300);
        }
        heft_checkpoint_close(got);
    }
    heft_checkpoint_close(source);
    heft_test_rmdir(root);
    ref_case_fini(&c);
}

/* ---- draining tensors in memory ---- */

typedef struct drain {
    const heft_manifest_t *manifest;
    void *data[3]; /* NULL once released */
    uint32_t order[4];
    uint32_t n;
} drain_t;

static void unmap(void *arg, uint32_t i)
{
    drain_t *d = arg;
    heft_tensor_info_t info;
    assert_true(i < 3 && d->n < 3);
    assert_int_equal(heft_manifest_query(d->manifest, i, &info, NULL), HEFT_OK);
    assert_non_null(d->data[i]);
    assert_int_equal(munmap(d->data[i], (size_t)info.n_bytes),
                     0); /* reading it again would crash */
    d->data[i] = NULL;
    d->order[d->n++] = i;
}

static void *map_pattern(int64_t n_bytes)
{
    void *data =
        mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(data != MAP_FAILED);
    uint16_t *v = data;
    for (int64_t i = 0; i < n_bytes / 2; i++) {
        v[i] = pattern(i);
    }
    return data;
}

/* a is read by the first two groups, b by the last, and c by none: it goes first. */
static void tensors_are_released_after_their_last_reader(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 2, .extent = { 2, 8 * MIB } };
    heft_manifest_t *m = NULL;
    heft_tape_t *t = NULL;
    uint32_t s[3];
    static const char *const names[3] = { "a", "b", "c" };
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_create(&t, &err), HEFT_OK);
    drain_t d = { .n = 0 };
    for (int i = 0; i < 3; i++) {
        EXPECT_STATUS(heft_manifest_add(m, names[i], HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
        EXPECT_STATUS(heft_tape_add_buffer(t, HEFT_BUFFER_SOURCE, names[i], HEFT_DTYPE_BF16, &shape,
                                           &s[i], &err),
                      HEFT_OK);
        d.data[i] = map_pattern(32 * MIB);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    d.manifest = m;
    for (int i = 0; i < 3; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        uint32_t p =
            ref_tape_param(t, name, HEFT_DTYPE_BF16, 2, (int64_t[]){ i < 2 ? 1 : 2, 8 * MIB });
        heft_view_t whole = ref_view(t, s[i < 2 ? 0 : 1]);
        ref_copy(t, ref_view(t, p), i < 2 ? ref_narrow(whole, 0, i, 1) : whole);
    }
    const heft_exception_t unused = {
        .kind = HEFT_EXCEPTION_UNUSED, .pattern = "c", .reason = "not a weight", .where = ""
    };
    heft_plan_opts_t plan_opts = HEFT_PLAN_OPTS_INIT;
    plan_opts.exceptions = &unused;
    plan_opts.n_exceptions = 1;
    heft_plan_t *plan = NULL;
    const heft_tape_t *tapes[1] = { t };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &plan_opts, &plan, NULL, &err), HEFT_OK);
    char *root = heft_test_mkdir();
    char out[300];
    (void)snprintf(out, sizeof out, "%s/out", root);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.memory_bytes = HEFT_CONVERT_MIN_MEMORY_BYTES;
    opts.release = unmap;
    opts.release_arg = &d;
    int64_t start = resident("RssAnon:");
    EXPECT_STATUS(heft_convert_tensors(plan, m, (const void *const *)d.data, out, &opts, &err),
                  HEFT_OK);
    assert_int_equal(d.n, 3);
    assert_int_equal(d.order[0], 2);
    assert_int_equal(d.order[1], 0);
    assert_int_equal(d.order[2], 1);
    assert_true(start - resident("RssAnon:") > 90 * MIB); /* three tensors of 32 MiB */
    heft_checkpoint_t *got = NULL;
    EXPECT_STATUS(heft_checkpoint_open(out, "destination", &got, &err), HEFT_OK);
    const uint16_t *v = heft_checkpoint_get_data(got, 1);
    assert_int_equal(v[5], pattern(8 * MIB + 5));
    heft_checkpoint_close(got);
    EXPECT_STATUS(heft_convert_tensors(plan, m, (const void *const *)d.data, out, NULL, &err),
                  HEFT_ERR_EXISTS);
    (void)snprintf(out, sizeof out, "%s/again", root);
    EXPECT_STATUS(heft_convert_tensors(plan, m, (const void *const *)d.data, out, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source \"a\" is NULL");
    heft_plan_destroy(plan);
    heft_tape_destroy(t);
    heft_manifest_destroy(m);
    heft_test_rmdir(root);
}

/* Each round brings a tensor of its own, which is gone when the round is over. */
static void five_rounds_leave_nothing_resident(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t n_bytes = 32 * MIB;
    const heft_shape_t shape = { .rank = 1, .extent = { n_bytes / 2 } };
    heft_manifest_t *m = NULL;
    heft_tape_t *t = NULL;
    heft_plan_t *plan = NULL;
    uint32_t s = 0;
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "a", HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_create(&t, &err), HEFT_OK);
    EXPECT_STATUS(
        heft_tape_add_buffer(t, HEFT_BUFFER_SOURCE, "a", HEFT_DTYPE_BF16, &shape, &s, &err),
        HEFT_OK);
    uint32_t p = ref_tape_param(t, "p", HEFT_DTYPE_F32, 1, &shape.extent[0]);
    ref_copy(t, ref_view(t, p), ref_view(t, s)); /* a cast */
    const heft_tape_t *tapes[1] = { t };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
    char *root = heft_test_mkdir();
    int64_t start = resident("RssAnon:") + resident("RssFile:");
    for (int round = 0; round < 5; round++) {
        char out[300];
        (void)snprintf(out, sizeof out, "%s/%d", root, round);
        drain_t d = { .manifest = m, .data = { map_pattern(n_bytes) } };
        heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
        opts.release = unmap;
        opts.release_arg = &d;
        EXPECT_STATUS(heft_convert_tensors(plan, m, (const void *const *)d.data, out, &opts, &err),
                      HEFT_OK);
        assert_int_equal(d.n, 1);
        int64_t now = resident("RssAnon:") + resident("RssFile:");
        assert_true(now - start < n_bytes / 10);
    }
    heft_plan_destroy(plan);
    heft_tape_destroy(t);
    heft_manifest_destroy(m);
    heft_test_rmdir(root);
}

/* ---- one by one ---- */

typedef struct seen {
    uint32_t n;
    char names[4][16];
} seen_t;

static void note_group(void *arg, uint32_t group, uint32_t n_groups, const char *param)
{
    seen_t *seen = arg;
    assert_int_equal(group, seen->n);
    assert_int_equal(n_groups, 3);
    (void)snprintf(seen->names[seen->n++], sizeof seen->names[0], "%s", param);
}

/* p1 is written twice; the values differ, which only running shows. */
static void one_by_one_a_failure_names_its_group(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_exception_t equal = {
        .kind = HEFT_EXCEPTION_EQUAL, .pattern = "p1", .reason = "tied", .where = ""
    };
    ref_case_t c = { .exceptions = &equal, .n_exceptions = 1 };
    int a = ref_case_source(&c, "a", HEFT_DTYPE_F32, 1, (int64_t[]){ 24 });
    int b = ref_case_source(&c, "b", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&c);
    for (int i = 0; i < 3; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        uint32_t p = ref_tape_param(t, name, HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
        if (i == 1) {
            ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)b));
        }
        ref_copy(t, ref_view(t, p), ref_narrow(ref_view(t, (uint32_t)a), 0, 8 * i, 8));
    }
    ref_case_finish(&c);
    char *root = heft_test_mkdir();
    char path[300];
    char out[300];
    (void)snprintf(path, sizeof path, "%s/source", root);
    (void)snprintf(out, sizeof out, "%s/out", root);
    ref_write_sources(&c, path);
    heft_checkpoint_t *source = NULL;
    EXPECT_STATUS(heft_checkpoint_open(path, "source", &source, &err), HEFT_OK);
    seen_t seen = { .n = 0 };
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.one_by_one = 1;
    opts.group_begin = note_group;
    opts.group_begin_arg = &seen;
    EXPECT_STATUS(heft_convert(c.plan, source, out, &opts, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("group 1 of 3, \"p1\": ");
    assert_int_equal(seen.n, 2); /* the third never began */
    assert_string_equal(seen.names[1], "p1");
    assert_int_not_equal(access(out, F_OK), 0);
    heft_checkpoint_close(source);
    heft_test_rmdir(root);
    ref_case_fini(&c);
}

static void bad_bounds_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c = { .n_sources = 0 };
    int a = ref_case_source(&c, "a", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&c);
    uint32_t p = ref_tape_param(t, "p", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)a));
    ref_case_finish(&c);
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("source", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(m, "a", HEFT_DTYPE_F32, &c.sources[0].shape, &err), HEFT_OK);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, c.source_data, "x", &opts, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    opts.memory_bytes = HEFT_CONVERT_MIN_MEMORY_BYTES - 1;
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, c.source_data, "x", &opts, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("999999");
    opts.memory_bytes = 0;
    opts.one_by_one = 2;
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, c.source_data, "x", &opts, &err),
                  HEFT_ERR_ARGUMENT);
    opts.one_by_one = 0;
    opts.reserved_3[6] = 1;
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, c.source_data, "x", &opts, &err),
                  HEFT_ERR_ARGUMENT);
    opts.reserved_3[6] = 0;
    opts.reverse = 1;
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, c.source_data, "x", &opts, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_convert_tensors(c.plan, m, NULL, "x", NULL, &err), HEFT_ERR_ARGUMENT);
    heft_manifest_destroy(m);
    ref_case_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident_pages_stay_within_the_bound),
        cmocka_unit_test(slices_write_what_one_run_writes),
        cmocka_unit_test(tensors_are_released_after_their_last_reader),
        cmocka_unit_test(five_rounds_leave_nothing_resident),
        cmocka_unit_test(one_by_one_a_failure_names_its_group),
        cmocka_unit_test(bad_bounds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
