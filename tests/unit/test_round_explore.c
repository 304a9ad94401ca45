/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exploration of the round machine: one source, two destinations, every interleaving of polls and
 * work, every fault at every step, a crash of the coordinator included. Depth first over hashed
 * states. The two are engines of their own or the ranks of one, receive in staging or in place;
 * with recovery, an operator makes every claim that could hold, and pushes again.
 *
 * Version 7 is live, version 8 is brought. Checked in every state: the promises of
 * docs/internals/sync.md.
 */
#include "heft_test.h"
#include "round_sim.h"

#include <inttypes.h>

#define N 3 /* slot 0: the source */
#define OLD 7
#define NEW 8
#define MAX_DEPTH 400

typedef struct record {
    int64_t seq;
    int64_t committed;
    bool in_flight;
    bool in_doubt;
    heft__round_id_t id;
    heft__decision_t decision;
    bool used[N];
    bool in_round[N];
    bool moves[N];
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
    bool one_engine;
} node_t;

/* A fleet to explore. */
typedef struct variant {
    const char *name;
    bool one_engine;
    bool in_place[N];
    uint8_t faults, claims, pushes;
} variant_t;

typedef struct explorer {
    uint64_t *seen;
    size_t cap, used;
    uint8_t faults; /* at the start */
    uint64_t n_moves;
    uint64_t n_ends, n_committed, n_aborted, n_unknown, n_partial;
    uint64_t reached[16]; /* by state */
    const char *path[MAX_DEPTH];
    int path_member[MAX_DEPTH];
} explorer_t;

/* ---- hashing ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    return h ^ (h >> 32);
}

static uint64_t hash_member(uint64_t h, const heft__round_member_t *m)
{
    h = mix(h,
            (uint64_t)(m->used | m->registered << 1 | m->bound << 2 | m->reborn << 3 |
                       m->in_round << 4 | m->moves << 5 | m->touched << 6 | m->stage_ordered << 7 |
                       m->lost << 8 | m->excluded << 9 | m->overdue << 10 | m->retried << 11 |
                       m->serving << 12 | m->in_vain << 13));
    h = mix(h, (uint64_t)m->poison | (uint64_t)m->target << 8 | (uint64_t)m->phase << 16 |
                   (uint64_t)m->result << 24 | (uint64_t)m->state << 32 |
                   (uint64_t)m->condition << 40 | (uint64_t)m->live_version << 48);
    h = mix(h, (uint64_t)m->contact_ns);
    h = mix(h, (uint64_t)(m->order_seq == m->report_order));
    return mix(h, (uint64_t)(m->round.epoch * 100 + m->round.seq));
}

static uint64_t hash_sim(uint64_t h, const sim_t *s, const heft__round_member_t *m)
{
    h = mix(h, (uint64_t)(s->reachable | s->registered << 1 | s->serving << 2 | s->sending << 3 |
                          (s->order == m->order_seq) << 4 | (s->sequence == m->report_seq) << 5 |
                          (s->life == s->known_life) << 6 | s->fenced << 7));
    h = mix(h, (uint64_t)s->live | (uint64_t)s->condition << 8 | (uint64_t)s->phase << 16 |
                   (uint64_t)s->result << 24 | (uint64_t)s->state << 32 | (uint64_t)s->life << 40);
    h = mix(h, (uint64_t)sim_is_broken(s));
    return mix(h, (uint64_t)(s->round.epoch * 100 + s->round.seq));
}

static uint64_t hash_node(const node_t *n)
{
    const heft__round_t *r = &n->round;
    uint64_t h = mix(0, (uint64_t)r->state | (uint64_t)r->phase << 8 | (uint64_t)r->origin << 16 |
                            (uint64_t)r->decision << 24 | (uint64_t)r->pending << 32 |
                            (uint64_t)r->outcome << 40);
    h = mix(h, (uint64_t)(r->senders_started | r->checking << 1 | r->canceled << 2 |
                          r->maybe_written << 3 | (r->cause.status != HEFT_OK) << 4 |
                          (r->wait_ticket != 0) << 5 | n->begun << 6 | n->warned << 7));
    h = mix(h, (uint64_t)r->deadline_ns);
    h = mix(h, (uint64_t)(r->epoch | r->committed_version << 8));
    h = mix(h, (uint64_t)(n->faults | n->heals << 4 | n->claims << 8 | n->pushes << 12 |
                          r->fencing << 16 | r->departed << 17));
    h = mix(h, (uint64_t)(n->record.in_flight | n->record.in_doubt << 1) |
                   (uint64_t)n->record.decision << 8 | (uint64_t)n->record.committed << 16);
    for (int i = 0; i < N; i++) {
        h = hash_member(h, &n->members[i]);
        h = hash_sim(h, &n->sims[i], &n->members[i]);
        h = mix(h, (uint64_t)(n->record.moves[i] | n->record.used[i] << 1 |
                              n->record.in_round[i] << 2) |
                       (uint64_t)n->record.life[i] << 8);
    }
    return h != 0 ? h : 1;
}

/* True when the state is new. */
static bool visit(explorer_t *e, uint64_t h)
{
    if (e->used * 2 >= e->cap) {
        const size_t cap = e->cap > 0 ? e->cap * 2 : 1u << 16;
        uint64_t *seen = calloc(cap, sizeof *seen);
        assert_non_null(seen);
        for (size_t i = 0; i < e->cap; i++) {
            if (e->seen[i] != 0) {
                size_t at = e->seen[i] & (cap - 1);
                while (seen[at] != 0) {
                    at = (at + 1) & (cap - 1);
                }
                seen[at] = e->seen[i];
            }
        }
        free(e->seen);
        e->seen = seen;
        e->cap = cap;
    }
    size_t at = h & (e->cap - 1);
    while (e->seen[at] != 0) {
        if (e->seen[at] == h) {
            return false;
        }
        at = (at + 1) & (e->cap - 1);
    }
    e->seen[at] = h;
    e->used++;
    return true;
}

