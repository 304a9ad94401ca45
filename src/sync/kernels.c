/* SPDX-License-Identifier: Apache-2.0 */
/* A run like any other, from one part of staging to another one. */
#include "sync/kernels.h"

#include "plan/plan.h"

static int64_t count_pieces(const heft_piece_t *pieces, uint64_t n)
{
    int64_t n_elems = 0;
    for (uint64_t i = 0; i < n; i++) {
        n_elems += heft__piece_count(&pieces[i]); /* no more than the parameter's */
    }
    return n_elems;
}

/* What nobody sends, the loader's aside, is what the kernels write: all of it, and no more. */
static heft_status_t check_cover(const heft__kernels_t *kernels, const heft_plan_t *plan,
                                 const heft_routes_t *routes, heft_error_t *err)
{
    uint64_t at = 0;
    for (uint32_t p = 0; p < heft_plan_get_n_params(plan, 0); p++) {
        uint64_t n = 0;
        int64_t n_left = 0;
        const heft_piece_t *pieces = heft_plan_get_param_pieces(plan, 0, p, &n);
        for (uint64_t i = 0; i < n; i++, at++) {
            if (heft_routes_get_piece_sender(routes, 0, at) == HEFT_SENDER_NONE &&
                !heft__piece_needs_loader(plan, 0, &pieces[i])) {
                n_left += heft__piece_count(&pieces[i]);
            }
        }
        int64_t n_run = 0;
        if (kernels->plan != NULL) {
            pieces = heft_plan_get_param_pieces(kernels->plan, 0, p, &n);
            n_run = count_pieces(pieces, n);
        }
        if (n_run != n_left) {
            heft_tensor_info_t info = { .name = "" };
            (void)!heft_plan_query_param(plan, 0, p, &info, NULL);
            return heft__error_set(err, HEFT_ERR_INTERNAL,
                                   "parameter \"%.120s\": kernels write %lld elements, %lld are "
                                   "nobody's",
                                   info.name, (long long)n_run, (long long)n_left);
        }
    }
    return HEFT_OK;
}

static heft_status_t make_plan(const heft_tape_t *local, heft__kernels_t *kernels,
                               heft_error_t *err)
{
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_info_t info;
    heft_status_t status = heft_plan_create_part(&local, 1, 0, &opts, &kernels->plan, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_plan_query(kernels->plan, &info);
    for (uint32_t p = 0; p < heft_plan_get_n_params(kernels->plan, 0); p++) {
        uint64_t n = 0;
        heft_tensor_info_t param;
        const heft_piece_t *pieces = heft_plan_get_param_pieces(kernels->plan, 0, p, &n);
        status = heft_plan_query_param(kernels->plan, 0, p, &param, err);
        if (status != HEFT_OK) {
            return status;
        }
        kernels->n_bytes += count_pieces(pieces, n) * heft_dtype_get_unit_bytes(param.dtype);
    }
    const size_t n_params = (size_t)heft_plan_get_n_params(kernels->plan, 0) + 1;
    kernels->sources = heft__calloc((size_t)info.n_sources + 1, sizeof *kernels->sources);
    kernels->params = heft__calloc(n_params, sizeof *kernels->params);
    kernels->shares = heft__calloc(n_params, sizeof *kernels->shares);
    kernels->target = heft__calloc(1, sizeof *kernels->target);
    if (kernels->sources == NULL || kernels->params == NULL || kernels->shares == NULL ||
        kernels->target == NULL) {
        return heft__error_nomem(err, n_params * sizeof *kernels->params);
    }
    *kernels->target =
        (heft_exec_target_t){ .params = kernels->params, .digests_out = kernels->shares };
    return HEFT_OK;
}

heft_status_t heft__kernels_init(const heft__gathered_t *gathered, const heft_plan_t *plan,
                                 const heft_routes_t *routes, heft__kernels_t *kernels_out,
                                 heft_error_t *err)
{
    heft__kernels_t kernels = { .plan = NULL };
    heft_status_t status = HEFT_OK;
    if (gathered->local != NULL) {
        status = make_plan(gathered->local, &kernels, err);
    }
    if (status == HEFT_OK) {
        status = check_cover(&kernels, plan, routes, err);
    }
    if (status != HEFT_OK) {
        heft__kernels_fini(&kernels);
        return status;
    }
    *kernels_out = kernels;
    return HEFT_OK;
}

void heft__kernels_fini(heft__kernels_t *kernels)
{
    heft_exec_destroy(kernels->exec);
    heft_plan_destroy(kernels->plan);
    heft__free(kernels->sources);
    heft__free(kernels->params);
    heft__free(kernels->shares);
    heft__free(kernels->target);
    *kernels = (heft__kernels_t){ .plan = NULL };
}

bool heft__kernels_write(const heft__kernels_t *kernels, uint32_t param)
{
    uint64_t n = 0;
    if (kernels->plan != NULL) {
        (void)heft_plan_get_param_pieces(kernels->plan, 0, param, &n);
    }
    return n > 0;
}

/* Staging may have another place than in the last round. */
static heft_status_t bind(heft__kernels_t *kernels, const heft__staging_t *layout,
                          const heft__inputs_t *inputs, uint8_t *base, uint32_t n_threads,
                          heft_error_t *err)
{
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    heft_exec_destroy(kernels->exec);
    kernels->exec = NULL;
    kernels->base = base;
    opts.n_threads = n_threads;
    for (uint32_t i = 0; i < layout->n_params; i++) {
        kernels->params[i] = base + layout->offsets[i];
    }
    uint32_t source = 0; /* inputs go by name, as do the sources of a plan */
    for (uint32_t k = 0; k < inputs->n; k++) {
        if (inputs->is_gathered[k]) {
            kernels->sources[source++] = base + layout->offsets[layout->n_params + k];
        }
    }
    return heft_exec_create(kernels->plan, kernels->target, 1, &opts, &kernels->exec, err);
}

heft_status_t heft__kernels_run(heft__kernels_t *kernels, const heft__staging_t *layout,
                                const heft__inputs_t *inputs, uint8_t *base, uint32_t n_threads,
                                uint64_t *expected, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    if (kernels->plan == NULL) {
        return HEFT_OK;
    }
    if (kernels->exec == NULL || kernels->base != base) {
        status = bind(kernels, layout, inputs, base, n_threads, err);
    }
    if (status == HEFT_OK) {
        status = heft_exec_run(kernels->exec, kernels->sources, err);
    }
    for (uint32_t i = 0; i < layout->n_params && status == HEFT_OK; i++) {
        expected[i] ^= kernels->shares[i];
    }
    return status;
}
