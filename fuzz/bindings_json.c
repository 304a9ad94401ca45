/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as bindings: what is read is written, read again, and written to the same text. */
#include <stdlib.h>
#include <string.h>

#include "heft/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bindings_t *bindings = NULL;
    heft_bindings_t *back = NULL;
    char *text = NULL;
    char *again = NULL;
    heft_status_t status = heft_bindings_decode((const char *)data, size, &bindings, &err);
    if (status != HEFT_OK) {
        if (bindings != NULL || err.message[0] == '\0') {
            abort();
        }
        return 0;
    }
    if (heft_bindings_encode(bindings, &text, &err) != HEFT_OK ||
        heft_bindings_decode(text, strlen(text), &back, &err) != HEFT_OK ||
        heft_bindings_encode(back, &again, &err) != HEFT_OK || strcmp(text, again) != 0) {
        abort();
    }
    heft_string_free(text);
    heft_string_free(again);
    heft_bindings_destroy(bindings);
    heft_bindings_destroy(back);
    return 0;
}
