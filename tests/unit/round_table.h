/* SPDX-License-Identifier: Apache-2.0 */
/* A round machine with four seats, driven by script: slot 0 is the source, 1 and 2 are one engine,
 * 3 another. Time is a number. */
#ifndef ROUND_TABLE_H
#define ROUND_TABLE_H

#include "heft_test.h"
#include "round_sim.h"

#define N 4 /* slot 0: the source; 1 and 2: one engine; 3: another */
#define S INT64_C(1000000000)

typedef struct table {
    heft__round_t round;
    heft__round_member_t members[N];
    int64_t sequence[N];
    int64_t live[N];
    bool serving[N];
    heft__condition_t condition[N];
    heft_status_t error; /* of failures; 0: HEFT_ERR_IO */
    uint32_t movers;
    int64_t now;
} table_t;

/* Every test has a table of its own in *state, and seats members at it with set_table. */
static inline int lay_table(void **state)
{
    static table_t table;
    memset(&table, 0, sizeof table);
    *state = &table;
    return 0;
}
#define TABLE_TEST(test) cmocka_unit_test_setup(test, lay_table)

static inline void seat(table_t *t, uint32_t slot, bool fresh)
{
    const heft__role_t role = slot == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION;
    heft__round_join(&t->round, slot, role, slot == 3 ? 2 : 1, fresh, t->now);
    heft__round_bind(&t->round, slot, false, t->now);
    t->sequence[slot] = fresh ? 0 : t->sequence[slot];
}

static inline void clear_todo(table_t *t)
{
    t->round.todo = 0;
}

/* What sources hold is not looked at here. */
static inline void agree(table_t *t)
{
    if ((t->round.todo & HEFT__TODO_CHECK_SOURCES) != 0) {
        t->round.todo &= ~(uint32_t)HEFT__TODO_CHECK_SOURCES;
        heft__round_sources_checked(&t->round, -1, NULL, t->now);
    }
}

static inline void set_table(table_t *t, uint32_t n_members)
{
    heft__round_config_t config = { .contact_ns = 30 * S };
    for (int p = 0; p < HEFT__N_PHASES; p++) {
        config.limit_ns[p] = 60 * S;
    }
    memset(t, 0, sizeof *t);
    heft__round_init(&t->round, &config, t->members, N, 3, 11);
    t->round.committed_version = 7;
    (void)strcpy(t->round.committed_digest, SIM_DIGEST_OLD);
    for (uint32_t i = 0; i < n_members; i++) {
        seat(t, i, true);
        t->live[i] = i > 0 ? 7 : 0;
        t->serving[i] = i > 0;
    }
    clear_todo(t);
}

static inline heft_status_t report(table_t *t, uint32_t slot, heft__phase_t phase,
                                   heft__result_t result, heft__member_state_t state,
                                   heft_error_t *err)
{
    heft__report_t r;
    heft__report_init(&r);
    r.sequence = ++t->sequence[slot];
    r.order = t->members[slot].order_seq;
    r.round = phase != HEFT__PHASE_NONE ? t->round.id : (heft__round_id_t){ 0, 0 };
    r.phase = phase;
    r.result = result;
    r.state = state;
    r.live_version = t->live[slot];
    r.serving = t->serving[slot];
    r.condition = t->condition[slot];
    if (t->movers > 0 && slot > 0 && phase >= HEFT__PHASE_STAGE) {
        r.movers = t->movers;
        r.version = 8;
        (void)strcpy(r.source_digest, SIM_DIGEST_NEW);
    }
    if (r.live_version > 0) {
        (void)strcpy(r.live_digest, r.live_version == 7 ? SIM_DIGEST_OLD : SIM_DIGEST_NEW);
    }
    r.error.status = t->error != HEFT_OK ? t->error : HEFT_ERR_IO;
    r.error.phase = phase;
    (void)strcpy(r.error.cause, "said so");
    heft_status_t status = heft__round_report(&t->round, slot, &r, t->now, err);
    agree(t);
    return status;
}

static inline void say(table_t *t, uint32_t slot, heft__phase_t phase, heft__result_t result,
                       heft__member_state_t state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(report(t, slot, phase, result, state, &err), HEFT_OK);
}

static inline void ok(table_t *t, uint32_t slot, heft__phase_t phase, heft__member_state_t state)
{
    say(t, slot, phase, HEFT__RESULT_OK, state);
}

