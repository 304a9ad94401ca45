/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a destination is made of, without anybody else: its mapping, live memory and plan. Made when
 * it is created, and again beside the old ones when its engine has another layout.
 */
#include "sync/subscriber_private.h"

#include <string.h>

heft_status_t heft__destination_from_contract(const heft_contract_t *contract,
                                              const heft_manifest_t *manifest,
                                              const heft_param_t *params, uint32_t rank,
                                              heft__destination_t *out, heft_error_t *err)
{
    if (contract == NULL || params == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "subscriber: contract and params are required");
    }
    *out = (heft__destination_t){ .contract = contract, .manifest = manifest, .params = params };
    if (manifest == NULL) {
        out->manifest =
            heft_contract_get_destination(contract, rank - heft_contract_get_first_rank(contract));
    }
    return out->manifest != NULL
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_ARGUMENT,
                                 "subscriber: the contract has no manifest of rank %u, and none is "
                                 "given",
                                 rank);
}

/* ---- alone ---- */

static heft_status_t init_mapping(heft_subscriber_t *sub, heft_error_t *err)
{
    const heft__destination_t *d = &sub->destination;
    heft_status_t status =
        d->contract != NULL ? heft__mapping_from_contract(d->contract, &sub->mapping, err)
                            : heft__mapping_from_recipe(d->recipe, d->bindings, &sub->mapping, err);
    const heft__mapping_t *m = &sub->mapping;
    if (status == HEFT_OK &&
        (sub->rank < m->first_rank || sub->rank - m->first_rank >= m->n_ranks)) {
        status =
            heft__error_set(err, HEFT_ERR_ARGUMENT, "subscriber: rank %u of a %s for %u ranks%s",
                            sub->rank, m->traced != NULL ? "contract" : "recipe", m->n_ranks,
                            m->first_rank > 0 ? ", which begin later" : "");
    }
    return status;
}

static heft_status_t alloc_arrays(heft_subscriber_t *sub, heft_error_t *err)
{
    const size_t n = sub->n_params > 0 ? sub->n_params : 1;
    sub->measured = heft__calloc(n, sizeof *sub->measured);
    sub->digests = heft__calloc(n, sizeof *sub->digests);
    sub->cold = heft__calloc(n, sizeof *sub->cold);
    return sub->measured != NULL && sub->digests != NULL && sub->cold != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n * sizeof *sub->measured);
}

heft_status_t heft__subscriber_build_alone(heft_subscriber_t *sub, heft_error_t *err)
{
    heft_status_t status = init_mapping(sub, err);
    if (status == HEFT_OK) {
        status = alloc_arrays(sub, err);
    }
    if (status == HEFT_OK) {
        status = heft__subscriber_make_homes(sub, err);
    }
    if (status == HEFT_OK && sub->destination.contract != NULL) {
        return heft__subscriber_plan_contract(sub, err);
    }
    return status == HEFT_OK ? heft__staging_init_manifest(sub->manifest, &sub->work.layout, err)
                             : status;
}

void heft__subscriber_fini_alone(heft_subscriber_t *sub)
{
    heft__work_fini(&sub->work);
    heft__mapping_fini(&sub->mapping);
    for (uint32_t i = 0; sub->cold != NULL && i < sub->n_params; i++) {
        heft__free(sub->cold[i]);
    }
    heft__free(sub->cold);
    heft__free(sub->homes);
    heft__free(sub->measured);
    heft__free(sub->kept);
    heft__free(sub->digests);
}

/* ---- anew ---- */

#define SWAP(a, b, field)                               \
    do {                                                \
        const __typeof__((a)->field) kept = (a)->field; \
        (a)->field = (b)->field;                        \
        (b)->field = kept;                              \
    } while (0)

static void forget_version(heft_subscriber_t *sub)
{
    heft__report_t *report = heft__member_lock(sub->member);
    report->live_version = 0;
    report->live_digest[0] = '\0';
    report->serving = false;
    heft__member_unlock(sub->member, false);
}

