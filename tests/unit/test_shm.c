/* SPDX-License-Identifier: Apache-2.0 */
/* Both halves of shm, in one process and against forked ones that die or stop. */
#include "heft_test.h"
#include "transport/shm_frame.h"
#include "transport/shm_remote.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const heft__token_t round_1 = { 1, 1 };
static const heft__token_t round_2 = { 1, 2 };

static int64_t in_ms(int64_t ms)
{
    return heft__clock_mono_ns() + ms * 1000000;
}

static heft__window_t *open_window(int64_t bytes)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_params_t params = { .bytes = bytes, .memory = HEFT__MEMORY_HOST };
    memset(params.incarnation, 0x11, sizeof params.incarnation);
    heft__window_t *window = NULL;
    EXPECT_STATUS(heft__window_create(heft__transport_get_shm(), &params, &window, &err), HEFT_OK);
    return window;
}

static heft_status_t attach(const heft__window_t *window, int64_t bytes, int64_t ms,
                            heft__remote_t **remote_out, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    heft__attach_params_t params = { .bytes = bytes, .deadline_mono_ns = in_ms(ms) };
    memset(params.incarnation, 0x22, sizeof params.incarnation);
    heft_status_t status =
        heft__remote_attach(heft__transport_get_shm(), text.data, &params, remote_out, err);
    heft__text_fini(&text);
    return status;
}

static heft__remote_t *attach_ok(const heft__window_t *window)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(attach(window, window->bytes, 5000, &remote, &err), HEFT_OK);
    return remote;
}

/* Wait until the counts of the window say so; false after 5 s. */
static bool wait_state(heft__window_t *window, uint32_t n_writing, uint32_t n_done,
                       uint32_t n_failed, uint32_t n_lost)
{
    int64_t deadline = in_ms(5000);
    for (;;) {
        heft__window_state_t st;
        heft__window_query(window, &st);
        if (st.n_writing == n_writing && st.n_done == n_done && st.n_failed == n_failed &&
            st.n_lost == n_lost) {
            return true;
        }
        if (heft__clock_mono_ns() > deadline) {
            return false;
        }
        (void)sched_yield();
    }
}

static void rounds_reuse_mapping_and_socket(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(1 << 20);
    heft__remote_t *remote = attach_ok(window);
    assert_int_equal(remote->bytes, 1 << 20);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        heft__token_t token = { 1, seq };
        heft__window_arm(window, token);
        EXPECT_STATUS(heft__remote_begin(remote, token, in_ms(5000), &err), HEFT_OK);
        memset(remote->ptr, (int)seq, 1 << 20);
        EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_OK);
        EXPECT_STATUS(heft__remote_put(remote, 5, "put", 3, &err), HEFT_OK);
        EXPECT_STATUS(heft__remote_flush(remote, in_ms(5000), &err), HEFT_OK);
        EXPECT_STATUS(heft__remote_end(remote, token, true, &err), HEFT_OK);
        assert_true(wait_state(window, 0, 1, 0, 0));
        assert_int_equal(window->ptr[0], seq);
        assert_int_equal(window->ptr[(1 << 20) - 1], seq);
        assert_memory_equal(window->ptr + 5, "put", 3);
        bool replaced = true;
        EXPECT_STATUS(heft__window_fence(window, in_ms(5000), &replaced, &err), HEFT_OK);
        assert_false(replaced);
    }
    heft__remote_close(remote);
    heft__window_destroy(window);
}

static void a_round_that_is_not_armed_cannot_begin(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(4096);
    heft__remote_t *remote = attach_ok(window);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_ERR_STALE);
    heft__window_arm(window, round_2);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_ERR_STALE);
    EXPECT_STATUS(heft__remote_begin(remote, round_2, in_ms(5000), &err), HEFT_OK);
    heft__remote_close(remote);
    assert_true(wait_state(window, 0, 0, 0, 1));
    heft__window_destroy(window);
}

typedef struct fence_call {
    heft__window_t *window;
    heft_status_t status;
    bool replaced;
    heft_error_t err;
} fence_call_t;

