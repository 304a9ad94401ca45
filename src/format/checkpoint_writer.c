/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint writer: every tensor's place is known before the first byte is written.
 *
 * Tensors go to shards in manifest order; within a shard wide elements come first, then names, so
 * that every tensor is aligned for its dtype without the gaps that the format forbids. Each shard
 * is one file, reserved, mapped, and given its header at once; callers write tensors through the
 * mapping. Commit syncs the shards, then renames them, the index last: a reader sees all or
 * nothing.
 *
 * A shard keeps no descriptor: its mapping holds the open file, and with it the lock that keeps
 * others from sweeping it. Where a call needs a descriptor, one is opened by name; the last one is
 * kept, since tensors come shard by shard.
 */
#include "format/format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DATA_ALIGNMENT = 64 };
#define DEFAULT_SHARD_BYTES 5000000000

typedef enum slot_state { SLOT_NEW = 0, SLOT_MAPPED = 1, SLOT_DONE = 2 } slot_state_t;

typedef struct slot {
    const char *name; /* in the arena */
    int64_t offset;   /* in the file */
    int64_t n_bytes;
    uint32_t shard;
    uint32_t unit_bytes;
    slot_state_t state;
} slot_t;

typedef struct out_shard {
    char file[48];
    uint8_t *map;   /* NULL: no file yet */
    size_t n_bytes; /* of the file */
    bool is_published;
} out_shard_t;

struct heft_checkpoint_writer {
    heft__arena_t arena;
    heft__outdir_t out;
    slot_t *slots; /* by tensor of the manifest */
    uint32_t n_slots;
    uint32_t *order; /* slots by shard, then place */
    out_shard_t *shards;
    uint32_t n_shards;
    char *index; /* text, NULL with one shard */
    int fd;      /* of shard fd_shard, or -1 */
    uint32_t fd_shard;
    bool is_index_published;
    bool has_outdir;
    bool is_committed;
    bool is_failed;
};

/* ---- layout ---- */

static heft_status_t copy_tensors(heft_checkpoint_writer_t *w, const heft_manifest_t *manifest,
                                  int64_t max_shard_bytes, heft_error_t *err)
{
    w->n_slots = heft_manifest_get_n_tensors(manifest);
    w->slots = heft__calloc((size_t)w->n_slots + 1, sizeof w->slots[0]);
    w->order = heft__calloc((size_t)w->n_slots + 1, sizeof w->order[0]);
    if (w->slots == NULL || w->order == NULL) {
        return heft__error_nomem(err, (size_t)w->n_slots * sizeof w->slots[0]);
    }
    int64_t room = max_shard_bytes;
    uint32_t shard = 0;
    for (uint32_t i = 0; i < w->n_slots; i++) {
        const heft_tensor_info_t *t = heft__manifest_get(manifest, i);
        if (t->n_bytes > room && room < max_shard_bytes) {
            shard++;
            room = max_shard_bytes;
        }
        room = t->n_bytes > room ? 0 : room - t->n_bytes;
        const char *native = heft_manifest_get_tensor_attr(manifest, i, "native");
        native = native != NULL ? native : t->name;
        char *name = heft__arena_strndup(&w->arena, native, strlen(native));
        if (name == NULL) {
            return heft__error_nomem(err, strlen(native) + 1);
        }
        w->slots[i] = (slot_t){ .name = name,
                                .n_bytes = t->n_bytes,
                                .shard = shard,
                                .unit_bytes = heft_dtype_get_unit_bytes(t->dtype) };
        w->order[i] = i;
    }
    w->n_shards = shard + 1;
    return HEFT_OK;
}

static int by_place(const void *a, const void *b, void *arg)
{
    const slot_t *slots = arg;
    uint32_t i;
    uint32_t j;
    memcpy(&i, a, sizeof i);
    memcpy(&j, b, sizeof j);
    const slot_t *x = &slots[i];
    const slot_t *y = &slots[j];
    if (x->shard != y->shard) {
        return x->shard < y->shard ? -1 : 1;
    }
    if (x->unit_bytes != y->unit_bytes) {
        return x->unit_bytes > y->unit_bytes ? -1 : 1;
    }
    return i < j ? -1 : i > j; /* the manifest is in name order */
}

