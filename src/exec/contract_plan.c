/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a contract holds to its plan: the recipe is parsed and compiled again, the tapes of a
 * traced loader are there as they are. Both sides of a round come to one plan so, and a contract is
 * checked by making it again.
 */
#include "exec/contract_impl.h"

#include <string.h>

#include "recipe/recipe.h"

typedef struct maker {
    const heft_contract_t *contract;
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    heft_tape_t **compiled; /* of a recipe; owned */
    const heft_tape_t **tapes;
    heft_exception_t *exceptions; /* of a recipe: as it states them, for each part of a chain */
    uint32_t n_exceptions;
    heft_error_t *err;
} maker_t;

static heft_status_t compile_ranks(maker_t *m)
{
    const heft_contract_t *c = m->contract;
    heft__compiler_t *compiler = NULL;
    heft_status_t status =
        heft__compiler_create(m->recipe, m->bindings, c->manifest, &compiler, m->err);
    for (uint32_t r = 0; r < c->n_ranks && status == HEFT_OK; r++) {
        status = heft__compiler_run(compiler, r, heft_contract_get_destination(c, r), false, NULL,
                                    &m->compiled[r], m->err);
        m->tapes[r] = m->compiled[r];
    }
    heft__compiler_destroy(compiler);
    return status;
}

static heft_status_t compile_recipe(maker_t *m)
{
    const heft_contract_t *c = m->contract;
    heft_status_t status = heft_recipe_parse(c->recipe_name, c->recipe_text, strlen(c->recipe_text),
                                             &m->recipe, m->err);
    if (status == HEFT_OK) {
        status = heft_bindings_decode(c->bindings, strlen(c->bindings), &m->bindings, m->err);
    }
    if (status == HEFT_OK) {
        status = compile_ranks(m);
    }
    return status == HEFT_OK
               ? heft_recipe_resolve_exceptions(m->recipe, m->bindings, c->manifest,
                                                heft_contract_get_destination(c, 0), &m->exceptions,
                                                &m->n_exceptions, m->err)
               : status;
}

static heft_status_t make(maker_t *m, heft_plan_t **plan_out, heft_report_t **report_out)
{
    const heft_contract_t *c = m->contract;
    m->compiled = heft__calloc((size_t)c->n_ranks + 1, sizeof(heft_tape_t *));
    m->tapes = heft__calloc((size_t)c->n_ranks + 1, sizeof(heft_tape_t *));
    if (m->compiled == NULL || m->tapes == NULL) {
        return heft__error_nomem(m->err, c->n_ranks * sizeof(heft_tape_t *));
    }
    heft_status_t status = HEFT_OK;
    if (c->recipe_name != NULL) {
        status = compile_recipe(m);
    }
    for (uint32_t r = 0; r < c->n_ranks && c->recipe_name == NULL; r++) {
        m->tapes[r] = c->tapes[c->ranks[r].tape];
    }
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.exceptions = c->recipe_name != NULL ? m->exceptions : c->exceptions;
    opts.n_exceptions = c->recipe_name != NULL ? m->n_exceptions : c->n_exceptions;
    opts.partial = c->is_partial ? 1 : 0;
    return status == HEFT_OK ? heft_plan_create(m->tapes, c->n_ranks, c->first_rank, &opts,
                                                plan_out, report_out, m->err)
                             : status;
}

heft_status_t heft__contract_make_plan(const heft_contract_t *contract, heft_plan_t **plan_out,
                                       heft_report_t **report_out, heft_error_t *err)
{
    maker_t m = { .contract = contract, .err = err };
    heft_status_t status = make(&m, plan_out, report_out);
    for (uint32_t r = 0; r < contract->n_ranks && m.compiled != NULL; r++) {
        heft_tape_destroy(m.compiled[r]);
    }
    heft__free(m.compiled);
    heft__free(m.tapes);
    heft_exceptions_free(m.exceptions);
    heft_bindings_destroy(m.bindings);
    heft_recipe_destroy(m.recipe);
    return status;
}

static heft_status_t compare_digests(const heft_contract_t *c, const heft_plan_t *plan,
                                     heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const char *digest = heft_plan_get_rank_digest(plan, r);
        if (strcmp(digest, c->ranks[r].plan) != 0) {
            return heft__error_set(err, HEFT_ERR_DIGEST,
                                   "contract: the plan of rank %u is %.16s.., the contract records "
                                   "%.16s..",
                                   c->first_rank + r, digest, c->ranks[r].plan);
        }
    }
    return strcmp(info.digest, c->plan) == 0
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_DIGEST,
                                 "contract: the plan is %.16s.., the contract records %.16s..",
                                 info.digest, c->plan);
}

