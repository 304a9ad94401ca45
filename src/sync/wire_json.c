/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict JSON by tables. jansson parses; what it does not check is checked here: nesting depth
 * before it recurses, integers to 2^53-1 (so that every client can read them), keys, types and
 * bounds. Storage is reached through memcpy, so that a table needs no knowledge of enum sizes.
 */
#include "sync/wire_json.h"

#include <string.h>

_Static_assert(sizeof(heft__phase_t) == sizeof(int), "ENUM fields are copied as int");
_Static_assert(sizeof(heft_status_t) == sizeof(int), "STATUS fields are copied as int");

const char *heft__json_show(const char *key, char *out)
{
    size_t n = 0;
    while (key[n] != '\0' && n < 60) {
        const unsigned char c = (unsigned char)key[n];
        out[n] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        n++;
    }
    if (key[n] != '\0') {
        /* do not end inside a UTF-8 sequence */
        while (n > 0 && ((unsigned char)key[n] & 0xc0u) == 0x80u) {
            n--;
        }
    }
    out[n] = '\0';
    return out;
}

static bool depth_is_bounded(const char *text, size_t n)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > HEFT__WIRE_MAX_DEPTH) {
                return false;
            }
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return true;
}

heft_status_t heft__json_parse(const char *text, size_t n, const char *what, json_t **root_out,
                               heft_error_t *err)
{
    if (!depth_is_bounded(text, n)) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: nested deeper than %d levels", what,
                               HEFT__WIRE_MAX_DEPTH);
    }
    json_error_t parse;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &parse);
    if (root == NULL) {
        if (json_error_code(&parse) == json_error_out_of_memory) {
            return heft__error_nomem(err, n);
        }
        char shown[64];
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: line %d column %d: %s", what, parse.line,
                               parse.column, heft__json_show(parse.text, shown));
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: not a JSON object", what);
    }
    *root_out = root;
    return HEFT_OK;
}

bool heft__status_from_name(const char *name, heft_status_t *out)
{
#define HEFT__X(status, value, remedy, text) \
    if (strcmp(name, #status) == 0) {        \
        *out = HEFT_##status;                \
        return true;                         \
    }
    HEFT_STATUS_MAP(HEFT__X)
#undef HEFT__X
    return false;
}

static const heft__field_t *find_field(const heft__field_t *fields, const char *key)
{
    for (const heft__field_t *f = fields; f->key != NULL; f++) {
        if (strcmp(f->key, key) == 0) {
            return f;
        }
    }
    return NULL;
}

static heft_status_t bad_type(const heft__field_t *f, const char *what, const char *type,
                              heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\" is not %s", what, f->key, type);
}

static heft_status_t read_int(const heft__field_t *f, const json_t *value, const char *what,
                              char *at, heft_error_t *err)
{
    if (!json_is_integer(value)) {
        return bad_type(f, what, "an integer", err);
    }
    const int64_t v = json_integer_value(value);
    if (v < f->min || v > f->max) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\" is %lld, outside %lld to %lld",
                               what, f->key, (long long)v, (long long)f->min, (long long)f->max);
    }
    if (f->kind == HEFT__FIELD_INT) {
        memcpy(at, &v, sizeof v);
    } else if (f->kind == HEFT__FIELD_RANK) {
        const int32_t r = (int32_t)v;
        memcpy(at, &r, sizeof r);
    } else {
        const uint32_t u = (uint32_t)v;
        memcpy(at, &u, sizeof u);
    }
    return HEFT_OK;
}

static heft_status_t read_text(const heft__field_t *f, const char *text, const char *what, char *at,
                               heft_error_t *err)
{
    const size_t n = strlen(text);
    if (n < (size_t)f->min || n >= (size_t)f->max) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: key \"%s\" has %zu bytes, outside %lld to %lld", what, f->key,
                               n, (long long)f->min, (long long)f->max - 1);
    }
    memcpy(at, text, n + 1);
    return HEFT_OK;
}

