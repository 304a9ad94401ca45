# SPDX-License-Identifier: Apache-2.0
"""No transfer: what an engine's load_weights does once all tensors are there. q, k, v and gate, up are copied into the fused
parameters, the others into their own, by one thread of PyTorch. The sender has nothing to do."""

from __future__ import annotations

import torch
from peers import LAYER_BYTES, Peer, allocate, main


class Loader(Peer):
    def open(self) -> None:
        torch.set_num_threads(1)
        if self.is_sender:
            return
        arrived = {name: torch.from_numpy(part) for name, part in self.tensors.items()}
        self.parameters = torch.from_numpy(allocate(LAYER_BYTES * (len(self.memory) // LAYER_BYTES)))
        at, self.copies = 0, []
        for tensor in arrived.values():  # fused parts lie one after the other, as shards of one parameter do
            self.copies.append((self.parameters[at : at + tensor.numel()], tensor))
            at += tensor.numel()

    def go(self) -> None:
        if not self.is_sender:
            for parameter, tensor in self.copies:
                parameter.copy_(tensor)

    def check(self, seed: int) -> str:
        return "ok"


if __name__ == "__main__":
    main(Loader)
