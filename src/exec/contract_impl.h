/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of contracts share. */
#ifndef HEFT_EXEC_CONTRACT_IMPL_H
#define HEFT_EXEC_CONTRACT_IMPL_H

#include "base/base.h"
#include "heft/contract.h"

enum { HEFT__CONTRACT_FORMAT = 1, HEFT__CONTRACT_DIGEST = 65 };

typedef struct heft__contract_rank {
    char plan[HEFT__CONTRACT_DIGEST];
    uint32_t destination; /* index of distinct ones; where there are any */
} heft__contract_rank_t;

struct heft_contract {
    heft__arena_t arena; /* texts and lists */
    const heft_manifest_t *manifest;
    const heft_manifest_t **destinations; /* distinct ones, in the order of ranks */
    uint32_t n_destinations;
    heft_manifest_t **owned; /* of a decoded contract: the manifest, then the destinations */
    uint32_t n_owned;
    const char *recipe_name; /* NULL: no mapping, and nothing below */
    const char *recipe_text;
    const char *bindings;
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

/* "unused", ..; NULL for a value that is no kind. */
const char *heft__exception_kind_name(heft_exception_kind_t kind);

#endif
