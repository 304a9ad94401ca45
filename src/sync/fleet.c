/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links and targets: attach the staging of every destination that moves, and prepare one run for
 * each family that writes straight into all of them. A receiver that cannot be addressed gets its
 * bytes from a buffer of its rank, shared by all such receivers.
 */
#include "sync/fleet.h"

#include <string.h>

#include "kernel/kernel.h"

#define ADD_PROBLEM(problems, kind, ...) \
    (void)!heft__problems_add((problems), (kind), NULL, __VA_ARGS__)

enum { BOUNCE_ALIGN = 64 };

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
}

/* ---- keys ---- */

static void hash_peer(heft__sha256_t *sha, const heft__peer_t *peer)
{
    heft__sha256_update_text(sha, peer->id);
    heft__sha256_update_text(sha, peer->incarnation);
    heft__sha256_update_text(sha, peer->manifest);
    heft__sha256_update_text(sha, peer->contract);
    heft__sha256_update_text(sha, peer->endpoint);
    heft__sha256_update_u64(sha, peer->moves);
    heft__sha256_update_u64(sha, peer->in_place);
}

static void make_key(const heft__peer_t *peers, uint32_t n_peers, char out[HEFT__DIGEST_SIZE])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    for (uint32_t i = 0; i < n_peers; i++) {
        hash_peer(&sha, &peers[i]);
    }
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, out);
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
        link->moves = peers[i].moves;
        link->in_place = peers[i].in_place;
    }
    return HEFT_OK;
}

static heft__transport_t *find_transport(const heft__fleet_t *fleet, const char *name)
{
    for (uint32_t i = 0; i < fleet->n_transports; i++) {
        if (strcmp(fleet->transports[i]->ops->name, name) == 0) {
            return fleet->transports[i];
        }
    }
    return NULL;
}

static bool is_called_off(void *arg)
{
    const heft__fleet_t *fleet = arg;
    return heft__member_is_called_off(fleet->member, fleet->round);
}

static heft_status_t attach_endpoint(heft__fleet_t *fleet, heft__link_t *link, const char *endpoint,
                                     int64_t deadline_mono_ns, heft_error_t *err)
{
    char name[HEFT__TRANSPORT_SIZE];
    heft_status_t status = heft__endpoint_get_transport(endpoint, name, sizeof name, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__transport_t *transport = find_transport(fleet, name);
    if (transport == NULL) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "it offers transport %s, this source has %s and %u more", name,
                               fleet->transports[0]->ops->name, fleet->n_transports - 1);
    }
    const heft__staging_t *layout = &fleet->families[link->family].layouts[link->rank];
    heft__attach_params_t params = { .bytes = link->in_place ? heft__staging_buffer_bytes(layout, 1)
                                                             : layout->bytes,
                                     .deadline_mono_ns = deadline_mono_ns,
                                     .is_called_off = is_called_off,
                                     .is_called_off_arg = fleet };
    heft__member_get_incarnation_bytes(fleet->member, params.incarnation);
    status = heft__remote_attach(transport, endpoint, &params, &link->remote, err);
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
        if (!link->moves || link->remote != NULL) {
            continue;
        }
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = attach_link(fleet, link, deadline_mono_ns, &why);
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
        if (link->moves &&
            (link->remote == NULL || heft__remote_check(link->remote, NULL) != HEFT_OK)) {
            return false;
        }
    }
    return true;
}

heft_status_t heft__fleet_set(heft__fleet_t *fleet, const heft__peer_t *peers, uint32_t n_peers,
                              int64_t deadline_mono_ns, heft__problems_t *problems,
                              heft_error_t *err)
{
    if (n_peers == 0) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_SIDE, "empty side: 0 destinations");
        return heft__error_set(err, HEFT_ERR_PROOF, "empty side: 0 destinations");
    }
    char key[HEFT__DIGEST_SIZE];
    make_key(peers, n_peers, key);
    fleet->blamed[0] = '\0';
    if (strcmp(key, fleet->key) == 0 && is_connected(fleet)) {
        return HEFT_OK;
    }
    heft__fleet_t old = *fleet;
    fleet->families = NULL;
    fleet->links = NULL;
    fleet->n_families = 0;
    fleet->n_links = 0;
    fleet->key[0] = '\0';
    fleet->stage_key[0] = '\0';
    heft_status_t status = make_links(fleet, peers, n_peers, err);
    if (status == HEFT_OK) {
        status = heft__fleet_plan(fleet, &old, problems, err);
    }
    if (status == HEFT_OK) {
        status = attach_links(fleet, &old, deadline_mono_ns, problems, err);
    }
    clear(&old);
    if (status == HEFT_OK) {
        memcpy(fleet->key, key, sizeof fleet->key);
    } else if (heft__problems_total(problems) == 0 && err != NULL) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_MEMBER, "%s", err->message);
    }
    return status;
}