static void *call_fence(void *arg)
{
    fence_call_t *call = arg;
    call->status = heft__window_fence(call->window, in_ms(5000), &call->replaced, &call->err);
    return NULL;
}

static void fence_asks_the_writer_to_stop(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(4096);
    heft__remote_t *remote = attach_ok(window);
    heft__window_arm(window, round_1);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    fence_call_t call = { .window = window, .replaced = true };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_fence, &call), 0);
    heft_status_t status;
    int64_t deadline = in_ms(5000);
    while ((status = heft__remote_check(remote, &err)) == HEFT_OK &&
           heft__clock_mono_ns() < deadline) {
        (void)sched_yield();
    }
    assert_int_equal(status, HEFT_ERR_CANCELED);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_ERR_CANCELED); /* remembered */
    EXPECT_STATUS(heft__remote_end(remote, round_1, false, &err), HEFT_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(call.status, HEFT_OK);
    assert_false(call.replaced); /* confirmed: the same memory goes on */
    heft__window_arm(window, round_2);
    EXPECT_STATUS(heft__remote_begin(remote, round_2, in_ms(5000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_OK);
    heft__remote_close(remote);
    heft__window_destroy(window);
}

static void fence_replaces_memory_under_a_silent_writer(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(4096);
    heft__remote_t *remote = attach_ok(window);
    heft__window_arm(window, round_1);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    heft__text_t before;
    heft__text_t after;
    heft__text_init(&before);
    heft__text_init(&after);
    heft__window_encode(window, &before);
    bool replaced = false;
    EXPECT_STATUS(heft__window_fence(window, in_ms(20), &replaced, &err), HEFT_OK);
    assert_true(replaced);
    heft__window_encode(window, &after);
    assert_string_not_equal(before.data, after.data);
    memset(remote->ptr, 0xee, 4096); /* a late write: into memory that nobody reads */
    for (int i = 0; i < 4096; i++) {
        assert_int_equal(window->ptr[i], 0);
    }
    heft_status_t status = heft__remote_check(remote, &err);
    if (status == HEFT_ERR_CANCELED) { /* the request to stop came before the hang-up */
        status = heft__remote_check(remote, &err);
    }
    assert_int_equal(status, HEFT_ERR_PEER);
    heft__remote_close(remote);

    heft__remote_t *fresh = attach_ok(window);
    heft__window_arm(window, round_2);
    EXPECT_STATUS(heft__remote_begin(fresh, round_2, in_ms(5000), &err), HEFT_OK);
    fresh->ptr[7] = 7;
    EXPECT_STATUS(heft__remote_end(fresh, round_2, true, &err), HEFT_OK);
    assert_true(wait_state(window, 0, 1, 0, 0));
    assert_int_equal(window->ptr[7], 7);
    heft__remote_close(fresh);
    heft__text_fini(&before);
    heft__text_fini(&after);
    heft__window_destroy(window);
}

/* ---- other processes ---- */

typedef struct child {
    pid_t pid;
    int up;   /* child to parent */
    int down; /* parent to child */
} child_t;

/* Fork; fn gets the descriptors (read commands, write answers) and never returns. */
static child_t spawn(void (*fn)(int in, int out, void *arg), void *arg)
{
    int up[2];
    int down[2];
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(up[0]);
        (void)close(down[1]);
        fn(down[0], up[1], arg);
        _exit(0);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    return (child_t){ .pid = pid, .up = up[0], .down = down[1] };
}

static char await_byte(int fd)
{
    char c = 0;
    if (read(fd, &c, 1) != 1) {
        return 0;
    }
    return c;
}

static void end_child(child_t *child)
{
    (void)kill(child->pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    (void)close(child->up);
    (void)close(child->down);
}

/* A receiver in another process: writes its endpoint, arms round 1, then waits. */
static void run_receiver(int in, int out, void *arg)
{
    heft__window_params_t params = { .bytes = *(int64_t *)arg, .memory = HEFT__MEMORY_HOST };
    heft__window_t *window = NULL;
    if (heft__window_create(heft__transport_get_shm(), &params, &window, NULL) != HEFT_OK) {
        _exit(1);
    }
    heft__window_arm(window, round_1);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    if (write(out, text.data, text.len + 1) < 0) {
        _exit(1);
    }
    while (await_byte(in) != 0) {
        char value = (char)window->ptr[0];
        if (write(out, &value, 1) != 1) {
            _exit(1);
        }
    }
}

static void read_text(int fd, char *out, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && (out[n] = await_byte(fd)) != '\0') {
        n++;
    }
    assert_true(n > 0 && n < bytes);
}

static heft__remote_t *attach_to_child(const child_t *child, int64_t bytes)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char endpoint[512];
    read_text(child->up, endpoint, sizeof endpoint);
    heft__attach_params_t params = { .bytes = bytes, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(heft__remote_attach(heft__transport_get_shm(), endpoint, &params, &remote, &err),
                  HEFT_OK);
    return remote;
}

static void bytes_reach_another_process(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t bytes = 4096;
    child_t child = spawn(run_receiver, &bytes);
    heft__remote_t *remote = attach_to_child(&child, bytes);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    remote->ptr[0] = 'v';
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    assert_int_equal(write(child.down, "?", 1), 1);
    assert_int_equal(await_byte(child.up), 'v');
    heft__remote_close(remote);
    end_child(&child);
}

static void killed_receiver_is_noticed_at_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t bytes = 4096;
    child_t child = spawn(run_receiver, &bytes);
    heft__remote_t *remote = attach_to_child(&child, bytes);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_OK);
    end_child(&child);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_ERR_PEER);
    char pid[32];
    (void)snprintf(pid, sizeof pid, "process %d", (int)child.pid);
    EXPECT_MESSAGE(pid);
    remote->ptr[0] = 1; /* the memory stays until it is unmapped: no fault */
    EXPECT_STATUS(heft__remote_end(remote, round_1, false, &err), HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_ERR_PEER);
    heft__remote_close(remote);
}

