/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests and checkpoints: what one side holds.
 *
 * A manifest lists tensors (name, dtype, shape) and attributes. A checkpoint is a safetensors file
 * or folder: a manifest whose tensors have bytes.
 */
#ifndef HEFT_MODEL_H
#define HEFT_MODEL_H

#include "heft/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_manifest heft_manifest_t;     /* immutable after heft_manifest_finish */
typedef struct heft_checkpoint heft_checkpoint_t; /* immutable; data are mapped read-only */
typedef struct heft_checkpoint_writer heft_checkpoint_writer_t; /* confined */

typedef struct heft_tensor_info {
    const char *name; /* borrowed from the manifest */
    heft_dtype_t dtype;
    heft_shape_t shape; /* logical */
    int64_t n_elems;    /* logical elements */
    int64_t n_bytes;
} heft_tensor_info_t;

/* A tensor of a source that is a box of a larger one. */
typedef struct heft_part {
    const char *tensor; /* the whole tensor; to set it, NULL: that of the entry's own name */
    heft_shape_t shape; /* logical, of the whole tensor */
    int64_t begin[HEFT_MAX_DIMS]; /* the box begins there and has the entry's extents */
    uint32_t replica;             /* which copy this is, where several members hold the same */
    uint32_t reserved;            /* 0 */
} heft_part_t;

/** An empty manifest to be filled. side: "source" or "destination". HEFT_ERR_NOMEM. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_create(const char *side,
                                                            heft_manifest_t **manifest_out,
                                                            heft_error_t *err);
HEFT_API void heft_manifest_destroy(heft_manifest_t *manifest);
/** Add a tensor. HEFT_ERR_EXISTS: duplicate name. HEFT_ERR_SHAPE, HEFT_ERR_OVERFLOW: impossible
 * shape. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_add(heft_manifest_t *manifest,
                                                         const char *name, heft_dtype_t dtype,
                                                         const heft_shape_t *shape,
                                                         heft_error_t *err);
/** Set a string attribute of the whole manifest (framework, layout, ...); the same key again
 * replaces. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_set_attr(heft_manifest_t *manifest,
                                                              const char *key, const char *value,
                                                              heft_error_t *err);
/**
 * Set an attribute of one tensor that was added: how the engine has fused, padded, repeated or cut
 * it (docs/formats/manifest.md lists the keys, such as "fused.layout"). The same key again
 * replaces. HEFT_ERR_NOT_FOUND: no such tensor. HEFT_ERR_ARGUMENT: no such key, or a value that it
 * cannot have.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_set_tensor_attr(heft_manifest_t *manifest,
                                                                     const char *tensor,
                                                                     const char *key,
                                                                     const char *value,
                                                                     heft_error_t *err);
/**
 * Say that a tensor that was added is a box of a whole one, as the ranks of a trainer hold them. A
 * member may have several boxes of one tensor, under names of their own. The attributes of such an
 * entry are those of the whole tensor. part is borrowed until return. HEFT_ERR_NOT_FOUND: no such
 * tensor. HEFT_ERR_SHAPE: a box outside the whole tensor, or of another number of dimensions.
 * HEFT_ERR_ARGUMENT: a destination, which has no parts, or a name that is none. That an entry has
 * two parts is HEFT_ERR_EXISTS at finish.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_set_part(heft_manifest_t *manifest,
                                                              const char *name,
                                                              const heft_part_t *part,
                                                              heft_error_t *err);
/** Record a leaf that is not bound, and why. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_exclude(heft_manifest_t *manifest,
                                                             const char *name, const char *reason,
                                                             heft_error_t *err);
/**
 * Sort by name (bytewise), check attributes and names, compute the digest, freeze. Adding
 * afterwards is HEFT_ERR_STATE. A fused layout `lane` whose shards are no multiple of the lane
 * becomes `per_shard`. HEFT_ERR_SHAPE, HEFT_ERR_ARGUMENT: attributes that do not fit the tensor.
 * HEFT_ERR_EXISTS: a leaf is excluded twice, or is a tensor, too. HEFT_ERR_NAME: names that are not
 * canonical in the form declared. After a failure only destroy may follow.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_finish(heft_manifest_t *manifest,
                                                            heft_error_t *err);

HEFT_API const char *heft_manifest_get_side(const heft_manifest_t *manifest);
HEFT_API uint32_t heft_manifest_get_n_tensors(const heft_manifest_t *manifest);
HEFT_API int64_t heft_manifest_get_n_bytes(const heft_manifest_t *manifest);
HEFT_API int64_t heft_manifest_get_n_elems(const heft_manifest_t *manifest);
/** The value of an attribute, or NULL. */
HEFT_API const char *heft_manifest_get_attr(const heft_manifest_t *manifest, const char *key);
/** Attributes of the whole manifest, in bytewise key order after finish. HEFT_ERR_NOT_FOUND. */
HEFT_API uint32_t heft_manifest_get_n_attrs(const heft_manifest_t *manifest);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_query_attr(const heft_manifest_t *manifest,
                                                                uint32_t i, const char **key_out,
                                                                const char **value_out,
                                                                heft_error_t *err);
