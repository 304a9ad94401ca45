/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole fleet in one process: coordinator, one source, engines with a polling thread each, and in
 * each engine a reader that checks, while it is allowed to, that every parameter has the digest of
 * the version that is said to be live.
 */
#ifndef PUSH_FLEET_H
#define PUSH_FLEET_H

#include "fleet_model.h"
#include "heft_test.h"
#include "sync/publisher_private.h"
#include "sync/subscriber_private.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PF_MAX_ENGINES = 8, PF_MAX_SOURCES = 8 };

struct pf_engine;
typedef void (*pf_hook_t)(struct pf_engine *engine);

typedef struct pf_engine {
    struct pf_fleet *fleet;
    heft_subscriber_t *sub;
    heft_hooks_t hooks;
    fm_side_t params;
    void *pointers[FM_PARAMS]; /* what the subscriber is given */
    uint32_t replica, rank;
    pthread_t poller;
    pthread_t reader;
    atomic_bool stop;
    pthread_mutex_t gate; /* held by the reader while it reads, and by the engine while paused */
    bool is_paused;       /* by the poller alone */
    atomic_int n_reads;   /* passes of the reader that saw a live version */
    atomic_int n_torn;    /* of these, with a digest that was not the version's */
    atomic_int n_paused, n_flipped, n_resumed;
    atomic_int fail_pause, fail_flipped, fail_resume; /* this many calls from now on */
    atomic_int shift_in_pause; /* this many pauses move a parameter, until pf_unshift */
    _Atomic int64_t resumed_version;
    atomic_int last_status; /* of the poller */
    /* NULL, or called inside the hook, on the poller's thread, once */
    _Atomic pf_hook_t in_pause, in_flipped;
} pf_engine_t;

/* What a rank of the trainer holds of one tensor, as a box in rows and columns (of a vector: rows).
 */
typedef struct pf_box {
    int64_t begin[2], end[2]; /* as given: all of it */
    uint32_t replica;
    bool is_named; /* under a name of its own */
} pf_box_t;
/* false: nothing. */
typedef bool (*pf_hold_t)(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);

/* Rows, as FSDP deals them; the last ranks may have none. */
bool pf_hold_rows(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);
/* Columns; vectors as rows. */
bool pf_hold_columns(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);
/* Two copies, each split by rows over half of the ranks. */
bool pf_hold_replicas(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);
/* Each rank has some of the tensors, whole. */
bool pf_hold_stages(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);
/* Each rank has everything. */
bool pf_hold_copies(uint32_t rank, uint32_t n_ranks, uint32_t tensor, pf_box_t *box);

/* A rank of the trainer. */
typedef struct pf_source {
    struct pf_fleet *fleet;
    uint32_t rank;
    heft_manifest_t *manifest;
    uint32_t n;
    void *data[FM_SOURCES + 1]; /* in the order of the manifest */
    uint32_t tensors[FM_SOURCES + 1];
    pf_box_t boxes[FM_SOURCES + 1];
    heft_publisher_t *pub;
    pthread_t thread;
    int64_t version; /* being pushed */
    heft_status_t status;
    heft_error_t err;
    heft_push_result_t result;
} pf_source_t;

typedef struct pf_opts {
    int64_t width;
    heft__loop_t *loop;
    uint32_t n_replicas;
    uint32_t n_threads;
    uint32_t contact_ms, phase_ms; /* 0: ample */
    uint32_t deadline_ms;
    const char *state_file; /* of the coordinator; NULL: none */
    bool no_feed;           /* who joins late waits for the next push */
    const char *relay;      /* NULL: the setting */
    uint32_t relay_fan_out;
    bool has_twin;      /* fm_model_add_twin */
    uint32_t in_place;  /* bit r: replica r receives in place, with the smallest buffer */
    uint32_t n_sources; /* 0: one, which holds everything */
    pf_hold_t hold;     /* of several */
} pf_opts_t;

typedef struct pf_fleet {
    fm_model_t model;
    heft_coordinator_t *coordinator;
    heft__loop_t *loop;    /* NULL: shm, or what HEFT_TEST_TRANSPORT says */
    fm_side_t source;      /* whole */
    heft_publisher_t *pub; /* of rank 0 */
    pf_source_t sources[PF_MAX_SOURCES];
    uint32_t n_sources; /* 0: fleet.source is pushed as it is */
    heft__transport_t *transport;
    heft__ucx_t *ucx; /* NULL: not used */
    pf_engine_t engines[PF_MAX_ENGINES];
    uint32_t n_engines;
    uint32_t in_place;
    pf_opts_t opts;
    int n_seen, n_unseen; /* for the test's own use */
} pf_fleet_t;

void pf_start(pf_fleet_t *fleet, const pf_opts_t *opts);
void pf_stop(pf_fleet_t *fleet);
/* End the coordinator and start another one at the same place, from the same state file. */
void pf_restart_coordinator(pf_fleet_t *fleet);
/* Another engine; joins while the fleet runs. */
pf_engine_t *pf_add_engine(pf_fleet_t *fleet, uint32_t replica, uint32_t rank);
void pf_remove_engine(pf_fleet_t *fleet, pf_engine_t *engine);

/* One of several sources leaves, or comes (back). */
void pf_remove_source(pf_source_t *source);
void pf_add_source(pf_fleet_t *fleet, uint32_t rank);
/* Its part of this version, from the fleet's. */
void pf_cut_source(pf_source_t *source);
/* A push on a thread of its own. */
void pf_start_push(pf_source_t *source, int64_t version);
void pf_join_push(pf_source_t *source);

/* Fill the source with `version` and push it; several push together, and get one outcome. */
heft_status_t pf_push(pf_fleet_t *fleet, int64_t version, heft_push_result_t *result,
                      heft_error_t *err);
/* Every engine serves exactly this version, element by element; 0: none serves. */
void pf_expect_version(pf_fleet_t *fleet, int64_t version);
/* Put the parameter back. */
void pf_unshift(pf_engine_t *engine);
/* Wait (5 s) until *counter >= value. */
void pf_await(atomic_int *counter, int value);
void pf_await_serving(pf_engine_t *engine);
/* No reader has ever seen bytes that were not of its version; each has read something if `some`. */
void pf_expect_untorn(pf_fleet_t *fleet, bool some);

#endif