/* Call on_name for every file in the shared-memory folder that could be of this part. */
static void each_file(void (*on_name)(const char *name, void *arg), void *arg)
{
    DIR *folder = opendir("/dev/shm");
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strstr(entry->d_name, "heft") != NULL) {
            on_name(entry->d_name, arg);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

static void note_file(const char *name, void *arg)
{
    heft__text_printf(arg, "/%s/", name);
}

typedef struct file_count {
    const heft__text_t *before;
    int n;
} file_count_t;

static void count_file(const char *name, void *arg)
{
    file_count_t *count = arg;
    char wanted[300];
    (void)snprintf(wanted, sizeof wanted, "/%s/", name);
    count->n += count->before->data == NULL || strstr(count->before->data, wanted) == NULL;
}

/* Names of this part that others can see: abstract sockets, and files in the shared-memory folder
 * that were not there before the test, of other programs. */
static int count_names(const char *name, const heft__text_t *files_before)
{
    char line[512];
    file_count_t count = { .before = files_before };
    FILE *sockets = fopen("/proc/net/unix", "r");
    while (sockets != NULL && fgets(line, sizeof line, sockets) != NULL) {
        count.n += strstr(line, name) != NULL;
    }
    if (sockets != NULL) {
        (void)fclose(sockets);
    }
    each_file(count_file, &count);
    return count.n;
}

/* The unguessable part of the socket's name, out of an endpoint. */
static void name_of(const char *endpoint, char out[64])
{
    const char *from = strstr(endpoint, "\"socket\":\"");
    assert_non_null(from);
    from += strlen("\"socket\":\"");
    const size_t n = strcspn(from, "\"");
    assert_true(n >= 32 && n < 64);
    memcpy(out, from, n);
    out[n] = '\0';
}

static void nothing_is_left_behind_by_a_kill(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t bytes = 1 << 20;
    char endpoint[512];
    char name[64];
    heft__text_t files;
    heft__text_init(&files);
    each_file(note_file, &files);
    child_t child = spawn(run_receiver, &bytes);
    read_text(child.up, endpoint, sizeof endpoint);
    name_of(endpoint, name);
    assert_int_equal(count_names(name, &files), 1); /* the socket, and no file */
    heft__attach_params_t params = { .bytes = bytes, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(heft__remote_attach(heft__transport_get_shm(), endpoint, &params, &remote, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    end_child(&child); /* in the middle of a round */
    heft__remote_close(remote);
    assert_int_equal(count_names(name, &files), 0);
    heft__text_fini(&files);
}

static void names_are_never_used_twice(void **state)
{
    (void)state;
    char names[16][64];
    for (int i = 0; i < 16; i++) {
        heft__window_t *window = open_window(4096);
        heft__text_t text;
        heft__text_init(&text);
        heft__window_encode(window, &text);
        name_of(text.data, names[i]);
        heft__text_fini(&text);
        heft__window_destroy(window);
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(names[i], names[k]);
        }
    }
}

static void stopped_receiver_is_caught_by_the_deadline(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t bytes = 4096;
    child_t child = spawn(run_receiver, &bytes);
    heft__remote_t *remote = attach_to_child(&child, bytes);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    int status;
    assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
    int64_t start = heft__clock_mono_ns();
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(30), &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("did not answer before the deadline");
    assert_true(heft__clock_mono_ns() - start >= 30000000);
    heft__remote_close(remote);
    end_child(&child);
}

typedef struct sender_case {
    const char *endpoint;
    int64_t bytes;
} sender_case_t;

/* A sender in another process that begins round 1 and writes for ever. */
static void run_endless_sender(int in, int out, void *arg)
{
    const sender_case_t *c = arg;
    heft__attach_params_t params = { .bytes = c->bytes, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    (void)in;
    if (heft__remote_attach(heft__transport_get_shm(), c->endpoint, &params, &remote, NULL) !=
            HEFT_OK ||
        heft__remote_begin(remote, round_1, in_ms(5000), NULL) != HEFT_OK ||
        write(out, "!", 1) != 1) {
        _exit(1);
    }
    for (int value = 1;; value++) {
        memset(remote->ptr, value, (size_t)c->bytes);
    }
}

static void killed_sender_is_quiet_without_replacing_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(1 << 20);
    heft__window_arm(window, round_1);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    sender_case_t c = { .endpoint = text.data, .bytes = 1 << 20 };
    child_t child = spawn(run_endless_sender, &c);
    assert_int_equal(await_byte(child.up), '!');
    assert_true(wait_state(window, 1, 0, 0, 0));
    end_child(&child);
    assert_true(wait_state(window, 0, 0, 0, 1));
    heft__window_state_t st;
    heft__window_query(window, &st);
    assert_int_equal(st.lost.pid, child.pid);
    bool replaced = true;
    EXPECT_STATUS(heft__window_fence(window, in_ms(5000), &replaced, &err), HEFT_OK);
    assert_false(replaced);
    memset(window->ptr, 0, 1 << 20);
    for (int i = 0; i < 1 << 20; i++) {
        assert_int_equal(window->ptr[i], 0);
    }
    heft__text_fini(&text);
    heft__window_destroy(window);
}

static void stopped_sender_is_fenced_by_fresh_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(65536);
    heft__window_arm(window, round_1);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    sender_case_t c = { .endpoint = text.data, .bytes = 65536 };
    child_t child = spawn(run_endless_sender, &c);
    assert_int_equal(await_byte(child.up), '!');
    assert_true(wait_state(window, 1, 0, 0, 0));
    bool replaced = false; /* it is writing still: it never looks at its socket */
    EXPECT_STATUS(heft__window_fence(window, in_ms(30), &replaced, &err), HEFT_OK);
    assert_true(replaced);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 65536; i += 64) {
            assert_int_equal(window->ptr[i], 0);
        }
    }
    end_child(&child);
    heft__text_fini(&text);
    heft__window_destroy(window);
}

