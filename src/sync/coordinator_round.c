/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: what callers and operators ask for: begin (three kinds), get, cancel, recover.
 */
#include "sync/coordinator.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS INT64_C(1000000)
#define MAX_WAIT_S 60
#define TELL_NS (2000 * MS) /* who follows a round asks again within this, or is gone */

/* ---- results ---- */

heft__result_slot_t *heft__coordinator_result_slot_locked(heft_coordinator_t *c,
                                                          heft__round_id_t id)
{
    for (uint32_t i = 0; i < HEFT__MAX_RESULTS; i++) {
        if (c->results[i].id.epoch > 0 && heft__round_id_equal(c->results[i].id, id)) {
            return &c->results[i];
        }
    }
    return NULL;
}

heft__result_slot_t *heft__coordinator_new_result_locked(heft_coordinator_t *c)
{
    heft__result_slot_t *slot = &c->results[c->next_result];
    c->next_result = (c->next_result + 1) % HEFT__MAX_RESULTS;
    heft__free(slot->json);
    heft__free(slot->summary);
    memset(slot, 0, sizeof *slot);
    heft__clock_utc_text(slot->began);
    return slot;
}

static heft__result_slot_t *find_key(heft_coordinator_t *c, const char *key)
{
    for (uint32_t i = 0; i < HEFT__MAX_RESULTS; i++) {
        if (c->results[i].id.epoch > 0 && strcmp(c->results[i].key, key) == 0) {
            return &c->results[i];
        }
    }
    return NULL;
}

bool heft__coordinator_is_open_locked(const heft_coordinator_t *c, heft__round_id_t id)
{
    return heft__round_id_equal(c->round.id, id) && heft__round_is_busy(&c->round) &&
           c->round.state != HEFT__ROUND_UNKNOWN && c->round.state != HEFT__ROUND_PARTIAL;
}

/* ---- begin ---- */

typedef struct verify_message {
    char key[HEFT__KEY_SIZE];
} verify_message_t;

