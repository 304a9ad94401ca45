/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: the result of a round as JSON, and what is kept of a round that ended: its result,
 * and the parameter digests that a live verification is compared with.
 */
#include "sync/coordinator.h"

#include <stdio.h>
#include <string.h>

#include "heft/model.h"

#define MAX_DIFFERING 40 /* parameters named for each member */

static const char *id_of(const heft_coordinator_t *c, int32_t slot)
{
    return slot >= 0 && c->entries[slot] != NULL ? c->entries[slot]->id : "coordinator";
}

static bool is_of_round(const heft_coordinator_t *c, uint32_t slot)
{
    const heft__round_member_t *m = &c->round.members[slot];
    return m->used && m->in_round && c->entries[slot] != NULL;
}

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- live verification ---- */

/* The shares of one source for this plan are added to out. false: they are not known any more.
 * *n_found: sources that sent anything of it. */
static bool add_shares(heft_coordinator_t *c, const char *digest, const heft__live_t *live,
                       uint64_t *out, uint32_t *n_found)
{
    const heft__object_t *object = heft__objects_get(&c->objects, digest, heft__clock_mono_ns());
    heft__digest_set_t set;
    if (object == NULL) {
        return false;
    }
    const heft_status_t status =
        heft__digests_decode(object->data, object->n, live->set.plan, &set, NULL);
    if (status != HEFT_OK) {
        return status == HEFT_ERR_NOT_FOUND; /* it sent nothing of this plan */
    }
    const bool whole = set.n_params >= live->set.n_params; /* inputs of loaders come last */
    for (uint32_t i = 0; whole && i < live->set.n_params; i++) {
        out[i] ^= set.params[i];
    }
    heft__free(set.params);
    ++*n_found;
    return whole;
}

/* The digests that a plan's parameters must have at a version: shares of all sources of one round.
 */
static bool expected_digests(heft_coordinator_t *c, const heft__live_t *live, uint64_t *out)
{
    for (int g = 0; g < HEFT__DIGEST_ROUNDS; g++) {
        const heft__digest_round_t *round = &c->digests[g];
        bool whole = round->n > 0 && round->version == live->version;
        uint32_t n_found = 0;
        memset(out, 0, live->set.n_params * sizeof *out);
        for (uint32_t s = 0; whole && s < round->n; s++) {
            whole = add_shares(c, round->objects[s], live, out, &n_found);
        }
        if (whole && n_found > 0) {
            return true;
        }
    }
    return false;
}

static json_t *hex_json(uint64_t digest)
{
    char text[20];
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    return json_string(text);
}

/* The first parameters that differ, by name: plan order is that of the member's manifest. */
static json_t *differing_json(heft_coordinator_t *c, const heft__entry_t *entry,
                              const uint64_t *expected, const heft__digest_set_t *found)
{
    json_t *list = json_array();
    heft_manifest_t *manifest = NULL;
    const heft__object_t *object =
        heft__objects_get(&c->objects, entry->bind.manifest, heft__clock_mono_ns());
    if (object != NULL &&
        heft_manifest_decode(object->data, object->n, &manifest, NULL) != HEFT_OK) {
        manifest = NULL;
    }
    for (uint32_t i = 0; i < found->n_params && json_array_size(list) < MAX_DIFFERING; i++) {
        heft_tensor_info_t info;
        if (expected[i] == found->params[i] || manifest == NULL ||
            heft_manifest_query(manifest, i, &info, NULL) != HEFT_OK) {
            continue;
        }
        json_t *item = json_object();
        (void)heft__json_put(item, "param", heft__json_text(info.name));
        (void)heft__json_put(item, "expected", hex_json(expected[i]));
        (void)heft__json_put(item, "found", hex_json(found->params[i]));
        (void)json_array_append_new(list, item);
    }
    heft_manifest_destroy(manifest);
    return list;
}

/* The engine vouches for all of them: there is nothing that sources could have said. */
static bool is_all_recorded(const heft__live_t *live)
{
    for (uint32_t i = 0; i < live->set.n_params; i++) {
        if (live->is_recorded == NULL || !live->is_recorded[i]) {
            return false;
        }
    }
    return live->set.n_params > 0;
}

