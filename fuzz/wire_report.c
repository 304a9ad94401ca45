/* SPDX-License-Identifier: Apache-2.0 */
/* A member's report from untrusted bytes. */
#include "wire_roundtrip.h"

WIRE_ROUNDTRIP(roundtrip, heft__report_t, heft__report_decode, heft__report_encode,
               heft__report_fini)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)roundtrip((const char *)data, size);
    return 0;
}
