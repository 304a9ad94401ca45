/* SPDX-License-Identifier: Apache-2.0 */
/* What a path on the command line names: a checkpoint (file or folder), or a manifest or a contract
 * (".json"). */
#ifndef HEFT_CLI_CLI_MODEL_H
#define HEFT_CLI_CLI_MODEL_H

#include "cli/cli.h"

typedef struct cli_model {
    heft_checkpoint_t *checkpoint;   /* NULL for a manifest */
    heft_manifest_t *owned;          /* NULL for a checkpoint */
    heft_contract_t *contract;       /* of a contract's file */
    const heft_manifest_t *manifest; /* of any; borrowed from the above */
} cli_model_t;

/* Print what is wrong and return the exit code; close it after CLI_OK, and it may be closed after a
 * failure. */
int cli_model_open(const cli_args_t *args, const char *path, const char *side, cli_model_t *model);
/* The manifest of a side in a contract; NULL: there is none, or ranks have different ones. */
const heft_manifest_t *cli_contract_side(const heft_contract_t *contract, const char *side);
/* The same as cli_model_open, but a manifest will not do. */
int cli_model_open_checkpoint(const cli_args_t *args, const char *path, const char *side,
                              cli_model_t *model);
#define CLI_OPT_NAME_FORM                                                                       \
    {                                                                                           \
        .name = "name-form", .value = "FORM", .kind = CLI_TEXT, .choices = "dotted keystr",     \
        .help =                                                                                 \
            "The form of a checkpoint's names, which become canonical: dotted (as they stand) " \
            "or keystr (['a']['b'].value, of a JAX tree). Default: not declared, as they "      \
            "stand."                                                                            \
    }
#define CLI_OPT_LAYER_FORM                                                                      \
    {                                                                                           \
        .name = "layer-form", .value = "FORM", .kind = CLI_TEXT, .choices = "scanned unrolled", \
        .help = "With keystr: what layers.3 is, the slot of a scanned tree or a layer."         \
    }
/* Of --name-form and --layer-form; NONE where nothing is declared. */
int cli_name_opts(const cli_args_t *args, heft_name_opts_t *opts);
/* Make its names canonical, unless they are; a manifest that declares another form is refused. */
int cli_model_name(const cli_args_t *args, cli_model_t *model, const heft_name_opts_t *opts);
/* Only the rows that rank `rank` of n_ranks holds, as FSDP deals them: the manifest says of which
 * tensors they are parts. offsets: of each tensor, where they begin in bytes. */
int cli_model_share(const cli_args_t *args, cli_model_t *model, uint32_t rank, uint32_t n_ranks,
                    int64_t *offsets);
/* A whole file; *text_out is owned by the caller (free). */
int cli_read_text(const cli_args_t *args, const char *path, char **text_out, size_t *n_out);
/* `inspect --cache-map`, in cli_cache.c. */
int cli_inspect_cache(const cli_args_t *args);
void cli_model_close(cli_model_t *model);

#endif
