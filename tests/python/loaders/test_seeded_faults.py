# SPDX-License-Identifier: Apache-2.0
"""The oracle must be seen to fail: each planted fault is caught, by the proof or by heft.verify.

Faults are planted in what was traced of every toy: a write lost, a source shifted by one element,
two sources swapped, a shard written twice and its neighbour never, an operation skipped. A mutant
whose plan is that of the original is none.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter

import pytest

import heft
from heft import Exception_, ExceptionKind
from heft.verify import VerifyError

from .toys import ALL_TOYS
from .toys.case import Model, Toy, f32
from .toys.mutants import FAULTS, build, mutants, parse_writes
from .toys.tape_judge import encode_tape
from .toys.traced import exceptions_of, specs_of, trace_toy

N_EACH = int(os.environ.get("HEFT_TEST_MUTANTS", "1"))
SEED = int(os.environ.get("HEFT_TEST_SEED", "1"))
TOYS = [
    toy
    for toy in ALL_TOYS
    if not toy.uniform  # values that the loader compares
    and not toy.opaque
    and all(excuse.kind != "equal" for excuse in toy.excuses)
]
each_toy = pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)


def verify(toy: Toy, plan: heft.Plan, traced: heft.trace.Trace) -> None:
    skip = [(derived.name, "derived") for derived in traced.derived]
    heft.verify(toy.build(), plan, specs=specs_of(toy.sources), skip=skip)


@each_toy
def test_plan_that_was_traced_agrees_with_its_loader(toy: Toy) -> None:
    traced = trace_toy(toy)
    verify(toy, traced.plan(exceptions=exceptions_of(toy)), traced)


@each_toy
def test_planted_faults_are_caught(toy: Toy) -> None:
    plant(toy.name)


def test_every_kind_of_fault_is_planted_and_both_catch_some() -> None:
    caught = sum((plant(toy.name) for toy in TOYS), Counter())
    print(dict(caught))
    assert {fault for fault, _ in caught} == {fault.__name__ for fault in FAULTS}
    assert {who for _, who in caught} == {"proof", "verify"}


@functools.cache
def plant(name: str) -> Counter[tuple[str, str]]:
    """Plant faults in one toy; how many of each the proof and heft.verify caught."""
    toy = next(toy for toy in TOYS if toy.name == name)
    traced = trace_toy(toy)
    excuses = exceptions_of(toy)
    original = traced.plan(exceptions=excuses).rank_digest()
    caught: Counter[tuple[str, str]] = Counter()
    for fault, tape, writes in mutants(encode_tape(traced.tape), SEED, N_EACH):
        try:
            plan = heft.Plan.create([build(tape, writes)], first_rank=toy.rank, exceptions=excuses)
            if plan.rank_digest() == original:
                continue  # a fill in another order, say
            verify(toy, plan, traced)
        except heft.HeftError:
            caught[fault, "proof"] += 1
        except VerifyError:
            caught[fault, "verify"] += 1
        else:
            raise AssertionError(f"{fault} was not caught: HEFT_TEST_SEED={SEED}\n{writes}")
    return caught


@each_toy
def test_tape_that_is_built_again_is_the_same(toy: Toy) -> None:
    """Else a mutant would differ from its original by more than its fault."""
    traced = trace_toy(toy)
    tape = json.loads(encode_tape(traced.tape))
    again = heft.Plan.create(
        [build(tape, parse_writes(tape))], first_rank=toy.rank, exceptions=exceptions_of(toy)
    )
    assert again.digest == traced.plan(exceptions=exceptions_of(toy)).digest


class WithDraft(Model):
    """A target and its draft; the loader writes both unless it is told that the draft is frozen."""

    def __init__(self, with_draft: bool) -> None:
        def load(model, weights):
            model.target.w.copy_(weights["model.w"])
            if with_draft:
                model.draft.w.copy_(weights["mtp.w"])

        super().__init__({"target.w": f32(3), "draft.w": f32(3)}, load)


def test_draft_that_a_plan_takes_for_frozen_is_caught() -> None:
    specs = specs_of({"model.w": f32(3), "mtp.w": f32(3)})
    frozen = [
        Exception_(ExceptionKind.FROZEN, "draft.w", "not trained"),
        Exception_(ExceptionKind.UNUSED, "mtp.w", "not trained"),
    ]
    plan = heft.trace(WithDraft(False), specs).plan(exceptions=frozen)
    heft.verify(WithDraft(False), plan, specs=specs)
    with pytest.raises(VerifyError) as caught:
        heft.verify(WithDraft(True), plan, specs=specs)
    assert caught.value.parameter == "draft.w"


def test_row_that_a_plan_takes_for_padding_is_caught() -> None:
    def all_rows(model, weights):
        model.p.copy_(weights["x"])

    def rows_but_one(model, weights):
        model.p[:3].copy_(weights["x"][:3])

    params, specs = {"p": f32(4, 2)}, specs_of({"x": f32(4, 2)})
    excuses = [
        Exception_(ExceptionKind.UNTOUCHED, "p", "padding", box=((3, 4), (0, 2))),
        Exception_(ExceptionKind.UNUSED, "x", "padding", box=((3, 4), (0, 2))),
    ]
    plan = heft.trace(Model(params, rows_but_one), specs).plan(exceptions=excuses)
    with pytest.raises(VerifyError) as caught:
        heft.verify(Model(params, all_rows), plan)
    assert caught.value.parameter == "p"
    assert caught.value.index == (3, 0)
