/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of the coordinator (docs/formats/control.md). */
#include "cli/cli_live.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_MS = 30000, WAIT_S = 5 };

const char *cli_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

int64_t cli_json_number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

int cli_request(const cli_args_t *args, const char *url, const char *path, const char *body,
                uint32_t deadline_ms, json_t **reply_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    opts.url = url;
    opts.token_file = cli_text(args, "token-file");
    opts.ca_file = cli_text(args, "ca-file");
    opts.insecure = cli_has(args, "insecure");
    opts.deadline_ms = deadline_ms;
    heft_status_t status =
        heft_client_request(&opts, body != NULL ? "POST" : "GET", path, body, &text, &err);
    if (status != HEFT_OK) {
        int code = cli_exit_of(&err);
        bool is_local = code == CLI_USAGE || code == CLI_SYSTEM || code == CLI_INTERNAL;
        return cli_fail(args, is_local ? code : CLI_PEER, "%s (%s)", err.message,
                        heft_status_get_name(status));
    }
    json_error_t error;
    json_t *reply = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    heft_string_free(text);
    if (!json_is_object(reply)) {
        json_decref(reply);
        return cli_fail(args, CLI_PEER, "%s%s: the reply is no JSON object", url, path);
    }
    *reply_out = reply;
    return CLI_OK;
}

int cli_wait_round(const cli_args_t *args, const char *url, const char *round, int64_t deadline_s,
                   json_t **round_out)
{
    int64_t end_ns = cli_mono_ns() + deadline_s * 1000000000;
    for (;;) {
        int64_t left_s = (end_ns - cli_mono_ns()) / 1000000000;
        char path[160];
        json_t *reply = NULL;
        (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=%" PRId64, round,
                       left_s < WAIT_S ? (left_s > 0 ? left_s : 0) : WAIT_S);
        int code = cli_request(args, url, path, NULL, REQUEST_MS, &reply);
        if (code != CLI_OK) {
            return code;
        }
        if (json_is_true(json_object_get(reply, "ended"))) {
            *round_out = reply;
            return CLI_OK;
        }
        bool is_late = cli_mono_ns() >= end_ns;
        if (is_late) {
            code = cli_fail(args, CLI_PEER, "round %s has not ended after %" PRId64 " s (phase %s)",
                            round, deadline_s, cli_json_text(reply, "phase"));
        }
        json_decref(reply);
        if (is_late) {
            return code;
        }
    }
}

/* ---- verify --live ---- */

static void print_differing(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        (void)printf("    %s: digest %s, expected %s\n", cli_json_text(item, "param"),
                     cli_json_text(item, "found"), cli_json_text(item, "expected"));
    }
}

static int print_live(const cli_args_t *args, json_t *round)
{
    size_t n_members = json_array_size(json_object_get(round, "live"));
    size_t n_matching = 0;
    for (size_t i = 0; i < n_members; i++) {
        const json_t *m = json_array_get(json_object_get(round, "live"), i);
        const json_t *match = json_object_get(m, "match");
        n_matching += json_is_true(match) ? 1 : 0;
        if (!cli_has(args, "json")) {
            (void)printf("%-32s version %" PRId64 "  %" PRId64 " parameters  %s",
                         cli_json_text(m, "member"), cli_json_number(m, "version"),
                         cli_json_number(m, "params"),
                         json_is_true(match)                  ? "match"
                         : cli_json_number(m, "version") == 0 ? "no version yet"
                         : match == NULL                      ? "not known"
                                                              : "differ");
            if (json_is_false(match)) {
                (void)printf(" (%" PRId64 " of them)", cli_json_number(m, "differ"));
            }
            (void)printf("\n");
            print_differing(json_object_get(m, "differing"));
        }
    }
    bool has_passed = strcmp(cli_json_text(round, "state"), "passed") == 0;
    const json_t *cause = json_object_get(round, "cause");
    int code = !has_passed && cause != NULL && n_members == 0 ? CLI_PEER
               : has_passed && n_matching == n_members        ? CLI_OK
                                                              : CLI_DIFFERS;
    if (cli_has(args, "json")) {
        int printed = cli_print_json(args, json_incref(round));
        return printed == CLI_OK ? code : printed;
    }
    if (has_passed || n_members > 0) {
        (void)printf("%zu of %zu destinations match\n", n_matching, n_members);
    }
    if (!has_passed && cause != NULL) {
        (void)cli_fail(args, code, "%s: %s: %s: %s (%s)", cli_json_text(round, "state"),
                       cli_json_text(cause, "phase"), cli_json_text(cause, "member"),
                       cli_json_text(cause, "cause"), cli_json_text(cause, "status"));
    }
    return code;
}

int cli_verify_live(const cli_args_t *args)
{
    char body[96];
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(body, sizeof body, "{\"key\": \"verify-%ld-%lld-%ld\"}", (long)getpid(),
                   (long long)now.tv_sec, now.tv_nsec);
    json_t *reply = NULL;
    int code = cli_request(args, cli_url(args), "/v1/verify", body, REQUEST_MS, &reply);
    if (code != CLI_OK) {
        return code;
    }
    json_t *round = NULL;
    code = cli_wait_round(args, cli_url(args), cli_json_text(reply, "round"),
                          cli_number(args, "deadline", 120), &round);
    json_decref(reply);
    if (code == CLI_OK) {
        code = print_live(args, round);
        json_decref(round);
    }
    return code;
}
