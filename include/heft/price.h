/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prices: what a round will cost on a fleet that nobody has to own.
 *
 * Links say how ranks are laid out on hosts and how fast everything between them is
 * (docs/formats/links.md). A price takes the routes of a round, one by one, adds up what each link
 * and each rank has to do, and says how long the phases take: no data, no threads, no clock. The
 * model is in docs/internals/price.md; it is a pure function of its arguments.
 */
#ifndef HEFT_PRICE_H
#define HEFT_PRICE_H

#include <stddef.h>
#include <stdint.h>

#include "heft/routes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_links heft_links_t; /* immutable: share freely */
typedef struct heft_price heft_price_t; /* confined until finished, then immutable */

/**
 * Read links (docs/formats/links.md) from n bytes of JSON. HEFT_ERR_FORMAT: no JSON, an unknown, a
 * missing or a doubled key, a value of the wrong type or out of bounds, NICs and ranks of a host of
 * which neither number divides the other; the key is named. HEFT_ERR_ARGUMENT, HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_links_decode(const char *text, size_t n,
                                                         heft_links_t **links_out,
                                                         heft_error_t *err);
HEFT_API void heft_links_destroy(heft_links_t *links);
/** The canonical JSON, every key of every section there is, freed with heft_string_free. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_links_encode(const heft_links_t *links, char **text_out,
                                                         heft_error_t *err);

typedef struct heft_price_opts {
    size_t size;
    uint32_t
        n_senders; /* source ranks of the fleet, those that send nothing included; 1 at least */
    uint32_t n_receivers; /* destination ranks of the fleet; 1 at least */
    uint32_t n_replicas;  /* 0: 1; that many equal parts of the receivers, one after the other, get
                             the same bytes: only relayed_s asks */
    uint8_t in_place;     /* 1: engines are paused for the whole transfer */
    uint8_t reserved[3];
} heft_price_opts_t;
#define HEFT_PRICE_OPTS_INIT              \
    {                                     \
        .size = sizeof(heft_price_opts_t) \
    }

/* What one sender has for one receiver. */
typedef struct heft_price_route {
    uint32_t sender;
    uint32_t receiver;
    int64_t n_bytes;        /* of the receiver's parameters that this sender writes */
    int64_t n_packed_bytes; /* those of them that the receiver has to put in place once more when
                               they come over a network: of entries that several senders write */
    uint64_t n_runs;        /* contiguous stretches in the receiver's memory */
} heft_price_route_t;

/** A price to be filled; borrows links until destroy. HEFT_ERR_ARGUMENT: options.
 * HEFT_ERR_LIMIT: more than 2^20 ranks on a side. HEFT_ERR_NOMEM. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_create(const heft_links_t *links,
                                                         const heft_price_opts_t *opts,
                                                         heft_price_t **price_out,
                                                         heft_error_t *err);
HEFT_API void heft_price_destroy(heft_price_t *price);
/** The host of a sender, or of a receiver, by the links: hosts that both sides share have one
 * number, for placements to choose senders by (heft_placement_opts_t.hosts). */
