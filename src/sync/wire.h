/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: the messages of the control protocol (docs/formats/control.md), both ways.
 *
 * Decoders are strict (unknown keys, wrong types, bounds) and give HEFT_ERR_FORMAT naming the key.
 * Outputs are written only on success. Structs with an `_fini` own memory; the others are plain
 * values with bounded text. Encoders give a string owned by the caller (heft__free).
 */
#ifndef HEFT_SYNC_WIRE_H
#define HEFT_SYNC_WIRE_H

#include "base/base.h"

/* Sizes with the NUL. */
#define HEFT__JOB_SIZE 65
#define HEFT__ID_SIZE 104 /* "destination.JOB.4294967295.4294967295" */
#define HEFT__INCARNATION_SIZE 33
#define HEFT__DIGEST_SIZE 65
#define HEFT__KEY_SIZE 65
#define HEFT__ROUND_TEXT_SIZE 44
#define HEFT__TRANSPORT_SIZE 16
#define HEFT__PROCESS_SIZE 72 /* "host:pid" */
#define HEFT__MAX_TRANSPORTS 8
#define HEFT__WIRE_MAX_BYTES (1u << 20)
#define HEFT__WIRE_MAX_DEPTH 16
#define HEFT__WIRE_MAX_INT ((INT64_C(1) << 53) - 1)
#define HEFT__MAX_PROBLEMS 40 /* kept for each kind; more are counted */

/* Enumerations with their texts: X(NAME, value, "text"). */
#define HEFT__ROLE_MAP(X)  \
    X(SOURCE, 1, "source") \
    X(DESTINATION, 2, "destination")

#define HEFT__PHASE_MAP(X)       \
    X(NONE, 0, "none")           \
    X(MANIFEST, 1, "manifest")   \
    X(PREFLIGHT, 2, "preflight") \
    X(PREPARE, 3, "prepare")     \
    X(STAGE, 4, "stage")         \
    X(VERIFY, 5, "verify")       \
    X(PAUSE, 6, "pause")         \
    X(DECIDE, 7, "decide")       \
    X(FLIP, 8, "flip")           \
    X(RESUME, 9, "resume")       \
    X(RELEASE, 10, "release")    \
    X(ABORT, 11, "abort")        \
    X(LIVE, 12, "live")

#define HEFT__RESULT_MAP(X)  \
    X(NONE, 0, "none")       \
    X(WORKING, 1, "working") \
    X(OK, 2, "ok")           \
    X(REFUSED, 3, "refused") \
    X(FAILED, 4, "failed")   \
    X(UNKNOWN, 5, "unknown")

#define HEFT__STATE_MAP(X)     \
    X(IDLE, 0, "idle")         \
    X(STAGING, 1, "staging")   \
    X(STAGED, 2, "staged")     \
    X(PAUSED, 3, "paused")     \
    X(FLIPPED, 4, "flipped")   \
    X(PREPARED, 5, "prepared") \
    X(SENDING, 6, "sending")   \
    X(SENT, 7, "sent")

#define HEFT__CONDITION_MAP(X)             \
    X(OK, 0, "ok")                         \
    X(ROUND_POISONED, 1, "round_poisoned") \
    X(LIVE_SUSPECT, 2, "live_suspect")

#define HEFT__DECISION_MAP(X) \
    X(NONE, 0, "none")        \
    X(COMMIT, 1, "commit")    \
    X(REVOKE, 2, "revoke")

#define HEFT__CARRIES_MAP(X) \
    X(UNSAID, 0, "unsaid")   \
    X(BASE, 1, "base")       \
    X(MERGED, 2, "merged")   \
    X(ADAPTER, 3, "adapter")

#define HEFT__PROBLEM_MAP(X)     \
    X(SIDE, 0, "side")           \
    X(MANIFEST, 1, "manifest")   \
    X(NAME, 2, "name")           \
    X(SHAPE, 3, "shape")         \
    X(PROOF, 4, "proof")         \
    X(TRANSPORT, 5, "transport") \
    X(STAGING, 6, "staging")     \
    X(VERSION, 7, "version")     \
    X(MEMBER, 8, "member")       \
    X(COUNT, 9, "count")         \
    X(PLAN, 10, "plan")

typedef enum heft__role {
#define HEFT__X(name, value, text) HEFT__ROLE_##name = (value),
    HEFT__ROLE_MAP(HEFT__X)
#undef HEFT__X
} heft__role_t;

