# SPDX-License-Identifier: Apache-2.0
"""What the Python peers share: memory, contents, and the conversation of peer.h with compare.py.

A peer is a class with is_sender, info, connect(info) and go(). Its memory is `self.memory`, uint8, cut into the tensors of a dense
decoder: `self.tensors`, name -> uint8 view. Contents are a counter times a constant, so that every word of every version differs.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator

import numpy as np

CONSTANT = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 17
HIDDEN, INNER = 2048, 5632
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (HIDDEN, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
LAYER_BYTES = sum(2 * rows * columns for rows, columns in SHAPES.values())


def n_layers(n_bytes: int) -> int:
    return max(1, n_bytes // LAYER_BYTES)


def allocate(n_bytes: int) -> np.ndarray:
    """As peer_allocate of peer.c: private, huge pages where there are some, touched."""
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 1
    return array


def cut(memory: np.ndarray) -> dict[str, np.ndarray]:
    """The bf16 matrices of each layer, one after the other, as bytes."""
    tensors, at = {}, 0
    for layer in range(len(memory) // LAYER_BYTES):
        for name, (rows, columns) in SHAPES.items():
            n = 2 * rows * columns
            tensors[f"model.layers.{layer}.{name}.weight"] = memory[at : at + n]
            at += n
    return tensors


def words(first: int, n: int, seed: int) -> np.ndarray:
    """Words [first, first + n) of contents `seed`."""
    return np.arange(first + (seed << 40), first + (seed << 40) + n, dtype=np.uint64) * CONSTANT


def _blocks(memory: np.ndarray, seed: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    found = memory.view(np.uint64)
    for at in range(0, len(found), BLOCK):
        part = found[at : at + BLOCK]
        yield at, part, words(at, len(part), seed)


def fill(memory: np.ndarray, seed: int) -> None:
    for _, part, wanted in _blocks(memory, seed):
        part[:] = wanted


def check(memory: np.ndarray, seed: int) -> str:
    for at, part, wanted in _blocks(memory, seed):
        if not np.array_equal(part, wanted):
            return f"bad {at + int(np.flatnonzero(part != wanted)[0])}"
    return "ok"


class Peer:
    info = "-"

    def __init__(self, is_sender: bool, n_bytes: int, option: str):
        self.is_sender, self.option = is_sender, option
        self.memory = allocate(n_bytes)
        self.tensors = cut(self.memory)
        self.open()

    def open(self) -> None:
        pass

    def connect(self, info: str) -> None:
        pass

    def go(self) -> None:
        raise NotImplementedError

    def fill(self, seed: int) -> None:
        fill(self.memory, seed)

    def check(self, seed: int) -> str:
        return check(self.memory, seed)

    def close(self) -> None:
        pass


def main(kind: type[Peer]) -> None:
    """send|recv BYTES [OPTION]; lines in, lines out. What libraries print on standard output goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = kind(sys.argv[1] == "send", int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
    print("hello", peer.info or "-", file=out)
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        answer = "ok"
        if verb == "peer":
            peer.connect(rest)
            answer = "ready"
        elif verb == "fill":
            peer.fill(int(rest))
        elif verb == "check":
            answer = peer.check(int(rest))
        elif verb == "go":
            said = peer.go()
            answer = "ok" if said is None else f"ok {said}"
        else:
            break
        print(answer, file=out)
    peer.close()
