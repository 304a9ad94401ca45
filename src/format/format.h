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

#endif
