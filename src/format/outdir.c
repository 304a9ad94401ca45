/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder a checkpoint is written into: temporary names, reserved space, atomic publication.
 *
 * A temporary file is ".heft-tmp-<pid>-<random>-<k>" and is flocked while its writer lives. It is
 * swept only when its process is gone AND the lock can be had: the process id alone says nothing
 * about writers in other containers or on other hosts. Publication holds a lock on the folder and
 * never replaces a file, so of two writers the second finds the first one's checkpoint.
 */
#include "format/format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_PREFIX ".heft-tmp-"

static heft_status_t status_of(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? HEFT_ERR_NOSPACE
           : code == ENOMEM                                  ? HEFT_ERR_NOMEM
                                                             : HEFT_ERR_IO;
}

static heft_status_t sys_error(heft_error_t *err, int code, const char *what, const char *dir,
                               const char *file)
{
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, dir);
    return heft__error_set_sys(err, status_of(code), code, "cannot %s %s%s%s", what, label,
                               file[0] != '\0' ? "/" : "", file);
}

/* ---- the folder ---- */

/* mkdir -p; remembers where the first new component ends. */
static heft_status_t make_folders(heft__outdir_t *out, heft_error_t *err)
{
    size_t n = strlen(out->path);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && out->path[i] != '/') {
            continue;
        }
        char saved = out->path[i];
        out->path[i] = '\0';
        int made = mkdir(out->path, 0777);
        int code = errno;
        out->path[i] = saved;
        if (made == 0) {
            out->created_from = out->created_from == 0 ? i : out->created_from;
        } else if (code != EEXIST && code != EISDIR) {
            return sys_error(err, code, "create folder", out->path, "");
        }
    }
    return HEFT_OK;
}

/* Deepest first, by cutting the path down. */
static void remove_folders(heft__outdir_t *out)
{
    size_t n = strlen(out->path);
    while (out->created_from > 0 && n >= out->created_from) {
        if (rmdir(out->path) != 0 && errno != ENOENT) {
            return; /* somebody else's files are in it now */
        }
        do {
            n--;
        } while (n > 0 && out->path[n] != '/');
        out->path[n] = '\0';
    }
}

static heft_status_t open_listing(const heft__outdir_t *out, DIR **listing_out, heft_error_t *err)
{
    int fd = openat(out->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (listing == NULL) {
        int code = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return sys_error(err, code, "list", out->path, "");
    }
    *listing_out = listing;
    return HEFT_OK;
}

static bool is_checkpoint_file(const char *name)
{
    size_t n = strlen(name);
    static const char suffix[] = ".safetensors";
    size_t m = sizeof suffix - 1;
    return name[0] != '.' &&
           ((n > m && strcmp(name + n - m, suffix) == 0) || strcmp(name, HEFT__ST_INDEX_NAME) == 0);
}

heft_status_t heft__outdir_check_empty(const heft__outdir_t *out, heft_error_t *err)
{
    DIR *listing = NULL;
    heft_status_t status = open_listing(out, &listing, err);
    if (listing == NULL) {
        return status;
    }
    const struct dirent *entry;
    while (status == HEFT_OK && (entry = readdir(listing)) != NULL) {
        if (is_checkpoint_file(entry->d_name)) {
            char label[HEFT__ST_LABEL_BYTES];
            heft__path_label(label, out->path);
            status =
                heft__error_set(err, HEFT_ERR_EXISTS, "%s holds a checkpoint already: \"%.100s\"",
                                label, entry->d_name);
        }
    }
    (void)closedir(listing);
    return status;
}

/* ---- what dead writers left ---- */

/* Whether the process of a temporary file's name is gone; false for names that are not ours. */
static bool is_owner_gone(const char *name)
{
    size_t n = sizeof TEMP_PREFIX - 1;
    if (strncmp(name, TEMP_PREFIX, n) != 0) {
        return false;
    }
    char *end;
    long pid = strtol(name + n, &end, 10);
    return end != name + n && *end == '-' && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static heft_status_t sweep_file(const heft__outdir_t *out, const char *name, heft_error_t *err)
{
    int fd = openat(out->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return errno == ENOENT ? HEFT_OK : sys_error(err, errno, "open stale", out->path, name);
    }
    heft_status_t status = HEFT_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(out->fd, name, 0) != 0 && errno != ENOENT) {
        status = sys_error(err, errno, "remove stale", out->path, name);
    }
    (void)close(fd);
    return status;
}

static heft_status_t sweep(const heft__outdir_t *out, heft_error_t *err)
{
    DIR *listing = NULL;
    heft_status_t status = open_listing(out, &listing, err);
    if (listing == NULL) {
        return status;
    }
    const struct dirent *entry;
    while (status == HEFT_OK && (entry = readdir(listing)) != NULL) {
        if (is_owner_gone(entry->d_name)) {
            status = sweep_file(out, entry->d_name, err);
        }
    }
    (void)closedir(listing);
    return status;
}

/* ---- life ---- */

static heft_status_t open_folder(heft__outdir_t *out, heft_error_t *err)
{
    uint8_t random[8];
    char hex[2 * sizeof random + 1];
    heft_status_t status = heft__random_bytes(random, sizeof random, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__hex(random, sizeof random, hex);
    (void)snprintf(out->prefix, sizeof out->prefix, TEMP_PREFIX "%ld-%s-", (long)getpid(), hex);
    status = make_folders(out, err);
    if (status != HEFT_OK) {
        return status;
    }
    out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->fd < 0) {
        return sys_error(err, errno, "open folder", out->path, "");
    }
    status = heft__outdir_check_empty(out, err);
    return status == HEFT_OK ? sweep(out, err) : status;
}

heft_status_t heft__outdir_init(heft__outdir_t *out, const char *path, heft_error_t *err)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    if (n == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "an empty folder name");
    }
    *out = (heft__outdir_t){ .fd = -1, .path = heft__strndup(path, n) };
    if (out->path == NULL) {
        return heft__error_nomem(err, n + 1);
    }
    heft_status_t status = open_folder(out, err);
    if (status != HEFT_OK) {
        heft__outdir_fini(out, true);
    }
    return status;
}

