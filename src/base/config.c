/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: values by knob, filled in the order file, environment, flags, so that a later one wins.
 * Nothing is guessed: what is not in the table, given twice, or not of its kind is an error that
 * says where it stands.
 */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_BYTES (64u << 10)
#define PREFIX "HEFT_"

typedef struct value {
    char *text; /* owned; NULL: not given */
    int64_t number;
    heft_origin_t origin;
    uint32_t line;
} value_t;

typedef struct warning {
    char *text;       /* owned */
    bool is_misspelt; /* near a knob's variable */
} warning_t;

struct heft_config {
    const heft_knob_t *knobs;
    uint32_t n_knobs;
    value_t *values; /* by knob */
    char *path;      /* of the file; NULL: none */
    warning_t *warnings;
    size_t warnings_cap;
    uint32_t n_warnings;
};

/* ---- names ---- */

static int find(const heft_knob_t *knobs, uint32_t n, const char *name, size_t len)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strlen(knobs[i].name) == len && memcmp(knobs[i].name, name, len) == 0) {
            return (int)i;
        }
    }
    return -1;
}

const heft_knob_t *heft__knob_find(const char *name)
{
    uint32_t n;
    const heft_knob_t *knobs = heft__knobs(&n);
    const int i = find(knobs, n, name, strlen(name));
    return i >= 0 ? &knobs[i] : NULL;
}

/* The nearest name (or variable), or NULL when none is near. */
static const char *nearest(const heft_knob_t *knobs, uint32_t n, const char *word,
                           bool of_variables, uint32_t limit)
{
    const char *best = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const char *candidate = of_variables ? knobs[i].variable : knobs[i].name;
        const uint32_t distance = heft__edit_distance(word, candidate, limit);
        if (distance <= limit) {
            best = candidate;
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return best;
}

/* ---- values ---- */

static heft_status_t bad_value(const heft_knob_t *knob, const char *where, const char *text,
                               heft_error_t *err)
{
    const char *more = knob->kind == HEFT_KNOB_BYTES ? " (K, M, G, T may follow)" : "";
    if (knob->kind == HEFT_KNOB_FLAG) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: \"%.60s\" is none of 0, 1, true, false",
                               where, text);
    }
    return heft__error_set(err, HEFT_ERR_ARGUMENT,
                           "%s: \"%.60s\" is not a whole number from %lld to %lld%s", where, text,
                           (long long)knob->min, (long long)knob->max, more);
}

static bool parse_number(const char *text, bool with_suffix, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    int64_t number = value;
    if (errno != 0 || end == text || text[0] < '0' || text[0] > '9') {
        return false;
    }
    static const char suffixes[] = "KMGT";
    const char *suffix = *end != '\0' && with_suffix ? strchr(suffixes, *end) : NULL;
    for (const char *s = suffixes; suffix != NULL && s <= suffix; s++) {
        if (!heft__mul(number, 1000, &number)) {
            return false;
        }
    }
    end += suffix != NULL;
    *out = number;
    return *end == '\0';
}

static bool is_choice(const char *choices, const char *text)
{
    const size_t n = strlen(text);
    for (const char *at = choices; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, text, n) == 0) {
            return true;
        }
        at += length;
    }
    return false;
}

static heft_status_t parse_value(const heft_knob_t *knob, const char *where, const char *text,
                                 int64_t *number_out, heft_error_t *err)
{
    if (text[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: an empty value", where);
    }
    if (knob->choices != NULL && !is_choice(knob->choices, text)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: no \"%.60s\"; one of: %s", where, text,
                               knob->choices);
    }
    int64_t number = 0;
    bool is_right = true;
    if (knob->kind == HEFT_KNOB_FLAG) {
        number = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
        is_right = number != 0 || strcmp(text, "0") == 0 || strcmp(text, "false") == 0;
    } else if (knob->kind == HEFT_KNOB_NUMBER || knob->kind == HEFT_KNOB_BYTES) {
        is_right = parse_number(text, knob->kind == HEFT_KNOB_BYTES, &number) &&
                   number >= knob->min && number <= knob->max;
    }
    if (!is_right) {
        return bad_value(knob, where, text, err);
    }
    *number_out = number;
    return HEFT_OK;
}

