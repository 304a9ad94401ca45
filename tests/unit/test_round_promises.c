/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round promises in each failure, by a scripted clock: states, orders, and who serves what.
 */
#include "round_table.h"

static void prepare_timeout_no_pause(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_prepare(t, 3);
    stay(t, 61 * S, 3);
    assert_int_equal(t->round.cause.status, HEFT_ERR_TIMEOUT);
    assert_int_equal(t->round.cause_slot, 0);
    for (uint32_t i = 1; i < 3; i++) { /* no engine notices: it goes from preflight to abort */
        EXPECT_ORDER(i, HEFT__PHASE_ABORT);
        assert_true(t->serving[i]);
        ok(t, i, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    }
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.outcome, HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.paused_ns, 0);
}

/* Both are ordered at once, so that two slow ones take the time of one. */
static void destinations_run_concurrently(void **state)
{
    table_t *t = *state;
    set_table(t, 4);
    to_stage(t, 4);
    ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
    for (uint32_t i = 1; i < 4; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_STAGE);
        ok(t, i, HEFT__PHASE_STAGE, HEFT__STATE_STAGED);
    }
    for (uint32_t i = 1; i < 4; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_VERIFY);
    }
    t->now += 20 * S; /* all of them work meanwhile */
    for (uint32_t i = 0; i < 4; i++) {
        ok(t, i, HEFT__PHASE_VERIFY, i == 0 ? HEFT__STATE_SENT : HEFT__STATE_STAGED);
    }
    EXPECT_STATE(HEFT__ROUND_STAGED);
    assert_int_equal(t->round.elapsed_ns[HEFT__PHASE_VERIFY], 20 * S);
}

/* The order comes again until a report answers it; nothing is done twice. */
static void poll_reply_lost(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_pause(t, 3);
    const int64_t seq = t->members[1].order_seq;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t r; /* it has not seen the order: it still tells of verify */
    heft__report_init(&r);
    for (int k = 0; k < 3; k++) {
        r.sequence = ++t->sequence[1];
        r.order = seq - 1;
        r.round = t->round.id;
        r.phase = HEFT__PHASE_VERIFY;
        r.result = HEFT__RESULT_OK;
        r.state = HEFT__STATE_STAGED;
        r.live_version = 7;
        r.serving = true;
        EXPECT_STATUS(heft__round_report(&t->round, 1, &r, t->now, &err), HEFT_OK);
        EXPECT_ORDER(1, HEFT__PHASE_PAUSE);
        assert_int_equal(t->members[1].order_seq, seq); /* the same order, not another one */
    }
    ok(t, 1, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    ok(t, 2, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_DECIDING);
}

/* Silent beyond the contact time, with its flip done: the next report decides. */
static void flip_reply_lost_commits(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_flip(t, 3);
    flip_ok(t, 1);
    tick_after(t, 29 * S); /* the reply of member 2 was lost */
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
}

static void engine_resumes_all_ranks(void **state)
{
    table_t *t = *state;
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 1);
    flip_ok(t, 3);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP); /* rank 2 of its engine is late */
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    tick_after(t, 31 * S); /* and silent: the other engine serves, this one waits */
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_ORDER(3, HEFT__PHASE_RESUME);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    flip_ok(t, 2);
    EXPECT_ORDER(1, HEFT__PHASE_RESUME);
    EXPECT_ORDER(2, HEFT__PHASE_RESUME);
}

/* What was canceled while a transfer ran is no better known than after a timeout. */
static void cancel_in_stage_unknown(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_stage(t, 3);
    heft__round_cancel(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_STOPPING);
    say(t, 0, HEFT__PHASE_ABORT, HEFT__RESULT_UNKNOWN, HEFT__STATE_SENDING);
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_ABORT); /* fence */
        say(t, i, HEFT__PHASE_ABORT, HEFT__RESULT_UNKNOWN, HEFT__STATE_STAGING);
    }
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t->members[i].poison, HEFT__POISON_TRANSFER);
        assert_true(t->members[i].target != HEFT__PHASE_RELEASE);
    }
    assert_true(t->serving[1] && t->serving[2]);
}

static heft_status_t begin_status(table_t *t, int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    return begin(t, version, &err);
}

/* The next round starts when the last one has let everybody go. */
static void cancel_awaits_release(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    to_pause(t, 3);
    heft__round_cancel(&t->round, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(begin_status(t, 9), HEFT_ERR_BUSY);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_ABORT);
        assert_int_equal(begin_status(t, 9), HEFT_ERR_BUSY);
        ok(t, i, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    }
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(begin_status(t, 9), HEFT_OK);
}