/* ---- the coordinator around the machine ---- */

static const heft__round_config_t config = {
    .limit_ns = { [HEFT__PHASE_MANIFEST] = 60,
                  [HEFT__PHASE_PREFLIGHT] = 60,
                  [HEFT__PHASE_PREPARE] = 90,
                  [HEFT__PHASE_STAGE] = 180,
                  [HEFT__PHASE_VERIFY] = 90,
                  [HEFT__PHASE_PAUSE] = 80,
                  [HEFT__PHASE_DECIDE] = 30,
                  [HEFT__PHASE_FLIP] = 120,
                  [HEFT__PHASE_RESUME] = 60,
                  [HEFT__PHASE_RELEASE] = 70,
                  [HEFT__PHASE_ABORT] = 100,
                  [HEFT__PHASE_LIVE] = 60 },
    .contact_ns = 40,
};

static void put_on_disk(node_t *n)
{
    const heft__round_t *r = &n->round;
    record_t *rec = &n->record;
    const heft__decision_t decision = r->pending != HEFT__DECISION_NONE ? r->pending : r->decision;
    rec->seq = r->seq;
    rec->in_flight = heft__round_is_busy(r);
    rec->in_doubt = r->state == HEFT__ROUND_UNKNOWN || r->state == HEFT__ROUND_PARTIAL;
    rec->id = r->id;
    rec->decision = rec->in_flight ? decision : HEFT__DECISION_NONE;
    rec->committed = r->committed_version;
    if (r->pending == HEFT__DECISION_COMMIT) {
        rec->committed = r->version;
    } else if (r->pending == HEFT__DECISION_REVOKE) {
        rec->committed = r->before_version;
    }
    for (int i = 0; i < N; i++) {
        rec->used[i] = n->members[i].used;
        rec->in_round[i] = rec->in_flight && n->members[i].in_round;
        rec->moves[i] = n->members[i].moves;
        rec->life[i] = n->sims[i].known_life;
        rec->poison[i] = n->members[i].poison;
    }
}

/* What the caller of the machine does at once; waiting writes are moves of their own. */
static void serve_todo(node_t *n)
{
    heft__round_t *r = &n->round;
    while ((r->todo & ~(uint32_t)(HEFT__TODO_WAKE | HEFT__TODO_ENDED)) != 0) {
        const uint32_t todo = r->todo;
        r->todo = 0;
        if ((todo & HEFT__TODO_WRITE) != 0 && r->wait_ticket == 0) {
            put_on_disk(n);
            heft__round_written(r, r->write_ticket, HEFT__WRITTEN_OK, 0);
        }
        if ((todo & HEFT__TODO_CHECK_PLANS) != 0) {
            heft__round_plans_checked(r, -1, NULL, 0);
        }
        if ((todo & HEFT__TODO_CHECK_DIGEST) != 0) {
            heft__round_prepared(r, SIM_DIGEST_NEW, 0);
        }
    }
    r->todo = 0;
}

