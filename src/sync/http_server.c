/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP server: libmicrohttpd with one polling thread. A call that waits is suspended and costs no
 * thread; the ticker resumes it when its order or its round has changed, or its time is up, and it
 * is then handled again.
 *
 * What can be told from the head of a request is judged before its body: token, host, path, method,
 * length, type, arguments. The body of one that is refused is read and dropped, so that the client
 * gets the reply; a body more than twice as long as allowed closes the connection. Bodies are
 * bounded one by one and in sum; slow clients are the guard's affair.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sync/coordinator.h"
#include "sync/http_guard.h"
#include "sync/security.h"

/* The page is one file that talks to this server alone, and nobody may frame it. */
#define PAGE_POLICY                                                       \
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; " \
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define IDLE_TIMEOUT_S 120
#define STOP_LIMIT_NS (2 * INT64_C(1000000000))
#define HEAD_MAX_BYTES (16u << 10)             /* of a request's head; MHD answers 431 beyond */
#define BODIES_MAX_BYTES HEFT__STORE_MAX_BYTES /* of all requests that are arriving */
#define PEM_MAX_BYTES (256u << 10)
#define DROPPED_MAX_BYTES (64u << 10) /* read after a refusal */

typedef struct request {
    heft__call_t call;
    heft__text_t body;
    size_t limit;
    size_t n_dropped;
    bool is_refused; /* the reply is there; the body is dropped */
    struct MHD_Connection *connection;
    heft__conn_t *conn;
    struct request *next; /* of those that wait */
    bool is_waiting;
} request_t;

/* A connection, and which member has spoken over it. */
typedef struct link {
    int fd;
    char speaker[HEFT__INCARNATION_SIZE];
    heft__conn_t *conn;
    struct link *next;
} link_t;

struct heft__server {
    heft_coordinator_t *c;
    struct MHD_Daemon *daemon;
    heft__guard_t guard;
    size_t body_bytes; /* of all requests that are arriving; the HTTP thread's alone */
    bool has_token;
    uint8_t token_digest[32];
    bool checks_host;    /* no token, loopback: a web page must not reach it under another name */
    char last_log[160];  /* of libmicrohttpd, while it starts */
    request_t *waiting;  /* guarded by the coordinator's lock */
    link_t *links;       /* likewise; changed by the thread of the daemon alone */
    atomic_int n_active; /* requests begun and not completed */
};

static enum MHD_Result send_reply(heft__server_t *server, request_t *request)
{
    heft__call_t *call = &request->call;
    struct MHD_Connection *connection = request->connection;
    static char nothing[1];
    struct MHD_Response *response = MHD_create_response_from_buffer(
        call->n_reply, call->reply != NULL ? call->reply : nothing, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        return MHD_NO;
    }
    if (call->reply != NULL) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, call->content_type);
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "Content-Security-Policy", PAGE_POLICY);
    if (call->code == 401) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    }
    heft__guard_set(&server->guard, request->conn, HEFT__CONN_REPLY);
    const enum MHD_Result rc = MHD_queue_response(connection, (unsigned int)call->code, response);
    MHD_destroy_response(response);
    return rc;
}

/* ---- connections ---- */

static int fd_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL ? (int)info->connect_fd : -1;
}

/* One for which there is no memory counts as none: its member can be replaced without a question.
 */
static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    heft__server_t *server = arg;
    (void)pthread_mutex_lock(&server->c->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        link_t *link = heft__calloc(1, sizeof *link);
        *context = link;
        if (link != NULL) {
            link->fd = fd_of(connection);
            link->conn = heft__guard_open(&server->guard, link->fd);
            link->next = server->links;
            server->links = link;
        }
    } else {
        link_t **at = &server->links;
        while (*at != NULL && *at != *context) {
            at = &(*at)->next;
        }
        if (*at != NULL) {
            link_t *link = *at;
            *at = link->next;
            heft__guard_close(&server->guard, link->conn);
            heft__free(link);
        }
        *context = NULL;
    }
    if (server->guard.n_conns == 1) { /* the ticker has not been sweeping */
        (void)pthread_cond_signal(&server->c->changed);
    }
    (void)pthread_mutex_unlock(&server->c->lock);
}

static link_t *link_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void note_speaker(struct MHD_Connection *connection, const heft__call_t *call)
{
    link_t *link = link_of(connection);
    if (link != NULL && call->speaker[0] != '\0') {
        memcpy(link->speaker, call->speaker, sizeof link->speaker);
    }
}

