/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placement that manifests of parts say. Entries of all sources are taken in by the name of the
 * whole tensor, held against the first of that name, and become shards; what they hold together is
 * judged where a placement is cut into cells. Everything that is wrong is told, not only the first.
 */
#include "plan/placement.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

enum { MAX_LINES = 40, MAX_SOURCES = 1 << 20 };

/* A whole tensor, as the first source that has something of it says. */
typedef struct whole {
    const char *name; /* in that source's manifest */
    heft_dtype_t dtype;
    heft_shape_t shape;
    uint32_t source;
    uint32_t entry;
    uint32_t unparted; /* the source that has it without a part, or NO_SOURCE */
    bool is_disputed;  /* no shards are made of it */
    bool is_told;      /* that attributes differ */
} whole_t;

#define NO_SOURCE UINT32_MAX

typedef struct gathering {
    const heft_placement_source_t *sources;
    uint32_t n_sources;
    uint32_t n_entries; /* of all */
    bool has_parts;
    heft__map_t names; /* of whole tensors */
    whole_t *wholes;
    size_t n_wholes;
    uint32_t *whole_of; /* by entry: all of source 0, then those of 1, .. */
    heft_shard_t *shards;
    uint32_t *replicas;
    uint32_t n_shards;
    heft_manifest_t *manifest; /* of the whole tensors */
    heft__disputes_t disputes;
    heft_error_t *err;
} gathering_t;

/* ---- what is wrong ---- */

void heft__disputes_add(heft__disputes_t *disputes, heft_status_t status, const char *fmt, ...)
{
    char message[sizeof disputes->first.message];
    heft_error_t cause = HEFT_ERROR_INIT;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    (void)heft__error_set(&cause, status, "%s", message);
    if (disputes->n++ == 0) {
        disputes->first = cause;
    }
    if (disputes->n <= MAX_LINES) {
        heft__text_put(&disputes->lines, cause.message);
        heft__text_put(&disputes->lines, "\n");
    }
}

void heft__disputes_label(const heft__disputes_t *disputes, uint32_t r, char out[80])
{
    const char *label = disputes->sources[r].label;
    if (label != NULL) {
        (void)snprintf(out, 80, "%.79s", label);
    } else {
        (void)snprintf(out, 80, "rank %u", (unsigned)r);
    }
}

/* The status of the first; the lines, if there are several, to *report_out. */
static heft_status_t disputes_status(heft__disputes_t *d, char **report_out, heft_error_t *err)
{
    if (d->n == 1) {
        return heft__error_set(err, d->first.status, "%s", d->first.message);
    }
    if (d->n > MAX_LINES) {
        heft__text_printf(&d->lines, "... %u problems in all\n", (unsigned)d->n);
    }
    if (report_out != NULL) {
        char *text = heft__text_take(&d->lines);
        if (text == NULL) {
            return heft__error_nomem(err, 0);
        }
        *report_out = text;
    }
    return heft__error_set(err, d->first.status, "%.200s (1 of %u problems)", d->first.message,
                           (unsigned)d->n);
}

static void labels_of(const gathering_t *g, uint32_t a, uint32_t b, char out[2][80])
{
    heft__disputes_label(&g->disputes, a, out[0]);
    heft__disputes_label(&g->disputes, b, out[1]);
}

static void put_type(const whole_t *whole, char out[320])
{
    size_t at = (size_t)snprintf(out, 320, "%s [", heft_dtype_get_name(whole->dtype));
    for (int d = 0; d < whole->shape.rank; d++) {
        at += (size_t)snprintf(out + at, 320 - at, d > 0 ? ", %lld" : "%lld",
                               (long long)whole->shape.extent[d]);
    }
    (void)snprintf(out + at, 320 - at, "]");
}

/* ---- entries against the first of their tensor ---- */

/* Entry i of source r as it says the whole tensor is. */
static whole_t whole_said(const gathering_t *g, uint32_t r, uint32_t i, heft_part_t *part_out,
                          bool *is_part_out)
{
    const heft_manifest_t *manifest = g->sources[r].manifest;
    const heft_tensor_info_t *info = heft__manifest_get(manifest, i);
    whole_t said = { .name = info->name,
                     .dtype = info->dtype,
                     .shape = info->shape,
                     .source = r,
                     .entry = i,
                     .unparted = r };
    *part_out = (heft_part_t){ .tensor = info->name, .shape = info->shape };
    *is_part_out = heft_manifest_query_part(manifest, i, part_out, NULL) == HEFT_OK;
    if (*is_part_out) {
        said.name = part_out->tensor;
        said.shape = part_out->shape;
        said.unparted = NO_SOURCE;
    }
    return said;
}

