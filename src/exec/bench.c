/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks.
 *
 * Two buffers in huge pages where the kernel gives them, touched before anything is timed and kept
 * to the end: a page touched for the first time costs many times what copying it does. Every timed
 * run follows a memcpy of a whole buffer; the ratio of a round is the run's rate over that
 * memcpy's, so that a neighbour's noise hits both. Rounds go through all benchmarks, not the other
 * way around.
 */
#include "heft/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernel/kernel.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MIN_BYTES ((int64_t)4 << 20)
#define MAX_JOBS 64
#define MAX_RUNS 101
#define MAX_THREADS 64
#define N_LAYERS 48

typedef struct work work_t;

/* Share `part` of `n_parts` of one run. */
typedef void (*run_t)(const work_t *work, uint32_t part, uint32_t n_parts);

struct work {
    run_t run;
    uint8_t *dst;
    const uint8_t *src;
    int64_t bytes;    /* of the rate: destination bytes, or the mean of both sides of a cast */
    int64_t in_bytes; /* of contiguous runs */
    uint32_t in_elem; /* cut shares at whole elements */
    uint32_t out_elem;
    uint32_t n_jobs;
    bool has_digest;
    heft__job_t jobs[MAX_JOBS];
    heft__copy_plan_t copies[MAX_JOBS];
    heft__transform_plan_t transform;
};

typedef struct bench {
    const char *name;
    const char *text;
    double aim;
    heft_status_t (*prepare)(work_t *work, int64_t bytes, heft_error_t *err);
} bench_t;

/* ---- what is run ---- */

static void share(int64_t n, uint32_t part, uint32_t n_parts, int64_t *begin, int64_t *end)
{
    int64_t step = n / n_parts / 4096 * 4096;
    *begin = step * part;
    *end = part + 1 == n_parts ? n : step * (part + 1);
}

static void run_memcpy(const work_t *work, uint32_t part, uint32_t n_parts)
{
    int64_t begin;
    int64_t end;
    share(work->in_bytes, part, n_parts, &begin, &end);
    memcpy(work->dst + begin, work->src + begin, (size_t)(end - begin));
}

static void run_jobs(const work_t *work, uint32_t part, uint32_t n_parts)
{
    uint64_t digests[MAX_JOBS] = { 0 };
    heft__jobs_run(work->jobs, work->n_jobs, part, n_parts, work->has_digest ? digests : NULL);
}

static _Thread_local volatile uint64_t result_sink; /* keeps results from being optimised away */

static void run_crc32c_copy(const work_t *work, uint32_t part, uint32_t n_parts)
{
    int64_t begin;
    int64_t end;
    share(work->in_bytes, part, n_parts, &begin, &end);
    result_sink = heft__crc32c_copy(0, work->dst + begin, work->src + begin, end - begin);
}

static void run_crc64_copy(const work_t *work, uint32_t part, uint32_t n_parts)
{
    int64_t begin;
    int64_t end;
    share(work->in_bytes, part, n_parts, &begin, &end);
    result_sink = heft__crc64_copy(0, work->dst + begin, work->src + begin, end - begin);
}

static void run_crc64(const work_t *work, uint32_t part, uint32_t n_parts)
{
    int64_t begin;
    int64_t end;
    share(work->in_bytes, part, n_parts, &begin, &end);
    result_sink = heft__crc64(work->src + begin, end - begin);
}

/* ---- how it is prepared ---- */

static heft_status_t add_copy(work_t *work, const heft__copy_t *copy, int64_t dst_offset,
                              int64_t src_offset, heft_error_t *err)
{
    uint32_t j = work->n_jobs++;
    work->jobs[j] = (heft__job_t){ .copy = &work->copies[j],
                                   .dst = work->dst + dst_offset,
                                   .src = { work->src + src_offset },
                                   .dst_offset = dst_offset,
                                   .param_bytes = work->in_bytes };
    work->run = run_jobs;
    heft_status_t status = heft__copy_prepare(copy, &work->copies[j], err);
    work->bytes += status == HEFT_OK ? work->copies[j].bytes : 0;
    return status;
}

static heft_status_t prepare_contiguous(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft__copy_t copy = { .elem_bytes = 2,
                          .rank = 1,
                          .extent = { bytes / 2 },
                          .dst_stride = { 1 },
                          .src_stride = { 1 } };
    return add_copy(work, &copy, 0, 0, err);
}

