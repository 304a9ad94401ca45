/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of the round machine: every claim, when it holds and when it does not, and what follows.
 * Nothing clears by itself, and no recovery lets anybody serve another version than the committed
 * one.
 */
#include "round_table.h"

static heft_status_t recover(table_t *t, uint32_t slot, heft__claim_t claim, heft_error_t *err)
{
    return heft__round_recover(&t->round, slot, claim, t->now, err);
}

static void expect_poison(table_t *t, uint32_t slot, heft__poison_t poison)
{
    assert_int_equal(t->members[slot].poison, poison);
}

/* Member 3 has flipped, the engine of 1 and 2 has refused. */
static void to_split(table_t *t)
{
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 3);
    refuse_twice(t, 1);
    refuse_twice(t, 2);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    expect_poison(t, 1, HEFT__POISON_REFUSED);
    expect_poison(t, 2, HEFT__POISON_REFUSED);
}

static void finish_as(table_t *t, uint32_t n, heft__round_state_t outcome)
{
    EXPECT_STATE(HEFT__ROUND_COMMITTED);
    for (uint32_t i = 1; i < n; i++) {
        if (t->members[i].target == HEFT__PHASE_RESUME && t->round.phase == HEFT__PHASE_RESUME) {
            t->serving[i] = true;
            ok(t, i, HEFT__PHASE_RESUME, HEFT__STATE_IDLE);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (t->members[i].target == HEFT__PHASE_RELEASE) {
            ok(t, i, HEFT__PHASE_RELEASE, HEFT__STATE_IDLE);
        }
    }
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_int_equal(t->round.outcome, outcome);
}

static void finish(table_t *t, uint32_t n)
{
    finish_as(t, n, HEFT__ROUND_COMMITTED);
}

static void poisoned_begin_refused(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_split(t);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
    EXPECT_MESSAGE("it is paused and refused its flip");
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
}

static void recover_claim_checked(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_split(t);
    for (int claim = HEFT__CLAIM_RESTARTED; claim <= HEFT__CLAIM_REFILL; claim++) {
        if (claim != HEFT__CLAIM_REMOVED) {
            EXPECT_STATUS(recover(t, 3, (heft__claim_t)claim, &err), HEFT_ERR_STATE);
            EXPECT_MESSAGE("not poisoned");
        }
    }
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RESTARTED, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("no new incarnation has registered");
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_FENCED, &err), HEFT_ERR_STATE);
    expect_poison(t, 1, HEFT__POISON_REFUSED);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
}

static void recover_retry_finishes(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    to_split(t);
    EXPECT_ORDER(3, HEFT__PHASE_RESUME);
    const int64_t before = t->members[1].order_seq;
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_OK);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    assert_true(t->members[1].order_seq > before);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_ERR_STATE); /* under way */
    flip_ok(t, 1);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP); /* its engine lacks the other rank */
    EXPECT_STATUS(recover(t, 2, HEFT__CLAIM_RETRY, &err), HEFT_OK);
    flip_ok(t, 2);
    EXPECT_ORDER(1, HEFT__PHASE_RESUME);
    EXPECT_ORDER(2, HEFT__PHASE_RESUME);
    finish(t, 4);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
    hear_all(t, 4);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_OK);
}

static void retry_that_is_refused_again_changes_nothing(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_split(t);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_OK);
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    expect_poison(t, 1, HEFT__POISON_REFUSED);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_OK); /* as often as it takes */
    t->condition[1] = HEFT__CONDITION_LIVE_SUSPECT;
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    expect_poison(t, 1, HEFT__POISON_BROKEN);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("not paused with its staging intact");
}

static void retry_of_a_silent_member_ends(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_split(t);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_OK);
    assert_true(heft__round_next_tick(&t->round) < INT64_MAX);
    tick_after(t, 61 * S);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN); /* an unknown outranks a split */
    expect_poison(t, 1, HEFT__POISON_SILENT);
    flip_ok(t, 1);
    EXPECT_STATE(HEFT__ROUND_PARTIAL); /* member 2 still refuses */
    expect_poison(t, 1, HEFT__POISON_NONE);
}

static void retry_needs_the_same_process_and_a_commit(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_split(t);
    t->live[1] = 0;
    seat(t, 1, true);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RESTARTED, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    EXPECT_STATUS(recover(t, 2, HEFT__CLAIM_RETRY, &err), HEFT_OK);
    flip_ok(t, 2);
    finish(t, 4);
    assert_false(t->serving[2]); /* its engine has lost a rank */
    assert_true(t->serving[3]);
}

