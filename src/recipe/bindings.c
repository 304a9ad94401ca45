/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bindings: values for `let` names, and the model's configuration. Values of lets are kept as text
 * and read by their form; the configuration is kept as JSON.
 */
#include "recipe/compile.h"
#include "heft/experts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIST_BYTES (16u << 20)

const char *heft__value_kind_name(heft__value_kind_t kind)
{
    switch (kind) {
    case VALUE_INT:
        return "integer";
    case VALUE_REAL:
        return "decimal number";
    case VALUE_BOOL:
        return "truth value";
    case VALUE_WORD:
        return "word";
    case VALUE_LIST:
        return "list";
    case VALUE_NONE:
    case VALUE_FAILED:
    default:
        return "nothing";
    }
}

const char *heft__value_text(const heft__value_t *value, char out[64])
{
    switch (value->kind) {
    case VALUE_INT:
        (void)snprintf(out, 64, "%lld", (long long)value->integer);
        break;
    case VALUE_REAL:
        (void)snprintf(out, 64, "%.17g", value->real);
        break;
    case VALUE_BOOL:
        (void)snprintf(out, 64, "%s", value->integer != 0 ? "true" : "false");
        break;
    case VALUE_WORD:
        (void)snprintf(out, 64, "\"%.*s\"", (int)(value->word.len < 50 ? value->word.len : 50),
                       value->word.data);
        break;
    case VALUE_LIST:
        (void)snprintf(out, 64, "of %lld values",
                       value->list != NULL ? (long long)json_array_size(value->list)
                                           : (long long)value->integer);
        break;
    case VALUE_NONE:
    case VALUE_FAILED:
    default:
        (void)snprintf(out, 64, "nothing");
        break;
    }
    return out;
}

static bool is_number(heft__span_t text, bool *is_real_out)
{
    size_t at = text.len > 0 && text.data[0] == '-' ? 1 : 0;
    size_t n_digits = 0;
    size_t n_dots = 0;
    for (; at < text.len; at++) {
        char c = text.data[at];
        if (c == '.' && n_digits > 0 && at + 1 < text.len) {
            n_dots++;
        } else if (c < '0' || c > '9') {
            return false;
        } else {
            n_digits++;
        }
    }
    *is_real_out = n_dots == 1;
    return n_digits > 0 && n_dots <= 1 && text.len < 60;
}

bool heft__value_parse(heft__span_t text, heft__value_t *value_out)
{
    heft__value_t value = { .kind = VALUE_WORD, .word = text };
    bool is_real = false;
    bool is_true = text.len == 4 && memcmp(text.data, "true", 4) == 0;
    if (is_true || (text.len == 5 && memcmp(text.data, "false", 5) == 0)) {
        value = (heft__value_t){ .kind = VALUE_BOOL, .integer = is_true };
    } else if (is_number(text, &is_real)) {
        char digits[64];
        memcpy(digits, text.data, text.len);
        digits[text.len] = '\0';
        errno = 0;
        value.kind = is_real ? VALUE_REAL : VALUE_INT;
        value.real = is_real ? strtod(digits, NULL) : 0;
        value.integer = is_real ? 0 : strtoll(digits, NULL, 10);
        if (errno == ERANGE) {
            return false;
        }
    }
    *value_out = value;
    return true;
}

/* ---- life ---- */

heft_status_t heft_bindings_create(heft_bindings_t **bindings_out, heft_error_t *err)
{
    heft_bindings_t *bindings = heft__calloc(1, sizeof *bindings);
    if (bindings == NULL) {
        return heft__error_nomem(err, sizeof *bindings);
    }
    *bindings_out = bindings;
    return HEFT_OK;
}

void heft_bindings_destroy(heft_bindings_t *bindings)
{
    if (bindings == NULL) {
        return;
    }
    for (size_t i = 0; i < bindings->n; i++) {
        heft__free(bindings->items[i].name);
        heft__free(bindings->items[i].text);
        json_decref(bindings->items[i].list);
    }
    heft__free(bindings->items);
    json_decref(bindings->config);
    json_decref(bindings->env);
    heft__free(bindings);
}

const heft__binding_t *heft__bindings_find(const heft_bindings_t *bindings, const char *name)
{
    for (size_t i = 0; bindings != NULL && i < bindings->n; i++) {
        if (strcmp(bindings->items[i].name, name) == 0) {
            return &bindings->items[i];
        }
    }
    return NULL;
}

