/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapping: how the parameters of a destination come from source tensors, as both sides of a round
 * see it: a recipe with its bindings. A destination describes it in its contract object, a source
 * reads it there.
 */
#ifndef HEFT_SYNC_MAPPING_H
#define HEFT_SYNC_MAPPING_H

#include "heft/contract.h"
#include "sync/wire.h"

typedef struct heft__mapping {
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;
    uint32_t n_ranks;
    heft_recipe_t *own_recipe; /* NULL: borrowed */
    heft_bindings_t *own_bindings;
} heft__mapping_t;

/* Both are borrowed until fini. Zero-initialised is none, and may be finished. */
HEFT_MUST_CHECK heft_status_t heft__mapping_from_recipe(const heft_recipe_t *recipe,
                                                        const heft_bindings_t *bindings,
                                                        heft__mapping_t *mapping_out,
                                                        heft_error_t *err);
/* HEFT_ERR_ARGUMENT: the contract has no mapping. */
HEFT_MUST_CHECK heft_status_t heft__mapping_from_contract(const heft_contract_t *contract,
                                                          heft__mapping_t *mapping_out,
                                                          heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__mapping_from_wire(const heft__contract_t *contract,
                                                      heft__mapping_t *mapping_out,
                                                      heft_error_t *err);
void heft__mapping_fini(heft__mapping_t *mapping);
/* For messages. Borrowed. */
const char *heft__mapping_get_name(const heft__mapping_t *mapping);

/* The contract object of a member; freed with heft__free. */
HEFT_MUST_CHECK heft_status_t heft__mapping_encode(const heft__mapping_t *mapping, uint32_t rank,
                                                   char **text_out, heft_error_t *err);

/* The tape of one rank. When it fails, every error is among the problems, after "member: " (NULL:
 * without). destination: NULL where nobody holds the rank. */
HEFT_MUST_CHECK heft_status_t heft__mapping_compile(const heft__mapping_t *mapping, uint32_t rank,
                                                    const heft_manifest_t *source,
                                                    const heft_manifest_t *destination,
                                                    const char *member, heft__problems_t *problems,
                                                    heft_tape_t **tape_out, heft_error_t *err);
/* Freed with heft_exceptions_free, before the mapping. */
HEFT_MUST_CHECK heft_status_t heft__mapping_resolve(const heft__mapping_t *mapping,
                                                    const heft_manifest_t *source,
                                                    const heft_manifest_t *destination,
                                                    heft_exception_t **exceptions_out,
                                                    uint32_t *n_out, heft_error_t *err);

#endif
