/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks: headers, and what a receiver makes of every wrong one. The window lies between guards
 * that must stay as they are.
 */
#include "heft_test.h"

#include <sys/mman.h>

#include "kernel/kernel.h"
#include "transport/chunk.h"

enum { WINDOW = 1000, GUARD = 64 };

static const heft__token_t round_1 = { .epoch = 7, .seq = 3 };
static const heft__route_t routes[] = { { 0, 250 }, { 256, 0 }, { 256, 100 }, { 400, 600 } };

static heft__expect_t expect_of(int64_t chunk_bytes)
{
    return (heft__expect_t){ .routes = routes,
                             .n_routes = 4,
                             .n_senders = 1,
                             .chunk_bytes = chunk_bytes,
                             .crc = heft__crc32c };
}

typedef struct bench {
    heft__chunk_rx_t *rx;
    uint8_t memory[GUARD + WINDOW + GUARD];
    uint8_t source[WINDOW];
    uint8_t header[HEFT__CHUNK_HEADER_BYTES];
} bench_t;

static bench_t *set_up(int64_t chunk_bytes)
{
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = calloc(1, sizeof *b);
    assert_non_null(b);
    const heft__expect_t expect = expect_of(chunk_bytes);
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &b->rx, &err), HEFT_OK);
    heft__chunk_rx_arm(b->rx, round_1);
    EXPECT_STATUS(heft__chunk_rx_begin(b->rx, &err), HEFT_OK);
    memset(b->memory, 0xee, sizeof b->memory);
    for (int i = 0; i < WINDOW; i++) {
        b->source[i] = (uint8_t)(i * 7 + 1);
    }
    return b;
}

static void tear_down(bench_t *b)
{
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(b->memory[i], 0xee);
        assert_int_equal(b->memory[GUARD + WINDOW + i], 0xee);
    }
    heft__chunk_rx_destroy(b->rx);
    free(b);
    assert_int_equal(heft__alloc_live(), 0);
}

static heft__chunk_header_t header_of(const bench_t *b, uint64_t route, uint64_t index,
                                      uint64_t offset, uint64_t length)
{
    return (heft__chunk_header_t){ .token = round_1,
                                   .route = route,
                                   .index = index,
                                   .offset = offset,
                                   .length = length,
                                   .crc = heft__crc32c(0, b->source + offset, (int64_t)length) };
}

static heft_status_t take(bench_t *b, const heft__chunk_header_t *h, size_t n, heft_error_t *err)
{
    heft__chunk_encode(h, heft__crc32c, b->header);
    return heft__chunk_rx_take(b->rx, b->memory + GUARD, b->header, b->source + h->offset % WINDOW,
                               n, err);
}

static void headers_are_the_documented_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint8_t bytes[HEFT__CHUNK_HEADER_BYTES];
    const heft__chunk_header_t h = { .flags = HEFT__CHUNK_AGAIN,
                                     .token = { 0x0102030405060708, 9 },
                                     .route = 10,
                                     .index = 11,
                                     .offset = UINT64_C(5) << 32,
                                     .length = 13,
                                     .crc = 0xaabbccdd };
    heft__chunk_encode(&h, heft__crc32c, bytes);
    static const uint8_t begin[] = { 'H', 'F', 'C', 'K', 1, 0, 1, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9 };
    assert_memory_equal(bytes, begin, sizeof begin);
    assert_int_equal(bytes[44], 5);
    assert_int_equal(bytes[56], 0xdd);
    heft__chunk_header_t back;
    EXPECT_STATUS(heft__chunk_decode(bytes, sizeof bytes, heft__crc32c, &back, &err), HEFT_OK);
    uint8_t again[HEFT__CHUNK_HEADER_BYTES];
    heft__chunk_encode(&back, heft__crc32c, again);
    assert_memory_equal(again, bytes, sizeof bytes);
    assert_true(back.offset == h.offset && back.token.epoch == h.token.epoch);
    for (size_t i = 0; i < sizeof bytes * 8; i++) { /* any bit */
        bytes[i / 8] ^= (uint8_t)(1u << (i % 8));
        EXPECT_STATUS(heft__chunk_decode(bytes, sizeof bytes, heft__crc32c, &back, &err),
                      HEFT_ERR_PROTOCOL);
        bytes[i / 8] ^= (uint8_t)(1u << (i % 8));
    }
    EXPECT_STATUS(heft__chunk_decode(bytes, 63, heft__crc32c, &back, &err), HEFT_ERR_PROTOCOL);
}

