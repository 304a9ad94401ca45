/* SPDX-License-Identifier: Apache-2.0 */
#include "heft_test.h"
#include "kernel/kernel.h"
#include "transport/transport.h"

typedef struct pair {
    heft__loop_t *loop;
    heft__window_t *window;
    heft__remote_t *remote;
} pair_t;

static const heft__token_t round_1 = { 1, 1 };
static const heft__token_t round_2 = { 1, 2 };

static int64_t in_ms(int64_t ms)
{
    return heft__clock_mono_ns() + ms * 1000000;
}

static heft__window_params_t window_params(int64_t bytes)
{
    return (heft__window_params_t){ .bytes = bytes, .memory = HEFT__MEMORY_HOST };
}

static pair_t pair_create(bool direct)
{
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p;
    heft__window_params_t params = window_params(1000);
    EXPECT_STATUS(heft__loop_create(direct, &p.loop, &err), HEFT_OK);
    heft__transport_t *transport = heft__loop_get_transport(p.loop);
    EXPECT_STATUS(heft__window_create(transport, &params, &p.window, &err), HEFT_OK);
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(p.window, &text);
    heft__attach_params_t attach = { .bytes = 1000, .deadline_mono_ns = in_ms(1000) };
    EXPECT_STATUS(heft__remote_attach(transport, text.data, &attach, &p.remote, &err), HEFT_OK);
    heft__text_fini(&text);
    return p;
}

static void pair_destroy(pair_t *p)
{
    heft__remote_close(p->remote);
    heft__window_destroy(p->window);
    heft__loop_destroy(p->loop);
}

static void begin(pair_t *p, heft__token_t token)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_arm(p->window, token);
    EXPECT_STATUS(heft__remote_begin(p->remote, token, in_ms(1000), &err), HEFT_OK);
}

static void puts_arrive_and_are_counted(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    assert_null(p.remote->ptr);
    begin(&p, round_1);
    heft__window_state_t st;
    heft__window_query(p.window, &st);
    assert_int_equal(st.n_writing, 1);
    EXPECT_STATUS(heft__remote_put(p.remote, 990, "0123456789", 10, &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_flush(p.remote, in_ms(1000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(p.remote, round_1, true, &err), HEFT_OK);
    assert_memory_equal(p.window->ptr + 990, "0123456789", 10);
    heft__window_query(p.window, &st);
    assert_int_equal(st.n_attached, 1);
    assert_int_equal(st.n_writing, 0);
    assert_int_equal(st.n_done, 1);
    pair_destroy(&p);
}

static void put_outside_the_window_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    begin(&p, round_1);
    EXPECT_STATUS(heft__remote_put(p.remote, 991, "0123456789", 10, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("10 bytes at 991 is outside a window of 1000 bytes");
    EXPECT_STATUS(heft__remote_put(p.remote, INT64_MAX, "0", 10, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft__remote_put(p.remote, -1, "0", 1, &err), HEFT_ERR_ARGUMENT);
    pair_destroy(&p);
}

static void a_round_that_is_not_armed_cannot_begin(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    EXPECT_STATUS(heft__remote_begin(p.remote, round_1, in_ms(1000), &err), HEFT_ERR_STALE);
    heft__window_arm(p.window, round_1);
    EXPECT_STATUS(heft__remote_begin(p.remote, round_2, in_ms(1000), &err), HEFT_ERR_STALE);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "x", 1, &err), HEFT_ERR_STALE);
    pair_destroy(&p);
}

static void faults_hit_the_put_they_are_set_for(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    begin(&p, round_1);
    heft__loop_set_fault(p.loop, HEFT__LOOP_FAIL, 1);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "aaaa", 4, &err), HEFT_OK);
    assert_false(heft__loop_was_reached(p.loop));
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "bbbb", 4, &err), HEFT_ERR_IO);
    assert_true(heft__loop_was_reached(p.loop));
    assert_memory_equal(p.window->ptr, "aaaa", 4);

    heft__loop_set_fault(p.loop, HEFT__LOOP_DROP, 0);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "cccc", 4, &err), HEFT_OK);
    assert_memory_equal(p.window->ptr, "aaaa", 4);

    heft__loop_set_fault(p.loop, HEFT__LOOP_CORRUPT, 0);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "dddd", 4, &err), HEFT_OK);
    assert_memory_not_equal(p.window->ptr, "dddd", 4);
    assert_int_equal(p.window->ptr[0], 'd');

    heft__loop_set_fault(p.loop, HEFT__LOOP_DIE, 0);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "eeee", 4, &err), HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_check(p.remote, &err), HEFT_ERR_PEER);
    pair_destroy(&p);
}