static heft_status_t read_enum(const heft__field_t *f, const char *text, const char *what, char *at,
                               heft_error_t *err)
{
    for (const heft__name_t *name = f->names; name->text != NULL; name++) {
        if (strcmp(name->text, text) == 0) {
            memcpy(at, &name->value, sizeof name->value);
            return HEFT_OK;
        }
    }
    char shown[64];
    return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\": unknown value \"%s\"", what,
                           f->key, heft__json_show(text, shown));
}

/* Every kind that is a JSON string. */
static heft_status_t read_string(const heft__field_t *f, const json_t *value, const char *what,
                                 char *at, heft_error_t *err)
{
    if (!json_is_string(value)) {
        return bad_type(f, what, "a string", err);
    }
    const char *text = json_string_value(value);
    char shown[64];
    heft__round_id_t round;
    heft_status_t named;
    switch ((int)f->kind) {
    case HEFT__FIELD_TEXT:
        return read_text(f, text, what, at, err);
    case HEFT__FIELD_ENUM:
        return read_enum(f, text, what, at, err);
    case HEFT__FIELD_HEX:
        if (!heft__is_hex(text, (size_t)f->max)) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "%s: key \"%s\" is not %lld lower-case hex digits: \"%s\"", what,
                                   f->key, (long long)f->max, heft__json_show(text, shown));
        }
        memcpy(at, text, (size_t)f->max + 1);
        return HEFT_OK;
    case HEFT__FIELD_ROUND:
        if (!heft__round_id_parse(text, &round)) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "%s: key \"%s\" is not \"epoch.sequence\": \"%s\"", what, f->key,
                                   heft__json_show(text, shown));
        }
        memcpy(at, &round, sizeof round);
        return HEFT_OK;
    case HEFT__FIELD_STATUS:
        if (!heft__status_from_name(text, &named)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\": unknown status \"%s\"",
                                   what, f->key, heft__json_show(text, shown));
        }
        memcpy(at, &named, sizeof named);
        return HEFT_OK;
    default:
        return HEFT_OK; /* ANY_TEXT */
    }
}

static heft_status_t read_field(const heft__field_t *f, const json_t *value, const char *what,
                                char *at, heft_error_t *err)
{
    bool flag;
    double real;
    switch (f->kind) {
    case HEFT__FIELD_INT:
    case HEFT__FIELD_U32:
    case HEFT__FIELD_RANK:
        return read_int(f, value, what, at, err);
    case HEFT__FIELD_BOOL:
        if (!json_is_boolean(value)) {
            return bad_type(f, what, "true or false", err);
        }
        flag = json_is_true(value);
        memcpy(at, &flag, sizeof flag);
        return HEFT_OK;
    case HEFT__FIELD_REAL:
        if (!json_is_number(value)) {
            return bad_type(f, what, "a number", err);
        }
        real = json_number_value(value);
        memcpy(at, &real, sizeof real);
        return HEFT_OK;
    case HEFT__FIELD_OBJECT:
        return json_is_object(value) ? HEFT_OK : bad_type(f, what, "an object", err);
    case HEFT__FIELD_LIST:
        return json_is_array(value) ? HEFT_OK : bad_type(f, what, "a list", err);
    case HEFT__FIELD_TEXT:
    case HEFT__FIELD_HEX:
    case HEFT__FIELD_ROUND:
    case HEFT__FIELD_ENUM:
    case HEFT__FIELD_STATUS:
    case HEFT__FIELD_ANY_TEXT:
        break;
    }
    return read_string(f, value, what, at, err);
}

heft_status_t heft__json_read(json_t *object, const heft__field_t *fields, const char *what,
                              void *out, heft_error_t *err)
{
    char shown[64];
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        const heft__field_t *f = find_field(fields, key);
        if (f == NULL) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: unknown key \"%s\"", what,
                                   heft__json_show(key, shown));
        }
        heft_status_t status =
            read_field(f, json_object_iter_value(it), what, (char *)out + f->offset, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    for (const heft__field_t *f = fields; f->key != NULL; f++) {
        if (f->required && json_object_get(object, f->key) == NULL) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\" is missing", what, f->key);
        }
    }
    return HEFT_OK;
}

/* ---- writing ---- */