static uint32_t engine_of(const node_t *n, int i)
{
    return i == 0 ? 0 : n->one_engine ? 1 : (uint32_t)i;
}

static void deliver(node_t *n, int i)
{
    sim_t *s = &n->sims[i];
    heft__round_t *r = &n->round;
    heft_error_t err = HEFT_ERROR_INIT;
    if (!s->registered) {
        const bool fresh = s->known_life != s->life;
        heft__round_join(r, (uint32_t)i, s->role, engine_of(n, i), fresh, 0);
        n->members[i].in_place = s->in_place;
        heft__round_bind(r, (uint32_t)i, false, 0);
        s->registered = true;
        s->known_life = s->life;
        s->order = 0;
    }
    heft__report_t report;
    s->sequence++;
    sim_report(s, OLD, &report);
    EXPECT_STATUS(heft__round_report(r, (uint32_t)i, &report, 0, &err), HEFT_OK);
    /* keep one report of before, to be delivered late */
    if (n->stale[i].phase != report.phase || n->stale[i].result != report.result) {
        n->stale[i] = report;
    }
    serve_todo(n);
}

static void take(node_t *n, int i)
{
    const heft__round_t *r = &n->round;
    sim_take(&n->sims[i], &n->members[i], r->decision, r->version);
}

static void rebase(node_t *n, int64_t t)
{
    heft__round_t *r = &n->round;
    if (r->deadline_ns != INT64_MAX) {
        r->deadline_ns -= t;
    }
    r->phase_began_ns -= t;
    r->began_ns -= t;
    for (int i = 0; i < N; i++) {
        /* beyond the contact time all silences are alike */
        n->members[i].contact_ns = heft__max_i64(n->members[i].contact_ns - t, -41);
    }
}

/* Time passes until something happens: a deadline, or a silence that lasted too long. Those who can
 * be reached poll all the time. */
static void pass_time(node_t *n)
{
    for (int i = 0; i < N; i++) {
        if (n->sims[i].reachable && n->sims[i].registered) {
            n->members[i].contact_ns = INT64_MAX / 4;
        }
    }
    const int64_t t = heft__round_next_tick(&n->round);
    for (int i = 0; i < N; i++) {
        if (n->sims[i].reachable && n->sims[i].registered) {
            n->members[i].contact_ns = t < INT64_MAX / 4 ? t : 0;
        }
    }
    if (t < INT64_MAX / 4) {
        heft__round_tick(&n->round, t);
        rebase(n, t);
        serve_todo(n);
    }
}

static void restart_coordinator(node_t *n)
{
    const record_t rec = n->record;
    const int64_t epoch = n->round.epoch + 1;
    heft__round_t *r = &n->round;
    heft__round_init(r, &config, n->members, N, epoch, rec.seq);
    r->committed_version = rec.committed;
    memcpy(r->committed_digest, rec.committed == OLD ? SIM_DIGEST_OLD : SIM_DIGEST_NEW,
           HEFT__DIGEST_SIZE);
    r->before_version = OLD;
    memcpy(r->before_digest, SIM_DIGEST_OLD, HEFT__DIGEST_SIZE);
    for (int i = 0; i < N; i++) {
        heft__round_member_t *m = &n->members[i];
        n->sims[i].registered = false;
        m->used = rec.used[i];
        m->role = n->sims[i].role;
        m->engine = engine_of(n, i);
        m->in_place = n->sims[i].in_place;
        m->in_round = rec.in_round[i];
        m->moves = rec.in_flight && rec.moves[i];
        m->poison = rec.poison[i];
        n->sims[i].known_life = rec.used[i] ? rec.life[i] : 0;
    }
    if (rec.in_flight) {
        r->id = rec.id;
        r->version = NEW;
        memcpy(r->source_digest, SIM_DIGEST_NEW, HEFT__DIGEST_SIZE);
        r->decision = rec.decision;
        heft__round_restore(r, rec.in_doubt, 0);
    }
    serve_todo(n);
}

/* ---- promises ---- */