static const heft__field_t verify_fields[] = {
    { "key", HEFT__FIELD_TEXT, true, offsetof(verify_message_t, key), 1, HEFT__KEY_SIZE, NULL },
    { "members", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
static const heft__field_t preflight_fields[] = {
    { "key", HEFT__FIELD_TEXT, true, offsetof(verify_message_t, key), 1, HEFT__KEY_SIZE, NULL },
    HEFT__FIELD_END
};

/* Preflight and verify are begun with less: a key, and for verify a list of members. */
static heft_status_t decode_small(const heft__call_t *call, heft__round_kind_t kind,
                                  heft__begin_t *out, heft_error_t *err)
{
    const char *what = heft__round_kind_text(kind);
    verify_message_t msg;
    json_t *root = NULL;
    memset(out, 0, sizeof *out);
    heft_status_t status = heft__json_parse(call->body, call->n_body, what, &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__json_read(root, kind == HEFT__KIND_LIVE ? verify_fields : preflight_fields, what,
                             &msg, err);
    const json_t *members = json_object_get(root, "members");
    if (status == HEFT_OK && members != NULL) {
        status = heft__json_read_ids(members, what, "members", &out->destinations,
                                     &out->n_destinations, err);
    }
    if (status == HEFT_OK) {
        memcpy(out->key, msg.key, sizeof out->key);
    } else {
        heft__begin_fini(out);
    }
    json_decref(root);
    return status;
}

static void set_limits(heft__round_request_t *request, const heft__deadlines_t *d)
{
    int64_t *limit = request->limit_ns;
    limit[HEFT__PHASE_MANIFEST] = d->preflight_ms * MS;
    limit[HEFT__PHASE_PREFLIGHT] = d->preflight_ms * MS;
    limit[HEFT__PHASE_PREPARE] = d->prepare_ms * MS;
    limit[HEFT__PHASE_STAGE] = d->stage_ms * MS;
    limit[HEFT__PHASE_VERIFY] = d->verify_ms * MS;
    limit[HEFT__PHASE_PAUSE] = d->pause_ms * MS;
    limit[HEFT__PHASE_DECIDE] = d->decide_ms * MS;
    limit[HEFT__PHASE_FLIP] = d->flip_ms * MS;
    limit[HEFT__PHASE_RESUME] = d->resume_ms * MS;
    limit[HEFT__PHASE_RELEASE] = d->release_ms * MS;
    limit[HEFT__PHASE_ABORT] = d->abort_ms * MS;
}

static heft_status_t find_slots(heft_coordinator_t *c, const heft__begin_t *begin,
                                uint32_t **slots_out, heft_error_t *err)
{
    char shown[64];
    if (begin->n_destinations == 0) {
        return HEFT_OK;
    }
    uint32_t *slots = heft__calloc(begin->n_destinations, sizeof *slots);
    if (slots == NULL) {
        return heft__error_nomem(err, begin->n_destinations * sizeof *slots);
    }
    for (uint32_t i = 0; i < begin->n_destinations; i++) {
        const char *id = begin->destinations[i];
        slots[i] = heft__coordinator_find_locked(c, id);
        heft_status_t status = HEFT_OK;
        if (slots[i] == UINT32_MAX) {
            status = heft__error_set(err, HEFT_ERR_NOT_FOUND, "member %s is not registered here",
                                     heft__json_show(id, shown));
        } else if (c->entries[slots[i]]->identity.role != HEFT__ROLE_DESTINATION) {
            status = heft__error_set(err, HEFT_ERR_FORMAT, "member %s is not a destination", id);
        }
        if (status != HEFT_OK) {
            heft__free(slots);
            return status;
        }
    }
    *slots_out = slots;
    return HEFT_OK;
}

static void reply_begun(heft_coordinator_t *c, heft__call_t *call)
{
    const heft__result_slot_t *slot = heft__coordinator_result_slot_locked(c, call->round);
    if (slot == NULL) {
        heft__call_error(call, 500, HEFT_ERR_IO,
                         "the coordinator's state file cannot be written: the round did not begin");
        return;
    }
    const bool open = heft__round_id_equal(c->round.id, call->round) && slot->json == NULL;
    char text[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(call->round, text);
    heft__call_json(call, call->fresh ? 202 : 200,
                    json_pack("{s:s,s:s}", "round", text, "state",
                              open ? heft__round_state_text(&c->round) : slot->state));
}

static void wait_stored(heft_coordinator_t *c, heft__call_t *call)
{
    if (heft__round_id_equal(c->round.id, call->round) && c->round.state == HEFT__ROUND_STORING) {
        call->waits = HEFT__WAIT_STORED;
        call->deadline_ns = heft__clock_mono_ns() + (int64_t)c->decide_ms * MS;
    } else {
        reply_begun(c, call);
    }
}

/* The same key: the same round. */
static void reply_known(heft_coordinator_t *c, heft__call_t *call, const heft__result_slot_t *slot,
                        heft__round_kind_t kind, int64_t version)
{
    char text[HEFT__ROUND_TEXT_SIZE];
    if (slot->kind != kind || slot->version != version) {
        heft__round_id_format(slot->id, text);
        heft__call_error(call, 409, HEFT_ERR_STATE,
                         "key \"%s\" belongs to round %s of kind %s and version %lld", slot->key,
                         text, heft__round_kind_text(slot->kind), (long long)slot->version);
        return;
    }
    call->round = slot->id;
    call->fresh = false;
    wait_stored(c, call);
}

/* A push that was refused is no round: the other ranks of its trainer, which wait for one, find it
 * here. */
static void note_refusal(heft_coordinator_t *c, heft__round_kind_t kind, int64_t version,
                         const heft_error_t *err)
{
    if (kind == HEFT__KIND_SYNC) {
        c->refusal.number.epoch = c->round.epoch;
        c->refusal.number.seq++;
        c->refusal.version = version;
        c->refusal.status = err->status;
        (void)snprintf(c->refusal.message, sizeof c->refusal.message, "%s", err->message);
    }
}

/* Why the machine refuses, with the member's name where one is to blame. */
static void refuse_begin(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind,
                         int64_t version, heft_error_t *err)
{
    int32_t slot;
    const char *why;
    if (err->status == HEFT_ERR_POISONED && heft__round_is_poisoned(&c->round, &slot, &why) &&
        slot >= 0 && c->entries[slot] != NULL) {
        const char *remedy = heft__poison_remedy(c->round.members[slot].poison);
        (void)heft__error_set(err, HEFT_ERR_POISONED, "member %s: %s; %s", c->entries[slot]->id,
                              why, remedy);
    }
    note_refusal(c, kind, version, err);
    heft__call_fail(call, err);
}

static void refuse_draining(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind,
                            int64_t version)
{
    heft_error_t err = HEFT_ERROR_INIT;
    (void)heft__error_set(&err, HEFT_ERR_BUSY,
                          "the coordinator is shutting down and begins no more rounds: push again "
                          "once it is back");
    note_refusal(c, kind, version, &err);
    heft__call_error(call, 503, err.status, "%s", err.message);
}

/* A push goes before a feed, which is called off as far as it still can be. What calls it off, or
 * is begun meanwhile, waits for its end; true: it does. */
static bool wait_fed(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind)
{
    const int64_t now = heft__clock_mono_ns();
    const bool was_waiting = call->waits == HEFT__WAIT_FED;
    call->waits = HEFT__WAIT_NONE;
    if (!heft__round_is_feeding(&c->round) || (was_waiting && now >= call->deadline_ns)) {
        return false;
    }
    if (kind == HEFT__KIND_SYNC) {
        heft__round_cancel(&c->round, now);
        heft__coordinator_settle_locked(c, now);
    }
    if (!was_waiting) {
        call->deadline_ns = now + (int64_t)c->decide_ms * MS;
    }
    c->feed_hold_ns = heft__max_i64(c->feed_hold_ns, call->deadline_ns);
    call->waits = heft__round_is_feeding(&c->round) ? HEFT__WAIT_FED : HEFT__WAIT_NONE;
    return call->waits == HEFT__WAIT_FED;
}

static void begin_round(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind,
                        const heft__begin_t *begin)
{
    if (wait_fed(c, call, kind)) {
        return;
    }
    c->feed_at_ns = 0;
    c->feed_hold_ns = 0;
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t *slots = NULL;
    if (find_slots(c, begin, &slots, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    heft__round_request_t request = { .kind = kind,
                                      .version = begin->version,
                                      .relays = c->relay != HEFT__RELAY_OFF };
    request.slots = slots;
    request.n_slots = begin->n_destinations;
    set_limits(&request, &begin->deadlines);
    const int64_t now = heft__clock_mono_ns();
    heft_status_t status = heft__round_begin(&c->round, &request, now, &err);
    heft__free(slots);
    if (status != HEFT_OK) {
        refuse_begin(c, call, kind, begin->version, &err);
        return;
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (c->entries[i] != NULL) {
            heft__problems_fini(&c->entries[i]->problems);
        }
    }
    heft__result_slot_t *slot = heft__coordinator_new_result_locked(c);
    slot->id = c->round.id;
    slot->kind = kind;
    slot->version = begin->version;
    slot->carries = begin->carries;
    memcpy(slot->key, begin->key, sizeof slot->key);
    heft__coordinator_settle_locked(c, now);
    call->round = slot->id;
    call->fresh = true;
    wait_stored(c, call);
}

/* A round brings whole weights of everything that the destinations' contracts map. What asks for
 * less is refused before anything is disturbed; false with the reply set. */
static bool check_cargo(heft__call_t *call, const heft__begin_t *begin)
{
    char shown[64];
    if (begin->carries == HEFT__CARRIES_ADAPTER) {
        heft__call_error(call, 422, HEFT_ERR_UNSUPPORTED,
                         "carries \"adapter\": a round brings whole weights: merge the adapter "
                         "into them and say \"merged\", or push the \"base\"");
        return false;
    }
    for (uint32_t i = 0; i < begin->n_models; i++) {
        if (strcmp(begin->models[i], "target") != 0) {
            heft__call_error(call, 422, HEFT_ERR_UNSUPPORTED,
                             "model %s: a round brings every model that the contracts of its "
                             "destinations map; one that must stay as it is is frozen there",
                             heft__json_show(begin->models[i], shown));
            return false;
        }
    }
    return true;
}

void heft__serve_begin_locked(heft_coordinator_t *c, heft__call_t *call, heft__round_kind_t kind)
{
    if (call->waits == HEFT__WAIT_STORED) {
        reply_begun(c, call);
        return;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft__begin_t begin;
    heft_status_t status = kind == HEFT__KIND_SYNC
                               ? heft__begin_decode(call->body, call->n_body, &begin, &err)
                               : decode_small(call, kind, &begin, &err);
    if (status != HEFT_OK) {
        /* a version that is missing is a malformed request, not a conflict */
        heft__call_error(call, 400, status, "%s", err.message);
        return;
    }
    const heft__result_slot_t *known = find_key(c, begin.key);
    if (!check_cargo(call, &begin)) {
        heft__begin_fini(&begin);
        return;
    }
    if (known != NULL) {
        reply_known(c, call, known, kind, begin.version);
    } else if (c->draining) {
        refuse_draining(c, call, kind, begin.version);
    } else {
        begin_round(c, call, kind, &begin);
    }
    heft__begin_fini(&begin);
}

/* ---- get and cancel ---- */

static heft__result_slot_t *find_round(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    char shown[64];
    heft__round_id_t round;
    if (!heft__round_id_parse(id, &round)) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT, "\"%s\" is not a round (epoch.sequence)",
                         heft__json_show(id, shown));
        return NULL;
    }
    heft__result_slot_t *slot = heft__coordinator_result_slot_locked(c, round);
    if (slot == NULL) {
        heft__call_error(call, 404, HEFT_ERR_NOT_FOUND, "round %s is not known here", id);
    }
    return slot;
}

static void reply_round(heft_coordinator_t *c, heft__call_t *call, heft__result_slot_t *slot)
{
    slot->was_asked = true;
    if (slot->json == NULL) {
        heft__call_json(call, 200, heft__coordinator_result_locked(c, slot));
        return;
    }
    slot->was_told = true;
    char *copy = heft__strdup(slot->json);
    if (copy == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return;
    }
    heft__call_text(call, 200, "application/json", copy, strlen(copy));
}

bool heft__coordinator_owes_end_locked(const heft_coordinator_t *c, int64_t now_ns)
{
    for (uint32_t i = 0; i < HEFT__MAX_RESULTS; i++) {
        const heft__result_slot_t *slot = &c->results[i];
        if (slot->json != NULL && slot->was_asked && !slot->was_told &&
            now_ns - slot->ended_ns < TELL_NS) {
            return true;
        }
    }
    return false;
}

static bool parse_wait(const char *text, int64_t *seconds_out)
{
    char *end = NULL;
    const long value = text != NULL ? strtol(text, &end, 10) : 0;
    const bool ok = text == NULL || (end != text && *end == '\0');
    *seconds_out = value;
    return ok && value >= 0 && value <= MAX_WAIT_S;
}

void heft__serve_get_round_locked(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    heft__result_slot_t *slot = find_round(c, call, id);
    int64_t seconds = 0;
    if (slot == NULL) {
        return;
    }
    if (!parse_wait(call->wait, &seconds)) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT,
                         "query argument \"wait\" is not a number of seconds, 0 to %d", MAX_WAIT_S);
        return;
    }
    const bool again = call->waits == HEFT__WAIT_ENDED;
    if (!again && seconds > 0 && heft__coordinator_is_open_locked(c, slot->id)) {
        slot->was_asked = true;
        call->waits = HEFT__WAIT_ENDED;
        call->round = slot->id;
        call->deadline_ns = heft__clock_mono_ns() + seconds * 1000 * MS;
        return;
    }
    reply_round(c, call, slot);
}

void heft__serve_cancel_locked(heft_coordinator_t *c, heft__call_t *call, const char *id)
{
    heft_error_t err = HEFT_ERROR_INIT;
    if (call->n_body > 0) {
        const heft__field_t none[] = { HEFT__FIELD_END };
        uint32_t nothing = 0;
        if (heft__json_decode_flat(call->body, call->n_body, none, "cancel", &nothing, &err) !=
            HEFT_OK) {
            heft__call_fail(call, &err);
            return;
        }
    }
    const heft__result_slot_t *slot = find_round(c, call, id);
    if (slot == NULL) {
        return;
    }
    call->round = slot->id;
    call->fresh = true;
    if (heft__round_id_equal(c->round.id, slot->id)) {
        const int64_t now = heft__clock_mono_ns();
        heft__round_cancel(&c->round, now);
        heft__coordinator_settle_locked(c, now);
    }
    reply_begun(c, call);
}

/* ---- recover ---- */

typedef struct claim_message {
    char id[HEFT__ID_SIZE];
    char claim[32];
} claim_message_t;

static const heft__field_t claim_fields[] = {
    { "id", HEFT__FIELD_TEXT, true, offsetof(claim_message_t, id), 1, HEFT__ID_SIZE, NULL },
    { "claim", HEFT__FIELD_TEXT, true, offsetof(claim_message_t, claim), 1, 32, NULL },
    HEFT__FIELD_END
};
static const heft__field_t recover_fields[] = {
    { "members", HEFT__FIELD_LIST, true, 0, 0, 0, NULL }, HEFT__FIELD_END
};

static bool parse_claim(const char *text, heft__claim_t *out)
{
    static const struct {
        const char *text;
        heft__claim_t claim;
    } claims[] = { { "restarted", HEFT__CLAIM_RESTARTED },
                   { "fenced", HEFT__CLAIM_FENCED },
                   { "removed", HEFT__CLAIM_REMOVED },
                   { "retry", HEFT__CLAIM_RETRY },
                   { "refill", HEFT__CLAIM_REFILL } };
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        if (strcmp(claims[i].text, text) == 0) {
            *out = claims[i].claim;
            return true;
        }
    }
    return false;
}

/* One claim; false with the reply set. */
static bool recover_member(heft_coordinator_t *c, heft__call_t *call, json_t *item)
{
    heft_error_t err = HEFT_ERROR_INIT;
    claim_message_t msg;
    heft__claim_t claim;
    char shown[64];
    if (!json_is_object(item)) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT, "recover members: not a list of objects");
        return false;
    }
    if (heft__json_read(item, claim_fields, "recover members", &msg, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return false;
    }
    if (!parse_claim(msg.claim, &claim)) {
        heft__call_error(call, 400, HEFT_ERR_FORMAT,
                         "claim \"%s\" is none of restarted, fenced, retry, refill, removed",
                         heft__json_show(msg.claim, shown));
        return false;
    }
    const uint32_t slot = heft__coordinator_find_locked(c, msg.id);
    if (slot == UINT32_MAX) {
        heft__call_error(call, 404, HEFT_ERR_NOT_FOUND, "member %s is not known here",
                         heft__json_show(msg.id, shown));
        return false;
    }
    const int64_t now = heft__clock_mono_ns();
    if (heft__round_recover(&c->round, slot, claim, now, &err) != HEFT_OK) {
        heft__call_error(call, 409, err.status, "member %s: %s", msg.id, err.message);
        return false;
    }
    if (claim == HEFT__CLAIM_REMOVED) {
        memcpy(c->removed[c->next_removed], c->entries[slot]->identity.incarnation,
               HEFT__INCARNATION_SIZE);
        c->next_removed = (c->next_removed + 1) % HEFT__MAX_REMOVED;
        heft__coordinator_drop_locked(c, slot);
    }
    heft__coordinator_settle_locked(c, now);
    return true;
}

void heft__serve_recover_locked(heft_coordinator_t *c, heft__call_t *call)
{
    heft_error_t err = HEFT_ERROR_INIT;
    json_t *root = NULL;
    uint32_t nothing = 0;
    if (heft__json_parse(call->body, call->n_body, "recover", &root, &err) != HEFT_OK) {
        heft__call_fail(call, &err);
        return;
    }
    if (heft__json_read(root, recover_fields, "recover", &nothing, &err) != HEFT_OK) {
        json_decref(root);
        heft__call_fail(call, &err);
        return;
    }
    json_t *list = json_object_get(root, "members");
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        ok = recover_member(c, call, json_array_get(list, i));
    }
    json_decref(root);
    if (ok) {
        heft__call_json(call, 200, heft__coordinator_status_locked(c));
    }
}
