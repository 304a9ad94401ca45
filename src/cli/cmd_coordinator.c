/* SPDX-License-Identifier: Apache-2.0 */
/* `heft coordinator`: the referee of rounds, as a process of its own. */
#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { DRAIN_STEP_MS = 50 };

/* Write the port under a temporary name, then rename: whoever waits for the file sees all of it. */
static int write_port_file(const cli_args_t *args, const char *path, const char *url)
{
    const char *colon = strrchr(url, ':');
    char temp[4096];
    int n = snprintf(temp, sizeof temp, "%s.tmp", path);
    if (colon == NULL || n < 0 || (size_t)n >= sizeof temp) {
        return cli_fail(args, CLI_USAGE, "--port-file: the path is too long");
    }
    FILE *file = fopen(temp, "w");
    bool is_written = file != NULL && fprintf(file, "%s\n", colon + 1) > 0;
    is_written = file != NULL && fclose(file) == 0 && is_written;
    if (!is_written || rename(temp, path) != 0) {
        int code = errno;
        (void)remove(temp);
        return cli_fail(args, CLI_SYSTEM, "cannot write %s: %s", path, strerror(code));
    }
    return CLI_OK;
}

static heft_coordinator_opts_t options_of(const cli_args_t *args)
{
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.address = cli_text(args, "address");
    opts.port = (uint16_t)cli_number(args, "port", 0);
    opts.state_file = cli_text(args, "state");
    opts.token_file = cli_text(args, "token-file");
    opts.tls_cert = cli_text(args, "tls-cert");
    opts.tls_key = cli_text(args, "tls-key");
    opts.insecure = cli_has(args, "insecure");
    opts.no_feed = cli_has(args, "no-feed");
    opts.round_log = cli_text(args, "round-log");
    opts.relay = cli_text(args, "relay");
    opts.relay_fan_out = (uint32_t)cli_number(args, "relay-fan-out", 0);
    const struct {
        const char *name;
        uint32_t *field;
    } deadlines[] = {
        { "preflight-ms", &opts.preflight_ms }, { "prepare-ms", &opts.prepare_ms },
        { "stage-ms", &opts.stage_ms },         { "verify-ms", &opts.verify_ms },
        { "pause-ms", &opts.pause_ms },         { "decide-ms", &opts.decide_ms },
        { "flip-ms", &opts.flip_ms },           { "resume-ms", &opts.resume_ms },
        { "release-ms", &opts.release_ms },     { "abort-ms", &opts.abort_ms },
        { "contact-ms", &opts.contact_ms },     { "poll-ms", &opts.poll_ms },
        { "request-ms", &opts.request_ms },     { "max-connections", &opts.max_connections },
    };
    for (size_t i = 0; i < CLI_COUNT(deadlines); i++) {
        *deadlines[i].field = (uint32_t)cli_number(args, deadlines[i].name, 0);
    }
    return opts;
}

/* Every member holds a connection or two: take as many open files as the system allows. */
static void raise_open_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Until a signal: then no new rounds, and the one in flight may end. A second signal: at once. */
static int wait_for_end(const cli_args_t *args, heft_coordinator_t *coordinator,
                        const sigset_t *signals)
{
    int number = 0;
    while (sigwait(signals, &number) != 0) {
    }
    const int64_t end = cli_mono_ns() + cli_number(args, "drain-ms", 30000) * 1000000;
    (void)fprintf(stderr, "heft coordinator: signal %d, stopping\n", number);
    heft_error_t err = HEFT_ERROR_INIT;
    const struct timespec none = { 0 };
    while (heft_coordinator_drain(coordinator, DRAIN_STEP_MS, &err) != HEFT_OK) {
        if (cli_mono_ns() >= end || sigtimedwait(signals, NULL, &none) > 0) {
            return cli_fail(args, CLI_PEER, "stopped all the same: %s", err.message);
        }
    }
    return CLI_OK;
}

static int run(const cli_args_t *args)
{
    raise_open_files();
    /* Blocked before the coordinator's threads exist, so that only sigwait below takes them. */
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);

    heft_coordinator_opts_t opts = options_of(args);
    heft_coordinator_t *coordinator = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    if (heft_coordinator_start(&opts, &coordinator, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    const char *url = heft_coordinator_get_url(coordinator);
    const char *port_file = cli_text(args, "port-file");
    int code = port_file != NULL ? write_port_file(args, port_file, url) : CLI_OK;
    if (code == CLI_OK) {
        (void)printf("%s\n", url);
        (void)fflush(stdout);
        code = wait_for_end(args, coordinator, &signals);
    }
    heft_coordinator_stop(coordinator);
    return code;
}

static const cli_option_t options[] = {
    { .name = "port-file",
      .value = "FILE",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .help = "Write the port to this file when it is listening." },
    { .name = "drain-ms",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 0,
      .max = 86400000,
      .help = "After a signal, wait so long for the round in flight to end; no other begins. A "
              "second signal stops at once. Default: 30000." },
};

const cli_command_t cli_cmd_coordinator = {
    .name = "coordinator",
    .summary = "referee rounds over HTTP",
    .description =
        "Serves the control protocol until SIGINT or SIGTERM: members register and pull their "
        "orders, pushes run as rounds that commit everywhere or nowhere. No weight bytes pass "
        "through it. Prints its URL as the first line of standard output. `/` is a status page, "
        "/metrics is for Prometheus, /healthz for probes.",
    .example = "heft coordinator --port 7070 --state /var/lib/heft/state\n"
               "curl http://127.0.0.1:7070/v1/status",
    .exits = "0 2 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .knobs = HEFT_KNOB_COORDINATOR,
    .run = run,
};
