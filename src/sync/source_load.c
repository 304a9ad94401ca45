/* SPDX-License-Identifier: Apache-2.0 */
/* The texts are kept: what a member is bound to it must be able to put again. */
#include "sync/sources.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

#include "heft/names.h"

void heft__sources_fini(heft__sources_t *sources)
{
    heft_placement_destroy(sources->placement);
    for (uint32_t i = 0; i < sources->n_views; i++) {
        heft_placement_destroy(sources->views[i].placement);
    }
    heft__free(sources->views);
    heft_manifest_destroy(sources->whole);
    for (uint32_t r = 0; r < sources->n; r++) {
        if (sources->manifests != NULL) {
            heft_manifest_destroy(sources->manifests[r]);
        }
        if (sources->texts != NULL) {
            heft__free(sources->texts[r]);
        }
    }
    heft__free(sources->manifests);
    heft__free(sources->texts);
    heft__free(sources->text);
    heft__free(sources->sources);
    *sources = (heft__sources_t){ .n = 0 };
}

static heft_status_t alloc(heft__sources_t *s, heft_error_t *err)
{
    s->manifests = heft__calloc(s->n, sizeof(heft_manifest_t *));
    s->texts = heft__calloc(s->n, sizeof(char *));
    return s->manifests != NULL && s->texts != NULL
               ? HEFT_OK
               : heft__error_nomem(err, s->n * sizeof(heft_manifest_t *));
}

/* Hosts by number: that of the first source on it. */
static void number_hosts(const heft__sources_t *s, uint32_t *hosts)
{
    for (uint32_t r = 0; r < s->n; r++) {
        hosts[r] = 0;
        while (strcmp(s->sources[hosts[r]].host, s->sources[r].host) != 0) {
            hosts[r]++;
        }
    }
}

/* What the manifests say together. whole_out may be NULL. */
static heft_status_t put_together(const heft__sources_t *s, const heft_placement_opts_t *opts,
                                  heft_placement_t **placement_out, heft_manifest_t **whole_out,
                                  heft_error_t *err)
{
    heft_manifest_t *whole = NULL;
    heft_placement_source_t *list = heft__calloc(s->n, sizeof *list);
    char(*labels)[48] = heft__calloc(s->n, sizeof *labels);
    heft_status_t status = list != NULL && labels != NULL
                               ? HEFT_OK
                               : heft__error_nomem(err, s->n * (sizeof *list + sizeof *labels));
    for (uint32_t r = 0; r < s->n && status == HEFT_OK; r++) {
        (void)snprintf(labels[r], sizeof labels[r], "source %u.%u", (unsigned)s->sources[r].replica,
                       (unsigned)s->sources[r].rank);
        list[r] = (heft_placement_source_t){ .manifest = s->manifests[r], .label = labels[r] };
    }
    if (status == HEFT_OK) {
        status = heft_placement_from_sources(list, s->n, opts, placement_out, &whole, NULL, err);
    }
    if (whole_out != NULL) {
        *whole_out = whole;
    } else {
        heft_manifest_destroy(whole);
    }
    heft__free(list);
    heft__free(labels);
    return status;
}

static heft_status_t load_manifest(heft__sources_t *s, uint32_t r, heft__member_t *member,
                                   heft_error_t *err)
{
    size_t n = 0;
    heft_status_t status =
        heft__member_get_object(member, s->sources[r].manifest, &s->texts[r], &n, err);
    return status == HEFT_OK ? heft_manifest_decode(s->texts[r], n, &s->manifests[r], err) : status;
}

