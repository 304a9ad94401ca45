/* SPDX-License-Identifier: Apache-2.0 */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fleet_model.h"
#include "sync/publisher_private.h"

/* ---- inside a node ---- */

static void say(const char *fmt, ...) HEFT_PRINTF(1, 2);
static void say(const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    n = n < (int)sizeof line - 2 ? n : (int)sizeof line - 2;
    line[n] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)n + 1) != n + 1) {
        _exit(3);
    }
}

/* The next line of stdin; false when there is none within timeout_ms. A closed stdin ends the node.
 */
static bool hear(char *line, size_t bytes, int timeout_ms)
{
    struct pollfd fd = { .fd = STDIN_FILENO, .events = POLLIN };
    if (poll(&fd, 1, timeout_ms) <= 0) {
        return false;
    }
    size_t n = 0;
    char c;
    for (;;) {
        if (read(STDIN_FILENO, &c, 1) != 1) {
            _exit(0);
        }
        if (c == '\n' || n + 1 == bytes) {
            break;
        }
        line[n++] = c;
    }
    line[n] = '\0';
    return true;
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

static void run_coordinator(char **argv)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_t *coordinator = NULL;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.port = (uint16_t)number(argv[0]);
    opts.contact_ms = number(argv[1]);
    opts.stage_ms = number(argv[2]);
    opts.abort_ms = opts.release_ms = 15000;
    opts.state_file = argv[3];
    char line[64];
    if (heft_coordinator_start(&opts, &coordinator, &err) != HEFT_OK) {
        say("error %s", err.message);
        return;
    }
    say("url %s", heft_coordinator_get_url(coordinator));
    for (;;) {
        (void)hear(line, sizeof line, -1);
    }
}

typedef struct engine {
    fm_model_t model;
    fm_side_t params;
    heft_subscriber_t *sub;
    uint32_t rank;
} engine_t;

static void answer(engine_t *e, const char *line)
{
    if (strcmp(line, "check") == 0) {
        int64_t version = heft_subscriber_get_version(e->sub);
        bool equal = version > 0 && fm_params_equal(&e->model, &e->params, e->rank, version);
        bool digests = true;
        for (uint32_t i = 0; i < FM_PARAMS && version > 0; i++) {
            digests = digests && heft_subscriber_get_digest(e->sub, i) ==
                                     heft_digest(e->params.data[i], e->params.bytes[i]);
        }
        say("state version=%" PRId64 " equal=%d digests=%d serving=%d", version, equal, digests,
            heft_subscriber_is_serving(e->sub));
    }
}

static int on_resume(void *arg, int64_t version)
{
    (void)arg;
    say("resumed %" PRId64, version);
    return 0;
}

static void run_subscriber(char **argv)
{
    heft_error_t err = HEFT_ERROR_INIT;
    engine_t e = { .rank = number(argv[2]) };
    heft_hooks_t hooks = HEFT_HOOKS_INIT;
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    char line[128];
    hooks.arg = &e;
    hooks.resume = on_resume;
    opts.url = argv[0];
    opts.replica = number(argv[1]);
    opts.rank = e.rank;
    opts.hooks = &hooks;
    opts.deadline_ms = 5000;
    opts.in_place = argv[4] != NULL;
    opts.buffer_bytes = opts.in_place; /* the smallest: the largest parameter */
    fm_model_init(&e.model, (int64_t)number(argv[3]));
    fm_params_init(&e.model, &e.params);
    if (heft_subscriber_create(&opts, e.model.recipe, e.model.bindings, e.params.manifest,
                               e.params.data, &e.sub, &err) != HEFT_OK) {
        say("error %s", err.message);
        return;
    }
    say("ready");
    for (;;) {
        (void)!heft_subscriber_poll(e.sub, 20, &err);
        if (hear(line, sizeof line, 0)) {
            answer(&e, line);
        }
    }
}

static bool is_slow;

enum {
    GO_FD = 3
}; /* a channel of its own: the push may return before the worker is told to go on */

/* Between pieces of the transfer: say so, and go on only when told. */
static int on_slow_progress(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    if (is_slow && done_bytes < total_bytes) {
        char c;
        is_slow = false;
        say("progress %" PRId64, done_bytes);
        if (read(GO_FD, &c, 1) != 1) {
            _exit(0);
        }
    }
    return heft__publisher_on_progress(arg, done_bytes, total_bytes);
}

static void push(const fm_model_t *model, fm_side_t *source, heft_publisher_t *pub, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    fm_source_fill(model, source, version);
    heft_status_t status = heft_publisher_push(pub, version, &result, &err);
    say("pushed %s %s: %s", heft_status_get_name(status), result.state,
        status == HEFT_OK ? "" : err.message);
}

