/* SPDX-License-Identifier: Apache-2.0 */
/* Going back: repeats and padding are checked, what cannot be undone is refused by name. */
#include "ref_reshard.h"

#include "heft/exec.h"

#include <unistd.h>

/* Write a checkpoint of one rank from these bytes. */
static heft_checkpoint_t *write_rank(const ref_case_t *c, int rank, uint8_t *const *data,
                                     const char *dir)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    heft_checkpoint_t *out = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    for (uint32_t p = 0; p < c->n_params[rank]; p++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(c->plan, (uint32_t)rank, p, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_add(manifest, info.name, info.dtype, &info.shape, &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, manifest, 0, &writer, &err), HEFT_OK);
    for (uint32_t p = 0; p < c->n_params[rank]; p++) {
        heft_tensor_info_t info;
        void *to = NULL;
        EXPECT_STATUS(heft_manifest_query(manifest, p, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, p, &to, &err), HEFT_OK);
        memcpy(to, data[p], (size_t)info.n_bytes);
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, p, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    heft_manifest_destroy(manifest);
    EXPECT_STATUS(heft_checkpoint_open(dir, "destination", &out, &err), HEFT_OK);
    return out;
}

typedef struct fixture {
    ref_case_t c;
    char *root;
    char back[300];
    heft_checkpoint_t *ranks[REF_MAX_RANKS];
    int n_writes;
} fixture_t;

static void fixture_init(fixture_t *f)
{
    f->root = heft_test_mkdir();
    (void)snprintf(f->back, sizeof f->back, "%s/back", f->root);
}

/* (Re)write the ranks' checkpoints from the case's expected bytes, which a test may have changed.
 */
static void write_ranks(fixture_t *f)
{
    for (int r = 0; r < f->c.n_ranks; r++) {
        char path[340];
        (void)snprintf(path, sizeof path, "%s/w%d", f->root, f->n_writes++);
        heft_checkpoint_close(f->ranks[r]);
        f->ranks[r] = write_rank(&f->c, r, f->c.expected[r], path);
    }
}

static heft_status_t go_back(fixture_t *f, heft_error_t *err)
{
    return heft_convert_reverse(f->c.plan, (const heft_checkpoint_t *const *)f->ranks,
                                (uint32_t)f->c.n_ranks, f->back, NULL, err);
}

static void check_back(const fixture_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *back = NULL;
    EXPECT_STATUS(heft_checkpoint_open(f->back, "source", &back, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_side(heft_checkpoint_get_manifest(back)), "source");
    for (int s = 0; s < f->c.n_sources; s++) {
        assert_memory_equal(heft_checkpoint_get_data(back, (uint32_t)s), f->c.sources[s].data,
                            (size_t)f->c.sources[s].n_bytes);
    }
    heft_checkpoint_close(back);
}

static void fixture_fini(fixture_t *f)
{
    for (int r = 0; r < f->c.n_ranks; r++) {
        heft_checkpoint_close(f->ranks[r]);
    }
    heft_test_rmdir(f->root);
    ref_case_fini(&f->c);
}

/* Key heads [2, 3] repeated twice each (by element), padded to 4 columns, on both of two ranks. */
static void repeated_case(ref_case_t *c)
{
    int k = ref_case_source(c, "k", HEFT_DTYPE_BF16, 2, (int64_t[]){ 2, 3 });
    for (int r = 0; r < 2; r++) {
        heft_tape_t *t = ref_case_tape(c);
        uint32_t p = ref_tape_param(t, "kv", HEFT_DTYPE_BF16, 2, (int64_t[]){ 4, 4 });
        heft_view_t dst = { .buffer = p, .rank = 3, .extent = { 2, 2, 3 }, .stride = { 8, 4, 1 } };
        heft_view_t src = {
            .buffer = (uint32_t)k, .rank = 3, .extent = { 2, 2, 3 }, .stride = { 3, 0, 1 }
        };
        ref_copy(t, dst, src);
        ref_fill(t, ref_narrow(ref_view(t, p), 1, 3, 1), 0x3f80);
    }
    ref_case_finish(c);
}

static void repeats_and_padding_go_back(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_OK);
    check_back(&f);
    fixture_fini(&f);
}

static void repeats_that_disagree_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    uint16_t *kv = (uint16_t *)(void *)f.c.expected[0][0];
    kv[1 * 4 + 2] ^= 1; /* the repeat of head 0, within one piece */
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("rank 0 parameter \"kv\" [1, 2]: 0x");
    EXPECT_MESSAGE("source \"k\" element 2 is 0x");
    assert_int_equal(access(f.back, F_OK), -1);
    kv[1 * 4 + 2] ^= 1;
    kv = (uint16_t *)(void *)f.c.expected[1][0];
    kv[3 * 4 + 0] ^= 0x8000; /* the other rank's copy */
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("rank 1 parameter \"kv\" [3, 0]");
    assert_int_equal(access(f.back, F_OK), -1);
    kv[3 * 4 + 0] ^= 0x8000;
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_OK);
    check_back(&f);
    fixture_fini(&f);
}

