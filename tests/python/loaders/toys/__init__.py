# SPDX-License-Identifier: Apache-2.0
"""Toy loaders in the style of inference engines, each with the element map it must have."""

from . import arithmetic, families, parallel, reads, tensor_ops

ALL_TOYS = [
    *tensor_ops.TOYS,
    *arithmetic.TOYS,
    *reads.TOYS,
    *parallel.TOYS,
    *families.TOYS,
]
