/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links as JSON. One table of keys drives reading, checking and writing: a key that is not in it is
 * an error, and nothing has a default that is not in the table.
 */
#include "plan/price.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1 };

#define MAX_COUNT 65536
#define MAX_RATE 1e18
#define MAX_SECONDS 1e6
#define MAX_RATIO 1e6
#define DEFAULT_CHUNK (INT64_C(8) << 20)
#define MAX_CHUNK (INT64_C(1) << 40)

typedef enum form {
    COUNT,   /* 1 to MAX_COUNT */
    SIZE,    /* 1 to MAX_CHUNK */
    RATE,    /* above 0 */
    SECONDS, /* 0 or more */
    RATIO    /* 1 or more */
} form_t;

typedef struct field {
    const char *key;
    form_t form;
    bool is_optional;
    size_t offset;
} field_t;

typedef struct section {
    const char *key; /* NULL: of the root */
    const field_t *fields;
    size_t n_fields;
    size_t flag; /* offset of the bool that says it is there; 0: it is required */
    bool is_optional;
} section_t;

#define AT(member) offsetof(struct heft_links, member)
#define N(array) (sizeof(array) / sizeof(array)[0])

static const field_t root_fields[] = {
    { "chunk_bytes", SIZE, true, AT(chunk_bytes) },
};
static const field_t source_fields[] = {
    { "ranks_per_host", COUNT, false, AT(source.ranks_per_host) },
    { "nics_per_host", COUNT, false, AT(source.nics_per_host) },
};
static const field_t destination_fields[] = {
    { "ranks_per_host", COUNT, false, AT(destination.ranks_per_host) },
    { "nics_per_host", COUNT, false, AT(destination.nics_per_host) },
};
static const field_t nic_fields[] = {
    { "bytes_per_s", RATE, false, AT(nic_bytes_per_s) },
    { "latency_s", SECONDS, false, AT(nic_latency_s) },
    { "message_s", SECONDS, false, AT(nic_message_s) },
};
static const field_t memory_fields[] = {
    { "bytes_per_s", RATE, false, AT(memory_bytes_per_s) },
    { "latency_s", SECONDS, false, AT(memory_latency_s) },
    { "message_s", SECONDS, false, AT(memory_message_s) },
    { "host_bytes_per_s", RATE, true, AT(memory_host_bytes_per_s) },
};
static const field_t switch_fields[] = {
    { "hosts", COUNT, false, AT(switch_hosts) },
    { "oversubscription", RATIO, false, AT(switch_oversubscription) },
    { "latency_s", SECONDS, false, AT(switch_latency_s) },
};
static const field_t copy_fields[] = {
    { "bytes_per_s", RATE, false, AT(copy_bytes_per_s) },
    { "run_s", SECONDS, false, AT(copy_run_s) },
};
static const field_t flip_fields[] = {
    { "bytes_per_s", RATE, false, AT(flip_bytes_per_s) },
};
static const field_t digest_fields[] = {
    { "bytes_per_s", RATE, false, AT(digest_bytes_per_s) },
};
static const field_t control_fields[] = {
    { "phase_s", SECONDS, false, AT(control_phase_s) },
    { "member_s", SECONDS, false, AT(control_member_s) },
};

#define SECTION(name) .key = #name, .fields = name##_fields, .n_fields = N(name##_fields)
static const section_t sections[] = {
    { SECTION(source) },
    { SECTION(destination) },
    { SECTION(nic), .flag = AT(has_nic), .is_optional = true },
    { SECTION(memory), .flag = AT(has_memory), .is_optional = true },
    { SECTION(switch), .flag = AT(has_switch), .is_optional = true },
    { SECTION(copy) },
    { SECTION(flip) },
    { SECTION(digest) },
    { SECTION(control), .is_optional = true },
};
static const section_t root_section = { .fields = root_fields, .n_fields = N(root_fields) };

static bool is_count(form_t form)
{
    return form == COUNT || form == SIZE;
}

/* ---- reading ---- */

static heft_status_t wrong(const char *section, const char *key, const char *want,
                           heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_FORMAT, "links: \"%s%s%s\" is no %s",
                           section != NULL ? section : "", section != NULL ? "." : "", key, want);
}