HEFT_API uint32_t heft_price_get_host(const heft_price_t *price, int is_receiver, uint32_t rank);
/**
 * Add a route; one without bytes adds nothing. HEFT_ERR_ARGUMENT: ranks beyond the fleet, negative
 * or packed bytes beyond all. HEFT_ERR_UNSUPPORTED: it runs between two hosts and the links have no
 * `nic`, or within one and they have no `memory`. HEFT_ERR_STATE after finish.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_add(heft_price_t *price,
                                                      const heft_price_route_t *route,
                                                      heft_error_t *err);
/**
 * Add what every sender of a plan's routes has for one of its ranks. receiver: which rank of the
 * fleet that is, one of several where there are replicas. HEFT_ERR_ARGUMENT: no such rank;
 * otherwise as above.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_add_routes(heft_price_t *price,
                                                             const heft_routes_t *routes,
                                                             uint32_t rank_index, uint32_t receiver,
                                                             heft_error_t *err);
/** Compute; no more routes. HEFT_ERR_STATE when done before. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_finish(heft_price_t *price, heft_error_t *err);

typedef enum heft_link_kind {
    HEFT_LINK_COPY = 1,    /* a sender's gathering: index is its rank */
    HEFT_LINK_SHARED = 2,  /* what a sender writes into memory of its own host: index is its rank */
    HEFT_LINK_NIC_OUT = 3, /* NICs of a source host that serve the same ranks */
    HEFT_LINK_NIC_IN = 4,  /* the same of a destination host */
    HEFT_LINK_LEAF_UP = 5, /* from the switch of a group of hosts: index is the group */
    HEFT_LINK_LEAF_DOWN = 6,
    HEFT_LINK_HOST = 7, /* memory of a host: index is the host */
    HEFT_LINK_PLACE = 8 /* a receiver's putting in place: index is its rank */
} heft_link_kind_t;

/** A short lower-case word, such as "nic-out"; "unknown" for a value that is none. */
HEFT_API const char *heft_link_kind_get_name(heft_link_kind_t kind);

typedef struct heft_link_load {
    heft_link_kind_t kind;
    uint32_t index; /* rank, port (host * ports of a host + port), group, or host */
    uint32_t host;  /* UINT32_MAX where it belongs to none alone */
    uint32_t reserved;
    int64_t n_bytes;
    double bytes_per_s;
    double busy_s;  /* bytes, and what each message and run costs */
    double bound_s; /* bytes alone; 0 of COPY and PLACE, which are no links */
} heft_link_load_t;

typedef struct heft_price_info {
    uint32_t n_senders;   /* that send anything */
    uint32_t n_receivers; /* that receive anything */
    int64_t n_bytes;
    uint64_t n_messages;
    uint64_t n_routes;
    uint64_t n_runs;
    double prepare_s;
    double stage_s;
    double verify_s;
    double pause_s;
    double flip_s;
    double total_s;   /* of the five */
    double down_s;    /* from pause to resume */
    double bound_s;   /* no transfer of these routes is shorter: the busiest link's bytes alone */
    double ideal_s;   /* nor one of other routes with which every receiver gets as many bytes */
    double relayed_s; /* nor one in which each replica hands on to the next what it gets, so that
                         senders serve one of them; bound_s where there is one replica */
    uint32_t busiest; /* number of the link that is busy longest; UINT32_MAX: nothing moves */
    uint32_t reserved;
} heft_price_info_t;

typedef struct heft_price_rank {
    int64_t n_bytes;
    uint64_t n_messages;
    uint64_t n_runs;
    uint32_t n_peers;
    uint32_t reserved;
    double copy_s;   /* a sender's gathering; a receiver's putting in place */
    double wire_s;   /* the busiest link on its way that is its own or its host's */
    double verify_s; /* receivers */
    double flip_s;   /* receivers */
} heft_price_rank_t;

/** What a finished price comes to; zeros before. */
HEFT_API void heft_price_query(const heft_price_t *price, heft_price_info_t *info_out);
/** One rank of a side. HEFT_ERR_NOT_FOUND beyond the end; HEFT_ERR_STATE before finish. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_query_sender(const heft_price_t *price,
                                                               uint32_t rank,
                                                               heft_price_rank_t *rank_out,
                                                               heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_query_receiver(const heft_price_t *price,
                                                                 uint32_t rank,
                                                                 heft_price_rank_t *rank_out,
                                                                 heft_error_t *err);
/** Links that carry anything, busiest first; equal ones by kind and index. */
HEFT_API uint32_t heft_price_get_n_links(const heft_price_t *price);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_price_query_link(const heft_price_t *price, uint32_t i,
                                                             heft_link_load_t *link_out,
                                                             heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
