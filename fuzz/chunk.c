/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks from a sender that means no good: each is a header and its bytes. Two checksums of the
 * header are put right, so that the checks behind them are reached. What is taken lands within its
 * route; nothing else changes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "transport/chunk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WINDOW = 512, GUARD = 64, PAYLOAD = 100 };

static const heft__route_t routes[] = { { 0, 130 }, { 130, 0 }, { 256, 256 } };

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void take(heft__chunk_rx_t *rx, uint8_t *memory, const uint8_t *header, const uint8_t *data,
                 size_t n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint8_t before[GUARD + WINDOW + GUARD];
    memcpy(before, memory, sizeof before);
    const heft_status_t status = heft__chunk_rx_take(rx, memory + GUARD, header, data, n, &err);
    uint64_t offset = heft__get_le64(header + 40);
    if (status == HEFT_OK) {
        check(offset + n <= WINDOW && memcmp(memory + GUARD + offset, data, n) == 0);
        memcpy(before + GUARD + offset, data, n); /* and nothing but that */
    } else {
        check(err.status == status && err.message[0] != '\0');
    }
    check(memcmp(before, memory, sizeof before) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const heft__expect_t expect = {
        .routes = routes, .n_routes = 3, .n_senders = 1, .chunk_bytes = PAYLOAD, .crc = heft__crc32c
    };
    heft__chunk_rx_t *rx = NULL;
    uint8_t memory[GUARD + WINDOW + GUARD];
    memset(memory, 0xee, sizeof memory);
    check(heft__chunk_rx_create(&expect, WINDOW, &rx, NULL) == HEFT_OK);
    heft__chunk_rx_arm(rx, (heft__token_t){ .epoch = 1, .seq = 1 });
    while (size > HEFT__CHUNK_HEADER_BYTES) {
        uint8_t header[HEFT__CHUNK_HEADER_BYTES];
        memcpy(header, data, sizeof header);
        data += sizeof header;
        size -= sizeof header;
        const size_t n = size < PAYLOAD ? size : PAYLOAD;
        const uint64_t length = heft__get_le64(header + 48);
        const size_t take_n = length < n ? (size_t)length : n;
        if ((header[56] & 1) == 0) {
            heft__put_le32(header + 56, heft__crc32c(0, data, (int64_t)take_n));
        }
        heft__put_le32(header + 60, heft__crc32c(0, header, 60));
        take(rx, memory, header, data, take_n);
        data += n;
        size -= n;
    }
    const heft_status_t whole = heft__chunk_rx_check_whole(rx, NULL);
    check(whole == HEFT_OK || whole == HEFT_ERR_MISMATCH);
    heft__chunk_rx_destroy(rx);
    return 0;
}
