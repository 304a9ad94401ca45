/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleet: what a source knows of the destinations of a round, and of the sources beside it.
 * Contracts that differ in rank alone are one family and give one plan over all of its ranks and
 * all sources; each destination is a link to a rank of a family, with its staging memory attached,
 * if this source sends it anything. Everything is kept from round to round and made anew only where
 * digests, incarnations or endpoints have changed.
 *
 * Threads: confined.
 */
#ifndef HEFT_SYNC_FLEET_H
#define HEFT_SYNC_FLEET_H

#include "heft/exec.h"
#include "sync/delivery.h"
#include "sync/direct.h"
#include "sync/holders.h"
#include "sync/member.h"
#include "sync/staging.h"
#include "transport/transport.h"

/* What this source contributes to the source tensors of a plan. */
typedef struct heft__reads {
    uint32_t n;
    uint32_t *own;     /* of each: its number here; UINT32_MAX: another source holds it */
    const void **data; /* as heft__fleet_bind has left it */
} heft__reads_t;

typedef struct heft__family {
    char digest[HEFT__DIGEST_SIZE]; /* of the contracts, their rank aside */
    char host[HEFT__HOST_SIZE];  /* of its destinations, where that makes a difference; else "" */
    heft__sources_t from;        /* the sources as these see them */
    char key[HEFT__DIGEST_SIZE]; /* digest, sources, host and the destination manifests: what the
                                    plan is made of */
    uint32_t n_ranks;
    uint32_t first_rank;               /* ranks below count from it */
    char (*tables)[HEFT__DIGEST_SIZE]; /* for each rank: of its table of experts; "": none */
    heft_plan_t *plan;                 /* of all sources, or this source's part of it */
    bool is_part;
    char (*plan_digests)[HEFT__DIGEST_SIZE]; /* of each rank: what both ends compare */
    heft_routes_t *routes;
    heft__reads_t reads;
    heft__gathered_t *gathered; /* for each rank, while the family is made */
    heft__inputs_t *inputs;     /* for each rank, likewise below */
    heft__reads_t *input_reads;
    heft__staging_t *layouts;
    heft__delivery_t *deliveries; /* views of routes, inputs and layouts */
    heft__packing_t *packings; /* for receivers that need chunks; made when one is first sent to */
    uint64_t **digests;        /* of the layout's entries: this source's shares, by a run */
    heft__direct_t *directs;   /* what needs no buffer; made when a receiver needs chunks */
    uint8_t **bounces; /* NULL, or where bytes are gathered for receivers we cannot address */
    heft_exec_t **input_execs; /* for the targets of the last stage; NULL: it sends no inputs */
    heft_exec_t *exec;
    heft_exec_target_t *targets;
    heft_exec_target_t *input_targets; /* of the same memory */
    void ***target_params;             /* parameters, then inputs */
    uint32_t n_targets;
} heft__family_t;

typedef struct heft__link {
    char id[HEFT__ID_SIZE];
    char incarnation[HEFT__INCARNATION_SIZE];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE];
    char endpoint[HEFT__DIGEST_SIZE];
    char host[HEFT__HOST_SIZE];
    char family_digest[HEFT__DIGEST_SIZE];
    uint32_t rank; /* within its family */
    uint32_t first_rank;
    uint32_t n_ranks;
    uint32_t family;        /* index */
    bool in_place;          /* its memory is a buffer for one part of its parameters */
    bool moves;             /* takes part in the data path of this round */
    bool sends;             /* this source has something for it */
    bool is_staged;         /* a target of the present stage */
    bool has_begun;         /* this round */
    bool was_sent;          /* in this round, so that its digests are known */
    bool is_absent;         /* nobody listens at its endpoint */
    bool is_unknown;        /* a put was issued, and it is not known whether it has ended */
    heft__remote_t *remote; /* NULL: not attached */
} heft__link_t;

