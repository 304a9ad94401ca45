/* SPDX-License-Identifier: Apache-2.0 */
/* A member without a coordinator: what its report says. */
#include "heft_test.h"
#include "sync/member.h"

static heft__member_t *make(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__member_t *member = NULL;
    static const char *const transports[] = { "shm" };
    const heft__member_config_t config = { .access = { .url = "http://127.0.0.1:1" },
                                           .role = HEFT__ROLE_SOURCE,
                                           .n_transports = 1,
                                           .transports = transports };
    EXPECT_STATUS(heft__member_create(&config, &member, &err), HEFT_OK);
    return member;
}

/* A coordinator refuses a report of success that names an error, and then takes the member for
 * silent: whatever was tried on the way and mended is not told. */
static void success_is_told_without_an_error(void **state)
{
    (void)state;
    heft__member_t *member = make();
    heft_error_t err = HEFT_ERROR_INIT;
    heft_error_t mended = HEFT_ERROR_INIT;
    (void)heft__error_set(&mended, HEFT_ERR_PEER, "an empty reply, once");
    heft__report_t *report = heft__member_lock(member);
    report->epoch = 1;
    report->sequence = 1;
    report->round = (heft__round_id_t){ 1, 1 };
    report->phase = HEFT__PHASE_PREPARE;
    memset(report->source_digest, 'a', HEFT__DIGEST_SIZE - 1);
    heft__member_unlock(member, false);
    heft__member_conclude(member, HEFT__RESULT_OK, HEFT__STATE_PREPARED, &mended, NULL);
    char *text = NULL;
    EXPECT_STATUS(heft__report_encode(heft__member_lock(member), &text, &err), HEFT_OK);
    heft__member_unlock(member, false);
    heft__report_t read;
    EXPECT_STATUS(heft__report_decode(text, strlen(text), &read, &err), HEFT_OK);
    assert_int_equal(read.error.status, HEFT_OK);
    heft__report_fini(&read);
    heft__free(text);
    heft__member_destroy(member);
}

static void failure_is_told_with_its_error(void **state)
{
    (void)state;
    heft__member_t *member = make();
    heft_error_t why = HEFT_ERROR_INIT;
    (void)heft__error_set(&why, HEFT_ERR_DIGEST, "one bit differs");
    const heft__blame_t blame = { .tensor = "w", .peer = "destination.heft.0.0" };
    heft__member_conclude(member, HEFT__RESULT_FAILED, HEFT__STATE_IDLE, &why, &blame);
    const heft__report_t *report = heft__member_lock(member);
    assert_int_equal(report->error.status, HEFT_ERR_DIGEST);
    assert_string_equal(report->error.cause, "one bit differs");
    assert_string_equal(report->error.tensor, "w");
    assert_string_equal(report->error.peer, "destination.heft.0.0");
    heft__member_unlock(member, false);
    heft__member_destroy(member);
}

/* The interrupt of who stops it may be taken by another wait: an order is not waited for all the
 * same. */
static void a_stopped_member_awaits_no_order(void **state)
{
    (void)state;
    heft__member_t *member = make();
    heft_error_t err = HEFT_ERROR_INIT;
    heft__order_t order;
    const int64_t begin = heft__clock_mono_ns();
    const int64_t deadline = begin + INT64_C(20000000000);
    heft__member_stop(member);
    heft__member_interrupt(member);
    (void)heft__member_await_called_off(member, (heft__round_id_t){ 1, 1 }, deadline);
    EXPECT_STATUS(heft__member_await_order(member, deadline, &order, &err), HEFT_IN_PROGRESS);
    assert_true(heft__clock_mono_ns() - begin < INT64_C(10000000000));
    heft__member_destroy(member);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(success_is_told_without_an_error),
        cmocka_unit_test(failure_is_told_with_its_error),
        cmocka_unit_test(a_stopped_member_awaits_no_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