static heft_status_t load(heft__member_t *member, const char *digest, heft__sources_t *s,
                          heft_error_t *err)
{
    size_t n = 0;
    heft_status_t status = heft__member_get_object(member, digest, &s->text, &n, err);
    if (status == HEFT_OK) {
        status = heft__source_list_decode(s->text, n, &s->sources, &s->n, err);
        s->has_hosts = status == HEFT_OK && s->sources[0].host[0] != '\0';
    }
    if (status == HEFT_OK) {
        status = alloc(s, err);
    }
    for (uint32_t r = 0; r < s->n && status == HEFT_OK; r++) {
        status = load_manifest(s, r, member, err);
    }
    if (status == HEFT_OK) {
        status = put_together(s, NULL, &s->placement, &s->whole, err);
    }
    (void)snprintf(s->digest, sizeof s->digest, "%s", digest);
    return status;
}

heft_status_t heft__sources_load(heft__member_t *member, const char *digest, heft__sources_t *out,
                                 heft_error_t *err)
{
    heft__sources_t s = { .n = 0 };
    heft_status_t status = load(member, digest, &s, err);
    if (status != HEFT_OK) {
        heft__sources_fini(&s);
        return status;
    }
    *out = s;
    return HEFT_OK;
}

static heft_status_t init_one(const heft_manifest_t *manifest, heft__sources_t *s,
                              heft_error_t *err)
{
    s->sources = heft__calloc(1, sizeof *s->sources);
    if (s->sources == NULL) {
        return heft__error_nomem(err, sizeof *s->sources);
    }
    s->n = 1;
    heft_status_t status = alloc(s, err);
    if (status == HEFT_OK) {
        status = heft_manifest_encode(manifest, &s->texts[0], err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const size_t n = strlen(s->texts[0]);
    heft__object_digest(s->texts[0], n, s->sources[0].manifest);
    status = heft_manifest_decode(s->texts[0], n, &s->manifests[0], err);
    if (status == HEFT_OK) {
        status = heft__source_list_encode(s->sources, 1, &s->text, err);
    }
    if (status == HEFT_OK) {
        heft__object_digest(s->text, strlen(s->text), s->digest);
        status = put_together(s, NULL, &s->placement, &s->whole, err);
    }
    return status;
}

heft_status_t heft__sources_init_one(const heft_manifest_t *manifest, heft__sources_t *out,
                                     heft_error_t *err)
{
    heft__sources_t s = { .n = 0 };
    heft_status_t status = init_one(manifest, &s, err);
    if (status != HEFT_OK) {
        heft__sources_fini(&s);
        return status;
    }
    *out = s;
    return HEFT_OK;
}

/* ---- hosts ---- */

const char *heft__sources_near(const heft__sources_t *s, const char *host)
{
    for (uint32_t r = 0; s->has_hosts && r < s->n; r++) {
        if (strcmp(s->sources[r].host, host) == 0) {
            return s->sources[r].host;
        }
    }
    return "";
}

static heft_status_t make_view(const heft__sources_t *s, const char *near_host,
                               heft_placement_t **placement_out, heft_error_t *err)
{
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    uint32_t *hosts = heft__calloc(s->n, sizeof *hosts);
    if (hosts == NULL) {
        return heft__error_nomem(err, s->n * sizeof *hosts);
    }
    number_hosts(s, hosts);
    opts.hosts = hosts;
    opts.n_hosts = s->n;
    for (uint32_t r = 0; r < s->n && opts.to_host == 0; r++) {
        opts.to_host = strcmp(s->sources[r].host, near_host) == 0 ? hosts[r] + 1 : 0;
    }
    heft_status_t status = put_together(s, &opts, placement_out, NULL, err);
    heft__free(hosts);
    return status;
}

static heft_status_t add_view(heft__sources_t *s, const char *near_host, heft_error_t *err)
{
    heft__view_t *views = heft__calloc((size_t)s->n_views + 1, sizeof *views);
    if (views == NULL) {
        return heft__error_nomem(err, (s->n_views + 1) * sizeof *views);
    }
    heft_status_t status = make_view(s, near_host, &views[s->n_views].placement, err);
    if (status != HEFT_OK) {
        heft__free(views);
        return status;
    }
    (void)snprintf(views[s->n_views].host, sizeof views->host, "%s", near_host);
    for (uint32_t i = 0; i < s->n_views; i++) {
        views[i] = s->views[i];
    }
    heft__free(s->views);
    s->views = views;
    s->n_views++;
    return HEFT_OK;
}

heft_status_t heft__sources_toward(heft__sources_t *s, const char *near_host,
                                   heft__sources_t *view_out, heft_error_t *err)
{
    uint32_t i = 0;
    while (i < s->n_views && strcmp(s->views[i].host, near_host) != 0) {
        i++;
    }
    heft_status_t status = s->has_hosts && i == s->n_views ? add_view(s, near_host, err) : HEFT_OK;
    if (status == HEFT_OK) {
        *view_out = *s;
        view_out->placement = s->has_hosts ? s->views[i].placement : s->placement;
    }
    return status;
}

heft_status_t heft__sources_face(heft__sources_t *s, const char *host, heft_error_t *err)
{
    heft_placement_t *placement = NULL;
    heft_status_t status =
        s->has_hosts ? make_view(s, heft__sources_near(s, host), &placement, err) : HEFT_OK;
    if (placement != NULL) {
        heft_placement_destroy(s->placement);
        s->placement = placement;
        (void)snprintf(s->faced, sizeof s->faced, "%s", heft__sources_near(s, host));
    }
    return status;
}

heft_status_t heft__sources_bind(const heft__sources_t *sources, heft__member_t *member,
                                 heft_error_t *err)
{
    const char *const texts[HEFT__N_MEMBER_OBJECTS] = { [HEFT__OBJECT_SOURCES] = sources->text };
    return heft__member_set_objects(member, texts, (const char *const *)sources->texts, sources->n,
                                    err);
}

void heft__sources_digest(const heft__sources_t *sources, char placed_out[HEFT__DIGEST_SIZE])
{
    placed_out[0] = '\0';
    if (sources->placement != NULL) {
        heft__placement_digest(sources->placement, placed_out);
    }
}

void heft__sources_digest_plan(const heft_plan_t *plan, uint32_t rank_index, const char *placed,
                               char out[HEFT__DIGEST_SIZE])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    if (placed[0] == '\0') {
        (void)snprintf(out, HEFT__DIGEST_SIZE, "%s", heft_plan_get_rank_digest(plan, rank_index));
        return;
    }
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, "heft plan of sources 1");
    heft__sha256_update_text(&sha, heft__plan_get_whole_digest(plan, rank_index));
    heft__sha256_update_text(&sha, placed);
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, out);
}

