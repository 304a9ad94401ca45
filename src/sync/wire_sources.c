/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: the list of sources that hold a model together. Plans of both sides are made for it, so one
 * fleet has one text: any other order is refused.
 */
#include <stddef.h>
#include <string.h>

#include "sync/wire_json.h"

#define AT(member) offsetof(heft__source_t, member)
static const heft__field_t source_fields[] = {
    { "replica", HEFT__FIELD_U32, true, AT(replica), 0, INT32_MAX, NULL },
    { "rank", HEFT__FIELD_U32, true, AT(rank), 0, INT32_MAX, NULL },
    { "manifest", HEFT__FIELD_HEX, true, AT(manifest), 0, 64, NULL },
    { "host", HEFT__FIELD_HEX, false, AT(host), 0, 32, NULL },
    HEFT__FIELD_END
};
#undef AT

static const heft__field_t list_fields[] = { { "format", HEFT__FIELD_U32, true, 0, 1, 1, NULL },
                                             { "sources", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
                                             HEFT__FIELD_END };

static bool is_before(const heft__source_t *a, const heft__source_t *b)
{
    return a->replica != b->replica ? a->replica < b->replica : a->rank < b->rank;
}

/* jansson leaves out what is 0 where a table says optional; these are not. */
static json_t *source_json(const heft__source_t *source)
{
    return source->host[0] == '\0'
               ? json_pack("{s:I,s:I,s:s}", "replica", (json_int_t)source->replica, "rank",
                           (json_int_t)source->rank, "manifest", source->manifest)
               : json_pack("{s:I,s:I,s:s,s:s}", "replica", (json_int_t)source->replica, "rank",
                           (json_int_t)source->rank, "manifest", source->manifest, "host",
                           source->host);
}

heft_status_t heft__source_list_encode(const heft__source_t *sources, uint32_t n, char **text_out,
                                       heft_error_t *err)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, source_json(&sources[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    json_t *root = list == NULL ? NULL : json_pack("{s:i,s:o}", "format", 1, "sources", list);
    char *text = root != NULL ? heft__json_sorted_text(root) : NULL;
    json_decref(root);
    if (text == NULL) {
        return heft__error_nomem(err, n * sizeof *sources);
    }
    *text_out = text;
    return HEFT_OK;
}

static heft_status_t read_sources(json_t *list, heft__source_t *sources, heft_error_t *err)
{
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(list, i);
        if (!json_is_object(item)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "sources: item %zu is not an object", i);
        }
        heft_status_t status = heft__json_read(item, source_fields, "sources", &sources[i], err);
        if (status != HEFT_OK) {
            return status;
        }
        if ((sources[i].host[0] == '\0') != (sources[0].host[0] == '\0')) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "sources: some have a host, and replica %u rank %u %s",
                                   (unsigned)sources[i].replica, (unsigned)sources[i].rank,
                                   sources[i].host[0] == '\0' ? "has none" : "has one");
        }
        if (i > 0 && !is_before(&sources[i - 1], &sources[i])) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "sources: replica %u rank %u stands behind replica %u rank %u",
                                   (unsigned)sources[i].replica, (unsigned)sources[i].rank,
                                   (unsigned)sources[i - 1].replica, (unsigned)sources[i - 1].rank);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__source_list_decode(const char *text, size_t n, heft__source_t **sources_out,
                                       uint32_t *n_out, heft_error_t *err)
{
    uint32_t format = 0;
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "sources", &root, err);
    if (status == HEFT_OK) {
        status = heft__json_read(root, list_fields, "sources", &format, err);
    }
    json_t *list = json_object_get(root, "sources");
    const size_t count = json_array_size(list);
    heft__source_t *sources = NULL;
    if (status == HEFT_OK && (count == 0 || count > HEFT__MAX_SOURCES)) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "sources: %zu of them, 1 to %d are wanted",
                                 count, HEFT__MAX_SOURCES);
    }
    if (status == HEFT_OK) {
        sources = heft__calloc(count, sizeof *sources);
        status = sources != NULL ? read_sources(list, sources, err)
                                 : heft__error_nomem(err, count * sizeof *sources);
    }
    json_decref(root);
    if (status != HEFT_OK) {
        heft__free(sources);
        return status;
    }
    *sources_out = sources;
    *n_out = (uint32_t)count;
    return HEFT_OK;
}
