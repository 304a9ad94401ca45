/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest: tensors and attributes of one side.
 *
 * Names live in an arena, infos in one growable array. While it is filled a name table refuses
 * duplicates; finish sorts by name, after which a search by halves does, so the table is dropped.
 * The digest is SHA-256 over the sorted content (docs/formats/manifest.md).
 */
#include "format/manifest_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

bool heft__text_is_clean(const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        size_t n = heft__utf8_length(text, (size_t)(end - text));
        if (n == 0 || (unsigned char)*text < 0x20 || *text == 0x7f) {
            return false;
        }
        text += n;
    }
    return true;
}

heft_status_t heft__error_in_tensor(heft_error_t *err, const heft_error_t *cause, const char *name)
{
    return heft__error_set(err, cause->status, "tensor \"%.140s\": %s", name, cause->message);
}

heft_status_t heft__tensor_measure(heft_dtype_t dtype, const heft_shape_t *shape,
                                   int64_t *n_elems_out, int64_t *n_bytes_out, heft_error_t *err)
{
    int64_t n_elems;
    int64_t n_units;
    int64_t n_bytes;
    heft_shape_t storage;
    heft_status_t status = heft_shape_count(shape, &n_elems, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_shape_to_storage(shape, dtype, &storage, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_shape_count(&storage, &n_units, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (!heft__mul(n_units, heft_dtype_get_unit_bytes(dtype), &n_bytes)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "%lld elements of %s overflow 2^63 bytes",
                               (long long)n_elems, heft_dtype_get_name(dtype));
    }
    *n_elems_out = n_elems;
    *n_bytes_out = n_bytes;
    return HEFT_OK;
}

/* ---- filling ---- */

heft_status_t heft_manifest_create(const char *side, heft_manifest_t **manifest_out,
                                   heft_error_t *err)
{
    bool is_source = side != NULL && strcmp(side, "source") == 0;
    if (!is_source && (side == NULL || strcmp(side, "destination") != 0)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "side \"%.40s\" is neither \"source\" nor \"destination\"",
                               side != NULL ? side : "(null)");
    }
    heft_manifest_t *manifest = heft__calloc(1, sizeof *manifest);
    if (manifest == NULL) {
        return heft__error_nomem(err, sizeof *manifest);
    }
    heft__arena_init(&manifest->arena, 4096);
    heft__map_init(&manifest->names);
    manifest->side = is_source ? "source" : "destination";
    *manifest_out = manifest;
    return HEFT_OK;
}

void heft_manifest_destroy(heft_manifest_t *manifest)
{
    if (manifest == NULL) {
        return;
    }
    heft__map_fini(&manifest->names);
    heft__free(manifest->attrs);
    heft__free(manifest->tensor_attrs);
    heft__free(manifest->parts);
    heft__free(manifest->excluded);
    heft__free(manifest->tensors);
    heft__arena_fini(&manifest->arena);
    heft__free(manifest);
}

heft_status_t heft__name_check(const char *name, heft_error_t *err)
{
    if (name == NULL || name[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "a tensor with an empty name");
    }
    if (!heft__text_is_clean(name)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "tensor name \"%.140s\" is not UTF-8 without control characters",
                               name);
    }
    if (strcmp(name, "__metadata__") == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "tensor name \"%s\" is reserved", name);
    }
    return HEFT_OK;
}

