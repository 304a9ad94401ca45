/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `heft serve`: a destination without an engine. It allocates the parameters that the recipe makes
 * for one rank, takes part in rounds as an engine would, and reads what it serves all the while.
 */
#include "cli/cli_engine.h"
#include "cli/cli_job.h"
#include "cli/cli_watch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_MS = 500 };

/* What the rank holds, by the values that the recipe has. */
typedef struct held {
    cli_job_t job;
    heft_manifest_t *params;
    uint64_t *digests;  /* room for those of one version */
    heft_param_t *live; /* where the parameters are; NULL: they were given at creation */
    cli_engine_t *engine;
} held_t;

typedef struct serve {
    const cli_args_t *args;
    held_t *held;
    cli_watch_t watch;
    heft_subscriber_t *subscriber;
    json_t *versions; /* for the report */
    int64_t pause_ns; /* when the pause began; 0: not paused */
    int64_t longest_pause_ns;
    bool is_peer_lost;
    bool is_suspect; /* said already */
} serve_t;

/* ---- events: a line on stderr, with --json also on stdout ---- */

/* Takes fields. */
static void emit(serve_t *s, const char *event, json_t *fields, const char *line)
{
    (void)fprintf(stderr, "heft serve: rank %u: %s\n", s->held->job.first_rank, line);
    if (cli_has(s->args, "json") && fields != NULL) {
        (void)json_object_set_new(fields, "event", json_string(event));
        (void)cli_print_json_line(s->args, json_incref(fields));
    }
    json_decref(fields);
}

static void emit_readers(serve_t *s)
{
    cli_engine_counts_t counts;
    cli_engine_query(s->held->engine, &counts);
    char line[160];
    (void)snprintf(line, sizeof line, "readers: %" PRId64 " passes, %" PRId64 " bytes, %s",
                   counts.passes, counts.read_bytes, counts.is_torn ? "torn" : "none torn");
    emit(s, "readers",
         json_pack("{s:I, s:I, s:b}", "passes", (json_int_t)counts.passes, "bytes",
                   (json_int_t)counts.read_bytes, "torn", (int)counts.is_torn),
         line);
}

/* ---- hooks, on the polling thread ---- */

static int on_pause(void *arg)
{
    serve_t *s = arg;
    s->pause_ns = cli_mono_ns();
    cli_engine_close_gate(s->held->engine);
    return 0;
}

static int on_resume(void *arg, int64_t version)
{
    serve_t *s = arg;
    int64_t pause_ns = s->pause_ns != 0 ? cli_mono_ns() - s->pause_ns : 0;
    uint32_t n = heft_manifest_get_n_tensors(s->held->params);
    for (uint32_t i = 0; i < n; i++) {
        s->held->digests[i] = heft_subscriber_get_digest(s->subscriber, i);
    }
    cli_engine_open_gate(s->held->engine, version, s->held->digests);
    s->pause_ns = 0;
    s->longest_pause_ns = pause_ns > s->longest_pause_ns ? pause_ns : s->longest_pause_ns;
    char line[128];
    double pause_ms = (double)pause_ns / 1e6;
    (void)snprintf(line, sizeof line, "version %" PRId64 " live, paused %.1f ms", version,
                   pause_ms);
    (void)json_array_append_new(
        s->versions, json_pack("{s:I, s:f}", "version", (json_int_t)version, "pause_ms", pause_ms));
    emit(s, "live", json_pack("{s:I, s:f}", "version", (json_int_t)version, "pause_ms", pause_ms),
         line);
    if (cli_number(s->args, "readers", 0) > 0) {
        emit_readers(s);
    }
    return 0;
}

/* ---- what the rank holds ---- */

static void held_destroy(held_t *held)
{
    if (held != NULL) {
        cli_engine_destroy(held->engine);
        heft_manifest_destroy(held->params);
        cli_job_fini(&held->job);
        free(held->live);
        free(held->digests);
        free(held);
    }
}

