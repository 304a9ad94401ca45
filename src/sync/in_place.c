/* SPDX-License-Identifier: Apache-2.0 */
/* Where the lists of digests lie that end a flip in place. */
#include "sync/in_place.h"

#include "kernel/kernel.h"

heft__digest_slots_t heft__digest_slots(const heft__delivery_t *d, int64_t buffer_bytes)
{
    const heft__staging_t *layout = d->layout;
    heft__digest_slots_t slots = { .list_bytes = heft__staging_part_bytes(layout, layout->n_params,
                                                                          layout->n_params) };
    (void)heft__delivery_get_senders(d, &slots.n_senders);
    const int64_t fit = slots.list_bytes > 0 ? buffer_bytes / slots.list_bytes : slots.n_senders;
    slots.per_part = (uint32_t)heft__max_i64(heft__min_i64(fit, slots.n_senders), 1);
    slots.n_parts = (slots.n_senders + slots.per_part - 1) / slots.per_part;
    return slots;
}

uint32_t heft__digest_slots_count(const heft__digest_slots_t *slots, uint32_t k)
{
    const uint32_t left = slots->n_senders - k * slots->per_part;
    return left < slots->per_part ? left : slots->per_part;
}

heft_status_t heft__digest_slots_expect(const heft__digest_slots_t *slots, uint32_t k,
                                        heft__route_t **routes_out, heft__expect_t *expect_out,
                                        heft_error_t *err)
{
    const uint32_t n = heft__digest_slots_count(slots, k);
    heft__route_t *routes = heft__calloc((size_t)n + 1, sizeof *routes);
    if (routes == NULL) {
        return heft__error_nomem(err, n * sizeof *routes);
    }
    for (uint32_t i = 0; i < n; i++) {
        routes[i] = (heft__route_t){ .offset = slots->list_bytes * i, .bytes = slots->list_bytes };
    }
    *routes_out = routes;
    *expect_out = (heft__expect_t){ .routes = routes,
                                    .n_routes = n,
                                    .n_senders = n,
                                    .chunk_bytes = HEFT__CHUNK_BYTES,
                                    .crc = heft__crc32c,
                                    .crc_copy = heft__crc32c_copy };
    return HEFT_OK;
}
