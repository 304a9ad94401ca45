/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round: the state machine of the coordinator, pure: no clock, no I/O, no threads, no allocation.
 *
 * Events go in (a member joined or reported, begin, cancel, a record was written, time passed);
 * what comes out is the order of each member (a level with a sequence number) and `todo` bits for
 * what the caller must do: write the record, check sources, plans, the source digest. Every state
 * that waits has a deadline, but for idle and the two poisoned ones, which wait for the operator.
 *
 * Invariants (docs/internals/sync.md proves them by exploration): a flip is ordered only after a
 * durable commit; after it nothing is aborted unless a durable revoke follows, which needs every
 * destination's refusal; a member whose transfer may still run is never told to drop its memory.
 */
#ifndef HEFT_SYNC_ROUND_H
#define HEFT_SYNC_ROUND_H

#include "sync/wire.h"

#define HEFT__ROUND_MAX_WARNINGS 16

typedef enum heft__round_kind {
    HEFT__KIND_SYNC = 0,
    HEFT__KIND_PREFLIGHT = 1, /* ends after preflight */
    HEFT__KIND_LIVE = 2,      /* digests of live parameters */
    HEFT__KIND_FEED = 3       /* the committed version from destinations that serve it to others */
} heft__round_kind_t;

typedef enum heft__round_state {
    HEFT__ROUND_IDLE = 0,
    HEFT__ROUND_STORING,   /* begin waits for its record */
    HEFT__ROUND_PREPARING, /* manifest, preflight, prepare; or live */
    HEFT__ROUND_STAGING,   /* stage, verify */
    HEFT__ROUND_STOPPING,  /* staging failed: transfers are being proven to have stopped */
    HEFT__ROUND_STAGED,    /* pause */
    HEFT__ROUND_DECIDING,  /* commit is being written */
    HEFT__ROUND_FLIPPING,
    HEFT__ROUND_REVOKING,  /* revoke is being written */
    HEFT__ROUND_COMMITTED, /* resume, release */
    HEFT__ROUND_ABORTED,   /* abort */
    HEFT__ROUND_UNKNOWN,   /* poisoned */
    HEFT__ROUND_PARTIAL    /* poisoned: partially committed */
} heft__round_state_t;

/* Why a member is poisoned; cleared by heft__round_recover alone, or when its flip turns out done.
 */
typedef enum heft__poison {
    HEFT__POISON_NONE = 0,
    HEFT__POISON_TRANSFER,  /* a transfer to or from it may still run */
    HEFT__POISON_REFUSED,   /* it is paused and refused its flip */
    HEFT__POISON_SILENT,    /* its flip is unknown */
    HEFT__POISON_BROKEN,    /* its flip or its live memory is broken */
    HEFT__POISON_GONE,      /* it came back as a new process while it had to flip */
    HEFT__POISON_DECISION,  /* it waits for a decision that may or may not be durable */
    HEFT__POISON_CONDITION, /* it says so itself */
    HEFT__POISON_REFILL     /* recovered by "refill": stays out of service until a round has written
                               it anew; does not hold up that round */
} heft__poison_t;

typedef enum heft__claim {
    HEFT__CLAIM_RESTARTED = 1,
    HEFT__CLAIM_FENCED = 2,
    HEFT__CLAIM_REMOVED = 3,
    HEFT__CLAIM_RETRY = 4, /* order its flip once more */
    HEFT__CLAIM_REFILL = 5 /* let a round write it anew */
} heft__claim_t;

typedef enum heft__written {
    HEFT__WRITTEN_OK = 0,
    HEFT__WRITTEN_FAILED = 1, /* the old record stands */
    HEFT__WRITTEN_MAYBE = 2   /* it may or may not have become durable */
} heft__written_t;

enum heft__todo {
    HEFT__TODO_WRITE = 1u << 0,       /* write the record, then heft__round_written(write_ticket) */
    HEFT__TODO_CHECK_PLANS = 1u << 1, /* compare, then heft__round_plans_checked */
    HEFT__TODO_CHECK_DIGEST = 1u << 2, /* combine, then heft__round_prepared */
    HEFT__TODO_WAKE = 1u << 3,         /* an order changed */
    HEFT__TODO_ENDED = 1u << 4,        /* the round has its outcome */
    HEFT__TODO_CHECK_SOURCES = 1u << 5 /* of those bound: then heft__round_sources_checked */
};

/* Of a member's `relay`: one of the other destinations may forward to it, and it is not known
 * which. */
#define HEFT__RELAY_UNKNOWN UINT32_MAX

