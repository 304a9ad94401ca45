/* SPDX-License-Identifier: Apache-2.0 */
/* What a file is told by: where it is, how long, and when it was written. */
#include "cli/cli_watch.h"

#include <string.h>
#include <sys/stat.h>

/* FNV-1a. */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        hash = (hash ^ ((value >> (8 * i)) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

bool cli_watch_look(cli_watch_t *watch, const cli_args_t *args)
{
    uint64_t seen = UINT64_C(0xcbf29ce484222325);
    size_t cursor = 0;
    const char *let;
    while ((let = cli_next(args, "let", &cursor)) != NULL) {
        const char *equals = strchr(let, '=');
        struct stat sb = { .st_ino = 0 };
        if (equals == NULL || equals[1] != '@') {
            continue;
        }
        const bool is_there = stat(equals + 2, &sb) == 0;
        seen = mix(seen, is_there);
        seen = mix(seen, (uint64_t)sb.st_ino);
        seen = mix(seen, (uint64_t)sb.st_size);
        seen = mix(seen, (uint64_t)sb.st_mtim.tv_sec);
        seen = mix(seen, (uint64_t)sb.st_mtim.tv_nsec);
    }
    const bool has_changed = seen != watch->seen;
    watch->seen = seen;
    return has_changed;
}
