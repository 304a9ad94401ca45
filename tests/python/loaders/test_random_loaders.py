# SPDX-License-Identifier: Apache-2.0
"""Random loaders: the traced plan gives the bytes of the real run.

HEFT_TEST_CASES sets the number of cases, HEFT_TEST_SEED the first seed. A failure shows its loader.
"""

from __future__ import annotations

import os

import pytest
import torch

from heft import Exception_, ExceptionKind
from heft.errors import LimitError

from .toys.case import Spec, Toy
from .toys.random_loader import random_toy
from .toys.reference import POISON, elements_as_bytes, run_real
from .toys.traced import run_plan, trace_toy

N_CASES = int(os.environ.get("HEFT_TEST_CASES", "300"))
FIRST_SEED = int(os.environ.get("HEFT_TEST_SEED", "1"))
N_BATCHES = 10
ANY_SOURCE = Exception_(ExceptionKind.UNUSED, "*", "a random loader leaves some out", optional=True)


@pytest.mark.parametrize("batch", range(N_BATCHES))
def test_traced_plan_equals_the_real_run(batch: int) -> None:
    n_params = n_compared = 0
    for seed in range(FIRST_SEED + batch, FIRST_SEED + N_CASES, N_BATCHES):
        toy, text = random_toy(seed)
        n_params += len(toy.expect)
        try:
            n_compared += check(toy, seed)
        except Exception as error:
            sources = {name: (spec.dtype, spec.shape) for name, spec in toy.sources.items()}
            message = f"HEFT_TEST_SEED={seed} HEFT_TEST_CASES=1: {error}\n{sources}\n{text}"
            raise AssertionError(message) from error
    assert n_compared >= 0.9 * n_params, "too much is left to the engine's loader"


def check(toy: Toy, seed: int) -> int:
    """The number of parameters that were compared; others are left to the engine's loader."""
    traced = trace_toy(toy)
    try:
        plan = traced.plan(exceptions=[ANY_SOURCE])
    except LimitError:  # a program of more operations than there may be: refused, not wrong
        return 0
    compared = toy.expect.keys() - traced.opaque.keys()
    for poison in POISON:
        sources = random_sources(toy, seed)
        expected = run_real(toy, sources, poison)
        found = run_plan(toy, plan, sources, poison)
        for name in compared:
            same = (elements_as_bytes(found[name]) == elements_as_bytes(expected[name])).all(dim=1)
            if expected[name].dtype.is_floating_point:  # one not-a-number is as good as another
                same |= (found[name].isnan() & expected[name].isnan()).reshape(-1)
            wrong = (~same).nonzero().reshape(-1).tolist()
            assert not wrong, f"{name}: {len(wrong)} elements differ, the first is #{wrong[0]}"
    return len(compared)


def random_sources(toy: Toy, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(spec, generator) for name, spec in toy.sources.items()}


def _random(spec: Spec, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(spec.shape, generator=generator).to(spec.dtype)
