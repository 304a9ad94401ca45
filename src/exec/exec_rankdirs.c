/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output folders of a conversion: all ranks or nothing. One rank: the checkpoint writer's own
 * commit is the whole story. Several ranks are written and committed in a work folder with a random
 * name. Where the final folder does not exist yet, one rename of the work folder is the commit.
 * Where it does, the work folder lies in it and its rank folders are renamed in order; a failure
 * takes the earlier ones back.
 */
#include "exec/exec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *join_rank(const char *dir, uint32_t rank_index)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s/rank-%u", dir, rank_index);
    char *path = heft__text_take(&text);
    heft__text_fini(&text);
    return path;
}

static char *final_name(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') {
        n--;
    }
    return heft__strndup(dir, n);
}

static char *work_name(const heft__rankdirs_t *out, heft_status_t *status_out, heft_error_t *err)
{
    uint8_t random[8];
    char hex[17];
    *status_out = heft__random_bytes(random, sizeof random, err);
    if (*status_out != HEFT_OK) {
        return NULL;
    }
    heft__hex(random, sizeof random, hex);
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, out->is_inside ? "%s/.heft-%s" : "%s.heft-%s", out->final, hex);
    char *path = heft__text_take(&text);
    heft__text_fini(&text);
    if (path == NULL) {
        *status_out = heft__error_nomem(err, strlen(out->final) + 32);
    }
    return path;
}

