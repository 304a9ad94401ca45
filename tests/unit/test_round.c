/* SPDX-License-Identifier: Apache-2.0 */
/* The round machine by script: the rarer edges, each by name. Time is a number; nothing else
 * happens. */
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
    int64_t now;
} table_t;

static void seat(table_t *t, uint32_t slot, bool fresh)
{
    const heft__role_t role = slot == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION;
    heft__round_join(&t->round, slot, role, slot == 3 ? 2 : 1, fresh, t->now);
    heft__round_bind(&t->round, slot, false, t->now);
    t->sequence[slot] = fresh ? 0 : t->sequence[slot];
}

static void clear_todo(table_t *t)
{
    t->round.todo = 0;
}

static void set_table(table_t *t, uint32_t n_members)
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

static heft_status_t report(table_t *t, uint32_t slot, heft__phase_t phase, heft__result_t result,
                            heft__member_state_t state, heft_error_t *err)
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
    if (r.live_version > 0) {
        (void)strcpy(r.live_digest, r.live_version == 7 ? SIM_DIGEST_OLD : SIM_DIGEST_NEW);
    }
    r.error.status = HEFT_ERR_IO;
    r.error.phase = phase;
    (void)strcpy(r.error.cause, "said so");
    return heft__round_report(&t->round, slot, &r, t->now, err);
}

static void say(table_t *t, uint32_t slot, heft__phase_t phase, heft__result_t result,
                heft__member_state_t state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(report(t, slot, phase, result, state, &err), HEFT_OK);
}

static void ok(table_t *t, uint32_t slot, heft__phase_t phase, heft__member_state_t state)
{
    say(t, slot, phase, HEFT__RESULT_OK, state);
}

static void hear_all(table_t *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        say(t, i, HEFT__PHASE_NONE, HEFT__RESULT_NONE, HEFT__STATE_IDLE);
    }
}

static heft_status_t begin(table_t *t, int64_t version, heft_error_t *err)
{
    const heft__round_request_t request = { .kind = HEFT__KIND_SYNC, .version = version };
    return heft__round_begin(&t->round, &request, t->now, err);
}

static void write_ok(table_t *t)
{
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_OK, t->now);
}

static void tick_after(table_t *t, int64_t ns)
{
    t->now += ns;
    heft__round_tick(&t->round, t->now);
}

/* Everybody keeps in touch while time passes. */
static void stay(table_t *t, int64_t ns, uint32_t n)
{
    t->now += ns;
    for (uint32_t i = 0; i < n; i++) {
        t->members[i].contact_ns = t->now;
    }
    heft__round_tick(&t->round, t->now);
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

static void begin_ok(table_t *t, uint32_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    hear_all(t, n);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_STORING);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
}

static void to_prepare(table_t *t, uint32_t n)
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

static void to_stage(table_t *t, uint32_t n)
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

static void to_pause(table_t *t, uint32_t n)
{
    to_stage(t, n);
    ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
    for (uint32_t i = 1; i < n; i++) {
        ok(t, i, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    }
    for (uint32_t i = 1; i < n; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_VERIFY);
        ok(t, i, HEFT__PHASE_VERIFY, HEFT__STATE_STAGED);
    }
    EXPECT_STATE(HEFT__ROUND_STAGED);
}

static void to_decide(table_t *t, uint32_t n)
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

static void to_flip(table_t *t, uint32_t n)
{
    to_decide(t, n);
    EXPECT_ORDER(1, HEFT__PHASE_PAUSE); /* not before the record is on disk */
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    assert_int_equal(t->round.committed_version, 8);
}

static void flip_ok(table_t *t, uint32_t slot)
{
    t->live[slot] = 8;
    ok(t, slot, HEFT__PHASE_FLIP, HEFT__STATE_FLIPPED);
}

