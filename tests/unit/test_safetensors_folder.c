/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoint folders: with an index, without one, half written, and at odds with their index. */
#include "test_safetensors_files.h"

#include <unistd.h>

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

static void write_pair(const char *dir)
{
    write_safetensors(dir, "model-00001-of-00002.safetensors",
                      "{" TENSOR("a", 0, 4) "," TENSOR("d", 4, 8) "}", 8);
    write_safetensors(dir, "model-00002-of-00002.safetensors", "{" TENSOR("c", 0, 4) "}", 4);
}

static void expect(const char *dir, heft_status_t status, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), status);
    EXPECT_MESSAGE(part);
    assert_null(c);
}

static void indexed_shards_are_one_checkpoint(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    write_pair(dir);
    write_index(dir, "{\"metadata\":{\"total_size\":12,\"x\":1},\"weight_map\":{"
                     "\"a\":\"model-00001-of-00002.safetensors\","
                     "\"c\":\"model-00002-of-00002.safetensors\","
                     "\"d\":\"model-00001-of-00002.safetensors\"}}");
    /* a shard of an earlier version, which the index does not name */
    write_safetensors(dir, "model-00003-of-00003.safetensors", "{" TENSOR("a", 0, 4) "}", 1);
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(c)), 3);
    const uint8_t *d = heft_checkpoint_get_data(c, index_of(c, "d"));
    assert_int_equal(d[0], 5);
    heft_checkpoint_close(c);
}

