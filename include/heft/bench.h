/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks: each figure is a ratio to the C library's memcpy, measured just before it. One
 * thread is timed by its own clock, which stops while other processes have the core; several
 * threads by the wall's. HEFT_CPU=scalar, avx2, avx2-wide or avx512 lowers the level of the
 * kernels.
 */
#ifndef HEFT_BENCH_H
#define HEFT_BENCH_H

#include "heft/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_bench_result {
    const char *name; /* "scatter_256"; static */
    const char *text; /* what is measured, one line; static */
    double
        gb_per_s; /* 10^9 destination bytes per second, median (casts: mean of bytes in and out) */
    double ratio; /* gb_per_s over memcpy's in the same round, median of rounds */
    double ratio_min; /* worst and best round */
    double ratio_max;
    double aim;    /* the ratio this kernel should reach; 0: none */
    int64_t bytes; /* destination bytes of one run */
    int32_t runs;
    int32_t reserved;
} heft_bench_result_t;

typedef struct heft_bench_opts {
    size_t size;
    int64_t bytes;      /* 0: 1 GiB; size of each working buffer */
    int32_t runs;       /* 0: 5 */
    uint32_t n_threads; /* 0: 1 */
    const char *only;   /* NULL: all; else the name of one */
} heft_bench_opts_t;
#define HEFT_BENCH_OPTS_INIT              \
    {                                     \
        .size = sizeof(heft_bench_opts_t) \
    }

/** Called once for each benchmark as it completes. */
typedef void (*heft_bench_sink_t)(void *arg, const heft_bench_result_t *result);

/** Run the kernel benchmarks. Buffers are allocated, touched and kept before anything is timed.
 * HEFT_ERR_NOMEM, HEFT_ERR_NOT_FOUND for an unknown `only`. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bench_run(const heft_bench_opts_t *opts,
                                                      heft_bench_sink_t sink, void *arg,
                                                      heft_error_t *err);
/** The name of benchmark i, for `only`; NULL after the last. */
HEFT_API const char *heft_bench_get_name(uint32_t i);

#ifdef __cplusplus
}
#endif

#endif
