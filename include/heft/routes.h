/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes: who sends what to whom.
 *
 * A plan may read tensors of several senders (placement.h). Each of its pieces is then the work of
 * one of them. Routes say which: for a sender and a destination rank how much there is to send, for
 * a parameter which senders write it and where. Both sides make them from the same plan and come to
 * the same.
 */
#ifndef HEFT_ROUTES_H
#define HEFT_ROUTES_H

#include "heft/placement.h"
#include "heft/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_routes heft_routes_t; /* immutable */

#define HEFT_SENDER_NONE UINT32_MAX

/* What a sender sends a rank besides parameters: tensors that the engine's own loader is given.
 * What known kernels are given that the receiver runs (gathers) is not listed: routes find it. */
typedef struct heft_route_load {
    uint32_t rank_index;
    uint32_t sender;
    int64_t n_bytes;
} heft_route_load_t;

typedef struct heft_routes_opts {
    size_t size;
    const char *const *names;       /* of senders, for messages; NULL: "sender 3" */
    const heft_route_load_t *loads; /* borrowed until return, as names */
    uint64_t n_loads;
    /* of a plan of parts (heft_plan_create_part): what the parts were made by; borrowed until
     * return. Sender n_senders then stands for all others than the one that the parts are of, whose
     * routes alone are right, and equal to those of the whole plan */
    const heft_placement_t *others;
    /* 1: a known kernel whose inputs lie with several senders is run by the receiver, to which they
     * send these; 0: it is refused */
    uint8_t gathers;
    uint8_t reserved[7];
} heft_routes_opts_t;
#define HEFT_ROUTES_OPTS_INIT              \
    {                                      \
        .size = sizeof(heft_routes_opts_t) \
    }

/**
 * Routes of a plan, which is borrowed until destroy. senders[i] is the sender of source i of the
 * plan, below n_senders; NULL: sources are named rank-R.NAME, as heft_placement_apply names them,
 * and R is the sender, or there is one sender.
 *
 * A piece belongs to the sender of what it reads; one that reads what a known kernel leaves, to the
 * sender of what that kernel reads. Constants belong to the lowest sender that writes anything else
 * of the parameter; where there is none, to the lowest one of the rank's first parameter that has
 * one, else to the lowest one in loads of the rank, or to sender 0. What only the engine's loader
 * writes is nobody's; what it is given stands in loads. With `gathers`, what a known kernel leaves
 * whose inputs lie with several senders is nobody's either: the receiver runs it.
 *
 * HEFT_ERR_UNSUPPORTED names a parameter and two senders: an element, a block of a known kernel, or
 * a check (heft_plan_get_checks) that would need what both of them hold; and says how many such
 * parameters there are. HEFT_ERR_ARGUMENT: a sender beyond n_senders; a source without a rank in
 * its name. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_routes_create(const heft_plan_t *plan, const uint32_t *senders, uint32_t n_senders,
                   const heft_routes_opts_t *opts, heft_routes_t **routes_out, heft_error_t *err);
HEFT_API void heft_routes_destroy(heft_routes_t *routes);

HEFT_API uint32_t heft_routes_get_n_senders(const heft_routes_t *routes);
HEFT_API uint32_t heft_routes_get_n_ranks(const heft_routes_t *routes);
/** 64 hex digits over all routes. Equal plans (by digest) with equal senders have equal routes. */
HEFT_API const char *heft_routes_get_digest(const heft_routes_t *routes);

/* All that a sender sends a rank, or what of it belongs to one parameter. */
typedef struct heft_route_info {
    uint32_t n_params;  /* it writes something of so many; 0 where it sends nothing */
    uint32_t n_regions; /* of the destination, see heft_route_region_t */
    uint64_t n_runs;    /* stretches of neighbouring bytes in them */
    uint64_t n_pieces;
    int64_t n_bytes;      /* written, constants included */
    int64_t n_load_bytes; /* for the engine's loader and kernels that the receiver runs, besides; of
                             a rank only */
    const char *digest;   /* 64 hex digits over this route alone; NULL: nothing is sent, or it is of
                             one parameter. Equal in every plan that has the rank and the sender's
                             tensors, whatever else it has. Borrowed. */
} heft_route_info_t;

/** What a sender sends a rank; zeros where that is nothing or there is no such sender or rank. */
HEFT_API void heft_routes_query(const heft_routes_t *routes, uint32_t sender, uint32_t rank_index,
                                heft_route_info_t *info_out);
HEFT_API void heft_routes_query_param(const heft_routes_t *routes, uint32_t sender,
                                      uint32_t rank_index, uint32_t param,
                                      heft_route_info_t *info_out);
/** The senders that send a rank anything, loads included, ascending; borrowed. */
HEFT_API const uint32_t *heft_routes_get_senders(const heft_routes_t *routes, uint32_t rank_index,
                                                 uint32_t *n_out);
/** The senders that write something of a parameter, ascending; borrowed. A parameter that only
 * the engine's loader writes, or a kernel that the receiver runs, or nothing, has none. */
HEFT_API const uint32_t *heft_routes_get_param_senders(const heft_routes_t *routes,
                                                       uint32_t rank_index, uint32_t param,
                                                       uint32_t *n_out);
/** The parameters of a rank of which a sender writes something, ascending; borrowed. */
HEFT_API const uint32_t *heft_routes_get_params(const heft_routes_t *routes, uint32_t sender,
                                                uint32_t rank_index, uint32_t *n_out);
/** The sender of piece i of a rank (heft_plan_get_pieces), or HEFT_SENDER_NONE: the
 * loader's, or the receiver's (gathers). */
HEFT_API uint32_t heft_routes_get_piece_sender(const heft_routes_t *routes, uint32_t rank_index,
                                               uint64_t i);

/* A part of a parameter: runs of run_bytes neighbouring bytes, the first of them at offset,
 * repeated by loops. Loops go from the outermost, which has the largest stride, inwards; runs of
 * one region, and of different ones, share no byte. */
typedef struct heft_route_region {
    int64_t offset; /* bytes from the begin of the parameter */
    int64_t run_bytes;
    int32_t n_loops;
    int32_t reserved;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS]; /* bytes, positive */
} heft_route_region_t;

/**
 * The part of a parameter that a sender writes: neighbouring pieces are put together, ordered by
 * offset. *regions_out is the caller's (heft_route_regions_free); NULL and 0 where there is none.
 * What lies in it one run after the other, region by region, is the route packed. Takes time and
 * memory by the number of the sender's pieces of this parameter.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_routes_make_regions(const heft_routes_t *routes,
                                                                uint32_t sender,
                                                                uint32_t rank_index, uint32_t param,
                                                                heft_route_region_t **regions_out,
                                                                uint32_t *n_out, heft_error_t *err);
HEFT_API void heft_route_regions_free(heft_route_region_t *regions);
/** Bytes of n regions. */
HEFT_API int64_t heft_route_regions_get_n_bytes(const heft_route_region_t *regions, uint32_t n);
/**
 * n_bytes of a packed route, from byte `at` on: pack copies them out of the parameter to packed,
 * unpack from packed into the parameter. HEFT_ERR_ARGUMENT: beyond the route's bytes.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_route_pack(const heft_route_region_t *regions,
                                                       uint32_t n, const void *param, int64_t at,
                                                       void *packed, int64_t n_bytes,
                                                       heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_route_unpack(const heft_route_region_t *regions,
                                                         uint32_t n, void *param, int64_t at,
                                                         const void *packed, int64_t n_bytes,
                                                         heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
