/* SPDX-License-Identifier: Apache-2.0 */
#include "heft_test.h"
#include "transport/shm_frame.h"
#include "transport/shm_remote.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

static heft__shm_frame_t sample(void)
{
    heft__shm_frame_t frame = { .kind = HEFT__SHM_BEGIN, .a = 3, .b = 0x0102030405060708u };
    memset(frame.from, 0xaa, sizeof frame.from);
    memset(frame.to, 0xbb, sizeof frame.to);
    return frame;
}

/* The table of docs/formats/shm.md, byte by byte. */
static void frame_bytes_are_as_documented(void **state)
{
    (void)state;
    heft__shm_frame_t frame = sample();
    uint8_t bytes[HEFT__SHM_FRAME_BYTES];
    heft__shm_frame_encode(&frame, bytes);
    static const uint8_t head[16] = { 'H', 'E', 'F', 'T', 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    static const uint8_t tail[16] = { 3, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1 };
    assert_memory_equal(bytes, head, 16);
    assert_memory_equal(bytes + 16, frame.from, 16);
    assert_memory_equal(bytes + 32, frame.to, 16);
    assert_memory_equal(bytes + 48, tail, 16);
}

static void frames_survive_the_round_trip(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (int kind = HEFT__SHM_HELLO; kind <= HEFT__SHM_END; kind++) {
        heft__shm_frame_t frame = sample();
        heft__shm_frame_t back;
        uint8_t bytes[HEFT__SHM_FRAME_BYTES];
        frame.kind = (heft__shm_kind_t)kind;
        frame.status = kind == HEFT__SHM_REFUSED ? HEFT_ERR_STALE : HEFT_OK;
        heft__shm_frame_encode(&frame, bytes);
        EXPECT_STATUS(heft__shm_frame_decode(bytes, sizeof bytes, &back, &err), HEFT_OK);
        assert_memory_equal(&frame, &back, sizeof frame);
    }
}

static void malformed_frames_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__shm_frame_t frame = sample();
    heft__shm_frame_t back;
    uint8_t good[HEFT__SHM_FRAME_BYTES];
    heft__shm_frame_encode(&frame, good);
    static const struct {
        size_t at;
        uint8_t value;
        heft_status_t status;
        const char *text;
    } cases[] = {
        { 0, 'X', HEFT_ERR_PROTOCOL, "magic" },
        { 4, 2, HEFT_ERR_UNSUPPORTED, "version 2 from the peer, 1 here" },
        { 6, 0, HEFT_ERR_PROTOCOL, "kind 0" },
        { 6, 8, HEFT_ERR_PROTOCOL, "kind 8" },
        { 7, 1, HEFT_ERR_PROTOCOL, "kind 260" },
        { 8, 1, HEFT_ERR_PROTOCOL, "status 1" },  /* BEGIN has none */
        { 6, 3, HEFT_ERR_PROTOCOL, "status 0" },  /* REFUSED needs one */
        { 12, 1, HEFT_ERR_PROTOCOL, "shm frame" } /* reserved */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[HEFT__SHM_FRAME_BYTES];
        memcpy(bytes, good, sizeof bytes);
        bytes[cases[i].at] = cases[i].value;
        EXPECT_STATUS(heft__shm_frame_decode(bytes, sizeof bytes, &back, &err), cases[i].status);
        EXPECT_MESSAGE(cases[i].text);
    }
    EXPECT_STATUS(heft__shm_frame_decode(good, 63, &back, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("63 bytes, expected 64");
    EXPECT_STATUS(heft__shm_frame_decode(good, 0, &back, &err), HEFT_ERR_PROTOCOL);
}

static void packets_that_are_no_frame_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__shm_frame_t frame = sample();
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, NULL, &err), HEFT_IN_PROGRESS);
    uint8_t bytes[128] = { 0 };
    heft__shm_frame_encode(&frame, bytes);
    assert_int_equal(send(pair[1], bytes, 65, 0), 65);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, NULL, &err), HEFT_ERR_PROTOCOL);
    assert_int_equal(send(pair[1], bytes, 10, 0), 10);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, NULL, &err), HEFT_ERR_PROTOCOL);
    (void)close(pair[1]);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, NULL, &err), HEFT_ERR_PEER);
    (void)close(pair[0]);
}

static int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* A descriptor where none is expected is closed, not kept. */
static void stray_descriptors_are_refused_and_closed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__shm_frame_t frame = sample();
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    int before = count_descriptors();
    EXPECT_STATUS(heft__shm_send(pair[1], &frame, pair[1], &err), HEFT_OK);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, NULL, &err), HEFT_ERR_PROTOCOL);
    assert_int_equal(count_descriptors(), before);
    int passed = -1;
    EXPECT_STATUS(heft__shm_send(pair[1], &frame, pair[1], &err), HEFT_OK);
    EXPECT_STATUS(heft__shm_recv(pair[0], &frame, &passed, &err), HEFT_OK);
    assert_true(passed >= 0);
    assert_int_not_equal(fcntl(passed, F_GETFD) & FD_CLOEXEC, 0);
    (void)close(passed);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

static void endpoints_are_decoded_strictly(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__shm_endpoint_t endpoint;
#define NAME "\"socket\":\"heft-00112233445566778899aabbccddeeff\""
#define LIFE "\"incarnation\":\"ffeeddccbbaa99887766554433221100\""
    static const char good[] = "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":256," LIFE "}";
    EXPECT_STATUS(heft__shm_endpoint_decode(good, strlen(good), &endpoint, &err), HEFT_OK);
    assert_string_equal(endpoint.socket, "heft-00112233445566778899aabbccddeeff");
    assert_int_equal(endpoint.pid, 7);
    assert_int_equal(endpoint.bytes, 256);
    assert_int_equal(endpoint.incarnation[0], 0xff);
    static const struct {
        const char *json;
        const char *text;
    } bad[] = {
        { "", "shm endpoint" },
        { "[]", "shm endpoint" },
        { "{\"transport\":\"loop\"," NAME ",\"pid\":7,\"bytes\":256," LIFE "}", "not \"shm\"" },
        { "{\"transport\":\"shm\",\"socket\":\"/tmp/x\",\"pid\":7,\"bytes\":256," LIFE "}",
          "socket" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":0,\"bytes\":256," LIFE "}", "pid" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":-1," LIFE "}", "bytes" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":\"256\"," LIFE "}", "integer" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":1,\"incarnation\":\"00\"}",
          "incarnation" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":1," LIFE ",\"extra\":1}", "extra" },
        { "{\"transport\":\"shm\"," NAME ",\"pid\":7,\"bytes\":1}", "incarnation" },
    };
#undef NAME
#undef LIFE
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EXPECT_STATUS(heft__shm_endpoint_decode(bad[i].json, strlen(bad[i].json), &endpoint, &err),
                      HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(bad[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frame_bytes_are_as_documented),
        cmocka_unit_test(frames_survive_the_round_trip),
        cmocka_unit_test(malformed_frames_are_refused),
        cmocka_unit_test(packets_that_are_no_frame_are_refused),
        cmocka_unit_test(stray_descriptors_are_refused_and_closed),
        cmocka_unit_test(endpoints_are_decoded_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
