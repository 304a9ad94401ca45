/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP client: errors, deadlines, and messages that get lost. A scripted server does to each
 * connection in turn what a test says.
 */
#include "http_fleet.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static void client_maps_errors(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *json = NULL;
    EXPECT_STATUS(heft_client_get(e->url, "/healthz", 1000, &json, &err), HEFT_OK);
    assert_non_null(strstr(json, "true"));
    heft_string_free(json);
    json = NULL;
    EXPECT_STATUS(heft_client_get(e->url, "/nothing", 1000, &json, &err), HEFT_ERR_NOT_FOUND);
    assert_null(json);
    EXPECT_MESSAGE("no such path");
    EXPECT_STATUS(heft_client_post(e->url, "/v1/rounds", "{", 1000, &json, &err), HEFT_ERR_FORMAT);
    EXPECT_STATUS(heft_client_post(e->url, "/v1/rounds", NULL, 1000, &json, &err), HEFT_ERR_FORMAT);
    EXPECT_STATUS(heft_client_get(e->url, "healthz", 1000, &json, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_client_get("ftp://x", "/", 1000, &json, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_client_get(NULL, "/", 1000, &json, &err), HEFT_ERR_ARGUMENT);
    char slash[100];
    (void)snprintf(slash, sizeof slash, "%s/", e->url);
    EXPECT_STATUS(heft_client_get(slash, "/healthz", 0, NULL, &err), HEFT_OK);
}

/* A socket that is bound or listens but never answers. */
static int mute_socket(bool listens, char *url, size_t size)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t n = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
    if (listens) {
        assert_int_equal(listen(fd, 4), 0);
    }
    (void)snprintf(url, size, "http://127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

static void client_waits_no_longer_than_its_deadline(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char url[64];
    int fd = mute_socket(true, url, sizeof url);
    const int64_t begun = heft__clock_mono_ns();
    EXPECT_STATUS(heft_client_get(url, "/healthz", 100, NULL, &err), HEFT_ERR_TIMEOUT);
    assert_true(heft__clock_mono_ns() - begun < 10 * INT64_C(1000000000));
    (void)close(fd);
    fd = mute_socket(false, url, sizeof url);
    EXPECT_STATUS(heft_client_get(url, "/healthz", 5000, NULL, &err), HEFT_ERR_PEER);
    (void)close(fd);
}

static void *abort_when_connected(void *arg)
{
    heft__http_abort(arg);
    return NULL;
}

static void client_request_can_be_aborted(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char url[64];
    const int fd = mute_socket(true, url, sizeof url);
    heft__http_t *http = NULL;
    int code = 1;
    pthread_t thread;
    EXPECT_STATUS(heft__http_create(&(heft__access_t){ .url = url }, &http, &err), HEFT_OK);
    assert_int_equal(pthread_create(&thread, NULL, abort_when_connected, http), 0);
    EXPECT_STATUS(heft__http_request(http, "GET", "/", NULL, 0, 60000, &code, NULL, NULL, &err),
                  HEFT_ERR_CANCELED);
    assert_int_equal(code, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    /* and so is every later one */
    EXPECT_STATUS(heft__http_request(http, "GET", "/", NULL, 0, 60000, &code, NULL, NULL, &err),
                  HEFT_ERR_CANCELED);
    heft__http_destroy(http);
    (void)close(fd);
}

static void client_survives_lack_of_memory(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (long k = 0;; k++) {
        char *json = NULL;
        heft__alloc_fail_at(k);
        const heft_status_t status = heft_client_get(e->url, "/healthz", 5000, &json, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_string_free(json);
            assert_true(k > 1);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(json);
    }
}

/* ---- lost messages ---- */

typedef enum act {
    ACT_DROP,   /* read the request, close without an answer */
    ACT_SILENT, /* keep the connection, never answer */
    ACT_ANSWER, /* 200 */
    ACT_REFUSE, /* 413 as soon as the head is there, and close */
    ACT_SLOW    /* 200, a byte at a time, longer than the client bears silence */
} act_t;

typedef struct server {
    int fd;
    char url[64];
    const act_t *acts;
    int n_acts;
    int n_seen; /* connections; after the join */
    pthread_t thread;
} server_t;

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
static const char refusal[] =
    "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 54\r\n\r\n"
    "{\"error\":{\"status\":\"ERR_LIMIT\",\"message\":\"too large\"}}";

/* Up to the end of the head. */
static void read_head(int fd)
{
    char head[4096];
    size_t n = 0;
    while (n < sizeof head - 1) {
        const ssize_t got = recv(fd, head + n, 1, 0);
        if (got <= 0) {
            return;
        }
        n += (size_t)got;
        head[n] = '\0';
        if (n >= 4 && strcmp(head + n - 4, "\r\n\r\n") == 0) {
            return;
        }
    }
}

static void send_all(int fd, const char *text, size_t step, int pause)
{
    for (size_t at = 0; text[at] != '\0'; at += step) {
        const size_t left = strlen(text + at);
        if (send(fd, text + at, left < step ? left : step, MSG_NOSIGNAL) < 0) {
            return;
        }
        if (pause > 0) {
            (void)poll(NULL, 0, pause);
        }
        step = left < step ? left : step;
    }
}

static void *serve(void *arg)
{
    server_t *s = arg;
    int open[8];
    int n_open = 0;
    for (int i = 0; i < s->n_acts; i++) {
        struct pollfd ready = { .fd = s->fd, .events = POLLIN };
        if (poll(&ready, 1, 60000) <= 0) {
            break;
        }
        const int fd = accept(s->fd, NULL, NULL);
        s->n_seen++;
        read_head(fd);
        switch (s->acts[i]) {
        case ACT_SILENT:
            open[n_open++] = fd;
            continue;
        case ACT_ANSWER:
            send_all(fd, answer, sizeof answer, 0);
            break;
        case ACT_REFUSE:
            send_all(fd, refusal, sizeof refusal, 0);
            break;
        case ACT_SLOW:
            send_all(fd, answer, 12, 200);
            break;
        case ACT_DROP:
        default:
            break;
        }
        (void)close(fd);
    }
    while (n_open > 0) {
        (void)close(open[--n_open]);
    }
    return NULL;
}

static void server_start(server_t *s, const act_t *acts, int n_acts)
{
    *s = (server_t){ .acts = acts, .n_acts = n_acts };
    s->fd = mute_socket(true, s->url, sizeof s->url);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_stop(server_t *s)
{
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    (void)close(s->fd);
}

static heft_status_t ask(const char *url, uint32_t deadline_ms, int *code_out, heft_error_t *err)
{
    heft__http_t *http = NULL;
    char *body = NULL;
    size_t n = 0;
    assert_int_equal(heft__http_create(&(heft__access_t){ .url = url }, &http, err), HEFT_OK);
    const heft__http_ask_t question = {
        .method = "PUT", .path = "/x", .body = "{}", .body_bytes = 2, .deadline_ms = deadline_ms
    };
    heft_status_t status = heft__http_ask(http, &question, code_out, &body, &n, err);
    if (status == HEFT_OK) {
        assert_string_equal(body, "{\"ok\":true}");
        assert_int_equal(n, strlen(body));
    }
    heft__free(body);
    heft__http_destroy(http);
    return status;
}

static void what_got_lost_is_asked_again(void **state)
{
    (void)state;
    static const act_t acts[] = { ACT_DROP, ACT_SILENT, ACT_DROP, ACT_ANSWER };
    server_t s;
    heft_error_t err = HEFT_ERROR_INIT;
    int code = 0;
    server_start(&s, acts, 4);
    EXPECT_STATUS(ask(s.url, 12000, &code, &err), HEFT_OK);
    server_stop(&s);
    assert_int_equal(code, 200);
    assert_int_equal(s.n_seen, 4);
    /* a try that failed is no error of a request that succeeded */
    assert_int_equal(err.status, HEFT_OK);
    assert_string_equal(err.message, "");
}

static void asking_ends_with_its_deadline(void **state)
{
    (void)state;
    static const act_t acts[] = { ACT_SILENT, ACT_SILENT };
    server_t s;
    heft_error_t err = HEFT_ERROR_INIT;
    int code = 1;
    server_start(&s, acts, 2);
    EXPECT_STATUS(ask(s.url, 2500, &code, &err), HEFT_ERR_TIMEOUT);
    assert_int_equal(code, 0);
    EXPECT_MESSAGE("no reply");
    server_stop(&s);
}

static void a_slow_answer_is_not_a_lost_one(void **state)
{
    (void)state;
    static const act_t acts[] = { ACT_SLOW };
    server_t s;
    heft_error_t err = HEFT_ERROR_INIT;
    int code = 0;
    server_start(&s, acts, 1);
    EXPECT_STATUS(ask(s.url, 6000, &code, &err), HEFT_OK); /* bears 1 s of silence, not less */
    server_stop(&s);
    assert_int_equal(s.n_seen, 1);
}

static void nobody_there_is_told_at_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char url[64];
    int code = 1;
    const int fd = mute_socket(false, url, sizeof url);
    EXPECT_STATUS(ask(url, UINT32_MAX, &code, &err), HEFT_ERR_PEER); /* would wait for weeks */
    assert_int_equal(code, 0);
    (void)close(fd);
}

/* The answer wins, although most of the body has not been sent. */
static void an_early_answer_is_heard(void **state)
{
    (void)state;
    enum { BYTES = 12 << 20, N = 6 };
    static const act_t acts[N] = { ACT_REFUSE, ACT_REFUSE, ACT_REFUSE,
                                   ACT_REFUSE, ACT_REFUSE, ACT_REFUSE };
    server_t s;
    char *body = malloc(BYTES);
    assert_non_null(body);
    memset(body, 'x', BYTES);
    server_start(&s, acts, N);
    for (int i = 0; i < N; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__http_t *http = NULL;
        int code = 0;
        EXPECT_STATUS(heft__http_create(&(heft__access_t){ .url = s.url }, &http, &err), HEFT_OK);
        EXPECT_STATUS(
            heft__http_request(http, "PUT", "/x", body, BYTES, 60000, &code, NULL, NULL, &err),
            HEFT_ERR_LIMIT);
        assert_int_equal(code, 413);
        EXPECT_MESSAGE("too large");
        heft__http_destroy(http);
    }
    server_stop(&s);
    free(body);
}

/* ---- waiting for destinations ---- */

static int stop_at_once(void *arg, int64_t n_there, int64_t n_wanted)
{
    int64_t *seen = arg;
    *seen = n_there * 100 + n_wanted;
    return 1;
}

static void destinations_are_waited_for_and_gaps_are_named(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    opts.url = e->url;
    EXPECT_STATUS(heft_client_await_destinations(&opts, 0, 0, NULL, NULL, &err), HEFT_OK);
    EXPECT_STATUS(heft_client_await_destinations(&opts, 3, 0, NULL, NULL, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("0 of 3 destinations after 0 s: nobody has registered");
    fleet_member_t member = { .transport = NULL };
    fleet_member_start(&member, e->url, HEFT__ROLE_DESTINATION, 0, 2);
    fleet_await_bound(&member);
    EXPECT_STATUS(heft_client_await_destinations(&opts, 1, 60000, NULL, NULL, &err), HEFT_OK);
    EXPECT_STATUS(heft_client_await_destinations(&opts, 3, 100, NULL, NULL, &err),
                  HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("there are destination.heft.0.2; destination.heft.0.1 missing");
    int64_t seen = 0;
    EXPECT_STATUS(heft_client_await_destinations(&opts, 3, 60000, stop_at_once, &seen, &err),
                  HEFT_ERR_CANCELED);
    assert_int_equal(seen, 103);
    fleet_member_stop(&member);
}

static void a_coordinator_that_is_away_is_waited_for_too(void **state)
{
    (void)state;
    char url[64];
    heft_error_t err = HEFT_ERROR_INIT;
    heft_client_opts_t opts = HEFT_CLIENT_OPTS_INIT;
    const int fd = mute_socket(false, url, sizeof url);
    opts.url = url;
    EXPECT_STATUS(heft_client_await_destinations(&opts, 1, 100, NULL, NULL, &err), HEFT_ERR_PEER);
    EXPECT_MESSAGE(url);
    EXPECT_MESSAGE("; tried for 0.1 s");
    int64_t seen = 0;
    EXPECT_STATUS(heft_client_await_destinations(&opts, 1, 60000, stop_at_once, &seen, &err),
                  HEFT_ERR_CANCELED);
    opts.url = "nonsense";
    EXPECT_STATUS(heft_client_await_destinations(&opts, 1, 60000, NULL, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENV_TEST(client_maps_errors),
        cmocka_unit_test(client_waits_no_longer_than_its_deadline),
        cmocka_unit_test(client_request_can_be_aborted),
        ENV_TEST(client_survives_lack_of_memory),
        cmocka_unit_test(what_got_lost_is_asked_again),
        cmocka_unit_test(asking_ends_with_its_deadline),
        cmocka_unit_test(a_slow_answer_is_not_a_lost_one),
        cmocka_unit_test(nobody_there_is_told_at_once),
        cmocka_unit_test(an_early_answer_is_heard),
        ENV_TEST(destinations_are_waited_for_and_gaps_are_named),
        cmocka_unit_test(a_coordinator_that_is_away_is_waited_for_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
