/* SPDX-License-Identifier: Apache-2.0 */
#include "round_world.h"

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
                       m->serving << 12 | m->in_vain << 13 | m->feeds << 14) |
                (uint64_t)m->relay << 16);
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
                          (s->life == s->known_life) << 6 | s->fenced << 7 | s->feeds << 8 |
                          s->relays << 9 | s->fed_by << 10));
    h = mix(h, (uint64_t)s->live | (uint64_t)s->condition << 8 | (uint64_t)s->phase << 16 |
                   (uint64_t)s->result << 24 | (uint64_t)s->state << 32 | (uint64_t)s->life << 40);
    h = mix(h, (uint64_t)sim_is_broken(s));
    return mix(h, (uint64_t)(s->round.epoch * 100 + s->round.seq));
}

uint64_t world_hash(const node_t *n)
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
                          r->fencing << 16 | r->departed << 17 | r->relays << 18));
    h = mix(h, (uint64_t)(n->record.in_flight | n->record.in_doubt << 1 | n->record.relays << 2) |
                   (uint64_t)n->record.decision << 8 | (uint64_t)n->record.committed << 16);
    for (int i = 0; i < n->n; i++) {
        h = hash_member(h, &n->members[i]);
        h = hash_sim(h, &n->sims[i], &n->members[i]);
        h = mix(h, (uint64_t)(n->record.moves[i] | n->record.used[i] << 1 |
                              n->record.in_round[i] << 2 | n->record.feeds[i] << 3) |
                       (uint64_t)n->record.life[i] << 8);
    }
    return h != 0 ? h : 1;
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
    rec->relays = rec->in_flight && r->relays;
    rec->id = r->id;
    rec->decision = rec->in_flight ? decision : HEFT__DECISION_NONE;
    rec->committed = r->committed_version;
    if (r->pending == HEFT__DECISION_COMMIT) {
        rec->committed = r->version;
    } else if (r->pending == HEFT__DECISION_REVOKE) {
        rec->committed = r->before_version;
    }
    for (int i = 0; i < n->n; i++) {
        rec->used[i] = n->members[i].used;
        rec->in_round[i] = rec->in_flight && n->members[i].in_round;
        rec->moves[i] = n->members[i].moves;
        rec->feeds[i] = rec->in_round[i] && n->members[i].feeds;
        rec->life[i] = n->sims[i].known_life;
        rec->poison[i] = n->members[i].poison;
    }
}