static void refuse_twice(table_t *t, uint32_t slot)
{
    const int64_t first = t->members[slot].order_seq;
    say(t, slot, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
    assert_true(t->members[slot].order_seq > first);
    EXPECT_ORDER(slot, HEFT__PHASE_FLIP);
    say(t, slot, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
}

/* ---- the straight way ---- */

static void commit_takes_every_phase_in_order(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_flip(t, 3);
    flip_ok(t, 1);
    EXPECT_ORDER(1,
                 HEFT__PHASE_FLIP); /* an engine resumes only when all of its ranks have flipped */
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_RESUME);
        t->serving[i] = true;
        ok(t, i, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
    }
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_RELEASE);
        ok(t, i, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    }
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "committed");
    assert_int_equal(t->round.n_warnings, 0);
    assert_int_equal(t->round.cause.status, HEFT_OK);
    assert_int_equal(heft__round_next_tick(&t->round), INT64_MAX);
}

static void record_that_cannot_be_written_means_no_round(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    hear_all(t, 2);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_false(t->round.started);
    assert_int_equal(t->members[1].order_seq, 0);
    /* the number is not used again */
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    assert_int_equal(t->round.id.seq, 13);
}

static void cancel_while_begin_is_written_aborts_at_once(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    hear_all(t, 2);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    heft__round_cancel(&t->round, t->now);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "aborted");
    assert_int_equal(t->round.cause.status, HEFT_ERR_CANCELED);
    assert_int_equal(t->members[1].order_seq, 0);
}

/* ---- failures before the decision ---- */

static void new_process_is_named(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_pause(t, 3);
    seat(t, 2, true);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 2);
    assert_string_equal(t->round.cause.cause, "returned as a new process");
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_NONE); /* the new process has no part in it */
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
}

static void source_is_not_needed_after_staging(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 2);
    to_pause(t, 2);
    seat(t, 0, true); /* a new process */
    EXPECT_STATE(HEFT__ROUND_STAGED);
    t->serving[1] = false;
    ok(t, 1, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    write_ok(t);
    flip_ok(t, 1);
    ok(t, 1, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "committed");
}

static void changed_binding_fails_the_round(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 2);
    to_pause(t, 2);
    heft__round_bind(&t->round, 1, false, t->now);
    EXPECT_STATE(HEFT__ROUND_STAGED);
    heft__round_bind(&t->round, 1, true, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause.status, HEFT_ERR_STALE);
}

static void silence_and_deadlines_name_the_member(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_prepare(t, 3);
    t->now += 20 * S;
    say(t, 1, HEFT__PHASE_PREFLIGHT, HEFT__RESULT_OK, HEFT__STATE_IDLE);
    assert_int_equal(heft__round_next_tick(&t->round), 30 * S + 1); /* the source acts alone now */
    tick_after(t, 11 * S);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 0);
    assert_int_equal(t->round.cause.status, HEFT_ERR_PEER);
    assert_string_equal(t->round.cause.cause, "no contact for 30000 ms");

    set_table(t, 3);
    to_pause(t, 3);
    ok(t, 1, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    stay(t, 61 * S, 3);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 2);
    assert_int_equal(t->round.cause.status, HEFT_ERR_TIMEOUT);
    assert_string_equal(t->round.cause.cause, "pause took longer than 60000 ms");
}

static void late_report_changes_nothing(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    to_stage(t, 2);
    t->sequence[1] -= 2;
    const table_t before = *t;
    EXPECT_STATUS(report(t, 1, HEFT__PHASE_STAGE, HEFT__RESULT_OK, HEFT__STATE_STAGED, &err),
                  HEFT_ERR_STALE);
    assert_memory_equal(before.members, t->members, sizeof t->members);
}

/* ---- transfers ---- */

static void sources_stop_before_receivers_drop(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_stage(t, 3);
    say(t, 2, HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, HEFT__STATE_STAGING);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    EXPECT_ORDER(1, HEFT__PHASE_STAGE);
    EXPECT_ORDER(2, HEFT__PHASE_STAGE);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);
}