uint32_t heft__sources_find(const heft__sources_t *sources, uint32_t replica, uint32_t rank)
{
    for (uint32_t r = 0; r < sources->n; r++) {
        if (sources->sources[r].replica == replica && sources->sources[r].rank == rank) {
            return r;
        }
    }
    return UINT32_MAX;
}

bool heft__sources_is_stand_in(const heft__sources_t *sources, const char *name)
{
    char prefix[24];
    const int n = snprintf(prefix, sizeof prefix, "rank-%u.", (unsigned)sources->n);
    return sources->placement != NULL && strncmp(name, prefix, (size_t)n) == 0;
}

/* "rank-12.a.b" is "a.b" of source 12, as placements name what ranks hold. */
heft_status_t heft__sources_locate(const heft__sources_t *sources, const char *name,
                                   uint32_t *source_out, uint32_t *tensor_out, heft_error_t *err)
{
    const char *own = name;
    uint32_t r = 0;
    if (sources->placement != NULL && heft_name_split_rank(name, &r, &own) == 0) {
        r = sources->n;
    }
    if (r >= sources->n) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "\"%.140s\" is no tensor of %u sources",
                               name, (unsigned)sources->n);
    }
    heft_status_t status = heft_manifest_find(sources->manifests[r], own, tensor_out, err);
    if (status == HEFT_OK) {
        *source_out = r;
    }
    return status;
}
