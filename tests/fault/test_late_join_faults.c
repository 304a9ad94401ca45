/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late join between processes, one of which is killed at any moment: the one that is fed, the one
 * that feeds, or the coordinator. What serves holds the committed version bit for bit, always; once
 * the dead are started again, all of them serve it, without the source and without an operator.
 */
#include "heft/sync.h"
#include "node.h"

#include <signal.h>
#include <sched.h>

enum { SOON = 15000, N_RANKS = 2, N_REPLICAS = 3 };
static const char width[] = "256";

typedef struct fleet {
    char *dir;
    char state_file[600];
    char url[128];
    const char *contact_ms; /* NULL: 3 s */
    node_t coordinator, source;
    node_t engines[N_REPLICAS][N_RANKS];
} fleet_t;

static void start_coordinator(fleet_t *f, const char *port)
{
    const char *contact_ms = f->contact_ms != NULL ? f->contact_ms : "3000";
    const char *args[] = { "coordinator", port, contact_ms, "10000", f->state_file, NULL };
    f->coordinator = node_spawn(args);
    (void)snprintf(f->url, sizeof f->url, "%s", node_expect(&f->coordinator, "url ", SOON));
}

static void start_engine(fleet_t *f, int replica, int rank)
{
    static const char *const digits[] = { "0", "1", "2" };
    const char *args[] = { "subscriber", f->url, digits[replica], digits[rank], width, NULL };
    f->engines[replica][rank] = node_spawn(args);
    (void)node_expect(&f->engines[replica][rank], "ready", SOON);
}

static void push(fleet_t *f, int version, const char *expected)
{
    node_send(&f->source, "push %d", version);
    const char *result = node_expect(&f->source, "pushed ", 30000);
    if (strstr(result, expected) == NULL) {
        fail_msg("push %d: %s", version, result);
    }
}

/* Two replicas serve version 1, and the source is there. */
static void start_pushing(fleet_t *f)
{
    f->dir = heft_test_mkdir();
    (void)snprintf(f->state_file, sizeof f->state_file, "%s/state.json", f->dir);
    start_coordinator(f, "0");
    for (int i = 0; i < (N_REPLICAS - 1) * N_RANKS; i++) {
        start_engine(f, i / N_RANKS, i % N_RANKS);
    }
    const char *args[] = { "publisher", f->url, width, "10000", NULL };
    f->source = node_spawn(args);
    (void)node_expect(&f->source, "ready", SOON);
    push(f, 1, "OK committed");
}

/* The source is gone. */
static void start(fleet_t *f)
{
    *f = (fleet_t){ .url = "" };
    start_pushing(f);
    node_end(&f->source);
}

static void stop(fleet_t *f)
{
    for (int i = 0; i < N_REPLICAS * N_RANKS; i++) {
        node_end(&f->engines[i / N_RANKS][i % N_RANKS]);
    }
    node_end(&f->source);
    node_end(&f->coordinator);
    heft_test_rmdir(f->dir);
}

/* True once it serves; what serves is whole and right. */
static bool serves(fleet_t *f, int replica, int rank)
{
    node_t *node = &f->engines[replica][rank];
    node_send(node, "check");
    const char *state = node_expect(node, "state ", SOON);
    if (strstr(state, "serving=1") == NULL) {
        return false;
    }
    assert_string_equal(state, "version=1 equal=1 digests=1 serving=1");
    return true;
}

static void await_all(fleet_t *f)
{
    const int64_t deadline = heft__clock_mono_ns() + (int64_t)SOON * 1000000;
    for (int i = 0; i < N_REPLICAS * N_RANKS;) {
        if (serves(f, i / N_RANKS, i % N_RANKS)) {
            i++;
        } else if (heft__clock_mono_ns() > deadline) {
            fail_msg("engine %d.%d does not serve", i / N_RANKS, i % N_RANKS);
        }
    }
}

static void let_pass(int64_t ns)
{
    const int64_t end = heft__clock_mono_ns() + ns;
    while (heft__clock_mono_ns() < end) {
        (void)sched_yield();
    }
}

static void processes_join_late(void **state)
{
    (void)state;
    fleet_t f;
    start(&f);
    start_engine(&f, 2, 0);
    start_engine(&f, 2, 1);
    await_all(&f);
    stop(&f);
}

/* Replica 1 lives throughout; a rank of the one that is fed, or of the other that may feed it, dies
 * while the feed is on its way. */
static void whoever_is_killed_is_fed_again(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    fleet_t f;
    start(&f);
    start_engine(&f, 2, 0);
    start_engine(&f, 2, 1);
    for (int64_t i = 0; i < heft_test_cases(12); i++) {
        let_pass((int64_t)heft_test_random_in(&seed, 0, 30000000));
        const int replica = heft_test_random_in(&seed, 0, 1) == 0 ? 0 : 2;
        const int rank = (int)heft_test_random_in(&seed, 0, N_RANKS - 1);
        node_end(&f.engines[replica][rank]);
        start_engine(&f, replica, rank);
    }
    await_all(&f);
    stop(&f);
}

static void coordinator_killed_in_a_feed(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    fleet_t f;
    start(&f);
    const char *port = strrchr(f.url, ':') + 1;
    char kept[16];
    (void)snprintf(kept, sizeof kept, "%s", port);
    for (int64_t i = 0; i < heft_test_cases(4); i++) {
        start_engine(&f, 2, 0);
        start_engine(&f, 2, 1);
        let_pass((int64_t)heft_test_random_in(&seed, 0, 30000000));
        node_end(&f.coordinator);
        start_coordinator(&f, kept);
        await_all(&f);
        node_end(&f.engines[2][0]);
        node_end(&f.engines[2][1]);
    }
    stop(&f);
}

/* Who is fed is killed, and a push comes: it is told at once whom to start again. The contact time
 * is longer than the test waits. */
static void a_push_does_not_wait_for_who_was_killed_in_a_feed(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    fleet_t f = { .contact_ms = "60000" };
    start_pushing(&f);
    int version = 2;
    for (int64_t i = 0; i < heft_test_cases(4); i++) {
        start_engine(&f, 2, 0);
        start_engine(&f, 2, 1);
        node_kill(&f.engines[2][1], SIGSTOP); /* nothing is over before it goes on */
        let_pass((int64_t)heft_test_random_in(&seed, 0, 30000000));
        node_end(&f.engines[2][0]);
        node_send(&f.engines[2][1], "check");
        node_kill(&f.engines[2][1], SIGCONT);
        push(&f, version++, "destination.heft.2.0");
        node_end(&f.engines[2][1]);
        push(&f, version++, "destination.heft.2."); /* again at once: one of the two */
        start_engine(&f, 2, 0);
        start_engine(&f, 2, 1);
        push(&f, version++, "OK committed");
        node_end(&f.engines[2][0]);
        node_end(&f.engines[2][1]);
    }
    stop(&f);
}

int main(int argc, char **argv)
{
    node_main_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_join_late),
        cmocka_unit_test(whoever_is_killed_is_fed_again),
        cmocka_unit_test(coordinator_killed_in_a_feed),
        cmocka_unit_test(a_push_does_not_wait_for_who_was_killed_in_a_feed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