/* ---- hostile senders ---- */

static int raw_connect(const heft__window_t *window, uint8_t to_out[16])
{
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    heft__shm_endpoint_t endpoint;
    assert_int_equal(heft__shm_endpoint_decode(text.data, text.len, &endpoint, NULL), HEFT_OK);
    heft__text_fini(&text);
    memcpy(to_out, endpoint.incarnation, 16);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path + 1, endpoint.socket, strlen(endpoint.socket));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(endpoint.socket));
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, len), 0);
    struct timeval tv = { .tv_sec = 5 };
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    return fd;
}

static void nonsense_is_hung_up_on(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(4096);
    uint8_t bytes[200] = { 0 };
    uint8_t to[16];
    for (size_t n = 1; n <= sizeof bytes; n += 63) {
        int fd = raw_connect(window, to);
        assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
        assert_int_equal(recv(fd, bytes, sizeof bytes, 0), 0);
        (void)close(fd);
    }
    /* A well-formed frame, but not the one that is due. */
    int fd = raw_connect(window, to);
    heft__shm_frame_t frame = { .kind = HEFT__SHM_BEGIN };
    memcpy(frame.to, to, sizeof to);
    EXPECT_STATUS(heft__shm_send(fd, &frame, -1, &err), HEFT_OK);
    assert_int_equal(recv(fd, bytes, sizeof bytes, 0), 0);
    (void)close(fd);
    heft__remote_t *remote = attach_ok(window); /* others are served as before */
    heft__remote_close(remote);
    heft__window_destroy(window);
}