/* Runs of run bytes; the steps in bytes. */
static heft__copy_t runs(int64_t n, int64_t run, int64_t dst_step, int64_t src_step)
{
    return (heft__copy_t){ .elem_bytes = 2,
                           .rank = 2,
                           .extent = { n, run / 2 },
                           .dst_stride = { dst_step / 2, 1 },
                           .src_stride = { src_step / 2, 1 } };
}

static heft_status_t prepare_scatter(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft__copy_t copy = runs(bytes / 1024, 256, 1024, 256);
    return add_copy(work, &copy, 0, 0, err);
}

static heft_status_t prepare_gather(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft__copy_t copy = runs(bytes / 1024, 256, 256, 1024);
    return add_copy(work, &copy, 0, 0, err);
}

static heft_status_t prepare_gather_4k(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft__copy_t copy = runs(bytes / 16384, 4096, 4096, 16384);
    return add_copy(work, &copy, 0, 0, err);
}

static heft_status_t prepare_column_split(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    int64_t n = bytes / 4096;
    for (int64_t k = 0; k < 4 && status == HEFT_OK; k++) {
        heft__copy_t copy = runs(n, 1024, 1024, 4096);
        status = add_copy(work, &copy, k * n * 1024, k * 1024, err);
    }
    return status;
}

static heft_status_t prepare_column_split_digest(work_t *work, int64_t bytes, heft_error_t *err)
{
    work->has_digest = true;
    return prepare_column_split(work, bytes, err);
}

static heft_status_t prepare_lane_interleave(work_t *work, int64_t bytes, heft_error_t *err)
{
    int64_t n = bytes / 512;
    heft__copy_t copy = runs(n, 256, 512, 256);
    heft_status_t status = add_copy(work, &copy, 0, 0, err);
    return status != HEFT_OK ? status : add_copy(work, &copy, 256, n * 256, err);
}

static heft_status_t prepare_unstack(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    int64_t n = bytes / (N_LAYERS * 256);
    for (int64_t k = 0; k < N_LAYERS && status == HEFT_OK; k++) {
        heft__copy_t copy = runs(n, 256, 256, N_LAYERS * 256);
        status = add_copy(work, &copy, k * n * 256, k * 256, err);
    }
    return status;
}

static heft_status_t prepare_unstack_digest(work_t *work, int64_t bytes, heft_error_t *err)
{
    work->has_digest = true;
    return prepare_unstack(work, bytes, err);
}

/* [rows, cols] to [cols, rows], about twice as many columns as rows. */
static heft_status_t prepare_transpose(work_t *work, int64_t bytes, uint32_t elem,
                                       heft_error_t *err)
{
    int64_t cols = 1024;
    while (cols * cols * 2 * elem <= bytes) {
        cols *= 2;
    }
    int64_t rows = bytes / (cols * elem);
    heft__copy_t copy = { .elem_bytes = elem,
                          .rank = 2,
                          .extent = { cols, rows },
                          .dst_stride = { rows, 1 },
                          .src_stride = { 1, cols } };
    return add_copy(work, &copy, 0, 0, err);
}

static heft_status_t prepare_transpose_8(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_transpose(work, bytes, 1, err);
}

static heft_status_t prepare_transpose_16(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_transpose(work, bytes, 2, err);
}

static heft_status_t prepare_transpose_32(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_transpose(work, bytes, 4, err);
}

static heft_status_t prepare_transpose_digest(work_t *work, int64_t bytes, heft_error_t *err)
{
    work->has_digest = true;
    return prepare_transpose(work, bytes, 2, err);
}

/* Every second element, as in rotary embeddings. */
static heft_status_t prepare_deinterleave(work_t *work, int64_t bytes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (int64_t k = 0; k < 2 && status == HEFT_OK; k++) {
        heft__copy_t copy = { .elem_bytes = 2,
                              .rank = 2,
                              .extent = { bytes / 256, 64 },
                              .dst_stride = { 128, 1 },
                              .src_stride = { 128, 2 } };
        status = add_copy(work, &copy, k * 128, k * 2, err);
    }
    return status;
}

static heft_status_t add_transform(work_t *work, const heft__transform_t *transform,
                                   heft_error_t *err)
{
    work->jobs[0] = (heft__job_t){ .transform = &work->transform,
                                   .dst = work->dst,
                                   .src = { work->src, work->src } };
    work->n_jobs = 1;
    work->run = run_jobs;
    heft_status_t status = heft__transform_prepare(transform, &work->transform, err);
    if (status == HEFT_OK) {
        int64_t in = heft_dtype_get_unit_bytes(transform->src_dtype[0]);
        int64_t out = heft_dtype_get_unit_bytes(transform->dst_dtype);
        work->bytes = work->transform.bytes / out * (in + out) / 2;
    }
    return status;
}

