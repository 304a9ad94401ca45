/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON form of a manifest (docs/formats/manifest.md). The reader is strict: unknown keys, wrong
 * types and duplicates are refused, and counts and digest, where given, must match the content. The
 * writer gives one tensor a line, in name order, so that two manifests can be compared with diff.
 */
#include "format/manifest_impl.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT_VERSION = 1, MAX_PROBLEMS = 40 };

/* ---- writing ---- */

void heft__text_put_json(heft__text_t *out, const char *text)
{
    heft__text_put(out, "\"");
    const char *start = text;
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c != '"' && c != '\\' && c >= 0x20) {
            continue;
        }
        heft__text_put_n(out, start, (size_t)(p - start));
        start = p + 1;
        if (c >= 0x20) {
            heft__text_printf(out, "\\%c", c);
        } else {
            heft__text_printf(out, "\\u%04x", c);
        }
    }
    heft__text_put(out, start);
    heft__text_put(out, "\"");
}

/* Keys come sorted, so the members of an object stand together. */
static void put_tensor_attrs(heft__text_t *out, const heft_manifest_t *manifest, const char *name)
{
    size_t n;
    const heft__tensor_attr_t *attrs = heft__tensor_attrs_of(manifest, name, &n);
    size_t open = 0; /* length of the object's name that is open, with its dot */
    for (size_t i = 0; i < n; i++) {
        const char *dot = strchr(attrs[i].key, '.');
        size_t object = dot != NULL ? (size_t)(dot - attrs[i].key) + 1 : 0;
        bool goes_on = open > 0 && strncmp(attrs[i].key, attrs[i - 1].key, open) == 0;
        heft__text_put(out, open > 0 && !goes_on ? "}, " : ", ");
        if (!goes_on && object > 0) {
            heft__text_printf(out, "\"%.*s\": {", (int)object - 1, attrs[i].key);
        }
        heft__text_printf(out, "\"%s\": ", attrs[i].key + object);
        if (heft__tensor_attr_form(attrs[i].key) == ATTR_NUMBER) {
            heft__text_put(out, attrs[i].value);
        } else {
            heft__text_put_json(out, attrs[i].value);
        }
        open = object;
    }
    heft__text_put(out, open > 0 ? "}" : "");
}

static void put_numbers(heft__text_t *out, const int64_t *numbers, int n)
{
    heft__text_put(out, "[");
    for (int k = 0; k < n; k++) {
        heft__text_printf(out, k > 0 ? ", %lld" : "%lld", (long long)numbers[k]);
    }
    heft__text_put(out, "]");
}

/* What a reader takes for granted is left out. */
static void put_part(heft__text_t *out, const char *name, const heft_part_t *part)
{
    heft__text_put(out, ", \"part\": {");
    if (strcmp(part->tensor, name) != 0) {
        heft__text_put(out, "\"tensor\": ");
        heft__text_put_json(out, part->tensor);
        heft__text_put(out, ", ");
    }
    heft__text_put(out, "\"shape\": ");
    put_numbers(out, part->shape.extent, part->shape.rank);
    heft__text_put(out, ", \"begin\": ");
    put_numbers(out, part->begin, part->shape.rank);
    if (part->replica > 0) {
        heft__text_printf(out, ", \"replica\": %u", (unsigned)part->replica);
    }
    heft__text_put(out, "}");
}

static void put_tensor(heft__text_t *out, const heft_manifest_t *manifest,
                       const heft_tensor_info_t *t, bool is_last)
{
    heft__text_put(out, "    {\"name\": ");
    heft__text_put_json(out, t->name);
    heft__text_printf(out, ", \"dtype\": \"%s\", \"shape\": ", heft_dtype_get_name(t->dtype));
    put_numbers(out, t->shape.extent, t->shape.rank);
    const heft_part_t *part = heft__part_of(manifest, t->name);
    if (part != NULL) {
        put_part(out, t->name, part);
    }
    put_tensor_attrs(out, manifest, t->name);
    heft__text_put(out, is_last ? "}\n" : "},\n");
}

