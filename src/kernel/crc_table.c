/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of the two CRCs, and the scalar kernels, which judge the others. Both are reflected:
 * the top bit of a register is the coefficient of x^0.
 *
 * Tables are made once, at first use (a fraction of a millisecond).
 */
#include "kernel/ops_scalar.h"

#include <pthread.h>
#include <string.h>

heft__crc_tables_t heft__crc_table_storage;
#define tables heft__crc_table_storage
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static uint64_t times_x(uint64_t a)
{
    return (a >> 1) ^ ((a & 1) != 0 ? HEFT__CRC64_POLY : 0);
}

static uint32_t times_x_32c(uint32_t a)
{
    return (a >> 1) ^ ((a & 1) != 0 ? HEFT__CRC32C_POLY : 0);
}

static uint64_t over_x(uint64_t a)
{
    return a >> 63 != 0 ? (a ^ HEFT__CRC64_POLY) << 1 | 1 : a << 1;
}

uint64_t heft__crc64_mul(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (int i = 63; i >= 0; i--) {
        product ^= (a >> i & 1) != 0 ? b : 0;
        b = times_x(b);
    }
    return product;
}

static uint64_t power_of_x(int n)
{
    uint64_t p = UINT64_C(1) << 63;
    for (int i = 0; i < n; i++) {
        p = times_x(p);
    }
    return p;
}

/* As a 64-bit reflected polynomial. */
static uint64_t power_of_x_32c(int n)
{
    uint32_t p = UINT32_C(1) << 31;
    for (int i = 0; i < n; i++) {
        p = times_x_32c(p);
    }
    return (uint64_t)p << 32;
}

static uint64_t reflect(uint64_t v)
{
    uint64_t r = 0;
    for (int i = 0; i < 64; i++) {
        r |= (v >> i & 1) << (63 - i);
    }
    return r;
}

/* floor(x^128 / P) without its leading term, reflected, times x for the shift that reflected
 * products need, plus the leading term in the place this frees. */
static uint64_t barrett_mu(void)
{
    uint64_t poly = reflect(HEFT__CRC64_POLY);
    uint64_t rest = poly;
    uint64_t quotient = 0;
    for (int i = 0; i < 64; i++) {
        uint64_t top = rest >> 63;
        quotient = quotient << 1 | top;
        rest = (rest << 1) ^ (top != 0 ? poly : 0);
    }
    return reflect(quotient) << 1 | 1;
}

static void make_fold_tables(void)
{
    for (int k = 1; k < 17; k++) {
        int bits = 8 * 16 * k;
        tables.fold64[k] =
            (heft__fold_t){ .a = power_of_x(64 + bits - 1), .b = power_of_x(bits - 1) };
        tables.fold32c[k] =
            (heft__fold_t){ .a = power_of_x_32c(64 + bits - 1), .b = power_of_x_32c(bits - 1) };
    }
    tables.x127 = power_of_x(127);
    tables.barrett_mu = barrett_mu();
}

static void make_byte_tables(void)
{
    for (uint32_t v = 0; v < 256; v++) {
        uint64_t a = v;
        uint32_t b = v;
        for (int i = 0; i < 8; i++) {
            a = times_x(a);
            b = times_x_32c(b);
        }
        tables.crc64[0][v] = a;
        tables.crc32c[0][v] = b;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t v = 0; v < 256; v++) {
            uint64_t a = tables.crc64[k - 1][v];
            uint32_t b = tables.crc32c[k - 1][v];
            tables.crc64[k][v] = (a >> 8) ^ tables.crc64[0][a & 255];
            tables.crc32c[k][v] = (b >> 8) ^ tables.crc32c[0][b & 255];
        }
    }
}

static void make_power_tables(void)
{
    uint64_t unit = UINT64_C(1) << (63 - 8); /* x^8, then its 256th powers */
    for (int k = 0; k < 8; k++) {
        uint64_t power = over_x(UINT64_C(1) << 63);
        for (int v = 0; v < 256; v++) {
            tables.power_over_x[k][v] = power;
            power = heft__crc64_mul(power, unit);
        }
        unit = times_x(power);
    }
}

static void make_tables(void)
{
    make_fold_tables();
    make_byte_tables();
    make_power_tables();
}

void heft__crc_tables_init(void)
{
    (void)pthread_once(&tables_once, make_tables);
}

uint64_t heft__scalar_crc64(uint64_t crc, const uint8_t *src, int64_t n)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    for (; n >= 8; n -= 8, src += 8) {
        uint64_t v = crc ^ heft__get_le64(src);
        crc = 0;
        for (int k = 0; k < 8; k++) {
            crc ^= t->crc64[7 - k][v >> (8 * k) & 255];
        }
    }
    for (; n > 0; n--, src++) {
        crc = (crc >> 8) ^ t->crc64[0][(crc ^ *src) & 255];
    }
    return crc;
}

uint32_t heft__scalar_crc32c(uint32_t crc, const uint8_t *src, int64_t n)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    for (; n >= 8; n -= 8, src += 8) {
        uint64_t v = crc ^ heft__get_le64(src);
        crc = 0;
        for (int k = 0; k < 8; k++) {
            crc ^= t->crc32c[7 - k][v >> (8 * k) & 255];
        }
    }
    for (; n > 0; n--, src++) {
        crc = (crc >> 8) ^ t->crc32c[0][(crc ^ *src) & 255];
    }
    return crc;
}

uint64_t heft__scalar_crc64_move(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt,
                                 int64_t ahead)
{
    (void)nt;
    (void)ahead;
    memcpy(dst, src, (size_t)n);
    return heft__scalar_crc64(crc, src, n);
}

uint32_t heft__scalar_crc32c_move(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n,
                                  bool nt, int64_t ahead)
{
    (void)nt;
    (void)ahead;
    memcpy(dst, src, (size_t)n);
    return heft__scalar_crc32c(crc, src, n);
}

/* One multiplication for each byte of n_bytes that is not 0. */
uint64_t heft__scalar_crc64_shift(uint64_t crc, int64_t n_bytes)
{
    const heft__crc_tables_t *t = heft__crc_tables();
    uint64_t n = (uint64_t)n_bytes;
    for (int k = 0; n != 0; k++, n >>= 8) {
        if ((n & 255) != 0) {
            crc = times_x(heft__crc64_mul(crc, t->power_over_x[k][n & 255]));
        }
    }
    return crc;
}

/* x^(8 distance - 1), and that times x^64. */
heft__fold_t heft__fold_by(const heft__crc_tables_t *t, int64_t distance)
{
    uint64_t power = t->power_over_x[0][0];
    uint64_t n = (uint64_t)distance;
    for (int k = 0; n != 0; k++, n >>= 8) {
        if ((n & 255) != 0) {
            power = times_x(heft__crc64_mul(power, t->power_over_x[k][n & 255]));
        }
    }
    heft__fold_t by = { .a = power, .b = power };
    for (int i = 0; i < 64; i++) {
        by.a = times_x(by.a);
    }
    return by;
}

uint64_t heft__scalar_crc64_runs(const heft__fold_t *by, uint8_t *dst, int64_t dst_step,
                                 const uint8_t *src, int64_t src_step, int64_t n_runs, int64_t n,
                                 bool nt, int64_t ahead)
{
    uint64_t all = 0;
    uint64_t power = times_x(by->b);
    for (int64_t r = 0; r < n_runs; r++) {
        uint64_t crc =
            heft__scalar_crc64_move(0, dst + r * dst_step, src + r * src_step, n, nt, ahead);
        all = (r == 0 ? 0 : heft__crc64_mul(all, power)) ^ crc;
    }
    return all;
}
