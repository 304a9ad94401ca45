/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint reader: a safetensors file or folder, mapped read-only.
 *
 * Every header is checked on open; no byte of data is looked at. Only the files that the index
 * names are opened, so that a shard left over from an earlier version is never read. The mappings
 * keep the files alive when a clean-up removes the folder; a file that somebody truncates while it
 * is mapped is beyond repair (SIGBUS), which is why the writer replaces and never rewrites.
 */
#include "format/format.h"
#include "heft/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPORT_LINES = 40 };

typedef struct shard {
    char *path;
    int64_t rank; /* of the rank folder it lies in, or -1 */
    const uint8_t *map;
    size_t n_bytes;
    heft__st_header_t header;
} shard_t;

struct heft_checkpoint {
    heft_manifest_t *manifest;
    shard_t *shards;
    size_t n_shards;
    size_t cap_shards;
    const void **data; /* by tensor of the manifest */
};

/* One open: what is known while it runs. */
typedef struct opening {
    heft_checkpoint_t *checkpoint;
    heft__st_index_t index; /* n_files is 0 without an index */
    bool has_index;
    int64_t rank; /* whose folder is being opened, or -1 */
    size_t first; /* its first shard */
    char **report_out;
    heft_error_t *err;
} opening_t;

/* ---- files ---- */

static heft_status_t io_error(heft_error_t *err, const char *what, const char *path)
{
    int code = errno;
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, path);
    heft_status_t status = code == ENOENT || code == ENOTDIR ? HEFT_ERR_NOT_FOUND
                           : code == ENOMEM                  ? HEFT_ERR_NOMEM
                                                             : HEFT_ERR_IO;
    return heft__error_set_sys(err, status, code, "cannot %s %s", what, label);
}

static heft_status_t map_file(const char *path, const uint8_t **map_out, size_t *n_out,
                              heft_error_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return io_error(err, "open", path);
    }
    heft_status_t status = HEFT_OK;
    struct stat sb;
    void *map = NULL;
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, path);
    if (fstat(fd, &sb) != 0) {
        status = io_error(err, "stat", path);
    } else if (!S_ISREG(sb.st_mode)) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "%s is not a regular file", label);
    } else if (sb.st_size == 0) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "%s: truncated: 0 bytes", label);
    } else {
        map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
        status = map == MAP_FAILED ? io_error(err, "map", path) : HEFT_OK;
    }
    (void)close(fd);
    if (status == HEFT_OK) {
        /* Advice only: plans read sources in address order. */
        (void)madvise(map, (size_t)sb.st_size, MADV_SEQUENTIAL);
        *map_out = map;
        *n_out = (size_t)sb.st_size;
    }
    return status;
}

static void unmap_file(const uint8_t *map, size_t n)
{
    void *address;
    memcpy(&address, &map, sizeof address); /* munmap takes no const */
    (void)munmap(address, n);
}

static char *join(const char *dir, const char *file)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s/%s", dir, file);
    return heft__text_take(&text);
}

/* Takes path, also on failure. */
static heft_status_t open_shard(opening_t *o, char *path)
{
    heft_checkpoint_t *checkpoint = o->checkpoint;
    if (path == NULL) {
        return heft__error_nomem(o->err, 0);
    }
    shard_t *shard = &checkpoint->shards[checkpoint->n_shards];
    *shard = (shard_t){ .path = path, .rank = o->rank };
    heft_status_t status = map_file(path, &shard->map, &shard->n_bytes, o->err);
    if (status != HEFT_OK) {
        heft__free(path);
        return status;
    }
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, path);
    status = heft__st_header_decode(label, shard->map, shard->n_bytes, &shard->header, o->err);
    if (status != HEFT_OK) {
        unmap_file(shard->map, shard->n_bytes);
        heft__free(path);
        return status;
    }
    checkpoint->n_shards++;
    return HEFT_OK;
}

