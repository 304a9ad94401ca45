/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator's order, register reply and round result, as a member or a caller reads them. */
#include "wire_roundtrip.h"

WIRE_ROUNDTRIP(order, heft__order_t, heft__order_decode, heft__order_encode, heft__order_fini)
WIRE_ROUNDTRIP(registered, heft__registered_t, heft__registered_decode, heft__registered_encode,
               WIRE_NOTHING)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft__outcome_t outcome;
    (void)order((const char *)data, size);
    (void)registered((const char *)data, size);
    if (heft__outcome_decode((const char *)data, size, &outcome, NULL) == HEFT_OK) {
        check(outcome.round.epoch > 0 && outcome.state[0] != '\0');
    }
    return 0;
}
