/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both halves of ucx, against another process: over tcp (UCX_TLS=tcp on loopback) and over UCX's
 * own shared memory. Which of the two is the test's argument.
 */
#include "kernel/kernel.h"
#include "transport/ucx_api.h"
#include "transport/ucx_endpoint.h"
#include "ucx_peer_process.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 20 << 20, CHUNK = 1 << 20 };

static const heft__token_t round_1 = { 1, 1 };
/* For tests in which somebody falls silent, and for those in which a busy machine must not be taken
 * for that. */
static const heft__ucx_opts_t quick = { .allow_tcp = true, .silence_ms = 3000 };
static const heft__ucx_opts_t hasty = { .allow_tcp = true, .silence_ms = 500 };
static const heft__ucx_opts_t patient = { .allow_tcp = true, .silence_ms = 60000 };
static const heft__ucx_opts_t *opts; /* of the test, at both ends */
static heft__ucx_t *ucx;
static uint8_t *source;
static int64_t live_before;

static int64_t in_ms(int64_t ms)
{
    return heft__clock_mono_ns() + ms * 1000000;
}

/* An engine for each test: a sender that is killed may block the queues of UCX's shared memory. */
static int set_up(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    opts = *state;
    live_before = heft__alloc_live();
    EXPECT_STATUS(heft__ucx_acquire(opts, &ucx, &err), HEFT_OK);
    source = malloc(BYTES);
    up_fill(source, BYTES, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    heft__ucx_release(ucx);
    free(source);
    assert_int_equal(heft__alloc_live(), live_before);
    return 0;
}

static heft_status_t attach_as(const char *endpoint, uint8_t incarnation, int64_t bytes, int64_t ms,
                               heft__remote_t **remote_out, heft_error_t *err)
{
    heft__attach_params_t params = { .bytes = bytes, .deadline_mono_ns = in_ms(ms) };
    memset(params.incarnation, incarnation, sizeof params.incarnation);
    return heft__remote_attach(heft__ucx_get_transport(ucx), endpoint, &params, remote_out, err);
}

static heft__remote_t *attach(const char *endpoint)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__remote_t *remote = NULL;
    EXPECT_STATUS(attach_as(endpoint, 0x22, BYTES, 20000, &remote, &err), HEFT_OK);
    return remote;
}

static heft__remote_t *start_round(up_process_t *peer, bool in_chunks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    up_start(peer, opts);
    heft__remote_t *remote = attach(up_tell(peer, "window %d", BYTES));
    if (in_chunks) {
        assert_string_equal(up_tell(peer, "expect %d %d", BYTES, CHUNK), "OK ");
    }
    (void)up_tell(peer, "arm 1 1");
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(20000), &err), HEFT_OK);
    return remote;
}

static void await_state(up_process_t *peer, const char *wanted)
{
    const int64_t until = in_ms(30000);
    while (strcmp(up_tell(peer, "state"), wanted) != 0) {
        if (heft__clock_mono_ns() > until) {
            fail_msg("state is %s, expected %s", peer->line, wanted);
        }
        (void)sched_yield();
    }
}

static const heft__route_t whole = { .offset = 0, .bytes = BYTES };
static const heft__expect_t expected = {
    .routes = &whole, .n_routes = 1, .n_senders = 1, .chunk_bytes = CHUNK, .crc = heft__crc32c
};

/* ---- promises ---- */

