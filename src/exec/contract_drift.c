/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between two contracts. Inputs of the mapping are compared one by one; its plans only
 * count where all inputs are equal: then heft itself has changed.
 */
#include "exec/contract_drift.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "format/format.h"

enum { MAX_SHOWN = 100 };

typedef heft__contract_comparer_t comparer_t;

static heft_status_t add(const comparer_t *c, heft_drift_kind_t kind, const char *name,
                         const char *other, heft__text_t *text)
{
    return heft__drift_add(c->drift, kind, name, other, text, c->err);
}

/* n bytes in quotes, the end of a long text left out. */
static void put_quoted(heft__text_t *text, const char *s, size_t n)
{
    size_t shown = n;
    if (n > MAX_SHOWN) {
        shown = MAX_SHOWN;
        while (shown > 0 && ((unsigned char)s[shown] & 0xc0) == 0x80) {
            shown--; /* not inside a character */
        }
    }
    heft__text_printf(text, "\"%.*s\"%s", (int)shown, s, shown < n ? ".." : "");
}

/* ---- recipe ---- */

static bool plans_are_equal(const comparer_t *c)
{
    return strcmp(c->first->plan, c->second->plan) == 0;
}

static void put_line(heft__text_t *text, const char *line)
{
    if (line == NULL) {
        heft__text_put(text, "not there");
    } else {
        put_quoted(text, line, strcspn(line, "\n"));
    }
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL && end[1] != '\0' ? end + 1 : NULL;
}

static heft_status_t compare_recipes(const comparer_t *c)
{
    const char *a = c->first->recipe_text;
    const char *b = c->second->recipe_text;
    uint32_t line = 1;
    if (strcmp(a, b) == 0) {
        return HEFT_OK;
    }
    while (a != NULL && b != NULL && strcspn(a, "\n") == strcspn(b, "\n") &&
           memcmp(a, b, strcspn(a, "\n")) == 0) {
        a = next_line(a);
        b = next_line(b);
        line++;
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "recipe \"%s\" ", c->second->recipe_name);
    if (a == NULL && b == NULL) {
        heft__text_put(&text, "changed at its end (blank lines)");
    } else {
        heft__text_printf(&text, "changed from line %u: was ", line);
        put_line(&text, a);
        heft__text_put(&text, ", is ");
        put_line(&text, b);
    }
    heft__text_put(&text, plans_are_equal(c) ? "; the plans are equal" : "");
    return add(c, HEFT_DRIFT_RECIPE, c->first->recipe_name, c->second->recipe_name, &text);
}

/* ---- bindings ---- */

static void put_value(heft__text_t *text, const json_t *value)
{
    char shown[MAX_SHOWN + 1];
    if (value == NULL) {
        heft__text_put(text, "not given");
        return;
    }
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17);
    const size_t n = json_dumpb(value, shown, MAX_SHOWN, flags);
    if (n > MAX_SHOWN) {
        heft__text_printf(text, "%zu bytes of JSON", n);
    } else {
        heft__text_printf(text, "%.*s", (int)n, shown);
    }
}

/* Of two lists of one length, where they differ first. */
static void put_list_change(heft__text_t *text, const json_t *a, const json_t *b)
{
    size_t i = 0;
    while (json_equal(json_array_get(a, i), json_array_get(b, i))) {
        i++;
    }
    heft__text_printf(text, "[%zu]: was ", i);
    put_value(text, json_array_get(a, i));
    heft__text_put(text, ", is ");
    put_value(text, json_array_get(b, i));
}

static heft_status_t add_binding(const comparer_t *c, const char *name, const json_t *a,
                                 const json_t *b)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_put(&text, name);
    if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
        put_list_change(&text, a, b);
    } else {
        heft__text_put(&text, ": was ");
        put_value(&text, a);
        heft__text_put(&text, ", is ");
        put_value(&text, b);
    }
    return add(c, HEFT_DRIFT_BINDING, name, "", &text);
}

/* Members of two objects (either may be NULL): first those of a, then those that only b has. The
 * depth is bounded by the parser's. */
