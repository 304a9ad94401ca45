/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of experts, for recipes: the list that stands in a binding, and whether it fits. */
#ifndef HEFT_RECIPE_EXPERT_TABLE_H
#define HEFT_RECIPE_EXPERT_TABLE_H

#include <jansson.h>

#include "base/base.h"
#include "heft/experts.h"

/* As heft_expert_table_check, of lists of slots. */
HEFT_MUST_CHECK heft_status_t heft__expert_rows_check(const json_t *rows,
                                                      const heft_expert_table_opts_t *opts,
                                                      heft_error_t *err);
/* The lists in {"physical_to_logical_map": [...]}; any other value itself. Borrowed. */
const json_t *heft__expert_rows_find(const json_t *root);

#endif