static void puts_are_in_place_after_a_flush(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__remote_t *remote = start_round(&peer, false);
    assert_null(remote->ptr);
    assert_int_equal(remote->bytes, BYTES);
    for (int64_t at = 0; at < BYTES; at += 300000) {
        const int64_t n = heft__min_i64(300000, BYTES - at);
        EXPECT_STATUS(heft__remote_put(remote, at, source + at, n, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(20000), &err), HEFT_OK);
    assert_string_equal(up_tell(&peer, "same 1 %d", BYTES), "same 20971520");
    EXPECT_STATUS(heft__remote_put(remote, BYTES - 1, source, 2, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    await_state(&peer, "1 0 1 0 0");
    EXPECT_STATUS(heft__remote_put(remote, 0, source, 2, &err), HEFT_ERR_STALE);
    assert_int_equal(strncmp(up_tell(&peer, "fence 5000"), "kept ", 5), 0);
    heft__remote_close(remote);
    await_state(&peer, "0 0 1 0 0");
    up_end(&peer);
}

static void chunks_are_judged_and_several_are_under_way(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_counts_t counts = { 0, 0 };
    heft__remote_t *remote = start_round(&peer, true);
    assert_true(heft__remote_can_post(remote));
    EXPECT_STATUS(heft__chunk_send(remote, &expected, round_1, 0, source, in_ms(20000), NULL, NULL,
                                   &counts, &err),
                  HEFT_OK);
    assert_int_equal(counts.chunks, BYTES / CHUNK);
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(20000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    assert_string_equal(up_tell(&peer, "same 1 %d", BYTES), "same 20971520");
    await_state(&peer, "1 0 1 0 0");
    heft__remote_close(remote);
    up_end(&peer);
}

/* One that takes no more for now does not hold up a sender that has others to send to. */
static void a_receiver_that_is_full_is_not_waited_for(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_tx_t tx;
    uint64_t next = 0;
    heft__remote_t *remote = start_round(&peer, true);
    heft__chunk_tx_init(&tx, remote, &expected, round_1, source, NULL, in_ms(20000), NULL, NULL);
    assert_int_equal(kill(peer.pid, SIGSTOP), 0);
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK) {
        status = heft__chunk_tx_try(&tx, 0, &next, &err);
    }
    EXPECT_STATUS(status, HEFT_IN_PROGRESS);
    assert_int_equal(next, HEFT__CHUNKS_UNDER_WAY);
    EXPECT_STATUS(heft__chunk_tx_await_room(&tx, in_ms(20), &err), HEFT_IN_PROGRESS);
    assert_int_equal(kill(peer.pid, SIGCONT), 0);
    while (next < BYTES / CHUNK) {
        EXPECT_STATUS(heft__chunk_tx_await_room(&tx, in_ms(20000), &err), HEFT_OK);
        EXPECT_STATUS(heft__chunk_tx_try(&tx, 0, &next, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft__chunk_tx_finish(&tx, HEFT_OK, &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    assert_string_equal(up_tell(&peer, "same 1 %d", BYTES), "same 20971520");
    heft__remote_close(remote);
    up_end(&peer);
}

/* Each chunk is gathered into room of its own while others are under way. */
static void packed_chunks_are_under_way_together(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    int64_t window_bytes = BYTES;
    heft__expect_t packed = expected;
    packed.n_packed = 1;
    packed.pack = up_pack;
    packed.pack_arg = &window_bytes;
    uint8_t *scratch = malloc((size_t)HEFT__CHUNKS_UNDER_WAY * CHUNK);
    heft__chunk_tx_t tx;
    up_start(&peer, opts);
    heft__remote_t *remote = attach(up_tell(&peer, "window %d", BYTES));
    assert_string_equal(up_tell(&peer, "expect-packed %d %d", BYTES, CHUNK), "OK ");
    (void)up_tell(&peer, "arm 1 1");
    EXPECT_STATUS(heft__remote_begin(remote, round_1, in_ms(20000), &err), HEFT_OK);
    heft__chunk_tx_init(&tx, remote, &packed, round_1, source, scratch, in_ms(20000), NULL, NULL);
    EXPECT_STATUS(heft__chunk_tx_send(&tx, 0, &err), HEFT_OK);
    EXPECT_STATUS(heft__chunk_tx_finish(&tx, HEFT_OK, &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(20000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_OK);
    assert_int_equal(tx.counts.chunks, BYTES / CHUNK);
    assert_string_equal(up_tell(&peer, "same 1 %d", BYTES), "same 20971520");
    heft__remote_close(remote);
    free(scratch);
    up_end(&peer);
}

static void rounds_reuse_the_connection(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_counts_t counts = { 0, 0 };
    heft__remote_t *remote = start_round(&peer, true);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        const heft__token_t token = { 1, seq };
        if (seq > 1) {
            EXPECT_STATUS(heft__remote_begin(remote, token, in_ms(20000), &err), HEFT_ERR_STALE);
            (void)up_tell(&peer, "arm 1 %d", (int)seq);
            EXPECT_STATUS(heft__remote_begin(remote, token, in_ms(20000), &err), HEFT_OK);
        }
        up_fill(source, BYTES, (uint32_t)seq);
        EXPECT_STATUS(heft__chunk_send(remote, &expected, token, 0, source, in_ms(20000), NULL,
                                       NULL, &counts, &err),
                      HEFT_OK);
        EXPECT_STATUS(heft__remote_end(remote, token, true, &err), HEFT_OK);
        assert_string_equal(up_tell(&peer, "same %d %d", (int)seq, BYTES), "same 20971520");
        assert_int_equal(strncmp(up_tell(&peer, "fence 5000"), "kept ", 5), 0);
    }
    up_fill(source, BYTES, 1);
    heft__remote_close(remote);
    up_end(&peer);
}

static void encode_chunk(uint64_t index, int64_t bytes, uint32_t crc, uint8_t *out)
{
    /* docs/formats/chunk.md; what heft__chunk_encode does, with a checksum of our own choice */
    memset(out, 0, 64);
    memcpy(out, "HFCK", 4);
    out[4] = 1;
    heft__put_le64(out + 8, 1);
    heft__put_le64(out + 16, 1);
    heft__put_le64(out + 32, index);
    heft__put_le64(out + 40, index * CHUNK);
    heft__put_le64(out + 48, (uint64_t)bytes);
    heft__put_le32(out + 56, crc);
    heft__put_le32(out + 60, heft__crc32c(0, out, 60));
}

static void a_chunk_that_is_damaged_twice_fails_the_round(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    uint8_t header[64];
    const uint32_t crc = heft__crc32c(0, source, CHUNK);
    heft__remote_t *remote = start_round(&peer, true);
    encode_chunk(0, CHUNK, crc ^ 1, header);
    EXPECT_STATUS(heft__remote_send(remote, header, source, CHUNK, in_ms(20000), &err),
                  HEFT_ERR_DIGEST);
    EXPECT_STATUS(heft__remote_send(remote, header, source, CHUNK, in_ms(20000), &err),
                  HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("for the second time");
    EXPECT_STATUS(heft__remote_end(remote, round_1, false, &err), HEFT_OK);
    await_state(&peer, "1 0 0 1 0");
    heft__remote_close(remote);
    up_end(&peer);
}

static void a_chunk_that_is_damaged_once_is_sent_again(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    uint8_t header[64];
    const uint32_t crc = heft__crc32c(0, source, CHUNK);
    heft__remote_t *remote = start_round(&peer, true);
    encode_chunk(0, CHUNK, crc ^ 1, header);
    EXPECT_STATUS(heft__remote_send(remote, header, source, CHUNK, in_ms(20000), &err),
                  HEFT_ERR_DIGEST);
    encode_chunk(0, CHUNK, crc, header);
    EXPECT_STATUS(heft__remote_send(remote, header, source, CHUNK, in_ms(20000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_send(remote, header, source, CHUNK, in_ms(20000), &err),
                  HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("came twice");
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_ERR_PROTOCOL);
    heft__remote_close(remote);
    up_end(&peer);
}

static void an_end_without_all_chunks_names_the_route(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    uint8_t header[64];
    heft__remote_t *remote = start_round(&peer, true);
    encode_chunk(2, CHUNK, heft__crc32c(0, source + 2 * CHUNK, CHUNK), header);
    EXPECT_STATUS(heft__remote_send(remote, header, source + 2 * CHUNK, CHUNK, in_ms(20000), &err),
                  HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, true, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("route 0: 19 of 20 chunks have not come");
    await_state(&peer, "1 0 0 1 0");
    heft__remote_close(remote);
    up_end(&peer);
}

static void another_incarnation_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__remote_t *remote = NULL;
    up_start(&peer, opts);
    char *endpoint = strdup(up_tell(&peer, "window %d", BYTES));
    char *digits = strstr(endpoint, "1111111111");
    assert_non_null(digits);
    digits[0] = '2';
    EXPECT_STATUS(attach_as(endpoint, 0x22, 0, 20000, &remote, &err), HEFT_ERR_STALE);
    digits[0] = '1';
    EXPECT_STATUS(attach_as(endpoint, 0x22, BYTES + 1, 20000, &remote, &err), HEFT_ERR_SHAPE);
    free(endpoint);
    up_end(&peer);
}

/* Two lives of a sender: what one begins the other does not end. */
/* What is sent over tcp in one piece must be read in one piece. */
static void over_tcp_both_ends_have_the_same_segments(void **state)
{
    (void)state;
    static const heft__ucx_opts_t two_networks = { .allow_tcp = true, .max_lanes = 2 };
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__remote_t *remote = NULL;
    up_start(&peer, &two_networks);
    const char *endpoint = up_tell(&peer, "window %d", BYTES);
    const heft_status_t status = attach_as(endpoint, 0x22, BYTES, 20000, &remote, &err);
    if (strcmp(getenv("UCX_TLS"), "tcp") == 0) {
        assert_int_equal(status, HEFT_ERR_UNSUPPORTED);
        EXPECT_MESSAGE("it reads 266240 bytes of tcp at once, and here 1052672 are sent");
    } else {
        assert_int_equal(status, HEFT_OK);
        heft__remote_close(remote);
    }
    up_end(&peer);
}

static heft__window_t *open_window(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_t *window = NULL;
    heft__window_params_t params = { .bytes = BYTES, .memory = HEFT__MEMORY_HOST };
    memset(params.incarnation, 0x11, sizeof params.incarnation);
    EXPECT_STATUS(heft__window_create(heft__ucx_get_transport(ucx), &params, &window, &err),
                  HEFT_OK);
    return window;
}

/* Puts of a program that is no sender of ours, but has read the endpoint. */
static void put_as_a_stranger(const heft__ucx_endpoint_t *endpoint)
{
    const heft__ucx_api_t *api = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    ucp_rkey_h rkey;
    EXPECT_STATUS(heft__ucx_api_load(&api, &err), HEFT_OK);
    const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                                  .features = UCP_FEATURE_RMA };
    const ucp_worker_params_t of_worker = { .field_mask = 0 };
    const ucp_ep_params_t of_ep = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                    .address = (const ucp_address_t *)endpoint->worker };
    const ucp_request_param_t none = { .op_attr_mask = 0 };
    assert_int_equal(api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, NULL, &context),
                     UCS_OK);
    assert_int_equal(api->ucp_worker_create(context, &of_worker, &worker), UCS_OK);
    assert_int_equal(api->ucp_ep_create(worker, &of_ep, &ep), UCS_OK);
    assert_int_equal(api->ucp_ep_rkey_unpack(ep, endpoint->key, &rkey), UCS_OK);
    (void)api->ucp_put_nbx(ep, source, 4096, endpoint->base, rkey, &none);
    (void)api->ucp_ep_flush_nbx(ep, &none);
    for (const int64_t until = in_ms(1000); heft__clock_mono_ns() < until;) {
        (void)api->ucp_worker_progress(worker);
    }
    api->ucp_rkey_destroy(rkey);
    api->ucp_worker_destroy(worker);
    api->ucp_cleanup(context);
}

static void over_tcp_nobody_writes_without_asking(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    if (strcmp(getenv("UCX_TLS"), "tcp") != 0) {
        skip(); /* shared memory is for whoever may map it */
    }
    heft__window_t *window = open_window();
    heft__ucx_endpoint_t endpoint;
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    EXPECT_STATUS(heft__ucx_endpoint_decode(text.data, text.len, &endpoint, &err), HEFT_OK);
    heft__text_fini(&text);
    memset(window->ptr, 7, BYTES);
    put_as_a_stranger(&endpoint);
    for (int64_t i = 0; i < BYTES; i++) {
        assert_int_equal(window->ptr[i], 7);
    }
    heft__window_destroy(window);
}

static void a_receiver_that_dies_is_a_lost_peer(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_counts_t counts = { 0, 0 };
    heft__remote_t *remote = start_round(&peer, true);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_OK);
    up_kill(&peer);
    EXPECT_STATUS(heft__chunk_send(remote, &expected, round_1, 0, source, in_ms(20000), NULL, NULL,
                                   &counts, &err),
                  HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(20000), &err), HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_ERR_PEER);
    EXPECT_STATUS(heft__remote_end(remote, round_1, false, &err), HEFT_ERR_PEER);
    heft__remote_close(remote);
}

static void a_receiver_that_stops_ends_every_call(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_counts_t counts = { 0, 0 };
    heft__remote_t *remote = start_round(&peer, true);
    (void)kill(peer.pid, SIGSTOP);
    /* The call's own deadline first: */
    EXPECT_STATUS(heft__chunk_send(remote, &expected, round_1, 0, source, in_ms(300), NULL, NULL,
                                   &counts, &err),
                  HEFT_ERR_TIMEOUT);
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(300), &err), HEFT_ERR_TIMEOUT);
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_ERR_PEER);
    heft__remote_close(remote);
    (void)kill(peer.pid, SIGCONT);
    /* What it had under way may land: only other memory is a fence. */
    await_state(&peer, "0 0 0 0 1");
    assert_int_equal(strncmp(up_tell(&peer, "fence 5000"), "replaced ", 9), 0);
    up_end(&peer);
}

static void a_silent_receiver_is_lost_long_before_the_deadline(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__chunk_counts_t counts = { 0, 0 };
    heft__remote_t *remote = start_round(&peer, true);
    (void)kill(peer.pid, SIGSTOP);
    EXPECT_STATUS(heft__chunk_send(remote, &expected, round_1, 0, source, in_ms(3600000), NULL,
                                   NULL, &counts, &err),
                  HEFT_ERR_PEER);
    EXPECT_MESSAGE("silent for");
    heft__remote_close(remote);
    (void)kill(peer.pid, SIGCONT);
    up_end(&peer);
}

static void start_storm(heft__window_t *window, up_process_t *sender)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    up_start(sender, opts);
    assert_string_equal(up_tell(sender, "attach %s", text.data), "OK ");
    heft__text_fini(&text);
    heft__window_arm(window, round_1);
    assert_string_equal(up_tell(sender, "begin 1 1"), "OK ");
    assert_string_equal(up_tell(sender, "storm"), "OK ");
    const volatile uint8_t *last = window->ptr + BYTES - 1;
    const int64_t until = in_ms(30000);
    while (*last != 0x5a) {
        assert_true(heft__clock_mono_ns() < until);
        (void)sched_yield();
    }
}

static heft__window_state_t await_over(heft__window_t *window)
{
    heft__window_state_t s;
    const int64_t until = in_ms(30000);
    do {
        heft__window_query(window, &s);
        assert_true(heft__clock_mono_ns() < until);
        (void)sched_yield();
    } while (s.n_writing > 0);
    return s;
}

static void expect_untouched(const heft__window_t *window, uint8_t value)
{
    const int64_t until = in_ms(500); /* time for what is late to land, if it can */
    do {
        for (int64_t i = 0; i < BYTES; i += 64) {
            assert_int_equal(window->ptr[i], value);
        }
    } while (heft__clock_mono_ns() < until);
}

static void a_fence_asks_the_sender_to_stop_and_keeps_the_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    bool replaced = true;
    heft__remote_t *remote = start_round(&peer, true);
    up_tell_only(&peer, "fence 20000");
    while (heft__remote_check(remote, &err) == HEFT_OK) {
        (void)sched_yield();
    }
    EXPECT_STATUS(heft__remote_check(remote, &err), HEFT_ERR_CANCELED);
    EXPECT_STATUS(heft__remote_flush(remote, in_ms(20000), &err), HEFT_OK);
    EXPECT_STATUS(heft__remote_end(remote, round_1, false, &err), HEFT_OK);
    replaced = strncmp(up_read(&peer), "kept ", 5) != 0;
    assert_false(replaced);
    heft__remote_close(remote);
    up_end(&peer);
}

static void late_puts_do_not_land_after_a_fence(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t sender;
    heft__window_t *window = open_window();
    bool replaced = false;
    start_storm(window, &sender);
    (void)kill(sender.pid, SIGSTOP); /* in the middle: it holds puts that are not sent yet */
    EXPECT_STATUS(heft__window_fence(window, in_ms(100), &replaced, &err), HEFT_OK);
    assert_true(replaced);
    memset(window->ptr, 7, BYTES);
    (void)kill(sender.pid, SIGCONT);
    expect_untouched(window, 7);
    assert_int_equal(strncmp(up_read(&sender), "ERR_PEER", 8), 0);
    up_end(&sender);
    heft__window_destroy(window);
}

static void a_sender_that_dies_is_lost_and_fenced_by_other_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t sender;
    heft__window_t *window = open_window();
    bool replaced = false;
    start_storm(window, &sender);
    up_kill(&sender);
    const heft__window_state_t s = await_over(window);
    assert_int_equal(s.n_lost, 1);
    assert_int_equal(s.lost.pid, sender.pid);
    EXPECT_STATUS(heft__window_fence(window, in_ms(5000), &replaced, &err), HEFT_OK);
    assert_true(replaced);
    memset(window->ptr, 7, BYTES);
    expect_untouched(window, 7);
    heft__window_destroy(window);
}