typedef enum heft__phase {
#define HEFT__X(name, value, text) HEFT__PHASE_##name = (value),
    HEFT__PHASE_MAP(HEFT__X)
#undef HEFT__X
} heft__phase_t;
#define HEFT__N_PHASES 13

typedef enum heft__result {
#define HEFT__X(name, value, text) HEFT__RESULT_##name = (value),
    HEFT__RESULT_MAP(HEFT__X)
#undef HEFT__X
} heft__result_t;

typedef enum heft__member_state {
#define HEFT__X(name, value, text) HEFT__STATE_##name = (value),
    HEFT__STATE_MAP(HEFT__X)
#undef HEFT__X
} heft__member_state_t;

typedef enum heft__condition {
#define HEFT__X(name, value, text) HEFT__CONDITION_##name = (value),
    HEFT__CONDITION_MAP(HEFT__X)
#undef HEFT__X
} heft__condition_t;

typedef enum heft__decision {
#define HEFT__X(name, value, text) HEFT__DECISION_##name = (value),
    HEFT__DECISION_MAP(HEFT__X)
#undef HEFT__X
} heft__decision_t;

/* What the bytes of a round are. */
typedef enum heft__carries {
#define HEFT__X(name, value, text) HEFT__CARRIES_##name = (value),
    HEFT__CARRIES_MAP(HEFT__X)
#undef HEFT__X
} heft__carries_t;

typedef enum heft__problem_kind {
#define HEFT__X(name, value, text) HEFT__PROBLEM_##name = (value),
    HEFT__PROBLEM_MAP(HEFT__X)
#undef HEFT__X
} heft__problem_kind_t;
#define HEFT__N_PROBLEM_KINDS 11

/* The wire spelling; "?" for a value that is none. */
const char *heft__role_text(heft__role_t role);
const char *heft__phase_text(heft__phase_t phase);
const char *heft__result_text(heft__result_t result);
const char *heft__state_text(heft__member_state_t state);
const char *heft__condition_text(heft__condition_t condition);
const char *heft__decision_text(heft__decision_t decision);
const char *heft__problem_text(heft__problem_kind_t kind);
const char *heft__carries_text(heft__carries_t carries);

/* ---- identities ---- */

typedef struct heft__round_id {
    int64_t epoch; /* 0.0: no round */
    int64_t seq;
} heft__round_id_t;

static inline bool heft__round_id_equal(heft__round_id_t a, heft__round_id_t b)
{
    return a.epoch == b.epoch && a.seq == b.seq;
}

/* "3.12"; out holds HEFT__ROUND_TEXT_SIZE. */
void heft__round_id_format(heft__round_id_t id, char *out);
bool heft__round_id_parse(const char *text, heft__round_id_t *out);

/* A new random incarnation; out holds HEFT__INCARNATION_SIZE. */
heft_status_t heft__incarnation_create(char *out, heft_error_t *err);
/* Exactly n lower-case hex digits and the end. */
bool heft__is_hex(const char *text, size_t n);
bool heft__is_job(const char *text);
/* "role.job.replica.rank"; out holds HEFT__ID_SIZE. */
void heft__member_id_format(heft__role_t role, const char *job, uint32_t replica, uint32_t rank,
                            char *out);
/* The replica and rank of such an id; false for a text that is none. */
bool heft__member_id_numbers(const char *id, uint32_t *replica_out, uint32_t *rank_out);

/* SHA-256 of bytes as hex, the name of an object; out holds HEFT__DIGEST_SIZE. */
void heft__object_digest(const void *data, size_t n, char *out);

/* ---- errors and problems ---- */

typedef struct heft__wire_error {
    heft_status_t status; /* HEFT_OK: no error */
    heft__phase_t phase;
    int32_t rank; /* -1: none */
    char tensor[256];
    char route[128];
    char peer[HEFT__ID_SIZE];
    char cause[256];
} heft__wire_error_t;

void heft__wire_error_reset(heft__wire_error_t *error);
/* From a heft_error_t: status and message become status and cause. */
void heft__wire_error_set(heft__wire_error_t *error, heft__phase_t phase, const heft_error_t *err);

typedef struct heft__problem {
    char *items[HEFT__MAX_PROBLEMS];
    uint32_t n_items;
    uint32_t total; /* may exceed n_items */
} heft__problem_t;

/* Problems by kind, bounded. Zero-initialised is empty. */
typedef struct heft__problems {
    heft__problem_t kinds[HEFT__N_PROBLEM_KINDS];
} heft__problems_t;

void heft__problems_fini(heft__problems_t *problems); /* empty afterwards */
uint32_t heft__problems_total(const heft__problems_t *problems);
/* Count a problem and keep its text (cut at 500 bytes) while there are fewer than 40 of its kind.
 */