static json_t *live_json(heft_coordinator_t *c, uint32_t slot)
{
    const heft__entry_t *entry = c->entries[slot];
    const heft__object_t *object =
        heft__objects_get(&c->objects, entry->report.live, heft__clock_mono_ns());
    heft__live_t live;
    heft_error_t err = HEFT_ERROR_INIT;
    if (object == NULL || heft__live_decode(object->data, object->n, &live, &err) != HEFT_OK) {
        return json_pack("{s:s,s:b,s:s}", "member", entry->id, "match", 0, "error",
                         object == NULL ? "object missing" : err.message);
    }
    json_t *item = json_pack("{s:s,s:I,s:I}", "member", entry->id, "version",
                             (json_int_t)live.version, "params", (json_int_t)live.set.n_params);
    uint64_t *expected = heft__calloc((size_t)live.set.n_params + 1, sizeof *expected);
    if (expected != NULL && (is_all_recorded(&live) || expected_digests(c, &live, expected))) {
        uint32_t differ = 0;
        for (uint32_t i = 0; i < live.set.n_params; i++) {
            if (live.is_recorded != NULL && live.is_recorded[i]) {
                expected[i] = live.recorded[i]; /* the sources cannot know it */
            }
            differ += expected[i] != live.set.params[i];
        }
        (void)heft__json_put(item, "match", json_boolean(differ == 0));
        (void)heft__json_put(item, "differ", json_integer((json_int_t)differ));
        if (differ > 0) {
            (void)heft__json_put(item, "differing", differing_json(c, entry, expected, &live.set));
        }
    }
    heft__free(expected);
    heft__live_fini(&live);
    return item;
}

static json_t *live_list(heft_coordinator_t *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (!is_of_round(c, i) || m->role != HEFT__ROLE_DESTINATION) {
            continue;
        }
        if (!m->moves) { /* nothing to compare */
            (void)json_array_append_new(
                list,
                json_pack("{s:s,s:i,s:i}", "member", c->entries[i]->id, "version", 0, "params", 0));
        } else if (c->entries[i]->report.live[0] != '\0' &&
                   heft__round_id_equal(c->entries[i]->report.round, c->round.id)) {
            (void)json_array_append_new(list, live_json(c, i));
        }
    }
    return list;
}

/* ---- parts ---- */

/* A member that lives is heard once in every poll. */
static const char *contact_text(const heft_coordinator_t *c, int64_t silent_ns)
{
    const int64_t late_ns = (int64_t)c->poll_ms * 1000000 + INT64_C(2000000000);
    return silent_ns > c->round.config.contact_ns ? "lost" : silent_ns > late_ns ? "silent" : "ok";
}

/* `all`: for the status, which also tells when the member was last heard. */
static json_t *member_json(const heft_coordinator_t *c, uint32_t slot, bool all)
{
    const heft__entry_t *entry = c->entries[slot];
    const heft__round_member_t *m = &c->round.members[slot];
    const heft__report_t *report = &entry->report;
    json_t *item =
        json_pack("{s:s,s:s,s:s,s:b,s:b,s:s,s:s,s:s,s:I,s:b,s:s,s:s}", "id", entry->id, "role",
                  heft__role_text(m->role), "incarnation", entry->identity.incarnation, "moves",
                  m->moves, "excluded", m->excluded, "state", heft__state_text(m->state), "phase",
                  heft__phase_text(m->phase), "result", heft__result_text(m->result),
                  "live_version", (json_int_t)m->live_version, "serving", m->serving, "condition",
                  heft__condition_text(m->condition), "order", heft__phase_text(m->target));
    (void)heft__json_put(item, "counters", heft__json_counters(&report->counters));
    if (report->error.status != HEFT_OK && heft__round_id_equal(report->round, c->round.id)) {
        (void)heft__json_put(item, "error", heft__json_error(&report->error));
    }
    if (all) {
        const int64_t silent_ns = heft__max_i64(heft__clock_mono_ns() - m->contact_ns, 0);
        (void)heft__json_put(item, "silent_ms", json_integer(silent_ns / 1000000));
        (void)heft__json_put(item, "contact", json_string(contact_text(c, silent_ns)));
    }
    if (report->ways[0] != '\0') {
        (void)heft__json_put(item, "ways", json_string(report->ways));
    }
    if (m->in_place) {
        (void)heft__json_put(item, "in_place", json_true());
    }
    const uint32_t relay = m->in_round ? heft__round_get_relay(m) : UINT32_MAX;
    if (relay != UINT32_MAX && c->entries[relay] != NULL) {
        (void)heft__json_put(item, "relay", json_string(c->entries[relay]->id));
    }
    if (m->poison != HEFT__POISON_NONE) {
        (void)heft__json_put(item, "poison", json_string(heft__poison_text(m->poison)));
    }
    return item;
}