bool heft__is_let_name(const char *name)
{
    for (size_t i = 0; name[i] != '\0'; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) {
            return false;
        }
    }
    return name[0] != '\0';
}

/* NAME, or RECIPE.NAME: of one recipe of a chain. */
static bool is_binding_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    bool is_good = heft__is_let_name(dot != NULL ? dot + 1 : name) && dot != name;
    for (const char *at = name; dot != NULL && at < dot && is_good; at++) {
        is_good = (unsigned char)*at > ' ' && strchr("\"\x7f=", *at) == NULL;
    }
    return is_good;
}

/* What must hold of a value's text: one line, since it goes into messages and files. */
static heft_status_t check_binding(const char *name, const char *text, heft_error_t *err)
{
    heft__value_t value;
    if (!is_binding_name(name)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "\"%.60s\" is no name of a let", name);
    }
    size_t n = strlen(text);
    if (text[0] == '[') {
        return n <= MAX_LIST_BYTES
                   ? HEFT_OK
                   : heft__error_set(err, HEFT_ERR_LIMIT,
                                     "value of \"%s\": a list of %zu bytes, at most %u", name, n,
                                     MAX_LIST_BYTES);
    }
    if (n == 0 || n > 256 || strpbrk(text, "\n\r\"") != NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "value of \"%s\": 1 to 256 bytes on one line without quotes wanted",
                               name);
    }
    if (!heft__value_parse((heft__span_t){ text, n }, &value)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "value of \"%s\": %s is beyond 64 bits",
                               name, text);
    }
    return HEFT_OK;
}

/* Takes text and list. */
static heft_status_t put_binding(heft_bindings_t *bindings, const char *name, char *text,
                                 json_t *list, heft_error_t *err)
{
    for (size_t i = 0; i < bindings->n; i++) {
        heft__binding_t *item = &bindings->items[i];
        if (strcmp(item->name, name) == 0) {
            heft__free(item->text);
            json_decref(item->list);
            item->text = text;
            item->list = list;
            return HEFT_OK;
        }
    }
    char *copy = heft__strdup(name);
    void *items = bindings->items;
    if (copy == NULL ||
        !heft__grow(&items, &bindings->cap, bindings->n + 1, sizeof *bindings->items)) {
        heft__free(copy);
        heft__free(text);
        json_decref(list);
        return heft__error_nomem(err, strlen(name));
    }
    bindings->items = items;
    bindings->items[bindings->n++] = (heft__binding_t){ .name = copy, .text = text, .list = list };
    return HEFT_OK;
}

heft_status_t heft_bindings_set(heft_bindings_t *bindings, const char *name, const char *value,
                                heft_error_t *err)
{
    json_t *list = NULL;
    heft_status_t status = check_binding(name, value, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (value[0] == '[') {
        json_error_t error;
        list = json_loads(value, JSON_REJECT_DUPLICATES, &error);
        if (list == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "value of \"%s\": column %d: %s", name,
                                   error.column, error.text);
        }
    }
    char *text = heft__strdup(value);
    if (text == NULL) {
        json_decref(list);
        return heft__error_nomem(err, strlen(value));
    }
    return put_binding(bindings, name, text, list, err);
}

/* The value in a file. An object is a table of experts in its own form. */
static heft_status_t set_text(heft_bindings_t *bindings, const char *name, const char *value,
                              heft_error_t *err)
{
    if (value[0] != '{') {
        return heft_bindings_set(bindings, name, value, err);
    }
    heft_expert_table_info_t info;
    char *text = NULL;
    heft_status_t status = heft_expert_table_check(value, strlen(value), NULL, &info, &text, err);
    if (status == HEFT_OK) {
        status = heft_bindings_set(bindings, name, text, err);
    }
    heft_string_free(text);
    return status;
}

heft_status_t heft_bindings_load(heft_bindings_t *bindings, const char *name, const char *path,
                                 heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = heft__recipe_read(path, &text, err);
    if (status == HEFT_OK && memchr(text.data, '\0', text.len) != NULL) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "\"%s\" holds a zero byte", path);
    }
    if (status == HEFT_OK) {
        heft_error_t inner = HEFT_ERROR_INIT;
        while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1]) != NULL) {
            text.data[--text.len] = '\0';
        }
        status = set_text(bindings, name, text.data + strspn(text.data, " \t\r\n"), &inner);
        if (status != HEFT_OK) {
            status = heft__error_set(err, status, "\"%s\": %s", path, inner.message);
        }
    }
    heft__text_fini(&text);
    return status;
}

/* ---- configuration ---- */

