/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of recipes, for the public functions that take either. Private to this part. */
#ifndef HEFT_RECIPE_CHAIN_H
#define HEFT_RECIPE_CHAIN_H

#include "recipe/compile.h"

/* A chain at work: the bindings of each of its recipes. */
typedef struct heft__chain {
    const heft_recipe_t *recipe;
    heft_bindings_t bindings[HEFT__MAX_PARTS]; /* borrowed, but for the arrays of items */
} heft__chain_t;

/* HEFT_ERR_ARGUMENT names a binding that no recipe of the chain declares. */
heft_status_t heft__chain_open(heft__chain_t *c, const heft_recipe_t *recipe,
                               const heft_bindings_t *bindings, heft_error_t *err);
void heft__chain_close(heft__chain_t *c);

/* Does a line of the text begin a recipe of a chain? */
bool heft__chain_is_chain(const char *text, size_t n);
/* The parts of a recipe that has its name and text. */
heft_status_t heft__chain_parse(heft_recipe_t *chain, size_t n, heft_issues_t *issues,
                                heft_error_t *err);

/* How many errors are listed already. */
static inline uint32_t heft__chain_n_said(const heft_issues_t *issues)
{
    return issues != NULL ? heft_issues_get_n_errors(issues) : 0;
}

/* What came of working on a chain: an error that none of its recipes has listed (n_said: before) is
 * listed as the chain's. */
heft_status_t heft__chain_end(const heft_recipe_t *recipe, heft_issues_t *issues, uint32_t n_said,
                              heft_status_t status, const heft_error_t *error, heft_error_t *err);

/* What the public functions do for a chain. */
heft_status_t heft__chain_compile(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                  uint32_t rank, const heft_manifest_t *source,
                                  const heft_manifest_t *destination, heft_issues_t *issues,
                                  heft_tape_t **tape_out, heft_manifest_t **manifest_out,
                                  heft_error_t *err);
heft_status_t heft__chain_count_ranks(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                      uint32_t *n_ranks_out, heft_error_t *err);
heft_status_t heft__chain_resolve_exceptions(const heft_recipe_t *recipe,
                                             const heft_bindings_t *bindings,
                                             const heft_manifest_t *source,
                                             const heft_manifest_t *destination,
                                             heft_exception_t **exceptions_out, uint32_t *n_out,
                                             heft_error_t *err);

#endif
