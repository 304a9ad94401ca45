/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading contracts (docs/formats/contract.md). The reader is strict: keys, types, the order of
 * what ranks share, and the digest must be right. It proves nothing.
 */
#include "exec/contract_impl.h"

#include <jansson.h>
#include <string.h>

#include "format/format.h"
#include "recipe/recipe.h"
#include "tape/tape.h"

typedef struct reader {
    heft_contract_t *contract;
    uint32_t n_tapes; /* in the text */
    heft_error_t *err;
} reader_t;

static heft_status_t wrong(const reader_t *r, const char *where, const char *key,
                           const char *expected)
{
    return heft__error_set(r->err, HEFT_ERR_FORMAT, "contract: %s: \"%s\" must be %s", where, key,
                           expected);
}

static heft_status_t check_keys(const reader_t *r, json_t *object, const char *const *known,
                                const char *where)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        return heft__error_set(r->err, HEFT_ERR_FORMAT, "contract: %s must be an object", where);
    }
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            return heft__error_set(r->err, HEFT_ERR_FORMAT, "contract: unknown key \"%.80s\" in %s",
                                   key, where);
        }
    }
    return HEFT_OK;
}

/* A text without zero bytes, kept in the arena. */
static heft_status_t read_text(const reader_t *r, const json_t *object, const char *where,
                               const char *key, const char **out)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) != json_string_length(value)) {
        return wrong(r, where, key, "a text");
    }
    *out = heft__arena_strndup(&r->contract->arena, text, strlen(text));
    return *out != NULL ? HEFT_OK : heft__error_nomem(r->err, strlen(text));
}

static heft_status_t read_digest(const reader_t *r, const json_t *object, const char *where,
                                 const char *key, char out[HEFT__CONTRACT_DIGEST])
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    bool is_digest = text != NULL && json_string_length(value) == HEFT__CONTRACT_DIGEST - 1 &&
                     strspn(text, "0123456789abcdef") == HEFT__CONTRACT_DIGEST - 1;
    if (!is_digest) {
        return wrong(r, where, key, "64 lower-case hex digits");
    }
    memcpy(out, text, HEFT__CONTRACT_DIGEST);
    return HEFT_OK;
}

