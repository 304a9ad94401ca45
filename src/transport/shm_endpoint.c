/* SPDX-License-Identifier: Apache-2.0 */
/* Strict decoding of a shm endpoint: it comes from another process, by way of the coordinator. */
#include "transport/shm_remote.h"

#include <string.h>

#include <jansson.h>

static heft_status_t bad(heft_error_t *err, const char *what)
{
    return heft__error_set(err, HEFT_ERR_FORMAT, "shm endpoint: %s", what);
}

static bool is_socket_name(const char *name)
{
    return strncmp(name, "heft-", 5) == 0 && strlen(name) == 5 + 32 &&
           strspn(name + 5, "0123456789abcdef") == 32;
}

static heft_status_t decode_root(json_t *root, heft__shm_endpoint_t *endpoint, heft_error_t *err)
{
    const char *transport;
    const char *name;
    const char *incarnation;
    json_int_t pid;
    json_int_t bytes;
    json_error_t why;
    if (json_unpack_ex(root, &why, JSON_STRICT, "{s:s, s:s, s:I, s:I, s:s}", "transport",
                       &transport, "socket", &name, "pid", &pid, "bytes", &bytes, "incarnation",
                       &incarnation) != 0) {
        return bad(err, why.text);
    }
    if (strcmp(transport, "shm") != 0) {
        return bad(err, "\"transport\" is not \"shm\"");
    }
    if (!is_socket_name(name)) {
        return bad(err, "\"socket\" is not heft- and 32 hex digits");
    }
    if (pid <= 0 || pid > INT32_MAX || bytes < 0) {
        return bad(err, "\"pid\" or \"bytes\" out of range");
    }
    if (!heft__hex_parse(incarnation, endpoint->incarnation, HEFT__INCARNATION_BYTES)) {
        return bad(err, "\"incarnation\" is not 32 hex digits");
    }
    memcpy(endpoint->socket, name, strlen(name) + 1);
    endpoint->pid = (int32_t)pid;
    endpoint->bytes = (int64_t)bytes;
    return HEFT_OK;
}

heft_status_t heft__shm_endpoint_decode(const char *text, size_t n,
                                        heft__shm_endpoint_t *endpoint_out, heft_error_t *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        return bad(err, why.text);
    }
    heft__shm_endpoint_t endpoint = { .pid = 0 };
    heft_status_t status = decode_root(root, &endpoint, err);
    json_decref(root);
    if (status == HEFT_OK) {
        *endpoint_out = endpoint;
    }
    return status;
}