/* All refused, one of them left: what that one did is not known, so nothing is revoked. */
static void nothing_is_revoked_after_a_departure(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    to_flip(t, 4);
    refuse_twice(t, 1);
    refuse_twice(t, 2);
    tick_after(t, 31 * S);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(recover(t, 3, HEFT__CLAIM_REMOVED, &err), HEFT_OK);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    assert_int_equal(t->round.committed_version, 8);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
}

/* Member 1 breaks in its flip; member 3 serves the new version. */
static void to_broken(table_t *t)
{
    set_table(t, 4);
    to_flip(t, 4);
    t->condition[1] = HEFT__CONDITION_LIVE_SUSPECT;
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    flip_ok(t, 2);
    flip_ok(t, 3);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    expect_poison(t, 1, HEFT__POISON_BROKEN);
    EXPECT_ORDER(3, HEFT__PHASE_RESUME);
    EXPECT_ORDER(2, HEFT__PHASE_FLIP); /* an engine serves with all of its ranks, or not */
}

/* Up to the flip of version v with whoever moves. */
static void catch_up_to_flip(table_t *t, int64_t v)
{
    heft_error_t err = HEFT_ERROR_INIT;
    hear_all(t, 4);
    EXPECT_STATUS(begin(t, v, &err), HEFT_OK);
    write_ok(t);
    for (uint32_t i = 0; i < 4; i++) {
        if (t->members[i].target == HEFT__PHASE_PREFLIGHT) {
            ok(t, i, HEFT__PHASE_PREFLIGHT, HEFT__STATE_IDLE);
        }
    }
    heft__round_plans_checked(&t->round, -1, NULL, t->now);
    ok(t, 0, HEFT__PHASE_PREPARE, HEFT__STATE_PREPARED);
    heft__round_prepared(&t->round, SIM_DIGEST_NEW, t->now);
    for (uint32_t i = 1; i < 4; i++) {
        if (t->members[i].moves) {
            say(t, i, HEFT__PHASE_STAGE, HEFT__RESULT_WORKING, HEFT__STATE_STAGING);
        }
    }
    ok(t, 0, HEFT__PHASE_STAGE, HEFT__STATE_SENT);
    static const heft__phase_t phases[] = { HEFT__PHASE_STAGE, HEFT__PHASE_VERIFY,
                                            HEFT__PHASE_PAUSE };
    for (size_t p = 0; p < sizeof phases / sizeof phases[0]; p++) {
        if (phases[p] == HEFT__PHASE_VERIFY) {
            ok(t, 0, HEFT__PHASE_VERIFY, HEFT__STATE_SENT);
        }
        for (uint32_t i = 1; i < 4; i++) {
            if (t->members[i].moves) {
                t->serving[i] = t->serving[i] && phases[p] != HEFT__PHASE_PAUSE;
                ok(t, i, phases[p],
                   phases[p] == HEFT__PHASE_PAUSE ? HEFT__STATE_PAUSED : HEFT__STATE_STAGED);
            }
        }
    }
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
}

static void refill_brings_a_suspect_member_back(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    to_broken(t);
    t->live[1] = 0;
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_REFILL, &err), HEFT_OK);
    /* decided, and not live everywhere: no push is told that all is well */
    finish_as(t, 4, HEFT__ROUND_PARTIAL);
    assert_string_equal(heft__round_state_text(&t->round), "partially_committed");
    expect_poison(t, 1, HEFT__POISON_REFILL); /* and it does not serve */
    assert_false(t->serving[1] || t->serving[2]);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
    catch_up_to_flip(t, 8);
    assert_true(t->members[1].moves && t->members[2].moves);
    assert_false(t->members[3].moves);
    t->condition[1] = HEFT__CONDITION_OK; /* it has compared its live parameters */
    flip_ok(t, 1);
    flip_ok(t, 2);
    finish(t, 4);
    expect_poison(t, 1, HEFT__POISON_NONE);
    assert_true(t->serving[1] && t->serving[2] && t->serving[3]);
}

static void refill_by_the_next_version_and_a_second_failure(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    to_broken(t);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_REFILL, &err), HEFT_OK);
    finish_as(t, 4, HEFT__ROUND_PARTIAL);
    catch_up_to_flip(t, 8);
    /* it breaks again */
    say(t, 1, HEFT__PHASE_FLIP, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED);
    flip_ok(t, 2);
    EXPECT_STATE(HEFT__ROUND_PARTIAL);
    expect_poison(t, 1, HEFT__POISON_BROKEN);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
}

