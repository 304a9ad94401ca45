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

/*
 * heft_recipe_compile_all for many ranks of one recipe: source names are taken apart and matched
 * once. recipe, bindings and source are borrowed until destroy. Of a chain nothing is shared.
 *
 * takes_read_alone: the tape has no sources but those that are read, in the order in which they
 * are; of a chain it has them all. Otherwise the tape is that of heft_recipe_compile, bit for bit.
 *
 * Threads: confined.
 */
typedef struct heft__compiler heft__compiler_t;

HEFT_MUST_CHECK heft_status_t heft__compiler_create(const heft_recipe_t *recipe,
                                                    const heft_bindings_t *bindings,
                                                    const heft_manifest_t *source,
                                                    heft__compiler_t **compiler_out,
                                                    heft_error_t *err);
void heft__compiler_destroy(heft__compiler_t *compiler);
HEFT_MUST_CHECK heft_status_t heft__compiler_run(heft__compiler_t *compiler, uint32_t rank,
                                                 const heft_manifest_t *destination,
                                                 bool takes_read_alone, heft_issues_t *issues,
                                                 heft_tape_t **tape_out, heft_error_t *err);

#endif
