# SPDX-License-Identifier: Apache-2.0
"""Experts by a table that changes: what fits, what slots hold, and rounds while it changes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
from expert_models import RECIPE, Table, bindings, expected, random_table, tensors, zeros
from models import manifest_of
from talking import Talking

import heft
from heft import Coordinator, ExpertTable, Publisher, errors

# ---- tables ----


def test_a_table_says_what_stands_where() -> None:
    table = ExpertTable([[0, 1, 2, 0], [2, 2, 1, 0]], n_experts=3, n_ranks=2)
    assert (table.n_layers, table.n_slots, table.n_experts) == (2, 4, 3)
    assert table.of_rank(1, 2) == ((2, 0), (1, 0))
    assert table == ExpertTable.from_json(table.to_json())
    assert table == ExpertTable(np.array([[0, 1, 2, 0], [2, 2, 1, 0]]))
    assert table == ExpertTable([[[0, 1], [2, 0]], [[2, 2], [1, 0]]], n_ranks=2)  # by ranks
    other = ExpertTable([[0, 1, 2, 0], [2, 1, 1, 0]])
    assert other != table
    assert other.attrs != table.attrs
    assert other.moved(table) == [(1, 1, 2, 1)]


REFUSED = [
    ([[0, 1], [0]], {}, "layer 1 has 1 slots, expected 2"),
    ([[0, 1], [0, 1]], {"n_slots": 3}, "layer 0 has 2 slots, expected 3"),
    ([[0, 1], [0, 1]], {"n_layers": 3}, "2 layers, the model has 3 with experts"),
    ([[0, 1, 1]], {"n_ranks": 2}, "3 slots do not divide by 2 ranks"),
    ([[0, 1], [0, 4]], {"n_experts": 2}, r"layer 1 slot 1 names expert 4, there are 2 \(0 to 1\)"),
    ([[0, -1]], {}, "layer 0 slot 1 names expert -1: none has that number"),
    ([[0, 2]], {"n_experts": 3}, "layer 0: expert 1 of 3 is in none of its 2 slots"),
    ([[0, 1, 0]], {"once": True}, "layer 0: expert 0 is in slots 0 and 2, and may be in one"),
    ([[0, 0.5]], {}, "layer 0 slot 1 is no integer"),
    ([[[0, 1], [1]]], {}, "layer 0: rank 1 has 1 slots, rank 0 has 2"),
    ([[[0, 1], [1, 0]]], {"n_ranks": 4}, "layer 0 has lists of 2 ranks, there are 4"),
    ([], {}, "a list is wanted"),
    ({"other": [[0]]}, {}, "a list is wanted"),
]


@pytest.mark.parametrize(("table", "known", "message"), REFUSED)
def test_a_table_that_does_not_fit_is_refused_in_one_line(
    table: object, known: dict[str, int], message: str
) -> None:
    with pytest.raises(errors.HeftError, match=message) as caught:
        ExpertTable(table, **known)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# ---- what slots hold ----


def test_slots_hold_what_any_table_says() -> None:
    random_ = random.Random(7)
    recipe = heft.Recipe.parse(RECIPE, "slots")
    n_twice = 0
    for case in range(300):
        n_layers, n_experts = random_.randint(1, 3), random_.randint(1, 6)
        n_ranks = random_.randint(1, 3)
        least = -(-n_experts // n_ranks)
        n_slots = n_ranks * random_.randint(least, least + 2)
        table = random_table(random_, n_layers, n_slots, n_experts)
        source = tensors(case, n_layers, n_experts)
        manifest, bound = manifest_of(source), bindings(table, n_ranks, n_experts)
        tapes = [recipe.compile(bound, manifest, rank=rank) for rank in range(n_ranks)]
        plan = heft.Plan.create(tapes)
        for rank in range(n_ranks):
            want = expected(source, table, n_ranks, rank)
            got = zeros(n_layers, n_slots // n_ranks, n_experts)
            heft.execute(plan, source, got, rank=rank)
            for name in want:
                assert np.array_equal(got[name], want[name]), (case, rank, name, table)
        share = [row[: n_slots // n_ranks] for row in table]
        n_twice += any(len(set(row)) < len(row) for row in share)
    assert n_twice > 50  # ranks with two copies of one expert


# ---- rounds ----


class Process(Talking):
    """One rank of an engine."""

    def __init__(self, url: str, replica: int, rank: int, n_experts: int, table: Table) -> None:
        words = (url, replica, rank, RANKS, n_experts, json.dumps(table))
        super().__init__("expert_process.py", *words)
        self.rank = rank
        self.await_line("registered")

    def announce(self, what: str, table: Table) -> None:
        self.tell(f"{what} {json.dumps(table)}")

    def expect_serves(self, version: int, source: dict[str, np.ndarray], table: Table) -> None:
        got, digests = -1, ""
        while got < version:  # it may have been fed the version before, by another engine
            _, number, digests = self.await_line("serves").split(" ", 2)
            got = int(number)
        want = expected(source, table, RANKS, self.rank)
        assert got == version
        assert json.loads(digests) == {name: f"{heft.digest(a):x}" for name, a in want.items()}


RANKS = 2


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(deadlines={"poll_ms": 200, "contact_ms": 20_000}) as one:
        yield one


class Engines:
    """Two engines of two ranks, in four processes."""

    def __init__(self, url: str, n_experts: int, table: Table) -> None:
        self.tables = dict.fromkeys(range(2), table)
        self.ranks = {
            (replica, rank): Process(url, replica, rank, n_experts, table)
            for replica in range(2)
            for rank in range(RANKS)
        }

    def announce(self, replica: int, table: Table, what: str = "table") -> list[str]:
        self.tables[replica] = table
        mine = [self.ranks[replica, rank] for rank in range(RANKS)]
        for one in mine:
            one.announce(what, table)
        return [one.await_line("re") for one in mine]

    def expect_serve(self, version: int, source: dict[str, np.ndarray]) -> None:
        for (replica, _), one in self.ranks.items():
            one.expect_serves(version, source, self.tables[replica])

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.ranks.values():
            one.close()


def test_engines_rebalance_between_pushes_and_nobody_restarts(coordinator: Coordinator) -> None:
    n_layers, n_experts = 2, 4
    random_ = random.Random(3)
    tables = [random_table(random_, n_layers, n, n_experts) for n in (4, 6, 6, 8, 4)]
    source = tensors(0, n_layers, n_experts)
    with (
        Engines(coordinator.url, n_experts, tables[0]) as engines,
        Publisher(coordinator.url, source) as publisher,
    ):
        version = 0
        for i, table in enumerate(tables):
            for replica in range(2):
                version += 1
                if version > 1:  # one engine announces another table, the other one keeps its own
                    assert engines.announce(replica, table) == ["renewed 0 0"] * RANKS
                for name, array in tensors(version, n_layers, n_experts).items():
                    source[name][:] = array
                assert publisher.push(version).state == "committed", (i, replica)
                engines.expect_serve(version, source)
        assert version == 10


def test_a_refused_table_leaves_the_old_version_live(coordinator: Coordinator) -> None:
    source = tensors(0, 1, 3)
    with (
        Engines(coordinator.url, 3, [[0, 1, 2, 0]]) as engines,
        Publisher(coordinator.url, source) as publisher,
    ):
        publisher.push(1)
        engines.expect_serve(1, source)
        refused = {
            "layer 0 slot 3 names expert 5, there are 3 (0 to 2)": [[0, 1, 2, 5]],
            "layer 0: expert 2 of 3 is in none of its 4 slots": [[0, 1, 1, 0]],
            "the slots do not divide by the ranks": [[0, 1, 2]],
            "all 15 elements uncovered": [[0, 1, 2, 0]] * 2,
        }
        for message, bad in refused.items():
            for rank in range(RANKS):
                engines.ranks[0, rank].announce("table", bad)
                line = engines.ranks[0, rank].await_line("re")
                assert line.startswith("refused"), line
                assert message in line
        for member in heft.client.status(coordinator.url)["members"]:
            if member["id"].startswith("destination"):
                assert (member["live_version"], member["serving"]) == (1, True)
        source["layers.0.gate"] += 1
        publisher.push(2)
        engines.expect_serve(2, source)


def test_ranks_with_different_tables_are_refused(coordinator: Coordinator) -> None:
    source = tensors(0, 1, 3)
    with (
        Engines(coordinator.url, 3, [[0, 1, 2, 0]]) as engines,
        Publisher(coordinator.url, source) as publisher,
    ):
        publisher.push(1)
        engines.expect_serve(1, source)
        engines.ranks[0, 1].announce("table", [[1, 2, 0, 0]])
        assert engines.ranks[0, 1].await_line("re") == "renewed 0 0"
        with pytest.raises(errors.HeftError, match="destinations for rank 0 of 2 are missing"):
            publisher.push(2)
        engines.ranks[0, 0].announce("table", [[1, 2, 0, 0]])
        assert engines.ranks[0, 0].await_line("re") == "renewed 0 0"
        engines.tables[0] = [[1, 2, 0, 0]]
        publisher.push(2)
        engines.expect_serve(2, source)


def test_an_engine_that_moves_its_experts_itself_serves_on(coordinator: Coordinator) -> None:
    source = tensors(0, 2, 3)
    table = [[0, 1, 2, 0, 1, 2]] * 2  # each rank has all experts, so that it can move them alone
    with (
        Engines(coordinator.url, 3, table) as engines,
        Publisher(coordinator.url, source) as publisher,
    ):
        publisher.push(1)
        engines.expect_serve(1, source)
        moved = [[2, 1, 0, 1, 0, 2], [1, 2, 0, 2, 0, 1]]
        assert engines.announce(0, moved, "moved") == ["renewed 1 1"] * RANKS
        for name, array in tensors(2, 2, 3).items():
            source[name][:] = array
        publisher.push(2)
        engines.expect_serve(2, source)


# ---- a trainer whose ranks change, too ----


class Trainers:
    """Ranks of a trainer that deal experts and rows among themselves; processes stay."""

    def __init__(self, url: str, n_layers: int, n_experts: int) -> None:
        self.size = (n_layers, n_experts)
        self.url = url
        self.ranks: list[Talking] = []
        self.random = random.Random(11)

    def resize(self, n: int) -> None:
        """So many ranks, and another share for each of them."""
        n_layers, n_experts = self.size
        for one in self.ranks[n:]:
            one.tell('{"leave": true}')
            one.await_line("left")
            one.close()
        del self.ranks[n:]
        while len(self.ranks) < n:
            self.ranks.append(Talking("trainer_process.py", self.url, n_layers, n_experts))
        owners = [self.random.choices(range(n), k=n_experts) for _ in range(n_layers)]
        cuts = sorted(self.random.choices(range(n_experts + 1), k=n - 1))
        for rank, one in enumerate(self.ranks):
            holds = {
                layer: [e for e, owner in enumerate(row) if owner == rank]
                for layer, row in enumerate(owners)
            }
            rows = [*[0, *cuts, n_experts][rank : rank + 2]]
            one.tell(json.dumps({"rank": rank, "ranks": n, "holds": holds, "rows": rows}))
        for one in self.ranks:
            one.await_line("registered")

    def push(self, version: int) -> list[str]:
        for one in self.ranks:
            one.tell(json.dumps({"push": version}))
        return [one.await_line("pushed", "failed") for one in self.ranks]

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.ranks:
            one.close()


def test_experts_change_their_ranks_on_both_sides(coordinator: Coordinator) -> None:
    n_layers, n_experts = 2, 6
    random_ = random.Random(4)
    table = random_table(random_, n_layers, 8, n_experts)
    with (
        Engines(coordinator.url, n_experts, table) as engines,
        Trainers(coordinator.url, n_layers, n_experts) as trainers,
    ):
        pids = [one.pid for one in engines.ranks.values()]
        for version, n_ranks in enumerate((4, 4, 3, 6), start=1):
            trainers.resize(n_ranks)
            if version % 2 == 0:
                moved = random_table(random_, n_layers, 8, n_experts)
                assert engines.announce(1, moved) == ["renewed 0 0"] * RANKS
            assert trainers.push(version) == ["pushed committed 4"] * n_ranks
            engines.expect_serve(version, tensors(version, n_layers, n_experts))
        assert all(one.is_alive for one in engines.ranks.values())
        assert pids == [one.pid for one in engines.ranks.values()]
