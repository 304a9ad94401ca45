/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors file: what is read, and every fault with its own message, tensor and offset. */
#include "test_safetensors_files.h"

#include <unistd.h>

typedef struct fixture {
    char *dir;
    char path[512];
} fixture_t;

static int setup(void **state)
{
    static fixture_t f;
    f.dir = heft_test_mkdir();
    path_in(f.path, f.dir, "model.safetensors");
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;
    heft_test_rmdir(f->dir);
    assert_int_equal(heft__alloc_live(), 0);
    return 0;
}

static heft_checkpoint_t *open_ok(const fixture_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *checkpoint = NULL;
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &checkpoint, &err), HEFT_OK);
    return checkpoint;
}

static void tensors_are_found_with_their_bytes(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors",
                      "{\"__metadata__\":{\"format\":\"pt\"},"
                      "\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                      "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}   ",
                      13);
    heft_checkpoint_t *c = open_ok(f);
    const heft_manifest_t *m = heft_checkpoint_get_manifest(c);
    assert_int_equal(heft_manifest_get_n_tensors(m), 2);
    assert_int_equal(heft_manifest_get_n_bytes(m), 13);
    assert_string_equal(heft_manifest_get_side(m), "source");
    const uint8_t *a = heft_checkpoint_get_data(c, index_of(c, "a"));
    const uint8_t *z = heft_checkpoint_get_data(c, index_of(c, "z"));
    assert_int_equal(a[0], 13);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(z[i], i + 1);
    }
    assert_null(heft_checkpoint_get_data(c, 2));
    heft_checkpoint_close(c);
}

static void empty_tensors_are_kept(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors",
                      "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,4],\"data_offsets\":[0,16]},"
                      "\"b\":{\"dtype\":\"BF16\",\"shape\":[0,4],\"data_offsets\":[16,16]},"
                      "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,4],\"data_offsets\":[16,24]},"
                      "\"d\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[24,24]}}",
                      24);
    heft_checkpoint_t *c = open_ok(f);
    const heft_manifest_t *m = heft_checkpoint_get_manifest(c);
    assert_int_equal(heft_manifest_get_n_tensors(m), 4);
    int64_t n_elems = 0;
    for (uint32_t i = 0; i < 4; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(m, i, &info, &err), HEFT_OK);
        n_elems += info.n_elems;
        assert_non_null(heft_checkpoint_get_data(c, i));
    }
    assert_int_equal(n_elems, 12);
    heft_checkpoint_close(c);
}

static void file_without_tensors_is_read(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors", "{}", 0);
    heft_checkpoint_t *c = open_ok(f);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(c)), 0);
    heft_checkpoint_close(c);
}

static void narrow_dtypes_are_read_when_rows_are_bytes(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors",
                      "{\"f4\":{\"dtype\":\"F4\",\"shape\":[2,8],\"data_offsets\":[0,8]},"
                      "\"e8\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[8,11]},"
                      "\"f6\":{\"dtype\":\"F6_E2M3\",\"shape\":[2,4],\"data_offsets\":[11,17]}}",
                      17);
    heft_checkpoint_t *c = open_ok(f);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    EXPECT_STATUS(
        heft_manifest_query(heft_checkpoint_get_manifest(c), index_of(c, "f4"), &info, &err),
        HEFT_OK);
    assert_int_equal(info.n_elems, 16);
    assert_int_equal(info.n_bytes, 8);
    assert_int_equal(info.shape.extent[1], 8);
    heft_checkpoint_close(c);
}

static void headers_of_any_length_are_read_in_full(void **state)
{
    fixture_t *f = *state;
    static const size_t lengths[] = { 99992, 99993, 99994, 100000, 100001, 4000003 };
    static const char start[] = "{\"__metadata__\":{\"k\":\"";
    static const char end[] =
        "\"},\"last\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char *header = malloc(lengths[i] + 1);
        assert_non_null(header);
        memset(header, 'x', lengths[i]);
        memcpy(header, start, sizeof start - 1);
        memcpy(header + lengths[i] - (sizeof end - 1), end, sizeof end);
        write_safetensors(f->dir, "model.safetensors", header, 8);
        free(header);
        heft_checkpoint_t *c = open_ok(f);
        const uint8_t *data = heft_checkpoint_get_data(c, index_of(c, "last"));
        assert_int_equal(data[0], 1);
        assert_int_equal(data[7], 8);
        heft_checkpoint_close(c);
    }
}