/* Between rounds nobody but the caller's thread looks at anything but the digests. */
static void swap(heft_subscriber_t *sub, heft_subscriber_t *next)
{
    const bool keeps = next->kept != NULL;
    if (!keeps) {
        forget_version(sub);
    }
    (void)pthread_mutex_lock(&sub->lock);
    SWAP(sub, next, destination);
    SWAP(sub, next, mapping);
    SWAP(sub, next, manifest);
    SWAP(sub, next, n_params);
    SWAP(sub, next, homes);
    SWAP(sub, next, work);
    SWAP(sub, next, cold);
    SWAP(sub, next, measured);
    SWAP(sub, next, kept);
    SWAP(sub, next, digests);
    if (!keeps) {
        sub->version = 0;
        sub->is_serving = false;
    }
    (void)pthread_mutex_unlock(&sub->lock);
    sub->live_plan[0] = '\0'; /* no plan of this layout has written it */
}

static bool is_idle(const heft_subscriber_t *sub, heft__member_state_t *state_out)
{
    const heft__report_t *report = heft__member_lock(sub->member);
    const bool is_working = report->result == HEFT__RESULT_WORKING;
    *state_out = report->state;
    heft__member_unlock(sub->member, false);
    return *state_out == HEFT__STATE_IDLE && !is_working;
}

int heft_subscriber_is_in_round(const heft_subscriber_t *sub)
{
    heft__member_state_t state;
    return !is_idle(sub, &state);
}

static heft_status_t check_idle(const heft_subscriber_t *sub, heft_error_t *err)
{
    heft__member_state_t state;
    return is_idle(sub, &state)
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_BUSY, "%s is in a round: %s",
                                 heft__member_get_id(sub->member), heft__state_text(state));
}

/* Manifest, contract, endpoint and source of `next`, all at once. */
static heft_status_t bind_anew(heft_subscriber_t *sub, const heft_subscriber_t *next,
                               heft_error_t *err)
{
    char *manifest = NULL;
    char *contract = NULL;
    char *mapping = NULL;
    heft__sources_t sources = { .n = 0 };
    heft__text_t endpoint;
    heft__text_init(&endpoint);
    heft__window_encode(sub->window, &endpoint);
    heft_status_t status = heft_manifest_encode(next->manifest, &manifest, err);
    if (status == HEFT_OK) {
        status = heft__mapping_encode(&next->mapping, next->rank, &contract, &mapping, err);
    }
    if (status == HEFT_OK && next->destination.contract != NULL &&
        heft__subscriber_can_feed(next)) {
        status = heft__sources_init_one(heft_contract_get_manifest(next->destination.contract),
                                        &sources, err);
    }
    if (status == HEFT_OK && endpoint.failed) {
        status = heft__error_nomem(err, endpoint.len);
    }
    if (status == HEFT_OK) {
        const char *const texts[HEFT__N_MEMBER_OBJECTS] = {
            [HEFT__OBJECT_MANIFEST] = manifest,      [HEFT__OBJECT_CONTRACT] = contract,
            [HEFT__OBJECT_ENDPOINT] = endpoint.data, [HEFT__OBJECT_SOURCES] = sources.text,
            [HEFT__OBJECT_MAPPING] = mapping,
        };
        status = heft__member_set_objects(sub->member, texts, (const char *const *)sources.texts,
                                          sources.n, err);
    }
    heft__text_fini(&endpoint);
    heft__free(contract);
    heft__free(mapping);
    heft__sources_fini(&sources);
    heft_string_free(manifest);
    return status;
}

/* The window first, because it can fail; then nothing is left that could. */
static heft_status_t take_place(heft_subscriber_t *sub, heft_subscriber_t *next, heft_error_t *err)
{
    bool has_moved = false;
    heft_status_t status =
        heft__subscriber_provide_staging(sub, &next->work.layout, &has_moved, err);
    if (status == HEFT_OK) {
        status = bind_anew(sub, next, err);
    }
    if (status == HEFT_OK) {
        swap(sub, next);
        return heft__member_await_bound(sub->member, err);
    }
    heft_error_t late = HEFT_ERROR_INIT;
    if (has_moved && sub->window != NULL &&
        (heft__subscriber_export(sub, &late) != HEFT_OK ||
         heft__member_await_bound(sub->member, &late) != HEFT_OK)) {
        heft__log(HEFT_LOG_WARN, "subscriber", "%s: %s", heft__member_get_id(sub->member),
                  late.message);
    }
    return status;
}

