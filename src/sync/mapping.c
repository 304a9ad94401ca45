/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/mapping.h"

#include <string.h>

#include "plan/plan.h"
#include "sync/findings.h"

/* ---- where it comes from ---- */

heft_status_t heft__mapping_from_recipe(const heft_recipe_t *recipe,
                                        const heft_bindings_t *bindings,
                                        heft__mapping_t *mapping_out, heft_error_t *err)
{
    heft__mapping_t mapping = { .recipe = recipe, .bindings = bindings };
    heft_status_t status = heft_recipe_count_ranks(recipe, bindings, &mapping.n_ranks, err);
    if (status == HEFT_OK) {
        *mapping_out = mapping;
    }
    return status;
}

static heft_status_t parse(const char *name, const char *text, const char *bindings,
                           heft__mapping_t *mapping_out, heft_error_t *err)
{
    heft_recipe_t *own_recipe = NULL;
    heft_bindings_t *own_bindings = NULL;
    heft_status_t status = heft_recipe_parse(name, text, strlen(text), &own_recipe, err);
    if (status == HEFT_OK) {
        status = heft_bindings_decode(bindings, strlen(bindings), &own_bindings, err);
    }
    if (status == HEFT_OK) {
        status = heft__mapping_from_recipe(own_recipe, own_bindings, mapping_out, err);
    }
    if (status != HEFT_OK) {
        heft_bindings_destroy(own_bindings);
        heft_recipe_destroy(own_recipe);
        return status;
    }
    mapping_out->own_recipe = own_recipe;
    mapping_out->own_bindings = own_bindings;
    return HEFT_OK;
}

heft_status_t heft__mapping_from_contract(const heft_contract_t *contract,
                                          heft__mapping_t *mapping_out, heft_error_t *err)
{
    if (!heft_contract_has_mapping(contract)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "a contract of one side, without a mapping");
    }
    if (heft_contract_is_traced(contract)) {
        *mapping_out = (heft__mapping_t){ .traced = contract,
                                          .first_rank = heft_contract_get_first_rank(contract),
                                          .n_ranks = heft_contract_get_n_ranks(contract),
                                          .is_partial = heft_contract_is_partial(contract) != 0 };
        return HEFT_OK;
    }
    return parse(heft_contract_get_recipe_name(contract), heft_contract_get_recipe_text(contract),
                 heft_contract_get_bindings(contract), mapping_out, err);
}

heft_status_t heft__mapping_from_wire(const heft__contract_t *contract, const char *text, size_t n,
                                      heft__mapping_t *mapping_out, heft_error_t *err)
{
    if (contract->mapping == NULL) {
        return parse(contract->recipe_name, contract->recipe_text, contract->bindings, mapping_out,
                     err);
    }
    heft_contract_t *own = NULL;
    heft_status_t status = heft_contract_decode(text, n, &own, err);
    if (status == HEFT_OK) {
        status = heft__mapping_from_contract(own, mapping_out, err);
    }
    if (status != HEFT_OK) {
        heft_contract_destroy(own);
        return status;
    }
    mapping_out->own_contract = own;
    if (mapping_out->traced == NULL || mapping_out->n_ranks != contract->ranks ||
        mapping_out->first_rank != contract->first_rank) {
        status = heft__error_set(
            err, HEFT_ERR_FORMAT, "contract of %u ranks from %u, announced as %u from %u",
            mapping_out->n_ranks, mapping_out->first_rank, contract->ranks, contract->first_rank);
        heft__mapping_fini(mapping_out);
    }
    return status;
}

void heft__mapping_fini(heft__mapping_t *mapping)
{
    heft_bindings_destroy(mapping->own_bindings);
    heft_recipe_destroy(mapping->own_recipe);
    heft_contract_destroy(mapping->own_contract);
    *mapping = (heft__mapping_t){ .n_ranks = 0 };
}

const char *heft__mapping_get_name(const heft__mapping_t *mapping)
{
    return mapping->recipe != NULL ? heft_recipe_get_name(mapping->recipe) : "a traced loader";
}

/* ---- the contract object ---- */

