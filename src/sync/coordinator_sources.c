/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: who holds the model that a round brings. The list of its sources is an object, which
 * members get with the manifests that it names; before anyone plans for it, what they say they hold
 * is put together here, so that all that does not fit is told once, with the members' names.
 */
#include "sync/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "heft/placement.h"

typedef struct side {
    heft_coordinator_t *c;
    uint32_t *slots; /* of the sources, by replica, then rank */
    heft_placement_source_t *sources;
    heft_manifest_t **manifests;
    heft__source_t *list;
    uint32_t n;
    int64_t now_ns;
    heft_error_t *err;
} side_t;

static int by_number(const void *x, const void *y, void *arg)
{
    const heft_coordinator_t *c = arg;
    const heft__register_t *a = &c->entries[*(const uint32_t *)x]->identity;
    const heft__register_t *b = &c->entries[*(const uint32_t *)y]->identity;
    if (a->replica != b->replica) {
        return a->replica < b->replica ? -1 : 1;
    }
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    return strcmp(a->job, b->job);
}

static heft_status_t list_slots(side_t *side)
{
    heft_coordinator_t *c = side->c;
    const size_t most = (size_t)c->round.n_members + 1;
    side->slots = heft__calloc(most, sizeof *side->slots);
    if (side->slots == NULL) {
        return heft__error_nomem(side->err, most * sizeof *side->slots);
    }
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        if (m->used && m->in_round && m->role == HEFT__ROLE_SOURCE && c->entries[i] != NULL) {
            side->slots[side->n++] = i;
        }
    }
    qsort_r(side->slots, side->n, sizeof *side->slots, by_number, c);
    side->sources = heft__calloc((size_t)side->n + 1, sizeof *side->sources);
    side->manifests = heft__calloc((size_t)side->n + 1, sizeof(heft_manifest_t *));
    side->list = heft__calloc((size_t)side->n + 1, sizeof *side->list);
    return side->sources != NULL && side->manifests != NULL && side->list != NULL
               ? HEFT_OK
               : heft__error_nomem(side->err, side->n * sizeof *side->list);
}

static void side_fini(side_t *side)
{
    for (uint32_t i = 0; side->manifests != NULL && i < side->n; i++) {
        heft_manifest_destroy(side->manifests[i]);
    }
    heft__free(side->slots);
    heft__free(side->sources);
    heft__free(side->manifests);
    heft__free(side->list);
}

static void add_problem(side_t *side, const char *text, size_t n)
{
    (void)!heft__problems_add(&side->c->entries[side->slots[0]]->problems, HEFT__PROBLEM_SIDE, NULL,
                              "%.*s", (int)n, text);
}

/* A round has one version for all. Members of another job are of another model: sources are told
 * apart by replica and rank alone, and engines would be given weights that are not theirs. */
static void check_jobs(side_t *side)
{
    const heft_coordinator_t *c = side->c;
    const heft__entry_t *first = c->entries[side->slots[0]];
    for (uint32_t i = 0; i < c->round.n_members; i++) {
        const heft__round_member_t *m = &c->round.members[i];
        const heft__entry_t *other = c->entries[i];
        if (m->used && m->in_round && other != NULL &&
            strcmp(first->identity.job, other->identity.job) != 0) {
            (void)!heft__problems_add(&side->c->entries[side->slots[0]]->problems,
                                      HEFT__PROBLEM_SIDE, NULL,
                                      "%s and %s are of two jobs: a coordinator serves one at a "
                                      "time; end one, or give it "
                                      "a coordinator of its own",
                                      first->id, other->id);
        }
    }
}

/* Where all are on one host, or one does not say where it is, hosts make no difference. */
static bool has_hosts(const side_t *side)
{
    const heft_coordinator_t *c = side->c;
    const char *first = c->entries[side->slots[0]]->identity.host;
    bool differ = false;
    for (uint32_t i = 0; i < side->n; i++) {
        const char *host = c->entries[side->slots[i]]->identity.host;
        if (host[0] == '\0') {
            return false;
        }
        differ = differ || strcmp(host, first) != 0;
    }
    return differ;
}

