/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: late join. While no push is in flight, destinations that wait for the committed
 * version are fed by others that serve it: same contract (recipe, bindings, rank) and same
 * manifest, so that both hold the same parameters; that their plans agree is checked in the
 * preflight.
 *
 * The ticker begins a feed when whole engines can be completed by it. One that fails is tried again
 * after a while, from another feeder where there is one. A push that begins calls a feed off, as
 * far as it still can be, and waits for its end.
 */
#include "sync/coordinator.h"

#include <string.h>

#define MS INT64_C(1000000)
#define LOOK_NS (20 * MS) /* members may change with every message: looking has its price */
#define MIN_BACKOFF_NS (1000 * MS)
#define MAX_BACKOFF_NS (60 * 1000 * MS)

/* b can be fed by a, which must know what its parameters were made of. */
static bool is_alike(const heft__entry_t *a, const heft__entry_t *b)
{
    return a->bind.sources[0] != '\0' && strcmp(a->bind.contract, b->bind.contract) == 0 &&
           strcmp(a->bind.manifest, b->bind.manifest) == 0 &&
           heft__coordinator_have_common_transport(&a->identity, &b->identity);
}

/* Of those that can feed this one, the one that was asked the fewest times; UINT32_MAX: none. */
static uint32_t find_feeder(const heft_coordinator_t *c, uint32_t joiner, int64_t now_ns)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL && heft__round_may_feed(&c->round, i, now_ns) &&
            is_alike(c->entries[i], c->entries[joiner]) &&
            (best == UINT32_MAX || c->entries[i]->n_fed < c->entries[best]->n_fed)) {
            best = i;
        }
    }
    return best;
}

static bool is_joiner(const heft_coordinator_t *c, uint32_t slot, int64_t now_ns)
{
    return c->entries[slot] != NULL && heft__round_is_joiner(&c->round, slot, now_ns) &&
           !c->round.members[slot].in_place; /* these wait for the next push */
}

static bool has_feeder_and_joiner(const heft_coordinator_t *c, int64_t now_ns)
{
    bool feeder = false;
    bool joiner = false;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        feeder = feeder || (c->entries[i] != NULL && heft__round_may_feed(&c->round, i, now_ns));
        joiner = joiner || is_joiner(c, i, now_ns);
    }
    return feeder && joiner;
}

/* Choose a feeder for everyone who waits. */
static void pair_members(heft_coordinator_t *c, int64_t now_ns)
{
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] == NULL) {
            continue;
        }
        c->entries[i]->feeder = UINT32_MAX;
        if (is_joiner(c, i, now_ns)) {
            c->entries[i]->feeder = find_feeder(c, i, now_ns);
            if (c->entries[i]->feeder != UINT32_MAX) {
                c->entries[c->entries[i]->feeder]->n_fed++;
            }
        }
    }
}

/* Every rank of the engine is there, and serves or is to be fed: a part of it could not serve. */
static bool is_whole(const heft_coordinator_t *c, uint32_t slot, int64_t now_ns)
{
    uint32_t n_ranks = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__entry_t *entry = c->entries[i];
        const heft__round_member_t *m = &c->round.members[i];
        if (entry == NULL || m->role != HEFT__ROLE_DESTINATION ||
            m->engine != c->round.members[slot].engine) {
            continue;
        }
        if (entry->feeder == UINT32_MAX && !heft__round_may_feed(&c->round, i, now_ns)) {
            return false;
        }
        n_ranks++;
    }
    return n_ranks == c->entries[slot]->n_ranks;
}

static uint32_t drop_parts(heft_coordinator_t *c, int64_t now_ns, uint32_t *slots)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL && c->entries[i]->feeder != UINT32_MAX &&
            is_whole(c, i, now_ns)) {
            slots[n++] = i;
        }
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        bool chosen = false;
        for (uint32_t k = 0; k < n; k++) {
            chosen = chosen || slots[k] == i;
        }
        if (c->entries[i] != NULL && c->entries[i]->feeder != UINT32_MAX && !chosen) {
            c->entries[c->entries[i]->feeder]->n_fed--;
            c->entries[i]->feeder = UINT32_MAX;
        }
    }
    return n;
}

static uint32_t list_feeders(const heft_coordinator_t *c, uint32_t *feeders)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const uint32_t feeder = c->entries[i] != NULL ? c->entries[i]->feeder : UINT32_MAX;
        uint32_t k = 0;
        while (k < n && feeders[k] != feeder) {
            k++;
        }
        if (feeder != UINT32_MAX && k == n) {
            feeders[n++] = feeder;
        }
    }
    return n;
}

static void begin(heft_coordinator_t *c, const uint32_t *slots, uint32_t n_slots,
                  const uint32_t *feeders, uint32_t n_feeders, int64_t now_ns)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__round_request_t request = { .kind = HEFT__KIND_FEED,
                                            .slots = slots,
                                            .n_slots = n_slots,
                                            .feeders = feeders,
                                            .n_feeders = n_feeders };
    if (heft__round_begin(&c->round, &request, now_ns, &err) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "coordinator", "late join: %s", err.message);
        return;
    }
    heft__result_slot_t *slot = heft__coordinator_new_result_locked(c);
    slot->id = c->round.id;
    slot->kind = HEFT__KIND_FEED;
    slot->version = c->round.version;
    heft__coordinator_settle_locked(c, now_ns);
}

int64_t heft__coordinator_feed_locked(heft_coordinator_t *c, int64_t now_ns)
{
    int32_t slot;
    const char *why;
    const bool is_off = c->no_feed || c->draining || c->stopping;
    if (is_off || heft__round_is_busy(&c->round) || c->round.committed_version == 0 ||
        heft__round_is_poisoned(&c->round, &slot, &why)) {
        return INT64_MAX; /* the end of the round, or whatever it is, wakes the ticker */
    }
    const int64_t not_before_ns = heft__max_i64(c->feed_at_ns, c->feed_hold_ns);
    if (now_ns < not_before_ns) {
        return not_before_ns;
    }
    c->feed_at_ns = now_ns + LOOK_NS;
    if (!has_feeder_and_joiner(c, now_ns)) {
        return INT64_MAX;
    }
    uint32_t *slots = heft__calloc(2 * (size_t)c->round.n_members, sizeof *slots);
    if (slots != NULL) {
        pair_members(c, now_ns);
        uint32_t *feeders = slots + c->round.n_members;
        const uint32_t n_slots = drop_parts(c, now_ns, slots);
        if (n_slots > 0) {
            begin(c, slots, n_slots, feeders, list_feeders(c, feeders), now_ns);
        }
    }
    heft__free(slots);
    return INT64_MAX;
}

void heft__coordinator_note_feed_locked(heft_coordinator_t *c, int64_t now_ns)
{
    const heft__round_t *r = &c->round;
    const bool committed = r->outcome == HEFT__ROUND_COMMITTED;
    c->n_feeds[committed ? 0 : 1]++;
    if (committed) {
        c->feed_backoff_ns = 0;
    } else if (r->cause.status != HEFT_ERR_CANCELED) {
        c->feed_backoff_ns =
            heft__min_i64(heft__max_i64(2 * c->feed_backoff_ns, MIN_BACKOFF_NS), MAX_BACKOFF_NS);
        c->feed_at_ns = now_ns + c->feed_backoff_ns;
    }
}

void heft__coordinator_retry_feeds_locked(heft_coordinator_t *c)
{
    c->feed_backoff_ns = 0;
    c->feed_at_ns = 0;
    c->dirty = true;
}
