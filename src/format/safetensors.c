/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors header (docs/formats/safetensors.md): 8 bytes of length, a JSON object, data.
 *
 * The top-level object is walked here, so that every tensor's byte offset is known and no tree of
 * a large header is built; each value is parsed by jansson. A header is accepted only if its ranges
 * tile the data section exactly, so that a tensor never shows another one's bytes and no byte of
 * the file goes unexplained. Byte offsets in messages count from the start of the file.
 */
#include "format/format.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

typedef struct decoder {
    const char *label;
    const char *json;
    size_t json_bytes;
    heft__st_header_t *header;
    size_t cap_tensors;
    heft__map_t names; /* keys so far */
    heft_error_t *err;
} decoder_t;

void heft__path_label(char out[HEFT__ST_LABEL_BYTES], const char *path)
{
    size_t n = strlen(path);
    size_t room = HEFT__ST_LABEL_BYTES - 1;
    if (n <= room) {
        memcpy(out, path, n + 1);
        return;
    }
    (void)snprintf(out, HEFT__ST_LABEL_BYTES, "...%s", path + n - (room - 3));
}

/* ---- faults; `at` is an offset in the JSON text ---- */

HEFT_PRINTF(5, 6)
static heft_status_t fault(const decoder_t *d, heft_status_t status, const char *name, size_t at,
                           const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm of clang 14 */
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return heft__error_set(d->err, status, "%s: tensor \"%.90s\" at byte %zu: %s", d->label, name,
                           at + LENGTH_BYTES, text);
}

static heft_status_t syntax(const decoder_t *d, size_t at, const char *what)
{
    return heft__error_set(d->err, HEFT_ERR_FORMAT, "%s: header is no valid JSON at byte %zu: %s",
                           d->label, at + LENGTH_BYTES, what);
}

static heft_status_t duplicate_key(const decoder_t *d, size_t at, size_t n)
{
    return heft__error_set(d->err, HEFT_ERR_FORMAT,
                           "%s: duplicate key %.*s: second occurrence at byte %zu", d->label,
                           n < 90 ? (int)n : 90, d->json + at, at + LENGTH_BYTES);
}

/* A fault that jansson found `position` bytes into the value at `start`. It stops right behind the
 * second of two equal keys: walk back to its opening quote. */
static heft_status_t value_fault(const decoder_t *d, size_t start, const json_error_t *error)
{
    size_t end = start + (error->position > 0 ? (size_t)error->position : 0);
    enum json_error_code code = json_error_code(error);
    if (code == json_error_out_of_memory) {
        return heft__error_nomem(d->err, d->json_bytes);
    }
    if (code != json_error_duplicate_key || end > d->json_bytes || end < start + 2) {
        return syntax(d, end, error->text);
    }
    size_t at = end - 1;
    size_t n_slashes;
    do {
        at--;
        n_slashes = 0;
        while (n_slashes < at - start && d->json[at - 1 - n_slashes] == '\\') {
            n_slashes++;
        }
    } while (at > start && (d->json[at] != '"' || n_slashes % 2 != 0));
    return duplicate_key(d, at, end - at);
}

/* ---- one tensor ---- */

static heft_status_t decode_shape(const decoder_t *d, const char *name, size_t at,
                                  const json_t *array, heft_shape_t *shape_out)
{
    if (!json_is_array(array)) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "\"shape\" must be an array of integers");
    }
    size_t rank = json_array_size(array);
    if (rank > HEFT_MAX_DIMS) {
        return fault(d, HEFT_ERR_LIMIT, name, at, "%zu dimensions, at most %d", rank,
                     HEFT_MAX_DIMS);
    }
    heft_shape_t shape = { .rank = (int32_t)rank };
    for (size_t i = 0; i < rank; i++) {
        const json_t *n = json_array_get(array, i);
        if (!json_is_integer(n)) {
            return fault(d, HEFT_ERR_FORMAT, name, at, "\"shape\" must be an array of integers");
        }
        shape.extent[i] = json_integer_value(n);
        if (shape.extent[i] < 0) {
            return fault(d, HEFT_ERR_FORMAT, name, at, "extent %lld in dimension %zu",
                         (long long)shape.extent[i], i);
        }
    }
    *shape_out = shape;
    return HEFT_OK;
}

