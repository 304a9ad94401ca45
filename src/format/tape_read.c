/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading tapes. The reader is strict: keys, types, the order of names and the digest must be
 * right, and every write is recorded, and so checked, as if a tracer had made it.
 */
#include <jansson.h>
#include <string.h>

#include "format/format.h"
#include "format/tape_line.h"

typedef struct reader {
    heft_tape_t *tape;
    heft__tape_words_t words;
    heft__tape_scratch_t scratch;
    heft_error_t *err;
} reader_t;

static heft_status_t wrong(const reader_t *r, const char *key, const char *expected)
{
    return heft__error_set(r->err, HEFT_ERR_FORMAT, "tape: \"%s\" must be %s", key, expected);
}

/* Put where it was before a cause; what is wrong with a file is no misuse of the caller's. */
static heft_status_t wrong_item(const reader_t *r, const char *key, size_t i, heft_status_t status,
                                const heft_error_t *cause)
{
    bool is_own = status == HEFT_ERR_NOMEM || status == HEFT_ERR_UNSUPPORTED ||
                  status == HEFT_ERR_INTERNAL || status == HEFT_ERR_LIMIT;
    return heft__error_set(r->err, is_own ? status : HEFT_ERR_FORMAT, "tape: \"%s\" %zu: %s", key,
                           i, cause->message);
}

/* ---- the object ---- */

static heft_status_t check_keys(const reader_t *r, json_t *root, bool has_names)
{
    static const char *const known[] = { "heft_tape", "digest", "temporaries", "operations",
                                         "notes",     "writes", "sources",     "parameters" };
    const size_t n_known = sizeof known / sizeof known[0] - (has_names ? 0 : 2);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        size_t i = 0;
        while (i < n_known && strcmp(known[i], key) != 0) {
            i++;
        }
        if (i == n_known) {
            return heft__error_set(r->err, HEFT_ERR_FORMAT, "tape: unknown key \"%.80s\"", key);
        }
    }
    const json_t *format = json_object_get(root, "heft_tape");
    if (!json_is_integer(format)) {
        return wrong(r, "heft_tape", "the format version, an integer");
    }
    if (json_integer_value(format) != HEFT__TAPE_FORMAT) {
        return heft__error_set(r->err, HEFT_ERR_UNSUPPORTED,
                               "tape: format version %lld, this library reads %d",
                               (long long)json_integer_value(format), (int)HEFT__TAPE_FORMAT);
    }
    for (size_t i = 2; i < n_known; i++) {
        const json_t *list = json_object_get(root, known[i]);
        if (!json_is_array(list) || json_array_size(list) > INT32_MAX) {
            return wrong(r, known[i], "an array");
        }
    }
    return HEFT_OK;
}

/* A text without zero bytes or control characters, or NULL. */
static const char *get_text(const json_t *value)
{
    const char *text = json_string_value(value);
    bool is_good =
        text != NULL && strlen(text) == json_string_length(value) && heft__text_is_clean(text);
    return is_good ? text : NULL;
}

/* ---- buffers ---- */

static bool read_dtype(const json_t *value, heft_dtype_t *out)
{
    const char *name = json_string_value(value);
    *out = name != NULL ? heft_dtype_from_name(name) : HEFT_DTYPE_NONE;
    return *out != HEFT_DTYPE_NONE && strcmp(heft_dtype_get_name(*out), name) == 0;
}

static bool read_shape(const json_t *value, heft_shape_t *shape)
{
    *shape = (heft_shape_t){ .rank = (int32_t)json_array_size(value) };
    if (!json_is_array(value) || json_array_size(value) > HEFT_MAX_DIMS) {
        return false;
    }
    for (int32_t k = 0; k < shape->rank; k++) {
        const json_t *extent = json_array_get(value, (size_t)k);
        if (!json_is_integer(extent)) {
            return false;
        }
        shape->extent[k] = json_integer_value(extent);
    }
    return true;
}

static heft_status_t add_buffer(const reader_t *r, const char *key, size_t i,
                                heft_buffer_kind_t kind, const char *name, heft_dtype_t dtype,
                                const heft_shape_t *shape)
{
    uint32_t buffer = 0;
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft_tape_add_buffer(r->tape, kind, name, dtype, shape, &buffer, &cause);
    return status == HEFT_OK ? HEFT_OK : wrong_item(r, key, i, status, &cause);
}

static heft_status_t read_named(const reader_t *r, const json_t *root, const char *key,
                                heft_buffer_kind_t kind)
{
    const json_t *list = json_object_get(root, key);
    const char *before = "";
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < json_array_size(list) && status == HEFT_OK; i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = get_text(json_array_get(item, 0));
        heft_dtype_t dtype = HEFT_DTYPE_NONE;
        heft_shape_t shape = { .rank = 0 };
        bool is_good = json_array_size(item) == 3 && name != NULL &&
                       read_dtype(json_array_get(item, 1), &dtype) &&
                       read_shape(json_array_get(item, 2), &shape) && strcmp(before, name) < 0;
        if (!is_good) {
            return heft__error_set(r->err, HEFT_ERR_FORMAT,
                                   "tape: \"%s\" %zu must be [name, dtype, shape], by name", key,
                                   i);
        }
        status = add_buffer(r, key, i, kind, name, dtype, &shape);
        before = name;
    }
    return status;
}

