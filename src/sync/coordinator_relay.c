/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: who forwards to whom. Destinations of one contract and manifest that have one plan
 * hold the same staging, so one of them can pass on to the next what it is sent. They form a tree
 * of a given fan-out; the sources send to its root alone.
 *
 * `on` does so wherever two are alike. `auto` leaves out who shares a host with a source, puts
 * neighbours of one host next to each other, and counts what the links of hosts carry: the tree is
 * used where the busiest link is busy for a quarter longer without it (docs/design/010-relays.md).
 */
#include "sync/coordinator.h"

#include <stdlib.h>
#include <string.h>

/* A destination that receives into staging. */
typedef struct place {
    const heft__entry_t *entry;
    uint32_t slot;
    bool is_apart; /* the sources send to it, whatever others do */
} place_t;

/* What the link of a host carries, in staging memories. */
typedef struct load {
    const char *host;
    uint64_t n_in;
    uint64_t n_out;
} load_t;

bool heft__relay_parse(const char *text, heft__relaying_t *out)
{
    static const char *const names[] = { "off", "auto", "on" };
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (heft__relaying_t)i;
            return true;
        }
    }
    return false;
}

/* ---- the tree ---- */

static bool is_alike(const heft__entry_t *a, const heft__entry_t *b)
{
    return strcmp(a->bind.contract, b->bind.contract) == 0 &&
           strcmp(a->bind.manifest, b->bind.manifest) == 0 &&
           strcmp(a->report.plan, b->report.plan) == 0;
}

/* Those that are alike side by side; of them, who lately failed to forward last, and neighbours of
 * one host together. */
static int compare_places(const void *a, const void *b)
{
    const place_t *x = a;
    const place_t *y = b;
    const char *const texts[][2] = {
        { x->entry->bind.contract, y->entry->bind.contract },
        { x->entry->bind.manifest, y->entry->bind.manifest },
        { x->entry->report.plan, y->entry->report.plan },
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const int order = strcmp(texts[i][0], texts[i][1]);
        if (order != 0) {
            return order;
        }
    }
    if (x->is_apart != y->is_apart) {
        return x->is_apart ? 1 : -1;
    }
    if (x->entry->failed_to_relay != y->entry->failed_to_relay) {
        return x->entry->failed_to_relay ? 1 : -1;
    }
    const int order = strcmp(x->entry->identity.host, y->entry->identity.host);
    if (order != 0) {
        return order;
    }
    return x->entry->identity.replica < y->entry->identity.replica ? -1 : 1;
}

static const char *host_of(const heft_coordinator_t *c, uint32_t slot)
{
    return c->entries[slot]->identity.host;
}

static bool is_source(const heft_coordinator_t *c, uint32_t slot)
{
    const heft__round_member_t *m = &c->round.members[slot];
    return m->used && m->in_round && c->entries[slot] != NULL && m->role == HEFT__ROLE_SOURCE;
}

static bool has_source(const heft_coordinator_t *c, const char *host)
{
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (is_source(c, i) && strcmp(host_of(c, i), host) == 0) {
            return true;
        }
    }
    return false;
}

static uint32_t list_places(const heft_coordinator_t *c, place_t *places)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (!m->used || !m->in_round || !m->moves || m->in_place || c->entries[i] == NULL ||
            m->role != HEFT__ROLE_DESTINATION) {
            continue;
        }
        const bool is_near = host_of(c, i)[0] == '\0' || has_source(c, host_of(c, i));
        places[n++] = (place_t){ .entry = c->entries[i],
                                 .slot = i,
                                 .is_apart = c->relay == HEFT__RELAY_AUTO && is_near };
    }
    qsort(places, n, sizeof *places, compare_places);
    return n;
}

/* The k-th of those that are alike receives from number (k - 1) / fan-out. */
static void link_places(heft_coordinator_t *c, const place_t *places, uint32_t n)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (!is_alike(places[first].entry, places[i].entry)) {
            first = i;
            continue;
        }
        const place_t *relay = &places[first + (i - first - 1) / c->relay_fan_out];
        if (!places[i].is_apart && !relay->is_apart && !relay->entry->failed_to_relay &&
            heft__coordinator_have_common_transport(&relay->entry->identity,
                                                    &places[i].entry->identity)) {
            heft__round_set_relay(&c->round, places[i].slot, relay->slot);
        }
    }
}

/* ---- whether it pays ---- */

static int compare_loads(const void *a, const void *b)
{
    const load_t *x = a;
    const load_t *y = b;
    return strcmp(x->host, y->host);
}

