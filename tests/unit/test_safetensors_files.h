/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files for tests, from a header text and a number of data bytes. Data byte i is
 * i % 251 + 1, so that neighbouring tensors differ and no byte is zero. */
#ifndef HEFT_TEST_SAFETENSORS_FILES_H
#define HEFT_TEST_SAFETENSORS_FILES_H

#include "heft_test.h"

#include "heft/model.h"

static inline void write_safetensors(const char *dir, const char *name, const char *header,
                                     size_t data_bytes)
{
    size_t n = strlen(header);
    uint8_t *bytes = malloc(8 + n + data_bytes);
    assert_non_null(bytes);
    heft__put_le64(bytes, n);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + n + i] = (uint8_t)(i % 251 + 1);
    }
    heft_test_write_file(dir, name, bytes, 8 + n + data_bytes);
    free(bytes);
}

static inline void path_in(char out[512], const char *dir, const char *name)
{
    (void)snprintf(out, 512, "%s/%s", dir, name);
}

static inline uint32_t index_of(const heft_checkpoint_t *checkpoint, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t index = UINT32_MAX;
    EXPECT_STATUS(heft_manifest_find(heft_checkpoint_get_manifest(checkpoint), name, &index, &err),
                  HEFT_OK);
    return index;
}

#endif
