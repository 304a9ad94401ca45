# SPDX-License-Identifier: Apache-2.0
"""Toys under the tracer: their plan, and the plan run on real memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import heft
from heft import Exception_, ExceptionKind, Plan
from heft.trace import Trace
from heft.trace import trace as trace_loader

from .case import Spec, Toy
from .reference import bytes_of


def specs_of(sources: Mapping[str, Spec]) -> dict[str, torch.Tensor]:
    """What the sender sends, as tensors without memory."""
    return {
        name: torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        for name, spec in sources.items()
    }


def trace_toy(toy: Toy, **options: object) -> Trace:
    return trace_loader(toy.build(), specs_of(toy.sources), rank=toy.rank, **options)


def exceptions_of(toy: Toy) -> list[Exception_]:
    return [
        Exception_(ExceptionKind[e.kind.upper()], e.pattern, e.reason, box=e.box)
        for e in toy.excuses
    ]


def plan_toy(toy: Toy) -> Plan:
    return trace_toy(toy).plan(exceptions=exceptions_of(toy))


def run_plan(
    toy: Toy, plan: Plan, sources: Mapping[str, torch.Tensor], poison: int
) -> dict[str, torch.Tensor]:
    """The plan's parameters after a run over memory full of poison."""
    params: dict[str, torch.Tensor] = {}
    for param in plan.params(0):
        like = dict(toy.build().named_parameters())[param.name]
        params[param.name] = torch.empty(param.shape, dtype=like.dtype)
        bytes_of(params[param.name]).fill_(poison)
    used = {source.name for source in plan.sources}
    heft.execute(plan, {n: t for n, t in sources.items() if n in used}, params)
    return params
