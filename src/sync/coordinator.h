/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator, inside: the round machine with what it does not know (names, objects, reports,
 * results, the state file) and the HTTP service in front of it.
 *
 * Threads: one mutex guards everything. HTTP calls come from one thread; the ticker thread advances
 * time, writes the record (without the lock) and wakes calls that wait. Functions ending in _locked
 * need the lock.
 */
#ifndef HEFT_SYNC_COORDINATOR_H
#define HEFT_SYNC_COORDINATOR_H

#include <jansson.h>
#include <pthread.h>

#include "heft/sync.h"
#include "sync/objects.h"
#include "sync/record.h"
#include "sync/round.h"
#include "sync/wire.h"
#include "sync/wire_json.h"

#define HEFT__MAX_MEMBERS 4096
#define HEFT__MAX_RESULTS 32
#define HEFT__MAX_REPLACED 4
#define HEFT__MAX_REMOVED 64
#define HEFT__STORE_MAX_BYTES (256u << 20)

/* Whether destinations forward to each other; the setting `relay`. */
typedef enum heft__relaying {
    HEFT__RELAY_OFF = 0,
    HEFT__RELAY_AUTO = 1,
    HEFT__RELAY_ON = 2
} heft__relaying_t;

/* What the coordinator knows of the member in a slot of the machine. */
typedef struct heft__entry {
    char id[HEFT__ID_SIZE];
    heft__register_t identity;
    char replaced[HEFT__MAX_REPLACED][HEFT__INCARNATION_SIZE]; /* earlier lives, newest first */
    heft__bind_t bind;
    char *addresses; /* of its endpoint, one a line; owned; NULL: none */
    char family[HEFT__DIGEST_SIZE];
    uint32_t n_ranks;      /* of its contract */
    uint32_t feeder;       /* FEED: slot of the destination that feeds it; UINT32_MAX: none */
    uint32_t n_fed;        /* how often it was chosen to feed */
    bool failed_to_relay;  /* blamed for a round in which it forwarded, and none committed since */
    heft__report_t report; /* the last one */
    heft__problems_t problems; /* found by the coordinator in preflight */
    uint64_t poll;             /* number of its newest poll: an older one need not wait */
    int64_t gone_ns; /* when another process first found it without a connection; 0: it has one */
} heft__entry_t;

/* A round begun through this coordinator, for results and idempotency keys. */
typedef struct heft__result_slot {
    heft__round_id_t id; /* 0.0: free */
    heft__round_kind_t kind;
    char key[HEFT__KEY_SIZE];
    int64_t version;
    heft__carries_t carries;
    char began[32]; /* UTC */
    char state[24]; /* once ended */
    bool was_asked; /* somebody follows it */
    bool was_told;  /* its end, to whoever asked */
    int64_t ended_ns;
    char *json;    /* owned; NULL while it goes on */
    char *summary; /* the same without members and problems; owned */
} heft__result_slot_t;

/* Objects of parameter digests of one committed round, by source. */
typedef struct heft__digest_round {
    int64_t version;
    uint32_t n;
    char (*objects)[HEFT__DIGEST_SIZE]; /* owned */
} heft__digest_round_t;
#define HEFT__DIGEST_ROUNDS 4

/* ---- calls ---- */

typedef enum heft__wait_kind {
    HEFT__WAIT_NONE = 0,
    HEFT__WAIT_ORDER,  /* poll */
    HEFT__WAIT_STORED, /* begin */
    HEFT__WAIT_FED,    /* begin, while a feed comes to its end */
    HEFT__WAIT_ENDED   /* get round */
} heft__wait_kind_t;

/* One HTTP request and its reply. A call that must wait is handled again when it is ready. */
typedef struct heft__call {
    const char *method;
    const char *path;
    const char *wait; /* query arguments; NULL: absent */
    const char *incarnation;
    const char *body; /* NUL-terminated */
    size_t n_body;
    /* set by the handler */
    heft__wait_kind_t waits;
    uint32_t slot;
    uint64_t poll;
    int64_t order;
    heft__round_id_t round;
    int64_t deadline_ns;
    bool fresh;                           /* begin: the round is new */
    char speaker[HEFT__INCARNATION_SIZE]; /* the member that this connection belongs to; "": none */
    /* reply */
    int code;
    const char *content_type;
    char *reply; /* owned by the caller of the handler (heft__free); NULL: no body */
    size_t n_reply;
} heft__call_t;

typedef struct heft__server heft__server_t;

