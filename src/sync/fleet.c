/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources and links: who sends in this round, and the staging of every destination that is sent
 * anything, attached. What runs into it is fleet_aim.c's.
 */
#include "sync/fleet.h"

#include <stdio.h>
#include <string.h>

#define ADD_PROBLEM(problems, kind, ...) \
    (void)!heft__problems_add((problems), (kind), NULL, __VA_ARGS__)

void heft__fleet_init(heft__fleet_t *fleet)
{
    *fleet = (heft__fleet_t){ .n_threads = 1 };
}

static void clear(heft__fleet_t *fleet)
{
    /* Runs first: they point into the links' memory. */
    for (uint32_t i = 0; fleet->families != NULL && i < fleet->n_families; i++) {
        heft__family_fini(&fleet->families[i]);
    }
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        heft__remote_close(fleet->links[i].remote);
    }
    heft__free(fleet->families);
    heft__free(fleet->links);
    fleet->families = NULL;
    fleet->links = NULL;
    fleet->n_families = 0;
    fleet->n_links = 0;
    fleet->key[0] = '\0';
    fleet->stage_key[0] = '\0';
}

void heft__fleet_fini(heft__fleet_t *fleet)
{
    clear(fleet);
    heft__sources_fini(&fleet->sources);
}

/* ---- keys ---- */

static void hash_peer(heft__sha256_t *sha, const heft__peer_t *peer)
{
    heft__sha256_update_text(sha, peer->id);
    heft__sha256_update_text(sha, peer->incarnation);
    heft__sha256_update_text(sha, peer->manifest);
    heft__sha256_update_text(sha, peer->contract);
    heft__sha256_update_text(sha, peer->endpoint);
    heft__sha256_update_text(sha, peer->host);
    heft__sha256_update_u64(sha, peer->moves);
    heft__sha256_update_u64(sha, peer->in_place);
}

static void make_key(const char *sources, const heft__peer_t *peers, uint32_t n_peers,
                     char out[HEFT__DIGEST_SIZE])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, sources);
    for (uint32_t i = 0; i < n_peers; i++) {
        hash_peer(&sha, &peers[i]);
    }
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, out);
}

/* ---- sources ---- */

/* Whether source i is one of the ranks that a trainer without replicas has. */
static bool is_plain(const heft__fleet_t *fleet, uint32_t i)
{
    const heft__source_t *source = &fleet->sources.sources[i];
    return source->replica == 0 && source->rank < fleet->n_expected;
}

/* "rank 1, 3 missing"; or, where that cannot be told from the numbers, who is there. */
static void list_ranks(const heft__fleet_t *fleet, char *text, size_t size)
{
    enum { MAX_SHOWN = 8 };
    bool is_plainly = fleet->sources.n < fleet->n_expected;
    for (uint32_t i = 0; i < fleet->sources.n; i++) {
        is_plainly = is_plainly && is_plain(fleet, i);
    }
    const uint32_t end = is_plainly ? fleet->n_expected : fleet->sources.n;
    size_t len = (size_t)snprintf(text, size, is_plainly ? "rank" : "there are");
    for (uint32_t i = 0, n = 0; i < end && n <= MAX_SHOWN && len < size; i++) {
        const char *comma = n > 0 ? "," : "";
        if (is_plainly && heft__sources_find(&fleet->sources, 0, i) != UINT32_MAX) {
            continue;
        }
        if (n++ == MAX_SHOWN) {
            len += (size_t)snprintf(text + len, size - len, ", ...");
        } else if (is_plainly) {
            len += (size_t)snprintf(text + len, size - len, "%s %u", comma, i);
        } else {
            char label[HEFT__SOURCE_LABEL_SIZE];
            heft__source_label(&fleet->sources, i, label);
            len += (size_t)snprintf(text + len, size - len, "%s %s", comma, label);
        }
    }
    if (is_plainly && len < size) {
        (void)snprintf(text + len, size - len, " missing");
    }
}

/* The trainer has said how many ranks it has: a round without one would be incomplete at best, and
 * one that it does not know would never push. */