static void padding_must_hold_the_constant(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    uint16_t *kv = (uint16_t *)(void *)f.c.expected[1][0];
    kv[2 * 4 + 3] = 0x1234;
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("rank 1 parameter \"kv\" [2, 3]: padding must be 0x3f80, found 0x1234");
    assert_int_equal(access(f.back, F_OK), -1);
    fixture_fini(&f);
}

/* Rows 0..5 and rows 3..8 of one source: the middle is in both. */
static void overlapping_slices_are_merged(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 2, (int64_t[]){ 8, 3 });
    heft_tape_t *t = ref_case_tape(&f.c);
    for (int i = 0; i < 2; i++) {
        uint32_t p = ref_tape_param(t, i == 0 ? "a" : "b", HEFT_DTYPE_F32, 2, (int64_t[]){ 3, 5 });
        heft_view_t src = ref_narrow(ref_view(t, (uint32_t)w), 0, i * 3, 5);
        ref_copy(t, ref_view(t, p), ref_swap(src, 0, 1));
    }
    ref_case_finish(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_OK);
    check_back(&f);
    uint32_t *b = (uint32_t *)(void *)f.c.expected[0][1];
    b[1] ^= 1; /* b[0, 1] is w[4, 0], which a holds too */
    write_ranks(&f);
    heft_checkpoint_t *const *ranks = f.ranks;
    char other[340];
    (void)snprintf(other, sizeof other, "%s/other", f.root);
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, (const heft_checkpoint_t *const *)ranks, 1, other,
                                       NULL, &err),
                  HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("parameter \"b\" [0, 1]");
    EXPECT_MESSAGE("source \"w\" element 12");
    fixture_fini(&f);
}

/* Of the sources m, rng.count, w the middle one is ignored: the others land under their names. */
static void what_is_ignored_is_left_out(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_exception_t exceptions[2] = {
        { .kind = HEFT_EXCEPTION_UNUSED, .pattern = "rng.*", .reason = "not a weight" },
        { .kind = HEFT_EXCEPTION_UNUSED, .pattern = "w", .reason = "never applies" },
    };
    fixture_t f = { .c = { .exceptions = exceptions, .n_exceptions = 1 } };
    fixture_init(&f);
    int m = ref_case_source(&f.c, "m", HEFT_DTYPE_F32, 1, (int64_t[]){ 3 });
    (void)ref_case_source(&f.c, "rng.count", HEFT_DTYPE_F32, 1, (int64_t[]){ 2 });
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&f.c);
    uint32_t p = ref_tape_param(t, "a", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    uint32_t q = ref_tape_param(t, "b", HEFT_DTYPE_F32, 1, (int64_t[]){ 3 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)w));
    ref_copy(t, ref_view(t, q), ref_view(t, (uint32_t)m));
    ref_case_finish(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_PROOF); /* unless the caller says so */
    EXPECT_MESSAGE("source \"rng.count\": no parameter holds 2 of 2 elements");
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.exceptions = exceptions;
    opts.n_exceptions = 2; /* one for a source that is held changes nothing */
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, (const heft_checkpoint_t *const *)f.ranks, 1,
                                       f.back, &opts, &err),
                  HEFT_OK);
    heft_checkpoint_t *back = NULL;
    EXPECT_STATUS(heft_checkpoint_open(f.back, "source", &back, &err), HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(back)), 2);
    assert_memory_equal(heft_checkpoint_get_data(back, 0), f.c.expected[0][1], 12); /* m */
    assert_memory_equal(heft_checkpoint_get_data(back, 1), f.c.expected[0][0], 32); /* w */
    heft_checkpoint_close(back);
    fixture_fini(&f);
}

