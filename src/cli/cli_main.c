/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, and main. */
#include "cli/cli.h"

#include <signal.h>
#include <string.h>

/* clang-format off */
const cli_command_t *const cli_commands[] = {
    &cli_cmd_inspect,
    &cli_cmd_check,
    &cli_cmd_contract,
    &cli_cmd_plan,
    &cli_cmd_simulate,
    &cli_cmd_explain,
    &cli_cmd_convert,
    &cli_cmd_verify,
    &cli_cmd_diff,
    &cli_cmd_coordinator,
    &cli_cmd_serve,
    &cli_cmd_push,
    &cli_cmd_status,
    &cli_cmd_recover,
    &cli_cmd_remove,
    &cli_cmd_config,
    &cli_cmd_bench,
    &cli_cmd_demo,
    &cli_cmd_completion,
    &cli_cmd_version,
    &cli_cmd_help,
    NULL,
};
/* clang-format on */

const cli_command_t *cli_find_command(const char *name)
{
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        if (strcmp(cli_commands[i]->name, name) == 0) {
            return cli_commands[i];
        }
    }
    return NULL;
}

int cli_unknown_command(const char *name)
{
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, name);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        cli_nearest_try(&nearest, cli_commands[i]->name);
    }
    if (nearest.best != NULL) {
        return cli_fail(NULL, CLI_USAGE, "no command \"%s\"; nearest: %s", name, nearest.best);
    }
    return cli_fail(NULL, CLI_USAGE, "no command \"%s\"; `heft help` lists them", name);
}

static int run(const cli_command_t *command, int argc, char **argv)
{
    cli_args_t args;
    int code = cli_args_parse(&args, command, argc, argv);
    if (code == CLI_OK && args.wants_help) {
        cli_help_command(stdout, command);
    } else if (code == CLI_OK) {
        cli_catch_bus_errors(command->name);
        code = cli_log_set_up(&args);
        code = code == CLI_OK ? command->run(&args) : code;
    }
    cli_args_fini(&args);
    return code;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        cli_help_overview(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        cli_help_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const cli_command_t *command = cli_find_command(name);
    return command != NULL ? run(command, argc - 2, argv + 2) : cli_unknown_command(name);
}

int main(int argc, char **argv)
{
    /* Both are errors of one call here, with a message of their own, and not the end. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    int code = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && (code == CLI_OK || code == CLI_DIFFERS)) {
        code = cli_fail(NULL, CLI_SYSTEM, "cannot write to standard output");
    }
    return code;
}
