/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces that runs are made of: thread pool, sets of elements, comparing views, rank folders.
 */
#include "exec/exec.h"
#include "heft_test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- pool ---- */

enum { N_THREADS = 4 };

typedef struct tally {
    _Atomic int calls[N_THREADS];
} tally_t;

static void count_call(void *arg, uint32_t thread)
{
    tally_t *tally = arg;
    atomic_fetch_add(&tally->calls[thread], 1);
}

static void every_thread_takes_part_in_every_run_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__pool_t *pool = NULL;
    EXPECT_STATUS(heft__pool_create(N_THREADS, &pool, &err), HEFT_OK);
    assert_int_equal(heft__pool_get_n_threads(pool), N_THREADS);
    tally_t tally = { { 0 } };
    for (int run = 1; run <= 200; run++) {
        heft__pool_run(pool, count_call, &tally);
        for (int t = 0; t < N_THREADS; t++) {
            assert_int_equal(atomic_load(&tally.calls[t]), run);
        }
    }
    heft__pool_destroy(pool);
    heft__pool_destroy(NULL);
    EXPECT_STATUS(heft__pool_create(0, &pool, &err), HEFT_ERR_LIMIT);
}

/* ---- progress ---- */

static int collect(void *arg, int64_t done, int64_t total)
{
    int64_t *calls = arg;
    calls[0]++;
    calls[1] = done;
    return done > total / 2;
}

static void progress_is_reported_every_unit_and_at_the_end(void **state)
{
    (void)state;
    int64_t calls[2] = { 0, -1 };
    heft__progress_t p = { .fn = collect, .arg = calls, .total = 5 * HEFT__EXEC_UNIT_BYTES };
    assert_true(heft__progress_report(&p, HEFT__EXEC_UNIT_BYTES - 1));
    assert_int_equal(calls[0], 0);
    assert_true(heft__progress_report(&p, HEFT__EXEC_UNIT_BYTES));
    assert_int_equal(calls[0], 1);
    p.done = HEFT__EXEC_UNIT_BYTES;
    assert_true(heft__progress_report(&p, 5));
    assert_int_equal(calls[0], 1);
    assert_false(heft__progress_report(&p, 2 * HEFT__EXEC_UNIT_BYTES));
    assert_int_equal(calls[1], 3 * HEFT__EXEC_UNIT_BYTES);
    assert_false(heft__progress_report(&p, 4 * HEFT__EXEC_UNIT_BYTES));
    assert_int_equal(calls[1], p.total);
}

/* ---- sets of elements ---- */

enum { N_ELEMS = 700 };

typedef struct wild_view {
    int rank;
    int64_t offset;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
} wild_view_t;

/* Any strides at all: nested, overlapping, negative, repeating. */
static wild_view_t random_view(uint64_t *rng)
{
    static const int64_t strides[] = { 0, 1, 1, 1, 2, 3, 4, 8, 12, 64, 65, -1, -3, -8, -70 };
    for (;;) {
        wild_view_t v = { .rank = (int)heft_test_random_in(rng, 0, 4) };
        int64_t low = 0;
        int64_t high = 0;
        for (int k = 0; k < v.rank; k++) {
            v.extent[k] = heft_test_random_in(rng, 1, 12);
            v.stride[k] = strides[heft_test_random_in(rng, 0, 14)];
            int64_t span = (v.extent[k] - 1) * v.stride[k];
            low += span < 0 ? span : 0;
            high += span > 0 ? span : 0;
        }
        if (high - low < N_ELEMS) {
            v.offset = heft_test_random_in(rng, -low, N_ELEMS - 1 - high);
            return v;
        }
    }
}

static int64_t count(const wild_view_t *v)
{
    int64_t n = 1;
    for (int k = 0; k < v->rank; k++) {
        n *= v->extent[k];
    }
    return n;
}

static int64_t elem_at(const wild_view_t *v, int64_t i)
{
    int64_t e = v->offset;
    for (int k = v->rank - 1; k >= 0; k--) {
        e += i % v->extent[k] * v->stride[k];
        i /= v->extent[k];
    }
    return e;
}

