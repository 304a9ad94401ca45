#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tracing costs: a mixture of experts of the size of real ones, one rank of eight.

bench/trace_model.py [LAYERS]     PYTHONPATH=build/release/python; needs PyTorch
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from torch import nn

import heft

EXPERTS, WIDTH, INNER, RANKS, RANK = 128, 4096, 1536, 8, 3
SHARE = INNER // RANKS


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shapes = {
            "w13": (EXPERTS, 2 * SHARE, WIDTH),
            "w2": (EXPERTS, WIDTH, SHARE),
            "qkv": (1280, WIDTH),
        }
        for name, shape in shapes.items():
            data = torch.empty(shape, dtype=torch.bfloat16, device="meta")
            self.register_parameter(name, nn.Parameter(data, requires_grad=False))


class Model(nn.Module):
    """A loader in the style of engines: by name, a narrow on either side, a copy."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(n_layers))

    def load_weights(self, weights: Any) -> None:
        params = dict(self.named_parameters())
        for name, loaded in weights:
            _, layer, kind, *rest = name.split(".")
            if kind == "experts":
                self.load_expert(params, f"layers.{layer}.", int(rest[0]), rest[1], loaded)
                continue
            at, n = {"q": (0, 1024), "k": (1024, 128), "v": (1152, 128)}[kind]
            params[f"layers.{layer}.qkv"].data.narrow(0, at, n).copy_(loaded.narrow(0, RANK * n, n))

    @staticmethod
    def load_expert(params: Any, layer: str, e: int, kind: str, loaded: torch.Tensor) -> None:
        if kind == "down":
            params[layer + "w2"].data[e].copy_(loaded.narrow(1, RANK * SHARE, SHARE))
            return
        half = params[layer + "w13"].data[e].narrow(0, 0 if kind == "gate" else SHARE, SHARE)
        half.copy_(loaded.narrow(0, RANK * SHARE, SHARE))


def specs_of(n_layers: int) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    specs: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
    for layer in range(n_layers):
        rows = {"q": 1024 * RANKS, "k": 1024, "v": 1024}
        specs += [(f"layers.{layer}.{k}", torch.bfloat16, (n, WIDTH)) for k, n in rows.items()]
        for e in range(EXPERTS):
            name = f"layers.{layer}.experts.{e}."
            specs += [(name + k, torch.bfloat16, (INNER, WIDTH)) for k in ("gate", "up")]
            specs.append((name + "down", torch.bfloat16, (WIDTH, INNER)))
    return specs


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    n_layers = int(sys.argv[1]) if len(sys.argv) > 1 else 52
    heft.trace(Model(1), specs_of(1))  # what the first trace imports is not counted
    before = peak_mib()
    traced = heft.trace(Model(n_layers), specs_of(n_layers))
    elsewhere = heft.Exception_(heft.ExceptionKind.ELSEWHERE, "layers.*", "other ranks")
    started = time.perf_counter()
    plan = traced.plan([elsewhere], partial=True)
    print(
        f"{len(traced.source)} sources of {traced.source.n_bytes / 2**30:.0f} GiB into "
        f"{len(traced.params)} parameters of {traced.params.n_bytes / 2**30:.0f} GiB: "
        f"{traced.seconds:.1f} s, {peak_mib() - before:.0f} MiB; "
        f"fold and proof {time.perf_counter() - started:.2f} s, {plan.n_pieces} pieces"
    )


if __name__ == "__main__":
    main()
