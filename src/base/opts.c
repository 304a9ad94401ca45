/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs: the one place that knows the rules of their size, unknown tail and reserved
 * bytes. */
#include "base/base.h"

#include <string.h>

/* No options struct comes near: a larger size is memory that was never initialised. */
#define MAX_OPTS_BYTES 4096

heft_status_t heft__opts_load(const void *opts, void *out, size_t known, const char *what,
                              heft_error_t *err)
{
    if (opts == NULL) {
        return HEFT_OK;
    }
    size_t size;
    memcpy(&size, opts, sizeof size);
    if (size < sizeof size || size > MAX_OPTS_BYTES) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: size is %zu, use the INIT macro", what,
                               size);
    }
    const uint8_t *bytes = opts;
    for (size_t i = known; i < size; i++) {
        if (bytes[i] != 0) {
            return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                   "%s: byte %zu is set, this library knows %zu bytes", what, i,
                                   known);
        }
    }
    memcpy(out, opts, size < known ? size : known);
    memcpy(out, &known, sizeof known);
    return HEFT_OK;
}

heft_status_t heft__opts_check_reserved(const void *reserved, size_t n, const char *what,
                                        heft_error_t *err)
{
    const uint8_t *bytes = reserved;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: reserved[%zu] is %d, not 0", what,
                                   i, (int)bytes[i]);
        }
    }
    return HEFT_OK;
}
