/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drift: what differs between two manifests of one side. Tensors of one name are compared in one
 * walk. Names on one side only are put into buckets of equal dtype, shape and numbers ("3" of
 * "layers.3.q"): two of a bucket that are each other's nearest were renamed. So a tree whose layers
 * all got another prefix is told apart layer by layer, and no search is larger than its bucket.
 */
#include "format/manifest_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAR = 64 };

struct heft_drift {
    heft__arena_t arena;
    heft_drift_finding_t *findings;
    size_t n;
    size_t cap;
};

/* A tensor that one side alone has. */
typedef struct lone {
    const heft_tensor_info_t *info;
    const char *key;      /* dtype, shape, numbers */
    struct lone *partner; /* renamed to or from it */
} lone_t;

typedef struct lones {
    lone_t *items;
    size_t n;
    size_t cap;
} lones_t;

typedef struct work {
    heft_drift_t *drift;
    const char *prefix;
    const heft_manifest_t *first;
    const heft_manifest_t *second;
    lones_t gone;
    lones_t added;
    size_t n_comparisons;
    heft_error_t *err;
} work_t;

const char *heft_drift_kind_get_name(heft_drift_kind_t kind)
{
    static const char *const names[] = { "missing", "added",     "renamed",   "retyped", "reshaped",
                                         "relaid",  "attribute", "side",      "mapping", "recipe",
                                         "binding", "ranks",     "exception", "plan" };
    size_t i = (size_t)kind - 1;
    return i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

/* ---- findings ---- */

heft_status_t heft__drift_add(heft_drift_t *d, heft_drift_kind_t kind, const char *name,
                              const char *other, heft__text_t *text, heft_error_t *err)
{
    if (!HEFT__RESERVE(d->findings, d->cap, d->n + 1)) {
        heft__text_fini(text);
        return heft__error_nomem(err, (d->n + 1) * sizeof *d->findings);
    }
    heft_drift_finding_t *f = &d->findings[d->n];
    *f = (heft_drift_finding_t){ .kind = kind };
    f->name = heft__arena_strndup(&d->arena, name, strlen(name));
    f->other = heft__arena_strndup(&d->arena, other, strlen(other));
    f->text = heft__arena_strndup(&d->arena, text->data, text->len);
    bool failed = text->failed || f->name == NULL || f->other == NULL || f->text == NULL;
    size_t len = text->len;
    heft__text_fini(text);
    if (failed) {
        return heft__error_nomem(err, len + strlen(name) + strlen(other));
    }
    d->n++;
    return HEFT_OK;
}

/* The same, with what the manifests are in front. */
static heft_status_t add(work_t *w, heft_drift_kind_t kind, const char *name, const char *other,
                         heft__text_t *text)
{
    if (w->prefix[0] == '\0') {
        return heft__drift_add(w->drift, kind, name, other, text, w->err);
    }
    heft__text_t whole;
    heft__text_init(&whole);
    heft__text_printf(&whole, "%s: %s", w->prefix, text->data);
    whole.failed = whole.failed || text->failed;
    heft__text_fini(text);
    return heft__drift_add(w->drift, kind, name, other, &whole, w->err);
}

static void put_tensor(heft__text_t *text, const heft_tensor_info_t *t)
{
    heft__text_printf(text, "%s [", heft_dtype_get_name(t->dtype));
    for (int k = 0; k < t->shape.rank; k++) {
        heft__text_printf(text, k > 0 ? ", %lld" : "%lld", (long long)t->shape.extent[k]);
    }
    heft__text_put(text, "]");
}

/* ---- tensors of one name ---- */

static bool is_same_shape(const heft_tensor_info_t *a, const heft_tensor_info_t *b)
{
    return a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

static const char *attr_value(const heft__tensor_attr_t *attrs, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(attrs[i].key, key) == 0) {
            return attrs[i].value;
        }
    }
    return NULL;
}

/* Append "key: x, now y" for each key of `from` that differs in `to`; with only_missing those that
 * `to` lacks. */