static void one_file_needs_no_index(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    expect(dir, HEFT_ERR_NOT_FOUND, "no .safetensors file");
    write_safetensors(dir, "weights.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    write_safetensors(dir, ".heft-tmp-1-0-0.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    EXPECT_STATUS(heft_checkpoint_open(dir, "destination", &c, &err), HEFT_OK);
    assert_string_equal(heft_manifest_get_side(heft_checkpoint_get_manifest(c)), "destination");
    heft_checkpoint_close(c);
}

static void several_files_without_an_index_are_refused(void **state)
{
    const char *dir = *state;
    write_pair(dir);
    expect(dir, HEFT_ERR_FORMAT, "2 .safetensors files");
}

static void first_of_several_alone_is_no_checkpoint(void **state)
{
    const char *dir = *state;
    write_safetensors(dir, "model-00001-of-00003.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    expect(dir, HEFT_ERR_FORMAT, "\"model-00001-of-00003.safetensors\") without " INDEX);
}

static void disagreement_names_every_tensor_and_file(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    char *report = NULL;
    write_pair(dir);
    write_index(dir, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                     "\"b\":\"model-00002-of-00002.safetensors\"}}");
    EXPECT_STATUS(heft_checkpoint_open_report(dir, "source", &c, &report, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("1 missing, 2 surplus");
    assert_non_null(report);
    assert_string_equal(report, "\"d\" of model-00001-of-00002.safetensors is not in the index\n"
                                "\"c\" of model-00002-of-00002.safetensors is not in the index\n"
                                "\"b\" is missing from model-00002-of-00002.safetensors\n"
                                "1 missing, 2 surplus in all\n");
    heft_string_free(report);
    expect(dir, HEFT_ERR_FORMAT, "1 missing, 2 surplus");
    /* the tensor is there, in another shard than the index says */
    write_index(dir, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                     "\"c\":\"model-00001-of-00002.safetensors\","
                     "\"d\":\"model-00002-of-00002.safetensors\"}}");
    EXPECT_STATUS(heft_checkpoint_open_report(dir, "source", &c, &report, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("2 missing, 2 surplus");
    assert_non_null(strstr(report, "\"d\" is in model-00001-of-00002.safetensors, the index says "
                                   "model-00002-of-00002.safetensors\n"));
    heft_string_free(report);
}

static void long_disagreements_are_cut_and_counted(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    char *report = NULL;
    write_safetensors(dir, "m.safetensors", "{}", 0);
    heft__text_t text;
    heft__text_init(&text);
    heft__text_put(&text, "{\"weight_map\":{");
    for (int i = 0; i < 100; i++) {
        heft__text_printf(&text, "%s\"t%d\":\"m.safetensors\"", i > 0 ? "," : "", i);
    }
    heft__text_put(&text, "}}");
    write_index(dir, text.data);
    heft__text_fini(&text);
    EXPECT_STATUS(heft_checkpoint_open_report(dir, "source", &c, &report, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("100 missing, 0 surplus");
    size_t n_lines = 0;
    for (const char *p = report; *p != '\0'; p++) {
        n_lines += *p == '\n' ? 1 : 0;
    }
    assert_int_equal(n_lines, 41);
    heft_string_free(report);
}

static void bad_indexes_are_refused(void **state)
{
    const char *dir = *state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        { "", "0 bytes" },
        { "[]", "object" },
        { "{\"weight_map\":", "no valid index" },
        { "{\"metadata\":{}}", "no \"weight_map\"" },
        { "{\"weight_map\":[]}", "\"weight_map\" must be an object" },
        { "{\"weight_map\":{},\"extra\":{}}", "unknown key \"extra\"" },
        { "{\"weight_map\":{\"a\":3}}", "tensor \"a\"" },
        { "{\"weight_map\":{\"a\":\"../m.safetensors\"}}", "plain file name" },
        { "{\"weight_map\":{\"a\":\"sub/m.safetensors\"}}", "plain file name" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "plain file name" },
        { "{\"weight_map\":{\"a\":\"\"}}", "plain file name" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain file name" },
        { "{\"weight_map\":{\"a\":\"m\",\"a\":\"m\"}}", "duplicate" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_index(dir, cases[i].text);
        expect(dir, HEFT_ERR_FORMAT, cases[i].part);
    }
    write_index(dir, "{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    expect(dir, HEFT_ERR_NOT_FOUND, "gone.safetensors");
}

static void open_checkpoint_outlives_its_folder(void **state)
{
    const char *dir = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    char path[512];
    write_safetensors(dir, "m.safetensors", "{" TENSOR("a", 0, 4) "}", 4);
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &c, &err), HEFT_OK);
    path_in(path, dir, "m.safetensors");
    assert_int_equal(unlink(path), 0);
    const uint8_t *a = heft_checkpoint_get_data(c, 0);
    assert_int_equal(a[3], 4);
    heft_checkpoint_close(c);
}

static void folders_survive_every_failing_allocation(void **state)
{
    const char *dir = *state;
    write_pair(dir);
    for (int agree = 0; agree < 2; agree++) {
        write_index(dir, agree ? "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                                 "\"c\":\"model-00002-of-00002.safetensors\","
                                 "\"d\":\"model-00001-of-00002.safetensors\"}}"
                               : "{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\"}}");
        for (long k = 0;; k++) {
            heft_error_t err = HEFT_ERROR_INIT;
            heft_checkpoint_t *c = NULL;
            char *report = NULL;
            heft__alloc_fail_at(k);
            heft_status_t status = heft_checkpoint_open_report(dir, "source", &c, &report, &err);
            heft__alloc_fail_at(-1);
            heft_string_free(report);
            if (status != HEFT_ERR_NOMEM) {
                assert_int_equal(status, agree ? HEFT_OK : HEFT_ERR_FORMAT);
                heft_checkpoint_close(c);
                assert_true(k > 5);
                break;
            }
            assert_null(c);
            assert_int_equal(heft__alloc_live(), 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(indexed_shards_are_one_checkpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(one_file_needs_no_index, setup, teardown),
        cmocka_unit_test_setup_teardown(several_files_without_an_index_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(first_of_several_alone_is_no_checkpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(disagreement_names_every_tensor_and_file, setup, teardown),
        cmocka_unit_test_setup_teardown(long_disagreements_are_cut_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_indexes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(open_checkpoint_outlives_its_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_survive_every_failing_allocation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