static void late_put_cannot_land(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    uint32_t n_landed;
    uint32_t n_refused;
    begin(&p, round_1);
    heft__loop_set_fault(p.loop, HEFT__LOOP_HOLD, 0);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "late", 4, &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_flush(p.remote, in_ms(20), &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("1 puts have not arrived");
    bool replaced;
    EXPECT_STATUS(heft__window_fence(p.window, in_ms(1000), &replaced, &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_check(p.remote, &err), HEFT_ERR_CANCELED);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "more", 4, &err), HEFT_ERR_STALE);
    EXPECT_STATUS(heft__remote_end(p.remote, round_1, false, &err), HEFT_OK);
    begin(&p, round_2);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "next", 4, &err), HEFT_OK);
    heft__loop_release(p.loop, &n_landed, &n_refused);
    assert_int_equal(n_landed, 0);
    assert_int_equal(n_refused, 1);
    assert_memory_equal(p.window->ptr, "next", 4);
    pair_destroy(&p);
}

static void held_put_lands_when_released_in_time(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    uint32_t n_landed;
    uint32_t n_refused;
    begin(&p, round_1);
    heft__loop_set_fault(p.loop, HEFT__LOOP_HOLD, 0);
    EXPECT_STATUS(heft__remote_put(p.remote, 0, "late", 4, &err), HEFT_OK);
    assert_memory_not_equal(p.window->ptr, "late", 4);
    heft__loop_release(p.loop, &n_landed, &n_refused);
    assert_int_equal(n_landed, 1);
    EXPECT_STATUS(heft__remote_flush(p.remote, in_ms(1000), &err), HEFT_OK);
    assert_memory_equal(p.window->ptr, "late", 4);
    pair_destroy(&p);
}

static void direct_writer_holds_up_the_fence(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(true);
    bool replaced = true;
    assert_ptr_equal(p.remote->ptr, p.window->ptr);
    begin(&p, round_1);
    EXPECT_STATUS(heft__window_fence(p.window, in_ms(10), &replaced, &err), HEFT_ERR_TIMEOUT);
    EXPECT_MESSAGE("1 senders have not stopped");
    EXPECT_STATUS(heft__remote_end(p.remote, round_1, false, &err), HEFT_OK);
    EXPECT_STATUS(heft__window_fence(p.window, in_ms(1000), &replaced, &err), HEFT_OK);
    assert_false(replaced);
    heft__window_state_t st;
    heft__window_query(p.window, &st);
    assert_int_equal(st.n_failed, 1);
    pair_destroy(&p);
}