static void aborted_version_retried(void **state)
{
    table_t *t = *state;
    set_table(t, 2);
    to_prepare(t, 2);
    const heft__round_id_t first = t->round.id;
    heft__round_cancel(&t->round, t->now);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    ok(t, 1, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(begin_status(t, 8), HEFT_OK);
    assert_true(t->round.id.seq > first.seq);
    assert_int_equal(t->round.version, 8);
}

/* A begin that is refused changes nothing: no number is used up, nobody is told anything. */
static void expect_no_round(table_t *t, int64_t version, const char *message)
{
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 3);
    hear_all(t, 3);
    EXPECT_STATUS(begin(t, version, &err), HEFT_ERR_VERSION);
    EXPECT_MESSAGE(message);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.seq, 11);
    assert_int_equal(t->round.committed_version, 7);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t->members[i].order_seq, 0);
    }
}

static void version_missing(void **state)
{
    (void)state;
    table_t table;
    expect_no_round(&table, 0, "version_missing: versions start at 1");
    expect_no_round(&table, -1, "version_missing");
}

static void version_regress(void **state)
{
    (void)state;
    table_t table;
    expect_no_round(&table, 6, "version_regress: version 6 is older than the committed 7");
    expect_no_round(&table, 1, "version_regress: version 1 is older than the committed 7");
}

/* The committed version with other bytes: found by the source's digest, before any engine is told
 * more than to look at its plan. */
static void version_conflict(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    hear_all(t, 3);
    assert_int_equal(begin_status(t, 7), HEFT_OK);
    write_ok(t);
    ok(t, 0, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_NEW, t->now);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    assert_int_equal(t->round.cause.status, HEFT_ERR_VERSION);
    assert_non_null(strstr(t->round.cause.cause, "version_conflict"));
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    EXPECT_ORDER(2, HEFT__PHASE_NONE);
    ok(t, 0, HEFT__PHASE_ABORT, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.committed_version, 7);
    assert_string_equal(t->round.committed_digest, SIM_DIGEST_OLD);
}

/* The committed version with the same bytes: success, and nobody is told to move. */
static void version_same_noop(void **state)
{
    table_t *t = *state;
    set_table(t, 3);
    hear_all(t, 3);
    assert_int_equal(begin_status(t, 7), HEFT_OK);
    write_ok(t);
    ok(t, 0, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_OLD, t->now);
    for (uint32_t i = 1; i < 3; i++) {
        assert_false(t->members[i].moves);
        assert_true(t->members[i].target < HEFT__PHASE_STAGE);
    }
    ok(t, 0, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.outcome, HEFT__ROUND_COMMITTED);
}

/* Up to a point, then canceled or committed: everybody who was told anything is told to let go. */
static void release_on_every_path(void **state)
{
    (void)state;
    void (*const points[])(table_t * t, uint32_t n) = { to_prepare, to_stage, to_pause, to_flip };
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++) {
        table_t table;
        table_t *t = &table;
        set_table(t, 3);
        points[p](t, 3);
        heft__round_cancel(&t->round, t->now);
        const bool committed = points[p] == to_flip;
        if (committed) { /* too late */
            flip_ok(t, 1);
            flip_ok(t, 2);
            ok(t, 1, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
            ok(t, 2, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
        }
        const heft__phase_t last = committed ? HEFT__PHASE_RELEASE : HEFT__PHASE_ABORT;
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT_ORDER(i, last);
            ok(t, i, last, HEFT__STATE_IDLE);
        }
        EXPECT_STATE(HEFT__ROUND_IDLE);
        assert_int_equal(t->round.outcome, committed ? HEFT__ROUND_COMMITTED : HEFT__ROUND_ABORTED);
    }
}

/* Everybody falls silent, wherever the round is: it comes to rest by itself. */
static void every_wait_has_a_deadline(void **state)
{
    (void)state;
    void (*const points[])(table_t * t, uint32_t n) = { begin_ok, to_prepare, to_stage,
                                                        to_pause, to_decide,  to_flip };
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++) {
        table_t table;
        table_t *t = &table;
        set_table(t, 4);
        points[p](t, 4);
        int n_ticks = 0;
        for (; n_ticks < 50; n_ticks++) {
            const int64_t next = heft__round_next_tick(&t->round);
            const bool rests = t->round.state == HEFT__ROUND_IDLE ||
                               t->round.state == HEFT__ROUND_UNKNOWN ||
                               t->round.state == HEFT__ROUND_PARTIAL;
            if (rests && next == INT64_MAX) {
                break;
            }
            assert_true(next < INT64_MAX);
            t->now = heft__max_i64(t->now, next);
            heft__round_tick(&t->round, t->now);
            if (t->round.wait_ticket != 0) {
                write_ok(t);
            }
        }
        assert_true(n_ticks < 50);
        assert_true(t->now < 1000 * S);
    }
}

