/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of order and idempotence, as tables. */
#include "heft_test.h"
#include "sync/member_gate.h"

#define P(name) HEFT__PHASE_##name
#define S(name) HEFT__STATE_##name
#define R(name) HEFT__RESULT_##name

static const heft__round_id_t round_5 = { 2, 5 };

static heft__gate_t judge(heft__role_t role, heft__phase_t phase, heft__result_t result,
                          heft__member_state_t state, heft__phase_t target,
                          heft__decision_t decision)
{
    heft__stand_t stand = { .round = round_5, .phase = phase, .result = result, .state = state };
    heft__order_t order = { .round = round_5, .target = target, .decision = decision };
    return heft__member_gate(role, &stand, &order);
}

static heft__gate_t dest(heft__phase_t phase, heft__result_t result, heft__member_state_t state,
                         heft__phase_t target)
{
    return judge(HEFT__ROLE_DESTINATION, phase, result, state, target, HEFT__DECISION_COMMIT);
}

static heft__gate_t source(heft__phase_t phase, heft__result_t result, heft__member_state_t state,
                           heft__phase_t target)
{
    return judge(HEFT__ROLE_SOURCE, phase, result, state, target, HEFT__DECISION_NONE);
}

static void a_round_passes_through_in_order(void **state)
{
    (void)state;
    assert_int_equal(dest(P(NONE), R(NONE), S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
    assert_int_equal(dest(P(PREFLIGHT), R(OK), S(IDLE), P(STAGE)), HEFT__GATE_DO);
    assert_int_equal(dest(P(STAGE), R(OK), S(STAGED), P(VERIFY)), HEFT__GATE_DO);
    assert_int_equal(dest(P(VERIFY), R(OK), S(STAGED), P(PAUSE)), HEFT__GATE_DO);
    assert_int_equal(dest(P(PAUSE), R(OK), S(PAUSED), P(FLIP)), HEFT__GATE_DO);
    assert_int_equal(dest(P(FLIP), R(OK), S(FLIPPED), P(RESUME)), HEFT__GATE_DO);
    assert_int_equal(dest(P(RESUME), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(source(P(NONE), R(NONE), S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
    assert_int_equal(source(P(PREFLIGHT), R(OK), S(IDLE), P(PREPARE)), HEFT__GATE_DO);
    assert_int_equal(source(P(PREPARE), R(OK), S(PREPARED), P(STAGE)), HEFT__GATE_DO);
    assert_int_equal(source(P(STAGE), R(OK), S(SENT), P(RELEASE)), HEFT__GATE_DO);
}

static void duplicate_order_noop(void **state)
{
    (void)state;
    assert_int_equal(dest(P(FLIP), R(OK), S(FLIPPED), P(FLIP)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(RESUME), R(OK), S(IDLE), P(FLIP)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(STAGE), R(WORKING), S(STAGING), P(STAGE)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(RELEASE), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(ABORT), R(OK), S(IDLE), P(ABORT)), HEFT__GATE_DONE);
    assert_int_equal(source(P(STAGE), R(OK), S(SENT), P(STAGE)), HEFT__GATE_DONE);
    assert_int_equal(source(P(STAGE), R(OK), S(SENT), P(PREPARE)), HEFT__GATE_DONE);
}

static void out_of_order_refused(void **state)
{
    (void)state;
    assert_int_equal(dest(P(PREFLIGHT), R(OK), S(IDLE), P(FLIP)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(STAGE), R(OK), S(STAGED), P(FLIP)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(STAGE), R(OK), S(STAGED), P(PAUSE)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(STAGE), R(WORKING), S(STAGING), P(VERIFY)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(VERIFY), R(FAILED), S(STAGED), P(PAUSE)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(PAUSE), R(OK), S(PAUSED), P(RESUME)), HEFT__GATE_REFUSE);
    assert_int_equal(dest(P(STAGE), R(FAILED), S(STAGING), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(PREFLIGHT), R(OK), S(IDLE), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(PREPARE), R(FAILED), S(IDLE), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(STAGE), R(FAILED), S(PREPARED), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(PREPARE), R(OK), S(PREPARED), P(FLIP)), HEFT__GATE_REFUSE);
}

static void flip_needs_a_commit(void **state)
{
    (void)state;
    assert_int_equal(
        judge(HEFT__ROLE_DESTINATION, P(PAUSE), R(OK), S(PAUSED), P(FLIP), HEFT__DECISION_NONE),
        HEFT__GATE_REFUSE);
    assert_int_equal(
        judge(HEFT__ROLE_DESTINATION, P(PAUSE), R(OK), S(PAUSED), P(FLIP), HEFT__DECISION_REVOKE),
        HEFT__GATE_REFUSE);
}

static void failed_steps_may_be_tried_again(void **state)
{
    (void)state;
    assert_int_equal(dest(P(FLIP), R(REFUSED), S(PAUSED), P(FLIP)), HEFT__GATE_DO);
    assert_int_equal(dest(P(VERIFY), R(FAILED), S(STAGED), P(VERIFY)), HEFT__GATE_DO);
    assert_int_equal(dest(P(PAUSE), R(FAILED), S(STAGED), P(PAUSE)), HEFT__GATE_DO);
    assert_int_equal(dest(P(RESUME), R(FAILED), S(FLIPPED), P(RESUME)), HEFT__GATE_DO);
    assert_int_equal(dest(P(PREFLIGHT), R(FAILED), S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
    assert_int_equal(source(P(PREPARE), R(FAILED), S(IDLE), P(PREPARE)), HEFT__GATE_DO);
}

static void flip_after_abort_refused(void **state)
{
    (void)state;
    static const heft__phase_t targets[] = { P(PREFLIGHT), P(STAGE), P(VERIFY),
                                             P(PAUSE),     P(FLIP),  P(RESUME) };
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        assert_int_equal(dest(P(ABORT), R(OK), S(IDLE), targets[i]), HEFT__GATE_REFUSE);
    }
    assert_int_equal(dest(P(ABORT), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(source(P(ABORT), R(OK), S(IDLE), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(ABORT), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
}

static void abort_is_taken_from_anywhere(void **state)
{
    (void)state;
    for (int phase = P(PREFLIGHT); phase <= P(RELEASE); phase++) {
        assert_int_equal(dest((heft__phase_t)phase, R(OK), S(STAGED), P(ABORT)), HEFT__GATE_DO);
        assert_int_equal(source((heft__phase_t)phase, R(OK), S(SENT), P(ABORT)), HEFT__GATE_DO);
    }
}

static heft__gate_t open_with(heft__round_id_t round, heft__member_state_t state,
                              heft__phase_t target)
{
    heft__stand_t stand = {
        .round = round_5, .phase = P(RELEASE), .result = R(OK), .state = state
    };
    heft__order_t order = { .round = round, .target = target, .decision = HEFT__DECISION_COMMIT };
    return heft__member_gate(HEFT__ROLE_DESTINATION, &stand, &order);
}

static void rounds_open_only_with_some_phases(void **state)
{
    (void)state;
    heft__round_id_t next = { 2, 6 };
    assert_int_equal(open_with(next, S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
    assert_int_equal(open_with(next, S(IDLE), P(STAGE)), HEFT__GATE_DO);
    assert_int_equal(open_with(next, S(IDLE), P(ABORT)), HEFT__GATE_DO);
    assert_int_equal(open_with(next, S(IDLE), P(LIVE)), HEFT__GATE_DO);
    assert_int_equal(open_with(next, S(IDLE), P(VERIFY)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with(next, S(IDLE), P(PAUSE)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with(next, S(IDLE), P(FLIP)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with(next, S(IDLE), P(RESUME)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with(next, S(IDLE), P(RELEASE)), HEFT__GATE_REFUSE);
}

/* Its state is what it was, so that the round works when it really begins. */
static void stray_future_round_refused(void **state)
{
    (void)state;
    heft__round_id_t future = { 2, 9 };
    assert_int_equal(open_with(future, S(IDLE), P(FLIP)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with(future, S(IDLE), P(RELEASE)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with((heft__round_id_t){ 2, 6 }, S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
    assert_int_equal(open_with(future, S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
}

static void round_opens_as_abort(void **state)
{
    (void)state;
    heft__round_id_t next = { 2, 6 };
    assert_int_equal(open_with(next, S(IDLE), P(ABORT)), HEFT__GATE_DO);
    heft__stand_t aborted = { .round = next, .phase = P(ABORT), .result = R(OK), .state = S(IDLE) };
    heft__order_t late = { .round = next, .target = P(STAGE) }; /* it was overtaken */
    assert_int_equal(heft__member_gate(HEFT__ROLE_DESTINATION, &aborted, &late), HEFT__GATE_REFUSE);
}

/* Without staging: from preflight straight to pause, and the source sends inside the flip. */
static void in_place_members_vote_without_staging(void **state)
{
    (void)state;
    heft__stand_t stand = {
        .round = round_5, .phase = P(PREFLIGHT), .result = R(OK), .state = S(IDLE)
    };
    heft__order_t order = { .round = round_5, .target = P(PAUSE) };
    assert_int_equal(heft__member_gate(HEFT__ROLE_DESTINATION, &stand, &order), HEFT__GATE_REFUSE);
    stand.in_place = true;
    assert_int_equal(heft__member_gate(HEFT__ROLE_DESTINATION, &stand, &order), HEFT__GATE_DO);
    assert_int_equal(
        judge(HEFT__ROLE_SOURCE, P(PREPARE), R(OK), S(PREPARED), P(FLIP), HEFT__DECISION_COMMIT),
        HEFT__GATE_DO);
    assert_int_equal(
        judge(HEFT__ROLE_SOURCE, P(VERIFY), R(OK), S(SENT), P(FLIP), HEFT__DECISION_COMMIT),
        HEFT__GATE_DO);
    assert_int_equal(
        judge(HEFT__ROLE_SOURCE, P(PREPARE), R(OK), S(PREPARED), P(FLIP), HEFT__DECISION_NONE),
        HEFT__GATE_REFUSE);
    assert_int_equal(source(P(STAGE), R(OK), S(SENT), P(VERIFY)), HEFT__GATE_DO);
}

static void stale_round_refused(void **state)
{
    (void)state;
    assert_int_equal(open_with((heft__round_id_t){ 2, 4 }, S(IDLE), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with((heft__round_id_t){ 1, 9 }, S(IDLE), P(STAGE)), HEFT__GATE_REFUSE);
    assert_int_equal(open_with((heft__round_id_t){ 3, 1 }, S(IDLE), P(STAGE)), HEFT__GATE_DO);
}

static void an_open_round_is_not_left_for_another(void **state)
{
    (void)state;
    heft__round_id_t next = { 2, 6 };
    static const heft__member_state_t states[] = { S(STAGING), S(STAGED), S(PAUSED), S(FLIPPED) };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        assert_int_equal(open_with(next, states[i], P(STAGE)), HEFT__GATE_REFUSE);
        assert_int_equal(open_with(next, states[i], P(ABORT)), HEFT__GATE_REFUSE);
    }
}

/* A failed resume leaves the engine flipped and down; the round ends all the same. */
static void release_ends_a_round_whose_resume_failed(void **state)
{
    (void)state;
    assert_int_equal(dest(P(RESUME), R(FAILED), S(FLIPPED), P(RELEASE)), HEFT__GATE_DO);
    /* paused, and the round went on without it: out of service */
    assert_int_equal(dest(P(PAUSE), R(OK), S(PAUSED), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(dest(P(STAGE), R(WORKING), S(STAGING), P(RELEASE)), HEFT__GATE_REFUSE);
    assert_int_equal(source(P(STAGE), R(UNKNOWN), S(SENDING), P(RELEASE)), HEFT__GATE_REFUSE);
}

/* Letting go of what was never taken, again, and after everything is over. */
static void release_before_prepare_twice_after_close(void **state)
{
    (void)state;
    assert_int_equal(source(P(NONE), R(NONE), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(source(P(PREFLIGHT), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(dest(P(PREFLIGHT), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    assert_int_equal(source(P(RELEASE), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(RELEASE), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DONE);
    assert_int_equal(dest(P(ABORT), R(OK), S(IDLE), P(RELEASE)), HEFT__GATE_DO);
    /* what it let go of does not come back: nothing but the next round follows */
    assert_int_equal(source(P(RELEASE), R(OK), S(IDLE), P(PREPARE)), HEFT__GATE_DONE);
    assert_int_equal(open_with((heft__round_id_t){ 2, 6 }, S(IDLE), P(PREFLIGHT)), HEFT__GATE_DO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_passes_through_in_order),
        cmocka_unit_test(duplicate_order_noop),
        cmocka_unit_test(out_of_order_refused),
        cmocka_unit_test(flip_needs_a_commit),
        cmocka_unit_test(failed_steps_may_be_tried_again),
        cmocka_unit_test(flip_after_abort_refused),
        cmocka_unit_test(abort_is_taken_from_anywhere),
        cmocka_unit_test(rounds_open_only_with_some_phases),
        cmocka_unit_test(stray_future_round_refused),
        cmocka_unit_test(round_opens_as_abort),
        cmocka_unit_test(in_place_members_vote_without_staging),
        cmocka_unit_test(stale_round_refused),
        cmocka_unit_test(an_open_round_is_not_left_for_another),
        cmocka_unit_test(release_ends_a_round_whose_resume_failed),
        cmocka_unit_test(release_before_prepare_twice_after_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
