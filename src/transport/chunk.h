/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks: for transports that send bytes through a buffer. A receiver says before a round what it
 * expects: *routes*, ranges of its window, each sent in chunks of one size. Each chunk comes with a
 * header; what does not fit what is expected never touches the window and fails the round. A chunk
 * whose CRC-32C is wrong is sent once more.
 *
 * Threads: a receiver is confined (its transport's lock), a sender to the sending thread.
 */
#ifndef HEFT_TRANSPORT_CHUNK_H
#define HEFT_TRANSPORT_CHUNK_H

#include "transport/transport.h"

enum { HEFT__CHUNK_HEADER_BYTES = 64 };

typedef enum heft__chunk_flags { HEFT__CHUNK_AGAIN = 1u << 0 } heft__chunk_flags_t;

void heft__chunk_encode(const heft__chunk_header_t *header, heft__crc32c_t crc,
                        uint8_t out[HEFT__CHUNK_HEADER_BYTES]);
/* HEFT_ERR_PROTOCOL: no header, damaged, or of another version. */
HEFT_MUST_CHECK heft_status_t heft__chunk_decode(const uint8_t *data, size_t n, heft__crc32c_t crc,
                                                 heft__chunk_header_t *out, heft_error_t *err);

/* ---- receiver ---- */

typedef struct heft__chunk_rx heft__chunk_rx_t;

/* expect is copied. HEFT_ERR_ARGUMENT: routes that overlap or leave the window. */
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_create(const heft__expect_t *expect,
                                                    int64_t window_bytes, heft__chunk_rx_t **rx_out,
                                                    heft_error_t *err);
void heft__chunk_rx_destroy(heft__chunk_rx_t *rx);
/* A round begins: nothing has arrived. */
void heft__chunk_rx_arm(heft__chunk_rx_t *rx, heft__token_t token);
/* One more sender. HEFT_ERR_PROTOCOL: more than expected; the round has failed. */
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_begin(heft__chunk_rx_t *rx, heft_error_t *err);
/*
 * A header and the n bytes after it, on their way to window. HEFT_OK: they are in place.
 * HEFT_ERR_DIGEST: the CRC is wrong for the first time; send it once more. Anything else, and the
 * second wrong CRC, fails the round: HEFT_ERR_PROTOCOL, HEFT_ERR_STALE (of another round).
 */
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_take(heft__chunk_rx_t *rx, uint8_t *window,
                                                  const uint8_t *header, const void *data, size_t n,
                                                  heft_error_t *err);
/*
 * The same in two steps, for bytes that come to their place by themselves. find: where n bytes with
 * this header belong, before they arrive (-1: of a packed route, to be taken whole); check_placed:
 * they are there, and are compared with the header. What the two return is what heft__chunk_rx_take
 * would.
 */
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_find(heft__chunk_rx_t *rx, const uint8_t *header,
                                                  size_t n, int64_t *offset_out, heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_check_placed(heft__chunk_rx_t *rx,
                                                          const uint8_t *window,
                                                          const uint8_t *header, heft_error_t *err);
/* Chunks of a route that have arrived, up to the first one that has not; a route that is not
 * expected has none. */
uint64_t heft__chunk_rx_count_arrived(const heft__chunk_rx_t *rx, uint32_t route);
bool heft__chunk_rx_has_failed(const heft__chunk_rx_t *rx);
/* All senders that are expected have begun. */
bool heft__chunk_rx_has_all_senders(const heft__chunk_rx_t *rx);
/* Every expected chunk has arrived. HEFT_ERR_MISMATCH names the first route that lacks some,
 * and, where it has a name, the first bytes that are missing. */
HEFT_MUST_CHECK heft_status_t heft__chunk_rx_check_whole(const heft__chunk_rx_t *rx,
                                                         heft_error_t *err);

#endif
