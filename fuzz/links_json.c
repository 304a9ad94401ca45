/* SPDX-License-Identifier: Apache-2.0 */
/* Links from untrusted JSON: what is taken is written and read again to the same text, and prices a
 * route to finite seconds, never below the bound. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heft/model.h"
#include "heft/price.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void check_again(const heft_links_t *links)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *again = NULL;
    char *text = NULL;
    char *second = NULL;
    check(heft_links_encode(links, &text, &err) == HEFT_OK);
    check(heft_links_decode(text, strlen(text), &again, &err) == HEFT_OK);
    check(heft_links_encode(again, &second, &err) == HEFT_OK);
    check(strcmp(text, second) == 0);
    heft_string_free(text);
    heft_string_free(second);
    heft_links_destroy(again);
}

static void check_price(const heft_links_t *links)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_price_opts_t opts = HEFT_PRICE_OPTS_INIT;
    heft_price_t *price = NULL;
    opts.n_senders = 3;
    opts.n_receivers = 4;
    opts.n_replicas = 2;
    check(heft_price_create(links, &opts, &price, &err) == HEFT_OK);
    for (uint32_t i = 0; i < 12; i++) {
        const heft_price_route_t route = { .sender = i % 3,
                                           .receiver = i % 4,
                                           .n_bytes = INT64_C(1) << (i * 4),
                                           .n_packed_bytes = i,
                                           .n_runs = i };
        const heft_status_t status = heft_price_add(price, &route, &err);
        check(status == HEFT_OK || status == HEFT_ERR_UNSUPPORTED || status == HEFT_ERR_ARGUMENT);
    }
    check(heft_price_finish(price, &err) == HEFT_OK);
    heft_price_info_t info;
    heft_price_query(price, &info);
    check(info.total_s >= info.bound_s && info.bound_s >= info.ideal_s * (1 - 1e-12));
    check(info.relayed_s <= info.bound_s && info.total_s < 1e30);
    heft_price_destroy(price);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *links = NULL;
    heft_status_t status = heft_links_decode((const char *)data, size, &links, &err);
    if (status != HEFT_OK) {
        check(links == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    check_again(links);
    check_price(links);
    heft_links_destroy(links);
    return 0;
}
