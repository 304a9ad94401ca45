/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Definers: the pieces that define a buffer at some point of the walk, found by interval. Private
 * to tape.
 *
 * Entries are kept in blocks of at most a few dozen, sorted by their first element; a block knows
 * the largest last element in it. Finding what touches an interval skips whole blocks; adding moves
 * at most one block. Thousands of disjoint writes to one parameter so cost a few comparisons each.
 */
#ifndef HEFT_TAPE_DEFINERS_H
#define HEFT_TAPE_DEFINERS_H

#include "tape/tape.h"

typedef struct heft__definer {
    int64_t first; /* least and largest element it defines */
    int64_t last;
    uint32_t strip; /* index of the piece */
} heft__definer_t;

typedef struct heft__definer_block {
    heft__definer_t *items;
    uint32_t n;
    uint32_t cap;
    int64_t max_last;
} heft__definer_block_t;

typedef struct heft__definers {
    heft__definer_block_t *blocks;
    uint32_t n_blocks;
    uint32_t cap_blocks;
    uint32_t n;
} heft__definers_t;

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

/* list = the entries whose interval touches [first, last], in order. */
heft_status_t heft__definers_find(const heft__definers_t *definers, int64_t first, int64_t last,
                                  heft__definer_list_t *list, heft_error_t *err);

#endif