json_t *heft__json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value != NULL) {
        return value;
    }
    char *plain = heft__strdup(text);
    if (plain != NULL) {
        heft__text_tidy(plain);
    }
    value = json_string(plain); /* NULL gives NULL */
    heft__free(plain);
    return value;
}

static const char *name_of(const heft__name_t *names, int value)
{
    for (; names->text != NULL; names++) {
        if (names->value == value) {
            return names->text;
        }
    }
    return "?";
}

static json_t *write_number(const heft__field_t *f, const char *at)
{
    int64_t i = 0;
    uint32_t u = 0;
    double real = 0;
    if (f->kind == HEFT__FIELD_REAL) {
        memcpy(&real, at, sizeof real);
        return json_real(real);
    }
    if (f->kind == HEFT__FIELD_RANK) {
        int32_t rank = 0;
        memcpy(&rank, at, sizeof rank);
        return rank < 0 ? NULL : json_integer(rank);
    }
    if (f->kind == HEFT__FIELD_INT) {
        memcpy(&i, at, sizeof i);
    } else {
        memcpy(&u, at, sizeof u);
        i = (int64_t)u;
    }
    return i == 0 && !f->required ? NULL : json_integer(i);
}

/* The value of a field, or NULL: nothing to write (or out of memory, which *failed says). */
static json_t *write_field(const heft__field_t *f, const char *at, bool *failed)
{
    json_t *value = NULL;
    char text[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_t round;
    int number = 0;
    switch (f->kind) {
    case HEFT__FIELD_INT:
    case HEFT__FIELD_U32:
    case HEFT__FIELD_REAL:
    case HEFT__FIELD_RANK:
        value = write_number(f, at);
        *failed = value == NULL && f->required;
        return value;
    case HEFT__FIELD_BOOL:
        return json_boolean(*at != 0);
    case HEFT__FIELD_TEXT:
    case HEFT__FIELD_HEX:
        if (at[0] == '\0' && !f->required) {
            return NULL;
        }
        value = heft__json_text(at);
        break;
    case HEFT__FIELD_ROUND:
        memcpy(&round, at, sizeof round);
        if (round.epoch == 0 && !f->required) {
            return NULL;
        }
        heft__round_id_format(round, text);
        value = json_string(text);
        break;
    case HEFT__FIELD_ENUM:
        memcpy(&number, at, sizeof number);
        if (number == 0 && !f->required) {
            return NULL;
        }
        value = json_string(name_of(f->names, number));
        break;
    case HEFT__FIELD_STATUS:
        memcpy(&number, at, sizeof number);
        value = json_string(heft_status_get_name((heft_status_t)number));
        break;
    case HEFT__FIELD_OBJECT:
    case HEFT__FIELD_LIST:
    case HEFT__FIELD_ANY_TEXT:
        return NULL;
    }
    *failed = value == NULL;
    return value;
}

heft_status_t heft__json_write(json_t *object, const heft__field_t *fields, const void *in,
                               heft_error_t *err)
{
    for (const heft__field_t *f = fields; f->key != NULL; f++) {
        bool failed = false;
        json_t *value = write_field(f, (const char *)in + f->offset, &failed);
        if (failed || (value != NULL && !heft__json_put(object, f->key, value))) {
            return heft__error_nomem(err, sizeof *f);
        }
    }
    return HEFT_OK;
}

bool heft__json_put(json_t *object, const char *key, json_t *value)
{
    return object != NULL && value != NULL ? json_object_set_new(object, key, value) == 0
                                           : (json_decref(value), false);
}

static int append_text(const char *buffer, size_t size, void *data)
{
    heft__text_put_n(data, buffer, size);
    return 0;
}

heft_status_t heft__json_finish(json_t *object, char **text_out, heft_error_t *err)
{
    if (object == NULL) {
        return heft__error_nomem(err, 0);
    }
    heft__text_t text;
    heft__text_init(&text);
    const int rc = json_dump_callback(object, append_text, &text, JSON_COMPACT);
    json_decref(object);
    char *taken = rc == 0 ? heft__text_take(&text) : NULL;
    heft__text_fini(&text);
    if (taken == NULL) {
        return heft__error_nomem(err, 0);
    }
    *text_out = taken;
    return HEFT_OK;
}

char *heft__json_sorted_text(const json_t *value)
{
    heft__text_t text;
    heft__text_init(&text);
    const int rc = json_dump_callback(value, append_text, &text, JSON_COMPACT | JSON_SORT_KEYS);
    char *taken = rc == 0 ? heft__text_take(&text) : NULL;
    heft__text_fini(&text);
    return taken;
}

heft_status_t heft__json_decode_flat(const char *text, size_t n, const heft__field_t *fields,
                                     const char *what, void *out, heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, what, &root, err);
    if (status == HEFT_OK) {
        status = heft__json_read(root, fields, what, out, err);
        json_decref(root);
    }
    return status;
}

