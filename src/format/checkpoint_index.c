/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shard index model.safetensors.index.json: {"metadata": {...}, "weight_map": {name: file}}.
 * File names are plain names, so that an index never reaches outside its folder.
 */
#include "format/format.h"

#include <jansson.h>
#include <string.h>

void heft__st_index_fini(heft__st_index_t *index)
{
    heft__map_fini(&index->names);
    heft__free(index->files);
    heft__free(index->entries);
    heft__arena_fini(&index->arena);
    *index = (heft__st_index_t){ .n_entries = 0 };
}

static bool is_plain_name(const char *file)
{
    return file[0] != '\0' && file[0] != '.' && strchr(file, '/') == NULL &&
           strchr(file, '\\') == NULL && heft__text_is_clean(file);
}

static heft_status_t find_file(heft__st_index_t *index, heft__map_t *known, const char *file,
                               uint32_t *file_out, heft_error_t *err)
{
    size_t len = strlen(file);
    uint32_t found = heft__map_get(known, file, len);
    if (found != HEFT__MAP_NONE) {
        *file_out = found;
        return HEFT_OK;
    }
    char *copy = heft__arena_strndup(&index->arena, file, len);
    heft_status_t status = HEFT_ERR_NOMEM;
    if (copy != NULL) {
        status = heft__map_put(known, copy, len, (uint32_t)index->n_files);
    }
    if (status != HEFT_OK) {
        return heft__error_nomem(err, len + 1);
    }
    *file_out = (uint32_t)index->n_files;
    index->files[index->n_files++] = copy;
    return HEFT_OK;
}

static heft_status_t add_entry(heft__st_index_t *index, heft__map_t *known, const char *label,
                               const char *name, const json_t *value, heft_error_t *err)
{
    const char *file = json_string_value(value);
    if (file == NULL || !is_plain_name(file)) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: tensor \"%.80s\": file \"%.60s\" is not a plain file name",
                               label, name, file != NULL ? file : "(no string)");
    }
    heft__st_index_entry_t entry = { .is_seen = false };
    heft_status_t status = find_file(index, known, file, &entry.file, err);
    if (status != HEFT_OK) {
        return status;
    }
    size_t len = strlen(name);
    entry.name = heft__arena_strndup(&index->arena, name, len);
    if (entry.name == NULL ||
        heft__map_put(&index->names, entry.name, len, (uint32_t)index->n_entries) != HEFT_OK) {
        return heft__error_nomem(err, len + 1);
    }
    index->entries[index->n_entries++] = entry;
    return HEFT_OK;
}

static heft_status_t check_root(const char *label, json_t *root, heft_error_t *err)
{
    if (!json_is_object(root)) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: the top level must be an object", label);
    }
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "metadata") != 0 && strcmp(key, "weight_map") != 0) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: unknown key \"%.80s\"", label, key);
        }
        if (!json_is_object(value)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: \"%s\" must be an object", label,
                                   key);
        }
    }
    if (json_object_get(root, "weight_map") == NULL) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: no \"weight_map\"", label);
    }
    return HEFT_OK;
}

static heft_status_t decode_root(const char *label, json_t *root, heft__st_index_t *index,
                                 heft_error_t *err)
{
    heft_status_t status = check_root(label, root, err);
    if (status != HEFT_OK) {
        return status;
    }
    json_t *weight_map = json_object_get(root, "weight_map");
    size_t n = json_object_size(weight_map);
    index->entries = heft__calloc(n + 1, sizeof index->entries[0]);
    index->files = heft__calloc(n + 1, sizeof index->files[0]);
    if (index->entries == NULL || index->files == NULL) {
        return heft__error_nomem(err, (n + 1) * sizeof index->entries[0]);
    }
    heft__map_t known;
    heft__map_init(&known);
    const char *key;
    json_t *value;
    json_object_foreach(weight_map, key, value)
    {
        status = add_entry(index, &known, label, key, value, err);
        if (status != HEFT_OK) {
            break;
        }
    }
    heft__map_fini(&known);
    return status;
}

heft_status_t heft__st_index_decode(const char *label, const char *text, size_t n,
                                    heft__st_index_t *index_out, heft_error_t *err)
{
    json_error_t json_error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL) {
        if (json_error_code(&json_error) == json_error_out_of_memory) {
            return heft__error_nomem(err, n);
        }
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: no valid index at byte %d: %s", label,
                               json_error.position, json_error.text);
    }
    heft__st_index_t index = { .n_entries = 0 };
    heft__arena_init(&index.arena, 16384);
    heft__map_init(&index.names);
    heft_status_t status = decode_root(label, root, &index, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__st_index_fini(&index);
        return status;
    }
    *index_out = index;
    return HEFT_OK;
}
