/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world to explore: the round machine, the coordinator around it (its record on disk),
 * senders and receivers, and everything that can happen to them, one move at a time. Every sender
 * has something for every receiver, which has it all when all of them have sent.
 */
#ifndef ROUND_WORLD_H
#define ROUND_WORLD_H

#include "heft_test.h"
#include "round_sim.h"

#define N 4 /* places; the first ones are the sources', or the feeder's */
#define OLD 7
#define NEW 8

typedef struct record {
    int64_t seq;
    int64_t committed;
    bool in_flight;
    bool in_doubt;
    bool relays;
    heft__round_id_t id;
    heft__decision_t decision;
    bool used[N];
    bool in_round[N];
    bool moves[N];
    bool feeds[N];
    uint8_t life[N];
    heft__poison_t poison[N];
} record_t;

typedef struct node {
    heft__round_t round;
    heft__round_member_t members[N];
    sim_t sims[N];
    heft__report_t stale[N]; /* an earlier report of each */
    record_t record;         /* what is on disk */
    bool begun;
    bool warned;
    uint8_t faults; /* left */
    uint8_t heals;
    uint8_t claims; /* that the operator still makes */
    uint8_t pushes; /* of the new version that are still begun */
    int n;          /* members */
    int n_senders;  /* of them, the first ones */
    bool one_engine;
    bool is_feed;
    bool relays; /* each destination forwards to the next one */
} node_t;

/* A fleet to explore. */
typedef struct variant {
    const char *name;
    bool one_engine;
    bool in_place[N];
    uint8_t faults, claims, pushes;
    bool is_feed;
    int n_sources, n_destinations; /* 0: one source, two destinations */
    bool relays;
} variant_t;

enum move {
    MOVE_POLL,
    MOVE_WORK,
    MOVE_WRITE_OK,
    MOVE_TIME,
    /* faults */
    MOVE_REPLY_LOST,
    MOVE_LATE_REPORT,
    MOVE_FAIL,
    MOVE_REFUSE,
    MOVE_UNKNOWN,
    MOVE_SILENT,
    MOVE_RESTART,
    MOVE_TIME_EARLY,
    MOVE_CANCEL,
    MOVE_WRITE_FAILED,
    MOVE_WRITE_MAYBE_NOT,
    MOVE_WRITE_MAYBE,
    MOVE_CRASH,
    MOVE_HEAL,
    /* the operator's */
    MOVE_CLAIM_RESTARTED,
    MOVE_CLAIM_FENCED,
    MOVE_CLAIM_REMOVED,
    MOVE_CLAIM_RETRY,
    MOVE_CLAIM_REFILL,
    MOVE_PUSH,
    N_MOVES
};

extern const char *const move_names[N_MOVES];

/* Members are registered, version OLD (a feed: NEW) is live, the round has begun. */
void world_start(node_t *n, const variant_t *v);
/* False: the move is not possible now, for this member where it is one's own. */
bool world_apply(node_t *n, int move, int member);
bool world_move_is_per_member(int move);
uint64_t world_hash(const node_t *n);
/* What promise is broken; NULL: none. */
const char *world_check(const node_t *n);
/* The same where nothing can happen any more. */
const char *world_check_end(const node_t *n);
/* The round is over, or waits for people. */
bool world_rests(const heft__round_t *r);

#endif
