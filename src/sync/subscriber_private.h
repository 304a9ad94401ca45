/* SPDX-License-Identifier: Apache-2.0 */
/* The subscriber's own state; for subscriber*.c, and tests that need another transport. */
#ifndef HEFT_SYNC_SUBSCRIBER_PRIVATE_H
#define HEFT_SYNC_SUBSCRIBER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "heft/sync.h"
#include "sync/delivery.h"
#include "sync/inputs.h"
#include "sync/kernels.h"
#include "sync/mapping.h"
#include "sync/member.h"
#include "sync/offer.h"
#include "sync/home.h"
#include "sync/sources.h"
#include "sync/staging.h"

/* What a destination is made of, whichever way it was created. Borrowed. */
typedef struct heft__destination {
    const heft_recipe_t *recipe; /* with bindings; NULL: contract */
    const heft_bindings_t *bindings;
    const heft_contract_t *contract;
    const heft_manifest_t *manifest; /* NULL: the contract's */
    void *const *pointers;           /* of the parameters; NULL: params */
    const heft_param_t *params;
} heft__destination_t;

/* Of the parameters of a plan, what a round does with each. */
typedef struct heft__roles {
    bool *is_direct;   /* sent, compared, copied */
    bool *is_recorded; /* measured after `flipped`: the engine writes or changes it */
    bool *is_grouped;  /* direct, and the loader is given what it is made of */
    bool *is_watched;  /* has a digest: direct or recorded */
    bool *
        is_vouched; /* recorded, or made here of several sources: none of them can say its digest */
} heft__roles_t;

/* What is made of a plan, and room for what a round brings. Before the first plan: the layout. */
typedef struct heft__work {
    heft__sources_t sources;        /* what follows is made for these */
    heft_plan_t *plan;              /* of this rank */
    char digest[HEFT__DIGEST_SIZE]; /* what its sources compare it by */
    heft_routes_t *routes;
    heft__inputs_t inputs;
    heft__kernels_t kernels; /* what is run here */
    heft__staging_t layout;
    heft__roles_t roles;
    heft_input_t *load_inputs; /* what the loader is given; data are set when it is */
    uint32_t n_load_inputs;
    heft__mask_t *masks; /* of each entry: what rounds leave alone */
    uint8_t *scratch;    /* for the largest strided parameter with a mask; NULL: none */
    int64_t *moved;      /* bytes of each entry that count: all or 0 */
    const void **staged; /* where each entry lies in staging, while it is verified */
    uint64_t *arrived;   /* digests of what is staged */
    uint64_t *expected;  /* from the sources, shares combined */
} heft__work_t;

typedef struct heft__feed heft__feed_t;   /* sending to those that join late */
typedef struct heft__relay heft__relay_t; /* forwarding in a round */
typedef struct heft__sender_name heft__sender_name_t;

struct heft_subscriber {
    /* Constant after create. */
    heft_hooks_t hooks;
    uint32_t rank;
    uint32_t n_threads;
    bool in_place;
    int64_t buffer_bytes; /* in place: wished for */
    heft__destination_t destination;
    heft__mapping_t mapping;
    const heft_manifest_t *manifest;
    uint32_t n_params;
    heft__home_t *homes; /* live memory, as it was at create */
    heft__member_t *member;
    heft__window_t *window;
    heft__offer_t offer;

    /* The caller's thread alone. */
    heft__work_t work;
    uint8_t **cold;     /* of each parameter that the loader writes: its first contents */
    uint64_t *measured; /* live digests */
    bool *kept;         /* of each parameter true: the engine itself has brought the live version
                           into this layout; NULL: a round has */
    char live_plan[HEFT__DIGEST_SIZE]; /* digest of the plan that wrote the live version */
    int64_t pause_began_ns;
    int64_t stage_until_ns;      /* by then everything must have arrived */
    heft__round_id_t flip_round; /* of the last flip that was tried */

    bool is_fed;                    /* by another destination, which serves */
    char relayed_by[HEFT__ID_SIZE]; /* in this round; "": the sources send */
    heft__packing_t packing;        /* what the window expects, where bytes come in chunks */

    heft__feed_t *feed;   /* NULL: none; set with the member's lock held */
    heft__relay_t *relay; /* likewise */

