/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that die, stop and come back in the middle of a push. After each: the survivors hold
 * the old version, bit for bit, and the next push succeeds.
 */
#include "heft/sync.h"
#include "fleet_model.h"
#include "node.h"

#include <jansson.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { SOON = 10000, N_ENGINES = 2 };

typedef struct fleet {
    char *dir;
    char state_file[600];
    char url[128];
    const char *width;
    const char *contact_ms;
    const char *stage_ms;
    node_t coordinator;
    node_t source;
    node_t engines[N_ENGINES];
    bool in_place;
} fleet_t;

static void start_coordinator(fleet_t *f, const char *port)
{
    const char *args[] = { "coordinator", port, f->contact_ms, f->stage_ms, f->state_file, NULL };
    f->coordinator = node_spawn(args);
    (void)snprintf(f->url, sizeof f->url, "%s", node_expect(&f->coordinator, "url ", SOON));
}

static void start_engine(fleet_t *f, int rank)
{
    const char *args[] = { "subscriber", f->url,
                           "0",          rank == 0 ? "0" : "1",
                           f->width,     f->in_place ? "in_place" : NULL,
                           NULL };
    f->engines[rank] = node_spawn(args);
    (void)node_expect(&f->engines[rank], "ready", SOON);
}

static void start_source(fleet_t *f)
{
    const char *args[] = { "publisher", f->url, f->width, "5000", NULL };
    f->source = node_spawn(args);
    (void)node_expect(&f->source, "ready", SOON);
}

/* width 768: 18 MB of source and as many in staging, so that a transfer stops for progress on its
 * way. */
static void start_as(fleet_t *f, const char *width, const char *contact_ms, const char *stage_ms,
                     bool in_place)
{
    *f = (fleet_t){
        .width = width, .contact_ms = contact_ms, .stage_ms = stage_ms, .in_place = in_place
    };
    f->dir = heft_test_mkdir();
    (void)snprintf(f->state_file, sizeof f->state_file, "%s/state.json", f->dir);
    start_coordinator(f, "0");
    for (int rank = 0; rank < N_ENGINES; rank++) {
        start_engine(f, rank);
    }
    start_source(f);
}

static void start(fleet_t *f, const char *width, const char *contact_ms, const char *stage_ms)
{
    start_as(f, width, contact_ms, stage_ms, false);
}

static void stop(fleet_t *f)
{
    node_end(&f->source);
    for (int rank = 0; rank < N_ENGINES; rank++) {
        node_end(&f->engines[rank]);
    }
    node_end(&f->coordinator);
    heft_test_rmdir(f->dir);
}

static void push_ok(fleet_t *f, int version)
{
    const char *result;
    int64_t deadline = heft__clock_mono_ns() + 20000000000;
    do { /* busy: the last round is still being cleared away */
        node_send(&f->source, "push %d", version);
        result = node_expect(&f->source, "pushed ", 30000);
    } while (strncmp(result, "ERR_BUSY", 8) == 0 && heft__clock_mono_ns() < deadline);
    if (strncmp(result, "OK committed", 12) != 0) {
        fail_msg("push %d: %s", version, result);
    }
}

static void expect_engine(fleet_t *f, int rank, int version)
{
    char expected[128];
    node_send(&f->engines[rank], "check");
    const char *state = node_expect(&f->engines[rank], "state ", SOON);
    (void)snprintf(expected, sizeof expected, "version=%d equal=1 digests=1 serving=1", version);
    assert_string_equal(state, expected);
}

static void expect_all(fleet_t *f, int version)
{
    for (int rank = 0; rank < N_ENGINES; rank++) {
        expect_engine(f, rank, version);
    }
}

static void expect_failed_push(fleet_t *f, const char *part)
{
    const char *result = node_expect(&f->source, "pushed ", 30000);
    assert_true(strncmp(result, "OK", 2) != 0);
    assert_true(strncmp(result, "ERR_", 4) == 0);
    if (strstr(result, part) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", result, part);
    }
}

