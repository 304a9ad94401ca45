/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes of the size and shape of real models: sources named as in Hugging Face checkpoints,
 * parameters fused and sharded as inference engines keep them (qkv_proj, w13, w2). One tape is one
 * tensor-parallel rank.
 */
#ifndef SYNTH_MODEL_H
#define SYNTH_MODEL_H

#include "heft/tape.h"

#include <stdbool.h>

typedef struct synth_model {
    int64_t n_layers;
    int64_t n_experts; /* 0: a dense model */
    int64_t hidden;
    int64_t intermediate; /* of one expert, or of the dense layer */
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t vocab;
    bool has_qk_norm;
    bool is_transposed;     /* w13 kept as [experts, hidden, 2 * intermediate / tp], w2 likewise */
    bool has_temps;         /* every copy goes through a contiguous temporary */
    bool has_fills;         /* every parameter is zeroed before it is loaded */
    bool has_kernels;       /* every tensor is made by an opaque write, as unpacking would */
    int64_t n_expert_ranks; /* > 0: experts are whole, and dealt to so many ranks; sources of
                             * others' experts are there, and nothing reads them */
} synth_model_t;

/* About the sizes of: Qwen3-8B, Qwen3-235B-A22B (94 layers of 128 experts), a model of 61 layers of
 * 384 experts. */
extern const synth_model_t synth_dense_8b;
extern const synth_model_t synth_moe_235b;
extern const synth_model_t synth_moe_1t;

/* The tape of one rank. tp must divide heads, intermediate and vocab; K and V heads are repeated
 * where tp exceeds their number. With expert ranks rank counts over all ranks, and everything but
 * experts is that of rank % tp. */
HEFT_MUST_CHECK heft_status_t synth_model_tape(const synth_model_t *model, int64_t tp, int64_t rank,
                                               heft_tape_t **tape_out, heft_error_t *err);

/* Source tensors, and parameters of one rank, that the tape will have. */
uint64_t synth_model_n_sources(const synth_model_t *model);
uint64_t synth_model_n_params(const synth_model_t *model);

#endif