static void gone_and_foreign_windows_are_told_apart(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    pair_t p = pair_create(false);
    heft__transport_t *transport = heft__loop_get_transport(p.loop);
    heft__attach_params_t attach = { .bytes = 1000, .deadline_mono_ns = in_ms(1000) };
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(heft__remote_attach(transport,
                                      "{\"transport\":\"loop\",\"id\":99,\"bytes\":1000,"
                                      "\"incarnation\":\"00000000000000000000000000000000\"}",
                                      &attach, &remote, &err),
                  HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_attach(transport,
                                      "{\"transport\":\"loop\",\"id\":1,\"bytes\":1000,"
                                      "\"incarnation\":\"00000000000000000000000000000001\"}",
                                      &attach, &remote, &err),
                  HEFT_ERR_STALE);
    EXPECT_STATUS(heft__remote_attach(transport, "{}", &attach, &remote, &err), HEFT_ERR_FORMAT);
    attach.bytes = 1001;
    EXPECT_STATUS(heft__remote_attach(transport,
                                      "{\"transport\":\"loop\",\"id\":1,\"bytes\":1000,"
                                      "\"incarnation\":\"00000000000000000000000000000000\"}",
                                      &attach, &remote, &err),
                  HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("1000 bytes of staging, 1001 needed");
    assert_null(remote);
    pair_destroy(&p);
}

static void endpoint_names_its_transport(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char name[16];
    EXPECT_STATUS(heft__endpoint_get_transport("{\"transport\":\"shm\",\"x\":1}", name, 16, &err),
                  HEFT_OK);
    assert_string_equal(name, "shm");
    EXPECT_STATUS(heft__endpoint_get_transport("{\"x\":1}", name, 16, &err), HEFT_ERR_FORMAT);
    EXPECT_STATUS(
        heft__endpoint_get_transport("{\"transport\":\"a-name-too-long\"}", name, 15, &err),
        HEFT_ERR_FORMAT);
    EXPECT_STATUS(heft__endpoint_get_transport("nonsense", name, 16, &err), HEFT_ERR_FORMAT);
}

static void negative_and_foreign_memory_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = NULL;
    heft__window_params_t params = window_params(-1);
    EXPECT_STATUS(heft__window_create(heft__transport_get_shm(), &params, &window, &err),
                  HEFT_ERR_ARGUMENT);
    params.bytes = 1;
    params.memory = (heft__memory_t)2;
    EXPECT_STATUS(heft__window_create(heft__transport_get_shm(), &params, &window, &err),
                  HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("memory kind 2");
    assert_null(window);
}

/* A table of an older layout, or with holes: the calls say what is missing. */
static void missing_operations_are_refused_by_name(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__transport_ops_t ops = { .size = offsetof(heft__transport_ops_t, put),
                                        .name = "old" };
    heft__transport_t transport = { .ops = &ops };
    heft__remote_t remote = { .ops = &ops, .bytes = 10 };
    heft__window_t *window = NULL;
    heft__window_params_t params = window_params(1);
    EXPECT_STATUS(heft__window_create(&transport, &params, &window, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("transport old cannot export memory");
    EXPECT_STATUS(heft__remote_put(&remote, 0, "x", 1, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_STATUS(heft__remote_flush(&remote, 0, &err), HEFT_OK);
    assert_int_equal(heft__remote_get_fd(&remote), -1);
}

static void create_survives_failed_allocations(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t live = heft__alloc_live();
    heft__window_params_t params = window_params(100);
    for (long k = 0;; k++) {
        heft__loop_t *loop = NULL;
        heft__window_t *window = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft__loop_create(false, &loop, &err);
        if (status == HEFT_OK) {
            status = heft__window_create(heft__loop_get_transport(loop), &params, &window, &err);
        }
        heft__alloc_fail_at(-1);
        heft__window_destroy(window);
        heft__loop_destroy(loop);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k >= 3);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

/* Somebody writes to what is fetched once it has been summed; `writes` times. */
typedef struct owner {
    uint8_t bytes[1000];
    int writes;
} owner_t;

static heft_status_t fetch(void *arg, uint32_t route, int64_t at, int64_t n, uint8_t *room,
                           const uint8_t **bytes_out, uint32_t *crc_out, heft_error_t *err)
{
    owner_t *owner = arg;
    (void)err;
    assert_null(room);
    *bytes_out = NULL; /* at the base */
    if (route != 0) {
        return HEFT_OK;
    }
    *bytes_out = owner->bytes + at;
    *crc_out = heft__crc32c(0, owner->bytes + at, n);
    owner->bytes[at] = (uint8_t)(owner->bytes[at] + (owner->writes-- > 0));
    return HEFT_OK;
}

static const char *name_of(const void *arg, uint32_t route)
{
    (void)arg;
    return route == 0 ? "fetched" : "other";
}

static void what_is_fetched_is_sent_unless_it_was_written_to(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const heft__route_t routes[] = { { .offset = 0, .bytes = 600 },
                                            { .offset = 700, .bytes = 300 } };
    const heft__expect_t expect = { .routes = routes,
                                    .n_routes = 2,
                                    .n_senders = 1,
                                    .chunk_bytes = 256,
                                    .crc = heft__crc32c,
                                    .name_of = name_of };
    uint8_t base[1000];
    owner_t owner = { .writes = 0 };
    memset(base, 1, sizeof base);
    memset(owner.bytes, 2, sizeof owner.bytes);
    for (int writes = 0; writes < 2; writes++) {
        pair_t p = pair_create(false);
        heft__chunk_tx_t tx;
        EXPECT_STATUS(heft__window_expect(p.window, &expect, &err), HEFT_OK);
        begin(&p, round_1);
        heft__chunk_tx_init(&tx, p.remote, &expect, round_1, base, NULL, in_ms(1000), NULL, NULL);
        tx.fetch = fetch;
        tx.fetch_arg = &owner;
        EXPECT_STATUS(heft__chunk_tx_send(&tx, 1, &err), HEFT_OK);
        owner.writes = writes;
        heft_status_t status = heft__chunk_tx_send(&tx, 0, &err);
        status = heft__chunk_tx_finish(&tx, status, &err);
        assert_int_equal(status, writes == 0 ? HEFT_OK : HEFT_ERR_DIGEST);
        if (writes == 0) {
            assert_memory_equal(p.window->ptr, owner.bytes, 600);
            assert_memory_equal(p.window->ptr + 700, base, 300);
        } else {
            EXPECT_MESSAGE("what \"fetched\" is made of was written to while it was sent");
            assert_int_equal(tx.counts.resent, 0);
        }
        pair_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_arrive_and_are_counted),
        cmocka_unit_test(put_outside_the_window_is_refused),
        cmocka_unit_test(a_round_that_is_not_armed_cannot_begin),
        cmocka_unit_test(faults_hit_the_put_they_are_set_for),
        cmocka_unit_test(late_put_cannot_land),
        cmocka_unit_test(held_put_lands_when_released_in_time),
        cmocka_unit_test(direct_writer_holds_up_the_fence),
        cmocka_unit_test(gone_and_foreign_windows_are_told_apart),
        cmocka_unit_test(endpoint_names_its_transport),
        cmocka_unit_test(negative_and_foreign_memory_is_refused),
        cmocka_unit_test(missing_operations_are_refused_by_name),
        cmocka_unit_test(create_survives_failed_allocations),
        cmocka_unit_test(what_is_fetched_is_sent_unless_it_was_written_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
