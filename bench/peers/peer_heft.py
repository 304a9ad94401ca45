# SPDX-License-Identifier: Apache-2.0
"""heft: a whole round, that is: planned, staged, digests of every parameter compared, flipped into the engine's live parameters.

The engine has q, k, v and gate, up fused. OPTION is a transport, if not the default. Beside the time of the push it says what heft
measured of the transfer alone.
"""

from __future__ import annotations

import os
import threading

import heft
import numpy as np
from peers import HIDDEN, INNER, Peer, main, n_layers

RECIPE = """
let layers = 1
"model.layers.{l}.self_attn.q_proj.weight" [o, i] -> "model.layers.{l}.self_attn.qkv_proj.weight" [(0:3 o), i]
"model.layers.{l}.self_attn.k_proj.weight" [o, i] -> "model.layers.{l}.self_attn.qkv_proj.weight" [(1:3 o), i]
"model.layers.{l}.self_attn.v_proj.weight" [o, i] -> "model.layers.{l}.self_attn.qkv_proj.weight" [(2:3 o), i]
"model.layers.{l}.self_attn.o_proj.weight" [o, i] -> "model.layers.{l}.self_attn.o_proj.weight" [o, i]
"model.layers.{l}.mlp.gate_proj.weight" [o, i] -> "model.layers.{l}.mlp.gate_up_proj.weight" [(0:2 o), i]
"model.layers.{l}.mlp.up_proj.weight" [o, i] -> "model.layers.{l}.mlp.gate_up_proj.weight" [(1:2 o), i]
"model.layers.{l}.mlp.down_proj.weight" [o, i] -> "model.layers.{l}.mlp.down_proj.weight" [o, i]
"""
PARAMETERS = {
    "self_attn.qkv_proj": (3 * HIDDEN, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_up_proj": (2 * INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def typed(raw: np.ndarray, rows: int, columns: int) -> object:
    return heft.view_as(raw, heft.DType.BF16, (rows, columns))


class Heft(Peer):
    """In memory the fused parameters lie as their parts do in the source, so one check is right for both."""

    def open(self) -> None:
        if self.option:
            if "transport" not in {knob.name for knob in heft.knobs()}:
                raise SystemExit("this heft has no choice of transports")
            os.environ["HEFT_TRANSPORT"] = self.option
        self.version = 0
        if self.is_sender:
            self.coordinator = heft.Coordinator()
            self.info = self.coordinator.url

    def connect(self, info: str) -> None:
        if self.is_sender:
            columns = {name: INNER if "down_proj" in name else HIDDEN for name in self.tensors}
            tensors = {name: typed(raw, len(raw) // 2 // columns[name], columns[name]) for name, raw in self.tensors.items()}
            self.publisher = heft.Publisher(self.coordinator.url, tensors)
            return
        parameters, at = {}, 0
        for layer in range(n_layers(len(self.memory))):
            for name, (rows, columns) in PARAMETERS.items():
                n = 2 * rows * columns
                parameters[f"model.layers.{layer}.{name}.weight"] = typed(self.memory[at : at + n], rows, columns)
                at += n
        self.subscriber = heft.Subscriber.create(info, heft.Recipe.parse(RECIPE), heft.Bindings({}), parameters)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.poll)
        self.thread.start()

    def poll(self) -> None:
        while not self.stopped.is_set():
            self.subscriber.poll(100)

    def go(self) -> str | None:
        if not self.is_sender:
            return None  # push returns when every engine serves the version
        if self.version == 0:
            heft.client.await_destinations(1, self.coordinator.url)
        self.version += 1
        result = self.publisher.push(self.version)
        return f"transfer {result.transfer_s}"

    def close(self) -> None:
        if not self.is_sender:
            self.stopped.set()
            self.thread.join()
            self.subscriber.close()
        else:
            self.publisher.close()
            self.coordinator.close()


if __name__ == "__main__":
    main(Heft)
