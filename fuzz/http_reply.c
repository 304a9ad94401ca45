/* SPDX-License-Identifier: Apache-2.0 */
/* What a client makes of a reply that is no success: the first two bytes are the code, the rest is
 * the body. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sync/http_client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    const int code = 300 + (data[0] + 256 * data[1]) % 300;
    const heft_status_t status =
        heft__http_read_error((const char *)data + 2, size - 2, code, "http://x", &err);
    if (status >= HEFT_OK || err.status != status || err.message[0] == '\0' ||
        strchr(err.message, '\n') != NULL) {
        abort();
    }
    return 0;
}
