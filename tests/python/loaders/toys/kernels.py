# SPDX-License-Identifier: Apache-2.0
"""Functions of a toy engine that heft has known kernels for, and loaders that call them.

The functions are written as engines write them, so that they are a reference: heft's kernels must
give the same bits.
"""

from __future__ import annotations

import torch

from heft.trace.kernels import KnownKernel, known_kernel

from .case import Model, bf16, f8, f32, u8

E4M3 = torch.float8_e4m3fn
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def block_quantise(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales: the largest of a block becomes 448."""
    codes = torch.empty(weight.shape, dtype=E4M3)
    scales = torch.empty([-(-n // block) for n in weight.shape], dtype=torch.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
            values = weight[part].float()
            amax = values.abs().max()
            scale = amax / 448 if amax > 0 else torch.tensor(1.0)
            scales[i, j] = scale
            codes[part] = (values / scale).clamp(-448, 448).to(E4M3)
    return codes, scales


def unpack_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two values in a byte, the low one first; 32 of them share a scale."""
    lut = torch.tensor([*FP4_VALUES, *(-v for v in FP4_VALUES)])
    low, high = lut[(blocks & 15).long()], lut[(blocks >> 4).long()]
    values = torch.stack([low, high], dim=-1).flatten(-2)
    values = torch.ldexp(values, scales.int()[..., None] - 127)
    return values.flatten(-2).to(torch.bfloat16)


@known_kernel(f"{__name__}:block_quantise")
def describe_quantise(record, weight, block):
    op = f"heft.fp8_quantise/1(block={block}x{block},scale=deepseek)"
    n_blocks = [-(-n // block) for n in weight.shape]
    return record(op, [weight], [(weight.shape, E4M3), (n_blocks, torch.float32)])


@known_kernel(f"{__name__}:unpack_mxfp4")
def describe_unpack(record, blocks, scales):
    shape = (*blocks.shape[:-2], 32 * blocks.shape[-2])
    (values,) = record("heft.mxfp4_unpack/1", [blocks, scales], [(shape, torch.bfloat16)])
    return values


KERNELS: tuple[KnownKernel, ...] = (describe_quantise, describe_unpack)


def quantising_model() -> Model:
    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        codes, scales = block_quantise(weights["x"], 2)
        model.weight.copy_(codes)
        model.scale.copy_(scales)

    params = {"weight": f8(2, 4), "scale": f32(1, 2)}
    return Model(params, load)


def unpacking_model() -> Model:
    """Dequantised, then transposed into this rank's half of the rows."""

    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        values = unpack_mxfp4(weights["w_blocks"], weights["w_scales"])
        model.w.copy_(values.t()[16:].contiguous())

    return Model({"w": bf16(16, 2)}, load)


UNPACK_SOURCES = {"w_blocks": u8(2, 1, 16), "w_scales": u8(2, 1)}
