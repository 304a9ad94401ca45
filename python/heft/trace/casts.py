# SPDX-License-Identifier: Apache-2.0
"""Which casts of PyTorch heft does bit for bit, and what dtypes are called on a tape."""

from __future__ import annotations

import functools

import torch

from heft.torch import DTYPES

INTEGERS = {
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
FLOAT8 = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu}

TAPE_DTYPES = {torch_dtype: dtype.name for torch_dtype, dtype in DTYPES.items()}


@functools.cache
def e4m3_saturates() -> bool:
    """Whether PyTorch's cast to f8_e4m3 on a CPU saturates, as heft's does; once it gave NaN."""
    big = torch.tensor([500.0, -1000.0, float("inf")]).to(torch.float8_e4m3fn).float()
    return big.tolist() == [448.0, -448.0, 448.0]


def is_cast_exact(src: torch.dtype, dst: torch.dtype, is_on_cpu: bool) -> bool:
    """Whether heft's cast gives PyTorch's bits for every value, on the engine's device."""
    if src == dst:
        return True
    if src in INTEGERS and dst in INTEGERS:
        return True
    if src in FLOATS | {torch.float8_e4m3fn, torch.float8_e5m2} and dst in FLOATS:
        return True
    if src in FLOATS and dst == torch.float8_e4m3fn:
        return is_on_cpu and e4m3_saturates()
    return src == torch.float8_e8m0fnu and dst == torch.float32
