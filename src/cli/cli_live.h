/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of the coordinator: requests that come back as JSON, and the live verification. */
#ifndef HEFT_CLI_CLI_LIVE_H
#define HEFT_CLI_CLI_LIVE_H

#include "cli/cli.h"

/* GET or (body != NULL) POST; *reply_out is owned by the caller. Prints what is wrong. */
int cli_request(const cli_args_t *args, const char *url, const char *path, const char *body,
                uint32_t deadline_ms, json_t **reply_out);
/* Wait until a round has ended, deadline_s at most; *round_out is its record. */
int cli_wait_round(const cli_args_t *args, const char *url, const char *round, int64_t deadline_s,
                   json_t **round_out);
int cli_verify_live(const cli_args_t *args);

/* A key of an object as text or number; "" or 0 when it is not there. */
const char *cli_json_text(const json_t *object, const char *key);
int64_t cli_json_number(const json_t *object, const char *key);

#endif