static void put_changes(heft__text_t *text, const heft__tensor_attr_t *from, size_t n_from,
                        const heft__tensor_attr_t *to, size_t n_to, bool is_back)
{
    for (size_t i = 0; i < n_from; i++) {
        const char *other = attr_value(to, n_to, from[i].key);
        if (other != NULL && (is_back || strcmp(other, from[i].value) == 0)) {
            continue;
        }
        const char *none = "not given";
        heft__text_printf(text, "%s %s was %s, is %s", text->len > 0 ? "," : "", from[i].key,
                          is_back ? none : from[i].value,
                          is_back         ? from[i].value
                          : other != NULL ? other
                                          : none);
    }
}

static void put_numbers(heft__text_t *text, const int64_t *numbers, int n)
{
    for (int k = 0; k < n; k++) {
        heft__text_printf(text, k > 0 ? ", %lld" : "[%lld", (long long)numbers[k]);
    }
    heft__text_put(text, n > 0 ? "]" : "[]");
}

static void put_part(heft__text_t *text, const heft_part_t *part)
{
    if (part == NULL) {
        heft__text_put(text, "not given");
        return;
    }
    heft__text_printf(text, "\"%s\" ", part->tensor);
    put_numbers(text, part->shape.extent, part->shape.rank);
    heft__text_put(text, " from ");
    put_numbers(text, part->begin, part->shape.rank);
    heft__text_printf(text, " replica %u", (unsigned)part->replica);
}

static bool is_same_part(const heft_part_t *a, const heft_part_t *b)
{
    if (a == NULL || b == NULL) {
        return a == b;
    }
    return strcmp(a->tensor, b->tensor) == 0 && a->replica == b->replica &&
           memcmp(&a->shape, &b->shape, sizeof a->shape) == 0 &&
           memcmp(a->begin, b->begin, sizeof a->begin) == 0;
}

static void put_part_change(work_t *w, const char *name, heft__text_t *text)
{
    const heft_part_t *a = heft__part_of(w->first, name);
    const heft_part_t *b = heft__part_of(w->second, name);
    if (!is_same_part(a, b)) {
        heft__text_put(text, text->len > 0 ? ", part was " : " part was ");
        put_part(text, a);
        heft__text_put(text, ", is ");
        put_part(text, b);
    }
}

static heft_status_t compare_layout(work_t *w, const heft_tensor_info_t *a)
{
    size_t n_a;
    size_t n_b;
    const heft__tensor_attr_t *attrs_a = heft__tensor_attrs_of(w->first, a->name, &n_a);
    const heft__tensor_attr_t *attrs_b = heft__tensor_attrs_of(w->second, a->name, &n_b);
    heft__text_t changes;
    heft__text_init(&changes);
    put_changes(&changes, attrs_a, n_a, attrs_b, n_b, false);
    put_changes(&changes, attrs_b, n_b, attrs_a, n_a, true);
    put_part_change(w, a->name, &changes);
    if (changes.len == 0 && !changes.failed) {
        heft__text_fini(&changes);
        return HEFT_OK;
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "relaid \"%s\":%s", a->name, changes.data);
    text.failed = text.failed || changes.failed;
    heft__text_fini(&changes);
    return add(w, HEFT_DRIFT_RELAID, a->name, a->name, &text);
}

static heft_status_t compare_pair(work_t *w, const heft_tensor_info_t *a,
                                  const heft_tensor_info_t *b)
{
    heft_status_t status = HEFT_OK;
    heft__text_t text;
    if (a->dtype != b->dtype) {
        heft__text_init(&text);
        heft__text_printf(&text, "retyped \"%s\": was %s, is %s", a->name,
                          heft_dtype_get_name(a->dtype), heft_dtype_get_name(b->dtype));
        status = add(w, HEFT_DRIFT_RETYPED, a->name, a->name, &text);
    }
    if (status == HEFT_OK && !is_same_shape(a, b)) {
        heft__text_init(&text);
        heft__text_printf(&text, "reshaped \"%s\": was ", a->name);
        put_tensor(&text, a);
        heft__text_put(&text, ", is ");
        put_tensor(&text, b);
        if (a->n_elems == b->n_elems) {
            heft__text_put(&text, " (as many elements)");
        }
        status = add(w, HEFT_DRIFT_RESHAPED, a->name, a->name, &text);
    }
    return status == HEFT_OK ? compare_layout(w, a) : status;
}