static heft_status_t read_recipe(const reader_t *r, json_t *recipe)
{
    static const char *const known[] = { "name", "lines", NULL };
    heft_contract_t *c = r->contract;
    heft_status_t status = check_keys(r, recipe, known, "recipe");
    if (status == HEFT_OK) {
        status = read_text(r, recipe, "recipe", "name", &c->recipe_name);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const json_t *lines = json_object_get(recipe, "lines");
    bool is_good = json_is_array(lines) && json_array_size(lines) > 0;
    heft__text_t text;
    heft__text_init(&text);
    for (size_t i = 0; is_good && i < json_array_size(lines); i++) {
        const json_t *value = json_array_get(lines, i);
        const char *line = json_string_value(value);
        is_good =
            line != NULL && strlen(line) == json_string_length(value) && strchr(line, '\n') == NULL;
        heft__text_put(&text, i > 0 ? "\n" : "");
        heft__text_put(&text, is_good ? line : "");
    }
    c->recipe_text = text.failed ? NULL : heft__arena_strndup(&c->arena, text.data, text.len);
    heft__text_fini(&text);
    if (!is_good) {
        return wrong(r, "recipe", "lines", "an array of texts, a line each");
    }
    return c->recipe_text != NULL ? HEFT_OK : heft__error_nomem(r->err, 0);
}

/* In the form in which bindings are written. */
static heft_status_t read_bindings(const reader_t *r, json_t *value)
{
    if (!json_is_object(value)) {
        return wrong(r, "mapping", "bindings", "an object");
    }
    heft_bindings_t *bindings = NULL;
    heft_error_t cause = HEFT_ERROR_INIT;
    char *text = NULL;
    heft_status_t status = heft__bindings_decode_json(value, &bindings, &cause);
    if (status == HEFT_OK) {
        status = heft_bindings_encode(bindings, &text, &cause);
    }
    heft_bindings_destroy(bindings);
    if (status != HEFT_OK) {
        return heft__error_set(r->err, status == HEFT_ERR_NOMEM ? status : HEFT_ERR_FORMAT,
                               "contract: %s", cause.message);
    }
    r->contract->bindings = heft__arena_strndup(&r->contract->arena, text, strlen(text));
    heft__free(text);
    return r->contract->bindings != NULL ? HEFT_OK : heft__error_nomem(r->err, 0);
}

static heft_exception_kind_t kind_from_name(const char *name)
{
    for (int k = HEFT_EXCEPTION_UNUSED; name != NULL && k <= HEFT_EXCEPTION_TOGETHER; k++) {
        if (strcmp(heft__exception_kind_name((heft_exception_kind_t)k), name) == 0) {
            return (heft_exception_kind_t)k;
        }
    }
    return (heft_exception_kind_t)0;
}

/* [[begin, end], ..]: a half-open range for each dimension. */
static heft_status_t read_box(const reader_t *r, const json_t *box, heft_exception_t *out)
{
    const size_t n = json_array_size(box);
    bool is_good = box == NULL || (json_is_array(box) && n > 0 && n <= HEFT_MAX_DIMS);
    for (size_t k = 0; k < n && is_good; k++) {
        const json_t *range = json_array_get(box, k);
        const json_t *begin = json_array_get(range, 0);
        const json_t *end = json_array_get(range, 1);
        is_good = json_array_size(range) == 2 && json_is_integer(begin) && json_is_integer(end) &&
                  json_integer_value(begin) >= 0 &&
                  json_integer_value(begin) < json_integer_value(end);
        out->begin[k] = json_integer_value(begin);
        out->end[k] = json_integer_value(end);
    }
    out->n_dims = (int32_t)n;
    return is_good ? HEFT_OK
                   : wrong(r, "exception", "box", "[begin, end] for each dimension, or left out");
}

static heft_status_t read_exception(const reader_t *r, json_t *object, heft_exception_t *out)
{
    static const char *const known[] = { "kind", "pattern", "reason", "optional", "box", NULL };
    heft_status_t status = check_keys(r, object, known, "an exception");
    if (status == HEFT_OK) {
        status = read_text(r, object, "exception", "pattern", &out->pattern);
    }
    if (status == HEFT_OK) {
        status = read_text(r, object, "exception", "reason", &out->reason);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const json_t *optional = json_object_get(object, "optional");
    out->kind = kind_from_name(json_string_value(json_object_get(object, "kind")));
    out->where = "";
    out->is_optional = optional != NULL;
    if (out->kind == 0) {
        return wrong(r, "exception", "kind",
                     "unused, untouched, derived, frozen, elsewhere, equal or together");
    }
    if (out->pattern[0] == '\0' || out->reason[0] == '\0') {
        return wrong(r, "exception", out->reason[0] == '\0' ? "reason" : "pattern", "not empty");
    }
    if (optional != NULL && !json_is_true(optional)) {
        return wrong(r, "exception", "optional", "true, or left out");
    }
    return read_box(r, json_object_get(object, "box"), out);
}

/* An array, and room for as many items of its kind. */
static heft_status_t open_list(const reader_t *r, const json_t *object, const char *key,
                               size_t item_bytes, const json_t **list_out, void **items_out)
{
    const json_t *list = json_object_get(object, key);
    if (!json_is_array(list) || json_array_size(list) > INT32_MAX) {
        return wrong(r, "mapping", key, "an array of objects");
    }
    *list_out = list;
    *items_out = heft__arena_calloc(&r->contract->arena, json_array_size(list), item_bytes);
    return *items_out != NULL ? HEFT_OK
                              : heft__error_nomem(r->err, json_array_size(list) * item_bytes);
}

static heft_status_t read_exceptions(const reader_t *r, const json_t *mapping)
{
    heft_contract_t *c = r->contract;
    const json_t *list = NULL;
    void *items = NULL;
    heft_status_t status =
        open_list(r, mapping, "exceptions", sizeof *c->exceptions, &list, &items);
    c->exceptions = items;
    for (size_t i = 0; status == HEFT_OK && i < json_array_size(list); i++) {
        status = read_exception(r, json_array_get(list, i), &c->exceptions[i]);
        c->n_exceptions++;
    }
    return status;
}

/* The index of one of n things that ranks share; left out where there are none. */
static heft_status_t read_index(const reader_t *r, const json_t *object, const char *key,
                                uint32_t n, uint32_t *out)
{
    const json_t *value = json_object_get(object, key);
    const json_int_t index = json_integer_value(value);
    if (n == 0 && value != NULL) {
        return wrong(r, "rank", key, "left out: there are none");
    }
    if (n > 0 && (!json_is_integer(value) || index < 0 || index >= (json_int_t)n)) {
        return wrong(r, "rank", key, "the index of one that is there");
    }
    *out = (uint32_t)index;
    return HEFT_OK;
}

static heft_status_t read_rank(const reader_t *r, json_t *object, heft__contract_rank_t *out)
{
    static const char *const known[] = { "plan", "destination", "tape", NULL };
    const heft_contract_t *c = r->contract;
    heft_status_t status = check_keys(r, object, known, "a rank");
    if (status == HEFT_OK) {
        status = read_digest(r, object, "rank", "plan", out->plan);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = read_index(r, object, "destination", c->n_destinations, &out->destination);
    return status == HEFT_OK ? read_index(r, object, "tape", r->n_tapes, &out->tape) : status;
}

/* What ranks share is numbered as they first name it, and each of it is used. */
static heft_status_t check_order(const reader_t *r, const char *key, bool is_tape, uint32_t n)
{
    const heft_contract_t *c = r->contract;
    uint32_t n_seen = 0;
    for (uint32_t i = 0; i < c->n_ranks && n > 0; i++) {
        const uint32_t index = is_tape ? c->ranks[i].tape : c->ranks[i].destination;
        if (index > n_seen) {
            break;
        }
        n_seen += index == n_seen;
    }
    return n_seen == n ? HEFT_OK
                       : heft__error_set(r->err, HEFT_ERR_FORMAT,
                                         "contract: \"%s\" must stand in the order in which ranks "
                                         "first use them, each used",
                                         key);
}

static heft_status_t check_destinations(const reader_t *r)
{
    const heft_contract_t *c = r->contract;
    for (uint32_t i = 0; i < c->n_destinations; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(heft_manifest_get_digest(c->destinations[i]),
                       heft_manifest_get_digest(c->destinations[k])) == 0) {
                return heft__error_set(r->err, HEFT_ERR_FORMAT,
                                       "contract: \"destinations\" must all differ");
            }
        }
    }
    return check_order(r, "destinations", false, c->n_destinations);
}

static heft_status_t read_ranks(const reader_t *r, const json_t *mapping)
{
    heft_contract_t *c = r->contract;
    const json_t *list = NULL;
    void *items = NULL;
    heft_status_t status = open_list(r, mapping, "ranks", sizeof *c->ranks, &list, &items);
    c->ranks = items;
    if (status == HEFT_OK && json_array_size(list) == 0) {
        return wrong(r, "mapping", "ranks", "one object for each rank");
    }
    for (size_t i = 0; status == HEFT_OK && i < json_array_size(list); i++) {
        status = read_rank(r, json_array_get(list, i), &c->ranks[i]);
        c->n_ranks++;
    }
    return status == HEFT_OK ? check_destinations(r) : status;
}

static heft_status_t read_attrs(const reader_t *r, json_t *object)
{
    if (!json_is_object(object)) {
        return wrong(r, "loader", "attributes", "an object of texts");
    }
    const char *key;
    json_t *value;
    uint32_t n = 0;
    heft_contract_attr_t *attrs = heft__calloc(json_object_size(object) + 1, sizeof *attrs);
    if (attrs == NULL) {
        return heft__error_nomem(r->err, json_object_size(object) * sizeof *attrs);
    }
    heft_status_t status = HEFT_OK;
    json_object_foreach(object, key, value)
    {
        attrs[n].key = key;
        if (status == HEFT_OK) {
            status = read_text(r, object, "attributes", key, &attrs[n++].value);
        }
    }
    status = status == HEFT_OK ? heft__contract_keep_attrs(r->contract, attrs, n, r->err) : status;
    heft__free(attrs);
    return status;
}

static heft_status_t read_loader(const reader_t *r, json_t *loader)
{
    static const char *const known[] = { "first_rank", "partial", "attributes", NULL };
    heft_contract_t *c = r->contract;
    heft_status_t status = check_keys(r, loader, known, "the loader");
    if (status != HEFT_OK) {
        return status;
    }
    const json_t *first = json_object_get(loader, "first_rank");
    const json_t *partial = json_object_get(loader, "partial");
    if (!json_is_integer(first) || json_integer_value(first) < 0 ||
        json_integer_value(first) > INT32_MAX) {
        return wrong(r, "loader", "first_rank", "the number of a rank");
    }
    if (partial != NULL && !json_is_true(partial)) {
        return wrong(r, "loader", "partial", "true, or left out");
    }
    if (r->n_tapes == 0 || c->n_destinations == 0) {
        return wrong(r, "top level", r->n_tapes == 0 ? "tapes" : "destinations",
                     "there: the mapping is a loader");
    }
    c->first_rank = (uint32_t)json_integer_value(first);
    c->is_partial = partial != NULL;
    return read_attrs(r, json_object_get(loader, "attributes"));
}

static heft_status_t read_source_of_mapping(const reader_t *r, json_t *mapping)
{
    json_t *loader = json_object_get(mapping, "loader");
    if (loader != NULL) {
        bool is_both = json_object_get(mapping, "recipe") != NULL ||
                       json_object_get(mapping, "bindings") != NULL;
        return is_both ? wrong(r, "mapping", "loader", "left out beside a recipe or bindings")
                       : read_loader(r, loader);
    }
    if (r->n_tapes > 0) {
        return wrong(r, "top level", "tapes", "left out: the mapping is a recipe");
    }
    heft_status_t status = read_recipe(r, json_object_get(mapping, "recipe"));
    return status == HEFT_OK ? read_bindings(r, json_object_get(mapping, "bindings")) : status;
}

static heft_status_t read_mapping(const reader_t *r, json_t *mapping)
{
    static const char *const known[] = { "recipe", "bindings", "loader", "exceptions",
                                         "plan",   "ranks",    NULL };
    heft_status_t status = check_keys(r, mapping, known, "the mapping");
    r->contract->has_mapping = true;
    status = status == HEFT_OK ? read_source_of_mapping(r, mapping) : status;
    if (status == HEFT_OK) {
        status = read_exceptions(r, mapping);
    }
    if (status == HEFT_OK) {
        status = read_digest(r, mapping, "mapping", "plan", r->contract->plan);
    }
    return status == HEFT_OK ? read_ranks(r, mapping) : status;
}

static heft_status_t read_manifest(const reader_t *r, const char *key, const json_t *value)
{
    heft_contract_t *c = r->contract;
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft__manifest_decode_json(value, &c->owned[c->n_owned], &cause);
    if (status != HEFT_OK) {
        return heft__error_set(r->err, status, "contract: %s: %s", key, cause.message);
    }
    c->n_owned++;
    return HEFT_OK;
}

static heft_status_t read_manifests(const reader_t *r, const json_t *root)
{
    heft_contract_t *c = r->contract;
    const json_t *list = json_object_get(root, "destinations");
    const size_t n = json_array_size(list);
    if (list != NULL && (n == 0 || n > INT32_MAX || json_object_get(root, "mapping") == NULL)) {
        return wrong(r, "top level", "destinations",
                     "an array of manifests beside a mapping, or left out");
    }
    c->owned = heft__arena_calloc(&c->arena, n + 1, sizeof(heft_manifest_t *));
    c->destinations = heft__arena_calloc(&c->arena, n, sizeof(heft_manifest_t *));
    if (c->owned == NULL || c->destinations == NULL) {
        return heft__error_nomem(r->err, n * sizeof(heft_manifest_t *));
    }
    heft_status_t status = read_manifest(r, "manifest", json_object_get(root, "manifest"));
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        status = read_manifest(r, "destinations", json_array_get(list, i));
        c->destinations[i] = c->owned[i + 1];
    }
    c->manifest = c->owned[0];
    c->n_destinations = (uint32_t)n;
    return status;
}

