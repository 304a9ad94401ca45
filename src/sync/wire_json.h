/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict JSON for the wire: each message is a table of fields, and the same table decodes and
 * encodes it.
 *
 * Decoding refuses what is not in the table, what has another type or is out of bounds, and names
 * the key. Encoding leaves out optional fields that hold nothing (0, "", no round). Fields of kind
 * OBJECT, LIST and ANY are checked for their JSON type only: the caller reads and writes them.
 */
#ifndef HEFT_SYNC_WIRE_JSON_H
#define HEFT_SYNC_WIRE_JSON_H

#include <jansson.h>

#include "sync/wire.h"

typedef enum heft__field_kind {
    HEFT__FIELD_INT = 1, /* int64_t, min to max */
    HEFT__FIELD_U32,     /* uint32_t, min to max */
    HEFT__FIELD_BOOL,    /* bool */
    HEFT__FIELD_REAL,    /* double */
    HEFT__FIELD_TEXT,    /* char[max], at least min bytes */
    HEFT__FIELD_HEX,     /* char[max + 1], exactly max digits */
    HEFT__FIELD_ROUND,   /* heft__round_id_t */
    HEFT__FIELD_ENUM,    /* enumeration, by names */
    HEFT__FIELD_STATUS,  /* heft_status_t by name */
    HEFT__FIELD_RANK,    /* int32_t; -1 when absent */
    HEFT__FIELD_OBJECT,
    HEFT__FIELD_LIST,
    HEFT__FIELD_ANY_TEXT /* text of any length */
} heft__field_kind_t;

typedef struct heft__name {
    int value;
    const char *text;
} heft__name_t;

typedef struct heft__field {
    const char *key;
    heft__field_kind_t kind;
    bool required;
    size_t offset;
    int64_t min;
    int64_t max;
    const heft__name_t *names; /* ENUM: ends with text NULL */
} heft__field_t;

/* The last field has key NULL. */
#define HEFT__FIELD_END                             \
    {                                               \
        NULL, HEFT__FIELD_INT, false, 0, 0, 0, NULL \
    }

/* Parse text to one JSON object: size, depth, duplicates, then object or not. what names the
 * message. */
heft_status_t heft__json_parse(const char *text, size_t n, const char *what, json_t **root_out,
                               heft_error_t *err);
/* Read an object into a struct through a table; fields that are absent leave the struct as it is.
 */
heft_status_t heft__json_read(json_t *object, const heft__field_t *fields, const char *what,
                              void *out, heft_error_t *err);
/* Add a struct's fields to an object. HEFT_ERR_NOMEM. */
heft_status_t heft__json_write(json_t *object, const heft__field_t *fields, const void *in,
                               heft_error_t *err);
/* Messages without lists or objects, in one call. */
heft_status_t heft__json_decode_flat(const char *text, size_t n, const heft__field_t *fields,
                                     const char *what, void *out, heft_error_t *err);
heft_status_t heft__json_encode_flat(const heft__field_t *fields, const void *in, char **text_out,
                                     heft_error_t *err);
/* Take the object and give its compact text (heft__free); object may be NULL (out of memory). */
heft_status_t heft__json_finish(json_t *object, char **text_out, heft_error_t *err);
/* Compact text with sorted keys, so that equal values give equal text (heft__free); NULL: no
 * memory.
 */
char *heft__json_sorted_text(const json_t *value);
/* A string; where the bytes are no UTF-8 (a message cut in the middle), as heft__text_tidy leaves
 * it. NULL: no memory. */
json_t *heft__json_text(const char *text);
/* Steal value into object under key; false when out of memory (value is released). */
bool heft__json_put(json_t *object, const char *key, json_t *value);
/* key, made fit for a message: printable, at most 60 bytes. out holds 64. */
const char *heft__json_show(const char *key, char *out);

/* Lists of digests, both ways: items are owned by the caller (heft__free). */
heft_status_t heft__json_read_digests(const json_t *list, const char *what, const char *key,
                                      char (**items_out)[HEFT__DIGEST_SIZE], uint32_t *n_out,
                                      heft_error_t *err);
json_t *heft__json_digests(char (*items)[HEFT__DIGEST_SIZE], uint32_t n);
/* A list of member ids that is not empty: the same. */
heft_status_t heft__json_read_ids(const json_t *list, const char *what, const char *key,
                                  char (**items_out)[HEFT__ID_SIZE], uint32_t *n_out,
                                  heft_error_t *err);
/* Lists of transports, into a struct's own storage. */
heft_status_t heft__json_read_transports(const json_t *list, const char *what,
                                         char (*out)[HEFT__TRANSPORT_SIZE], uint32_t *n_out,
                                         heft_error_t *err);
json_t *heft__json_transports(const char (*items)[HEFT__TRANSPORT_SIZE], uint32_t n);

/* The error object of reports and results; its fields are heft__wire_error_t's. */
extern const heft__field_t heft__error_fields[];
extern const heft__field_t heft__counter_fields[];
json_t *heft__json_error(const heft__wire_error_t *error);
json_t *heft__json_counters(const heft__counters_t *counters);
/* The list of problems; an empty list when there are none. */
json_t *heft__json_problems(const heft__problems_t *problems);

/* The value of "refused" in the list of rounds. */
heft_status_t heft__refusal_read(json_t *object, heft__refusal_t *out, heft_error_t *err);

/* Names of the enumerations. */
extern const heft__name_t heft__role_names[];
extern const heft__name_t heft__phase_names[];
extern const heft__name_t heft__result_names[];
extern const heft__name_t heft__state_names[];
extern const heft__name_t heft__condition_names[];
extern const heft__name_t heft__decision_names[];
extern const heft__name_t heft__carries_names[];
extern const heft__name_t heft__problem_names[];
/* heft_status_t by its name; false for none. */
bool heft__status_from_name(const char *name, heft_status_t *out);

#endif