static heft_status_t reserve_shards(opening_t *o, size_t n)
{
    heft_checkpoint_t *checkpoint = o->checkpoint;
    void *shards = checkpoint->shards;
    o->first = checkpoint->n_shards;
    if (!heft__grow(&shards, &checkpoint->cap_shards, o->first + n, sizeof(shard_t))) {
        return heft__error_nomem(o->err, n * sizeof(shard_t));
    }
    checkpoint->shards = shards;
    return HEFT_OK;
}

/* ---- folders ---- */

static heft_status_t open_indexed(opening_t *o, const char *dir, const char *index_path)
{
    const uint8_t *map = NULL;
    size_t n = 0;
    heft_status_t status = map_file(index_path, &map, &n, o->err);
    if (status != HEFT_OK) {
        return status;
    }
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, index_path);
    status = heft__st_index_decode(label, (const char *)map, n, &o->index, o->err);
    unmap_file(map, n);
    if (status != HEFT_OK) {
        return status;
    }
    o->has_index = true;
    status = reserve_shards(o, o->index.n_files);
    for (size_t i = 0; i < o->index.n_files && status == HEFT_OK; i++) {
        status = open_shard(o, join(dir, o->index.files[i]));
    }
    return status;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name);
    size_t m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* "model-00001-of-00003.safetensors": one of several, whatever its folder holds. */
static bool is_one_of_several(const char *name)
{
    const char *of = strstr(name, "-of-");
    return of != NULL && strtoul(of + 4, NULL, 10) > 1;
}

static heft_status_t scan_folder(const char *dir, char **only_out, size_t *n_out, heft_error_t *err)
{
    DIR *handle = opendir(dir);
    if (handle == NULL) {
        return io_error(err, "open", dir);
    }
    heft_status_t status = HEFT_OK;
    char *only = NULL;
    size_t n = 0;
    const struct dirent *entry;
    while (status == HEFT_OK && (entry = readdir(handle)) != NULL) {
        if (entry->d_name[0] == '.' || !has_suffix(entry->d_name, ".safetensors")) {
            continue;
        }
        if (n++ == 0) {
            only = heft__strdup(entry->d_name);
            status = only != NULL ? HEFT_OK : heft__error_nomem(err, strlen(entry->d_name) + 1);
        }
    }
    (void)closedir(handle);
    if (status == HEFT_OK) {
        *only_out = only;
        *n_out = n;
    }
    return status;
}

static heft_status_t open_single(opening_t *o, const char *dir)
{
    char *only = NULL;
    size_t n = 0;
    heft_status_t status = scan_folder(dir, &only, &n, o->err);
    if (status != HEFT_OK) {
        return status;
    }
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, dir);
    if (n == 0) {
        status =
            heft__error_set(o->err, HEFT_ERR_NOT_FOUND, "%s holds no .safetensors file and no %s",
                            label, HEFT__ST_INDEX_NAME);
    } else if (n > 1 || is_one_of_several(only)) {
        status = heft__error_set(o->err, HEFT_ERR_FORMAT,
                                 "%s: %zu .safetensors files (\"%.60s\") without %s", label, n,
                                 only, HEFT__ST_INDEX_NAME);
    } else {
        status = reserve_shards(o, 1);
        status = status == HEFT_OK ? open_shard(o, join(dir, only)) : status;
    }
    heft__free(only);
    return status;
}

/* ---- the index against the shards ---- */

typedef struct disagreement {
    heft__text_t lines;
    char first[140];
    size_t n_missing;
    size_t n_extra;
} disagreement_t;

HEFT_PRINTF(2, 3) static void note_line(disagreement_t *d, const char *fmt, ...)
{
    size_t n = d->n_missing + d->n_extra;
    char line[512];
    va_list args;
    va_start(args, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm of clang 14 */
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n == 1) {
        (void)snprintf(d->first, sizeof d->first, "%.139s", line);
    }
    if (n <= REPORT_LINES) {
        heft__text_printf(&d->lines, "%s\n", line);
    }
}

