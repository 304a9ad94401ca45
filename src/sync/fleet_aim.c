/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets: one run for each family that writes what this source has for it straight into the
 * staging of all its destinations, and one more for the inputs of each rank's loader. A receiver
 * that cannot be addressed gets its bytes from a buffer of its rank, shared by all such receivers,
 * or, where they lie in the source's tensors as they are sent, from there.
 */
#include "sync/fleet.h"

#include "exec/exec.h"

enum { BOUNCE_ALIGN = 64 };

/* ---- targets ---- */

void heft__family_clear_targets(heft__family_t *family)
{
    heft_exec_destroy(family->exec);
    family->exec = NULL;
    for (uint32_t r = 0; family->input_execs != NULL && r < family->n_ranks; r++) {
        heft_exec_destroy(family->input_execs[r]);
        family->input_execs[r] = NULL;
    }
    for (uint32_t i = 0; family->target_params != NULL && i < family->n_targets; i++) {
        heft__free(family->target_params[i]);
    }
    heft__free(family->target_params);
    heft__free(family->targets);
    heft__free(family->input_targets);
    family->target_params = NULL;
    family->targets = NULL;
    family->input_targets = NULL;
    family->n_targets = 0;
}

static uint8_t *align_bounce(uint8_t *block)
{
    return block + (BOUNCE_ALIGN - (uintptr_t)block % BOUNCE_ALIGN) % BOUNCE_ALIGN;
}

uint8_t *heft__fleet_get_bounce(const heft__family_t *family, uint32_t rank)
{
    return align_bounce(family->bounces[rank]);
}

heft_status_t heft__fleet_get_packing(heft__fleet_t *fleet, const heft__link_t *link,
                                      const heft__packing_t **packing_out, heft_error_t *err)
{
    heft__family_t *family = &fleet->families[link->family];
    heft__packing_t *packing = &family->packings[link->rank];
    heft_status_t status = HEFT_OK;
    if (packing->routes == NULL) {
        status =
            heft__packing_init(&family->deliveries[link->rank], 0,
                               family->layouts[link->rank].n_entries, fleet->number, packing, err);
    }
    if (status == HEFT_OK) {
        *packing_out = packing;
    }
    return status;
}

/* A target at base; digests only once for each rank: replicas get the same bytes. */
static heft_status_t add_target(heft__family_t *family, uint32_t rank, uint8_t *base,
                                bool with_digests, heft_error_t *err)
{
    const heft__staging_t *layout = &family->layouts[rank];
    const uint32_t n_params = layout->n_params;
    uint64_t *digests = family->digests[rank];
    void **params = heft__calloc((size_t)layout->n_entries + 1, sizeof *params);
    if (params == NULL) {
        return heft__error_nomem(err, layout->n_entries * sizeof *params);
    }
    for (uint32_t i = 0; i < layout->n_entries; i++) {
        params[i] = base + layout->offsets[i];
    }
    family->target_params[family->n_targets] = params;
    family->targets[family->n_targets] = (heft_exec_target_t){
        .rank_index = rank, .params = params, .digests_out = with_digests ? digests : NULL
    };
    family->input_targets[family->n_targets] =
        (heft_exec_target_t){ .params = params + n_params,
                              .digests_out = with_digests ? digests + n_params : NULL };
    family->n_targets++;
    return HEFT_OK;
}

static heft_status_t add_bounce(heft__family_t *family, uint32_t rank, bool with_digests,
                                heft_error_t *err)
{
    if (family->bounces[rank] == NULL) {
        size_t bytes = (size_t)family->layouts[rank].bytes;
        if (!heft__size_add(bytes, BOUNCE_ALIGN, &bytes)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "buffer for rank %u", rank);
        }
        family->bounces[rank] = heft__malloc(bytes);
        if (family->bounces[rank] == NULL) {
            return heft__error_nomem(err, bytes);
        }
    }
    return add_target(family, rank, align_bounce(family->bounces[rank]), with_digests, err);
}

/* What of a rank's parameters needs no buffer, where all its receivers get chunks. */
static heft_status_t use_direct(const heft__fleet_t *fleet, heft__family_t *family, uint32_t rank,
                                heft_error_t *err)
{
    heft__direct_t *direct = &family->directs[rank];
    heft_status_t status = HEFT_OK;
    if (direct->first == NULL) {
        status =
            heft__direct_init(family->plan, &family->deliveries[rank], fleet->number, direct, err);
    }
    direct->is_used = status == HEFT_OK;
    return status;
}

