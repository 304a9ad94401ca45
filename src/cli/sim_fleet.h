/* SPDX-License-Identifier: Apache-2.0 */
/* Fleets that nobody owns: how a trainer shares a model among its ranks, and an engine's ranks. */
#ifndef HEFT_CLI_SIM_FLEET_H
#define HEFT_CLI_SIM_FLEET_H

#include "cli/sim_model.h"

/*
 * A trainer of pp * hsdp * fsdp * tp ranks, tp innermost, pp outermost. Layers are dealt to pp
 * stages; a dense tensor is cut in tp parts, and each in fsdp runs of rows, the same in every one
 * of hsdp replicas. Experts are dealt to ep parts of the fsdp * tp ranks of a replica, innermost
 * first; the ranks that share a part share its experts as FSDP cuts them: along the experts, or
 * along their rows where there are fewer experts than ranks and ep is not 1.
 */
typedef struct sim_trainer {
    int64_t fsdp, hsdp, tp, ep, pp;
    uint32_t n_ranks;
} sim_trainer_t;

/* An engine has tp * dp ranks, its experts in ep parts; there are `replicas` such engines. */
typedef struct sim_engine {
    int64_t tp, dp, ep, replicas;
    uint32_t n_ranks; /* of one replica */
} sim_engine_t;

/* --trainer and --engine: "fsdp=64,ep=8". Prints what is wrong. */
int sim_trainer_parse(const cli_args_t *args, const char *text, sim_trainer_t *trainer);
int sim_engine_parse(const cli_args_t *args, const char *text, sim_engine_t *engine);

/* What each rank of the trainer holds; *shards_out is freed with free, names are the model's. */
int sim_trainer_shards(const cli_args_t *args, const sim_trainer_t *trainer,
                       const sim_model_t *model, heft_shard_t **shards_out, uint32_t *n_out);

#endif