static void note_extras(opening_t *o, size_t file, disagreement_t *d)
{
    heft__st_index_t *index = &o->index;
    const heft__st_header_t *header = &o->checkpoint->shards[o->first + file].header;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const char *name = header->tensors[i].name;
        uint32_t e = heft__map_get(&index->names, name, strlen(name));
        if (e == HEFT__MAP_NONE) {
            d->n_extra++;
            note_line(d, "\"%.240s\" of %.100s is not in the index", name, index->files[file]);
        } else if (index->entries[e].file != file) {
            d->n_extra++;
            note_line(d, "\"%.240s\" is in %.100s, the index says %.100s", name, index->files[file],
                      index->files[index->entries[e].file]);
        } else {
            index->entries[e].is_seen = true;
        }
    }
}

static heft_status_t check_index(opening_t *o, const char *path)
{
    disagreement_t d = { .first = "" };
    heft__text_init(&d.lines);
    for (size_t i = 0; i < o->index.n_files; i++) {
        note_extras(o, i, &d);
    }
    for (size_t i = 0; i < o->index.n_entries; i++) {
        const heft__st_index_entry_t *entry = &o->index.entries[i];
        if (!entry->is_seen) {
            d.n_missing++;
            note_line(&d, "\"%.240s\" is missing from %.100s", entry->name,
                      o->index.files[entry->file]);
        }
    }
    size_t n = d.n_missing + d.n_extra;
    if (n == 0) {
        heft__text_fini(&d.lines);
        return HEFT_OK;
    }
    heft__text_printf(&d.lines, "%zu missing, %zu surplus in all\n", d.n_missing, d.n_extra);
    char label[HEFT__ST_LABEL_BYTES];
    heft__path_label(label, path);
    char *report = heft__text_take(&d.lines);
    if (report == NULL) {
        return heft__error_nomem(o->err, 0);
    }
    if (o->report_out != NULL) {
        *o->report_out = report;
    } else {
        heft__free(report);
    }
    return heft__error_set(o->err, HEFT_ERR_FORMAT,
                           "%s: index and shards disagree: %zu missing, %zu surplus: %s", label,
                           d.n_missing, d.n_extra, d.first);
}

/* ---- one folder, or one for each rank ---- */

static heft_status_t open_folder(opening_t *o, const char *dir)
{
    char *index_path = join(dir, HEFT__ST_INDEX_NAME);
    if (index_path == NULL) {
        return heft__error_nomem(o->err, 0);
    }
    struct stat sb;
    heft_status_t status =
        stat(index_path, &sb) == 0 ? open_indexed(o, dir, index_path) : open_single(o, dir);
    heft__free(index_path);
    if (status == HEFT_OK && o->has_index) {
        status = check_index(o, dir);
    }
    if (o->has_index) {
        heft__st_index_fini(&o->index);
        o->has_index = false;
    }
    return status;
}

static heft_status_t open_rank(opening_t *o, const char *dir, uint32_t rank)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s/rank-%u", dir, (unsigned)rank);
    char *path = heft__text_take(&text);
    if (path == NULL) {
        return heft__error_nomem(o->err, strlen(dir) + 16);
    }
    o->rank = rank;
    heft_status_t status = open_folder(o, path);
    heft__free(path);
    return status;
}

/* A folder without a checkpoint of its own may hold one for each rank. */
static heft_status_t open_tree(opening_t *o, const char *dir)
{
    char *only = NULL;
    char *index_path = join(dir, HEFT__ST_INDEX_NAME);
    uint32_t *ranks = NULL;
    size_t n_files = 0;
    size_t n_ranks = 0;
    struct stat sb;
    if (index_path == NULL) {
        return heft__error_nomem(o->err, 0);
    }
    bool has_index = stat(index_path, &sb) == 0;
    heft__free(index_path);
    heft_status_t status = HEFT_OK;
    if (!has_index) {
        status = scan_folder(dir, &only, &n_files, o->err);
        heft__free(only);
    }
    if (status == HEFT_OK && !has_index && n_files == 0) {
        status = heft__find_ranks(dir, &ranks, &n_ranks, o->err);
    }
    if (status == HEFT_OK && n_ranks == 0) {
        status = open_folder(o, dir);
    }
    for (size_t i = 0; i < n_ranks && status == HEFT_OK; i++) {
        status = open_rank(o, dir, ranks[i]);
    }
    heft__free(ranks);
    return status;
}

