/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP client: libcurl's multi interface drives one request at a time, so that a request can be
 * aborted at once from another thread (curl_multi_wakeup) and every wait is ours to bound.
 *
 * The deadline counts from the call, connecting included. Proxies from the environment are ignored:
 * a coordinator is a neighbour, and a proxy would hold back its long polls. Replies are bounded.
 */
#include "sync/http_client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "heft/sync.h"
#include "sync/wire_json.h"

#define MAX_REPLY_BYTES (64u << 20)
#define POLL_STEP_MS 1000

struct heft__http {
    CURL *easy;
    CURLM *multi;
    struct curl_slist *headers;
    char *url;           /* without a trailing slash */
    atomic_bool aborted; /* set by heft__http_abort, read by the loop after each wakeup */
    heft__text_t reply;
    bool reply_too_large;
    char *error_body; /* of the last error reply, or NULL */
    char curl_text[CURL_ERROR_SIZE];
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t take_reply(char *data, size_t size, size_t n, void *arg)
{
    heft__http_t *http = arg;
    const size_t bytes = size * n; /* curl: size is 1 */
    if (http->reply.len + bytes > MAX_REPLY_BYTES) {
        http->reply_too_large = true;
        return 0;
    }
    heft__text_put_n(&http->reply, data, bytes);
    return http->reply.failed ? 0 : bytes;
}

static bool set_options(heft__http_t *http)
{
    CURL *easy = http->easy;
    bool ok = curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_reply) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->curl_text) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L) == CURLE_OK;
#if LIBCURL_VERSION_NUM >= 0x075500
    ok = ok && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http") == CURLE_OK;
#endif
    return ok;
}

static bool add_header(heft__http_t *http, const char *line)
{
    struct curl_slist *grown = curl_slist_append(http->headers, line);
    if (grown != NULL) {
        http->headers = grown;
    }
    return grown != NULL;
}

heft_status_t heft__http_create(const char *url, heft__http_t **http_out, heft_error_t *err)
{
    (void)pthread_once(&curl_once, init_curl);
    if (url == NULL || strncmp(url, "http://", 7) != 0 || url[7] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "url \"%.100s\": not \"http://host:port\"",
                               url != NULL ? url : "(null)");
    }
    heft__http_t *http = heft__calloc(1, sizeof *http);
    if (http == NULL) {
        return heft__error_nomem(err, sizeof *http);
    }
    heft__text_init(&http->reply);
    atomic_init(&http->aborted, false);
    size_t n = strlen(url);
    while (n > 7 && url[n - 1] == '/') {
        n--;
    }
    http->url = heft__strndup(url, n);
    http->easy = curl_easy_init();
    http->multi = curl_multi_init();
    const bool ok = http->url != NULL && http->easy != NULL && http->multi != NULL &&
                    add_header(http, "Content-Type: application/json") &&
                    add_header(http, "Expect:") && set_options(http);
    if (!ok) {
        heft__http_destroy(http);
        return heft__error_nomem(err, sizeof *http);
    }
    *http_out = http;
    return HEFT_OK;
}

void heft__http_destroy(heft__http_t *http)
{
    if (http == NULL) {
        return;
    }
    curl_easy_cleanup(http->easy);
    if (http->multi != NULL) {
        (void)curl_multi_cleanup(http->multi);
    }
    curl_slist_free_all(http->headers);
    heft__text_fini(&http->reply);
    heft__free(http->error_body);
    heft__free(http->url);
    heft__free(http);
}

void heft__http_abort(heft__http_t *http)
{
    atomic_store(&http->aborted, true); /* pairs with the load in drive() */
    (void)curl_multi_wakeup(http->multi);
}

const char *heft__http_get_error_body(const heft__http_t *http)
{
    return http->error_body != NULL ? http->error_body : "";
}

/* ---- one request ---- */