#define ONE(fields) "{\"w\":{" fields "}}"
#define F32(shape, offsets) "\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets

typedef struct fault_case {
    const char *header;
    size_t data_bytes;
    heft_status_t status;
    const char *parts[3];
} fault_case_t;

static const fault_case_t faults[] = {
    /* data ranges */
    { ONE(F32("[16]", "[0,64]")), 40, HEFT_ERR_FORMAT, { "truncated", "64 data bytes", "40 are" } },
    { ONE(F32("[2]", "[0,8]")),
      9,
      HEFT_ERR_FORMAT,
      { "1 bytes after the last tensor", "at byte 70" } },
    { "{\"a\":{" F32("[2]", "[0,8]") "},\"b\":{" F32("[2]", "[4,12]") "}}",
      12,
      HEFT_ERR_FORMAT,
      { "overlap at byte 120", "\"b\" begins at 4", "\"a\" before it ends at 8" } },
    { "{\"a\":{" F32("[2]", "[0,8]") "},\"b\":{" F32("[2]", "[16,24]") "}}",
      24,
      HEFT_ERR_FORMAT,
      { "gap at byte", "\"b\" begins at 16", "\"a\" before it ends at 8" } },
    { ONE(F32("[2]", "[8,16]")), 16, HEFT_ERR_FORMAT, { "gap at byte 63", "\"w\" begins at 8" } },
    { ONE(F32("[2]", "[8,0]")),
      8,
      HEFT_ERR_FORMAT,
      { "\"w\" at byte 9", "reversed range", "at 8" } },
    { ONE(F32("[3]", "[0,8]")), 8, HEFT_ERR_FORMAT, { "\"w\" at byte 9", "need 12", "hold 8" } },
    { ONE(F32("[2]", "[0]")), 8, HEFT_ERR_FORMAT, { "data_offsets", "two integers" } },
    { ONE(F32("[2]", "[0,8,9]")), 8, HEFT_ERR_FORMAT, { "data_offsets", "two integers" } },
    { ONE(F32("[2]", "[-8,0]")), 8, HEFT_ERR_FORMAT, { "data_offsets", "negative" } },
    { ONE(F32("[2]", "[0,8.0]")), 8, HEFT_ERR_FORMAT, { "data_offsets", "two integers" } },
    { ONE(F32("[2]", "[0,9223372036854775808]")), 8, HEFT_ERR_FORMAT, { "too big" } },
    /* shapes */
    { ONE(F32("[1099511627776,1099511627776]", "[0,8]")), 8, HEFT_ERR_FORMAT, { "overflow" } },
    { ONE(F32("[2147483648,2147483648]", "[0,8]")), 8, HEFT_ERR_FORMAT, { "overflow" } },
    { ONE(F32("[-2]", "[0,8]")), 8, HEFT_ERR_FORMAT, { "extent -2 in dimension 0" } },
    { ONE(F32("[2.0]", "[0,8]")), 8, HEFT_ERR_FORMAT, { "array of integers" } },
    { ONE(F32("2", "[0,8]")), 8, HEFT_ERR_FORMAT, { "array of integers" } },
    { ONE(F32("[1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]")),
      8,
      HEFT_ERR_LIMIT,
      { "\"w\"", "13 dimensions" } },
    /* dtypes */
    { ONE("\"dtype\":\"F9\",\"shape\":[2],\"data_offsets\":[0,8]"),
      8,
      HEFT_ERR_FORMAT,
      { "\"w\" at byte 9", "unknown dtype \"F9\"" } },
    { ONE("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"),
      8,
      HEFT_ERR_FORMAT,
      { "unknown dtype \"f32\"" } },
    { ONE("\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]"), 8, HEFT_ERR_FORMAT, { "a string" } },
    { ONE("\"dtype\":\"F4\",\"shape\":[2,7],\"data_offsets\":[0,7]"),
      7,
      HEFT_ERR_FORMAT,
      { "28 bits", "no whole number of bytes" } },
    { ONE("\"dtype\":\"F4\",\"shape\":[1,7],\"data_offsets\":[0,4]"),
      4,
      HEFT_ERR_FORMAT,
      { "28 bits", "no whole number of bytes" } },
    /* keys */
    { "{\"a\":{" F32("[2]", "[0,8]") "},\"a\":{" F32("[2]", "[8,16]") "}}",
      16,
      HEFT_ERR_FORMAT,
      { "duplicate key \"a\"", "second occurrence at byte 62" } },
    { ONE(F32("[2]", "[0,8]") ",\"dtype\":\"F32\""),
      8,
      HEFT_ERR_FORMAT,
      { "duplicate key \"dtype\"", "second occurrence at byte" } },
    { "{\"a\\\"\":{" F32("[2]", "[0,8]") "},\"a\\\"\":3}",
      8,
      HEFT_ERR_FORMAT,
      { "duplicate key \"a\\\"\"", "second occurrence at byte 64" } },
    { ONE("\"dtype\":\"F32\",\"shape\":[2]"), 8, HEFT_ERR_FORMAT, { "no \"data_offsets\"" } },
    { ONE("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, HEFT_ERR_FORMAT, { "no \"shape\"" } },
    { ONE("\"shape\":[2],\"data_offsets\":[0,8]"), 8, HEFT_ERR_FORMAT, { "no \"dtype\"" } },
    { ONE(F32("[2]", "[0,8]") ",\"strides\":[1]"),
      8,
      HEFT_ERR_FORMAT,
      { "\"w\" at byte 9", "unknown key \"strides\"" } },
    { "{\"w\":7}", 0, HEFT_ERR_FORMAT, { "\"w\" at byte 9", "must be an object" } },
    { "{\"\":{" F32("[2]", "[0,8]") "}}", 8, HEFT_ERR_FORMAT, { "at byte 9", "empty" } },
    { "{\"a\\n\":{" F32("[2]", "[0,8]") "}}", 8, HEFT_ERR_FORMAT, { "control characters" } },
    { "{\"__metadata__\":{\"a\":1}}", 0, HEFT_ERR_FORMAT, { "__metadata__", "\"a\"", "string" } },
    { "{\"__metadata__\":[]}", 0, HEFT_ERR_FORMAT, { "__metadata__", "object" } },
    /* a tensor after others is named with its own place */
    { "{\"__metadata__\":{\"x\":\"{\\\"},\"},\"a\":{" F32(
          "[2]", "[0,8]") "},\"b\":{\"dtype\":\"F9\",\"shape\":[],\"data_offsets\":[8,9]}}",
      9,
      HEFT_ERR_FORMAT,
      { "\"b\" at byte 91", "\"F9\"" } },
    /* no JSON object */
    { "{\"w\":", 0, HEFT_ERR_FORMAT, { "no valid JSON at byte 13" } },
    { "[]", 0, HEFT_ERR_FORMAT, { "no '{' at byte 8" } },
    { " {}", 0, HEFT_ERR_FORMAT, { "no '{' at byte 8" } },
    { "{} {}", 0, HEFT_ERR_FORMAT, { "no valid JSON" } },
    { "", 0, HEFT_ERR_FORMAT, { "no '{' at byte 8" } },
};