static void refill_needs_contact_and_an_outcome(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    to_flip(t, 4);
    flip_ok(t, 1);
    flip_ok(t, 2);
    tick_after(t, 31 * S);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(recover(t, 3, HEFT__CLAIM_REFILL, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("not in contact");
    say(t, 3, HEFT__PHASE_FLIP, HEFT__RESULT_WORKING, HEFT__STATE_PAUSED);
    EXPECT_STATUS(recover(t, 3, HEFT__CLAIM_REFILL, &err), HEFT_ERR_STATE);
    EXPECT_MESSAGE("not known whether it flipped");
    EXPECT_STATUS(recover(t, 0, HEFT__CLAIM_REFILL, &err), HEFT_ERR_STATE);
}

/* A member that says, outside of any round, that its live parameters are not what they should be.
 */
static void live_mismatch_poisons_until_refilled(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 4);
    hear_all(t, 4);
    t->condition[3] = HEFT__CONDITION_LIVE_SUSPECT;
    t->serving[3] = false;
    say(t, 3, HEFT__PHASE_NONE, HEFT__RESULT_NONE, HEFT__STATE_IDLE);
    expect_poison(t, 3, HEFT__POISON_CONDITION);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_ERR_POISONED);
    EXPECT_STATUS(recover(t, 3, HEFT__CLAIM_REFILL, &err), HEFT_OK);
    catch_up_to_flip(t, 8);
    t->condition[3] = HEFT__CONDITION_OK;
    for (uint32_t i = 1; i < 4; i++) {
        flip_ok(t, i);
    }
    finish(t, 4);
    expect_poison(t, 3, HEFT__POISON_NONE);
}

/* ---- the state file is lost ---- */

/* Another coordinator, without a record; members register with it and say where they stand. */
static void lose_record(table_t *t, uint32_t n)
{
    const heft__round_id_t id = t->round.id;
    heft__round_config_t config = t->round.config;
    heft__round_init(&t->round, &config, t->members, N, id.epoch + 7, 0);
    t->round.is_bare = true;
    t->movers = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        seat(t, i, true);
    }
}

static void say_old(table_t *t, uint32_t slot, heft__round_id_t id, heft__phase_t phase,
                    heft__member_state_t state)
{
    const heft__round_id_t keep = t->round.id;
    t->round.id = id; /* what report() puts in */
    heft__report_t r;
    heft__report_init(&r);
    r.sequence = ++t->sequence[slot];
    r.round = id;
    r.phase = phase;
    r.result = HEFT__RESULT_OK;
    r.state = state;
    r.live_version = t->live[slot];
    r.serving = t->serving[slot];
    r.condition = t->condition[slot];
    r.movers = slot > 0 ? t->movers : 0;
    r.version = 8;
    (void)strcpy(r.live_digest, t->live[slot] == 8 ? SIM_DIGEST_NEW : SIM_DIGEST_OLD);
    (void)strcpy(r.source_digest, SIM_DIGEST_NEW);
    t->round.id = keep;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__round_report(&t->round, slot, &r, t->now, &err), HEFT_OK);
}

