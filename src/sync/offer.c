/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `auto` brings ucx along only where it can be needed: a coordinator on loopback has members of
 * this host alone, and then no port is opened and OpenUCX is not loaded.
 */
#include "sync/offer.h"

#include <string.h>

#include "heft/sync.h"
#include "sync/http_client.h"

const char *heft_ucx_get_version(void)
{
    const char *version = heft__ucx_get_version();
    return !heft__ucx_is_built() ? NULL : version != NULL ? version : "";
}

static void add(heft__offer_t *offer, heft__transport_t *transport)
{
    offer->transports[offer->n] = transport;
    offer->names[offer->n++] = transport->ops->name;
    offer->window = transport;
}

void heft__offer_init_over(heft__transport_t *const *transports, uint32_t n,
                           heft__offer_t *offer_out)
{
    *offer_out = (heft__offer_t){ .n = 0 };
    for (uint32_t i = 0; i < n && i < HEFT__OFFER_MAX; i++) {
        add(offer_out, transports[i]);
    }
}

void heft__offer_fini(heft__offer_t *offer)
{
    heft__pair_destroy(offer->pair);
    heft__ucx_release(offer->ucx);
    *offer = (heft__offer_t){ .n = 0 };
}

static heft_status_t init_auto(const heft__offer_opts_t *opts, heft__offer_t *offer,
                               heft_error_t *err)
{
    heft_error_t why = HEFT_ERROR_INIT;
    add(offer, heft__transport_get_shm());
    if (heft__http_is_loopback(opts->url)) {
        heft__log(HEFT_LOG_INFO, "transport", "auto: shm, the coordinator is on this host");
        return HEFT_OK;
    }
    if (heft__ucx_acquire(&opts->ucx, &offer->ucx, &why) != HEFT_OK) {
        heft__log(HEFT_LOG_INFO, "transport", "auto: shm alone: %s", why.message);
        return HEFT_OK;
    }
    heft_status_t status = heft__pair_create(offer->ucx, &offer->pair, err);
    if (status == HEFT_OK) {
        add(offer, heft__ucx_get_transport(offer->ucx));
        offer->window = heft__pair_get_transport(offer->pair);
        heft__log(HEFT_LOG_INFO, "transport", "auto: shm on one host, else ucx");
    }
    return status;
}

heft_status_t heft__offer_init(const heft__offer_opts_t *opts, heft__offer_t *offer_out,
                               heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    *offer_out = (heft__offer_t){ .n = 0 };
    if (strcmp(opts->transport, "shm") == 0) {
        add(offer_out, heft__transport_get_shm());
    } else if (strcmp(opts->transport, "ucx") == 0) {
        status = heft__ucx_acquire(&opts->ucx, &offer_out->ucx, err);
        if (status == HEFT_OK) {
            add(offer_out, heft__ucx_get_transport(offer_out->ucx));
        }
    } else if (strcmp(opts->transport, "auto") == 0) {
        status = init_auto(opts, offer_out, err);
    } else {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT, "transport \"%.40s\": shm, ucx or auto",
                                 opts->transport);
    }
    if (status != HEFT_OK) {
        heft__offer_fini(offer_out);
    }
    return status;
}
