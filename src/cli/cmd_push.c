/* SPDX-License-Identifier: Apache-2.0 */
/* `heft push`: one round, with a checkpoint's files as the source. */
#include "cli/cli_live.h"
#include "cli/cli_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REQUEST_MS = 10000 };

static int stop_if_interrupted(void *arg, int64_t n_there, int64_t n_wanted)
{
    (void)arg;
    (void)n_there;
    (void)n_wanted;
    return cli_is_interrupted();
}

/* Until the coordinator knows `wanted` destinations. */
static int wait_for(const cli_args_t *args, int64_t wanted, int64_t deadline_s)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    opts.url = cli_url(args);
    opts.token_file = cli_text(args, "token-file");
    opts.ca_file = cli_text(args, "ca-file");
    opts.insecure = cli_has(args, "insecure");
    heft_status_t status = heft_client_await_destinations(
        &opts, (uint32_t)wanted, (uint32_t)(deadline_s * 1000), stop_if_interrupted, NULL, &err);
    const int code = status == HEFT_OK ? CLI_OK : cli_exit_of(&err);
    const bool is_local = code == CLI_USAGE || code == CLI_SYSTEM || code == CLI_INTERNAL;
    return status == HEFT_OK             ? CLI_OK
           : status == HEFT_ERR_CANCELED ? cli_fail(args, CLI_CANCELED, "%s", err.message)
           : status == HEFT_ERR_TIMEOUT  ? cli_fail(args, CLI_PEER, "%s", err.message)
                                         : cli_fail(args, is_local ? code : CLI_PEER, "%s (%s)",
                                                    err.message, heft_status_get_name(status));
}

/* Registering replaces a source of the same identity, and so would end a round that it is in: look
 * before. */
static int refuse_while_busy(const cli_args_t *args)
{
    json_t *status = NULL;
    int code = cli_request(args, cli_url(args), "/v1/status", NULL, REQUEST_MS, &status);
    if (code != CLI_OK) {
        return code;
    }
    const char *state = cli_json_text(status, "state");
    const bool is_feed = strcmp(cli_json_text(status, "kind"), "feed") == 0; /* gives way */
    if (json_is_true(json_object_get(status, "draining"))) {
        code = cli_fail(args, CLI_PEER,
                        "the coordinator is shutting down and begins no more rounds: push again "
                        "once it is back (ERR_BUSY)");
    } else if (json_is_true(json_object_get(status, "poisoned"))) {
        code = cli_fail(args, CLI_PEER, "no round begins before recovery: %s (ERR_POISONED)",
                        cli_json_text(status, "reason"));
    } else if (strcmp(state, "idle") != 0 && !is_feed && cli_json_number(status, "sources") > 0) {
        code = cli_fail(args, CLI_PEER, "round %s is in flight (%s): one push at a time (ERR_BUSY)",
                        cli_json_text(status, "round"), state);
    }
    json_decref(status);
    return code;
}

static json_t *result_json(const heft_push_result_t *r, const heft_error_t *err)
{
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:i, s:i, s:I, s:f, s:f, s:f, s:f}", "state", r->state, "version",
        (json_int_t)r->version, "round_epoch", (json_int_t)r->round_epoch, "round_seq",
        (json_int_t)r->round_seq, "destinations", (int)r->n_destinations, "pieces",
        (int)r->n_pieces, "bytes", (json_int_t)r->n_bytes, "transfer_s", r->transfer_s, "verify_s",
        r->verify_s, "pause_s", r->pause_s, "total_s", r->total_s);
    if (err->status != HEFT_OK) {
        (void)json_object_set_new(object, "error",
                                  json_pack("{s:s, s:s}", "status",
                                            heft_status_get_name(err->status), "message",
                                            err->message));
    }
    return object;
}

