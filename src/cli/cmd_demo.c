/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `heft demo`: the main job, with real processes. A coordinator, one serving process for each
 * tensor-parallel rank with a thread that reads all the while, and pushes: version 1, version 2
 * after a training step, a push whose source is killed in mid-transfer, and a destination that is
 * killed, restarted and brought back. Every step is checked; the first that does not hold ends the
 * demo.
 */
#include "cli/cli_job.h"
#include "cli/cli_live.h"
#include "cli/cli_model.h"
#include "cli/cli_proc.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/demo_model.h"

enum {
    MAX_RANKS = 16,
    MAX_ROWS = 8,
    MAX_WORDS = 64, /* of a command line that the demo makes */
    START_MS = 30000,
    PUSH_MS = 120000,
    STOP_MS = 20000,
    SLOW_BYTES_PER_S = 40000000, /* the push that is to be killed */
    MIN_KILL_BYTES = 32000000    /* a smaller one is through before anyone can kill it */
};

typedef struct row {
    const char *what;
    int64_t version, bytes, pieces;
    double transfer_s, total_s, pause_s;
    char state[24];
    char verified[8];
} row_t;

typedef struct demo {
    const cli_args_t *args;
    const char *model;  /* checkpoint of version 1 */
    const char *recipe; /* as given */
    char work[512];
    char trained[600]; /* checkpoint of version 2 */
    char log[600];
    char let_tp[24];
    char *url;
    uint32_t n_ranks;
    int64_t model_bytes;
    double memcpy_gb_per_s;
    cli_proc_t coordinator;
    cli_proc_t ranks[MAX_RANKS];
    row_t rows[MAX_ROWS];
    size_t n_rows;
} demo_t;

static void say(const demo_t *d, const char *text)
{
    (void)d;
    (void)fprintf(stderr, "-- %s\n", text);
}

static int fail(const demo_t *d, const char *what)
{
    return cli_fail(d->args, CLI_PEER, "%s; see %s", what, d->log);
}

/* ---- processes ---- */

static int start_coordinator(demo_t *d)
{
    char state[640];
    (void)snprintf(state, sizeof state, "%s/coordinator.json", d->work);
    const char *const argv[] = { "coordinator", "--state", state, "--contact-ms", "5000", NULL };
    int code = cli_proc_start(d->args, d->log, argv, &d->coordinator);
    if (code != CLI_OK) {
        return code;
    }
    d->url = cli_proc_read(&d->coordinator, true, START_MS);
    return d->url != NULL && d->url[0] != '\0' ? CLI_OK : fail(d, "the coordinator did not start");
}

/* --recipe and --let, as serve and check take them; how many words. check_lets has seen to the
 * room.
 */
static size_t put_recipe(const demo_t *d, const char **argv)
{
    size_t n = 0;
    argv[n++] = "--recipe";
    argv[n++] = d->recipe;
    argv[n++] = "--let";
    argv[n++] = d->let_tp;
    size_t cursor = 0;
    const char *let;
    while ((let = cli_next(d->args, "let", &cursor)) != NULL) {
        argv[n++] = "--let";
        argv[n++] = let;
    }
    return n;
}

static int check_lets(const cli_args_t *args)
{
    size_t n = 0;
    size_t cursor = 0;
    const char *let;
    while ((let = cli_next(args, "let", &cursor)) != NULL) {
        if (strncmp(let, "tp=", 3) == 0) {
            return cli_fail(args, CLI_USAGE, "--let %s: --tp gives this", let);
        }
        if (++n > (MAX_WORDS - 16) / 2) {
            return cli_fail(args, CLI_USAGE, "--let: more than %d", (MAX_WORDS - 16) / 2);
        }
    }
    return CLI_OK;
}

/* Compile and prove here first: what is wrong with the model or the recipe is said at once. */
static int check_recipe(const demo_t *d)
{
    const char *words[MAX_WORDS] = { d->model };
    int n = 1 + (int)put_recipe(d, words + 1);
    char *argv[MAX_WORDS] = { NULL };
    cli_job_t job;
    cli_job_init(&job);
    cli_args_t check = { .n_values = 0 };
    int code = CLI_OK;
    for (int i = 0; i < n && code == CLI_OK; i++) {
        argv[i] = strdup(words[i]);
        code = argv[i] != NULL ? CLI_OK : cli_out_of_memory(d->args);
    }
    if (code == CLI_OK) {
        code = cli_args_parse(&check, &cli_cmd_check, n, argv);
        check.command = d->args->command; /* which messages begin with */
        code = code == CLI_OK ? cli_job_run(&check, d->model, true, &job) : code;
    }
    if (code == CLI_OK && job.n_ranks != d->n_ranks) {
        code = cli_fail(d->args, CLI_USAGE, "the recipe has %u rank%s, --tp says %u", job.n_ranks,
                        job.n_ranks == 1 ? "" : "s", d->n_ranks);
    }
    cli_job_fini(&job);
    cli_args_fini(&check);
    for (int i = 0; i < n; i++) {
        free(argv[i]);
    }
    return code;
}