static void dead_source_is_proven_by_its_receivers(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_stage(t, 3);
    seat(t, 0, true);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    say(t, 1, HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, HEFT__STATE_STAGING);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    ok(t, 2, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
}

static void transfer_unknown_touches_nothing(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    set_table(t, 3);
    to_stage(t, 3);
    say(t, 0, HEFT__PHASE_STAGE, HEFT__RESULT_UNKNOWN, HEFT__STATE_SENDING);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    ok(t, 1, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    stay(t, 61 * S, 3);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_STAGE); /* no abort, no release */
    }
    assert_true(heft__round_is_poisoned(&t->round, &slot, &why));
    assert_int_equal(t->members[0].poison, HEFT__POISON_TRANSFER);
    assert_int_equal(t->members[1].poison, HEFT__POISON_NONE);
    assert_int_equal(t->members[2].poison, HEFT__POISON_TRANSFER);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);

    /* the receiver fences; the source is restarted; each claim is checked */
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_FENCED, t->now, &err),
                  HEFT_ERR_STATE);
    say(t, 2, HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, HEFT__STATE_STAGING);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_FENCED, t->now, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(heft__round_recover(&t->round, 0, HEFT__CLAIM_RESTARTED, t->now, &err),
                  HEFT_ERR_STATE);
    seat(t, 0, true);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(heft__round_recover(&t->round, 0, HEFT__CLAIM_RESTARTED, t->now, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    ok(t, 2, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
}

static void silent_receiver_is_fenced_by_its_source(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_stage(t, 3);
    t->now += 25 * S;
    say(t, 0, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_SENDING);
    say(t, 1, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
    tick_after(t, 6 * S);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    assert_int_equal(t->round.cause_slot, 2);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    tick_after(t, 31 * S); /* the silent one is excluded */
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_true(t->members[2].excluded);
    /* and holds up the next round until it has reported */
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    const heft__round_id_t old = t->members[2].order_round;
    write_ok(t);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);
    assert_true(old.seq < t->round.id.seq);
    const heft__round_id_t id = t->round.id;
    t->round.id = old; /* it reports the round that its order names */
    heft__report_t r;
    heft__report_init(&r);
    r.sequence = ++t->sequence[2];
    r.order = t->members[2].order_seq;
    r.round = old;
    r.phase = HEFT__PHASE_ABORT;
    r.result = HEFT__RESULT_OK;
    t->round.id = id;
    EXPECT_STATUS(heft__round_report(&t->round, 2, &r, t->now, &err), HEFT_OK);
    assert_false(t->members[2].excluded);
    EXPECT_ORDER(2, HEFT__PHASE_PREFLIGHT);
}

/* ---- the decision ---- */

static void decision_surely_not_written_aborts(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_decide(t, 3);
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    assert_int_equal(t->round.committed_version, 7);
    assert_int_equal(t->round.cause.status, HEFT_ERR_IO);
}

static void decision_perhaps_written_only_goes_forward(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    to_decide(t, 3);
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_MAYBE, t->now);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_ORDER(1, HEFT__PHASE_PAUSE);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
    /* it is tried again, and a clean failure proves nothing any more */
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    const int64_t ticket = t->round.write_ticket;
    stay(t, 61 * S, 3);
    assert_true(t->round.write_ticket > ticket);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    flip_ok(t, 1);
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    int32_t slot;
    const char *why;
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
}

static void decision_that_hangs_is_waited_for(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_decide(t, 3);
    const int64_t ticket = t->round.wait_ticket;
    stay(t, 61 * S, 3);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    assert_true((t->round.todo & HEFT__TODO_ENDED) != 0);
    heft__round_written(&t->round, ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
}

static void left_out_engine_must_have_stopped(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    const uint32_t subset[] = { 1, 2 };
    for (int stopped = 0; stopped < 2; stopped++) {
        set_table(t, 4);
        t->serving[3] = stopped == 0;
        hear_all(t, 4);
        heft__round_request_t request = {
            .kind = HEFT__KIND_SYNC, .version = 8, .slots = subset, .n_slots = 2
        };
        EXPECT_STATUS(heft__round_begin(&t->round, &request, t->now, &err), HEFT_OK);
        write_ok(t);
        for (uint32_t i = 0; i < 3; i++) {
            ok(t, i, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
        }
        EXPECT_ORDER(3, HEFT__PHASE_NONE);
        heft__round_plans_checked(&t->round, -1, NULL, t->now);
        ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
        heft__round_prepared(&t->round, SIM_DIGEST_NEW, t->now);
        for (uint32_t i = 1; i < 3; i++) {
            say(t, i, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
        }
        ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
        for (uint32_t i = 1; i < 3; i++) {
            ok(t, i, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
        }
        for (uint32_t i = 1; i < 3; i++) {
            ok(t, i, HEFT__PHASE_VERIFY, HEFT__STATE_STAGED);
        }
        for (uint32_t i = 1; i < 3; i++) {
            t->serving[i] = false;
            ok(t, i, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
        }
        if (stopped == 0) {
            EXPECT_STATE(HEFT__ROUND_ABORTED);
            assert_int_equal(t->round.cause_slot, 3);
            assert_string_equal(t->round.cause.cause, "takes no part and still serves version 7");
        } else {
            EXPECT_STATE(HEFT__ROUND_DECIDING);
        }
    }
}

/* ---- flip ---- */

static void flip_refused_everywhere_is_revoked(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_flip(t, 3);
    refuse_twice(t, 1);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    refuse_twice(t, 2);
    EXPECT_STATE(HEFT__ROUND_REVOKING);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP); /* no abort before the revoke is on disk */
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.decision, HEFT__DECISION_REVOKE);
    assert_int_equal(t->round.committed_version, 7);
    assert_string_equal(t->round.committed_digest, SIM_DIGEST_OLD);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);
}

static void revoke_that_cannot_be_written_is_unknown(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 3);
    to_flip(t, 3);
    refuse_twice(t, 1);
    refuse_twice(t, 2);
    heft__round_written(&t->round, t->round.write_ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    assert_int_equal(t->round.committed_version, 8);
    /* it goes on trying */
    stay(t, 61 * S, 3);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.committed_version, 7);
}

static void repeated_refusal_of_the_first_order_is_no_second_one(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 2);
    to_flip(t, 2);
    const int64_t first = t->members[1].order_seq;
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
    heft__report_t r;
    heft__report_init(&r);
    heft_error_t err = HEFT_ERROR_INIT;
    r.sequence = ++t->sequence[1];
    r.order = first; /* it has not taken in the second order */
    r.round = t->round.id;
    r.phase = HEFT__PHASE_FLIP;
    r.result = HEFT__RESULT_REFUSED;
    r.state = HEFT__STATE_PAUSED;
    EXPECT_STATUS(heft__round_report(&t->round, 1, &r, t->now, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    flip_ok(t, 1);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
}

static void split_fleet_serves_one_version(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 1);
    flip_ok(t, 3);
    refuse_twice(t, 2);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);   /* its engine is not whole: it stays paused */
    EXPECT_ORDER(3, HEFT__PHASE_RESUME); /* this one is */
    EXPECT_ORDER(0, HEFT__PHASE_STAGE);  /* nothing is released */
    assert_int_equal(t->members[2].poison, HEFT__POISON_REFUSED);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
    EXPECT_STATUS(heft__round_leave(&t->round, 2, &err), HEFT_ERR_BUSY);
    /* taken out of the fleet: the rest goes on */
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_REMOVED, t->now, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    EXPECT_ORDER(1, HEFT__PHASE_RESUME);
}

static void unknown_outranks_a_split(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 1);
    refuse_twice(t, 2);
    say(t, 3, HEFT__PHASE_FLIP, HEFT__RESULT_UNKNOWN, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    /* the word of the third settles it: known, and split */
    flip_ok(t, 3);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    assert_int_equal(t->members[3].poison, HEFT__POISON_NONE);
    assert_int_equal(t->members[2].poison, HEFT__POISON_REFUSED);
}

static void silent_member_that_flipped_after_all_commits(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    int32_t slot;
    const char *why;
    set_table(t, 3);
    to_flip(t, 3);
    flip_ok(t, 1);
    tick_after(t, 31 * S);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    assert_int_equal(t->members[2].poison, HEFT__POISON_SILENT);
    EXPECT_ORDER(2, HEFT__PHASE_FLIP); /* never aborted */
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    EXPECT_ORDER(1, HEFT__PHASE_RESUME);
    EXPECT_ORDER(2, HEFT__PHASE_RESUME);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
}

static void member_that_returns_anew_in_flip_is_partial(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    to_flip(t, 3);
    flip_ok(t, 1);
    t->live[2] = 0;
    seat(t, 2, true);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    assert_int_equal(t->members[2].poison, HEFT__POISON_GONE);
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_RESTARTED, t->now, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    /* the engine lacks a rank at this version: it is released, and does not serve alone */
    EXPECT_ORDER(1, HEFT__PHASE_RELEASE);
    ok(t, 0, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    /* the same version again moves both of its ranks */
    hear_all(t, 3);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    write_ok(t);
    assert_true(t->members[1].moves);
    assert_true(t->members[2].moves);
}

/* ---- resume, release, abort ---- */

static void failed_resume_is_committed_with_a_warning(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 2);
    to_flip(t, 2);
    flip_ok(t, 1);
    say(t, 1, HEFT__PHASE_RESUME, HEFT__RESULT_FAILED, HEFT__STATE_FLIPPED);
    EXPECT_ORDER(1, HEFT__PHASE_RELEASE);
    ok(t, 0, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "committed");
    assert_int_equal(t->round.n_warnings, 1);
    assert_int_equal(t->round.cause.status, HEFT_OK);
}

static void release_failure_warns_and_blocks(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    to_flip(t, 2);
    flip_ok(t, 1);
    t->serving[1] = true;
    ok(t, 1, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    say(t, 0, HEFT__PHASE_RELEASE, HEFT__RESULT_FAILED, HEFT__STATE_SENT);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.n_warnings, 2);
    assert_true(t->members[0].excluded);
    const int64_t seq = t->members[0].order_seq;
    EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
    write_ok(t);
    EXPECT_ORDER(0, HEFT__PHASE_RELEASE); /* said again, and waited for */
    assert_true(t->members[0].order_seq > seq);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    EXPECT_ORDER(1, HEFT__PHASE_RELEASE);
}

static void flip_in_an_aborted_round_is_found(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    int32_t slot;
    const char *why;
    set_table(t, 2);
    to_pause(t, 2);
    heft__round_cancel(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_FLIPPED); /* it should not have: but it says so */
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_true(heft__round_is_poisoned(&t->round, &slot, &why));
    assert_int_equal(slot, 1);
}

/* ---- versions ---- */

static void version_rules(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    hear_all(t, 3);
    EXPECT_STATUS(begin(t, 6, &err), HEFT_ERR_VERSION);
    EXPECT_MESSAGE("version_regress: version 6 is older than the committed 7");
    EXPECT_STATUS(begin(t, 0, &err), HEFT_ERR_VERSION);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.seq, 11);
    /* the same version: only the source is asked, for its digest */
    EXPECT_STATUS(begin(t, 7, &err), HEFT_OK);
    write_ok(t);
    EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_OLD, t->now);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    EXPECT_ORDER(0, HEFT__PHASE_RELEASE);
    ok(t, 0, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
}