static void violated(const explorer_t *e, int depth, const node_t *n, const char *what)
{
    for (int i = 0; i < depth; i++) {
        (void)fprintf(stderr, "  %s %d\n", e->path[i], e->path_member[i]);
    }
    (void)fprintf(stderr, "machine: %s phase %s decision %d\n", heft__round_state_text(&n->round),
                  heft__phase_text(n->round.phase), (int)n->round.decision);
    for (int i = 0; i < N; i++) {
        (void)fprintf(stderr, "  member %d: %s %s %s serving %d live %d, order %s, poison %d\n", i,
                      heft__phase_text(n->sims[i].phase), heft__result_text(n->sims[i].result),
                      heft__state_text(n->sims[i].state), n->sims[i].serving, (int)n->sims[i].live,
                      heft__phase_text(n->members[i].target), (int)n->members[i].poison);
    }
    fail_msg("%s", what);
}

/* What member i serves. */
static const char *check_service(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    const bool committed = n->record.committed == NEW; /* durable, and not revoked */
    if (committed && s->serving && s->live == OLD) {
        return "serves the old version after a durable commit";
    }
    if (!committed && s->serving && s->live == NEW) {
        return "serves the new version without a durable commit";
    }
    if (s->serving && s->condition != HEFT__CONDITION_OK) {
        return "serves what may be a mixture";
    }
    const sim_t *other = &n->sims[3 - i];
    const bool pair =
        n->one_engine && s->serving && other->serving && s->life == 1 && other->life == 1;
    return pair && s->live != other->live ? "one engine serves two versions" : NULL;
}

/* What member i is told. */
static const char *check_order(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    const heft__round_member_t *m = &n->members[i];
    const record_t *rec = &n->record;
    const bool committed = rec->committed == NEW;
    const bool of_record = rec->in_flight && heft__round_id_equal(m->order_round, rec->id);
    if (!m->used) {
        return NULL;
    }
    if (m->target == HEFT__PHASE_FLIP && !committed && n->round.state == HEFT__ROUND_FLIPPING) {
        return "flip ordered without a durable commit";
    }
    if (m->target != HEFT__PHASE_ABORT) {
        return NULL;
    }
    if (committed && of_record && rec->decision == HEFT__DECISION_COMMIT) {
        return "abort ordered after a durable commit";
    }
    const bool over = n->round.state == HEFT__ROUND_ABORTED || n->round.state == HEFT__ROUND_IDLE;
    const bool exposed = s->state == HEFT__STATE_STAGING && !s->fenced && n->sims[0].sending;
    return over && exposed && s->life == s->known_life && heft__round_id_equal(s->round, rec->id)
               ? "the round is over while a transfer may write"
               : NULL;
}

static bool rests(const heft__round_t *r)
{
    return r->state == HEFT__ROUND_IDLE || r->state == HEFT__ROUND_UNKNOWN ||
           r->state == HEFT__ROUND_PARTIAL;
}

static void check_node(const explorer_t *e, int depth, const node_t *n)
{
    const heft__round_t *r = &n->round;
    for (int i = 1; i < N; i++) {
        const char *service = check_service(n, i);
        const char *order = check_order(n, i);
        if (service != NULL || order != NULL) {
            violated(e, depth, n, service != NULL ? service : order);
        }
    }
    if (n->members[0].target == HEFT__PHASE_STAGE && r->state == HEFT__ROUND_STAGING) {
        for (int i = 1; i < N; i++) {
            const sim_t *s = &n->sims[i];
            if (n->members[i].moves && !s->in_place && s->life == s->known_life &&
                s->phase < HEFT__PHASE_STAGE) {
                violated(e, depth, n, "told to send before the receiver is armed");
            }
        }
    }
    if (n->members[0].target == HEFT__PHASE_FLIP && n->record.committed != NEW &&
        heft__round_id_equal(n->members[0].order_round, r->id) &&
        r->state == HEFT__ROUND_FLIPPING) {
        violated(e, depth, n, "told to send in place without a durable commit");
    }
    if (!rests(r) && heft__round_next_tick(r) == INT64_MAX && r->wait_ticket == 0) {
        violated(e, depth, n, "waits without a deadline");
    }
}

/* A member that nothing happened to, at the end. */
static const char *check_survivor(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    const bool well = s->reachable && s->registered && s->condition == HEFT__CONDITION_OK &&
                      s->life == 1 && n->members[i].poison == HEFT__POISON_NONE &&
                      s->result == HEFT__RESULT_OK;
    if (n->round.state != HEFT__ROUND_IDLE || !well) {
        return NULL;
    }
    if (!s->serving && !n->warned) {
        return "left out of service without a word";
    }
    return s->live != n->record.committed ? "serves another version than the committed one" : NULL;
}

