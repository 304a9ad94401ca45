/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors header from untrusted bytes. Input: mode, two bytes of data size (little-endian),
 * then the JSON text; in odd modes all of it after the first byte is a whole file. An accepted
 * header tiles its data exactly, a refused one has a message.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true)
{
    if (!is_true) {
        abort();
    }
}

static void decode(const uint8_t *bytes, size_t n_bytes)
{
    heft__st_header_t header;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = heft__st_header_decode("input", bytes, n_bytes, &header, &err);
    if (status != HEFT_OK) {
        check(err.status == status && err.message[0] != '\0');
        return;
    }
    int64_t end = 0;
    for (size_t i = 0; i < header.n_tensors; i++) {
        check(header.tensors[i].begin == end);
        check(header.tensors[i].n_bytes >= 0);
        end += header.tensors[i].n_bytes;
    }
    check(header.data_offset + end == (int64_t)n_bytes);
    heft__st_header_fini(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    if (data[0] & 1) {
        decode(data + 1, size - 1);
        return 0;
    }
    /* The data are claimed and not there: the header alone may be read. */
    size_t data_bytes = data[1] | (size_t)data[2] << 8;
    size_t n = size - 3;
    uint8_t *file = malloc(8 + n);
    check(file != NULL);
    heft__put_le64(file, n);
    memcpy(file + 8, data + 3, n);
    decode(file, 8 + n + data_bytes);
    free(file);
    return 0;
}