static bool set_request(heft__http_t *http, const char *method, const void *body, size_t n)
{
    CURL *easy = http->easy;
    bool ok = true;
    if (strcmp(method, "GET") == 0) {
        ok = curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L) == CURLE_OK;
    } else {
        ok = curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK;
        ok = ok && curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body != NULL ? body : "") == CURLE_OK;
        ok = ok && curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                                    (curl_off_t)(body != NULL ? n : 0)) == CURLE_OK;
    }
    return ok && curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK;
}

static int64_t left_ms(int64_t deadline_ns)
{
    const int64_t left = deadline_ns - heft__clock_mono_ns();
    return left > 0 ? left / 1000000 + 1 : 0;
}

/* Run the added request to its end; *code_out is curl's result. */
static heft_status_t drive(heft__http_t *http, int64_t deadline_ns, CURLcode *code_out,
                           heft_error_t *err)
{
    for (;;) {
        if (atomic_load(&http->aborted)) {
            return heft__error_set(err, HEFT_ERR_CANCELED, "request to %s canceled", http->url);
        }
        int running = 0;
        if (curl_multi_perform(http->multi, &running) != CURLM_OK) {
            return heft__error_set(err, HEFT_ERR_IO, "request to %s: curl failed", http->url);
        }
        int queued = 0;
        const CURLMsg *msg = curl_multi_info_read(http->multi, &queued);
        if (msg != NULL && msg->msg == CURLMSG_DONE) {
            *code_out = msg->data.result;
            return HEFT_OK;
        }
        const int64_t left = left_ms(deadline_ns);
        if (left == 0) {
            return heft__error_set(err, HEFT_ERR_TIMEOUT, "no reply from %s within the deadline",
                                   http->url);
        }
        const int step = left < POLL_STEP_MS ? (int)left : POLL_STEP_MS;
        (void)curl_multi_poll(http->multi, NULL, 0, step, NULL);
    }
}

static heft_status_t curl_failure(heft__http_t *http, CURLcode code, heft_error_t *err)
{
    const char *text = http->curl_text[0] != '\0' ? http->curl_text : curl_easy_strerror(code);
    heft_status_t status = HEFT_ERR_PEER;
    if (http->reply.failed || code == CURLE_OUT_OF_MEMORY) {
        return heft__error_nomem(err, http->reply.len);
    }
    if (http->reply_too_large) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "reply of %s is larger than %u bytes",
                               http->url, MAX_REPLY_BYTES);
    }
    if (code == CURLE_OPERATION_TIMEDOUT) {
        status = HEFT_ERR_TIMEOUT;
    } else if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL) {
        status = HEFT_ERR_ARGUMENT;
    }
    return heft__error_set(err, status, "coordinator %s: %s", http->url, text);
}

/* ---- error replies ---- */

static heft_status_t status_of_code(long code)
{
    switch (code) {
    case 400:
        return HEFT_ERR_FORMAT;
    case 401:
        return HEFT_ERR_AUTH;
    case 404:
        return HEFT_ERR_NOT_FOUND;
    case 405:
        return HEFT_ERR_UNSUPPORTED;
    case 409:
        return HEFT_ERR_STATE;
    case 410:
        return HEFT_ERR_PEER;
    case 413:
        return HEFT_ERR_LIMIT;
    case 422:
        return HEFT_ERR_PROOF;
    case 503:
        return HEFT_ERR_BUSY;
    default:
        return HEFT_ERR_PROTOCOL;
    }
}