static json_t *member_list(const heft_coordinator_t *c, bool all)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < c->round.n_members; i++) {
        if (all ? c->entries[i] != NULL && c->round.members[i].used : is_of_round(c, i)) {
            (void)json_array_append_new(list, member_json(c, i, all));
        }
    }
    return list;
}

static void append_problems(json_t *list, const char *member, const heft__problems_t *problems)
{
    json_t *items = heft__json_problems(problems);
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *problem = json_array_get(items, i);
        (void)json_object_set_new(problem, "member", json_string(member));
        (void)json_array_append(list, problem);
    }
    json_decref(items);
}

static json_t *problem_list(const heft_coordinator_t *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < c->round.n_members; i++) {
        if (is_of_round(c, i)) {
            if (heft__round_id_equal(c->entries[i]->report.round, c->round.id)) {
                append_problems(list, c->entries[i]->id, &c->entries[i]->report.problems);
            }
            append_problems(list, c->entries[i]->id, &c->entries[i]->problems);
        }
    }
    return list;
}

static json_t *warning_list(const heft_coordinator_t *c)
{
    json_t *list = json_array();
    const heft__round_t *r = &c->round;
    for (uint32_t i = 0; list != NULL && i < r->n_warnings && i < HEFT__ROUND_MAX_WARNINGS; i++) {
        char text[320];
        (void)snprintf(text, sizeof text, "%s: %s", id_of(c, r->warning_slots[i]), r->warnings[i]);
        (void)json_array_append_new(list, heft__json_text(text));
    }
    return list;
}

static json_t *cause_json(const heft_coordinator_t *c)
{
    json_t *cause = heft__json_error(&c->round.cause);
    (void)heft__json_put(cause, "member", json_string(id_of(c, c->round.cause_slot)));
    return cause;
}

static json_t *seconds_json(const heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    json_t *object = json_object();
    int64_t sum = 0;
    for (int p = HEFT__PHASE_MANIFEST; p < HEFT__N_PHASES; p++) {
        sum += r->elapsed_ns[p];
        if (r->elapsed_ns[p] > 0) {
            (void)heft__json_put(object, heft__phase_text((heft__phase_t)p),
                                 json_real(seconds(r->elapsed_ns[p])));
        }
    }
    (void)heft__json_put(object, "downtime", json_real(seconds(r->downtime_ns)));
    (void)heft__json_put(object, "total",
                         json_real(seconds(heft__round_is_busy(r) ? sum : r->total_ns)));
    return object;
}

static void sum_counters(const heft_coordinator_t *c, int64_t *bytes_out, int64_t *pieces_out)
{
    *bytes_out = 0;
    *pieces_out = 0;
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (is_of_round(c, i) && c->round.members[i].moves &&
            heft__round_id_equal(c->entries[i]->report.round, c->round.id)) {
            *bytes_out += c->entries[i]->report.counters.bytes;
            *pieces_out += c->entries[i]->report.counters.pieces;
        }
    }
}

