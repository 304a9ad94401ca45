/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over HTTP: a real coordinator with one source and two destinations that speak the wire
 * protocol. */
#ifndef ROUNDS_FLEET_H
#define ROUNDS_FLEET_H

#include "http_fleet.h"

#include <jansson.h>
#include <time.h>

typedef struct fleet {
    heft_coordinator_t *coordinator;
    const char *url;
    fleet_member_t source;
    fleet_member_t dest[2];
} fleet_t;

static inline heft_coordinator_opts_t quick_opts(void)
{
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.contact_ms = 3000;
    return opts;
}

static inline void fleet_start(fleet_t *f, const heft_coordinator_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    fleet_set_source_digest(SIM_DIGEST_NEW);
    EXPECT_STATUS(heft_coordinator_start(opts, &f->coordinator, &err), HEFT_OK);
    f->url = heft_coordinator_get_url(f->coordinator);
    fleet_member_start(&f->source, f->url, HEFT__ROLE_SOURCE, 0, 0);
    fleet_member_start(&f->dest[0], f->url, HEFT__ROLE_DESTINATION, 0, 0);
    fleet_member_start(&f->dest[1], f->url, HEFT__ROLE_DESTINATION, 0, 1);
    fleet_await_bound(&f->source);
    fleet_await_bound(&f->dest[0]);
    fleet_await_bound(&f->dest[1]);
}

static inline void fleet_stop(fleet_t *f)
{
    fleet_member_stop(&f->source);
    fleet_member_stop(&f->dest[0]);
    fleet_member_stop(&f->dest[1]);
    heft_coordinator_stop(f->coordinator);
}

static inline fleet_t *fleet_new(void)
{
    fleet_t *f = calloc(1, sizeof *f);
    assert_non_null(f);
    return f;
}

/* Text of a key of the result, for comparisons; fails when it is not there. */
static inline void expect_text(const char *json, const char *key, const char *expected)
{
    json_t *root = json_loads(json, 0, NULL);
    const char *text = json_string_value(json_object_get(root, key));
    if (text == NULL || strcmp(text, expected) != 0) {
        fail_msg("%s is %s, expected %s: %s", key, text != NULL ? text : "(null)", expected, json);
    }
    json_decref(root);
}

static inline heft__outcome_t outcome_of(char *json)
{
    heft__outcome_t out;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__outcome_decode(json, strlen(json), &out, &err), HEFT_OK);
    heft__free(json);
    return out;
}

static inline void expect_outcome(const heft__outcome_t *out, const char *state)
{
    if (strcmp(out->state, state) != 0) {
        fail_msg("state %s, expected %s; cause %s: %s", out->state, state, out->cause_member,
                 out->cause.cause);
    }
}

/* Wait until a member's own state is as expected; its thread broadcasts each change. */
static inline void await_live(fleet_member_t *m, int64_t version, bool serving)
{
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    (void)pthread_mutex_lock(&m->lock);
    while (m->sim.live != version || m->sim.serving != serving) {
        if (heft__clock_mono_ns() > limit) {
            (void)pthread_mutex_unlock(&m->lock);
            fail_msg("live %lld serving %d", (long long)m->sim.live, m->sim.serving);
        }
        struct timespec ts;
        (void)clock_gettime(CLOCK_REALTIME, &ts);
        ts.tv_sec += 1;
        (void)pthread_cond_timedwait(&m->changed, &m->lock, &ts);
    }
    (void)pthread_mutex_unlock(&m->lock);
}

#endif
