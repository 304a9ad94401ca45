# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a sharded trainer (FSDP): each rank holds rows of every tensor, and pushes them after each step.

trainer.py STEPS ENGINE_RANKS. The coordinator is where HEFT_URL says. With PyTorch's DTensors it is heft.ModulePublisher(model,
mesh=mesh); a trainer whose ranks all hold the whole model (DDP) has one of them push, as a job of one rank.
"""

from __future__ import annotations

import sys

import numpy as np
from place import rank_and_size

import heft

ROWS = 8


def main() -> None:
    steps, engine_ranks = map(int, sys.argv[1:])
    rank, size = rank_and_size()
    weights = {name: np.zeros((ROWS // size, 6), np.float32) for name in ("gate", "up")}
    held = heft.held_by(weights, heft.Mesh({"dp": size}, rank), {"*": ("dp",)}, n_ranks=size)
    heft.client.await_destinations(engine_ranks)
    with heft.Publisher(None, held) as publisher:
        for step in range(1, steps + 1):
            for tensor in weights.values():
                tensor += 1  # the optimizer's step
            result = publisher.push(step)  # on every rank: rank 0 begins the round, the others join it
            if rank == 0:
                print(f"step {step}: {result.n_bytes} bytes in {result.total_s:.3f} s", flush=True)


main()