/** Attributes of tensor i after finish, in bytewise key order. The value of one, or NULL. */
HEFT_API uint32_t heft_manifest_get_n_tensor_attrs(const heft_manifest_t *manifest, uint32_t i);
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_manifest_query_tensor_attr(const heft_manifest_t *manifest, uint32_t i, uint32_t k,
                                const char **key_out, const char **value_out, heft_error_t *err);
HEFT_API const char *heft_manifest_get_tensor_attr(const heft_manifest_t *manifest, uint32_t i,
                                                   const char *key);
/** Of which tensor entry i is a part, after finish; the name is borrowed. HEFT_ERR_NOT_FOUND: of
 * none. err may be NULL, as everywhere. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_query_part(const heft_manifest_t *manifest,
                                                                uint32_t i, heft_part_t *part_out,
                                                                heft_error_t *err);
/** Leaves that are not bound, in bytewise name order after finish; NULL beyond the end. */
HEFT_API uint32_t heft_manifest_get_n_excluded(const heft_manifest_t *manifest);
HEFT_API const char *heft_manifest_get_excluded(const heft_manifest_t *manifest, uint32_t i,
                                                const char **reason_out);
/** 64 hex digits over everything in the manifest. Valid after finish. */
HEFT_API const char *heft_manifest_get_digest(const heft_manifest_t *manifest);
/** Tensor i in bytewise name order (after finish). HEFT_ERR_NOT_FOUND. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_query(const heft_manifest_t *manifest,
                                                           uint32_t i, heft_tensor_info_t *info_out,
                                                           heft_error_t *err);
/** Index of a name; HEFT_ERR_NOT_FOUND names the nearest. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_find(const heft_manifest_t *manifest,
                                                          const char *name, uint32_t *index_out,
                                                          heft_error_t *err);

/** Read or write the JSON form (docs/formats/manifest.md). text need not be NUL-terminated; the
 * string written is owned by the caller and freed with heft_string_free. Unknown keys, wrong types,
 * duplicates: HEFT_ERR_FORMAT with the key. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_decode(const char *text, size_t n,
                                                            heft_manifest_t **manifest_out,
                                                            heft_error_t *err);
/**
 * The same. Where more than one thing is wrong, *report_out is a text with one line for each (40
 * lines at most; a last line then states the number), freed with heft_string_free; in every other
 * case it is NULL. report_out may be NULL.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_decode_report(const char *text, size_t n,
                                                                   heft_manifest_t **manifest_out,
                                                                   char **report_out,
                                                                   heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_encode(const heft_manifest_t *manifest,
                                                            char **text_out, heft_error_t *err);
HEFT_API void heft_string_free(char *text);

/**
 * Open a safetensors file, or a folder with model.safetensors.index.json, or a folder with exactly
 * one .safetensors file, or else a folder with such folders rank-0, rank-1, ..: their tensors
 * together, with names that begin with "rank-N.". Headers are checked strictly; data are mapped,
 * not read. side goes into the manifest. HEFT_ERR_IO, HEFT_ERR_FORMAT (with the file, the tensor
 * and the byte offset), HEFT_ERR_NOT_FOUND.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_checkpoint_open(const char *path, const char *side,
                                                            heft_checkpoint_t **checkpoint_out,
                                                            heft_error_t *err);
/**
 * The same. Where the index and its shards disagree, *report_out is a text with one line for each
 * missing or surplus tensor and its file (40 lines at most; the last line states the total), freed
 * with heft_string_free; in every other case it is NULL. report_out may be NULL.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_checkpoint_open_report(const char *path, const char *side, heft_checkpoint_t **checkpoint_out,
                            char **report_out, heft_error_t *err);
HEFT_API void heft_checkpoint_close(heft_checkpoint_t *checkpoint);
/** The manifest, borrowed. */
HEFT_API const heft_manifest_t *heft_checkpoint_get_manifest(const heft_checkpoint_t *checkpoint);
/** Bytes of tensor i of the manifest (n_bytes of them), borrowed; never NULL for a valid i, also
 * when n_bytes is 0. */