static void put_excluded(heft__text_t *out, const heft_manifest_t *manifest)
{
    uint32_t n = heft_manifest_get_n_excluded(manifest);
    heft__text_put(out, n > 0 ? "  \"excluded\": [\n" : "");
    for (uint32_t i = 0; i < n; i++) {
        const char *reason = "";
        heft__text_put(out, "    {\"name\": ");
        heft__text_put_json(out, heft_manifest_get_excluded(manifest, i, &reason));
        heft__text_put(out, ", \"reason\": ");
        heft__text_put_json(out, reason);
        heft__text_put(out, i + 1 < n ? "},\n" : "}\n  ],\n");
    }
}

heft_status_t heft_manifest_encode(const heft_manifest_t *manifest, char **text_out,
                                   heft_error_t *err)
{
    if (!heft__manifest_is_finished(manifest)) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is not finished");
    }
    heft__text_t out;
    heft__text_init(&out);
    uint32_t n_tensors = heft_manifest_get_n_tensors(manifest);
    heft__text_printf(&out,
                      "{\n  \"heft_manifest\": %d,\n  \"side\": \"%s\",\n"
                      "  \"digest\": \"%s\",\n  \"n_tensors\": %u,\n  \"n_elems\": %lld,\n"
                      "  \"n_bytes\": %lld,\n  \"attributes\": {",
                      (int)FORMAT_VERSION, heft_manifest_get_side(manifest),
                      heft_manifest_get_digest(manifest), n_tensors,
                      (long long)heft_manifest_get_n_elems(manifest),
                      (long long)heft_manifest_get_n_bytes(manifest));
    const char *key;
    const char *value;
    for (uint32_t i = 0; heft_manifest_query_attr(manifest, i, &key, &value, NULL) == HEFT_OK;
         i++) {
        heft__text_put(&out, i > 0 ? ", " : "");
        heft__text_put_json(&out, key);
        heft__text_put(&out, ": ");
        heft__text_put_json(&out, value);
    }
    heft__text_put(&out, "},\n");
    put_excluded(&out, manifest);
    heft__text_put(&out, "  \"tensors\": [\n");
    for (uint32_t i = 0; i < n_tensors; i++) {
        put_tensor(&out, manifest, heft__manifest_get(manifest, i), i + 1 == n_tensors);
    }
    heft__text_put(&out, "  ]\n}\n");
    char *text = heft__text_take(&out);
    if (text == NULL) {
        return heft__error_nomem(err, 0);
    }
    *text_out = text;
    return HEFT_OK;
}

void heft_string_free(char *text)
{
    heft__free(text);
}

/* ---- reading ---- */

static heft_status_t check_keys(const json_t *object, const char *const *known, const char *where,
                                heft_error_t *err)
{
    const char *key;
    json_t *value;
    json_t *mutable_object;
    memcpy(&mutable_object, &object, sizeof(json_t *)); /* jansson's iterator takes no const */
    json_object_foreach(mutable_object, key, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "manifest: unknown key \"%.80s\" in %s",
                                   key, where);
        }
    }
    return HEFT_OK;
}

static heft_status_t wrong(heft_error_t *err, const char *what, const char *key,
                           const char *expected)
{
    return heft__error_set(err, HEFT_ERR_FORMAT, "manifest: %.100s: \"%s\" must be %s", what, key,
                           expected);
}

static heft_status_t decode_numbers(const json_t *array, const char *where, const char *key,
                                    heft_shape_t *shape_out, heft_error_t *err)
{
    size_t rank = json_array_size(array);
    if (!json_is_array(array)) {
        return wrong(err, where, key, "an array of integers");
    }
    if (rank > HEFT_MAX_DIMS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "manifest: %.100s: %zu dimensions, at most %d",
                               where, rank, HEFT_MAX_DIMS);
    }
    heft_shape_t shape = { .rank = (int32_t)rank };
    for (size_t k = 0; k < rank; k++) {
        const json_t *n = json_array_get(array, k);
        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            return wrong(err, where, key, "integers, none negative");
        }
        shape.extent[k] = json_integer_value(n);
    }
    *shape_out = shape;
    return HEFT_OK;
}

