/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: what members ask for: register, bind, poll, leave, objects.
 *
 * A message is checked in full before anything changes: who sends it (member, incarnation, epoch),
 * what it says, and that the objects it names are there.
 */
#include "sync/coordinator.h"

#include <stdio.h>
#include <string.h>

#include "heft/model.h"

#define MS INT64_C(1000000)
#define GRACE_NS (200 * MS)

/* ---- the table ---- */

uint32_t heft__coordinator_find_locked(const heft_coordinator_t *c, const char *id)
{
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL && strcmp(c->entries[i]->id, id) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t heft__coordinator_engine_locked(const heft_coordinator_t *c, uint32_t slot)
{
    const heft__register_t *mine = &c->entries[slot]->identity;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__entry_t *other = c->entries[i];
        if (i != slot && other != NULL && other->identity.role == mine->role &&
            other->identity.replica == mine->replica &&
            strcmp(other->identity.job, mine->job) == 0) {
            return c->round.members[i].engine;
        }
    }
    uint32_t engine = 0; /* the first of its engine: a number above all others */
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (i != slot && c->entries[i] != NULL && c->round.members[i].engine >= engine) {
            engine = c->round.members[i].engine + 1;
        }
    }
    return engine;
}

uint32_t heft__coordinator_add_locked(heft_coordinator_t *c, const heft__register_t *identity,
                                      heft_error_t *err)
{
    uint32_t slot = 0;
    while (slot < HEFT__MAX_MEMBERS && c->entries[slot] != NULL) {
        slot++;
    }
    if (slot == HEFT__MAX_MEMBERS) {
        (void)heft__error_set(err, HEFT_ERR_LIMIT, "%d members are registered already",
                              HEFT__MAX_MEMBERS);
        return UINT32_MAX;
    }
    heft__entry_t *entry = heft__calloc(1, sizeof *entry);
    if (entry == NULL) {
        (void)heft__error_nomem(err, sizeof *entry);
        return UINT32_MAX;
    }
    entry->identity = *identity;
    entry->feeder = UINT32_MAX;
    heft__report_init(&entry->report);
    heft__member_id_format(identity->role, identity->job, identity->replica, identity->rank,
                           entry->id);
    c->entries[slot] = entry;
    if (slot >= c->round.n_members) {
        c->round.n_members = slot + 1;
    }
    return slot;
}

void heft__coordinator_drop_locked(heft_coordinator_t *c, uint32_t slot)
{
    heft__entry_t *entry = c->entries[slot];
    if (entry != NULL) {
        heft__report_fini(&entry->report);
        heft__problems_fini(&entry->problems);
        heft__free(entry->addresses);
        heft__free(entry);
        c->entries[slot] = NULL;
    }
}

/* ---- register ---- */

/* A coordinator that lost its record must not go on under an epoch that members have left behind.
 */
static heft_status_t follow_epoch(heft_coordinator_t *c, const heft__register_t *reg,
                                  heft_error_t *err)
{
    if (reg->epoch <= c->round.epoch) {
        return HEFT_OK;
    }
    if (reg->epoch > HEFT__WIRE_MAX_INT / 2) { /* leave room to go on from there */
        return heft__error_set(err, HEFT_ERR_FORMAT, "register: epoch %lld is beyond %lld",
                               (long long)reg->epoch, (long long)HEFT__WIRE_MAX_INT / 2);
    }
    if (heft__round_is_busy(&c->round)) {
        return heft__error_set(err, HEFT_ERR_BUSY,
                               "epoch %lld is ahead of %lld, and a round is in flight",
                               (long long)reg->epoch, (long long)c->round.epoch);
    }
    heft__round_set_epoch(&c->round, reg->epoch + 1);
    return HEFT_OK;
}

/* A process that the operator took out does not come back by itself: it must be ended. */
static bool was_removed(const heft_coordinator_t *c, const char *incarnation)
{
    for (int i = 0; i < HEFT__MAX_REMOVED; i++) {
        if (strcmp(c->removed[i], incarnation) == 0) {
            return true;
        }
    }
    return false;
}