/* Its words come after its bytes, which may take long: a receiver would be lost much earlier. */
static void a_silent_sender_is_lost_but_not_soon(void **state)
{
    (void)state;
    up_process_t sender;
    heft__window_t *window = open_window();
    start_storm(window, &sender);
    const int64_t since = heft__clock_mono_ns();
    (void)kill(sender.pid, SIGSTOP);
    const heft__window_state_t s = await_over(window);
    assert_true(heft__clock_mono_ns() - since > INT64_C(6000000) * opts->silence_ms);
    assert_int_equal(s.n_lost, 1);
    assert_int_equal(s.lost.pid, sender.pid);
    assert_int_equal(s.lost.incarnation[0], 0x22);
    assert_non_null(strstr(s.lost.why, "silent for"));
    heft__window_destroy(window); /* its addresses stay reserved: nothing lands in other memory */
    (void)kill(sender.pid, SIGCONT);
    (void)up_read(&sender);
    up_end(&sender);
}

static void nobody_there_is_a_timeout_or_a_lost_peer(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    up_process_t peer;
    heft__remote_t *remote = NULL;
    up_start(&peer, opts);
    char *endpoint = strdup(up_tell(&peer, "window %d", BYTES));
    up_kill(&peer);
    heft_status_t status = attach_as(endpoint, 0x22, BYTES, 3000, &remote, &err);
    assert_true(status == HEFT_ERR_PEER || status == HEFT_ERR_TIMEOUT);
    free(endpoint);
}