/* What the content itself does wrong is wrong with the text. */
static heft_status_t malformed(heft_status_t status, const heft_error_t *cause, heft_error_t *err)
{
    return status == HEFT_ERR_NOMEM
               ? heft__error_nomem(err, 0)
               : heft__error_set(err, HEFT_ERR_FORMAT, "manifest: %s", cause->message);
}

/* One attribute of a tensor: a number or a text, as its key wants it. */
static heft_status_t decode_tensor_attr(const json_t *value, const char *name, const char *key,
                                        heft_manifest_t *manifest, heft_error_t *err)
{
    char where[160];
    char number[32];
    heft__attr_form_t form = heft__tensor_attr_form(key);
    (void)snprintf(where, sizeof where, "tensor \"%.140s\"", name);
    if (form == ATTR_NUMBER && !json_is_integer(value)) {
        return wrong(err, where, key, "an integer");
    }
    if (form == ATTR_STRING && !json_is_string(value)) {
        return wrong(err, where, key, "a string");
    }
    (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft_manifest_set_tensor_attr(
        manifest, name, key, form == ATTR_STRING ? json_string_value(value) : number, &cause);
    return status == HEFT_OK ? HEFT_OK : malformed(status, &cause, err);
}

static heft_status_t decode_tensor_attrs(const json_t *object, const char *name,
                                         heft_manifest_t *manifest, heft_error_t *err)
{
    static const char *const objects[] = { "cut", "fused", "pad", "qkv", "repeat" };
    const json_t *native = json_object_get(object, "native");
    heft_status_t status =
        native != NULL ? decode_tensor_attr(native, name, "native", manifest, err) : HEFT_OK;
    for (size_t i = 0; i < sizeof objects / sizeof objects[0] && status == HEFT_OK; i++) {
        json_t *members = json_object_get(object, objects[i]);
        if (members != NULL && json_object_size(members) == 0) {
            char where[160];
            (void)snprintf(where, sizeof where, "tensor \"%.140s\"", name);
            return wrong(err, where, objects[i], "an object with members");
        }
        const char *member;
        json_t *value;
        json_object_foreach(members, member, value)
        {
            char key[80];
            (void)snprintf(key, sizeof key, "%s.%.60s", objects[i], member);
            status =
                status == HEFT_OK ? decode_tensor_attr(value, name, key, manifest, err) : status;
        }
    }
    return status;
}

/* Of which tensor this one is a box (object NULL: of none). */
static heft_status_t decode_part(const json_t *object, const char *name, heft_manifest_t *manifest,
                                 heft_error_t *err)
{
    static const char *const known[] = { "tensor", "shape", "begin", "replica", NULL };
    char where[160];
    (void)snprintf(where, sizeof where, "part of \"%.140s\"", name);
    if (object == NULL) {
        return HEFT_OK;
    }
    if (!json_is_object(object)) {
        return wrong(err, where, "part", "an object");
    }
    heft_status_t status = check_keys(object, known, where, err);
    heft_part_t part = { .tensor = NULL };
    heft_shape_t begin;
    if (status == HEFT_OK) {
        status = decode_numbers(json_object_get(object, "shape"), where, "shape", &part.shape, err);
    }
    if (status == HEFT_OK) {
        status = decode_numbers(json_object_get(object, "begin"), where, "begin", &begin, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const json_t *tensor = json_object_get(object, "tensor");
    const json_t *replica = json_object_get(object, "replica");
    if (begin.rank != part.shape.rank) {
        return wrong(err, where, "begin", "as long as its shape");
    }
    if (tensor != NULL && !json_is_string(tensor)) {
        return wrong(err, where, "tensor", "a string");
    }
    if (replica != NULL && (!json_is_integer(replica) || json_integer_value(replica) < 0 ||
                            json_integer_value(replica) > UINT32_MAX)) {
        return wrong(err, where, "replica", "an integer from 0 to 4294967295");
    }
    part.tensor = json_string_value(tensor);
    part.replica = (uint32_t)json_integer_value(replica);
    memcpy(part.begin, begin.extent, sizeof part.begin);
    heft_error_t cause = HEFT_ERROR_INIT;
    status = heft_manifest_set_part(manifest, name, &part, &cause);
    return status == HEFT_OK ? HEFT_OK : malformed(status, &cause, err);
}

static heft_status_t decode_tensor(const json_t *object, size_t index, heft_manifest_t *manifest,
                                   heft_error_t *err)
{
    static const char *const known[] = { "name",  "dtype", "shape", "part",   "native", "cut",
                                         "fused", "pad",   "qkv",   "repeat", NULL };
    char where[160];
    (void)snprintf(where, sizeof where, "tensor %zu", index);
    if (!json_is_object(object)) {
        return wrong(err, where, "tensors", "an array of objects");
    }
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name == NULL) {
        return wrong(err, where, "name", "a string");
    }
    (void)snprintf(where, sizeof where, "tensor \"%.140s\"", name);
    heft_status_t status = check_keys(object, known, where, err);
    if (status != HEFT_OK) {
        return status;
    }
    const char *dtype_name = json_string_value(json_object_get(object, "dtype"));
    if (dtype_name == NULL) {
        return wrong(err, where, "dtype", "a string");
    }
    heft_dtype_t dtype = heft_dtype_from_name(dtype_name);
    if (dtype == HEFT_DTYPE_NONE || strcmp(heft_dtype_get_name(dtype), dtype_name) != 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "manifest: %.100s: unknown dtype \"%.40s\"",
                               where, dtype_name);
    }
    heft_shape_t shape;
    status = decode_numbers(json_object_get(object, "shape"), where, "shape", &shape, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_error_t cause = HEFT_ERROR_INIT;
    status = heft_manifest_add(manifest, name, dtype, &shape, &cause);
    if (status != HEFT_OK) {
        return malformed(status, &cause, err);
    }
    status = decode_part(json_object_get(object, "part"), name, manifest, err);
    return status == HEFT_OK ? decode_tensor_attrs(object, name, manifest, err) : status;
}

static heft_status_t decode_excluded(const json_t *array, heft_manifest_t *manifest,
                                     heft_error_t *err)
{
    static const char *const known[] = { "name", "reason", NULL };
    if (array != NULL && !json_is_array(array)) {
        return wrong(err, "top level", "excluded", "an array of objects");
    }
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *object = json_array_get(array, i);
        char where[32];
        (void)snprintf(where, sizeof where, "excluded %zu", i);
        const char *name = json_string_value(json_object_get(object, "name"));
        const char *reason = json_string_value(json_object_get(object, "reason"));
        if (name == NULL || reason == NULL) {
            return wrong(err, where, name == NULL ? "name" : "reason", "a string");
        }
        heft_status_t status = check_keys(object, known, where, err);
        heft_error_t cause = HEFT_ERROR_INIT;
        if (status != HEFT_OK) {
            return status;
        }
        status = heft_manifest_exclude(manifest, name, reason, &cause);
        if (status != HEFT_OK) {
            return malformed(status, &cause, err);
        }
    }
    return HEFT_OK;
}

static heft_status_t decode_attrs(json_t *object, heft_manifest_t *manifest, heft_error_t *err)
{
    if (object != NULL && !json_is_object(object)) {
        return wrong(err, "top level", "attributes", "an object of strings");
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value)) {
            return wrong(err, "attributes", key, "a string");
        }
        heft_error_t cause = HEFT_ERROR_INIT;
        heft_status_t status =
            heft_manifest_set_attr(manifest, key, json_string_value(value), &cause);
        if (status != HEFT_OK) {
            return malformed(status, &cause, err);
        }
    }
    return HEFT_OK;
}

