# SPDX-License-Identifier: Apache-2.0
"""Random chains of operators into a parameter of random strides, judged by heft.verify.

HEFT_TEST_CASES sets the number of chains, HEFT_TEST_SEED the first seed; a failure names its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heft

N_CASES = int(os.environ.get("HEFT_TEST_CASES", "80"))
FIRST_SEED = int(os.environ.get("HEFT_TEST_SEED", "1"))
N_BATCHES = 8

Operator = Callable[[torch.Tensor, random.Random], torch.Tensor]


def some(r: random.Random, n: int, most: int = 4) -> list[int]:
    return [r.randrange(n) for _ in range(r.randint(1, most))]


def narrow(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    d = r.randrange(t.dim())
    at = r.randrange(t.shape[d])
    return t.narrow(d, at, r.randint(1, t.shape[d] - at))


def permute(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    return t.permute(r.sample(range(t.dim()), t.dim()))


def pick_pairs(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    k = r.randint(1, 3)
    a, b = (torch.tensor([r.randrange(t.shape[d]) for _ in range(k)]) for d in (0, -1))
    if t.dim() == 1:
        return t[a]
    return t[a, ..., b] if r.random() < 0.5 else t[a[:, None], ..., b]


def pick_column(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    return t[..., some(r, t.shape[-1])]


def mask_rows(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    mask = [True, *(r.random() < 0.6 for _ in range(t.shape[0] - 1))]
    return t[torch.tensor(mask)]


def gather(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    d = r.randrange(t.dim())
    index = [r.randrange(t.shape[d]) for _ in range(t.numel())]
    return t.gather(d, torch.tensor(index).reshape(t.shape))


def put_rows(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    out = torch.zeros(t.shape, dtype=t.dtype)
    out[r.sample(range(t.shape[0]), 1)] = t[:1]
    return torch.stack([out, t])


def put_columns(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    out = torch.ones(t.shape, dtype=t.dtype)
    order = r.sample(range(t.shape[-1]), t.shape[-1])
    out[..., order] = t
    return out


def scatter(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    d = r.randrange(t.dim())
    shape = [-1 if k == d else 1 for k in range(t.dim())]
    index = torch.arange(t.shape[d]).flip(0).reshape(shape).expand(t.shape)
    return torch.zeros_like(t).scatter_(d, index, t)


def where(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    mask = torch.tensor([k == 0 or r.random() < 0.5 for k in range(t.numel())])
    return torch.where(mask.reshape(t.shape), t, 0.25)


def pad(t: torch.Tensor, r: random.Random) -> torch.Tensor:
    return F.pad(t, (r.randint(-1, 2) if t.shape[-1] > 2 else 1, r.randint(0, 2)), value=1.5)


OPERATORS: list[Operator] = [
    narrow, permute, pick_pairs, pick_column, mask_rows, gather, put_rows, put_columns, scatter,
    where, pad,
    lambda t, r: t[:: r.randint(1, 3)],
    lambda t, r: t.flip(r.randrange(t.dim())),
    lambda t, r: t.roll(r.randint(-3, 3), r.randrange(t.dim())),
    lambda t, r: t.roll(r.randint(-3, 3)),
    lambda t, r: t.reshape(-1) if r.random() < 0.5 else t.reshape(*t.shape, 1),
    lambda t, r: torch.cat([t, t.flip(0)], r.randrange(t.dim())),
    lambda t, r: torch.stack([t, t * 2], r.randint(0, t.dim())),
    lambda t, r: t.repeat(*[r.randint(1, 2) for _ in range(t.dim() + r.randint(0, 1))]),
    lambda t, r: t.repeat_interleave(2, r.randrange(t.dim())),
    lambda t, r: torch.cat([t, t.reshape(-1, t.shape[-1]).tril().reshape(t.shape)]),
    lambda t, r: t.to(torch.bfloat16),
    lambda t, r: t.float(),
    lambda t, r: t * r.choice([2, 0.1, -3.5]),
    lambda t, r: t / r.choice([2, 0.3]) - 0.7,
    lambda t, r: t[None].expand(2, *t.shape),
    lambda t, r: t.unfold(0, 2, 1) if t.shape[0] > 1 else t,
    lambda t, r: t.clone().mul_(2),
    lambda t, r: t.contiguous(),
    lambda t, r: t.select(0, -1) if t.dim() > 1 else t,
    lambda t, r: r.choice(t.chunk(2, 0)),
]  # fmt: skip


class Chain(nn.Module):
    """A parameter with gaps and dimensions in any order, and what is copied into it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        r = random.Random(seed)
        self.seed = seed
        self.source = tuple(r.randint(1, 5) for _ in range(r.randint(1, 3)))
        self.operators = r.choices(OPERATORS, k=r.randint(1, 6))
        out = self.compute(torch.ones(self.source))
        order = r.sample(range(out.dim()), out.dim())
        memory = torch.zeros([out.shape[d] + r.randint(0, 1) for d in order], dtype=out.dtype)
        data = memory.permute([order.index(d) for d in range(out.dim())])
        for d in range(out.dim()):
            data = data.narrow(d, 0, out.shape[d])
        self.p = nn.Parameter(data, requires_grad=False)

    def compute(self, t: torch.Tensor) -> torch.Tensor:
        r = random.Random(self.seed)
        for operator in self.operators:
            if t.numel() > 2000 or t.dim() > 6:
                break
            t = operator(t, r)
        return t

    def load_weights(self, weights: Any) -> None:
        self.p.data.copy_(self.compute(dict(weights)["x"]))


@pytest.mark.parametrize("batch", range(N_BATCHES))
def test_plan_writes_what_pytorch_writes(batch: int) -> None:
    n_constant = 0
    unused = heft.Exception_(heft.ExceptionKind.UNUSED, "x", "a chain may drop elements", True)
    for seed in range(FIRST_SEED + batch, FIRST_SEED + N_CASES, N_BATCHES):
        model = Chain(seed)
        try:
            traced = heft.trace(model, [("x", torch.float32, model.source)], exceptions=[unused])
            assert traced.opaque == {} and traced.constants == []
            heft.verify(model, traced, seed=seed)
        except Exception as error:
            if not is_constant(error):
                raise AssertionError(f"HEFT_TEST_SEED={seed} HEFT_TEST_CASES=1: {error}") from error
            n_constant += 1
    assert n_constant <= N_CASES // N_BATCHES // 4


def is_constant(error: Exception) -> bool:
    """A chain that takes nothing but padding moves no byte, and its plan is refused for that."""
    report = error.report if isinstance(error, heft.errors.ProofError) else None
    return report is not None and {f.kind for f in report.findings if f.is_error} == {
        heft.FindingKind.EMPTY
    }
