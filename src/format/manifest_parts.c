/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: entries of a source's manifest that are boxes of whole tensors. What the members of a side
 * say together is judged elsewhere; here a box is within its tensor, and an entry has one.
 */
#include "format/manifest_impl.h"

#include <stdlib.h>
#include <string.h>

static heft_status_t outside(const heft_tensor_info_t *t, const heft_part_t *part, int dim,
                             heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_SHAPE,
                           "tensor \"%.100s\": a box of %lld from %lld in dimension %d of "
                           "\"%.60s\", which has %lld",
                           t->name, (long long)t->shape.extent[dim], (long long)part->begin[dim],
                           dim, part->tensor != NULL ? part->tensor : t->name,
                           (long long)part->shape.extent[dim]);
}

static heft_status_t check_box(const heft_tensor_info_t *t, const heft_part_t *part,
                               heft_error_t *err)
{
    const int rank = t->shape.rank;
    const int64_t bits = heft_dtype_get_bits(t->dtype);
    if (part->shape.rank != rank) {
        return heft__error_set(err, HEFT_ERR_SHAPE,
                               "tensor \"%.100s\": a box of %d dimensions, its whole tensor has %d",
                               t->name, rank, (int)part->shape.rank);
    }
    for (int d = 0; d < rank; d++) {
        int64_t end;
        if (part->begin[d] < 0 || !heft__add(part->begin[d], t->shape.extent[d], &end) ||
            end > part->shape.extent[d]) {
            return outside(t, part, d, err);
        }
    }
    if (rank > 0 && bits < 8 && part->begin[rank - 1] % 8 * bits % 8 != 0) {
        return heft__error_set(
            err, HEFT_ERR_SHAPE, "tensor \"%.100s\": its box begins within a byte: %s at %lld",
            t->name, heft_dtype_get_name(t->dtype), (long long)part->begin[rank - 1]);
    }
    return HEFT_OK;
}

static heft_status_t check_part(const heft_manifest_t *manifest, const char *name,
                                const heft_part_t *part, heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    if (name == NULL || part == NULL || part->reserved != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "a part without a name, or without a box");
    }
    if (strcmp(manifest->side, "source") != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "tensor \"%.140s\": a destination has no parts", name);
    }
    return part->tensor != NULL ? heft__name_check(part->tensor, err) : HEFT_OK;
}

heft_status_t heft_manifest_set_part(heft_manifest_t *manifest, const char *name,
                                     const heft_part_t *part, heft_error_t *err)
{
    uint32_t index;
    int64_t n_elems;
    int64_t n_bytes;
    heft_status_t status = check_part(manifest, name, part, err);
    if (status == HEFT_OK) {
        status = heft_manifest_find(manifest, name, &index, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const heft_tensor_info_t *t = &manifest->tensors[index];
    heft_error_t cause = HEFT_ERROR_INIT;
    status = heft__tensor_measure(t->dtype, &part->shape, &n_elems, &n_bytes, &cause);
    if (status != HEFT_OK) {
        return heft__error_in_tensor(err, &cause, name);
    }
    status = check_box(t, part, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (!HEFT__RESERVE(manifest->parts, manifest->cap_parts, manifest->n_parts + 1)) {
        return heft__error_nomem(err, (manifest->n_parts + 1) * sizeof *manifest->parts);
    }
    heft__part_t *kept = &manifest->parts[manifest->n_parts];
    *kept = (heft__part_t){ .entry = t->name, .part = { .replica = part->replica } };
    kept->part.tensor =
        part->tensor == NULL || strcmp(part->tensor, name) == 0
            ? t->name
            : heft__arena_strndup(&manifest->arena, part->tensor, strlen(part->tensor));
    if (kept->part.tensor == NULL) {
        return heft__error_nomem(err, strlen(part->tensor) + 1);
    }
    kept->part.shape.rank = t->shape.rank;
    for (int d = 0; d < t->shape.rank; d++) { /* what is beyond the rank may hold anything */
        kept->part.shape.extent[d] = part->shape.extent[d];
        kept->part.begin[d] = part->begin[d];
    }
    manifest->n_parts++;
    return HEFT_OK;
}

static int by_entry(const void *a, const void *b)
{
    const heft__part_t *x = a;
    const heft__part_t *y = b;
    return x->entry == y->entry ? 0 : strcmp(x->entry, y->entry);
}

heft_status_t heft__parts_finish(heft_manifest_t *manifest, heft_error_t *err)
{
    heft__part_t *parts = manifest->parts;
    if (manifest->n_parts > 1) {
        qsort(parts, manifest->n_parts, sizeof *parts, by_entry);
    }
    for (size_t i = 1; i < manifest->n_parts; i++) {
        if (parts[i - 1].entry == parts[i].entry) {
            return heft__error_set(err, HEFT_ERR_EXISTS, "tensor \"%.140s\" has two parts",
                                   parts[i].entry);
        }
    }
    return HEFT_OK;
}

const heft_part_t *heft__part_of(const heft_manifest_t *manifest, const char *name)
{
    size_t lo = 0;
    size_t hi = manifest->n_parts;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int order = strcmp(name, manifest->parts[mid].entry);
        if (order == 0) {
            return &manifest->parts[mid].part;
        }
        if (order < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

heft_status_t heft_manifest_query_part(const heft_manifest_t *manifest, uint32_t i,
                                       heft_part_t *part_out, heft_error_t *err)
{
    const heft_tensor_info_t *t = heft__manifest_get(manifest, i);
    const heft_part_t *part =
        t != NULL && manifest->is_finished ? heft__part_of(manifest, t->name) : NULL;
    if (part == NULL) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "tensor %u of %u is no part", (unsigned)i,
                               heft_manifest_get_n_tensors(manifest));
    }
    *part_out = *part;
    return HEFT_OK;
}
