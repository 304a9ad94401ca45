# SPDX-License-Identifier: Apache-2.0
"""A stand-in for one tensor-parallel rank of an engine: serves until it has the last version.

engine.py LAST_VERSION. The coordinator is where HEFT_URL says.
"""

from __future__ import annotations

import sys

import numpy as np
from place import rank_and_size

import heft

RECIPE = """
let tp = 1
ranks tp as rank
"gate" [({rank}:tp f), d] -> "gate_up" [(0:2 f), d]
"up"   [({rank}:tp f), d] -> "gate_up" [(1:2 f), d]
"""


def main() -> None:
    last = int(sys.argv[1])
    rank, size = rank_and_size()
    memory = {"gate_up": np.zeros((16 // size, 6), np.float32)}
    recipe, bindings = heft.Recipe.parse(RECIPE), heft.Bindings({"tp": size})
    place = heft.Member(rank=rank)
    with heft.Subscriber.create(None, recipe, bindings, memory, member=place) as subscriber:
        while subscriber.version < last or heft.client.status()["state"] != "idle":
            subscriber.poll(200)
    value = float(memory["gate_up"].mean())
    print(f"rank {rank} of {size}: version {last}, mean {value}", flush=True)


main()
