/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints for the writer's tests: byte i of tensor k is a function of both, so that a byte in
 * the wrong place shows. */
#ifndef HEFT_TEST_CHECKPOINT_WRITER_FILES_H
#define HEFT_TEST_CHECKPOINT_WRITER_FILES_H

#include "heft_test.h"

#include <dirent.h>
#include <unistd.h>

#include "heft/model.h"

static inline uint8_t byte_of(uint32_t k, int64_t i)
{
    return (uint8_t)(k * 31u + (uint64_t)i * 7u + 1u);
}

static inline void add_tensor(heft_manifest_t *m, const char *name, heft_dtype_t dtype, int64_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = 1, .extent = { n } };
    EXPECT_STATUS(heft_manifest_add(m, name, dtype, &shape, &err), HEFT_OK);
}

/* Mixed dtypes, odd sizes, an empty tensor, a name that needs escapes. */
static inline heft_manifest_t *mixed_manifest(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    add_tensor(m, "a.u8", HEFT_DTYPE_U8, 13);
    add_tensor(m, "b.f64", HEFT_DTYPE_F64, 5);
    add_tensor(m, "c \"quoted\" \\ é", HEFT_DTYPE_BF16, 7);
    add_tensor(m, "d.f32", HEFT_DTYPE_F32, 9);
    add_tensor(m, "e.empty", HEFT_DTYPE_F32, 0);
    add_tensor(m, "f.f4", HEFT_DTYPE_F4, 6);
    add_tensor(m, "g.large", HEFT_DTYPE_BF16, 20000);
    heft_shape_t scalar = { .rank = 0 };
    EXPECT_STATUS(heft_manifest_add(m, "h.scalar", HEFT_DTYPE_I64, &scalar, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

static inline heft_status_t fill_tensor(heft_checkpoint_writer_t *w, const heft_manifest_t *m,
                                        uint32_t k, heft_error_t *err)
{
    heft_tensor_info_t info;
    void *data = NULL;
    heft_status_t status = heft_manifest_query(m, k, &info, err);
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_map(w, k, &data, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    uint8_t *bytes = data;
    for (int64_t i = 0; i < info.n_bytes; i++) {
        bytes[i] = byte_of(k, i);
    }
    return heft_checkpoint_writer_done(w, k, err);
}

/* Create, fill, commit, destroy. */
static inline heft_status_t write_checkpoint(const char *dir, const heft_manifest_t *m,
                                             int64_t max_shard_bytes, heft_error_t *err)
{
    heft_checkpoint_writer_t *w = NULL;
    heft_status_t status = heft_checkpoint_writer_create(dir, m, max_shard_bytes, &w, err);
    for (uint32_t k = 0; status == HEFT_OK && k < heft_manifest_get_n_tensors(m); k++) {
        status = fill_tensor(w, m, k, err);
    }
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_commit(w, err);
    }
    heft_checkpoint_writer_destroy(w);
    return status;
}

static inline void expect_checkpoint(const char *dir, const heft_manifest_t *m)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *c = NULL;
    EXPECT_STATUS(heft_checkpoint_open(dir, "destination", &c, &err), HEFT_OK);
    const heft_manifest_t *got = heft_checkpoint_get_manifest(c);
    assert_string_equal(heft_manifest_get_digest(got), heft_manifest_get_digest(m));
    for (uint32_t k = 0; k < heft_manifest_get_n_tensors(m); k++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(m, k, &info, &err), HEFT_OK);
        const uint8_t *bytes = heft_checkpoint_get_data(c, k);
        assert_int_equal((uintptr_t)bytes % heft_dtype_get_unit_bytes(info.dtype), 0);
        for (int64_t i = 0; i < info.n_bytes; i++) {
            assert_int_equal(bytes[i], byte_of(k, i));
        }
    }
    heft_checkpoint_close(c);
}

/* Entries of a folder besides "." and "..", of those that start with `prefix`. */
static inline int count_entries(const char *dir, const char *prefix)
{
    DIR *handle = opendir(dir);
    if (handle == NULL) {
        return -1;
    }
    int n = 0;
    const struct dirent *entry;
    while ((entry = readdir(handle)) != NULL) {
        bool is_self = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        n += !is_self && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 ? 1 : 0;
    }
    (void)closedir(handle);
    return n;
}

#endif