/* ---- names on one side only ---- */

static heft_status_t add_lone(work_t *w, lones_t *list, const heft_tensor_info_t *info)
{
    if (!HEFT__RESERVE(list->items, list->cap, list->n + 1)) {
        return heft__error_nomem(w->err, (list->n + 1) * sizeof *list->items);
    }
    heft__text_t key;
    heft__text_init(&key);
    put_tensor(&key, info);
    for (const char *p = info->name; *p != '\0'; p++) {
        if (*p >= '0' && *p <= '9') {
            heft__text_put(&key, p == info->name || p[-1] < '0' || p[-1] > '9' ? " " : "");
            heft__text_put_n(&key, p, 1);
        }
    }
    char *kept = key.failed ? NULL : heft__arena_strndup(&w->drift->arena, key.data, key.len);
    heft__text_fini(&key);
    if (kept == NULL) {
        return heft__error_nomem(w->err, strlen(info->name));
    }
    list->items[list->n++] = (lone_t){ .info = info, .key = kept };
    return HEFT_OK;
}

static heft_status_t compare_tensors(work_t *w)
{
    uint32_t i = 0;
    uint32_t k = 0;
    heft_status_t status = HEFT_OK;
    for (;;) {
        const heft_tensor_info_t *a = heft__manifest_get(w->first, i);
        const heft_tensor_info_t *b = heft__manifest_get(w->second, k);
        if (status != HEFT_OK || (a == NULL && b == NULL)) {
            return status;
        }
        int order = a == NULL ? 1 : b == NULL ? -1 : strcmp(a->name, b->name);
        if (order == 0) {
            status = compare_pair(w, a, b);
        } else {
            status = order < 0 ? add_lone(w, &w->gone, a) : add_lone(w, &w->added, b);
        }
        i += order <= 0;
        k += order >= 0;
    }
}

static int by_key(const void *a, const void *b)
{
    const lone_t *x = a;
    const lone_t *y = b;
    int order = strcmp(x->key, y->key);
    return order != 0 ? order : strcmp(x->info->name, y->info->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lone_t *)a)->info->name, ((const lone_t *)b)->info->name);
}

/* The nearest to a name among [begin, end); NULL where none is near, or two are equally near. */
static lone_t *nearest_of(const char *name, lone_t *begin, const lone_t *end)
{
    lone_t *best = NULL;
    uint32_t limit = FAR;
    bool is_tie = false;
    for (lone_t *l = begin; l < end; l++) {
        uint32_t distance = heft__edit_distance(name, l->info->name, limit);
        if (distance > limit) {
            continue;
        }
        is_tie = best != NULL && distance == limit;
        best = l;
        limit = distance;
    }
    return is_tie ? NULL : best;
}

/* Buckets in step: both lists are sorted by key. */
static void match_bucket(lone_t *gone, size_t n_gone, lone_t *added, size_t n_added)
{
    enum { MAX_BUCKET = 256 };
    if (n_gone > MAX_BUCKET || n_added > MAX_BUCKET) {
        return; /* too many alike to say which became which */
    }
    for (size_t i = 0; i < n_gone; i++) {
        lone_t *to = nearest_of(gone[i].info->name, added, added + n_added);
        if (to != NULL && nearest_of(to->info->name, gone, gone + n_gone) == &gone[i]) {
            gone[i].partner = to;
            to->partner = &gone[i];
        }
    }
}

static void find_renamed(work_t *w)
{
    lones_t *g = &w->gone;
    lones_t *a = &w->added;
    if (g->n == 0 || a->n == 0) {
        return;
    }
    qsort(g->items, g->n, sizeof *g->items, by_key);
    qsort(a->items, a->n, sizeof *a->items, by_key);
    size_t i = 0;
    size_t k = 0;
    while (i < g->n && k < a->n) {
        int order = strcmp(g->items[i].key, a->items[k].key);
        size_t i_end = i;
        size_t k_end = k;
        while (order == 0 && i_end < g->n && strcmp(g->items[i_end].key, g->items[i].key) == 0) {
            i_end++;
        }
        while (order == 0 && k_end < a->n && strcmp(a->items[k_end].key, a->items[k].key) == 0) {
            k_end++;
        }
        if (order == 0) {
            match_bucket(&g->items[i], i_end - i, &a->items[k], k_end - k);
        }
        i = order == 0 ? i_end : i + (order < 0);
        k = order == 0 ? k_end : k + (order > 0);
    }
}