/* ---- tapes ---- */

/* One tape fills one kind of destination; *index_out is that of ranks with tape i. */
static heft_status_t find_destination(const reader_t *r, uint32_t i, uint32_t *index_out)
{
    const heft_contract_t *c = r->contract;
    bool is_found = false;
    for (uint32_t k = 0; k < c->n_ranks; k++) {
        if (c->ranks[k].tape != i) {
            continue;
        }
        if (is_found && c->ranks[k].destination != *index_out) {
            return wrong(r, "rank", "tape", "that of ranks with one destination");
        }
        *index_out = c->ranks[k].destination;
        is_found = true;
    }
    return HEFT_OK;
}

static heft_status_t read_tape(const reader_t *r, const json_t *list, uint32_t i)
{
    heft_contract_t *c = r->contract;
    uint32_t destination = 0;
    heft_tape_t *names = NULL;
    heft_tape_t *tape = NULL;
    char digest[HEFT_TAPE_DIGEST_BYTES];
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = find_destination(r, i, &destination);
    status = status == HEFT_OK ? heft__contract_make_names(c, destination, &names, r->err) : status;
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__tape_decode_json(json_array_get(list, i), names, &tape, digest, &cause);
    if (status != HEFT_OK) {
        return heft__error_set(r->err, status, "contract: tape %u: %s", i, cause.message);
    }
    return heft__contract_keep_tape(c, tape, digest) == i
               ? HEFT_OK
               : wrong(r, "top level", "tapes", "all different");
}

