/* SPDX-License-Identifier: Apache-2.0 */
/* Models by their sizes alone: the tensors of a Hugging Face checkpoint, and the config.json that a
 * recipe asks for. */
#ifndef HEFT_CLI_SIM_MODEL_H
#define HEFT_CLI_SIM_MODEL_H

#include "cli/cli.h"

typedef enum sim_family { SIM_DENSE = 0, SIM_QWEN_MOE = 1, SIM_DEEPSEEK = 2 } sim_family_t;

typedef struct sim_shape {
    sim_family_t family;
    int64_t layers, hidden, inner, vocab;
    int64_t heads, kv_heads, head_dim;
    bool has_qk_norm;
    int64_t experts, expert_inner;        /* mixtures */
    int64_t shared_experts, dense_layers; /* of the DeepSeek family */
    int64_t q_rank, kv_rank, nope, rope, v_dim;
} sim_shape_t;

/* How tensor parallel ranks of a trainer share a tensor. */
typedef enum sim_split { SIM_WHOLE = -1, SIM_ROWS = 0, SIM_COLUMNS = 1 } sim_split_t;

typedef struct sim_tensor {
    char *name;
    heft_shape_t shape;
    heft_dtype_t dtype;
    sim_split_t split;
    int64_t layer;  /* -1: before the first, layers: behind the last */
    int64_t expert; /* -1: none */
} sim_tensor_t;

typedef struct sim_model {
    char name[64];
    sim_shape_t shape;
    const char *recipe;
    char *config;          /* JSON */
    sim_tensor_t *tensors; /* in the order of the manifest */
    uint32_t n_tensors;
    heft_manifest_t *manifest;
} sim_model_t;

/* A preset by name, or the config.json of a path (with a slash, or ending in .json); n_layers: 0,
 * or another number of layers; dtype: of the weights. Prints what is wrong. */
int sim_model_load(const cli_args_t *args, const char *name, int64_t n_layers, heft_dtype_t dtype,
                   sim_model_t *model);
void sim_model_free(sim_model_t *model);
/* The names of presets, for help. */
const char *sim_model_list(void);

#endif