heft_status_t heft__knob_check(const heft_knob_t *knob, int64_t number, heft_error_t *err)
{
    if (number < knob->min || number > knob->max) {
        char text[32];
        (void)snprintf(text, sizeof text, "%lld", (long long)number);
        return bad_value(knob, knob->name, text, err);
    }
    return HEFT_OK;
}

static heft_status_t removed(const heft_knob_t *knob, const char *where, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: %s was removed: use %s", where, knob->name,
                           knob->removed);
}

/* Give knob i a value; the value before it goes. */
static heft_status_t put_value(heft_config_t *config, uint32_t i, const char *where,
                               const char *text, heft_origin_t origin, uint32_t line,
                               heft_error_t *err)
{
    const heft_knob_t *knob = &config->knobs[i];
    int64_t number = 0;
    if (knob->removed != NULL) {
        return removed(knob, where, err);
    }
    heft_status_t status = parse_value(knob, where, text, &number, err);
    if (status != HEFT_OK) {
        return status;
    }
    char *copy = heft__strdup(text);
    if (copy == NULL) {
        return heft__error_nomem(err, strlen(text) + 1);
    }
    value_t *value = &config->values[i];
    heft__free(value->text);
    *value = (value_t){ .text = copy, .number = number, .origin = origin, .line = line };
    return HEFT_OK;
}

static heft_status_t unknown_name(const heft_config_t *config, const char *where, const char *name,
                                  heft_status_t status, heft_error_t *err)
{
    const uint32_t limit = (uint32_t)strlen(name) / 2 + 1;
    const char *near = nearest(config->knobs, config->n_knobs, name, false, limit);
    return heft__error_set(err, status, "%s%sunknown key \"%.60s\"%s%s", where,
                           where[0] != '\0' ? ": " : "", name, near != NULL ? "; nearest: " : "",
                           near != NULL ? near : "");
}

/* ---- the file ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* [*from, *to) without blanks at its ends. */
static void trim(const char **from, const char **to)
{
    while (*from < *to && is_blank(**from)) {
        ++*from;
    }
    while (*to > *from && is_blank((*to)[-1])) {
        --*to;
    }
}

/* Copy [from, to), cut at what out holds, with what cannot be printed as "?". */
static void show(const char *from, const char *to, char *out, size_t size)
{
    size_t n = 0;
    for (; from < to && n + 1 < size; from++) {
        out[n++] = (unsigned char)*from < 0x20 || *from == 0x7f ? '?' : *from;
    }
    out[n] = '\0';
}

static heft_status_t put_pair(heft_config_t *config, const char *where, const char *name,
                              const char *value, uint32_t line, heft_error_t *err)
{
    const int i = find(config->knobs, config->n_knobs, name, strlen(name));
    if (i < 0) {
        return unknown_name(config, where, name, HEFT_ERR_ARGUMENT, err);
    }
    const heft_knob_t *knob = &config->knobs[i];
    if (config->values[i].text != NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: %s was given in line %u already", where,
                               name, config->values[i].line);
    }
    if (knob->users == HEFT_KNOB_PROCESS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%s: %s is not for the file: set %s in the environment", where, name,
                               knob->variable);
    }
    char shown[260];
    (void)snprintf(shown, sizeof shown, "%s: %s", where, name);
    return put_value(config, (uint32_t)i, shown, value, HEFT_ORIGIN_FILE, line, err);
}

/* One line, without its end. */
static heft_status_t read_line(heft_config_t *config, const char *from, const char *to,
                               uint32_t line, heft_error_t *err)
{
    trim(&from, &to);
    if (from == to || *from == '#') {
        return HEFT_OK;
    }
    char where[140];
    char name[64];
    (void)snprintf(where, sizeof where, "%.110s:%u", config->path, line);
    const char *equals = memchr(from, '=', (size_t)(to - from));
    if (equals == NULL) {
        show(from, to, name, sizeof name);
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: \"%s\" is not \"key = value\"", where,
                               name);
    }
    const char *name_end = equals;
    const char *value = equals + 1;
    trim(&from, &name_end);
    trim(&value, &to);
    show(from, name_end, name, sizeof name);
    for (const char *c = value; c < to; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: %s: a control character (%u)",
                                   where, name, (unsigned char)*c);
        }
    }
    char *text = heft__strndup(value, (size_t)(to - value));
    if (text == NULL) {
        return heft__error_nomem(err, (size_t)(to - value) + 1);
    }
    heft_status_t status = put_pair(config, where, name, text, line, err);
    heft__free(text);
    return status;
}