static heft_status_t check_count(const heft__fleet_t *fleet, heft__problems_t *problems,
                                 heft_error_t *err)
{
    char ranks[240];
    if (fleet->n_expected == 0 || fleet->sources.n == fleet->n_expected) {
        return HEFT_OK;
    }
    list_ranks(fleet, ranks, sizeof ranks);
    ADD_PROBLEM(problems, HEFT__PROBLEM_SIDE, "%u of %u source ranks take part: %s",
                fleet->sources.n, fleet->n_expected, ranks);
    return heft__error_set(err, HEFT_ERR_PROOF, "%u of %u source ranks take part: %s",
                           fleet->sources.n, fleet->n_expected, ranks);
}

static heft_status_t take_sources(heft__fleet_t *fleet, const char *digest,
                                  heft__problems_t *problems, heft_error_t *err)
{
    if (strcmp(fleet->sources.digest, digest) != 0) {
        heft__sources_t sources;
        heft_status_t status = heft__sources_load(fleet->member, digest, &sources, err);
        if (status != HEFT_OK) {
            return status;
        }
        heft__sources_fini(&fleet->sources);
        fleet->sources = sources;
    }
    fleet->number = heft__sources_find(&fleet->sources, fleet->replica, fleet->rank);
    return fleet->number != UINT32_MAX
               ? check_count(fleet, problems, err)
               : heft__error_set(err, HEFT_ERR_STATE,
                                 "this source is not among the %u of the round", fleet->sources.n);
}

/* A source of which nothing is read is a mistake, unless it is a copy of what others send. */
static heft_status_t check_use(const heft__fleet_t *fleet, heft__problems_t *problems,
                               heft_error_t *err)
{
    bool is_needed = false;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        if (fleet->links[i].sends) {
            return HEFT_OK;
        }
    }
    heft_status_t status = heft__holders_is_needed(&fleet->sources, fleet->number, &is_needed, err);
    if (status == HEFT_OK && is_needed) {
        const char *id = heft__member_get_id(fleet->member);
        ADD_PROBLEM(problems, HEFT__PROBLEM_SIDE,
                    "%s is in no route: no destination reads anything that it holds", id);
        status =
            heft__error_set(err, HEFT_ERR_PROOF,
                            "%s is in no route: no destination reads anything that it holds", id);
    }
    return status;
}

/* ---- links ---- */

static heft__link_t *find_link(const heft__fleet_t *fleet, const char *id, const char *incarnation,
                               const char *endpoint)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        heft__link_t *link = &fleet->links[i];
        if (strcmp(link->id, id) == 0 && strcmp(link->incarnation, incarnation) == 0 &&
            strcmp(link->endpoint, endpoint) == 0) {
            return link;
        }
    }
    return NULL;
}

static heft_status_t make_links(heft__fleet_t *fleet, const heft__peer_t *peers, uint32_t n_peers,
                                heft_error_t *err)
{
    fleet->links = heft__calloc(n_peers, sizeof *fleet->links);
    if (fleet->links == NULL) {
        return heft__error_nomem(err, n_peers * sizeof *fleet->links);
    }
    fleet->n_links = n_peers;
    for (uint32_t i = 0; i < n_peers; i++) {
        heft__link_t *link = &fleet->links[i];
        memcpy(link->id, peers[i].id, sizeof link->id);
        memcpy(link->incarnation, peers[i].incarnation, sizeof link->incarnation);
        memcpy(link->manifest, peers[i].manifest, sizeof link->manifest);
        memcpy(link->contract, peers[i].contract, sizeof link->contract);
        memcpy(link->endpoint, peers[i].endpoint, sizeof link->endpoint);
        memcpy(link->host, peers[i].host, sizeof link->host);
        link->moves = peers[i].moves;
        link->in_place = peers[i].in_place;
    }
    return HEFT_OK;
}

static bool is_called_off(void *arg)
{
    const heft__fleet_t *fleet = arg;
    return heft__member_is_called_off(fleet->member, fleet->round);
}

/* What was chosen for a link is said once, and stays. */
static void tell_way(const heft__link_t *link)
{
    heft__log(HEFT_LOG_INFO, "publisher", "to %s by %s", link->id,
              heft__remote_describe(link->remote));
}