static heft_status_t prepare_cast(work_t *work, int64_t n, heft_dtype_t dst_dtype,
                                  heft_dtype_t src_dtype, heft_error_t *err)
{
    heft__transform_t cast = { .dst_dtype = dst_dtype,
                               .n_srcs = 1,
                               .n_ops = 1,
                               .rank = 1,
                               .src_dtype = { src_dtype },
                               .extent = { n },
                               .dst_stride = { 1 },
                               .src_stride = { { 1 } },
                               .ops = { { .code = HEFT_OP_LOAD } } };
    return add_transform(work, &cast, err);
}

static heft_status_t prepare_f32_bf16(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_cast(work, bytes / 4, HEFT_DTYPE_BF16, HEFT_DTYPE_F32, err);
}

static heft_status_t prepare_bf16_f32(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_cast(work, bytes / 4, HEFT_DTYPE_F32, HEFT_DTYPE_BF16, err);
}

static heft_status_t prepare_bf16_e4m3(work_t *work, int64_t bytes, heft_error_t *err)
{
    return prepare_cast(work, bytes / 4, HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_BF16, err);
}

/* f32 [rows, cols] to bf16 [cols, rows]. */
static heft_status_t prepare_cast_transpose(work_t *work, int64_t bytes, heft_error_t *err)
{
    int64_t cols = 1024;
    while (cols * cols * 8 <= bytes) {
        cols *= 2;
    }
    int64_t rows = bytes / (cols * 4);
    heft__transform_t cast = { .dst_dtype = HEFT_DTYPE_BF16,
                               .n_srcs = 1,
                               .n_ops = 1,
                               .rank = 2,
                               .src_dtype = { HEFT_DTYPE_F32 },
                               .extent = { rows, cols },
                               .dst_stride = { 1, rows },
                               .src_stride = { { cols, 1 } },
                               .ops = { { .code = HEFT_OP_LOAD } } };
    return add_transform(work, &cast, err);
}

/* fp8 weight times an f32 scale for each row, to bf16. */
static heft_status_t prepare_dequantise(work_t *work, int64_t bytes, heft_error_t *err)
{
    int64_t rows = bytes / 4 / 4096;
    heft__transform_t dequantise = { .dst_dtype = HEFT_DTYPE_BF16,
                                     .n_srcs = 2,
                                     .n_ops = 3,
                                     .rank = 2,
                                     .src_dtype = { HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F32 },
                                     .extent = { rows, 4096 },
                                     .dst_stride = { 4096, 1 },
                                     .src_stride = { { 4096, 1 }, { 1, 0 } },
                                     .ops = { { .code = HEFT_OP_LOAD },
                                              { .code = HEFT_OP_LOAD, .arg = 1 },
                                              { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } } };
    return add_transform(work, &dequantise, err);
}

#define QUANTISE_COLS 4096
#define QUANTISE_BLOCK 128

/* bf16 [rows, 4096] to e4m3 in blocks of 128 x 128, scales behind the codes; a part is some rows of
 * blocks. */
static void run_quantise(const work_t *work, uint32_t part, uint32_t n_parts)
{
    const heft__quantise_t q = { .src_dtype = HEFT_DTYPE_BF16,
                                 .scale_dtype = HEFT_DTYPE_F32,
                                 .rule = HEFT__SCALE_DEEPSEEK,
                                 .n_cols = QUANTISE_COLS,
                                 .block_cols = QUANTISE_BLOCK };
    int64_t row = QUANTISE_BLOCK * QUANTISE_COLS; /* elements of a row of blocks */
    int64_t n = work->in_bytes / 2 / row;
    for (int64_t b = n * part / n_parts; b < n * (part + 1) / n_parts; b++) {
        uint32_t amax[QUANTISE_COLS / QUANTISE_BLOCK] = { 0 };
        const uint8_t *src = work->src + b * row * 2;
        heft__quantise_scan(&q, src, QUANTISE_COLS * 2, QUANTISE_BLOCK, amax);
        heft__quantise_rows(&q, amax, src, QUANTISE_COLS * 2, QUANTISE_BLOCK, work->dst + b * row);
        for (int k = 0; k < QUANTISE_COLS / QUANTISE_BLOCK; k++) {
            heft__quantise_factor_t factor;
            result_sink = heft__quantise_scale(&q, amax[k], &factor);
        }
    }
}