static double cpu_seconds(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) * 1e-6;
}

static void an_idle_engine_does_not_run(void **state)
{
    (void)state;
    up_process_t peer;
    up_start(&peer, opts);
    heft__remote_t *remote = attach(up_tell(&peer, "window %d", BYTES));
    const double before = cpu_seconds();
    const struct timespec second = { .tv_sec = 1 };
    (void)nanosleep(&second, NULL); /* what is measured is a second of nothing */
    assert_true(cpu_seconds() - before < 0.5);
    heft__remote_close(remote);
    up_end(&peer);
}

static int count_leftovers(void)
{
    int n = 0;
    DIR *dir = opendir("/dev/shm");
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        n += strncmp(e->d_name, "ucx_shm", 7) == 0 || strncmp(e->d_name, "heft", 4) == 0;
    }
    (void)closedir(dir);
    return n;
}

static void nothing_is_left_behind_after_a_kill(void **state)
{
    (void)state;
    up_process_t sender;
    const int before = count_leftovers();
    heft__window_t *window = open_window();
    start_storm(window, &sender);
    up_kill(&sender);
    (void)await_over(window);
    heft__window_destroy(window);
    assert_true(count_leftovers() <= before); /* others may use UCX meanwhile, and end */
}

/* ---- no memory ---- */

