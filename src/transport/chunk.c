/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks. A receiver keeps two bits for each expected chunk: arrived, and arrived damaged once. A
 * header says everything twice (index and offset, length and size of the route) and must agree with
 * itself and with what is expected before a byte is looked at.
 */
#include "transport/chunk.h"

#include <stdio.h>
#include <string.h>

#define MAGIC 0x4b434648u /* "HFCK" */
#define VERSION 1u

/* ---- header ---- */

static void put_le16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void heft__chunk_encode(const heft__chunk_header_t *header, heft__crc32c_t crc,
                        uint8_t out[HEFT__CHUNK_HEADER_BYTES])
{
    heft__put_le32(out, MAGIC);
    put_le16(out + 4, VERSION);
    put_le16(out + 6, header->flags);
    heft__put_le64(out + 8, header->token.epoch);
    heft__put_le64(out + 16, header->token.seq);
    heft__put_le64(out + 24, header->route);
    heft__put_le64(out + 32, header->index);
    heft__put_le64(out + 40, header->offset);
    heft__put_le64(out + 48, header->length);
    heft__put_le32(out + 56, header->crc);
    heft__put_le32(out + 60, crc(0, out, 60));
}

heft_status_t heft__chunk_decode(const uint8_t *data, size_t n, heft__crc32c_t crc,
                                 heft__chunk_header_t *out, heft_error_t *err)
{
    if (n < HEFT__CHUNK_HEADER_BYTES) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "chunk header of %zu bytes, expected %d", n,
                               HEFT__CHUNK_HEADER_BYTES);
    }
    if (heft__get_le32(data) != MAGIC || heft__get_le32(data + 60) != crc(0, data, 60)) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "chunk header is damaged");
    }
    const uint32_t version = data[4] | (uint32_t)data[5] << 8;
    const uint32_t flags = data[6] | (uint32_t)data[7] << 8;
    if (version != VERSION || (flags & ~(uint32_t)HEFT__CHUNK_AGAIN) != 0) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "chunk header of version %u, flags %x",
                               version, flags);
    }
    *out = (heft__chunk_header_t){
        .flags = flags,
        .token = { .epoch = heft__get_le64(data + 8), .seq = heft__get_le64(data + 16) },
        .route = heft__get_le64(data + 24),
        .index = heft__get_le64(data + 32),
        .offset = heft__get_le64(data + 40),
        .length = heft__get_le64(data + 48),
        .crc = heft__get_le32(data + 56),
    };
    return HEFT_OK;
}

/* ---- what is expected ---- */

uint64_t heft__route_count_chunks(const heft__route_t *route, int64_t chunk_bytes)
{
    return (uint64_t)(route->bytes / chunk_bytes + (route->bytes % chunk_bytes != 0));
}

/* Where chunk `index` of a route is; it is one of them. Those of packed routes are counted from the
 * same place. */
static void place(const heft__route_t *route, int64_t chunk_bytes, uint64_t index,
                  uint64_t *offset_out, uint64_t *length_out)
{
    const int64_t from = (int64_t)index * chunk_bytes;
    *offset_out = (uint64_t)(route->offset + from);
    *length_out = (uint64_t)heft__min_i64(chunk_bytes, route->bytes - from);
}

/* ---- receiver ---- */

struct heft__chunk_rx {
    heft__expect_t expect; /* its routes are a copy */
    heft__token_t token;
    const char **names; /* by route, in one block with their text; NULL: none are known */
    uint64_t *first;    /* by route: bit of its first chunk */
    uint64_t *n_left;
    uint8_t *arrived; /* bits */
    uint8_t *damaged;
    uint64_t n_bits;
    uint32_t n_begun;
    bool has_failed;
};

static uint32_t first_packed(const heft__expect_t *expect)
{
    return expect->n_routes - expect->n_packed;
}

/* What headers call a route; and the route of a number, n_routes if there is none. */
static uint64_t number_of(const heft__expect_t *expect, uint64_t route)
{
    return expect->numbers != NULL && route >= first_packed(expect)
               ? expect->numbers[route - first_packed(expect)]
               : route;
}