/* In any order and any chunk size, everything arrives once. */
static void any_order_any_size(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t seed = heft_test_seed();
    for (int64_t size = 1; size <= 700; size += size < 8 ? 1 : 97) {
        bench_t *b = set_up(size);
        heft__chunk_header_t all[2 * WINDOW];
        size_t n = 0;
        for (uint64_t r = 0; r < 4; r++) {
            for (int64_t at = 0; at < routes[r].bytes; at += size) {
                all[n++] = header_of(b, r, (uint64_t)(at / size), (uint64_t)(routes[r].offset + at),
                                     (uint64_t)heft__min_i64(size, routes[r].bytes - at));
            }
        }
        for (size_t i = 0; i < n; i++) {
            const size_t j = (size_t)heft_test_random_in(&seed, (int64_t)i, (int64_t)n - 1);
            const heft__chunk_header_t h = all[j];
            all[j] = all[i];
            EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
            EXPECT_STATUS(take(b, &h, (size_t)h.length, &err), HEFT_OK);
        }
        EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_OK);
        for (int r = 0; r < 4; r++) {
            assert_memory_equal(b->memory + GUARD + routes[r].offset, b->source + routes[r].offset,
                                (size_t)routes[r].bytes);
        }
        assert_int_equal(b->memory[GUARD + 250], 0xee); /* between routes */
        tear_down(b);
    }
}

typedef struct wrong {
    uint64_t route, index, offset, length;
    size_t n; /* that come */
    const char *part;
} wrong_t;

static void expect_refused(const wrong_t *wrongs, size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (size_t i = 0; i < n; i++) {
        const wrong_t *w = &wrongs[i];
        bench_t *b = set_up(100);
        const heft__chunk_header_t h = { .token = round_1,
                                         .route = w->route,
                                         .index = w->index,
                                         .offset = w->offset,
                                         .length = w->length };
        EXPECT_STATUS(take(b, &h, w->n, &err), HEFT_ERR_PROTOCOL);
        EXPECT_MESSAGE(w->part);
        assert_true(heft__chunk_rx_has_failed(b->rx));
        for (int k = 0; k < WINDOW; k++) {
            assert_int_equal(b->memory[GUARD + k], 0xee);
        }
        /* nothing more is taken in this round, everything in the next */
        heft__chunk_header_t good = header_of(b, 0, 0, 0, 100);
        EXPECT_STATUS(take(b, &good, 100, &err), HEFT_ERR_PROTOCOL);
        EXPECT_MESSAGE("the round has failed");
        heft__chunk_rx_arm(b->rx, (heft__token_t){ 7, 4 });
        good.token.seq = 4;
        EXPECT_STATUS(take(b, &good, 100, &err), HEFT_OK);
        tear_down(b);
    }
}

static void chunk_out_of_bounds(void **state)
{
    (void)state;
    static const wrong_t wrongs[] = {
        { 0, 0, 1, 100, 100, "100 bytes (100 came) at 1, expected 100 at 0" },
        { 0, 0, 950, 100, 100, "at 950, expected 100 at 0" },
        { 0, 0, UINT64_MAX - 50, 100, 100, "expected 100 at 0" },
        { 0, 2, 200, 100, 100, "100 bytes (100 came) at 200, expected 50 at 200" },
        { 0, 0, 0, 99, 99, "99 bytes (99 came) at 0, expected 100" },
        { 0, 0, 0, 100, 99, "100 bytes (99 came) at 0, expected 100" },
        { 0, 0, 0, 100, 101, "100 bytes (101 came) at 0, expected 100" },
        { 0, 0, 0, UINT64_MAX, 100, "expected 100 at 0" },
        { 3, 0, 256, 100, 100, "at 256, expected 100 at 400" },
    };
    expect_refused(wrongs, sizeof wrongs / sizeof wrongs[0]);
}

