# SPDX-License-Identifier: Apache-2.0
"""What a trace costs: memory for whole-stream loaders, and no waiting for other ranks."""

from __future__ import annotations

import subprocess
import sys

import torch.distributed as dist

from heft.trace import trace as trace_loader

from .toys.case import Model, f32
from .toys.traced import specs_of

PEAK = """
import resource, sys, torch, heft
from torch import nn

N, ROWS, COLS = 16, 4096, 4096  # 16 tensors of 64 MiB

class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(N):
            data = torch.empty(ROWS, COLS, device="meta")
            self.register_parameter(f"w{i:02}", nn.Parameter(data, requires_grad=False))

    def load_weights(self, weights):
        for name, loaded in sorted(weights, key=lambda pair: pair[0], reverse=True):
            if loaded[0, 0].item() <= 0:
                raise ValueError(name)
            self.get_parameter(name).copy_(loaded)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

model = Sorting()
specs = {f"w{i:02}": torch.empty(ROWS, COLS, device="meta") for i in range(N)}
heft.trace(nn.Linear(2, 2), {"weight": torch.empty(2, 2), "bias": torch.empty(2)},
           load=lambda weights: list(weights))  # what the first trace imports is not counted
before = peak()
trace = heft.trace(model, specs)
grown = peak() - before
assert trace.plan().n_bytes == N * ROWS * COLS * 4
print(grown)
"""


def test_loader_that_sorts_a_gibibyte_takes_less_than_a_tensor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < (64 + 16) << 20


def test_collective_inside_a_loader_is_opaque_and_waits_for_nobody() -> None:
    """The other rank of the group is never there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def load(model, weights):
        largest = weights["x"].abs().max()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        model.p.copy_(weights["x"] / largest)
        model.q.copy_(weights["y"])

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        sources = {"x": f32(4), "y": f32(2)}
        traced = trace_loader(Model({"p": f32(4), "q": f32(2)}, load), specs_of(sources))
    finally:
        dist.destroy_process_group()
    assert set(traced.opaque) == {"p"}
    plan = traced.plan()
    assert [group.is_opaque for group in plan.groups] == [True, False]
