/* SPDX-License-Identifier: Apache-2.0 */
/* `heft contract`: what a side is and how it is made, as a file. Proves before it writes. */
#include "cli/cli_job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- making ---- */

/* A side alone: its manifest. */
static int make_side(const cli_args_t *args, cli_job_t *job, heft_contract_t **contract)
{
    static const char *const others[] = { "let", "config" };
    for (size_t i = 0; i < CLI_COUNT(others); i++) {
        if (cli_has(args, others[i])) {
            return cli_fail(args, CLI_USAGE, "--%s needs --recipe", others[i]);
        }
    }
    if (args->n_operands > 1) {
        return cli_fail(args, CLI_USAGE, "a second operand needs --recipe");
    }
    heft_name_opts_t names = HEFT_NAME_OPTS_INIT;
    const char *side = cli_text(args, "side");
    int code = cli_name_opts(args, &names);
    if (code == CLI_OK) {
        code =
            cli_model_open(args, args->operands[0], side != NULL ? side : "source", &job->source);
    }
    if (code == CLI_OK) {
        code = cli_model_name(args, &job->source, &names);
    }
    if (code != CLI_OK) {
        return code;
    }
    return heft_contract_create(job->source.manifest, NULL, contract, NULL, &job->err) == HEFT_OK
               ? CLI_OK
               : cli_fail_status(args, &job->err);
}

static const heft_manifest_t **list_destinations(const cli_job_t *job)
{
    const heft_manifest_t **list = calloc((size_t)job->n_tapes + 1, sizeof(heft_manifest_t *));
    for (uint32_t i = 0; list != NULL && i < job->n_tapes; i++) {
        list[i] = job->destinations[i].manifest;
    }
    return list;
}

static int make_mapping(const cli_args_t *args, cli_job_t *job, heft_contract_t **contract)
{
    static const char *const others[] = { "side", "name-form", "layer-form" };
    for (size_t i = 0; i < CLI_COUNT(others); i++) {
        if (cli_has(args, others[i])) {
            return cli_fail(args, CLI_USAGE, "--%s is of a side alone: the recipe says it",
                            others[i]);
        }
    }
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    const heft_manifest_t **destinations = NULL;
    int code = cli_job_open(args, args->operands[0], false, job);
    job->n_tapes = job->n_ranks;
    if (code == CLI_OK && args->n_operands > 1) {
        code = cli_job_open_destinations(args, args->operands[1], job);
        destinations = code == CLI_OK ? list_destinations(job) : NULL;
        opts.destinations = destinations;
        opts.n_destinations = job->n_tapes;
        code = code == CLI_OK && destinations == NULL ? cli_out_of_memory(args) : code;
    }
    if (code == CLI_OK) {
        opts.recipe = job->recipe;
        opts.bindings = job->bindings;
        opts.issues = job->issues;
        if (heft_contract_create(job->source.manifest, &opts, contract, &job->report, &job->err) ==
            HEFT_OK) {
            cli_job_print_warnings(args, job);
        } else {
            code = cli_exit_of(&job->err);
            cli_job_print_refusal(args, job);
        }
    }
    free(destinations);
    return code;
}

/* ---- of ranks that were traced one by one ---- */

/* Contracts of some ranks each; the one of all borrows of them. */
typedef struct parts {
    cli_model_t *models;
    const heft_contract_t **contracts;
    uint32_t n;
} parts_t;

static void parts_fini(parts_t *parts)
{
    for (uint32_t i = 0; i < parts->n; i++) {
        cli_model_close(&parts->models[i]);
    }
    free(parts->models);
    free(parts->contracts);
}

static int open_part(const cli_args_t *args, const char *path, parts_t *parts)
{
    int code = cli_model_open(args, path, "source", &parts->models[parts->n]);
    const heft_contract_t *contract = parts->models[parts->n].contract;
    parts->contracts[parts->n++] = contract;
    if (code == CLI_OK && (contract == NULL || heft_contract_is_traced(contract) == 0)) {
        code = cli_fail(args, CLI_USAGE, "--merge: %s is no contract of a traced loader", path);
    }
    return code;
}

static int merge(const cli_args_t *args, cli_job_t *job, parts_t *parts, heft_contract_t **contract)
{
    static const char *const others[] = { "recipe", "let",       "config",
                                          "side",   "name-form", "layer-form" };
    bool is_alone = args->n_operands == 1;
    for (size_t i = 0; i < CLI_COUNT(others); i++) {
        is_alone = is_alone && !cli_has(args, others[i]);
    }
    if (!is_alone) {
        return cli_fail(args, CLI_USAGE, "--merge takes one operand and --output alone");
    }
    size_t cursor = 0;
    size_t n = 1;
    while (cli_next(args, "merge", &cursor) != NULL) {
        n++;
    }
    parts->models = calloc(n, sizeof *parts->models);
    parts->contracts = calloc(n, sizeof(heft_contract_t *));
    if (parts->models == NULL || parts->contracts == NULL) {
        return cli_out_of_memory(args);
    }
    int code = open_part(args, args->operands[0], parts);
    const char *path;
    cursor = 0;
    while (code == CLI_OK && (path = cli_next(args, "merge", &cursor)) != NULL) {
        code = open_part(args, path, parts);
    }
    if (code == CLI_OK && heft_contract_merge(parts->contracts, parts->n, 0, contract, &job->report,
                                              &job->err) != HEFT_OK) {
        code = cli_exit_of(&job->err);
        cli_job_print_refusal(args, job);
    }
    return code;
}

