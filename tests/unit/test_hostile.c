/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile peers: raw bytes to a real coordinator. Each gets a 4xx that names the thing, the state
 * stays as it was to the last key, and nobody else waits for it.
 */
#include "http_fleet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define INC_A "0123456789abcdef0123456789abcdef"
#define INC_B "1123456789abcdef0123456789abcdef"
#define DIG "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SECOND INT64_C(1000000000)
#define MEMBER "/v1/members/destination.heft.0.0"

/* ---- raw connections ---- */

static int dial(const env_t *e)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(e->port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* As far as the other end takes it. */
static void say(int fd, const void *data, size_t n)
{
    const char *from = data;
    while (n > 0) {
        const ssize_t put = send(fd, from, n, MSG_NOSIGNAL);
        if (put <= 0) {
            return;
        }
        from += put;
        n -= (size_t)put;
    }
}

/* Whether the other end has closed; waits for it until the instant. */
static bool is_closed_by(int fd, int64_t until_ns)
{
    char bytes[4096];
    for (;;) {
        const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            return true;
        }
        const int64_t left = until_ns - heft__clock_mono_ns();
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (n < 0 && (left <= 0 || poll(&p, 1, (int)(left / 1000000) + 1) < 0)) {
            return false;
        }
    }
}

static bool is_whole(const char *reply)
{
    const char *end = strstr(reply, "\r\n\r\n");
    const char *length = strstr(reply, "Content-Length: ");
    return end != NULL && length != NULL && length < end &&
           strlen(end + 4) >= strtoul(length + 16, NULL, 10);
}

/* What the other end says: a reply, or everything until it closes or is silent for long. */
static char *hear(int fd)
{
    heft__text_t text;
    heft__text_init(&text);
    while (!is_whole(text.data)) {
        char bytes[4096];
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, 5000) != 1) {
            break;
        }
        const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) {
            break;
        }
        heft__text_put_n(&text, bytes, (size_t)n);
    }
    char *all = heft__text_take(&text);
    heft__text_fini(&text);
    return all;
}

static char *exchange(const env_t *e, const void *data, size_t n)
{
    const int fd = dial(e);
    say(fd, data, n);
    char *reply = hear(fd);
    (void)close(fd);
    return reply;
}

/* The whole status but for the ages of contacts. */
static char *state_of(const env_t *e)
{
    char *text = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_client_get(e->url, "/v1/status", 5000, &text, &err), HEFT_OK);
    json_t *root = json_loads(text, 0, NULL);
    heft_string_free(text);
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(root, "members"), i, member)
    {
        (void)json_object_del(member, "silent_ms");
        (void)json_object_del(member, "contact");
    }
    char *kept = json_dumps(root, JSON_SORT_KEYS);
    json_decref(root);
    assert_non_null(kept);
    return kept;
}

/* ---- what is refused ---- */

typedef struct hostile {
    const char *head; /* request line and headers; Connection: close is added */
    const char *body;
    int code;         /* 0: no reply at all */
    const char *part; /* of the reply; NULL: the HTTP library's own words */
} hostile_t;

#define POST(path) "POST " path " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
#define PUT(path) "PUT " path " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
#define REG(rest)                                                                       \
    "{\"format\":1,\"role\":\"destination\",\"job\":\"heft\",\"replica\":0,\"rank\":1," \
    "\"mode\":\"staged\",\"transports\":[\"shm\"]" rest "}"
#define REPORT(rest)                                                                              \
    "{\"incarnation\":\"" INC_A "\",\"sequence\":9,\"order\":0,\"wait_ms\":0,\"state\":\"idle\"," \
    "\"condition\":\"ok\",\"live_version\":0,\"serving\":false" rest "}"