/* Wait until no round is in flight; the coordinator must not be poisoned. */
static void await_idle(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t deadline = heft__clock_mono_ns() + 30000000000;
    bool is_idle = false;
    while (!is_idle && heft__clock_mono_ns() < deadline) {
        char *text = NULL;
        EXPECT_STATUS(heft_client_get(f->url, "/v1/status", SOON, &text, &err), HEFT_OK);
        json_t *root = json_loads(text, 0, NULL);
        const char *state = json_string_value(json_object_get(root, "state"));
        is_idle = state != NULL && strcmp(state, "idle") == 0;
        if (json_is_true(json_object_get(root, "poisoned"))) {
            fail_msg("poisoned: %s", text);
        }
        json_decref(root);
        heft_string_free(text);
    }
    assert_true(is_idle);
}

/* What the coordinator says of the rounds so far. */
static void expect_cause(fleet_t *f, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft_client_get(f->url, "/v1/rounds", SOON, &text, &err), HEFT_OK);
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", text, part);
    }
    heft_string_free(text);
}

static void processes_push_versions(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "64", "5000", "5000");
    for (int version = 1; version <= 3; version++) {
        push_ok(&f, version);
        expect_all(&f, version);
    }
    stop(&f);
}

static void destination_killed_in_stage(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "768", "3000", "20000");
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON);
    node_end(&f.engines[1]);
    node_go(&f.source);
    expect_failed_push(&f, "destination.heft.0.1");
    expect_engine(&f, 0, 1);
    start_engine(&f, 1); /* a new life: takes part from the next round */
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

static void source_killed_mid_transfer(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "768", "3000", "20000");
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON); /* some bytes are written */
    node_end(&f.source);
    await_idle(&f);
    expect_cause(&f, "source.heft.0.0, process ");
    expect_all(&f, 1);
    start_source(&f);
    push_ok(&f, 2);
    expect_all(&f, 2);
    stop(&f);
}

static void destination_stopped_past_its_deadline(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "768", "3000", "4000");
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON);
    node_kill(&f.engines[1], SIGSTOP);
    node_go(&f.source);
    expect_failed_push(&f, "destination.heft.0.1");
    expect_engine(&f, 0, 1);
    node_kill(&f.engines[1], SIGCONT);
    expect_engine(&f, 1, 1); /* it never knew */
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

/* It may go on writing when it is woken: into memory that nobody reads any more. The deadline of
 * the stage is the default, half an hour: it takes the contact time, and no longer. */
static void source_stopped_mid_transfer_is_fenced(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "768", "3000", "0");
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON);
    node_kill(&f.source, SIGSTOP);
    await_idle(&f); /* the round ends without it */
    expect_all(&f, 1);
    node_kill(&f.source, SIGCONT);
    node_go(&f.source);
    expect_failed_push(&f, "");
    expect_all(&f, 1);
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

/* A killed process is replaced at once; one that lives is not. */
static void live_process_keeps_its_place(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "64", "30000", "5000");
    push_ok(&f, 1);
    const char *args[] = { "subscriber", f.url, "0", "0", f.width, NULL };
    node_t twin = node_spawn(args);
    char name[32];
    (void)snprintf(name, sizeof name, ":%d (", (int)f.engines[0].pid);
    const char *line = node_expect(&twin, "error member destination.heft.0.0 is taken", SOON);
    assert_non_null(strstr(line, name));
    node_end(&twin);
    expect_all(&f, 1);
    node_end(&f.engines[0]);
    const int64_t before = heft__clock_mono_ns();
    start_engine(&f, 0);
    assert_true(heft__clock_mono_ns() - before < 10 * INT64_C(1000000000));
    push_ok(&f, 2);
    expect_all(&f, 2);
    stop(&f);
}

/* Claims of the operator, such as removed. */
static void claim(fleet_t *f, const char *id, const char *what)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *reply = NULL;
    char body[160];
    (void)snprintf(body, sizeof body, "{\"members\":[{\"id\":\"%s\",\"claim\":\"%s\"}]}", id, what);
    EXPECT_STATUS(heft_client_post(f->url, "/v1/recover", body, SOON, &reply, &err), HEFT_OK);
    heft_string_free(reply);
}

/* The contact time is 10 minutes: who waits for it hangs. Both engines are named, by the source
 * that finds nobody listening, and by rounds that begin afterwards. */
