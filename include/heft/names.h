/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canonical names: one spelling for the tensors of both sides.
 *
 * A JAX tree names a leaf by its key string: ['key'] for a string key, [3] for an integer, .attr
 * for an attribute. Its canonical name is the tokens joined by dots, without a final .value and
 * without the tokens that every name of the side begins with. Dotted names (Hugging Face, Megatron,
 * the engines) are canonical as they stand. Which of the two a side has is declared, never guessed.
 */
#ifndef HEFT_NAMES_H
#define HEFT_NAMES_H

#include "heft/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heft_name_form {
    HEFT_NAME_FORM_NONE = 0,
    HEFT_NAME_FORM_DOTTED = 1,
    HEFT_NAME_FORM_KEYSTR = 2
} heft_name_form_t;

/* What `layers.3` means in a key string: the slot 3 of a scanned tree, or the layer 3 of an
 * unrolled one, which is then called layers_3. */
typedef enum heft_layer_form {
    HEFT_LAYER_FORM_NONE = 0,
    HEFT_LAYER_FORM_SCANNED = 1,
    HEFT_LAYER_FORM_UNROLLED = 2
} heft_layer_form_t;

typedef struct heft_name_opts {
    size_t size;
    heft_name_form_t name_form;   /* must be given */
    heft_layer_form_t layer_form; /* must be given with keystr, must not be with dotted */
    const char *container;        /* the token that holds the layers; NULL: "layers" */
    uint8_t types_lost;           /* 1: leaves that are no parameters are known by name alone: those
                                   * with a token that begins with cache, rngs or intermediates
                                   * (underscores before it do not count) are excluded */
    uint8_t reserved[7];          /* must be zero */
} heft_name_opts_t;
#define HEFT_NAME_OPTS_INIT              \
    {                                    \
        .size = sizeof(heft_name_opts_t) \
    }

/** "dotted", "keystr", "none"; "scanned", "unrolled", "none". Never NULL. */
HEFT_API const char *heft_name_form_get_name(heft_name_form_t form);
HEFT_API const char *heft_layer_form_get_name(heft_layer_form_t form);

/**
 * The canonical form of one name, but for the tokens that all names of its side share (only a
 * manifest knows those). *canonical_out is freed with heft_string_free. HEFT_ERR_ARGUMENT: opts;
 * HEFT_ERR_NAME: the name is no key string, with the position at which it stops being one.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_name_canonicalize(const char *native,
                                                              const heft_name_opts_t *opts,
                                                              char **canonical_out,
                                                              heft_error_t *err);

/**
 * 1 if a name is rank-R.NAME, as the tensors of ranks stand in one manifest (a folder of ranks, a
 * placement); R is written without leading zeros and below 2^24. *rest_out is NAME, borrowed from
 * the name. 0, and nothing written: any other name.
 */
HEFT_API int heft_name_split_rank(const char *name, uint32_t *rank_out, const char **rest_out);

/**
 * The manifest with canonical names of one with native names (such as a checkpoint's). Attributes
 * name_form, layer_form, root, leaf_suffix and container say what was taken away, so that
 * heft_manifest_get_native gives the native names back byte for byte. Root tokens are `base` on the
 * source and `model` on the destination; they are taken away while every name has one more token.
 * HEFT_ERR_EXISTS names two leaves with one canonical name. HEFT_ERR_STATE: `native` is not
 * finished, or has canonical names already.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_canonicalize(const heft_manifest_t *native,
                                                                  const heft_name_opts_t *opts,
                                                                  heft_manifest_t **manifest_out,
                                                                  heft_error_t *err);

/**
 * The native name of a tensor: the one recorded in the manifest, else the one that the manifest's
 * declarations make of the canonical name, which need not be in the manifest. *native_out is freed
 * with heft_string_free. HEFT_ERR_STATE: the manifest is not finished.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_get_native(const heft_manifest_t *manifest,
                                                                const char *canonical,
                                                                char **native_out,
                                                                heft_error_t *err);

/** What the manifest declares; NONE where it declares nothing. */
HEFT_API heft_name_form_t heft_manifest_get_name_form(const heft_manifest_t *manifest);
HEFT_API heft_layer_form_t heft_manifest_get_layer_form(const heft_manifest_t *manifest);

/**
 * A checkpoint's names become canonical ones; its tensors are numbered anew, in the order of the
 * canonical names. On failure nothing has changed. Errors as of heft_manifest_canonicalize.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_checkpoint_canonicalize(heft_checkpoint_t *checkpoint,
                                                                    const heft_name_opts_t *opts,
                                                                    heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