/* Every destination that moves and is staged forwards to the next one that is. */
static void link_relays(node_t *n)
{
    int last = -1;
    for (int i = n->n_senders; i < n->n && n->round.relays; i++) {
        if (n->members[i].in_round && n->members[i].moves && !n->members[i].in_place) {
            if (last >= 0) {
                heft__round_set_relay(&n->round, (uint32_t)i, (uint32_t)last);
            }
            last = i;
        }
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
        if ((todo & HEFT__TODO_CHECK_SOURCES) != 0) {
            heft__round_sources_checked(r, -1, NULL, 0);
        }
        if ((todo & HEFT__TODO_CHECK_PLANS) != 0) {
            link_relays(n);
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
    return i < n->n_senders ? 0 : n->one_engine ? 1 : (uint32_t)i;
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
    const heft__round_member_t *m = &n->members[i];
    if (m->target == HEFT__PHASE_STAGE && m->order_seq != n->sims[i].order) {
        n->sims[i].relays = heft__round_is_relay(r, (uint32_t)i);
        n->sims[i].fed_by = (uint8_t)(heft__round_get_relay(m) + 1);
    }
    sim_take(&n->sims[i], m, r->decision, r->version);
}

static void rebase(node_t *n, int64_t t)
{
    heft__round_t *r = &n->round;
    if (r->deadline_ns != INT64_MAX) {
        r->deadline_ns -= t;
    }
    r->phase_began_ns -= t;
    r->began_ns -= t;
    for (int i = 0; i < n->n; i++) {
        /* beyond the contact time all silences are alike */
        n->members[i].contact_ns = heft__max_i64(n->members[i].contact_ns - t, -41);
    }
}

/* Time passes until something happens: a deadline, or a silence that lasted too long. Those who can
 * be reached poll all the time. */
static void pass_time(node_t *n)
{
    for (int i = 0; i < n->n; i++) {
        if (n->sims[i].reachable && n->sims[i].registered) {
            n->members[i].contact_ns = INT64_MAX / 4;
        }
    }
    const int64_t t = heft__round_next_tick(&n->round);
    for (int i = 0; i < n->n; i++) {
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
    heft__round_init(r, &config, n->members, (uint32_t)n->n, epoch, rec.seq);
    r->committed_version = rec.committed;
    memcpy(r->committed_digest, rec.committed == OLD ? SIM_DIGEST_OLD : SIM_DIGEST_NEW,
           HEFT__DIGEST_SIZE);
    r->before_version = n->is_feed ? NEW : OLD;
    memcpy(r->before_digest, n->is_feed ? SIM_DIGEST_NEW : SIM_DIGEST_OLD, HEFT__DIGEST_SIZE);
    for (int i = 0; i < n->n; i++) {
        heft__round_member_t *m = &n->members[i];
        n->sims[i].registered = false;
        m->used = rec.used[i];
        m->role = n->sims[i].role;
        m->engine = engine_of(n, i);
        m->in_place = n->sims[i].in_place;
        m->in_round = rec.in_round[i];
        m->moves = rec.in_flight && rec.moves[i];
        m->feeds = rec.in_flight && rec.feeds[i];
        m->poison = rec.poison[i];
        n->sims[i].known_life = rec.used[i] ? rec.life[i] : 0;
    }
    if (rec.in_flight) {
        r->relays = rec.relays;
        r->id = rec.id;
        r->version = NEW;
        memcpy(r->source_digest, SIM_DIGEST_NEW, HEFT__DIGEST_SIZE);
        r->decision = rec.decision;
        heft__round_restore(r, rec.in_doubt, 0);
    }
    serve_todo(n);
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
    if (n->is_feed && s->serving && s->live != NEW) {
        return "serves something else than the committed version";
    }
    if (s->serving && s->condition != HEFT__CONDITION_OK) {
        return "serves what may be a mixture";
    }
    for (int k = n->n_senders; k < n->n; k++) {
        const sim_t *other = &n->sims[k];
        const bool pair =
            n->one_engine && s->serving && other->serving && s->life == 1 && other->life == 1;
        if (pair && s->live != other->live) {
            return "one engine serves two versions";
        }
    }
    return NULL;
}

/* Is anyone at it who writes to member i? */
static bool is_any_sending(const node_t *n, int i)
{
    bool is_sending = false;
    if (n->sims[i].fed_by > 0) {
        return n->sims[n->sims[i].fed_by - 1].sending;
    }
    for (int k = 0; k < n->n_senders; k++) {
        is_sending = is_sending || n->sims[k].sending;
    }
    return is_sending;
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
    const bool exposed = s->state == HEFT__STATE_STAGING && !s->fenced && is_any_sending(n, i);
    return over && exposed && s->life == s->known_life && heft__round_id_equal(s->round, rec->id)
               ? "the round is over while a transfer may write"
               : NULL;
}

bool world_rests(const heft__round_t *r)
{
    return r->state == HEFT__ROUND_IDLE || r->state == HEFT__ROUND_UNKNOWN ||
           r->state == HEFT__ROUND_PARTIAL;
}

/* What a sender is told. */
static const char *check_sender(const node_t *n, int k)
{
    const heft__round_t *r = &n->round;
    const heft__round_member_t *m = &n->members[k];
    if (m->target == HEFT__PHASE_STAGE && r->state == HEFT__ROUND_STAGING) {
        for (int i = n->n_senders; i < n->n; i++) {
            const sim_t *s = &n->sims[i];
            if (n->members[i].moves && !s->in_place && s->life == s->known_life &&
                s->phase < HEFT__PHASE_STAGE) {
                return "told to send before the receiver is armed";
            }
        }
    }
    const bool sends_in_flip = m->target == HEFT__PHASE_FLIP &&
                               heft__round_id_equal(m->order_round, r->id) &&
                               r->state == HEFT__ROUND_FLIPPING;
    return sends_in_flip && n->record.committed != NEW
               ? "told to send in place without a durable commit"
               : NULL;
}

const char *world_check(const node_t *n)
{
    const heft__round_t *r = &n->round;
    const sim_t *feeder = &n->sims[0];
    if (n->is_feed && feeder->life == 1 && (!feeder->serving || feeder->live != NEW)) {
        return "the feeder was disturbed";
    }
    for (int i = n->n_senders; i < n->n; i++) {
        const char *service = check_service(n, i);
        const char *order = check_order(n, i);
        if (service != NULL || order != NULL) {
            return service != NULL ? service : order;
        }
    }
    for (int k = 0; k < n->n_senders; k++) {
        const char *sender = check_sender(n, k);
        if (sender != NULL) {
            return sender;
        }
    }
    if (!world_rests(r) && heft__round_next_tick(r) == INT64_MAX && r->wait_ticket == 0) {
        return "waits without a deadline";
    }
    return NULL;
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
    if (n->is_feed && (!n->members[i].moves || n->round.outcome != HEFT__ROUND_COMMITTED)) {
        return NULL; /* it waits for the next one */
    }
    if (!s->serving && !n->warned) {
        return "left out of service without a word";
    }
    return s->live != n->record.committed && !(n->is_feed && n->warned)
               ? "serves another version than the committed one"
               : NULL;
}

/* Nothing can happen any more. */
const char *world_check_end(const node_t *n)
{
    if (!world_rests(&n->round)) {
        return "stuck";
    }
    for (int i = n->n_senders; i < n->n; i++) {
        const char *wrong = check_survivor(n, i);
        if (wrong != NULL) {
            return wrong;
        }
    }
    return NULL;
}

/* ---- moves ---- */

const char *const move_names[N_MOVES] = { "poll",
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

bool world_move_is_per_member(int move)
{
    return move == MOVE_POLL || move == MOVE_WORK || move == MOVE_REPLY_LOST ||
           move == MOVE_LATE_REPORT || move == MOVE_FAIL || move == MOVE_REFUSE ||
           move == MOVE_UNKNOWN || move == MOVE_SILENT || move == MOVE_RESTART ||
           move == MOVE_HEAL || (move >= MOVE_CLAIM_RESTARTED && move <= MOVE_CLAIM_REFILL);
}

/* One that receives in place and one of whose sources will not send: it gives up, and may be half
 * written. */
static bool is_forsaken(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    bool is = false;
    if (i < n->n_senders || !s->in_place || s->phase != HEFT__PHASE_FLIP ||
        s->result != HEFT__RESULT_WORKING) {
        return false;
    }
    for (int k = 0; k < n->n_senders; k++) {
        const sim_t *source = &n->sims[k];
        const bool failed =
            source->phase == HEFT__PHASE_FLIP && source->result >= HEFT__RESULT_REFUSED;
        is = is || failed || source->life != 1 || !source->reachable ||
             (heft__round_id_equal(source->round, s->round) && source->phase > HEFT__PHASE_FLIP);
    }
    return is;
}

/* Does a sender do its part of what member i waits for? */
static bool does_its_part(const node_t *n, int k, int i)
{
    const sim_t *s = &n->sims[i];
    const sim_t *source = &n->sims[k];
    if (!heft__round_id_equal(source->round, s->round)) {
        return false;
    }
    return s->phase == HEFT__PHASE_FLIP
               ? source->phase == HEFT__PHASE_FLIP && source->result < HEFT__RESULT_REFUSED
               : source->phase >= HEFT__PHASE_STAGE && source->phase != HEFT__PHASE_ABORT &&
                     source->result != HEFT__RESULT_FAILED &&
                     source->result != HEFT__RESULT_REFUSED;
}

/* Whether the work in hand can come to its end: a receiver's bytes come from all senders. */
static bool can_work(const node_t *n, int i)
{
    const sim_t *s = &n->sims[i];
    const bool receives = (s->phase == HEFT__PHASE_FLIP && s->in_place) ||
                          (s->phase == HEFT__PHASE_STAGE && i >= n->n_senders);
    bool can = s->result == HEFT__RESULT_WORKING;
    if (s->phase == HEFT__PHASE_STAGE && s->fed_by > 0) {
        return can && does_its_part(n, s->fed_by - 1, i);
    }
    for (int k = 0; k < n->n_senders && receives; k++) {
        can = can && does_its_part(n, k, i);
    }
    return can;
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

/* A push; or a feed of all that wait to be fed. */
static heft_status_t begin(node_t *n, heft_error_t *err)
{
    static const uint32_t feeder = 0;
    uint32_t slots[N];
    heft__round_request_t request = { .kind = HEFT__KIND_SYNC,
                                      .version = NEW,
                                      .relays = n->relays };
    if (n->is_feed) {
        request = (heft__round_request_t){
            .kind = HEFT__KIND_FEED, .slots = slots, .feeders = &feeder, .n_feeders = 1
        };
        for (uint32_t i = 1; i < (uint32_t)n->n; i++) {
            if (heft__round_is_joiner(&n->round, i, 0)) {
                slots[request.n_slots++] = i;
            }
        }
    }
    return heft__round_begin(&n->round, &request, 0, err);
}

static bool apply_push(node_t *n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    if (n->pushes == 0 || n->round.state != HEFT__ROUND_IDLE || begin(n, &err) != HEFT_OK) {
        return false;
    }
    n->pushes--;
    serve_todo(n);
    return true;
}

bool world_apply(node_t *n, int move, int i)
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
void world_start(node_t *n, const variant_t *v)
{
    const int64_t committed = v->is_feed ? NEW : OLD;
    memset(n, 0, sizeof *n);
    n->n_senders = v->n_sources > 0 ? v->n_sources : 1;
    n->n = n->n_senders + (v->n_destinations > 0 ? v->n_destinations : 2);
    heft__round_init(&n->round, &config, n->members, (uint32_t)n->n, 1, 0);
    n->round.committed_version = committed;
    memcpy(n->round.committed_digest, v->is_feed ? SIM_DIGEST_NEW : SIM_DIGEST_OLD,
           HEFT__DIGEST_SIZE);
    n->record.committed = committed;
    n->is_feed = v->is_feed;
    n->relays = v->relays;
    n->faults = v->faults;
    n->claims = v->claims;
    n->pushes = v->pushes;
    n->one_engine = v->one_engine;
    n->heals = 1;
    for (int i = 0; i < n->n; i++) {
        const bool sends = i < n->n_senders;
        sim_init(&n->sims[i], sends && !v->is_feed ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION,
                 sends != v->is_feed ? 0 : committed);
        n->sims[i].in_place = v->in_place[i];
        deliver(n, i);
    }
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(begin(n, &err), HEFT_OK);
    n->begun = true;
    serve_todo(n);
}
