/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are a tape; its fold must agree with the interpreter (tests/support/fold_case.h). */
#include "fold_case.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *wrong = fold_case_check(data, size, NULL);
    if (wrong != NULL) {
        (void)fprintf(stderr, "%s\n", wrong);
        abort();
    }
    return 0;
}
