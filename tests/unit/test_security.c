/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may talk to a coordinator: real tokens and real TLS over loopback, with certificates made
 * here by openssl. Every refusal is seen from the client's side.
 */
#include "http_fleet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sync/security.h"

#define TOKEN "0123456789abcdef0123456789abcdef"
#define OTHER "0123456789abcdef0123456789abcdee"

typedef struct files {
    char *dir;
    char token[600], other[600], cert[600], key[600], ca[600];
    bool has_tls;
} files_t;

static files_t f;

static void path_of(char *out, const char *name)
{
    (void)snprintf(out, 600, "%s/%s", f.dir, name);
}

static void write_private(const char *name, const char *text, char *path_out)
{
    heft_test_write_file(f.dir, name, text, strlen(text));
    path_of(path_out, name);
    assert_int_equal(chmod(path_out, 0600), 0);
}

/* A certificate for 127.0.0.1 that vouches for itself. */
static bool make_cert(const char *cert, const char *key)
{
    const pid_t pid = fork();
    if (pid == 0) {
        (void)umask(077);
        (void)freopen("/dev/null", "w", stderr);
        (void)execlp("openssl", "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=heft",
                     "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out",
                     cert, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static int group_set_up(void **state)
{
    (void)state;
    char other_key[600];
    f.dir = heft_test_mkdir();
    write_private("token", TOKEN "\n", f.token);
    write_private("other", OTHER "\n", f.other);
    path_of(f.cert, "cert.pem");
    path_of(f.key, "key.pem");
    path_of(f.ca, "ca.pem");
    path_of(other_key, "ca-key.pem");
    f.has_tls = make_cert(f.cert, f.key) && make_cert(f.ca, other_key);
    return 0;
}

static int group_tear_down(void **state)
{
    (void)state;
    heft_test_rmdir(f.dir);
    return heft__alloc_live() == 0 ? 0 : -1;
}

static void need_tls(void)
{
    if (!f.has_tls) {
        print_message("skipped: no openssl command\n");
        skip();
    }
}

static heft_coordinator_t *start(const heft_coordinator_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *c = NULL;
    EXPECT_STATUS(heft_coordinator_start(opts, &c, &err), HEFT_OK);
    return c;
}

static heft_coordinator_opts_t secured(void)
{
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.token_file = f.token;
    opts.tls_cert = f.cert;
    opts.tls_key = f.key;
    return opts;
}

/* GET path as this client; the message must have the part, and no token. */
static void expect(const heft_client_opts_t *opts, const char *path, heft_status_t expected,
                   const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *json = NULL;
    EXPECT_STATUS(heft_client_request(opts, "GET", path, NULL, &json, &err), expected);
    if (expected == HEFT_OK) {
        assert_non_null(strstr(json, part));
        heft_string_free(json);
    } else {
        assert_null(json);
        EXPECT_MESSAGE(part);
        assert_null(strstr(err.message, TOKEN));
        assert_null(strstr(err.message, OTHER));
    }
}

/* ---- pieces ---- */

static void loopback_is_recognised(void **state)
{
    (void)state;
    const char *const yes[] = { "127.0.0.1", "127.8.9.1:70", "::1",         "[::1]",
                                "[::1]:80",  "localhost",    "LOCALHOST:1", "::ffff:127.0.0.1" };
    const char *const no[] = { "0.0.0.0",
                               "10.0.0.1",
                               "::",
                               "[::]:80",
                               "example.com",
                               "",
                               "localhost.example.com",
                               "127.0.0.1.example.com",
                               "128.0.0.1",
                               "::ffff:10.0.0.1",
                               "127.1",
                               "0177.0.0.1" };
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        assert_true(heft__host_is_loopback(yes[i]));
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        assert_false(heft__host_is_loopback(no[i]));
    }
}

static void tokens_match_exactly(void **state)
{
    (void)state;
    uint8_t digest[32];
    heft__sha256_t hash;
    heft__sha256_init(&hash);
    heft__sha256_update(&hash, TOKEN, strlen(TOKEN));
    heft__sha256_final(&hash, digest);
    assert_true(heft__token_matches(digest, "Bearer " TOKEN));
    assert_true(heft__token_matches(digest, "bearer " TOKEN));
    const char *const no[] = { NULL,
                               "",
                               TOKEN,
                               "Bearer",
                               "Bearer ",
                               "Bearer  " TOKEN,
                               "Bearer " TOKEN " ",
                               "Bearer " OTHER,
                               "Bearer " TOKEN TOKEN,
                               "Basic " TOKEN,
                               "Bearer 0123456789abcdef0123456789abcde" };
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        assert_false(heft__token_matches(digest, no[i]));
    }
}

static void token_files_are_checked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char path[600];
    char *token = NULL;
    write_private("t", TOKEN "\r\n", path);
    EXPECT_STATUS(heft__token_read(path, &token, &err), HEFT_OK);
    assert_string_equal(token, TOKEN);
    heft__token_free(token);
    token = NULL;
    write_private("t", "short", path);
    EXPECT_STATUS(heft__token_read(path, &token, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("a token of 5 characters, outside 16 to 256");
    write_private("t", "0123456789 abcdef", path);
    EXPECT_STATUS(heft__token_read(path, &token, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("character 11 is a blank or not printable");
    write_private("t", "0123456789abcdef\n0123456789", path);
    EXPECT_STATUS(heft__token_read(path, &token, &err), HEFT_ERR_FORMAT);
    assert_int_equal(chmod(path, 0644), 0);
    EXPECT_STATUS(heft__token_read(path, &token, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("mode 644");
    assert_null(token);
}

/* ---- listening ---- */

static void beyond_loopback_needs_token_and_tls(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *c = NULL;
    const char *const anywhere[] = { "0.0.0.0", "0", "::" };
    for (size_t i = 0; i < sizeof anywhere / sizeof anywhere[0]; i++) {
        heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
        opts.address = anywhere[i];
        EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE(
            "is beyond loopback: give token-file, tls-cert and tls-key, or say insecure");
        opts.token_file = f.token;
        EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("give tls-cert and tls-key");
        opts.tls_cert = f.cert;
        EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("tls-key is missing");
        opts.tls_key = f.key;
        opts.token_file = NULL;
        EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("give token-file");
        assert_null(c);
    }
}

static char last_warning[300];

static void note_warning(void *arg, heft_log_level_t level, const char *line)
{
    (void)arg;
    if (level == HEFT_LOG_WARN) {
        (void)snprintf(last_warning, sizeof last_warning, "%s", line);
    }
}

static void insecure_warns_at_each_start(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    (void)state;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.address = "0.0.0.0";
    opts.insecure = 1;
    EXPECT_STATUS(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, note_warning, NULL, &err),
                  HEFT_OK);
    for (int i = 0; i < 2; i++) {
        last_warning[0] = '\0';
        heft_coordinator_stop(start(&opts));
        assert_non_null(strstr(last_warning, "insecure: listening on 0.0.0.0 without token-file"));
    }
    opts.address = "127.0.0.1"; /* nothing to warn of */
    last_warning[0] = '\0';
    heft_coordinator_stop(start(&opts));
    assert_string_equal(last_warning, "");
    EXPECT_STATUS(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, NULL, NULL, &err), HEFT_OK);
}

static void private_files_must_be_private(void **state)
{
    (void)state;
    need_tls();
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *c = NULL;
    heft_coordinator_opts_t opts = secured();
    assert_int_equal(chmod(f.key, 0644), 0);
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("tls-key ");
    EXPECT_MESSAGE("mode 644");
    assert_int_equal(chmod(f.key, 0600), 0);
    assert_int_equal(chmod(f.token, 0660), 0);
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("token file ");
    assert_int_equal(chmod(f.token, 0600), 0);
    opts.tls_key = f.token; /* no key at all */
    EXPECT_STATUS(heft_coordinator_start(&opts, &c, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("cannot start the HTTPS service");
    assert_null(strstr(err.message, TOKEN));
    assert_null(c);
}

/* ---- talking ---- */

static void without_the_token_there_is_401(void **state)
{
    (void)state;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.token_file = f.token;
    heft_coordinator_t *c = start(&opts);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    client.url = heft_coordinator_get_url(c);
    const char *const paths[] = { "/v1/status", "/v1/rounds", "/metrics", "/v1/rounds/1.1",
                                  "/nothing" };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        client.token_file = NULL;
        expect(&client, paths[i], HEFT_ERR_AUTH, "wants a token");
        client.token_file = f.other;
        expect(&client, paths[i], HEFT_ERR_AUTH, "not this coordinator's");
    }
    client.token_file = NULL; /* nothing of the fleet in them */
    expect(&client, "/healthz", HEFT_OK, "true");
    client.token_file = f.token;
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    expect(&client, "/nothing", HEFT_ERR_NOT_FOUND, "no such path");
    char *status = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_client_request(&client, "GET", "/v1/status", NULL, &status, &err), HEFT_OK);
    assert_null(strstr(status, TOKEN));
    heft_string_free(status);
    EXPECT_STATUS(heft_client_request(&client, "GET", "/metrics", NULL, &status, &err), HEFT_OK);
    assert_null(strstr(status, TOKEN));
    heft_string_free(status);
    heft_coordinator_stop(c);
}

static void a_refused_body_is_not_kept(void **state)
{
    (void)state;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.token_file = f.token;
    heft_coordinator_t *c = start(&opts);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    heft_error_t err = HEFT_ERROR_INIT;
    client.url = heft_coordinator_get_url(c);
    const size_t n = HEFT__WIRE_MAX_BYTES - 10;
    char *body = malloc(n + 1);
    memset(body, ' ', n);
    body[n] = '\0';
    const int64_t before = heft__alloc_live_bytes();
    EXPECT_STATUS(heft_client_request(&client, "POST", "/v1/members", body, NULL, &err),
                  HEFT_ERR_AUTH);
    assert_true(heft__alloc_live_bytes() - before < 4096);
    free(body);
    heft_coordinator_stop(c);
}

static void tls_end_to_end(void **state)
{
    (void)state;
    need_tls();
    heft_coordinator_opts_t opts = secured();
    heft_coordinator_t *c = start(&opts);
    const char *url = heft_coordinator_get_url(c);
    assert_memory_equal(url, "https://127.0.0.1:", 18);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    client.url = url;
    client.token_file = f.token;
    client.ca_file = f.cert;
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    /* by its other name */
    char named[80];
    (void)snprintf(named, sizeof named, "https://localhost:%s", strrchr(url, ':') + 1);
    client.url = named;
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    client.url = url;
    client.token_file = f.other;
    expect(&client, "/v1/status", HEFT_ERR_AUTH, "not this coordinator's");
    client.token_file = NULL;
    expect(&client, "/v1/status", HEFT_ERR_AUTH, "wants a token");
    client.token_file = f.token;
    client.ca_file = f.ca;
    expect(&client, "/v1/status", HEFT_ERR_AUTH, "certificate");
    client.ca_file = NULL; /* the system knows nothing of it either */
    expect(&client, "/v1/status", HEFT_ERR_AUTH, "certificate");
    client.ca_file = f.token;
    expect(&client, "/v1/status", HEFT_ERR_AUTH, "certificate");
    /* another name than the certificate's */
    (void)snprintf(named, sizeof named, "https://127.0.0.2:%s", strrchr(url, ':') + 1);
    client.ca_file = f.cert;
    client.url = named;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_status_t status =
        heft_client_request(&client, "GET", "/v1/status", NULL, NULL, &err);
    assert_true(status == HEFT_ERR_PEER || status == HEFT_ERR_AUTH);
    heft_coordinator_stop(c);
}

static void plain_http_against_tls_is_refused_and_the_reverse(void **state)
{
    (void)state;
    need_tls();
    heft_coordinator_opts_t opts = secured();
    heft_coordinator_t *c = start(&opts);
    char url[80];
    heft_error_t err = HEFT_ERROR_INIT;
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    (void)snprintf(url, sizeof url, "http%s", heft_coordinator_get_url(c) + 5);
    client.url = url;
    client.deadline_ms = 5000;
    EXPECT_STATUS(heft_client_request(&client, "GET", "/v1/status", NULL, NULL, &err),
                  HEFT_ERR_PEER);
    client.url = heft_coordinator_get_url(c); /* the service has taken no harm */
    client.token_file = f.token;
    client.ca_file = f.cert;
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    heft_coordinator_stop(c);
    opts = (heft_coordinator_opts_t)HEFT_COORDINATOR_OPTS_INIT;
    c = start(&opts);
    (void)snprintf(url, sizeof url, "https%s", heft_coordinator_get_url(c) + 4);
    client.url = url;
    EXPECT_STATUS(heft_client_request(&client, "GET", "/v1/status", NULL, NULL, &err),
                  HEFT_ERR_PEER);
    heft_coordinator_stop(c);
}

static void a_token_does_not_travel_in_the_clear(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__http_t *http = NULL;
    heft__access_t access = { .url = "http://192.0.2.1:7070", .token_file = f.token };
    EXPECT_STATUS(heft__http_create(&access, &http, &err), HEFT_ERR_AUTH);
    EXPECT_MESSAGE("the token would travel in the clear: use https, or say insecure");
    access.insecure = 1;
    EXPECT_STATUS(heft__http_create(&access, &http, &err), HEFT_OK);
    heft__http_destroy(http);
    access.insecure = 0;
    access.url = "https://192.0.2.1:7070";
    EXPECT_STATUS(heft__http_create(&access, &http, &err), HEFT_OK);
    heft__http_destroy(http);
    const char *const bad[] = { "ftp://127.0.0.1", "http://",     "https://", "127.0.0.1:70",
                                "http:",           "http://[::1", NULL };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        access.url = bad[i];
        EXPECT_STATUS(heft__http_create(&access, &http, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("not \"http://host:port\"");
    }
}

static void client_survives_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__access_t access = { .url = "http://127.0.0.1:7070/", .token_file = f.token };
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft__http_t *http = NULL;
        heft__alloc_fail_at(k);
        const heft_status_t status = heft__http_create(&access, &http, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft__http_destroy(http);
            assert_true(k >= 3);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(http);
        assert_int_equal(heft__alloc_live(), live);
    }
}

/* A handshake that is not begun, or begun and left: others do not wait, and it ends. */
static void half_a_handshake_is_cut(void **state)
{
    (void)state;
    need_tls();
    heft_coordinator_opts_t opts = secured();
    opts.request_ms = 1000;
    heft_coordinator_t *c = start(&opts);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    client.url = heft_coordinator_get_url(c);
    client.token_file = f.token;
    client.ca_file = f.cert;
    enum { N = 20 };
    int fds[N];
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00";
    for (int i = 0; i < N; i++) {
        const struct sockaddr_in to = { .sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)strtoul(
                                            strrchr(client.url, ':') + 1, NULL, 10)),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (const struct sockaddr *)&to, sizeof to), 0);
        assert_true(i % 2 == 0 || send(fds[i], hello, sizeof hello - 1, MSG_NOSIGNAL) > 0);
    }
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    for (int i = 0; i < N; i++) {
        char bytes[256];
        const struct timeval limit = { .tv_sec = 20 };
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
        ssize_t n = 1;
        while (n > 0) { /* an alert may come first */
            n = recv(fds[i], bytes, sizeof bytes, 0);
        }
        assert_true(n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK));
        (void)close(fds[i]);
    }
    expect(&client, "/v1/status", HEFT_OK, "\"state\":\"idle\"");
    heft_coordinator_stop(c);
}

