# SPDX-License-Identifier: Apache-2.0
"""A traced FusedMoE whose experts move while it runs: two ranks, rounds, and no restart."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import heft
from heft import ExpertTable, LiveModel, Member, ModulePublisher, errors
from heft.trace import Trace, trace

from .toys.layers import FusedMoE, LayerModel, Rank, expert_params

N_EXPERTS, INNER, HIDDEN, RANKS = 4, 6, 5, 2
BF16 = torch.bfloat16
Rows = list[list[int]]


class Engine:
    """One rank: layers of experts in slots, placed by a table that may change while it runs."""

    def __init__(self, rank: int, table: ExpertTable) -> None:
        self.rank, self.table = rank, table
        self.model = self.build(table)

    def build(self, table: ExpertTable) -> LayerModel:
        layers: dict[str, nn.Module] = {}
        for layer, slots in enumerate(table.of_rank(self.rank, RANKS)):
            layers[f"l{layer}"] = nn.Module()
            layers[f"l{layer}"].experts = FusedMoE(
                N_EXPERTS, INNER, HIDDEN, BF16, Rank(0, 1), Rank(0, 1), slot_experts=slots
            )
        return LayerModel(layers, experts=expert_params(N_EXPERTS))

    def traced(self, state: dict[str, torch.Tensor]) -> Trace:
        return trace(
            self.model, state, rank=self.rank, attrs=self.table.attrs, exceptions=ELSEWHERE
        )

    def rebalance(self, table: ExpertTable) -> None:
        """As an engine does it: experts change places in memory that stays where it is."""
        old = self.experts()
        new = self.build(table)
        for layer, slots in enumerate(table.of_rank(self.rank, RANKS)):
            here, there = (m.get_submodule(f"l{layer}.experts") for m in (self.model, new))
            for name in ("w13_weight", "w2_weight"):
                for slot, expert in enumerate(slots):
                    getattr(there, name).data[slot] = old[layer, name, expert]
                getattr(here, name).data.copy_(getattr(there, name).data)
            here.slot_experts = list(slots)
        self.table = table

    def poison(self, table: ExpertTable) -> None:
        """Another table, and nothing that fits it: the next round must write all of it."""
        for layer, slots in enumerate(table.of_rank(self.rank, RANKS)):
            moe = self.model.get_submodule(f"l{layer}.experts")
            moe.w13_weight.data.fill_(torch.nan)
            moe.w2_weight.data.fill_(torch.nan)
            moe.slot_experts = list(slots)
        self.table = table

    def experts(self) -> dict[tuple[int, str, int], torch.Tensor]:
        """What it has of each expert; from the other ranks it would come over the network."""
        return ENGINES_KNOW | {
            (layer, name, expert): getattr(self.model.get_submodule(f"l{layer}.experts"), name)
            .data[slot]
            .clone()
            for layer, slots in enumerate(self.table.of_rank(self.rank, RANKS))
            for slot, expert in enumerate(slots)
            for name in ("w13_weight", "w2_weight")
        }


ENGINES_KNOW: dict[tuple[int, str, int], torch.Tensor] = {}
ELSEWHERE = [
    heft.Exception_(heft.ExceptionKind.ELSEWHERE, "*", "experts of the other rank", optional=True)
]


def state_of(n_layers: int) -> dict[str, torch.Tensor]:
    shapes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    return {
        f"l{layer}.experts.{expert}.{name}.weight": torch.zeros(shape, dtype=BF16)
        for layer in range(n_layers)
        for expert in range(N_EXPERTS)
        for name, shape in shapes.items()
    }


def fill(state: dict[str, torch.Tensor], version: int) -> None:
    generator = torch.Generator().manual_seed(version)
    for tensor in state.values():
        tensor.copy_(torch.rand(tensor.shape, generator=generator))
    ENGINES_KNOW.clear()
    for name in state:
        layer, _, expert, kind, _ = name.split(".")
        part = "w2_weight" if kind == "down" else "w13_weight"
        base = name.rsplit(".", 2)[0]
        whole = (
            state[name]
            if kind == "down"
            else torch.cat([state[f"{base}.gate.weight"], state[f"{base}.up.weight"]])
        )
        ENGINES_KNOW[int(layer[1:]), part, int(expert)] = whole.clone()


def expect_slots(engine: Engine, state: dict[str, torch.Tensor]) -> None:
    for layer, slots in enumerate(engine.table.of_rank(engine.rank, RANKS)):
        moe = engine.model.get_submodule(f"l{layer}.experts")
        for slot, expert in enumerate(slots):
            base = f"l{layer}.experts.{expert}"
            w13 = torch.cat([state[f"{base}.gate.weight"], state[f"{base}.up.weight"]])
            assert torch.equal(moe.w13_weight.data[slot], w13), (layer, slot)
            assert torch.equal(moe.w2_weight.data[slot], state[f"{base}.down.weight"])


def random_table(random_: random.Random, n_layers: int, n_slots: int) -> ExpertTable:
    rows = []
    for _ in range(n_layers):
        row = [*range(N_EXPERTS), *random_.choices(range(N_EXPERTS), k=n_slots - N_EXPERTS)]
        rows.append(random_.sample(row, n_slots))
    return ExpertTable(rows, n_experts=N_EXPERTS, n_ranks=RANKS)


@pytest.fixture
def url() -> Iterator[str]:
    with heft.Coordinator(deadlines={"poll_ms": 200}) as coordinator:
        yield coordinator.url


class Fleet:
    def __init__(self, url: str, table: ExpertTable, state: dict[str, torch.Tensor]) -> None:
        self.state = state
        self.engines = [Engine(rank, table) for rank in range(RANKS)]
        self.lives = [
            LiveModel(
                engine.model,
                engine.traced(state),
                url=url,
                member=Member(rank=engine.rank),
                experts=lambda engine=engine: engine.table,
            ).start()
            for engine in self.engines
        ]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        for live in self.lives:
            live.close()

    def announce(self, table: ExpertTable, **how: bool) -> None:
        for engine, live in zip(self.engines, self.lives, strict=True):

            def change(engine: Engine = engine) -> Trace:
                engine.rebalance(table)
                return engine.traced(self.state)

            live.renew(change, **how)


@pytest.mark.parametrize("keeps_version", [False, True])
def test_experts_move_between_pushes(url: str, keeps_version: bool) -> None:
    random_, state = random.Random(5), state_of(2)
    fill(state, 1)
    with (
        Fleet(url, random_table(random_, 2, 6), state) as fleet,
        ModulePublisher(state, url=url) as publisher,
    ):
        for version in range(1, 6):
            fill(state, version)
            publisher.push(version)
            for engine in fleet.engines:
                expect_slots(engine, state)
            fleet.announce(random_table(random_, 2, 6), keeps_version=keeps_version)
            for engine, live in zip(fleet.engines, fleet.lives, strict=True):
                assert live.is_serving == keeps_version
                assert live.version == (version if keeps_version else 0)
                if keeps_version:
                    expect_slots(engine, state)
                    with live.gate.serving(5) as served:
                        assert served == version
                    name = "l0.experts.w2_weight"
                    now = engine.model.get_parameter(name).data
                    assert live.digest(name) == heft.digest(heft.view_as(now, heft.DType.BF16))
        assert heft.client.status(url)["committed_version"] == 5


def verify_live(url: str) -> list[bool]:
    command = [os.environ["HEFT_BIN"], "verify", "--live", "--url", url, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return [member["match"] for member in json.loads(said.stdout)["live"]]


def test_what_an_engine_has_moved_is_watched(url: str) -> None:
    random_, state = random.Random(12), state_of(1)
    fill(state, 1)
    with (
        Fleet(url, random_table(random_, 1, 6), state) as fleet,
        ModulePublisher(state, url=url) as publisher,
    ):
        publisher.push(1)
        fleet.announce(random_table(random_, 1, 6), keeps_version=True)
        assert verify_live(url) == [True, True]
        w2 = fleet.engines[1].model.get_submodule("l0.experts").w2_weight
        w2.data[2, 1, 1] += 1
        assert verify_live(url) == [True, False]
        assert not fleet.lives[1].is_serving


def test_a_table_that_changes_unannounced_refuses_the_round(url: str) -> None:
    random_, state = random.Random(6), state_of(1)
    fill(state, 1)
    with (
        Fleet(url, random_table(random_, 1, 6), state) as fleet,
        ModulePublisher(state, url=url) as publisher,
    ):
        publisher.push(1)
        before, kept = fleet.engines[0].table, dict(state)
        after = random_table(random_, 1, 6)
        first = after.moved(before)[0]
        fleet.engines[0].rebalance(after)
        held = {name: tensor.clone() for name, tensor in kept.items()}
        fill(state, 2)
        wrong = f"layer 0 slot {first.slot} is expert {first.now}, was {first.was}"
        with pytest.raises(errors.HeftError, match=wrong):
            publisher.push(2)
        for engine in fleet.engines:  # version 1, by the table that each has now
            expect_slots(engine, held)
        fleet.announce(after)
        publisher.push(2)
        for engine in fleet.engines:
            expect_slots(engine, state)


def test_ranks_of_one_engine_with_two_tables_are_refused(url: str) -> None:
    random_, state = random.Random(8), state_of(1)
    fill(state, 1)
    with (
        Fleet(url, random_table(random_, 1, 6), state) as fleet,
        ModulePublisher(state, url=url) as publisher,
    ):
        publisher.push(1)
        engine, live = fleet.engines[1], fleet.lives[1]
        engine.rebalance(random_table(random_, 1, 6))
        live.renew(engine.traced(state))
        message = r"destination\.heft\.0\.0 and destination\.heft\.0\.1 are of one engine and have"
        with pytest.raises(errors.HeftError, match=message):
            publisher.push(2)
        assert fleet.lives[0].version == 1


def test_a_rebalance_waits_for_the_round_in_flight(url: str) -> None:
    """Asked for in the middle of rounds, again and again: no version is a mixture."""
    random_, state = random.Random(9), state_of(1)
    fill(state, 1)
    tables = [random_table(random_, 1, 6) for _ in range(6)]
    with (
        Fleet(url, tables[0], state) as fleet,
        ModulePublisher(state, url=url) as publisher,
    ):
        done = threading.Event()
        failed: list[BaseException] = []

        def rebalance() -> None:
            try:
                for table in tables[1:]:
                    for engine, live in zip(fleet.engines, fleet.lives, strict=True):
                        live.renew(lambda e=engine, t=table: (e.poison(t), e.traced(state))[1])
            except BaseException as error:
                failed.append(error)
            done.set()

        thread = threading.Thread(target=rebalance)
        version = 0
        thread.start()
        while version == 0 or not done.is_set():
            version += 1
            with contextlib.suppress(errors.HeftError):  # a rank has announced another table: all
                publisher.push(version)  # stay as they are
            for engine, live in zip(fleet.engines, fleet.lives, strict=True):
                with contextlib.suppress(TimeoutError), live.gate.serving(0.01):
                    expect_slots(engine, state)  # no table changes in here
        thread.join(60)
        assert not failed
        publisher.push(version + 1)
        for engine in fleet.engines:
            assert engine.table == tables[-1]
            expect_slots(engine, state)
