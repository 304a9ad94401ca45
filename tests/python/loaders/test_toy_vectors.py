# SPDX-License-Identifier: Apache-2.0
"""The element maps written down for the toys are those of their loaders run for real."""

from __future__ import annotations

import pytest

from .toys import ALL_TOYS
from .toys.case import Toy
from .toys.notation import Entry, format_map, parse_map
from .toys.reference import reference_map


@pytest.mark.parametrize("toy", ALL_TOYS, ids=lambda toy: toy.name)
def test_written_map_is_what_the_loader_does(toy: Toy) -> None:
    found = reference_map(toy)
    for name, expected in toy.expected().items():
        if toy.uniform:
            expected = [
                widen(entry, known) for entry, known in zip(expected, found[name], strict=False)
            ]
        assert format_map(found[name]) == format_map(expected), name


def widen(entry: Entry, known: Entry) -> Entry:
    """The little that is known of a loader that wants one number everywhere."""
    return known if entry.elems and entry.elems <= known.elems else entry


def test_every_toy_has_a_name_of_its_own() -> None:
    names = [toy.name for toy in ALL_TOYS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("text", ["x#0..3 =0:2 _ w#1*s#0", "x#4,3,2", "a.b#7 =0.5", "w#0..1*s#3"])
def test_notation_survives_a_round_trip(text: str) -> None:
    assert parse_map(format_map(parse_map(text))) == parse_map(text)
