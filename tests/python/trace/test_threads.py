# SPDX-License-Identifier: Apache-2.0
"""Writes are recorded in whichever thread they are made."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

import heft

F32 = torch.float32


class Model(nn.Module):
    def __init__(self, load: Any) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        self.q = nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        self.load = load

    def load_weights(self, weights: Any) -> None:
        self.load(self, dict(weights))


def pieces(load: Any) -> dict[str, list[tuple[int, int, str]]]:
    """Parameter -> (first element, elements, source) of each piece."""
    specs = [("x", F32, (4, 2)), ("y", F32, (4, 2))]
    unused = heft.Exception_(heft.ExceptionKind.UNUSED, "*", "not every loader reads all", True)
    untouched = heft.Exception_(heft.ExceptionKind.UNTOUCHED, "*", "nor writes all", True)
    plan = heft.trace(Model(load), specs).plan([unused, untouched])
    names = [info.name for info in plan.sources]
    return {
        info.name: [
            (p.dst_offset, p.extent[0], names[p.srcs[0].source] if p.srcs else "constant")
            for p in plan.pieces(param=i)
        ]
        for i, info in enumerate(plan.params())
    }


def test_pool_started_by_the_loader() -> None:
    def load(model: Model, weights: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(model.p.data[i].copy_, weights["x"][i]) for i in range(4)]
            jobs += [pool.submit(model.q.copy_, weights["y"])]
            for job in jobs:
                job.result(timeout=30)

    assert pieces(load) == {"p": [(0, 8, "x")], "q": [(0, 8, "y")]}


def test_pool_that_was_there_before_the_trace() -> None:
    """No mode is on in its threads: the stand-ins' own hooks must do."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(timeout=30)  # starts the thread

        def load(model: Model, weights: Any) -> None:
            pool.submit(model.p.copy_, weights["x"]).result(timeout=30)
            pool.submit(model.q.fill_, 2.0).result(timeout=30)

        assert pieces(load) == {"p": [(0, 8, "x")], "q": [(0, 8, "constant")]}


def test_temporary_made_and_filled_in_a_new_thread() -> None:
    def load(model: Model, weights: Any) -> None:
        def work() -> None:
            made = torch.empty(8)
            made[:4] = weights["x"].reshape(-1)[4:]
            made[4:] = weights["y"].reshape(-1)[:4]
            model.p.copy_(made.view(4, 2))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=30)

    assert pieces(load)["p"] == [(0, 4, "x"), (4, 4, "y")]


def test_thread_class_with_a_run_of_its_own() -> None:
    def load(model: Model, weights: Any) -> None:
        class Worker(threading.Thread):
            def run(self) -> None:
                made = torch.zeros(2, 2)
                made[0] = weights["x"][0]
                model.p.data[:2] = made
                model.p.data[2:].fill_(1)

        worker = Worker()
        worker.start()
        worker.join(timeout=30)

    assert pieces(load)["p"] == [(0, 2, "x"), (2, 2, "constant"), (4, 4, "constant")]


def test_thread_that_outlives_the_trace_runs_as_usual() -> None:
    go = threading.Event()
    made: list[torch.Tensor] = []

    def work() -> None:
        go.wait(timeout=30)
        made.append(torch.zeros(3) + 1)

    threads: list[threading.Thread] = []

    def load(model: Model, weights: Any) -> None:
        model.p.copy_(weights["x"])
        threads.append(threading.Thread(target=work))
        threads[0].start()

    pieces(load)
    go.set()
    threads[0].join(timeout=30)
    assert type(made[0]) is torch.Tensor and made[0].tolist() == [1.0, 1.0, 1.0]


def test_threads_after_the_trace_are_as_before() -> None:
    methods = threading.Thread.run, threading.Thread.start
    pieces(lambda model, weights: model.p.copy_(weights["x"]))
    assert (threading.Thread.run, threading.Thread.start) == methods
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(torch.zeros(2)))
    thread.start()
    thread.join(timeout=30)
    assert type(made[0]) is torch.Tensor