static heft_status_t read_lines(heft_config_t *config, const char *text, size_t n,
                                heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    uint32_t line = 1;
    for (const char *end = text + n; text < end && status == HEFT_OK; line++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *to = newline != NULL ? newline : end;
        status = read_line(config, text, to, line, err);
        text = to + (newline != NULL);
    }
    return status;
}

/* ---- the environment ---- */

static heft_status_t add_warning(heft_config_t *config, const char *name, heft_error_t *err)
{
    void *items = config->warnings;
    if (!heft__grow(&items, &config->warnings_cap, config->n_warnings + 1, sizeof(warning_t))) {
        return heft__error_nomem(err, sizeof(warning_t));
    }
    config->warnings = items;
    const char *near = nearest(config->knobs, config->n_knobs, name, true, 2);
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%.80s in the environment is no setting%s%s", name,
                      near != NULL ? "; nearest: " : "", near != NULL ? near : "");
    char *taken = heft__text_take(&text);
    heft__text_fini(&text);
    if (taken == NULL) {
        return heft__error_nomem(err, strlen(name));
    }
    config->warnings[config->n_warnings++] =
        (warning_t){ .text = taken, .is_misspelt = near != NULL };
    return HEFT_OK;
}

/* "HEFT_NAME=value". An empty value is none. */
static heft_status_t read_variable(heft_config_t *config, const char *entry, heft_error_t *err)
{
    const size_t n = strcspn(entry, "=");
    for (uint32_t i = 0; i < config->n_knobs && entry[n] == '='; i++) {
        const char *variable = config->knobs[i].variable;
        if (strlen(variable) == n && memcmp(variable, entry, n) == 0) {
            return entry[n + 1] == '\0' ? HEFT_OK
                                        : put_value(config, i, variable, entry + n + 1,
                                                    HEFT_ORIGIN_ENVIRONMENT, 0, err);
        }
    }
    if (strncmp(entry, PREFIX "TEST_", strlen(PREFIX "TEST_")) == 0) {
        return HEFT_OK; /* of heft's own tests */
    }
    char *name = heft__strndup(entry, n);
    if (name == NULL) {
        return heft__error_nomem(err, n + 1);
    }
    heft_status_t status = add_warning(config, name, err);
    heft__free(name);
    return status;
}

/* ---- life ---- */

static heft_status_t fill(heft_config_t *config, const char *path, const char *text, size_t n,
                          char *const *environment, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    if (text != NULL) {
        config->path = heft__strdup(path);
        status = config->path != NULL ? read_lines(config, text, n, err)
                                      : heft__error_nomem(err, strlen(path) + 1);
    }
    for (; status == HEFT_OK && environment != NULL && *environment != NULL; environment++) {
        if (strncmp(*environment, PREFIX, strlen(PREFIX)) == 0) {
            status = read_variable(config, *environment, err);
        }
    }
    return status;
}

heft_status_t heft__config_create_over(const heft_knob_t *knobs, uint32_t n_knobs, const char *path,
                                       const char *text, size_t n, char *const *environment,
                                       heft_config_t **config_out, heft_error_t *err)
{
    heft_config_t *config = heft__calloc(1, sizeof *config);
    if (config == NULL) {
        return heft__error_nomem(err, sizeof *config);
    }
    config->knobs = knobs;
    config->n_knobs = n_knobs;
    config->values = heft__calloc(n_knobs, sizeof *config->values);
    heft_status_t status = config->values != NULL ? fill(config, path, text, n, environment, err)
                                                  : heft__error_nomem(err, sizeof *config->values);
    if (status != HEFT_OK) {
        heft_config_destroy(config);
        return status;
    }
    *config_out = config;
    return HEFT_OK;
}