/* {"error": {"status": "...", "message": "..."}}, or the code alone when the body is not that. */
static heft_status_t error_reply(heft__http_t *http, long code, heft_error_t *err)
{
    heft_status_t status = status_of_code(code);
    json_t *root = json_loadb(http->reply.data, http->reply.len, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *name = json_string_value(json_object_get(error, "status"));
    const char *message = json_string_value(json_object_get(error, "message"));
    heft_status_t named;
    if (name != NULL && heft__status_from_name(name, &named) && named < HEFT_OK) {
        status = named;
    }
    (void)heft__error_set(err, status, "%s", message != NULL ? message : "");
    if (message == NULL) {
        (void)heft__error_set(err, status, "coordinator %s: HTTP %ld", http->url, code);
    }
    json_decref(root);
    http->error_body = heft__text_take(&http->reply);
    return status;
}

static heft_status_t run(heft__http_t *http, uint32_t deadline_ms, long *code_out,
                         heft_error_t *err)
{
    const int64_t deadline_ns = heft__clock_mono_ns() + (int64_t)deadline_ms * 1000000;
    CURLcode code = CURLE_OK;
    if (curl_multi_add_handle(http->multi, http->easy) != CURLM_OK) {
        return heft__error_set(err, HEFT_ERR_IO, "request to %s: curl failed", http->url);
    }
    heft_status_t status = drive(http, deadline_ns, &code, err);
    (void)curl_multi_remove_handle(http->multi, http->easy);
    if (status == HEFT_OK && code != CURLE_OK) {
        status = curl_failure(http, code, err);
    }
    if (status == HEFT_OK) {
        (void)curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, code_out);
    }
    return status;
}

heft_status_t heft__http_request(heft__http_t *http, const char *method, const char *path,
                                 const void *body, size_t body_bytes, uint32_t deadline_ms,
                                 int *code_out, char **body_out, size_t *n_out, heft_error_t *err)
{
    heft__free(http->error_body);
    http->error_body = NULL;
    heft__text_reset(&http->reply);
    http->reply_too_large = false;
    http->curl_text[0] = '\0';
    *code_out = 0;
    heft__text_t url;
    heft__text_init(&url);
    heft__text_printf(&url, "%s%s", http->url, path);
    const bool ok = !url.failed &&
                    curl_easy_setopt(http->easy, CURLOPT_URL, url.data) == CURLE_OK &&
                    set_request(http, method, body, body_bytes);
    heft__text_fini(&url);
    if (!ok) {
        return heft__error_nomem(err, body_bytes);
    }
    long code = 0;
    heft_status_t status = run(http, deadline_ms, &code, err);
    if (status != HEFT_OK) {
        return status;
    }
    *code_out = (int)code;
    if (code < 200 || code > 299) {
        return error_reply(http, code, err);
    }
    if (body_out != NULL) {
        const size_t n = http->reply.len;
        char *taken = heft__text_take(&http->reply);
        if (taken == NULL) {
            return heft__error_nomem(err, n);
        }
        *body_out = taken;
        if (n_out != NULL) {
            *n_out = n;
        }
    }
    return HEFT_OK;
}

/* ---- public ---- */

static heft_status_t request_once(const char *url, const char *method, const char *path,
                                  const char *json, uint32_t deadline_ms, char **json_out,
                                  heft_error_t *err)
{
    if (path == NULL || path[0] != '/') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "path \"%.100s\" does not begin with /",
                               path != NULL ? path : "(null)");
    }
    heft__http_t *http = NULL;
    heft_status_t status = heft__http_create(url, &http, err);
    if (status != HEFT_OK || http == NULL) {
        return status;
    }
    int code = 0;
    char *body = NULL;
    status = heft__http_request(http, method, path, json, json != NULL ? strlen(json) : 0,
                                deadline_ms != 0 ? deadline_ms : 30000, &code, &body, NULL, err);
    heft__http_destroy(http);
    if (status == HEFT_OK) {
        if (json_out != NULL) {
            *json_out = body;
        } else {
            heft__free(body);
        }
    }
    return status;
}

heft_status_t heft_client_get(const char *url, const char *path, uint32_t deadline_ms,
                              char **json_out, heft_error_t *err)
{
    return request_once(url, "GET", path, NULL, deadline_ms, json_out, err);
}

heft_status_t heft_client_post(const char *url, const char *path, const char *json,
                               uint32_t deadline_ms, char **json_out, heft_error_t *err)
{
    return request_once(url, "POST", path, json, deadline_ms, json_out, err);
}
