# SPDX-License-Identifier: Apache-2.0
"""The judge: what a loader does, found by running it for real on tensors of numbers.

Copies are found by tags: every source element has a number, and pass after pass writes one digit of
it into the element, once as it is and once as its complement, so that constants (which are the same
in both) show. Digits are small enough for the narrowest dtype. What a loader computes is found by
changing one source element at a time. What it leaves alone shows as poison, in two colours.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from .case import Spec, Toy
from .notation import UNTOUCHED, Elem, Entry

POISON = (0xA5, 0x5A)
DIGIT_BASE = 16  # e4m3 keeps integers up to 16 exactly


def run_real(toy: Toy, sources: Mapping[str, torch.Tensor], poison: int) -> dict[str, torch.Tensor]:
    """Load copies of these sources into a fresh model full of poison; the parameters afterwards."""
    model = toy.build()
    state = named_state(model)
    for tensor in state.values():
        bytes_of(tensor).fill_(poison)
    with torch.no_grad():
        model.load_weights((name, tensor.clone()) for name, tensor in sources.items())
    return {name: state_of(model, name) for name in toy.expect}


def named_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; a tensor with two names counts once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def state_of(model: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    return getattr(model.get_submodule(path), last).detach()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, gaps between its rows included."""
    whole = torch.empty(0, dtype=torch.uint8)
    return whole.set_(tensor.untyped_storage())


def elements_as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """One row of bytes for each element, in row-major order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), -1)


def base_sources(toy: Toy) -> dict[str, torch.Tensor]:
    """Values that differ within a tensor and that every dtype here keeps exactly."""
    return {name: _base_tensor(toy, name, spec) for name, spec in toy.sources.items()}


def reference_map(toy: Toy) -> dict[str, list[Entry]]:
    """Parameter element <- source elements, or the constant, or nothing, for every parameter."""
    untouched = _find_untouched(toy)
    if toy.uniform:
        return _mask(untouched, _map_by_uniform_values(toy))
    plain = set(toy.expect) - toy.computed
    entries = _map_by_tags(toy, plain) if plain else {}
    entries |= _map_by_changes(toy, toy.computed) if toy.computed else {}
    return _mask(untouched, entries)


def _mask(
    untouched: dict[str, list[bool]], entries: dict[str, list[Entry]]
) -> dict[str, list[Entry]]:
    return {
        name: [
            UNTOUCHED if skip else entry
            for skip, entry in zip(untouched[name], found, strict=False)
        ]
        for name, found in entries.items()
    }


def _base_tensor(toy: Toy, name: str, spec: Spec) -> torch.Tensor:
    if name in toy.values:
        return torch.tensor(toy.values[name]).reshape(spec.shape).to(spec.dtype)
    n = _n_elems(spec)
    if toy.uniform:
        return torch.ones(spec.shape, dtype=spec.dtype)
    return (1 + torch.arange(n) % 15).reshape(spec.shape).to(spec.dtype)


def _n_elems(spec: Spec) -> int:
    return int(torch.Size(spec.shape).numel())


def _find_untouched(toy: Toy) -> dict[str, list[bool]]:
    sources = base_sources(toy)
    runs = [run_real(toy, sources, poison) for poison in POISON]
    found: dict[str, list[bool]] = {}
    for name in toy.expect:
        is_poison = [
            (elements_as_bytes(run[name]) == poison).all(dim=1)
            for run, poison in zip(runs, POISON, strict=False)
        ]
        found[name] = (is_poison[0] & is_poison[1]).tolist()
    return found


def _map_by_tags(toy: Toy, names: set[str]) -> dict[str, list[Entry]]:
    owners = [Elem(s, i) for s, spec in toy.sources.items() for i in range(_n_elems(spec))]
    n_digits = 1
    while DIGIT_BASE**n_digits < len(owners):
        n_digits += 1
    digits, complements = (
        [run_real(toy, _tag_sources(toy, d, flip), POISON[0]) for d in range(n_digits)]
        for flip in (False, True)
    )
    return {
        name: [
            _read_tag(
                [_at(run[name], i) for run in digits],
                [_at(run[name], i) for run in complements],
                owners,
            )
            for i in range(digits[0][name].numel())
        ]
        for name in names
    }


def _tag_sources(toy: Toy, digit: int, flip: bool) -> dict[str, torch.Tensor]:
    sources: dict[str, torch.Tensor] = {}
    start = 0
    for name, spec in toy.sources.items():
        n = _n_elems(spec)
        tags = torch.arange(start, start + n) // DIGIT_BASE**digit % DIGIT_BASE
        tags = DIGIT_BASE - 1 - tags if flip else tags
        sources[name] = tags.reshape(spec.shape).to(spec.dtype)
        start += n
    return sources


def _at(tensor: torch.Tensor, index: int) -> float:
    return float(tensor.reshape(-1)[index].float())


def _read_tag(digits: list[float], complements: list[float], owners: list[Elem]) -> Entry:
    if digits == complements:
        return Entry(constant=digits[0])
    if any(a + b != DIGIT_BASE - 1 for a, b in zip(digits, complements, strict=False)):
        raise AssertionError(f"no copy of one element: {digits} and {complements}")
    number = sum(int(d) * DIGIT_BASE**k for k, d in enumerate(digits))
    return Entry(frozenset([owners[number]]))


def _map_by_uniform_values(toy: Toy) -> dict[str, list[Entry]]:
    """All that can be told of a loader that wants one number everywhere: constant or not."""
    owners = frozenset(Elem(s, i) for s, spec in toy.sources.items() for i in range(_n_elems(spec)))
    runs = [
        run_real(toy, {n: torch.full_like(t, c) for n, t in base_sources(toy).items()}, POISON[0])
        for c in (1, 2)
    ]
    return {
        name: [
            Entry(constant=_at(runs[0][name], i))
            if _at(runs[0][name], i) == _at(runs[1][name], i)
            else Entry(owners)
            for i in range(runs[0][name].numel())
        ]
        for name in toy.expect
    }


def _map_by_changes(toy: Toy, names: frozenset[str]) -> dict[str, list[Entry]]:
    base = base_sources(toy)
    before = run_real(toy, base, POISON[0])
    reached: dict[str, list[set[Elem]]] = {
        name: [set() for _ in range(before[name].numel())] for name in names
    }
    for source, tensor in base.items():
        for index in range(tensor.numel()):
            changed = dict(base) | {source: _change(tensor, index)}
            after = run_real(toy, changed, POISON[0])
            for name in names:
                differs = elements_as_bytes(before[name]) != elements_as_bytes(after[name])
                for i in differs.any(dim=1).nonzero().reshape(-1).tolist():
                    reached[name][i].add(Elem(source, index))
    return {
        name: [
            Entry(frozenset(elems)) if elems else Entry(constant=_at(before[name], i))
            for i, elems in enumerate(found)
        ]
        for name, found in reached.items()
    }


def _change(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """The tensor with one element changed in all of its bytes, or doubled if it is a float."""
    changed = tensor.clone()
    flat = changed.reshape(-1)
    if tensor.dtype.is_floating_point:
        flat[index] = (flat[index].float() * 2).to(tensor.dtype)
    else:
        flat.view(torch.uint8).reshape(flat.numel(), -1)[index] += 1
    return changed
