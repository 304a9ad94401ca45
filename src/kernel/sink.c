/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores with their digest: a stretch of n bytes that ends d bytes before the end of its parameter
 * contributes its CRC times x^(8d). Reducing and shifting cost as much as a few hundred bytes, so
 * short runs that make up a longer stretch of the destination are brought together first.
 */
#include "kernel/kernel_ops.h"

#define BOUNCE_BYTES 4096
#define SHORT_RUN 1024

void heft__sink_put(heft__sink_t *sink, uint8_t *dst, const uint8_t *src, int64_t n, int64_t ahead)
{
    bool nt = sink->nt && n >= HEFT__NT_MIN_RUN;
    if (!sink->has_digest) {
        sink->ops->move(dst, 0, src, 0, 1, n, nt, ahead);
        return;
    }
    uint64_t crc = sink->ops->crc64_move(0, dst, src, n, nt, ahead);
    sink->digest ^= sink->ops->crc64_shift(crc, sink->param_end - (dst + n));
}

/* Past the cache: long runs, and shorter ones that are whole lines. */
static bool wants_nt(const heft__sink_t *sink, const uint8_t *dst, int64_t dst_step, int64_t n)
{
    bool is_lines = n % 64 == 0 && (uintptr_t)dst % 64 == 0 && dst_step % 64 == 0;
    return sink->nt && (n >= HEFT__NT_MIN_RUN || is_lines);
}

/* Where the next line to be read lies, when only runs step apart are read. */
static int64_t strided_ahead(int64_t run_bytes, int64_t step)
{
    int64_t distance = step < 0 ? -step : step;
    if (step == 0 || distance == run_bytes || run_bytes >= 8 * HEFT__AHEAD) {
        return HEFT__AHEAD;
    }
    return (HEFT__AHEAD + distance - 1) / distance * step;
}

/* Digests of many short runs. */
static void put_runs_digest(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                            int64_t src_step, int64_t n_runs, int64_t n, int64_t ahead)
{
    bool nt = wants_nt(sink, dst, dst_step, n);
    if (sink->fold_distance != dst_step) {
        sink->fold = heft__fold_by(heft__crc_tables(), dst_step);
        sink->fold_distance = dst_step;
    }
    uint64_t crc =
        sink->ops->crc64_runs(&sink->fold, dst, dst_step, src, src_step, n_runs, n, nt, ahead);
    const uint8_t *end = dst + (n_runs - 1) * dst_step + n;
    sink->digest ^= sink->ops->crc64_shift(crc, sink->param_end - end);
}

/* Runs that follow one another in the destination, by way of a small buffer. */
static void put_dense(heft__sink_t *sink, uint8_t *dst, const uint8_t *src, int64_t src_step,
                      int64_t n_runs, int64_t n, int64_t ahead)
{
    _Alignas(64) uint8_t bounce[BOUNCE_BYTES];
    int64_t most = BOUNCE_BYTES / n;
    for (int64_t i = 0; i < n_runs; i += most) {
        int64_t some = heft__min_i64(most, n_runs - i);
        sink->ops->move(bounce, n, src + i * src_step, src_step, some, n, false, ahead);
        heft__sink_put(sink, dst + i * n, bounce, some * n, 0);
    }
}

void heft__sink_put_runs(heft__sink_t *sink, uint8_t *dst, int64_t dst_step, const uint8_t *src,
                         int64_t src_step, int64_t n_runs, int64_t n, int64_t ahead)
{
    ahead = ahead != 0 ? ahead : strided_ahead(n, src_step);
    bool is_dense = n <= SHORT_RUN && dst_step == n && n_runs > 1;
    bool nt = wants_nt(sink, dst, dst_step, n);
    if (is_dense && (sink->has_digest ? n % 16 != 0 : sink->nt && !nt)) {
        put_dense(sink, dst, src, src_step, n_runs, n, ahead);
    } else if (!sink->has_digest) {
        sink->ops->move(dst, dst_step, src, src_step, n_runs, n, nt, ahead);
    } else if (n <= SHORT_RUN && n % 16 == 0 && n_runs > 1) {
        put_runs_digest(sink, dst, dst_step, src, src_step, n_runs, n, ahead);
    } else {
        for (int64_t i = 0; i < n_runs; i++) {
            heft__sink_put(sink, dst + i * dst_step, src + i * src_step, n, ahead);
        }
    }
}
