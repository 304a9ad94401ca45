/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: orders in full (the machine knows targets, this adds names and digests), and the
 * checks that the machine asks for: plan digests of both sides, common transports, the source
 * digest.
 */
#include "sync/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- orders ---- */

static void fill_peer(const heft_coordinator_t *c, const heft__entry_t *entry, uint32_t slot,
                      heft__peer_t *peer)
{
    memset(peer, 0, sizeof *peer);
    memcpy(peer->id, entry->id, sizeof peer->id);
    memcpy(peer->incarnation, entry->identity.incarnation, sizeof peer->incarnation);
    peer->replica = entry->identity.replica;
    peer->rank = entry->identity.rank;
    peer->moves = entry->identity.role == HEFT__ROLE_SOURCE || c->round.members[slot].moves;
    peer->in_place = entry->identity.in_place;
    peer->n_transports = entry->identity.n_transports;
    memcpy(peer->transports, entry->identity.transports, sizeof peer->transports);
    memcpy(peer->manifest, entry->bind.manifest, sizeof peer->manifest);
    memcpy(peer->contract, entry->bind.contract, sizeof peer->contract);
    memcpy(peer->endpoint, entry->bind.endpoint, sizeof peer->endpoint);
    memcpy(peer->host, entry->identity.host, sizeof peer->host);
    if (c->round.members[slot].feeds) { /* it stands in for the source */
        peer->contract[0] = '\0';
        peer->endpoint[0] = '\0';
        peer->in_place = false;
        peer->moves = true;
    }
}

/* Is the member in `slot` on the other side of the one in `self`? */
static bool is_peer(const heft_coordinator_t *c, uint32_t self, uint32_t slot, heft__phase_t target)
{
    const heft__round_member_t *me = &c->round.members[self];
    const heft__round_member_t *m = &c->round.members[slot];
    if (target == HEFT__PHASE_STAGE && me->relay != 0) { /* it has to do with its relay alone */
        return heft__round_get_relay(me) == slot;
    }
    if (!m->used || !m->in_round || c->entries[slot] == NULL ||
        heft__round_sends(m) == heft__round_sends(me)) {
        return false;
    }
    if (c->round.kind == HEFT__KIND_FEED) { /* a feeder has to do with those that it feeds */
        return me->feeds ? c->entries[slot]->feeder == self : c->entries[self]->feeder == slot;
    }
    if (target == HEFT__PHASE_PREFLIGHT || m->role == HEFT__ROLE_SOURCE) {
        return true;
    }
    /* a source sends to staging before the decision, and in place inside the flip */
    return m->moves && m->relay == 0 && m->in_place == (target == HEFT__PHASE_FLIP);
}

/* In stage, those that it forwards to. */
static bool is_follower(const heft_coordinator_t *c, uint32_t self, uint32_t slot)
{
    return heft__round_get_relay(&c->round.members[slot]) == self &&
           c->round.members[slot].in_round;
}

static heft_status_t fill_peers(const heft_coordinator_t *c, uint32_t self, heft__order_t *out,
                                heft_error_t *err)
{
    const bool may_relay = out->target == HEFT__PHASE_STAGE && c->round.relays;
    uint32_t n = 0;
    uint32_t n_followers = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        n += is_peer(c, self, i, out->target);
        n_followers += may_relay && is_follower(c, self, i);
    }
    out->peers = heft__calloc(n > 0 ? n : 1, sizeof *out->peers);
    out->followers = heft__calloc(n_followers > 0 ? n_followers : 1, sizeof *out->followers);
    if (out->peers == NULL || out->followers == NULL) {
        return heft__error_nomem(err, ((size_t)n + n_followers) * sizeof *out->peers);
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL && is_peer(c, self, i, out->target)) {
            fill_peer(c, c->entries[i], i, &out->peers[out->n_peers++]);
        }
        if (c->entries[i] != NULL && may_relay && is_follower(c, self, i)) {
            fill_peer(c, c->entries[i], i, &out->followers[out->n_followers++]);
        }
    }
    out->relayed = may_relay && c->round.members[self].relay != 0;
    return HEFT_OK;
}

static int compare_digests(const void *a, const void *b)
{
    return memcmp(a, b, HEFT__DIGEST_SIZE);
}

