/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic models for benchmarks of whole runs, bf16, to two tensor-parallel ranks. */
#ifndef EXEC_MODEL_H
#define EXEC_MODEL_H

#include "heft/exec.h"

#include <stdio.h>
#include <stdlib.h>

enum { EXEC_MODEL_RANKS = 2 };

#define CHECK(call)                                                                  \
    do {                                                                             \
        if ((call) != HEFT_OK) {                                                     \
            (void)fprintf(stderr, "bench: %s: %s\n", #call, exec_model_err.message); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

extern heft_error_t exec_model_err;

/*
 * Hidden size 2048.
 *   dense   (is_scanned 0) a tensor for each layer; qkv and gate_up are fused; 88 MB a layer
 *   scanned (1) the layers of a tensor stacked along axis 1; experts' gate and up interleaved in
 *           lanes of 128 and padded, projections transposed; 276 MB a layer
 */
heft_plan_t *exec_model_plan(int is_scanned, int n_layers);

#endif
