/* SPDX-License-Identifier: Apache-2.0 */
#include "ucx_peer_process.h"

#include "kernel/kernel.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static heft__ucx_t *ucx;
static heft__window_t *window;
static heft__remote_t *remote;
static uint8_t *data;
static int64_t data_bytes;
static heft__token_t token;

uint8_t up_byte(uint32_t seed, int64_t i)
{
    return (uint8_t)((uint64_t)i * 2654435761u >> 7 ^ (uint64_t)i >> 16 ^ seed * 31u);
}

void up_fill(uint8_t *to, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = up_byte(seed, i);
    }
}

/* ---- in the other process ---- */

static int64_t in_ms(int64_t ms)
{
    return heft__clock_mono_ns() + ms * 1000000;
}

static void say_status(heft_status_t status, const heft_error_t *err)
{
    (void)printf("%s %s\n", heft_status_get_name(status), status != HEFT_OK ? err->message : "");
    (void)fflush(stdout);
}

static void say_endpoint(const char *prefix)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    (void)printf("%s%s\n", prefix, text.data);
    (void)fflush(stdout);
    heft__text_fini(&text);
}

static void do_window(const char *args)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_params_t params = { .bytes = strtoll(args, NULL, 10),
                                     .memory = HEFT__MEMORY_HOST };
    memset(params.incarnation, 0x11, sizeof params.incarnation);
    if (heft__window_create(heft__ucx_get_transport(ucx), &params, &window, &err) != HEFT_OK) {
        say_status(err.status, &err);
        return;
    }
    say_endpoint("");
}

static heft__token_t read_token(const char *args)
{
    char *end = NULL;
    heft__token_t t = { .epoch = strtoull(args, &end, 10) };
    t.seq = strtoull(end, NULL, 10);
    return t;
}

/* A packed route that lies backwards in the window, chunk by chunk; base: of a window that it
 * fills.
 */
heft_status_t up_pack(void *arg, uint32_t route, uint8_t *base, int64_t at, uint8_t *packed,
                      int64_t bytes, heft_error_t *err)
{
    const int64_t window_bytes = *(const int64_t *)arg;
    (void)route;
    (void)err;
    memcpy(packed, base + window_bytes - at - bytes, (size_t)bytes);
    return HEFT_OK;
}

static heft_status_t unpack(void *arg, uint32_t route, uint8_t *base, int64_t at, uint8_t *packed,
                            int64_t bytes, heft_error_t *err)
{
    const int64_t window_bytes = *(const int64_t *)arg;
    (void)route;
    (void)err;
    memcpy(base + window_bytes - at - bytes, packed, (size_t)bytes);
    return HEFT_OK;
}

static void do_expect(const char *args, bool is_packed)
{
    static int64_t window_bytes;
    char *end = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    window_bytes = strtoll(args, &end, 10);
    const heft__route_t route = { .offset = 0, .bytes = window_bytes };
    const heft__expect_t expect = { .routes = &route,
                                    .n_routes = 1,
                                    .n_senders = 1,
                                    .chunk_bytes = strtoll(end, NULL, 10),
                                    .crc = heft__crc32c,
                                    .crc_copy = heft__crc32c_copy,
                                    .n_packed = is_packed,
                                    .unpack = unpack,
                                    .pack_arg = &window_bytes };
    say_status(heft__window_expect(window, &expect, &err), &err);
}

static void do_state(void)
{
    heft__window_state_t s;
    heft__window_query(window, &s);
    (void)printf("%u %u %u %u %u\n", s.n_attached, s.n_writing, s.n_done, s.n_failed, s.n_lost);
    (void)fflush(stdout);
}

static void do_fence(const char *args)
{
    heft_error_t err = HEFT_ERROR_INIT;
    bool replaced = false;
    heft_status_t status =
        heft__window_fence(window, in_ms(strtoll(args, NULL, 10)), &replaced, &err);
    if (status != HEFT_OK) {
        say_status(status, &err);
        return;
    }
    say_endpoint(replaced ? "replaced " : "kept ");
}

static void do_same(const char *args)
{
    char *end = NULL;
    const uint32_t seed = (uint32_t)strtoul(args, &end, 10);
    const int64_t n = strtoll(end, NULL, 10);
    int64_t i = 0;
    while (i < n && window->ptr[i] == up_byte(seed, i)) {
        i++;
    }
    (void)printf("%s %lld\n", i == n ? "same" : "differs", (long long)i);
    (void)fflush(stdout);
}

static void do_attach(const char *endpoint, int64_t ms)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__attach_params_t params = { .deadline_mono_ns = in_ms(ms) };
    memset(params.incarnation, 0x22, sizeof params.incarnation);
    heft_status_t status =
        heft__remote_attach(heft__ucx_get_transport(ucx), endpoint, &params, &remote, &err);
    if (status == HEFT_OK) {
        data_bytes = remote->bytes;
        data = malloc((size_t)data_bytes);
        memset(data, 0x5a, (size_t)data_bytes);
    }
    say_status(status, &err);
}