/* A suspended connection is not watched, so look whether its other end is still there. */
static bool is_open(int fd)
{
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

bool heft__server_is_connected_locked(const heft__server_t *server, const char *incarnation)
{
    for (const link_t *link = server->links; link != NULL; link = link->next) {
        if (strcmp(link->speaker, incarnation) == 0 && is_open(link->fd)) {
            return true;
        }
    }
    return false;
}

/* ---- calls ---- */

/* Handle the call, and suspend the connection if it has to wait. */
static enum MHD_Result run_call(heft__server_t *server, request_t *request)
{
    heft__call_t *call = &request->call;
    if (request->is_refused) {
        return send_reply(server, request);
    }
    heft__guard_set(&server->guard, request->conn, HEFT__CONN_HANDLED);
    call->body = request->body.data;
    call->n_body = request->body.len;
    call->wait = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "wait");
    call->incarnation =
        MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "incarnation");
    heft_coordinator_t *c = server->c;
    (void)pthread_mutex_lock(&c->lock);
    heft__coordinator_handle(c, call);
    note_speaker(request->connection, call);
    if (call->waits != HEFT__WAIT_NONE) {
        request->is_waiting = true;
        c->n_waiting++;
        request->next = server->waiting;
        server->waiting = request;
        MHD_suspend_connection(request->connection);
        c->dirty = true; /* its deadline counts from now on */
    }
    if (c->dirty) {
        (void)pthread_cond_signal(&c->changed);
    }
    const bool waits = request->is_waiting;
    (void)pthread_mutex_unlock(&c->lock);
    return waits ? MHD_YES : send_reply(server, request);
}

/* ---- the head ---- */

static void refuse(heft__server_t *server, request_t *request)
{
    request->is_refused = true;
    heft_coordinator_t *c = server->c;
    (void)pthread_mutex_lock(&c->lock);
    c->n_requests++;
    c->n_errors++;
    (void)pthread_mutex_unlock(&c->lock);
}

