/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of objects from untrusted bytes: contracts, sources, plans, parameter digests, live
 * digests. */
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
    heft__source_t *sources = NULL;
    if (heft__source_list_decode(text, size, &sources, &n, NULL) == HEFT_OK) {
        char *out = NULL;
        heft__source_t *again = NULL;
        uint32_t n_again = 0;
        check(heft__source_list_encode(sources, n, &out, NULL) == HEFT_OK);
        check(heft__source_list_decode(out, strlen(out), &again, &n_again, NULL) == HEFT_OK);
        check(n == n_again && memcmp(sources, again, n * sizeof *sources) == 0);
        heft__free(out);
        heft__free(again);
        heft__free(sources);
    }
    if (heft__digests_decode(text, size, PLAN, &set, NULL) == HEFT_OK) {
        heft__free(set.params);
    }
    return 0;
}
