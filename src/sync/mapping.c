/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/mapping.h"

#include <string.h>

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
    return parse(heft_contract_get_recipe_name(contract), heft_contract_get_recipe_text(contract),
                 heft_contract_get_bindings(contract), mapping_out, err);
}

heft_status_t heft__mapping_from_wire(const heft__contract_t *contract,
                                      heft__mapping_t *mapping_out, heft_error_t *err)
{
    return parse(contract->recipe_name, contract->recipe_text, contract->bindings, mapping_out,
                 err);
}

void heft__mapping_fini(heft__mapping_t *mapping)
{
    heft_bindings_destroy(mapping->own_bindings);
    heft_recipe_destroy(mapping->own_recipe);
    *mapping = (heft__mapping_t){ .n_ranks = 0 };
}

const char *heft__mapping_get_name(const heft__mapping_t *mapping)
{
    return heft_recipe_get_name(mapping->recipe);
}

/* ---- the contract object ---- */

heft_status_t heft__mapping_encode(const heft__mapping_t *mapping, uint32_t rank, char **text_out,
                                   heft_error_t *err)
{
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
    status = ok ? heft__contract_encode(&contract, text_out, err)
                : heft__error_nomem(err, strlen(heft_recipe_get_text(mapping->recipe)) + 1);
    heft_string_free(bindings);
    heft__contract_fini(&contract);
    return status;
}

/* ---- what is made of it ---- */

heft_status_t heft__mapping_compile(const heft__mapping_t *mapping, uint32_t rank,
                                    const heft_manifest_t *source,
                                    const heft_manifest_t *destination, const char *member,
                                    heft__problems_t *problems, heft_tape_t **tape_out,
                                    heft_error_t *err)
{
    return heft__compile_rank(mapping->recipe, mapping->bindings, rank, source, destination, member,
                              problems, tape_out, err);
}

heft_status_t heft__mapping_resolve(const heft__mapping_t *mapping, const heft_manifest_t *source,
                                    const heft_manifest_t *destination,
                                    heft_exception_t **exceptions_out, uint32_t *n_out,
                                    heft_error_t *err)
{
    return heft_recipe_resolve_exceptions(mapping->recipe, mapping->bindings, source, destination,
                                          exceptions_out, n_out, err);
}
