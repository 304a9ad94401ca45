# SPDX-License-Identifier: Apache-2.0
"""Faults planted in vLLM's real loader: each must be caught, and it is said by what.

The loaders of parameters (`weight_loader`) of a real model are wrapped. What writes too little is
refused by the proof. What writes everything to the wrong place is a sound mapping, of another
engine: it shows in the digest of the layout that a contract holds, and against the engine's own
loader. A write from another thread is no fault; it has to come out the same.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from families import FAMILIES  # noqa: E402
from engine_loaders import assert_equal, random_weights  # noqa: E402

import heft  # noqa: E402
from heft import engines  # noqa: E402
from heft.errors import ProofError  # noqa: E402
from heft.trace import Trace, trace  # noqa: E402

FAMILY = FAMILIES["qwen3-moe"]
TP = 2
Loader = Callable[..., Any]
Wrap = Callable[[Loader], Loader]


def wrap(model: torch.nn.Module, end: str, change: Wrap) -> None:
    """Replace the weight_loader of every parameter whose name ends so."""
    found = [p for name, p in model.named_parameters() if name.endswith(end)]
    assert found, f"no parameter ends with {end}"
    for parameter in found:
        home = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
        setattr(parameter, home, change(getattr(parameter, home)))


def drop_value(load: Loader) -> Loader:
    """v of qkv is never written."""
    return lambda param, weight, shard: None if shard == "v" else load(param, weight, shard)


def swap_key_and_value(load: Loader) -> Loader:
    other = {"q": "q", "k": "v", "v": "k"}
    return lambda param, weight, shard: load(param, weight, other[shard])


def reverse_experts(load: Loader) -> Loader:
    def loader(*args: Any, **options: Any) -> Any:
        return load(*args, **{**options, "expert_id": 7 - options["expert_id"]})

    return loader


def from_a_thread(load: Loader) -> Loader:
    def loader(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(load, *args, **options).result()

    return loader


class Case:
    """The tapes of both ranks, with or without a fault, and the plan that they are proved to."""

    def __init__(self, fault: tuple[str, Wrap] | None = None, ranks: tuple[int, ...] = (0, 1)):
        self.engine = engines.get("vllm")
        self.names = FAMILY.names()
        traces = [self._trace(rank, fault) for rank in ranks]
        self.plan = heft.Plan.create([t.tape for t in traces])

    def build(self, rank: int, fault: tuple[str, Wrap] | None = None) -> torch.nn.Module:
        model: torch.nn.Module = self.engine.build(FAMILY.config(), tp=TP, rank=rank)
        if fault is not None:
            wrap(model, *fault)
        return model

    def _trace(self, rank: int, fault: tuple[str, Wrap] | None) -> Trace:
        model = self.build(rank, fault)
        return trace(
            model, self.names, load=lambda weights: self.engine.load(model, weights), rank=rank
        )

    def compare(self, rank: int) -> None:
        """This plan against the loader as it is."""
        weights = random_weights(self.names, seed=rank)
        wanted, given = self.build(rank), self.build(rank)
        self.engine.load(wanted, weights.items())
        params = {info.name: given.get_parameter(info.name).data for info in self.plan.params(rank)}
        heft.execute(self.plan, weights, params, rank=rank)
        for name, tensor in params.items():
            assert_equal(name, wanted.get_parameter(name).data, tensor)


def main() -> int:
    logging.disable(logging.WARNING)
    try:
        sound = Case()
    except ImportError as error:
        print(f"SKIPPED faults in vLLM's loader: {error}")
        return 77
    sound.compare(1)
    checks = [
        ("a slice is dropped", lambda: _refused(("qkv_proj.weight", drop_value), (0, 1))),
        ("the rank is off by one", lambda: _refused(None, (0, 0))),
        ("k and v change places", lambda: _differs(sound, ("qkv_proj.weight", swap_key_and_value))),
        ("experts in reverse", lambda: _differs(sound, ("w13_weight", reverse_experts))),
        ("written by a thread", lambda: _same(sound, ("qkv_proj.weight", from_a_thread))),
        ("a head size that the engine ignores", _head_size),
    ]
    failures = 0
    for what, check in checks:
        try:
            print(f"ok     {what}: {check()}"[:400], flush=True)
        except AssertionError as error:
            failures += 1
            print(f"FAILED {what}: {error}", flush=True)
    print(f"== faults in vLLM's loader: {len(checks)} cases, {failures} failed")
    return 1 if failures else 0


def _refused(fault: tuple[str, Wrap] | None, ranks: tuple[int, ...]) -> str:
    try:
        Case(fault, ranks)
    except ProofError as error:
        return f"refused: {error.report.findings[0].text}"
    raise AssertionError("the proof let it pass")


def _differs(sound: Case, fault: tuple[str, Wrap]) -> str:
    case = Case(fault)
    if case.plan.digest == sound.plan.digest:
        raise AssertionError("the plan has the digest of the sound one")
    try:
        case.compare(1)
    except AssertionError as error:
        return f"another digest; {error}"
    raise AssertionError("the plan writes what the loader writes")


def _same(sound: Case, fault: tuple[str, Wrap]) -> str:
    if Case(fault).plan.digest != sound.plan.digest:
        raise AssertionError("the plan differs")
    return "the same digest"


def _head_size() -> str:
    """vLLM's Qwen2 divides the width by the heads, and cuts what a larger head_dim brings."""
    engine, family = engines.get("vllm"), FAMILIES["qwen2"]
    sizes = {"hidden_size": 128, "head_dim": 32}  # 8 heads of 32 in a width of 128
    model = engine.build(family.config(**sizes))
    names = family.names(**sizes)
    engine.load(model, random_weights(names, seed=1).items())  # without a word
    traced = trace(model, names, load=lambda weights: engine.load(model, weights))
    try:
        traced.plan(engine.exceptions(model))
    except ProofError as error:
        return f"loads without a word; refused: {error.report.findings[0].text}"
    raise AssertionError("the proof let it pass")


if __name__ == "__main__":
    sys.exit(main())
