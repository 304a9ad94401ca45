/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the round service: one table of knobs, and where the value of each comes from.
 *
 * A knob has one name: `poll-ms` is the key of the settings file, --poll-ms the flag of the
 * command, HEFT_POLL_MS the variable and `poll_ms` the field of an options struct. The first that
 * gives a value wins: flag or field, then environment, then file, then the default. Calls that take
 * an options struct do this by themselves for every field that is zero.
 *
 * The settings file has one `key = value` a line; `#` begins a line of comment. It is named by
 * HEFT_SETTINGS; none is looked up elsewhere.
 */
#ifndef HEFT_CONFIG_H
#define HEFT_CONFIG_H

#include "heft/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heft_knob_kind {
    HEFT_KNOB_TEXT = 0,
    HEFT_KNOB_FILE = 1,   /* a path */
    HEFT_KNOB_NUMBER = 2, /* a whole number from min to max */
    HEFT_KNOB_BYTES = 3,  /* the same, with an optional suffix K, M, G, T (powers of 1000) */
    HEFT_KNOB_FLAG = 4    /* 0, 1, true or false */
} heft_knob_kind_t;

/* Who looks at a knob. */
enum heft_knob_users {
    HEFT_KNOB_COORDINATOR = 1u << 0,
    HEFT_KNOB_PUBLISHER = 1u << 1,
    HEFT_KNOB_SUBSCRIBER = 1u << 2,
    HEFT_KNOB_CLIENT = 1u << 3, /* calls such as heft_client_get */
    HEFT_KNOB_PROCESS = 1u << 4 /* the whole process: from the environment alone */
};

/** One row of the table; constant. */
typedef struct heft_knob {
    const char *name;     /* "poll-ms" */
    const char *variable; /* "HEFT_POLL_MS" */
    const char *value;    /* what stands for the value in help: "N"; NULL for flags */
    const char *fallback; /* the default, as text; NULL: none */
    const char *help;     /* sentences */
    const char *removed;  /* NULL, or what to use in place of this knob, which exists no more */
    int64_t min, max;
    heft_knob_kind_t kind;
    uint32_t users;      /* enum heft_knob_users */
    const char *choices; /* of a text: NULL, or "a b c": the only values */
} heft_knob_t;

/** The table. Index beyond it: NULL. Threads: any. */
HEFT_API uint32_t heft_config_get_n_knobs(void);
HEFT_API const heft_knob_t *heft_config_get_knob(uint32_t i);

typedef enum heft_origin {
    HEFT_ORIGIN_NONE = 0, /* no value at all */
    HEFT_ORIGIN_DEFAULT = 1,
    HEFT_ORIGIN_FILE = 2,
    HEFT_ORIGIN_ENVIRONMENT = 3,
    HEFT_ORIGIN_FLAG = 4
} heft_origin_t;

/* The effective value of a knob. Texts are borrowed until the next change of the config. */
typedef struct heft_setting {
    const heft_knob_t *knob;
    const char *text; /* as given; NULL: no value */
    int64_t number;   /* of numbers, bytes and flags */
    heft_origin_t origin;
    uint32_t line;     /* of the file */
    const char *where; /* "HEFT_POLL_MS", the file's path, "default", "flag"; never NULL */
} heft_setting_t;

typedef struct heft_config heft_config_t; /* confined */

/**
 * Read the settings file (NULL: the one that HEFT_SETTINGS names, or none) and the environment.
 * HEFT_ERR_ARGUMENT, with file and line, or the variable: an unknown key (the nearest is named),
 * one given twice, one that was removed, a value of the wrong kind, out of bounds or none of the
 * choices. HEFT_ERR_IO: the file cannot be read.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_config_create(const char *file,
                                                          heft_config_t **config_out,
                                                          heft_error_t *err);
HEFT_API void heft_config_destroy(heft_config_t *config);
/** Give a knob a value as a flag does. HEFT_ERR_ARGUMENT; the config is unchanged then. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_config_set(heft_config_t *config, const char *name,
                                                       const char *text, heft_error_t *err);
/** HEFT_ERR_NOT_FOUND: no such knob; the message names the nearest. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_config_query(const heft_config_t *config,
                                                         const char *name,
                                                         heft_setting_t *setting_out,
                                                         heft_error_t *err);
/** One line about a variable HEFT_... that no knob has; NULL beyond the last. Borrowed. */
HEFT_API const char *heft_config_get_warning(const heft_config_t *config, uint32_t i);

#ifdef __cplusplus
}
#endif

#endif