/* More chunks than a route has, and more routes than there are. */
static void chunk_extra(void **state)
{
    (void)state;
    static const wrong_t wrongs[] = {
        { 4, 0, 0, 100, 100, "chunk of route 4, there are 4" },
        { UINT64_MAX, 0, 0, 100, 100, "there are 4" },
        { 0, 3, 300, 100, 100, "chunk 3 of route 0, which has 3" },
        { 0, UINT64_MAX, 0, 100, 100, "which has 3" },
        { 1, 0, 256, 0, 0, "chunk 0 of route 1, which has 0" },
    };
    expect_refused(wrongs, sizeof wrongs / sizeof wrongs[0]);
}

static void chunk_duplicate(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = set_up(100);
    const heft__chunk_header_t h = header_of(b, 3, 5, 900, 100);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    b->memory[GUARD + 900] = 0;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("chunk 5 of route 3 came twice");
    assert_int_equal(b->memory[GUARD + 900], 0);
    tear_down(b);
}

static void a_bad_crc_is_asked_for_once_more(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = set_up(100);
    heft__chunk_header_t h = header_of(b, 0, 1, 100, 100);
    h.crc ^= 1;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_DIGEST);
    EXPECT_MESSAGE("chunk 1 of route 0: CRC ");
    assert_int_equal(b->memory[GUARD + 100], 0xee); /* nothing was copied */
    assert_false(heft__chunk_rx_has_failed(b->rx));
    h.crc ^= 1;
    h.flags = HEFT__CHUNK_AGAIN;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    /* each chunk has its own second chance, and no third */
    h = header_of(b, 0, 0, 0, 100);
    h.crc ^= 1;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_DIGEST);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("for the second time");
    assert_true(heft__chunk_rx_has_failed(b->rx));
    tear_down(b);
}

/* Where bytes are summed while they are copied, damaged ones are in place until they come again;
 * they have not arrived. */
static void a_copy_that_sums_is_judged_like_one_that_does_not(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = set_up(100);
    heft__expect_t expect = expect_of(250);
    expect.crc_copy = heft__crc32c_copy;
    heft__chunk_rx_destroy(b->rx);
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &b->rx, &err), HEFT_OK);
    heft__chunk_rx_arm(b->rx, round_1);
    heft__chunk_header_t h = header_of(b, 0, 0, 0, 100);
    EXPECT_STATUS(take(b, &h, 100, &err),
                  HEFT_ERR_PROTOCOL); /* nothing is copied that is too short */
    assert_int_equal(b->memory[GUARD], 0xee);
    heft__chunk_rx_arm(b->rx, round_1);
    h = header_of(b, 0, 0, 0, 250);
    h.crc ^= 1;
    EXPECT_STATUS(take(b, &h, 250, &err), HEFT_ERR_DIGEST);
    EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("route 0");
    memset(b->memory + GUARD, 0, 250);
    h.crc ^= 1;
    EXPECT_STATUS(take(b, &h, 250, &err), HEFT_OK);
    assert_memory_equal(b->memory + GUARD, b->source, 250);
    tear_down(b);
}

static void another_round_does_not_touch_this_one(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = set_up(100);
    heft__chunk_header_t h = header_of(b, 0, 0, 0, 100);
    h.token.seq = 2;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_STALE);
    EXPECT_MESSAGE("chunk of round 7.2 in round 7.3");
    assert_false(heft__chunk_rx_has_failed(b->rx));
    h.token.seq = 3;
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    tear_down(b);
}

