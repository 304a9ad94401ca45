/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences of two checkpoints. Tensors are compared in stretches of 64 MiB, each cut into blocks
 * that threads take from a counter; a block that memcmp finds equal costs one pass. Each thread
 * sums up for itself, and the sums are joined in thread order; the mean comes from exact sums (of
 * 128 bits), so the result does not depend on the threads.
 */
#include "exec/exec.h"
#include "format/format.h"
#include "heft/diff.h"

#include <stdatomic.h>
#include <string.h>

enum { BLOCK_BYTES = 256 << 10 };
#define STRETCH_BYTES (INT64_C(64) << 20)

__extension__ typedef unsigned __int128 sum_t;

typedef struct tally {
    int64_t n_differ;
    int64_t n_nan;
    uint64_t max_ulp;
    sum_t sum_ulp;
    int64_t first;
} tally_t;

/* ---- one element ---- */

typedef struct form {
    uint32_t bytes;
    bool is_packed;
    bool has_sign;  /* sign and magnitude */
    bool is_signed; /* two's complement */
    uint64_t sign;
    uint64_t nan_above; /* magnitudes above this are NaN; UINT64_MAX: there are none */
} form_t;

static form_t form_of(heft_dtype_t dtype)
{
    form_t f = { .bytes = heft_dtype_get_unit_bytes(dtype), .nan_above = UINT64_MAX };
    switch (dtype) {
    case HEFT_DTYPE_F16:
        f.nan_above = 0x7c00;
        break;
    case HEFT_DTYPE_BF16:
        f.nan_above = 0x7f80;
        break;
    case HEFT_DTYPE_F32:
        f.nan_above = 0x7f800000;
        break;
    case HEFT_DTYPE_F64:
        f.nan_above = 0x7ff0000000000000;
        break;
    case HEFT_DTYPE_F8_E4M3:
        f.nan_above = 0x7e;
        break;
    case HEFT_DTYPE_F8_E5M2:
        f.nan_above = 0x7c;
        break;
    case HEFT_DTYPE_F8_E8M0: /* a power of two, without a sign */
        f.nan_above = 0xfe;
        return f;
    case HEFT_DTYPE_I8:
    case HEFT_DTYPE_I16:
    case HEFT_DTYPE_I32:
    case HEFT_DTYPE_I64:
        f.is_signed = true;
        f.sign = UINT64_C(1) << (8 * f.bytes - 1);
        return f;
    case HEFT_DTYPE_F4:
    case HEFT_DTYPE_F6_E2M3:
    case HEFT_DTYPE_F6_E3M2:
        f.is_packed = true;
        return f;
    case HEFT_DTYPE_BOOL:
    case HEFT_DTYPE_U8:
    case HEFT_DTYPE_U16:
    case HEFT_DTYPE_U32:
    case HEFT_DTYPE_U64:
    case HEFT_DTYPE_NONE:
        return f;
    }
    f.has_sign = true;
    f.sign = UINT64_C(1) << (8 * f.bytes - 1);
    return f;
}

static bool is_nan(const form_t *f, uint64_t bits)
{
    return (f->has_sign ? bits & ~f->sign : bits) > f->nan_above;
}

/* Values between two elements: both zeros are one place. */
static uint64_t distance(const form_t *f, uint64_t a, uint64_t b)
{
    if (f->has_sign && ((a ^ b) & f->sign) != 0) {
        return (a & ~f->sign) + (b & ~f->sign);
    }
    if (f->is_signed) {
        a ^= f->sign; /* in the order of unsigned numbers now */
        b ^= f->sign;
    }
    return a > b ? a - b : b - a;
}

static void count_elem(const form_t *f, uint64_t a, uint64_t b, int64_t index, tally_t *t)
{
    if (t->n_differ++ == 0) {
        t->first = index;
    }
    if (is_nan(f, a) || is_nan(f, b)) {
        t->n_nan++;
        return;
    }
    uint64_t ulp = f->is_packed ? 0 : distance(f, a, b);
    t->max_ulp = ulp > t->max_ulp ? ulp : t->max_ulp;
    t->sum_ulp += ulp;
}

