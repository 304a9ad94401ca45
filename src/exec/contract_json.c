/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON form of a contract (docs/formats/contract.md). The writer gives what people change a
 * line of its own: each line of the recipe, each exception, each rank, each tensor. The reader is
 * strict, and the digest must be that of the content.
 */
#include "exec/contract_impl.h"

#include <jansson.h>
#include <string.h>

#include "format/format.h"
#include "recipe/recipe.h"

/* ---- writing ---- */

static void put_lines(heft__text_t *out, const char *text)
{
    heft__text_put(out, "      \"lines\": [\n");
    for (;;) {
        size_t n = strcspn(text, "\n");
        char *line = heft__strndup(text, n);
        out->failed = out->failed || line == NULL;
        heft__text_put(out, "        ");
        heft__text_put_json(out, line != NULL ? line : "");
        heft__text_put(out, text[n] == '\n' ? ",\n" : "\n      ]\n");
        heft__free(line);
        if (text[n] == '\0') {
            return;
        }
        text += n + 1;
    }
}

static void put_exception(heft__text_t *out, const heft_exception_t *e)
{
    heft__text_printf(out, "{\"kind\": \"%s\", \"pattern\": ", heft__exception_kind_name(e->kind));
    heft__text_put_json(out, e->pattern);
    heft__text_put(out, ", \"reason\": ");
    heft__text_put_json(out, e->reason);
    heft__text_put(out, e->is_optional != 0 ? ", \"optional\": true}" : "}");
}

static void put_mapping(heft__text_t *out, const heft_contract_t *c)
{
    heft__text_put(out, "  \"mapping\": {\n    \"recipe\": {\n      \"name\": ");
    heft__text_put_json(out, c->recipe_name);
    heft__text_put(out, ",\n");
    put_lines(out, c->recipe_text);
    heft__text_printf(out, "    },\n    \"bindings\": %s,\n    \"exceptions\": [", c->bindings);
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        heft__text_put(out, i > 0 ? ",\n      " : "\n      ");
        put_exception(out, &c->exceptions[i]);
    }
    heft__text_printf(out, "%s],\n    \"plan\": \"%s\",\n    \"ranks\": [",
                      c->n_exceptions > 0 ? "\n    " : "", c->plan);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        heft__text_printf(out, "%s\n      {\"plan\": \"%s\"", r > 0 ? "," : "", c->ranks[r].plan);
        if (c->n_destinations > 0) {
            heft__text_printf(out, ", \"destination\": %u", c->ranks[r].destination);
        }
        heft__text_put(out, "}");
    }
    heft__text_put(out, "\n    ]\n  },\n");
}

static heft_status_t put_manifest(heft__text_t *out, const heft_manifest_t *manifest,
                                  heft_error_t *err)
{
    char *text = NULL;
    heft_status_t status = heft_manifest_encode(manifest, &text, err);
    if (status == HEFT_OK) {
        heft__text_put_n(out, text, strlen(text) - 1); /* without the line's end */
    }
    heft__free(text);
    return status;
}

heft_status_t heft_contract_encode(const heft_contract_t *contract, char **text_out,
                                   heft_error_t *err)
{
    heft__text_t out;
    heft__text_init(&out);
    heft__text_printf(&out, "{\n  \"heft_contract\": %d,\n  \"digest\": \"%s\",\n",
                      (int)HEFT__CONTRACT_FORMAT, contract->digest);
    if (contract->recipe_name != NULL) {
        put_mapping(&out, contract);
    }
    heft__text_put(&out, "  \"manifest\": ");
    heft_status_t status = put_manifest(&out, contract->manifest, err);
    for (uint32_t i = 0; i < contract->n_destinations && status == HEFT_OK; i++) {
        heft__text_put(&out, i > 0 ? ",\n" : ",\n  \"destinations\": [\n");
        status = put_manifest(&out, contract->destinations[i], err);
    }
    heft__text_put(&out, contract->n_destinations > 0 ? "\n  ]\n}\n" : "\n}\n");
    char *text = status == HEFT_OK ? heft__text_take(&out) : NULL;
    heft__text_fini(&out);
    if (text == NULL) {
        return status != HEFT_OK ? status : heft__error_nomem(err, 0);
    }
    *text_out = text;
    return HEFT_OK;
}

/* ---- reading ---- */