/* Counts and digest, where the text gives them. */
static heft_status_t check_claims(const json_t *root, const heft_manifest_t *manifest,
                                  heft_error_t *err)
{
    const struct {
        const char *key;
        long long value;
    } counts[] = { { "n_tensors", heft_manifest_get_n_tensors(manifest) },
                   { "n_elems", heft_manifest_get_n_elems(manifest) },
                   { "n_bytes", heft_manifest_get_n_bytes(manifest) } };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const json_t *claim = json_object_get(root, counts[i].key);
        if (claim == NULL) {
            continue;
        }
        if (!json_is_integer(claim)) {
            return wrong(err, "top level", counts[i].key, "an integer");
        }
        if (json_integer_value(claim) != counts[i].value) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "manifest: \"%s\" is %lld, the tensors say %lld", counts[i].key,
                                   (long long)json_integer_value(claim), counts[i].value);
        }
    }
    const json_t *digest = json_object_get(root, "digest");
    if (digest == NULL) {
        return HEFT_OK;
    }
    if (!json_is_string(digest)) {
        return wrong(err, "top level", "digest", "a string");
    }
    if (strcmp(json_string_value(digest), heft_manifest_get_digest(manifest)) != 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "manifest: \"digest\" is %.64s, the content's %s",
                               json_string_value(digest), heft_manifest_get_digest(manifest));
    }
    return HEFT_OK;
}