/* The header of one shard: tensors order[first .. last). Sets offsets from the start of the data.
 */
static heft_status_t put_header(heft_checkpoint_writer_t *w, const heft_manifest_t *manifest,
                                uint32_t first, uint32_t last, heft__text_t *text,
                                int64_t *data_bytes_out, heft_error_t *err)
{
    int64_t end = 0;
    heft__text_put(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t k = first; k < last; k++) {
        slot_t *slot = &w->slots[w->order[k]];
        const heft_tensor_info_t *t = heft__manifest_get(manifest, w->order[k]);
        heft__text_put(text, ",");
        heft__text_put_json(text, slot->name);
        heft__text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", heft_dtype_get_name(t->dtype));
        for (int d = 0; d < t->shape.rank; d++) {
            heft__text_printf(text, d > 0 ? ",%lld" : "%lld", (long long)t->shape.extent[d]);
        }
        heft__text_printf(text, "],\"data_offsets\":[%lld,%lld]}", (long long)end,
                          (long long)end + (long long)slot->n_bytes);
        slot->offset = end;
        end += slot->n_bytes; /* the sum over the manifest does not overflow */
    }
    heft__text_put(text, "}");
    while ((text->len + 8) % DATA_ALIGNMENT != 0 && !text->failed) {
        heft__text_put(text, " ");
    }
    if (text->failed) {
        return heft__error_nomem(err, text->len);
    }
    if (text->len > HEFT__ST_MAX_HEADER_BYTES) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "a shard with %u tensors needs a header of %zu bytes, at most %d: "
                               "use smaller shards",
                               last - first, text->len, HEFT__ST_MAX_HEADER_BYTES);
    }
    *data_bytes_out = end;
    return HEFT_OK;
}

/* ---- files ---- */

static heft_status_t map_shard(heft_checkpoint_writer_t *w, uint32_t s, const heft__text_t *header,
                               int64_t data_bytes, heft_error_t *err)
{
    out_shard_t *shard = &w->shards[s];
    int64_t n_bytes;
    if (!heft__add(data_bytes, (int64_t)header->len + 8, &n_bytes)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "%s overflows 2^63 bytes", shard->file);
    }
    int fd = -1;
    heft_status_t status = heft__outdir_create_file(&w->out, s, shard->file, n_bytes, &fd, err);
    if (status != HEFT_OK) {
        return status;
    }
    void *map = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int code = errno;
    (void)close(fd);
    if (map == MAP_FAILED) {
        heft__outdir_remove_file(&w->out, s);
        return heft__error_set_sys(err, code == ENOMEM ? HEFT_ERR_NOMEM : HEFT_ERR_IO, code,
                                   "cannot map %lld bytes of %s", (long long)n_bytes, shard->file);
    }
    shard->map = map;
    shard->n_bytes = (size_t)n_bytes;
    heft__put_le64(shard->map, header->len);
    memcpy(shard->map + 8, header->data, header->len);
    return HEFT_OK;
}

static heft_status_t create_shards(heft_checkpoint_writer_t *w, const heft_manifest_t *manifest,
                                   heft_error_t *err)
{
    w->shards = heft__calloc(w->n_shards, sizeof w->shards[0]);
    if (w->shards == NULL) {
        return heft__error_nomem(err, w->n_shards * sizeof w->shards[0]);
    }
    qsort_r(w->order, w->n_slots, sizeof w->order[0], by_place, w->slots);
    heft__text_t header;
    heft__text_init(&header);
    heft_status_t status = HEFT_OK;
    uint32_t first = 0;
    for (uint32_t s = 0; s < w->n_shards && status == HEFT_OK; s++) {
        uint32_t last = first;
        while (last < w->n_slots && w->slots[w->order[last]].shard == s) {
            last++;
        }
        if (w->n_shards == 1) {
            (void)snprintf(w->shards[s].file, sizeof w->shards[s].file, "model.safetensors");
        } else {
            (void)snprintf(w->shards[s].file, sizeof w->shards[s].file,
                           "model-%05u-of-%05u.safetensors", s + 1, w->n_shards);
        }
        int64_t data_bytes = 0;
        heft__text_reset(&header);
        status = put_header(w, manifest, first, last, &header, &data_bytes, err);
        status = status == HEFT_OK ? map_shard(w, s, &header, data_bytes, err) : status;
        for (uint32_t k = first; k < last; k++) {
            w->slots[w->order[k]].offset += (int64_t)header.len + 8;
        }
        first = last;
    }
    heft__text_fini(&header);
    return status;
}

