/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of the two CRCs, and the scalar kernels, which judge the others. Both are reflected:
 * the top bit of a register is the coefficient of x^0.
 *
 * Tables are made once, at first use (a fraction of a millisecond).
 */
#include "kernel/kernel_ops.h"
#include "kernel/ops_scalar.h"

#include <pthread.h>
#include <string.h>

static heft__crc_tables_t tables;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

uint64_t heft__crc64_mul_scalar(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (int i = 63; i >= 0; i--) {
        product ^= (a >> i & 1) != 0 ? b : 0;
        b = (b >> 1) ^ ((b & 1) != 0 ? HEFT__CRC64_POLY : 0);
    }
    return product;
}

static void make_byte_tables(void)
{
    for (uint32_t v = 0; v < 256; v++) {
        uint64_t a = v;
        uint32_t b = v;
        for (int i = 0; i < 8; i++) {
            a = (a >> 1) ^ ((a & 1) != 0 ? HEFT__CRC64_POLY : 0);
            b = (b >> 1) ^ ((b & 1) != 0 ? HEFT__CRC32C_POLY : 0);
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

static void make_tables(void)
{
    make_byte_tables();
    uint64_t unit = UINT64_C(1) << (63 - 8); /* x^8 */
    for (int k = 0; k < 8; k++) {
        tables.power[k][0] = UINT64_C(1) << 63;
        for (int v = 1; v < 256; v++) {
            tables.power[k][v] = heft__crc64_mul_scalar(tables.power[k][v - 1], unit);
        }
        unit = heft__crc64_mul_scalar(tables.power[k][255], unit);
    }
}

const heft__crc_tables_t *heft__crc_tables(void)
{
    (void)pthread_once(&tables_once, make_tables);
    return &tables;
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

uint64_t heft__scalar_crc64_move(uint64_t crc, uint8_t *dst, const uint8_t *src, int64_t n, bool nt)
{
    (void)nt;
    memcpy(dst, src, (size_t)n);
    return heft__scalar_crc64(crc, src, n);
}

uint32_t heft__scalar_crc32c_move(uint32_t crc, uint8_t *dst, const uint8_t *src, int64_t n,
                                  bool nt)
{
    (void)nt;
    memcpy(dst, src, (size_t)n);
    return heft__scalar_crc32c(crc, src, n);
}