/* ---- in place ---- */

static void to_in_place_flip(table_t *t)
{
    set_table(t, 3);
    t->members[1].in_place = true;
    t->members[2].in_place = true;
    to_prepare(t, 3);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_NEW, t->now);
    EXPECT_STATE(HEFT__ROUND_STAGED); /* nothing is staged */
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_PAUSE);
        t->serving[i] = false;
        ok(t, i, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    }
    EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
}

static void in_place_sources_send_when_receivers_are_armed(void **state)
{
    table_t *t = *state;
    to_in_place_flip(t);
    EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
    assert_int_equal(t->round.deadline_ns, t->now + 120 * S); /* flip and stage */
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
    EXPECT_ORDER(0, HEFT__PHASE_PREPARE);
    say(t, 2, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
    EXPECT_ORDER(0, HEFT__PHASE_FLIP);
    flip_ok(t, 1);
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
}

/* The source dies inside the flip: both are suspect, and neither is retried. */
static void in_place_source_dies_in_flip(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_in_place_flip(t);
    for (uint32_t i = 1; i < 3; i++) {
        say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
    }
    seat(t, 0, true);
    EXPECT_STATE(HEFT__ROUND_FLIPPING); /* what became of the flips they say themselves */
    for (uint32_t i = 1; i < 3; i++) {
        t->condition[i] = HEFT__CONDITION_LIVE_SUSPECT;
        say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    }
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    for (uint32_t i = 1; i < 3; i++) {
        assert_int_equal(t->members[i].poison, HEFT__POISON_BROKEN);
        EXPECT_STATUS(heft__round_recover(&t->round, i, HEFT__CLAIM_RETRY, t->now, &err),
                      HEFT_ERR_STATE);
        EXPECT_STATUS(heft__round_recover(&t->round, i, HEFT__CLAIM_REFILL, t->now, &err), HEFT_OK);
    }
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
}

/* The source is stopped, not dead, inside the flip: after the contact time its receivers are told
 * once that their time is over, and do not wait for the deadline of a whole stage. */
static void in_place_source_falls_silent_in_flip(void **state)
{
    table_t *t = *state;
    int64_t seqs[3];
    to_in_place_flip(t);
    for (uint32_t i = 1; i < 3; i++) {
        say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
        seqs[i] = t->members[i].order_seq;
    }
    say(t, 0, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_SENDING);
    for (int second = 0; second < 30; second++) {
        t->now += S;
        for (uint32_t i = 1; i < 3; i++) {
            say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
        }
        heft__round_tick(&t->round, t->now);
        assert_false(t->members[1].in_vain || t->members[2].in_vain);
    }
    tick_after(t, 1);
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_ORDER(i, HEFT__PHASE_FLIP);
        assert_true(t->members[i].in_vain);
        assert_true(t->members[i].order_seq > seqs[i]);
        seqs[i] = t->members[i].order_seq;
        say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
        assert_int_equal(t->members[i].order_seq, seqs[i]); /* once */
    }
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    EXPECT_ORDER(0, HEFT__PHASE_FLIP); /* nothing is aborted after the decision */
    for (uint32_t i = 1; i < 3; i++) {
        t->condition[i] = HEFT__CONDITION_LIVE_SUSPECT;
        say(t, i, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    }
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    assert_string_equal(t->round.cause.cause, "said so");
    assert_int_equal(t->members[1].poison, HEFT__POISON_BROKEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TABLE_TEST(prepare_timeout_no_pause),
        TABLE_TEST(destinations_run_concurrently),
        TABLE_TEST(poll_reply_lost),
        TABLE_TEST(flip_reply_lost_commits),
        TABLE_TEST(engine_resumes_all_ranks),
        TABLE_TEST(cancel_in_stage_unknown),
        TABLE_TEST(cancel_awaits_release),
        TABLE_TEST(aborted_version_retried),
        TABLE_TEST(version_missing),
        TABLE_TEST(version_regress),
        TABLE_TEST(version_conflict),
        TABLE_TEST(version_same_noop),
        TABLE_TEST(release_on_every_path),
        TABLE_TEST(every_wait_has_a_deadline),
        TABLE_TEST(in_place_sources_send_when_receivers_are_armed),
        TABLE_TEST(in_place_source_dies_in_flip),
        TABLE_TEST(in_place_source_falls_silent_in_flip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
