# SPDX-License-Identifier: Apache-2.0
"""One real loader on one layout: trace every rank, prove them together, compare with the loader.

The judge is the engine: its loader fills a fresh model from random bytes, the plan fills another
from the same bytes, and every element of every parameter must agree. Twice, with other values and
another poison underneath, so that a byte that nobody wrote shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from families import Family, twin_of

import heft
from heft.engines import Engine
from heft.trace import Trace, trace
from heft.trace.model import places_of

POISONS = (0xA5, 0x5A)


class Layout(NamedTuple):
    """How an engine is spread over ranks."""

    tp: int
    expert_parallel: bool = False

    def __str__(self) -> str:
        return f"tp {self.tp}{', experts over ranks' if self.expert_parallel else ''}"


class Result(NamedTuple):
    """What one family gave on one layout."""

    model_class: str
    n_sources: int
    n_params: int  # of the last rank, as are the numbers that follow
    n_groups: int
    opaque: dict[str, list[Any]]
    derived: list[str]
    n_compared: int  # elements, over all ranks and both versions
    seconds: float  # the slowest rank's trace


def run(
    engine: Engine, family: Family, layout: Layout, names: Mapping[str, torch.Tensor]
) -> Result:
    """Trace, prove and compare; raises what the tracer, the proof or the comparison has to say."""
    traces: list[Trace] = []
    for rank in range(layout.tp):
        model = _build(engine, family, layout, rank)
        load = lambda weights, model=model: engine.load(model, weights)  # noqa: E731
        traces.append(trace(model, names, load=load, rank=rank))
    plan = heft.Plan.create([t.tape for t in traces], exceptions=engine.exceptions(model))
    compared = 0
    for rank in range(layout.tp):
        for version, poison in enumerate(POISONS):
            weights = random_weights(names, seed=1000 * rank + version)
            compared += _compare(engine, family, layout, rank, plan, weights, poison)
    last = traces[-1]
    members = [g for g in plan.groups if any(r == layout.tp - 1 for r, _ in g.params)]
    return Result(
        type(model).__name__,
        len(names),
        len(last.params),
        len(members),
        {name: list(uses) for name, uses in last.opaque.items()},
        [d.name for d in last.derived],
        compared,
        max(t.seconds for t in traces),
    )


def _build(engine: Engine, family: Family, layout: Layout, rank: int) -> torch.nn.Module:
    model: torch.nn.Module = engine.build(
        family.config(),
        tp=layout.tp,
        rank=rank,
        expert_parallel=layout.expert_parallel,
        draft=family.draft,
    )
    return model


def random_weights(names: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Random values; those that a checkpoint holds twice are equal, as published ones are."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, meta in names.items():
        if meta.dtype == torch.uint8:
            out[name] = torch.randint(
                256, tuple(meta.shape), generator=generator, dtype=torch.uint8
            )
        else:
            values = torch.randn(tuple(meta.shape), generator=generator)
            out[name] = values.to(meta.dtype)
    for name in out:
        if (twin := twin_of(name)) in out:
            out[name] = out[twin].clone()
    return out


def _compare(
    engine: Engine,
    family: Family,
    layout: Layout,
    rank: int,
    plan: heft.Plan,
    weights: dict[str, torch.Tensor],
    poison: int,
) -> int:
    """Elements of this rank that agree; AssertionError names the first that does not."""
    wanted = _params(_build(engine, family, layout, rank), plan, rank, poison)
    # the loader gets copies: it may write into what it is given
    engine.load(wanted.model, ((name, tensor.clone()) for name, tensor in weights.items()))
    given = _params(_build(engine, family, layout, rank), plan, rank, poison)
    used = {info.name for info in plan.sources}
    sources = {name: tensor for name, tensor in weights.items() if name in used}
    direct = {name: t for name, t in given.tensors.items() if name in _direct(plan, rank)}
    heft.execute(plan, sources, direct, rank=rank)
    for name, tensor in direct.items():
        assert_equal(name, wanted.tensors[name], tensor)
    return sum(tensor.numel() for tensor in direct.values())


class _Params(NamedTuple):
    model: torch.nn.Module
    tensors: dict[str, torch.Tensor]


def _params(model: torch.nn.Module, plan: heft.Plan, rank: int, poison: int) -> _Params:
    """The parameters of the plan in a model, filled with poison."""
    there = {place.name: place.tensor.detach() for place in places_of(model)}
    tensors = {info.name: there[info.name] for info in plan.params(rank)}
    for tensor in tensors.values():
        bytes_of(tensor).fill_(poison)
    return _Params(model, tensors)


def _direct(plan: heft.Plan, rank: int) -> set[str]:
    """Parameters that the plan itself writes: those of groups without opaque operations."""
    params = plan.params(rank)
    direct = set()
    for group in plan.groups:
        if not group.is_opaque:
            direct |= {params[i].name for r, i in group.params if r == rank}
    return direct


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor if tensor.dim() else tensor.unsqueeze(0)).view(torch.uint8)


def assert_equal(name: str, wanted: torch.Tensor, given: torch.Tensor) -> None:
    same = bytes_of(wanted) == bytes_of(given)
    if not bool(same.all()):
        first = int((~same).flatten().nonzero()[0]) // wanted.element_size()
        raise AssertionError(
            f'"{name}": element {first} of {list(wanted.shape)}: the loader wrote '
            f"{wanted.flatten()[first].item()}, the plan {given.flatten()[first].item()}; "
            f"{int((~same).sum())} bytes differ"
        )


def layouts_of(engine_name: str, family: Family) -> Sequence[Layout]:
    """Whole models for transformers; else two widths, and experts over ranks if there are any."""
    if engine_name == "transformers":
        return () if family.draft or family.fp8 or family.mxfp4 else (Layout(1),)
    experts = "num_experts_per_tok" in family.sizes
    return (Layout(2), Layout(4), *((Layout(4, True),) if experts else ()))