/* ---- writing ---- */

/* Under its name when it is whole: a contract that was there is replaced or stays as it was. */
static int write_file(const cli_args_t *args, const char *path, const char *text)
{
    char temp[4096];
    int n = snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temp) {
        return cli_fail(args, CLI_USAGE, "--output: the path is too long");
    }
    FILE *file = fopen(temp, "w");
    bool is_written = file != NULL && fputs(text, file) >= 0;
    is_written = is_written && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int code = errno;
    if (file != NULL && fclose(file) != 0 && is_written) {
        is_written = false;
        code = errno;
    }
    if (is_written && rename(temp, path) != 0) {
        is_written = false;
        code = errno;
    }
    if (!is_written) {
        (void)remove(temp);
        return cli_fail(args, CLI_SYSTEM, "cannot write %s: %s", path, strerror(code));
    }
    return CLI_OK;
}

static int write_contract(const cli_args_t *args, const heft_contract_t *contract)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    if (heft_contract_encode(contract, &text, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    const char *path = cli_text(args, "output");
    int code = CLI_OK;
    if (path != NULL) {
        code = write_file(args, path, text);
    } else if (fputs(text, stdout) < 0 || fflush(stdout) != 0) {
        code = cli_fail(args, CLI_SYSTEM, "cannot write to standard output");
    }
    heft_string_free(text);
    if (path != NULL && code == CLI_OK) {
        const heft_manifest_t *manifest = heft_contract_get_manifest(contract);
        (void)printf("%s  %s, %u tensors", heft_contract_get_digest(contract),
                     heft_manifest_get_side(manifest), heft_manifest_get_n_tensors(manifest));
        if (heft_contract_has_mapping(contract) != 0) {
            uint32_t n = heft_contract_get_n_ranks(contract);
            const char *name = heft_contract_get_recipe_name(contract);
            (void)printf(", %s, %u rank%s, plan %s", name != NULL ? name : "a traced loader", n,
                         n == 1 ? "" : "s", heft_contract_get_plan_digest(contract));
        }
        (void)printf("\n");
    }
    return code;
}

static int run(const cli_args_t *args)
{
    cli_job_t job;
    heft_contract_t *contract = NULL;
    parts_t parts = { .models = NULL };
    cli_job_init(&job);
    int code = cli_has(args, "merge")    ? merge(args, &job, &parts, &contract)
               : cli_has(args, "recipe") ? make_mapping(args, &job, &contract)
                                         : make_side(args, &job, &contract);
    if (code == CLI_OK) {
        code = write_contract(args, contract);
    }
    heft_contract_destroy(contract);
    parts_fini(&parts);
    cli_job_fini(&job);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "SRC",
      .help = "The source, or the side itself: a checkpoint, its manifest or its contract (.json).",
      .complete = CLI_COMPLETE_FILE },
    { .name = "DST",
      .help = "The destination, which then must agree and is recorded: a checkpoint or a manifest "
              "(.json); with several ranks a folder with rank-0, rank-1, ...",
      .complete = CLI_COMPLETE_FILE,
      .is_optional = true },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false),
    CLI_OPT_LET,
    CLI_OPT_CONFIG,
    { .name = "output",
      .value = "FILE",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .help = "Write the contract here, when it is whole, and print its digest. Default: the "
              "contract goes to standard output." },
    { .name = "side",
      .value = "SIDE",
      .kind = CLI_TEXT,
      .choices = "source destination",
      .help = "Without a recipe: the side of a checkpoint. Default: source." },
    { .name = "merge",
      .value = "FILE",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .is_repeatable = true,
      .help = "SRC is the contract of some ranks of a traced loader, FILE that of others; repeated "
              "until all are there. They are proven together and written as one." },
    CLI_OPT_NAME_FORM,
    CLI_OPT_LAYER_FORM,
};

const cli_command_t cli_cmd_contract = {
    .name = "contract",
    .summary = "record what a side is and how it is made",
    .description =
        "Writes a contract: the manifest of SRC and, with a recipe, the mapping: the recipe's "
        "text, the values it was given, the exceptions that hold with their reasons, the number "
        "of ranks, and the digest of every rank's plan. All ranks are compiled and proven first, "
        "as `heft check` does. No data are read. Equal input gives equal bytes.\n\n"
        "`heft check THEN NOW` then says what has changed between two contracts, and `heft check "
        "CONTRACT` whether this heft still maps as recorded.",
    .example = "heft contract MODEL --recipe hf-to-engine-dense --let tp=2 --output contract.json\n"
               "heft contract ENGINE --side destination > engine.json\n"
               "heft contract rank-0.json --merge rank-1.json --output fleet.json\n"
               "heft check contract.json",
    .exits = "0 1 2 3 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};
