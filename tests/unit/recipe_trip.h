/* SPDX-License-Identifier: Apache-2.0 */
/*
 * There and back: a checkpoint whose elements are all different is converted by a recipe for all
 * ranks, and back from what was written; it must be the same, byte for byte.
 */
#ifndef RECIPE_TRIP_H
#define RECIPE_TRIP_H

#include "recipe_bench.h"

/* The status of going back, with err as it was given; everything before it must succeed, and after
 * HEFT_OK the checkpoint is the same. */
heft_status_t trip_back(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                        const heft_manifest_t *source, heft_error_t *err);

#endif
