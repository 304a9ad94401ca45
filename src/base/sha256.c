/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), for digests of layouts, plans and contracts. Not in any hot path, hence
 * plain C. */
#include "base/base.h"

#include <string.h>

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, unsigned n)
{
    return (x >> n) | (x << (32 - n));
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | (uint32_t)block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) { /* v[(j - i) & 7] is letter j: rotates without moving */
        uint32_t e = v[(4 - i) & 7];
        uint32_t a = v[-i & 7];
        uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        uint32_t t1 =
            v[(7 - i) & 7] + s1 + ((e & v[(5 - i) & 7]) ^ (~e & v[(6 - i) & 7])) + k[i] + w[i];
        uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        uint32_t b = v[(1 - i) & 7];
        uint32_t c = v[(2 - i) & 7];
        v[(3 - i) & 7] += t1;
        v[(7 - i) & 7] = t1 + s0 + ((a & b) ^ (a & c) ^ (b & c));
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void heft__sha256_init(heft__sha256_t *h)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memset(h, 0, sizeof *h);
    memcpy(h->state, start, sizeof start);
}

void heft__sha256_update(heft__sha256_t *h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    h->n_bytes += bytes;
    while (bytes > 0) {
        if (h->fill == 0 && bytes >= 64) {
            compress(h->state, p);
            p += 64;
            bytes -= 64;
            continue;
        }
        size_t n = 64 - h->fill < bytes ? 64 - h->fill : bytes;
        memcpy(h->block + h->fill, p, n);
        h->fill += n;
        p += n;
        bytes -= n;
        if (h->fill == 64) {
            compress(h->state, h->block);
            h->fill = 0;
        }
    }
}

void heft__sha256_update_u64(heft__sha256_t *h, uint64_t value)
{
    uint8_t bytes[8];
    heft__put_le64(bytes, value);
    heft__sha256_update(h, bytes, sizeof bytes);
}

void heft__sha256_update_text(heft__sha256_t *h, const char *text)
{
    size_t len = strlen(text);
    heft__sha256_update_u64(h, len);
    heft__sha256_update(h, text, len);
}

void heft__sha256_final(heft__sha256_t *h, uint8_t digest_out[32])
{
    uint64_t n_bits = h->n_bytes * 8;
    uint8_t pad[72] = { 0x80 };
    size_t n_pad = (h->fill < 56 ? 56 : 120) - h->fill;
    for (int i = 0; i < 8; i++) {
        pad[n_pad + (size_t)i] = (uint8_t)(n_bits >> (56 - 8 * i));
    }
    heft__sha256_update(h, pad, n_pad + 8);
    for (int i = 0; i < 32; i++) {
        digest_out[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void heft__hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool heft__hex_parse(const char *hex, uint8_t *bytes_out, size_t n)
{
    if (strlen(hex) != 2 * n) {
        return false;
    }
    for (size_t i = 0; i < 2 * n; i++) {
        if (hex_value(hex[i]) < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        bytes_out[i] = (uint8_t)(hex_value(hex[2 * i]) * 16 + hex_value(hex[2 * i + 1]));
    }
    return true;
}
