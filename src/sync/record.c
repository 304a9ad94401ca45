/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record: written to "<path>.new", synced, renamed over the file, the folder synced. Before the
 * rename a failure leaves the old record; after it, only the sync of the folder can fail, and then
 * it is not known which of the two a crash would leave.
 */
#include "sync/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sync/wire_json.h"

#define MAX_RECORD_BYTES (64 << 20)

/* ---- JSON ---- */

typedef struct record_message {
    uint32_t format;
    heft__record_t record;
} record_message_t;

#define AT(member) offsetof(record_message_t, record.member)
static const heft__field_t record_fields[] = {
    { "format", HEFT__FIELD_U32, true, offsetof(record_message_t, format), 1, 1, NULL },
    { "epoch", HEFT__FIELD_INT, true, AT(epoch), 1, HEFT__WIRE_MAX_INT, NULL },
    { "sequence", HEFT__FIELD_INT, true, AT(sequence), 0, HEFT__WIRE_MAX_INT, NULL },
    { "committed_version", HEFT__FIELD_INT, true, AT(committed_version), 0, HEFT__WIRE_MAX_INT,
      NULL },
    { "committed_digest", HEFT__FIELD_HEX, false, AT(committed_digest), 0, 64, NULL },
    { "before_version", HEFT__FIELD_INT, true, AT(before_version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "before_digest", HEFT__FIELD_HEX, false, AT(before_digest), 0, 64, NULL },
    { "round", HEFT__FIELD_ROUND, false, AT(round), 0, 0, NULL },
    { "in_doubt", HEFT__FIELD_BOOL, true, AT(in_doubt), 0, 0, NULL },
    { "version", HEFT__FIELD_INT, false, AT(version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "relays", HEFT__FIELD_BOOL, false, AT(relays), 0, 0, NULL },
    { "source_digest", HEFT__FIELD_HEX, false, AT(source_digest), 0, 64, NULL },
    { "decision", HEFT__FIELD_ENUM, true, AT(decision), 0, 0, heft__decision_names },
    { "members", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef AT

#define AT(member) offsetof(heft__record_member_t, member)
static const heft__field_t member_fields[] = {
    { "role", HEFT__FIELD_ENUM, true, AT(role), 0, 0, heft__role_names },
    { "job", HEFT__FIELD_TEXT, true, AT(job), 1, HEFT__JOB_SIZE, NULL },
    { "replica", HEFT__FIELD_U32, true, AT(replica), 0, INT32_MAX, NULL },
    { "rank", HEFT__FIELD_U32, true, AT(rank), 0, INT32_MAX, NULL },
    { "incarnation", HEFT__FIELD_HEX, true, AT(incarnation), 0, 32, NULL },
    { "in_round", HEFT__FIELD_BOOL, true, AT(in_round), 0, 0, NULL },
    { "moves", HEFT__FIELD_BOOL, true, AT(moves), 0, 0, NULL },
    { "feeds", HEFT__FIELD_BOOL, false, AT(feeds), 0, 0, NULL },
    { "in_place", HEFT__FIELD_BOOL, false, AT(in_place), 0, 0, NULL },
    { "poison", HEFT__FIELD_INT, true, AT(poison), 0, HEFT__POISON_REFILL, NULL },
    HEFT__FIELD_END
};
#undef AT

void heft__record_fini(heft__record_t *record)
{
    heft__free(record->members);
    memset(record, 0, sizeof *record);
}

static json_t *members_json(const heft__record_member_t *members, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        json_t *item = json_object();
        if (item == NULL || heft__json_write(item, member_fields, &members[i], NULL) != HEFT_OK) {
            json_decref(item);
            json_decref(list);
            return NULL;
        }
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

heft_status_t heft__record_encode(const heft__record_t *record, char **text_out, heft_error_t *err)
{
    const record_message_t msg = { .format = 1, .record = *record };
    json_t *root = json_object();
    if (root == NULL || heft__json_write(root, record_fields, &msg, err) != HEFT_OK ||
        !heft__json_put(root, "members", members_json(record->members, record->n_members))) {
        json_decref(root);
        return heft__error_nomem(err, 0);
    }
    return heft__json_finish(root, text_out, err);
}

static heft_status_t read_members(json_t *list, heft__record_t *out, heft_error_t *err)
{
    const size_t n = json_array_size(list);
    out->members = heft__calloc(n > 0 ? n : 1, sizeof *out->members);
    if (out->members == NULL) {
        return heft__error_nomem(err, n * sizeof *out->members);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(list, i);
        heft__record_member_t *member = &out->members[i];
        if (!json_is_object(item)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "record members: item %zu is no object",
                                   i);
        }
        heft_status_t status = heft__json_read(item, member_fields, "record members", member, err);
        if (status == HEFT_OK && !heft__is_job(member->job)) {
            status = heft__error_set(err, HEFT_ERR_FORMAT, "record members: item %zu: bad job", i);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    out->n_members = (uint32_t)n;
    return HEFT_OK;
}

heft_status_t heft__record_decode(const char *text, size_t n, heft__record_t *out,
                                  heft_error_t *err)
{
    json_t *root = NULL;
    record_message_t msg;
    memset(&msg, 0, sizeof msg);
    heft_status_t status = heft__json_parse(text, n, "record", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__json_read(root, record_fields, "record", &msg, err);
    heft__record_t *record = &msg.record;
    const bool versions = (record->committed_version == 0) == (record->committed_digest[0] == '\0');
    if (status == HEFT_OK && !versions) {
        status = heft__error_set(err, HEFT_ERR_FORMAT,
                                 "record: committed_digest goes with committed_version");
    }
    if (status == HEFT_OK) {
        status = read_members(json_object_get(root, "members"), record, err);
    }
    json_decref(root);
    if (status != HEFT_OK) {
        heft__record_fini(record);
        return status;
    }
    *out = *record;
    return HEFT_OK;
}

/* ---- file ---- */

static heft_status_t read_all(int fd, const char *path, char **text_out, size_t *n_out,
                              heft_error_t *err)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "state file %.120s", path);
    }
    if (!S_ISREG(sb.st_mode) || sb.st_size > MAX_RECORD_BYTES) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "state file %.120s: no regular file of at most %d bytes", path,
                               MAX_RECORD_BYTES);
    }
    const size_t size = (size_t)sb.st_size;
    char *text = heft__malloc(size + 1);
    if (text == NULL) {
        return heft__error_nomem(err, size + 1);
    }
    size_t n = 0;
    while (n < size) {
        const ssize_t got = read(fd, text + n, size - n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            const int sys = errno;
            heft__free(text);
            return heft__error_set_sys(err, HEFT_ERR_IO, sys, "state file %.120s", path);
        }
        if (got == 0) {
            break;
        }
        n += (size_t)got;
    }
    text[n] = '\0';
    *text_out = text;
    *n_out = n;
    return HEFT_OK;
}

heft_status_t heft__record_load(const char *path, heft__record_t *out, heft_error_t *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return heft__error_set_sys(err, errno == ENOENT ? HEFT_ERR_NOT_FOUND : HEFT_ERR_IO, errno,
                                   "state file %.120s", path);
    }
    char *text = NULL;
    size_t n = 0;
    heft_status_t status = read_all(fd, path, &text, &n, err);
    (void)close(fd);
    if (status != HEFT_OK) {
        return status;
    }
    heft_error_t why = HEFT_ERROR_INIT;
    status = heft__record_decode(text, n, out, &why);
    heft__free(text);
    if (status != HEFT_OK) {
        return heft__error_set(err, status, "state file %.100s: %.120s", path, why.message);
    }
    return HEFT_OK;
}

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t put = write(fd, text, n);
        if (put < 0 && errno != EINTR) {
            return false;
        }
        if (put > 0) {
            text += put;
            n -= (size_t)put;
        }
    }
    return true;
}