static void do_attach_within(const char *args)
{
    char *end = NULL;
    const int64_t ms = strtoll(args, &end, 10);
    do_attach(end + strspn(end, " "), ms);
}

/* Put for ever: until it fails. */
static void do_storm(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_OK;
    say_status(HEFT_OK, &err);
    while (status == HEFT_OK) {
        status = heft__remote_put(remote, 0, data, data_bytes, &err);
    }
    heft_error_t late = HEFT_ERROR_INIT;
    heft_status_t flushed = heft__remote_flush(remote, in_ms(20000), &late);
    (void)flushed;
    say_status(status, &err);
}

static void obey(char *line)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *space = strchr(line, ' ');
    const char *args = space != NULL ? space + 1 : "";
    const size_t n = space != NULL ? (size_t)(space - line) : strlen(line);
#define IS(word) (n == strlen(word) && strncmp(line, (word), n) == 0)
    if (IS("window")) {
        do_window(args);
    } else if (IS("arm")) {
        heft__window_arm(window, read_token(args));
        say_status(HEFT_OK, &err);
    } else if (IS("expect")) {
        do_expect(args, false);
    } else if (IS("expect-packed")) {
        do_expect(args, true);
    } else if (IS("state")) {
        do_state();
    } else if (IS("fence")) {
        do_fence(args);
    } else if (IS("same")) {
        do_same(args);
    } else if (IS("attach")) {
        do_attach(args, 20000);
    } else if (IS("attach-within")) {
        do_attach_within(args);
    } else if (IS("begin")) {
        token = read_token(args);
        say_status(heft__remote_begin(remote, token, in_ms(20000), &err), &err);
    } else if (IS("storm")) {
        do_storm();
    } else if (IS("check")) {
        say_status(heft__remote_check(remote, &err), &err);
    } else {
        (void)printf("what is \"%s\"?\n", line);
        (void)fflush(stdout);
    }
#undef IS
}

void up_main(int argc, char **argv)
{
    if (argc < 6 || strcmp(argv[1], "--peer") != 0) {
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const heft__ucx_opts_t opts = { .allow_tcp = argv[2][0] == '1',
                                    .max_lanes = (uint32_t)strtoul(argv[3], NULL, 10),
                                    .silence_ms = (uint32_t)strtoul(argv[4], NULL, 10),
                                    .net_devices = argv[5] };
    if (heft__ucx_acquire(&opts, &ucx, &err) != HEFT_OK) {
        (void)fprintf(stderr, "peer: %s\n", err.message);
        exit(1);
    }
    char line[16384];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        obey(line);
    }
    heft__remote_close(remote);
    heft__window_destroy(window);
    heft__ucx_release(ucx);
    free(data);
    exit(0);
}

/* ---- in the test ---- */

void up_start(up_process_t *p, const heft__ucx_opts_t *opts)
{
    int to[2];
    int from[2];
    char lanes[16];
    char silence[16];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    (void)snprintf(lanes, sizeof lanes, "%u", opts->max_lanes);
    (void)snprintf(silence, sizeof silence, "%u", opts->silence_ms);
    *p = (up_process_t){ .pid = fork() };
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        (void)dup2(to[0], 0);
        (void)dup2(from[1], 1);
        for (int fd = 3; fd < 256; fd++) {
            (void)close(fd);
        }
        (void)execl("/proc/self/exe", "peer", "--peer", opts->allow_tcp ? "1" : "0", lanes, silence,
                    opts->net_devices != NULL ? opts->net_devices : "", (char *)NULL);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    p->in = fdopen(to[1], "w");
    p->out = fdopen(from[0], "r");
    assert_non_null(p->in);
    assert_non_null(p->out);
}

HEFT_PRINTF(2, 0)
static void send_line(up_process_t *p, const char *format, va_list args)
{
    (void)vfprintf(p->in, format, args);
    (void)fputc('\n', p->in);
    (void)fflush(p->in);
}

const char *up_read(up_process_t *p)
{
    if (fgets(p->line, sizeof p->line, p->out) == NULL) {
        p->line[0] = '\0';
    }
    p->line[strcspn(p->line, "\n")] = '\0';
    return p->line;
}

const char *up_tell(up_process_t *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    send_line(p, format, args);
    va_end(args);
    return up_read(p);
}

void up_tell_only(up_process_t *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    send_line(p, format, args);
    va_end(args);
}

static void reap(up_process_t *p)
{
    int status;
    (void)waitpid(p->pid, &status, 0);
    (void)fclose(p->out);
}

void up_kill(up_process_t *p)
{
    (void)kill(p->pid, SIGKILL);
    (void)fclose(p->in);
    reap(p);
}

void up_end(up_process_t *p)
{
    (void)fclose(p->in);
    reap(p);
}
