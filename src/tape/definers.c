/* SPDX-License-Identifier: Apache-2.0 */
/* The index of definers: a sorted list of sorted blocks. */
#include "tape/definers.h"

#include <string.h>

enum { FIRST_CAP = 2, MAX_CAP = 64, MAX_TUNES = 8 };

/* ---- places ---- */

typedef struct spread {
    int64_t period;
    int64_t last; /* last element */
    int64_t span; /* what dimensions that are no whole periods add */
} spread_t;

static void spread_dim(spread_t *spread, int64_t extent, int64_t stride)
{
    int64_t reach = (extent - 1) * stride;
    spread->last += reach;
    spread->span += spread->period != 0 && stride % spread->period != 0 ? reach : 0;
}

/* Modulo the period a region is an interval, unless it wraps: then it may be anywhere. */
static heft__place_t make_place(int64_t first, const spread_t *spread)
{
    heft__place_t place = { .first = first, .last = spread->last };
    if (spread->period == 0) {
        place.key_first = first;
        place.key_last = spread->last;
        return place;
    }
    place.key_first = first % spread->period;
    place.key_last = place.key_first + spread->span;
    if (place.key_last >= spread->period) {
        place.key_first = 0;
        place.key_last = spread->period - 1;
    }
    return place;
}

heft__place_t heft__definers_place_box(const heft__definers_t *definers, const heft__box_t *box)
{
    spread_t spread = { .period = definers->period, .last = box->offset[0] };
    for (int k = 0; k < box->rank; k++) {
        spread_dim(&spread, box->dim[k].extent, box->dim[k].stride[0]);
    }
    return make_place(box->offset[0], &spread);
}

heft__place_t heft__definers_place_strip(const heft__definers_t *definers,
                                         const heft__strip_t *strip)
{
    const int64_t *map = heft__strip_map(strip, 0);
    spread_t spread = { .period = definers->period, .last = map[0] };
    for (int k = 0; k < strip->rank; k++) {
        spread_dim(&spread, strip->v[k], map[1 + k]);
    }
    return make_place(map[0], &spread);
}

/* ---- blocks ---- */

