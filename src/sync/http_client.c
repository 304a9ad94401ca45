/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP client: libcurl's multi interface drives one request at a time, so that a request can be
 * aborted at once from another thread (curl_multi_wakeup) and every wait is ours to bound.
 *
 * The deadline counts from the call, connecting included. Proxies from the environment are ignored:
 * a coordinator is a neighbour, and a proxy would hold back its long polls. Replies are bounded.
 *
 * A large body is announced (Expect: 100-continue) and sent once the server wants it: a server that
 * refuses the head answers and closes, and a client still sending would see a broken pipe in place
 * of the answer.
 */
#include "sync/http_client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heft/sync.h"
#include "sync/objects.h"
#include "sync/security.h"
#include "sync/wire_json.h"

#define MAX_REPLY_BYTES HEFT__OBJECT_MAX_BYTES
#define POLL_STEP_MS 1000
#define ANNOUNCED_BYTES (64u << 10) /* bodies from here on are announced */
#define ANNOUNCE_MS 4000L           /* for a server that does not answer to that */
#define MIN_QUIET_MS 1000u
#define MAX_TRIES 8

struct heft__http {
    CURL *easy;
    CURLM *multi;
    struct curl_slist *headers;  /* the token is in one of them */
    struct curl_slist *announce; /* the same for large bodies */
    char *url;                   /* without a trailing slash */
    atomic_bool aborted;         /* set by heft__http_abort, read by the loop after each wakeup */
    heft__text_t reply;
    bool reply_too_large;
    bool was_lost;    /* the last request, or its reply, on the way: it may have been handled */
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
    ok = ok && curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, ANNOUNCE_MS) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_reply) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->curl_text) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L) == CURLE_OK;
    /* a coordinator may come back at another address: each connection looks its name up */
    ok = ok && curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 0L) == CURLE_OK;
    ok =
        ok && curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK;
#if LIBCURL_VERSION_NUM >= 0x075500
    ok = ok && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
#endif
    return ok;
}

static bool append(struct curl_slist **list, const char *line)
{
    struct curl_slist *grown = curl_slist_append(*list, line);
    if (grown != NULL) {
        *list = grown;
    }
    return grown != NULL;
}

static bool add_header(heft__http_t *http, const char *line)
{
    return append(&http->headers, line) && append(&http->announce, line);
}

/* The host of an URL of ours; false when it is none. */
static bool split_url(const char *url, bool *is_tls_out, bool *is_loopback_out)
{
    char *host = NULL;
    const bool is_tls = strncmp(url, "https://", 8) == 0;
    CURLU *parts = curl_url();
    const bool ok = (is_tls || strncmp(url, "http://", 7) == 0) && parts != NULL &&
                    curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
                    curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK && host[0] != '\0';
    *is_tls_out = is_tls;
    *is_loopback_out = ok && heft__host_is_loopback(host);
    curl_free(host);
    curl_url_cleanup(parts);
    return ok;
}

bool heft__http_is_loopback(const char *url)
{
    bool is_tls;
    bool is_loopback;
    return url != NULL && split_url(url, &is_tls, &is_loopback) && is_loopback;
}

static heft_status_t add_token(heft__http_t *http, const char *path, heft_error_t *err)
{
    char *token = NULL;
    char line[32 + HEFT__TOKEN_MAX];
    heft_status_t status = heft__token_read(path, &token, err);
    if (status != HEFT_OK) {
        return status;
    }
    (void)snprintf(line, sizeof line, "Authorization: Bearer %s", token);
    heft__token_free(token);
    const bool ok = add_header(http, line);
    explicit_bzero(line, sizeof line);
    return ok ? HEFT_OK : heft__error_nomem(err, sizeof line);
}

static heft_status_t set_access(heft__http_t *http, const heft__access_t *access, heft_error_t *err)
{
    bool is_tls;
    bool is_loopback;
    if (access->url == NULL || !split_url(access->url, &is_tls, &is_loopback)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "url \"%.100s\": not \"http://host:port\" or \"https://host:port\"",
                               access->url != NULL ? access->url : "(null)");
    }
    size_t n = strlen(access->url);
    while (n > 8 && access->url[n - 1] == '/') {
        n--;
    }
    http->url = heft__strndup(access->url, n);
    if (http->url == NULL) {
        return heft__error_nomem(err, n + 1);
    }
    if (access->ca_file != NULL &&
        curl_easy_setopt(http->easy, CURLOPT_CAINFO, access->ca_file) != CURLE_OK) {
        return heft__error_nomem(err, strlen(access->ca_file));
    }
    if (access->token_file == NULL) {
        return HEFT_OK;
    }
    if (!is_tls && !is_loopback && access->insecure == 0) {
        return heft__error_set(err, HEFT_ERR_AUTH,
                               "url %.100s: the token would travel in the clear: use https, or say "
                               "insecure",
                               access->url);
    }
    return add_token(http, access->token_file, err);
}

