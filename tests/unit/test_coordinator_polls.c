/* SPDX-License-Identifier: Apache-2.0 */
/* Long polls: an order is given, given again, and waited for; one poll ends another, and a stop
 * all. */
#include "http_requests.h"

#include <pthread.h>

#include "sync/coordinator.h"

typedef struct poller {
    const env_t *e;
    char body[1024];
    int code;
    char *reply;
} poller_t;

static void *run_poller(void *arg)
{
    poller_t *p = arg;
    p->code =
        fleet_request(p->e->url, "POST", "/v1/members/source.heft.0.0/poll", p->body, &p->reply);
    return NULL;
}

static void start_poll(poller_t *p, const env_t *e, int64_t sequence, int64_t order,
                       pthread_t *thread)
{
    memset(p, 0, sizeof *p);
    p->e = e;
    (void)snprintf(p->body, sizeof p->body,
                   "{\"incarnation\":\"" INC_A "\",\"epoch\":%lld,\"sequence\":%lld,"
                   "\"order\":%lld,\"wait_ms\":9000,\"state\":\"idle\",\"condition\":\"ok\","
                   "\"live_version\":0,\"serving\":false}",
                   (long long)status_int(e, "epoch"), (long long)sequence, (long long)order);
    assert_int_equal(pthread_create(thread, NULL, run_poller, p), 0);
}

static void bind_source(const env_t *e)
{
    char digest[HEFT__DIGEST_SIZE];
    char body[512];
    char *text = manifest_text("source");
    put(e, text, digest);
    heft_string_free(text);
    (void)snprintf(body, sizeof body, "{\"incarnation\":\"" INC_A "\",\"manifest\":\"%s\"}",
                   digest);
    expect(e, "PUT", "/v1/members/source.heft.0.0/manifest", body, 200, NULL);
}

static void bind_destination(const env_t *e)
{
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE];
    char endpoint[HEFT__DIGEST_SIZE];
    char body[512];
    char *text = manifest_text("destination");
    put(e, text, manifest);
    heft_string_free(text);
    put(e, CONTRACT("0"), contract);
    put(e, "{\"transport\":\"shm\"}", endpoint);
    bind_text(body, sizeof body, INC_B, manifest, contract, endpoint);
    expect(e, "PUT", "/v1/members/destination.heft.0.0/manifest", body, 200, NULL);
}

static void long_poll_gets_the_order_and_gets_it_again(void **state)
{
    const env_t *e = *state;
    char round[HEFT__ROUND_TEXT_SIZE];
    poller_t first;
    poller_t second;
    pthread_t thread;
    enroll(e, "source", 0, INC_A);
    enroll(e, "destination", 0, INC_B);
    bind_source(e);
    bind_destination(e);
    start_poll(&first, e, 1, 0, &thread);
    begin(e, "{\"version\":1,\"key\":\"k\"}", round);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(first.code, 200);
    heft_error_t err = HEFT_ERROR_INIT;
    heft__order_t order;
    EXPECT_STATUS(heft__order_decode(first.reply, strlen(first.reply), &order, &err), HEFT_OK);
    assert_int_equal(order.target, HEFT__PHASE_PREFLIGHT);
    assert_int_equal(order.version, 1);
    assert_int_equal(order.n_peers, 1);
    assert_string_equal(order.peers[0].id, "destination.heft.0.0");
    assert_true(order.peers[0].moves);
    /* manifest, contract and endpoint of the peer; the list of sources, and its one manifest */
    assert_int_equal(order.n_objects, 5);
    assert_true(heft__is_hex(order.sources, 64));
    assert_true(order.left_ms > 0 && order.left_ms <= 60000);
    /* the reply was lost: the member has not taken the order in, and gets the same one */
    start_poll(&second, e, 2, 0, &thread);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(second.code, 200);
    heft__order_t again;
    EXPECT_STATUS(heft__order_decode(second.reply, strlen(second.reply), &again, &err), HEFT_OK);
    assert_int_equal(again.sequence, order.sequence);
    assert_int_equal(again.target, order.target);
    /* once taken in, it waits for the next */
    heft__free(second.reply);
    start_poll(&second, e, 3, order.sequence, &thread);
    char path[128];
    (void)snprintf(path, sizeof path, "/v1/rounds/%s/cancel", round);
    expect(e, "POST", path, NULL, 202, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(second.code, 200);
    heft__order_fini(&again);
    EXPECT_STATUS(heft__order_decode(second.reply, strlen(second.reply), &again, &err), HEFT_OK);
    assert_int_equal(again.target, HEFT__PHASE_ABORT);
    heft__order_fini(&again);
    heft__order_fini(&order);
    heft__free(first.reply);
    heft__free(second.reply);
}

static void a_later_poll_ends_an_earlier_one(void **state)
{
    const env_t *e = *state;
    poller_t first;
    poller_t second;
    pthread_t a;
    pthread_t b;
    enroll(e, "source", 0, INC_A);
    start_poll(&first, e, 1, 0, &a);
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    /* the second poll must come second: the member's report number shows that the first is in */
    for (int64_t seen = 0; seen == 0 && heft__clock_mono_ns() < limit;) {
        char *text = NULL;
        assert_int_equal(fleet_request(e->url, "GET", "/metrics", NULL, &text), 200);
        seen = strstr(text, "heft_calls_waiting 1\n") != NULL;
        heft__free(text);
    }
    start_poll(&second, e, 2, 0, &b);
    assert_int_equal(pthread_join(a, NULL), 0);
    assert_int_equal(first.code, 204);
    /* leaving ends the other */
    expect(e, "DELETE", "/v1/members/source.heft.0.0?incarnation=" INC_A, NULL, 200, NULL);
    assert_int_equal(pthread_join(b, NULL), 0);
    assert_true(second.code == 204 || second.code == 410);
    heft__free(first.reply);
    heft__free(second.reply);
}

/* A poll that is still waiting when the coordinator stops is answered. */
static void stop_answers_what_waits(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    env_t e = { .c = NULL };
    poller_t p;
    pthread_t thread;
    EXPECT_STATUS(heft_coordinator_start(NULL, &e.c, &err), HEFT_OK);
    e.url = heft_coordinator_get_url(e.c);
    enroll(&e, "source", 0, INC_A);
    start_poll(&p, &e, 1, 0, &thread);
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    for (int64_t seen = 0; seen == 0 && heft__clock_mono_ns() < limit;) {
        char *text = NULL;
        assert_int_equal(fleet_request(e.url, "GET", "/metrics", NULL, &text), 200);
        seen = strstr(text, "heft_calls_waiting 1\n") != NULL;
        heft__free(text);
    }
    heft_coordinator_stop(e.c);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(p.code, 503);
    heft__free(p.reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENV_TEST(long_poll_gets_the_order_and_gets_it_again),
        ENV_TEST(a_later_poll_ends_an_earlier_one),
        cmocka_unit_test(stop_answers_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