static void lost_record_does_not_go_back(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    t->round.committed_version = 0;
    t->round.committed_digest[0] = '\0';
    hear_all(t, 2); /* the destination serves 7 */
    EXPECT_STATUS(begin(t, 3, &err), HEFT_ERR_VERSION);
    assert_int_equal(t->round.committed_version, 7);
    assert_string_equal(t->round.committed_digest, SIM_DIGEST_OLD);
}

static void numbers_of_orders_differ_between_lives(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    set_table(t, 2);
    to_prepare(t, 2);
    const int64_t last = t->members[0].order_seq;
    assert_true(last > 0 && last < HEFT__WIRE_MAX_INT);
    /* the next life counts its orders from the start again, in another range */
    t->round.epoch++;
    t->round.n_orders = 0;
    heft__round_cancel(&t->round, t->now);
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    assert_true(t->members[0].order_seq > last);
}

/* ---- restart ---- */

static void put_back(table_t *t, heft__decision_t decision, bool in_doubt)
{
    set_table(t, 0);
    for (uint32_t i = 0; i < 3; i++) {
        heft__round_member_t *m = &t->members[i];
        m->used = true;
        m->role = i == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION;
        m->engine = 1;
        m->in_round = true;
        m->moves = i > 0;
    }
    t->round.id = (heft__round_id_t){ 2, 11 };
    t->round.version = 8;
    t->round.decision = decision;
    (void)strcpy(t->round.source_digest, SIM_DIGEST_NEW);
    if (decision == HEFT__DECISION_COMMIT) {
        t->round.committed_version = 8;
    }
    t->round.before_version = 7;
    heft__round_restore(&t->round, in_doubt, t->now);
}

