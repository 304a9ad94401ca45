/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Balance over hosts and ranks. Dealing one lot so that its takers come to one level, as water
 * would, makes the sum of squared loads as small as that lot can make it. Going through all lots
 * again and again, each given back before it is dealt anew, comes to the smallest sum that there
 * is, and that one has the smallest maximum, too. First hosts are the takers; then, of what each
 * host has been given, its ranks. Whole bytes, so that every side comes to the same shares.
 */
#include "plan/placement_hosts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SWEEPS = 200, SETTLED = 2000 }; /* moved in a sweep: less than a SETTLED-th of all */

/* One who takes of a lot. */
typedef struct taker {
    uint32_t who;
    size_t at; /* its share among all */
    int64_t load, before;
} taker_t;

typedef struct balance {
    const heft__lot_t *lots;
    size_t n_lots;
    const uint32_t *host_of;
    int64_t *load;  /* of hosts, then of ranks */
    int64_t *given; /* to the hosts of a lot: each in the place of its first rank's share */
    int64_t *share;
    taker_t *takers;
    uint32_t n_takers;
    uint64_t *seen; /* of each host: the last time that it was met */
    uint64_t now;
} balance_t;

static int by_load(const void *x, const void *y)
{
    const taker_t *a = x;
    const taker_t *b = y;
    if (a->load != b->load) {
        return a->load < b->load ? -1 : 1;
    }
    return a->who < b->who ? -1 : a->who > b->who;
}

/* Fill up those with the least until all bytes are in. */
static void pour(taker_t *takers, uint32_t n, int64_t bytes, int64_t *out)
{
    qsort(takers, n, sizeof *takers, by_load);
    int64_t sum = bytes;
    int64_t level;
    uint32_t k = 0;
    do {
        sum += takers[k++].load;
        level = sum / k;
    } while (k < n && takers[k].load < level);
    int64_t left = bytes;
    for (uint32_t i = 0; i < n; i++) {
        out[takers[i].at] = i < k ? level - takers[i].load : 0;
        left -= out[takers[i].at];
    }
    for (uint32_t i = 0; left > 0; i = i + 1 < k ? i + 1 : 0, left--) {
        out[takers[i].at]++;
    }
}

/* What the takers have of a lot is given back and dealt anew. How many bytes have moved. */
static int64_t deal(balance_t *b, int64_t bytes, int64_t *out)
{
    int64_t moved = 0;
    for (uint32_t i = 0; i < b->n_takers; i++) {
        taker_t *t = &b->takers[i];
        t->before = out[t->at];
        b->load[t->who] -= t->before;
    }
    for (uint32_t i = 0; i < b->n_takers; i++) {
        b->takers[i].load = b->load[b->takers[i].who];
    }
    pour(b->takers, b->n_takers, bytes, out);
    for (uint32_t i = 0; i < b->n_takers; i++) {
        const taker_t *t = &b->takers[i];
        b->load[t->who] += out[t->at];
        moved += out[t->at] > t->before ? out[t->at] - t->before : 0;
    }
    return moved;
}

static bool is_new_host(balance_t *b, uint32_t rank)
{
    uint64_t *seen = &b->seen[b->host_of[rank]];
    const bool is_new = *seen != b->now;
    *seen = b->now;
    return is_new;
}

static int64_t deal_to_hosts(balance_t *b, const heft__lot_t *lot)
{
    b->now++;
    b->n_takers = 0;
    for (uint32_t i = 0; i < lot->n_ranks; i++) {
        if (is_new_host(b, lot->ranks[i])) {
            b->takers[b->n_takers++] =
                (taker_t){ .who = b->host_of[lot->ranks[i]], .at = lot->first_share + i };
        }
    }
    return deal(b, lot->bytes, b->given);
}

/* Its ranks on the host of rank i, which is the first of them. */
static void take_ranks(balance_t *b, const heft__lot_t *lot, uint32_t i)
{
    const uint32_t host = b->host_of[lot->ranks[i]];
    b->n_takers = 0;
    for (uint32_t k = i; k < lot->n_ranks; k++) {
        if (b->host_of[lot->ranks[k]] == host) {
            b->takers[b->n_takers++] =
                (taker_t){ .who = lot->ranks[k], .at = lot->first_share + k };
        }
    }
}

static int64_t deal_to_ranks(balance_t *b, const heft__lot_t *lot)
{
    int64_t moved = 0;
    b->now++;
    for (uint32_t i = 0; i < lot->n_ranks; i++) {
        if (is_new_host(b, lot->ranks[i])) {
            take_ranks(b, lot, i);
            moved += deal(b, b->given[lot->first_share + i], b->share);
        }
    }
    return moved;
}

static void sweep(balance_t *b, int64_t (*deal_lot)(balance_t *b, const heft__lot_t *lot),
                  uint32_t n_loads)
{
    memset(b->load, 0, n_loads * sizeof *b->load);
    for (int i = 0; i < MAX_SWEEPS; i++) {
        int64_t moved = 0;
        int64_t all = 0;
        for (size_t k = 0; k < b->n_lots; k++) {
            moved += deal_lot(b, &b->lots[k]);
            all += b->lots[k].bytes;
        }
        if (moved <= all / SETTLED) {
            return;
        }
    }
}

heft_status_t heft__host_balance(const heft__lot_t *lots, size_t n_lots, const uint32_t *host_of,
                                 uint32_t n_ranks, int64_t *share, heft_error_t *err)
{
    size_t n_shares = 0;
    for (size_t k = 0; k < n_lots; k++) {
        n_shares += lots[k].n_ranks;
    }
    balance_t b = { .lots = lots, .n_lots = n_lots, .host_of = host_of, .share = share };
    b.load = heft__calloc((size_t)n_ranks + 1, sizeof *b.load);
    b.takers = heft__calloc((size_t)n_ranks + 1, sizeof *b.takers);
    b.given = heft__calloc(n_shares + 1, sizeof *b.given);
    b.seen = heft__calloc((size_t)n_ranks + 1, sizeof *b.seen);
    heft_status_t status = HEFT_OK;
    if (b.load == NULL || b.takers == NULL || b.given == NULL || b.seen == NULL) {
        status = heft__error_nomem(err, n_shares * sizeof *b.given);
    } else {
        memset(share, 0, n_shares * sizeof *share);
        sweep(&b, deal_to_hosts, n_ranks);
        sweep(&b, deal_to_ranks, n_ranks);
    }
    heft__free(b.load);
    heft__free(b.takers);
    heft__free(b.given);
    heft__free(b.seen);
    return status;
}
