/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging many strips into few.
 *
 * Three ways to merge, repeated until none finds anything:
 *   join   strips equal but for the extent of one dimension, where one starts where the other ends:
 *          one strip, the extents added;
 *   steps  strips equal but for their offsets, which advance by one constant step on every map: one
 *          strip with one more dimension;
 *   append a strip that is one more step, before or behind, of a dimension that another one has.
 * Joining comes first, since it makes runs longer. Strips are joined only within a family: equal
 * tag, rank, maps and strides. Most families of a large model have one member and cost one
 * comparison of a sort. Partners to join or append are found by hashing where strips start.
 */
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

typedef struct merge {
    heft__arena_t *arena;
    heft__strip_t *strips; /* v == NULL: merged into another */
    size_t n;
    uint32_t *slots; /* hash table of strips, 0 is empty, else index + 1 */
    size_t n_slots;  /* in use for this family: a power of two */
    size_t cap_slots;
    bool changed;
} merge_t;

static int compare_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Families together, in the order of the strides. */
static int compare_family(const heft__strip_t *a, const heft__strip_t *b)
{
    if (a->tag != b->tag) {
        return a->tag < b->tag ? -1 : 1;
    }
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    for (int m = 0; m < a->n_maps; m++) {
        const int64_t *sa = heft__strip_map(a, m) + 1;
        const int64_t *sb = heft__strip_map(b, m) + 1;
        for (int k = 0; k < a->rank; k++) {
            if (sa[k] != sb[k]) {
                return compare_i64(sa[k], sb[k]);
            }
        }
    }
    return 0;
}

static int64_t get_offset(const heft__strip_t *strip, int m)
{
    return *heft__strip_map(strip, m);
}

static int by_family_then_offset(const void *pa, const void *pb)
{
    const heft__strip_t *a = pa;
    const heft__strip_t *b = pb;
    int c = compare_family(a, b);
    return c != 0 ? c : compare_i64(get_offset(a, 0), get_offset(b, 0));
}

/* The same with equal extents side by side, for steps. */
static int by_shape_then_offset(const void *pa, const void *pb)
{
    const heft__strip_t *a = pa;
    const heft__strip_t *b = pb;
    int c = compare_family(a, b);
    for (int k = 0; k < a->rank && c == 0; k++) {
        c = compare_i64(a->v[k], b->v[k]);
    }
    return c != 0 ? c : compare_i64(get_offset(a, 0), get_offset(b, 0));
}

static int by_offset(const void *pa, const void *pb)
{
    const heft__strip_t *a = pa;
    const heft__strip_t *b = pb;
    return compare_i64(get_offset(a, 0), get_offset(b, 0));
}

/* Drop merged strips; the order of the others stays. */
static void squeeze(merge_t *merge)
{
    size_t n = 0;
    for (size_t i = 0; i < merge->n; i++) {
        if (merge->strips[i].v != NULL) {
            merge->strips[n++] = merge->strips[i];
        }
    }
    merge->n = n;
}

/* Store box in place of the strip `into`; its values grow only by arena memory. */
static heft_status_t replace(merge_t *merge, heft__strip_t *into, const heft__box_t *box,
                             heft_error_t *err)
{
    heft__strip_t strip = heft__strip_from_box(merge->arena, box);
    if (strip.v == NULL) {
        return heft__error_nomem(err, heft__strip_len(box->rank, box->n_maps) * sizeof *strip.v);
    }
    strip.tag = into->tag;
    strip.note = into->note;
    *into = strip;
    return HEFT_OK;
}

static heft_status_t renormalize(merge_t *merge, heft__strip_t *strip, heft_error_t *err)
{
    heft__box_t box;
    heft__strip_to_box(strip, &box);
    heft__box_normalize(&box, 0);
    return replace(merge, strip, &box, err);
}

/* ---- join ---- */