static void restart_with_commit_flips(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    put_back(t, HEFT__DECISION_COMMIT, false);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    EXPECT_ORDER(0, HEFT__PHASE_NONE);
    for (uint32_t i = 0; i < 3; i++) {
        seat(t, i, false);
    }
    /* one is still paused, the other went all the way before */
    flip_ok(t, 1);
    t->live[2] = 8;
    t->serving[2] = true;
    ok(t, 2, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    EXPECT_ORDER(1, HEFT__PHASE_RESUME);
    EXPECT_ORDER(2, HEFT__PHASE_RESUME);
}

static void restart_without_record_stops_and_aborts(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    put_back(t, HEFT__DECISION_NONE, false);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    for (uint32_t i = 0; i < 3; i++) {
        seat(t, i, false);
    }
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
}

static void restart_in_doubt_stays_poisoned(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    put_back(t, HEFT__DECISION_NONE, true);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_ORDER(0, HEFT__PHASE_NONE);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);

    put_back(t, HEFT__DECISION_REVOKE, false);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
}

static void restart_waits_for_members_that_have_not_come_back(void **state)
{
    (void)state;
    table_t table;
    table_t *t = &table;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    t->members[2] = (heft__round_member_t){ .used = true, .role = HEFT__ROLE_DESTINATION };
    hear_all(t, 2);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    tick_after(t, 31 * S);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "aborted");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_takes_every_phase_in_order),
        cmocka_unit_test(record_that_cannot_be_written_means_no_round),
        cmocka_unit_test(cancel_while_begin_is_written_aborts_at_once),
        cmocka_unit_test(new_process_is_named),
        cmocka_unit_test(source_is_not_needed_after_staging),
        cmocka_unit_test(changed_binding_fails_the_round),
        cmocka_unit_test(silence_and_deadlines_name_the_member),
        cmocka_unit_test(late_report_changes_nothing),
        cmocka_unit_test(sources_stop_before_receivers_drop),
        cmocka_unit_test(dead_source_is_proven_by_its_receivers),
        cmocka_unit_test(transfer_unknown_touches_nothing),
        cmocka_unit_test(silent_receiver_is_fenced_by_its_source),
        cmocka_unit_test(decision_surely_not_written_aborts),
        cmocka_unit_test(decision_perhaps_written_only_goes_forward),
        cmocka_unit_test(decision_that_hangs_is_waited_for),
        cmocka_unit_test(left_out_engine_must_have_stopped),
        cmocka_unit_test(flip_refused_everywhere_is_revoked),
        cmocka_unit_test(revoke_that_cannot_be_written_is_unknown),
        cmocka_unit_test(repeated_refusal_of_the_first_order_is_no_second_one),
        cmocka_unit_test(split_fleet_serves_one_version),
        cmocka_unit_test(unknown_outranks_a_split),
        cmocka_unit_test(silent_member_that_flipped_after_all_commits),
        cmocka_unit_test(member_that_returns_anew_in_flip_is_partial),
        cmocka_unit_test(failed_resume_is_committed_with_a_warning),
        cmocka_unit_test(release_failure_warns_and_blocks),
        cmocka_unit_test(flip_in_an_aborted_round_is_found),
        cmocka_unit_test(version_rules),
        cmocka_unit_test(lost_record_does_not_go_back),
        cmocka_unit_test(numbers_of_orders_differ_between_lives),
        cmocka_unit_test(restart_with_commit_flips),
        cmocka_unit_test(restart_without_record_stops_and_aborts),
        cmocka_unit_test(restart_in_doubt_stays_poisoned),
        cmocka_unit_test(restart_waits_for_members_that_have_not_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
