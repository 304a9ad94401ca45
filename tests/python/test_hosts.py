# SPDX-License-Identifier: Apache-2.0
"""Who sends where copies of a trainer's shards lie on several hosts, in real processes.

The hosts are names (HEFT_HOST); all processes are on one machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from host_process import COLUMNS, ROWS, values
from talking import Talking

import heft

BYTES = 4 * ROWS * COLUMNS


@pytest.fixture
def coordinator() -> Iterator[heft.Coordinator]:
    with heft.Coordinator(deadlines={"poll_ms": 200, "contact_ms": 20_000}) as one:
        yield one


class Fleet(contextlib.ExitStack):
    """Four ranks of a trainer, two copies of two halves, and engines."""

    def __init__(self, url: str, sources: list[str], engines: list[str]) -> None:
        super().__init__()
        self.url, self.n = url, len(sources)
        self.sources = [
            self.start("source", rank, self.n, host=host) for rank, host in enumerate(sources)
        ]
        self.engines: list[Talking] = []
        for host in engines:
            self.join(host)

    def start(self, *words: object, host: str) -> Talking:
        one = Talking("host_process.py", self.url, *words, HEFT_HOST=host)
        self.callback(one.close)
        one.await_line("ready")
        return one

    def join(self, host: str) -> Talking:
        one = self.start("destination", len(self.engines), host=host)
        self.engines.append(one)
        return one

    def push(self, version: int) -> list[int]:
        """Bytes that each source has sent."""
        for one in self.sources:
            one.tell(f"push {version}")
        for one in self.sources:
            one.await_line("pushed")
        want = f"serves {version} {heft.digest(values(version)):x}"
        for one in self.engines:
            assert one.await_line("serves") == want
        members = {m["id"]: m for m in heft.client.status(self.url)["members"]}
        counters = [members[f"source.heft.0.{rank}"]["counters"] for rank in range(self.n)]
        return [int(c.get("bytes", 0)) for c in counters]


def test_an_engine_is_served_from_its_own_host(coordinator: heft.Coordinator) -> None:
    with Fleet(coordinator.url, ["a", "a", "b", "b"], ["a", "b"]) as fleet:
        assert fleet.push(1) == [BYTES // 2] * 4
        fleet.join("b")  # one more there: more to send for those of b, and nothing for those of a
        fleet.engines[-1].await_line("serves 1")  # fed by another engine
        assert fleet.push(2) == [BYTES // 2] * 2 + [BYTES] * 2


def test_an_engine_on_another_host_is_served_by_all(coordinator: heft.Coordinator) -> None:
    with Fleet(coordinator.url, ["a", "b", "b", "b"], ["c"]) as fleet:
        sent = fleet.push(1)  # rows 0.. are held on a and b, the others on b alone
        assert sum(sent) == BYTES
        assert sent[0] == BYTES // 2  # so a sends all of its half
        assert sent[2] == 0
        assert sent[1] == sent[3] == BYTES // 4


def test_the_version_is_the_same_whoever_receives_it(coordinator: heft.Coordinator) -> None:
    with Fleet(coordinator.url, ["a", "a", "b", "b"], ["a"]) as fleet:
        fleet.push(1)
        first = heft.client.status(coordinator.url)["committed_digest"]
        fleet.join("b").await_line("serves 1")
        for one in fleet.sources:
            one.tell("push 1")
        for one in fleet.sources:
            one.await_line("pushed")
        assert heft.client.status(coordinator.url)["committed_digest"] == first
