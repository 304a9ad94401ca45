# SPDX-License-Identifier: Apache-2.0
"""Loaders that compute: casts, constants added, scales, dequantisation, -exp, read-modify-write."""

from __future__ import annotations

import torch

from .case import Toy, bf16, f8, f32, toy

TOYS: list[Toy] = []


@toy({"x": f32(2)}, {"p": bf16(2)}, {"p": "x#0,1"}, TOYS)
def cast_rounds_to_even(model, weights):
    model.p.copy_(weights["x"])


@toy(
    {"w": bf16(2)},
    {"wide": f32(2), "narrow": f32(2)},
    {"wide": "w#0,1", "narrow": "w#0,1"},
    TOYS,
    computed=["wide", "narrow"],
    values={"w": (2.0**-8, 3.0)},
)
def one_added_before_and_after_widening(model, weights):
    model.wide.copy_(weights["w"].float() + 1)
    model.narrow.copy_((weights["w"] + 1).float())


@toy(
    {"w": bf16(3)},
    {"p": bf16(3), "q": bf16(3), "r": f32(3)},
    {"p": "w#0..2", "q": "w#0..2", "r": "w#0..2"},
    TOYS,
    computed=["p", "q", "r"],
)
def numbers_added_multiplied_and_divided(model, weights):
    w = weights["w"]
    model.p.copy_(w * 0.3 - 0.1)
    model.q.copy_(w / 3)
    model.r.copy_((w.to(torch.float32) * 1.7).add(0.2).div(7))


def expand_block_scale(scale: torch.Tensor, rows: int, cols: int, block: int) -> torch.Tensor:
    """A scale repeated over its blocks and cut to the weight, as engines do."""
    scale = scale.repeat_interleave(block, dim=0).repeat_interleave(block, dim=1)
    return scale[:rows, :cols]


@toy(
    {"w": f8(3, 5), "s": f32(2, 3)},
    {"p": bf16(3, 5)},
    {"p": "w#0..4*s#0,0,1,1,2 w#5..9*s#0,0,1,1,2 w#10..14*s#3,3,4,4,5"},
    TOYS,
    computed=["p"],
)
def dequantised_by_blocks(model, weights):
    weight, scale = weights["w"], weights["s"]
    scale = expand_block_scale(scale, *weight.shape, block=2)
    model.p.copy_((weight.to(torch.float32) * scale).to(torch.bfloat16))


@toy(
    {"w": f8(2, 3), "s": f32(2), "t": f8(2, 2), "u": f32()},
    {"by_row": bf16(2, 3), "whole": bf16(2, 2)},
    {"by_row": "w#0..2*s#0 w#3..5*s#1", "whole": "t#0..3*u#0"},
    TOYS,
    computed=["by_row", "whole"],
)
def dequantised_by_row_and_whole(model, weights):
    model.by_row.copy_(weights["w"].float() * weights["s"][:, None])
    model.whole.copy_(weights["t"].float() * weights["u"])


@toy(
    {"w": f8(4, 4), "s": f32(2, 2)},
    {"p": bf16(4, 4)},
    {
        "p": "w#0..3*s#0,0,1,1 w#4..7*s#0,0,1,1 w#8..11*s#2,2,3,3 w#12..15*s#2,2,3,3",
    },
    TOYS,
    computed=["p"],
)
def dequantised_through_a_block_view(model, weights):
    blocks = weights["w"].float().view(2, 2, 2, 2)
    model.p.copy_((blocks * weights["s"][:, None, :, None]).view(4, 4))


@toy(
    {"x": f32(2)},
    {"A": f32(2)},
    {"A": "x#0,1"},
    TOYS,
    approximate=["A"],
)
def computed_from_what_was_just_written(model, weights):
    model.A.copy_(weights["x"])
    model.A.copy_(-torch.exp(model.A.float()))


@toy({"x": bf16(3)}, {"p": bf16(3)}, {"p": "x#0..2"}, TOYS, computed=["p"])
def changed_in_place_after_a_copy(model, weights):
    model.p.copy_(weights["x"])
    model.p.add_(1)
    model.p.mul_(3)


@toy({"a": bf16(4), "b": bf16(4)}, {"p": bf16(4)}, {"p": "a#0..3*b#0..3"}, TOYS, computed=["p"])
def two_sources_multiplied(model, weights):
    torch.mul(weights["a"], weights["b"], out=model.p.data)


@toy({"x": f32(4)}, {"p": f32(4)}, {"p": "x#0..3"}, TOYS, computed=["p"])
def negated(model, weights):
    model.p.copy_(-weights["x"])