void heft__outdir_fini(heft__outdir_t *out, bool remove)
{
    if (out->fd >= 0) {
        (void)close(out->fd);
    }
    if (remove) {
        remove_folders(out);
    }
    heft__free(out->path);
    *out = (heft__outdir_t){ .fd = -1 };
}

/* ---- files ---- */

void heft__outdir_temp_name(const heft__outdir_t *out, size_t k, char name_out[96])
{
    (void)snprintf(name_out, 96, "%s%zu", out->prefix, k);
}

static heft_status_t reserve(const heft__outdir_t *out, int fd, const char *final_name,
                             int64_t n_bytes, heft_error_t *err)
{
    int code;
    do {
        code = posix_fallocate(fd, 0, n_bytes);
    } while (code == EINTR);
    if (code == 0) {
        return HEFT_OK;
    }
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, out->path);
    return heft__error_set_sys(err, status_of(code), code, "cannot reserve %lld bytes for %s/%s",
                               (long long)n_bytes, label, final_name);
}

heft_status_t heft__outdir_create_file(const heft__outdir_t *out, size_t k, const char *final_name,
                                       int64_t n_bytes, int *fd_out, heft_error_t *err)
{
    char name[96];
    heft__outdir_temp_name(out, k, name);
    int fd = openat(out->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return sys_error(err, errno, "create", out->path, name);
    }
    (void)flock(fd, LOCK_EX | LOCK_NB); /* where locks do not exist, nothing is swept */
    heft_status_t status = n_bytes > 0 ? reserve(out, fd, final_name, n_bytes, err) : HEFT_OK;
    if (status != HEFT_OK) {
        (void)close(fd);
        heft__outdir_remove_file(out, k);
        return status;
    }
    *fd_out = fd;
    return HEFT_OK;
}

void heft__outdir_remove_file(const heft__outdir_t *out, size_t k)
{
    char name[96];
    heft__outdir_temp_name(out, k, name);
    (void)unlinkat(out->fd, name, 0);
}

heft_status_t heft__outdir_publish(const heft__outdir_t *out, size_t k, const char *final_name,
                                   heft_error_t *err)
{
    char name[96];
    heft__outdir_temp_name(out, k, name);
    int result = renameat2(out->fd, name, out->fd, final_name, RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
        /* Not every file system can do it; the folder's lock and the check under it remain. */
        result = renameat(out->fd, name, out->fd, final_name);
    }
    if (result == 0) {
        return HEFT_OK;
    }
    int code = errno;
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, out->path);
    return heft__error_set_sys(err, code == EEXIST ? HEFT_ERR_EXISTS : status_of(code), code,
                               "cannot rename to %s/%s", label, final_name);
}

heft_status_t heft__outdir_lock(const heft__outdir_t *out, heft_error_t *err)
{
    int result;
    do {
        result = flock(out->fd, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP || errno == ENOLCK || errno == EBADF ||
        errno == EINVAL) {
        return HEFT_OK; /* without folder locks RENAME_NOREPLACE alone decides */
    }
    return sys_error(err, errno, "lock", out->path, "");
}

void heft__outdir_unlock(const heft__outdir_t *out)
{
    (void)flock(out->fd, LOCK_UN);
}

heft_status_t heft__outdir_sync(const heft__outdir_t *out, heft_error_t *err)
{
    if (fsync(out->fd) != 0 && errno != EINVAL) {
        return sys_error(err, errno, "sync folder", out->path, "");
    }
    int parent = out->created_from > 0 ? openat(out->fd, "..", O_RDONLY | O_CLOEXEC) : -1;
    if (parent >= 0) {
        (void)fsync(parent); /* the new folder's own name; its content is safe already */
        (void)close(parent);
    }
    return HEFT_OK;
}
