/* SPDX-License-Identifier: Apache-2.0 */
/* `heft status`: what the coordinator knows, once or again and again. */
#include "cli/cli_live.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_MS = 10000 };

/* A count that may be given as a number or as a list. */
static int64_t count_of(const json_t *status, const char *key)
{
    const json_t *value = json_object_get(status, key);
    return json_is_array(value) ? (int64_t)json_array_size(value) : json_integer_value(value);
}

static void print_member(const json_t *m)
{
    const json_t *serving = json_object_get(m, "serving");
    (void)printf("  %-32s %-10s version %-6" PRId64 " %-12s %s", cli_json_text(m, "id"),
                 cli_json_text(m, "state"), cli_json_number(m, "live_version"),
                 serving == NULL || strcmp(cli_json_text(m, "role"), "source") == 0 ? ""
                 : json_is_true(serving)                                            ? "serving"
                                                                                    : "not serving",
                 cli_json_text(m, "condition"));
    const char *contact = cli_json_text(m, "contact");
    if (contact[0] != '\0' && strcmp(contact, "ok") != 0) {
        (void)printf("  %s %" PRId64 " s", contact, cli_json_number(m, "silent_ms") / 1000);
    }
    const json_t *error = json_object_get(m, "error");
    if (error != NULL) {
        (void)printf("  %s: %s", cli_json_text(error, "phase"), cli_json_text(error, "cause"));
    }
    (void)printf("\n");
    const char *ways = cli_json_text(m, "ways");
    if (ways[0] != '\0') {
        (void)printf("    sends to %s\n", ways);
    }
}

/* destination.heft.0.10 comes after destination.heft.0.9. */
static int compare_members(const void *a, const void *b)
{
    const char *x = cli_json_text(*(const json_t *const *)a, "id");
    const char *y = cli_json_text(*(const json_t *const *)b, "id");
    return strverscmp(x, y);
}

static void print_text(const char *url, const json_t *status)
{
    (void)printf("coordinator  %s  epoch %" PRId64 "  sequence %" PRId64 "\n", url,
                 cli_json_number(status, "epoch"), cli_json_number(status, "sequence"));
    (void)printf("committed    version %" PRId64 "\n",
                 cli_json_number(status, "committed_version"));
    const char *round = cli_json_text(status, "round");
    (void)printf("state        %s%s%s\n", cli_json_text(status, "state"),
                 round[0] != '\0' ? "  round " : "", round);
    if (json_is_true(json_object_get(status, "poisoned"))) {
        (void)printf("poisoned     %s\n", cli_json_text(status, "reason"));
    }
    (void)printf("members      %" PRId64 " sources, %" PRId64 " destinations\n",
                 count_of(status, "sources"), count_of(status, "destinations"));
    const json_t *members = json_object_get(status, "members");
    const size_t n = json_array_size(members);
    const json_t **sorted = calloc(n + 1, sizeof *sorted);
    for (size_t i = 0; i < n && sorted != NULL; i++) {
        sorted[i] = json_array_get(members, i);
    }
    if (sorted != NULL) { /* else in the order in which they came */
        qsort(sorted, n, sizeof *sorted, compare_members);
    }
    for (size_t i = 0; i < n; i++) {
        print_member(sorted != NULL ? sorted[i] : json_array_get(members, i));
    }
    free(sorted);
}

static void print_time(void)
{
    const time_t now = time(NULL);
    struct tm local;
    char text[40];
    if (localtime_r(&now, &local) != NULL &&
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local) > 0) {
        (void)printf("time         %s\n", text);
    }
}

static int show(const cli_args_t *args, bool is_watching)
{
    json_t *status = NULL;
    int code = cli_request(args, cli_url(args), "/v1/status", NULL, REQUEST_MS, &status);
    if (code != CLI_OK) {
        return code;
    }
    if (cli_has(args, "json")) {
        return is_watching ? cli_print_json_line(args, status) : cli_print_json(args, status);
    }
    if (is_watching && isatty(STDOUT_FILENO) == 1) {
        (void)fputs("\033[H\033[2J", stdout);
    }
    if (is_watching) {
        print_time();
    }
    print_text(cli_url(args), status);
    (void)fflush(stdout);
    json_decref(status);
    return CLI_OK;
}

static int run(const cli_args_t *args)
{
    if (!cli_has(args, "watch")) {
        return show(args, false);
    }
    cli_catch_signals();
    int code = show(args, true);
    while (code == CLI_OK && !cli_is_interrupted()) {
        const struct timespec second = { .tv_sec = 1 };
        (void)nanosleep(&second, NULL); /* a signal ends it early */
        if (!cli_is_interrupted()) {
            code = show(args, true);
        }
    }
    return code;
}

static const cli_option_t options[] = {
    { .name = "watch",
      .kind = CLI_FLAG,
      .help = "Print again every second, until interrupted. With --json: one line each." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_status = {
    .name = "status",
    .summary = "show the members, the committed version and the round in flight",
    .description = "Asks the coordinator what it knows: epoch, committed version, the round in "
                   "flight, and every member with its state, live version and condition. One that "
                   "has not been heard for longer than a poll is shown as silent, with the time "
                   "since; beyond the contact time as lost (`heft remove`). With "
                   "--json: the coordinator's reply as it is.",
    .example = "heft status --url http://127.0.0.1:7070 --watch\n"
               "HEFT_URL=http://127.0.0.1:7070 heft status --json | jq .committed_version",
    .exits = "0 2 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .knobs = HEFT_KNOB_CLIENT,
    .needs_url = true,
    .run = run,
};
