/* SPDX-License-Identifier: Apache-2.0 */
/* Files of --let NAME=@FILE, which may change while a command runs. */
#ifndef HEFT_CLI_CLI_WATCH_H
#define HEFT_CLI_CLI_WATCH_H

#include "cli/cli.h"

typedef struct cli_watch {
    uint64_t seen; /* of names, inodes, sizes and times */
} cli_watch_t;

/* Look at them. True: one of them is not what it was at the last look. */
bool cli_watch_look(cli_watch_t *watch, const cli_args_t *args);

#endif