static heft_status_t build_index(heft_checkpoint_writer_t *w, const heft_manifest_t *manifest,
                                 heft_error_t *err)
{
    if (w->n_shards == 1) {
        return HEFT_OK;
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {\n",
                      (long long)heft_manifest_get_n_bytes(manifest));
    for (uint32_t i = 0; i < w->n_slots; i++) {
        heft__text_put(&text, "    ");
        heft__text_put_json(&text, w->slots[i].name);
        heft__text_printf(&text, ": \"%s\"%s\n", w->shards[w->slots[i].shard].file,
                          i + 1 < w->n_slots ? "," : "");
    }
    heft__text_put(&text, "  }\n}\n");
    w->index = heft__text_take(&text);
    return w->index != NULL ? HEFT_OK : heft__error_nomem(err, 0);
}

/* ---- life ---- */

heft_status_t heft_checkpoint_writer_create(const char *dir, const heft_manifest_t *manifest,
                                            int64_t max_shard_bytes,
                                            heft_checkpoint_writer_t **writer_out,
                                            heft_error_t *err)
{
    if (max_shard_bytes < 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "shards of %lld bytes",
                               (long long)max_shard_bytes);
    }
    if (!heft__manifest_is_finished(manifest)) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is not finished");
    }
    heft_checkpoint_writer_t *w = heft__calloc(1, sizeof *w);
    if (w == NULL) {
        return heft__error_nomem(err, sizeof *w);
    }
    heft__arena_init(&w->arena, 16384);
    w->fd = -1;
    heft_status_t status =
        copy_tensors(w, manifest, max_shard_bytes > 0 ? max_shard_bytes : DEFAULT_SHARD_BYTES, err);
    if (status == HEFT_OK) {
        status = heft__outdir_init(&w->out, dir, err);
        w->has_outdir = status == HEFT_OK;
    }
    if (status == HEFT_OK) {
        status = create_shards(w, manifest, err);
    }
    if (status == HEFT_OK) {
        status = build_index(w, manifest, err);
    }
    if (status != HEFT_OK) {
        heft_checkpoint_writer_destroy(w);
        return status;
    }
    *writer_out = w;
    return HEFT_OK;
}

/* The descriptor of a shard, borrowed until the next call; -1 and errno. */
static int shard_fd(heft_checkpoint_writer_t *w, uint32_t s)
{
    if (w->fd >= 0 && w->fd_shard == s) {
        return w->fd;
    }
    if (w->fd >= 0) {
        (void)close(w->fd);
    }
    char name[96];
    heft__outdir_temp_name(&w->out, s, name);
    w->fd = openat(w->out.fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    w->fd_shard = s;
    return w->fd;
}

static void close_shards(heft_checkpoint_writer_t *w)
{
    for (uint32_t s = 0; w->shards != NULL && s < w->n_shards; s++) {
        if (w->shards[s].map != NULL) {
            (void)munmap(w->shards[s].map, w->shards[s].n_bytes);
            w->shards[s].map = NULL;
        }
    }
    if (w->fd >= 0) {
        (void)close(w->fd);
        w->fd = -1;
    }
}

void heft_checkpoint_writer_destroy(heft_checkpoint_writer_t *writer)
{
    if (writer == NULL) {
        return;
    }
    for (uint32_t s = 0; writer->shards != NULL && s < writer->n_shards; s++) {
        if (writer->shards[s].map != NULL && !writer->is_committed) {
            heft__outdir_remove_file(&writer->out, s);
        }
    }
    close_shards(writer);
    if (writer->has_outdir) {
        heft__outdir_fini(&writer->out, !writer->is_committed);
    }
    heft__free(writer->index);
    heft__free(writer->shards);
    heft__free(writer->order);
    heft__free(writer->slots);
    heft__arena_fini(&writer->arena);
    heft__free(writer);
}

/* ---- filling ---- */

static heft_status_t check_open(const heft_checkpoint_writer_t *w, uint32_t i, heft_error_t *err)
{
    if (w->is_committed || w->is_failed) {
        return heft__error_set(err, HEFT_ERR_STATE, "the checkpoint is committed or has failed");
    }
    if (i >= w->n_slots) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "tensor %u of %u", i, w->n_slots);
    }
    return HEFT_OK;
}

