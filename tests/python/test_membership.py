# SPDX-License-Identifier: Apache-2.0
"""Members that come and go between pushes: the rest of the fleet keeps its plans and connections.

What a push has planned is what the source's log says of it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from expert_models import RECIPE, Table, bindings, expected, tensors, zeros

import heft
from heft import Coordinator, Member, Publisher, Recipe, Subscriber

RANKS, EXPERTS, LAYERS = 2, 3, 1
ONE: Table = [[0, 1, 2, 0]]
OTHER: Table = [[2, 1, 1, 0]]
THIRD: Table = [[1, 0, 0, 2]]


class Engine:
    """Two ranks of one table, each polled by a thread."""

    def __init__(self, url: str, replica: int, table: Table) -> None:
        self.recipe = Recipe.parse(RECIPE, "slots")
        self.table, self.stopped = table, threading.Event()
        self.params = [zeros(LAYERS, len(table[0]) // RANKS, EXPERTS) for _ in range(RANKS)]
        self.ranks = [
            Subscriber.create(
                url,
                self.recipe,
                bindings(table, RANKS, EXPERTS),
                params,
                member=Member(replica=replica, rank=rank),
            )
            for rank, params in enumerate(self.params)
        ]
        self.turns = [threading.Lock() for _ in self.ranks]
        self.threads = [
            threading.Thread(target=self.poll, args=(i,), daemon=True) for i in range(RANKS)
        ]
        for thread in self.threads:
            thread.start()

    def poll(self, i: int) -> None:
        while not self.stopped.wait(0.002):
            with self.turns[i]:
                self.ranks[i].poll(100)

    def renew(self, table: Table) -> None:
        self.table = table
        for i, turn in enumerate(self.turns):
            with turn:
                self.params[i] = zeros(LAYERS, len(table[0]) // RANKS, EXPERTS)
                self.ranks[i].renew(
                    self.recipe, self.params[i], bindings=bindings(table, RANKS, EXPERTS)
                )

    def holds(self, source: dict[str, np.ndarray]) -> bool:
        return all(
            np.array_equal(self.params[rank][name], array)
            for rank in range(RANKS)
            for name, array in expected(source, self.table, RANKS, rank).items()
        )

    def close(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)
        for rank in self.ranks:
            rank.close()


class Work:
    """What the source says that pushes have cost."""

    LINE = re.compile(r"(\d+) destinations: (\d+) of (\d+) layouts planned, (\d+) connections made")

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        self.at = 0

    def take(self) -> list[tuple[int, ...]]:
        """(destinations, planned, layouts, connections) of each time that the fleet had changed."""
        records = self.caplog.records
        lines = [record.getMessage() for record in records[self.at :]]
        self.at = len(records)
        return [
            tuple(map(int, found.groups())) for line in lines if (found := self.LINE.search(line))
        ]


@pytest.fixture
def work(caplog: pytest.LogCaptureFixture) -> Iterator[Work]:
    heft.log.to_logging(logging.INFO)
    with caplog.at_level(logging.INFO, "heft"):
        yield Work(caplog)
    heft.log.to_stderr()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(no_feed=True, deadlines={"poll_ms": 200, "contact_ms": 20_000}) as one:
        yield one


def test_only_what_has_changed_is_planned(coordinator: Coordinator, work: Work) -> None:
    source = tensors(0, LAYERS, EXPERTS)
    url, version = coordinator.url, 0
    engines = [Engine(url, 0, ONE), Engine(url, 1, OTHER)]
    publisher = Publisher(url, source)

    def push() -> list[tuple[int, ...]]:
        nonlocal version
        version += 1
        for name, array in tensors(version, LAYERS, EXPERTS).items():
            source[name][:] = array
        publisher.push(version)
        assert all(engine.holds(source) for engine in engines)
        return work.take()

    try:
        assert push() == [(4, 2, 2, 4)]
        assert push() == []  # nothing has changed
        engines.append(Engine(url, 2, ONE))  # joins, with a layout that is known
        assert push() == [(6, 0, 2, 2)]
        engines[1].renew(THIRD)  # a rebalance plans that engine's layout, and connects nobody
        assert push() == [(6, 1, 2, 0)]
        engines.pop(0).close()  # leaves
        assert push() == [(4, 0, 2, 0)]
        engines.pop(-1).close()
        engines.append(Engine(url, 2, ONE))  # another process in its place
        assert push() == [(4, 0, 2, 2)]
        publisher.close()
        publisher = Publisher(url, source)  # a new source knows nothing
        assert push() == [(4, 2, 2, 4)]
        engines.pop(0).close()
        assert push() == [(2, 0, 1, 0)]  # a layout that nobody has any more costs nothing
    finally:
        publisher.close()
        for engine in engines:
            engine.close()
