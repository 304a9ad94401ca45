# SPDX-License-Identifier: Apache-2.0
"""A toy: a small model, the tensors it is fed with, and the element map its loader must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from .notation import Entry, parse_map

Weights = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Spec:
    """Dtype and shape of a source tensor or of a parameter."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def f32(*shape: int) -> Spec:
    return Spec(torch.float32, shape)


def bf16(*shape: int) -> Spec:
    return Spec(torch.bfloat16, shape)


def f16(*shape: int) -> Spec:
    return Spec(torch.float16, shape)


def f8(*shape: int) -> Spec:
    return Spec(torch.float8_e4m3fn, shape)


def u8(*shape: int) -> Spec:
    return Spec(torch.uint8, shape)


def i32(*shape: int) -> Spec:
    return Spec(torch.int32, shape)


@dataclass(frozen=True)
class Excuse:
    """An exception that the plan of a toy needs, with its reason."""

    kind: str
    pattern: str
    reason: str = "a toy says so"
    box: tuple[tuple[int, int], ...] = ()  # of these indices alone


@dataclass(frozen=True)
class Toy:
    """One loader under one configuration of one rank."""

    name: str
    sources: Mapping[str, Spec]
    build: Callable[[], nn.Module]
    expect: Mapping[str, str]
    computed: frozenset[str] = frozenset()  # parameters whose elements are no plain copies
    opaque: frozenset[str] = frozenset()  # parameters that are left to the engine's loader
    kernels: frozenset[str] = frozenset()  # parameters that a known kernel of heft writes
    excuses: tuple[Excuse, ...] = ()
    approximate: frozenset[str] = frozenset()  # parameters of maps with exp
    rank: int = 0
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    uniform: bool = False  # the loader rejects sources that are not all one number

    def expected(self) -> dict[str, list[Entry]]:
        return {name: parse_map(text) for name, text in self.expect.items()}


class Model(nn.Module):
    """A model whose loader is one function; names with dots make the modules on the way."""

    def __init__(
        self,
        params: Mapping[str, Spec],
        load: Callable[[Model, dict[str, torch.Tensor]], object],
        buffers: Mapping[str, Spec] | None = None,
    ) -> None:
        super().__init__()
        self._load = load
        for name, spec in params.items():
            data = torch.empty(spec.shape, dtype=spec.dtype)
            plant(self, name, nn.Parameter(data, requires_grad=False))
        for name, spec in (buffers or {}).items():
            plant(self, name, torch.empty(spec.shape, dtype=spec.dtype))

    def load_weights(self, weights: Weights) -> object:
        return self._load(self, dict(weights))


def plant(root: nn.Module, name: str, value: torch.Tensor) -> None:
    """Register a parameter (or a buffer) under a dotted name."""
    *path, last = name.split(".")
    module = root
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    if isinstance(value, nn.Parameter):
        module.register_parameter(last, value)
    else:
        module.register_buffer(last, value)


def toy(
    sources: Mapping[str, Spec],
    params: Mapping[str, Spec],
    expect: Mapping[str, str],
    into: list[Toy],
    *,
    buffers: Mapping[str, Spec] | None = None,
    computed: Iterable[str] = (),
    approximate: Iterable[str] = (),
    opaque: Iterable[str] = (),
    kernels: Iterable[str] = (),
    excuses: Iterable[Excuse] = (),
    values: Mapping[str, tuple[float, ...]] | None = None,
    uniform: bool = False,
) -> Callable[[Callable[[Model, dict[str, torch.Tensor]], object]], Toy]:
    """Make a toy of a loader function, named like it, and add it to a list."""

    def make(load: Callable[[Model, dict[str, torch.Tensor]], object]) -> Toy:
        made = Toy(
            name=load.__name__,
            sources=sources,
            build=lambda: Model(params, load, buffers),
            expect=expect,
            computed=frozenset(computed) | frozenset(approximate),
            approximate=frozenset(approximate),
            opaque=frozenset(opaque),
            kernels=frozenset(kernels),
            excuses=tuple(excuses),
            values=values or {},
            uniform=uniform,
        )
        into.append(made)
        return made

    return make