json_t *heft__coordinator_result_locked(heft_coordinator_t *c, heft__result_slot_t *slot)
{
    const heft__round_t *r = &c->round;
    char id[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(slot->id, id);
    if (!heft__round_id_equal(r->id, slot->id)) { /* its result was lost to lack of memory */
        return json_pack("{s:s,s:s,s:b,s:I}", "round", id, "state", "unknown", "ended", 1,
                         "version", (json_int_t)slot->version);
    }
    int64_t bytes;
    int64_t pieces;
    sum_counters(c, &bytes, &pieces);
    json_t *root =
        json_pack("{s:s,s:s,s:I,s:s,s:s,s:b,s:s,s:I,s:I,s:o,s:o,s:o,s:o}", "round", id, "kind",
                  heft__round_kind_text(slot->kind), "version", (json_int_t)slot->version, "state",
                  heft__round_state_text(r), "phase", heft__phase_text(r->phase), "ended",
                  !heft__coordinator_is_open_locked(c, slot->id), "decision",
                  heft__decision_text(r->decision), "bytes", (json_int_t)bytes, "pieces",
                  (json_int_t)pieces, "members", member_list(c, false), "problems", problem_list(c),
                  "warnings", warning_list(c), "seconds", seconds_json(c));
    (void)heft__json_put(root, "began", json_string(slot->began));
    if (slot->carries != HEFT__CARRIES_UNSAID) {
        (void)heft__json_put(root, "carries", json_string(heft__carries_text(slot->carries)));
    }
    if (root != NULL && r->cause.status != HEFT_OK) {
        (void)heft__json_put(root, "cause", cause_json(c));
    }
    if (root != NULL && slot->kind == HEFT__KIND_LIVE) {
        (void)heft__json_put(root, "live", live_list(c));
    }
    return root;
}

/* ---- the end of a round ---- */

void heft__coordinator_keep_digests_locked(heft_coordinator_t *c)
{
    heft__digest_round_t kept = { .version = c->round.version };
    kept.objects = heft__calloc(c->round.n_members, sizeof *kept.objects);
    if (kept.objects == NULL) {
        return; /* a later live verification will have nothing to compare with, and say so */
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        if (is_of_round(c, i) && c->round.members[i].role == HEFT__ROLE_SOURCE &&
            c->entries[i]->report.digests[0] != '\0') {
            memcpy(kept.objects[kept.n++], c->entries[i]->report.digests, HEFT__DIGEST_SIZE);
        }
    }
    if (kept.n == 0) {
        heft__free(kept.objects);
        return;
    }
    heft__free(c->digests[HEFT__DIGEST_ROUNDS - 1].objects);
    memmove(&c->digests[1], &c->digests[0], (HEFT__DIGEST_ROUNDS - 1) * sizeof c->digests[0]);
    c->digests[0] = kept;
}

/* Add the round to the counters of /metrics. */
static void count_round(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    const bool committed = r->outcome == HEFT__ROUND_COMMITTED;
    if (r->kind == HEFT__KIND_FEED) {
        heft__coordinator_note_feed_locked(c, heft__clock_mono_ns());
        return;
    }
    if (r->outcome == HEFT__ROUND_PARTIAL) {
        return; /* counted when it fell into doubt */
    }
    c->n_rounds[committed ? 0 : r->outcome == HEFT__ROUND_ABORTED ? 1 : 2]++;
    for (int p = 0; p < HEFT__N_PHASES; p++) {
        c->phase_ns[p] += r->elapsed_ns[p];
    }
    if (committed) {
        int64_t bytes;
        int64_t pieces;
        sum_counters(c, &bytes, &pieces);
        c->bytes_moved += bytes;
        c->round_ns += r->total_ns;
        c->downtime_ns += r->downtime_ns;
    }
}

/* The result as text; NULL without memory. Brief: without members and problems. */
static char *render_result(heft_coordinator_t *c, heft__result_slot_t *slot, bool is_brief)
{
    char *text = NULL;
    json_t *root = heft__coordinator_result_locked(c, slot);
    if (root != NULL && is_brief) {
        (void)json_object_del(root, "members");
        (void)json_object_del(root, "problems");
    }
    if (root != NULL) {
        (void)heft__json_finish(root, &text, NULL);
    }
    return text;
}

void heft__coordinator_end_locked(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    heft__result_slot_t *slot = heft__coordinator_result_slot_locked(c, r->id);
    if (slot == NULL) {
        return;
    }
    const bool in_doubt = heft__round_is_busy(r); /* the result is still open to change */
    if (r->kind == HEFT__KIND_SYNC && r->started) {
        c->last_round_ns = r->total_ns;
        c->last_downtime_ns = r->downtime_ns;
    }
    if (!in_doubt && !r->started) {
        slot->id = (heft__round_id_t){ 0, 0 }; /* never begun: its key is free again */
        return;
    }
    char *json = render_result(c, slot, false);
    if (json != NULL) {
        heft__coordinator_queue_result_locked(c, json);
    }
    if (in_doubt) {
        c->n_rounds[3]++;
        heft__free(json);
        return;
    }
    heft__coordinator_judge_relays_locked(c);
    char *summary = render_result(c, slot, true);
    (void)snprintf(slot->state, sizeof slot->state, "%s", heft__round_state_text(r));
    count_round(c);
    const bool decided = r->outcome == HEFT__ROUND_COMMITTED || r->outcome == HEFT__ROUND_PARTIAL;
    if (decided && r->kind == HEFT__KIND_SYNC) {
        heft__coordinator_keep_digests_locked(c);
    }
    slot->json = json;
    slot->summary = summary;
    slot->ended_ns = heft__clock_mono_ns();
}

/* The last push that was refused before it was a round. */
static void put_refusal(const heft_coordinator_t *c, heft__text_t *text)
{
    char *refusal = NULL;
    if (c->refusal.number.seq == 0) {
        return;
    }
    text->failed = heft__refusal_encode(&c->refusal, &refusal, NULL) != HEFT_OK || text->failed;
    heft__text_put(text, ",\"refused\":");
    heft__text_put(text, refusal != NULL ? refusal : "");
    heft__free(refusal);
}

void heft__serve_rounds_locked(heft_coordinator_t *c, heft__call_t *call)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_put(&text, "{\"rounds\":[");
    bool is_first = true;
    for (uint32_t back = 1; back <= HEFT__MAX_RESULTS; back++) {
        heft__result_slot_t *slot =
            &c->results[(c->next_result + HEFT__MAX_RESULTS - back) % HEFT__MAX_RESULTS];
        if (slot->id.epoch == 0) {
            continue;
        }
        char *summary = slot->summary == NULL ? render_result(c, slot, true) : NULL;
        const char *item = slot->summary != NULL ? slot->summary : summary;
        text.failed = text.failed || item == NULL;
        heft__text_put(&text, is_first ? "" : ",");
        heft__text_put(&text, item != NULL ? item : "");
        is_first = false;
        heft__free(summary);
    }
    heft__text_put(&text, "]");
    put_refusal(c, &text);
    heft__text_put(&text, "}");
    const size_t n = text.len;
    char *taken = heft__text_take(&text);
    heft__text_fini(&text);
    if (taken == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return;
    }
    heft__call_text(call, 200, "application/json", taken, n);
}