static heft_status_t prepare_quantise(work_t *work, int64_t bytes, heft_error_t *err)
{
    (void)err;
    int64_t row = QUANTISE_BLOCK * QUANTISE_COLS * 2;
    work->in_bytes = bytes / row * row;
    work->bytes = work->in_bytes / 4 * 3; /* the mean of both sides */
    work->run = run_quantise;
    return HEFT_OK;
}

/* fp8 weight times an f32 scale for each block of 128 x 128, to bf16. */
static heft_status_t prepare_dequantise_blocks(work_t *work, int64_t bytes, heft_error_t *err)
{
    int64_t block = QUANTISE_BLOCK;
    int64_t cols = QUANTISE_COLS;
    int64_t rows = bytes / 4 / cols / block * block;
    heft__transform_t dequantise = { .dst_dtype = HEFT_DTYPE_BF16,
                                     .n_srcs = 2,
                                     .n_ops = 3,
                                     .rank = 4,
                                     .src_dtype = { HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F32 },
                                     .extent = { rows / block, block, cols / block, block },
                                     .dst_stride = { block * cols, cols, block, 1 },
                                     .src_stride = { { block * cols, cols, block, 1 },
                                                     { cols / block, 0, 1, 0 } },
                                     .ops = { { .code = HEFT_OP_LOAD },
                                              { .code = HEFT_OP_LOAD, .arg = 1 },
                                              { .code = HEFT_OP_MUL, .dtype = HEFT_DTYPE_F32 } } };
    return add_transform(work, &dequantise, err);
}

static heft_status_t prepare_bytes(work_t *work, run_t run)
{
    work->run = run;
    work->bytes = work->in_bytes;
    return HEFT_OK;
}

static heft_status_t prepare_memcpy(work_t *work, int64_t bytes, heft_error_t *err)
{
    (void)bytes;
    (void)err;
    return prepare_bytes(work, run_memcpy);
}

static heft_status_t prepare_crc(work_t *work, int64_t bytes, heft_error_t *err)
{
    (void)bytes;
    (void)err;
    return prepare_bytes(work, run_crc32c_copy);
}

static heft_status_t prepare_crc64(work_t *work, int64_t bytes, heft_error_t *err)
{
    (void)bytes;
    (void)err;
    return prepare_bytes(work, run_crc64_copy);
}

static heft_status_t prepare_crc64_read(work_t *work, int64_t bytes, heft_error_t *err)
{
    (void)bytes;
    (void)err;
    return prepare_bytes(work, run_crc64);
}

static const bench_t benches[] = {
    { "memcpy", "the C library's memcpy of one buffer", 0, prepare_memcpy },
    { "copy_contiguous", "one contiguous copy", 0.95, prepare_contiguous },
    { "scatter_256", "dense source to 256 bytes of every 1 KiB", 0.9, prepare_scatter },
    { "gather_256", "256 bytes of every 1 KiB to a dense destination", 0, prepare_gather },
    { "gather_4096", "4 KiB of every 16 KiB to a dense destination", 0, prepare_gather_4k },
    { "column_split", "four column slices of 1 KiB in one pass over the source", 0.85,
      prepare_column_split },
    { "column_split_crc64", "the same with the digest of each slice", 0,
      prepare_column_split_digest },
    { "lane_interleave", "2 x [K, N] to [K, 2 N] in lanes of 128 16-bit elements", 0.9,
      prepare_lane_interleave },
    { "unstack_axis1", "[K, 48, 128] of 16 bits to 48 x [K, 128] in one pass over the source", 0.9,
      prepare_unstack },
    { "unstack_axis1_crc64", "the same with the digest of each layer", 0, prepare_unstack_digest },
    { "transpose_16", "transpose of 16-bit elements", 0.45, prepare_transpose_16 },
    { "transpose_8", "transpose of 8-bit elements", 0, prepare_transpose_8 },
    { "transpose_32", "transpose of 32-bit elements", 0, prepare_transpose_32 },
    { "transpose_16_crc64", "transpose of 16-bit elements with digest", 0,
      prepare_transpose_digest },
    { "deinterleave_16", "even and odd 16-bit elements of rows of 128 to halves", 0,
      prepare_deinterleave },
    { "cast_f32_bf16", "f32 to bf16, nearest even", 0.7, prepare_f32_bf16 },
    { "cast_bf16_f32", "bf16 to f32", 0, prepare_bf16_f32 },
    { "cast_bf16_e4m3", "bf16 to f8_e4m3, saturating", 0, prepare_bf16_e4m3 },
    { "cast_transpose", "f32 [R, C] to bf16 [C, R]", 0, prepare_cast_transpose },
    { "dequantise_e4m3", "f8_e4m3 times an f32 scale per row, to bf16", 0, prepare_dequantise },
    { "dequantise_blocks", "f8_e4m3 times an f32 scale per 128 x 128 block, to bf16", 0,
      prepare_dequantise_blocks },
    { "quantise_blocks", "bf16 to f8_e4m3 and scales, 128 x 128 blocks", 0, prepare_quantise },
    { "crc_copy", "copy with CRC-32C in one pass", 0.85, prepare_crc },
    { "crc64_copy", "copy with CRC-64 in one pass", 0, prepare_crc64 },
    { "crc64_read", "CRC-64 of one buffer", 0, prepare_crc64_read },
};
#define N_BENCHES (sizeof benches / sizeof benches[0])