    /* Guarded by the member's lock: what refresh looks at while a transfer is on. */
    bool is_armed;
    uint32_t n_senders;           /* that will send here in this round */
    heft__sender_name_t *senders; /* whom its order named; owned */
    uint32_t n_named;
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

/* heft_subscriber_create and heft_subscriber_create_contract over another transport; NULL: those of
 * the options. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_create_over(heft__transport_t *transport,
                                                           const heft_subscriber_opts_t *opts,
                                                           const heft__destination_t *destination,
                                                           heft_subscriber_t **subscriber_out,
                                                           heft_error_t *err);

/* ---- subscriber_make.c ---- */

/* manifest NULL: the contract's of this rank. */
HEFT_MUST_CHECK heft_status_t heft__destination_from_contract(
    const heft_contract_t *contract, const heft_manifest_t *manifest, const heft_param_t *params,
    uint32_t rank, heft__destination_t *out, heft_error_t *err);
/* Everything that needs nobody else, for the destination in sub: mapping, memory, plan. On failure
 * what was made is still there for heft__subscriber_fini_alone. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_build_alone(heft_subscriber_t *sub,
                                                           heft_error_t *err);
void heft__subscriber_fini_alone(heft_subscriber_t *sub);

/* ---- subscriber_plan.c ---- */

/* Plan for the source of this order, unless that has been done. Where staging had to grow for it
 * *moved_out is set: the endpoint has to be exported anew. On failure all is as it was. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_plan(heft_subscriber_t *sub,
                                                    const heft__order_t *order,
                                                    heft__problems_t *problems, bool *moved_out,
                                                    heft_error_t *err);
/* The same at creation, for the contract's source; there is no staging yet. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_plan_contract(heft_subscriber_t *sub,
                                                             heft_error_t *err);
/* The same for the sources of the last round, which stay with whoever has them: before its work is
 * finished it gives them up again. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_plan_again(heft_subscriber_t *next,
                                                          const heft__sources_t *sources,
                                                          heft_error_t *err);
void heft__subscriber_lend_sources(heft__work_t *work);
void heft__work_fini(heft__work_t *work);
/* Who sends what of it; a view, good until the work moves. */
heft__delivery_t heft__work_delivery(const heft__work_t *work);
/* Staging that is there and large enough for a layout. *moved_out: its endpoint is a new one, also
 * where it could not grow. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_provide_staging(heft_subscriber_t *sub,
                                                               const heft__staging_t *layout,
                                                               bool *moved_out, heft_error_t *err);
/* Staging memory for this layout. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_create_window(heft_subscriber_t *sub,
                                                             const heft__staging_t *layout,
                                                             heft_error_t *err);

/* ---- subscriber_live.c ---- */

/* The live memory as the caller describes it now. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_make_homes(heft_subscriber_t *sub,
                                                          heft_error_t *err);
const char *heft__subscriber_get_param_name(const heft_subscriber_t *sub, uint32_t i);
bool heft__subscriber_is_flagged(const heft_subscriber_t *sub, uint32_t i);
/* Addresses and strides are those of creation, and memory is mapped behind them. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_check_addresses(heft_subscriber_t *sub,
                                                               heft_error_t *err);
/* Remember what the parameters that the loader writes hold, those that are not remembered yet. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_keep_cold(heft_subscriber_t *sub,
                                                         const bool *is_loaded, heft_error_t *err);
/* The live parameters marked in `wanted` against these digests. All of them are measured. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_check_live(heft_subscriber_t *sub,
                                                          const bool *wanted,
                                                          const uint64_t *expected,
                                                          heft_error_t *err);
/* Before parameters [first, end) are copied from `memory`, where `first` lies: the bytes that
 * rounds leave alone become what they are in live memory. */
void heft__subscriber_keep_masked(heft_subscriber_t *sub, uint32_t first, uint32_t end,
                                  uint8_t *memory);
/* Inside a flip: the engine's loader writes its parameters. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_load(heft_subscriber_t *sub, int64_t version,
                                                    heft_error_t *err);
/* Take the digests of what the engine wrote or changed itself. */
void heft__subscriber_record(heft_subscriber_t *sub);
/* "the NAME hook failed at version 3: " and what it has to say. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_hook_error(heft_subscriber_t *sub, const char *name,
                                                          int64_t version, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__subscriber_digest_error(const heft_subscriber_t *sub,
                                                            uint32_t entry, const char *where,
                                                            uint64_t got, uint64_t expected,
                                                            heft_error_t *err);

/* ---- subscriber_in_place.c, subscriber_phases.c ---- */

/*
 * In place, inside a flip: take the parameters in part by part and write them. expected[] holds the
 * sources' digests afterwards. On failure the parameters are a mixture; *stopped_out says whether
 * the transfer is known to be over.
 */
HEFT_MUST_CHECK heft_status_t heft__subscriber_receive(heft_subscriber_t *sub,
                                                       const heft__order_t *order,
                                                       bool *stopped_out, heft_error_t *err);

/* ---- late join: this one stands in for a source (subscriber_feed.c) ---- */

/* The round of this order is one in which a destination stands in for the sources. */
bool heft__subscriber_is_fed_by(const heft__order_t *order);
/* The order is one of a round in which it sends. */
bool heft__subscriber_is_feeder(const heft_subscriber_t *sub, const heft__order_t *order);
/* What is live is what the source's bytes made of it: nothing that the engine's loader wrote, and
 * nothing that the engine changed afterwards. */
bool heft__subscriber_can_feed(const heft_subscriber_t *sub);
/* Others may be fed by this one, by the plan that it has now for these sources. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_offer(heft_subscriber_t *sub,
                                                     const heft__sources_t *sources,
                                                     heft_error_t *err);
/* Carry it out. */
void heft__subscriber_feed(heft_subscriber_t *sub, const heft__order_t *order);
/* Stop sending, if it is; its thread is gone afterwards. */
void heft__subscriber_end_feed(heft_subscriber_t *sub);
/* For refresh, with the member's lock held: how the sending went. */
void heft__subscriber_note_feed(heft_subscriber_t *sub, heft__report_t *report);
/* Attach to the staging of another one, with the transport that both have. `stop`: NULL, or calls
 * it off. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_attach(heft_subscriber_t *sub, const char *endpoint,
                                                      int64_t deadline_mono_ns, atomic_bool *stop,
                                                      heft__remote_t **remote_out,
                                                      heft_error_t *err);
/* After sending, which came to `status`: everything that was issued has ended, or *unknown_out is
 * set; else the receiver is told. What it comes to in all. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_end_sending(heft__remote_t *remote,
                                                           heft__token_t token,
                                                           int64_t deadline_mono_ns,
                                                           heft_status_t status, bool *unknown_out,
                                                           heft_error_t *err);

/* ---- this one forwards what it receives (subscriber_relay.c) ---- */

/* For the followers of this order, once the window knows what it expects; NULL: there are none. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_make_relay(heft_subscriber_t *sub,
                                                          const heft__order_t *order,
                                                          int64_t deadline_mono_ns,
                                                          heft__relay_t **relay_out,
                                                          heft_error_t *err);
/* Go ahead with sub->relay: the window is armed. */
void heft__subscriber_start_relay(heft_subscriber_t *sub);
/* Stop forwarding, if it does; its threads are gone afterwards. */
void heft__subscriber_end_relay(heft_subscriber_t *sub);
/* With the member's lock held: all followers have everything, or there are none. Adds to the
 * counters if so. */
bool heft__subscriber_has_forwarded(const heft_subscriber_t *sub, heft__counters_t *counters);
/* With the member's lock held: it cannot be forwarded to the one in `blamed`. */
bool heft__subscriber_has_failed_to_forward(const heft_subscriber_t *sub, int64_t now,
                                            heft_error_t *why, bool *unknown_out,
                                            char blamed[HEFT__ID_SIZE]);

/* ---- who sends (subscriber_senders.c) ---- */

/* Remember whom this order names as senders. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_meet_senders(heft_subscriber_t *sub,
                                                            const heft__order_t *order,
                                                            heft_error_t *err);
/* What is said of a sender that was lost, and of one that stopped early. Its id, or "": valid while
 * the order is; the caller's thread, or the member's lock held. */
const char *heft__subscriber_lost_error(const heft_subscriber_t *sub,
                                        const heft__window_state_t *state, heft_error_t *err);
const char *heft__subscriber_stopped_error(const heft_subscriber_t *sub,
                                           const heft__window_state_t *state, heft_error_t *err);

/* A transfer that has not ended by its deadline is fenced: no wait is for ever. */
void heft__subscriber_expire(heft_subscriber_t *sub);
/* Carry out one order; every outcome goes into the report. */
void heft__subscriber_obey(heft_subscriber_t *sub, const heft__order_t *order);
/* The endpoint of the window, as it is now, becomes an object to be bound. */
HEFT_MUST_CHECK heft_status_t heft__subscriber_export(heft_subscriber_t *sub, heft_error_t *err);
/* Set whether the engine may serve, for everyone who asks. */
void heft__subscriber_set_serving(heft_subscriber_t *sub, bool is_serving);

#endif