/* A rank folder that is there must be empty. */
static heft_status_t check_free(const heft__rankdirs_t *out, heft_error_t *err)
{
    for (uint32_t r = 0; r < out->n_ranks; r++) {
        char *path = join_rank(out->final, r);
        if (path == NULL) {
            return heft__error_nomem(err, strlen(out->final) + 16);
        }
        struct stat st;
        int rc = lstat(path, &st);
        /* rmdir succeeds exactly when it is an empty folder, which the rename would replace */
        heft_status_t status = HEFT_OK;
        if (rc == 0 && rmdir(path) != 0) {
            status =
                heft__error_set(err, HEFT_ERR_EXISTS, "%s exists and is no empty folder", path);
        }
        heft__free(path);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* Make the folders above path that are missing; on failure, or without a commit, they go again. */
static heft_status_t make_parents(heft__rankdirs_t *out, heft_error_t *err)
{
    for (char *slash = strchr(out->final + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int rc = mkdir(out->final, 0777);
        int sys_errno = errno;
        if (rc == 0 && out->n_parents++ == 0) {
            out->first_parent = (size_t)(slash - out->final);
        }
        heft_status_t status = HEFT_OK;
        if (rc != 0 && sys_errno != EEXIST) {
            status = heft__error_set_sys(err, HEFT_ERR_IO, sys_errno, "cannot make folder %s",
                                         out->final);
        }
        *slash = '/';
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static void remove_parents(heft__rankdirs_t *out)
{
    for (char *slash = strrchr(out->final, '/');
         out->n_parents > 0 && slash != NULL && (size_t)(slash - out->final) >= out->first_parent;
         slash = strrchr(out->final, '/')) {
        *slash = '\0';
        (void)rmdir(out->final); /* stays if something else has come to lie in it */
    }
}

heft_status_t heft__rankdirs_init(heft__rankdirs_t *out, const char *dir, uint32_t n_ranks,
                                  heft_error_t *err)
{
    *out = (heft__rankdirs_t){ .n_ranks = n_ranks };
    out->final = final_name(dir);
    if (out->final == NULL) {
        return heft__error_nomem(err, strlen(dir) + 1);
    }
    if (n_ranks == 1) {
        return HEFT_OK;
    }
    struct stat st;
    out->is_inside = stat(out->final, &st) == 0;
    if (out->is_inside && !S_ISDIR(st.st_mode)) {
        return heft__error_set(err, HEFT_ERR_EXISTS, "%s is no folder", out->final);
    }
    heft_status_t status = out->is_inside ? check_free(out, err) : make_parents(out, err);
    if (status == HEFT_OK) {
        out->work = work_name(out, &status, err);
    }
    if (status == HEFT_OK && mkdir(out->work, 0777) != 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot make folder %s", out->work);
    }
    out->created = status == HEFT_OK;
    return status;
}

char *heft__rankdirs_rank(const heft__rankdirs_t *out, uint32_t rank_index)
{
    return out->n_ranks == 1 ? heft__strdup(out->final) : join_rank(out->work, rank_index);
}

/* A rename is durable once the folder that holds the name is. */
static heft_status_t sync_folder(const char *path, heft_error_t *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot open folder %s", path);
    }
    int rc = fsync(fd);
    int sys_errno = errno;
    (void)close(fd);
    /* some file systems cannot sync a folder, and say so */
    if (rc != 0 && sys_errno != EINVAL) {
        return heft__error_set_sys(err, HEFT_ERR_IO, sys_errno, "cannot sync folder %s", path);
    }
    return HEFT_OK;
}

static heft_status_t sync_parent(const char *path, heft_error_t *err)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return sync_folder(".", err);
    }
    char *parent = heft__strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (parent == NULL) {
        return heft__error_nomem(err, (size_t)(slash - path) + 1);
    }
    heft_status_t status = sync_folder(parent, err);
    heft__free(parent);
    return status;
}

enum { RANK_NAME_BYTES = 24 };

static void rank_name(uint32_t rank_index, char name[RANK_NAME_BYTES])
{
    (void)snprintf(name, RANK_NAME_BYTES, "rank-%u", rank_index);
}

/* Taking back allocates nothing, so that it cannot fail for want of memory. */
static heft_status_t move_ranks(heft__rankdirs_t *out, int work_fd, int final_fd, heft_error_t *err)
{
    char name[RANK_NAME_BYTES];
    heft_status_t status = HEFT_OK;
    uint32_t done = 0;
    while (status == HEFT_OK && done < out->n_ranks) {
        rank_name(done, name);
        if (renameat(work_fd, name, final_fd, name) != 0) {
            status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot rename %s/%s to %s/%s",
                                         out->work, name, out->final, name);
        } else {
            done++;
        }
    }
    if (status == HEFT_OK) {
        status = sync_folder(out->final, err);
    }
    while (status != HEFT_OK && done > 0) {
        rank_name(--done, name);
        (void)renameat(final_fd, name, work_fd, name);
    }
    return status;
}

static heft_status_t commit_inside(heft__rankdirs_t *out, heft_error_t *err)
{
    int work_fd = open(out->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int final_fd = open(out->final, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    heft_status_t status;
    if (work_fd < 0 || final_fd < 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot open folder %s", out->work);
    } else {
        status = move_ranks(out, work_fd, final_fd, err);
    }
    if (work_fd >= 0) {
        (void)close(work_fd);
    }
    if (final_fd >= 0) {
        (void)close(final_fd);
    }
    if (status == HEFT_OK) {
        (void)rmdir(out->work); /* empty; if it stays, nothing final is wrong */
        out->created = false;
    }
    return status;
}

heft_status_t heft__rankdirs_commit(heft__rankdirs_t *out, heft_error_t *err)
{
    if (out->n_ranks == 1) {
        return HEFT_OK;
    }
    if (out->is_inside) {
        return commit_inside(out, err);
    }
    if (rename(out->work, out->final) != 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot rename %s to %s", out->work,
                                   out->final);
    }
    heft_status_t status = sync_parent(out->final, err);
    if (status != HEFT_OK) {
        (void)rename(out->final, out->work);
        return status;
    }
    out->created = false;
    out->n_parents = 0;
    return HEFT_OK;
}

static void remove_rank(int work_fd, uint32_t rank_index)
{
    char name[RANK_NAME_BYTES];
    rank_name(rank_index, name);
    int fd = openat(work_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *handle = fd >= 0 ? fdopendir(fd) : NULL;
    if (handle == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    for (const struct dirent *entry = readdir(handle); entry != NULL; entry = readdir(handle)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(fd, entry->d_name, 0);
        }
    }
    (void)closedir(handle);
    (void)unlinkat(work_fd, name, AT_REMOVEDIR);
}

void heft__rankdirs_fini(heft__rankdirs_t *out)
{
    int work_fd = out->created ? open(out->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (work_fd >= 0) {
        for (uint32_t r = 0; r < out->n_ranks; r++) {
            remove_rank(work_fd, r);
        }
        (void)close(work_fd);
        (void)rmdir(out->work);
    }
    if (out->n_parents > 0) {
        remove_parents(out);
    }
    heft__free(out->final);
    heft__free(out->work);
    *out = (heft__rankdirs_t){ 0 };
}
