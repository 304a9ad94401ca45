/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP client of members: one keep-alive connection to the coordinator, requests with a deadline.
 *
 * Threads: confined, but for heft__http_abort, which any thread may call.
 */
#ifndef HEFT_SYNC_HTTP_CLIENT_H
#define HEFT_SYNC_HTTP_CLIENT_H

#include "base/base.h"
#include "sync/settings.h"

typedef struct heft__http heft__http_t;

/*
 * access->url: "http://host:port" or "https://host:port". The token file is read here; connects at
 * the first request. HEFT_ERR_AUTH: the token would travel in the clear; HEFT_ERR_ARGUMENT,
 * HEFT_ERR_IO, HEFT_ERR_FORMAT.
 */
heft_status_t heft__http_create(const heft__access_t *access, heft__http_t **http_out,
                                heft_error_t *err);
void heft__http_destroy(heft__http_t *http);
/* The request in progress, and every later one, ends with HEFT_ERR_CANCELED. */
void heft__http_abort(heft__http_t *http);

/*
 * One request. method: GET, POST, PUT or DELETE; body may be NULL. Blocks at most deadline_ms.
 * HEFT_OK for 2xx: *code_out is the HTTP code and *body_out (NULL is fine) the body,
 * NUL-terminated, owned by the caller (heft__free), *n_out its length. Otherwise the status and
 * message are those of the error reply, and *code_out is the code (0 when there was no reply):
 * HEFT_ERR_PEER no connection or 410, HEFT_ERR_TIMEOUT, HEFT_ERR_CANCELED, HEFT_ERR_STALE, ...
 */
heft_status_t heft__http_request(heft__http_t *http, const char *method, const char *path,
                                 const void *body, size_t body_bytes, uint32_t deadline_ms,
                                 int *code_out, char **body_out, size_t *n_out, heft_error_t *err);
/* A request that may be handled twice. */
typedef struct heft__http_ask {
    const char *method;
    const char *path;
    const void *body; /* NULL: none */
    size_t body_bytes;
    uint32_t wait_ms;     /* the coordinator may hold the reply back for so long */
    uint32_t deadline_ms; /* of all tries together */
} heft__http_ask_t;
/*
 * The same, sent again where it or its reply was lost on the way: the connection broke after it had
 * been made, or nothing has moved for a sixth of the deadline (1 s at least, twice as long each
 * time). A connection that is refused is told at once.
 */
heft_status_t heft__http_ask(heft__http_t *http, const heft__http_ask_t *ask, int *code_out,
                             char **body_out, size_t *n_out, heft_error_t *err);
/* What an error reply (any bytes) says: fills err and returns its status. what names the peer. */
heft_status_t heft__http_read_error(const char *text, size_t n, int code, const char *what,
                                    heft_error_t *err);
/* The text of the last error reply (JSON), or "". Borrowed until the next request. */
const char *heft__http_get_error_body(const heft__http_t *http);

/* The URL names this host itself: whoever uses it is on this host. */
bool heft__http_is_loopback(const char *url);

#endif
