/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that speak the wire protocol to a real coordinator over loopback, one thread each. No
 * weights move: the work of a phase is done by saying so, or fails when the test wants it to.
 */
#ifndef HTTP_FLEET_H
#define HTTP_FLEET_H

#include <pthread.h>

#include "heft_test.h"
#include "round_sim.h"
#include "sync/sync.h"

#define FLEET_WAIT_NS (60 * INT64_C(1000000000))

/* A coordinator alone, for requests that the test makes itself. */
typedef struct env {
    heft_coordinator_t *c;
    const char *url;
    uint16_t port;
} env_t;

env_t *env_start(const heft_coordinator_opts_t *opts);
/* Nothing may be allocated any more. */
void env_stop(env_t *e);
int env_set_up(void **state);
int env_tear_down(void **state);
#define ENV_TEST(f) cmocka_unit_test_setup_teardown(f, env_set_up, env_tear_down)

typedef struct fleet_member {
    /* what the test sets before the member starts, or under the lock */
    const char *url;
    uint32_t replica, rank;
    heft__phase_t fail_phase; /* report `fail_result` instead of ok, once */
    heft__result_t fail_result;
    heft__phase_t hold_phase; /* do not finish this phase until it is cleared */
    heft__phase_t die_phase;  /* stop without a word when this is ordered */
    bool other_plan;          /* its plan digest differs from what the source computes */
    const char *transport;
    int64_t part[3];  /* of a source: rows [0] to [0] + [1] of "w", which has [2]; else all of a
                       * tensor of its own */
    uint32_t copy;    /* replica of that part */
    const char *made; /* attribute framework; NULL: none */
    /* what the test reads under the lock */
    char sources[HEFT__DIGEST_SIZE]; /* of the last preflight */
    uint32_t n_sources;              /* of them, each with its manifest among the order's objects */
    sim_t sim;
    char id[HEFT__ID_SIZE];
    char incarnation[HEFT__INCARNATION_SIZE];
    int64_t epoch;
    uint32_t n_orders[HEFT__N_PHASES]; /* taken in */
    uint32_t n_works[HEFT__N_PHASES];  /* done */
    bool bound, dead;
    /* its own */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool stop;
    heft__http_t *http;
    heft__report_t extra; /* digests reported along */
    heft__deadlines_t unused;
} fleet_member_t;

/* Register, bind and follow orders. role in sim.role. */
void fleet_member_start(fleet_member_t *m, const char *url, heft__role_t role, uint32_t replica,
                        uint32_t rank);
void fleet_member_stop(fleet_member_t *m);
void fleet_member_release(fleet_member_t *m); /* clear hold_phase */
/* Wait until the member has been bound, has taken in an order, ... ; fails the test after 60 s. */
void fleet_await_bound(fleet_member_t *m);
void fleet_await_order(fleet_member_t *m, heft__phase_t target);
sim_t fleet_member_get(fleet_member_t *m);

/* One request with a JSON body; the reply is freed by the caller (heft__free). Returns the HTTP
 * code. */
int fleet_request(const char *url, const char *method, const char *path, const char *body,
                  char **reply_out);
/* Begin, wait for the end, and return the result's JSON; fails the test when begin is refused. */
char *fleet_push(const char *url, int64_t version, const char *key);
char *fleet_await_round(const char *url, const char *round);
/* Until the coordinator knows one source. */
void fleet_await_source(const char *url);
/* The source digest that members report in prepare. */
void fleet_set_source_digest(const char *digest);

#endif