static const char *header_of(const request_t *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

static uint64_t length_of(const request_t *request)
{
    const char *length = header_of(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length != NULL ? strtoull(length, NULL, 10) : 0;
}

/* GET and DELETE have no body; POST and PUT say how long theirs is, or send it in chunks. */
static bool check_length(request_t *request)
{
    heft__call_t *call = &request->call;
    const char *length = header_of(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const bool is_chunked = header_of(request, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
    const bool has_body = strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0;
    if (has_body && length == NULL && !is_chunked) {
        heft__call_error(call, 411, HEFT_ERR_FORMAT, "%s without Content-Length", call->method);
        return false;
    }
    if (length_of(request) > request->limit) {
        heft__call_error(call, 413, HEFT_ERR_LIMIT, "body of more than %zu bytes", request->limit);
        return false;
    }
    return true;
}

/* A body is JSON, or says nothing of its type; objects are any bytes. */
static bool check_type(request_t *request)
{
    static const char json[] = "application/json";
    const char *type = header_of(request, MHD_HTTP_HEADER_CONTENT_TYPE);
    if (type == NULL || strncasecmp(request->call.path, "/v1/objects/", 12) == 0 ||
        (strncasecmp(type, json, sizeof json - 1) == 0 && strchr("; ", type[sizeof json - 1]))) {
        return true;
    }
    char shown[64];
    heft__call_error(&request->call, 415, HEFT_ERR_UNSUPPORTED, "Content-Type %s is not %s",
                     heft__json_show(type, shown), json);
    return false;
}

/* Called for each argument; the first that does not belong is kept. */
static enum MHD_Result check_argument(void *arg, enum MHD_ValueKind kind, const char *key,
                                      const char *value)
{
    (void)kind;
    (void)value;
    request_t *request = arg;
    const heft__call_t *call = &request->call;
    const bool is_right =
        (strcmp(key, "wait") == 0 && strncmp(call->path, "/v1/rounds/", 11) == 0) ||
        (strcmp(key, "incarnation") == 0 && strcmp(call->method, "DELETE") == 0);
    char shown[64];
    if (!is_right) {
        heft__call_error(&request->call, 400, HEFT_ERR_FORMAT, "unknown argument \"%s\"",
                         heft__json_show(key, shown));
    }
    return is_right ? MHD_YES : MHD_NO;
}

static bool check_host(const heft__server_t *server, request_t *request)
{
    const char *host = header_of(request, MHD_HTTP_HEADER_HOST);
    char shown[64];
    if (!server->checks_host || host == NULL || heft__host_is_loopback(host)) {
        return true;
    }
    heft__call_error(&request->call, 400, HEFT_ERR_AUTH,
                     "Host %s: without a token only loopback names are answered",
                     heft__json_show(host, shown));
    return false;
}

static bool check_token(const heft__server_t *server, request_t *request)
{
    const char *given = header_of(request, MHD_HTTP_HEADER_AUTHORIZATION);
    if (heft__coordinator_is_open_path(request->call.path)) {
        return true;
    }
    if (!server->has_token || heft__token_matches(server->token_digest, given)) {
        return true;
    }
    heft__call_error(&request->call, 401, HEFT_ERR_AUTH, "%s",
                     given == NULL
                         ? "this coordinator wants a token (token-file): Authorization: Bearer ..."
                         : "the token is not this coordinator's");
    return false;
}

static bool check_head(const heft__server_t *server, request_t *request)
{
    if (!check_token(server, request) || !check_host(server, request) ||
        !heft__coordinator_has_route(&request->call) || !check_length(request) ||
        !check_type(request)) {
        return false;
    }
    (void)MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, check_argument,
                                    request);
    return request->call.code == 0;
}

static request_t *open_request(heft__server_t *server, struct MHD_Connection *connection,
                               const char *url, const char *method)
{
    request_t *request = heft__calloc(1, sizeof *request);
    if (request == NULL) {
        return NULL;
    }
    const link_t *link = link_of(connection);
    heft__text_init(&request->body);
    request->connection = connection;
    request->conn = link != NULL ? link->conn : NULL;
    request->call.method = method;
    request->call.path = url;
    request->limit =
        strncmp(url, "/v1/objects/", 12) == 0 ? HEFT__OBJECT_MAX_BYTES : HEFT__WIRE_MAX_BYTES;
    (void)atomic_fetch_add(&server->n_active, 1);
    heft__guard_set(&server->guard, request->conn, HEFT__CONN_BODY);
    if (!check_head(server, request)) {
        refuse(server, request);
    }
    return request;
}

/* A short body is read before a refusal, because some clients do not listen before they have said
 * everything; for a long one the connection ends with the reply. */
static bool is_answered_now(const request_t *request)
{
    return request->is_refused && length_of(request) > DROPPED_MAX_BYTES;
}

/* ---- the body ---- */

static void drop_body(heft__server_t *server, request_t *request)
{
    server->body_bytes -= request->body.len;
    request->n_dropped += request->body.len;
    heft__text_fini(&request->body);
}

static enum MHD_Result gather(heft__server_t *server, request_t *request, const char *data,
                              size_t *n)
{
    const bool is_too_long = request->body.len + *n > request->limit;
    const bool is_full = server->body_bytes + *n > BODIES_MAX_BYTES;
    if (!request->is_refused && (is_too_long || is_full)) {
        heft__call_error(&request->call, is_too_long ? 413 : 503,
                         is_too_long ? HEFT_ERR_LIMIT : HEFT_ERR_BUSY,
                         is_too_long ? "body of more than %zu bytes"
                                     : "bodies of more than %zu bytes are arriving: try again",
                         is_too_long ? request->limit : (size_t)BODIES_MAX_BYTES);
        refuse(server, request);
        drop_body(server, request);
    }
    if (request->is_refused) {
        request->n_dropped += *n;
    } else {
        heft__text_put_n(&request->body, data, *n);
        server->body_bytes += request->body.failed ? 0 : *n;
    }
    *n = 0;
    const bool is_absurd = request->n_dropped > 2 * request->limit;
    return request->body.failed || is_absurd ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    (void)version;
    heft__server_t *server = arg;
    request_t *request = *state;
    if (request == NULL) {
        request = open_request(server, connection, url, method);
        *state = request;
        return request == NULL            ? MHD_NO
               : is_answered_now(request) ? send_reply(server, request)
                                          : MHD_YES;
    }
    if (*n_data > 0) {
        return gather(server, request, data, n_data);
    }
    request->call.method = method;
    request->call.path = url;
    return run_call(server, request);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    (void)connection;
    (void)code;
    heft__server_t *server = arg;
    request_t *request = *state;
    if (request != NULL) {
        heft__free(request->call.reply);
        drop_body(server, request);
        heft__guard_set(&server->guard, request->conn, HEFT__CONN_IDLE);
        heft__free(request);
        *state = NULL;
        (void)atomic_fetch_sub(&server->n_active, 1);
    }
}

int64_t heft__server_sweep(heft__server_t *server, int64_t now_ns)
{
    return heft__guard_sweep(&server->guard, now_ns);
}

int64_t heft__server_resume_locked(heft__server_t *server, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    request_t **link = &server->waiting;
    while (*link != NULL) {
        request_t *request = *link;
        if (server->c->stopping ||
            heft__coordinator_is_ready_locked(server->c, &request->call, now_ns)) {
            *link = request->next;
            request->is_waiting = false;
            server->c->n_waiting--;
            MHD_resume_connection(request->connection);
        } else {
            next = heft__min_i64(next, request->call.deadline_ns);
            link = &request->next;
        }
    }
    return next;
}

/* ---- start and stop ---- */

static void HEFT_PRINTF(2, 0) log_line(void *arg, const char *fmt, va_list args)
{
    heft__server_t *server = arg;
    char line[160];
    (void)vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = '\0';
    if (server->daemon == NULL) { /* starting: the reason, if it fails */
        memcpy(server->last_log, line, sizeof server->last_log);
    }
    heft__log(HEFT_LOG_DEBUG, "sync", "http: %s", line);
}

static bool is_loopback(const struct sockaddr *address)
{
    char text[INET6_ADDRSTRLEN];
    const void *from =
        address->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    return inet_ntop(address->sa_family, from, text, sizeof text) != NULL &&
           heft__host_is_loopback(text);
}

/* Beyond loopback nobody is let in who is not known, unless the user says so. */
static heft_status_t check_exposure(const heft_coordinator_opts_t *opts, bool is_exposed,
                                    heft_error_t *err)
{
    if ((opts->tls_cert == NULL) != (opts->tls_key == NULL)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "tls-cert and tls-key go together: %s is missing",
                               opts->tls_cert == NULL ? "tls-cert" : "tls-key");
    }
    if (!is_exposed || (opts->token_file != NULL && opts->tls_cert != NULL)) {
        return HEFT_OK;
    }
    const char *lacks = opts->token_file != NULL ? "tls-cert and tls-key"
                        : opts->tls_cert != NULL ? "token-file"
                                                 : "token-file, tls-cert and tls-key";
    if (opts->insecure == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "address %.60s is beyond loopback: give %s, or say insecure",
                               opts->address, lacks);
    }
    heft__log(
        HEFT_LOG_WARN, "sync",
        "insecure: listening on %s without %s: whoever reaches it can read or order the fleet",
        opts->address, lacks);
    return HEFT_OK;
}

static heft_status_t open_socket(const struct addrinfo *found, const char *address, uint16_t port,
                                 int *fd_out, uint16_t *port_out, heft_error_t *err)
{
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    struct sockaddr_storage bound;
    memset(&bound, 0, sizeof bound);
    socklen_t n = sizeof bound;
    const bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                    bind(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                    listen(fd, SOMAXCONN) == 0 &&
                    getsockname(fd, (struct sockaddr *)&bound, &n) == 0;
    const int sys = errno;
    if (!ok) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return heft__error_set_sys(err, HEFT_ERR_IO, sys, "cannot listen on %s:%u%s", address, port,
                                   sys == EADDRINUSE ? ", another process has it (ss -ltnp names "
                                                       "it): end it, or give another port"
                                                     : "");
    }
    const bool v6 = bound.ss_family == AF_INET6;
    *port_out = ntohs(v6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                         : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    *fd_out = fd;
    return HEFT_OK;
}

static heft_status_t listen_on(const heft_coordinator_opts_t *opts, int *fd_out, uint16_t *port_out,
                               bool *is_exposed_out, heft_error_t *err)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    char text[8];
    (void)snprintf(text, sizeof text, "%u", opts->port);
    const int rc = getaddrinfo(opts->address, text, &hints, &found);
    if (rc != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "address \"%.100s\": %s", opts->address,
                               gai_strerror(rc));
    }
    *is_exposed_out = !is_loopback(found->ai_addr);
    heft_status_t status = check_exposure(opts, *is_exposed_out, err);
    if (status == HEFT_OK) {
        status = open_socket(found, opts->address, opts->port, fd_out, port_out, err);
    }
    freeaddrinfo(found);
    return status;
}