static heft_status_t read_count(const section_t *section, const field_t *field, const json_t *value,
                                int64_t *out, heft_error_t *err)
{
    const int64_t most = field->form == COUNT ? MAX_COUNT : MAX_CHUNK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > most) {
        char want[64];
        (void)snprintf(want, sizeof want, "integer from 1 to %lld", (long long)most);
        return wrong(section->key, field->key, want, err);
    }
    *out = json_integer_value(value);
    return HEFT_OK;
}

static heft_status_t read_real(const section_t *section, const field_t *field, const json_t *value,
                               double *out, heft_error_t *err)
{
    static const struct {
        double least, most;
        const char *want;
    } bounds[] = {
        [RATE] = { 1e-6, MAX_RATE, "number from 1e-6 to 1e18" },
        [SECONDS] = { 0, MAX_SECONDS, "number from 0 to 1e6" },
        [RATIO] = { 1, MAX_RATIO, "number from 1 to 1e6" },
    };
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(number >= bounds[field->form].least && number <= bounds[field->form].most)) {
        return wrong(section->key, field->key, bounds[field->form].want, err);
    }
    *out = number;
    return HEFT_OK;
}

static heft_status_t read_field(const section_t *section, const field_t *field,
                                const json_t *object, heft_links_t *links, heft_error_t *err)
{
    const json_t *value = json_object_get(object, field->key);
    char *at = (char *)links + field->offset;
    if (value == NULL) {
        return field->is_optional
                   ? HEFT_OK
                   : heft__error_set(err, HEFT_ERR_FORMAT, "links: \"%s.%s\" is missing",
                                     section->key, field->key);
    }
    return is_count(field->form) ? read_count(section, field, value, (int64_t *)(void *)at, err)
                                 : read_real(section, field, value, (double *)(void *)at, err);
}

static bool is_known(const section_t *section, const char *key)
{
    for (size_t i = 0; i < section->n_fields; i++) {
        if (strcmp(section->fields[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

static heft_status_t read_section(const section_t *section, json_t *root, heft_links_t *links,
                                  heft_error_t *err)
{
    json_t *object = json_object_get(root, section->key);
    if (object == NULL) {
        return section->is_optional ? HEFT_OK
                                    : heft__error_set(err, HEFT_ERR_FORMAT,
                                                      "links: \"%s\" is missing", section->key);
    }
    if (!json_is_object(object)) {
        return wrong(NULL, section->key, "object", err);
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!is_known(section, key)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "links: \"%s.%.80s\" is no key",
                                   section->key, key);
        }
    }
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < section->n_fields && status == HEFT_OK; i++) {
        status = read_field(section, &section->fields[i], object, links, err);
    }
    if (section->flag != 0) {
        *((bool *)((char *)links + section->flag)) = true;
    }
    return status;
}

static bool is_root_key(const char *key)
{
    bool is_one = strcmp(key, "format") == 0 || strcmp(key, "shared_hosts") == 0 ||
                  is_known(&root_section, key);
    for (size_t i = 0; i < N(sections) && !is_one; i++) {
        is_one = strcmp(key, sections[i].key) == 0;
    }
    return is_one;
}

static heft_status_t read_root(json_t *root, heft_links_t *links, heft_error_t *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(root)) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "links: an object is wanted");
    }
    json_object_foreach(root, key, value)
    {
        if (!is_root_key(key)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "links: \"%.80s\" is no key", key);
        }
    }
    const json_t *format = json_object_get(root, "format");
    if (!json_is_integer(format) || json_integer_value(format) != FORMAT) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "links: \"format\" is not %d", FORMAT);
    }
    const json_t *shared = json_object_get(root, "shared_hosts");
    if (shared != NULL && !json_is_boolean(shared)) {
        return wrong(NULL, "shared_hosts", "true or false", err);
    }
    links->shared_hosts = json_is_true(shared);
    links->chunk_bytes = DEFAULT_CHUNK;
    heft_status_t status = read_field(&root_section, &root_fields[0], root, links, err);
    for (size_t i = 0; i < N(sections) && status == HEFT_OK; i++) {
        status = read_section(&sections[i], root, links, err);
    }
    return status;
}