static const hostile_t hostiles[] = {
    /* the request itself */
    { "nonsense\r\n", NULL, 0, NULL }, /* closed without a word */
    { GET("/nothing"), NULL, 404, "no such path: /nothing" },
    { GET("/v1/../v1/status/x"), NULL, 404, "no such path" },
    { GET("/v1/members/%2e%2e/poll"), NULL, 405, "method GET is not for /v1/members/../poll" },
    { GET("/\xff\xfe"), NULL, 404, "no such path: /??" },
    { "BREW /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n", NULL, 405, "method BREW" },
    { "HEAD /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n", NULL, 405, NULL },
    { "OPTIONS /v1/rounds HTTP/1.1\r\nHost: 127.0.0.1\r\n", NULL, 405, "method OPTIONS" },
    { "GET /v1/status HTTP/1.1\r\n", NULL, 400, NULL }, /* no Host */
    { "GET /v1/status HTTP/1.1\r\nHost: evil.example\r\n", NULL, 400,
      "Host evil.example: without" },
    { POST("/v1/members"), NULL, 411, "POST without Content-Length" },
    { PUT("/v1/objects/" DIG), NULL, 411, "PUT without Content-Length" },
    { POST("/v1/members") "Content-Length: ten\r\n", NULL, 400, NULL },
    { POST("/v1/members") "Content-Length: -1\r\n", NULL, 400, NULL },
    { POST("/v1/members") "Content-Length: 99999999999999999999999\r\n", NULL, 413, NULL },
    { POST("/v1/members") "Content-Length: 1048577\r\n", NULL, 413, "body of more than 1048576" },
    { PUT("/v1/objects/" DIG) "Content-Length: 67108865\r\n", NULL, 413, "more than 67108864" },
    { POST("/v1/members") "Content-Type: text/plain\r\n", "{}", 415, "Content-Type text/plain" },
    { POST("/v1/rounds") "Content-Type: application/jsonp\r\n", "{}", 415, "application/jsonp" },
    { GET("/v1/status?verbose=1"), NULL, 400, "unknown argument \\\"verbose\\\"" },
    { GET("/v1/status?wait=1"), NULL, 400, "unknown argument \\\"wait\\\"" },
    { GET("/v1/rounds/1.1?wait=1&x"), NULL, 400, "unknown argument \\\"x\\\"" },
    { GET("/v1/rounds/1.1"), NULL, 404, "1.1" },
    { GET("/v1/rounds/one"), NULL, 400, "\\\"one\\\" is not a round" },
    /* JSON as such */
    { POST("/v1/members"), "", 400, "register" },
    { POST("/v1/members"), "{", 400, "register: line 1" },
    { POST("/v1/members"), "[]", 400, "register: not a JSON object" },
    { POST("/v1/members"), "null", 400, "register: line 1" },
    { POST("/v1/members"), "{} {}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"a\":NaN}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"a\":Infinity}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"a\":1e999}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"rank\":99999999999999999999999}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"job\":\"\xff\xfe\"}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"job\":\"\xed\xa0\x80\"}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"job\":\"a\\u0000b\"}", 400, "register: line 1" },
    { POST("/v1/members"), "{\"job\":\"a\",\"job\":\"b\"}", 400, "duplicate object key" },
    { POST("/v1/members"), "[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]", 400,
      "nested deeper than" },
    /* keys and values */
    { POST("/v1/members"), REG(""), 400, "key \\\"incarnation\\\" is missing" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":0,\"color\":1"), 400,
      "unknown key \\\"color\\\"" },
    { POST("/v1/members"), REG(",\"incarnation\":\"xyz\",\"epoch\":0"), 400, "32 lower-case hex" },
    { POST("/v1/members"), REG(",\"incarnation\":7,\"epoch\":0"), 400, "is not a string" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":\"0\""), 400,
      "key \\\"epoch\\\" is not an integer" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":1.0"), 400,
      "key \\\"epoch\\\" is not an integer" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":-1"), 400, "outside 0" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":9007199254740992"), 400,
      "outside 0 to 9007199254740990" },
    { POST("/v1/members"), REG(",\"incarnation\":\"" INC_B "\",\"epoch\":9007199254740990"), 400,
      "epoch 9007199254740990 is beyond" },
    { POST("/v1/rounds"), "{\"version\":9007199254740992,\"key\":\"k\"}", 400, "version" },
    { POST("/v1/rounds"), "{\"version\":0,\"key\":\"k\"}", 400, "ERR_VERSION" },
    { POST("/v1/rounds"), "{\"key\":\"k\"}", 400, "version" },
    { POST("/v1/rounds"), "{\"version\":1}", 400, "key" },
    { POST("/v1/rounds"), "{\"version\":1,\"key\":\"\"}", 400, "key" },
    { POST("/v1/rounds"), "{\"version\":1,\"key\":\"k\",\"deadlines\":{\"flip_ms\":0}}", 400,
      "flip_ms" },
    { POST("/v1/rounds"), "{\"version\":1,\"key\":\"k\",\"deadlines\":{\"flop_ms\":1}}", 400,
      "unknown key \\\"flop_ms\\\"" },
    { POST("/v1/rounds"), "{\"version\":1,\"key\":\"k\",\"destinations\":[]}", 400, "empty" },
    { POST("/v1/rounds"), "{\"version\":1,\"key\":\"k\",\"destinations\":[7]}", 400, "item 0" },
    { POST("/v1/recover"), "{\"members\":7}", 400, "members" },
    { POST("/v1/recover"), "{\"members\":[{\"id\":\"x\",\"claim\":\"magic\"}]}", 400,
      "claim \\\"magic\\\" is none of" },
    { POST("/v1/verify"), "{\"key\":\"k\",\"members\":[\"nobody\"]}", 404, "nobody" },
    /* members */
    { PUT("/v1/objects/" DIG), "other bytes", 400, "have digest" },
    { PUT("/v1/objects/zz"), "x", 400, "digest" },
    { GET("/v1/objects/zz"), NULL, 400, "digest" },
    { POST(MEMBER "/poll"), REPORT(",\"epoch\":1"), 409, "ERR_STALE" },
    { POST(MEMBER "/poll"), REPORT(""), 400, "\\\"epoch\\\" is missing" },
    { POST("/v1/members/x/poll"), REPORT(",\"epoch\":1"), 410, "member x is not registered" },
    { POST(MEMBER "/poll"), REPORT(",\"epoch\":1,\"counters\":{\"bytes\":-1}"), 400, "bytes" },
    { POST(MEMBER "/poll"), REPORT(",\"epoch\":1,\"phase\":\"nap\""), 400,
      "unknown value \\\"nap\\\"" },
    { PUT(MEMBER "/manifest"),
      "{\"incarnation\":\"" INC_A "\",\"manifest\":\"" DIG "\",\"contract\":\"" DIG
      "\",\"endpoint\":\"" DIG "\"}",
      409, "\"missing\"" },
    { PUT(MEMBER "/manifest"), "{\"incarnation\":\"" INC_A "\",\"manifest\":\"../../etc/passwd\"}",
      400, "64 lower-case hex" },
    { "DELETE " MEMBER " HTTP/1.1\r\nHost: 127.0.0.1\r\n", NULL, 400, "incarnation" },
    { "DELETE " MEMBER "?incarnation=" INC_B " HTTP/1.1\r\nHost: 127.0.0.1\r\n", NULL, 409,
      "ERR_STALE" },
};

