/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public, in one include. */
#ifndef HEFT_HEFT_H
#define HEFT_HEFT_H

#include "heft/bench.h"
#include "heft/cache.h"
#include "heft/config.h"
#include "heft/contract.h"
#include "heft/cuts.h"
#include "heft/diff.h"
#include "heft/drift.h"
#include "heft/exec.h"
#include "heft/experts.h"
#include "heft/log.h"
#include "heft/model.h"
#include "heft/names.h"
#include "heft/placement.h"
#include "heft/plan.h"
#include "heft/price.h"
#include "heft/recipe.h"
#include "heft/routes.h"
#include "heft/sizes.h"
#include "heft/status.h"
#include "heft/sync.h"
#include "heft/tape.h"
#include "heft/tensor.h"

#endif