/* The list as an object of the store. */
static heft_status_t put_list(side_t *side)
{
    heft_coordinator_t *c = side->c;
    const bool says_hosts = has_hosts(side);
    char *text = NULL;
    for (uint32_t i = 0; i < side->n; i++) {
        const heft__entry_t *entry = c->entries[side->slots[i]];
        heft__source_t *source = &side->list[i];
        source->replica = entry->identity.replica;
        source->rank = entry->identity.rank;
        memcpy(source->manifest, entry->bind.manifest, sizeof source->manifest);
        if (says_hosts) {
            memcpy(source->host, entry->identity.host, sizeof source->host);
        }
    }
    heft_status_t status = heft__source_list_encode(side->list, side->n, &text, side->err);
    if (status == HEFT_OK) {
        heft__object_digest(text, strlen(text), c->sources);
        status =
            heft__objects_put(&c->objects, c->sources, text, strlen(text), side->now_ns, side->err);
    }
    heft__free(text);
    return status;
}

static heft_status_t read_manifests(side_t *side)
{
    for (uint32_t i = 0; i < side->n; i++) {
        const heft__entry_t *entry = side->c->entries[side->slots[i]];
        const heft__object_t *object =
            heft__objects_get(&side->c->objects, entry->bind.manifest, side->now_ns);
        if (object == NULL) {
            return heft__error_set(side->err, HEFT_ERR_PROTOCOL, "%s: its manifest is gone",
                                   entry->id);
        }
        heft_status_t status =
            heft_manifest_decode(object->data, object->n, &side->manifests[i], side->err);
        if (status != HEFT_OK) {
            return status;
        }
        side->sources[i] =
            (heft_placement_source_t){ .manifest = side->manifests[i], .label = entry->id };
    }
    return HEFT_OK;
}

static void add_lines(side_t *side, const char *report)
{
    for (const char *line = report; *line != '\0';) {
        const size_t n = strcspn(line, "\n");
        add_problem(side, line, n);
        line += n + (line[n] == '\n' ? 1 : 0);
    }
}

/* What they hold together: problems, or nothing. */
static heft_status_t judge(side_t *side)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_placement_t *placement = NULL;
    heft_manifest_t *whole = NULL;
    char *report = NULL;
    heft_status_t status = read_manifests(side);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_placement_from_sources(side->sources, side->n, NULL, &placement, &whole, &report,
                                         &why);
    if (status == HEFT_OK) {
        memcpy(side->c->agreed, side->c->sources, sizeof side->c->agreed);
    } else if (status == HEFT_ERR_NOMEM) {
        (void)heft__error_nomem(side->err, 0);
    } else {
        if (report != NULL) {
            add_lines(side, report);
        } else {
            add_problem(side, why.message, strlen(why.message));
        }
        status = HEFT_OK; /* it is among the problems */
    }
    heft_string_free(report);
    heft_placement_destroy(placement);
    heft_manifest_destroy(whole);
    return status;
}

static heft_status_t check(side_t *side)
{
    heft_status_t status = list_slots(side);
    if (status != HEFT_OK || side->n == 0) {
        return status;
    }
    for (uint32_t i = 0; i < side->n; i++) {
        heft__problems_fini(&side->c->entries[side->slots[i]]->problems);
    }
    check_jobs(side);
    if (heft__problems_total(&side->c->entries[side->slots[0]]->problems) > 0) {
        return HEFT_OK;
    }
    status = put_list(side);
    if (status == HEFT_OK && strcmp(side->c->agreed, side->c->sources) != 0) {
        status = judge(side);
    }
    return status;
}

void heft__coordinator_check_sources_locked(heft_coordinator_t *c, int64_t now_ns)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__wire_error_t cause;
    int32_t slot = -1;
    side_t side = { .c = c, .now_ns = now_ns, .err = &err };
    if (check(&side) != HEFT_OK) {
        heft__wire_error_set(&cause, HEFT__PHASE_PREFLIGHT, &err);
        heft__round_sources_checked(&c->round, -1, &cause, now_ns);
    } else if (heft__coordinator_count_problems_locked(c, &slot, &cause) > 0) {
        heft__round_sources_checked(&c->round, slot, &cause, now_ns);
    } else {
        heft__round_sources_checked(&c->round, -1, NULL, now_ns);
    }
    side_fini(&side);
}

heft__source_t *heft__coordinator_list_sources_locked(heft_coordinator_t *c, const char *digest,
                                                      uint32_t *n_out)
{
    heft__source_t *sources = NULL;
    const heft__object_t *object =
        digest[0] != '\0' ? heft__objects_get(&c->objects, digest, heft__clock_mono_ns()) : NULL;
    *n_out = 0;
    if (object == NULL ||
        heft__source_list_decode(object->data, object->n, &sources, n_out, NULL) != HEFT_OK) {
        return NULL;
    }
    return sources;
}