heft_status_t heft_checkpoint_writer_map(heft_checkpoint_writer_t *writer, uint32_t i,
                                         void **data_out, heft_error_t *err)
{
    heft_status_t status = check_open(writer, i, err);
    if (status != HEFT_OK) {
        return status;
    }
    slot_t *slot = &writer->slots[i];
    slot->state = SLOT_MAPPED;
    *data_out = writer->shards[slot->shard].map + slot->offset;
    return HEFT_OK;
}

/* Only advice, but for errors of the disk: commit syncs whatever happens here. */
static heft_status_t push_pages(heft_checkpoint_writer_t *w, const slot_t *slot, unsigned flags,
                                heft_error_t *err)
{
    int fd = shard_fd(w, slot->shard);
    if (fd < 0 || sync_file_range(fd, slot->offset, slot->n_bytes, flags) == 0 ||
        (errno != EIO && errno != ENOSPC)) {
        return HEFT_OK;
    }
    return heft__error_set_sys(err, errno == EIO ? HEFT_ERR_IO : HEFT_ERR_NOSPACE, errno,
                               "tensor \"%.100s\": cannot write to %s", slot->name,
                               w->shards[slot->shard].file);
}

void heft__checkpoint_writer_drop(const heft_checkpoint_writer_t *writer, uint32_t i)
{
    const slot_t *slot = &writer->slots[i];
    heft__drop_pages(writer->shards[slot->shard].map + slot->offset, slot->n_bytes);
}

heft_status_t heft__checkpoint_writer_wait(heft_checkpoint_writer_t *writer, uint32_t i,
                                           heft_error_t *err)
{
    const slot_t *slot = &writer->slots[i];
    if (slot->n_bytes == 0) {
        return HEFT_OK;
    }
    return push_pages(
        writer, slot,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER, err);
}

heft_status_t heft_checkpoint_writer_done(heft_checkpoint_writer_t *writer, uint32_t i,
                                          heft_error_t *err)
{
    heft_status_t status = check_open(writer, i, err);
    if (status != HEFT_OK) {
        return status;
    }
    slot_t *slot = &writer->slots[i];
    if (slot->state == SLOT_NEW) {
        return heft__error_set(err, HEFT_ERR_STATE, "tensor \"%.140s\" was never mapped",
                               slot->name);
    }
    slot->state = SLOT_DONE;
    if (slot->n_bytes == 0) {
        return HEFT_OK;
    }
    /* Write-back starts now and is waited for in commit: the disk works while the next tensor is
     * computed. */
    status = push_pages(writer, slot, SYNC_FILE_RANGE_WRITE, err);
    heft__checkpoint_writer_drop(writer, i);
    return status;
}

/* ---- commit ---- */

static heft_status_t sync_shards(heft_checkpoint_writer_t *w, heft_error_t *err)
{
    for (uint32_t s = 0; s < w->n_shards; s++) {
        const out_shard_t *shard = &w->shards[s];
        /* By the mapping, whose file has been open since before the first write: it is told of
         * every failure since then. */
        if (msync(shard->map, shard->n_bytes, MS_SYNC) != 0) {
            int code = errno;
            return heft__error_set_sys(err, code == ENOSPC ? HEFT_ERR_NOSPACE : HEFT_ERR_IO, code,
                                       "cannot sync %s (%zu bytes)", shard->file, shard->n_bytes);
        }
    }
    return HEFT_OK;
}

