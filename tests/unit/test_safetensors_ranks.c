/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with one checkpoint for each rank. */
#include "test_safetensors_files.h"

#include <errno.h>
#include <sys/stat.h>

#define TENSOR(name, begin, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #begin "," #end "]}"
#define INDEX "model.safetensors.index.json"

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

static void write_index(const char *dir, const char *text)
{
    heft_test_write_file(dir, INDEX, text, strlen(text));
}

static void expect(const char *dir, heft_status_t status, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), status);
    EXPECT_MESSAGE(part);
    assert_null(c);
}

static void write_rank(const char *dir, const char *rank, const char *file, const char *header,
                       size_t n)
{
    char path[512];
    path_in(path, dir, rank);
    assert_true(mkdir(path, 0777) == 0 || errno == EEXIST);
    write_safetensors(path, file, header, n);
}

static void ranks_are_one_checkpoint(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    char path[512];
    write_rank(dir, "rank-10", "model.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    write_rank(dir, "rank-2", "x.safetensors", "{" TENSOR("a", 0, 4) "," TENSOR("b", 4, 8) "}", 8);
    path_in(path, dir, "rank-0");
    write_rank(dir, "rank-0", "model-00001-of-00002.safetensors",
               "{" TENSOR("a", 0, 4) "," TENSOR("d", 4, 8) "}", 8);
    write_safetensors(path, "model-00002-of-00002.safetensors", "{" TENSOR("c", 0, 4) "}", 4);
    write_index(path, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                      "\"c\":\"model-00002-of-00002.safetensors\","
                      "\"d\":\"model-00001-of-00002.safetensors\"}}");
    /* no ranks */
    write_rank(dir, "rank-x", "model.safetensors", "{", 0);
    write_rank(dir, "rank-01", "model.safetensors", "{", 0);
    heft_test_write_file(dir, "rank-7", "", 0);
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(c);
    assert_int_equal(heft_manifest_get_n_tensors(manifest), 6);
    const uint8_t *b = heft_checkpoint_get_data(c, index_of(c, "rank-2.b"));
    assert_int_equal(b[0], 5);
    const uint8_t *d = heft_checkpoint_get_data(c, index_of(c, "rank-0.d"));
    assert_int_equal(d[3], 8);
    (void)index_of(c, "rank-10.a");
    heft_checkpoint_close(c);
    /* a checkpoint beside the ranks is what the folder holds */
    write_safetensors(dir, "model.safetensors", "{" TENSOR("z", 0, 4) "}", 4);
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(c)), 1);
    heft_checkpoint_close(c);
}

static void a_bad_rank_is_named(void **state)
{
    const char *dir = *state;
    char path[512];
    write_rank(dir, "rank-0", "model.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    path_in(path, dir, "rank-1");
    assert_int_equal(mkdir(path, 0777), 0);
    expect(dir, HEFT_ERR_NOT_FOUND, "rank-1 holds no .safetensors file");
    write_safetensors(path, "model-00001-of-00001.safetensors", "{" TENSOR("c", 0, 4) "}", 4);
    write_index(path, "{\"weight_map\":{\"b\":\"model-00001-of-00001.safetensors\"}}");
    expect(dir, HEFT_ERR_FORMAT, "rank-1: index and shards disagree");
    write_safetensors(path, "model-00001-of-00001.safetensors", "{" TENSOR("b", 0, 4) "}", 3);
    expect(dir, HEFT_ERR_FORMAT, "rank-1/model-00001-of-00001.safetensors");
}

static void ranks_survive_every_failed_allocation(void **state)
{
    const char *dir = *state;
    write_rank(dir, "rank-0", "model.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    write_rank(dir, "rank-1", "model.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_checkpoint_t *c = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_checkpoint_open(dir, "source", &c, &err);
        heft__alloc_fail_at(-1);
        if (status != HEFT_ERR_NOMEM) {
            assert_int_equal(status, HEFT_OK);
            heft_checkpoint_close(c);
            assert_true(k > 5);
            break;
        }
        assert_null(c);
        assert_int_equal(heft__alloc_live(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_are_one_checkpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_rank_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_survive_every_failed_allocation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