static uint64_t find_number(const heft__expect_t *expect, uint64_t number)
{
    uint32_t low = first_packed(expect);
    uint32_t high = expect->n_routes;
    if (expect->numbers == NULL || number < low) {
        return number;
    }
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (number_of(expect, middle) < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < expect->n_routes && number_of(expect, low) == number ? low : expect->n_routes;
}

static bool is_packed(const heft__expect_t *expect, uint64_t route)
{
    return route >= expect->n_routes - expect->n_packed;
}

/* Routes go upwards through the window; packed ones share it. */
static heft_status_t check_routes(const heft__expect_t *expect, int64_t window_bytes,
                                  uint64_t *n_chunks_out, heft_error_t *err)
{
    int64_t end = 0;
    uint64_t n = 0;
    if (expect->chunk_bytes <= 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "chunks of %lld bytes",
                               (long long)expect->chunk_bytes);
    }
    if (expect->n_packed > expect->n_routes || (expect->n_packed > 0 && expect->unpack == NULL)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%u packed routes of %u", expect->n_packed,
                               expect->n_routes);
    }
    for (uint32_t i = 0; i < expect->n_routes; i++) {
        const heft__route_t *route = &expect->routes[i];
        int64_t route_end;
        end = is_packed(expect, i) ? 0 : end;
        if (route->bytes < 0 || route->offset < end ||
            !heft__add(route->offset, route->bytes, &route_end) || route_end > window_bytes) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "route %u: %lld bytes at %lld, after %lld, in a window of %lld",
                                   i, (long long)route->bytes, (long long)route->offset,
                                   (long long)end, (long long)window_bytes);
        }
        end = route_end;
        n += heft__route_count_chunks(route, expect->chunk_bytes);
    }
    *n_chunks_out = n;
    return HEFT_OK;
}

static heft_status_t alloc_rx(heft__chunk_rx_t *rx, const heft__expect_t *expect, heft_error_t *err)
{
    const size_t n = expect->n_routes > 0 ? expect->n_routes : 1;
    heft__route_t *routes = heft__calloc(n, sizeof *routes);
    uint64_t *numbers = expect->numbers != NULL ? heft__calloc(n, sizeof *numbers) : NULL;
    rx->expect = *expect;
    rx->expect.routes = routes;
    rx->expect.numbers = numbers;
    rx->first = heft__calloc(n, sizeof *rx->first);
    rx->n_left = heft__calloc(n, sizeof *rx->n_left);
    rx->arrived = heft__calloc(rx->n_bits / 8 + 1, 1);
    rx->damaged = heft__calloc(rx->n_bits / 8 + 1, 1);
    if (routes == NULL || rx->first == NULL || rx->n_left == NULL || rx->arrived == NULL ||
        rx->damaged == NULL || (expect->numbers != NULL && numbers == NULL)) {
        return heft__error_nomem(err, n * sizeof *routes + rx->n_bits / 4);
    }
    if (expect->n_routes > 0) {
        memcpy(routes, expect->routes, expect->n_routes * sizeof *routes);
    }
    if (numbers != NULL) {
        memcpy(numbers, expect->numbers, expect->n_packed * sizeof *numbers);
    }
    uint64_t bit = 0;
    for (uint32_t i = 0; i < expect->n_routes; i++) {
        rx->first[i] = bit;
        bit += heft__route_count_chunks(&routes[i], expect->chunk_bytes);
    }
    return HEFT_OK;
}

