/* SPDX-License-Identifier: Apache-2.0 */
/* The publisher's own state; for publisher.c and publisher_phases.c, and tests that need another
 * transport. */
#ifndef HEFT_SYNC_PUBLISHER_PRIVATE_H
#define HEFT_SYNC_PUBLISHER_PRIVATE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "heft/sync.h"
#include "sync/fleet.h"
#include "sync/member.h"
#include "sync/offer.h"

struct heft_publisher {
    /* Constant after create. */
    const heft_manifest_t *manifest;
    const void *const *data;
    uint32_t n_tensors;
    uint32_t n_threads;
    uint32_t deadline_ms;
    uint64_t max_bytes_per_s; /* 0: no limit */
    bool begins;              /* its push begins a round; else it joins one */
    uint32_t n_ranks;         /* of the job; 0: not said */
    char job[HEFT__JOB_SIZE];
    heft__offer_t offer;
    int64_t *sizes;
    heft__member_t *member;

    /* The worker's thread alone. */
    heft__fleet_t fleet;
    int64_t *sizes_sent;    /* of the tensors that are its to send, 0 of the others */
    bool *is_own;           /* those by which a version is identified; known after preflight */
    uint64_t *digests;      /* of these, as they were prepared */
    uint64_t *again;        /* and as they are after they were sent */
    heft__round_id_t round; /* being sent */
    heft__blame_t blame;    /* why the run was stopped */
    heft_error_t stopped;
    int64_t checked_mono_ns;
    int64_t run_mono_ns; /* when the run in progress began */

    /* Guarded by lock. */
    pthread_mutex_t lock;
    pthread_t worker;
    bool has_worker;
    bool stop;                  /* nothing more is sent; orders are still obeyed */
    bool quit;                  /* the worker ends */
    pthread_cond_t changed;     /* is_reading */
    int64_t push_version;       /* 0: no push is in progress */
    bool is_reading;            /* the worker reads the caller's tensors; a push outlasts that */
    heft__round_id_t given_up;  /* the last round that a push did not follow to its end */
    int64_t abandoned;          /* version of a push that may have begun a round unknown to it */
    heft__round_id_t met_round; /* the last round of a push that the worker has met */
    int64_t met_version;        /* and its version */

    atomic_bool is_interrupted; /* heft_publisher_interrupt; taken back by the push that ends */

    /* The thread that pushes alone. */
    heft__round_id_t joined;  /* the last round that a push of another rank was followed in */
    heft__round_id_t earlier; /* the newest round from before this source was registered */
    heft__round_id_t refused; /* the newest refusal that a push here was told, or from before */
    bool knows_earlier;

    /* Statistics of the worker, for tests; read while no push is in progress. */
    int64_t stage_allocs; /* allocations of the process while the last stage moved bytes */
};

/* The same as heft_publisher_create over other transports; n_transports 0: those of the options. */
HEFT_MUST_CHECK heft_status_t heft__publisher_create_over(
    heft__transport_t *const *transports, uint32_t n_transports, const heft_publisher_opts_t *opts,
    const heft_manifest_t *manifest, const void *const *data, heft_publisher_t **publisher_out,
    heft_error_t *err);

/* Carry out one order, on the worker's thread; every outcome goes into the report. */
void heft__publisher_obey(heft_publisher_t *pub, const heft__order_t *order);
/* Inside a flip: send to the peers that receive in place, part by part. Their digests are in the
 * families afterwards, and `was_sent` of their links is set. */
HEFT_MUST_CHECK heft_status_t heft__publisher_send_in_place(heft_publisher_t *pub,
                                                            const heft__order_t *order,
                                                            heft_error_t *err);
/* HEFT_OK while it makes sense to go on sending; else the blamed peer is noted. */
HEFT_MUST_CHECK heft_status_t heft__publisher_look_around(heft_publisher_t *pub, heft_error_t *err);

/* ---- publisher_stream.c: chunks that follow a run ---- */

typedef struct heft__stream heft__stream_t;

/* Begin to send the staged links that need chunks what the families' runs will write from now on.
 * *stream_out is NULL where there are none. */
HEFT_MUST_CHECK heft_status_t heft__stream_start(heft_publisher_t *pub, const heft__order_t *order,
                                                 int64_t deadline_mono_ns,
                                                 heft__stream_t **stream_out, heft_error_t *err);
/* status: of the runs, with *err as theirs. Where it is HEFT_OK, waits until everything has been
 * sent and judged. Frees the stream (NULL is fine); nothing is under way afterwards, or the link
 * `is_unknown`. */
HEFT_MUST_CHECK heft_status_t heft__stream_finish(heft__stream_t *stream, heft_status_t status,
                                                  heft__chunk_counts_t *counts, heft_error_t *err);
/* heft_progress_t of the runs: looks at receivers and orders, non-zero stops the run. */
int heft__publisher_on_progress(void *arg, int64_t done_bytes, int64_t total_bytes);
/* The worker has an order of a round: pushes of ranks that begin none wait for that. */
void heft__publisher_meet(heft_publisher_t *pub, const heft__order_t *order);
/* HEFT_ERR_CANCELED: the push of `version` was interrupted, and nothing has begun. */
HEFT_MUST_CHECK heft_status_t heft__publisher_check_interrupt(const heft_publisher_t *pub,
                                                              int64_t version, heft_error_t *err);
/* The round that a push of a rank that begins none is part of; waits for it until the deadline. */
HEFT_MUST_CHECK heft_status_t heft__publisher_await_round(heft_publisher_t *pub, heft__http_t *http,
                                                          int64_t version,
                                                          heft__round_id_t *round_out,
                                                          heft_error_t *err);
/* How many source ranks of this job are there, and ": rank 1, 3 missing", where numbers tell. */
HEFT_MUST_CHECK heft_status_t heft__publisher_find_ranks(const heft_publisher_t *pub,
                                                         heft__http_t *http, uint32_t *n_out,
                                                         char *missing, size_t size,
                                                         heft_error_t *err);
/* Before registering: rounds up to here are none of its pushes. */
void heft__publisher_note_rounds(heft_publisher_t *pub);
HEFT_MUST_CHECK heft_status_t heft__publisher_get(const heft_publisher_t *pub, heft__http_t *http,
                                                  const char *path, json_t **root_out,
                                                  heft_error_t *err);
/* Between two looks at something that is waited for. */
void heft__publisher_rest(void);
/* Wait until a push of this version is in progress; false when none began within the deadline of
 * pushes, the round was called off before, or its push has given it up. */
bool heft__publisher_await_push(heft_publisher_t *pub, const heft__order_t *order);
/* The worker may read the caller's tensors from here on, until heft__publisher_leave; false: the
 * push is over. */
bool heft__publisher_enter(heft_publisher_t *pub, const heft__order_t *order);
void heft__publisher_leave(heft_publisher_t *pub);
/* The push that a transfer belongs to has been given up, or the publisher is being destroyed. */
bool heft__publisher_is_given_up(heft_publisher_t *pub, heft__round_id_t round);

#endif