heft_status_t heft__problems_add(heft__problems_t *problems, heft__problem_kind_t kind,
                                 heft_error_t *err, const char *fmt, ...) HEFT_PRINTF(4, 5);

/* ---- register ---- */

#define HEFT__HOST_SIZE 33

/* The label of a host that goes by this name; NULL: of the one that this process is on. */
void heft__host_label(const char *name, char out[HEFT__HOST_SIZE]);

typedef struct heft__register {
    heft__role_t role;
    char job[HEFT__JOB_SIZE];
    uint32_t replica;
    uint32_t rank;
    char incarnation[HEFT__INCARNATION_SIZE];
    int64_t epoch;                    /* highest seen; 0: none */
    bool in_place;                    /* mode: receives inside the flip; else staged */
    char process[HEFT__PROCESS_SIZE]; /* for messages; "": it does not say */
    char host[HEFT__HOST_SIZE];       /* a label: members of one host have one; "": not known */
    uint32_t n_transports;
    char transports[HEFT__MAX_TRANSPORTS][HEFT__TRANSPORT_SIZE];
} heft__register_t;

/* "host:pid" of this process. */
void heft__process_name(char out[HEFT__PROCESS_SIZE]);
/* What it says, or "a process". */
const char *heft__process_text(const heft__register_t *reg);

typedef struct heft__registered {
    char id[HEFT__ID_SIZE];
    int64_t epoch;
    uint32_t poll_ms;
    uint32_t contact_ms;
    int64_t committed_version;
    char committed_digest[HEFT__DIGEST_SIZE]; /* "" at version 0 */
} heft__registered_t;

heft_status_t heft__register_encode(const heft__register_t *msg, char **text_out,
                                    heft_error_t *err);
heft_status_t heft__register_decode(const char *text, size_t n, heft__register_t *out,
                                    heft_error_t *err);
heft_status_t heft__registered_encode(const heft__registered_t *msg, char **text_out,
                                      heft_error_t *err);
heft_status_t heft__registered_decode(const char *text, size_t n, heft__registered_t *out,
                                      heft_error_t *err);

/* ---- bind (PUT manifest) ---- */

typedef struct heft__bind {
    char incarnation[HEFT__INCARNATION_SIZE];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE]; /* "" for a source */
    char endpoint[HEFT__DIGEST_SIZE]; /* "" for a source */
    char mapping[HEFT__DIGEST_SIZE];  /* of a destination with a traced loader: its contract's text
                                       */
    char sources[HEFT__DIGEST_SIZE];  /* of a destination: the object of the sources that its plan
                                         is made for; "": it has no plan yet */
} heft__bind_t;

heft_status_t heft__bind_encode(const heft__bind_t *msg, char **text_out, heft_error_t *err);
heft_status_t heft__bind_decode(const char *text, size_t n, heft__bind_t *out, heft_error_t *err);

/* ---- contract object ---- */

/* A recipe with its bindings, or the name of a whole contract, which all ranks share. */
typedef struct heft__contract {
    char *recipe_name; /* owned */
    char *recipe_text;
    char *bindings; /* JSON text of the bindings, for heft_bindings_decode */
    char *mapping;  /* digest of the object with the contract's text; NULL: a recipe */
    uint32_t rank;  /* first_rank to first_rank + ranks - 1 */
    uint32_t ranks;
    uint32_t first_rank;            /* 0 of a recipe */
    char family[HEFT__DIGEST_SIZE]; /* equal for contracts that differ in rank alone; set by decode
                                     */
} heft__contract_t;

void heft__contract_fini(heft__contract_t *contract);
heft_status_t heft__contract_encode(const heft__contract_t *msg, char **text_out,
                                    heft_error_t *err);
heft_status_t heft__contract_decode(const char *text, size_t n, heft__contract_t *out,
                                    heft_error_t *err);

/* ---- report ---- */

typedef struct heft__counters {
    int64_t bytes, pieces, chunks, resent, forwarded;
    int64_t prepare_ns, stage_ns, verify_ns, pause_ns, flip_ns;
} heft__counters_t;

enum { HEFT__WAYS_SIZE = 512 };

