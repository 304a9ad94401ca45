/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that compare contracts share. */
#ifndef HEFT_EXEC_CONTRACT_DRIFT_H
#define HEFT_EXEC_CONTRACT_DRIFT_H

#include "exec/contract_impl.h"

typedef struct heft__contract_comparer {
    const heft_contract_t *first;
    const heft_contract_t *second;
    heft_drift_t *drift;
    heft_error_t *err;
} heft__contract_comparer_t;

/* What two loaders were traced under, and which ranks they are of. */
heft_status_t heft__contract_compare_loaders(const heft__contract_comparer_t *c);
/* What two loaders do: a finding for each parameter that is filled otherwise. */
heft_status_t heft__contract_compare_plans(const heft__contract_comparer_t *c);

#endif
