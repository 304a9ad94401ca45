/* SPDX-License-Identifier: Apache-2.0 */
/* The subscriber's own state; for subscriber.c and subscriber_phases.c, and tests that need another
 * transport. */
#ifndef HEFT_SYNC_SUBSCRIBER_PRIVATE_H
#define HEFT_SYNC_SUBSCRIBER_PRIVATE_H

#include <pthread.h>

#include "heft/sync.h"
#include "sync/member.h"
#include "sync/staging.h"

struct heft_subscriber {
    /* Constant after create. */
    heft_hooks_t hooks;
    uint32_t rank;
    uint32_t n_threads;
    bool in_place;
    int64_t buffer_bytes; /* in place: wished for */
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;
    const heft_manifest_t *manifest;
    void *const *params;
    void **addresses; /* params as they were at create */
    heft__staging_t layout;
    heft__member_t *member;
    heft__window_t *window;

    /* The caller's thread alone. */
    heft_plan_t *plan; /* of this rank, for the sources in plan_key */
    char plan_key[HEFT__DIGEST_SIZE];
    int64_t *moved;      /* bytes of each parameter that the plan writes: all or 0 */
    const void **staged; /* where each parameter lies in staging, while it is verified */
    uint64_t *arrived;   /* digests of what is staged */
    uint64_t *expected;  /* from the sources, shares combined */
    uint64_t *measured;  /* live digests */
    int64_t pause_began_ns;
    int64_t stage_until_ns;      /* by then everything must have arrived */
    heft__round_id_t flip_round; /* of the last flip that was tried */

    /* Guarded by the member's lock: what refresh looks at while a transfer is on. */
    bool is_armed;
    uint32_t n_senders;     /* that will send in this round */
    int64_t failed_mono_ns; /* when one was first seen to have stopped early; 0: none */

    /* Guarded by lock. */
    pthread_mutex_t lock;
    int64_t version;
    bool is_serving;
    bool is_suspect;
    heft__round_id_t suspect_round; /* in which it became so: another one may write it anew */
    uint64_t *digests;              /* of the parameters at `version` */
    bool is_receiving;              /* in place: the caller's thread waits for `arrived_part` */
    pthread_cond_t arrived_part;
};

/* The same as heft_subscriber_create over another transport. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_create_over(
    heft__transport_t *transport, const heft_subscriber_opts_t *opts, const heft_recipe_t *recipe,
    const heft_bindings_t *bindings, const heft_manifest_t *manifest, void *const *params,
    heft_subscriber_t **subscriber_out, heft_error_t *err);

/*
 * In place, inside a flip: take the parameters in part by part and write them. expected[] holds the
 * sources' digests afterwards. On failure the parameters are a mixture; *stopped_out says whether
 * the transfer is known to be over.
 */
HEFT_MUST_CHECK heft_status_t heft__subscriber_receive(heft_subscriber_t *sub,
                                                       const heft__order_t *order,
                                                       bool *stopped_out, heft_error_t *err);
/* A transfer that has not ended by its deadline is fenced: no wait is for ever. */
void heft__subscriber_expire(heft_subscriber_t *sub);
/* Carry out one order; every outcome goes into the report. */
void heft__subscriber_obey(heft_subscriber_t *sub, const heft__order_t *order);
/* The endpoint of the window, as it is now, becomes an object to be bound. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_export(heft_subscriber_t *sub, heft_error_t *err);
/* Set whether the engine may serve, for everyone who asks. */
void heft__subscriber_set_serving(heft_subscriber_t *sub, bool is_serving);

#endif