static heft_status_t decode_head(const json_t *root, heft_manifest_t **manifest_out,
                                 heft_error_t *err)
{
    static const char *const known[] = { "heft_manifest", "side",    "digest",     "n_tensors",
                                         "n_elems",       "n_bytes", "attributes", "tensors",
                                         "excluded",      NULL };
    if (!json_is_object(root)) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "manifest: the top level must be an object");
    }
    const json_t *version = json_object_get(root, "heft_manifest");
    if (!json_is_integer(version)) {
        return wrong(err, "top level", "heft_manifest", "the format version, an integer");
    }
    if (json_integer_value(version) != FORMAT_VERSION) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "manifest: format version %lld, this library reads %d",
                               (long long)json_integer_value(version), (int)FORMAT_VERSION);
    }
    heft_status_t status = check_keys(root, known, "the top level", err);
    if (status != HEFT_OK) {
        return status;
    }
    const char *side = json_string_value(json_object_get(root, "side"));
    if (side == NULL || (strcmp(side, "source") != 0 && strcmp(side, "destination") != 0)) {
        return wrong(err, "top level", "side", "\"source\" or \"destination\"");
    }
    if (!json_is_array(json_object_get(root, "tensors"))) {
        return wrong(err, "top level", "tensors", "an array of objects");
    }
    return heft_manifest_create(side, manifest_out, err);
}

/* ---- all that is wrong ---- */

bool heft__problems_take(heft__problems_t *problems, heft_status_t status,
                         const heft_error_t *cause)
{
    if (problems == NULL || status == HEFT_ERR_NOMEM || status == HEFT_ERR_INTERNAL) {
        return false;
    }
    if (problems->n++ == 0) {
        problems->first = *cause;
    }
    if (problems->n <= MAX_PROBLEMS) {
        heft__text_put(&problems->lines, cause->message);
        heft__text_put(&problems->lines, "\n");
    }
    return true;
}

