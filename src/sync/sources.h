/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: who holds the model that a round brings, and what of it. An object of the coordinator
 * lists them; loaded, it is the manifest of the whole tensors, which mappings are compiled against,
 * and the placement that turns such a tape into one of what the sources hold.
 *
 * Where sources are on several hosts, a receiver on one of them gets what is held there from there:
 * there is a placement for each of these hosts, and one for receivers on none of them. That of the
 * list itself knows nothing of hosts; by it a version is identified.
 *
 * Threads: confined; what was made is immutable.
 */
#ifndef HEFT_SYNC_SOURCES_H
#define HEFT_SYNC_SOURCES_H

#include "heft/placement.h"
#include "sync/member.h"

/* Who sends to receivers on one of the sources' hosts. */
typedef struct heft__view {
    char host[HEFT__HOST_SIZE];
    heft_placement_t *placement;
} heft__view_t;

typedef struct heft__sources {
    char digest[HEFT__DIGEST_SIZE]; /* of the object; "": none */
    uint32_t n;                     /* the number of a source is its index */
    heft__source_t *sources;
    heft_manifest_t **manifests; /* of each, what it holds */
    heft_manifest_t *whole;      /* of the whole tensors */
    heft_placement_t *placement; /* NULL: one source, which holds every tensor whole */
    bool has_hosts;              /* it depends on the receiver's host who sends */
    char faced[HEFT__HOST_SIZE]; /* for whom `placement` is, after heft__sources_face */
    heft__view_t *views;         /* for others, as they were asked for */
    uint32_t n_views;
    char *text;   /* the object, and the manifests as they were got: for those */
    char **texts; /* that must keep them put */
} heft__sources_t;

/* A copy of a struct is the same sources; zero-initialised is none, and may be finished. */
void heft__sources_fini(heft__sources_t *sources);
/* Get the object and the manifests that it names. */
HEFT_MUST_CHECK heft_status_t heft__sources_load(heft__member_t *member, const char *digest,
                                                 heft__sources_t *out, heft_error_t *err);
/* The same of one source, replica 0 and rank 0, that holds this manifest. */
HEFT_MUST_CHECK heft_status_t heft__sources_init_one(const heft_manifest_t *manifest,
                                                     heft__sources_t *out, heft_error_t *err);
/* The label of the source's host that this is; "": of none, or it makes no difference. */
const char *heft__sources_near(const heft__sources_t *sources, const char *host);
/* These sources with the placement for receivers near this host. It is borrowed from them, and must
 * not be finished. */
HEFT_MUST_CHECK heft_status_t heft__sources_toward(heft__sources_t *sources, const char *near_host,
                                                   heft__sources_t *view_out, heft_error_t *err);
/* Have that placement for good, and no other. */
HEFT_MUST_CHECK heft_status_t heft__sources_face(heft__sources_t *sources, const char *host,
                                                 heft_error_t *err);
/* Bind to these, and keep everything put that they are made of. */
HEFT_MUST_CHECK heft_status_t heft__sources_bind(const heft__sources_t *sources,
                                                 heft__member_t *member, heft_error_t *err);
/* What the ends of a link compare before the first byte: the digest of the rank's plan over whole
 * tensors, and of who sends what of them (placed, of heft__sources_digest). From both follow the
 * routes. */
void heft__sources_digest(const heft__sources_t *sources, char placed_out[HEFT__DIGEST_SIZE]);
void heft__sources_digest_plan(const heft_plan_t *plan, uint32_t rank_index, const char *placed,
                               char out[HEFT__DIGEST_SIZE]);
/* The number of a member; UINT32_MAX: it is none of them. */
uint32_t heft__sources_find(const heft__sources_t *sources, uint32_t replica, uint32_t rank);
/* Whether a source tensor of the plan of a part stands for what others send. */
bool heft__sources_is_stand_in(const heft__sources_t *sources, const char *name);
/* Whose tensor a source tensor of a plan is, and which of its manifest. HEFT_ERR_NOT_FOUND. */
HEFT_MUST_CHECK heft_status_t heft__sources_locate(const heft__sources_t *sources, const char *name,
                                                   uint32_t *source_out, uint32_t *tensor_out,
                                                   heft_error_t *err);

#endif