static void refuse_hello(heft__window_t *window, uint8_t flip, uint64_t bytes,
                         heft_status_t expected)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint8_t to[16];
    int fd = raw_connect(window, to);
    heft__shm_frame_t frame = { .kind = HEFT__SHM_HELLO, .a = bytes };
    memcpy(frame.to, to, sizeof to);
    frame.to[3] ^= flip;
    EXPECT_STATUS(heft__shm_send(fd, &frame, -1, &err), HEFT_OK);
    uint8_t answer[HEFT__SHM_FRAME_BYTES];
    assert_int_equal(recv(fd, answer, sizeof answer, 0), sizeof answer);
    EXPECT_STATUS(heft__shm_frame_decode(answer, sizeof answer, &frame, &err), HEFT_OK);
    assert_int_equal(frame.kind, HEFT__SHM_REFUSED);
    assert_int_equal(frame.status, expected);
    assert_int_equal(recv(fd, answer, sizeof answer, 0), 0);
    (void)close(fd);
}

static void hello_to_another_life_or_for_more_bytes_is_refused(void **state)
{
    (void)state;
    heft__window_t *window = open_window(4096);
    refuse_hello(window, 1, 4096, HEFT_ERR_STALE);
    refuse_hello(window, 0, 4097, HEFT_ERR_SHAPE);
    heft__window_destroy(window);
}

static void too_many_senders_are_refused_the_rest_served(void **state)
{
    (void)state;
    heft__window_t *window = open_window(4096);
    enum { N = 300 };
    int fds[N];
    uint8_t to[16];
    for (int i = 0; i < N; i++) {
        fds[i] = raw_connect(window, to);
    }
    uint8_t answer[HEFT__SHM_FRAME_BYTES];
    assert_int_equal(recv(fds[N - 1], answer, sizeof answer, 0), sizeof answer); /* refused */
    for (int i = 0; i < N; i++) {
        (void)close(fds[i]);
    }
    heft__remote_t *remote = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t deadline = in_ms(5000); /* until the hang-ups have been seen */
    heft_status_t status;
    while ((status = attach(window, 4096, 5000, &remote, &err)) != HEFT_OK &&
           heft__clock_mono_ns() < deadline) {
    }
    assert_int_equal(status, HEFT_OK);
    heft__remote_close(remote);
    heft__window_destroy(window);
}