static void sets_agree_with_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t rng = heft_test_seed();
    heft__elems_t set = { 0 };
    for (int64_t i = 0; i < heft_test_cases(2000); i++) {
        uint8_t naive[N_ELEMS] = { 0 };
        EXPECT_STATUS(heft__elems_reset(&set, N_ELEMS, &err), HEFT_OK);
        for (int step = 0; step < 4; step++) {
            wild_view_t v = random_view(&rng);
            heft__runs_t runs = heft__runs_from(v.offset, v.rank, v.extent, v.stride);
            bool any = false;
            bool all = true;
            for (int64_t k = 0; k < count(&v); k++) {
                any = any || naive[elem_at(&v, k)] != 0;
                all = all && naive[elem_at(&v, k)] != 0;
            }
            assert_int_equal(heft__elems_test(&set, &runs), all   ? HEFT__ELEMS_ALL
                                                            : any ? HEFT__ELEMS_SOME
                                                                  : HEFT__ELEMS_NONE);
            int64_t n_new = 0;
            int64_t n_distinct = 1;
            for (int k = 0; k < v.rank; k++) {
                n_distinct *= v.stride[k] == 0 ? 1 : v.extent[k];
            }
            uint8_t own[N_ELEMS] = { 0 };
            for (int64_t k = 0; k < count(&v); k++) {
                n_new += own[elem_at(&v, k)] == 0;
                own[elem_at(&v, k)] = 1;
                naive[elem_at(&v, k)] = 1;
            }
            /* a view that is called nested reads nothing twice but by repeats */
            assert_true(!runs.is_nested || n_new == n_distinct);
            heft__elems_add(&set, &runs);
        }
        int64_t n_missing = 0;
        int64_t first = -1;
        int64_t end = -1;
        for (int64_t e = 0; e < N_ELEMS; e++) {
            assert_int_equal(heft__elems_has(&set, e), naive[e]);
            n_missing += naive[e] == 0;
            first = first < 0 && naive[e] == 0 ? e : first;
            end = first >= 0 && end < 0 && naive[e] != 0 ? e : end;
        }
        end = end < 0 ? N_ELEMS : end;
        int64_t got_first = -1;
        int64_t got_end = -1;
        assert_int_equal(heft__elems_find_gap(&set, &got_first, &got_end), n_missing);
        if (n_missing > 0) {
            assert_int_equal(got_first, first);
            assert_int_equal(got_end, end);
        }
    }
    heft__elems_fini(&set);
}

/* ---- comparing ---- */

static void views_agree_finds_the_first_difference(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    static const uint32_t sizes[] = { 1, 2, 4, 8 };
    for (int64_t i = 0; i < heft_test_cases(500); i++) {
        uint32_t eb = sizes[heft_test_random_in(&rng, 0, 3)];
        wild_view_t a = random_view(&rng);
        wild_view_t b = random_view(&rng);
        b.rank = a.rank;
        memcpy(b.extent, a.extent, sizeof b.extent);
        int64_t stride = 1;
        b.offset = 0;
        for (int k = a.rank - 1; k >= 0; k--) { /* b: contiguous */
            b.stride[k] = stride;
            stride *= a.extent[k];
        }
        uint8_t *x = calloc(N_ELEMS, eb);
        uint8_t *y = calloc((size_t)count(&a), eb);
        assert_non_null(x);
        assert_non_null(y);
        for (int64_t k = 0; k < N_ELEMS * (int64_t)eb; k++) {
            x[k] = (uint8_t)heft_test_random(&rng);
        }
        for (int64_t k = 0; k < count(&a); k++) {
            memcpy(y + k * eb, x + elem_at(&a, k) * eb, eb);
        }
        int64_t index[HEFT_MAX_DIMS];
        assert_true(heft__views_agree(x + a.offset * eb, a.stride, y, b.stride, a.rank, a.extent,
                                      eb, index));
        int64_t changed = heft_test_random_in(&rng, 0, count(&a) - 1);
        y[changed * eb + eb - 1] ^= 1;
        assert_false(heft__views_agree(x + a.offset * eb, a.stride, y, b.stride, a.rank, a.extent,
                                       eb, index));
        int64_t flat = 0;
        for (int k = 0; k < a.rank; k++) {
            flat = flat * a.extent[k] + index[k];
        }
        assert_int_equal(flat, changed);
        int64_t first = -1;
        uint8_t *good = malloc((size_t)count(&a) * eb);
        assert_non_null(good);
        memcpy(good, y, (size_t)count(&a) * eb);
        good[changed * eb + eb - 1] ^= 1;
        assert_int_equal(heft__count_differences(good, y, count(&a), eb, &first), 1);
        assert_int_equal(first, changed);
        free(good);
        free(x);
        free(y);
    }
}

