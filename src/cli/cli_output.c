/* SPDX-License-Identifier: Apache-2.0 */
/* Messages, exit codes, JSON, numbers for people, progress, signals. */
#include "cli/cli.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t is_interrupted;

/* ---- messages ---- */

int cli_fail(const cli_args_t *args, int code, const char *fmt, ...)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, args != NULL && args->command != NULL ? "heft %s: " : "heft: ",
                  args != NULL && args->command != NULL ? args->command->name : "");
    va_list list;
    va_start(list, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm of clang 14 */
    (void)vfprintf(stderr, fmt, list);
    va_end(list);
    (void)fputc('\n', stderr);
    return code;
}

int cli_out_of_memory(const cli_args_t *args)
{
    return cli_fail(args, CLI_SYSTEM, "out of memory");
}

int cli_exit_of(const heft_error_t *err)
{
    switch (err->status) {
    case HEFT_OK:
    case HEFT_IN_PROGRESS:
        return CLI_OK;
    case HEFT_ERR_PROOF:
    case HEFT_ERR_NAME:
    case HEFT_ERR_SHAPE:
    case HEFT_ERR_MISMATCH:
        return CLI_DIFFERS;
    case HEFT_ERR_ARGUMENT:
        return CLI_USAGE;
    case HEFT_ERR_NOT_FOUND:
        return err->sys_errno != 0 ? CLI_SYSTEM : CLI_DATA;
    case HEFT_ERR_UNSUPPORTED:
    case HEFT_ERR_SYNTAX:
    case HEFT_ERR_LIMIT:
    case HEFT_ERR_OVERFLOW:
    case HEFT_ERR_FORMAT:
        return CLI_DATA;
    case HEFT_ERR_EXISTS:
    case HEFT_ERR_NOMEM:
    case HEFT_ERR_IO:
    case HEFT_ERR_NOSPACE:
        return CLI_SYSTEM;
    case HEFT_ERR_STATE:
    case HEFT_ERR_VERSION:
    case HEFT_ERR_AUTH:
    case HEFT_ERR_BUSY:
    case HEFT_ERR_TIMEOUT:
    case HEFT_ERR_PEER:
    case HEFT_ERR_PROTOCOL:
    case HEFT_ERR_STALE:
    case HEFT_ERR_DIGEST:
    case HEFT_ERR_POISONED:
        return CLI_PEER;
    case HEFT_ERR_CANCELED:
        return CLI_CANCELED;
    case HEFT_ERR_INTERNAL:
        break;
    }
    return CLI_INTERNAL;
}

int cli_fail_status(const cli_args_t *args, const heft_error_t *err)
{
    return cli_fail(args, cli_exit_of(err), "%s (%s)", err->message,
                    heft_status_get_name(err->status));
}

/* ---- JSON ---- */

static int print_json(const cli_args_t *args, json_t *value, size_t flags)
{
    if (value == NULL) {
        return cli_out_of_memory(args);
    }
    int failed = json_dumpf(value, stdout, flags);
    (void)fputc('\n', stdout);
    json_decref(value);
    return failed != 0 ? cli_fail(args, CLI_SYSTEM, "cannot write JSON to standard output")
                       : CLI_OK;
}

int cli_print_json(const cli_args_t *args, json_t *value)
{
    return print_json(args, value, JSON_INDENT(2));
}

int cli_print_json_line(const cli_args_t *args, json_t *value)
{
    int code = print_json(args, value, JSON_COMPACT);
    (void)fflush(stdout);
    return code;
}

json_t *cli_shape_json(const heft_shape_t *shape)
{
    json_t *array = json_array();
    for (int k = 0; k < shape->rank; k++) {
        if (json_array_append_new(array, json_integer(shape->extent[k])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* ---- texts ---- */

void cli_shape_text(const heft_shape_t *shape, char out[320])
{
    size_t n = (size_t)snprintf(out, 320, "[");
    for (int k = 0; k < shape->rank; k++) {
        n +=
            (size_t)snprintf(out + n, 320 - n, k > 0 ? ", %" PRId64 : "%" PRId64, shape->extent[k]);
    }
    (void)snprintf(out + n, 320 - n, "]");
}

void cli_bytes_text(int64_t bytes, char out[32])
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB", "PB", "EB" };
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < CLI_COUNT(units)) {
        value /= 1000.0;
        unit++;
    }
    (void)snprintf(out, 32,
                   unit == 0    ? "%.0f %s"
                   : value < 10 ? "%.2f %s"
                                : "%.1f %s",
                   value, units[unit]);
}

/* ---- progress ---- */

int64_t cli_mono_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void cli_progress_init(cli_progress_t *progress, const char *what)
{
    int64_t now = cli_mono_ns();
    *progress = (cli_progress_t){ .what = what,
                                  .start_ns = now,
                                  .next_ns = now + 1000000000,
                                  .is_terminal = isatty(STDERR_FILENO) == 1 };
}

static void draw_bar(const cli_progress_t *progress, double part, const char *done,
                     const char *total)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];
    int filled = (int)(part * WIDTH);
    for (int i = 0; i < WIDTH; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    bar[WIDTH] = '\0';
    (void)fprintf(stderr, "\r%s [%s] %3.0f %%  %s of %s ", progress->what, bar, part * 100, done,
                  total);
}

int cli_progress_tick(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    cli_progress_t *progress = arg;
    int64_t now = cli_mono_ns();
    if (now >= progress->next_ns && total_bytes > 0) {
        char done[32];
        char total[32];
        double part = (double)done_bytes / (double)total_bytes;
        cli_bytes_text(done_bytes, done);
        cli_bytes_text(total_bytes, total);
        if (progress->is_terminal) {
            draw_bar(progress, part, done, total);
        } else {
            (void)fprintf(stderr, "%s: %s of %s (%.0f %%)\n", progress->what, done, total,
                          part * 100);
        }
        progress->is_drawn = true;
        progress->next_ns = now + (progress->is_terminal ? 200000000 : 5000000000);
    }
    return is_interrupted ? 1 : 0;
}

void cli_progress_end(cli_progress_t *progress)
{
    if (progress->is_drawn && progress->is_terminal) {
        (void)fputs("\r\033[K", stderr);
    }
}

/* ---- signals ---- */

static void (*volatile interrupt)(void *arg);
static void *volatile interrupt_arg;

static void on_signal(int number)
{
    (void)number;
    is_interrupted = 1;
    if (interrupt != NULL) {
        interrupt(interrupt_arg);
    }
}

void cli_on_interrupt(void (*call)(void *arg), void *arg)
{
    interrupt = NULL;
    interrupt_arg = arg;
    interrupt = call;
    if (call != NULL && is_interrupted != 0) {
        call(arg); /* the signal came before */
    }
}

void cli_catch_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal };
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    sigset_t both; /* whoever started us may have left them blocked */
    (void)sigemptyset(&both);
    (void)sigaddset(&both, SIGINT);
    (void)sigaddset(&both, SIGTERM);
    (void)sigprocmask(SIG_UNBLOCK, &both, NULL);
}

bool cli_is_interrupted(void)
{
    return is_interrupted != 0;
}