static heft_status_t load_token(heft__server_t *server, const char *path, heft_error_t *err)
{
    char *token = NULL;
    if (path == NULL) {
        return HEFT_OK;
    }
    heft_status_t status = heft__token_read(path, &token, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__sha256_t hash;
    heft__sha256_init(&hash);
    heft__sha256_update(&hash, token, strlen(token));
    heft__sha256_final(&hash, server->token_digest);
    server->has_token = true;
    heft__token_free(token);
    return HEFT_OK;
}

/* Start libmicrohttpd on a socket that listens; it owns the socket afterwards. */
static heft_status_t start_daemon(heft__server_t *server, int fd, const char *cert, const char *key,
                                  heft_error_t *err)
{
    const unsigned int flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO |
                               MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                               (cert != NULL ? (unsigned int)MHD_USE_TLS : 0u);
    const struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)key },
        { MHD_OPTION_HTTPS_PRIORITIES, 0,
          (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" },
        { MHD_OPTION_END, 0, NULL },
    };
    server->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER, log_line, server,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned int)server->guard.limit, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned int)IDLE_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_MAX_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_ARRAY,
        cert != NULL ? tls : &tls[3], MHD_OPTION_END);
    if (server->daemon == NULL) {
        return heft__error_set(err, cert != NULL ? HEFT_ERR_ARGUMENT : HEFT_ERR_IO,
                               "cannot start the HTTP%s service: %s", cert != NULL ? "S" : "",
                               server->last_log[0] != '\0' ? server->last_log : "no reason given");
    }
    return HEFT_OK;
}

