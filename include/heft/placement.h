/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements: which rank of a trainer holds which part of which tensor.
 *
 * A recipe is written for whole tensors. Where the ranks of a trainer hold boxes of them (FSDP:
 * rows; tensor parallelism: rows or columns; replicas), a placement turns the tape of such a recipe
 * into one that reads the ranks' own tensors. Every element is read from one rank that holds it;
 * where several do, they share the work.
 */
#ifndef HEFT_PLACEMENT_H
#define HEFT_PLACEMENT_H

#include "heft/model.h"
#include "heft/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_placement heft_placement_t; /* immutable */

/* A box of a tensor that a rank holds as a contiguous tensor: begin <= index < end in each of its
 * dimensions (of a packed dtype, whole bytes in the last one). It may be empty. */
typedef struct heft_shard {
    const char *tensor;
    uint32_t rank;
    uint32_t reserved; /* 0 */
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
    const char *name; /* the rank's own name for it; NULL: the tensor's. A rank may hold several
                       * disjoint boxes of one tensor under names of their own */
} heft_shard_t;

/* One of those that hold a model together. */
typedef struct heft_placement_source {
    const heft_manifest_t *manifest; /* finished, of a source; its parts say what it holds */
    const char *label;               /* who it is, for messages; NULL: "rank N" */
} heft_placement_source_t;

typedef struct heft_placement_opts {
    size_t size;
    int64_t min_cut_bytes; /* what several ranks hold is cut for them into no less; 0: 1 MiB */
    const uint32_t *hosts; /* of each rank: a number of its host, the same for ranks of one host;
                              NULL: nothing is known of hosts */
    uint32_t n_hosts;      /* entries of hosts; ranks beyond are on hosts of their own */
    uint32_t to_host;      /* one more than the number of the host that receives; 0: another one */
} heft_placement_opts_t;
#define HEFT_PLACEMENT_OPTS_INIT              \
    {                                         \
        .size = sizeof(heft_placement_opts_t) \
    }

/**
 * Say who sends what. tensors is a finished manifest of the whole tensors; everything is borrowed
 * until return. opts may be NULL. The choice depends on the arguments alone: what one rank holds is
 * its to send; the rest goes to those that have the least to send so far. Where hosts are known,
 * what a rank on the receiving host holds comes from there; of the rest, the host that sends most
 * sends as little as it can, and then the rank that does. A placement is for one receiving host:
 * tapes of ranks on others are placed by one of their own. HEFT_ERR_NAME: a tensor
 * that is none. HEFT_ERR_SHAPE: a box beyond its tensor. HEFT_ERR_EXISTS: two boxes of one name, or
 * two that overlap, on one rank. HEFT_ERR_PROOF names a tensor, and the first box of it, that no
 * rank holds. HEFT_ERR_LIMIT: boxes that cut one tensor into more than 2^20 cells.
 * HEFT_ERR_ARGUMENT.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_placement_create(
    const heft_manifest_t *tensors, const heft_shard_t *shards, uint32_t n_shards,
    const heft_placement_opts_t *opts, heft_placement_t **placement_out, heft_error_t *err);
/**
 * The same where the tensors of ranks say it themselves: rank-0.NAME, rank-1.NAME, .. (as of a
 * folder of ranks) are the parts of NAME along dimension dim, one after the other; a rank without a
 * part holds none. A tensor of no more than dim dimensions is held whole by each rank that has it.
 * ranks is a finished manifest, borrowed until return. *tensors_out is the manifest of the whole
 * tensors, which is the caller's. HEFT_ERR_NAME: a name without a rank. HEFT_ERR_SHAPE: parts that
 * differ in more than that dimension. Otherwise as above.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_placement_infer(
    const heft_manifest_t *ranks, int32_t dim, const heft_placement_opts_t *opts,
    heft_placement_t **placement_out, heft_manifest_t **tensors_out, heft_error_t *err);
/**
 * The same where manifests of parts say it (heft_manifest_set_part): rank R is sources[R], in an
 * order that is the same everywhere. A tensor without a part is whole, and then nobody else may
 * have that name without a part. Boxes of different ranks may overlap where they say different
 * replicas, boxes of one rank may not. All must agree on attributes, and on dtype, shape and
 * attributes of every tensor. Everything is borrowed until return.
 *
 * *tensors_out is the manifest of the whole tensors, *placement_out the placement: both are the
 * caller's. Of one source without parts *placement_out is NULL: its manifest says it all, and
 * *tensors_out has the same digest. Where more than one thing is wrong, *report_out is a text with
 * a line for each (40 at most, and then their number), freed with heft_string_free; otherwise NULL.
 * report_out may be NULL.
 *
 * HEFT_ERR_PROOF: elements that nobody holds. HEFT_ERR_EXISTS: elements, or a name, held twice.
 * HEFT_ERR_SHAPE, HEFT_ERR_NAME: sources that disagree. Otherwise as above.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_placement_from_sources(const heft_placement_source_t *sources, uint32_t n_sources,
                            const heft_placement_opts_t *opts, heft_placement_t **placement_out,
                            heft_manifest_t **tensors_out, char **report_out, heft_error_t *err);
HEFT_API void heft_placement_destroy(heft_placement_t *placement);

/** One more than the highest rank. */
HEFT_API uint32_t heft_placement_get_n_ranks(const heft_placement_t *placement);
/** Bytes of the tensors that a rank is to send, each counted once. */
HEFT_API int64_t heft_placement_get_load(const heft_placement_t *placement, uint32_t rank);
/** The boxes in which the tensors are sent: disjoint, and together everything. Names are borrowed.
 * HEFT_ERR_NOT_FOUND beyond the end. */
HEFT_API uint32_t heft_placement_get_n_cuts(const heft_placement_t *placement);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_placement_query_cut(const heft_placement_t *placement,
                                                                uint32_t i, heft_shard_t *cut_out,
                                                                heft_error_t *err);

/**
 * The tape that does the same and reads what the ranks hold: its sources are the boxes, named
 * rank-R.NAME as in a folder of ranks (NAME: the rank's own), with the shapes of the boxes. All
 * boxes are sources, also those of which nothing is read. Takes tape on success. A plan takes
 * exceptions as for the tape that was given. HEFT_ERR_NAME: the tape reads what is not among the
 * placement's tensors, or another shape of it.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_placement_apply(const heft_placement_t *placement,
                                                            heft_tape_t *tape,
                                                            heft_tape_t **placed_out,
                                                            heft_error_t *err);

/**
 * The part of that which concerns one rank: the tape of what it sends. Its sources are the rank's
 * own boxes, and for each tensor of which others send something that is needed to tell what is its,
 * one stand-in of the whole, rank-N.NAME, where N is the number of ranks. All parameters are there;
 * of those that the rank sends nothing of, nothing is written. For heft_plan_create_part. tape is
 * borrowed until return. HEFT_ERR_NAME as above; HEFT_ERR_ARGUMENT: no such rank.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_placement_apply_part(const heft_placement_t *placement,
                                                                 uint32_t rank,
                                                                 const heft_tape_t *tape,
                                                                 heft_tape_t **part_out,
                                                                 heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