/* Elements [begin, end); indices must come ascending within a tally. */
static void count_range(const form_t *f, const void *a, const void *b, int64_t begin, int64_t end,
                        tally_t *t)
{
    const uint8_t *x = a;
    const uint8_t *y = b;
    int64_t step = BLOCK_BYTES / (int64_t)f->bytes / 64;
    for (int64_t i = begin; i < end; i += step) {
        int64_t n = heft__min_i64(step, end - i);
        int64_t at = i * (int64_t)f->bytes;
        if (memcmp(x + at, y + at, (size_t)(n * (int64_t)f->bytes)) == 0) {
            continue;
        }
        for (int64_t k = i; k < i + n; k++) {
            uint64_t p = heft__load_bits(a, k, f->bytes);
            uint64_t q = heft__load_bits(b, k, f->bytes);
            if (p != q) {
                count_elem(f, p, q, k, t);
            }
        }
    }
}

static void join(tally_t *to, const tally_t *from)
{
    if (from->n_differ > 0 && (to->n_differ == 0 || from->first < to->first)) {
        to->first = from->first;
    }
    to->n_differ += from->n_differ;
    to->n_nan += from->n_nan;
    to->max_ulp = from->max_ulp > to->max_ulp ? from->max_ulp : to->max_ulp;
    to->sum_ulp += from->sum_ulp;
}

static void conclude(const form_t *f, const void *a, const void *b, int64_t n_elems,
                     const tally_t *t, heft_tensor_diff_t *out)
{
    *out = (heft_tensor_diff_t){ .n_elems = n_elems,
                                 .n_differ = t->n_differ,
                                 .n_nan = t->n_nan,
                                 .max_ulp = t->max_ulp,
                                 .first = -1 };
    int64_t n = t->n_differ - t->n_nan;
    out->mean_ulp = n > 0 ? (double)t->sum_ulp / (double)n : 0;
    if (t->n_differ > 0) {
        out->first = t->first;
        out->first_a = heft__load_bits(a, t->first, f->bytes);
        out->first_b = heft__load_bits(b, t->first, f->bytes);
    }
}

void heft_diff_tensors(heft_dtype_t dtype, const void *a, const void *b, int64_t n_elems,
                       heft_tensor_diff_t *diff_out)
{
    form_t f = form_of(dtype);
    tally_t t = { .first = -1 };
    if (f.bytes > 0) {
        count_range(&f, a, b, 0, n_elems, &t);
    }
    conclude(&f, a, b, n_elems, &t, diff_out);
}

/* ---- checkpoints ---- */

typedef struct differ {
    const heft_checkpoint_t *a;
    const heft_checkpoint_t *b;
    heft__pool_t *pool;
    heft__progress_t progress;
    heft_diff_fn_t fn;
    void *arg;
    tally_t *tallies; /* one for each thread */
    form_t form;      /* of the tensor at hand */
    const void *data_a;
    const void *data_b;
    int64_t end; /* of the stretch at hand, in elements */
    _Atomic int64_t next;
} differ_t;

static void count_blocks(void *arg, uint32_t thread)
{
    differ_t *d = arg;
    int64_t step = BLOCK_BYTES / (int64_t)d->form.bytes;
    for (;;) {
        /* relaxed: blocks are disjoint, and the pool's lock orders the tallies */
        int64_t begin = atomic_fetch_add_explicit(&d->next, step, memory_order_relaxed);
        if (begin >= d->end) {
            return;
        }
        count_range(&d->form, d->data_a, d->data_b, begin, heft__min_i64(begin + step, d->end),
                    &d->tallies[thread]);
    }
}

static heft_status_t canceled(heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_CANCELED, "canceled by the caller");
}

static heft_status_t diff_pair(differ_t *d, const heft_tensor_info_t *info,
                               heft_tensor_diff_t *diff_out, heft_error_t *err)
{
    d->form = form_of(info->dtype);
    int64_t bytes = (int64_t)d->form.bytes;
    int64_t n_elems = info->n_bytes / bytes;
    uint32_t n_threads = heft__pool_get_n_threads(d->pool);
    for (uint32_t t = 0; t < n_threads; t++) {
        d->tallies[t] = (tally_t){ .first = -1 };
    }
    for (int64_t begin = 0; begin < n_elems; begin = d->end) {
        d->end = heft__min_i64(begin + STRETCH_BYTES / bytes, n_elems);
        atomic_store_explicit(&d->next, begin, memory_order_relaxed);
        heft__pool_run(d->pool, count_blocks, d);
        int64_t n = (d->end - begin) * bytes;
        heft__drop_pages((const uint8_t *)d->data_a + begin * bytes, n);
        heft__drop_pages((const uint8_t *)d->data_b + begin * bytes, n);
        d->progress.done += n;
        if (!heft__progress_report(&d->progress, 0)) {
            return canceled(err);
        }
    }
    tally_t all = { .first = -1 };
    for (uint32_t t = 0; t < n_threads; t++) {
        join(&all, &d->tallies[t]);
    }
    conclude(&d->form, d->data_a, d->data_b, n_elems, &all, diff_out);
    return HEFT_OK;
}

