/* SPDX-License-Identifier: Apache-2.0 */
/* The tape as an object: its life, its buffers and their names. Writes are in write.c. */
#include "tape/tape.h"

#include <stdio.h>
#include <string.h>

/* One step beyond the end of any buffer, in any stride, stays below 2^63: region algebra relies
 * on it. */
#define MAX_ELEMS ((int64_t)1 << 61)

heft_status_t heft_tape_create(heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = heft__calloc(1, sizeof *tape);
    if (tape == NULL) {
        return heft__error_nomem(err, sizeof *tape);
    }
    heft__arena_init(&tape->arena, 4096);
    heft__map_init(&tape->sources);
    heft__map_init(&tape->params);
    heft__map_init(&tape->notes);
    *tape_out = tape;
    return HEFT_OK;
}

void heft_tape_destroy(heft_tape_t *tape)
{
    if (tape == NULL) {
        return;
    }
    heft__tape_destroy_parts(tape);
    heft__map_fini(&tape->sources);
    heft__map_fini(&tape->params);
    heft__map_fini(&tape->notes);
    heft__free(tape->buffers);
    heft__free(tape->writes);
    heft__arena_fini(&tape->arena);
    heft__free(tape);
}

heft_status_t heft__tape_set_title(heft_tape_t *tape, const char *title, heft_error_t *err)
{
    tape->title = heft__arena_strndup(&tape->arena, title, strlen(title));
    return tape->title != NULL ? HEFT_OK : heft__error_nomem(err, strlen(title) + 1);
}

static heft__map_t *get_map(heft_tape_t *tape, heft_buffer_kind_t kind)
{
    if (kind == HEFT_BUFFER_SOURCE) {
        return &tape->sources;
    }
    return kind == HEFT_BUFFER_PARAM ? &tape->params : NULL;
}

static const char *kind_text(heft_buffer_kind_t kind)
{
    if (kind == HEFT_BUFFER_SOURCE) {
        return "source";
    }
    return kind == HEFT_BUFFER_PARAM ? "parameter" : "temporary";
}

static heft_status_t check_buffer(heft_buffer_kind_t kind, const char *name, heft_error_t *err)
{
    if (kind != HEFT_BUFFER_SOURCE && kind != HEFT_BUFFER_PARAM && kind != HEFT_BUFFER_TEMP) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "buffer kind %d: no such kind", (int)kind);
    }
    if (kind != HEFT_BUFFER_TEMP && (name == NULL || name[0] == '\0')) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "a %s without a name", kind_text(kind));
    }
    return HEFT_OK;
}

/* Storage shape and its count, with the name in any message. */
static heft_status_t fill_shape(heft_buffer_info_t *info, const heft_shape_t *shape,
                                heft_error_t *err)
{
    heft_error_t why = HEFT_ERROR_INIT;
    int64_t n_logical;
    heft_status_t status = heft_shape_count(shape, &n_logical, &why);
    if (status == HEFT_OK) {
        status = heft_shape_to_storage(shape, info->dtype, &info->shape, &why);
    }
    if (status == HEFT_OK) {
        status = heft_shape_count(&info->shape, &info->n_elems, &why);
    }
    if (status != HEFT_OK) {
        return heft__error_set(err, status, "%s \"%s\": %s", kind_text(info->kind), info->name,
                               why.message);
    }
    if (info->n_elems > MAX_ELEMS) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW,
                               "%s \"%s\": %lld elements, at most 2^61 are handled",
                               kind_text(info->kind), info->name, (long long)info->n_elems);
    }
    info->shape.reserved = 0;
    for (int k = info->shape.rank; k < HEFT_MAX_DIMS; k++) {
        info->shape.extent[k] = 0;
    }
    return HEFT_OK;
}