typedef struct heft__report {
    char incarnation[HEFT__INCARNATION_SIZE];
    int64_t epoch;
    int64_t sequence; /* 1 for the first report of an incarnation, one more for each poll */
    int64_t order;    /* sequence of the last order taken in */
    uint32_t wait_ms;
    heft__round_id_t round; /* 0.0: none */
    heft__phase_t phase;    /* NONE: none */
    heft__result_t result;  /* NONE together with phase NONE */
    heft__member_state_t state;
    heft__condition_t condition;
    heft__wire_error_t error;
    int64_t live_version;
    bool serving;
    char live_digest[HEFT__DIGEST_SIZE]; /* this and the following: "" when there is none */
    char plan[HEFT__DIGEST_SIZE];
    char plans[HEFT__DIGEST_SIZE];
    char source_digest[HEFT__DIGEST_SIZE];
    char digests[HEFT__DIGEST_SIZE];
    char live[HEFT__DIGEST_SIZE];
    int64_t version; /* of the round, once something may have moved; 0: none */
    uint32_t movers; /* destinations that move in it; 0: this one does not */
    heft__counters_t counters;
    /* source: by which transport and lanes each destination is reached, for people; cut where it is
     * long. Outlasts the round. */
    char ways[HEFT__WAYS_SIZE];
    heft__problems_t problems; /* owned */
    /* source, preflight: destinations at whose endpoint nobody listens; owned, NULL: none */
    char (*absent)[HEFT__ID_SIZE];
    uint32_t n_absent;
} heft__report_t;

void heft__report_init(heft__report_t *report);
void heft__report_fini(heft__report_t *report);
/* Takes absent (heft__malloc, or NULL) in the place of what is there. */
void heft__report_set_absent(heft__report_t *report, char (*absent)[HEFT__ID_SIZE], uint32_t n);
heft_status_t heft__report_encode(const heft__report_t *msg, char **text_out, heft_error_t *err);
/* out is initialised by the call; fini it after success. */
heft_status_t heft__report_decode(const char *text, size_t n, heft__report_t *out,
                                  heft_error_t *err);

/* ---- order ---- */

typedef struct heft__peer {
    char id[HEFT__ID_SIZE];
    char incarnation[HEFT__INCARNATION_SIZE];
    uint32_t replica;
    uint32_t rank;
    bool moves;
    bool in_place;
    uint32_t n_transports;
    char transports[HEFT__MAX_TRANSPORTS][HEFT__TRANSPORT_SIZE];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE]; /* "" for a source */
    char endpoint[HEFT__DIGEST_SIZE]; /* "" for a source */
    char host[HEFT__HOST_SIZE];       /* "": not known */
} heft__peer_t;

typedef struct heft__order {
    int64_t sequence;
    int64_t epoch;
    heft__round_id_t round;
    heft__phase_t target;
    int64_t version;
    heft__decision_t decision;
    int64_t left_ms;
    uint32_t movers; /* destinations that move in the round, for those that do; 0: not said */
    bool feeds;      /* a destination that does what sources do in this round */
    char plan[HEFT__DIGEST_SIZE]; /* "" when there is none; likewise source_digest */
    char source_digest[HEFT__DIGEST_SIZE];
    char sources[HEFT__DIGEST_SIZE]; /* preflight: the object of the sources; else "" */
    bool relayed;                    /* stage: its one peer is a destination that forwards to it */
    heft__peer_t *peers;             /* owned */
    uint32_t n_peers;
    heft__peer_t *followers; /* stage: those that it forwards to; owned */
    uint32_t n_followers;
    char (*digests)[HEFT__DIGEST_SIZE]; /* owned */
    uint32_t n_digests;
    char (*objects)[HEFT__DIGEST_SIZE]; /* owned */
    uint32_t n_objects;
} heft__order_t;

void heft__order_init(heft__order_t *order);
void heft__order_fini(heft__order_t *order);
/* Nanoseconds left for its phase when it was given, but no more than at_most_ns. */
int64_t heft__order_left_ns(const heft__order_t *order, int64_t at_most_ns);
heft_status_t heft__order_encode(const heft__order_t *msg, char **text_out, heft_error_t *err);
heft_status_t heft__order_decode(const char *text, size_t n, heft__order_t *out, heft_error_t *err);

/* ---- sources object ---- */

#define HEFT__MAX_SOURCES 4096

/* One of those that hold the model together. */
typedef struct heft__source {
    uint32_t replica;
    uint32_t rank;
    char manifest[HEFT__DIGEST_SIZE];
    char host[HEFT__HOST_SIZE]; /* "": not known, or all are on one */
} heft__source_t;

/* {"format": 1, "sources": [...]}, one text for one list. Sources are strictly ascending by
 * replica, then rank; at least one. Decoded ones are owned by the caller (heft__free). */
