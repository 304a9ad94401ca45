# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests: tensors, recipes, and what the parameters must be."""

from __future__ import annotations

import numpy as np

import heft

RECIPE = """\
let tp = 1
ranks tp as rank

"layers.{l}.gate" [({rank}:tp f), d] -> "layers.{l}.gate_up" [(0:2 f), d]
"layers.{l}.up"   [({rank}:tp f), d] -> "layers.{l}.gate_up" [(1:2 f), d]
"embed" [v, d] -> "embed" [v, d]
ignore "rope.inv_freq" because "computed from the configuration"
"""


def tensors(seed: int = 1, layers: int = 2) -> dict[str, np.ndarray]:
    """What the trainer holds."""
    width, depth = 8, 6
    rng = np.random.default_rng(seed)
    shapes = {"embed": (10, depth), "rope.inv_freq": (3,)}
    for layer in range(layers):
        shapes[f"layers.{layer}.gate"] = shapes[f"layers.{layer}.up"] = (width, depth)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def expected(source: dict[str, np.ndarray], tp: int = 1, rank: int = 0) -> dict[str, np.ndarray]:
    """What rank `rank` of the engine must hold, by numpy."""
    params = {"embed": source["embed"]}
    for name in [name for name in source if name.endswith(".gate")]:
        halves = [source[name], source[name.replace(".gate", ".up")]]
        shares = [np.split(half, tp)[rank] for half in halves]
        params[name.replace(".gate", ".gate_up")] = np.concatenate(shares)
    return params


def manifest_of(arrays: dict[str, np.ndarray], side: str = "source") -> heft.Manifest:
    return heft.Manifest.create(
        side, [(name, heft.memory.describe(a, name).dtype, a.shape) for name, a in arrays.items()]
    )


def zeros_like(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(array) for name, array in arrays.items()}
