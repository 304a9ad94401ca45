/* SPDX-License-Identifier: Apache-2.0 */
/* Begin, and the state file of a coordinator, from untrusted bytes. */
#include "wire_roundtrip.h"

#include "sync/record.h"

WIRE_ROUNDTRIP(begin, heft__begin_t, heft__begin_decode, heft__begin_encode, heft__begin_fini)
WIRE_ROUNDTRIP(record, heft__record_t, heft__record_decode, heft__record_encode, heft__record_fini)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)begin((const char *)data, size);
    (void)record((const char *)data, size);
    return 0;
}