typedef struct reader {
    heft_contract_t *contract;
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
    for (int k = HEFT_EXCEPTION_UNUSED; name != NULL && k <= HEFT_EXCEPTION_EQUAL; k++) {
        if (strcmp(heft__exception_kind_name((heft_exception_kind_t)k), name) == 0) {
            return (heft_exception_kind_t)k;
        }
    }
    return (heft_exception_kind_t)0;
}

static heft_status_t read_exception(const reader_t *r, json_t *object, heft_exception_t *out)
{
    static const char *const known[] = { "kind", "pattern", "reason", "optional", NULL };
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
                     "unused, untouched, derived, frozen, elsewhere or equal");
    }
    if (out->pattern[0] == '\0' || out->reason[0] == '\0') {
        return wrong(r, "exception", out->reason[0] == '\0' ? "reason" : "pattern", "not empty");
    }
    return optional == NULL || json_is_true(optional)
               ? HEFT_OK
               : wrong(r, "exception", "optional", "true, or left out");
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

static heft_status_t read_rank(const reader_t *r, json_t *object, heft__contract_rank_t *out)
{
    static const char *const known[] = { "plan", "destination", NULL };
    const uint32_t n = r->contract->n_destinations;
    heft_status_t status = check_keys(r, object, known, "a rank");
    if (status == HEFT_OK) {
        status = read_digest(r, object, "rank", "plan", out->plan);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const json_t *value = json_object_get(object, "destination");
    const json_int_t index = json_integer_value(value);
    if (n == 0 && value != NULL) {
        return wrong(r, "rank", "destination", "left out: there are no destinations");
    }
    if (n > 0 && (!json_is_integer(value) || index < 0 || index >= (json_int_t)n)) {
        return wrong(r, "rank", "destination", "the index of one of the destinations");
    }
    out->destination = (uint32_t)index;
    return HEFT_OK;
}

/* Destinations are all different, and numbered as ranks first name them. */
static heft_status_t check_destinations(const reader_t *r)
{
    const heft_contract_t *c = r->contract;
    uint32_t n_seen = 0;
    for (uint32_t i = 0; i < c->n_ranks && c->n_destinations > 0; i++) {
        if (c->ranks[i].destination > n_seen) {
            break;
        }
        n_seen += c->ranks[i].destination == n_seen;
    }
    bool is_good = n_seen == c->n_destinations;
    for (uint32_t i = 0; i < c->n_destinations && is_good; i++) {
        for (uint32_t k = 0; k < i && is_good; k++) {
            is_good = strcmp(heft_manifest_get_digest(c->destinations[i]),
                             heft_manifest_get_digest(c->destinations[k])) != 0;
        }
    }
    return is_good ? HEFT_OK
                   : heft__error_set(r->err, HEFT_ERR_FORMAT,
                                     "contract: \"destinations\" must all differ, and stand in "
                                     "the order in which ranks first use them");
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

static heft_status_t read_mapping(const reader_t *r, json_t *mapping)
{
    static const char *const known[] = {
        "recipe", "bindings", "exceptions", "plan", "ranks", NULL
    };
    heft_status_t status = check_keys(r, mapping, known, "the mapping");
    if (status == HEFT_OK) {
        status = read_recipe(r, json_object_get(mapping, "recipe"));
    }
    if (status == HEFT_OK) {
        status = read_bindings(r, json_object_get(mapping, "bindings"));
    }
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

static heft_status_t check_format(const reader_t *r, const json_t *root)
{
    const json_t *format = json_object_get(root, "heft_contract");
    if (!json_is_integer(format)) {
        return wrong(r, "top level", "heft_contract", "the format version, an integer");
    }
    return json_integer_value(format) == HEFT__CONTRACT_FORMAT
               ? HEFT_OK
               : heft__error_set(r->err, HEFT_ERR_UNSUPPORTED,
                                 "contract: format version %lld, this library reads %d",
                                 (long long)json_integer_value(format), (int)HEFT__CONTRACT_FORMAT);
}

static heft_status_t read_root(const reader_t *r, json_t *root)
{
    static const char *const known[] = { "heft_contract", "digest",       "manifest",
                                         "mapping",       "destinations", NULL };
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
    json_t *mapping = json_object_get(root, "mapping");
    if (status == HEFT_OK && mapping != NULL) {
        status = read_mapping(r, mapping);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft__contract_finish(r->contract);
    return strcmp(digest, r->contract->digest) == 0
               ? HEFT_OK
               : heft__error_set(r->err, HEFT_ERR_FORMAT,
                                 "contract: \"digest\" is %s, the content's %s; was it edited?",
                                 digest, r->contract->digest);
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