static bool is_same_type(const whole_t *a, const whole_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

/* An attribute that one of two entries has and the other has not so; NULL: none. */
static const char *differing_attr(const gathering_t *g, const whole_t *a, const whole_t *b,
                                  const char *values[2])
{
    const heft_manifest_t *of_a = g->sources[a->source].manifest;
    const heft_manifest_t *of_b = g->sources[b->source].manifest;
    const char *key;
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(of_a, a->entry, k, &key, &values[0], NULL) == HEFT_OK;
         k++) {
        values[1] = heft_manifest_get_tensor_attr(of_b, b->entry, key);
        if (values[1] == NULL || strcmp(values[0], values[1]) != 0) {
            return key;
        }
    }
    values[0] = NULL;
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(of_b, b->entry, k, &key, &values[1], NULL) == HEFT_OK;
         k++) {
        if (heft_manifest_get_tensor_attr(of_a, a->entry, key) == NULL) {
            return key;
        }
    }
    return NULL;
}

static void check_attrs(gathering_t *g, whole_t *whole, const whole_t *said)
{
    char who[2][80];
    const char *values[2];
    const char *key = whole->is_told ? NULL : differing_attr(g, whole, said, values);
    if (key != NULL) {
        whole->is_told = true;
        labels_of(g, whole->source, said->source, who);
        heft__disputes_add(&g->disputes, HEFT_ERR_SHAPE,
                           "tensor \"%.80s\": %s is %.40s of %s, %.40s of %s", whole->name, key,
                           values[0] != NULL ? values[0] : "not given", who[0],
                           values[1] != NULL ? values[1] : "not given", who[1]);
    }
}

/* What another entry says of a tensor that is known. */
static void compare(gathering_t *g, whole_t *whole, const whole_t *said)
{
    char who[2][80];
    char type[2][320];
    if (whole->is_disputed) {
        return;
    }
    labels_of(g, whole->source, said->source, who);
    if (!is_same_type(whole, said)) {
        put_type(whole, type[0]);
        put_type(said, type[1]);
        heft__disputes_add(&g->disputes, HEFT_ERR_SHAPE,
                           "tensor \"%.80s\": %.60s of %s, %.60s of %s", whole->name, type[0],
                           who[0], type[1], who[1]);
        whole->is_disputed = true;
        return;
    }
    if (whole->unparted != NO_SOURCE && said->unparted != NO_SOURCE) {
        labels_of(g, whole->unparted, said->unparted, who);
        heft__disputes_add(&g->disputes, HEFT_ERR_EXISTS,
                           "tensor \"%.80s\": %s and %s both have that name, and neither says of "
                           "which whole tensor it is a part, or which replica",
                           whole->name, who[0], who[1]);
        whole->is_disputed = true;
        return;
    }
    whole->unparted = whole->unparted != NO_SOURCE ? whole->unparted : said->unparted;
    check_attrs(g, whole, said);
}

static heft_status_t take_entry(gathering_t *g, const whole_t *said, uint32_t *whole_out)
{
    const size_t len = strlen(said->name);
    uint32_t at = heft__map_get(&g->names, said->name, len);
    if (at != HEFT__MAP_NONE) {
        compare(g, &g->wholes[at], said);
        *whole_out = at;
        return HEFT_OK;
    }
    at = (uint32_t)g->n_wholes;
    if (heft__map_put(&g->names, said->name, len, at) != HEFT_OK) {
        return heft__error_nomem(g->err, len);
    }
    g->wholes[g->n_wholes++] = *said;
    *whole_out = at;
    return HEFT_OK;
}

static heft_status_t take_entries(gathering_t *g)
{
    uint32_t at = 0;
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < g->n_sources; r++) {
        const uint32_t n = heft_manifest_get_n_tensors(g->sources[r].manifest);
        for (uint32_t i = 0; i < n && status == HEFT_OK; i++, at++) {
            heft_part_t part;
            bool is_part;
            const whole_t said = whole_said(g, r, i, &part, &is_part);
            g->has_parts = g->has_parts || is_part;
            status = take_entry(g, &said, &g->whole_of[at]);
        }
    }
    return status;
}

/* ---- the side ---- */

static void side_differs(gathering_t *g, uint32_t r, const char *key, const char *first,
                         const char *other)
{
    char who[2][80];
    labels_of(g, 0, r, who);
    heft__disputes_add(
        &g->disputes, HEFT_ERR_NAME, "attribute \"%.60s\" is %.40s of %s, %.40s of %s", key,
        first != NULL ? first : "not given", who[0], other != NULL ? other : "not given", who[1]);
}

