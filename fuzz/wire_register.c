/* SPDX-License-Identifier: Apache-2.0 */
/* Register and bind from untrusted bytes. */
#include "wire_roundtrip.h"

WIRE_ROUNDTRIP(registration, heft__register_t, heft__register_decode, heft__register_encode,
               WIRE_NOTHING)
WIRE_ROUNDTRIP(binding, heft__bind_t, heft__bind_decode, heft__bind_encode, WIRE_NOTHING)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)registration((const char *)data, size);
    (void)binding((const char *)data, size);
    return 0;
}