static void engines_killed_while_idle_are_named_at_once(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "64", "600000", "600000");
    push_ok(&f, 1);
    node_end(&f.engines[0]);
    node_end(&f.engines[1]);
    for (int i = 0; i < 2; i++) {
        node_send(&f.source, "push %d", 2 + i);
        const char *result = node_expect(&f.source, "pushed ", 30000);
        assert_int_equal(strncmp(result, "ERR_PEER", 8), 0);
        assert_non_null(strstr(result, "destination.heft.0."));
    }
    start_engine(&f, 0);
    node_send(&f.source, "push 4");
    const char *result = node_expect(&f.source, "pushed ", 30000);
    if (strstr(result, "destination.heft.0.1: its process has ended") == NULL) {
        fail_msg("%s", result);
    }
    start_engine(&f, 1);
    push_ok(&f, 5);
    expect_all(&f, 5);
    stop(&f);
}

/* With one engine of two replicas taken out, the other goes on. */
static void removal_heals_after_an_engine_was_killed(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "64", "600000", "600000");
    const char *args[] = { "subscriber", f.url, "1", "1", f.width, NULL };
    node_t replica = node_spawn(args);
    (void)node_expect(&replica, "ready", SOON);
    push_ok(&f, 1);
    node_end(&replica);
    node_send(&f.source, "push 2");
    const char *result = node_expect(&f.source, "pushed ", 30000);
    if (strncmp(result, "ERR_PEER", 8) != 0 || strstr(result, "destination.heft.1.1") == NULL) {
        fail_msg("%s", result);
    }
    claim(&f, "destination.heft.1.1", "removed");
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

/* A source that came later has no connection to lose: it finds out when it attaches. */
static void a_new_source_finds_the_dead(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "64", "600000", "600000");
    node_end(&f.engines[1]);
    node_send(&f.source, "push 1");
    const char *result = node_expect(&f.source, "pushed ", 30000);
    if (strncmp(result, "ERR_PEER", 8) != 0 || strstr(result, "destination.heft.0.1") == NULL) {
        fail_msg("%s", result);
    }
    start_engine(&f, 1);
    push_ok(&f, 1);
    expect_all(&f, 1);
    stop(&f);
}