static void each_fault_has_its_own_message(void **state)
{
    fixture_t *f = *state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_checkpoint_t *c = NULL;
        write_safetensors(f->dir, "model.safetensors", faults[i].header, faults[i].data_bytes);
        EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), faults[i].status);
        EXPECT_MESSAGE("model.safetensors");
        for (size_t k = 0; k < 3 && faults[i].parts[k] != NULL; k++) {
            EXPECT_MESSAGE(faults[i].parts[k]);
        }
        assert_null(c);
    }
}

static void bad_lengths_are_refused(void **state)
{
    fixture_t *f = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    uint8_t bytes[16] = { 0 };
    heft_test_write_file(f->dir, "model.safetensors", bytes, 0);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("truncated: 0 bytes");
    heft_test_write_file(f->dir, "model.safetensors", bytes, 7);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("truncated: 7 bytes");
    heft__put_le64(bytes, 9);
    heft_test_write_file(f->dir, "model.safetensors", bytes, 16);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("header of 9 bytes at byte 8, 8 are there");
    heft__put_le64(bytes, 100000001);
    heft_test_write_file(f->dir, "model.safetensors", bytes, 16);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("header too long: 100000001 bytes");
    heft__put_le64(bytes, UINT64_MAX);
    heft_test_write_file(f->dir, "model.safetensors", bytes, 16);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("header too long");
    assert_null(c);
}