heft_status_t heft_manifest_add(heft_manifest_t *manifest, const char *name, heft_dtype_t dtype,
                                const heft_shape_t *shape, heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    heft_status_t status = heft__name_check(name, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_tensor_info_t info = { .dtype = dtype, .shape = *shape };
    heft_error_t cause = HEFT_ERROR_INIT;
    status = heft__tensor_measure(dtype, shape, &info.n_elems, &info.n_bytes, &cause);
    if (status != HEFT_OK) {
        return heft__error_in_tensor(err, &cause, name);
    }
    int64_t n_bytes;
    int64_t n_elems;
    if (!heft__add(manifest->n_bytes, info.n_bytes, &n_bytes) ||
        !heft__add(manifest->n_elems, info.n_elems, &n_elems)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW,
                               "tensor \"%.140s\": the manifest overflows 2^63 bytes", name);
    }
    if (manifest->n_tensors >= HEFT__MAP_NONE) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "more than %u tensors", HEFT__MAP_NONE);
    }
    size_t len = strlen(name);
    if (heft__map_get(&manifest->names, name, len) != HEFT__MAP_NONE) {
        return heft__error_set(err, HEFT_ERR_EXISTS, "tensor \"%.140s\" is there already", name);
    }
    void *items = manifest->tensors;
    if (!heft__grow(&items, &manifest->cap_tensors, manifest->n_tensors + 1, sizeof info)) {
        return heft__error_nomem(err, (manifest->n_tensors + 1) * sizeof info);
    }
    manifest->tensors = items;
    char *copy = heft__arena_strndup(&manifest->arena, name, len);
    if (copy == NULL) {
        return heft__error_nomem(err, len + 1);
    }
    status = heft__map_put(&manifest->names, copy, len, (uint32_t)manifest->n_tensors);
    if (status != HEFT_OK) {
        return heft__error_set(err, status, "tensor \"%.140s\": %s", name,
                               heft_status_get_text(status));
    }
    info.name = copy;
    info.shape.reserved = 0;
    for (int k = info.shape.rank; k < HEFT_MAX_DIMS; k++) {
        info.shape.extent[k] = 0;
    }
    manifest->tensors[manifest->n_tensors++] = info;
    manifest->n_bytes = n_bytes;
    manifest->n_elems = n_elems;
    return HEFT_OK;
}

static heft__attr_t *find_attr(const heft_manifest_t *manifest, const char *key)
{
    for (size_t i = 0; i < manifest->n_attrs; i++) {
        if (strcmp(manifest->attrs[i].key, key) == 0) {
            return &manifest->attrs[i];
        }
    }
    return NULL;
}

heft_status_t heft_manifest_set_attr(heft_manifest_t *manifest, const char *key, const char *value,
                                     heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    if (key == NULL || value == NULL || key[0] == '\0' || !heft__text_is_clean(key) ||
        !heft__text_is_clean(value)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "attribute \"%.80s\": key and value must be UTF-8 without control "
                               "characters, the key not empty",
                               key != NULL ? key : "");
    }
    char *new_value = heft__arena_strndup(&manifest->arena, value, strlen(value));
    if (new_value == NULL) {
        return heft__error_nomem(err, strlen(value) + 1);
    }
    heft__attr_t *there = find_attr(manifest, key);
    if (there != NULL) {
        there->value = new_value;
        return HEFT_OK;
    }
    void *items = manifest->attrs;
    char *new_key = heft__arena_strndup(&manifest->arena, key, strlen(key));
    if (new_key == NULL ||
        !heft__grow(&items, &manifest->cap_attrs, manifest->n_attrs + 1, sizeof(heft__attr_t))) {
        return heft__error_nomem(err, strlen(key) + 1);
    }
    manifest->attrs = items;
    manifest->attrs[manifest->n_attrs++] = (heft__attr_t){ .key = new_key, .value = new_value };
    return HEFT_OK;
}

heft_status_t heft_manifest_exclude(heft_manifest_t *manifest, const char *name, const char *reason,
                                    heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    heft_status_t status = heft__name_check(name, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (reason == NULL || reason[0] == '\0' || !heft__text_is_clean(reason)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "excluded \"%.140s\": a reason on one line is wanted", name);
    }
    void *items = manifest->excluded;
    heft__excluded_t excluded = {
        .name = heft__arena_strndup(&manifest->arena, name, strlen(name)),
        .reason = heft__arena_strndup(&manifest->arena, reason, strlen(reason)),
    };
    if (excluded.name == NULL || excluded.reason == NULL ||
        !heft__grow(&items, &manifest->cap_excluded, manifest->n_excluded + 1, sizeof excluded)) {
        return heft__error_nomem(err, strlen(name) + strlen(reason));
    }
    manifest->excluded = items;
    manifest->excluded[manifest->n_excluded++] = excluded;
    return HEFT_OK;
}