/* Afterwards nothing of the caller's is asked. */
static heft_status_t copy_names(heft__chunk_rx_t *rx, heft_error_t *err)
{
    const heft__expect_t *expect = &rx->expect;
    size_t bytes = expect->n_routes * sizeof *rx->names;
    if (expect->name_of == NULL || expect->n_routes == 0) {
        return HEFT_OK;
    }
    for (uint32_t i = 0; i < expect->n_routes; i++) {
        const char *name = expect->name_of(expect->name_arg, i);
        bytes += name != NULL ? strlen(name) + 1 : 0;
    }
    rx->names = heft__malloc(bytes);
    if (rx->names == NULL) {
        return heft__error_nomem(err, bytes);
    }
    char *at = (char *)(rx->names + expect->n_routes);
    for (uint32_t i = 0; i < expect->n_routes; i++) {
        const char *name = expect->name_of(expect->name_arg, i);
        rx->names[i] = name != NULL ? at : NULL;
        if (name != NULL) {
            const size_t n = strlen(name) + 1;
            memcpy(at, name, n);
            at += n;
        }
    }
    rx->expect.name_of = NULL;
    return HEFT_OK;
}

heft_status_t heft__chunk_rx_create(const heft__expect_t *expect, int64_t window_bytes,
                                    heft__chunk_rx_t **rx_out, heft_error_t *err)
{
    uint64_t n_chunks = 0;
    heft_status_t status = check_routes(expect, window_bytes, &n_chunks, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__chunk_rx_t *rx = heft__calloc(1, sizeof *rx);
    if (rx == NULL) {
        return heft__error_nomem(err, sizeof *rx);
    }
    rx->n_bits = n_chunks;
    status = alloc_rx(rx, expect, err);
    if (status == HEFT_OK) {
        status = copy_names(rx, err);
    }
    if (status != HEFT_OK) {
        heft__chunk_rx_destroy(rx);
        return status;
    }
    heft__chunk_rx_arm(rx, (heft__token_t){ .epoch = 0 });
    *rx_out = rx;
    return HEFT_OK;
}

void heft__chunk_rx_destroy(heft__chunk_rx_t *rx)
{
    if (rx == NULL) {
        return;
    }
    heft__free((void *)(uintptr_t)rx->expect.routes);
    heft__free((void *)(uintptr_t)rx->expect.numbers);
    heft__free((void *)rx->names);
    heft__free(rx->first);
    heft__free(rx->n_left);
    heft__free(rx->arrived);
    heft__free(rx->damaged);
    heft__free(rx);
}

void heft__chunk_rx_arm(heft__chunk_rx_t *rx, heft__token_t token)
{
    rx->token = token;
    rx->n_begun = 0;
    rx->has_failed = false;
    memset(rx->arrived, 0, rx->n_bits / 8 + 1);
    memset(rx->damaged, 0, rx->n_bits / 8 + 1);
    for (uint32_t i = 0; i < rx->expect.n_routes; i++) {
        rx->n_left[i] = heft__route_count_chunks(&rx->expect.routes[i], rx->expect.chunk_bytes);
    }
}

heft_status_t heft__chunk_rx_begin(heft__chunk_rx_t *rx, heft_error_t *err)
{
    if (++rx->n_begun > rx->expect.n_senders) {
        rx->has_failed = true;
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "sender %u of a round with %u", rx->n_begun,
                               rx->expect.n_senders);
    }
    return HEFT_OK;
}

static bool get_bit(const uint8_t *bits, uint64_t i)
{
    return (bits[i / 8] >> (i % 8) & 1) != 0;
}

static void set_bit(uint8_t *bits, uint64_t i)
{
    bits[i / 8] |= (uint8_t)(1u << (i % 8));
}

/* ---- what is said of chunks ---- */

enum { PLACE_TEXT_BYTES = 176 };

/* Where chunks [begin, end) of a route belong, before what is wrong with them; "" without a name.
 */
static const char *say_place(const heft__chunk_rx_t *rx, uint64_t route, uint64_t begin,
                             uint64_t end, char text[PLACE_TEXT_BYTES])
{
    const heft__route_t *r = &rx->expect.routes[route];
    const int64_t chunk_bytes = rx->expect.chunk_bytes;
    text[0] = '\0';
    if (rx->names != NULL && rx->names[route] != NULL) {
        const int64_t from = (int64_t)begin * chunk_bytes;
        const bool is_last = end >= heft__route_count_chunks(r, chunk_bytes);
        const int64_t to = is_last ? r->bytes : (int64_t)end * chunk_bytes;
        (void)snprintf(
            text, PLACE_TEXT_BYTES, "tensor \"%.96s\" %sbytes [%lld..%lld): ", rx->names[route],
            is_packed(&rx->expect, route) ? "packed " : "", (long long)from, (long long)to);
    }
    return text;
}