/* Of a feed: what the feeder's plan is made for; else what the round's own sources are. */
static void name_sources(const heft_coordinator_t *c, uint32_t slot, heft__order_t *out)
{
    if (c->round.kind != HEFT__KIND_FEED) {
        memcpy(out->sources, c->sources, sizeof out->sources);
        return;
    }
    const uint32_t feeder = c->round.members[slot].feeds ? slot : c->entries[slot]->feeder;
    out->sources[0] = '\0';
    if (feeder != UINT32_MAX && c->entries[feeder] != NULL) {
        memcpy(out->sources, c->entries[feeder]->bind.sources, sizeof out->sources);
    }
}

static uint32_t add_object(heft__order_t *out, uint32_t n, const char *digest)
{
    if (digest[0] != '\0') {
        memcpy(out->objects[n++], digest, HEFT__DIGEST_SIZE);
    }
    return n;
}

/* Every object that the order, its peers and its sources name, once. */
static heft_status_t fill_objects(heft_coordinator_t *c, heft__order_t *out, heft_error_t *err)
{
    uint32_t n_sources = 0;
    heft__source_t *sources = heft__coordinator_list_sources_locked(c, out->sources, &n_sources);
    const size_t most = 3 * (size_t)out->n_peers + n_sources + 1;
    out->objects = heft__calloc(most, sizeof *out->objects);
    if (out->objects == NULL) {
        heft__free(sources);
        return heft__error_nomem(err, most * sizeof *out->objects);
    }
    uint32_t n = add_object(out, 0, out->sources);
    for (uint32_t i = 0; i < n_sources; i++) {
        n = add_object(out, n, sources[i].manifest);
    }
    heft__free(sources);
    for (uint32_t i = 0; i < out->n_peers; i++) {
        n = add_object(out, n, out->peers[i].manifest);
        n = add_object(out, n, out->peers[i].contract);
        n = add_object(out, n, out->peers[i].endpoint);
    }
    qsort(out->objects, n, sizeof *out->objects, compare_digests);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t last = out->n_objects;
        if (last == 0 || compare_digests(out->objects[i], out->objects[last - 1]) != 0) {
            memmove(out->objects[out->n_objects++], out->objects[i], HEFT__DIGEST_SIZE);
        }
    }
    return HEFT_OK;
}

static heft_status_t fill_digests(const heft_coordinator_t *c, uint32_t self, heft__order_t *out,
                                  heft_error_t *err)
{
    out->digests = heft__calloc(c->round.n_members, sizeof *out->digests);
    if (out->digests == NULL) {
        return heft__error_nomem(err, c->round.n_members * sizeof *out->digests);
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (is_peer(c, self, i, HEFT__PHASE_VERIFY) && heft__round_sends(m) &&
            c->entries[i]->report.digests[0] != '\0') {
            memcpy(out->digests[out->n_digests++], c->entries[i]->report.digests,
                   HEFT__DIGEST_SIZE);
        }
    }
    return HEFT_OK;
}

static uint32_t count_movers(const heft__round_t *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_members; i++) {
        const heft__round_member_t *m = &r->members[i];
        n += m->used && m->in_round && m->moves && m->role == HEFT__ROLE_DESTINATION;
    }
    return n;
}

heft_status_t heft__coordinator_order_locked(heft_coordinator_t *c, uint32_t slot, int64_t now_ns,
                                             heft__order_t *out, heft_error_t *err)
{
    const heft__round_t *r = &c->round;
    const heft__round_member_t *m = &r->members[slot];
    heft__order_t order;
    heft__order_init(&order);
    order.sequence = m->order_seq;
    order.epoch = r->epoch;
    order.round = m->order_round;
    order.target = m->target;
    order.feeds = m->feeds;
    const bool present = heft__round_id_equal(m->order_round, r->id) && heft__round_is_busy(r);
    order.left_ms = r->config.limit_ns[m->target] / 1000000;
    if (present) {
        order.version = r->version;
        order.decision = r->decision;
        order.movers = m->moves && m->target >= HEFT__PHASE_STAGE ? count_movers(r) : 0;
        memcpy(order.source_digest, r->source_digest, sizeof order.source_digest);
        if (r->deadline_ns != INT64_MAX) {
            order.left_ms = heft__max_i64(0, (r->deadline_ns - now_ns) / 1000000);
        }
        if (m->target == HEFT__PHASE_FLIP && m->in_vain) {
            order.left_ms = 0;
        }
    }
    if (m->role == HEFT__ROLE_DESTINATION && m->target != HEFT__PHASE_PREFLIGHT) {
        memcpy(order.plan, c->entries[slot]->report.plan, sizeof order.plan);
    }
    heft_status_t status = HEFT_OK;
    const bool sends_in_flip =
        m->target == HEFT__PHASE_FLIP && (m->role == HEFT__ROLE_SOURCE || m->in_place);
    if (m->target == HEFT__PHASE_PREFLIGHT || m->target == HEFT__PHASE_STAGE || sends_in_flip) {
        status = fill_peers(c, slot, &order, err);
    }
    if (status == HEFT_OK && m->target == HEFT__PHASE_PREFLIGHT) {
        name_sources(c, slot, &order);
        status = fill_objects(c, &order, err);
    }
    if (status == HEFT_OK && m->target == HEFT__PHASE_VERIFY) {
        status = fill_digests(c, slot, &order, err);
    }
    if (status != HEFT_OK) {
        heft__order_fini(&order);
        return status;
    }
    *out = order;
    return HEFT_OK;
}