static heft_status_t decode_range(const decoder_t *d, const char *name, size_t at,
                                  const json_t *array, int64_t *begin_out, int64_t *end_out)
{
    const json_t *first = json_array_get(array, 0);
    const json_t *last = json_array_get(array, 1);
    if (json_array_size(array) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < 0) {
        return fault(d, HEFT_ERR_FORMAT, name, at,
                     "\"data_offsets\" must be two integers, none negative");
    }
    if (json_integer_value(first) > json_integer_value(last)) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "reversed range: begins at %lld, ends at %lld",
                     (long long)json_integer_value(first), (long long)json_integer_value(last));
    }
    *begin_out = json_integer_value(first);
    *end_out = json_integer_value(last);
    return HEFT_OK;
}

static heft_status_t check_keys(const decoder_t *d, const char *name, size_t at, json_t *object)
{
    static const char *const known[] = { "dtype", "shape", "data_offsets" };
    if (!json_is_object(object)) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "its value must be an object");
    }
    for (size_t i = 0; i < 3; i++) {
        if (json_object_get(object, known[i]) == NULL) {
            return fault(d, HEFT_ERR_FORMAT, name, at, "no \"%s\"", known[i]);
        }
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (strcmp(key, known[0]) != 0 && strcmp(key, known[1]) != 0 &&
            strcmp(key, known[2]) != 0) {
            return fault(d, HEFT_ERR_FORMAT, name, at, "unknown key \"%.80s\"", key);
        }
    }
    return HEFT_OK;
}

static heft_status_t decode_dtype(const decoder_t *d, const char *name, size_t at,
                                  const json_t *value, heft_dtype_t *dtype_out)
{
    const char *text = json_string_value(value);
    if (text == NULL) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "\"dtype\" must be a string");
    }
    heft_dtype_t dtype = heft_dtype_from_name(text);
    if (dtype == HEFT_DTYPE_NONE || strcmp(heft_dtype_get_name(dtype), text) != 0) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "unknown dtype \"%.40s\"", text);
    }
    *dtype_out = dtype;
    return HEFT_OK;
}

static heft_status_t decode_tensor(const decoder_t *d, const char *name, size_t at, json_t *object,
                                   heft__st_tensor_t *tensor_out)
{
    heft__st_tensor_t t = { .name = NULL };
    int64_t end = 0;
    heft_status_t status = check_keys(d, name, at, object);
    if (status == HEFT_OK) {
        status = decode_dtype(d, name, at, json_object_get(object, "dtype"), &t.dtype);
    }
    if (status == HEFT_OK) {
        status = decode_shape(d, name, at, json_object_get(object, "shape"), &t.shape);
    }
    if (status == HEFT_OK) {
        status = decode_range(d, name, at, json_object_get(object, "data_offsets"), &t.begin, &end);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_error_t cause = HEFT_ERROR_INIT;
    int64_t n_elems;
    status = heft__tensor_measure(t.dtype, &t.shape, &n_elems, &t.n_bytes, &cause);
    if (status != HEFT_OK) {
        return fault(d, HEFT_ERR_FORMAT, name, at, "%s", cause.message);
    }
    if (end - t.begin != t.n_bytes) {
        return fault(d, HEFT_ERR_FORMAT, name, at,
                     "wrong size: shape and dtype need %lld bytes, data_offsets hold %lld",
                     (long long)t.n_bytes, (long long)(end - t.begin));
    }
    t.name = name;
    *tensor_out = t;
    return HEFT_OK;
}

static heft_status_t check_metadata(const decoder_t *d, json_t *object)
{
    if (!json_is_object(object)) {
        return heft__error_set(d->err, HEFT_ERR_FORMAT,
                               "%s: \"__metadata__\" must be an object of strings", d->label);
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value)) {
            return heft__error_set(d->err, HEFT_ERR_FORMAT,
                                   "%s: \"__metadata__\": value of \"%.80s\" must be a string",
                                   d->label, key);
        }
    }
    return HEFT_OK;
}

/* ---- the whole ---- */

static int by_range(const void *a, const void *b)
{
    const heft__st_tensor_t *x = a;
    const heft__st_tensor_t *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->n_bytes != y->n_bytes) {
        return x->n_bytes < y->n_bytes ? -1 : 1; /* an empty one first: it ends where it begins */
    }
    return strcmp(x->name, y->name);
}