static void state_file_lost_cooperative(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    /* one has flipped: the commit was durable, and the others follow */
    set_table(t, 4);
    to_flip(t, 4);
    heft__round_id_t id = t->round.id;
    t->live[3] = 8;
    lose_record(t, 4);
    say_old(t, 1, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    EXPECT_STATUS(begin(t, 9, &err), HEFT_ERR_POISONED);
    say_old(t, 3, id, HEFT__PHASE_FLIP, HEFT__STATE_FLIPPED);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN); /* one is silent */
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    tick_after(t, 3600 * S);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    say_old(t, 2, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_FLIPPING);
    assert_true(heft__round_id_equal(t->round.id, id));
    assert_int_equal(t->round.committed_version, 8);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
    flip_ok(t, 1);
    flip_ok(t, 2);
    say_old(t, 3, id, HEFT__PHASE_FLIP, HEFT__STATE_FLIPPED);
    finish(t, 4);
    assert_true(t->serving[1] && t->serving[2] && t->serving[3]);

    /* none has: the old version comes back */
    set_table(t, 3);
    to_decide(t, 3);
    id = t->round.id;
    lose_record(t, 3);
    say_old(t, 2, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_UNKNOWN);
    say_old(t, 1, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATE(HEFT__ROUND_ABORTED);
    EXPECT_ORDER(1, HEFT__PHASE_ABORT);
    EXPECT_ORDER(2, HEFT__PHASE_ABORT);

    /* one has broken off: that too proves the commit */
    set_table(t, 3);
    to_flip(t, 3);
    id = t->round.id;
    t->condition[2] = HEFT__CONDITION_LIVE_SUSPECT;
    lose_record(t, 3);
    say_old(t, 1, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    say_old(t, 2, id, HEFT__PHASE_FLIP, HEFT__STATE_PAUSED);
    assert_int_equal(t->round.decision, HEFT__DECISION_COMMIT);
    EXPECT_ORDER(1, HEFT__PHASE_FLIP);
}

/* One never comes back: the operator ends those that are left, and says so. */
static void found_round_ends_with_its_last_member(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    int32_t slot;
    const char *why;
    set_table(t, 4);
    to_decide(t, 4);
    const heft__round_id_t id = t->round.id;
    lose_record(t, 4);
    say_old(t, 1, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    say_old(t, 2, id, HEFT__PHASE_PAUSE, HEFT__STATE_PAUSED);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RETRY, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(recover(t, 1, HEFT__CLAIM_RESTARTED, &err), HEFT_ERR_STATE);
    for (uint32_t i = 1; i < 3; i++) {
        t->live[i] = 0;
        seat(t, i, true);
        EXPECT_STATE(HEFT__ROUND_UNKNOWN);
        EXPECT_STATUS(recover(t, i, HEFT__CLAIM_RESTARTED, &err), HEFT_OK);
    }
    EXPECT_STATE(HEFT__ROUND_IDLE);
    assert_false(heft__round_is_poisoned(&t->round, &slot, &why));
}

/* A source that was in a round of which its coordinator knows nothing any more is let go before the
 * next one: it would never be idle otherwise. */
static void source_of_a_forgotten_round_is_let_go(void **state)
{
    table_t *t = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    set_table(t, 2);
    hear_all(t, 2);
    const heft__round_id_t old = { 2, 5 };
    heft__report_t r;
    heft__report_init(&r);
    r.sequence = ++t->sequence[0];
    r.round = old;
    r.phase = HEFT__PHASE_VERIFY;
    r.result = HEFT__RESULT_OK;
    r.state = HEFT__STATE_SENT;
    EXPECT_STATUS(heft__round_report(&t->round, 0, &r, t->now, &err), HEFT_OK);
    EXPECT_STATUS(begin(t, 8, &err), HEFT_OK);
    write_ok(t);
    EXPECT_STATE(HEFT__ROUND_PREPARING);
    EXPECT_ORDER(0, HEFT__PHASE_ABORT);
    EXPECT_ORDER(1, HEFT__PHASE_NONE);
    assert_true(heft__round_id_equal(t->members[0].order_round, old));
    r.sequence = ++t->sequence[0];
    r.order = t->members[0].order_seq;
    r.phase = HEFT__PHASE_ABORT;
    r.state = HEFT__STATE_IDLE;
    EXPECT_STATUS(heft__round_report(&t->round, 0, &r, t->now, &err), HEFT_OK);
    agree(t);
    EXPECT_ORDER(0, HEFT__PHASE_PREFLIGHT);
    EXPECT_ORDER(1, HEFT__PHASE_PREFLIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TABLE_TEST(poisoned_begin_refused),
        TABLE_TEST(recover_claim_checked),
        TABLE_TEST(recover_retry_finishes),
        TABLE_TEST(retry_that_is_refused_again_changes_nothing),
        TABLE_TEST(retry_of_a_silent_member_ends),
        TABLE_TEST(retry_needs_the_same_process_and_a_commit),
        TABLE_TEST(nothing_is_revoked_after_a_departure),
        TABLE_TEST(refill_brings_a_suspect_member_back),
        TABLE_TEST(refill_by_the_next_version_and_a_second_failure),
        TABLE_TEST(refill_needs_contact_and_an_outcome),
        TABLE_TEST(live_mismatch_poisons_until_refilled),
        TABLE_TEST(state_file_lost_cooperative),
        TABLE_TEST(found_round_ends_with_its_last_member),
        TABLE_TEST(source_of_a_forgotten_round_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