static int start_rank(demo_t *d, uint32_t rank)
{
    char number[16];
    (void)snprintf(number, sizeof number, "%u", rank);
    const char *argv[MAX_WORDS] = { "serve",  "--url", d->url,      "--model", d->model,
                                    "--rank", number,  "--readers", "1",       "--json" };
    size_t n = 10;
    n += put_recipe(d, argv + n);
    argv[n] = NULL;
    return cli_proc_start(d->args, d->log, argv, &d->ranks[rank]);
}

/* Wait until all ranks are registered with the incarnations they have now. */
static int wait_for_registered(demo_t *d, uint32_t rank)
{
    char *line = cli_proc_read(&d->ranks[rank], true, START_MS);
    bool is_registered = line != NULL && strstr(line, "\"registered\"") != NULL;
    free(line);
    return is_registered ? CLI_OK : fail(d, "a serving process did not register");
}

static void stop_all(demo_t *d, int *torn_out)
{
    for (uint32_t r = 0; r < d->n_ranks; r++) {
        if (d->ranks[r].pid > 0) {
            *torn_out += cli_proc_signal(&d->ranks[r], SIGTERM, STOP_MS) == CLI_DIFFERS ? 1 : 0;
        }
    }
    (void)cli_proc_signal(&d->coordinator, SIGTERM, STOP_MS);
}

/* ---- pushes ---- */

static int start_push(demo_t *d, const char *model, int64_t version, const char *rate,
                      cli_proc_t *push)
{
    char number[32];
    char wanted[16];
    (void)snprintf(number, sizeof number, "%" PRId64, version);
    (void)snprintf(wanted, sizeof wanted, "%u", d->n_ranks);
    const char *const argv[] = { "push",       model,  "--url",      d->url, "--version", number,
                                 "--wait-for", wanted, "--max-rate", rate,   "--json",    NULL };
    return cli_proc_start(d->args, d->log, argv, push);
}

static int read_row(demo_t *d, const char *what, const char *text)
{
    json_t *result = json_loads(text, 0, NULL);
    if (!json_is_object(result)) {
        json_decref(result);
        return fail(d, "push printed no result");
    }
    row_t *row = &d->rows[d->n_rows++];
    *row = (row_t){ .what = what,
                    .version = cli_json_number(result, "version"),
                    .bytes = cli_json_number(result, "bytes"),
                    .pieces = cli_json_number(result, "pieces"),
                    .transfer_s = json_number_value(json_object_get(result, "transfer_s")),
                    .total_s = json_number_value(json_object_get(result, "total_s")),
                    .pause_s = json_number_value(json_object_get(result, "pause_s")) };
    (void)snprintf(row->state, sizeof row->state, "%s", cli_json_text(result, "state"));
    json_decref(result);
    return CLI_OK;
}

/* Every destination's live parameters against the digests of the committed version. */
static int verify_live(demo_t *d)
{
    cli_proc_t verify = CLI_PROC_INIT;
    const char *const argv[] = { "verify", "--live", "--url", d->url, "--json", NULL };
    int code = cli_proc_start(d->args, d->log, argv, &verify);
    if (code != CLI_OK) {
        return code;
    }
    char *text = cli_proc_read(&verify, false, PUSH_MS);
    int verified = cli_proc_wait(&verify, STOP_MS);
    json_t *round = text != NULL ? json_loads(text, 0, NULL) : NULL;
    size_t n = json_array_size(json_object_get(round, "live"));
    bool is_good = verified == CLI_OK && n == d->n_ranks;
    row_t *row = &d->rows[d->n_rows - 1];
    (void)snprintf(row->verified, sizeof row->verified, "%s", is_good ? "yes" : "NO");
    json_decref(round);
    free(text);
    return is_good ? CLI_OK : fail(d, "live parameters are not the committed version");
}

static int push(demo_t *d, const char *what, const char *model, int64_t version)
{
    cli_proc_t proc = CLI_PROC_INIT;
    int code = start_push(d, model, version, "0", &proc);
    if (code != CLI_OK) {
        return code;
    }
    char *text = cli_proc_read(&proc, false, PUSH_MS);
    int pushed = cli_proc_signal(&proc, 0, STOP_MS);
    code = text != NULL && pushed == CLI_OK ? read_row(d, what, text) : fail(d, "a push failed");
    free(text);
    return code == CLI_OK ? verify_live(d) : code;
}