static void mark_sources(heft_coordinator_t *c, const char *digest)
{
    uint32_t n = 0;
    heft__source_t *sources = heft__coordinator_list_sources_locked(c, digest, &n);
    heft__objects_mark(&c->objects, digest);
    for (uint32_t i = 0; i < n; i++) {
        heft__objects_mark(&c->objects, sources[i].manifest);
    }
    heft__free(sources);
}

void heft__coordinator_sweep_locked(heft_coordinator_t *c, int64_t before_ns)
{
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__entry_t *entry = c->entries[i];
        if (entry != NULL) {
            heft__objects_mark(&c->objects, entry->bind.manifest);
            heft__objects_mark(&c->objects, entry->bind.contract);
            mark_sources(c, entry->bind.sources);
            heft__objects_mark(&c->objects, entry->bind.mapping);
            heft__objects_mark(&c->objects, entry->bind.endpoint);
            heft__objects_mark(&c->objects, entry->report.plans);
            heft__objects_mark(&c->objects, entry->report.digests);
            heft__objects_mark(&c->objects, entry->report.live);
        }
    }
    heft__objects_mark(&c->objects, c->sources);
    for (int g = 0; g < HEFT__DIGEST_ROUNDS; g++) {
        for (uint32_t s = 0; s < c->digests[g].n; s++) {
            heft__objects_mark(&c->objects, c->digests[g].objects[s]);
        }
    }
    heft__objects_sweep(&c->objects, before_ns);
}

/* ---- status ---- */

json_t *heft__coordinator_status_locked(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    int32_t slot;
    const char *why = "";
    const bool poisoned = heft__round_is_poisoned(r, &slot, &why);
    uint32_t n[3] = { 0, 0, 0 };
    for (uint32_t i = 0; i < r->n_members; i++) {
        n[r->members[i].used ? r->members[i].role : 0]++;
    }
    json_t *root = json_pack(
        "{s:I,s:I,s:I,s:s,s:b,s:I,s:I,s:o,s:{s:I,s:I}}", "epoch", (json_int_t)r->epoch, "sequence",
        (json_int_t)r->seq, "committed_version", (json_int_t)r->committed_version, "state",
        heft__round_is_busy(r) ? heft__round_state_text(r) : "idle", "poisoned", poisoned,
        "sources", (json_int_t)n[HEFT__ROLE_SOURCE], "destinations",
        (json_int_t)n[HEFT__ROLE_DESTINATION], "members", member_list(c, true), "objects", "count",
        (json_int_t)c->objects.n_items, "bytes", (json_int_t)c->objects.bytes);
    if (r->committed_version > 0) {
        (void)heft__json_put(root, "committed_digest", json_string(r->committed_digest));
    }
    if (heft__round_is_busy(r)) {
        (void)heft__json_put(root, "kind", json_string(heft__round_kind_text(r->kind)));
    }
    if (c->draining) {
        (void)heft__json_put(root, "draining", json_true());
    }
    if (poisoned) {
        char text[320];
        const char *remedy =
            slot >= 0 ? heft__poison_remedy(r->members[slot].poison) : ""; /* else it says so */
        (void)snprintf(text, sizeof text, "%s: %s%s%s", id_of(c, slot), why,
                       remedy[0] != '\0' ? "; " : "", remedy);
        (void)heft__json_put(root, "reason", json_string(text));
    }
    if (r->id.epoch > 0) {
        char id[HEFT__ROUND_TEXT_SIZE];
        heft__round_id_format(r->id, id);
        (void)heft__json_put(root, "round", json_string(id));
    }
    return root;
}