static heft_status_t report_lone(work_t *w, const lone_t *l, bool is_gone, const char *nearest)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s \"%s\", ", is_gone ? "missing" : "added", l->info->name);
    put_tensor(&text, l->info);
    if (nearest[0] != '\0') {
        heft__text_printf(&text, "; nearest: \"%s\"", nearest);
    }
    return add(w, is_gone ? HEFT_DRIFT_MISSING : HEFT_DRIFT_ADDED, l->info->name, nearest, &text);
}

/* How many names may still be compared: a search through everything for everything would take
 * minutes where two large trees have nothing in common. */
#define MAX_COMPARISONS 200000

static void try_nearest(const char *name, const char *other, const char **best, uint32_t *limit)
{
    uint32_t distance = heft__edit_distance(name, other, *limit);
    if (distance <= *limit && (distance < *limit || (*best)[0] == '\0')) {
        *best = other;
        *limit = distance;
    }
}

/* The nearest of the names that the other side alone has; of all its names where there are none. */
static const char *nearest_name(work_t *w, const char *name, bool is_gone)
{
    const lones_t *others = is_gone ? &w->added : &w->gone;
    const heft_manifest_t *manifest = is_gone ? w->second : w->first;
    size_t n = others->n > 0 ? others->n : heft_manifest_get_n_tensors(manifest);
    const char *best = "";
    uint32_t limit = (uint32_t)heft__min_i64((int64_t)strlen(name) / 2, FAR);
    for (size_t i = 0; i < n && w->n_comparisons < MAX_COMPARISONS; i++) {
        w->n_comparisons++;
        try_nearest(name,
                    others->n > 0 ? others->items[i].info->name
                                  : heft__manifest_get(manifest, (uint32_t)i)->name,
                    &best, &limit);
    }
    return best;
}

static heft_status_t report_lones(work_t *w, const lones_t *list, bool is_gone)
{
    heft_status_t status = HEFT_OK;
    w->n_comparisons = 0;
    for (size_t i = 0; status == HEFT_OK && i < list->n; i++) {
        const lone_t *l = &list->items[i];
        if (l->partner == NULL) {
            status = report_lone(w, l, is_gone, nearest_name(w, l->info->name, is_gone));
        }
    }
    return status;
}

static heft_status_t report_renamed(work_t *w)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; status == HEFT_OK && i < w->gone.n; i++) {
        const lone_t *l = &w->gone.items[i];
        if (l->partner == NULL) {
            continue;
        }
        heft__text_t text;
        heft__text_init(&text);
        heft__text_printf(&text, "renamed \"%s\" to \"%s\", ", l->info->name,
                          l->partner->info->name);
        put_tensor(&text, l->info);
        status = add(w, HEFT_DRIFT_RENAMED, l->info->name, l->partner->info->name, &text);
    }
    return status;
}

/* ---- attributes of the whole side ---- */

static heft_status_t compare_attr(work_t *w, const char *key, const char *was, const char *is)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "attribute \"%s\": was %s%s%s, is %s%s%s", key,
                      was != NULL ? "\"" : "", was != NULL ? was : "not given",
                      was != NULL ? "\"" : "", is != NULL ? "\"" : "",
                      is != NULL ? is : "not given", is != NULL ? "\"" : "");
    return add(w, HEFT_DRIFT_ATTRIBUTE, key, "", &text);
}

static heft_status_t compare_attrs(work_t *w)
{
    heft_status_t status = HEFT_OK;
    const char *key = NULL;
    const char *value = NULL;
    for (uint32_t i = 0; status == HEFT_OK && i < heft_manifest_get_n_attrs(w->first); i++) {
        status = heft_manifest_query_attr(w->first, i, &key, &value, w->err);
        const char *now = status == HEFT_OK ? heft_manifest_get_attr(w->second, key) : NULL;
        if (status == HEFT_OK && (now == NULL || strcmp(now, value) != 0)) {
            status = compare_attr(w, key, value, now);
        }
    }
    for (uint32_t i = 0; status == HEFT_OK && i < heft_manifest_get_n_attrs(w->second); i++) {
        status = heft_manifest_query_attr(w->second, i, &key, &value, w->err);
        if (status == HEFT_OK && heft_manifest_get_attr(w->first, key) == NULL) {
            status = compare_attr(w, key, NULL, value);
        }
    }
    return status;
}