static bool is_comparable(const heft_tensor_info_t *a, const heft_tensor_info_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

typedef heft_status_t (*pair_fn_t)(differ_t *d, uint32_t i, uint32_t k, heft_error_t *err);

/* Both manifests are in bytewise name order. */
static heft_status_t for_each_pair(differ_t *d, pair_fn_t fn, heft_error_t *err)
{
    const heft_manifest_t *ma = heft_checkpoint_get_manifest(d->a);
    const heft_manifest_t *mb = heft_checkpoint_get_manifest(d->b);
    heft_status_t status = HEFT_OK;
    uint32_t i = 0;
    uint32_t k = 0;
    while (status == HEFT_OK && i < heft_manifest_get_n_tensors(ma) &&
           k < heft_manifest_get_n_tensors(mb)) {
        int order = strcmp(heft__manifest_get(ma, i)->name, heft__manifest_get(mb, k)->name);
        if (order == 0) {
            status = fn(d, i, k, err);
        }
        i += order <= 0;
        k += order >= 0;
    }
    return status;
}

static heft_status_t add_bytes(differ_t *d, uint32_t i, uint32_t k, heft_error_t *err)
{
    (void)err;
    const heft_tensor_info_t *a = heft__manifest_get(heft_checkpoint_get_manifest(d->a), i);
    const heft_tensor_info_t *b = heft__manifest_get(heft_checkpoint_get_manifest(d->b), k);
    d->progress.total += is_comparable(a, b) ? a->n_bytes : 0;
    return HEFT_OK;
}

static heft_status_t visit_pair(differ_t *d, uint32_t i, uint32_t k, heft_error_t *err)
{
    const heft_tensor_info_t *a = heft__manifest_get(heft_checkpoint_get_manifest(d->a), i);
    const heft_tensor_info_t *b = heft__manifest_get(heft_checkpoint_get_manifest(d->b), k);
    heft_tensor_diff_t diff;
    bool has_diff = is_comparable(a, b);
    if (has_diff) {
        d->data_a = heft_checkpoint_get_data(d->a, i);
        d->data_b = heft_checkpoint_get_data(d->b, k);
        heft_status_t status = diff_pair(d, a, &diff, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return d->fn(d->arg, a, b, has_diff ? &diff : NULL) == 0 ? HEFT_OK : canceled(err);
}

heft_status_t heft_diff_checkpoints(const heft_checkpoint_t *a, const heft_checkpoint_t *b,
                                    const heft_diff_opts_t *opts, heft_diff_fn_t fn, void *arg,
                                    heft_error_t *err)
{
    if (a == NULL || b == NULL || fn == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is missing",
                               a == NULL   ? "a"
                               : b == NULL ? "b"
                                           : "fn");
    }
    heft_diff_opts_t known = HEFT_DIFF_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, &known, sizeof known, "heft_diff_opts_t", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(&known.reserved, sizeof known.reserved,
                                           "heft_diff_opts_t", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    differ_t d = { .a = a, .b = b, .fn = fn, .arg = arg };
    d.progress = (heft__progress_t){ .fn = known.progress, .arg = known.progress_arg };
    status = heft__pool_create(known.n_threads > 0 ? known.n_threads : 1, &d.pool, err);
    if (status != HEFT_OK) {
        return status;
    }
    size_t n_threads = heft__pool_get_n_threads(d.pool);
    d.tallies = heft__calloc(n_threads, sizeof *d.tallies);
    if (d.tallies == NULL) {
        status = heft__error_nomem(err, n_threads * sizeof *d.tallies);
    }
    if (status == HEFT_OK) {
        status = for_each_pair(&d, add_bytes, err);
    }
    if (status == HEFT_OK) {
        status = for_each_pair(&d, visit_pair, err);
    }
    heft__free(d.tallies);
    heft__pool_destroy(d.pool);
    return status;
}