/* ---- preflight: both sides against each other ---- */

bool heft__coordinator_have_common_transport(const heft__register_t *a, const heft__register_t *b)
{
    for (uint32_t i = 0; i < a->n_transports; i++) {
        for (uint32_t k = 0; k < b->n_transports; k++) {
            if (strcmp(a->transports[i], b->transports[k]) == 0) {
                return true;
            }
        }
    }
    return false;
}

static void list_transports(const heft__register_t *reg, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < reg->n_transports && n < size; i++) {
        const int put = snprintf(out + n, size - n, "%s%s", i > 0 ? ", " : "", reg->transports[i]);
        n += put > 0 ? (size_t)put : 0;
    }
}

static const char *plan_of(const heft__plan_entry_t *plans, uint32_t n, const char *member)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(plans[i].member, member) == 0) {
            return plans[i].plan;
        }
    }
    return NULL;
}

/* One source's plans and offers against one destination. */
static heft_status_t check_pair(const heft__entry_t *source, heft__entry_t *destination,
                                const heft__plan_entry_t *plans, uint32_t n_plans,
                                heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    const char *plan = plan_of(plans, n_plans, destination->id);
    if (plan == NULL) {
        status = heft__problems_add(&destination->problems, HEFT__PROBLEM_PLAN, err,
                                    "plan digest: %s has no plan for it", source->id);
    } else if (strcmp(plan, destination->report.plan) != 0) {
        status = heft__problems_add(&destination->problems, HEFT__PROBLEM_PLAN, err,
                                    "plan digest: %.16s... here, %.16s... at %s",
                                    destination->report.plan, plan, source->id);
    }
    if (status == HEFT_OK &&
        !heft__coordinator_have_common_transport(&source->identity, &destination->identity)) {
        char here[160];
        char there[160];
        list_transports(&destination->identity, here, sizeof here);
        list_transports(&source->identity, there, sizeof there);
        status =
            heft__problems_add(&destination->problems, HEFT__PROBLEM_TRANSPORT, err,
                               "no common transport: %s here, %s at %s", here, there, source->id);
    }
    return status;
}

static heft_status_t check_source(heft_coordinator_t *c, uint32_t slot, int64_t now_ns,
                                  heft_error_t *err)
{
    const heft__entry_t *source = c->entries[slot];
    const heft__object_t *object = heft__objects_get(&c->objects, source->report.plans, now_ns);
    if (object == NULL) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "its object of plans is gone");
    }
    heft__plan_entry_t *plans = NULL;
    uint32_t n_plans = 0;
    heft_status_t status = heft__plans_decode(object->data, object->n, &plans, &n_plans, err);
    for (uint32_t i = 0; status == HEFT_OK && i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (m->used && m->in_round && m->moves && c->entries[i] != NULL &&
            (c->round.kind != HEFT__KIND_FEED || c->entries[i]->feeder == slot)) {
            status = check_pair(source, c->entries[i], plans, n_plans, err);
        }
    }
    heft__free(plans);
    return status;
}

static uint32_t count_problems(const heft_coordinator_t *c, int32_t *first_out)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const uint32_t n = c->entries[i] != NULL && c->round.members[i].in_round
                               ? heft__problems_total(&c->entries[i]->problems)
                               : 0;
        if (n > 0 && total == 0) {
            *first_out = (int32_t)i;
        }
        total += n;
    }
    return total;
}