/* The last block that begins at or before `first`, or 0. */
static uint32_t find_block(const heft__definers_t *definers, int64_t first)
{
    uint32_t lo = 0;
    uint32_t hi = definers->n_blocks;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (definers->blocks[mid].items[0].place.key_first <= first) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static heft_status_t insert_block(heft__arena_t *arena, heft__definers_t *definers, uint32_t at,
                                  uint32_t cap, heft_error_t *err)
{
    heft__definer_t *items = heft__arena_alloc(arena, cap * sizeof *items);
    if (items == NULL) {
        return heft__error_nomem(err, cap * sizeof *items);
    }
    if (definers->n_blocks == definers->cap_blocks) {
        uint32_t more = definers->cap_blocks == 0 ? 1 : 2 * definers->cap_blocks;
        heft__definer_block_t *blocks = heft__arena_alloc(arena, more * sizeof *blocks);
        if (blocks == NULL) {
            return heft__error_nomem(err, more * sizeof *blocks);
        }
        if (definers->n_blocks > 0) {
            memcpy(blocks, definers->blocks, definers->n_blocks * sizeof *blocks);
        }
        definers->blocks = blocks;
        definers->cap_blocks = more;
    }
    memmove(&definers->blocks[at + 1], &definers->blocks[at],
            (definers->n_blocks - at) * sizeof *definers->blocks);
    definers->blocks[at] =
        (heft__definer_block_t){ .items = items, .n = 0, .cap = cap, .max_last = INT64_MIN };
    definers->n_blocks++;
    return HEFT_OK;
}

static void update_max(heft__definer_block_t *block)
{
    block->max_last = INT64_MIN;
    for (uint32_t i = 0; i < block->n; i++) {
        block->max_last = heft__max_i64(block->max_last, block->items[i].place.key_last);
    }
}

/* Room for one more in block b: more memory, or the upper half moved to a block of its own. */
static heft_status_t make_room(heft__arena_t *arena, heft__definers_t *definers, uint32_t b,
                               heft_error_t *err)
{
    heft__definer_block_t *block = &definers->blocks[b];
    if (block->cap < MAX_CAP) {
        uint32_t cap = 4 * block->cap < MAX_CAP ? 4 * block->cap : MAX_CAP;
        heft__definer_t *items = heft__arena_alloc(arena, cap * sizeof *items);
        if (items == NULL) {
            return heft__error_nomem(err, cap * sizeof *items);
        }
        memcpy(items, block->items, block->n * sizeof *items);
        block->items = items;
        block->cap = cap;
        return HEFT_OK;
    }
    heft_status_t status = insert_block(arena, definers, b + 1, MAX_CAP, err);
    if (status != HEFT_OK) {
        return status;
    }
    block = &definers->blocks[b];
    heft__definer_block_t *upper = &definers->blocks[b + 1];
    upper->n = block->n / 2;
    block->n -= upper->n;
    memcpy(upper->items, block->items + block->n, upper->n * sizeof *upper->items);
    update_max(block);
    update_max(upper);
    return HEFT_OK;
}

heft_status_t heft__definers_add(heft__arena_t *arena, heft__definers_t *definers,
                                 const heft__definer_t *item, heft_error_t *err)
{
    if (definers->n_blocks == 0) {
        heft_status_t status = insert_block(arena, definers, 0, FIRST_CAP, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    int64_t first = item->place.key_first;
    uint32_t b = find_block(definers, first);
    if (definers->blocks[b].n == definers->blocks[b].cap) {
        heft_status_t status = make_room(arena, definers, b, err);
        if (status != HEFT_OK) {
            return status;
        }
        b = find_block(definers, first);
    }
    heft__definer_block_t *block = &definers->blocks[b];
    uint32_t at = block->n;
    while (at > 0 && block->items[at - 1].place.key_first > first) {
        block->items[at] = block->items[at - 1];
        at--;
    }
    block->items[at] = *item;
    block->n++;
    block->max_last = heft__max_i64(block->max_last, item->place.key_last);
    definers->n++;
    return HEFT_OK;
}

static bool remove_from(heft__definers_t *definers, uint32_t b, uint32_t strip)
{
    heft__definer_block_t *block = &definers->blocks[b];
    uint32_t i = 0;
    while (i < block->n && block->items[i].strip != strip) {
        i++;
    }
    if (i == block->n) {
        return false;
    }
    memmove(&block->items[i], &block->items[i + 1], (block->n - i - 1) * sizeof *block->items);
    block->n--;
    definers->n--;
    if (block->n > 0) {
        update_max(block);
        return true;
    }
    memmove(block, block + 1, (definers->n_blocks - b - 1) * sizeof *block);
    definers->n_blocks--;
    return true;
}

void heft__definers_remove(heft__definers_t *definers, const heft__definer_t *item)
{
    /* entries with one key may reach into the blocks before */
    for (uint32_t b = find_block(definers, item->place.key_first) + 1; b > 0; b--) {
        if (remove_from(definers, b - 1, item->strip)) {
            return;
        }
    }
}

static heft_status_t push(heft__definer_list_t *list, const heft__definer_t *item,
                          heft_error_t *err)
{
    void *items = list->items;
    if (!heft__grow(&items, &list->cap, list->n + 1, sizeof *list->items)) {
        return heft__error_nomem(err, sizeof *list->items);
    }
    list->items = items;
    list->items[list->n++] = *item;
    return HEFT_OK;
}

heft_status_t heft__definers_find(const heft__definers_t *definers, const heft__place_t *place,
                                  heft__definer_list_t *list, heft_error_t *err)
{
    list->n = 0;
    for (uint32_t b = 0; b < definers->n_blocks; b++) {
        const heft__definer_block_t *block = &definers->blocks[b];
        if (block->items[0].place.key_first > place->key_last) {
            break;
        }
        for (uint32_t i = 0; block->max_last >= place->key_first && i < block->n; i++) {
            const heft__place_t *p = &block->items[i].place;
            if (p->key_first > place->key_last) {
                break;
            }
            bool may_meet = p->key_last >= place->key_first && p->last >= place->first &&
                            p->first <= place->last;
            heft_status_t status = may_meet ? push(list, &block->items[i], err) : HEFT_OK;
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

heft_status_t heft__definers_list(const heft__definers_t *definers, heft__definer_list_t *list,
                                  heft_error_t *err)
{
    list->n = 0;
    for (uint32_t b = 0; b < definers->n_blocks; b++) {
        const heft__definer_block_t *block = &definers->blocks[b];
        for (uint32_t i = 0; i < block->n; i++) {
            heft_status_t status = push(list, &block->items[i], err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

/* ---- tuning ---- */

/* The strides of box that leave gaps, each a period by which its likes may be told apart; the
 * choice-th of them, going round, or 0. */
static int64_t choose_period(const heft__box_t *box, uint32_t choice)
{
    int64_t periods[HEFT__BOX_DIMS];
    uint32_t n = 0;
    int64_t span = 0;
    for (int k = box->rank - 1; k >= 0; k--) {
        int64_t stride = box->dim[k].stride[0];
        if (stride > span + 1) {
            periods[n++] = stride;
        }
        span += (box->dim[k].extent - 1) * stride;
    }
    return n > 0 ? periods[choice % n] : 0;
}

heft_status_t heft__definers_tune(heft__arena_t *arena, heft__definers_t *definers,
                                  const heft__strip_t *strips, const heft__box_t *box,
                                  uint64_t n_wasted, uint32_t tune_after,
                                  heft__definer_list_t *list, heft_error_t *err)
{
    definers->n_wasted += n_wasted;
    uint64_t limit = tune_after > 0 ? tune_after : 64 + 4 * (uint64_t)definers->n;
    if (definers->n_wasted < limit || definers->n_tunes == MAX_TUNES) {
        return HEFT_OK;
    }
    int64_t period = choose_period(box, definers->n_tunes++);
    definers->n_wasted = 0;
    if (period == definers->period) {
        return HEFT_OK;
    }
    heft_status_t status = heft__definers_list(definers, list, err);
    definers->period = period;
    definers->n_blocks = 0;
    definers->n = 0;
    for (size_t i = 0; i < list->n && status == HEFT_OK; i++) {
        heft__definer_t item = list->items[i];
        item.place = heft__definers_place_strip(definers, &strips[item.strip]);
        status = heft__definers_add(arena, definers, &item, err);
    }
    return status;
}