static void one_more_sender_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    bench_t *b = set_up(100);
    EXPECT_STATUS(heft__chunk_rx_begin(b->rx, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("sender 2 of a round with 1");
    assert_true(heft__chunk_rx_has_failed(b->rx));
    tear_down(b);
}

static const char *name_of(const void *arg, uint32_t route)
{
    const char *const *names = arg;
    return names[route];
}

/* What is wrong with a chunk is said of the tensor and the bytes in it. */
static void names_say_which_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char *const names[] = { "layers.0.w", NULL, "layers.1.w", "head" };
    char kept[] = "head"; /* a copy is made of it */
    const char *const given[] = { names[0], NULL, names[2], kept };
    heft__expect_t expect = expect_of(100);
    expect.name_of = name_of;
    expect.name_arg = given;
    bench_t *b = set_up(100);
    heft__chunk_rx_destroy(b->rx);
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &b->rx, &err), HEFT_OK);
    memset(kept, 'x', 4);
    heft__chunk_rx_arm(b->rx, round_1);
    EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("tensor \"layers.0.w\" bytes [0..250): route 0: 3 of 3 chunks have not come");
    heft__chunk_header_t h = header_of(b, 0, 0, 0, 100);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("tensor \"layers.0.w\" bytes [100..250): route 0: 2 of 3 chunks");
    h = header_of(b, 0, 2, 200, 50);
    h.crc ^= 1;
    EXPECT_STATUS(take(b, &h, 50, &err), HEFT_ERR_DIGEST);
    EXPECT_MESSAGE("tensor \"layers.0.w\" bytes [200..250): chunk 2 of route 0: CRC ");
    h = header_of(b, 0, 2, 200, 50);
    EXPECT_STATUS(take(b, &h, 50, &err), HEFT_OK);
    EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("tensor \"layers.0.w\" bytes [100..200): route 0: 1 of 3 chunks");
    h = header_of(b, 0, 1, 100, 100);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    h = header_of(b, 2, 0, 256, 100);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    h = header_of(b, 3, 5, 900, 100);
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_OK);
    EXPECT_STATUS(heft__chunk_rx_check_whole(b->rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("tensor \"head\" bytes [0..500): route 3: 5 of 6 chunks");
    EXPECT_STATUS(take(b, &h, 100, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("tensor \"head\" bytes [500..600): chunk 5 of route 3 came twice");
    heft__chunk_rx_arm(b->rx, round_1);
    h = header_of(b, 1, 0, 256, 0); /* of what has no name the number is said */
    EXPECT_STATUS(take(b, &h, 0, &err), HEFT_ERR_PROTOCOL);
    assert_memory_equal(err.message, "chunk 0 of route 1", 18);
    const int64_t live = heft__alloc_live();
    heft__chunk_rx_t *rx = NULL;
    heft_status_t status = HEFT_ERR_NOMEM;
    for (long k = 0; status != HEFT_OK; k++) {
        heft__alloc_fail_at(k);
        status = heft__chunk_rx_create(&expect, WINDOW, &rx, &err);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || (status == HEFT_ERR_NOMEM && k < 7));
        assert_true(status == HEFT_OK || heft__alloc_live() == live);
    }
    heft__chunk_rx_destroy(rx);
    tear_down(b);
}

static void wrong_routes_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__chunk_rx_t *rx = NULL;
    static const heft__route_t bad[][2] = {
        { { 0, 10 }, { 9, 10 } },  { { 0, 10 }, { 10, 991 } },
        { { -1, 10 }, { 20, 1 } }, { { 0, -1 }, { 0, 1 } },
        { { 10, 10 }, { 0, 5 } },  { { 0, 1 }, { INT64_MAX, INT64_MAX } },
    };
    heft__expect_t expect = expect_of(100);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect.routes = bad[i];
        expect.n_routes = 2;
        EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &rx, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("in a window of 1000");
    }
    expect = expect_of(0);
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &rx, &err), HEFT_ERR_ARGUMENT);
    assert_null(rx);
    const int64_t live = heft__alloc_live();
    expect = expect_of(100);
    for (long k = 0;; k++) {
        heft__alloc_fail_at(k);
        const heft_status_t status = heft__chunk_rx_create(&expect, WINDOW, &rx, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft__chunk_rx_destroy(rx);
            assert_int_equal(k, 6);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(rx);
        assert_int_equal(heft__alloc_live(), live);
    }
    heft__chunk_rx_destroy(NULL);
}

/* ---- packed routes ---- */

/* Two senders write an entry of 300 bytes together, ten bytes by turns. */
enum { PACKED_FIRST = 2, STRIPE = 10 };

static heft_status_t unpack_stripes(void *arg, uint32_t route, uint8_t *base, int64_t at,
                                    uint8_t *packed, int64_t n, heft_error_t *err)
{
    const heft__route_t *all = arg;
    uint8_t *entry = base + all[route].offset;
    (void)err;
    for (int64_t i = at; i < at + n; i++) {
        const int64_t stripe = 2 * (i / STRIPE) + (route - PACKED_FIRST);
        entry[stripe * STRIPE + i % STRIPE] = packed[i - at];
    }
    return HEFT_OK;
}