/* ---- finishing ---- */

static int by_name(const void *a, const void *b)
{
    const heft_tensor_info_t *x = a;
    const heft_tensor_info_t *y = b;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    const heft__attr_t *x = a;
    const heft__attr_t *y = b;
    return strcmp(x->key, y->key);
}

static int by_excluded_name(const void *a, const void *b)
{
    const heft__excluded_t *x = a;
    const heft__excluded_t *y = b;
    return strcmp(x->name, y->name);
}

static void hash_parts(const heft_manifest_t *manifest, heft__sha256_t *h)
{
    heft__sha256_update_text(h, "parts");
    heft__sha256_update_u64(h, manifest->n_parts);
    for (size_t i = 0; i < manifest->n_parts; i++) {
        const heft_part_t *part = &manifest->parts[i].part;
        heft__sha256_update_text(h, manifest->parts[i].entry);
        heft__sha256_update_text(h, part->tensor);
        heft__sha256_update_u64(h, part->replica);
        heft__sha256_update_u64(h, (uint64_t)part->shape.rank);
        for (int k = 0; k < part->shape.rank; k++) {
            heft__sha256_update_u64(h, (uint64_t)part->shape.extent[k]);
            heft__sha256_update_u64(h, (uint64_t)part->begin[k]);
        }
    }
}

/* Sections that a manifest need not have; each begins with its own word. */
static void hash_sections(const heft_manifest_t *manifest, heft__sha256_t *h)
{
    if (manifest->n_tensor_attrs > 0) {
        heft__sha256_update_text(h, "tensor attributes");
        heft__sha256_update_u64(h, manifest->n_tensor_attrs);
        for (size_t i = 0; i < manifest->n_tensor_attrs; i++) {
            heft__sha256_update_text(h, manifest->tensor_attrs[i].tensor);
            heft__sha256_update_text(h, manifest->tensor_attrs[i].key);
            heft__sha256_update_text(h, manifest->tensor_attrs[i].value);
        }
    }
    if (manifest->n_parts > 0) {
        hash_parts(manifest, h);
    }
    if (manifest->n_excluded > 0) {
        heft__sha256_update_text(h, "excluded");
        heft__sha256_update_u64(h, manifest->n_excluded);
        for (size_t i = 0; i < manifest->n_excluded; i++) {
            heft__sha256_update_text(h, manifest->excluded[i].name);
            heft__sha256_update_text(h, manifest->excluded[i].reason);
        }
    }
}

static void hash_tensors(const heft_manifest_t *manifest, heft__sha256_t *h)
{
    heft__sha256_update_u64(h, manifest->n_tensors);
    for (size_t i = 0; i < manifest->n_tensors; i++) {
        const heft_tensor_info_t *t = &manifest->tensors[i];
        heft__sha256_update_text(h, t->name);
        heft__sha256_update_u64(h, (uint64_t)t->dtype);
        heft__sha256_update_u64(h, (uint64_t)t->shape.rank);
        for (int k = 0; k < t->shape.rank; k++) {
            heft__sha256_update_u64(h, (uint64_t)t->shape.extent[k]);
        }
    }
}

void heft__manifest_hash_meaning(const heft_manifest_t *manifest, heft__sha256_t *h)
{
    hash_tensors(manifest, h);
    for (size_t i = 0; i < manifest->n_tensor_attrs; i++) {
        const heft__tensor_attr_t *attr = &manifest->tensor_attrs[i];
        if (strcmp(attr->key, "native") != 0) { /* another form of the name */
            heft__sha256_update_text(h, attr->tensor);
            heft__sha256_update_text(h, attr->key);
            heft__sha256_update_text(h, attr->value);
        }
    }
    if (manifest->n_parts > 0) {
        hash_parts(manifest, h);
    }
}

