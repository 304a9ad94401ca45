/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that run this same program, for `heft demo`. They die with their parent. */
#ifndef HEFT_CLI_CLI_PROC_H
#define HEFT_CLI_CLI_PROC_H

#include "cli/cli.h"

#include <sys/types.h>

typedef struct cli_proc {
    pid_t pid;  /* 0: not running */
    int out_fd; /* its standard output; -1: closed */
} cli_proc_t;

#define CLI_PROC_INIT          \
    {                          \
        .pid = 0, .out_fd = -1 \
    }

/* Start `heft argv[0] argv[1] ..` (argv ends with NULL); standard error is appended to log_path. */
int cli_proc_start(const cli_args_t *args, const char *log_path, const char *const *argv,
                   cli_proc_t *proc);
/* Read standard output: its first line only, or all of it to the end. The text is freed by the
 * caller with free(); NULL when nothing came within the deadline. */
char *cli_proc_read(cli_proc_t *proc, bool only_line, int64_t deadline_ms);
/* Wait for the end; the exit code, 128 + signal, or -1 when it has not ended by the deadline. */
int cli_proc_wait(cli_proc_t *proc, int64_t deadline_ms);
/* Send a signal and wait; as cli_proc_wait. Nothing when it is not running. */
int cli_proc_signal(cli_proc_t *proc, int number, int64_t deadline_ms);

#endif
