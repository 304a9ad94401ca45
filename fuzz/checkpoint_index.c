/* SPDX-License-Identifier: Apache-2.0 */
/* A shard index from untrusted bytes: an accepted one never names a file outside its folder. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft__st_index_t index;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = heft__st_index_decode("input", (const char *)data, size, &index, &err);
    if (status != HEFT_OK) {
        check(err.status == status && err.message[0] != '\0');
        return 0;
    }
    for (size_t i = 0; i < index.n_files; i++) {
        check(index.files[i][0] != '\0' && index.files[i][0] != '.');
        check(strchr(index.files[i], '/') == NULL);
    }
    for (size_t i = 0; i < index.n_entries; i++) {
        const char *name = index.entries[i].name;
        check(index.entries[i].file < index.n_files);
        check(heft__map_get(&index.names, name, strlen(name)) == i);
    }
    heft__st_index_fini(&index);
    return 0;
}