static void compute_digest(heft_manifest_t *manifest)
{
    heft__sha256_t h;
    heft__sha256_init(&h);
    heft__sha256_update_text(&h, "heft-manifest-1");
    heft__sha256_update_text(&h, manifest->side);
    hash_tensors(manifest, &h);
    heft__sha256_update_u64(&h, manifest->n_attrs);
    for (size_t i = 0; i < manifest->n_attrs; i++) {
        heft__sha256_update_text(&h, manifest->attrs[i].key);
        heft__sha256_update_text(&h, manifest->attrs[i].value);
    }
    hash_sections(manifest, &h);
    uint8_t digest[32];
    heft__sha256_final(&h, digest);
    heft__hex(digest, sizeof digest, manifest->digest);
}

/* A leaf is a weight or is not. */
static heft_status_t finish_excluded(heft_manifest_t *manifest, heft_error_t *err)
{
    heft__excluded_t *excluded = manifest->excluded;
    if (manifest->n_excluded > 1) {
        qsort(excluded, manifest->n_excluded, sizeof excluded[0], by_excluded_name);
    }
    for (size_t i = 0; i < manifest->n_excluded; i++) {
        const char *name = excluded[i].name;
        if (heft__map_get(&manifest->names, name, strlen(name)) != HEFT__MAP_NONE) {
            return heft__error_set(err, HEFT_ERR_EXISTS, "\"%.140s\" is a tensor and excluded",
                                   name);
        }
        if (i > 0 && strcmp(excluded[i - 1].name, name) == 0) {
            return heft__error_set(err, HEFT_ERR_EXISTS, "\"%.140s\" is excluded twice", name);
        }
    }
    return HEFT_OK;
}

heft_status_t heft_manifest_finish(heft_manifest_t *manifest, heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    heft_status_t status = heft__parts_finish(manifest, err);
    if (status == HEFT_OK) {
        status = heft__tensor_attrs_finish(manifest, err);
    }
    if (status == HEFT_OK) {
        status = finish_excluded(manifest, err);
    }
    if (status == HEFT_OK) {
        status = heft__manifest_check_names(manifest, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    bool is_sorted = true; /* often; sorting large entries is slow */
    for (size_t i = 1; i < manifest->n_tensors && is_sorted; i++) {
        is_sorted = by_name(&manifest->tensors[i - 1], &manifest->tensors[i]) < 0;
    }
    if (!is_sorted) {
        qsort(manifest->tensors, manifest->n_tensors, sizeof manifest->tensors[0], by_name);
    }
    if (manifest->n_attrs > 1) {
        qsort(manifest->attrs, manifest->n_attrs, sizeof manifest->attrs[0], by_key);
    }
    heft__map_fini(&manifest->names);
    compute_digest(manifest);
    manifest->is_finished = true;
    return HEFT_OK;
}

/* ---- reading ---- */

const char *heft_manifest_get_side(const heft_manifest_t *manifest)
{
    return manifest->side;
}

uint32_t heft_manifest_get_n_tensors(const heft_manifest_t *manifest)
{
    return (uint32_t)manifest->n_tensors;
}

int64_t heft_manifest_get_n_bytes(const heft_manifest_t *manifest)
{
    return manifest->n_bytes;
}

int64_t heft_manifest_get_n_elems(const heft_manifest_t *manifest)
{
    return manifest->n_elems;
}

uint32_t heft_manifest_get_n_excluded(const heft_manifest_t *manifest)
{
    return (uint32_t)manifest->n_excluded;
}

const char *heft_manifest_get_excluded(const heft_manifest_t *manifest, uint32_t i,
                                       const char **reason_out)
{
    if (i >= manifest->n_excluded) {
        return NULL;
    }
    if (reason_out != NULL) {
        *reason_out = manifest->excluded[i].reason;
    }
    return manifest->excluded[i].name;
}

const char *heft_manifest_get_attr(const heft_manifest_t *manifest, const char *key)
{
    const heft__attr_t *attr = find_attr(manifest, key);
    return attr != NULL ? attr->value : NULL;
}

const char *heft_manifest_get_digest(const heft_manifest_t *manifest)
{
    return manifest->digest;
}

bool heft__manifest_is_finished(const heft_manifest_t *manifest)
{
    return manifest->is_finished;
}

bool heft__manifest_is_of_files(const heft_manifest_t *manifest)
{
    return manifest->is_of_files;
}

void heft__manifest_set_of_files(heft_manifest_t *manifest)
{
    manifest->is_of_files = true;
}

const heft_tensor_info_t *heft__manifest_get(const heft_manifest_t *manifest, uint32_t i)
{
    return i < manifest->n_tensors ? &manifest->tensors[i] : NULL;
}

uint32_t heft_manifest_get_n_attrs(const heft_manifest_t *manifest)
{
    return (uint32_t)manifest->n_attrs;
}

heft_status_t heft_manifest_query_attr(const heft_manifest_t *manifest, uint32_t i,
                                       const char **key_out, const char **value_out,
                                       heft_error_t *err)
{
    if (i >= manifest->n_attrs) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "attribute %u of %u", i,
                               heft_manifest_get_n_attrs(manifest));
    }
    *key_out = manifest->attrs[i].key;
    *value_out = manifest->attrs[i].value;
    return HEFT_OK;
}

