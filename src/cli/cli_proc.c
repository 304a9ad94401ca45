/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes: started with a pipe, always waited for with a deadline, killed with the parent.
 */
#include "cli/cli_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 32, MAX_OUTPUT = 1 << 20 };

/* Only async-signal-safe calls: this is the child between fork and exec. */
static void run_child(pid_t parent, int out_fd, int log_fd, char *const *argv)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(out_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0) {
        _exit(CLI_SYSTEM);
    }
    (void)execv("/proc/self/exe", argv);
    _exit(CLI_SYSTEM);
}

int cli_proc_start(const cli_args_t *args, const char *log_path, const char *const *argv,
                   cli_proc_t *proc)
{
    char *child_argv[MAX_ARGS + 2] = { NULL };
    char self[] = "heft";
    size_t n = 0;
    child_argv[n++] = self;
    for (; n <= MAX_ARGS && argv[n - 1] != NULL; n++) {
        union {
            const char *in;
            char *out; /* execv does not write to its arguments */
        } arg = { .in = argv[n - 1] };
        child_argv[n] = arg.out;
    }
    int fds[2];
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) {
        return cli_fail(args, CLI_SYSTEM, "cannot write %s: %s", log_path, strerror(errno));
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        (void)close(log_fd);
        return cli_fail(args, CLI_SYSTEM, "pipe: %s", strerror(errno));
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        run_child(parent, fds[1], log_fd, child_argv);
    }
    (void)close(fds[1]);
    (void)close(log_fd);
    if (pid < 0) {
        (void)close(fds[0]);
        return cli_fail(args, CLI_SYSTEM, "fork: %s", strerror(errno));
    }
    *proc = (cli_proc_t){ .pid = pid, .out_fd = fds[0] };
    return CLI_OK;
}

static int left_ms(int64_t end_ns)
{
    int64_t left = (end_ns - cli_mono_ns()) / 1000000;
    return left > 0 ? (int)left : 0;
}

char *cli_proc_read(cli_proc_t *proc, bool only_line, int64_t deadline_ms)
{
    int64_t end_ns = cli_mono_ns() + deadline_ms * 1000000;
    char *text = calloc(1, MAX_OUTPUT + 1);
    size_t len = 0;
    bool is_done = text == NULL || proc->out_fd < 0;
    bool is_complete = false;
    while (!is_done) {
        struct pollfd ready = { .fd = proc->out_fd, .events = POLLIN };
        int n_ready = poll(&ready, 1, left_ms(end_ns));
        if (n_ready < 0 && errno == EINTR && !cli_is_interrupted()) {
            continue;
        }
        size_t want = only_line ? 1 : MAX_OUTPUT - len;
        ssize_t n = n_ready > 0 ? read(proc->out_fd, text + len, want) : -1;
        len += n > 0 ? (size_t)n : 0;
        is_complete = n == 0 || (only_line && n > 0 && text[len - 1] == '\n');
        is_done = is_complete || n < 0 || len == MAX_OUTPUT;
    }
    if (!is_complete) {
        free(text);
        return NULL;
    }
    if (only_line && len > 0 && text[len - 1] == '\n') {
        text[len - 1] = '\0';
    }
    return text;
}

int cli_proc_wait(cli_proc_t *proc, int64_t deadline_ms)
{
    int64_t end_ns = cli_mono_ns() + deadline_ms * 1000000;
    while (proc->pid > 0) {
        int wait_status = 0;
        pid_t pid = waitpid(proc->pid, &wait_status, WNOHANG);
        if (pid == proc->pid) {
            proc->pid = 0;
            if (proc->out_fd >= 0) {
                (void)close(proc->out_fd);
                proc->out_fd = -1;
            }
            return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
        }
        if (cli_mono_ns() >= end_ns) {
            break;
        }
        const struct timespec pause = { .tv_nsec = 2000000 };
        (void)nanosleep(&pause, NULL);
    }
    return -1;
}

int cli_proc_signal(cli_proc_t *proc, int number, int64_t deadline_ms)
{
    if (proc->pid <= 0) {
        return -1;
    }
    (void)kill(proc->pid, number);
    int code = cli_proc_wait(proc, deadline_ms);
    if (proc->pid > 0) { /* it did not listen */
        (void)kill(proc->pid, SIGKILL);
        (void)cli_proc_wait(proc, deadline_ms);
    }
    return code;
}
