/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of contracts share. */
#ifndef HEFT_EXEC_CONTRACT_IMPL_H
#define HEFT_EXEC_CONTRACT_IMPL_H

#include "base/base.h"
#include "heft/contract.h"

/* Format 1 has recipes alone; what fits it is written so, for readers that know no other. */
enum { HEFT__CONTRACT_FORMAT = 2, HEFT__CONTRACT_DIGEST = 65 };

typedef struct heft__contract_rank {
    char plan[HEFT__CONTRACT_DIGEST];
    uint32_t destination; /* index of distinct ones; where there are any */
    uint32_t tape;        /* index of distinct ones; of a traced loader */
} heft__contract_rank_t;

struct heft_contract {
    heft__arena_t arena; /* texts and lists */
    const heft_manifest_t *manifest;
    const heft_manifest_t **destinations; /* distinct ones, in the order of ranks */
    uint32_t n_destinations;
    heft_manifest_t **owned; /* manifests that go with the contract */
    uint32_t n_owned;
    bool has_mapping;        /* else there is nothing below */
    const char *recipe_name; /* NULL: a traced loader */
    const char *recipe_text;
    const char *bindings;
    heft_tape_t **tapes; /* distinct ones, in the order of ranks, in normal form; owned */
    char (*tape_digests)[HEFT__CONTRACT_DIGEST];
    uint32_t n_tapes;
    uint32_t first_rank;
    bool is_partial;
    heft_contract_attr_t *attrs; /* by key */
    uint32_t n_attrs;
    char plan[HEFT__CONTRACT_DIGEST];
    heft__contract_rank_t *ranks;
    uint32_t n_ranks;
    heft_exception_t *exceptions; /* by kind, pattern, reason */
    uint32_t n_exceptions;
    char digest[HEFT__CONTRACT_DIGEST];
};

/* An empty contract; its lists live in its arena. */
heft_status_t heft__contract_create_empty(heft_contract_t **contract_out, heft_error_t *err);
/* Sort the exceptions and compute the digest, once everything is there. */
void heft__contract_finish(heft_contract_t *contract);

/* The oldest format that can hold it. */
int heft__contract_get_format(const heft_contract_t *contract);

/* ---- contract_tapes.c: traced loaders ---- */

/* Take tapes, destinations and attributes into the contract, which has its manifest. */
heft_status_t heft__contract_take_tapes(heft_contract_t *contract, const heft_contract_opts_t *opts,
                                        heft_error_t *err);
/* Copies, sorted by key; keys must differ. */
heft_status_t heft__contract_keep_attrs(heft_contract_t *contract,
                                        const heft_contract_attr_t *attrs, uint32_t n,
                                        heft_error_t *err);
/* An empty tape with the sources of the manifest and the parameters of a destination, to read one
 * into. */
heft_status_t heft__contract_make_names(const heft_contract_t *contract, uint32_t destination,
                                        heft_tape_t **tape_out, heft_error_t *err);
/* Room for the tapes of n ranks. */
heft_status_t heft__contract_make_tape_room(heft_contract_t *contract, uint32_t n,
                                            heft_error_t *err);
/* Keep a tape in normal form with this digest, and own it; the index of an equal one that is there,
 * or its own. There is room. */
uint32_t heft__contract_keep_tape(heft_contract_t *contract, heft_tape_t *tape,
                                  const char digest[HEFT_TAPE_DIGEST_BYTES]);
/* The index of a manifest among the distinct ones, where it is put. There is room. */
uint32_t heft__contract_keep_destination(heft_contract_t *contract,
                                         const heft_manifest_t *manifest);

/* ---- contract_plan.c: from what a contract holds to its plan ---- */

/* Without a look at the digests. */
heft_status_t heft__contract_make_plan(const heft_contract_t *contract, heft_plan_t **plan_out,
                                       heft_report_t **report_out, heft_error_t *err);

/* < 0, 0 or > 0; the whole tensor comes first. */
int heft__exception_compare_boxes(const heft_exception_t *a, const heft_exception_t *b);
/* "unused", ..; NULL for a value that is no kind. */
const char *heft__exception_kind_name(heft_exception_kind_t kind);

#endif
