# SPDX-License-Identifier: Apache-2.0
"""What is traced of a toy's loader is what the loader does, element by element and byte by byte."""

from __future__ import annotations

import pytest
import torch

from .toys import ALL_TOYS
from .toys.case import Toy
from .toys.expand import expand_plan
from .toys.notation import UNTOUCHED, Entry, format_map
from .toys.reference import POISON, base_sources, elements_as_bytes, run_real
from .toys.tape_judge import NOTHING_READ, encode_tape, expand_tape
from .toys.traced import plan_toy, run_plan, trace_toy

toys = pytest.mark.parametrize("toy", ALL_TOYS, ids=lambda toy: toy.name)


@toys
def test_recorded_writes_are_the_element_map(toy: Toy) -> None:
    """Before any fold: the tape, interpreted one element after another."""
    found = expand_tape(encode_tape(trace_toy(toy).tape))
    assert found.keys() == toy.expect.keys()
    for name, expected in toy.expected().items():
        assert format_map(widen(toy, name, found[name])) == format_map(
            widen(toy, name, [without_value(entry) for entry in expected])
        ), name


@toys
def test_pieces_written_out_are_the_element_map(toy: Toy) -> None:
    found = expand_plan(plan_toy(toy))
    assert found.keys() == toy.expect.keys()
    for name, expected in toy.expected().items():
        assert format_map(widen(toy, name, found[name])) == format_map(
            widen(toy, name, expected)
        ), name


@toys
def test_plan_writes_the_bytes_that_the_loader_writes(toy: Toy) -> None:
    plan = plan_toy(toy)
    sources = base_sources(toy)
    for poison in POISON:
        expected = run_real(toy, sources, poison)
        found = run_plan(toy, plan, sources, poison)
        assert found.keys() == expected.keys()
        for name in expected.keys() - toy.opaque:
            if name in toy.approximate:
                torch.testing.assert_close(found[name], expected[name])
            else:
                same = elements_as_bytes(found[name]) == elements_as_bytes(expected[name])
                assert same.all(), name


@toys
def test_only_declared_parameters_are_left_to_the_engine(toy: Toy) -> None:
    assert set(trace_toy(toy).opaque) == toy.opaque


def widen(toy: Toy, name: str, entries: list[Entry]) -> list[Entry]:
    """An operation that is not folded needs whole tensors, for each of its elements."""
    if name not in toy.opaque | toy.kernels:
        return entries
    everything = frozenset().union(*(entry.elems for entry in entries))
    return [Entry(everything)] * len(entries)


def without_value(entry: Entry) -> Entry:
    return entry if entry.elems or entry == UNTOUCHED else NOTHING_READ
