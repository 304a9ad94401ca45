# SPDX-License-Identifier: Apache-2.0
"""A rank of a trainer of two copies, or an engine, on the host that HEFT_HOST says.

host_process.py URL source RANK RANKS: lines "push V". host_process.py URL destination REPLICA: says
"serves V DIGEST".
"""

from __future__ import annotations

import select
import sys

import numpy as np

import heft

ROWS, COLUMNS = 1 << 15, 64


def values(version: int) -> np.ndarray:
    return np.random.default_rng(version).random((ROWS, COLUMNS), np.float32)


def source(url: str, rank: int, n_ranks: int) -> None:
    """Rank r holds half r % 2 of the rows; copy r // 2 of it."""
    w = np.zeros((ROWS // 2, COLUMNS), np.float32)
    held = heft.Held(rank, n_ranks)
    begin = rank % 2 * (ROWS // 2)
    held.add_boxes("w", heft.DType.F32, (ROWS, COLUMNS), [((begin, 0), w.shape, w, rank // 2)])
    with heft.Publisher(url, held, member=heft.Member(rank=rank)) as publisher:
        print("ready", flush=True)
        for line in sys.stdin:
            version = int(line.split()[1])
            w[:] = values(version)[begin : begin + len(w)]
            result = publisher.push(version)
            print("pushed", result.n_bytes, flush=True)


def destination(url: str, replica: int) -> None:
    raw = np.zeros(4 * ROWS * COLUMNS + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    w = raw[skip : skip + 4 * ROWS * COLUMNS].view(np.float32).reshape(ROWS, COLUMNS)
    subscriber = heft.Subscriber.create(
        url,
        heft.Recipe.parse('"w" [o, i] -> "w" [o, i]', "same"),
        heft.Bindings({}),
        {"w": w},
        hooks=heft.Hooks(resume=lambda v: print("serves", v, f"{heft.digest(w):x}", flush=True)),
        member=heft.Member(replica=replica),
    )
    print("ready", flush=True)
    with subscriber:
        while not select.select([sys.stdin], [], [], 0)[0]:
            subscriber.poll(100)


if __name__ == "__main__":
    if sys.argv[2] == "source":
        source(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
    else:
        destination(sys.argv[1], int(sys.argv[3]))