/* The first chunks in a row that have not come; there are some. */
static void find_gap(const heft__chunk_rx_t *rx, uint32_t route, uint64_t *begin_out,
                     uint64_t *end_out)
{
    const uint64_t n = heft__route_count_chunks(&rx->expect.routes[route], rx->expect.chunk_bytes);
    uint64_t begin = 0;
    while (begin < n && get_bit(rx->arrived, rx->first[route] + begin)) {
        begin++;
    }
    uint64_t end = begin;
    while (end < n && !get_bit(rx->arrived, rx->first[route] + end)) {
        end++;
    }
    *begin_out = begin;
    *end_out = end;
}

/* The header agrees with what is expected; *bit_out is its chunk, and its route is one of ours. */
static heft_status_t check_header(const heft__chunk_rx_t *rx, heft__chunk_header_t *h, size_t n,
                                  uint64_t *bit_out, heft_error_t *err)
{
    if (h->token.epoch != rx->token.epoch || h->token.seq != rx->token.seq) {
        return heft__error_set(err, HEFT_ERR_STALE, "chunk of round %llu.%llu in round %llu.%llu",
                               (unsigned long long)h->token.epoch, (unsigned long long)h->token.seq,
                               (unsigned long long)rx->token.epoch,
                               (unsigned long long)rx->token.seq);
    }
    const uint64_t number = h->route;
    h->route = find_number(&rx->expect, number);
    if (h->route >= rx->expect.n_routes) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "chunk of route %llu, there are %u",
                               (unsigned long long)number, rx->expect.n_routes);
    }
    char where[PLACE_TEXT_BYTES];
    const heft__route_t *route = &rx->expect.routes[h->route];
    const uint64_t n_chunks = heft__route_count_chunks(route, rx->expect.chunk_bytes);
    if (h->index >= n_chunks) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "%schunk %llu of route %llu, which has %llu",
                               say_place(rx, h->route, 0, n_chunks, where),
                               (unsigned long long)h->index, (unsigned long long)h->route,
                               (unsigned long long)n_chunks);
    }
    uint64_t offset;
    uint64_t length;
    place(route, rx->expect.chunk_bytes, h->index, &offset, &length);
    if (h->offset != offset || h->length != length || n != length) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL,
                               "%schunk %llu of route %llu: %llu bytes (%zu came) at %llu, "
                               "expected %llu at %llu",
                               say_place(rx, h->route, h->index, h->index + 1, where),
                               (unsigned long long)h->index, (unsigned long long)h->route,
                               (unsigned long long)h->length, n, (unsigned long long)h->offset,
                               (unsigned long long)length, (unsigned long long)offset);
    }
    *bit_out = rx->first[h->route] + h->index;
    if (get_bit(rx->arrived, *bit_out)) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "%schunk %llu of route %llu came twice",
                               say_place(rx, h->route, h->index, h->index + 1, where),
                               (unsigned long long)h->index, (unsigned long long)h->route);
    }
    return HEFT_OK;
}

/* The bytes of a chunk have this sum. */
static heft_status_t check_crc(heft__chunk_rx_t *rx, const heft__chunk_header_t *h, uint64_t bit,
                               uint32_t crc, heft_error_t *err)
{
    if (crc == h->crc) {
        return HEFT_OK;
    }
    const bool is_second = get_bit(rx->damaged, bit);
    set_bit(rx->damaged, bit);
    rx->has_failed = rx->has_failed || is_second;
    char where[PLACE_TEXT_BYTES];
    return heft__error_set(err, is_second ? HEFT_ERR_PROTOCOL : HEFT_ERR_DIGEST,
                           "%schunk %llu of route %llu: CRC %08x, its header says %08x%s",
                           say_place(rx, h->route, h->index, h->index + 1, where),
                           (unsigned long long)h->index, (unsigned long long)h->route, crc, h->crc,
                           is_second ? ", for the second time" : "");
}