/* ---- building ---- */

/* A tensor's name in the checkpoint: a rank's begins with its folder. NULL: out of memory. */
static const char *full_name(const shard_t *shard, const char *name, heft__text_t *text)
{
    if (shard->rank < 0) {
        return name;
    }
    heft__text_reset(text);
    heft__text_printf(text, "rank-%lld.%s", (long long)shard->rank, name);
    return text->failed ? NULL : text->data;
}

static heft_status_t add_shard(heft_manifest_t *manifest, const shard_t *shard, heft__text_t *text,
                               heft_error_t *err)
{
    for (size_t i = 0; i < shard->header.n_tensors; i++) {
        const heft__st_tensor_t *t = &shard->header.tensors[i];
        heft_error_t cause = HEFT_ERROR_INIT;
        const char *name = full_name(shard, t->name, text);
        heft_status_t status = name != NULL
                                   ? heft_manifest_add(manifest, name, t->dtype, &t->shape, &cause)
                                   : HEFT_ERR_NOMEM;
        if (status == HEFT_ERR_NOMEM) {
            return heft__error_nomem(err, 0);
        }
        if (status != HEFT_OK) {
            char label[HEFT__ST_LABEL_BYTES];
            heft__path_label(label, shard->path);
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: %s", label, cause.message);
        }
    }
    return HEFT_OK;
}

static heft_status_t build_manifest(opening_t *o, const char *side)
{
    heft_checkpoint_t *checkpoint = o->checkpoint;
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = heft_manifest_create(side, &checkpoint->manifest, o->err);
    for (size_t i = 0; i < checkpoint->n_shards && status == HEFT_OK; i++) {
        status = add_shard(checkpoint->manifest, &checkpoint->shards[i], &text, o->err);
    }
    heft__text_fini(&text);
    if (status == HEFT_OK) {
        heft__manifest_set_of_files(checkpoint->manifest);
    }
    return status == HEFT_OK ? heft_manifest_finish(checkpoint->manifest, o->err) : status;
}

static heft_status_t bind_shard(heft_checkpoint_t *checkpoint, shard_t *shard, heft__text_t *text,
                                heft_error_t *err)
{
    for (size_t i = 0; i < shard->header.n_tensors; i++) {
        const heft__st_tensor_t *t = &shard->header.tensors[i];
        const char *name = full_name(shard, t->name, text);
        uint32_t index;
        heft_status_t status = name != NULL
                                   ? heft_manifest_find(checkpoint->manifest, name, &index, err)
                                   : heft__error_nomem(err, 0);
        if (status != HEFT_OK) {
            return status;
        }
        checkpoint->data[index] = shard->map + shard->header.data_offset + t->begin;
    }
    heft__st_header_fini(&shard->header);
    return HEFT_OK;
}

static heft_status_t bind_data(opening_t *o)
{
    heft_checkpoint_t *checkpoint = o->checkpoint;
    size_t n = heft_manifest_get_n_tensors(checkpoint->manifest);
    checkpoint->data = heft__calloc(n + 1, sizeof checkpoint->data[0]);
    if (checkpoint->data == NULL) {
        return heft__error_nomem(o->err, n * sizeof checkpoint->data[0]);
    }
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = HEFT_OK;
    for (size_t s = 0; s < checkpoint->n_shards && status == HEFT_OK; s++) {
        status = bind_shard(checkpoint, &checkpoint->shards[s], &text, o->err);
    }
    heft__text_fini(&text);
    return status;
}

static heft_status_t open_all(opening_t *o, const char *path, const char *side)
{
    struct stat sb;
    if (stat(path, &sb) != 0) {
        return io_error(o->err, "open", path);
    }
    heft_status_t status;
    if (S_ISDIR(sb.st_mode)) {
        status = open_tree(o, path);
    } else {
        status = reserve_shards(o, 1);
        status = status == HEFT_OK ? open_shard(o, heft__strdup(path)) : status;
    }
    if (status == HEFT_OK) {
        status = build_manifest(o, side);
    }
    return status == HEFT_OK ? bind_data(o) : status;
}