static heft_status_t write_all(int fd, const char *data, size_t n, heft_error_t *err)
{
    while (n > 0) {
        ssize_t written = write(fd, data, n);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            int code = written < 0 ? errno : EIO;
            return heft__error_set_sys(
                err, code == ENOSPC || code == EFBIG ? HEFT_ERR_NOSPACE : HEFT_ERR_IO, code,
                "cannot write %zu bytes of %s", n, HEFT__ST_INDEX_NAME);
        }
        data += written;
        n -= (size_t)written;
    }
    if (fsync(fd) != 0) {
        return heft__error_set_sys(err, errno == ENOSPC ? HEFT_ERR_NOSPACE : HEFT_ERR_IO, errno,
                                   "cannot sync %s", HEFT__ST_INDEX_NAME);
    }
    return HEFT_OK;
}

static heft_status_t write_index(heft_checkpoint_writer_t *w, heft_error_t *err)
{
    int fd = -1;
    heft_status_t status =
        heft__outdir_create_file(&w->out, w->n_shards, HEFT__ST_INDEX_NAME, 0, &fd, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = write_all(fd, w->index, strlen(w->index), err);
    if (status != HEFT_OK) {
        heft__outdir_remove_file(&w->out, w->n_shards);
    }
    (void)close(fd);
    return status;
}

/* Take back what was renamed; the folder is locked, so these files are ours. */
static void unpublish(heft_checkpoint_writer_t *w)
{
    for (uint32_t s = 0; s < w->n_shards; s++) {
        if (w->shards[s].is_published) {
            (void)unlinkat(w->out.fd, w->shards[s].file, 0);
        }
    }
    if (w->is_index_published) {
        (void)unlinkat(w->out.fd, HEFT__ST_INDEX_NAME, 0);
    } else if (w->index != NULL) {
        heft__outdir_remove_file(&w->out, w->n_shards);
    }
}

static heft_status_t publish(heft_checkpoint_writer_t *w, heft_error_t *err)
{
    heft_status_t status = heft__outdir_check_empty(&w->out, err);
    for (uint32_t s = 0; s < w->n_shards && status == HEFT_OK; s++) {
        status = heft__outdir_publish(&w->out, s, w->shards[s].file, err);
        w->shards[s].is_published = status == HEFT_OK;
    }
    if (status == HEFT_OK && w->index != NULL) {
        status = heft__outdir_publish(&w->out, w->n_shards, HEFT__ST_INDEX_NAME, err);
        w->is_index_published = status == HEFT_OK;
    }
    return status == HEFT_OK ? heft__outdir_sync(&w->out, err) : status;
}

static heft_status_t commit_files(heft_checkpoint_writer_t *w, heft_error_t *err)
{
    heft_status_t status = sync_shards(w, err);
    if (status == HEFT_OK && w->index != NULL) {
        status = write_index(w, err);
    }
    if (status == HEFT_OK) {
        status = heft__outdir_lock(&w->out, err);
    }
    if (status != HEFT_OK) {
        unpublish(w);
        return status;
    }
    status = publish(w, err);
    if (status != HEFT_OK) {
        unpublish(w);
    }
    heft__outdir_unlock(&w->out);
    return status;
}

heft_status_t heft_checkpoint_writer_commit(heft_checkpoint_writer_t *writer, heft_error_t *err)
{
    if (writer->is_committed || writer->is_failed) {
        return heft__error_set(err, HEFT_ERR_STATE, "the checkpoint is committed or has failed");
    }
    for (uint32_t i = 0; i < writer->n_slots; i++) {
        const slot_t *slot = &writer->slots[i];
        if (slot->state != SLOT_DONE && slot->n_bytes > 0) {
            return heft__error_set(err, HEFT_ERR_STATE, "tensor \"%.140s\" was never done",
                                   slot->name);
        }
    }
    heft_status_t status = commit_files(writer, err);
    writer->is_committed = status == HEFT_OK;
    writer->is_failed = status != HEFT_OK;
    if (status == HEFT_OK) {
        close_shards(writer);
    }
    return status;
}
