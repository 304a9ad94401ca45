/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank folders of a checkpoint that several processes wrote: rank-0, rank-1, ... in one folder.
 * Any numbers may be missing: which ranks are needed is known to the recipe alone.
 */
#include "format/format.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The N of "rank-N", written as the writer of rank folders writes it; -1 for any other name. */
static int64_t rank_of(const char *name)
{
    static const char prefix[] = "rank-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return -1;
    }
    const char *digits = name + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 7 || digits[n] != '\0' || (digits[0] == '0' && n > 1)) {
        return -1;
    }
    return strtol(digits, NULL, 10);
}

/* Links to folders count: ranks may lie on different disks. */
static bool is_folder(DIR *handle, const char *name)
{
    struct stat sb;
    return fstatat(dirfd(handle), name, &sb, 0) == 0 && S_ISDIR(sb.st_mode);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

heft_status_t heft__find_ranks(const char *dir, uint32_t **ranks_out, size_t *n_out,
                               heft_error_t *err)
{
    DIR *handle = opendir(dir);
    if (handle == NULL) {
        int code = errno;
        char label[HEFT__ST_LABEL_BYTES];
        heft__path_label(label, dir);
        return heft__error_set_sys(err, HEFT_ERR_IO, code, "cannot open %s", label);
    }
    void *ranks = NULL;
    size_t n = 0;
    size_t cap = 0;
    heft_status_t status = HEFT_OK;
    const struct dirent *entry;
    while (status == HEFT_OK && (entry = readdir(handle)) != NULL) {
        int64_t rank = rank_of(entry->d_name);
        if (rank < 0 || !is_folder(handle, entry->d_name)) {
            continue;
        }
        if (heft__grow(&ranks, &cap, n + 1, sizeof(uint32_t))) {
            ((uint32_t *)ranks)[n++] = (uint32_t)rank;
        } else {
            status = heft__error_nomem(err, (n + 1) * sizeof(uint32_t));
        }
    }
    (void)closedir(handle);
    if (status != HEFT_OK) {
        heft__free(ranks);
        return status;
    }
    if (n > 1) {
        qsort(ranks, n, sizeof(uint32_t), by_number);
    }
    *ranks_out = ranks;
    *n_out = n;
    return HEFT_OK;
}