static heft_status_t check_tiling(const decoder_t *d, int64_t data_bytes)
{
    heft__st_header_t *header = d->header;
    bool is_sorted = true; /* as most writers leave it; sorting large entries is slow */
    for (size_t i = 1; i < header->n_tensors && is_sorted; i++) {
        is_sorted = by_range(&header->tensors[i - 1], &header->tensors[i]) <= 0;
    }
    if (!is_sorted) {
        qsort(header->tensors, header->n_tensors, sizeof header->tensors[0], by_range);
    }
    int64_t declared = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        declared = heft__max_i64(declared, header->tensors[i].begin + header->tensors[i].n_bytes);
    }
    if (declared > data_bytes) {
        return heft__error_set(
            d->err, HEFT_ERR_FORMAT,
            "%s: truncated: the header declares %lld data bytes after byte %lld, %lld are there",
            d->label, (long long)declared, (long long)header->data_offset, (long long)data_bytes);
    }
    int64_t end = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const heft__st_tensor_t *t = &header->tensors[i];
        const char *before = i > 0 ? t[-1].name : "";
        if (t->begin != end) {
            return heft__error_set(
                d->err, HEFT_ERR_FORMAT,
                "%s: %s at byte %lld: tensor \"%.50s\" begins at %lld, \"%.50s\" before it ends at "
                "%lld",
                d->label, t->begin < end ? "overlap" : "gap",
                (long long)header->data_offset + (long long)heft__min_i64(end, t->begin), t->name,
                (long long)t->begin, before, (long long)end);
        }
        end = t->begin + t->n_bytes;
    }
    if (end < data_bytes) {
        return heft__error_set(d->err, HEFT_ERR_FORMAT,
                               "%s: %lld bytes after the last tensor, at byte %lld", d->label,
                               (long long)data_bytes - (long long)end,
                               (long long)header->data_offset + (long long)end);
    }
    return HEFT_OK;
}

/* ---- the top-level object ---- */

static size_t skip_space(const decoder_t *d, size_t i)
{
    while (i < d->json_bytes &&
           (d->json[i] == ' ' || d->json[i] == '\t' || d->json[i] == '\n' || d->json[i] == '\r')) {
        i++;
    }
    return i;
}

/* The offset behind the string that starts at i, or behind the text if it does not end. */
static size_t skip_string(const decoder_t *d, size_t i)
{
    for (i++; i < d->json_bytes && d->json[i] != '"'; i++) {
        i += d->json[i] == '\\' ? 1 : 0;
    }
    return i + 1;
}

/* The same for a value: up to its closing bracket, or the next ',' or '}'. jansson checks it. */
static size_t skip_value(const decoder_t *d, size_t i)
{
    size_t depth = 0;
    while (i < d->json_bytes) {
        char c = d->json[i];
        if (c == '"') {
            i = skip_string(d, i);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}')) {
            break;
        }
        depth += c == '{' || c == '[' ? 1 : 0;
        depth -= depth > 0 && (c == '}' || c == ']') ? 1 : 0;
        i++;
        if (depth == 0 && (c == '}' || c == ']')) {
            break;
        }
    }
    return i;
}

/* The string literal at [at, end) as text in the arena. */
static heft_status_t decode_key(const decoder_t *d, size_t at, size_t end, const char **key_out)
{
    const char *literal = d->json + at;
    size_t n = end - at;
    char *key = NULL;
    if (memchr(literal, '\\', n) == NULL) {
        if (memchr(literal, '\0', n) != NULL) {
            return syntax(d, at, "a key with a zero byte");
        }
        key = heft__arena_strndup(&d->header->arena, literal + 1, n - 2);
    } else {
        json_error_t error;
        json_t *string = json_loadb(literal, n, JSON_DECODE_ANY, &error);
        if (string == NULL) {
            return value_fault(d, at, &error);
        }
        key = heft__arena_strndup(&d->header->arena, json_string_value(string),
                                  json_string_length(string));
        json_decref(string);
    }
    if (key == NULL) {
        return heft__error_nomem(d->err, n);
    }
    *key_out = key;
    return key[0] != '\0' && heft__text_is_clean(key)
               ? HEFT_OK
               : fault(d, HEFT_ERR_FORMAT, key, at,
                       "a name must be UTF-8, not empty, without control characters");
}

static heft_status_t add_tensor(decoder_t *d, const char *name, size_t at, json_t *value)
{
    heft__st_header_t *header = d->header;
    void *items = header->tensors;
    if (!heft__grow(&items, &d->cap_tensors, header->n_tensors + 1, sizeof header->tensors[0])) {
        return heft__error_nomem(d->err, (header->n_tensors + 1) * sizeof header->tensors[0]);
    }
    header->tensors = items;
    heft_status_t status = decode_tensor(d, name, at, value, &header->tensors[header->n_tensors]);
    header->n_tensors += status == HEFT_OK ? 1 : 0;
    return status;
}