heft_status_t heft__tape_add_storage(heft_tape_t *tape, const heft_buffer_info_t *given,
                                     uint32_t *buffer_out, heft_error_t *err)
{
    heft_buffer_info_t info = *given;
    if (tape->n_buffers >= UINT32_MAX - 1) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "%zu buffers in one tape", tape->n_buffers);
    }
    size_t len = strlen(info.name);
    void *items = tape->buffers;
    if (!heft__grow(&items, &tape->cap_buffers, tape->n_buffers + 1, sizeof *tape->buffers)) {
        return heft__error_nomem(err, sizeof *tape->buffers);
    }
    tape->buffers = items;
    info.name = len > 0 ? heft__arena_strndup(&tape->arena, given->name, len) : "";
    if (info.name == NULL) {
        return heft__error_nomem(err, len + 1);
    }
    heft__map_t *map = get_map(tape, info.kind);
    heft_status_t status =
        map != NULL ? heft__map_put(map, info.name, len, (uint32_t)tape->n_buffers) : HEFT_OK;
    if (status == HEFT_ERR_EXISTS) {
        return heft__error_set(err, status, "%s \"%s\" is there already", kind_text(info.kind),
                               given->name);
    }
    if (status != HEFT_OK) {
        return heft__error_set(err, status, "%s \"%s\": cannot be added: %s", kind_text(info.kind),
                               given->name, heft_status_get_text(status));
    }
    tape->buffers[tape->n_buffers] = info;
    *buffer_out = (uint32_t)tape->n_buffers++;
    return HEFT_OK;
}

heft_status_t heft_tape_add_buffer(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name,
                                   heft_dtype_t dtype, const heft_shape_t *shape,
                                   uint32_t *buffer_out, heft_error_t *err)
{
    heft_status_t status = check_buffer(kind, name, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_buffer_info_t info = { .name = name != NULL ? name : "", .kind = kind, .dtype = dtype };
    status = fill_shape(&info, shape, err);
    return status == HEFT_OK ? heft__tape_add_storage(tape, &info, buffer_out, err) : status;
}

uint32_t heft_tape_get_n_buffers(const heft_tape_t *tape)
{
    return (uint32_t)tape->n_buffers;
}

uint32_t heft_tape_get_n_writes(const heft_tape_t *tape)
{
    return (uint32_t)tape->n_writes;
}

heft_status_t heft_tape_query_buffer(const heft_tape_t *tape, uint32_t buffer,
                                     heft_buffer_info_t *info_out, heft_error_t *err)
{
    if (buffer >= tape->n_buffers) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "buffer %u of %zu", (unsigned)buffer,
                               tape->n_buffers);
    }
    *info_out = tape->buffers[buffer];
    return HEFT_OK;
}

heft_status_t heft_tape_find_buffer(const heft_tape_t *tape, heft_buffer_kind_t kind,
                                    const char *name, uint32_t *buffer_out, heft_error_t *err)
{
    if (kind != HEFT_BUFFER_SOURCE && kind != HEFT_BUFFER_PARAM) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "buffers of kind %d are not found by name",
                               (int)kind);
    }
    const heft__map_t *map = kind == HEFT_BUFFER_SOURCE ? &tape->sources : &tape->params;
    uint32_t buffer = heft__map_get(map, name, strlen(name));
    if (buffer == HEFT__MAP_NONE) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "no %s \"%s\"", kind_text(kind), name);
    }
    *buffer_out = buffer;
    return HEFT_OK;
}

heft_view_t heft__tape_view_expand(const heft__tape_view_t *view)
{
    heft_view_t out = { .buffer = view->buffer, .rank = view->rank, .offset = view->offset };
    for (int k = 0; k < view->rank; k++) {
        out.extent[k] = view->extent[k];
        out.stride[k] = view->stride[k];
    }
    return out;
}

heft__label_t heft__tape_label(const heft_tape_t *tape, uint32_t buffer)
{
    enum { MAX_NAME = 80 };
    heft__label_t label;
    const heft_buffer_info_t *info = &tape->buffers[buffer];
    const char *kind = kind_text(info->kind);
    size_t len = strlen(info->name);
    if (len == 0) {
        (void)snprintf(label.text, sizeof label.text, "%s %u", kind, (unsigned)buffer);
        return label;
    }
    /* the end of a long name tells more than its beginning */
    bool is_cut = len > MAX_NAME;
    (void)snprintf(label.text, sizeof label.text, "%s \"%s%.*s\"", kind, is_cut ? ".." : "",
                   MAX_NAME, info->name + (is_cut ? len - MAX_NAME : 0));
    return label;
}