static const char *first_text(const heft__problems_t *problems)
{
    for (int k = 0; k < HEFT__N_PROBLEM_KINDS; k++) {
        if (problems->kinds[k].n_items > 0) {
            return problems->kinds[k].items[0];
        }
    }
    return "";
}

uint32_t heft__coordinator_count_problems_locked(const heft_coordinator_t *c, int32_t *first_out,
                                                 heft__wire_error_t *cause_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const uint32_t total = count_problems(c, first_out);
    if (total > 0) {
        (void)heft__error_set(&err, HEFT_ERR_PROOF, "%u problem%s; the first: %s", (unsigned)total,
                              total == 1 ? "" : "s", first_text(&c->entries[*first_out]->problems));
        heft__wire_error_set(cause_out, HEFT__PHASE_PREFLIGHT, &err);
    }
    return total;
}

void heft__coordinator_check_plans_locked(heft_coordinator_t *c, int64_t now_ns)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__wire_error_t cause;
    heft_status_t status = HEFT_OK;
    int32_t slot = -1;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL) {
            heft__problems_fini(&c->entries[i]->problems);
        }
    }
    for (uint32_t i = 0; status == HEFT_OK && i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (m->used && m->in_round && heft__round_sends(m) && c->entries[i] != NULL) {
            status = check_source(c, i, now_ns, &err);
            slot = (int32_t)i;
        }
    }
    if (status != HEFT_OK) {
        heft__wire_error_set(&cause, HEFT__PHASE_PREFLIGHT, &err);
        heft__round_plans_checked(&c->round, slot, &cause, now_ns);
        return;
    }
    if (heft__coordinator_count_problems_locked(c, &slot, &cause) == 0) {
        heft__coordinator_relay_locked(c);
        heft__round_plans_checked(&c->round, -1, NULL, now_ns);
        return;
    }
    heft__round_plans_checked(&c->round, slot, &cause, now_ns);
}

/* ---- prepare: the source digest ---- */

static int compare_entries(const void *a, const void *b)
{
    const heft__entry_t *const *x = a;
    const heft__entry_t *const *y = b;
    return strcmp((*x)->id, (*y)->id);
}

/* Each feeder says what it serves: the committed version, or the one that differs. */
static void check_feeders(heft_coordinator_t *c, int64_t now_ns)
{
    char digest[HEFT__DIGEST_SIZE];
    memcpy(digest, c->round.committed_digest, sizeof digest);
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (m->used && m->in_round && m->feeds && c->entries[i] != NULL &&
            strcmp(c->entries[i]->report.source_digest, c->round.committed_digest) != 0) {
            memcpy(digest, c->entries[i]->report.source_digest, sizeof digest);
        }
    }
    heft__round_prepared(&c->round, digest, now_ns);
}

/* One source: its digest. Several: over their digests in the order of their ids. */
void heft__coordinator_check_digest_locked(heft_coordinator_t *c, int64_t now_ns)
{
    if (c->round.kind == HEFT__KIND_FEED) {
        check_feeders(c, now_ns);
        return;
    }
    const heft__entry_t **sources = heft__calloc(c->round.n_members, sizeof(void *));
    uint32_t n = 0;
    heft__wire_error_t cause;
    heft_error_t err = HEFT_ERROR_INIT;
    if (sources == NULL) {
        (void)heft__error_nomem(&err, c->round.n_members * sizeof(void *));
        heft__wire_error_set(&cause, HEFT__PHASE_PREPARE, &err);
        heft__round_plans_checked(&c->round, -1, &cause, now_ns);
        return;
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (m->used && m->in_round && m->role == HEFT__ROLE_SOURCE && c->entries[i] != NULL) {
            sources[n++] = c->entries[i];
        }
    }
    qsort(sources, n, sizeof(void *), compare_entries);
    char digest[HEFT__DIGEST_SIZE] = "";
    if (n == 1) {
        memcpy(digest, sources[0]->report.source_digest, sizeof digest);
    } else {
        heft__sha256_t hash;
        uint8_t bytes[32];
        heft__sha256_init(&hash);
        for (uint32_t i = 0; i < n; i++) {
            heft__sha256_update_text(&hash, sources[i]->report.source_digest);
        }
        heft__sha256_final(&hash, bytes);
        heft__hex(bytes, sizeof bytes, digest);
    }
    heft__free(sources);
    heft__round_prepared(&c->round, digest, now_ns);
}