/* To its places. */
static heft_status_t unpack(heft__chunk_rx_t *rx, const heft__chunk_header_t *h, uint8_t *window,
                            const void *data, size_t n, heft_error_t *err)
{
    const heft__expect_t *expect = &rx->expect;
    const int64_t at = (int64_t)h->offset - expect->routes[h->route].offset;
    heft_status_t status =
        expect->unpack(expect->pack_arg, (uint32_t)h->route, window, at, (uint8_t *)(uintptr_t)data,
                       (int64_t)n, err); /* unpack only reads it */
    rx->has_failed = rx->has_failed || status != HEFT_OK;
    return status;
}

/* Compare the bytes of a chunk with its header and bring them to their place. One of a packed route
 * overwrites nothing before its sum is known: what is beside it may have arrived. */
static heft_status_t store(heft__chunk_rx_t *rx, const heft__chunk_header_t *h, uint64_t bit,
                           uint8_t *window, const void *data, size_t n, heft_error_t *err)
{
    const heft__expect_t *expect = &rx->expect;
    const bool packed = is_packed(expect, h->route);
    const bool at_once = expect->crc_copy != NULL && !packed;
    const uint32_t crc = at_once ? expect->crc_copy(0, window + h->offset, data, (int64_t)n)
                                 : expect->crc(0, data, (int64_t)n);
    heft_status_t status = check_crc(rx, h, bit, crc, err);
    if (status == HEFT_OK && packed) {
        return unpack(rx, h, window, data, n, err);
    }
    if (status == HEFT_OK && !at_once) {
        memcpy(window + h->offset, data, n);
    }
    return status;
}

/* A header that is as expected; what is not fails the round, unless it is of another one. length
 * NULL: as the header says. */
static heft_status_t accept(heft__chunk_rx_t *rx, const uint8_t *header, const size_t *length,
                            heft__chunk_header_t *h, uint64_t *bit_out, heft_error_t *err)
{
    if (rx->has_failed) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "the round has failed: no more chunks");
    }
    heft_status_t status =
        heft__chunk_decode(header, HEFT__CHUNK_HEADER_BYTES, rx->expect.crc, h, err);
    if (status == HEFT_OK) {
        status = check_header(rx, h, length != NULL ? *length : (size_t)h->length, bit_out, err);
    }
    rx->has_failed = rx->has_failed || (status != HEFT_OK && status != HEFT_ERR_STALE);
    return status;
}

static void note_arrived(heft__chunk_rx_t *rx, const heft__chunk_header_t *h, uint64_t bit)
{
    set_bit(rx->arrived, bit);
    rx->n_left[h->route]--;
}

heft_status_t heft__chunk_rx_take(heft__chunk_rx_t *rx, uint8_t *window, const uint8_t *header,
                                  const void *data, size_t n, heft_error_t *err)
{
    heft__chunk_header_t h;
    uint64_t bit = 0;
    heft_status_t status = accept(rx, header, &n, &h, &bit, err);
    if (status == HEFT_OK) {
        status = store(rx, &h, bit, window, data, n, err);
    }
    if (status == HEFT_OK) {
        note_arrived(rx, &h, bit);
    }
    return status;
}

heft_status_t heft__chunk_rx_find(heft__chunk_rx_t *rx, const uint8_t *header, size_t n,
                                  int64_t *offset_out, heft_error_t *err)
{
    heft__chunk_header_t h;
    uint64_t bit = 0;
    heft_status_t status = accept(rx, header, &n, &h, &bit, err);
    if (status == HEFT_OK) {
        *offset_out = is_packed(&rx->expect, h.route) ? -1 : (int64_t)h.offset;
    }
    return status;
}