struct heft_coordinator {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC; wakes the ticker */
    pthread_t ticker;
    bool has_ticker;
    bool stopping;
    bool dirty; /* calls that wait must be looked at */
    heft__round_t round;
    heft__round_member_t *slots; /* HEFT__MAX_MEMBERS */
    heft__entry_t **entries;     /* by slot; NULL: free */
    heft__objects_t objects;
    int64_t sweep_ns;                                        /* of the next sweep */
    char removed[HEFT__MAX_REMOVED][HEFT__INCARNATION_SIZE]; /* lives taken out by the operator */
    uint32_t next_removed;
    heft__result_slot_t results[HEFT__MAX_RESULTS];
    uint32_t next_result;
    heft__refusal_t refusal;                           /* the last one; number.seq 0: none */
    heft__digest_round_t digests[HEFT__DIGEST_ROUNDS]; /* newest first */
    char sources[HEFT__DIGEST_SIZE];                   /* the list of the round's sources */
    char agreed[HEFT__DIGEST_SIZE];                    /* the last list of which all was right */
    heft__relaying_t relay;
    uint32_t relay_fan_out;
    bool no_feed;
    int64_t feed_at_ns;   /* not before */
    int64_t feed_hold_ns; /* nor before this: a push waits for the end of the last one */
    int64_t feed_backoff_ns;
    uint32_t poll_ms;
    uint32_t decide_ms;
    char *state_file; /* NULL: memory only */
    int lock_fd;
    uint32_t n_waiting;                         /* calls */
    uint64_t n_requests, n_errors, n_rounds[4]; /* committed, aborted, passed, in doubt */
    uint64_t n_feeds[2];                        /* committed, others */
    int64_t bytes_moved;
    int64_t phase_ns[HEFT__N_PHASES];        /* of ended rounds, in all */
    int64_t round_ns, downtime_ns;           /* of committed rounds, in all */
    int64_t last_round_ns, last_downtime_ns; /* of the last push */
    struct {                                 /* the last state that was logged */
        heft__round_id_t id;
        heft__round_state_t state;
        heft__phase_t phase;
        bool is_open;
    } noted;
    char *round_log;          /* file of JSON lines; NULL: none */
    heft__text_t round_lines; /* to be written */
    uint64_t n_log_errors;
    bool draining; /* no new rounds */
    heft__server_t *server;
    char url[80];
};

/* Path and method are ones of the protocol; else the reply is set (404, 405). Without the lock. */
bool heft__coordinator_has_route(heft__call_t *call);
/* Handle a call, first or again. Afterwards call->waits says whether it has a reply yet. */
void heft__coordinator_handle(heft_coordinator_t *c, heft__call_t *call);
/* The path needs no token. */
bool heft__coordinator_is_open_path(const char *path);
/* A call that waits can be handled again. */
bool heft__coordinator_is_ready_locked(const heft_coordinator_t *c, const heft__call_t *call,
                                       int64_t now_ns);

/* ---- replies ---- */

void heft__call_error(heft__call_t *call, int code, heft_status_t status, const char *fmt, ...)
    HEFT_PRINTF(4, 5);
/* The same from a filled error, with the code that goes with its status. */
void heft__call_fail(heft__call_t *call, const heft_error_t *err);
/* Take root (NULL: out of memory) as the body. */
void heft__call_json(heft__call_t *call, int code, json_t *root);
void heft__call_text(heft__call_t *call, int code, const char *content_type, char *text, size_t n);

/* ---- requests, by family ---- */

void heft__serve_register_locked(heft_coordinator_t *c, heft__call_t *call);
void heft__serve_bind_locked(heft_coordinator_t *c, heft__call_t *call, const char *id);
void heft__serve_poll_locked(heft_coordinator_t *c, heft__call_t *call, const char *id);
void heft__serve_leave_locked(heft_coordinator_t *c, heft__call_t *call, const char *id);
void heft__serve_put_object_locked(heft_coordinator_t *c, heft__call_t *call, const char *digest);
void heft__serve_get_object_locked(heft_coordinator_t *c, heft__call_t *call, const char *digest);
void heft__serve_begin_locked(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind);
void heft__serve_get_round_locked(heft_coordinator_t *c, heft__call_t *call, const char *id);
void heft__serve_cancel_locked(heft_coordinator_t *c, heft__call_t *call, const char *id);
void heft__serve_recover_locked(heft_coordinator_t *c, heft__call_t *call);
void heft__serve_status_locked(heft_coordinator_t *c, heft__call_t *call);
void heft__serve_rounds_locked(heft_coordinator_t *c, heft__call_t *call);
void heft__serve_metrics_locked(heft_coordinator_t *c, heft__call_t *call);
void heft__serve_page(heft_coordinator_t *c, heft__call_t *call);

/* ---- members ---- */

/* Slot of a member id; UINT32_MAX: unknown. */
uint32_t heft__coordinator_find_locked(const heft_coordinator_t *c, const char *id);
/* A free slot with an entry for this identity; UINT32_MAX with the error filled. */
uint32_t heft__coordinator_add_locked(heft_coordinator_t *c, const heft__register_t *identity,
                                      heft_error_t *err);
/* Number of the engine (job, replica) that the member in a slot belongs to. */
uint32_t heft__coordinator_engine_locked(const heft_coordinator_t *c, uint32_t slot);
void heft__coordinator_drop_locked(heft_coordinator_t *c, uint32_t slot);
/* Fill an order for a member; fini it. */
heft_status_t heft__coordinator_order_locked(heft_coordinator_t *c, uint32_t slot, int64_t now_ns,
                                             heft__order_t *out, heft_error_t *err);

/* ---- the round's demands ---- */

