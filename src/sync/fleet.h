/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleet: what a source knows of the destinations of a round. Contracts that differ in rank alone
 * are one family and give one plan over all of its ranks; each destination is a link to a rank of a
 * family, with its staging memory attached. Everything is kept from round to round and made anew
 * only where digests, incarnations or endpoints have changed.
 *
 * Threads: confined.
 */
#ifndef HEFT_SYNC_FLEET_H
#define HEFT_SYNC_FLEET_H

#include "heft/exec.h"
#include "sync/member.h"
#include "sync/staging.h"
#include "transport/transport.h"

typedef struct heft__family {
    char digest[HEFT__DIGEST_SIZE]; /* of the contracts, their rank aside */
    char
        key[HEFT__DIGEST_SIZE]; /* digest and the destination manifests: what the plan is made of */
    uint32_t n_ranks;
    uint32_t first_rank; /* ranks below count from it */
    heft_plan_t *plan;
    heft__inputs_t *inputs; /* for each rank, likewise below */
    heft__staging_t *layouts;
    uint64_t **digests; /* of the layout's entries: those of parameters are written by a run */
    uint8_t **bounces;  /* NULL, or where bytes are gathered for receivers we cannot address */
    heft_exec_t *exec;  /* for the targets of the last stage */
    heft_exec_target_t *targets;
    void ***target_params;
    uint8_t **target_bases; /* where the memory of each begins */
    uint32_t n_targets;
} heft__family_t;

typedef struct heft__link {
    char id[HEFT__ID_SIZE];
    char incarnation[HEFT__INCARNATION_SIZE];
    char manifest[HEFT__DIGEST_SIZE];
    char contract[HEFT__DIGEST_SIZE];
    char endpoint[HEFT__DIGEST_SIZE];
    char family_digest[HEFT__DIGEST_SIZE];
    uint32_t rank; /* within its family */
    uint32_t first_rank;
    uint32_t n_ranks;
    uint32_t family;        /* index */
    bool in_place;          /* its memory is a buffer for one part of its parameters */
    bool moves;             /* takes part in the data path of this round */
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
    const heft_manifest_t *source;
    heft__transport_t *const *transports;
    uint32_t n_transports;
    uint32_t n_threads;
    heft_progress_t progress;
    void *progress_arg;
    heft__round_id_t round; /* what calls this off calls an attach off as well */

    char key[HEFT__DIGEST_SIZE];       /* of the peers that families and links are for; "": none */
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
 * Plan for these peers and attach those that move. Problems are collected by kind; HEFT_OK with
 * problems is possible, any failure adds one. Nothing is done when the peers are those of the last
 * call and it went well.
 */
HEFT_MUST_CHECK heft_status_t heft__fleet_set(heft__fleet_t *fleet, const heft__peer_t *peers,
                                              uint32_t n_peers, int64_t deadline_mono_ns,
                                              heft__problems_t *problems, heft_error_t *err);
/* The rank digest of a link's plan. Borrowed. */
const char *heft__fleet_get_plan(const heft__fleet_t *fleet, const heft__link_t *link);

/* Make these peers, which heft__fleet_set has seen, the targets of the stage. Links, execs and
 * buffers are made only when they differ from the last stage. */
HEFT_MUST_CHECK heft_status_t heft__fleet_aim(heft__fleet_t *fleet, const heft__peer_t *peers,
                                              uint32_t n_peers, int64_t deadline_mono_ns,
                                              heft__blame_t *blame, heft_error_t *err);
/* The link of a peer that heft__fleet_set has seen, attached. */
HEFT_MUST_CHECK heft_status_t heft__fleet_open(heft__fleet_t *fleet, const heft__peer_t *peer,
                                               int64_t deadline_mono_ns, heft__link_t **link_out,
                                               heft_error_t *err);
/* Give up a link's memory and connection; the next heft__fleet_set attaches anew. */
void heft__fleet_drop(heft__fleet_t *fleet, heft__link_t *link);

/*
 * Copy what loaders are given to every target of the last heft__fleet_aim: source tensors as they
 * are. data and digests: of the source's tensors, in name order. Blocks. Allocates nothing.
 * HEFT_ERR_CANCELED: the fleet's progress said so.
 */
HEFT_MUST_CHECK heft_status_t heft__fleet_copy_inputs(heft__fleet_t *fleet, const void *const *data,
                                                      const uint64_t *digests, heft_error_t *err);

/* Where the bytes of a rank are gathered for receivers that need puts. */
uint8_t *heft__fleet_get_bounce(const heft__family_t *family, uint32_t rank);
/* Bytes staged and pieces run for one rank of a family. */
void heft__fleet_count(const heft__family_t *family, uint32_t rank, int64_t *bytes_out,
                       int64_t *pieces_out);

/* ---- between fleet.c and fleet_plan.c ---- */

void heft__family_fini(heft__family_t *family);
/* Contract and rank of every link, and the family of each: families are kept, or made. */
HEFT_MUST_CHECK heft_status_t heft__fleet_plan(heft__fleet_t *fleet, const heft__fleet_t *old,
                                               heft__problems_t *problems, heft_error_t *err);

#endif