/* A chunk of a route that the header calls by this number. */
static heft_status_t take_numbered(heft__chunk_rx_t *rx, uint8_t *window,
                                   const heft__route_t *route, uint64_t number, uint64_t index,
                                   uint8_t fill, heft_error_t *err)
{
    uint8_t header[HEFT__CHUNK_HEADER_BYTES];
    uint8_t data[100];
    const int64_t left = route->bytes - (int64_t)index * 100;
    heft__chunk_header_t h = { .token = round_1,
                               .route = number,
                               .index = index,
                               .offset = (uint64_t)route->offset + index * 100,
                               .length = (uint64_t)(left < 100 ? left : 100) };
    memset(data, fill, sizeof data);
    h.crc = heft__crc32c(0, data, (int64_t)h.length);
    heft__chunk_encode(&h, heft__crc32c, header);
    return heft__chunk_rx_take(rx, window, header, data, h.length, err);
}

static heft_status_t take_packed(heft__chunk_rx_t *rx, uint8_t *window, const heft__route_t *all,
                                 uint32_t route, uint64_t index, uint8_t fill, heft_error_t *err)
{
    return take_numbered(rx, window, &all[route], route, index, fill, err);
}

static void seven_chunks_from_three_senders(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__chunk_rx_t *rx = NULL;
    uint8_t window[WINDOW] = { 0 };
    heft__route_t all[] = { { 0, 250 }, { 256, 0 }, { 256, 150 }, { 256, 150 } };
    heft__expect_t expect = { .routes = all,
                              .n_routes = 4,
                              .n_senders = 3,
                              .chunk_bytes = 100,
                              .crc = heft__crc32c,
                              .n_packed = 2 };
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &rx, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("2 packed routes of 4"); /* and nobody to unpack them */
    expect.unpack = unpack_stripes;
    expect.pack_arg = all;
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &rx, &err), HEFT_OK);
    heft__chunk_rx_arm(rx, round_1);
    static const struct {
        uint32_t route;
        uint64_t index;
    } chunks[] = { { 3, 1 }, { 0, 2 }, { 2, 0 }, { 0, 0 }, { 3, 0 }, { 2, 1 }, { 0, 1 } };
    for (int i = 0; i < 7; i++) {
        if (i < 3) {
            assert_false(heft__chunk_rx_has_all_senders(rx));
            EXPECT_STATUS(heft__chunk_rx_begin(rx, &err), HEFT_OK);
        }
        EXPECT_STATUS(heft__chunk_rx_check_whole(rx, &err), HEFT_ERR_MISMATCH);
        EXPECT_STATUS(take_packed(rx, window, all, chunks[i].route, chunks[i].index,
                                  (uint8_t)(10 * chunks[i].route + chunks[i].index + 1), &err),
                      HEFT_OK);
    }
    assert_true(heft__chunk_rx_has_all_senders(rx));
    EXPECT_STATUS(heft__chunk_rx_check_whole(rx, &err), HEFT_OK);
    for (int i = 0; i < 300; i++) {
        const int packed = i / STRIPE / 2 * STRIPE + i % STRIPE;
        assert_int_equal(window[256 + i], 10 * (2 + i / STRIPE % 2) + packed / 100 + 1);
    }
    assert_int_equal(window[249], 3);
    assert_int_equal(window[250] + window[255] + window[556], 0);
    EXPECT_STATUS(take_packed(rx, window, all, 3, 1, 1, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("chunk 1 of route 3 came twice");
    EXPECT_STATUS(heft__chunk_rx_begin(rx, &err), HEFT_ERR_PROTOCOL); /* a fourth sender */
    heft__chunk_rx_destroy(rx);
}

/* Packed routes may have numbers of their own; what they are called otherwise is none of them. */
static void packed_routes_go_by_their_numbers(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__chunk_rx_t *rx = NULL;
    uint8_t window[WINDOW] = { 0 };
    heft__route_t all[] = { { 0, 250 }, { 256, 0 }, { 256, 150 }, { 256, 150 } };
    uint64_t numbers[] = { 7, UINT64_C(5000000000) };
    const heft__expect_t expect = { .routes = all,
                                    .n_routes = 4,
                                    .n_senders = 2,
                                    .chunk_bytes = 100,
                                    .crc = heft__crc32c,
                                    .n_packed = 2,
                                    .numbers = numbers,
                                    .unpack = unpack_stripes,
                                    .pack_arg = all };
    EXPECT_STATUS(heft__chunk_rx_create(&expect, WINDOW, &rx, &err), HEFT_OK);
    static const uint64_t none[] = { 2, 3, 6, 8, UINT64_C(4999999999), UINT64_C(5000000001) };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        heft__chunk_rx_arm(rx, round_1);
        EXPECT_STATUS(take_numbered(rx, window, &all[2], none[i], 0, 1, &err), HEFT_ERR_PROTOCOL);
        EXPECT_MESSAGE("there are 4");
    }
    numbers[0] = 0; /* they are the receiver's own by now */
    heft__chunk_rx_arm(rx, round_1);
    for (uint64_t index = 0; index < 2; index++) {
        EXPECT_STATUS(take_numbered(rx, window, &all[2], 7, index, 1, &err), HEFT_OK);
        EXPECT_STATUS(take_numbered(rx, window, &all[3], UINT64_C(5000000000), index, 2, &err),
                      HEFT_OK);
    }
    for (int i = 0; i < 300; i++) {
        assert_int_equal(window[256 + i], 1 + i / STRIPE % 2);
    }
    heft__chunk_rx_destroy(rx);
}