static uint64_t mix(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* Hash of the extents but that of dimension k, and of where the strip starts (at 0) or, along k,
 * ends (at its extent). */
static uint64_t hash_place(const heft__strip_t *strip, int k, int64_t at)
{
    uint64_t h = (uint64_t)k;
    for (int j = 0; j < strip->rank; j++) {
        h = mix(h, j == k ? -1 : strip->v[j]);
    }
    for (int m = 0; m < strip->n_maps; m++) {
        const int64_t *map = heft__strip_map(strip, m);
        h = mix(h, map[0] + at * map[1 + k]);
    }
    return h;
}

/* Does b begin, along dimension k, where a ends? Both are of one family. */
static bool follows(const heft__strip_t *a, const heft__strip_t *b, int k)
{
    for (int j = 0; j < a->rank; j++) {
        if (j != k && a->v[j] != b->v[j]) {
            return false;
        }
    }
    for (int m = 0; m < a->n_maps; m++) {
        const int64_t *map = heft__strip_map(a, m);
        if (get_offset(b, m) != map[0] + a->v[k] * map[1 + k]) {
            return false;
        }
    }
    return true;
}

/* false: out of memory. */
static bool make_table(merge_t *merge, size_t n)
{
    size_t n_slots = 16;
    while (n_slots < 2 * n) {
        n_slots *= 2;
    }
    if (merge->slots == NULL || n_slots > merge->cap_slots) {
        uint32_t *slots = heft__arena_alloc(merge->arena, n_slots * sizeof *slots);
        if (slots == NULL) {
            return false;
        }
        merge->slots = slots;
        merge->cap_slots = n_slots;
    }
    merge->n_slots = n_slots;
    memset(merge->slots, 0, merge->n_slots * sizeof *merge->slots);
    return true;
}

static void put_start(merge_t *merge, size_t i, int k)
{
    size_t mask = merge->n_slots - 1;
    size_t s = (size_t)hash_place(&merge->strips[i], k, 0) & mask;
    while (merge->slots[s] != 0) {
        s = (s + 1) & mask;
    }
    merge->slots[s] = (uint32_t)i + 1;
}

/* The strip that begins where strip i ends along k, or NULL. Merged ones are skipped. */
static heft__strip_t *find_follower(merge_t *merge, size_t i, int k)
{
    const heft__strip_t *strip = &merge->strips[i];
    size_t mask = merge->n_slots - 1;
    size_t s = (size_t)hash_place(strip, k, strip->v[k]) & mask;
    for (; merge->slots[s] != 0; s = (s + 1) & mask) {
        heft__strip_t *other = &merge->strips[merge->slots[s] - 1];
        if (other->v != NULL && other != strip && follows(strip, other, k)) {
            return other;
        }
    }
    return NULL;
}

/* Join along dimension k within the family [first, end), which is in ascending order of offset. */
static heft_status_t join_along(merge_t *merge, size_t first, size_t end, int k, heft_error_t *err)
{
    if (!make_table(merge, end - first)) {
        return heft__error_nomem(err, (end - first) * sizeof *merge->slots);
    }
    for (size_t i = first; i < end; i++) {
        if (merge->strips[i].v != NULL) {
            put_start(merge, i, k);
        }
    }
    for (size_t i = first; i < end; i++) {
        if (merge->strips[i].v == NULL) {
            continue;
        }
        heft__strip_t *next = find_follower(merge, i, k);
        for (; next != NULL; next = find_follower(merge, i, k)) {
            heft__strip_t *strip = &merge->strips[i];
            strip->v[k] += next->v[k];
            strip->note = strip->note < next->note ? strip->note : next->note;
            next->v = NULL;
            merge->changed = true;
        }
    }
    return HEFT_OK;
}

static heft_status_t join_family(merge_t *merge, size_t first, size_t end, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    bool changed_before = merge->changed;
    merge->changed = false;
    for (int k = merge->strips[first].rank - 1; k >= 0 && status == HEFT_OK; k--) {
        status = join_along(merge, first, end, k, err);
    }
    for (size_t i = first; merge->changed && i < end && status == HEFT_OK; i++) {
        if (merge->strips[i].v != NULL) {
            status = renormalize(merge, &merge->strips[i], err);
        }
    }
    merge->changed = merge->changed || changed_before;
    return status;
}

/* ---- steps ---- */

static bool same_shape(const heft__strip_t *a, const heft__strip_t *b)
{
    return compare_family(a, b) == 0 && memcmp(a->v, b->v, (size_t)a->rank * sizeof a->v[0]) == 0;
}

static bool same_step(const heft__strip_t *a, const heft__strip_t *b, const heft__strip_t *c)
{
    for (int m = 0; m < a->n_maps; m++) {
        if (get_offset(b, m) - get_offset(a, m) != get_offset(c, m) - get_offset(b, m)) {
            return false;
        }
    }
    return true;
}

/* How many of the strips [i, end) of one shape are steps of one new dimension. A strip is left for
 * the next run when it is nearer to the strip behind it. */
static size_t count_steps(const heft__strip_t *strips, size_t i, size_t end)
{
    if (i + 1 >= end) {
        return 1;
    }
    int64_t step = get_offset(&strips[i + 1], 0) - get_offset(&strips[i], 0);
    size_t n = 2;
    while (i + n < end && same_step(&strips[i + n - 2], &strips[i + n - 1], &strips[i + n])) {
        n++;
    }
    if (n == 2 && i + 2 < end &&
        get_offset(&strips[i + 2], 0) - get_offset(&strips[i + 1], 0) < step) {
        return 1;
    }
    return n;
}

static heft_status_t merge_steps(merge_t *merge, size_t i, size_t n, heft_error_t *err)
{
    heft__box_t box;
    heft__strip_t *first = &merge->strips[i];
    heft__strip_to_box(first, &box);
    heft__dim_t *dim = &box.dim[box.rank++];
    dim->extent = (int64_t)n;
    for (int m = 0; m < box.n_maps; m++) {
        dim->stride[m] = get_offset(&first[1], m) - get_offset(&first[0], m);
    }
    for (size_t j = 1; j < n; j++) {
        first->note = first->note < first[j].note ? first->note : first[j].note;
        first[j].v = NULL;
    }
    heft__box_normalize(&box, 0);
    merge->changed = true;
    return replace(merge, first, &box, err);
}

static heft_status_t steps_pass(merge_t *merge, heft_error_t *err)
{
    qsort(merge->strips, merge->n, sizeof *merge->strips, by_shape_then_offset);
    size_t first = 0;
    while (first < merge->n) {
        size_t end = first + 1;
        while (end < merge->n && same_shape(&merge->strips[first], &merge->strips[end])) {
            end++;
        }
        bool fits = merge->strips[first].rank < HEFT_MAX_DIMS;
        for (size_t i = first; fits && i < end;) {
            size_t n = count_steps(merge->strips, i, end);
            heft_status_t status = n > 1 ? merge_steps(merge, i, n, err) : HEFT_OK;
            if (status != HEFT_OK) {
                return status;
            }
            i += n;
        }
        first = end;
    }
    squeeze(merge);
    return HEFT_OK;
}

/* ---- append ---- */

/* Hash of a strip as if it had no dimension k (-1: as it is) and stood `steps` along k. */
static uint64_t hash_without(const heft__strip_t *strip, int k, int64_t steps)
{
    uint64_t h = strip->tag;
    for (int m = 0; m < strip->n_maps; m++) {
        const int64_t *map = heft__strip_map(strip, m);
        h = mix(h, map[0] + (k >= 0 ? steps * map[1 + k] : 0));
        for (int j = 0; j < strip->rank; j++) {
            h = j == k ? h : mix(h, map[1 + j]);
        }
    }
    for (int j = 0; j < strip->rank; j++) {
        h = j == k ? h : mix(h, strip->v[j]);
    }
    return h;
}

/* Is `one` the strip without dimension k, `steps` steps along it? */
static bool is_step(const heft__strip_t *strip, int k, int64_t steps, const heft__strip_t *one)
{
    if (one->tag != strip->tag || one->rank + 1 != strip->rank) {
        return false;
    }
    for (int j = 0; j < one->rank; j++) {
        if (one->v[j] != strip->v[j < k ? j : j + 1]) {
            return false;
        }
    }
    for (int m = 0; m < strip->n_maps; m++) {
        const int64_t *map = heft__strip_map(strip, m);
        const int64_t *other = heft__strip_map(one, m);
        if (other[0] != map[0] + steps * map[1 + k]) {
            return false;
        }
        for (int j = 0; j < one->rank; j++) {
            if (other[1 + j] != map[1 + (j < k ? j : j + 1)]) {
                return false;
            }
        }
    }
    return true;
}

static heft__strip_t *find_step(merge_t *merge, const heft__strip_t *strip, int k, int64_t steps)
{
    size_t mask = merge->n_slots - 1;
    size_t s = (size_t)hash_without(strip, k, steps) & mask;
    for (; merge->slots[s] != 0; s = (s + 1) & mask) {
        heft__strip_t *other = &merge->strips[merge->slots[s] - 1];
        if (other->v != NULL && is_step(strip, k, steps, other)) {
            return other;
        }
    }
    return NULL;
}

/* Take in every strip that continues this one along k, at either end. */
static bool append_along(merge_t *merge, heft__strip_t *strip, int k)
{
    bool changed = false;
    for (int end = 0; end < 2; end++) {
        heft__strip_t *one = find_step(merge, strip, k, end == 0 ? strip->v[k] : -1);
        for (; one != NULL; one = find_step(merge, strip, k, end == 0 ? strip->v[k] : -1)) {
            for (int m = 0; end == 1 && m < strip->n_maps; m++) {
                *heft__strip_map(strip, m) = get_offset(one, m);
            }
            strip->v[k]++;
            strip->note = strip->note < one->note ? strip->note : one->note;
            one->v = NULL;
            changed = true;
        }
    }
    return changed;
}

/* The strips [first, end) have one tag. */
static heft_status_t append_group(merge_t *merge, size_t first, size_t end, heft_error_t *err)
{
    if (!make_table(merge, end - first)) {
        return heft__error_nomem(err, (end - first) * sizeof *merge->slots);
    }
    for (size_t i = first; i < end; i++) {
        size_t mask = merge->n_slots - 1;
        size_t s = (size_t)hash_without(&merge->strips[i], -1, 0) & mask;
        while (merge->slots[s] != 0) {
            s = (s + 1) & mask;
        }
        merge->slots[s] = (uint32_t)i + 1;
    }
    heft_status_t status = HEFT_OK;
    for (size_t i = first; i < end && status == HEFT_OK; i++) {
        heft__strip_t *strip = &merge->strips[i];
        bool changed = false;
        for (int k = 0; strip->v != NULL && k < strip->rank; k++) {
            changed = append_along(merge, strip, k) || changed;
        }
        if (changed) {
            merge->changed = true;
            status = renormalize(merge, strip, err);
        }
    }
    return status;
}

/* Strips are in the order of steps_pass: by tag, then by rank. */
static heft_status_t append_pass(merge_t *merge, heft_error_t *err)
{
    size_t first = 0;
    while (first < merge->n) {
        size_t end = first + 1;
        while (end < merge->n && merge->strips[end].tag == merge->strips[first].tag) {
            end++;
        }
        bool has_ranks = merge->strips[first].rank != merge->strips[end - 1].rank;
        heft_status_t status = has_ranks ? append_group(merge, first, end, err) : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
        first = end;
    }
    squeeze(merge);
    return HEFT_OK;
}

/* ---- all ---- */

static heft_status_t join_pass(merge_t *merge, heft_error_t *err)
{
    qsort(merge->strips, merge->n, sizeof *merge->strips, by_family_then_offset);
    size_t first = 0;
    while (first < merge->n) {
        size_t end = first + 1;
        while (end < merge->n && compare_family(&merge->strips[first], &merge->strips[end]) == 0) {
            end++;
        }
        heft_status_t status = end - first > 1 ? join_family(merge, first, end, err) : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
        first = end;
    }
    squeeze(merge);
    return HEFT_OK;
}

heft_status_t heft__strips_coalesce(heft__arena_t *arena, heft__strip_t *strips, size_t *n,
                                    heft_error_t *err)
{
    if (*n < 2) {
        return HEFT_OK;
    }
    merge_t merge = { .arena = arena, .strips = strips, .n = *n };
    do {
        merge.changed = false;
        heft_status_t status = join_pass(&merge, err);
        if (status == HEFT_OK && !merge.changed) {
            status = steps_pass(&merge, err);
        }
        if (status == HEFT_OK && !merge.changed) {
            status = append_pass(&merge, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
    } while (merge.changed && merge.n > 1);
    qsort(merge.strips, merge.n, sizeof *merge.strips, by_offset);
    *n = merge.n;
    return HEFT_OK;
}