heft_status_t heft_config_create(const char *file, heft_config_t **config_out, heft_error_t *err)
{
    uint32_t n_knobs;
    const heft_knob_t *knobs = heft__knobs(&n_knobs);
    const char *named = getenv("HEFT_SETTINGS");
    const char *path = file != NULL ? file : named != NULL && named[0] != '\0' ? named : NULL;
    char *text = NULL;
    size_t n = 0;
    if (path != NULL) {
        heft_status_t status =
            heft__file_read(path, "settings file", MAX_FILE_BYTES, false, &text, &n, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    heft_status_t status =
        heft__config_create_over(knobs, n_knobs, path, text, n, environ, config_out, err);
    heft__free(text);
    return status;
}

void heft_config_destroy(heft_config_t *config)
{
    if (config == NULL) {
        return;
    }
    for (uint32_t i = 0; config->values != NULL && i < config->n_knobs; i++) {
        heft__free(config->values[i].text);
    }
    for (uint32_t i = 0; i < config->n_warnings; i++) {
        heft__free(config->warnings[i].text);
    }
    heft__free(config->warnings);
    heft__free(config->values);
    heft__free(config->path);
    heft__free(config);
}

heft_status_t heft_config_set(heft_config_t *config, const char *name, const char *text,
                              heft_error_t *err)
{
    const int i = find(config->knobs, config->n_knobs, name, strlen(name));
    return i >= 0 ? put_value(config, (uint32_t)i, name, text, HEFT_ORIGIN_FLAG, 0, err)
                  : unknown_name(config, "", name, HEFT_ERR_ARGUMENT, err);
}

/* ---- reading ---- */

static const char *where_of(const heft_config_t *config, uint32_t i)
{
    switch (config->values[i].origin) {
    case HEFT_ORIGIN_FILE:
        return config->path;
    case HEFT_ORIGIN_ENVIRONMENT:
        return config->knobs[i].variable;
    case HEFT_ORIGIN_FLAG:
        return "flag";
    case HEFT_ORIGIN_NONE:
    case HEFT_ORIGIN_DEFAULT:
        break;
    }
    return config->knobs[i].fallback != NULL ? "default" : "none";
}

static void get(const heft_config_t *config, uint32_t i, heft_setting_t *out)
{
    const heft_knob_t *knob = &config->knobs[i];
    const value_t *value = &config->values[i];
    *out = (heft_setting_t){ .knob = knob,
                             .text = value->text,
                             .number = value->number,
                             .origin = value->origin,
                             .line = value->line,
                             .where = where_of(config, i) };
    if (value->text == NULL && knob->fallback != NULL) {
        out->text = knob->fallback;
        out->origin = HEFT_ORIGIN_DEFAULT;
        (void)parse_value(knob, knob->name, knob->fallback, &out->number, NULL);
    }
}

heft_status_t heft_config_query(const heft_config_t *config, const char *name,
                                heft_setting_t *setting_out, heft_error_t *err)
{
    const int i = find(config->knobs, config->n_knobs, name, strlen(name));
    if (i < 0) {
        return unknown_name(config, "", name, HEFT_ERR_NOT_FOUND, err);
    }
    get(config, (uint32_t)i, setting_out);
    return HEFT_OK;
}

void heft__config_get(const heft_config_t *config, const char *name, heft_setting_t *out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    memset(out, 0, sizeof *out);
    if (heft_config_query(config, name, out, &err) != HEFT_OK) {
        heft__bug(&err, __FILE__, __LINE__, name);
    }
}

const char *heft_config_get_warning(const heft_config_t *config, uint32_t i)
{
    return i < config->n_warnings ? config->warnings[i].text : NULL;
}

void heft__config_log_warnings(const heft_config_t *config)
{
    for (uint32_t i = 0; i < config->n_warnings; i++) {
        if (config->warnings[i].is_misspelt) {
            heft__log(HEFT_LOG_WARN, "config", "%s", config->warnings[i].text);
        }
    }
}
