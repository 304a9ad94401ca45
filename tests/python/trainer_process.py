# SPDX-License-Identifier: Apache-2.0
"""A rank of a trainer in a process of its own, whose share of the experts may change.

trainer_process.py URL LAYERS EXPERTS: takes lines of JSON. {"rank": R, "ranks": N, "holds": {layer:
[experts]}, "rows": [begin, end]} registers it with these experts and rows of the gates, in the
place of what it was registered as; {"push": V} pushes that version's values and says what came of
it; {"leave": true} takes it out.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from expert_models import IN, OUT, tensors

import heft


class Trainer:
    def __init__(self, url: str, n_layers: int, n_experts: int) -> None:
        self.url, self.n_layers, self.n_experts = url, n_layers, n_experts
        self.publisher: heft.Publisher | None = None

    def leave(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
        self.publisher = None

    def register(self, what: dict[str, Any]) -> None:
        self.leave()
        self.what = what
        self.held = heft.Held(what["rank"], what["ranks"])
        begin, end = what["rows"]
        for layer in range(self.n_layers):
            whole = (self.n_experts, IN)
            gate = np.zeros((end - begin, IN), np.float32)
            box = ((begin, 0), gate.shape, gate, 0)
            self.held.add_boxes(f"layers.{layer}.gate", heft.DType.F32, whole, [box])
            for expert in what["holds"][str(layer)]:
                name, w = f"layers.{layer}.experts.{expert}.w", np.zeros((OUT, IN), np.float32)
                self.held.add(name, heft.DType.F32, w.shape, w)
        member = heft.Member(rank=what["rank"], deadline_ms=60_000)
        self.publisher = heft.Publisher(self.url, self.held, member=member)
        print("registered", flush=True)

    def push(self, version: int) -> None:
        assert self.publisher is not None
        values = tensors(version, self.n_layers, self.n_experts)
        begin, end = self.what["rows"]
        for name, array in self.held.tensors.items():
            array[:] = values[name][begin:end] if name.endswith("gate") else values[name]
        try:
            result = self.publisher.push(version)
            print("pushed", result.state, result.n_destinations, flush=True)
        except heft.HeftError as error:
            print("failed", error, flush=True)

    def obey(self, line: dict[str, Any]) -> None:
        if "push" in line:
            self.push(line["push"])
        elif "leave" in line:
            self.leave()
            print("left", flush=True)
        else:
            self.register(line)


def main() -> None:
    url, n_layers, n_experts = sys.argv[1:]
    trainer = Trainer(url, int(n_layers), int(n_experts))
    print("ready", flush=True)
    for line in sys.stdin:
        trainer.obey(json.loads(line))
    trainer.leave()


if __name__ == "__main__":
    main()