static load_t *find_load(load_t *loads, uint32_t n, const char *host)
{
    const load_t key = { .host = host };
    return bsearch(&key, loads, n, sizeof *loads, compare_loads);
}

/* Hosts of what is not apart, once each. */
static uint32_t list_hosts(const place_t *places, uint32_t n, load_t *loads)
{
    uint32_t n_hosts = 0;
    for (uint32_t i = 0; i < n; i++) {
        loads[i] = (load_t){ .host = places[i].entry->identity.host };
    }
    qsort(loads, n, sizeof *loads, compare_loads);
    for (uint32_t i = 0; i < n; i++) {
        if (n_hosts == 0 || strcmp(loads[n_hosts - 1].host, loads[i].host) != 0) {
            loads[n_hosts++] = loads[i];
        }
    }
    return n_hosts;
}

/* The busiest link, times the number of the sources' hosts, which share what they send. */
static uint64_t busiest(heft_coordinator_t *c, const place_t *places, uint32_t n, bool relayed,
                        load_t *loads, uint32_t n_source_hosts)
{
    uint64_t n_sent = 0;
    const uint32_t n_hosts = list_hosts(places, n, loads);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t relay =
            relayed ? heft__round_get_relay(&c->round.members[places[i].slot]) : UINT32_MAX;
        load_t *here = find_load(loads, n_hosts, places[i].entry->identity.host);
        if (places[i].is_apart) {
            continue;
        }
        if (relay == UINT32_MAX) {
            n_sent++;
            here->n_in++;
        } else if (strcmp(host_of(c, relay), here->host) != 0) {
            find_load(loads, n_hosts, host_of(c, relay))->n_out++;
            here->n_in++;
        }
    }
    uint64_t most = 0;
    for (uint32_t h = 0; h < n_hosts; h++) {
        most = loads[h].n_in > most ? loads[h].n_in : most;
        most = loads[h].n_out > most ? loads[h].n_out : most;
    }
    most *= n_source_hosts;
    return n_sent > most ? n_sent : most;
}

/* 0: one of them does not say where it is. */
static uint32_t count_source_hosts(const heft_coordinator_t *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (!is_source(c, i)) {
            continue;
        }
        if (host_of(c, i)[0] == '\0') {
            return 0;
        }
        bool is_known = false;
        for (uint32_t k = 0; k < i && !is_known; k++) {
            is_known = is_source(c, k) && strcmp(host_of(c, k), host_of(c, i)) == 0;
        }
        n += !is_known;
    }
    return n;
}

static bool pays(heft_coordinator_t *c, const place_t *places, uint32_t n, load_t *loads)
{
    const uint32_t n_source_hosts = count_source_hosts(c);
    if (n_source_hosts == 0) {
        return false;
    }
    const uint64_t direct = busiest(c, places, n, false, loads, n_source_hosts);
    const uint64_t relayed = busiest(c, places, n, true, loads, n_source_hosts);
    return 4 * direct > 5 * relayed;
}

void heft__coordinator_relay_locked(heft_coordinator_t *c)
{
    heft__round_t *r = &c->round;
    if (!r->relays) {
        return;
    }
    const size_t most = r->n_members > 0 ? r->n_members : 1;
    place_t *places = heft__calloc(most, sizeof *places);
    load_t *loads = heft__calloc(most, sizeof *loads);
    if (places == NULL || loads == NULL) {
        heft__log(HEFT_LOG_WARN, "coordinator", "no memory to choose relays: the sources send all");
    } else {
        const uint32_t n = list_places(c, places);
        link_places(c, places, n);
        if (c->relay == HEFT__RELAY_AUTO && !pays(c, places, n, loads)) {
            for (uint32_t i = 0; i < n; i++) {
                r->members[places[i].slot].relay = 0;
            }
        }
    }
    heft__free(places);
    heft__free(loads);
}

/* ---- afterwards ---- */

void heft__coordinator_judge_relays_locked(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    for (uint32_t i = 0; i < r->n_members && r->kind == HEFT__KIND_SYNC; i++) {
        heft__entry_t *entry = c->entries[i];
        if (entry == NULL || !r->members[i].in_round) {
            continue;
        }
        const bool is_blamed = r->cause.peer[0] != '\0' ? strcmp(r->cause.peer, entry->id) == 0
                                                        : r->cause_slot == (int32_t)i;
        if (r->outcome == HEFT__ROUND_COMMITTED) {
            entry->failed_to_relay = false;
        } else if (is_blamed && heft__round_is_relay(r, i)) {
            entry->failed_to_relay = true;
        }
    }
}
