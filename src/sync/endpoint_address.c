/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of endpoints. An endpoint belongs to one member: what two of them advertise would be
 * written by those who send to either. Endpoints are the transports' own; what is an address in
 * them is known by its key: a socket, a window of a worker, an address. An endpoint may hold
 * others.
 */
#include "sync/coordinator.h"

#include <string.h>

enum { MAX_NESTED = 4 };

static void put_line(heft__text_t *out, const char *kind, const char *text, size_t n)
{
    while (n > 0 && text[0] == ' ') {
        text++;
        n--;
    }
    if (n > 0) {
        heft__text_put(out, kind);
        heft__text_put(out, " ");
        heft__text_put_n(out, text, n);
        heft__text_put(out, "\n");
    }
}

/* "a:1, b:2" is two. */
static void put_list(heft__text_t *out, const char *kind, const char *list)
{
    for (const char *p = list; p != NULL && *p != '\0';) {
        const size_t n = strcspn(p, ",\n");
        put_line(out, kind, p, n);
        p += n + (p[n] != '\0' ? 1 : 0);
    }
}

/* A process may have several windows behind one worker. */
static void put_worker(heft__text_t *out, const char *worker, const char *window)
{
    char digest[HEFT__DIGEST_SIZE];
    if (worker != NULL) {
        heft__object_digest(worker, strlen(worker), digest); /* it may be thousands of bytes */
        heft__text_put(out, "worker ");
        heft__text_put(out, digest);
        put_line(out, "", window != NULL ? window : "-", window != NULL ? strlen(window) : 1);
    }
}

static void put_addresses(heft__text_t *out, const json_t *endpoint, int depth)
{
    const json_t *list = json_object_get(endpoint, "addresses");
    const json_t *nested = json_object_get(endpoint, "endpoints");
    put_list(out, "socket", json_string_value(json_object_get(endpoint, "socket")));
    put_list(out, "address", json_string_value(json_object_get(endpoint, "address")));
    put_list(out, "address", json_string_value(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        put_list(out, "address", json_string_value(json_array_get(list, i)));
    }
    put_worker(out, json_string_value(json_object_get(endpoint, "worker")),
               json_string_value(json_object_get(endpoint, "window")));
    for (size_t i = 0; i < json_array_size(nested) && depth < MAX_NESTED; i++) {
        put_addresses(out, json_array_get(nested, i), depth + 1);
    }
}

char *heft__endpoint_addresses(const char *text, size_t n, const char *digest)
{
    json_t *root = NULL;
    heft__text_t out;
    heft__text_init(&out);
    if (heft__json_parse(text, n, "endpoint", &root, NULL) == HEFT_OK) {
        put_addresses(&out, root, 0);
        json_decref(root);
    }
    if (out.len == 0) {
        put_line(&out, "endpoint", digest, strlen(digest));
    }
    char *lines = heft__text_take(&out);
    heft__text_fini(&out);
    return lines;
}

static bool has_line(const char *lines, const char *line, size_t n)
{
    for (const char *p = lines; *p != '\0';) {
        const size_t len = strcspn(p, "\n");
        if (len == n && memcmp(p, line, n) == 0) {
            return true;
        }
        p += len + (p[len] != '\0' ? 1 : 0);
    }
    return false;
}

bool heft__endpoint_share_address(const char *a, const char *b, char out[80])
{
    for (const char *p = a; *p != '\0';) {
        const size_t n = strcspn(p, "\n");
        if (has_line(b, p, n)) {
            const size_t shown = n < 79 ? n : 79;
            memcpy(out, p, shown);
            out[shown] = '\0';
            return true;
        }
        p += n + (p[n] != '\0' ? 1 : 0);
    }
    return false;
}
