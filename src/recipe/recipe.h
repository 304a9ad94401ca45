/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipe: index-notation rules, compiled to a tape. Neighbours need nothing beyond the public
 * header; what the files of this part share is in syntax.h and compile.h.
 */
#ifndef HEFT_RECIPE_RECIPE_H
#define HEFT_RECIPE_RECIPE_H

#include "base/base.h"
#include "heft/recipe.h"

#endif
