# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own: a round moves memory between them; one that dies is named."""

from __future__ import annotations

import contextlib
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from models import expected, tensors

import heft
from heft import Coordinator, Publisher, errors

ENGINE = pathlib.Path(__file__).with_name("engine_process.py")
DEADLINE_S = 60
DEAD = r"destination\.heft\.0\.1"


class Process:
    """One engine, and the lines it says."""

    def __init__(self, url: str, rank: int, tp: int) -> None:
        command = [sys.executable, str(ENGINE), url, str(rank), str(tp)]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line.strip())

    def await_line(self, begin: str) -> str:
        while not (line := self.lines.get(timeout=DEADLINE_S)).startswith(begin):
            pass
        return line

    def close(self) -> int:
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        try:
            return self.child.wait(DEADLINE_S)
        finally:
            self.child.kill()
            self.child.wait(DEADLINE_S)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(deadlines={"poll_ms": 200, "contact_ms": 3000}) as one:
        yield one


@pytest.fixture
def engines(coordinator: Coordinator) -> Iterator[list[Process]]:
    processes = [Process(coordinator.url, rank, 2) for rank in range(2)]
    try:
        for process in processes:
            process.await_line("registered")
        yield processes
    finally:
        for process in processes:
            process.close()


def said(version: int, rank: int, source: dict) -> str:
    params = expected(source, 2, rank)
    digests = " ".join(f"{name}={heft.digest(params[name].copy()):x}" for name in sorted(params))
    return f"serves {version} {digests}"


def test_a_push_reaches_engines_in_other_processes(
    coordinator: Coordinator, engines: list[Process]
) -> None:
    source = tensors(3)
    with Publisher(coordinator.url, source) as publisher:
        assert publisher.push(1).n_destinations == 2
        for rank, engine in enumerate(engines):
            assert engine.await_line("serves 1") == said(1, rank, source)
    assert [engine.close() for engine in engines] == [0, 0]


def test_an_engine_that_dies_fails_the_push_and_is_named(
    coordinator: Coordinator, engines: list[Process]
) -> None:
    source = tensors(3)
    with Publisher(coordinator.url, source) as publisher:
        publisher.push(1)
        engines[1].child.kill()
        with pytest.raises((errors.PeerError, errors.TimeoutError), match=DEAD) as caught:
            publisher.push(2, tensors(4))
        assert caught.value.result.state == "aborted"
        status = heft.client.status(coordinator.url)
        assert status["committed_version"] == 1
        assert engines[0].await_line("serves 1") == said(1, 0, source)