static void differences_are_counted_across_blocks(void **state)
{
    (void)state;
    enum { N = 200000 };
    uint16_t *a = calloc(N, sizeof *a);
    uint16_t *b = calloc(N, sizeof *b);
    assert_non_null(a);
    assert_non_null(b);
    int64_t first = -1;
    assert_int_equal(heft__count_differences(a, b, N, 2, &first), 0);
    assert_int_equal(first, -1);
    for (int i = 40000; i < N; i += 40000) {
        b[i] = 1;
    }
    assert_int_equal(heft__count_differences(a, b, N, 2, &first), 4);
    assert_int_equal(first, 40000);
    free(a);
    free(b);
}

static void the_longest_index_fits_its_text(void **state)
{
    (void)state;
    heft_shape_t shape = { .rank = HEFT_MAX_DIMS };
    for (int k = 0; k < HEFT_MAX_DIMS; k++) {
        shape.extent[k] = k == 0 ? INT64_MAX : 1;
    }
    char text[HEFT__INDEX_TEXT_BYTES];
    heft__index_text(INT64_MAX - 1, &shape, text);
    assert_string_equal(text, "[9223372036854775806, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]");
    shape.rank = 0;
    heft__index_text(0, &shape, text);
    assert_string_equal(text, "[]");
}

static void storage_shapes_become_logical(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const heft_dtype_t dtypes[] = { HEFT_DTYPE_F4, HEFT_DTYPE_F6_E2M3, HEFT_DTYPE_F6_E3M2,
                                           HEFT_DTYPE_BF16 };
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (int64_t n = 0; n < 64; n += 4) {
            heft_shape_t logical = { .rank = 2, .extent = { 3, n } };
            heft_shape_t storage;
            EXPECT_STATUS(heft_shape_to_storage(&logical, dtypes[d], &storage, &err), HEFT_OK);
            heft_shape_t back = heft__shape_from_storage(&storage, dtypes[d]);
            assert_int_equal(back.rank, 2);
            assert_int_equal(back.extent[0], 3);
            assert_int_equal(back.extent[1], n);
        }
    }
}

/* ---- rank folders ---- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static int count_entries(const char *path)
{
    char command[600];
    (void)snprintf(command, sizeof command, "ls -A '%s' | wc -l", path);
    FILE *pipe = popen(command, "r");
    int n = -1;
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    assert_int_equal(pclose(pipe), 0);
    return n;
}

static void fill_rank(const heft__rankdirs_t *dirs, uint32_t r)
{
    char *path = heft__rankdirs_rank(dirs, r);
    assert_non_null(path);
    assert_int_equal(mkdir(path, 0777), 0);
    heft_test_write_file(path, "model.safetensors", "x", 1);
    heft__free(path);
}

static void rank_folders_appear_together(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *root = heft_test_mkdir();
    char dir[400];
    char file[440];
    for (int existed = 0; existed < 2; existed++) {
        (void)snprintf(dir, sizeof dir, "%s/%s/out/", root, existed ? "x" : "a/b");
        if (existed) {
            (void)snprintf(file, sizeof file, "%s/x", root);
            assert_int_equal(mkdir(file, 0777), 0);
            assert_int_equal(mkdir(dir, 0777), 0);
            (void)snprintf(file, sizeof file, "%s/rank-1", dir); /* empty: in nobody's way */
            assert_int_equal(mkdir(file, 0777), 0);
        }
        heft__rankdirs_t dirs;
        EXPECT_STATUS(heft__rankdirs_init(&dirs, dir, 3, &err), HEFT_OK);
        for (uint32_t r = 0; r < 3; r++) {
            fill_rank(&dirs, r);
            (void)snprintf(file, sizeof file, "%s/rank-%u/model.safetensors", dir, r);
            assert_false(exists(file));
        }
        EXPECT_STATUS(heft__rankdirs_commit(&dirs, &err), HEFT_OK);
        heft__rankdirs_fini(&dirs);
        for (uint32_t r = 0; r < 3; r++) {
            (void)snprintf(file, sizeof file, "%s/rank-%u/model.safetensors", dir, r);
            assert_true(exists(file));
        }
        assert_int_equal(count_entries(dir), 3);
    }
    assert_int_equal(count_entries(root), 2);
    heft_test_rmdir(root);
}

