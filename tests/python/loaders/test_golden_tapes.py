# SPDX-License-Identifier: Apache-2.0
"""Golden tapes are what is traced now: C tests fold and prove them without any Python."""

from __future__ import annotations

import json

import pytest

import heft
from heft._handles import call
from heft._native import ffi, lib

from .toys import ALL_TOYS
from .toys.case import Toy
from .toys.golden import FOLDER, golden_text
from .toys.traced import exceptions_of, plan_toy


def decode(text: str) -> heft.Tape:
    out = ffi.new("heft_tape_t **")
    data = text.encode()
    call(lib.heft_tape_decode, data, len(data), out)
    tape = heft.Tape.__new__(heft.Tape)
    tape._own(out[0], lib.heft_tape_destroy)
    return tape


@pytest.mark.parametrize("toy", ALL_TOYS, ids=lambda toy: toy.name)
def test_golden_tape_is_what_is_traced(toy: Toy) -> None:
    golden = json.loads((FOLDER / f"{toy.name}.json").read_text(encoding="utf-8"))
    traced = json.loads(golden_text(toy))
    for key in ("rank", "exceptions", "opaque", "map"):
        assert golden[key] == traced[key], f"{key}: python -m loaders.toys.golden writes it again"
    plan = heft.Plan.create(
        [decode(json.dumps(golden["tape"]))],
        first_rank=toy.rank,
        exceptions=exceptions_of(toy),
    )
    assert plan.digest == plan_toy(toy).digest


def test_there_is_a_golden_tape_for_each_toy_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {toy.name for toy in ALL_TOYS}