/* Do what the machine asks for (checks, results); writing is left to the ticker. */
void heft__coordinator_settle_locked(heft_coordinator_t *c, int64_t now_ns);
/* Make the list of sources, and put together what they hold. */
void heft__coordinator_check_sources_locked(heft_coordinator_t *c, int64_t now_ns);
/* The manifests that a list of sources in the store names; it is valid or not there. Freed by the
 * caller (heft__free); NULL: none, or no memory. */
heft__source_t *heft__coordinator_list_sources_locked(heft_coordinator_t *c, const char *digest,
                                                      uint32_t *n_out);
void heft__coordinator_check_plans_locked(heft_coordinator_t *c, int64_t now_ns);
void heft__coordinator_check_digest_locked(heft_coordinator_t *c, int64_t now_ns);
void heft__coordinator_keep_digests_locked(heft_coordinator_t *c);
/* Begin a feed if one is due; when to look again, if nothing else happens. */
int64_t heft__coordinator_feed_locked(heft_coordinator_t *c, int64_t now_ns);
/* A feed has ended. */
void heft__coordinator_note_feed_locked(heft_coordinator_t *c, int64_t now_ns);
/* Somebody new is here: do not wait any longer. */
void heft__coordinator_retry_feeds_locked(heft_coordinator_t *c);
/* Fail the round by the problems that its members have; their number. */
uint32_t heft__coordinator_count_problems_locked(const heft_coordinator_t *c, int32_t *first_out,
                                                 heft__wire_error_t *cause_out);
/* The addresses at which an endpoint is reached, one a line: an endpoint may have several, and a
 * text may list several ("a:1,b:2"). One that names none has its digest as its address. Freed by
 * the caller (heft__free); NULL: no memory. */
char *heft__endpoint_addresses(const char *text, size_t n, const char *digest);
/* The first address that both have, into out (NUL-terminated, cut); false: none. */
bool heft__endpoint_share_address(const char *a, const char *b, char out[80]);
bool heft__coordinator_have_common_transport(const heft__register_t *a, const heft__register_t *b);
/* The round has its outcome: keep its result. */
void heft__coordinator_end_locked(heft_coordinator_t *c);
void heft__coordinator_sweep_locked(heft_coordinator_t *c, int64_t before_ns);
/* The result of the present round (or the last one), as it stands; NULL: out of memory. */
json_t *heft__coordinator_result_locked(heft_coordinator_t *c, heft__result_slot_t *slot);
json_t *heft__coordinator_status_locked(heft_coordinator_t *c);
heft__result_slot_t *heft__coordinator_result_slot_locked(heft_coordinator_t *c,
                                                          heft__round_id_t id);
heft__result_slot_t *heft__coordinator_new_result_locked(heft_coordinator_t *c);
/* The round is the machine's present one and has no outcome yet. */
bool heft__coordinator_is_open_locked(const heft_coordinator_t *c, heft__round_id_t id);

/* A round has just ended, and who follows it has not been told yet: between two requests. */
bool heft__coordinator_owes_end_locked(const heft_coordinator_t *c, int64_t now_ns);

/* ---- relays ---- */

/* False: it is none of off, auto, on. */
bool heft__relay_parse(const char *text, heft__relaying_t *out);
/* Both sides agree on plans: choose who forwards to whom in this round, if that is wanted. */
void heft__coordinator_relay_locked(heft_coordinator_t *c);
/* The round has ended: who is to blame for it does not forward in the next one. */
void heft__coordinator_judge_relays_locked(heft_coordinator_t *c);

/* ---- what it tells on its own ---- */

/* Log that the round has gone on, if it has. */
void heft__coordinator_note_locked(heft_coordinator_t *c);
void heft__coordinator_log_member_locked(const heft_coordinator_t *c, uint32_t slot,
                                         const char *message);
heft_status_t heft__coordinator_open_round_log(heft_coordinator_t *c, const char *path,
                                               heft_error_t *err);
void heft__coordinator_queue_result_locked(heft_coordinator_t *c, const char *json);
/* Lets go of the lock while it writes. */
void heft__coordinator_write_results(heft_coordinator_t *c);

/* ---- HTTP ---- */

/* opts are complete: every field has its value. HEFT_ERR_ARGUMENT: beyond loopback without token
 * and TLS. */
heft_status_t heft__server_start(heft_coordinator_t *c, const heft_coordinator_opts_t *opts,
                                 heft__server_t **server_out, uint16_t *port_out,
                                 heft_error_t *err);
/* Break off connections that take too long; when to look again. Without the coordinator's lock. */
int64_t heft__server_sweep(heft__server_t *server, int64_t now_ns);
/* Resume the calls that are ready; the earliest deadline of the others. */
int64_t heft__server_resume_locked(heft__server_t *server, int64_t now_ns);
/* Is there an open connection that this incarnation has spoken over? A process that has died has
 * none: its system closes them. On the thread that handles calls. */
bool heft__server_is_connected_locked(const heft__server_t *server, const char *incarnation);
/* Answers what waits, then closes. Without the coordinator's lock. */
void heft__server_stop(heft__server_t *server);

#endif