/* Nothing can happen any more. */
static void check_end(explorer_t *e, int depth, const node_t *n)
{
    const heft__round_t *r = &n->round;
    const heft__round_state_t state = r->state == HEFT__ROUND_IDLE ? r->outcome : r->state;
    e->n_ends++;
    e->n_committed += state == HEFT__ROUND_COMMITTED;
    e->n_aborted += state == HEFT__ROUND_ABORTED;
    e->n_unknown += state == HEFT__ROUND_UNKNOWN;
    e->n_partial += state == HEFT__ROUND_PARTIAL;
    if (!rests(r)) {
        violated(e, depth, n, "stuck");
    }
    if (n->faults == e->faults && state != HEFT__ROUND_COMMITTED) {
        violated(e, depth, n, "not committed although nothing failed");
    }
    for (int i = 1; i < N; i++) {
        const char *wrong = check_survivor(n, i);
        if (wrong != NULL) {
            violated(e, depth, n, wrong);
        }
    }
}

/* ---- moves ---- */

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

static const char *const move_names[N_MOVES] = { "poll",
                                                 "work",
                                                 "write ok",
                                                 "time",
                                                 "reply lost",
                                                 "late report",
                                                 "fail",
                                                 "refuse",
                                                 "unknown",
                                                 "silent",
                                                 "restart",
                                                 "time early",
                                                 "cancel",
                                                 "write failed",
                                                 "write maybe (not)",
                                                 "write maybe",
                                                 "crash",
                                                 "heal",
                                                 "claim restarted",
                                                 "claim fenced",
                                                 "claim removed",
                                                 "claim retry",
                                                 "claim refill",
                                                 "push" };

static bool move_is_per_member(int move)
{
    return move == MOVE_POLL || move == MOVE_WORK || move == MOVE_REPLY_LOST ||
           move == MOVE_LATE_REPORT || move == MOVE_FAIL || move == MOVE_REFUSE ||
           move == MOVE_UNKNOWN || move == MOVE_SILENT || move == MOVE_RESTART ||
           move == MOVE_HEAL || (move >= MOVE_CLAIM_RESTARTED && move <= MOVE_CLAIM_REFILL);
}

/* One that receives in place and whose source will not send: it gives up, and may be half written.
 */
static bool is_forsaken(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    const sim_t *source = &n->sims[0];
    if (i == 0 || !s->in_place || s->phase != HEFT__PHASE_FLIP ||
        s->result != HEFT__RESULT_WORKING) {
        return false;
    }
    const bool failed = source->phase == HEFT__PHASE_FLIP && source->result >= HEFT__RESULT_REFUSED;
    return failed || source->life != 1 || !source->reachable ||
           (heft__round_id_equal(source->round, s->round) && source->phase > HEFT__PHASE_FLIP);
}

/* Whether the work in hand can come to its end. */
static bool can_work(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    if (s->result != HEFT__RESULT_WORKING) {
        return false;
    }
    if (s->phase == HEFT__PHASE_FLIP && s->in_place) {
        const sim_t *source = &n->sims[0];
        return heft__round_id_equal(source->round, s->round) && source->phase == HEFT__PHASE_FLIP &&
               source->result < HEFT__RESULT_REFUSED;
    }
    if (s->phase == HEFT__PHASE_STAGE && i > 0) {
        /* its chunks come from the source */
        const sim_t *source = &n->sims[0];
        return heft__round_id_equal(source->round, s->round) &&
               source->phase >= HEFT__PHASE_STAGE && source->phase != HEFT__PHASE_ABORT &&
               source->result != HEFT__RESULT_FAILED && source->result != HEFT__RESULT_REFUSED;
    }
    return true;
}

static bool apply_write(node_t *n, heft__written_t outcome, bool lands)
{
    heft__round_t *r = &n->round;
    if (r->wait_ticket == 0) {
        return false;
    }
    if (lands) {
        put_on_disk(n);
    }
    heft__round_written(r, r->write_ticket, outcome, 0);
    serve_todo(n);
    return true;
}

static bool apply_report_fault(node_t *n, int move, int i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    sim_t *s = &n->sims[i];
    if (move == MOVE_REPLY_LOST) {
        if (!s->reachable) {
            return false;
        }
        deliver(n, i);
        return true;
    }
    if (!s->registered || n->stale[i].sequence == 0 ||
        n->stale[i].sequence >= n->members[i].report_seq || s->life != s->known_life) {
        return false;
    }
    const node_t before = *n;
    EXPECT_STATUS(heft__round_report(&n->round, (uint32_t)i, &n->stale[i], 0, &err),
                  HEFT_ERR_STALE);
    assert_memory_equal(&before.members, &n->members, sizeof n->members);
    return true;
}

