/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint writer: what it writes is read back, and nothing half written is ever visible. */
#include "test_checkpoint_writer_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int setup(void **state)
{
    *state = heft_test_mkdir();
    return 0;
}

static int teardown(void **state)
{
    heft_test_rmdir(*state);
    assert_int_equal(heft__alloc_live(), 0);
    return 0;
}

static void path_in(char out[512], const char *dir, const char *name)
{
    (void)snprintf(out, 512, "%s/%s", dir, name);
}

static void written_checkpoints_are_read_back(void **state)
{
    static const int64_t shard_bytes[] = { 0, 1, 50, 100, 40000, 1 << 20 };
    static const int n_files[] = { 1, 8, 7, 5, 4, 1 };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    for (size_t i = 0; i < sizeof shard_bytes / sizeof shard_bytes[0]; i++) {
        char dir[512];
        char name[32];
        (void)snprintf(name, sizeof name, "run-%zu", i);
        path_in(dir, *state, name);
        EXPECT_STATUS(write_checkpoint(dir, m, shard_bytes[i], &err), HEFT_OK);
        expect_checkpoint(dir, m);
        assert_int_equal(count_entries(dir, ".heft-tmp-"), 0);
        if (n_files[i] == 1) {
            assert_int_equal(count_entries(dir, "model.safetensors"), 1);
            assert_int_equal(count_entries(dir, ""), 1);
        } else {
            assert_int_equal(count_entries(dir, "model.safetensors.index.json"), 1);
            assert_int_equal(count_entries(dir, "model-0"), n_files[i] - 1);
        }
    }
    heft_manifest_destroy(m);
}

static void data_start_on_64_bytes_and_widest_come_first(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    EXPECT_STATUS(write_checkpoint(*state, m, 0, &err), HEFT_OK);
    char path[512];
    path_in(path, *state, "model.safetensors");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char text[2048] = "";
    size_t n = fread(text, 1, sizeof text - 1, f);
    assert_true(n > 8);
    (void)fclose(f);
    uint64_t header_bytes = heft__get_le64((const uint8_t *)text);
    assert_int_equal((header_bytes + 8) % 64, 0);
    assert_true(header_bytes + 8 < sizeof text);
    const char *json = text + 8;
    const char *order[] = { "\"__metadata__\":{\"format\":\"pt\"}",
                            "b.f64",
                            "h.scalar",
                            "d.f32",
                            "e.empty",
                            "c \\\"quoted\\\" \\\\ é",
                            "g.large",
                            "a.u8",
                            "f.f4" };
    const char *last = json;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const char *at = strstr(json, order[i]);
        assert_non_null(at);
        assert_true(at >= last);
        last = at;
    }
    heft_manifest_destroy(m);
}

static void fresh_memory_is_zero(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 0, &w, &err), HEFT_OK);
    for (uint32_t k = 0; k < heft_manifest_get_n_tensors(m); k++) {
        heft_tensor_info_t info;
        void *data = NULL;
        EXPECT_STATUS(heft_manifest_query(m, k, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(w, k, &data, &err), HEFT_OK);
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % heft_dtype_get_unit_bytes(info.dtype), 0);
        for (int64_t i = 0; i < info.n_bytes; i++) {
            assert_int_equal(((const uint8_t *)data)[i], 0);
        }
    }
    heft_checkpoint_writer_destroy(w);
    heft_manifest_destroy(m);
}

static void nothing_is_left_without_a_commit(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    char dir[512];
    path_in(dir, *state, "new/deeper/");
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, m, 100, &w, &err), HEFT_OK);
    EXPECT_STATUS(fill_tensor(w, m, 0, &err), HEFT_OK);
    assert_int_equal(count_entries(dir, "model"), 0);
    assert_true(count_entries(dir, ".heft-tmp-") > 0);
    heft_checkpoint_writer_destroy(w);
    assert_int_equal(count_entries(*state, ""), 0);
    heft_manifest_destroy(m);
}

