# SPDX-License-Identifier: Apache-2.0
"""A model of experts, a recipe that puts them into slots by a table, and what slots must hold."""

from __future__ import annotations

import json
import random

import numpy as np

import heft

Table = list[list[int]]

RECIPE = """\
let ep = 1, layers = 1, experts = 1, table
ranks ep as rank
let map = expert_table(table, layers, experts)
require len(map[0]) % ep == 0 "the slots do not divide by the ranks"
let slots = len(map[0]) / ep

"layers.{l}.experts.{e}.w" [o, d] -> "layers.{l}.slots" [{p}:slots, o, d]
  for p:slots when map[l][rank * slots + p] == e
"layers.{l}.gate" [e, d] -> "layers.{l}.gate" [e, d]
"""
OUT, IN = 3, 5


def bindings(table: Table, n_ranks: int, n_experts: int) -> heft.Bindings:
    values = {"ep": n_ranks, "layers": len(table), "experts": n_experts}
    return heft.Bindings({**values, "table": json.dumps(table)})


def tensors(seed: int, n_layers: int, n_experts: int) -> dict[str, np.ndarray]:
    """What the trainer holds: no two elements are equal."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for layer in range(n_layers):
        found[f"layers.{layer}.gate"] = rng.random((n_experts, IN), np.float32)
        for expert in range(n_experts):
            found[f"layers.{layer}.experts.{expert}.w"] = rng.random((OUT, IN), np.float32)
    return found


def zeros(n_layers: int, n_slots: int, n_experts: int) -> dict[str, np.ndarray]:
    """What a rank of n_slots slots holds, before anything was pushed. 64-byte aligned."""
    found: dict[str, np.ndarray] = {}
    for layer in range(n_layers):
        found[f"layers.{layer}.slots"] = aligned((n_slots, OUT, IN))
        found[f"layers.{layer}.gate"] = aligned((n_experts, IN))
    return found


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    n = 4 * int(np.prod(shape))
    raw = np.zeros(n + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + n].view(np.float32).reshape(shape)


def expected(
    source: dict[str, np.ndarray], table: Table, n_ranks: int, rank: int
) -> dict[str, np.ndarray]:
    """Element by element: slot p of rank r holds the expert that the table says."""
    n_slots = len(table[0]) // n_ranks
    n_experts = len(source["layers.0.gate"])
    found = zeros(len(table), n_slots, n_experts)
    for layer, row in enumerate(table):
        found[f"layers.{layer}.gate"][:] = source[f"layers.{layer}.gate"]
        for p in range(n_slots):
            expert = source[f"layers.{layer}.experts.{row[rank * n_slots + p]}.w"]
            for o in range(OUT):
                for d in range(IN):
                    found[f"layers.{layer}.slots"][p, o, d] = expert[o, d]
    return found


def random_table(random_: random.Random, n_layers: int, n_slots: int, n_experts: int) -> Table:
    """Each expert is somewhere; busy ones more than once, also twice on one rank."""
    table = []
    for _ in range(n_layers):
        row = list(range(n_experts))
        row += [random_.randrange(n_experts) for _ in range(n_slots - n_experts)]
        random_.shuffle(row)
        table.append(row)
    return table