static heft_status_t read_tapes(const reader_t *r, const json_t *root)
{
    heft_status_t status = check_order(r, "tapes", true, r->n_tapes);
    if (status == HEFT_OK) {
        status = heft__contract_make_tape_room(r->contract, r->n_tapes, r->err);
    }
    for (uint32_t i = 0; i < r->n_tapes && status == HEFT_OK; i++) {
        status = read_tape(r, json_object_get(root, "tapes"), i);
    }
    return status;
}

/* ---- the whole ---- */

static heft_status_t check_format(const reader_t *r, const json_t *root)
{
    const json_t *format = json_object_get(root, "heft_contract");
    if (!json_is_integer(format)) {
        return wrong(r, "top level", "heft_contract", "the format version, an integer");
    }
    return json_integer_value(format) >= 1 && json_integer_value(format) <= HEFT__CONTRACT_FORMAT
               ? HEFT_OK
               : heft__error_set(r->err, HEFT_ERR_UNSUPPORTED,
                                 "contract: format version %lld, this library reads %d",
                                 (long long)json_integer_value(format), (int)HEFT__CONTRACT_FORMAT);
}

/* A contract is written in the oldest format that holds it. */
static heft_status_t check_content(const reader_t *r, const json_t *root, const char *digest)
{
    const json_int_t format = json_integer_value(json_object_get(root, "heft_contract"));
    const int needed = heft__contract_get_format(r->contract);
    if (format != needed) {
        return heft__error_set(r->err, HEFT_ERR_FORMAT,
                               "contract: \"heft_contract\" is %lld, what it holds is format %d",
                               (long long)format, needed);
    }
    heft__contract_finish(r->contract);
    return strcmp(digest, r->contract->digest) == 0
               ? HEFT_OK
               : heft__error_set(r->err, HEFT_ERR_FORMAT,
                                 "contract: \"digest\" is %s, the content's %s; was it edited?",
                                 digest, r->contract->digest);
}