heft_status_t heft_contract_plan(const heft_contract_t *contract, heft_plan_t **plan_out,
                                 heft_report_t **report_out, heft_error_t *err)
{
    heft_plan_t *plan = NULL;
    heft_report_t *report = NULL;
    if (!contract->has_mapping) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "the contract has no mapping to plan, only a manifest");
    }
    heft_status_t status = heft__contract_make_plan(contract, &plan, &report, err);
    status = status == HEFT_OK ? compare_digests(contract, plan, err) : status;
    if (report_out != NULL && (status == HEFT_OK || status == HEFT_ERR_PROOF)) {
        *report_out = report;
    } else {
        heft_report_destroy(report);
    }
    if (status != HEFT_OK) {
        heft_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return HEFT_OK;
}

/* ---- again ---- */

typedef struct again {
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    const heft_manifest_t **destinations; /* by rank, or NULL */
    const heft_tape_t **tapes;            /* by rank, or NULL */
    heft_contract_t *contract;
} again_t;

/* Of each rank what ranks share. */
static heft_status_t list_by_rank(const heft_contract_t *contract, again_t *a, heft_error_t *err)
{
    const size_t n = contract->n_ranks;
    if (contract->n_destinations > 0) {
        a->destinations = heft__calloc(n, sizeof(heft_manifest_t *));
    }
    if (contract->n_tapes > 0) {
        a->tapes = heft__calloc(n, sizeof(heft_tape_t *));
    }
    if ((contract->n_destinations > 0 && a->destinations == NULL) ||
        (contract->n_tapes > 0 && a->tapes == NULL)) {
        return heft__error_nomem(err, n * sizeof(heft_manifest_t *));
    }
    for (uint32_t r = 0; r < n; r++) {
        if (a->destinations != NULL) {
            a->destinations[r] = heft_contract_get_destination(contract, r);
        }
        if (a->tapes != NULL) {
            a->tapes[r] = heft_contract_get_tape(contract, r);
        }
    }
    return HEFT_OK;
}

static heft_status_t read_recipe(const heft_contract_t *contract, again_t *a, heft_error_t *err)
{
    heft_status_t status = heft_recipe_parse(contract->recipe_name, contract->recipe_text,
                                             strlen(contract->recipe_text), &a->recipe, err);
    return status == HEFT_OK ? heft_bindings_decode(contract->bindings, strlen(contract->bindings),
                                                    &a->bindings, err)
                             : status;
}

static heft_status_t make_again(const heft_contract_t *contract, again_t *a,
                                heft_report_t **report_out, heft_error_t *err)
{
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    heft_status_t status = list_by_rank(contract, a, err);
    if (status == HEFT_OK && contract->recipe_name != NULL) {
        status = read_recipe(contract, a, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    opts.recipe = a->recipe;
    opts.bindings = a->bindings;
    opts.destinations = a->destinations;
    opts.n_destinations = a->destinations != NULL ? contract->n_ranks : 0;
    if (a->tapes != NULL) {
        opts.tapes = a->tapes;
        opts.n_tapes = contract->n_ranks;
        opts.first_rank = contract->first_rank;
        opts.exceptions = contract->exceptions;
        opts.n_exceptions = contract->n_exceptions;
        opts.attrs = contract->attrs;
        opts.n_attrs = contract->n_attrs;
        opts.partial = contract->is_partial ? 1 : 0;
    }
    return heft_contract_create(contract->manifest, &opts, &a->contract, report_out, err);
}

heft_status_t heft_contract_check(const heft_contract_t *contract, heft_drift_t **drift_out,
                                  heft_report_t **report_out, heft_error_t *err)
{
    again_t a = { .recipe = NULL };
    heft_report_t *report = NULL;
    if (!contract->has_mapping) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "the contract has no mapping to check, only a manifest");
    }
    heft_status_t status = make_again(contract, &a, &report, err);
    if (status == HEFT_OK) {
        status = heft_contract_compare(contract, a.contract, drift_out, err);
    }
    if (report_out != NULL && (status == HEFT_OK || status == HEFT_ERR_PROOF)) {
        *report_out = report;
    } else {
        heft_report_destroy(report);
    }
    heft_contract_destroy(a.contract);
    heft__free(a.destinations);
    heft__free(a.tapes);
    heft_bindings_destroy(a.bindings);
    heft_recipe_destroy(a.recipe);
    return status;
}