static void run_publisher(char **argv)
{
    heft_error_t err = HEFT_ERROR_INIT;
    fm_model_t model;
    fm_side_t source;
    heft_publisher_t *pub = NULL;
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    char line[128];
    opts.url = argv[0];
    opts.deadline_ms = number(argv[2]);
    fm_model_init(&model, (int64_t)number(argv[1]));
    fm_source_init(&model, &source);
    if (heft_publisher_create(&opts, source.manifest, (const void *const *)source.data, &pub,
                              &err) != HEFT_OK) {
        say("error %s", err.message);
        return;
    }
    pub->fleet.progress = on_slow_progress;
    say("ready");
    for (;;) {
        (void)hear(line, sizeof line, -1);
        if (strncmp(line, "slow ", 5) == 0) {
            is_slow = true;
            push(&model, &source, pub, (int64_t)number(line + 5));
        } else if (strncmp(line, "push ", 5) == 0) {
            push(&model, &source, pub, (int64_t)number(line + 5));
        }
    }
}

void node_main_if_asked(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "--node") != 0) {
        return;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* no node outlives its test */
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    const char *role = argv[2];
    if (strcmp(role, "coordinator") == 0) {
        run_coordinator(argv + 3);
    } else if (strcmp(role, "subscriber") == 0) {
        run_subscriber(argv + 3);
    } else if (strcmp(role, "publisher") == 0) {
        run_publisher(argv + 3);
    }
    _exit(2);
}

/* ---- in the test ---- */

node_t node_spawn(const char *const *args)
{
    enum { MAX_ARGS = 12 };
    int to[2];
    int from[2];
    int go[2];
    const char *argv[MAX_ARGS] = { "/proc/self/exe", "--node" };
    for (int i = 0; args[i] != NULL; i++) {
        assert_true(i + 3 < MAX_ARGS);
        argv[i + 2] = args[i];
    }
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int ends[3] = { to[0], from[1], go[0] }; /* out of the way of each other first */
        int high[3];
        for (int i = 0; i < 3; i++) {
            high[i] = fcntl(ends[i], F_DUPFD_CLOEXEC, 16);
        }
        (void)dup2(high[0], STDIN_FILENO);
        (void)dup2(high[1], STDOUT_FILENO);
        (void)dup2(high[2], GO_FD);
        union {
            const char *const *in;
            char *const *out;
        } cast = { .in = argv };
        (void)execv("/proc/self/exe", cast.out);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    (void)close(go[0]);
    return (node_t){ .pid = pid, .to = to[1], .from = from[0], .go = go[1] };
}

void node_send(node_t *node, const char *fmt, ...)
{
    char line[128];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    line[n] = '\n';
    assert_int_equal(write(node->to, line, (size_t)n + 1), n + 1);
}

void node_go(node_t *node)
{
    assert_int_equal(write(node->go, "g", 1), 1);
}

const char *node_expect(node_t *node, const char *prefix, int timeout_ms)
{
    int64_t deadline = heft__clock_mono_ns() + (int64_t)timeout_ms * 1000000;
    for (;;) { /* lines that nobody waits for are passed over */
        size_t n = 0;
        for (;;) {
            int64_t left = (deadline - heft__clock_mono_ns()) / 1000000;
            struct pollfd fd = { .fd = node->from, .events = POLLIN };
            if (left <= 0 || poll(&fd, 1, (int)left) <= 0) {
                fail_msg("no line \"%s...\" within %d ms", prefix, timeout_ms);
            }
            char c;
            if (read(node->from, &c, 1) != 1) {
                fail_msg("the node died; \"%s...\" expected", prefix);
            }
            if (c == '\n' || n + 1 == sizeof node->line) {
                break;
            }
            node->line[n++] = c;
        }
        node->line[n] = '\0';
        if (strncmp(node->line, prefix, strlen(prefix)) == 0) {
            return node->line + strlen(prefix);
        }
        if (strncmp(node->line, "error", 5) == 0) {
            fail_msg("node: %s", node->line);
        }
    }
}

void node_kill(node_t *node, int sig)
{
    assert_int_equal(kill(node->pid, sig), 0);
    int status;
    if (sig == SIGSTOP) {
        assert_int_equal(waitpid(node->pid, &status, WUNTRACED), node->pid);
    }
}

void node_end(node_t *node)
{
    int status;
    if (node->pid <= 0) {
        return;
    }
    (void)kill(node->pid, SIGKILL);
    (void)waitpid(node->pid, &status, 0);
    (void)close(node->to);
    (void)close(node->from);
    (void)close(node->go);
    node->pid = 0;
}

int64_t node_rss(const node_t *node)
{
    char path[64];
    long long pages = 0;
    long long total = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)node->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld", &total, &pages), 2);
    (void)fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}
