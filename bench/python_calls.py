#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds: calls that record, tiny runs and rounds, a large run as a ratio to a copy.

PYTHONPATH=build/release/python bench/python_calls.py [GiB of the large run]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import heft
from heft import BufferKind, DType, Plan, Tape, View

RECIPE = '"w" [a, b] -> "p" [b, a]\n'


def seconds(function: Callable[[], object], rounds: int = 5) -> float:
    """The median of some rounds, by this thread's own clock: what others do counts not."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def record(n: int) -> Tape:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.BF16, (n, 4))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.BF16, (n, 4))
    for i in range(n):
        tape.copy(View(dst, 4 * i, (4,), (1,)), View(src, 4 * i, (4,), (1,)), "loader.py:12")
    return tape


def line_plan(n: int) -> Plan:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.U8, (n,))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.U8, (n,))
    tape.copy(View.contiguous(dst, (n,)), View.contiguous(src, (n,)))
    return Plan.create([tape])


def runs(n_bytes: int) -> tuple[float, float]:
    """Seconds of a prepared run from Python, and of memcpy of the same bytes."""
    w, p = np.ones(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8)
    with heft.Exec(line_plan(n_bytes), {"p": p}) as run:
        run.run({"w": w})
        return seconds(lambda: run.run({"w": w})), seconds(lambda: np.copyto(p, w))


def rounds_per_second(n: int) -> float:
    recipe, bindings = heft.Recipe.parse(RECIPE), heft.Bindings()
    weights, params = {"w": np.ones((4, 6), "f4")}, {"p": np.zeros((6, 4), "f4")}
    stopped = threading.Event()
    with heft.Coordinator() as coordinator:
        subscriber = heft.Subscriber.create(coordinator.url, recipe, bindings, params)

        def poll() -> None:
            while not stopped.is_set():
                subscriber.poll(100)

        engine = threading.Thread(target=poll)
        engine.start()
        with heft.Publisher(coordinator.url, weights) as publisher:
            publisher.push(1)
            start = time.perf_counter()
            for version in range(2, n + 2):
                publisher.push(version)
            elapsed = time.perf_counter() - start
        stopped.set()
        engine.join()
        subscriber.close()
    return n / elapsed


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    print(f"tape: {1e6 * seconds(lambda: record(100_000), 3) / 100_000:.1f} us a write")
    tiny, _ = runs(64)
    print(f"run of 64 bytes: {1e6 * tiny:.0f} us")
    large, memcpy = runs(int(gib * (1 << 30)))
    print(f"run of {gib} GiB: {memcpy / large:.2f} x numpy.copyto")
    print(f"push of 96 bytes, all members in one process: {1e3 / rounds_per_second(50):.1f} ms")


if __name__ == "__main__":
    main()