/* heft__exec_leaves_t */
static bool is_direct(const void *arg, uint32_t rank, uint32_t param)
{
    const heft__family_t *family = arg;
    return heft__direct_has(&family->directs[rank], param);
}

static heft_status_t add_rank(heft__fleet_t *fleet, uint32_t f, uint32_t rank, heft_error_t *err)
{
    heft__family_t *family = &fleet->families[f];
    uint32_t before = family->n_targets;
    family->directs[rank].is_used = false;
    bool needs_bounce = false;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links && status == HEFT_OK; i++) {
        const heft__link_t *link = &fleet->links[i];
        if (!link->is_staged || link->family != f || link->rank != rank) {
            continue;
        }
        if (link->remote->ptr == NULL) {
            needs_bounce = true;
        } else {
            status = add_target(family, rank, link->remote->ptr, family->n_targets == before, err);
        }
    }
    if (status == HEFT_OK && needs_bounce && family->n_targets == before && !fleet->gathers_all) {
        status = use_direct(fleet, family, rank, err);
    }
    if (status == HEFT_OK && needs_bounce) {
        status = add_bounce(family, rank, family->n_targets == before, err);
    }
    return status;
}

static heft_status_t make_run(const heft__fleet_t *fleet, const heft_plan_t *plan,
                              const heft_routes_t *routes, const heft_exec_target_t *targets,
                              uint32_t n_targets, heft__exec_leaves_t leaves,
                              const heft__family_t *family, heft_exec_t **exec_out,
                              heft_error_t *err)
{
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.progress = fleet->progress;
    opts.progress_arg = fleet->progress_arg;
    opts.n_threads = fleet->n_threads;
    opts.routes = routes;
    opts.sender = fleet->number;
    return heft__exec_create_some(plan, targets, n_targets, &opts, leaves, family, exec_out, err);
}

/* What this source has of the inputs of a rank's loader, to all targets from `first` on. */
static heft_status_t prepare_inputs(heft__fleet_t *fleet, uint32_t f, uint32_t rank, uint32_t first,
                                    heft_error_t *err)
{
    heft__family_t *family = &fleet->families[f];
    const heft__inputs_t *inputs = &family->inputs[rank];
    heft_route_info_t route = { .n_bytes = 0 };
    if (inputs->n > 0) {
        heft_routes_query(inputs->routes, fleet->number, 0, &route);
    }
    return route.n_bytes == 0 || family->n_targets == first
               ? HEFT_OK
               : make_run(fleet, inputs->plan, inputs->routes, &family->input_targets[first],
                          family->n_targets - first, NULL, NULL, &family->input_execs[rank], err);
}

heft_status_t heft__family_prepare(heft__fleet_t *fleet, uint32_t f, heft_error_t *err)
{
    heft__family_t *family = &fleet->families[f];
    size_t n_max = (size_t)fleet->n_links + family->n_ranks;
    heft__family_clear_targets(family);
    family->targets = heft__calloc(n_max, sizeof *family->targets);
    family->input_targets = heft__calloc(n_max, sizeof *family->input_targets);
    family->target_params = heft__calloc(n_max, sizeof *family->target_params);
    if (family->targets == NULL || family->target_params == NULL || family->input_targets == NULL) {
        return heft__error_nomem(err, n_max * sizeof *family->targets);
    }
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        const uint32_t first = family->n_targets;
        heft_status_t status = add_rank(fleet, f, r, err);
        if (status == HEFT_OK) {
            status = prepare_inputs(fleet, f, r, first, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    return family->n_targets == 0 /* nobody of this family is served by this source */
               ? HEFT_OK
               : make_run(fleet, family->plan, family->routes, family->targets, family->n_targets,
                          is_direct, family, &family->exec, err);
}

/* ---- sources ---- */

static void bind_reads(heft__reads_t *reads, const void *const *data)
{
    for (uint32_t s = 0; s < reads->n; s++) {
        reads->data[s] = reads->own[s] != UINT32_MAX ? data[reads->own[s]] : NULL;
    }
}

void heft__fleet_bind(heft__fleet_t *fleet, const void *const *data)
{
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        heft__family_t *family = &fleet->families[f];
        bind_reads(&family->reads, data);
        for (uint32_t r = 0; r < family->n_ranks; r++) {
            bind_reads(&family->input_reads[r], data);
        }
    }
}
