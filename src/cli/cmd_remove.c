/* SPDX-License-Identifier: Apache-2.0 */
/* `heft remove`: take a member out, such as one whose process has died and will not come back. */
#include "cli/cli_live.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MS = 10000 };

/* A member that is still heard is left alone unless --force: its engine may be serving. */
static int check_silent(const cli_args_t *args, const char *id)
{
    json_t *status = NULL;
    int code = cli_request(args, cli_url(args), "/v1/status", NULL, REQUEST_MS, &status);
    if (code != CLI_OK) {
        return code;
    }
    const json_t *members = json_object_get(status, "members");
    for (size_t i = 0; i < json_array_size(members); i++) {
        const json_t *m = json_array_get(members, i);
        if (strcmp(cli_json_text(m, "id"), id) == 0 &&
            strcmp(cli_json_text(m, "contact"), "ok") == 0) {
            code = cli_fail(args, CLI_PEER,
                            "%s was heard %.1f s ago: end its process and wait until it is silent, "
                            "or use --force",
                            id, (double)cli_json_number(m, "silent_ms") / 1000);
        }
    }
    json_decref(status);
    return code;
}

static int run(const cli_args_t *args)
{
    const char *id = args->operands[0];
    int code = cli_has(args, "force") ? CLI_OK : check_silent(args, id);
    if (code != CLI_OK) {
        return code;
    }
    json_t *claim = json_pack("{s:[{s:s, s:s}]}", "members", "id", id, "claim", "removed");
    char *body = json_dumps(claim, 0);
    json_decref(claim);
    if (body == NULL) {
        return cli_fail(args, CLI_USAGE, "MEMBER is not UTF-8");
    }
    json_t *status = NULL;
    code = cli_request(args, cli_url(args), "/v1/recover", body, REQUEST_MS, &status);
    free(body);
    if (code != CLI_OK) {
        return code;
    }
    if (cli_has(args, "json")) {
        return cli_print_json(args, status);
    }
    int64_t n = cli_json_number(status, "destinations");
    (void)printf("removed %s; left: %" PRId64 " destination%s\n", id, n, n == 1 ? "" : "s");
    json_decref(status);
    return CLI_OK;
}

static const cli_operand_t operands[] = {
    { .name = "MEMBER", .help = "As `heft status` shows it, such as destination.heft.0.1." },
};

static const cli_option_t options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "Also a member that is still heard. Its engine must not serve." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_remove = {
    .name = "remove",
    .summary = "take out a member that has died",
    .description =
        "Tells the coordinator to forget MEMBER, so that rounds no longer wait for it. For a "
        "process that has died and will not be started again; one that is started again registers "
        "by itself and takes its old place. A removed process cannot come back: it must be "
        "restarted. Its engine must not serve. Refused while a round is in flight. With --json: "
        "the coordinator's status afterwards.",
    .example = "heft remove destination.heft.0.1 --url http://127.0.0.1:7070",
    .exits = "0 2 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .knobs = HEFT_KNOB_CLIENT,
    .needs_url = true,
    .run = run,
};
