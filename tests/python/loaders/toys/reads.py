# SPDX-License-Identifier: Apache-2.0
"""Loaders that ask for values: scalars that reach a write, checks, constants, parameters read."""

from __future__ import annotations

import torch

from .case import Excuse, Toy, bf16, f32, toy

TOYS: list[Toy] = []


@toy({"s": f32(1)}, {"p": f32(4)}, {"p": "s#0:4"}, TOYS)
def filled_with_a_value_read(model, weights):
    model.p.fill_(weights["s"].item())


@toy(
    {"x": f32(3), "s": f32()},
    {"q": f32(3)},
    {"q": "x#0..2*s#0"},
    TOYS,
    computed=["q"],
)
def multiplied_by_a_value_read(model, weights):
    model.q.copy_(weights["x"] * weights["s"].item())


@toy(
    {"s1": f32(1), "s2": f32(1)},
    {"p": f32(2), "q": f32(2)},
    {"p": "s1#0:2", "q": "s2#0:2"},
    TOYS,
)
def two_values_read_then_written(model, weights):
    first, second = weights["s1"].item(), weights["s2"].item()
    model.p.fill_(first)
    model.q.fill_(second)


@toy(
    {"s": f32(4)},
    {"p": f32(2), "q": f32(2)},
    {"p": "s#2:2", "q": "s#1:2"},
    TOYS,
    excuses=[Excuse("unused", "s")],
)
def one_element_of_several_read(model, weights):
    scales = weights["s"]
    model.p.fill_(float(scales[2]))
    model.q.fill_(float(scales[1]))


@toy(
    {"w": f32(4, 2)},
    {"q": f32(4, 2)},
    {"q": "w#0..5 =0:2"},
    TOYS,
    excuses=[Excuse("unused", "w")],
    uniform=True,
)
def rows_compared_then_padding_zeroed(model, weights):
    w = weights["w"]
    model.q[:3].copy_(w[:3])
    if bool((w == w[0]).all()):
        model.q[3:].zero_()


@toy(
    {"x": f32(1), "y": f32(1)},
    {"p": f32(1)},
    {"p": "x#0"},
    TOYS,
    excuses=[Excuse("unused", "y")],
    uniform=True,
)
def checked_against_what_was_written(model, weights):
    model.p.copy_(weights["x"])
    if model.p.item() != weights["y"].item():
        raise ValueError("input scales differ")


@toy(
    {"w": bf16(2, 2), "s": f32(1)},
    {"p": bf16(2, 2), "scale": f32(1)},
    {"p": "w#0..3", "scale": "s#0"},
    TOYS,
)
def scale_checked_to_be_positive(model, weights):
    if weights["s"].item() <= 0:
        raise ValueError("scale must be positive")
    model.scale.copy_(weights["s"])
    model.p.copy_(weights["w"])


@toy(
    {"x": bf16(4, 2)},
    {"p": bf16(2, 2)},
    {"p": "x#6,7 x#2,3"},
    TOYS,
    excuses=[Excuse("unused", "x")],
)
def rows_by_computed_list(model, weights):
    order = torch.argsort(torch.tensor([5, 3, 9, 1]))
    model.p.copy_(weights["x"][order[:2]])