heft_status_t heft_checkpoint_open_report(const char *path, const char *side,
                                          heft_checkpoint_t **checkpoint_out, char **report_out,
                                          heft_error_t *err)
{
    if (report_out != NULL) {
        *report_out = NULL;
    }
    heft_checkpoint_t *checkpoint = heft__calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL) {
        return heft__error_nomem(err, sizeof *checkpoint);
    }
    opening_t o = { .checkpoint = checkpoint, .report_out = report_out, .rank = -1, .err = err };
    heft_status_t status = open_all(&o, path, side);
    if (status != HEFT_OK) {
        heft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return HEFT_OK;
}

heft_status_t heft_checkpoint_open(const char *path, const char *side,
                                   heft_checkpoint_t **checkpoint_out, heft_error_t *err)
{
    return heft_checkpoint_open_report(path, side, checkpoint_out, NULL, err);
}

void heft_checkpoint_close(heft_checkpoint_t *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    for (size_t i = 0; i < checkpoint->n_shards; i++) {
        shard_t *shard = &checkpoint->shards[i];
        heft__st_header_fini(&shard->header);
        unmap_file(shard->map, shard->n_bytes);
        heft__free(shard->path);
    }
    heft_manifest_destroy(checkpoint->manifest);
    heft__free(checkpoint->data);
    heft__free(checkpoint->shards);
    heft__free(checkpoint);
}

/* ---- names ---- */

heft_status_t heft_checkpoint_canonicalize(heft_checkpoint_t *checkpoint,
                                           const heft_name_opts_t *opts, heft_error_t *err)
{
    heft_manifest_t *manifest = NULL;
    heft_status_t status = heft_manifest_canonicalize(checkpoint->manifest, opts, &manifest, err);
    if (status != HEFT_OK) {
        return status;
    }
    uint32_t n = heft_manifest_get_n_tensors(manifest);
    const void **data = heft__calloc((size_t)n + 1, sizeof data[0]);
    if (data == NULL) {
        status = heft__error_nomem(err, n * sizeof data[0]);
    }
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        char *native = NULL;
        uint32_t index = 0;
        status =
            heft_manifest_get_native(manifest, heft__manifest_get(manifest, i)->name, &native, err);
        if (status == HEFT_OK) {
            status = heft_manifest_find(checkpoint->manifest, native, &index, err);
            data[i] = checkpoint->data[index];
        }
        heft_string_free(native);
    }
    if (status != HEFT_OK) {
        heft_manifest_destroy(manifest);
        heft__free(data);
        return status;
    }
    heft_manifest_destroy(checkpoint->manifest);
    heft__free(checkpoint->data);
    checkpoint->manifest = manifest;
    checkpoint->data = data;
    return HEFT_OK;
}

/* ---- reading ---- */

void heft__drop_pages(const void *data, int64_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lead = (uintptr_t)data % page;
    char *begin;
    memcpy(&begin, &data, sizeof data); /* madvise takes no const */
    if (n_bytes > 0) {
        (void)madvise(begin - lead, (size_t)n_bytes + lead, MADV_DONTNEED);
    }
}

const heft_manifest_t *heft_checkpoint_get_manifest(const heft_checkpoint_t *checkpoint)
{
    return checkpoint->manifest;
}

const void *heft_checkpoint_get_data(const heft_checkpoint_t *checkpoint, uint32_t i)
{
    return i < heft_manifest_get_n_tensors(checkpoint->manifest) ? checkpoint->data[i] : NULL;
}

void heft_checkpoint_release(const heft_checkpoint_t *checkpoint, uint32_t i)
{
    const heft_tensor_info_t *info = heft__manifest_get(checkpoint->manifest, i);
    if (info != NULL) {
        heft__drop_pages(checkpoint->data[i], info->n_bytes);
    }
}