static void nobody_there_is_a_clear_error(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = open_window(4096);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    heft__window_destroy(window);
    heft__attach_params_t params = { .bytes = 1, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(heft__remote_attach(heft__transport_get_shm(), text.data, &params, &remote, &err),
                  HEFT_ERR_PEER);
    EXPECT_MESSAGE("network namespace");
    assert_null(remote);
    heft__text_fini(&text);
}

/* Another user's sender is refused before it is listened to. Needs the right to change user. */
static void run_other_user(int in, int out, void *arg)
{
    const sender_case_t *c = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__attach_params_t params = { .bytes = c->bytes, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    (void)in;
    char answer = 'x';
    if (setresuid(65534, 65534, 65534) == 0) {
        heft_status_t status =
            heft__remote_attach(heft__transport_get_shm(), c->endpoint, &params, &remote, &err);
        answer = status == HEFT_ERR_AUTH && strstr(err.message, "user 65534") != NULL ? 'y' : 'n';
    }
    (void)!write(out, &answer, 1);
}

static void another_user_is_refused_by_both_sides(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: needs the right to change user\n");
        skip();
    }
    heft__window_t *window = open_window(4096);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    sender_case_t c = { .endpoint = text.data, .bytes = 4096 };
    child_t child = spawn(run_other_user, &c);
    assert_int_equal(await_byte(child.up), 'y');
    end_child(&child);
    heft__window_state_t st;
    heft__window_query(window, &st);
    assert_int_equal(st.n_attached, 0);
    heft__text_fini(&text);
    heft__window_destroy(window);
}

static void note_call(void *arg)
{
    (void)__atomic_fetch_add((int *)arg, 1, __ATOMIC_SEQ_CST);
}

static void changes_are_announced(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int calls = 0;
    heft__window_params_t params = {
        .bytes = 4096, .memory = HEFT__MEMORY_HOST, .on_change = note_call, .on_change_arg = &calls
    };
    heft__window_t *window = NULL;
    EXPECT_STATUS(heft__window_create(heft__transport_get_shm(), &params, &window, &err), HEFT_OK);
    heft__window_arm(window, round_1);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    heft__attach_params_t attach_params = { .bytes = 4096, .deadline_mono_ns = in_ms(5000) };
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(
        heft__remote_attach(heft__transport_get_shm(), text.data, &attach_params, &remote, &err),
        HEFT_OK);
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(5000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    int64_t deadline = in_ms(5000);
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0 && heft__clock_mono_ns() < deadline) {
        (void)sched_yield();
    }
    assert_true(__atomic_load_n(&calls, __ATOMIC_SEQ_CST) > 0);
    heft__remote_close(remote);
    heft__text_fini(&text);
    heft__window_destroy(window);
}

static void create_and_attach_survive_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft__window_params_t params = { .bytes = 4096, .memory = HEFT__MEMORY_HOST };
        heft__window_t *window = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status =
            heft__window_create(heft__transport_get_shm(), &params, &window, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft__remote_t *remote = NULL;
            heft__alloc_fail_at(1); /* the text of the endpoint is the first */
            heft_status_t attached = attach(window, 4096, 5000, &remote, &err);
            heft__alloc_fail_at(-1);
            assert_int_equal(attached, HEFT_ERR_NOMEM);
            assert_null(remote);
            heft__window_destroy(window);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(window);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_int_equal(heft__alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_reuse_mapping_and_socket),
        cmocka_unit_test(a_round_that_is_not_armed_cannot_begin),
        cmocka_unit_test(fence_asks_the_writer_to_stop),
        cmocka_unit_test(fence_replaces_memory_under_a_silent_writer),
        cmocka_unit_test(bytes_reach_another_process),
        cmocka_unit_test(killed_receiver_is_noticed_at_once),
        cmocka_unit_test(nothing_is_left_behind_by_a_kill),
        cmocka_unit_test(names_are_never_used_twice),
        cmocka_unit_test(stopped_receiver_is_caught_by_the_deadline),
        cmocka_unit_test(killed_sender_is_quiet_without_replacing_memory),
        cmocka_unit_test(stopped_sender_is_fenced_by_fresh_memory),
        cmocka_unit_test(nonsense_is_hung_up_on),
        cmocka_unit_test(hello_to_another_life_or_for_more_bytes_is_refused),
        cmocka_unit_test(too_many_senders_are_refused_the_rest_served),
        cmocka_unit_test(nobody_there_is_a_clear_error),
        cmocka_unit_test(another_user_is_refused_by_both_sides),
        cmocka_unit_test(changes_are_announced),
        cmocka_unit_test(create_and_attach_survive_failed_allocations),
    };
    heft__log_max_level = -1; /* refusals are warnings */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