static heft_status_t json_failed(const json_error_t *error, const char *what, heft_error_t *err)
{
    if (json_error_code(error) == json_error_out_of_memory) {
        return heft__error_set(err, HEFT_ERR_NOMEM, "out of memory while reading %s", what);
    }
    return heft__error_set(err, HEFT_ERR_FORMAT, "%s: line %d column %d: %s", what, error->line,
                           error->column, error->text);
}

heft_status_t heft_bindings_set_config(heft_bindings_t *bindings, const char *json, size_t n,
                                       heft_error_t *err)
{
    json_error_t error;
    json_t *config = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
    if (config == NULL) {
        return json_failed(&error, "configuration", err);
    }
    if (!json_is_object(config)) {
        json_decref(config);
        return heft__error_set(err, HEFT_ERR_FORMAT, "configuration is no JSON object");
    }
    json_decref(bindings->config);
    bindings->config = config;
    return HEFT_OK;
}

heft_status_t heft_bindings_load_config(heft_bindings_t *bindings, const char *path,
                                        heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = heft__recipe_read(path, &text, err);
    if (status == HEFT_OK) {
        heft_error_t inner = HEFT_ERROR_INIT;
        status = heft_bindings_set_config(bindings, text.data, text.len, &inner);
        if (status != HEFT_OK) {
            status = heft__error_set(err, status, "\"%s\": %s", path, inner.message);
        }
    }
    heft__text_fini(&text);
    return status;
}

/* ---- JSON form ---- */

/* A let's value in the JSON type of its form. */
static json_t *encode_value(const heft__binding_t *binding)
{
    const char *text = binding->text;
    heft__value_t value = { 0 };
    if (binding->list != NULL) {
        return json_incref(binding->list);
    }
    (void)heft__value_parse((heft__span_t){ text, strlen(text) }, &value);
    if (value.kind == VALUE_INT) {
        char back[64];
        (void)snprintf(back, sizeof back, "%lld", (long long)value.integer);
        return strcmp(back, text) == 0 ? json_integer(value.integer) : json_string(text);
    }
    if (value.kind == VALUE_BOOL) {
        return json_boolean(value.integer);
    }
    return json_string(text);
}

/* One line, owned by the caller (heft__free); NULL without memory for *n_out bytes. */
static char *dump(const json_t *value, size_t *n_out)
{
    const size_t flags = JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17);
    const size_t n = json_dumpb(value, NULL, 0, flags);
    char *text = n > 0 ? heft__malloc(n + 1) : NULL;
    if (text != NULL) {
        (void)json_dumpb(value, text, n, flags);
        text[n] = '\0';
    }
    *n_out = n;
    return text;
}

/* Put what stands at one path of keys at the same path of `to`; false: no memory. */
static bool copy_path(const json_t *from, json_t *to, const char *path)
{
    for (;;) {
        char key[128];
        const size_t len = strcspn(path, ".");
        if (len >= sizeof key) {
            return true; /* no recipe can read it */
        }
        memcpy(key, path, len);
        key[len] = '\0';
        json_t *value = json_object_get(from, key);
        json_t *there = json_object_get(to, key);
        if (value == NULL || value == there) {
            return true;
        }
        if (path[len] == '\0' || !json_is_object(value)) {
            return json_object_set(to, key, value) == 0;
        }
        if (there == NULL && json_object_set_new(to, key, json_object()) != 0) {
            return false;
        }
        from = value;
        to = json_object_get(to, key);
        path += len + 1;
    }
}

/* The part of the configuration that a recipe reads (NULL: all of it). NULL: no memory. */
static json_t *config_read(const heft_bindings_t *bindings, const heft_recipe_t *recipe)
{
    if (bindings->config == NULL) {
        return json_object();
    }
    if (recipe == NULL) {
        return json_incref(bindings->config);
    }
    json_t *config = json_object();
    for (size_t i = 0; config != NULL && i < recipe->n_config_keys; i++) {
        if (!copy_path(bindings->config, config, recipe->config_keys[i])) {
            json_decref(config);
            return NULL;
        }
    }
    return config;
}

heft_status_t heft_bindings_encode(const heft_bindings_t *bindings, char **text_out,
                                   heft_error_t *err)
{
    return heft__bindings_encode_read(bindings, NULL, text_out, err);
}

