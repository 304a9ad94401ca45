/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format: manifests and safetensors checkpoints.
 *
 * A manifest is filled, finished (sorted by name, hashed) and then immutable. The safetensors
 * reader checks everything a header says before a byte of data is looked at.
 */
#ifndef HEFT_FORMAT_FORMAT_H
#define HEFT_FORMAT_FORMAT_H

#include "heft/model.h"
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
/* Tensor i, borrowed; NULL beyond the end. */
const heft_tensor_info_t *heft__manifest_get(const heft_manifest_t *manifest, uint32_t i);
uint32_t heft__manifest_get_n_attrs(const heft_manifest_t *manifest);
void heft__manifest_get_attr_at(const heft_manifest_t *manifest, uint32_t i, const char **key_out,
                                const char **value_out);

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

#endif