const char *heft__fleet_get_plan(const heft__fleet_t *fleet, const heft__link_t *link)
{
    return heft_plan_get_rank_digest(fleet->families[link->family].plan, link->rank);
}

void heft__fleet_drop(heft__fleet_t *fleet, heft__link_t *link)
{
    if (link->remote == NULL) {
        return;
    }
    heft__family_t *family = &fleet->families[link->family];
    heft_exec_destroy(family->exec); /* it points into the memory that goes */
    family->exec = NULL;
    fleet->stage_key[0] = '\0';
    heft__remote_close(link->remote);
    link->remote = NULL;
}

/* ---- targets ---- */

static void clear_targets(heft__family_t *family)
{
    heft_exec_destroy(family->exec);
    family->exec = NULL;
    for (uint32_t i = 0; family->target_params != NULL && i < family->n_targets; i++) {
        heft__free(family->target_params[i]);
    }
    heft__free(family->target_params);
    heft__free(family->target_bases);
    heft__free(family->targets);
    family->target_params = NULL;
    family->target_bases = NULL;
    family->targets = NULL;
    family->n_targets = 0;
}

static uint8_t *align_bounce(uint8_t *block)
{
    return block + (BOUNCE_ALIGN - (uintptr_t)block % BOUNCE_ALIGN) % BOUNCE_ALIGN;
}

uint8_t *heft__fleet_get_bounce(const heft__family_t *family, uint32_t rank)
{
    return align_bounce(family->bounces[rank]);
}

/* A target at base; digests only once for each rank: replicas get the same bytes. */
static heft_status_t add_target(heft__family_t *family, uint32_t rank, uint8_t *base,
                                bool with_digests, heft_error_t *err)
{
    const heft__staging_t *layout = &family->layouts[rank];
    size_t n = layout->n_params > 0 ? layout->n_params : 1;
    void **params = heft__calloc(n, sizeof *params);
    if (params == NULL) {
        return heft__error_nomem(err, n * sizeof *params);
    }
    for (uint32_t i = 0; i < layout->n_params; i++) {
        params[i] = base + layout->offsets[i];
    }
    family->target_params[family->n_targets] = params;
    family->target_bases[family->n_targets] = base;
    family->targets[family->n_targets] =
        (heft_exec_target_t){ .rank_index = rank,
                              .params = params,
                              .digests_out = with_digests ? family->digests[rank] : NULL };
    family->n_targets++;
    return HEFT_OK;
}

static heft_status_t add_bounce(heft__family_t *family, uint32_t rank, bool with_digests,
                                heft_error_t *err)
{
    if (family->bounces[rank] == NULL) {
        size_t bytes = (size_t)family->layouts[rank].bytes;
        if (!heft__size_add(bytes, BOUNCE_ALIGN, &bytes)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "buffer for rank %u", rank);
        }
        family->bounces[rank] = heft__malloc(bytes);
        if (family->bounces[rank] == NULL) {
            return heft__error_nomem(err, bytes);
        }
    }
    return add_target(family, rank, align_bounce(family->bounces[rank]), with_digests, err);
}

static heft_status_t add_rank(heft__fleet_t *fleet, uint32_t f, uint32_t rank, heft_error_t *err)
{
    heft__family_t *family = &fleet->families[f];
    uint32_t before = family->n_targets;
    bool needs_bounce = false;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links && status == HEFT_OK; i++) {
        const heft__link_t *link = &fleet->links[i];
        if (!link->is_staged || link->family != f || link->rank != rank) {
            continue;
        }
        if (link->remote->ptr == NULL) {
            needs_bounce = true;
        } else {
            status = add_target(family, rank, link->remote->ptr, family->n_targets == before, err);
        }
    }
    if (status == HEFT_OK && needs_bounce) {
        status = add_bounce(family, rank, family->n_targets == before, err);
    }
    return status;
}

