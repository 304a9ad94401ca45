/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert tables: which logical expert stands in which physical slot of an engine, layer by layer.
 * Engines that balance experts keep busy ones more than once and move them while they run (EPLB).
 * A table is data; what it comes to is up to a recipe (expert_table()) or to the engine's loader.
 */
#ifndef HEFT_EXPERTS_H
#define HEFT_EXPERTS_H

#include "heft/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The attribute of a destination's manifest that holds a table's digest: ranks of one engine that
 * declare different ones are refused in preflight. */
#define HEFT_EXPERT_TABLE_ATTR "expert_table"

/* What the model has, as far as it is known; 0: what the table says. */
typedef struct heft_expert_table_opts {
    size_t size;
    uint32_t n_layers;  /* with experts */
    uint32_t n_slots;   /* of a layer, on all ranks together */
    uint32_t n_experts; /* logical ones, of a layer */
    uint32_t n_ranks;   /* that hold equal shares of the slots, one after the other; 0: not said */
    uint8_t once;       /* 1: no expert may be in two slots */
    uint8_t reserved[7];
} heft_expert_table_opts_t;
#define HEFT_EXPERT_TABLE_OPTS_INIT              \
    {                                            \
        .size = sizeof(heft_expert_table_opts_t) \
    }

typedef struct heft_expert_table_info {
    uint32_t n_layers, n_slots, n_experts;
    uint32_t reserved;
    char digest[72]; /* SHA-256 of the text, 64 hexadecimal digits */
} heft_expert_table_info_t;

/**
 * Is this a table that an engine can have? json: for each layer with experts a list that says which
 * logical expert stands in slot 0, 1, .. of all ranks; or for each layer a list of such lists, one
 * for each rank; or {"physical_to_logical_map": one of both}. It need not be NUL-terminated. opts
 * may be NULL. *text_out (NULL is fine), freed with heft_string_free, is the table as lists of
 * slots, one text for one table.
 *
 * HEFT_ERR_FORMAT: no such JSON. HEFT_ERR_SHAPE: not as many layers or slots as there should be, or
 * shares of ranks that are not equal. HEFT_ERR_ARGUMENT: an expert that there is not, that is in no
 * slot, or twice where it may not be. The message names layer, slot and numbers; nothing is written
 * then.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_expert_table_check(const char *json, size_t n,
                                                               const heft_expert_table_opts_t *opts,
                                                               heft_expert_table_info_t *info_out,
                                                               char **text_out, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