static void missing_file_and_bad_side_are_named(void **state)
{
    fixture_t *f = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    EXPECT_STATUS(heft_checkpoint_open(f->path, "source", &c, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("model.safetensors");
    assert_int_not_equal(err.sys_errno, 0);
    write_safetensors(f->dir, "model.safetensors", "{}", 0);
    EXPECT_STATUS(heft_checkpoint_open(f->path, "trainer", &c, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_checkpoint_open("/dev/null", "source", &c, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("not a regular file");
    assert_null(c);
}

static void released_pages_come_back(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors",
                      "{\"w\":{\"dtype\":\"U8\",\"shape\":[100000],\"data_offsets\":[0,100000]},"
                      "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[100000,100000]}}",
                      100000);
    heft_checkpoint_t *c = open_ok(f);
    uint32_t w = index_of(c, "w");
    const uint8_t *data = heft_checkpoint_get_data(c, w);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 100000; i++) {
            assert_int_equal(data[i], i % 251 + 1);
        }
        heft_checkpoint_release(c, w);
    }
    heft_checkpoint_release(c, index_of(c, "e"));
    heft_checkpoint_release(c, 99);
    heft_checkpoint_close(c);
}

static void many_tensors_open_fast(void **state)
{
    enum { N = 70000 };
    fixture_t *f = *state;
    heft__text_t header;
    heft__text_init(&header);
    heft__text_put(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < N; i++) {
        heft__text_printf(
            &header,
            ",\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"BF16\","
            "\"shape\":[1,2],\"data_offsets\":[%d,%d]}",
            i / 256, i % 256, i * 4, i * 4 + 4);
    }
    heft__text_put(&header, "}");
    write_safetensors(f->dir, "model.safetensors", header.data, (size_t)N * 4);
    heft__text_fini(&header);
    int64_t start = heft__clock_mono_ns();
    heft_checkpoint_t *c = open_ok(f);
    int64_t elapsed_ns = heft__clock_mono_ns() - start;
    (void)fprintf(stderr, "%d tensors opened in %.3f s\n", (int)N, (double)elapsed_ns / 1e9);
    assert_int_equal(heft_manifest_get_n_tensors(heft_checkpoint_get_manifest(c)), N);
    uint32_t i = index_of(c, "model.layers.273.mlp.experts.100.down_proj.weight");
    const uint8_t *data = heft_checkpoint_get_data(c, i);
    assert_int_equal(data[0], (size_t)(273 * 256 + 100) * 4 % 251 + 1);
    heft_checkpoint_close(c);
}

static void opening_survives_every_failing_allocation(void **state)
{
    fixture_t *f = *state;
    write_safetensors(f->dir, "model.safetensors",
                      "{\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                      "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}",
                      13);
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_checkpoint_t *c = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_checkpoint_open(f->path, "source", &c, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_checkpoint_close(c);
            assert_true(k > 5);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(c);
        assert_int_equal(heft__alloc_live(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tensors_are_found_with_their_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_tensors_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(file_without_tensors_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(narrow_dtypes_are_read_when_rows_are_bytes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(headers_of_any_length_are_read_in_full, setup, teardown),
        cmocka_unit_test_setup_teardown(each_fault_has_its_own_message, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_lengths_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_file_and_bad_side_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(released_pages_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(many_tensors_open_fast, setup, teardown),
        cmocka_unit_test_setup_teardown(opening_survives_every_failing_allocation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
