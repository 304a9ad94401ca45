/* SPDX-License-Identifier: Apache-2.0 */
/* Spans are found once, from a set with one bit for each element that a piece writes. */
#include "sync/mask.h"

#include <string.h>

#include "exec/exec.h"
#include "kernel/kernel.h"

static heft_status_t mark_written(const heft_plan_t *plan, uint32_t rank_index, uint32_t param,
                                  int64_t n_elems, heft__elems_t *set, heft_error_t *err)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(plan, rank_index, param, &n);
    heft_status_t status = heft__elems_reset(set, n_elems, err);
    for (uint64_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft__runs_t runs = heft__runs_from(pieces[i].dst_offset, pieces[i].rank,
                                                  pieces[i].extent, pieces[i].dst_stride);
        if (runs.run_elems > 0) {
            heft__elems_add(set, &runs);
        }
    }
    return status;
}

static bool add_span(heft__mask_t *mask, size_t *cap, int64_t begin, int64_t end)
{
    void *items = mask->kept;
    if (!heft__grow(&items, cap, mask->n + 1, sizeof *mask->kept)) {
        return false;
    }
    mask->kept = items;
    mask->kept[mask->n++] = (heft__span_t){ .begin = begin, .end = end };
    return true;
}

static heft_status_t collect(const heft__elems_t *set, int64_t unit, heft__mask_t *mask,
                             heft_error_t *err)
{
    size_t cap = 0;
    for (int64_t i = 0; i < set->n_elems; i++) {
        if (i % 64 == 0 && set->words[i / 64] == UINT64_MAX) {
            i += 63;
            continue;
        }
        if (heft__elems_has(set, i)) {
            continue;
        }
        const int64_t begin = i;
        while (i < set->n_elems && !heft__elems_has(set, i)) {
            i++;
        }
        if (!add_span(mask, &cap, begin * unit, i * unit)) {
            return heft__error_nomem(err, (mask->n + 1) * sizeof *mask->kept);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__mask_init(const heft_plan_t *plan, uint32_t rank_index, uint32_t param,
                              heft__mask_t *mask_out, heft_error_t *err)
{
    heft__mask_t mask = { .n = 0 };
    heft_tensor_info_t info;
    heft__elems_t set = { 0 };
    if (heft_plan_get_n_kept(plan, rank_index, param) == 0) {
        *mask_out = mask;
        return HEFT_OK;
    }
    heft_status_t status = heft_plan_query_param(plan, rank_index, param, &info, err);
    if (status == HEFT_OK) {
        const int64_t unit = heft_dtype_get_unit_bytes(info.dtype);
        status = mark_written(plan, rank_index, param, info.n_bytes / unit, &set, err);
        if (status == HEFT_OK) {
            status = collect(&set, unit, &mask, err);
        }
    }
    heft__elems_fini(&set);
    if (status != HEFT_OK) {
        heft__mask_fini(&mask);
        return status;
    }
    *mask_out = mask;
    return HEFT_OK;
}

void heft__mask_fini(heft__mask_t *mask)
{
    heft__free(mask->kept);
    *mask = (heft__mask_t){ .n = 0 };
}

/* The first span that ends after byte `at`. */
static size_t find_span(const heft__mask_t *mask, int64_t at)
{
    size_t low = 0;
    size_t high = mask->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (mask->kept[middle].end <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t heft__mask_crc64(const heft__mask_t *mask, uint64_t crc, const uint8_t *data, int64_t at,
                          int64_t n)
{
    if (mask == NULL || mask->n == 0) {
        return heft__crc64_update(crc, data, n);
    }
    const int64_t end = at + n;
    for (size_t k = find_span(mask, at); at < end; k++) {
        const int64_t begin = k < mask->n ? heft__min_i64(mask->kept[k].begin, end) : end;
        const int64_t after = k < mask->n ? heft__min_i64(mask->kept[k].end, end) : end;
        if (at < begin) {
            crc = heft__crc64_update(crc, data, begin - at);
            data += begin - at;
            at = begin;
        }
        crc = heft__crc64_shift(crc, after - at);
        data += after - at;
        at = after;
    }
    return crc;
}

void heft__mask_copy(const heft__mask_t *mask, uint8_t *to, const uint8_t *from)
{
    for (size_t k = 0; k < mask->n; k++) {
        const heft__span_t *span = &mask->kept[k];
        memcpy(to + span->begin, from + span->begin, (size_t)(span->end - span->begin));
    }
}