/* Wait for a round to be in this state; its name, or "" after the deadline. */
static int wait_for_state(demo_t *d, const char *state, char round_out[64])
{
    int64_t end_ns = cli_mono_ns() + (int64_t)PUSH_MS * 1000000;
    round_out[0] = '\0';
    while (cli_mono_ns() < end_ns && !cli_is_interrupted()) {
        json_t *status = NULL;
        int code = cli_request(d->args, d->url, "/v1/status", NULL, STOP_MS, &status);
        if (code != CLI_OK) {
            return code;
        }
        bool is_there = strcmp(cli_json_text(status, "state"), state) == 0;
        (void)snprintf(round_out, 64, "%s", cli_json_text(status, "round"));
        json_decref(status);
        if (is_there) {
            return CLI_OK;
        }
        const struct timespec pause = { .tv_nsec = 5000000 };
        (void)nanosleep(&pause, NULL);
    }
    return fail(d, "the round did not get to the state it was waited for");
}

/* Kill the source while its bytes are on the way: the round must abort and version 2 stay. */
static int push_and_kill(demo_t *d)
{
    cli_proc_t proc = CLI_PROC_INIT;
    char rate[24];
    char round[64];
    (void)snprintf(rate, sizeof rate, "%d", (int)SLOW_BYTES_PER_S);
    int code = start_push(d, d->model, 3, rate, &proc);
    code = code == CLI_OK ? wait_for_state(d, "staging", round) : code;
    if (code == CLI_OK) {
        const struct timespec into_the_transfer = { .tv_nsec = 300000000 };
        (void)nanosleep(&into_the_transfer, NULL);
    }
    (void)cli_proc_signal(&proc, SIGKILL, STOP_MS);
    json_t *result = NULL;
    code = code == CLI_OK ? cli_wait_round(d->args, d->url, round, 60, &result) : code;
    if (code != CLI_OK) {
        return code;
    }
    row_t *row = &d->rows[d->n_rows++];
    *row = (row_t){ .what = "source killed", .version = 3 };
    (void)snprintf(row->state, sizeof row->state, "%s", cli_json_text(result, "state"));
    const json_t *cause = json_object_get(result, "cause");
    char line[512];
    (void)snprintf(line, sizeof line, "version 3 %s: %s: %s", row->state,
                   cli_json_text(cause, "member"), cli_json_text(cause, "cause"));
    say(d, line);
    bool has_aborted = strcmp(row->state, "aborted") == 0;
    json_decref(result);
    return has_aborted ? verify_live(d) : fail(d, "the broken push did not abort");
}

static int kill_and_restart_rank(demo_t *d, uint32_t rank)
{
    (void)cli_proc_signal(&d->ranks[rank], SIGKILL, STOP_MS);
    int code = start_rank(d, rank);
    code = code == CLI_OK ? wait_for_registered(d, rank) : code;
    return code == CLI_OK ? push(d, "rank restarted", d->trained, 2) : code;
}

/* ---- the whole ---- */

static int run_steps(demo_t *d)
{
    char line[256];
    char size[32];
    cli_bytes_text(d->model_bytes, size);
    (void)snprintf(line, sizeof line, "%s, %s, tp=%u: coordinator and %u serving processes",
                   d->recipe, size, d->n_ranks, d->n_ranks);
    say(d, line);
    int code = start_coordinator(d);
    for (uint32_t r = 0; code == CLI_OK && r < d->n_ranks; r++) {
        code = start_rank(d, r);
    }
    for (uint32_t r = 0; code == CLI_OK && r < d->n_ranks; r++) {
        code = wait_for_registered(d, r);
    }
    if (code == CLI_OK) {
        say(d, "push version 1");
        code = push(d, "first push", d->model, 1);
    }
    if (code == CLI_OK) {
        say(d, "a training step, then push version 2 while readers read");
        code = demo_train_step(d->args, d->model, d->trained);
        code = code == CLI_OK ? push(d, "after a step", d->trained, 2) : code;
    }
    if (code == CLI_OK && d->model_bytes < MIN_KILL_BYTES) {
        say(d, "the model is too small to kill its source in mid-transfer: step left out");
    } else if (code == CLI_OK) {
        say(d, "push version 3, slowly, and kill its source in mid-transfer");
        code = push_and_kill(d);
    }
    if (code == CLI_OK) {
        say(d, "kill one rank, restart it empty, push version 2 again");
        code = kill_and_restart_rank(d, d->n_ranks - 1);
    }
    return code;
}

static double row_gb_per_s(const row_t *row)
{
    return row->transfer_s > 0 ? (double)row->bytes / 1e9 / row->transfer_s : 0;
}