/* ---- timing ---- */

typedef struct share_arg {
    const work_t *work;
    uint32_t part;
    uint32_t n_parts;
} share_arg_t;

static void *run_share(void *arg)
{
    const share_arg_t *s = arg;
    s->work->run(s->work, s->part, s->n_parts);
    return NULL;
}

/* One thread is timed by its own clock, which stops while another process has the core; several by
 * the wall's. */
static double now(uint32_t n_threads)
{
    struct timespec t;
    (void)clock_gettime(n_threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of one run; a thread that cannot be started has its share run here. */
static double time_run(const work_t *work, uint32_t n_threads)
{
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = { false };
    share_arg_t args[MAX_THREADS];
    double begin = now(n_threads);
    for (uint32_t t = 0; t < n_threads; t++) {
        args[t] = (share_arg_t){ .work = work, .part = t, .n_parts = n_threads };
        started[t] = t > 0 && pthread_create(&threads[t], NULL, run_share, &args[t]) == 0;
    }
    for (uint32_t t = 0; t < n_threads; t++) {
        if (!started[t]) {
            (void)run_share(&args[t]);
        }
    }
    for (uint32_t t = 1; t < n_threads; t++) {
        if (started[t]) {
            (void)pthread_join(threads[t], NULL);
        }
    }
    return now(n_threads) - begin;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int32_t n)
{
    qsort(values, (size_t)n, sizeof values[0], by_value);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

typedef struct rates {
    double rate[MAX_RUNS];
    double ratio[MAX_RUNS];
} rates_t;

typedef struct buffers {
    uint8_t *map[2];
    size_t map_bytes;
    uint8_t *src;
    uint8_t *dst;
    int64_t bytes;
} buffers_t;

static void init_work(work_t *work, const buffers_t *buffers)
{
    memset(work, 0, sizeof *work);
    work->dst = buffers->dst;
    work->src = buffers->src;
    work->in_bytes = buffers->bytes;
}

static heft_status_t run_round(const heft_bench_opts_t *opts, const buffers_t *buffers,
                               work_t *works, rates_t *rates, int32_t round)
{
    work_t copy;
    init_work(&copy, buffers);
    (void)prepare_bytes(&copy, run_memcpy);
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (works[i].run == NULL) {
            continue;
        }
        double base = (double)copy.bytes / time_run(&copy, opts->n_threads);
        double rate = (double)works[i].bytes / time_run(&works[i], opts->n_threads);
        rates[i].rate[round] = rate * 1e-9;
        rates[i].ratio[round] = rate / base;
    }
    return HEFT_OK;
}

static void report(const work_t *works, rates_t *rates, int32_t runs, heft_bench_sink_t sink,
                   void *arg)
{
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (works[i].run == NULL) {
            continue;
        }
        double ratio = median(rates[i].ratio, runs); /* sorts */
        heft_bench_result_t result = { .name = benches[i].name,
                                       .text = benches[i].text,
                                       .gb_per_s = median(rates[i].rate, runs),
                                       .ratio = ratio,
                                       .ratio_min = rates[i].ratio[0],
                                       .ratio_max = rates[i].ratio[runs - 1],
                                       .aim = benches[i].aim,
                                       .bytes = works[i].bytes,
                                       .runs = runs };
        sink(arg, &result);
    }
}

/* ---- set-up ---- */

static heft_status_t map_buffers(buffers_t *buffers, int64_t bytes, heft_error_t *err)
{
    buffers->bytes = bytes;
    buffers->map_bytes = (size_t)bytes + HUGE_PAGE;
    for (int i = 0; i < 2; i++) {
        void *map = mmap(NULL, buffers->map_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) {
            return heft__error_nomem(err, buffers->map_bytes);
        }
        buffers->map[i] = map;
        uintptr_t address = ((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        uint8_t *start = buffers->map[i] + (address - (uintptr_t)map);
        (void)madvise(start, (size_t)bytes, MADV_HUGEPAGE); /* a wish; slower pages work as well */
        memset(start, 0x3c, (size_t)bytes);
        *(i == 0 ? &buffers->src : &buffers->dst) = start;
    }
    return HEFT_OK;
}

static void unmap_buffers(const buffers_t *buffers)
{
    for (int i = 0; i < 2; i++) {
        if (buffers->map[i] != NULL) {
            (void)munmap(buffers->map[i], buffers->map_bytes);
        }
    }
}

static heft_status_t prepare_all(work_t *works, const buffers_t *buffers, const char *only,
                                 heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < N_BENCHES && status == HEFT_OK; i++) {
        init_work(&works[i], buffers);
        if (only == NULL || strcmp(only, benches[i].name) == 0) {
            status = benches[i].prepare(&works[i], buffers->bytes, err);
        }
    }
    return status;
}

/* The first run of each is not counted: it makes tables and warms the page tables. */
static heft_status_t measure(const heft_bench_opts_t *opts, const buffers_t *buffers, work_t *works,
                             rates_t *rates)
{
    heft_status_t status = HEFT_OK;
    for (int32_t round = -1; round < opts->runs && status == HEFT_OK; round++) {
        status = run_round(opts, buffers, works, rates, round < 0 ? 0 : round);
    }
    return status;
}

const char *heft_bench_get_name(uint32_t i)
{
    return i < N_BENCHES ? benches[i].name : NULL;
}

static heft_status_t load_opts(const heft_bench_opts_t *opts, heft_bench_opts_t *out,
                               heft_error_t *err)
{
    heft_bench_opts_t loaded = HEFT_BENCH_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "bench options", err);
    if (status != HEFT_OK) {
        return status;
    }
    loaded.bytes = loaded.bytes == 0 ? (int64_t)1 << 30 : loaded.bytes;
    loaded.runs = loaded.runs == 0 ? 5 : loaded.runs;
    loaded.n_threads = loaded.n_threads == 0 ? 1 : loaded.n_threads;
    if (loaded.bytes < MIN_BYTES || loaded.bytes > (int64_t)1 << 40) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "bench of %lld bytes, at least %lld",
                               (long long)loaded.bytes, (long long)MIN_BYTES);
    }
    if (loaded.runs < 1 || loaded.runs > MAX_RUNS || loaded.n_threads > MAX_THREADS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "bench of %d runs with %u threads, at most %d and %d",
                               (int)loaded.runs, loaded.n_threads, MAX_RUNS, MAX_THREADS);
    }
    bool found = loaded.only == NULL;
    for (size_t i = 0; i < N_BENCHES; i++) {
        found = found || strcmp(loaded.only, benches[i].name) == 0;
    }
    if (!found) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "no benchmark \"%s\"", loaded.only);
    }
    *out = loaded;
    return HEFT_OK;
}

heft_status_t heft_bench_run(const heft_bench_opts_t *opts, heft_bench_sink_t sink, void *arg,
                             heft_error_t *err)
{
    heft_bench_opts_t loaded;
    heft_status_t status = load_opts(opts, &loaded, err);
    if (status != HEFT_OK) {
        return status;
    }
    buffers_t buffers = { .bytes = 0 };
    work_t *works = heft__calloc(N_BENCHES, sizeof *works);
    rates_t *rates = heft__calloc(N_BENCHES, sizeof *rates);
    if (works == NULL || rates == NULL) {
        status = heft__error_nomem(err, N_BENCHES * (sizeof *works + sizeof *rates));
        goto free_all;
    }
    status = map_buffers(&buffers, loaded.bytes, err);
    if (status == HEFT_OK) {
        status = prepare_all(works, &buffers, loaded.only, err);
    }
    if (status == HEFT_OK) {
        status = measure(&loaded, &buffers, works, rates);
    }
    if (status == HEFT_OK) {
        report(works, rates, loaded.runs, sink, arg);
    }

free_all:
    unmap_buffers(&buffers);
    heft__free(rates);
    heft__free(works);
    return status;
}