static heft_status_t compare_objects(const comparer_t *c, const char *path, json_t *a, json_t *b)
{
    const char *key;
    json_t *value;
    heft_status_t status = HEFT_OK;
    for (int turn = 0; turn < 2; turn++) {
        json_object_foreach(turn == 0 ? a : b, key, value)
        {
            json_t *x = json_object_get(a, key);
            json_t *y = json_object_get(b, key);
            if (status != HEFT_OK || (turn == 1 && x != NULL) ||
                (x != NULL && y != NULL && json_equal(x, y))) {
                continue;
            }
            heft__text_t name;
            heft__text_init(&name);
            heft__text_printf(&name, "%s%s%s", path, path[strlen(path) - 1] == ' ' ? "" : ".", key);
            if (name.failed) {
                status = heft__error_nomem(c->err, 0);
            } else if (json_is_object(x) && json_is_object(y)) {
                status = compare_objects(c, name.data, x, y);
            } else {
                status = add_binding(c, name.data, x, y);
            }
            heft__text_fini(&name);
        }
    }
    return status;
}

static heft_status_t compare_bindings(const comparer_t *c)
{
    if (strcmp(c->first->bindings, c->second->bindings) == 0) {
        return HEFT_OK;
    }
    static const struct {
        const char *key;
        const char *path;
    } parts[] = { { "let", "let " }, { "config", "config" }, { "env", "env" } };
    heft_status_t status = HEFT_OK;
    json_t *a = json_loads(c->first->bindings, 0, NULL);
    json_t *b = json_loads(c->second->bindings, 0, NULL);
    if (a == NULL || b == NULL) {
        status = heft__error_nomem(c->err, strlen(c->first->bindings));
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == HEFT_OK; i++) {
        status = compare_objects(c, parts[i].path, json_object_get(a, parts[i].key),
                                 json_object_get(b, parts[i].key));
    }
    json_decref(a);
    json_decref(b);
    return status;
}

/* ---- exceptions ---- */

static const heft_exception_t *find_exception(const heft_contract_t *c, const heft_exception_t *e)
{
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        if (c->exceptions[i].kind == e->kind && strcmp(c->exceptions[i].pattern, e->pattern) == 0 &&
            heft__exception_compare_boxes(&c->exceptions[i], e) == 0) {
            return &c->exceptions[i];
        }
    }
    return NULL;
}

static heft_status_t add_exception(const comparer_t *c, const heft_exception_t *was,
                                   const heft_exception_t *is)
{
    const heft_exception_t *any = was != NULL ? was : is;
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "exception %s \"%s\"", heft__exception_kind_name(any->kind),
                      any->pattern);
    for (int32_t k = 0; k < any->n_dims; k++) {
        heft__text_printf(&text, "%s%lld..%lld", k > 0 ? ", " : " [", (long long)any->begin[k],
                          (long long)any->end[k]);
    }
    heft__text_put(&text, any->n_dims > 0 ? ")" : "");
    if (was == NULL || is == NULL) {
        heft__text_put(&text, was == NULL ? " added: " : " gone; its reason was ");
        put_quoted(&text, any->reason, strlen(any->reason));
    } else if (strcmp(was->reason, is->reason) != 0) {
        heft__text_put(&text, ": its reason was ");
        put_quoted(&text, was->reason, strlen(was->reason));
        heft__text_put(&text, ", is ");
        put_quoted(&text, is->reason, strlen(is->reason));
    } else {
        heft__text_put(&text,
                       is->is_optional != 0 ? ": is optional now" : ": is no longer optional");
    }
    return add(c, HEFT_DRIFT_EXCEPTION, any->pattern, "", &text);
}

static heft_status_t compare_exceptions(const comparer_t *c)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < c->first->n_exceptions && status == HEFT_OK; i++) {
        const heft_exception_t *was = &c->first->exceptions[i];
        const heft_exception_t *is = find_exception(c->second, was);
        bool is_equal = is != NULL && strcmp(was->reason, is->reason) == 0 &&
                        was->is_optional == is->is_optional;
        status = is_equal ? HEFT_OK : add_exception(c, was, is);
    }
    for (uint32_t i = 0; i < c->second->n_exceptions && status == HEFT_OK; i++) {
        const heft_exception_t *is = &c->second->exceptions[i];
        status = find_exception(c->first, is) != NULL ? HEFT_OK : add_exception(c, NULL, is);
    }
    return status;
}

/* ---- ranks, destinations, plans ---- */

static heft_status_t compare_n_ranks(const comparer_t *c)
{
    if (c->first->n_ranks == c->second->n_ranks) {
        return HEFT_OK;
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "ranks: were %u, are %u", c->first->n_ranks, c->second->n_ranks);
    return add(c, HEFT_DRIFT_RANKS, "ranks", "", &text);
}

static heft_status_t add_one_sided(const comparer_t *c, const char *what, bool is_gone)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s: %s", what,
                      is_gone ? "was recorded, is not" : "was not recorded, is");
    return add(c, HEFT_DRIFT_MAPPING, what, "", &text);
}