heft_status_t heft_manifest_query(const heft_manifest_t *manifest, uint32_t i,
                                  heft_tensor_info_t *info_out, heft_error_t *err)
{
    const heft_tensor_info_t *info = heft__manifest_get(manifest, i);
    if (info == NULL) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "tensor %u of %u", i,
                               heft_manifest_get_n_tensors(manifest));
    }
    *info_out = *info;
    return HEFT_OK;
}

static const char *find_nearest(const heft_manifest_t *manifest, const char *name)
{
    const char *nearest = NULL;
    uint32_t limit = (uint32_t)(strlen(name) / 3 + 2);
    for (size_t i = 0; i < manifest->n_tensors && limit > 0; i++) {
        uint32_t distance = heft__edit_distance(name, manifest->tensors[i].name, limit);
        if (distance <= limit) {
            nearest = manifest->tensors[i].name;
            limit = distance - 1;
        }
    }
    return nearest;
}

static uint32_t find_index(const heft_manifest_t *manifest, const char *name)
{
    if (!manifest->is_finished) {
        return heft__map_get(&manifest->names, name, strlen(name));
    }
    size_t lo = 0;
    size_t hi = manifest->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, manifest->tensors[mid].name);
        if (order == 0) {
            return (uint32_t)mid;
        }
        if (order < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return HEFT__MAP_NONE;
}

heft_status_t heft_manifest_find(const heft_manifest_t *manifest, const char *name,
                                 uint32_t *index_out, heft_error_t *err)
{
    uint32_t index = find_index(manifest, name);
    if (index != HEFT__MAP_NONE) {
        *index_out = index;
        return HEFT_OK;
    }
    if (err == NULL) {
        return HEFT_ERR_NOT_FOUND;
    }
    const char *nearest = find_nearest(manifest, name);
    if (nearest == NULL) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND,
                               "no tensor \"%.100s\" among the %u of the %s", name,
                               heft_manifest_get_n_tensors(manifest), manifest->side);
    }
    return heft__error_set(err, HEFT_ERR_NOT_FOUND,
                           "no tensor \"%.80s\" among the %u of the %s; nearest: \"%.80s\"", name,
                           heft_manifest_get_n_tensors(manifest), manifest->side, nearest);
}
