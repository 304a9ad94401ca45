/* SPDX-License-Identifier: Apache-2.0 */
/* What a path on the command line names: a checkpoint (file or folder), or a manifest (".json"). */
#ifndef HEFT_CLI_CLI_MODEL_H
#define HEFT_CLI_CLI_MODEL_H

#include "cli/cli.h"

typedef struct cli_model {
    heft_checkpoint_t *checkpoint;   /* NULL for a manifest */
    heft_manifest_t *owned;          /* NULL for a checkpoint */
    const heft_manifest_t *manifest; /* of either; borrowed from the above */
} cli_model_t;

/* Print what is wrong and return the exit code; close it after CLI_OK, and it may be closed after a
 * failure. */
int cli_model_open(const cli_args_t *args, const char *path, const char *side, cli_model_t *model);
/* The same, but a manifest will not do. */
int cli_model_open_checkpoint(const cli_args_t *args, const char *path, const char *side,
                              cli_model_t *model);
void cli_model_close(cli_model_t *model);

#endif
