/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapping: how the parameters of a destination come from source tensors, as both sides of a round
 * see it: a recipe with its bindings, or what a loader was traced to do. A destination describes it
 * in its contract object, a source reads it there.
 */
#ifndef HEFT_SYNC_MAPPING_H
#define HEFT_SYNC_MAPPING_H

#include "heft/contract.h"
#include "recipe/recipe.h"
#include "sync/sources.h"
#include "sync/wire.h"

typedef struct heft__mapping {
    const heft_recipe_t *recipe; /* NULL: traced */
    const heft_bindings_t *bindings;
    const heft_contract_t *traced;
    uint32_t first_rank; /* ranks are numbered from it */
    uint32_t n_ranks;
    bool is_partial;           /* other ranks belong to the destination as well */
    heft_recipe_t *own_recipe; /* NULL: borrowed */
    heft_bindings_t *own_bindings;
    heft_contract_t *own_contract;
} heft__mapping_t;

/* Both are borrowed until fini. Zero-initialised is none, and may be finished. */
HEFT_MUST_CHECK heft_status_t heft__mapping_from_recipe(const heft_recipe_t *recipe,
                                                        const heft_bindings_t *bindings,
                                                        heft__mapping_t *mapping_out,
                                                        heft_error_t *err);
/* The contract is borrowed until fini. HEFT_ERR_ARGUMENT: it has no mapping. */
HEFT_MUST_CHECK heft_status_t heft__mapping_from_contract(const heft_contract_t *contract,
                                                          heft__mapping_t *mapping_out,
                                                          heft_error_t *err);
/* text: of the object that a contract with a traced loader names; else not looked at. */
HEFT_MUST_CHECK heft_status_t heft__mapping_from_wire(const heft__contract_t *contract,
                                                      const char *text, size_t n,
                                                      heft__mapping_t *mapping_out,
                                                      heft_error_t *err);
void heft__mapping_fini(heft__mapping_t *mapping);
/* For messages. Borrowed. */
const char *heft__mapping_get_name(const heft__mapping_t *mapping);

/* The contract object of a member, and the object with a traced loader's contract, which it names:
 * NULL of a recipe. Both are freed with heft__free. */
HEFT_MUST_CHECK heft_status_t heft__mapping_encode(const heft__mapping_t *mapping, uint32_t rank,
                                                   char **contract_out, char **mapping_out,
                                                   heft_error_t *err);

/* What compiles its ranks against these sources; NULL of a traced one. Borrows both. */
HEFT_MUST_CHECK heft_status_t heft__mapping_open(const heft__mapping_t *mapping,
                                                 const heft__sources_t *sources,
                                                 heft__compiler_t **compiler_out,
                                                 heft_error_t *err);
/*
 * The tape of rank first_rank + i, to be released: it reads whole tensors. When it fails, every
 * error is among the problems, after "member: " (NULL: without). destination: NULL where nobody
 * holds the rank. Of a traced mapping the sources as a whole and the destination must be what it
 * was traced for. takes_read_alone: as of heft__compiler_run.
 */
HEFT_MUST_CHECK heft_status_t
heft__mapping_compile(const heft__mapping_t *mapping, heft__compiler_t *compiler, uint32_t i,
                      const heft__sources_t *sources, const heft_manifest_t *destination,
                      bool takes_read_alone, const char *member, heft__problems_t *problems,
                      const heft_tape_t **tape_out, heft_error_t *err);
/* In its place one that reads what each of the sources holds, of which there are several. is_alone:
 * for a partial plan of this rank alone, no more than it needs of them. Failures as above. */
HEFT_MUST_CHECK heft_status_t heft__mapping_place(const heft__mapping_t *mapping,
                                                  const heft__sources_t *sources, bool is_alone,
                                                  const char *member, heft__problems_t *problems,
                                                  const heft_tape_t **tape, heft_error_t *err);
/* A tape of this mapping, before the mapping is finished. NULL is fine. */
void heft__mapping_release(const heft__mapping_t *mapping, const heft_tape_t *tape);
/* Freed with heft_exceptions_free, before the mapping. */
HEFT_MUST_CHECK heft_status_t heft__mapping_resolve(const heft__mapping_t *mapping,
                                                    const heft_manifest_t *source,
                                                    const heft_manifest_t *destination,
                                                    heft_exception_t **exceptions_out,
                                                    uint32_t *n_out, heft_error_t *err);

#endif