heft_status_t heft__source_list_encode(const heft__source_t *sources, uint32_t n, char **text_out,
                                       heft_error_t *err);
heft_status_t heft__source_list_decode(const char *text, size_t n, heft__source_t **sources_out,
                                       uint32_t *n_out, heft_error_t *err);

/* ---- plans and digests objects ---- */

typedef struct heft__plan_entry {
    char member[HEFT__ID_SIZE];
    char plan[HEFT__DIGEST_SIZE];
} heft__plan_entry_t;

/* {"format": 1, "plans": {...}}. Decoded entries are owned by the caller (heft__free). */
heft_status_t heft__plans_encode(const heft__plan_entry_t *entries, uint32_t n, char **text_out,
                                 heft_error_t *err);
heft_status_t heft__plans_decode(const char *text, size_t n, heft__plan_entry_t **entries_out,
                                 uint32_t *n_out, heft_error_t *err);

/* The parameter digests of one rank plan: the shares of one source, which add up by XOR. */
typedef struct heft__digest_set {
    char plan[HEFT__DIGEST_SIZE];
    uint64_t *params; /* owned */
    uint32_t n_params;
    uint32_t sender; /* number of the source; the same in all sets of an object */
} heft__digest_set_t;

heft_status_t heft__digests_encode(const heft__digest_set_t *sets, uint32_t n, char **text_out,
                                   heft_error_t *err);
/* The set of one plan; HEFT_ERR_NOT_FOUND when the object has none. Free out->params. */
heft_status_t heft__digests_decode(const char *text, size_t n, const char *plan,
                                   heft__digest_set_t *out, heft_error_t *err);

typedef struct heft__live {
    int64_t version;
    heft__digest_set_t set; /* as they are now */
    /* NULL: none; else for each parameter whether the engine changed it itself after the flip, and
     * the digest that it had then. Owned. */
    bool *is_recorded;
    uint64_t *recorded;
} heft__live_t;

/* Frees what is owned. */
void heft__live_fini(heft__live_t *live);
heft_status_t heft__live_encode(const heft__live_t *live, char **text_out, heft_error_t *err);
heft_status_t heft__live_decode(const char *text, size_t n, heft__live_t *out, heft_error_t *err);

/* ---- begin, and the result of a round ---- */

typedef struct heft__deadlines {
    uint32_t preflight_ms, prepare_ms, stage_ms, verify_ms, pause_ms, decide_ms, flip_ms, resume_ms,
        release_ms, abort_ms; /* 0: the coordinator's own */
} heft__deadlines_t;

typedef struct heft__begin {
    int64_t version;
    char key[HEFT__KEY_SIZE];
    heft__deadlines_t deadlines;
    char (*destinations)[HEFT__ID_SIZE]; /* owned; n_destinations 0: all */
    uint32_t n_destinations;
    heft__carries_t carries;
    char (*models)[HEFT__ID_SIZE]; /* owned; n_models 0: not said */
    uint32_t n_models;
} heft__begin_t;

void heft__begin_fini(heft__begin_t *begin);
heft_status_t heft__begin_encode(const heft__begin_t *msg, char **text_out, heft_error_t *err);
heft_status_t heft__begin_decode(const char *text, size_t n, heft__begin_t *out, heft_error_t *err);

/* A push that was refused before it was a round. Numbered as rounds are, in a count of its own. */
typedef struct heft__refusal {
    heft__round_id_t number;
    int64_t version;
    heft_status_t status;
    char message[256];
} heft__refusal_t;

heft_status_t heft__refusal_encode(const heft__refusal_t *refusal, char **text_out,
                                   heft_error_t *err);

/* What a caller reads of a round's result; the rest of the JSON is for people and tools. */
typedef struct heft__outcome {
    heft__round_id_t round;
    char state[24];
    bool ended;
    int64_t version;
    char cause_member[HEFT__ID_SIZE]; /* "" when nothing failed, and then cause.status is HEFT_OK */
    heft__wire_error_t cause;
    char first_problem[512]; /* "member: text", or "" */
    uint32_t n_problems;
    uint32_t n_destinations; /* that took part and moved */
    int64_t bytes, pieces;
    double prepare_s, stage_s, verify_s, pause_s, total_s;
    double in_place_s; /* longest flip of one that received in it; 0: none did */
    char phase[16];
    char awaited[HEFT__ID_SIZE]; /* a member that has not done its present order; "": none */
    uint32_t n_awaited;
} heft__outcome_t;

heft_status_t heft__outcome_decode(const char *text, size_t n, heft__outcome_t *out,
                                   heft_error_t *err);

#endif