static void print_text(const heft_push_result_t *r)
{
    char bytes[32];
    cli_bytes_text(r->n_bytes, bytes);
    (void)printf("%-14s version %" PRId64 ", round %" PRId64 ".%" PRId64 "\n", r->state, r->version,
                 r->round_epoch, r->round_seq);
    if (r->n_destinations == 0) {
        (void)printf("%-14s already live everywhere\n", "destinations");
        return;
    }
    (void)printf("%-14s %u, %u pieces, %s\n", "destinations", r->n_destinations, r->n_pieces,
                 bytes);
    (void)printf("%-14s %.3f s", "transfer", r->transfer_s);
    if (r->transfer_s > 0) {
        (void)printf("  (%.2f GB/s)", (double)r->n_bytes / 1e9 / r->transfer_s);
    }
    (void)printf("\n%-14s %.3f s\n%-14s %.3f s\n%-14s %.3f s\n", "verify", r->verify_s, "pause",
                 r->pause_s, "total", r->total_s);
}

static uint8_t begin_of(const char *text)
{
    return text == NULL               ? HEFT_BEGIN_FIRST
           : strcmp(text, "yes") == 0 ? HEFT_BEGIN_YES
           : strcmp(text, "no") == 0  ? HEFT_BEGIN_NO
                                      : HEFT_BEGIN_FIRST;
}

static void interrupt(void *publisher)
{
    heft_publisher_interrupt(publisher);
}