heft_status_t heft__chunk_rx_check_placed(heft__chunk_rx_t *rx, const uint8_t *window,
                                          const uint8_t *header, heft_error_t *err)
{
    heft__chunk_header_t h;
    uint64_t bit = 0;
    heft_status_t status = accept(rx, header, NULL, &h, &bit, err);
    if (status == HEFT_OK && is_packed(&rx->expect, h.route)) {
        rx->has_failed = true;
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "route %llu is packed: it has no place",
                               (unsigned long long)h.route);
    }
    if (status == HEFT_OK) {
        const uint32_t crc = rx->expect.crc(0, window + h.offset, (int64_t)h.length);
        status = check_crc(rx, &h, bit, crc, err);
    }
    if (status == HEFT_OK) {
        note_arrived(rx, &h, bit);
    }
    return status;
}

bool heft__chunk_rx_has_failed(const heft__chunk_rx_t *rx)
{
    return rx->has_failed;
}

bool heft__chunk_rx_has_all_senders(const heft__chunk_rx_t *rx)
{
    return rx->n_begun >= rx->expect.n_senders;
}

uint64_t heft__chunk_rx_count_arrived(const heft__chunk_rx_t *rx, uint32_t route)
{
    if (route >= rx->expect.n_routes) {
        return 0;
    }
    uint64_t begin = heft__route_count_chunks(&rx->expect.routes[route], rx->expect.chunk_bytes);
    uint64_t end;
    if (rx->n_left[route] > 0) {
        find_gap(rx, route, &begin, &end);
    }
    return begin;
}

heft_status_t heft__chunk_rx_check_whole(const heft__chunk_rx_t *rx, heft_error_t *err)
{
    for (uint32_t i = 0; i < rx->expect.n_routes; i++) {
        if (rx->n_left[i] > 0) {
            char where[PLACE_TEXT_BYTES];
            uint64_t begin;
            uint64_t end;
            find_gap(rx, i, &begin, &end);
            return heft__error_set(
                err, HEFT_ERR_MISMATCH, "%sroute %u: %llu of %llu chunks have not come",
                say_place(rx, i, begin, end, where), i, (unsigned long long)rx->n_left[i],
                (unsigned long long)heft__route_count_chunks(&rx->expect.routes[i],
                                                             rx->expect.chunk_bytes));
        }
    }
    return HEFT_OK;
}

/* ---- sender ---- */

/* A header as it goes out. */
static void encode(const heft__chunk_tx_t *tx, const heft__chunk_header_t *header,
                   uint8_t out[HEFT__CHUNK_HEADER_BYTES])
{
    heft__chunk_header_t wire = *header;
    wire.route = number_of(tx->expect, header->route);
    heft__chunk_encode(&wire, tx->expect->crc, out);
}

static heft_status_t send_once(const heft__chunk_tx_t *tx, const heft__chunk_header_t *header,
                               const uint8_t *data, heft_error_t *err)
{
    uint8_t bytes[HEFT__CHUNK_HEADER_BYTES];
    encode(tx, header, bytes);
    return heft__remote_send(tx->remote, bytes, data, (int64_t)header->length, tx->deadline_mono_ns,
                             err);
}

void heft__chunk_tx_init(heft__chunk_tx_t *tx, heft__remote_t *remote, const heft__expect_t *expect,
                         heft__token_t token, const uint8_t *base, uint8_t *scratch,
                         int64_t deadline_mono_ns,
                         heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg)
{
    *tx = (heft__chunk_tx_t){ .remote = remote,
                              .expect = expect,
                              .token = token,
                              .base = base,
                              .scratch = scratch,
                              .deadline_mono_ns = deadline_mono_ns,
                              .on_chunk = on_chunk,
                              .arg = arg,
                              .can_post = heft__remote_can_post(remote),
                              .n_free = HEFT__CHUNKS_UNDER_WAY };
    for (uint32_t i = 0; i < HEFT__CHUNKS_UNDER_WAY; i++) {
        tx->free_slots[i] = i;
    }
}

/* Gather a chunk of a packed route into the slot's scratch, or find the bytes of another one, and
 * sum them: the network reads them next, from the cache where they fit. */
