# SPDX-License-Identifier: Apache-2.0
"""Golden tapes: what was traced of each toy, with its element map, for tests that have no Python.

Run as a module, this writes them again: PYTHONPATH=build/release/python:tests/python python -m
loaders.toys.golden
"""

from __future__ import annotations

import json
import pathlib

from . import ALL_TOYS
from .case import Toy
from .notation import UNTOUCHED, Entry
from .tape_judge import encode_tape, without_notes
from .traced import trace_toy

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "golden" / "loader_tapes"


def golden_text(toy: Toy) -> str:
    """A file: rank, exceptions, element map and tape."""
    head = {
        "rank": toy.rank,
        "exceptions": [[excuse.kind, excuse.pattern, excuse.box] for excuse in toy.excuses],
        "opaque": sorted(toy.opaque | toy.kernels),
    }
    lines = [f' "{key}": {json.dumps(value)},' for key, value in head.items()]
    maps = [
        f'  "{name}": {json.dumps([word_of(entry) for entry in entries])}'
        for name, entries in sorted(toy.expected().items())
    ]
    tape = without_notes(encode_tape(trace_toy(toy).tape)).rstrip("\n")
    return "\n".join(["{", *lines, ' "map": {', ",\n".join(maps), " },", ' "tape":', tape, "}", ""])


def word_of(entry: Entry) -> str:
    """Source elements in order, "=" for a constant, "_" for nothing."""
    if entry.elems:
        return "*".join(f"{e.source}#{e.index}" for e in sorted(entry.elems))
    return "_" if entry == UNTOUCHED else "="


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for toy in ALL_TOYS:
        (FOLDER / f"{toy.name}.json").write_text(golden_text(toy), encoding="utf-8")


if __name__ == "__main__":
    main()