typedef heft_status_t constructor_t(const char *endpoint, heft_error_t *err);

static heft_status_t make_engine(const char *endpoint, heft_error_t *err)
{
    const heft__ucx_opts_t other = { .allow_tcp = true, .silence_ms = 2001, .net_devices = "" };
    heft__ucx_t *engine = NULL;
    (void)endpoint;
    heft_status_t status = heft__ucx_acquire(&other, &engine, err);
    assert_true((status == HEFT_OK) == (engine != NULL));
    heft__ucx_release(engine);
    return status;
}

static heft_status_t make_window_of(heft__transport_t *transport, heft_error_t *err)
{
    const heft__window_params_t params = { .bytes = 4096, .memory = HEFT__MEMORY_HOST };
    heft__window_t *window = NULL;
    heft_status_t status = heft__window_create(transport, &params, &window, err);
    if (status == HEFT_OK) {
        const heft__route_t route = { .offset = 0, .bytes = 4096 };
        const heft__expect_t expect = {
            .routes = &route, .n_routes = 1, .n_senders = 1, .chunk_bytes = 64, .crc = heft__crc32c
        };
        status = heft__window_expect(window, &expect, err);
        heft__window_destroy(window);
    } else {
        assert_null(window);
    }
    return status;
}

static heft_status_t make_window(const char *endpoint, heft_error_t *err)
{
    (void)endpoint;
    return make_window_of(heft__ucx_get_transport(ucx), err);
}

