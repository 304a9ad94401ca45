/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: strided copies, alone, in slabs, with digests and as jobs over one source, give what a
 * naive loop gives and touch nothing else. The bytes describe up to four copies; the current CPU
 * level is judged.
 */
#include "kernel/kernel_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COPIES 4
#define MAX_RANK 6
#define MAX_ELEMS 6000
#define GUARD 192

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *data;
    size_t size;
    size_t at;
} input_t;

static uint32_t take(input_t *in, uint32_t n)
{
    uint32_t v = in->at < in->size ? in->data[in->at++] : 0;
    return v % n;
}

typedef struct copy_case {
    heft__copy_t copy;
    heft__copy_plan_t plan;
    int64_t n_elems;
    int64_t dst_low; /* bytes the view reaches below and above its first element */
    int64_t dst_high;
    int64_t src_low;
    int64_t src_high;
    uint8_t *dst;    /* with guards; element (0, ..) at dst + GUARD + shift + dst_low */
    uint8_t *expect; /* the same, made by the naive loop */
    uint8_t *image;  /* written bytes, zeros elsewhere */
    int64_t dst_bytes;
    int64_t dst_base;
} copy_case_t;

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

static void die(const char *what)
{
    (void)fprintf(stderr, "kernel_copy: %s (level %s)\n", what,
                  heft__cpu_level_name(heft__cpu_get_level()));
    abort();
}

/* Strides of an injective layout: the dimensions in a random order, with gaps and signs. */
static void take_strides(input_t *in, const heft__copy_t *copy, int64_t *stride, bool is_src)
{
    int order[HEFT_MAX_DIMS];
    for (int k = 0; k < copy->rank; k++) {
        order[k] = k;
    }
    for (int k = copy->rank - 1; k > 0; k--) {
        int j = k - (int)take(in, (uint32_t)k + 1); /* 0: the natural order */
        int t = order[k];
        order[k] = order[j];
        order[j] = t;
    }
    int64_t span = 1;
    for (int i = copy->rank - 1; i >= 0; i--) {
        int k = order[i];
        uint32_t how = take(in, 16);
        span += how == 1 ? 1 : how == 2 ? 7 : how == 3 ? 64 : 0;
        stride[k] = how >= 12 ? -span : span;
        if (is_src && how == 4) {
            stride[k] = 0;
        } else {
            span *= copy->extent[k] > 0 ? copy->extent[k] : 1;
        }
    }
}

static void reach(const heft__copy_t *copy, const int64_t *stride, int64_t *low, int64_t *high)
{
    *low = 0;
    *high = copy->elem_bytes;
    for (int k = 0; k < copy->rank; k++) {
        int64_t span = (copy->extent[k] - 1) * stride[k] * copy->elem_bytes;
        *low -= span < 0 ? span : 0;
        *high += span > 0 ? span : 0;
    }
}

static void take_copy(input_t *in, copy_case_t *c)
{
    static const int64_t sizes[] = { 1,  2,  3,  4,  5,  7,   8,   15,  16,  17,  31,  32,
                                     33, 48, 63, 64, 65, 100, 128, 129, 257, 512, 700, 1030 };
    heft__copy_t *copy = &c->copy;
    *copy =
        (heft__copy_t){ .elem_bytes = 1u << take(in, 4), .rank = (int32_t)take(in, MAX_RANK + 1) };
    c->n_elems = 1;
    for (int k = 0; k < copy->rank; k++) {
        uint32_t pick = take(in, 240);
        copy->extent[k] = pick == 239 ? 0 : sizes[pick % 24];
        if (c->n_elems * copy->extent[k] > MAX_ELEMS) {
            copy->extent[k] = 1 + pick % 3;
        }
        c->n_elems *= copy->extent[k];
    }
    if (c->n_elems > 4 * MAX_ELEMS) {
        c->n_elems = copy->extent[0] = 0;
    }
    take_strides(in, copy, copy->dst_stride, false);
    take_strides(in, copy, copy->src_stride, true);
    reach(copy, copy->dst_stride, &c->dst_low, &c->dst_high);
    reach(copy, copy->src_stride, &c->src_low, &c->src_high);
    if (c->n_elems == 0) {
        c->dst_low = c->src_low = 0;
        c->dst_high = c->src_high = copy->elem_bytes;
    }
}

static void naive(const heft__copy_t *copy, int k, uint8_t *dst, const uint8_t *src)
{
    if (k == copy->rank) {
        memcpy(dst, src, copy->elem_bytes);
        return;
    }
    for (int64_t i = 0; i < copy->extent[k]; i++) {
        naive(copy, k + 1, dst + i * copy->dst_stride[k] * copy->elem_bytes,
              src + i * copy->src_stride[k] * copy->elem_bytes);
    }
}