static inline void hear_all(table_t *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        say(t, i, HEFT__PHASE_NONE, HEFT__RESULT_NONE, HEFT__STATE_IDLE);
    }
}

static inline heft_status_t begin(table_t *t, int64_t version, heft_error_t *err)
{
    const heft__round_request_t request = { .kind = HEFT__KIND_SYNC, .version = version };
    return heft__round_begin(&t->round, &request, t->now, err);
}

static inline void write_ok(table_t *t)
{
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_OK, t->now);
    agree(t);
}

static inline void tick_after(table_t *t, int64_t ns)
{
    t->now += ns;
    heft__round_tick(&t->round, t->now);
    agree(t);
}

/* Everybody keeps in touch while time passes. */
static inline void stay(table_t *t, int64_t ns, uint32_t n)
{
    t->now += ns;
    for (uint32_t i = 0; i < n; i++) {
        t->members[i].contact_ns = t->now;
    }
    heft__round_tick(&t->round, t->now);
    agree(t);
}

#define EXPECT_ORDER(slot, phase)                                                        \
    do {                                                                                 \
        if (t->members[slot].target != (phase)) {                                        \
            fail_msg("slot %d: order %s, expected %s (%s)", (int)(slot),                 \
                     heft__phase_text(t->members[slot].target), heft__phase_text(phase), \
                     heft__round_state_text(&t->round));                                 \
        }                                                                                \
    } while (0)
#define EXPECT_STATE(expected)                                            \
    do {                                                                  \
        if (t->round.state != (expected)) {                               \
            fail_msg("state %d (%s), expected %d", (int)t->round.state,   \
                     heft__round_state_text(&t->round), (int)(expected)); \
        }                                                                 \
    } while (0)

static inline void begin_ok(table_t *t, uint32_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    hear_all(t, n);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_STORING);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
}

static inline void to_prepare(table_t *t, uint32_t n)
{
    begin_ok(t, n);
    for (uint32_t i = 0; i < n; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_PREFLIGHT);
        ok(t, i, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    }
    assert_true((t->round.todo & HEFT__TODO_CHECK_PLANS) != 0);
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
    EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
    EXPECT_ORDER(1, HEFT__PHASE_PREFLIGHT);
}

static inline void to_stage(table_t *t, uint32_t n)
{
    to_prepare(t, n);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    assert_true((t->round.todo & HEFT__TODO_CHECK_DIGEST) != 0);
    heft__round_prepared(&t->round, SIM_DIGEST_NEW, t->now);
    for (uint32_t i = 1; i < n; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_STAGE);
        EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
        say(t, i, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
    }
    EXPECT_ORDER(0, HEFT__PHASE_STAGE);
    say(t, 0, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_SENDING);
}

static inline void to_pause(table_t *t, uint32_t n)
{
    to_stage(t, n);
    ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
    for (uint32_t i = 1; i < n; i++) {
        ok(t, i, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    }
    for (uint32_t i = 0; i < n; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_VERIFY);
        ok(t, i, HEFT__PHASE_VERIFY, i == 0 ? HEFT__STATE_SENT : HEFT__STATE_STAGED);
    }
    EXPECT_STATE(HEFT__ROUND_STAGED);
}

static inline void to_decide(table_t *t, uint32_t n)
{
    to_pause(t, n);
    for (uint32_t i = 1; i < n; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_PAUSE);
        t->serving[i] = false;
        ok(t, i, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    }
    EXPECT_STATE(HEFT__ROUND_DECIDING);
    assert_true((t->round.todo & HEFT__TODO_WRITE) != 0);
}

static inline void to_flip(table_t *t, uint32_t n)
{
    to_decide(t, n);
    EXPECT_ORDER(1, HEFT__PHASE_PAUSE); /* not before the record is on disk */
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    assert_int_equal(t->round.committed_version, 8);
}

static inline void flip_ok(table_t *t, uint32_t slot)
{
    t->live[slot] = 8;
    ok(t, slot, HEFT__PHASE_FLIP, HEFT__STATE_FLIPPED);
}

static inline void refuse_twice(table_t *t, uint32_t slot)
{
    const int64_t first = t->members[slot].order_seq;
    say(t, slot, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
    assert_true(t->members[slot].order_seq > first);
    EXPECT_ORDER(slot, HEFT__PHASE_FLIP);
    say(t, slot, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
}

#endif