static heft_status_t attach_endpoint(heft__fleet_t *fleet, heft__link_t *link, const char *endpoint,
                                     int64_t deadline_mono_ns, heft_error_t *err)
{
    heft__transport_t *transport = NULL;
    char *chosen = NULL;
    heft_status_t status = heft__endpoint_choose(endpoint, fleet->transports, fleet->n_transports,
                                                 &transport, &chosen, err);
    if (status != HEFT_OK) {
        return status;
    }
    const heft__staging_t *layout = &fleet->families[link->family].layouts[link->rank];
    heft__attach_params_t params = { .bytes = link->in_place ? heft__staging_buffer_bytes(layout, 1)
                                                             : layout->bytes,
                                     .deadline_mono_ns = deadline_mono_ns,
                                     .is_called_off = is_called_off,
                                     .is_called_off_arg = fleet };
    heft__member_get_incarnation_bytes(fleet->member, params.incarnation);
    heft_error_t why = HEFT_ERROR_INIT;
    status = heft__remote_attach(transport, chosen, &params, &link->remote, &why);
    heft__free(chosen);
    if (status == HEFT_ERR_SHAPE) { /* for other sources than these: it plans, and moves */
        status = why.status = HEFT_ERR_STALE;
    }
    if (status != HEFT_OK && err != NULL) {
        *err = why;
    }
    if (status == HEFT_OK) {
        tell_way(link);
    }
    fleet->n_attached += status == HEFT_OK;
    link->is_absent = status == HEFT_ERR_PEER;
    return status;
}

static heft_status_t attach_link(heft__fleet_t *fleet, heft__link_t *link, int64_t deadline_mono_ns,
                                 heft_error_t *err)
{
    char *endpoint = NULL;
    size_t n = 0;
    heft_status_t status =
        heft__member_get_object(fleet->member, link->endpoint, &endpoint, &n, err);
    if (status == HEFT_OK) {
        status = attach_endpoint(fleet, link, endpoint, deadline_mono_ns, err);
    }
    heft__free(endpoint);
    return status;
}

/* Connections that still live are taken over; every failure is named, not only the first. */
static heft_status_t attach_links(heft__fleet_t *fleet, heft__fleet_t *old,
                                  int64_t deadline_mono_ns, heft__problems_t *problems,
                                  heft_error_t *err)
{
    heft_status_t first = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        heft__link_t *link = &fleet->links[i];
        heft__link_t *same = find_link(old, link->id, link->incarnation, link->endpoint);
        if (same != NULL && same->remote != NULL && link->remote == NULL &&
            heft__remote_check(same->remote, NULL) == HEFT_OK) {
            link->remote = same->remote;
            same->remote = NULL;
        }
        if (!link->moves || !link->sends || link->remote != NULL) {
            continue;
        }
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = attach_link(fleet, link, deadline_mono_ns, &why);
        if (status == HEFT_ERR_CANCELED) { /* no finding: the round has failed for another reason */
            if (err != NULL) {
                *err = why;
            }
            return status;
        }
        if (status != HEFT_OK) {
            ADD_PROBLEM(problems, HEFT__PROBLEM_TRANSPORT, "%s: %s", link->id, why.message);
            if (first == HEFT_OK) {
                first = status;
                memcpy(fleet->blamed, link->id, sizeof fleet->blamed);
                if (err != NULL) {
                    *err = why;
                }
            }
        }
    }
    return first;
}

static bool is_connected(const heft__fleet_t *fleet)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        if (link->moves && link->sends &&
            (link->remote == NULL || heft__remote_check(link->remote, NULL) != HEFT_OK)) {
            return false;
        }
    }
    return true;
}

/* Plans and connections for these peers, beside the old ones. */
static heft_status_t make_anew(heft__fleet_t *fleet, heft__fleet_t *old, const heft__peer_t *peers,
                               uint32_t n_peers, int64_t deadline_mono_ns,
                               heft__problems_t *problems, heft_error_t *err)
{
    heft_status_t status = make_links(fleet, peers, n_peers, err);
    if (status == HEFT_OK) {
        status = heft__fleet_plan(fleet, old, problems, err);
    }
    if (status == HEFT_OK) {
        status = check_use(fleet, problems, err);
    }
    return status == HEFT_OK ? attach_links(fleet, old, deadline_mono_ns, problems, err) : status;
}

/* What a change of the fleet has cost here: all else is as it was. */
static void tell_work(const heft__fleet_t *fleet, const heft__fleet_t *old)
{
    const uint64_t planned = fleet->n_compiled - old->n_compiled;
    const uint64_t attached = fleet->n_attached - old->n_attached;
    heft__log(HEFT_LOG_INFO, "publisher",
              "%u destinations: %llu of %u layouts planned, %llu connections made",
              (unsigned)fleet->n_links, (unsigned long long)planned, (unsigned)fleet->n_families,
              (unsigned long long)attached);
}