/* Framework, forms of names, .. are those of one model. */
static void compare_sides(gathering_t *g, uint32_t r)
{
    const heft_manifest_t *a = g->sources[0].manifest;
    const heft_manifest_t *b = g->sources[r].manifest;
    const char *key;
    const char *value;
    for (uint32_t i = 0; heft_manifest_query_attr(a, i, &key, &value, NULL) == HEFT_OK; i++) {
        const char *other = heft_manifest_get_attr(b, key);
        if (other == NULL || strcmp(value, other) != 0) {
            side_differs(g, r, key, value, other);
        }
    }
    for (uint32_t i = 0; heft_manifest_query_attr(b, i, &key, &value, NULL) == HEFT_OK; i++) {
        if (heft_manifest_get_attr(a, key) == NULL) {
            side_differs(g, r, key, NULL, value);
        }
    }
}

static heft_status_t copy_side(gathering_t *g)
{
    const heft_manifest_t *first = g->sources[0].manifest;
    const char *key;
    const char *value;
    heft_status_t status = heft_manifest_create("source", &g->manifest, g->err);
    if (status == HEFT_OK && heft__manifest_is_of_files(first)) {
        heft__manifest_set_of_files(g->manifest);
    }
    for (uint32_t i = 0;
         status == HEFT_OK && heft_manifest_query_attr(first, i, &key, &value, NULL) == HEFT_OK;
         i++) {
        status = heft_manifest_set_attr(g->manifest, key, value, g->err);
    }
    return status;
}

/* What any of them leaves out and none binds, with the reason of the first. */
static heft_status_t copy_excluded(gathering_t *g)
{
    heft__map_t seen;
    heft__map_init(&seen);
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < g->n_sources; r++) {
        const char *reason = NULL;
        const char *name = heft_manifest_get_excluded(g->sources[r].manifest, 0, &reason);
        for (uint32_t i = 1; name != NULL && status == HEFT_OK; i++) {
            const size_t len = strlen(name);
            if (heft__map_get(&g->names, name, len) == HEFT__MAP_NONE &&
                heft__map_get(&seen, name, len) == HEFT__MAP_NONE) {
                status = heft__map_put(&seen, name, len, 0) == HEFT_OK
                             ? heft_manifest_exclude(g->manifest, name, reason, g->err)
                             : heft__error_nomem(g->err, len);
            }
            name = heft_manifest_get_excluded(g->sources[r].manifest, i, &reason);
        }
    }
    heft__map_fini(&seen);
    return status;
}

static heft_status_t add_whole(gathering_t *g, const whole_t *whole)
{
    const heft_manifest_t *from = g->sources[whole->source].manifest;
    const char *key;
    const char *value;
    heft_status_t status =
        heft_manifest_add(g->manifest, whole->name, whole->dtype, &whole->shape, g->err);
    for (uint32_t k = 0;
         status == HEFT_OK &&
         heft_manifest_query_tensor_attr(from, whole->entry, k, &key, &value, NULL) == HEFT_OK;
         k++) {
        status = heft_manifest_set_tensor_attr(g->manifest, whole->name, key, value, g->err);
    }
    return status;
}

/* The manifest of the whole tensors, without those that are in dispute. */
static heft_status_t make_manifest(gathering_t *g)
{
    for (uint32_t r = 1; r < g->n_sources; r++) {
        compare_sides(g, r);
    }
    heft_status_t status = copy_side(g);
    for (size_t t = 0; t < g->n_wholes && status == HEFT_OK; t++) {
        status = g->wholes[t].is_disputed ? HEFT_OK : add_whole(g, &g->wholes[t]);
    }
    if (status == HEFT_OK) {
        status = copy_excluded(g);
    }
    return status == HEFT_OK ? heft_manifest_finish(g->manifest, g->err) : status;
}

/* ---- shards ---- */

static void add_shard(gathering_t *g, uint32_t r, uint32_t i)
{
    heft_part_t part;
    bool is_part;
    const whole_t said = whole_said(g, r, i, &part, &is_part);
    const heft_tensor_info_t *info = heft__manifest_get(g->sources[r].manifest, i);
    heft_shard_t shard = { .tensor = said.name, .rank = r, .name = info->name };
    for (int d = 0; d < info->shape.rank; d++) {
        shard.begin[d] = part.begin[d];
        shard.end[d] = part.begin[d] + info->shape.extent[d];
    }
    g->replicas[g->n_shards] = part.replica;
    g->shards[g->n_shards++] = shard;
}

