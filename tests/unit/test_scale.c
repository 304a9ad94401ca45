/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thousand members: a coordinator in a process of its own, everything over HTTP. Time and memory
 * are printed, not judged. HEFT_TEST_CASES sets the number of destinations (at most 999).
 */
#include "http_fleet.h"

#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct process {
    pid_t pid;
    char url[80];
} process_t;

static void raise_open_files(void)
{
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* The child: serve until the parent closes its end of the pipe. */
static void serve(int url_fd, int end_fd)
{
    heft_coordinator_t *c = NULL;
    char byte;
    if (heft_coordinator_start(NULL, &c, NULL) != HEFT_OK) {
        _exit(1);
    }
    const char *url = heft_coordinator_get_url(c);
    const bool told = write(url_fd, url, strlen(url)) == (ssize_t)strlen(url);
    (void)close(url_fd);
    while (told && read(end_fd, &byte, 1) > 0) {
    }
    heft_coordinator_stop(c);
    _exit(told ? 0 : 1);
}

static process_t start(int *end_out)
{
    int url[2];
    int end[2];
    process_t p = { .pid = 0 };
    assert_int_equal(pipe(url), 0);
    assert_int_equal(pipe(end), 0);
    p.pid = fork();
    assert_true(p.pid >= 0);
    if (p.pid == 0) {
        (void)close(url[0]);
        (void)close(end[1]);
        serve(url[1], end[0]);
    }
    (void)close(url[1]);
    (void)close(end[0]);
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof p.url && (got = read(url[0], p.url + n, sizeof p.url - 1 - n)) > 0) {
        n += (size_t)got;
    }
    (void)close(url[0]);
    assert_true(n > 0);
    *end_out = end[1];
    return p;
}

static double seconds_since(int64_t begin_ns)
{
    return (double)(heft__clock_mono_ns() - begin_ns) / 1e9;
}

static void a_thousand_members_commit(void **state)
{
    (void)state;
    const uint32_t n_dest = (uint32_t)heft__min_i64(heft_test_cases(999), 999);
    raise_open_files();
    int end;
    const process_t coordinator = start(&end);
    fleet_member_t *members = heft__calloc(n_dest + 1, sizeof *members);
    assert_non_null(members);
    int64_t begin = heft__clock_mono_ns();
    for (uint32_t i = 0; i <= n_dest; i++) {
        fleet_member_start(&members[i], coordinator.url,
                           i == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION, 0,
                           i == 0 ? 0 : i - 1);
    }
    for (uint32_t i = 0; i <= n_dest; i++) {
        fleet_await_bound(&members[i]);
    }
    print_message("%u members registered and bound: %.2f s\n", n_dest + 1, seconds_since(begin));
    for (int version = 1; version <= 2; version++) {
        char key[8];
        (void)snprintf(key, sizeof key, "k%d", version);
        begin = heft__clock_mono_ns();
        char *result = fleet_push(coordinator.url, version, key);
        print_message("version %d: %.2f s\n", version, seconds_since(begin));
        json_t *root = json_loads(result, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(root, "state")), "committed");
        assert_int_equal(json_array_size(json_object_get(root, "members")), n_dest + 1);
        json_decref(root);
        heft__free(result);
    }
    for (uint32_t i = 1; i <= n_dest; i++) {
        assert_int_equal(fleet_member_get(&members[i]).live, 2);
    }
    for (uint32_t i = 0; i <= n_dest; i++) {
        fleet_member_stop(&members[i]);
    }
    heft__free(members);
    (void)close(end);
    int status = 0;
    struct rusage used;
    assert_int_equal(wait4(coordinator.pid, &status, 0, &used), coordinator.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    print_message("coordinator: at most %ld MiB, %.2f s of processor\n", used.ru_maxrss / 1024,
                  (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                      (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_members_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