static int push(const cli_args_t *args, const cli_model_t *model, const void *const *data)
{
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = cli_url(args);
    opts.job = cli_text(args, "job");
    opts.token_file = cli_text(args, "token-file");
    opts.ca_file = cli_text(args, "ca-file");
    opts.insecure = cli_has(args, "insecure");
    opts.n_threads = (uint32_t)cli_number(args, "threads", 0);
    opts.deadline_ms = (uint32_t)cli_number(args, "deadline-ms", 0);
    opts.transport = cli_text(args, "transport");
    opts.ucx_devices = cli_text(args, "ucx-devices");
    opts.ucx_lanes = (uint32_t)cli_number(args, "ucx-lanes", 0);
    opts.host = cli_text(args, "host");
    opts.ucx_silence_ms = (uint32_t)cli_number(args, "ucx-silence-ms", 0);
    opts.ucx_allow_tcp = cli_has(args, "ucx-allow-tcp");
    opts.max_bytes_per_s = (uint64_t)cli_number(args, "max-rate", 0);
    opts.replica = (uint32_t)cli_number(args, "replica", 0);
    opts.rank = (uint32_t)cli_number(args, "rank", 0);
    opts.n_ranks = (uint32_t)cli_number(args, "ranks", 0);
    opts.begin = begin_of(cli_text(args, "begin"));
    heft_publisher_t *publisher = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    if (heft_publisher_create(&opts, model->manifest, data, &publisher, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    heft_push_result_t result = { .version = cli_number(args, "version", 0) };
    cli_on_interrupt(interrupt, publisher);
    heft_status_t status = heft_publisher_push(publisher, result.version, &result, &err);
    cli_on_interrupt(NULL, NULL);
    heft_publisher_destroy(publisher);
    if (status == HEFT_OK) {
        err.status = HEFT_OK;
    }
    int code = CLI_OK;
    if (cli_has(args, "json")) {
        code = cli_print_json(args, result_json(&result, &err));
    } else if (status == HEFT_OK) {
        print_text(&result);
    }
    if (status != HEFT_OK) {
        int local = cli_exit_of(&err);
        if (status == HEFT_ERR_PROOF && result.round_epoch == 0) { /* refused: an empty side */
            return cli_fail(args, CLI_PEER, "%s at %s; start heft serve, or use --wait-for N (%s)",
                            err.message, opts.url, heft_status_get_name(status));
        }
        (void)cli_fail_status(args, &err);
        return cli_is_interrupted()                           ? CLI_CANCELED
               : local == CLI_SYSTEM || local == CLI_INTERNAL ? local
                                                              : CLI_PEER;
    }
    return code;
}

/* data[i] of every tensor, or of this rank's rows. */
static int locate(const cli_args_t *args, cli_model_t *model, const void **data)
{
    const uint32_t n = heft_manifest_get_n_tensors(model->manifest);
    int64_t *offsets = calloc((size_t)n + 1, sizeof *offsets);
    if (offsets == NULL) {
        return cli_out_of_memory(args);
    }
    int code = CLI_OK;
    if (cli_has(args, "split")) {
        code = cli_model_share(args, model, (uint32_t)cli_number(args, "rank", 0),
                               (uint32_t)cli_number(args, "ranks", 1), offsets);
    }
    for (uint32_t i = 0; i < n && code == CLI_OK; i++) {
        data[i] = (const char *)heft_checkpoint_get_data(model->checkpoint, i) + offsets[i];
    }
    free(offsets);
    return code;
}

static int check_ranks(const cli_args_t *args)
{
    const int64_t n_ranks = cli_number(args, "ranks", 0);
    const int64_t rank = cli_number(args, "rank", 0);
    if (cli_has(args, "split") && n_ranks == 0) {
        return cli_fail(args, CLI_USAGE, "--split needs --ranks: how many share the rows");
    }
    if (cli_has(args, "split") && rank >= n_ranks) {
        return cli_fail(args, CLI_USAGE,
                        "--rank %" PRId64 " of %" PRId64 " ranks: from 0 to %" PRId64, rank,
                        n_ranks, n_ranks - 1);
    }
    return CLI_OK;
}

static int open_source(const cli_args_t *args, cli_model_t *model)
{
    heft_name_opts_t names = HEFT_NAME_OPTS_INIT;
    int code = cli_model_open_checkpoint(args, args->operands[0], "source", model);
    if (code == CLI_OK) {
        code = cli_name_opts(args, &names);
    }
    return code == CLI_OK ? cli_model_name(args, model, &names) : code;
}

static int run(const cli_args_t *args)
{
    cli_catch_signals();
    int64_t wanted = cli_number(args, "wait-for", 0);
    cli_model_t model;
    int code = check_ranks(args);
    if (code != CLI_OK) {
        return code;
    }
    code = open_source(args, &model);
    if (code != CLI_OK) {
        cli_model_close(&model);
        return code;
    }
    uint32_t n = heft_manifest_get_n_tensors(model.manifest);
    const void **data = calloc((size_t)n + 1, sizeof(void *));
    code = data != NULL ? locate(args, &model, data) : cli_out_of_memory(args);
    if (code == CLI_OK && wanted > 0) {
        code = wait_for(args, wanted, cli_number(args, "wait-seconds", 60));
    }
    code = code == CLI_OK ? refuse_while_busy(args) : code;
    if (code == CLI_OK) {
        code = push(args, &model, data);
    }
    free(data);
    cli_model_close(&model);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "SRC", .help = "The checkpoint to push.", .complete = CLI_COMPLETE_FILE },
};

static const cli_option_t options[] = {
    { .name = "version",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = (INT64_C(1) << 53) - 1,
      .is_required = true,
      .help = "The version this becomes: higher than the committed one, or the same with the same "
              "weights, which brings up ranks that lag." },
    { .name = "wait-for",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 65536,
      .help = "First wait until so many destinations have registered." },
    { .name = "wait-seconds",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 86400,
      .help = "Deadline of --wait-for. Default: 60." },
    { .name = "rank",
      .value = "R",
      .kind = CLI_NUMBER,
      .max = 65535,
      .help = "Which rank of the trainer this is, where several push together. Default: 0." },
    { .name = "replica",
      .value = "N",
      .kind = CLI_NUMBER,
      .max = 65535,
      .help = "And of which replica of it. Default: 0." },
    { .name = "ranks",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 65536,
      .help = "How many ranks push together: the round waits for them, and is refused without one "
              "of them." },
    { .name = "split",
      .help =
          "Of every tensor, hold only this rank's share of the rows, as FSDP deals them: several "
          "processes send one checkpoint together. Needs --ranks." },
    { .name = "begin",
      .value = "WHO",
      .kind = CLI_TEXT,
      .choices = "first yes no",
      .help = "Whether this process begins the round: first (rank 0 of replica 0 does, the others "
              "wait for its round), yes or no. Default: first." },
    CLI_OPT_NAME_FORM,
    CLI_OPT_LAYER_FORM,
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_push = {
    .name = "push",
    .summary = "bring every registered destination to a new version",
    .description =
        "Registers SRC as the source, starts a round and takes part in it until it ends. Success "
        "means that every destination serves the new version. Otherwise every destination serves "
        "what it served before, and the message names the phase, the member and the cause.",
    .example = "heft push MODEL --url http://127.0.0.1:7070 --version 8 --wait-for 3",
    .exits = "0 2 3 4 5 130",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .knobs = HEFT_KNOB_PUBLISHER,
    .needs_url = true,
    .run = run,
};