static bool apply_member(node_t *n, int move, int i)
{
    sim_t *s = &n->sims[i];
    switch (move) {
    case MOVE_POLL:
        if (!s->reachable) {
            return false;
        }
        deliver(n, i);
        take(n, i);
        return true;
    case MOVE_WORK:
        if (is_forsaken(n, i)) {
            sim_fail(s, HEFT__RESULT_FAILED);
            return true;
        }
        if (!can_work(n, i)) {
            return false;
        }
        sim_work(s);
        return true;
    case MOVE_FAIL:
    case MOVE_REFUSE:
    case MOVE_UNKNOWN:
        if (s->result != HEFT__RESULT_WORKING) {
            return false;
        }
        sim_fail(s, move == MOVE_FAIL     ? HEFT__RESULT_FAILED
                    : move == MOVE_REFUSE ? HEFT__RESULT_REFUSED
                                          : HEFT__RESULT_UNKNOWN);
        return true;
    case MOVE_SILENT:
        s->reachable = false;
        return true;
    case MOVE_HEAL:
        if (s->reachable || n->heals == 0) {
            return false;
        }
        n->heals--;
        s->reachable = true;
        return true;
    case MOVE_RESTART:
        sim_restart(s);
        return true;
    default:
        return apply_report_fault(n, move, i);
    }
}

/* An operator who says the truth: what is removed has been ended. */
static bool apply_claim(node_t *n, int move, int i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__claim_t claim = (heft__claim_t)(move - MOVE_CLAIM_RESTARTED + 1);
    if (n->claims == 0 || !n->members[i].used || n->members[i].poison == HEFT__POISON_NONE ||
        heft__round_recover(&n->round, (uint32_t)i, claim, 0, &err) != HEFT_OK) {
        return false;
    }
    n->claims--;
    if (claim == HEFT__CLAIM_REMOVED) {
        sim_restart(&n->sims[i]);
        n->sims[i].known_life = 0;
        n->sims[i].registered = false;
        n->sims[i].reachable = false;
    }
    serve_todo(n);
    return true;
}

static bool apply_push(node_t *n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__round_request_t request = { .kind = HEFT__KIND_SYNC, .version = NEW };
    if (n->pushes == 0 || n->round.state != HEFT__ROUND_IDLE ||
        heft__round_begin(&n->round, &request, 0, &err) != HEFT_OK) {
        return false;
    }
    n->pushes--;
    serve_todo(n);
    return true;
}

static bool apply(node_t *n, int move, int i)
{
    switch (move) {
    case MOVE_WRITE_OK:
        return apply_write(n, HEFT__WRITTEN_OK, true);
    case MOVE_WRITE_FAILED:
        return apply_write(n, HEFT__WRITTEN_FAILED, false);
    case MOVE_WRITE_MAYBE_NOT:
        return apply_write(n, HEFT__WRITTEN_MAYBE, false);
    case MOVE_WRITE_MAYBE:
        return apply_write(n, HEFT__WRITTEN_MAYBE, true);
    case MOVE_TIME:
    case MOVE_TIME_EARLY:
        if (heft__round_next_tick(&n->round) == INT64_MAX) {
            return false;
        }
        pass_time(n);
        return true;
    case MOVE_CANCEL:
        heft__round_cancel(&n->round, 0);
        serve_todo(n);
        return true;
    case MOVE_CRASH:
        restart_coordinator(n);
        return true;
    case MOVE_CLAIM_RESTARTED:
    case MOVE_CLAIM_FENCED:
    case MOVE_CLAIM_REMOVED:
    case MOVE_CLAIM_RETRY:
    case MOVE_CLAIM_REFILL:
        return apply_claim(n, move, i);
    case MOVE_PUSH:
        return apply_push(n);
    default:
        return apply_member(n, move, i);
    }
}

static bool is_fault(int move)
{
    return move >= MOVE_REPLY_LOST && move < MOVE_HEAL;
}

static bool is_operator(int move)
{
    return move > MOVE_HEAL;
}

/* Time passes by itself, and people act, when all else has come to rest. */
static bool is_open(const node_t *at, int move, bool moved)
{
    if (is_fault(move)) {
        return at->faults > 0;
    }
    return !moved || (move != MOVE_TIME && !is_operator(move));
}