static void a_relative_folder_will_do(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *root = heft_test_mkdir();
    char old[1024];
    assert_non_null(getcwd(old, sizeof old));
    assert_int_equal(chdir(root), 0);
    heft__rankdirs_t dirs;
    EXPECT_STATUS(heft__rankdirs_init(&dirs, "out", 2, &err), HEFT_OK);
    fill_rank(&dirs, 0);
    fill_rank(&dirs, 1);
    EXPECT_STATUS(heft__rankdirs_commit(&dirs, &err), HEFT_OK);
    heft__rankdirs_fini(&dirs);
    assert_true(exists("out/rank-1/model.safetensors"));
    assert_int_equal(count_entries(root), 1);
    assert_int_equal(chdir(old), 0);
    heft_test_rmdir(root);
}

static void without_a_commit_nothing_stays(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *root = heft_test_mkdir();
    char dir[400];
    (void)snprintf(dir, sizeof dir, "%s/a/b/out", root);
    for (int existed = 0; existed < 2; existed++) {
        heft__rankdirs_t dirs;
        EXPECT_STATUS(heft__rankdirs_init(&dirs, existed ? root : dir, 2, &err), HEFT_OK);
        fill_rank(&dirs, 0);
        fill_rank(&dirs, 1);
        heft__rankdirs_fini(&dirs);
        assert_int_equal(count_entries(root), 0);
    }
    heft_test_rmdir(root);
}

static void a_failed_commit_takes_ranks_back(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *root = heft_test_mkdir();
    heft__rankdirs_t dirs;
    EXPECT_STATUS(heft__rankdirs_init(&dirs, root, 3, &err), HEFT_OK);
    for (uint32_t r = 0; r < 3; r++) {
        fill_rank(&dirs, r);
    }
    char path[440];
    (void)snprintf(path, sizeof path, "%s/rank-1", root); /* someone else was faster */
    assert_int_equal(mkdir(path, 0777), 0);
    heft_test_write_file(path, "theirs", "x", 1);
    EXPECT_STATUS(heft__rankdirs_commit(&dirs, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("rank-1");
    heft__rankdirs_fini(&dirs);
    assert_int_equal(count_entries(root), 1);
    assert_int_equal(count_entries(path), 1);
    EXPECT_STATUS(heft__rankdirs_init(&dirs, root, 3, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("rank-1");
    heft__rankdirs_fini(&dirs);
    (void)snprintf(path, sizeof path, "%s/rank-1/theirs", root);
    EXPECT_STATUS(heft__rankdirs_init(&dirs, path, 2, &err), HEFT_ERR_EXISTS);
    heft__rankdirs_fini(&dirs);
    (void)snprintf(path, sizeof path, "%s/rank-1/theirs/sub", root);
    EXPECT_STATUS(heft__rankdirs_init(&dirs, path, 2, &err), HEFT_ERR_IO);
    heft__rankdirs_fini(&dirs);
    heft_test_rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_takes_part_in_every_run_once),
        cmocka_unit_test(progress_is_reported_every_unit_and_at_the_end),
        cmocka_unit_test(sets_agree_with_bytes),
        cmocka_unit_test(views_agree_finds_the_first_difference),
        cmocka_unit_test(differences_are_counted_across_blocks),
        cmocka_unit_test(the_longest_index_fits_its_text),
        cmocka_unit_test(storage_shapes_become_logical),
        cmocka_unit_test(rank_folders_appear_together),
        cmocka_unit_test(a_relative_folder_will_do),
        cmocka_unit_test(without_a_commit_nothing_stays),
        cmocka_unit_test(a_failed_commit_takes_ranks_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