static heft_status_t compare_destinations(const comparer_t *c)
{
    const heft_contract_t *a = c->first;
    const heft_contract_t *b = c->second;
    if ((a->n_destinations > 0) != (b->n_destinations > 0)) {
        return add_one_sided(c, "destination", a->n_destinations > 0);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < a->n_ranks && r < b->n_ranks && a->n_destinations > 0; r++) {
        char prefix[48];
        (void)snprintf(prefix, sizeof prefix, "destination rank %u", r);
        const heft_manifest_t *was = heft_contract_get_destination(a, r);
        const heft_manifest_t *is = heft_contract_get_destination(b, r);
        if (status == HEFT_OK &&
            strcmp(heft_manifest_get_digest(was), heft_manifest_get_digest(is)) != 0) {
            status = heft__drift_add_manifests(c->drift, prefix, was, is, c->err);
        }
    }
    return status;
}

/* All inputs are equal. */
static heft_status_t compare_plans(const comparer_t *c)
{
    uint32_t n_changed = 0;
    uint32_t first = 0;
    for (uint32_t r = c->first->n_ranks; r-- > 0;) {
        if (strcmp(c->first->ranks[r].plan, c->second->ranks[r].plan) != 0) {
            first = r;
            n_changed++;
        }
    }
    if (n_changed == 0 && plans_are_equal(c)) {
        return HEFT_OK;
    }
    heft__text_t text;
    heft__text_init(&text);
    if (n_changed == 0) {
        heft__text_printf(&text, "plan: was %.16s.., is %.16s.., every rank's is equal",
                          c->first->plan, c->second->plan);
    } else {
        heft__text_printf(&text, "plan of rank %u: was %.16s.., is %.16s..", first,
                          c->first->ranks[first].plan, c->second->ranks[first].plan);
    }
    if (n_changed > 1) {
        heft__text_printf(&text, " (%u ranks in all)", n_changed);
    }
    heft__text_put(&text, "; manifests, recipe, bindings and exceptions are equal: heft itself "
                          "maps otherwise");
    return add(c, HEFT_DRIFT_PLAN, "plan", "", &text);
}

static heft_status_t add_change_of_kind(const comparer_t *c)
{
    const char *names[] = { "a recipe", "a traced loader" };
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "mapping: was %s, is %s", names[c->first->n_tapes > 0],
                      names[c->second->n_tapes > 0]);
    return add(c, HEFT_DRIFT_MAPPING, "mapping", "", &text);
}

static heft_status_t compare_mappings(const comparer_t *c)
{
    bool was = c->first->has_mapping;
    bool is = c->second->has_mapping;
    if (was != is) {
        return add_one_sided(c, "mapping", was);
    }
    if (!was) {
        return HEFT_OK;
    }
    if ((c->first->n_tapes > 0) != (c->second->n_tapes > 0)) {
        return add_change_of_kind(c);
    }
    const bool is_traced = c->first->n_tapes > 0;
    heft_status_t status = is_traced ? heft__contract_compare_loaders(c) : compare_recipes(c);
    status = status == HEFT_OK && !is_traced ? compare_bindings(c) : status;
    status = status == HEFT_OK ? compare_n_ranks(c) : status;
    status = status == HEFT_OK ? compare_exceptions(c) : status;
    status = status == HEFT_OK ? compare_destinations(c) : status;
    if (status == HEFT_OK && is_traced) {
        return heft__contract_compare_plans(c);
    }
    return status == HEFT_OK && heft_drift_get_n(c->drift) == 0 ? compare_plans(c) : status;
}

heft_status_t heft_contract_compare(const heft_contract_t *first, const heft_contract_t *second,
                                    heft_drift_t **drift_out, heft_error_t *err)
{
    comparer_t c = { .first = first, .second = second, .err = err };
    /* a traced loader's two sides mostly have the same names: a line says which side it is of */
    const char *prefix = first->n_tapes > 0 && second->n_tapes > 0 ? "source" : "";
    heft_status_t status = heft__drift_create_empty(&c.drift, err);
    if (status == HEFT_OK) {
        status = heft__drift_add_manifests(c.drift, prefix, first->manifest, second->manifest, err);
    }
    status = status == HEFT_OK ? compare_mappings(&c) : status;
    if (status != HEFT_OK) {
        heft_drift_destroy(c.drift);
        return status;
    }
    heft__drift_sort(c.drift);
    *drift_out = c.drift;
    return HEFT_OK;
}
