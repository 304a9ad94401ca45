/* SPDX-License-Identifier: Apache-2.0 */
/* `heft recover`: say what has become of a poisoned member; the coordinator checks it. */
#include "cli/cli_live.h"

#include <stdlib.h>
#include <string.h>

enum { REQUEST_MS = 10000 };

static int run(const cli_args_t *args)
{
    const char *id = args->operands[0];
    const char *claim = args->operands[1];
    json_t *root = json_pack("{s:[{s:s, s:s}]}", "members", "id", id, "claim", claim);
    char *body = root != NULL ? json_dumps(root, 0) : NULL;
    json_decref(root);
    if (body == NULL) {
        return cli_fail(args, CLI_USAGE, "MEMBER or CLAIM is not UTF-8");
    }
    json_t *status = NULL;
    int code = cli_request(args, cli_url(args), "/v1/recover", body, REQUEST_MS, &status);
    free(body);
    if (code != CLI_OK) {
        return code;
    }
    if (cli_has(args, "json")) {
        return cli_print_json(args, status);
    }
    const char *reason = cli_json_text(status, "reason");
    const bool poisoned = json_is_true(json_object_get(status, "poisoned"));
    (void)printf("recovered %s: %s%s\n", id, poisoned ? "still poisoned: " : "rounds may begin",
                 poisoned ? reason : "");
    json_decref(status);
    return CLI_OK;
}

static const cli_operand_t operands[] = {
    { .name = "MEMBER", .help = "As `heft status` shows it, such as destination.heft.0.1." },
    { .name = "CLAIM",
      .choices = "restarted fenced retry refill removed",
      .help = "What is true of it; checked." },
};

static const cli_option_t options[] = { CLI_OPT_JSON };

const cli_command_t cli_cmd_recover = {
    .name = "recover",
    .summary = "clear a poisoned member, by a claim that is checked",
    .description =
        "After a round that ended unknown or partially committed nothing goes on by itself. Say of "
        "each poisoned MEMBER (`heft status`) what is true of it. restarted: its process was "
        "started anew. fenced: its transfers have stopped, as it reports itself. retry: its cause "
        "is mended, flip it once more. refill: its parameters are written anew by the next push. "
        "removed: it is taken out, its engine must not serve. A claim that does not hold is "
        "refused with the reason. With --json: the coordinator's status afterwards.",
    .example = "heft recover destination.heft.0.1 retry --url http://127.0.0.1:7070",
    .exits = "0 2 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .knobs = HEFT_KNOB_CLIENT,
    .needs_url = true,
    .run = run,
};