static heft_status_t start_service(heft__server_t *server, const heft_coordinator_opts_t *opts,
                                   int fd, heft_error_t *err)
{
    char *cert = NULL;
    char *key = NULL;
    size_t n;
    heft_status_t status = HEFT_OK;
    if (opts->tls_cert != NULL && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "tls-cert: this libmicrohttpd was built without TLS");
    }
    if (opts->tls_cert != NULL) {
        status = heft__file_read(opts->tls_cert, "tls-cert", PEM_MAX_BYTES, false, &cert, &n, err);
    }
    if (status == HEFT_OK && opts->tls_key != NULL) {
        status = heft__file_read(opts->tls_key, "tls-key", PEM_MAX_BYTES, true, &key, &n, err);
    }
    if (status == HEFT_OK) {
        status = start_daemon(server, fd, cert, key, err);
    }
    heft__free(cert);
    heft__token_free(key);
    return status;
}

static heft_status_t create_server(heft_coordinator_t *c, const heft_coordinator_opts_t *opts,
                                   int fd, bool is_exposed, heft__server_t **server_out,
                                   heft_error_t *err)
{
    heft__server_t *server = heft__calloc(1, sizeof *server);
    if (server == NULL) {
        return heft__error_nomem(err, sizeof *server);
    }
    server->c = c;
    atomic_init(&server->n_active, 0);
    server->checks_host = opts->token_file == NULL && !is_exposed;
    heft_status_t status = heft__guard_init(&server->guard, opts->max_connections,
                                            (int64_t)opts->request_ms * 1000000, err);
    if (status != HEFT_OK) {
        heft__free(server);
        return status;
    }
    status = load_token(server, opts->token_file, err);
    if (status == HEFT_OK) {
        status = start_service(server, opts, fd, err);
    }
    if (status != HEFT_OK) {
        heft__guard_fini(&server->guard);
        heft__free(server);
        return status;
    }
    *server_out = server;
    return HEFT_OK;
}

heft_status_t heft__server_start(heft_coordinator_t *c, const heft_coordinator_opts_t *opts,
                                 heft__server_t **server_out, uint16_t *port_out, heft_error_t *err)
{
    int fd = -1;
    bool is_exposed = true;
    heft_status_t status = listen_on(opts, &fd, port_out, &is_exposed, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = create_server(c, opts, fd, is_exposed, server_out, err);
    if (status != HEFT_OK) {
        (void)close(fd);
    }
    return status;
}

void heft__server_stop(heft__server_t *server)
{
    if (server == NULL) {
        return;
    }
    /* every call that waits has been resumed by now and answers 503: give it a moment to go out */
    const int64_t limit = heft__clock_mono_ns() + STOP_LIMIT_NS;
    const struct timespec pause = { .tv_nsec = 1000000 };
    const int fd = MHD_quiesce_daemon(server->daemon);
    while (atomic_load(&server->n_active) > 0 && heft__clock_mono_ns() < limit) {
        (void)nanosleep(&pause, NULL);
    }
    MHD_stop_daemon(server->daemon);
    if (fd >= 0) {
        (void)close(fd);
    }
    heft__guard_fini(&server->guard);
    heft__free(server);
}
