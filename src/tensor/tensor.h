/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor: dtypes, shapes, strided views, and exact region algebra on the elements of a flat buffer.
 */
#ifndef HEFT_TENSOR_TENSOR_H
#define HEFT_TENSOR_TENSOR_H

#include "base/base.h"
#include "heft/tensor.h"

#endif
