/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts: what a side is and how it is made, kept in a file (docs/formats/contract.md).
 *
 * A contract holds a manifest and, with a recipe, the mapping: recipe, bindings, destination
 * manifests, exceptions that hold, and the digest of every rank's plan. Two contracts can be
 * compared, and one can be made again from itself to see that it still comes to the same plans.
 */
#ifndef HEFT_CONTRACT_H
#define HEFT_CONTRACT_H

#include "heft/drift.h"
#include "heft/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_contract heft_contract_t; /* immutable */

typedef struct heft_contract_opts {
    size_t size;
    const heft_recipe_t *recipe;     /* NULL: a side alone, and nothing below is given */
    const heft_bindings_t *bindings; /* NULL: none */
    /* NULL, or n_destinations finished manifests, one for each rank of the recipe */
    const heft_manifest_t *const *destinations;
    uint32_t n_destinations;
    uint32_t reserved;
    heft_issues_t *issues; /* NULL: not wanted; as of heft_recipe_compile_all */
} heft_contract_opts_t;
#define HEFT_CONTRACT_OPTS_INIT              \
    {                                        \
        .size = sizeof(heft_contract_opts_t) \
    }

/**
 * Make a contract. With a recipe every rank is compiled, folded and proven first. The manifests are
 * borrowed until the contract is destroyed, the rest until return. report_out may be NULL; it is
 * given on HEFT_ERR_PROOF, and with a recipe on success. HEFT_ERR_STATE: a manifest is not
 * finished. HEFT_ERR_ARGUMENT: not as many destinations as ranks. HEFT_ERR_FORMAT: the recipe is no
 * UTF-8. What compiling and planning can return. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_create(const heft_manifest_t *manifest,
                                                            const heft_contract_opts_t *opts,
                                                            heft_contract_t **contract_out,
                                                            heft_report_t **report_out,
                                                            heft_error_t *err);
HEFT_API void heft_contract_destroy(heft_contract_t *contract);

/**
 * The JSON form: equal contracts give equal bytes. The text is freed with heft_string_free. decode
 * is strict: HEFT_ERR_FORMAT names an unknown or missing key, a wrong type, a digest that is not
 * the content's; HEFT_ERR_UNSUPPORTED a newer format. It proves nothing: see heft_contract_check.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_encode(const heft_contract_t *contract,
                                                            char **text_out, heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_decode(const char *text, size_t n,
                                                            heft_contract_t **contract_out,
                                                            heft_error_t *err);

/** 64 hex digits over everything in the contract. */
HEFT_API const char *heft_contract_get_digest(const heft_contract_t *contract);
/** The side's manifest: of a mapping, the source's. Borrowed. */
HEFT_API const heft_manifest_t *heft_contract_get_manifest(const heft_contract_t *contract);
/** 1 if there is a mapping. Without one the texts below are NULL and the counts 0. */
HEFT_API int heft_contract_has_mapping(const heft_contract_t *contract);
/** The recipe: its file's name without folders, and its text. */
HEFT_API const char *heft_contract_get_recipe_name(const heft_contract_t *contract);
HEFT_API const char *heft_contract_get_recipe_text(const heft_contract_t *contract);
/** As heft_bindings_encode writes them, without what the recipe does not read. */
HEFT_API const char *heft_contract_get_bindings(const heft_contract_t *contract);
/** The digest of the whole plan, and of one rank (heft_plan_get_rank_digest). */
HEFT_API const char *heft_contract_get_plan_digest(const heft_contract_t *contract);
HEFT_API uint32_t heft_contract_get_n_ranks(const heft_contract_t *contract);
HEFT_API const char *heft_contract_get_rank_digest(const heft_contract_t *contract, uint32_t rank);
/** The destination's manifest of one rank, or NULL where none was given. Borrowed. */
HEFT_API const heft_manifest_t *heft_contract_get_destination(const heft_contract_t *contract,
                                                              uint32_t rank);
/** The exceptions that hold, values in their patterns, `where` empty. Borrowed; NULL beyond the
 * end. */
HEFT_API uint32_t heft_contract_get_n_exceptions(const heft_contract_t *contract);
HEFT_API const heft_exception_t *heft_contract_get_exception(const heft_contract_t *contract,
                                                             uint32_t i);

/**
 * What differs between two contracts: their manifests, and of their mappings recipe, bindings,
 * ranks, exceptions, destinations; where all of that is equal, the plans. Nothing is borrowed.
 * HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_compare(const heft_contract_t *first,
                                                             const heft_contract_t *second,
                                                             heft_drift_t **drift_out,
                                                             heft_error_t *err);

/**
 * Make the mapping again from what the contract holds, prove it, and compare: no finding means that
 * this heft maps as the one that wrote it. Nothing outside is read, the environment included.
 * HEFT_ERR_ARGUMENT: there is no mapping. Whatever heft_contract_create returns when this heft
 * refuses it, with *report_out (may be NULL) as there.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_check(const heft_contract_t *contract,
                                                           heft_drift_t **drift_out,
                                                           heft_report_t **report_out,
                                                           heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