static heft_status_t prepare(heft__chunk_tx_t *tx, uint32_t slot, heft_error_t *err)
{
    const heft__expect_t *expect = tx->expect;
    heft__chunk_header_t *header = &tx->slots[slot].header;
    const int64_t bytes = (int64_t)header->length;
    const uint32_t route = (uint32_t)header->route;
    const int64_t at = (int64_t)header->offset - expect->routes[route].offset;
    uint8_t *room = tx->scratch != NULL ? tx->scratch + (int64_t)slot * expect->chunk_bytes : NULL;
    const uint8_t *data = NULL;
    heft_status_t status = tx->on_chunk != NULL ? tx->on_chunk(tx->arg, err) : HEFT_OK;
    if (status == HEFT_OK && is_packed(expect, route)) {
        status = expect->pack(expect->pack_arg, route, (uint8_t *)(uintptr_t)tx->base, at, room,
                              bytes, err); /* pack only reads base */
        header->crc = status == HEFT_OK ? expect->crc(0, room, bytes) : 0;
        data = room;
    } else if (status == HEFT_OK && tx->fetch != NULL) {
        status = tx->fetch(tx->fetch_arg, route, at, bytes, room, &data, &header->crc, err);
    }
    if (status == HEFT_OK && data == NULL) {
        data = tx->base + header->offset;
        header->crc = expect->crc(0, data, bytes);
    }
    tx->slots[slot].data = data;
    tx->counts.chunks += status == HEFT_OK;
    return status;
}

/* A chunk arrived damaged. Once more, if its bytes are still those that were summed: what is
 * fetched may be somebody's who writes to it. */
static heft_status_t prepare_again(heft__chunk_tx_t *tx, uint32_t slot, heft_error_t *err)
{
    const heft__expect_t *expect = tx->expect;
    heft__chunk_header_t *header = &tx->slots[slot].header;
    if (expect->crc(0, tx->slots[slot].data, (int64_t)header->length) != header->crc) {
        const char *name = expect->name_of != NULL
                               ? expect->name_of(expect->name_arg, (uint32_t)header->route)
                               : NULL;
        return heft__error_set(err, HEFT_ERR_DIGEST,
                               "what \"%.120s\" is made of was written to while it was sent",
                               name != NULL ? name : "?");
    }
    header->flags = HEFT__CHUNK_AGAIN;
    tx->counts.resent++;
    return HEFT_OK;
}

/* One chunk, waiting for its verdict. */
static heft_status_t send_in_turn(heft__chunk_tx_t *tx, const heft__chunk_header_t *what,
                                  heft_error_t *err)
{
    heft__chunk_header_t *header = &tx->slots[0].header;
    *header = *what;
    heft_status_t status = prepare(tx, 0, err);
    if (status == HEFT_OK) {
        status = send_once(tx, header, tx->slots[0].data, err);
    }
    if (status == HEFT_ERR_DIGEST) {
        status = prepare_again(tx, 0, err);
        status = status == HEFT_OK ? send_once(tx, header, tx->slots[0].data, err) : status;
    }
    return status;
}

static heft_status_t post(heft__chunk_tx_t *tx, uint32_t slot, heft_error_t *err)
{
    uint8_t bytes[HEFT__CHUNK_HEADER_BYTES];
    const heft__chunk_header_t *header = &tx->slots[slot].header;
    encode(tx, header, bytes);
    return heft__remote_post(tx->remote, slot, !is_packed(tx->expect, header->route), bytes,
                             tx->slots[slot].data, (int64_t)header->length, tx->deadline_mono_ns,
                             err);
}

/* The next verdict until a moment: room for another chunk, or the same once more. HEFT_IN_PROGRESS:
 * none came, and the deadline has not come either. */