static int make_params(const cli_args_t *args, held_t *held)
{
    const char *model = cli_text(args, "model");
    int code = cli_job_open(args, model, false, &held->job);
    if (code != CLI_OK) {
        return code;
    }
    if (!cli_has(args, "rank") && held->job.n_ranks > 1) {
        return cli_fail(args, CLI_USAGE, "the recipe has %u ranks: --rank is needed",
                        held->job.n_ranks);
    }
    code = cli_job_compile(args, NULL, &held->job);
    if (code != CLI_OK) {
        code = held->job.err.status != HEFT_OK ? cli_fail_status(args, &held->job.err) : code;
        cli_print_issues(stderr, &held->job);
        return code;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    if (heft_recipe_synthesize(held->job.recipe, held->job.bindings, held->job.first_rank,
                               held->job.source.manifest, NULL, &held->params, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    held->digests =
        calloc((size_t)heft_manifest_get_n_tensors(held->params) + 1, sizeof held->digests[0]);
    if (held->digests == NULL) {
        return cli_out_of_memory(args);
    }
    return cli_engine_create(args, held->params, (uint32_t)cli_number(args, "readers", 0),
                             &held->engine);
}

/* why: of a failure, beside what is printed. */
static int held_create(const cli_args_t *args, held_t **held_out, heft_error_t *why)
{
    held_t *held = calloc(1, sizeof *held);
    if (held == NULL) {
        return cli_out_of_memory(args);
    }
    cli_job_init(&held->job);
    const int code = make_params(args, held);
    if (code != CLI_OK) {
        *why = held->job.err;
        held_destroy(held);
        return code;
    }
    *held_out = held;
    return CLI_OK;
}

/* ---- another layout ---- */

static heft_status_t renew(serve_t *s, held_t *next, heft_error_t *err)
{
    const uint32_t n = heft_manifest_get_n_tensors(next->params);
    next->live = calloc((size_t)n + 1, sizeof next->live[0]);
    if (next->live == NULL) {
        return HEFT_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        next->live[i].data = cli_engine_get_params(next->engine)[i];
    }
    heft_renewal_t renewal = HEFT_RENEWAL_INIT;
    renewal.recipe = next->job.recipe;
    renewal.bindings = next->job.bindings;
    renewal.manifest = next->params;
    renewal.params = next->live;
    return heft_subscriber_renew_as(s->subscriber, &renewal, err);
}

static void emit_renewal(serve_t *s, heft_status_t status, const char *why)
{
    const char *event = status == HEFT_OK ? "renewed" : "refused";
    char line[400];
    (void)snprintf(line, sizeof line, "%s%.300s",
                   status == HEFT_OK ? "renewed: the next push brings a version into this layout"
                                     : "the layout stays as it is: ",
                   status == HEFT_OK ? "" : why);
    emit(s, event, json_pack("{s:s}", "message", status == HEFT_OK ? "" : why), line);
}

/* A file of --let has changed: another layout, or everything stays as it is. False: not now. */
static bool follow_files(serve_t *s)
{
    heft_error_t err = HEFT_ERROR_INIT;
    held_t *next = NULL;
    if (heft_subscriber_is_in_round(s->subscriber)) {
        return false;
    }
    if (held_create(s->args, &next, &err) != CLI_OK) {
        emit_renewal(s, HEFT_ERR_FORMAT, err.message);
        return true;
    }
    const heft_status_t status = renew(s, next, &err);
    const bool stands = status == HEFT_OK || status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT;
    held_t *old = stands ? s->held : next;
    s->held = stands ? next : s->held;
    held_destroy(old);
    emit_renewal(s, stands ? HEFT_OK : status, err.message);
    return true;
}

static void look_at_files(serve_t *s)
{
    cli_watch_t now = s->watch;
    if (cli_has(s->args, "watch") && cli_watch_look(&now, s->args) && follow_files(s)) {
        s->watch = now;
    }
}

/* ---- rounds ---- */

static int subscribe(serve_t *s, const heft_hooks_t *hooks)
{
    const cli_args_t *args = s->args;
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = cli_url(args);
    opts.job = cli_text(args, "job");
    opts.token_file = cli_text(args, "token-file");
    opts.ca_file = cli_text(args, "ca-file");
    opts.insecure = cli_has(args, "insecure");
    opts.replica = (uint32_t)cli_number(args, "replica", 0);
    opts.rank = s->held->job.first_rank;
    opts.n_threads = (uint32_t)cli_number(args, "threads", 0);
    opts.deadline_ms = (uint32_t)cli_number(args, "deadline-ms", 0);
    opts.transport = cli_text(args, "transport");
    opts.ucx_devices = cli_text(args, "ucx-devices");
    opts.ucx_lanes = (uint32_t)cli_number(args, "ucx-lanes", 0);
    opts.host = cli_text(args, "host");
    opts.ucx_silence_ms = (uint32_t)cli_number(args, "ucx-silence-ms", 0);
    opts.ucx_allow_tcp = cli_has(args, "ucx-allow-tcp");
    opts.in_place = cli_has(args, "in-place");
    opts.buffer_bytes = cli_number(args, "buffer-bytes", 0);
    opts.hooks = hooks;
    heft_error_t err = HEFT_ERROR_INIT;
    if (heft_subscriber_create(&opts, s->held->job.recipe, s->held->job.bindings, s->held->params,
                               cli_engine_get_params(s->held->engine), &s->subscriber,
                               &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    char line[400];
    uint32_t n = heft_manifest_get_n_tensors(s->held->params);
    int64_t n_bytes = heft_manifest_get_n_bytes(s->held->params);
    (void)snprintf(line, sizeof line, "registered with %.200s: %u parameters, %" PRId64 " bytes",
                   opts.url, n, n_bytes);
    emit(s, "registered",
         json_pack("{s:s, s:i, s:i, s:i, s:I}", "url", opts.url, "rank", (int)opts.rank, "replica",
                   (int)opts.replica, "params", (int)n, "bytes", (json_int_t)n_bytes),
         line);
    return CLI_OK;
}

/* The coordinator is away: the live version stays, and we go on asking. */
static void note_peer(serve_t *s, heft_status_t status, const heft_error_t *err)
{
    bool is_lost = status != HEFT_OK;
    if (is_lost != s->is_peer_lost) {
        emit(s, is_lost ? "unreachable" : "reachable",
             json_pack("{s:s}", "message", is_lost ? err->message : ""),
             is_lost ? err->message : "the coordinator answers again");
        s->is_peer_lost = is_lost;
    }
    if (is_lost) {
        const struct timespec pause = { .tv_nsec = 200000000 };
        (void)nanosleep(&pause, NULL);
    }
}

/* Out of service until a round writes the parameters anew, which takes polling. */
static void note_suspicion(serve_t *s, heft_status_t status, const heft_error_t *err)
{
    bool is_suspect = status == HEFT_ERR_POISONED;
    if (is_suspect && !s->is_suspect) {
        emit(s, "suspect", json_pack("{s:s}", "message", err->message), err->message);
    }
    s->is_suspect = is_suspect || (s->is_suspect && status != HEFT_OK);
}

static int poll_until_stopped(serve_t *s)
{
    while (!cli_is_interrupted()) {
        look_at_files(s);
        heft_error_t err = HEFT_ERROR_INIT;
        heft_status_t status = heft_subscriber_poll(s->subscriber, POLL_MS, &err);
        cli_engine_counts_t counts;
        cli_engine_query(s->held->engine, &counts);
        if (counts.is_torn) {
            emit(s, "torn", json_pack("{s:s}", "message", counts.torn), counts.torn);
            return CLI_DIFFERS;
        }
        note_suspicion(s, status, &err);
        if (status == HEFT_OK || status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT) {
            note_peer(s, status, &err);
            continue;
        }
        if (status == HEFT_ERR_POISONED) {
            continue;
        }
        emit(
            s, "failed",
            json_pack("{s:s, s:s}", "status", heft_status_get_name(status), "message", err.message),
            err.message);
        return cli_exit_of(&err);
    }
    return CLI_OK;
}

static int write_report(const serve_t *s, const char *path, int code)
{
    cli_engine_counts_t counts;
    cli_engine_query(s->held->engine, &counts);
    json_t *report = json_pack(
        "{s:i, s:i, s:i, s:I, s:O, s:I, s:I, s:b, s:f, s:i}", "rank", (int)s->held->job.first_rank,
        "replica", (int)cli_number(s->args, "replica", 0), "params",
        (int)heft_manifest_get_n_tensors(s->held->params), "bytes",
        (json_int_t)heft_manifest_get_n_bytes(s->held->params), "versions", s->versions, "passes",
        (json_int_t)counts.passes, "read_bytes", (json_int_t)counts.read_bytes, "torn",
        (int)counts.is_torn, "longest_pause_ms", (double)s->longest_pause_ns / 1e6, "exit", code);
    if (report == NULL || json_dump_file(report, path, JSON_INDENT(2)) != 0) {
        json_decref(report);
        return cli_fail(s->args, CLI_SYSTEM, "cannot write %s", path);
    }
    json_decref(report);
    return CLI_OK;
}

static int run(const cli_args_t *args)
{
    cli_catch_signals();
    serve_t s = { .args = args, .versions = json_array() };
    heft_error_t err = HEFT_ERROR_INIT;
    (void)cli_watch_look(&s.watch, args);
    heft_hooks_t hooks = HEFT_HOOKS_INIT;
    hooks.arg = &s;
    hooks.pause = on_pause;
    hooks.resume = on_resume;
    int code = s.versions != NULL ? held_create(args, &s.held, &err) : cli_out_of_memory(args);
    code = code == CLI_OK ? subscribe(&s, &hooks) : code;
    if (code == CLI_OK) {
        code = poll_until_stopped(&s);
        emit_readers(&s);
        const char *path = cli_text(args, "report-file");
        int written = path != NULL ? write_report(&s, path, code) : CLI_OK;
        code = code == CLI_OK ? written : code;
    }
    heft_subscriber_destroy(s.subscriber);
    held_destroy(s.held);
    json_decref(s.versions);
    return code;
}

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(true),
    { .name = "model",
      .value = "PATH",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .is_required = true,
      .help = "A checkpoint or manifest in the source's layout: the recipe makes the parameters "
              "from its names and shapes. Data are not read." },
    CLI_OPT_LET,
    CLI_OPT_CONFIG,
    { .name = "rank",
      .value = "R",
      .kind = CLI_NUMBER,
      .min = 0,
      .max = 65535,
      .help = "The rank this process holds; needed where the recipe has several." },
    { .name = "replica",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 0,
      .max = 65535,
      .help = "Replica: several destinations may hold the same rank. Default: 0." },
    { .name = "readers",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 0,
      .max = 256,
      .help = "Threads that read and digest all parameters, again and again, as an engine would. "
              "A pass that does not find the digests of the version it reads ends the program with "
              "exit status 1. A pause waits for the passes in progress. Default: 0." },
    { .name = "report-file",
      .value = "FILE",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .help = "Write a JSON summary to this file on the way out." },
    { .name = "watch",
      .kind = CLI_FLAG,
      .help =
          "Look at the files of --let NAME=@FILE all the time, such as a table of experts: when "
          "one has changed, announce the layout that follows from it, without a restart. What "
          "does not fit is refused, and everything stays as it is." },
    { .name = "in-place",
      .kind = CLI_FLAG,
      .help = "No staging: receive inside the pause, through a buffer. Halves the memory, costs "
              "downtime, and a round that fails then leaves it out of service." },
    { .name = "buffer-bytes",
      .value = "BYTES",
      .kind = CLI_BYTES,
      .min = 1,
      .max = INT64_MAX,
      .help = "With --in-place: of the buffer; at least the largest parameter. Default: 64 MiB." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_serve = {
    .name = "serve",
    .summary = "be a destination: hold one rank's parameters and take part in rounds",
    .description =
        "Allocates the parameters that the recipe makes for one rank, registers with the "
        "coordinator, and takes part in rounds until SIGINT or SIGTERM. It stands in for an "
        "engine: "
        "with --readers, threads read the parameters all the time, stop for a pause, and would "
        "notice bytes that change under them.\n\n"
        "Events go to standard error, with --json also as JSON lines to standard output: "
        "registered, live, renewed, refused, readers, unreachable, reachable, suspect, torn, "
        "failed.",
    .example = "heft serve --url http://127.0.0.1:7070 --recipe hf-to-engine-dense --let tp=3 \\\n"
               "    --model MODEL --rank 0 --readers 1",
    .exits = "0 1 2 3 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .knobs = HEFT_KNOB_SUBSCRIBER,
    .needs_url = true,
    .run = run,
};
