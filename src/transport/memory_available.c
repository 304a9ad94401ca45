/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory may still be allocated: the least of MemAvailable and what each control group
 * from this process's own up to the root leaves (limit - usage + page cache that can be dropped).
 * Asked before a large prefault, because running out there is a kill and not an error.
 */
#include "transport/segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, FILE_BYTES = 8192 };

/* Read a whole small file into buf, NUL-terminated; false when it cannot be read. */
static bool read_small(const char *path, char buf[FILE_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t n = 0;
    ssize_t got;
    while (n + 1 < FILE_BYTES && (got = read(fd, buf + n, FILE_BYTES - 1 - n)) > 0) {
        n += (size_t)got;
    }
    (void)close(fd);
    buf[n] = '\0';
    return n > 0;
}

/* The number after key at the start of a line; false if there is none. */
static bool find_number(const char *text, const char *key, int64_t *value_out)
{
    size_t len = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, len) == 0) {
            char *end;
            long long v = strtoll(line + len, &end, 10);
            if (end != line + len && v >= 0) {
                *value_out = v;
                return true;
            }
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return false;
}

static bool read_number(const char *dir, const char *name, int64_t *value_out)
{
    char path[PATH_BYTES + 64];
    char text[FILE_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return read_small(path, text) && find_number(text, "", value_out); /* "max" is no number */
}

/* What one control group leaves; INT64_MAX without a limit. */
static int64_t group_leaves(const char *dir, bool v2)
{
    int64_t limit;
    int64_t used;
    if (!read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) ||
        !read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used)) {
        return INT64_MAX;
    }
    char path[PATH_BYTES + 64];
    char text[FILE_BYTES];
    int64_t cache = 0;
    (void)snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (read_small(path, text)) {
        (void)find_number(text, v2 ? "inactive_file " : "total_inactive_file ", &cache);
    }
    int64_t left;
    if (!heft__sub(limit, used, &left) || !heft__add(left, cache, &left)) {
        return INT64_MAX;
    }
    return left > 0 ? left : 0;
}

/* The least that the groups from base/path up to base leave. */
static int64_t groups_leave(const char *base, const char *path, bool v2)
{
    char dir[PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s%s", base, path);
    if (n < 0 || (size_t)n >= sizeof dir) {
        return INT64_MAX;
    }
    int64_t least = INT64_MAX;
    size_t base_len = strlen(base);
    for (;;) {
        least = heft__min_i64(least, group_leaves(dir, v2));
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= base_len || slash == NULL || (size_t)(slash - dir) < base_len) {
            return least;
        }
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (v2) or "7:memory:/path" (v1). */
static int64_t cgroup_available(const char *root)
{
    char path[PATH_BYTES];
    char text[FILE_BYTES];
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_small(path, text)) {
        return INT64_MAX;
    }
    int64_t least = INT64_MAX;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        bool v2 = strncmp(line, "0::", 3) == 0;
        char *names = strchr(line, ':');
        char *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        if (!v2 && strcmp(names + 1, "memory") != 0) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
        least = heft__min_i64(least, groups_leave(path, group, v2));
    }
    return least;
}

int64_t heft__memory_available(const char *root)
{
    char path[PATH_BYTES];
    char text[FILE_BYTES];
    int64_t kib;
    int64_t available = INT64_MAX;
    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_small(path, text) && find_number(text, "MemAvailable:", &kib)) {
        (void)heft__mul(kib, 1024, &available);
    }
    return heft__min_i64(available, cgroup_available(root));
}