static heft_status_t reap_until(heft__chunk_tx_t *tx, int64_t until_mono_ns, heft_error_t *err)
{
    const bool is_last = until_mono_ns >= tx->deadline_mono_ns;
    uint32_t slot = HEFT__CHUNKS_UNDER_WAY;
    heft_status_t status =
        heft__remote_reap(tx->remote, &slot, is_last ? tx->deadline_mono_ns : until_mono_ns, err);
    if (status == HEFT_ERR_DIGEST && slot < HEFT__CHUNKS_UNDER_WAY &&
        tx->slots[slot].header.flags == 0) {
        status = prepare_again(tx, slot, err);
        return status == HEFT_OK ? post(tx, slot, err) : status;
    }
    if (status == HEFT_OK) {
        tx->free_slots[tx->n_free++] = slot;
    }
    return status == HEFT_ERR_TIMEOUT && !is_last ? HEFT_IN_PROGRESS : status;
}

static heft_status_t reap(heft__chunk_tx_t *tx, heft_error_t *err)
{
    return reap_until(tx, tx->deadline_mono_ns, err);
}

heft_status_t heft__chunk_tx_await_room(heft__chunk_tx_t *tx, int64_t until_mono_ns,
                                        heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && tx->n_free == 0) {
        status = reap_until(tx, until_mono_ns, err);
    }
    return status;
}

/* Several are under way: while the network carries them this one is gathered and summed. There is
 * room for it. */
static heft_status_t send_piped(heft__chunk_tx_t *tx, const heft__chunk_header_t *header,
                                heft_error_t *err)
{
    const uint32_t slot = tx->free_slots[tx->n_free - 1];
    tx->slots[slot].header = *header;
    heft_status_t status = prepare(tx, slot, err);
    if (status == HEFT_OK) {
        status = post(tx, slot, err);
        tx->n_free -= status == HEFT_OK;
    }
    return status;
}

heft_status_t heft__chunk_tx_try(heft__chunk_tx_t *tx, uint32_t route, uint64_t *next,
                                 heft_error_t *err)
{
    heft__chunk_header_t header = { .token = tx->token, .route = route, .index = *next };
    heft_status_t status = tx->can_post ? heft__chunk_tx_await_room(tx, 0, err) : HEFT_OK;
    if (status != HEFT_OK) {
        return status;
    }
    place(&tx->expect->routes[route], tx->expect->chunk_bytes, *next, &header.offset,
          &header.length);
    status = tx->can_post ? send_piped(tx, &header, err) : send_in_turn(tx, &header, err);
    *next += status == HEFT_OK;
    return status;
}

heft_status_t heft__chunk_tx_send(heft__chunk_tx_t *tx, uint32_t route, heft_error_t *err)
{
    const uint64_t n =
        heft__route_count_chunks(&tx->expect->routes[route], tx->expect->chunk_bytes);
    uint64_t next = 0;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && next < n) {
        status = tx->can_post ? heft__chunk_tx_await_room(tx, tx->deadline_mono_ns, err) : HEFT_OK;
        status = status == HEFT_OK ? heft__chunk_tx_try(tx, route, &next, err) : status;
    }
    return status;
}

heft_status_t heft__chunk_tx_finish(heft__chunk_tx_t *tx, heft_status_t status, heft_error_t *err)
{
    while (status == HEFT_OK && tx->n_free < HEFT__CHUNKS_UNDER_WAY) {
        status = reap(tx, err);
    }
    if (status != HEFT_OK && tx->can_post) {
        /* nothing may read the caller's bytes after this returns */
        heft_status_t settled = heft__remote_flush(tx->remote, tx->deadline_mono_ns, NULL);
        (void)settled;
    }
    return status;
}

heft_status_t heft__chunk_send(heft__remote_t *remote, const heft__expect_t *expect,
                               heft__token_t token, uint32_t route, const uint8_t *base,
                               int64_t deadline_mono_ns,
                               heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg,
                               heft__chunk_counts_t *counts, heft_error_t *err)
{
    heft__chunk_tx_t tx;
    heft__chunk_tx_init(&tx, remote, expect, token, base, NULL, deadline_mono_ns, on_chunk, arg);
    heft_status_t status = heft__chunk_tx_send(&tx, route, err);
    status = heft__chunk_tx_finish(&tx, status, err);
    counts->chunks += tx.counts.chunks;
    counts->resent += tx.counts.resent;
    return status;
}
