/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of elements of one tensor, one bit each: which elements are already known while a plan runs
 * backwards. Views are taken as runs of neighbouring elements (whatever order the view walks them
 * in), so that whole words are tested and set at a time.
 */
#include "exec/exec.h"

#include <stdlib.h>
#include <string.h>

/* ---- runs ---- */

typedef struct dim {
    int64_t extent;
    int64_t stride;
} dim_t;

static int by_stride_descending(const void *a, const void *b)
{
    int64_t x = ((const dim_t *)a)->stride;
    int64_t y = ((const dim_t *)b)->stride;
    return x < y ? 1 : x > y ? -1 : 0;
}

heft__runs_t heft__runs_from(int64_t offset, int rank, const int64_t *extent, const int64_t *stride)
{
    heft__runs_t runs = { .offset = offset, .run_elems = 1, .is_nested = true };
    dim_t dims[HEFT_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < rank; k++) {
        if (extent[k] == 0) {
            runs.run_elems = 0;
            return runs;
        }
        if (extent[k] == 1 || stride[k] == 0) {
            continue;
        }
        runs.offset += stride[k] < 0 ? (extent[k] - 1) * stride[k] : 0;
        dims[n++] =
            (dim_t){ .extent = extent[k], .stride = stride[k] < 0 ? -stride[k] : stride[k] };
    }
    qsort(dims, (size_t)n, sizeof dims[0], by_stride_descending);
    int64_t inner =
        0; /* what the dimensions seen so far (the inner ones) span beyond one element */
    for (int k = n - 1; k >= 0; k--) {
        runs.is_nested = runs.is_nested && dims[k].stride > inner;
        inner += (dims[k].extent - 1) * dims[k].stride;
        if (runs.n_dims == 0 && dims[k].stride == runs.run_elems) {
            runs.run_elems *= dims[k].extent;
        } else {
            runs.extent[runs.n_dims] = dims[k].extent; /* innermost first */
            runs.stride[runs.n_dims++] = dims[k].stride;
        }
    }
    return runs;
}

/* The next run's start after the one at *start; false after the last. */
static bool next_run(const heft__runs_t *runs, int64_t *index, int64_t *start)
{
    for (int k = 0; k < runs->n_dims; k++) {
        if (++index[k] < runs->extent[k]) {
            *start += runs->stride[k];
            return true;
        }
        *start -= (index[k] - 1) * runs->stride[k];
        index[k] = 0;
    }
    return false;
}

/* ---- bits ---- */

/* Bits [begin, end) of one word; 0 <= begin < end <= 64. */
static uint64_t word_mask(int64_t begin, int64_t end)
{
    return (UINT64_MAX << begin) & (UINT64_MAX >> (64 - end));
}

static void set_range(uint64_t *words, int64_t begin, int64_t end)
{
    while (begin < end) {
        int64_t w = begin / 64;
        int64_t stop = heft__min_i64(end, (w + 1) * 64);
        words[w] |= word_mask(begin % 64, stop - w * 64);
        begin = stop;
    }
}

static void test_range(const uint64_t *words, int64_t begin, int64_t end, bool *any_set,
                       bool *any_clear)
{
    while (begin < end && !(*any_set && *any_clear)) {
        int64_t w = begin / 64;
        int64_t stop = heft__min_i64(end, (w + 1) * 64);
        uint64_t mask = word_mask(begin % 64, stop - w * 64);
        *any_set = *any_set || (words[w] & mask) != 0;
        *any_clear = *any_clear || (words[w] & mask) != mask;
        begin = stop;
    }
}

/* ---- sets ---- */

heft_status_t heft__elems_reset(heft__elems_t *set, int64_t n_elems, heft_error_t *err)
{
    size_t n_words = (size_t)(n_elems / 64) + 1;
    void *items = set->words;
    if (!heft__grow(&items, &set->cap_words, n_words, sizeof *set->words)) {
        return heft__error_nomem(err, n_words * sizeof *set->words);
    }
    set->words = items;
    set->n_elems = n_elems;
    memset(set->words, 0, n_words * sizeof *set->words);
    return HEFT_OK;
}

void heft__elems_fini(heft__elems_t *set)
{
    heft__free(set->words);
    *set = (heft__elems_t){ 0 };
}

void heft__elems_add(heft__elems_t *set, const heft__runs_t *runs)
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    int64_t start = runs->offset;
    do {
        set_range(set->words, start, start + runs->run_elems);
    } while (next_run(runs, index, &start));
}

heft__elems_state_t heft__elems_test(const heft__elems_t *set, const heft__runs_t *runs)
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    int64_t start = runs->offset;
    bool any_set = false;
    bool any_clear = false;
    do {
        test_range(set->words, start, start + runs->run_elems, &any_set, &any_clear);
    } while (!(any_set && any_clear) && next_run(runs, index, &start));
    if (any_set) {
        return any_clear ? HEFT__ELEMS_SOME : HEFT__ELEMS_ALL;
    }
    return HEFT__ELEMS_NONE;
}

bool heft__elems_has(const heft__elems_t *set, int64_t elem)
{
    return (set->words[elem / 64] >> (elem % 64) & 1) != 0;
}

int64_t heft__elems_find_gap(const heft__elems_t *set, int64_t *begin_out, int64_t *end_out)
{
    int64_t n_missing = 0;
    int64_t begin = -1;
    int64_t end = -1;
    for (int64_t i = 0; i < set->n_elems; i++) {
        if (i % 64 == 0 && set->words[i / 64] == UINT64_MAX) {
            i += 63;
            continue;
        }
        if (heft__elems_has(set, i)) {
            continue;
        }
        n_missing++;
        if (begin < 0) {
            begin = i;
            end = i;
        }
        end += end == i ? 1 : 0;
    }
    if (n_missing > 0) {
        *begin_out = begin;
        *end_out = end;
    }
    return n_missing;
}
