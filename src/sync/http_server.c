/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP server: libmicrohttpd with one polling thread. A call that waits is suspended and costs no
 * thread; the ticker resumes it when its order or its round has changed, or its time is up, and it
 * is then handled again.
 *
 * Bodies are gathered up to a limit that depends on the path; beyond it the rest is read and
 * dropped, and the reply is 413; a body twice as long as allowed closes the connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sync/coordinator.h"

/* The page is one file that talks to this server alone, and nobody may frame it. */
#define PAGE_POLICY                                                       \
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; " \
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define IDLE_TIMEOUT_S 120
#define STOP_LIMIT_NS (2 * INT64_C(1000000000))

typedef struct request {
    heft__call_t call;
    heft__text_t body;
    size_t limit;
    size_t n_dropped;
    struct MHD_Connection *connection;
    struct request *next; /* of those that wait */
    bool is_waiting;
} request_t;

/* A connection, and which member has spoken over it. */
typedef struct link {
    int fd;
    char speaker[HEFT__INCARNATION_SIZE];
    struct link *next;
} link_t;

struct heft__server {
    heft_coordinator_t *c;
    struct MHD_Daemon *daemon;
    request_t *waiting;  /* guarded by the coordinator's lock */
    link_t *links;       /* likewise; changed by the thread of the daemon alone */
    atomic_int n_active; /* requests begun and not completed */
};

static enum MHD_Result send_reply(struct MHD_Connection *connection, heft__call_t *call)
{
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
            heft__free(link);
        }
        *context = NULL;
    }
    (void)pthread_mutex_unlock(&server->c->lock);
}

static void note_speaker(struct MHD_Connection *connection, const heft__call_t *call)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    link_t *link = info != NULL ? info->socket_context : NULL;
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
    if (request->n_dropped > 0) {
        heft__call_error(call, 413, HEFT_ERR_LIMIT, "body of more than %zu bytes", request->limit);
        return send_reply(request->connection, call);
    }
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
    return waits ? MHD_YES : send_reply(request->connection, call);
}

static request_t *open_request(heft__server_t *server, struct MHD_Connection *connection,
                               const char *url, const char *method)
{
    request_t *request = heft__calloc(1, sizeof *request);
    if (request == NULL) {
        return NULL;
    }
    heft__text_init(&request->body);
    request->connection = connection;
    request->call.method = method;
    request->call.path = url;
    request->limit =
        strncmp(url, "/v1/objects/", 12) == 0 ? HEFT__OBJECT_MAX_BYTES : HEFT__WIRE_MAX_BYTES;
    (void)atomic_fetch_add(&server->n_active, 1);
    return request;
}

static enum MHD_Result gather(request_t *request, const char *data, size_t *n)
{
    if (request->body.len + *n > request->limit) {
        request->n_dropped += *n;
    } else {
        heft__text_put_n(&request->body, data, *n);
    }
    *n = 0;
    const bool absurd = request->n_dropped > request->limit;
    return request->body.failed || absurd ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    (void)version;
    heft__server_t *server = arg;
    request_t *request = *state;
    if (request == NULL) {
        *state = open_request(server, connection, url, method);
        return *state != NULL ? MHD_YES : MHD_NO;
    }
    if (*n_data > 0) {
        return gather(request, data, n_data);
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
        heft__text_fini(&request->body);
        heft__free(request);
        *state = NULL;
        (void)atomic_fetch_sub(&server->n_active, 1);
    }
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
    (void)arg;
    char line[256];
    (void)vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = '\0';
    heft__log(HEFT_LOG_DEBUG, "sync", "http: %s", line);
}

static heft_status_t listen_on(const char *address, uint16_t port, int *fd_out, uint16_t *port_out,
                               heft_error_t *err)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    char text[8];
    (void)snprintf(text, sizeof text, "%u", port);
    const int rc = getaddrinfo(address, text, &hints, &found);
    if (rc != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "address \"%.100s\": %s", address,
                               gai_strerror(rc));
    }
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
    freeaddrinfo(found);
    if (!ok) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return heft__error_set_sys(err, HEFT_ERR_IO, sys, "cannot listen on %s:%u", address, port);
    }
    const bool v6 = bound.ss_family == AF_INET6;
    *port_out = ntohs(v6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                         : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    *fd_out = fd;
    return HEFT_OK;
}

heft_status_t heft__server_start(heft_coordinator_t *c, const char *address, uint16_t port,
                                 heft__server_t **server_out, uint16_t *port_out, heft_error_t *err)
{
    int fd = -1;
    heft_status_t status = listen_on(address, port, &fd, port_out, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__server_t *server = heft__calloc(1, sizeof *server);
    if (server == NULL) {
        (void)close(fd);
        return heft__error_nomem(err, sizeof *server);
    }
    server->c = c;
    atomic_init(&server->n_active, 0);
    server->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned int)(2 * HEFT__MAX_MEMBERS), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned int)IDLE_TIMEOUT_S, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
    if (server->daemon == NULL) {
        (void)close(fd);
        heft__free(server);
        return heft__error_set(err, HEFT_ERR_IO, "cannot start the HTTP service on %s:%u", address,
                               *port_out);
    }
    *server_out = server;
    return HEFT_OK;
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
    heft__free(server);
}
