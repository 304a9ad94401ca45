/* SPDX-License-Identifier: Apache-2.0 */
/* Routes of a plan as routes of a price: what a receiver of a rank gets from each sender. */
#include "plan/price.h"

#include "heft/routes.h"

/* Bytes that one of several senders of a parameter writes there. */
static int64_t packed_bytes(const heft_routes_t *routes, uint32_t sender, uint32_t rank_index)
{
    uint32_t n = 0;
    int64_t n_bytes = 0;
    const uint32_t *params = heft_routes_get_params(routes, sender, rank_index, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_senders = 0;
        (void)heft_routes_get_param_senders(routes, rank_index, params[i], &n_senders);
        if (n_senders > 1) {
            heft_route_info_t info;
            heft_routes_query_param(routes, sender, rank_index, params[i], &info);
            n_bytes += info.n_bytes;
        }
    }
    return n_bytes;
}

heft_status_t heft_price_add_routes(heft_price_t *price, const heft_routes_t *routes,
                                    uint32_t rank_index, uint32_t receiver, heft_error_t *err)
{
    if (price == NULL || routes == NULL || rank_index >= heft_routes_get_n_ranks(routes)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "price: no price, routes, or rank %u",
                               rank_index);
    }
    uint32_t n = 0;
    const uint32_t *senders = heft_routes_get_senders(routes, rank_index, &n);
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        heft_route_info_t info;
        heft_routes_query(routes, senders[i], rank_index, &info);
        const heft_price_route_t route = {
            .sender = senders[i],
            .receiver = receiver,
            .n_bytes = info.n_bytes + info.n_load_bytes,
            .n_packed_bytes = packed_bytes(routes, senders[i], rank_index),
            .n_runs = info.n_runs,
        };
        status = heft_price_add(price, &route, err);
    }
    return status;
}