heft_status_t heft__http_create(const heft__access_t *access, heft__http_t **http_out,
                                heft_error_t *err)
{
    (void)pthread_once(&curl_once, init_curl);
    heft__http_t *http = heft__calloc(1, sizeof *http);
    if (http == NULL) {
        return heft__error_nomem(err, sizeof *http);
    }
    heft__text_init(&http->reply);
    atomic_init(&http->aborted, false);
    http->easy = curl_easy_init();
    http->multi = curl_multi_init();
    const bool ok = http->easy != NULL && http->multi != NULL &&
                    add_header(http, "Content-Type: application/json") &&
                    append(&http->headers, "Expect:") &&
                    append(&http->announce, "Expect: 100-continue");
    heft_status_t status =
        ok ? set_access(http, access, err) : heft__error_nomem(err, sizeof *http);
    if (status == HEFT_OK && !set_options(http)) {
        status = heft__error_nomem(err, sizeof *http);
    }
    if (status != HEFT_OK) {
        heft__http_destroy(http);
        return status;
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
    curl_slist_free_all(http->announce);
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
    const bool is_large = body != NULL && n >= ANNOUNCED_BYTES;
    bool ok = curl_easy_setopt(easy, CURLOPT_HTTPHEADER,
                               is_large ? http->announce : http->headers) == CURLE_OK;
    if (strcmp(method, "GET") == 0) {
        ok = ok && curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L) == CURLE_OK;
    } else {
        ok = ok && curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK;
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

/* How many bytes of this request have moved, both ways. */
static curl_off_t count_moved(heft__http_t *http)
{
    curl_off_t up = 0;
    curl_off_t down = 0;
    long head = 0;
    (void)curl_easy_getinfo(http->easy, CURLINFO_SIZE_UPLOAD_T, &up);
    (void)curl_easy_getinfo(http->easy, CURLINFO_SIZE_DOWNLOAD_T, &down);
    (void)curl_easy_getinfo(http->easy, CURLINFO_HEADER_SIZE, &head);
    return up + down + head;
}

/* Run the added request to its end, unless nothing moves for quiet_ns; *code_out is curl's result.
 */
static heft_status_t drive(heft__http_t *http, int64_t deadline_ns, int64_t quiet_ns,
                           CURLcode *code_out, heft_error_t *err)
{
    curl_off_t moved = 0;
    int64_t quiet_until_ns = heft__clock_mono_ns() + quiet_ns;
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
        const curl_off_t now_moved = count_moved(http);
        if (now_moved != moved) {
            moved = now_moved;
            quiet_until_ns = heft__clock_mono_ns() + quiet_ns;
        }
        const int64_t left = left_ms(heft__min_i64(deadline_ns, quiet_until_ns));
        if (left == 0) {
            http->was_lost = true;
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
    http->was_lost = code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR ||
                     code == CURLE_SEND_ERROR || code == CURLE_PARTIAL_FILE ||
                     code == CURLE_OPERATION_TIMEDOUT;
    if (code == CURLE_OPERATION_TIMEDOUT) {
        status = HEFT_ERR_TIMEOUT;
    } else if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL) {
        status = HEFT_ERR_ARGUMENT;
    } else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
               code == CURLE_SSL_ISSUER_ERROR) {
        return heft__error_set(err, HEFT_ERR_AUTH, "coordinator %s: %s (ca-file)", http->url, text);
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
heft_status_t heft__http_read_error(const char *text, size_t n, int code, const char *what,
                                    heft_error_t *err)
{
    heft_status_t status = status_of_code(code);
    json_t *root = NULL;
    (void)heft__json_parse(text, n, "reply", &root, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *name = json_string_value(json_object_get(error, "status"));
    const char *message = json_string_value(json_object_get(error, "message"));
    heft_status_t named;
    if (name != NULL && heft__status_from_name(name, &named) && named < HEFT_OK) {
        status = named;
    }
    if (message != NULL && message[0] != '\0') {
        (void)heft__error_set(err, status, "%s", message);
    } else {
        (void)heft__error_set(err, status, "coordinator %s: HTTP %d", what, code);
    }
    json_decref(root);
    return status;
}

static heft_status_t error_reply(heft__http_t *http, long code, heft_error_t *err)
{
    heft_status_t status =
        heft__http_read_error(http->reply.data, http->reply.len, (int)code, http->url, err);
    http->error_body = heft__text_take(&http->reply);
    return status;
}

static heft_status_t run(heft__http_t *http, int64_t deadline_ns, int64_t quiet_ns, long *code_out,
                         heft_error_t *err)
{
    CURLcode code = CURLE_OK;
    if (curl_multi_add_handle(http->multi, http->easy) != CURLM_OK) {
        return heft__error_set(err, HEFT_ERR_IO, "request to %s: curl failed", http->url);
    }
    heft_status_t status = drive(http, deadline_ns, quiet_ns, &code, err);
    (void)curl_multi_remove_handle(http->multi, http->easy);
    if (status == HEFT_OK && code != CURLE_OK) {
        status = curl_failure(http, code, err);
    }
    if (status == HEFT_OK) {
        (void)curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, code_out);
    }
    return status;
}

/* One try. */
static heft_status_t request(heft__http_t *http, const heft__http_ask_t *ask, int64_t deadline_ns,
                             int64_t quiet_ns, int *code_out, heft_error_t *err)
{
    heft__free(http->error_body);
    http->error_body = NULL;
    heft__text_reset(&http->reply);
    http->reply_too_large = false;
    http->was_lost = false;
    http->curl_text[0] = '\0';
    *code_out = 0;
    heft__text_t url;
    heft__text_init(&url);
    heft__text_printf(&url, "%s%s", http->url, ask->path);
    const bool ok = !url.failed &&
                    curl_easy_setopt(http->easy, CURLOPT_URL, url.data) == CURLE_OK &&
                    set_request(http, ask->method, ask->body, ask->body_bytes);
    heft__text_fini(&url);
    if (!ok) {
        return heft__error_nomem(err, ask->body_bytes);
    }
    long code = 0;
    heft_status_t status = run(http, deadline_ns, quiet_ns, &code, err);
    if (status != HEFT_OK) {
        return status;
    }
    *code_out = (int)code;
    return code >= 200 && code <= 299 ? HEFT_OK : error_reply(http, code, err);
}

static heft_status_t take_body(heft__http_t *http, char **body_out, size_t *n_out,
                               heft_error_t *err)
{
    if (body_out == NULL) {
        return HEFT_OK;
    }
    const size_t n = http->reply.len;
    char *taken = heft__text_take(&http->reply);
    if (taken == NULL) {
        return heft__error_nomem(err, n);
    }
    *body_out = taken;
    if (n_out != NULL) {
        *n_out = n;
    }
    return HEFT_OK;
}

static int64_t deadline_in(uint32_t ms)
{
    return heft__clock_mono_ns() + (int64_t)ms * 1000000;
}

heft_status_t heft__http_request(heft__http_t *http, const char *method, const char *path,
                                 const void *body, size_t body_bytes, uint32_t deadline_ms,
                                 int *code_out, char **body_out, size_t *n_out, heft_error_t *err)
{
    const heft__http_ask_t ask = {
        .method = method, .path = path, .body = body, .body_bytes = body_bytes
    };
    heft_status_t status = request(http, &ask, deadline_in(deadline_ms),
                                   (int64_t)deadline_ms * 1000000, code_out, err);
    return status == HEFT_OK ? take_body(http, body_out, n_out, err) : status;
}

/* Before it is sent again; another thread may call the request off meanwhile. */
static void pause_ms(heft__http_t *http, int ms, int64_t deadline_ns)
{
    const int64_t end_ns = heft__min_i64(deadline_in((uint32_t)ms), deadline_ns);
    while (!atomic_load(&http->aborted) && heft__clock_mono_ns() < end_ns) {
        (void)curl_multi_poll(http->multi, NULL, 0, (int)left_ms(end_ns), NULL);
    }
}

heft_status_t heft__http_ask(heft__http_t *http, const heft__http_ask_t *ask, int *code_out,
                             char **body_out, size_t *n_out, heft_error_t *err)
{
    enum { PAUSE_MS = 20, PARTS = 6 };
    const int64_t deadline_ns = deadline_in(ask->deadline_ms);
    const uint32_t share_ms = ask->deadline_ms / PARTS;
    int64_t quiet_ns = (int64_t)(share_ms > MIN_QUIET_MS ? share_ms : MIN_QUIET_MS) * 1000000;
    heft_error_t why = HEFT_ERROR_INIT; /* of the last try: an earlier one is nobody's error */
    heft_status_t status = HEFT_OK;
    for (int i = 0; i < MAX_TRIES; i++) {
        status = request(http, ask, deadline_ns, quiet_ns + (int64_t)ask->wait_ms * 1000000,
                         code_out, &why);
        if (status == HEFT_OK) {
            return take_body(http, body_out, n_out, err);
        }
        if (!http->was_lost || heft__clock_mono_ns() >= deadline_ns) {
            break;
        }
        quiet_ns *= status == HEFT_ERR_TIMEOUT ? 2 : 1; /* it may be slow, and not lost */
        pause_ms(http, PAUSE_MS << i, deadline_ns);
    }
    if (err != NULL) {
        *err = why;
    }
    return status;
}

/* ---- public ---- */

/* How long a path asks to be kept waiting: "?wait=SECONDS". */
static uint32_t find_wait_ms(const char *path)
{
    static const char key[] = "?wait=";
    const char *found = strstr(path, key);
    const long seconds = found != NULL ? strtol(found + sizeof key - 1, NULL, 10) : 0;
    return seconds > 0 && seconds <= 60 ? (uint32_t)seconds * 1000 : 0;
}

/* What only asks is asked again where it got lost; what changes something is for the caller. */
static heft_status_t request_for(const heft__access_t *access, const char *method, const char *path,
                                 const char *json, uint32_t deadline_ms, char **json_out,
                                 heft_error_t *err)
{
    heft__http_t *http = NULL;
    heft_status_t status = heft__http_create(access, &http, err);
    if (status != HEFT_OK || http == NULL) {
        return status;
    }
    int code = 0;
    char *body = NULL;
    const heft__http_ask_t ask = { .method = method,
                                   .path = path,
                                   .body = json,
                                   .body_bytes = json != NULL ? strlen(json) : 0,
                                   .wait_ms = find_wait_ms(path),
                                   .deadline_ms = deadline_ms != 0 ? deadline_ms : 30000 };
    status = strcmp(method, "GET") == 0
                 ? heft__http_ask(http, &ask, &code, &body, NULL, err)
                 : heft__http_request(http, method, path, json, ask.body_bytes, ask.deadline_ms,
                                      &code, &body, NULL, err);
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

heft_status_t heft_client_request(const heft_client_opts_t *opts, const char *method,
                                  const char *path, const char *json, char **json_out,
                                  heft_error_t *err)
{
    static const char *const methods[] = { "GET", "POST", "PUT", "DELETE" };
    heft_client_opts_t loaded = HEFT_CLIENT_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "client options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved,
                                           "client options", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (path == NULL || path[0] != '/') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "path \"%.100s\" does not begin with /",
                               path != NULL ? path : "(null)");
    }
    bool is_known = false;
    for (size_t i = 0; method != NULL && i < sizeof methods / sizeof methods[0]; i++) {
        is_known = is_known || strcmp(method, methods[i]) == 0;
    }
    if (!is_known) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "method \"%.20s\": none of GET, POST, PUT, DELETE",
                               method != NULL ? method : "(null)");
    }
    heft__access_t access = { .url = loaded.url,
                              .token_file = loaded.token_file,
                              .ca_file = loaded.ca_file,
                              .insecure = loaded.insecure };
    heft_config_t *config = NULL;
    status = heft__settings_access(&access, &config, err);
    if (status == HEFT_OK) {
        status = request_for(&access, method, path, json, loaded.deadline_ms, json_out, err);
    }
    heft_config_destroy(config);
    return status;
}

heft_status_t heft_client_get(const char *url, const char *path, uint32_t deadline_ms,
                              char **json_out, heft_error_t *err)
{
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    opts.url = url;
    opts.deadline_ms = deadline_ms;
    return heft_client_request(&opts, "GET", path, NULL, json_out, err);
}

heft_status_t heft_client_post(const char *url, const char *path, const char *json,
                               uint32_t deadline_ms, char **json_out, heft_error_t *err)
{
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    opts.url = url;
    opts.deadline_ms = deadline_ms;
    return heft_client_request(&opts, "POST", path, json, json_out, err);
}