/* ---- members ---- */

static heft_manifest_t *one_tensor(const char *side)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    const heft_shape_t shape = { .rank = 1, .extent = { 16 } };
    EXPECT_STATUS(heft_manifest_create(side, &manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "w", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

static void members_need_token_and_certificate(void **state)
{
    (void)state;
    need_tls();
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_opts_t opts = secured();
    heft_coordinator_t *c = start(&opts);
    heft_manifest_t *manifest = one_tensor("source");
    float w[16] = { 0 };
    const void *data[] = { w };
    heft_publisher_t *pub = NULL;
    heft_publisher_opts_t to = HEFT_PUBLISHER_OPTS_INIT;
    to.url = heft_coordinator_get_url(c);
    to.deadline_ms = 20000;
    to.ca_file = f.cert;
    /* refusals are final: none of these waits for the deadline */
    const int64_t begin = heft__clock_mono_ns();
    EXPECT_STATUS(heft_publisher_create(&to, manifest, data, &pub, &err), HEFT_ERR_AUTH);
    EXPECT_MESSAGE("wants a token");
    to.token_file = f.other;
    EXPECT_STATUS(heft_publisher_create(&to, manifest, data, &pub, &err), HEFT_ERR_AUTH);
    EXPECT_MESSAGE("not this coordinator's");
    to.token_file = f.token;
    to.ca_file = f.ca;
    EXPECT_STATUS(heft_publisher_create(&to, manifest, data, &pub, &err), HEFT_ERR_AUTH);
    EXPECT_MESSAGE("certificate");
    assert_true(heft__clock_mono_ns() - begin < 15 * INT64_C(1000000000));
    to.ca_file = f.cert;
    EXPECT_STATUS(heft_publisher_create(&to, manifest, data, &pub, &err), HEFT_OK);
    EXPECT_STATUS(heft_publisher_push(pub, 1, NULL, &err), HEFT_ERR_PROOF); /* an empty side */
    heft_publisher_destroy(pub);
    heft_manifest_destroy(manifest);
    heft_coordinator_stop(c);
}

/* Replace the token everywhere, restart the coordinator: members go on. */
static void members_take_up_a_new_token(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char path[600];
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    write_private("changing", TOKEN, path);
    opts.token_file = path;
    heft_coordinator_t *c = start(&opts);
    heft_manifest_t *manifest = one_tensor("source");
    float w[16] = { 0 };
    const void *data[] = { w };
    heft_publisher_t *pub = NULL;
    heft_publisher_opts_t to = HEFT_PUBLISHER_OPTS_INIT;
    char url[80];
    (void)snprintf(url, sizeof url, "%s", heft_coordinator_get_url(c));
    to.url = url;
    to.token_file = path;
    to.deadline_ms = 20000;
    EXPECT_STATUS(heft_publisher_create(&to, manifest, data, &pub, &err), HEFT_OK);
    opts.port = (uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10);
    heft_coordinator_stop(c);
    write_private("changing", OTHER, path);
    c = start(&opts);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    client.url = url;
    client.token_file = path;
    const int64_t until = heft__clock_mono_ns() + 30 * INT64_C(1000000000);
    for (bool is_back = false; !is_back;) {
        char *json = NULL;
        assert_true(heft__clock_mono_ns() < until);
        EXPECT_STATUS(heft_client_request(&client, "GET", "/v1/status", NULL, &json, &err),
                      HEFT_OK);
        is_back = strstr(json, "\"sources\":1") != NULL;
        heft_string_free(json);
    }
    EXPECT_STATUS(heft_publisher_push(pub, 1, NULL, &err), HEFT_ERR_PROOF); /* an empty side */
    heft_publisher_destroy(pub);
    heft_manifest_destroy(manifest);
    heft_coordinator_stop(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_is_recognised),
        cmocka_unit_test(tokens_match_exactly),
        cmocka_unit_test(token_files_are_checked),
        cmocka_unit_test(beyond_loopback_needs_token_and_tls),
        cmocka_unit_test(insecure_warns_at_each_start),
        cmocka_unit_test(private_files_must_be_private),
        cmocka_unit_test(without_the_token_there_is_401),
        cmocka_unit_test(a_refused_body_is_not_kept),
        cmocka_unit_test(tls_end_to_end),
        cmocka_unit_test(plain_http_against_tls_is_refused_and_the_reverse),
        cmocka_unit_test(half_a_handshake_is_cut),
        cmocka_unit_test(a_token_does_not_travel_in_the_clear),
        cmocka_unit_test(client_survives_lack_of_memory),
        cmocka_unit_test(members_need_token_and_certificate),
        cmocka_unit_test(members_take_up_a_new_token),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