static void print_table(const demo_t *d)
{
    (void)printf("%-15s %7s  %-10s %12s %7s %8s %7s %8s %9s %8s  %s\n", "step", "version", "state",
                 "bytes", "pieces", "seconds", "GB/s", "x memcpy", "pause ms", "total s",
                 "live verified");
    for (size_t i = 0; i < d->n_rows; i++) {
        const row_t *row = &d->rows[i];
        double rate = row_gb_per_s(row);
        (void)printf("%-15s %7" PRId64 "  %-10s %12" PRId64 " %7" PRId64
                     " %8.3f %7.2f %8.2f %9.1f %8.3f  %s\n",
                     row->what, row->version, row->state, row->bytes, row->pieces, row->transfer_s,
                     rate, rate / d->memcpy_gb_per_s, row->pause_s * 1e3, row->total_s,
                     row->verified);
    }
    (void)printf("memcpy of the same bytes: %.2f GB/s\n", d->memcpy_gb_per_s);
}

static json_t *rows_json(const demo_t *d)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < d->n_rows; i++) {
        const row_t *row = &d->rows[i];
        (void)json_array_append_new(
            rows,
            json_pack("{s:s, s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:b}", "step", row->what,
                      "version", (json_int_t)row->version, "state", row->state, "bytes",
                      (json_int_t)row->bytes, "pieces", (json_int_t)row->pieces, "transfer_s",
                      row->transfer_s, "gb_per_s", row_gb_per_s(row), "ratio",
                      row_gb_per_s(row) / d->memcpy_gb_per_s, "pause_s", row->pause_s, "total_s",
                      row->total_s, "verified", strcmp(row->verified, "yes") == 0));
    }
    return rows;
}

static int prepare(demo_t *d)
{
    (void)snprintf(d->let_tp, sizeof d->let_tp, "tp=%u", d->n_ranks);
    cli_model_t model;
    int code = check_lets(d->args);
    code = code == CLI_OK ? check_recipe(d) : code;
    if (code != CLI_OK) {
        return code;
    }
    code = cli_model_open_checkpoint(d->args, d->model, "source", &model);
    if (code != CLI_OK) {
        return code;
    }
    d->model_bytes = heft_manifest_get_n_bytes(model.manifest);
    cli_model_close(&model);
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(d->work, sizeof d->work, "%.400s/heft-demo-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(d->work) == NULL) {
        return cli_fail(d->args, CLI_SYSTEM, "cannot make %s: %s", d->work, strerror(errno));
    }
    (void)snprintf(d->log, sizeof d->log, "%s/log", d->work);
    (void)snprintf(d->trained, sizeof d->trained, "%s/trained", d->work);
    d->memcpy_gb_per_s = demo_measure_memcpy(d->model_bytes);
    return d->memcpy_gb_per_s > 0 ? CLI_OK : cli_out_of_memory(d->args);
}

static int run(const cli_args_t *args)
{
    cli_catch_signals();
    demo_t d = { .args = args,
                 .model = args->operands[0],
                 .recipe = cli_text(args, "recipe"),
                 .n_ranks = (uint32_t)cli_number(args, "tp", 3),
                 .coordinator = CLI_PROC_INIT };
    d.recipe = d.recipe != NULL ? d.recipe : "hf-to-engine-dense";
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        d.ranks[r] = (cli_proc_t)CLI_PROC_INIT;
    }
    int torn = 0;
    int code = prepare(&d);
    if (code == CLI_OK) {
        code = run_steps(&d);
        stop_all(&d, &torn);
        if (code == CLI_OK && torn > 0) {
            code = cli_fail(args, CLI_DIFFERS, "a reader saw two versions at once; see %s", d.log);
        }
    }
    if (d.n_rows > 0 && cli_has(args, "json")) {
        int printed = cli_print_json(args, rows_json(&d));
        code = code == CLI_OK ? printed : code;
    } else if (d.n_rows > 0) {
        print_table(&d);
        (void)printf("readers saw whole versions only: %s\n", torn == 0 ? "yes" : "NO");
    }
    if (code == CLI_OK && d.work[0] != '\0') {
        demo_remove_tree(d.work);
    }
    free(d.url);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "MODEL",
      .help = "A checkpoint in the source's layout, with its config.json.",
      .complete = CLI_COMPLETE_FOLDER },
};

static const cli_option_t options[] = {
    { .name = "recipe",
      .value = "RECIPE",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .help = "The recipe: a path, or the name of a shipped one; it must have a `let tp`. Default: "
              "hf-to-engine-dense." },
    CLI_OPT_LET,
    { .name = "tp",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = MAX_RANKS,
      .help = "Tensor-parallel ranks, one serving process each. Default: 3." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_demo = {
    .name = "demo",
    .summary = "the main job on a model of yours, with real processes and real faults",
    .description =
        "Starts a coordinator and one serving process for each rank, pushes version 1, trains one "
        "step, pushes version 2 while the ranks read, kills the source of a third push in "
        "mid-transfer, kills and restarts a rank and pushes version 2 again. After every step the "
        "live parameters are verified against the committed version. Ends with a table.",
    .example = "heft demo MODEL --tp 3",
    .exits = "0 1 2 3 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};
