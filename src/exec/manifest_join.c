/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several source ranks as one source: stages of a pipeline, each with names of its own. A name that
 * two of them have is either declared to be the same tensor, such as a tied embedding that the
 * first and the last stage keep, or it is local to the stage and the two would be mixed up:
 * refused.
 */
#include "heft/contract.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"

typedef struct joiner {
    const heft_manifest_t *const *parts;
    uint32_t n_parts;
    const char *const *shared; /* patterns */
    uint32_t n_shared;
    uint8_t *is_hit; /* by pattern: some name that two parts have matches it */
    heft_manifest_t *out;
    heft__map_t first; /* name -> part that has it first */
    heft_error_t *err;
} joiner_t;

static const heft_tensor_info_t *tensor_of(const joiner_t *j, uint32_t part, const char *name)
{
    uint32_t index = 0;
    return heft_manifest_find(j->parts[part], name, &index, NULL) == HEFT_OK
               ? heft__manifest_get(j->parts[part], index)
               : NULL;
}

static bool is_shared(joiner_t *j, const char *name)
{
    bool is_it = false;
    for (uint32_t i = 0; i < j->n_shared; i++) {
        if (heft_name_matches(j->shared[i], name) != 0) {
            j->is_hit[i] = 1;
            is_it = true;
        }
    }
    return is_it;
}

static bool is_same_tensor(const heft_tensor_info_t *a, const heft_tensor_info_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

static heft_status_t check_twice(joiner_t *j, uint32_t before, uint32_t part,
                                 const heft_tensor_info_t *tensor)
{
    if (!is_shared(j, tensor->name)) {
        return heft__error_set(
            j->err, HEFT_ERR_EXISTS,
            "tensor \"%.120s\" is in source %u and in source %u: a name local to "
            "a stage must be made global, a tensor of both declared shared",
            tensor->name, before, part);
    }
    if (!is_same_tensor(tensor_of(j, before, tensor->name), tensor)) {
        return heft__error_set(
            j->err, HEFT_ERR_SHAPE,
            "shared tensor \"%.120s\": source %u and source %u have other shapes "
            "or dtypes",
            tensor->name, before, part);
    }
    return HEFT_OK;
}

static heft_status_t copy_attrs(joiner_t *j, uint32_t part, uint32_t tensor, const char *name)
{
    heft_status_t status = HEFT_OK;
    const uint32_t n = heft_manifest_get_n_tensor_attrs(j->parts[part], tensor);
    for (uint32_t k = 0; k < n && status == HEFT_OK; k++) {
        const char *key = NULL;
        const char *value = NULL;
        status = heft_manifest_query_tensor_attr(j->parts[part], tensor, k, &key, &value, j->err);
        status = status == HEFT_OK ? heft_manifest_set_tensor_attr(j->out, name, key, value, j->err)
                                   : status;
    }
    return status;
}

static heft_status_t add_tensors(joiner_t *j, uint32_t part)
{
    heft_status_t status = HEFT_OK;
    const uint32_t n = heft_manifest_get_n_tensors(j->parts[part]);
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft_tensor_info_t *t = heft__manifest_get(j->parts[part], i);
        const uint32_t before = heft__map_get(&j->first, t->name, strlen(t->name));
        if (before != HEFT__MAP_NONE) {
            status = check_twice(j, before, part, t);
            continue;
        }
        status = heft__map_put(&j->first, t->name, strlen(t->name), part);
        if (status != HEFT_OK) {
            return heft__error_nomem(j->err, strlen(t->name));
        }
        status = heft_manifest_add(j->out, t->name, t->dtype, &t->shape, j->err);
        status = status == HEFT_OK ? copy_attrs(j, part, i, t->name) : status;
    }
    return status;
}

/* What is said of the whole side must be said alike by all: a layout is one. */
static heft_status_t add_attrs(joiner_t *j, uint32_t part)
{
    const char *key;
    const char *value;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; status == HEFT_OK &&
                         heft_manifest_query_attr(j->parts[part], i, &key, &value, NULL) == HEFT_OK;
         i++) {
        for (uint32_t k = 0; k < j->n_parts && status == HEFT_OK; k++) {
            const char *other = heft_manifest_get_attr(j->parts[k], key);
            if (other == NULL || strcmp(other, value) != 0) {
                status =
                    heft__error_set(j->err, HEFT_ERR_MISMATCH,
                                    "attribute \"%.80s\": \"%.40s\" of source %u, %s%.40s%s of "
                                    "source %u",
                                    key, value, part, other != NULL ? "\"" : "",
                                    other != NULL ? other : "none", other != NULL ? "\"" : "", k);
            }
        }
        if (status == HEFT_OK && part == 0) {
            status = heft_manifest_set_attr(j->out, key, value, j->err);
        }
    }
    return status;
}

static heft_status_t check_shared(const joiner_t *j)
{
    for (uint32_t i = 0; i < j->n_shared; i++) {
        if (j->is_hit[i] == 0) {
            return heft__error_set(j->err, HEFT_ERR_NOT_FOUND,
                                   "shared \"%.120s\" matches no tensor that two sources have",
                                   j->shared[i]);
        }
    }
    return HEFT_OK;
}

static heft_status_t join(joiner_t *j)
{
    heft_status_t status = heft_manifest_create("source", &j->out, j->err);
    for (uint32_t p = 0; p < j->n_parts && status == HEFT_OK; p++) {
        status = add_tensors(j, p);
        status = status == HEFT_OK ? add_attrs(j, p) : status;
    }
    status = status == HEFT_OK ? check_shared(j) : status;
    return status == HEFT_OK ? heft_manifest_finish(j->out, j->err) : status;
}

heft_status_t heft_manifest_join(const heft_manifest_t *const *parts, uint32_t n_parts,
                                 const char *const *shared, uint32_t n_shared,
                                 heft_manifest_t **manifest_out, uint32_t *writers_out,
                                 heft_error_t *err)
{
    for (uint32_t p = 0; p < n_parts; p++) {
        if (parts[p] == NULL || !heft__manifest_is_finished(parts[p])) {
            return heft__error_set(err, HEFT_ERR_STATE, "source %u: its manifest is not finished",
                                   p);
        }
    }
    joiner_t j = {
        .parts = parts, .n_parts = n_parts, .shared = shared, .n_shared = n_shared, .err = err
    };
    heft__map_init(&j.first);
    j.is_hit = heft__calloc((size_t)n_shared + 1, 1);
    heft_status_t status = j.is_hit != NULL ? join(&j) : heft__error_nomem(err, n_shared);
    const uint32_t n = status == HEFT_OK ? heft_manifest_get_n_tensors(j.out) : 0;
    for (uint32_t i = 0; i < n && writers_out != NULL; i++) {
        const char *name = heft__manifest_get(j.out, i)->name;
        writers_out[i] = heft__map_get(&j.first, name, strlen(name));
    }
    heft__map_fini(&j.first);
    heft__free(j.is_hit);
    if (status != HEFT_OK) {
        heft_manifest_destroy(j.out);
        return status;
    }
    *manifest_out = j.out;
    return HEFT_OK;
}