HEFT_API const void *heft_checkpoint_get_data(const heft_checkpoint_t *checkpoint, uint32_t i);
/** Tell the system that tensor i's pages are not needed again (they can be read again at a cost).
 */
HEFT_API void heft_checkpoint_release(const heft_checkpoint_t *checkpoint, uint32_t i);

/**
 * Start writing a checkpoint folder: every tensor of the manifest, in shards of at most
 * max_shard_bytes (0: 5 GB; a larger tensor gets a shard of its own). Nothing exists under the
 * final names until commit: shards are written under temporary names in the folder, renamed on
 * commit, the index last (one shard: "model.safetensors", no index). The folder and its parents are
 * created if they do not exist; HEFT_ERR_EXISTS if it holds a checkpoint already. A tensor whose
 * manifest records a native name has that in the files. Space for all
 * shards is reserved on disk here, so that a full disk is found before any work
 * (HEFT_ERR_NOSPACE with the file and its bytes) and not as a signal later. The manifest is
 * borrowed until return. Temporary files of writers that have died are removed.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_checkpoint_writer_create(
    const char *dir, const heft_manifest_t *manifest, int64_t max_shard_bytes,
    heft_checkpoint_writer_t **writer_out, heft_error_t *err);
/**
 * Memory for tensor i, n_bytes writable bytes in the mapped output file, filled with zeros; never
 * NULL, also when n_bytes is 0. Aligned for its dtype (the data of a shard start on 64 bytes and
 * widest elements come first; the format allows no gaps between tensors, so no more than that
 * holds). HEFT_ERR_STATE after a commit, HEFT_ERR_NOT_FOUND for a bad i.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_checkpoint_writer_map(heft_checkpoint_writer_t *writer,
                                                                  uint32_t i, void **data_out,
                                                                  heft_error_t *err);
/** Tensor i is complete: start writing it to disk and drop its pages from this process.
 * HEFT_ERR_STATE if it was never mapped. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_checkpoint_writer_done(heft_checkpoint_writer_t *writer,
                                                                   uint32_t i, heft_error_t *err);
/**
 * Sync and rename everything into place. HEFT_ERR_STATE when a tensor that has bytes was never done
 * (it is named); HEFT_ERR_EXISTS when another writer committed to the folder in the meantime;
 * HEFT_ERR_IO, HEFT_ERR_NOSPACE from the system. After any failure nothing is there under a final
 * name, and only destroy may follow.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_checkpoint_writer_commit(heft_checkpoint_writer_t *writer, heft_error_t *err);
/** Frees the writer; without a commit before, removes everything it wrote. */
HEFT_API void heft_checkpoint_writer_destroy(heft_checkpoint_writer_t *writer);

#ifdef __cplusplus
}
#endif

#endif