typedef struct heft__fleet {
    /* Set by init. */
    heft__member_t *member;
    uint32_t replica, rank; /* of this source */
    uint32_t n_expected;    /* sources of its job; 0: not said */
    heft__transport_t *const *transports;
    uint32_t n_transports;
    uint32_t n_threads;
    bool gathers_all; /* nothing is sent directly: progress is to count every byte */
    heft_progress_t progress;
    void *progress_arg;
    heft__round_id_t round; /* what calls this off calls an attach off as well */

    heft__sources_t sources;           /* of the round; digest "": none yet */
    uint32_t number;                   /* of this source among them */
    char key[HEFT__DIGEST_SIZE];       /* of what families and links are for; "": none */
    char stage_key[HEFT__DIGEST_SIZE]; /* of the links that the execs are for */
    heft__family_t *families;
    uint32_t n_families;
    heft__link_t *links;
    uint32_t n_links;
    char blamed[HEFT__ID_SIZE]; /* the first that could not be attached; "": none */
    uint64_t n_compiled;        /* plans ever made */
    uint64_t n_attached;        /* remotes ever attached */
} heft__fleet_t;

void heft__fleet_init(heft__fleet_t *fleet);
void heft__fleet_fini(heft__fleet_t *fleet);

/*
 * Plan for these sources and peers and attach those that move and are sent something. Problems are
 * collected by kind; HEFT_OK with problems is possible, any failure adds one. Nothing is done when
 * the peers are those of the last call and it went well.
 */
HEFT_MUST_CHECK heft_status_t heft__fleet_set(heft__fleet_t *fleet, const char *sources,
                                              const heft__peer_t *peers, uint32_t n_peers,
                                              int64_t deadline_mono_ns, heft__problems_t *problems,
                                              heft_error_t *err);
/* The rank digest of a link's plan. Borrowed. */
const char *heft__fleet_get_plan(const heft__fleet_t *fleet, const heft__link_t *link);

/* Make these peers, which heft__fleet_set has seen, the targets of the stage. Links, execs and
 * buffers are made only when they differ from the last stage. */
HEFT_MUST_CHECK heft_status_t heft__fleet_aim(heft__fleet_t *fleet, const heft__peer_t *peers,
                                              uint32_t n_peers, int64_t deadline_mono_ns,
                                              heft__blame_t *blame, heft_error_t *err);
/* The link of a peer that heft__fleet_set has seen; attached, if it is sent anything. */
HEFT_MUST_CHECK heft_status_t heft__fleet_open(heft__fleet_t *fleet, const heft__peer_t *peer,
                                               int64_t deadline_mono_ns, heft__link_t **link_out,
                                               heft_error_t *err);
/* Give up a link's memory and connection; the next heft__fleet_set attaches anew. */
void heft__fleet_drop(heft__fleet_t *fleet, heft__link_t *link);

/* Where this source's tensors are now, in name order. Allocates nothing. */
void heft__fleet_bind(heft__fleet_t *fleet, const void *const *data);

/* Where the bytes of a rank are gathered for receivers that need puts. */
uint8_t *heft__fleet_get_bounce(const heft__family_t *family, uint32_t rank);
/* What this source sends a rank in chunks; kept with the family. */
HEFT_MUST_CHECK heft_status_t heft__fleet_get_packing(heft__fleet_t *fleet,
                                                      const heft__link_t *link,
                                                      const heft__packing_t **packing_out,
                                                      heft_error_t *err);
/* ---- between fleet.c and fleet_plan.c ---- */

void heft__family_fini(heft__family_t *family);
/* Runs and targets of the last stage. */
void heft__family_clear_targets(heft__family_t *family);
/* Targets and runs for the links that are staged. */
HEFT_MUST_CHECK heft_status_t heft__family_prepare(heft__fleet_t *fleet, uint32_t f,
                                                   heft_error_t *err);
/* Contract and rank of every link, and the family of each: families are kept, or made. */
HEFT_MUST_CHECK heft_status_t heft__fleet_plan(heft__fleet_t *fleet, const heft__fleet_t *old,
                                               heft__problems_t *problems, heft_error_t *err);
/* What a rank declares of its table of experts. */
void heft__family_note_table(heft__family_t *family, uint32_t rank,
                             const heft_manifest_t *manifest);
/* All ranks of an engine are of one table: where some have announced a new one and others have not,
 * the engine would hold a mixture. */
HEFT_MUST_CHECK heft_status_t heft__fleet_check_tables(const heft__fleet_t *fleet,
                                                       heft__problems_t *problems,
                                                       heft_error_t *err);

#endif