typedef struct heft__round_member {
    bool used;
    bool registered; /* false: known from the record, not heard of since the start */
    bool bound;
    bool in_place; /* receives inside the flip, straight into its live parameters */
    heft__role_t role;
    uint32_t engine; /* destinations that serve as one have one number */
    heft__poison_t poison;
    bool reborn; /* a new incarnation has registered since it was poisoned */
    /* its part in the round */
    bool in_round;
    bool moves;
    bool feeds;         /* a destination that sends what it serves, and goes on serving */
    uint32_t relay;     /* 1 + slot of the destination that forwards to it; 0: the sources send */
    bool touched;       /* an order of the round was given */
    bool stage_ordered; /* so that a transfer may have begun */
    bool lost;          /* the incarnation that took part is gone */
    bool excluded;      /* its abort or release is not confirmed */
    bool overdue;       /* silent, or past the flip's deadline */
    bool gone;          /* its process has surely ended; until it is heard of again */
    bool retried;
    bool in_vain; /* receives in place from a source that is silent: its time is over */
    /* its order */
    int64_t order_seq; /* 0: none */
    heft__phase_t target;
    heft__round_id_t order_round;
    /* its last report */
    int64_t contact_ns;
    int64_t report_seq;
    int64_t report_order;
    heft__round_id_t round;
    heft__phase_t phase;
    heft__result_t result;
    heft__member_state_t state;
    heft__condition_t condition;
    bool serving;
    int64_t live_version;
    char live_digest[HEFT__DIGEST_SIZE];
    int64_t version; /* of the round that it reports */
    uint32_t movers; /* in it; 0: it does not move */
    char source_digest[HEFT__DIGEST_SIZE];
} heft__round_member_t;

typedef struct heft__round_config {
    int64_t limit_ns[HEFT__N_PHASES]; /* deadline of each phase */
    int64_t contact_ns;
} heft__round_config_t;

typedef struct heft__round {
    heft__round_config_t config;
    heft__round_member_t *members; /* the caller's, n_members of them */
    uint32_t n_members;
    int64_t epoch;
    int64_t seq;
    int64_t n_orders;
    int64_t committed_version; /* last version decided and not revoked */
    char committed_digest[HEFT__DIGEST_SIZE];
    int64_t before_version; /* what a revoke brings back */
    char before_digest[HEFT__DIGEST_SIZE];
    /* the round */
    heft__round_state_t state;
    heft__round_state_t origin; /* of UNKNOWN: STAGING, DECIDING, FLIPPING, REVOKING; IDLE: found */
    heft__phase_t phase;
    heft__round_kind_t kind;
    heft__round_id_t id;
    int64_t version;
    char source_digest[HEFT__DIGEST_SIZE];
    heft__decision_t decision; /* durable */
    heft__decision_t pending;  /* being written */
    bool senders_started;
    bool checking;       /* sources, plans or digest: the caller has been asked */
    bool started;        /* its begin is on disk */
    bool fencing;        /* STOPPING: destinations have been told to fence */
    bool relays;         /* destinations may forward to each other: heft__round_set_relay */
    bool is_bare;        /* no record was found: members may be in a round that is not known here */
    uint32_t n_expected; /* UNKNOWN, origin IDLE: destinations of a found round that must report */
    bool departed;       /* in doubt: a destination has left the round, so nothing can be revoked */
    bool canceled;       /* while the record of begin was being written */
    bool
        maybe_written; /* a write of the decision may have become durable without being confirmed */
    heft__round_state_t outcome; /* of the last round: COMMITTED, ABORTED, ... ; IDLE: passed */
    int64_t limit_ns[HEFT__N_PHASES];
    int64_t deadline_ns; /* of the phase */
    int64_t began_ns;
    int64_t phase_began_ns;
    int64_t paused_ns;   /* when pause was ordered */
    int64_t downtime_ns; /* pause to the last resume */
    int64_t elapsed_ns[HEFT__N_PHASES];
    int64_t total_ns;
    /* its first failure */
    heft__wire_error_t cause; /* status HEFT_OK: none */
    int32_t cause_slot;       /* -1: no member */
    uint32_t n_warnings;      /* may exceed what is kept */
    char warnings[HEFT__ROUND_MAX_WARNINGS][192];
    int32_t warning_slots[HEFT__ROUND_MAX_WARNINGS];
    /* for the caller */
    uint32_t todo;
    int64_t write_ticket; /* number of the newest record asked for */
    int64_t wait_ticket;  /* the state waits for this one; 0: it does not */
} heft__round_t;

typedef struct heft__round_request {
    heft__round_kind_t kind;
    int64_t version;
    const uint32_t *slots; /* destinations that take part; NULL: all. FEED: those to be fed */
    uint32_t n_slots;
    const uint32_t *feeders; /* FEED: who sends */
    uint32_t n_feeders;
    bool relays;                      /* SYNC: destinations may forward to each other */
    int64_t limit_ns[HEFT__N_PHASES]; /* 0: the default */
} heft__round_request_t;