/* What is in memory now is the live version. */
static heft_status_t measure(const heft_subscriber_t *sub, heft_subscriber_t *next,
                             heft_error_t *err)
{
    if (heft_subscriber_get_version(sub) == 0 || !heft_subscriber_is_serving(sub)) {
        return heft__error_set(err, HEFT_ERR_STATE,
                               "%s serves no version that it could keep in another layout",
                               heft__member_get_id(sub->member));
    }
    next->kept = heft__calloc((size_t)next->n_params + 1, sizeof *next->kept);
    if (next->kept == NULL) {
        return heft__error_nomem(err, next->n_params * sizeof *next->kept);
    }
    memset(next->kept, true, next->n_params * sizeof *next->kept);
    heft__digest_homes(next->homes, next->kept, next->work.masks, next->n_params, next->n_threads,
                       next->digests);
    return HEFT_OK;
}

static heft_status_t renew(heft_subscriber_t *sub, const heft__destination_t *destination,
                           bool keeps_version, heft_error_t *err)
{
    heft_subscriber_t *next = heft__calloc(1, sizeof *next);
    if (next == NULL) {
        return heft__error_nomem(err, sizeof *next);
    }
    next->hooks = sub->hooks;
    next->rank = sub->rank;
    next->n_threads = sub->n_threads;
    next->in_place = sub->in_place;
    next->buffer_bytes = sub->buffer_bytes;
    next->destination = *destination;
    next->manifest = destination->manifest;
    next->n_params = heft_manifest_get_n_tensors(destination->manifest);
    heft_status_t status = heft__subscriber_build_alone(next, err);
    bool shares = status == HEFT_OK && destination->contract == NULL && sub->work.plan != NULL;
    if (shares) { /* what does not fit is refused here, and not by the next round */
        status = heft__subscriber_plan_again(next, &sub->work.sources, err);
        shares = status == HEFT_OK;
    }
    if (status == HEFT_OK && keeps_version) {
        status = measure(sub, next, err);
    }
    if (status == HEFT_OK) {
        status = take_place(sub, next, err);
    }
    if (shares) { /* of the new and the old one, only sub's is finished with them */
        heft__subscriber_lend_sources(&next->work);
    }
    heft__subscriber_fini_alone(next); /* what the other one was made of, or what failed */
    heft__free(next);
    return status;
}

heft_status_t heft_subscriber_renew(heft_subscriber_t *sub, const heft_contract_t *contract,
                                    const heft_manifest_t *manifest, const heft_param_t *params,
                                    heft_error_t *err)
{
    heft__destination_t destination;
    heft_status_t status = check_idle(sub, err);
    if (status == HEFT_OK) {
        status = heft__destination_from_contract(contract, manifest, params, sub->rank,
                                                 &destination, err);
    }
    return status == HEFT_OK ? renew(sub, &destination, false, err) : status;
}

static heft_status_t destination_of(const heft_renewal_t *r, uint32_t rank,
                                    heft__destination_t *out, heft_error_t *err)
{
    if (r->contract != NULL && r->recipe == NULL && r->bindings == NULL) {
        return heft__destination_from_contract(r->contract, r->manifest, r->params, rank, out, err);
    }
    if (r->contract != NULL || r->recipe == NULL || r->bindings == NULL || r->manifest == NULL ||
        r->params == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "renewal: a contract and params are required, or recipe, bindings, "
                               "manifest and params");
    }
    *out = (heft__destination_t){
        .recipe = r->recipe, .bindings = r->bindings, .manifest = r->manifest, .params = r->params
    };
    return HEFT_OK;
}

heft_status_t heft_subscriber_renew_as(heft_subscriber_t *sub, const heft_renewal_t *renewal,
                                       heft_error_t *err)
{
    heft_renewal_t loaded = HEFT_RENEWAL_INIT;
    heft__destination_t destination;
    heft_status_t status = heft__opts_load(renewal, &loaded, sizeof loaded, "renewal", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved, "renewal", err);
    }
    if (status == HEFT_OK) {
        status = check_idle(sub, err);
    }
    if (status == HEFT_OK) {
        status = destination_of(&loaded, sub->rank, &destination, err);
    }
    return status == HEFT_OK ? renew(sub, &destination, loaded.keeps_version != 0, err) : status;
}