heft_status_t heft__bindings_encode_read(const heft_bindings_t *bindings,
                                         const heft_recipe_t *recipe, char **text_out,
                                         heft_error_t *err)
{
    json_t *root = json_object();
    json_t *lets = json_object();
    bool ok = root != NULL && lets != NULL;
    for (size_t i = 0; ok && i < bindings->n; i++) {
        ok = json_object_set_new(lets, bindings->items[i].name,
                                 encode_value(&bindings->items[i])) == 0;
    }
    ok = ok && json_object_set(root, "let", lets) == 0;
    if (ok) {
        ok = json_object_set_new(root, "config", config_read(bindings, recipe)) == 0;
    }
    if (ok && bindings->env != NULL) {
        ok = json_object_set(root, "env", bindings->env) == 0;
    }
    size_t n = 0;
    char *text = ok ? dump(root, &n) : NULL;
    json_decref(lets);
    json_decref(root);
    if (text == NULL) {
        return heft__error_nomem(err, n);
    }
    *text_out = text;
    return HEFT_OK;
}

static heft_status_t decode_list(heft_bindings_t *bindings, const char *name, const json_t *value,
                                 heft_error_t *err)
{
    size_t n;
    char *text = dump(value, &n);
    heft_error_t inner = HEFT_ERROR_INIT;
    heft_status_t status = text == NULL ? heft__error_nomem(&inner, n)
                                        : heft_bindings_set(bindings, name, text, &inner);
    heft__free(text);
    if (status == HEFT_ERR_ARGUMENT) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "bindings: %s", inner.message);
    }
    return status == HEFT_OK ? HEFT_OK : heft__error_set(err, status, "%s", inner.message);
}

static heft_status_t decode_let(heft_bindings_t *bindings, const char *name, const json_t *value,
                                heft_error_t *err)
{
    char text[64];
    const char *s = text;
    if (json_is_array(value)) {
        return decode_list(bindings, name, value, err);
    }
    if (json_is_integer(value)) {
        (void)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    } else if (json_is_boolean(value)) {
        s = json_is_true(value) ? "true" : "false";
    } else if (json_is_string(value) &&
               strlen(json_string_value(value)) == json_string_length(value)) {
        s = json_string_value(value);
    } else {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "bindings: \"%.60s\" is no integer, truth value, text or list",
                               name);
    }
    heft_error_t inner = HEFT_ERROR_INIT;
    heft_status_t status = heft_bindings_set(bindings, name, s, &inner);
    if (status == HEFT_ERR_ARGUMENT) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "bindings: %s", inner.message);
    }
    return status == HEFT_OK ? HEFT_OK : heft__error_set(err, status, "%s", inner.message);
}

static heft_status_t decode_lets(heft_bindings_t *bindings, json_t *object, heft_error_t *err)
{
    const char *name;
    json_t *item;
    heft_status_t status = HEFT_OK;
    json_object_foreach(object, name, item)
    {
        status = status == HEFT_OK ? decode_let(bindings, name, item, err) : status;
    }
    return status;
}

static heft_status_t decode_root(heft_bindings_t *bindings, json_t *root, heft_error_t *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        bool is_let = strcmp(key, "let") == 0;
        bool is_env = strcmp(key, "env") == 0;
        if (!is_let && !is_env && strcmp(key, "config") != 0) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "bindings: unknown key \"%.60s\"; there are let, config, env",
                                   key);
        }
        if (!json_is_object(value)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "bindings: \"%s\" is no object", key);
        }
        heft_status_t status = is_env   ? heft__bindings_decode_env(bindings, value, err)
                               : is_let ? decode_lets(bindings, value, err)
                                        : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
        if (!is_let && !is_env) {
            bindings->config = json_incref(value);
        }
    }
    return HEFT_OK;
}

heft_status_t heft_bindings_decode(const char *text, size_t n, heft_bindings_t **bindings_out,
                                   heft_error_t *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return json_failed(&error, "bindings", err);
    }
    heft_status_t status = heft__bindings_decode_json(root, bindings_out, err);
    json_decref(root);
    return status;
}

heft_status_t heft__bindings_decode_json(json_t *root, heft_bindings_t **bindings_out,
                                         heft_error_t *err)
{
    heft_bindings_t *bindings = NULL;
    heft_status_t status = HEFT_OK;
    if (!json_is_object(root)) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "bindings are no JSON object");
    }
    if (status == HEFT_OK) {
        status = heft_bindings_create(&bindings, err);
    }
    if (status == HEFT_OK && bindings != NULL) {
        status = decode_root(bindings, root, err);
    }
    if (status != HEFT_OK) {
        heft_bindings_destroy(bindings);
        return status;
    }
    *bindings_out = bindings;
    return HEFT_OK;
}