/* What keys of several sections must agree in. */
static heft_status_t check_side(const heft__side_links_t *side, const char *name, heft_error_t *err)
{
    const int64_t ports = heft__links_n_ports(side);
    if (side->ranks_per_host % ports != 0 || side->nics_per_host % ports != 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "links: \"%s\": of %lld ranks and %lld NICs of a host neither "
                               "number divides the other",
                               name, (long long)side->ranks_per_host,
                               (long long)side->nics_per_host);
    }
    return HEFT_OK;
}

static heft_status_t check(const heft_links_t *links, heft_error_t *err)
{
    heft_status_t status = check_side(&links->source, "source", err);
    if (status == HEFT_OK) {
        status = check_side(&links->destination, "destination", err);
    }
    if (status == HEFT_OK && !links->has_nic && !links->has_memory) {
        status = heft__error_set(err, HEFT_ERR_FORMAT,
                                 "links: neither \"nic\" nor \"memory\": nothing can be sent");
    }
    if (status == HEFT_OK && links->has_switch && !links->has_nic) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "links: a \"switch\" without \"nic\"");
    }
    return status;
}

heft_status_t heft_links_decode(const char *text, size_t n, heft_links_t **links_out,
                                heft_error_t *err)
{
    if (text == NULL || links_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "links: no text or no output");
    }
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return json_error_code(&error) == json_error_out_of_memory
                   ? heft__error_nomem(err, n)
                   : heft__error_set(err, HEFT_ERR_FORMAT, "links: line %d, byte %d: %s",
                                     error.line, error.position, error.text);
    }
    heft_links_t *links = heft__calloc(1, sizeof *links);
    heft_status_t status =
        links != NULL ? read_root(root, links, err) : heft__error_nomem(err, sizeof *links);
    json_decref(root);
    if (status == HEFT_OK) {
        status = check(links, err);
    }
    if (status != HEFT_OK) {
        heft_links_destroy(links);
        return status;
    }
    *links_out = links;
    return HEFT_OK;
}

void heft_links_destroy(heft_links_t *links)
{
    heft__free(links);
}

/* ---- writing ---- */

/* In no more digits than reading it again takes, with a point whatever the locale. */
static void write_real(double value, char out[40])
{
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(out, 40, "%.*g", digits, value);
        if (strtod(out, NULL) == value) {
            break;
        }
    }
    char *comma = strchr(out, ',');
    if (comma != NULL) {
        *comma = '.';
    }
}

static void put_field(heft__text_t *out, const heft_links_t *links, const field_t *field)
{
    const char *at = (const char *)links + field->offset;
    if (is_count(field->form)) {
        heft__text_printf(out, "\"%s\": %lld", field->key,
                          (long long)*(const int64_t *)(const void *)at);
    } else {
        char number[40];
        write_real(*(const double *)(const void *)at, number);
        heft__text_printf(out, "\"%s\": %s", field->key, number);
    }
}

static bool is_written(const heft_links_t *links, const field_t *field)
{
    const char *at = (const char *)links + field->offset;
    return !field->is_optional || is_count(field->form) || *(const double *)(const void *)at > 0;
}

static void put_section(heft__text_t *out, const heft_links_t *links, const section_t *section)
{
    const bool *flag = (const bool *)((const char *)links + section->flag);
    if (section->flag != 0 && !*flag) {
        return;
    }
    heft__text_printf(out, ",\n  \"%s\": {", section->key);
    for (size_t i = 0; i < section->n_fields; i++) {
        if (is_written(links, &section->fields[i])) {
            heft__text_put(out, i > 0 ? ", " : "");
            put_field(out, links, &section->fields[i]);
        }
    }
    heft__text_put(out, "}");
}

heft_status_t heft_links_encode(const heft_links_t *links, char **text_out, heft_error_t *err)
{
    heft__text_t out;
    heft__text_init(&out);
    heft__text_printf(&out, "{\n  \"format\": %d,\n  \"shared_hosts\": %s,\n  ", FORMAT,
                      links->shared_hosts ? "true" : "false");
    put_field(&out, links, &root_fields[0]);
    for (size_t i = 0; i < N(sections); i++) {
        put_section(&out, links, &sections[i]);
    }
    heft__text_put(&out, "\n}\n");
    char *text = heft__text_take(&out);
    if (text == NULL) {
        return heft__error_nomem(err, 0);
    }
    *text_out = text;
    return HEFT_OK;
}