static void coordinator_killed_in_stage(void **state)
{
    (void)state;
    fleet_t f;
    start(&f, "768", "3000", "20000");
    push_ok(&f, 1);
    char port[16];
    (void)snprintf(port, sizeof port, "%s", strrchr(f.url, ':') + 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON);
    node_end(&f.coordinator);
    node_go(&f.source);
    expect_failed_push(&f, "");
    expect_all(&f, 1); /* engines go on serving without it */
    start_coordinator(&f, port);
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

/* Fifty pushes: memory of neither side grows. */
static void rss_is_flat_over_pushes(void **state)
{
    (void)state;
    fleet_t f;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer keeps freed memory\n");
    skip();
#endif
    start(&f, "256", "5000", "5000");
    for (int version = 1; version <= 10; version++) {
        push_ok(&f, version);
    }
    int64_t source = node_rss(&f.source);
    int64_t engine = node_rss(&f.engines[0]);
    for (int version = 11; version <= 60; version++) {
        push_ok(&f, version);
    }
    expect_all(&f, 60);
    int64_t slack = 2 << 20;
    assert_true(node_rss(&f.source) <= source + slack);
    assert_true(node_rss(&f.engines[0]) <= engine + slack);
    stop(&f);
}

/* Resident bytes of engine 0 after a few pushes; of which its parameters are the same in each mode.
 */
static int64_t engine_rss(bool in_place)
{
    fleet_t f;
    start_as(&f, "1024", "5000", "5000", in_place);
    for (int version = 1; version <= 3; version++) {
        push_ok(&f, version);
    }
    expect_all(&f, 3);
    const int64_t rss = node_rss(&f.engines[0]);
    stop(&f);
    return rss;
}

/* Staged: parameters twice. In place: parameters, and a buffer as large as the largest of them. */
static void memory_bounds_of_both_modes(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer keeps freed memory\n");
    skip();
#endif
    fm_model_t model;
    fm_side_t params;
    int64_t sum = 0;
    int64_t largest = 0;
    fm_model_init(&model, 1024);
    fm_params_init(&model, &params);
    for (uint32_t i = 0; i < params.n; i++) {
        sum += params.bytes[i];
        largest = heft__max_i64(largest, params.bytes[i]);
    }
    fm_side_fini(&params);
    fm_model_fini(&model);
    const int64_t staged = engine_rss(false);
    const int64_t in_place = engine_rss(true);
    print_message("parameters %lld, largest %lld; resident: staged %lld, in place %lld\n",
                  (long long)sum, (long long)largest, (long long)staged, (long long)in_place);
    const int64_t slack = 2 << 20;
    assert_true(staged - in_place <= sum - largest + slack);
    assert_true(staged - in_place >= sum - largest - slack);
}

/* In place there is no way back: what was being written is out of service until it is refilled. */
static void refill_all(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (int rank = 0; rank < N_ENGINES; rank++) { /* they are one engine: none serves */
        node_send(&f->engines[rank], "check");
        assert_non_null(strstr(node_expect(&f->engines[rank], "state ", SOON), "serving=0"));
    }
    const char *claims = "{\"members\":[{\"id\":\"destination.heft.0.0\",\"claim\":\"refill\"},"
                         "{\"id\":\"destination.heft.0.1\",\"claim\":\"refill\"}]}";
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(40000000000);
    heft_status_t status = HEFT_ERR_STATE;
    while (status != HEFT_OK && heft__clock_mono_ns() < deadline) {
        char *reply = NULL; /* they say so when they have given up, and fenced */
        status = heft_client_post(f->url, "/v1/recover", claims, SOON, &reply, &err);
        heft_string_free(reply);
        struct timespec pause = { .tv_nsec = 100000000 };
        (void)nanosleep(&pause, NULL);
    }
    EXPECT_STATUS(status, HEFT_OK);
}

static void in_place_source_killed_mid_flip(void **state)
{
    (void)state;
    fleet_t f;
    start_as(&f, "768", "3000", "20000", true);
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON); /* inside the flip of one of them */
    node_end(&f.source);
    start_source(&f);
    refill_all(&f);
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

/* It lives, and may write when it is woken. The deadlines are the defaults, more than half an hour:
 * it takes the contact time, and no longer. */
/* The source has been heard again, and has let go of the round that it slept through. */
static void await_source_free(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t deadline = heft__clock_mono_ns() + INT64_C(30000000000);
    bool is_free = false;
    while (!is_free) {
        char *text = NULL;
        assert_true(heft__clock_mono_ns() < deadline);
        EXPECT_STATUS(heft_client_get(f->url, "/v1/status", SOON, &text, &err), HEFT_OK);
        json_t *root = json_loads(text, 0, NULL);
        size_t i;
        json_t *m;
        json_array_foreach(json_object_get(root, "members"), i, m)
        {
            if (strcmp(json_string_value(json_object_get(m, "role")), "source") == 0) {
                is_free = strcmp(json_string_value(json_object_get(m, "contact")), "ok") == 0 &&
                          strcmp(json_string_value(json_object_get(m, "state")), "idle") == 0 &&
                          !json_is_true(json_object_get(m, "excluded"));
            }
        }
        json_decref(root);
        heft_string_free(text);
    }
}

static void in_place_source_stopped_mid_flip(void **state)
{
    (void)state;
    fleet_t f;
    start_as(&f, "768", "3000", "0", true);
    push_ok(&f, 1);
    node_send(&f.source, "slow 2");
    (void)node_expect(&f.source, "progress ", SOON);
    node_kill(&f.source, SIGSTOP);
    refill_all(&f);
    await_idle(&f);
    node_kill(&f.source, SIGCONT);
    node_go(&f.source);
    /* It was decided, and its destinations have been claimed for refilling: by the time the source
     * asks, it may count as committed, with nobody in service. */
    (void)node_expect(&f.source, "pushed ", 30000);
    await_source_free(&f);
    push_ok(&f, 3);
    expect_all(&f, 3);
    stop(&f);
}

int main(int argc, char **argv)
{
    node_main_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_push_versions),
        cmocka_unit_test(destination_killed_in_stage),
        cmocka_unit_test(source_killed_mid_transfer),
        cmocka_unit_test(destination_stopped_past_its_deadline),
        cmocka_unit_test(source_stopped_mid_transfer_is_fenced),
        cmocka_unit_test(live_process_keeps_its_place),
        cmocka_unit_test(engines_killed_while_idle_are_named_at_once),
        cmocka_unit_test(removal_heals_after_an_engine_was_killed),
        cmocka_unit_test(a_new_source_finds_the_dead),
        cmocka_unit_test(coordinator_killed_in_stage),
        cmocka_unit_test(rss_is_flat_over_pushes),
        cmocka_unit_test(memory_bounds_of_both_modes),
        cmocka_unit_test(in_place_source_killed_mid_flip),
        cmocka_unit_test(in_place_source_stopped_mid_flip),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
