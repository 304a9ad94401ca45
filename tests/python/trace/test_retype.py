# SPDX-License-Identifier: Apache-2.0
"""view(dtype): the plan writes the loader's bytes, without the engine where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import heft

F32, BF16, U8, I32 = torch.float32, torch.bfloat16, torch.uint8, torch.int32
F8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


class Loader(nn.Module):
    def __init__(
        self, dtype: torch.dtype, shape: tuple[int, ...], load: Callable[..., Any]
    ) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
        self.load = load

    def load_weights(self, weights: Any) -> None:
        by_name = dict(weights)
        self.load(self.p.data, by_name["x"], by_name["s"])


def scaled(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.copy_((x.view(F8).float() * s).to(BF16))


def parts_of_elements(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.zero_()
    p.view(U8)[:, ::4].copy_(x)


def multiplied(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.copy_(x.view(U8).float() @ torch.eye(6))


def zeroed(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.view(U8).zero_()
    p[:2].copy_(x[:2])


def filled(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.view(U8).fill_(9)
    p[:2].copy_(x[:2])


def twice(x: torch.Tensor) -> torch.Tensor:
    return x[:2].repeat(1, 2)


def put_in_the_middle(p: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> None:
    p.zero_()
    p[1:3].view(U8).copy_(x.view(U8)[2:4])


HELD = {
    "words as bytes": (U8, (4, 24), I32, lambda p, x, s: p.copy_(x.view(U8))),
    "some bytes of words": (U8, (4, 6), I32, lambda p, x, s: p.copy_(x.view(U8)[:, 1::4])),
    "bytes as words": (I32, (4, 2), U8, lambda p, x, s: p.copy_(x[:, :8].clone().view(I32))),
    "scales as bytes": (U8, (4, 6), E8M0, lambda p, x, s: p.copy_(x.view(U8))),
    "bytes as floats": (F8, (6, 4), U8, lambda p, x, s: p.copy_(x.view(F8).t())),
    "bytes as floats, cast": (BF16, (4, 6), U8, lambda p, x, s: p.copy_(x.view(F8).to(BF16))),
    "written as bytes": (F8, (4, 6), U8, lambda p, x, s: p.view(U8).copy_(x)),
    "words written as bytes": (I32, (2, 3), U8, lambda p, x, s: p.view(U8).copy_(twice(x))),
    "both seen as bytes": (BF16, (4, 6), BF16, put_in_the_middle),
    "zeroed as bytes": (I32, (4, 6), I32, zeroed),
    "filled as bytes": (I32, (4, 6), I32, filled),
    "scaled": (BF16, (4, 6), U8, scaled),
}  # fmt: skip
LEFT = {
    "parts of elements": (I32, (4, 6), U8, parts_of_elements),
    "multiplied by bytes": (U8, (4, 6), E8M0, multiplied),
}  # fmt: skip


def model_and_trace(case: Any) -> tuple[Loader, heft.trace.Trace]:
    dtype, shape, source, load = case
    model = Loader(dtype, shape, load)
    unused = heft.Exception_(heft.ExceptionKind.UNUSED, "*", "not every loader reads all", True)
    specs = [("x", source, (4, 6) if source != U8 or shape != (4, 2) else (4, 10)), ("s", F32, ())]
    return model, heft.trace(model, specs, exceptions=[unused])


@pytest.mark.parametrize("name", HELD)
def test_bytes_agree_and_heft_needs_no_engine(name: str) -> None:
    model, traced = model_and_trace(HELD[name])
    assert traced.opaque == {}
    verdict = heft.verify(model, traced)
    assert verdict.n_elems == model.p.numel() and verdict.skipped == {}


@pytest.mark.parametrize("name", LEFT)
def test_what_heft_cannot_take_is_left_to_the_engine_by_name(name: str) -> None:
    _, traced = model_and_trace(LEFT[name])
    assert list(traced.opaque) == ["p"]
    plan = traced.plan()
    assert all(not op.op.startswith("heft.") for op in plan.opaques())