/* A window of 5 GiB that is never touched but at its end, past every 32-bit border. */
static void beyond_4gib_offsets(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t n = INT64_C(5) << 30;
    uint8_t *window = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) {
        print_message("skipped: no 5 GiB of addresses\n");
        skip();
    }
    const heft__route_t all[] = { { 0, n - 300 }, { n - 300, 300 } };
    const heft__expect_t expect = {
        .routes = all, .n_routes = 2, .n_senders = 1, .chunk_bytes = 200, .crc = heft__crc32c
    };
    heft__chunk_rx_t *rx = NULL;
    EXPECT_STATUS(heft__chunk_rx_create(&expect, n, &rx, &err), HEFT_OK);
    heft__chunk_rx_arm(rx, round_1);
    uint8_t data[200];
    memset(data, 0x5a, sizeof data);
    const uint64_t index = (uint64_t)(n - 300) / 200 - 1; /* near the end of route 0 */
    heft__chunk_header_t h = { .token = round_1,
                               .route = 0,
                               .index = index,
                               .offset = index * 200,
                               .length = 200,
                               .crc = heft__crc32c(0, data, 200) };
    uint8_t header[HEFT__CHUNK_HEADER_BYTES];
    heft__chunk_encode(&h, heft__crc32c, header);
    EXPECT_STATUS(heft__chunk_rx_take(rx, window, header, data, 200, &err), HEFT_OK);
    h = (heft__chunk_header_t){ .token = round_1,
                                .route = 1,
                                .index = 1,
                                .offset = (uint64_t)n - 100,
                                .length = 100,
                                .crc = heft__crc32c(0, data, 100) };
    heft__chunk_encode(&h, heft__crc32c, header);
    EXPECT_STATUS(heft__chunk_rx_take(rx, window, header, data, 100, &err), HEFT_OK);
    assert_memory_equal(window + index * 200, data, 200);
    assert_memory_equal(window + n - 100, data, 100);
    assert_int_equal(window[(index * 200) & UINT32_MAX], 0); /* nothing wrapped */
    assert_int_equal(window[(uint64_t)(n - 100) & UINT32_MAX], 0);
    EXPECT_STATUS(heft__chunk_rx_check_whole(rx, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("26843544 of 26843545 chunks have not come");
    heft__chunk_rx_destroy(rx);
    (void)munmap(window, (size_t)n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_the_documented_bytes),
        cmocka_unit_test(any_order_any_size),
        cmocka_unit_test(chunk_out_of_bounds),
        cmocka_unit_test(chunk_extra),
        cmocka_unit_test(chunk_duplicate),
        cmocka_unit_test(a_bad_crc_is_asked_for_once_more),
        cmocka_unit_test(a_copy_that_sums_is_judged_like_one_that_does_not),
        cmocka_unit_test(another_round_does_not_touch_this_one),
        cmocka_unit_test(one_more_sender_is_refused),
        cmocka_unit_test(names_say_which_bytes),
        cmocka_unit_test(wrong_routes_are_refused),
        cmocka_unit_test(seven_chunks_from_three_senders),
        cmocka_unit_test(packed_routes_go_by_their_numbers),
        cmocka_unit_test(beyond_4gib_offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
