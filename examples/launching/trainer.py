# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a trainer whose ranks all hold the whole model (DDP): rank 0 pushes after each step.

trainer.py STEPS ENGINE_RANKS. The coordinator is where HEFT_URL says.
"""

from __future__ import annotations

import sys

import numpy as np
from place import rank_and_size

import heft


def main() -> None:
    steps, engine_ranks = map(int, sys.argv[1:])
    rank, _ = rank_and_size()
    weights = {name: np.zeros((8, 6), np.float32) for name in ("gate", "up")}
    if rank != 0:
        return  # would take part in the gradients
    heft.client.await_destinations(engine_ranks)
    with heft.Publisher(None, weights) as publisher:
        for step in range(1, steps + 1):
            for tensor in weights.values():
                tensor += 1  # the optimizer's step
            result = publisher.push(step)
            print(f"step {step}: {result.n_bytes} bytes in {result.total_s:.3f} s", flush=True)


main()
