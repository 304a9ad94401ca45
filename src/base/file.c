/* SPDX-License-Identifier: Apache-2.0 */
/* Small files, read whole. What is checked is the open file, not its name. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static heft_status_t check_file(int fd, const char *path, const char *what, size_t max_bytes,
                                bool is_private, size_t *n_out, heft_error_t *err)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "%s %.120s", what, path);
    }
    if (!S_ISREG(sb.st_mode)) {
        return heft__error_set(err, HEFT_ERR_IO, "%s %.120s: no regular file", what, path);
    }
    if (sb.st_size < 0 || (uint64_t)sb.st_size > max_bytes) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s %.120s: %lld bytes, at most %zu are allowed", what, path,
                               (long long)sb.st_size, max_bytes);
    }
    if (is_private && sb.st_uid != geteuid() && sb.st_uid != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%s %.120s: belongs to user %u, this process runs as %u", what, path,
                               (unsigned)sb.st_uid, (unsigned)geteuid());
    }
    if (is_private && (sb.st_mode & 077u) != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%s %.120s: mode %03o lets others at it: chmod 600", what, path,
                               (unsigned)(sb.st_mode & 0777u));
    }
    *n_out = (size_t)sb.st_size;
    return HEFT_OK;
}

/* Up to n bytes; fewer when the file has shrunk. */
static heft_status_t read_bytes(int fd, const char *path, const char *what, char *text, size_t n,
                                size_t *got_out, heft_error_t *err)
{
    size_t got = 0;
    while (got < n) {
        const ssize_t one = read(fd, text + got, n - got);
        if (one < 0 && errno != EINTR) {
            return heft__error_set_sys(err, HEFT_ERR_IO, errno, "%s %.120s", what, path);
        }
        if (one == 0) {
            break;
        }
        got += one > 0 ? (size_t)one : 0;
    }
    *got_out = got;
    return HEFT_OK;
}

heft_status_t heft__file_read(const char *path, const char *what, size_t max_bytes, bool is_private,
                              char **text_out, size_t *n_out, heft_error_t *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "%s %.120s", what, path);
    }
    size_t n = 0;
    char *text = NULL;
    heft_status_t status = check_file(fd, path, what, max_bytes, is_private, &n, err);
    if (status == HEFT_OK) {
        text = heft__malloc(n + 1);
        status = text != NULL ? read_bytes(fd, path, what, text, n, &n, err)
                              : heft__error_nomem(err, n + 1);
    }
    (void)close(fd);
    if (status != HEFT_OK) {
        heft__free(text);
        return status;
    }
    text[n] = '\0';
    *text_out = text;
    *n_out = n;
    return HEFT_OK;
}
