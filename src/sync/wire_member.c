/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: how a member introduces itself: register, its reply, and bind.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sync/wire_json.h"
#include "transport/transport.h"

/* A register message with what is fixed in this version of the format. */
typedef struct register_message {
    uint32_t format;
    char mode[16];
    heft__register_t reg;
} register_message_t;

#define AT(member) offsetof(register_message_t, member)
static const heft__field_t register_fields[] = {
    { "format", HEFT__FIELD_U32, true, AT(format), 1, 1, NULL },
    { "role", HEFT__FIELD_ENUM, true, AT(reg.role), 0, 0, heft__role_names },
    { "job", HEFT__FIELD_TEXT, true, AT(reg.job), 1, HEFT__JOB_SIZE, NULL },
    { "replica", HEFT__FIELD_U32, true, AT(reg.replica), 0, INT32_MAX, NULL },
    { "rank", HEFT__FIELD_U32, true, AT(reg.rank), 0, INT32_MAX, NULL },
    { "incarnation", HEFT__FIELD_HEX, true, AT(reg.incarnation), 0, 32, NULL },
    { "epoch", HEFT__FIELD_INT, true, AT(reg.epoch), 0, HEFT__WIRE_MAX_INT - 1, NULL },
    { "process", HEFT__FIELD_TEXT, false, AT(reg.process), 1, HEFT__PROCESS_SIZE, NULL },
    { "host", HEFT__FIELD_HEX, false, AT(reg.host), 0, 32, NULL },
    { "mode", HEFT__FIELD_TEXT, true, AT(mode), 1, sizeof(((register_message_t *)0)->mode), NULL },
    { "transports", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef AT

void heft__process_name(char out[HEFT__PROCESS_SIZE])
{
    char host[HEFT__PROCESS_SIZE] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') {
        (void)snprintf(host, sizeof host, "localhost");
    }
    (void)snprintf(out, HEFT__PROCESS_SIZE, "%.56s:%d", host, (int)getpid());
    for (char *c = out; *c != '\0'; c++) {
        *c = *c > ' ' && *c < 0x7f ? *c : '?';
    }
}

void heft__host_label(const char *name, char out[HEFT__HOST_SIZE])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    if (name == NULL || name[0] == '\0') {
        heft__transport_host_label(out);
        return;
    }
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, name);
    heft__sha256_final(&sha, digest);
    heft__hex(digest, 16, out);
}

const char *heft__process_text(const heft__register_t *reg)
{
    return reg->process[0] != '\0' ? reg->process : "a process";
}

heft_status_t heft__register_encode(const heft__register_t *msg, char **text_out, heft_error_t *err)
{
    register_message_t full = { .format = 1, .mode = "staged", .reg = *msg };
    if (msg->in_place) {
        (void)snprintf(full.mode, sizeof full.mode, "in_place");
    }
    json_t *root = json_object();
    heft_status_t status = root == NULL ? heft__error_nomem(err, 0)
                                        : heft__json_write(root, register_fields, &full, err);
    if (status == HEFT_OK &&
        !heft__json_put(root, "transports",
                        heft__json_transports(msg->transports, msg->n_transports))) {
        status = heft__error_nomem(err, 0);
    }
    if (status != HEFT_OK) {
        json_decref(root);
        return status;
    }
    return heft__json_finish(root, text_out, err);
}

heft_status_t heft__register_decode(const char *text, size_t n, heft__register_t *out,
                                    heft_error_t *err)
{
    register_message_t full;
    memset(&full, 0, sizeof full);
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "register", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__json_read(root, register_fields, "register", &full, err);
    if (status == HEFT_OK && !heft__is_job(full.reg.job)) {
        char shown[64];
        status = heft__error_set(err, HEFT_ERR_FORMAT,
                                 "register: job \"%s\" has a byte outside A-Z a-z 0-9 . _ -",
                                 heft__json_show(full.reg.job, shown));
    }
    full.reg.in_place = strcmp(full.mode, "in_place") == 0;
    if (status == HEFT_OK && !full.reg.in_place && strcmp(full.mode, "staged") != 0) {
        char shown[64];
        status = heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                 "register: mode \"%s\" is neither \"staged\" nor \"in_place\"",
                                 heft__json_show(full.mode, shown));
    }
    if (status == HEFT_OK && full.reg.in_place && full.reg.role == HEFT__ROLE_SOURCE) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "register: a source has no mode in_place");
    }
    if (status == HEFT_OK) {
        status = heft__json_read_transports(json_object_get(root, "transports"), "register",
                                            full.reg.transports, &full.reg.n_transports, err);
    }
    json_decref(root);
    if (status == HEFT_OK) {
        *out = full.reg;
    }
    return status;
}

#define AT(member) offsetof(heft__registered_t, member)
static const heft__field_t registered_fields[] = {
    { "id", HEFT__FIELD_TEXT, true, AT(id), 1, HEFT__ID_SIZE, NULL },
    { "epoch", HEFT__FIELD_INT, true, AT(epoch), 1, HEFT__WIRE_MAX_INT, NULL },
    { "poll_ms", HEFT__FIELD_U32, true, AT(poll_ms), 1, INT32_MAX, NULL },
    { "contact_ms", HEFT__FIELD_U32, true, AT(contact_ms), 1, INT32_MAX, NULL },
    { "committed_version", HEFT__FIELD_INT, true, AT(committed_version), 0, HEFT__WIRE_MAX_INT,
      NULL },
    { "committed_digest", HEFT__FIELD_HEX, false, AT(committed_digest), 0, 64, NULL },
    HEFT__FIELD_END
};
#undef AT

#define AT(member) offsetof(heft__bind_t, member)
static const heft__field_t bind_fields[] = {
    { "incarnation", HEFT__FIELD_HEX, true, AT(incarnation), 0, 32, NULL },
    { "manifest", HEFT__FIELD_HEX, true, AT(manifest), 0, 64, NULL },
    { "contract", HEFT__FIELD_HEX, false, AT(contract), 0, 64, NULL },
    { "endpoint", HEFT__FIELD_HEX, false, AT(endpoint), 0, 64, NULL },
    { "mapping", HEFT__FIELD_HEX, false, AT(mapping), 0, 64, NULL },
    { "sources", HEFT__FIELD_HEX, false, AT(sources), 0, 64, NULL },
    HEFT__FIELD_END
};
#undef AT

heft_status_t heft__registered_encode(const heft__registered_t *msg, char **text_out,
                                      heft_error_t *err)
{
    return heft__json_encode_flat(registered_fields, msg, text_out, err);
}

heft_status_t heft__registered_decode(const char *text, size_t n, heft__registered_t *out,
                                      heft_error_t *err)
{
    heft__registered_t msg;
    memset(&msg, 0, sizeof msg);
    heft_status_t status =
        heft__json_decode_flat(text, n, registered_fields, "register reply", &msg, err);
    if (status == HEFT_OK) {
        *out = msg;
    }
    return status;
}

heft_status_t heft__bind_encode(const heft__bind_t *msg, char **text_out, heft_error_t *err)
{
    return heft__json_encode_flat(bind_fields, msg, text_out, err);
}

heft_status_t heft__bind_decode(const char *text, size_t n, heft__bind_t *out, heft_error_t *err)
{
    heft__bind_t msg;
    memset(&msg, 0, sizeof msg);
    heft_status_t status = heft__json_decode_flat(text, n, bind_fields, "bind", &msg, err);
    if (status == HEFT_OK) {
        *out = msg;
    }
    return status;
}