static void explore(explorer_t *e, const node_t *at, int depth)
{
    assert_true(depth < MAX_DEPTH);
    e->reached[at->round.state]++;
    bool moved = false; /* by something other than time and faults */
    const uint64_t own = hash_node(at);
    node_t *next = malloc(sizeof *next);
    assert_non_null(next);
    for (int move = 0; move < N_MOVES; move++) {
        if (!is_open(at, move, moved)) {
            continue;
        }
        const int n_members = move_is_per_member(move) ? N : 1;
        for (int i = 0; i < n_members; i++) {
            *next = *at;
            next->round.members = next->members;
            if (is_fault(move)) {
                next->faults--;
            }
            if (!apply(next, move, i)) {
                continue;
            }
            next->warned = next->warned || next->round.n_warnings > 0;
            next->round.n_warnings = 0;
            const uint64_t h = hash_node(next);
            e->n_moves++;
            if (h == own) {
                continue;
            }
            /* a member that cannot be reached does not hold up time */
            moved = moved || (!is_fault(move) && move != MOVE_HEAL && move != MOVE_PUSH &&
                              !(move == MOVE_WORK && !at->sims[i].reachable));
            e->path[depth] = move_names[move];
            e->path_member[depth] = i;
            if (visit(e, h)) {
                check_node(e, depth + 1, next);
                explore(e, next, depth + 1);
            }
        }
    }
    free(next);
    if (!moved && heft__round_next_tick(&at->round) == INT64_MAX) {
        check_end(e, depth, at);
    }
}

static void start_as(node_t *n, const variant_t *v)
{
    memset(n, 0, sizeof *n);
    heft_error_t err = HEFT_ERROR_INIT;
    heft__round_init(&n->round, &config, n->members, N, 1, 0);
    n->round.committed_version = OLD;
    memcpy(n->round.committed_digest, SIM_DIGEST_OLD, HEFT__DIGEST_SIZE);
    n->record.committed = OLD;
    n->faults = v->faults;
    n->claims = v->claims;
    n->pushes = v->pushes;
    n->one_engine = v->one_engine;
    n->heals = 1;
    for (int i = 0; i < N; i++) {
        sim_init(&n->sims[i], i == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION,
                 i == 0 ? 0 : OLD);
        n->sims[i].in_place = v->in_place[i];
        deliver(n, i);
    }
    const heft__round_request_t request = { .kind = HEFT__KIND_SYNC, .version = NEW };
    EXPECT_STATUS(heft__round_begin(&n->round, &request, 0, &err), HEFT_OK);
    n->begun = true;
    serve_todo(n);
}

/* ---- random walks ---- */

static void random_step(node_t *n, uint64_t *seed, int percent)
{
    const int i = (int)heft_test_random_in(seed, 0, N - 1);
    const bool fault = heft_test_random_in(seed, 0, 99) < percent;
    const int quiet[] = { MOVE_POLL, MOVE_POLL, MOVE_POLL, MOVE_WORK, MOVE_WORK, MOVE_WRITE_OK };
    if (!fault) {
        (void)apply(n, quiet[heft_test_random_in(seed, 0, 5)], i);
        return;
    }
    const int which = (int)heft_test_random_in(seed, MOVE_REPLY_LOST, N_MOVES - 1);
    n->heals = 1;
    n->claims = 1;
    n->pushes = 1;
    (void)apply(n, which, i);
}

static void random_faults_hold_promises(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    const int64_t n_walks = heft_test_cases(10000);
    uint64_t reached[16] = { 0 };
    explorer_t e;
    memset(&e, 0, sizeof e);
    for (int64_t walk = 0; walk < n_walks; walk++) {
        node_t n;
        const variant_t fleet = {
            .one_engine = heft_test_random_in(&seed, 0, 1) == 1,
            .in_place = { false, heft_test_random_in(&seed, 0, 3) == 0,
                          heft_test_random_in(&seed, 0, 3) == 0 },
        };
        start_as(&n, &fleet);
        const int percent = (int)heft_test_random_in(&seed, 0, 30);
        for (int step = 0; step < 300; step++) {
            random_step(&n, &seed, percent);
            reached[n.round.state]++;
            check_node(&e, 0, &n);
        }
    }
    for (int s = 0; s <= HEFT__ROUND_PARTIAL; s++) {
        if (reached[s] == 0 && n_walks >= 10000 && s != HEFT__ROUND_REVOKING) {
            fail_msg("state %d was never reached", s);
        }
    }
}