static void make_buffers(copy_case_t *c, int64_t shift)
{
    int64_t bytes = c->dst_low + c->dst_high;
    c->dst_bytes = bytes + 2 * GUARD + 64;
    c->dst_base = GUARD + shift + c->dst_low;
    c->dst = must(aligned_alloc(64, ((size_t)c->dst_bytes + 63) / 64 * 64));
    c->expect = must(malloc((size_t)c->dst_bytes));
    c->image = must(calloc(1, (size_t)bytes));
    memset(c->dst, 0xa5, (size_t)c->dst_bytes);
    memset(c->expect, 0xa5, (size_t)c->dst_bytes);
}

static void free_buffers(copy_case_t *c)
{
    free(c->dst);
    free(c->expect);
    free(c->image);
}

/* Every slab through a range of its own or a few big ones, out of order. */
static uint64_t run_slabs(copy_case_t *c, const uint8_t *src, uint32_t how, bool nt)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__copy_part_t part = { .plan = &c->plan,
                               .dst = c->dst + c->dst_base,
                               .src = src,
                               .nt = nt,
                               .has_digest = (how & 1) != 0,
                               .digest_end = c->dst_high };
    int64_t n = c->plan.extent[0];
    int64_t step = how < 2 ? n : how < 4 ? (n + 2) / 3 : 5;
    uint64_t digest = 0;
    for (int64_t end = n; end > 0; end -= step) {
        part.begin = end > step ? end - step : 0;
        part.end = end;
        digest ^= heft__copy_part_run(ops, &part);
    }
    ops->fence();
    return digest;
}

static void run_jobs(copy_case_t *cases, uint32_t n, const uint8_t *const *srcs, uint32_t n_parts,
                     uint64_t *digests)
{
    heft__job_t jobs[MAX_COPIES];
    for (uint32_t k = 0; k < n; k++) {
        copy_case_t *c = &cases[k];
        jobs[k] = (heft__job_t){ .copy = &c->plan,
                                 .dst = c->dst + c->dst_base,
                                 .src = { srcs[k] },
                                 .dst_offset = c->dst_low,
                                 .param_bytes = c->dst_low + c->dst_high };
    }
    for (uint32_t part = n_parts; part-- > 0;) {
        heft__jobs_run(jobs, n, part, n_parts, digests);
    }
}

static void check(const copy_case_t *c, const uint8_t *src, bool has_digest, uint64_t digest)
{
    naive(&c->copy, 0, c->expect + c->dst_base, src);
    if (memcmp(c->dst, c->expect, (size_t)c->dst_bytes) != 0) {
        die("bytes differ");
    }
    naive(&c->copy, 0, c->image + c->dst_low, src);
    if (c->n_elems == 0) {
        memset(c->image, 0, (size_t)(c->dst_low + c->dst_high));
    }
    uint64_t want = heft__ops_scalar.crc64(0, c->image, c->dst_low + c->dst_high);
    if (has_digest && want != digest) {
        die("digest differs");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = { .data = data, .size = size };
    copy_case_t cases[MAX_COPIES];
    uint32_t how = take(&in, 8); /* 0..5: alone, in slabs; 6, 7: as jobs */
    uint32_t n_cases = how < 6 ? 1 : 1 + take(&in, MAX_COPIES);
    uint32_t n_parts = 1 + take(&in, 4);
    bool nt = take(&in, 2) != 0;
    int64_t src_shift = take(&in, 64);
    int64_t src_low = 0;
    int64_t src_high = 0;
    for (uint32_t k = 0; k < n_cases; k++) {
        take_copy(&in, &cases[k]);
        make_buffers(&cases[k], take(&in, 2) == 0 ? 0 : take(&in, 64));
        src_low = heft__max_i64(src_low, cases[k].src_low);
        src_high = heft__max_i64(src_high, cases[k].src_high);
        if (heft__copy_prepare(&cases[k].copy, &cases[k].plan, NULL) != HEFT_OK) {
            die("refused");
        }
    }
    uint8_t *memory = must(malloc((size_t)(src_low + src_high + src_shift)));
    uint32_t state = 1;
    for (int64_t i = 0; i < src_low + src_high + src_shift; i++) {
        state = state * 1664525u + 1013904223u;
        memory[i] = (uint8_t)(state >> 24);
    }
    uint64_t digests[MAX_COPIES] = { 0 };
    const uint8_t *srcs[MAX_COPIES];
    for (uint32_t k = 0; k < n_cases; k++) {
        srcs[k] = memory + src_shift + src_low;
    }
    if (how < 6) {
        digests[0] = run_slabs(&cases[0], srcs[0], how, nt);
    } else {
        run_jobs(cases, n_cases, srcs, n_parts, digests);
    }
    for (uint32_t k = 0; k < n_cases; k++) {
        check(&cases[k], srcs[k], how >= 6 || (how & 1) != 0, digests[k]);
        free_buffers(&cases[k]);
    }
    free(memory);
    return 0;
}
