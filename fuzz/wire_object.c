/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of objects from untrusted bytes: contracts, plans, parameter digests, live digests. */
#include "wire_roundtrip.h"

#define PLAN "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

WIRE_ROUNDTRIP(contract, heft__contract_t, heft__contract_decode, heft__contract_encode,
               heft__contract_fini)
WIRE_ROUNDTRIP(live, heft__live_t, heft__live_decode, heft__live_encode, heft__live_fini)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    heft__plan_entry_t *plans = NULL;
    uint32_t n = 0;
    heft__digest_set_t set;
    (void)contract(text, size);
    (void)live(text, size);
    if (heft__plans_decode(text, size, &plans, &n, NULL) == HEFT_OK) {
        char *out = NULL;
        check(heft__plans_encode(plans, n, &out, NULL) == HEFT_OK);
        heft__free(out);
        heft__free(plans);
    }
    if (heft__digests_decode(text, size, PLAN, &set, NULL) == HEFT_OK) {
        heft__free(set.params);
    }
    return 0;
}
