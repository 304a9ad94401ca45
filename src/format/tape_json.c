/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing tapes (docs/formats/tape.md), and their digest. Both go over the normal form, so neither
 * depends on how the buffers of a tape are numbered. Notes are written, but not in the digest: they
 * say where a write comes from, not what it does.
 */

#include "format/format.h"

#include <string.h>

#include "format/tape_line.h"

/* ---- what lines refer to ---- */

typedef struct writer {
    const heft_tape_t *tape; /* in normal form */
    heft__tape_words_t words;
    heft__map_t op_numbers;
    heft__map_t note_numbers;
    heft_error_t *err;
} writer_t;

/* The number of a text, in the order of first use. */
static heft_status_t number_text(writer_t *w, heft__map_t *map, const char **list, uint32_t *n,
                                 const char *text)
{
    heft_status_t status = heft__map_put(map, text, strlen(text), *n);
    if (status == HEFT_ERR_NOMEM) {
        return heft__error_nomem(w->err, strlen(text));
    }
    if (status == HEFT_OK) {
        list[(*n)++] = text;
    }
    return HEFT_OK;
}

static void count_buffers(writer_t *w)
{
    for (size_t b = 0; b < w->tape->n_buffers; b++) {
        heft_buffer_kind_t kind = w->tape->buffers[b].kind;
        w->words.n_sources += kind == HEFT_BUFFER_SOURCE;
        w->words.n_params += kind == HEFT_BUFFER_PARAM;
        w->words.n_temps += kind == HEFT_BUFFER_TEMP;
    }
}

static heft_status_t collect_words(writer_t *w)
{
    const size_t n = w->tape->n_writes;
    w->words.ops = heft__calloc(n + 1, sizeof *w->words.ops);
    w->words.notes = heft__calloc(n + 1, sizeof *w->words.notes);
    if (w->words.ops == NULL || w->words.notes == NULL) {
        return heft__error_nomem(w->err, n * sizeof *w->words.ops);
    }
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft__write_t *write = &w->tape->writes[i];
        if (write->op[0] != '\0') {
            status = number_text(w, &w->op_numbers, w->words.ops, &w->words.n_ops, write->op);
        }
        if (status == HEFT_OK && write->note[0] != '\0') {
            status =
                number_text(w, &w->note_numbers, w->words.notes, &w->words.n_notes, write->note);
        }
    }
    return status;
}

static heft_status_t writer_init(writer_t *w, const heft_tape_t *normal, heft_error_t *err)
{
    *w = (writer_t){ .tape = normal, .err = err };
    heft__map_init(&w->op_numbers);
    heft__map_init(&w->note_numbers);
    count_buffers(w);
    return collect_words(w);
}

static void writer_fini(writer_t *w)
{
    heft__map_fini(&w->op_numbers);
    heft__map_fini(&w->note_numbers);
    heft__free(w->words.ops);
    heft__free(w->words.notes);
}

static uint32_t number_of(const heft__map_t *map, const char *text)
{
    return text[0] != '\0' ? heft__map_get(map, text, strlen(text)) : HEFT__NO_WORD;
}

static void put_line(writer_t *w, heft__text_t *out, const heft__write_t *write)
{
    heft__tape_line_put(out, &w->words, write, number_of(&w->op_numbers, write->op));
}

/* ---- digest ---- */

static void hash_buffer(heft__sha256_t *hash, const heft_buffer_info_t *info)
{
    heft__sha256_update_u64(hash, info->kind);
    heft__sha256_update_text(hash, info->name);
    heft__sha256_update_u64(hash, info->dtype);
    heft__sha256_update_u64(hash, (uint64_t)info->shape.rank);
    for (int k = 0; k < info->shape.rank; k++) {
        heft__sha256_update_u64(hash, (uint64_t)info->shape.extent[k]);
    }
}