static void enroll(const env_t *e)
{
    static const char body[] =
        "{\"format\":1,\"role\":\"destination\",\"job\":\"heft\",\"replica\":0,\"rank\":0,"
        "\"incarnation\":\"" INC_A "\",\"epoch\":0,\"mode\":\"staged\",\"transports\":[\"shm\"]}";
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_client_post(e->url, "/v1/members", body, 5000, NULL, &err), HEFT_OK);
}

static bool is_refused(const env_t *e, const hostile_t *h)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_put(&text, h->head);
    if (h->body != NULL) {
        heft__text_printf(&text, "Content-Length: %zu\r\n", strlen(h->body));
    }
    heft__text_put(&text, "Connection: close\r\n\r\n");
    if (h->body != NULL) {
        heft__text_put(&text, h->body);
    }
    char *reply = exchange(e, text.data, text.len);
    char expected[32];
    (void)snprintf(expected, sizeof expected, "HTTP/1.1 %d ", h->code);
    const char *body = strstr(reply, "\r\n\r\n");
    bool is_right = true;
    const bool has_code =
        h->code == 0 ? reply[0] == '\0' : strncmp(reply, expected, strlen(expected)) == 0;
    if (!has_code || (h->part != NULL && (body == NULL || strstr(body, h->part) == NULL))) {
        (void)fprintf(stderr, "%s%s\n%s\nexpected %d with %s\n", h->head,
                      h->body != NULL ? h->body : "", reply, h->code,
                      h->part != NULL ? h->part : "anything");
        is_right = false;
    }
    if (is_right && h->part != NULL) { /* one line, with a status */
        is_right =
            strstr(body, "{\"error\":{\"status\":\"ERR_") != NULL && strchr(body + 4, '\n') == NULL;
    }
    heft__free(reply);
    heft__text_fini(&text);
    return is_right;
}