heft_status_t heft__json_encode_flat(const heft__field_t *fields, const void *in, char **text_out,
                                     heft_error_t *err)
{
    json_t *root = json_object();
    if (root == NULL) {
        return heft__error_nomem(err, 0);
    }
    heft_status_t status = heft__json_write(root, fields, in, err);
    if (status != HEFT_OK) {
        json_decref(root);
        return status;
    }
    return heft__json_finish(root, text_out, err);
}

/* ---- lists ---- */

heft_status_t heft__json_read_digests(const json_t *list, const char *what, const char *key,
                                      char (**items_out)[HEFT__DIGEST_SIZE], uint32_t *n_out,
                                      heft_error_t *err)
{
    const size_t n = json_array_size(list);
    if (n == 0) {
        return HEFT_OK;
    }
    char(*items)[HEFT__DIGEST_SIZE] = heft__calloc(n, sizeof *items);
    if (items == NULL) {
        return heft__error_nomem(err, n * sizeof *items);
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL || !heft__is_hex(text, HEFT__DIGEST_SIZE - 1)) {
            heft__free(items);
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\": item %zu is not a digest",
                                   what, key, i);
        }
        memcpy(items[i], text, HEFT__DIGEST_SIZE);
    }
    *items_out = items;
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

heft_status_t heft__json_read_ids(const json_t *list, const char *what, const char *key,
                                  char (**items_out)[HEFT__ID_SIZE], uint32_t *n_out,
                                  heft_error_t *err)
{
    const size_t n = json_array_size(list);
    if (n == 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: key \"%s\" is empty", what, key);
    }
    char(*items)[HEFT__ID_SIZE] = heft__calloc(n, sizeof *items);
    if (items == NULL) {
        return heft__error_nomem(err, n * sizeof *items);
    }
    for (size_t i = 0; i < n; i++) {
        const char *id = json_string_value(json_array_get(list, i));
        if (id == NULL || strlen(id) >= HEFT__ID_SIZE) {
            heft__free(items);
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "%s: key \"%s\": item %zu is not a member id", what, key, i);
        }
        memcpy(items[i], id, strlen(id) + 1);
    }
    *items_out = items;
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

json_t *heft__json_digests(char (*items)[HEFT__DIGEST_SIZE], uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_string(items[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

heft_status_t heft__json_read_transports(const json_t *list, const char *what,
                                         char (*out)[HEFT__TRANSPORT_SIZE], uint32_t *n_out,
                                         heft_error_t *err)
{
    const size_t n = json_array_size(list);
    if (n == 0 || n > HEFT__MAX_TRANSPORTS) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: key \"transports\" has %zu items, outside 1 to %d", what, n,
                               HEFT__MAX_TRANSPORTS);
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL || text[0] == '\0' || strlen(text) >= HEFT__TRANSPORT_SIZE) {
            return heft__error_set(
                err, HEFT_ERR_FORMAT,
                "%s: key \"transports\": item %zu is not a text of 1 to %d bytes", what, i,
                HEFT__TRANSPORT_SIZE - 1);
        }
        memcpy(out[i], text, strlen(text) + 1);
    }
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

json_t *heft__json_transports(const char (*items)[HEFT__TRANSPORT_SIZE], uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_string(items[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}
