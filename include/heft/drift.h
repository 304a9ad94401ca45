/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drift: what one side was and what it is now, two manifests compared.
 */
#ifndef HEFT_DRIFT_H
#define HEFT_DRIFT_H

#include "heft/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heft_drift_kind {
    HEFT_DRIFT_MISSING = 1,   /* a tensor of the first that the second lacks */
    HEFT_DRIFT_ADDED = 2,     /* a tensor of the second that the first lacks */
    HEFT_DRIFT_RENAMED = 3,   /* gone under one name, there under another: same dtype, shape and
                                 numbers in the name, and each the other's nearest */
    HEFT_DRIFT_RETYPED = 4,   /* another dtype */
    HEFT_DRIFT_RESHAPED = 5,  /* another shape */
    HEFT_DRIFT_RELAID = 6,    /* other layout attributes */
    HEFT_DRIFT_ATTRIBUTE = 7, /* another attribute of the whole side */
    HEFT_DRIFT_SIDE = 8,      /* source on one, destination on the other */
    /* of contracts (contract.h) */
    HEFT_DRIFT_MAPPING = 9,    /* a mapping, or its destinations, on one side only */
    HEFT_DRIFT_RECIPE = 10,    /* another text */
    HEFT_DRIFT_BINDING = 11,   /* another value of a let, of the configuration, of a variable */
    HEFT_DRIFT_RANKS = 12,     /* another number of ranks */
    HEFT_DRIFT_EXCEPTION = 13, /* an exception added or gone, or with another reason */
    HEFT_DRIFT_PLAN = 14       /* another plan where all of the above is equal */
} heft_drift_kind_t;

typedef struct heft_drift_finding {
    heft_drift_kind_t kind;
    int32_t reserved;
    const char *name;  /* the tensor, or the attribute's key; of an added one in the second */
    const char *other; /* its new name, or the nearest on the other side; "" where there is none */
    const char *text;  /* one line for people */
} heft_drift_finding_t;

typedef struct heft_drift heft_drift_t; /* immutable */

/**
 * Compare two finished manifests. All findings are kept, by kind in the order above, then by name;
 * of very many names on one side only, the nearest is looked for for the first ones. The manifests
 * are borrowed until return. HEFT_ERR_STATE: a manifest is not finished. HEFT_ERR_NOMEM.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_drift_create(const heft_manifest_t *first,
                                                         const heft_manifest_t *second,
                                                         heft_drift_t **drift_out,
                                                         heft_error_t *err);
HEFT_API void heft_drift_destroy(heft_drift_t *drift);
HEFT_API uint32_t heft_drift_get_n(const heft_drift_t *drift);
/** Finding i, or NULL. */
HEFT_API const heft_drift_finding_t *heft_drift_get(const heft_drift_t *drift, uint32_t i);
/** A lower-case word for a kind, such as "renamed"; "unknown" for a value that is none. */
HEFT_API const char *heft_drift_kind_get_name(heft_drift_kind_t kind);

#ifdef __cplusplus
}
#endif

#endif
