/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipe: index-notation rules, compiled to a tape. Neighbours need little beyond the public
 * header; what the files of this part share is in syntax.h and compile.h.
 */
#ifndef HEFT_RECIPE_RECIPE_H
#define HEFT_RECIPE_RECIPE_H

#include "base/base.h"
#include "heft/recipe.h"

/* heft_bindings_encode, of the configuration only what the recipe reads (NULL: all). */
HEFT_MUST_CHECK heft_status_t heft__bindings_encode_read(const heft_bindings_t *bindings,
                                                         const heft_recipe_t *recipe,
                                                         char **text_out, heft_error_t *err);
struct json_t;
/* heft_bindings_decode of a value that was parsed already, whose parts are shared. */
HEFT_MUST_CHECK heft_status_t heft__bindings_decode_json(struct json_t *root,
                                                         heft_bindings_t **bindings_out,
                                                         heft_error_t *err);

#endif