static heft_status_t make_pair(const char *endpoint, heft_error_t *err)
{
    heft__pair_t *pair = NULL;
    (void)endpoint;
    heft_status_t status = heft__pair_create(ucx, &pair, err);
    if (status == HEFT_OK) {
        status = make_window_of(heft__pair_get_transport(pair), err);
    } else {
        assert_null(pair);
    }
    heft__pair_destroy(pair);
    return status;
}

static heft_status_t make_remote(const char *endpoint, heft_error_t *err)
{
    heft__remote_t *remote = NULL;
    heft_status_t status = attach_as(endpoint, 0x22, BYTES, 20000, &remote, err);
    assert_true((status == HEFT_OK) == (remote != NULL));
    heft__remote_close(remote);
    return status;
}

/* Every allocation of the caller fails once; it says so, and keeps nothing. */
static void fail_each(constructor_t *make, const char *endpoint, long n_min)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = HEFT_ERR_NOMEM;
    long k = 0;
    for (; status != HEFT_OK; k++) {
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        status = make(endpoint, &err);
        heft__alloc_fail_at(-1);
        if (status != HEFT_OK) {
            assert_int_equal(status, HEFT_ERR_NOMEM);
            assert_int_equal(heft__alloc_live(), live);
        }
    }
    assert_true(k > n_min);
}