/* The first problem and how many there are; the lines go to *report_out. */
static heft_status_t problems_status(heft__problems_t *problems, char **report_out,
                                     heft_error_t *err)
{
    bool is_format = strncmp(problems->first.message, "manifest: ", 10) == 0;
    heft_status_t status = is_format ? problems->first.status : HEFT_ERR_FORMAT;
    char more[48] = "";
    if (problems->n > MAX_PROBLEMS) {
        heft__text_printf(&problems->lines, "... %u problems in all\n", (unsigned)problems->n);
    }
    if (problems->n > 1) {
        (void)snprintf(more, sizeof more, " (1 of %u problems)", (unsigned)problems->n);
    }
    if (report_out != NULL && problems->n > 1) {
        *report_out = heft__text_take(&problems->lines);
        if (*report_out == NULL) {
            return heft__error_nomem(err, 0);
        }
    }
    return heft__error_set(err, status, "%s%.210s%s",
                           is_format ? "" : "manifest: ", problems->first.message, more);
}

/* Everything but the head; false: one cannot go on, err is set. */
static heft_status_t decode_body(const json_t *root, heft_manifest_t *manifest, heft_error_t *err)
{
    const json_t *tensors = json_object_get(root, "tensors");
    size_t n = json_array_size(tensors);
    heft__problems_t *problems = manifest->problems;
    for (size_t i = 0; i < n; i++) {
        heft_error_t cause = HEFT_ERROR_INIT;
        heft_status_t status = decode_tensor(json_array_get(tensors, i), i, manifest, &cause);
        if (status != HEFT_OK && !heft__problems_take(problems, status, &cause)) {
            return heft__error_set(err, status, "%s", cause.message);
        }
    }
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = decode_attrs(json_object_get(root, "attributes"), manifest, &cause);
    if (status == HEFT_OK || heft__problems_take(problems, status, &cause)) {
        heft__error_reset(&cause);
        status = decode_excluded(json_object_get(root, "excluded"), manifest, &cause);
    }
    if (status != HEFT_OK && !heft__problems_take(problems, status, &cause)) {
        return heft__error_set(err, status, "%s", cause.message);
    }
    heft__error_reset(&cause);
    status = heft_manifest_finish(manifest, &cause);
    if (status != HEFT_OK && !heft__problems_take(problems, status, &cause)) {
        return heft__error_set(err, status, "%s", cause.message);
    }
    return HEFT_OK;
}

static heft_status_t decode_root(const json_t *root, heft_manifest_t **manifest_out,
                                 char **report_out, heft_error_t *err)
{
    heft_manifest_t *manifest = NULL;
    heft__problems_t problems = { .n = 0 };
    heft_status_t status = decode_head(root, &manifest, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__text_init(&problems.lines);
    manifest->is_strict = true;
    manifest->problems = &problems;
    status = decode_body(root, manifest, err);
    manifest->problems = NULL;
    if (status == HEFT_OK && problems.n > 0) {
        status = problems_status(&problems, report_out, err);
    }
    if (status == HEFT_OK) {
        status = check_claims(root, manifest, err); /* of a content that is right */
    }
    heft__text_fini(&problems.lines);
    if (status != HEFT_OK) {
        heft_manifest_destroy(manifest);
        return status;
    }
    *manifest_out = manifest;
    return HEFT_OK;
}

heft_status_t heft__manifest_decode_json(const json_t *root, heft_manifest_t **manifest_out,
                                         heft_error_t *err)
{
    return decode_root(root, manifest_out, NULL, err);
}

heft_status_t heft_manifest_decode(const char *text, size_t n, heft_manifest_t **manifest_out,
                                   heft_error_t *err)
{
    return heft_manifest_decode_report(text, n, manifest_out, NULL, err);
}

heft_status_t heft_manifest_decode_report(const char *text, size_t n,
                                          heft_manifest_t **manifest_out, char **report_out,
                                          heft_error_t *err)
{
    json_error_t json_error;
    if (report_out != NULL) {
        *report_out = NULL;
    }
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL) {
        if (json_error_code(&json_error) == json_error_out_of_memory) {
            return heft__error_nomem(err, n);
        }
        return heft__error_set(err, HEFT_ERR_FORMAT, "manifest: line %d, byte %d: %s",
                               json_error.line, json_error.position, json_error.text);
    }
    heft_status_t status = decode_root(root, manifest_out, report_out, err);
    json_decref(root);
    return status;
}
