/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest from untrusted JSON: an accepted one is written and read again unchanged. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heft/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    heft_status_t status = heft_manifest_decode((const char *)data, size, &manifest, &err);
    if (status != HEFT_OK) {
        check(manifest == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    char *text = NULL;
    heft_manifest_t *again = NULL;
    check(heft_manifest_encode(manifest, &text, &err) == HEFT_OK);
    check(heft_manifest_decode(text, strlen(text), &again, &err) == HEFT_OK);
    check(strcmp(heft_manifest_get_digest(manifest), heft_manifest_get_digest(again)) == 0);
    heft_string_free(text);
    heft_manifest_destroy(again);
    heft_manifest_destroy(manifest);
    return 0;
}