/* members: capacity slots, borrowed; they are cleared. */
void heft__round_init(heft__round_t *round, const heft__round_config_t *config,
                      heft__round_member_t *members, uint32_t capacity, int64_t epoch, int64_t seq);

/* Another epoch, while no round is in flight. */
void heft__round_set_epoch(heft__round_t *round, int64_t epoch);
/* A member registers in a free slot, or anew (fresh: another incarnation than the slot had). */
void heft__round_join(heft__round_t *round, uint32_t slot, heft__role_t role, uint32_t engine,
                      bool fresh, int64_t now_ns);
/* HEFT_ERR_BUSY while it takes part in a round. */
heft_status_t heft__round_leave(heft__round_t *round, uint32_t slot, heft_error_t *err);
/* changed: other digests than before; fails a round it takes part in. */
void heft__round_bind(heft__round_t *round, uint32_t slot, bool changed, int64_t now_ns);
/* A report of the registered incarnation; HEFT_ERR_STALE (nothing changed) when it is late. */
heft_status_t heft__round_report(heft__round_t *round, uint32_t slot, const heft__report_t *report,
                                 int64_t now_ns, heft_error_t *err);
/* Its process has surely ended: no round waits for it before it is heard of again. */
void heft__round_gone(heft__round_t *round, uint32_t slot, int64_t now_ns);
/* HEFT_ERR_BUSY, HEFT_ERR_POISONED, HEFT_ERR_VERSION, HEFT_ERR_STATE (empty side: PROOF). */
heft_status_t heft__round_begin(heft__round_t *round, const heft__round_request_t *request,
                                int64_t now_ns, heft_error_t *err);
/* It waits to be brought to the committed version: it is here, well, and does not serve. */
bool heft__round_is_joiner(const heft__round_t *round, uint32_t slot, int64_t now_ns);
/* It serves the committed version, and may send it to others. */
bool heft__round_may_feed(const heft__round_t *round, uint32_t slot, int64_t now_ns);
/* A source, or a destination that stands in for one in this round. */
bool heft__round_sends(const heft__round_member_t *member);
/* A feed is in flight that has not ended in doubt. */
bool heft__round_is_feeding(const heft__round_t *round);
/* No effect after the decision. */
void heft__round_cancel(heft__round_t *round, int64_t now_ns);
void heft__round_written(heft__round_t *round, int64_t ticket, heft__written_t outcome,
                         int64_t now_ns);
/* The answer to TODO_CHECK_SOURCES: cause NULL when they agree on what they hold. */
void heft__round_sources_checked(heft__round_t *round, int32_t slot,
                                 const heft__wire_error_t *cause, int64_t now_ns);
/* In a round with relays, before TODO_CHECK_PLANS is answered: `relay` forwards to `slot` what the
 * sources send it. Both are staged, and no chain of relays comes back to where it began. */
void heft__round_set_relay(heft__round_t *round, uint32_t slot, uint32_t relay);
/* The slot of the destination that forwards to this one; UINT32_MAX: the sources send it, or it is
 * not known. */
uint32_t heft__round_get_relay(const heft__round_member_t *member);
/* It forwards to another one in this round. */
bool heft__round_is_relay(const heft__round_t *round, uint32_t slot);
/* The answer to TODO_CHECK_PLANS: cause NULL when they agree; or why a check could not be made. */
void heft__round_plans_checked(heft__round_t *round, int32_t slot, const heft__wire_error_t *cause,
                               int64_t now_ns);
/* The answer to TODO_CHECK_DIGEST. */
void heft__round_prepared(heft__round_t *round, const char *digest, int64_t now_ns);
void heft__round_tick(heft__round_t *round, int64_t now_ns);
/* When a tick can next have an effect; INT64_MAX: only after another event. */
int64_t heft__round_next_tick(const heft__round_t *round);

/* Poisoned, and why (message of err). */
bool heft__round_is_poisoned(const heft__round_t *round, int32_t *slot_out, const char **why_out);
/* What an operator does about it. */
const char *heft__poison_remedy(heft__poison_t poison);
const char *heft__poison_text(heft__poison_t poison);
/* HEFT_ERR_STATE when the claim does not hold. `removed` frees the slot. */
heft_status_t heft__round_recover(heft__round_t *round, uint32_t slot, heft__claim_t claim,
                                  int64_t now_ns, heft_error_t *err);

/* After a restart: round, version, digest, decision and the members (used, in_round, moves) have
 * been put back; go on from there. in_doubt: the record says unknown or partially committed. */
void heft__round_restore(heft__round_t *round, bool in_doubt, int64_t now_ns);

/* Texts of states for results ("staging", "partially_committed"). */
const char *heft__round_state_text(const heft__round_t *round);
const char *heft__round_kind_text(heft__round_kind_t kind);
/* True while members have work: from begin to the end of abort or release. */
bool heft__round_is_busy(const heft__round_t *round);

#endif
