/* SPDX-License-Identifier: Apache-2.0 */
/* `heft help`, `heft version`, `heft completion`. */
#include "cli/cli.h"
#include "heft/sync.h"

/* ---- help ---- */

static int run_help(const cli_args_t *args)
{
    if (args->n_operands == 0) {
        cli_help_overview(stdout);
        return CLI_OK;
    }
    const cli_command_t *command = cli_find_command(args->operands[0]);
    if (command == NULL) {
        return cli_unknown_command(args->operands[0]);
    }
    cli_help_command(stdout, command);
    return CLI_OK;
}

static const cli_operand_t help_operands[] = {
    { .name = "COMMAND",
      .help = "The command to explain. Without it: the list of commands.",
      .complete = CLI_COMPLETE_COMMAND,
      .is_optional = true },
};

const cli_command_t cli_cmd_help = {
    .name = "help",
    .summary = "list the commands, or explain one",
    .description = "Prints the list of commands, or the manual page of one.",
    .example = "heft help convert",
    .exits = "0 2",
    .operands = help_operands,
    .n_operands = CLI_COUNT(help_operands),
    .run = run_help,
};

/* ---- version ---- */

static int run_version(const cli_args_t *args)
{
    const char *ucx = heft_ucx_get_version();
    if (cli_has(args, "json")) {
        return cli_print_json(args, json_pack("{s:s, s:[s, s*], s:s?}", "version",
                                              heft_version_get(), "transports", "shm",
                                              ucx != NULL ? "ucx" : NULL, "openucx", ucx));
    }
    (void)printf("heft %s\ntransports: shm%s%s%s\n", heft_version_get(),
                 ucx == NULL   ? "; ucx is not built in"
                 : ucx[0] == 0 ? ", ucx (OpenUCX is not on this host)"
                               : ", ucx (OpenUCX ",
                 ucx != NULL ? ucx : "", ucx != NULL && ucx[0] != '\0' ? ")" : "");
    return CLI_OK;
}

static const cli_option_t version_options[] = { CLI_OPT_JSON };

const cli_command_t cli_cmd_version = {
    .name = "version",
    .summary = "print the version",
    .description =
        "Prints the version of this command and its library, and the transports it was built "
        "with.",
    .example = "heft version",
    .exits = "0 2 4",
    .options = version_options,
    .n_options = CLI_COUNT(version_options),
    .run = run_version,
};

/* ---- completion ---- */

static int run_completion(const cli_args_t *args)
{
    (void)args;
    cli_completion_bash(stdout);
    return CLI_OK;
}

static const cli_operand_t completion_operands[] = {
    { .name = "SHELL", .help = "The shell: bash.", .choices = "bash" },
};

const cli_command_t cli_cmd_completion = {
    .name = "completion",
    .summary = "print a completion script for the shell",
    .description = "Prints a script that makes the shell complete commands, options and files. It "
                   "is made from the same tables as the help pages.",
    .example = "source <(heft completion bash)",
    .exits = "0 2 4",
    .operands = completion_operands,
    .n_operands = CLI_COUNT(completion_operands),
    .run = run_completion,
};
