/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts: what a side is and how it is made, kept in a file (docs/formats/contract.md).
 *
 * A contract holds a manifest and, where there is one, the mapping: a recipe with its bindings, or
 * what an engine's loader was traced to do (a tape for each rank); with it destination manifests,
 * exceptions that hold, and the digest of every rank's plan. Two contracts can be compared, and one
 * can be made again from itself to see that it still comes to the same plans.
 */
#ifndef HEFT_CONTRACT_H
#define HEFT_CONTRACT_H

#include "heft/drift.h"
#include "heft/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_contract heft_contract_t; /* immutable */

/* What a loader was traced under: "platform", "half_order", "tp_rank", .. */
typedef struct heft_contract_attr {
    const char *key;
    const char *value;
} heft_contract_attr_t;

typedef struct heft_contract_opts {
    size_t size;
    const heft_recipe_t *recipe;     /* NULL: tapes, or else a side alone */
    const heft_bindings_t *bindings; /* NULL: none; of a recipe */
    /* NULL, or n_destinations finished manifests, one for each rank of the mapping */
    const heft_manifest_t *const *destinations;
    uint32_t n_destinations;
    uint32_t reserved;
    heft_issues_t *issues; /* NULL: not wanted; as of heft_recipe_compile_all */
    /* in the place of a recipe: tapes[i] is what the loader of rank first_rank + i does */
    const heft_tape_t *const *tapes;
    uint32_t n_tapes;
    uint32_t first_rank;
    const heft_exception_t *exceptions; /* of tapes; a recipe states its own */
    uint32_t n_exceptions;
    uint32_t n_attrs;
    const heft_contract_attr_t *attrs; /* of tapes; keys must differ */
    uint8_t partial; /* 1: not all ranks are here, as of heft_plan_opts_t; of tapes */
    uint8_t reserved_too[7];
} heft_contract_opts_t;
#define HEFT_CONTRACT_OPTS_INIT              \
    {                                        \
        .size = sizeof(heft_contract_opts_t) \
    }

/**
 * Make a contract. With a mapping every rank is compiled (a recipe), folded and proven first. The
 * manifests are borrowed until the contract is destroyed, the rest until return. report_out may be
 * NULL; it is given on HEFT_ERR_PROOF, and with a mapping on success.
 *
 * A tape may leave out tensors of the manifest (the proof then finds them unused) and of its
 * destination (uncovered), but has no others; without destinations they are made of the tapes'
 * parameters. The contract keeps tapes of its own, in normal form, equal ones once.
 *
 * HEFT_ERR_STATE: a manifest is not finished. HEFT_ERR_ARGUMENT: not as many destinations as ranks;
 * a recipe and tapes. HEFT_ERR_NAME: a tape reads a source that the manifest has not, or has
 * another parameter than its destination. HEFT_ERR_SHAPE: another shape or dtype. HEFT_ERR_FORMAT:
 * a text is no UTF-8. What compiling and planning can return. HEFT_ERR_NOMEM.
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
/** 1 if the mapping is a traced loader: there are tapes, and no recipe. */
HEFT_API int heft_contract_is_traced(const heft_contract_t *contract);
/** What the loader of rank first_rank + i does: sources are those of the manifest, parameters those
 * of the destination, in their order. NULL beyond the end, and of a recipe. Borrowed. */
HEFT_API const heft_tape_t *heft_contract_get_tape(const heft_contract_t *contract, uint32_t i);
/** The number of the first rank: 0, but of some ranks of a traced loader. */
HEFT_API uint32_t heft_contract_get_first_rank(const heft_contract_t *contract);
/** 1 if other ranks belong to the destination, too. */
HEFT_API int heft_contract_is_partial(const heft_contract_t *contract);
/** What the loader was traced under, by key. Borrowed; NULL beyond the end. */
HEFT_API uint32_t heft_contract_get_n_attrs(const heft_contract_t *contract);
HEFT_API const heft_contract_attr_t *heft_contract_get_attr(const heft_contract_t *contract,
                                                            uint32_t i);
