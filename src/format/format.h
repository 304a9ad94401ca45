/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format: manifests and safetensors checkpoints.
 *
 * A manifest is filled, finished (sorted by name, hashed) and then immutable. The safetensors
 * reader checks everything a header says before a byte of data is looked at.
 */
#ifndef HEFT_FORMAT_FORMAT_H
#define HEFT_FORMAT_FORMAT_H

#include "heft/drift.h"
#include "heft/model.h"
#include "heft/tape.h"
#include "base/base.h"
#include "tensor/tensor.h"

/* Whether a text is UTF-8 (no overlong forms, no surrogates) without control characters. */
bool heft__text_is_clean(const char *text);
/* Append a JSON string literal, quotes included. */
void heft__text_put_json(heft__text_t *out, const char *text);
/* The bytes of a tensor in storage; packed rows must be whole bytes. Messages do not name the
 * tensor. */
heft_status_t heft__tensor_measure(heft_dtype_t dtype, const heft_shape_t *shape,
                                   int64_t *n_elems_out, int64_t *n_bytes_out, heft_error_t *err);
/* The same message with "tensor "name": " in front of it. */
heft_status_t heft__error_in_tensor(heft_error_t *err, const heft_error_t *cause, const char *name);

/* Manifest internals that the reader and the writer use. */
bool heft__manifest_is_finished(const heft_manifest_t *manifest);
/* What the bytes of its tensors mean: names, dtypes, shapes, layouts, and which boxes they are. */
void heft__manifest_hash_meaning(const heft_manifest_t *manifest, heft__sha256_t *h);
/* Made from the headers of a checkpoint: what it does not say of layouts means nothing. */
bool heft__manifest_is_of_files(const heft_manifest_t *manifest);
void heft__manifest_set_of_files(heft_manifest_t *manifest);
/* Record, for each tensor of a manifest that is not finished, the native name that `names` gives
 * it, where that is another one. */
heft_status_t heft__manifest_copy_natives(const heft_manifest_t *names, heft_manifest_t *to,
                                          heft_error_t *err);
/* Is there an attribute of tensors of this key ("fused.layout"); the nearest to it, or NULL. */
bool heft__tensor_attr_is_known(const char *key);
const char *heft__tensor_attr_nearest(const char *key);
/* Tensor i, borrowed; NULL beyond the end. */
const heft_tensor_info_t *heft__manifest_get(const heft_manifest_t *manifest, uint32_t i);

struct json_t;
/* heft_manifest_decode of a value that was parsed already. */
heft_status_t heft__manifest_decode_json(const struct json_t *root, heft_manifest_t **manifest_out,
                                         heft_error_t *err);

/* ---- drift of more than manifests ---- */

heft_status_t heft__drift_create_empty(heft_drift_t **drift_out, heft_error_t *err);
/* Takes text, also on failure. */
heft_status_t heft__drift_add(heft_drift_t *drift, heft_drift_kind_t kind, const char *name,
                              const char *other, heft__text_t *text, heft_error_t *err);
/* What differs between two finished manifests; each text begins with prefix, if it is not empty. */
heft_status_t heft__drift_add_manifests(heft_drift_t *drift, const char *prefix,
                                        const heft_manifest_t *first, const heft_manifest_t *second,
                                        heft_error_t *err);
/* Into the order that is promised. */
void heft__drift_sort(heft_drift_t *drift);

/* ---- tapes as JSON (docs/formats/tape.md): alone, or within a contract, where manifests say what
 * the sources and parameters are ---- */

enum { HEFT__TAPE_FORMAT = 1 };

/* Append a tape in normal form, without a line's end. has_names: with its sources and parameters.
 */
heft_status_t heft__tape_put(heft__text_t *out, const heft_tape_t *normal, bool has_names,
                             heft_error_t *err);
/* Of a tape in normal form. */
heft_status_t heft__tape_make_digest(const heft_tape_t *normal,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err);

/* A tape from a value that was parsed already. names: NULL, or an empty tape with all sources and
 * then all parameters by name; it is taken. The result is in normal
 * form. */
heft_status_t heft__tape_decode_json(struct json_t *root, heft_tape_t *names,
                                     heft_tape_t **tape_out,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err);

/* ---- safetensors ---- */

#define HEFT__ST_MAX_HEADER_BYTES 100000000
#define HEFT__ST_LABEL_BYTES 84
#define HEFT__ST_INDEX_NAME "model.safetensors.index.json"