heft_status_t heft__fleet_set(heft__fleet_t *fleet, const char *sources, const heft__peer_t *peers,
                              uint32_t n_peers, int64_t deadline_mono_ns,
                              heft__problems_t *problems, heft_error_t *err)
{
    if (n_peers == 0) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_SIDE, "empty side: 0 destinations");
        return heft__error_set(err, HEFT_ERR_PROOF, "empty side: 0 destinations");
    }
    char key[HEFT__DIGEST_SIZE];
    make_key(sources, peers, n_peers, key);
    fleet->blamed[0] = '\0';
    if (strcmp(key, fleet->key) == 0 && is_connected(fleet)) {
        return HEFT_OK;
    }
    heft_status_t status = take_sources(fleet, sources, problems, err);
    heft__fleet_t old = *fleet;
    fleet->families = NULL;
    fleet->links = NULL;
    fleet->n_families = 0;
    fleet->n_links = 0;
    fleet->key[0] = '\0';
    fleet->stage_key[0] = '\0';
    if (status == HEFT_OK) {
        status = make_anew(fleet, &old, peers, n_peers, deadline_mono_ns, problems, err);
    }
    if (status == HEFT_OK) {
        tell_work(fleet, &old);
    }
    clear(&old);
    if (status == HEFT_OK) {
        memcpy(fleet->key, key, sizeof fleet->key);
    } else if (status != HEFT_ERR_CANCELED && heft__problems_total(problems) == 0 && err != NULL) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_MEMBER, "%s", err->message);
    }
    return status;
}

const char *heft__fleet_get_plan(const heft__fleet_t *fleet, const heft__link_t *link)
{
    return fleet->families[link->family].plan_digests[link->rank];
}

void heft__fleet_drop(heft__fleet_t *fleet, heft__link_t *link)
{
    if (link->remote == NULL) {
        return;
    }
    heft__family_t *family = &fleet->families[link->family];
    heft__family_clear_targets(family); /* they point into the memory that goes */
    fleet->stage_key[0] = '\0';
    heft__remote_close(link->remote);
    link->remote = NULL;
}

heft_status_t heft__fleet_open(heft__fleet_t *fleet, const heft__peer_t *peer,
                               int64_t deadline_mono_ns, heft__link_t **link_out, heft_error_t *err)
{
    heft__link_t *link = find_link(fleet, peer->id, peer->incarnation, peer->endpoint);
    *link_out = link;
    if (link == NULL) {
        return heft__error_set(err, HEFT_ERR_STALE, "%s is not as it was at preflight", peer->id);
    }
    return link->remote != NULL || !link->sends ? HEFT_OK
                                                : attach_link(fleet, link, deadline_mono_ns, err);
}

static heft_status_t mark_links(heft__fleet_t *fleet, const heft__peer_t *peers, uint32_t n_peers,
                                int64_t deadline_mono_ns, heft__blame_t *blame, heft_error_t *err)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        fleet->links[i].is_staged = false;
        fleet->links[i].has_begun = false;
        fleet->links[i].is_unknown = false;
    }
    for (uint32_t i = 0; i < n_peers; i++) {
        if (!peers[i].moves) {
            continue;
        }
        heft__link_t *link = NULL;
        heft_status_t status = heft__fleet_open(fleet, &peers[i], deadline_mono_ns, &link, err);
        if (status != HEFT_OK) {
            blame->peer = link != NULL ? link->id : NULL;
            return status;
        }
        link->is_staged = link->sends;
    }
    return HEFT_OK;
}

heft_status_t heft__fleet_aim(heft__fleet_t *fleet, const heft__peer_t *peers, uint32_t n_peers,
                              int64_t deadline_mono_ns, heft__blame_t *blame, heft_error_t *err)
{
    char key[HEFT__DIGEST_SIZE];
    heft_status_t status = mark_links(fleet, peers, n_peers, deadline_mono_ns, blame, err);
    if (status != HEFT_OK) {
        return status;
    }
    make_key(fleet->key, peers, n_peers, key);
    if (strcmp(key, fleet->stage_key) == 0) {
        return HEFT_OK;
    }
    fleet->stage_key[0] = '\0';
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        status = heft__family_prepare(fleet, f, err);
    }
    if (status == HEFT_OK) {
        memcpy(fleet->stage_key, key, sizeof fleet->stage_key);
    }
    return status;
}