static void constructors_survive_failed_allocations(void **state)
{
    (void)state;
    up_process_t peer;
    up_start(&peer, opts);
    char *endpoint = strdup(up_tell(&peer, "window %d", BYTES));
    fail_each(make_engine, endpoint, 2);
    fail_each(make_window, endpoint, 2);
    fail_each(make_pair, endpoint, 4);
    fail_each(make_remote, endpoint, 1);
    free(endpoint);
    up_end(&peer);
}

int main(int argc, char **argv)
{
    up_main(argc, argv);
    const bool is_tcp = argc > 1 && strcmp(argv[1], "tcp") == 0;
    (void)setenv("UCX_TLS", is_tcp ? "tcp" : "posix,sysv,cma", 1);
    (void)setenv("UCX_NET_DEVICES", is_tcp ? "lo" : "all", 1);
#define WITH(how, test)                                                                       \
    {                                                                                         \
        .name = #test, .test_func = (test), .setup_func = set_up, .teardown_func = tear_down, \
        .initial_state = (void *)(uintptr_t) & (how)                                          \
    }
#define PROMISE(test) WITH(patient, test)
#define SILENCE(test) WITH(quick, test)
    const struct CMUnitTest tests[] = {
        PROMISE(puts_are_in_place_after_a_flush),
        PROMISE(chunks_are_judged_and_several_are_under_way),
        PROMISE(a_receiver_that_is_full_is_not_waited_for),
        PROMISE(packed_chunks_are_under_way_together),
        PROMISE(rounds_reuse_the_connection),
        PROMISE(a_chunk_that_is_damaged_twice_fails_the_round),
        PROMISE(a_chunk_that_is_damaged_once_is_sent_again),
        PROMISE(an_end_without_all_chunks_names_the_route),
        PROMISE(another_incarnation_is_refused),
        PROMISE(over_tcp_both_ends_have_the_same_segments),
        PROMISE(over_tcp_nobody_writes_without_asking),
        SILENCE(a_receiver_that_dies_is_a_lost_peer),
        SILENCE(a_receiver_that_stops_ends_every_call),
        SILENCE(a_silent_receiver_is_lost_long_before_the_deadline),
        PROMISE(a_fence_asks_the_sender_to_stop_and_keeps_the_memory),
        SILENCE(late_puts_do_not_land_after_a_fence),
        SILENCE(a_sender_that_dies_is_lost_and_fenced_by_other_memory),
        WITH(hasty, a_silent_sender_is_lost_but_not_soon),
        SILENCE(nobody_there_is_a_timeout_or_a_lost_peer),
        PROMISE(an_idle_engine_does_not_run),
        PROMISE(nothing_is_left_behind_after_a_kill),
        PROMISE(constructors_survive_failed_allocations),
    };
#undef PROMISE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
