/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and strict decoding of a ucx endpoint: it comes from another host, by way of the
 * coordinator. Numbers that JSON cannot hold are in hexadecimal digits. */
#include "transport/ucx_endpoint.h"
#include "transport/ucx_frame.h"

#include <string.h>

#include <jansson.h>

static void put_hex(heft__text_t *text, const uint8_t *bytes, size_t n)
{
    char digits[2 * 32 + 1];
    for (size_t at = 0; at < n; at += 32) {
        heft__hex(bytes + at, n - at < 32 ? n - at : 32, digits);
        heft__text_put(text, digits);
    }
}

void heft__ucx_endpoint_encode(const heft__ucx_endpoint_t *endpoint, heft__text_t *text)
{
    char incarnation[2 * HEFT__INCARNATION_BYTES + 1];
    heft__hex(endpoint->incarnation, HEFT__INCARNATION_BYTES, incarnation);
    heft__text_printf(text, "{\"transport\":\"ucx\",\"version\":%d,\"worker\":\"",
                      HEFT__UCX_VERSION);
    put_hex(text, endpoint->worker, endpoint->worker_bytes);
    heft__text_put(text, "\",\"key\":\"");
    put_hex(text, endpoint->key, endpoint->key_bytes);
    heft__text_printf(text,
                      "\",\"window\":\"%016llx\",\"base\":\"%016llx\",\"bytes\":%lld,"
                      "\"segment\":%lld,\"memory\":%d,\"pid\":%d,\"incarnation\":\"%s\",\"host\":",
                      (unsigned long long)endpoint->window, (unsigned long long)endpoint->base,
                      (long long)endpoint->bytes, (long long)endpoint->segment_bytes,
                      (int)endpoint->memory, (int)endpoint->pid, incarnation);
    heft__host_identity_encode(&endpoint->host, text);
    heft__text_put(text, "}");
}

static heft_status_t bad(heft_error_t *err, const char *what)
{
    return heft__error_set(err, HEFT_ERR_FORMAT, "ucx endpoint: %s", what);
}

/* Hexadecimal digits of 1 to max bytes. */
static bool read_hex(const char *digits, uint8_t *out, size_t max, size_t *n_out)
{
    const size_t n = strlen(digits) / 2;
    if (n == 0 || n > max || !heft__hex_parse(digits, out, n)) {
        return false;
    }
    *n_out = n;
    return true;
}

static bool read_u64(const char *digits, uint64_t *out)
{
    uint8_t bytes[8];
    size_t n = 0;
    if (!read_hex(digits, bytes, sizeof bytes, &n) || n != sizeof bytes) {
        return false;
    }
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        *out = *out << 8 | bytes[i];
    }
    return true;
}

/* The members of the object as they are. */
typedef struct raw {
    const char *transport, *worker, *key, *window, *base, *incarnation;
    json_int_t version, bytes, segment, memory, pid;
    json_t *host;
} raw_t;

static heft_status_t check_numbers(const raw_t *raw, heft_error_t *err)
{
    if (raw->version != HEFT__UCX_VERSION) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "ucx protocol version %lld at the peer, %d here",
                               (long long)raw->version, HEFT__UCX_VERSION);
    }
    if (raw->memory != HEFT__MEMORY_HOST) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "ucx endpoint: memory kind %lld, only host memory (%d) is supported",
                               (long long)raw->memory, HEFT__MEMORY_HOST);
    }
    return raw->pid > 0 && raw->pid <= INT32_MAX && raw->bytes >= 0 && raw->segment >= 0
               ? HEFT_OK
               : bad(err, "\"pid\", \"bytes\" or \"segment\" out of range");
}

static heft_status_t take(const raw_t *raw, heft__ucx_endpoint_t *out, heft_error_t *err)
{
    heft_status_t status = check_numbers(raw, err);
    if (status != HEFT_OK) {
        return status;
    }
    out->bytes = (int64_t)raw->bytes;
    out->segment_bytes = (int64_t)raw->segment;
    out->memory = HEFT__MEMORY_HOST;
    out->pid = (int32_t)raw->pid;
    if (!read_hex(raw->worker, out->worker, sizeof out->worker, &out->worker_bytes)) {
        return bad(err, "\"worker\" is not the digits of 1 to 4096 bytes");
    }
    if (!read_hex(raw->key, out->key, sizeof out->key, &out->key_bytes)) {
        return bad(err, "\"key\" is not the digits of 1 to 1024 bytes");
    }
    if (!read_u64(raw->window, &out->window) || !read_u64(raw->base, &out->base)) {
        return bad(err, "\"window\" or \"base\" is not 16 hex digits");
    }
    if (out->base > UINT64_MAX - (uint64_t)out->bytes) {
        return bad(err, "\"base\" and \"bytes\" go beyond the address space");
    }
    if (!heft__hex_parse(raw->incarnation, out->incarnation, HEFT__INCARNATION_BYTES)) {
        return bad(err, "\"incarnation\" is not 32 hex digits");
    }
    return heft__host_identity_decode(raw->host, "ucx endpoint", &out->host, err);
}

static heft_status_t decode_root(json_t *root, heft__ucx_endpoint_t *out, heft_error_t *err)
{
    raw_t raw = { .segment = 0 };
    json_error_t why;
    if (json_unpack_ex(root, &why, JSON_STRICT,
                       "{s:s, s:I, s:s, s:s, s:s, s:s, s:I, s?I, s:I, s:I, s:s, s:o}", "transport",
                       &raw.transport, "version", &raw.version, "worker", &raw.worker, "key",
                       &raw.key, "window", &raw.window, "base", &raw.base, "bytes", &raw.bytes,
                       "segment", &raw.segment, "memory", &raw.memory, "pid", &raw.pid,
                       "incarnation", &raw.incarnation, "host", &raw.host) != 0) {
        return bad(err, why.text);
    }
    return strcmp(raw.transport, "ucx") == 0 ? take(&raw, out, err)
                                             : bad(err, "\"transport\" is not \"ucx\"");
}

heft_status_t heft__ucx_endpoint_decode(const char *text, size_t n, heft__ucx_endpoint_t *out,
                                        heft_error_t *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        return bad(err, why.text);
    }
    heft__ucx_endpoint_t endpoint = { .pid = 0 };
    heft_status_t status = decode_root(root, &endpoint, err);
    json_decref(root);
    if (status == HEFT_OK) {
        *out = endpoint;
    }
    return status;
}
