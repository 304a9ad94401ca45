/* SPDX-License-Identifier: Apache-2.0 */
/* The round machine by script: the straight way, failures before the decision, transfers, versions,
 * restarts. */
#include "round_table.h"

/* ---- the straight way ---- */

static void phase_order_recorded(void **state)
{
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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

/* Nobody waits for a process that has ended, as long as nothing was staged: not this round's abort,
 * and no later round, until it is heard of again. */
static void a_process_that_has_ended_holds_nothing_up(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    hear_all(t, 3);
    begin_ok(t, 3);
    EXPECT_ORDER(2, HEFT__PHASE_PREFLIGHT);
    heft__round_gone(&t->round, 2, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 2);
    assert_non_null(strstr(t->round.cause.cause, "its process has ended"));
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "aborted");
    assert_int_equal(t->round.cause_slot, 2);
    seat(t, 2, true);
    heft__round_bind(&t->round, 2, false, t->now);
    hear_all(t, 3);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    EXPECT_ORDER(2, HEFT__PHASE_PREFLIGHT);
}

/* Nor does an abort wait for it, which comes after all transfers have stopped. */
static void an_abort_does_not_wait_for_a_process_that_has_ended(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_stage(t, 3);
    heft__round_cancel(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    heft__round_gone(&t->round, 2, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_true(t->members[2].excluded);
}

/* Once a transfer may be running, proof is needed that it has stopped. */
static void an_end_while_staging_is_no_proof(void **state)
{
    table_t *t = *state;
    set_table(t, 2);
    to_stage(t, 2);
    heft__round_gone(&t->round, 1, t->now);
    EXPECT_STATE(HEFT__ROUND_STAGING);
}

/* A receiver whose time is up knows only that it waited: the sender that has not sent all is named,
 * where others have. */
static void the_sender_that_is_late_is_named(void **state)
{
    table_t *t = *state;
    for (int both = 0; both < 2; both++) {
        set_table(t, 4);
        to_stage(t, 4);
        t->members[3].role = HEFT__ROLE_SOURCE; /* from here on: two senders, two receivers */
        if (both == 0) {
            ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
        }
        t->error = HEFT_ERR_TIMEOUT;
        say(t, 1, HEFT__PHASE_STAGE, HEFT__RESULT_FAILED, HEFT__STATE_STAGING);
        EXPECT_STATE(HEFT__ROUND_STOPPING);
        assert_int_equal(t->round.cause.status, HEFT_ERR_TIMEOUT);
        assert_int_equal(t->round.cause_slot, both == 0 ? 3 : 1);
        assert_string_equal(t->round.cause.cause,
                            both == 0 ? "stage took longer than 60000 ms" : "said so");
    }
}

/* Who receives in place moves its buffer when it fences: that is not why its flip failed. */
static void a_binding_that_changes_in_the_flip_is_no_cause(void **state)
{
    table_t *t = *state;
    set_table(t, 2);
    to_pause(t, 2);
    t->serving[1] = false;
    ok(t, 1, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    heft__round_bind(&t->round, 1, true, t->now);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    assert_int_equal(t->round.cause.status, HEFT_OK);
}

static void changed_binding_fails_the_round(void **state)
{
    table_t *t = *state;
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
    table_t *t = *state;
    set_table(t, 3);
    to_prepare(t, 3);
    t->now += 20 * S;
    say(t, 1, HEFT__PHASE_PREFLIGHT, HEFT__RESULT_OK, HEFT__STATE_IDLE);
    assert_int_equal(heft__round_next_tick(&t->round), 30 * S + 1); /* the source acts alone now */
    tick_after(t, 11 * S);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 0);
    assert_int_equal(t->round.cause.status, HEFT_ERR_PEER);
    assert_string_equal(t->round.cause.cause,
                        "no contact for 30 s: restart it, or take it out with heft remove");

    set_table(t, 3); /* nobody at all is heard any more: it need not be the first of them */
    to_prepare(t, 3);
    tick_after(t, 31 * S);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause_slot, 0);
    assert_string_equal(
        t->round.cause.cause,
        "no contact for 30 s, nor with anybody else lately: is the coordinator cut off?");

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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    set_table(t, 3);
    to_stage(t, 3);
    ok(t, 1, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    say(t, 0, HEFT__PHASE_STAGE, HEFT__RESULT_UNKNOWN, HEFT__STATE_SENDING);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT); /* it fences, and cannot prove it */
    say(t, 2, HEFT__PHASE_ABORT, HEFT__RESULT_UNKNOWN, HEFT__STATE_STAGING);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    stay(t, 600 * S, 3);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_ORDER(0, HEFT__PHASE_STAGE); /* nobody is told to drop or release anything */
    EXPECT_ORDER(1, HEFT__PHASE_STAGE);
    assert_true(heft__round_is_poisoned(&t->round, &slot, &why));
    assert_int_equal(t->members[0].poison, HEFT__POISON_TRANSFER);
    assert_int_equal(t->members[1].poison, HEFT__POISON_NONE);
    assert_int_equal(t->members[2].poison, HEFT__POISON_TRANSFER);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);

    /* the receiver fences; the source is restarted; each claim is checked */
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_FENCED, t->now, &err),
                  HEFT_ERR_STATE);
    EXPECT_STATUS(heft__round_recover(&t->round, 0, HEFT__CLAIM_RESTARTED, t->now, &err),
                  HEFT_ERR_STATE);
    seat(t, 0, true);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(heft__round_recover(&t->round, 0, HEFT__CLAIM_RESTARTED, t->now, &err),
                  HEFT_ERR_STATE);
    EXPECT_MESSAGE("a destination has not confirmed");
    ok(t, 2, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(heft__round_recover(&t->round, 2, HEFT__CLAIM_FENCED, t->now, &err), HEFT_OK);
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

/* Its receivers shut it out as soon as nothing more is to be expected of it. */
static void silent_source_is_fenced_by_its_receivers(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_stage(t, 3);
    t->now += 31 * S;
    for (uint32_t i = 1; i < 3; i++) {
        say(t, i, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
    }
    heft__round_tick(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    assert_int_equal(t->round.cause_slot, 0);
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_ABORT);
        ok(t, i, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    }
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    tick_after(t, 1 * S);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.outcome, HEFT__ROUND_ABORTED);
    assert_true(t->members[0].excluded);
}

/* One that is in contact is believed, until it takes too long. */
static void slow_source_is_fenced_after_the_deadline(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_stage(t, 3);
    heft__round_cancel(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    stay(t, 59 * S, 3);
    EXPECT_ORDER(1, HEFT__PHASE_STAGE);
    stay(t, 2 * S, 3);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    stay(t, 61 * S, 3);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN); /* the other one never confirmed it */
}

static void restart_in_preparing_with_a_silent_source_aborts(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_prepare(t, 3);
    const heft__round_id_t id = t->round.id;
    heft__round_config_t config = t->round.config;
    heft__round_init(&t->round, &config, t->members, N, 4, 12);
    for (uint32_t i = 0; i < 3; i++) {
        t->members[i] =
            (heft__round_member_t){ .used = true,
                                    .in_round = true,
                                    .moves = i > 0,
                                    .role = i > 0 ? HEFT__ROLE_DESTINATION : HEFT__ROLE_SOURCE };
    }
    t->round.id = id;
    t->round.version = 8;
    heft__round_restore(&t->round, false, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    for (uint32_t i = 1; i < 3; i++) {
        seat(t, i, false);
        ok(t, i, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    }
    stay(t, 1 * S, 3);
    t->members[0].contact_ns = 0;
    tick_after(t, 1 * S);
    for (int k = 0; k < 2 && t->round.state == HEFT__ROUND_STOPPING; k++) {
        t->now += 31 * S;
        for (uint32_t i = 1; i < 3; i++) {
            ok(t, i,
               t->members[i].target == HEFT__PHASE_ABORT ? HEFT__PHASE_ABORT
                                                         : HEFT__PHASE_PREFLIGHT,
               HEFT__STATE_IDLE);
        }
        heft__round_tick(&t->round, t->now);
    }
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_ABORT);
        ok(t, i, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    }
    tick_after(t, 1 * S);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.outcome, HEFT__ROUND_ABORTED);
}

static void silent_receiver_is_fenced_by_its_source(void **state)
{
    table_t *t = *state;
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
    agree(t);
    assert_false(t->members[2].excluded);
    EXPECT_ORDER(2, HEFT__PHASE_PREFLIGHT);
}

/* ---- versions ---- */

static void version_rules(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    hear_all(t, 3);
    EXPECT_STATUS(begin(t, 6, &err), HEFT_ERR_VERSION);
    EXPECT_MESSAGE("version_regress: version 6 is older than the committed 7");
    EXPECT_STATUS(begin(t, 0, &err), HEFT_ERR_VERSION);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.seq, 11);
    /* the same version: only the source is asked, whether the fleet is whole and for its digest */
    EXPECT_STATUS(begin(t, 7, &err), HEFT_OK);
    write_ok(t);
    EXPECT_ORDER(0, HEFT__PHASE_PREFLIGHT);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    ok(t, 0, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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

/* It had been paused, and was released without a flip when the coordinator died: it is not at the
 * version, whatever phases it went through. */
static void restart_resumes_none_that_was_released_unflipped(void **state)
{
    table_t *t = *state;
    put_back(t, HEFT__DECISION_COMMIT, false);
    t->serving[1] = false;
    ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    t->live[2] = 8;
    t->serving[2] = false;
    ok(t, 2, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE); /* this one has flipped */
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
}

/* Its machine slept; it pushes before it has polled again. */
static void contact_of_a_source_counts_from_the_begin_of_a_round(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    hear_all(t, 2);
    t->now += 100 * S;
    say(t, 1, HEFT__PHASE_NONE, HEFT__RESULT_NONE, HEFT__STATE_IDLE);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    write_ok(t);
    tick_after(t, S);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    assert_true(heft__round_next_tick(&t->round) > t->now);
    ok(t, 0, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    assert_true((t->round.todo & HEFT__TODO_CHECK_PLANS) != 0);
    tick_after(t, 31 * S); /* silence within the round is none the less noticed */
    EXPECT_STATE(HEFT__ROUND_ABORTED);
}

static void restart_without_record_stops_and_aborts(void **state)
{
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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
        TABLE_TEST(phase_order_recorded),
        TABLE_TEST(record_that_cannot_be_written_means_no_round),
        TABLE_TEST(cancel_while_begin_is_written_aborts_at_once),
        TABLE_TEST(new_process_is_named),
        TABLE_TEST(source_is_not_needed_after_staging),
        TABLE_TEST(a_process_that_has_ended_holds_nothing_up),
        TABLE_TEST(an_end_while_staging_is_no_proof),
        TABLE_TEST(an_abort_does_not_wait_for_a_process_that_has_ended),
        TABLE_TEST(the_sender_that_is_late_is_named),
        TABLE_TEST(a_binding_that_changes_in_the_flip_is_no_cause),
        TABLE_TEST(changed_binding_fails_the_round),
        TABLE_TEST(silence_and_deadlines_name_the_member),
        TABLE_TEST(late_report_changes_nothing),
        TABLE_TEST(sources_stop_before_receivers_drop),
        TABLE_TEST(dead_source_is_proven_by_its_receivers),
        TABLE_TEST(transfer_unknown_touches_nothing),
        TABLE_TEST(silent_source_is_fenced_by_its_receivers),
        TABLE_TEST(slow_source_is_fenced_after_the_deadline),
        TABLE_TEST(restart_in_preparing_with_a_silent_source_aborts),
        TABLE_TEST(silent_receiver_is_fenced_by_its_source),
        TABLE_TEST(version_rules),
        TABLE_TEST(lost_record_does_not_go_back),
        TABLE_TEST(numbers_of_orders_differ_between_lives),
        TABLE_TEST(restart_with_commit_flips),
        TABLE_TEST(restart_resumes_none_that_was_released_unflipped),
        TABLE_TEST(contact_of_a_source_counts_from_the_begin_of_a_round),
        TABLE_TEST(restart_without_record_stops_and_aborts),
        TABLE_TEST(restart_in_doubt_stays_poisoned),
        TABLE_TEST(restart_waits_for_members_that_have_not_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
