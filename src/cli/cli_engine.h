/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine that `heft serve` stands in for: parameters in memory, and threads that read them.
 *
 * Readers pass a gate. Closing it (pause) waits for those inside and lets no new one in; opening it
 * (resume) names the version they will read and the digests it must have. A pass digests every
 * parameter inside the gate, so a byte that changes while the gate is open is found, and so is a
 * parameter of another version. Where a digest is not known (0), the first pass of a version says
 * what it is.
 */
#ifndef HEFT_CLI_CLI_ENGINE_H
#define HEFT_CLI_CLI_ENGINE_H

#include "cli/cli.h"

typedef struct cli_engine cli_engine_t;

typedef struct cli_engine_counts {
    int64_t passes; /* whole passes, all versions */
    int64_t read_bytes;
    bool is_torn;   /* a pass did not agree */
    char torn[256]; /* one line about it */
} cli_engine_counts_t;

/* Allocate parameters for the manifest (borrowed until destroy), touched and 64-byte aligned, and
 * start the readers. Prints what is wrong. */
int cli_engine_create(const cli_args_t *args, const heft_manifest_t *manifest, uint32_t n_readers,
                      cli_engine_t **engine_out);
void cli_engine_destroy(cli_engine_t *engine);
void *const *cli_engine_get_params(const cli_engine_t *engine);

void cli_engine_close_gate(cli_engine_t *engine);
/* version 0: stay closed. digests: one for each parameter. */
void cli_engine_open_gate(cli_engine_t *engine, int64_t version, const uint64_t *digests);
void cli_engine_query(cli_engine_t *engine, cli_engine_counts_t *counts_out);

#endif