static heft_status_t compare_sides(work_t *w)
{
    const char *was = heft_manifest_get_side(w->first);
    const char *is = heft_manifest_get_side(w->second);
    if (strcmp(was, is) == 0) {
        return HEFT_OK;
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "side: was %s, is %s", was, is);
    return add(w, HEFT_DRIFT_SIDE, was, is, &text);
}

/* ---- life ---- */

static int by_kind(const void *a, const void *b)
{
    const heft_drift_finding_t *x = a;
    const heft_drift_finding_t *y = b;
    if (x->kind != y->kind) {
        return x->kind < y->kind ? -1 : 1;
    }
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : strcmp(x->text, y->text);
}

static heft_status_t compare(work_t *w)
{
    heft_status_t status = compare_tensors(w);
    if (status != HEFT_OK) {
        return status;
    }
    find_renamed(w);
    status = report_renamed(w); /* before sorting again: partners are addresses */
    if (w->gone.n > 1) {
        qsort(w->gone.items, w->gone.n, sizeof *w->gone.items, by_name);
    }
    if (w->added.n > 1) {
        qsort(w->added.items, w->added.n, sizeof *w->added.items, by_name);
    }
    status = status == HEFT_OK ? report_lones(w, &w->gone, true) : status;
    status = status == HEFT_OK ? report_lones(w, &w->added, false) : status;
    status = status == HEFT_OK ? compare_attrs(w) : status;
    return status == HEFT_OK ? compare_sides(w) : status;
}

heft_status_t heft__drift_add_manifests(heft_drift_t *drift, const char *prefix,
                                        const heft_manifest_t *first, const heft_manifest_t *second,
                                        heft_error_t *err)
{
    work_t w = { .drift = drift, .prefix = prefix, .first = first, .second = second, .err = err };
    heft_status_t status = compare(&w);
    heft__free(w.gone.items);
    heft__free(w.added.items);
    return status;
}

heft_status_t heft__drift_create_empty(heft_drift_t **drift_out, heft_error_t *err)
{
    heft_drift_t *drift = heft__calloc(1, sizeof *drift);
    if (drift == NULL) {
        return heft__error_nomem(err, sizeof *drift);
    }
    heft__arena_init(&drift->arena, 4096);
    *drift_out = drift;
    return HEFT_OK;
}

void heft__drift_sort(heft_drift_t *drift)
{
    if (drift->n > 1) {
        qsort(drift->findings, drift->n, sizeof *drift->findings, by_kind);
    }
}

heft_status_t heft_drift_create(const heft_manifest_t *first, const heft_manifest_t *second,
                                heft_drift_t **drift_out, heft_error_t *err)
{
    if (!heft__manifest_is_finished(first) || !heft__manifest_is_finished(second)) {
        return heft__error_set(err, HEFT_ERR_STATE, "the %s manifest is not finished",
                               heft__manifest_is_finished(first) ? "second" : "first");
    }
    heft_drift_t *drift = NULL;
    heft_status_t status = heft__drift_create_empty(&drift, err);
    if (status == HEFT_OK) {
        status = heft__drift_add_manifests(drift, "", first, second, err);
    }
    if (status != HEFT_OK) {
        heft_drift_destroy(drift);
        return status;
    }
    heft__drift_sort(drift);
    *drift_out = drift;
    return HEFT_OK;
}

void heft_drift_destroy(heft_drift_t *drift)
{
    if (drift != NULL) {
        heft__free(drift->findings);
        heft__arena_fini(&drift->arena);
        heft__free(drift);
    }
}

uint32_t heft_drift_get_n(const heft_drift_t *drift)
{
    return (uint32_t)drift->n;
}

const heft_drift_finding_t *heft_drift_get(const heft_drift_t *drift, uint32_t i)
{
    return i < drift->n ? &drift->findings[i] : NULL;
}
