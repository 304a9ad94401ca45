/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums as others call them; the work is in the dispatch table. */
#include "kernel/kernel_ops.h"

uint64_t heft__crc64(const void *data, int64_t n_bytes)
{
    return heft__ops()->crc64(0, data, n_bytes);
}

uint64_t heft__crc64_update(uint64_t crc, const void *data, int64_t n_bytes)
{
    return heft__ops()->crc64(crc, data, n_bytes);
}

uint64_t heft__crc64_shift(uint64_t crc, int64_t n_bytes)
{
    return heft__ops()->crc64_shift(crc, n_bytes);
}

uint64_t heft__crc64_copy(uint64_t crc, void *dst, const void *src, int64_t n_bytes)
{
    const heft__kernel_ops_t *ops = heft__ops();
    crc = ops->crc64_move(crc, dst, src, n_bytes, n_bytes >= HEFT__NT_MIN_BYTES, HEFT__AHEAD);
    ops->fence();
    return crc;
}

uint32_t heft__crc32c(uint32_t crc, const void *data, int64_t n_bytes)
{
    return ~heft__ops()->crc32c(~crc, data, n_bytes);
}

uint32_t heft__crc32c_copy(uint32_t crc, void *dst, const void *src, int64_t n_bytes)
{
    const heft__kernel_ops_t *ops = heft__ops();
    bool nt = n_bytes >= HEFT__NT_MIN_BYTES;
    crc = ~ops->crc32c_move(~crc, dst, src, n_bytes, nt, HEFT__AHEAD);
    ops->fence();
    return crc;
}
