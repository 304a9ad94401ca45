/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sources of a plan: those of all its tapes, each once, in bytewise name order. Their index
 * depends on names alone, not on the order of tapes.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

void heft__plan_builder_fini(heft__plan_builder_t *builder)
{
    heft__map_fini(&builder->sources);
    heft__map_fini(&builder->notes);
    heft__free(builder->note_texts);
    builder->note_texts = NULL;
}

static bool is_same_shape(const heft_shape_t *a, const heft_shape_t *b)
{
    return a->rank == b->rank &&
           memcmp(a->extent, b->extent, (size_t)a->rank * sizeof a->extent[0]) == 0;
}

static void put_tensor(heft__text_t *text, heft_dtype_t dtype, const heft_shape_t *shape)
{
    heft__text_printf(text, "%s [", heft_dtype_get_name(dtype));
    for (int32_t i = 0; i < shape->rank; i++) {
        heft__text_printf(text, "%s%lld", i > 0 ? ", " : "", (long long)shape->extent[i]);
    }
    heft__text_put(text, "]");
}

static heft_status_t disagree(const heft_tensor_info_t *known, const heft_buffer_info_t *buffer,
                              int64_t rank, heft_error_t *err)
{
    heft__text_t a;
    heft__text_t b;
    heft__text_init(&a);
    heft__text_init(&b);
    put_tensor(&a, known->dtype, &known->shape);
    put_tensor(&b, buffer->dtype, &buffer->shape);
    heft_status_t status = heft__error_set(
        err, HEFT_ERR_SHAPE, "source \"%s\": %s in the tape of rank %lld, %s in one before",
        known->name, b.data, (long long)rank, a.data);
    heft__text_fini(&a);
    heft__text_fini(&b);
    return status;
}

/* Sources as they come; the map gives each name its number in `found`. */
typedef struct found_list {
    heft_tensor_info_t *items; /* names borrowed from the tapes */
    size_t n;
    size_t cap;
} found_list_t;

static heft_status_t find_source(heft__plan_builder_t *builder, found_list_t *found,
                                 const heft_buffer_info_t *buffer, int64_t rank, heft_error_t *err)
{
    size_t length = strlen(buffer->name);
    uint32_t known = heft__map_get(&builder->sources, buffer->name, length);
    if (found->items != NULL && known != HEFT__MAP_NONE) {
        const heft_tensor_info_t *info = &found->items[known];
        return info->dtype == buffer->dtype && is_same_shape(&info->shape, &buffer->shape)
                   ? HEFT_OK
                   : disagree(info, buffer, rank, err);
    }
    if (!HEFT__RESERVE(found->items, found->cap, found->n + 1)) {
        return heft__error_nomem(err, (found->n + 1) * sizeof *found->items);
    }
    heft_tensor_info_t *info = &found->items[found->n];
    *info = (heft_tensor_info_t){ .name = buffer->name,
                                  .dtype = buffer->dtype,
                                  .shape = buffer->shape,
                                  .n_elems = buffer->n_elems };
    if (!heft__mul(info->n_elems, heft_dtype_get_unit_bytes(info->dtype), &info->n_bytes)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "source \"%s\": %lld elements of %s",
                               info->name, (long long)info->n_elems,
                               heft_dtype_get_name(info->dtype));
    }
    if (heft__map_put(&builder->sources, info->name, length, (uint32_t)found->n) != HEFT_OK) {
        return heft__error_nomem(err, length);
    }
    found->n++;
    return HEFT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const heft_tensor_info_t *)a)->name, ((const heft_tensor_info_t *)b)->name);
}

/* Sort, copy the names, and let the map point to the copies. */
static heft_status_t keep_sources(heft__plan_builder_t *builder, found_list_t *found,
                                  heft_error_t *err)
{
    heft_plan_t *plan = builder->plan;
    if (found->n > 0) {
        qsort(found->items, found->n, sizeof *found->items, compare_names);
    }
    plan->n_sources = (uint32_t)found->n;
    plan->sources = heft__arena_calloc(&plan->arena, found->n, sizeof *plan->sources);
    if (plan->sources == NULL) {
        return heft__error_nomem(err, found->n * sizeof *plan->sources);
    }
    heft__map_fini(&builder->sources);
    for (size_t i = 0; i < found->n; i++) {
        size_t length = strlen(found->items[i].name);
        char *name = heft__arena_strndup(&plan->arena, found->items[i].name, length);
        plan->sources[i] = found->items[i];
        plan->sources[i].name = name;
        if (name == NULL ||
            heft__map_put(&builder->sources, name, length, (uint32_t)i) != HEFT_OK) {
            return heft__error_nomem(err, length + 1);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__plan_add_sources(heft__plan_builder_t *builder, const heft_tape_t *const *tapes,
                                     heft_error_t *err)
{
    found_list_t found = { 0 };
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < builder->plan->n_ranks && status == HEFT_OK; r++) {
        int64_t rank = (int64_t)builder->plan->first_rank + r;
        for (size_t i = 0; i < tapes[r]->n_buffers && status == HEFT_OK; i++) {
            if (tapes[r]->buffers[i].kind == HEFT_BUFFER_SOURCE) {
                status = find_source(builder, &found, &tapes[r]->buffers[i], rank, err);
            }
        }
    }
    if (status == HEFT_OK) {
        status = keep_sources(builder, &found, err);
    }
    heft__free(found.items);
    return status;
}