static void each_is_refused_by_name_and_changes_nothing(void **state)
{
    (void)state;
    env_t *e = env_start(NULL);
    enroll(e);
    char *before = state_of(e);
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof hostiles / sizeof hostiles[0]; i++) {
        n_wrong += !is_refused(e, &hostiles[i]);
        char *after = state_of(e);
        if (strcmp(before, after) != 0) {
            fail_msg("%s%s\nchanged the state\n%s\nto\n%s", hostiles[i].head,
                     hostiles[i].body != NULL ? hostiles[i].body : "", before, after);
        }
        free(after);
    }
    free(before);
    env_stop(e);
    assert_int_equal(n_wrong, 0);
}

/* Bytes of every kind in every place of a valid request. */
static void damaged_requests_change_nothing(void **state)
{
    (void)state;
    env_t *e = env_start(NULL);
    enroll(e);
    char *before = state_of(e);
    static const char valid[] =
        "GET /v1/rounds/1.1?wait=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    uint64_t seed = heft_test_seed();
    for (int i = 0; i < 200; i++) {
        char bytes[sizeof valid];
        memcpy(bytes, valid, sizeof valid);
        for (int64_t k = heft_test_random_in(&seed, 1, 3); k > 0; k--) {
            bytes[heft_test_random_in(&seed, 0, (int64_t)sizeof valid - 6)] =
                (char)heft_test_random_in(&seed, 0, 255);
        }
        const int fd = dial(e);
        say(fd, bytes, sizeof valid - 1);
        (void)shutdown(fd, SHUT_WR);
        char *reply = hear(fd);
        (void)close(fd);
        if (reply[0] != '\0' && strncmp(reply, "HTTP/1.1 4", 10) != 0 &&
            strncmp(reply, "HTTP/1.0 4", 10) != 0 && strncmp(reply, "HTTP/1.1 505", 12) != 0 &&
            strncmp(reply, "HTTP/1.0 505", 12) != 0) {
            fail_msg("%s -> %s", bytes, reply);
        }
        heft__free(reply);
    }
    char *after = state_of(e);
    assert_string_equal(before, after);
    free(before);
    free(after);
    env_stop(e);
}

static void a_head_without_end_is_cut(void **state)
{
    (void)state;
    env_t *e = env_start(NULL);
    const size_t n = 1u << 20;
    char *head = malloc(n);
    assert_non_null(head);
    memset(head, 'a', n);
    static const char line[] = "GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ";
    memcpy(head, line, sizeof line - 1);
    char *reply = exchange(e, head, n);
    assert_true(strncmp(reply, "HTTP/1.1 431", 12) == 0 || reply[0] == '\0'); /* or a reset */
    heft__free(reply);
    memcpy(head, "GET /", 5);
    memset(head + 5, 'a', sizeof line);
    reply = exchange(e, head, n);
    assert_true(strncmp(reply, "HTTP/1.1 414", 12) == 0 || strncmp(reply, "HTTP/1.1 4", 10) == 0 ||
                reply[0] == '\0');
    heft__free(reply);
    free(head);
    free(state_of(e));
    env_stop(e);
}

static void a_chunked_body_is_bounded_too(void **state)
{
    (void)state;
    env_t *e = env_start(NULL);
    static const char head[] = "POST /v1/members HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                               "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    const int fd = dial(e);
    say(fd, head, sizeof head - 1);
    char chunk[16384 + 16];
    memset(chunk, ' ', sizeof chunk);
    memcpy(chunk, "4000\r\n", 6);
    memcpy(chunk + 6 + 16384, "\r\n", 2);
    for (int i = 0; i < 1000; i++) { /* 16 MB */
        say(fd, chunk, 6 + 16384 + 2);
    }
    assert_true(heft__alloc_live_bytes() < (INT64_C(4) << 20) + HEFT__WIRE_MAX_BYTES * 2);
    assert_true(is_closed_by(fd, heft__clock_mono_ns() + 5 * SECOND));
    (void)close(fd);
    free(state_of(e));
    env_stop(e);
}

/* ---- slow ---- */

static heft_coordinator_opts_t hasty(void)
{
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.request_ms = 1000;
    return opts;
}

