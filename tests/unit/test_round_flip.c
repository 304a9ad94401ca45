/* SPDX-License-Identifier: Apache-2.0 */
/* The round machine by script: the decision, the flip, and how a round ends. */
#include "round_table.h"

/* ---- the decision ---- */

static void decision_unwritable_aborts(void **state)
{
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
    set_table(t, 3);
    to_decide(t, 3);
    const int64_t ticket = t->round.wait_ticket;
    stay(t, 61 * S, 3);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    assert_true((t->round.todo & HEFT__TODO_ENDED) != 0);
    heft__round_written(&t->round, ticket, HEFT__WRITTEN_FAILED, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
}

static void subset_needs_others_stopped(void **state)
{
    table_t *t = *state;
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
        ok(t, 0, HEFT__PHASE_VERIFY, HEFT__STATE_SENT);
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

static void flip_fails_everywhere_revoked(void **state)
{
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 1);
    flip_ok(t, 3);
    refuse_twice(t, 2);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);   /* its engine is not whole: it stays paused */
    EXPECT_ORDER(3, HEFT__PHASE_RESUME); /* this one is */
    EXPECT_ORDER(0, HEFT__PHASE_VERIFY); /* nothing is released */
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
    table_t *t = *state;
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
    table_t *t = *state;
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
    table_t *t = *state;
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

static void resume_failure_engine_down(void **state)
{
    table_t *t = *state;
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

/* A late word about a round that is over for the others. */
static void say_released(table_t *t, uint32_t slot, heft__round_id_t round)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t r;
    heft__report_init(&r);
    r.sequence = ++t->sequence[slot];
    r.order = t->members[slot].order_seq;
    r.round = round;
    r.phase = HEFT__PHASE_RELEASE;
    r.result = HEFT__RESULT_OK;
    r.state = HEFT__STATE_IDLE;
    EXPECT_STATUS(heft__round_report(&t->round, slot, &r, t->now, &err), HEFT_OK);
    agree(t);
}

static void release_failure_warns_and_blocks(void **state)
{
    table_t *t = *state;
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
    const heft__round_id_t last = t->round.id;
    EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
    write_ok(t);
    EXPECT_ORDER(0, HEFT__PHASE_RELEASE); /* said again, and waited for */
    assert_true(t->members[0].order_seq > seq);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    EXPECT_ORDER(1, HEFT__PHASE_RELEASE);
    say_released(t, 0, last); /* done: the round goes on as any other */
    assert_false(t->members[0].excluded);
    EXPECT_ORDER(0, HEFT__PHASE_PREFLIGHT);
    EXPECT_ORDER(1, HEFT__PHASE_PREFLIGHT);
}

/* Its process dies after the decision, and another takes its place: the round does not wait for
 * what the dead one was told, and nothing of that one is held against the new one. */
static void killed_after_the_commit_joins_late(void **state)
{
    (void)state;
    for (int in_release = 0; in_release < 2; in_release++) {
        table_t table;
        table_t *t = &table;
        heft_error_t err = HEFT_ERROR_INIT;
        set_table(t, 3);
        to_flip(t, 3);
        flip_ok(t, 1);
        flip_ok(t, 2);
        t->serving[1] = t->serving[2] = true;
        ok(t, 1, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
        if (in_release) {
            ok(t, 2, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
            ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
        }
        assert_int_equal(t->round.phase, in_release ? HEFT__PHASE_RELEASE : HEFT__PHASE_RESUME);
        t->now += 29 * S; /* nearly the contact time: the old process has been silent so long */
        seat(t, 2, true);
        t->live[2] = 0;
        t->serving[2] = false;
        EXPECT_ORDER(2, HEFT__PHASE_NONE);
        ok(t, 0, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
        if (!in_release) {
            ok(t, 1, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
        }
        EXPECT_STATE(HEFT__ROUND_IDLE);
        assert_int_equal(t->round.outcome, HEFT__ROUND_COMMITTED);
        assert_false(t->members[2].excluded);
        assert_int_equal(t->members[2].poison, HEFT__POISON_NONE);
        t->now += 29 * S; /* of the new one's own time */
        for (uint32_t i = 0; i < 2; i++) {
            say(t, i, HEFT__PHASE_NONE, HEFT__RESULT_NONE, HEFT__STATE_IDLE);
        }
        EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
        write_ok(t);
        tick_after(t, S / 2);
        EXPECT_STATE(HEFT__ROUND_PREPARING);
        EXPECT_ORDER(2, HEFT__PHASE_PREFLIGHT);
        assert_true(t->members[2].moves);
        tick_after(t, S); /* and when that is over it is missed */
        EXPECT_STATE(HEFT__ROUND_ABORTED);
        assert_int_equal(t->round.cause_slot, 2);
    }
}

static void late_flip_after_abort_counted(void **state)
{
    table_t *t = *state;
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

/* 1 and 2 have joined late, 3 serves version 7 and feeds them: up to the flip. */
static void feed_to_flip(table_t *t)
{
    static const uint32_t joiners[] = { 1, 2 };
    static const uint32_t feeder = 3;
    static const heft__phase_t phases[] = { HEFT__PHASE_STAGE, HEFT__PHASE_VERIFY,
                                            HEFT__PHASE_PAUSE };
    static const heft__member_state_t states[] = { HEFT__STATE_STAGED, HEFT__STATE_STAGED,
                                                   HEFT__STATE_PAUSED };
    const heft__round_request_t request = {
        .kind = HEFT__KIND_FEED, .slots = joiners, .n_slots = 2, .feeders = &feeder, .n_feeders = 1
    };
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    t->live[1] = t->live[2] = 0;
    t->serving[1] = t->serving[2] = false;
    hear_all(t, 4);
    EXPECT_STATUS(heft__round_begin(&t->round, &request, t->now, &err), HEFT_OK);
    write_ok(t);
    for (uint32_t i = 1; i < 4; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_PREFLIGHT);
        ok(t, i, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    }
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
    ok(t, 3, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_OLD, t->now);
    say(t, 1, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
    say(t, 2, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
    EXPECT_ORDER(3, HEFT__PHASE_STAGE);
    ok(t, 3, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
    for (int p = 0; p < 3; p++) {
        if (phases[p] == HEFT__PHASE_VERIFY) {
            ok(t, 3, HEFT__PHASE_VERIFY, HEFT__STATE_SENT);
        }
        ok(t, 1, phases[p], states[p]);
        ok(t, 2, phases[p], states[p]);
    }
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
}

/* Nobody asked for a feed: one whose receiver breaks off does not stand in the way of a push. */
static void a_feed_that_breaks_off_holds_up_no_push(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    feed_to_flip(t);
    t->condition[1] = HEFT__CONDITION_LIVE_SUSPECT;
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    t->live[2] = 7;
    ok(t, 2, HEFT__PHASE_FLIP, HEFT__STATE_FLIPPED);
    for (uint32_t i = 1; i < 4; i++) { /* its engine does not serve without it */
        EXPECT_ORDER(i, HEFT__PHASE_RELEASE);
        ok(t, i, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    }
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_string_equal(heft__round_state_text(&t->round), "partially_committed");
    assert_int_equal(t->members[1].poison, HEFT__POISON_REFILL);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
    assert_true(heft__round_is_joiner(&t->round, 1, t->now)); /* the next one may bring it */
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TABLE_TEST(a_feed_that_breaks_off_holds_up_no_push),
        TABLE_TEST(decision_unwritable_aborts),
        TABLE_TEST(decision_perhaps_written_only_goes_forward),
        TABLE_TEST(decision_that_hangs_is_waited_for),
        TABLE_TEST(subset_needs_others_stopped),
        TABLE_TEST(flip_fails_everywhere_revoked),
        TABLE_TEST(revoke_that_cannot_be_written_is_unknown),
        TABLE_TEST(repeated_refusal_of_the_first_order_is_no_second_one),
        TABLE_TEST(split_fleet_serves_one_version),
        TABLE_TEST(unknown_outranks_a_split),
        TABLE_TEST(silent_member_that_flipped_after_all_commits),
        TABLE_TEST(member_that_returns_anew_in_flip_is_partial),
        TABLE_TEST(resume_failure_engine_down),
        TABLE_TEST(release_failure_warns_and_blocks),
        TABLE_TEST(killed_after_the_commit_joins_late),
        TABLE_TEST(late_flip_after_abort_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