static void commit_names_what_was_never_done(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    void *data = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 0, &w, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_done(w, 1, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("\"b.f64\" was never mapped");
    for (uint32_t k = 0; k < heft_manifest_get_n_tensors(m); k++) {
        if (k != 3 && k != 4) {
            EXPECT_STATUS(fill_tensor(w, m, k, &err), HEFT_OK);
        }
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("\"d.f32\" was never done");
    assert_int_equal(count_entries(*state, "model"), 0);
    /* the empty tensor has nothing to be done */
    EXPECT_STATUS(fill_tensor(w, m, 3, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_checkpoint_writer_map(w, 0, &data, &err), HEFT_ERR_STATE);
    heft_checkpoint_writer_destroy(w);
    expect_checkpoint(*state, m);
    heft_manifest_destroy(m);
}

static void existing_checkpoints_are_never_touched(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(write_checkpoint(*state, m, 100, &err), HEFT_OK);
    int n = count_entries(*state, "");
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 0, &w, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("holds a checkpoint already");
    assert_null(w);
    assert_int_equal(count_entries(*state, ""), n);
    expect_checkpoint(*state, m);
    heft_manifest_destroy(m);
}

static void bad_calls_are_refused(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    heft_checkpoint_writer_t *w = NULL;
    void *data = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 0, &w, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, -1, &w, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_checkpoint_writer_create("", m, 0, &w, &err), HEFT_ERR_ARGUMENT);
    heft_test_write_file(*state, "file", "x", 1);
    char path[512];
    path_in(path, *state, "file");
    EXPECT_STATUS(heft_checkpoint_writer_create(path, m, 0, &w, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("file");
    path_in(path, *state, "empty");
    EXPECT_STATUS(heft_checkpoint_writer_create(path, m, 0, &w, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_map(w, 0, &data, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(w);
    expect_checkpoint(path, m);
    heft_manifest_destroy(m);
}

/* ---- leftovers, races, limits ---- */

static void leftovers_of_dead_writers_are_removed(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        heft_checkpoint_writer_t *w = NULL;
        _exit(heft_checkpoint_writer_create(*state, m, 100, &w, NULL) == HEFT_OK ? 0 : 1);
    }
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_true(count_entries(*state, ".heft-tmp-") > 1);
    heft_checkpoint_t *half_written = NULL;
    EXPECT_STATUS(heft_checkpoint_open(*state, "source", &half_written, &err), HEFT_ERR_NOT_FOUND);
    heft_test_write_file(*state, ".heft-tmp-notes", "mine", 4);
    heft_checkpoint_writer_t *other = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 0, &other, &err), HEFT_OK);
    assert_int_equal(count_entries(*state, ".heft-tmp-"), 2);
    /* a second live writer does not disturb the first */
    EXPECT_STATUS(write_checkpoint(*state, m, 0, &err), HEFT_OK);
    assert_int_equal(count_entries(*state, ".heft-tmp-"), 2);
    heft_checkpoint_writer_destroy(other);
    expect_checkpoint(*state, m);
    heft_manifest_destroy(m);
}

/* 500 shards under 64 descriptors, for the writer and for the reader. */
static void shards_need_no_descriptor_each(void **state)
{
    enum { N = 500 };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    for (int k = 0; k < N; k++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t.%03d", k);
        add_tensor(m, name, HEFT_DTYPE_F32, 5);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    struct rlimit saved;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
    struct rlimit small = { .rlim_cur = 64, .rlim_max = saved.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    heft_status_t status = write_checkpoint(*state, m, 20, &err);
    if (status == HEFT_OK) {
        expect_checkpoint(*state, m);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
    EXPECT_STATUS(status, HEFT_OK);
    assert_int_equal(count_entries(*state, "model-0"), N);
    heft_manifest_destroy(m);
}

/* The lock that says "alive" lasts as long as the writer, without a descriptor. */
static void temporary_files_stay_locked(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 40000, &w, &err), HEFT_OK);
    DIR *dir = opendir(*state);
    assert_non_null(dir);
    int n = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, ".heft-tmp-", 10) == 0) {
            int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
            assert_true(fd >= 0);
            assert_int_not_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
            (void)close(fd);
            n++;
        }
    }
    (void)closedir(dir);
    assert_int_equal(n, 3);
    heft_checkpoint_writer_destroy(w);
    heft_manifest_destroy(m);
}

typedef struct racer {
    const char *dir;
    const heft_manifest_t *manifest;
    int64_t max_shard_bytes;
    pthread_barrier_t *barrier;
    heft_status_t status;
} racer_t;

static void *race(void *arg)
{
    racer_t *r = arg;
    heft_checkpoint_writer_t *w = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    r->status = heft_checkpoint_writer_create(r->dir, r->manifest, r->max_shard_bytes, &w, &err);
    for (uint32_t k = 0; r->status == HEFT_OK && k < heft_manifest_get_n_tensors(r->manifest);
         k++) {
        r->status = fill_tensor(w, r->manifest, k, &err);
    }
    (void)pthread_barrier_wait(r->barrier);
    if (r->status == HEFT_OK) {
        r->status = heft_checkpoint_writer_commit(w, &err);
    }
    heft_checkpoint_writer_destroy(w);
    return NULL;
}

static void of_two_writers_exactly_one_wins(void **state)
{
    heft_manifest_t *m = mixed_manifest();
    for (int round = 0; round < 20; round++) {
        char dir[512];
        char name[32];
        (void)snprintf(name, sizeof name, "round-%d", round);
        path_in(dir, *state, name);
        pthread_barrier_t barrier;
        assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
        racer_t racers[2] = {
            { .dir = dir, .manifest = m, .max_shard_bytes = 60, .barrier = &barrier },
            { .dir = dir, .manifest = m, .max_shard_bytes = 100, .barrier = &barrier },
        };
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        }
        (void)pthread_barrier_destroy(&barrier);
        heft_status_t won = racers[0].status == HEFT_OK ? racers[0].status : racers[1].status;
        heft_status_t lost = racers[0].status == HEFT_OK ? racers[1].status : racers[0].status;
        assert_int_equal(won, HEFT_OK);
        assert_int_equal(lost, HEFT_ERR_EXISTS);
        expect_checkpoint(dir, m);
        assert_int_equal(count_entries(dir, ".heft-tmp-"), 0);
    }
    heft_manifest_destroy(m);
}

static void commit_undoes_a_half_done_rename(void **state)
{
    /* a folder stands where the second shard should go: the first is taken back */
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(*state, m, 40000, &w, &err), HEFT_OK);
    for (uint32_t k = 0; k < heft_manifest_get_n_tensors(m); k++) {
        EXPECT_STATUS(fill_tensor(w, m, k, &err), HEFT_OK);
    }
    char path[512];
    path_in(path, *state, "model-00002-of-00003.safetensors");
    assert_int_equal(mkdir(path, 0777), 0);
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_ERR_EXISTS);
    assert_int_equal(count_entries(*state, "model-00001"), 0);
    assert_int_equal(count_entries(*state, "model.safetensors"), 0);
    heft_checkpoint_writer_destroy(w);
    assert_int_equal(count_entries(*state, ""), 1);
    heft_manifest_destroy(m);
}