/* What each fleet must come to; a revoke takes four refusals, which have a test of their own. */
static void explore_as(const variant_t *v)
{
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    e.faults = v->faults;
    start_as(&n, v);
    (void)visit(&e, hash_node(&n));
    explore(&e, &n, 0);
    (void)printf("%-36s %u fault%s: %zu states, %" PRIu64 " moves; %" PRIu64 " ends: %" PRIu64
                 " committed, %" PRIu64 " aborted, %" PRIu64 " unknown, %" PRIu64
                 " partially committed\n",
                 v->name, v->faults, v->faults == 1 ? "" : "s", e.used, e.n_moves, e.n_ends,
                 e.n_committed, e.n_aborted, e.n_unknown, e.n_partial);
    const bool stages = !v->in_place[1] || !v->in_place[2];
    for (int s = 0; s <= HEFT__ROUND_PARTIAL; s++) {
        const bool excused = s == HEFT__ROUND_REVOKING ||
                             (!stages && (s == HEFT__ROUND_STAGING || s == HEFT__ROUND_STOPPING));
        if (e.reached[s] == 0 && !excused) {
            fail_msg("%s: state %d was never reached", v->name, s);
        }
    }
    free(e.seen);
}

static uint8_t n_faults(void)
{
    const char *faults = getenv("HEFT_TEST_FAULTS"); /* 2: millions of states */
    return faults != NULL ? (uint8_t)strtoul(faults, NULL, 10) : 1;
}

static void every_fault_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "two engines, staged", .faults = faults },
        { .name = "one engine of two ranks, staged", .faults = faults, .one_engine = true },
        { .name = "two engines, in place", .faults = faults, .in_place = { false, true, true } },
        { .name = "one engine of two, in place",
          .faults = faults,
          .one_engine = true,
          .in_place = { false, true, true } },
        { .name = "one staged, one in place",
          .faults = faults,
          .in_place = { false, true, false } },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        explore_as(&variants[i]);
    }
}

/* The same with an operator who makes every claim that could hold, and pushes once more. */
static void recovery_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "recovery, two engines", .faults = faults, .claims = 2, .pushes = 1 },
        { .name = "recovery, one engine of two",
          .faults = faults,
          .claims = 2,
          .pushes = 1,
          .one_engine = true },
        { .name = "recovery, in place",
          .faults = faults,
          .claims = 2,
          .pushes = 1,
          .in_place = { false, true, true } },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        explore_as(&variants[i]);
    }
}

/* Without faults up to a state: every member polls and works in turn. */
static void run_until(node_t *n, heft__round_state_t state)
{
    for (int step = 0; n->round.state != state; step++) {
        assert_true(step < 1000);
        (void)apply(n, MOVE_WRITE_OK, 0);
        for (int i = 0; i < N && n->round.state != state; i++) {
            (void)apply(n, MOVE_POLL, i);
            (void)apply(n, MOVE_WORK, i);
        }
    }
}

/* Two more faults of any kind, where they matter most: when both destinations have refused their
 * flip once, and have not said so yet. */
static void faults_after_two_refusals_keep_the_promises(void **state)
{
    (void)state;
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    start_as(&n, &(const variant_t){ .faults = 0 });
    run_until(&n, HEFT__ROUND_FLIPPING);
    for (int i = 1; i < N; i++) {
        assert_true(apply(&n, MOVE_POLL, i));
        assert_true(apply(&n, MOVE_REFUSE, i));
    }
    n.faults = 2;
    e.faults = UINT8_MAX; /* something has failed already */
    explore(&e, &n, 0);
    (void)printf("%zu states\n", e.used);
    assert_true(e.reached[HEFT__ROUND_REVOKING] > 0);
    free(e.seen);
}

static void without_faults_every_order_of_events_commits(void **state)
{
    (void)state;
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    start_as(&n, &(const variant_t){ .faults = 0 });
    explore(&e, &n, 0);
    assert_true(e.n_ends > 0);
    assert_int_equal(e.n_ends, e.n_committed);
    free(e.seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_every_order_of_events_commits),
        cmocka_unit_test(every_fault_keeps_the_promises),
        cmocka_unit_test(recovery_keeps_the_promises),
        cmocka_unit_test(faults_after_two_refusals_keep_the_promises),
        cmocka_unit_test(random_faults_hold_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