static heft_status_t prepare_family(heft__fleet_t *fleet, uint32_t f, heft_error_t *err)
{
    heft__family_t *family = &fleet->families[f];
    size_t n_max = (size_t)fleet->n_links + family->n_ranks;
    clear_targets(family);
    family->targets = heft__calloc(n_max, sizeof *family->targets);
    family->target_params = heft__calloc(n_max, sizeof *family->target_params);
    family->target_bases = heft__calloc(n_max, sizeof *family->target_bases);
    if (family->targets == NULL || family->target_params == NULL || family->target_bases == NULL) {
        return heft__error_nomem(err, n_max * sizeof *family->targets);
    }
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        heft_status_t status = add_rank(fleet, f, r, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (family->n_targets == 0) {
        return HEFT_OK; /* nobody of this family is served by this source */
    }
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.progress = fleet->progress;
    opts.progress_arg = fleet->progress_arg;
    opts.n_threads = fleet->n_threads;
    return heft_exec_create(family->plan, family->targets, family->n_targets, &opts, &family->exec,
                            err);
}

heft_status_t heft__fleet_open(heft__fleet_t *fleet, const heft__peer_t *peer,
                               int64_t deadline_mono_ns, heft__link_t **link_out, heft_error_t *err)
{
    heft__link_t *link = find_link(fleet, peer->id, peer->incarnation, peer->endpoint);
    *link_out = link;
    if (link == NULL) {
        return heft__error_set(err, HEFT_ERR_STALE, "%s is not as it was at preflight", peer->id);
    }
    return link->remote != NULL ? HEFT_OK : attach_link(fleet, link, deadline_mono_ns, err);
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
        link->is_staged = true;
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
    make_key(peers, n_peers, key);
    if (strcmp(key, fleet->stage_key) == 0) {
        return HEFT_OK;
    }
    fleet->stage_key[0] = '\0';
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        status = prepare_family(fleet, f, err);
    }
    if (status == HEFT_OK) {
        memcpy(fleet->stage_key, key, sizeof fleet->stage_key);
    }
    return status;
}

/* ---- inputs of loaders ---- */

/* What has been copied so far, of how much. */
typedef struct copying {
    const heft__fleet_t *fleet;
    int64_t done;
    int64_t total;
} copying_t;

static heft_status_t copy_tensor(copying_t *copying, uint8_t *to, const uint8_t *from,
                                 int64_t bytes, heft_error_t *err)
{
    for (int64_t at = 0; at < bytes; at += HEFT__CHUNK_BYTES) {
        const int64_t n = heft__min_i64(HEFT__CHUNK_BYTES, bytes - at);
        heft__memcpy(to + at, from + at, n);
        copying->done += n;
        if (copying->fleet->progress(copying->fleet->progress_arg, copying->done, copying->total) !=
            0) {
            return heft__error_set(err, HEFT_ERR_CANCELED, "stopped while copying loader inputs");
        }
    }
    return HEFT_OK;
}

static heft_status_t copy_to_target(copying_t *copying, const heft__family_t *family, uint32_t t,
                                    const void *const *data, const uint64_t *digests,
                                    heft_error_t *err)
{
    const uint32_t rank = family->targets[t].rank_index;
    const heft__inputs_t *inputs = &family->inputs[rank];
    const heft__staging_t *layout = &family->layouts[rank];
    heft_status_t status = HEFT_OK;
    for (uint32_t k = 0; k < inputs->n && status == HEFT_OK; k++) {
        const uint32_t entry = layout->n_params + k;
        const uint32_t source = inputs->sources[k];
        family->digests[rank][entry] = digests[source];
        status = copy_tensor(copying, family->target_bases[t] + layout->offsets[entry],
                             data[source], layout->sizes[entry], err);
    }
    return status;
}

heft_status_t heft__fleet_copy_inputs(heft__fleet_t *fleet, const void *const *data,
                                      const uint64_t *digests, heft_error_t *err)
{
    copying_t copying = { .fleet = fleet };
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        for (uint32_t t = 0; t < fleet->families[f].n_targets; t++) {
            const heft__family_t *family = &fleet->families[f];
            const heft__staging_t *layout = &family->layouts[family->targets[t].rank_index];
            for (uint32_t i = layout->n_params; i < layout->n_entries; i++) {
                copying.total += layout->sizes[i]; /* bounded by the bytes of staging */
            }
        }
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        const heft__family_t *family = &fleet->families[f];
        for (uint32_t t = 0; t < family->n_targets && status == HEFT_OK; t++) {
            status = copy_to_target(&copying, family, t, data, digests, err);
        }
    }
    return status;
}

void heft__fleet_count(const heft__family_t *family, uint32_t rank, int64_t *bytes_out,
                       int64_t *pieces_out)
{
    const heft__staging_t *layout = &family->layouts[rank];
    uint64_t n_pieces = 0;
    int64_t bytes = 0;
    (void)heft_plan_get_pieces(family->plan, rank, &n_pieces);
    for (uint32_t i = 0; i < layout->n_entries; i++) {
        uint64_t n = 1;
        if (i < layout->n_params) {
            (void)heft_plan_get_param_pieces(family->plan, rank, i, &n);
        }
        bytes += n > 0 ? layout->sizes[i] : 0; /* a sum that is bounded by layout->bytes */
    }
    *bytes_out = bytes;
    *pieces_out = (int64_t)n_pieces;
}