static void missing_source_elements_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 2, (int64_t[]){ 8, 3 });
    heft_tape_t *t = ref_case_tape(&f.c);
    uint32_t p = ref_tape_param(t, "a", HEFT_DTYPE_F32, 2, (int64_t[]){ 6, 3 });
    ref_copy(t, ref_view(t, p), ref_narrow(ref_view(t, (uint32_t)w), 0, 0, 6));
    ref_case_finish(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source \"w\": no parameter holds 6 of 24 elements, first [6, 0] to [7, 2]");
    assert_int_equal(access(f.back, F_OK), -1);
    fixture_fini(&f);
}

static void casts_are_refused_by_name(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    int w = ref_case_source(&f.c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&f.c);
    uint32_t p = ref_tape_param(t, "half", HEFT_DTYPE_BF16, 1, (int64_t[]){ 8 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)w));
    ref_case_finish(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("\"half\"");
    fixture_fini(&f);
}

static int stop(void *arg, int64_t done, int64_t total)
{
    int64_t *seen = arg;
    seen[0] = done;
    seen[1] = total;
    return 1;
}

static void a_canceled_conversion_leaves_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    write_ranks(&f);
    int64_t seen[2] = { 0 };
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.progress = stop;
    opts.progress_arg = seen;
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, (const heft_checkpoint_t *const *)f.ranks, 2,
                                       f.back, &opts, &err),
                  HEFT_ERR_CANCELED);
    assert_int_equal(seen[0], 2 * 16 * 2); /* every byte of every rank is read or compared */
    assert_int_equal(seen[1], 2 * 16 * 2);
    assert_int_equal(access(f.back, F_OK), -1);
    fixture_fini(&f);
}

static void every_rank_is_needed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    write_ranks(&f);
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, (const heft_checkpoint_t *const *)f.ranks, 1,
                                       f.back, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("1 checkpoints given, the plan has 2 ranks");
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, NULL, 2, f.back, NULL, &err), HEFT_ERR_ARGUMENT);
    heft_convert_opts_t bad = HEFT_CONVERT_OPTS_INIT;
    bad.reverse = 3;
    EXPECT_STATUS(heft_convert_reverse(f.c.plan, (const heft_checkpoint_t *const *)f.ranks, 2,
                                       f.back, &bad, &err),
                  HEFT_ERR_ARGUMENT);
    heft_checkpoint_t *kept = f.ranks[1];
    f.ranks[1] = NULL;
    EXPECT_STATUS(go_back(&f, &err), HEFT_ERR_ARGUMENT);
    f.ranks[1] = kept;
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.reverse = 1; /* the same through heft_convert, for plans of one rank */
    EXPECT_STATUS(heft_convert(f.c.plan, f.ranks[0], f.back, &opts, &err), HEFT_ERR_ARGUMENT);
    fixture_fini(&f);
}

static void reverse_survives_each_allocation_failing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f = { .root = NULL };
    fixture_init(&f);
    repeated_case(&f.c);
    write_ranks(&f);
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft__alloc_fail_at(k);
        heft_status_t status = go_back(&f, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(access(f.back, F_OK), -1);
    }
    assert_true(k > 10);
    check_back(&f);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_and_padding_go_back),
        cmocka_unit_test(repeats_that_disagree_are_named),
        cmocka_unit_test(padding_must_hold_the_constant),
        cmocka_unit_test(overlapping_slices_are_merged),
        cmocka_unit_test(what_is_ignored_is_left_out),
        cmocka_unit_test(missing_source_elements_are_named),
        cmocka_unit_test(casts_are_refused_by_name),
        cmocka_unit_test(a_canceled_conversion_leaves_nothing),
        cmocka_unit_test(every_rank_is_needed),
        cmocka_unit_test(reverse_survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