static heft_status_t encode_traced(const heft__mapping_t *mapping, uint32_t rank,
                                   char **contract_out, char **mapping_out, heft_error_t *err)
{
    char digest[HEFT__DIGEST_SIZE];
    char *text = NULL;
    heft_status_t status = heft_contract_encode(mapping->traced, &text, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__object_digest(text, strlen(text), digest);
    const heft__contract_t contract = { .mapping = digest,
                                        .rank = rank,
                                        .ranks = mapping->n_ranks,
                                        .first_rank = mapping->first_rank };
    status = heft__contract_encode(&contract, contract_out, err);
    if (status != HEFT_OK) {
        heft_string_free(text);
        return status;
    }
    *mapping_out = text;
    return HEFT_OK;
}

heft_status_t heft__mapping_encode(const heft__mapping_t *mapping, uint32_t rank,
                                   char **contract_out, char **mapping_out, heft_error_t *err)
{
    if (mapping->traced != NULL) {
        return encode_traced(mapping, rank, contract_out, mapping_out, err);
    }
    heft__contract_t contract = { .rank = rank, .ranks = mapping->n_ranks };
    char *bindings = NULL;
    heft_status_t status = heft_bindings_encode(mapping->bindings, &bindings, err);
    if (status != HEFT_OK) {
        return status;
    }
    contract.recipe_name = heft__strdup(heft_recipe_get_name(mapping->recipe));
    contract.recipe_text = heft__strdup(heft_recipe_get_text(mapping->recipe));
    contract.bindings = heft__strdup(bindings);
    const bool ok =
        contract.recipe_name != NULL && contract.recipe_text != NULL && contract.bindings != NULL;
    *mapping_out = NULL;
    status = ok ? heft__contract_encode(&contract, contract_out, err)
                : heft__error_nomem(err, strlen(heft_recipe_get_text(mapping->recipe)) + 1);
    heft_string_free(bindings);
    heft__contract_fini(&contract);
    return status;
}

/* ---- what it was traced for ---- */

static heft__problem_kind_t kind_of(heft_drift_kind_t kind)
{
    switch ((int)kind) {
    case HEFT_DRIFT_MISSING:
    case HEFT_DRIFT_ADDED:
    case HEFT_DRIFT_RENAMED:
        return HEFT__PROBLEM_NAME;
    case HEFT_DRIFT_RETYPED:
    case HEFT_DRIFT_RESHAPED:
        return HEFT__PROBLEM_SHAPE;
    default:
        return HEFT__PROBLEM_MANIFEST;
    }
}

/* Every difference is a problem. What a whole source says of itself (its framework) is no part of a
 * trace, unlike what a destination does (its backend). */
static heft_status_t compare(const heft_manifest_t *traced, const heft_manifest_t *now,
                             bool with_attributes, const char *member, heft__problems_t *problems,
                             heft_error_t *err)
{
    heft_drift_t *drift = NULL;
    heft_status_t status = heft_drift_create(traced, now, &drift, err);
    for (uint32_t i = 0; drift != NULL && i < heft_drift_get_n(drift); i++) {
        const heft_drift_finding_t *found = heft_drift_get(drift, i);
        if (found->kind == HEFT_DRIFT_ATTRIBUTE && !with_attributes) {
            continue;
        }
        (void)!heft__problems_add(
            problems, kind_of(found->kind), NULL, "%s%snot what the loader was traced for: %s",
            member != NULL ? member : "", member != NULL ? ": " : "", found->text);
        if (status == HEFT_OK) {
            status = heft__error_set(err, HEFT_ERR_MISMATCH,
                                     "not what the loader was traced for: "
                                     "%.180s",
                                     found->text);
        }
    }
    heft_drift_destroy(drift);
    return status;
}

static heft_status_t take_tape(const heft__mapping_t *mapping, uint32_t i,
                               const heft_manifest_t *source, const heft_manifest_t *destination,
                               const char *member, heft__problems_t *problems,
                               const heft_tape_t **tape_out, heft_error_t *err)
{
    const heft_manifest_t *declared = heft_contract_get_destination(mapping->traced, i);
    heft_status_t status =
        compare(heft_contract_get_manifest(mapping->traced), source, false, NULL, problems, err);
    if (status == HEFT_OK && destination != NULL && declared != NULL && destination != declared) {
        status = compare(declared, destination, true, member, problems, err);
    }
    if (status == HEFT_OK) {
        *tape_out = heft_contract_get_tape(mapping->traced, i);
    }
    return status;
}

/* A traced tape is the contract's, and is shared. */
static heft_status_t copy_tape(const heft_tape_t *tape, heft_tape_t **copy_out, heft_error_t *err)
{
    char *text = NULL;
    heft_status_t status = heft_tape_encode(tape, &text, err);
    if (status == HEFT_OK) {
        status = heft_tape_decode(text, strlen(text), copy_out, err);
        heft_string_free(text);
    }
    return status;
}

static heft_status_t copy_exceptions(const heft_contract_t *contract,
                                     heft_exception_t **exceptions_out, uint32_t *n_out,
                                     heft_error_t *err)
{
    const uint32_t n = heft_contract_get_n_exceptions(contract);
    heft_exception_t *exceptions = heft__calloc((size_t)n + 1, sizeof *exceptions);
    if (exceptions == NULL) {
        return heft__error_nomem(err, n * sizeof *exceptions);
    }
    for (uint32_t i = 0; i < n; i++) {
        exceptions[i] = *heft_contract_get_exception(contract, i);
    }
    *exceptions_out = exceptions;
    *n_out = n;
    return HEFT_OK;
}

/* ---- what is made of it ---- */

heft_status_t heft__mapping_open(const heft__mapping_t *mapping, const heft__sources_t *sources,
                                 heft__compiler_t **compiler_out, heft_error_t *err)
{
    *compiler_out = NULL;
    return mapping->traced != NULL ? HEFT_OK
                                   : heft__compiler_create(mapping->recipe, mapping->bindings,
                                                           sources->whole, compiler_out, err);
}

heft_status_t heft__mapping_compile(const heft__mapping_t *mapping, heft__compiler_t *compiler,
                                    uint32_t i, const heft__sources_t *sources,
                                    const heft_manifest_t *destination, bool takes_read_alone,
                                    const char *member, heft__problems_t *problems,
                                    const heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = NULL;
    if (mapping->traced != NULL) {
        return take_tape(mapping, i, sources->whole, destination, member, problems, tape_out, err);
    }
    heft_status_t status = heft__compile_rank(compiler, i, destination, takes_read_alone, member,
                                              problems, &tape, err);
    if (status == HEFT_OK) {
        *tape_out = tape;
    }
    return status;
}

heft_status_t heft__mapping_place(const heft__mapping_t *mapping, const heft__sources_t *sources,
                                  bool is_alone, const char *member, heft__problems_t *problems,
                                  const heft_tape_t **tape, heft_error_t *err)
{
    heft_tape_t *own = NULL;
    heft_tape_t *placed = NULL;
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_OK;
    if (mapping->traced != NULL) {
        status = copy_tape(*tape, &own, &why);
    } else {
        own = (heft_tape_t *)(uintptr_t)*tape; /* made by heft__mapping_compile */
    }
    if (status == HEFT_OK) {
        status = (is_alone ? heft__placement_apply_read : heft_placement_apply)(sources->placement,
                                                                                own, &placed, &why);
    }
    if (status == HEFT_OK) {
        *tape = placed;
        return HEFT_OK;
    }
    if (mapping->traced != NULL) {
        heft_tape_destroy(own);
    }
    (void)!heft__problems_add(problems, heft__problem_kind_of(status), NULL, "%s%s%s",
                              member != NULL ? member : "", member != NULL ? ": " : "",
                              why.message);
    if (err != NULL) {
        *err = why;
    }
    return status;
}

void heft__mapping_release(const heft__mapping_t *mapping, const heft_tape_t *tape)
{
    for (uint32_t i = 0; mapping->traced != NULL && i < mapping->n_ranks; i++) {
        if (tape == heft_contract_get_tape(mapping->traced, i)) {
            return; /* the contract's own */
        }
    }
    heft_tape_destroy((heft_tape_t *)(uintptr_t)tape); /* made by heft__mapping_compile */
}

heft_status_t heft__mapping_resolve(const heft__mapping_t *mapping, const heft_manifest_t *source,
                                    const heft_manifest_t *destination,
                                    heft_exception_t **exceptions_out, uint32_t *n_out,
                                    heft_error_t *err)
{
    if (mapping->traced != NULL) {
        return copy_exceptions(mapping->traced, exceptions_out, n_out, err);
    }
    return heft_recipe_resolve_exceptions(mapping->recipe, mapping->bindings, source, destination,
                                          exceptions_out, n_out, err);
}