/* How many tapes there are. */
static heft_status_t count_tapes(reader_t *r, const json_t *root)
{
    const json_t *list = json_object_get(root, "tapes");
    if (list != NULL &&
        (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > INT32_MAX)) {
        return wrong(r, "top level", "tapes", "an array of tapes, or left out");
    }
    if (list != NULL && json_object_get(root, "mapping") == NULL) {
        return wrong(r, "top level", "tapes", "left out without a mapping");
    }
    r->n_tapes = (uint32_t)json_array_size(list);
    return HEFT_OK;
}

static heft_status_t read_root(reader_t *r, json_t *root)
{
    static const char *const known[] = { "heft_contract", "digest", "manifest", "mapping",
                                         "destinations",  "tapes",  NULL };
    char digest[HEFT__CONTRACT_DIGEST];
    heft_status_t status = check_format(r, root);
    if (status == HEFT_OK) {
        status = check_keys(r, root, known, "the top level");
    }
    if (status == HEFT_OK) {
        status = read_digest(r, root, "top level", "digest", digest);
    }
    if (status == HEFT_OK) {
        status = read_manifests(r, root);
    }
    status = status == HEFT_OK ? count_tapes(r, root) : status;
    json_t *mapping = json_object_get(root, "mapping");
    if (status == HEFT_OK && mapping != NULL) {
        status = read_mapping(r, mapping);
    }
    status = status == HEFT_OK && r->n_tapes > 0 ? read_tapes(r, root) : status;
    return status == HEFT_OK ? check_content(r, root, digest) : status;
}

heft_status_t heft_contract_decode(const char *text, size_t n, heft_contract_t **contract_out,
                                   heft_error_t *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        if (json_error_code(&error) == json_error_out_of_memory) {
            return heft__error_nomem(err, n);
        }
        return heft__error_set(err, HEFT_ERR_FORMAT, "contract: line %d, byte %d: %s", error.line,
                               error.position, error.text);
    }
    reader_t r = { .err = err };
    heft_status_t status = heft__contract_create_empty(&r.contract, err);
    if (status == HEFT_OK) {
        status = read_root(&r, root);
    }
    json_decref(root);
    if (status != HEFT_OK) {
        heft_contract_destroy(r.contract);
        return status;
    }
    *contract_out = r.contract;
    return HEFT_OK;
}