static heft_status_t make_digest(writer_t *w, char digest[HEFT_TAPE_DIGEST_BYTES])
{
    heft__sha256_t hash;
    heft__text_t line;
    uint8_t bytes[32];
    bool failed = false;
    heft__sha256_init(&hash);
    heft__sha256_update_text(&hash, "heft tape 1");
    heft__sha256_update_u64(&hash, w->tape->n_buffers);
    for (size_t b = 0; b < w->tape->n_buffers; b++) {
        hash_buffer(&hash, &w->tape->buffers[b]);
    }
    heft__sha256_update_u64(&hash, w->words.n_ops);
    for (uint32_t i = 0; i < w->words.n_ops; i++) {
        heft__sha256_update_text(&hash, w->words.ops[i]);
    }
    heft__sha256_update_u64(&hash, w->tape->n_writes);
    heft__text_init(&line);
    for (size_t i = 0; i < w->tape->n_writes && !failed; i++) {
        heft__text_reset(&line);
        put_line(w, &line, &w->tape->writes[i]);
        heft__sha256_update_text(&hash, line.data);
        failed = line.failed;
    }
    heft__text_fini(&line);
    heft__sha256_final(&hash, bytes);
    heft__hex(bytes, sizeof bytes, digest);
    return failed ? heft__error_nomem(w->err, 0) : HEFT_OK;
}

heft_status_t heft__tape_make_digest(const heft_tape_t *normal,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err)
{
    writer_t w;
    char digest[HEFT_TAPE_DIGEST_BYTES];
    heft_status_t status = writer_init(&w, normal, err);
    status = status == HEFT_OK ? make_digest(&w, digest) : status;
    writer_fini(&w);
    if (status == HEFT_OK) {
        memcpy(digest_out, digest, sizeof digest);
    }
    return status;
}

heft_status_t heft_tape_query_digest(const heft_tape_t *tape,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err)
{
    heft_tape_t *normal = NULL;
    heft_status_t status = heft__tape_normalise(tape, NULL, 0, &normal, err);
    status = status == HEFT_OK ? heft__tape_make_digest(normal, digest_out, err) : status;
    heft_tape_destroy(normal);
    return status;
}

/* ---- text ---- */

/* JSON holds UTF-8, and messages one line. */
static heft_status_t check_text(const writer_t *w, const char *what, const char *text)
{
    return heft__text_is_clean(text)
               ? HEFT_OK
               : heft__error_set(w->err, HEFT_ERR_FORMAT,
                                 "tape: %s \"%.100s\" is no UTF-8 without control characters", what,
                                 text);
}

static heft_status_t check_texts(const writer_t *w)
{
    heft_status_t status = HEFT_OK;
    for (size_t b = 0; b < w->tape->n_buffers && status == HEFT_OK; b++) {
        status = check_text(w, "name", w->tape->buffers[b].name);
    }
    for (uint32_t i = 0; i < w->words.n_ops && status == HEFT_OK; i++) {
        status = check_text(w, "operation", w->words.ops[i]);
    }
    for (uint32_t i = 0; i < w->words.n_notes && status == HEFT_OK; i++) {
        status = check_text(w, "note", w->words.notes[i]);
    }
    return status;
}

static void put_named(const writer_t *w, heft__text_t *out, const char *key, size_t first, size_t n)
{
    heft__text_printf(out, " \"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        const heft_buffer_info_t *info = &w->tape->buffers[first + i];
        heft_shape_t shape; /* as it was given: of packed dtypes, in elements */
        heft__shape_to_logical(&info->shape, info->dtype, &shape);
        heft__text_put(out, i > 0 ? ",\n  [" : "\n  [");
        heft__text_put_json(out, info->name);
        heft__text_printf(out, ", \"%s\", [", heft_dtype_get_name(info->dtype));
        for (int k = 0; k < shape.rank; k++) {
            heft__text_printf(out, k > 0 ? ", %lld" : "%lld", (long long)shape.extent[k]);
        }
        heft__text_put(out, "]]");
    }
    heft__text_put(out, n > 0 ? "\n ],\n" : "],\n");
}