static void slow_clients_are_cut_and_nobody_waits_for_them(void **state)
{
    (void)state;
    const heft_coordinator_opts_t opts = hasty();
    env_t *e = env_start(&opts);
    enum { N = 60 };
    int fds[N];
    static const char *const begun[] = {
        "", "G", "GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        "POST /v1/members HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    };
    for (int i = 0; i < N; i++) {
        fds[i] = dial(e);
        say(fds[i], begun[i % 4], strlen(begun[i % 4]));
    }
    const int64_t begin = heft__clock_mono_ns();
    free(state_of(e));
    assert_true(heft__clock_mono_ns() - begin < 10 * SECOND);
    /* a byte now and then does not keep them alive */
    const int64_t until = begin + 20 * SECOND;
    int n_open = N;
    while (n_open > 0) {
        assert_true(heft__clock_mono_ns() < until);
        n_open = 0;
        for (int i = 0; i < N; i++) {
            if (fds[i] >= 0 && is_closed_by(fds[i], heft__clock_mono_ns() + 1000000)) {
                (void)close(fds[i]);
                fds[i] = -1;
            }
            n_open += fds[i] >= 0;
            if (fds[i] >= 0 && i % 4 > 1) {
                say(fds[i], "a", 1);
            }
        }
    }
    free(state_of(e));
    env_stop(e);
}

static void a_reply_that_is_not_taken_is_cut(void **state)
{
    (void)state;
    heft_coordinator_opts_t opts = hasty();
    opts.request_ms = 2500; /* also for what is put first */
    env_t *e = env_start(&opts);
    /* something large to ask for */
    const size_t n = 15u << 20; /* more than the system's buffers take */
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, 'x', n);
    text[n] = '\0';
    char digest[HEFT__DIGEST_SIZE];
    char line[200];
    heft__object_digest(text, n, digest);
    (void)snprintf(line, sizeof line, "/v1/objects/%s", digest);
    assert_int_equal(fleet_request(e->url, "PUT", line, text, NULL), 200);
    free(text);
    const int fd = dial(e);
    (void)snprintf(line, sizeof line, "GET /v1/objects/%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                   digest);
    say(fd, line, strlen(line));
    /* take a little now and then, and after a while all there is: it is not the whole */
    size_t taken = 0;
    const int64_t begin = heft__clock_mono_ns();
    for (;;) {
        char bytes[65536];
        struct pollfd p = { .fd = fd, .events = POLLIN };
        const bool is_slow = heft__clock_mono_ns() - begin < 5 * SECOND;
        assert_true(poll(&p, 1, 5000) == 1);
        const ssize_t got = recv(fd, bytes, is_slow ? 1000 : sizeof bytes, 0);
        if (got <= 0) {
            break;
        }
        taken += (size_t)got;
        struct pollfd none = { .fd = -1 };
        (void)poll(&none, 1, is_slow ? 5 : 0);
    }
    assert_true(taken < n);
    (void)close(fd);
    env_stop(e);
}

static void a_flood_of_connections_leaves_room(void **state)
{
    (void)state;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.max_connections = 32;
    env_t *e = env_start(&opts);
    enum { N = 300 };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(e);
        if (i % 50 == 49) {
            free(state_of(e)); /* served in between */
        }
    }
    free(state_of(e));
    for (int i = 0; i < N; i++) {
        (void)close(fds[i]);
    }
    free(state_of(e));
    env_stop(e);
}

static void a_client_that_goes_away_leaves_nothing(void **state)
{
    (void)state;
    env_t *e = env_start(NULL);
    enroll(e);
    static const char polls[] = "POST " MEMBER "/poll HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                "Content-Length: 400\r\n\r\n{";
    for (int i = 0; i < 200; i++) {
        const int fd = dial(e);
        say(fd, polls, (size_t)i % sizeof polls);
        const struct linger now = { .l_onoff = 1, .l_linger = 0 }; /* a reset */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        (void)close(fd);
    }
    free(state_of(e));
    env_stop(e); /* counts allocations */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_refused_by_name_and_changes_nothing),
        cmocka_unit_test(damaged_requests_change_nothing),
        cmocka_unit_test(a_head_without_end_is_cut),
        cmocka_unit_test(a_chunked_body_is_bounded_too),
        cmocka_unit_test(slow_clients_are_cut_and_nobody_waits_for_them),
        cmocka_unit_test(a_reply_that_is_not_taken_is_cut),
        cmocka_unit_test(a_flood_of_connections_leaves_room),
        cmocka_unit_test(a_client_that_goes_away_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