/** The recipe: its file's name without folders, and its text. NULL of a traced loader. */
HEFT_API const char *heft_contract_get_recipe_name(const heft_contract_t *contract);
HEFT_API const char *heft_contract_get_recipe_text(const heft_contract_t *contract);
/** As heft_bindings_encode writes them, without what the recipe does not read. NULL of a traced
 * loader. */
HEFT_API const char *heft_contract_get_bindings(const heft_contract_t *contract);
/** The digest of the whole plan, and of one rank (heft_plan_get_rank_digest). */
HEFT_API const char *heft_contract_get_plan_digest(const heft_contract_t *contract);
HEFT_API uint32_t heft_contract_get_n_ranks(const heft_contract_t *contract);
HEFT_API const char *heft_contract_get_rank_digest(const heft_contract_t *contract, uint32_t rank);
/** The destination's manifest of one rank (of the contract's, from 0), or NULL where none was
 * given. Borrowed. */
HEFT_API const heft_manifest_t *heft_contract_get_destination(const heft_contract_t *contract,
                                                              uint32_t rank);
/** The exceptions that hold, values in their patterns, `where` empty. Borrowed; NULL beyond the
 * end. */
HEFT_API uint32_t heft_contract_get_n_exceptions(const heft_contract_t *contract);
HEFT_API const heft_exception_t *heft_contract_get_exception(const heft_contract_t *contract,
                                                             uint32_t i);

/**
 * What differs between two contracts: their manifests, and of their mappings recipe, bindings, or
 * what a loader was traced under, ranks, exceptions, destinations; where all of that is equal, the
 * plans. Of traced loaders the plans are always compared: each parameter that is filled otherwise,
 * with the first range. Nothing is borrowed. HEFT_ERR_NOMEM.
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

/**
 * The plan of a contract's mapping, made and proven from what the contract holds: what a sender and
 * a receiver of one contract both come to. report_out may be NULL; it is given on success and on
 * HEFT_ERR_PROOF. HEFT_ERR_ARGUMENT: there is no mapping. HEFT_ERR_DIGEST: this heft comes to other
 * plans than the contract records; the first such rank is named. What compiling and planning can
 * return.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_plan(const heft_contract_t *contract,
                                                          heft_plan_t **plan_out,
                                                          heft_report_t **report_out,
                                                          heft_error_t *err);

/**
 * The contract of all ranks from contracts of some each, in any order: one manifest, ranks without
 * a gap and none twice. An exception that several list is one; an attribute that not all have alike
 * is named after the rank ("rank-2.tp_rank"). All ranks are proven together: with partial 0 every
 * source element must be used, and an exception that excuses nothing on any rank is stale. The
 * contracts are borrowed until the merged one is destroyed. HEFT_ERR_MISMATCH: their manifests
 * differ. HEFT_ERR_ARGUMENT: a rank is missing or there twice; one is of no traced loader. What
 * heft_contract_create returns, with *report_out as there.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_contract_merge(const heft_contract_t *const *contracts,
                                                           uint32_t n_contracts, int partial,
                                                           heft_contract_t **contract_out,
                                                           heft_report_t **report_out,
                                                           heft_error_t *err);

/**
 * One source of several source ranks, such as the stages of a pipeline: every tensor of all of
 * them, so that a contract can be held against what they send together. A name that two parts have
 * is refused, since it may be local to a stage ("layers.0" in both), unless it matches one of the
 * n_shared whole-token patterns: a tensor that both keep, such as a tied embedding, which the first
 * of them writes. Attributes of the whole must be equal in all. writers_out (may be NULL) has room
 * for the tensors of all parts; writers_out[i] becomes the part that sends tensor i of the result.
 * Nothing is borrowed.
 *
 * HEFT_ERR_EXISTS: a name in two parts; HEFT_ERR_SHAPE: a shared one that differs;
 * HEFT_ERR_NOT_FOUND: a pattern that no such name matches; HEFT_ERR_MISMATCH: attributes that
 * differ; HEFT_ERR_STATE: a manifest is not finished; HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_manifest_join(
    const heft_manifest_t *const *parts, uint32_t n_parts, const char *const *shared,
    uint32_t n_shared, heft_manifest_t **manifest_out, uint32_t *writers_out, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
