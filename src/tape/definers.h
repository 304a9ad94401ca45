/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Definers: the pieces that define a buffer at some point of the walk, found by where they lie.
 * Private to tape.
 *
 * Entries are kept in blocks of at most a few dozen, sorted by their key interval; a block knows
 * the largest end in it. Finding what touches an interval skips whole blocks; adding moves at most
 * one block. The key interval is first to last element. Where that separates too little, as for
 * blocks of columns, whose intervals all overlap, it becomes the interval of elements modulo a
 * period, such as the length of a row.
 */
#ifndef HEFT_TAPE_DEFINERS_H
#define HEFT_TAPE_DEFINERS_H

#include "tape/tape.h"

/* Where a region lies: its interval, and the key under which it is sorted. */
typedef struct heft__place {
    int64_t first;
    int64_t last;
    int64_t key_first;
    int64_t key_last;
} heft__place_t;

typedef struct heft__definer {
    heft__place_t place;
    uint32_t strip; /* index of the piece */
} heft__definer_t;

typedef struct heft__definer_block {
    heft__definer_t *items;
    uint32_t n;
    uint32_t cap;
    int64_t max_last; /* largest key_last */
} heft__definer_block_t;

typedef struct heft__definers {
    heft__definer_block_t *blocks;
    uint32_t n_blocks;
    uint32_t cap_blocks;
    uint32_t n;
    uint32_t n_tunes;
    uint64_t n_wasted; /* entries found that had nothing to do with what was looked for */
    int64_t period;    /* 0: keys are plain intervals */
} heft__definers_t;

/* Where map 0 of a box or strip in normal form lies. */
heft__place_t heft__definers_place_box(const heft__definers_t *definers, const heft__box_t *box);
heft__place_t heft__definers_place_strip(const heft__definers_t *definers,
                                         const heft__strip_t *strip);

/* Memory comes from the arena and is not given back to it. */
heft_status_t heft__definers_add(heft__arena_t *arena, heft__definers_t *definers,
                                 const heft__definer_t *item, heft_error_t *err);
void heft__definers_remove(heft__definers_t *definers, const heft__definer_t *item);

/* A growable array of definers, reused from one query to the next. */
typedef struct heft__definer_list {
    heft__definer_t *items;
    size_t n;
    size_t cap;
} heft__definer_list_t;

/* list = the entries that may share elements with what lies at place, in order. */
heft_status_t heft__definers_find(const heft__definers_t *definers, const heft__place_t *place,
                                  heft__definer_list_t *list, heft_error_t *err);
/* list = all entries. */
heft_status_t heft__definers_list(const heft__definers_t *definers, heft__definer_list_t *list,
                                  heft_error_t *err);

/*
 * A search for box found n_wasted entries that share nothing with it. When that has happened
 * tune_after times (0: often enough to pay), sort the entries by another period, taken from box.
 * list is working memory.
 */
heft_status_t heft__definers_tune(heft__arena_t *arena, heft__definers_t *definers,
                                  const heft__strip_t *strips, const heft__box_t *box,
                                  uint64_t n_wasted, uint32_t tune_after,
                                  heft__definer_list_t *list, heft_error_t *err);

#endif
