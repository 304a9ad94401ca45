/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are mapped and become shorter while they are read, or cannot be read (a bad disk, a
 * full thin volume that is written): the kernel's answer is SIGBUS, on whichever thread. The
 * command ends by it with a line that names the file, which /proc/self/maps has. Everything here
 * may be called in a signal handler.
 */
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4608, BUFFER_BYTES = 4096 };

static atomic_flag is_told = ATOMIC_FLAG_INIT;
static char line[LINE_BYTES];
static char buffer[BUFFER_BYTES];
static const char *command = "";

/* A hexadecimal number at *at, which moves on behind it. */
static uintptr_t read_hex(const char **at)
{
    static const char digits[] = "0123456789abcdef";
    uintptr_t value = 0;
    const char *digit = NULL;
    while (**at != '\0' && (digit = strchr(digits, **at)) != NULL) {
        value = value * 16 + (uintptr_t)(digit - digits);
        ++*at;
    }
    return value;
}

/* "begin-end rights offset device inode   path": the path where the address is in it, or NULL. */
static const char *match_line(uintptr_t address)
{
    const char *at = line;
    const uintptr_t begin = read_hex(&at);
    at += *at == '-';
    const uintptr_t end = read_hex(&at);
    const char *path = strchr(at, '/');
    return address >= begin && address < end ? path : NULL;
}

/* What is mapped at an address; NULL: no file. */
static const char *find_file(uintptr_t address)
{
    const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *found = NULL;
    size_t n = 0;
    ssize_t got = 0;
    while (file >= 0 && found == NULL && (got = read(file, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < got && found == NULL; i++) {
            if (buffer[i] != '\n') {
                n += n + 1 < sizeof line;
                line[n - 1] = buffer[i];
                continue;
            }
            line[n] = '\0';
            n = 0;
            found = match_line(address);
        }
    }
    if (file >= 0) {
        (void)close(file);
    }
    return found;
}

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    const char *path = info->si_code == BUS_ADRERR ? find_file((uintptr_t)info->si_addr) : NULL;
    if (path == NULL) { /* a fault of ours */
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        return;
    }
    if (atomic_flag_test_and_set(&is_told)) {
        for (;;) {
            (void)pause(); /* another thread is about to end the process */
        }
    }
    say("heft ");
    say(command);
    say(": ");
    say(path);
    say(": it has become shorter since it was opened, or its disk failed\n");
    _exit(CLI_SYSTEM);
}

void cli_catch_bus_errors(const char *name)
{
    struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
    command = name;
    (void)sigaction(SIGBUS, &action, NULL);
}
