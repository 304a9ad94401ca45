/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small model with what real ones have: q, k, v fused and sharded by rows, gate and up fused,
 * down sharded by columns, a norm that every rank holds, and padding. Every element of every
 * version is a function of (version, tensor, index), and the oracle derives each parameter element
 * by element.
 */
#ifndef FLEET_MODEL_H
#define FLEET_MODEL_H

#include "heft/sync.h"

#include <stdbool.h>

enum { FM_RANKS = 2, FM_SOURCES = 8, FM_PARAMS = 5 };

typedef struct fm_model {
    int64_t width; /* hidden size; rows scale with it too */
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    bool has_twin;
} fm_model_t;

/* width: even. Bytes of a source fleet: about 44 * width^2. */
void fm_model_init(fm_model_t *model, int64_t width);
/* The norm has a second source, "zz_twin" (the last), whose values must be equal. */
void fm_model_add_twin(fm_model_t *model);
void fm_model_fini(fm_model_t *model);

/* Memory of one side: manifest and tensors, touched. */
typedef struct fm_side {
    heft_manifest_t *manifest;
    uint32_t n;
    void *data[FM_SOURCES + 1];
    int64_t bytes[FM_SOURCES + 1];
} fm_side_t;

void fm_source_init(const fm_model_t *model, fm_side_t *side);
void fm_params_init(const fm_model_t *model, fm_side_t *side);
void fm_side_fini(fm_side_t *side);
/* Write version v into the source tensors. */
void fm_source_fill(const fm_model_t *model, fm_side_t *side, int64_t version);
/* Compare every element with the oracle; prints the first difference. */
bool fm_params_equal(const fm_model_t *model, const fm_side_t *side, uint32_t rank,
                     int64_t version);

#endif