static heft_status_t place(gathering_t *g, const heft_placement_opts_t *opts,
                           heft_placement_t **placement_out)
{
    g->shards = heft__calloc((size_t)g->n_entries + 1, sizeof *g->shards);
    g->replicas = heft__calloc((size_t)g->n_entries + 1, sizeof *g->replicas);
    if (g->shards == NULL || g->replicas == NULL) {
        return heft__error_nomem(g->err, g->n_entries * sizeof *g->shards);
    }
    uint32_t at = 0;
    for (uint32_t r = 0; r < g->n_sources; r++) {
        const uint32_t n = heft_manifest_get_n_tensors(g->sources[r].manifest);
        for (uint32_t i = 0; i < n; i++, at++) {
            if (!g->wholes[g->whole_of[at]].is_disputed) {
                add_shard(g, r, i);
            }
        }
    }
    return heft__placement_make(g->manifest, g->shards, g->replicas, g->n_shards, opts,
                                g->n_sources, &g->disputes, placement_out, g->err);
}

static heft_status_t gather(gathering_t *g, const heft_placement_opts_t *opts,
                            heft_placement_t **placement_out)
{
    g->wholes = heft__calloc((size_t)g->n_entries + 1, sizeof *g->wholes);
    g->whole_of = heft__calloc((size_t)g->n_entries + 1, sizeof *g->whole_of);
    if (g->wholes == NULL || g->whole_of == NULL) {
        return heft__error_nomem(g->err, g->n_entries * sizeof *g->wholes);
    }
    heft_status_t status = take_entries(g);
    if (status == HEFT_OK) {
        status = make_manifest(g);
    }
    if (status == HEFT_OK && (g->n_sources > 1 || g->has_parts)) {
        status = place(g, opts, placement_out);
    }
    return status;
}

static void gathering_fini(gathering_t *g)
{
    heft__text_fini(&g->disputes.lines);
    heft_manifest_destroy(g->manifest);
    heft__map_fini(&g->names);
    heft__free(g->wholes);
    heft__free(g->whole_of);
    heft__free(g->shards);
    heft__free(g->replicas);
}

static heft_status_t check_sources(const heft_placement_source_t *sources, uint32_t n,
                                   uint32_t *n_entries_out, heft_error_t *err)
{
    uint64_t n_entries = 0;
    if (sources == NULL || n == 0 || n > MAX_SOURCES) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "placement: %u sources, 1 to %d are wanted",
                               (unsigned)n, (int)MAX_SOURCES);
    }
    for (uint32_t r = 0; r < n; r++) {
        const heft_manifest_t *manifest = sources[r].manifest;
        if (manifest == NULL || !heft__manifest_is_finished(manifest) ||
            strcmp(heft_manifest_get_side(manifest), "source") != 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "placement: source %u has no finished manifest of a source",
                                   (unsigned)r);
        }
        n_entries += heft_manifest_get_n_tensors(manifest);
    }
    if (n_entries > HEFT__MAX_SHARDS) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "placement: %llu tensors of %u sources, at most %u",
                               (unsigned long long)n_entries, (unsigned)n, HEFT__MAX_SHARDS);
    }
    *n_entries_out = (uint32_t)n_entries;
    return HEFT_OK;
}

heft_status_t heft_placement_from_sources(const heft_placement_source_t *sources,
                                          uint32_t n_sources, const heft_placement_opts_t *opts,
                                          heft_placement_t **placement_out,
                                          heft_manifest_t **tensors_out, char **report_out,
                                          heft_error_t *err)
{
    if (report_out != NULL) {
        *report_out = NULL;
    }
    if (placement_out == NULL || tensors_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "placement: two outputs are needed");
    }
    gathering_t g = { .sources = sources, .n_sources = n_sources, .err = err };
    heft_placement_t *placement = NULL;
    heft_status_t status = check_sources(sources, n_sources, &g.n_entries, err);
    if (status != HEFT_OK) {
        return status;
    }
    g.disputes.sources = sources;
    heft__text_init(&g.disputes.lines);
    heft__map_init(&g.names);
    status = gather(&g, opts, &placement);
    if (status == HEFT_OK && g.disputes.n > 0) {
        status = disputes_status(&g.disputes, report_out, err);
    }
    if (status == HEFT_OK) {
        *placement_out = placement;
        *tensors_out = g.manifest;
        g.manifest = NULL;
    } else {
        heft_placement_destroy(placement);
    }
    gathering_fini(&g);
    return status;
}