/* Sync the folder that holds path, so that the rename is durable. */
static bool sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL   ? heft__strdup(".")
                   : slash == path ? heft__strdup("/")
                                   : heft__strndup(path, (size_t)(slash - path));
    if (folder == NULL) {
        errno = ENOMEM;
        return false;
    }
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    heft__free(folder);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return ok;
}

static heft_status_t write_new(const char *path, const char *text, heft_error_t *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return heft__error_set_sys(err, errno == ENOSPC ? HEFT_ERR_NOSPACE : HEFT_ERR_IO, errno,
                                   "state file %.120s", path);
    }
    const bool ok = write_all(fd, text, strlen(text)) && fsync(fd) == 0;
    const int sys = errno;
    const bool closed = close(fd) == 0;
    if (!ok || !closed) {
        return heft__error_set_sys(err, sys == ENOSPC ? HEFT_ERR_NOSPACE : HEFT_ERR_IO, sys,
                                   "state file %.120s", path);
    }
    return HEFT_OK;
}

heft_status_t heft__record_save(const char *path, const heft__record_t *record, bool *maybe_out,
                                heft_error_t *err)
{
    char *text = NULL;
    *maybe_out = false;
    heft_status_t status = heft__record_encode(record, &text, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__text_t fresh;
    heft__text_init(&fresh);
    heft__text_printf(&fresh, "%s.new", path);
    if (fresh.failed) {
        status = heft__error_nomem(err, strlen(path));
    }
    if (status == HEFT_OK) {
        status = write_new(fresh.data, text, err);
    }
    if (status == HEFT_OK && rename(fresh.data, path) != 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "state file %.120s: rename", path);
    } else if (status == HEFT_OK && !sync_folder(path)) {
        *maybe_out = true;
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "state file %.120s: folder", path);
    }
    heft__text_fini(&fresh);
    heft__free(text);
    return status;
}

/* The lock file says who holds the lock: for people alone, the lock is the kernel's. */
static void write_holder(int fd)
{
    char name[HEFT__PROCESS_SIZE];
    heft__process_name(name);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, name, strlen(name), 0) != (ssize_t)strlen(name)) {
        heft__log(HEFT_LOG_DEBUG, "sync", "the lock file does not say who holds it");
    }
}

static void read_holder(int fd, char out[HEFT__PROCESS_SIZE])
{
    const ssize_t n = pread(fd, out, HEFT__PROCESS_SIZE - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    for (char *c = out; *c != '\0'; c++) {
        *c = *c > ' ' && *c < 127 ? *c : '?';
    }
}

heft_status_t heft__record_lock(const char *path, int *fd_out, heft_error_t *err)
{
    heft__text_t name;
    heft__text_init(&name);
    heft__text_printf(&name, "%s.lock", path);
    const int fd = name.failed ? -1 : open(name.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int sys = name.failed ? ENOMEM : errno;
    heft__text_fini(&name);
    if (fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, sys, "state file %.120s: lock", path);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        char holder[HEFT__PROCESS_SIZE] = "";
        read_holder(fd, holder);
        (void)close(fd);
        return heft__error_set(err, HEFT_ERR_BUSY,
                               "state file %.100s: another coordinator has it (%s): end that one, "
                               "or give this one a file of its own",
                               path, holder[0] != '\0' ? holder : "it does not say which");
    }
    write_holder(fd);
    *fd_out = fd;
    return HEFT_OK;
}