static heft_status_t read_temps(const reader_t *r, const json_t *root)
{
    const json_t *list = json_object_get(root, "temporaries");
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < json_array_size(list) && status == HEFT_OK; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *extent = json_array_get(item, 1);
        heft_dtype_t dtype = HEFT_DTYPE_NONE;
        if (json_array_size(item) != 2 || !read_dtype(json_array_get(item, 0), &dtype) ||
            !json_is_integer(extent)) {
            return heft__error_set(r->err, HEFT_ERR_FORMAT,
                                   "tape: \"temporaries\" %zu must be [dtype, elements]", i);
        }
        const heft_shape_t shape = { .rank = 1, .extent = { json_integer_value(extent) } };
        status = add_buffer(r, "temporaries", i, HEFT_BUFFER_TEMP, "", dtype, &shape);
    }
    return status;
}

/* ---- writes ---- */

/* Texts that lines refer to; borrowed from the JSON. */
static heft_status_t read_words(const reader_t *r, const json_t *root, const char *key,
                                const char ***words_out, uint32_t *n_out)
{
    const json_t *list = json_object_get(root, key);
    const size_t n = json_array_size(list);
    const char **words = heft__calloc(n + 1, sizeof *words);
    *words_out = words;
    if (words == NULL) {
        return heft__error_nomem(r->err, n * sizeof *words);
    }
    for (size_t i = 0; i < n; i++) {
        words[i] = get_text(json_array_get(list, i));
        if (words[i] == NULL || words[i][0] == '\0') {
            return wrong(r, key, "an array of texts that are not empty");
        }
    }
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

static heft_status_t read_writes(reader_t *r, const json_t *root)
{
    const json_t *list = json_object_get(root, "writes");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *line = get_text(json_array_get(list, i));
        heft_error_t cause = HEFT_ERROR_INIT;
        if (line == NULL) {
            return wrong(r, "writes", "an array of texts");
        }
        heft_status_t status = heft__tape_line_read(line, &r->words, &r->scratch, r->tape, &cause);
        if (status != HEFT_OK) {
            return wrong_item(r, "writes", i, status, &cause);
        }
    }
    return HEFT_OK;
}

/* The digest is that of the normal form; what is read need not be in it, what is given back is. */
static heft_status_t finish(reader_t *r, const json_t *root, char digest[HEFT_TAPE_DIGEST_BYTES])
{
    heft_tape_t *normal = NULL;
    const char *claim = json_string_value(json_object_get(root, "digest"));
    heft_status_t status = heft__tape_normalise(r->tape, NULL, 0, &normal, r->err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_tape_destroy(r->tape);
    r->tape = normal;
    status = heft__tape_make_digest(normal, digest, r->err);
    if (status != HEFT_OK) {
        return status;
    }
    if (claim == NULL) {
        return wrong(r, "digest", "a text");
    }
    return strcmp(claim, digest) == 0
               ? HEFT_OK
               : heft__error_set(r->err, HEFT_ERR_FORMAT,
                                 "tape: \"digest\" is %.64s, the content's %s; was it edited?",
                                 claim, digest);
}

static heft_status_t read_root(reader_t *r, json_t *root, bool has_names,
                               char digest[HEFT_TAPE_DIGEST_BYTES])
{
    if (!json_is_object(root)) {
        return heft__error_set(r->err, HEFT_ERR_FORMAT, "tape: an object is expected");
    }
    heft_status_t status = check_keys(r, root, has_names);
    if (status == HEFT_OK && has_names) {
        status = read_named(r, root, "sources", HEFT_BUFFER_SOURCE);
    }
    if (status == HEFT_OK && has_names) {
        status = read_named(r, root, "parameters", HEFT_BUFFER_PARAM);
    }
    for (size_t b = 0; b < r->tape->n_buffers; b++) {
        r->words.n_sources += r->tape->buffers[b].kind == HEFT_BUFFER_SOURCE;
        r->words.n_params += r->tape->buffers[b].kind == HEFT_BUFFER_PARAM;
    }
    r->words.n_temps = (uint32_t)json_array_size(json_object_get(root, "temporaries"));
    status = status == HEFT_OK ? read_temps(r, root) : status;
    status = status == HEFT_OK ? read_words(r, root, "operations", &r->words.ops, &r->words.n_ops)
                               : status;
    status = status == HEFT_OK ? read_words(r, root, "notes", &r->words.notes, &r->words.n_notes)
                               : status;
    status = status == HEFT_OK ? read_writes(r, root) : status;
    return status == HEFT_OK ? finish(r, root, digest) : status;
}

heft_status_t heft__tape_decode_json(struct json_t *root, heft_tape_t *names,
                                     heft_tape_t **tape_out,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err)
{
    char digest[HEFT_TAPE_DIGEST_BYTES];
    reader_t r = { .tape = names, .err = err };
    heft_status_t status = names == NULL ? heft_tape_create(&r.tape, err) : HEFT_OK;
    status = status == HEFT_OK ? read_root(&r, root, names == NULL, digest) : status;
    heft__tape_scratch_fini(&r.scratch);
    heft__free(r.words.ops);
    heft__free(r.words.notes);
    if (status != HEFT_OK) {
        heft_tape_destroy(r.tape);
        return status;
    }
    memcpy(digest_out, digest, sizeof digest);
    *tape_out = r.tape;
    return HEFT_OK;
}

heft_status_t heft_tape_decode(const char *text, size_t n, heft_tape_t **tape_out,
                               heft_error_t *err)
{
    json_error_t error;
    char digest[HEFT_TAPE_DIGEST_BYTES];
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        if (json_error_code(&error) == json_error_out_of_memory) {
            return heft__error_nomem(err, n);
        }
        return heft__error_set(err, HEFT_ERR_FORMAT, "tape: line %d, byte %d: %s", error.line,
                               error.position, error.text);
    }
    heft_status_t status = heft__tape_decode_json(root, NULL, tape_out, digest, err);
    json_decref(root);
    return status;
}