/* One `"key": value`, the key at *i; *i moves behind the value. */
static heft_status_t decode_member(decoder_t *d, size_t *i)
{
    size_t at = *i;
    if (at >= d->json_bytes || d->json[at] != '"') {
        return syntax(d, at, "a key should begin here");
    }
    size_t end = skip_string(d, at);
    size_t colon = end <= d->json_bytes ? skip_space(d, end) : d->json_bytes;
    if (colon >= d->json_bytes || d->json[colon] != ':') {
        return syntax(d, colon, "a ':' should stand here");
    }
    const char *key = "";
    heft_status_t status = decode_key(d, at, end, &key);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__map_put(&d->names, key, strlen(key), 0);
    if (status != HEFT_OK) {
        return status == HEFT_ERR_EXISTS ? duplicate_key(d, at, end - at)
                                         : heft__error_nomem(d->err, strlen(key));
    }
    size_t start = skip_space(d, colon + 1);
    *i = skip_value(d, start);
    json_error_t error;
    size_t n = *i <= d->json_bytes ? *i - start : d->json_bytes - start;
    json_t *value =
        json_loadb(d->json + start, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (value == NULL) {
        return value_fault(d, start, &error);
    }
    status =
        strcmp(key, "__metadata__") == 0 ? check_metadata(d, value) : add_tensor(d, key, at, value);
    json_decref(value);
    return status;
}

static heft_status_t decode_root(decoder_t *d)
{
    size_t i = skip_space(d, 1); /* behind the '{' that check_length has seen */
    bool is_empty = i < d->json_bytes && d->json[i] == '}';
    while (!is_empty) {
        heft_status_t status = decode_member(d, &i);
        if (status != HEFT_OK) {
            return status;
        }
        i = skip_space(d, i);
        if (i < d->json_bytes && d->json[i] == '}') {
            break;
        }
        if (i >= d->json_bytes || d->json[i] != ',') {
            return syntax(d, i, "a ',' or '}' should stand here");
        }
        i = skip_space(d, i + 1);
    }
    i = skip_space(d, i + 1);
    return i >= d->json_bytes ? HEFT_OK : syntax(d, i, "text after the object");
}

static heft_status_t check_length(const char *label, const uint8_t *bytes, size_t n_bytes,
                                  size_t *length_out, heft_error_t *err)
{
    if (n_bytes < LENGTH_BYTES) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: truncated: %zu bytes, the header length alone takes 8", label,
                               n_bytes);
    }
    uint64_t length = heft__get_le64(bytes);
    if (length > HEFT__ST_MAX_HEADER_BYTES) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: header too long: %llu bytes at byte 0, at most %d", label,
                               (unsigned long long)length, HEFT__ST_MAX_HEADER_BYTES);
    }
    if (length > n_bytes - LENGTH_BYTES) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "%s: truncated: header of %llu bytes at byte 8, %zu are there",
                               label, (unsigned long long)length, n_bytes - LENGTH_BYTES);
    }
    if (length == 0 || bytes[LENGTH_BYTES] != '{') {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: no '{' at byte 8: not a safetensors file",
                               label);
    }
    *length_out = (size_t)length;
    return HEFT_OK;
}

heft_status_t heft__st_header_decode(const char *label, const uint8_t *bytes, size_t n_bytes,
                                     heft__st_header_t *header_out, heft_error_t *err)
{
    size_t length = 0;
    heft_status_t status = check_length(label, bytes, n_bytes, &length, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__st_header_t header = { .data_offset = (int64_t)(LENGTH_BYTES + length) };
    decoder_t d = { .label = label,
                    .json = (const char *)bytes + LENGTH_BYTES,
                    .json_bytes = length,
                    .header = &header,
                    .err = err };
    heft__arena_init(&header.arena, 16384);
    heft__map_init(&d.names);
    status = decode_root(&d);
    heft__map_fini(&d.names);
    if (status == HEFT_OK) {
        status = check_tiling(&d, (int64_t)(n_bytes - LENGTH_BYTES - length));
    }
    if (status != HEFT_OK) {
        heft__st_header_fini(&header);
        return status;
    }
    *header_out = header;
    return HEFT_OK;
}

void heft__st_header_fini(heft__st_header_t *header)
{
    heft__free(header->tensors);
    heft__arena_fini(&header->arena);
    *header = (heft__st_header_t){ .n_tensors = 0 };
}