static void put_temps(const writer_t *w, heft__text_t *out)
{
    size_t first = (size_t)w->words.n_sources + w->words.n_params;
    heft__text_put(out, " \"temporaries\": [");
    for (size_t b = first; b < w->tape->n_buffers; b++) {
        const heft_buffer_info_t *info = &w->tape->buffers[b];
        heft_shape_t shape;
        heft__shape_to_logical(&info->shape, info->dtype, &shape);
        heft__text_printf(out, "%s[\"%s\", %lld]", b > first ? ", " : "",
                          heft_dtype_get_name(info->dtype), (long long)shape.extent[0]);
    }
    heft__text_put(out, "],\n");
}

static void put_texts(heft__text_t *out, const char *key, const char *const *texts, uint32_t n)
{
    heft__text_printf(out, " \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) {
        heft__text_put(out, i > 0 ? ",\n  " : "\n  ");
        heft__text_put_json(out, texts[i]);
    }
    heft__text_put(out, n > 0 ? "\n ],\n" : "],\n");
}

static void put_writes(writer_t *w, heft__text_t *out)
{
    heft__text_put(out, " \"writes\": [");
    for (size_t i = 0; i < w->tape->n_writes; i++) {
        const heft__write_t *write = &w->tape->writes[i];
        heft__text_put(out, i > 0 ? ",\n  \"" : "\n  \"");
        put_line(w, out, write);
        if (write->note[0] != '\0') {
            heft__tape_line_put_note(out, number_of(&w->note_numbers, write->note));
        }
        heft__text_put(out, "\"");
    }
    heft__text_put(out, w->tape->n_writes > 0 ? "\n ]\n}" : "]\n}");
}

static heft_status_t put_tape(writer_t *w, bool has_names, heft__text_t *out)
{
    char digest[HEFT_TAPE_DIGEST_BYTES];
    heft_status_t status = check_texts(w);
    status = status == HEFT_OK ? make_digest(w, digest) : status;
    if (status != HEFT_OK) {
        return status;
    }
    heft__text_printf(out, "{\n \"heft_tape\": %d,\n \"digest\": \"%s\",\n", (int)HEFT__TAPE_FORMAT,
                      digest);
    if (has_names) {
        put_named(w, out, "sources", 0, w->words.n_sources);
        put_named(w, out, "parameters", w->words.n_sources, w->words.n_params);
    }
    put_temps(w, out);
    put_texts(out, "operations", w->words.ops, w->words.n_ops);
    put_texts(out, "notes", w->words.notes, w->words.n_notes);
    put_writes(w, out);
    return HEFT_OK;
}

heft_status_t heft__tape_put(heft__text_t *out, const heft_tape_t *normal, bool has_names,
                             heft_error_t *err)
{
    writer_t w;
    heft_status_t status = writer_init(&w, normal, err);
    status = status == HEFT_OK ? put_tape(&w, has_names, out) : status;
    writer_fini(&w);
    return status;
}

heft_status_t heft_tape_encode(const heft_tape_t *tape, char **text_out, heft_error_t *err)
{
    heft__text_t out;
    heft_tape_t *normal = NULL;
    heft_status_t status = heft__tape_normalise(tape, NULL, 0, &normal, err);
    heft__text_init(&out);
    status = status == HEFT_OK ? heft__tape_put(&out, normal, true, err) : status;
    heft__text_put(&out, "\n");
    char *text = status == HEFT_OK ? heft__text_take(&out) : NULL;
    heft__text_fini(&out);
    heft_tape_destroy(normal);
    if (text == NULL) {
        return status != HEFT_OK ? status : heft__error_nomem(err, 0);
    }
    *text_out = text;
    return HEFT_OK;
}