static bool was_replaced(const heft__entry_t *entry, const char *incarnation)
{
    for (int i = 0; i < HEFT__MAX_REPLACED; i++) {
        if (strcmp(entry->replaced[i], incarnation) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * May another process take this place? Not while the one that has it lives: two processes under one
 * name would both serve. It lives while it holds a connection open and has been heard within the
 * contact time. One that has just closed a connection may be about to open the next.
 */
static heft_status_t check_place(heft_coordinator_t *c, uint32_t slot, const heft__register_t *reg,
                                 heft_error_t *err)
{
    heft__entry_t *entry = c->entries[slot];
    const heft__round_member_t *m = &c->round.members[slot];
    const int64_t now = heft__clock_mono_ns();
    const int64_t silent_ns = now - m->contact_ns;
    if (!m->registered || silent_ns > c->round.config.contact_ns) {
        return HEFT_OK;
    }
    if (heft__server_is_connected_locked(c->server, entry->identity.incarnation)) {
        entry->gone_ns = 0;
        return heft__error_set(
            err, HEFT_ERR_EXISTS,
            "member %.60s is taken: %.40s (%.8s..., heard %lld ms ago) lives, %.40s (%.8s...) "
            "wants its place: end the first, or give this one another replica or rank",
            entry->id, heft__process_text(&entry->identity), entry->identity.incarnation,
            (long long)(silent_ns / MS), heft__process_text(reg), reg->incarnation);
    }
    entry->gone_ns = entry->gone_ns != 0 ? entry->gone_ns : now;
    if (now - entry->gone_ns < GRACE_NS) {
        return heft__error_set(err, HEFT_ERR_BUSY,
                               "member %.60s: %.40s has just closed its connection: try again",
                               entry->id, heft__process_text(&entry->identity));
    }
    return HEFT_OK;
}

/* A new process takes over the identity. */
static void replace_life(heft__entry_t *entry, const heft__register_t *reg)
{
    memmove(entry->replaced[1], entry->replaced[0],
            (HEFT__MAX_REPLACED - 1) * sizeof entry->replaced[0]);
    memcpy(entry->replaced[0], entry->identity.incarnation, sizeof entry->replaced[0]);
    memset(&entry->bind, 0, sizeof entry->bind);
    heft__free(entry->addresses);
    entry->addresses = NULL;
    heft__report_fini(&entry->report);
    heft__report_init(&entry->report);
    entry->identity = *reg;
    entry->gone_ns = 0;
    entry->poll++;
}

static heft_status_t admit(heft_coordinator_t *c, const heft__register_t *reg, uint32_t *slot_out,
                           bool *fresh_out, heft_error_t *err)
{
    char id[HEFT__ID_SIZE];
    heft__member_id_format(reg->role, reg->job, reg->replica, reg->rank, id);
    uint32_t slot = heft__coordinator_find_locked(c, id);
    if (slot != UINT32_MAX && was_replaced(c->entries[slot], reg->incarnation)) {
        return heft__error_set(err, HEFT_ERR_STALE,
                               "member %s: incarnation %.8s... has been replaced by %.8s...", id,
                               reg->incarnation, c->entries[slot]->identity.incarnation);
    }
    if (was_removed(c, reg->incarnation)) {
        return heft__error_set(err, HEFT_ERR_STALE,
                               "member %s: incarnation %.8s... has been removed: restart it", id,
                               reg->incarnation);
    }
    heft_status_t status = HEFT_OK;
    if (slot != UINT32_MAX &&
        strcmp(c->entries[slot]->identity.incarnation, reg->incarnation) != 0) {
        status = check_place(c, slot, reg, err);
    }
    if (status == HEFT_OK) {
        status = follow_epoch(c, reg, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    *fresh_out = true;
    if (slot == UINT32_MAX) {
        slot = heft__coordinator_add_locked(c, reg, err);
        if (slot == UINT32_MAX) {
            return err->status;
        }
    } else if (strcmp(c->entries[slot]->identity.incarnation, reg->incarnation) == 0) {
        *fresh_out = false;
        c->entries[slot]->identity = *reg; /* transports, after a restart of the coordinator */
    } else {
        replace_life(c->entries[slot], reg);
    }
    *slot_out = slot;
    return HEFT_OK;
}

void heft__serve_register_locked(heft_coordinator_t *c, heft__call_t *call)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__register_t reg;
    uint32_t slot = 0;
    bool fresh = false;
    heft_status_t status = heft__register_decode(call->body, call->n_body, &reg, &err);
    if (status == HEFT_OK) {
        status = admit(c, &reg, &slot, &fresh, &err);
    }
    if (status != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    const int64_t now = heft__clock_mono_ns();
    memcpy(call->speaker, reg.incarnation, sizeof call->speaker);
    heft__round_join(&c->round, slot, reg.role, heft__coordinator_engine_locked(c, slot), fresh,
                     now);
    c->round.members[slot].in_place = reg.in_place;
    heft__coordinator_settle_locked(c, now);
    if (fresh) {
        heft__coordinator_log_member_locked(c, slot, "member registered");
        heft__coordinator_retry_feeds_locked(c);
    }
    heft__registered_t reply;
    memset(&reply, 0, sizeof reply);
    memcpy(reply.id, c->entries[slot]->id, sizeof reply.id);
    reply.epoch = c->round.epoch;
    reply.poll_ms = c->poll_ms;
    reply.contact_ms = (uint32_t)(c->round.config.contact_ns / MS);
    reply.committed_version = c->round.committed_version;
    memcpy(reply.committed_digest, c->round.committed_digest, sizeof reply.committed_digest);
    char *text = NULL;
    if (heft__registered_encode(&reply, &text, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    heft__call_text(call, 200, "application/json", text, strlen(text));
}

/* ---- bind ---- */

/* The slot of a member in this life; UINT32_MAX with the reply set. */
static uint32_t check_life(heft_coordinator_t *c, heft__call_t *call, const char *id,
                           const char *incarnation)
{
    char shown[64];
    const uint32_t slot = heft__coordinator_find_locked(c, id);
    if (slot == UINT32_MAX) {
        heft__call_error(call, 410, HEFT_ERR_PEER, "member %s is not registered here",
                         heft__json_show(id, shown));
        return UINT32_MAX;
    }
    const char *registered = c->entries[slot]->identity.incarnation;
    if (strcmp(registered, incarnation) != 0) {
        heft__call_error(call, 409, HEFT_ERR_STALE,
                         "member %s: incarnation %.8s... is not the registered one", id,
                         incarnation);
        return UINT32_MAX;
    }
    if (!c->round.members[slot].registered) { /* known from the record alone */
        heft__call_error(call, 410, HEFT_ERR_PEER, "member %s has not registered since the restart",
                         id);
        return UINT32_MAX;
    }
    memcpy(call->speaker, incarnation, sizeof call->speaker);
    c->entries[slot]->gone_ns = 0;
    return slot;
}

/* Reply 409 with the digests that are not in the store; true when all are. */
static bool check_objects(heft_coordinator_t *c, heft__call_t *call, const char *const *digests,
                          size_t n)
{
    json_t *missing = json_array();
    const int64_t now = heft__clock_mono_ns();
    for (size_t i = 0; i < n; i++) {
        if (digests[i][0] != '\0' && heft__objects_get(&c->objects, digests[i], now) == NULL) {
            (void)json_array_append_new(missing, json_string(digests[i]));
        }
    }
    const size_t n_missing = json_array_size(missing);
    if (n_missing == 0) {
        json_decref(missing);
        return true;
    }
    char text[64];
    (void)snprintf(text, sizeof text, "%zu objects have not been put", n_missing);
    heft__call_json(call, 409,
                    json_pack("{s:{s:s,s:s},s:o}", "error", "status", "ERR_STATE", "message", text,
                              "missing", missing));
    return false;
}

/* A list of sources ("": none) is one, and what it names is here as well. */
static bool check_sources(heft_coordinator_t *c, heft__call_t *call, const char *digest)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__source_t *sources = NULL;
    uint32_t n = 0;
    if (digest[0] == '\0') {
        return true;
    }
    const heft__object_t *object = heft__objects_get(&c->objects, digest, heft__clock_mono_ns());
    heft_status_t status = heft__source_list_decode(object->data, object->n, &sources, &n, &err);
    const char **names = status == HEFT_OK ? heft__calloc(n, sizeof(char *)) : NULL;
    if (status != HEFT_OK || names == NULL) {
        heft__free(sources);
        heft__call_error(call, status == HEFT_OK ? 500 : 422,
                         status == HEFT_OK ? HEFT_ERR_NOMEM : status, "bind: %s",
                         status == HEFT_OK ? "out of memory" : err.message);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        names[i] = sources[i].manifest;
    }
    const bool ok = check_objects(c, call, names, n);
    heft__free(names);
    heft__free(sources);
    return ok;
}

/* Another member that can be reached where this one says it is; false with the reply set. */
static bool check_addresses(heft_coordinator_t *c, heft__call_t *call, uint32_t slot,
                            const char *addresses)
{
    char shared[80];
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__entry_t *other = c->entries[i];
        if (i != slot && other != NULL && other->addresses != NULL &&
            heft__endpoint_share_address(addresses, other->addresses, shared)) {
            heft__call_error(call, 409, HEFT_ERR_EXISTS,
                             "members %s and %s advertise one and the same endpoint: %s",
                             c->entries[slot]->id, other->id, shared);
            return false;
        }
    }
    return true;
}

static heft_status_t check_manifest(heft_coordinator_t *c, const heft__entry_t *entry,
                                    const heft__bind_t *bind, heft_error_t *err)
{
    heft__object_t *object = heft__objects_get(&c->objects, bind->manifest, heft__clock_mono_ns());
    const heft__role_t role = entry->identity.role;
    if (object->checked == role) {
        return HEFT_OK; /* ranks and replicas share manifests: one check is enough */
    }
    heft_manifest_t *manifest = NULL;
    heft_status_t status = heft_manifest_decode(object->data, object->n, &manifest, err);
    if (status == HEFT_OK) {
        const char *side = heft_manifest_get_side(manifest);
        if (strcmp(side, heft__role_text(role)) != 0) {
            status = heft__error_set(err, HEFT_ERR_FORMAT,
                                     "manifest is of side \"%s\", the member is a %s", side,
                                     heft__role_text(role));
        } else if (heft_manifest_get_n_tensors(manifest) == 0 && role != HEFT__ROLE_SOURCE) {
            /* a rank of a trainer may be left with nothing; that all are is seen in preflight */
            status = heft__error_set(err, HEFT_ERR_FORMAT, "manifest has no tensors");
        }
    }
    if (status == HEFT_OK) {
        object->checked = role;
    }
    heft_manifest_destroy(manifest);
    return status;
}

static heft_status_t check_contract(heft_coordinator_t *c, const heft__entry_t *entry,
                                    const heft__bind_t *bind, char *family_out,
                                    uint32_t *n_ranks_out, heft_error_t *err)
{
    const heft__object_t *object =
        heft__objects_get(&c->objects, bind->contract, heft__clock_mono_ns());
    heft__contract_t contract;
    heft_status_t status = heft__contract_decode(object->data, object->n, &contract, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (contract.rank != entry->identity.rank) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "contract is of rank %u, the member is %u",
                                 contract.rank, entry->identity.rank);
    }
    if (status == HEFT_OK &&
        strcmp(contract.mapping != NULL ? contract.mapping : "", bind->mapping) != 0) {
        status =
            heft__error_set(err, HEFT_ERR_FORMAT, "contract names mapping %.16s, bind has %.16s",
                            contract.mapping != NULL ? contract.mapping : "none",
                            bind->mapping[0] != '\0' ? bind->mapping : "none");
    }
    memcpy(family_out, contract.family, HEFT__DIGEST_SIZE);
    *n_ranks_out = contract.ranks;
    heft__contract_fini(&contract);
    return status;
}

/* Manifest and contract are read; all that is wrong with them is told together. */
static bool check_contents(heft_coordinator_t *c, heft__call_t *call, const heft__entry_t *entry,
                           const heft__bind_t *bind, char *family_out, uint32_t *n_ranks_out)
{
    heft__problems_t problems;
    memset(&problems, 0, sizeof problems);
    heft_error_t err = HEFT_ERROR_INIT, first = HEFT_ERROR_INIT;
    bool ok = true;
    if (check_manifest(c, entry, bind, &first) != HEFT_OK) {
        ok = heft__problems_add(&problems, HEFT__PROBLEM_MANIFEST, NULL, "%s", first.message) ==
             HEFT_OK;
    }
    if (bind->contract[0] != '\0' &&
        check_contract(c, entry, bind, family_out, n_ranks_out, &err) != HEFT_OK) {
        ok = heft__problems_add(&problems, HEFT__PROBLEM_MEMBER, NULL, "%s", err.message) ==
                 HEFT_OK &&
             ok;
    }
    const uint32_t total = heft__problems_total(&problems);
    if (total > 0 || !ok) {
        char text[640];
        (void)snprintf(text, sizeof text, "member %.80s: %u problem%s, the first: %.400s",
                       entry->id, total, total == 1 ? "" : "s",
                       first.status != HEFT_OK ? first.message : err.message);
        heft__call_json(call, 422,
                        json_pack("{s:{s:s,s:s},s:o}", "error", "status", "ERR_PROOF", "message",
                                  text, "problems", heft__json_problems(&problems)));
    }
    heft__problems_fini(&problems);
    return total == 0 && ok;
}

static bool check_bind(heft_coordinator_t *c, heft__call_t *call, uint32_t slot,
                       const heft__bind_t *bind)
{
    const heft__entry_t *entry = c->entries[slot];
    const bool whole = bind->contract[0] != '\0' && bind->endpoint[0] != '\0';
    const bool none = bind->contract[0] == '\0' && bind->endpoint[0] == '\0';
    const bool is_source = entry->identity.role == HEFT__ROLE_SOURCE;
    if (is_source ? !none || bind->sources[0] != '\0' || bind->mapping[0] != '\0' : !whole) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT,
                         "bind: contract, endpoint and sources are for destinations, "
                         "which need the first two, as is mapping");
        return false;
    }
    const char *const digests[] = { bind->manifest, bind->contract, bind->endpoint, bind->sources,
                                    bind->mapping };
    if (!check_objects(c, call, digests, 5) || !check_sources(c, call, bind->sources)) {
        return false;
    }
    return true;
}

/* Where this binding can be reached ("": nowhere); NULL with the reply set. */
static char *read_addresses(heft_coordinator_t *c, heft__call_t *call, uint32_t slot,
                            const char *endpoint)
{
    const heft__object_t *object =
        endpoint[0] != '\0' ? heft__objects_get(&c->objects, endpoint, heft__clock_mono_ns())
                            : NULL;
    char *addresses = object != NULL ? heft__endpoint_addresses(object->data, object->n, endpoint)
                                     : heft__strdup("");
    if (addresses == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return NULL;
    }
    if (!check_addresses(c, call, slot, addresses)) {
        heft__free(addresses);
        return NULL;
    }
    return addresses;
}

void heft__serve_bind_locked(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__bind_t bind;
    if (heft__bind_decode(call->body, call->n_body, &bind, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    const uint32_t slot = check_life(c, call, id, bind.incarnation);
    if (slot == UINT32_MAX || !check_bind(c, call, slot, &bind)) {
        return;
    }
    heft__entry_t *entry = c->entries[slot];
    char family[HEFT__DIGEST_SIZE] = "";
    uint32_t n_ranks = 0;
    char *addresses = read_addresses(c, call, slot, bind.endpoint);
    if (addresses == NULL || !check_contents(c, call, entry, &bind, family, &n_ranks)) {
        heft__free(addresses);
        return;
    }
    const bool changed =
        c->round.members[slot].bound && (strcmp(entry->bind.manifest, bind.manifest) != 0 ||
                                         strcmp(entry->bind.contract, bind.contract) != 0 ||
                                         strcmp(entry->bind.endpoint, bind.endpoint) != 0);
    entry->bind = bind;
    heft__free(entry->addresses);
    entry->addresses = addresses;
    memcpy(entry->family, family, sizeof entry->family);
    entry->n_ranks = n_ranks;
    const int64_t now = heft__clock_mono_ns();
    heft__round_bind(&c->round, slot, changed, now);
    heft__coordinator_settle_locked(c, now);
    heft__call_json(call, 200, json_object());
}

/* ---- poll ---- */

/* What a report of success must bring with it. */
static const char *find_gap(const heft__report_t *report, bool source)
{
    if (report->result != HEFT__RESULT_OK) {
        return NULL;
    }
    switch ((int)report->phase) {
    case HEFT__PHASE_PREFLIGHT:
        if (source) {
            return report->plans[0] == '\0' ? "preflight is ok, but \"plans\" is missing" : NULL;
        }
        return report->plan[0] == '\0' ? "preflight is ok, but \"plan\" is missing" : NULL;
    case HEFT__PHASE_PREPARE:
        return report->source_digest[0] == '\0' ? "prepare is ok, but \"source_digest\" is missing"
                                                : NULL;
    case HEFT__PHASE_STAGE:
        return source && report->digests[0] == '\0' ? "stage is ok, but \"digests\" is missing"
                                                    : NULL;
    case HEFT__PHASE_LIVE:
        return report->live[0] == '\0' ? "live is ok, but \"live\" is missing" : NULL;
    default:
        return NULL;
    }
}

/* feeds: it does what sources do in the present round. */
static const char *find_misfit(const heft__report_t *report, heft__role_t role, bool feeds)
{
    const bool source = role == HEFT__ROLE_SOURCE;
    const bool sends = report->state == HEFT__STATE_PREPARED ||
                       report->state == HEFT__STATE_SENDING || report->state == HEFT__STATE_SENT;
    if (source && report->state != HEFT__STATE_IDLE && !sends) { /* destinations may feed others */
        return "state is one of the other role";
    }
    if (source && (report->serving || report->live_version != 0)) {
        return "a source has no live version and does not serve";
    }
    return find_gap(report, source || feeds);
}

static bool check_report(heft_coordinator_t *c, heft__call_t *call, uint32_t slot,
                         const heft__report_t *report)
{
    const heft__role_t role = c->entries[slot]->identity.role;
    if (report->epoch != c->round.epoch) {
        heft__call_error(call, 409, HEFT_ERR_STALE,
                         "epoch %lld is not the present one, %lld: register again",
                         (long long)report->epoch, (long long)c->round.epoch);
        return false;
    }
    const bool feeds = c->round.members[slot].feeds && heft__round_is_busy(&c->round) &&
                       heft__round_id_equal(report->round, c->round.id);
    const char *misfit = find_misfit(report, role, feeds);
    if (misfit != NULL) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT, "report: %s", misfit);
        return false;
    }
    /* what this very phase needs must be there; what is left of earlier ones need not be any more
     */
    const char *digest = "";
    if (report->result == HEFT__RESULT_OK && report->phase == c->round.phase &&
        heft__round_id_equal(report->round, c->round.id)) {
        digest = report->phase == HEFT__PHASE_PREFLIGHT ? report->plans
                 : report->phase == HEFT__PHASE_STAGE   ? report->digests
                 : report->phase == HEFT__PHASE_LIVE    ? report->live
                                                        : "";
    }
    return check_objects(c, call, &digest, 1);
}

/* The order, if the member has not taken it in; else wait, or say that there is none. */
static void reply_order(heft_coordinator_t *c, heft__call_t *call, uint32_t slot, int64_t now_ns,
                        uint32_t wait_ms)
{
    const int64_t seq = c->round.members[slot].order_seq;
    if (seq != 0 && seq != call->order) {
        heft__order_t order;
        heft_error_t err = HEFT_ERROR_INIT;
        char *text = NULL;
        heft_status_t status = heft__coordinator_order_locked(c, slot, now_ns, &order, &err);
        if (status == HEFT_OK) {
            status = heft__order_encode(&order, &text, &err);
            heft__order_fini(&order);
        }
        if (status != HEFT_OK) {
            heft__call_fail(call, &err);
        } else {
            heft__call_text(call, 200, "application/json", text, strlen(text));
        }
    } else if (wait_ms == 0) {
        heft__call_text(call, 204, "application/json", NULL, 0);
    } else {
        call->waits = HEFT__WAIT_ORDER;
        call->order = seq; /* also when the member has seen a later life's: only a change counts */
        call->deadline_ns = now_ns + (int64_t)wait_ms * MS;
    }
}

static void resume_poll(heft_coordinator_t *c, heft__call_t *call)
{
    const heft__entry_t *entry = c->entries[call->slot];
    if (entry == NULL || entry->poll != call->poll) {
        heft__call_text(call, 204, "application/json", NULL, 0); /* overtaken by a later poll */
    } else {
        reply_order(c, call, call->slot, heft__clock_mono_ns(), 0);
    }
}

/* A round that was found after the record was lost has a result like any other. */
static void note_found(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    if (r->state == HEFT__ROUND_IDLE || r->n_expected == 0 ||
        heft__coordinator_result_slot_locked(c, r->id) != NULL) {
        return;
    }
    heft__result_slot_t *slot = heft__coordinator_new_result_locked(c);
    slot->id = r->id;
    slot->kind = HEFT__KIND_SYNC;
    slot->version = r->version;
}

/* Nobody listens at the endpoints of these, says a source. Of a process that has ended the system
 * has closed the connections to us as well, or is about to: every report of the round says it
 * again. One that lives, but cannot be reached by the source, has one. */
static void note_absent(heft_coordinator_t *c, uint32_t slot, const heft__report_t *report,
                        int64_t now_ns)
{
    const heft__round_t *r = &c->round;
    const bool is_known = heft__round_is_busy(r) && r->members[slot].in_round &&
                          heft__round_id_equal(report->round, r->id);
    for (uint32_t i = 0; is_known && i < report->n_absent; i++) {
        const uint32_t other = heft__coordinator_find_locked(c, report->absent[i]);
        if (other != UINT32_MAX && r->members[other].in_round && !r->members[other].lost &&
            r->members[other].role == HEFT__ROLE_DESTINATION &&
            !heft__server_is_connected_locked(c->server, c->entries[other]->identity.incarnation)) {
            heft__round_gone(&c->round, other, now_ns);
        }
    }
}

void heft__serve_poll_locked(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    if (call->waits == HEFT__WAIT_ORDER) {
        resume_poll(c, call);
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t report;
    if (heft__report_decode(call->body, call->n_body, &report, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    const uint32_t slot = check_life(c, call, id, report.incarnation);
    if (slot == UINT32_MAX || !check_report(c, call, slot, &report)) {
        heft__report_fini(&report);
        return;
    }
    const int64_t now = heft__clock_mono_ns();
    heft__entry_t *entry = c->entries[slot];
    if (report.sequence < c->round.members[slot].report_seq) {
        heft__report_fini(&report);
        heft__call_error(call, 409, HEFT_ERR_STALE, "member %s: a later report has been seen", id);
        return;
    }
    heft__report_fini(&entry->report);
    entry->report = report; /* before the machine acts on it: checks look here */
    note_absent(c, slot, &entry->report, now);
    (void)heft__round_report(&c->round, slot, &entry->report, now, &err);
    note_found(c);
    heft__coordinator_settle_locked(c, now);
    entry->poll++;
    c->dirty = true; /* an older poll of this member need not wait any longer */
    call->slot = slot;
    call->poll = entry->poll;
    call->order = report.order;
    reply_order(c, call, slot, now, report.wait_ms < c->poll_ms ? report.wait_ms : c->poll_ms);
}

/* ---- leave ---- */

void heft__serve_leave_locked(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    if (call->incarnation == NULL || !heft__is_hex(call->incarnation, 32)) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT,
                         "leave: query argument \"incarnation\" is missing or not 32 hex digits");
        return;
    }
    const uint32_t slot = check_life(c, call, id, call->incarnation);
    if (slot == UINT32_MAX) {
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    if (heft__round_leave(&c->round, slot, &err) != HEFT_OK) {
        heft__call_error(call, 409, err.status, "member %s %s", id, err.message);
        return;
    }
    heft__coordinator_log_member_locked(c, slot, "member left");
    heft__coordinator_drop_locked(c, slot);
    c->dirty = true;
    heft__call_json(call, 200, json_object());
}

/* ---- objects ---- */

static bool check_digest(heft__call_t *call, const char *digest)
{
    if (heft__is_hex(digest, HEFT__DIGEST_SIZE - 1)) {
        return true;
    }
    char shown[64];
    heft__call_error(call, 400, HEFT_ERR_FORMAT, "\"%s\" is not a digest",
                     heft__json_show(digest, shown));
    return false;
}

void heft__serve_put_object_locked(heft_coordinator_t *c, heft__call_t *call, const char *digest)
{
    if (!check_digest(call, digest)) {
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t now = heft__clock_mono_ns();
    if (call->n_body > c->objects.max_bytes - c->objects.bytes) {
        heft__coordinator_sweep_locked(c, now); /* make room from what nobody names */
    }
    if (heft__objects_put(&c->objects, digest, call->body, call->n_body, now, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    heft__call_json(call, 200, json_object());
}

void heft__serve_get_object_locked(heft_coordinator_t *c, heft__call_t *call, const char *digest)
{
    if (!check_digest(call, digest)) {
        return;
    }
    const heft__object_t *object = heft__objects_get(&c->objects, digest, heft__clock_mono_ns());
    if (object == NULL) {
        heft__call_error(call, 404, HEFT_ERR_NOT_FOUND, "no object %.16s...", digest);
        return;
    }
    char *copy = heft__malloc(object->n + 1);
    if (copy == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return;
    }
    memcpy(copy, object->data, object->n + 1);
    heft__call_text(call, 200, "application/octet-stream", copy, object->n);
}