static void file_size_limit_is_no_space_and_not_a_signal(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = mixed_manifest();
    heft_checkpoint_writer_t *w = NULL;
    struct rlimit saved;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    struct rlimit small = { .rlim_cur = 10000, .rlim_max = saved.rlim_max };
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char dir[512];
    path_in(dir, *state, "limited");
    heft_status_t status = heft_checkpoint_writer_create(dir, m, 0, &w, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    (void)signal(SIGXFSZ, old);
    assert_int_equal(status, HEFT_ERR_NOSPACE);
    EXPECT_MESSAGE("model.safetensors");
    EXPECT_MESSAGE("bytes");
    assert_null(w);
    assert_int_equal(count_entries(*state, ""), 0);
    heft_manifest_destroy(m);
}

static void writing_survives_every_failing_allocation(void **state)
{
    heft_manifest_t *m = mixed_manifest();
    int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        char dir[512];
        heft_error_t err = HEFT_ERROR_INIT;
        path_in(dir, *state, "new/deeper");
        heft__alloc_fail_at(k);
        heft_status_t status = write_checkpoint(dir, m, 100, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            expect_checkpoint(dir, m);
            assert_true(k > 8);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_int_equal(count_entries(*state, ""), 0);
    }
    heft_manifest_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_checkpoints_are_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(data_start_on_64_bytes_and_widest_come_first, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fresh_memory_is_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_left_without_a_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(commit_names_what_was_never_done, setup, teardown),
        cmocka_unit_test_setup_teardown(existing_checkpoints_are_never_touched, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_calls_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(leftovers_of_dead_writers_are_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(shards_need_no_descriptor_each, setup, teardown),
        cmocka_unit_test_setup_teardown(temporary_files_stay_locked, setup, teardown),
        cmocka_unit_test_setup_teardown(of_two_writers_exactly_one_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(commit_undoes_a_half_done_rename, setup, teardown),
        cmocka_unit_test_setup_teardown(file_size_limit_is_no_space_and_not_a_signal, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(writing_survives_every_failing_allocation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