typedef struct heft__st_tensor {
    const char *name; /* in the header's arena */
    heft_dtype_t dtype;
    heft_shape_t shape;
    int64_t n_bytes;
    int64_t begin; /* bytes from the start of the data section */
} heft__st_tensor_t;

typedef struct heft__st_header {
    heft__arena_t arena;
    heft__st_tensor_t *tensors; /* in the order of their data */
    size_t n_tensors;
    int64_t data_offset; /* of the data section in the file */
} heft__st_header_t;

/* A path for messages: as it is, or its tail where it is long. */
void heft__path_label(char out[HEFT__ST_LABEL_BYTES], const char *path);

/* Check and decode the header of a file of n_bytes bytes. Only the header is read: every range is
 * checked against n_bytes, so the caller may rely on [begin, begin + n_bytes) of each tensor. */
heft_status_t heft__st_header_decode(const char *label, const uint8_t *bytes, size_t n_bytes,
                                     heft__st_header_t *header_out, heft_error_t *err);
void heft__st_header_fini(heft__st_header_t *header);

/* The shard index: which file holds which tensor. */
typedef struct heft__st_index_entry {
    const char *name; /* in the index's arena */
    uint32_t file;
    bool is_seen; /* for the reader: its shard holds it */
} heft__st_index_entry_t;

typedef struct heft__st_index {
    heft__arena_t arena;
    heft__st_index_entry_t *entries;
    size_t n_entries;
    const char **files; /* distinct, in order of first mention */
    size_t n_files;
    heft__map_t names; /* name -> entry */
} heft__st_index_t;

heft_status_t heft__st_index_decode(const char *label, const char *text, size_t n,
                                    heft__st_index_t *index_out, heft_error_t *err);
void heft__st_index_fini(heft__st_index_t *index);

/* The N of the folders rank-N in a folder, ascending, freed by the caller; none: *n_out is 0. */
heft_status_t heft__find_ranks(const char *dir, uint32_t **ranks_out, size_t *n_out,
                               heft_error_t *err);

/* Drop the pages of a stretch of a shared mapping of a file from this process; the file keeps them,
 * so neighbours on the first and last page lose nothing. */
void heft__drop_pages(const void *data, int64_t n_bytes);

/* Drop tensor i's pages from this process; what was written stays with the file. */
void heft__checkpoint_writer_drop(const heft_checkpoint_writer_t *writer, uint32_t i);
/* Wait until what was written of tensor i is on disk: its pages can be reclaimed at once then. */
heft_status_t heft__checkpoint_writer_wait(heft_checkpoint_writer_t *writer, uint32_t i,
                                           heft_error_t *err);

/* ---- the writer's folder ---- */

/* A folder that is being filled under temporary names. Several may be at work in one folder. */
typedef struct heft__outdir {
    char *path;
    int fd;
    size_t created_from; /* bytes of `path` up to the first component made here; 0: none */
    char prefix[64];     /* ".heft-tmp-<pid>-<random>-" */
} heft__outdir_t;

/* Make the folder (and its parents), refuse it if it holds a checkpoint (HEFT_ERR_EXISTS), remove
 * temporary files of dead writers. */
heft_status_t heft__outdir_init(heft__outdir_t *out, const char *path, heft_error_t *err);
/* Closes; with `remove`, also takes away the folders made here, if they are empty. */
void heft__outdir_fini(heft__outdir_t *out, bool remove);
heft_status_t heft__outdir_check_empty(const heft__outdir_t *out, heft_error_t *err);
/* The temporary name of file k, NUL-terminated. */
void heft__outdir_temp_name(const heft__outdir_t *out, size_t k, char name_out[96]);
/* Create file k, locked against sweeping, with n_bytes reserved on disk. The caller closes it. */
heft_status_t heft__outdir_create_file(const heft__outdir_t *out, size_t k, const char *final_name,
                                       int64_t n_bytes, int *fd_out, heft_error_t *err);
void heft__outdir_remove_file(const heft__outdir_t *out, size_t k);
/* Rename file k to its final name, which must not exist. */
heft_status_t heft__outdir_publish(const heft__outdir_t *out, size_t k, const char *final_name,
                                   heft_error_t *err);
/* Nobody else publishes between lock and unlock. */
heft_status_t heft__outdir_lock(const heft__outdir_t *out, heft_error_t *err);
void heft__outdir_unlock(const heft__outdir_t *out);
/* Make the renames durable. */
heft_status_t heft__outdir_sync(const heft__outdir_t *out, heft_error_t *err);

#endif
