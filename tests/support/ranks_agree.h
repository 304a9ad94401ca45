/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One compiler for many ranks of a recipe must give what compiling each by itself gives: the same
 * tapes, the same messages, whatever ranks it has seen before.
 */
#ifndef RANKS_AGREE_H
#define RANKS_AGREE_H

#include <stdbool.h>

#include "heft/recipe.h"

/* Some ranks of a recipe, first to last and back. False: why says which differs. */
bool ranks_agree(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                 const heft_manifest_t *source, const heft_manifest_t *destination, char why[512]);

#endif
